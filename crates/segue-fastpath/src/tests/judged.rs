//! Tests of the packets that the receive program drops on behalf of the daemon: the engine would refuse each of them,
//! for the reason under which it is counted.

use std::collections::{BTreeMap, BTreeSet};

use segue::encap::{Decapsulator, OuterCsum, Received};
use segue::packet::{Frag, Packet};
use segue::reason::Reason;

use super::prefixes::Random;
use super::*;

/// Returns the daemon's reason to drop a datagram with the given tunnels; `None` if it would not drop it.
fn refusal(configs: &[Config], sender: IpAddr, datagram: &[u8]) -> Option<&'static str> {
    let of_sender: Vec<&Config> = configs.iter().filter(|config| config.remote == sender).collect();
    let Some(first) = of_sender.first() else { return Some("unknown_peer") };
    let identity = first.identify(datagram);
    let has = |config: &&&Config| config.identities().any(|own| Some(own) == identity);
    let config = of_sender.iter().find(has).unwrap_or(first);
    let meta = Received { tos: 0, csum: OuterCsum::Absent, sum: None };
    let mut decap = Decapsulator::new(**config).unwrap();
    decap.pull(Frag::all(datagram), &meta, &mut Packet::default()).err().map(Reason::name)
}

/// Writes the outer lengths of a frame of a datagram without checksum, and its IPv4 header checksum.
fn settle(frame: &mut [u8], is_v4: bool) {
    let total = frame.len() - 14;
    let (at, len, udp) = if is_v4 { (16, total, total - 20) } else { (18, total - 40, total - 40) };
    frame[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    let at = if is_v4 { 38 } else { 58 };
    frame[at..at + 2].copy_from_slice(&(udp as u16).to_be_bytes());
    set_ecn(frame, 14, 0);
}

/// Returns the tunnels of a test, grouped by the port that they share.
fn ports() -> Vec<Vec<Config>> {
    let mut all: Vec<Vec<Config>> =
        kinds().into_iter().filter(|config| config.carrier != Carrier::Bare).map(|config| vec![config]).collect();
    // Several tunnels of one remote, and of two.
    for is_v4 in [true, false] {
        let [local, remote, other]: [IpAddr; 3] = if is_v4 {
            ["198.18.0.1", "198.18.0.2", "198.18.0.3"]
        } else {
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
        }
        .map(|text| text.parse().unwrap());
        let of = |mode, carrier, remote| Config {
            csum: false,
            zero_csum6: true,
            ..Config::new(mode, carrier, local, remote)
        };
        let gre = |key| Mode::Gre(GreOptions { ikey: key, okey: key, ..GreOptions::default() });
        let gue = Carrier::Gue { remcsum: false };
        all.push(vec![of(Mode::Sit, gue, remote), of(gre(Some(7)), gue, remote), of(gre(None), gue, other)]);
        all.push(vec![of(gre(None), gue, remote), of(Mode::Ipip, gue, remote), of(Mode::Ip, gue, other)]);
        all.push(vec![of(gre(Some(1)), Carrier::Fou, remote), of(gre(Some(2)), Carrier::Fou, remote)]);
        let vni = |vni| Carrier::Vxlan { vni, remcsum: false, takes_remcsum: vni == 2 };
        all.push(vec![of(Mode::Ethernet, vni(1), remote), of(Mode::Ethernet, vni(2), remote)]);
    }
    all
}

/// Returns a received frame of one of the tunnels with some bytes changed or truncated, or with another sender.
fn spoiled(configs: &[Config], random: &mut Random) -> Vec<u8> {
    let config = configs[random.below(configs.len() as u64) as usize];
    let versions = crate::form::versions(config.mode);
    let (_, mut bytes) = frame(&config, versions[random.below(versions.len() as u64) as usize]);
    let is_v4 = config.remote.is_ipv4();
    let start = if is_v4 { 42 } else { 62 };
    bytes.extend((0..random.below(40)).map(|at| at as u8));
    for _ in 0..random.below(4) {
        let at = start + random.below((bytes.len() - start).min(60) as u64) as usize;
        let near = start + random.below(8) as usize;
        let at = if random.below(2) == 0 { at } else { near.min(bytes.len() - 1) };
        bytes[at] = match random.below(4) {
            0 => bytes[at] ^ (1 << random.below(8)),
            1 => [0, 4, 6, 41, 47, 0x45, 0x60, 0x7f, 0x80, 0xe0, 0xff][random.below(11) as usize],
            _ => random.below(256) as u8,
        };
    }
    if random.below(4) == 0 {
        bytes.truncate(start + random.below((bytes.len() - start) as u64 + 1) as usize);
    }
    if random.below(8) == 0 {
        bytes[if is_v4 { 29 } else { 37 }] ^= 0x40;
    }
    settle(&mut bytes, is_v4);
    bytes
}

#[test]
fn what_is_dropped_is_what_the_engine_would_refuse_for_the_same_reason() {
    let mut random = Random(3);
    let mut seen = BTreeMap::new();
    for configs in ports() {
        let Some(path) = loaded(&configs) else { return };
        let is_v4 = configs[0].local.is_ipv4();
        let start = if is_v4 { 42 } else { 62 };
        for _ in 0..1500 {
            let mut bytes = spoiled(&configs, &mut random);
            let sender = match is_v4 {
                true => IpAddr::from(*bytes[26..].first_chunk::<4>().unwrap()),
                false => IpAddr::from(*bytes[22..].first_chunk::<16>().unwrap()),
            };
            let expected = refusal(&configs, sender, &bytes[start..]);
            // Ethernet pads short frames.
            if random.below(4) == 0 {
                bytes.extend([0; 30]);
            }
            let before: BTreeMap<_, _> = path.dropped().unwrap().into_iter().collect();
            // What is taken is another packet afterwards.
            let once = path.run(&bytes, 1).unwrap().result;
            if once != 7 {
                path.run(&bytes, 3).unwrap();
            }
            for (name, count) in path.dropped().unwrap() {
                if before.get(name) != Some(&count) {
                    assert_eq!(Some(name), expected, "{bytes:02x?} of {configs:?}");
                    *seen.entry(name).or_insert(0) += 1;
                }
            }
            if expected == Some("unknown_peer") || expected == Some("vni") {
                assert_ne!(once, 7, "{bytes:02x?} of {configs:?}");
            }
        }
    }
    let names: BTreeSet<_> = seen.keys().copied().collect();
    let all = [
        "unknown_peer",
        "gue_version",
        "gue_flags",
        "gue_header_len",
        "vxlan_no_vni",
        "vxlan_flags",
        "geneve_version",
        "geneve_control",
        "vni",
        "inner_protocol",
        "inner_malformed",
        "inner_source",
        "gre_malformed",
        "gre_mismatch",
    ];
    assert_eq!(names, all.into_iter().collect(), "{seen:?}");
}

/// Tests that one dropped packet in a millisecond is left to the daemon, and that every packet is counted once.
#[test]
fn one_packet_of_a_millisecond_is_left_and_all_are_counted() {
    let config = kinds().into_iter().find(|config| matches!(config.carrier, Carrier::Vxlan { .. })).unwrap();
    let Some(path) = loaded(&[config]) else { return };
    let (_, mut bytes) = frame(&config, 4);
    bytes[29] ^= 0x40;
    settle(&mut bytes, true);
    let begin = Instant::now();
    const RUNS: u32 = 200_000;
    path.run(&bytes, RUNS).unwrap();
    let most = begin.elapsed().as_millis() as u64 + 2;
    let dropped = path.dropped().unwrap();
    let left = path.unclaimed().unwrap().left.iter().find(|(name, _)| *name == "no_tunnel").unwrap().1;
    assert_eq!(dropped, [("unknown_peer", u64::from(RUNS) - left)]);
    assert!(left > 0 && left <= most, "{left} left in {most} ms");
}

/// Tests that a GRO aggregate is left to the daemon, whether or not its lengths show that it is one.
#[test]
fn joined_datagrams_are_left_to_the_daemon() {
    for config in kinds().into_iter().filter(|config| config.carrier != Carrier::Bare) {
        let Some(path) = loaded(&[config]) else { return };
        let is_v4 = config.remote.is_ipv4();
        let start = if is_v4 { 42 } else { 62 };
        let version = crate::form::versions(config.mode)[0];
        let (_, good) = frame(&config, version);
        let mut joined = good.clone();
        for _ in 0..3 {
            joined.extend_from_slice(&good[start..]);
        }
        settle(&mut joined, is_v4);
        let size = good.len() - start;
        let mut context = [0_u8; 192];
        context[164..168].copy_from_slice(&4_u32.to_ne_bytes());
        context[176..180].copy_from_slice(&(size as u32).to_ne_bytes());
        for context in [&[][..], &context] {
            let ran = path.run_in(&joined, context).unwrap();
            assert_eq!(ran.result, NEXT, "{config:?}");
            assert_eq!(ran.packet, joined, "{config:?}");
        }
        let left: u64 = path.counts(0).unwrap().left.iter().map(|(_, count)| count).sum();
        assert_eq!(left, 2, "{config:?}");
        // Nor are they dropped for what their first is.
        joined[if is_v4 { 29 } else { 37 }] ^= 0x40;
        settle(&mut joined, is_v4);
        for _ in 0..3 {
            assert_eq!(path.run_in(&joined, &context).unwrap().result, NEXT, "{config:?}");
        }
    }
}
