//! Tests of the outer headers of VXLAN and Geneve as they leave, field by field, and of outer UDP checksums that come
//! out as zero.

use core::ops::RangeInclusive;

use super::*;
use crate::gso;
use crate::packet::{Gso, GsoKind, TrainCsum};

/// Both ends of a tunnel over IPv4 and over IPv6.
const ENDS: [[&str; 2]; 2] = [["198.18.0.1", "198.18.0.2"], ["2001:db8::1", "2001:db8::2"]];
/// Source ports that the engine chooses from (RFC 6335, section 6).
const DYNAMIC: RangeInclusive<u16> = 49152..=65535;
const MACS: &str = "020000000002 020000000001";
/// An ARP request, which has no level of its own in the offload state.
const ARP: &str = "020000000002 020000000001 0806 0001080006040001 020000000001 c6120101 000000000000 c6120102";

/// Returns the carriers of Ethernet frames over UDP in their plain forms, and the header of each.
fn carriers(vni: u32) -> [(Carrier, Vec<u8>); 3] {
    [
        (Carrier::Vxlan { vni, remcsum: false, takes_remcsum: false }, hex(&format!("08000000 {vni:06x} 00"))),
        (Carrier::Geneve { vni }, hex(&format!("0000 6558 {vni:06x} 00"))),
        (Carrier::Gue { remcsum: false }, hex("008f 0000")),
    ]
}

/// Returns the configuration of a tunnel of frames between these ends.
fn tunnel(carrier: Carrier, [local, remote]: [&str; 2]) -> Config {
    Config::new(Mode::Ethernet, carrier, address(local), address(remote))
}

/// Returns a frame with UDP over IPv4 or IPv6, with this TOS or traffic class, TTL or hop limit, and DF over IPv4.
fn frame(is_v4: bool, tos: u8, ttl: u8, df: bool) -> Vec<u8> {
    let mut ip = if is_v4 {
        hex("4500001e000000004011 0000 c6120101 c6120102")
    } else {
        hex("60000000000a1140 20010db8000100000000000000000001 20010db8000100000000000000000002")
    };
    if is_v4 {
        (ip[1], ip[6], ip[8]) = (tos, if df { 0x40 } else { 0 }, ttl);
        let field = !naive_sum(&ip);
        put(&mut ip, 10, field);
    } else {
        (ip[0], ip[1], ip[7]) = (0x60 | tos >> 4, tos << 4, ttl);
    }
    let mut packet = [ip, hex("03e807d0000a0000 6869")].concat();
    let udp = packet.len() - 10;
    let covered = [pseudo(&packet, 0, udp, 17), packet[udp..].to_vec()].concat();
    put(&mut packet, udp + 6, !naive_sum(&covered));
    [hex(MACS), hex(if is_v4 { "0800" } else { "86dd" }), packet].concat()
}

fn load_frame(bytes: &[u8]) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.to_vec()), Start::Ethernet, &Tunnels::NONE);
    packet
}

/// Returns the packets that leave for a frame or a train of them, all checksums completed by GSO.
fn sent(config: Config, mut packet: Packet<Vec<u8>>) -> Vec<Vec<u8>> {
    Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
    let mut frames = gso::Frames::new();
    gso::split_linear(&packet, &gso::Limits::NONE, &mut frames).unwrap();
    frames.frames().iter().map(|frame| frames.bytes(frame).to_vec()).collect()
}

/// Returns the sum of an outer UDP header, of what follows it, and of its pseudo header: all ones if the checksum is
/// right.
fn outer_sum(wire: &[u8], udp: usize) -> u16 {
    naive_sum(&[pseudo(wire, 0, udp, 17), wire[udp..].to_vec()].concat())
}

