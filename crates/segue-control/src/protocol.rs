//! The messages of the control socket: one request line and one answer line, each a JSON object with one key.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind, printable_line, printable_lines};
use crate::json;
use crate::knobs::{Change, Knob};
use crate::mapping::Mapping;
use crate::model::Instance;
use crate::peers::{self, Changes, Listed};

/// Longest request line, bytes, except one that changes a peer table.
pub const REQUEST_LEN: usize = 8192;
/// Longest request line that changes a peer table, bytes: room for [`peers::MOST`] peers with all their keys.
pub const TABLE_LEN: usize = 16 << 20;
/// The beginning of a request line that changes a peer table.
pub const TABLE_BEGIN: &[u8] = br#"{"peers":"#;
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
    /// Changes the peer table of a tunnel: `{"peers":{"sync":{"generation":1,"peers":[..]}}}`. Of a whole
    /// table each peer is judged by itself; other changes are made as a whole, or not at all.
    Peers(peers::Change),
    /// Causes a fault, for tests: `{"fault":{"thread":"packets","kind":"panic"}}`. An instance takes it only where it
    /// was started for that.
    Fault(Fault),
}

/// A fault that a test asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Name of the thread to fail: `packets`, `worker1` and so on, `control`, `signals`, `routes`, `health`,
    /// `fastpath`, `interface`, or `supervisor` for the process that supervises them.
    pub thread: String,
    /// Kind of the injected fault: `panic`, `loop`, `hang`, `memory`, `fail`, or `none`.
    pub kind: String,
}

/// A request to a service, on the socket of the service itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceRequest {
    /// Reads the state of the service: `{"get":"service"}`.
    Get(ServiceTopic),
    /// Loads the configuration again, and waits for the outcome: `{"reload":{}}`.
    Reload {},
    /// Continues with the program that has replaced the service's own, and waits for the outcome: `{"upgrade":{}}`.
    Upgrade {},
}

/// The part of a service's state that a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceTopic {
    /// The file and the instances.
    Service,
}

/// The state of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceState {
    /// Absolute path of the service's configuration file.
    pub file: String,
    /// Process id of the service.
    pub pid: u32,
    /// Names of the instances that are up.
    pub instances: Vec<String>,
    /// The names of the instances that are not up.
    pub absent: Vec<String>,
    /// Names of those of them that are down and for which no control socket is open, so that clients do not find them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// The outcome of an upgrade: names of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upgraded {
    /// The name of the configuration file, as given to the service.
    pub file: String,
    /// Version of the program before the upgrade.
    pub before: String,
    /// Version of the program after the upgrade.
    pub version: String,
    /// Whether the program differs from the one before.
    pub is_new: bool,
    /// Instances whose tunnels continue in a process of the new program.
    pub handed_over: Vec<String>,
    /// Instances that were stopped and started anew: those that move no packets, and those that were not running.
    pub restarted: Vec<String>,
    /// Instances that continue in a process of the program before: gateways, adapters, and tunnels with a trace or a
    /// guest.
    pub kept: Vec<String>,
    /// Instances that continue unchanged because no successor came up.
    pub failed: Vec<String>,
}

impl Upgraded {
    /// Returns the outcome of the upgrade in one line.
    pub fn text(&self) -> String {
        if !self.is_new {
            return printable_line(&format!("{}: nothing has replaced the program, segue {}", self.file, self.version));
        }
        let list = |what: &str, names: &[String]| {
            if names.is_empty() { String::new() } else { format!(", {what} {}", names.join(" ")) }
        };
        let text = format!(
            "upgraded {}: segue {} -> {}{}{}{}{}",
            self.file,
            self.before,
            self.version,
            list("handed over", &self.handed_over),
            list("restarted", &self.restarted),
            list("with the program of before until a restart:", &self.kept),
            list("failed, and with the program of before:", &self.failed)
        );
        printable_line(&text)
    }
}

/// The outcome of a reload: names of instances, and of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// The configuration file, as its name was given to the service.
    pub file: String,
    /// Instances that continue as they are.
    pub unchanged: Vec<String>,
    /// Instances whose knobs were set.
    pub knobs: Vec<String>,
    /// Instances some of whose tunnels continue in a new process.
    pub handed_over: Vec<String>,
    /// Tunnels of the `handed_over` instances that differ, are new, or are gone.
    pub tunnels: ChangedTunnels,
    /// Instances that were stopped and started anew.
    pub restarted: Vec<String>,
    /// Names of the instances that were started.
    pub started: Vec<String>,
    /// Instances that are no longer in the file.
    pub stopped: Vec<String>,
    /// Instances of the file that are not up, each with the reason.
    pub absent: Vec<AbsentInstance>,
    /// Names of remotes for which the resolver has no address now; tunnels keep the one that they have.
    pub unanswered: Vec<UnansweredName>,
    /// Instances whose changed knobs are not set, or not all of them: the next reload sets them.
    pub failed: Vec<String>,
}

