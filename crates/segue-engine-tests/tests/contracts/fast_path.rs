//! Tests that the fast path gives the same output as the slow path, on the streams of all contracts and on damaged
//! frames.

use proptest::prelude::*;
use segue::gro::{Config, Frame, Generation, Gro, Profile, RefusalReason};
use segue::packet::{Csum, Frag, Pool, Start};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Ip, Tcp, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::sum::{fold, with_pseudo};

use crate::mutations::{family, mutate};
use crate::paths::disagreement;
use crate::properties::{Arrival, ByFrames, Merger, PortCsum, Setting, check};
use crate::streams::{self, Around};
use crate::upheld::setting;

const PROFILES: [Profile; 5] = [
    Profile::Strict,
    Profile::Linux(Generation::V6_12),
    Profile::Linux(Generation::V6_18),
    Profile::Linux(Generation::V7),
    Profile::Lro,
];

fn agree(arrivals: &[Arrival], setting: &Setting) -> Result<(), TestCaseError> {
    for profile in PROFILES {
        let setting = Setting { config: Config { profile, ..setting.config }, ..setting.clone() };
        if let Some(what) = disagreement(arrivals, &setting) {
            return Err(TestCaseError::fail(format!("{profile:?}: {what}")));
        }
    }
    Ok(())
}

/// Returns the number of streams of each kind, each of which every profile gets.
fn cases() -> u32 {
    match (segue_testkit::is_set("SEGUE_SOAK"), segue_testkit::is_set("SEGUE_FULL")) {
        (true, _) => 2000,
        (_, true) => 48,
        _ => 16,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn the_paths_agree_on_bare_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..300, setting in setting(Around::Nothing),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Nothing), &setting)?;
    }

    #[test]
    fn the_paths_agree_on_ethernet_with_vlan_tags_and_padding(
        seed: u64, flows in 1_usize..24, count in 1_usize..300, setting in setting(Around::Link),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Link), &setting)?;
    }

    #[test]
    fn the_paths_agree_on_tunnelled_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..200, setting in setting(Around::Tunnels),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Tunnels), &setting)?;
    }

    #[test]
    fn the_paths_agree_inside_of_tunnels_on_ethernet_whatever_the_port_knows(
        seed: u64, flows in 1_usize..24, count in 1_usize..200, is_acks: bool, setting in setting(Around::Link),
    ) {
        let config = Config { acks: is_acks, ..setting.config };
        let setting = Setting { ports: streams::ports(), config, ..setting };
        agree(&streams::tunnelled(&mut Rng::new(seed), flows, count, is_acks), &setting)?;
    }

    #[test]
    fn the_paths_agree_on_acknowledgments(
        seed: u64, flows in 1_usize..12, count in 1_usize..300, is_link: bool, setting in setting(Around::Nothing),
    ) {
        let around = if is_link { Around::Link } else { Around::Nothing };
        let start = if is_link { Start::Ethernet } else { Start::Ip };
        let setting = Setting { start, config: Config { acks: true, ..setting.config }, ..setting };
        agree(&streams::acknowledgments(&mut Rng::new(seed), flows, count, around), &setting)?;
    }

    #[test]
    fn the_paths_agree_on_arbitrary_bytes(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 0..20),
        is_ethernet: bool,
    ) {
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(Config::default()) };
        let arrivals: Vec<_> = frames.into_iter().map(Arrival::new).collect();
        agree(&arrivals, &setting)?;
    }
}

/// Tests that the streams inside of tunnels have what the paths are to agree on.
#[test]
fn streams_inside_of_tunnels_have_trains_and_packets_that_stay_alone() {
    for is_acks in [false, true] {
        let setting = Setting { start: Start::Ethernet, ports: streams::ports(), ..Setting::new(Config::default()) };
        let mut gro = ByFrames::new(setting.config, &setting);
        let mut pool = Pool::new(8);
        for arrival in streams::tunnelled(&mut Rng::new(5), 16, 4000, is_acks) {
            gro.receive(&arrival, &setting, Nanos(1), &mut pool);
        }
        gro.flush();
        let stats = gro.stats();
        assert!((3500..4500).contains(&stats.packets), "{stats:?}");
        assert!(is_acks || stats.segments > 250, "{stats:?}");
        assert!(!is_acks || stats.alone.of(RefusalReason::NoPayload) > 600, "{stats:?}");
    }
}

