//! An index of the table's slots by a key. Its memory follows the number of slots: unlike an open table, in which
//! deleted entries leave marks until it grows once more, after hours of new mappings for old ones.

use std::hash::{BuildHasher, Hash, RandomState};

/// Index that marks the end of a chain.
const NONE: u32 = u32::MAX;
/// Number of chains of the smallest index that is not empty.
const FEWEST: usize = 16;

/// Chains of the slots whose keys have the same hash; the slots hold the keys.
#[derive(Debug, Default)]
pub(crate) struct Index {
    hasher: RandomState,
    /// The first slot of each chain; their number is a power of two.
    heads: Vec<u32>,
    /// Of each slot, the hash of its key and the next slot of its chain.
    links: Vec<(u32, u32)>,
    len: usize,
}

impl Index {
    fn hash<K: Hash>(&self, key: &K) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn chain(&self, hash: u32) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// Returns the slot with this key, which `is_it` recognises.
    pub(crate) fn find<K: Hash>(&self, key: &K, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let wanted = self.hash(key);
        let mut at = self.heads.get(wanted as usize & self.heads.len().wrapping_sub(1)).copied()?;
        loop {
            let &(hash, next) = self.links.get(at as usize)?;
            if hash == wanted && is_it(at) {
                return Some(at);
            }
            at = next;
        }
    }

    /// Adds a slot, which must not be in the index.
    pub(crate) fn insert<K: Hash>(&mut self, key: &K, slot: u32) {
        if self.len == self.heads.len() {
            self.grow();
        }
        let hash = self.hash(key);
        let len = self.links.len().max(slot as usize + 1);
        self.links.resize(len, (0, NONE));
        self.link(hash, slot);
        self.len += 1;
    }

    /// Removes a slot, which must have been added with this key.
    pub(crate) fn remove<K: Hash>(&mut self, key: &K, slot: u32) {
        let chain = self.chain(self.hash(key));
        let Some(&(_, behind)) = self.links.get(slot as usize) else { return };
        let mut at = self.heads[chain];
        if at == slot {
            self.heads[chain] = behind;
        }
        while at != slot {
            let Some((_, next)) = self.links.get_mut(at as usize) else { return };
            if *next == slot {
                *next = behind;
                break;
            }
            at = *next;
        }
        self.len -= 1;
    }

    /// Removes all slots, and keeps the memory for others.
    pub(crate) fn clear(&mut self) {
        self.heads.fill(NONE);
        self.len = 0;
    }

    /// Returns whether no slot is in the index.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the numbers of chains and of links that there is memory for.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.heads.capacity(), self.links.capacity())
    }

    fn link(&mut self, hash: u32, slot: u32) {
        let chain = self.chain(hash);
        self.links[slot as usize] = (hash, self.heads[chain]);
        self.heads[chain] = slot;
    }

    /// Doubles the number of chains.
    fn grow(&mut self) {
        let more = (2 * self.heads.len()).max(FEWEST);
        for mut at in std::mem::replace(&mut self.heads, vec![NONE; more]) {
            while let Some(&(hash, next)) = self.links.get(at as usize) {
                self.link(hash, at);
                at = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Tests against a map of the standard library, with a tenth of the slots exchanged again and again.
    #[test]
    fn slots_are_found_by_their_keys_while_others_come_and_go() {
        let (mut index, mut keys, mut known) = (Index::default(), vec![0_u32; 1000], HashMap::new());
        assert_eq!(index.find(&7_u32, |_| true), None);
        for (round, slot) in (0..30).flat_map(|round| (0..1000_u32).map(move |slot| (round, slot))) {
            if round > 0 && (slot + round) % 10 != 0 {
                continue;
            }
            let old = keys[slot as usize];
            if round > 0 {
                index.remove(&old, slot);
                known.remove(&old);
            }
            let key = round * 1000 + slot + 1;
            keys[slot as usize] = key;
            index.insert(&key, slot);
            known.insert(key, slot);
            assert_eq!(index.find(&old, |slot| keys[slot as usize] == old), None);
        }
        for (key, slot) in &known {
            assert_eq!(index.find(key, |slot| keys[slot as usize] == *key), Some(*slot));
        }
        assert_eq!((index.len, index.heads.len(), index.links.len()), (1000, 1024, 1000));
    }

    #[test]
    fn a_slot_is_removed_from_the_middle_of_a_chain() {
        // More keys than chains: every chain is longer than one.
        let mut index = Index::default();
        (0..16).for_each(|slot| index.insert(&slot, slot));
        for slot in [5, 0, 15, 7] {
            index.remove(&slot, slot);
            assert_eq!(index.find(&slot, |at| at == slot), None);
        }
        let left = (0..16).filter(|slot| index.find(slot, |at| at == *slot).is_some());
        assert_eq!(left.count(), 12);
    }

    /// Tests that keys with the same hash of 32 bits, of which there are two among about 80,000, are told apart.
    #[test]
    fn keys_with_the_same_hash_are_told_apart_and_none_is_left_after_a_clear() {
        let (mut index, mut known) = (Index::default(), HashMap::new());
        let same = (0..u32::MAX).find_map(|key| known.insert(index.hash(&key), key).map(|before| (before, key)));
        let (one, other) = same.expect("there are more keys than hashes");
        assert!(other > 9, "hashes differ: {one} and {other}");
        index.insert(&one, 0);
        assert_eq!(index.find(&other, |slot| slot == 1), None);
        index.insert(&other, 1);
        for (key, slot) in [(one, 0), (other, 1)] {
            assert_eq!(index.find(&key, |at| at == slot), Some(slot));
        }
        index.clear();
        assert!(index.is_empty());
        assert_eq!([one, other].map(|key| index.find(&key, |_| true)), [None; 2]);
    }
}
