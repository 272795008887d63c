//! Random numbers for the choice of ports and identifications.

use segue::hash::Key;

/// A generator of pseudo-random numbers: a keyed hash of their index, so that those that a host sees do not tell the
/// next ones.
#[derive(Debug)]
pub(super) struct Random {
    key: Key,
    index: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { key: Key([seed, !seed]), index: 0 }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.index = self.index.wrapping_add(1);
        self.key.hash(&self.index.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_the_keyed_hash_of_its_index() {
        let mut random = Random::new(77);
        let numbers = [(); 3].map(|()| random.number());
        assert_eq!(numbers, [1_u64, 2, 3].map(|index| Key([77, !77]).hash(&index.to_le_bytes())));
        assert_ne!(numbers, [(); 3].map(|()| random.number()));
    }
}
