//! Tests of worked examples, byte for byte, in both directions.

use super::*;
use crate::gso;
use crate::packet::{Gso, GsoKind, TrainCsum};
use crate::reason::Reason;

const PLAIN: Carrier = Carrier::Gue { remcsum: false };
const RCO: Carrier = Carrier::Gue { remcsum: true };

/// A UDP datagram from 198.18.1.1:1000 to 198.18.1.2:2000 with the payload "hi".
const UDP: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";
/// UDP datagram above with a primed checksum.
const UDP_PRIMED: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000a8e43 6869";
/// A TCP segment to port 80, "GET ", primed.
const TCP_PRIMED: &str =
    "4500002c000040004006aca4c6120101c6120102 03e80050 00000001 00000001 50182000 8e460000 47455420";
/// TCP segment above over IPv6, 2001:db8::1 -> ::2.
const TCP6_PRIMED: &str = "6000000000180640 20010db8000000000000000000000001 20010db8000000000000000000000002
    03e80050 00000001 00000001 50182000 5b930000 47455420";

fn gre(key: Option<u32>, csum: bool) -> Mode {
    Mode::Gre(GreOptions { ikey: key, okey: key, icsum: csum, ocsum: csum, ..GreOptions::default() })
}

/// Encapsulates `inner`, compares with `wire`, decapsulates that and compares with `inner`. Returns the decapsulated
/// packet.
fn both_directions(config: Config, inner: Packet<Vec<u8>>, wire: &str) -> Packet<Vec<u8>> {
    let mut inner = inner;
    let original = bytes_of(&inner);
    Encapsulator::new(config).unwrap().push(&mut inner).unwrap();
    assert_eq!(seal(&inner), hex(wire), "encapsulated");
    let tunnels = match config.carrier {
        Carrier::Gue { .. } => Tunnels::NONE.with_gue(config.dport),
        Carrier::Fou => Tunnels::NONE.with_fou(config.dport, config.mode.protocol(original[0] >> 4)),
        Carrier::Vxlan { .. } => Tunnels::NONE.with(config.dport, Kind::Vxlan),
        Carrier::Geneve { .. } => Tunnels::NONE.with(config.dport, Kind::Geneve),
        Carrier::Bare => Tunnels::NONE,
    };
    let mut parsed = Packet::default();
    parsed.load(Frag::all(hex(wire)), Start::Ip, &tunnels);
    assert_eq!(inner.layout, parsed.layout, "the layout is that of the bytes");
    let out = decapsulate(config, &hex(wire));
    assert_eq!(bytes_of(&out), original, "decapsulated");
    out
}

fn decapsulate(config: Config, wire: &[u8]) -> Packet<Vec<u8>> {
    let mut out = load(b"rubbish that must not stay");
    let result = Decapsulator::new(opposite(&config)).unwrap().pull_packet(Frag::all(wire.to_vec()), &mut out);
    assert_eq!(result.map_err(Reason::name), Ok(()));
    let mut again = Packet::default();
    let start = if config.mode.is_ethernet() { Start::Ethernet } else { Start::Ip };
    again.load(Frag::all(bytes_of(&out)), start, &Tunnels::NONE);
    assert_eq!(out.layout, again.layout);
    assert!(out.offload.layers().is_empty());
    out
}

/// Returns whether the packet has a complete checksum (`Csum::Complete`) that equals the sum of its bytes.
fn is_complete(packet: &Packet<Vec<u8>>) -> bool {
    matches!(packet.offload.unit, Unit::Whole(Csum::Complete(sum)) if sum == crate::checksum::Sum::of(&bytes_of(packet)))
}

#[test]
fn a_gue_ipip_without_remote_checksum() {
    let out = both_directions(
        sender(Mode::Ipip, PLAIN),
        load(&hex(UDP)),
        &format!("4500003e000040004011ae87c6120001c6120002 c00017c0002a29f1 00040000 {UDP}"),
    );
    assert!(is_complete(&out));
}

