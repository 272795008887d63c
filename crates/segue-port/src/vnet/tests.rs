//! Tests of receiving packets with a virtio-net header.

use std::net::IpAddr;

use segue::easy::Splitter;
use segue::gro::{self, Gro, Popped, Profile};
use segue::gso::{self, Limits, Segment, SegmentCsum};
use segue::packet::{Csum, Gso, GsoKind, Layout, TrainCsum};
use segue::time::Nanos;
use segue::virtio::{
    DATA_VALID, Form, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM, Place, State, check,
};
use segue_testkit::{Rng, build, flow};

use super::*;
use crate::batch::TxBatch;
use crate::page::PagePool;
use crate::testing::{self, Fill, bytes, tcp as segment, udp as datagram};

fn ends(v4: bool) -> (IpAddr, IpAddr) {
    let parse = |text: &str| text.parse().unwrap();
    if v4 { (parse("198.18.0.1"), parse("198.18.0.2")) } else { (parse("2001:db8::1"), parse("2001:db8::2")) }
}

fn tcp_packet(v4: bool, flags: u8, payload: usize) -> Vec<u8> {
    testing::ip_packet(ends(v4), 6, 16, &segment((1, 2), 3, 4, flags, &bytes(payload, 0)), Fill::Primed)
}

fn udp_packet(v4: bool, payload: usize) -> Vec<u8> {
    testing::ip_packet(ends(v4), 17, 6, &datagram(1, 2, &bytes(payload, 0)), Fill::Primed)
}

fn owed(start: u16, offset: u16, gso_type: u8, gso_size: u16) -> VirtioNet {
    VirtioNet { flags: NEEDS_CSUM, gso_type, gso_size, csum_start: start, csum_offset: offset, ..VirtioNet::default() }
}

fn judge(header: VirtioNet, packet: &[u8]) -> Result<State, Refusal> {
    let mut pages = PagePool::new(1);
    check(&header, &testing::load(&mut pages, packet))
}

fn train(kind: GsoKind, size: u16) -> Result<State, Refusal> {
    Ok(State::Unit(Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } }))
}

const PARTIAL: Result<State, Refusal> = Ok(State::Unit(Unit::Whole(Csum::Partial)));

#[test]
fn a_frame_that_is_not_parsed_has_the_state_that_the_check_gives_a_parsed_one() {
    let udp = udp_packet(true, 100);
    let (mut no_checksum, mut fragment) = (udp.clone(), udp.clone());
    no_checksum[26..28].fill(0);
    fragment[6] |= 0x20;
    let inside = testing::ip_packet(ends(true), 4, 0, &udp, Fill::Primed);
    let padded = [&tcp_packet(true, 0x10, 0)[..], &[0; 6]].concat();
    let short = tcp_packet(false, 0x10, 10)[..50].to_vec();
    let plain = [tcp_packet(true, 0x10, 100), tcp_packet(false, 0x10, 100), udp, udp_packet(false, 9), padded];
    let others = [no_checksum, fragment, inside, short, vec![0x45], vec![7; 60]];
    for (at, packet) in plain.iter().chain(&others).enumerate() {
        for flags in [0, DATA_VALID] {
            let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
            let header = VirtioNet { flags, ..VirtioNet::default() };
            let ranges = testing::ranges(&mut PagePool::new(1), packet, usize::MAX);
            deliver(&header, ranges.into_iter(), Start::Ip, &mut into, &mut counters);
            let is_frame = matches!(into.packets.front(), Some(Received::Frame(_)));
            assert_eq!(is_frame, flags == 0 || at < plain.len(), "packet {at}, flags {flags}");
            let got = into.pop_packet().expect("nothing is dropped");
            assert_eq!(Ok(State::Unit(got.offload.unit)), judge(header, packet), "packet {at}, flags {flags}");
            assert_eq!((testing::flat(&got), counters.rx.bytes), (packet.clone(), packet.len() as u64));
        }
    }
}

