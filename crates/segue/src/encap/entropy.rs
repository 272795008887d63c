//! The flow hash: the same for all packets of an inner flow, unpredictable without the key.

use super::fragments::FragmentFlows;
use super::inner::Inner;
use crate::packet::Packet;

/// The flows of packets or frames, as hashes that no sender can choose without the seed.
///
/// A flow is what has the same addresses, protocol and ports. Fragments behind the first one have no ports, and get the
/// hash of the first one of their packet, as long as it is among the last 64 fragmented packets.
#[derive(Clone, Debug)]
pub struct Flows {
    hash: FlowHash,
    fragments: FragmentFlows,
}

impl Flows {
    /// Creates the flows of a random `seed`.
    pub fn new(seed: [u8; 16]) -> Flows {
        Flows { hash: FlowHash::new(seed), fragments: FragmentFlows::default() }
    }

    /// Returns the flow of a packet whose layout starts at its IP or Ethernet header. The ports are those behind the
    /// outermost IP header, since of a train in a tunnel and the packet behind it only the train may have been parsed
    /// further inside. A frame without IP has its Ethernet header instead.
    ///
    /// # Examples
    /// ```
    /// use segue::encap::Flows;
    /// use segue::packet::{Frag, Packet, Start, Tunnels};
    ///
    /// let mut flows = Flows::new([7; 16]);
    /// let mut of = |id: u8, flags: u8, offset: u8| {
    ///     let header = [0x45, 0, 0, 28, 0, id, flags, offset, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ///     let mut packet = Packet::default();
    ///     packet.load(Frag::all([&header[..], &[0, 9, 0, 9, 0, 16, 0, 0]].concat()), Start::Ip, &Tunnels::NONE);
    ///     flows.of(&packet)
    /// };
    /// let first = of(1, 0x20, 0);
    /// assert_eq!(of(1, 0, 1), first);
    /// assert_ne!(of(2, 0, 1), first);
    /// ```
    pub fn of<B: AsRef<[u8]>>(&mut self, packet: &Packet<B>) -> u64 {
        Inner::of_frame(packet).map_or(0, |inner| self.of_inner(&inner))
    }

    /// Returns the flow of a packet with this IP header.
    #[inline]
    pub(super) fn of_inner(&mut self, inner: &Inner) -> u64 {
        let hash = self.hash.of(inner);
        match inner.fragment {
            Some(fragment) => {
                let key = self.hash.of_fragmented(inner, fragment.id);
                self.fragments.follow(key, hash, fragment.is_first)
            }
            None => hash,
        }
    }
}

/// SipHash-1-3 (Aumasson, Bernstein 2012, with the round counts that hash tables use) over 64-bit words.
#[derive(Clone, Copy, Debug)]
struct FlowHash {
    k0: u64,
    k1: u64,
}

impl FlowHash {
    fn new(seed: [u8; 16]) -> FlowHash {
        let (k0, k1) = seed.split_at(8);
        let word = |half: &[u8]| half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        FlowHash { k0: word(k0), k1: word(k1) }
    }

    /// Returns the hash of a packet's flow: addresses, protocol and ports if it has ports, otherwise addresses alone.
    fn of(&self, inner: &Inner) -> u64 {
        self.between(inner, inner.ports.map_or(0, |(protocol, ports)| u64::from(protocol) << 32 | u64::from(ports)))
    }

    /// Returns the key of the packet that a fragment with this identification belongs to.
    fn of_fragmented(&self, inner: &Inner, id: u64) -> u64 {
        // No word of ports has this bit.
        self.between(inner, id | 1 << 63)
    }

    /// Returns the hash of a packet's addresses and another word.
    fn between(&self, inner: &Inner, last: u64) -> u64 {
        let mut words = [0; 5];
        // Addresses are 8, 16 or 32 bytes.
        for (word, half) in words.iter_mut().zip(inner.addresses().as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*half);
        }
        let used = inner.addresses().len() / 8;
        words[used] = last;
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

    /// Tests the keyed hash against that of the engine's tables, which is written on its own.
    #[test]
    fn the_hash_is_that_of_its_key() {
        let words = [0x0123_4567_89ab_cdef, u64::MAX, 0, 42, 0x8000_0000_0000_0001];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for keys in [[u64::MAX; 2], [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], [1, u64::MAX << 32]] {
            let mut seed = [0; 16];
            for (part, key) in seed.chunks_mut(8).zip(keys) {
                part.copy_from_slice(&key.to_le_bytes());
            }
            for n in 0..=words.len() {
                let expected = crate::hash::Key(keys).hash(&bytes[..8 * n]);
                assert_eq!(FlowHash::new(seed).words(&words[..n]), expected, "{keys:x?}, {n} words");
            }
        }
    }

    /// Tests that the words of a flow are its addresses, protocol and ports.
    #[test]
    fn the_hash_of_a_packet_is_that_of_its_flow() {
        let hash = FlowHash::new([9; 16]);
        let mut v4 = Inner::read(&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]).unwrap();
        let mut bytes = [0; 40];
        bytes[0] = 0x60;
        (8..40).for_each(|at| bytes[at] = at as u8);
        let mut v6 = Inner::read(&bytes).unwrap();
        let v6_words = [0x0809_0a0b_0c0d_0e0f, 0x1011_1213_1415_1617, 0x1819_1a1b_1c1d_1e1f, 0x2021_2223_2425_2627];
        for (ports, word) in [(None, 0), (Some((6, 0x1234_5678)), 0x0006_1234_5678), (Some((17, 1)), 0x0011_0000_0001)]
        {
            (v4.ports, v6.ports) = (ports, ports);
            assert_eq!(hash.of(&v4), hash.words(&[0xc612_0001_c612_0002, word]), "{ports:?}");
            let [a, b, c, d] = v6_words;
            assert_eq!(hash.of(&v6), hash.words(&[a, b, c, d, word]), "{ports:?}");
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
