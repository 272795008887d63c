//! Segmentation against frames that the testkit builds one by one, and against its oracle.

use std::ops::Range;

use proptest::prelude::*;
use segue::gso::{Arena, Frames, Limits, MAX_SEGS, Refusal, SegmentCsum, finish, split, split_linear};
use segue::packet::{
    Csum, Frag, Gso, GsoKind, Header, Kind, Layer, LayerCsum, Layout, Offload, Packet, Remote, Start, Stop, TrainCsum,
    Tunnels, Unit,
};
use segue::wire::{ipv4, ipv6, tcp, udp, write_u16};
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6};
use segue_testkit::oracle::{self, Owed, Ports, Report, verify, verify_owed};
use segue_testkit::strategy::{self, FOU_PORTS, GUE_PORT};
use segue_testkit::{Rng, sum};

const PORT_CSUM: Limits = Limits { csum: true, ..Limits::NONE };
const PORT_OUTER: Limits = Limits { outer_csum: true, ..Limits::NONE };
const PORT_BOTH: Limits = Limits { csum: true, outer_csum: true, ..Limits::NONE };
const PORT_TSO: Limits = Limits { csum: true, tso4: true, tso6: true, uso: true, ..Limits::NONE };

/// A train as a test states it.
#[derive(Clone, Debug)]
struct Case {
    /// The packet inside, with the payload of the whole train.
    inner: build::Packet,
    /// Tunnels around it, outermost first.
    tunnels: Vec<Tunnel>,
    ethernet: Option<Ethernet>,
    size: usize,
    csum: TrainCsum,
    /// IP levels with a fixed identification, outermost first, bit 0 first.
    fixed: u16,
    /// The state in which outer checksums come.
    outer: LayerCsum,
}

impl Case {
    fn new(inner: build::Packet, size: usize) -> Case {
        let (csum, outer) = (TrainCsum::Partial, LayerCsum::Owed);
        Case { inner, tunnels: Vec::new(), ethernet: None, size, csum, fixed: 0, outer }
    }

    fn within(mut self, tunnel: Tunnel) -> Case {
        self.tunnels.insert(0, tunnel);
        self
    }

    fn start(&self) -> (Start, oracle::Start) {
        match self.ethernet {
            Some(_) => (Start::Ethernet, oracle::Start::Ethernet),
            None => (Start::Ip, oracle::Start::Ip),
        }
    }

    fn has_remote_transport(&self) -> bool {
        self.tunnels.iter().any(|t| matches!(t.udp, Some((_, Shim::Gue(Some(Remcsum::Transport))))))
    }

    /// The identification of the packet after `number` segments.
    fn step(&self, ip: &Ip, level: usize, number: usize) -> Ip {
        let mut ip = ip.clone();
        if let Ip::V4(ip) = &mut ip
            && self.fixed >> level & 1 == 0
        {
            ip.id = ip.id.wrapping_add(number as u16);
        }
        ip
    }

    /// What must leave for the payload in `range`, built from scratch.
    fn expected(&self, range: Range<usize>) -> Vec<u8> {
        let (number, total) = (range.start / self.size, self.inner.data.len());
        let mut inner = build::Packet {
            ip: self.step(&self.inner.ip, self.tunnels.len(), number),
            l4: self.inner.l4.clone(),
            data: self.inner.data[range.clone()].to_vec(),
        };
        if let L4::Tcp(tcp) = &mut inner.l4 {
            tcp.seq = tcp.seq.wrapping_add(range.start as u32);
            tcp.flags &= if range.end == total { 0xff } else { 0xf6 };
            tcp.flags &= if range.start == 0 { 0xff } else { 0x7f };
        }
        let mut packet = inner.bytes();
        for (level, tunnel) in self.tunnels.iter().enumerate().rev() {
            let mut tunnel = Tunnel { ip: self.step(&tunnel.ip, level, number), ..tunnel.clone() };
            if let Some(Gre { seq: Some(seq), .. }) = &mut tunnel.gre {
                *seq = seq.wrapping_add(number as u32);
            }
            packet = tunnel.wrap(&packet);
        }
        match &self.ethernet {
            Some(ethernet) => ethernet.wrap(&packet),
            None => packet,
        }
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        let total = self.inner.data.len();
        (0..total.div_ceil(self.size).max(1)).map(|i| i * self.size..((i + 1) * self.size).min(total)).collect()
    }

    /// The train, in many odd pieces, with rubbish in every field that segmentation must write.
    fn train(&self) -> Packet<Vec<u8>> {
        let mut case = self.clone();
        case.inner.data.truncate(16);
        let mut packet = load(&case.expected_head(), self.start().0);
        packet.payload.clear();
        let mut rng = Rng::new(self.inner.data.len() as u64);
        let mut at = 0;
        while at < self.inner.data.len() {
            let len = (1 + rng.below(997)).min(self.inner.data.len() - at);
            packet.payload.push(Frag::new(self.inner.data.clone(), at..at + len));
            at += len;
        }
        let kind = if matches!(self.inner.l4, L4::Tcp(_)) { GsoKind::Tcp } else { GsoKind::Udp };
        let ips = packet.layout.headers().iter().enumerate().filter(|(_, h)| h.is_ip());
        let fixed_ids = ips.enumerate().fold(0, |ids, (level, (at, _))| ids | (self.fixed >> level & 1) << at);
        let gso = Gso { kind, size: self.size as u16, fixed_ids };
        packet.offload = Offload::plain(Unit::Train { csum: self.csum, gso });
        for tunnel in self.tunnels.iter().rev() {
            let layer = layer_of(tunnel, self.outer);
            assert!(packet.offload.push_outer(layer));
        }
        scramble(&mut packet);
        packet
    }

    /// The headers of the first segment, with the flags of all and a few bytes behind them.
    fn expected_head(&self) -> Vec<u8> {
        Case { size: 100, ..self.clone() }.expected(0..self.inner.data.len())
    }
}

