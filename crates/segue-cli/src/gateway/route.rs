//! `segue gateway --route`: what it takes, and how it is put together.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use segue::hash::Key;
use segue_control::error::{Error, Kind};
use segue_datapath::gateway::PortConfig;
use segue_datapath::nat::{Config, Nat, Protocol};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::{self, Parts, Router};
use segue_host::netlink::{Link, Netlink};
use segue_host::prefix::Prefix;
use segue_port::PagePool;
use segue_service::daemon::Opened;
use segue_service::daemon::mappings::protocol_name;
use segue_service::daemon::running::{Offloads, flow_key, random};
use segue_service::diagnose as why;
use segue_service::router_feed::Follower;
use serde::{Serialize, Serializer};

use super::plan::{Plan, existing};
use crate::args::Gateway;

/// A port outside that leads to one inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortForward {
    protocol: Protocol,
    outside: u16,
    inside: SocketAddrV4,
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", protocol_name(self.protocol), self.outside, self.inside)
    }
}

impl Serialize for PortForward {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a NAT is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NatPlan {
    /// The address that those outside see.
    pub(crate) address: Ipv4Addr,
    /// Ports that are passed on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) forwards: Vec<PortForward>,
}

/// The address of a NAT.
pub(crate) fn parse_nat(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "expected an IPv4 address, as 198.18.2.9".to_owned())
}

/// `tcp:8080=198.18.1.2:80`.
pub(crate) fn parse_forward(text: &str) -> Result<PortForward, String> {
    let expected = || "expected PROTOCOL:PORT=ADDRESS:PORT, as tcp:8080=198.18.1.2:80".to_owned();
    let (protocol, rest) = text.split_once(':').ok_or_else(expected)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err("expected tcp or udp".to_owned()),
    };
    let (outside, inside) = rest.split_once('=').ok_or_else(expected)?;
    let (outside, inside): (u16, SocketAddrV4) =
        (outside.parse().map_err(|_| expected())?, inside.parse().map_err(|_| expected())?);
    if outside == 0 || inside.port() == 0 || inside.ip().is_unspecified() {
        return Err("expected ports and an address that are not 0".to_owned());
    }
    Ok(PortForward { protocol, outside, inside })
}

/// An interface between which and another one packets may be routed here, and not by the kernel as well.
pub(super) fn usable(
    name: &str,
    args: &Gateway,
    netlink: &mut Netlink,
    notes: &mut Vec<String>,
) -> Result<Link, Error> {
    let link = existing(name, netlink, notes)?;
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        if std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0") {
            let hint = format!(
                "sudo sysctl -w net.{family}.conf.all.forwarding=0\nsudo sysctl -w net.{family}.conf.{name}.forwarding=0"
            );
            return Err(Error::new(Kind::InUse, format!("the kernel forwards what comes in by {name}"), hint)
                .why("each packet would be forwarded twice, by the kernel and by segue"));
        }
    }
    let addresses = netlink.addresses(link.index).map_err(|error| why::change(name, "read the state", &error))?;
    if let Some(nat) = args.nat
        && addresses.iter().any(|prefix| prefix.address == IpAddr::V4(nat))
    {
        let hint = format!("an address of that net which no host has, or: sudo ip addr del {nat} dev {name}");
        return Err(taken(format!("{name} has the address {nat} itself"), hint));
    }
    if !addresses.iter().any(|prefix| prefix.address.is_ipv4()) && !addresses.iter().any(|p| p.address.is_ipv6()) {
        notes.push(format!("{name} has no address: no ICMP errors are sent to the hosts there"));
    }
    Ok(link)
}