/// A receiving port, GRO and the batch of a sending port, between which packets are passed on.
struct Relay {
    /// Whether every packet is parsed when it is received; otherwise only those that have to be.
    parses: bool,
    rx: RxBatch,
    counters: Counters,
    gro: Gro<Page>,
    tx: TxBatch,
    limits: Limits,
    refused: Vec<gso::Refusal>,
    /// Numbers of unparsed frames by the state of their checksum: owed, and verified.
    frames: [usize; 2],
}

impl Relay {
    fn new(parses: bool, limits: Limits, profile: Profile) -> Relay {
        let (rx, counters, tx) = (RxBatch::new(0), Counters::default(), TxBatch::new());
        let gro = Gro::new(gro::Config { profile, ..gro::Config::default() });
        Relay { parses, rx, counters, gro, tx, limits, refused: Vec::new(), frames: [0; 2] }
    }

    fn receive(&mut self, header: &VirtioNet, piece: &Frag<Page>, start: Start) {
        let Relay { rx, counters, gro, frames, .. } = self;
        let ranges = iter::once(piece.clone());
        match self.parses {
            true => deliver_parsed(header, ranges, start, rx, counters),
            false => deliver(header, ranges, start, rx, counters),
        }
        while let Some(received) = rx.packets.pop_front() {
            match received {
                Received::Frame(frame) => {
                    frames[0] += usize::from(frame.csum == Csum::Partial);
                    frames[1] += usize::from(frame.csum == Csum::Verified);
                    gro.push_frame(frame, Nanos::ZERO, &mut rx.pool);
                }
                Received::Packet(packet) => gro.push(packet, Nanos::ZERO, &mut rx.pool),
            }
        }
    }

    /// Appends all that GRO holds to the batch to be sent.
    fn release(&mut self) {
        let Relay { rx, gro, tx, limits, refused, .. } = self;
        gro.flush();
        while let Some(popped) = gro.pop_unparsed() {
            let packet = match popped {
                Popped::Packet(packet) => packet,
                Popped::Frame(frame) => match tx.push_frame(frame, limits) {
                    Some(frame) => frame.parse(&Tunnels::NONE, &mut rx.pool),
                    None => continue,
                },
            };
            if let Err((packet, why)) = tx.push(packet, limits) {
                refused.push(why);
                rx.pool.put(packet);
            }
        }
    }

    /// Splits the batch again, for a port that takes nothing but complete single packets.
    fn narrow(&mut self) {
        let Relay { tx, refused, .. } = self;
        tx.resplit(&Limits::NONE, |_, why| refused.push(why));
    }

    fn counted(&mut self) -> String {
        let summed = self.tx.take_checksummed();
        format!("{:?} {:?} {:?} {summed}", self.counters, self.gro.stats(), self.refused)
    }

    /// Returns the header and the bytes of each unit in the batch.
    fn units(&self) -> Vec<(Option<VirtioNet>, Vec<u8>)> {
        let bytes = |unit: &TxUnit<'_>| -> Vec<u8> {
            iter::once(unit.head()).chain(unit.pieces()).flatten().copied().collect()
        };
        self.tx.units().map(|unit| (header_of(&unit), bytes(&unit))).collect()
    }
}

/// Returns an IP packet as a port receives it, with its header: often with an owed checksum or a verified one, and
/// now and then damaged, or with a header that does not fit it.
fn received(rng: &mut Rng, start: Start, tags: &[(u16, u16)], packet: &[u8]) -> (VirtioNet, Vec<u8>) {
    let (mut header, mut bytes) = (VirtioNet::default(), packet.to_vec());
    let link = if start == Start::Ip { 0 } else { 14 + 4 * tags.len() };
    let primed = build::primed(packet).filter(|_| rng.chance(700));
    if let Some((transport, field, value)) = primed {
        header = owed((link + transport) as u16, (field - transport) as u16, 0, 0);
        // A field of zero is no sum of a pseudo header, but may be there.
        let value = if rng.chance(30) { 0 } else { value };
        bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
    } else if rng.chance(500) {
        header.flags = DATA_VALID;
    }
    if start == Start::Ethernet {
        bytes = testing::ethernet(tags, &bytes);
    }
    match rng.below(14) {
        0 => header.csum_start = [0, 14, 20, 34, 54, 65_535, rng.below(100) as u16][rng.below(7)],
        1 => header.csum_offset = [0, 6, 16, 17, 65_535, rng.below(100) as u16][rng.below(6)],
        2 => bytes.truncate(1 + rng.below(bytes.len())),
        3 => bytes.extend([0; 6]),
        4 => bytes[rng.below(packet.len().min(90))] ^= 1 << rng.below(8),
        5 => header.flags |= DATA_VALID,
        _ => {}
    }
    (header, bytes)
}

