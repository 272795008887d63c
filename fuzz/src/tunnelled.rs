//! Whole tunnels between ports in memory.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use segue::encap::{
    self, Carrier, Config, Decapsulator, Df, Encapsulator, Fdb, GreOptions, Mode, OuterCsum, SourcePorts, Tos, Ttl,
};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Frag, Packet, Start, Tunnels};
use segue::time::Nanos;
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::probe::{Kind, MESSAGE_LEN, Message as ProbeMessage, Probe};
use segue_datapath::tunnel::{self, Outside, Tunnel};

use crate::input::Input;
use crate::memory::{Carries, Gives, Memory, Wire};
use crate::pipelines::{FREE, PACKETS, SECOND, attend, next};
use crate::resources::bounded;

/// Nonce of the request that a probe has sent.
const NONCE: u64 = 7;

/// Bits of the first byte of a tunnel's input: a tunnel of frames has two remotes and learns stations, and the path MTU
/// is [`NARROW_MTU`].
const HAS_REMOTES: u8 = 1 << 3;
const IS_NARROW: u8 = 1 << 4;
/// Ports that block, and packets that wait in fair queues.
const IS_BUSY: u8 = 1 << 5;
/// Two more bytes with [`Settings`] follow.
const HAS_SETTINGS: u8 = 1 << 6;
const NARROW_MTU: usize = 1400;
/// Number of times that a packet of a crowd arrives: more bytes of the longest one than go past the queues.
const CROWD: usize = 16;
/// Payload of the segments of TCP trains that the interface delivers, bytes.
const SEGMENT: u16 = 100;

/// Settings other than the default ones, each a bit.
#[derive(Clone, Copy, Default)]
struct Settings {
    config: u8,
    ports: u8,
}

/// Bits of the configuration: a fixed DSCP, the inner TTL, DF never set and that of the inner packet, a fixed source
/// port, GRE sequence numbers, and no outer checksum.
const FIXED_TOS: u8 = 1;
const INHERITS_TTL: u8 = 1 << 1;
const UNSET_DF: u8 = 1 << 2;
const INHERITS_DF: u8 = 1 << 3;
const FIXED_PORT: u8 = 1 << 4;
const IS_NUMBERED: u8 = 1 << 5;
const NO_CSUM: u8 = 1 << 6;
/// Bits of the ports: another tunnel on the port outside, trains and parsed packets from the interface, no GRO, joined
/// packets that the port outside may deliver unmarked, an interface that soon takes no trains, and outer checksums of
/// which nothing is known.
const HAS_OTHER: u8 = 1;
const HAS_TRAINS: u8 = 1 << 1;
const IS_PARSED: u8 = 1 << 2;
const NO_GRO: u8 = 1 << 3;
const IS_UNFINISHED: u8 = 1 << 4;
const NARROWS: u8 = 1 << 5;
const UNKNOWN_CSUM: u8 = 1 << 6;

/// Tunnels on one port outside, and the other ends of all ports.
struct Tunnelled {
    tunnel: Tunnel,
    insides: Vec<Rc<RefCell<Wire>>>,
    outside: Rc<RefCell<Wire>>,
    probes: Vec<Arc<Probe>>,
    /// Remotes of the tunnels: only the first tunnel's, or one of each.
    remotes: Vec<IpAddr>,
}

/// Returns the kind of a tunnel by the number `kind`, and that of another one on the same port.
fn modes(kind: u8, settings: Settings) -> [(Mode, Carrier); 2] {
    let is_numbered = settings.config & IS_NUMBERED != 0;
    let gre = |key: Option<u32>, csum| GreOptions {
        ikey: key,
        okey: key,
        icsum: csum,
        ocsum: csum,
        iseq: is_numbered,
        oseq: is_numbered,
    };
    let gue = Carrier::Gue { remcsum: settings.config & NO_CSUM == 0 };
    let vxlan = |vni, remcsum| Carrier::Vxlan { vni, remcsum, takes_remcsum: true };
    let kinds = [
        [(Mode::Ip, gue), (Mode::Gre(gre(Some(9), false)), gue)],
        [(Mode::Gre(gre(None, false)), gue), (Mode::Ipip, gue)],
        [(Mode::Gre(gre(Some(42), true)), Carrier::Bare), (Mode::Gre(gre(Some(43), true)), Carrier::Bare)],
        [(Mode::Ip, Carrier::Bare); 2],
        [(Mode::GreTap(gre(None, false)), Carrier::Bare), (Mode::GreTap(gre(Some(1), false)), Carrier::Bare)],
        [(Mode::Ethernet, vxlan(5, false)), (Mode::Ethernet, vxlan(6, settings.config & NO_CSUM == 0))],
        [(Mode::Ethernet, Carrier::Geneve { vni: 5 }), (Mode::Ethernet, Carrier::Geneve { vni: 6 })],
        [(Mode::Ethernet, Carrier::Fou); 2],
    ];
    kinds[usize::from(kind) % kinds.len()]
}

