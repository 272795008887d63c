//! Conversion of parsed keywords into the plan of a tunnel. All errors that can be found without asking the system are
//! found here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use segue::wire::address::is_endpoint;
use segue_control::error::{Error, Kind};
use segue_control::peers::{Encap as PeerEncap, Mac};
use segue_host::names::{self, Answer};
use segue_host::prefix::Prefix;
use segue_service::daemon::usual_workers;
use segue_service::tunnel::kinds::{Choice, Df, Encap, Fastpath, Gre, Mode, Neighbour, Overlay, PeerTable, Profile};
use segue_service::tunnel::plan::{IPV6_MIN_MTU, LINUX_VXLAN_PORT, Plan};
use segue_service::vhost::Spec;

use crate::parse::{Parsed, Value};

#[cfg(test)]
mod tests;

/// The registered UDP port of GUE.
const GUE_PORT: u16 = 6080;
/// The registered UDP port of Geneve.
const GENEVE_PORT: u16 = 6081;
/// The default TTL of VXLAN and Geneve, as in Linux.
const USUAL_TTL: u8 = 64;

/// Converts the parsed keywords of one tunnel into its plan; the resolver of this system looks names up.
///
/// `trace` is the capture file for packets of the outside and the size at which it ends.
pub fn plan(parsed: &Parsed, trace: (Option<PathBuf>, Option<u32>), set: &[(String, String)]) -> Result<Plan, Error> {
    plan_with(parsed, trace, set, &names::addresses)
}

