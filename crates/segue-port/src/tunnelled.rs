//! Tests of trains inside a tunnel, as a port receives them.

use std::net::IpAddr;

use segue::gso::{self, Arena, Limits};
use segue::packet::{Packet, Start};
use segue::virtio::{self, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNet};
use segue::wire::read_u16;

use crate::batch::RxBatch;
use crate::page::{Page, PagePool};
use crate::port::Counters;
use crate::testing::{self, Fill, bytes, sum16};
use crate::vnet;

fn ends(v4: bool) -> (IpAddr, IpAddr) {
    let parse = |text: &str| text.parse().unwrap();
    if v4 { (parse("198.18.0.1"), parse("198.18.0.2")) } else { (parse("2001:db8::1"), parse("2001:db8::2")) }
}

/// A train in a UDP tunnel.
#[derive(Clone, Copy)]
struct Case {
    /// Whether the outer and the inner packet are IPv4.
    v4: [bool; 2],
    tcp: bool,
    /// Whether the outer UDP header has a checksum.
    checksum: bool,
}

/// Returns the frame of a case with the given shim, and its virtio-net header.
fn tunnelled(Case { v4: [outer, inner], tcp, checksum }: Case, shim: &[u8]) -> (Vec<u8>, VirtioNet) {
    let data = bytes(5_000, 3);
    let packet = if tcp {
        testing::ip_packet(ends(inner), 6, 16, &testing::tcp((1, 2), 7, 8, 0x18, &data), Fill::Primed)
    } else {
        testing::ip_packet(ends(inner), 17, 6, &testing::udp(1, 2, &data), Fill::Primed)
    };
    let payload = [shim, &packet].concat();
    let mut around = testing::ip_packet(ends(outer), 17, 6, &testing::udp(9, 4789, &payload), Fill::Primed);
    let udp = if outer { 20 } else { 40 };
    if !checksum {
        around[udp + 6..udp + 8].fill(0);
    }
    let start = 14 + udp + 8 + shim.len() + if inner { 20 } else { 40 };
    let header = VirtioNet {
        flags: NEEDS_CSUM,
        gso_type: if !tcp {
            GSO_UDP_L4
        } else if inner {
            GSO_TCPV4
        } else {
            GSO_TCPV6
        },
        gso_size: 1200,
        csum_start: start as u16,
        csum_offset: if tcp { 16 } else { 6 },
        ..VirtioNet::default()
    };
    (testing::ethernet(&[], &around), header)
}

fn taken(frame: &[u8], header: &VirtioNet) -> Option<Box<Packet<Page>>> {
    let mut pages = PagePool::new(1);
    let mut packet = Box::new(Packet::default());
    let whole = testing::ranges(&mut pages, frame, usize::MAX);
    let is_taken = virtio::load_ranges(header, whole, Start::Ethernet, &mut packet).is_ok();
    // In ranges it is the same train.
    for len in [7, 64, 999] {
        let (mut into, mut counters) = (RxBatch::new(1), Counters::default());
        let ranges = testing::ranges(&mut PagePool::new(1), frame, len);
        vnet::deliver(header, ranges.into_iter(), Start::Ethernet, &mut into, &mut counters);
        let other = into.pop_packet();
        if is_taken && header.gso_type != virtio::GSO_NONE {
            let other = other.unwrap_or_else(|| panic!("in ranges of {len}: {:?}", counters.drops));
            assert_eq!(other.offload, packet.offload);
            assert_eq!(other.layout.headers(), packet.layout.headers());
            assert!(testing::flat(&other) == testing::flat(&packet));
        }
    }
    is_taken.then_some(packet)
}

/// Returns the tunnel headers to test: VXLAN, and Geneve with an option, both with an inner Ethernet header; and an
/// empty one.
fn shims() -> [Vec<u8>; 3] {
    let ethernet = |inner: [u8; 2]| [&[2; 12][..], &inner].concat();
    [
        [&[8, 0, 0, 0, 0, 0, 5, 0][..], &ethernet([8, 0])].concat(),
        [&[1, 0, 0x65, 0x58, 0, 0, 5, 0, 1, 2, 3, 0][..], &ethernet([0x86, 0xdd])].concat(),
        vec![0, 4, 0, 0],
    ]
}

#[test]
fn a_train_in_a_udp_tunnel_is_cut_into_packets_that_are_right_outside_and_inside() {
    for case in 0..48 {
        let v4 @ [outer, _] = [case & 1 == 0, case & 2 == 0];
        let (tcp, checksum) = (case & 4 == 0, case & 8 == 0);
        let shim = &shims()[case / 16];
        let (frame, header) = tunnelled(Case { v4, tcp, checksum }, shim);
        let packet = taken(&frame, &header).unwrap_or_else(|| panic!("case {case}"));
        assert_eq!(testing::flat(&packet), frame);
        let mut arena = Arena::new();
        assert_eq!(gso::split(&packet, &Limits::NONE, &mut arena), Ok(5), "case {case}");
        let mut data = Vec::new();
        for (index, segment) in arena.segments().iter().enumerate() {
            let mut bytes = arena.head(segment).to_vec();
            let part = segment.payload.start as usize..segment.payload.end as usize;
            packet.payload.pieces(part.clone()).for_each(|piece| bytes.extend_from_slice(piece));
            data.extend_from_slice(&bytes[bytes.len() - part.len()..]);
            let around = &bytes[14..];
            let udp = if outer { 20 } else { 40 };
            if checksum {
                assert!(testing::checksum_is_good(around), "case {case} segment {index}: outside");
            } else {
                assert_eq!(around[udp + 6..udp + 8], [0, 0]);
            }
            assert_eq!(usize::from(read_u16(around, udp + 4).unwrap()), around.len() - udp);
            assert_eq!(around[udp + 8..udp + 8 + shim.len()], shim[..]);
            let inside = &around[udp + 8 + shim.len()..];
            assert!(testing::checksum_is_good(inside), "case {case} segment {index}: inside");
            for ip in [around, inside].into_iter().filter(|ip| ip[0] >> 4 == 4) {
                assert_eq!((sum16(&[&ip[..20]]), usize::from(read_u16(ip, 2).unwrap())), (0xffff, ip.len()));
            }
        }
        assert!(data == bytes(5_000, 3), "case {case}");
    }
}

#[test]
fn what_does_not_fit_its_header_is_no_tunnelled_train() {
    let case = Case { v4: [true, true], tcp: true, checksum: true };
    let (frame, header) = tunnelled(case, &shims()[0]);
    assert!(taken(&frame, &header).is_some());
    for wrong in [
        VirtioNet { flags: 0, ..header },
        VirtioNet { csum_start: header.csum_start + 2, ..header },
        VirtioNet { csum_start: 34, ..header },
        VirtioNet { csum_start: u16::MAX, ..header },
        VirtioNet { csum_offset: 6, ..header },
        VirtioNet { gso_size: 0, ..header },
        VirtioNet { gso_type: GSO_UDP_L4, csum_offset: 6, ..header },
        VirtioNet { gso_type: 3, ..header },
    ] {
        assert!(taken(&frame, &wrong).is_none(), "{wrong:?}");
    }
    let start = usize::from(header.csum_start);
    // Another length, another protocol, a data offset past the end, RST.
    for (at, value) in [(start - 18, 0xff), (start - 11, 50), (start + 13, 0x14)] {
        let mut frame = frame.clone();
        frame[at] = value;
        assert!(taken(&frame, &header).is_none(), "{at}");
    }
    for len in 0..frame.len().min(120) {
        assert!(taken(&frame[..len], &header).is_none(), "{len}");
    }
}
