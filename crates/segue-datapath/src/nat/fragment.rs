//! Fragments of translated datagrams: later fragments are translated like the first one (RFC 4787, REQ-14).
//!
//! Only the first fragment has ports. Its mapping is remembered by addresses, protocol and identification for as long
//! as reassembly may take (RFC 791, section 3.2: 15 seconds). The table is bounded and evicts the oldest entry, so a
//! flood of fragments can only cost other fragments. Outside, all hosts share one address and its identifications: one
//! that is in use is replaced by another (RFC 6864, section 5.3).

use std::collections::{HashMap, VecDeque};

use segue::checksum::Field;
use segue::packet::{Kind, Packet};
use segue::time::Nanos;
use segue::wire::{ipv4, read_u16, read_u32, write_u16};

use super::outcome::{Done, Refusal};
use super::random::random;
use super::rewrite::{self, Side};

/// Largest number of datagrams that are remembered.
const MOST: usize = 4096;
/// Time for which a datagram is remembered, nanoseconds.
const LIFE: u64 = 15_000_000_000;

/// The datagram that a fragment belongs to, identified before its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    source: u32,
    destination: u32,
    protocol: u8,
    id: u16,
}

/// A fragment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The datagram to which the fragment belongs.
    pub datagram: Datagram,
    /// Whether the fragment is the first one, which has the ports.
    pub is_first: bool,
}

impl Part {
    /// Returns which fragment the outermost packet is; `None` for a packet that is not fragmented, or not IPv4.
    #[inline]
    pub fn of<B: AsRef<[u8]>>(packet: &Packet<B>) -> Option<Part> {
        let header = packet.layout.outer_ip()?;
        let bytes = packet.head.bytes().get(header.start()..)?;
        let word = read_u16(bytes, ipv4::FRAGMENT).filter(|_| header.kind == Kind::Ipv4)?;
        if word & (ipv4::MF | ipv4::OFFSET) == 0 {
            return None;
        }
        let datagram = Datagram {
            source: read_u32(bytes, ipv4::SRC.start)?,
            destination: read_u32(bytes, ipv4::DST.start)?,
            protocol: *bytes.get(ipv4::PROTOCOL)?,
            id: read_u16(bytes, ipv4::ID)?,
        };
        Some(Part { datagram, is_first: word & ipv4::OFFSET == 0 })
    }
}

/// Direction of a datagram, as seen from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Outbound,
    Inbound,
}

/// The treatment of a datagram: decided for the first fragment, repeated for the others.
#[derive(Clone, Copy, Debug)]
enum FragmentAction {
    Pass { source: u32, destination: u32, id: u16, done: Done },
    Drop(Refusal),
}

#[derive(Debug)]
struct Entry {
    fate: FragmentAction,
    since: Nanos,
    /// Serial number, for the order of creation.
    number: u64,
}

type Key = (Direction, Datagram);

/// Datagrams whose first fragment has been translated or dropped.
#[derive(Debug)]
pub(super) struct FragmentTable {
    entries: HashMap<Key, Entry>,
    /// Keys and serial numbers, oldest first; those whose entry has another number are stale.
    order: VecDeque<(Key, u64)>,
    /// Identifications in use outside, by destination and protocol, and the datagram that uses each.
    ids: HashMap<(u32, u8, u16), Key>,
    next: u64,
    seed: u64,
}

impl FragmentTable {
    pub(super) fn new(seed: u64) -> FragmentTable {
        FragmentTable { entries: HashMap::new(), order: VecDeque::new(), ids: HashMap::new(), next: 0, seed }
    }

    /// Translates or drops a later fragment like the first one; returns [`Done::FirstMissing`] if the first one has not
    /// arrived.
    pub(super) fn later<B: AsRef<[u8]>>(
        &self,
        direction: Direction,
        datagram: Datagram,
        packet: &mut Packet<B>,
        now: Nanos,
    ) -> Result<Done, Refusal> {
        let entry = self.entries.get(&(direction, datagram)).filter(|entry| !entry.is_over(now));
        match entry.map(|entry| entry.fate) {
            None => Ok(Done::FirstMissing),
            Some(FragmentAction::Drop(why)) => Err(why),
            Some(FragmentAction::Pass { source, destination, id, done }) => {
                let Some(ip) = packet.layout.outer_ip_index() else {
                    return Err(Refusal::Malformed);
                };
                rewrite::address(packet, ip, Side::Source, source);
                rewrite::address(packet, ip, Side::Destination, destination);
                renumber(packet, ip, id);
                Ok(done)
            }
        }
    }

