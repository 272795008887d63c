//! The kernel's routes, addresses and neighbours for a router, read again whenever the kernel reports a change.
//! Changes of neighbours, which are frequent, are forwarded one by one without reading the tables.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteType, RouteVia,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use segue_datapath::route::{Action, Hop, Routes, Table};
use segue_datapath::router::{FeedSender, InterfaceAddrs, Message, Neighbour, NeighbourEvent, Tables};
use segue_host::netlink::nexthops::{self, Nexthops};
use segue_host::netlink::{Netlink, padded};
use segue_host::prefix::Prefix;

use crate::router_faults::{TableFaults, Unused};
use crate::started;

/// Largest number of routes that are copied: twice a full table of the Internet.
const MOST_ROUTES: usize = 2_000_000;
/// Largest number of routes from router advertisements that are used where they are asked for.
pub const MOST_ADVERTISED: usize = 64;
/// Multicast groups of rtnetlink: link, neigh, IPv4 address and route, IPv6 address and route.
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
/// The multicast group of nexthop objects, which kernels before 5.3 do not have.
const NEXTHOPS: u32 = 32;
/// Shortest time between two reads of the tables; changes in between are read together.
const PAUSE: Duration = Duration::from_millis(50);
/// Time after which tables that could not be read, or changes that could not be heard of, are asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// The key of a route: its table, its prefix, and the length of the prefix.
pub type RouteKey = (Table, IpAddr, u8);

/// Reader of the kernel's tables and of their changes.
pub struct Follower {
    netlink: Netlink,
    news: Socket,
    /// The interface indexes of the router's ports.
    ports: [u32; 2],
    advertised: Advertised,
    faults: Arc<TableFaults>,
}

/// The treatment of routes that the kernel has learned from router advertisements (RFC 4861, section 6.3.4; RFC 4191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advertised {
    /// Such routes are not used, and counted: any station on a link can send advertisements.
    Unused,
    /// Such routes are used, up to [`MOST_ADVERTISED`] of them.
    Used,
}

