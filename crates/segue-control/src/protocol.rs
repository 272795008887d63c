//! The messages of the control socket: one request line and one answer line, each a JSON object with one key.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind};
use crate::knobs::{Change, Knob};
use crate::mapping::Mapping;
use crate::model::Instance;

/// Longest request line, bytes.
pub const REQUEST_LEN: usize = 8192;
/// Longest answer line, bytes: room for the counters of the largest number of tunnels that can share a port.
pub const ANSWER_LEN: usize = 32 << 20;

/// A request to an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Reads a part of the state: `{"get":"stat"}`.
    Get(Topic),
    /// Changes knobs, all of them or none: `{"set":[["KNOB","VALUE"]]}`.
    Set(Vec<(String, String)>),
    /// Causes a fault, for tests: `{"fault":{"thread":"packets","kind":"panic"}}`. An instance takes it only where it
    /// was started for that.
    Fault(Fault),
}

/// A fault that a test asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The thread: `packets`, `control`, `signals` or `routes`.
    pub thread: String,
    /// What happens to it: `panic`, `loop`, `hang`, `fail`, or `none`.
    pub kind: String,
}

/// The part of an instance's state that a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// The state and the counters.
    Stat,
    /// The knobs.
    Knobs,
    /// The mappings of the NAT.
    Nat,
}

/// The answer of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// The answer to [`Topic::Stat`].
    Instance(Box<Instance>),
    /// The answer to [`Topic::Knobs`].
    Knobs(Vec<Knob>),
    /// The answer to [`Topic::Nat`]; `None` where there is no NAT.
    Mappings(Option<Vec<Mapping>>),
    /// The answer to [`Request::Set`]: the changes, in the order in which they were made.
    Changed(Vec<Change>),
    /// The refusal of any request.
    Error(Box<Failure>),
}

/// A refusal: an [`Error`] in the form of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The name of the [`Kind`].
    #[serde(default)]
    pub kind: String,
    /// The failed action.
    #[serde(default)]
    pub message: String,
    /// The reason of the failure.
    #[serde(default)]
    pub why: Option<String>,
    /// Hint for the user.
    #[serde(default)]
    pub hint: String,
    /// The error number of the system.
    #[serde(default)]
    pub os_error: Option<i32>,
}

impl Request {
    /// Parses a request line.
    pub fn parse(line: &[u8]) -> Result<Request, Error> {
        let value: Value = serde_json::from_slice(line).unwrap_or(Value::Null);
        let good = if value.get("set").is_some() { r#"{"set":[["KNOB","VALUE"]]}"# } else { r#"{"get":"stat"}"# };
        serde_json::from_value(value).map_err(|_| Error::new(Kind::Usage, "unknown request", good))
    }

    /// Returns the request as one line, without its end.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl Response {
    /// Returns the answer as one line, without its end.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl From<Error> for Response {
    fn from(error: Error) -> Response {
        let Error { kind, message, why, hint, os_error, .. } = error;
        Response::Error(Box::new(Failure { kind: kind.name().to_owned(), message, why, hint, os_error }))
    }
}

/// Serializes a message without line feeds.
fn line(message: &impl Serialize) -> String {
    // Serialization cannot fail: all keys are strings.
    serde_json::to_value(message).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_have_one_key_each() {
        for (request, text) in [
            (Request::Get(Topic::Stat), r#"{"get":"stat"}"#),
            (Request::Get(Topic::Knobs), r#"{"get":"knobs"}"#),
            (Request::Get(Topic::Nat), r#"{"get":"nat"}"#),
            (Request::Set(vec![("a".into(), "1".into())]), r#"{"set":[["a","1"]]}"#),
        ] {
            assert_eq!(request.line(), text);
            assert_eq!(Request::parse(text.as_bytes()).unwrap(), request);
        }
        for (response, text) in [
            (Response::Knobs(Vec::new()), r#"{"knobs":[]}"#),
            (Response::Mappings(None), r#"{"mappings":null}"#),
            (Response::Changed(Vec::new()), r#"{"changed":[]}"#),
        ] {
            assert_eq!(response.line(), text);
        }
        let instance: Value = serde_json::from_str(&Response::Instance(Box::default()).line()).unwrap();
        assert!(instance["instance"].is_object());
    }

    #[test]
    fn an_invalid_request_is_refused_with_a_valid_example() {
        for (line, hint) in [
            ("", r#"{"get":"stat"}"#),
            ("{\"get\":\"everything\"}", r#"{"get":"stat"}"#),
            ("{\"set\":1}", r#"{"set":[["KNOB","VALUE"]]}"#),
        ] {
            let error = Request::parse(line.as_bytes()).unwrap_err();
            assert_eq!((error.message.as_str(), error.hint.as_str()), ("unknown request", hint));
            let shown = error.json().to_string();
            assert_eq!(Response::from(error).line(), shown);
        }
    }
}
