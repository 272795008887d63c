//! A device that takes trains, as Linux segments them (`virtio_net_hdr_tnl_to_skb`, `__skb_udp_tunnel_segment`): from
//! the bytes and the virtio-net header alone.

use segue::gso::{Limits, Segment};
use segue::packet::Packet;
use segue::virtio::{
    self, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6, NEEDS_CSUM,
    UDP_TUNNEL_CSUM, VirtioNet,
};
use segue_testkit::sum;

use crate::case::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 0x80;

/// Returns the virtio-net header of a frame that was made of `train`.
pub(crate) fn described(out: &Out, train: &Packet<Vec<u8>>) -> VirtioNet {
    let (head, payload) = out.bytes.split_at(train.head.len());
    let segment =
        Segment { head: 0..head.len() as u32, payload: 0..payload.len() as u32, csum: out.csum, gso: out.gso };
    virtio::describe(&segment, head, &train.layout).expect("a segment that the engine made is described")
}

/// Splits `train`, which is that of `case`, for a port that takes trains, and compares every packet that it makes of
/// them, and every packet that it gets. Returns the frames for the port.
#[track_caller]
pub(crate) fn check_parts(case: &Case, train: &Packet<Vec<u8>>, limits: &Limits) -> Vec<Out> {
    let (out, _) = split_both(train, limits).unwrap_or_else(|reason| panic!("{reason:?}: {case:?}"));
    let (single, _) = split_both(train, &Limits::NONE).expect("what was split can be split");
    let link = case.ethernet.as_ref().map_or(0, |link| 14 + 4 * link.tags.len());
    let mut expected = case.ranges().into_iter().zip(single);
    for out in &out {
        let made = match out.gso {
            None => vec![complete_as_port(out, limits, case.start().1).0],
            Some(_) => packets(&out.bytes, &described(out, train), link),
        };
        for bytes in made {
            let (range, single) = expected.next().expect("no more packets than segments");
            let built = case.expected(range);
            assert!(bytes == built, "{limits:?} {case:?}\n   is {bytes:02x?}\nnot {built:02x?}");
            assert!(bytes == single.bytes, "as for a port without offloads");
        }
    }
    assert_eq!(expected.count(), 0, "segments without a packet: {limits:?} {case:?}");
    out
}

