//! Packet groups: packets of a batch with the same routing key, found before any lookup.
//!
//! The key of a group is all that a route policy may read: the ingress port, the destination of the outermost IP
//! header, and what else [`Reads`] names. One lookup serves the group, however its packets are interleaved with others.
//! A train has one header and counts as one packet.

use segue::packet::{Kind, Packet};
use segue::wire::{ipv4, ipv6};

/// Fields that a route policy reads in addition to ingress port and destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Whether the policy reads the source address.
    pub source: bool,
    /// Whether the policy reads DSCP and ECN.
    pub tos: bool,
}

/// The fields by which packets are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKey {
    /// Index of the ingress port.
    pub ingress: u16,
    /// DSCP and ECN byte; 0 if the policy does not read it.
    pub tos: u8,
    /// Whether the addresses are IPv4 ones.
    pub is_v4: bool,
    /// Destination IP address of the group. IPv4 is in the low 32 bits.
    pub destination: u128,
    /// Source address; 0 if the policy does not read it.
    pub source: u128,
}

/// Packets of one batch with the same key.
#[derive(Clone, Copy, Debug)]
pub struct PacketGroup {
    /// Key of all packets in the group.
    pub key: GroupKey,
    /// Index of the first packet in the batch.
    pub first: u32,
    /// Number of packets, a train counting one.
    pub packets: u32,
}

/// Groups the packets of a batch. It reuses its memory between batches.
#[derive(Debug)]
pub struct Grouper {
    reads: Reads,
    groups: Vec<PacketGroup>,
    /// Group of each packet; [`NO_GROUP`] for packets that are not IP.
    of: Vec<u32>,
    places: Places,
}

/// Group number of a packet without a group.
const NO_GROUP: u32 = u32::MAX;

impl Grouper {
    /// Creates a grouper for policies that read the fields `reads`. `seed` should be random: it decides about hash
    /// collisions.
    pub fn new(reads: Reads, seed: u64) -> Grouper {
        Grouper { reads, groups: Vec::new(), of: Vec::new(), places: Places::new(seed) }
    }

    /// Groups the packets of one batch that was received on `ingress`; at most 2^31 of them.
    pub fn gather<'p, B: AsRef<[u8]> + 'p>(
        &mut self,
        ingress: u16,
        packets: impl ExactSizeIterator<Item = &'p Packet<B>>,
    ) {
        self.groups.clear();
        self.of.clear();
        self.places.begin(packets.len());
        for (index, packet) in packets.enumerate() {
            let group = match key(packet, ingress, self.reads) {
                Some(key) => self.join(key, index as u32),
                None => NO_GROUP,
            };
            self.of.push(group);
        }
    }

    /// Returns the groups of the last batch, in the order of their first packets.
    pub fn groups(&self) -> &[PacketGroup] {
        &self.groups
    }

    /// Returns the index in [`Grouper::groups`] of a packet of the last batch; `None` where it is not IP.
    pub fn group_of(&self, packet: usize) -> Option<usize> {
        self.of.get(packet).filter(|group| **group != NO_GROUP).map(|group| *group as usize)
    }

    #[inline]
    fn join(&mut self, key: GroupKey, packet: u32) -> u32 {
        // A packet most often belongs to the same flow as the one before.
        if let Some(&last) = self.of.last()
            && let Some(group) = self.groups.get_mut(last as usize)
            && group.key == key
        {
            group.packets += 1;
            return last;
        }
        let mixed = key.destination ^ key.source.rotate_left(61);
        let hash = self.places.hash(mixed, u64::from(key.tos) << 1 | u64::from(key.is_v4));
        let groups = &mut self.groups;
        let found = self.places.find(hash, groups.len() as u32, |index| groups[index as usize].key == key);
        match groups.get_mut(found as usize) {
            Some(group) => group.packets += 1,
            None => groups.push(PacketGroup { key, first: packet, packets: 1 }),
        }
        found
    }
}

/// Returns the key of a packet, or `None` where it has no IP header.
#[inline]
pub fn key<B: AsRef<[u8]>>(packet: &Packet<B>, ingress: u16, reads: Reads) -> Option<GroupKey> {
    let header = packet.layout.outer_ip()?;
    let bytes = packet.head.bytes().get(header.start()..header.end())?;
    let mut key = GroupKey { ingress, tos: 0, is_v4: header.kind == Kind::Ipv4, destination: 0, source: 0 };
    if key.is_v4 {
        let word = |range: std::ops::Range<usize>| Some(u32::from_be_bytes(bytes.get(range)?.try_into().ok()?).into());
        key.destination = word(ipv4::DST)?;
        key.source = if reads.source { word(ipv4::SRC)? } else { 0 };
        key.tos = if reads.tos { bytes[ipv4::TOS] } else { 0 };
    } else {
        let word = |range: std::ops::Range<usize>| Some(u128::from_be_bytes(bytes.get(range)?.try_into().ok()?));
        key.destination = word(ipv6::DST)?;
        key.source = if reads.source { word(ipv6::SRC)? } else { 0 };
        key.tos = if reads.tos { ipv6::traffic_class(bytes[0], bytes[1]) } else { 0 };
    }
    Some(key)
}

/// A hash index over the entries of one batch, cleared at no cost.
#[derive(Debug)]
pub(crate) struct Places {
    /// Entry numbers, with the batch's stamp in the upper half. There are at least twice as many places as entries.
    places: Vec<u64>,
    stamp: u32,
    seed: u64,
}

impl Places {
    pub(crate) fn new(seed: u64) -> Places {
        Places { places: Vec::new(), stamp: 0, seed: seed | 1 }
    }

    /// Clears the index and makes room for `most` entries.
    pub(crate) fn begin(&mut self, most: usize) {
        let wanted = (most.max(1) * 2).next_power_of_two();
        self.stamp = self.stamp.wrapping_add(1);
        if self.places.len() < wanted || self.stamp == 0 {
            self.places.clear();
            self.places.resize(wanted, 0);
            self.stamp = 1;
        }
    }

    /// Returns the number stored under `hash` that `is` accepts, or inserts and returns `fresh`.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, fresh: u32, mut is: impl FnMut(u32) -> bool) -> u32 {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        // The loop ends, because half of the places are free.
        loop {
            let found = self.places[place];
            if (found >> 32) as u32 != self.stamp {
                self.places[place] = u64::from(self.stamp) << 32 | u64::from(fresh);
                return fresh;
            }
            if is(found as u32) {
                return found as u32;
            }
            place = (place + 1) & mask;
        }
    }

    /// Hashes by a folded product, as wyhash and foldhash do. Input that is crafted for a known
    /// seed only lengthens the searches of one batch.
    #[inline]
    pub(crate) fn hash(&self, address: u128, rest: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let low = fold(address as u64 ^ self.seed, rest ^ 0x9e37_79b9_7f4a_7c15);
        fold(low ^ (address >> 64) as u64, self.seed ^ 0xe703_7ed1_a0b4_28db)
    }
}
