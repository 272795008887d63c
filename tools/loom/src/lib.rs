//! Boards, knobs and feeds of the datapath under loom, which runs the interleavings of their threads that the memory
//! model of C11 allows: all of them, except where a model limits the preemptions. The files are the datapath's own;
//! [`sync`] replaces what threads share.
#![allow(dead_code, unreachable_pub, reason = "the files are included for some of what they have")]

#[path = "../../../crates/segue-datapath/src/board.rs"]
mod board;
#[path = "../../../crates/segue-datapath/src/knobs.rs"]
mod knobs;
mod router;
mod sync;

#[cfg(test)]
mod models;
