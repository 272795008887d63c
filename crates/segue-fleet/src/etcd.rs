//! The client of etcd: version 3 of its API, as JSON over HTTP (etcd's own gRPC gateway, `/v3/...`).
//!
//! # Promises
//! - Every call ends: connecting, sending and receiving have limits ([`CONNECT`], [`REQUEST`]), and so have the length
//!   of an answer and the number of keys in a list.
//! - A member that does not answer, or has no leader, is left for the next one in the list; a call fails only after all
//!   of them did. One that refuses the request, or whose answer is not etcd's or too long, fails the call, and the next
//!   call goes to the next member.
//! - No proxy of the environment is used, and no redirection is followed: credentials go to the named members only.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

use crate::answer::{Answer, Event, Header};
use crate::lease::VALUE_LEN;
use crate::roster::Record;

/// Longest wait for a connection.
pub const CONNECT: Duration = Duration::from_secs(2);
/// Longest duration of a call other than a watch.
pub const REQUEST: Duration = Duration::from_secs(6);
/// Limit of the length of an answer and of a watch message, bytes.
const ANSWER_LEN: u64 = 16 << 20;
/// Number of keys that one list request asks for, if their values are not too long.
const PAGE: i64 = 1000;
/// Largest number of keys of a list: 16 times as many as a network with a prefix of 16 bits has addresses.
const MOST_KEYS: usize = 1 << 20;
/// Longest token of a login, bytes.
const TOKEN_LEN: usize = 8192;
/// gRPC status codes after which the request is repeated with another member: deadline exceeded, aborted, unavailable.
const ELSEWHERE: [i64; 3] = [4, 10, 14];
/// gRPC status code for a wrong or expired token.
const UNAUTHENTICATED: i64 = 16;
/// gRPC status code for a revision that a compaction has removed.
const OUT_OF_RANGE: i64 = 11;

/// A failure of a call.
#[derive(Clone, Debug)]
pub enum EtcdError {
    /// No member answered; the text is the failure of the last one.
    Unreachable(String),
    /// etcd refused the request with this status code and text.
    Refused(i64, String),
    /// The requested revision is compacted.
    Compacted,
    /// The history of the member ends before the position from which a watch is to continue, or is that of another
    /// cluster, as after a restore of a backup.
    Diverged,
    /// An answer, or a message of a watch, exceeds this client's limit.
    TooLong,
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdError::Unreachable(why) => f.write_str(why),
            EtcdError::Refused(_, text) => write!(f, "etcd: {text}"),
            EtcdError::Compacted => f.write_str("etcd: the revision is compacted"),
            EtcdError::Diverged => f.write_str("etcd: its history is not the one of before"),
            EtcdError::TooLong => write!(f, "etcd: its answer has more than {} MiB", ANSWER_LEN >> 20),
        }
    }
}

/// Name and password of a user of etcd.
#[derive(Clone)]
pub struct Login {
    /// User name for etcd.
    pub name: String,
    /// Password for etcd.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.name)
    }
}

/// A position in the history of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Revision of the cluster's data.
    pub revision: i64,
    /// The id of the cluster.
    pub cluster: String,
}

/// A message of a watch, with its changes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The revision of the last change; 0 where there is none. What the member says of its own revision does not count:
    /// it can be ahead of changes that it has not sent.
    pub revision: i64,
    /// The changes, in their order.
    pub changes: Vec<Change>,
}

/// A change of a key.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new or changed entry.
    Put(Record),
    /// The key was deleted.
    Delete(Vec<u8>),
}

/// The result of creating a key that must not exist yet.
#[derive(Clone, Debug)]
pub enum Made {
    /// The key was created at this revision.
    New(i64),
    /// The key exists already.
    Exists,
}

/// A client of one etcd cluster.
#[derive(Clone, Debug)]
pub struct Etcd {
    agent: Agent,
    endpoints: Vec<String>,
    at: usize,
    login: Option<Login>,
    token: Option<String>,
}

