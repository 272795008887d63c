//! Checks of `--route` and `--nat` against the interfaces of a gateway, and the configuration of the NAT.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use segue::wire::address::is_forwardable_v4;
use segue_control::error::{Error, Kind};
use segue_datapath::nat::{Config as NatConfig, Nat};
use segue_host::netlink::{Link, Netlink};
use segue_host::prefix::Prefix;

use super::config::{Config, NatPlan, PortForward, Spelling};
use super::endpoint::existing;
use crate::diagnose;

/// Looks up an interface for a router; refuses one that cannot be routed, or from which the kernel forwards as well.
pub(super) fn usable(
    name: &str,
    config: &Config,
    netlink: &mut Netlink,
    notes: &mut Vec<String>,
) -> Result<Link, Error> {
    let link = existing(name, netlink, notes)?;
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        if std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0") {
            let hint = format!(
                "sudo sysctl -w net.{family}.conf.{name}.forwarding=0\n\
                 containers and virtual machines that reach others through {name} then no longer do"
            );
            return Err(Error::new(Kind::InUse, format!("the kernel forwards what comes in by {name}"), hint)
                .why("each packet would be forwarded twice, by the kernel and by segue")
                .about(name));
        }
    }
    let addresses = netlink.addresses(link.index).map_err(|error| diagnose::change(name, "read the state", &error))?;
    if let Some(nat) = config.nat
        && addresses.iter().any(|prefix| prefix.address == IpAddr::V4(nat))
    {
        let hint = format!("an address of that net which no host has, or: sudo ip addr del {nat} dev {name}");
        return Err(taken(format!("{name} has the address {nat} itself"), hint).about(nat));
    }
    if !addresses.iter().any(|prefix| prefix.address.is_ipv4()) && !addresses.iter().any(|p| p.address.is_ipv6()) {
        notes.push(format!("{name} has no address: no ICMP errors are sent to the hosts there"));
    }
    Ok(link)
}

/// Returns the NAT of the configuration, or the error for an address or a forward that is not possible.
pub(super) fn nat_plan(
    config: &Config,
    [inside, outside]: [&str; 2],
    netlink: &mut Netlink,
    notes: &mut Vec<String>,
) -> Result<Option<NatPlan>, Error> {
    let Some(address) = config.nat else { return Ok(None) };
    let wrong = |text: &str, why: &str| {
        let hint = format!("--nat with an address of the network behind {outside}");
        let text = format!("`{} {address}` {text}", config.spelling.of("nat"));
        Err(Error::new(Kind::BadValue, text, hint).why(why).about(address))
    };
    if !is_forwardable_v4(address) {
        return wrong("is no address of a host", "answers could not be sent to it");
    }
    let mut networks = |name: &str| -> Result<(u32, Vec<Network>), Error> {
        let failed = |error| diagnose::change(name, "read the state", &error);
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
    // The kernel's routes to addresses of this host lead to the loopback interface.
    let own = netlink.route(address.into(), None).and_then(|route| netlink.link(route.link));
    if own.is_ok_and(|link| link.name == "lo") {
        let text = format!("this host has the address {address} itself");
        return Err(taken(text, "an address that no host has").about(address));
    }
    let plan = NatPlan { address, forwards: config.forward.clone() };
    nat(&plan, config.spelling, 0)?;
    let option = config.spelling.of("forward");
    for forward in &plan.forwards {
        let host = *forward.inside.ip();
        let wrong = |text: String, why: &str| {
            let hint = format!("--forward to the address of a host behind {inside}");
            let text = format!("`{option} {forward}` leads {text}");
            Err(Error::new(Kind::BadValue, text, hint).why(why).about(forward))
        };
        if !is_forwardable_v4(host) {
            return wrong(format!("to {host}, which is no address of a host"), "nothing could be delivered there");
        }
        if host == address {
            return wrong(
                "to the outside address".to_owned(),
                "its packets would be forwarded to the same address in a loop",
            );
        }
        if let Some(network) = near.iter().find(|network| network.is_special(host)) {
            let text = format!("to the network or broadcast address of {network}");
            return wrong(text, "no single host has it");
        }
        match netlink.route(host.into(), None).and_then(|route| netlink.link(route.link)) {
            Ok(link) if link.index == inside_index => {}
            Ok(link) if link.name == "lo" => {
                let text = format!("to {host}, an address of this host");
                return wrong(text, "translated packets are not delivered to the local stack");
            }
            Ok(link) if link.name == outside => {
                return wrong(
                    format!("to {host}, which is behind {outside}"),
                    "answers would not pass the translation",
                );
            }
            Ok(link) => notes.push(format!("`--forward {forward}` leads nowhere: {host} is behind {}", link.name)),
            Err(_) => notes.push(format!("`--forward {forward}` has no effect yet: there is no route to {host}")),
        }
    }
    Ok(Some(plan))
}

/// The IPv4 network of an address of a port.
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

    /// Returns the mask of the host bits.
    fn hosts(&self) -> u32 {
        u32::MAX.checked_shr(self.len.into()).unwrap_or(0)
    }

    fn has(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & !self.hosts() == self.first
    }

    /// Returns whether `address` is the first or the last one of the network, which no host may have. In networks of
    /// two addresses (RFC 3021) hosts have both.
    fn is_special(&self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & self.hosts();
        self.has(address) && self.len < 31 && (host == 0 || host == self.hosts())
    }
}

fn taken(message: String, hint: impl Into<String>) -> Error {
    Error::new(Kind::InUse, message, hint).why("the host's own stack would answer what is for the hosts inside")
}

/// Creates the NAT of `plan`; `seed` makes the choice of ports hard to predict.
pub(super) fn nat(plan: &NatPlan, spelling: Spelling, seed: u64) -> Result<(Nat, Ipv4Addr), Error> {
    let option = spelling.of("forward");
    let mut nat = Nat::new(NatConfig::new(plan.address, seed));
    for (number, forward) in plan.forwards.iter().enumerate() {
        let inside = (*forward.inside.ip(), forward.inside.port());
        if nat.forward(forward.protocol, forward.outside, inside).is_ok() {
            continue;
        }
        let before = &plan.forwards[..number];
        let is_alike = |other: &&PortForward| other.protocol == forward.protocol;
        if let Some(other) = before.iter().filter(is_alike).find(|other| other.outside == forward.outside) {
            let text = format!("`{option} {forward}` is given twice: `{other}` is for the same port outside");
            return Err(Error::new(Kind::Conflict, text, "each port once")
                .why("one port outside leads to one inside")
                .about(forward));
        }
        if let Some(other) = before.iter().filter(is_alike).find(|other| other.inside == forward.inside) {
            let text = format!("`{option} {forward}` leads where `{other}` leads");
            let hint = format!("another port of {}, for a service that listens on both", forward.inside.ip());
            let why =
                "an inside port is mapped to one outside port, whatever the destination (endpoint-independent mapping)";
            return Err(Error::new(Kind::Conflict, text, hint).why(why).about(forward));
        }
        let text = format!("`{option} {forward}` is one more than the table has room for");
        return Err(Error::new(Kind::Conflict, text, "fewer of them")
            .why("the table of mappings is full")
            .about(forward));
    }
    Ok((nat, plan.address))
}
