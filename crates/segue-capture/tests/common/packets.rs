//! Test packets with known headers, checksums and payload.
#![allow(dead_code, reason = "each test file uses a part")]

use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::Sender;

/// Returns the IPv4 header of a sender.
pub(crate) fn v4() -> Ip {
    Ip::V4(V4::new(1, 1, 2))
}

/// Returns the IPv6 header of a sender.
pub(crate) fn v6() -> Ip {
    Ip::V6(V6::new(1, 1, 2))
}

/// Builds one train: its payload in one packet, as a kernel passes it to a device.
pub(crate) fn train(ip: Ip, len: usize, flags: u8, options: Vec<u8>) -> Vec<u8> {
    let packet = Sender::tcp(ip, 3, 0xffff_f000, options).send(len, flags).bytes();
    build::prime(&packet).unwrap()
}

/// Builds a UDP datagram with a correct checksum.
pub(crate) fn datagram(ip: Ip, port: u16, data: Vec<u8>) -> Vec<u8> {
    let l4 = L4::Udp(Udp { src_port: 40_000, dst_port: port, checksum: true });
    build::Packet { ip, l4, data }.bytes()
}

/// Returns every kind of tunnel, with its name.
pub(crate) fn tunnels() -> Vec<(&'static str, Tunnel)> {
    let udp = |port: u16, checksum: bool| Udp { src_port: 50_001, dst_port: port, checksum };
    let make = |ip: Ip, udp: Option<(Udp, Shim)>, gre: Option<Gre>| Tunnel { ip, udp, gre, ethernet: None };
    let bridge = |tunnel: Tunnel| Tunnel { ethernet: Some(Ethernet::default()), ..tunnel };
    let outer4 = Ip::V4(V4::new(9, 1, 2));
    let outer6 = Ip::V6(V6::new(9, 1, 2));
    let gre = |checksum, key, seq| Some(Gre { checksum, key, seq });
    vec![
        ("ip", make(outer4.clone(), None, None)),
        ("ip over 6", make(outer6.clone(), None, None)),
        ("gre", make(outer4.clone(), None, gre(false, None, None))),
        ("gre full", make(outer6.clone(), None, gre(true, Some(9), Some(4)))),
        ("gue", make(outer4.clone(), Some((udp(6080, true), Shim::Gue(None))), None)),
        ("gue bare", make(outer6.clone(), Some((udp(6080, true), Shim::GueBare)), None)),
        ("gue without checksum", make(outer4.clone(), Some((udp(6080, false), Shim::Gue(None))), None)),
        ("gue remcsum", make(outer4.clone(), Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))), None)),
        (
            "gue gre remcsum",
            make(
                outer6.clone(),
                Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))),
                gre(false, Some(2), None),
            ),
        ),
        (
            "gue gre csum remcsum",
            make(outer4.clone(), Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))), gre(true, None, None)),
        ),
        ("fou gre", make(outer4.clone(), Some((udp(5557, true), Shim::Fou)), gre(true, None, None))),
        ("fou ethernet", bridge(make(outer6.clone(), Some((udp(5558, true), Shim::Fou)), None))),
        ("gretap", bridge(make(outer4.clone(), None, gre(true, Some(2), None)))),
        ("vxlan", bridge(make(outer4.clone(), Some((udp(4789, true), Shim::Vxlan(42, false))), None))),
        ("vxlan as Linux has it", bridge(make(outer4.clone(), Some((udp(8472, false), Shim::Vxlan(42, false))), None))),
        ("vxlan remcsum", bridge(make(outer6.clone(), Some((udp(4789, true), Shim::Vxlan(42, true))), None))),
        ("geneve", bridge(make(outer6, Some((udp(6081, true), Shim::Geneve(42, 3))), None))),
        ("geneve with ip", make(outer4, Some((udp(6081, true), Shim::Geneve(42, 0))), None)),
    ]
}

/// Returns frames, as bridges carry them, with no IP packet or a damaged one.
pub(crate) fn frames_without_ip() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(8);
    let mut frame =
        |kind: &[u8], len: usize| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], kind, &rng.bytes(len)[..]].concat();
    let mut long = frame(&[0x08, 0x00], 0);
    let inner = Sender::udp(v4(), 1).send(30, 0).bytes();
    long.extend(&inner);
    long[16..18].copy_from_slice(&900_u16.to_be_bytes());
    vec![
        frame(&[0x08, 0x06], 28),
        frame(&[0x88, 0xcc], 40),
        frame(&[0x00, 0x26], 38),
        frame(&[0x88, 0x47], 41),
        frame(&[0x81, 0x00, 0x00, 0x05, 0x08, 0x06], 28),
        frame(&[0x08, 0x00], 51),
        long,
        vec![1, 2, 3],
        Vec::new(),
    ]
}

/// Returns the packet on its path to the first of two hops, or to the last: its destination is in the source route
/// option (RFC 791, section 3.1).
pub(crate) fn source_routed(packet: &[u8], kind: u8, pointer: u8) -> Vec<u8> {
    let mut routed = packet.to_vec();
    let last: Vec<u8> = routed.splice(16..20, [198, 18, 7, 7]).collect();
    let option = [&[1, kind, 11, pointer, 198, 18, 7, 8][..], &last].concat();
    routed.splice(20..20, option);
    routed[0] += 3;
    let len = routed.len() as u16;
    routed[2..4].copy_from_slice(&len.to_be_bytes());
    routed[10..12].fill(0);
    let checksum = !segue_testkit::sum::fold(&routed[..32]);
    routed[10..12].copy_from_slice(&checksum.to_be_bytes());
    routed
}

/// Returns the packet from a mobile node: its source is in the home address option (RFC 6275, section 6.3).
pub(crate) fn from_away(packet: &[u8]) -> Vec<u8> {
    let mut away = packet.to_vec();
    let home: Vec<u8> = away.splice(8..24, [0x20; 16]).collect();
    let header = [&[away[6], 2, 1, 2, 0, 0, 0xc9, 16][..], &home].concat();
    let len = (away.len() - 40 + header.len()) as u16;
    away[4..6].copy_from_slice(&len.to_be_bytes());
    away[6] = 60;
    away.splice(40..40, header);
    away
}
