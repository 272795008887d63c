//! What a gateway is to be: both ends, looked up, and how packets are joined.

use std::path::PathBuf;

use segue::gro::Profile;
use segue_control::error::{Error, Kind, Place, printable};
use segue_host::netlink::{Link, Netlink};
use segue_host::prefix::Prefix;
use segue_service::diagnose as why;
use segue_service::profile;
use serde::Serialize;

use super::route::{self, NatPlan};
use crate::args::Gateway;
use crate::words::parse;

/// Where named network namespaces are.
const NAMED: &str = "/run/netns";
/// What marks a TAP that is to be made.
const TAP: &str = "tap:";
/// The largest train, in bytes and packets, when nothing says another.
pub(crate) const MAX_BYTES: u32 = 65_535;
pub(crate) const MAX_PACKETS: u32 = 1000;
/// The MTU of TAPs when nothing says another.
const TAP_MTU: u32 = 1500;

/// What an end is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum What {
    /// An interface that exists.
    Interface,
    /// A TAP that is made, here or in a namespace.
    Tap {
        /// Where.
        netns: Option<Netns>,
    },
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Netns {
    /// As it was given: a name, or a path.
    pub(crate) name: String,
    /// The file that stands for it.
    pub(crate) path: PathBuf,
}

impl Netns {
    /// How `ip` is called inside.
    pub(crate) fn ip(&self) -> String {
        match self.name.contains('/') {
            true => format!("nsenter --net={} ip", self.name),
            false => format!("ip -n {}", self.name),
        }
    }
}

/// One end of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct End {
    /// Name of the interface.
    pub(crate) name: String,
    /// What it is.
    #[serde(flatten)]
    pub(crate) what: What,
    /// Largest packet, bytes.
    pub(crate) mtu: u32,
    /// Number of the interface, where there is one.
    #[serde(skip)]
    pub(crate) index: Option<u32>,
}

impl End {
    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        match &self.what {
            What::Interface => "packet socket".to_owned(),
            What::Tap { netns: None } => "TAP".to_owned(),
            What::Tap { netns: Some(netns) } => format!("TAP in {}", netns.name),
        }
    }
}

/// A gateway that can be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    /// Its name.
    pub(crate) name: String,
    /// IN.
    #[serde(rename = "in")]
    pub(crate) from: End,
    /// OUT.
    #[serde(rename = "out")]
    pub(crate) to: End,
    /// Whether packets are joined.
    pub(crate) lro: bool,
    /// By whose rules.
    #[serde(serialize_with = "segue_service::profile::serialize")]
    pub(crate) profile: Profile,
    /// How many pure acknowledgments one may stand for, where they are joined.
    pub(crate) max_acks: Option<u32>,
    /// Bytes of the pages that are received into; 0 for a buffer for each frame.
    pub(crate) page_bytes: usize,
    /// Longest time that a packet waits for the next, microseconds.
    pub(crate) hold_us: u64,
    /// Largest train, bytes.
    pub(crate) max_bytes: u32,
    /// Most packets of a train.
    pub(crate) max_packets: u32,
    /// Whether packets are fragmented that are too long for the other side.
    pub(crate) fragment: bool,
    /// Whether it forwards at layer 3.
    pub(crate) route: bool,
    /// The address that those outside see, with the ports that are passed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nat: Option<NatPlan>,
    /// Settings to begin with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<(String, String)>,
    /// What to know before.
    #[serde(skip)]
    pub(crate) notes: Vec<String>,
}

