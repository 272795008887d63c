//! From words to a checked plan. Everything that can be wrong without asking the system is found here.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::error::{Error, Kind};
use crate::words::parse::{Parsed, Prefix, Value};

/// GUE's registered UDP port.
const GUE_PORT: u16 = 6080;
/// The port that Linux takes for VXLAN where none is said; the registered one is 4789.
const LINUX_VXLAN_PORT: u16 = 8472;
/// Geneve's registered UDP port.
const GENEVE_PORT: u16 = 6081;
/// Time to live of VXLAN and Geneve where none is said, as Linux has it.
const BRIDGE_TTL: u8 = 64;
/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
pub(crate) const IPV6_MIN_MTU: u32 = 1280;

/// What the tunnel carries. iproute2's `ip6gre` is [`Mode::Gre`] over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// IPv4.
    Ipip,
    /// IPv6.
    Sit,
    /// IPv4 and IPv6 behind a GRE header.
    Gre,
    /// IPv4 and IPv6, told apart by the protocol number or, over FOU, the first nibble.
    Ip6tnl,
    /// Ethernet behind a GRE header.
    Gretap,
    /// Ethernet behind UDP and a VXLAN header.
    Vxlan,
    /// Ethernet behind UDP and a Geneve header.
    Geneve,
}

impl Mode {
    /// The word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Ipip => "ipip",
            Mode::Sit => "sit",
            Mode::Gre => "gre",
            Mode::Ip6tnl => "ip6tnl",
            Mode::Gretap => "gretap",
            Mode::Vxlan => "vxlan",
            Mode::Geneve => "geneve",
        }
    }

    /// Whether Ethernet frames are inside.
    pub(crate) fn is_ethernet(self) -> bool {
        matches!(self, Mode::Gretap | Mode::Vxlan | Mode::Geneve)
    }

    /// Whether it has a UDP header and a network identifier of its own.
    pub(crate) fn is_overlay(self) -> bool {
        matches!(self, Mode::Vxlan | Mode::Geneve)
    }

    /// Whether packets of this kind may be inside.
    pub(crate) fn carries(self, address: IpAddr) -> bool {
        match self {
            Mode::Ipip => address.is_ipv4(),
            Mode::Sit => address.is_ipv6(),
            Mode::Gre | Mode::Ip6tnl | Mode::Gretap | Mode::Vxlan | Mode::Geneve => true,
        }
    }
}

/// What stands between the outer IP header and the mode's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encap {
    /// Generic UDP Encapsulation, Linux's layout.
    Gue,
    /// UDP, and the inner protocol at once.
    Fou,
    /// Nothing.
    None,
}

impl Encap {
    /// The word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encap::Gue => "gue",
            Encap::Fou => "fou",
            Encap::None => "none",
        }
    }
}

/// A number, or the name that stands for "not a fixed one".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    /// `auto`: segue chooses.
    Auto,
    /// `inherit`: from the inner packet.
    Inherit,
    /// This.
    Fixed(T),
}

impl<T: Copy> Choice<T> {
    /// The number, if it is fixed.
    pub(crate) fn fixed(self) -> Option<T> {
        match self {
            Choice::Fixed(number) => Some(number),
            Choice::Auto | Choice::Inherit => None,
        }
    }
}

impl<T: Serialize> Serialize for Choice<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Choice::Auto => to.serialize_str("auto"),
            Choice::Inherit => to.serialize_str("inherit"),
            Choice::Fixed(number) => number.serialize(to),
        }
    }
}

/// Which packets may form a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Profile {
    /// Those that can be taken apart again byte for byte.
    Strict,
    /// Those that Linux would join.
    Linux,
}

/// GRE's options, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Gre {
    /// The key that a received packet must have.
    pub(crate) ikey: Option<u32>,
    /// The key that is sent.
    pub(crate) okey: Option<u32>,
    /// A received packet must have a checksum.
    pub(crate) icsum: bool,
    /// A checksum is sent.
    pub(crate) ocsum: bool,
    /// A received packet must have a sequence number.
    pub(crate) iseq: bool,
    /// Sequence numbers are sent.
    pub(crate) oseq: bool,
}

