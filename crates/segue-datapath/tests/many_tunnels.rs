//! Tests of more tunnels on one outside port than one look at their interfaces finds.

mod memory;

use std::cell::RefCell;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, in_both_forms, parts};
use segue::encap::{Carrier, Config, GreOptions, Mode, OuterCsum};
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{Outside, Tunnel};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;

/// Creates tunnels to one remote, GRE in GUE with a key for each, and returns them with their inside ports.
fn many(count: u32) -> (Tunnel, Vec<Rc<RefCell<Wire>>>) {
    let [local, remote] = [1, 2].map(|host| std::net::Ipv4Addr::new(198, 18, 0, host).into());
    let tunnels = (1..=count).map(|key| {
        let mode = Mode::Gre(GreOptions { ikey: Some(key), okey: Some(key), ..GreOptions::default() });
        let (port, wire) = Memory::port(Carries::Ip, Limits::NONE);
        let config = Config::new(mode, Carrier::Gue { remcsum: false }, local, remote);
        (parts(&format!("sg{}", key - 1), port, config), wire)
    });
    let (parts, insides) = tunnels.unzip();
    let (port, _) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    let (name, key) = ("udp".to_owned(), Key([1, 2]));
    let outside = Outside { name, port, csum: OuterCsum::Verified, budget: 64, pages: 256, key, tunnels: None };
    (Tunnel::new(outside, parts), insides)
}

#[test]
fn each_of_more_saturated_tunnels_than_one_look_finds_is_served() {
    /// Number of packets that wait in front of each tunnel at first.
    const WAITING: usize = 40;
    in_both_forms(|| {
        let (mut tunnel, insides) = many(128);
        let knobs = Knobs::of(|dial| tunnel.tune(dial));
        knobs.set("net.napi.budget", 3).unwrap();
        knobs.follow(&mut 0, |dial| tunnel.tune(dial));
        let mut sender = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 9);
        for wire in &insides {
            wire.borrow_mut().waiting.extend((0..WAITING).map(|_| sender.send(100, 0).bytes()));
        }
        (0..300).for_each(|now| _ = tunnel.round(Nanos(now)).unwrap());
        let left: Vec<usize> = insides.iter().map(|wire| wire.borrow().waiting.len()).collect();
        assert!(left.iter().all(|left| (WAITING - 9..WAITING).contains(left)), "{left:?}");
    });
}

#[test]
fn more_tunnels_than_one_look_finds_end_at_once() {
    in_both_forms(|| {
        let (mut tunnel, insides) = many(128);
        tunnel.round(Nanos(0)).unwrap();
        insides[127].borrow_mut().waiting.push_back(Sender::udp(Ip::V4(V4::new(1, 1, 2)), 9).send(100, 0).bytes());
        assert!(tunnel.close());
        assert!((1..=3).any(|now| tunnel.round(Nanos(now)).unwrap() == Round::Idle));
        assert_eq!(insides[127].borrow().waiting.len(), 1, "what is not read is the next one's");
    });
}
