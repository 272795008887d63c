//! Tests of several workers: each moves a share of the flows, and the packets of a flow never overtake each other.

#[path = "common/workers.rs"]
mod common;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{cable, in_parallel, on_one_processor, shares};
use segue_lab::{Family, Host, LinkForm, Peer, Process, reach};
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, test_name};
use serde_json::Value;

/// Number of flows of each kind, so large that the probability that one of two workers gets none is 1 in 2^31.
const FLOWS: usize = 32;
/// Number of datagrams that a flow sends one right after the other, so that two workers would have some of them at the
/// same time if they shared the flow.
const BURST: u32 = 10;
/// Numbers of TCP connections in each direction, and the bytes that each may have under way, in the rounds in which
/// nothing may be dropped: from what no queue should drop to less.
const RATES: [(u64, u32); 4] = [(4, 16_384), (2, 16_384), (2, 8192), (1, 8192)];
/// Time without a datagram after which the missing ones are lost.
const QUIET: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// Datagrams of all flows: such that are sent whole, such that are sent in fragments, of which only the first has the
/// ports, and flows that have both kinds in turn.
const DATAGRAMS: [Datagrams; 3] = [
    Datagrams { lens: [204; 2], each: 100, pause: Duration::from_micros(250) },
    Datagrams { lens: [3000; 2], each: 20, pause: Duration::from_millis(2) },
    Datagrams { lens: [3000, 204], each: 40, pause: Duration::from_millis(1) },
];
/// Length of the longest one.
const LONGEST: usize = 3000;

/// Numbered datagrams of many flows.
#[derive(Clone, Copy, Debug)]
struct Datagrams {
    /// Bytes of one with an even number, and of one with an odd number.
    lens: [usize; 2],
    /// Number of those of each flow in each direction.
    each: u32,
    /// Time between two bursts.
    pause: Duration,
}

