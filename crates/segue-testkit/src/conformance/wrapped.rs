//! Trains inside tunnels, each with the packets expected of GSO.
//!
//! Each is a train without a tunnel, which a kernel takes from a virtio-net header, and the bytes that are put around
//! it, so that a kernel can be made to make the same train of the two and to cut it.

use super::carrier::{FOU_PORTS, GENEVE_PORT, GUE_PORT, VXLAN_PORT};
use super::vectors::{Vector, tcp, vector};
use crate::build::{Ethernet, Gre, Ip, L4, Packet, Shim, Tcp, Tunnel, Udp, V4, V6, primed};

/// The header after the outer IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Under {
    /// An inner IP header follows.
    Ip,
    /// A GRE header follows.
    Gre,
    /// A UDP header follows.
    Udp,
}

/// A tunnel around a train, and VLAN tags around that.
#[derive(Clone, Debug)]
pub struct Wrapping {
    /// Name of the tunnel, for messages.
    pub name: String,
    /// The header that the outer IP header carries.
    pub under: Under,
    /// The bytes from the outer IP header up to the inner one. Lengths and header checksums are those of an empty
    /// packet.
    pub bytes: Vec<u8>,
    /// Length of the inner Ethernet header at the end of `bytes`, 0 without one.
    pub inner_ethernet: usize,
    /// Tag protocol identifier and tag control information, outermost first.
    pub tags: Vec<(u16, u16)>,
}

/// A train in a tunnel, and the packets expected of GSO.
#[derive(Clone, Debug)]
pub struct Wrapped {
    /// Name of the train, for messages.
    pub name: String,
    /// Tunnel around the train.
    pub wrapping: Wrapping,
    /// The train without tunnel and tags.
    pub inner: Vector,
    /// The whole train, the innermost transport checksum primed; outer UDP and GRE checksums are absent.
    pub frame: Vec<u8>,
    /// The packets that must leave, with complete checksums.
    pub segments: Vec<Vec<u8>>,
}

const INSIDE: Ethernet = Ethernet { dst: [2, 0, 0, 0, 1, 1], src: [2, 0, 0, 0, 1, 2], tags: Vec::new() };

