//! A relay between two hosts that loses, duplicates, reorders and damages frames, repeatably.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sys::{self, PacketSocket};
use crate::{Family, Host, LabError, Peer, link};

/// Rates of faults, each per 1000 frames; a frame suffers at most one. Only unicast IP meets faults: ARP, IPv6
/// neighbour discovery and frames to Ethernet group addresses pass untouched, since they would only cost a test seconds
/// of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Rate of dropped frames.
    pub drop: u16,
    /// Rate of frames sent twice.
    pub duplicate: u16,
    /// Rate of frames held back until one to four later frames of their direction were sent, or for at most 10 ms.
    pub reorder: u16,
    /// Rate of frames sent with exactly one bit flipped.
    pub damage: u16,
    /// Area in which the flipped bit may be.
    pub area: DamageArea,
    /// Seed of the random sequence: two relays with the same seed apply the same faults to the same frames.
    pub seed: u64,
}

/// The area of a frame in which a bit may be flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DamageArea {
    /// Damages bytes in which the receiver is sure to detect errors: those that the IPv4 header checksum or the
    /// outermost UDP, TCP, ICMP or ICMPv6 checksum covers. Left out: fields that say how much is covered (IPv4 version
    /// and header length, UDP length), the uncovered parts of an IPv6 header, Ethernet padding, a UDP checksum that
    /// would become zero (RFC 768: none), and the payload of a fragment. A frame without such a place passes untouched.
    #[default]
    Covered,
    /// Damages any bytes after the Ethernet header.
    Anywhere,
}

/// Counters of a relay for one direction; [`Counts::plus`] adds two.
/// After [`Relay::stop`]: `sent + failed == received - dropped + duplicated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of frames received.
    pub received: u64,
    /// Number of frames sent.
    pub sent: u64,
    /// Number of frames dropped.
    pub dropped: u64,
    /// Number of frames sent twice.
    pub duplicated: u64,
    /// Number of frames that at least one later frame has overtaken.
    pub reordered: u64,
    /// Number of frames with one flipped bit.
    pub damaged: u64,
    /// Number of frames the kernel refused to send.
    pub failed: u64,
    /// Number of frames lost before the relay for lack of buffer space.
    pub overruns: u64,
}

/// A third host between two others that forwards raw Ethernet frames, with [`Faults`]. All offloads are off on both
/// wires, so what it sees is what a real wire would carry. Stops on drop.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    // Keeps the wires; goes after the thread.
    _host: Host,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    faults: Mutex<Faults>,
    generation: AtomicU64,
    tallies: [Tally; 2],
}

#[derive(Debug, Default)]
struct Tally([AtomicU64; 8]);

const DEVICES: [&str; 2] = ["left", "right"];
/// Length that no frame from a link of MTU 1500 without offloads exceeds, bytes.
const FRAME_LEN: usize = 1 << 16;
const HOLD: Duration = Duration::from_millis(10);
const ETHERNET_LEN: usize = 14;

