//! The configuration in the form that the fast path reads.

use super::config::Config;
use super::profile::Profile;
use crate::wire::tcp;

/// Limits and rules of the configuration in the form that the fast path reads.
#[derive(Debug)]
pub(super) struct FastPathRules {
    /// TCP flags that send a packet to the slow path.
    pub(super) slow_path_flags: u8,
    /// A checksum that splitting would not restore; a value above 16 bits if there is none.
    pub(super) ones: u32,
    pub(super) is_lro: bool,
    /// Largest number of segments of a TCP train, and its largest length in bytes from the IP header.
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
