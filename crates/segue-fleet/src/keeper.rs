//! The thread that acquires this host's lease and keeps it alive.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};

use crate::allocate::{Choice, Leased};
use crate::backoff::{Backoff, random};
use crate::config::Config;
use crate::datapath::LocalEndpoint;
use crate::etcd::{Etcd, EtcdError, Made};
use crate::event::{Acquired, Event};
use crate::lease::{self, Offer};
use crate::network::{Network, is_host};
use crate::roster::Record;

/// Longest wait between attempts to reach etcd.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Longest time between renewals of the lease.
const RENEWAL: Duration = Duration::from_secs(3600);
/// Shortest time between renewals of the lease for a message: the registry reports what this host writes, too.
const DISTANCE: Duration = Duration::from_millis(500);
/// Time after which what the loop of the agent has not taken is reported again.
const AGAIN: Duration = Duration::from_millis(100);
/// Time within which a lease of this host's address that another program writes twice shows another agent.
const CONTEST: Duration = Duration::from_secs(60);
/// The number of other hosts that may win a race for a subnet before it is reported; the attempts continue.
const RACES: usize = 100;

/// The intended content of the lease.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The prefix of the registry.
    pub prefix: String,
    /// The address of this host.
    pub address: Ipv4Addr,
    /// The interface of the tunnel.
    pub name: String,
    /// Local endpoint of the tunnel.
    pub end: LocalEndpoint,
    /// Encapsulation that this host offers to other segue nodes.
    pub offer: Option<Offer>,
    /// The time to live of the lease.
    pub ttl: Duration,
    /// The subnet that this host had before.
    pub before: Option<Network>,
}

/// The lease that this host holds.
struct Held {
    key: String,
    value: String,
    subnet: Network,
    /// The id of etcd's lease; 0 for a reservation.
    id: i64,
    /// The network of the fleet.
    network: Network,
    /// The time at which this host last wrote it in place of another program's with the same address.
    rewritten: Option<Instant>,
    /// Whether its key named no host when it was looked at last.
    is_gone: bool,
}

/// A lease of etcd with which no put is known to have succeeded.
struct Spare {
    id: i64,
    /// The subnet that it was granted for. A put without an answer can still be executed, so that no other subnet may
    /// get the lease: it would keep both alive.
    subnet: Network,
}

/// Acquires a lease and keeps it alive until it is lost or the receiver of `events` is gone. A message on `check`
/// renews it soon.
pub fn run(mut etcd: Etcd, terms: &Terms, events: &SyncSender<Event>, check: &Receiver<()>) {
    let mut spare = None;
    let Some(mut held) = first_lease(&mut etcd, terms, &mut spare, events) else { return };
    let mut backoff = Backoff::new(LONGEST_WAIT.min(terms.ttl / 4));
    let interval = (terms.ttl / 3).min(RENEWAL);
    let mut last = Instant::now();
    let mut due = last + interval;
    // What the loop has not taken yet: it may be behind, and the lease is renewed meanwhile.
    let mut report: Option<Event> = None;
    loop {
        if let Some(event) = report.take() {
            match events.try_send(event) {
                Err(TrySendError::Full(event)) => report = Some(event),
                Err(TrySendError::Disconnected(_)) => return,
                Ok(()) => {}
            }
        }
        let left = due.saturating_duration_since(Instant::now());
        match check.recv_timeout(if report.is_some() { left.min(AGAIN) } else { left }) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) => std::thread::sleep(DISTANCE.saturating_sub(last.elapsed())),
            Err(RecvTimeoutError::Timeout) if Instant::now() < due => continue,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while check.try_recv().is_ok() {}
        last = Instant::now();
        let wait = match renew(&mut etcd, terms, &mut held, &mut spare) {
            Ok(()) => {
                backoff.succeeded();
                report = Some(Event::Renewed { expires: held.id != 0 });
                interval
            }
            Err(Failure::Fatal(error)) => {
                let _ = events.send(Event::Fatal(error));
                return;
            }
            Err(Failure::Later(why)) => {
                report = Some(Event::NotRenewed { why, is_gone: held.is_gone });
                backoff.failed().min(interval)
            }
        };
        due = Instant::now() + wait;
    }
}