#[test]
fn packets_leave_as_if_each_had_been_parsed_when_it_was_received() {
    let mut rng = Rng::new(11);
    let mut pages = PagePool::new(64);
    let partial = Limits { csum: true, ..Limits::NONE };
    let trains = Limits { tso4: true, tso6: true, uso: true, ..partial };
    let (mut frames, mut segments) = ([0; 2], 0);
    for round in 0..400 {
        let start = if rng.chance(250) { Start::Ip } else { Start::Ethernet };
        let tags: Vec<(u16, u16)> = (0..rng.below(4)).map(|_| ([0x8100, 0x88a8][rng.below(2)], 5)).collect();
        let limits = [Limits::NONE, partial, trains][rng.below(3)];
        let profile = if rng.chance(500) { Profile::Strict } else { Profile::linux() };
        let mut relays = [false, true].map(|parses| Relay::new(parses, limits, profile));
        let flows = 1 + rng.below(3);
        for sent in flow::mixed(&mut rng, flows, 40) {
            let (header, bytes) = received(&mut rng, start, &tags, &sent.bytes);
            let piece = testing::ranges(&mut pages, &bytes, usize::MAX).remove(0);
            relays.iter_mut().for_each(|relay| relay.receive(&header, &piece, start));
            if rng.chance(100) {
                relays.iter_mut().for_each(Relay::release);
            }
        }
        relays.iter_mut().for_each(Relay::release);
        for is_narrow in [false, true] {
            if is_narrow {
                relays.iter_mut().for_each(Relay::narrow);
            }
            let [unparsed, parsed] = &mut relays;
            assert_eq!(unparsed.counted(), parsed.counted(), "round {round}, {is_narrow}, {start:?} {tags:x?}");
            for (at, (one, other)) in unparsed.units().iter().zip(&parsed.units()).enumerate() {
                assert!(one == other, "round {round}, {is_narrow}, unit {at}: {one:02x?}, not {other:02x?}");
            }
            assert_eq!(unparsed.tx.len(), parsed.tx.len(), "round {round}, {is_narrow}");
        }
        let [unparsed, parsed] = &relays;
        assert_eq!(parsed.frames, [0; 2]);
        frames = [0, 1].map(|state| frames[state] + unparsed.frames[state]);
        segments += unparsed.gro.stats().segments;
    }
    assert!(frames[0] > 3000 && frames[1] > 300 && segments > 300, "{frames:?}, {segments} joined");
}

