//! Translation of rtnetlink's routes, addresses and neighbours to those of the router.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHopFlags, RouteProtocol, RouteType,
    RouteVia,
};
use segue::wire::ethernet;
use segue_datapath::route::{Action, Hop, Table};
use segue_datapath::router::{Neighbour, NeighbourEvent};
use segue_host::netlink::nexthops::{self, Nexthops};
use segue_host::prefix::Prefix;

/// Key of a route: its table, its prefix, and the length of the prefix.
pub type RouteKey = (Table, IpAddr, u8);

fn port_of(index: u32, ports: [u32; 2]) -> Option<u16> {
    ports.iter().position(|port| *port == index).map(|at| at as u16)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// Returns whether an address was made from a prefix in a router advertisement.
pub fn is_advertised(message: &AddressMessage) -> bool {
    let is_made = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Protocol(protocol) => *protocol == AddressProtocol::RouterAnnouncement,
        // Kernels before 5.18 do not name the origin.
        AddressAttribute::Flags(flags) => flags.contains(AddressFlags::Managetempaddr),
        _ => false,
    };
    message.attributes.iter().any(is_made)
}

/// Returns whether the kernel has learned a route from a router advertisement: a default route and the routes of RFC
/// 4191 are marked as such; the prefix of a link is a kernel route without a gateway, like the prefix of an address,
/// but belongs to none of the `configured` addresses.
pub fn comes_from_advertisement(
    message: &RouteMessage,
    to: RouteKey,
    action: Action,
    configured: &[Vec<Prefix>; 2],
) -> bool {
    let (table, IpAddr::V6(prefix), len) = to else { return false };
    let Action::Forward { port, via: None, .. } = action else {
        return message.header.protocol == RouteProtocol::Ra;
    };
    let has = |one: &Prefix| {
        let IpAddr::V6(own) = one.address else { return false };
        one.len == len && (own.to_bits() ^ prefix.to_bits()).checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
    };
    let is_own = || configured.get(usize::from(port)).is_some_and(|all| all.iter().any(has));
    match message.header.protocol {
        RouteProtocol::Ra => true,
        RouteProtocol::Kernel => table == Table::Main && !is_own(),
        _ => false,
    }
}

/// Returns whether a message describes a route exception: an MTU or a redirect that the kernel has learned for one
/// destination.
pub(super) fn is_exception(message: &RouteMessage) -> bool {
    message.header.flags.contains(RouteFlags::Cloned)
}

/// Returns the table and prefix of a route, its metric, and its action.
pub fn read_route(
    message: &RouteMessage,
    nexthops: &Nexthops,
    ports: [u32; 2],
    mtus: [u32; 2],
) -> Option<(RouteKey, u32, Action)> {
    use netlink_packet_route::AddressFamily;
    let any: IpAddr = match message.header.address_family {
        AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let (mut table, mut destination, mut oif, mut via) = (u32::from(message.header.table), any, None, None);
    let (mut metric, mut mtu, mut nexthop) = (0, None, None);
    let mut has_encap = false;
    let mut hops = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) => has_encap = true,
        RouteAttribute::Oif(index) => oif = Some(*index),
        RouteAttribute::Gateway(gateway) => via = ip(gateway),
        RouteAttribute::Via(RouteVia::Inet(gateway)) => via = Some((*gateway).into()),
        RouteAttribute::Via(RouteVia::Inet6(gateway)) => via = Some((*gateway).into()),
        _ => {}
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::NhId(id) => nexthop = Some(*id),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                    _ => None,
                });
            }
            // Of several next hops the first one on a port is taken that the kernel has not given up, as it does where
            // the interface is down.
            RouteAttribute::MultiPath(all) => {
                let mut alive = all.iter().filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead));
                let on_port = alive.clone().find(|hop| port_of(hop.interface_index, ports).is_some());
                let hop = on_port.or_else(|| alive.next())?;
                hops(&RouteAttribute::Oif(hop.interface_index));
                hop.attributes.iter().for_each(&mut hops);
            }
            other => hops(other),
        }
    }
    // Routes that depend on the source address or on the TOS are not supported.
    if is_exception(message) || message.header.source_prefix_length > 0 || message.header.tos != 0 {
        return None;
    }
    // These are the policy rules of an unchanged kernel; IPv6 has none for the table default.
    let table = match table {
        255 => Table::Local,
        254 => Table::Main,
        253 if any.is_ipv4() => Table::Default,
        _ => return None,
    };
    // With net.ipv4.nexthop_compat_mode=0 the kernel reports only the number of the nexthop object.
    if let (None, Some(id)) = (oif, nexthop)
        && let Some(found) = nexthops::hop(nexthops, id, |index| port_of(index, ports).is_some())
    {
        (oif, via) = (found.oif, found.via);
        has_encap |= found.has_encap;
    }
    let action = match message.header.kind {
        // The packets would leave without the headers that the route is there for.
        RouteType::Unicast if has_encap => Action::Encapsulated,
        RouteType::Unicast => match port_of(oif?, ports) {
            Some(port) => {
                let link = mtus[usize::from(port)];
                Action::Forward { port, via, mtu: mtu.map_or(link, |mtu| mtu.min(link)) }
            }
            // The output interface of the route is not a port of the router.
            None => Action::Unreachable,
        },
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => Action::Local,
        RouteType::BlackHole => Action::Blackhole,
        RouteType::Unreachable => Action::Unreachable,
        RouteType::Prohibit => Action::Prohibited,
        RouteType::Throw => Action::Throw,
        _ => return None,
    };
    Some(((table, destination, message.header.destination_prefix_length), metric, action))
}

