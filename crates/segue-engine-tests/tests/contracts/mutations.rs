//! Runs 20,000 damaged frames through parser, GRO of each profile and GSO, and through decapsulation, with the oracle
//! as judge.
//!
//! With `SEGUE_FULL=1` there are 200,000, with `SEGUE_SOAK=1` 10 million each, from a seed that is taken from the
//! clock and printed.

use std::time::{SystemTime, UNIX_EPOCH};

use segue::gro::{self, Gro, Profile};
use segue::packet::Start;
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::oracle::{self, verify};

use crate::decap::{decapsulators, pull};
use crate::properties::{Arrival, ByFrames, Promise, Setting, broken_engine, check};
use crate::streams;

#[test]
fn damaged_frames_break_no_promise() {
    damaged(Profile::Strict);
}

#[test]
fn damaged_frames_break_no_promise_of_a_receiver() {
    damaged(Profile::Lro);
}

#[test]
fn damaged_frames_break_no_promise_of_a_kernel() {
    // A kernel loses fields that it does not compare, so only wrong, reordered or lost packets are looked for.
    damaged(Profile::linux());
}

fn damaged(profile: Profile) {
    let (seed, count) = effort(200_000);
    let mut rng = Rng::new(seed);
    let mut done = 0;
    let (mut joined, mut wrong, mut swallowed) = (0, 0, 0);
    while done < count {
        let is_ethernet = rng.chance(300);
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        let config = gro::Config { profile, acks: true, ..gro::Config::default() };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
        let mut frames = family(&mut rng, is_ethernet);
        for frame in &mut frames {
            mutate(&mut rng, frame);
            if is_ethernet && frame.len() < 60 && rng.chance(500) {
                frame.extend(rng.bytes(60 - frame.len()));
            }
        }
        done += frames.len();
        let arrivals: Vec<_> = frames.into_iter().map(Arrival::new).collect();
        let result = if rng.chance(500) {
            check(&mut ByFrames::new(setting.config, &setting), &arrivals, &setting)
        } else {
            check(&mut Gro::new(setting.config), &arrivals, &setting)
        };
        match result {
            Ok(run) => {
                joined += run.joined();
                swallowed += run.stats.swallowed;
                wrong +=
                    run.stats.alone.of(gro::RefusalReason::BadChecksum) + run.stats.flushes.of(gro::Flush::BadChecksum);
            }
            Err(violation) if violation.promise == Promise::Transparency && profile == Profile::linux() => {
                let found = broken_engine(setting.config, &arrivals, &setting);
                let other = found.iter().find(|violation| violation.promise != Promise::Transparency);
                assert!(other.is_none(), "seed {seed}, after {done} frames: {other:?}\n{arrivals:02x?}");
            }
            Err(violation) => panic!("seed {seed}, after {done} frames: {violation:?}\n{arrivals:02x?}"),
        }
    }
    // Not all damage may be harmless, nor all of it fatal.
    assert!(joined > count as u64 / 20 && wrong > count as u64 / 100, "{joined} joined, {wrong} wrong");
    assert_eq!(profile == Profile::Lro, swallowed > count as u64 / 1000, "{swallowed} swallowed");
}

#[test]
fn damaged_datagrams_deliver_nothing_wrong() {
    let (seed, count) = effort(200_000);
    let mut rng = Rng::new(seed);
    let mut tunnels = decapsulators();
    let (mut taken, mut done) = (0, 0);
    while done < count {
        for mut datagram in family(&mut rng, false) {
            mutate(&mut rng, &mut datagram);
            done += 1;
            for decap in &mut tunnels {
                taken += u64::from(pull(decap, &datagram).unwrap_or_else(|what| {
                    panic!("seed {seed}, after {done}: {what}\n{:?}\n{datagram:02x?}", decap.config())
                }));
            }
        }
    }
    assert!(taken > count as u64 / 20, "{taken} of {count} were taken out");
}

