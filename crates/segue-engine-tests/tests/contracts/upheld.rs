//! Tests of the contracts of GRO and GSO on random streams.

use proptest::prelude::*;
use segue::checksum::Sum;
use segue::gro::{Config, Generation, Gro, Profile, RefusalReason};
use segue::hash;
use segue::packet::{Csum, Frag, Kind, Layout, Pool, Start, Stop, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::build::{Ip, V4, V6};
use segue_testkit::flow::Sender;

use crate::properties::{Arrival, Setting, check_engine};
use crate::streams::{self, Around};

fn profile() -> impl Strategy<Value = Profile> {
    prop_oneof![
        3 => Just(Profile::Strict),
        1 => Just(Profile::linux()),
        1 => Just(Profile::Linux(Generation::V7)),
        2 => Just(Profile::Lro),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let bytes = prop_oneof![3 => Just(65_535_usize), 1 => 100_usize..70_000, 1 => 70_000_usize..600_000];
    let flows = prop_oneof![2 => Just(256_usize), 1 => 1_usize..12];
    let held = prop_oneof![3 => Just(8192_usize), 1 => 1_usize..40];
    let hold = prop_oneof![2 => Just(0_u64), 1 => 1_u64..200_000];
    let packets = (0_usize..200, 0_usize..80, held, 0_usize..40);
    (profile(), bytes, packets, flows, hold, any::<bool>(), any::<[u64; 2]>()).prop_map(
        |(profile, max_bytes, packets, max_flows, hold, acks, key)| {
            let (max_packets, max_udp_packets, max_held_packets, max_acks) = packets;
            Config {
                profile,
                max_bytes,
                max_packets,
                max_udp_packets,
                max_flows,
                max_held_packets,
                hold: Nanos(hold),
                acks,
                max_acks,
                key: hash::Key(key),
                tunnels: Tunnels::NONE,
            }
        },
    )
}

pub(crate) fn setting(around: Around) -> impl Strategy<Value = Setting> {
    (config(), 1_usize..200, 1_u64..20_000).prop_map(move |(config, round, step)| Setting {
        start: if around == Around::Link { Start::Ethernet } else { Start::Ip },
        ports: if around == Around::Tunnels { streams::ports() } else { Default::default() },
        round: if config.hold == Nanos::ZERO { round } else { 0 },
        step,
        ..Setting::new(config)
    })
}

fn holds_on(seed: u64, flows: usize, count: usize, around: Around, setting: &Setting) -> Result<(), TestCaseError> {
    let arrivals = streams::stream(&mut Rng::new(seed), flows, count, around);
    match check_engine(setting.config, &arrivals, setting) {
        Ok(_) => Ok(()),
        Err(violation) => Err(TestCaseError::fail(format!("{violation:?}"))),
    }
}

proptest! {
    #[test]
    fn every_promise_holds_on_bare_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..400, setting in setting(Around::Nothing),
    ) {
        holds_on(seed, flows, count, Around::Nothing, &setting)?;
    }

    #[test]
    fn every_promise_holds_on_ethernet_with_vlan_tags_and_padding(
        seed: u64, flows in 1_usize..24, count in 1_usize..400, setting in setting(Around::Link),
    ) {
        holds_on(seed, flows, count, Around::Link, &setting)?;
    }

    #[test]
    fn every_promise_holds_on_tunnelled_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..400, setting in setting(Around::Tunnels),
    ) {
        holds_on(seed, flows, count, Around::Tunnels, &setting)?;
    }

    #[test]
    fn every_promise_of_a_receiver_holds_on_acknowledgments(
        seed: u64, flows in 1_usize..12, count in 1_usize..400, around in 0_usize..3, setting in setting(Around::Nothing),
    ) {
        let around = [Around::Nothing, Around::Link, Around::Tunnels][around];
        let config = Config { profile: Profile::Lro, acks: true, ..setting.config };
        let start = if around == Around::Link { Start::Ethernet } else { Start::Ip };
        let ports = if around == Around::Tunnels { streams::ports() } else { Default::default() };
        let setting = Setting { start, ports, config, ..setting };
        let arrivals = streams::acknowledgments(&mut Rng::new(seed), flows, count, around);
        if let Err(violation) = check_engine(config, &arrivals, &setting) {
            return Err(TestCaseError::fail(format!("{violation:?}")));
        }
    }

    #[test]
    fn every_promise_holds_on_arbitrary_bytes(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 0..20),
        is_ethernet: bool,
        profile in profile(),
    ) {
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        let config = Config { profile, acks: true, ..Config::default() };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
        let arrivals: Vec<_> = frames.into_iter().map(Arrival::new).collect();
        if let Err(violation) = check_engine(setting.config, &arrivals, &setting) {
            return Err(TestCaseError::fail(format!("{violation:?}")));
        }
    }

    #[test]
    fn a_layout_that_is_not_that_of_the_bytes_panics_nowhere(
        seed: u64,
        pushed in proptest::collection::vec((0_usize..8, 0_usize..80), 0..8),
        in_front: bool,
        stop in 0_usize..6,
        profile in profile(),
    ) {
        let kinds = [
            Kind::Ethernet, Kind::Vlan, Kind::Ipv4, Kind::Ipv6, Kind::Udp, Kind::Tcp, Kind::Gre, Kind::Gue,
        ];
        let stops =
            [Stop::Transport, Stop::Protocol, Stop::Foreign, Stop::Fragment, Stop::Malformed, Stop::TooDeep];
        let mut rng = Rng::new(seed);
        let mut gro = Gro::new(Config { profile, acks: true, ..Config::default() });
        let mut pool = Pool::new(8);
        let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 1, Vec::new());
        for _ in 0..4 {
            let mut packet = pool.take();
            let len = if rng.chance(200) { 0 } else { 40 };
            packet.load(Frag::all(sender.send(len, 0).bytes()), Start::Ip, &Tunnels::NONE);
            let mut lie = Layout::empty(stops[stop]);
            for &(kind, len) in &pushed {
                if in_front {
                    lie.push(kinds[kind], len);
                } else {
                    packet.layout.push(kinds[kind], len);
                }
            }
            if in_front && rng.chance(500) {
                packet.layout.prepend(&lie);
            } else if in_front {
                packet.layout = lie;
            }
            if rng.chance(500) {
                let len = rng.below(200);
                packet.head.set(&rng.bytes(len));
            }
            packet.offload.unit = Unit::Whole(match rng.below(3) {
                0 => Csum::Unknown,
                1 => Csum::Partial,
                _ => Csum::Complete(Sum::of(&rng.bytes(9))),
            });
            gro.push(packet, Nanos(1), &mut pool);
        }
        gro.flush();
        let mut left = 0;
        while let Some(packet) = gro.pop() {
            left += match packet.offload.unit {
                Unit::Whole(_) => 1,
                Unit::Train { gso, .. } => gso.segs(packet.payload.len()),
            };
        }
        prop_assert_eq!(left + gro.stats().swallowed as usize, 4);
    }
}