/// Don't Fragment outside, of VXLAN and Geneve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Df {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// As inside.
    Inherit,
}

/// An Ethernet address and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// The address; zero stands for groups and whatever is unknown.
    pub(crate) mac: [u8; 6],
    /// The remote.
    pub(crate) remote: IpAddr,
}

impl Serialize for Neighbour {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d, e, f] = self.mac;
        to.collect_str(&format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x},{}", self.remote))
    }
}

/// What only VXLAN and Geneve have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Overlay {
    /// Network identifier; `None` in other modes.
    pub(crate) id: Option<u32>,
    /// No UDP checksums over IPv6 are sent.
    pub(crate) udp6zerocsumtx: bool,
    /// None are asked for over IPv6.
    pub(crate) udp6zerocsumrx: bool,
    /// Remote checksum offload when sending.
    pub(crate) remcsumtx: bool,
    /// And when receiving.
    pub(crate) remcsumrx: bool,
    /// Addresses are learned.
    pub(crate) learning: bool,
    /// For so many seconds.
    pub(crate) ageing: u32,
    /// So many at least.
    pub(crate) maxaddress: u32,
    /// Addresses that are set.
    pub(crate) fdb: Vec<Neighbour>,
    /// Don't Fragment.
    pub(crate) df: Df,
}

impl Overlay {
    /// Every remote but `first`, each once.
    pub(crate) fn others(&self, first: IpAddr) -> Vec<IpAddr> {
        let mut others: Vec<IpAddr> = Vec::new();
        for entry in &self.fdb {
            if entry.remote != first && !others.contains(&entry.remote) {
                others.push(entry.remote);
            }
        }
        others
    }
}

/// A tunnel as it was asked for: everything is checked that needs no question to the system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Name of the interface.
    pub(crate) dev: String,
    /// What is inside.
    pub(crate) mode: Mode,
    /// The other end; its family is the family outside.
    pub(crate) remote: IpAddr,
    /// This end; `None` is what the route prefers.
    pub(crate) local: Option<IpAddr>,
    /// What carries it.
    pub(crate) encap: Encap,
    /// UDP port of the other end.
    #[serde(rename = "encap_dport")]
    pub(crate) dport: u16,
    /// UDP source port; never [`Choice::Inherit`].
    #[serde(rename = "encap_sport")]
    pub(crate) sport: Choice<u16>,
    /// UDP port to listen on.
    pub(crate) port: u16,
    /// UDP checksums outside.
    pub(crate) encap_csum: bool,
    /// Remote checksum offload when sending.
    pub(crate) encap_remcsum: bool,
    /// Addresses for the interface.
    #[serde(serialize_with = "prefixes")]
    pub(crate) addr: Vec<Prefix>,
    /// MTU of the interface, bytes; never [`Choice::Inherit`].
    pub(crate) mtu: Choice<u32>,
    /// TTL or hop limit outside; never [`Choice::Auto`].
    pub(crate) ttl: Choice<u8>,
    /// TOS or traffic class outside, ECN bits included; never [`Choice::Auto`].
    pub(crate) tos: Choice<u8>,
    /// Outer packets forbid fragmentation.
    pub(crate) pmtudisc: bool,
    /// GRE's options; `None` in other modes.
    pub(crate) gre: Option<Gre>,
    /// What only VXLAN and Geneve have.
    #[serde(flatten)]
    pub(crate) overlay: Overlay,
    /// Received packets are joined.
    pub(crate) gro: bool,
    /// Trains are sent.
    pub(crate) gso: bool,
    /// Which packets form trains.
    pub(crate) profile: Profile,
    /// Threads that move packets.
    pub(crate) workers: u16,
    /// Where to write what crosses the outside.
    pub(crate) trace: Option<PathBuf>,
    /// Settings to begin with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<(String, String)>,
}

fn prefixes<S: Serializer>(prefixes: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(prefixes.iter().map(ToString::to_string))
}

