//! The forwarding table (FDB) of a tunnel that carries Ethernet frames to several remotes: which remote has which
//! address.

use alloc::vec::Vec;

use crate::hash::Key;
use crate::time::Nanos;
use crate::wire::ethernet;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Number of entries in which an address may be stored.
const SET_LEN: usize = 4;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The remote with the given index.
    Remote(u16),
    /// All remotes: the address is a group address or unknown.
    Flood,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Mac,
    to: u16,
    /// Time at which the address was last seen; `None` for a free entry.
    seen: Option<Nanos>,
}

const FREE: Entry = Entry { mac: [0; 6], to: 0, seen: None };

/// A forwarding table: Ethernet addresses, learned from received frames or configured.
///
/// The table never grows: an address is stored in one of four entries, chosen by a keyed hash; if all are taken, the
/// entry that was silent for longest is evicted. Frames to an evicted address are flooded until the address is seen
/// again.
#[derive(Clone, Debug)]
pub struct Fdb {
    key: Key,
    sets: Vec<[Entry; SET_LEN]>,
    fixed: Vec<(Mac, u16)>,
    ageing: u64,
    learned: u64,
    moved: u64,
    evicted: u64,
}

impl Fdb {
    /// Creates a table for at least `entries` learned addresses, each of which is removed after an ageing time of
    /// `ageing` nanoseconds without a frame; with 0 entries nothing is learned. The entries of `fixed` stay, whatever
    /// is seen; of two for one address the first counts.
    pub fn new(key: Key, entries: usize, ageing: u64, fixed: &[(Mac, u16)]) -> Fdb {
        let sets = if entries == 0 { 0 } else { entries.div_ceil(SET_LEN).next_power_of_two() };
        let mut fixed: Vec<(Mac, u16)> = fixed.to_vec();
        // The sort is stable, so the first of two stays.
        fixed.sort_by_key(|(mac, _)| *mac);
        fixed.dedup_by_key(|(mac, _)| *mac);
        Fdb { key, sets: alloc::vec![[FREE; SET_LEN]; sets], fixed, ageing, learned: 0, moved: 0, evicted: 0 }
    }

    /// Returns the destination of a frame to `mac`.
    pub fn lookup(&self, mac: Mac, now: Nanos) -> Destination {
        if ethernet::is_group(mac) {
            return Destination::Flood;
        }
        if let Some(to) = self.fixed_to(mac) {
            return Destination::Remote(to);
        }
        let Some(set) = self.set(mac).and_then(|set| self.sets.get(set)) else { return Destination::Flood };
        let found = set.iter().find(|entry| entry.mac == mac && self.is_alive(entry, now));
        found.map_or(Destination::Flood, |entry| Destination::Remote(entry.to))
    }

    /// Records that a frame from `mac` was received from the remote `from`. Group addresses and the zero address are
    /// ignored.
    pub fn learn(&mut self, mac: Mac, from: u16, now: Nanos) {
        if !ethernet::is_station(mac) || self.fixed_to(mac).is_some() {
            return;
        }
        let Some(index) = self.set(mac) else { return };
        let ageing = self.ageing;
        let Some(set) = self.sets.get_mut(index) else { return };
        if let Some(entry) = set.iter_mut().find(|entry| entry.mac == mac && entry.seen.is_some()) {
            self.moved += u64::from(entry.to != from);
            (entry.to, entry.seen) = (from, Some(now));
            return;
        }
        let alive = |entry: &Entry| entry.seen.is_some_and(|seen| now.0.saturating_sub(seen.0) < ageing);
        // `None` is less than every time: free entries go first.
        let Some(oldest) = set.iter_mut().min_by_key(|entry| entry.seen.map(|seen| seen.0)) else { return };
        self.evicted += u64::from(alive(oldest));
        self.learned += 1;
        *oldest = Entry { mac, to: from, seen: Some(now) };
    }

    /// Returns the numbers of addresses that were learned, moved to another remote, and evicted before their ageing
    /// time for lack of room.
    pub fn counts(&self) -> [u64; 3] {
        [self.learned, self.moved, self.evicted]
    }

    fn is_alive(&self, entry: &Entry, now: Nanos) -> bool {
        entry.seen.is_some_and(|seen| now.0.saturating_sub(seen.0) < self.ageing)
    }

    fn fixed_to(&self, mac: Mac) -> Option<u16> {
        let at = self.fixed.binary_search_by_key(&mac, |(mac, _)| *mac).ok()?;
        self.fixed.get(at).map(|(_, to)| *to)
    }

