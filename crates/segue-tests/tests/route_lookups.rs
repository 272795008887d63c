//! Tests of the number of table lookups of a router: one for each destination in a poll and one for each next hop,
//! regardless of how flows are interleaved.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use segue_lab::Family::V4;
use segue_tests::routed::{Routed, address, ip};
use segue_tests::traffic::Place;
use segue_tests::{Stat, sys, test_name, traffic};

/// Number of source ports, each of which sends to every destination.
const SENDERS: usize = 16;
const DESTINATIONS: u8 = 32;
const FLOWS: u64 = SENDERS as u64 * DESTINATIONS as u64;
/// Number of next hops, each used for several destinations.
const HOPS: u8 = 16;
/// Largest number of packets received by one poll.
const BUDGET: u64 = 64;
const PORT: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct LookupCounts {
    batches: u64,
    packets: u64,
    routes: u64,
    neighbours: u64,
}

impl LookupCounts {
    fn of(stat: &Stat) -> LookupCounts {
        let worker = &stat.json()["workers"][0];
        let count = |key: &str| worker[key].as_u64().unwrap_or_else(|| panic!("no {key} in {worker}"));
        LookupCounts {
            batches: count("route_batches"),
            packets: count("route_packets"),
            routes: count("route_lookups"),
            neighbours: count("neighbour_lookups"),
        }
    }

    fn since(self, before: LookupCounts) -> LookupCounts {
        LookupCounts {
            batches: self.batches - before.batches,
            packets: self.packets - before.packets,
            routes: self.routes - before.routes,
            neighbours: self.neighbours - before.neighbours,
        }
    }
}

fn destination(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 19, number, 1)
}

/// Waits until the router has read its tables and resolved each next hop.
fn prepare(routed: &Routed) {
    for number in 0..DESTINATIONS {
        let hop = 100 + number % HOPS;
        if number < HOPS {
            ip(&routed.ground.b, &format!("addr add {}/24 dev eth0", address(V4, 2, hop)));
        }
        ip(&routed.ground.b, &format!("addr add {}/32 dev lo", destination(number)));
        ip(&routed.router, &format!("route add {}/32 via {}", destination(number), address(V4, 2, hop)));
    }
    let known = |stat: &Stat| {
        send(&[traffic::socket(routed.client(V4))]);
        let worker = &stat.json()["workers"][0];
        worker["neighbours"].as_u64() > Some(u64::from(HOPS)) && worker["routes"].as_u64() > Some(32)
    };
    let stat = Stat::until(&routed.router, &routed.ground.program, "gw0", PATIENCE, known);
    assert!(known(&stat), "{}", stat.json());
}

/// Sends one datagram of each flow, in an order in which the destination changes with every datagram.
fn send(from: &[UdpSocket]) {
    for socket in from {
        for number in 0..DESTINATIONS {
            socket.send_to(b"one of many", (destination(number), PORT)).unwrap();
        }
    }
}

/// Returns the router's counters once no packet is in flight.
fn quiet(routed: &Routed) -> Stat {
    let mut last = routed.stat();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        let next = routed.stat();
        if LookupCounts::of(&next).packets == LookupCounts::of(&last).packets {
            return next;
        }
        last = next;
    }
    panic!("the router is never quiet: {}", last.json());
}

/// Stops a process and waits until it has stopped: the signal may still be pending when kill(2) returns.
fn stop(pid: u32) {
    sys::signal(pid, libc::SIGSTOP).unwrap();
    let is_stopped = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the router runs");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('T'))
        })
    };
    let limit = Instant::now() + PATIENCE;
    while !is_stopped() {
        assert!(Instant::now() < limit, "process {pid} does not stop");
        std::thread::yield_now();
    }
}

/// Returns the parent of a process: the supervisor of a router.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the router runs");
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    fields.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("state, then the parent")
}

