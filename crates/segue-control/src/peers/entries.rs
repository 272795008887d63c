//! The text form of a peer table, read one entry at a time.

use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{MOST, MOST_NAMED, Peer, RefusedPeer, Table};
use crate::error::{Error, Kind, printable, printable_line};

/// The names of a peer's keys.
const KEYS: [&str; 9] = ["prefix", "match", "remote", "encap", "port", "vni", "mac", "outer_checksum", "remcsum"];
/// Number of bytes of a document for each entry that is kept, after the first [`MOST_NAMED`]: less than those of the
/// shortest peer that a table may have, and enough for what is noted of an entry that is none.
const ENTRY_LEN: usize = 24;

impl Table {
    /// Reads a table from the text of the file `name`. An entry that is no peer is left out, and noted with its number,
    /// its prefix and the rule.
    ///
    /// # Errors
    /// Where the document as a whole is none, or has too many entries: more than a tunnel may have, or more than its
    /// length has room for.
    pub fn read(text: &[u8], name: &str) -> Result<Table, Error> {
        let hint = r#"{"peers":[{"prefix":"198.19.1.0/24","remote":"198.18.0.2"}]}"#;
        let wrong = |message: String, why: String| {
            Error::new(Kind::BadValue, format!("{name}: {message}"), hint).why(printable_line(&why))
        };
        let most = MOST.min(MOST_NAMED + text.len() / ENTRY_LEN);
        let mut json = serde_json::Deserializer::from_slice(text);
        let document = Reading::<Document>::within(most)
            .deserialize(&mut json)
            .and_then(|document| json.end().map(|()| document))
            .map_err(|error| wrong("this is no JSON document".to_owned(), error.to_string()))?;
        let Document::Table { generation, entries, unknown } = document else {
            return Err(wrong("this is no table".to_owned(), "a table is a JSON object".to_owned()));
        };
        if let Some(key) = unknown {
            let why = "the keys are `generation` and `peers`".to_owned();
            return Err(wrong(format!("unknown key `{}`", printable(&key)), why));
        }
        let generation = match generation {
            None | Some(Value::Null) => None,
            Some(number) => match number.as_u64() {
                Some(number) => Some(number),
                None => {
                    let why = "it is a whole number from 0 on".to_owned();
                    return Err(wrong("`generation` is wrong".to_owned(), why));
                }
            },
        };
        let Entries::List { count, peers, unread } = entries else {
            return Err(wrong("`peers` is missing".to_owned(), "it is a list of objects".to_owned()));
        };
        if count > most {
            let why = if count > MOST {
                format!("at most {MOST} are in one table")
            } else {
                format!("most are none: these {} bytes have room for {most}", text.len())
            };
            return Err(wrong(format!("{count} peers are too many"), why));
        }
        Ok(Table { generation, peers, unread })
    }
}

/// Parses an entry of the document by the values of its known keys and the first unknown one.
fn peer(keys: Map<String, Value>, unknown: Option<String>) -> Result<Peer, String> {
    if let Some(key) = unknown {
        return Err(format!("unknown key `{}`: the keys are {}", printable(&key), KEYS.join(", ")));
    }
    if !keys.contains_key("remote") {
        return Err("`remote` is missing".to_owned());
    }
    // The errors of single values do not name their keys.
    for key in keys.keys() {
        let mut alone = Map::from_iter([("remote".to_owned(), Value::from("::1"))]);
        alone.insert(key.clone(), keys[key].clone());
        if let Err(error) = serde_json::from_value::<Peer>(Value::Object(alone)) {
            return Err(format!("`{key}`: {error}"));
        }
    }
    serde_json::from_value(Value::Object(keys)).map_err(|error| error.to_string())
}

/// A part of the document. What it has no use for is skipped: an empty list stands for a list, an empty object for an
/// object.
trait Part: Sized {
    /// Returns the part that a value is without what is inside of it.
    fn shallow(value: Value) -> Self;