/// Returns all trains in tunnels: tunnel form, outer and inner IP versions, options and extension headers, VLAN tags,
/// transport, sizes even and odd, and numbers that wrap.
///
/// Checksums of outer UDP and GRE headers are in none of them: a kernel has no way to be told of them here.
pub fn wrapped() -> Vec<Wrapped> {
    let outers = [
        ("4", Ip::V4(V4 { id: 0xfffe, tos: 0x2a, ..V4::new(0, 1, 2) })),
        ("6", Ip::V6(V6 { label: 0x1_2345, class: 0x2a, ..V6::new(0, 1, 2) })),
    ];
    let inners4 = [
        ("4", Ip::V4(V4 { id: 0xffff, tos: 0x2a, ..V4::new(1, 1, 2) })),
        ("4-options", Ip::V4(V4 { id: 7, df: false, options: vec![1; 8], ..V4::new(1, 1, 2) })),
    ];
    let extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 9, 9, 9, 9])];
    let inners6 = [
        ("6", Ip::V6(V6 { label: 0xabcde, class: 0x2a, ..V6::new(1, 1, 2) })),
        ("6-extensions", Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) })),
    ];
    let transports = [
        ("tcp-psh", tcp(0x18, Tcp::timestamps(5, 6))),
        ("tcp-fin-ece-cwr", tcp(0xd1, Vec::new())),
        ("udp", L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })),
    ];
    let tags: [(&str, &[(u16, u16)]); 3] =
        [("", &[]), ("vlan/", &[(0x8100, 0xa005)]), ("vlan/vlan/", &[(0x88a8, 3), (0x8100, 0xa005)])];
    let sizes = [(1000, 1001), (999, 3333), (1360, 20_000)];
    let mut all = Vec::new();
    for (outer_name, outer) in &outers {
        for inners in [&inners4, &inners6] {
            for (form, tunnel) in forms(outer, inners[0].0 == "4") {
                for (tags_name, tags) in tags {
                    let wrapping = Wrapping {
                        name: format!("{tags_name}{outer_name}/{form}{}", inners[0].0),
                        under: match (&tunnel.udp, &tunnel.gre) {
                            (Some(_), _) => Under::Udp,
                            (None, Some(_)) => Under::Gre,
                            (None, None) => Under::Ip,
                        },
                        bytes: around(&tunnel, &inners[0].1),
                        inner_ethernet: tunnel.ethernet.as_ref().map_or(0, |inside| 14 + 4 * inside.tags.len()),
                        tags: tags.to_vec(),
                    };
                    for (inner_name, inner) in inners {
                        for (l4_name, l4) in &transports {
                            for (size, total) in sizes {
                                let name =
                                    format!("{tags_name}{outer_name}/{form}{inner_name}/{l4_name} {total} by {size}");
                                let inner = vector(name.clone(), &link(&[]), inner, l4, size, total);
                                all.push(wrap(name, &wrapping, &tunnel, inner));
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Returns the tunnels with the outer IP header `outer` that can carry IPv4 or IPv6, each with its name.
fn forms(outer: &Ip, is_v4: bool) -> Vec<(&'static str, Tunnel)> {
    let bare = |gre, ethernet| Tunnel { ip: outer.clone(), udp: None, gre, ethernet };
    let over_udp = |dst_port, shim, gre, ethernet| {
        let udp = Udp { src_port: 50_000, dst_port, checksum: false };
        Tunnel { ip: outer.clone(), udp: Some((udp, shim)), gre, ethernet }
    };
    let keyed = Some(Gre { key: Some(42), ..Gre::default() });
    let fou = FOU_PORTS[if is_v4 { 0 } else { 1 }].0;
    let tagged = Ethernet { tags: vec![(0x8100, 9)], ..INSIDE };
    vec![
        ("", bare(None, None)),
        ("gre/", bare(Some(Gre::default()), None)),
        ("gre-key/", bare(keyed, None)),
        ("gre/eth/", bare(Some(Gre::default()), Some(INSIDE))),
        ("gre-key/eth/vlan/", bare(keyed, Some(tagged))),
        ("fou/", over_udp(fou, Shim::Fou, None, None)),
        ("gue/", over_udp(GUE_PORT, Shim::Gue(None), None, None)),
        ("vxlan/", over_udp(VXLAN_PORT, Shim::Vxlan(42, false), None, Some(INSIDE))),
        ("geneve/", over_udp(GENEVE_PORT, Shim::Geneve(42, 1), None, Some(INSIDE))),
    ]
}

fn link(tags: &[(u16, u16)]) -> Ethernet {
    Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: tags.to_vec() }
}

/// Returns the outer headers that `tunnel` prepends to a packet with the header `inner`.
fn around(tunnel: &Tunnel, inner: &Ip) -> Vec<u8> {
    let inner = Packet { ip: inner.clone(), l4: L4::Raw(59), data: Vec::new() }.bytes();
    let mut bytes = tunnel.wrap(&inner);
    bytes.truncate(bytes.len() - inner.len());
    bytes
}

fn wrap(name: String, wrapping: &Wrapping, tunnel: &Tunnel, inner: Vector) -> Wrapped {
    let outer = link(&wrapping.tags);
    let packet = &inner.frame[14..];
    let mut frame = outer.wrap(&tunnel.wrap(packet));
    // As it stood: GRE and UDP have no checksum that could have changed it.
    let (_, field, prime) = primed(packet).expect("TCP or UDP with a checksum");
    let at = frame.len() - packet.len() + field;
    frame[at..at + 2].copy_from_slice(&prime.to_be_bytes());
    let segments = inner.segments.iter().enumerate().map(|(number, segment)| {
        let mut tunnel = tunnel.clone();
        if let Ip::V4(ip) = &mut tunnel.ip {
            ip.id = ip.id.wrapping_add(number as u16);
        }
        outer.wrap(&tunnel.wrap(&segment[14..]))
    });
    let segments = segments.collect();
    Wrapped { name, wrapping: wrapping.clone(), frame, segments, inner }
}
