//! Tests of the programs on the running kernel: they are loaded, and run on packets by `BPF_PROG_TEST_RUN`.

use std::net::IpAddr;

use segue::encap::{Carrier, Config, GreOptions, Mode};

use crate::{Error, Path, path};

const VXLAN: Carrier = Carrier::Vxlan { vni: 0x0012_3456, remcsum: false, takes_remcsum: false };

/// Every kind of tunnel that both directions of the path carry, by outer family.
fn kinds() -> Vec<Config> {
    let key = Mode::Gre(GreOptions { ikey: Some(7), okey: Some(8), ..GreOptions::default() });
    let gre = Mode::Gre(GreOptions::default());
    let gue = Carrier::Gue { remcsum: false };
    let mut all = Vec::new();
    for (local, remote) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")] {
        let [local, remote]: [IpAddr; 2] = [local, remote].map(|text| text.parse().unwrap());
        for mode in [Mode::Ipip, Mode::Sit, Mode::Ip, gre, key] {
            for carrier in [Carrier::Bare, Carrier::Fou, gue] {
                let plain = Config { csum: false, zero_csum6: true, ..Config::new(mode, carrier, local, remote) };
                all.push(plain);
            }
        }
        for carrier in [VXLAN, Carrier::Geneve { vni: 0x00ff_fffe }] {
            let config = Config::new(Mode::Ethernet, carrier, local, remote);
            all.push(Config { csum: false, zero_csum6: true, ..config });
        }
    }
    all
}

/// Loads the path, or notes why this machine cannot.
fn loaded(configs: &[Config]) -> Option<Path> {
    match Path::load(configs, &[50_000, 50_001]) {
        Ok(path) => {
            path.fill_peers(1).unwrap();
            path.switch(true).unwrap();
            Some(path)
        }
        Err(Error::Refused(step, error)) if error.raw_os_error() == Some(libc::EPERM) => {
            segue_lab::skip_this_test(&format!("{step}: {error}"));
            None
        }
        Err(error) => panic!("{configs:?}: {error}"),
    }
}

#[test]
fn the_kernel_takes_the_programs_of_every_kind_and_they_remove_what_the_engine_adds() {
    for config in kinds() {
        let Some(path) = loaded(&[config]) else { return };
        assert_eq!(path.partial(), []);
        assert_eq!(path.counts(0).unwrap().received.units, 0, "the trials do not count");
    }
}

/// Returns the offset of the inner IP header in a received frame of the tunnel, and the frame.
fn frame(config: &Config, version: u8) -> (usize, Vec<u8>) {
    let (frame, bare) = path::received(config, version).unwrap();
    let link = if config.mode.is_ethernet() { 14 } else { 0 };
    (frame.len() - bare.len() + link, frame)
}

