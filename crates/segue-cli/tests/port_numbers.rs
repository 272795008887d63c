//! Tests of the numbers that ports report beside their traffic: each is a state or a count of events, for the metrics
//! as for the sums over the workers of an instance.

#[path = "../../segue-datapath/tests/memory/mod.rs"]
mod memory;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use memory::{Carries, Memory, counters, parts};
use segue::encap::{Carrier, Config, Fdb, Mode, OuterCsum};
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::{Board, Group, Sink};
use segue_datapath::boards::Boards;
use segue_datapath::bridge::{self, Bridge, BridgePort};
use segue_datapath::gateway::{self, Gateway, LINK_DOWN, PortConfig};
use segue_datapath::nat::{self, Nat};
use segue_datapath::overlay::{self, Listener, ListenerConfig, Overlay, Removed, Table, exchange};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::{self, Router, feed};
use segue_datapath::tunnel::{self, Outside, Tunnel};
use segue_lan78xx::driver::{self, Driver};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::regs::STATISTICS;
use segue_lan78xx::usb::Speed;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_metrics::family::{NO_METRIC, PORT_STATES};
use segue_port::udp::{UdpConfig, UdpPort};
use segue_port::vhost::{Source, VhostConfig, VhostPort};
use segue_port::wrap::{Faults, Odds, Trace};
use segue_port::{PagePool, Port};

/// Numbers of ports that count events, and so never fall.
const EVENTS: &[&str] = &[
    "blocked",
    "queued",
    "marked",
    "queues_full",
    "foreign",
    "local",
    "icmp_errors",
    "icmp_errors_limited",
    "neighbour_questions",
    "neighbour_answers",
    "announcements",
    "address_conflicts",
    "neighbours_moved",
    "neighbours_displaced",
    "received",
    "refused",
    "peer_tables",
    "inner_csum_unfinished",
    "fdb_learned",
    "fdb_moved",
    "fdb_evicted",
    "fdb_full",
    "flooded",
    "pauses",
    "front_ends",
    "front_ends_refused",
    "kicks",
    "calls",
    "merged_packets",
    "merged_buffers",
    "ring_stalls",
    "trace_lost",
    "fault_duplicated",
    "fault_reordered",
    "fault_corrupted",
    "fault_receive_errors",
    "fault_short_receives",
    "fault_send_errors",
    "chip_polls",
    "rx_transfers",
    "rx_errors",
    "tx_transfers",
    "tx_errors",
    "lso",
    "tx_csum",
    "software",
    "rx_csum",
    "halts",
    "tx_timeouts",
    "no_memory",
    "bad_interrupts",
    "link_ups",
    "unplugs",
    "control_errors",
];
/// Numbers of ports that have a metric of their own.
const OTHERS: &[&str] = &["checksummed_bytes", "swallowed", "trimmed"];

const KEY: Key = Key([1, 2]);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

fn memory(carries: Carries) -> Box<dyn Port> {
    Memory::port(carries, Limits { outer_csum: carries == Carries::Datagrams, ..Limits::NONE }).0
}

fn named(name: &str, port: Box<dyn Port>) -> PortConfig {
    PortConfig { name: name.to_owned(), port, gro: Some(segue::gro::Config::default()), fragments: None }
}

fn config() -> Config {
    Config::new(Mode::Ip, Carrier::Gue { remcsum: true }, LOCAL, REMOTE)
}

/// Returns a gateway between a port with a trace and one with faults.
fn gateway() -> Gateway {
    let traced = Trace::new(memory(Carries::Ethernet), io::sink()).unwrap();
    let faulty = Faults::new(memory(Carries::Ethernet), Odds::default(), 1);
    let ports = [named("in", Box::new(traced)), named("out", Box::new(faulty))];
    Gateway::new(gateway::Parts { ports, budget: 64, pages: PagePool::new(64) })
}

/// Returns a bridge between a guest and an adapter.
fn bridge() -> Bridge {
    let (front_end, _) = UnixStream::pair().unwrap();
    let guest = VhostPort::new(Source::Connected(front_end), &VhostConfig { mtu: 1500 }).unwrap();
    let local = Local::alone(Model::new(model::Config::default()), Clock::Still(Nanos(1)));
    let adapter = Driver::open(local, driver::Config::napi(Speed::Super)).unwrap();
    let ports = [named("guest", Box::new(guest)), named("adapter", Box::new(adapter))];
    let ports = ports.into_iter().map(|config| BridgePort { config, own: None }).collect();
    Bridge::new(bridge::Parts { ports, budget: 64, pages: PagePool::new(64) }).unwrap()
}

