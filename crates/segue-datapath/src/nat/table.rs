//! The table of NAT mappings.

use segue::time::Nanos;
use segue::wire::tcp::RST;

use super::config::{Config, Protocol};
use super::connections::{Connections, ObservedPacket, TcpState};
use super::outcome::Refusal;
use super::ports::Ports;
use super::random::Random;
use crate::slots::{Index, Links, List, SlotMap};

/// A mapping of an inside address and port to an outside port.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Protocol of the mapping.
    pub protocol: Protocol,
    /// Inside address and port of the mapping.
    pub inside: (u32, u16),
    /// Outside port of the mapping.
    pub outside: u16,
    /// Whether the mapping was configured; it then never ends.
    pub is_static: bool,
    /// Connections of a TCP mapping.
    pub connections: Connections,
    /// Time of the last packet from inside that keeps the mapping alive. None from outside does (RFC 4787, REQ-6).
    pub last: Nanos,
    /// Numbers of packets outbound and inbound; a train counts as one.
    pub packets: [u64; 2],
    /// Address to which the last outbound packet went.
    asked: u32,
    /// Whether an address to which the host has sent has answered.
    is_answered: bool,
    /// Whether the host has sent again after an answer.
    goes_on: bool,
}

#[derive(Debug)]
pub(super) struct Table {
    config: Config,
    slots: Vec<Option<Mapping>>,
    free: Vec<u32>,
    /// Number of configured mappings, none of which is ever removed.
    statics: usize,
    /// The slots by protocol and inside address and port, and by protocol and outside port.
    inside: Index,
    outside: Index,
    ports: Ports,
    hosts: SlotMap<u32, Host>,
    /// Unassured mappings by protocol, with their links; all mappings of one host are linked in its entry.
    unassured: [List; 3],
    links: Links,
    host_links: Links,
    cursor: usize,
    /// Time of the last sweep for a packet that found no room.
    swept: Option<Nanos>,
    random: Random,
    early_drops: u64,
    /// Slot of the mapping that a hairpinned packet is for, which is not evicted for that of its sender.
    target: Option<u32>,
}

/// The mappings of one inside host.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    count: usize,
    unassured: List,
    /// Assured mappings, those that were examined longest ago first.
    assured: List,
}

/// Number of slots that are examined for an expired mapping when the table is full or no port is free.
const SWEEP_FOR_ROOM: usize = 256;
/// Least time between two such sweeps, nanoseconds. All slots are examined in a quarter of a second, and packets that
/// find no room cost no more than others.
const SWEEP_INTERVAL: u64 = 1_000_000;
/// Number of assured mappings of a host at its limit that are examined for an expired one.
const EXAMINED: usize = 16;
/// Size of the random sample from which a mapping of the heaviest host is evicted when the table is full of assured
/// ones.
const SAMPLE: usize = 16;