/// Returns four valid frames of one flow, which would join.
pub(crate) fn family(rng: &mut Rng, is_ethernet: bool) -> Vec<Vec<u8>> {
    let ip = |rng: &mut Rng, net| match rng.chance(500) {
        true => Ip::V4(V4 { id: rng.next_u64() as u16, ..V4::new(net, 1, 2) }),
        false => Ip::V6(V6::new(net, 1, 2)),
    };
    let inner = ip(rng, 1);
    let seq = rng.next_u64() as u32;
    let mut sender = if rng.chance(600) {
        let options = if rng.chance(300) { vec![1; 12] } else { Vec::new() };
        Sender::tcp(inner.clone(), 1, seq, options)
    } else {
        Sender::udp(inner.clone(), 1)
    };
    sender.rng = Rng::new(rng.next_u64());
    let size = 1 + rng.below(60);
    let is_pure = rng.chance(200);
    let send = |_| {
        if let L4::Tcp(tcp) = &mut sender.next.l4
            && is_pure
        {
            tcp.ack = tcp.ack.wrapping_add(2896);
            return sender.send(0, 0).bytes();
        }
        sender.send(size, 0).bytes()
    };
    let mut packets: Vec<Vec<u8>> = (0..4).map(send).collect();
    // Most of them need a tunnel around them for decapsulation.
    if rng.chance(800) {
        let vni = rng.below(3) as u32;
        let shim = match rng.below(6) {
            0 => Shim::Fou,
            1 => Shim::GueBare,
            2 => Shim::Gue(None),
            3 => Shim::Gue(Some(Remcsum::Transport)),
            4 => Shim::Vxlan(vni, rng.chance(500)),
            _ => Shim::Geneve(vni, rng.below(4) as u8),
        };
        let gre = [None, Some(Gre::default()), Some(Gre { checksum: true, key: Some(42), seq: None })][rng.below(3)];
        let gre = gre.filter(|_| matches!(shim, Shim::Fou | Shim::Gue(_)));
        let is_bridge = matches!(shim, Shim::Vxlan(..)) || shim != Shim::GueBare && rng.chance(200);
        let ethernet = is_bridge.then(|| Ethernet { tags: vec![(0x8100, 5); rng.below(2)], ..Ethernet::default() });
        let dst_port = streams::port_of(shim, gre.is_some(), is_bridge, matches!(inner, Ip::V4(_)));
        let shim = match (shim, gre, rng.below(4)) {
            (Shim::Gue(Some(_)), Some(gre), 0) if gre.checksum => Shim::Gue(Some(Remcsum::Gre)),
            _ => shim,
        };
        let udp = Udp {
            src_port: 50_000,
            dst_port,
            checksum: matches!(shim, Shim::Gue(Some(_)) | Shim::Vxlan(_, true)) || rng.chance(700),
        };
        let tunnel = Tunnel { ip: ip(rng, 0), udp: Some((udp, shim)), gre, ethernet };
        packets = packets.iter().map(|packet| tunnel.wrap(packet)).collect();
    }
    if is_ethernet {
        let tags = (0..rng.below(3)).map(|_| (0x8100, 5)).collect();
        let link = Ethernet { tags, ..Ethernet::default() };
        packets = packets.iter().map(|packet| link.wrap(packet)).collect();
    }
    packets
}

/// Damages some of the frames by bits, bytes, words, cuts, insertions; sometimes in a form that keeps the checksums
/// right.
pub(crate) fn mutate(rng: &mut Rng, frame: &mut Vec<u8>) {
    for _ in 0..[0, 0, 0, 1, 1, 2, 4][rng.below(7)] {
        if frame.is_empty() {
            return;
        }
        // Headers are hit more often than payload.
        let at = if rng.chance(800) { rng.below(frame.len().min(110)) } else { rng.below(frame.len()) };
        match rng.below(9) {
            0 | 1 => frame[at] ^= 1 << rng.below(8),
            2 => frame[at] = [0, 1, 4, 6, 0x45, 0x60, 0x7f, 0x80, 0xff][rng.below(9)],
            3 => frame[at] = rng.next_u64() as u8,
            4 => frame.truncate(at),
            5 => {
                let len = 1 + rng.below(9);
                frame.extend(rng.bytes(len));
            }
            6 => {
                let len = 1 + rng.below(8);
                frame.splice(at..at, rng.bytes(len));
            }
            7 => {
                // Two words of the same parity change places, which no checksum over both notices.
                let other = (at & !1) ^ (2 * (1 + rng.below(20)));
                if at & !1 < frame.len() - 1 && other < frame.len() - 1 {
                    frame.swap(at & !1, other);
                    frame.swap((at & !1) + 1, other + 1);
                }
            }
            _ => {
                let from = rng.below(frame.len());
                let len = rng.below(frame.len() - from.max(at) + 1).min(16);
                frame.copy_within(from..from + len, at);
            }
        }
    }
}

/// Returns the seed to start with and the number of frames: `usual` of `make test-full`, a tenth of it in `make test`.
pub(crate) fn effort(usual: usize) -> (u64, usize) {
    if !segue_testkit::is_set("SEGUE_SOAK") {
        let count = if segue_testkit::is_set("SEGUE_FULL") { usual } else { usual / 10 };
        return (0x5e67_7565, count);
    }
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    println!("seed {seed}");
    (seed, usual * 50)
}

#[test]
fn every_kind_of_valid_frame_is_judged_good_before_it_is_damaged() {
    let mut rng = Rng::new(3);
    for round in 0..4000 {
        let is_ethernet = round % 3 == 0;
        let start = if is_ethernet { oracle::Start::Ethernet } else { oracle::Start::Ip };
        for frame in family(&mut rng, is_ethernet) {
            let report = verify(&frame, start, &streams::ports()).unwrap();
            assert!(matches!(report.transport.map(|t| t.protocol), Some(6 | 17)));
        }
    }
}
