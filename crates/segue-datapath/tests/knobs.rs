//! Tests of settings that change while packets are forwarded: their effect on packets and counters, and that no packet
//! is lost.

mod memory;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, counter, in_both_forms};
use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::time::Nanos;
use segue_datapath::board::{Group, Stage};
use segue_datapath::gateway::{Gateway, Parts, PortConfig};
use segue_datapath::knobs::{Knobs, Values};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::{self, Tunnel};
use segue_port::PagePool;
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::flow::{Ids, Sender};

fn trains() -> Limits {
    let count = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..Limits::NONE };
    Limits { csum: true, tso4: true, tso6: true, uso: true, ..count }
}

/// A pipeline with its knobs, its ports, and the frames that its first port receives.
struct Bench {
    pipeline: Box<dyn Pipeline>,
    knobs: Knobs,
    seen: u64,
    wires: [Rc<RefCell<Wire>>; 2],
    sender: Sender,
    now: u64,
    /// Length of the headers before a frame's payload, bytes.
    head: usize,
}

impl Bench {
    fn gateway(limits: Limits, hold: u64) -> Bench {
        let [(first, a), (second, b)] = [trains(), limits].map(|limits| Memory::port(Carries::Ethernet, limits));
        let gro = Some(gro::Config { hold: Nanos(hold), ..gro::Config::default() });
        let side = |name: &str, port| PortConfig { name: name.to_owned(), port, gro, fragments: None };
        let ports = [side("in", first), side("out", second)];
        let pipeline = Box::new(Gateway::new(Parts { ports, budget: 64, pages: PagePool::new(256) }));
        Bench::of(pipeline, [a, b], 54)
    }

    fn tunnel(remcsum: bool) -> Bench {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let carrier = Carrier::Gue { remcsum };
        let config = Config::new(Mode::Ipip, carrier, address("198.18.0.1"), address("198.18.0.2"));
        let (inside, a) = Memory::port(Carries::Ip, trains());
        let (outside, b) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        let outside = tunnel::Outside {
            name: "udp".to_owned(),
            port: outside,
            csum: OuterCsum::Verified,
            budget: 64,
            pages: 256,
            key: segue::hash::Key([1, 2]),
            tunnels: None,
        };
        let parts = tunnel::Parts {
            inside_name: "sg0".to_owned(),
            inside,
            encap: Encapsulator::new(config).unwrap(),
            decap: Decapsulator::new(config).unwrap(),
            remotes: vec![config.remote],
            fdb: None,
            flood: vec![0],
            gro: Some(gro::Config::default()),
            probe: None,
        };
        let pipeline = Box::new(Tunnel::new(outside, vec![parts]));
        Bench::of(pipeline, [a, b], 40)
    }

    fn of(mut pipeline: Box<dyn Pipeline>, wires: [Rc<RefCell<Wire>>; 2], head: usize) -> Bench {
        let knobs = Knobs::of(|dial| pipeline.tune(dial));
        let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
        sender.ids = Ids::Counting;
        Bench { pipeline, knobs, seen: 0, wires, sender, now: 0, head }
    }

    fn set(&self, name: &str, value: u64) {
        assert!(self.knobs.set(name, value).is_some(), "{name} {value}");
    }

    /// Runs one round as the worker does, which applies the knobs first.
    fn round(&mut self) {
        self.knobs.follow(&mut self.seen, |dial| self.pipeline.tune(dial));
        self.pipeline.round(Nanos(self.now)).unwrap();
        self.now += 1;
    }

    fn frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let ethernet = Ethernet { dst: [2; 6], src: [4; 6], tags: Vec::new() };
        let packets = (0..count).map(|_| self.sender.send(1000, 0).bytes());
        packets.map(|packet| if self.head == 54 { ethernet.wrap(&packet) } else { packet }).collect()
    }

    /// Runs one round with `count` frames. Returns the units that were sent.
    fn pass(&mut self, count: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let frames = self.frames(count);
        self.wires[0].borrow_mut().waiting.extend(frames.iter().cloned());
        self.round();
        let sent = std::mem::take(&mut self.wires[1].borrow_mut().sent);
        (frames, sent)
    }

    fn count(&self, port: &str, group: Group, key: &str) -> u64 {
        counter(&*self.pipeline, port, group, key)
    }

    fn stage(&self, port: &str, stage: Stage) -> [u64; 3] {
        ["packets", "trains", "segments"].map(|key| self.count(port, Group::Stage(stage), key))
    }
}