#[test]
fn a2_gue_version_one_is_taken_and_never_sent() {
    let wire = format!("4500003a000040004011ae8bc6120001c6120002 c00017c0002629fd {UDP}");
    let out = decapsulate(sender(Mode::Ipip, PLAIN), &hex(&wire));
    assert_eq!(bytes_of(&out), hex(UDP));
    assert!(is_complete(&out));
}

#[test]
fn a3_fou() {
    let config = Config { dport: 5555, ..sender(Mode::Ipip, Carrier::Fou) };
    let out = both_directions(
        config,
        load(&hex(UDP)),
        &format!("4500003a000040004011ae8bc6120001c6120002 c00015b300262c0a {UDP}"),
    );
    assert!(is_complete(&out));
}

#[test]
fn b_remote_checksum_over_ipip() {
    let out = both_directions(
        sender(Mode::Ipip, RCO),
        load_partial(&hex(UDP_PRIMED)),
        &format!("45000046000040004011ae7fc6120001c6120002 c00017c0003216ff 02040001 80000000 0014001a {UDP_PRIMED}"),
    );
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
    let mut bytes = bytes_of(&out);
    complete(&mut bytes, 20, Kind::Udp);
    assert_eq!(bytes, hex(UDP));
}

#[test]
fn c_remote_checksum_over_gre_with_key_around_ipv6() {
    let out = both_directions(
        sender(gre(Some(42), false), RCO),
        load_partial(&hex(TCP6_PRIMED)),
        &format!(
            "45000070000040004011ae55c6120001c6120002 c00017c0005c448c 022f0001 80000000 00300040
             200086dd0000002a {TCP6_PRIMED}"
        ),
    );
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
    let mut bytes = bytes_of(&out);
    complete(&mut bytes, 40, Kind::Tcp);
    assert_eq!(bytes[56..58], [0x94, 0xb4]);
}

const D: &str = "4500005c000040004011ae69c6120001c6120002 c00017c00048ecb7 022f0001 80000000 001c002c
    80000800 06460000";

#[test]
fn d_remote_checksum_under_a_gre_checksum() {
    let config = sender(gre(None, true), RCO);
    let out = both_directions(config, load_partial(&hex(TCP_PRIMED)), &format!("{D} {TCP_PRIMED}"));
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
    let mut bytes = bytes_of(&out);
    complete(&mut bytes, 20, Kind::Tcp);
    assert_eq!(bytes[36..38], [0x62, 0x01]);
}

#[test]
fn d_the_gre_checksum_is_verified_without_reading_payload() {
    let wire = hex(&format!("{D} {TCP_PRIMED}"));
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut decap = Decapsulator::new(opposite(&sender(gre(None, true), RCO))).unwrap();
    let mut out = Packet::default();
    assert_eq!(decap.pull(Frag::all(wire[28..].to_vec()), &meta, &mut out), Ok(()));
    assert_eq!(decap.checksummed_bytes(), 0);
    let mut wrong = wire[28..].to_vec();
    wrong[17] ^= 1;
    assert_eq!(decap.pull(Frag::all(wrong), &meta, &mut out), Err(DecapRefusal::GreCsum));
}

