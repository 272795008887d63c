//! Software packet offloads without I/O: segment trains into packets ([`gso`]), join packets into trains ([`gro`]),
//! encapsulate them in tunnels ([`encap`]), and skip every checksum that another party covers.
//!
//! A *train* is one header and the payload of many segments, as a kernel hands out with segmentation offload. The
//! engine works on [`packet::Packet`]: all headers in one small array, the payload as ranges of the caller's buffers, a
//! [`packet::Layout`] that says where each header is, and a [`packet::Offload`] that says which checksums are still
//! owed.
//!
//! The loop contract, in one sentence: parse a buffer into a packet, push it into [`gro::Gro`] with the time, pop until
//! nothing comes, transform (encapsulate, decapsulate), split in front of the port, and ask for the next deadline.
//!
//! # Promises
//! - The engine never reads a clock and never does I/O; after warm-up it allocates nothing.
//! - It never computes a checksum that would hide a wrong one.
//! - It trusts no length that it did not check against the bytes present, and panics on no input.
//! - Packets of one flow leave in the order in which they came, none longer than its deadline after that.
//! - A packet that cannot be merged, split or decapsulated is handed back under a named reason.
#![cfg_attr(not(test), no_std)]
#![warn(clippy::missing_errors_doc)]

extern crate alloc;

mod arch;
pub mod checksum;
pub mod easy;
pub mod encap;
pub mod gro;
pub mod gso;
pub mod hash;
pub mod packet;
pub mod reason;
pub mod time;
pub mod virtio;
pub mod wire;

/// The example of this crate's README is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
