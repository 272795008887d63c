//! JSON of other processes, read within a bound of memory: a value of few bytes may stand for a structure of hundreds.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Number of bytes that the structures of the shortest document may take.
const FREE: usize = 32 << 10;
/// Number of bytes that they may take for each byte of the document, in addition: with its texts on top no document
/// takes more than twenty. The keys of segue's own documents are so long that they take less.
const FACTOR: usize = 16;
/// Number of values for which a list takes room at once, and for each later one, since its room doubles.
const LIST: (usize, usize) = (4, 2);
/// Number of entries for which a map takes room at once: a node has eleven, and what links it.
const NODE: usize = 12;
/// Number of entries of a map from which on each takes more room: two and a half places, since a node that is full is
/// split in halves.
const HALF: usize = 6;

/// Reads a document of another process.
///
/// # Errors
/// Where it is none of this type, or its structures would take many times the memory of its text.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let mut document = serde_json::Deserializer::from_slice(text);
    let value = read_within(&mut document, text.len())?;
    document.end()?;
    Ok(value)
}

/// Reads the first document of a stream of them.
///
/// # Errors
/// As of [`read`].
pub fn read_first<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    read_within(&mut serde_json::Deserializer::from_slice(text), text.len())
}

fn read_within<'de, D: Deserializer<'de>, T: DeserializeOwned>(document: D, len: usize) -> Result<T, D::Error> {
    let left = Cell::new(FACTOR.saturating_mul(len).saturating_add(FREE));
    T::deserialize(Counted { of: document, left: &left })
}

/// Takes bytes from those that are left.
fn take<E: Error>(left: &Cell<usize>, bytes: usize) -> Result<(), E> {
    let rest = left.get().checked_sub(bytes);
    left.set(rest.ok_or_else(|| E::custom("its values take too much memory for its length"))?);
    Ok(())
}

/// A part of serde's data model whose values are counted.
struct Counted<'a, T> {
    of: T,
    left: &'a Cell<usize>,
}

/// A visitor of counted values.
struct Counting<'a, V> {
    visitor: V,
    left: &'a Cell<usize>,
    /// Whether the values are fields, whose room is part of their structure, instead of a collection.
    are_fields: bool,
}

/// The counted values of a list, or entries of a map.
struct Values<'a, A> {
    from: A,
    left: &'a Cell<usize>,
    are_fields: bool,
    count: usize,
    /// Size of the last key.
    key: usize,
}

