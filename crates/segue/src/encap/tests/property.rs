//! Tests of properties of tunnels over generated packets, tunnels and arbitrary bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::gso;
use crate::packet::{Gso, GsoKind, TrainCsum};
use crate::reason::Reason;

/// A generated inner IP packet whose transport checksum is right, or primed if `pending`.
#[derive(Clone, Debug)]
struct Generated {
    bytes: Vec<u8>,
    pending: bool,
}

fn ip_packet() -> impl Strategy<Value = Generated> {
    let header = (
        any::<bool>(),
        any::<u8>(),
        1u8..,
        0usize..4,
        prop_oneof![9 => Just(0u16), 1 => Just(0x2000u16), 1 => 1u16..64],
    );
    let transport = prop_oneof![Just(6u8), Just(17), Just(1), Just(58), Just(132)];
    (header, transport, vec(any::<u8>(), 40..120), vec(any::<u8>(), 32), any::<bool>()).prop_map(
        |((v4, tos, ttl, options, fragment), protocol, body, mut addresses, pending)| {
            addresses[0] = 0x20; // neither multicast nor loopback
            let mut body = body;
            match protocol {
                6 => body[12] = 0x50,
                17 => {
                    let len = body.len() as u16;
                    put(&mut body, 4, len);
                }
                _ => {}
            }
            let mut bytes = Vec::new();
            if v4 {
                let len = 20 + options * 4;
                bytes.extend([0x40 | (len / 4) as u8, tos, 0, 0, 0x12, 0x34, 0, 0, ttl, protocol, 0, 0]);
                bytes.extend(&addresses[..8]);
                bytes.resize(len, 1); // options: no operation
                put(&mut bytes, 2, (len + body.len()) as u16);
                put(&mut bytes, 6, fragment);
                let field = !naive_sum(&bytes);
                put(&mut bytes, 10, field);
            } else {
                bytes.extend([0x60 | tos >> 4, tos << 4 | 7, 1, 2, 0, 0, protocol, ttl]);
                bytes.extend(&addresses);
                if fragment != 0 {
                    bytes[6] = 44;
                    bytes.extend([protocol, 0, (fragment >> 5) as u8, (fragment << 3) as u8 | 1, 0, 0, 0, 1]);
                } else if options > 0 {
                    bytes[6] = 60;
                    bytes.extend([protocol, options as u8 - 1]);
                    bytes.resize(40 + options * 8, 0);
                }
                let len = (bytes.len() - 40 + body.len()) as u16;
                put(&mut bytes, 4, len);
            }
            let transport = bytes.len();
            bytes.extend(body);
            let mut is_pending = false;
            if fragment == 0 && matches!(protocol, 6 | 17) {
                is_pending = pending;
                let kind = if protocol == 6 { Kind::Tcp } else { Kind::Udp };
                let primed = naive_sum(&pseudo(&bytes, 0, transport, protocol));
                put(&mut bytes, transport + if protocol == 6 { 16 } else { 6 }, primed);
                if !pending {
                    complete(&mut bytes, transport, kind);
                }
            }
            Generated { bytes, pending: is_pending }
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let options = (any::<Option<u32>>(), any::<[bool; 2]>()).prop_map(|(key, [csum, seq])| {
        Mode::Gre(GreOptions { ikey: key, okey: key, icsum: csum, ocsum: csum, iseq: seq, oseq: seq })
    });
    let mode = prop_oneof![1 => Just(Mode::Ip), 3 => options];
    let carrier = prop_oneof![
        Just(Carrier::Fou),
        Just(Carrier::Gue { remcsum: false }),
        Just(Carrier::Gue { remcsum: true }),
        Just(Carrier::Gue { remcsum: true })
    ];
    let slots = prop_oneof![Just(SourcePorts::Slots(16)), Just(SourcePorts::Fixed(9))];
    (mode, carrier, any::<bool>(), any::<bool>(), any::<bool>(), slots, any::<[u8; 16]>()).prop_map(
        |(mode, carrier, v4, csum, pmtudisc, slots, seed)| {
            let (local, remote) = if v4 { ("198.18.0.1", "198.18.0.2") } else { ("2001:db8::1", "2001:db8::2") };
            let csum = csum || carrier == Carrier::Gue { remcsum: true };
            let config = Config::new(mode, carrier, address(local), address(remote));
            let df = if pmtudisc { Df::Set } else { Df::Inherit };
            Config { csum, zero_csum6: !csum, df, slots, seed, ttl: Ttl::Inherit, ..config }
        },
    )
}

fn loaded(inner: &Generated) -> Packet<Vec<u8>> {
    if inner.pending { load_partial(&inner.bytes) } else { load(&inner.bytes) }
}

proptest! {
    #[test]
    fn decapsulation_restores_every_encapsulated_packet(config in config(), inners in vec(ip_packet(), 1..4)) {
        let mut encap = Encapsulator::new(config).unwrap();
        let mut decap = Decapsulator::new(opposite(&config)).unwrap();
        for inner in inners {
            let mut packet = loaded(&inner);
            prop_assert_eq!(encap.push(&mut packet), Ok(()));
            let wire = seal(&packet);
            prop_assert!(wire.len() - inner.bytes.len() <= config.overhead());
            let layer = packet.offload.layers()[0];
            let refused = gso::finish(&mut packet).err();
            prop_assert_eq!((refused, bytes_of(&packet)), (None, wire.clone()), "the engine's own finish agrees");
            let remcsum = config.carrier == Carrier::Gue { remcsum: true };
            let gre_csum = matches!(config.mode, Mode::Gre(GreOptions { ocsum: true, .. }));
            prop_assert_eq!(layer.remote, match (remcsum, inner.pending, gre_csum) {
                (true, true, _) => Some(Remote::Transport),
                (true, false, true) => Some(Remote::Gre),
                _ => None,
            });

            let mut out = Packet::default();
            prop_assert_eq!(decap.pull_packet(Frag::all(wire.clone()), &mut out).map_err(Reason::name), Ok(()));
            let mut expected = inner.bytes.clone();
            let transport = out.layout.transport().copied();
            let still_pending = layer.remote == Some(Remote::Transport);
            if inner.pending && !still_pending {
                let transport = transport.unwrap();
                complete(&mut expected, transport.start(), transport.kind);
            }
            prop_assert_eq!(bytes_of(&out), &expected[..]);
            prop_assert_eq!(out.layout, load(&expected).layout);
            prop_assert_eq!(out.offload.unit == Unit::Whole(Csum::Partial), still_pending);
            if let Unit::Whole(Csum::Complete(sum)) = out.offload.unit {
                prop_assert_eq!(sum, crate::checksum::Sum::of(&expected));
            } else {
                let known = layer.udp == LayerCsum::Owed || (gre_csum && layer.remote.is_none());
                let absent = out.offload.unit == Unit::Whole(Csum::Absent);
                prop_assert!(still_pending || absent || !known, "a sum that was known is handed on");
            }

            // Every flipped bit after the outer IP header is detected if the outer checksum covers it.
            if config.csum {
                let at = config.outer_len() - 8 + usize::from(config.seed[0]) % (wire.len() - config.outer_len() + 8);
                let mut damaged = wire.clone();
                damaged[at] ^= 1 << (config.seed[1] % 8);
                let zeroed = damaged[config.outer_len() - 2..config.outer_len()] == [0, 0];
                let fate = Decapsulator::new(opposite(&config)).unwrap().pull_packet(Frag::all(damaged), &mut out);
                prop_assert!(fate.is_err() || zeroed);
            }
        }
    }

    #[test]
    fn a_train_comes_out_as_its_segments(
        config in config(),
        v4: bool,
        tcp: bool,
        data in vec(any::<u8>(), 1..4000),
        size in 8usize..1400,
        stale: bool,
    ) {
        let mut bytes = train(v4, tcp, data.len());
        let header_len = bytes.len();
        bytes.extend(&data);
        let mut packet = load(&bytes);
        prop_assert_eq!(packet.layout.header_len(), header_len);
        let kind = if tcp { GsoKind::Tcp } else { GsoKind::Udp };
        let csum = if stale { TrainCsum::Stale } else { TrainCsum::Partial };
        packet.offload.unit = Unit::Train { csum, gso: Gso { kind, size: size as u16, fixed_ids: 0 } };
        let mut encap = Encapsulator::new(config).unwrap();
        let mut decap = Decapsulator::new(opposite(&config)).unwrap();
        prop_assert_eq!(encap.push(&mut packet), Ok(()));
        let mut arena = gso::Arena::new();
        prop_assert_eq!(gso::split(&packet, &gso::Limits::NONE, &mut arena), Ok(data.len().div_ceil(size)));

        // A packet after a train has the numbers after those that the train used up.
        let mut next = load(&bytes[..header_len]);
        next.offload.unit = packet.offload.unit;
        encap.push(&mut next).unwrap();
        if config.local.is_ipv4() {
            let ids = arena.segments().len() as u16;
            prop_assert_eq!(&bytes_of(&next)[4..6], &ids.to_be_bytes()[..]);
        }

        for (segment, expected) in arena.segments().iter().zip(data.chunks(size)) {
            let mut wire = arena.head(segment).to_vec();
            for piece in packet.payload.pieces(segment.payload.start as usize..segment.payload.end as usize) {
                wire.extend(piece);
            }
            let mut out = Packet::default();
            prop_assert_eq!(decap.pull_packet(Frag::all(wire), &mut out).map_err(Reason::name), Ok(()));
            let pending = out.offload.unit == Unit::Whole(Csum::Partial);
            prop_assert_eq!(pending, config.carrier == Carrier::Gue { remcsum: true });
            let mut bytes = bytes_of(&out);
            prop_assert_eq!(&bytes[header_len..], expected);
            let transport = *out.layout.transport().unwrap();
            if pending {
                complete(&mut bytes, transport.start(), transport.kind);
            }
            let mut covered = pseudo(&bytes, 0, transport.start(), if tcp { 6 } else { 17 });
            covered.extend(&bytes[transport.start()..]);
            prop_assert_eq!(naive_sum(&covered), 0xffff);
        }
    }

    #[test]
    fn one_flow_has_one_source(config in config(), inner in ip_packet(), more in vec(any::<u8>(), 0..40), tos: u8) {
        let source = |bytes: &[u8]| {
            let mut packet = load(bytes);
            Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
            let port = bytes_of(&packet)[config.outer_len() - 8..config.outer_len() - 6].to_vec();
            (packet.outer.unwrap().slot, port)
        };
        // Another packet of the flow: more payload, other DSCP and header checksum.
        let mut other = inner.bytes.clone();
        let at = if other[0] >> 4 == 4 { 2 } else { 4 };
        other.extend(&more);
        let len = u16::from_be_bytes([other[at], other[at + 1]]) + more.len() as u16;
        put(&mut other, at, len);
        if at == 2 {
            other[1] = tos;
        }
        let first = source(&inner.bytes);
        prop_assert_eq!(&source(&other), &first);
        match config.slots {
            SourcePorts::Slots(n) => {
                prop_assert!(first.0 < n);
                prop_assert!(u16::from_be_bytes([first.1[0], first.1[1]]) >= 49152);
            }
            SourcePorts::Fixed(port) => prop_assert_eq!(first, (0, port.to_be_bytes().to_vec())),
        }
    }

    #[test]
    fn rubbish_is_refused_or_passed_on_but_never_panics(
        config in config(),
        bytes in vec(any::<u8>(), 0..160),
        inner in ip_packet(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        tos: u8,
        verified: bool,
    ) {
        let mut packet = loaded(&inner);
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        let mut wire = seal(&packet);
        for (at, value) in damage {
            let at = at.index(wire.len());
            wire[at] = value;
        }
        wire.truncate(cut.index(wire.len()) + 1);
        let csum = if verified { OuterCsum::Verified } else { OuterCsum::Unknown };
        let meta = Received { tos, csum, sum: None };
        let mut out = Packet::default();
        for bytes in [bytes, wire.get(config.outer_len()..).unwrap_or(&[]).to_vec(), wire] {
            let mut decap = Decapsulator::new(opposite(&config)).unwrap();
            let fate = decap.pull(Frag::all(bytes.clone()), &meta, &mut out);
            check(fate, &out)?;
            let fate = decap.pull_packet(Frag::all(bytes.clone()), &mut out);
            check(fate, &out)?;
            let mut packet = load(&bytes);
            let before = bytes_of(&packet);
            if Encapsulator::new(config).unwrap().push(&mut packet).is_err() {
                prop_assert_eq!(bytes_of(&packet), before);
            }
        }
    }
}

/// Checks that a decapsulated packet is exactly one IP packet with a correct layout, and that a refused one leaves
/// nothing.
fn check(fate: Result<(), DecapRefusal>, out: &Packet<Vec<u8>>) -> Result<(), TestCaseError> {
    let bytes = bytes_of(out);
    if fate.is_err() {
        prop_assert!(bytes.is_empty());
        return Ok(());
    }
    prop_assert!(out.layout.headers()[0].is_ip());
    let length = match bytes[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
        _ => 40 + usize::from(u16::from_be_bytes([bytes[4], bytes[5]])),
    };
    prop_assert_eq!(length, bytes.len());
    if out.offload.unit == Unit::Whole(Csum::Partial) {
        let (transport, ip) = (out.layout.transport().unwrap(), out.layout.inner_ip().unwrap());
        let (protocol, at) = if transport.kind == Kind::Tcp { (6, 16) } else { (17, 6) };
        let field = &bytes[transport.start() + at..transport.start() + at + 2];
        let primed = naive_sum(&pseudo(&bytes, ip.start(), transport.start(), protocol));
        prop_assert_eq!(naive_sum(field) % 0xffff, primed % 0xffff);
    }
    Ok(())
}

/// Returns the headers of a train with this many bytes of payload, primed.
fn train(v4: bool, tcp: bool, payload: usize) -> Vec<u8> {
    let protocol = if tcp { 6 } else { 17 };
    let transport = hex(if tcp { "03e80050 00000001 00000001 50182000 00000000" } else { "03e807d0 0000 0000" });
    let upper = (transport.len() + payload) as u16;
    let mut bytes = if v4 {
        let mut ip = hex("45020000 12344000 4000 0000 c6120101c6120102");
        ip[9] = protocol;
        put(&mut ip, 2, 20 + upper);
        ip
    } else {
        let mut ip = hex("6020000000000040 20010db8000000000000000000000001 20010db8000000000000000000000002");
        ip[6] = protocol;
        put(&mut ip, 4, upper);
        ip
    };
    let at = bytes.len();
    bytes.extend(transport);
    bytes.resize(bytes.len() + payload, 0);
    let primed = naive_sum(&pseudo(&bytes, 0, at, protocol));
    put(&mut bytes, at + if tcp { 16 } else { 6 }, primed);
    if !tcp {
        put(&mut bytes, at + 4, upper);
    }
    bytes.truncate(bytes.len() - payload);
    bytes
}

#[test]
fn numbered_packets_all_take_one_slot() {
    let mode = Mode::Gre(GreOptions { oseq: true, ..GreOptions::default() });
    let config = Config { slots: SourcePorts::Slots(16), ..sender(mode, Carrier::Fou) };
    let mut encap = Encapsulator::new(config).unwrap();
    for port in 0..64_u16 {
        let mut bytes = hex("4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869");
        put(&mut bytes, 20, port);
        let mut packet = load(&bytes);
        encap.push(&mut packet).unwrap();
        assert_eq!(packet.outer.unwrap().slot, 0, "source port {port}");
    }
}

#[test]
fn many_flows_spread_over_all_slots() {
    let mut seen = [0; 16];
    for port in 0..400u16 {
        let mut bytes = hex("4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869");
        put(&mut bytes, 20, port);
        let mut packet = load(&bytes);
        let config = Config { slots: SourcePorts::Slots(16), ..sender(Mode::Ip, Carrier::Fou) };
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        seen[usize::from(packet.outer.unwrap().slot)] += 1;
    }
    assert!(seen.iter().all(|&n| n > 5), "{seen:?}");
}

#[test]
fn flows_in_frames_of_one_pair_of_hosts_spread_over_all_slots() {
    let mut seen = [0; 16];
    for port in 0..400u16 {
        let frame = "020000000002 020000000001 0800 4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";
        let mut bytes = hex(frame);
        put(&mut bytes, 34, port);
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), Start::Ethernet, &Tunnels::NONE);
        let config = Config { slots: SourcePorts::Slots(16), ..sender(Mode::Ethernet, Carrier::Geneve { vni: 1 }) };
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        seen[usize::from(packet.outer.unwrap().slot)] += 1;
    }
    assert!(seen.iter().all(|&n| n > 5), "{seen:?}");
}

/// Tests that the fragments of a packet have the source of the whole packets of their flow, over IPv4 and IPv6 with and
/// without extension headers, for IP packets and Ethernet frames, and that those of another packet do not change it.
#[test]
fn fragments_have_the_source_of_their_flow() {
    let datagram = hex("03e807d0000afd90 6869");
    let later = hex("0123456789abcdef 6869");
    let v4 = |id: u8, word: u16, body: &[u8]| {
        let mut bytes = hex("4500001e0000000040110000c6120101c6120102");
        (bytes[5], bytes[11]) = (id, 0);
        put(&mut bytes, 6, word);
        let field = !naive_sum(&bytes);
        put(&mut bytes, 10, field);
        [&bytes, body].concat()
    };
    let v6 = |next: u8, extensions: &[u8], body: &[u8]| {
        let mut bytes = hex("6000000000000040");
        (bytes[5], bytes[6]) = ((extensions.len() + body.len()) as u8, next);
        [&bytes[..], &[0x20; 16], &[0x21; 16], extensions, body].concat()
    };
    let v6_part = |id: u8, word: u8, behind: bool, body: &[u8]| {
        let next = if behind { 60 } else { 17 };
        let mut extensions = vec![44, 0, 1, 4, 0, 0, 0, 0, next, 0, 0, word, 0, 0, 0, id];
        if behind && word == 1 {
            extensions.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        }
        v6(0, &extensions, body)
    };
    let whole_v6 = v6(17, &[], &datagram);
    for (whole, parts) in [
        (v4(0, 0x4000, &datagram), [v4(7, 0x2000, &datagram), v4(8, 0x2000, &later), v4(7, 2, &later)]),
        (
            whole_v6.clone(),
            [v6_part(7, 1, false, &datagram), v6_part(8, 1, false, &later), v6_part(7, 16, false, &later)],
        ),
        (whole_v6.clone(), [v6_part(7, 1, true, &datagram), v6_part(8, 1, true, &later), v6_part(7, 16, true, &later)]),
        // An atomic fragment (RFC 6946) is a whole packet.
        (whole_v6, [v6_part(7, 0, false, &datagram), v6_part(8, 1, false, &later), v6_part(7, 0, false, &datagram)]),
    ] {
        for (mode, is_frame) in [(Mode::Ip, false), (Mode::GreTap(GreOptions::default()), true)] {
            let config = Config { slots: SourcePorts::Slots(u16::MAX), seed: [7; 16], ..sender(mode, Carrier::Fou) };
            let mut tunnel = Encapsulator::new(config).unwrap();
            let mut source = |bytes: &[u8]| {
                let mut packet = Packet::default();
                if is_frame {
                    let kind: &[u8] = if bytes[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] };
                    let frame = [&[2; 12], kind, bytes].concat();
                    packet.load(Frag::all(frame), Start::Ethernet, &Tunnels::NONE);
                } else {
                    packet = load(bytes);
                }
                tunnel.push(&mut packet).unwrap();
                let bytes = bytes_of(&packet);
                (packet.outer.unwrap().slot, u16::from_be_bytes([bytes[20], bytes[21]]))
            };
            let flow = source(&whole);
            let [first, other, last] = parts.each_ref();
            assert_eq!(source(first), flow, "{mode:?}: {first:x?}");
            assert_ne!(source(other), flow, "{mode:?}: another packet's, with other ports");
            assert_eq!(source(last), flow, "{mode:?}: {last:x?}");
        }
    }
}

