//! `segue peer`: the peer table of a running tunnel.

use schemars::JsonSchema;
use segue_control::client;
use segue_control::error::{Error, Kind, Place, printable, printable_line};
use segue_control::peers::{Change, Changes, Encap, Key, ListedPeer, Mac, Peer, RefusedPeer, Table};
use segue_control::protocol::TABLE_LEN;
use segue_grammar::parse::{Parsed, Value, parse};
use segue_grammar::peer::KEYWORDS;
use segue_host::file::read_within;
use serde::Serialize;
use serde_json::json;

use crate::args;
use crate::out::Out;
use crate::stat::plain_table;

/// The schema id of the JSON that `segue peer -j` prints.
const SCHEMA: &str = "segue.peer/1";

/// The closing text of the help of `segue peer`.
pub(crate) const MORE: &str = "\
Actions: add and replace NAME PREFIX remote ADDR [encap vxlan|gue|fou]
[port PORT] [vni N] [mac MAC] [[no]udpcsum] [[no]remcsum], del NAME PREFIX...,
list NAME, sync NAME FILE. The tunnel must have been started with `peers`:
  segue tunnel dev sg0 peers none local 198.18.0.1 listen vxlan,gue
No packet waits for a change. Of several prefixes the longest counts.

A table has a generation, a number that only grows. `sync` with a lower one is
refused, and with the present one it must have the same peers; without one, and
with the other actions, the table gets the next number. A peer that is refused
costs no other its place: it is named, and the exit status is 1. The file is
JSON:
  {\"generation\": 42, \"peers\": [{\"prefix\": \"198.19.2.0/24\",
   \"remote\": \"198.18.0.2\", \"encap\": \"gue\", \"remcsum\": true}]}
Datagrams of other addresses than those of the table are dropped, and so are
packets whose inner source the table does not give to their sender.
More in docs/peers.md.
";

/// The document that `segue peer -j` prints: the table for `list`, and the changes for the other actions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// The schema id, always `segue.peer/1`.
    schema: &'static str,
    /// Name of the tunnel.
    instance: String,
    /// Generation number of the peer table.
    generation: u64,
    /// Peers with their counters, for `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<Vec<ListedPeer>>,
    /// Number of peers that a change added.
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<u64>,
    /// Number of peers that a change replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<u64>,
    /// Number of peers that a change removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<u64>,
    /// Number of peers that a change left unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchanged: Option<u64>,
    /// Number of peers that a change refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<u64>,
    /// The first 100 refused peers, with the rule that each breaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_peers: Vec<RefusedPeer>,
}

impl Document {
    fn new(instance: &str, generation: u64) -> Document {
        Document {
            schema: SCHEMA,
            instance: instance.to_owned(),
            generation,
            peers: None,
            added: None,
            replaced: None,
            removed: None,
            unchanged: None,
            refused: None,
            refused_peers: Vec::new(),
        }
    }
}

/// Runs `segue peer`.
pub(crate) fn run(args: &args::Peer, out: &Out) -> Result<(), Error> {
    let (Some(action), Some(dev)) = (&args.action, &args.dev) else {
        let (what, good) = match &args.action {
            None => ("an action", "segue peer list NAME"),
            Some(_) => ("the name of a tunnel", "segue stat      lists those that run"),
        };
        return Err(Error::new(Kind::Missing, format!("`peer` needs {what}"), good)
            .why("the actions are add, replace, del, list and sync"));
    };
    let words = &args.words[..];
    let change = match (action.as_str(), words) {
        ("list", []) => return list(dev, out),
        ("list", [more, ..]) => return Err(wrong(words, 0, format!("unknown word `{}`", printable(more)), "")),
        ("sync", [file]) => Change::Sync(read(file)?),
        ("sync", _) => {
            return Err(wrong(words, words.len().min(1), "`sync` needs one file".to_owned(), "FILE, or - for stdin"));
        }
        ("del", []) => return Err(wrong(words, 0, "`del` needs a prefix".to_owned(), "PREFIX...")),
        ("del", prefixes) => {
            let keys = (0..prefixes.len()).map(|at| key(words, at));
            Change::Del(keys.collect::<Result<_, Error>>()?)
        }
        ("add", _) => Change::Add(vec![peer(words)?]),
        _ => Change::Replace(vec![peer(words)?]),
    };
    let changes = client::peer_change(dev, change)?;
    let Changes { generation, added, replaced, removed, unchanged, refused, refused_peers } = changes;
    if out.json {
        let [added, replaced, removed, unchanged] = [added, replaced, removed, unchanged].map(Some);
        let plain = Document::new(dev, generation);
        let refused = Some(refused);
        out.value(&json!(Document { added, replaced, removed, unchanged, refused, refused_peers, ..plain }));
    } else {
        let dev = printable(dev);
        let left = if refused == 0 { String::new() } else { format!(", {refused} refused") };
        out.data(&format!(
            "{dev}: {added} added, {replaced} replaced, {removed} removed, {unchanged} unchanged{left}; generation {generation}\n"
        ));
        for refused in &refused_peers {
            out.warn(&format!("refused: {}", printable_line(&refused.to_string())));
        }
        if refused > refused_peers.len() as u64 {
            out.warn(&format!("refused: {} more", refused - refused_peers.len() as u64));
        }
    }
    if refused > 0 {
        return Err(Error::new(Kind::Shown, format!("{refused} peers are refused"), "segue peer list NAME"));
    }
    Ok(())
}

