//! The flow hash: the same for all packets of an inner flow, unpredictable without the key.

use super::inner::Inner;

/// SipHash-1-3 (Aumasson, Bernstein 2012, with the round counts that hash tables use) over 64-bit words.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowHash {
    k0: u64,
    k1: u64,
}

impl FlowHash {
    pub(super) fn new(seed: [u8; 16]) -> FlowHash {
        let (k0, k1) = seed.split_at(8);
        let word = |half: &[u8]| half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        FlowHash { k0: word(k0), k1: word(k1) }
    }

    /// Returns the hash of a packet's flow: addresses, protocol and ports if it has ports, otherwise addresses alone.
    pub(super) fn of(&self, inner: &Inner) -> u64 {
        let ports = inner.ports.map_or(0, |(protocol, ports)| u64::from(protocol) << 32 | u64::from(ports));
        let mut words = [0; 5];
        // Addresses are 8, 16 or 32 bytes.
        for (word, half) in words.iter_mut().zip(inner.addresses().as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*half);
        }
        let used = inner.addresses().len() / 8;
        words[used] = ports;
        self.words(&words[..=used])
    }

    fn words(&self, words: &[u64]) -> u64 {
        let mut v = [
            self.k0 ^ 0x736f_6d65_7073_6575,
            self.k1 ^ 0x646f_7261_6e64_6f6d,
            self.k0 ^ 0x6c79_6765_6e65_7261,
            self.k1 ^ 0x7465_6462_7974_6573,
        ];
        let length = (words.len() as u64 * 8) << 56;
        for &word in words.iter().chain([&length]) {
            v[3] ^= word;
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        for _ in 0..3 {
            round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    #[test]
    fn the_hash_is_siphash_1_3() {
        // The standard library's hasher is SipHash-1-3 with a key of zeros.
        let words = [0x0123_4567_89ab_cdef, u64::MAX, 0, 42, 0x8000_0000_0000_0001];
        for n in 0..=words.len() {
            let mut reference = DefaultHasher::new();
            for word in &words[..n] {
                reference.write(&word.to_le_bytes());
            }
            assert_eq!(FlowHash::new([0; 16]).words(&words[..n]), reference.finish(), "{n} words");
        }
    }

    #[test]
    fn every_byte_of_the_seed_counts() {
        let plain = FlowHash::new([0; 16]).words(&[1, 2]);
        for at in 0..16 {
            let mut seed = [0; 16];
            seed[at] = 1;
            assert_ne!(FlowHash::new(seed).words(&[1, 2]), plain, "byte {at}");
        }
    }
}
