//! The checks of `segue doctor`. Devices are tried in a child process with a network namespace of its own, so that the
//! host is not changed.

use std::fs::{self, OpenOptions};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use segue_control::error::{Error, Kind, os_text, printable};
use segue_host::capability::has_net_admin;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_port::tun::driver;
use serde::{Deserialize, Serialize};

use super::{Check, Status};
use crate::diagnose::{self, Container, Purpose};
use crate::fastpath;

/// Runs all checks and returns their results in the order of the table; `links` are the interfaces whose offloads and
/// filters are checked; an empty list stands for all interfaces that are up.
pub fn all(links: &[String]) -> Result<Vec<Check>, Error> {
    let links = if links.is_empty() { links_up() } else { named(links)? };
    // The child processes come first: fork is safe only while the process has one thread.
    let tun = sys::in_child(|| serde_json::to_vec(&tun_in_namespace()).unwrap_or_default())
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Tun>(&bytes).ok());
    let user_namespace =
        sys::in_child(|| vec![u8::from(sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).is_ok())]);
    let mut checks = Vec::new();
    let device = device();
    let has_device = device.status == Status::Ok;
    checks.push(device);
    checks.extend(tun_checks(tun.as_ref()));
    checks.extend(udp());
    checks.push(capabilities());
    checks.push(namespaces(user_namespace.as_deref().unwrap_or_default() == [1], tun.as_ref(), has_device));
    checks.push(container(has_device));
    checks.push(landlock());
    checks.push(seccomp());
    checks.push(lsm());
    checks.extend(buffers());
    checks.extend(kernel_path(&links));
    checks.push(af_xdp());
    checks.push(guests());
    checks.push(Check::ok("simd", segue::checksum::implementation()));
    checks.extend(link_offloads(&links));
    Ok(checks)
}

/// The results of the child process that tries TUN devices.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Tun {
    /// Whether the child is in a new network namespace: `None` if it could not be created, else whether that needed a
    /// user namespace.
    namespace: Option<bool>,
    /// Error number of opening `/dev/net/tun`; `None` on success.
    open: Option<i32>,
    /// Error number of creating an interface; `None` on success.
    attach: Option<i32>,
    /// Feature flags of the driver (TUNGETFEATURES).
    features: u32,
    /// Lengths of the virtio-net header that the driver accepts, in bytes.
    headers: Vec<usize>,
    /// Sets of offload flags that the driver accepts.
    offloads: Vec<u32>,
}

const CSUM: u32 = 1;
const TSO: u32 = CSUM | 2 | 4;
const USO: u32 = CSUM | 0x20 | 0x40;
const TUNNEL: u32 = TSO | 0x80;

fn tun_in_namespace() -> Tun {
    let namespace = if sys::unshare(libc::CLONE_NEWNET).is_ok() {
        Some(false)
    } else if sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).is_ok() {
        Some(true)
    } else {
        None
    };
    let mut found = Tun { namespace, ..Tun::default() };
    let tun = match OpenOptions::new().read(true).write(true).open(diagnose::TUN) {
        Ok(tun) => tun,
        Err(error) => {
            found.open = error.raw_os_error().or(Some(0));
            return found;
        }
    };
    found.features = driver::features(tun.as_fd()).unwrap_or(0);
    if found.namespace.is_none() {
        // Without a namespace of its own the interface would appear on the host.
        return found;
    }
    match driver::probe(tun.as_fd(), &[10, 12, 24], &[CSUM, TSO, USO, TUNNEL]) {
        Ok(granted) => (found.headers, found.offloads) = (granted.header_lens, granted.offloads),
        Err(error) => found.attach = error.raw_os_error().or(Some(0)),
    }
    found
}

fn device() -> Check {
    match OpenOptions::new().read(true).write(true).open(diagnose::TUN) {
        Ok(_) => Check::ok("tun device", diagnose::TUN),
        Err(error) => {
            let told = diagnose::tun_open(Purpose::Tunnel, "an interface", &error);
            let fix = told.hint.lines().next().map(|line| line.split("   ").next().unwrap_or(line).to_owned());
            Check::not(
                "tun device",
                Status::Needed,
                format!("{}: {}", diagnose::TUN, os_text(&error)),
                flat(told.why),
                fix,
            )
        }
    }
}

fn flat(text: Option<String>) -> String {
    text.unwrap_or_default().replace('\n', " ")
}