macro_rules! requests {
    ($($name:ident($($word:ident: $kind:ty),*) $are_fields:literal;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, $($word: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
                self.of.$name($($word,)* Counting { visitor, left: self.left, are_fields: $are_fields })
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Counted<'_, D> {
    type Error = D::Error;

    requests! {
        deserialize_any() false;
        deserialize_bool() false;
        deserialize_i8() false;
        deserialize_i16() false;
        deserialize_i32() false;
        deserialize_i64() false;
        deserialize_u8() false;
        deserialize_u16() false;
        deserialize_u32() false;
        deserialize_u64() false;
        deserialize_f32() false;
        deserialize_f64() false;
        deserialize_char() false;
        deserialize_str() false;
        deserialize_string() false;
        deserialize_bytes() false;
        deserialize_byte_buf() false;
        deserialize_option() false;
        deserialize_unit() false;
        deserialize_unit_struct(name: &'static str) false;
        deserialize_newtype_struct(name: &'static str) false;
        deserialize_seq() false;
        deserialize_tuple(len: usize) true;
        deserialize_tuple_struct(name: &'static str, len: usize) true;
        deserialize_map() false;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) true;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) false;
        deserialize_identifier() false;
        deserialize_ignored_any() false;
    }
}

macro_rules! scalars {
    ($($name:ident: $kind:ty;)*) => {
        $(
            fn $name<E: Error>(self, value: $kind) -> Result<V::Value, E> {
                self.visitor.$name(value)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Counting<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    // JSON has no other ones.
    scalars! {
        visit_bool: bool;
        visit_i64: i64;
        visit_u64: u64;
        visit_f64: f64;
        visit_str: &str;
        visit_borrowed_str: &'de str;
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Counted { of: from, left: self.left })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Counted { of: from, left: self.left })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        let Counting { visitor, left, are_fields } = self;
        visitor.visit_seq(Values { from, left, are_fields, count: 0, key: 0 })
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        let Counting { visitor, left, are_fields } = self;
        visitor.visit_map(Values { from, left, are_fields, count: 0, key: 0 })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Counted { of: from, left: self.left })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Counted<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.of.deserialize(Counted { of: from, left: self.left })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Values<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let found = self.from.next_element_seed(Counted { of: seed, left: self.left })?;
        if found.is_some() && !self.are_fields {
            let places = if self.count == 0 { LIST.0 } else { LIST.1 };
            take::<A::Error>(self.left, places * size_of::<S::Value>())?;
            self.count += 1;
        }
        Ok(found)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Values<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.key = size_of::<S::Value>();
        self.from.next_key_seed(Counted { of: seed, left: self.left })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if !self.are_fields {
            let size = self.key + size_of::<S::Value>();
            let bytes = match self.count {
                0 => NODE * size,
                count if count < HALF => 0,
                _ => 2 * size + size / 2,
            };
            take::<A::Error>(self.left, bytes)?;
            self.count += 1;
        }
        self.from.next_value_seed(Counted { of: seed, left: self.left })
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Counted<'a, A> {
    type Error = A::Error;
    type Variant = Counted<'a, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, of) = self.of.variant_seed(Counted { of: seed, left: self.left })?;
        Ok((name, Counted { of, left: self.left }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Counted<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.of.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.of.newtype_variant_seed(Counted { of: seed, left: self.left })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.of.tuple_variant(len, Counting { visitor, left: self.left, are_fields: true })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.of.struct_variant(fields, Counting { visitor, left: self.left, are_fields: true })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::knobs::{Knob, Setting};
    use crate::model::{Flow, Instance, Port, Seen, Tunnel, Worker};
    use crate::peers::{Listed, ListedPeer, Peer, PeerCounters};
    use crate::protocol::{Reloaded, Response, ServiceResponse};

    /// Returns an answer of an instance with the given value of a key.
    fn instance(key: &str, value: &str) -> String {
        format!(r#"{{"instance":{{"name":"","kind":"","pid":1,"uptime_s":1,"{key}":{value}}}}}"#)
    }

    #[test]
    fn small_values_that_become_large_structures_are_refused() {
        let list = |one: &str| format!("[{}]", vec![one; 20_000].join(","));
        let map = |one: &str| {
            let entries: Vec<String> = (0..20_000).map(|number| format!(r#""{number:x}":{one}"#)).collect();
            format!("{{{}}}", entries.join(","))
        };
        for line in [
            instance("health", &list(r#"[""]"#)),
            instance("workers", &list(r#"{"id":0,"a":0}"#)),
            instance("tunnels", &map(r#"["","","",0,"",0,0]"#)),
            instance("reasons", &map(r#"{"a":""}"#)),
            format!(r#"{{"knobs":{}}}"#, list(r#"["",0,0,0,0,[""],"",""]"#)),
        ] {
            let error = Response::parse(line.as_bytes()).expect_err(&line[..60]).to_string();
            assert!(error.contains("too much memory"), "{error}");
        }
        let line = format!(r#"{{"refused":{{"text":"","error":{}}}}}"#, list("{}"));
        let error = ServiceResponse::parse(line.as_bytes()).expect_err("a tree").to_string();
        assert!(error.contains("too much memory"), "{error}");
        // What is not known is skipped, and takes none.
        assert!(Response::parse(instance("of_later", &list("{}")).as_bytes()).is_ok());
        assert!(read::<Value>(b"[1] 2").is_err(), "something follows");
    }

    /// Returns an instance of many tunnels with the given counters in each map.
    fn busy(count: usize, counters: &[&str]) -> Instance {
        let counts = || -> BTreeMap<String, u64> { counters.iter().map(|name| ((*name).to_owned(), 1)).collect() };
        let stages = || -> BTreeMap<String, Seen> {
            counters.iter().map(|name| ((*name).to_owned(), Seen::default())).collect()
        };
        let port = || Port {
            receive: Flow { packets: 1, ..Flow::default() },
            drops: counts(),
            flushes: counts(),
            refusals: counts(),
            mismatches: counts(),
            fallbacks: counts(),
            stages: stages(),
            gso: counts(),
            remcsum: counts(),
            napi: counts(),
            fastpath: counts(),
            left: counts(),
            numbers: counts(),
            ..Port::default()
        };
        let name = |number: usize| format!("sg{number}");
        let worker = |id| Worker { id, counters: counts(), ports: BTreeMap::new() };
        let mut made = Instance { workers: (0..8).map(worker).collect(), ..Instance::default() };
        made.ports = (0..count).map(|number| (name(number), port())).collect();
        made.tunnels = (0..count).map(|number| (name(number), Tunnel::default())).collect();
        made.recent = Some(made.recent_since(&Instance::default(), 1.0));
        made
    }

    #[test]
    fn long_answers_of_segue_are_read_whole() {
        for counters in [&[][..], &["ecn"], &["too_big", "bad_csum", "outer_csum"]] {
            for count in [1, 2, 12, 2000] {
                let line = Response::Instance(Box::new(busy(count, counters))).line();
                let read = Response::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{count}: {error}"));
                assert_eq!(read.line(), line);
            }
        }
        let peer = Peer::new("::/0".parse().unwrap(), "::1".parse().unwrap());
        let listed = ListedPeer { peer, counters: PeerCounters::default() };
        let listed = Listed { generation: 1, peers: vec![listed; 20_000], ..Listed::default() };
        let line = Response::Peers(Some(Box::new(listed))).line();
        assert_eq!(Response::parse(line.as_bytes()).unwrap().line(), line);
        let number = Setting::Number(1);
        let (name, unit, help) = ("net.gro.dev.sg0.enable_gro".to_owned(), String::new(), "Joins packets.".to_owned());
        let (value, default, min, max, values) = (number.clone(), number, Some(0), Some(1), vec!["a".to_owned()]);
        let knob = Knob { name, value, default, min, max, values, unit, help, fixed: None, needs: None };
        let line = Response::Knobs(vec![knob; 20_000]).line();
        assert_eq!(Response::parse(line.as_bytes()).unwrap().line(), line);
        let unchanged = (0..20_000).map(|number| format!("t{number}")).collect();
        let line = ServiceResponse::Reloaded(Box::new(Reloaded { unchanged, ..Reloaded::default() })).line();
        assert_eq!(ServiceResponse::parse(line.as_bytes()).unwrap().line(), line);
    }
}
