//! The short way gives what the long way gives, on the streams of all promises and on damaged frames.

use proptest::prelude::*;
use segue::gro::{Config, Generation, Gro, Profile};
use segue::packet::Start;
use segue_testkit::Rng;

use crate::mutations::{family, mutate};
use crate::properties::{Arrival, Known, Setting, check};
use crate::streams::{self, Around};
use crate::upheld::setting;
use crate::ways::disagreement;

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("SEGUE_SOAK").is_some() { 2000 } else { 48 }))]

    #[test]
    fn the_ways_agree_on_bare_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..300, setting in setting(Around::Nothing),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Nothing), &setting)?;
    }

    #[test]
    fn the_ways_agree_on_ethernet_with_vlan_tags_and_padding(
        seed: u64, flows in 1_usize..24, count in 1_usize..300, setting in setting(Around::Link),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Link), &setting)?;
    }

    #[test]
    fn the_ways_agree_on_tunnelled_packets(
        seed: u64, flows in 1_usize..24, count in 1_usize..200, setting in setting(Around::Tunnels),
    ) {
        agree(&streams::stream(&mut Rng::new(seed), flows, count, Around::Tunnels), &setting)?;
    }

    #[test]
    fn the_ways_agree_on_acknowledgments(
        seed: u64, flows in 1_usize..12, count in 1_usize..300, is_link: bool, setting in setting(Around::Nothing),
    ) {
        let around = if is_link { Around::Link } else { Around::Nothing };
        let start = if is_link { Start::Ethernet } else { Start::Ip };
        let setting = Setting { start, config: Config { acks: true, ..setting.config }, ..setting };
        agree(&streams::acknowledgments(&mut Rng::new(seed), flows, count, around), &setting)?;
    }

    #[test]
    fn the_ways_agree_on_arbitrary_bytes(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 0..20),
        is_ethernet: bool,
    ) {
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(Config::default()) };
        let arrivals: Vec<_> = frames.into_iter().map(Arrival::new).collect();
        agree(&arrivals, &setting)?;
    }
}

#[test]
fn the_ways_agree_on_damaged_frames() {
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
        let known = [Known::Nothing, Known::Nothing, Known::Verified, Known::Owed][rng.below(4)];
        let arrivals: Vec<_> = frames.into_iter().map(|bytes| Arrival { bytes, known }).collect();
        for profile in PROFILES {
            let config = Config { profile, acks: true, ..Config::default() };
            let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
            let what = disagreement(&arrivals, &setting);
            assert!(what.is_none(), "seed {seed}, after {done} frames, {profile:?}: {}", what.unwrap_or_default());
            if known == Known::Nothing && profile == Profile::Strict {
                joined += check(&mut Gro::new(config), &arrivals, &setting).map_or(0, |run| run.joined());
            }
        }
    }
    assert!(joined > count as u64 / 20, "{joined}");
}
