//! Test of tunnels, routers (one with NAT), gateways and an adapter together, under faults, reloads, changes of their
//! links, loss and floods: no resource grows, and each packet is accounted for. 15 seconds; `SEGUE_DRIFT` seconds if
//! that is set.
//!
//! At the end each process has a slope of its memory, and each way of packets one of its round trips, with the 95 %
//! interval. From an hour on the upper end is bounded, from ten minutes on the lower end: a shorter run cannot show
//! that nothing grows, but it can show that something does.

#[path = "common/adapter.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::PipeWriter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use common::{carrier, start, until};
use segue_lab::{DamageArea, Family, Faults, Host, LinkForm, Peer, Process, Relay, reach};
use segue_tests::faults::{Fault, Forwarder, PATIENCE, Service, field, parent, tail};
use segue_tests::flood::{Flood, Stations};
use segue_tests::routed::{ROUTER, Routed};
use segue_tests::soak::{Balance, Route, Slope, mean, p99, windows};
use segue_tests::traffic::{Place, socket};
use segue_tests::{Carrier, Ground, Inside, Pair, Random, Shape, Stat, sys, test_name};
use serde_json::Value;

/// Number of tunnels in the test. The last two have faults and reloads.
const TUNNELS: u8 = 4;
/// Number of tunnels whose processes stay.
const CALM: u8 = 2;
/// Largest allowed growth of a process's memory, in kB per hour.
const MOST_GROWTH: f64 = 256.0;
/// Largest allowed growth of the round-trip times, as a fraction per hour.
const MOST_SLOWER: f64 = 0.1;
/// Shortest run after which a slope above its bound is a fault.
const LONG: Duration = Duration::from_secs(10 * 60);
/// Shortest run after which a slope that may be above its bound is a fault.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(200);
/// Number of round trips of each route in a round.
const TRIPS: usize = 10;
/// Least number of rounds: each change happens.
const ROUNDS: u32 = 16;
/// Shortest time between two faults of an instance: more than three in a minute delay its restart.
const BETWEEN: Duration = Duration::from_secs(25);
/// Faults of the relay while its wire is bad.
const BAD: Faults = Faults { drop: 100, duplicate: 50, reorder: 50, damage: 0, area: DamageArea::Covered, seed: 1 };
/// Number of datagrams of each host while the wire is bad.
const LOST: usize = 200;
/// Longest wait for a datagram. A stall of the machine must not look like a loss.
const LATE: Duration = Duration::from_secs(10);
/// Rate of the flood, in frames per second.
const RATE: u32 = 1000;
/// Rate of the flood in a long run, in frames per second: that of the published figure.
const LONG_RATE: u32 = 10_000;
/// Drop reasons of packets that a port's receive counters do not include.
const EARLY: [&str; 4] = ["socket_overflow", "ring_full", "outer_csum", "device_down"];

/// A gateway to a TAP and an adapter at a USB/IP server, between two hosts.
struct Bridge {
    gateway: Process,
    driver: Process,
    model: Process,
    _pipes: [PipeWriter; 2],
    ground: Ground,
}

const CABLE: [&str; 2] = ["198.19.200.1", "198.19.200.2"];

impl Bridge {
    fn start(name: &str) -> Option<Bridge> {
        let ground = Ground::new(name, LinkForm::Nic, &[])?;
        let (a, b) = (&ground.a, &ground.b);
        b.run("ip", &["address", "flush", "dev", "eth0"]).unwrap();
        let mut command = b.command(&ground.program);
        command.args(["gateway", "eth0", "tap:lro0", "--name", "gw1", "-j"]);
        let mut gateway = Process::spawn(command, b"").unwrap();
        gateway.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        let there = Peer::B.address(0, Family::V4);
        b.run("ip", &["address", "add", &format!("{there}/24"), "dev", "lro0"]).unwrap();
        assert!(reach((a, Peer::A.address(0, Family::V4)), (b, there), PATIENCE).is_ok(), "{}", tail(&gateway));
        let (mut model, first) =
            start(a, &ground.program, &["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0"]);
        until("model", &mut model, |process| process.stderr().contains("is up"));
        // Its connection passes the gateway.
        let (mut driver, second) = start(b, &ground.program, &["up", "--usb", "usbip://198.18.0.1/1-1"]);
        until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
        for (host, device, address) in [(a, "cable0", CABLE[0]), (b, "lan0", CABLE[1])] {
            host.run("ip", &["address", "add", &format!("{address}/24"), "dev", device]).unwrap();
        }
        let [near, far]: [IpAddr; 2] = CABLE.map(|ip| ip.parse().unwrap());
        assert!(reach((a, near), (b, far), PATIENCE).is_ok(), "{}", tail(&driver));
        Some(Bridge { gateway, driver, model, _pipes: [first, second], ground })
    }
}

