//! Memory that processes share.

mod mmap;

pub use mmap::SharedNumbers;
