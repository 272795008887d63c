//! Answers of the members of an etcd cluster, over connections in memory.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use segue_control::error::is_hidden;
use segue_fleet::allocate::{Choice, Leased};
use segue_fleet::config::{Backend, Config};
use segue_fleet::etcd::{Batch, Change, Etcd, EtcdError, Login, Made, Position};
use segue_fleet::lease::{self, VALUE_LEN};
use segue_fleet::network::Network;
use segue_fleet::roster::{Policy, Record, Roster};
use ureq::Agent;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a client may hold for the shortest answer: the buffers of its connections.
const FREE: usize = 1 << 20;
/// Most answers of one input.
const ANSWERS: usize = 16;
/// Largest number of peers.
const PEERS: usize = 4;
const DIRECTORY: &str = "/n/subnets";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);
const SUBNET: &str = "198.19.9.0/24";
const VXLAN: &[u8] = br#"{"Network":"198.19.0.0/20","Backend":{"Type":"vxlan","VNI":7}}"#;
/// A network with room for 16 thousand leases.
const SMALL_SUBNETS: &[u8] = br#"{"Network":"198.19.0.0/16","SubnetLen":30,"Backend":{"Type":"vxlan","VNI":7}}"#;
const UDP: &[u8] = br#"{"Network":"198.19.0.0/20","Backend":{"Type":"udp"}}"#;

/// Bits of the first byte, above those of the call: the client logs in, the cluster has two members, the backend is
/// `udp`, and this host had another subnet before.
const HAS_LOGIN: u8 = 1 << 3;
const HAS_MEMBERS: u8 = 1 << 4;
const IS_UDP: u8 = 1 << 5;
const HAD_SUBNET: u8 = 1 << 6;

/// The members of a cluster: each connection gets the next answer, and none is left at the end.
#[derive(Clone, Debug, Default)]
struct Members(Arc<Mutex<VecDeque<Vec<u8>>>>);