/// Tests what tells the packets of fragments apart: over IPv4 the protocol too (RFC 791, section 2.3); that fragments
/// whose first one has not come, and those of protocols without ports, have their addresses alone; and that ports are
/// found behind as many bytes of extension headers as the parser follows.
#[test]
fn fragments_are_told_by_their_protocol_and_have_ports_only_where_the_first_one_has() {
    let v4 = |protocol: u8, word: u16, body: &[u8]| {
        let mut bytes = hex("4500001e0007000040000000c6120101c6120102");
        bytes[9] = protocol;
        put(&mut bytes, 6, word);
        let field = !naive_sum(&bytes);
        put(&mut bytes, 10, field);
        [&bytes, body].concat()
    };
    let config = Config { slots: SourcePorts::Slots(u16::MAX), seed: [7; 16], ..sender(Mode::Ip, Carrier::Fou) };
    let mut tunnel = Encapsulator::new(config).unwrap();
    let mut source = |bytes: &[u8]| {
        let mut packet = load(bytes);
        tunnel.push(&mut packet).unwrap();
        let bytes = bytes_of(&packet);
        (packet.outer.unwrap().slot, u16::from_be_bytes([bytes[20], bytes[21]]))
    };
    let (datagram, later) = (hex("03e807d0000afd90 6869"), hex("0123456789abcdef 6869"));
    let udp = source(&v4(17, 0x2000, &datagram));
    assert_eq!(source(&v4(17, 2, &later)), udp);
    // One of TCP with the same identification is another packet's, whose first fragment has not come.
    let tcp = source(&v4(6, 2, &later));
    assert_ne!(tcp, udp);
    assert_eq!(source(&v4(6, 2, &hex("fedcba9876543210 6869"))), tcp, "other bytes are no other ports");
    // A first fragment of ICMP has the source of a whole message.
    let echo = hex("0800f7ff00010000 6869");
    assert_eq!(source(&v4(1, 0x2000, &echo)), source(&v4(1, 0, &echo)));
    // 96 bytes of hop-by-hop options and a fragment header.
    let v6 = |next: u8, extensions: &[u8]| {
        let mut bytes = hex("6000000000000040");
        (bytes[5], bytes[6]) = ((extensions.len() + datagram.len()) as u8, next);
        [&bytes[..], &[0x20; 16], &[0x21; 16], extensions, &datagram[..]].concat()
    };
    let mut long = vec![44, 11];
    long.resize(96, 0);
    long.extend([17, 0, 0, 1, 0, 0, 0, 9]);
    assert_eq!(source(&v6(0, &long)), source(&v6(17, &[])));
}

