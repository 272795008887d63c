//! Tests of translation, judged by the oracle and by a client and a server that do not know of it.

mod fragments;
mod limits;
mod pressure;
mod resets;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use segue::gso::{Frames, Limits, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue_datapath::nat::{Config, Done, Nat, Part, Protocol, Refusal, TcpState};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ip, L4, Shim, Tunnel, Udp, V4};
use segue_testkit::oracle::{self, Ports, Report, verify};

const SECOND: u64 = 1_000_000_000;
const OUTSIDE: [u8; 4] = [198, 19, 9, 9];
const SERVER: ([u8; 4], u16) = ([198, 19, 0, 1], 80);
const CLIENT: ([u8; 4], u16) = ([198, 18, 0, 1], 5555);

type Endpoint = ([u8; 4], u16);
type Boxed = Box<Packet<Vec<u8>>>;

fn nat(change: impl FnOnce(&mut Config)) -> Nat {
    let mut config = Config::new(Ipv4Addr::from(OUTSIDE), 77);
    change(&mut config);
    Nat::new(config)
}

fn ip(from: [u8; 4], to: [u8; 4]) -> Ip {
    Ip::V4(V4 { src: from, dst: to, id: 5, df: false, ..V4::new(0, 1, 2) })
}

fn udp(from: Endpoint, to: Endpoint, len: usize) -> build::Packet {
    let l4 = L4::Udp(Udp { src_port: from.1, dst_port: to.1, checksum: true });
    build::Packet { ip: ip(from.0, to.0), l4, data: Rng::new(len as u64).bytes(len) }
}

fn tcp(from: Endpoint, to: Endpoint, flags: u8, len: usize) -> build::Packet {
    let (src_port, dst_port) = (from.1, to.1);
    let l4 = L4::Tcp(build::Tcp { src_port, dst_port, seq: 7, ack: 1, flags, window: 9, urgent: 0, options: vec![] });
    build::Packet { ip: ip(from.0, to.0), l4, data: Rng::new(len as u64).bytes(len) }
}

/// Sequence numbers of both sides of some connections, and packets that carry them.
#[derive(Default)]
struct Talk(BTreeMap<Endpoint, [u32; 2]>);

impl Talk {
    /// Returns the next segment of a connection between the client and `with`, in its form before translation.
    fn segment(&mut self, is_outbound: bool, with: Endpoint, flags: u8, len: usize) -> build::Packet {
        let next = self.0.entry(with).or_insert([1000, 0xffff_fff0]);
        let (own, other) = if is_outbound { (0, 1) } else { (1, 0) };
        let (from, to) = if is_outbound { (CLIENT, with) } else { (with, (OUTSIDE, CLIENT.1)) };
        let mut packet = tcp(from, to, flags, len);
        if let L4::Tcp(header) = &mut packet.l4 {
            (header.seq, header.ack) = (next[own], if flags & 0x10 != 0 { next[other] } else { 0 });
        }
        next[own] = next[own].wrapping_add(len as u32 + u32::from(flags & 2) / 2 + u32::from(flags & 1));
        packet
    }

    /// Sends the next segment of a connection.
    fn send(
        &mut self,
        nat: &mut Nat,
        is_outbound: bool,
        with: Endpoint,
        flags: u8,
        len: usize,
        now: u64,
    ) -> Result<(), Refusal> {
        let packet = self.segment(is_outbound, with, flags, len);
        if is_outbound { out(nat, &packet, now).map(drop) } else { into(nat, &packet, now).map(drop) }
    }
}

fn echo(from: [u8; 4], to: [u8; 4], kind: u8, id: u16) -> build::Packet {
    let [a, b] = id.to_be_bytes();
    build::Packet { ip: ip(from, to), l4: L4::Icmp(kind, 0, [a, b, 0, 9]), data: vec![7; 57] }
}

/// Returns an ICMP error that quotes the first bytes of `quoted`.
fn error(from: [u8; 4], to: [u8; 4], kind: u8, quoted: &[u8], len: usize) -> build::Packet {
    build::Packet { ip: ip(from, to), l4: L4::Icmp(kind, 1, [0; 4]), data: quoted[..len.min(quoted.len())].to_vec() }
}

fn load(bytes: &[u8]) -> Boxed {
    let mut packet = Box::<Packet<Vec<u8>>>::default();
    packet.load(Frag::all(bytes.to_vec()), Start::Ip, &Tunnels::NONE.with_gue(6080));
    packet
}