#[test]
fn the_paths_agree_on_damaged_frames() {
    let (seed, count) = crate::mutations::effort(20_000);
    let mut rng = Rng::new(seed);
    let mut done = 0;
    let mut joined = 0;
    while done < count {
        let is_ethernet = rng.chance(300);
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        let mut frames = family(&mut rng, is_ethernet);
        for frame in &mut frames {
            if rng.chance(300) {
                mutate(&mut rng, frame);
            }
        }
        done += frames.len();
        let port_csum = [PortCsum::Nothing, PortCsum::Nothing, PortCsum::Verified, PortCsum::Owed][rng.below(4)];
        let arrivals: Vec<_> = frames.into_iter().map(|bytes| Arrival { bytes, port_csum }).collect();
        for profile in PROFILES {
            let config = Config { profile, acks: true, ..Config::default() };
            let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
            let what = disagreement(&arrivals, &setting);
            assert!(what.is_none(), "seed {seed}, after {done} frames, {profile:?}: {}", what.unwrap_or_default());
            if port_csum == PortCsum::Nothing && profile == Profile::Strict {
                joined +=
                    check(&mut ByFrames::new(config, &setting), &arrivals, &setting).map_or(0, |run| run.joined());
            }
        }
    }
    assert!(joined > count as u64 / 20, "{joined}");
}

const L3: usize = 14;

