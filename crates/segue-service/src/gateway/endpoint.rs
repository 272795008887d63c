//! The ends of a gateway: existing interfaces, and TAPs created by the gateway.

use std::io;
use std::path::PathBuf;

use segue_control::error::{Error, Kind, Place, printable};
use segue_host::interface::check_name;
use segue_host::netlink::{Link, Netlink};
use segue_host::prefix::Prefix;
use serde::Serialize;

use crate::diagnose;
use crate::vhost::Spec;

/// The directory of named network namespaces.
const NAMED: &str = "/run/netns";
/// The prefix of the word for a TAP.
const TAP: &str = "tap:";
/// The kind of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EndpointKind {
    /// An existing interface of the host.
    Interface,
    /// A TAP that the gateway creates, in this namespace or in another one.
    Tap {
        /// The network namespace of the TAP; `None` for that of this process.
        netns: Option<Netns>,
    },
    /// The network device of a guest.
    Vhost(Spec),
}

/// A network namespace, by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Netns {
    /// The name or the path that the user gave.
    pub name: String,
    /// File of the network namespace.
    pub path: PathBuf,
}

impl Netns {
    /// Returns the `ip` command for the namespace.
    pub fn ip(&self) -> String {
        match self.name.contains('/') {
            true => format!("nsenter --net={} ip", self.name),
            false => format!("ip -n {}", self.name),
        }
    }
}

/// One of the two ports of a gateway: an interface, a TAP, a guest or a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// The name of the interface.
    pub name: String,
    /// Name of the port in statistics and knobs: that of the interface, with its namespace if both ends have that name.
    #[serde(skip)]
    pub port: String,
    /// Kind of the endpoint.
    #[serde(flatten)]
    pub what: EndpointKind,
    /// MTU of the endpoint, bytes.
    pub mtu: u32,
    /// The index of the interface, where it exists.
    #[serde(skip)]
    pub index: Option<u32>,
}

impl Endpoint {
    /// Describes the endpoint in a few words, by kind and namespace.
    pub fn place(&self) -> String {
        match &self.what {
            EndpointKind::Interface => "packet socket".to_owned(),
            EndpointKind::Tap { netns: None } => "TAP".to_owned(),
            EndpointKind::Tap { netns: Some(netns) } => format!("TAP in {}", netns.name),
            EndpointKind::Vhost(spec) => spec.place(),
        }
    }
}

/// Names the ports of the ends so that no two have the same name.
pub(super) fn name_ports(ends: &mut [Endpoint]) {
    for at in 0..ends.len() {
        let (name, what) = (&ends[at].name, &ends[at].what);
        let is_shared = ends.iter().filter(|end| end.name == *name).count() > 1;
        ends[at].port = match what {
            EndpointKind::Tap { netns: Some(netns) } if is_shared => format!("{name}@{}", netns.name),
            _ => name.clone(),
        };
    }
}

/// Returns the error about one of the two words IN and OUT.
pub(super) fn wrong(
    words: &[String],
    at: usize,
    kind: Kind,
    message: impl Into<String>,
    note: impl Into<String>,
) -> Error {
    let place = Place { words: words.to_vec(), at, note: note.into(), nearest: None };
    Error::new(kind, message, "segue gateway --help").at(place)
}

/// Parses `NAME`, `tap:NAME[@NETNS]` or `vhost:PATH` with options.
pub(super) fn parse_end(words: &[String], at: usize) -> Result<(String, EndpointKind), Error> {
    let word = &words[at];
    let bad =
        |note: String| wrong(words, at, Kind::BadValue, format!("`{}` is no end of a gateway", printable(word)), note);
    if let Some(parsed) = Spec::parse(word) {
        return parsed.map(|(name, spec)| (name, EndpointKind::Vhost(spec))).map_err(bad);
    }
    let name = |name: &str| check_name(name).map(str::to_owned).map_err(|note| bad(note.to_owned()));
    let Some(tap) = word.strip_prefix(TAP) else { return Ok((name(word)?, EndpointKind::Interface)) };
    let Some((tap, netns)) = tap.split_once('@') else { return Ok((name(tap)?, EndpointKind::Tap { netns: None })) };
    let path = match netns {
        "" | "." | ".." => return Err(bad("expected a namespace after the @".to_owned())),
        _ if netns.contains('/') => PathBuf::from(netns),
        _ => PathBuf::from(NAMED).join(netns),
    };
    let netns = Netns { name: netns.to_owned(), path };
    Ok((name(tap)?, EndpointKind::Tap { netns: Some(netns) }))
}

