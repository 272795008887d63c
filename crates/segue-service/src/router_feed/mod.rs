//! The kernel's routes, addresses and neighbours for a router, read again whenever the kernel reports a change.
//! Changes of neighbours, which are frequent, are forwarded one by one without reading the tables.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use segue_datapath::route::Routes;
use segue_datapath::router::{FeedSender, InterfaceAddrs, Message, Neighbour, NeighbourEvent, Tables};
use segue_host::netlink::nexthops::{self, Nexthops};
use segue_host::netlink::{Netlink, needed, padded, until_whole};
use segue_host::prefix::Prefix;
use segue_host::sys::{self, Want};

use crate::fault::Vitals;
use crate::heartbeat::{Heartbeat, Thread};
use crate::router_faults::{TableFaults, Unused};
use crate::started;

mod message;

pub use message::{RouteKey, comes_from_advertisement, is_advertised, read_route};
use message::{hop_of, is_exception, read_neighbour};

/// Largest number of routes that are copied: twice a full table of the Internet.
const MOST_ROUTES: usize = 2_000_000;
/// Largest number of routes from router advertisements that are used if the configuration requests them.
pub const MOST_ADVERTISED: usize = 64;
/// Multicast groups of rtnetlink: link, IPv4 address and route, IPv6 address and route.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// The multicast group of neighbours.
const NEIGHBOURS: u32 = 3;
/// The multicast group of nexthop objects, which kernels before 5.3 do not have.
const NEXTHOPS: u32 = 32;
/// Shortest time between two reads of the tables; changes in between are read together.
const PAUSE: Duration = Duration::from_millis(50);
/// Time after which the tables are read, or their changes subscribed to, again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for a change.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Reader of the kernel's tables and of their changes.
pub struct Follower {
    netlink: Netlink,
    /// Changes of links, addresses and routes.
    notifications: Socket,
    /// Changes of neighbours. Any station can cause more of them than there is room for; then only the neighbours are
    /// read again.
    neighbour_changes: Socket,
    /// The interface indexes of the router's ports.
    ports: [u32; 2],
    advertised: Advertised,
    faults: Arc<TableFaults>,
}

/// The treatment of routes that the kernel has learned from router advertisements (RFC 4861, section 6.3.4; RFC 4191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advertised {
    /// Advertised routes are counted and not used: any station on a link can send advertisements.
    Unused,
    /// Advertised routes are used, up to [`MOST_ADVERTISED`] of them.
    Used,
}

impl Follower {
    /// Opens the connections for changes and for reading the tables; neither needs any rights later.
    pub fn open(ports: [u32; 2], advertised: Advertised) -> io::Result<Follower> {
        let notifications = subscribe(&GROUPS)?;
        let _ = notifications.add_membership(NEXTHOPS);
        let (neighbour_changes, netlink) = (subscribe(&[NEIGHBOURS])?, Netlink::open()?);
        Ok(Follower { netlink, notifications, neighbour_changes, ports, advertised, faults: Arc::default() })
    }

    /// Returns the faults of the tables, which this follower keeps up to date from now on.
    pub fn faults(&self) -> Arc<TableFaults> {
        Arc::clone(&self.faults)
    }

    /// Sends the current tables to the router, and then every change, on a separate thread that ends with the router.
    /// `vitals` takes the heartbeat of that thread.
    pub fn start(mut self, sender: FeedSender, vitals: Vitals) -> io::Result<()> {
        let first = self.read()?;
        sender.send(Message::Tables(Box::new(first)));
        started::spawn("routes", move || {
            // It waits before its first round. Without a clock it still has its wall time.
            let _ = vitals.heartbeat.measure(Thread::Routes);
            // However the thread ends, the tables are stale afterwards.
            let _ended = Ended(self.faults());
            self.follow(&sender, &vitals);
            vitals.heartbeat.over(Thread::Routes);
        })?;
        Ok(())
    }