#[test]
fn d_bytes_behind_the_inner_packet_count_for_the_gre_checksum_alone() {
    // An odd number of payload bytes, so that the bytes after them start in the middle of a word.
    let mut finished = hex(&TCP_PRIMED.replace("4500002c", "4500002d"));
    finished.push(0x77);
    put(&mut finished, 36, 0);
    let primed = naive_sum(&pseudo(&finished, 0, 20, 6));
    put(&mut finished, 36, primed);
    let inner = finished.clone();
    complete(&mut finished, 20, Kind::Tcp);
    let mut gre_bytes = hex("80000800 00000000");
    gre_bytes.extend(&finished);
    gre_bytes.extend([0xbe, 0xef, 0x01]);
    let field = !naive_sum(&gre_bytes);

    let mut datagram = hex("022f0001 80000000 001c002c 80000800");
    datagram.extend(field.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(&inner);
    datagram.extend([0xbe, 0xef, 0x01]);
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut decap = Decapsulator::new(opposite(&sender(gre(None, true), RCO))).unwrap();
    let mut out = Packet::default();
    assert_eq!(decap.pull(Frag::all(datagram), &meta, &mut out), Ok(()));
    assert_eq!((bytes_of(&out), decap.checksummed_bytes()), (inner, 0));
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
}

#[test]
fn e_the_gre_checksum_itself_is_remote() {
    let wire = format!(
        "4500004e000040004011ae77c6120001c6120002 c00017c0003a1fa0 022f0001 80000000 00000004
         80000800 00000000 {UDP}"
    );
    let config = sender(gre(None, true), RCO);
    let out = both_directions(config, load(&hex(UDP)), &wire);
    assert!(is_complete(&out));

    // With the state that a socket reports, nothing is known and nothing is read.
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut decap = Decapsulator::new(opposite(&config)).unwrap();
    let mut out = Packet::default();
    decap.pull(Frag::all(hex(&wire)[28..].to_vec()), &meta, &mut out).unwrap();
    assert_eq!((out.offload.unit, decap.checksummed_bytes()), (Unit::Whole(Csum::Unknown), 0));
}

#[test]
fn f_fou_over_ipv6_with_and_without_checksum() {
    let config = Config {
        local: address("2001:db8::1"),
        remote: address("2001:db8::2"),
        dport: 5555,
        ..sender(Mode::Ipip, Carrier::Fou)
    };
    let mut packet = load(&hex(UDP));
    Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
    let wire = seal(&packet);
    // All but the flow label, which segue chooses.
    assert_eq!((wire[0], wire[1] & 0xf0), (0x60, 0));
    assert_eq!(wire[4..40], hex("00261140 20010db8000000000000000000000001 20010db8000000000000000000000002"));
    assert_eq!(wire[40..], hex(&format!("c00015b300265cbd {UDP}")));
    assert_eq!(bytes_of(&decapsulate(config, &wire)), hex(UDP));

    let config = Config { csum: false, zero_csum6: true, ..config };
    let mut packet = load(&hex(UDP));
    Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
    assert_eq!(packet.offload.layers()[0].udp, LayerCsum::Absent);
    assert_eq!(seal(&packet)[40..], hex(&format!("c00015b300260000 {UDP}")));
    assert_eq!(bytes_of(&decapsulate(config, &seal(&packet))), hex(UDP));
}

#[test]
fn f_the_gue_header_of_an_ipv6_packet() {
    let mut packet = load(&hex(TCP6_PRIMED));
    Encapsulator::new(sender(Mode::Sit, PLAIN)).unwrap().push(&mut packet).unwrap();
    assert_eq!(bytes_of(&packet)[28..32], hex("00290000"));
}

/// Returns a TCP train from 198.18.1.1 to 198.18.1.2 with a 32-byte header and 3000 bytes of payload, primed for the
/// whole length.
fn train(csum: TrainCsum) -> Packet<Vec<u8>> {
    let mut bytes = hex("45000bec123440004006 0000 c6120101c6120102
        03e80050 00000001 00000001 80182000 9a060000 0101080a0000000100000002");
    bytes.resize(52 + 3000, 0x5a);
    let mut packet = load(&bytes);
    packet.offload.unit = Unit::Train { csum, gso: Gso { kind: GsoKind::Tcp, size: 1448, fixed_ids: 0b1 } };
    packet
}

#[test]
fn g_a_train_keeps_its_primed_field_and_uses_up_a_number_a_segment() {
    let options = GreOptions { oseq: true, ocsum: true, ..GreOptions::default() };
    let mut encap = Encapsulator::new(sender(Mode::Gre(options), RCO)).unwrap();
    for (round, csum) in [TrainCsum::Partial, TrainCsum::Stale].into_iter().enumerate() {
        let mut packet = train(csum);
        encap.push(&mut packet).unwrap();
        let Unit::Train { csum: after, gso } = packet.offload.unit else { panic!("it was a train") };
        // Verified segments can be left to the far end like pending ones, and are split as they were received.
        assert_eq!(after, csum);
        assert_eq!(gso, Gso { kind: GsoKind::Tcp, size: 1448, fixed_ids: 0b1_0000 });
        assert_eq!(
            packet.offload.layers(),
            [crate::packet::Layer { udp: LayerCsum::Owed, gre: LayerCsum::Owed, remote: Some(Remote::Transport) }]
        );
        let bytes = bytes_of(&packet);
        let first = 3 * round as u8;
        assert_eq!(bytes[4..6], [0, first], "identification");
        assert_eq!((&bytes[2..4], &bytes[24..26]), (&[0, 0][..], &[0, 0][..]), "lengths are the splitter's");
        assert_eq!(bytes[28..40], hex("022f0001 80000000 0020 0030"));
        assert_eq!(bytes[40..52], hex(&format!("90000800 00000000 000000{first:02x}")));
        assert_eq!(bytes[52 + 36..52 + 38], [0x9a, 0x06]);
    }
}

#[test]
fn g_every_segment_of_a_train_is_primed_for_its_own_length() {
    for csum in [TrainCsum::Partial, TrainCsum::Stale] {
        let mut packet = train(csum);
        Encapsulator::new(sender(Mode::Ipip, RCO)).unwrap().push(&mut packet).unwrap();
        let mut arena = gso::Arena::new();
        gso::split(&packet, &gso::Limits::NONE, &mut arena).unwrap();
        let primed: Vec<_> = arena.segments().iter().map(|s| arena.head(s)[40 + 36..40 + 38].to_vec()).collect();
        assert_eq!(primed, [[0x93, 0xf6], [0x93, 0xf6], [0x8e, 0xb6]]);
    }
}

#[test]
fn g_a_train_without_remote_checksum_stays_what_it_was() {
    for csum in [TrainCsum::Partial, TrainCsum::Stale] {
        let mut packet = train(csum);
        Encapsulator::new(sender(Mode::Ipip, PLAIN)).unwrap().push(&mut packet).unwrap();
        assert!(matches!(packet.offload.unit, Unit::Train { csum: after, .. } if after == csum));
        assert_eq!(packet.offload.layers()[0].remote, None);
        assert_eq!(bytes_of(&packet)[28..32], hex("00040000"));
    }
}

#[test]
fn i_a_field_that_completes_to_zero_passes_as_pending() {
    let inner = UDP_PRIMED.replace("6869", "65fa");
    let wire = format!("45000046000040004011ae7fc6120001c6120002 c00017c00032196e 02040001 80000000 0014001a {inner}");
    let out = both_directions(sender(Mode::Ipip, RCO), load_partial(&hex(&inner)), &wire);
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
    let mut out = out;
    gso::finish(&mut out).unwrap();
    assert_eq!(bytes_of(&out)[26..28], [0xff, 0xff]);
}

#[test]
fn fragments_icmp_and_complete_checksums_go_without_option() {
    let fragment = UDP.replace("4500001e000040004011aca7", "4500001e000020004011cca7");
    let icmp = "4500001c000040004001acb9c6120101c6120102 0800f7ff00000000";
    for inner in [fragment.as_str(), icmp, UDP] {
        let mut packet = load(&hex(inner));
        Encapsulator::new(sender(Mode::Ipip, RCO)).unwrap().push(&mut packet).unwrap();
        assert_eq!(packet.offload.layers()[0].remote, None);
        assert_eq!(seal(&packet)[28..32], hex("00040000"));
        let out = decapsulate(sender(Mode::Ipip, RCO), &seal(&packet));
        assert_eq!(bytes_of(&out), hex(inner));
    }
}

#[test]
fn a_pending_field_that_is_not_the_pseudo_header_sum_is_completed_here() {
    let mut packet = load_partial(&hex(UDP));
    Encapsulator::new(sender(Mode::Ipip, RCO)).unwrap().push(&mut packet).unwrap();
    assert_eq!(packet.offload.layers()[0].remote, None);
    assert_eq!(packet.offload.unit, Unit::Whole(Csum::Partial));
}

#[test]
fn a_known_sum_ends_with_the_headers_that_it_covers() {
    let mut packet = load(&hex(UDP));
    packet.offload.unit = Unit::Whole(Csum::Complete(crate::checksum::Sum::of(&hex(UDP))));
    Encapsulator::new(sender(Mode::Ipip, RCO)).unwrap().push(&mut packet).unwrap();
    assert_eq!(packet.offload.unit, Unit::Whole(Csum::Unknown));
}

#[test]
fn what_is_in_a_tunnel_already_gets_no_second_option() {
    let mut encap = Encapsulator::new(sender(Mode::Ipip, RCO)).unwrap();
    let mut packet = load_partial(&hex(UDP_PRIMED));
    encap.push(&mut packet).unwrap();
    let other = Config { remote: address("198.18.0.3"), ..sender(Mode::Ipip, RCO) };
    Encapsulator::new(other).unwrap().push(&mut packet).unwrap();
    let remotes: Vec<_> = packet.offload.layers().iter().map(|layer| layer.remote).collect();
    assert_eq!(remotes, [None, Some(Remote::Transport)]);
    assert_eq!(packet.layout.headers().len(), 8);
}

#[test]
fn ttl_dscp_and_dont_fragment_follow_their_rules() {
    let inner = "45b9001e000000001f11 0000 c6120101c6120102 03e807d0000afd90 6869";
    let outer = |config: Config| {
        let mut packet = load(&hex(inner));
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        let bytes = bytes_of(&packet);
        let meta = packet.outer.unwrap();
        assert_eq!((bytes[1], bytes[8], bytes[6] & 0x40 != 0), (meta.tos, meta.ttl, meta.df));
        assert_eq!(naive_sum(&bytes[..20]), 0xffff);
        (meta.tos, meta.ttl, meta.df)
    };
    let config = sender(Mode::Ipip, PLAIN);
    assert_eq!(outer(config), (0xb9, 64, true));
    let fixed = Config { tos: Tos::Fixed(0x22), ttl: Ttl::Inherit, df: Df::Inherit, ..config };
    assert_eq!(outer(fixed), (0x21, 0x1f, false));

    let mut packet = load(&hex(UDP));
    Encapsulator::new(fixed).unwrap().push(&mut packet).unwrap();
    assert!(packet.outer.unwrap().df, "the inner packet's own flag counts");

    let v6 = Config { local: address("2001:db8::1"), remote: address("2001:db8::2"), ..fixed };
    let mut packet = load(&hex(inner));
    Encapsulator::new(v6).unwrap().push(&mut packet).unwrap();
    let bytes = bytes_of(&packet);
    assert_eq!((bytes[0], bytes[1] & 0xf0, bytes[7]), (0x62, 0x10, 0x1f));
    assert_eq!(packet.outer.unwrap().skip, 48);
}

#[test]
fn padding_behind_the_inner_packet_stays_outside() {
    let padded = format!("{UDP} 0000 beef");
    let mut packet = load(&hex(&padded));
    Encapsulator::new(sender(Mode::Ipip, PLAIN)).unwrap().push(&mut packet).unwrap();
    let wire = seal(&packet);
    assert_eq!(wire.len(), 62);
    assert_eq!(naive_sum(&wire[..20]), 0xffff);
    // A known sum counts the trailer too, and is not passed on.
    let datagram = hex(&format!("00040000 {padded}"));
    let sum = Some(crate::checksum::Sum::of(&datagram));
    let meta = Received { csum: OuterCsum::Verified, sum, ..Received::default() };
    let mut out = Packet::default();
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, PLAIN))).unwrap();
    decap.pull(Frag::all(datagram), &meta, &mut out).unwrap();
    assert_eq!((bytes_of(&out), out.offload.unit), (hex(UDP), Unit::Whole(Csum::Unknown)));
    // After the outer packet, and inside it after the inner one.
    let mut trailed = wire.clone();
    trailed.extend([1, 2, 3]);
    assert_eq!(bytes_of(&decapsulate(sender(Mode::Ipip, PLAIN), &trailed)), hex(UDP));
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut out = Packet::default();
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    decap.pull(Frag::all(hex(&format!("02040001 80000000 0014001a {UDP_PRIMED} beef"))), &meta, &mut out).unwrap();
    assert_eq!(bytes_of(&out), hex(UDP_PRIMED));
    assert!(out.layout.is_exact());
}

