//! Front ends of vhost-user without a guest, and a gateway or a tunnel of the built program at their ports.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Process;
use segue_testkit::vhost::{FROM_GUEST, Frontend};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const NAME: &str = "guests";

/// A gateway between guests, or a tunnel of a guest.
pub(crate) struct Gateway<'a> {
    pub(crate) ground: &'a Ground,
    directory: &'a Directory,
    name: &'a str,
    pub(crate) process: Process,
}

impl<'a> Gateway<'a> {
    /// Starts the gateway between `left` and `right`, and returns once it is up.
    #[track_caller]
    pub(crate) fn start(ground: &'a Ground, directory: &'a Directory) -> Gateway<'a> {
        Gateway::between(ground, directory, &["left", "right"], &[])
    }

    /// Starts the gateway between the guests with the given names, with further arguments, and returns once it is up.
    #[track_caller]
    pub(crate) fn between(
        ground: &'a Ground,
        directory: &'a Directory,
        guests: &[&str],
        words: &[&str],
    ) -> Gateway<'a> {
        let end = |name: &&str| format!("vhost:{}", directory.file(&format!("{name}.sock")).display());
        let mut command = ground.a.command(&ground.program);
        command.args(["gateway", "-j", "--name", NAME]).args(guests.iter().map(end)).args(words);
        Gateway::run(ground, directory, NAME, command)
    }

    /// Starts the gateway by a command, and returns once it is up under the given name.
    #[track_caller]
    pub(crate) fn run(ground: &'a Ground, directory: &'a Directory, name: &'a str, command: Command) -> Gateway<'a> {
        let mut process = Process::spawn(command, b"").unwrap();
        let up = process.wait_for_line("\"event\":\"up\"", PATIENCE);
        up.unwrap_or_else(|error| panic!("{error}\n{}", process.last_words()));
        Gateway { ground, directory, name, process }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.file(&format!("{name}.sock"))
    }

    /// Connects a front end whose guest is ready and offers buffers.
    #[track_caller]
    pub(crate) fn guest(&self, name: &str, features: u64) -> Frontend {
        let mut front = Frontend::connect(&self.path(name), features);
        front.start();
        front.offer_buffers(2048);
        self.wait_for(name, "guest_ready", 1);
        front
    }

    /// Waits until a port's counter has a value.
    #[track_caller]
    pub(crate) fn wait_for(&self, port: &str, key: &str, value: u64) -> Stat {
        let (host, program) = (&self.ground.a, self.program());
        let stat = Stat::until(host, program, self.name, PATIENCE, |stat| stat.count(port, "numbers", key) == value);
        assert_eq!(stat.count(port, "numbers", key), value, "{port} {key}: {}", stat.json());
        stat
    }

    pub(crate) fn program(&self) -> &Path {
        &self.ground.program
    }
}

/// Returns a frame with a train of TCP over IPv4, whose checksum is partial, and its virtio-net header.
pub(crate) fn train(payload: usize, seed: usize) -> ([u8; 10], Vec<u8>) {
    train_between([1, 2], payload, seed)
}

/// Returns a train like [`train`] between two stations, each given by the last byte of its address.
pub(crate) fn train_between(stations: [u8; 2], payload: usize, seed: usize) -> ([u8; 10], Vec<u8>) {
    let len = (40 + payload) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = !sum16(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let pseudo = [&ip[12..20], &[0, 6], &(len - 20).to_be_bytes()].concat();
    tcp[16..18].copy_from_slice(&sum16(&pseudo).to_be_bytes());
    let ethernet = ethernet(stations);
    let bytes: Vec<u8> = (0..payload).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect();
    let gso_type = u8::from(payload > 1448);
    let mut header = [1, gso_type, 54, 0, 0, 0, 34, 0, 16, 0];
    header[4..6].copy_from_slice(&(1448 * u16::from(gso_type)).to_le_bytes());
    (header, [&ethernet[..], &ip, &tcp, &bytes].concat())
}

/// Returns the Ethernet header of IPv4 from one station to another.
pub(crate) fn ethernet([from, to]: [u8; 2]) -> [u8; 14] {
    [2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0]
}

/// Returns a broadcast frame from a station, by which bridges learn it.
pub(crate) fn announcement(station: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, station, 0x88, 0xb5]);
    frame.resize(60, station);
    frame
}

/// Sends a frame without offloads from a guest to its port.
pub(crate) fn send_plain(from: &mut Frontend, slot: u16, frame: &[u8]) {
    from.send_packet(slot, &[0; 10], frame, &[]);
    from.kick(FROM_GUEST);
}

/// Waits for the next frames of a guest.
#[track_caller]
pub(crate) fn next_of(guest: &mut Frontend) -> Vec<(Vec<u8>, Vec<u8>)> {
    let begin = Instant::now();
    loop {
        let got = guest.received();
        guest.kick(0);
        if !got.is_empty() {
            return got;
        }
        assert!(begin.elapsed() < PATIENCE, "no frame arrives");
        thread::sleep(Duration::from_micros(100));
    }
}

pub(crate) fn sum16(bytes: &[u8]) -> u16 {
    let mut sum: u64 =
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sends trains from one guest to the other one by one, and returns the received frames, each with its header.
#[track_caller]
pub(crate) fn send(from: &mut Frontend, to: &mut Frontend, count: u16, payload: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
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

/// A guard that ends a thread on drop, even after a failure.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
