//! Tests of a tunnel with a peer table: inner packets of which only headers have to be removed reach GRO unparsed, and
//! everything is as if they had been parsed.

mod memory;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::{Carries, Memory, Wire, counter, counters};
use segue::checksum::{Field, pseudo_v4};
use segue::encap::{Carrier, Config, GreOptions, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::{Group, Stage};
use segue_datapath::overlay::{
    Inside, Listener, ListenerConfig, Overlay, Parts, PeerConfig, PeerCounters, Removed, Table, TableSender, exchange,
};
use segue_datapath::pipeline::{Pipeline, Round};
use segue_port::{Counters, OffloadState, Polled, Port, RxBatch, Sent, TxBatch};
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Ip, L4, Packet, Udp, V4, V6};
use segue_testkit::flow::{Sender, mixed};

const KEY: Key = Key([1, 2]);
/// Outer addresses: this end, two peers, a peer that was removed, and one that never was.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const PEERS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)), IpAddr::V4(Ipv4Addr::new(198, 18, 0, 3))];
const REMOVED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 8));
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 9));
/// Ethernet addresses: this end, and a station behind each peer.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
const VNI: u32 = 7;

/// A form of datagrams, and of what the interface carries.
#[derive(Clone, Copy, Debug)]
struct Form {
    is_vxlan: bool,
    /// Whether datagrams carry frames.
    is_frame: bool,
    /// Whether the interface carries frames.
    frames: bool,
}

const GUE: Form = Form { is_vxlan: false, is_frame: false, frames: false };
const VXLAN_OVER_IP: Form = Form { is_vxlan: true, is_frame: true, frames: false };
const FRAMES_IN_GUE: Form = Form { is_vxlan: false, is_frame: true, frames: true };
const FRAMES_IN_VXLAN: Form = Form { is_vxlan: true, is_frame: true, frames: true };
const FORMS: [Form; 4] = [GUE, VXLAN_OVER_IP, FRAMES_IN_GUE, FRAMES_IN_VXLAN];

/// How headers are removed from a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Short,
    /// Through GRE in GUE with a sequence number: such datagrams are always parsed, and hold the same inner packets.
    Parsed,
}

/// The content of a datagram: an IP packet or a frame.
#[derive(Clone, Debug)]
struct Content {
    bytes: Vec<u8>,
    /// Whether the headers in front announce IPv6, where they announce a version.
    is_v6: bool,
    /// Start and field of the checksum that is left to the receiver, in bytes from the start of the content.
    left: Option<(u16, u16)>,
}

/// Datagrams that arrive together.
#[derive(Debug)]
struct Case {
    what: String,
    /// Outer DSCP and ECN byte.
    tos: u8,
    contents: Vec<Content>,
}

/// A port in memory whose datagrams have an outer DSCP and ECN byte, and which counts what it sends unparsed.
struct Watched {
    port: Box<dyn Port>,
    tos: Rc<Cell<u8>>,
    unparsed: Rc<Cell<usize>>,
}

impl Port for Watched {
    fn limits(&self) -> &Limits {
        self.port.limits()
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        self.port.offloads()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let polled = self.port.receive(into, budget)?;
        into.bursts.iter_mut().for_each(|burst| burst.tos = self.tos.get());
        Ok(polled)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let unparsed = batch.units().filter(|unit| unit.head().is_empty()).count();
        self.unparsed.set(self.unparsed.get() + unparsed);
        self.port.transmit(batch)
    }

    fn counters(&self) -> &Counters {
        self.port.counters()
    }
}

/// A tunnel with a peer table between two ports in memory.
struct Bench {
    overlay: Overlay,
    form: Form,
    removal: Removal,
    inside: Rc<RefCell<Wire>>,
    outside: Rc<RefCell<Wire>>,
    tables: TableSender,
    peers: Vec<Arc<PeerCounters>>,
    tos: Rc<Cell<u8>>,
    unparsed: Rc<Cell<usize>>,
    /// GRE sequence number of the last datagram.
    seq: u32,
    now: u64,
}

