//! Tests of guests' ports in the built program: front ends of vhost-user without a guest behind them, through
//! `segue gateway` between two of them.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Process;
use segue_testkit::vhost::{Descriptor, FROM_GUEST, FrontEnd, GUEST_BASE, NEXT, feature};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, sys, test_name};

const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "guests";

/// A gateway between two guests.
struct Gateway<'a> {
    ground: &'a Ground,
    directory: &'a Directory,
    process: Process,
}

impl<'a> Gateway<'a> {
    /// Starts it with these words behind the ends, once it is up.
    #[track_caller]
    fn start(ground: &'a Ground, directory: &'a Directory) -> Gateway<'a> {
        let end = |name: &str| format!("vhost:{}", directory.file(&format!("{name}.sock")).display());
        let mut command = ground.a.command(&ground.program);
        command.args(["gateway", "-j", &end("left"), &end("right"), "--name", NAME]);
        let mut process = Process::spawn(command, b"").unwrap();
        let up = process.wait_for_line("\"event\":\"up\"", PATIENCE);
        up.unwrap_or_else(|error| panic!("{error}\n{}", process.last_words()));
        Gateway { ground, directory, process }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.file(&format!("{name}.sock"))
    }

    /// Connects a front end whose guest is ready and offers buffers.
    #[track_caller]
    fn guest(&self, name: &str, features: u64) -> FrontEnd {
        let mut front = FrontEnd::connect(&self.path(name), features);
        front.start();
        front.offer_buffers(2048);
        self.wait_for(name, "guest_ready", 1);
        front
    }

    /// Waits until a number of a port has a value.
    #[track_caller]
    fn wait_for(&self, port: &str, key: &str, value: u64) -> Stat {
        let (host, program) = (&self.ground.a, self.program());
        let stat = Stat::until(host, program, NAME, PATIENCE, |stat| stat.count(port, "numbers", key) == value);
        assert_eq!(stat.count(port, "numbers", key), value, "{port} {key}: {}", stat.json());
        stat
    }

    fn program(&self) -> &Path {
        &self.ground.program
    }
}

