//! `segue nat`: who talks through a NAT.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use segue_datapath::nat::{self, Protocol, Tcp};
use segue_datapath::router::{Message, Teller};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args;
use crate::control::client;
use crate::error::{Error, Kind};
use crate::gateway::route::protocol_name;
use crate::out::Out;

/// The id of the JSON that `segue nat -j` prints.
const SCHEMA: &str = "segue.nat/1";
/// How long the packets' thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A mapping, as it goes over the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    /// tcp, udp or icmp.
    protocol: String,
    /// The host inside and its port, or the identifier of its queries.
    inside: SocketAddrV4,
    /// The port or identifier outside.
    outside: u16,
    /// static, or of TCP: opening, open or closing; otherwise nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// Seconds since the last packet; of a static one that had none, since the host started.
    idle_s: u64,
    /// Packets that left, a train counting one.
    out: u64,
    /// The same for those that came.
    #[serde(rename = "in")]
    into: u64,
}

impl Mapping {
    fn new(mapping: &nat::Mapping, now: u64) -> Mapping {
        let state = match (mapping.is_static, mapping.protocol, mapping.tcp) {
            (true, ..) => Some("static"),
            (_, Protocol::Tcp, Tcp::Opening { .. }) => Some("opening"),
            (_, Protocol::Tcp, Tcp::Open) => Some("open"),
            (_, Protocol::Tcp, Tcp::Closing(_)) => Some("closing"),
            _ => None,
        };
        Mapping {
            protocol: protocol_name(mapping.protocol).to_owned(),
            inside: SocketAddrV4::new(Ipv4Addr::from_bits(mapping.inside.0), mapping.inside.1),
            outside: mapping.outside,
            state: state.map(str::to_owned),
            idle_s: now.saturating_sub(mapping.last.0) / 1_000_000_000,
            out: mapping.packets[0],
            into: mapping.packets[1],
        }
    }
}

/// Asks the thread that moves packets, from another one.
pub(crate) fn ask(teller: &Teller) -> Option<Vec<Mapping>> {
    let (reply, answer) = sync_channel(1);
    if !teller.tell(Message::Mappings(reply)) {
        return None;
    }
    let (now, all) = answer.recv_timeout(PATIENCE).ok()?;
    let mut all: Vec<Mapping> = all.iter().map(|mapping| Mapping::new(mapping, now.0)).collect();
    all.sort_by(|a, b| {
        (IpAddr::V4(*a.inside.ip()), &a.protocol, a.inside.port()).cmp(&(
            IpAddr::V4(*b.inside.ip()),
            &b.protocol,
            b.inside.port(),
        ))
    });
    Some(all)
}

/// Runs the command.
pub(crate) fn run(args: &args::Nat, out: &Out) -> Result<(), Error> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => client::all().instances.into_iter().filter(|one| one.kind == "gateway").map(|one| one.name).collect(),
    };
    let mut all = Vec::new();
    for name in names {
        match client::mappings(&name)? {
            Some(mappings) => all.push((name, mappings)),
            None if args.name.is_none() => {}
            None => {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("{name} translates nothing"),
                    "segue gateway IN OUT --route --nat ADDRESS",
                )
                .why("it was started without --nat"));
            }
        }
    }
    if out.json {
        let instances: Vec<_> =
            all.iter().map(|(name, mappings)| json!({ "name": name, "mappings": mappings })).collect();
        out.value(&json!({ "schema": SCHEMA, "instances": instances }));
        return Ok(());
    }
    if all.is_empty() {
        out.note("no NAT runs here; one does so with: segue gateway IN OUT --route --nat ADDRESS");
    }
    for (name, mappings) in &all {
        out.data(&format!("{name}: {} mappings\n", mappings.len()));
        if !mappings.is_empty() {
            out.data("  proto inside                 outside state      idle s        out         in\n");
        }
        for m in mappings {
            let state = m.state.as_deref().unwrap_or("-");
            out.data(&format!(
                "  {:<5} {:<22} {:>7} {:<8} {:>8} {:>10} {:>10}\n",
                m.protocol,
                m.inside.to_string(),
                m.outside,
                state,
                m.idle_s,
                m.out,
                m.into
            ));
        }
    }
    Ok(())
}
