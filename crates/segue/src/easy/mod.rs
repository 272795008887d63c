//! The engine's simple interface, for a program that moves packets between a TUN device and its own transport: a VPN, a
//! stack in user space, a device of a virtual machine.
//!
//! [`Splitter`] takes what was read from the device, a packet or a train with its virtio-net header, and writes single
//! packets into the caller's memory, each copied and summed in one pass: with headroom and tailroom, so that a
//! cipher seals them in place. [`Joiner`] takes the packets of one batch, borrowed, and gives trains to be written to
//! the device. Neither does I/O, and neither allocates after warm-up.
//!
//! ```
//! use segue::easy::{Joiner, Splitter};
//! use segue::hash::Key;
//! use segue::packet::Start;
//! use segue::virtio::{Form, TUN_OFFLOADS};
//!
//! # fn seal(_: &mut [u8]) {}
//! # let (mut read, mut tun) = (vec![0; 10], Vec::<u8>::new());
//! # read.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
//! // Outwards: what one read of the device gave becomes datagrams, sealed where they lie.
//! let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
//! let mut refused = 0; // what cannot be split, which any user of the host can send
//! for packet in splitter.read_or(&read, |_reason| refused += 1).iter() {
//!     let mut datagram = Vec::new();
//!     packet.append_to(&mut datagram, (16, 16)); // headroom and tailroom
//!     seal(&mut datagram);
//! }
//! // Inwards: the packets of one receive call become trains.
//! let random = Key([1, 2]); // from the system's random numbers
//! let mut joiner = Joiner::tun(random, TUN_OFFLOADS[0]);
//! # let datagrams = [&read[10..]];
//! let mut batch = joiner.batch();
//! for packet in datagrams {
//!     batch.push(packet);
//! }
//! while let Some(train) = batch.pop() {
//!     tun.extend(train.pieces().flatten()); // or write_vectored
//! }
//! # assert_eq!((refused, &tun[10..]), (0, &read[10..]));
//! ```
//!
//! A write that fails costs that packet or train only: the loop goes on. If the error is `EINVAL` (`InvalidInput`), it
//! calls [`Batch::narrow`], since some kernels refuse a kind of train that they have accepted.
//!
//! Packets that stay over several batches, tunnels and limits of other devices need the modules that this one is built
//! on: [`gro`](crate::gro), [`gso`](crate::gso), [`virtio`](crate::virtio).

mod joiner;
mod scattered;
mod splitter;
mod write;

pub use joiner::{Batch, Joiner, Train};
pub use scattered::{Scattered, ScatteredPacket};
pub use splitter::{Packets, ReadError, SplitPacket, Splitter};
pub use write::Short;