fn config(form: Form, removal: Removal, vni: u32, remote: IpAddr) -> Config {
    let gre = GreOptions { iseq: true, oseq: true, ..GreOptions::default() };
    let gue = Carrier::Gue { remcsum: true };
    let (mode, carrier) = match (removal, form.is_frame) {
        (Removal::Parsed, true) => (Mode::GreTap(gre), gue),
        (Removal::Parsed, false) => (Mode::Gre(gre), gue),
        (Removal::Short, true) if form.is_vxlan => {
            (Mode::Ethernet, Carrier::Vxlan { vni, remcsum: false, takes_remcsum: true })
        }
        (Removal::Short, true) => (Mode::Ethernet, gue),
        (Removal::Short, false) => (Mode::Ip, gue),
    };
    Config { unfinished: Some(1400), ..Config::new(mode, carrier, LOCAL, remote) }
}

/// Builds a table of peers: what is inside, the index of the remote in [`PEERS`], and the network.
fn table(
    form: Form,
    removal: Removal,
    peers: &[(Inside, usize, u32)],
    counters: &[Arc<PeerCounters>],
    removed: IpAddr,
) -> Box<Table> {
    let peers: Vec<PeerConfig> = peers
        .iter()
        .map(|&(inside, peer, vni)| PeerConfig {
            inside,
            listener: 0,
            encap: config(form, removal, vni, PEERS[peer]),
            mac: (form.is_frame && !form.frames).then_some(STATIONS[peer]),
            counters: Arc::clone(&counters[peer]),
        })
        .collect();
    let listeners = [ListenerConfig { encap: config(form, removal, VNI, PEERS[0]) }];
    let removed = Removed { prefixes: Vec::new(), remotes: vec![removed] };
    Box::new(Table::new(1, &listeners, &peers, &removed, OWN, KEY).unwrap())
}

/// Returns the IP prefix of a network of the testkit's builders.
fn prefix(net: u8) -> Inside {
    Inside::Prefix(IpAddr::from([198, 18, net, 0]), 24)
}

/// Returns the peers of most tests: inner addresses of net 1 belong to the first, those of net 3 to the second, which
/// also has the unknown Ethernet addresses.
fn usual_peers(form: Form) -> Vec<(Inside, usize, u32)> {
    if form.frames {
        let stations = [0, 1].map(|peer| (Inside::Station(STATIONS[peer]), peer, VNI));
        return [&stations[..], &[(Inside::Flood, 1, VNI)]].concat();
    }
    let v6 = Inside::Prefix("2001:db8:1::".parse().unwrap(), 48);
    vec![(prefix(1), 0, VNI), (v6, 0, VNI), (prefix(3), 1, VNI)]
}

impl Bench {
    fn new(form: Form, removal: Removal) -> Bench {
        Bench::with(form, removal, &usual_peers(form))
    }