/// The name of a remote that keeps its address, because the resolver has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnansweredName {
    /// The host name without an answer.
    pub name: String,
    /// Address from an earlier lookup.
    pub address: String,
    /// Reason why no newer address is known.
    pub reason: String,
}

/// An instance that is not up, and is started again until it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AbsentInstance {
    /// The name of the instance.
    pub name: String,
    /// The reason why it is not up.
    pub reason: String,
}

/// The tunnels that a handover changed, by the names of their interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangedTunnels {
    /// Tunnels that were made anew.
    pub changed: Vec<String>,
    /// Names of the tunnels that were added.
    pub added: Vec<String>,
    /// Names of the tunnels that were removed.
    pub removed: Vec<String>,
}

impl Reloaded {
    /// Returns the outcome of the reload in one line.
    pub fn text(&self) -> String {
        let list = |what: &str, names: &[String]| {
            if names.is_empty() { String::new() } else { format!(", {what} {}", names.join(" ")) }
        };
        let ChangedTunnels { changed, added, removed } = &self.tunnels;
        let inner = [("changed", changed), ("added", added), ("removed", removed)]
            .map(|(what, names)| list(what, names))
            .concat();
        let inner = inner.strip_prefix(", ").map(|inner| format!(" ({inner})")).unwrap_or_default();
        let absent: String =
            self.absent.iter().map(|AbsentInstance { name, reason }| format!(", absent {name} ({reason})")).collect();
        let kept = |name: &UnansweredName| format!(", {} keeps {} ({})", name.name, name.address, name.reason);
        let unanswered: String = self.unanswered.iter().map(kept).collect();
        let text = format!(
            "reloaded {}: {} unchanged{}{}{inner}{}{}{}{absent}{unanswered}{}",
            self.file,
            self.unchanged.len(),
            list("knobs set", &self.knobs),
            list("handed over", &self.handed_over),
            list("restarted", &self.restarted),
            list("started", &self.started),
            list("stopped", &self.stopped),
            list("failed to set the knobs of", &self.failed)
        );
        // Reasons are of instances, which handle packets of others.
        printable_line(&text)
    }
}

/// The answer of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceResponse {
    /// The answer to [`ServiceTopic::Service`].
    Service(Box<ServiceState>),
    /// The answer to [`ServiceRequest::Reload`]: the file is in force.
    Reloaded(Box<Reloaded>),
    /// The answer to [`ServiceRequest::Upgrade`].
    Upgraded(Box<Upgraded>),
    /// The refusal of a reload or of an upgrade: nothing has changed.
    Refused(Box<Refused>),
    /// The refusal of any other request.
    Error(Box<Failure>),
}

/// Reason why a reload was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// The text of all errors, with file, line and caret.
    pub text: String,
    /// The object of the JSON form, `error` of [`Error::json`].
    pub error: Value,
}

/// The part of an instance's state that a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// The state and the counters.
    Stat,
    /// The knobs with their present values.
    Knobs,
    /// The mappings of the NAT.
    Nat,
    /// The peer table with its counters.
    Peers,
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
    /// The answer to [`Topic::Peers`]; `None` where the tunnel has no table.
    Peers(Option<Box<Listed>>),
    /// The answer to [`Request::Peers`].
    Synced(Changes),
    /// The refusal of any request.
    Error(Box<Failure>),
}

/// A refusal: an [`Error`] in the form of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The name of the [`Kind`].
    #[serde(default)]
    pub kind: String,
    /// Description of the action that failed.
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
    /// Whether the message begins with the name of the instance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub names_instance: bool,
}

/// A request that is to change knobs, with any values.
#[derive(Deserialize)]
struct Assignments {
    #[serde(rename = "set")]
    _all: IgnoredAny,
}

impl Request {
    /// Parses a line into a request to an instance.
    pub fn parse(line: &[u8]) -> Result<Request, Error> {
        json::read(line).map_err(|error| {
            if line.starts_with(TABLE_BEGIN) {
                let good = r#"{"peers":{"sync":{"generation":1,"peers":[]}}}"#;
                let why = printable_line(&error.to_string());
                return Error::new(Kind::Usage, "unknown request", good).why(why);
            }
            let is_set = json::read::<Assignments>(line).is_ok();
            let good = if is_set { r#"{"set":[["KNOB","VALUE"]]}"# } else { r#"{"get":"stat"}"# };
            Error::new(Kind::Usage, "unknown request", good)
        })
    }

    /// Returns the request as one line, without a line feed.
    pub fn line(&self) -> String {
        if matches!(self, Request::Peers(_)) { table_line(self) } else { line(self) }
    }
}

impl Response {
    /// Parses the answer of an instance.
    ///
    /// # Errors
    /// As of [`json::read`].
    pub fn parse(line: &[u8]) -> Result<Response, serde_json::Error> {
        json::read(line)
    }

