//! A map whose memory follows the largest number of entries that it has had.

use std::hash::Hash;

use super::index::Index;

/// A map from keys to values, each in a slot.
#[derive(Debug)]
pub(crate) struct SlotMap<K, V> {
    slots: Vec<Option<(K, V)>>,
    free: Vec<u32>,
    index: Index,
}

impl<K, V> Default for SlotMap<K, V> {
    fn default() -> Self {
        SlotMap { slots: Vec::new(), free: Vec::new(), index: Index::default() }
    }
}

impl<K: Copy + Eq + Hash, V> SlotMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the slot of a key. It does not change until the key is removed.
    pub(crate) fn slot(&self, key: &K) -> Option<u32> {
        let is_it = |slot: u32| matches!(self.slots.get(slot as usize), Some(Some((known, _))) if known == key);
        self.index.find(key, is_it)
    }

    /// Returns the entry in a slot.
    pub(crate) fn at(&self, slot: u32) -> Option<(&K, &V)> {
        self.slots.get(slot as usize)?.as_ref().map(|(key, value)| (key, value))
    }

    /// Returns the value of the entry in a slot.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.slots.get_mut(slot as usize)?.as_mut().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.at(self.slot(key)?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.at_mut(self.slot(key)?)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.slot(key).is_some()
    }

    /// Adds a key, or replaces its value. Returns the slot, and the value before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> (u32, Option<V>) {
        if let Some(slot) = self.slot(&key) {
            let before = self.slots[slot as usize].replace((key, value));
            return (slot, before.map(|(_, value)| value));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some((key, value));
        self.index.insert(&key, slot);
        (slot, None)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.remove_at(self.slot(key)?)
    }

    fn remove_at(&mut self, slot: u32) -> Option<V> {
        let (key, value) = self.slots.get_mut(slot as usize)?.take()?;
        self.index.remove(&key, slot);
        self.free.push(slot);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().flatten().map(|(key, value)| (key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.slots.iter_mut().flatten().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Removes the entries that are not to be kept.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&K, &V) -> bool) {
        for slot in 0..self.slots.len() as u32 {
            if self.at(slot).is_some_and(|(key, value)| !is_kept(key, value)) {
                self.remove_at(slot);
            }
        }
    }

    /// Removes all entries and keeps their memory for others.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.index.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Tests against the standard library's map, by operations that a sequence of numbers chooses.
    #[test]
    fn a_map_does_what_that_of_the_standard_library_does() {
        let (mut map, mut known, mut number) = (SlotMap::default(), HashMap::new(), 7_u64);
        for step in 0..20_000_u32 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (number >> 40) as u16 % 300;
            match number >> 60 {
                0..=8 => assert_eq!(map.insert(key, step).1, known.insert(key, step)),
                9..=13 => assert_eq!(map.remove(&key), known.remove(&key)),
                14 => {
                    let both = map.get_mut(&key).zip(known.get_mut(&key));
                    both.into_iter().for_each(|(value, other)| (*value, *other) = (step, step));
                }
                _ if step % 64 == 0 => {
                    map.retain(|one, _| one % 3 != key % 3);
                    known.retain(|one, _| one % 3 != key % 3);
                }
                _ => assert_eq!(map.get(&key), known.get(&key)),
            }
            assert_eq!((map.len(), map.contains_key(&key)), (known.len(), known.contains_key(&key)));
        }
        let sorted = |mut pairs: Vec<(u16, u32)>| {
            pairs.sort_unstable();
            pairs
        };
        assert_eq!(
            sorted(map.iter().map(|(key, value)| (*key, *value)).collect()),
            sorted(known.into_iter().collect()),
        );
        map.clear();
        assert!(map.is_empty() && map.keys().next().is_none() && map.iter_mut().next().is_none());
        assert_eq!([0, 7, 299].map(|key| map.get(&key)), [None; 3]);
        assert_eq!((map.insert(7, 1), map.insert(8, 2), map.get(&7), map.len()), ((0, None), (1, None), Some(&1), 2));
    }

    /// Tests that entries that come for others that go need no more memory, however long that goes on.
    #[test]
    fn new_entries_for_old_ones_take_no_more_memory() {
        let mut map = SlotMap::default();
        (0..1000_u32).for_each(|key| _ = map.insert(key, ()));
        let sizes = |map: &SlotMap<u32, ()>| (map.slots.capacity(), map.free.capacity(), map.index.sizes());
        map.remove(&0);
        map.insert(0, ());
        let before = sizes(&map);
        for key in 0..200_000_u32 {
            let slot = map.slot(&(key + 1));
            map.remove(&key);
            assert_eq!((map.slot(&(key + 1)), map.insert(key + 1000, ()).1), (slot, None));
        }
        assert_eq!((map.len(), sizes(&map)), (1000, before));
    }

    #[test]
    fn all_keys_are_walked_and_values_change_in_their_places() {
        let mut map = SlotMap::default();
        (0..5_u8).for_each(|key| _ = map.insert(key, 10 * key));
        map.remove(&2);
        map.iter_mut().for_each(|(key, value)| *value += key);
        assert_eq!(map.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
        let values = [0, 1, 2, 3, 4].map(|key| map.get(&key).copied());
        assert_eq!(values, [Some(0), Some(11), None, Some(33), Some(44)]);
    }
}
