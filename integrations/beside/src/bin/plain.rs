//! `plain ROUNDS SECONDS` carries a TCP connection of iperf3 between two hosts, each with a TUN device without
//! virtio-net headers: packet by packet and joined into packets of 64 kB in turn. Prints Gbit/s of both, one line for
//! each round.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use segue::easy::Joiner;
use segue::hash::Key;
use segue_lab::Host;
use segue_port::tun::{TunConfig, TunOffloads, TunPort};

/// Number of packets of one batch.
const BATCH: usize = 64;

/// Reads the packets queued in `from`, at most a batch, and writes them to `to`.
fn pass(
    (from, to): (&mut File, &mut File),
    buffers: &mut [Vec<u8>],
    joiner: &mut Joiner,
    is_joined: bool,
) -> io::Result<()> {
    let mut lens = Vec::with_capacity(BATCH);
    for buffer in &mut *buffers {
        match from.read(buffer) {
            Ok(len) => lens.push(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    let packets = lens.iter().zip(&*buffers).map(|(len, buffer)| &buffer[..*len]);
    if !is_joined {
        return packets.into_iter().try_for_each(|packet| to.write(packet).map(drop));
    }
    let mut batch = joiner.batch();
    packets.for_each(|packet| _ = batch.push(packet));
    while let Some(train) = batch.pop() {
        to.write_vectored(&train.pieces().map(IoSlice::new).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Carries packets in both directions until `stop`.
fn relay(mut devices: [File; 2], is_joined: &AtomicBool, stop: &AtomicBool) {
    let mut joiner = Joiner::plain(Key([1, 2]));
    let mut buffers = vec![vec![0; 1 << 16]; BATCH];
    while !stop.load(Ordering::Relaxed) {
        let mut ready = devices.each_ref().map(|device| PollFd::new(device, PollFlags::IN));
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).expect("poll");
        let [a, b] = ready.map(|fd| !fd.revents().is_empty());
        let is_joined = is_joined.load(Ordering::Relaxed);
        let [first, second] = &mut devices;
        if a {
            pass((first, second), &mut buffers, &mut joiner, is_joined).expect("from the first to the second");
        }
        if b {
            pass((second, first), &mut buffers, &mut joiner, is_joined).expect("from the second to the first");
        }
    }
}

/// Runs iperf3 once and returns Gbit/s.
fn load(hosts: &[Host; 2], seconds: &str) -> f64 {
    let mut server = hosts[1].command("iperf3").args(["-s", "-1"]).stdout(Stdio::null()).spawn().expect("iperf3");
    let begin = Instant::now();
    let rate = loop {
        let ran =
            hosts[0].command("iperf3").args(["-c", "198.18.0.2", "-t", seconds, "-f", "k"]).output().expect("iperf3");
        let said = String::from_utf8_lossy(&ran.stdout);
        let receiver = said.lines().find(|line| line.ends_with("receiver"));
        let words: Option<Vec<&str>> = receiver.map(|line| line.split_whitespace().collect());
        let rate =
            words.and_then(|words| words[words.iter().position(|word| *word == "Kbits/sec")? - 1].parse::<f64>().ok());
        match rate {
            Some(rate) => break rate / 1e6,
            // The server does not listen yet.
            None if begin.elapsed() < Duration::from_secs(20) => thread::sleep(Duration::from_millis(50)),
            None => panic!("iperf3: {said}"),
        }
    };
    server.wait().expect("iperf3");
    rate
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [rounds, seconds] = &words[..] else { panic!("usage: plain ROUNDS SECONDS") };
    let hosts = ["client", "server"].map(|name| Host::new(name).expect("a network namespace"));
    let mut config = TunConfig::ip("plain0");
    config.offloads = TunOffloads::None;
    let devices = [1, 2].map(|number| {
        let host = &hosts[number - 1];
        let open = || TunPort::open(&config).map(TunPort::into_fd);
        let fd = host.enter(open).expect("a thread").expect("a TUN device");
        host.run("ip", &["addr", "add", &format!("198.18.0.{number}/24"), "dev", "plain0"]).expect("ip");
        host.run("ip", &["link", "set", "plain0", "up", "mtu", "1500"]).expect("ip");
        File::from(fd)
    });
    let (is_joined, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| relay(devices, &is_joined, &stop));
        for _ in 0..rounds.parse().expect("a number of rounds") {
            let rates = [false, true].map(|mode| {
                is_joined.store(mode, Ordering::Relaxed);
                load(&hosts, seconds)
            });
            println!("{:.3} {:.3}", rates[0], rates[1]);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
