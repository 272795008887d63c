//! Tests of the tunnel pipeline between two ports in memory: no packet is lost, no queue grows, every drop has a
//! reason.

mod memory;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use memory::{Carries, Memory, Wire, counter, in_both_forms, parts};
use segue::checksum::Sum;
use segue::encap::{Carrier, Config, Encapsulator, GreOptions, Identity, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::reason::Reason;
use segue::time::Nanos;
use segue_datapath::board::{Group, Stage};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::probe::{self, Kind, MESSAGE_LEN, Message, Probe};
use segue_datapath::tunnel::{Outside, Parts, Tunnel};
use segue_port::Port;
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

fn outer_end(port: Box<dyn Port>, budget: usize) -> Outside {
    Outside {
        name: "udp".to_owned(),
        port,
        csum: OuterCsum::Verified,
        budget,
        pages: 256,
        key: Key([1, 2]),
        tunnels: None,
    }
}

fn bench(budget: usize) -> Bench {
    let (inside_port, inside) = Memory::port(Carries::Ip, Limits { max_bytes: 65_535, max_pieces: 1000, ..trains() });
    let outer = Limits { outer_csum: true, ..Limits::NONE };
    let (outside_port, outside) = Memory::port(Carries::Datagrams, outer);
    let parts = parts("sg0", inside_port, config());
    let tunnel = Tunnel::new(outer_end(outside_port, budget), vec![parts]);
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

/// Returns the packets encapsulated as the tunnel of the other host sends them.
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
    in_both_forms(|| {
        let packets = segments(20);
        let mut here = bench(64);
        here.outside.borrow_mut().waiting.extend(datagrams(&packets));
        assert_eq!(here.rounds(1), Round::Idle);
        let sent = &here.inside.borrow().sent;
        assert_eq!(sent.len(), 1, "twenty segments in a row are one train");
        let payload: Vec<u8> = packets.iter().flat_map(|p| p[40..].to_vec()).collect();
        assert_eq!(sent[0][40..], payload);
    });
}

#[test]
fn a_budget_bounds_what_one_round_takes() {
    in_both_forms(|| {
        let mut here = bench(8);
        here.inside.borrow_mut().waiting.extend(segments(20));
        assert_eq!(here.rounds(1), Round::More);
        assert_eq!(here.outside.borrow().sent.len(), 8);
        assert_eq!(here.rounds(2), Round::Idle);
        assert_eq!(here.outside.borrow().sent.len(), 20);
    });
}

#[test]
fn a_port_that_woke_the_loop_is_asked_alone_and_the_other_one_where_it_may_have_an_answer() {
    in_both_forms(|| {
        let packets = segments(3);
        let coming = datagrams(&packets);
        let mut here = bench(8);
        here.rounds(1);
        let first = (here.inside.borrow().receives, here.outside.borrow().receives);
        let receives =
            |here: &Bench| (here.inside.borrow().receives - first.0, here.outside.borrow().receives - first.1);
        // Places of the interests: reading the inside port, reading the outside port, writing to it.
        here.inside.borrow_mut().waiting.extend(packets);
        here.tunnel.woken(0);
        assert_eq!(here.rounds(1), Round::Idle);
        assert_eq!((receives(&here), here.outside.borrow().sent.len()), ((1, 0), 3));

        here.outside.borrow_mut().waiting.extend(coming);
        here.tunnel.woken(1);
        assert_eq!(here.rounds(1), Round::Idle);
        assert_eq!((receives(&here), here.inside.borrow().sent.len()), ((2, 1), 1), "the host may have answered");

        here.tunnel.woken(1);
        assert_eq!(here.rounds(1), Round::Idle);
        assert_eq!(receives(&here), (2, 2), "nothing came in that could be answered");
        // A round that no port has begun asks both.
        assert_eq!(here.rounds(1), Round::Idle);
        assert_eq!(receives(&here), (3, 3));

        // What a blocked port holds back is sent whatever descriptor woke the loop.
        here.outside.borrow_mut().room = Some(0);
        here.inside.borrow_mut().waiting.extend(segments(2));
        here.tunnel.woken(0);
        here.rounds(1);
        here.outside.borrow_mut().room = None;
        here.tunnel.woken(2);
        here.rounds(1);
        assert_eq!(here.outside.borrow().sent.len(), 5);
    });
}

#[test]
fn a_blocked_port_holds_back_its_source_and_loses_nothing() {
    in_both_forms(|| {
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
    });
}

#[test]
fn refused_trains_are_resent_in_smaller_units() {
    in_both_forms(|| {
        let packets = segments(10);
        let mut here = bench(64);
        here.inside.borrow_mut().narrow = true;
        here.outside.borrow_mut().waiting.extend(datagrams(&packets));
        here.rounds(1);
        assert_eq!(here.inside.borrow().sent, packets, "every packet as it was sent, one by one");
    });
}

#[test]
fn datagrams_from_unknown_peers_are_dropped_with_a_reason() {
    in_both_forms(|| {
        let mut here = bench(64);
        here.outside.borrow_mut().peer = Some("198.18.0.77:6080".parse().unwrap());
        here.outside.borrow_mut().waiting.extend(datagrams(&segments(3)));
        here.rounds(1);
        assert!(here.inside.borrow().sent.is_empty());
        assert_eq!(here.counter("udp", Group::Drops, "unknown_peer"), 3);
    });
}

#[test]
fn every_refusal_of_the_decapsulator_is_counted() {
    in_both_forms(|| {
        let mut here = bench(64);
        // A GUE control message, an unknown version, a truncated header.
        here.outside.borrow_mut().waiting.extend([vec![0x20, 0, 0, 0], vec![0xc0; 8], vec![0x02, 47, 0, 1]]);
        here.rounds(1);
        for key in ["gue_control", "gue_version", "gue_truncated"] {
            assert_eq!(here.counter("udp", Group::Drops, key), 1, "{key}");
        }
        assert!(here.inside.borrow().sent.is_empty());
    });
}

#[test]
fn a_packet_of_the_wrong_family_is_refused_at_the_entrance() {
    in_both_forms(|| {
        let mut here = bench(64);
        here.inside.borrow_mut().waiting.push_back(vec![0x10; 40]);
        here.rounds(1);
        assert!(here.outside.borrow().sent.is_empty());
        let refused: u64 = segue::encap::EncapRefusal::ALL
            .iter()
            .map(|why| here.counter("sg0", Group::Drops, why.name()))
            .sum::<u64>();
        assert_eq!(refused, 1);
    });
}

/// Creates tunnels with one port in memory: GRE in GUE to two remotes, with these `keys` each.
struct Many {
    tunnel: Tunnel,
    insides: Vec<Rc<RefCell<Wire>>>,
    outside: Rc<RefCell<Wire>>,
    configs: Vec<Config>,
}

fn many(keys: u32) -> Many {
    many_with(keys, gro::Config::default())
}

fn many_with(keys: u32, gro: gro::Config) -> Many {
    let port = |carries| Memory::port(carries, Limits { max_bytes: 65_535, max_pieces: 1000, ..trains() });
    let (outside_port, wire) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    let configs: Vec<Config> = (0..2 * keys)
        .map(|n| {
            let key = (n >= 2).then_some(n / 2);
            let mode = Mode::Gre(GreOptions { ikey: key, okey: key, ..GreOptions::default() });
            let remote = [2, 3][n as usize % 2];
            Config { mode, remote: std::net::Ipv4Addr::new(198, 18, 0, remote).into(), ..config() }
        })
        .collect();
    let (ports, insides): (Vec<_>, Vec<_>) = configs.iter().map(|_| port(Carries::Ip)).unzip();
    let parts = configs
        .iter()
        .zip(ports)
        .enumerate()
        .map(|(n, (config, port))| Parts { gro: Some(gro), ..parts(&format!("sg{n}"), port, *config) });
    let tunnel = Tunnel::new(outer_end(outside_port, 64), parts.collect());
    Many { tunnel, insides, outside: wire, configs }
}

/// Returns the datagrams in which the remote end of a tunnel sends the given packets, from the UDP header on.
fn from_afar(config: &Config, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut encap = Encapsulator::new(*config).unwrap();
    let wrap = |bytes: &Vec<u8>| {
        let mut packet = segue::packet::Packet::default();
        packet.load(segue::packet::Frag::all(bytes.clone()), segue::packet::Start::Ip, &segue::packet::Tunnels::NONE);
        encap.push(&mut packet).unwrap();
        let mut all = packet.head.bytes()[usize::from(packet.outer.unwrap().skip)..].to_vec();
        packet.payload.frags().iter().for_each(|frag| all.extend_from_slice(frag.bytes()));
        all
    };
    packets.iter().map(wrap).collect()
}

#[test]
fn a_thousand_tunnels_on_one_port_receive_only_their_own_datagrams() {
    in_both_forms(|| {
        let mut here = many(500);
        let packets = segments(3);
        // The same flow in each tunnel: no packets may be joined across tunnels.
        for (n, config) in here.configs.iter().enumerate() {
            here.outside.borrow_mut().peer = Some(std::net::SocketAddr::new(config.remote, 6080));
            here.outside.borrow_mut().waiting.extend(from_afar(config, &packets[..1 + n % 3]));
            here.tunnel.round(Nanos(n as u64)).unwrap();
        }
        for (n, wire) in here.insides.iter().enumerate() {
            let payload: Vec<u8> = packets[..1 + n % 3].iter().flat_map(|packet| packet[40..].to_vec()).collect();
            let sent = &wire.borrow().sent;
            assert_eq!(sent.len(), 1, "one train of each, sg{n}");
            assert_eq!(sent[0][40..], payload, "sg{n}");
        }
        assert_eq!(
            counter(&here.tunnel, "udp", Group::Stage(Stage::Decap), "packets"),
            (0..1000).map(|n| 1 + n % 3).sum::<u64>()
        );
        let keyless = from_afar(
            &Config { mode: Mode::Gre(GreOptions { okey: Some(77_777), ..GreOptions::default() }), ..here.configs[0] },
            &packets,
        );
        here.outside.borrow_mut().waiting.extend(keyless);
        here.tunnel.round(Nanos(2000)).unwrap();
        assert_eq!(counter(&here.tunnel, "udp", Group::Drops, "gre_mismatch"), 3, "a key that no tunnel has");
    });
}

#[test]
fn many_tunnels_send_each_under_its_own_key_to_its_own_remote() {
    in_both_forms(|| {
        let mut here = many(3);
        let packets = segments(2);
        for (n, wire) in here.insides.iter().enumerate() {
            wire.borrow_mut().waiting.extend(packets[..1 + n % 2].iter().cloned());
        }
        here.tunnel.round(Nanos(1)).unwrap();
        let expected: Vec<Vec<u8>> =
            here.configs.iter().enumerate().flat_map(|(n, config)| from_afar(config, &packets[..1 + n % 2])).collect();
        let sent = here.outside.borrow().sent.clone();
        let peers = here.outside.borrow().sent_to.clone();
        assert_eq!(sent, expected);
        assert_eq!(peers, [0, 1, 1, 2, 3, 3, 4, 5, 5], "numbers of the port's peers, one tunnel after the other");
    });
}

#[test]
fn saturated_tunnels_are_served_round_robin() {
    in_both_forms(|| {
        let mut here = many(2);
        let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
        knobs.set("net.napi.budget", 3).unwrap();
        knobs.set("net.napi.dev.sg0.weight", 3).unwrap();
        knobs.follow(&mut 0, |dial| here.tunnel.tune(dial));
        for wire in &here.insides {
            wire.borrow_mut().waiting.extend(segments(40));
        }
        (0..8).for_each(|now| _ = here.tunnel.round(Nanos(now)).unwrap());
        let left: Vec<usize> = here.insides.iter().map(|wire| wire.borrow().waiting.len()).collect();
        assert!(left.iter().all(|left| (1..40).contains(left)), "{left:?}");
    });
}

#[test]
fn counters_of_tunnels_with_nothing_new_stay_what_they_were() {
    in_both_forms(|| {
        let mut here = many(2);
        let board = segue_datapath::worker::board(&here.tunnel);
        let read = |name: &str, board: &segue_datapath::board::Board| {
            let found =
                board.read().find(|(n, _)| n.port == name && n.group == Group::Stage(Stage::Gso) && n.key == "packets");
            found.unwrap().1
        };
        for (round, n) in [(1, 3), (2, 0), (3, 3)] {
            let config = here.configs[n];
            here.outside.borrow_mut().peer = Some(std::net::SocketAddr::new(config.remote, 6080));
            here.outside.borrow_mut().waiting.extend(from_afar(&config, &segments(1)));
            here.tunnel.round(Nanos(round)).unwrap();
            board.publish(|sink| here.tunnel.collect(sink));
        }
        assert_eq!(["sg0", "sg1", "sg2", "sg3"].map(|name| read(name, &board)), [1, 0, 0, 2]);
    });
}

#[test]
fn held_packets_leave_at_their_deadline_while_other_tunnels_are_idle() {
    in_both_forms(|| {
        let mut here = many_with(2, gro::Config { hold: Nanos(1000), ..gro::Config::default() });
        here.outside.borrow_mut().peer = Some(std::net::SocketAddr::new(here.configs[3].remote, 6080));
        here.outside.borrow_mut().waiting.extend(from_afar(&here.configs[3], &segments(1)));
        here.tunnel.round(Nanos(5)).unwrap();
        assert!(here.insides[3].borrow().sent.is_empty());
        assert_eq!(here.tunnel.deadline(), Some(Nanos(1005)));
        here.tunnel.round(Nanos(1005)).unwrap();
        assert_eq!((here.insides[3].borrow().sent.len(), here.tunnel.deadline()), (1, None));
    });
}

#[test]
fn an_interface_that_takes_no_more_holds_back_the_port_and_loses_nothing() {
    in_both_forms(|| {
        let mut here = many(1);
        let packets = segments(2);
        here.insides[0].borrow_mut().room = Some(0);
        here.outside.borrow_mut().waiting.extend(from_afar(&here.configs[0], &packets[..1]));
        here.tunnel.round(Nanos(1)).unwrap();
        let receives = here.outside.borrow().receives;
        here.insides[1].borrow_mut().waiting.extend(packets.iter().cloned());
        here.tunnel.round(Nanos(2)).unwrap();
        assert_eq!(here.outside.borrow().receives, receives, "nothing is read that could not be handed in");
        assert_eq!(here.outside.borrow().sent.len(), 2, "the other way goes on");
        let mut write = false;
        here.tunnel.each_interest(&mut |interest| write |= interest.write);
        assert!(write, "the loop must wake up when the interface takes more");
        here.insides[0].borrow_mut().room = None;
        here.tunnel.round(Nanos(3)).unwrap();
        assert_eq!(here.insides[0].borrow().sent, packets[..1]);
    });
}

fn message(kind: Kind, key: Option<u32>, nonce: u64) -> Message {
    Message { kind, identity: Identity::Gre(key, false), nonce }
}

/// Creates a tunnel with a probe of the given interval.
fn probing(interval: u64) -> (Bench, Arc<Probe>) {
    let (inside_port, inside) = Memory::port(Carries::Ip, trains());
    let (outside_port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    let probe = Arc::new(Probe::new(interval));
    let parts = Parts { probe: Some(Arc::clone(&probe)), ..parts("sg0", inside_port, config()) };
    (Bench { tunnel: Tunnel::new(outer_end(outside_port, 64), vec![parts]), inside, outside }, probe)
}

impl Bench {
    /// Passes a message from the remote to the tunnel, and returns the datagrams that it sends in response.
    fn receives(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        self.outside.borrow_mut().waiting.push_back(message.to_vec());
        self.rounds(1);
        std::mem::take(&mut self.outside.borrow_mut().sent)
    }
}

#[test]
fn a_question_is_answered_with_as_many_bytes_and_at_a_limited_rate() {
    let (mut here, probe) = probing(1);
    assert_eq!(probe::outgoing(&config()), Some(Identity::Gre(None, false)));
    for kind in [Kind::Hello, Kind::EchoRequest] {
        let sent = here.receives(&message(kind, None, 5).bytes());
        assert_eq!(sent, [message(Kind::EchoReply, None, 5).bytes()]);
        assert_eq!(sent[0].len(), MESSAGE_LEN);
    }
    assert!(probe.measured().peer_request_age.is_some());
    let flood: Vec<Vec<u8>> =
        (0..3000).map(|nonce| message(Kind::EchoRequest, None, 9 + nonce).bytes().to_vec()).collect();
    here.outside.borrow_mut().waiting.extend(flood);
    while !here.outside.borrow().waiting.is_empty() {
        here.rounds(1);
    }
    // The burst, without what was taken from it above.
    assert_eq!(here.outside.borrow().sent.len(), 1000 - 2, "a flood is not answered");
    assert_eq!(here.counter("udp", Group::Drops, "probe_limit"), 3000 - 998);
    assert!(here.inside.borrow().sent.is_empty());
}

/// Tests that requests with a forged source, 1,000 a second, do not keep the remote from its replies.
#[test]
fn the_requests_of_a_live_remote_are_answered_beside_forged_ones() {
    let (mut here, _) = probing(1);
    for second in 1..=20 {
        for forged in 0..1000 {
            here.outside.borrow_mut().waiting.push_back(message(Kind::Hello, None, 1 << 32 | forged).bytes().to_vec());
            if forged == 700 {
                let genuine = message(Kind::EchoRequest, None, second);
                here.outside.borrow_mut().waiting.push_back(genuine.bytes().to_vec());
            }
            here.tunnel.round(Nanos(second * 1_000_000_000 + forged * 1_000_000)).unwrap();
        }
        let sent = std::mem::take(&mut here.outside.borrow_mut().sent);
        let reply = message(Kind::EchoReply, None, second).bytes();
        assert!(sent.iter().any(|bytes| *bytes == reply), "no reply in second {second}");
    }
}

#[test]
fn a_forged_or_repeated_answer_changes_nothing() {
    let (mut here, probe) = probing(1);
    probe.note_sent(Kind::EchoRequest, 77);
    let before = probe.measured();
    assert!(here.receives(&message(Kind::EchoReply, None, 78).bytes()).is_empty());
    assert_eq!(probe.measured(), before, "another nonce");
    assert!(here.receives(&message(Kind::EchoReply, None, 77).bytes()).is_empty());
    assert_eq!(probe.measured().replies, 1);
    assert!(here.receives(&message(Kind::EchoReply, None, 77).bytes()).is_empty());
    assert_eq!(probe.measured().replies, 1, "the same again");
    assert_eq!(here.counter("udp", Group::Drops, "probe_unasked"), 2);
    assert_eq!(here.counter("sg0", Group::Port, "received"), 1);
}

#[test]
fn a_probe_of_another_tunnel_is_refused_like_its_packets() {
    let (mut here, probe) = probing(1);
    assert!(here.receives(&message(Kind::EchoRequest, Some(5), 1).bytes()).is_empty());
    let other = Message { identity: Identity::Protocol(4), ..message(Kind::EchoRequest, None, 1) };
    assert!(here.receives(&other.bytes()).is_empty());
    for key in ["gre_mismatch", "inner_protocol"] {
        assert_eq!(here.counter("udp", Group::Drops, key), 1, "{key}");
    }
    assert_eq!(here.counter("sg0", Group::Port, "refused"), 2);
    assert_eq!(probe.measured().peer_request_age, None);
}

#[test]
fn a_probe_that_is_off_answers_nothing_and_is_no_fault_of_the_other_end() {
    let (mut here, probe) = probing(0);
    assert!(here.receives(&message(Kind::Hello, None, 5).bytes()).is_empty());
    assert_eq!(here.counter("udp", Group::Drops, "gue_control"), 1);
    assert_eq!(here.counter("sg0", Group::Port, "refused"), 0);
    let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
    let mut seen = 0;
    assert!(knobs.set("net.probe.dev.sg0.interval", 3).is_some());
    knobs.follow(&mut seen, |dial| here.tunnel.tune(dial));
    assert_eq!(probe.interval(), 3);
    assert_eq!(here.receives(&message(Kind::Hello, None, 5).bytes()).len(), 1);
}

/// Returns packets of one flow, each as long as a maximal train.
fn long(count: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(V4 { tos: 2, ..V4::new(1, 1, 2) }), 0, 1000, Vec::new());
    (0..count).map(|_| sender.send(60_000, 0).bytes()).collect()
}

#[test]
fn packets_queued_for_a_port_do_not_wait_for_another_one_that_is_blocked() {
    in_both_forms(|| {
        for blocked in ["inside", "outside"] {
            let mut here = bench(1024);
            let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
            knobs.set("net.fq.dev.udp.enable_fq", 1).unwrap();
            knobs.follow(&mut 0, |dial| here.tunnel.tune(dial));
            // More than one round serves, and one packet against it.
            let (many, one) = (long(8), segments(1));
            let (full, open, expected) = match blocked {
                "inside" => {
                    here.inside.borrow_mut().waiting.extend(many.iter().cloned());
                    here.outside.borrow_mut().waiting.extend(datagrams(&one));
                    (&here.inside, &here.outside, many.chunks(1).flat_map(datagrams).count())
                }
                _ => {
                    here.outside.borrow_mut().waiting.extend(many.chunks(1).flat_map(datagrams));
                    here.inside.borrow_mut().waiting.extend(one);
                    (&here.outside, &here.inside, many.len())
                }
            };
            full.borrow_mut().room = Some(0);
            let mut rounds = 1;
            while here.tunnel.round(Nanos(rounds)).unwrap() == Round::More {
                rounds += 1;
                assert!(rounds < 100, "{blocked}: rounds without end");
            }
            assert_eq!((open.borrow().sent.len(), full.borrow().sent.len()), (expected, 0), "{blocked} is blocked");
            assert!(rounds > 1, "{blocked}: everything in one round");
        }
    });
}

#[test]
fn a_packet_of_another_flow_passes_trains_that_wait_and_they_keep_their_order() {
    in_both_forms(|| {
        let mut here = bench(64);
        let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
        let mut seen = 0;
        let mut set = |tunnel: &mut Tunnel, on| {
            knobs.set("net.fq.dev.udp.enable_fq", on).unwrap();
            knobs.follow(&mut seen, |dial| tunnel.tune(dial));
        };
        set(&mut here.tunnel, 1);
        let trains = long(12);
        let single = Sender::udp(Ip::V4(V4::new(1, 3, 2)), 9).send(64, 0).bytes();
        here.inside.borrow_mut().waiting.extend(trains.iter().cloned().chain([single.clone()]));
        assert_eq!(here.rounds(1), Round::More, "a round sends a part of what waits");
        let first: Vec<usize> = here.outside.borrow().sent.iter().map(Vec::len).collect();
        assert!(first[1] < 1000 && first.len() < 8, "{first:?}");
        // What comes meanwhile waits for no more than a round.
        here.inside.borrow_mut().waiting.push_back(single.clone());
        here.rounds(1);
        let sent = here.outside.borrow().sent.len();
        assert!(sent > first.len() && here.outside.borrow().sent[first.len()].len() < 1000);
        while here.rounds(1) == Round::More {}
        let all = here.outside.borrow().sent.clone();
        let (short, long): (Vec<_>, Vec<_>) = all.into_iter().partition(|bytes| bytes.len() < 1000);
        let expected: Vec<Vec<u8>> = trains.chunks(1).flat_map(datagrams).collect();
        assert_eq!((short.len(), long), (2, expected));
        assert_eq!(here.counter("udp", Group::Drops, "codel"), 0);

        // Off, everything leaves as it came.
        set(&mut here.tunnel, 0);
        here.outside.borrow_mut().sent.clear();
        here.inside.borrow_mut().waiting.extend(trains.iter().cloned().chain([single]));
        here.rounds(1);
        assert_eq!(here.outside.borrow().sent.len(), 13);
        assert!(here.outside.borrow().sent[12].len() < 1000);
    });
}

#[test]
fn fragments_that_wait_stay_in_the_order_of_the_whole_datagrams_of_their_flow() {
    in_both_forms(|| {
        let mut here = bench(64);
        let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
        knobs.set("net.fq.dev.udp.enable_fq", 1).unwrap();
        knobs.follow(&mut 0, |dial| here.tunnel.tune(dial));
        // What fills the queues, and one flow of which every second datagram comes in three fragments.
        let mut sender = Sender::udp(Ip::V4(V4::new(1, 3, 2)), 9);
        let mixed: Vec<Vec<u8>> = (0..8).flat_map(|number| fragmented(&sender.send(3000, 0).bytes(), number)).collect();
        here.inside.borrow_mut().waiting.extend(long(6).into_iter().chain(mixed.iter().cloned()));
        while here.rounds(1) == Round::More {}
        let all = here.outside.borrow().sent.clone();
        let sent: Vec<&Vec<u8>> = all.iter().filter(|sent| sent.len() < 4000).collect();
        let place = |sent: &&Vec<u8>| mixed.iter().position(|packet| sent.ends_with(packet));
        let places: Vec<Option<usize>> = sent.iter().map(place).collect();
        assert_eq!(places, (0..mixed.len()).map(Some).collect::<Vec<_>>());
        assert_eq!(here.counter("udp", Group::Port, "queued"), 22);
    });
}

/// Returns a datagram over IPv4 with this identification, whole where that is even, otherwise in three fragments.
fn fragmented(whole: &[u8], number: u16) -> Vec<Vec<u8>> {
    let (header, data) = whole.split_at(20);
    let len = if number.is_multiple_of(2) { data.len() } else { 1200 };
    let part = |(at, part): (usize, &[u8])| {
        let offset = at * len;
        let more = u16::from(offset + part.len() < data.len()) << 13;
        let mut bytes = header.to_vec();
        bytes[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        bytes[4..6].copy_from_slice(&number.to_be_bytes());
        bytes[6..8].copy_from_slice(&(more | (offset / 8) as u16).to_be_bytes());
        bytes[10..12].fill(0);
        let checksum = !Sum::of(&bytes).fold();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        [&bytes[..], part].concat()
    };
    data.chunks(len).enumerate().map(part).collect()
}

/// Tests that an interface that does not take the ICMP errors about queued packets is waited for.
#[test]
fn errors_about_queued_packets_leave_as_soon_as_a_blocked_interface_takes_them() {
    in_both_forms(|| {
        let mut here = bench(1024);
        let knobs = Knobs::of(|dial| here.tunnel.tune(dial));
        knobs.set("net.fq.dev.udp.enable_fq", 1).unwrap();
        knobs.follow(&mut 0, |dial| here.tunnel.tune(dial));
        here.rounds(1);
        here.outside.borrow_mut().path_mtu = Some(1000);
        here.inside.borrow_mut().room = Some(0);
        here.inside.borrow_mut().waiting.extend(long(3));
        here.rounds(1);
        assert_eq!(here.counter("udp", Group::Port, "queued"), 3);
        assert_eq!(here.counter("udp", Group::Drops, "path_mtu"), 3);
        let mut writes = 0;
        here.tunnel.each_interest(&mut |interest| writes += usize::from(interest.write));
        assert_eq!(writes, 1, "the loop must wake up when the interface takes more");
        here.inside.borrow_mut().room = None;
        here.rounds(1);
        let sent = std::mem::take(&mut here.inside.borrow_mut().sent);
        let is_too_big = |bytes: &[u8]| bytes[9] == 1 && bytes[20..22] == [3, 4];
        // The first one; none was made for the interface while it was blocked.
        assert!(sent.len() == 1 && is_too_big(&sent[0]), "ICMP: fragmentation needed");
        assert_eq!(here.counter("sg0", Group::Port, "icmp_errors_limited"), 2);
    });
}
