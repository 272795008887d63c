//! Network address and port translation for IPv4: TCP, UDP and ICMP, one rewrite for a train.
//!
//! A mapping belongs to an inside address and port and serves all that they talk to (endpoint-independent mapping, RFC 4787
//! REQ-1, RFC 5382 REQ-1); whoever knows the outside port may use it (endpoint-independent filtering, REQ-8). The inside port is
//! kept where it is free, and no outside port serves two (REQ-3). Two inside hosts reach each other by outside addresses
//! (hairpinning, REQ-9), errors included (RFC 5508 REQ-7). ICMP queries are mapped by their identifier, and errors are translated in both directions with the packet
//! that they quote (RFC 5508). Checksums are updated, not computed: a wrong one stays wrong.
//!
//! The fragments of a datagram go where its first one went; those that come before it are the caller's to keep
//! ([`Done::FirstMissing`]).
//!
//! Tables are bounded, altogether and for each inside host. Mappings end after a time without packets. What this does not do is
//! refused by name: protocols without ports.

mod connections;
mod fragment;
mod ports;
mod rewrite;
mod table;

use std::net::Ipv4Addr;

use segue::packet::Packet;
use segue::time::Nanos;

pub use connections::Connections;
pub use fragment::{Datagram, Part};
use fragment::{Datagrams, Direction};
use rewrite::{Content, Flow, Side, TransportAddr};
pub use table::{Mapping, Protocol, TcpState};
use table::{ObservedPacket, Table};

segue::reasons! {
    /// Why a packet was not translated, and is not to be passed on.
    pub enum Refusal {
        NotV4 = "nat_not_ipv4": "It is no IPv4 packet.",
        Malformed = "nat_malformed": "Its headers are cut off.",
        Fragment = "nat_fragment": "A fragment whose first part did not come, or too many such; or an error about one.",
        TinyFragment = "nat_tiny_fragment": "A first fragment that ends before its ports and checksum.",
        Protocol = "nat_protocol": "A protocol, or a kind of ICMP message, that has no port or identifier.",
        NoMapping = "nat_no_mapping": "It comes from outside to a port that nobody inside uses.",
        Full = "nat_full": "The table is full.",
        HostFull = "nat_host_full": "Its sender has as many mappings as one may have.",
        Ports = "nat_ports": "No outside port is free.",
        Memory = "nat_memory": "There is no buffer for a rewritten ICMP message or fragment.",
    }
}

/// How long mappings live without packets, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP; at least two minutes (RFC 4787 REQ-5).
    pub udp: u64,
    /// TCP connections that are open (RFC 5382 REQ-5: at least 2 hours and 4 minutes).
    pub tcp_open: u64,
    /// TCP connections that are being opened or closed (the same: at least 4 minutes).
    pub tcp_transitory: u64,
    /// ICMP queries (RFC 5508 REQ-2: at least 60 seconds).
    pub icmp: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { udp: 300 * SECOND, tcp_open: 7440 * SECOND, tcp_transitory: 240 * SECOND, icmp: 60 * SECOND }
    }
}

/// What a translator is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address that those outside see.
    pub address: Ipv4Addr,
    /// First and last of the outside ports and identifiers that are given out.
    pub ports: (u16, u16),
    /// Most mappings.
    pub most: usize,
    /// Most mappings of one inside host.
    pub most_per_host: usize,
    /// When mappings end.
    pub timeouts: Timeouts,
    /// Where the search for a free port begins; should be random.
    pub seed: u64,
}

impl Config {
    /// 65536 mappings, 8192 for each host, ports from 1024 on.
    pub fn new(address: Ipv4Addr, seed: u64) -> Config {
        let (most, most_per_host) = (65_536, 8192);
        Config { address, ports: (1024, 65_535), most, most_per_host, timeouts: Timeouts::default(), seed }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was translated and goes on its way.
    Translated,
    /// It was translated twice, goes to a host inside, and has to be routed anew.
    Hairpin,
    /// It is not for the outside address, and is as it was.
    Untouched,
    /// It is a fragment that came before the first one of its datagram, and is as it was; to be tried again when that came.
    FirstMissing,
}

/// A translator.
#[derive(Debug)]
pub struct Nat {
    config: Config,
    table: Table,
    datagrams: Datagrams,
}

impl Nat {
    /// A translator without mappings.
    pub fn new(config: Config) -> Nat {
        Nat { config, table: Table::new(config), datagrams: Datagrams::new(!config.seed) }
    }

    /// Passes what comes to an outside port on to an inside one, for good. The port need not be one that is given out.
    ///
    /// # Errors
    /// Where the outside port is in use or the table is full.
    pub fn forward(&mut self, protocol: Protocol, outside: u16, inside: (Ipv4Addr, u16)) -> Result<(), Refusal> {
        self.table.forward(protocol, outside, (inside.0.to_bits(), inside.1))
    }

    /// Translates a packet on its way out. `copy` makes a buffer of the bytes of an ICMP message's beginning.
    ///
    /// # Errors
    /// A [`Refusal`]; the packet is then as it was. [`Refusal::NoMapping`] may also mean that it is for the router itself.
    pub fn outbound<B: AsRef<[u8]>>(
        &mut self,
        packet: &mut Packet<B>,
        now: Nanos,
        copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    ) -> Result<Done, Refusal> {
        match Part::of(packet) {
            None => self.leave(packet, now, copy),
            Some(Part { datagram, is_first: false }) => {
                self.datagrams.later(Direction::Outbound, datagram, packet, now)
            }
            Some(Part { datagram, is_first: true }) => {
                let outcome = self.leave(packet, now, copy);
                self.datagrams.first(Direction::Outbound, datagram, packet, outcome, now);
                outcome
            }
        }
    }

