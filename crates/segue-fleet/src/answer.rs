//! The answers of etcd's gateway: of a document only the fields that the client uses take memory, within a bound
//! ([`segue_control::json`]). A field of another type than etcd's counts as left out.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use segue_control::json;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::roster::Record;

/// The document of an answer or of a message. The gateway omits fields that are 0, false or empty.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) header: Option<Header>,
    kvs: Option<Vec<Kv>>,
    pub(crate) more: Field,
    pub(crate) succeeded: Field,
    pub(crate) token: Field,
    #[serde(rename = "ID")]
    pub(crate) id: Field,
    pub(crate) result: Option<Message>,
    error: Option<Failure>,
    message: Field,
    code: Field,
    grpc_code: Field,
}

/// The header of an answer.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    /// The id of the cluster, which has 64 bits without a sign.
    pub(crate) cluster_id: Field,
    pub(crate) revision: Field,
}

/// The message of a stream: of a watch, or the answer to a keepalive.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Message {
    pub(crate) header: Option<Header>,
    #[serde(rename = "TTL")]
    pub(crate) ttl: Field,
    pub(crate) created: Field,
    pub(crate) canceled: Field,
    pub(crate) cancel_reason: Field,
    pub(crate) compact_revision: Field,
    pub(crate) events: Option<Vec<Event>>,
}

/// A change of a key.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) kind: Field,
    pub(crate) kv: Option<Kv>,
}

/// An entry of the registry, with its key.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Kv {
    pub(crate) key: Field,
    value: Field,
    create_revision: Field,
    pub(crate) mod_revision: Field,
    lease: Field,
}

/// A field with one value.
#[derive(Debug, Default)]
pub(crate) enum Field {
    #[default]
    Missing,
    Flag(bool),
    Number(i64),
    Text(String),
}

/// A failure that a member reports in place of an answer: a text, or fields.
#[derive(Debug)]
enum Failure {
    Text(String),
    Fields(Box<Answer>),
}

impl Answer {
    /// Parses a document.
    pub(crate) fn read(text: &[u8]) -> Result<Answer, serde_json::Error> {
        json::read(text)
    }

    /// Parses the first document of a stream.
    pub(crate) fn first(text: &[u8]) -> Result<Answer, serde_json::Error> {
        json::read_first(text)
    }

    /// Takes the entries.
    pub(crate) fn records(self) -> Vec<Record> {
        self.kvs.unwrap_or_default().into_iter().map(Record::from).collect()
    }

    /// Returns the status code and the text of a failure, where the document has the field `error`.
    pub(crate) fn failure(&self) -> Option<(i64, &str)> {
        // Version 3.4 says `error`, `message` and `code`; streams say `grpc_code`, in an object.
        self.error.as_ref().map(|error| match error {
            Failure::Fields(fields) => fields.said(),
            Failure::Text(_) => self.said(),
        })
    }

    /// Returns the same where the document has the field `message`, too.
    pub(crate) fn failure_or_message(&self) -> Option<(i64, &str)> {
        self.failure().or_else(|| self.message.text().map(|_| self.said()))
    }

    fn said(&self) -> (i64, &str) {
        let code = [&self.code, &self.grpc_code].map(Field::number).into_iter().find(|code| *code != 0).unwrap_or(0);
        let text = match &self.error {
            Some(Failure::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        (code, self.message.text().or(text).unwrap_or("it refused"))
    }
}

impl From<Kv> for Record {
    fn from(kv: Kv) -> Record {
        Record {
            key: kv.key.decoded(),
            value: kv.value.decoded(),
            created: kv.create_revision.number(),
            modified: kv.mod_revision.number(),
            lease: kv.lease.number(),
        }
    }
}

impl Field {
    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Field::Flag(true))
    }