#[test]
fn surplus_gue_words_are_skipped_up_to_the_longest_header() {
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    let mut out = Packet::default();
    let datagram = format!("1f040001 80000000 0014001a {} {UDP_PRIMED}", "aa".repeat(116));
    assert_eq!(decap.pull(Frag::all(hex(&datagram)), &meta, &mut out), Ok(()));
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
    assert_eq!(bytes_of(&out), hex(UDP_PRIMED));
}

const MACS: &str = "020000000002 020000000001";
/// Frame of example H: UDP "hello rco", primed, with an identification of 1.
const FRAME_PRIMED: &str =
    "020000000002 020000000001 0800 45000025000140004011ac9fc6120101c6120102 03e807d000118e4a 68656c6c6f2072636f";

fn load_frame(text: &str, unit: Option<Unit>) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(hex(text)), Start::Ethernet, &Tunnels::NONE);
    packet.offload.unit = unit.unwrap_or(packet.offload.unit);
    packet
}

fn vxlan(vni: u32, remcsum: bool) -> Carrier {
    Carrier::Vxlan { vni, remcsum, takes_remcsum: true }
}

#[test]
fn h_vxlan_with_remote_checksum() {
    let config = Config { slots: SourcePorts::Fixed(0xc000), ..sender(Mode::Ethernet, vxlan(0x123456, true)) };
    let out = both_directions(
        config,
        load_frame(FRAME_PRIMED, Some(Unit::Whole(Csum::Partial))),
        "45000057000040004011ae6ec6120001c6120002 c00012b500436438 08200000 12345691
         020000000002 020000000001 0800 45000025000140004011ac9fc6120101c6120102
         03e807d000118e4a 68656c6c6f2072636f",
    );
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Partial));
}