/// Returns a bound socket of a host, with a time limit.
fn socket(place: Place<'_>) -> UdpSocket {
    let socket = traffic::inside(place.host, || UdpSocket::bind((place.address, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    socket
}

/// Receives numbered datagrams until all of `count` were received, or none for a while after `is_sent`. Returns the
/// numbers of each flow, which is a socket and a sender, in the order of their arrival.
#[track_caller]
fn receive(sockets: &[&UdpSocket], count: usize, is_sent: impl Fn() -> bool) -> Vec<Vec<u32>> {
    let mut flows: BTreeMap<(usize, SocketAddr), Vec<u32>> = BTreeMap::new();
    let (mut bytes, mut came, mut last) = ([0; LONGEST], 0, Instant::now());
    while came < count && !(is_sent() && last.elapsed() > QUIET) {
        for (at, socket) in sockets.iter().enumerate() {
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let number = bytes[..len].first_chunk().expect("a number");
                flows.entry((at, from)).or_default().push(u32::from_be_bytes(*number));
                (came, last) = (came + 1, Instant::now());
                if came == count {
                    break;
                }
            }
        }
    }
    flows.into_values().collect()
}

/// Calls `send` with the flow and the number of each datagram: a burst of each flow, then the next one of each.
fn in_bursts(datagrams: Datagrams, send: impl Fn(usize, u32)) {
    for first in (0..datagrams.each).step_by(BURST as usize) {
        for flow in 0..FLOWS {
            (first..first + BURST).for_each(|number| send(flow, number));
            thread::sleep(datagrams.pause);
        }
    }
}

/// Sends numbered datagrams of many flows in both directions at once, and returns the number that arrived after a later
/// one of their flow. The other direction of a flow arrives meanwhile, which would move it to another queue if queues
/// were chosen by what was received. Lost ones are not counted: buffers are finite.
#[track_caller]
fn overtaken(a: Place<'_>, b: Place<'_>, datagrams: Datagrams) -> usize {
    let far = socket(b);
    let near: Vec<UdpSocket> = (0..FLOWS).map(|_| socket(a)).collect();
    let (to, back): (SocketAddr, Vec<SocketAddr>) =
        (far.local_addr().unwrap(), near.iter().map(|socket| socket.local_addr().unwrap()).collect());
    let send = |number: u32, from: &UdpSocket, to: SocketAddr| {
        let mut bytes = vec![0x5a; datagrams.lens[number as usize % 2]];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        from.send_to(&bytes, to).unwrap();
    };
    let all = FLOWS * datagrams.each as usize;
    let flows = thread::scope(|scope| {
        let forth = scope.spawn(|| in_bursts(datagrams, |flow, number| send(number, &near[flow], to)));
        let answers = scope.spawn(|| in_bursts(datagrams, |flow, number| send(number, &far, back[flow])));
        let mut flows = receive(&[&far], all, || forth.is_finished());
        // Meanwhile the others waited in their buffers, in the order of arrival.
        flows.extend(receive(&near.iter().collect::<Vec<_>>(), all, || answers.is_finished()));
        flows
    });
    assert_eq!(flows.len(), 2 * FLOWS, "every flow arrived");
    let came: usize = flows.iter().map(Vec::len).sum();
    assert!(came > all, "{came} of {} came", 2 * all);
    flows.iter().flat_map(|numbers| numbers.windows(2)).filter(|pair| pair[0] > pair[1]).count()
}

/// Returns the numbers of packets that interfaces and TCP of the hosts, and instances, have dropped, by place.
#[track_caller]
fn drops(hosts: &[&Host], instances: &[Stat]) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for host in hosts {
        let text = host.run("ip", &["-j", "-s", "link"]).unwrap();
        let links: Value = serde_json::from_str(&text).unwrap();
        for link in links.as_array().unwrap() {
            let name = link["ifname"].as_str().unwrap();
            for direction in ["rx", "tx"] {
                let count = link["stats64"][direction]["dropped"].as_u64().unwrap_or(0);
                drops.insert(format!("{}: {name} {direction}", host.name()), count);
            }
        }
        for name in ["TCPBacklogDrop", "TCPRcvQDrop"] {
            drops.insert(format!("{}: {name}", host.name()), traffic::tcp_counter(host, name));
        }
    }
    for (at, stat) in instances.iter().enumerate() {
        let counts = stat.drops().into_iter();
        drops.extend(counts.map(|(reason, count)| (format!("instance {at}: {reason}"), count)));
    }
    drops
}

/// Transfers files in both directions at once and returns how many segments arrived out of order. Behind a lost segment
/// the others are out of order whatever a worker does, so that what counts is a round in which nothing was dropped.
/// Senders keep so little under way that no queue drops any; where one does nevertheless, they keep less.
///
/// # Panics
/// If something was dropped in every round.
#[track_caller]
fn out_of_order(a: Place<'_>, b: Place<'_>, hosts: &[&Host], instances: impl Fn() -> Vec<Stat>) -> u64 {
    let late = || [a, b].map(|place| traffic::tcp_counter(place.host, "TCPOFOQueue")).iter().sum::<u64>();
    let mut lossy: Vec<BTreeMap<String, u64>> = Vec::new();
    for (connections, bytes) in RATES {
        let buffers = format!("4096 {bytes} {bytes}");
        [a, b].iter().for_each(|place| place.host.set_sysctl("ipv4/tcp_wmem", &buffers).unwrap());
        let (late_before, before) = (late(), drops(hosts, &instances()));
        thread::scope(|scope| {
            for seed in 0..connections {
                scope.spawn(move || traffic::file(a, b, 256 << 10, seed));
                scope.spawn(move || traffic::file(b, a, 256 << 10, seed + 50));
            }
        });
        let mut lost = drops(hosts, &instances());
        for (place, count) in &mut lost {
            *count = count.saturating_sub(before.get(place).copied().unwrap_or(0));
        }
        lost.retain(|_, count| *count > 0);
        if lost.is_empty() {
            return late() - late_before;
        }
        lossy.push(lost);
    }
    panic!("no round without drops, which were {lossy:?}");
}

/// Checks that each of two workers had a share of every port, and that the instance's counters are their sum.
#[track_caller]
fn all_share(stat: &Stat, ports: [&str; 2]) {
    for port in ports {
        let shares = shares(stat, port);
        assert!(shares.len() == 2 && shares.iter().all(|share| *share > 0), "{port}: {shares:?}");
        let text = &stat.json()["ports"][port]["receive"]["packets"];
        assert!(text.as_u64().is_some_and(|sum| sum >= shares.iter().sum()), "{port}: {shares:?} of {text}");
    }
}

const TUNNELS: [Shape; 2] = [
    Shape { extra: &["workers", "2"], ..Shape::new(Inside::Gre, Carrier::Gue, Family::V4) },
    Shape { extra: &["workers", "2"], ..Shape::new(Inside::Vxlan, Carrier::Bare, Family::V6) },
];

#[test]
fn two_workers_share_the_flows_of_a_tunnel_and_none_is_reordered() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["taskset"]) else { return };
    on_one_processor();
    for (shape, net) in TUNNELS.into_iter().zip(1..) {
        let pair = Pair::start(&ground, shape, net);
        pair.stat().iter().for_each(in_parallel);
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
            for datagrams in DATAGRAMS {
                assert_eq!(overtaken(a, b, datagrams), 0, "{shape}, IPv{family}: {datagrams:?}");
            }
            let late = out_of_order(a, b, &[&ground.a, &ground.b], || pair.stat().into());
            assert_eq!(late, 0, "{shape}, IPv{family}: segments");
        }
        let [a, _] = pair.stat();
        all_share(&a, [&Shape::device(net), "udp"]);
    }
}