    /// Sends the router every change until the router ends. After a failure, everything is read again until that
    /// succeeds.
    fn follow(&mut self, sender: &FeedSender, vitals: &Vitals) {
        let mut is_behind = false;
        let heartbeat = &vitals.heartbeat;
        // The packet loop, which reads what is sent, has a heartbeat of its own.
        let send = |message| heartbeat.unwatched(Thread::Routes, || sender.send(message));
        loop {
            let changed = if is_behind {
                Ok(TableChanges { is_more: true, ..TableChanges::default() })
            } else {
                self.wait(heartbeat)
            };
            let fails = vitals.beat(Thread::Routes);
            let changed = match changed {
                Ok(changed) => changed,
                Err(error) => {
                    self.fall_behind(heartbeat, "changes of the kernel's tables are not reported", &error);
                    is_behind = true;
                    continue;
                }
            };
            // Neighbours first: the tables are newer and do not say what has just changed in them.
            if !changed.changes.is_empty() && !send(Message::Neighbours(changed.changes)) {
                return;
            }
            if !changed.is_more && !changed.has_lost_neighbours {
                continue;
            }
            // The kernel may hold its tables back for long.
            let read = if fails {
                Err(io::ErrorKind::Other.into())
            } else {
                heartbeat.unwatched(Thread::Routes, || match changed.is_more {
                    true => self.read().map(|tables| Message::Tables(Box::new(tables))),
                    false => self.neighbours().map(Message::AllNeighbours),
                })
            };
            match read {
                Ok(message) => {
                    if !send(message) {
                        return;
                    }
                    self.faults.set_fresh();
                    is_behind = false;
                }
                Err(error) => {
                    self.fall_behind(heartbeat, "the kernel's tables cannot be read", &error);
                    is_behind = true;
                }
            }
        }
    }

    /// Reports that the router's tables are stale, and waits before the next attempt.
    fn fall_behind(&self, heartbeat: &Heartbeat, what: &str, error: &io::Error) {
        if self.faults.set_stale(&format!("{what}: {error}")) {
            // The reader of the log may make it wait.
            heartbeat.unwatched(Thread::Routes, || tracing::warn!(id = "routes", "{what}: {error}"));
        }
        thread::sleep(RETRY);
    }

    /// Waits for a change, and a little longer for further ones of its batch.
    fn wait(&mut self, heartbeat: &Heartbeat) -> io::Result<TableChanges> {
        let sockets = [&self.neighbour_changes, &self.notifications];
        let wanted = sockets.map(|socket| (socket.as_fd(), Want::Read));
        let mut ready = vec![false];
        while !ready.contains(&true) {
            ready = heartbeat.unwatched(Thread::Routes, || sys::poll(&wanted, PATIENCE))?;
        }
        thread::sleep(PAUSE);
        let mut changed = TableChanges::default();
        changed.has_lost_neighbours = changed.read(&self.neighbour_changes, self.ports)?;
        changed.is_more |= changed.read(&self.notifications, self.ports)?;
        Ok(changed)
    }

    /// Reads the links, addresses, neighbours and routes of the kernel.
    pub fn read(&mut self) -> io::Result<Tables> {
        let [(from, near), (to, far)] = [self.addrs(self.ports[0])?, self.addrs(self.ports[1])?];
        let routes = self.routes([from.mtu, to.mtu], &[near, far])?;
        Ok(Tables { routes, neighbours: self.neighbours()?, ports: [from, to] })
    }

    /// Returns the addresses of an interface, and the IPv6 prefixes of those that were configured there, rather than by
    /// a router advertisement.
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
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let of_link = self.netlink.dump(&request, &mut |message| match message {
            RouteNetlinkMessage::NewAddress(message) => (message.header.index == index).then_some(message),
            _ => None,
        })?;
        for message in of_link {
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
        }
        Ok((addrs, configured))
    }

    fn routes(&mut self, mtus: [u32; 2], configured: &[Vec<Prefix>; 2]) -> io::Result<Routes> {
        let nexthops = nexthops::read(&mut self.netlink)?;
        until_whole(|| self.all_routes(mtus, configured, &nexthops))
    }

    /// Reads the routes once.
    fn all_routes(&mut self, mtus: [u32; 2], configured: &[Vec<Prefix>; 2], nexthops: &Nexthops) -> io::Result<Routes> {
        let mut routes = Routes::new(MOST_ROUTES);
        // Of several routes of a prefix in a table the one with the least metric counts.
        let mut metrics: HashMap<RouteKey, u32> = HashMap::new();
        let mut too_many = 0;
        let mut unused = Unused::default();
        let (ports, advertised) = (self.ports, self.advertised);
        self.netlink.exchange(RouteNetlinkMessage::GetRoute(RouteMessage::default()), NLM_F_DUMP, &mut |message| {
            let RouteNetlinkMessage::NewRoute(message) = message else { return ControlFlow::Continue(()) };
            let Some((to, metric, action)) = read_route(&message, nexthops, ports, mtus) else {
                return ControlFlow::Continue(());
            };
            if comes_from_advertisement(&message, to, action, configured) {
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
        let ports = self.ports;
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.netlink.dump(&request, &mut |message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => match read_neighbour(&message, ports) {
                Some(NeighbourEvent::Set(neighbour)) => Some(neighbour),
                _ => None,
            },
            _ => None,
        })
    }
}

/// Opens a socket that receives the messages of multicast groups of rtnetlink.
fn subscribe(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    groups.iter().try_for_each(|group| socket.add_membership(*group))?;
    // A message that is lost for lack of room is reported, and what it was about is read again.
    let _ = socket.set_rx_buf_sz(1 << 20);
    Ok(socket)
}

/// A guard that marks the tables as stale when the thread that follows them ends.
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
    /// Whether all tables must be read again: a message was not a neighbour change, or could not be parsed.
    pub is_more: bool,
    /// Whether changes of neighbours were lost, so that the neighbours must be read again.
    pub has_lost_neighbours: bool,
}

