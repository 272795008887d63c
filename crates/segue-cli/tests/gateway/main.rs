//! A gateway between hosts: what crosses it arrives, trains arrive whole, and a kernel that cuts them again gives back
//! what was sent, byte for byte.

#[path = "../common/mod.rs"]
mod common;

mod bump;
mod commands;
mod traffic;
mod wire;