/// The resources that a process holds.
#[derive(Debug, Default)]
struct Held {
    name: String,
    resident_kb: Vec<(Duration, f64)>,
    descriptors: Vec<usize>,
}

impl Held {
    fn sample(&mut self, pid: u32, begin: Instant) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        self.resident_kb.push((begin.elapsed(), field(&status, "VmRSS").parse().unwrap()));
        self.descriptors.push(descriptors(pid));
    }

    /// Returns the smallest and largest number of descriptors in the first half: a service needs more while it reloads
    /// or starts an instance.
    fn first_half(&self) -> [usize; 2] {
        let first = self.descriptors[..self.descriptors.len() / 2].iter().copied();
        [first.clone().min(), first.max()].map(|count| count.expect("more than one round"))
    }
}

/// Returns the number of open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the process of a tunnel, once it answers.
fn pid_of(service: &Service, net: u8) -> u32 {
    service.patient_pid(&format!("sg{net}")).unwrap_or_else(|| panic!("sg{net}: {}", tail(&service.near)))
}

/// Returns the process that moves the packets of an instance.
fn worker(host: &Host, ground: &Ground, name: &str) -> u32 {
    let stat = Stat::until(host, &ground.program, name, PATIENCE, |stat| stat.json()["pid"].as_u64() > Some(0));
    u32::try_from(stat.json()["pid"].as_u64().unwrap()).unwrap()
}

/// Records a process with all of its descendants, by their names.
fn tree(name: &str, pid: u32, found: &mut BTreeMap<u32, Held>) {
    found.insert(pid, Held { name: format!("{name} {pid}"), ..Held::default() });
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    for child in children.split_ascii_whitespace() {
        tree(&format!("{name}'s"), child.parse().unwrap(), found);
    }
}

/// Sends the frames of all floods in turn.
fn flood(routed: &Routed, rate: u32) -> Flood {
    let stations = Stations::between((&routed.ground.a, "eth0"), (&routed.router, "in"));
    let server = Ipv4Addr::new(198, 18, 2, 2);
    let mut number = 0_u32;
    Flood::start(&routed.ground.a, "eth0", rate, move |random: &mut Random| {
        number += 1;
        let word = random.word();
        let inside = Ipv4Addr::new(198, 18, 1, 3 + (word % 250) as u8);
        let ports = [random.word() as u16 | 1, 9];
        match number % 6 {
            0 => stations.udp([inside, server], ports, 64),
            1 => stations.arp(inside, Ipv4Addr::new(198, 18, 1, 1)),
            2 => {
                let station = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, word as u16, random.word() as u16);
                stations.solicitation(station, "2001:db8:1::77".parse().unwrap())
            }
            3 => stations.udp([inside, server], ports, 1),
            4 => {
                let data = [&ports[0].to_be_bytes()[..], &[0, 9, 2, 0, 0, 0], &[7; 24]].concat();
                stations.ipv4([inside, server], 17, 64, (word as u16, 0x2000), &data)
            }
            _ => stations.syn([inside, server], ports, word as u32),
        }
    })
}

/// Waits until all packets of an instance are accounted for.
#[track_caller]
fn balanced(name: &str, made: &[&str], taken: &[&str], stat: impl Fn() -> Value) {
    let begin = Instant::now();
    loop {
        let stat = stat();
        let found = Balance::of(&stat, &EARLY, made, taken);
        // Fragments of datagrams that never end wait for half a minute.
        if found.missing() == 0 || begin.elapsed() > 2 * PATIENCE {
            println!(
                "balance {name}: {} packets came, {} are missing",
                found.came.values().sum::<u64>(),
                found.missing()
            );
            assert_eq!(found.missing(), 0, "{name}: {found:#?} {stat}");
            return;
        }
        thread::sleep(PAUSE);
    }
}

