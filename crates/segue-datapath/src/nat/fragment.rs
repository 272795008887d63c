//! Fragments of translated datagrams: later fragments are translated like the first one (RFC 4787, REQ-14).
//!
//! Only the first fragment has ports. Its mapping is remembered by addresses, protocol and identification for as long
//! as reassembly may take (RFC 791, section 3.2: 15 seconds). The table is bounded and evicts the oldest entry, so a
//! flood of fragments can only cost other fragments. Outside, all hosts share one address and its identifications: one
//! that is in use is replaced by another (RFC 6864, section 5.3).

use std::collections::VecDeque;

use segue::checksum::Field;
use segue::packet::{Kind, Packet};
use segue::time::Nanos;
use segue::wire::{ipv4, read_u16, read_u32, write_u16};

use super::outcome::{Done, Refusal};
use super::random::Random;
use super::rewrite::{self, Side};
use crate::slots::SlotMap;

/// Largest number of datagrams that are remembered.
const MOST: usize = 4096;
/// Time for which a datagram is remembered, nanoseconds.
const LIFE: u64 = 15_000_000_000;

/// Identity of a datagram before its translation, for its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    pub(crate) source: u32,
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
    /// Returns the fragment that the outermost packet is; `None` for a packet that is not fragmented, or not IPv4.
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

/// Direction of a datagram, from the inside's point of view.
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
    entries: SlotMap<Key, Entry>,
    /// Keys and serial numbers, oldest first; those whose entry has another number are stale.
    order: VecDeque<(Key, u64)>,
    /// Identifications in use outside, by destination and protocol, and the datagram that uses each.
    ids: SlotMap<(u32, u8, u16), Key>,
    next: u64,
    random: Random,
}

