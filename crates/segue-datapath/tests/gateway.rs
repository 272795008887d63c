//! Tests of the gateway between two ports in memory: trains are forwarded whole, other packets unchanged, and none is
//! lost.

mod memory;

use std::cell::RefCell;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, counter, in_both_forms};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Kind, Tunnels};
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::gateway::{Fragments, Gateway, Parts, PortConfig};
use segue_datapath::pipeline::{Pipeline, Round};
use segue_port::PagePool;
use segue_testkit::build::{Ethernet, Ip, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::{Ids, Sender};

struct Bench {
    gateway: Gateway,
    wires: [Rc<RefCell<Wire>>; 2],
}

fn trains() -> Limits {
    let count = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..Limits::NONE };
    Limits { csum: true, tso4: true, tso6: true, uso: true, ..count }
}

fn bench(config: Option<gro::Config>, limits: [Limits; 2], budget: usize, pages: usize) -> Bench {
    fragmenting(config, limits, None, budget, pages)
}

fn fragmenting(
    config: Option<gro::Config>,
    limits: [Limits; 2],
    fragments: Option<Fragments>,
    budget: usize,
    pages: usize,
) -> Bench {
    let [(first, a), (second, b)] = limits.map(|limits| Memory::port(Carries::Ethernet, limits));
    let side = |name: &str, port| PortConfig { name: name.to_owned(), port, gro: config, fragments };
    let gateway =
        Gateway::new(Parts { ports: [side("in", first), side("out", second)], budget, pages: PagePool::new(pages) });
    Bench { gateway, wires: [a, b] }
}

impl Bench {
    fn default() -> Bench {
        bench(Some(gro::Config::default()), [trains(); 2], 64, 256)
    }

    fn give(&self, end: usize, frames: &[Vec<u8>]) {
        self.wires[end].borrow_mut().waiting.extend(frames.iter().cloned());
    }

    fn round(&mut self, now: u64) -> Round {
        self.gateway.round(Nanos(now)).unwrap()
    }

    fn sent(&self, end: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wires[end].borrow_mut().sent)
    }
}

fn frame(packet: &[u8]) -> Vec<u8> {
    Ethernet { dst: [2; 6], src: [4; 6], tags: Vec::new() }.wrap(packet)
}

fn sender(ids: Ids) -> Sender {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
    sender.ids = ids;
    sender
}

fn segments(sender: &mut Sender, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| frame(&sender.send(1000, 0).bytes())).collect()
}

#[test]
fn a_run_of_frames_goes_on_as_one_train_both_ways() {
    in_both_forms(|| {
        for from in [0, 1] {
            let mut here = Bench::default();
            let frames = segments(&mut sender(Ids::Counting), 30);
            here.give(from, &frames);
            assert_eq!(here.round(0), Round::Idle);
            let sent = here.sent(1 - from);
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0][..14], frames[0][..14], "the frame keeps its stations");
            let payload: Vec<u8> = frames.iter().flat_map(|frame| frame[54..].to_vec()).collect();
            assert!(sent[0][54..] == payload);
            assert!(here.sent(from).is_empty());
        }
    });
}

#[test]
fn a_port_without_trains_gets_the_frames_as_they_came() {
    in_both_forms(|| {
        let mut here = bench(Some(gro::Config::default()), [Limits::NONE; 2], 64, 256);
        let mut six = Sender::tcp(Ip::V6(V6::new(1, 1, 2)), 1, 7, Vec::new());
        let frames = [segments(&mut sender(Ids::Fixed), 20), segments(&mut six, 20)].concat();
        here.give(0, &frames);
        here.round(0);
        assert!(here.sent(1) == frames);
    });
}

#[test]
fn frames_whose_identification_stands_still_are_not_handed_on_for_others_to_count_it_up() {
    in_both_forms(|| {
        let strict = gro::Config::default();
        let linux = gro::Config { profile: gro::Profile::linux(), ..strict };
        for (config, units) in [(strict, 20), (linux, 1)] {
            let mut here = bench(Some(config), [trains(); 2], 64, 256);
            here.give(0, &segments(&mut sender(Ids::Fixed), 20));
            here.round(0);
            assert_eq!(here.sent(1).len(), units, "{:?}", config.profile);
        }
    });
}

