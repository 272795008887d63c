//! Packets that lie in several pieces of memory.

pub mod abi;