/// One header that the tunnel adds, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Overhead {
    /// The header's name, as in `IPv4`.
    pub(crate) header: &'static str,
    /// Its length.
    pub(crate) bytes: u32,
}

impl Plan {
    /// The headers that the tunnel adds, from the outside in.
    ///
    /// The eight bytes of remote checksum offload count always when it is on, as Linux counts them, though packets
    /// without a pending checksum go without.
    pub(crate) fn overhead(&self) -> Vec<Overhead> {
        let outer = if self.remote.is_ipv4() { ("IPv4", 20) } else { ("IPv6", 40) };
        let mut parts = vec![outer];
        if self.has_udp() {
            parts.push(("UDP", 8));
        }
        match (self.encap, self.mode) {
            (Encap::Gue, _) => parts.push(("GUE", if self.encap_remcsum { 12 } else { 4 })),
            (_, Mode::Vxlan) => parts.push(("VXLAN", 8)),
            (_, Mode::Geneve) => parts.push(("Geneve", 8)),
            _ => {}
        }
        if let Some(gre) = self.gre {
            let options = [gre.ocsum, gre.okey.is_some(), gre.oseq];
            parts.push(("GRE", 4 + 4 * options.iter().filter(|&&on| on).count() as u32));
        }
        if self.mode.is_ethernet() {
            parts.push(("Ethernet", 14));
        }
        parts.into_iter().map(|(header, bytes)| Overhead { header, bytes }).collect()
    }

    /// Whether it is carried in UDP.
    pub(crate) fn has_udp(&self) -> bool {
        self.encap != Encap::None || self.mode.is_overlay()
    }

    /// Whether inner checksums are left to the remote end.
    pub(crate) fn leaves_checksums(&self) -> bool {
        self.encap_remcsum || self.overlay.remcsumtx
    }

    /// Notes about this plan that its user should read, whatever happens.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.mode == Mode::Vxlan && self.dport == LINUX_VXLAN_PORT {
            notes.push(
                "the remote's port is 8472, as Linux has it; VXLAN's registered one is `dstport 4789`".to_owned(),
            );
        }
        if !self.has_udp() {
            notes.push(
                "without encap nothing gathers packets outside: each is sent and received by itself; `encap gue` does"
                    .to_owned(),
            );
        } else if !self.encap_csum {
            notes.push(
                "without encap-csum the kernel takes no trains of datagrams: sending one datagram at a time".to_owned(),
            );
        }
        if self.gre.is_some_and(|gre| gre.oseq) {
            notes
                .push("GRE sequence numbers differ in each packet: trains are cut before they are numbered".to_owned());
        }
        notes
    }
}

