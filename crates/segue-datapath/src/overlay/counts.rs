//! Reasons why packets of a tunnel with a peer table are dropped.

segue::reasons! {
    /// Reason why a tunnel with a peer table dropped a packet, besides those of encapsulation, decapsulation and ports.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        RemovedPeer = "removed_peer": "A packet to or from a peer that is no longer in the peer table; to one, its sender was told by ICMP.",
        NoRoute = "no_route": "A packet whose destination no peer of the table has; its sender was told by ICMP.",
        NoGroup = "no_group": "A packet to a multicast or broadcast address, which no peer of the table has.",
        PeerSource = "peer_source": "A packet from a peer with an inner source that the peer table does not give to that peer.",
        PeerNetwork = "peer_network": "A datagram of a network identifier that no peer of the table has, or not this one.",
        NotForUs = "not_for_us": "A frame whose Ethernet destination is not this end of the tunnel.",
        NotIp = "not_ip": "A packet that is not IP, in a tunnel whose interface carries IP.",
        FloodLimit = "flood_limit": "A frame for all peers of the zero address, beyond the limit of such copies.",
        FloodFull = "flood_full": "A copy of a frame for all peers of the zero address, while too many packets wait for the socket.",
        PathMtu = "path_mtu": "A packet that exceeds the path MTU; its sender was told by ICMP.",
        NoRoom = "no_room": "A packet with so many headers that there is no room for another one.",
    }
}