    fn with(form: Form, removal: Removal, peers: &[(Inside, usize, u32)]) -> Bench {
        let counts = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..Limits::NONE };
        let trains = Limits { csum: true, tso4: true, tso6: true, uso: true, ..counts };
        let carries = if form.frames { Carries::Ethernet } else { Carries::Ip };
        let (tos, unparsed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let watched = |port| Box::new(Watched { port, tos: Rc::clone(&tos), unparsed: Rc::clone(&unparsed) });
        let (inside_port, inside) = Memory::port(carries, trains);
        let (outside_port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        let counters: Vec<Arc<PeerCounters>> = PEERS.iter().map(|_| Arc::default()).collect();
        let (sender, tables) = exchange();
        let overlay = Overlay::new(Parts {
            inside_name: "sg0".to_owned(),
            inside: watched(inside_port),
            frames: form.frames,
            listeners: vec![Listener {
                name: "udp".to_owned(),
                port: watched(outside_port),
                csum: OuterCsum::Verified,
            }],
            table: table(form, removal, peers, &counters, REMOVED),
            tables,
            mac: OWN,
            gro: Some(gro::Config::default()),
            remcsum: true,
            budget: 64,
            pages: 256,
            key: KEY,
        });
        Bench {
            overlay,
            form,
            removal,
            inside,
            outside,
            tables: sender,
            peers: counters,
            tos,
            unparsed,
            seq: 0,
            now: 0,
        }
    }

    /// Returns a datagram in the form of this tunnel, from behind the UDP header on.
    fn datagram(&mut self, content: &Content, vni: u32) -> Vec<u8> {
        if self.removal == Removal::Short && self.form.is_vxlan {
            let mut header = [8, 0, 0, 0, 0, 0, vni as u8, 0];
            if let Some((start, field)) = content.left {
                header[1] = 0x20;
                header[7] = (start / 2) as u8 | if field - start == 6 { 0x80 } else { 0 };
            }
            return [&header[..], &content.bytes[..]].concat();
        }
        let (mut protocol, kind): (u8, u16) = match (self.form.is_frame, content.is_v6) {
            (true, _) => (143, 0x6558),
            (false, false) => (4, 0x0800),
            (false, true) => (41, 0x86dd),
        };
        let mut gre = Vec::new();
        if self.removal == Removal::Parsed {
            self.seq += 1;
            protocol = 47;
            gre = [&[0x10, 0][..], &kind.to_be_bytes()[..], &self.seq.to_be_bytes()[..]].concat();
        }
        let mut bytes = vec![0, protocol, 0, 0];
        if let Some((start, field)) = content.left {
            (bytes[0], bytes[3]) = (2, 1);
            bytes.extend([0x80, 0, 0, 0]);
            // They count from behind the GUE header.
            [start, field].iter().for_each(|at| bytes.extend((at + gre.len() as u16).to_be_bytes()));
        }
        [bytes, gre, content.bytes.clone()].concat()
    }

    /// Receives datagrams with these contents from a peer, and returns what the interface gets.
    fn take(&mut self, from: IpAddr, tos: u8, contents: &[Content]) -> Vec<Vec<u8>> {
        let datagrams: Vec<Vec<u8>> = contents.iter().map(|content| self.datagram(content, VNI)).collect();
        self.tos.set(tos);
        self.receive(from, datagrams)
    }

    fn receive(&mut self, from: IpAddr, datagrams: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.outside.borrow_mut().peer = Some(SocketAddr::new(from, 6080));
        self.outside.borrow_mut().waiting.extend(datagrams);
        self.run();
        std::mem::take(&mut self.inside.borrow_mut().sent)
    }

    /// Sends a packet of the interface, and returns the number of the peer that it goes to among the port's.
    fn send(&mut self, packet: Vec<u8>) -> Vec<u16> {
        self.inside.borrow_mut().waiting.push_back(packet);
        self.run();
        std::mem::take(&mut self.outside.borrow_mut().sent_to)
    }

    fn run(&mut self) {
        loop {
            self.now += 1;
            if self.overlay.round(Nanos(self.now)).unwrap() == Round::Idle {
                return;
            }
        }
    }

    fn counter(&self, group: Group, key: &str) -> u64 {
        counter(&self.overlay, "udp", group, key)
    }

    /// Returns the numbers of datagrams and bytes received from each peer.
    fn received(&self) -> Vec<[u64; 2]> {
        self.peers.iter().map(|peer| peer.received()).collect()
    }
}

fn is_v6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

impl Content {
    fn of(bytes: Vec<u8>) -> Content {
        Content { is_v6: is_v6(&bytes), bytes, left: None }
    }