/// Converts the parsed keywords of one tunnel into its plan as [`plan`] does; `resolver` has the addresses of names.
pub fn plan_with(
    parsed: &Parsed,
    (trace, trace_size): (Option<PathBuf>, Option<u32>),
    set: &[(String, String)],
    resolver: &dyn Fn(&str) -> Answer,
) -> Result<Plan, Error> {
    let table = table(parsed)?;
    let unnamed = match (&table, address(parsed, "local")) {
        (Some(_), Some(local)) => Some(unspecified(local)),
        _ => None,
    };
    let Some(remote) = unnamed.map_or_else(|| remote(parsed, resolver), |remote| Ok(Some(remote)))? else {
        // The table requires `remote`, so that the parser has refused a line without it.
        return Err(parsed.error_at(Kind::Missing, "`remote` is missing", parsed.end(), "add `remote ADDR`"));
    };
    let local = local(parsed, remote)?;
    let (mode, encap, dport) = match table.as_ref().and_then(|table| table.listen.first()) {
        Some((_, port)) => {
            let mode = if named(parsed, "mode") == Some("eth") { Mode::Eth } else { Mode::Ip6tnl };
            (mode, Encap::Gue, *port)
        }
        None => {
            let mode = mode(parsed, remote)?;
            let encap = encap(parsed, mode)?;
            check_remote(parsed, remote)?;
            (mode, encap, dport(parsed, mode, encap)?)
        }
    };
    let zone = zone(parsed, remote, local)?;
    let overlay = overlay(parsed, mode, remote)?;
    // Of a table the switch is the peers' default: the sockets compute checksums all the same.
    let encap_csum =
        (table.is_some() || switch(parsed, "encap-csum", true)) && !(remote.is_ipv6() && overlay.udp6zerocsumtx);
    let encap_remcsum = switch(parsed, "encap-remcsum", false);
    if (encap_remcsum || overlay.remcsumtx) && !encap_csum {
        let at = parsed.place_of("encap-csum").or(parsed.place_of("udp6zerocsumtx")).unwrap_or(parsed.end());
        let message = match (mode, overlay.udp6zerocsumtx && remote.is_ipv6()) {
            (Mode::Vxlan, true) => "`udp6zerocsumtx` does not go with `remcsumtx`",
            (Mode::Vxlan, false) => "`noudpcsum` does not go with `remcsumtx`",
            _ => "`noencap-csum` does not go with `encap-remcsum`",
        };
        return Err(parsed
            .error_at(Kind::Conflict, message, at, "leave one of the two out")
            .why("the outer checksum is then the only protection of the payload"));
    }
    let mtu = match parsed.value_of("mtu") {
        Some(Value::Number(mtu)) => Choice::Fixed(u32::try_from(*mtu).unwrap_or(u32::MAX)),
        _ => Choice::Auto,
    };
    let (dev, guest) = match parsed.value_of("dev") {
        Some(Value::Device(word)) => Spec::inside(word, mode, table.is_some() || parsed.place_of("addr").is_some())
            .map_err(|(kind, message, note)| {
                parsed.error_at(kind, message, parsed.place_of("dev").map_or(parsed.end(), |at| at + 1), note)
            })?,
        _ => return Err(parsed.error_at(Kind::Missing, "`dev` is missing", parsed.end(), "add `dev NAME`")),
    };
    let mut plan = Plan {
        dev,
        guest,
        mode,
        remote,
        zone,
        local,
        table,
        encap,
        dport,
        sport: small(parsed, "encap-sport").map_or(Choice::Auto, Choice::Fixed),
        srcport: srcport(parsed)?,
        port: small(parsed, "port").unwrap_or(dport),
        encap_csum,
        encap_remcsum,
        addr: addresses(parsed, mode, mtu)?,
        mtu,
        ttl: ttl(parsed, mode, remote),
        encaplimit: named(parsed, "encaplimit").unwrap_or("none"),
        tos: octet(parsed, "tos", Choice::Fixed(0)),
        pmtudisc: switch(parsed, "pmtudisc", true),
        gre: matches!(mode, Mode::Gre | Mode::Gretap).then(|| gre(parsed)),
        overlay,
        gro: named(parsed, "gro") != Some("off"),
        gso: named(parsed, "gso") != Some("off"),
        profile: if named(parsed, "profile") == Some("linux") { Profile::Linux } else { Profile::Strict },
        fastpath: match named(parsed, "fastpath") {
            Some("on") => Fastpath::On,
            Some("off") => Fastpath::Off,
            Some("require") => Fastpath::Require,
            _ => Fastpath::Auto,
        },
        workers: 1,
        probe: small(parsed, "probe").unwrap_or(0),
        trace,
        trace_size,
        set: set.to_vec(),
    };
    plan.workers = workers(parsed, &plan)?;
    if plan.outside_names().contains(&plan.dev.as_str()) {
        let at = parsed.place_of("dev").map_or(parsed.end(), |at| at + 1);
        let message = format!("`{}` is the name of another port of this tunnel", plan.dev);
        let note = "its sockets have that name in statistics and knobs: give the interface another";
        return Err(parsed.error_at(Kind::Conflict, message, at, note));
    }
    Ok(plan)
}

/// Keywords that are allowed together with `peers`.
const OF_TABLES: &[&str] = &[
    "dev",
    "mode",
    "peers",
    "listen",
    "lladdr",
    "local",
    "id",
    "encap-csum",
    "encap-remcsum",
    "remcsumrx",
    "addr",
    "mtu",
    "ttl",
    "tos",
    "pmtudisc",
    "gro",
    "gso",
    "profile",
    "fastpath",
    "workers",
];

