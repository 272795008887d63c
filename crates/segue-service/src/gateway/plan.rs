//! The plan of a gateway: both endpoints, as found on this system, and the settings of the datapath.

use segue::gro::Profile;
use segue_control::error::{Error, Kind, printable};
use segue_datapath::bridge::MOST_PORTS;
use segue_host::netlink::Netlink;
use serde::Serialize;

use super::config::{Config, MAX_BYTES, MAX_PACKETS, NatPlan, Workers};
use super::endpoint::{Endpoint, EndpointKind, Netns, name_ports, parse_end, usable, wrong};
use super::nat;
use crate::profile;

/// The MTU of TAPs by default, bytes.
const TAP_MTU: u32 = 1500;
/// Largest number of interfaces and TAPs of a bridge: each pair of them is claimed.
const MOST_INTERFACES: usize = 8;

/// A gateway that can be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The name of the gateway.
    pub name: String,
    /// The endpoint given as IN.
    #[serde(rename = "in")]
    pub from: Endpoint,
    /// The endpoint given as OUT.
    #[serde(rename = "out")]
    pub to: Endpoint,
    /// Further endpoints: with any the gateway is a bridge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Endpoint>,
    /// Whether packets are joined by LRO.
    pub lro: bool,
    /// The rules by which packets are joined.
    #[serde(serialize_with = "crate::profile::serialize")]
    pub profile: Profile,
    /// Largest number of pure acknowledgments that one may replace; `None` where none is replaced.
    pub max_acks: Option<u32>,
    /// Size of the receive pages, bytes; 0 for one buffer for each frame.
    pub page_bytes: usize,
    /// Longest wait of a packet for the next one, microseconds.
    pub hold_us: u64,
    /// Size of the largest train, bytes.
    pub max_bytes: u32,
    /// Largest number of packets in a train.
    pub max_packets: u32,
    /// Whether packets that exceed the MTU of the other end are fragmented.
    pub fragment: bool,
    /// Whether the gateway forwards at layer 3.
    pub route: bool,
    /// Whether routes from router advertisements are used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_ra: bool,
    /// The NAT with its port forwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat: Option<NatPlan>,
    /// The number of threads that move packets.
    pub workers: u16,
    /// Knobs to set at the start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
    /// Whether the gateway runs without a part of the sandbox that the kernel lacks.
    #[serde(skip)]
    pub is_weak: bool,
    /// Notes for the user about the plan.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Plan {
    /// Returns all endpoints, IN and OUT first.
    pub fn ends(&self) -> impl Iterator<Item = &Endpoint> {
        [&self.from, &self.to].into_iter().chain(&self.more)
    }

    /// Returns whether the gateway is a bridge.
    pub fn is_bridge(&self) -> bool {
        !self.more.is_empty()
    }
}

/// An endpoint whose MTU may still be open.
type Found = (String, EndpointKind, Option<u32>, Option<u32>);

