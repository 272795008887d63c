//! Tests that compare the frames on both wires: a kernel that segments the gateway's trains restores the sent frames.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue::packet::{Csum, Frag, Packet, Start, Tunnels, Unit};
use segue_lab::{DEVICE, Family, Host, LinkForm, Peer};
use segue_port::packet_socket::{PacketConfig, PacketPort};
use segue_port::{PagePool, Polled, Port, RxBatch, Sent, TxBatch};
use segue_testkit::Rng;
use segue_testkit::build::Ethernet;
use segue_testkit::flow;

use crate::bump::{Bump, PATIENCE, PORT, TAP, address, bytes, stream};

/// A fourth host beyond the third: packets from the TAP reach it through an interface without segmentation offload, so
/// that the kernel segments the trains; the reverse direction is the same.
struct Wire {
    bump: Bump,
    end: Host,
}

/// Name of the third host's interface to the fourth.
const OUT: &str = "out0";

impl Wire {
    #[track_caller]
    fn new() -> Option<Wire> {
        // Room for the longest segments of the generator with all of their options and tags.
        const MTU: &str = "1600";
        let bump = Bump::with_mtu(LinkForm::Nic, &[], MTU)?;
        let (middle, end) = (&bump.receiver, Host::new("end").unwrap());
        let words = ["link", "add", OUT, "mtu", MTU, "type", "veth", "peer", "name", DEVICE, "mtu", MTU, "netns"];
        middle.run("ip", &[&words[..], &[&end.net_path()]].concat()).unwrap();
        middle.run("ip", &["link", "set", "dev", OUT, "addrgenmode", "none"]).unwrap();
        for (host, device) in [(&bump.sender, DEVICE), (&bump.gateway, DEVICE), (middle, OUT), (&end, DEVICE)] {
            host.run("ip", &["link", "set", "dev", device, "up"]).unwrap();
            let features = ["tso", "off", "gso", "off", "tx", "off", "gro", "off"];
            host.run("ethtool", &[&["-K", device][..], &features].concat()).unwrap();
        }
        for (from, to) in [(TAP, OUT), (OUT, TAP)] {
            middle.run("tc", &["qdisc", "add", "dev", from, "ingress"]).unwrap();
            let filter = "protocol all u32 match u32 0 0 action mirred egress redirect dev";
            let words =
                ["filter", "add", "dev", from, "parent", "ffff:"].into_iter().chain(filter.split(' ')).chain([to]);
            middle.run("tc", &words.collect::<Vec<_>>()).unwrap();
        }
        Some(Wire { bump, end })
    }
}

/// Ends captures on drop, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Time without a frame after which all frames count as arrived: several times the longest delay of a busy processor.
const QUIET: Duration = Duration::from_secs(1);

/// Captures the frames that `device` receives until `stop`, with their units. Adds one to `ready` when it begins.
fn capture(host: &Host, device: &str, ready: &AtomicUsize, stop: &AtomicBool) -> Vec<(Unit, Vec<u8>)> {
    let config = PacketConfig { ring_bytes: 64 << 20, ..PacketConfig::new(device) };
    host.enter(|| {
        let mut port = PacketPort::open(&config).unwrap();
        ready.fetch_add(1, Ordering::Relaxed);
        let (mut into, mut frames) = (RxBatch::new(64), Vec::new());
        let mut quiet = Instant::now();
        while !stop.load(Ordering::Relaxed) || quiet.elapsed() < QUIET {
            if port.receive(&mut into, 64).unwrap() == Polled::Idle {
                thread::sleep(Duration::from_micros(200));
            }
            while let Some(packet) = into.pop_packet() {
                frames.push((packet.offload.unit, flat(&packet)));
                into.pool.put(packet);
                quiet = Instant::now();
            }
        }
        assert_eq!(port.counters().drops.total(), 0, "{device}: {:?}", port.counters());
        frames
    })
    .unwrap()
}

