//! `segue nat`: who talks through a NAT.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use schemars::JsonSchema;
use segue_datapath::nat::{self, Protocol, TcpState};
use segue_datapath::router::{FeedSender, Message};
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

/// What `segue nat -j` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// Always `segue.nat/1`.
    schema: &'static str,
    /// Gateways that translate, by name.
    instances: Vec<Translating>,
}

/// A gateway that translates.
#[derive(Debug, Serialize, JsonSchema)]
struct Translating {
    /// Its name.
    name: String,
    /// Its mappings, by inside address, protocol and port.
    mappings: Vec<Mapping>,
}

/// A mapping, as it goes over the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Mapping {
    /// tcp, udp or icmp.
    protocol: String,
    /// The host inside and its port, or the identifier of its queries.
    #[schemars(with = "String")]
    inside: SocketAddrV4,
    /// The port or identifier outside.
    outside: u16,
    /// static, or of TCP: opening, open or closing; otherwise missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// Seconds since the last packet; missing where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle_s: Option<u64>,
    /// Packets that left, a train counting one.
    out: u64,
    /// The same for those that came.
    #[serde(rename = "in")]
    into: u64,
}

impl Mapping {
    fn new(mapping: &nat::Mapping, now: u64) -> Mapping {
        let state = match (mapping.is_static, mapping.protocol, mapping.connections.state()) {
            (true, ..) => Some("static"),
            (_, Protocol::Tcp, TcpState::Opening) => Some("opening"),
            (_, Protocol::Tcp, TcpState::Open) => Some("open"),
            (_, Protocol::Tcp, TcpState::Closing) => Some("closing"),
            _ => None,
        };
        Mapping {
            protocol: protocol_name(mapping.protocol).to_owned(),
            inside: SocketAddrV4::new(Ipv4Addr::from_bits(mapping.inside.0), mapping.inside.1),
            outside: mapping.outside,
            state: state.map(str::to_owned),
            idle_s: (mapping.packets != [0; 2]).then(|| now.saturating_sub(mapping.last.0) / 1_000_000_000),
            out: mapping.packets[0],
            into: mapping.packets[1],
        }
    }
}

/// Asks the thread that moves packets, from another one.
pub(crate) fn ask(sender: &FeedSender) -> Option<Vec<Mapping>> {
    let (reply, answer) = sync_channel(1);
    if !sender.send(Message::Mappings(reply)) {
        return None;
    }
    let (now, all) = answer.recv_timeout(PATIENCE).ok()?;
    let mut all: Vec<Mapping> = all.iter().map(|mapping| Mapping::new(mapping, now.0)).collect();
    all.sort_by_cached_key(|mapping| (*mapping.inside.ip(), mapping.protocol.clone(), mapping.inside.port()));
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
            Some(mappings) => all.push(Translating { name, mappings }),
            None if args.name.is_none() => {}
            None => {
                let text = format!("{name} translates nothing");
                return Err(Error::new(Kind::Conflict, text, "segue gateway IN OUT --route --nat ADDRESS")
                    .why("it was started without --nat"));
            }
        }
    }
    if out.json {
        out.value(&json!(Document { schema: SCHEMA, instances: all }));
        return Ok(());
    }
    if all.is_empty() {
        out.note("no NAT runs here; one does so with: segue gateway IN OUT --route --nat ADDRESS");
    }
    all.iter().for_each(|one| out.data(&one.text()));
    Ok(())
}

impl Translating {
    /// A line for each mapping, below the name.
    fn text(&self) -> String {
        let (count, plural) = (self.mappings.len(), if self.mappings.len() == 1 { "" } else { "s" });
        let mut text = format!("{}: {count} mapping{plural}\n", self.name);
        if count > 0 {
            text.push_str("  proto inside                outside state     idle s        out         in\n");
        }
        for m in &self.mappings {
            let (inside, state) = (m.inside.to_string(), m.state.as_deref().unwrap_or("-"));
            let idle = m.idle_s.map_or("-".to_owned(), |idle| idle.to_string());
            let numbers = format!("{idle:>6} {:>10} {:>10}", m.out, m.into);
            text.push_str(&format!("  {:<5} {inside:<21} {:>7} {state:<9} {numbers}\n", m.protocol, m.outside));
        }
        text
    }
}