impl Etcd {
    /// Returns a client of the members at `endpoints`, such as `https://198.18.0.1:2379`. No connection is made yet.
    pub fn new(agent: Agent, endpoints: Vec<String>, login: Option<Login>) -> Etcd {
        assert!(!endpoints.is_empty(), "a cluster has a member");
        // Not all hosts of a fleet begin with the same member.
        let at = crate::backoff::random() as usize % endpoints.len();
        Etcd { agent, endpoints, at, login, token: None }
    }

    /// Returns the member that answered last, or to which the next request goes.
    pub fn endpoint(&self) -> &str {
        &self.endpoints[self.at]
    }

    /// Returns the TCP ports of the members, and the first member that is known by a name, with its port.
    pub fn destinations(&self) -> (Vec<u16>, Option<(String, u16)>) {
        let parts = |url: &String| {
            let uri: ureq::http::Uri = url.parse().ok()?;
            let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
            Some((uri.host()?.to_owned(), uri.port_u16().unwrap_or(usual)))
        };
        let members: Vec<(String, u16)> = self.endpoints.iter().filter_map(parts).collect();
        let ports = members.iter().map(|(_, port)| *port).collect();
        let is_name = |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_err();
        (ports, members.into_iter().find(|(host, _)| is_name(host)))
    }

    /// Returns the entry of a key, if there is one.
    pub fn get(&mut self, key: &str) -> Result<Option<Record>, EtcdError> {
        let (answer, _) = self.range(&json!({ "key": encode(key.as_bytes()) }))?;
        Ok(answer.records().into_iter().next())
    }

    /// Lists all keys that begin with `prefix`, at one revision, and returns its position. `each` gets one entry after
    /// the other, in the order of their keys, so that no more of a list is kept than the caller keeps; not all of them
    /// where the call fails. Long values are cut, so that they are refused as what they are.
    pub fn list(&mut self, prefix: &str, mut each: impl FnMut(Record)) -> Result<Position, EtcdError> {
        let end = encode(&after_all(prefix.as_bytes()));
        let mut from = prefix.as_bytes().to_vec();
        let mut listed = Position::default();
        let mut left = MOST_KEYS;
        let mut most = PAGE;
        loop {
            let mut request = json!({ "key": encode(&from), "range_end": end, "limit": most });
            if listed.revision != 0 {
                request["revision"] = json!(listed.revision);
            }
            let (answer, at) = match self.range(&request) {
                // With values that no host writes; etcd has a limit for each of them.
                Err(EtcdError::TooLong) if most > 1 => {
                    most /= 2;
                    continue;
                }
                Err(error @ EtcdError::TooLong) => return Err(EtcdError::Unreachable(error.to_string())),
                answer => answer?,
            };
            if listed.revision == 0 {
                listed = at;
            }
            let has_more = answer.more.is_true();
            let page = answer.records();
            // A page with no new key would be asked for again and again.
            if has_more && page.is_empty() {
                return Err(self.endless());
            }
            for record in page {
                if record.key < from || left == 0 {
                    return Err(self.endless());
                }
                left -= 1;
                from.clone_from(&record.key);
                from.push(0);
                each(cut(record));
            }
            if !has_more {
                return Ok(listed);
            }
        }
    }

    /// Reads a range of keys. Returns the answer and its position.
    fn range(&mut self, request: &Value) -> Result<(Answer, Position), EtcdError> {
        let answer = self.call("kv/range", request)?;
        let at = position(answer.header.as_ref());
        // Without this an empty document would be a registry without keys.
        if at.revision <= 0 {
            return Err(self.foreign("it has no revision"));
        }
        Ok((answer, at))
    }

    /// Creates a lease of etcd that expires after `ttl` unless it is kept alive, and returns its id.
    pub fn grant(&mut self, ttl: Duration) -> Result<i64, EtcdError> {
        let answer = self.call("lease/grant", &json!({ "TTL": ttl.as_secs() }))?;
        match answer.id.number() {
            0 => Err(self.foreign("it granted no lease")),
            id => Ok(id),
        }
    }

    /// Keeps a lease of etcd alive. Returns whether it still exists.
    pub fn keep_alive(&mut self, id: i64) -> Result<bool, EtcdError> {
        let answer = self.call("lease/keepalive", &json!({ "ID": id.to_string() }))?;
        match answer.result {
            Some(result) => Ok(result.ttl.number() > 0),
            None => Err(self.foreign("it says nothing of the lease")),
        }
    }

