//! Trains as a stack hands them to a device, and the packets that must leave for them.
//!
//! Each is a frame with a primed checksum and what a virtio-net header says of it, so that a kernel can be made to cut it too.

use super::train::{Gso, GsoKind};
use crate::Rng;
use crate::build::{Ethernet, Ip, L4, Packet, Tcp, Udp, V4, V6, primed};

/// A train, and what must leave for it.
#[derive(Clone, Debug)]
pub struct Vector {
    /// What it is.
    pub name: String,
    /// From the Ethernet header on, the transport checksum primed.
    pub frame: Vec<u8>,
    /// How it is to be cut.
    pub gso: Gso,
    /// Bytes in front of the transport header, whose checksum is `csum_offset` bytes behind that.
    pub csum_start: usize,
    /// See `csum_start`.
    pub csum_offset: usize,
    /// Bytes of all headers.
    pub header_len: usize,
    /// What leaves, every checksum in place.
    pub segments: Vec<Vec<u8>>,
}

/// Every kind: transport, IP version, options and extension headers, VLAN tags, flags, sizes even and odd, remainders, and
/// numbers that wrap.
pub fn vectors() -> Vec<Vector> {
    let plain4 = Ip::V4(V4 { id: 0xfffe, tos: 0x2a, ..V4::new(1, 1, 2) });
    let may_fragment = Ip::V4(V4 { id: 7, df: false, ..V4::new(1, 1, 2) });
    let options4 = Ip::V4(V4 { options: vec![1; 8], ..V4::new(1, 1, 2) });
    let plain6 = Ip::V6(V6 { label: 0xabcde, class: 0x2a, ..V6::new(1, 1, 2) });
    let extended6 =
        Ip::V6(V6 { extensions: vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 9, 9, 9, 9])], ..V6::new(1, 1, 2) });
    let ips =
        [("4", plain4), ("4-no-df", may_fragment), ("4-options", options4), ("6", plain6), ("6-extensions", extended6)];
    let flags = |more: u8| tcp(0x10 | more, Vec::new());
    let transports = [
        ("tcp", flags(0)),
        ("tcp-fin-psh", flags(0x09)),
        ("tcp-cwr", flags(0x80)),
        ("tcp-ece-cwr-psh", flags(0xc8)),
        ("tcp-urg", flags(0x20)),
        ("tcp-timestamps", tcp(0x18, Tcp::timestamps(5, 6))),
        ("tcp-options", tcp(0x10, vec![1; 40])),
        ("udp", L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })),
    ];
    let tags: [(&str, &[(u16, u16)]); 3] =
        [("", &[]), ("vlan/", &[(0x8100, 0xa005)]), ("vlan/vlan/", &[(0x88a8, 3), (0x8100, 0xa005)])];
    // Segment size and total: one byte over, twice exactly, one less, odd sizes with odd remainders, many.
    let sizes =
        [(1000, 1001), (1000, 2000), (1000, 2999), (999, 3333), (1001, 5005), (8, 500), (1448, 60_000), (537, 30_001)];
    let mut all = Vec::new();
    for (tags_name, tags) in tags {
        for (ip_name, ip) in &ips {
            for (l4_name, l4) in &transports {
                for (size, total) in sizes {
                    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: tags.to_vec() };
                    let name = format!("{tags_name}{ip_name}/{l4_name} {total} by {size}");
                    all.push(vector(name, &link, ip, l4, size, total));
                }
            }
        }
    }
    all
}

pub(super) fn tcp(flags: u8, options: Vec<u8>) -> L4 {
    // The sequence number wraps within the train.
    let (seq, ack) = (u32::MAX - 1500, 0x1234_5678);
    L4::Tcp(Tcp { src_port: 1000, dst_port: 80, seq, ack, flags, window: 501, urgent: 3, options })
}

pub(super) fn vector(name: String, link: &Ethernet, ip: &Ip, l4: &L4, size: usize, total: usize) -> Vector {
    let data = Rng::new(total as u64).bytes(total);
    let whole = Packet { ip: ip.clone(), l4: l4.clone(), data: data.clone() };
    let mut bytes = whole.bytes();
    let (start, field, prime) = primed(&bytes).expect("TCP or UDP with a checksum");
    bytes[field..field + 2].copy_from_slice(&prime.to_be_bytes());
    let link_len = 14 + 4 * link.tags.len();
    let segments = data.chunks(size).enumerate().map(|(index, data)| {
        let mut segment = Packet { ip: step(ip, index), l4: l4.clone(), data: data.to_vec() };
        if let L4::Tcp(tcp) = &mut segment.l4 {
            tcp.seq = tcp.seq.wrapping_add((index * size) as u32);
            // FIN and PSH on the last, CWR on the first (RFC 3168, section 6.1.2).
            tcp.flags &= if (index + 1) * size >= total { 0xff } else { 0xf6 };
            tcp.flags &= if index == 0 { 0xff } else { 0x7f };
        }
        link.wrap(&segment.bytes())
    });
    let has_cwr = matches!(l4, L4::Tcp(tcp) if tcp.flags & 0x80 != 0);
    let kind = match (l4, ip) {
        (L4::Udp(_), _) => GsoKind::Udp,
        (_, Ip::V4(_)) => GsoKind::Tcp4,
        (_, Ip::V6(_)) => GsoKind::Tcp6,
    };
    Vector {
        name,
        frame: link.wrap(&bytes),
        gso: Gso { kind, size, has_cwr },
        csum_start: link_len + start,
        csum_offset: field - start,
        header_len: link_len + bytes.len() - total,
        segments: segments.collect(),
    }
}

fn step(ip: &Ip, number: usize) -> Ip {
    let mut ip = ip.clone();
    if let Ip::V4(ip) = &mut ip {
        ip.id = ip.id.wrapping_add(number as u16);
    }
    ip
}
