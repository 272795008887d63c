//! Tunnels in the kernel: two BPF programs encapsulate packets and trains, and decapsulate them, without a copy
//! to a process and back.
//!
//! The daemon of a tunnel owns its interface, its sockets and its settings. The programs take from it what is plain, by
//! the same description of the tunnel ([`segue::encap::Config`]):
//! - the one at the egress of the tunnel's interface sends packets on by the interface towards the remote;
//! - the one at the ingress of that interface hands received packets to the tunnel's interface.
//!
//! What a program does not recognise, or must not touch, it leaves to the daemon, which serves it by the same interface
//! and the same port; each reason is counted ([`Counts::left`]).
//!
//! # Lifecycle
//! [`Path::load`] creates maps and loads programs, which the crate assembles itself, and tries them; [`Path::attach`]
//! attaches them to interfaces, [`Path::switch`] switches the path on. These need CAP_BPF, CAP_PERFMON and
//! CAP_NET_ADMIN; without CAP_PERFMON the verifier refuses the programs of tunnels in UDP with EACCES. Afterwards
//! [`Path::switch`], [`Path::follow`] and [`Path::counts`] need no capability, and of bpf(2) only [`MAP_COMMANDS`].
//! When the value is dropped or the process ends, in whatever way, the kernel detaches and removes everything; before
//! Linux 6.6 it leaves a filter that passes every packet on, which [`is_left_over`] tells.
//!
//! [`PeerPath`] is the same for a tunnel with a peer table: one interface, several encapsulations, and peers by inner
//! addresses.
//!
//! Beside the path, [`steering`] loads the program that spreads the packets of an interface over its queues,
//! or over packet sockets.
//!
//! # Promises
//! - The outer headers are those of the engine's encapsulator, except for outer UDP checksums, which are 0.
//! - No packet is delivered whose outer length, inner length and headers disagree, or whose outer checksum nothing has
//!   verified; that of a packet with an unfinished checksum inside is verified for the headers in front of it.
//!
//! # Limits
//! IPv4 and IPv6 directly in IP or GRE, bare or in UDP with GUE or FOU, and in Ethernet frames in VXLAN or Geneve with
//! one remote or, where the interface carries IP, a peer table; no GRE with Ethernet, no GRE checksums or sequence
//! numbers, no remote checksum offload. The interface towards the remote must carry Ethernet frames. A little-endian
//! machine is needed. Before Linux 6.3 packets with another IP version inside than outside are left to the daemon.
//! Outer packets pass by netfilter, IPsec policies and sockets; packets that are sent also pass by the queueing
//! discipline, the counters and the captures of the tunnel's interface.

mod assembler;
mod attach;
mod checksum;
mod code;
mod counters;
mod ecn;
mod egress;
mod form;
mod ingress;
mod layout;
mod lengths;
mod map;
mod order;
mod path;
mod peer_path;
mod peer_table;
mod places;
mod readers;
mod receive_form;
mod refuse;
mod steering;
mod sys;
#[cfg(test)]
mod tests;
mod verdict;
mod wire;

pub use attach::{Filters, MARK, is_left_over, mark_of};
pub use counters::{Counts, Traffic, left_reasons};
pub use form::{Direction, Route, obstacle};
pub use path::{Error, Path, Surroundings, foreign_programs, is_own};
pub use peer_path::{Listener, Peer, PeerCounts, PeerPath, Served};
pub use steering::{Steered, steering};
pub use sys::Hook;

/// Commands of bpf(2) that a [`Path`] uses after its attachment: lookup, update and deletion of map entries.
pub const MAP_COMMANDS: [i32; 3] = [sys::MAP_LOOKUP_ELEM, sys::MAP_UPDATE_ELEM, sys::MAP_DELETE_ELEM];