    /// Revokes a lease of etcd: its keys are deleted, and a put with it that is still to be executed fails.
    pub fn revoke(&mut self, id: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": id.to_string() })).map(|_| ())
    }

    /// Creates a key that must not exist yet, under a lease of etcd.
    pub fn create(&mut self, key: &str, value: &str, lease: i64) -> Result<Made, EtcdError> {
        let absent = json!({ "key": encode(key.as_bytes()), "target": "VERSION", "result": "EQUAL", "version": "0" });
        self.put_where(absent, key, value, lease)
    }

    /// Replaces the value of a key that was last changed at the revision `modified`.
    pub fn replace(&mut self, key: &str, value: &str, lease: i64, modified: i64) -> Result<Made, EtcdError> {
        let same = json!({ "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL",
                           "mod_revision": modified.to_string() });
        self.put_where(same, key, value, lease)
    }

    fn put_where(&mut self, compare: Value, key: &str, value: &str, lease: i64) -> Result<Made, EtcdError> {
        let put =
            json!({ "key": encode(key.as_bytes()), "value": encode(value.as_bytes()), "lease": lease.to_string() });
        let answer = self.call("kv/txn", &json!({ "compare": [compare], "success": [{ "requestPut": put }] }))?;
        Ok(match answer.succeeded.is_true() {
            true => Made::New(position(answer.header.as_ref()).revision),
            false => Made::Exists,
        })
    }

