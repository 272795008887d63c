//! The peer table of a tunnel on the control socket: a JSON document that replaces it as a whole, and changes of single
//! entries.

mod entries;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use segue_host::prefix::Prefix;
use serde::{Deserialize, Serialize};

/// Largest number of peers of one tunnel.
pub const MOST: usize = 32_768;
/// Largest number of refused peers that an answer or a state names.
pub const MOST_NAMED: usize = 100;

/// An Ethernet address, `02:00:00:00:00:01` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address that stands for groups and for unknown addresses, as in a forwarding table of Linux.
    pub const ZERO: Mac = Mac([0; 6]);

    /// Returns whether the address is that of one station: neither a group's nor zero.
    pub fn is_station(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Mac, Self::Err> {
        let wrong = "expected an Ethernet address such as 02:00:00:00:00:01";
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(wrong)?;
            let is_hex = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_hex).ok_or(wrong)?;
        }
        if parts.next().is_some() { Err(wrong) } else { Ok(Mac(bytes)) }
    }
}

/// The encapsulation towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encap {
    /// An Ethernet header, VXLAN and UDP.
    Vxlan,
    /// Encapsulation in GUE over UDP.
    Gue,
    /// UDP alone, as flannel's backend `udp` has it.
    Fou,
}

impl Encap {
    /// Every encapsulation, in the order of the documentation.
    pub const ALL: [Encap; 3] = [Encap::Vxlan, Encap::Gue, Encap::Fou];

    /// Returns the encapsulation's keyword.
    pub fn name(self) -> &'static str {
        match self {
            Encap::Vxlan => "vxlan",
            Encap::Gue => "gue",
            Encap::Fou => "fou",
        }
    }
}

impl fmt::Display for Encap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A peer of the table: the inner addresses behind it, and the encapsulation to reach it. What is left out has the
/// tunnel's own value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The inner addresses that are behind the peer, such as `198.19.59.0/24`; of several prefixes the longest counts.
    /// Required, unless `match` is there.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<Prefix>,
    /// The inner Ethernet address that is behind the peer, in a tunnel that carries Ethernet frames. Zero stands for
    /// groups and for addresses that no peer has: several peers may have it, and each such frame goes to all of them.
    #[serde(default, with = "text", rename = "match", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub station: Option<Mac>,
    /// The outer address of the peer.
    pub remote: IpAddr,
    /// The encapsulation; may be left out where the tunnel has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap: Option<Encap>,
    /// The UDP port of the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The network identifier, with `vxlan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The Ethernet address of the peer's end of the tunnel, the destination of the frames inside of `vxlan`.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub mac: Option<Mac>,
    /// Whether datagrams to the peer carry an outer UDP checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_checksum: Option<bool>,
    /// Whether inner checksums are left to the peer (remote checksum offload).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remcsum: Option<bool>,
}

impl Peer {
    /// Creates a peer with the tunnel's own values.
    pub fn new(prefix: Prefix, remote: IpAddr) -> Peer {
        Peer::at(Key::Prefix(prefix), remote)
    }

    /// Creates a peer that is looked up by `key`, with the tunnel's own values.
    pub fn at(key: Key, remote: IpAddr) -> Peer {
        let (prefix, station) = match key {
            Key::Prefix(prefix) => (Some(prefix), None),
            Key::Match(station) => (None, Some(station)),
            Key::Flood(_) => (None, Some(Mac::ZERO)),
        };
        Peer {
            prefix,
            station,
            remote,
            encap: None,
            port: None,
            vni: None,
            mac: None,
            outer_checksum: None,
            remcsum: None,
        }
    }

    /// Returns the key by which the peer is looked up, for messages.
    pub fn key(&self) -> String {
        match (self.prefix, self.station) {
            (Some(prefix), _) => prefix.to_string(),
            (None, Some(station)) => station.to_string(),
            (None, None) => "no prefix".to_owned(),
        }
    }
}

/// A peer of a document that the table does not contain, and the rule that it breaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedPeer {
    /// The number of the entry in the document, from 1.
    pub number: u64,
    /// The lookup key of the peer, as the document has it; empty where it has none.
    pub key: String,
    /// Description of the rule that the peer breaks.
    pub why: String,
}

impl fmt::Display for RefusedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedPeer { number, key, why } = self;
        match key.is_empty() {
            true => write!(f, "peer {number}: {why}"),
            false => write!(f, "peer {number} ({key}): {why}"),
        }
    }
}

/// The whole table of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The number of this table. It only grows: a table with a lower one is refused, and one with the present number
    /// must be equal to the present table. Without it the table is the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The peers, in any order.
    pub peers: Vec<Peer>,
    /// Entries that [`read`](Table::read) could not parse as peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub unread: Vec<RefusedPeer>,
}

impl Table {
    /// Returns the number in the document of the peer with this index, from 1.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + use<'_> {
        let unread: BTreeSet<u64> = self.unread.iter().map(|refused| refused.number).collect();
        (1..).filter(move |number| !unread.contains(number))
    }
}