impl TableChanges {
    /// Reads what waits in a socket. Returns whether messages were lost because its buffer was full; then it ends when
    /// that happens again, so that a flood of messages does not keep it.
    fn read(&mut self, socket: &Socket, ports: [u32; 2]) -> io::Result<bool> {
        let mut has_lost = false;
        let mut bytes = Vec::with_capacity(1 << 16);
        loop {
            bytes.clear();
            match socket.recv(&mut bytes, libc::MSG_DONTWAIT) {
                Ok(_) => self.add(&bytes, ports),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    if std::mem::replace(&mut has_lost, true) {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(has_lost),
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds the changes of one netlink datagram, for a router between the interfaces with the given indexes.
    pub fn add(&mut self, datagram: &[u8], ports: [u32; 2]) {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Ok(message) = needed::message(rest) else {
                self.is_more = true;
                return;
            };
            rest = &rest[padded(&message.header, rest.len())..];
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
                    self.changes.extend(read_neighbour(&message, ports));
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage};
    use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourState};
    use netlink_packet_route::route::{RouteAddress, RouteAttribute};
    use segue_datapath::route::Hop;

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
            let mut changed = TableChanges::default();
            datagrams.iter().for_each(|datagram| changed.add(datagram, [4, 5]));
            assert_eq!(changed.changes, [is, NeighbourEvent::Removed(hop)]);
            assert!(changed.is_more);
        }
        let mut alone = TableChanges::default();
        alone.add(&here(), [4, 5]);
        assert!(alone.changes == [is] && !alone.is_more);
    }

    #[test]
    fn a_neighbour_is_removed_by_each_state_in_which_the_kernel_has_no_address() {
        use NeighbourState::{Failed, Incomplete, Noarp, None, Permanent, Stale};
        let hop = Hop::new(1, Some([198, 18, 2, 2].into()), 0, true);
        let set = |is_permanent| NeighbourEvent::Set(Neighbour { hop, mac: MAC, is_permanent });
        let said = |state, mac: &[u8]| {
            let mut message = neighbour();
            message.header.state = state;
            message.attributes.truncate(1);
            message.attributes.extend((!mac.is_empty()).then(|| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
            bytes(RouteNetlinkMessage::NewNeighbour(message))
        };
        let gone = NeighbourEvent::Removed(hop);
        for (state, mac, expected) in [
            (Failed, &[][..], gone),
            (Failed, &MAC, gone),
            (Incomplete, &[], gone),
            (None, &[], gone),
            (Noarp, &[], gone),
            // The kernel's own entry for a broadcast.
            (Noarp, &[0xff; 6], gone),
            (Noarp, &MAC, set(true)),
            (Stale, &MAC, set(false)),
        ] {
            let mut changed = TableChanges::default();
            changed.add(&[said(Permanent, &MAC), said(state, mac)].concat(), [4, 5]);
            assert_eq!((&changed.changes[..], changed.is_more), (&[set(true), expected][..], false), "{state:?}");
        }
    }

    /// Tests that a full buffer of one socket is told from changes that need more than they say. The kernel answers
    /// each request for the path to an address by one message, in the form of an exception of a route. Without room it
    /// is lost like a change, and reported so.
    #[test]
    fn lost_changes_of_neighbours_are_no_reason_to_read_all_tables() {
        let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
        socket.bind_auto().unwrap();
        socket.set_rx_buf_sz(1 << 12).unwrap();
        let mut path = RouteMessage::default();
        path.header.address_family = netlink_packet_route::AddressFamily::Inet;
        path.attributes = vec![RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::LOCALHOST))];
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(path));
        request.header.flags = NLM_F_REQUEST;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        for (sent, has_lost) in [(1, false), (100, true), (1, false)] {
            for _ in 0..sent {
                socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).unwrap();
            }
            let mut changed = TableChanges::default();
            assert_eq!(changed.read(&socket, [4, 5]).unwrap(), has_lost, "{sent}");
            assert!(changed.changes.is_empty() && !changed.is_more, "{changed:?}");
        }
    }
}
