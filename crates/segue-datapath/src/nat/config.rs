//! Configuration of a NAT.

use std::net::Ipv4Addr;

/// Protocols with ports, or with identifiers that serve as ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP ports are translated.
    Tcp,
    /// UDP ports are translated.
    Udp,
    /// ICMP queries, by their identifier.
    Icmp,
}

/// Time after which mappings without packets end, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP mappings: at least two minutes (RFC 4787, REQ-5).
    pub udp: u64,
    /// TCP mappings with an open connection: at least 2 hours and 4 minutes (RFC 5382, REQ-5).
    pub tcp_open: u64,
    /// TCP mappings whose connections are all being opened or closed: at least 4 minutes (RFC 5382, REQ-5).
    pub tcp_transitory: u64,
    /// ICMP query mappings: at least 60 seconds (RFC 5508, REQ-2).
    pub icmp: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { udp: 300 * SECOND, tcp_open: 7440 * SECOND, tcp_transitory: 240 * SECOND, icmp: 60 * SECOND }
    }
}

/// Configuration of a NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The NAT's outside address.
    pub address: Ipv4Addr,
    /// First and last outside port or identifier that is allocated.
    pub ports: (u16, u16),
    /// Largest number of mappings altogether.
    pub most: usize,
    /// Largest number of mappings of one inside host.
    pub most_per_host: usize,
    /// Times after which mappings end.
    pub timeouts: Timeouts,
    /// Seed of the search for a free port; should be random.
    pub seed: u64,
}

impl Config {
    /// Returns the defaults: 65536 mappings, 8192 for each host, ports from 1024 on.
    pub fn new(address: Ipv4Addr, seed: u64) -> Config {
        let (most, most_per_host) = (65_536, 8192);
        Config { address, ports: (1024, 65_535), most, most_per_host, timeouts: Timeouts::default(), seed }
    }
}