    /// Reports the changes of all keys that begin with `prefix`, after the position `last`, until `longest` has passed
    /// or the member ends the watch. `report` gets an empty batch as soon as the watch stands, and returns whether to
    /// continue.
    ///
    /// A watch is short, and the next one begins after the last revision: so nothing is missed, and a connection whose
    /// other end has vanished is noticed.
    pub fn watch(
        &mut self,
        prefix: &str,
        last: &Position,
        longest: Duration,
        mut report: impl FnMut(Batch) -> bool,
    ) -> Result<(), EtcdError> {
        let from = last.revision.checked_add(1).ok_or(EtcdError::Diverged)?;
        let request = json!({ "create_request": { "key": encode(prefix.as_bytes()),
                              "range_end": encode(&after_all(prefix.as_bytes())), "start_revision": from.to_string() } });
        let response = self.send("watch", &request, longest)?;
        let mut lines = BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader());
        let (mut line, mut began) = (Vec::new(), false);
        loop {
            line.clear();
            match (&mut lines).take(ANSWER_LEN).read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => {}
                Ok(len) if len as u64 >= ANSWER_LEN => {
                    self.leave();
                    return Err(EtcdError::TooLong);
                }
                // The time is over, or the member has ended the watch: the next one shows whether all is well.
                _ => {
                    if !began {
                        self.leave();
                    }
                    return Ok(());
                }
            }
            let message = Answer::read(&line).map_err(|error| self.foreign(error))?;
            if let Some((code, text)) = message.failure() {
                return Err(self.refusal(code, text));
            }
            let Some(result) = message.result else { return Err(self.foreign("it is no message of a watch")) };
            began = true;
            if result.compact_revision.number() != 0 {
                self.leave();
                return Err(EtcdError::Compacted);
            }
            if result.canceled.is_true() {
                let why = result.cancel_reason.text().unwrap_or("it ended the watch");
                // A watch has no status: the reason can be that the token is old, in one of several texts.
                self.token = None;
                self.leave();
                return Err(EtcdError::Unreachable(format!("etcd: {why}")));
            }
            // etcd lets a watch begin at a revision that is still to come, and is silent until then.
            let now = position(result.header.as_ref());
            if result.created.is_true() && (now.revision < last.revision || now.cluster != last.cluster) {
                return Err(EtcdError::Diverged);
            }
            let events = result.events.unwrap_or_default();
            let revisions = events.iter().flat_map(|event| &event.kv).map(|kv| kv.mod_revision.number());
            let revision = revisions.max().unwrap_or(0);
            if !report(Batch { revision, changes: events.into_iter().map(change).collect() }) {
                return Ok(());
            }
        }
    }

    /// Sends a request to the members in turn and returns the first member's answer.
    fn call(&mut self, path: &str, request: &Value) -> Result<Answer, EtcdError> {
        let mut response = self.send(path, request, REQUEST)?;
        let bytes = match response.body_mut().with_config().limit(ANSWER_LEN).read_to_vec() {
            Ok(bytes) => bytes,
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                self.leave();
                return Err(EtcdError::TooLong);
            }
            Err(error) => {
                let why = format!("{}: {error}", self.endpoint());
                self.leave();
                return Err(EtcdError::Unreachable(why));
            }
        };
        // Of a stream, such as that of a keepalive, the first message.
        let answer = Answer::first(&bytes).map_err(|error| self.foreign(error))?;
        match answer.failure() {
            Some((code, text)) => Err(self.refusal(code, text)),
            None => Ok(answer),
        }
    }

    /// Sends a request to the members in turn and returns the first HTTP answer that is no failure of the member.
    fn send(
        &mut self,
        path: &str,
        request: &Value,
        longest: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, EtcdError> {
        let mut failed = EtcdError::Unreachable("no member was asked".to_owned());
        let mut logged_in = false;
        let mut left = self.endpoints.len();
        while left > 0 {
            match self.log_in().and_then(|()| self.post(path, request, longest)) {
                Ok(response) => return Ok(response),
                // The token is old: another one, once.
                Err(EtcdError::Refused(UNAUTHENTICATED, _)) if self.login.is_some() && !logged_in => {
                    self.token = None;
                    logged_in = true;
                }
                Err(EtcdError::Refused(code, text)) if !ELSEWHERE.contains(&code) => {
                    self.leave();
                    return Err(EtcdError::Refused(code, text));
                }
                Err(error @ EtcdError::Compacted) => {
                    self.leave();
                    return Err(error);
                }
                Err(error) => {
                    failed = EtcdError::Unreachable(error.to_string());
                    left -= 1;
                    self.leave();
                }
            }
        }
        Err(failed)
    }

    fn post(
        &self,
        path: &str,
        request: &Value,
        longest: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, EtcdError> {
        let url = format!("{}/v3/{path}", self.endpoint());
        let mut post = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            post = post.header("Authorization", token);
        }
        if path == "watch" {
            // The member ends the watch when it loses its leader, instead of staying silent.
            post = post.header("Grpc-Metadata-hasleader", "true");
        }
        let post = post.config().timeout_recv_body(Some(longest)).build();
        let unreachable = |error: ureq::Error| EtcdError::Unreachable(format!("{}: {error}", self.endpoint()));
        let mut response = post.send(request.to_string()).map_err(unreachable)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = response.body_mut().with_config().limit(1 << 16).read_to_vec().map_err(unreachable)?;
        let answer = Answer::read(&bytes).unwrap_or_default();
        Err(match answer.failure_or_message() {
            Some((code, text)) => refused(code, text),
            None => EtcdError::Unreachable(format!("{}: HTTP status {status}", self.endpoint())),
        })
    }

    /// Logs in where this client has a user and no token.
    fn log_in(&mut self) -> Result<(), EtcdError> {
        let Some(Login { name, password }) = self.login.as_ref().filter(|_| self.token.is_none()) else {
            return Ok(());
        };
        let request = json!({ "name": name, "password": password });
        let mut response = self.post("auth/authenticate", &request, REQUEST)?;
        let unreachable = |error: &dyn fmt::Display| EtcdError::Unreachable(format!("{}: {error}", self.endpoint()));
        let bytes = response.body_mut().with_config().limit(1 << 16).read_to_vec().map_err(|e| unreachable(&e))?;
        let answer = Answer::read(&bytes).map_err(|error| unreachable(&error))?;
        // One that no header can have would fail the requests to all members.
        let token = answer.token.text().filter(|token| is_token(token));
        let token = token.ok_or_else(|| unreachable(&"it gave no token"))?.to_owned();
        self.token = Some(token);
        Ok(())
    }

    /// Selects the next member of the cluster.
    fn leave(&mut self) {
        self.at = (self.at + 1) % self.endpoints.len();
    }

    /// Leaves a member whose document refuses the request, and returns the failure.
    fn refusal(&mut self, code: i64, text: &str) -> EtcdError {
        let error = refused(code, text);
        if matches!(error, EtcdError::Refused(UNAUTHENTICATED, _)) {
            self.token = None;
        }
        self.leave();
        error
    }

    /// Leaves a member whose answer is not etcd's, and returns the failure.
    fn foreign(&mut self, why: impl fmt::Display) -> EtcdError {
        // The text can have parts of the answer.
        let why: String = segue_control::error::printable_line(&why.to_string()).chars().take(200).collect();
        let why = format!("{}: its answer is not etcd's: {why}", self.endpoint());
        self.leave();
        EtcdError::Unreachable(why)
    }

    /// Leaves a member whose list goes on without an end, and returns the failure.
    fn endless(&mut self) -> EtcdError {
        let why = format!("{}: its list is not in order, or has more than {MOST_KEYS} keys", self.endpoint());
        self.leave();
        EtcdError::Unreachable(why)
    }
}