/// Waits until `count` captures have begun; panics when one of them has failed.
fn wait_for(ready: &AtomicUsize, count: usize) {
    let end = Instant::now() + PATIENCE;
    while ready.load(Ordering::Relaxed) < count && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

fn flat(packet: &Packet<segue_port::Page>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.pieces(0..packet.payload.len()).for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Sends frames unchanged, in bursts.
fn transmit(host: &Host, frames: &[Vec<u8>]) {
    host.enter(|| {
        let mut port = PacketPort::open(&PacketConfig::new(DEVICE)).unwrap();
        let (mut pages, mut batch) = (PagePool::new(128), TxBatch::new());
        let mut into = RxBatch::new(1);
        for burst in frames.chunks(100) {
            for frame in burst {
                let mut page = pages.take().expect("as many pages as a burst has frames");
                page.bytes_mut()[..frame.len()].copy_from_slice(frame);
                let mut packet = into.pool.take();
                packet.load(Frag::all(page.freeze(frame.len())), Start::Ethernet, &Tunnels::NONE);
                packet.offload.unit = Unit::Whole(Csum::Unknown);
                batch.push(packet, port.limits()).unwrap();
            }
            while port.transmit(&mut batch).unwrap() != Sent::All {}
            batch.recycle(&mut into.pool);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(port.counters().drops.total(), 0);
    })
    .unwrap();
}

/// Prefix of the station addresses, whose last bytes are the number of a frame's flow.
const STATION: [u8; 4] = [2, 0, 0x5e, 1];

/// Offset of the flow numbers of ICMP.
const ICMP: u16 = 1000;
/// Offset of the flow numbers of frames without IP.
const OTHER: u16 = 2000;

fn station(flow: u16) -> [u8; 6] {
    let ([a, b, c, d], [high, low]) = (STATION, flow.to_be_bytes());
    [a, b, c, d, high, low]
}

fn flow_of(frame: &[u8]) -> Option<u16> {
    let number = frame.get(6..12)?.strip_prefix(&STATION)?;
    Some(u16::from_be_bytes([number[0], number[1]]))
}

/// Generates frames of many flows: bursts of TCP and UDP, tags, padding, damage, and frames without IP.
fn traffic(count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(7);
    let mut frames = Vec::new();
    for sent in flow::mixed(&mut rng, 40, count) {
        // Another protocol between the same hosts is a flow of its own.
        let is_icmp = if sent.bytes[0] >> 4 == 4 { sent.bytes[9] == 1 } else { sent.bytes[6] == 58 };
        let number = sent.flow as u16 + if is_icmp { ICMP } else { 0 };
        let tags: &[(u16, u16)] = match sent.flow % 8 {
            5 => &[(0x8100, 0x6005)],
            6 => &[(0x88a8, 0x0007), (0x8100, 0x0009)],
            _ => &[],
        };
        let ethernet = Ethernet { dst: [2, 0, 0x5e, 2, 0, 0], src: station(number), tags: tags.to_vec() };
        let mut frame = ethernet.wrap(&sent.bytes);
        match rng.below(100) {
            // One bit of the payload or of the checksum.
            0 => {
                let last = frame.len() - 1;
                frame[last] ^= 4;
            }
            // Padding of short frames: zeros, as a network card adds them, or other bytes, which no card should add.
            2..20 if frame.len() < 60 => frame.resize(60, if sent.flow % 2 == 0 { 0 } else { 0xaa }),
            1 => {
                let mut other =
                    Ethernet { src: station(number + OTHER), tags: Vec::new(), ..ethernet }.wrap(&sent.bytes);
                other[12..14].copy_from_slice(&[0x88, 0xb5]);
                frames.push(other);
            }
            _ => {}
        }
        frames.push(frame);
    }
    frames
}

fn by_flow(frames: impl Iterator<Item = Vec<u8>>) -> BTreeMap<u16, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for frame in frames {
        if let Some(flow) = flow_of(&frame) {
            flows.entry(flow).or_default().push(frame);
        }
    }
    flows
}

/// Asserts that two lists of frames are the same, and prints the first difference.
fn assert_same(what: &str, expected: &[Vec<u8>], got: &[Vec<u8>]) {
    for (index, (expected, got)) in expected.iter().zip(got).enumerate() {
        let at = expected.iter().zip(got).position(|(a, b)| a != b).unwrap_or(expected.len().min(got.len()));
        assert!(
            expected == got,
            "{what}: frame {index}: {} and {} bytes differ at {at}:\n{:02x?}\n{:02x?}",
            expected.len(),
            got.len(),
            &expected[..expected.len().min(80)],
            &got[..got.len().min(80)]
        );
    }
    assert_eq!(expected.len(), got.len(), "{what}: how many frames");
}

#[test]
fn the_kernels_own_segmentation_gives_back_every_frame_that_was_sent() {
    let Some(wire) = Wire::new() else { return };
    let frames = traffic(6000);
    let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tap, end) = thread::scope(|scope| {
        let ending = Stop(&stop);
        let tap = scope.spawn(|| capture(&wire.bump.receiver, TAP, &ready, &stop));
        let end = scope.spawn(|| capture(&wire.end, DEVICE, &ready, &stop));
        wait_for(&ready, 2);
        transmit(&wire.bump.sender, &frames);
        drop(ending);
        (tap.join().unwrap(), end.join().unwrap())
    });
    wire.bump.assert_no_drops();
    // At the TAP the trains are whole. The port that received them checks that each virtio header fits its frame.
    let trains = tap.iter().filter_map(|(unit, frame)| match unit {
        Unit::Train { gso, .. } => Some((gso.size, frame.len())),
        Unit::Whole(_) => None,
    });
    let (count, longest) = trains.fold((0, 0), |(count, longest), (_, len)| (count + 1, longest.max(len)));
    assert!(count > 200 && longest > 10_000, "{count} trains, the longest has {longest} bytes");
    assert!(tap.len() * 4 < frames.len() * 3, "{} units of {} frames", tap.len(), frames.len());
    // At the fourth host the frames equal those that were sent.
    assert!(end.iter().all(|(unit, _)| matches!(unit, Unit::Whole(_))));
    let sent = by_flow(frames.into_iter());
    let got = by_flow(end.into_iter().map(|(_, frame)| frame));
    assert_eq!(sent.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
    for (flow, frames) in &sent {
        assert_same(&format!("flow {flow}"), frames, &got[flow]);
    }
}

/// Returns the frames of the connection in one direction.
fn connection(frames: Vec<(Unit, Vec<u8>)>, to_port: bool) -> Vec<Vec<u8>> {
    let is_part = |frame: &[u8]| {
        let ip = if frame[12..14] == [8, 0] { 20 } else { 40 };
        let tcp = frame[12..14] == [8, 0] && frame[23] == 6 || frame[12..14] == [0x86, 0xdd] && frame[20] == 6;
        let at = 14 + ip + if to_port { 2 } else { 0 };
        tcp && frame.get(at..at + 2) == Some(&PORT.to_be_bytes()[..])
    };
    frames.into_iter().map(|(_, frame)| frame).filter(|frame| is_part(frame)).collect()
}

#[test]
fn a_live_connection_has_the_same_frames_on_both_wires() {
    let Some(wire) = Wire::new() else { return };
    address(&wire.end, DEVICE, Peer::B);
    for (family, up) in Family::ALL.iter().flat_map(|family| [(*family, true), (*family, false)]) {
        let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let taps = [
            (&wire.bump.gateway, DEVICE),
            (&wire.end, DEVICE),
            (&wire.bump.receiver, OUT),
            (&wire.bump.sender, DEVICE),
            (&wire.bump.receiver, TAP),
        ];
        let captured = thread::scope(|scope| {
            let ending = Stop(&stop);
            let (ready, stop) = (&ready, &stop);
            let taps = taps.map(|(host, device)| scope.spawn(move || capture(host, device, ready, stop)));
            wait_for(ready, 5);
            let ends = [(&wire.bump.sender, Peer::A), (&wire.end, Peer::B)];
            let (from, to) = if up { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
            stream(from.0, to, family, &bytes(2_000_000, 3));
            drop(ending);
            taps.map(|tap| tap.join().unwrap())
        });
        let [before, after, back_before, back_after, tap] = captured;
        if up {
            let trains = tap.iter().filter(|(unit, _)| matches!(unit, Unit::Train { .. })).count();
            assert!(trains > 10, "{family}: {trains} trains at the TAP");
        }
        let what = format!("{family} {}", if up { "upwards" } else { "downwards" });
        // Two processors send frames of one connection, so the order of two simultaneous frames in the capture is
        // random.
        let sorted = |frames, to_port| {
            let mut frames = connection(frames, to_port);
            frames.sort();
            frames
        };
        let there = sorted(before, up);
        assert_same(&format!("{what}, there"), &there, &sorted(after, up));
        let back = sorted(back_before, !up);
        assert_same(&format!("{what}, back"), &back, &sorted(back_after, !up));
        assert!(there.len() + back.len() > 2_000_000 / 1600, "{what}: {} and {} frames", there.len(), back.len());
    }
    wire.bump.assert_no_drops();
}
