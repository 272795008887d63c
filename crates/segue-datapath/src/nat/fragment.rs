//! Datagrams that come in fragments: what was done with the first one is done with the others (RFC 4787, REQ-14).
//!
//! Only the first fragment has ports. What it was mapped to is remembered by addresses, protocol and identification, as long as
//! reassembly may take (RFC 791, section 3.2: 15 seconds). The table is bounded, and what is new takes the place of what is
//! oldest, so that a flood of fragments costs others only fragments. Outside, all hosts share one address and one room of
//! identifications: one that is taken is replaced by another (RFC 6864, section 5.3).

use std::collections::{HashMap, VecDeque};

use segue::checksum::Field;
use segue::packet::{Header, Kind, Packet};
use segue::time::Nanos;
use segue::wire::{ipv4, read_u16, read_u32, write_u16};

use super::outcome::{Done, Refusal};
use super::random::random;
use super::rewrite::{self, Side};

/// Most datagrams that are remembered.
const MOST: usize = 4096;
/// How long, nanoseconds.
const LIFE: u64 = 15_000_000_000;

/// The datagram that a fragment is part of, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    source: u32,
    destination: u32,
    protocol: u8,
    id: u16,
}

/// A fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What of.
    pub datagram: Datagram,
    /// Whether it is the first one, which has the ports.
    pub is_first: bool,
}

impl Part {
    /// What part of a datagram the outermost packet is; `None` where it is all of one, or not IPv4.
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

/// Which way a datagram goes, as seen from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Outbound,
    Inbound,
}

/// What becomes of a datagram's fragments.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass { source: u32, destination: u32, id: u16, done: Done },
    Drop(Refusal),
}

#[derive(Debug)]
struct Entry {
    fate: Fate,
    since: Nanos,
    /// Its place in the order of arrival.
    number: u64,
}

type Key = (Direction, Datagram);

/// Datagrams of which the first fragment has passed.
#[derive(Debug)]
pub(super) struct Datagrams {
    entries: HashMap<Key, Entry>,
    /// Oldest first; places whose number is another one now are empty.
    order: VecDeque<(Key, u64)>,
    /// Identifications outside, by destination and protocol, and whose they are.
    ids: HashMap<(u32, u8, u16), Key>,
    next: u64,
    seed: u64,
}

impl Datagrams {
    pub(super) fn new(seed: u64) -> Datagrams {
        Datagrams { entries: HashMap::new(), order: VecDeque::new(), ids: HashMap::new(), next: 0, seed }
    }

    /// Does with a later fragment what was done with the first one, which may not have come yet.
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
            Some(Fate::Drop(why)) => Err(why),
            Some(Fate::Pass { source, destination, id, done }) => {
                let Some(ip) = packet.layout.headers().iter().position(Header::is_ip) else {
                    return Err(Refusal::Malformed);
                };
                rewrite::address(packet, ip, Side::Source, source);
                rewrite::address(packet, ip, Side::Destination, destination);
                renumber(packet, ip, id);
                Ok(done)
            }
        }
    }

    /// Remembers what became of a first fragment, and gives the datagram an identification that no other one has outside.
    pub(super) fn first<B: AsRef<[u8]>>(
        &mut self,
        direction: Direction,
        datagram: Datagram,
        packet: &mut Packet<B>,
        outcome: Result<Done, Refusal>,
        now: Nanos,
    ) {
        let key = (direction, datagram);
        let ip = packet.layout.headers().iter().position(Header::is_ip);
        let ends = ip.and_then(|at| rewrite::addresses(packet, at));
        let fate = match (outcome, ip, ends) {
            (Ok(done), Some(ip), Some((source, destination))) => {
                let id = match direction {
                    Direction::Outbound => self.number(key, destination),
                    Direction::Inbound => datagram.id,
                };
                renumber(packet, ip, id);
                Fate::Pass { source, destination, id, done }
            }
            (Err(why), ..) => Fate::Drop(why),
            _ => Fate::Drop(Refusal::Malformed),
        };
        self.forget(&key);
        if let (Direction::Outbound, Fate::Pass { destination, id, .. }) = (direction, fate) {
            self.ids.insert((destination, datagram.protocol, id), key);
        }
        self.next += 1;
        self.entries.insert(key, Entry { fate, since: now, number: self.next });
        self.order.push_back((key, self.next));
        while self.entries.len() > MOST || self.order.len() > 2 * MOST {
            self.drop_oldest();
        }
    }

    /// Forgets what is over.
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

    /// The datagram's own identification, or where another one to that destination has it the next free one after a place that
    /// nobody can guess.
    fn number(&mut self, key: Key, destination: u32) -> u16 {
        let (_, datagram) = key;
        let is_free = |id: u16| self.ids.get(&(destination, datagram.protocol, id)).is_none_or(|owner| *owner == key);
        // A fragment that comes twice.
        if let Some(Entry { fate: Fate::Pass { id, .. }, .. }) = self.entries.get(&key)
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
        if let Some(Entry { fate: Fate::Pass { destination, id, .. }, .. }) = self.entries.remove(key) {
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

/// Another identification.
fn renumber<B: AsRef<[u8]>>(packet: &mut Packet<B>, ip: usize, id: u16) {
    let header = packet.layout.headers()[ip];
    let bytes = &mut packet.head.bytes_mut()[header.start()..];
    let old = read_u16(bytes, ipv4::ID).unwrap_or(id);
    let field = Field::from_wire(read_u16(bytes, ipv4::CHECKSUM).unwrap_or(0));
    write_u16(bytes, ipv4::ID, id);
    write_u16(bytes, ipv4::CHECKSUM, field.update(old, id).value());
}
