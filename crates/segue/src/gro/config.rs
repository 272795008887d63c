//! Limits and rules of GRO.

use super::profile::Profile;
use crate::gso::MAX_SEGS;
use crate::hash;
use crate::packet::Tunnels;

/// Most bytes of a train, whatever the configuration says: what Linux lets a device take.
pub const MAX_TRAIN_BYTES: usize = 8 * 65_535;
/// Most bytes of a train that is no plain TCP, from its outermost IP header: what a length field can say.
const MAX_IP_BYTES: usize = 65_535;

/// Limits and rules of one [`Gro`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whose rules decide.
    pub profile: Profile,
    /// Largest train, in bytes from its outermost IP header. Default 65535.
    ///
    /// Up to [`MAX_TRAIN_BYTES`], but over 65535 only for TCP outside tunnels: a train over that has a length field of zero,
    /// which not every port takes.
    pub max_bytes: usize,
    /// Most packets of a TCP train, up to 65535; below 2 nothing is joined. Default 1000.
    pub max_packets: usize,
    /// Most datagrams of a UDP train; below 2 nothing is joined. Default 64, what every kernel with USO takes.
    pub max_udp_packets: usize,
    /// Most flows held at a time, 1 to 65535. Default 256. Memory is taken once, when the table is made.
    pub max_flows: usize,
    /// Most packets held at a time, all flows together, at least 1. Default 8192. What is over that leaves at once, the oldest
    /// train first: a bound on the buffers that are kept from their owner, for when more comes in a round than was thought.
    pub max_held_packets: usize,
    /// Longest time that a packet is held, in nanoseconds. With 0, the default, everything is due at the next
    /// [`Gro::expire`] or [`Gro::flush`], which a poll loop calls at the end of each round.
    pub hold: u64,
    /// Whether pure acknowledgments collapse to the newest; only in [`Profile::Lro`]. Off by default.
    pub acks: bool,
    /// Most acknowledgments that one stands for, the one included; below 2 none is swallowed. Default 32. They are held no
    /// longer than [`Config::hold`], counted from the first.
    pub max_acks: usize,
    /// Key of the flow hash.
    pub key: hash::Key,
    /// Which UDP ports carry tunnels, for the frames that [`Gro::push_frame`] parses. None by default.
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
            hold: 0,
            acks: false,
            max_acks: 32,
            key: hash::Key([0x5e67_7565_0000_0001, 0x5e67_7565_0000_0002]),
            tunnels: Tunnels::NONE,
        }
    }
}

impl Config {
    /// Returns the same configuration with every limit brought into its range.
    pub(super) fn in_range(mut self) -> Config {
        self.max_bytes = self.max_bytes.min(MAX_TRAIN_BYTES);
        self.max_packets = self.max_packets.min(MAX_SEGS);
        self.max_flows = self.max_flows.clamp(1, 65535);
        self.max_held_packets = self.max_held_packets.max(1);
        self.acks &= self.profile == Profile::Lro;
        self
    }

    /// Most bytes of a train, from its outermost IP header.
    pub(super) fn limit(&self, may_be_jumbo: bool) -> usize {
        if may_be_jumbo { self.max_bytes } else { self.max_bytes.min(MAX_IP_BYTES) }
    }

    /// Most packets of a train of TCP or of UDP.
    pub(super) fn most(&self, is_tcp: bool) -> u32 {
        // The one is limited when this is made, and of the other there are never as many.
        let most = if is_tcp { self.max_packets } else { self.max_udp_packets };
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}
