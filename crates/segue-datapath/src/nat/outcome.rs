//! Outcomes of a NAT translation.

segue::reasons! {
    /// Reason why a packet was not translated and must not be forwarded.
    pub enum Refusal {
        NotV4 = "nat_not_ipv4": "The packet is not IPv4.",
        Malformed = "nat_malformed": "The headers are truncated.",
        Fragment = "nat_fragment": "A fragment without its first one, one too many to keep, or an ICMP error about one.",
        TinyFragment = "nat_tiny_fragment": "A first fragment that ends before its ports and checksum.",
        Protocol = "nat_protocol": "A protocol without ports, or an ICMP type without identifier.",
        NoMapping = "nat_no_mapping": "An inbound packet or a reset without a mapping; an ICMP query from outside or reply from inside.",
        Full = "nat_full": "The table of mappings is full.",
        HostFull = "nat_host_full": "The sender has as many mappings as one host may have.",
        Ports = "nat_ports": "No outside port is free.",
        Memory = "nat_memory": "No buffer is free for a rewritten ICMP message or fragment.",
    }
}

/// The result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The packet was translated.
    Translated,
    /// The packet was translated twice, is for a host inside, and has to be routed again.
    Hairpin,
    /// The packet is not for the outside address and is unchanged.
    Untouched,
    /// A fragment that arrived before the first one of its datagram; it is unchanged, and must be retried after that
    /// one.
    FirstMissing,
}