/// Creates the plan of a configuration and looks up its interfaces. Changes nothing.
pub fn plan(config: &Config, netlink: &mut Netlink) -> Result<Plan, Error> {
    without_effect(config)?;
    let workers = workers(config)?;
    let words = config.ends();
    if words.len() > MOST_PORTS {
        let text = format!("{} ends are too many", words.len());
        return Err(wrong(&words, MOST_PORTS, Kind::BadValue, text, format!("at most {MOST_PORTS} ends")));
    }
    if config.route && words.len() > 2 {
        let text = format!("`{}` with more than two ends", config.spelling.of("route"));
        return Err(wrong(&words, 2, Kind::Conflict, text, "a router stands between two"));
    }
    let mut notes = Vec::new();
    let mut ends: Vec<Found> = Vec::new();
    for at in 0..words.len() {
        let (name, what) = parse_end(&words, at)?;
        let link = match &what {
            EndpointKind::Interface if config.route => Some(nat::usable(&name, config, netlink, &mut notes)?),
            EndpointKind::Interface => Some(usable(&name, netlink, &mut notes)?),
            EndpointKind::Tap { .. } | EndpointKind::Vhost(_) if config.route => {
                let note = "the host's own addresses are on the interfaces between which it routes";
                let text = format!("`{}` cannot be an end of a router", printable(&words[at]));
                return Err(wrong(&words, at, Kind::Conflict, text, note));
            }
            EndpointKind::Tap { .. } | EndpointKind::Vhost(_) => None,
        };
        let (mtu, index) = (link.as_ref().map(|link| link.mtu), link.map(|link| link.index));
        ends.push((name, what, mtu, index));
    }
    distinct(&words, &ends)?;
    let is_tap = |what: &EndpointKind| !matches!(what, EndpointKind::Interface);
    if config.tap_mtu.is_some() && !ends.iter().any(|(_, what, ..)| is_tap(what)) {
        let text = format!("`{}` without a TAP or a guest", config.spelling.of("tap-mtu"));
        return Err(
            Error::new(Kind::Conflict, text, "segue gateway IN tap:NAME --tap-mtu N").why("neither end is made here")
        );
    }
    let least = ends.iter().filter_map(|(_, _, mtu, _)| *mtu).min();
    let tap_mtu = config.tap_mtu.or(least).unwrap_or(TAP_MTU);
    let endpoint = |(name, what, mtu, index): Found| {
        let (port, mtu) = (String::new(), mtu.unwrap_or(tap_mtu));
        Endpoint { name, port, what, mtu, index }
    };
    let mut ends: Vec<Endpoint> = ends.into_iter().map(endpoint).collect();
    name_ports(&mut ends);
    let by_mtu = |end: &&Endpoint| end.mtu;
    if let (Some(large), Some(small)) = (ends.iter().max_by_key(by_mtu), ends.iter().min_by_key(by_mtu))
        && large.mtu != small.mtu
        && !config.route
        && !config.fragment
    {
        notes.push(format!(
            "{} has the larger MTU; its packets above {} do not fit {}",
            large.port, small.mtu, small.port
        ));
    }
    let more = ends.split_off(2);
    let [from, to] = <[Endpoint; 2]>::try_from(ends).unwrap_or_else(|_| unreachable!());
    let name = named(config, &from.name, &to.name)?;
    let nat = nat::nat_plan(config, [&from.name, &to.name], netlink, &mut notes)?;
    Ok(Plan {
        name,
        from,
        to,
        more,
        lro: !config.no_lro,
        profile: profile(config)?,
        max_acks: config.ack_aggregation.then_some(config.max_acks),
        page_bytes: config.page_kib.map_or(0, |kib| kib << 10),
        hold_us: config.hold_us,
        max_bytes: config.max_bytes,
        max_packets: config.max_packets,
        fragment: config.fragment,
        route: config.route,
        accept_ra: config.accept_ra,
        nat,
        workers,
        set: config.set.clone(),
        is_weak: config.is_weak,
        notes,
    })
}

/// Refuses equal endpoints, and more interfaces than a bridge may have.
fn distinct(words: &[String], ends: &[Found]) -> Result<(), Error> {
    let place = |what: &EndpointKind| -> Option<Netns> {
        match what {
            EndpointKind::Tap { netns } => netns.clone(),
            EndpointKind::Interface | EndpointKind::Vhost(_) => None,
        }
    };
    let is_pair = ends.len() == 2;
    for (at, (name, what, ..)) in ends.iter().enumerate() {
        // The ports of a bridge are distinguished by their names alone.
        let is_same = |(other, other_what, ..): &Found| name == other && (!is_pair || place(what) == place(other_what));
        match ends[..at].iter().find(|end| is_same(end)) {
            Some(_) if is_pair => {
                return Err(wrong(words, at, Kind::Conflict, "both ends are the same", "a gateway stands between two"));
            }
            Some(_) => {
                let text = format!("two ends have the name {name}");
                return Err(wrong(words, at, Kind::Conflict, text, "name=NAME after a comma gives a guest another"));
            }
            None => {}
        }
    }
    let mut interfaces = (0..ends.len()).filter(|at| !matches!(ends[*at].1, EndpointKind::Vhost(_)));
    match interfaces.nth(MOST_INTERFACES) {
        Some(at) if !is_pair => {
            let note = format!("at most {MOST_INTERFACES} interfaces and TAPs, and {MOST_PORTS} ends in all");
            Err(wrong(words, at, Kind::BadValue, "too many interfaces for a gateway", note))
        }
        _ => Ok(()),
    }
}

