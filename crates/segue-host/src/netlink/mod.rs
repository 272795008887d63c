//! Links, addresses and routes over one synchronous rtnetlink socket.

pub mod changes;
pub mod filters;
pub mod needed;
pub mod nexthops;
mod rules;
pub mod sockets;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteVia};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::prefix::Prefix;

/// A network interface as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The index of the interface.
    pub index: u32,
    /// The name of the interface.
    pub name: String,
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// The hardware address, where it has six bytes.
    pub mac: Option<[u8; 6]>,
    /// Whether the interface is up (IFF_UP).
    pub up: bool,
    /// Whether the interface has a carrier.
    pub has_carrier: bool,
    /// Whether the interface is a TUN or TAP device.
    pub tun: bool,
    /// Whether the interface carries Ethernet frames; true for loopback as well.
    pub ethernet: bool,
    /// The index of the bridge or bond that the interface is a port of.
    pub master: Option<u32>,
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Preferred source address of the route.
    pub source: Option<IpAddr>,
    /// The next hop, where it is not the destination itself.
    pub gateway: Option<IpAddr>,
    /// The index of the output interface.
    pub link: u32,
    /// The MTU of the route itself, bytes, where it has one.
    pub mtu: Option<u32>,
}

/// A queueing discipline of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// The kind, such as `fq_codel` or `clsact`.
    pub kind: String,
    /// Whether the kernel has attached it by itself: such a one has no handle.
    pub is_default: bool,
}

/// A synchronous rtnetlink connection to the kernel, for links, addresses and routes.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    /// Room for one datagram of the kernel.
    room: Vec<u8>,
}

/// Length of the room for one datagram, bytes. A part of a dump has at most 32 KiB, and the longest attribute of a
/// single message 64 KiB.
const ROOM: usize = 128 << 10;

/// Largest number of datagrams of an earlier dump that are read before the next one: a million routes have a few
/// thousand.
const MOST_PARTS: usize = 1 << 16;

/// Flag of a message of a dump during which the table changed: entries may be missing, or twice there.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Number of times that a dump is requested before it fails because the table changes all the time.
const DUMPS: usize = 16;

/// Returns the error of a dump during which the table changed.
pub(crate) fn changed_meanwhile() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "it changed each time while it was read")
}

/// Returns the first result of `read` that is not of a dump during which the table changed, or after a number of such
/// dumps their error.
pub fn until_whole<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_whole = |result: &io::Result<T>| !matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted);
    (0..DUMPS).map(|_| read()).find(is_whole).unwrap_or_else(|| Err(changed_meanwhile()))
}

/// Returns whether a datagram has a message of a dump during which the table changed.
pub(crate) fn is_interrupted(mut datagram: &[u8]) -> bool {
    while let (Some(len), Some(flags)) = (datagram.first_chunk::<4>(), datagram.get(6..8)) {
        if u16::from_ne_bytes([flags[0], flags[1]]) & NLM_F_DUMP_INTR != 0 {
            return true;
        }
        let len = (u32::from_ne_bytes(*len) as usize).max(4).next_multiple_of(4);
        datagram = datagram.get(len..).unwrap_or_default();
    }
    false
}