    /// Returns an integer; the gateway writes it as a string.
    pub(crate) fn number(&self) -> i64 {
        match self {
            Field::Number(number) => *number,
            Field::Text(text) => text.parse().unwrap_or(0),
            Field::Missing | Field::Flag(_) => 0,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Field::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bytes of a text in base64.
    pub(crate) fn decoded(&self) -> Vec<u8> {
        self.text().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Field, D::Error> {
        from.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Field, E> {
        Ok(Field::Flag(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Field, E> {
        Ok(Field::Number(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Field, E> {
        Ok(i64::try_from(value).map_or(Field::Missing, Field::Number))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Field, E> {
        Ok(Field::Missing)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Field, E> {
        Ok(Field::Text(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Field, E> {
        Ok(Field::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Field, A::Error> {
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Missing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Field, A::Error> {
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Missing)
    }
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Failure, D::Error> {
        from.deserialize_any(FailureVisitor)
    }
}

struct FailureVisitor;

impl<'de> Visitor<'de> for FailureVisitor {
    type Value = Failure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or an object")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Failure, E> {
        Ok(Failure::Text(value.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Failure, A::Error> {
        Answer::deserialize(MapAccessDeserializer::new(from)).map(|fields| Failure::Fields(Box::new(fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Answer {
        Answer::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn numbers_are_strings_or_left_out_and_what_has_another_type_counts_as_left_out() {
        for (text, number) in [
            (r#"{"ID":"42"}"#, 42),
            (r#"{"ID":42}"#, 42),
            ("{}", 0),
            (r#"{"ID":"many"}"#, 0),
            (r#"{"ID":[{"a":1}]}"#, 0),
        ] {
            assert_eq!(read(text).id.number(), number, "{text}");
        }
        for text in [r#"{"more":{"a":[1.5,-1]},"kvs":null,"header":null}"#, r#"{"more":"true","new":{"a":7}}"#] {
            let answer = read(text);
            assert!(!answer.more.is_true() && answer.failure_or_message().is_none() && answer.records().is_empty());
        }
    }

    #[test]
    fn a_failure_is_a_text_or_an_object() {
        for (text, failure) in [
            (r#"{"error":"a","message":"b","code":7}"#, Some((7, "b"))),
            (r#"{"error":"a","code":7}"#, Some((7, "a"))),
            (r#"{"error":{"grpc_code":11,"message":"b"}}"#, Some((11, "b"))),
            (r#"{"error":{"error":"a","code":"3"}}"#, Some((3, "a"))),
            (r#"{"error":{}}"#, Some((0, "it refused"))),
            (r#"{"code":7}"#, None),
        ] {
            assert_eq!(read(text).failure(), failure, "{text}");
        }
        assert_eq!(read(r#"{"message":"b","code":7}"#).failure_or_message(), Some((7, "b")));
    }

    #[test]
    fn a_long_page_is_read_and_small_values_that_become_large_structures_are_refused() {
        let kv = r#"{"key":"L24vc3VibmV0cy8xOTguMTkuNS4wLTI0","create_revision":"5","mod_revision":"5","version":"1","value":"e30="}"#;
        let page = |one: &str| format!(r#"{{"kvs":[{}]}}"#, vec![one; 20_000].join(","));
        assert_eq!(read(&page(kv)).records().len(), 20_000);
        let gone = r#"{"type":"DELETE","kv":{"key":"L24v"}}"#;
        let events = format!(r#"{{"result":{{"events":[{}]}}}}"#, vec![gone; 20_000].join(","));
        assert_eq!(read(&events).result.and_then(|result| result.events).unwrap().len(), 20_000);
        // What is not known is skipped, and takes none.
        assert_eq!(read(&page(r#"{"key":"L24vc3VibmV0cy8","a":[[],{"b":1},[]]}"#)).records().len(), 20_000);
        let error = Answer::read(page("{}").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("too much memory"), "{error}");
        assert!(Answer::first(br#"{"ID":"1"}{"ID":"2"}"#).is_ok_and(|answer| answer.id.number() == 1));
    }
}