/// Returns the failure that a member answers with.
fn refused(code: i64, text: &str) -> EtcdError {
    if code == OUT_OF_RANGE || text.contains("compacted") {
        return EtcdError::Compacted;
    }
    let text: String = segue_control::error::printable_line(text).chars().take(200).collect();
    // Version 3.4 answers so to a token that it no longer has, and others to one from before a change of a permission.
    let is_old = text.contains("invalid auth token") || text.contains("revision of auth store is old");
    let code = if is_old { UNAUTHENTICATED } else { code };
    EtcdError::Refused(code, text)
}

/// Returns whether a text can be a token of etcd, which is a JSON web token, or letters and digits with a dot.
fn is_token(text: &str) -> bool {
    (1..=TOKEN_LEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the position that the header of an answer has.
fn position(header: Option<&Header>) -> Position {
    let Some(Header { cluster_id, revision }) = header else { return Position::default() };
    Position { revision: revision.number(), cluster: cluster_id.text().unwrap_or_default().to_owned() }
}

/// Truncates a value that is too long for a lease, so that it takes little memory but still counts as too long.
fn cut(mut record: Record) -> Record {
    record.value.truncate(VALUE_LEN + 1);
    record.value.shrink_to_fit();
    record
}

fn change(event: Event) -> Change {
    let is_deleted = event.kind.text() == Some("DELETE");
    let kv = event.kv.unwrap_or_default();
    match is_deleted {
        true => Change::Delete(kv.key.decoded()),
        false => Change::Put(cut(kv.into())),
    }
}

/// Returns the first key after all keys that begin with `prefix`.
fn after_all(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_of_a_client_are_the_ports_of_its_members_and_the_first_that_has_a_name() {
        let of = |urls: &[&str]| {
            Etcd::new(Agent::new_with_defaults(), urls.iter().map(|url| (*url).to_owned()).collect(), None)
        };
        let addresses =
            of(&["https://198.18.0.1:2379", "http://[::1]:2389", "https://198.18.0.2", "http://198.18.0.3"]);
        assert_eq!(addresses.destinations(), (vec![2379, 2389, 443, 80], None));
        let named = of(&["https://198.18.0.1:1", "https://etcd.example:2"]);
        assert_eq!(named.destinations(), (vec![1, 2], Some(("etcd.example".to_owned(), 2))));
    }

    #[test]
    fn a_token_is_a_text_that_a_header_can_have() {
        let longest = "a".repeat(TOKEN_LEN);
        for token in ["kPiQRxTKsoEUnXMS.7", "eyJhbGciOiJFUzI1NiJ9.eyJyZXYiOjd9.c2ln_bmF-0dXJl", longest.as_str()] {
            assert!(is_token(token), "{token}");
        }
        let longer = format!("{longest}a");
        for text in ["", " ", "a\n", "a\r\nX-Header: b", "a b", "\0", "\u{7f}", "\u{e9}", longer.as_str()] {
            assert!(!is_token(text), "{text:?}");
        }
    }

    #[test]
    fn the_range_of_a_prefix_ends_before_the_next_one() {
        assert_eq!(after_all(b"/n/subnets"), b"/n/subnett");
        assert_eq!(after_all(b"a\xff"), b"b");
        assert_eq!(after_all(b"\xff"), b"\0");
    }
}