/// Corrects the checksums of a frame with Ethernet, IP without options and TCP.
fn mend(frame: &mut [u8], is_v6: bool) {
    let (l4, addresses, len) = if is_v6 { (L3 + 40, L3 + 8, 16) } else { (L3 + 20, L3 + 12, 4) };
    if !is_v6 {
        frame[L3 + 10..L3 + 12].fill(0);
        let sum = !fold(&frame[L3..l4]);
        frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame[l4 + 16..l4 + 18].fill(0);
    let (src, dst) = frame[addresses..addresses + 2 * len].split_at(len);
    let sum = !with_pseudo(src, dst, 6, &frame[l4..]);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Returns four consecutive frames of a stream. Both checksums of the third are zero, so that all ones would be right
/// too.
fn four(is_v6: bool) -> Vec<Vec<u8>> {
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let ip = if is_v6 { Ip::V6(V6::new(1, 1, 2)) } else { Ip::V4(V4::new(1, 1, 2)) };
    let mut sender = Sender::tcp(ip, 0, u32::MAX - 60, Tcp::timestamps(1, 2));
    let mut frames: Vec<_> = (0..4).map(|_| link.wrap(&sender.send(40, 0).bytes())).collect();
    if !is_v6 {
        frames.iter_mut().for_each(|frame| frame[L3 + 18..L3 + 20].fill(0));
        frames.iter_mut().for_each(|frame| mend(frame, is_v6));
        let sum: [u8; 2] = frames[2][L3 + 10..L3 + 12].try_into().expect("two bytes");
        frames.iter_mut().for_each(|frame| frame[L3 + 18..L3 + 20].copy_from_slice(&sum));
    }
    let field = L3 + if is_v6 { 56 } else { 36 };
    let end = frames[2].len();
    frames[2][end - 2..].fill(0);
    frames.iter_mut().for_each(|frame| mend(frame, is_v6));
    let sum: [u8; 2] = frames[2][field..field + 2].try_into().expect("two bytes");
    frames[2][end - 2..].copy_from_slice(&sum);
    mend(&mut frames[2], is_v6);
    assert!(frames[2][field..field + 2] == [0; 2] && (is_v6 || frames[2][L3 + 10..L3 + 12] == [0; 2]));
    frames
}

/// Tests that both paths agree about every bit of the segment, changed for each family and each checksum state of the
/// port, with and without right checksums: sixteen times, under the profiles in turn, and under all of them with
/// `SEGUE_FULL=1`.
#[test]
fn the_paths_agree_whatever_bit_of_the_first_or_the_third_segment_is_another() {
    let is_full = segue_testkit::is_set("SEGUE_FULL");
    for (turn, (is_v6, port_csum)) in
        [(false, PortCsum::Nothing), (false, PortCsum::Verified), (true, PortCsum::Nothing), (true, PortCsum::Verified)]
            .into_iter()
            .enumerate()
    {
        let frames = four(is_v6);
        let headers = L3 + if is_v6 { 72 } else { 52 };
        let under = |change: &dyn Fn(&mut Vec<u8>), chosen: Option<usize>| {
            for (which, number) in [0, 2].into_iter().flat_map(|which| (0..PROFILES.len()).map(move |n| (which, n))) {
                if chosen.is_some_and(|chosen| (chosen + which) % PROFILES.len() != number) {
                    continue;
                }
                let profile = PROFILES[number];
                let mut frames = frames.clone();
                change(&mut frames[which]);
                let arrivals: Vec<_> = frames.into_iter().map(|bytes| Arrival { bytes, port_csum }).collect();
                let config = Config { profile, max_flows: 8, ..Config::default() };
                let setting = Setting { start: Start::Ethernet, ..Setting::new(config) };
                let what = disagreement(&arrivals, &setting);
                assert!(what.is_none(), "{profile:?}: {}", what.unwrap_or_default());
            }
        };
        let change = |change: &dyn Fn(&mut Vec<u8>)| under(change, None);
        change(&|_| {});
        for bit in 0..8 * (headers + 1) {
            let chosen = |more: usize| (!is_full).then_some(bit + turn + more);
            under(&|frame| frame[bit / 8] ^= 1 << (bit % 8), chosen(0));
            let mended = |frame: &mut Vec<u8>| {
                frame[bit / 8] ^= 1 << (bit % 8);
                mend(frame, is_v6);
            };
            under(&mended, chosen(1));
        }
        // The other representation of zero, the identification of the first segment, and lengths that contradict the
        // bytes.
        let field = headers - 32 + 16;
        change(&|frame| frame[field..field + 2].fill(0xff));
        change(&|frame| frame[L3 + 10..L3 + 12].fill(0xff));
        change(&|frame| {
            frame[L3 + 4..L3 + 6].copy_from_slice(&frames[0][L3 + 4..L3 + 6]);
            mend(frame, is_v6);
        });
        change(&|frame| frame.push(0));
        change(&|frame| frame.truncate(frame.len() - 1));
    }
}

#[test]
fn the_paths_agree_after_other_rules_were_taken() {
    let frames = four(false);
    for (before, after) in PROFILES.iter().flat_map(|&before| PROFILES.map(|after| (before, after))) {
        let run = |mut gro: Gro<Vec<u8>>| {
            let mut pool = Pool::new(8);
            gro.reconfigure(Config { profile: after, ..Config::default() });
            for (bytes, flags) in frames.iter().zip([0x10, 0x10, 0x90, 0x10]) {
                let mut bytes = bytes.clone();
                bytes[L3 + 33] = flags;
                bytes[L3 + 31] = flags;
                mend(&mut bytes, false);
                let frame = Frame { bytes: Frag::all(bytes), start: Start::Ethernet, csum: Csum::Unknown };
                gro.push_frame(frame, Nanos(1), &mut pool);
            }
            gro.flush();
            let lens: Vec<_> =
                std::iter::from_fn(|| gro.pop_from(&mut pool)).map(|packet| packet.payload.len()).collect();
            (lens, format!("{:?}", gro.stats()))
        };
        let config = Config { profile: before, ..Config::default() };
        let expected = run(Gro::new(Config { profile: after, ..config }));
        assert_eq!(run(Gro::new(config)), expected, "{before:?}, then {after:?}");
        assert_eq!(run(Gro::slow_path_only(config)), expected, "{before:?}, then {after:?}");
    }
}
