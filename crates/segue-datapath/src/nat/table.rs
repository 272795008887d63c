//! The table of mappings.

use std::collections::HashMap;

use segue::time::Nanos;
use segue::wire::tcp::RST;

use super::config::{Config, Protocol};
use super::connections::{Connections, ObservedPacket, TcpState};
use super::order::{Links, List};
use super::outcome::Refusal;
use super::ports::Ports;
use super::random::random;

/// A mapping of an inside address and port to an outside port.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Protocol that is mapped.
    pub protocol: Protocol,
    /// Address and port inside.
    pub inside: (u32, u16),
    /// Port at the outside address.
    pub outside: u16,
    /// Whether the mapping was configured; it then never ends.
    pub is_static: bool,
    /// Connections of a TCP mapping.
    pub connections: Connections,
    /// Time of the last packet from inside that keeps the mapping alive. None from outside does (RFC 4787, REQ-6).
    pub last: Nanos,
    /// Packets outbound and inbound, a train counting one.
    pub packets: [u64; 2],
    /// Address to which the last outbound packet went.
    asked: u32,
    /// Whether an address to which the host has sent has answered.
    is_answered: bool,
}

#[derive(Debug)]
pub(super) struct Table {
    config: Config,
    slots: Vec<Option<Mapping>>,
    free: Vec<u32>,
    inside: HashMap<(Protocol, (u32, u16)), u32>,
    outside: HashMap<(Protocol, u16), u32>,
    ports: Ports,
    hosts: HashMap<u32, Host>,
    /// The mappings that are not assured, by protocol, and their links; those of one host are linked in its entry.
    unassured: [List; 3],
    links: Links,
    host_links: Links,
    cursor: usize,
    tries: u64,
    early_drops: u64,
}

/// The mappings of one inside host.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    count: usize,
    unassured: List,
}

/// Slots that are examined for an expired mapping when the table is full or no port is free.
const SWEEP_FOR_ROOM: usize = 256;
/// Mappings among which one of the heaviest host is chosen when the table is full of assured ones.
const SAMPLE: usize = 16;

