//! Reasons why the tunnel pipeline drops packets.

segue::reasons! {
    /// Reason why the tunnel pipeline dropped a packet, besides those of encapsulation, decapsulation and ports.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        PathMtu = "path_mtu": "A packet that exceeds the path MTU; its sender was told by ICMP.",
        Codel = "codel": "It waited for longer than the target of CoDel, and its loss slows its sender down.",
        NoRemote = "no_remote": "A frame to a group or an unknown address, and no remote gets such frames.",
        FloodFull = "flood_full": "A copy of a frame to several remotes, while too many packets wait for the socket.",
        ProbeUnasked = "probe_unasked": "An answer to a probe that was not asked, was answered already or is too late.",
        ProbeLimit = "probe_limit": "A probe of the other end beyond the rate at which it is answered, or whose answer the port does not take.",
    }
}