/// Returns the settings of the peer table, if the tunnel has one.
fn table(parsed: &Parsed) -> Result<Option<PeerTable>, Error> {
    let file = match parsed.value_of("peers") {
        None => {
            if let Some((word, at)) = parsed.names().find(|(word, _)| matches!(*word, "listen" | "lladdr")) {
                let message = format!("`{word}` needs `peers`");
                return Err(parsed.error_at(Kind::Conflict, message, at, "it belongs to a tunnel with a peer table"));
            }
            return Ok(None);
        }
        Some(Value::File(path)) => Some(PathBuf::from(path)),
        Some(_) => None,
    };
    if let Some((word, at)) = parsed.names().find(|(word, _)| !OF_TABLES.contains(word)) {
        let message = format!("`{word}` does not go with `peers`");
        return Err(parsed.error_at(Kind::Conflict, message, at, "each peer of the table has it, or `listen`"));
    }
    let is_ethernet = match (named(parsed, "mode"), parsed.place_of("mode")) {
        (Some("eth"), _) => true,
        (Some(mode), Some(at)) => {
            let message = format!("`mode {mode}` does not go with `peers`");
            let note = "IP without `mode`, Ethernet frames with `mode eth`";
            return Err(parsed.error_at(Kind::Conflict, message, at + 1, note));
        }
        _ => false,
    };
    let Some(local) = address(parsed, "local").filter(|local| !local.is_unspecified()) else {
        let note = "add `local ADDR`, the address that the peers know";
        return Err(parsed.error_at(Kind::Missing, "`peers` needs `local`", parsed.end(), note));
    };
    let listen = match parsed.value_of("listen") {
        Some(Value::Listeners(listen)) => listen.clone(),
        _ => vec![(PeerEncap::Gue, GUE_PORT)],
    };
    let has = |wanted| listen.iter().any(|(encap, _)| *encap == wanted);
    for (word, encap) in [
        ("id", PeerEncap::Vxlan),
        ("lladdr", PeerEncap::Vxlan),
        ("remcsumrx", PeerEncap::Vxlan),
        ("encap-remcsum", PeerEncap::Gue),
    ] {
        if let Some(at) = parsed.place_of(word).filter(|_| !has(encap)) {
            let message = format!("`{word}` does not go with this `listen`");
            return Err(parsed.error_at(Kind::Conflict, message, at, format!("it needs `listen {encap}`")));
        }
    }
    if is_ethernet {
        if let Some(at) = parsed.place_of("lladdr") {
            let note = "it is for IP in vxlan: frames have addresses of their own";
            return Err(parsed.error_at(Kind::Conflict, "`lladdr` does not go with `mode eth`", at, note));
        }
        if has(PeerEncap::Fou) {
            let at = parsed.place_of("listen").map_or(parsed.end(), |at| at + 1);
            let note = "it carries IP alone; frames go by vxlan and gue";
            return Err(parsed.error_at(Kind::Conflict, "`listen fou` does not go with `mode eth`", at, note));
        }
    }
    let lladdr = match parsed.value_of("lladdr") {
        Some(Value::Mac(mac)) if mac.is_station() => *mac,
        Some(Value::Mac(mac)) => {
            let at = parsed.place_of("lladdr").unwrap_or(parsed.end()) + 1;
            let message = format!("`{mac}` cannot be the address of one end");
            return Err(parsed.error_at(Kind::BadValue, message, at, "expected a unicast address that is not zero"));
        }
        _ => {
            let dev = match parsed.value_of("dev") {
                Some(Value::Device(name)) => name.as_str(),
                _ => "",
            };
            own_mac(local, dev)
        }
    };
    Ok(Some(PeerTable { file, listen, lladdr, outer_checksum: switch(parsed, "encap-csum", true) }))
}