/// Returns a router with NAT, and a route feed without a sender.
fn router() -> Router {
    let outside = Ipv4Addr::new(198, 18, 2, 1);
    let nat = Some((Nat::new(nat::Config::new(outside, 77)), outside));
    let ports = ["in", "out"].map(|name| named(name, memory(Carries::Ethernet)));
    let (_, feed) = feed().unwrap();
    Router::new(router::Parts { ports, budget: 64, pages: PagePool::new(64), feed, nat, key: KEY })
}

/// Returns a tunnel of Ethernet that learns where stations are, over a UDP socket.
fn tunnel() -> Tunnel {
    let fdb = Some(Fdb::new(KEY, 8, 100, &[]));
    let member = tunnel::Parts { fdb, ..parts("sg0", memory(Carries::Ethernet), config()) };
    let [local, peer] = [0, 9].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let port = Box::new(UdpPort::open(UdpConfig::new(local.ip(), local.port(), peer)).unwrap());
    let (name, csum, tunnels) = ("udp".to_owned(), OuterCsum::Verified, None);
    Tunnel::new(Outside { name, port, csum, budget: 64, pages: 64, key: KEY, tunnels }, vec![member])
}

/// Returns a tunnel with an empty peer table.
fn overlay() -> Overlay {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let removed = Removed { prefixes: Vec::new(), remotes: Vec::new() };
    let table = Table::new(1, &[ListenerConfig { encap: config() }], &[], &removed, MAC, KEY).unwrap();
    let (_, tables) = exchange();
    let (name, port, csum) = ("udp".to_owned(), memory(Carries::Datagrams), OuterCsum::Verified);
    Overlay::new(overlay::Parts {
        inside_name: "sg0".to_owned(),
        inside: memory(Carries::Ip),
        frames: false,
        listeners: vec![Listener { name, port, csum }],
        table: Box::new(table),
        tables,
        mac: MAC,
        gro: None,
        remcsum: true,
        budget: 64,
        pages: 64,
        key: KEY,
    })
}

/// Returns the names of all numbers that ports of any kind report in pipelines of any kind.
fn numbers() -> BTreeSet<&'static str> {
    let pipelines: [Box<dyn Pipeline>; 5] =
        [Box::new(gateway()), Box::new(bridge()), Box::new(router()), Box::new(tunnel()), Box::new(overlay())];
    let all = pipelines.iter().flat_map(|pipeline| counters(&**pipeline));
    let mut names: BTreeSet<&str> =
        all.filter(|((_, group, _), _)| *group == Group::Port).map(|((_, _, key), _)| key).collect();
    // Of ports that have an interface, which needs privileges.
    names.insert(LINK_DOWN);
    names
}

/// Returns whether a number of two workers is the larger one and not the sum.
fn is_largest(name: &'static str) -> bool {
    let one = |sink: &mut Sink<'_>| sink.put("", Group::Port, name, 1);
    let boards = Boards::new(Arc::new(Board::new(one)), 2);
    boards.each().iter().for_each(|board| board.publish(one));
    boards.value(0) == 1
}

#[test]
fn each_number_of_a_port_is_a_state_or_counts_events() {
    let numbers = numbers();
    // What a chip counts, and the reasons for which a guest's port stopped, are lists of their own.
    let is_listed = |name: &str| name.starts_with("stop_") || STATISTICS.iter().any(|kind| kind.name == name);
    let is_event = |name: &str| EVENTS.contains(&name) || is_listed(name);
    for name in &numbers {
        let kinds = [PORT_STATES.contains(name), is_event(name), OTHERS.contains(name), NO_METRIC.contains(name)];
        let count = kinds.iter().filter(|is| **is).count();
        assert_eq!(count, 1, "{name} is to be in PORT_STATES of segue-metrics if it can fall, else in EVENTS here");
    }
    let gone: Vec<_> = PORT_STATES.iter().chain(EVENTS).filter(|name| !numbers.contains(**name)).collect();
    assert!(gone.is_empty(), "no port has {gone:?}");
}

#[test]
fn a_state_of_several_workers_is_the_largest_and_their_events_are_summed() {
    for name in numbers() {
        assert_eq!(is_largest(name), PORT_STATES.contains(&name) || NO_METRIC.contains(&name), "{name}");
    }
}
