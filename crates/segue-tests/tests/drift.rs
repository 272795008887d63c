//! Test of tunnels, routers, gateways and adapters together, under faults, reloads, changes of their links, loss and
//! floods: no resource grows, and each packet is accounted for. 15 seconds; `SEGUE_DRIFT` seconds if that is set.
//!
//! Of each kind, with NAT among the routers, one is killed now and then, and one keeps its process, whose memory
//! is judged. A tunnel is reloaded; links of the tunnels, of a router with NAT and of a gateway are set down, and get
//! another MTU; an adapter is unplugged.
//!
//! At the end each process has a slope of its anonymous memory, and each route one of the p99 of its round trips beside
//! no flood, with the 95 % interval, without what goes with the round trips that no instance is on. The upper end is
//! bounded for memory from an hour on, for round trips from 110 minutes on, where those without an instance must not
//! surely have become slower. From ten minutes on the lower end of round trips is bounded, by as much more as those may
//! have become slower: a shorter run cannot show that nothing grows, but it can show that something does.
//!
//! Each instance accounts for each packet that came to it, those that are killed by their counters of just before. From
//! end to end, each route loses at most as many datagrams as were counted as dropped on it meanwhile (`soak::Track` has
//! what cannot be counted). No datagram of a route is on its way when an instance is killed or a link is set down, so
//! none may be lost by that; packets of the kernels and those that look whether an instance is well again may be.

#[path = "common/adapters.rs"]
mod adapters;
#[path = "common/adapter.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use adapters::{Bridge, Plugged};
use segue_lab::{DamageArea, Family, Faults, Host, Peer, Relay, reach};
use segue_tests::faults::{Fault, Forwarder, PATIENCE, Service, parent, tail, tunnel};
use segue_tests::flood::{Flood, Stations};
use segue_tests::routed::{PORTS, ROUTER, Routed};
use segue_tests::soak::{
    self, Account, Balance, Comparison, Route, Series, Slope, Track, Trips, anonymous_kb, descriptors, mean, p99,
    quiet_descriptors,
};
use segue_tests::traffic::{Place, socket};
use segue_tests::{Carrier, Ground, Inside, Pair, Random, Shape, Stat, sys, test_name};
use serde_json::Value;

/// Number of tunnels in the test. Each reload changes the third, and the last one has faults.
const TUNNELS: u8 = 4;
/// Number of tunnels whose processes stay.
const CALM: u8 = 2;
/// Largest allowed growth of a process's memory, in kB per hour.
const MOST_GROWTH: f64 = 256.0;
/// Largest allowed growth of a process's memory between the end of the warm-up and the end of a long run, in kB.
const MOST_GROWN: f64 = 8192.0;
/// Largest allowed growth of the round-trip times, as a fraction per hour.
const MOST_SLOWER: f64 = 0.1;
/// Shortest run after which slopes of round trips that are surely above their bounds are faults.
const LONG: Duration = Duration::from_secs(10 * 60);
/// Shortest run after which a slope of memory that may be above its bound is a fault.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// Shortest run after which a slope of round trips that may be above its bound is a fault, and one without an instance
/// that surely is. In less time a slope of zero often has an interval that reaches above the bound.
const LONGEST: Duration = Duration::from_secs(110 * 60);
/// Part of the time that does not count for memory and descriptors: tables and buffers of packets reach their sizes.
const WARM_UP: f64 = 0.25;
/// Part of the time that does not count for round trips, in which caches fill.
const WARM_UP_TRIPS: f64 = 0.1;
/// Time between two looks at what is awaited, and time after which the last packets of a flood have passed.
const PAUSE: Duration = Duration::from_millis(200);
/// Number of round trips of each route in a round, of a short run and of a long one.
const TRIPS: [u32; 2] = [10, 120];
/// Time between the round trips of a round, altogether: one disturbance then meets few of them.
const SPREAD: Duration = Duration::from_millis(300);
/// Number of trips of other routes for one of a route whose instance is killed, of which no slope is judged.
const SELDOM: u32 = 6;
/// Number of rounds in which each change happens once. In half of them there is a flood.
const CYCLE: u32 = 8;
/// Least number of rounds: each change and each kind of fault happens.
const ROUNDS: u32 = 2 * CYCLE;
/// Faults that each killed instance has in turn.
const FAULTS: [Fault; 3] =
    [Fault::Worker(libc::SIGKILL), Fault::Worker(libc::SIGSTOP), Fault::Thread("packets", "panic")];
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
/// Smallest part of their frames that the floods have to send: in a short run on a busy machine, and in a long one.
const LEAST_SENT: [f64; 2] = [0.2, 0.95];
/// Drop reasons of packets that a port's receive counters do not include.
const EARLY: [&str; 3] = ["socket_overflow", "ring_full", "outer_csum"];