    /// Puts a packet into a frame from `source` to this end, if the form has frames.
    fn with_station(self, form: Form, source: [u8; 6]) -> Content {
        if !form.is_frame {
            return self;
        }
        let kind: [u8; 2] = if is_v6(&self.bytes) { [0x86, 0xdd] } else { [8, 0] };
        let left = self.left.map(|(start, field)| (start + 14, field + 14));
        Content { bytes: [&OWN[..], &source[..], &kind[..], &self.bytes[..]].concat(), left, ..self }
    }
}

fn tcp(ip: Ip, flow: u16, len: usize) -> Vec<u8> {
    Sender::tcp(ip, flow, 1000, Vec::new()).send(len, 0).bytes()
}

/// Writes the sum of the pseudo-header into the checksum field of an IPv4 packet without options.
fn prime(mut packet: Vec<u8>, field: usize) -> Vec<u8> {
    let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap();
    let sum = pseudo_v4(address(12), address(16), packet[9], packet.len() - 20);
    packet[20 + field..][..2].copy_from_slice(&Field::primed(sum).value().to_be_bytes());
    packet
}

/// Returns IP packets of every kind, with what each of them is.
fn packets() -> Vec<(&'static str, Content)> {
    let (v4, v6) = (V4::new(1, 1, 2), V6::new(1, 1, 2));
    let ip4 = |change: fn(&mut V4)| {
        let mut ip = v4.clone();
        change(&mut ip);
        Ip::V4(ip)
    };
    let ip6 = |change: fn(&mut V6)| {
        let mut ip = v6.clone();
        change(&mut ip);
        Ip::V6(ip)
    };
    let [plain4, plain6] = [ip4(|_| {}), ip6(|_| {})];
    let with = |ip: &Ip, l4: L4| Packet { ip: ip.clone(), l4, data: vec![7; 64] }.bytes();
    let changed = |at: usize| {
        let mut bytes = tcp(plain4.clone(), 1, 100);
        bytes[at] ^= 1;
        bytes
    };
    let whole = tcp(plain4.clone(), 1, 100);
    let no_checksum = Udp { src_port: 5, dst_port: 7, checksum: false };
    let udp = |ip: &Ip| Sender::udp(ip.clone(), 2).send(300, 0).bytes();
    let list = [
        ("TCP over IPv4", whole.clone()),
        ("TCP over IPv6", tcp(plain6.clone(), 1, 100)),
        ("a lone acknowledgment", tcp(plain4.clone(), 1, 0)),
        ("UDP over IPv4", udp(&plain4)),
        ("UDP over IPv6", udp(&plain6)),
        ("UDP without a checksum", with(&plain4, L4::Udp(no_checksum))),
        ("ICMP", with(&plain4, L4::Icmp(8, 0, [0, 1, 0, 2]))),
        ("ICMPv6", with(&plain6, L4::Icmp(128, 0, [0, 1, 0, 2]))),
        ("another protocol", with(&plain4, L4::Raw(132))),
        ("a first fragment", with(&ip4(|ip| (ip.df, ip.fragment) = (false, Some((0, true)))), L4::Raw(17))),
        ("a last fragment", with(&ip4(|ip| (ip.df, ip.fragment) = (false, Some((64, false)))), L4::Raw(17))),
        ("a fragment over IPv6", with(&ip6(|ip| ip.fragment = Some((7, 64, true))), L4::Raw(17))),
        ("IPv4 options", tcp(ip4(|ip| ip.options = vec![148, 4, 0, 0]), 1, 100)),
        ("an extension header", tcp(ip6(|ip| ip.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])]), 1, 100)),
        ("IPv4 in IPv4", Packet { ip: plain4.clone(), l4: L4::Raw(4), data: whole.clone() }.bytes()),
        ("a wrong transport checksum", changed(60)),
        ("a wrong header checksum", changed(10)),
        ("a martian over IPv4", tcp(ip4(|ip| ip.src = [127, 0, 0, 1]), 1, 100)),
        ("a martian over IPv6", tcp(ip6(|ip| ip.src = [0xff; 16]), 1, 100)),
        ("a source of the other peer", tcp(Ip::V4(V4::new(3, 1, 2)), 1, 100)),
        ("a source of no peer", tcp(Ip::V4(V4::new(9, 1, 2)), 1, 100)),
        ("a source of no peer over IPv6", tcp(Ip::V6(V6::new(9, 1, 2)), 1, 100)),
        ("a missing byte", whole[..whole.len() - 1].to_vec()),
        ("a trailer", [&whole[..], &[0, 0, 0]].concat()),
        ("a part of a header", whole[..12].to_vec()),
        ("no IP", vec![0x50; 60]),
        ("a checksum that a kernel left", prime(whole.clone(), 16)),
        ("a train that a kernel left", prime(tcp(plain4.clone(), 1, 4000), 16)),
    ];
    let mut packets: Vec<_> = list.into_iter().map(|(what, bytes)| (what, Content::of(bytes))).collect();
    packets.push(("another version than announced", Content { is_v6: true, ..Content::of(whole.clone()) }));
    let datagram = prime(udp(&plain4), 6);
    let segment = prime(whole.clone(), 16);
    let echo = with(&plain4, L4::Icmp(8, 0, [0, 1, 0, 2]));
    for (what, bytes, left) in [
        ("TCP whose checksum is left to this end", segment.clone(), (20, 36)),
        ("UDP whose checksum is left to this end", datagram.clone(), (20, 26)),
        ("a checksum left that is not primed", whole, (20, 36)),
        ("a checksum left at another place", segment, (18, 34)),
        ("a checksum left of the other transport", datagram, (20, 36)),
        ("a checksum left of ICMP", echo, (20, 26)),
    ] {
        packets.push((what, Content { left: Some(left), ..Content::of(bytes) }));
    }
    packets
}