impl Table {
    pub(super) fn new(config: Config) -> Table {
        Table {
            config,
            slots: Vec::new(),
            free: Vec::new(),
            statics: 0,
            inside: Index::default(),
            outside: Index::default(),
            ports: Ports::new(),
            hosts: SlotMap::default(),
            unassured: Default::default(),
            links: Links::default(),
            host_links: Links::default(),
            cursor: 0,
            swept: None,
            random: Random::new(config.seed),
            early_drops: 0,
            target: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether no mapping ends: each is a configured one.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == self.statics
    }

    pub(super) fn all(&self, now: Nanos) -> impl Iterator<Item = &Mapping> {
        self.slots.iter().flatten().filter(move |mapping| !self.is_over(mapping, now))
    }

    pub(super) fn forward(&mut self, protocol: Protocol, outside: u16, inside: (u32, u16)) -> Result<(), Refusal> {
        if self.slot_outside(protocol, outside).is_some() || self.slot_inside(protocol, inside).is_some() {
            return Err(Refusal::Ports);
        }
        if self.len() >= self.config.most {
            return Err(Refusal::Full);
        }
        self.statics += 1;
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
            goes_on: false,
        });
        Ok(())
    }

    fn slot_inside(&self, protocol: Protocol, inside: (u32, u16)) -> Option<u32> {
        let is_it = |one: &Mapping| one.protocol == protocol && one.inside == inside;
        self.inside.find(&(protocol, inside), |slot| self.slots[slot as usize].as_ref().is_some_and(is_it))
    }

    fn slot_outside(&self, protocol: Protocol, outside: u16) -> Option<u32> {
        let is_it = |one: &Mapping| one.protocol == protocol && one.outside == outside;
        self.outside.find(&(protocol, outside), |slot| self.slots[slot as usize].as_ref().is_some_and(is_it))
    }

    /// Returns the mapping of an inside port, if it is alive, without renewing it.
    pub(super) fn by_inside(&self, protocol: Protocol, inside: (u32, u16), now: Nanos) -> Option<&Mapping> {
        let slot = self.slot_inside(protocol, inside)?;
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
        let slot = self.slot_outside(protocol, outside)?;
        if self.slots.get(slot as usize)?.as_ref().is_none_or(|mapping| self.is_over(mapping, now)) {
            self.remove(slot);
            return None;
        }
        if let Some(seen) = seen {
            self.see(slot, seen, now);
        }
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Returns the outside port of an inside port; creates the mapping if there is none.
    pub(super) fn outbound(
        &mut self,
        protocol: Protocol,
        inside: (u32, u16),
        seen: ObservedPacket,
        now: Nanos,
    ) -> Result<u16, Refusal> {
        if let Some(slot) = self.slot_inside(protocol, inside) {
            let alive = self.slots.get(slot as usize).and_then(Option::as_ref).filter(|m| !self.is_over(m, now));
            if let Some(outside) = alive.map(|mapping| mapping.outside) {
                self.see(slot, seen, now);
                return Ok(outside);
            }
            self.remove(slot);
        }
        self.make_room(inside.0, now)?;
        let outside = self.free_port(protocol, inside, now).ok_or(Refusal::Ports)?;
        let (connections, packets) = (Connections::default(), [0; 2]);
        let (asked, is_answered, goes_on) = (seen.remote.0, false, false);
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
            goes_on,
        });
        self.see(slot, seen, now);
        Ok(outside)
    }

    /// Makes room for one more mapping of an inside host. As in Linux (`early_drop`), a mapping that is not assured
    /// gives way to a new one: of the host itself where it has as many as one host may have, else of any. Without such
    /// a mapping, a host with more mappings than this one gives up one without connection.
    fn make_room(&mut self, host: u32, now: Nanos) -> Result<(), Refusal> {
        let own = self.hosts.get(&host).copied().unwrap_or_default();
        if own.count >= self.config.most_per_host && !self.remove_expired_of(host, now) {
            match self.host_links.oldest_but(&own.unassured, self.target) {
                Some(slot) => self.early_drop(slot, now),
                None => return Err(Refusal::HostFull),
            }
        }
        if self.len() < self.config.most {
            return Ok(());
        }
        let oldest = self.unassured.iter().filter_map(|list| self.links.oldest_but(list, self.target));
        let last = |slot: &u32| self.slots.get(*slot as usize).and_then(Option::as_ref).map(|mapping| mapping.last);
        if let Some(slot) = oldest.min_by_key(last) {
            self.early_drop(slot, now);
            return Ok(());
        }
        self.sweep_for_room(now);
        if self.len() >= self.config.most
            && let Some(slot) =
                self.of_heavier_host(host, |table, number| Some((number % table.slots.len().max(1) as u64) as u32))
        {
            self.early_drop(slot, now);
        }
        if self.len() < self.config.most { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Removes an expired one of a host's assured mappings. It examines a few of them, the next time the next ones.
    /// Returns whether one was expired.
    fn remove_expired_of(&mut self, host: u32, now: Nanos) -> bool {
        for _ in 0..EXAMINED {
            let Some(own) = self.hosts.get_mut(&host) else { return false };
            let Some(slot) = own.assured.oldest() else { return false };
            self.host_links.remove(&mut own.assured, slot);
            self.host_links.push(&mut own.assured, slot);
            if self.slots[slot as usize].as_ref().is_some_and(|mapping| self.is_over(mapping, now)) {
                self.remove(slot);
                return true;
            }
        }
        false
    }

    /// Sets the mapping of an outside port as the one that a hairpinned packet is for, or none.
    pub(super) fn set_target(&mut self, target: Option<(Protocol, u16)>) {
        self.target = target.and_then(|(protocol, outside)| self.slot_outside(protocol, outside));
    }

    /// Returns a mapping whose host has more mappings than `host`: the one of the heaviest host in a random sample of
    /// the slots that `slot_at` returns for random numbers. An open TCP connection with an outside host is never given
    /// up (RFC 5382, REQ-5).
    fn of_heavier_host(&mut self, host: u32, slot_at: impl Fn(&Table, u64) -> Option<u32>) -> Option<u32> {
        let count = |table: &Table, host: u32| table.hosts.get(&host).map_or(0, |host| host.count);
        let mut heaviest = (count(self, host), None);
        for _ in 0..SAMPLE {
            let number = self.random.number();
            let Some(slot) = slot_at(self, number) else { continue };
            let mapping = self.slots.get(slot as usize).and_then(Option::as_ref);
            let Some(mapping) = mapping.filter(|one| one.is_evictable() && self.target != Some(slot)) else { continue };
            let of_host = count(self, mapping.inside.0);
            if of_host > heaviest.0 {
                heaviest = (of_host, Some(slot));
            }
        }
        heaviest.1
    }

    /// Removes a mapping for another one. One that has expired is not counted.
    fn early_drop(&mut self, slot: u32, now: Nanos) {
        let is_over = self.slots[slot as usize].as_ref().is_some_and(|mapping| self.is_over(mapping, now));
        self.early_drops += u64::from(!is_over);
        self.remove(slot);
    }

    /// Returns the number of mappings that were evicted for others before their timeout.
    pub(super) fn early_drops(&self) -> u64 {
        self.early_drops
    }

    /// Replaces the limits of mappings altogether and per host.
    pub(super) fn limit(&mut self, most: usize, most_per_host: usize) {
        (self.config.most, self.config.most_per_host) = (most, most_per_host);
    }

    /// Updates a mapping for a packet that passes.
    fn see(&mut self, slot: u32, seen: ObservedPacket, now: Nanos) {
        let Some(Some(mapping)) = self.slots.get_mut(slot as usize) else { return };
        let was_unassured = !mapping.is_assured();
        mapping.see(seen, now);
        let is_unassured = !mapping.is_assured();
        // An unassured mapping that was used becomes the last of its list.
        if was_unassured != is_unassured || is_unassured && seen.is_outbound {
            self.unlist(slot, was_unassured);
            self.list(slot);
        }
    }

    /// Returns the inside port itself where that is allowed and free (RFC 4787, section 4.2.1), else the first free one
    /// from a random port on. Where none is free, a mapping gives way as in a full table.
    fn free_port(&mut self, protocol: Protocol, (host, wanted): (u32, u16), now: Nanos) -> Option<u16> {
        let (first, last) = self.config.ports;
        if first > last {
            return None;
        }
        if (first..=last).contains(&wanted) && self.is_free(protocol, wanted, now) {
            return Some(wanted);
        }
        let count = u64::from(last - first) + 1;
        let start = (self.random.number() % count) as u16;
        let free = |table: &Table| table.ports.free(protocol, (first, last), start);
        if let Some(port) = free(self) {
            return Some(port);
        }
        if let Some(slot) = self.links.oldest_but(&self.unassured[protocol as usize], self.target) {
            self.early_drop(slot, now);
            return free(self);
        }
        self.sweep_for_room(now);
        free(self).or_else(|| {
            let slot = self
                .of_heavier_host(host, |table, number| table.slot_outside(protocol, first + (number % count) as u16))?;
            self.early_drop(slot, now);
            free(self)
        })
    }

    /// Returns whether an outside port is free; an expired mapping is removed from it.
    fn is_free(&mut self, protocol: Protocol, port: u16, now: Nanos) -> bool {
        let Some(slot) = self.slot_outside(protocol, port) else { return true };
        let is_over = self.slots.get(slot as usize).and_then(Option::as_ref).is_none_or(|m| self.is_over(m, now));
        if is_over {
            self.remove(slot);
        }
        is_over
    }

    /// Examines the next slots for a packet that finds no room, unless that was done a moment ago.
    fn sweep_for_room(&mut self, now: Nanos) {
        if self.swept.is_none_or(|swept| now.0.saturating_sub(swept.0) >= SWEEP_INTERVAL) {
            self.swept = Some(now);
            self.sweep(now, SWEEP_FOR_ROOM);
        }
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
        self.inside.insert(&(mapping.protocol, mapping.inside), slot);
        self.outside.insert(&(mapping.protocol, mapping.outside), slot);
        self.ports.take(mapping.protocol, mapping.outside);
        match self.hosts.get_mut(&mapping.inside.0) {
            Some(host) => host.count += 1,
            None => _ = self.hosts.insert(mapping.inside.0, Host { count: 1, ..Host::default() }),
        }
        self.slots[slot as usize] = Some(mapping);
        self.list(slot);
        slot
    }

    fn remove(&mut self, slot: u32) {
        let Some(mapping) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        self.unlist(slot, !mapping.is_assured());
        let Some(mapping) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.inside.remove(&(mapping.protocol, mapping.inside), slot);
        self.outside.remove(&(mapping.protocol, mapping.outside), slot);
        self.ports.give(mapping.protocol, mapping.outside);
        if let Some(host) = self.hosts.get_mut(&mapping.inside.0) {
            host.count -= 1;
            if host.count == 0 {
                self.hosts.remove(&mapping.inside.0);
            }
        }
        self.free.push(slot);
    }

    /// Appends a mapping to the end of its lists.
    fn list(&mut self, slot: u32) {
        let Some(Some(mapping)) = self.slots.get(slot as usize) else { return };
        let is_unassured = !mapping.is_assured();
        if is_unassured {
            self.links.push(&mut self.unassured[mapping.protocol as usize], slot);
        }
        if let Some(host) = self.hosts.get_mut(&mapping.inside.0) {
            self.host_links.push(if is_unassured { &mut host.unassured } else { &mut host.assured }, slot);
        }
    }

    /// Removes a mapping from its lists, those of mappings that are not assured or the other one.
    fn unlist(&mut self, slot: u32, is_unassured: bool) {
        let Some(Some(mapping)) = self.slots.get(slot as usize) else { return };
        if is_unassured {
            self.links.remove(&mut self.unassured[mapping.protocol as usize], slot);
        }
        if let Some(host) = self.hosts.get_mut(&mapping.inside.0) {
            self.host_links.remove(if is_unassured { &mut host.unassured } else { &mut host.assured }, slot);
        }
    }
}

impl Mapping {
    fn see(&mut self, seen: ObservedPacket, now: Nanos) {
        let is_tcp = self.protocol == Protocol::Tcp;
        self.packets[usize::from(!seen.is_outbound)] += 1;
        if seen.is_outbound {
            self.goes_on |= self.is_answered;
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

    /// Returns whether the mapping may be evicted for a host with fewer mappings, although it is assured.
    fn is_evictable(&self) -> bool {
        !self.is_static && !self.connections.is_open_outside()
    }

    /// Returns whether the mapping is kept until its timeout: a configured one, one with an open TCP connection,
    /// and one of UDP whose host has sent again after an answer. Others give way to new ones where there is no room: a
    /// query that was answered, such as one of DNS or ICMP, needs its mapping no longer.
    fn is_assured(&self) -> bool {
        let is_used = match self.protocol {
            Protocol::Tcp => self.connections.state() == TcpState::Open,
            Protocol::Udp => self.goes_on,
            Protocol::Icmp => false,
        };
        self.is_static || is_used
    }
}

#[cfg(test)]
mod tests;
