//! Input generators for property tests.

use proptest::prelude::*;

use crate::build::{Ethernet, Gre, Ip, L4, Packet, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6};
use crate::oracle::Ports;

/// The GUE port of [`tunnel`].
pub const GUE_PORT: u16 = 6080;
/// The FOU ports of [`tunnel`], each with its IP protocol.
pub const FOU_PORTS: [(u16, u8); 4] = [(5555, 4), (5556, 41), (5557, 47), (5558, 143)];
/// The VXLAN port of [`tunnel`].
pub const VXLAN_PORT: u16 = 4789;
/// The Geneve port of [`tunnel`].
pub const GENEVE_PORT: u16 = 6081;

/// Generates an IPv4 or IPv6 header between two hosts of network `net`, without options; the identification is
/// sometimes close to wrapping.
pub fn ip(net: u8) -> impl Strategy<Value = Ip> {
    let id = prop_oneof![any::<u16>(), 0xfff0_u16..];
    (any::<bool>(), any::<u8>(), id, any::<bool>(), 2_u8.., 0_u32..1 << 20).prop_map(
        move |(is_v4, tos, id, df, ttl, label)| {
            if is_v4 {
                Ip::V4(V4 { tos, id, df, ttl, ..V4::new(net, 1, 2) })
            } else {
                Ip::V6(V6 { class: tos, label, hop_limit: ttl, ..V6::new(net, 1, 2) })
            }
        },
    )
}

/// Generates a header as [`ip`] does, sometimes with IPv4 options or IPv6 extension headers.
pub fn ip_with_options(net: u8) -> impl Strategy<Value = Ip> {
    (ip(net), 0_usize..4).prop_map(|(mut ip, words)| {
        match &mut ip {
            Ip::V4(ip) => ip.options = vec![1; words * 4],
            Ip::V6(ip) => ip.extensions = (0..words).map(|i| ([0, 60, 60][i], vec![1, 4, 0, 0, 0, 0])).collect(),
        }
        ip
    })
}

/// Generates TCP with any flags but SYN and RST, or UDP with a checksum; to port 80 or 2000.
pub fn transport() -> impl Strategy<Value = L4> {
    let seq = prop_oneof![any::<u32>(), (u32::MAX - 70_000)..];
    let flags = any::<u8>().prop_map(|flags| flags & 0xf9 | 0x10);
    let options = prop_oneof![
        Just(Vec::new()),
        any::<(u32, u32)>().prop_map(|(value, echo)| Tcp::timestamps(value, echo)),
        any::<[u8; 8]>().prop_map(|edges| [&[1, 1, 5, 10], &edges[..]].concat()),
    ];
    let tcp = (any::<u16>(), seq, any::<u32>(), flags, any::<(u16, u16)>(), options).prop_map(
        |(src_port, seq, ack, flags, (window, urgent), options)| {
            L4::Tcp(Tcp { src_port, dst_port: 80, seq, ack, flags, window, urgent, options })
        },
    );
    let udp = any::<u16>().prop_map(|src_port| L4::Udp(Udp { src_port, dst_port: 2000, checksum: true }));
    prop_oneof![tcp, udp]
}

/// Generates a packet with up to `max` bytes of data, with and without options.
pub fn packet(max: usize) -> impl Strategy<Value = Packet> {
    (ip_with_options(1), transport(), proptest::collection::vec(any::<u8>(), 0..=max))
        .prop_map(|(ip, l4, data)| Packet { ip, l4, data })
}

/// Returns the ports of all strategies for the oracle.
pub fn ports() -> Ports {
    Ports { gue: vec![GUE_PORT], fou: FOU_PORTS.to_vec(), vxlan: vec![VXLAN_PORT], geneve: vec![GENEVE_PORT] }
}

/// Returns the UDP port of [`ports`] for `shim` around a packet of this kind.
pub fn port_of(shim: Shim, gre: bool, ethernet: bool, inner_is_v4: bool) -> u16 {
    match shim {
        Shim::Fou if gre => FOU_PORTS[2].0,
        Shim::Fou if ethernet => FOU_PORTS[3].0,
        Shim::Fou => FOU_PORTS[usize::from(!inner_is_v4)].0,
        Shim::Gue(_) | Shim::GueBare => GUE_PORT,
        Shim::Vxlan(..) => VXLAN_PORT,
        Shim::Geneve(..) => GENEVE_PORT,
    }
}

/// Generates a tunnel over UDP for inner IPv4 (`is_v4`) or IPv6: GUE of every form or FOU, optionally with GRE, VXLAN
/// or Geneve, on the ports above, with an inner Ethernet header if the tunnel allows one. A remote checksum comes with
/// an outer checksum only, and in the form that points at the transport.
pub fn tunnel(is_v4: bool) -> impl Strategy<Value = Tunnel> {
    let gre = (any::<bool>(), any::<Option<u32>>(), any::<Option<u32>>()).prop_map(|(checksum, key, seq)| Gre {
        checksum,
        key,
        seq,
    });
    let shim = prop_oneof![
        Just(Shim::Fou),
        Just(Shim::Gue(None)),
        Just(Shim::Gue(Some(Remcsum::Transport))),
        Just(Shim::GueBare),
        (0_u32..1 << 24, any::<bool>()).prop_map(|(vni, remote)| Shim::Vxlan(vni, remote)),
        (0_u32..1 << 24, 0_u8..6).prop_map(|(vni, words)| Shim::Geneve(vni, words)),
    ];
    let ethernet = (any::<[u8; 6]>(), any::<Option<u16>>()).prop_map(|(src, tag)| Ethernet {
        dst: [2, 0, 0, 0, 0, 1],
        src,
        tags: tag.map(|tag| (0x8100, tag)).into_iter().collect(),
    });
    let parts = (ip(0), shim, proptest::option::of(gre), 32_768_u16.., any::<bool>(), ethernet, any::<bool>());
    parts.prop_map(move |(ip, shim, gre, src_port, checksum, ethernet, wants_ethernet)| {
        // GUE version 1 carries nothing but IP, VXLAN nothing but Ethernet, and IPv6 wants a checksum.
        let gre = gre.filter(|_| matches!(shim, Shim::Fou | Shim::Gue(_)));
        let is_bridge = matches!(shim, Shim::Vxlan(..)) || wants_ethernet && shim != Shim::GueBare;
        let ethernet = is_bridge.then_some(ethernet);
        let checksum = checksum || matches!(ip, Ip::V6(_)) || matches!(shim, Shim::Gue(Some(_)) | Shim::Vxlan(_, true));
        let dst_port = port_of(shim, gre.is_some(), is_bridge, is_v4);
        Tunnel { ip, udp: Some((Udp { src_port, dst_port, checksum }, shim)), gre, ethernet }
    })
}