/// Returns frames that are not simply a packet from a station to this end.
fn odd_frames() -> Vec<(&'static str, Vec<u8>)> {
    let packet = tcp(Ip::V4(V4::new(1, 1, 2)), 1, 100);
    let short = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 2).send(6, 0).bytes();
    let frame = |dst, src, tags: &[(u16, u16)]| Ethernet { dst, src, tags: tags.to_vec() }.wrap(&packet);
    let plain = frame(OWN, STATIONS[0], &[]);
    let typed = |kind: [u8; 2]| [&plain[..12], &kind[..], &plain[14..]].concat();
    let mut padded = Ethernet { dst: OWN, src: STATIONS[0], tags: Vec::new() }.wrap(&short);
    padded.resize(60, 0);
    vec![
        ("a VLAN tag", frame(OWN, STATIONS[0], &[(0x8100, 5)])),
        ("two VLAN tags", frame(OWN, STATIONS[0], &[(0x88a8, 5), (0x8100, 6)])),
        ("padding", padded),
        ("a frame for another station", frame([2, 0, 0, 0, 0, 0x77], STATIONS[0], &[])),
        ("a frame for all", frame([0xff; 6], STATIONS[0], &[])),
        ("a station of no peer", frame(OWN, [2, 0, 0, 0, 0, 0x66], &[])),
        ("a station of no peer, for another", frame([2, 0, 0, 0, 0, 0x77], [2, 0, 0, 0, 0, 0x66], &[])),
        ("a group as source", frame(OWN, [3, 0, 0, 0, 0, 2], &[])),
        ("no source", frame(OWN, [0; 6], &[])),
        ("ARP", [&plain[..12], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[7; 20]].concat()),
        ("the type of the other version", typed([0x86, 0xdd])),
        ("an unknown type", typed([0x88, 0xb5])),
        ("a part of an Ethernet header", plain[..13].to_vec()),
        ("only an Ethernet header", plain[..14].to_vec()),
    ]
}

fn cases(form: Form) -> Vec<Case> {
    let lone = |what: &str, tos, content| Case { what: what.to_owned(), tos, contents: vec![content] };
    let mut cases = Vec::new();
    for station in STATIONS {
        cases.extend(packets().into_iter().map(|(what, packet)| lone(what, 0, packet.with_station(form, station))));
    }
    if form.is_frame {
        cases.extend(odd_frames().into_iter().map(|(what, frame)| lone(what, 0, Content::of(frame))));
    }
    for (inner, outer) in (0..4).flat_map(|inner| (0..4).map(move |outer| (inner, outer))) {
        let (v4, v6) = (V4 { tos: 0xb8 | inner, ..V4::new(1, 1, 2) }, V6 { class: 0xb8 | inner, ..V6::new(1, 1, 2) });
        for ip in [Ip::V4(v4), Ip::V6(v6)] {
            let packet = Content::of(tcp(ip, 3, 100)).with_station(form, STATIONS[0]);
            cases.push(lone(&format!("ECN {inner} in {outer}"), outer, packet));
        }
    }
    let stream = |what: &str, packets: Vec<Content>| {
        let contents = packets.into_iter().map(|packet| packet.with_station(form, STATIONS[0])).collect();
        Case { what: what.to_owned(), tos: 0, contents }
    };
    let traffic = mixed(&mut Rng::new(17), 6, 400).into_iter().map(|sent| Content::of(sent.bytes));
    cases.push(stream("traffic of several flows", traffic.collect()));
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 9, 1000, Vec::new());
    let left = |packet: Packet| Content { left: Some((20, 36)), ..Content::of(prime(packet.bytes(), 16)) };
    cases.push(stream("a flow whose checksums are left", sender.run(20_000, 1000, 0).into_iter().map(left).collect()));
    cases
}

