//! Memory that is shared between processes.

mod mmap;

pub use mmap::SharedNumbers;
