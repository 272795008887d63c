//! The table of mappings.

use std::collections::HashMap;

use segue::time::Nanos;

use super::config::{Config, Protocol};
use super::connections::{Connections, ObservedPacket, TcpState};
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
    /// Port outside.
    pub outside: u16,
    /// Whether the mapping was configured; it then never ends.
    pub is_static: bool,
    /// Connections of a TCP mapping.
    pub connections: Connections,
    /// Time of the last packet.
    pub last: Nanos,
    /// Packets outbound and inbound, a train counting one.
    pub packets: [u64; 2],
}

#[derive(Debug)]
pub(super) struct Table {
    config: Config,
    slots: Vec<Option<Mapping>>,
    free: Vec<u32>,
    inside: HashMap<(Protocol, (u32, u16)), u32>,
    outside: HashMap<(Protocol, u16), u32>,
    ports: Ports,
    hosts: HashMap<u32, u32>,
    cursor: usize,
    tries: u64,
}

/// Slots that are examined for an expired mapping when the table is full or no port is free.
const SWEEP_FOR_ROOM: usize = 1024;

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
            cursor: 0,
            tries: config.seed,
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
        });
        Ok(())
    }

    /// Returns the mapping of an inside port, if it is alive, without renewing it.
    pub(super) fn by_inside(&self, protocol: Protocol, inside: (u32, u16), now: Nanos) -> Option<&Mapping> {
        let slot = *self.inside.get(&(protocol, inside))?;
        let mapping = self.slots.get(slot as usize)?.as_ref()?;
        (!self.is_over(mapping, now)).then_some(mapping)
    }

    /// Returns the mapping of an outside port, if it is alive; a packet that was `seen` renews it.
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
        let mapping = self.slots.get_mut(slot as usize)?.as_mut()?;
        if let Some(seen) = seen {
            mapping.see(seen, now);
        }
        Some(mapping)
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
            if self.slots.get(slot as usize).and_then(Option::as_ref).is_some_and(|m| !self.is_over(m, now)) {
                let Some(Some(mapping)) = self.slots.get_mut(slot as usize) else { return Err(Refusal::NoMapping) };
                mapping.see(seen, now);
                return Ok(mapping.outside);
            }
            self.remove(slot);
        }
        if self.len() >= self.config.most {
            self.sweep(now, SWEEP_FOR_ROOM);
        }
        if self.len() >= self.config.most {
            return Err(Refusal::Full);
        }
        if self.hosts.get(&inside.0).is_some_and(|count| *count as usize >= self.config.most_per_host) {
            return Err(Refusal::HostFull);
        }
        let outside = self.free_port(protocol, inside.1, now).ok_or(Refusal::Ports)?;
        let (connections, packets) = (Connections::default(), [0; 2]);
        let mut mapping = Mapping { protocol, inside, outside, is_static: false, connections, last: now, packets };
        mapping.see(seen, now);
        self.insert(mapping);
        Ok(outside)
    }

    /// Returns the inside port itself where that is allowed and free (RFC 4787, section 4.2.1), else one found from a
    /// random place on.
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
            self.sweep(now, SWEEP_FOR_ROOM);
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

    fn insert(&mut self, mapping: Mapping) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.inside.insert((mapping.protocol, mapping.inside), slot);
        self.outside.insert((mapping.protocol, mapping.outside), slot);
        self.ports.take(mapping.protocol, mapping.outside);
        *self.hosts.entry(mapping.inside.0).or_default() += 1;
        self.slots[slot as usize] = Some(mapping);
    }

    fn remove(&mut self, slot: u32) {
        let Some(mapping) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.inside.remove(&(mapping.protocol, mapping.inside));
        self.outside.remove(&(mapping.protocol, mapping.outside));
        self.ports.give(mapping.protocol, mapping.outside);
        if let Some(count) = self.hosts.get_mut(&mapping.inside.0) {
            *count -= 1;
            if *count == 0 {
                self.hosts.remove(&mapping.inside.0);
            }
        }
        self.free.push(slot);
    }
}

impl Mapping {
    fn see(&mut self, seen: ObservedPacket, now: Nanos) {
        self.last = now;
        self.packets[usize::from(!seen.is_outbound)] += 1;
        if self.protocol == Protocol::Tcp {
            self.connections.see(seen);
        }
    }
}
