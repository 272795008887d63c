//! Event lines of other processes, forwarded with further keys. They are written while they are read, so that no line
//! takes more memory than its text.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{self, Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

/// An event line with further keys, written in the form of any serializer.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded<'a> {
    text: &'a str,
    added: &'a [(&'static str, Value)],
}

impl<'a> Forwarded<'a> {
    /// Adds keys to the JSON object `text`, which keep the order of its keys: that of the alphabet, in which they are
    /// given. What the object itself has under these keys is left out.
    pub fn new(text: &'a str, added: &'a [(&'static str, Value)]) -> Forwarded<'a> {
        Forwarded { text, added }
    }
}

impl Serialize for Forwarded<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut document = serde_json::Deserializer::from_str(self.text);
        // A line that is no object is refused.
        let written = Deserializer::deserialize_map(&mut document, Copying { to, added: self.added });
        let written = written.and_then(|written| document.end().map(|()| written));
        written.map_err(ser::Error::custom)
    }
}

/// A value that is written once, while it is read.
struct Copied<D>(Cell<Option<D>>);

impl<'de, D: Deserializer<'de>> Serialize for Copied<D> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.take() {
            Some(from) => from.deserialize_any(Copying { to, added: &[] }).map_err(ser::Error::custom),
            None => Err(ser::Error::custom("a value that was written already")),
        }
    }
}

/// A visitor that writes what it visits, and further keys if that is an object.
struct Copying<'a, S> {
    to: S,
    added: &'a [(&'static str, Value)],
}

macro_rules! scalars {
    ($($visit:ident $serialize:ident $kind:ty;)*) => {
        $(
            fn $visit<E: de::Error>(self, value: $kind) -> Result<S::Ok, E> {
                self.to.$serialize(value).map_err(E::custom)
            }
        )*
    };
}

impl<'de, S: Serializer> Visitor<'de> for Copying<'_, S> {
    type Value = S::Ok;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    // JSON has no other ones.
    scalars! {
        visit_bool serialize_bool bool;
        visit_i64 serialize_i64 i64;
        visit_u64 serialize_u64 u64;
        visit_f64 serialize_f64 f64;
        visit_str serialize_str &str;
    }

    fn visit_unit<E: de::Error>(self) -> Result<S::Ok, E> {
        self.to.serialize_unit().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<S::Ok, A::Error> {
        let mut to = self.to.serialize_seq(None).map_err(A::Error::custom)?;
        while from.next_element_seed(Element(&mut to))?.is_some() {}
        to.end().map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<S::Ok, A::Error> {
        let mut to = self.to.serialize_map(None).map_err(A::Error::custom)?;
        let mut added = self.added.iter().peekable();
        while let Some(key) = from.next_key::<String>()? {
            while let Some((name, value)) = added.next_if(|(name, _)| *name < key.as_str()) {
                to.serialize_entry(name, value).map_err(A::Error::custom)?;
            }
            if self.added.iter().any(|(name, _)| *name == key) {
                from.next_value::<IgnoredAny>()?;
            } else {
                to.serialize_key(&key).map_err(A::Error::custom)?;
                from.next_value_seed(Member(&mut to))?;
            }
        }
        for (name, value) in added {
            to.serialize_entry(name, value).map_err(A::Error::custom)?;
        }
        to.end().map_err(A::Error::custom)
    }
}

/// The place of the next value of a list.
struct Element<'a, L>(&'a mut L);

impl<'de, L: SerializeSeq> DeserializeSeed<'de> for Element<'_, L> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.0.serialize_element(&Copied(Cell::new(Some(from)))).map_err(D::Error::custom)
    }
}

/// The place of the value of the last key of an object.
struct Member<'a, M>(&'a mut M);

impl<'de, M: SerializeMap> DeserializeSeed<'de> for Member<'_, M> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.0.serialize_value(&Copied(Cell::new(Some(from)))).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn added_keys_stand_where_those_of_a_tree_would_and_the_rest_is_as_in_a_tree() {
        let added = [("handover", json!(true)), ("instance_name", json!("sg0"))];
        for text in [
            r#"{"after_s":1.5,"event":"x","instance":{"a":[[],{}],"b":"\u0001\"\u00e4"},"name":null}"#,
            r#"{"event":"x","z":{"a":[{"b":1}]}}"#,
            r#"{"later":[-1,2,18446744073709551615,1e300,0.25,false,true]}"#,
            r#"{"handover":[1,{}],"instance_name":"other","z":1}"#,
            r#"{"a":"before them"}"#,
            "{}",
        ] {
            let mut tree: Value = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&Forwarded::new(text, &[])).unwrap(), tree.to_string());
            added.iter().for_each(|(name, value)| tree[*name] = value.clone());
            let forwarded = Forwarded::new(text, &added);
            assert_eq!(serde_json::to_string(&forwarded).unwrap(), tree.to_string());
            assert_eq!(serde_json::to_string_pretty(&forwarded).unwrap(), format!("{tree:#}"));
        }
    }

    #[test]
    fn what_is_no_object_or_could_not_be_read_by_others_is_refused() {
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(1000), "]".repeat(1000));
        for text in ["", "7", "[]", "{} {}", r#"{"a":1e999}"#, r#"{"a":"\ud800"}"#, "{\"a\":\"\n\"}", &deep] {
            assert!(serde_json::to_string(&Forwarded::new(text, &[])).is_err(), "{text}");
        }
    }
}