/// The resources that a process holds.
#[derive(Debug, Default)]
struct Held {
    name: String,
    memory_kb: Series,
}

/// Tunnels and gateways make no packets.
const PLAIN: Account = Account { made: &[], taken: &[], unsure: &[] };
const OF_ROUTER: Account = Account {
    made: &["icmp_errors", "neighbour_questions", "announcements"],
    taken: &["neighbour_answers", "local", "foreign"],
    ..PLAIN
};
/// An adapter that goes away drops what its interface sends, and what the chip has sent and it has not yet counted.
const OF_ADAPTER: Account = Account { unsure: &["device_down"], ..PLAIN };

/// An instance of the service at host A that does not keep its process.
#[derive(Debug)]
struct Killed {
    name: &'static str,
    account: Account,
    /// Number of its faults so far, and of the one in `FAULTS` that was its first.
    faults: usize,
    /// Time of its last fault.
    last: Option<Instant>,
    /// Number of packets that came to processes which have ended.
    came: u64,
    /// Number of these processes.
    ended: u32,
}

impl Killed {
    fn new(name: &'static str, account: Account, faults: usize) -> Killed {
        Killed { name, account, faults, last: None, came: 0, ended: 0 }
    }

    /// Carries out a change that may replace the process, before which its packets are accounted for.
    #[track_caller]
    fn replace(&mut self, service: &Service, track: &mut Track<'_>, change: impl FnOnce()) {
        let pid = service.patient_pid(self.name);
        let (came, _) = balanced(self.name, self.account, || state(service, Peer::A, self.name));
        let before = track.counted();
        change();
        if service.patient_pid(self.name) != pid {
            self.came += came;
            self.ended += 1;
        }
        track.keep(before);
    }

    /// Causes the next fault, unless the last one was a moment ago. Returns the fault.
    #[track_caller]
    fn fault(&mut self, service: &Service, track: &mut Track<'_>, passes: &dyn Fn(Duration) -> bool) -> Option<Fault> {
        if self.last.is_some_and(|last| last.elapsed() <= BETWEEN) {
            return None;
        }
        let (name, fault) = (self.name, FAULTS[self.faults % FAULTS.len()]);
        self.replace(service, track, || _ = service.fault_of(name, fault, passes));
        self.faults += 1;
        self.last = Some(Instant::now());
        Some(fault)
    }
}

