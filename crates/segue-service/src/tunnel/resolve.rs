//! Resolution of a tunnel's plan on this system: source address, link and MTU.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use segue_control::error::{Error, Kind};
use segue_host::netlink::{Link, Netlink};
use serde::Serialize;

use super::plan::{Choice, IPV6_MIN_MTU, Overhead, Plan};
use crate::health;

/// Largest IP packet, bytes.
pub(super) const MAX_PACKET: u32 = 65_535;
/// Largest number of segments of one send (UDP_MAX_SEGMENTS before Linux 6.9).
const MAX_SEGMENTS: u32 = 64;
/// Number of bytes that Linux's TCP reserves for headers when it sizes a train (MAX_TCP_HEADER, 320 on common
/// machines), with some room.
const TCP_RESERVE: u32 = 400;
/// Smallest MTU that IPv4 works with (RFC 791), bytes.
const IPV4_MIN_MTU: u32 = 68;

/// A resolved plan, which can be started.
#[derive(Clone, Debug, Serialize)]
pub struct Ready {
    /// The plan that was resolved.
    pub plan: Plan,
    /// Local address of the tunnel.
    pub local: IpAddr,
    /// The link towards the remote.
    pub link: String,
    /// Scope id of link-local addresses (RFC 4007), which is the link's index; 0 without such addresses.
    #[serde(skip)]
    pub scope_id: u32,
    /// The path MTU towards the remote, bytes.
    pub link_mtu: u32,
    /// Whether the route's MTU is smaller than its link's, as the kernel may have learned.
    pub route_is_narrower: bool,
    /// Whether the link has transmit checksum offload, if the tunnel needs that and it is readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_tx: Option<bool>,
    /// The headers that the tunnel adds.
    pub overhead: Vec<Overhead>,
    /// The MTU of the interface, bytes.
    pub mtu: u32,
}

impl Ready {
    /// Returns the address and port to listen on, for tunnels over UDP.
    pub fn listens(&self) -> SocketAddr {
        self.at(self.local, self.plan.port)
    }

    /// Returns a socket address of a tunnel end, with the scope id if it is link-local.
    pub(super) fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
            _ => SocketAddr::new(ip, port),
        }
    }

    /// Returns the name of the interface.
    pub fn dev(&self) -> &str {
        &self.plan.dev
    }

    /// Describes the link or route that has the MTU [`link_mtu`](Self::link_mtu).
    pub(crate) fn path_name(&self) -> String {
        if self.route_is_narrower { format!("the route through {}", self.link) } else { self.link.clone() }
    }

    /// Returns the length of all added headers, bytes.
    pub(crate) fn overhead_bytes(&self) -> u32 {
        self.overhead.iter().map(|part| part.bytes).sum()
    }

    /// Returns the `gso_max_size` of the interface, bytes: the largest train that fits one send of the socket. A longer
    /// one would be segmented into a long and a short send.
    ///
    /// Linux subtracts `TCP_RESERVE` from the value and fills the rest with whole segments, so the value is the sum
    /// of the segments and that reserve.
    pub fn gso_max_size(&self) -> u32 {
        if !self.plan.has_udp() {
            // Without UDP packets leave one by one, however long the train is.
            return MAX_PACKET;
        }
        let inside_udp: u32 = self.overhead.iter().skip(2).map(|part| part.bytes).sum();
        let headers: u32 = self.overhead.iter().take(1).map(|part| part.bytes).sum();
        let send = MAX_PACKET - headers - 8;
        let segments = (send / (self.mtu + inside_udp)).clamp(1, MAX_SEGMENTS);
        (segments * self.mtu.saturating_sub(40) + TCP_RESERVE).max(self.mtu + TCP_RESERVE).min(MAX_PACKET)
    }

    /// Returns notes for the user on the plan and on its resolution.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.plan.notes();
        if self.link_tx == Some(false) {
            let link = &self.link;
            let cost = match self.plan.sends_trains() {
                true => health::tx_off_cost().to_owned(),
                false => format!("where the kernel carries the tunnel, {}", health::TX_OFF_IN_KERNEL),
            };
            notes.push(format!("{link} has tx off: {cost}; to fix it: {}", health::tx_on(link)));
        }
        let fits = self.link_mtu.saturating_sub(self.overhead_bytes());
        if self.mtu > fits {
            notes.push(format!(
                "packets above {fits} bytes do not fit {} and are fragmented outside, or dropped (path_mtu) with an ICMP error to \
                 their sender where they forbid that, as TCP's do; mtu auto is {fits}",
                self.path_name()
            ));
        }
        notes
    }
}