impl Follower {
    /// Opens the connections for changes and for reading the tables; neither needs any rights later.
    pub fn open(ports: [u32; 2], advertised: Advertised) -> io::Result<Follower> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind(&SocketAddr::new(0, 0))?;
        GROUPS.iter().try_for_each(|group| news.add_membership(*group))?;
        let _ = news.add_membership(NEXTHOPS);
        // A message that is lost for lack of room is reported, and all tables are read again.
        let _ = news.set_rx_buf_sz(1 << 20);
        Ok(Follower { netlink: Netlink::open()?, news, ports, advertised, faults: Arc::default() })
    }

    /// Returns the faults of the tables, which this follower keeps up to date from now on.
    pub fn faults(&self) -> Arc<TableFaults> {
        Arc::clone(&self.faults)
    }

    /// Sends the router the present tables, and then every change, on a thread of its own that ends with the router.
    pub fn start(mut self, sender: FeedSender) -> io::Result<()> {
        let first = self.read()?;
        sender.send(Message::Tables(Box::new(first)));
        started::spawn("routes", move || {
            // However the thread ends, the tables are stale afterwards.
            let _ended = Ended(self.faults());
            self.follow(&sender);
        })?;
        Ok(())
    }

    /// Sends the router every change until the router ends. After a failure, everything is read again until that
    /// succeeds.
    fn follow(&mut self, sender: &FeedSender) {
        let mut is_behind = false;
        loop {
            let news =
                if is_behind { Ok(TableChanges { is_more: true, ..TableChanges::default() }) } else { self.wait() };
            let news = match news {
                Ok(news) => news,
                Err(error) => {
                    self.fall_behind("changes of the kernel's tables are not reported", &error);
                    is_behind = true;
                    continue;
                }
            };
            // Neighbours first: the tables are newer and do not say what has just changed in them.
            if !news.changes.is_empty() && !sender.send(Message::Neighbours(news.changes)) {
                return;
            }
            if !news.is_more {
                continue;
            }
            match self.read() {
                Ok(tables) => {
                    if !sender.send(Message::Tables(Box::new(tables))) {
                        return;
                    }
                    self.faults.set_fresh();
                    is_behind = false;
                }
                Err(error) => {
                    self.fall_behind("the kernel's tables cannot be read", &error);
                    is_behind = true;
                }
            }
        }
    }

    /// Reports that the router's tables are stale, and waits before the next attempt.
    fn fall_behind(&self, what: &str, error: &io::Error) {
        if self.faults.set_stale(&format!("{what}: {error}")) {
            tracing::warn!(id = "routes", "{what}: {error}");
        }
        thread::sleep(RETRY);
    }

    /// Waits for a change, and a little longer for those that come with it.
    fn wait(&mut self) -> io::Result<TableChanges> {
        let mut news = TableChanges::default();
        let mut bytes = Vec::with_capacity(1 << 16);
        let mut flags = 0;
        loop {
            bytes.clear();
            match self.news.recv(&mut bytes, flags) {
                Ok(_) => news.add(&bytes, self.ports),
                // The receive buffer overflowed and messages were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    if std::mem::replace(&mut news.is_more, true) && flags != 0 {
                        return Ok(news);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(news),
                Err(error) => return Err(error),
            }
            if flags == 0 {
                thread::sleep(PAUSE);
                flags = libc::MSG_DONTWAIT;
            }
        }
    }

    /// Reads the links, addresses, neighbours and routes of the kernel.
    pub fn read(&mut self) -> io::Result<Tables> {
        let [(from, near), (to, far)] = [self.addrs(self.ports[0])?, self.addrs(self.ports[1])?];
        let routes = self.routes([from.mtu, to.mtu], [near, far])?;
        Ok(Tables { routes, neighbours: self.neighbours()?, ports: [from, to] })
    }

    /// Returns the addresses of an interface, and the IPv6 prefixes of those that were configured there: not by a
    /// router advertisement.
    fn addrs(&mut self, index: u32) -> io::Result<(InterfaceAddrs, Vec<Prefix>)> {
        let (mut addrs, mut configured) = (InterfaceAddrs::default(), Vec::new());
        let mut message = LinkMessage::default();
        message.header.index = index;
        if let Some(RouteNetlinkMessage::NewLink(link)) =
            self.netlink.request(RouteNetlinkMessage::GetLink(message), 0)?
        {
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::Mtu(mtu) => addrs.mtu = mtu,
                    LinkAttribute::Address(mac) => addrs.mac = mac.try_into().unwrap_or_default(),
                    _ => {}
                }
            }
        }
        self.netlink.exchange(
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            NLM_F_DUMP,
            &mut |message| {
                let RouteNetlinkMessage::NewAddress(message) = message else { return ControlFlow::Continue(()) };
                if message.header.index != index {
                    return ControlFlow::Continue(());
                }
                let (mut local, mut address) = (None, None);
                for attribute in &message.attributes {
                    match attribute {
                        AddressAttribute::Local(own) => local = Some(*own),
                        AddressAttribute::Address(own) => address = Some(*own),
                        _ => {}
                    }
                }
                if !is_advertised(&message) {
                    let len = message.header.prefix_len;
                    let both = local.into_iter().chain(address).filter(IpAddr::is_ipv6);
                    configured.extend(both.map(|address| Prefix { address, len }));
                }
                match local.or(address) {
                    Some(IpAddr::V4(own)) => addrs.v4.push((own, message.header.prefix_len)),
                    Some(IpAddr::V6(own)) => addrs.v6.push((own, message.header.prefix_len)),
                    None => {}
                }
                ControlFlow::Continue(())
            },
        )?;
        Ok((addrs, configured))
    }

    fn routes(&mut self, mtus: [u32; 2], configured: [Vec<Prefix>; 2]) -> io::Result<Routes> {
        let mut routes = Routes::new(MOST_ROUTES);
        // Of several routes of a prefix in a table the one with the least metric counts.
        let mut metrics: HashMap<RouteKey, u32> = HashMap::new();
        let mut too_many = 0;
        let mut unused = Unused::default();
        let (ports, advertised) = (self.ports, self.advertised);
        let nexthops = nexthops::read(&mut self.netlink)?;
        self.netlink.exchange(RouteNetlinkMessage::GetRoute(RouteMessage::default()), NLM_F_DUMP, &mut |message| {
            let RouteNetlinkMessage::NewRoute(message) = message else { return ControlFlow::Continue(()) };
            let Some((to, metric, action)) = read_route(&message, &nexthops, ports, mtus) else {
                return ControlFlow::Continue(());
            };
            if comes_from_advertisement(&message, to, action, &configured) {
                let is_used = advertised == Advertised::Used && unused.advertised_used < MOST_ADVERTISED;
                unused.advertised_used += usize::from(is_used);
                unused.advertised += usize::from(!is_used);
                if !is_used {
                    return ControlFlow::Continue(());
                }
            }
            if metrics.get(&to).is_some_and(|known| *known <= metric) {
                return ControlFlow::Continue(());
            }
            let (table, prefix, len) = to;
            match routes.insert(table, prefix, len, action) {
                Ok(()) => drop(metrics.insert(to, metric)),
                Err(_) => too_many += 1,
            }
            ControlFlow::Continue(())
        })?;
        if too_many > 0 {
            tracing::warn!(id = "routes", "{too_many} routes are more than the {MOST_ROUTES} that are taken over");
        }
        unused.beyond_limit = too_many;
        self.faults.set_unused(unused);
        Ok(routes)
    }

    fn neighbours(&mut self) -> io::Result<Vec<Neighbour>> {
        let mut found = Vec::new();
        let ports = self.ports;
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.netlink.exchange(request, NLM_F_DUMP, &mut |message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                found.extend(read_neighbour(&message, ports));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

/// Marks the tables as stale when the thread that follows them ends.
struct Ended(Arc<TableFaults>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.set_stale("the thread that follows the kernel's tables has ended");
    }
}

/// The changes of the kernel's tables since the last read.
#[derive(Debug, Default)]
pub struct TableChanges {
    /// Changes of neighbours, in the order of the messages.
    pub changes: Vec<NeighbourEvent>,
    /// Whether anything else has changed, so that all tables are read again.
    pub is_more: bool,
}

impl TableChanges {
    /// Adds the changes of one netlink datagram, for a router between the interfaces with these indexes.
    pub fn add(&mut self, datagram: &[u8], ports: [u32; 2]) {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
                self.is_more = true;
                return;
            };
            rest = &rest[padded(&message.header, rest.len())..];
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
                    self.changes.extend(read_neighbour(&message, ports).map(NeighbourEvent::Set));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message)) => {
                    self.changes.extend(hop_of(&message, ports).map(NeighbourEvent::Removed));
                }
                NetlinkPayload::InnerMessage(
                    RouteNetlinkMessage::NewRoute(message) | RouteNetlinkMessage::DelRoute(message),
                ) if is_exception(&message) => {}
                _ => self.is_more = true,
            }
        }
    }
}

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
fn is_advertised(message: &AddressMessage) -> bool {
    let is_made = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Protocol(protocol) => *protocol == AddressProtocol::RouterAnnouncement,
        // Kernels before 5.18 do not name the origin.
        AddressAttribute::Flags(flags) => flags.contains(AddressFlags::Managetempaddr),
        _ => false,
    };
    message.attributes.iter().any(is_made)
}