/// Acquires a lease, however many attempts it takes. `None` where there can be none, or the receiver of `events` is
/// gone.
fn first_lease(etcd: &mut Etcd, terms: &Terms, spare: &mut Option<Spare>, events: &SyncSender<Event>) -> Option<Held> {
    let mut backoff = Backoff::new(LONGEST_WAIT.min(terms.ttl / 4));
    loop {
        match acquire(etcd, terms, spare) {
            Ok((held, acquired)) => {
                return events.send(Event::Acquired(Box::new(acquired))).is_ok().then_some(held);
            }
            Err(Failure::Fatal(error)) => {
                let _ = events.send(Event::Fatal(error));
                return None;
            }
            Err(Failure::Later(why)) => events.send(Event::Stale(why)).ok()?,
        }
        std::thread::sleep(backoff.failed());
    }
}

enum Failure {
    /// A failure that may pass: the attempt is repeated.
    Later(String),
    /// A failure that ends the agent.
    Fatal(Error),
}

impl From<EtcdError> for Failure {
    fn from(error: EtcdError) -> Failure {
        Failure::Later(error.to_string())
    }
}

/// Returns a lease of etcd for a put of this subnet: that of an earlier attempt while it exists, else a new one. It
/// stays in `spare` until a put with it has succeeded: one that failed can have happened, and each attempt would leave
/// another lease. That of another subnet is revoked.
fn granted(etcd: &mut Etcd, ttl: Duration, spare: &mut Option<Spare>, subnet: Network) -> Result<i64, EtcdError> {
    match spare {
        Some(old) if old.subnet != subnet => {
            revoke(etcd, old.id)?;
            *spare = None;
        }
        Some(old) if etcd.keep_alive(old.id)? => return Ok(old.id),
        _ => {}
    }
    let id = etcd.grant(ttl)?;
    *spare = Some(Spare { id, subnet });
    Ok(id)
}

/// Revokes a lease of etcd. One that etcd does not revoke is gone already, or ends by itself.
fn revoke(etcd: &mut Etcd, id: i64) -> Result<(), EtcdError> {
    match etcd.revoke(id) {
        Err(EtcdError::Refused(..)) => Ok(()),
        outcome => outcome,
    }
}

fn acquire(etcd: &mut Etcd, terms: &Terms, spare: &mut Option<Spare>) -> Result<(Held, Acquired), Failure> {
    let config_key = format!("{}/config", terms.prefix);
    let Some(record) = etcd.get(&config_key)? else {
        return Err(Failure::Later(format!("there is no {config_key}: nothing says what the network is")));
    };
    let config = Config::parse(&record.value).map_err(|why| Failure::Later(format!("{config_key}: {why}")))?;
    if !is_host(terms.address) {
        let message = format!("{} is loopback, link-local, multicast or reserved", terms.address);
        let error = Error::new(Kind::BadValue, message, "--public-ip with the address of the link below");
        return Err(Failure::Fatal(error.why("every other host would refuse the lease")));
    }
    if config.network.contains(terms.address) {
        return Err(Failure::Fatal(
            Error::new(
                Kind::Conflict,
                format!("{} is in the network {}: the tunnel would carry itself", terms.address, config.network),
                "--public-ip with the address of the link below",
            )
            .why("it is the address at which other hosts reach this one"),
        ));
    }
    terms.end.check(&terms.name, config.backend, terms.offer).map_err(Failure::Fatal)?;
    let value = lease::value(terms.address, config.backend, terms.end.mac, terms.offer);
    let directory = format!("{}/subnets", terms.prefix);
    for _ in 0..RACES {
        // What an attempt before has put without an answer is still this host's.
        let before = spare.as_ref().map(|spare| spare.subnet).or(terms.before);
        let mut leased = Leased::new(&directory, &config, terms.address, before);
        etcd.list(&directory, |record| leased.add(record))?;
        let (subnet, found) = match leased.choose(random()) {
            Choice::Own(subnet, record) => (subnet, Some(record)),
            Choice::Free(subnet) => (subnet, None),
            Choice::Exhausted => {
                if let Some(spare) = spare.take() {
                    // It ends by itself otherwise.
                    let _ = etcd.revoke(spare.id);
                }
                return Err(Failure::Fatal(exhausted(&config)));
            }
        };
        let key = lease::key_of(subnet, &directory);
        // A reservation has no end, and gets none.
        let id = match &found {
            Some(record) if record.lease == 0 => 0,
            _ => granted(etcd, terms.ttl, spare, subnet)?,
        };
        let key = match &found {
            // On dual stack the key has an IPv6 part too.
            Some(record) => String::from_utf8_lossy(&record.key).into_owned(),
            None => key,
        };
        let made = match &found {
            Some(record) => etcd.replace(&key, &value, id, record.modified)?,
            None => etcd.create(&key, &value, id)?,
        };
        // Another host was faster: what is free now?
        if let Made::New(_) = made {
            spare.take_if(|spare| spare.id == id);
            let network = config.network;
            let acquired = Acquired { config, subnet, is_reservation: id == 0, endpoint: etcd.endpoint().to_owned() };
            return Ok((Held { key, value, subnet, id, network, rewritten: None, is_gone: false }, acquired));
        }
    }
    Err(Failure::Later(format!("other hosts were faster {RACES} times")))
}

