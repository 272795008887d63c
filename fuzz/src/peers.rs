use segue_control::peers::{Change, Encap, Key, Listed, ListedPeer, Peer, PeerCounters, Table};

use crate::resources::bounded;

/// Number of bytes that the reader may hold for the shortest document: the messages of an error.
const FREE: usize = 64 << 10;

/// Reads an arbitrary document as the peer table of a tunnel: an accepted one is written as an equivalent document
/// without the invalid entries, a refused one has a message of a few lines.
pub fn peers(data: &[u8]) {
    match bounded(data.len(), FREE, || Table::read(data, "peers.json")) {
        Ok(mut table) => {
            assert!(table.unread.iter().all(|refused| refused.to_string().contains(&refused.number.to_string())));
            // Each peer has the number of its entry, and a key by which it is looked up.
            for (peer, number) in table.peers.iter().zip(table.numbers()) {
                assert!(number > 0 && table.unread.iter().all(|refused| refused.number != number));
                looks_up(peer);
            }
            table.unread.clear();
            let text = serde_json::to_vec(&table).expect("a table has no keys that JSON cannot have");
            let again = bounded(text.len(), FREE, || Table::read(&text, "again"));
            // Without white space, peers that have a remote end alone may be too many.
            assert!(again.is_err() && text.len() < data.len() || again.ok().as_ref() == Some(&table));
            is_listed(table);
        }
        Err(error) => {
            let text = format!("{error:?}");
            assert!(text.len() < 4000 + 8 * data.len(), "{text}");
        }
    }
}

/// Checks that the keys by which a peer is looked up are equivalent to their text forms.
fn looks_up(peer: &Peer) {
    let keys = [peer.prefix.map(Key::Prefix), peer.station.map(Key::Match), Some(Key::Flood(peer.remote))];
    let keys: Vec<Key> = keys.into_iter().flatten().collect();
    assert_eq!(peer.key(), if keys.len() > 1 { keys[0].to_string() } else { "no prefix".to_owned() });
    for key in &keys {
        let alone = Peer::at(*key, peer.remote);
        let is_station = matches!(key, Key::Match(mac) if mac.is_station());
        assert_eq!((alone.remote, alone.station.is_some_and(|mac| mac.is_station())), (peer.remote, is_station));
    }
    let change = Change::Del(keys);
    let text = serde_json::to_string(&change).expect("keys are texts");
    assert_eq!(serde_json::from_str::<Change>(&text).ok(), Some(change));
    assert!(peer.encap.is_none_or(|encap| Encap::ALL.iter().any(|one| one.to_string() == encap.name())));
}

/// Checks that a table stays what it is as the answer of an instance, which has counters.
fn is_listed(table: Table) {
    let counters = PeerCounters::default();
    let peers = table.peers.iter().map(|peer| ListedPeer { peer: peer.clone(), counters }).collect();
    let listed = Listed { generation: table.generation.unwrap_or(0), peers, refused_peers: Vec::new() };
    let text = serde_json::to_string(&listed).expect("a table has no keys that JSON cannot have");
    assert_eq!(serde_json::from_str::<Listed>(&text).ok().as_ref(), Some(&listed));
    assert_eq!(listed.table(), Table { generation: Some(listed.generation), ..table });
}
