//! A keyed hash (SipHash-1-3), so that an outside sender cannot choose which flows collide.

/// Key of the hash; random for each process, or fixed where a test needs the same result twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub [u64; 2]);

impl Key {
    /// Returns the SipHash-1-3 of `bytes` (Aumasson and Bernstein, "SipHash: a fast short-input PRF", with one
    /// compression round and three finalisation rounds, the form that hash tables use).
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let mut state = State::new(self.0);
        let words = bytes.chunks_exact(8);
        let mut last = (bytes.len() as u64) << 56;
        for (i, &byte) in words.remainder().iter().enumerate() {
            last |= u64::from(byte) << (8 * i);
        }
        for word in words {
            let mut le = [0; 8];
            le.copy_from_slice(word);
            state.absorb(u64::from_le_bytes(le));
        }
        state.absorb(last);
        state.finish()
    }
}

struct State([u64; 4]);

impl State {
    fn new([k0, k1]: [u64; 2]) -> State {
        State([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }

    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..3 {
            self.round();
        }
        self.0.iter().fold(0, |a, v| a ^ v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_standard_library_computes_with_a_zero_key() {
        use std::hash::Hasher;
        for len in 0..70_u8 {
            let bytes: Vec<u8> = (0..len).map(|b| b.wrapping_mul(37)).collect();
            let mut reference = std::collections::hash_map::DefaultHasher::new();
            reference.write(&bytes);
            assert_eq!(Key([0, 0]).hash(&bytes), reference.finish(), "{len} bytes");
        }
    }

    #[test]
    fn the_key_changes_the_hash() {
        assert_ne!(Key([1, 2]).hash(b"flow"), Key([1, 3]).hash(b"flow"));
    }
}