#[test]
fn with_gso_off_a_train_is_cut_on_entry_and_leaves_as_its_packets_came() {
    in_both_forms(|| {
        for (knob, value) in [("net.inet.tcp.gso", 0), ("net.gso.dev.out.enable_gso", 0)] {
            for limits in [trains(), Limits::NONE] {
                let mut here = Bench::gateway(limits, 0);
                here.set(knob, value);
                let (frames, sent) = here.pass(20);
                assert!(without_checksums(sent) == without_checksums(frames), "{knob}");
                assert_eq!(here.stage("in", Stage::Ingress), [1, 1, 20]);
                assert_eq!(here.stage("out", Stage::Gso), [20, 0, 20]);
                let gso = |key| here.count("out", Group::Gso, key);
                assert_eq!(["trains_cut", "trains_whole", "cut_on_entry", "made_on_entry"].map(gso), [0, 0, 1, 20]);
            }
        }
    });
}

#[test]
fn with_gso_on_the_train_survives_up_to_the_port_which_cuts_it_or_takes_it() {
    in_both_forms(|| {
        let mut here = Bench::gateway(trains(), 0);
        assert_eq!(here.pass(20).1.len(), 1);
        assert_eq!(here.stage("out", Stage::Gso), [1, 1, 20]);
        let gso =
            |here: &Bench| ["trains_cut", "packets_made", "trains_whole"].map(|key| here.count("out", Group::Gso, key));
        assert_eq!(gso(&here), [0, 0, 1], "a port that does it itself leaves nothing to count");
        here.set("net.gso.dev.out.tso", 0);
        let (frames, sent) = here.pass(20);
        assert!(without_checksums(sent) == without_checksums(frames));
        assert_eq!(gso(&here), [1, 20, 1]);
    });
}

/// Returns the frames with their checksums cleared: those that a port completes are not compared.
fn without_checksums(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.iter_mut().for_each(|frame| frame[50..52].fill(0));
    frames
}

#[test]
fn knobs_of_udp_and_of_the_other_way_leave_tcp_alone() {
    in_both_forms(|| {
        let mut here = Bench::gateway(trains(), 0);
        here.set("net.inet.udp.gso", 0);
        here.set("net.gso.dev.in.enable_gso", 0);
        here.set("net.inet.udp.gro", 0);
        assert_eq!(here.pass(20).1.len(), 1);
    });
}

#[test]
fn a_burst_is_cut_into_trains_of_the_largest_size_and_no_more() {
    in_both_forms(|| {
        let mut here = Bench::gateway(trains(), 0);
        here.set("net.gso.dev.out.max_burst", 5500);
        let (frames, sent) = here.pass(20);
        let lens: Vec<usize> = sent.iter().map(Vec::len).collect();
        assert_eq!(lens, [5054, 5054, 5054, 5054]);
        let payload = |all: &[Vec<u8>]| all.iter().flat_map(|frame| frame[54..].to_vec()).collect::<Vec<_>>();
        assert!(payload(&sent) == payload(&frames));
    });
}

#[test]
fn gro_turned_off_and_on_loses_and_reorders_nothing_that_it_holds() {
    in_both_forms(|| {
        let mut here = Bench::gateway(trains(), 1_000_000_000);
        let (mut came, mut left) = (Vec::new(), Vec::new());
        let mut pass = |here: &mut Bench, count| {
            let (frames, sent) = here.pass(count);
            came.extend(frames);
            left.extend(sent.iter().flat_map(|frame| frame[54..].to_vec()));
            sent.len()
        };
        assert_eq!(pass(&mut here, 5), 0, "held");
        here.set("net.gro.dev.in.enable_gro", 0);
        assert_eq!(pass(&mut here, 3), 4, "the train that was held, then three frames by themselves");
        here.set("net.gro.dev.in.enable_gro", 1);
        assert_eq!(pass(&mut here, 4), 0);
        here.set("net.gro.dev.in.hold_us", 0);
        assert_eq!(pass(&mut here, 2), 2);
        here.set("net.inet.tcp.gro", 0);
        assert_eq!(pass(&mut here, 2), 2);
        let came: Vec<u8> = came.iter().flat_map(|frame| frame[54..].to_vec()).collect();
        assert!(came == left);
    });
}