    /// Records the outcome of a first fragment, and gives an outbound datagram an identification that is unique
    /// outside.
    pub(super) fn first<B: AsRef<[u8]>>(
        &mut self,
        direction: Direction,
        datagram: Datagram,
        packet: &mut Packet<B>,
        outcome: Result<Done, Refusal>,
        now: Nanos,
    ) {
        let key = (direction, datagram);
        let ip = packet.layout.outer_ip_index();
        let ends = ip.and_then(|at| rewrite::addresses(packet, at));
        let fate = match (outcome, ip, ends) {
            (Ok(done), Some(ip), Some((source, destination))) => {
                let id = match direction {
                    Direction::Outbound => self.number(key, destination),
                    Direction::Inbound => datagram.id,
                };
                renumber(packet, ip, id);
                FragmentAction::Pass { source, destination, id, done }
            }
            (Err(why), ..) => FragmentAction::Drop(why),
            _ => FragmentAction::Drop(Refusal::Malformed),
        };
        self.forget(&key);
        if let (Direction::Outbound, FragmentAction::Pass { destination, id, .. }) = (direction, fate) {
            self.ids.insert((destination, datagram.protocol, id), key);
        }
        self.next += 1;
        self.entries.insert(key, Entry { fate, since: now, number: self.next });
        self.order.push_back((key, self.next));
        while self.entries.len() > MOST || self.order.len() > 2 * MOST {
            self.drop_oldest();
        }
    }

    /// Deletes entries whose lifetime has ended.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some((key, number)) = self.order.front() {
            let is_there = self.entries.get(key).is_some_and(|entry| entry.number == *number && !entry.is_over(now));
            if is_there {
                return;
            }
            self.drop_oldest();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the datagram's own identification, or where another one to that destination uses it, the next free one
    /// after a random number.
    fn number(&mut self, key: Key, destination: u32) -> u16 {
        let (_, datagram) = key;
        let is_free = |id: u16| self.ids.get(&(destination, datagram.protocol, id)).is_none_or(|owner| *owner == key);
        // A repeated first fragment keeps its identification.
        if let Some(Entry { fate: FragmentAction::Pass { id, .. }, .. }) = self.entries.get(&key)
            && is_free(*id)
        {
            return *id;
        }
        if is_free(datagram.id) {
            return datagram.id;
        }
        let start = random(&mut self.seed) as u16;
        // There are fewer datagrams than identifications.
        (0..=u16::MAX).map(|step| start.wrapping_add(step)).find(|id| is_free(*id)).unwrap_or(datagram.id)
    }

    fn drop_oldest(&mut self) {
        let Some((key, number)) = self.order.pop_front() else { return };
        if self.entries.get(&key).is_some_and(|entry| entry.number == number) {
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(Entry { fate: FragmentAction::Pass { destination, id, .. }, .. }) = self.entries.remove(key) {
            let place = (destination, key.1.protocol, id);
            if self.ids.get(&place) == Some(key) {
                self.ids.remove(&place);
            }
        }
    }
}

impl Entry {
    fn is_over(&self, now: Nanos) -> bool {
        now.0.saturating_sub(self.since.0) > LIFE
    }
}

/// Replaces the identification, and updates the header checksum.
fn renumber<B: AsRef<[u8]>>(packet: &mut Packet<B>, ip: usize, id: u16) {
    let header = packet.layout.headers()[ip];
    let bytes = &mut packet.head.bytes_mut()[header.start()..];
    let old = read_u16(bytes, ipv4::ID).unwrap_or(id);
    let field = Field::from_wire(read_u16(bytes, ipv4::CHECKSUM).unwrap_or(0));
    write_u16(bytes, ipv4::ID, id);
    write_u16(bytes, ipv4::CHECKSUM, field.update(old, id).value());
}