/// A connection to a member, which answers whatever is asked.
struct Connection {
    answer: Vec<u8>,
    at: usize,
    buffers: LazyBuffers,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connector<()> for Members {
    type Out = Connection;

    fn connect(&self, _: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Connection>, ureq::Error> {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let answer = answer.ok_or(io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Some(Connection { answer, at: 0, buffers: LazyBuffers::new(16 << 10, 16 << 10) }))
    }
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, _: usize, _: NextTimeout) -> Result<(), ureq::Error> {
        Ok(())
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, ureq::Error> {
        let room = self.buffers.input_append_buf();
        let rest = &self.answer[self.at..];
        let len = room.len().min(rest.len());
        room[..len].copy_from_slice(&rest[..len]);
        self.at += len;
        self.buffers.input_appended(len);
        Ok(len > 0)
    }

    fn is_open(&mut self) -> bool {
        false
    }
}

/// A resolver without a network.
#[derive(Debug)]
struct Addresses;

impl Resolver for Addresses {
    fn resolve(
        &self,
        _: &ureq::http::Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut all = self.empty();
        all.push((ADDRESS, 2379).into());
        Ok(all)
    }
}

/// Returns a client of a member with this answer.
fn answered(document: &[u8]) -> Etcd {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", document.len());
    client(0, VecDeque::from([[head.as_bytes(), document].concat()]))
}

/// Lists the registry of a member with this answer, and returns the number of its leases, all of which become peers.
pub(crate) fn leases(document: &[u8]) -> usize {
    let own = Network::parse("198.19.255.252/30").expect("a network");
    let config = Config::parse(SMALL_SUBNETS).expect("a configuration");
    let policy = Policy { subnet: own, limit: document.len(), ..policy(config) };
    let (mut roster, mut count) = (Roster::new(policy.clone()), 0);
    let mut leased = Leased::new(DIRECTORY, &policy.config, ADDRESS, None);
    let listed = answered(document).list(DIRECTORY, |record| {
        roster.put(&record);
        leased.add(record);
        count += 1;
    });
    listed.expect("a list");
    let judged = roster.judged();
    assert_eq!((judged.leases.len(), judged.refused.len(), judged.left_out), (count, 0, 0));
    assert!(matches!(leased.choose(7), Choice::Free(_)));
    count
}

/// Lists the registry of a member with this answer.
pub(crate) fn read(document: &[u8]) {
    let mut etcd = answered(document);
    let config = Config::parse(VXLAN).expect("a configuration");
    if let Err(error) = list(&mut etcd, &policy(config), 0) {
        check_error(&error);
    }
}

/// Returns the next answer, which a byte with its kind and its length in two bytes precede: a document with the head of
/// an answer or of a failure in front, a stream of chunks, or the bytes as they are.
fn answer(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8();
    let len = usize::from(input.u16());
    let bytes = input.take(len);
    let head = match kind & 3 {
        0 => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len()),
        1 => format!("HTTP/1.1 503 Unavailable\r\nContent-Length: {}\r\n\r\n", bytes.len()),
        2 => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        _ => String::new(),
    };
    let body = match kind & 3 {
        2 => [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n0\r\n\r\n"].concat(),
        _ => bytes.to_vec(),
    };
    [head.into_bytes(), body].concat()
}

fn client(how: u8, answers: VecDeque<Vec<u8>>) -> Etcd {
    // As `segue_fleet::connect` has it.
    let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None).build();
    let agent = Agent::with_parts(config, Members(Arc::new(Mutex::new(answers))), Addresses);
    let count = if how & HAS_MEMBERS == 0 { 1 } else { 2 };
    let endpoints = (1..=count).map(|number| format!("http://198.18.0.{number}:2379")).collect();
    let login = Login { name: "segue".to_owned(), password: "secret".to_owned() };
    Etcd::new(agent, endpoints, (how & HAS_LOGIN != 0).then_some(login))
}

fn policy(config: Config) -> Policy {
    Policy {
        config,
        directory: DIRECTORY.to_owned(),
        address: ADDRESS,
        local: Some([198, 18, 0, 10].into()),
        subnet: Network::parse(SUBNET).expect("a network"),
        mac: "02:00:00:00:00:09".parse().ok(),
        limit: PEERS,
    }
}

/// Checks that the roster has no more than it may, and that its peers do not share addresses.
fn check(roster: &Roster, policy: &Policy) {
    let judged = roster.judged();
    assert!(judged.leases.len() <= PEERS && judged.refused.len() <= 6 * PEERS, "{judged:?}");
    assert!(judged.refused.iter().all(|(key, why)| !key.chars().any(is_hidden) && !why.sentence().is_empty()));
    for (at, lease) in judged.leases.iter().enumerate() {
        assert!(policy.config.has_place_for(lease.subnet) && !lease.subnet.overlaps(policy.subnet), "{lease:?}");
        assert!(judged.leases[..at].iter().all(|other| !other.subnet.overlaps(lease.subnet)), "{lease:?}");
        let key = lease::key_of(lease.subnet, DIRECTORY);
        let value = lease::value(lease.address, policy.config.backend, lease.mac, lease.offer);
        let again = lease::parse(key.as_bytes(), value.as_bytes(), DIRECTORY, &policy.config);
        assert_eq!(again.as_ref(), Ok(lease), "{value}");
    }
}

/// Checks that a failure is short and can be shown.
fn check_error(error: &EtcdError) {
    if let EtcdError::Refused(_, text) = error {
        assert!(text.chars().count() <= 200 && !text.chars().any(is_hidden), "{text:?}");
    }
    assert!(!error.to_string().is_empty());
}

/// Lists the registry: for a roster, and for the choice of this host's subnet.
fn list(etcd: &mut Etcd, policy: &Policy, how: u8) -> Result<(Roster, Position), EtcdError> {
    let mut roster = Roster::new(policy.clone());
    let before = (how & HAD_SUBNET != 0).then(|| Network::parse("198.19.3.0/24").expect("a network"));
    let mut leased = Leased::new(DIRECTORY, &policy.config, ADDRESS, before);
    let position = etcd.list(DIRECTORY, |record| {
        assert!(record.value.len() <= VALUE_LEN + 1);
        roster.put(&record);
        leased.add(record);
    })?;
    check(&roster, policy);
    match leased.choose(how.into()) {
        Choice::Own(subnet, record) => {
            assert_eq!(lease::subnet_of(&record.key, DIRECTORY), Ok(subnet));
            assert!(policy.config.has_place_for(subnet));
        }
        Choice::Free(subnet) => assert!(policy.config.has_place_for(subnet), "{subnet}"),
        Choice::Exhausted => {}
    }
    Ok((roster, position))
}

/// Follows the registry from a position, and changes a roster.
fn watch(etcd: &mut Etcd, roster: &mut Roster, from: &Position) -> Result<(), EtcdError> {
    etcd.watch(DIRECTORY, from, Duration::from_secs(1), |Batch { revision, changes }| {
        assert!(revision == 0 || !changes.is_empty());
        for change in changes {
            match change {
                Change::Put(record) => {
                    roster.put(&record);
                    assert!(record.value.len() <= VALUE_LEN + 1);
                }
                Change::Delete(key) => {
                    roster.remove(&key);
                    assert!(roster.stored(&key).is_none());
                }
            }
        }
        true
    })
}

/// Makes one call of the client, or several, whose connections get arbitrary answers: each call ends, keeps no more
/// than the answers' size allows, and what the registry says results in peers that do not share addresses, or in
/// refusals.
///
/// The first byte has the call (bits 0 to 2), and the bits from [`HAS_LOGIN`] on. Answers follow.
pub fn etcd(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    bounded(data.len(), FREE, || {
        let mut answers = VecDeque::new();
        while !input.is_empty() && answers.len() < ANSWERS {
            answers.push_back(answer(&mut input));
        }
        let mut etcd = client(how, answers);
        assert!(format!("{etcd:?}").contains("198.18.0.") && !format!("{etcd:?}").contains("secret"));
        let config = Config::parse(if how & IS_UDP == 0 { VXLAN } else { UDP }).expect("a configuration");
        if let Err(error) = call(&mut etcd, policy(config), how) {
            check_error(&error);
        }
        assert!(etcd.endpoint().starts_with("http://"));
    });
}

fn call(etcd: &mut Etcd, mut policy: Policy, how: u8) -> Result<(), EtcdError> {
    let ttl = Duration::from_secs(60);
    match how & 7 {
        0 => drop(list(etcd, &policy, how)?),
        1 => configured(etcd.get("/n/config")?),
        2 => {
            let id = etcd.grant(ttl)?;
            assert_ne!(id, 0);
            etcd.keep_alive(id)?;
            etcd.revoke(id)?;
        }
        3 => {
            for made in [etcd.create("/n/subnets/a", "b", 7)?, etcd.replace("/n/subnets/a", "b", 7, 8)?] {
                assert!(matches!(made, Made::New(_) | Made::Exists));
            }
        }
        4 => watch(etcd, &mut Roster::new(policy.clone()), &Position { revision: 5, cluster: "1".to_owned() })?,
        5 => {
            let (mut roster, position) = list(etcd, &policy, how)?;
            watch(etcd, &mut roster, &position)?;
            let (again, _) = list(etcd, &policy, how)?;
            for key in roster.adopt(again) {
                roster.remove(&key);
            }
            check(&roster, &policy);
        }
        // The registry's own configuration counts.
        _ => {
            if let Some(config) = etcd.get("/n/config")?.and_then(|record| Config::parse(&record.value).ok()) {
                policy.config = config;
                list(etcd, &policy, how)?;
            }
        }
    }
    Ok(())
}

/// Checks that a configuration is one that a host can use, or is refused with a sentence.
fn configured(record: Option<Record>) {
    match record.map(|record| Config::parse(&record.value)) {
        Some(Ok(config)) => {
            assert!(config.subnet_min <= config.subnet_max && config.network.contains(config.subnet_max));
            assert!(matches!(config.backend, Backend::Udp { .. } | Backend::Vxlan { .. }) && config.notes.len() <= 2);
        }
        Some(Err(why)) => assert!(!why.is_empty()),
        None => {}
    }
}