impl FragmentTable {
    pub(super) fn new(seed: u64) -> FragmentTable {
        let (entries, ids, random) = (SlotMap::default(), SlotMap::default(), Random::new(seed));
        FragmentTable { entries, order: VecDeque::new(), ids, next: 0, random }
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

    /// Records the outcome of a first fragment, and replaces the identification of an outbound datagram by one that is
    /// unique outside.
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
        while self.entries.len() >= MOST || self.order.len() >= 2 * MOST {
            self.drop_oldest();
        }
        if let (Direction::Outbound, FragmentAction::Pass { destination, id, .. }) = (direction, fate) {
            self.ids.insert((destination, datagram.protocol, id), key);
        }
        self.next += 1;
        self.entries.insert(key, Entry { fate, since: now, number: self.next });
        self.order.push_back((key, self.next));
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

    /// Returns the datagram's own identification, or, where another datagram to that destination uses it, the next free
    /// one after a random number.
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
        let start = self.random.number() as u16;
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

#[cfg(test)]
mod tests {
    use segue::checksum::Sum;
    use segue::packet::{Frag, Start, Tunnels};

    use super::*;

    const HOST: u32 = 0xc612_0001;
    const OTHER_HOST: u32 = 0xc612_0002;
    const SERVER: u32 = 0xc613_0001;
    const OTHER_SERVER: u32 = 0xc613_0002;
    const UDP: u8 = 17;
    const TCP: u8 = 6;

    /// Returns a fragment of `datagram` with the given word of flags and offset.
    fn fragment(datagram: Datagram, word: u16) -> Packet<Vec<u8>> {
        let mut bytes = vec![0; ipv4::MIN_LEN + 8];
        (bytes[0], bytes[ipv4::TTL], bytes[ipv4::PROTOCOL]) = (0x45, 64, datagram.protocol);
        write_u16(&mut bytes, ipv4::TOTAL_LEN, 28);
        write_u16(&mut bytes, ipv4::ID, datagram.id);
        write_u16(&mut bytes, ipv4::FRAGMENT, word);
        bytes[ipv4::SRC].copy_from_slice(&datagram.source.to_be_bytes());
        bytes[ipv4::DST].copy_from_slice(&datagram.destination.to_be_bytes());
        let field = Field::complete(Sum::of(&bytes[..ipv4::MIN_LEN]));
        write_u16(&mut bytes, ipv4::CHECKSUM, field.value());
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
        packet
    }

    fn datagram(source: u32, destination: u32, protocol: u8) -> Datagram {
        Datagram { source, destination, protocol, id: 7 }
    }

    /// Returns the identification of a packet, whose header checksum must be right.
    #[track_caller]
    fn id_of(packet: &Packet<Vec<u8>>) -> u16 {
        let header = &packet.head.bytes()[..ipv4::MIN_LEN];
        assert_eq!(Field::complete(Sum::of(header)).value(), 0, "the header checksum");
        read_u16(header, ipv4::ID).unwrap()
    }

    /// Tests that a packet with More Fragments or an offset is a fragment, and that the first fragment has no offset
    /// (RFC 791, section 3.1).
    #[test]
    fn fragments_are_told_by_their_offset_and_by_more_fragments() {
        let of = datagram(HOST, SERVER, UDP);
        for (word, is_first) in [
            (0, None),
            (ipv4::DF, None),
            (0x8000, None),
            (ipv4::MF, Some(true)),
            (ipv4::MF | ipv4::DF, Some(true)),
            (1, Some(false)),
            (0x1000, Some(false)),
            (ipv4::MF | 1, Some(false)),
            (ipv4::OFFSET, Some(false)),
        ] {
            let found = Part::of(&fragment(of, word));
            assert_eq!(found, is_first.map(|is_first| Part { datagram: of, is_first }), "{word:#x}");
        }
    }

    /// Tests that a datagram is remembered for 15 seconds, and not a nanosecond longer (RFC 791, section 3.2).
    #[test]
    fn what_happened_to_the_first_fragment_is_remembered_for_its_time_and_its_direction() {
        let of = datagram(HOST, SERVER, UDP);
        let mut table = FragmentTable::new(1);
        let mut first = fragment(of, ipv4::MF);
        table.first(Direction::Inbound, of, &mut first, Err(Refusal::NoMapping), Nanos(5));
        let later =
            |table: &FragmentTable, direction, now| table.later(direction, of, &mut fragment(of, 1), Nanos(now));
        assert_eq!(later(&table, Direction::Inbound, 5 + LIFE), Err(Refusal::NoMapping));
        assert_eq!(later(&table, Direction::Inbound, 6 + LIFE), Ok(Done::FirstMissing));
        assert_eq!(later(&table, Direction::Outbound, 5), Ok(Done::FirstMissing));
        table.expire(Nanos(5 + LIFE));
        assert!(!table.is_empty());
        table.expire(Nanos(6 + LIFE));
        assert!(table.is_empty() && table.order.is_empty());
    }

    /// Tests that no two datagrams to one destination and of one protocol have the same identification outside at a
    /// time (RFC 6864, section 5.3).
    #[test]
    fn an_identification_that_another_datagram_uses_is_replaced_in_all_fragments() {
        let mut table = FragmentTable::new(1);
        let pass = |table: &mut FragmentTable, direction, of: Datagram, now| {
            let mut packet = fragment(of, ipv4::MF);
            table.first(direction, of, &mut packet, Ok(Done::Translated), Nanos(now));
            id_of(&packet)
        };
        let (one, two) = (datagram(HOST, SERVER, UDP), datagram(OTHER_HOST, SERVER, UDP));
        assert_eq!(pass(&mut table, Direction::Outbound, one, 0), 7);
        let replaced = pass(&mut table, Direction::Outbound, two, 0);
        assert_ne!(replaced, 7);
        // A fragment that was sent twice has the same one again.
        assert_eq!(pass(&mut table, Direction::Outbound, two, 1), replaced);
        assert_eq!(pass(&mut table, Direction::Outbound, one, 1), 7);
        for (of, id) in [(one, 7), (two, replaced)] {
            let mut later = fragment(of, ipv4::MF | 1);
            assert_eq!(table.later(Direction::Outbound, of, &mut later, Nanos(2)), Ok(Done::Translated));
            assert_eq!(id_of(&later), id);
        }
        // To another destination, of another protocol, and inbound each keeps its own.
        for (direction, of) in [
            (Direction::Outbound, datagram(OTHER_HOST, OTHER_SERVER, UDP)),
            (Direction::Outbound, datagram(OTHER_HOST, SERVER, TCP)),
            (Direction::Inbound, datagram(SERVER, HOST, UDP)),
        ] {
            assert_eq!(pass(&mut table, direction, of, 2), 7, "{direction:?} {of:?}");
        }
        // Once the first datagram is forgotten its identification is free.
        table.expire(Nanos(2 + LIFE));
        assert_eq!(pass(&mut table, Direction::Outbound, datagram(3, SERVER, UDP), 3 + LIFE), 7);
    }

    #[test]
    fn the_oldest_datagram_is_forgotten_where_there_are_too_many() {
        let mut table = FragmentTable::new(1);
        let of = |number: usize| datagram(number as u32, SERVER, UDP);
        let mut packet = fragment(of(0), ipv4::MF);
        for number in 0..=MOST {
            table.first(Direction::Inbound, of(number), &mut packet, Err(Refusal::Full), Nanos(0));
        }
        assert_eq!(table.entries.len(), MOST);
        for (number, expected) in [(0, Ok(Done::FirstMissing)), (1, Err(Refusal::Full)), (MOST, Err(Refusal::Full))] {
            assert_eq!(table.later(Direction::Inbound, of(number), &mut packet, Nanos(0)), expected, "{number}");
        }
        // One datagram again and again leaves no more than as many stale keys.
        for _ in 0..2 * MOST {
            table.first(Direction::Inbound, of(1), &mut packet, Err(Refusal::Full), Nanos(0));
        }
        assert!(table.order.len() <= 2 * MOST, "{}", table.order.len());
        assert_eq!(table.later(Direction::Inbound, of(1), &mut packet, Nanos(0)), Err(Refusal::Full));
    }
}