/// Tests that the interface gets the same, and that every counter is the same, for datagrams of every kind.
#[test]
fn every_datagram_is_taken_like_one_that_is_parsed() {
    for form in FORMS {
        let mut short = Bench::new(form, Removal::Short);
        let mut parsed = Bench::new(form, Removal::Parsed);
        for from in [PEERS[0], PEERS[1], REMOVED, UNKNOWN] {
            for Case { what, tos, contents } in cases(form) {
                let what = format!("{form:?}: {what}, from {from}");
                assert_eq!(short.take(from, tos, &contents), parsed.take(from, tos, &contents), "{what}");
                let [here, there] = [&short, &parsed].map(|bench| counters(&bench.overlay));
                let different: Vec<_> = here.iter().filter(|(name, value)| there.get(*name) != Some(*value)).collect();
                assert!(different.is_empty(), "{what}: {different:?}");
                assert_eq!(short.received(), parsed.received(), "{what}");
            }
        }
        // What was compared: each kind of datagram has met what it is for.
        assert!(short.unparsed.get() > 0, "{form:?}: nothing has only had headers removed");
        assert_eq!(parsed.unparsed.get(), 0, "{form:?}: the other tunnel does not parse");
        assert!(short.counter(Group::Remcsum, "received") > 20, "{form:?}");
        assert!(short.counter(Group::Port, "inner_csum_unfinished") > 0, "{form:?}");
        let refused = ["peer_source", "unknown_peer", "removed_peer", "inner_malformed", "ecn"];
        let of_frames = ["not_for_us", "not_ip"];
        let of_frames = of_frames.iter().filter(|_| form.is_frame && !form.frames);
        for key in refused.iter().chain(of_frames) {
            assert!(short.counter(Group::Drops, key) > 0, "{form:?}: {key}");
        }
    }
}

/// Tests that packets that stay alone in GRO leave as they came, without having been parsed.
#[test]
fn packets_of_which_only_headers_are_removed_leave_unparsed() {
    for form in FORMS {
        let mut here = Bench::new(form, Removal::Short);
        let ips = [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))];
        let packets: Vec<Vec<u8>> =
            (0..10_u16).map(|flow| tcp(ips[usize::from(flow) % 2].clone(), flow, 100)).collect();
        let contents: Vec<Content> =
            packets.iter().map(|packet| Content::of(packet.clone()).with_station(form, STATIONS[0])).collect();
        let mut expected: Vec<Vec<u8>> = match form.frames {
            true => contents.iter().map(|content| content.bytes.clone()).collect(),
            false => packets,
        };
        let mut sent = here.take(PEERS[0], 0, &contents);
        // GRO keeps the order within a flow.
        sent.sort();
        expected.sort();
        assert_eq!(sent, expected, "{form:?}");
        assert_eq!(here.unparsed.get(), 10, "{form:?}");
        let bytes: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(here.received(), [[10, bytes as u64], [0, 0]], "{form:?}");
        for stage in [Stage::Decap, Stage::Gro, Stage::Ingress] {
            let counted = ["packets", "segments", "bytes", "trains"].map(|key| here.counter(Group::Stage(stage), key));
            assert_eq!(counted, [10, 10, bytes as u64, 0], "{form:?} {stage:?}");
        }
    }
}