fn layer_of(tunnel: &Tunnel, present: LayerCsum) -> Layer {
    let state = |is_present| if is_present { present } else { LayerCsum::Absent };
    let (udp, remote) = match tunnel.udp {
        Some((udp, Shim::Gue(Some(Remcsum::Transport)))) => (udp.checksum, Some(Remote::Transport)),
        Some((udp, Shim::Gue(Some(Remcsum::Gre)))) => (udp.checksum, Some(Remote::Gre)),
        Some((udp, _)) => (udp.checksum, None),
        None => (false, None),
    };
    Layer { udp: state(udp), gre: state(tunnel.gre.is_some_and(|gre| gre.checksum)), remote }
}

fn scramble(packet: &mut Packet<Vec<u8>>) {
    let headers: Vec<Header> = packet.layout.headers().to_vec();
    let head = packet.head.bytes_mut();
    for header in headers {
        let (at, rubbish) = (header.start(), 0xa5b6);
        match header.kind {
            Kind::Ipv4 => {
                write_u16(head, at + ipv4::TOTAL_LEN, rubbish);
                write_u16(head, at + ipv4::CHECKSUM, rubbish);
            }
            Kind::Ipv6 => {
                write_u16(head, at + ipv6::PAYLOAD_LEN, rubbish);
            }
            Kind::Udp => {
                write_u16(head, at + udp::LENGTH, rubbish);
                if head[at + udp::CHECKSUM..][..2] != [0, 0] {
                    write_u16(head, at + udp::CHECKSUM, rubbish);
                }
            }
            Kind::Tcp => {
                write_u16(head, at + tcp::CHECKSUM, rubbish);
            }
            Kind::Gre if header.len > 4 && head[at] & 0x80 != 0 => {
                write_u16(head, at + 4, rubbish);
            }
            Kind::Gre | Kind::Gue | Kind::Ethernet | Kind::Vlan => {}
        }
    }
}

fn tunnels() -> Tunnels {
    FOU_PORTS.iter().fold(Tunnels::NONE.with_gue(GUE_PORT), |t, fou| t.with_fou(fou.0, fou.1))
}

fn ports() -> Ports {
    Ports { gue: vec![GUE_PORT], fou: FOU_PORTS.to_vec() }
}

fn load(bytes: &[u8], start: Start) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.to_vec()), start, &tunnels());
    packet
}

/// One frame that left, in bytes, and what the port is to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Out {
    bytes: Vec<u8>,
    csum: SegmentCsum,
    gso: Option<Gso>,
}

/// Splits in both forms, which must agree.
fn split_both(packet: &Packet<Vec<u8>>, limits: &Limits) -> Result<(Vec<Out>, u64), Refusal> {
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let counts = (split(packet, limits, &mut arena), split_linear(packet, limits, &mut frames));
    assert_eq!(counts.0, counts.1);
    assert_eq!(arena.segments().len(), counts.0.unwrap_or(0));
    let count = counts.0?;
    let scattered = arena.segments().iter().map(|segment| {
        let mut bytes = arena.head(segment).to_vec();
        let range = segment.payload.start as usize..segment.payload.end as usize;
        bytes.extend(packet.payload.pieces(range).flatten());
        Out { bytes, csum: segment.csum, gso: segment.gso }
    });
    let scattered: Vec<Out> = scattered.collect();
    let linear = frames.frames().iter().map(|f| Out { bytes: frames.bytes(f).to_vec(), csum: f.csum, gso: f.gso });
    assert_eq!(scattered, linear.collect::<Vec<_>>());
    assert_eq!(count, scattered.len());
    let summed = arena.take_checksummed();
    assert_eq!(summed, frames.take_checksummed());
    assert_eq!(arena.take_checksummed(), 0);
    Ok((scattered, summed))
}

/// Does what a port with these limits does before a frame goes on the wire, after the oracle agreed that it is owed.
fn complete_as_port(out: &Out, limits: &Limits, start: oracle::Start) -> (Vec<u8>, Report) {
    let inner = out.csum == SegmentCsum::Partial;
    let plain = verify_owed(&out.bytes, start, &ports(), Owed { inner, outer: false });
    let outer = limits.outer_csum && plain.is_err();
    let owed = Owed { inner, outer };
    let report = plain.or_else(|_| verify_owed(&out.bytes, start, &ports(), owed)).unwrap_or_else(|e| {
        panic!("{e}: {:02x?}", &out.bytes[..out.bytes.len().min(200)]);
    });
    let mut bytes = out.bytes.clone();
    if inner {
        let transport = report.transport.as_ref().unwrap();
        let field = transport.at + if transport.protocol == 6 { 16 } else { 6 };
        put(&mut bytes, field, transport.at, transport.protocol == 17);
    }
    if outer {
        let at = if start == oracle::Start::Ethernet { 14 } else { 0 };
        let udp = at + if report.levels[0].version == 4 { 20 } else { 40 };
        put(&mut bytes, udp + 6, udp, true);
    }
    (bytes, report)
}

/// Completes a primed field over all that follows `from`.
fn put(bytes: &mut [u8], field: usize, from: usize, is_udp: bool) {
    let value = match !sum::fold(&bytes[from..]) {
        0 if is_udp => 0xffff,
        value => value,
    };
    bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

/// Splits for a port that takes single packets only, and compares every frame that reaches the wire.
fn check_case(case: &Case, limits: &Limits) -> u64 {
    let (out, summed) = split_both(&case.train(), limits).unwrap_or_else(|r| panic!("{r:?}: {case:?}"));
    let ranges = case.ranges();
    assert_eq!(out.len(), ranges.len());
    for (out, range) in out.iter().zip(ranges) {
        let expected = case.expected(range);
        let (bytes, report) = complete_as_port(out, limits, case.start().1);
        assert!(bytes == expected, "{limits:?} {case:?}\n   is {bytes:02x?}\nnot {expected:02x?}");
        assert_eq!(out.gso, None);
        let is_remote = case.has_remote_transport();
        let csum = if limits.csum && !is_remote { SegmentCsum::Partial } else { SegmentCsum::AsIs };
        assert_eq!(out.csum, csum);
        let expected = match csum {
            SegmentCsum::Partial => oracle::Csum::Owed,
            _ if is_remote => oracle::Csum::Remote,
            _ => oracle::Csum::Good,
        };
        assert_eq!(report.transport.unwrap().csum, expected);
    }
    summed
}

fn inner(ip: Ip, is_tcp: bool, len: usize) -> build::Packet {
    let l4 = if is_tcp {
        L4::Tcp(Tcp {
            src_port: 1000,
            dst_port: 80,
            seq: 0xffff_ff00,
            ack: 0x1234_5678,
            flags: 0xd9,
            window: 0x2000,
            urgent: 3,
            options: Tcp::timestamps(7, 8),
        })
    } else {
        L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })
    };
    build::Packet { ip, l4, data: Rng::new(len as u64).bytes(len) }
}

