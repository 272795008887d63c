//! The tunnel pipeline between two ports that live in memory: nothing is lost, nothing piles up, every drop has a name.

mod memory;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, counter};
use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, GreOptions, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::reason::Reason;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{Parts, Tunnel};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;

struct Bench {
    tunnel: Tunnel,
    inside: Rc<RefCell<Wire>>,
    outside: Rc<RefCell<Wire>>,
}

fn trains() -> Limits {
    Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 1000, max_udp_segs: 64, ..Limits::NONE }
}

fn config() -> Config {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let mode = Mode::Gre(GreOptions::default());
    Config::new(mode, Carrier::Gue { remcsum: true }, address("198.18.0.1"), address("198.18.0.2"))
}

fn bench(budget: usize) -> Bench {
    let (inside_port, inside) = Memory::port(Carries::Ip, Limits { max_bytes: 65_535, max_pieces: 1000, ..trains() });
    let outer = Limits { outer_csum: true, ..Limits::NONE };
    let (outside_port, outside) = Memory::port(Carries::Datagrams, outer);
    let tunnel = Tunnel::new(Parts {
        inside_name: "sg0".to_owned(),
        inside: inside_port,
        outside_name: "udp".to_owned(),
        outside: outside_port,
        encap: Encapsulator::new(config()).unwrap(),
        decap: Decapsulator::new(config()).unwrap(),
        remotes: vec!["198.18.0.2".parse().unwrap()],
        fdb: None,
        flood: Vec::new(),
        outer_csum: OuterCsum::Verified,
        gro: Some(gro::Config::default()),
        budget,
        pages: 256,
    });
    Bench { tunnel, inside, outside }
}

impl Bench {
    fn rounds(&mut self, n: usize) -> Round {
        (0..n).map(|i| self.tunnel.round(Nanos(i as u64)).unwrap()).last().unwrap()
    }

    fn counter(&self, port: &str, group: Group, key: &str) -> u64 {
        counter(&self.tunnel, port, group, key)
    }
}

fn segments(count: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
    (0..count).map(|_| sender.send(1000, 0).bytes()).collect()
}

/// The same packets as they leave the tunnel of the other host.
fn datagrams(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut there = bench(packets.len());
    there.inside.borrow_mut().waiting.extend(packets.iter().cloned());
    there.rounds(1);
    let sent = std::mem::take(&mut there.outside.borrow_mut().sent);
    assert_eq!(sent.len(), packets.len());
    sent
}

#[test]
fn segments_cross_two_tunnels_and_become_one_train() {
    let packets = segments(20);
    let mut here = bench(64);
    here.outside.borrow_mut().waiting.extend(datagrams(&packets));
    assert_eq!(here.rounds(1), Round::Idle);
    let sent = &here.inside.borrow().sent;
    assert_eq!(sent.len(), 1, "twenty segments in a row are one train");
    let payload: Vec<u8> = packets.iter().flat_map(|p| p[40..].to_vec()).collect();
    assert_eq!(sent[0][40..], payload);
}

#[test]
fn a_budget_bounds_what_one_round_takes() {
    let mut here = bench(8);
    here.inside.borrow_mut().waiting.extend(segments(20));
    assert_eq!(here.rounds(1), Round::More);
    assert_eq!(here.outside.borrow().sent.len(), 8);
    assert_eq!(here.rounds(2), Round::Idle);
    assert_eq!(here.outside.borrow().sent.len(), 20);
}

#[test]
fn a_blocked_port_holds_back_its_source_and_loses_nothing() {
    let mut here = bench(8);
    here.inside.borrow_mut().waiting.extend(segments(20));
    here.outside.borrow_mut().room = Some(3);
    assert_eq!(here.rounds(1), Round::Idle, "there is nothing to do but wait for the port");
    assert_eq!(here.outside.borrow().sent.len(), 3);
    here.rounds(5);
    assert_eq!(here.inside.borrow().receives, 1, "nothing was read behind the backs of those that wait");
    let mut write = false;
    here.tunnel.each_interest(&mut |interest| write |= interest.write);
    assert!(write, "the loop must wake up when the port takes more");

    here.outside.borrow_mut().room = None;
    here.rounds(4);
    let sent = here.outside.borrow().sent.clone();
    assert_eq!(sent, datagrams(&segments(20)));
}

#[test]
fn what_a_port_refuses_goes_again_in_smaller_form() {
    let packets = segments(10);
    let mut here = bench(64);
    here.inside.borrow_mut().narrow = true;
    here.outside.borrow_mut().waiting.extend(datagrams(&packets));
    here.rounds(1);
    assert_eq!(here.inside.borrow().sent, packets, "every packet as it was sent, one by one");
}

#[test]
fn datagrams_of_strangers_are_dropped_under_their_name() {
    let mut here = bench(64);
    here.outside.borrow_mut().peer = Some("198.18.0.77:6080".parse().unwrap());
    here.outside.borrow_mut().waiting.extend(datagrams(&segments(3)));
    here.rounds(1);
    assert!(here.inside.borrow().sent.is_empty());
    assert_eq!(here.counter("udp", Group::Drops, "unknown_peer"), 3);
}

#[test]
fn every_refusal_of_the_decapsulator_is_counted() {
    let mut here = bench(64);
    // A GUE control message, an unknown version, a header that ends too soon.
    here.outside.borrow_mut().waiting.extend([vec![0x20, 0, 0, 0], vec![0xc0; 8], vec![0x02, 47, 0, 1]]);
    here.rounds(1);
    for key in ["gue_control", "gue_version", "gue_truncated"] {
        assert_eq!(here.counter("udp", Group::Drops, key), 1, "{key}");
    }
    assert!(here.inside.borrow().sent.is_empty());
}

#[test]
fn a_packet_of_the_wrong_family_is_refused_at_the_entrance() {
    let mut here = bench(64);
    here.inside.borrow_mut().waiting.push_back(vec![0x10; 40]);
    here.rounds(1);
    assert!(here.outside.borrow().sent.is_empty());
    let refused: u64 =
        segue::encap::EncapRefusal::ALL.iter().map(|why| here.counter("sg0", Group::Drops, why.name())).sum();
    assert_eq!(refused, 1);
}