/// Tests that segments whose checksums were left to this end are counted, joined, and still owe their checksum.
#[test]
fn segments_in_a_row_become_one_train() {
    for form in FORMS {
        for is_left in [false, true] {
            let mut here = Bench::new(form, Removal::Short);
            let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
            let packets: Vec<Vec<u8>> = sender.run(20_000, 1000, 0).iter().map(Packet::bytes).collect();
            let content = |packet: &Vec<u8>| match is_left {
                true => Content { left: Some((20, 36)), ..Content::of(prime(packet.clone(), 16)) },
                false => Content::of(packet.clone()),
            };
            let contents: Vec<Content> =
                packets.iter().map(|packet| content(packet).with_station(form, STATIONS[0])).collect();
            let sent = here.take(PEERS[0], 0, &contents);
            let head = if form.frames { 54 } else { 40 };
            let payload: Vec<u8> = packets.iter().flat_map(|packet| packet[40..].to_vec()).collect();
            assert_eq!(sent.len(), 1, "{form:?}");
            assert_eq!(sent[0][head..], payload, "{form:?}");
            assert_eq!(here.counter(Group::Remcsum, "received"), if is_left { 20 } else { 0 }, "{form:?}");
            assert_eq!(here.counter(Group::Port, "inner_csum_unfinished"), 0, "{form:?}");
        }
    }
}

/// Tests that a packet is dropped that arrives in another network than that of its peer.
#[test]
fn a_packet_in_the_network_of_another_peer_is_dropped() {
    for form in [VXLAN_OVER_IP, FRAMES_IN_VXLAN] {
        let networks = [VNI, VNI + 1];
        let of_peer = |peer: usize| match form.frames {
            true => Inside::Station(STATIONS[peer]),
            false => prefix([1, 3][peer]),
        };
        let mut here = Bench::with(form, Removal::Short, &[0, 1].map(|peer| (of_peer(peer), peer, networks[peer])));
        let mut taken = [0, 0];
        for (peer, vni) in [(0, VNI), (1, VNI + 1), (0, VNI + 1), (1, VNI), (0, VNI + 2), (1, VNI + 1), (0, VNI)] {
            let packet = tcp(Ip::V4(V4::new([1, 3][peer], 1, 2)), 1, 100);
            let content = Content::of(packet.clone()).with_station(form, STATIONS[peer]);
            let datagram = here.datagram(&content, vni);
            let sent = here.receive(PEERS[peer], vec![datagram]);
            let is_its_own = vni == networks[peer];
            taken[peer] += u64::from(is_its_own);
            let expected = if form.frames { content.bytes } else { packet };
            assert_eq!(sent, if is_its_own { vec![expected] } else { Vec::new() }, "{form:?}: {peer} in {vni}");
        }
        assert_eq!(here.received().iter().map(|[packets, _]| *packets).collect::<Vec<_>>(), taken);
        assert_eq!(here.counter(Group::Drops, "peer_network"), 3, "{form:?}");
        assert_eq!(here.counter(Group::Stage(Stage::Decap), "packets"), 4, "{form:?}");
    }
}

/// Tests that a peer with every prefix sends nothing from a source that no other host may have, unless in frames of the
/// interface.
#[test]
fn a_peer_with_every_prefix_has_no_martian_source() {
    let every = ["0.0.0.0", "::"].map(|any| (Inside::Prefix(any.parse().unwrap(), 0), 0, VNI));
    for (form, removal) in FORMS.into_iter().flat_map(|form| [(form, Removal::Short), (form, Removal::Parsed)]) {
        let peers = if form.frames { usual_peers(form) } else { every.to_vec() };
        let mut here = Bench::with(form, removal, &peers);
        let v4 = [[126, 0, 0, 1], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]];
        let v4 = v4.map(|src| Ip::V4(V4 { src, ..V4::new(1, 1, 2) }));
        let v6 = [2_u128, 1, u128::MAX].map(|src| Ip::V6(V6 { src: src.to_be_bytes(), ..V6::new(1, 1, 2) }));
        let contents = v4.into_iter().chain(v6).map(|ip| Content::of(tcp(ip, 1, 100)).with_station(form, STATIONS[0]));
        let taken: Vec<usize> = contents.map(|content| here.take(PEERS[0], 0, &[content]).len()).collect();
        assert_eq!(taken, if form.frames { [1; 7] } else { [1, 0, 0, 0, 1, 0, 0] }, "{form:?} {removal:?}");
        assert_eq!(here.counter(Group::Drops, "inner_source"), if form.frames { 0 } else { 5 }, "{form:?}");
    }
}

