//! Tests of the programs on the running kernel: they are loaded, and run on packets by `BPF_PROG_TEST_RUN`.

mod judged;
mod prefixes;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use segue::encap::{Carrier, Config, GreOptions, Mode};

use crate::code::{DROP, LICENCE, NEXT};
use crate::sys::{self, ProgramKind};
use crate::{Error, Filters, Hook, Listener, Path, Peer, PeerCounts, PeerPath, Route, Surroundings};
use crate::{assembler, attach, is_left_over, path};

const VXLAN: Carrier = Carrier::Vxlan { vni: 0x0012_3456, remcsum: false, takes_remcsum: false };

/// Returns every kind of tunnel that the in-kernel path carries in both directions, by outer family.
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

/// Returns the loaded path, or records why this machine cannot load it.
#[track_caller]
fn permitted<T>(loaded: Result<T, Error>) -> Option<T> {
    match loaded {
        Ok(path) => Some(path),
        Err(Error::Refused(step, error)) if error.raw_os_error() == Some(libc::EPERM) => {
            segue_lab::skip_this_test(&format!("{step}: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Loads the in-kernel path, or records why this machine cannot load it.
fn loaded(configs: &[Config]) -> Option<Path> {
    let mut path = permitted(Path::load(configs, &[50_000, 50_001]))?;
    path.fill_peers(1).unwrap();
    path.switch(true).unwrap();
    Some(path)
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
                if run.result == NEXT {
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
        let Some(mut path) = loaded(&[config]) else { return };
        let version = crate::form::versions(config.mode)[0];
        let (at, good) = frame(&config, version);
        assert_eq!(path.run(&good, 1).unwrap().result, 7, "{config:?}");
        let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let result = path.run(&bytes, 1).unwrap().result;
            assert!([NEXT, DROP].contains(&result), "{what}: {result} {config:?}");
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
        if version == 4 {
            refused("a header inside that is longer than its packet", &|bytes| bytes[at] = 0x46);
        } else if !config.mode.is_ethernet() {
            refused("hop-by-hop options inside, of which nothing is there", &|bytes| bytes[at + 6] = 0);
        }
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
        } else {
            refused("another outer version", &|bytes| bytes[14] ^= 0x20);
        }
        path.switch(false).unwrap();
        assert_eq!(path.run(&good, 1).unwrap().result, NEXT, "switched off");
    }
}

#[test]
fn a_frame_that_has_come_back_is_left_to_the_daemon() {
    for config in kinds().into_iter().filter(|config| config.mode.is_ethernet()) {
        let Some(mut path) = loaded(&[config]) else { return };
        let (at, good) = frame(&config, 4);
        let source = *good[at - 8..].first_chunk::<6>().unwrap();
        path.set_station(0, Some(source)).unwrap();
        assert_eq!(path.run(&good, 1).unwrap().result, NEXT, "{config:?}");
        let left = path.counts(0).unwrap().left;
        assert!(left.contains(&("inner_source", 1)), "{config:?}: {left:?}");
        for byte in 0..6 {
            let mut other = source;
            other[byte] ^= 4;
            path.set_station(0, Some(other)).unwrap();
            assert_eq!(path.run(&good, 1).unwrap().result, 7, "{other:?} {config:?}");
        }
    }
}

/// Returns the ones-complement sum of words in network byte order and of a number, folded to 16 bits.
fn folded(bytes: &[u8], more: usize) -> u16 {
    let words = bytes.as_chunks::<2>().0.iter().map(|pair| usize::from(u16::from_be_bytes(*pair)));
    let sum = words.sum::<usize>() + more;
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// Returns a received frame with an outer checksum and, inside, a packet of TCP or UDP whose checksum is unfinished, as
/// another tunnel of the same machine sends it; the offsets of the outer UDP header, of the inner transport header and
/// of its checksum.
fn unfinished(config: &Config, version: u8, protocol: u8) -> (Vec<u8>, [usize; 3]) {
    let (at, mut bytes) = frame(config, version);
    bytes.extend([7; 28]);
    let total = bytes.len();
    let (outer, outer_v4) = if config.remote.is_ipv4() { (34, true) } else { (54, false) };
    let inner = at + if version == 4 { 20 } else { 40 };
    let field = inner + if protocol == 6 { 16 } else { 6 };
    let put =
        |bytes: &mut [u8], at: usize, word: usize| bytes[at..at + 2].copy_from_slice(&(word as u16).to_be_bytes());
    let (place, behind) = if outer_v4 { (16, 14) } else { (18, 54) };
    put(&mut bytes, place, total - behind);
    put(&mut bytes, outer + 4, total - outer);
    let (len, next, behind) = if version == 4 { (at + 2, at + 9, at) } else { (at + 4, at + 6, inner) };
    put(&mut bytes, len, total - behind);
    bytes[next] = protocol;
    [14, at].into_iter().for_each(|ip| set_ecn(&mut bytes, ip, 0));
    let addresses = if version == 4 { at + 12..inner } else { at + 8..inner };
    let pseudo = folded(&bytes[addresses], usize::from(protocol) + total - inner);
    put(&mut bytes, field, pseudo.into());
    put(&mut bytes, outer + 6, 0);
    let addresses = folded(&bytes[if outer_v4 { 26..34 } else { 22..54 }], 17 + total - outer);
    let check = !folded(&bytes[outer..inner], usize::from(addresses) + usize::from(!pseudo));
    put(&mut bytes, outer + 6, if check == 0 { 0xffff } else { check.into() });
    (bytes, [outer, inner, field])
}

#[test]
fn the_outer_checksum_of_an_unfinished_packet_is_verified_by_its_headers() {
    let in_udp = |config: &Config| config.carrier != Carrier::Bare;
    for config in kinds().into_iter().filter(in_udp) {
        let Some(path) = loaded(&[config]) else { return };
        for &version in crate::form::versions(config.mode) {
            for protocol in [6, 17] {
                let (good, [outer, inner, field]) = unfinished(&config, version, protocol);
                let result = |change: &dyn Fn(&mut [u8])| {
                    let mut bytes = good.clone();
                    change(&mut bytes);
                    path.run(&bytes, 1).unwrap().result
                };
                let what = format!("{version} {protocol} {config:?}");
                assert_eq!(result(&|_| {}), 7, "{what}");
                for at in (outer..inner).chain([field, field + 1]) {
                    assert_eq!(result(&|bytes| bytes[at] ^= 1), NEXT, "byte {at} of {what}");
                }
                // What the inner checksum covers is the receiver's to verify.
                assert_eq!(result(&|bytes| bytes[field + 2] ^= 1), 7, "{what}");
                // A finished checksum, of this packet or another, proves nothing.
                assert_eq!(result(&|bytes| bytes[field..field + 2].copy_from_slice(&[0x12, 0x34])), NEXT, "{what}");
            }
            let (icmp, _) = unfinished(&config, version, 1);
            assert_eq!(path.run(&icmp, 1).unwrap().result, NEXT, "{version} {config:?}");
        }
    }
}

fn median(mut nanos: Vec<u32>) -> u32 {
    nanos.sort_unstable();
    nanos[nanos.len() / 2]
}

/// Tests that each of ten thousand peers is found, and prints the cost of a lookup, which `make figures
/// ONLY=fastpath-peers` reads.
#[test]
fn ten_thousand_peers_are_found_like_one() {
    let peers = |count: u32| -> Vec<Config> {
        let local = IpAddr::from([198, 18, 0, 1]);
        let remote = |n: u32| IpAddr::from((0x0a00_0000 + n * 7919 % 0xff_ffff + 1).to_be_bytes());
        (0..count).map(|n| Config::new(Mode::Ipip, Carrier::Bare, local, remote(n))).collect()
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
            assert_eq!(ran.result, NEXT);
            ran.nanos
        };
        let (once, again) = (median(frames.iter().map(taken).collect()), median((0..15).map(judged).collect()));
        println!("peers {count}: random {once} ns per packet, the same again {again} ns without decapsulation");
    }
}

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Returns the listeners of a peer table, by outer family.
fn listeners(is_v4: bool) -> Vec<Listener> {
    let local: IpAddr = if is_v4 { "198.18.0.1" } else { "2001:db8::1" }.parse().unwrap();
    let forms = [(Mode::Ethernet, VXLAN), (Mode::Ip, Carrier::Gue { remcsum: true }), (Mode::Ip, Carrier::Fou)];
    let of = |(port, (mode, carrier)): (u16, (Mode, Carrier))| Listener {
        config: Config { port, dport: port, zero_csum6: true, ..Config::new(mode, carrier, local, local) },
        sources: vec![50_000],
    };
    (9000..).zip(forms).map(of).collect()
}

/// Loads the in-kernel path of a table with the given peers, or records why this machine cannot load it.
fn loaded_table(listeners: &[Listener], peers: &[Peer]) -> Option<PeerPath> {
    let mut path = permitted(PeerPath::load(listeners, STATION, 20_000))?;
    path.replace(peers).unwrap();
    path.on_loopback().unwrap();
    Some(path)
}

/// Returns a peer without outer checksum, with the encapsulation of a listener.
fn peer(listeners: &[Listener], listener: usize, prefix: (&str, u8), remote: IpAddr) -> Peer {
    let base = listeners[listener].config;
    let carrier = if let Carrier::Gue { .. } = base.carrier { Carrier::Gue { remcsum: false } } else { base.carrier };
    let config = Config { remote, carrier, csum: false, ..base };
    Peer { prefix: (prefix.0.parse().unwrap(), prefix.1), listener, config, mac: [2, 0, 0, 0, 0, 7] }
}

#[test]
fn each_peer_of_a_table_is_found_by_the_longest_prefix_and_may_send_what_is_its_own() {
    for is_v4 in [true, false] {
        let listeners = listeners(is_v4);
        let remotes = if is_v4 { ["198.18.0.2", "198.18.0.3"] } else { ["2001:db8::2", "2001:db8::3"] };
        let [near, other]: [IpAddr; 2] = remotes.map(|text| text.parse().unwrap());
        for (index, version) in (0..listeners.len()).flat_map(|index| [(index, 4), (index, 6)]) {
            // The sources of the samples are 198.18.1.1 and 2001:db8::1.
            let (net, host) = if version == 4 {
                (("198.18.1.0", 24), ("198.18.1.1", 32))
            } else {
                (("2001:db8::", 64), ("2001:db8::1", 128))
            };
            let wide = if version == 4 { ("0.0.0.0", 0) } else { ("::", 0) };
            let config = |remote| Config { remote, ..listeners[index].config };
            // What a peer is sent may be of another encapsulation.
            let good = peer(&listeners, (index + 1) % 3, net, near);
            let Some(mut path) = loaded_table(&listeners, &[good]) else { return };
            assert_eq!((path.served().kernel, path.served().daemon.len()), (1, 0));
            let (frame, bare, _) = path.sample(&config(near), version).unwrap();
            let (spoofed, _, _) = path.sample(&config(other), version).unwrap();
            let run = |path: &PeerPath, frame: &[u8]| path.run(index, frame, 1).unwrap();
            let left = |path: &PeerPath, why| {
                let all = path.counts(index).unwrap().left;
                all.iter().find(|(name, _)| *name == why).map(|(_, count)| *count)
            };
            let what = format!("{index} {version} {near}");
            let taken = run(&path, &frame);
            assert_eq!((taken.result, &taken.packet[14..]), (7, &bare[..]), "{what}");
            let counted = PeerCounts { received: [1, bare.len() as u64], ..PeerCounts::default() };
            assert_eq!(path.peer_counts(good.prefix).unwrap(), Some(counted), "{what}");
            assert_eq!(path.counts(index).unwrap().received.segments, 1);
            for other in (0..3).filter(|other| *other != index) {
                assert_eq!(path.run(other, &frame, 1).unwrap().result, NEXT, "{what}: the port of {other}");
            }
            assert_eq!((run(&path, &spoofed).result, left(&path, "peer_source")), (NEXT, Some(1)), "{what}");

            // A host route to the other, which then may send and the first may not; and a default route to it, which
            // changes nothing.
            for (prefix, mine, others) in [(host, NEXT, 7), (wide, 7, NEXT)] {
                path.replace(&[good, peer(&listeners, 0, prefix, other)]).unwrap();
                assert_eq!(
                    [run(&path, &frame).result, run(&path, &spoofed).result],
                    [mine, others],
                    "{what} {prefix:?}"
                );
            }
            // With that route a peer still has no source that no other host may have.
            path.replace(&[peer(&listeners, 0, wide, near)]).unwrap();
            let mut martian = frame.clone();
            let (source, group) = if version == 4 { (12, 0xe1) } else { (8, 0xff) };
            martian[frame.len() - bare.len() + source] = group;
            assert_eq!([run(&path, &frame).result, run(&path, &martian).result], [7, NEXT], "{what}");
            assert_eq!(left(&path, "inner_source"), Some(1), "{what}");
            // Entries that ask for the daemon.
            for (csum, carrier) in [(true, good.config.carrier), (true, Carrier::Gue { remcsum: true })] {
                let listener = if let Carrier::Gue { .. } = carrier { 1 } else { good.listener };
                let mode = listeners[listener].config.mode;
                let before = left(&path, "peer_by_daemon");
                let config = Config { csum, carrier, mode, ..good.config };
                path.replace(&[Peer { config, listener, ..good }]).unwrap();
                assert_eq!((path.served().kernel, path.served().daemon.values().sum()), (0, 1_u64));
                assert_eq!(run(&path, &frame).result, NEXT, "{what}");
                assert_eq!(left(&path, "peer_by_daemon"), before.map(|count| count + 1), "{what}");
            }
            path.replace(&[good]).unwrap();
            assert_eq!(run(&path, &frame).result, 7, "{what}");
            if index == 0 {
                let at = frame.len() - bare.len() - 14;
                let changed = |at: usize| {
                    let mut bytes = frame.clone();
                    bytes[at] ^= 4;
                    bytes
                };
                assert_eq!(run(&path, &changed(at + 5)).result, NEXT, "a frame for another station");
                assert_eq!(left(&path, "not_for_us"), Some(1));
                assert_eq!(run(&path, &changed(at - 2)).result, NEXT, "another network");
                assert_eq!(left(&path, "peer_network"), Some(1));
                // A peer with VXLAN may send its own network alone.
                let vni = Carrier::Vxlan { vni: 0x0012_3452, remcsum: false, takes_remcsum: false };
                let own = peer(&listeners, 0, net, near);
                path.replace(&[Peer { config: Config { carrier: vni, ..own.config }, ..own }]).unwrap();
                assert_eq!([run(&path, &frame).result, run(&path, &changed(at - 2)).result], [NEXT, 7]);
            }
            path.replace(&[]).unwrap();
            assert_eq!(run(&path, &frame).result, NEXT, "{what}: an empty table");
            assert_eq!(path.peer_counts(good.prefix).unwrap(), None);
        }
    }
}

#[test]
fn a_route_is_asked_for_once_for_each_remote_and_new_ones_come_first() {
    let listeners = listeners(true);
    let remote = |n: u8| IpAddr::from([198, 18, 7, n]);
    let of = |n: u8, prefix: &str| peer(&listeners, 2, (prefix, 32), remote(n));
    let Some(mut path) = loaded_table(&listeners, &[of(1, "10.0.0.1"), of(1, "10.0.0.2"), of(2, "10.0.0.3")]) else {
        return;
    };
    let route = crate::Route { link: 1, mtu: 1500 };
    assert_eq!(path.remotes(9, 9), [remote(1), remote(2)]);
    assert!(path.reroute(remote(1), route).unwrap() && !path.reroute(remote(1), route).unwrap());
    assert_eq!(path.remotes(1, 0), [remote(2)]);
    path.reroute(remote(2), route).unwrap();
    assert_eq!([(); 3].map(|()| path.remotes(9, 1)).concat(), [remote(1), remote(2), remote(1)]);
    // A remote without prefixes is forgotten, and is new when it comes again; of new ones the first comes first.
    path.replace(&[of(2, "10.0.0.1"), of(3, "10.0.0.2")]).unwrap();
    assert_eq!(path.remotes(9, 0), [remote(3)]);
    path.replace(&[of(1, "10.0.0.1"), of(3, "10.0.0.2")]).unwrap();
    assert_eq!(path.remotes(9, 0), [remote(3), remote(1)]);
}

/// Tests that a peer is found among ten thousand as if it were alone. What that costs: `make figures
/// ONLY=fastpath-peers` reads the lines.
#[test]
fn ten_thousand_peers_of_a_table_are_found_like_one() {
    let listeners = listeners(true);
    let remote = IpAddr::from([198, 18, 0, 2]);
    for (what, bits) in [("hosts", 32), ("prefixes", 24)] {
        for count in [1_u32, 10_000] {
            let inner = |n: u32| 0x0a00_0000 + ((n % count) << (32 - bits));
            let of = |n| peer(&listeners, 2, (&std::net::Ipv4Addr::from(inner(n)).to_string(), bits as u8), remote);
            let peers: Vec<Peer> = (0..count).map(of).collect();
            let Some(path) = loaded_table(&listeners, &peers) else { return };
            let (frame, bare, _) = path.sample(&Config { remote, ..listeners[2].config }, 4).unwrap();
            let at = frame.len() - bare.len();
            let from = |n: u32| {
                let mut bytes = frame.clone();
                bytes[at + 12..at + 16].copy_from_slice(&inner(n.wrapping_mul(2_654_435_761)).to_be_bytes());
                bytes
            };
            let taken = |n| {
                let ran = path.run(2, &from(n), 1).unwrap();
                assert_eq!(ran.result, 7);
                ran.nanos
            };
            // As above: congestion was marked outside, and the inner packet knows nothing of that.
            let judged = |n| {
                let mut bytes = from(n);
                set_ecn(&mut bytes, 14, 3);
                let ran = path.run(2, &bytes, 10_000).unwrap();
                assert_eq!(ran.result, NEXT);
                ran.nanos
            };
            let (once, again) = (median((0..4000).map(taken).collect()), median((0..15).map(judged).collect()));
            println!(
                "table of {what} {count}: random {once} ns per packet, the same again {again} ns without decapsulation"
            );
        }
    }
}

#[test]
fn a_gate_leads_to_its_program_until_the_map_is_closed() {
    let Some((map, gate)) = permitted(attach::gate().map_err(|error| Error::Refused("loading a gate", error))) else {
        return;
    };
    let mut code = assembler::Assembler::default();
    code.exit(DROP);
    let program =
        sys::load(ProgramKind::Classifier, &code.finish().unwrap(), LICENCE, "segue_test").expect("a program");
    let result = || sys::test_run(gate.as_fd(), &[0; 64], &[], 1).unwrap().result;
    let number = sys::number(gate.as_fd()).unwrap();
    assert_eq!(result(), NEXT);
    sys::update(map.as_fd(), &[0; 4], &program.as_raw_fd().to_ne_bytes()).unwrap();
    assert_eq!(result(), DROP);
    match is_left_over(number) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        other => assert!(!other.unwrap()),
    }
    drop(map);
    // The kernel empties the map a little later.
    let begin = Instant::now();
    while result() != NEXT && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(result(), NEXT);
    match is_left_over(number) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        other => assert!(other.unwrap()),
    }
}

/// A means of adding a filter that runs it on a packet instead.
struct Ran(Vec<i32>);

impl Filters for Ran {
    fn add(&mut self, _interface: u32, _hook: Hook, program: BorrowedFd<'_>, _name: &str) -> io::Result<()> {
        self.0.push(sys::test_run(program, &[0; 64], &[], 1)?.result);
        Ok(())
    }
}

#[test]
fn a_gate_leads_to_its_program_before_it_is_attached() {
    let mut code = assembler::Assembler::default();
    code.exit(DROP);
    let loaded = sys::load(ProgramKind::Classifier, &code.finish().unwrap(), LICENCE, "segue_test");
    let Some(program) = permitted(loaded.map_err(|error| Error::Refused("loading a program", error))) else { return };
    let mut ran = Ran(Vec::new());
    attach::attach_gate(program.as_fd(), (1, Hook::Egress), "segue_test", &mut ran).unwrap();
    assert_eq!(ran.0, [DROP]);
}

#[test]
fn programs_that_read_the_entry_of_a_tunnel_have_ended_before_the_next_is_written() {
    let remotes = (1..=8).map(|last| IpAddr::from([198, 18, 0, last]));
    let local = IpAddr::from([198, 18, 0, 9]);
    let config = |remote| Config { csum: false, ..Config::new(Mode::Ipip, Carrier::Bare, local, remote) };
    let configs: Vec<Config> = remotes.map(config).collect();
    let Some(mut path) = loaded(&configs) else { return };
    let seen = |index, mtu| Surroundings { index, route: Route { link: 1, mtu }, addresses: None };
    for (some, waits) in [(0..1, 1), (0..1, 1), (0..3, 3), (0..8, 4), (0..8, 4)] {
        let found: Vec<_> = some.map(|index| seen(index, 1500)).collect();
        path.follow(&found).unwrap();
        // Eight minus three at once, with the path off.
        assert_eq!((path.waits(), path.is_on()), (waits, true), "{found:?}");
    }
    path.switch(false).unwrap();
    path.follow(&[seen(0, 1400)]).unwrap();
    assert_eq!(path.waits(), 4, "none reads");
}