/// Returns the name that the gateway of a configuration has, without a query to the system.
pub fn name(config: &Config) -> Result<String, Error> {
    let words = [config.from.clone(), config.to.clone()];
    let (from, to) = (parse_end(&words, 0)?.0, parse_end(&words, 1)?.0);
    named(config, &from, &to)
}

fn named(config: &Config, from: &str, to: &str) -> Result<String, Error> {
    let name = match &config.name {
        Some(name) => name.clone(),
        None => format!("{from}-{to}"),
    };
    if name.is_empty() || name.starts_with('.') || name.len() > 64 || name.chars().any(|c| c == '/' || c.is_control()) {
        let text = format!("`{}` cannot be a gateway's name", printable(&name));
        return Err(Error::new(Kind::BadValue, text, "segue gateway IN OUT --name gw0")
            .why("it is the name of a file")
            .about(name));
    }
    Ok(name)
}

/// Returns the number of workers: a router, a NAT, a bridge and the gateway of a guest have one.
fn workers(config: &Config) -> Result<u16, Error> {
    let is_guest = config.ends().iter().any(|end| end.starts_with("vhost:"));
    let (name, why) = match (config.nat.is_some(), config.route, is_guest || !config.more.is_empty()) {
        (true, ..) => ("a NAT", "its mappings belong to one thread"),
        (_, true, _) => ("a router", "its routes and neighbours belong to one thread"),
        (.., true) if config.more.is_empty() => ("a guest", "its interface has one queue in each direction"),
        (.., true) => ("a bridge", "what it has learned belongs to one thread"),
        _ => return Ok(config.workers.count()),
    };
    match config.workers {
        Workers::Count(count) if count > 1 => {
            let option = config.spelling.of("workers");
            let text = format!("`{option} {count}` cannot serve {name}");
            Err(Error::new(Kind::Conflict, text, format!("leave out {option}, or {option} auto"))
                .why(format!("{name} has one worker: {why}"))
                .about(count))
        }
        _ => Ok(1),
    }
}

/// Refuses options of GRO where no packets are joined.
fn without_effect(config: &Config) -> Result<(), Error> {
    if !config.no_lro {
        return Ok(());
    }
    let acks = config.ack_aggregation;
    let option = [
        ("profile", !acks && config.profile.is_some()),
        ("hold-us", !acks && config.hold_us != 0),
        ("max-bytes", config.max_bytes != MAX_BYTES),
        ("max-packets", config.max_packets != MAX_PACKETS),
    ];
    let Some((option, _)) = option.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let hint = format!("leave out --{option} or --no-lro\nto join later: --set net.gro.dev.IFNAME.enable_gro=0");
    let [option, no_lro] = [option, "no-lro"].map(|name| config.spelling.of(name));
    Err(Error::new(Kind::Conflict, format!("`{option}` does not go with `{no_lro}`"), hint)
        .why("it says how packets are joined, and none are"))
}

/// Returns the requested profile, or the one that ACK aggregation requires.
fn profile(config: &Config) -> Result<Profile, Error> {
    match (config.profile, config.ack_aggregation) {
        (None | Some(Profile::Lro), true) => Ok(Profile::Lro),
        (Some(other), true) => {
            let option = config.spelling.of("ack-aggregation");
            let text = format!("`{option}` does not go with profile {}", profile::name(other));
            Err(Error::new(Kind::Conflict, text, "segue gateway IN OUT --ack-aggregation --profile lro")
                .why("an acknowledgment that is swallowed cannot be restored, and Linux swallows none")
                .about(profile::name(other)))
        }
        (wanted, false) => Ok(wanted.unwrap_or_default()),
    }
}