/// Tests that nothing is remembered of a table that was replaced: neither a destination, nor a source, nor a sender.
#[test]
fn a_new_table_is_in_force_for_the_next_packet_of_the_same_flow() {
    let mut here = Bench::new(GUE, Removal::Short);
    let coming = [Content::of(tcp(Ip::V4(V4::new(1, 1, 2)), 1, 100))];
    let going = tcp(Ip::V4(V4::new(1, 2, 1)), 1, 100);
    for _ in 0..2 {
        assert_eq!(here.take(PEERS[0], 0, &coming).len(), 1);
        assert_eq!(here.send(going.clone()), [0]);
    }
    assert!(here.take(PEERS[1], 0, &coming).is_empty());
    assert_eq!(here.counter(Group::Drops, "peer_source"), 1);

    // The addresses change hands.
    let swapped = [(prefix(3), 0, VNI), (prefix(1), 1, VNI)];
    here.tables.replace(table(GUE, Removal::Short, &swapped, &here.peers, REMOVED));
    assert!(here.take(PEERS[0], 0, &coming).is_empty());
    assert_eq!(here.counter(Group::Drops, "peer_source"), 2);
    assert_eq!(here.take(PEERS[1], 0, &coming).len(), 1);
    assert_eq!(here.send(going.clone()), [1]);

    // A peer that the table had is removed, and it comes back.
    assert!(here.take(PEERS[0], 0, &coming).is_empty());
    here.tables.replace(table(GUE, Removal::Short, &swapped[1..], &here.peers, PEERS[0]));
    assert!(here.take(PEERS[0], 0, &coming).is_empty());
    assert_eq!(here.counter(Group::Drops, "removed_peer"), 1);
    assert_eq!(here.send(going), [0], "the first of the remaining destinations");
    here.tables.replace(table(GUE, Removal::Short, &usual_peers(GUE), &here.peers, REMOVED));
    assert_eq!(here.take(PEERS[0], 0, &coming).len(), 1);
    assert_eq!(here.counter(Group::Drops, "removed_peer"), 1);
}

/// Tests that a new table is taken although the outside never has room for all that the interface sends.
#[test]
fn a_new_table_is_taken_while_the_outside_stays_backlogged() {
    let mut here = Bench::new(GUE, Removal::Short);
    let going = tcp(Ip::V4(V4::new(1, 2, 1)), 1, 100);
    let round = |here: &mut Bench| {
        let missing = 64 - here.inside.borrow().waiting.len();
        here.inside.borrow_mut().waiting.extend(vec![going.clone(); missing]);
        here.outside.borrow_mut().room = Some(40);
        here.now += 1;
        here.overlay.round(Nanos(here.now)).unwrap();
    };
    (0..4).for_each(|_| round(&mut here));
    let swapped = [(prefix(3), 0, VNI), (prefix(1), 1, VNI)];
    here.tables.replace(table(GUE, Removal::Short, &swapped, &here.peers, REMOVED));
    here.outside.borrow_mut().sent_to.clear();
    (0..4).for_each(|_| round(&mut here));
    assert_eq!(counter(&here.overlay, "sg0", Group::Port, "peer_tables"), 1);
    let sent = here.outside.borrow().sent_to.clone();
    assert!(sent.ends_with(&[1; 40]) && sent.starts_with(&[0; 20]), "{sent:?}");
    assert!(sent.is_sorted(), "those that were addressed before go first");
}