impl Relay {
    /// Joins `a` and `b` as [`crate::connect`] does, same device and addresses, with a relay in between that starts
    /// without faults.
    pub fn between(a: &Host, b: &Host) -> Result<Relay, LabError> {
        let host = Host::new("relay")?;
        // The relay's own stack must not speak on the wires.
        host.set_sysctl("ipv6/conf/default/disable_ipv6", "1")?;
        let off = ["tso", "off", "gso", "off", "tx", "off", "rx", "off", "gro", "off"];
        for (device, (end_host, end)) in DEVICES.into_iter().zip([(a, Peer::A), (b, Peer::B)]) {
            link::wire((&host, device), (end_host, link::DEVICE))?;
            link::ethtool(&host, device, &off)?;
            link::ethtool(end_host, link::DEVICE, &off)?;
            link::address(end_host, end, link::DEVICE, 0, Family::ALL)?;
            host.run("ip", &["link", "set", device, "up"])?;
            end_host.run("ip", &["link", "set", link::DEVICE, "up"])?;
        }
        link::wait_until_up(&[(a, link::DEVICE), (b, link::DEVICE), (&host, DEVICES[0]), (&host, DEVICES[1])])?;
        let open = || -> io::Result<_> { Ok([PacketSocket::open(DEVICES[0])?, PacketSocket::open(DEVICES[1])?]) };
        let sockets =
            host.enter(open)?.map_err(|source| LabError::system("open packet sockets for the relay", source))?;
        let shared = Arc::new(Shared::default());
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || pass(&sockets, &shared)
        });
        Ok(Relay { shared, thread: Some(thread), _host: host })
    }

    /// Changes the faults for the following frames and restarts their random sequence from the seed. Panics when the
    /// rates add up to more than 1000.
    pub fn set_faults(&self, faults: Faults) {
        let sum = [faults.drop, faults.duplicate, faults.reorder, faults.damage]
            .iter()
            .map(|rate| u32::from(*rate))
            .sum::<u32>();
        assert!(sum <= 1000, "fault rates add up to {sum} of 1000");
        *self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        self.shared.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the counters of the frames from A and of those from B. Frames held back count as received, not yet as
    /// sent.
    pub fn counts(&self) -> [Counts; 2] {
        self.shared.tallies.each_ref().map(Tally::read)
    }

    /// Sends the frames held back, stops, and returns the final counters as [`Relay::counts`] does.
    pub fn stop(mut self) -> Result<[Counts; 2], LabError> {
        self.end().map_err(|source| LabError::system("pass frames in the relay", source))?;
        Ok(self.counts())
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("its thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // An error cannot be reported from a destructor.
        let _ = self.end();
    }
}

#[derive(Clone, Copy)]
enum Count {
    Received,
    Sent,
    Dropped,
    Duplicated,
    Reordered,
    Damaged,
    Failed,
    Overruns,
}

impl Tally {
    fn add(&self, count: Count, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    fn read(&self) -> Counts {
        let of = |count: Count| self.0[count as usize].load(Ordering::Relaxed);
        Counts {
            received: of(Count::Received),
            sent: of(Count::Sent),
            dropped: of(Count::Dropped),
            duplicated: of(Count::Duplicated),
            reordered: of(Count::Reordered),
            damaged: of(Count::Damaged),
            failed: of(Count::Failed),
            overruns: of(Count::Overruns),
        }
    }
}

impl Counts {
    /// Returns the sums of two sets of counters.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            damaged: self.damaged + other.damaged,
            failed: self.failed + other.failed,
            overruns: self.overruns + other.overruns,
        }
    }
}

fn pass(sockets: &[PacketSocket; 2], shared: &Shared) -> io::Result<()> {
    let mut buffer = vec![0; FRAME_LEN];
    let mut directions = [Direction::default(), Direction::default()];
    let mut generation = None;
    while !shared.stop.load(Ordering::Relaxed) {
        let current = shared.generation.load(Ordering::Acquire);
        if generation != Some(current) {
            generation = Some(current);
            let faults = *shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
            for (direction, salt) in directions.iter_mut().zip(0..) {
                direction.faults = faults;
                direction.random = Random(faults.seed.wrapping_add(salt));
            }
        }
        let mut idle = true;
        for (side, direction) in directions.iter_mut().enumerate() {
            let (from, to, tally) = (&sockets[side], &sockets[1 - side], &shared.tallies[side]);
            // A bounded turn, so that one direction cannot keep the other waiting.
            for _ in 0..64 {
                let Some(len) = lenient(from.receive(&mut buffer))? else { break };
                idle = false;
                direction.frame(&mut buffer[..len], tally);
            }
            direction.expire(Instant::now());
            direction.flush(to, tally);
        }
        if idle {
            sys::wait_for_frames([&sockets[0], &sockets[1]], Duration::from_millis(3))?;
        }
    }
    for (side, direction) in directions.iter_mut().enumerate() {
        direction.release();
        direction.flush(&sockets[1 - side], &shared.tallies[side]);
        shared.tallies[side].add(Count::Overruns, sockets[side].overruns());
    }
    Ok(())
}

/// Returns `None` for an error caused by a link that is down, for instance because the host at its other end was
/// dropped first.
fn lenient(got: io::Result<Option<usize>>) -> io::Result<Option<usize>> {
    match got {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV)) => Ok(None),
        other => other,
    }
}

