//! Layout of the maps that the programs and this crate share, and of the kernel's `struct __sk_buff`.

use crate::wire::ethernet;

/// Length of the longest outer headers, in whole words: IPv6, UDP, VXLAN and an inner Ethernet header in front of a
/// packet that has none. That of a frame is not part of them.
pub(crate) const HEADERS_LEN: usize = 72;
/// Number of source ports in [`tunnel`]; a power of two.
pub(crate) const PORTS: usize = 16;

/// Length of an Ethernet header (`ETH_HLEN`).
pub(crate) const ETHERNET_LEN: i16 = ethernet::LEN;

/// Fields of the settings map's only value.
pub(crate) mod settings {
    /// Whether the programs take packets: 0 leaves all to the daemon. 32 bits.
    pub(crate) const ENABLED: i16 = 0;
    /// Index of the interface of a tunnel with a peer table, 32 bits.
    pub(crate) const INTERFACE: i16 = 4;
    /// Millisecond in which a packet that would be dropped last went to the daemon, 64 bits; the programs write it.
    pub(crate) const PASSED: i16 = 8;
    pub(crate) const LEN: usize = 16;
}

/// Marks that the programs set when they remember the first flow that is left to the daemon, 32 bits each.
pub(crate) mod marks {
    pub(crate) const SENT: i32 = 0;
    pub(crate) const RECEIVED: i32 = 4;
    pub(crate) const LEN: usize = 8;
}

/// Fields of the values in the map of tunnels by interface and in the maps of peers by inner addresses.
pub(crate) mod tunnel {
    use super::{HEADERS_LEN, PORTS};

    /// Flags of `bpf_skb_adjust_room`, 64 bits.
    pub(crate) const ROOM: i16 = 0;
    /// Flags of the tunnel, 32 bits.
    pub(crate) const FLAGS: i16 = 8;
    /// Length of the outer headers, 32 bits.
    pub(crate) const HEADER_LEN: i16 = 12;
    /// Index of the interface towards the remote; 0 where there is no route. 32 bits.
    pub(crate) const LINK: i16 = 16;
    /// Path MTU towards the remote, 32 bits.
    pub(crate) const MTU: i16 = 20;
    /// Index of the tunnel's counters, 32 bits.
    pub(crate) const COUNTERS: i16 = 24;
    /// Outer DSCP, unless inherited, 8 bits.
    pub(crate) const TOS: i16 = 28;
    /// Outer TTL, unless inherited, 8 bits.
    pub(crate) const TTL: i16 = 29;
    /// Outer address of the peer, 4 or 16 bytes; in a peer table.
    pub(crate) const REMOTE: i16 = 32;
    /// Second word of the VXLAN headers that the peer may send; in a peer table.
    pub(crate) const NETWORK: i16 = 48;
    /// Index of the peer's own counters, 32 bits; in a peer table.
    pub(crate) const SLOT: i16 = 52;
    /// Outer headers of a packet with IPv4 inside.
    pub(crate) const HEADERS_4: i16 = 56;
    /// Outer headers of a packet with IPv6 inside.
    pub(crate) const HEADERS_6: i16 = HEADERS_4 + HEADERS_LEN as i16;
    /// Source ports in network byte order.
    pub(crate) const SOURCES: i16 = HEADERS_6 + HEADERS_LEN as i16;
    /// Address of the tunnel's interface where frames are inside and the interface is no port of a bridge, otherwise 0.
    pub(crate) const ADDRESS: i16 = SOURCES + 2 * PORTS as i16;
    pub(crate) const LEN: usize = ADDRESS as usize + 8;

    pub(crate) const TAKES_4: i32 = 1;
    pub(crate) const TAKES_6: i32 = 2;
    pub(crate) const INHERITS_TOS: i32 = 4;
    pub(crate) const INHERITS_TTL: i32 = 8;
    pub(crate) const SETS_DF: i32 = 16;
    pub(crate) const INHERITS_DF: i32 = 32;
    /// Flag: the daemon handles all packets to and from this peer.
    pub(crate) const BY_DAEMON: i32 = 64;
}

/// Fields of a value in the map of prefix lengths. The values form a list from the longest length to the shortest; the
/// length of a whole address comes first and is always there.
pub(crate) mod length {
    /// The next shorter length of the list, 32 bits; [`END`] at its end.
    pub(crate) const NEXT: i16 = 0;
    /// The mask of the length, of 4 or 16 bytes.
    pub(crate) const MASK: i16 = 8;
    pub(crate) const LEN: usize = MASK as usize + 16;