#[test]
fn a_vxlan_receiver_that_takes_no_remote_checksum_refuses_it() {
    let config = sender(Mode::Ethernet, vxlan(0x123456, true));
    let mut frame = load_frame(FRAME_PRIMED, Some(Unit::Whole(Csum::Partial)));
    Encapsulator::new(config).unwrap().push(&mut frame).unwrap();
    let carrier = Carrier::Vxlan { vni: 0x123456, remcsum: false, takes_remcsum: false };
    let mut decap = Decapsulator::new(opposite(&Config { carrier, ..config })).unwrap();
    let result = decap.pull_packet(Frag::all(seal(&frame)), &mut Packet::default());
    assert_eq!(result.map_err(Reason::name), Err("remcsum_unwanted"));
}

#[test]
fn frames_without_ip_have_their_outer_checksums_at_once() {
    let arp = format!("{MACS} 0806 0001080006040001 020000000001 c6120101 000000000000 c6120102");
    let tap = Mode::GreTap(GreOptions { ocsum: true, icsum: true, ..GreOptions::default() });
    let both = [address("198.18.0.1"), address("2001:db8::1")].map(|local| {
        let remote = if local.is_ipv4() { address("198.18.0.2") } else { address("2001:db8::2") };
        (local, remote)
    });
    let carried = [
        (Mode::Ethernet, vxlan(7, false)),
        (Mode::Ethernet, vxlan(7, true)),
        (Mode::Ethernet, Carrier::Geneve { vni: 7 }),
        (Mode::Ethernet, Carrier::Gue { remcsum: false }),
        (tap, Carrier::Bare),
        (tap, Carrier::Gue { remcsum: false }),
    ];
    for (local, remote) in both {
        for (mode, carrier) in carried {
            let config = Config { local, remote, ..Config::new(mode, carrier, local, remote) };
            let mut frame = load_frame(&arp, None);
            Encapsulator::new(config).unwrap().push(&mut frame).unwrap();
            assert!(frame.offload.layers().is_empty());
            let wire = bytes_of(&frame);
            // The receiver verifies every checksum that is there.
            let out = decapsulate(config, &wire);
            assert_eq!(bytes_of(&out), hex(&arp));
            let mut decap = Decapsulator::new(opposite(&config)).unwrap();
            let mut bad = wire.clone();
            *bad.last_mut().unwrap() ^= 1;
            assert!(decap.pull_packet(Frag::all(bad), &mut Packet::default()).is_err(), "{mode:?} {carrier:?}");
        }
    }
}