fn tun_checks(found: Option<&Tun>) -> Vec<Check> {
    let unknown = |name, why: &str| Check::not(name, Status::Unknown, "not tried", why, None);
    let names = ["tun interface", "tun headers", "tun checksum", "tun tso", "tun uso", "tun tunnel gso"];
    let Some(tun) = found else { return names.iter().map(|name| unknown(name, "the probe did not run")).collect() };
    if tun.open.is_some() {
        return names.iter().map(|name| unknown(name, "the device does not open")).collect();
    }
    let Some(user_namespace) = tun.namespace else {
        return names.iter().map(|name| unknown(name, "no network namespace of its own to try it in")).collect();
    };
    if let Some(code) = tun.attach {
        let error = std::io::Error::from_raw_os_error(code);
        let mut checks = vec![Check::not(
            "tun interface",
            Status::Needed,
            os_text(&error),
            "the kernel or a security module refuses interfaces even in a namespace of its own",
            Some("sudo dmesg | grep -i denied".to_owned()),
        )];
        checks.extend(names[1..].iter().map(|name| unknown(name, "no interface could be made")));
        return checks;
    }
    let made = if user_namespace { "made in a user namespace" } else { "made in a network namespace" };
    let mut checks = vec![Check::ok("tun interface", made)];
    let lengths: Vec<String> = tun.headers.iter().map(ToString::to_string).collect();
    checks.push(if tun.headers.contains(&10) {
        Check::ok("tun headers", format!("virtio-net headers of {} bytes", lengths.join(", ")))
    } else {
        Check::not("tun headers", Status::Needed, "no virtio-net header", "trains cannot cross the interface", None)
    });
    let kernel = |version: &str| Some(format!("a kernel of {version} or later"));
    for (name, set, what, lost, since) in [
        ("tun checksum", CSUM, "checksums may be left out", "each inner checksum is computed", "2.6.27"),
        ("tun tso", TSO, "TCP trains, IPv4 and IPv6", "TCP crosses the interface packet by packet", "2.6.27"),
        ("tun uso", USO, "UDP trains, IPv4 and IPv6", "UDP crosses the interface packet by packet", "6.2"),
        ("tun tunnel gso", TUNNEL, "trains inside of tunnels", "tunnels in the tunnel go packet by packet", "6.17"),
    ] {
        checks.push(if tun.offloads.contains(&set) {
            Check::ok(name, what)
        } else {
            Check::not(name, Status::Missing, "the kernel refuses it", lost, kernel(since))
        });
    }
    checks
}

