//! Test cases: a train as stated by a test, and the expected frames.

use std::ops::Range;

use segue::gso::{Arena, Frames, Limits, Refusal, SegmentCsum, split, split_linear};
use segue::packet::{
    Frag, Gso, GsoKind, Header, Kind, Layer, LayerCsum, Offload, Packet, Remote, Start, TrainCsum, Tunnels, Unit,
};
use segue::wire::{ipv4, ipv6, tcp, udp, write_u16};
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6};
use segue_testkit::oracle::{self, Owed, Ports, Report, verify_owed};
use segue_testkit::strategy::{self, FOU_PORTS, GENEVE_PORT, GUE_PORT, VXLAN_PORT};
use segue_testkit::{Rng, sum};

pub(crate) const PORT_CSUM: Limits = Limits { csum: true, ..Limits::NONE };
pub(crate) const PORT_OUTER: Limits = Limits { outer_csum: true, ..Limits::NONE };
pub(crate) const PORT_BOTH: Limits = Limits { csum: true, outer_csum: true, ..Limits::NONE };
pub(crate) const PORT_TSO: Limits = Limits { csum: true, tso4: true, tso6: true, uso: true, ..Limits::NONE };
/// A port that takes trains inside a UDP tunnel too, if the outer header has no checksum.
pub(crate) const PORT_TUNNEL: Limits = Limits { udp_tunnel: true, ..PORT_TSO };
/// A port that also takes those with an outer checksum.
pub(crate) const PORT_TUNNEL_CSUM: Limits = Limits { udp_tunnel_csum: true, ..PORT_TUNNEL };

/// A train as stated by a test: its packet, tunnels, and state.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The inner packet, with the payload of the whole train.
    pub(crate) inner: build::Packet,
    /// Tunnels around the train, outermost first.
    pub(crate) tunnels: Vec<Tunnel>,
    pub(crate) ethernet: Option<Ethernet>,
    pub(crate) size: usize,
    pub(crate) csum: TrainCsum,
    /// IP levels with a constant identification, outermost first, bit 0 first.
    pub(crate) fixed: u16,
    /// State of the outer checksums.
    pub(crate) outer: LayerCsum,
    /// Whether CWR is on all segments.
    pub(crate) keeps_cwr: bool,
}

impl Case {
    pub(crate) fn new(inner: build::Packet, size: usize) -> Case {
        let (csum, outer) = (TrainCsum::Partial, LayerCsum::Owed);
        Case { inner, tunnels: Vec::new(), ethernet: None, size, csum, fixed: 0, outer, keeps_cwr: false }
    }

    pub(crate) fn within(mut self, tunnel: Tunnel) -> Case {
        self.tunnels.insert(0, tunnel);
        self
    }

    pub(crate) fn start(&self) -> (Start, oracle::Start) {
        match self.ethernet {
            Some(_) => (Start::Ethernet, oracle::Start::Ethernet),
            None => (Start::Ip, oracle::Start::Ip),
        }
    }

    pub(crate) fn has_remote_transport(&self) -> bool {
        self.tunnels
            .iter()
            .any(|t| matches!(t.udp, Some((_, Shim::Gue(Some(Remcsum::Transport)) | Shim::Vxlan(_, true)))))
    }

    /// Returns the identification of the packet after `number` segments.
    pub(crate) fn step(&self, ip: &Ip, level: usize, number: usize) -> Ip {
        let mut ip = ip.clone();
        if let Ip::V4(ip) = &mut ip
            && self.fixed >> level & 1 == 0
        {
            ip.id = ip.id.wrapping_add(number as u16);
        }
        ip
    }

    /// Returns the expected frame for the payload in `range`, built from scratch.
    pub(crate) fn expected(&self, range: Range<usize>) -> Vec<u8> {
        let (number, total) = (range.start / self.size, self.inner.data.len());
        let mut inner = build::Packet {
            ip: self.step(&self.inner.ip, self.tunnels.len(), number),
            l4: self.inner.l4.clone(),
            data: self.inner.data[range.clone()].to_vec(),
        };
        if let L4::Tcp(tcp) = &mut inner.l4 {
            tcp.seq = tcp.seq.wrapping_add(range.start as u32);
            tcp.flags &= if range.end == total { 0xff } else { 0xf6 };
            tcp.flags &= if range.start == 0 || self.keeps_cwr { 0xff } else { 0x7f };
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

    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        let total = self.inner.data.len();
        (0..total.div_ceil(self.size).max(1)).map(|i| i * self.size..((i + 1) * self.size).min(total)).collect()
    }

    /// Returns the train, in many odd pieces, with garbage in every field that segmentation must write.
    pub(crate) fn train(&self) -> Packet<Vec<u8>> {
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
        let fixed_ids = fixed_ids | if self.keeps_cwr { Gso::CWR } else { 0 };
        let gso = Gso { kind, size: self.size as u16, fixed_ids };
        packet.offload = Offload::plain(Unit::Train { csum: self.csum, gso });
        for tunnel in self.tunnels.iter().rev() {
            let layer = layer_of(tunnel, self.outer);
            assert!(packet.offload.push_outer(layer));
        }
        scramble(&mut packet);
        packet
    }

    /// Returns the headers of the first segment, with the flags of all and a few bytes after them.
    pub(crate) fn expected_head(&self) -> Vec<u8> {
        Case { size: 100, ..self.clone() }.expected(0..self.inner.data.len())
    }
}

/// Returns whether a port with these limits takes trains inside the tunnel, if it takes them outside of one.
pub(crate) fn is_taken(tunnel: &Tunnel, limits: &Limits) -> bool {
    let Some((udp, shim)) = tunnel.udp else { return false };
    let is_remote = matches!(shim, Shim::Gue(Some(_)) | Shim::Vxlan(_, true));
    limits.udp_tunnel && (limits.udp_tunnel_csum || !udp.checksum) && tunnel.gre.is_none() && !is_remote
}

pub(crate) fn layer_of(tunnel: &Tunnel, present: LayerCsum) -> Layer {
    let state = |is_present| if is_present { present } else { LayerCsum::Absent };
    let (udp, remote) = match tunnel.udp {
        Some((udp, Shim::Gue(Some(Remcsum::Transport)) | Shim::Vxlan(_, true))) => {
            (udp.checksum, Some(Remote::Transport))
        }
        Some((udp, Shim::Gue(Some(Remcsum::Gre)))) => (udp.checksum, Some(Remote::Gre)),
        Some((udp, _)) => (udp.checksum, None),
        None => (false, None),
    };
    Layer { udp: state(udp), gre: state(tunnel.gre.is_some_and(|gre| gre.checksum)), remote }
}

pub(crate) fn scramble(packet: &mut Packet<Vec<u8>>) {
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
            _ => {}
        }
    }
}