    fn set(&self, mac: Mac) -> Option<usize> {
        // The length is a power of two, or 0.
        let mask = self.sets.len().checked_sub(1)?;
        Some(self.key.hash(&mac) as usize & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([1, 2]);
    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn what_was_seen_is_known_until_it_is_silent_for_too_long() {
        let mut fdb = Fdb::new(KEY, 8, 100, &[]);
        assert_eq!(fdb.lookup(A, Nanos(0)), Destination::Flood);
        fdb.learn(A, 3, Nanos(0));
        assert_eq!(fdb.lookup(A, Nanos(99)), Destination::Remote(3));
        assert_eq!(fdb.lookup(A, Nanos(100)), Destination::Flood);
        fdb.learn(A, 3, Nanos(100));
        fdb.learn(A, 4, Nanos(120));
        assert_eq!((fdb.lookup(A, Nanos(150)), fdb.counts()), (Destination::Remote(4), [1, 1, 0]));
    }

    #[test]
    fn groups_flood_and_are_no_ones_address() {
        let mut fdb = Fdb::new(KEY, 8, 100, &[]);
        for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
            fdb.learn(mac, 1, Nanos(0));
            assert_eq!(fdb.lookup(mac, Nanos(0)), Destination::Flood);
        }
        fdb.learn([0; 6], 1, Nanos(0));
        assert_eq!((fdb.lookup([0; 6], Nanos(0)), fdb.counts()), (Destination::Flood, [0, 0, 0]));
    }

    #[test]
    fn a_fixed_entry_is_not_taken_over() {
        let mut fdb = Fdb::new(KEY, 8, 100, &[(B, 7), (A, 5), (A, 6)]);
        fdb.learn(A, 1, Nanos(0));
        assert_eq!(
            (fdb.lookup(A, Nanos(500)), fdb.lookup(B, Nanos(500))),
            (Destination::Remote(5), Destination::Remote(7))
        );
    }

    #[test]
    fn a_table_without_room_learns_nothing() {
        let mut fdb = Fdb::new(KEY, 0, 100, &[(A, 1)]);
        fdb.learn(B, 1, Nanos(0));
        assert_eq!((fdb.lookup(A, Nanos(0)), fdb.lookup(B, Nanos(0))), (Destination::Remote(1), Destination::Flood));
    }

    /// Tests that a full set gives up the address that was silent for longest, and that one whose ageing time is over
    /// is not counted as evicted.
    #[test]
    fn a_full_set_gives_up_its_oldest_address() {
        use Destination::{Flood, Remote};
        let mac = |last: u8| [2, 0, 0, 0, 0, last];
        let mut fdb = Fdb::new(KEY, SET_LEN, 100, &[]);
        for (last, now) in [(1, 0), (2, 10), (3, 20), (4, 30), (1, 40)] {
            fdb.learn(mac(last), last.into(), Nanos(now));
        }
        assert_eq!(fdb.counts(), [4, 0, 0]);
        // 2 was silent for 99, and goes while it is known; then 3 does, whose time is over.
        fdb.learn(mac(5), 5, Nanos(109));
        assert_eq!(fdb.counts(), [5, 0, 1]);
        fdb.learn(mac(6), 6, Nanos(120));
        assert_eq!(fdb.counts(), [6, 0, 1]);
        let found = [1, 2, 3, 4, 5, 6, 7].map(|last| fdb.lookup(mac(last), Nanos(120)));
        assert_eq!(found, [Remote(1), Flood, Flood, Remote(4), Remote(5), Remote(6), Flood]);
        for (entries, sets) in [(1, 1), (4, 1), (5, 2), (8, 2), (9, 4), (64, 16)] {
            assert_eq!(Fdb::new(KEY, entries, 100, &[]).sets.len(), sets, "{entries}");
        }
    }

    #[test]
    fn a_flood_of_addresses_neither_grows_the_table_nor_loses_the_newest() {
        let mut fdb = Fdb::new(KEY, 64, u64::MAX, &[(A, 1)]);
        for n in 0..100_000_u32 {
            let [_, _, c, d] = n.to_be_bytes();
            let mac = [2, 9, 9, (n >> 16) as u8, c, d];
            fdb.learn(mac, 2, Nanos(u64::from(n)));
            assert_eq!(fdb.lookup(mac, Nanos(u64::from(n))), Destination::Remote(2));
        }
        assert_eq!(fdb.sets.len() * SET_LEN, 64);
        assert_eq!(fdb.lookup(A, Nanos(0)), Destination::Remote(1));
        assert!(fdb.counts()[2] >= 100_000 - 64);
    }

    #[test]
    fn addresses_are_spread_over_the_sets() {
        let mac = |last: u8| [2, 0, 0, 0, 0, last];
        let mut fdb = Fdb::new(KEY, 1024, 100, &[]);
        (0..32).for_each(|last| fdb.learn(mac(last), last.into(), Nanos(0)));
        assert_eq!(fdb.counts(), [32, 0, 0]);
        assert!((0..32).all(|last| fdb.lookup(mac(last), Nanos(1)) == Destination::Remote(last.into())));
    }
}
