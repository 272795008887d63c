//! Links, addresses and routes by rtnetlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use segue_host::netlink::Netlink;
use segue_host::prefix::Prefix;

/// The kernel's answer for a link that does not exist.
const ENODEV: i32 = 19;

/// A connection to the kernel, in the namespace of the thread that opened it.
pub(crate) struct Links(Netlink);

/// A network interface that was found by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Index of the interface.
    pub(crate) index: u32,
    /// MAC address of the interface.
    pub(crate) mac: String,
    /// MTU of the interface, bytes.
    pub(crate) mtu: u32,
    /// Alias of the interface (IFLA_IFALIAS).
    pub(crate) alias: String,
    /// Whether the interface is up.
    pub(crate) is_up: bool,
}

/// A route to add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Destination network.
    to: Ipv4Addr,
    len: u8,
    /// The next hop, where the network is not on the link itself.
    gateway: Option<Ipv4Addr>,
    /// Metric of the route; the kernel uses the one with the smallest.
    metric: u32,
}

impl Route {
    /// Returns the route to a host that is on the link.
    pub(crate) fn to_host(host: Ipv4Addr) -> Route {
        Route { to: host, len: 32, gateway: None, metric: 0 }
    }

    /// Returns the default route by a gateway.
    pub(crate) fn default_by(gateway: Ipv4Addr) -> Route {
        Route { to: Ipv4Addr::UNSPECIFIED, len: 0, gateway: Some(gateway), metric: 0 }
    }
}

impl Links {
    /// Opens the netlink socket.
    pub(crate) fn open() -> io::Result<Links> {
        Netlink::open().map(Links)
    }

    /// Creates a veth pair: `name` here, and `peer` in the namespace of the descriptor.
    pub(crate) fn make_pair(&mut self, name: &str, peer: &str, namespace: RawFd, mtu: u32) -> io::Result<()> {
        let mut inner = LinkMessage::default();
        inner.attributes =
            vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(namespace), LinkAttribute::Mtu(mtu)];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inner))),
            ]),
        ];
        self.0.tell(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sets a link up, with an alias where one is given.
    pub(crate) fn set_up(&mut self, index: u32, alias: Option<&str>) -> io::Result<()> {
        if let Some(alias) = alias {
            let mut message = LinkMessage::default();
            message.header.index = index;
            message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
            self.0.tell(RouteNetlinkMessage::SetLink(message), 0)?;
        }
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.0.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Removes a link, and with it the other end of a pair.
    pub(crate) fn remove(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.0.tell(RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Returns the link of this name. It is requested by the name: a dump can lack a link while others change.
    pub(crate) fn find(&mut self, name: &str) -> io::Result<Option<Found>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.0.request(RouteNetlinkMessage::GetLink(message), 0) {
            // The kernel also answers with a link that has this as an alternative name.
            Ok(Some(RouteNetlinkMessage::NewLink(message))) => {
                Ok(Some(read(&message)).filter(|(known, _)| known == name).map(|(_, found)| found))
            }
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.raw_os_error() == Some(ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns every link with its name.
    pub(crate) fn all(&mut self) -> io::Result<Vec<(String, Found)>> {
        self.0.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()), &mut |message| match message {
            RouteNetlinkMessage::NewLink(message) => Some(read(&message)),
            _ => None,
        })
    }

    /// Returns the addresses of a link.
    pub(crate) fn addresses(&mut self, index: u32) -> io::Result<Vec<Prefix>> {
        self.0.addresses(index)
    }

    /// Adds an address to a link.
    pub(crate) fn add_address(&mut self, index: u32, address: Ipv4Addr, len: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = len;
        message.header.index = index;
        let address = IpAddr::V4(address);
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.0.tell(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route. It is an error where there is one to the same network with the same metric, by whatever link.
    pub(crate) fn add_route(&mut self, route: Route, link: u32) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = route.len;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.kind = RouteType::Unicast;
        if route.len > 0 {
            message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(route.to)));
        }
        let gateway = route.gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        message.attributes.extend(gateway);
        message.attributes.push(RouteAttribute::Oif(link));
        if route.metric > 0 {
            message.attributes.push(RouteAttribute::Priority(route.metric));
        }
        self.0.tell(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route like [`Links::add_route`], behind the one that another link has to the same network: with a metric
    /// that no other link has. Of default routes with equal metrics the kernel would choose by their gateways'
    /// neighbour entries, now this one and now that one.
    pub(crate) fn add_route_behind(&mut self, route: Route, link: u32) -> io::Result<()> {
        match self.add_route(route, link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.add_route(Route { metric: link, ..route }, link)
            }
            other => other,
        }
    }

    /// Returns the destinations of all routes by a link, in the main table.
    pub(crate) fn routes(&mut self, link: u32) -> io::Result<Vec<(Ipv4Addr, u8)>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        self.0.dump(&RouteNetlinkMessage::GetRoute(message), &mut |message| {
            let RouteNetlinkMessage::NewRoute(route) = message else { return None };
            let by = route.attributes.iter().any(|one| matches!(one, RouteAttribute::Oif(index) if *index == link));
            let to = route.attributes.iter().find_map(|one| match one {
                RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(*to),
                _ => None,
            });
            let is_wanted = by && route.header.table == RouteHeader::RT_TABLE_MAIN;
            is_wanted.then(|| (to.unwrap_or(Ipv4Addr::UNSPECIFIED), route.header.destination_prefix_length))
        })
    }
}

fn read(message: &LinkMessage) -> (String, Found) {
    let mut name = String::new();
    let is_up = message.header.flags.contains(LinkFlags::Up);
    let mut found = Found { index: message.header.index, mac: String::new(), mtu: 0, alias: String::new(), is_up };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name.clone_from(text),
            LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
            LinkAttribute::IfAlias(alias) => found.alias.clone_from(alias),
            LinkAttribute::Address(mac) => {
                found.mac = mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
            }
            _ => {}
        }
    }
    (name, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_by_its_name_without_a_dump() {
        let mut links = Links::open().unwrap();
        assert_eq!(links.find("lo").unwrap().unwrap().index, 1);
        assert_eq!(links.find("nosuch0").unwrap(), None);
        assert!(links.all().unwrap().iter().any(|(name, _)| name == "lo"));
    }
}