/// Tests every field of the outer headers: those of RFC 7348, section 5, and RFC 8926, sections 3.3 and 3.4, with the
/// reserved bits, a TTL and a hop limit that are not those inside (RFC 8926, section 4.4.2), and a UDP checksum except
/// where the tunnel was told to send none (RFC 6936, section 4, requirement 2).
#[test]
fn vxlan_and_geneve_headers_leave_field_by_field() {
    // The fields TOS, TTL and DF of the inner packet, none of which a frame without IP has.
    let inners = [true, false].map(|is_v4| {
        [(0xb9, 1, true), (0x02, 255, false)].map(|(tos, ttl, df)| (frame(is_v4, tos, ttl, df), tos, ttl, is_v4 && df))
    });
    let inners: Vec<_> = inners.concat().into_iter().chain([(hex(ARP), 0, 64, false)]).collect();
    for (ends, (carrier, shim)) in ENDS.into_iter().flat_map(|ends| carriers(0x12_3456).map(|carrier| (ends, carrier)))
    {
        for ((inner, tos, ttl, df), csum) in inners.iter().flat_map(|inner| [true, false].map(|csum| (inner, csum))) {
            let usual = Config { df: Df::Unset, ..tunnel(carrier, ends) };
            for (config, tos, ttl, df) in [
                (usual, *tos, 64, false),
                (Config { ttl: Ttl::Fixed(9), tos: Tos::Fixed(0x48), df: Df::Set, ..usual }, 0x48 | tos & 3, 9, true),
                (Config { ttl: Ttl::Inherit, df: Df::Inherit, dport: 7777, ..usual }, *tos, *ttl, *df),
            ] {
                let wire = sent(Config { csum, zero_csum6: !csum, ..config }, load_frame(inner)).concat();
                let case = format!("{config:?}, checksum {csum}: {wire:02x?}");
                let udp = if ends == ENDS[0] { 20 } else { 40 };
                let field = |at: usize| u16::from_be_bytes([wire[at], wire[at + 1]]);
                if udp == 20 {
                    assert_eq!((wire[0], wire[1], usize::from(field(2))), (0x45, tos, wire.len()), "{case}");
                    assert_eq!((field(6), wire[8], wire[9]), (if df { 0x4000 } else { 0 }, ttl, 17), "{case}");
                    assert_eq!((naive_sum(&wire[..20]), &wire[12..20]), (0xffff, &hex("c6120001c6120002")[..]));
                } else {
                    assert_eq!(field(0) & 0xfff0, 0x6000 | u16::from(tos) << 4, "{case}");
                    assert_eq!((usize::from(field(4)), wire[6], wire[7]), (wire.len() - 40, 17, ttl), "{case}");
                    assert_eq!(config.local, IpAddr::from(<[u8; 16]>::try_from(&wire[8..24]).unwrap()));
                    assert_eq!(config.remote, IpAddr::from(<[u8; 16]>::try_from(&wire[24..40]).unwrap()));
                }
                assert!(DYNAMIC.contains(&field(udp)), "{case}");
                assert_eq!((field(udp + 2), usize::from(field(udp + 4))), (config.dport, wire.len() - udp), "{case}");
                if csum {
                    assert_ne!(field(udp + 6), 0, "{case}");
                    assert_eq!(outer_sum(&wire, udp), 0xffff, "{case}");
                } else {
                    assert_eq!(field(udp + 6), 0, "{case}");
                }
                assert_eq!(wire[udp + 8..], [&shim[..], inner].concat(), "{case}");
            }
        }
    }
}

/// Tests that an outer UDP checksum that comes out as zero leaves as all ones, over IPv6 (RFC 6935, section 5; RFC
/// 8200, section 8.1) as over IPv4: that of a frame without IP, which the encapsulator completes, and those of other
/// frames and of trains, which GSO completes.
#[test]
fn an_outer_checksum_that_comes_out_as_zero_leaves_as_all_ones() {
    let mut segments = hex("45000be0000000004006 0000 c6120101 c6120102");
    segments.extend(hex("03e80050 00000001 00000001 50102000 0000 0000"));
    segments.resize(40 + 3000, 0x5a);
    let train = [hex(MACS), hex("0800"), segments].concat();
    let inners = [
        (hex(ARP), None),
        (frame(true, 0, 64, true), None),
        (frame(false, 0, 64, true), None),
        (train, Some(Gso { kind: GsoKind::Tcp, size: 1000, fixed_ids: 0 })),
    ];
    for (ends, (carrier, _)) in ENDS.into_iter().flat_map(|ends| carriers(7).map(|carrier| (ends, carrier))) {
        let udp = if ends == ENDS[0] { 20 } else { 40 };
        for (inner, gso) in &inners {
            let from = |port| {
                let mut packet = load_frame(inner);
                if let Some(gso) = *gso {
                    packet.offload.unit = Unit::Train { csum: TrainCsum::Stale, gso };
                }
                sent(Config { slots: SourcePorts::Fixed(port), ..tunnel(carrier, ends) }, packet)
            };
            // With this source port the sum is all ones; without the field it is the complement of the field.
            let field = |wire: &[u8]| u16::from_be_bytes([wire[udp + 6], wire[udp + 7]]);
            let (port, carry) = 0x4000_u16.overflowing_add(field(&from(0x4000)[0]));
            let wires = from(port + u16::from(carry));
            assert_eq!(wires.len(), if gso.is_some() { 3 } else { 1 });
            for wire in wires {
                assert_eq!((field(&wire), outer_sum(&wire, udp)), (0xffff, 0xffff), "{carrier:?} {ends:?} {wire:02x?}");
                let mut decap = Decapsulator::new(opposite(&tunnel(carrier, ends))).unwrap();
                assert_eq!(decap.pull_packet(Frag::all(wire), &mut Packet::default()), Ok(()), "{carrier:?} {ends:?}");
            }
        }
    }
}
