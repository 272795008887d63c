//! Virtual machines: the back end of a virtio network device over vhost-user, which QEMU, Cloud Hypervisor and DPDK
//! speak.
//!
//! A front end, the program that runs a guest, connects to a local socket and hands over the guest's memory, two rings
//! and the descriptors by which both sides wake each other. From then on packets and whole trains are copied between
//! the guest's buffers and pages, without a system call for each; a train crosses uncut and unsummed where the guest's
//! driver takes it ([`Port::limits`](crate::Port::limits)).
//!
//! # Promises
//! - Neither a guest nor its front end is trusted. Headers and descriptors are copied once, judged and used from the
//!   copy; chains have limits; an index, an address or a length that is wrong stops this guest's port under a named
//!   reason ([`Stop`]) and changes nothing else. What the guest rewrites while it is copied is a wrong payload of its
//!   own.
//! - No file of memory has to be sealed: one that becomes shorter is caught, and stops the port
//!   ([`Stop::MemoryLost`]). The process gets a handler of SIGBUS for that.
//! - A packet in several buffers appears at once, and chains are returned in the order in which they were taken, so
//!   that a front end can continue with a new back end.
//! - No method waits for a guest. Memory is of tmpfs or hugetlbfs, so that no access to it, and no close, waits for
//!   another process or a disk; a [relay] checks that ([`Stop::MemoryFile`]), and [`Source::Listener`] and
//!   [`Source::Connected`] are for front ends that are trusted with it. A counter of calls that is full is left as it
//!   is. One that its owner makes block, and fills in the moment between that look and the write, holds the port up
//!   until it is read, or until a supervisor sends [`INTERRUPT`]: no write to such a counter is sure not to wait. Then
//!   the port stops ([`Stop::CallBlocked`]) and takes no other front end. So it does where very many watchers of the
//!   counter make calls take a quarter of the processor. An access to memory can still wait while its front end takes
//!   pages out of the file.
//! - Memory that is no longer used is unmapped in short steps. The next front end waits for it.
//! - A guest has at most 1 TiB of memory: all ports of a process share its addresses.
//! - A guest that offers no buffers holds its packets back for 100 ms; from then on they are dropped
//!   ([`GuestDrop::NoBuffers`]) until it offers some.
//!
//! # Limits
//! One pair of queues, and so one thread; split rings. Live migration and an IOMMU are refused by name, and so is a
//! queue without a kick. `UFO` is not offered: the engine does not fragment for it.

mod calls;
mod config;
mod copy;
mod feature;
mod files;
mod memory;
mod message;
mod port;
mod reasons;
pub mod relay;
mod ring;
mod session;
mod sys;
#[cfg(test)]
mod tests;

pub use config::{GUEST_CONNECTED, GUEST_READY, GUEST_STALLED, LAST_STOP, Source, VhostConfig};
pub use message::{Assembler, Message, Region, regions};
pub use port::VhostPort;
pub use reasons::{GuestDrop, Stop};
pub use sys::INTERRUPT;