#[test]
fn unmerged_frames_leave_unchanged() {
    in_both_forms(|| {
        let mut here = Bench::default();
        let mut bad = frame(&sender(Ids::Counting).send(100, 0).bytes());
        bad[53] ^= 1;
        let mut padded = frame(&sender(Ids::Counting).send(0, 0).bytes());
        padded.resize(60, 0x55);
        let other = [&[2; 12][..], &[0x88, 0xb5, 1, 2, 3]].concat();
        let frames = vec![bad, padded, other, vec![7; 14], vec![1, 2, 3]];
        here.give(0, &frames);
        here.round(0);
        let mut sent = here.sent(1);
        sent.sort();
        let mut expected = frames;
        expected.sort();
        assert!(sent == expected);
    });
}

/// Tests that a gateway, a transit device, forwards Geneve packets unchanged whose critical options it does not know,
/// with the flag C and without (RFC 8926, section 3.4), whether or not GRO looks into them.
#[test]
fn geneve_packets_with_unknown_critical_options_leave_unchanged() {
    let udp = Udp { src_port: 50_000, dst_port: 6081, checksum: false };
    let known = [Tunnels::NONE, Tunnels::NONE.with(6081, Kind::Geneve)];
    for (tunnels, flag) in known.into_iter().flat_map(|tunnels| [0, 0x40].map(|flag| (tunnels, flag))) {
        in_both_forms(|| {
            let mut here = bench(Some(gro::Config { tunnels, ..gro::Config::default() }), [Limits::NONE; 2], 64, 256);
            let mut inner = sender(Ids::Counting);
            let frames: Vec<_> = (0..4)
                .map(|id| {
                    let ip = Ip::V4(V4 { id, ..V4::new(0, 1, 2) });
                    let udp = Some((udp, Shim::Geneve(42, 3)));
                    let tunnel = Tunnel { ip, udp, gre: None, ethernet: Some(Ethernet::default()) };
                    let mut packet = tunnel.wrap(&inner.send(1000, 0).bytes());
                    // The flag C, and the type of the one option.
                    (packet[29], packet[38]) = (flag, packet[38] | 0x80);
                    frame(&packet)
                })
                .collect();
            here.give(0, &frames);
            here.round(0);
            assert!(here.sent(1) == frames, "{tunnels:?}");
        });
    }
}

#[test]
fn without_joining_frames_pass_one_by_one() {
    in_both_forms(|| {
        let mut here = bench(None, [trains(); 2], 64, 256);
        let frames = segments(&mut sender(Ids::Counting), 20);
        here.give(0, &frames);
        here.round(0);
        assert!(here.sent(1) == frames);
        assert_eq!(here.gateway.deadline(), None);
    });
}

#[test]
fn a_train_grows_over_rounds_while_its_port_has_more_but_not_for_long() {
    in_both_forms(|| {
        let mut here = bench(Some(gro::Config::default()), [trains(); 2], 8, 256);
        let mut stream = sender(Ids::Counting);
        here.give(0, &segments(&mut stream, 20));
        assert_eq!((here.round(0), here.round(1)), (Round::More, Round::More));
        assert!(here.sent(1).is_empty(), "the rest of the train waits to be read");
        assert_eq!(here.round(2), Round::Idle);
        assert_eq!(here.sent(1).len(), 1);
        // A port that always has more: after 50 microseconds a train goes all the same.
        here.give(0, &segments(&mut stream, 24));
        here.round(1_000);
        here.round(52_000);
        assert_eq!(here.sent(1).len(), 1);
    });
}

#[test]
fn with_a_hold_time_a_train_waits_for_it_and_the_loop_knows_until_when() {
    in_both_forms(|| {
        let config = gro::Config { hold: Nanos(20_000), ..gro::Config::default() };
        let mut here = bench(Some(config), [trains(); 2], 64, 256);
        let mut stream = sender(Ids::Counting);
        here.give(0, &segments(&mut stream, 3));
        assert_eq!(here.round(100), Round::Idle);
        assert_eq!(here.gateway.deadline(), Some(Nanos(20_100)));
        here.give(0, &segments(&mut stream, 3));
        here.round(10_000);
        assert!(here.sent(1).is_empty());
        here.round(20_100);
        let sent = here.sent(1);
        assert_eq!((sent.len(), sent[0].len()), (1, 54 + 6_000));
        assert_eq!(here.gateway.deadline(), None);
    });
}

