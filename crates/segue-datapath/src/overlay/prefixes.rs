//! Longest-prefix match at a cost that does not grow with the number of prefixes.
//!
//! Host routes are found by one look into a hash table. The other prefixes are found by a binary search over the
//! lengths that occur, with a hash table instead of an order (Waldvogel, Varghese, Turner and Plattner, "Scalable High
//! Speed IP Routing Lookups", 1997): at most 6 looks for IPv4 and 8 for IPv6, and one where all prefixes have the same
//! length, as those of an overlay usually have. A trie would take steps that grow with the prefixes, and a table by
//! address bits 64 MiB for IPv4 alone and no bound for IPv6.

use std::net::IpAddr;

use prefix_trie::PrefixMap;
use segue::hash::Key;

/// Index that stands for no entry.
const NONE: u32 = u32::MAX;

/// A table of prefixes of both families, each with an index. It is built once and never changed.
#[derive(Debug)]
pub struct Prefixes {
    v4: Family<32>,
    v6: Family<128>,
}

/// Prefixes of one family, with addresses of `BITS` bits.
#[derive(Debug)]
struct Family<const BITS: u8> {
    /// Lengths of the stored prefixes, ascending, without host routes.
    lens: Vec<u8>,
    hosts: Slots,
    others: Slots,
}

impl Prefixes {
    /// Builds the table from prefixes with their indexes; of two equal prefixes the last one is used. Address bits
    /// after the prefix are ignored, and lengths beyond the address are cut. `key` should be random: it decides which
    /// prefixes collide.
    pub fn new(key: Key, prefixes: impl Iterator<Item = (IpAddr, u8, u32)>) -> Prefixes {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (address, len, index) in prefixes {
            match address {
                IpAddr::V4(address) => v4.push((u128::from(address.to_bits()), len.min(32), index)),
                IpAddr::V6(address) => v6.push((address.to_bits(), len.min(128), index)),
            }
        }
        Prefixes { v4: Family::new(key, &v4), v6: Family::new(key, &v6) }
    }

    /// Returns the index of the longest prefix that contains `address`.
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => self.v4.lookup(address.to_bits().into()),
            IpAddr::V6(address) => self.v6.lookup(address.to_bits()),
        }
    }
}

impl<const BITS: u8> Family<BITS> {
    fn new(key: Key, prefixes: &[(u128, u8, u32)]) -> Family<BITS> {
        let mut lens: Vec<u8> = prefixes.iter().map(|(_, len, _)| *len).filter(|len| *len < BITS).collect();
        lens.sort_unstable();
        lens.dedup();
        let mut hosts = Slots::new(key, prefixes.iter().filter(|(_, len, _)| *len == BITS).count());
        // The bits of an address are at the top, as the trie has them.
        let mut known: PrefixMap<(u128, u8), u32> = PrefixMap::new();
        let top = |bits: u128| bits << (128 - u32::from(BITS));
        let mut marks: Vec<(u128, u8)> = Vec::new();
        for (bits, len, index) in prefixes {
            if *len == BITS {
                hosts.insert(*bits, BITS, *index);
                continue;
            }
            let bits = Self::masked(*bits, *len);
            known.insert((top(bits), *len), *index);
            // Each length that the search passes on the way to this one needs a sign to go on to longer ones.
            let (mut from, mut to) = (0, lens.len());
            while from < to {
                let at = from.midpoint(to);
                match lens[at] {
                    passed if passed <= *len => {
                        marks.push((Self::masked(bits, passed), passed));
                        if passed == *len {
                            break;
                        }
                        from = at + 1;
                    }
                    _ => to = at,
                }
            }
        }
        marks.sort_unstable();
        marks.dedup();
        let mut others = Slots::new(key, marks.len());
        for (bits, len) in marks {
            // What the search has found when it has come this far: the longest prefix up to this length.
            let best = known.get_lpm(&(top(bits), len)).map_or(NONE, |(_, index)| *index);
            others.insert(bits, len, best);
        }
        Family { lens, hosts, others }
    }

    fn masked(bits: u128, len: u8) -> u128 {
        let behind = u32::from(BITS - len);
        bits.checked_shr(behind).unwrap_or(0).checked_shl(behind).unwrap_or(0)
    }

    #[inline]
    fn lookup(&self, address: u128) -> Option<u32> {
        if let Some(index) = self.hosts.find(address, BITS) {
            return Some(index);
        }
        let (mut from, mut to, mut best) = (0, self.lens.len(), NONE);
        while from < to {
            let at = from.midpoint(to);
            let len = self.lens[at];
            match self.others.find(Self::masked(address, len), len) {
                Some(index) => (best, from) = (index, at + 1),
                None => to = at,
            }
        }
        (best != NONE).then_some(best)
    }
}