/// Reads the command line and asks the system.
pub(crate) fn plan(args: &Gateway, netlink: &mut Netlink) -> Result<Plan, Error> {
    without_effect(args)?;
    // Both are there unless help was asked for, which is answered elsewhere.
    let words = [&args.from, &args.to].map(|end| end.clone().unwrap_or_default());
    let mut notes = Vec::new();
    let mut ends = Vec::new();
    for at in 0..2 {
        let (name, what) = parse_end(&words, at)?;
        let link = match &what {
            What::Interface if args.route => Some(route::usable(&name, args, netlink, &mut notes)?),
            What::Interface => Some(usable(&name, netlink, &mut notes)?),
            What::Tap { .. } if args.route => {
                let note = "the host's own addresses are on the interfaces between which it routes";
                let text = format!("`{}` cannot be an end of a router", printable(&words[at]));
                return Err(wrong(&words, at, Kind::Conflict, text, note));
            }
            What::Tap { .. } => None,
        };
        let (mtu, index) = (link.as_ref().map(|link| link.mtu), link.map(|link| link.index));
        ends.push((name, what, mtu, index));
    }
    let [(from, from_what, from_mtu, from_index), (to, to_what, to_mtu, to_index)] =
        <[_; 2]>::try_from(ends).unwrap_or_else(|_| unreachable!());
    let place = |what: &What| match what {
        What::Tap { netns } => netns.clone(),
        What::Interface => None,
    };
    if from == to && place(&from_what) == place(&to_what) {
        return Err(wrong(&words, 1, Kind::Conflict, "both ends are the same", "a gateway stands between two"));
    }
    let is_tap = |what: &What| matches!(what, What::Tap { .. });
    if args.tap_mtu.is_some() && !is_tap(&from_what) && !is_tap(&to_what) {
        let text = "`--tap-mtu` without a TAP";
        return Err(
            Error::new(Kind::Conflict, text, "segue gateway IN tap:NAME --tap-mtu N").why("neither end is made here")
        );
    }
    let tap_mtu = args.tap_mtu.or(from_mtu).or(to_mtu).unwrap_or(TAP_MTU);
    let (from_mtu, to_mtu) = (from_mtu.unwrap_or(tap_mtu), to_mtu.unwrap_or(tap_mtu));
    if from_mtu != to_mtu && !args.route && !args.fragment {
        let (large, small) = if from_mtu > to_mtu { (&from, &to) } else { (&to, &from) };
        notes
            .push(format!("{large} has the larger MTU; its packets above {} do not fit {small}", from_mtu.min(to_mtu)));
    }
    let name = named(args, &from, &to)?;
    let nat = route::nat_plan(args, [&from, &to], netlink, &mut notes)?;
    Ok(Plan {
        name,
        from: End { name: from, what: from_what, mtu: from_mtu, index: from_index },
        to: End { name: to, what: to_what, mtu: to_mtu, index: to_index },
        lro: !args.no_lro,
        profile: profile(args)?,
        max_acks: args.ack_aggregation.then_some(args.max_acks),
        page_bytes: args.page.strip_suffix('k').and_then(|kilo| kilo.parse().ok()).map_or(0, |kilo: usize| kilo << 10),
        hold_us: args.hold_us,
        max_bytes: args.max_bytes,
        max_packets: args.max_packets,
        fragment: args.fragment,
        route: args.route,
        nat,
        set: args.set.clone(),
        notes,
    })
}

/// The name that a gateway will have, before anything is asked of the system.
pub(crate) fn name(args: &Gateway) -> Result<String, Error> {
    let words = [&args.from, &args.to].map(|end| end.clone().unwrap_or_default());
    let (from, to) = (parse_end(&words, 0)?.0, parse_end(&words, 1)?.0);
    named(args, &from, &to)
}

fn named(args: &Gateway, from: &str, to: &str) -> Result<String, Error> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("{from}-{to}"),
    };
    if name.is_empty() || name.starts_with('.') || name.len() > 64 || name.chars().any(|c| c == '/' || c.is_control()) {
        let text = format!("`{}` cannot be a gateway's name", printable(&name));
        return Err(Error::new(Kind::BadValue, text, "segue gateway IN OUT --name gw0").why("it is the name of a file"));
    }
    Ok(name)
}

/// Refuses options that say how packets are joined where none are.
fn without_effect(args: &Gateway) -> Result<(), Error> {
    if !args.no_lro {
        return Ok(());
    }
    let acks = args.ack_aggregation;
    let option = [
        ("--profile", !acks && args.profile.is_some()),
        ("--hold-us", !acks && args.hold_us != 0),
        ("--max-bytes", args.max_bytes != MAX_BYTES),
        ("--max-packets", args.max_packets != MAX_PACKETS),
    ];
    let Some((option, _)) = option.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let hint = format!("leave out {option} or --no-lro\nto join later: --set net.gro.dev.IFNAME.enable_gro=0");
    Err(Error::new(Kind::Conflict, format!("`{option}` does not go with `--no-lro`"), hint)
        .why("it says how packets are joined, and none are"))
}

/// The profile asked for, or the one that ACK aggregation takes.
fn profile(args: &Gateway) -> Result<Profile, Error> {
    match (args.profile, args.ack_aggregation) {
        (None | Some(Profile::Lro), true) => Ok(Profile::Lro),
        (Some(other), true) => {
            let text = format!("`--ack-aggregation` does not go with profile {}", profile::name(other));
            Err(Error::new(Kind::Conflict, text, "segue gateway IN OUT --ack-aggregation --profile lro")
                .why("an acknowledgment that is swallowed cannot be restored, and Linux swallows none"))
        }
        (wanted, false) => Ok(wanted.unwrap_or_default()),
    }
}

fn wrong(words: &[String], at: usize, kind: Kind, message: impl Into<String>, note: impl Into<String>) -> Error {
    let place = Place { words: words.to_vec(), at, note: note.into(), nearest: None };
    Error::new(kind, message, "segue gateway --help").at(place)
}

