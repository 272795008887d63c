//! Hosts that flanneld reports to the hook of its `extension` backend.

use std::net::IpAddr;

use segue_control::peers::{Encap, Peer, Table};
use segue_fleet::hook::{Memory, Takes};
use segue_fleet::network::Network;
use serde_json::{Value, json};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a hook may hold for the shortest host.
const FREE: usize = 128 << 10;
/// Largest number of hosts of one input.
const HOSTS: usize = 16;
const NETWORK: &str = "198.19.0.0/16";
const SUBNET: &str = "198.19.1.0/24";
const ADDRESS: &str = "198.18.0.1";
const MAC: &str = "02:00:00:00:00:01";

/// Bits of the first byte, above those of the encapsulation that this host accepts: no `post` was called yet, and there
/// is a peer with a larger subnet.
const IS_EARLY: u8 = 1 << 2;
const HAS_WIDE: u8 = 1 << 3;

/// Returns the state that a hook finds.
fn found(how: u8) -> Value {
    let takes = match how & 3 {
        0 => Value::Null,
        1 => json!({ "mode": "gue", "port": 6080, "remcsum": true }),
        2 => json!({ "mode": "vxlan", "port": 8472, "vni": 7, "mac": MAC }),
        _ => json!({ "mode": "gue", "port": 6080 }),
    };
    let mut state = json!({ "takes": takes, "round": 1, "peers": {} });
    if how & IS_EARLY == 0 {
        (state["network"], state["subnet"], state["address"]) = (NETWORK.into(), SUBNET.into(), ADDRESS.into());
    }
    if how & HAS_WIDE != 0 {
        let wide = "198.19.128.0/17";
        state["peers"][wide] = json!([1, { "prefix": wide, "remote": "198.18.0.9", "encap": "gue", "port": 6080 }]);
    }
    state
}

/// Reports arbitrary hosts to a hook, one after the other: each is refused by a sentence, or becomes a peer that the
/// tunnel can have, beside those that are there.
///
/// The first byte has the encapsulation that this host accepts (bits 0 and 1), and the bits from [`IS_EARLY`] on. In
/// front of each host are the lengths of its subnet and its address in a byte each, and that of its data in two.
pub fn hook(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    bounded(data.len(), FREE, || {
        let mut state = found(how);
        for _ in 0..HOSTS {
            if input.is_empty() {
                break;
            }
            let lens = [usize::from(input.u8()), usize::from(input.u8()), usize::from(input.u16())];
            let [subnet, address, theirs] = lens.map(|len| input.take(len));
            let [subnet, address] = [subnet, address].map(String::from_utf8_lossy);
            let memory: Memory = serde_json::from_value(state.clone()).expect("a state of the hooks");
            match memory.peer(&subnet, &address, theirs) {
                Ok((network, peer)) => {
                    check(network, &peer, theirs, how);
                    keep(&mut state, network, &peer);
                }
                Err(refusal) => assert!(!refusal.sentence().is_empty() && !refusal.name().is_empty()),
            }
        }
    });
}

/// Checks that a peer is one that the tunnel can have, and that a host of a subnet in this network has it.
fn check(network: Network, peer: &Peer, theirs: &[u8], how: u8) {
    let IpAddr::V4(remote) = peer.remote else { panic!("{peer:?}") };
    assert!(!remote.is_unspecified() && !remote.is_loopback() && !remote.is_multicast() && !remote.is_broadcast());
    assert!(peer.prefix.is_some_and(|prefix| prefix.to_string() == network.to_string()), "{peer:?}");
    if how & IS_EARLY == 0 {
        let [all, own] = [NETWORK, SUBNET].map(|text| Network::parse(text).expect("a network"));
        assert!(all.holds(network) && all != network && !own.overlaps(network) && !all.contains(remote), "{peer:?}");
        assert_ne!(peer.remote.to_string(), ADDRESS);
    }
    let takes: Takes = serde_json::from_slice(theirs).expect("data of a host");
    assert_eq!((peer.encap, peer.port), (Some(takes.mode), Some(takes.port)));
    assert!(peer.port != Some(0) && peer.vni.is_none_or(|vni| vni < 1 << 24), "{peer:?}");
    let is_vxlan = takes.mode == Encap::Vxlan;
    assert_eq!(peer.mac.is_some(), is_vxlan, "{peer:?}");
    assert!(peer.mac.is_none_or(|mac| mac.is_station()), "{peer:?}");
    assert!(is_vxlan || peer.vni.is_none(), "{peer:?}");
    assert!(how & 3 != 2 || peer.vni.is_none_or(|vni| vni == 7) && peer.mac.is_none_or(|mac| mac.to_string() != MAC));
    assert!(peer.remcsum != Some(true) || takes.remcsum && how & 3 == 1, "{peer:?}");
    let table = Table { peers: vec![peer.clone()], ..Table::default() };
    let text = serde_json::to_vec(&table).expect("a table has no keys that JSON cannot have");
    assert_eq!(Table::read(&text, "peers.json").ok(), Some(table));
}

/// Adds a peer in place of those whose subnets overlap its own, which are of another length.
fn keep(state: &mut Value, network: Network, peer: &Peer) {
    let peers = state["peers"].as_object_mut().expect("peers by subnet");
    peers.retain(|name, _| {
        let other = Network::parse(name).expect("a subnet");
        let goes = other.overlaps(network) && other != network;
        assert!(!goes || network.prefix_len() == 24 && other.prefix_len() != 24, "{network} in place of {other}");
        !goes
    });
    peers.insert(network.to_string(), json!([1, peer]));
}
