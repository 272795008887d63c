//! Building blocks of test set-ups: hosts with processors of their own, network cards, wires, gateways.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::link::{self, ethtool, wait_until_up};
use crate::{Cpu, Family, Host, LabError, Peer, Process, interrupt, sys, which};

/// A network card: one end of a veth pair.
pub(super) struct Card<'a> {
    pub(super) host: &'a Host,
    pub(super) name: &'a str,
    pub(super) mtu: u32,
    /// Features of the card to set, as ethtool names them.
    pub(super) features: &'a [&'a str],
    /// Processor that handles the frames received by the card.
    pub(super) core: usize,
}

/// Returns the absolute path of the program, which is valid in every host.
pub(super) fn program(given: &Path) -> Result<PathBuf, LabError> {
    let found = which(given).ok_or_else(|| LabError::System {
        what: format!("run {}", given.display()),
        source: io::Error::from_raw_os_error(libc::ENOENT),
        hint: "cargo build --release, and give the path of target/release/segue".into(),
    })?;
    Ok(fs::canonicalize(&found).unwrap_or(found))
}

/// Creates a host whose children run on `cpu` and are counted there. It has IPv4 only, so that nothing but the load
/// passes.
pub(super) fn host(name: &str, cpu: &Arc<Cpu>) -> Result<Host, LabError> {
    let host = host_with_ipv6(name, cpu)?;
    for which in ["all", "default"] {
        match host.set_sysctl(&format!("ipv6/conf/{which}/disable_ipv6"), "1") {
            Err(LabError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(host)
}

/// Makes a host as [`host`] does, with IPv6 too.
pub(super) fn host_with_ipv6(name: &str, cpu: &Arc<Cpu>) -> Result<Host, LabError> {
    let mut host = Host::new(name)?;
    host.account(cpu);
    Ok(host)
}

/// Joins two cards by a cable and configures them. Frames that one sends are received on the other's processor.
pub(super) fn cable(near: &Card<'_>, far: &Card<'_>) -> Result<(), LabError> {
    let netns = far.host.net_path();
    let (near_mtu, far_mtu) = (near.mtu.to_string(), far.mtu.to_string());
    let words = ["link", "add", near.name, "mtu", &near_mtu, "type", "veth", "peer", "name", far.name, "mtu", &far_mtu];
    near.host.run("ip", &[&words[..], &["netns", &netns]].concat())?;
    for card in [near, far] {
        ethtool(card.host, card.name, card.features)?;
        card.host.run("ip", &["link", "set", card.name, "up"])?;
        steer(card.host, card.name, card.core)?;
    }
    wait_until_up(&[(near.host, near.name), (far.host, far.name)])
}

/// Receive buffer of TCP whose window is less than 256 frames of 1500 bytes.
const RING_MEMORY: &str = "4096 131072 400000";

/// Sets receive packet steering, so that this processor handles the frames that the card receives.
fn steer(host: &Host, device: &str, core: usize) -> Result<(), LabError> {
    // Words of 32 processors, the highest first, separated by commas.
    let mut mask = format!("{:x}", 1u32 << (core % 32));
    for _ in 0..core / 32 {
        mask.push_str(",00000000");
    }
    write(host, &format!("/sys/class/net/{device}/queues/rx-0/rps_cpus"), &mask)
}

/// Writes a file in the host's `/sys`.
fn write(host: &Host, path: &str, value: &str) -> Result<(), LabError> {
    host.run("sh", &["-c", "echo \"$1\" > \"$2\"", "sh", value, path]).map(drop).map_err(|error| {
        // In a user namespace the kernel refuses files of /sys that root may write.
        let is_root = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
        if is_root {
            return error;
        }
        LabError::System {
            what: format!("run this bench without root: it writes {path}"),
            source: std::io::Error::from_raw_os_error(libc::EPERM),
            hint: "sudo segue bench ...".to_owned(),
        }
    })
}

/// Switches on GRO for a card, on the processor that sends to it. A veth pair aggregates on the processor of the
/// sender, which here is the receiver's as well.
pub(super) fn aggregate_with_sender(host: &Host, device: &str) -> Result<(), LabError> {
    ethtool(host, device, &["gro", "on"])
}

/// Switches the card's GRO on, in a thread of the kernel that runs on the host's processor and counts as the host's.
/// Without that a veth pair aggregates on the sender's processor. Like the interrupt that it stands for, the thread
/// waits for no other task. `None`, or why it cannot be.
pub(super) fn aggregate(host: &Host, device: &str) -> Result<Option<String>, LabError> {
    // With GRO a veth end queues 256 frames and drops the rest, where a card has thousands and pause frames: more than
    // that is not to be on its way.
    host.set_sysctl("ipv4/tcp_rmem", RING_MEMORY)?;
    aggregate_in_thread(host, device)
}

fn aggregate_in_thread(host: &Host, device: &str) -> Result<Option<String>, LabError> {
    ethtool(host, device, &["gro", "on"])?;
    if write(host, &format!("/sys/class/net/{device}/threaded"), "1").is_err() {
        return Ok(Some("this kernel has no threaded NAPI, which steers GRO to a processor".into()));
    }
    let Some(cpu) = host.cpu() else { return Ok(None) };
    let begin = Instant::now();
    // The thread's name is cut at 15 bytes and may stand before its number.
    let prefix = format!("napi/{device}-");
    let mut adopted = Err(io::Error::from(io::ErrorKind::NotFound));
    while adopted.is_err() && begin.elapsed() < Duration::from_secs(2) {
        let found = tasks_named(&prefix);
        if !found.is_empty() {
            // Before it has run for the first time it cannot be moved.
            adopted = found.into_iter().try_for_each(|task| cpu.adopt(task).and_then(|()| sys::run_at_once(task)));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(adopted.err().map(|error| format!("the kernel's GRO thread cannot be moved: {error}")))
}

fn tasks_named(prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with(prefix)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns a device name that no other bench on this machine uses, short enough to fit a thread's name.
pub(super) fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(61).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("n{:04x}", number & 0xffff)
}

/// Limits the transmit rate of the card, for instance to `10gbit`.
pub(super) fn shape(host: &Host, device: &str, rate: &str) -> Result<(), LabError> {
    // A large quantum unit keeps htb from complaining about fast classes; the burst is a few trains.
    host.run("tc", &["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1", "r2q", "10000"])?;
    let class = ["class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate];
    host.run("tc", &[&class[..], &["burst", "256k", "cburst", "256k"]].concat()).map(drop)
}

/// Adds a queue in which frames wait while the other end of the veth pair has no room, as in a card's driver; without
/// the queue they are dropped. Kernels before 6.16 drop them nevertheless.
pub(super) fn wait_when_full(host: &Host, device: &str) -> Result<(), LabError> {
    host.run("tc", &["qdisc", "add", "dev", device, "root", "pfifo", "limit", "10000"]).map(drop)
}

/// Creates a third host between two cards, on the load's processor, which stands for the wire. It hands on what it
/// gets, cut to frames of `mtu` on the way to `far`: the near card has segmentation offload, and this is it. With
/// `sums` `off` it completes the checksums, and the far card has nothing to say about them.
///
/// Frames are handed on as copies of their descriptors and the originals freed here, as a card frees what it has sent.
/// Else the receiver would free the sender's frames, and Linux lets the processor that frees a frame send the next ones
/// (TCP small queues): the sender's work would be in the receiver's figures.
pub(super) fn wire(name: &str, cpu: &Arc<Cpu>, mtu: u32, sums: &str, ends: [&Card<'_>; 2]) -> Result<Host, LabError> {
    let host = host(name, cpu)?;
    let core = cpu.core().unwrap_or_default();
    let side = |name, features| Card { host: &host, name, mtu, features, core };
    cable(ends[0], &side(NEAR, &["gro", "off"]))?;
    cable(&side(FAR, &["tso", "off", "tx", sums, "gro", "off"]), ends[1])?;
    for (from, to) in [(NEAR, FAR), (FAR, NEAR)] {
        host.run("tc", &["qdisc", "add", "dev", from, "handle", "ffff:", "ingress"])?;
        let filter =
            ["filter", "add", "dev", from, "parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0"];
        host.run("tc", &[&filter[..], &["action", "mirred", "egress", "mirror", "dev", to]].concat())?;
    }
    Ok(host)
}

/// Makes the wire fetch frames from the near card as a network card would: its own processor polls at least every 20 us
/// while there are frames, and is not woken for each one. In a virtual machine such a wake-up costs the sender more
/// than the frame. Only frames of cards that cut trains come this way (`tso off`).
pub(super) fn fetch_by_wire(wire: &Host) -> Result<Option<String>, LabError> {
    const SETTINGS: [(&str, &str); 2] = [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "20000")];
    // Not what is asked for, but what makes a veth end fetch; nothing is joined below two frames.
    wire.run("ip", &["link", "set", "dev", NEAR, "gro_max_size", "1500"])?;
    for (name, value) in SETTINGS {
        write(wire, &format!("/sys/class/net/{NEAR}/{name}"), value)?;
    }
    aggregate_in_thread(wire, NEAR)
}

/// Name of the wire's device at the sender's side.
const NEAR: &str = "w0";
/// Name of the wire's device at the receiver's side.
pub(super) const FAR: &str = "w1";

/// Adds a host's address to a device: [`Peer::address`] of net 0.
pub(super) fn address(host: &Host, end: Peer, device: &str, family: Family) -> Result<(), LabError> {
    link::address(host, end, device, 0, &[family])
}

/// Starts `segue gateway CARD tap:TAP@INSIDE` in `outside`, named `bench`, and waits for the TAP.
pub(super) fn gateway(
    program: &Path,
    (outside, card): (&Host, &str),
    (inside, tap): (&Host, &str),
    flags: &[String],
) -> Result<Process, LabError> {
    let mut command = outside.command(program);
    command.args(["gateway", card, &format!("tap:{tap}@{}", inside.net_path()), "--name", "bench"]).args(flags);
    let mut process = Process::spawn(command, b"")?;
    let begin = Instant::now();
    while !inside.run("ip", &["-o", "link", "show", "up"])?.contains(&format!(" {tap}:")) {
        interrupt::check()?;
        if process.ended().is_some() || begin.elapsed() > Duration::from_secs(5) {
            return Err(process.failure(&format!("no device {tap}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    // No aggregation by the kernel behind the gateway.
    ethtool(inside, tap, &["gro", "off"])?;
    Ok(process)
}

/// Returns the seconds for which each host's processor has been used so far.
pub(super) fn cpu_seconds(hosts: [&Host; 2]) -> Result<[f64; 2], LabError> {
    let read = |host: &Host| host.cpu().map_or(Ok(0.0), |cpu| cpu.seconds());
    let both = read(hosts[0]).and_then(|first| Ok([first, read(hosts[1])?]));
    both.map_err(|source| LabError::system("read the CPU time", source))
}

/// Returns the number of frames that a device has received.
pub(super) fn received(host: &Host, device: &str) -> Result<u64, LabError> {
    let text = read(host, "/proc/thread-self/net/dev")?;
    let found = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == device).then(|| numbers.split_whitespace().nth(1)?.parse().ok())?
    });
    found.ok_or_else(|| LabError::system(format!("count the frames of {device}"), io::ErrorKind::NotFound.into()))
}

/// Returns the number of units that TCP has received; a train is one.
pub(super) fn tcp_units(host: &Host) -> Result<u64, LabError> {
    tcp_counter(host, "InSegs")
}

/// Returns one of TCP's counters in `/proc/net/snmp`.
pub(super) fn tcp_counter(host: &Host, wanted: &str) -> Result<u64, LabError> {
    let text = read(host, "/proc/thread-self/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pairs = names.split(' ').zip(values.split(' '));
    let found = pairs.into_iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok());
    found.ok_or_else(|| LabError::system(format!("read TCP's counter {wanted}"), io::ErrorKind::NotFound.into()))
}

fn read(host: &Host, path: &str) -> Result<String, LabError> {
    host.enter(|| fs::read_to_string(path))?.map_err(|source| LabError::system(format!("read {path}"), source))
}
