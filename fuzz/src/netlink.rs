use std::net::Ipv6Addr;
use std::ops::ControlFlow;
use std::sync::Once;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteMessage;
use segue_datapath::route::Routes;
use segue_host::netlink::changes::{Changed, Changes};
use segue_host::netlink::nexthops::{self, Nexthops};
use segue_host::netlink::{Netlink, answers};
use segue_host::prefix::Prefix;
use segue_service::router_feed::{TableChanges, comes_from_advertisement, is_advertised, read_route};

use crate::resources::bounded;

/// Number of bytes that the readers may hold for the shortest datagram.
const FREE: usize = 64 << 10;
/// Indexes of a router's ports.
const PORTS: [u32; 2] = [2, 3];
/// MTUs of a router's ports.
const MTUS: [u32; 2] = [1500, 1280];
/// Sequence number of the request.
pub(crate) const SEQUENCE: u32 = 7;

/// Reads an arbitrary datagram as the kernel's answer to a request, as notices of changes, as nexthop objects and as
/// the routes of a router: every reader ends, and keeps no more than the datagram's size allows.
pub fn netlink(data: &[u8]) {
    static KERNEL: Once = Once::new();
    KERNEL.call_once(of_the_kernel);
    bounded(data.len(), FREE, || read(data));
}

/// Passes a datagram through every reader.
pub(crate) fn read(data: &[u8]) {
    let mut changed = Changed::default();
    changed.add(data);
    assert!(changed.links.len() <= data.len() / 16);
    let mut changed = TableChanges::default();
    changed.add(data, PORTS);
    assert!(changed.changes.len() <= data.len() / 16);
    let mut all = Nexthops::new();
    let _ = nexthops::add(&mut all, data, SEQUENCE);
    assert!(all.len() <= data.len() / 16);
    for id in all.keys() {
        let _ = nexthops::hop(&all, *id, |index| PORTS.contains(&index));
    }
    let mut count = 0;
    let _ = answers(data, SEQUENCE, &mut |message| {
        count += 1;
        match &message {
            RouteNetlinkMessage::NewRoute(route) => use_route(route, &all),
            RouteNetlinkMessage::NewAddress(address) => _ = is_advertised(address),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    assert!(count <= data.len() / 16);
}

/// Reads a route as a router does, and adds it to a table and removes it.
fn use_route(route: &RouteMessage, nexthops: &Nexthops) {
    let Some((to, _, action)) = read_route(route, nexthops, PORTS, MTUS) else { return };
    let (table, prefix, len) = to;
    // An address of each port, of which the route may be the prefix.
    let configured = PORTS.map(|port| vec![Prefix { address: Ipv6Addr::from(u128::from(port) << 64).into(), len: 64 }]);
    let is_learned = comes_from_advertisement(route, to, action, &configured);
    assert!(!is_learned || prefix.is_ipv6(), "IPv4 has no router advertisements");
    let mut routes = Routes::new(1);
    if routes.insert(table, prefix, len, action).is_ok() {
        assert_eq!(routes.remove(table, prefix, len), Some(action));
    }
}

/// Passes what the kernel of this machine says through the same readers, once.
fn of_the_kernel() {
    if let Ok(mut changes) = Changes::open() {
        changes.read().expect("a socket that was just opened");
    }
    if let Ok(mut netlink) = Netlink::open() {
        let all = nexthops::read(&mut netlink).unwrap_or_default();
        for id in all.keys() {
            let found = nexthops::hop(&all, *id, |_| true);
            assert!(found.is_none_or(|hop| all.values().any(|one| one == hop)));
        }
    }
}
