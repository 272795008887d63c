//! Whole tunnels between ports in memory.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use segue::encap::{self, Carrier, Config, Decapsulator, Encapsulator, Fdb, GreOptions, Mode, OuterCsum};
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
use crate::memory::{Carries, Memory, Wire};
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
const NARROW_MTU: usize = 1400;
/// Number of times that a packet of a crowd arrives: more bytes of the longest one than go past the queues.
const CROWD: usize = 16;

fn tunnel(how: u8, is_v4: bool) -> (Tunnel, Rc<RefCell<Wire>>, Rc<RefCell<Wire>>) {
    let gre =
        |key: Option<u32>, csum| GreOptions { ikey: key, okey: key, icsum: csum, ocsum: csum, ..GreOptions::default() };
    let kinds = [
        (Mode::Ip, Carrier::Gue { remcsum: true }),
        (Mode::Gre(gre(None, false)), Carrier::Gue { remcsum: true }),
        (Mode::Gre(gre(Some(42), true)), Carrier::Bare),
        (Mode::Ip, Carrier::Bare),
        (Mode::GreTap(gre(None, false)), Carrier::Bare),
        (Mode::Ethernet, Carrier::Vxlan { vni: 5, remcsum: false, takes_remcsum: true }),
        (Mode::Ethernet, Carrier::Geneve { vni: 5 }),
        (Mode::Ethernet, Carrier::Fou),
    ];
    let (mode, carrier) = kinds[usize::from(how) % kinds.len()];
    let is_frame = matches!(mode, Mode::Ethernet | Mode::GreTap(_));
    let has_remotes = is_frame && how & HAS_REMOTES != 0;
    let address = |last: u8| -> IpAddr {
        if is_v4 {
            [198, 18, 0, last].into()
        } else {
            Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()]).into()
        }
    };
    let config = Config { port: 6080, ..Config::new(mode, carrier, address(1), address(2)) };
    let trains =
        Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 1000, max_udp_segs: 64, ..Limits::NONE };
    let carries = if is_frame { Carries::Ethernet } else { Carries::Ip };
    let (inside_port, inside) = Memory::port(carries, Limits { max_bytes: 65_535, max_pieces: 1000, ..trains });
    let outer = Limits { outer_csum: true, ..Limits::NONE };
    let (outside_port, outside) = Memory::port(Carries::Datagrams, outer);
    outside.borrow_mut().peer = Some((address(2), 6080).into());
    outside.borrow_mut().path_mtu = (how & IS_NARROW != 0).then_some(NARROW_MTU);
    let parts = tunnel::Parts {
        inside_name: "sg0".to_owned(),
        inside: inside_port,
        encap: Encapsulator::new(config).expect("a tunnel"),
        decap: Decapsulator::new(config).expect("a tunnel"),
        remotes: if has_remotes { vec![address(2), address(3)] } else { vec![config.remote] },
        fdb: has_remotes.then(|| Fdb::new(Key([3, 4]), 8, SECOND, &[([2, 0, 0, 0, 0, 9], 1)])),
        flood: if has_remotes { vec![0, 1] } else { Vec::new() },
        gro: Some(gro::Config::default()),
        probe: matches!(carrier, Carrier::Gue { .. }).then(|| {
            let probe = Probe::new(1);
            probe.note_sent(Kind::EchoRequest, NONCE);
            Arc::new(probe)
        }),
    };
    let end = Outside {
        name: "udp".to_owned(),
        port: outside_port,
        csum: OuterCsum::Verified,
        budget: 64,
        pages: 256,
        key: segue::hash::Key([1, 2]),
        tunnels: None,
    };
    (Tunnel::new(end, vec![parts]), inside, outside)
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

/// Passes arbitrary datagrams to a whole tunnel, and arbitrary packets to its inside: it ends, and sends no more bytes
/// inside than it received outside. Every packet that has left is counted, and every one that has not has a reason.
///
/// The first byte chooses the kind of tunnel (bits 0 to 2), whether it has two remotes (bit 3), whether the path is
/// narrow (bit 4), whether ports block and packets queue (bit 5), and the outer family (bit 7). Before each packet a
/// byte says whether it comes from inside (bit 0), and of a busy tunnel also whether it comes many times (bit 1),
/// whether the port outside (bit 2) or inside (bit 3) takes nothing meanwhile, and how much time passes (bits 5 and 6).
pub fn tunnelled(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    bounded(data.len(), FREE, || {
        let (mut tunnel, inside, outside) = tunnel(how, how & 0x80 == 0);
        let (is_narrow, most) = (how & IS_NARROW != 0, if how & HAS_REMOTES != 0 { 4 } else { 2 });
        let (mut before, mut came, mut out) = (Vec::new(), 0, 0);
        let (is_busy, mut count, mut sent, mut now) = (how & IS_BUSY != 0, 0, 0, 0);
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
            let bytes = next(&mut input, &before);
            let copies = if is_busy && each & 2 != 0 { CROWD } else { 1 };
            count += copies;
            if is_busy {
                outside.borrow_mut().room = (each & 4 != 0).then_some(0);
                inside.borrow_mut().room = (each & 8 != 0).then_some(0);
            }
            let wire = if from_inside { &inside } else { &outside };
            if from_inside {
                mark(&bytes);
            }
            // An error about a packet that is too long has its link header too.
            came += if from_inside && !is_narrow { 0 } else { bytes.len() * copies };
            wire.borrow_mut().waiting.extend(std::iter::repeat_n(bytes.clone(), copies));
            before = bytes;
            now += if is_busy { [0, 1000, SECOND / 1000, SECOND][usize::from(each >> 5 & 3)] } else { 1000 };
            let now = Nanos(if is_busy { now } else { number as u64 * 1000 });
            tunnel.round(now).expect("ports without errors");
            out += inside.borrow_mut().sent.drain(..).map(|packet| packet.len()).sum::<usize>();
            let left: Vec<Vec<u8>> = outside.borrow_mut().sent.drain(..).collect();
            sent += left.len();
            if is_busy {
                assert!(sent <= most * count, "{sent} of {count}");
                continue;
            }
            assert!(left.len() <= most, "one comes and more leave");
            // What comes from outside is answered by nothing but answers to probes, which are no longer.
            let is_answer = |sent: &Vec<u8>| ProbeMessage::parse(sent).is_some_and(|sent| sent.kind == Kind::EchoReply);
            if !from_inside {
                assert!(left.iter().all(is_answer) && left.len() * MESSAGE_LEN <= before.len(), "{left:?}");
            }
        }
        (inside.borrow_mut().room, outside.borrow_mut().room) = (None, None);
        for number in 0..if is_busy { PACKETS } else { 3 } {
            tunnel.round(Nanos((PACKETS + number) as u64 * SECOND)).expect("ports without errors");
        }
        out += inside.borrow_mut().sent.drain(..).map(|packet| packet.len()).sum::<usize>();
        // An ICMP error about a packet that is too long goes back inside.
        assert!(out <= came + 1280 * count, "{out} bytes of {came}");
        attend(&mut tunnel, 3 * PACKETS as u64 * SECOND);
    });
}