#[test]
fn only_a_plain_packet_that_owes_its_own_checksum_is_not_parsed() {
    let udp = udp_packet(true, 100);
    let padded = [&udp[..], &[0; 2]].concat();
    let mut options = udp.clone();
    options[0] = 0x46;
    let mut fragment = udp.clone();
    fragment[6] = 0x20;
    let inside = testing::ip_packet(ends(true), 4, 0, &udp, Fill::Primed);
    let train = VirtioNet { gso_type: GSO_UDP_L4, gso_size: 50, ..owed(20, 6, 0, 0) };
    for (what, header, packet, is_frame) in [
        ("UDP", owed(20, 6, 0, 0), &udp, true),
        ("TCP over IPv6", owed(40, 16, 0, 0), &tcp_packet(false, 0x10, 0), true),
        ("a train", train, &udp, false),
        ("another start", owed(22, 4, 0, 0), &udp, false),
        ("the field of TCP", owed(20, 16, 0, 0), &udp, false),
        ("past the end", owed(20, 127, 0, 0), &udp, false),
        ("padding", owed(20, 6, 0, 0), &padded, false),
        ("IP options", owed(20, 6, 0, 0), &options, false),
        ("a fragment", owed(20, 6, 0, 0), &fragment, false),
        ("in a tunnel", owed(40, 6, 0, 0), &inside, false),
    ] {
        let piece = testing::ranges(&mut PagePool::new(1), packet, usize::MAX).remove(0);
        match virtio::frame(&header, piece, Start::Ip) {
            Ok(frame) => assert!(is_frame && frame.csum == Csum::Partial, "{what}"),
            Err(piece) => assert!(!is_frame && piece.len() == packet.len(), "{what}"),
        }
    }
}

#[test]
fn trains_of_each_kind_are_taken_whatever_the_header_length_says() {
    for hdr_len in [0, 40, 60, 5000, 65_535] {
        let with = |header: VirtioNet| VirtioNet { hdr_len, ..header };
        let tcp = |v4| tcp_packet(v4, 0x10, 3000);
        assert_eq!(judge(with(owed(20, 16, GSO_TCPV4, 1000)), &tcp(true)), train(GsoKind::Tcp, 1000));
        assert_eq!(judge(with(owed(20, 16, GSO_TCPV4 | GSO_ECN, 1000)), &tcp(true)), train(GsoKind::Tcp, 1000));
        assert_eq!(judge(with(owed(40, 16, GSO_TCPV6, 1000)), &tcp(false)), train(GsoKind::Tcp, 1000));
        assert_eq!(judge(with(owed(20, 6, GSO_UDP_L4, 999)), &udp_packet(true, 3000)), train(GsoKind::Udp, 999));
        assert_eq!(judge(with(owed(40, 6, GSO_UDP_L4, 2999)), &udp_packet(false, 3000)), train(GsoKind::Udp, 2999));
    }
}

#[test]
fn a_train_that_fits_one_segment_is_a_single_packet() {
    assert_eq!(judge(owed(20, 16, GSO_TCPV4, 1000), &tcp_packet(true, 0x10, 1000)), PARTIAL);
    assert_eq!(judge(owed(20, 16, GSO_TCPV4, 1000), &tcp_packet(true, 0x10, 0)), PARTIAL);
    assert_eq!(judge(owed(40, 6, GSO_UDP_L4, 3000), &udp_packet(false, 5)), PARTIAL);
}

#[test]
fn a_type_that_does_not_fit_the_packet_is_refused() {
    let tcp = tcp_packet(true, 0x10, 3000);
    for gso_type in [GSO_TCPV6, GSO_UDP_L4, GSO_UDP, 2, 0x21, 0x41, 0x61, 0x11, GSO_ECN] {
        assert_eq!(judge(owed(20, 16, gso_type, 1000), &tcp), Err(Refusal::GsoType), "{gso_type:#x}");
    }
    let udp = udp_packet(true, 3000);
    for gso_type in [GSO_TCPV4, GSO_UDP, GSO_UDP_L4 | GSO_ECN] {
        assert_eq!(judge(owed(20, 6, gso_type, 1000), &udp), Err(Refusal::GsoType), "{gso_type:#x}");
    }
}

#[test]
fn a_train_must_owe_its_own_transport_checksum() {
    let tcp = tcp_packet(true, 0x10, 3000);
    for (start, offset) in [(20, 6), (20, 18), (22, 14), (0, 36), (20, 65_535), (65_535, 16), (40, 16)] {
        let header = owed(start, offset, GSO_TCPV4, 1000);
        assert_eq!(judge(header, &tcp), Err(Refusal::GsoChecksumPlace), "{start} {offset}");
    }
    let header = VirtioNet { flags: 0, ..owed(20, 16, GSO_TCPV4, 1000) };
    assert_eq!(judge(header, &tcp), Err(Refusal::GsoChecksumPlace));
    assert_eq!(judge(VirtioNet { flags: DATA_VALID, ..header }, &tcp), Err(Refusal::GsoChecksumPlace));
}