/// Returns an Ethernet address derived from the local address and the interface: locally administered, and the same
/// after a restart.
fn own_mac(local: IpAddr, dev: &str) -> Mac {
    let hash = segue::hash::Key([0; 2]).hash(format!("{local} {dev}").as_bytes());
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    Mac([2, a, b, c, d, e])
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns the number of workers: `auto` is one for each processor as far as several can serve the tunnel.
fn workers(parsed: &Parsed, plan: &Plan) -> Result<u16, Error> {
    let least = plan.srcport.map_or(u16::MAX, |(first, last)| (last - first).saturating_add(1));
    let wanted = match parsed.value_of("workers") {
        Some(Value::Number(number)) => u16::try_from(*number).unwrap_or(u16::MAX),
        Some(Value::Name(_)) if plan.only_one_worker().is_some() => 1,
        Some(Value::Name(_)) => usual_workers().min(least),
        _ => 1,
    };
    let at = parsed.place_of("workers").unwrap_or(parsed.end()) + 1;
    match plan.only_one_worker() {
        Some(why) if wanted > 1 => {
            let message = format!("`workers {wanted}` cannot serve this tunnel");
            Err(parsed.error_at(Kind::Conflict, message, at, "`workers 1`, or `workers auto`").why(why))
        }
        _ if wanted > least => {
            let message = format!("`workers {wanted}` needs as many source ports, and `srcport` has {least}");
            Err(parsed.error_at(Kind::Conflict, message, at, "a longer range, or fewer workers"))
        }
        _ => Ok(wanted),
    }
}

fn encap(parsed: &Parsed, mode: Mode) -> Result<Encap, Error> {
    let encap = match named(parsed, "encap") {
        Some("gue") => Encap::Gue,
        Some("fou") => Encap::Fou,
        _ => Encap::None,
    };
    let at = parsed.place_of("encap").map_or(parsed.end(), |at| at + 1);
    if encap != Encap::None && mode.is_overlay() {
        let message = format!("`encap {}` does not go with `mode {}`", encap.name(), mode.name());
        return Err(parsed.error_at(Kind::Conflict, message, at, "it brings its own UDP header: leave `encap` out"));
    }
    let wants_udp = ["encap-dport", "encap-sport", "port"].into_iter().find(|word| parsed.place_of(word).is_some());
    if let (Some(word), Encap::None, false) = (wants_udp, encap, mode.is_overlay()) {
        let at = parsed.place_of(word).unwrap_or(parsed.end());
        let message = format!("`{word}` does not go with `encap none`");
        return Err(parsed.error_at(Kind::Conflict, message, at, "it needs `encap gue or fou`"));
    }
    Ok(encap)
}

fn overlay(parsed: &Parsed, mode: Mode, remote: IpAddr) -> Result<Overlay, Error> {
    let number = |name, default| match parsed.value_of(name) {
        Some(Value::Number(number)) => u32::try_from(*number).unwrap_or(default),
        _ => default,
    };
    let id = match parsed.value_of("id") {
        Some(Value::Number(id)) => u32::try_from(*id).ok(),
        _ => None,
    };
    if id.is_none() && mode.is_overlay() {
        let message = format!("`mode {}` needs `id`", mode.name());
        return Err(parsed.error_at(Kind::Missing, message, parsed.end(), "add `id 42`, the same at both ends"));
    }
    let mut fdb = Vec::new();
    for (value, at) in parsed.values_of("fdb") {
        let Value::Neighbour(mac, who) = value else { continue };
        if who.is_ipv4() != remote.is_ipv4() || !is_endpoint(*who) {
            let message = format!("`{who}` cannot be a remote beside {remote}");
            let note = format!("expected an {} unicast address", family(remote));
            return Err(parsed.error_at(Kind::Conflict, message, at, note));
        }
        if segue::wire::ethernet::is_group(*mac) {
            let message = "a multicast MAC address has no remote of its own".to_owned();
            return Err(parsed.error_at(Kind::Conflict, message, at, "00:00:00:00:00:00 adds one for all groups"));
        }
        fdb.push(Neighbour { mac: *mac, remote: *who });
    }
    Ok(Overlay {
        id,
        udp6zerocsumtx: switch(parsed, "udp6zerocsumtx", false),
        udp6zerocsumrx: switch(parsed, "udp6zerocsumrx", false),
        remcsumtx: switch(parsed, "remcsumtx", false),
        remcsumrx: switch(parsed, "remcsumrx", false),
        learning: switch(parsed, "learning", true),
        ageing: number("ageing", 300),
        maxaddress: number("maxaddress", 4096),
        fdb,
        df: match named(parsed, "df") {
            Some("set") => Df::Set,
            Some("inherit") => Df::Inherit,
            _ => Df::Unset,
        },
    })
}

fn mode(parsed: &Parsed, remote: IpAddr) -> Result<Mode, Error> {
    let word = named(parsed, "mode").unwrap_or("gre");
    if word == "eth" {
        let at = parsed.place_of("mode").unwrap_or(parsed.end()) + 1;
        let note = "to one remote it is `mode vxlan`, `geneve` or `gretap`";
        return Err(parsed.error_at(Kind::Conflict, "`mode eth` needs `peers`", at, note));
    }
    if (word.starts_with("ip6") || word == "ipip6") && remote.is_ipv4() {
        let at = parsed.place_of("remote").map_or(parsed.end(), |at| at + 1);
        let message = format!("`mode {word}` needs an IPv6 remote");
        let instead = match word {
            "ip6gre" => "gre",
            "ip6gretap" => "gretap",
            "ip6ip6" => "sit",
            _ => "ipip",
        };
        return Err(parsed.error_at(Kind::Conflict, message, at, format!("over IPv4 it is `mode {instead}`")));
    }
    Ok(match word {
        "ipip" | "ipip6" => Mode::Ipip,
        "sit" | "ip6ip6" => Mode::Sit,
        "ip6tnl" => Mode::Ip6tnl,
        "gretap" | "ip6gretap" => Mode::Gretap,
        "vxlan" => Mode::Vxlan,
        "geneve" => Mode::Geneve,
        _ => Mode::Gre,
    })
}

/// Returns the address of the remote end. A host name is looked up: of several addresses of the family of `local`, or
/// else of the one that the resolver prefers (RFC 6724), the lowest counts, so that the same answer in another order is
/// the same tunnel.
fn remote(parsed: &Parsed, resolver: &dyn Fn(&str) -> Answer) -> Result<Option<IpAddr>, Error> {
    let Some(Value::Host(name)) = parsed.value_of("remote") else { return Ok(address(parsed, "remote")) };
    let at = parsed.place_of("remote").map_or(parsed.end(), |at| at + 1);
    let wrong = |message: String, note: &str| parsed.error_at(Kind::Unreachable, message, at, note);
    let found = resolver(name).and_then(|found| {
        let first = found.first().copied().ok_or_else(|| "the resolver knows none".to_owned())?;
        Ok((first, found))
    });
    let (first, found) = found.map_err(|why| {
        let made = wrong(format!("cannot find the address of `{name}`"), "an address, or a name with one");
        made.why(why).hint(format!("getent ahosts {name}"))
    })?;
    let local = address(parsed, "local").unwrap_or(first);
    let address = found.iter().filter(|found| found.is_ipv4() == local.is_ipv4()).min();
    address.copied().map(Some).ok_or_else(|| {
        let (wanted, other) = (family(local), family(first));
        let message = format!("`{name}` has no {wanted} address, and `local {local}` is one");
        wrong(message, "both ends need one family")
            .why(format!("the name has {other} addresses alone, and both ends of a tunnel need one family"))
            .hint(format!("`local` with an {other} address, or no `local`; or a name with an {wanted} address"))
    })
}

fn local(parsed: &Parsed, remote: IpAddr) -> Result<Option<IpAddr>, Error> {
    let Some(local) = address(parsed, "local") else { return Ok(None) };
    let at = parsed.place_of("local").unwrap_or(0) + 1;
    if local.is_ipv4() != remote.is_ipv4() {
        let message = format!("`local {local}` and `remote {remote}` are of two families");
        return Err(parsed.error_at(Kind::Conflict, message, at, format!("expected an {} address", family(remote))));
    }
    if local.is_unspecified() {
        return Ok(None);
    }
    if !is_endpoint(local) {
        let message = format!("`{local}` cannot be the address of one host");
        return Err(parsed.error_at(Kind::BadValue, message, at, "expected a unicast address"));
    }
    if local == remote {
        let message = format!("`local` and `remote` are both {local}");
        return Err(parsed.error_at(Kind::Conflict, message, at, "a tunnel has two ends"));
    }
    Ok(Some(local))
}

fn check_remote(parsed: &Parsed, remote: IpAddr) -> Result<(), Error> {
    if !is_endpoint(remote) {
        let at = parsed.place_of("remote").map_or(parsed.end(), |at| at + 1);
        let message = format!("`{remote}` cannot be the other end of a tunnel");
        return Err(parsed.error_at(Kind::BadValue, message, at, "expected a unicast address"));
    }
    Ok(())
}

/// Returns the interface of a link-local remote. The other addresses of the tunnel must be of the same link.
fn zone(parsed: &Parsed, remote: IpAddr, local: Option<IpAddr>) -> Result<Option<String>, Error> {
    let zone_of = |name: &str| match parsed.value_of(name) {
        Some(Value::LinkLocal(_, zone)) => Some(zone.clone()),
        _ => None,
    };
    let wrong = |word: &str, kind, message: String, note: &str| {
        Err(parsed.error_at(kind, message, parsed.place_of(word).map_or(parsed.end(), |at| at + 1), note))
    };
    let zone = zone_of("remote").or_else(|| zone_of("local"));
    match (is_link_local(remote), local.map(is_link_local)) {
        (false, Some(true)) => {
            let message = "a link-local `local` needs a link-local `remote`".to_owned();
            return wrong("local", Kind::Conflict, message, "packets leave the link");
        }
        (true, Some(false)) => {
            let message = format!("`remote {remote}` is link-local, and `local` is not");
            return wrong(
                "local",
                Kind::Conflict,
                message,
                "leave it out, or use the link-local address of that interface",
            );
        }
        (true, _) if zone.is_none() => {
            let message = format!("every link has an address `{remote}`");
            return wrong("remote", Kind::Missing, message, "add the interface, as in fe80::1%eth0");
        }
        _ => {}
    }
    if let (Some(near), Some(far)) = (zone_of("local"), zone_of("remote"))
        && near != far
    {
        return wrong("local", Kind::Conflict, format!("`{near}` and `{far}` are two links"), "the same interface");
    }
    let fdb = parsed.values_of("fdb").find_map(|(value, _)| match value {
        Value::Neighbour(_, who) if is_link_local(*who) != zone.is_some() => Some(*who),
        _ => None,
    });
    if let Some(who) = fdb {
        let message = format!("`{who}` cannot be a remote beside {remote}");
        return wrong("fdb", Kind::Conflict, message, "all remotes are link-local on one interface, or none is");
    }
    Ok(zone)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_broadcast(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

fn dport(parsed: &Parsed, mode: Mode, encap: Encap) -> Result<u16, Error> {
    match (small(parsed, "encap-dport"), encap) {
        (Some(port), _) => Ok(port),
        (None, Encap::None) if mode == Mode::Vxlan => Ok(LINUX_VXLAN_PORT),
        (None, Encap::None) if mode == Mode::Geneve => Ok(GENEVE_PORT),
        (None, Encap::Gue | Encap::None) => Ok(GUE_PORT),
        (None, Encap::Fou) => Err(parsed
            .error_at(Kind::Missing, "`encap fou` needs `encap-dport`", parsed.end(), "add `encap-dport 5555`")
            .why("no port is registered for FOU; use the remote's")),
    }
}

fn srcport(parsed: &Parsed) -> Result<Option<(u16, u16)>, Error> {
    let Some(Value::Range(first, last)) = parsed.value_of("srcport") else { return Ok(None) };
    if let Some(at) = parsed.place_of("encap-sport") {
        let message = "`encap-sport` does not go with `srcport`";
        return Err(parsed.error_at(Kind::Conflict, message, at, "leave one of the two out"));
    }
    if first > last {
        let at = parsed.place_of("srcport").unwrap_or(0) + 1;
        let message = format!("`srcport {first} {last}` is no range");
        return Err(parsed.error_at(Kind::BadValue, message, at, format!("expected `srcport {last} {first}`")));
    }
    Ok(Some((*first, *last)))
}

fn addresses(parsed: &Parsed, mode: Mode, mtu: Choice<u32>) -> Result<Vec<Prefix>, Error> {
    let mut prefixes = Vec::new();
    for (value, at) in parsed.values_of("addr") {
        let Value::Prefix(prefix) = value else { continue };
        let wrong = |kind, message: String, note: &str| Err(parsed.error_at(kind, message, at, note));
        if !mode.carries(prefix.address) {
            let other = if prefix.address.is_ipv4() { "IPv6" } else { "IPv4" };
            let message = format!("`mode {}` carries only {other}", mode.name());
            return wrong(
                Kind::Conflict,
                message,
                &format!("this is {}; `mode gre` carries both", family(prefix.address)),
            );
        }
        if prefix.address.is_multicast() || prefix.address.is_unspecified() || is_broadcast(prefix.address) {
            return wrong(
                Kind::BadValue,
                format!("`{prefix}` cannot be an interface's address"),
                "expected a unicast address",
            );
        }
        if prefixes.contains(prefix) {
            return wrong(Kind::Conflict, format!("`addr {prefix}` is given twice"), "once is enough");
        }
        if let (IpAddr::V6(_), Choice::Fixed(mtu)) = (prefix.address, mtu)
            && mtu < IPV6_MIN_MTU
        {
            return wrong(
                Kind::Conflict,
                format!("`mtu {mtu}` is too small for an IPv6 address"),
                "IPv6 needs an MTU of 1280 or more",
            );
        }
        prefixes.push(*prefix);
    }
    Ok(prefixes)
}

fn gre(parsed: &Parsed) -> Gre {
    let key = |name| match parsed.value_of(name).or_else(|| parsed.value_of("key")) {
        Some(Value::Number(key)) => u32::try_from(*key).ok(),
        _ => None,
    };
    let either = |name, both| switch(parsed, name, switch(parsed, both, false));
    Gre {
        ikey: key("ikey"),
        okey: key("okey"),
        icsum: either("icsum", "csum"),
        ocsum: either("ocsum", "csum"),
        iseq: either("iseq", "seq"),
        oseq: either("oseq", "seq"),
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn address(parsed: &Parsed, name: &str) -> Option<IpAddr> {
    match parsed.value_of(name) {
        Some(Value::Address(address)) => Some(*address),
        Some(Value::LinkLocal(address, _)) => Some((*address).into()),
        _ => None,
    }
}

fn named(parsed: &Parsed, name: &str) -> Option<&'static str> {
    match parsed.value_of(name) {
        Some(Value::Name(value)) => Some(value),
        _ => None,
    }
}

fn switch(parsed: &Parsed, name: &str, default: bool) -> bool {
    match parsed.value_of(name) {
        Some(Value::Switch(on)) => *on,
        _ => default,
    }
}

/// Returns a number that the table bounds to 16 bits.
fn small(parsed: &Parsed, name: &str) -> Option<u16> {
    match parsed.value_of(name) {
        Some(Value::Number(number)) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns the TTL with iproute2's meaning: 0 is the default of the mode, which is to inherit over IPv4; `ip6tnl` and
/// `ip6gre` have 64 instead.
fn ttl(parsed: &Parsed, mode: Mode, remote: IpAddr) -> Choice<u8> {
    let usual = if mode.is_overlay() || remote.is_ipv6() { Choice::Fixed(USUAL_TTL) } else { Choice::Inherit };
    match octet(parsed, "ttl", usual) {
        Choice::Inherit if named(parsed, "ttl") == Some("auto") => usual,
        Choice::Fixed(0) if mode.is_overlay() => usual,
        Choice::Fixed(0) => Choice::Inherit,
        chosen => chosen,
    }
}

fn octet(parsed: &Parsed, name: &str, default: Choice<u8>) -> Choice<u8> {
    match parsed.value_of(name) {
        Some(Value::Number(number)) => u8::try_from(*number).map_or(default, Choice::Fixed),
        Some(Value::Name(_)) => Choice::Inherit,
        _ => default,
    }
}