#[test]
fn a_service_under_faults_and_changes_grows_nowhere() {
    let made = Service::prepared(test_name!(), TUNNELS, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = made else { return };
    let Some(wire) = Ground::apart(test_name!(), &[]) else { return };
    let relay = Relay::between(&wire.a, &wire.b).expect("a relay");
    let lossy = Pair::start(&wire, Shape::new(Inside::GreKeyCsum, Carrier::Fou, Family::V4), 1);
    let Some(routed) = Routed::new(test_name!(), &[], &["--nat", "198.18.2.9"]) else { return };
    let Some(bridge) = Bridge::start(test_name!()) else { return };
    let longest = std::env::var("SEGUE_DRIFT").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let longest = Duration::from_secs(longest);
    let begin = Instant::now();
    let mut held = BTreeMap::new();
    for net in 1..=CALM {
        let supervisor = parent(pid_of(&service, net));
        tree(&format!("sg{net}"), supervisor, &mut held);
    }
    held.insert(service.near.id(), Held { name: format!("service {}", service.near.id()), ..Held::default() });
    let alone = [
        ("router", &routed.process),
        ("gateway", &bridge.gateway),
        ("adapter", &bridge.driver),
        ("model", &bridge.model),
        ("lossy tunnel", &lossy.at_a.process),
    ];
    for (name, process) in alone {
        tree(name, process.id(), &mut held);
    }
    let pids = || {
        let tunnels = (1..=CALM).map(|net| pid_of(&service, net));
        let b = &bridge.ground;
        let others = [worker(&routed.router, &routed.ground, ROUTER), worker(&b.b, b, "gw1"), worker(&b.b, b, "lan0")];
        let others = others.into_iter().chain([&wire.a, &wire.b].map(|host| worker(host, &wire, &lossy.at_a.device)));
        tunnels.chain(others).collect::<Vec<u32>>()
    };
    let before = pids();
    let at = |host, address| Place { host, address };
    let [cable, lan]: [IpAddr; 2] = CABLE.map(|ip| ip.parse().unwrap());
    let (a, b) = (&bridge.ground.a, &bridge.ground.b);
    let link = [Peer::A, Peer::B].map(|end| end.address(0, Family::V4));
    let tunnel = |name, net| {
        let [near, far] = [Peer::A, Peer::B].map(|end| end.address(net, Family::V4));
        Route::new(name, at(&service.ground.a, near), at(&service.ground.b, far))
    };
    let mut routes = [
        tunnel("sg1", 1),
        tunnel("sg2", 2),
        Route::new("router", routed.client(Family::V6), routed.server(Family::V6)),
        Route::new("nat", routed.client(Family::V4), routed.server(Family::V4)),
        Route::new("gateway", at(a, link[0]), at(b, link[1])),
        Route::new("adapter", at(a, cable), at(b, lan)),
    ];
    let rate = if longest >= LONG { LONG_RATE } else { RATE };
    let hosts = [Peer::A, Peer::B].map(|end| lossy.place(end, Family::V4));
    let ends = hosts.map(socket);
    let (mut round, mut killed, mut flooding) = (0_u32, [None::<Instant>; 3], None);
    while begin.elapsed() < longest || round < ROUNDS {
        for route in &mut routes {
            for _ in 0..TRIPS {
                route.round_trip(begin, LATE);
            }
        }
        for net in CALM + 1..=TUNNELS {
            assert!(service.passes(net, PATIENCE), "sg{net}, round {round}: {}", tail(&service.near));
        }
        for forwarder in &forwarders {
            assert!(forwarder.passes(&service, PATIENCE), "{}, round {round}: {}", forwarder.name, tail(&service.near));
        }
        let mut may_end = |which: usize| {
            let is_calm = killed[which].is_none_or(|last| last.elapsed() > BETWEEN);
            if is_calm {
                killed[which] = Some(Instant::now());
            }
            is_calm
        };
        // Faults of a tunnel, a gateway and a router, reloads, and changes of the link that all share. No datagram is
        // on its way meanwhile, but those of the flood and of the bad wire.
        match round % 8 {
            0 => {
                let which = (round / 8) as usize % forwarders.len();
                if may_end(1 + which) {
                    let forwarder = &forwarders[which];
                    let passes = |longest| forwarder.passes(&service, longest);
                    service.fault_of(forwarder.name, Fault::Worker(libc::SIGKILL), &passes);
                }
            }
            1 if may_end(0) => {
                service.fault(TUNNELS, Fault::Worker(libc::SIGKILL));
            }
            2 => flooding = Some(flood(&routed, rate)),
            3 => sys::signal(service.near.id(), libc::SIGHUP).unwrap(),
            4 => {
                relay.set_faults(Faults { seed: round.into(), ..BAD });
                for _ in 0..LOST {
                    for (from, to) in [(0, 1), (1, 0)] {
                        ends[from].send_to(&[7; 300], ends[to].local_addr().unwrap()).unwrap();
                    }
                }
                // The last of them are on their way, or held back.
                thread::sleep(PAUSE);
                relay.set_faults(Faults::default());
                let [near, far] = hosts.map(|place| (place.host, place.address));
                assert!(reach(near, far, PATIENCE).is_ok(), "{}", lossy.drops());
            }
            5 => {
                for state in ["down", "up"] {
                    service.ground.b.run("ip", &["link", "set", "dev", "eth0", state]).unwrap();
                }
                assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
            }
            6 => flooding = None,
            7 => {
                for mtu in ["1400", "1500"] {
                    service.ground.a.run("ip", &["link", "set", "dev", "eth0", "mtu", mtu]).unwrap();
                }
            }
            _ => {}
        }
        held.iter_mut().for_each(|(pid, held)| held.sample(*pid, begin));
        round += 1;
        thread::sleep(PAUSE);
    }
    drop(flooding);
    let length = begin.elapsed();
    assert_eq!(before, pids(), "what had no fault has its process");
    println!("{round} rounds in {length:?}");
    for route in &routes {
        println!("packets {}: {} sent, {} came", route.name, route.sent, route.came);
        // The router has a flood beside them; of a short run few that are lost are many.
        let least = if length >= LONG && route.name != ROUTER { 99 * route.sent / 100 } else { 1 };
        assert!(route.came >= least, "{}: {} of {} came", route.name, route.came, route.sent);
    }
    let [from_a, from_b] = relay.counts();
    let frames = from_a.plus(from_b);
    println!("packets lossy tunnel: {frames:?}");
    assert!(frames.dropped > 0 && frames.duplicated > 0 && frames.reordered > 0, "{frames:?}");
    for net in 1..=CALM {
        for end in [Peer::A, Peer::B] {
            let stat = || {
                service.request_at(end, &format!("sg{net}"), r#"{"get":"stat"}"#).expect("an answer")["instance"].take()
            };
            balanced(&format!("sg{net} at {end:?}"), &[], &[], stat);
        }
    }
    let read = |host, ground: &Ground, name| Stat::read(host, &ground.program, name).json().clone();
    let made = ["icmp_errors", "neighbour_questions", "announcements"];
    let taken = ["neighbour_answers", "local", "foreign"];
    balanced("router", &made, &taken, || read(&routed.router, &routed.ground, ROUTER));
    balanced("gateway", &[], &[], || read(b, &bridge.ground, "gw1"));
    balanced("adapter", &[], &[], || read(b, &bridge.ground, "lan0"));
    for (end, host) in [("A", &wire.a), ("B", &wire.b)] {
        balanced(&format!("lossy tunnel at {end}"), &[], &[], || read(host, &wire, &lossy.at_a.device));
    }
    let mut faults = Vec::new();
    let mut judge = |what: &str, slope: Option<Slope>, unit: &str, most: f64| {
        let Some(slope) = slope else { return };
        println!("slope {what}: {:.3} {unit} an hour, 95 %: {:.3} to {:.3}", slope.slope, slope.least, slope.most);
        if length >= LONGEST && slope.most > most || length >= LONG && slope.least > most {
            faults.push(format!("{what}: {slope:?} {unit} an hour"));
        }
    };
    for held in held.values() {
        judge(&format!("memory of {}", held.name), Slope::of(&windows(&held.resident_kb, mean)), "kB", MOST_GROWTH);
    }
    for route in &routes {
        let found = windows(&route.times, p99);
        let middle = mean(&mut found.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
        let slope = Slope::of(&found).map(|slope| slope.relative(middle));
        judge(&format!("p99 of {}, {:.3} ms", route.name, middle * 1000.0), slope, "parts", MOST_SLOWER);
    }
    for (pid, held) in &held {
        let ([fewest, most], begin) = (held.first_half(), Instant::now());
        let mut last = descriptors(*pid);
        while last > fewest && begin.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
            last = descriptors(*pid);
        }
        println!("descriptors {}: {fewest} to {most}, then {last}", held.name);
        // A process that was replaced in the first half had fewer for a moment.
        if last > most {
            faults.push(format!("{}: {fewest} to {most} descriptors, then {last}", held.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_slope_has_the_interval_of_its_points() {
    let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)];
    let found = Slope::of(&points).unwrap();
    assert!((found.slope - 1.1).abs() < 1e-9, "{found:?}");
    // The error of the slope is 0.5196; of two degrees of freedom the approximation of 4.30 is a tenth too small.
    assert!((found.most - (1.1 + 0.5196 * 3.85)).abs() < 0.02, "{found:?}");
    assert!((found.most + found.least - 2.2).abs() < 1e-9, "{found:?}");
    assert_eq!(Slope::of(&points[..3]), None);
}

#[test]
fn windows_have_the_values_of_their_samples() {
    let samples: Vec<(Duration, f64)> = (0..1000).map(|n| (Duration::from_secs(n), n as f64)).collect();
    let found = windows(&samples, mean);
    assert_eq!(found.len(), 24);
    let slope = Slope::of(&found).unwrap();
    assert!((slope.slope - 3600.0).abs() < 1e-6 && (slope.most - slope.least).abs() < 1e-3, "{slope:?}");
    assert_eq!(p99(&mut (0..200).map(f64::from).collect::<Vec<_>>()), 198.0);
}