#[test]
fn sizes_and_counts_have_limits() {
    for size in [0, u16::MAX] {
        assert_eq!(judge(owed(20, 16, GSO_TCPV4, size), &tcp_packet(true, 0x10, 3000)), Err(Refusal::GsoSize));
        assert_eq!(judge(owed(20, 6, GSO_UDP_L4, size), &udp_packet(true, 3000)), Err(Refusal::GsoSize));
    }
    assert_eq!(judge(owed(20, 6, GSO_UDP_L4, 10), &udp_packet(true, 1280)), train(GsoKind::Udp, 10));
    assert_eq!(judge(owed(20, 6, GSO_UDP_L4, 10), &udp_packet(true, 1281)), Err(Refusal::GsoSegments));
}

#[test]
fn a_train_without_its_own_clean_headers_is_refused() {
    let header = owed(20, 16, GSO_TCPV4, 100);
    for flags in [0x12, 0x14] {
        assert_eq!(judge(header, &tcp_packet(true, flags, 300)), Err(Refusal::GsoHeaders), "{flags:#x}");
    }
    let good = tcp_packet(true, 0x10, 300);
    assert_eq!(judge(header, &good), train(GsoKind::Tcp, 100));
    let mut padded = good.clone();
    padded.push(0);
    let mut fragment = good.clone();
    fragment[6] = 0x20;
    let mut long_header = good.clone();
    long_header[32] = 0xf0;
    long_header.truncate(70);
    let mut tunnelled = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 4, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    tunnelled.extend(&good);
    let len = (tunnelled.len() as u16).to_be_bytes();
    tunnelled[2..4].copy_from_slice(&len);
    for (name, packet) in [("padded", &padded), ("fragment", &fragment), ("cut", &long_header)] {
        assert_eq!(judge(header, packet), Err(Refusal::GsoHeaders), "{name}");
    }
    assert_eq!(judge(owed(40, 16, GSO_TCPV4, 100), &tunnelled), Err(Refusal::GsoHeaders));
    for len in 0..20 {
        assert_eq!(judge(header, &good[..len]), Err(Refusal::GsoHeaders));
    }
}

#[test]
fn an_owed_checksum_is_ours_only_in_the_transport_header() {
    let udp = udp_packet(false, 100);
    assert_eq!(judge(owed(40, 6, 0, 0), &udp), PARTIAL);
    let foreign = |start, field| Ok(State::Owed(Place { start, field }));
    assert_eq!(judge(owed(48, 10, 0, 0), &udp), foreign(48, 58));
    assert_eq!(judge(owed(0, 146, 0, 0), &udp), foreign(0, 146), "the last two bytes");
    for (start, offset) in [(0, 147), (147, 0), (65_535, 65_535), (148, 0)] {
        assert_eq!(judge(owed(start, offset, 0, 0), &udp), Err(Refusal::ChecksumBounds), "{start} {offset}");
    }
    // Behind the end of the IP packet the kernel's sum would run into the padding.
    let padded = [&udp[..], &[1, 2]].concat();
    assert_eq!(judge(owed(40, 6, 0, 0), &padded), foreign(40, 46));
}

