//! Tests of several workers: each moves a share of the flows, and the packets of a flow never overtake each other.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm, Peer, Process, reach};
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, test_name};

/// Number of flows of each kind, so large that the probability that one of two workers gets none is 1 in 2^31.
const FLOWS: usize = 32;
/// Number of datagrams of each flow in each direction.
const EACH: u32 = 100;
/// Time without a datagram after which the missing ones are lost.
const QUIET: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Binds all threads of this process, and all processes that it starts from now on, to one processor. Otherwise the
/// kernel itself lets packets overtake each other, where a thread continues on another processor while the first one
/// still has a packet of its own in a queue.
fn on_one_processor() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let (first, own) = (list.split([',', '-']).next().unwrap(), std::process::id().to_string());
    let output = Command::new("taskset").args(["-a", "-p", "-c", first, &own]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let (mut bytes, mut came, mut last) = ([0; 2048], 0, Instant::now());
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

/// Sends numbered datagrams of many flows in both directions at once, and returns the number that arrived after a later
/// one of their flow. The other direction of a flow arrives meanwhile, which would move it to another queue if queues
/// were chosen by what was received. Lost ones are not counted: buffers are finite.
#[track_caller]
fn overtaken(a: Place<'_>, b: Place<'_>) -> usize {
    let far = socket(b);
    let near: Vec<UdpSocket> = (0..FLOWS).map(|_| socket(a)).collect();
    let (to, back): (SocketAddr, Vec<SocketAddr>) =
        (far.local_addr().unwrap(), near.iter().map(|socket| socket.local_addr().unwrap()).collect());
    let send = |number: u32, from: &UdpSocket, to: SocketAddr| {
        let bytes: Vec<u8> = number.to_be_bytes().into_iter().chain([0x5a; 200]).collect();
        from.send_to(&bytes, to).unwrap();
    };
    let all = FLOWS * EACH as usize;
    let flows = thread::scope(|scope| {
        let forth = scope.spawn(|| {
            for at in 0..EACH {
                near.iter().for_each(|socket| send(at, socket, to));
                thread::sleep(Duration::from_millis(1));
            }
        });
        let answers = scope.spawn(|| {
            for at in 0..EACH {
                back.iter().for_each(|to| send(at, &far, *to));
                thread::sleep(Duration::from_millis(1));
            }
        });
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

/// Returns a counter of a host's TCP (`/proc/net/netstat`).
fn tcp(host: &Host, name: &str) -> u64 {
    let text = host.run("cat", &["/proc/net/netstat"]).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split(' '));
    names.zip(values).find(|(known, _)| *known == name).unwrap().1.parse().unwrap()
}

/// Returns the number of packets that the interfaces of a host have dropped.
fn dropped(host: &Host) -> u64 {
    let text = host.run("ip", &["-j", "-s", "link"]).unwrap();
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    let each = links.as_array().unwrap().iter().flat_map(|link| [&link["stats64"]["rx"], &link["stats64"]["tx"]]);
    each.map(|direction| direction["dropped"].as_u64().unwrap_or(0)).sum()
}

/// Transfers files in both directions at once and returns how many segments arrived out of order. Senders keep so
/// little under way that no queue drops any; `None` where one did nevertheless.
#[track_caller]
fn out_of_order(a: Place<'_>, b: Place<'_>) -> Option<u64> {
    let hosts = [a.host, b.host];
    hosts.iter().for_each(|host| host.set_sysctl("ipv4/tcp_wmem", "4096 16384 16384").unwrap());
    let before: Vec<u64> = hosts.iter().flat_map(|host| [tcp(host, "TCPOFOQueue"), dropped(host)]).collect();
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || traffic::file(a, b, 256 << 10, seed));
            scope.spawn(move || traffic::file(b, a, 256 << 10, seed + 50));
        }
    });
    let after: Vec<u64> = hosts.iter().flat_map(|host| [tcp(host, "TCPOFOQueue"), dropped(host)]).collect();
    let [late_a, lost_a, late_b, lost_b] = [0, 1, 2, 3].map(|at| after[at] - before[at]);
    (lost_a + lost_b == 0).then_some(late_a + late_b)
}

/// Returns the units that each worker of an instance has received from a port.
fn shares(stat: &Stat, port: &str) -> Vec<u64> {
    let workers = stat.json()["workers"].as_array().expect("workers");
    workers.iter().map(|worker| worker["ports"][port]["receive"]["packets"].as_u64().unwrap_or(0)).collect()
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
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
            assert_eq!(overtaken(a, b), 0, "{shape}, IPv{family}: datagrams");
            assert!(out_of_order(a, b).is_none_or(|late| late == 0), "{shape}, IPv{family}: segments");
        }
        let [a, _] = pair.stat();
        all_share(&a, [&Shape::device(net), "udp"]);
    }
}

/// Joins `eth0` of a host to `port` of another host, and brings both up.
fn cable(host: &Host, middle: &Host, port: &str, address: &str) {
    let ip = |host: &Host, line: &str| host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    ip(middle, &format!("link add {port} type veth peer name eth0 netns {}", host.net_path()));
    ip(middle, &format!("link set {port} addrgenmode none"));
    ip(middle, &format!("link set {port} up"));
    ip(host, &format!("addr add {address} dev eth0"));
    ip(host, "link set eth0 up");
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
        assert_eq!(overtaken(a, b), 0, "{ends:?}: datagrams");
        assert!(out_of_order(a, b).is_none_or(|late| late == 0), "{ends:?}: segments");
        all_share(&stat(), ports);
        assert_eq!(gateway.stop(PATIENCE).and_then(|end| end.code()), Some(0));
    }
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
