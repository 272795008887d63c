//! What the configuration says, prepared for the fast path.

use super::config::Config;
use super::profile::Profile;
use crate::wire::tcp;

/// What the profile says, made ready.
#[derive(Debug)]
pub(super) struct FastPathRules {
    /// TCP flags with which a packet goes the long way.
    pub(super) slow_path_flags: u8,
    /// A checksum that would not be restored; no 16-bit value where there is none.
    pub(super) ones: u32,
    pub(super) is_lro: bool,
    /// Most segments of a train, and most bytes from its IP header.
    pub(super) tcp: (u32, usize),
    pub(super) udp: (u32, usize),
}

impl FastPathRules {
    pub(super) fn new(config: &Config) -> FastPathRules {
        let profile = config.profile;
        let cwr = if profile.joins_cwr() { 0 } else { tcp::CWR };
        FastPathRules {
            slow_path_flags: tcp::SYN | tcp::RST | tcp::URG | cwr,
            ones: if profile == Profile::Strict { 0xffff } else { u32::MAX },
            is_lro: profile == Profile::Lro,
            tcp: (config.most(true), config.limit(true)),
            udp: (config.most(false), config.limit(false)),
        }
    }
}