#[test]
fn two_workers_share_the_flows_of_a_gateway_and_none_is_reordered() {
    let Some(ground) = Ground::apart(test_name!(), &["taskset"]) else { return };
    on_one_processor();
    let middle = Host::new("middle").unwrap();
    cable(&ground.a, &middle, "e1", "198.18.0.1/24");
    cable(&ground.b, &middle, "e2", "198.18.0.2/24");
    let start = |ends: &[&str]| {
        let mut command = middle.command(&ground.program);
        command.args(["-j", "gateway"]).args(ends).args(["--name", "gw0", "--workers", "2", "--hold-us", "50"]);
        Process::spawn(command, b"").expect("segue starts")
    };
    let a = Place { host: &ground.a, address: "198.18.0.1".parse().unwrap() };
    for (ends, ports, host) in [(["e1", "e2"], ["e1", "e2"], &ground.b), (["e1", "tap:t0"], ["e1", "t0"], &middle)] {
        let mut gateway = start(&ends);
        let b = Place { host, address: "198.18.0.2".parse().unwrap() };
        gateway.wait_for_line(r#""event":"up""#, PATIENCE).unwrap();
        if ports[1] == "t0" {
            middle.run("ip", &["addr", "add", "198.18.0.2/24", "dev", "t0"]).unwrap();
            ground.a.run("ip", &["neigh", "flush", "dev", "eth0"]).unwrap();
        }
        reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
        let stat = || Stat::read(&middle, &ground.program, "gw0");
        in_parallel(&stat());
        for datagrams in DATAGRAMS {
            assert_eq!(overtaken(a, b, datagrams), 0, "{ends:?}: {datagrams:?}");
        }
        let late = out_of_order(a, b, &[&ground.a, &ground.b, &middle], || vec![stat()]);
        assert_eq!(late, 0, "{ends:?}: segments");
        all_share(&stat(), ports);
        assert_eq!(gateway.stop(PATIENCE).and_then(|end| end.code()), Some(0));
    }
}

/// Tests a gateway whose user may load no programs: it starts with a note, and both workers share the flows.
#[test]
fn without_the_right_to_load_programs_a_gateway_has_the_hash_of_the_kernel_and_says_so() {
    let Some(ground) = Ground::apart(test_name!(), &["setpriv", "taskset"]) else { return };
    on_one_processor();
    let middle = Host::new("middle").unwrap();
    cable(&ground.a, &middle, "e1", "198.18.0.1/24");
    cable(&ground.b, &middle, "e2", "198.18.0.2/24");
    let words = ["gateway", "e1", "e2", "--name", "gw0", "--workers", "2"];
    let start = |more: &[&str]| {
        let mut command = middle.command("setpriv");
        command.args(["--inh-caps=-all", "--bounding-set=-bpf,-sys_admin"]).arg(&ground.program).args(words).args(more);
        Process::spawn(command, b"").expect("segue starts")
    };
    let mut check = start(&["--check"]);
    assert_eq!(check.wait(PATIENCE).unwrap().code(), Some(0), "{}", check.stderr());
    let text = check.stdout() + &check.stderr();
    assert!(text.contains("lacks CAP_BPF, so that fragments on e1 may be overtaken"), "{text}");
    let mut gateway = start(&["-j"]);
    gateway.wait_for_line(r#""event":"up""#, PATIENCE).unwrap();
    let text = gateway.stdout() + &gateway.stderr();
    assert!(text.contains("e1: whole and fragmented datagrams of a flow may overtake each other"), "{text}");
    let [a, b] = [(&ground.a, "198.18.0.1"), (&ground.b, "198.18.0.2")]
        .map(|(host, address)| Place { host, address: address.parse().unwrap() });
    reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    for datagrams in &DATAGRAMS[..2] {
        assert_eq!(overtaken(a, b, *datagrams), 0, "{datagrams:?}");
    }
    all_share(&Stat::read(&middle, &ground.program, "gw0"), ["e1", "e2"]);
    assert_eq!(gateway.stop(PATIENCE).and_then(|end| end.code()), Some(0));
}

#[test]
fn a_router_stays_at_one_worker_and_says_so_by_name() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    for (options, name) in [(&["--route"][..], "a router"), (&["--route", "--nat", "198.18.2.9"], "a NAT")] {
        let mut command = ground.a.command(&ground.program);
        let output = command.args(["gateway", "e1", "e2", "--workers", "2"]).args(options).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("`--workers 2` cannot serve {name}")), "{text}");
    }
}