fn v4(net: u8, id: u16) -> Ip {
    Ip::V4(V4 { id, tos: 0x2a, ..V4::new(net, 1, 2) })
}

fn v6(net: u8) -> Ip {
    Ip::V6(V6 { label: 0xabcde, class: 0x2a, ..V6::new(net, 1, 2) })
}

fn over_udp(ip: Ip, shim: Shim, gre: Option<Gre>, checksum: bool, inner_is_v4: bool) -> Tunnel {
    let dst_port = match (shim, gre) {
        (Shim::Fou, Some(_)) => FOU_PORTS[2].0,
        (Shim::Fou, None) => FOU_PORTS[usize::from(!inner_is_v4)].0,
        _ => GUE_PORT,
    };
    Tunnel { ip, udp: Some((Udp { src_port: 0xc123, dst_port, checksum }, shim)), gre, ethernet: None }
}

/// Every tunnel form around an inner packet of IPv4 or IPv6, over both versions of IP.
fn every_tunnel(inner_is_v4: bool) -> Vec<Tunnel> {
    let mut all = Vec::new();
    let key = Some(0x1020_3040);
    let seq = Some(u32::MAX);
    let mut gres = vec![None];
    for bits in 0..8 {
        gres.push(Some(Gre {
            checksum: bits & 1 != 0,
            key: key.filter(|_| bits & 2 != 0),
            seq: seq.filter(|_| bits & 4 != 0),
        }));
    }
    for ip in [v4(0, 0xffff), v6(0)] {
        for &gre in &gres {
            all.push(Tunnel { ip: ip.clone(), udp: None, gre, ethernet: None });
            let has_checksum = gre.is_some_and(|gre| gre.checksum);
            let mut shims = vec![Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))];
            shims.extend(has_checksum.then_some(Shim::Gue(Some(Remcsum::Gre))));
            shims.extend(gre.is_none().then_some(Shim::GueBare));
            for shim in shims {
                for checksum in [true, false] {
                    if checksum || !matches!(shim, Shim::Gue(Some(_))) {
                        all.push(over_udp(ip.clone(), shim, gre, checksum, inner_is_v4));
                    }
                }
            }
            let bridged = Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() };
            if gre.is_some() {
                let mut tunnel = over_udp(ip.clone(), Shim::Gue(Some(Remcsum::Transport)), gre, true, inner_is_v4);
                tunnel.ethernet = Some(bridged);
                all.push(tunnel);
            }
        }
    }
    all
}

#[test]
fn every_tunnel_form_gives_the_frames_that_were_built_one_by_one() {
    let mut cases = 0;
    for is_tcp in [true, false] {
        for ip in [v4(1, 0xfffe), v6(1)] {
            for tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
                for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                    for (total, size) in [(3 * 100 + 33, 100), (2 * 101, 101), (257, 51)] {
                        check_case(&Case::new(inner(ip.clone(), is_tcp, total), size).within(tunnel.clone()), &limits);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 2000);
}

#[test]
fn plain_trains_behind_ethernet_and_vlan_tags() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 0xfffe), v6(1)] {
            for tags in [vec![], vec![(0x8100, 7)], vec![(0x88a8, 1), (0x8100, 2)]] {
                for limits in [Limits::NONE, PORT_CSUM] {
                    let mut case = Case::new(inner(ip.clone(), is_tcp, 5000), 1448);
                    case.ethernet = Some(Ethernet { tags: tags.clone(), ..Ethernet::default() });
                    check_case(&case, &limits);
                }
            }
        }
    }
}

#[test]
fn sizes_around_multiples_and_odd_ones() {
    for is_tcp in [true, false] {
        for size in [8, 9, 100, 1447, 1448] {
            for total in [1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 7 * size + 3] {
                check_case(&Case::new(inner(v4(1, 1), is_tcp, total), size), &Limits::NONE);
                let tunnel = over_udp(v6(0), Shim::Gue(Some(Remcsum::Transport)), None, true, true);
                check_case(&Case::new(inner(v4(1, 1), is_tcp, total), size).within(tunnel), &Limits::NONE);
            }
        }
    }
}

#[test]
fn identifications_stay_fixed_where_the_train_says_so() {
    for fixed in 0..4 {
        let gre = Gre { checksum: true, ..Gre::default() };
        let tunnel = over_udp(v4(0, 0xfffe), Shim::Gue(None), Some(gre), true, true);
        let mut case = Case::new(inner(v4(1, 0xffff), true, 500), 100).within(tunnel);
        case.fixed = fixed;
        check_case(&case, &Limits::NONE);
    }
}