/// The NAT that is asked for, where it can be.
pub(super) fn nat_plan(
    args: &Gateway,
    [inside, outside]: [&str; 2],
    netlink: &mut Netlink,
    notes: &mut Vec<String>,
) -> Result<Option<NatPlan>, Error> {
    let Some(address) = args.nat else { return Ok(None) };
    let wrong = |text: &str, why: &str| {
        let hint = format!("--nat with an address of the network behind {outside}");
        Err(Error::new(Kind::BadValue, format!("`--nat {address}` {text}"), hint).why(why))
    };
    if !is_host(address) {
        return wrong("is no address of a host", "answers could not be sent to it");
    }
    let mut networks = |name: &str| -> Result<(u32, Vec<Network>), Error> {
        let failed = |error| why::change(name, "read the state", &error);
        let link = netlink.link_named(name).and_then(|link| link.ok_or(std::io::ErrorKind::NotFound.into()));
        let index = link.map_err(failed)?.index;
        let all = netlink.addresses(index).map_err(failed)?;
        Ok((index, all.iter().filter_map(Network::of).collect()))
    };
    let ((inside_index, near), (_, far)) = (networks(inside)?, networks(outside)?);
    if let Some(network) = far.iter().find(|network| network.has(address)) {
        if network.is_special(address) {
            let text = format!("is the network or broadcast address of {network}, the network behind {outside}");
            return wrong(&text, "no host there would send to it");
        }
    } else if let Some(network) = near.iter().find(|network| network.has(address)) {
        let text = format!("is an address of {network}, the network behind {inside}");
        return wrong(&text, "the hosts inside would look for it among themselves, and those outside not here");
    } else {
        notes.push(format!(
            "{address} is in no network of {outside}: routers there need a route to it by this one's address"
        ));
    }
    // Loopback is where the kernel's routes to its own addresses lead.
    let own = netlink.route(address.into(), None).and_then(|route| netlink.link(route.link));
    if own.is_ok_and(|link| link.name == "lo") {
        return Err(taken(format!("this host has the address {address} itself"), "an address that no host has"));
    }
    let plan = NatPlan { address, forwards: args.forward.clone() };
    nat(&plan, 0)?;
    for forward in &plan.forwards {
        let host = *forward.inside.ip();
        let wrong = |text: String, why: &str| {
            let hint = format!("--forward to the address of a host behind {inside}");
            Err(Error::new(Kind::BadValue, format!("`--forward {forward}` leads {text}"), hint).why(why))
        };
        if !is_host(host) {
            return wrong(format!("to {host}, which is no address of a host"), "nothing could be delivered there");
        }
        if host == address {
            return wrong("to the outside address".to_owned(), "what comes to it would be sent to it again, for ever");
        }
        if let Some(network) = near.iter().find(|network| network.is_special(host)) {
            let text = format!("to the network or broadcast address of {network}");
            return wrong(text, "no single host has it");
        }
        match netlink.route(host.into(), None).and_then(|route| netlink.link(route.link)) {
            Ok(link) if link.index == inside_index => {}
            Ok(link) if link.name == "lo" => {
                let text = format!("to {host}, an address of this host");
                return wrong(text, "its own stack does not see what is translated");
            }
            Ok(link) if link.name == outside => {
                return wrong(
                    format!("to {host}, which is behind {outside}"),
                    "answers would not pass the translation",
                );
            }
            Ok(link) => notes.push(format!("`--forward {forward}` leads nowhere: {host} is behind {}", link.name)),
            Err(_) => notes.push(format!("`--forward {forward}` leads nowhere yet: there is no route to {host}")),
        }
    }
    Ok(Some(plan))
}

/// Whether one host may have an IPv4 address that packets are routed to.
fn is_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..) && !address.is_link_local()
}

/// The network of one of a port's own addresses.
struct Network {
    first: u32,
    len: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.first), self.len)
    }
}

impl Network {
    fn of(prefix: &Prefix) -> Option<Network> {
        let IpAddr::V4(own) = prefix.address else { return None };
        let mut network = Network { first: 0, len: prefix.len.min(32) };
        network.first = own.to_bits() & !network.hosts();
        Some(network)
    }

    /// The bits that tell its hosts apart.
    fn hosts(&self) -> u32 {
        u32::MAX.checked_shr(self.len.into()).unwrap_or(0)
    }

    fn has(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & !self.hosts() == self.first
    }

