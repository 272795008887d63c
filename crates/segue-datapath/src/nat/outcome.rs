//! Outcomes of a translation.

segue::reasons! {
    /// Reason why a packet was not translated and must not be forwarded.
    pub enum Refusal {
        NotV4 = "nat_not_ipv4": "It is no IPv4 packet.",
        Malformed = "nat_malformed": "Its headers are cut off.",
        Fragment = "nat_fragment": "A fragment whose first part did not come, or too many such; or an error about one.",
        TinyFragment = "nat_tiny_fragment": "A first fragment that ends before its ports and checksum.",
        Protocol = "nat_protocol": "A protocol, or a kind of ICMP message, that has no port or identifier.",
        NoMapping = "nat_no_mapping": "It comes from outside to a port that nobody inside uses.",
        Full = "nat_full": "The table is full.",
        HostFull = "nat_host_full": "Its sender has as many mappings as one may have.",
        Ports = "nat_ports": "No outside port is free.",
        Memory = "nat_memory": "There is no buffer for a rewritten ICMP message or fragment.",
    }
}

/// What a translation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The packet was translated.
    Translated,
    /// The packet was translated twice, is for a host inside, and has to be routed again.
    Hairpin,
    /// The packet is not for the outside address and is unchanged.
    Untouched,
    /// A fragment that arrived before the first one of its datagram; it is unchanged, and to be tried again after that.
    FirstMissing,
}