    /// Length number that marks the end of the list.
    pub(crate) const END: u32 = u32::MAX;
}

/// Fields of the key in the map of tunnels by packet.
pub(crate) mod peer {
    /// The kind of the identity: a protocol number, [`GRE`], [`GRE_KEY`] or [`NETWORK`]. 32 bits.
    pub(crate) const KIND: i16 = 0;
    /// The GRE key, or the second word of the VXLAN or Geneve header, or 0. 32 bits.
    pub(crate) const KEY: i16 = 4;
    /// The outer source address: 4 or 16 bytes.
    pub(crate) const ADDRESS: i16 = 8;

    pub(crate) const GRE: u32 = 0x100;
    pub(crate) const GRE_KEY: u32 = 0x101;
    pub(crate) const NETWORK: u32 = 0x102;

    /// Returns the length of a key.
    pub(crate) fn len(is_v4: bool) -> usize {
        ADDRESS as usize + if is_v4 { 4 } else { 16 }
    }
}

/// Fields of the per-CPU values in the map of tunnels by packet: all that a received packet needs is in one cache line.
pub(crate) mod inbound {
    /// Index of the tunnel's interface, 32 bits.
    pub(crate) const INTERFACE: i16 = 0;
    /// Index of the tunnel's counters, 32 bits.
    pub(crate) const COUNTERS: i16 = 4;
    /// Offset of the receive counters: units, bytes, trains and packets of wire size, of 64 bits each.
    pub(crate) const RECEIVED: i16 = 8;
    pub(crate) const LEN: usize = 64;
}

/// Fields of the values in the map of link addresses, by the index of the tunnel's counters.
pub(crate) mod station {
    /// The address of the tunnel's interface where frames are inside, otherwise 0; at an even offset, so that its last
    /// four bytes are a whole word.
    pub(crate) const ADDRESS: i16 = 2;
    pub(crate) const LEN: usize = 8;
}

/// Fields of the values in the map of peers' counters.
pub(crate) mod peer_counts {
    /// Offset of the numbers of units and bytes sent, 64 bits each.
    pub(crate) const SENT: i16 = 0;
    /// Offset of the numbers of wire-sized packets and bytes received, 64 bits each.
    pub(crate) const RECEIVED: i16 = 16;
    pub(crate) const LEN: usize = 32;
}

/// Fields of `struct __sk_buff`.
pub(crate) mod packet {
    pub(crate) const LEN: i16 = 0;
    pub(crate) const TYPE: i16 = 4;
    pub(crate) const MARK: i16 = 8;
    pub(crate) const PROTOCOL: i16 = 16;
    pub(crate) const VLAN_PRESENT: i16 = 20;
    pub(crate) const IFINDEX: i16 = 40;
    pub(crate) const GSO_SEGS: i16 = 164;
    pub(crate) const GSO_SIZE: i16 = 176;
}

/// Flags of `bpf_skb_adjust_room`.
pub(crate) mod room {
    pub(crate) const FIXED_GSO: u64 = 1 << 0;
    pub(crate) const ENCAP_IPV4: u64 = 1 << 1;
    pub(crate) const ENCAP_IPV6: u64 = 1 << 2;
    pub(crate) const ENCAP_GRE: u64 = 1 << 3;
    pub(crate) const ENCAP_UDP: u64 = 1 << 4;
    /// Flag: the inner packet begins with an Ethernet header, whose length is in the upper eight bits.
    pub(crate) const ENCAP_ETHERNET: u64 = 1 << 6 | (super::ETHERNET_LEN as u64) << 56;
    pub(crate) const DECAP_IPV4: u64 = 1 << 7;
    pub(crate) const DECAP_IPV6: u64 = 1 << 8;
    /// Flag: the GRE mark of an aggregate is removed; the three flags below remove other marks (added to Linux in
    /// 2026).
    pub(crate) const DECAP_GRE: u64 = 1 << 9;
    pub(crate) const DECAP_UDP: u64 = 1 << 10;
    pub(crate) const DECAP_IPXIP4: u64 = 1 << 11;
    pub(crate) const DECAP_IPXIP6: u64 = 1 << 12;
    /// Mode: room is made or removed after the link header.
    pub(crate) const MAC: i32 = 1;
}