#[test]
fn held_packets_are_released_when_pages_run_out() {
    in_both_forms(|| {
        let config = gro::Config { hold: Nanos(1_000_000), ..gro::Config::default() };
        let mut here = bench(Some(config), [trains(); 2], 64, 4);
        let frames = segments(&mut sender(Ids::Counting), 10);
        here.give(0, &frames);
        // Four pages: four frames, and all of them are held.
        assert_eq!(here.round(0), Round::More);
        here.round(1);
        here.round(2);
        here.round(2_000_000);
        let sent: Vec<u8> = here.sent(1).iter().flat_map(|frame| frame[54..].to_vec()).collect();
        let payload: Vec<u8> = frames.iter().flat_map(|frame| frame[54..].to_vec()).collect();
        assert!(sent == payload);
    });
}

#[test]
fn a_blocked_port_holds_back_its_source_and_not_the_other_way() {
    in_both_forms(|| {
        let mut here = Bench::default();
        let frames = segments(&mut sender(Ids::Counting), 20);
        let alone: Vec<Vec<u8>> = (0..20)
            .map(|flow| frame(&Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow, 7, Vec::new()).send(100, 0).bytes()))
            .collect();
        here.wires[1].borrow_mut().room = Some(3);
        here.give(0, &alone);
        assert_eq!(here.round(0), Round::Idle, "there is nothing to do but wait for the port");
        assert_eq!(here.wires[1].borrow().sent.len(), 3);
        let received = here.wires[0].borrow().receives;
        here.give(1, &frames);
        here.round(1);
        assert_eq!(here.wires[0].borrow().receives, received, "nothing more is read for the blocked port");
        assert_eq!(here.sent(0).len(), 1, "the other way is open");
        let mut write = 0;
        here.gateway.each_interest(&mut |interest| write += usize::from(interest.write));
        assert_eq!((write, here.gateway.deadline()), (1, None));
        here.wires[1].borrow_mut().room = None;
        here.round(2);
        assert!(here.sent(1) == alone);
    });
}

#[test]
fn refused_trains_are_resent_in_smaller_units() {
    in_both_forms(|| {
        let mut here = Bench::default();
        let frames = segments(&mut sender(Ids::Counting), 12);
        here.wires[1].borrow_mut().narrow = true;
        here.give(0, &frames);
        here.round(0);
        assert!(here.sent(1) == frames);
    });
}

/// Returns runs of segments longer than 900 bytes, except for the last of each, and a frame without IP.
fn too_long() -> Vec<Vec<u8>> {
    let df = |df| {
        let mut sender = sender(Ids::Counting);
        if let Ip::V4(ip) = &mut sender.next.ip {
            ip.df = df;
        }
        sender
    };
    let six = Sender::tcp(Ip::V6(V6::new(1, 1, 2)), 1, 7, Vec::new());
    let mut frames = Vec::new();
    for mut sender in [df(true), df(false), six] {
        frames.extend(segments(&mut sender, 20));
        frames.push(frame(&sender.send(500, 0).bytes()));
    }
    frames.push([&[2; 12][..], &[0x88, 0x64], &[7; 900]].concat());
    frames
}

