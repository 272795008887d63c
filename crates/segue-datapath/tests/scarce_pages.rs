//! Tests of tunnels, with and without a peer table, whose pages are in use: by packets that GRO holds, or that wait for
//! a blocked port. Replies to probes and ICMP errors take none of these pages, and what is not sent is counted.

mod far_end;
mod memory;

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use far_end::{config, wrapped};
use memory::{Carries, Memory, Wire, counter, in_both_forms};
use segue::encap::{Identity, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::knobs::Knobs;
use segue_datapath::overlay::{self, Inside, Listener, ListenerConfig, Overlay, PeerConfig, Removed, Table, exchange};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::probe::{Kind, Message, Probe};
use segue_datapath::tunnel::{self, Tunnel};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::{Ids, Sender};

const KEY: Key = Key([1, 2]);
/// A hold time that does not end during a test.
const HOLD: Nanos = Nanos(1_000_000_000);

/// The kinds of tunnels.
#[derive(Clone, Copy, Debug)]
enum Form {
    Plain,
    PeerTable,
}

const FORMS: [Form; 2] = [Form::Plain, Form::PeerTable];

struct Bench {
    pipeline: Box<dyn Pipeline>,
    inside: Rc<RefCell<Wire>>,
    outside: Rc<RefCell<Wire>>,
    now: u64,
}

fn bench(form: Form, pages: usize) -> Bench {
    let counts = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_535, max_pieces: 1000, ..Limits::NONE };
    let trains = Limits { csum: true, tso4: true, tso6: true, uso: true, ..counts };
    let (inside_port, inside) = Memory::port(Carries::Ip, trains);
    let (port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    let (gro, name, budget) = (Some(gro::Config { hold: HOLD, ..gro::Config::default() }), "udp".to_owned(), 64);
    let pipeline: Box<dyn Pipeline> = match form {
        Form::Plain => {
            let parts = memory::parts("sg0", inside_port, config());
            let parts = tunnel::Parts { gro, probe: Some(Arc::new(Probe::new(1))), ..parts };
            let csum = OuterCsum::Verified;
            let outside = tunnel::Outside { name, port, csum, budget, pages, key: KEY, tunnels: None };
            Box::new(Tunnel::new(outside, vec![parts]))
        }
        Form::PeerTable => {
            let everything = Inside::Prefix(IpAddr::from([0, 0, 0, 0]), 0);
            let counters = Arc::default();
            let peer = PeerConfig { inside: everything, listener: 0, encap: config(), mac: None, counters };
            let listeners = [ListenerConfig { encap: config() }];
            let table = Table::new(1, &listeners, &[peer], &Removed::default(), [2; 6], KEY).unwrap();
            let (_, tables) = exchange();
            Box::new(Overlay::new(overlay::Parts {
                inside_name: "sg0".to_owned(),
                inside: inside_port,
                frames: false,
                listeners: vec![Listener { name, port, csum: OuterCsum::Verified }],
                table: Box::new(table),
                tables,
                mac: [2; 6],
                gro,
                remcsum: false,
                budget,
                pages,
                key: KEY,
            }))
        }
    };
    Bench { pipeline, inside, outside, now: 0 }
}

impl Bench {
    fn round(&mut self) {
        self.now += 1;
        self.pipeline.round(Nanos(self.now)).unwrap();
    }

    /// Lets datagrams arrive, and runs one round. Returns the packets that the interface gets.
    fn take(&mut self, datagrams: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.outside.borrow_mut().waiting.extend(datagrams);
        self.round();
        std::mem::take(&mut self.inside.borrow_mut().sent)
    }

    /// Lets the interface send a packet, and runs one round. Returns the number of datagrams that leave.
    fn send(&mut self, packet: Vec<u8>) -> usize {
        self.inside.borrow_mut().waiting.push_back(packet);
        self.round();
        std::mem::take(&mut self.outside.borrow_mut().sent).len()
    }

    fn count(&self, port: &str, group: Group, key: &str) -> u64 {
        counter(&*self.pipeline, port, group, key)
    }
}

/// Returns one packet of each of these flows.
fn lone(flows: Range<u16>) -> Vec<Vec<u8>> {
    flows.map(|flow| Sender::udp(Ip::V4(V4::new(1, 1, 2)), flow).send(100, 0).bytes()).collect()
}

#[test]
fn packets_that_gro_holds_leave_once_their_pages_are_missing_for_either_port() {
    in_both_forms(|| {
        for form in FORMS {
            let mut here = bench(form, 4);
            assert_eq!(here.take(wrapped(lone(0..3))).len(), 0, "{form:?}: held");
            assert_eq!(here.take(wrapped(lone(3..6))).len(), 4, "{form:?}: the outside has no page for the rest");
            assert_eq!(here.take(wrapped(lone(6..8))).len(), 0, "{form:?}: held, in all pages");
            let mut left = here.send(lone(8..9).remove(0));
            left += here.send(lone(9..10).remove(0));
            assert_eq!(left, 2, "{form:?}: the inside has no page for the first at first");
            assert_eq!(here.inside.borrow().sent.len(), 4, "{form:?}");
        }
    });
}

#[test]
fn gro_turned_off_and_on_loses_and_reorders_nothing_that_a_tunnel_holds() {
    in_both_forms(|| {
        for form in FORMS {
            let mut here = bench(form, 256);
            let knobs = Knobs::of(|dial| here.pipeline.tune(dial));
            let (mut seen, mut came, mut left) = (0, Vec::new(), Vec::new());
            let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
            sender.ids = Ids::Counting;
            for (knob, value, count, expected) in [
                ("net.gro.dev.sg0.enable_gro", 1, 5, 0),
                ("net.gro.dev.sg0.enable_gro", 0, 3, 4),
                ("net.gro.dev.sg0.enable_gro", 1, 4, 0),
                ("net.gro.dev.sg0.hold_us", 0, 2, 2),
            ] {
                knobs.set(knob, value).unwrap();
                knobs.follow(&mut seen, |dial| here.pipeline.tune(dial));
                let packets: Vec<Vec<u8>> = (0..count).map(|_| sender.send(1000, 0).bytes()).collect();
                came.extend(packets.iter().flat_map(|packet| packet[40..].to_vec()));
                let sent = here.take(wrapped(packets));
                assert_eq!(sent.len(), expected, "{form:?}: {knob} {value}");
                left.extend(sent.iter().flat_map(|packet| packet[40..].to_vec()));
            }
            assert!(came == left, "{form:?}");
        }
    });
}

fn request(nonce: u64) -> Vec<u8> {
    Message { kind: Kind::EchoRequest, identity: Identity::Protocol(4), nonce }.bytes().to_vec()
}

#[test]
fn replies_to_probes_take_no_page_of_those_for_reception() {
    let mut here = bench(Form::Plain, 16);
    here.outside.borrow_mut().waiting.extend((1..=16).map(request));
    here.round();
    assert_eq!(here.outside.borrow().sent.len(), 16, "all pages are in use while they are written");

    // Those for a socket that takes nothing wait.
    here.outside.borrow_mut().room = Some(0);
    for nonce in 1..=40 {
        here.take(vec![request(nonce)]);
    }
    assert_eq!(here.count("udp", Group::Drops, "probe_limit"), 0);
    here.take(wrapped(lone(0..16)));
    assert_eq!(here.take(wrapped(lone(16..17))).len(), 16, "reception goes on");
    (here.outside.borrow_mut().room, here.outside.borrow_mut().sent) = (None, Vec::new());
    here.round();
    assert_eq!(here.outside.borrow().sent.len(), 40);
}

#[test]
fn more_replies_than_there_is_memory_for_are_counted() {
    let mut here = bench(Form::Plain, 1024);
    let knobs = Knobs::of(|dial| here.pipeline.tune(dial));
    knobs.set("net.napi.dev.udp.weight", 1024).unwrap();
    knobs.follow(&mut 0, |dial| here.pipeline.tune(dial));
    here.outside.borrow_mut().waiting.extend((1..=300).map(request));
    here.round();
    assert_eq!((here.outside.borrow().sent.len(), here.count("udp", Group::Drops, "probe_limit")), (256, 44));
}

#[test]
fn errors_to_an_interface_that_takes_none_are_counted_and_take_no_page_of_those_for_reception() {
    in_both_forms(|| {
        for form in FORMS {
            let mut here = bench(form, 8);
            here.outside.borrow_mut().path_mtu = Some(1000);
            here.inside.borrow_mut().room = Some(0);
            let long = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1).send(1200, 0).bytes();
            (0..20).for_each(|_| assert_eq!(here.send(long.clone()), 0, "{form:?}"));
            assert_eq!(here.count("sg0", Group::Port, "icmp_errors_limited"), 19, "{form:?}");
            assert_eq!(here.send(lone(0..1).remove(0)), 1, "{form:?}: what fits leaves");
            here.inside.borrow_mut().room = None;
            here.round();
            let sent = std::mem::take(&mut here.inside.borrow_mut().sent);
            assert!(sent.len() == 1 && sent[0][20..22] == [3, 4], "{form:?}: ICMP: fragmentation needed");
        }
    });
}