    /// Its first address or its last, where these are no host's (RFC 3021: of two addresses both are).
    fn is_special(&self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & self.hosts();
        self.has(address) && self.len < 31 && (host == 0 || host == self.hosts())
    }
}

fn taken(message: String, hint: impl Into<String>) -> Error {
    Error::new(Kind::InUse, message, hint).why("the host's own stack would answer what is for the hosts inside")
}

/// Puts the router together. Connections to the kernel are opened now, with all rights.
pub(super) fn open(
    plan: &Plan,
    ports: [PortConfig; 2],
    budget: usize,
    pages: PagePool,
    offloads: Offloads,
    netlink: &mut Netlink,
) -> Result<Opened, Error> {
    let mut index = |name: &str| -> Result<u32, Error> {
        let found = netlink.link_named(name).and_then(|link| link.ok_or(std::io::ErrorKind::NotFound.into()));
        Ok(found.map_err(|error| why::change(name, "read the state", &error))?.index)
    };
    let indexes = [index(&plan.from.name)?, index(&plan.to.name)?];
    let failed = |error: std::io::Error| {
        Error::system("cannot follow the kernel's routes", &error, "segue doctor").why("the kernel refused")
    };
    let follower = Follower::open(indexes).map_err(failed)?;
    let (sender, feed) = router::feed().map_err(failed)?;
    let seed = u64::from_ne_bytes(random::<8>()?);
    let nat = plan.nat.as_ref().map(|plan| nat(plan, seed)).transpose()?;
    let key: Key = flow_key()?;
    let parts = Parts { ports, budget, pages, feed, nat, key };
    let told = sender.clone();
    let assemble = Box::new(move || {
        follower.start(told).map_err(failed)?;
        Ok(Box::new(Router::new(parts)) as Box<dyn Pipeline>)
    });
    Ok(Opened { sender: plan.nat.is_some().then_some(sender), ..Opened::new(offloads, assemble) })
}

fn nat(plan: &NatPlan, seed: u64) -> Result<(Nat, Ipv4Addr), Error> {
    let mut nat = Nat::new(Config::new(plan.address, seed));
    for (number, forward) in plan.forwards.iter().enumerate() {
        let inside = (*forward.inside.ip(), forward.inside.port());
        if nat.forward(forward.protocol, forward.outside, inside).is_ok() {
            continue;
        }
        let before = &plan.forwards[..number];
        let is_alike = |other: &&PortForward| other.protocol == forward.protocol;
        if let Some(other) = before.iter().filter(is_alike).find(|other| other.outside == forward.outside) {
            let text = format!("`--forward {forward}` is there twice: `{other}` is for the same port outside");
            return Err(Error::new(Kind::Conflict, text, "each port once").why("one port outside leads to one inside"));
        }
        if let Some(other) = before.iter().filter(is_alike).find(|other| other.inside == forward.inside) {
            let text = format!("`--forward {forward}` leads where `{other}` leads");
            let hint = format!("another port of {}, for a service that listens on both", forward.inside.ip());
            return Err(Error::new(Kind::Conflict, text, hint)
                .why("what leaves one port inside leaves by one port outside, whoever it is for"));
        }
        let text = format!("`--forward {forward}` is one more than the table has room for");
        return Err(Error::new(Kind::Conflict, text, "fewer of them").why("the table of mappings is full"));
    }
    Ok((nat, plan.address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_forward_reads_back_as_it_was_written() {
        for text in ["tcp:8080=198.18.1.2:80", "udp:53=198.18.1.3:5353"] {
            assert_eq!(parse_forward(text).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp", "sctp:1=198.18.1.2:1", "tcp:0=198.18.1.2:1", "tcp:1=198.18.1.2", "tcp:70000=198.18.1.2:1"]
        {
            assert!(parse_forward(text).unwrap_err().starts_with("expected "), "{text}");
        }
        for text in ["", "host", "2001:db8::1", "198.18.2.9/24"] {
            assert!(parse_nat(text).unwrap_err().starts_with("expected "), "{text}");
        }
    }
}
