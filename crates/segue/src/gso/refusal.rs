//! The reasons why a packet or train cannot be split.

crate::reasons! {
    /// The reason why a packet or train cannot be segmented or completed. Nothing of it was sent.
    pub enum Refusal {
        Transport = "gso_no_transport": "A train or a partial transport checksum without a TCP or UDP header.",
        Fragment = "gso_fragment": "A train or a partial transport checksum in an IP fragment.",
        Kind = "gso_kind": "A TCP train with a UDP header, or the reverse.",
        Size = "gso_size_zero": "A train whose segments would be empty.",
        Segments = "gso_too_many_segments": "A train of more than 65535 segments.",
        SynRst = "gso_syn_rst": "A TCP train with SYN or RST.",
        Length = "gso_too_long": "A segment longer than an IP length field can say.",
        Routing = "gso_routing": "An unfinished source route, a routing header with segments left, or a home address option: the checksum covers an address that is not in the fixed header.",
        Levels = "gso_levels": "Checksum states that do not fit the tunnel headers.",
        Layout = "gso_layout": "A layout that does not fit the headers.",
        Train = "gso_train": "A train where a single packet is expected.",
        Full = "gso_arena_full": "The arena would exceed 4 GiB.",
        TooBig = "gso_too_big": "A packet or a segment longer than the MTU that may not be fragmented here.",
        DontFragment = "gso_dont_fragment": "An IPv4 packet longer than the MTU that says: don't fragment.",
        Tiny = "gso_tiny_mtu": "An MTU that leaves no room for the first fragment, which holds all headers.",
        Overlap = "gso_fragment_overlap": "A TCP fragment that begins inside the TCP header of another.",
        Ragged = "gso_fragment_ragged": "A fragment before the last whose length is no multiple of 8.",
        Trailing = "gso_trailing": "Bytes after the inner packet of a packet to be fragmented, or of one whose checksum is left to a device.",
        Sequence = "gso_gre_sequence": "A packet to be fragmented under a GRE sequence number, of which it has only one.",
        Unverified = "gso_outer_unknown": "A packet to be fragmented whose outer checksum was not verified.",
        IpChecksum = "gso_ip_checksum": "A packet to be fragmented with a wrong IPv4 header checksum, which would leave as a right one.",
    }
}