/// Looks up an existing interface; refuses one that is a port of a bridge or bond.
pub(super) fn existing(name: &str, netlink: &mut Netlink, notes: &mut Vec<String>) -> Result<Link, Error> {
    let read = |error: std::io::Error| diagnose::change(name, "read the state", &error);
    let Some(link) = netlink.link_named(name).map_err(read)? else {
        let text = format!("there is no interface {}", printable(name));
        return Err(Error::new(Kind::NotFound, text, "ip -br link                                     lists them")
            .why("an interface that is not made here has to exist")
            .about(name));
    };
    if let Some(master) = link.master {
        let master = netlink.link(master).map_or("another one".to_owned(), |master| master.name);
        let hint = format!("sudo ip link set dev {name} nomaster");
        return Err(Error::new(Kind::InUse, format!("{name} is a port of {master}"), hint)
            .why(format!("its frames would also be bridged by {master}"))
            .about(name));
    }
    if !link.ethernet {
        return Err(not_ethernet(name));
    }
    if !link.up {
        notes.push(format!("{name} is down; nothing moves before: ip link set dev {name} up"));
    }
    Ok(link)
}

/// Returns the error for an interface that carries no Ethernet frames.
pub(super) fn not_ethernet(name: &str) -> Error {
    let text = format!("{name} carries no Ethernet frames");
    Error::new(Kind::Conflict, text, "another interface; for IP tunnels: segue tunnel")
        .why("a gateway joins two Ethernets")
        .about(name)
}

/// Looks up an existing interface for a bump in the wire; refuses one with an address of this host.
pub(super) fn usable(name: &str, netlink: &mut Netlink, notes: &mut Vec<String>) -> Result<Link, Error> {
    let link = existing(name, netlink, notes)?;
    let read = |error: std::io::Error| diagnose::change(name, "read the state", &error);
    let addresses = netlink.addresses(link.index).map_err(read)?;
    let (local, own): (Vec<Prefix>, Vec<Prefix>) = addresses.into_iter().partition(is_link_local);
    if let Some(address) = own.first() {
        let hint = format!(
            "sudo ip addr flush dev {name}      ends what uses {address}, such as your SSH session\nan address for this host belongs on a TAP: segue gateway {name} tap:lro0"
        );
        return Err(Error::new(Kind::InUse, format!("{name} has the address {address}"), hint)
            .why("the host's own stack would answer what passes through the gateway")
            .about(name));
    }
    if let Some(address) = local.first() {
        notes.push(format!(
            "the host answers to {address} on {name} too; to keep it out: \
             ip link set dev {name} addrgenmode none && ip -6 addr flush dev {name} scope link"
        ));
    }
    Ok(link)
}

fn is_link_local(prefix: &Prefix) -> bool {
    matches!(prefix.address, std::net::IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Explains why a namespace could not be entered.
pub(super) fn no_namespace(netns: &Netns, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot enter the network namespace {}", netns.name), error, "");
    match error.raw_os_error() {
        Some(libc::ENOENT) => made
            .kind(Kind::NotFound)
            .why(format!("there is no {}", netns.path.display()))
            .hint(format!("ip netns list\nsudo ip netns add {}", netns.name)),
        Some(libc::EPERM | libc::EACCES) => {
            made.kind(Kind::NoPermission).why("this user lacks CAP_SYS_ADMIN here").hint("sudo segue gateway ...")
        }
        _ => made.why(format!("{} is not a network namespace", netns.path.display())).hint("ip netns list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(word: &str) -> Result<(String, EndpointKind), Error> {
        parse_end(&[word.to_owned()], 0)
    }

    #[test]
    fn an_end_is_an_interface_or_a_tap_here_or_in_a_namespace() {
        assert_eq!(end("eth0").unwrap(), ("eth0".to_owned(), EndpointKind::Interface));
        assert_eq!(end("tap:t0").unwrap(), ("t0".to_owned(), EndpointKind::Tap { netns: None }));
        assert!(matches!(end("vhost:/run/vm1.sock").unwrap(), (name, EndpointKind::Vhost(_)) if name == "vm1"));
        let netns = |word: &str| match end(word).unwrap().1 {
            EndpointKind::Tap { netns: Some(netns) } => (netns.path.display().to_string(), netns.ip()),
            other => panic!("{other:?}"),
        };
        assert_eq!(netns("tap:t0@red"), ("/run/netns/red".to_owned(), "ip -n red".to_owned()));
        let path = "/proc/7/ns/net";
        assert_eq!(netns("tap:t0@/proc/7/ns/net"), (path.to_owned(), format!("nsenter --net={path} ip")));
    }

    #[test]
    fn what_cannot_be_an_end_is_pointed_at() {
        for word in [
            "",
            "a/b",
            "sixteen-bytes-xx",
            "vhost:",
            "tap:",
            "tap:@red",
            "tap:t0@",
            "tap:t0@..",
            "tap:a:b",
            "two words",
        ] {
            let error = end(word).unwrap_err();
            assert_eq!((error.kind, error.kind.exit_code()), (Kind::BadValue, 2), "{word}");
            assert!(error.place.is_some_and(|place| !place.note.is_empty()), "{word}");
        }
    }
}