/// Turns words into a plan.
pub(crate) fn plan(parsed: &Parsed, trace: Option<PathBuf>, set: &[(String, String)]) -> Result<Plan, Error> {
    let Some(remote) = address(parsed, "remote") else {
        // The table has `remote` as required; the parser has refused a line without it.
        return Err(parsed.error_at(Kind::Missing, "`remote` is missing", parsed.end(), "add `remote ADDR`"));
    };
    let mode = mode(parsed, remote)?;
    let encap = encap(parsed, mode)?;
    let local = local(parsed, remote)?;
    check_remote(parsed, remote)?;
    let dport = dport(parsed, mode, encap)?;
    let overlay = overlay(parsed, mode, remote)?;
    let encap_csum = switch(parsed, "encap-csum", true) && !(remote.is_ipv6() && overlay.udp6zerocsumtx);
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
    let workers = small(parsed, "workers").unwrap_or(1);
    if workers > 1 {
        let at = parsed.place_of("workers").unwrap_or(parsed.end()) + 1;
        let message = format!("`workers {workers}` is not available yet");
        return Err(parsed.error_at(Kind::NotAvailable, message, at, "this version has 1 worker"));
    }
    if trace.is_some() && (encap == Encap::None && !mode.is_overlay() || !overlay.others(remote).is_empty()) {
        let what = if mode.is_overlay() { "several remotes" } else { "a tunnel without UDP" };
        return Err(parsed
            .error_at(Kind::NotAvailable, format!("`--trace` of {what} is not available yet"), parsed.end(), "")
            .why("only what one UDP peer sends and gets is written"));
    }
    let plan = Plan {
        dev: match parsed.value_of("dev") {
            Some(Value::Device(name)) => name.clone(),
            _ => return Err(parsed.error_at(Kind::Missing, "`dev` is missing", parsed.end(), "add `dev NAME`")),
        },
        mode,
        remote,
        local,
        encap,
        dport,
        sport: small(parsed, "encap-sport").map_or(Choice::Auto, Choice::Fixed),
        port: small(parsed, "port").unwrap_or(dport),
        encap_csum,
        encap_remcsum,
        addr: addresses(parsed, mode, mtu)?,
        mtu,
        ttl: octet(parsed, "ttl", if mode.is_overlay() { Choice::Fixed(BRIDGE_TTL) } else { Choice::Inherit }),
        tos: octet(parsed, "tos", Choice::Fixed(0)),
        pmtudisc: switch(parsed, "pmtudisc", true),
        gre: matches!(mode, Mode::Gre | Mode::Gretap).then(|| gre(parsed)),
        overlay,
        gro: named(parsed, "gro") != Some("off"),
        gso: named(parsed, "gso") != Some("off"),
        profile: if named(parsed, "profile") == Some("linux") { Profile::Linux } else { Profile::Strict },
        workers,
        trace,
        set: set.to_vec(),
    };
    Ok(plan)
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
        if who.is_ipv4() != remote.is_ipv4() || who.is_unspecified() || who.is_multicast() {
            let message = format!("`{who}` cannot be a remote beside {remote}");
            let note = format!("expected an {} unicast address", family(remote));
            return Err(parsed.error_at(Kind::Conflict, message, at, note));
        }
        if mac[0] & 1 == 1 {
            let message = "a group has no remote of its own".to_owned();
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

fn local(parsed: &Parsed, remote: IpAddr) -> Result<Option<IpAddr>, Error> {
    let Some(local) = address(parsed, "local") else { return Ok(None) };
    let at = parsed.place_of("local").unwrap_or(0) + 1;
    if local.is_ipv4() != remote.is_ipv4() {
        let message = format!("`local {local}` and `remote {remote}` are of two families");
        return Err(parsed.error_at(Kind::Conflict, message, at, format!("expected an {} address", family(remote))));
    }
    if local.is_multicast() || is_broadcast(local) {
        let message = format!("`{local}` cannot be the address of one host");
        return Err(parsed.error_at(Kind::BadValue, message, at, "expected a unicast address"));
    }
    if local.is_unspecified() {
        return Ok(None);
    }
    if local == remote {
        let message = format!("`local` and `remote` are both {local}");
        return Err(parsed.error_at(Kind::Conflict, message, at, "a tunnel has two ends"));
    }
    Ok(Some(local))
}

fn check_remote(parsed: &Parsed, remote: IpAddr) -> Result<(), Error> {
    if remote.is_unspecified() || remote.is_multicast() || is_broadcast(remote) {
        let at = parsed.place_of("remote").map_or(parsed.end(), |at| at + 1);
        let message = format!("`{remote}` cannot be the other end of a tunnel");
        return Err(parsed.error_at(Kind::BadValue, message, at, "expected a unicast address"));
    }
    if let IpAddr::V6(v6) = remote
        && v6.is_unicast_link_local()
    {
        let at = parsed.place_of("remote").map_or(parsed.end(), |at| at + 1);
        let message = format!("a link-local remote (`{remote}`) is not available yet");
        return Err(parsed.error_at(Kind::NotAvailable, message, at, "use a routable address"));
    }
    Ok(())
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

/// A number that the table bounds to 16 bits.
fn small(parsed: &Parsed, name: &str) -> Option<u16> {
    match parsed.value_of(name) {
        Some(Value::Number(number)) => u16::try_from(*number).ok(),
        _ => None,
    }
}

fn octet(parsed: &Parsed, name: &str, default: Choice<u8>) -> Choice<u8> {
    match parsed.value_of(name) {
        Some(Value::Number(number)) => u8::try_from(*number).map_or(default, Choice::Fixed),
        Some(Value::Name(_)) => Choice::Inherit,
        _ => default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::parse::parse;
    use crate::words::tunnel::WORDS;

    fn made(line: &str) -> Result<Plan, Error> {
        let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        plan(&parse("segue tunnel", WORDS, &tokens)?, None, &[])
    }

    fn ok(line: &str) -> Plan {
        made(line).unwrap_or_else(|error| panic!("{line}: {}", error.text()))
    }

    fn mtu_cost(line: &str) -> u32 {
        ok(line).overhead().iter().map(|part| part.bytes).sum()
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let plan = ok("dev sg0 remote 198.18.0.2 encap gue");
        assert_eq!((plan.mode, plan.dport, plan.port, plan.sport), (Mode::Gre, 6080, 6080, Choice::Auto));
        assert_eq!((plan.encap_csum, plan.encap_remcsum, plan.pmtudisc), (true, false, true));
        assert_eq!((plan.ttl, plan.tos, plan.mtu), (Choice::Inherit, Choice::Fixed(0), Choice::Auto));
        assert_eq!((plan.gro, plan.gso, plan.profile, plan.workers), (true, true, Profile::Strict, 1));
        assert_eq!(plan.gre, Some(Gre::default()));
        assert!(plan.notes().is_empty());
    }

    #[test]
    fn vxlan_and_geneve_start_as_in_linux() {
        let vxlan = ok("dev sg0 remote 198.18.0.2 mode vxlan id 42");
        assert_eq!((vxlan.encap, vxlan.dport, vxlan.port, vxlan.ttl), (Encap::None, 8472, 8472, Choice::Fixed(64)));
        assert!(vxlan.encap_csum && vxlan.overlay.learning && !vxlan.overlay.remcsumrx);
        assert_eq!((vxlan.overlay.id, vxlan.overlay.ageing, vxlan.overlay.df), (Some(42), 300, Df::Unset));
        assert!(vxlan.notes()[0].contains("dstport 4789"));
        let geneve = ok("dev sg0 remote 198.18.0.2 mode geneve vni 42 noudpcsum");
        assert_eq!((geneve.dport, geneve.encap_csum), (6081, false));
        let over6 = ok("dev sg0 remote ::1 mode vxlan id 1 dstport 4789 udp6zerocsumtx udp6zerocsumrx");
        assert_eq!((over6.dport, over6.encap_csum, over6.overlay.udp6zerocsumrx), (4789, false, true));
    }

    #[test]
    fn headers_add_up_as_linux_counts_them() {
        let base = "dev sg0 remote 198.18.0.2";
        assert_eq!(mtu_cost(&format!("{base} mode ipip encap gue encap-remcsum")), 40);
        assert_eq!(mtu_cost(&format!("{base} mode ipip encap fou encap-dport 5555")), 28);
        assert_eq!(mtu_cost(&format!("{base} mode gre key 1 encap gue encap-remcsum")), 48);
        assert_eq!(mtu_cost(&format!("{base} mode gre key 1 csum seq encap gue")), 48);
        assert_eq!(mtu_cost(&format!("{base} mode gre ikey 1 icsum iseq encap gue")), 36);
        assert_eq!(mtu_cost("dev sg0 remote 2001:db8::2 mode sit encap gue"), 52);
        assert_eq!(mtu_cost(&format!("{base} mode ipip")), 20);
        assert_eq!(mtu_cost(&format!("{base} mode gretap key 1")), 42);
        assert_eq!(mtu_cost(&format!("{base} mode vxlan id 1")), 50);
        assert_eq!(mtu_cost("dev sg0 remote 2001:db8::2 mode geneve id 1"), 70);
    }

    #[test]
    fn what_cannot_work_is_refused_as_used_wrongly() {
        let base = "dev sg0 remote 198.18.0.2";
        let cases = [
            (format!("{base} encap gue noencap-csum encap-remcsum"), "`noencap-csum` does not go with `encap-remcsum`"),
            (format!("{base} encap none encap-dport 5"), "`encap-dport` does not go with `encap none`"),
            (format!("{base} encap none encap-remcsum"), "`encap-remcsum` does not go with `encap none`"),
            (format!("{base} mode vxlan"), "`mode vxlan` needs `id`"),
            (format!("{base} mode geneve id 1 encap gue"), "`encap gue` does not go with `mode geneve`"),
            (format!("{base} mode geneve id 1 remcsumtx"), "`remcsumtx` does not go with `mode geneve`"),
            (format!("{base} mode vxlan id 1 noudpcsum remcsumtx"), "`noudpcsum` does not go with `remcsumtx`"),
            (
                "dev sg0 remote ::1 mode vxlan id 1 udp6zerocsumtx remcsumtx".to_owned(),
                "`udp6zerocsumtx` does not go with `remcsumtx`",
            ),
            (format!("{base} mode vxlan id 1 fdb 02:00:00:00:00:01,::1"), "`::1` cannot be a remote beside 198.18.0.2"),
            (format!("{base} mode ip6gretap"), "`mode ip6gretap` needs an IPv6 remote"),
            (format!("{base} mode gretap id 1"), "`id` does not go with `mode gretap`"),
            (format!("{base} encap fou"), "`encap fou` needs `encap-dport`"),
            (format!("{base} encap fou encap-dport 5 encap-remcsum"), "`encap-remcsum` does not go with `encap fou`"),
            (format!("{base} encap gue mode ip6gre"), "`mode ip6gre` needs an IPv6 remote"),
            (format!("{base} encap gue mode sit addr 198.19.0.1/30"), "`mode sit` carries only IPv6"),
            (format!("{base} encap gue mode ipip addr 2001:db8::1/64"), "`mode ipip` carries only IPv4"),
            (
                format!("{base} encap gue local 2001:db8::1"),
                "`local 2001:db8::1` and `remote 198.18.0.2` are of two families",
            ),
            (format!("{base} encap gue local 198.18.0.2"), "`local` and `remote` are both 198.18.0.2"),
            (format!("{base} encap gue mtu 1200 addr 2001:db8::1/64"), "`mtu 1200` is too small for an IPv6 address"),
            (format!("{base} encap gue workers 2"), "`workers 2` is not available yet"),
            ("dev sg0 remote 224.0.0.1 encap gue".to_owned(), "`224.0.0.1` cannot be the other end of a tunnel"),
        ];
        for (line, message) in cases {
            let error = made(&line).expect_err(&line);
            assert_eq!((error.message.as_str(), error.kind.exit_code()), (message, 2), "{line}");
            assert!(!error.hint.is_empty());
        }
    }

    #[test]
    fn one_direction_overrides_nothing_of_the_other() {
        let gre = ok("dev a remote ::1 encap gue okey 7 icsum oseq").gre.unwrap();
        assert_eq!(gre, Gre { okey: Some(7), icsum: true, oseq: true, ..Gre::default() });
        let both = ok("dev a remote ::1 encap gue key 9 csum seq").gre.unwrap();
        assert_eq!(both, Gre { ikey: Some(9), okey: Some(9), icsum: true, ocsum: true, iseq: true, oseq: true });
    }

    #[test]
    fn every_word_of_the_table_is_a_key_of_the_plans_json() {
        let json = serde_json::to_value(ok("dev a remote ::1 encap gue")).unwrap();
        for word in WORDS {
            let key = word.name.replace('-', "_");
            let direction = matches!(key.as_str(), "key" | "csum" | "seq" | "ikey" | "okey")
                || key.ends_with("seq")
                || matches!(key.as_str(), "icsum" | "ocsum");
            let found = json.get(&key).is_some() || (direction && json.get("gre").is_some());
            assert!(found, "{key} is not in {json}");
        }
    }
}