pub(crate) fn tunnels() -> Tunnels {
    let base = Tunnels::NONE.with_gue(GUE_PORT).with(VXLAN_PORT, Kind::Vxlan).with(GENEVE_PORT, Kind::Geneve);
    FOU_PORTS.iter().fold(base, |t, fou| t.with_fou(fou.0, fou.1))
}

pub(crate) fn ports() -> Ports {
    strategy::ports()
}

pub(crate) fn load(bytes: &[u8], start: Start) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.to_vec()), start, &tunnels());
    packet
}

/// A frame that was sent, with the port's remaining task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    pub(crate) csum: SegmentCsum,
    pub(crate) gso: Option<Gso>,
}

/// Splits in both forms, and checks that they agree.
pub(crate) fn split_both(packet: &Packet<Vec<u8>>, limits: &Limits) -> Result<(Vec<Out>, u64), Refusal> {
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

/// Completes a frame's checksums like a port with these limits before sending, after the oracle has found them pending.
pub(crate) fn complete_as_port(out: &Out, limits: &Limits, start: oracle::Start) -> (Vec<u8>, Report) {
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
        let is_tag = |at: usize| matches!(bytes[at - 2..at], [0x81, 0] | [0x88, 0xa8]);
        let mut at = if start == oracle::Start::Ethernet { 14 } else { 0 };
        while at > 0 && is_tag(at) {
            at += 4;
        }
        let udp = at + if report.levels[0].version == 4 { 20 } else { 40 };
        put(&mut bytes, udp + 6, udp, true);
    }
    (bytes, report)
}

/// Completes a primed field over all bytes from `from` on.
pub(crate) fn put(bytes: &mut [u8], field: usize, from: usize, is_udp: bool) {
    let value = match !sum::fold(&bytes[from..]) {
        0 if is_udp => 0xffff,
        value => value,
    };
    bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

/// Splits for a port that takes single packets only, and compares every frame that reaches the wire.
pub(crate) fn check_case(case: &Case, limits: &Limits) -> u64 {
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

pub(crate) fn inner(ip: Ip, is_tcp: bool, len: usize) -> build::Packet {
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

pub(crate) fn v4(net: u8, id: u16) -> Ip {
    Ip::V4(V4 { id, tos: 0x2a, ..V4::new(net, 1, 2) })
}

pub(crate) fn v6(net: u8) -> Ip {
    Ip::V6(V6 { label: 0xabcde, class: 0x2a, ..V6::new(net, 1, 2) })
}

pub(crate) fn over_udp(ip: Ip, shim: Shim, gre: Option<Gre>, checksum: bool, inner_is_v4: bool) -> Tunnel {
    let dst_port = strategy::port_of(shim, gre.is_some(), false, inner_is_v4);
    Tunnel { ip, udp: Some((Udp { src_port: 0xc123, dst_port, checksum }, shim)), gre, ethernet: None }
}

/// Returns every tunnel form around an inner packet of IPv4 or IPv6, over both versions of IP.
pub(crate) fn every_tunnel(inner_is_v4: bool) -> Vec<Tunnel> {
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
        let bridged = Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() };
        for (shim, ethernet, checksum) in [
            (Shim::Fou, true, true),
            (Shim::Gue(None), true, false),
            (Shim::Gue(Some(Remcsum::Transport)), true, true),
            (Shim::Vxlan(0x12_3456, false), true, true),
            (Shim::Vxlan(0x12_3456, false), true, false),
            (Shim::Vxlan(0xff_ffff, true), true, true),
            (Shim::Geneve(0x12_3456, 0), true, true),
            (Shim::Geneve(0x12_3456, 3), true, false),
            (Shim::Geneve(0x12_3456, 1), false, true),
        ] {
            let mut tunnel = over_udp(ip.clone(), shim, None, checksum, inner_is_v4);
            tunnel.ethernet = ethernet.then(|| bridged.clone());
            if let Some((udp, _)) = &mut tunnel.udp {
                udp.dst_port = strategy::port_of(shim, false, ethernet, inner_is_v4);
            }
            all.push(tunnel);
        }
    }
    all
}