#[test]
fn geneve_carries_frames_with_tags() {
    let frame = format!("{MACS} 8100 2005 0800 4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869");
    let out = both_directions(
        sender(Mode::Ethernet, Carrier::Geneve { vni: 0x123456 }),
        load_frame(&frame, None),
        &format!("45000054000040004011ae71c6120001c6120002 c00017c10040 CSUM 0000 6558 1234 5600 {frame}").replace(
            "CSUM",
            &{
                let mut packet = load_frame(&frame, None);
                let config = sender(Mode::Ethernet, Carrier::Geneve { vni: 0x123456 });
                Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
                let wire = seal(&packet);
                format!("{:02x}{:02x}", wire[26], wire[27])
            },
        ),
    );
    assert!(!matches!(out.offload.unit, Unit::Whole(Csum::Partial)));
}

#[test]
fn bare_packets_have_nothing_but_the_outer_header() {
    let plain = "4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";
    let out = both_directions(
        sender(Mode::Ipip, Carrier::Bare),
        load(&hex(plain)),
        &format!("45000032000040004004aea0c6120001c6120002 {plain}"),
    );
    assert_eq!(out.offload.unit, Unit::Whole(Csum::Unknown));
    let gre = format!("45000036000040004 02fae71c6120001c6120002 0000 0800 {plain}");
    both_directions(sender(self::gre(None, false), Carrier::Bare), load(&hex(plain)), &gre);
}

