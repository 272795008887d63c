//! Tests of the lookup of prefixes: all lengths, changes of the table meanwhile, and the cost of each length.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use segue::encap::Config;

use super::*;

/// A generator of random numbers, the same in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Returns the first `len` bits of an address with the lowest bits of `last`, in the upper bits of a number, as a
/// prefix of this length.
fn masked(address: u128, len: u8) -> u128 {
    address & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

fn to_ip(address: u128, is_v4: bool) -> IpAddr {
    if is_v4 { Ipv4Addr::from((address >> 96) as u32).into() } else { Ipv6Addr::from(address).into() }
}

/// Puts an inner source address into a frame whose inner IP header is at `at`.
fn with_source(frame: &[u8], at: usize, source: IpAddr) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    match source {
        IpAddr::V4(source) => bytes[at + 12..at + 16].copy_from_slice(&source.octets()),
        IpAddr::V6(source) => bytes[at + 8..at + 24].copy_from_slice(&source.octets()),
    }
    bytes
}

#[test]
fn the_longest_prefix_of_every_length_is_found() {
    let listeners = listeners(true);
    let remote = IpAddr::from([198, 18, 0, 2]);
    let mut random = Random(1);
    for is_v4 in [true, false] {
        let bits: u8 = if is_v4 { 32 } else { 128 };
        let Some(mut path) = loaded_table(&listeners, &[]) else { return };
        let (frame, bare, _) =
            path.sample(&Config { remote, ..listeners[2].config }, if is_v4 { 4 } else { 6 }).unwrap();
        let at = frame.len() - bare.len();
        // Prefixes of two addresses with 10 bits in common: all lengths, then fewer and fewer, then others.
        let first = (0x0a55_5555_u128 << 96) | 0x5555_5555_5555_5555_5555_5555;
        let addresses = [first, first ^ (1 << (127 - 10))];
        let mut found = BTreeMap::new();
        for share in [1, 2, 4, 16, 3, 40] {
            let lengths = (0..=bits).flat_map(|len| addresses.map(|address| (masked(address, len), len)));
            let mut table: Vec<_> = lengths.filter(|_| random.below(share) == 0).collect();
            table.sort_unstable();
            table.dedup();
            let of =
                |(address, len): &(u128, u8)| peer(&listeners, 2, (&to_ip(*address, is_v4).to_string(), *len), remote);
            path.replace(&table.iter().map(of).collect::<Vec<_>>()).unwrap();
            for _ in 0..400 {
                // Equal to one of the addresses up to a random bit.
                let kept = random.below(u64::from(bits) + 1) as u8;
                let flipped = if kept < bits { 1 << (127 - kept) } else { 0 };
                let address = addresses[random.below(2) as usize] ^ flipped;
                let source = to_ip(address, is_v4);
                let longest = (0..=bits).rev().map(|len| (masked(address, len), len)).find(|it| table.contains(it));
                let ran = path.run(2, &with_source(&frame, at, source), 1).unwrap();
                assert_eq!(ran.result, if longest.is_some() { 7 } else { NEXT }, "{source} of {longest:?}");
                if let Some((address, len)) = longest {
                    *found.entry((address, len)).or_insert(0) += 1;
                    let counted = path.peer_counts((to_ip(address, is_v4), len)).unwrap().unwrap();
                    assert!(counted.received[0] > 0, "{source} is of {longest:?}");
                }
            }
            let counted = |(address, len): &(u128, u8)| {
                path.peer_counts((to_ip(*address, is_v4), *len)).unwrap().unwrap().received[0]
            };
            let all: u64 = table.iter().map(counted).sum();
            let expected: u64 = table.iter().map(|prefix| found.get(prefix).copied().unwrap_or(0)).sum();
            assert_eq!(all, expected, "no prefix has counted what is another's");
            found.retain(|prefix, _| table.contains(prefix));
        }
        path.replace(&[]).unwrap();
        assert_eq!(path.run(2, &with_source(&frame, at, to_ip(first, is_v4)), 1).unwrap().result, NEXT);
    }
}

#[test]
fn no_packet_misses_its_prefix_while_other_lengths_come_and_go() {
    let listeners = listeners(true);
    let remote = IpAddr::from([198, 18, 0, 2]);
    let Some(mut path) = loaded_table(&listeners, &[]) else { return };
    let (frame, bare, _) = path.sample(&Config { remote, ..listeners[2].config }, 4).unwrap();
    // The packet is judged and left as it is, so that the program can be run on it again.
    let mut frame = with_source(&frame, frame.len() - bare.len(), [10, 85, 85, 85].into());
    set_ecn(&mut frame, 14, 3);
    let of = |prefix: &str, len| peer(&listeners, 2, (prefix, len), remote);
    let always = [of("10.0.0.0", 8), of("10.64.0.0", 10)];
    path.replace(&always).unwrap();
    let program = path.program(2).try_clone().unwrap();
    let stop = AtomicBool::new(false);
    let runs = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut runs = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                sys::test_run(program.as_fd(), &frame, &[], 20_000).unwrap();
                runs += 20_000;
            }
            runs
        });
        // Prefixes of other addresses, of longer, shorter and neighbouring lengths.
        let mut random = Random(7);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1500) {
            let mut table = always.to_vec();
            let lengths = (0..32_u8).filter(|len| ![8, 10].contains(len) && random.below(3) == 0);
            // An address that has no bit of the packet's.
            table.extend(lengths.filter(|len| *len > 0).map(|len| {
                let address = masked(0xf5aa_aaaa << 96, len);
                of(&to_ip(address, true).to_string(), len)
            }));
            path.replace(&table).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    let left = path.counts(2).unwrap().left;
    let count = |why: &str| left.iter().find(|(name, _)| *name == why).unwrap().1;
    assert_eq!((count("ecn"), count("peer_source")), (runs, 0), "of {runs} packets");
    assert!(runs > 0);
}

/// Measures the cost of a lookup for each length that does not match; `make figures ONLY=fastpath-peers` reads the
/// lines.
#[test]
fn the_peers_behind_the_shortest_of_many_lengths_are_found() {
    let listeners = listeners(true);
    let remote = IpAddr::from([198, 18, 0, 2]);
    for lengths in [1, 17_u8] {
        let of = |len: u8| {
            let address =
                if len == 8 { "10.0.0.0".to_owned() } else { to_ip(masked(0xf5aa_aaaa << 96, len), true).to_string() };
            peer(&listeners, 2, (&address, len), remote)
        };
        let peers: Vec<Peer> = (8..8 + lengths).map(of).collect();
        let Some(path) = loaded_table(&listeners, &peers) else { return };
        let (frame, bare, _) = path.sample(&Config { remote, ..listeners[2].config }, 4).unwrap();
        let mut frame = with_source(&frame, frame.len() - bare.len(), [10, 85, 85, 85].into());
        let taken = path.run(2, &frame, 1).unwrap();
        assert_eq!(taken.result, 7);
        set_ecn(&mut frame, 14, 3);
        let judged = |_| {
            let ran = path.run(2, &frame, 10_000).unwrap();
            assert_eq!(ran.result, NEXT);
            ran.nanos
        };
        let again = median((0..15).map(judged).collect());
        println!("peers behind {lengths} lengths: the same again {again} ns without decapsulation");
    }
}