fn bytes(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

fn copy(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

fn judge(bytes: &[u8]) -> Report {
    verify(bytes, oracle::Start::Ip, &Ports { gue: vec![6080], ..Ports::default() }).unwrap()
}

/// Translates a packet outbound and returns it.
fn out(nat: &mut Nat, packet: &build::Packet, now: u64) -> Result<Vec<u8>, Refusal> {
    let mut packet = load(&packet.bytes());
    match nat.outbound(&mut packet, Nanos(now), &mut copy)? {
        Done::Translated => Ok(bytes(&packet)),
        done => panic!("{done:?}"),
    }
}

fn into(nat: &mut Nat, packet: &build::Packet, now: u64) -> Result<Vec<u8>, Refusal> {
    into_bytes(nat, &packet.bytes(), now)
}

fn into_bytes(nat: &mut Nat, packet: &[u8], now: u64) -> Result<Vec<u8>, Refusal> {
    let mut packet = load(packet);
    let before = bytes(&packet);
    match nat.inbound(&mut packet, Nanos(now), &mut copy) {
        Ok(Done::Translated) => Ok(bytes(&packet)),
        Ok(done) => panic!("{done:?}"),
        Err(reason) => {
            assert_eq!(bytes(&packet), before);
            Err(reason)
        }
    }
}

#[test]
fn a_connection_goes_out_and_its_answers_come_back() {
    for checksum in [true, false] {
        let mut nat = nat(|_| ());
        let mut there = udp(CLIENT, SERVER, 100);
        there.l4 = L4::Udp(Udp { src_port: CLIENT.1, dst_port: SERVER.1, checksum });
        let left = out(&mut nat, &there, 0).unwrap();
        there.ip = ip(OUTSIDE, SERVER.0);
        if checksum {
            assert_eq!(left, there.bytes(), "the port is kept, since it is free");
        }
        judge(&left);
        let mut back = udp(SERVER, (OUTSIDE, CLIENT.1), 33);
        back.l4 = L4::Udp(Udp { src_port: SERVER.1, dst_port: CLIENT.1, checksum });
        let came = into(&mut nat, &back, 0).unwrap();
        back.ip = ip(SERVER.0, CLIENT.0);
        assert_eq!(came, back.bytes());
    }
    let mut nat = nat(|_| ());
    let left = out(&mut nat, &tcp(CLIENT, SERVER, 2, 0), 0).unwrap();
    assert_eq!(left, tcp((OUTSIDE, CLIENT.1), SERVER, 2, 0).bytes());
    let came = into(&mut nat, &tcp(SERVER, (OUTSIDE, CLIENT.1), 0x12, 0), 0).unwrap();
    assert_eq!(came, tcp(SERVER, CLIENT, 0x12, 0).bytes());
}

#[test]
fn mapping_is_endpoint_independent_and_outside_ports_are_exclusive() {
    let mut nat = nat(|_| ());
    let (other, stranger) = (([198, 18, 0, 2], CLIENT.1), ([203, 0, 113, 7], 9));
    let port = |bytes: &[u8]| judge(bytes).transport.unwrap().ports.0;
    // TCP has ports of its own.
    let kinds: [fn(Endpoint, Endpoint) -> build::Packet; 2] =
        [|from, to| udp(from, to, 5), |from, to| tcp(from, to, 2, 0)];
    for packet in kinds {
        let mut seen = Vec::new();
        for from in [CLIENT, other] {
            let ports = [SERVER, ([198, 19, 0, 2], 80), ([198, 19, 0, 2], 81)]
                .map(|to| port(&out(&mut nat, &packet(from, to), 0).unwrap()));
            assert!(ports.iter().all(|port| *port == ports[0]));
            seen.push(ports[0]);
        }
        assert!(seen[0] == CLIENT.1 && seen[1] != CLIENT.1 && seen[1] >= 1024);
        // Any host may use the port of a mapping, but no other port.
        assert!(into(&mut nat, &packet(stranger, (OUTSIDE, seen[1])), 0).is_ok());
        let unknown = into(&mut nat, &packet(stranger, (OUTSIDE, seen[1] ^ 1)), 0);
        assert_eq!(unknown, Err(Refusal::NoMapping));
    }
    // So have queries, by their identifier (RFC 5508, REQ-1 a).
    let id = |bytes: &[u8]| u16::from_be_bytes([bytes[24], bytes[25]]);
    let ids = [(CLIENT.0, SERVER.0), (CLIENT.0, [198, 19, 0, 2]), (other.0, SERVER.0)]
        .map(|(from, to)| id(&out(&mut nat, &echo(from, to, 8, 77), 0).unwrap()));
    assert!(ids[0] == ids[1] && ids[0] != ids[2], "{ids:?}");
}

#[test]
fn a_train_is_rewritten_once_and_every_segment_is_good() {
    let mut nat = nat(|_| ());
    // Another host has the port, so that it changes.
    out(&mut nat, &tcp(([198, 18, 0, 2], CLIENT.1), SERVER, 2, 0), 0).unwrap();
    out(&mut nat, &udp(([198, 18, 0, 2], CLIENT.1), SERVER, 2), 0).unwrap();
    for (whole, kind) in
        [(tcp(CLIENT, SERVER, 0x18, 20_001), GsoKind::Tcp), (udp(CLIENT, SERVER, 20_001), GsoKind::Udp)]
    {
        for csum in [TrainCsum::Partial, TrainCsum::Stale] {
            let mut train = load(&build::prime(&whole.bytes()).unwrap());
            train.offload.unit = Unit::Train { csum, gso: Gso { kind, size: 1400, fixed_ids: 0 } };
            nat.outbound(&mut train, Nanos(0), &mut copy).unwrap();
            let mut frames = Frames::new();
            assert_eq!(split_linear(&train, &Limits::NONE, &mut frames), Ok(15));
            for frame in frames.frames() {
                let report = judge(frames.bytes(frame));
                assert_eq!(report.levels[0].src, OUTSIDE);
                assert_ne!(report.transport.unwrap().ports.0, CLIENT.1);
            }
        }
    }
}

#[test]
fn checksums_in_every_state_are_followed() {
    let mut nat = nat(|config| config.ports = (5000, 5010));
    for whole in [tcp(CLIENT, SERVER, 0x18, 101), udp(CLIENT, SERVER, 101)] {
        for csum in [Csum::Unknown, Csum::Verified, Csum::Partial, Csum::Complete(segue::checksum::Sum::ZERO)] {
            let primed = if csum == Csum::Partial { build::prime(&whole.bytes()).unwrap() } else { whole.bytes() };
            let mut packet = load(&primed);
            packet.offload.unit = Unit::Whole(csum);
            nat.outbound(&mut packet, Nanos(0), &mut copy).unwrap();
            let is_complete = matches!(csum, Csum::Complete(_));
            assert_eq!(packet.offload.unit, Unit::Whole(if is_complete { Csum::Unknown } else { csum }));
            let mut frames = Frames::new();
            split_linear(&packet, &Limits::NONE, &mut frames).unwrap();
            judge(frames.bytes(&frames.frames()[0]));
        }
        // A wrong checksum stays wrong.
        let mut bad = whole.bytes();
        *bad.last_mut().unwrap() ^= 1;
        let mut packet = load(&bad);
        nat.outbound(&mut packet, Nanos(0), &mut copy).unwrap();
        assert!(verify(&bytes(&packet), oracle::Start::Ip, &Ports::default()).is_err());
    }
    // So does that of an outer UDP header.
    let udp = Udp { src_port: 50_000, dst_port: 6080, checksum: true };
    let inside = tcp(CLIENT, SERVER, 0x18, 50).bytes();
    let tunnel = Tunnel { ip: ip(CLIENT.0, SERVER.0), udp: Some((udp, Shim::Gue(None))), gre: None, ethernet: None };
    let mut packet = load(&tunnel.wrap(&inside));
    nat.outbound(&mut packet, Nanos(0), &mut copy).unwrap();
    let report = judge(&bytes(&packet));
    assert_eq!((&report.levels[0].src[..], &report.levels[1].src[..]), (&OUTSIDE[..], &CLIENT.0[..]));
}

#[test]
fn random_packets_keep_good_checksums_good() {
    let mut nat = nat(|config| config.ports = (40_000, 60_000));
    let mut rng = Rng::new(9);
    for round in 0..2000 {
        let from = ([198, 18, rng.below(4) as u8, rng.below(200) as u8 + 1], rng.below(65_536) as u16);
        let to = ([198, 19, rng.below(200) as u8, 1], rng.below(65_536) as u16);
        let len = rng.below(300);
        let packet = match round % 3 {
            0 => udp(from, to, len),
            1 => tcp(from, to, 0x10, len),
            _ => echo(from.0, to.0, 8, from.1),
        };
        let left = out(&mut nat, &packet, 0).unwrap();
        let report = judge(&left);
        let port = match round % 3 {
            2 => u16::from_be_bytes([left[24], left[25]]),
            _ => report.transport.unwrap().ports.0,
        };
        let back = match round % 3 {
            0 => udp(to, (OUTSIDE, port), len),
            1 => tcp(to, (OUTSIDE, port), 0x10, len),
            _ => echo(to.0, OUTSIDE, 0, port),
        };
        let came = into(&mut nat, &back, 0).unwrap();
        let expected = match round % 3 {
            0 => udp(to, from, len),
            1 => tcp(to, from, 0x10, len),
            _ => echo(to.0, from.0, 0, from.1),
        };
        assert_eq!(came, expected.bytes());
    }
}

#[test]
fn errors_are_translated_with_the_packet_that_they_quote() {
    let router = [203, 0, 113, 1];
    let ports = |config: &mut Config| config.ports = (40_000, 60_000);
    for len in [28, 40, 41, 200] {
        let mut nat = nat(ports);
        for sent in [udp(CLIENT, SERVER, 300), tcp(CLIENT, SERVER, 0x18, 300), echo(CLIENT.0, SERVER.0, 8, 77)] {
            // A router outside reports an error about an outbound packet.
            let left = out(&mut nat, &sent, 0).unwrap();
            let came = into(&mut nat, &error(router, OUTSIDE, 11, &left, len), 0).unwrap();
            judge(&came);
            assert_eq!(came, error(router, CLIENT.0, 11, &sent.bytes(), len).bytes());
            // Another one reports the MTU of a link (RFC 5508, section 7.1.2).
            let too_long = |to: [u8; 4], quoted: &[u8]| build::Packet {
                ip: ip(router, to),
                l4: L4::Icmp(3, 4, [0, 0, 5, 0x78]),
                data: quoted[..quoted.len().min(len)].to_vec(),
            };
            let came = into(&mut nat, &too_long(OUTSIDE, &left), 0).unwrap();
            assert_eq!(came, too_long(CLIENT.0, &sent.bytes()).bytes());
        }
        // The host inside reports an error about a delivered packet; so does a router inside, whose address is not
        // shown.
        for complains in [CLIENT.0, [198, 18, 77, 1]] {
            let port = judge(&out(&mut nat, &udp(CLIENT, SERVER, 300), 0).unwrap()).transport.unwrap().ports.0;
            let answer = udp(SERVER, (OUTSIDE, port), 200);
            let came = into(&mut nat, &answer, 0).unwrap();
            let left = out(&mut nat, &error(complains, SERVER.0, 3, &came, len), 0).unwrap();
            judge(&left);
            assert_eq!(left, error(OUTSIDE, SERVER.0, 3, &answer.bytes(), len).bytes());
        }
    }
    let mut nat = nat(ports);
    let stray = udp((OUTSIDE, 40_001), SERVER, 30).bytes();
    for (quoted, reason) in [
        (stray.clone(), Refusal::NoMapping),
        (udp(([198, 19, 1, 1], 9), SERVER, 30).bytes(), Refusal::NoMapping),
        (stray[..27].to_vec(), Refusal::Malformed),
        (vec![], Refusal::Malformed),
        (vec![0x41; 40], Refusal::Malformed),
    ] {
        assert_eq!(into(&mut nat, &error(router, OUTSIDE, 3, &quoted, 100), 0), Err(reason));
    }
}

/// Tests that no ICMP error of either side ends a mapping or a connection (RFC 4787, REQ-12; RFC 5382, REQ-10): packets
/// from outside pass after it until the time of the mapping is over, without another packet from inside.
#[test]
fn mappings_and_connections_outlive_icmp_errors() {
    /// A flow's last packet as it left, the answer to it, and the seconds for which its mapping lives.
    fn begin(nat: &mut Nat, flow: &str) -> (Vec<u8>, build::Packet, u64) {
        let mut talk = Talk::default();
        match flow {
            "UDP" => (out(nat, &udp(CLIENT, SERVER, 50), 0).unwrap(), udp(SERVER, (OUTSIDE, CLIENT.1), 50), 300),
            "a connection that opens" => {
                let left = out(nat, &talk.segment(true, SERVER, 2, 0), 0).unwrap();
                (left, talk.segment(false, SERVER, 0x12, 0), 240)
            }
            _ => {
                for (is_outbound, flags) in [(true, 2), (false, 0x12), (true, 0x10)] {
                    talk.send(nat, is_outbound, SERVER, flags, 0, 0).unwrap();
                }
                let left = out(nat, &talk.segment(true, SERVER, 0x18, 50), 0).unwrap();
                (left, talk.segment(false, SERVER, 0x18, 50), 7440)
            }
        }
    }
    // All codes of unreachable (RFC 1812, section 5.2.7.1); source quench, time exceeded, parameter problem.
    let errors: Vec<(u8, u8)> = (0..16).map(|code| (3, code)).chain([(4, 0), (11, 0), (11, 1), (12, 0)]).collect();
    for flow in ["UDP", "a connection that opens", "an open connection"] {
        for &(kind, code) in &errors {
            let report = |from, to, quoted: &[u8]| build::Packet {
                ip: ip(from, to),
                l4: L4::Icmp(kind, code, [0; 4]),
                data: quoted[..quoted.len().min(60)].to_vec(),
            };
            // From the server, from a router on the way to it, and from the host inside.
            for reporter in [SERVER.0, [203, 0, 113, 1], CLIENT.0] {
                let case = format!("{flow}, type {kind}, code {code}, {reporter:?}");
                let mut nat = nat(|_| ());
                let (left, answer, life) = begin(&mut nat, flow);
                let came = into(&mut nat, &answer, 0).unwrap();
                let state = |nat: &Nat| nat.mappings(Nanos(0)).map(|mapping| mapping.connections.state()).collect();
                let before: Vec<TcpState> = state(&nat);
                let passed = match reporter {
                    inside if inside == CLIENT.0 => out(&mut nat, &report(inside, SERVER.0, &came), SECOND),
                    outside => into(&mut nat, &report(outside, OUTSIDE, &left), SECOND),
                };
                assert!(passed.is_ok(), "{case}: {passed:?}");
                for second in [1, life] {
                    assert_eq!(into(&mut nat, &answer, second * SECOND), Ok(came.clone()), "{case}, {second} s");
                }
                assert_eq!((before.len(), state(&nat)), (1, before), "{case}");
            }
        }
    }
}

#[test]
fn hosts_inside_reach_each_other_by_outside_addresses() {
    let mut nat = nat(|_| ());
    let (a, b) = (CLIENT, ([198, 18, 0, 2], 2000));
    out(&mut nat, &udp(b, SERVER, 1), 0).unwrap();
    let mut packet = load(&udp(a, (OUTSIDE, 2000), 50).bytes());
    assert_eq!(nat.outbound(&mut packet, Nanos(0), &mut copy), Ok(Done::Hairpin));
    assert_eq!(bytes(&packet), udp((OUTSIDE, a.1), b, 50).bytes());
    let mut answer = load(&udp(b, (OUTSIDE, a.1), 50).bytes());
    assert_eq!(nat.outbound(&mut answer, Nanos(0), &mut copy), Ok(Done::Hairpin));
    assert_eq!(bytes(&answer), udp((OUTSIDE, 2000), a, 50).bytes());
    // One of the two hosts reports an error (RFC 5508, REQ-7), or a router on the path to it.
    for complains in [b.0, [198, 18, 77, 1]] {
        for len in [28, 60] {
            let mut complaint = load(&error(complains, OUTSIDE, 3, &udp((OUTSIDE, a.1), b, 50).bytes(), len).bytes());
            assert_eq!(nat.outbound(&mut complaint, Nanos(0), &mut copy), Ok(Done::Hairpin));
            judge(&bytes(&complaint));
            assert_eq!(bytes(&complaint), error(OUTSIDE, a.0, 3, &udp(a, (OUTSIDE, 2000), 50).bytes(), len).bytes());
        }
    }
    for quoted in [udp(SERVER, b, 50), udp((OUTSIDE, 77), b, 50)] {
        assert_eq!(out(&mut nat, &error(b.0, OUTSIDE, 3, &quoted.bytes(), 60), 0), Err(Refusal::NoMapping));
    }
    let unmapped = out(&mut nat, &udp(a, (OUTSIDE, 2001), 50), 0);
    assert_eq!(unmapped, Err(Refusal::NoMapping));
    let router = out(&mut nat, &echo(a.0, OUTSIDE, 8, 5), 0);
    assert_eq!(router, Err(Refusal::NoMapping));
}

#[test]
fn a_forwarded_port_is_open_and_stays() {
    let mut nat = nat(|_| ());
    let inside = (Ipv4Addr::from(CLIENT.0), 8080);
    nat.forward(Protocol::Tcp, 443, inside).unwrap();
    assert_eq!(nat.forward(Protocol::Tcp, 443, (Ipv4Addr::from(CLIENT.0), 1)), Err(Refusal::Ports));
    assert_eq!(nat.forward(Protocol::Tcp, 444, inside), Err(Refusal::Ports));
    let year = 365 * 86_400 * SECOND;
    let came = into(&mut nat, &tcp(SERVER, (OUTSIDE, 443), 2, 0), year).unwrap();
    assert_eq!(came, tcp(SERVER, (CLIENT.0, 8080), 2, 0).bytes());
    let left = out(&mut nat, &tcp((CLIENT.0, 8080), SERVER, 0x12, 0), year).unwrap();
    assert_eq!(left, tcp((OUTSIDE, 443), SERVER, 0x12, 0).bytes());
    nat.expire(Nanos(2 * year));
    assert_eq!(nat.len(), 1);
}

#[test]
fn mappings_end_after_their_time_and_not_before() {
    let alive = |nat: &mut Nat, packet: &build::Packet, now| into(nat, packet, now).is_ok();
    let mut one = nat(|_| ());
    out(&mut one, &udp(CLIENT, SERVER, 1), 0).unwrap();
    let back = udp(SERVER, (OUTSIDE, CLIENT.1), 1);
    assert!(alive(&mut one, &back, 300 * SECOND));
    out(&mut one, &udp(CLIENT, SERVER, 1), 300 * SECOND).unwrap();
    assert!(alive(&mut one, &back, 600 * SECOND), "it was used");
    assert!(!alive(&mut one, &back, 601 * SECOND));
    // TCP: opening, open, closing.
    let far = |flags| tcp(SERVER, (OUTSIDE, CLIENT.1), flags, 0);
    let mut two = nat(|_| ());
    out(&mut two, &tcp(CLIENT, SERVER, 2, 0), 0).unwrap();
    assert!(!alive(&mut two, &far(0x12), 241 * SECOND));
    let open = || {
        let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
        for (is_outbound, flags) in [(true, 2), (false, 0x12), (true, 0x10)] {
            talk.send(&mut nat, is_outbound, SERVER, flags, 0, 0).unwrap();
        }
        (nat, talk)
    };
    assert!(alive(&mut open().0, &far(0x10), 7440 * SECOND));
    assert!(!alive(&mut open().0, &far(0x10), 7441 * SECOND));
    // Closed by both sides, by one of them alone, reset.
    for (flags, is_closed) in [(&[0x11, 0x11, 0x10][..], true), (&[0x11, 0x10], false), (&[0x14], true)] {
        let (mut closed, mut talk) = open();
        for (number, flags) in flags.iter().enumerate() {
            talk.send(&mut closed, number % 2 == 1, SERVER, *flags, 0, 0).unwrap();
        }
        assert_eq!(alive(&mut closed, &far(0x10), 241 * SECOND), !is_closed, "{flags:x?}");
    }
    // Sweeping frees the slots.
    let mut swept = nat(|_| ());
    for port in 1..2000 {
        out(&mut swept, &udp((CLIENT.0, port), SERVER, 1), 0).unwrap();
    }
    swept.expire(Nanos(100 * SECOND));
    assert_eq!(swept.len(), 1999);
    (0..20).for_each(|_| swept.expire(Nanos(301 * SECOND)));
    assert!(swept.is_empty());
}

#[test]
fn tcp_mapping_expires_with_its_longest_lived_connection() {
    const DATA: u8 = 0x18;
    let other = |number: u16| ([198, 19, 0, 2], 8000 + number);
    let state = |nat: &Nat| nat.mappings(Nanos(0)).next().unwrap().connections.state();
    // Each step has direction, peer, flags and payload length, and the state of the mapping after it.
    let run = |steps: &[(bool, Endpoint, u8, usize, TcpState)]| {
        let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
        for (number, (is_outbound, with, flags, len, expected)) in steps.iter().enumerate() {
            talk.send(&mut nat, *is_outbound, *with, *flags, *len, 0).unwrap();
            assert_eq!(state(&nat), *expected, "{number}: {:?}", steps[number]);
        }
        let is_open = state(&nat) == TcpState::Open;
        let idle = into(&mut nat, &tcp(SERVER, (OUTSIDE, CLIENT.1), DATA, 5), 7440 * SECOND);
        assert_eq!(idle.is_ok(), is_open);
    };
    let opened = [
        (true, SERVER, 2, 0, TcpState::Opening),
        (false, SERVER, 0x12, 0, TcpState::Opening),
        (true, SERVER, 0x10, 0, TcpState::Open),
    ];
    // The connection is older than the translator: there is no SYN.
    run(&[(true, SERVER, DATA, 9, TcpState::Opening), (false, SERVER, 0x10, 0, TcpState::Open)]);
    // Both sides open at once.
    run(&[
        (true, SERVER, 2, 0, TcpState::Opening),
        (false, SERVER, 2, 0, TcpState::Opening),
        (true, SERVER, 0x12, 0, TcpState::Opening),
        (false, SERVER, 0x12, 0, TcpState::Opening),
        (true, SERVER, 0x10, 0, TcpState::Open),
    ]);
    // Another connection of the same port is closed, or never opened.
    let another = [
        (true, other(0), 2, 0, TcpState::Open),
        (false, other(0), 0x12, 0, TcpState::Open),
        (true, other(0), 0x10, 0, TcpState::Open),
        (true, other(0), 0x11, 0, TcpState::Open),
        (false, other(0), 0x11, 0, TcpState::Open),
        (true, other(1), 2, 0, TcpState::Open),
        (false, other(1), 0x14, 0, TcpState::Open),
    ];
    run(&[&opened[..], &another].concat());
    // Packets of strangers change nothing.
    run(&[&opened[..], &[(false, other(2), 4, 0, TcpState::Open), (false, other(3), 0x11, 0, TcpState::Open)]].concat());
    // A reset after which the connection goes on all the same; one with a packet of one side still under way.
    let reset = [(false, SERVER, 4, 0, TcpState::Closing), (true, SERVER, DATA, 9, TcpState::Closing)];
    run(&[&opened[..], &reset, &[(false, SERVER, 0x10, 0, TcpState::Open)]].concat());
    run(&[&opened[..], &reset, &[(false, SERVER, 4, 0, TcpState::Closing)]].concat());
    // Both sides close at once and acknowledge, which ends the connection; data in both directions do not; a SYN begins
    // a new one.
    let closed = [
        (true, SERVER, 0x11, 0, TcpState::Open),
        (false, SERVER, 0x11, 0, TcpState::Closing),
        (true, SERVER, 0x10, 0, TcpState::Closing),
        (false, SERVER, 0x10, 0, TcpState::Closing),
    ];
    run(&[&opened[..], &closed].concat());
    let goes_on = [(true, SERVER, DATA, 9, TcpState::Closing), (false, SERVER, DATA, 9, TcpState::Open)];
    run(&[&opened[..], &closed, &goes_on].concat());
    run(&[&opened[..], &closed, &opened].concat());
    // With more open connections than are tracked, only time ends the mapping; others do not keep it.
    let open = |with| [(true, with, 2), (false, with, 0x12), (true, with, 0x10)];
    let many = (0..9).flat_map(|number| open(other(number)));
    let many: Vec<_> = many.map(|(is_outbound, with, flags)| (is_outbound, with, flags, 0, TcpState::Open)).collect();
    run(&[&opened[..], &many, &[(true, SERVER, 0x14, 0, TcpState::Open)]].concat());
    let begun: Vec<_> = (0..9).map(|number| (true, other(number), 2, 0, TcpState::Open)).collect();
    run(&[&opened[..], &begun, &[(true, SERVER, 0x14, 0, TcpState::Opening)]].concat());
}

#[test]
fn nat_tables_are_bounded_and_evict_or_refuse_when_full() {
    let mut nat = nat(|config| (config.most, config.most_per_host) = (10, 4));
    let from = |host: u8, port| ([198, 18, 0, host], port);
    // With an answer and another packet, mappings are kept for their time.
    let answered = |nat: &mut Nat, from: Endpoint, now| {
        let left = out(nat, &udp(from, SERVER, 1), now)?;
        into(nat, &udp(SERVER, (OUTSIDE, judge(&left).transport.unwrap().ports.0), 1), now)?;
        out(nat, &udp(from, SERVER, 1), now).map(drop)
    };
    for port in 1..=4 {
        answered(&mut nat, from(1, port), 0).unwrap();
    }
    assert_eq!(answered(&mut nat, from(1, 5), 0), Err(Refusal::HostFull));
    for port in 1..=6 {
        answered(&mut nat, from(2 + port as u8, port), 100 * SECOND).unwrap();
    }
    // The new host has as many as those that have least.
    assert_eq!(answered(&mut nat, from(3, 7), 100 * SECOND).err(), None);
    assert_eq!((nat.len(), nat.early_drops()), (10, 1), "one of the host that has most gave way");
    assert!(answered(&mut nat, from(9, 1), 401 * SECOND).is_ok());
    assert_eq!(nat.mappings(Nanos(401 * SECOND)).count(), 1);
    // No port is left.
    let mut few = self::nat(|config| config.ports = (5000, 5002));
    for port in 1..=3 {
        answered(&mut few, from(1, port), 0).unwrap();
    }
    assert_eq!(out(&mut few, &udp(from(1, 4), SERVER, 1), 0), Err(Refusal::Ports));
    assert!(out(&mut few, &udp(from(1, 4), SERVER, 1), 301 * SECOND).is_ok());
    // All ports are used again, whichever host had them first.
    let mut all = self::nat(|config| (config.ports, config.most_per_host) = ((1024, 65_535), 65_536));
    for number in 0..64_512_u32 {
        let (host, port) = (1 + number / 16_000, 1024 + (number % 16_000) as u16);
        assert!(out(&mut all, &udp(from(host as u8, port), SERVER, 1), 0).is_ok(), "{number}");
    }
    assert!(out(&mut all, &udp(from(9, 1), SERVER, 1), 0).is_ok());
    assert_eq!((all.len(), all.early_drops()), (64_512, 1), "the first of all gave way, since nobody answered it");
    assert_eq!(all.mappings(Nanos(0)).find(|mapping| mapping.inside == (0xc612_0001, 1024)).map(|_| ()), None);
}

#[test]
fn protocols_without_ports_are_dropped_with_a_reason() {
    let mut nat = nat(|_| ());
    let raw = |ip, protocol| build::Packet { ip, l4: L4::Raw(protocol), data: vec![1; 40] };
    let v6 = Ip::V6(build::V6::new(0, 1, 2));
    for (packet, reason) in [
        (raw(ip(CLIENT.0, SERVER.0), 50), Refusal::Protocol),
        (raw(v6, 50), Refusal::NotV4),
        (echo(CLIENT.0, SERVER.0, 5, 1), Refusal::Protocol),
    ] {
        let before = packet.bytes();
        assert_eq!(out(&mut nat, &packet, 0), Err(reason));
        assert_eq!(packet.bytes(), before);
    }
    // No buffer is free for an ICMP message.
    let mut packet = load(&echo(CLIENT.0, SERVER.0, 8, 1).bytes());
    nat = self::nat(|config| config.ports = (500, 600));
    assert_eq!(nat.outbound(&mut packet, Nanos(0), &mut |_| None), Err(Refusal::Memory));
    assert_eq!(bytes(&packet), echo(CLIENT.0, SERVER.0, 8, 1).bytes());
    // A packet that is not for the outside address is unchanged.
    let mut other = load(&udp(SERVER, ([198, 19, 5, 5], 1), 1).bytes());
    assert_eq!(nat.inbound(&mut other, Nanos(0), &mut copy), Ok(Done::Untouched));
}

#[test]
fn nothing_makes_it_panic() {
    let mut nat = nat(|_| ());
    let mut rng = Rng::new(4);
    let quoted = udp((OUTSIDE, 1000), SERVER, 30).bytes();
    let forms = [
        udp(CLIENT, SERVER, 40).bytes(),
        tcp(SERVER, (OUTSIDE, 1000), 0x18, 40).bytes(),
        echo(CLIENT.0, SERVER.0, 8, 1).bytes(),
        error(SERVER.0, OUTSIDE, 3, &quoted, 100).bytes(),
    ];
    for round in 0..20_000 {
        let mut damaged = forms[rng.below(forms.len())].clone();
        for _ in 0..rng.below(4) {
            let at = rng.below(damaged.len());
            damaged[at] = rng.next_u64() as u8;
        }
        damaged.truncate(rng.below(damaged.len() + 1));
        let mut packet = load(&damaged);
        let len = packet.len();
        let done = match round % 2 {
            0 => nat.outbound(&mut packet, Nanos(round), &mut copy),
            _ => nat.inbound(&mut packet, Nanos(round), &mut copy),
        };
        assert_eq!(packet.len(), len);
        if done.is_err() {
            assert_eq!(bytes(&packet), damaged);
        }
    }
}
