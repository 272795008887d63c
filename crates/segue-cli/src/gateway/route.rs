//! `segue gateway --route`: what it takes, and how it is put together.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use segue::hash::Key;
use segue_datapath::gateway::Side;
use segue_datapath::nat::{Config, Nat, Protocol};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::{self, Parts, Router};
use segue_port::PagePool;
use serde::{Serialize, Serializer};

use super::plan::{Plan, existing};
use crate::args::Gateway;
use crate::daemon::Opened;
use crate::daemon::running::{Offloads, flow_key, random};
use crate::error::{Error, Kind};
use crate::system::tables::Follower;
use crate::system::{Link, Netlink};
use crate::tunnel::why;

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

/// `tcp`, `udp` or `icmp`.
pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Icmp => "icmp",
    }
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
pub(super) fn nat_plan(args: &Gateway, out: &str, netlink: &mut Netlink) -> Result<Option<NatPlan>, Error> {
    let Some(address) = args.nat else { return Ok(None) };
    let is_host = !matches!(address.octets()[0], 0 | 127 | 224..) && !address.is_link_local();
    if !is_host {
        let text = format!("`--nat {address}` is no address of a host");
        return Err(Error::new(Kind::BadValue, text, format!("--nat with an address of the network behind {out}"))
            .why("answers could not be sent to it"));
    }
    // Loopback is where the kernel's routes to its own addresses lead.
    let own = netlink.route(address.into(), None).and_then(|route| netlink.link(route.link));
    if own.is_ok_and(|link| link.name == "lo") {
        return Err(taken(format!("this host has the address {address} itself"), "an address that no host has"));
    }
    let plan = NatPlan { address, forwards: args.forward.clone() };
    nat(&plan, 0)?;
    Ok(Some(plan))
}

fn taken(message: String, hint: impl Into<String>) -> Error {
    Error::new(Kind::InUse, message, hint).why("the host's own stack would answer what is for the hosts inside")
}

/// Puts the router together. Connections to the kernel are opened now, with all rights.
pub(super) fn open(
    plan: &Plan,
    sides: [Side; 2],
    budget: usize,
    pages: PagePool,
    offloads: Offloads,
    netlink: &mut Netlink,
) -> Result<Opened, Error> {
    let mut index = |name: &str| -> Result<u32, Error> {
        let found = netlink.link_named(name).and_then(|link| link.ok_or(std::io::ErrorKind::NotFound.into()));
        Ok(found.map_err(|error| why::change(name, "read the state", &error))?.index)
    };
    let ports = [index(&plan.from.name)?, index(&plan.to.name)?];
    let failed = |error: std::io::Error| {
        Error::system("cannot follow the kernel's routes", &error, "segue doctor").why("the kernel refused")
    };
    let follower = Follower::open(ports).map_err(failed)?;
    let (teller, feed) = router::feed().map_err(failed)?;
    let seed = u64::from_ne_bytes(random::<8>()?);
    let nat = plan.nat.as_ref().map(|plan| nat(plan, seed)).transpose()?;
    let key: Key = flow_key()?;
    let parts = Parts { sides, budget, pages, feed, nat, key };
    let told = teller.clone();
    let assemble = Box::new(move || {
        follower.start(told).map_err(failed)?;
        Ok(Box::new(Router::new(parts)) as Box<dyn Pipeline>)
    });
    Ok(Opened { offloads, teller: plan.nat.is_some().then_some(teller), checksum_drops: None, assemble })
}

fn nat(plan: &NatPlan, seed: u64) -> Result<(Nat, Ipv4Addr), Error> {
    let mut nat = Nat::new(Config::new(plan.address, seed));
    for forward in &plan.forwards {
        nat.forward(forward.protocol, forward.outside, (*forward.inside.ip(), forward.inside.port())).map_err(
            |_| {
                Error::new(
                    Kind::Conflict,
                    format!("`--forward {forward}` is there twice"),
                    "each port and each host's port once",
                )
                .why("one port outside leads to one inside")
            },
        )?;
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