    fn leave<B: AsRef<[u8]>>(
        &mut self,
        packet: &mut Packet<B>,
        now: Nanos,
        copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    ) -> Result<Done, Refusal> {
        let flow = rewrite::read(packet)?;
        let address = self.config.address.to_bits();
        if let Content::Error { protocol, quoted } = flow.content {
            // An inside host complains of a packet that came from outside: quoted is what was delivered to it.
            let inside = quoted.destination;
            let mapping =
                self.table.by_inside(protocol, (inside.address, inside.port), now).ok_or(Refusal::NoMapping)?;
            let outside = TransportAddr { address, port: mapping.outside };
            if flow.destination.address != address {
                rewrite::error(packet, &flow, Side::Source, outside, copy)?;
                return Ok(Done::Translated);
            }
            // From one inside host to another, by the outside address (RFC 5508, REQ-7); queries do not go that way.
            if quoted.source.address != address || protocol == Protocol::Icmp {
                return Err(Refusal::NoMapping);
            }
            let sender = self.table.by_outside(protocol, quoted.source.port, now, None).ok_or(Refusal::NoMapping)?;
            let sender = TransportAddr { address: sender.inside.0, port: sender.inside.1 };
            rewrite::error(packet, &flow, Side::Source, outside, copy)?;
            rewrite::error(packet, &flow, Side::Destination, sender, copy)?;
            return Ok(Done::Hairpin);
        }
        let (protocol, source) = (flow.protocol(), flow.source);
        let remote = (flow.destination.address, flow.destination.port);
        let seen = ObservedPacket { remote, tcp: flow.tcp, has_data: flow.has_data, is_outbound: true };
        // Another host inside, by its outside port.
        let target = if flow.destination.address == address {
            // A query to that address is for the router.
            if matches!(flow.content, Content::Query) {
                return Err(Refusal::NoMapping);
            }
            let port = flow.destination.port;
            Some(self.table.by_outside(protocol, port, now, None).ok_or(Refusal::NoMapping)?.inside)
        } else {
            None
        };
        let outside = self.table.outbound(protocol, (source.address, source.port), seen, now)?;
        rewrite::flow(packet, &flow, Side::Source, TransportAddr { address, port: outside }, copy)?;
        let Some(target) = target else { return Ok(Done::Translated) };
        let flow = Flow { source: TransportAddr { address, port: outside }, ..flow };
        rewrite::flow(packet, &flow, Side::Destination, TransportAddr { address: target.0, port: target.1 }, copy)?;
        let seen =
            ObservedPacket { remote: (address, outside), tcp: flow.tcp, has_data: flow.has_data, is_outbound: false };
        let _ = self.table.by_outside(protocol, flow.destination.port, now, Some(seen));
        Ok(Done::Hairpin)
    }

    /// Translates a packet on its way in.
    ///
    /// # Errors
    /// A [`Refusal`]; the packet is then as it was. [`Refusal::NoMapping`] may also mean that it is for the router itself.
    pub fn inbound<B: AsRef<[u8]>>(
        &mut self,
        packet: &mut Packet<B>,
        now: Nanos,
        copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    ) -> Result<Done, Refusal> {
        if rewrite::destination(packet).ok_or(Refusal::NotV4)? != self.config.address.to_bits() {
            return Ok(Done::Untouched);
        }
        match Part::of(packet) {
            None => self.enter(packet, now, copy),
            Some(Part { datagram, is_first: false }) => self.datagrams.later(Direction::Inbound, datagram, packet, now),
            Some(Part { datagram, is_first: true }) => {
                let outcome = self.enter(packet, now, copy);
                self.datagrams.first(Direction::Inbound, datagram, packet, outcome, now);
                outcome
            }
        }
    }

    fn enter<B: AsRef<[u8]>>(
        &mut self,
        packet: &mut Packet<B>,
        now: Nanos,
        copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    ) -> Result<Done, Refusal> {
        let address = self.config.address.to_bits();
        let flow = rewrite::read(packet)?;
        if let Content::Error { protocol, quoted } = flow.content {
            // Somebody outside complains of a packet that was sent from here.
            if quoted.source.address != address {
                return Err(Refusal::NoMapping);
            }
            let mapping = self.table.by_outside(protocol, quoted.source.port, now, None).ok_or(Refusal::NoMapping)?;
            let (address, port) = mapping.inside;
            rewrite::error(packet, &flow, Side::Destination, TransportAddr { address, port }, copy)?;
            return Ok(Done::Translated);
        }
        let remote = (flow.source.address, flow.source.port);
        let seen = ObservedPacket { remote, tcp: flow.tcp, has_data: flow.has_data, is_outbound: false };
        let mapping = self.table.by_outside(flow.protocol(), flow.destination.port, now, Some(seen));
        let (address, port) = mapping.ok_or(Refusal::NoMapping)?.inside;
        rewrite::flow(packet, &flow, Side::Destination, TransportAddr { address, port }, copy)?;
        Ok(Done::Translated)
    }

    /// Forgets mappings whose time is over; looks at a bounded number of them, so it is to be called again and again.
    pub fn expire(&mut self, now: Nanos) {
        self.table.sweep(now, 256);
        self.datagrams.expire(now);
    }

    /// Every mapping that is alive.
    pub fn mappings(&self, now: Nanos) -> impl Iterator<Item = &Mapping> {
        self.table.all(now)
    }

    /// How many places of the table are taken.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.datagrams.is_empty()
    }
}