#[test]
fn outer_checksums_in_every_state_are_made_new_when_a_train_is_cut() {
    for outer in [LayerCsum::Owed, LayerCsum::Done, LayerCsum::Unknown] {
        for checksum in [true, false] {
            let gre = Gre { checksum: true, key: Some(1), seq: None };
            let tunnel = over_udp(v4(0, 9), Shim::Fou, Some(gre), checksum, false);
            let mut case = Case::new(inner(v6(1), true, 500), 150).within(tunnel);
            (case.outer, case.csum) = (outer, TrainCsum::Stale);
            check_case(&case, &Limits::NONE);
        }
    }
    // Nothing known of a checksum and none in the header: none it stays.
    let mut case = Case::new(inner(v4(1, 1), true, 300), 100);
    case = case.within(over_udp(v4(0, 9), Shim::Fou, None, false, true));
    let mut train = case.train();
    train.offload.layers_mut()[0].udp = LayerCsum::Unknown;
    for out in split_both(&train, &Limits::NONE).unwrap().0 {
        assert!(!verify(&out.bytes, oracle::Start::Ip, &ports()).unwrap().levels[0].has_udp_checksum);
    }
}

#[test]
fn two_tunnel_levels_with_checksums_at_both() {
    let gre = |seq| Some(Gre { checksum: true, key: None, seq });
    for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport)), Shim::Gue(Some(Remcsum::Gre))] {
        for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
            for is_tcp in [true, false] {
                let near = over_udp(v6(2), shim, gre(Some(5)), true, true);
                let far = over_udp(v4(0, 0xffff), Shim::Gue(None), gre(None), true, false);
                let case = Case::new(inner(v4(1, 0xffff), is_tcp, 1001), 250).within(near).within(far);
                check_case(&case, &limits);
            }
        }
    }
}

#[test]
fn a_remote_checksum_of_the_outer_level_reaches_through_a_checksummed_inner_level() {
    // The far end of the outer tunnel completes the innermost header; only then the inner level's checksums are right.
    for limits in [Limits::NONE, PORT_OUTER] {
        let gre = Some(Gre { checksum: true, key: None, seq: Some(1) });
        let near = over_udp(v4(2, 1), Shim::Fou, gre, true, true);
        let far = over_udp(v4(0, 1), Shim::Gue(Some(Remcsum::Transport)), gre, true, true);
        let mut train = Case::new(inner(v4(1, 1), true, 1000), 300).within(near).within(far).train();
        // The builder points the option at the inner level's UDP header.
        let gue = *train.layout.headers().iter().find(|h| h.kind == Kind::Gue).unwrap();
        let start = train.layout.transport().unwrap().start() - gue.end();
        write_u16(train.head.bytes_mut(), gue.start() + 8, start as u16);
        write_u16(train.head.bytes_mut(), gue.start() + 10, (start + tcp::CHECKSUM) as u16);
        for out in split_both(&train, &limits).unwrap().0 {
            let (_, report) = complete_as_port(&out, &limits, oracle::Start::Ip);
            assert!(report.levels.iter().take(2).all(|l| l.has_udp_checksum && l.has_gre_checksum));
            assert_eq!(report.transport.unwrap().csum, oracle::Csum::Remote);
        }
    }
}

#[test]
fn the_worked_example_of_primed_values() {
    // Computed by hand: pseudo headers of 198.18.1.1 -> 198.18.1.2 with lengths 1480, 1480 and 136.
    let case = Case::new(inner(Ip::V4(V4::new(1, 1, 2)), true, 3000), 1448);
    let case = case.within(over_udp(Ip::V4(V4::new(0, 1, 2)), Shim::Gue(Some(Remcsum::Transport)), None, true, true));
    for limits in [Limits::NONE, PORT_BOTH] {
        let out = split_both(&case.train(), &limits).unwrap().0;
        let primed: Vec<_> = out.iter().map(|o| [o.bytes[60 + 16], o.bytes[60 + 17]]).collect();
        assert_eq!(primed, [[0x93, 0xf6], [0x93, 0xf6], [0x8e, 0xb6]]);
        assert!(out.iter().all(|o| o.bytes[28..40] == [2, 4, 0, 1, 0x80, 0, 0, 0, 0, 20, 0, 36]));
    }
}

#[test]
fn payload_is_summed_only_where_nobody_else_does_it() {
    let inner = inner(v4(1, 1), true, 3000);
    let plain = Case::new(inner.clone(), 1000);
    assert_eq!(check_case(&plain, &Limits::NONE), 3000);
    assert_eq!(check_case(&plain, &PORT_CSUM), 0);
    let gre = Some(Gre { checksum: true, ..Gre::default() });
    let local = plain.clone().within(over_udp(v4(0, 1), Shim::Gue(None), gre, true, true));
    assert_eq!(check_case(&local, &Limits::NONE), 3000);
    assert_eq!(check_case(&local, &PORT_CSUM), 0, "GRE and outer UDP checksums come from the inner pseudo header");
    let remote = plain.within(over_udp(v4(0, 1), Shim::Gue(Some(Remcsum::Transport)), gre, true, true));
    assert_eq!(check_case(&remote, &Limits::NONE), 3000);
    assert_eq!(check_case(&remote, &PORT_OUTER), 0);
}

#[test]
fn a_train_goes_whole_to_a_port_that_takes_it() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 7), v6(1)] {
            for csum in [TrainCsum::Partial, TrainCsum::Stale] {
                let case = Case { csum, ..Case::new(inner(ip.clone(), is_tcp, 10_000), 1448) };
                let (out, summed) = split_both(&case.train(), &PORT_TSO).unwrap();
                assert_eq!((out.len(), summed), (1, 0));
                assert_eq!(out[0].csum, SegmentCsum::Partial);
                assert_eq!(out[0].gso.map(|g| usize::from(g.size)), Some(1448));
                assert_eq!(out[0].bytes, build::prime(&case.expected(0..10_000)).unwrap());
            }
        }
    }
}

