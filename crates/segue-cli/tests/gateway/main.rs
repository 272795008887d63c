//! Tests of a gateway between hosts: traffic passes, trains arrive whole, and a kernel that segments them again
//! restores the sent frames, byte for byte.

#[path = "../common/mod.rs"]
mod common;

mod bump;
mod commands;
mod traffic;
#[path = "../common/transfer.rs"]
mod transfer;
mod wire;
