//! Tests of the rate limits of the ICMP errors that a tunnel, without and with a peer table, sends about packets that
//! exceed the path MTU.

mod memory;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use memory::{Carries, Memory, Wire, counter, in_both_forms, parts};
use segue::encap::{Carrier, Config, GreOptions, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::overlay::{
    Inside, Listener, ListenerConfig, Overlay, Parts, PeerConfig, Removed, Table, TableSender, exchange,
};
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{Outside, Tunnel};
use segue_port::Port;
use segue_testkit::build::{self, Ip, L4, Udp, V4};
use segue_testkit::flow::Sender;

const KEY: Key = Key([1, 2]);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
/// Path MTU, into which no packet of these tests fits.
const NARROW: usize = 1000;
const MILLISECOND: u64 = 1_000_000;

/// Builds packets of 1,040 bytes with DF.
fn long(ip: V4, count: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(ip), 0, 1000, Vec::new());
    (0..count).map(|_| sender.send(1000, 0).bytes()).collect()
}

/// A port, and what it is attached to.
type Attached = (Box<dyn Port>, Rc<RefCell<Wire>>);

/// Returns the port at which packets enter, and the one at which datagrams leave by the narrow path.
fn ports() -> [Attached; 2] {
    let limits = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_535, max_pieces: 1000, ..Limits::NONE };
    let inside = Memory::port(Carries::Ip, Limits { csum: true, tso4: true, tso6: true, uso: true, ..limits });
    let outside = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    outside.1.borrow_mut().path_mtu = Some(NARROW);
    [inside, outside]
}

/// Sends packets into an interface, and returns the number of ICMP errors that come back. They all say that
/// fragmentation is needed if `is_too_big`, else that there is no route.
#[track_caller]
fn errors(pipeline: &mut dyn Pipeline, inside: &RefCell<Wire>, packets: Vec<Vec<u8>>, is_too_big: bool) -> usize {
    errors_at(pipeline, inside, packets, is_too_big, 1)
}

#[track_caller]
fn errors_at(
    pipeline: &mut dyn Pipeline,
    inside: &RefCell<Wire>,
    packets: Vec<Vec<u8>>,
    is_too_big: bool,
    now: u64,
) -> usize {
    inside.borrow_mut().waiting.extend(packets);
    while pipeline.round(Nanos(now)).unwrap() == Round::More {}
    let sent = std::mem::take(&mut inside.borrow_mut().sent);
    let expected = if is_too_big { [3, 4] } else { [3, 0] };
    for error in &sent {
        assert_eq!((error[9], &error[20..22]), (1, &expected[..]), "ICMP, type and code");
    }
    sent.len()
}

/// Creates two tunnels with keys of their own on one port.
fn tunnels() -> (Tunnel, [Rc<RefCell<Wire>>; 2]) {
    let [_, (port, _)] = ports();
    let mut insides = Vec::new();
    let parts = [1, 2].map(|key| {
        let mode = Mode::Gre(GreOptions { ikey: Some(key), okey: Some(key), ..GreOptions::default() });
        let config = Config::new(mode, Carrier::Gue { remcsum: false }, LOCAL, REMOTE);
        let [(inside, wire), _] = ports();
        insides.push(wire);
        parts(&format!("sg{key}"), inside, config)
    });
    let (name, csum, tunnels) = ("udp".to_owned(), OuterCsum::Verified, None);
    let outside = Outside { name, port, csum, budget: 64, pages: 256, key: KEY, tunnels };
    let insides = insides.try_into().unwrap_or_else(|_| unreachable!("there are two"));
    (Tunnel::new(outside, Vec::from(parts)), insides)
}

#[test]
fn a_tunnel_limits_the_errors_of_a_flood_and_another_one_on_its_port_has_a_limit_of_its_own() {
    in_both_forms(|| {
        let (mut tunnel, [first, second]) = tunnels();
        let sender = V4::new(1, 1, 2);
        // A burst, and then ten in a millisecond.
        assert_eq!(errors(&mut tunnel, &first, long(sender.clone(), 1500), true), 1000);
        assert_eq!(errors(&mut tunnel, &first, long(sender.clone(), 100), true), 0);
        assert_eq!(errors(&mut tunnel, &second, long(sender.clone(), 100), true), 100);
        assert_eq!(errors_at(&mut tunnel, &first, long(sender, 100), true, 1 + MILLISECOND), 10);
        // Each packet is counted, with an error and without.
        assert_eq!(counter(&tunnel, "udp", Group::Drops, "path_mtu"), 1800);
    });
}

#[test]
fn each_packet_of_a_train_that_is_too_big_is_counted() {
    let (mut tunnel, [first, _]) = tunnels();
    first.borrow_mut().train = Some(1000);
    let train = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new()).send(9000, 0).bytes();
    assert_eq!(errors(&mut tunnel, &first, vec![train], true), 1);
    assert_eq!(counter(&tunnel, "udp", Group::Drops, "path_mtu"), 9);
}

