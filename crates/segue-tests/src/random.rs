//! Pseudo-random content that a seed reproduces.

/// A SplitMix64 generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator that starts from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next 64 pseudo-random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next pseudo-random number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Fills `bytes` with pseudo-random bytes; two calls give the same bytes as one over both slices only if the first
    /// length is a multiple of 8.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns `len` pseudo-random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}
