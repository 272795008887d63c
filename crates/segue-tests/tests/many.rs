//! Tests of a thousand tunnels on one socket, distinguished by GRE keys: each receives its own packets and replies
//! under its own key. (Some without UDP on one raw socket, with a kernel's tunnels at the other end: guest.rs.)

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, LinkForm, Process};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, capture, test_name, traffic, wire};
use serde_json::Value;

const TUNNELS: u16 = 1000;
/// Time for all interfaces to come up.
const START: Duration = Duration::from_secs(60);
/// Longest wait for all answers.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: u8 = 8;
const REPLY: u8 = 0;

/// Returns the inner addresses of both ends of tunnel `n`, in a /30 of its own.
fn inner(n: u16) -> [Ipv4Addr; 2] {
    [1, 2].map(|host| Ipv4Addr::new(198, 19, (n >> 6) as u8, (n & 63) as u8 * 4 + host))
}

fn configuration() -> String {
    let mut text = String::new();
    for n in 0..TUNNELS {
        let near = inner(n)[0];
        write!(
            text,
            "[[tunnel]]\ndev = \"t{n}\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {n}\naddr = [\"{near}/30\"]\n"
        )
        .unwrap();
    }
    text
}

/// Builds GUE and GRE with key `n` around an echo request, or the expected reply.
fn echo(n: u16, kind: u8) -> Vec<u8> {
    let [near, far] = inner(n);
    let (source, destination) = if kind == ECHO { (far, near) } else { (near, far) };
    let mut icmp =
        [&[kind, 0, 0, 0][..], &n.to_be_bytes(), &[0, 1], b"of this tunnel and no other", &n.to_be_bytes()].concat();
    let checksum = !wire::sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    let len = 20 + icmp.len() as u16;
    let mut ip =
        [&[0x45, 0][..], &len.to_be_bytes(), &[0, 9, 0, 0, 64, 1, 0, 0], &source.octets(), &destination.octets()]
            .concat();
    let checksum = !wire::sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let gre = [&[0x20, 0, 8, 0][..], &u32::from(n).to_be_bytes()].concat();
    wire::gue([0, 47, 0, 0], &[], &[gre, ip, icmp].concat())
}

/// Returns the number of the tunnel that a datagram is from, if the datagram is a correct echo reply.
fn answered(datagram: &[u8]) -> Option<u16> {
    let key = u32::from_be_bytes(datagram.get(8..12)?.try_into().ok()?);
    let n = u16::try_from(key).ok()?;
    let expected = echo(n, REPLY);
    // From the addresses on: identification, TTL and checksum of the IP header are the host's.
    let same = datagram.len() == expected.len() && datagram[..12] == expected[..12] && datagram[24..] == expected[24..];
    same.then_some(n)
}

/// Starts `segue run` at A with the given file and waits until all its instances are up.
fn running(ground: &Ground, directory: &capture::Directory, configuration: &str) -> Process {
    let file = directory.file("many.toml");
    std::fs::write(&file, configuration).unwrap();
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut process = Process::spawn(command, b"").unwrap();
    let ready = process.wait_for_line("\"event\":\"ready\"", START);
    ready.unwrap_or_else(|error| panic!("{error}\n{}", process.last_words()));
    process
}

#[test]
fn a_thousand_tunnels_share_one_socket_and_each_answers_for_itself() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let directory = capture::Directory::new();
    let mut process = running(&ground, &directory, &configuration());

    let sockets = ground.a.run("cat", &["/proc/net/udp"]).unwrap();
    let bound = sockets.lines().filter(|line| line.contains(":17C0 ")).count();
    assert_eq!(bound, 1, "sockets on port 6080:\n{sockets}");

    let far = traffic::inside(&ground.b, || UdpSocket::bind(("198.18.0.2", 6080))).unwrap();
    far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut missing: BTreeSet<u16> = (0..TUNNELS).collect();
    let begin = Instant::now();
    let mut buffer = [0; 2048];
    while !missing.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "no answer from {} of {TUNNELS}: {missing:?}", missing.len());
        // A few at a time: what does not fit the socket's queue is lost.
        for n in missing.iter().take(50) {
            far.send_to(&echo(*n, ECHO), "198.18.0.1:6080").unwrap();
        }
        let mut left = missing.len().min(50);
        while let (1.., Ok((len, _))) = (left, far.recv_from(&mut buffer)) {
            // The kernel's own packets of new interfaces come too.
            if let Some(n) = answered(&buffer[..len]) {
                left -= usize::from(missing.remove(&n));
            }
        }
    }

    let stat = Stat::read(&ground.a, &ground.program, "t0");
    let drops = stat.drops();
    assert!(drops.is_empty(), "{drops:?}");
    for n in [0, 1, 777, TUNNELS - 1] {
        let (got, sent) =
            (stat.count(&format!("t{n}"), "transmit", "packets"), stat.count(&format!("t{n}"), "receive", "packets"));
        assert!(got >= 1 && sent >= 1, "t{n}: {got} in, {sent} out");
    }
    // Asked by the name of any of its interfaces.
    let text = ground.a.run(ground.program.to_str().unwrap(), &["stat", "t777", "-j"]).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["instances"][0]["name"], "t0");

    // What has a key of none is refused by name, and moves no counter of a tunnel.
    for _ in 0..5 {
        let mut other = echo(0, ECHO);
        other[8..12].copy_from_slice(&70_000_u32.to_be_bytes());
        far.send_to(&other, "198.18.0.1:6080").unwrap();
    }
    let stat =
        Stat::until(&ground.a, &ground.program, "t0", Duration::from_secs(3), |s| s.dropped("gre_mismatch") >= 5);
    assert_eq!(stat.dropped("gre_mismatch"), 5);
    // All interfaces at once, or the kernel takes them away one by one, for half a minute.
    let batch = directory.file("batch");
    let lines: String = (0..TUNNELS).map(|n| format!("link set dev t{n} group 5\n")).collect();
    std::fs::write(&batch, lines + "link del group 5\n").unwrap();
    ground.a.run("ip", &["-batch", batch.to_str().unwrap()]).unwrap();
    process.stop(Duration::from_secs(60)).expect("it ends");
}

/// Tests that a tunnel in which no packet moves, which is not judged again while nothing changes, is judged when its
/// underlay has changed.
#[test]
fn an_idle_tunnel_is_unwell_when_its_underlay_goes_down() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    // The kernel sends nothing of its own by an interface for IPv4.
    let _pair = Pair::start(&ground, Shape::new(Inside::Ipip, Carrier::Gue, Family::V4), 1);
    let state = |is_well: bool| {
        let fits = move |stat: &Stat| stat.json()["health"].as_array().is_none_or(Vec::is_empty) == is_well;
        let stat = Stat::until(&ground.a, &ground.program, &Shape::device(1), PATIENCE, fits);
        assert!(fits(&stat), "{stat:?}");
        stat
    };
    state(true);
    // Several looks.
    thread::sleep(Duration::from_secs(3));
    state(true);
    ground.a.run("ip", &["link", "set", "dev", "eth0", "down"]).unwrap();
    assert_eq!(state(false).json()["health"][0]["code"], "link_down");
}