/// Returns the state of an instance of the service at one end, once a process answers.
#[track_caller]
fn state(service: &Service, end: Peer, name: &str) -> Value {
    let begin = Instant::now();
    loop {
        let stat = service.request_at(end, name, r#"{"get":"stat"}"#).map(|mut answer| answer["instance"].take());
        if let Some(stat) = stat.filter(|stat| stat["pid"].as_u64() > Some(0)) {
            return stat;
        }
        assert!(begin.elapsed() < PATIENCE, "{name} at {end:?}: {}", tail(&service.near));
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the state of an instance of a host.
#[track_caller]
fn read(host: &Host, ground: &Ground, name: &str) -> Value {
    Stat::read(host, &ground.program, name).json().clone()
}

/// Has the service read its file again, in which the third tunnel has another time to live, or again the usual one.
#[track_caller]
fn reload(service: &Service, is_changed: bool) {
    const NET: u8 = CALM + 1;
    let versions = [tunnel(Peer::A, NET, ""), tunnel(Peer::A, NET, "ttl = 9")];
    let (before, after) = (&versions[usize::from(!is_changed)], &versions[usize::from(is_changed)]);
    let text = fs::read_to_string(service.file()).unwrap();
    assert!(text.contains(before.as_str()), "{text}");
    fs::write(service.file(), text.replace(before, after)).unwrap();
    // Of what was printed before nothing is read again, so that a reload costs as much at the end as at the start.
    let before = service.near.stdout_len();
    sys::signal(service.near.id(), libc::SIGHUP).unwrap();
    let ends = |event: &Value| ["reloaded", "reload_refused"].iter().any(|name| event["event"] == *name);
    let done = service.until("no reload", || service.events_after(before).into_iter().find(|event| ends(event)));
    assert_eq!(done["event"], "reloaded", "{done}");
    let changed: Vec<&Value> =
        ["restarted", "handed_over"].iter().filter_map(|how| done[*how].as_array()).flatten().collect();
    assert!(changed.len() == 1 && *changed[0] == *format!("sg{NET}"), "{done}");
    assert!(service.passes(NET, PATIENCE), "{}", tail(&service.near));
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

/// Sends the frames of all floods in turn. Each `number` has flows of its own, so that the table of mappings is full
/// before memory counts: otherwise the longest flood so far would decide its size. So is the room for packets that wait
/// for neighbours: those of the scans have hosts of their own, which do not answer.
fn flood(routed: &Routed, rate: u32, number: u32) -> Flood {
    let stations = Stations::between((&routed.ground.a, "eth0"), (&routed.router, "in"));
    let server = Ipv4Addr::new(198, 18, 2, 2);
    let (mut random, mut frames) = (Random::new(u64::from(number) + 1), 0_u32);
    Flood::start(&routed.ground.a, "eth0", rate, move |_| {
        frames += 1;
        let word = random.word();
        let inside = Ipv4Addr::new(198, 18, 1, 3 + (word % 250) as u8);
        let ports = [random.word() as u16 | 1, 9];
        match frames % 8 {
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
            5 => stations.syn([inside, server], ports, word as u32),
            6 => stations.udp([inside, Ipv4Addr::new(198, 18, 2, 20 + (word % 200) as u8)], ports, 64),
            _ => {
                let unused = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 1, word as u16);
                stations.udp6(["2001:db8:1::3".parse().unwrap(), unused], ports)
            }
        }
    })
}

/// Waits until all packets of an instance are accounted for, and returns the number of those that came, and of those
/// besides that may have come or not.
#[track_caller]
fn balanced(name: &str, account: Account, stat: impl Fn() -> Value) -> (u64, u64) {
    let begin = Instant::now();
    loop {
        let stat = stat();
        let found = Balance::of(&stat, &EARLY, account);
        let (came, missing) = (found.came.values().sum(), found.missing());
        if missing == 0 {
            return (came, found.unsure);
        }
        // Fragments of datagrams that never end wait for half a minute.
        if begin.elapsed() > 2 * PATIENCE {
            println!("balance {name}: {came} packets came, {missing} are missing");
            panic!("{name}: {found:#?} {stat}");
        }
        thread::sleep(PAUSE);
    }
}

#[test]
fn a_service_under_faults_and_changes_grows_nowhere() {
    sys::refuse_huge_pages().unwrap();
    let tables = [Forwarder::TABLES, Forwarder::NAT_TABLE, Plugged::TABLE].concat();
    let made = Service::prepared(test_name!(), TUNNELS, &tables, &[], |ground| {
        let [bridge, router] = Forwarder::both(ground);
        let plugged = Plugged::start(ground, &bridge.far);
        ([bridge, router, Forwarder::nat(ground)], plugged)
    });
    let Some((service, (forwarders, plugged))) = made else { return };
    let Some(wire) = Ground::apart(test_name!(), &[]) else { return };
    let relay = Relay::between(&wire.a, &wire.b).expect("a relay");
    let lossy = Pair::start(&wire, Shape::new(Inside::GreKeyCsum, Carrier::Fou, Family::V4), 1);
    let Some(routed) = Routed::new(test_name!(), &[], &["--nat", "198.18.2.9"]) else { return };
    let Some(bridge) = Bridge::start(test_name!()) else { return };
    let longest =
        std::env::var("SEGUE_DRIFT").map_or(15, |text| text.parse().expect("SEGUE_DRIFT: a number of seconds"));
    let longest = Duration::from_secs(longest);
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
        ("model of the service's adapter", &plugged.model),
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
    for net in 1..=TUNNELS {
        assert!(service.passes(net, PATIENCE), "sg{net}: {}", tail(&service.near));
    }
    for forwarder in &forwarders {
        assert!(forwarder.passes(&service, PATIENCE), "{}: {}", forwarder.name, tail(&service.near));
    }
    let adapter_passes = |longest| Plugged::passes(&service, &forwarders[0].far, longest);
    assert!(adapter_passes(PATIENCE), "{}", tail(&service.near));
    // The order of their tracks. They begin with different faults.
    let mut killed = [
        Killed::new("sg3", PLAIN, 0),
        Killed::new("sg4", PLAIN, 0),
        Killed::new(forwarders[0].name, PLAIN, 1),
        Killed::new(forwarders[1].name, OF_ROUTER, 2),
        Killed::new(forwarders[2].name, OF_ROUTER, 0),
        Killed::new(Plugged::NAME, OF_ADAPTER, 0),
    ];
    // Links that are set down, or get another MTU, and their hosts: that of all tunnels, one of the router with NAT,
    // which keeps its addresses, and that of the gateway.
    routed.router.set_sysctl(&format!("ipv6/conf/{}/keep_addr_on_down", PORTS[1]), "1").unwrap();
    let links = |of_tunnels| [(of_tunnels, "eth0"), (&routed.router, PORTS[1]), (&bridge.ground.b, "eth0")];
    let mut tracks = tracks(&service, &forwarders, &routed, &bridge);
    let ends = [(&service.ground.a, Peer::A), (&service.ground.b, Peer::B)];
    let [near, far] = ends.map(|(host, end)| Place { host, address: end.address(0, Family::V4) });
    let mut comparison = Comparison::start(near, far);
    let is_long = longest >= LONG;
    let (rate, trips) = if is_long { (LONG_RATE, TRIPS[1]) } else { (RATE, TRIPS[0]) };
    let hosts = [Peer::A, Peer::B].map(|end| lossy.place(end, Family::V4));
    let ends = hosts.map(socket);
    let (mut round, mut flooding, mut quiet) = (0_u32, None, None);
    let (mut caused, mut sent_parts) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < longest || round < ROUNDS {
        let cycle = round / CYCLE;
        for net in CALM + 1..=TUNNELS {
            assert!(service.passes(net, PATIENCE), "sg{net}, round {round}: {}", tail(&service.near));
        }
        for forwarder in &forwarders {
            assert!(forwarder.passes(&service, PATIENCE), "{}, round {round}: {}", forwarder.name, tail(&service.near));
        }
        assert!(adapter_passes(PATIENCE), "lan0, round {round}: {}", tail(&service.near));
        // A route that has lost a datagram waits for the next round: the wait for that was long.
        let mut has_lost = vec![false; tracks.len()];
        for trip in 0..trips {
            for (place, (track, has_lost)) in tracks.iter_mut().zip(&mut has_lost).enumerate() {
                if *has_lost || place < killed.len() && !trip.is_multiple_of(SELDOM) {
                    continue;
                }
                let time = track.route.round_trip(LATE);
                let times = if flooding.is_some() { &mut track.route.flooded } else { &mut track.route.calm };
                match time {
                    Some(time) => times.add(cycle, begin.elapsed(), time.as_secs_f64()),
                    None => *has_lost = true,
                }
            }
            if flooding.is_none()
                && let Some(time) = comparison.round_trip(LATE)
            {
                comparison.calm.add(cycle, begin.elapsed(), time.as_secs_f64());
            }
            thread::sleep(SPREAD / trips);
        }
        // Faults of a tunnel, a gateway, routers and an adapter, reloads, and changes of links. No datagram is on its
        // way meanwhile, but those of the flood and of the bad wire.
        match round % CYCLE {
            0 => {
                // The gateway, which the adapter of the service is behind, and the router in turn; the one with NAT.
                for which in [cycle as usize % 2, 2] {
                    let (killed, track) = (&mut killed[2 + which], &mut tracks[2 + which]);
                    let passes = |longest| forwarders[which].passes(&service, longest);
                    caused.extend(killed.fault(&service, track, &passes));
                }
            }
            1 => {
                let passes = |longest| service.passes(TUNNELS, longest);
                caused.extend(killed[1].fault(&service, &mut tracks[1], &passes));
            }
            2 => {
                tracks.iter_mut().for_each(|track| track.close(false));
                flooding = Some(flood(&routed, rate, round));
            }
            3 => {
                killed[0].replace(&service, &mut tracks[0], || reload(&service, cycle.is_multiple_of(2)));
                caused.extend(killed[5].fault(&service, &mut tracks[5], &adapter_passes));
            }
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
                for (host, device) in links(&service.ground.b) {
                    for state in ["down", "up"] {
                        host.run("ip", &["link", "set", "dev", device, state]).unwrap();
                    }
                }
                for net in 1..=CALM {
                    assert!(service.passes(net, PATIENCE), "sg{net}: {}", tail(&service.near));
                }
                for family in [Family::V4, Family::V6] {
                    let [near, far] = [routed.client(family), routed.server(family)].map(|at| (at.host, at.address));
                    assert!(reach(near, far, PATIENCE).is_ok(), "{family:?}: {}", tail(&routed.process));
                }
                bridge.pass();
            }
            6 => {
                let sent = flooding.take().map(Flood::stop).expect("a flood");
                println!("flood: {sent:?}, {:.4} of its rate", sent.part());
                sent_parts.push(sent.part());
                thread::sleep(PAUSE);
                tracks.iter_mut().for_each(|track| track.close(true));
                bridge.replug();
            }
            7 => {
                for mtu in ["1400", "1500"] {
                    for (host, device) in links(&service.ground.a) {
                        host.run("ip", &["link", "set", "dev", device, "mtu", mtu]).unwrap();
                    }
                    bridge.pass();
                    // A loss is judged in the end.
                    tracks.iter_mut().for_each(|track| _ = track.route.round_trip(LATE));
                }
            }
            _ => {}
        }
        held.iter_mut().for_each(|(pid, held)| held.memory_kb.add(cycle, begin.elapsed(), anonymous_kb(*pid)));
        round += 1;
        if quiet.is_none() && round.is_multiple_of(CYCLE) && begin.elapsed() >= longest.mul_f64(WARM_UP) {
            quiet = Some(quiet_descriptors(held.keys().copied()));
        }
    }
    let is_flooded = flooding.take().is_some();
    let length = begin.elapsed();
    let mut faults = Vec::new();
    let sent = mean(&mut sent_parts);
    println!("floods: {sent:.4} of their rate");
    if sent < LEAST_SENT[usize::from(is_long)] {
        faults.push(format!("the floods sent too little: {sent_parts:?}"));
    }
    for track in &mut tracks {
        track.route.drain(LATE);
        track.close(is_flooded);
    }
    let after = pids();
    if before != after {
        faults.push(format!("without a fault, another process: {before:?}, then {after:?}"));
    }
    println!("{round} rounds in {length:?}");
    for fault in FAULTS {
        let count = caused.iter().filter(|one| **one == fault).count();
        println!("faults {fault:?}: {count}");
        if count == 0 {
            faults.push(format!("there was no {fault:?}"));
        }
    }
    for Track { route, calm, flooded, .. } in &tracks {
        println!("packets {}: {} sent, {} came, {} refused", route.name, route.sent, route.came, route.refused);
        // Also through the router that is flooded: the figures of `floods.rs` demand as much. Of the few of a short run
        // one or two may be too many.
        let least = if length >= LONG { 99 * (route.sent + route.refused) / 100 } else { 1 };
        if route.came < least.max(1) {
            faults.push(format!("{}: {} of {} came", route.name, route.came, route.sent));
        }
        for (when, loss) in [("calm", calm), ("flooded", flooded)] {
            println!("lost {}, {when}: {}, {} counted as dropped", route.name, loss.lost, loss.counted);
            if loss.lost > loss.counted {
                faults.push(format!("{}, {when}: {loss:?}", route.name));
            }
        }
        if route.lost() < 0 {
            faults.push(format!("{}: {} of {} came", route.name, route.came, route.sent));
        }
    }
    let [from_a, from_b] = relay.counts();
    let frames = from_a.plus(from_b);
    println!("packets lossy tunnel: {frames:?}");
    if [frames.dropped, frames.duplicated, frames.reordered].contains(&0) {
        faults.push(format!("the wire was not bad: {frames:?}"));
    }
    // That of the machine alone. What segue costs the machine is in it too: where it has surely become slower itself,
    // the slopes beside it show nothing.
    let alone = Trips::of(&comparison.calm, WARM_UP_TRIPS);
    let machine = alone.slope();
    let slower = machine.map_or(0.0, |slope| slope.most.max(0.0));
    // Each with its bound and the length from which on the upper end is judged, and the same for the lower end.
    let mut judge = |what: &str, slope: Option<Slope>, unit: &str, upper: (f64, Duration), lower: (f64, Duration)| {
        let Some(slope) = slope else {
            if length >= LONG {
                faults.push(format!("{what}: there is no slope"));
            }
            return;
        };
        println!("slope {what}: {:.3} {unit} an hour, 95 %: {:.3} to {:.3}", slope.slope, slope.least, slope.most);
        if length >= upper.1 && slope.most > upper.0 || length >= lower.1 && slope.least > lower.0 {
            faults.push(format!("{what}: {slope:?} {unit} an hour"));
        }
    };
    let what = format!("p99 without an instance, {:.3} ms", 1000.0 * alone.middle);
    println!("{what}, over time, µs:{}", alone.list());
    judge(&what, machine, "parts", (f64::INFINITY, LONGEST), (MOST_SLOWER, LONGEST));
    for held in held.values() {
        let windows = held.memory_kb.windows(WARM_UP, mean);
        println!("memory of {} over time, kB:{}", held.name, soak::list(&windows));
        judge(&format!("memory of {}", held.name), Slope::of(&windows), "kB", (MOST_GROWTH, HOUR), (MOST_GROWTH, HOUR));
    }
    for Track { route, .. } in &tracks[killed.len()..] {
        let trips = Trips::of(&route.calm, WARM_UP_TRIPS);
        let what = format!("p99 of {}, {:.3} ms", route.name, trips.middle * 1000.0);
        println!("{what}, over time, µs:{}; the plain slope: {:.3?}", trips.list(), trips.slope());
        judge(&what, trips.slope_beside(&alone), "parts", (MOST_SLOWER, LONGEST), (MOST_SLOWER + slower, LONG));
        let all = [&route.calm, &route.flooded].map(|series| 1000.0 * series.of_all(p99));
        println!("p99 {}: {:.3} ms, {:.3} ms beside a flood", route.name, all[0], all[1]);
    }
    let quiet = quiet.expect("a cycle after the warm-up");
    for (pid, held) in &held {
        let (first, last) = held.memory_kb.ends(WARM_UP).expect("a round after the warm-up");
        println!("memory {}: {first} kB, then {last} kB", held.name);
        if length >= LONG && last - first > MOST_GROWN {
            faults.push(format!("{}: {first} kB, then {last} kB", held.name));
        }
        let (first, begin) = (quiet[pid], Instant::now());
        // A process of a short run may not have had the time yet to close what it needed for a start.
        let is_same = |now: usize| now == first || length < LONG && now < first;
        let mut last = descriptors(*pid);
        while !is_same(last) && begin.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
            last = descriptors(*pid);
        }
        println!("descriptors {}: {first}, then {last}", held.name);
        if !is_same(last) {
            faults.push(format!("{}: {first} descriptors, then {last}", held.name));
        }
    }
    faults.iter().for_each(|fault| println!("fault: {fault}"));
    let say = |name: &str, (came, unsure): (u64, u64)| {
        println!("balance {name}: {came} packets came, {unsure} more may have come, 0 are missing");
    };
    for net in 1..=TUNNELS {
        for end in [Peer::A, Peer::B] {
            if end == Peer::B || net <= CALM {
                let name = format!("sg{net} at {end:?}");
                say(&name, balanced(&name, PLAIN, || state(&service, end, &format!("sg{net}"))));
            }
        }
    }
    for Killed { name, account, came, ended, .. } in &killed {
        let (last, unsure) = balanced(name, *account, || state(&service, Peer::A, name));
        // What came between the last look at a process and its end has ended with its counters.
        say(&format!("{name} with {ended} ended processes"), (came + last, unsure));
    }
    let b = &bridge.ground.b;
    say("router with NAT", balanced(ROUTER, OF_ROUTER, || read(&routed.router, &routed.ground, ROUTER)));
    say("gateway", balanced("gateway", PLAIN, || read(b, &bridge.ground, "gw1")));
    say("adapter", balanced("adapter", OF_ADAPTER, || read(b, &bridge.ground, "lan0")));
    for (end, host) in [("A", &wire.a), ("B", &wire.b)] {
        let name = format!("lossy tunnel at {end}");
        say(&name, balanced(&name, PLAIN, || read(host, &wire, &lossy.at_a.device)));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the tracks of all routes: first those through instances that are killed, in the order of their names.
fn tracks<'a>(
    service: &'a Service,
    forwarders: &'a [Forwarder; 3],
    routed: &'a Routed,
    bridge: &'a Bridge,
) -> Vec<Track<'a>> {
    const NAMES: [&str; TUNNELS as usize] = ["sg1", "sg2", "sg3", "sg4"];
    let at = |host, address| Place { host, address };
    let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let hosts = [&service.ground.a, &service.ground.b];
    let tunnel = |net: u8| {
        let name = NAMES[usize::from(net) - 1];
        let [near, far] = [Peer::A, Peer::B].map(|end| end.address(net, Family::V4));
        let route = Route::new(name, at(hosts[0], near), at(hosts[1], far));
        let both = [Peer::A, Peer::B].map(|end| boxed(move || state(service, end, name)));
        Track::new(route, hosts.map(|host| (host, on(&[name, "eth0"]))).into(), both.into())
    };
    let plugged = {
        let ends = Plugged::ends(service, &forwarders[0].far);
        let route = Route::new(Plugged::NAME, ends[0], ends[1]);
        let hosts = vec![(hosts[0], on(&["lan0"])), (&forwarders[0].far, on(&["cable0"]))];
        let model = boxed(move || read(&forwarders[0].far, &service.ground, "lan78xx-model"));
        Track::new(route, hosts, vec![boxed(move || state(service, Peer::A, Plugged::NAME)), model])
    };
    let forwarders = forwarders.iter().zip(["br", "rt", "nat"]).map(|(forwarder, prefix)| {
        let [near, far] = forwarder.addresses;
        let route = Route::new(forwarder.name, at(hosts[1], near), at(&forwarder.far, far));
        let [end, other] = ["b", "c"].map(|end| format!("{prefix}-{end}"));
        let hosts =
            vec![(hosts[0], vec![end.clone(), other.clone()]), (hosts[1], vec![end]), (&forwarder.far, vec![other])];
        Track::new(route, hosts, vec![boxed(move || state(service, Peer::A, forwarder.name))])
    });
    let through = |name, family| {
        let route = Route::new(name, routed.client(family), routed.server(family));
        let (client, server) = (&routed.ground.a, &routed.ground.b);
        let hosts = vec![(client, on(&["eth0"])), (&routed.router, on(&PORTS)), (server, on(&["eth0"]))];
        Track::new(route, hosts, vec![boxed(move || read(&routed.router, &routed.ground, ROUTER))])
    };
    let ground = &bridge.ground;
    let (a, b) = (&ground.a, &ground.b);
    let [of_gateway, of_adapter] = bridge.ends();
    let gateway = Track::new(
        Route::new("gateway", of_gateway[0], of_gateway[1]),
        vec![(a, on(&["eth0"])), (b, on(&["eth0", "lro0"]))],
        vec![boxed(move || read(b, ground, "gw1"))],
    );
    let adapter = Track::new(
        Route::new("adapter", of_adapter[0], of_adapter[1]),
        vec![(a, on(&["cable0"])), (b, on(&["lan0"]))],
        vec![boxed(move || read(a, ground, "lan78xx-model")), boxed(move || read(b, ground, "lan0"))],
    );
    let routers = [through("router with NAT, v6", Family::V6), through("router with NAT, v4", Family::V4)];
    let killed = (CALM + 1..=TUNNELS).map(tunnel).chain(forwarders).chain([plugged]);
    killed.chain((1..=CALM).map(tunnel)).chain(routers).chain([gateway, adapter]).collect()
}

/// Returns a function that reads a state, for a [`Track`].
fn boxed<'a>(state: impl Fn() -> Value + 'a) -> Box<dyn Fn() -> Value + 'a> {
    Box::new(state)
}