/// A change of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Replaces the whole table, of which each peer is judged by itself.
    Sync(Table),
    /// Adds peers; none of them may be there.
    Add(Vec<Peer>),
    /// Replaces peers, or adds them where they are missing.
    Replace(Vec<Peer>),
    /// Removes peers by their prefix or address; all of them must be there.
    Del(Vec<Key>),
    /// Changes no peer: the file of the table was refused for the given reason. The state says so until the next
    /// change.
    Keep(String),
}

/// The key by which a peer is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Key {
    /// The prefix of the inner addresses.
    Prefix(#[serde(with = "plain")] Prefix),
    /// An inner Ethernet address; to remove, zero stands for all of `Flood`.
    Match(#[serde(with = "plain")] Mac),
    /// The remote of a peer to which frames to groups and to unknown addresses go.
    Flood(IpAddr),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Prefix(prefix) => prefix.fmt(f),
            Key::Match(station) => station.fmt(f),
            Key::Flood(remote) => write!(f, "{} at {remote}", Mac::ZERO),
        }
    }
}

/// The effect of a change on the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// The number of the table afterwards.
    pub generation: u64,
    /// Number of new peers.
    pub added: u64,
    /// Number of peers whose remote, encapsulation or flags have changed.
    pub replaced: u64,
    /// Number of removed peers.
    pub removed: u64,
    /// Number of unchanged peers.
    pub unchanged: u64,
    /// Number of peers of a whole table that are refused; the others are in force.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// The first [`MOST_NAMED`] refused peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_peers: Vec<RefusedPeer>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The counters of a peer; a train counts as one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerCounters {
    /// Number of packets and trains to the peer.
    pub sent_packets: u64,
    /// Number of bytes of the packets and trains to the peer, without outer headers.
    pub sent_bytes: u64,
    /// Number of datagrams from the peer.
    pub received_packets: u64,
    /// Number of bytes of the datagrams from the peer, without outer headers.
    pub received_bytes: u64,
}

/// A peer with its counters. What was left out has its value here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedPeer {
    /// The peer, as the table has it.
    #[serde(flatten)]
    pub peer: Peer,
    /// The counters of the peer since it was added.
    #[serde(flatten)]
    pub counters: PeerCounters,
}

/// The present table of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Listed {
    /// The number of the table; 0 where none was given.
    pub generation: u64,
    /// The peers, sorted by prefix.
    pub peers: Vec<ListedPeer>,
    /// The first [`MOST_NAMED`] peers of the last whole table that are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_peers: Vec<RefusedPeer>,
}

impl Listed {
    /// Returns the table without counters.
    pub fn table(&self) -> Table {
        let peers = self.peers.iter().map(|listed| listed.peer.clone()).collect();
        Table { generation: Some(self.generation), peers, unread: self.refused_peers.clone() }
    }
}

/// Serde module for optional values that have a text form.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