impl Netlink {
    /// Opens a socket that is bound and connected to the kernel.
    pub fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0, room: Vec::with_capacity(ROOM) })
    }

    /// Looks up the route to `remote`, from `local` if given.
    pub fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> io::Result<Route> {
        self.route_on(remote, local, None)
    }

    /// Looks up the route to `remote` like [`Netlink::route`], restricted to `link` if given, as a link-local address
    /// needs.
    pub fn route_on(&mut self, remote: IpAddr, local: Option<IpAddr>, link: Option<u32>) -> io::Result<Route> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = family(remote);
        message.header.destination_prefix_length = bits(remote);
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(remote)));
        if let Some(local) = local {
            message.header.source_prefix_length = bits(local);
            message.attributes.push(RouteAttribute::Source(RouteAddress::from(local)));
        }
        message.attributes.extend(link.map(RouteAttribute::Oif));
        let reply = self.request(RouteNetlinkMessage::GetRoute(message), 0)?;
        let Some(RouteNetlinkMessage::NewRoute(found)) = reply else {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        };
        let mut route = Route { source: local, gateway: None, link: 0, mtu: None };
        for attribute in found.attributes {
            match attribute {
                RouteAttribute::Oif(index) => route.link = index,
                RouteAttribute::Gateway(RouteAddress::Inet(v4)) => route.gateway = Some(v4.into()),
                RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => route.gateway = Some(v6.into()),
                RouteAttribute::Via(RouteVia::Inet6(v6)) => route.gateway = Some(v6.into()),
                RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => route.source = Some(v4.into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => route.source = Some(v6.into()),
                RouteAttribute::Metrics(metrics) => {
                    route.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Ok(route)
    }

    /// Returns the link with the given index.
    pub fn link(&mut self, index: u32) -> io::Result<Link> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.link_of(message)
    }

    /// Returns the link with the given name, or `None`.
    pub fn link_named(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.link_of(message) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn link_of(&mut self, mut message: LinkMessage) -> io::Result<Link> {
        // The counters of an interface take the kernel longer than all else.
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let Some(RouteNetlinkMessage::NewLink(found)) = self.request(RouteNetlinkMessage::GetLink(message), 0)? else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let up = found.header.flags.contains(LinkFlags::Up);
        let (index, kind) = (found.header.index, found.header.link_layer_type);
        let ethernet = matches!(kind, LinkLayerType::Ether | LinkLayerType::Loopback);
        let (name, mac) = (String::new(), None);
        let mut link = Link { index, name, mtu: 0, mac, up, has_carrier: false, tun: false, ethernet, master: None };
        for attribute in found.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Address(address) => link.mac = address.try_into().ok(),
                LinkAttribute::Controller(index) => link.master = Some(index),
                LinkAttribute::Carrier(carrier) => link.has_carrier = carrier != 0,
                LinkAttribute::LinkInfo(infos) => link.tun = infos.contains(&LinkInfo::Kind(InfoKind::Tun)),
                _ => {}
            }
        }
        Ok(link)
    }

    /// Returns the addresses of the link with the given index.
    pub fn addresses(&mut self, index: u32) -> io::Result<Vec<Prefix>> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|(link, _)| *link == index).map(|(_, prefix)| prefix).collect())
    }

    /// Returns the addresses of all links, each with the index of its link.
    pub fn all_addresses(&mut self) -> io::Result<Vec<(u32, Prefix)>> {
        self.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()), &mut |message| {
            let RouteNetlinkMessage::NewAddress(message) = message else { return None };
            // On a point-to-point link IFA_ADDRESS is the address of the peer and IFA_LOCAL that of this host.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            Some((message.header.index, Prefix { address: local.or(address)?, len: message.header.prefix_len }))
        })
    }

    /// Returns the queueing disciplines of all links, by the index of the link, including `clsact` and `ingress`, which
    /// have filters.
    pub fn queueing(&mut self) -> io::Result<BTreeMap<u32, Vec<Queueing>>> {
        let found = self.dump(&RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()), &mut |message| {
            let RouteNetlinkMessage::NewQueueDiscipline(message) = message else { return None };
            let is_default = message.header.handle == TcHandle::UNSPEC;
            let kind = message.attributes.into_iter().find_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind),
                _ => None,
            });
            Some((message.header.index.cast_unsigned(), Queueing { kind: kind?, is_default }))
        });
        let found = match found {
            // A kernel without queueing disciplines (CONFIG_NET_SCHED).
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
            found => found?,
        };
        let mut of_links: BTreeMap<u32, Vec<Queueing>> = BTreeMap::new();
        found.into_iter().for_each(|(index, one)| of_links.entry(index).or_default().push(one));
        Ok(of_links)
    }

    /// Returns whether the kernel's neighbour entry for `address` on a link is in state FAILED: solicitations were not
    /// answered. Kernels before 5.0 cannot look up one neighbour, which is an error.
    pub fn has_failed(&mut self, link: u32, address: IpAddr) -> io::Result<bool> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = link;
        message.attributes = vec![NeighbourAttribute::Destination(match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        })];
        match self.request(RouteNetlinkMessage::GetNeighbour(message), 0) {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(found))) => Ok(found.header.state == NeighbourState::Failed),
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and returns the first answer that is not an acknowledgement.
    pub fn request(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut answer = None;
        self.exchange(request, flags, &mut |message| {
            answer = Some(message);
            ControlFlow::Break(())
        })?;
        Ok(answer)
    }

    /// Sends a request for a change and waits for the acknowledgement.
    pub fn tell(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.exchange(request, flags | NLM_F_ACK, &mut |_| ControlFlow::Continue(()))
    }

    /// Requests a dump and returns what `read` makes of its entries. A dump during which the table changed is repeated
    /// a few times.
    pub fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        read: &mut dyn FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        until_whole(|| {
            let mut found = Vec::new();
            self.exchange(request.clone(), NLM_F_DUMP, &mut |message| {
                found.extend(read(message));
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
    }

    /// Sends a request and passes every answer to `each`, until `each` breaks or the kernel ends the dump.
    ///
    /// # Errors
    /// The kernel's answer, and [`io::ErrorKind::Interrupted`] at the end of a dump during which the table changed.
    pub fn exchange(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
    ) -> io::Result<()> {
        if flags & NLM_F_DUMP != NLM_F_DUMP {
            return self.attempt(request, flags, each);
        }
        self.past_another_dump(|netlink| netlink.attempt(request.clone(), flags, each))
    }

    /// Returns what the dump `dump` does, repeated where an earlier one, which has failed on the way, still goes on:
    /// the kernel makes one after the other for a socket, and each part only when the one before has been read.
    fn past_another_dump<T>(&mut self, mut dump: impl FnMut(&mut Netlink) -> io::Result<T>) -> io::Result<T> {
        match dump(self) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                self.read_to_the_end();
                dump(self)
            }
            result => result,
        }
    }

    /// Reads what is left of an earlier answer.
    fn read_to_the_end(&mut self) {
        for _ in 0..MOST_PARTS {
            self.room.clear();
            match self.socket.recv(&mut self.room, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A part that failed; the next one may not.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Sends a request like [`Netlink::exchange`], which an earlier dump may refuse with EBUSY.
    fn attempt(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut has_changed = false;
        loop {
            self.room.clear();
            let len = self.socket.recv(&mut self.room, libc::MSG_TRUNC)?;
            if len > self.room.len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {len} bytes")));
            }
            has_changed |= is_interrupted(&self.room);
            if answers(&self.room, self.sequence, each)?.is_break() {
                return if has_changed { Err(changed_meanwhile()) } else { Ok(()) };
            }
        }
    }
}

/// Passes every answer to the request with the number `sequence` in a datagram of the kernel to `each`. Breaks where
/// `each` does, and at the end of a dump or an acknowledgement.
///
/// # Errors
/// The kernel's answer to the request, or [`io::ErrorKind::InvalidData`] for what is no message.
pub fn answers(
    datagram: &[u8],
    sequence: u32,
    each: &mut dyn FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = needed::message(rest)?;
        rest = &rest[padded(&message.header, rest.len())..];
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => {
                return Err(io::Error::from_raw_os_error(error.raw_code().saturating_neg()));
            }
            // A dump that fails on the way, for lack of memory for example, ends with the error.
            NetlinkPayload::Done(done) if done.code < 0 => {
                return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
            }
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(ControlFlow::Break(())),
            NetlinkPayload::InnerMessage(inner) => {
                let flow = each(inner);
                if flow.is_break() {
                    return Ok(flow);
                }
            }
            _ => {}
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the length of a message of which `most` bytes are left: messages are padded to four bytes, and the last
/// one may lack its padding.
pub fn padded(header: &NetlinkHeader, most: usize) -> usize {
    (header.length as usize).next_multiple_of(4).clamp(4, most.max(4)).min(most)
}

/// Returns the address family of `address`.
pub fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_MULTIPART;

    use super::*;

    #[test]
    fn the_loopback_link_is_found_by_name_and_by_index() {
        let mut netlink = Netlink::open().unwrap();
        let by_name = netlink.link_named("lo").unwrap().expect("there is always lo");
        assert_eq!(netlink.link(by_name.index).unwrap(), by_name);
        assert_eq!(netlink.link_named("no-such-link").unwrap(), None);
        assert_eq!(netlink.link(0x7fff_fff0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_addresses_of_a_link_are_its_own() {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link_named("lo").unwrap().expect("there is always lo");
        let localhost = Prefix { address: "127.0.0.1".parse().unwrap(), len: 8 };
        assert!(!lo.up || netlink.addresses(lo.index).unwrap().contains(&localhost));
        assert_eq!(netlink.addresses(0x7fff_fff0).unwrap(), []);
        // After a long dump the next answer still belongs to the next request.
        assert_eq!(netlink.link(lo.index).unwrap(), lo);
    }

    #[test]
    fn a_dump_during_which_the_table_changed_is_repeated_and_at_last_an_error() {
        let message = |flags: u16| {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&20_u32.to_ne_bytes());
            bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
            bytes
        };
        let [whole, changed] = [NLM_F_MULTIPART, NLM_F_MULTIPART | NLM_F_DUMP_INTR].map(message);
        assert!(!is_interrupted(&[whole, whole].concat()) && is_interrupted(&[whole, changed, whole].concat()));
        assert!((0..8).all(|len| !is_interrupted(&changed[..len])) && !is_interrupted(&[0; 64]));
        let attempt = |after: usize| {
            let mut dumps = 0;
            let result = until_whole(|| {
                dumps += 1;
                if dumps > after { Ok(dumps) } else { Err(changed_meanwhile()) }
            });
            (result.map_err(|error| error.kind()), dumps)
        };
        assert_eq!([attempt(0), attempt(3)], [(Ok(1), 1), (Ok(4), 4)]);
        assert_eq!(attempt(usize::MAX), (Err(io::ErrorKind::Interrupted), DUMPS));
        let mut refused = 0;
        let result: io::Result<()> = until_whole(|| {
            refused += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!((result.unwrap_err().kind(), refused), (io::ErrorKind::PermissionDenied, 1));
    }

    #[test]
    fn a_dump_that_the_kernel_ends_with_an_error_is_that_error() {
        let done = |code: i32| {
            // struct nlmsghdr with NLMSG_DONE and NLM_F_MULTI, and the error of the dump.
            let mut bytes = [&20_u32.to_ne_bytes()[..], &3_u16.to_ne_bytes(), &2_u16.to_ne_bytes()].concat();
            bytes.extend([7_u32.to_ne_bytes(), [0; 4], code.to_ne_bytes()].concat());
            bytes
        };
        let ended = |sequence, code| {
            let outcome = answers(&done(code), sequence, &mut |_| ControlFlow::Continue(()));
            outcome.map_err(|error| error.raw_os_error())
        };
        assert_eq!(ended(7, 0), Ok(ControlFlow::Break(())));
        assert_eq!(ended(7, -libc::ENOMEM), Err(Some(libc::ENOMEM)));
        assert_eq!(ended(7, i32::MIN), Err(Some(i32::MAX)));
        // It is of another request.
        assert_eq!(ended(8, -libc::ENOMEM), Ok(ControlFlow::Continue(())));
        let mut all = nexthops::Nexthops::new();
        let outcome = nexthops::add(&mut all, &done(-libc::ENOMEM), 7);
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert!(nexthops::add(&mut all, &done(0), 7).is_ok_and(|flow| flow.is_break()));
    }

    #[test]
    fn a_dump_that_was_left_on_the_way_does_not_refuse_the_next_one() {
        let mut netlink = Netlink::open().unwrap();
        let leave = |netlink: &Netlink| {
            // A dump of the links (RTM_GETLINK): struct nlmsghdr and struct ifinfomsg. Its end is of a second part.
            let mut request = [&32_u32.to_ne_bytes()[..], &18_u16.to_ne_bytes()].concat();
            request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
            request.extend([0; 24]);
            netlink.socket.send(&request, 0).unwrap();
        };
        leave(&netlink);
        assert!(netlink.all_addresses().is_ok());
        leave(&netlink);
        assert!(nexthops::read(&mut netlink).is_ok());
        leave(&netlink);
        let lo = netlink.link_named("lo").unwrap().expect("there is always lo");
        assert_eq!(netlink.link(lo.index).unwrap().name, "lo");
    }

    #[test]
    fn the_queueing_of_all_links_is_read_by_one_request() {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link_named("lo").unwrap().expect("there is always lo");
        let before = netlink.sequence;
        let all = netlink.queueing().unwrap();
        assert_eq!(netlink.sequence, before + 1);
        // A link that was never up has none to be seen.
        assert!(!lo.up || all[&lo.index].iter().any(|one| one.kind == "noqueue"), "{all:?}");
    }

    #[test]
    fn the_route_to_this_host_leaves_by_loopback() {
        let mut netlink = Netlink::open().unwrap();
        let route = netlink.route("127.0.0.1".parse().unwrap(), None).unwrap();
        assert_eq!(route.source, Some("127.0.0.1".parse().unwrap()));
        assert_eq!(netlink.link(route.link).unwrap().name, "lo");
    }
}