/// A hash table with open addressing, filled at most half.
#[derive(Debug)]
struct Slots {
    key: Key,
    slots: Vec<Option<Slot>>,
    mask: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    bits: u128,
    len: u8,
    index: u32,
}

impl Slots {
    fn new(key: Key, count: usize) -> Slots {
        let len = if count == 0 { 0 } else { (2 * count).next_power_of_two() };
        Slots { key, slots: vec![None; len], mask: len.saturating_sub(1) }
    }

    #[inline]
    fn place(&self, bits: u128, len: u8) -> usize {
        let [low, high] = [bits as u64, (bits >> 64) as u64];
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..16].copy_from_slice(&high.to_le_bytes());
        bytes[16] = len;
        self.key.hash(&bytes) as usize & self.mask
    }

    fn insert(&mut self, bits: u128, len: u8, index: u32) {
        let mut at = self.place(bits, len);
        while self.slots[at].is_some_and(|slot| (slot.bits, slot.len) != (bits, len)) {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = Some(Slot { bits, len, index });
    }

    #[inline]
    fn find(&self, bits: u128, len: u8) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.place(bits, len);
        while let Some(slot) = self.slots[at] {
            if (slot.bits, slot.len) == (bits, len) {
                return Some(slot.index);
            }
            at = (at + 1) & self.mask;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([3, 5]);

    /// Returns the index of the longest matching prefix by a search of all of them.
    fn slowly(prefixes: &[(IpAddr, u8, u32)], address: IpAddr) -> Option<u32> {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        let (wanted, most) = bits(address);
        let covers = |prefix: &&(IpAddr, u8, u32)| {
            let (own, of) = bits(prefix.0);
            of == most && (own ^ wanted).checked_shr(128 - u32::from(prefix.1)).unwrap_or(0) == 0
        };
        prefixes.iter().filter(covers).max_by_key(|prefix| prefix.1).map(|prefix| prefix.2)
    }

    #[test]
    fn the_longest_prefix_is_found_whatever_the_lengths_are() {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for count in [0, 1, 2, 10, 300] {
            for _ in 0..8 {
                let mut prefixes: Vec<(IpAddr, u8, u32)> = Vec::new();
                for index in 0..count {
                    // Few values for the bits, so that many prefixes cover each other.
                    let bits = (random() & 0x0303_0303) | 0xc600_0000;
                    let (address, len) = if random() % 2 == 0 {
                        (IpAddr::V4(bits.into()), (random() % 33) as u8)
                    } else {
                        let wide = u128::from(bits) << 96 | u128::from(random() & 3);
                        (IpAddr::V6(wide.into()), (random() % 129) as u8)
                    };
                    let masked = mask(address, len);
                    if !prefixes.iter().any(|other| (other.0, other.1) == (masked, len)) {
                        prefixes.push((masked, len, index));
                    }
                }
                let table = Prefixes::new(KEY, prefixes.iter().copied());
                for _ in 0..200 {
                    let bits = (random() & 0x0303_0303) | 0xc600_0000;
                    let wide = u128::from(bits) << 96 | u128::from(random() & 3);
                    for address in [IpAddr::V4(bits.into()), IpAddr::V6(wide.into())] {
                        assert_eq!(table.lookup(address), slowly(&prefixes, address), "{address} in {prefixes:?}");
                    }
                }
            }
        }
    }

    fn mask(address: IpAddr, len: u8) -> IpAddr {
        match address {
            IpAddr::V4(v4) => IpAddr::V4((Family::<32>::masked(v4.to_bits().into(), len) as u32).into()),
            IpAddr::V6(v6) => IpAddr::V6(Family::<128>::masked(v6.to_bits(), len).into()),
        }
    }

    #[test]
    fn a_default_route_and_host_routes_are_prefixes_like_others() {
        let of = |text: &str, len, index| (text.parse::<IpAddr>().unwrap(), len, index);
        let table = Prefixes::new(
            KEY,
            [of("0.0.0.0", 0, 1), of("198.18.0.1", 32, 2), of("::", 0, 3), of("2001:db8::1", 128, 4)].into_iter(),
        );
        for (address, index) in [("1.2.3.4", 1), ("198.18.0.1", 2), ("2001:db8::2", 3), ("2001:db8::1", 4)] {
            assert_eq!(table.lookup(address.parse().unwrap()), Some(index), "{address}");
        }
        assert_eq!(Prefixes::new(KEY, std::iter::empty()).lookup("::1".parse().unwrap()), None);
    }
}
