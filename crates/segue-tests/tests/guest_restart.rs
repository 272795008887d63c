//! Test of a guest with Debian's Linux that is killed, reset and restarted under load, on one gateway with guests that
//! meanwhile lose nothing; and of that guest when segue is killed.

#[path = "common/guests.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Gateway, NAME, Over, PATIENCE, announcement, ethernet, next_of, send_plain, sum16, train_between};
use segue_lab::Process;
use segue_testkit::vhost::{FROM_GUEST, Frontend, TO_GUEST, feature};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, guest, skip, sys, test_name};

/// Longest time from a start or reset of a guest without KVM until it is ready, on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
/// Longest time until a guest that is ready answers: five times the aim.
const BACK: Duration = Duration::from_secs(15);

/// Numbers of the stations: two guests that exchange trains, one that sends requests to the guest with a kernel, one to
/// which that guest sends all the time, and that guest itself.
const LEFT: u8 = 1;
const RIGHT: u8 = 2;
const ASKER: u8 = 3;
const SINK: u8 = 4;
const GUEST: u8 = 5;
/// Port of the guest at which it echoes datagrams.
const ECHO: u16 = 5002;
/// Port of the guest at which a datagram makes it reboot.
const REBOOT: u16 = 5003;

struct Lab<'a> {
    ground: &'a Ground,
    cache: PathBuf,
    run: PathBuf,
    /// The directory with QEMU's monitor and the number of its process.
    control: PathBuf,
    socket: PathBuf,
}

impl Lab<'_> {
    /// Starts QEMU with the guest.
    fn boot(&self) -> Process {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest_restart.sh");
        let mut command = self.ground.a.command("bash");
        command.arg(&self.run).arg("--cache").arg(&self.cache).arg("--vhost").arg(&self.socket);
        command.arg("--control").arg(&self.control).arg("--script").arg(script);
        command.args(["--timeout", "1800", "--mem", "384"]);
        Process::spawn(command, b"").unwrap()
    }
}