/// A frame with a train of TCP over IPv4, whose checksum is partial, and its virtio-net header.
fn train(payload: usize, seed: usize) -> ([u8; 10], Vec<u8>) {
    let len = (40 + payload) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = !sum16(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let pseudo = [&ip[12..20], &[0, 6], &(len - 20).to_be_bytes()].concat();
    tcp[16..18].copy_from_slice(&sum16(&pseudo).to_be_bytes());
    let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let bytes: Vec<u8> = (0..payload).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect();
    let gso_type = u8::from(payload > 1448);
    let mut header = [1, gso_type, 54, 0, 0, 0, 34, 0, 16, 0];
    header[4..6].copy_from_slice(&(1448 * u16::from(gso_type)).to_le_bytes());
    (header, [&ethernet[..], &ip, &tcp, &bytes].concat())
}

fn sum16(bytes: &[u8]) -> u16 {
    let mut sum: u64 =
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sends trains from one guest to the other one by one, and returns what arrived, each with its header.
#[track_caller]
fn send(from: &mut FrontEnd, to: &mut FrontEnd, count: u16, payload: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for n in 0..count {
        let (header, frame) = train(payload, usize::from(n));
        from.send_packet(n % 64, &header, &frame, &[54]);
        from.kick(FROM_GUEST);
        let begin = Instant::now();
        let mut bytes = 0;
        while bytes < payload {
            for got in to.received() {
                bytes += got.1.len() - 54;
                all.push(got);
            }
            to.kick(0);
            assert!(begin.elapsed() < PATIENCE, "{bytes} of {payload} bytes of train {n} arrived");
            thread::sleep(Duration::from_micros(100));
        }
    }
    all
}

#[test]
fn trains_cross_between_guests_whole_and_are_cut_for_one_that_takes_none() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::start(&ground, &directory);
    let mut left = gateway.guest("left", feature::USUAL);
    let mut right = gateway.guest("right", feature::USUAL);
    let got = send(&mut left, &mut right, 100, 60_000);
    let sent: Vec<Vec<u8>> = (0..100).map(|n| train(60_000, n).1).collect();
    assert_eq!(got.iter().map(|one| one.1.clone()).collect::<Vec<_>>(), sent);
    // Partial, and a train of TCP over IPv4 in 30 buffers.
    assert!(got.iter().all(|(header, _)| header[..2] == [1, 1] && header[10..] == [30, 0]));
    let stat = gateway.wait_for("right", "merged_packets", 100);
    assert_eq!((stat.count("left", "receive", "trains"), stat.count("right", "gso", "trains_whole")), (100, 100));
    assert_eq!((stat.count("right", "gso", "trains_cut"), stat.checksummed_bytes()), (0, 0));
    assert!(stat.drops().is_empty(), "{:?}", stat.drops());
    // A guest without offloads in the other direction: single packets with whole checksums.
    drop(left);
    gateway.wait_for("left", "guest_connected", 0);
    let mut left = gateway.guest("left", feature::VERSION_1 | feature::PROTOCOL);
    let got = send(&mut right, &mut left, 3, 60_000);
    assert_eq!(got.len(), 3 * 60_000_usize.div_ceil(1448));
    for (header, frame) in &got {
        assert!(frame.len() <= 1514 && header[..2] == [0, 0], "{header:?}");
        let pseudo = [&frame[26..34], &[0, 6], &(frame.len() as u16 - 34).to_be_bytes(), &frame[34..]].concat();
        assert_eq!((sum16(&frame[14..34]), sum16(&pseudo)), (0xffff, 0xffff), "both checksums are right");
    }
    let payload: Vec<u8> = got.iter().flat_map(|(_, frame)| frame[54..].to_vec()).collect();
    assert_eq!(payload, (0..3).flat_map(|n| train(60_000, n).1[54..].to_vec()).collect::<Vec<_>>());
}

#[test]
fn a_guest_that_goes_or_is_hostile_disturbs_no_other_and_may_come_back() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let mut gateway = Gateway::start(&ground, &directory);
    let mut right = gateway.guest("right", feature::USUAL);
    let health = |gateway: &Gateway<'_>| {
        let stat = Stat::read(&gateway.ground.a, gateway.program(), NAME);
        stat.json()["health"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect::<Vec<_>>()
    };
    #[track_caller]
    fn until(mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < PATIENCE, "another health");
            thread::sleep(Duration::from_millis(10));
        }
    }
    until(|| health(&gateway) == ["guest_gone"]);
    let mut silent = FrontEnd::connect(&gateway.path("left"), feature::USUAL);
    gateway.wait_for("left", "guest_connected", 1);
    until(|| health(&gateway) == ["driver_not_ready"]);
    // Another one is turned away while the first is there.
    let mut other = FrontEnd::connect(&gateway.path("left"), feature::USUAL);
    let begin = Instant::now();
    while !other.is_closed() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!silent.is_closed());
    drop(silent);
    gateway.wait_for("left", "guest_connected", 0);
    // A ring with a loop, and a file of memory that is cut off.
    type Wrong = fn(&mut FrontEnd);
    let wrongs: [(&str, Wrong); 2] = [
        ("stop_ring_loop", |front| {
            let descriptor = Descriptor { address: GUEST_BASE + 0x50_0000, len: 64, flags: NEXT, next: 0 };
            front.describe(FROM_GUEST, 0, &descriptor);
            front.offer(FROM_GUEST, 0);
        }),
        ("stop_memory_lost", |front| {
            let (header, frame) = train(1000, 0);
            front.send_packet(0, &header, &frame, &[]);
            front.memory.set_len(0).unwrap();
        }),
    ];
    for (number, wrong) in wrongs {
        let mut left = gateway.guest("left", feature::USUAL);
        wrong(&mut left);
        left.kick(FROM_GUEST);
        gateway.wait_for("left", number, 1);
        assert_eq!(gateway.wait_for("right", "guest_ready", 1).count("right", "numbers", "front_ends"), 1);
    }
    let mut left = gateway.guest("left", feature::USUAL);
    assert_eq!(send(&mut left, &mut right, 10, 30_000).len(), 10);
    until(|| health(&gateway).is_empty());
    // The process is killed: both guests go on with the next one, in the same memory.
    let worker = Stat::read(&ground.a, gateway.program(), NAME).json()["pid"].as_u64().unwrap();
    sys::signal(gateway.process.id(), libc::SIGKILL).unwrap();
    gateway.process.wait(PATIENCE).unwrap();
    let begin = Instant::now();
    let is_there = |path: &Path| UnixStream::connect(path).is_ok();
    // One that has ended is there until it is collected, which not every machine does with orphans.
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    while runs() || ["left", "right"].iter().any(|name| is_there(&gateway.path(name))) {
        assert!(begin.elapsed() < PATIENCE, "a process outlives its supervisor");
        thread::sleep(Duration::from_millis(10));
    }
    let memories = [left.memory.try_clone().unwrap(), right.memory.try_clone().unwrap()];
    drop((left, right));
    let gateway = Gateway::start(&ground, &directory);
    let [mut left, mut right] = ["left", "right"].map(|name| {
        let stream = FrontEnd::connect(&gateway.path(name), feature::USUAL).stream.try_clone().unwrap();
        let memory = memories[usize::from(name == "right")].try_clone().unwrap();
        let mut front = FrontEnd::with_memory(stream, feature::USUAL, memory);
        front.resume(FROM_GUEST);
        front.resume(0);
        front.start();
        gateway.wait_for(name, "guest_ready", 1);
        front
    });
    right.adopt_buffers(2048);
    assert_eq!(send(&mut left, &mut right, 10, 30_000).len(), 10);
}