    /// Reads a list, of which `most` entries are kept.
    fn list<'de, A: SeqAccess<'de>>(mut from: A, _most: usize) -> Result<Self, A::Error> {
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::shallow(Value::Array(Vec::new())))
    }

    /// Reads an object, of whose list `most` entries are kept.
    fn object<'de, A: MapAccess<'de>>(mut from: A, _most: usize) -> Result<Self, A::Error> {
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::shallow(Value::Object(Map::new())))
    }
}

/// The value of a single key; a list or an object is none.
impl Part for Value {
    fn shallow(value: Value) -> Value {
        value
    }
}

/// The whole document.
enum Document {
    Other,
    Table {
        generation: Option<Value>,
        entries: Entries,
        /// The first key that no table has.
        unknown: Option<String>,
    },
}

impl Part for Document {
    fn shallow(_: Value) -> Document {
        Document::Other
    }

    fn object<'de, A: MapAccess<'de>>(mut from: A, most: usize) -> Result<Document, A::Error> {
        let (mut generation, mut entries, mut unknown) = (None, Entries::Other, None);
        while let Some(key) = from.next_key::<String>()? {
            match key.as_str() {
                "generation" => generation = Some(from.next_value_seed(Reading::<Value>::within(most))?),
                "peers" => entries = from.next_value_seed(Reading::<Entries>::within(most))?,
                _ => {
                    from.next_value::<IgnoredAny>()?;
                    unknown.get_or_insert(key);
                }
            }
        }
        Ok(Document::Table { generation, entries, unknown })
    }
}

/// The value of the key `peers`.
enum Entries {
    Other,
    List { count: usize, peers: Vec<Peer>, unread: Vec<RefusedPeer> },
}

impl Part for Entries {
    fn shallow(_: Value) -> Entries {
        Entries::Other
    }

    fn list<'de, A: SeqAccess<'de>>(mut from: A, most: usize) -> Result<Entries, A::Error> {
        let (mut count, mut peers, mut unread) = (0, Vec::new(), Vec::new());
        while count < most
            && let Some(entry) = from.next_element_seed(Reading::<Entry>::within(most))?
        {
            count += 1;
            match entry.0 {
                Ok(peer) => peers.push(peer),
                Err((key, why)) => unread.push(RefusedPeer { number: count as u64, key, why }),
            }
        }
        while from.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Entries::List { count, peers, unread })
    }
}

/// One entry of the list: a peer, or the key and the rule of one that is none.
struct Entry(Result<Peer, (String, String)>);

impl Part for Entry {
    fn shallow(_: Value) -> Entry {
        Entry(Err((String::new(), "a peer is a JSON object".to_owned())))
    }

    fn object<'de, A: MapAccess<'de>>(mut from: A, most: usize) -> Result<Entry, A::Error> {
        let (mut keys, mut unknown) = (Map::new(), None);
        while let Some(key) = from.next_key::<String>()? {
            if KEYS.contains(&key.as_str()) {
                keys.insert(key, from.next_value_seed(Reading::<Value>::within(most))?);
            } else {
                from.next_value::<IgnoredAny>()?;
                unknown.get_or_insert(key);
            }
        }
        let key = keys.get("prefix").or(keys.get("match")).and_then(Value::as_str).map(printable);
        Ok(Entry(peer(keys, unknown).map_err(|why| (key.unwrap_or_default(), printable_line(&why)))))
    }
}

/// The reading of a part.
struct Reading<P> {
    most: usize,
    part: PhantomData<P>,
}

impl<P> Reading<P> {
    fn within(most: usize) -> Reading<P> {
        Reading { most, part: PhantomData }
    }
}

impl<'de, P: Part> DeserializeSeed<'de> for Reading<P> {
    type Value = P;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<P, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, P: Part> Visitor<'de> for Reading<P> {
    type Value = P;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<P, E> {
        Ok(P::shallow(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<P, E> {
        Ok(P::shallow(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<P, E> {
        Ok(P::shallow(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<P, E> {
        Ok(P::shallow(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<P, E> {
        Ok(P::shallow(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<P, E> {
        Ok(P::shallow(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<P, A::Error> {
        P::list(from, self.most)
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<P, A::Error> {
        P::object(from, self.most)
    }
}