#[test]
fn only_the_outermost_checksum_can_be_marked_as_verified() {
    let header = VirtioNet { flags: DATA_VALID, ..VirtioNet::default() };
    let whole = |csum| Ok(State::Unit(Unit::Whole(csum)));
    let udp = udp_packet(true, 100);
    assert_eq!(judge(header, &udp), whole(Csum::Verified));
    assert_eq!(judge(VirtioNet::default(), &udp), whole(Csum::Unknown));
    assert_eq!(judge(VirtioNet { flags: 0xf0, ..header }, &udp), whole(Csum::Unknown));
    let mut none = udp.clone();
    none[26..28].fill(0);
    assert_eq!(judge(header, &none), whole(Csum::Absent));
    let mut tunnelled = vec![0x45, 0, 0, 148, 0, 1, 0x40, 0, 64, 4, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    tunnelled.extend(&udp);
    assert_eq!(judge(header, &tunnelled), whole(Csum::Unknown));
}

/// Builds an IPv4 packet of a protocol that the parser does not know, around one with a partial checksum.
fn foreign(v4: bool, len: usize) -> (VirtioNet, Vec<u8>, usize) {
    let inner = udp_packet(v4, len);
    let mut around = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 200, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    around[2..4].copy_from_slice(&((20 + inner.len()) as u16).to_be_bytes());
    around.extend(&inner);
    let start = around.len() - inner.len() + if v4 { 20 } else { 40 };
    let header = VirtioNet { flags: NEEDS_CSUM, csum_start: start as u16, csum_offset: 6, ..VirtioNet::default() };
    (header, around, start)
}

#[test]
fn a_foreign_checksum_is_finished_without_touching_or_copying_what_was_received() {
    for (v4, payload) in [(true, 0), (true, 1), (false, 77), (false, 1000)] {
        let (header, packet, start) = foreign(v4, payload);
        let inner = start - if v4 { 20 } else { 40 };
        assert!(!testing::checksum_is_good(&packet[inner..]));
        // In one piece, and cut so that the field lies across two.
        for len in [packet.len(), start + 7, 5, 64] {
            let mut pages = PagePool::new(1);
            let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
            let ranges = testing::ranges(&mut pages, &packet, len);
            deliver(&header, ranges.clone().into_iter(), Start::Ip, &mut into, &mut counters);
            let done = into.pop_packet().expect("it needs no page");
            let bytes = testing::flat(&done);
            assert!(testing::checksum_is_good(&bytes[inner..]), "{v4} {payload} {len}");
            assert_eq!((&bytes[..start + 6], &bytes[start + 8..]), (&packet[..start + 6], &packet[start + 8..]));
            assert_eq!(ranges.iter().flat_map(|frag| frag.bytes().to_vec()).collect::<Vec<_>>(), packet);
            assert_eq!(counters.fallbacks.of(Fallback::ForeignChecksum), 1);
            assert_eq!((counters.rx.packets, counters.rx.bytes), (1, packet.len() as u64));
            assert_eq!(into.fields.in_use(), 1);
            into.pool.put(done);
            assert_eq!(into.fields.in_use(), 0, "the piece comes back");
        }
    }
}

/// Builds an SCTP packet with an INIT ACK whose checksum is owed, behind `link` bytes in front of its IP header and
/// with `padding` bytes behind it. Returns it, its header, and its checksum, computed bit by bit.
fn owed_sctp(v4: bool, padding: usize) -> (VirtioNet, Vec<u8>, [u8; 4]) {
    let sctp = [&[0x30, 0x39, 0xd4, 0x31, 1, 2, 3, 4, 0xab, 0xcd, 0xef, 1][..], &bytes(77, 3)].concat();
    let mut zeroed = sctp.clone();
    zeroed[8..12].fill(0);
    let bits = zeroed.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
    let crc = bits.fold(u32::MAX, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { 0x82f6_3b78 } else { 0 });
    let mut packet = testing::ip_packet(ends(v4), 132, 0, &sctp, Fill::Good);
    let start = (packet.len() - sctp.len()) as u16;
    packet[usize::from(start)..].copy_from_slice(&sctp);
    packet.extend(vec![0x55; padding]);
    (owed(start, 8, 0, 0), packet, (!crc).to_le_bytes())
}

#[test]
fn an_owed_checksum_of_sctp_is_a_crc_over_the_packet_without_its_padding() {
    for (v4, padding) in [(true, 0), (true, 6), (false, 0), (false, 3)] {
        let (header, packet, value) = owed_sctp(v4, padding);
        let field = usize::from(header.csum_start) + 8;
        let expected = [&packet[..field], &value, &packet[field + 4..]].concat();
        let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
        let read = [&header.emit(Form::Basic)[..Form::Basic.len()], &packet].concat();
        let mut out = vec![0; packet.len()];
        splitter.read(&read).unwrap().iter().next().unwrap().write_to(&mut out).unwrap();
        assert_eq!(out, expected);
        // In one piece, and cut so that the field lies across two.
        for len in [packet.len(), field + 1, 5, 64] {
            let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
            let ranges = testing::ranges(&mut PagePool::new(1), &packet, len);
            deliver(&header, ranges.into_iter(), Start::Ip, &mut into, &mut counters);
            let done = into.pop_packet().expect("nothing is dropped");
            assert_eq!(testing::flat(&done), expected, "{v4} {padding} {len}");
            assert_eq!(counters.fallbacks.of(Fallback::ForeignChecksum), 1);
            assert_eq!((counters.checksummed_bytes, counters.rx.bytes), (89, packet.len() as u64));
        }
    }
}

#[test]
fn a_checksum_at_the_place_of_sctp_in_another_packet_is_a_sum() {
    let (header, packet, _) = owed_sctp(true, 0);
    assert_eq!(judge(header, &packet), Ok(State::OwedSctp(SctpPlace { start: 20, end: 109 })));
    let (mut other, mut short, mut fragment) = (packet.clone(), packet.clone(), packet.clone());
    other[9] = 133;
    short[2..4].copy_from_slice(&31_u16.to_be_bytes());
    fragment[6] = 0x20;
    for (header, packet) in [
        (owed(20, 9, 0, 0), &packet),
        (owed(21, 7, 0, 0), &packet),
        (header, &other),
        (header, &short),
        (header, &fragment),
    ] {
        let (start, field) = (header.csum_start.into(), (header.csum_start + header.csum_offset).into());
        assert_eq!(judge(header, packet), Ok(State::Owed(Place { start, field })));
    }
}

#[test]
fn thousands_of_foreign_checksums_take_no_page() {
    let (header, packet, _) = foreign(true, 1000);
    let mut pages = PagePool::new(1);
    let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
    let ranges = testing::ranges(&mut pages, &packet, packet.len());
    for _ in 0..5_000 {
        deliver(&header, ranges.clone().into_iter(), Start::Ip, &mut into, &mut counters);
    }
    assert_eq!((into.packets.len(), counters.drops.total()), (5_000, 0));
}

fn described(csum: SegmentCsum, gso: Option<Gso>, packet: &Packet<Page>) -> Option<VirtioNet> {
    let head = packet.head.bytes();
    let segment = Segment { head: 0..head.len() as u32, payload: 0..packet.payload.len() as u32, csum, gso };
    virtio::describe(&segment, head, &packet.layout)
}

#[test]
fn a_described_train_reads_back_as_the_same_train() {
    let mut pages = PagePool::new(1);
    for (v4, flags, gso_type) in [(true, 0x10, GSO_TCPV4), (false, 0x90, GSO_TCPV6 | GSO_ECN)] {
        let packet = testing::load(&mut pages, &tcp_packet(v4, flags, 3000));
        let gso = Gso { kind: GsoKind::Tcp, size: 1400, fixed_ids: 0 };
        let start = if v4 { 20 } else { 40 };
        let header = described(SegmentCsum::Partial, Some(gso), &packet).unwrap();
        assert_eq!((usize::from(header.csum_start), header.csum_offset, header.num_buffers), (start, 16, 1));
        assert_eq!((header.gso_type, usize::from(header.hdr_len)), (gso_type, packet.head.len()));
        assert_eq!(check(&header, &packet), train(GsoKind::Tcp, 1400));
    }
    let other = Packet { layout: Layout::empty(segue::packet::Stop::Protocol), ..Packet::default() };
    assert_eq!(described(SegmentCsum::Partial, None, &other), None);
    assert_eq!(described(SegmentCsum::Verified, None, &other).unwrap().flags, DATA_VALID);
}
