//! The C interface of the engine: `include/segue.h`.
//!
//! # Promises
//! Every function checks its pointers, catches panics ([`abi::SEGUE_ERR_PANIC`], or null) and keeps no pointer of the
//! caller's past its return, except where the header says so. Negative results are errors, whose names are those of the
//! engine's reasons. Structs of results only grow at their end, in a new version of the library's soname.

pub mod abi;
pub mod chain;
mod error;
mod plan;
pub mod structs;
mod tunnel;
