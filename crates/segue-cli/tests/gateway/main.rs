//! A gateway between hosts: traffic through it arrives, trains arrive whole, and a kernel that cuts them again
//! restores the sent frames, byte for byte.

#[path = "../common/mod.rs"]
mod common;

mod bump;
mod commands;
mod traffic;
mod wire;
