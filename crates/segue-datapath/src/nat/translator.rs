//! The NAT translator: it finds the mapping of a packet in both directions.

use std::net::Ipv4Addr;

use segue::packet::Packet;
use segue::time::Nanos;
use segue::wire::tcp::RST;

use super::config::{Config, Protocol};
use super::connections::ObservedPacket;
use super::fragment::{Direction, FragmentTable, Part};
use super::outcome::{Done, Refusal};
use super::rewrite::{self, Content, Flow, Quoted, Side, TransportAddr};
use super::table::{Mapping, Table};

/// A translator with its tables.
#[derive(Debug)]
pub struct Nat {
    config: Config,
    table: Table,
    datagrams: FragmentTable,
}

impl Nat {
    /// Creates a translator without mappings.
    pub fn new(config: Config) -> Nat {
        Nat { config, table: Table::new(config), datagrams: FragmentTable::new(!config.seed) }
    }

    /// Forwards an outside port to an inside one permanently. The port may lie outside the allocated range.
    ///
    /// # Errors
    ///
    /// Where the outside port is in use or the table is full.
    pub fn forward(&mut self, protocol: Protocol, outside: u16, inside: (Ipv4Addr, u16)) -> Result<(), Refusal> {
        self.table.forward(protocol, outside, (inside.0.to_bits(), inside.1))
    }

    /// Translates the source of an outbound packet. `copy` makes a buffer of the start of an ICMP message.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]; the packet is then unchanged. [`Refusal::NoMapping`] may also mean that it is for the router
    /// itself.
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
            return self.leave_error(packet, &flow, (protocol, quoted), now, copy);
        }
        // A reply answers no query that was translated: none comes in. It would make or keep a mapping for any outside
        // host that asks the inside host by its own address.
        if matches!(flow.content, Content::Query { is_reply: true }) {
            return Err(Refusal::NoMapping);
        }
        let (protocol, inside) = (flow.protocol(), (flow.source.address, flow.source.port));
        // Nor does a reset make one: it may answer what came to the host's own address.
        if flow.segment.flags & RST != 0 && self.table.by_inside(protocol, inside, now).is_none() {
            return Err(Refusal::NoMapping);
        }
        let remote = (flow.destination.address, flow.destination.port);
        // The packet may be for another inside host, by its outside port.
        let is_hairpin = flow.destination.address == address;
        let seen = ObservedPacket { remote, is_hairpin, segment: flow.segment, is_outbound: true };
        let target = if is_hairpin {
            // A query to the outside address is for the router.
            if matches!(flow.content, Content::Query { .. }) {
                return Err(Refusal::NoMapping);
            }
            let port = flow.destination.port;
            Some(self.table.by_outside(protocol, port, now, None).ok_or(Refusal::NoMapping)?.inside)
        } else {
            None
        };
        // Whatever gives way to the sender's mapping, the target's does not.
        self.table.set_target(target.map(|_| (protocol, flow.destination.port)));
        let outside = self.table.outbound(protocol, inside, seen, now)?;
        rewrite::flow(packet, &flow, Side::Source, TransportAddr { address, port: outside }, copy)?;
        let Some(target) = target else { return Ok(Done::Translated) };
        rewrite::flow(packet, &flow, Side::Destination, TransportAddr { address: target.0, port: target.1 }, copy)?;
        let seen = ObservedPacket { remote: (address, outside), is_hairpin, segment: flow.segment, is_outbound: false };
        let _ = self.table.by_outside(protocol, flow.destination.port, now, Some(seen));
        Ok(Done::Hairpin)
    }

    /// Translates the source of an ICMP error of an inside host about an inbound packet, which it quotes as it was
    /// delivered.
    fn leave_error<B: AsRef<[u8]>>(
        &mut self,
        packet: &mut Packet<B>,
        flow: &Flow,
        (protocol, quoted): (Protocol, Quoted),
        now: Nanos,
        copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    ) -> Result<Done, Refusal> {
        let address = self.config.address.to_bits();
        let inside = quoted.destination;
        let mapping = self.table.by_inside(protocol, (inside.address, inside.port), now).ok_or(Refusal::NoMapping)?;
        let outside = TransportAddr { address, port: mapping.outside };
        if flow.destination.address != address {
            rewrite::error(packet, flow, Side::Source, outside, copy)?;
            return Ok(Done::Translated);
        }
        // From one inside host to another by the outside address (RFC 5508, REQ-7); queries are not hairpinned.
        if quoted.source.address != address || protocol == Protocol::Icmp {
            return Err(Refusal::NoMapping);
        }
        let sender = self.table.by_outside(protocol, quoted.source.port, now, None).ok_or(Refusal::NoMapping)?;
        let sender = TransportAddr { address: sender.inside.0, port: sender.inside.1 };
        rewrite::error(packet, flow, Side::Source, outside, copy)?;
        rewrite::error(packet, flow, Side::Destination, sender, copy)?;
        Ok(Done::Hairpin)
    }

    /// Translates the destination of an inbound packet.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]; the packet is then unchanged. [`Refusal::NoMapping`] may also mean that it is for the router
    /// itself.
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
            // A host or router outside reports an error about an outbound packet.
            if quoted.source.address != address {
                return Err(Refusal::NoMapping);
            }
            let mapping = self.table.by_outside(protocol, quoted.source.port, now, None).ok_or(Refusal::NoMapping)?;
            let (address, port) = mapping.inside;
            rewrite::error(packet, &flow, Side::Destination, TransportAddr { address, port }, copy)?;
            return Ok(Done::Translated);
        }
        // A mapping of queries is for their replies: the answer of its host to a query from outside would keep it.
        if matches!(flow.content, Content::Query { is_reply: false }) {
            return Err(Refusal::NoMapping);
        }
        let remote = (flow.source.address, flow.source.port);
        let seen = ObservedPacket { remote, is_hairpin: false, segment: flow.segment, is_outbound: false };
        let mapping = self.table.by_outside(flow.protocol(), flow.destination.port, now, Some(seen));
        let (address, port) = mapping.ok_or(Refusal::NoMapping)?.inside;
        rewrite::flow(packet, &flow, Side::Destination, TransportAddr { address, port }, copy)?;
        Ok(Done::Translated)
    }

    /// Removes expired mappings and remembered datagrams. It examines a bounded number of mappings, so it is to be
    /// called regularly.
    pub fn expire(&mut self, now: Nanos) {
        self.table.sweep(now, 256);
        self.datagrams.expire(now);
    }

    /// Returns every mapping that is alive.
    pub fn mappings(&self, now: Nanos) -> impl Iterator<Item = &Mapping> {
        self.table.all(now)
    }

    /// Replaces the limits of mappings altogether and per host. Present mappings stay.
    pub fn limit(&mut self, most: usize, most_per_host: usize) {
        self.table.limit(most, most_per_host);
    }

    /// Returns the number of mappings that were evicted for others before their timeout.
    pub fn early_drops(&self) -> u64 {
        self.table.early_drops()
    }

    /// Returns the number of slots in use.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether no mapping and no datagram is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.datagrams.is_empty()
    }

    /// Returns whether [`Nat::expire`] has nothing to wait for: no datagram is stored, and no mapping but configured
    /// ones.
    pub fn is_idle(&self) -> bool {
        self.table.is_idle() && self.datagrams.is_empty()
    }
}
