use segue_control::peers::Table;

use crate::resources::bounded;

/// Number of bytes that the reader may hold for the shortest document: the messages of an error.
const FREE: usize = 64 << 10;
/// Number of bytes of memory for each byte of a document: a value of two bytes becomes a node of some tens of bytes.
const GROWTH: usize = 100;

/// Reads an arbitrary document as the peer table of a tunnel: an accepted one is written as an equivalent document
/// without the invalid entries, a refused one has a message of a few lines.
pub fn peers(data: &[u8]) {
    bounded(data.len(), FREE + GROWTH * data.len(), || match Table::read(data, "peers.json") {
        Ok(mut table) => {
            table.unread.clear();
            let text = serde_json::to_vec(&table).expect("a table has no keys that JSON cannot have");
            assert_eq!(Table::read(&text, "again").ok(), Some(table));
        }
        Err(error) => {
            let text = format!("{error:?}");
            assert!(text.len() < 4000 + 8 * data.len(), "{text}");
        }
    });
}