impl Table {
    pub(super) fn new(config: Config) -> Table {
        Table {
            config,
            slots: Vec::new(),
            free: Vec::new(),
            inside: HashMap::new(),
            outside: HashMap::new(),
            ports: Ports::new(),
            hosts: HashMap::new(),
            unassured: Default::default(),
            links: Links::default(),
            host_links: Links::default(),
            cursor: 0,
            tries: config.seed,
            early_drops: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn all(&self, now: Nanos) -> impl Iterator<Item = &Mapping> {
        self.slots.iter().flatten().filter(move |mapping| !self.is_over(mapping, now))
    }

    pub(super) fn forward(&mut self, protocol: Protocol, outside: u16, inside: (u32, u16)) -> Result<(), Refusal> {
        if self.outside.contains_key(&(protocol, outside)) || self.inside.contains_key(&(protocol, inside)) {
            return Err(Refusal::Ports);
        }
        if self.len() >= self.config.most {
            return Err(Refusal::Full);
        }
        self.insert(Mapping {
            protocol,
            inside,
            outside,
            is_static: true,
            connections: Connections::default(),
            last: Nanos(0),
            packets: [0; 2],
            asked: 0,
            is_answered: false,
        });
        Ok(())
    }

    /// Returns the mapping of an inside port, if it is alive, without renewing it.
    pub(super) fn by_inside(&self, protocol: Protocol, inside: (u32, u16), now: Nanos) -> Option<&Mapping> {
        let slot = *self.inside.get(&(protocol, inside))?;
        let mapping = self.slots.get(slot as usize)?.as_ref()?;
        (!self.is_over(mapping, now)).then_some(mapping)
    }

    /// Returns the mapping of an outside port, if it is alive. A packet that was `seen` is counted, but does not keep
    /// the mapping alive.
    pub(super) fn by_outside(
        &mut self,
        protocol: Protocol,
        outside: u16,
        now: Nanos,
        seen: Option<ObservedPacket>,
    ) -> Option<&Mapping> {
        let slot = *self.outside.get(&(protocol, outside))?;
        if self.slots.get(slot as usize)?.as_ref().is_none_or(|mapping| self.is_over(mapping, now)) {
            self.remove(slot);
            return None;
        }
        if let Some(seen) = seen {
            self.see(slot, seen, now);
        }
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Returns the outside port of an inside one, and creates the mapping where there is none.
    pub(super) fn outbound(
        &mut self,
        protocol: Protocol,
        inside: (u32, u16),
        seen: ObservedPacket,
        now: Nanos,
    ) -> Result<u16, Refusal> {
        if let Some(&slot) = self.inside.get(&(protocol, inside)) {
            let alive = self.slots.get(slot as usize).and_then(Option::as_ref).filter(|m| !self.is_over(m, now));
            if let Some(outside) = alive.map(|mapping| mapping.outside) {
                self.see(slot, seen, now);
                return Ok(outside);
            }
            self.remove(slot);
        }
        self.make_room(inside.0, now)?;
        let outside = self.free_port(protocol, inside.1, now).ok_or(Refusal::Ports)?;
        let (connections, packets) = (Connections::default(), [0; 2]);
        let (asked, is_answered) = (seen.remote.0, false);
        let slot = self.insert(Mapping {
            protocol,
            inside,
            outside,
            is_static: false,
            connections,
            last: now,
            packets,
            asked,
            is_answered,
        });
        self.see(slot, seen, now);
        Ok(outside)
    }

    /// Makes room for one more mapping of an inside host. As in Linux (`early_drop`), a mapping that is not assured
    /// gives way to a new one: of the host itself where it has as many as one host may have, else of any. Without such
    /// a mapping, a host with more mappings than this one gives up one without connection.
    fn make_room(&mut self, host: u32, now: Nanos) -> Result<(), Refusal> {
        let own = self.hosts.get(&host).copied().unwrap_or_default();
        if own.count >= self.config.most_per_host {
            self.early_drop(own.unassured.oldest().ok_or(Refusal::HostFull)?);
        }
        if self.len() < self.config.most {
            return Ok(());
        }
        let oldest = self.unassured.iter().filter_map(List::oldest);
        let last = |slot: &u32| self.slots.get(*slot as usize).and_then(Option::as_ref).map(|mapping| mapping.last);
        if let Some(slot) = oldest.min_by_key(last) {
            self.early_drop(slot);
            return Ok(());
        }
        self.sweep(now, SWEEP_FOR_ROOM);
        if self.len() >= self.config.most
            && let Some(slot) = self.of_heavier_host(own.count)
        {
            self.early_drop(slot);
        }
        if self.len() < self.config.most { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Returns a mapping of UDP or ICMP of a host that has more than `count` mappings: of a random sample the one whose
    /// host has most. An open TCP connection is never given up (RFC 5382, REQ-5).
    fn of_heavier_host(&mut self, count: usize) -> Option<u32> {
        let mut heaviest = (count, None);
        for _ in 0..SAMPLE {
            let slot = (random(&mut self.tries) % self.slots.len().max(1) as u64) as u32;
            let mapping = self.slots.get(slot as usize).and_then(Option::as_ref);
            let Some(mapping) = mapping.filter(|one| !one.is_static && one.protocol != Protocol::Tcp) else { continue };
            let of_host = self.hosts.get(&mapping.inside.0).map_or(0, |host| host.count);
            if of_host > heaviest.0 {
                heaviest = (of_host, Some(slot));
            }
        }
        heaviest.1
    }

    fn early_drop(&mut self, slot: u32) {
        self.early_drops += 1;
        self.remove(slot);
    }

    /// Returns the number of mappings that were evicted for others before their timeout.
    pub(super) fn early_drops(&self) -> u64 {
        self.early_drops
    }

    /// Replaces the largest numbers of mappings altogether and of one host.
    pub(super) fn limit(&mut self, most: usize, most_per_host: usize) {
        (self.config.most, self.config.most_per_host) = (most, most_per_host);
    }

    /// Updates a mapping by a packet.
    fn see(&mut self, slot: u32, seen: ObservedPacket, now: Nanos) {
        let Some(Some(mapping)) = self.slots.get_mut(slot as usize) else { return };
        let was_listed = !mapping.is_assured();
        mapping.see(seen, now);
        let is_listed = !mapping.is_assured();
        // A listed mapping that was used becomes the last of its list.
        if was_listed && (seen.is_outbound || !is_listed) {
            self.unlist(slot);
        }
        if is_listed && (seen.is_outbound || !was_listed) {
            self.list(slot);
        }
    }

    /// Returns the inside port itself where that is allowed and free (RFC 4787, section 4.2.1), else one found from a
    /// random port on.
    fn free_port(&mut self, protocol: Protocol, wanted: u16, now: Nanos) -> Option<u16> {
        let (first, last) = self.config.ports;
        if first > last {
            return None;
        }
        if (first..=last).contains(&wanted) && self.is_free(protocol, wanted, now) {
            return Some(wanted);
        }
        let start = (random(&mut self.tries) % (u64::from(last - first) + 1)) as u16;
        self.ports.free(protocol, (first, last), start).or_else(|| {
            match self.unassured[protocol as usize].oldest() {
                Some(slot) => self.early_drop(slot),
                None => self.sweep(now, SWEEP_FOR_ROOM),
            }
            self.ports.free(protocol, (first, last), start)
        })
    }

    /// Returns whether an outside port is free; an expired mapping is removed from it.
    fn is_free(&mut self, protocol: Protocol, port: u16, now: Nanos) -> bool {
        let Some(&slot) = self.outside.get(&(protocol, port)) else { return true };
        let is_over = self.slots.get(slot as usize).and_then(Option::as_ref).is_none_or(|m| self.is_over(m, now));
        if is_over {
            self.remove(slot);
        }
        is_over
    }

    /// Examines the next `count` slots and removes expired mappings.
    pub(super) fn sweep(&mut self, now: Nanos, count: usize) {
        for _ in 0..count.min(self.slots.len()) {
            self.cursor = (self.cursor + 1) % self.slots.len();
            if self.slots[self.cursor].as_ref().is_some_and(|mapping| self.is_over(mapping, now)) {
                self.remove(self.cursor as u32);
            }
        }
    }

    fn is_over(&self, mapping: &Mapping, now: Nanos) -> bool {
        let timeouts = &self.config.timeouts;
        if mapping.is_static {
            return false;
        }
        let life = match mapping.protocol {
            Protocol::Udp => timeouts.udp,
            Protocol::Icmp => timeouts.icmp,
            Protocol::Tcp => match mapping.connections.state() {
                TcpState::Open => timeouts.tcp_open,
                TcpState::Opening | TcpState::Closing => timeouts.tcp_transitory,
            },
        };
        now.0.saturating_sub(mapping.last.0) > life
    }

    fn insert(&mut self, mapping: Mapping) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.inside.insert((mapping.protocol, mapping.inside), slot);
        self.outside.insert((mapping.protocol, mapping.outside), slot);
        self.ports.take(mapping.protocol, mapping.outside);
        self.hosts.entry(mapping.inside.0).or_default().count += 1;
        let is_listed = !mapping.is_assured();
        self.slots[slot as usize] = Some(mapping);
        if is_listed {
            self.list(slot);
        }
        slot
    }

    fn remove(&mut self, slot: u32) {
        let Some(mapping) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        if !mapping.is_assured() {
            self.unlist(slot);
        }
        let Some(mapping) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.inside.remove(&(mapping.protocol, mapping.inside));
        self.outside.remove(&(mapping.protocol, mapping.outside));
        self.ports.give(mapping.protocol, mapping.outside);
        if let Some(host) = self.hosts.get_mut(&mapping.inside.0) {
            host.count -= 1;
            if host.count == 0 {
                self.hosts.remove(&mapping.inside.0);
            }
        }
        self.free.push(slot);
    }

    /// Puts a mapping that is not assured behind all others of its lists.
    fn list(&mut self, slot: u32) {
        let Some(Some(Mapping { protocol, inside, .. })) = self.slots.get(slot as usize) else { return };
        self.links.push(&mut self.unassured[*protocol as usize], slot);
        if let Some(host) = self.hosts.get_mut(&inside.0) {
            self.host_links.push(&mut host.unassured, slot);
        }
    }

    fn unlist(&mut self, slot: u32) {
        let Some(Some(Mapping { protocol, inside, .. })) = self.slots.get(slot as usize) else { return };
        self.links.remove(&mut self.unassured[*protocol as usize], slot);
        if let Some(host) = self.hosts.get_mut(&inside.0) {
            self.host_links.remove(&mut host.unassured, slot);
        }
    }
}

impl Mapping {
    fn see(&mut self, seen: ObservedPacket, now: Nanos) {
        let is_tcp = self.protocol == Protocol::Tcp;
        self.packets[usize::from(!seen.is_outbound)] += 1;
        if seen.is_outbound {
            self.asked = seen.remote.0;
            // A reset may be the answer to whatever came from outside.
            if !is_tcp || seen.segment.flags & RST == 0 {
                self.last = now;
            }
        } else if seen.remote.0 == self.asked {
            self.is_answered = true;
        }
        if is_tcp {
            self.connections.see(seen);
        }
    }

    /// Returns whether the mapping is kept until its timeout: a configured one, one with an open TCP connection,
    /// and one of UDP or ICMP that was answered. Others give way to new ones where there is no room.
    fn is_assured(&self) -> bool {
        let is_used = match self.protocol {
            Protocol::Tcp => self.connections.state() == TcpState::Open,
            Protocol::Udp | Protocol::Icmp => self.is_answered,
        };
        self.is_static || is_used
    }
}