#[test]
fn each_kind_of_train_needs_its_own_offload_and_checksums() {
    let cut = |is_tcp, ip, limits: Limits| {
        let case = Case::new(inner(ip, is_tcp, 10_000), 1448);
        split_both(&case.train(), &limits).unwrap().0.len()
    };
    assert_eq!(cut(true, v4(1, 1), Limits { tso4: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v6(1), Limits { tso6: false, ..PORT_TSO }), 7);
    assert_eq!(cut(false, v4(1, 1), Limits { uso: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v4(1, 1), Limits { csum: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v4(1, 1), Limits { tso6: false, uso: false, ..PORT_TSO }), 1);
    let tunnelled = Case::new(inner(v4(1, 1), true, 10_000), 1448);
    let tunnelled = tunnelled.within(over_udp(v4(0, 1), Shim::Fou, None, true, true));
    assert_eq!(check_case(&tunnelled, &PORT_TSO), 0, "trains in tunnels are never left to a port");
}

#[test]
fn a_train_that_is_too_large_is_cut_into_smaller_trains_first() {
    let head = 20 + 32;
    for (is_tcp, limits, per_part) in [
        (true, Limits { max_bytes: head + 5 * 1448, ..PORT_TSO }, 5),
        (true, Limits { max_bytes: head + 5 * 1448 - 1, ..PORT_TSO }, 4),
        (true, Limits { max_segs: 3, ..PORT_TSO }, 3),
        (false, Limits { max_udp_segs: 6, max_segs: 1, ..PORT_TSO }, 6),
        (true, Limits { max_segs: 1, ..PORT_TSO }, 1),
        (true, Limits { max_bytes: 10, ..PORT_TSO }, 1),
    ] {
        let case = Case::new(inner(v4(1, 0xfffd), is_tcp, 13 * 1448 + 5), 1448);
        let (out, summed) = split_both(&case.train(), &limits).unwrap();
        assert_eq!((out.len(), summed), (14_usize.div_ceil(per_part), 0));
        let mut at = 0;
        for out in out {
            let end = (at + per_part * 1448).min(13 * 1448 + 5);
            assert_eq!(out.bytes, build::prime(&case.expected(at..end)).unwrap());
            assert_eq!(out.gso.is_some(), end - at > 1448, "a part of one segment is no train");
            assert_eq!(out.csum, SegmentCsum::Partial);
            at = end;
        }
    }
}

#[test]
fn a_short_end_stays_with_the_last_train_where_it_fits() {
    let case = Case::new(inner(v4(1, 1), true, 3 * 1000 + 1), 1000);
    let limits = Limits { max_bytes: 52 + 3001, ..PORT_TSO };
    assert_eq!(split_both(&case.train(), &limits).unwrap().0.len(), 1);
    let limits = Limits { max_bytes: 52 + 3000, ..PORT_TSO };
    assert_eq!(split_both(&case.train(), &limits).unwrap().0.len(), 2);
}

#[test]
fn a_train_is_cut_where_its_pieces_are_too_many_for_the_port() {
    let case = Case::new(inner(v6(1), true, 20_000), 1000);
    let mut train = case.train();
    let frags = train.payload.frags().len();
    assert_eq!(split_both(&train, &Limits { max_pieces: frags + 1, ..PORT_TSO }).unwrap().0.len(), 1);
    for max_pieces in [0, 1, 2, 4, 7, frags] {
        let limits = Limits { max_pieces, ..PORT_TSO };
        let out = split_both(&train, &limits).unwrap().0;
        let mut at = 0;
        for out in out {
            let len = out.bytes.len() - 72;
            assert_eq!(out.bytes, build::prime(&case.expected(at..at + len)).unwrap());
            let pieces = train.payload.pieces(at..at + len).count() + 1;
            assert!(pieces <= max_pieces || len == 1000, "{pieces} pieces for {max_pieces}");
            at += len;
        }
        assert_eq!(at, 20_000);
    }
    // Pieces that are segments, as a receiver makes them: as many go together as the port takes.
    train.payload.clear();
    (0..20).for_each(|i| train.payload.push(Frag::new(case.inner.data.clone(), i * 1000..(i + 1) * 1000)));
    let out = split_both(&train, &Limits { max_pieces: 6, ..PORT_TSO }).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len() - 72).collect::<Vec<_>>(), [5000; 4]);
}

#[test]
fn a_train_longer_than_an_ip_packet_is_cut_even_for_a_port_without_limits() {
    let mut case = Case::new(inner(v4(1, 1), true, 200_000), 1448);
    let limits = Limits { max_bytes: usize::MAX, ..PORT_TSO };
    let out = split_both(&case.train(), &limits).unwrap().0;
    assert_eq!(out.len(), 4);
    assert!(out.iter().all(|o| o.bytes.len() <= 65_535 && o.gso.is_some()));
    case.size = 1000;
    check_case(&case, &Limits::NONE);
}

#[test]
fn tiny_segments_are_kept_where_they_came_in_and_raised_where_they_were_only_asked_for() {
    let mut case = Case::new(inner(v4(1, 1), true, 20), 3);
    case.csum = TrainCsum::Stale;
    check_case(&case, &Limits::NONE);
    case.csum = TrainCsum::Partial;
    let out = split_both(&case.train(), &Limits::NONE).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len() - 52).collect::<Vec<_>>(), [8, 8, 4]);
    check_case(&Case::new(inner(v4(1, 1), false, 7), 1), &Limits::NONE);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    // 198.18.1.1:1000 -> 198.18.1.2:2000 with this payload sums to ffff.
    let data = [[0x65, 0xfa], [0x65, 0xfa], [0x65, 0xfb]].concat();
    let packet = build::Packet { data, ..inner(Ip::V4(V4::new(1, 1, 2)), false, 0) };
    let case = Case::new(packet, 2);
    check_case(&case, &Limits::NONE);
    let out = split_both(&case.train(), &Limits::NONE).unwrap().0;
    assert_eq!(out.iter().map(|o| [o.bytes[26], o.bytes[27]]).collect::<Vec<_>>(), [[255, 255], [255, 255], [255, 254]]);

    let whole = build::Packet { data: vec![0x65, 0xfa], ..case.inner };
    let mut packet = primed(&whole.bytes(), &[]);
    finish(&mut packet).unwrap();
    assert_eq!(wire(&packet), whole.bytes());
    assert_eq!(packet.head.bytes()[26..28], [255, 255]);
}