fn wrong(words: &[String], at: usize, message: String, note: &str) -> Error {
    let place = Place { words: words.to_vec(), at, note: note.to_owned(), nearest: None };
    Error::new(Kind::Usage, message, "segue peer --help").at(place)
}

/// Parses a prefix, or an Ethernet address.
fn key(words: &[String], at: usize) -> Result<Key, Error> {
    let Some(word) = words.get(at) else {
        let note = "such as 198.19.1.0/24, or an Ethernet address with `mode eth`";
        return Err(wrong(words, at, "a prefix is missing".to_owned(), note));
    };
    if let Ok(station) = word.parse::<Mac>() {
        return Ok(Key::Match(station));
    }
    let no_prefix = |note: &str| wrong(words, at, format!("`{}` is no prefix", printable(word)), note);
    word.parse().map(Key::Prefix).map_err(no_prefix)
}

/// Reads a table from a file, or from stdin.
fn read(file: &str) -> Result<Table, Error> {
    let read = match file {
        "-" => read_within(std::io::stdin(), TABLE_LEN),
        _ => std::fs::File::open(file).and_then(|opened| read_within(opened, TABLE_LEN)),
    };
    let text = read.map_err(|error| {
        let made = Error::system(format!("cannot read {}", printable(file)), &error, "segue peer sync NAME -");
        made.why("it holds the peer table")
    })?;
    Table::read(&text, &printable(file))
}

/// Parses a peer: a prefix or an Ethernet address, then keywords.
fn peer(words: &[String]) -> Result<Peer, Error> {
    let key = key(words, 0)?;
    let parsed = parse("segue peer", KEYWORDS, &words[1..])?;
    let Some(Value::Address(remote)) = parsed.value_of("remote") else {
        return Err(parsed.error_at(Kind::Missing, "`remote` is missing", parsed.end(), "add `remote ADDR`"));
    };
    let encap = match parsed.value_of("encap") {
        Some(Value::Name(name)) => Encap::ALL.into_iter().find(|encap| encap.name() == *name),
        _ => None,
    };
    let mac = match parsed.value_of("mac") {
        Some(Value::Mac(mac)) => Some(*mac),
        _ => None,
    };
    let switch = |name| match parsed.value_of(name) {
        Some(Value::Switch(on)) => Some(*on),
        _ => None,
    };
    Ok(Peer {
        encap,
        port: number(&parsed, "port").and_then(|port| u16::try_from(port).ok()),
        vni: number(&parsed, "vni").and_then(|vni| u32::try_from(vni).ok()),
        mac,
        outer_checksum: switch("udpcsum"),
        remcsum: switch("remcsum"),
        ..Peer::at(key, *remote)
    })
}

fn number(parsed: &Parsed, name: &str) -> Option<u64> {
    match parsed.value_of(name) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    }
}

/// Prints the table of a tunnel.
fn list(dev: &str, out: &Out) -> Result<(), Error> {
    let listed = client::peers(dev)?;
    if out.json {
        out.value(&json!(Document { peers: Some(listed.peers), ..Document::new(dev, listed.generation) }));
        return Ok(());
    }
    let count = listed.peers.len();
    let plural = if count == 1 { "" } else { "s" };
    out.data(&format!("{}: {count} peer{plural}, generation {}\n", printable(dev), listed.generation));
    if count == 0 {
        out.note(&format!("to add one: segue peer add {} PREFIX remote ADDR", printable(dev)));
        return Ok(());
    }
    let rows = listed.peers.iter().map(|listed| {
        let peer = &listed.peer;
        let mut with = String::new();
        with.extend(peer.vni.map(|vni| format!("vni {vni} ")));
        with.extend(peer.mac.map(|mac| format!("mac {mac} ")));
        with.extend((peer.outer_checksum == Some(false)).then_some("noudpcsum "));
        with.extend((peer.remcsum == Some(true)).then_some("remcsum "));
        let port = peer.port.map_or(String::new(), |port| port.to_string());
        let counters = listed.counters;
        vec![
            peer.key(),
            peer.remote.to_string(),
            peer.encap.map_or(String::new(), |encap| encap.to_string()),
            port,
            counters.sent_packets.to_string(),
            counters.received_packets.to_string(),
            with.trim_end().to_owned(),
        ]
    });
    let heads = ["PREFIX", "REMOTE", "ENCAP", "PORT", "SENT", "RECEIVED", "WITH"].map(str::to_owned).to_vec();
    out.data(&plain_table(heads, rows, &[false, false, false, true, true, true, false]));
    Ok(())
}