/// Serde module for values that have a text form.
mod plain {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"generation":42,"peers":[
        {"prefix":"198.19.59.0/24","remote":"198.18.0.2","encap":"vxlan","port":8472,"vni":1,"mac":"5a:65:bd:bd:44:bb","outer_checksum":true},
        {"prefix":"198.19.60.0/24","remote":"198.18.0.3","encap":"gue","port":6080,"remcsum":true},
        {"match":"02:00:00:00:00:07","remote":"2001:db8::4","encap":"fou","port":8285}]}"#;

    #[test]
    fn a_table_keeps_its_form_in_json() {
        let table = Table::read(TABLE.as_bytes(), "peers.json").unwrap();
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(text, TABLE.split_whitespace().collect::<String>());
        assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table);
        assert_eq!(table.peers[0].mac, Some(Mac([0x5a, 0x65, 0xbd, 0xbd, 0x44, 0xbb])));
        assert_eq!(table.peers[2].prefix, None);
    }

    #[test]
    fn a_listed_peer_has_the_keys_of_the_table_and_its_counters() {
        let peer = Table::read(TABLE.as_bytes(), "peers.json").unwrap().peers.remove(1);
        let counters = PeerCounters { sent_packets: 3, ..PeerCounters::default() };
        let listed = Listed { generation: 7, peers: vec![ListedPeer { peer, counters }], ..Listed::default() };
        let text = serde_json::to_string(&listed).unwrap();
        assert!(text.contains(r#""prefix":"198.19.60.0/24","remote":"198.18.0.3""#), "{text}");
        assert!(text.contains(r#""sent_packets":3"#), "{text}");
        assert_eq!(serde_json::from_str::<Listed>(&text).unwrap(), listed);
    }

    #[test]
    fn a_wrong_entry_is_named_with_its_rule_and_costs_no_other() {
        for (entry, of, rule) in [
            (r#"{"prefix":"198.19.59.0/33","remote":"198.18.0.2"}"#, "peer 2 (198.19.59.0/33)", "0 to 32"),
            (r#"{"prefix":"198.19.59.0/24"}"#, "peer 2 (198.19.59.0/24)", "`remote` is missing"),
            (r#"{"prefix":"198.19.59.0/24","remote":"there"}"#, "peer 2", "`remote`: "),
            (r#"{"prefix":"::/0","remote":"::1","encap":"ipip"}"#, "peer 2 (::/0)", "`encap`: unknown variant"),
            (r#"{"prefix":"::/0","remote":"::1","port":70000}"#, "peer 2 (::/0)", "`port`: "),
            (r#"{"prefix":"::/0","remote":"::1","mac":"1:2"}"#, "peer 2 (::/0)", "`mac`: expected an Ethernet address"),
            (r#"{"prefix":"::/0","remote":"::1","prot":7}"#, "peer 2 (::/0)", "unknown key `prot`"),
            ("7", "peer 2", "a peer is a JSON object"),
        ] {
            let text = format!(r#"{{"peers":[{{"prefix":"0.0.0.0/0","remote":"198.18.0.2"}},{entry}]}}"#);
            // It costs no other entry its place.
            let text = text
                .replace("}]}", r#"},{"prefix":"::/0","remote":"::2"}]}"#)
                .replace("7]}", r#"7,{"prefix":"::/0","remote":"::2"}]}"#);
            let table = Table::read(text.as_bytes(), "p.json").unwrap();
            assert_eq!((table.peers.len(), table.unread.len()), (2, 1), "{entry}: {table:?}");
            assert_eq!(table.numbers().take(2).collect::<Vec<_>>(), [1, 3]);
            let refused = table.unread[0].to_string();
            assert!(refused.starts_with(of) && refused.contains(rule), "{entry}: {refused}");
        }
        let many = format!(r#"{{"peers":[{}7]}}"#, "7,".repeat(MOST));
        assert_eq!(Table::read(many.as_bytes(), "p.json").unwrap_err().message, "p.json: 32769 peers are too many");
        // Lists and objects inside of an entry are wrong like any other value, and what is twice counts the last time.
        for (value, rule) in
            [("[[1],{}]", "`port`: invalid type: sequence"), (r#"{"a":[1]}"#, "`port`: invalid type: map")]
        {
            let text = format!(r#"{{"peers":[],"peers":[{{"prefix":"::/0","remote":"::1","port":{value}}}]}}"#);
            let table = Table::read(text.as_bytes(), "p.json").unwrap();
            assert!(table.peers.is_empty() && table.unread[0].why.contains(rule), "{table:?}");
        }
        for (text, message) in [
            ("", "p.json: this is no JSON document"),
            ("[]", "p.json: this is no table"),
            (r#"{"generation":-1,"peers":[]}"#, "p.json: `generation` is wrong"),
            (r#"{"generation":1}"#, "p.json: `peers` is missing"),
            (r#"{"peer":[]}"#, "p.json: unknown key `peer`"),
        ] {
            assert_eq!(Table::read(text.as_bytes(), "p.json").unwrap_err().message, message);
        }
    }

    #[test]
    fn entries_for_which_a_document_has_no_room_are_refused_together() {
        let list = |count: usize, entry: &str| format!(r#"{{"peers":[{}]}}"#, vec![entry; count].join(","));
        let table = Table::read(list(MOST_NAMED, "7").as_bytes(), "p.json").unwrap();
        assert_eq!(table.unread.len(), MOST_NAMED);
        for entry in ["7", "{}", r#"{"":0}"#] {
            let error = Table::read(list(1000, entry).as_bytes(), "p.json").unwrap_err();
            assert_eq!(error.message, "p.json: 1000 peers are too many", "{entry}");
            assert!(error.why.is_some_and(|why| why.contains("have room for")), "{entry}");
        }
        // The shortest peers are never too many for their document, and none is lost.
        let table = Table::read(list(MOST, r#"{"prefix":"::/0","remote":"::"}"#).as_bytes(), "p.json").unwrap();
        assert_eq!((table.peers.len(), table.unread.len()), (MOST, 0));
        let table = Table::read(list(5000, r#"{"prefix":"::/0","remote":"a"}"#).as_bytes(), "p.json").unwrap();
        assert_eq!((table.peers.len(), table.unread.len()), (0, 5000));
    }

    #[test]
    fn ethernet_addresses_have_six_bytes_of_two_digits() {
        assert_eq!("5A:65:bd:bd:44:bb".parse(), Ok(Mac([0x5a, 0x65, 0xbd, 0xbd, 0x44, 0xbb])));
        for text in ["", "5a:65:bd:bd:44", "5a:65:bd:bd:44:bb:1", "5a:65:bd:bd:44:b", "+a:65:bd:bd:44:bb"] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert!(
            !Mac([0; 6]).is_station() && !Mac([1, 0, 0, 0, 0, 1]).is_station() && Mac([2, 0, 0, 0, 0, 1]).is_station()
        );
    }
}
