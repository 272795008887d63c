//! Event lines that the process of an instance writes to its standard output, each a JSON object.

use std::collections::BTreeMap;
use std::io;

use segue_control::json;
use segue_control::knobs::Change;
use segue_control::protocol::Failure;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use crate::forward::Forwarded;

/// An event line of an instance: up, down, knobs changed, and others that the service only forwards.
#[derive(Debug)]
pub struct Said<'a> {
    text: &'a str,
    /// The keys of any line.
    pub head: Head,
    /// The keys of an event that is known.
    pub keys: Keys,
}

/// The keys of any line.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Head {
    /// The name of the event; empty for a failure.
    pub event: String,
    /// The failure because of which the process ends.
    pub error: Option<Failure>,
}

/// The keys that the service uses of the events `up`, `down` and `set`; others take no memory.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// Notes about the start, of `up`.
    pub notes: Vec<String>,
    /// Number of seconds that the instance was up, of `down`.
    pub after_s: f64,
    /// The next GRE sequence numbers by interface, of `down`.
    pub sequences: BTreeMap<String, u32>,
    /// The changes of knobs, of `set`.
    pub changed: Vec<Change>,
}

impl<'a> Said<'a> {
    /// Reads a line, without its end; `None` where it is no JSON object, such as a message of a library.
    ///
    /// # Errors
    /// Where the object is no event, or would take many times the memory of its text.
    pub fn read(line: &'a [u8]) -> Result<Option<Said<'a>>, serde_json::Error> {
        if !line.trim_ascii_start().starts_with(b"{") {
            return Ok(None);
        }
        let head: Head = match json::read(line) {
            Err(error) if !error.is_data() => return Ok(None),
            read => read?,
        };
        // Another event may have anything under the same names.
        let is_known = matches!(head.event.as_str(), "up" | "down" | "set");
        let keys = if is_known { json::read(line)? } else { Keys::default() };
        let text = std::str::from_utf8(line).map_err(serde_json::Error::custom)?;
        let said = Said { text, head, keys };
        // Keys that are not used here are forwarded, so they must be such as others can read.
        serde_json::to_writer(io::sink(), &said.with(&[]))?;
        Ok(Some(said))
    }

    /// Returns the event with further keys, in the order of the alphabet.
    pub fn with<'b>(&'b self, added: &'b [(&'static str, Value)]) -> Forwarded<'b> {
        Forwarded::new(self.text, added)
    }
}

#[cfg(test)]
mod tests {
    use segue_control::model::{Instance, Port};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_down_event_of_a_large_instance_is_taken_and_forwarded_unchanged_but_for_the_added_keys() {
        let names = || (0..2000).map(|number| format!("sg{number}"));
        let instance = Instance { ports: names().map(|name| (name, Port::default())).collect(), ..Instance::default() };
        let sequences: BTreeMap<String, u32> = names().zip(0xffff_0000..).collect();
        let (schema, t) = ("segue.tunnel/1", "2026-11-27T00:00:00Z");
        let line = json!({
            "schema": schema, "event": "down", "t": t, "after_s": 2.5, "instance": instance, "sequences": sequences,
        });
        let line = line.to_string();
        let said = Said::read(line.as_bytes()).unwrap().unwrap();
        assert_eq!((said.head.event.as_str(), said.keys.after_s), ("down", 2.5));
        assert_eq!(said.keys.sequences, sequences);
        let added = [("handover", json!(true)), ("instance_name", json!("sg0"))];
        let forwarded = serde_json::to_string(&said.with(&added)).unwrap();
        let with = line.replacen(r#","instance":"#, r#","handover":true,"instance":"#, 1);
        let with =
            with.replacen(r#","schema":"segue.tunnel/1""#, r#","instance_name":"sg0","schema":"segue.tunnel/1""#, 1);
        assert!(with.len() > line.len() + 30 && forwarded == with);
    }

    #[test]
    fn small_values_that_become_large_structures_are_refused_and_unknown_ones_take_none() {
        let list = vec!["{}"; 20_000].join(",");
        let dense = format!(r#"{{"event":"set","changed":[{{"name":"","before":0,"value":[{list}]}}]}}"#);
        let error = Said::read(dense.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("too much memory"), "{error}");
        let later = format!(r#"{{"changed":[{list}],"event":"of_later","values":[{list}]}}"#);
        let said = Said::read(later.as_bytes()).unwrap().unwrap();
        assert_eq!((said.head.event.as_str(), said.keys.changed.len()), ("of_later", 0));
        assert_eq!(serde_json::to_string(&said.with(&[])).unwrap(), later);
    }

    #[test]
    fn an_object_that_is_no_event_is_told_from_other_text() {
        for line in [
            r#"{"event":7}"#,
            r#"{"event":"up","notes":{}}"#,
            r#"{"event":"x","event":"y"}"#,
            r#"{"event":"x","later":1e999}"#,
        ] {
            assert!(Said::read(line.as_bytes()).is_err(), "{line}");
        }
        assert!(Said::read(b"{\"event\":\"x\",\"text\":\"\xff\"}").is_err());
        for line in ["", "a warning of a library", "2 warnings", "[x.c:1] a warning", r#"["down"]"#, r#"{"event":"#] {
            assert!(Said::read(line.as_bytes()).is_ok_and(|said| said.is_none()), "{line}");
        }
    }

    #[test]
    fn the_keys_of_each_event_are_read() {
        let said = |line: &'static str| Said::read(line.as_bytes()).unwrap().unwrap();
        let keys = |line| said(line).keys;
        assert_eq!(keys(r#"{"event":"up","notes":["one","two"],"plan":{}}"#).notes, ["one", "two"]);
        let set = keys(r#"{"event":"set","changed":[{"name":"k","before":1,"value":"auto"}]}"#);
        let text = |change: &Change| format!("{}: {} -> {}", change.name, change.before, change.value);
        assert_eq!(set.changed.iter().map(text).collect::<Vec<_>>(), ["k: 1 -> auto"]);
        let failed = said(r#"{"error":{"kind":"system","message":"m","why":null,"hint":"h","os_error":1,"later":[]}}"#);
        let failure = failed.head.error.unwrap();
        assert_eq!((failure.message.as_str(), failure.why, failure.os_error), ("m", None, Some(1)));
    }
}