/// Waits until the guest has reported readiness the given number of times.
#[track_caller]
fn ready(vm: &mut Process, times: usize) {
    let begin = Instant::now();
    while vm.stdout().lines().filter(|line| line.contains("@ ready")).count() < times {
        let is_there = vm.ended().is_none() && begin.elapsed() < BOOT;
        assert!(is_there, "the guest is not ready: {}\n{}", vm.stdout(), vm.stderr());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a frame with a datagram from the asking station to a port of the guest, without a checksum.
fn question(port: u16, nonce: u8) -> Vec<u8> {
    let payload = [nonce; 32];
    let len = 28 + payload.len() as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, ASKER, 198, 18, 0, GUEST];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = !sum16(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let words = [9, port, len - 20, 0];
    let udp: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    [&ethernet([ASKER, GUEST])[..], &ip, &udp, &payload].concat()
}

/// Sends requests to the guest until it echoes a datagram with the given nonce, and returns the time needed.
#[track_caller]
fn answered(asker: &mut Frontend, nonce: u8) -> Duration {
    let (begin, mut asked) = (Instant::now(), None::<Instant>);
    loop {
        if asked.is_none_or(|asked| asked.elapsed() > Duration::from_millis(200)) {
            asked = Some(Instant::now());
            send_plain(asker, 0, &question(ECHO, nonce));
        }
        let got = asker.received();
        asker.kick(TO_GUEST);
        let is_echo = |frame: &[u8]| frame.get(29) == Some(&GUEST) && frame.ends_with(&[nonce; 32]);
        if got.iter().any(|(_, frame)| is_echo(frame)) {
            return begin.elapsed();
        }
        assert!(begin.elapsed() < PATIENCE, "the guest does not answer");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the guest has sent another thousand packets.
#[track_caller]
fn under_load(gateway: &Gateway<'_>) {
    let sent = || Stat::read(&gateway.ground.a, gateway.program(), NAME).count("vm", "receive", "packets");
    let (begin, before) = (Instant::now(), sent());
    while sent() < before + 1000 {
        assert!(begin.elapsed() < PATIENCE, "the guest sends nothing");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until another ten trains have crossed between the other guests.
#[track_caller]
fn cross(crossed: &AtomicUsize) {
    let (begin, before) = (Instant::now(), crossed.load(Ordering::Relaxed));
    while crossed.load(Ordering::Relaxed) < before + 10 {
        assert!(begin.elapsed() < PATIENCE, "the other guests' trains stand still");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the gateway between guest and host.
#[track_caller]
fn start<'a>(ground: &'a Ground, directory: &'a Directory) -> Gateway<'a> {
    Gateway::between(ground, directory, &["vm", "left", "right", "asker", "sink"], &[])
}

#[test]
fn full_size_a_guest_that_is_killed_reset_or_rebooted_under_load_is_back_and_others_lose_nothing() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    let Some(ground) = Ground::apart(test_name!(), &["bash", "cpio", "qemu-system-x86_64"]) else { return };
    let directory = Directory::new();
    let mut gateway = start(&ground, &directory);
    let [mut left, mut right, mut asker, mut sink] =
        ["left", "right", "asker", "sink"].map(|name| gateway.guest(name, feature::USUAL));
    for (station, front) in [(LEFT, &mut left), (RIGHT, &mut right), (ASKER, &mut asker), (SINK, &mut sink)] {
        send_plain(front, 0, &announcement(station));
    }
    let control = directory.file("control");
    fs::create_dir(&control).unwrap();
    let lab = Lab { ground: &ground, cache, run, control, socket: gateway.path("vm") };
    let (is_over, crossed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut vm = thread::scope(|scope| {
        let (is_over, crossed) = (&is_over, &crossed);
        let load = scope.spawn(move || {
            let mut told = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                let n = crossed.load(Ordering::Relaxed);
                let (header, frame) = train_between([LEFT, RIGHT], 60_000, n);
                left.send_packet(n as u16 % 32, &header, &frame, &[]);
                left.kick(FROM_GUEST);
                // Broadcasts come too. A train that is lost is an end of all frames, after the time of `next_of`.
                while !next_of(&mut right).iter().any(|(_, came)| *came == frame) {}
                crossed.store(n + 1, Ordering::Relaxed);
                for front in [&mut left, &mut sink] {
                    front.received();
                    front.kick(TO_GUEST);
                }
                // A station that is silent would be forgotten, and what is for it sent to all.
                if told.elapsed() > Duration::from_secs(30) {
                    told = Instant::now();
                    send_plain(&mut sink, 0, &announcement(SINK));
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let _over = Over(is_over);
        let mut vm = lab.boot();
        ready(&mut vm, 1);
        answered(&mut asker, 1);
        under_load(&gateway);
        // Its process is killed.
        let pid = fs::read_to_string(lab.control.join("pid")).unwrap();
        sys::signal(pid.trim().parse().unwrap(), libc::SIGKILL).unwrap();
        gateway.wait_for("vm", "guest_connected", 0);
        cross(crossed);
        vm.wait(PATIENCE).unwrap();
        let mut vm = lab.boot();
        ready(&mut vm, 1);
        let took = answered(&mut asker, 2);
        assert!(took < BACK, "{took:?} until a guest answers whose process was killed");
        under_load(&gateway);
        // The machine is reset by its monitor.
        let mut monitor = UnixStream::connect(lab.control.join("monitor")).unwrap();
        monitor.write_all(b"system_reset\n").unwrap();
        gateway.wait_for("vm", "guest_ready", 0);
        cross(crossed);
        ready(&mut vm, 2);
        let took = answered(&mut asker, 3);
        assert!(took < BACK, "{took:?} until a guest answers that was reset");
        under_load(&gateway);
        // Its own kernel starts again.
        let begin = Instant::now();
        while Stat::read(&ground.a, gateway.program(), NAME).count("vm", "numbers", "guest_ready") == 1 {
            send_plain(&mut asker, 0, &question(REBOOT, 0));
            assert!(begin.elapsed() < PATIENCE, "the guest does not start again");
            thread::sleep(Duration::from_millis(50));
        }
        cross(crossed);
        ready(&mut vm, 3);
        let took = answered(&mut asker, 4);
        assert!(took < BACK, "{took:?} until a guest answers that started again");
        under_load(&gateway);
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap();
        vm
    });
    let stat = Stat::read(&ground.a, gateway.program(), NAME);
    let crossed = crossed.load(Ordering::Relaxed) as u64;
    assert!(stat.count("right", "gso", "trains_whole") + 1 >= crossed, "{crossed} trains: {}", stat.json());
    for name in ["left", "right"] {
        assert_eq!(stat.count(name, "numbers", "front_ends"), 1);
        let drops = stat.json()["ports"][name]["drops"].as_object().unwrap();
        assert!(drops.values().all(|count| *count == 0), "{name}: {drops:?}");
    }
    // QEMU broke no rule.
    let numbers = stat.json()["ports"]["vm"]["numbers"].as_object().unwrap();
    let stops = numbers.iter().filter(|(key, count)| key.starts_with("stop_") && **count != 0);
    assert_eq!(stops.map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["stop_ended"]);
    // segue is killed, and QEMU connects to the next one.
    sys::signal(gateway.process.id(), libc::SIGKILL).unwrap();
    gateway.process.wait(PATIENCE).unwrap();
    let begin = Instant::now();
    while UnixStream::connect(gateway.path("left")).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "a process outlives its supervisor");
        thread::sleep(Duration::from_millis(10));
    }
    let gateway = start(&ground, &directory);
    let begin = Instant::now();
    let [mut asker, mut sink] = ["asker", "sink"].map(|name| gateway.guest(name, feature::USUAL));
    send_plain(&mut asker, 0, &announcement(ASKER));
    send_plain(&mut sink, 0, &announcement(SINK));
    answered(&mut asker, 5);
    assert!(begin.elapsed() < BACK, "{:?} until a guest answers by a segue that was started again", begin.elapsed());
    under_load(&gateway);
    vm.terminate();
}