#[test]
fn what_the_kernel_left_unfinished_is_owed_and_what_it_joined_is_a_train() {
    let config = Config { unfinished: Some(100), ..sender(Mode::Ipip, Carrier::Bare) };
    let back = opposite(&config);
    for (len, trust, unit) in [
        (10, Some(100), Unit::Whole(Csum::Partial)),
        (10, None, Unit::Whole(Csum::Unknown)),
        (
            200,
            Some(100),
            Unit::Train {
                csum: crate::packet::TrainCsum::Partial,
                gso: crate::packet::Gso { kind: crate::packet::GsoKind::Tcp, size: 60, fixed_ids: 0 },
            },
        ),
    ] {
        let mut inner = hex(TCP_PRIMED);
        inner.resize(40 + len, 0x5a);
        let total = inner.len() as u16;
        put(&mut inner, 2, total);
        put(&mut inner, 10, 0);
        let field = !naive_sum(&inner[..20]);
        put(&mut inner, 10, field);
        let primed = naive_sum(&pseudo(&inner, 0, 20, 6));
        put(&mut inner, 36, primed);
        let mut packet = load(&inner);
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        let mut out = Packet::default();
        let mut decap = Decapsulator::new(Config { unfinished: trust, ..back }).unwrap();
        decap.pull_packet(Frag::all(bytes_of(&packet)), &mut out).unwrap();
        assert_eq!(out.offload.unit, unit);
        // A field that is merely wrong stays wrong.
        put(&mut inner, 36, primed ^ 1);
        let mut packet = load(&inner);
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        decap.pull_packet(Frag::all(bytes_of(&packet)), &mut out).unwrap();
        assert_eq!(out.offload.unit, Unit::Whole(Csum::Unknown));
    }
}