#[test]
fn segments_of_oversized_trains_are_treated_like_single_packets() {
    in_both_forms(|| {
        // The MTU is known to the port, or only to the configuration of the gateway; the port accepts trains, or none.
        for (takes, fragments) in [(trains(), true), (Limits::NONE, true), (trains(), false), (Limits::NONE, false)] {
            let known = Limits { mtu: 900, ..takes };
            let key = Key([3, 4]);
            let fragments = fragments.then_some(Fragments { mtu: 900, key });
            let limits = if fragments.is_some() { [takes; 2] } else { [known; 2] };
            let outcomes = [Some(gro::Config::default()), None].map(|config| {
                let mut here = fragmenting(config, limits, fragments, 128, 256);
                here.give(0, &too_long());
                here.round(0);
                let drops = counter(&here.gateway, "out", Group::Drops, "gso_too_big");
                assert_eq!(counter(&here.gateway, "in", Group::Drops, "gso_too_big"), 0);
                (here.sent(1), drops)
            });
            let [(joined, dropped), (alone, dropped_alone)] = &outcomes;
            let expected = if fragments.is_some() { 0 } else { 60 };
            assert_eq!((*dropped, *dropped_alone), (expected, expected), "each packet is counted");
            assert_eq!(joined.len(), alone.len());
            assert_eq!(alone.len(), if fragments.is_some() { 60 * 2 + 4 } else { 4 });
            assert!(alone.iter().all(|frame| frame.len() <= 914));
            let comparable = |frames: &[Vec<u8>]| {
                let mut frames = frames.to_vec();
                // Where the port computes the checksum of a whole packet, it is not there yet; alone it came with it.
                for frame in frames.iter_mut().filter(|frame| takes.csum && [554, 574].contains(&frame.len())) {
                    let at = if frame[12..14] == [0x86, 0xdd] { 54 + 16 } else { 34 + 16 };
                    frame[at..at + 2].fill(0);
                }
                // Flows may change places.
                frames.sort();
                frames
            };
            assert!(comparable(joined) == comparable(alone), "{takes:?}");
        }
    });
}

#[test]
fn each_packet_of_a_train_that_is_refused_is_counted() {
    in_both_forms(|| {
        // Cut on entry, which a train with nowhere to go does not survive: one with SYN.
        let mut here = bench(None, [Limits { mtu: 500, ..trains() }; 2], 64, 256);
        here.wires[0].borrow_mut().train = Some(100);
        let mut stream = sender(Ids::Counting);
        let mut syn = frame(&stream.send(1000, 0).bytes());
        syn[47] |= 2;
        here.give(0, &[syn, frame(&stream.send(950, 0).bytes())]);
        here.round(0);
        assert_eq!(counter(&here.gateway, "out", Group::Drops, "gso_syn_rst"), 10);
        assert_eq!(here.sent(1).len(), 1, "the other one is no longer than its segments");
    });
}

#[test]
fn each_end_counts_what_came_in_at_it() {
    in_both_forms(|| {
        let mut here = Bench::default();
        here.give(0, &segments(&mut sender(Ids::Counting), 12));
        here.give(1, &[frame(&sender(Ids::Counting).send(0, 0).bytes())]);
        here.round(0);
        let count = |port, group, key| counter(&here.gateway, port, group, key);
        assert_eq!((count("in", Group::Flushes, "poll_end"), count("out", Group::Flushes, "poll_end")), (1, 0));
        assert_eq!((count("in", Group::Alone, "no_payload"), count("out", Group::Alone, "no_payload")), (0, 1));
        assert_eq!(count("in", Group::Port, "checksummed_bytes"), 12 * 1000, "summed once, to verify");
    });
}

/// Changes the first word of a segment's payload so that its right TCP checksum is 0.
fn with_zero_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let word = |frame: &[u8], at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let sum = word(&frame, 54) + word(&frame, 50);
    frame[54..56].copy_from_slice(&((sum % 0x10000 + sum / 0x10000) as u16).to_be_bytes());
    frame[50..52].fill(0);
    frame
}

/// Tests that a verified checksum of 0 is completed in software: a kernel or a network card that completes a checksum
/// sends 0xffff instead of 0.
#[test]
fn a_checksum_of_zero_leaves_as_it_came_where_a_train_is_cut_for_a_port_that_completes_checksums() {
    in_both_forms(|| {
        let completes = Limits { csum: true, ..Limits::NONE };
        // As a train for a port that takes none, as one whose identifications no kernel restores, and cut for its
        // length.
        for (limits, ids) in
            [(completes, Ids::Counting), (Limits { mtu: 500, ..completes }, Ids::Counting), (trains(), Ids::Fixed)]
        {
            let strict = gro::Config { profile: gro::Profile::Strict, ..gro::Config::default() };
            let mut here = bench(Some(strict), [limits; 2], 64, 256);
            let mut sender = sender(ids);
            let len = if limits.mtu < 1000 { 400 } else { 1000 };
            let frames: Vec<Vec<u8>> =
                (0..20).map(|_| with_zero_checksum(frame(&sender.send(len, 0).bytes()))).collect();
            here.give(0, &frames);
            here.round(0);
            assert!(here.sent(1) == frames, "{ids:?}");
        }
    });
}