/// Resolves a plan on this system: queries the kernel for the route, its link and its MTU.
pub fn resolve(plan: Plan, netlink: &mut Netlink) -> Result<Ready, Error> {
    if let (Some(_), Some(local)) = (&plan.table, plan.local) {
        return resolve_local(plan, local, netlink);
    }
    let remote = plan.remote;
    let link = plan.zone.as_deref().map(|zone| link_of(zone, remote, netlink)).transpose()?;
    let route = netlink.route_on(remote, plan.local, link).map_err(|error| no_route(&plan, &error))?;
    let local = match plan.local.or(route.source) {
        Some(local) => local,
        None => {
            return Err(Error::new(
                Kind::Unreachable,
                format!("no local address for {remote}"),
                "segue tunnel ... local ADDR",
            )
            .why("the route to it prefers none")
            .about(remote));
        }
    };
    let link = netlink.link(route.link).map_err(|error| {
        Error::system(format!("cannot read the link towards {remote}"), &error, format!("ip route get {remote}"))
            .why("the route names a link that cannot be read")
            .about(remote)
    })?;
    ready(plan, local, &link, route.mtu)
}

/// Resolves the plan of a tunnel with a peer table, whose link is the one with the local address.
fn resolve_local(plan: Plan, local: IpAddr, netlink: &mut Netlink) -> Result<Ready, Error> {
    let unread = |error: std::io::Error| {
        Error::system("cannot read the addresses of this host", &error, "ip -br addr").why("rtnetlink refused")
    };
    let addresses = netlink.all_addresses().map_err(unread)?;
    let Some((index, _)) = addresses.into_iter().find(|(_, prefix)| prefix.address == local) else {
        return Err(Error::new(Kind::Unreachable, format!("{local} is not an address of this host"), "ip -br addr")
            .why("a tunnel with a peer table sends from its local address to all peers")
            .about(local));
    };
    let link = netlink.link(index).map_err(unread)?;
    ready(plan, local, &link, None)
}

/// Returns the plan with the address `local` over `link`, whose route may have a separate MTU.
pub fn ready(plan: Plan, local: IpAddr, link: &Link, route_mtu: Option<u32>) -> Result<Ready, Error> {
    let link_mtu = route_mtu.unwrap_or(link.mtu).min(link.mtu).min(MAX_PACKET);
    let overhead = plan.overhead();
    let cost: u32 = overhead.iter().map(|part| part.bytes).sum();
    let mtu = plan.mtu.fixed().unwrap_or(link_mtu.saturating_sub(cost));
    let route_is_narrower = link_mtu < link.mtu.min(MAX_PACKET);
    let needs_tx = plan.sends_trains() || plan.may_leave_daemon();
    let link_tx = if needs_tx { health::has_tx_csum(&link.name) } else { None };
    let scope_id = if plan.zone.is_some() { link.index } else { 0 };
    let ready =
        Ready { plan, local, link: link.name.clone(), scope_id, link_mtu, route_is_narrower, link_tx, overhead, mtu };
    let has_ipv6 = ready.plan.addr.iter().any(|prefix| prefix.address.is_ipv6());
    let least = if has_ipv6 { IPV6_MIN_MTU } else { IPV4_MIN_MTU };
    if matches!(ready.plan.mtu, Choice::Auto) && mtu < least {
        return Err(Error::new(
            Kind::Unreachable,
            format!("an MTU of {mtu} is left, and {} needs {least}", if has_ipv6 { "IPv6" } else { "IPv4" }),
            format!("sudo ip link set dev {} mtu {}", ready.link, least + cost),
        )
        .why(format!("{} has {link_mtu}, the tunnel's headers take {cost}", ready.path_name())));
    }
    Ok(ready)
}

/// Returns the index of the interface of a link-local remote.
fn link_of(zone: &str, remote: IpAddr, netlink: &mut Netlink) -> Result<u32, Error> {
    match netlink.link_named(zone) {
        Ok(Some(link)) => Ok(link.index),
        Ok(None) => Err(Error::new(Kind::Unreachable, format!("no route to {remote}%{zone}"), "ip -br link")
            .why(format!("this host has no interface {zone}"))
            .about(format_args!("{remote}%{zone}"))),
        Err(error) => Err(Error::system(format!("cannot read the link {zone}"), &error, "ip -br link")
            .why("the remote is an address of that link")
            .about(format_args!("{remote}%{zone}"))),
    }
}

fn no_route(plan: &Plan, error: &std::io::Error) -> Error {
    let remote = plan.remote;
    // For a source address that is not local the kernel answers as if there were no route, or EINVAL, so that a bind
    // has to tell.
    let foreign =
        plan.local.filter(|local| UdpSocket::bind((*local, 0)).is_err_and(|e| e.kind() == ErrorKind::AddrNotAvailable));
    match foreign {
        Some(local) => Error::system(format!("cannot send from {local} to {remote}"), error, "ip -br addr")
            .kind(Kind::Unreachable)
            .why(format!("{local} is not an address of this host"))
            .about(local),
        None => {
            let remedy = format!("ip route get {remote}\nsudo ip route add ...");
            Error::system(format!("no route to {remote}"), error, remedy)
                .kind(Kind::Unreachable)
                .why("no route of this host leads there")
                .about(remote)
        }
    }
}