// Single packets.

fn wire(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

/// A single packet with its transport checksum primed and every checksum of `tunnels` owed.
fn primed(bytes: &[u8], tunnels: &[Tunnel]) -> Packet<Vec<u8>> {
    let mut packet = load(bytes, Start::Ip);
    packet.offload = Offload::plain(Unit::Whole(Csum::Partial));
    owe(&mut packet, tunnels);
    let transport = *packet.layout.transport().unwrap();
    let field = transport.start() + if transport.kind == Kind::Tcp { 16 } else { 6 };
    let ip = packet.layout.inner_ip().unwrap().start();
    let (_, _, value) = build::primed(&bytes[ip..]).unwrap();
    write_u16(packet.head.bytes_mut(), field, value);
    packet
}

fn owe(packet: &mut Packet<Vec<u8>>, tunnels: &[Tunnel]) {
    for tunnel in tunnels.iter().rev() {
        let layer = layer_of(tunnel, LayerCsum::Owed);
        assert!(packet.offload.push_outer(layer));
        if layer.udp == LayerCsum::Owed {
            let at = packet.layout.headers()[1].start();
            write_u16(packet.head.bytes_mut(), at + udp::CHECKSUM, 0);
        }
        let gre = packet.layout.headers().iter().find(|h| h.kind == Kind::Gre).copied();
        if let Some(gre) = gre.filter(|_| layer.gre == LayerCsum::Owed) {
            write_u16(packet.head.bytes_mut(), gre.start() + 4, 0);
        }
    }
}

#[test]
fn a_single_packet_is_completed_in_every_tunnel_form() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 3), v6(1)] {
            for len in [1, 100, 333] {
                let plain = inner(ip.clone(), is_tcp, len).bytes();
                for tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
                    let expected = tunnel.wrap(&plain);
                    let packet = primed(&expected, std::slice::from_ref(&tunnel));
                    for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                        let (out, _) = split_both(&packet, &limits).unwrap();
                        assert_eq!(complete_as_port(&out[0], &limits, oracle::Start::Ip).0, expected);
                        let remote = packet.offload.layers()[0].remote == Some(Remote::Transport);
                        assert_eq!(out[0].csum == SegmentCsum::Partial, limits.csum && !remote);
                    }
                    let mut finished = packet;
                    finish(&mut finished).unwrap();
                    assert_eq!(wire(&finished), expected);
                    // Nothing is owed any more but what the far end does.
                    let remote = finished.offload.layers()[0].remote;
                    assert_eq!(finished.offload.unit == Unit::Whole(Csum::Verified), remote != Some(Remote::Transport));
                    assert_ne!(finished.offload.layers()[0].udp, LayerCsum::Owed);
                    assert_eq!(finished.offload.layers()[0].gre == LayerCsum::Owed, remote == Some(Remote::Gre));
                    assert_eq!(finish(&mut finished), Ok(0));
                    assert_eq!(wire(&finished), expected);
                }
            }
        }
    }
}

#[test]
fn a_verified_packet_gets_outer_checksums_without_touching_its_payload() {
    let plain = inner(v4(1, 3), true, 1001).bytes();
    let gre = Some(Gre { checksum: true, ..Gre::default() });
    let tunnel = over_udp(v6(0), Shim::Gue(None), gre, true, true);
    let expected = tunnel.wrap(&plain);
    for (csum, summed) in [(Csum::Verified, 0), (Csum::Unknown, 1001)] {
        let mut packet = load(&expected, Start::Ip);
        packet.offload = Offload::plain(Unit::Whole(csum));
        owe(&mut packet, std::slice::from_ref(&tunnel));
        let (out, sum) = split_both(&packet, &Limits::NONE).unwrap();
        assert_eq!((&out[0].bytes, sum), (&expected, summed));
        assert_eq!(out[0].csum, SegmentCsum::AsIs, "the mark would be read as that of the outer level");
    }
    let mut packet = load(&plain, Start::Ip);
    packet.offload = Offload::plain(Unit::Whole(Csum::Verified));
    assert_eq!(split_both(&packet, &Limits::NONE).unwrap().0[0].csum, SegmentCsum::Verified);
}

#[test]
fn what_is_no_tcp_or_udp_gets_its_outer_checksums_too() {
    for is_v4 in [true, false] {
        let ip = if is_v4 { v4(1, 3) } else { v6(1) };
        let icmp = build::Packet { ip: ip.clone(), l4: L4::Icmp(8, 0, [1, 2, 3, 4]), data: vec![5; 57] };
        let mut fragment = build::Packet { ip, l4: L4::Raw(17), data: vec![6; 64] };
        match &mut fragment.ip {
            Ip::V4(ip) => ip.fragment = Some((64, true)),
            Ip::V6(ip) => ip.fragment = Some((1, 64, true)),
        }
        for inside in [icmp.bytes(), fragment.bytes()] {
            for tunnel in every_tunnel(is_v4) {
                // Builders and Linux leave the option out where there is nothing to point at.
                if tunnel.ethernet.is_some() || matches!(tunnel.udp, Some((_, Shim::Gue(Some(_))))) {
                    continue;
                }
                let expected = tunnel.wrap(&inside);
                let mut packet = load(&expected, Start::Ip);
                packet.offload = Offload::UNKNOWN;
                owe(&mut packet, std::slice::from_ref(&tunnel));
                assert_eq!(split_both(&packet, &Limits::NONE).unwrap().0[0].bytes, expected);
                finish(&mut packet).unwrap();
                assert_eq!(wire(&packet), expected);
            }
        }
    }
}