/// Returns a packet over IPv4 with `len` bytes of payload, whose transport checksum is primed.
fn primed(kind: Kind, len: usize) -> Vec<u8> {
    let (text, headers, number, field) =
        if kind == Kind::Tcp { (TCP_PRIMED, 40, 6, 36) } else { (UDP_PRIMED, 28, 17, 26) };
    let mut packet = hex(text)[..headers].to_vec();
    packet.resize(headers + len, 0x5a);
    let total = packet.len() as u16;
    put(&mut packet, 2, total);
    if kind == Kind::Udp {
        put(&mut packet, 24, total - 20);
    }
    put(&mut packet, 10, 0);
    let checksum = !naive_sum(&packet[..20]);
    put(&mut packet, 10, checksum);
    let sum = naive_sum(&pseudo(&packet, 0, 20, number));
    put(&mut packet, field, sum);
    packet
}

/// Tests at which length an unfinished packet counts as several, that only TCP is cut, and only where a segment has
/// payload, and that a link header does not count.
#[test]
fn what_is_longer_than_the_inner_mtu_was_joined_and_only_tcp_is_cut() {
    let state = |config: Config, most, datagram: Vec<u8>| {
        let mut decap = Decapsulator::new(Config { unfinished: Some(most), ..opposite(&config) }).unwrap();
        let meta = Received { csum: OuterCsum::Absent, ..Received::default() };
        let mut out = Packet::default();
        decap.pull(Frag::all(datagram), &meta, &mut out).map(|()| out.offload.unit)
    };
    let single = Unit::Whole(Csum::Partial);
    let train = |size| Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Tcp, size, fixed_ids: 0 } };
    for (kind, len, most, expected) in [
        (Kind::Tcp, 60, 100, single),
        (Kind::Tcp, 61, 100, train(60)),
        (Kind::Udp, 200, 100, single),
        (Kind::Tcp, 200, 39, single),
        (Kind::Tcp, 200, 40, single),
        (Kind::Tcp, 200, 41, train(1)),
    ] {
        let case = format!("{kind:?} {len} {most}");
        let packet = primed(kind, len);
        assert_eq!(state(sender(Mode::Ipip, Carrier::Bare), most, packet.clone()), Ok(expected), "{case}");
        let tap = sender(Mode::GreTap(GreOptions::default()), Carrier::Bare);
        let frame = [hex("00006558"), hex(MACS), hex("0800"), packet].concat();
        assert_eq!(state(tap, most, frame), Ok(expected), "{case} in a frame");
    }
    // The GRE checksum of several packets is that of one of them, which the kernel has verified.
    let numbered = sender(gre(None, true), Carrier::Bare);
    let datagram = |len| [hex("80000800 12340000"), primed(Kind::Tcp, len)].concat();
    assert_eq!(state(numbered, 100, datagram(200)), Ok(train(60)));
    assert_eq!(state(numbered, 100, datagram(60)), Err(DecapRefusal::GreCsum));
}

#[test]
fn the_padding_of_a_frame_is_cut_off_before_a_remote_checksum_is_completed() {
    let datagram = hex(&format!("08200000 12345691 {FRAME_PRIMED} 0000beef"));
    let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ethernet, vxlan(0x123456, true)))).unwrap();
    let mut out = Packet::default();
    assert_eq!(decap.pull(Frag::all(datagram), &meta, &mut out), Ok(()));
    assert_eq!((bytes_of(&out), out.offload.unit), (hex(FRAME_PRIMED), Unit::Whole(Csum::Partial)));
    assert!(out.layout.is_exact());
}