/// Returns whether the kernel has learned a route from a router advertisement: a default route and the routes of RFC
/// 4191 are marked as such; the prefix of a link is a route of the kernel without a gateway, as the prefix of an
/// address is, but belongs to none of the `configured` addresses.
fn comes_from_advertisement(
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
fn is_exception(message: &RouteMessage) -> bool {
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
            // Of several next hops the first one behind a port is taken.
            RouteAttribute::MultiPath(all) => {
                let hop = all.iter().find(|hop| port_of(hop.interface_index, ports).is_some()).or(all.first())?;
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

fn read_neighbour(message: &NeighbourMessage, ports: [u32; 2]) -> Option<Neighbour> {
    let hop = hop_of(message, ports)?;
    let is_permanent = match message.header.state {
        NeighbourState::Permanent => true,
        NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => false,
        _ => return None,
    };
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok(),
        _ => None,
    })?;
    Some(Neighbour { hop, mac, is_permanent })
}

/// Returns the next hop that a neighbour message describes, where it is behind one of the ports.
fn hop_of(message: &NeighbourMessage, ports: [u32; 2]) -> Option<Hop> {
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

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn bytes(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::from(message);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn neighbour() -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = netlink_packet_route::AddressFamily::Inet;
        message.header.ifindex = 5;
        message.header.state = NeighbourState::Reachable;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet([198, 18, 2, 2].into())),
            NeighbourAttribute::LinkLayerAddress(MAC.to_vec()),
        ];
        message
    }

    #[test]
    fn a_change_of_a_neighbour_counts_also_where_something_else_has_changed() {
        let route = || bytes(RouteNetlinkMessage::NewRoute(RouteMessage::default()));
        let here = || bytes(RouteNetlinkMessage::NewNeighbour(neighbour()));
        let gone = bytes(RouteNetlinkMessage::DelNeighbour(neighbour()));
        let hop = Hop::new(1, Some([198, 18, 2, 2].into()), 0, true);
        let is = NeighbourEvent::Set(Neighbour { hop, mac: MAC, is_permanent: false });
        for datagrams in [vec![here(), route(), gone.clone()], vec![[route(), here()].concat(), gone.clone()]] {
            let mut news = TableChanges::default();
            datagrams.iter().for_each(|datagram| news.add(datagram, [4, 5]));
            assert_eq!(news.changes, [is, NeighbourEvent::Removed(hop)]);
            assert!(news.is_more);
        }
        let mut alone = TableChanges::default();
        alone.add(&here(), [4, 5]);
        assert!(alone.changes == [is] && !alone.is_more);
    }

    /// A route to 2001:db8:2::/64 or to another prefix by the interface 4 or 5.
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
