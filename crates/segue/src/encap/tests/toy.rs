//! A tunnel format for tests, which GRO and GSO support only by its row in the table of formats.

use segue_testkit::build::{Ethernet, Ip, L4, Packet as Plain, Udp, V4, V6};
use segue_testkit::flow::Sender;

use crate::gro::{Config, Gro};
use crate::gso::{Arena, Limits, split};
use crate::packet::{Frag, Packet, Pool, Start, Tunnels, Unit};
use crate::time::Nanos;
use crate::wire::Kind;
use crate::wire::toy::{PORT, header};

/// Puts every packet into a tunnel of this format.
fn wrap(outer: &Ip, skip: u8, ethernet: bool, inner: &[u8], count: u16) -> Vec<u8> {
    let version = inner[0] >> 4;
    let link = Ethernet { dst: [2; 6], src: [4; 6], tags: vec![(0x8100, 6)] };
    let (next, inside) = if ethernet { (0, link.wrap(inner)) } else { (version, inner.to_vec()) };
    let mut outer = outer.clone();
    if let Ip::V4(ip) = &mut outer {
        ip.id = count;
    }
    let udp = Udp { src_port: 50_000, dst_port: PORT, checksum: true };
    Plain { ip: outer, l4: L4::Udp(udp), data: [header(skip, 3, next), inside].concat() }.bytes()
}

fn through(packets: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let tunnels = Tunnels::NONE.with(PORT, Kind::Toy);
    let (mut gro, mut pool) = (Gro::new(Config::default()), Pool::new(8));
    for bytes in packets {
        let mut packet: Box<Packet<Vec<u8>>> = pool.take();
        packet.load(Frag::all(bytes.clone()), Start::Ip, &tunnels);
        assert!(packet.layout.headers().iter().any(|header| header.kind == Kind::Toy));
        gro.push(packet, Nanos(0), &mut pool);
    }
    gro.flush();
    let (mut left, mut trains) = (Vec::new(), 0);
    while let Some(packet) = gro.pop() {
        trains += usize::from(matches!(packet.offload.unit, Unit::Train { .. }));
        let mut arena = Arena::new();
        split(&packet, &Limits::NONE, &mut arena).unwrap();
        for segment in arena.segments() {
            let payload = packet.payload.pieces(segment.payload.start as usize..segment.payload.end as usize);
            left.push([arena.head(segment), &payload.collect::<Vec<_>>().concat()].concat());
        }
    }
    (left, trains)
}

#[test]
fn a_format_that_gro_and_gso_do_not_know_is_joined_and_cut() {
    let outers = [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))];
    let inners = [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))];
    for (outer, inner) in outers.iter().flat_map(|outer| inners.iter().map(move |inner| (outer, inner))) {
        for (skip, ethernet) in [(0, false), (7, false), (0, true), (3, true)] {
            for mut sender in [Sender::tcp(inner.clone(), 1, 1, Vec::new()), Sender::udp(inner.clone(), 1)] {
                let packets: Vec<Vec<u8>> =
                    (0..5).map(|count| wrap(outer, skip, ethernet, &sender.send(700, 0).bytes(), count)).collect();
                assert_eq!(through(&packets), (packets, 1));
            }
        }
    }
}

#[test]
fn its_identifier_parts_flows() {
    let outer = Ip::V6(V6::new(0, 1, 2));
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 1, Vec::new());
    let mut packets: Vec<Vec<u8>> =
        (0..2).map(|count| wrap(&outer, 0, false, &sender.send(700, 0).bytes(), count)).collect();
    // The identifier's last byte, and the checksum that covers it.
    packets[1][40 + 8 + 2] ^= 1;
    let field = u16::from_be_bytes([packets[1][46], packets[1][47]]);
    let value = if packets[0][50] & 1 == 1 { field + 0x100 } else { field - 0x100 };
    packets[1][46..48].copy_from_slice(&value.to_be_bytes());
    assert_eq!(through(&packets).1, 0);
}
