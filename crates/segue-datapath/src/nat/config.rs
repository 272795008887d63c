//! What a translator is configured with.

use std::net::Ipv4Addr;

/// What has ports, or identifiers that serve as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Queries of ICMP, by their identifier.
    Icmp,
}

/// How long mappings live without packets, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP; at least two minutes (RFC 4787 REQ-5).
    pub udp: u64,
    /// TCP connections that are open (RFC 5382 REQ-5: at least 2 hours and 4 minutes).
    pub tcp_open: u64,
    /// TCP connections that are being opened or closed (the same: at least 4 minutes).
    pub tcp_transitory: u64,
    /// ICMP queries (RFC 5508 REQ-2: at least 60 seconds).
    pub icmp: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { udp: 300 * SECOND, tcp_open: 7440 * SECOND, tcp_transitory: 240 * SECOND, icmp: 60 * SECOND }
    }
}

/// What a translator is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address that those outside see.
    pub address: Ipv4Addr,
    /// First and last of the outside ports and identifiers that are given out.
    pub ports: (u16, u16),
    /// Most mappings.
    pub most: usize,
    /// Most mappings of one inside host.
    pub most_per_host: usize,
    /// When mappings end.
    pub timeouts: Timeouts,
    /// Where the search for a free port begins; should be random.
    pub seed: u64,
}

impl Config {
    /// 65536 mappings, 8192 for each host, ports from 1024 on.
    pub fn new(address: Ipv4Addr, seed: u64) -> Config {
        let (most, most_per_host) = (65_536, 8192);
        Config { address, ports: (1024, 65_535), most, most_per_host, timeouts: Timeouts::default(), seed }
    }
}