    /// Returns the answer as one line, without a line feed.
    pub fn line(&self) -> String {
        let is_large = matches!(self, Response::Instance(_) | Response::Peers(_) | Response::Synced(_));
        if is_large { table_line(self) } else { line(self) }
    }
}

impl ServiceRequest {
    /// Parses a line into a request to a service.
    pub fn parse(line: &[u8]) -> Result<ServiceRequest, Error> {
        let good = r#"{"reload":{}}, {"upgrade":{}} or {"get":"service"}"#;
        json::read(line).map_err(|_| Error::new(Kind::Usage, "unknown request", good))
    }

    /// Returns the request as one line, without a line feed.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl ServiceResponse {
    /// Parses the answer of a service.
    ///
    /// # Errors
    /// As of [`json::read`].
    pub fn parse(line: &[u8]) -> Result<ServiceResponse, serde_json::Error> {
        json::read(line)
    }

    /// Returns the refusal of a reload or of an upgrade; `text` is the human-readable error.
    pub fn refused(error: &Error, text: &str) -> ServiceResponse {
        ServiceResponse::Refused(Box::new(Refused { text: text.to_owned(), error: error.json()["error"].take() }))
    }

    /// Returns the answer as one line, without a line feed.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let Error { kind, message, why, hint, os_error, names_instance, .. } = error;
        Failure { kind: kind.name().to_owned(), message, why, hint, os_error, names_instance }
    }
}

impl From<Error> for Response {
    fn from(error: Error) -> Response {
        Response::Error(Box::new(error.into()))
    }
}

impl From<Error> for ServiceResponse {
    fn from(error: Error) -> ServiceResponse {
        ServiceResponse::Error(Box::new(error.into()))
    }
}

impl Failure {
    /// Returns the error of the refusal, of [`Kind::System`] where its kind is unknown, with texts that are safe to
    /// print.
    pub fn into_error(self) -> Error {
        let Failure { kind, message, why, hint, os_error, names_instance } = self;
        let kind = Kind::named(&kind).unwrap_or(Kind::System);
        let why = why.map(|why| printable_lines(&why));
        Error { why, os_error, names_instance, ..Error::new(kind, printable_lines(&message), printable_lines(&hint)) }
    }
}

/// Serializes a message on one line, with its keys in alphabetical order.
fn line(message: &impl Serialize) -> String {
    // Serialization cannot fail: all keys are strings.
    serde_json::to_value(message).unwrap_or_default().to_string()
}

/// Serializes a large message, such as one with a table, without an intermediate tree of values.
fn table_line(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
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
            (Request::Get(Topic::Peers), r#"{"get":"peers"}"#),
            (Request::Set(vec![("a".into(), "1".into())]), r#"{"set":[["a","1"]]}"#),
            (Request::Peers(peers::Change::Add(Vec::new())), r#"{"peers":{"add":[]}}"#),
            (Request::Peers(peers::Change::Keep("no".to_owned())), r#"{"peers":{"keep":"no"}}"#),
            (
                Request::Peers(peers::Change::Del(vec![peers::Key::Prefix("::/0".parse().unwrap())])),
                r#"{"peers":{"del":[{"prefix":"::/0"}]}}"#,
            ),
        ] {
            assert_eq!(request.line(), text);
            assert_eq!(Request::parse(text.as_bytes()).unwrap(), request);
        }
        for (response, text) in [
            (Response::Knobs(Vec::new()), r#"{"knobs":[]}"#),
            (Response::Mappings(None), r#"{"mappings":null}"#),
            (Response::Changed(Vec::new()), r#"{"changed":[]}"#),
            (Response::Peers(None), r#"{"peers":null}"#),
            (
                Response::Synced(Changes { generation: 42, added: 1, unchanged: 2, ..Changes::default() }),
                r#"{"synced":{"generation":42,"added":1,"replaced":0,"removed":0,"unchanged":2}}"#,
            ),
        ] {
            assert_eq!(response.line(), text);
        }
        let instance: Value = serde_json::from_str(&Response::Instance(Box::default()).line()).unwrap();
        assert!(instance["instance"].is_object());
    }

    #[test]
    fn the_line_of_a_reload_says_what_absent_instances_wait_for_and_which_names_keep_their_address() {
        let absent = |name: &str| AbsentInstance { name: name.to_owned(), reason: "no name server".to_owned() };
        let (name, address, reason) = ("peer".to_owned(), "198.18.0.2".to_owned(), "no name server".to_owned());
        let unanswered = UnansweredName { name, address, reason };
        let done = Reloaded {
            file: "near.toml".to_owned(),
            unchanged: vec!["blue".to_owned()],
            stopped: vec!["red".to_owned()],
            absent: vec![absent("green"), absent("black")],
            unanswered: vec![unanswered],
            ..Reloaded::default()
        };
        let waits =
            "absent green (no name server), absent black (no name server), peer keeps 198.18.0.2 (no name server)";
        assert_eq!(done.text(), format!("reloaded near.toml: 1 unchanged, stopped red, {waits}"));
        // The answer of an older service has none.
        let answer = serde_json::from_str::<Reloaded>(r#"{"file":"near.toml","unchanged":["blue"],"stopped":["red"]}"#);
        assert_eq!(answer.unwrap(), Reloaded { absent: Vec::new(), unanswered: Vec::new(), ..done });
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