/// Returns the numbers of lookups for one datagram of each flow, sent while the router is stopped, so that all are
/// queued in its ring. The kernel may still be delivering them when it continues; then the polls find few at a time,
/// and another attempt is made.
fn lookups(routed: &Routed, flows: &[UdpSocket], sinks: &[UdpSocket]) -> LookupCounts {
    for _ in 0..20 {
        let counts = attempt(routed, flows, sinks);
        // GRO may hold some packets of a poll over to the next one, so that there are more batches than full polls.
        if counts.batches <= 2 * FLOWS / BUDGET {
            return counts;
        }
        println!("again: {counts:?}");
    }
    panic!("the ring never held the datagrams of all flows");
}

fn attempt(routed: &Routed, flows: &[UdpSocket], sinks: &[UdpSocket]) -> LookupCounts {
    let before = quiet(routed);
    let pid = u32::try_from(before.json()["pid"].as_u64().unwrap()).unwrap();
    // The supervisor first, which lets a stopped router go on.
    let supervisor = parent(pid);
    stop(supervisor);
    stop(pid);
    send(flows);
    sys::signal(pid, libc::SIGCONT).unwrap();
    sys::signal(supervisor, libc::SIGCONT).unwrap();
    for (number, sink) in sinks.iter().enumerate() {
        for _ in flows {
            sink.recv(&mut [0; 64]).unwrap_or_else(|error| panic!("to destination {number}: {error}"));
        }
    }
    let before = LookupCounts::of(&before);
    let all = |stat: &Stat| LookupCounts::of(stat).since(before).packets >= FLOWS;
    let after = Stat::until(&routed.router, &routed.ground.program, "gw0", PATIENCE, all);
    LookupCounts::of(&after).since(before)
}

/// Returns the router's CPU time for each packet, nanoseconds, over many datagrams of each flow. Only printed: it
/// depends on what else this machine does. `SEGUE_SOAK=1` takes enough of them for a figure.
fn cost(routed: &Routed, flows: &[UdpSocket]) -> f64 {
    let rounds = if segue_testkit::is_set("SEGUE_SOAK") { 1000 } else { 10 };
    let cpu = |stat: &Stat| stat.json()["cpu_s"].as_f64().expect("CPU time");
    let before = quiet(routed);
    (0..rounds).for_each(|_| send(flows));
    let after = quiet(routed);
    let packets = LookupCounts::of(&after).since(LookupCounts::of(&before)).packets;
    (cpu(&after) - cpu(&before)) * 1e9 / packets as f64
}

fn set_groups(routed: &Routed, value: &str) {
    let output = routed.segue(&["set", "gw0", "net.route.groups", value]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn interleaved_flows_are_looked_up_once_for_each_destination_and_next_hop_of_a_poll() {
    let Some(routed) = Routed::new(test_name!(), &[], &[]) else { return };
    prepare(&routed);
    let listen =
        |number| traffic::socket_on(Place { host: &routed.ground.b, address: destination(number).into() }, PORT);
    let sinks: Vec<UdpSocket> = (0..DESTINATIONS).map(listen).collect();
    let flows: Vec<UdpSocket> = (0..SENDERS).map(|_| traffic::socket(routed.client(V4))).collect();
    let (keys, hops) = (u64::from(DESTINATIONS), u64::from(HOPS));
    for _ in 0..3 {
        let grouped = lookups(&routed, &flows, &sinks);
        println!("by groups: {grouped:?}");
        assert_eq!(grouped.packets, FLOWS, "nothing else is routed");
        // For the same reason a batch can exceed one poll's budget.
        assert!(grouped.batches >= FLOWS / BUDGET / 2, "{grouped:?}");
        assert!((keys..=keys * grouped.batches).contains(&grouped.routes), "{grouped:?}");
        assert!((hops..=hops * grouped.batches).contains(&grouped.neighbours), "{grouped:?}");
        assert!(grouped.routes < FLOWS && grouped.neighbours < grouped.routes, "{grouped:?}");
    }
    set_groups(&routed, "0");
    let single = lookups(&routed, &flows, &sinks);
    println!("one by one: {single:?}");
    assert_eq!((single.routes, single.neighbours), (FLOWS, FLOWS));
    for round in 0..5 {
        let [grouped, single] = ["1", "0"].map(|value| {
            set_groups(&routed, value);
            cost(&routed, &flows)
        });
        println!("round {round}: {grouped:.0} ns of CPU a packet by groups, {single:.0} one by one");
    }
}
