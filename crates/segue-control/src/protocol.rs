//! What goes over the control socket: one request line, one answer line, each a JSON object with one key.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind};
use crate::knobs::{Change, Knob};
use crate::mapping::Mapping;
use crate::model::Instance;

/// Longest request line, bytes.
pub const REQUEST_LEN: usize = 8192;
/// Longest answer line, bytes: room for the counters of as many tunnels as one port has at most.
pub const ANSWER_LEN: usize = 32 << 20;

/// What an instance is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// To say something: `{"get":"stat"}`.
    Get(Topic),
    /// To change settings, all of them or none: `{"set":[["KNOB","VALUE"]]}`.
    Set(Vec<(String, String)>),
}

/// What an instance can be asked to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// Its state and its counters.
    Stat,
    /// Its settings.
    Knobs,
    /// The mappings of its NAT.
    Nat,
}

/// What an instance answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// To [`Topic::Stat`].
    Instance(Box<Instance>),
    /// To [`Topic::Knobs`].
    Knobs(Vec<Knob>),
    /// To [`Topic::Nat`]; `None` where there is no NAT.
    Mappings(Option<Vec<Mapping>>),
    /// To [`Request::Set`]: what was changed, in that order.
    Changed(Vec<Change>),
    /// The request was refused.
    Error(Box<Failure>),
}

/// A refusal, as an [`Error`] goes over the socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The name of its [`Kind`].
    #[serde(default)]
    pub kind: String,
    /// What failed.
    #[serde(default)]
    pub message: String,
    /// Why.
    #[serde(default)]
    pub why: Option<String>,
    /// What to do.
    #[serde(default)]
    pub hint: String,
    /// The system's error number.
    #[serde(default)]
    pub os_error: Option<i32>,
}

impl Request {
    /// Reads a request line.
    pub fn parse(line: &[u8]) -> Result<Request, Error> {
        let value: Value = serde_json::from_slice(line).unwrap_or(Value::Null);
        let good = if value.get("set").is_some() { r#"{"set":[["KNOB","VALUE"]]}"# } else { r#"{"get":"stat"}"# };
        serde_json::from_value(value).map_err(|_| Error::new(Kind::Usage, "unknown request", good))
    }

    /// The request on one line, without its end.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl Response {
    /// The answer on one line, without its end.
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

fn line(message: &impl Serialize) -> String {
    // Serialising these cannot fail: all their keys are strings.
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
    fn what_is_no_request_is_refused_with_one_that_is() {
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