/// Fault state of one direction: frames go in, and a queue of frames to send comes out.
#[derive(Debug, Default)]
struct Direction {
    faults: Faults,
    random: Random,
    held: Option<Held>,
    out: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Held {
    frame: Vec<u8>,
    /// Number of later frames that must still be sent before this one.
    wait: u64,
    overtaken: bool,
    until: Instant,
}

impl Direction {
    fn frame(&mut self, frame: &mut [u8], tally: &Tally) {
        tally.add(Count::Received, 1);
        let Faults { drop, duplicate, reorder, damage, area, .. } = self.faults;
        if !is_fair_game(frame) {
            return self.emit(frame.to_vec(), tally);
        }
        let mut roll = self.random.below(1000);
        let mut hit = |rate: u16| {
            let hit = roll < u64::from(rate);
            roll = roll.wrapping_sub(u64::from(rate));
            hit
        };
        // Once a rate was hit the roll has wrapped and hits no other one, and these are evaluated in order.
        if hit(drop) {
            tally.add(Count::Dropped, 1);
        } else if hit(duplicate) {
            tally.add(Count::Duplicated, 1);
            self.emit(frame.to_vec(), tally);
            self.emit(frame.to_vec(), tally);
        } else if hit(reorder) && self.held.is_none() {
            let wait = 1 + self.random.below(4);
            self.held = Some(Held { frame: frame.to_vec(), wait, overtaken: false, until: Instant::now() + HOLD });
        } else if hit(damage) && flip(frame, area, &mut self.random) {
            tally.add(Count::Damaged, 1);
            self.emit(frame.to_vec(), tally);
        } else {
            self.emit(frame.to_vec(), tally);
        }
    }

