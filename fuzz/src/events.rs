//! Lines of the process of an instance to its supervisor.

use segue_service::supervise::said::Said;
use serde_json::Value;

use crate::resources::{Output, bounded};

/// Number of bytes that a line may hold in addition to those of its text.
const FREE: usize = 64 << 10;

/// Reads an arbitrary line as an event of an instance: an accepted one is forwarded as one line of JSON with the same
/// keys and values and those that the supervisor adds, and nothing but `up`, `down` and `set` has keys of its own.
pub fn event(data: &[u8]) {
    let said = bounded(data.len(), FREE, || Said::read(data));
    let Ok(Some(said)) = said else { return };
    let name = said.head.event.as_str();
    if !matches!(name, "up" | "down" | "set") {
        assert!(said.keys.notes.is_empty() && said.keys.sequences.is_empty() && said.keys.changed.is_empty(), "{name}");
    }
    let added = [("handover", Value::Bool(true)), ("instance_name", Value::from("sg0"))];
    let mut output = Output::default();
    bounded(data.len(), FREE, || serde_json::to_writer(&mut output, &said.with(&added)).expect("a readable line"));
    output.check(data.len(), 100);
    let line = serde_json::to_string(&said.with(&added)).expect("a readable line");
    assert!(!line.contains('\n'), "one event, one line");
    let again = Said::read(line.as_bytes());
    // Escapes may make a line longer than its text, never unreadable.
    let again = again.unwrap_or_else(|error| panic!("{error}: {line}")).expect("an event");
    assert_eq!((again.head.event.as_str(), &again.keys.notes), (name, &said.keys.notes));
    assert_eq!(again.keys.sequences, said.keys.sequences);
    let parsed: Value = serde_json::from_str(&line).expect("JSON");
    let values = |text: &[u8]| serde_json::from_slice::<serde_json::Map<String, Value>>(text).expect("an object");
    let mut expected = values(data);
    expected.extend(added.map(|(key, value)| (key.to_owned(), value)));
    assert!(is_alike(&parsed, &Value::Object(expected)), "{line}");
}

/// Returns whether two values are the same except for the last digit of a fraction, which may be another one after it
/// was read.
fn is_alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(ones), Value::Array(others)) => {
            ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| is_alike(one, other))
        }
        (Value::Object(ones), Value::Object(others)) => {
            let has_alike = |(key, one): (&String, &Value)| others.get(key).is_some_and(|other| is_alike(one, other));
            ones.len() == others.len() && ones.iter().all(has_alike)
        }
        (Value::Number(ones), Value::Number(others)) if ones.is_f64() && others.is_f64() => {
            let (one, other) = (ones.as_f64().expect("a fraction"), others.as_f64().expect("a fraction"));
            (one - other).abs() <= one.abs() * 1e-12
        }
        _ => one == other,
    }
}