/// Sets the ECN field of the IP header at `at`, and its header checksum.
fn set_ecn(frame: &mut [u8], at: usize, ecn: u8) {
    if frame[at] >> 4 == 6 {
        frame[at + 1] = frame[at + 1] & 0xcf | ecn << 4;
        return;
    }
    frame[at + 1] = frame[at + 1] & 0xfc | ecn;
    frame[at + 10..at + 12].fill(0);
    let words = frame[at..at + 20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let check = !(((folded & 0xffff) + (folded >> 16)) as u16);
    frame[at + 10..at + 12].copy_from_slice(&check.to_be_bytes());
}

fn ecn_of(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 6 { packet[1] >> 4 & 3 } else { packet[1] & 3 }
}

#[test]
fn congestion_marks_are_combined_as_by_the_engine_or_left_to_it() {
    let (mut marked, mut left) = (0, 0);
    for config in kinds().into_iter().step_by(2) {
        let Some(path) = loaded(&[config]) else { return };
        for &version in crate::form::versions(config.mode) {
            for (outer, inner) in (0..4).flat_map(|outer| (0..4).map(move |inner| (outer, inner))) {
                let (at, mut bytes) = frame(&config, version);
                set_ecn(&mut bytes, 14, outer);
                set_ecn(&mut bytes, at, inner);
                let run = path.run(&bytes, 1).unwrap();
                let combined = segue::encap::combine_ecn(inner, outer);
                if run.result == crate::code::NEXT {
                    // The daemon drops the packet, or changes ECT(0) to ECT(1).
                    assert!(combined.is_none() || (inner, outer) == (2, 1), "{config:?} {inner} in {outer}");
                    left += 1;
                } else {
                    assert_eq!(Some(ecn_of(&run.packet[14..])), combined, "{config:?} {inner} in {outer}");
                    marked += u8::from(combined != Some(inner));
                }
            }
        }
    }
    assert!(marked > 0 && left > 0, "{marked} marked, {left} left");
}

#[test]
fn what_is_not_certain_is_left_to_the_daemon() {
    for config in kinds() {
        let Some(path) = loaded(&[config]) else { return };
        let version = crate::form::versions(config.mode)[0];
        let (at, good) = frame(&config, version);
        assert_eq!(path.run(&good, 1).unwrap().result, 7, "{config:?}");
        let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            assert_eq!(path.run(&bytes, 1).unwrap().result, crate::code::NEXT, "{what}: {config:?}");
        };
        let (source, destination, last) = if config.remote.is_ipv4() { (29, 33, 14) } else { (37, 53, 14) };
        refused("another sender", &|bytes| {
            bytes[source] ^= 0x40;
            set_ecn(bytes, last, 0);
        });
        refused("another destination", &|bytes| {
            bytes[destination] ^= 0x40;
            set_ecn(bytes, last, 0);
        });
        refused("a byte is missing", &|bytes| bytes.truncate(bytes.len() - 1));
        refused("another version inside", &|bytes| bytes[at] ^= 0x20);
        let (len, source) = if version == 4 { (at + 3, at + 12) } else { (at + 5, at + 8) };
        refused("a length inside that is too long", &|bytes| bytes[len] += 1);
        if config.mode.is_ethernet() {
            refused("a group as the station inside", &|bytes| bytes[at - 8] |= 1);
            refused("no station inside", &|bytes| bytes[at - 8..at - 2].fill(0));
            refused("ARP", &|bytes| bytes[at - 1] = 6);
            refused("a VLAN tag", &|bytes| bytes[at - 2] = 0x81);
            refused("a reserved bit", &|bytes| bytes[at - 15] = 1);
            refused("a flag", &|bytes| bytes[at - 21] |= 0x20);
            refused("another network", &|bytes| bytes[at - 16] ^= 1);
        } else {
            refused("a group as the source inside", &|bytes| bytes[source] = if version == 4 { 0xe1 } else { 0xff });
        }
        if config.remote.is_ipv4() {
            refused("a wrong header checksum", &|bytes| bytes[24] ^= 1);
            refused("a fragment", &|bytes| {
                bytes[20] = 0x20;
                set_ecn(bytes, 14, 0);
            });
        }
        path.switch(false).unwrap();
        assert_eq!(path.run(&good, 1).unwrap().result, crate::code::NEXT, "switched off");
    }
}

/// Each of ten thousand peers is found. What that costs: `make figures ONLY=fastpath` reads the lines.
#[test]
fn ten_thousand_peers_are_found_like_one() {
    let peers = |count: u32| -> Vec<Config> {
        let local = IpAddr::from([198, 18, 0, 1]);
        let remote = |n: u32| IpAddr::from((0x0a00_0000 + n * 7919 % 0xff_ffff + 1).to_be_bytes());
        (0..count).map(|n| Config::new(Mode::Ipip, Carrier::Bare, local, remote(n))).collect()
    };
    let median = |mut nanos: Vec<u32>| {
        nanos.sort_unstable();
        nanos[nanos.len() / 2]
    };
    for count in [1, 10_000] {
        let configs = peers(count);
        let Some(path) = loaded(&configs) else { return };
        let any = |n: u32| &configs[(n.wrapping_mul(2_654_435_761) % count) as usize];
        // Packets of random senders, so that the entries are not those of the cache, decapsulated and handed on. A
        // second run would see the packet that the first has made.
        let frames: Vec<Vec<u8>> = (0..4000).map(|n| frame(any(n), 4).1).collect();
        let taken = |frame: &Vec<u8>| {
            let ran = path.run(frame, 1).unwrap();
            assert_eq!(ran.result, 7, "{frame:?}");
            ran.nanos
        };
        // A packet that is found and judged, but left as it is, can be run again and again: congestion was marked
        // outside, and the inner packet knows nothing of that.
        let judged = |n| {
            let (at, mut bytes) = frame(any(n), 4);
            set_ecn(&mut bytes, 14, 3);
            set_ecn(&mut bytes, at, 0);
            let ran = path.run(&bytes, 10_000).unwrap();
            assert_eq!(ran.result, crate::code::NEXT);
            ran.nanos
        };
        let (once, again) = (median(frames.iter().map(taken).collect()), median((0..15).map(judged).collect()));
        println!("peers {count}: random {once} ns a packet, the same again {again} ns without decapsulation");
    }
}