#[test]
fn generated_streams_contain_merged_and_refused_packets() {
    // A property of streams in which nothing is ever joined would always hold.
    for around in [Around::Nothing, Around::Link, Around::Tunnels] {
        let setting = Setting {
            start: if around == Around::Link { Start::Ethernet } else { Start::Ip },
            ports: streams::ports(),
            ..Setting::new(Config::default())
        };
        let arrivals = streams::stream(&mut Rng::new(5), 16, 4000, around);
        let run = check_engine(setting.config, &arrivals, &setting).unwrap();
        let refused = run.stats.alone.total();
        assert!(run.joined() > 800, "{around:?}: {:?}", run.stats);
        assert!(refused > 200, "{around:?}: {refused}");
    }
}

#[test]
fn generated_ack_streams_contain_aggregated_and_refused_acks() {
    for around in [Around::Nothing, Around::Link, Around::Tunnels] {
        let config = Config { profile: Profile::Lro, acks: true, ..Config::default() };
        let start = if around == Around::Link { Start::Ethernet } else { Start::Ip };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
        let arrivals = streams::acknowledgments(&mut Rng::new(5), 6, 4000, around);
        let run = check_engine(config, &arrivals, &setting).unwrap();
        assert!(run.stats.swallowed > 400, "{around:?}: {:?}", run.stats);
        for why in [
            RefusalReason::AckDuplicate,
            RefusalReason::AckWindow,
            RefusalReason::AckOld,
            RefusalReason::AckOptions,
            RefusalReason::AckFlags,
        ] {
            assert!(run.stats.alone.of(why) > 20, "{around:?}: {:?}", run.stats);
        }
    }
}

#[test]
fn order_holds_for_64_and_for_10000_flows() {
    for flows in [64, 10_000] {
        let config = Config { max_flows: 1000, ..Config::default() };
        let setting = Setting { round: 2000, ..Setting::new(config) };
        let mut senders: Vec<Sender> = (0..flows)
            .map(|flow| {
                let (net, host) = ((flow >> 8) as u8, flow as u8);
                let ip = if flow % 2 == 0 { Ip::V4(V4::new(net, host, 2)) } else { Ip::V6(V6::new(net, host, 2)) };
                Sender::tcp(ip, 1, 0, Vec::new())
            })
            .collect();
        let mut rng = Rng::new(flows as u64);
        let arrivals: Vec<_> = (0..20_000)
            .map(|_| {
                let flow = rng.below(flows);
                let sender = &mut senders[flow];
                let len = if rng.chance(100) { 0 } else { 40 };
                Arrival::new(sender.send(len, 0).bytes())
            })
            .collect();
        let run = check_engine(config, &arrivals, &setting).unwrap();
        assert!(run.joined() > 100, "{flows} flows: {:?}", run.stats);
    }
}