fn tunnels(how: u8, settings: Settings) -> Tunnelled {
    let Settings { config: set, ports } = settings;
    let is_v4 = how & 0x80 == 0;
    let address = |last: u8| -> IpAddr {
        if is_v4 {
            [198, 18, 0, last].into()
        } else {
            Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()]).into()
        }
    };
    let modes = modes(how, settings);
    let is_frame = matches!(modes[0].0, Mode::Ethernet | Mode::GreTap(_));
    let has_remotes = is_frame && how & HAS_REMOTES != 0;
    let trains =
        Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 1000, max_udp_segs: 64, ..Limits::NONE };
    let carries = if is_frame { Carries::Ethernet } else { Carries::Ip };
    let (mut made, mut insides, mut probes, mut remotes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, (mode, carrier)) in modes.into_iter().take(1 + usize::from(ports & HAS_OTHER)).enumerate() {
        // Where nothing in a datagram tells the tunnels apart, the sender does.
        let remote = if number == 1 && modes[0] == modes[1] { address(4) } else { address(2) };
        let defaults = Config { port: 6080, ..Config::new(mode, carrier, address(1), remote) };
        let config = Config {
            tos: if set & FIXED_TOS == 0 { Tos::Inherit } else { Tos::Fixed(0xb8) },
            ttl: if set & INHERITS_TTL == 0 { defaults.ttl } else { Ttl::Inherit },
            df: match set & (UNSET_DF | INHERITS_DF) {
                0 => defaults.df,
                UNSET_DF => Df::Unset,
                _ => Df::Inherit,
            },
            slots: if set & FIXED_PORT == 0 { defaults.slots } else { SourcePorts::Fixed(6080) },
            csum: set & NO_CSUM == 0,
            unfinished: (ports & IS_UNFINISHED != 0).then_some(1500),
            ..defaults
        };
        let (port, inside) = Memory::port(carries, Limits { max_bytes: 65_535, max_pieces: 1000, ..trains });
        inside.borrow_mut().train = (ports & HAS_TRAINS != 0).then_some(SEGMENT);
        inside.borrow_mut().gives = if ports & IS_PARSED == 0 { Gives::Frames } else { Gives::Packets };
        inside.borrow_mut().narrow = ports & NARROWS != 0;
        let has_probe = matches!(carrier, Carrier::Gue { .. });
        let probe = has_probe.then(|| Arc::new(Probe::new(1)));
        probe.iter().for_each(|probe| probe.note_sent(Kind::EchoRequest, NONCE));
        probes.extend(probe.clone());
        insides.push(inside);
        remotes.push(remote);
        made.push(tunnel::Parts {
            inside_name: format!("sg{number}"),
            inside: port,
            encap: Encapsulator::new(config).expect("a tunnel"),
            decap: Decapsulator::new(config).expect("a tunnel"),
            remotes: if has_remotes && number == 0 { vec![remote, address(3)] } else { vec![remote] },
            fdb: has_remotes.then(|| Fdb::new(Key([3, 4]), 8, SECOND, &[([2, 0, 0, 0, 0, 9], 1)])),
            flood: match (has_remotes, number) {
                (true, 0) => vec![0, 1],
                _ => Vec::new(),
            },
            gro: (ports & NO_GRO == 0).then(gro::Config::default),
            probe,
        });
    }
    let outer = Limits { outer_csum: set & NO_CSUM == 0, ..Limits::NONE };
    let (outside_port, outside) = Memory::port(Carries::Datagrams, outer);
    outside.borrow_mut().peer = Some((remotes[0], 6080).into());
    outside.borrow_mut().path_mtu = (how & IS_NARROW != 0).then_some(NARROW_MTU);
    let outer = Outside {
        name: "udp".to_owned(),
        port: outside_port,
        csum: if ports & UNKNOWN_CSUM == 0 { OuterCsum::Verified } else { OuterCsum::Unknown },
        budget: 64,
        pages: 256,
        key: Key([1, 2]),
        tunnels: None,
    };
    let tunnel = Tunnel::new(outer, made);
    assert!(format!("{tunnel:?}").contains(&insides.len().to_string()));
    Tunnelled { tunnel, insides, outside, probes, remotes }
}

/// Marks congestion in a packet, like a queue with too long a delay: two bits and the header checksum change, or
/// nothing.
fn mark(bytes: &[u8]) {
    let mut packet = Box::<Packet<Vec<u8>>>::default();
    packet.load(Frag::all(bytes.to_vec()), Start::Ip, &Tunnels::NONE);
    let came = packet.head.bytes().to_vec();
    let is_marked = encap::mark_congestion(&mut packet);
    let changed = came.iter().zip(packet.head.bytes()).filter(|(old, new)| old != new).count();
    assert!(changed <= if is_marked { 3 } else { 0 }, "{came:02x?}");
}