const UDP: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";

/// Tests that the socket is chosen by the lower half of the flow hash, and the source port by the upper one among all
/// dynamic ports (RFC 8086, section 3.2.1).
#[test]
fn socket_and_source_port_are_each_chosen_by_a_half_of_the_flow_hash() {
    let seed = [7; 16];
    for port in 0..64_u16 {
        let mut bytes = hex(UDP);
        put(&mut bytes, 20, port);
        let mut packet = load(&bytes);
        let hash = crate::encap::Flows::new(seed).of(&packet);
        let config = Config { slots: SourcePorts::Slots(16), seed, ..sender(Mode::Ip, Carrier::Fou) };
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        let sent = bytes_of(&packet);
        let source = u64::from(u16::from_be_bytes([sent[20], sent[21]]));
        let slot = u64::from(packet.outer.unwrap().slot);
        assert_eq!((slot, source), (hash % (1 << 32) % 16, 49_152 + (hash >> 32) % 16_384), "source port {port}");
    }
}

/// Tests that a raw port has one socket for each version of IP where both are inside, and one otherwise.
#[test]
fn what_goes_without_udp_takes_the_socket_of_its_protocol_number() {
    let v6 = format!("60000000000a1140 {} {} 03e807d0000a0000 6869", "20".repeat(16), "21".repeat(16));
    let v6 = v6.as_str();
    let gre = Mode::Gre(GreOptions::default());
    for (mode, inner, slot) in
        [(Mode::Ip, UDP, 0), (Mode::Ip, v6, 1), (Mode::Ipip, UDP, 0), (Mode::Sit, v6, 0), (gre, UDP, 0), (gre, v6, 0)]
    {
        let config = Config { slots: SourcePorts::Slots(16), ..sender(mode, Carrier::Bare) };
        let mut packet = load(&hex(inner));
        Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
        assert_eq!(packet.outer.unwrap().slot, slot, "{mode:?}");
    }
}