/// Sends a batch of datagrams over loopback with UDP GSO and receives it with UDP GRO.
fn udp() -> Vec<Check> {
    const SEGMENT: i32 = 100;
    let lost = "each datagram costs a system call";
    let not = |name, found: String| {
        Check::not(name, Status::Missing, found, lost, Some("a kernel of 5.0 or later".to_owned()))
    };
    let pair = UdpSocket::bind("127.0.0.1:0").and_then(|rx| {
        rx.set_read_timeout(Some(Duration::from_secs(1)))?;
        let tx = UdpSocket::bind("127.0.0.1:0")?;
        tx.connect(rx.local_addr()?)?;
        Ok((rx, tx))
    });
    let unreachable = |name, found: String| {
        let mends = Some("sudo ip link set lo up".to_owned());
        Check::not(name, Status::Unknown, found, "loopback is down or filtered", mends)
    };
    let (rx, tx) = match pair {
        Ok(pair) => pair,
        Err(error) => {
            let found = format!("no UDP on loopback: {}", os_text(&error));
            return ["udp_segment", "udp_gro"].into_iter().map(|name| unreachable(name, found.clone())).collect();
        }
    };
    let gro = sys::set_int_option(rx.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
    let sent = sys::set_int_option(tx.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT)
        .and_then(|()| tx.send(&[0x5a; 5 * SEGMENT as usize]));
    let segment_check = match sent {
        Ok(_) => Check::ok("udp_segment", "trains to a socket (sent one on loopback)"),
        Err(error) => not("udp_segment", os_text(&error)),
    };
    let mut buf = vec![0; 2048];
    let gro_check = match (gro, segment_check.status) {
        (Err(error), _) => not("udp_gro", os_text(&error)),
        (Ok(()), Status::Ok) => match sys::receive_with_gro(rx.as_fd(), &mut buf) {
            Ok((len, Some(SEGMENT))) if len == 5 * SEGMENT as usize => {
                Check::ok("udp_gro", "trains from a socket (received one on loopback)")
            }
            Ok((len, segment)) => not("udp_gro", format!("{len} bytes came with segment length {segment:?}")),
            Err(error) => unreachable("udp_gro", os_text(&error)),
        },
        (Ok(()), _) => {
            Check::not("udp_gro", Status::Unknown, "the option is taken", "no train could be sent to try it", None)
        }
    };
    vec![segment_check, gro_check]
}

fn capabilities() -> Check {
    let caps = sys::capabilities().unwrap_or(0);
    if has_net_admin(caps) {
        return Check::ok("cap_net_admin", format!("effective (uid {}, set {caps:#x})", sys::euid()));
    }
    Check::not(
        "cap_net_admin",
        Status::Missing,
        format!("not effective (uid {}, set {caps:#x})", sys::euid()),
        "no interface can be made on this host as this user; an interface made beforehand, or a user namespace, works",
        Some("sudo setcap cap_net_admin+ep $(command -v segue)".to_owned()),
    )
}

fn namespaces(user: bool, tun: Option<&Tun>, has_device: bool) -> Check {
    let network = tun.is_some_and(|tun| tun.namespace.is_some());
    match (user, has_device) {
        (true, true) => return Check::ok("namespaces", "user and network namespaces; segue lab works without root"),
        (true, false) => {
            return Check::ok("namespaces", "user and network namespaces; segue lab needs the tun device as well");
        }
        (false, _) => {}
    }
    let knob = [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("/proc/sys/user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=15000"),
    ];
    let fix = knob.iter().find(|(file, bad, _)| fs::read_to_string(file).is_ok_and(|text| text.trim() == *bad));
    let found = if network { "network namespaces, no user namespaces" } else { "neither user nor network namespaces" };
    let lost = if network { "segue lab needs root" } else { "segue lab does not run" };
    Check::not("namespaces", Status::Missing, found, lost, fix.map(|(_, _, fix)| (*fix).to_owned()))
}

fn container(has_device: bool) -> Check {
    match Container::find() {
        Container::No => Check::ok("container", "none that shows"),
        other if !has_device => Check::not(
            "container",
            Status::Missing,
            other.name(),
            "it does not give this process the tun device",
            Some(other.remedy().replace('\n', "; ")),
        ),
        other => {
            Check::ok("container", format!("{}; for a tunnel: {}", other.name(), other.remedy().replace('\n', "; ")))
        }
    }
}

fn landlock() -> Check {
    match sys::landlock_abi() {
        Some(abi) => Check::ok("landlock", format!("ABI {abi}")),
        None => Check::not(
            "landlock",
            Status::Missing,
            "not in this kernel, or not switched on",
            "a running tunnel keeps its user's access to files",
            Some("boot with lsm=landlock,... (5.13 or later)".to_owned()),
        ),
    }
}

fn seccomp() -> Check {
    if sys::has_seccomp_filters() {
        return Check::ok("seccomp", "filters of system calls");
    }
    Check::not("seccomp", Status::Missing, "no filters", "a running tunnel can use every system call", None)
}

fn lsm() -> Check {
    Check::ok("security modules", diagnose::security_modules().unwrap_or_else(|| "none that shows".to_owned()))
}

/// Checks the limits of socket buffers: trains arrive in bursts of several hundred kilobytes.
fn buffers() -> Vec<Check> {
    const MIN_BYTES: u64 = 4 << 20;
    [("rmem_max", "received"), ("wmem_max", "sent")]
        .into_iter()
        .map(|(name, done)| {
            let value = fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            match value.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
                Some(bytes) if bytes >= MIN_BYTES => Check::ok(name, format!("{bytes} bytes")),
                Some(bytes) => Check::not(
                    name,
                    Status::Missing,
                    format!("{bytes} bytes"),
                    format!(
                        "bursts of trains that are {done} find less room than {MIN_BYTES} bytes (root may exceed it)"
                    ),
                    Some(format!("sudo sysctl -w net.core.{name}={MIN_BYTES}")),
                ),
                None => {
                    Check::not(name, Status::Unknown, "cannot be read", "this network namespace does not show it", None)
                }
            }
        })
        .collect()
}

fn af_xdp() -> Check {
    match sys::probe_socket(libc::AF_XDP, libc::SOCK_RAW) {
        Ok(()) => Check::ok("af_xdp", "sockets can be made; this version does not use them"),
        Err(error) => Check::not(
            "af_xdp",
            Status::Missing,
            os_text(&error),
            "nothing is lost: this version does not use it",
            None,
        ),
    }
}