/// Tests that packets of the tunnel itself, which a route leads back into it, are dropped: one with DF is no reason to
/// lower the path MTU, and one without it would go round for ever, in fragments.
#[test]
fn no_error_is_sent_about_a_packet_of_the_tunnel_itself() {
    in_both_forms(|| {
        let own = |dst_port| {
            let l4 = L4::Udp(Udp { src_port: 50_000, dst_port, checksum: true });
            let ip = |df| Ip::V4(V4 { df, ..V4::new(0, 1, 2) });
            [true, false].map(|df| build::Packet { ip: ip(df), l4: l4.clone(), data: vec![7; 1000] }.bytes()).to_vec()
        };
        let (mut tunnel, [first, _]) = tunnels();
        assert_eq!(errors(&mut tunnel, &first, own(6080), true), 0);
        assert_eq!(counter(&tunnel, "sg1", Group::Drops, "loop"), 2);
        assert_eq!(counter(&tunnel, "udp", Group::Drops, "path_mtu"), 0);
        for encap in [gue(), vxlan()] {
            let (mut overlay, inside, _tables) = overlay_of(REMOTE, 32, encap);
            assert_eq!(errors(&mut overlay, &inside, own(encap.dport), true), 0, "{encap:?}");
            assert_eq!(counter(&overlay, "sg0", Group::Drops, "loop"), 2, "{encap:?}");
            assert_eq!(counter(&overlay, "sg0", Group::Drops, "path_mtu"), 0, "{encap:?}");
        }
    });
}

/// Returns the encapsulation of a peer in GUE.
fn gue() -> Config {
    Config::new(Mode::Ip, Carrier::Gue { remcsum: true }, LOCAL, REMOTE)
}

/// Returns the encapsulation of a peer in VXLAN, where IP packets are put into frames.
fn vxlan() -> Config {
    Config::new(Mode::Ethernet, Carrier::Vxlan { vni: 1, remcsum: false, takes_remcsum: false }, LOCAL, REMOTE)
}

/// Creates a tunnel with a peer table, in which one peer has the addresses 198.18.1.0/24.
fn overlay() -> (Overlay, Rc<RefCell<Wire>>, TableSender) {
    overlay_of([198, 18, 1, 0].into(), 24, gue())
}

/// Creates a tunnel with a peer table, in which one peer has a prefix.
fn overlay_of(prefix: IpAddr, len: u8, encap: Config) -> (Overlay, Rc<RefCell<Wire>>, TableSender) {
    let [(inside, wire), (port, _)] = ports();
    let (inside_of_peer, mac) = (Inside::Prefix(prefix, len), Some([2, 0, 0, 0, 0, 9]));
    let peer = PeerConfig { inside: inside_of_peer, listener: 0, encap, mac, counters: Arc::default() };
    let removed = Removed { prefixes: Vec::new(), remotes: Vec::new() };
    let table = Table::new(1, &[ListenerConfig { encap }], &[peer], &removed, [2, 0, 0, 0, 0, 1], KEY).unwrap();
    let (sender, tables) = exchange();
    let overlay = Overlay::new(Parts {
        inside_name: "sg0".to_owned(),
        inside,
        frames: false,
        listeners: vec![Listener { name: "udp".to_owned(), port, csum: OuterCsum::Verified }],
        table: Box::new(table),
        tables,
        mac: [2, 0, 0, 0, 0, 1],
        gro: Some(gro::Config::default()),
        remcsum: true,
        budget: 64,
        pages: 256,
        key: KEY,
    });
    (overlay, wire, sender)
}

/// Returns a header from another host to an address of the peer.
fn from(host: u8) -> V4 {
    V4 { src: [198, 18, 2, host], ..V4::new(1, 1, 2) }
}

#[test]
fn an_overlay_limits_the_errors_to_one_sender_and_then_those_to_all() {
    in_both_forms(|| {
        let (mut overlay, inside, _tables) = overlay();
        assert_eq!(errors(&mut overlay, &inside, long(from(1), 300), true), 100);
        assert_eq!(errors(&mut overlay, &inside, long(from(1), 50), true), 0);
        // Others get theirs; a few may share the limit of the one that floods, which is found by a hash.
        let others: Vec<Vec<u8>> = (2..22).flat_map(|host| long(from(host), 1)).collect();
        let told = errors(&mut overlay, &inside, others, true);
        assert!((15..=20).contains(&told), "{told} of 20");
        let flood: Vec<Vec<u8>> = (1..=200).flat_map(|host| long(from(host), 20)).collect();
        errors(&mut overlay, &inside, flood, true);
        let number = |key| counter(&overlay, "sg0", Group::Port, key);
        assert_eq!((number("icmp_errors"), number("icmp_errors_limited")), (1000, 350 + 20 + 4000 - 1000));
        assert_eq!(counter(&overlay, "sg0", Group::Drops, "path_mtu"), 350 + 20 + 4000);
    });
}

/// Tests that errors about packets without a peer do not use up the limit of those about packets that are too long, on
/// which senders depend (RFC 4443, section 2.4 (f)).
#[test]
fn an_overlay_has_a_limit_for_each_kind_of_error() {
    in_both_forms(|| {
        let (mut overlay, inside, _tables) = overlay();
        let lost = V4 { dst: [198, 18, 9, 9], ..from(1) };
        assert_eq!(errors(&mut overlay, &inside, long(lost, 300), false), 50);
        assert_eq!(errors(&mut overlay, &inside, long(from(1), 40), true), 40);
    });
}
