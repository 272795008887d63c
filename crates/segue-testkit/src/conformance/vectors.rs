//! Trains as a stack passes them to a device, each with the packets expected of GSO.
//!
//! Each is a frame with a primed checksum and the fields of a virtio-net header, so that a kernel can be made to
//! segment it too.

use super::train::{Gso, GsoKind};
use crate::Rng;
use crate::build::{Ethernet, Ip, L4, Packet, Tcp, Udp, V4, V6, primed};
use crate::sum::fold;

/// A train, and the packets expected of GSO.
#[derive(Clone, Debug)]
pub struct Vector {
    /// Name of the vector, for messages.
    pub name: String,
    /// The frame from the Ethernet header on, its transport checksum primed.
    pub frame: Vec<u8>,
    /// The instructions for segmenting the train.
    pub gso: Gso,
    /// Offset of the transport header in bytes.
    pub csum_start: usize,
    /// Offset of the checksum field from `csum_start`, in bytes.
    pub csum_offset: usize,
    /// Length of all headers in bytes.
    pub header_len: usize,
    /// The packets that must leave, with complete checksums.
    pub segments: Vec<Vec<u8>>,
}

/// Returns all vectors: transport, IP version, options and extension headers, VLAN tags, flags, even and odd sizes,
/// remainders, and numbers that wrap.
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
    vector_of(name, link, ip, l4, size, Rng::new(total as u64).bytes(total))
}

fn vector_of(name: String, link: &Ethernet, ip: &Ip, l4: &L4, size: usize, data: Vec<u8>) -> Vector {
    let total = data.len();
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

/// A train that kernels may segment in two ways.
#[derive(Clone, Debug)]
pub struct Odd {
    /// The train, and the packets that must leave.
    pub vector: Vector,
    /// The packets sent by a kernel that does not raise the segment size.
    pub unraised: Option<Vec<Vec<u8>>>,
}

/// Returns trains with a UDP segment whose checksum is computed as zero, and TCP trains whose tiny segments are
/// enlarged.
pub fn odd_vectors() -> Vec<Odd> {
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: Vec::new() };
    let udp = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
    let mut all = Vec::new();
    for (ip_name, ip) in [("4", Ip::V4(V4::new(1, 1, 2))), ("6", Ip::V6(V6::new(1, 1, 2)))] {
        for which in 0..3 {
            let mut data = Rng::new(which as u64).bytes(2500);
            let (from, to) = (which * 1000, (which * 1000 + 1000).min(2500));
            let segment = Packet { ip: step(&ip, which), l4: udp.clone(), data: data[from..to].to_vec() }.bytes();
            let (_, field, _) = primed(&segment).expect("UDP with a checksum");
            let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            // What the sum lacks of all ones is added to its last word.
            let (sum, carry) = word(&data, to - 2).overflowing_add(word(&segment, field));
            data[to - 2..to].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
            let name = format!("{ip_name}/udp zero in segment {which}");
            all.push(Odd { vector: vector_of(name, &link, &ip, &udp, 1000, data), unraised: None });
        }
        for (size, total) in [(1, 9), (1, 40), (4, 33), (7, 100)] {
            let tcp = tcp(0x18, Vec::new());
            let name = format!("{ip_name}/tcp {total} by {size}");
            let unraised = vector(name.clone(), &link, &ip, &tcp, size, total);
            let mut vector = vector(name, &link, &ip, &tcp, 8, total);
            vector.gso = unraised.gso;
            all.push(Odd { vector, unraised: Some(unraised.segments) });
        }
    }
    all
}

impl Vector {
    /// Returns whether a kernel accepts the train with a complete checksum: UDP trains must have a partial one, and
    /// without a partial one the kernel finds no header after tags.
    pub fn can_be_complete(&self) -> bool {
        self.gso.kind != GsoKind::Udp && matches!(self.frame[12..14], [0x08, 0x00] | [0x86, 0xdd])
    }

    /// Returns the frame of the train with its transport checksum complete.
    pub fn complete(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        let field = self.csum_start + self.csum_offset;
        // The field holds the sum of the pseudo header.
        let checksum = !fold(&frame[self.csum_start..]);
        frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        frame
    }
}

fn step(ip: &Ip, number: usize) -> Ip {
    let mut ip = ip.clone();
    if let Ip::V4(ip) = &mut ip {
        ip.id = ip.id.wrapping_add(number as u16);
    }
    ip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_comes_out_as_zero_is_all_ones() {
        let odd = odd_vectors();
        let fields = odd.iter().filter(|odd| odd.vector.gso.kind == GsoKind::Udp).map(|odd| {
            let Vector { segments, csum_start, csum_offset, .. } = &odd.vector;
            let field = csum_start + csum_offset;
            segments.iter().map(|segment| segment[field..field + 2] == [0xff, 0xff]).collect::<Vec<_>>()
        });
        let one = [[true, false, false], [false, true, false], [false, false, true]];
        assert!(fields.eq([one, one].concat()));
    }
}