#[test]
fn a_wrong_checksum_never_leaves_as_a_right_one() {
    for csum in [Csum::Unknown, Csum::Bad] {
        let mut bytes = inner(v4(1, 3), true, 50).bytes();
        bytes[70] ^= 4;
        let mut packet = load(&bytes, Start::Ip);
        packet.offload = Offload::plain(Unit::Whole(csum));
        for limits in [Limits::NONE, PORT_BOTH] {
            let out = split_both(&packet, &limits).unwrap().0;
            assert_eq!((&out[0].bytes, out[0].csum), (&bytes, SegmentCsum::AsIs));
        }
    }
    // Primed with rubbish: completed from it, hence wrong.
    let mut packet = primed(&inner(v4(1, 3), true, 50).bytes(), &[]);
    packet.head.bytes_mut()[36] ^= 1;
    finish(&mut packet).unwrap();
    assert!(verify(&wire(&packet), oracle::Start::Ip, &ports()).is_err());
}

#[test]
fn bytes_behind_the_inner_packet_count_for_the_outer_checksum_only() {
    for is_tcp in [true, false] {
        for (limits, csum) in [(Limits::NONE, Csum::Partial), (PORT_CSUM, Csum::Partial), (PORT_CSUM, Csum::Verified)] {
            for (len, extra) in [(7, 3), (8, 3), (7, 2)] {
                let plain = inner(v4(1, 3), is_tcp, len).bytes();
                let tunnel = over_udp(v4(0, 1), Shim::Gue(None), None, true, true);
                // Built with room for the extra bytes, which the inner length does not count.
                let mut padded = plain.clone();
                padded.extend(vec![0xee; extra]);
                let expected = tunnel.wrap(&padded);
                let mut packet = primed(&expected[..expected.len() - extra], &[]);
                packet.payload = load(&expected, Start::Ip).payload;
                packet.layout = load(&expected, Start::Ip).layout;
                let field = packet.layout.transport().unwrap().start() + if is_tcp { 16 } else { 6 };
                if csum == Csum::Verified {
                    packet.head.bytes_mut()[field..field + 2].copy_from_slice(&expected[field..field + 2]);
                }
                packet.offload = Offload::plain(Unit::Whole(csum));
                owe(&mut packet, std::slice::from_ref(&tunnel));
                let mut out = split_both(&packet, &limits).unwrap().0.remove(0);
                if out.csum == SegmentCsum::Partial {
                    out.bytes[field..field + 2].copy_from_slice(&expected[field..field + 2]);
                }
                assert_eq!(out.bytes, expected);
            }
        }
    }
}

// Refusals.

fn refusal(change: impl FnOnce(&mut Packet<Vec<u8>>)) -> Refusal {
    let mut train = Case::new(inner(v4(1, 1), true, 3000), 1000).train();
    train.head.bytes_mut()[20 + tcp::FLAGS] = tcp::ACK;
    change(&mut train);
    // Nothing of what was there before is lost, and nothing is added.
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let good = Case::new(inner(v6(1), true, 3000), 1000).train();
    split(&good, &Limits::NONE, &mut arena).unwrap();
    split_linear(&good, &Limits::NONE, &mut frames).unwrap();
    let before: Vec<_> = arena.segments().iter().map(|s| arena.head(s).to_vec()).collect();
    let reason = split(&train, &Limits::NONE, &mut arena).unwrap_err();
    assert_eq!(split_linear(&train, &Limits::NONE, &mut frames), Err(reason));
    let after: Vec<_> = arena.segments().iter().map(|s| arena.head(s).to_vec()).collect();
    assert_eq!((before, frames.frames().len()), (after, 3));
    assert_eq!(split(&good, &Limits::NONE, &mut arena), Ok(3));
    assert_eq!(arena.head(&arena.segments()[3]), arena.head(&arena.segments()[0]));
    reason
}

fn set_gso(packet: &mut Packet<Vec<u8>>, kind: GsoKind, size: u16) {
    let gso = Gso { kind, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
}

#[test]
fn a_train_of_empty_segments_is_refused() {
    assert_eq!(refusal(|p| set_gso(p, GsoKind::Tcp, 0)), Refusal::Size);
}

#[test]
fn a_train_of_the_other_transport_is_refused() {
    assert_eq!(refusal(|p| set_gso(p, GsoKind::Udp, 1000)), Refusal::Kind);
}

#[test]
fn syn_and_rst_in_a_train_are_refused() {
    for flag in [tcp::SYN, tcp::RST] {
        assert_eq!(refusal(|p| p.head.bytes_mut()[20 + tcp::FLAGS] |= flag), Refusal::SynRst);
    }
}

#[test]
fn a_train_of_too_many_segments_is_refused() {
    let long = |p: &mut Packet<Vec<u8>>, len| {
        p.payload.clear();
        p.payload.push(Frag::all(vec![0; len]));
        set_gso(p, GsoKind::Tcp, 8);
    };
    assert_eq!(refusal(|p| long(p, 8 * MAX_SEGS + 1)), Refusal::Segments);
    let mut most = Case::new(inner(v4(1, 1), true, 100), 8).train();
    long(&mut most, 8 * MAX_SEGS);
    assert_eq!(split(&most, &Limits::NONE, &mut Arena::new()), Ok(MAX_SEGS));
}

#[test]
fn a_segment_that_no_length_field_can_say_is_refused() {
    let long = |size| {
        move |p: &mut Packet<Vec<u8>>| {
            p.payload.clear();
            p.payload.push(Frag::all(vec![0; 150_000]));
            set_gso(p, GsoKind::Tcp, size);
        }
    };
    assert_eq!(refusal(long(65_535 - 52 + 1)), Refusal::Length);
    let mut fits = Case::new(inner(v4(1, 1), true, 100), 8).train();
    long(65_535 - 52)(&mut fits);
    let out = split_both(&fits, &Limits::NONE).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len()).collect::<Vec<_>>(), [65_535, 65_535, 52 + 150_000 - 2 * 65_483]);
}

