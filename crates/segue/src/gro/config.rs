//! Limits and rules of GRO.

use super::profile::Profile;
use crate::gso::MAX_SEGS;
use crate::hash;
use crate::packet::Tunnels;
use crate::time::Nanos;

/// Upper limit of a train in bytes, whatever the configuration says: Linux's maximum for any device.
pub const MAX_TRAIN_BYTES: usize = 8 * 65_535;
/// Largest train in bytes from its outermost IP header that a 16-bit length field can express; the limit for all but
/// plain TCP.
const MAX_IP_BYTES: usize = 65_535;

/// Limits and rules of a [`Gro`](super::Gro).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The rules by which packets are joined.
    pub profile: Profile,
    /// Largest train, in bytes from its outermost IP header. Default 65535.
    ///
    /// At most [`MAX_TRAIN_BYTES`], but above 65535 only for TCP outside tunnels: a longer train has a length field of
    /// zero, which not every port accepts.
    pub max_bytes: usize,
    /// Largest number of packets in a TCP train, up to 65535; below 2 nothing is joined. Default 1000.
    pub max_packets: usize,
    /// Largest number of datagrams in a UDP train; below 2 nothing is joined. Default 64, which every kernel with USO
    /// accepts.
    pub max_udp_packets: usize,
    /// Largest number of flows held at a time, 1 to 65535. Default 256. Their memory is allocated once, when the table
    /// is made. Packets inside tunnels take about 1 kB more when the first of a form comes, for at most eight forms.
    pub max_flows: usize,
    /// Largest number of packets held at a time, of all flows together, at least 1. Default 8192. Beyond it the oldest
    /// train leaves at once: this bounds the buffers that are kept from their owner when a round brings more packets
    /// than expected.
    pub max_held_packets: usize,
    /// Longest time that a packet is held. With 0, the default, everything is due at the next
    /// [`Gro::expire`](super::Gro::expire) or [`Gro::flush`](super::Gro::flush), which a poll loop calls at the end of
    /// each round.
    pub hold: Nanos,
    /// Whether pure acknowledgments collapse to the newest; only in [`Profile::Lro`]. Off by default.
    pub acks: bool,
    /// Largest number of acknowledgments that collapse to one; below 2 none do. Default 32. They
    /// are held no longer than [`Config::hold`], counted from the first.
    pub max_acks: usize,
    /// Key of the flow hash. The default is a public constant: take a random one wherever packets come
    /// from strangers ([`Config::vpn`]).
    pub key: hash::Key,
    /// UDP ports that carry tunnels, for the frames that [`Gro::push_frame`](super::Gro::push_frame) parses. None by
    /// default.
    pub tunnels: Tunnels,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profile: Profile::Strict,
            max_bytes: MAX_IP_BYTES,
            max_packets: 1000,
            max_udp_packets: 64,
            max_flows: 256,
            max_held_packets: 8192,
            hold: Nanos::ZERO,
            acks: false,
            max_acks: 32,
            key: hash::Key([0x5e67_7565_0000_0001, 0x5e67_7565_0000_0002]),
            tunnels: Tunnels::NONE,
        }
    }
}

impl Config {
    /// Returns the configuration for decapsulated packets that are written to a TUN device: profile
    /// [`Profile::Strict`], by which the host cannot tell that packets were joined, and nothing held beyond the batch.
    ///
    /// `key` must be random, from the system's generator, and kept secret: with a known key a sender can choose flows
    /// that share one bucket of the table, and so keep all others from being joined.
    ///
    /// ```
    /// use segue::gro::{Config, Gro};
    /// use segue::hash::Key;
    ///
    /// let random = [1, 2]; // 16 bytes of getrandom(2)
    /// let mut gro: Gro<Vec<u8>> = Gro::new(Config::vpn(Key(random)));
    /// # gro.flush();
    /// ```
    pub fn vpn(key: hash::Key) -> Config {
        Config { key, ..Config::default() }
    }

    /// Returns the configuration with every limit clamped to its valid range.
    pub(super) fn in_range(mut self) -> Config {
        self.max_bytes = self.max_bytes.min(MAX_TRAIN_BYTES);
        self.max_packets = self.max_packets.min(MAX_SEGS);
        self.max_flows = self.max_flows.clamp(1, 65535);
        self.max_held_packets = self.max_held_packets.max(1);
        self.acks &= self.profile == Profile::Lro;
        self
    }

    /// Returns the largest train in bytes, from its outermost IP header.
    pub(super) fn limit(&self, may_be_jumbo: bool) -> usize {
        if may_be_jumbo { self.max_bytes } else { self.max_bytes.min(MAX_IP_BYTES) }
    }

    /// Returns the largest number of packets in a train of TCP or of UDP.
    pub(super) fn most(&self, is_tcp: bool) -> u32 {
        // `max_packets` was brought into range, and no train ever has as many datagrams as the cast could lose.
        let most = if is_tcp { self.max_packets } else { self.max_udp_packets };
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_out_of_range_are_brought_into_their_ranges_and_the_others_stay() {
        for (max_bytes, max_packets, max_flows, max_held_packets) in [
            (MAX_TRAIN_BYTES + 1, MAX_SEGS + 1, 65_536, 0),
            (MAX_TRAIN_BYTES, MAX_SEGS, 65_535, 1),
            (0, 0, 0, 2),
            (1, 1, 1, usize::MAX),
            (usize::MAX, usize::MAX, usize::MAX, 8192),
        ] {
            let config = Config { max_bytes, max_packets, max_flows, max_held_packets, ..Config::default() }.in_range();
            let found = (config.max_bytes, config.max_packets, config.max_flows, config.max_held_packets);
            let expected = (
                if max_bytes > 524_280 { 524_280 } else { max_bytes },
                if max_packets > 65_535 { 65_535 } else { max_packets },
                if max_flows == 0 { 1 } else { max_flows.min(65_535) },
                if max_held_packets == 0 { 1 } else { max_held_packets },
            );
            assert_eq!(found, expected);
        }
        for (profile, acks, expected) in [
            (Profile::Lro, true, true),
            (Profile::Lro, false, false),
            (Profile::Strict, true, false),
            (Profile::linux(), true, false),
        ] {
            assert_eq!(Config { profile, acks, ..Config::default() }.in_range().acks, expected, "{profile:?} {acks}");
        }
    }

    /// Tests that only trains of plain TCP are longer than a 16-bit length field says.
    #[test]
    fn trains_are_as_long_as_their_length_field_allows_and_of_as_many_packets_as_their_protocol() {
        for (max_bytes, jumbo, other) in
            [(9000, 9000, 9000), (65_535, 65_535, 65_535), (65_536, 65_536, 65_535), (200_000, 200_000, 65_535)]
        {
            let config = Config { max_bytes, ..Config::default() };
            assert_eq!((config.limit(true), config.limit(false)), (jumbo, other));
        }
        let config = Config { max_packets: 7, max_udp_packets: 5, ..Config::default() };
        assert_eq!((config.most(true), config.most(false)), (7, 5));
        assert_eq!(Config { max_udp_packets: usize::MAX, ..config }.most(false), u32::MAX);
        let vpn = Config::vpn(hash::Key([3, 4]));
        assert_eq!((vpn.key, vpn.profile, vpn.hold), (hash::Key([3, 4]), Profile::Strict, Nanos::ZERO));
    }
}