/// Returns the change of a neighbour on one of the ports that the kernel reports.
pub(super) fn read_neighbour(message: &NeighbourMessage, ports: [u32; 2]) -> Option<NeighbourEvent> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let hop = hop_of(message, ports)?;
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok(),
        _ => None,
    });
    let set = |mac, is_permanent| NeighbourEvent::Set(Neighbour { hop, mac, is_permanent });
    Some(match (message.header.state, mac) {
        (Permanent, Some(mac)) => set(mac, true),
        // It is not probed either. The kernel makes some by itself, for broadcasts and groups.
        (Noarp, Some(mac)) if ethernet::is_station(mac) => set(mac, true),
        (Reachable | Stale | Delay | Probe, Some(mac)) => set(mac, false),
        // The kernel itself has no address to send to.
        _ => NeighbourEvent::Removed(hop),
    })
}

/// Returns the next hop that a neighbour message describes, if it is on one of the ports.
pub(super) fn hop_of(message: &NeighbourMessage, ports: [u32; 2]) -> Option<Hop> {
    let port = port_of(message.header.ifindex, ports)?;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::from(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::from(*v6)),
        _ => None,
    })?;
    Some(Hop::new(port, Some(address), 0, address.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a route to 2001:db8:2::/64 or to another prefix by the interface 4 or 5.
    fn route(protocol: RouteProtocol, prefix: &str, len: u8, index: u32, more: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = netlink_packet_route::AddressFamily::Inet6;
        message.header.table = 254;
        message.header.protocol = protocol;
        message.header.kind = RouteType::Unicast;
        message.header.destination_prefix_length = len;
        let prefix: std::net::Ipv6Addr = prefix.parse().unwrap();
        message.attributes = vec![RouteAttribute::Destination(prefix.into()), RouteAttribute::Oif(index)];
        message.attributes.extend(more);
        message
    }

    #[test]
    fn routes_of_router_advertisements_are_told_from_others() {
        let configured = [Prefix { address: "2001:db8:1::1".parse().unwrap(), len: 64 }];
        let gateway = || vec![RouteAttribute::Gateway(RouteAddress::Inet6("fe80::6".parse().unwrap()))];
        use RouteProtocol::{Bird, Kernel, Ra, Static};
        for (protocol, prefix, len, index, more, expected) in [
            (Ra, "::", 0, 4, gateway(), true),
            (Ra, "2001:db8:2::", 64, 5, gateway(), true),
            // A prefix on the link, which is that of a configured address there, or not.
            (Kernel, "2001:db8:1::", 64, 4, vec![], false),
            (Kernel, "2001:db8:1::", 64, 5, vec![], true),
            (Kernel, "2001:db8:1::", 112, 4, vec![], true),
            (Kernel, "2001:db8:2::", 64, 4, vec![], true),
            (Static, "2001:db8:2::", 64, 4, vec![], false),
            (Static, "::", 0, 4, gateway(), false),
            (Bird, "2001:db8:2::", 64, 4, gateway(), false),
        ] {
            let message = route(protocol, prefix, len, index, more);
            let (to, _, action) = read_route(&message, &Nexthops::new(), [4, 5], [1500; 2]).unwrap();
            let found = comes_from_advertisement(&message, to, action, &[configured.to_vec(), Vec::new()]);
            assert_eq!(found, expected, "{protocol:?} {prefix}/{len} by {index}");
        }
        let address = |attribute| {
            let mut message = AddressMessage::default();
            message.attributes = vec![attribute];
            is_advertised(&message)
        };
        assert!(address(AddressAttribute::Protocol(AddressProtocol::RouterAnnouncement)));
        assert!(address(AddressAttribute::Flags(AddressFlags::Managetempaddr | AddressFlags::Noprefixroute)));
        assert!(!address(AddressAttribute::Protocol(AddressProtocol::LinkLocal)));
        assert!(!address(AddressAttribute::Flags(AddressFlags::Permanent)));
    }

    #[test]
    fn a_next_hop_that_the_kernel_has_given_up_is_not_taken() {
        use netlink_packet_route::route::RouteNextHop;
        let hop = |index: u32, flags: RouteNextHopFlags| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.flags) = (index, flags);
            hop
        };
        let (alive, dead) = (RouteNextHopFlags::empty(), RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown);
        let to = |port| Some(Action::Forward { port, via: None, mtu: 1500 });
        for (hops, expected) in [
            (vec![hop(4, alive), hop(5, alive)], to(0)),
            (vec![hop(4, RouteNextHopFlags::Linkdown), hop(5, alive)], to(0)),
            (vec![hop(4, dead), hop(5, alive)], to(1)),
            (vec![hop(9, alive), hop(5, alive)], to(1)),
            // By another interface, and by none.
            (vec![hop(4, dead), hop(9, alive)], Some(Action::Unreachable)),
            (vec![hop(4, dead), hop(5, dead)], None),
        ] {
            let case = format!("{hops:?}");
            let hops = vec![RouteAttribute::MultiPath(hops)];
            let mut message = route(RouteProtocol::Static, "2001:db8:2::", 64, 4, hops);
            message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
            let found = read_route(&message, &Nexthops::new(), [4, 5], [1500; 2]);
            assert_eq!(found.map(|(_, _, action)| action), expected, "{case}");
        }
    }

    #[test]
    fn a_route_that_encapsulates_is_refused_by_name() {
        use netlink_packet_route::route::RouteLwEnCapType;
        let encap = || RouteAttribute::EncapType(RouteLwEnCapType::Mpls);
        let action = |message: &RouteMessage, nexthops: &Nexthops| {
            read_route(message, nexthops, [4, 5], [1500; 2]).map(|(_, _, action)| action)
        };
        let plain = route(RouteProtocol::Static, "2001:db8:2::", 64, 4, vec![]);
        let mpls = route(RouteProtocol::Static, "2001:db8:2::", 64, 4, vec![encap()]);
        let none = Nexthops::new();
        assert!(matches!(action(&plain, &none), Some(Action::Forward { port: 0, .. })));
        assert_eq!(action(&mpls, &none), Some(Action::Encapsulated));
        // In a nexthop object, which the route names.
        let mut named = route(RouteProtocol::Static, "2001:db8:2::", 64, 4, vec![RouteAttribute::NhId(7)]);
        named.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
        let mut object = nexthops::Nexthop::default();
        (object.oif, object.has_encap) = (Some(4), true);
        assert_eq!(action(&named, &Nexthops::from([(7, object)])), Some(Action::Encapsulated));
    }
}
