//! Ports, through which packets are received and sent: TUN and TAP devices, packet sockets, UDP and raw sockets, guests
//! of virtual machines; the pages for received data; and wrappers for traces and tests.
//!
//! A [`Port`] states what it can take ([`Port::limits`]) and moves one batch per call. Two kinds share the trait.
//! *Packet* ports ([`tun::TunPort`], [`packet_socket::PacketPort`]) carry whole packets and put them into
//! [`RxBatch::packets`], as frames that are not parsed unless they are trains, owe a checksum or lie in several pages
//! ([`Received`]). *Datagram* ports ([`udp::UdpPort`]) carry what follows an outer UDP header, put [`Burst`]s into
//! [`RxBatch::bursts`] and take the outer fields as metadata ([`segue::packet::Outer`]).
//!
//! The loop, in one sentence: `receive` with a budget until it says [`Polled::Idle`], transform, [`TxBatch::push`]
//! (which splits for the port), `transmit`, on [`Sent::Narrowed`] [`TxBatch::resplit`] and again, `recycle`. Where no
//! port has more, the loop waits for all of them with a [`PollSet`].
//!
//! # Promises
//! No port drops a packet without counting it under a named reason ([`Drop`]), none trusts a length or an offset in the
//! kernel's header without checking it against the bytes, and none depends on the datapath or on another port.
//!
//! Features, on by default: `tun`, `udp` and `packet` for the kinds of ports, `capture` for [`wrap::Trace`], `tracing`
//! for warnings where a kernel refuses an offload. `vhost-user` adds the port of a virtual machine, [`vhost`]; `tokio`
//! adds devices and sockets for which tasks of a runtime wait, on any of its threads (`tun::Tun::into_async`).
//!
//! `SEGUE_OFFLOAD=0` in the environment of a program switches the trains of `tun::Tun::open`, `udp::Sender::new` and
//! `udp::Receiver::new` off for one run; `-tun`, `-uso` (UDP trains of a device) and `-udp` (UDP_SEGMENT and UDP_GRO)
//! switch off parts.
#![warn(clippy::missing_errors_doc)]
// The pages of docs.rs say which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A part alone does not use all that the parts share.
#![cfg_attr(
    not(all(feature = "packet", feature = "udp", feature = "capture", feature = "tracing")),
    allow(dead_code, unused_imports, unused_macros, unused_variables)
)]

/// Reports an event through `tracing`; does nothing without that feature.
macro_rules! notice {
    ($level:ident, $($rest:tt)*) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!($($rest)*);
    }};
}

mod batch;
#[cfg(any(feature = "tun", feature = "udp"))]
mod environment;
mod failures;
mod link;
mod messages;
mod mmap;
#[cfg(feature = "packet")]
pub mod packet_socket;
mod page;
mod poll;
mod port;
mod sys;
#[cfg(test)]
mod testing;
#[cfg(feature = "tun")]
pub mod tun;
#[cfg(all(test, feature = "packet"))]
mod tunnelled;
#[cfg(feature = "udp")]
pub mod udp;
#[cfg(feature = "vhost-user")]
pub mod vhost;
mod vnet;
pub mod wrap;

pub use batch::{Burst, Received, RxBatch, TxBatch, TxUnit};
pub use link::{LinkState, TunnelWatch};
pub use page::{MIN_PAGE_LEN, PAGE_LEN, Page, PageMut, PagePool, Sharing, WINDOW};
pub use poll::{Interest, PollSet};
pub use port::{Blocked, Counters, Direction, Drop, Extra, Fallback, OffloadState, Path, Polled, Port, Sent};
pub use sys::now;