    fn emit(&mut self, frame: Vec<u8>, tally: &Tally) {
        self.out.push_back(frame);
        if let Some(held) = &mut self.held {
            if !held.overtaken {
                held.overtaken = true;
                tally.add(Count::Reordered, 1);
            }
            held.wait -= 1;
            if held.wait == 0 {
                self.release();
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.held.as_ref().is_some_and(|held| held.until <= now) {
            self.release();
        }
    }

    fn release(&mut self) {
        self.out.extend(self.held.take().map(|held| held.frame));
    }

    fn flush(&mut self, to: &PacketSocket, tally: &Tally) {
        for frame in self.out.drain(..) {
            tally.add(if to.send(&frame).is_ok() { Count::Sent } else { Count::Failed }, 1);
        }
    }
}

/// Returns whether a frame is unicast IP, and not neighbour discovery (ICMPv6 types 133..=137, RFC 4861).
fn is_fair_game(frame: &[u8]) -> bool {
    if frame.first().is_some_and(|byte| byte & 1 == 1) {
        return false;
    }
    match ether_type(frame) {
        Some(0x0800) => true,
        Some(0x86dd) => {
            let next_header = frame.get(ETHERNET_LEN + 6).copied();
            let icmp_type = frame.get(ETHERNET_LEN + 40).copied();
            !(next_header == Some(58) && icmp_type.is_some_and(|kind| (133..=137).contains(&kind)))
        }
        _ => false,
    }
}

fn ether_type(frame: &[u8]) -> Option<u16> {
    frame.get(12..ETHERNET_LEN).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Flips one bit of a frame; returns `false` if the frame has no byte in the chosen area.
fn flip(frame: &mut [u8], area: DamageArea, random: &mut Random) -> bool {
    let places = match area {
        DamageArea::Anywhere => (ETHERNET_LEN..frame.len()).collect(),
        DamageArea::Covered => covered(frame),
    };
    let bits = places.len() as u64 * 8;
    if bits == 0 {
        return false;
    }
    let bit = random.below(bits);
    let place = places[(bit / 8) as usize];
    let mask = 1 << (bit % 8);
    if area == DamageArea::Covered && clears_udp_checksum(frame, place, mask) {
        // The same byte has seven bits that do not, because the mask is the only one set in the checksum.
        frame[place] ^= if mask == 1 { 2 } else { 1 };
    } else {
        frame[place] ^= mask;
    }
    true
}

/// Returns the indexes of the bytes that are covered by a checksum, so that the receiver detects a flipped bit.
fn covered(frame: &[u8]) -> Vec<usize> {
    let Some(ip) = Ip::parse(frame) else { return Vec::new() };
    let mut places = ip.header_covered.clone();
    match ip.protocol {
        // UDP: without its length field; with a checksum.
        17 if udp_checksum(frame, ip.payload.start).is_some_and(|sum| sum != 0) => {
            let length = ip.payload.start + 4..ip.payload.start + 6;
            places.extend(ip.payload.filter(|index| !length.contains(index)));
        }
        6 | 1 | 58 => places.extend(ip.payload),
        _ => {}
    }
    places
}

struct Ip {
    protocol: u8,
    header_covered: Vec<usize>,
    payload: std::ops::Range<usize>,
}

impl Ip {
    /// Parses an IP packet; `None` if it is malformed. A fragment has the protocol 255 (reserved), since what its
    /// payload's checksum covers is known only after reassembly.
    fn parse(frame: &[u8]) -> Option<Ip> {
        let ip = frame.get(ETHERNET_LEN..)?;
        let (protocol, header_len, total_len) = match ether_type(frame)? {
            0x0800 => {
                let header = ip.get(..20)?;
                let header_len = usize::from(header[0] & 15) * 4;
                let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
                // More fragments, or an offset.
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                (if fragment { 255 } else { header[9] }, header_len, total_len)
            }
            0x86dd => {
                let header = ip.get(..40)?;
                (header[6], 40, 40 + usize::from(u16::from_be_bytes([header[4], header[5]])))
            }
            _ => return None,
        };
        if header_len < 20 || total_len < header_len || total_len > ip.len() {
            return None;
        }
        let payload = ETHERNET_LEN + header_len..ETHERNET_LEN + total_len;
        let header_covered = match ether_type(frame)? {
            0x0800 => (ETHERNET_LEN + 1..payload.start).collect(),
            // The addresses, by the pseudo-header, when something above has a checksum.
            _ if matches!(protocol, 6 | 17 | 58) => (ETHERNET_LEN + 8..payload.start).collect(),
            _ => Vec::new(),
        };
        Some(Ip { protocol, header_covered, payload })
    }
}

fn udp_checksum(frame: &[u8], udp: usize) -> Option<u16> {
    frame.get(udp + 6..udp + 8).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn clears_udp_checksum(frame: &[u8], place: usize, mask: u8) -> bool {
    let Some(ip) = Ip::parse(frame).filter(|ip| ip.protocol == 17) else { return false };
    let field = ip.payload.start + 6;
    let mask = match place.checked_sub(field) {
        Some(0) => u16::from(mask) << 8,
        Some(1) => u16::from(mask),
        _ => return false,
    };
    udp_checksum(frame, ip.payload.start) == Some(mask)
}

/// A SplitMix64 generator, which produces the same numbers on every machine.
#[derive(Debug, Clone, Default)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number in `0..bound`; the bias is below one in 2^48 for the bounds used here.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds Ethernet, IPv4, UDP with a checksum field, payload, and two bytes of Ethernet padding.
    fn udp4(checksum: u16, payload_len: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, (28 + payload_len) as u8, 0, 1, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([198, 18, 0, 1, 198, 18, 0, 2, 0x10, 0, 0x20, 0, 0, (8 + payload_len) as u8]);
        frame.extend(checksum.to_be_bytes());
        frame.resize(frame.len() + payload_len, 0xaa);
        frame.extend([0, 0]);
        frame
    }

    fn udp6(payload_len: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, (8 + payload_len) as u8, 17, 64]);
        frame.extend([0x20; 32]);
        frame.extend([0x10, 0, 0x20, 0, 0, (8 + payload_len) as u8, 0x12, 0x34]);
        frame.resize(frame.len() + payload_len, 0xaa);
        frame
    }

    fn difference(a: &[u8], b: &[u8]) -> Vec<(usize, u8)> {
        assert_eq!(a.len(), b.len());
        (0..a.len()).filter(|index| a[*index] != b[*index]).map(|index| (index, a[index] ^ b[index])).collect()
    }

    #[test]
    fn damage_flips_exactly_one_bit_after_the_ethernet_header() {
        let mut random = Random(7);
        let mut seen = std::collections::BTreeSet::new();
        let frame = udp4(0x1234, 4);
        for _ in 0..20_000 {
            let mut damaged = frame.clone();
            assert!(flip(&mut damaged, DamageArea::Anywhere, &mut random));
            let [(place, bits)] = difference(&frame, &damaged)[..] else { panic!("not one byte") };
            assert_eq!(bits.count_ones(), 1);
            seen.insert((place, bits));
        }
        let all: std::collections::BTreeSet<_> =
            (14..frame.len()).flat_map(|p| (0..8).map(move |b| (p, 1 << b))).collect();
        assert_eq!(seen, all);
    }

    #[test]
    fn covered_damage_stays_where_a_checksum_sees_it() {
        let places = |frame: &[u8]| covered(frame);
        // IPv4 header without its first byte; UDP without its length; no padding.
        let frame = udp4(0x1234, 4);
        let expected: Vec<usize> = (15..38).chain(40..46).collect();
        assert_eq!(places(&frame), expected);
        // Without a UDP checksum only the IPv4 header is left.
        assert_eq!(places(&udp4(0, 4)), (15..34).collect::<Vec<_>>());
        // A fragment too.
        let mut fragment = frame.clone();
        fragment[20] = 0x20;
        assert_eq!(places(&fragment), (15..34).collect::<Vec<_>>());
        // IPv6: addresses and UDP.
        assert_eq!(places(&udp6(2)), (22..58).chain(60..64).collect::<Vec<_>>());
        // ARP and cut frames have no place.
        let mut arp = frame.clone();
        arp[13] = 6;
        assert!(places(&arp).is_empty());
        assert!((0..frame.len() - 2).all(|len| places(&frame[..len]).is_empty()));
    }

    #[test]
    fn damage_never_turns_a_udp_checksum_into_none() {
        let mut random = Random(1);
        for checksum in [0x0001, 0x0002, 0x0100, 0x8000] {
            for _ in 0..5000 {
                let frame = udp4(checksum, 0);
                let mut damaged = frame.clone();
                assert!(flip(&mut damaged, DamageArea::Covered, &mut random));
                assert_ne!(udp_checksum(&damaged, 34), Some(0));
                assert_eq!(difference(&frame, &damaged).iter().map(|(_, bits)| bits.count_ones()).sum::<u32>(), 1);
            }
        }
    }

    /// Sends numbered frames through one direction and returns the numbers of the output.
    fn through(faults: Faults, count: u8) -> (Vec<u8>, Counts) {
        let tally = Tally::default();
        let mut direction = Direction { faults, random: Random(faults.seed), ..Direction::default() };
        for number in 0..count {
            let mut frame = udp4(0x1234, 1);
            frame[42] = number;
            direction.frame(&mut frame, &tally);
        }
        direction.release();
        let counts = tally.read();
        (direction.out.iter().map(|frame| frame[42]).collect(), counts)
    }

    #[test]
    fn each_fault_does_what_it_says_and_the_same_with_the_same_seed() {
        let base = Faults { seed: 42, ..Faults::default() };
        let (clean, _) = through(base, 200);
        assert_eq!(clean, (0..200).collect::<Vec<_>>());

        let (dropped, counts) = through(Faults { drop: 100, ..base }, 200);
        assert!(counts.dropped > 5 && dropped.len() as u64 == 200 - counts.dropped && dropped.is_sorted());

        let (doubled, counts) = through(Faults { duplicate: 100, ..base }, 200);
        assert!(counts.duplicated > 5 && doubled.len() as u64 == 200 + counts.duplicated && doubled.is_sorted());

        let (moved, counts) = through(Faults { reorder: 100, ..base }, 200);
        assert!(counts.reordered > 5 && !moved.is_sorted());
        let mut sorted = moved.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, clean);

        assert_eq!(through(Faults { reorder: 100, ..base }, 200).0, moved);
        assert_ne!(through(Faults { reorder: 100, seed: 43, ..base }, 200).0, moved);
    }

    #[test]
    fn neighbour_discovery_arp_and_group_addresses_are_left_alone() {
        let faults = Faults { drop: 1000, ..Faults::default() };
        let tally = Tally::default();
        let mut direction = Direction { faults, ..Direction::default() };
        let mut solicitation = udp6(0);
        solicitation[20] = 58;
        solicitation[54] = 135;
        let mut arp = udp4(1, 0);
        arp[13] = 6;
        let mut group = udp6(0);
        group[..2].fill(0x33);
        direction.frame(&mut solicitation, &tally);
        direction.frame(&mut arp, &tally);
        direction.frame(&mut group, &tally);
        direction.frame(&mut udp6(0), &tally);
        assert_eq!(direction.out.len(), 3);
    }
}