fn exhausted(config: &Config) -> Error {
    Error::new(
        Kind::Conflict,
        format!("no subnet is free in {}: {} to {}", config.network, config.subnet_min, config.subnet_max),
        "remove the leases of hosts that are gone, or enlarge Network in the configuration",
    )
    .why(format!("every subnet of /{} is leased", config.subnet_len))
}

/// Renews the lease, or creates it again where it has expired and its subnet is free.
fn renew(etcd: &mut Etcd, terms: &Terms, held: &mut Held, spare: &mut Option<Spare>) -> Result<(), Failure> {
    let alive = held.id == 0 || etcd.keep_alive(held.id)?;
    let found = etcd.get(&held.key)?;
    let network = held.network;
    // An address that no host can have names none.
    let owner_of = |record: &Record| {
        lease::public_address(&record.value).filter(|owner| is_host(*owner) && !network.contains(*owner))
    };
    let owner = found.as_ref().and_then(owner_of);
    held.is_gone = owner.is_none();
    // Where the key has an IPv6 part, one without goes before it: other hosts send to the host of that one.
    let usual = lease::key_of(held.subnet, &format!("{}/subnets", terms.prefix));
    if usual != held.key
        && let Some(record) = etcd.get(&usual)?
        && owner_of(&record).is_some_and(|owner| owner != terms.address)
    {
        return Err(lost(terms, &usual));
    }
    let is_own = |record: &Record| record.lease == held.id && record.value == held.value.as_bytes();
    // A put of this host that was executed without an answer is no other program's.
    let is_late = |record: &Record| spare.as_ref().is_some_and(|spare| spare.id == record.lease);
    // Agents write with a lease; without one it is an administrator's, and a reservation.
    let is_foreign = |record: &Record| record.lease != 0 && !is_own(record) && !is_late(record);
    let is_contested = owner.is_some() && found.as_ref().is_some_and(is_foreign);
    let (id, made) = match &found {
        Some(record) if alive && is_own(record) => return Ok(()),
        Some(_) if owner.is_some_and(|owner| owner != terms.address) => return Err(lost(terms, &held.key)),
        Some(_) if is_contested && held.rewritten.is_some_and(|then| then.elapsed() < CONTEST) => {
            return Err(contested(terms, held));
        }
        // A value that names no host is written again.
        Some(record) => {
            let is_reservation = record.lease == 0 && (held.id == 0 || owner.is_some());
            let id = if is_reservation { 0 } else { granted(etcd, terms.ttl, spare, held.subnet)? };
            (id, etcd.replace(&held.key, &held.value, id, record.modified)?)
        }
        None => {
            let id = granted(etcd, terms.ttl, spare, held.subnet)?;
            (id, etcd.create(&held.key, &held.value, id)?)
        }
    };
    match made {
        Made::New(_) => {
            spare.take_if(|spare| spare.id == id);
            held.is_gone = false;
            let before = std::mem::replace(&mut held.id, id);
            if alive && before != 0 && before != id {
                // It has no key any more, and ends by itself otherwise.
                let _ = etcd.revoke(before);
            }
            if is_contested {
                held.rewritten = Some(Instant::now());
            }
            Ok(())
        }
        Made::Exists => Err(Failure::Later(format!("{} changed in between", held.key))),
    }
}

fn contested(terms: &Terms, held: &Held) -> Failure {
    let error = Error::new(
        Kind::Conflict,
        format!("another agent has the address {}", terms.address),
        "end one of the two, or --public-ip with another address",
    );
    Failure::Fatal(error.why(format!("it writes the lease {} too, time and again", held.key)))
}

fn lost(terms: &Terms, key: &str) -> Failure {
    let error = Error::new(
        Kind::Conflict,
        format!("the lease {key} of {} belongs to another host now", terms.address),
        "start it again: it gets another subnet, and the addresses behind it change",
    );
    Failure::Fatal(error.why("it had ended, and its subnet was given away"))
}