/// Passes arbitrary datagrams to a whole tunnel, or to two that share a port, and arbitrary packets to the inside: it
/// ends, and sends no more bytes inside than it received outside. Every packet that has left is counted, and every one
/// that has not has a reason.
///
/// The first byte chooses the kind of tunnel (bits 0 to 2), whether it has two remotes (bit 3), whether the path is
/// narrow (bit 4), whether ports block and packets queue (bit 5), whether two bytes with settings follow (bit 6), and
/// the outer family (bit 7). Before each packet a byte says whether it comes from inside (bit 0), whether it belongs to
/// the other tunnel or, without one, comes from an unknown remote (bit 4, with settings), and of a busy tunnel also
/// whether it comes many times (bit 1), whether the port outside (bit 2) or inside (bit 3) takes nothing meanwhile, and
/// how much time passes (bits 5 and 6).
pub fn tunnelled(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let has_settings = how & HAS_SETTINGS != 0;
    let settings = if has_settings { Settings { config: input.u8(), ports: input.u8() } } else { Settings::default() };
    bounded(data.len(), FREE, || {
        let Tunnelled { mut tunnel, insides, outside, probes, remotes } = tunnels(how, settings);
        let (is_narrow, most) = (how & IS_NARROW != 0, if how & HAS_REMOTES != 0 { 4 } else { 2 });
        // A train is sent in segments.
        let segments = |len: usize| if settings.ports & HAS_TRAINS == 0 { 1 } else { 1 + len / usize::from(SEGMENT) };
        let (mut before, mut came, mut out) = (Vec::new(), 0, 0);
        let (is_busy, mut count, mut sent, mut now) = (how & IS_BUSY != 0, 0, 0, 0);
        let delivered = || -> usize {
            let drained = |inside: &Rc<RefCell<Wire>>| -> usize {
                inside.borrow_mut().sent.drain(..).map(|packet| packet.len()).sum()
            };
            insides.iter().map(drained).sum()
        };
        if is_busy {
            let knobs = Knobs::of(|dial| tunnel.tune(dial));
            for name in ["enable_fq", "target_us", "interval_us"] {
                assert!(knobs.set(&format!("net.fq.dev.udp.{name}"), 1).is_some(), "{name}");
            }
            knobs.follow(&mut 0, |dial| tunnel.tune(dial));
        }
        for number in 0..PACKETS {
            if input.is_empty() {
                break;
            }
            let each = input.u8();
            let from_inside = each & 1 != 0;
            let is_other = has_settings && each & 16 != 0;
            let bytes = next(&mut input, &before);
            let copies = if is_busy && each & 2 != 0 { CROWD } else { 1 };
            count += copies * if from_inside { segments(bytes.len()) } else { 1 };
            if is_busy {
                outside.borrow_mut().room = (each & 4 != 0).then_some(0);
                insides.iter().for_each(|inside| inside.borrow_mut().room = (each & 8 != 0).then_some(0));
            }
            let inside = if is_other { insides.last() } else { insides.first() }.expect("one tunnel");
            let wire = if from_inside { inside } else { &outside };
            if from_inside {
                mark(&bytes);
            }
            if is_other {
                let stranger = [198, 18, 0, 77].into();
                let peer = if insides.len() > 1 { remotes[1] } else { stranger };
                outside.borrow_mut().peer = Some((peer, 6080).into());
            }
            // An error about a packet that is too long has its link header too.
            came += if from_inside && !is_narrow { 0 } else { bytes.len() * copies };
            wire.borrow_mut().waiting.extend(std::iter::repeat_n(bytes.clone(), copies));
            before = bytes;
            now += if is_busy { [0, 1000, SECOND / 1000, SECOND][usize::from(each >> 5 & 3)] } else { 1000 };
            let now = Nanos(if is_busy { now } else { number as u64 * 1000 });
            tunnel.round(now).expect("ports without errors");
            out += delivered();
            let left: Vec<Vec<u8>> = outside.borrow_mut().sent.drain(..).collect();
            outside.borrow_mut().peer = Some((remotes[0], 6080).into());
            sent += left.len();
            if is_busy {
                assert!(sent <= most * count, "{sent} of {count}");
                continue;
            }
            assert!(left.len() <= most * segments(before.len()), "one comes and more leave");
            // What comes from outside is answered by nothing but answers to probes, which are no longer.
            let is_answer = |sent: &Vec<u8>| ProbeMessage::parse(sent).is_some_and(|sent| sent.kind == Kind::EchoReply);
            if !from_inside {
                assert!(left.iter().all(is_answer) && left.len() * MESSAGE_LEN <= before.len(), "{left:?}");
            }
        }
        insides.iter().chain([&outside]).for_each(|wire| wire.borrow_mut().room = None);
        for number in 0..if is_busy { PACKETS } else { 3 } {
            tunnel.round(Nanos((PACKETS + number) as u64 * SECOND)).expect("ports without errors");
        }
        out += delivered();
        // An ICMP error about a packet that is too long goes back inside.
        assert!(out <= came + 1280 * count, "{out} bytes of {came}");
        attend(&mut tunnel, 3 * PACKETS as u64 * SECOND);
        for probe in probes {
            probe.expire(0);
            let measured = probe.measured();
            assert!(measured.requests == 1 && measured.replies + measured.lost <= 1, "{measured:?}");
            assert_eq!(measured.replies == 0, measured.round_trip.is_none(), "{measured:?}");
        }
    });
}