/// Returns the packets that the device makes of the train in `bytes`, whose outermost IP header is at `link`.
///
/// # Panics
/// Panics if Linux would refuse the header, or would make wrong packets of the train because one of its fields is not
/// that of the whole.
#[track_caller]
pub(crate) fn packets(bytes: &[u8], header: &VirtioNet, link: usize) -> Vec<Vec<u8>> {
    let tunnel = header.gso_type & (GSO_UDP_TUNNEL_IPV4 | GSO_UDP_TUNNEL_IPV6);
    let (protocol, ip_version) = match header.gso_type & !(GSO_ECN | tunnel) {
        GSO_TCPV4 => (TCP, Some(4)),
        GSO_TCPV6 => (TCP, Some(6)),
        GSO_UDP_L4 => (UDP, None),
        other => panic!("type {other}"),
    };
    assert_ne!(header.flags & NEEDS_CSUM, 0, "a train owes its checksum");
    let transport = usize::from(header.csum_start);
    let field = if protocol == TCP { 16 } else { 6 };
    assert_eq!(usize::from(header.csum_offset), field);
    let (ip, udp) = match tunnel {
        0 => {
            assert_eq!((header.outer_th, header.inner_nh, header.flags & UDP_TUNNEL_CSUM), (0, 0, 0));
            (link, None)
        }
        _ => (usize::from(header.inner_nh), Some(usize::from(header.outer_th))),
    };
    let version = bytes[ip] >> 4;
    assert!(ip_version.is_none_or(|expected| expected == version), "version {version}");
    assert!(transport >= ip + least(version));
    if let Some(udp) = udp {
        let outer = bytes[link] >> 4;
        assert_eq!(tunnel, if outer == 4 { GSO_UDP_TUNNEL_IPV4 } else { GSO_UDP_TUNNEL_IPV6 });
        assert!(udp >= link + least(outer) && ip >= udp + 8, "{udp} and {ip}");
    }
    let head = transport + if protocol == TCP { usize::from(bytes[transport + 12] >> 4) * 4 } else { 8 };
    assert_eq!(usize::from(header.hdr_len), head);
    let is_congested = protocol == TCP && bytes[transport + 13] & CWR != 0;
    assert_eq!(header.gso_type & GSO_ECN != 0, is_congested);
    // Linux adjusts the sums for the length of a segment: they must be those of the whole.
    assert_eq!(word(bytes, transport + field), primed(bytes, ip, transport, protocol), "the inner checksum");
    let has_outer = header.flags & UDP_TUNNEL_CSUM != 0;
    if let Some(udp) = udp {
        assert_eq!(word(bytes, udp + 6), if has_outer { primed(bytes, link, udp, UDP) } else { 0 }, "the outer one");
    }
    let mut again = bytes.to_vec();
    set_lengths(&mut again, (link, udp), (ip, transport), protocol, 0);
    assert!(again == bytes, "lengths, and checksums of IPv4");

    let (size, mut all) = (usize::from(header.gso_size), Vec::new());
    assert!(size > 0 && bytes.len() - head > size, "a train has several segments");
    let count = (bytes.len() - head).div_ceil(size);
    for (number, data) in bytes[head..].chunks(size).enumerate() {
        let mut packet = [&bytes[..head], data].concat();
        if protocol == TCP {
            let seq = u32::from_be_bytes([4, 5, 6, 7].map(|at| bytes[transport + at]));
            packet[transport + 4..transport + 8]
                .copy_from_slice(&seq.wrapping_add((number * size) as u32).to_be_bytes());
            let first = if number == 0 { 0 } else { CWR };
            let last = if number + 1 == count { 0 } else { FIN | PSH };
            packet[transport + 13] &= !(first | last);
        }
        set_lengths(&mut packet, (link, udp), (ip, transport), protocol, number);
        complete(&mut packet, ip, transport, protocol);
        if let (Some(udp), true) = (udp, has_outer) {
            complete(&mut packet, link, udp, UDP);
        }
        all.push(packet);
    }
    all
}

/// Returns the length of an IP header without options or extension headers.
fn least(version: u8) -> usize {
    if version == 4 { 20 } else { 40 }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put_word(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("a value of 16 bits");
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the sum of the pseudo-header of the transport header at `transport`, behind the IP header at `ip`.
fn primed(bytes: &[u8], ip: usize, transport: usize, protocol: u8) -> u16 {
    let addresses = if bytes[ip] >> 4 == 4 { &bytes[ip + 12..ip + 20] } else { &bytes[ip + 8..ip + 40] };
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    sum::fold(&sum::pseudo(src, dst, protocol, bytes.len() - transport))
}

/// Computes the checksum of the transport header at `transport` from scratch.
fn complete(bytes: &mut [u8], ip: usize, transport: usize, protocol: u8) {
    let field = transport + if protocol == TCP { 16 } else { 6 };
    put_word(bytes, field, usize::from(primed(bytes, ip, transport, protocol)));
    put(bytes, field, transport, protocol == UDP);
}

/// Writes the lengths of all headers for the bytes present, and the identifications and checksums of IPv4 for the
/// packet after `number` others.
fn set_lengths(
    bytes: &mut [u8],
    (link, udp): (usize, Option<usize>),
    (ip, transport): (usize, usize),
    protocol: u8,
    number: usize,
) {
    let len = bytes.len();
    if protocol == UDP {
        put_word(bytes, transport + 4, len - transport);
    }
    if let Some(udp) = udp {
        put_word(bytes, udp + 4, len - udp);
    }
    let outer = udp.map(|_| link);
    for ip in [Some(ip), outer].into_iter().flatten() {
        if bytes[ip] >> 4 == 6 {
            put_word(bytes, ip + 4, len - ip - 40);
            continue;
        }
        let id = word(bytes, ip + 4).wrapping_add(number as u16);
        put_word(bytes, ip + 2, len - ip);
        put_word(bytes, ip + 4, usize::from(id));
        put_word(bytes, ip + 10, 0);
        let end = ip + usize::from(bytes[ip] & 15) * 4;
        let checksum = !sum::fold(&bytes[ip..end]);
        put_word(bytes, ip + 10, usize::from(checksum));
    }
}