#[test]
fn a_train_without_a_transport_header_or_in_a_fragment_is_refused() {
    let icmp = build::Packet { ip: v4(1, 1), l4: L4::Icmp(8, 0, [0; 4]), data: vec![0; 50] };
    let mut fragment = inner(v4(1, 1), true, 50);
    if let Ip::V4(ip) = &mut fragment.ip {
        ip.fragment = Some((0, true));
    }
    for (bytes, reason) in [(icmp.bytes(), Refusal::Transport), (fragment.bytes(), Refusal::Fragment)] {
        let load_it = |p: &mut Packet<Vec<u8>>| p.load(Frag::all(bytes.clone()), Start::Ip, &Tunnels::NONE);
        assert_eq!(
            refusal(|p| {
                load_it(p);
                set_gso(p, GsoKind::Tcp, 10);
            }),
            reason
        );
        assert_eq!(
            refusal(|p| {
                load_it(p);
                p.offload.unit = Unit::Whole(Csum::Partial);
            }),
            reason
        );
    }
}

#[test]
fn checksum_states_that_do_not_fit_the_headers_are_refused() {
    // A level that is not there.
    assert_eq!(refusal(|p| assert!(p.offload.push_outer(Layer::NONE))), Refusal::Levels);
    for unit in [Unit::Whole(Csum::Unknown), Unit::Whole(Csum::Partial)] {
        let owed = Layer { udp: LayerCsum::Owed, ..Layer::NONE };
        assert_eq!(
            refusal(|p| {
                p.offload = Offload::plain(unit);
                assert!(p.offload.push_outer(owed));
            }),
            Refusal::Levels
        );
    }
    // A level without the place for what it owes.
    for layer in [
        Layer { gre: LayerCsum::Owed, ..Layer::NONE },
        Layer { remote: Some(Remote::Gre), ..Layer::NONE },
    ] {
        assert_eq!(
            refusal(|p| {
                let case = Case::new(inner(v4(1, 1), true, 3000), 1000);
                *p = case.within(over_udp(v4(0, 1), Shim::Fou, Some(Gre::default()), false, true)).train();
                p.offload.layers_mut()[0] = layer;
            }),
            Refusal::Levels
        );
    }
}

#[test]
fn a_layout_that_does_not_fit_the_head_is_refused() {
    assert_eq!(refusal(|p| p.head.pull_front(1)), Refusal::Layout);
    assert_eq!(refusal(|p| p.layout = Layout::empty(Stop::Transport)), Refusal::Transport);
}

#[test]
fn a_routing_header_that_has_not_arrived_is_refused() {
    let mut packet = inner(v6(1), true, 3000);
    if let Ip::V6(ip) = &mut packet.ip {
        ip.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (43, vec![4, 0, 0, 0, 0, 0])];
    }
    check_case(&Case::new(packet.clone(), 1000), &Limits::NONE);
    if let Ip::V6(ip) = &mut packet.ip {
        ip.extensions[1].1[1] = 1;
    }
    assert_eq!(refusal(|p| *p = Case::new(packet, 1000).train()), Refusal::Routing);
}

#[test]
fn only_single_packets_are_finished() {
    let mut train = Case::new(inner(v4(1, 1), true, 3000), 1000).train();
    let before = wire(&train);
    assert_eq!(finish(&mut train), Err(Refusal::Train));
    assert_eq!(wire(&train), before);
}

fn any_limits() -> impl Strategy<Value = Limits> {
    any::<(bool, bool)>().prop_map(|(csum, outer_csum)| Limits { csum, outer_csum, ..Limits::NONE })
}

fn any_case() -> impl Strategy<Value = Case> {
    let fixed = any::<(u16, bool)>();
    (strategy::packet(6000), 8_usize..1500, any::<bool>(), fixed).prop_flat_map(|(inner, size, is_tunnelled, fixed)| {
        let is_v4 = matches!(inner.ip, Ip::V4(_));
        let tunnels = proptest::collection::vec(strategy::tunnel(is_v4), usize::from(is_tunnelled));
        tunnels.prop_map(move |tunnels| {
            let fixed = if fixed.1 { fixed.0 } else { 0 };
            Case { tunnels, fixed, ..Case::new(inner.clone(), size) }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_train_for_any_port_is_what_would_have_been_built(case in any_case(), limits in any_limits()) {
        check_case(&case, &limits);
    }

    #[test]
    fn any_bytes_with_any_state_are_split_or_refused(
        case in any_case(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        unit in 0..6,
        size in any::<u16>(),
        states in any::<[u8; 4]>(),
        limits in any_limits(),
    ) {
        let mut bytes = case.expected_head();
        for (at, value) in changes {
            let len = bytes.len().min(200);
            bytes[at.index(len)] = value;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut packet = load(&bytes, Start::Ip);
        let gso = Gso { kind: if size % 2 == 0 { GsoKind::Tcp } else { GsoKind::Udp }, size, fixed_ids: size };
        let csum = if size % 3 == 0 { TrainCsum::Partial } else { TrainCsum::Stale };
        packet.offload.unit = match unit {
            0 => Unit::Whole(Csum::Partial),
            1 => Unit::Whole(Csum::Verified),
            2 => Unit::Whole(Csum::Unknown),
            _ => Unit::Train { csum, gso },
        };
        let csums = [LayerCsum::Absent, LayerCsum::Unknown, LayerCsum::Done, LayerCsum::Owed];
        for (layer, state) in packet.offload.layers_mut().iter_mut().zip(states) {
            layer.udp = csums[usize::from(state % 4)];
            layer.gre = csums[usize::from(state / 4 % 4)];
            layer.remote = [None, Some(Remote::Transport), Some(Remote::Gre), layer.remote][usize::from(state / 16 % 4)];
        }
        let payload: Vec<u8> = packet.payload.pieces(0..usize::MAX).flatten().copied().collect();
        if let Ok((out, _)) = split_both(&packet, &limits) {
            let head_len = packet.head.len();
            let joined: Vec<u8> = out.iter().flat_map(|o| o.bytes[head_len..].to_vec()).collect();
            prop_assert_eq!(joined, payload);
        }
        let _ = finish(&mut packet);
    }
}