/// `NAME` or `tap:NAME[@NETNS]`.
fn parse_end(words: &[String], at: usize) -> Result<(String, What), Error> {
    let word = &words[at];
    let bad =
        |note: String| wrong(words, at, Kind::BadValue, format!("`{}` is no end of a gateway", printable(word)), note);
    let name = |name: &str| parse::device(name).map_err(|(note, _)| bad(note));
    let Some(tap) = word.strip_prefix(TAP) else { return Ok((name(word)?, What::Interface)) };
    let Some((tap, netns)) = tap.split_once('@') else { return Ok((name(tap)?, What::Tap { netns: None })) };
    let path = match netns {
        "" | "." | ".." => return Err(bad("expected a namespace behind the @".to_owned())),
        _ if netns.contains('/') => PathBuf::from(netns),
        _ => PathBuf::from(NAMED).join(netns),
    };
    let netns = Netns { name: netns.to_owned(), path };
    Ok((name(tap)?, What::Tap { netns: Some(netns) }))
}

/// An interface that exists and is part of no other.
pub(super) fn existing(name: &str, netlink: &mut Netlink, notes: &mut Vec<String>) -> Result<Link, Error> {
    let read = |error: std::io::Error| why::change(name, "read the state", &error);
    let Some(link) = netlink.link_named(name).map_err(read)? else {
        let text = format!("there is no interface {}", printable(name));
        return Err(Error::new(Kind::NotFound, text, "ip -br link                                     lists them")
            .why("an interface that is not made here has to exist"));
    };
    if let Some(master) = link.master {
        let master = netlink.link(master).map_or("another one".to_owned(), |master| master.name);
        let hint = format!("sudo ip link set dev {name} nomaster");
        return Err(Error::new(Kind::InUse, format!("{name} is a port of {master}"), hint)
            .why(format!("what passes here would go through {master} as well")));
    }
    if !link.ethernet {
        return Err(not_ethernet(name));
    }
    if !link.up {
        notes.push(format!("{name} is down; nothing moves before: ip link set dev {name} up"));
    }
    Ok(link)
}

/// Why an interface without Ethernet frames can be no end.
pub(super) fn not_ethernet(name: &str) -> Error {
    let text = format!("{name} carries no Ethernet frames");
    Error::new(Kind::Conflict, text, "another interface; for IP tunnels: segue tunnel")
        .why("a gateway joins two Ethernets")
}

/// An interface that exists and that this host does not use itself.
fn usable(name: &str, netlink: &mut Netlink, notes: &mut Vec<String>) -> Result<Link, Error> {
    let link = existing(name, netlink, notes)?;
    let read = |error: std::io::Error| why::change(name, "read the state", &error);
    let addresses = netlink.addresses(link.index).map_err(read)?;
    let (local, own): (Vec<Prefix>, Vec<Prefix>) = addresses.into_iter().partition(is_link_local);
    if let Some(address) = own.first() {
        let hint = format!(
            "sudo ip addr flush dev {name}\nan address for this host belongs on a TAP: segue gateway {name} tap:lro0"
        );
        return Err(Error::new(Kind::InUse, format!("{name} has the address {address}"), hint)
            .why("the host's own stack would answer what passes through the gateway"));
    }
    if let Some(address) = local.first() {
        notes.push(format!(
            "the host answers to {address} on {name} too; to keep it out: \
             ip link set dev {name} addrgenmode none && ip addr flush dev {name}"
        ));
    }
    Ok(link)
}

fn is_link_local(prefix: &Prefix) -> bool {
    matches!(prefix.address, std::net::IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(word: &str) -> Result<(String, What), Error> {
        parse_end(&[word.to_owned()], 0)
    }

    #[test]
    fn an_end_is_an_interface_or_a_tap_here_or_in_a_namespace() {
        assert_eq!(end("eth0").unwrap(), ("eth0".to_owned(), What::Interface));
        assert_eq!(end("tap:t0").unwrap(), ("t0".to_owned(), What::Tap { netns: None }));
        let netns = |word: &str| match end(word).unwrap().1 {
            What::Tap { netns: Some(netns) } => (netns.path.display().to_string(), netns.ip()),
            other => panic!("{other:?}"),
        };
        assert_eq!(netns("tap:t0@red"), ("/run/netns/red".to_owned(), "ip -n red".to_owned()));
        let path = "/proc/7/ns/net";
        assert_eq!(netns("tap:t0@/proc/7/ns/net"), (path.to_owned(), format!("nsenter --net={path} ip")));
    }

    #[test]
    fn what_cannot_be_an_end_is_pointed_at() {
        for word in ["", "a/b", "sixteen-bytes-xx", "tap:", "tap:@red", "tap:t0@", "tap:t0@..", "tap:a:b", "two words"]
        {
            let error = end(word).unwrap_err();
            assert_eq!((error.kind, error.kind.exit_code()), (Kind::BadValue, 2), "{word}");
            assert!(error.place.is_some_and(|place| !place.note.is_empty()), "{word}");
        }
    }
}