#[test]
fn every_knob_turned_at_random_under_load_loses_and_reorders_nothing() {
    in_both_forms(|| {
        let mut rng = segue_testkit::Rng::new(7);
        for limits in [trains(), Limits::NONE] {
            let mut here = Bench::gateway(limits, 0);
            let knobs: Vec<(String, Values)> =
                here.knobs.iter().map(|(knob, _)| (knob.name.clone(), knob.values)).collect();
            let (mut came, mut left) = (Vec::new(), Vec::new());
            for turn in 0..2000 {
                let (name, values) = &knobs[rng.below(knobs.len())];
                let value = match values {
                    Values::Switch => rng.below(2) as u64,
                    Values::Names(names) => rng.below(names.len()) as u64,
                    Values::Number { min, max } => min + rng.below((max - min) as usize + 1) as u64,
                };
                // Some need others first.
                let _ = here.knobs.set(name, value);
                let (frames, sent) = here.pass(1 + turn % 30);
                came.extend(frames.iter().flat_map(|frame| frame[54..].to_vec()));
                left.extend(sent.iter().flat_map(|frame| frame[54..].to_vec()));
                here.now += 1_000_000;
            }
            here.now += 2_000_000_000;
            left.extend(here.pass(0).1.iter().flat_map(|frame| frame[54..].to_vec()));
            assert!(came == left);
        }
    });
}

#[test]
fn a_tunnel_cuts_before_encapsulation_with_gso_off_and_after_it_with_gso_on_and_the_same_leaves() {
    in_both_forms(|| {
        let mut left = Vec::new();
        for (gso, seen, kept) in [(1, [1, 1, 20], [1, 20, 0, 0]), (0, [20, 0, 20], [0, 0, 1, 20])] {
            let mut here = Bench::tunnel(true);
            here.set("net.gso.dev.udp.enable_gso", gso);
            here.wires[0].borrow_mut().train = Some(1000);
            here.wires[0].borrow_mut().waiting.push_back(here.sender.send(20_000, 0).bytes());
            here.round();
            left.push(std::mem::take(&mut here.wires[1].borrow_mut().sent));
            assert_eq!((here.stage("sg0", Stage::Ingress), here.stage("sg0", Stage::Encap)), ([1, 1, 20], seen));
            let count = |key| here.count("udp", Group::Gso, key);
            assert_eq!(["trains_cut", "packets_made", "cut_on_entry", "made_on_entry"].map(count), kept);
            assert_eq!(here.count("udp", Group::Remcsum, "sent"), 20, "left to the far end in both");
            assert_eq!(here.count("udp", Group::Port, "checksummed_bytes"), 0);
        }
        assert_eq!(left[0].len(), 20);
        assert!(left[0] == left[1]);
    });
}

#[test]
fn remote_checksums_can_be_asked_for_only_where_the_tunnel_was_made_for_them() {
    in_both_forms(|| {
        let name = "net.remcsum.dev.udp.enable_remcsum";
        let with = Bench::tunnel(true);
        assert_eq!(
            (with.knobs.get(name).unwrap().1, with.knobs.set(name, 0), with.knobs.set(name, 1)),
            (1, Some(1), Some(0))
        );
        let without = Bench::tunnel(false);
        let (knob, value) = without.knobs.get(name).unwrap();
        assert!(knob.fixed.is_some() && value == 0, "{knob:?}");
    });
}

#[test]
fn wrong_names_and_values_change_nothing() {
    in_both_forms(|| {
        let here = Bench::gateway(trains(), 0);
        let values = || here.knobs.iter().map(|(_, value)| value).collect::<Vec<_>>();
        let before = values();
        for (name, value) in [
            ("net.inet.sctp.gso", 1),
            ("net.inet.tcp.gso", 2),
            ("net.gso.dev.out.max_burst", 65_536),
            ("net.gro.dev.in.profile", 3),
        ] {
            assert_eq!(here.knobs.set(name, value), None, "{name} {value}");
        }
        assert_eq!(values(), before);
        let (acks, _) = here.knobs.get("net.ack.dev.in.enable_ack").unwrap();
        assert_eq!(acks.needs, Some(("net.gro.dev.in.profile".to_owned(), 2)));
    });
}

#[test]
fn what_is_set_before_the_start_is_the_default() {
    in_both_forms(|| {
        let mut here = Bench::gateway(trains(), 0);
        here.knobs.preset("net.gro.dev.in.enable_gro", 0).unwrap();
        let (knob, value) = here.knobs.get("net.gro.dev.in.enable_gro").unwrap();
        assert_eq!((knob.default, value), (0, 0));
        assert_eq!(here.pass(5).1.len(), 5);
    });
}

#[test]
fn the_knobs_of_the_first_gso_have_their_names_and_defaults() {
    in_both_forms(|| {
        let here = Bench::gateway(trains(), 0);
        for (name, value) in [
            ("net.inet.tcp.gso", 1),
            ("net.inet.udp.gso", 1),
            ("net.gso.dev.out.enable_gso", 1),
            ("net.gso.dev.out.max_burst", 65_535),
        ] {
            assert_eq!(here.knobs.get(name).map(|(knob, now)| (knob.default, now)), Some((value, value)), "{name}");
        }
    });
}