/// Checks the offloads of links, and estimates the gain of enabling them.
fn link_offloads(links: &[String]) -> Vec<Check> {
    const GTXCSUM: u32 = 0x16;
    const GGSO: u32 = 0x23;
    const GGRO: u32 = 0x2b;
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return Vec::new() };
    if links.is_empty() {
        let why = "no link but loopback is up, so that no packet leaves this host";
        return vec![Check::not("link offloads", Status::Unknown, "nothing to check", why, None)];
    }
    let mut checks = Vec::new();
    for name in links {
        let flag = |command| sys::ethtool_flag(socket.as_fd(), name, command).ok();
        let off: Vec<(&str, &str)> = [
            (GTXCSUM, "tx", "trains leave without a checksum pass over the payload"),
            (GGSO, "gso", "trains are cut at the driver, not before"),
            (GGRO, "gro", "received datagrams are gathered before they reach the socket"),
        ]
        .into_iter()
        .filter(|(command, ..)| flag(*command) == Some(false))
        .map(|(_, word, gain)| (word, gain))
        .collect();
        if off.is_empty() {
            checks.push(Check::ok("link offloads", format!("{name}: tx checksum, gso and gro are on or not reported")));
            continue;
        }
        let words: Vec<String> = off.iter().map(|(word, _)| format!("{word} on")).collect();
        let gains: Vec<&str> = off.iter().map(|(_, gain)| *gain).collect();
        let names: Vec<&str> = off.iter().map(|(word, _)| *word).collect();
        checks.push(Check::not(
            "link offloads",
            Status::Missing,
            format!("{name}: {} off", names.join(", ")),
            format!("with it on, {}", gains.join("; ")),
            Some(format!("sudo ethtool -K {name} {}", words.join(" "))),
        ));
    }
    checks
}

/// Checks whether the kernel can carry tunnels past the daemon: on this host, and for remotes behind each of the links
/// that have filters or programs which it would bypass.
fn kernel_path(links: &[String]) -> Vec<Check> {
    const GAIN: &str = "with it the kernel itself carries plain tunnels, at about the speed of its own";
    let not = |found: String, why: String, fix: Option<&str>| {
        Check::not("fastpath", Status::Missing, found, format!("{why}; {GAIN}"), fix.map(str::to_owned))
    };
    if let Err(why) = fastpath::probe(false) {
        return vec![not("the in-kernel path cannot be loaded".to_owned(), why, None)];
    }
    let mut checks = Vec::new();
    if let Err(why) = fastpath::probe(true) {
        checks.push(not("the in-kernel path is only for tunnels without UDP here".to_owned(), why, None));
    }
    let fix = Some("fastpath on, where outer packets may pass by that");
    match [true, false].into_iter().find_map(fastpath::host_obstacle) {
        Some(why) => checks.push(not("fastpath auto leaves tunnels to the daemon".to_owned(), why, fix)),
        None if checks.is_empty() => checks.push(Check::ok("fastpath", "the kernel can carry plain tunnels itself")),
        None => {}
    }
    if let Ok(mut netlink) = Netlink::open() {
        for link in links {
            if let Some(why) = fastpath::link_obstacle(link, &mut netlink) {
                checks.push(not(format!("fastpath auto leaves tunnels over {link} to the daemon"), why, fix));
            }
        }
    }
    checks
}

/// Returns QEMU's options for connecting a guest's network device to a port `vhost:PATH`.
fn guests() -> Check {
    let found = "`segue gateway vhost:PATH eth0` is the network device of a guest; QEMU's options for it";
    Check { fix: Some(QEMU.to_owned()), ..Check::ok("vhost_user", found) }
}

/// Options of QEMU for a guest of 1 GiB, and the different ones where QEMU listens, and under TCG. Memory that is
/// shared is what vhost-user works on; `reconnect` lets the guest continue when segue is restarted.
const QEMU: &str = "-object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -m 1G \
    -chardev socket,id=c0,path=PATH,reconnect=1 -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0\n\
    with vhost:PATH,client: -chardev socket,id=c0,path=PATH,server=on,wait=off\n\
    with QEMU 7.2 without KVM: -device virtio-net-pci,netdev=n0,vectors=0";

/// Returns the names of the links that are up, without loopback and without interfaces that a program made (TUN).
fn links_up() -> Vec<String> {
    /// Largest number of links that are checked; others can be named.
    const MOST: usize = 8;
    const UP: u32 = 1;
    let text = |name: &str, file: &str| fs::read_to_string(format!("/sys/class/net/{name}/{file}")).unwrap_or_default();
    let is_up = |name: &String| {
        let flags = u32::from_str_radix(text(name, "flags").trim().trim_start_matches("0x"), 16).unwrap_or(0);
        let is_tun = Path::new("/sys/class/net").join(name).join("tun_flags").exists();
        name != "lo" && !is_tun && flags & UP != 0 && text(name, "carrier").trim() == "1"
    };
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_up).collect();
    names.sort();
    names.truncate(MOST);
    names
}

/// Returns the links that the user named, which must exist.
fn named(links: &[String]) -> Result<Vec<String>, Error> {
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for links", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    for name in links {
        if !netlink.link_named(name).is_ok_and(|link| link.is_some()) {
            return Err(Error::new(Kind::NotFound, format!("there is no link `{}`", printable(name)), "ip -br link")
                .why("links are named as ip shows them"));
        }
    }
    Ok(links.to_vec())
}
