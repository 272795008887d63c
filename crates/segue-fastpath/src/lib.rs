//! Tunnels in the kernel: two BPF programs put outer headers around packets and trains, and remove them, without a copy
//! to a process and back.
//!
//! The daemon of a tunnel owns its interface, its sockets and its settings. The programs take from it what is plain, by
//! the same description of the tunnel ([`segue::encap::Config`]):
//! - the one at the egress of the tunnel's interface sends packets on by the interface towards the remote;
//! - the one at the ingress of that interface hands received packets to the tunnel's interface.
//!
//! What a program does not recognise, or must not touch, it leaves to the daemon, which serves it by the same interface
//! and the same port; each reason is counted ([`Counts::left`]).

mod assembler;
mod map;
mod sys;
