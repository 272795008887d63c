//! The resolver of host names: several names in parallel, with one time limit for all, and the addresses of earlier
//! lookups.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::signals::Signals;

/// Largest number of names looked up in parallel, each in its own thread: a thousand have their answers within seconds,
/// and names without an answer do not hold up others.
const MOST_LOOKUPS: usize = 64;
/// Largest number of lookup threads of a process, including those whose answers come after the time limit.
const MOST_THREADS: usize = 256;

/// The addresses of a name in the order of the resolver, or the reason why there are none.
pub type Answer = Result<Vec<IpAddr>, String>;

/// Resolves the addresses of `host` by the system's resolver, however long it takes.
pub fn addresses(host: &str) -> Answer {
    let found = (host, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.map(|found| found.ip()).collect())
}

/// A guard that counts one lookup thread until it is dropped.
struct Asking;

/// Number of running lookup threads.
static ASKING: AtomicUsize = AtomicUsize::new(0);

impl Asking {
    /// Counts one more lookup thread; `None` if there are [`MOST_THREADS`].
    fn begin() -> Option<Asking> {
        let others = ASKING.fetch_add(1, Ordering::Relaxed);
        Some(Asking).filter(|_| others < MOST_THREADS)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reason given for names without an answer in time.
const NO_ANSWER: &str = "the resolver has not answered yet";

/// An address found by an earlier lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedAddress {
    /// Interface for which the address was looked up.
    pub dev: String,
    /// The host name.
    pub host: String,
    /// The host's last resolved address.
    pub address: IpAddr,
}

/// Answers of the resolver for some names, and addresses of earlier lookups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    answers: HashMap<String, Answer>,
    /// The cached addresses by name, each with its interface.
    cached: HashMap<String, Vec<(String, IpAddr)>>,
}

impl Names {
    /// Looks `hosts` up in parallel, and returns the answers available within `limit`. Lookups without an answer end by
    /// themselves, in threads of this process.
    pub fn look_up(hosts: impl IntoIterator<Item = String>, limit: Duration) -> Names {
        let mut lookups = Lookups::begin(hosts);
        lookups.wait(limit);
        lookups.names
    }

    /// Returns the addresses of `host` for the interface `dev`: those of the answer, then for each family without one a
    /// cached address, preferably that of `dev`.
    pub fn addresses(&self, host: &str, dev: &str) -> Answer {
        let answer = self.answers.get(host).cloned().unwrap_or_else(|| Err(NO_ANSWER.to_owned()));
        let cached = self.cached.get(host).map(Vec::as_slice).unwrap_or_default();
        let (own, others): (Vec<_>, Vec<_>) = cached.iter().partition(|(of, _)| of == dev);
        let mut found = answer.clone().unwrap_or_default();
        for (_, address) in own.into_iter().chain(others) {
            if !has_family(&found, *address) {
                found.push(*address);
            }
        }
        if found.is_empty() { answer } else { Ok(found) }
    }

    /// Returns the reason why the answer for `host` has no address of the family of `address`; `None` if it has one.
    pub fn why_cached(&self, host: &str, address: IpAddr) -> Option<String> {
        match self.answers.get(host) {
            None => Some(NO_ANSWER.to_owned()),
            Some(Err(why)) => Some(why.clone()),
            Some(Ok(found)) if has_family(found, address) => None,
            Some(Ok(_)) => {
                Some(format!("the resolver knows no {} address", if address.is_ipv4() { "IPv4" } else { "IPv6" }))
            }
        }
    }

    /// Returns only the answer for `host`.
    pub fn only(&self, host: &str) -> Names {
        let answer = self.answers.get(host).map(|answer| (host.to_owned(), answer.clone()));
        Names { answers: answer.into_iter().collect(), cached: HashMap::new() }
    }

    /// Adds addresses of earlier lookups, which replace missing addresses of a family in the answers.
    pub fn or(mut self, cached: impl IntoIterator<Item = CachedAddress>) -> Names {
        for CachedAddress { dev, host, address } in cached {
            self.cached.entry(host).or_default().push((dev, address));
        }
        self
    }
}

fn has_family(found: &[IpAddr], like: IpAddr) -> bool {
    found.iter().any(|address| address.is_ipv4() == like.is_ipv4())
}

/// Lookups of several names in parallel, and their answers so far.
#[derive(Debug)]
pub struct Lookups {
    received: Receiver<(String, Answer)>,
    names: Names,
    /// The names without an answer.
    unanswered: BTreeSet<String>,
    is_over: bool,
}

impl Lookups {
    /// Starts lookups of `hosts`, in threads of this process. When this is dropped, each thread ends with the name that
    /// it asks for.
    pub fn begin(hosts: impl IntoIterator<Item = String>) -> Lookups {
        Lookups::begin_with(hosts, addresses)
    }

    fn begin_with(
        hosts: impl IntoIterator<Item = String>,
        resolver: impl Fn(&str) -> Answer + Copy + Send + 'static,
    ) -> Lookups {
        let hosts: BTreeSet<String> = hosts.into_iter().collect();
        let threads = hosts.len().min(MOST_LOOKUPS);
        let unanswered = hosts.clone();
        let waiting = Arc::new(Mutex::new(hosts));
        let (answers, received) = channel();
        for _ in 0..threads {
            // The threads that there are do the work of those that cannot be started.
            let Some(asking) = Asking::begin() else { break };
            let (waiting, answers) = (Arc::clone(&waiting), answers.clone());
            let work = move || {
                let _asking = asking;
                // A signal is for the threads that read it, and this one may be there when they begin to.
                let _ = Signals::new();
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
                while let Some(host) = next() {
                    let answer = resolver(&host);
                    // Without a receiver no further name is looked up.
                    if answers.send((host, answer)).is_err() {
                        break;
                    }
                }
            };
            if Builder::new().name("name".to_owned()).spawn(work).is_err() {
                break;
            }
        }
        Lookups { received, names: Names::default(), unanswered, is_over: false }
    }

    /// Waits for all answers, at most `limit`; returns whether there are new ones.
    pub fn wait(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut is_new = false;
        while self.receive(until) {
            is_new = true;
        }
        is_new
    }

    /// Waits for all answers while they keep arriving: until none has arrived for `pause`, at most `limit`.
    pub fn wait_while_answered(&mut self, pause: Duration, limit: Duration) {
        let until = Instant::now() + limit;
        while self.receive(until.min(Instant::now() + pause)) {}
    }

    /// Waits for the next answer; returns whether there is one.
    fn receive(&mut self, until: Instant) -> bool {
        if self.is_over {
            return false;
        }
        match self.received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((host, answer)) => {
                self.unanswered.remove(&host);
                self.names.answers.insert(host, answer);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                self.is_over = true;
                false
            }
        }
    }

    /// Returns the answers so far.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the names without an answer so far.
    pub fn unanswered(&self) -> &BTreeSet<String> {
        &self.unanswered
    }

    /// Returns whether no further answer can arrive.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::thread;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 3));

    /// A test resolver that knows the names that begin with `known`, and takes long for names that begin with `dead`.
    fn resolver(host: &str) -> Answer {
        if host.starts_with("dead") {
            thread::sleep(Duration::from_secs(600));
        }
        if host.starts_with("known") { Ok(vec![ADDRESS]) } else { Err("no such name".to_owned()) }
    }

    fn names(first: &[&str], numbered: usize) -> Vec<String> {
        let more = (0..numbered).map(|n| format!("known{n}"));
        first.iter().map(|name| (*name).to_owned()).chain(more).collect()
    }

    fn look_up(hosts: Vec<String>, limit: Duration) -> Lookups {
        let mut lookups = Lookups::begin_with(hosts, resolver);
        lookups.wait(limit);
        lookups
    }

    fn cached(dev: &str, host: &str, address: IpAddr) -> CachedAddress {
        CachedAddress { dev: dev.to_owned(), host: host.to_owned(), address }
    }

    #[test]
    fn names_without_an_answer_cost_the_others_neither_theirs_nor_more_than_the_limit() {
        let hosts = names(&["dead1", "dead2", "other"], 100);
        let begin = Instant::now();
        let lookups = look_up(hosts.clone(), Duration::from_secs(5));
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        assert!(!lookups.is_over());
        let found = lookups.names();
        for host in hosts.iter().skip(3) {
            assert_eq!(found.addresses(host, "a"), Ok(vec![ADDRESS]), "{host}");
        }
        assert_eq!(found.addresses("other", "a"), Err("no such name".to_owned()));
        for host in ["dead1", "dead2"] {
            assert_eq!(found.addresses(host, "a"), Err("the resolver has not answered yet".to_owned()));
        }
        assert!(lookups.unanswered().iter().eq(["dead1", "dead2"]), "{:?}", lookups.unanswered());
    }

    #[test]
    fn answers_are_awaited_while_they_keep_arriving() {
        // Each comes half a second after the one before: all of them take longer than the pause that ends the wait.
        let slow = |host: &str| {
            let tenths = host.strip_prefix("slow").and_then(|rest| rest.parse::<u64>().ok());
            thread::sleep(Duration::from_millis(100 * tenths.unwrap_or(6000)));
            Ok(vec![ADDRESS])
        };
        let hosts: Vec<String> = (0..9).map(|n| format!("slow{}", 5 * n)).collect();
        let mut lookups = Lookups::begin_with(hosts.iter().cloned().chain(["dead".to_owned()]), slow);
        let begin = Instant::now();
        lookups.wait_while_answered(Duration::from_secs(3), Duration::from_secs(600));
        assert!(begin.elapsed() < Duration::from_secs(300), "{:?}", begin.elapsed());
        assert!(lookups.unanswered().iter().eq(["dead"]), "{:?}", lookups.unanswered());
        for host in &hosts {
            assert_eq!(lookups.names().only(host).addresses(host, "a"), Ok(vec![ADDRESS]), "{host}");
        }
        assert_eq!(lookups.names().only("slow0").answers.len(), 1);
        assert!(lookups.names().only("dead").addresses("slow0", "a").is_err());
        // The limit holds whatever arrives.
        let begin = Instant::now();
        lookups.wait_while_answered(Duration::from_secs(600), Duration::from_millis(10));
        assert!(begin.elapsed() < Duration::from_secs(300) && !lookups.is_over());
    }

    #[test]
    fn the_limit_is_not_waited_for_where_all_names_have_an_answer() {
        let begin = Instant::now();
        let lookups = look_up(names(&["other"], 3), Duration::from_secs(600));
        assert!(begin.elapsed() < Duration::from_secs(300));
        assert!(lookups.is_over());
        assert_eq!(lookups.names().answers.len(), 4);
        let mut none = look_up(Vec::new(), Duration::from_secs(600));
        assert!(none.is_over() && !none.wait(Duration::from_secs(600)));
        assert_eq!(*none.names(), Names::default());
    }

    #[test]
    fn an_answer_that_comes_late_is_there_at_the_next_wait() {
        let slow = |host: &str| {
            if host == "slow" {
                thread::sleep(Duration::from_secs(1));
            }
            Ok(vec![ADDRESS])
        };
        let mut lookups = Lookups::begin_with(["quick", "slow"].map(str::to_owned), slow);
        while lookups.names().addresses("quick", "a").is_err() {
            lookups.wait(Duration::from_millis(10));
        }
        assert!(lookups.names().addresses("slow", "a").is_err() && !lookups.is_over());
        assert!(lookups.wait(Duration::from_secs(600)));
        assert_eq!(lookups.names().addresses("slow", "a"), Ok(vec![ADDRESS]));
        assert!(lookups.is_over());
    }

    #[test]
    fn cached_addresses_stand_for_answers_without_one() {
        let found = look_up(names(&["other"], 1), Duration::from_secs(600)).names().clone();
        let before = [("known0", OTHER), ("other", OTHER), ("third", ADDRESS)];
        let all = found.or(before.map(|(host, address)| cached("a", host, address)));
        assert_eq!(all.addresses("known0", "a"), Ok(vec![ADDRESS]));
        assert_eq!(all.why_cached("known0", OTHER), None);
        // One that is refused is none, as one that is not there yet.
        for (host, address, why) in
            [("other", OTHER, "no such name"), ("third", ADDRESS, "the resolver has not answered yet")]
        {
            assert_eq!(all.addresses(host, "b"), Ok(vec![address]), "{host}");
            assert_eq!(all.why_cached(host, address).as_deref(), Some(why));
        }
        assert_eq!(all.addresses("fourth", "a"), Err("the resolver has not answered yet".to_owned()));
    }

    #[test]
    fn cached_addresses_are_those_of_the_interface_first_and_of_both_families() {
        let six = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let before = [cached("a", "known0", OTHER), cached("b", "known0", six), cached("c", "known0", ADDRESS)];
        let silent = Names::default().or(before.clone());
        for (dev, addresses) in [("a", [OTHER, six]), ("b", [six, OTHER]), ("c", [ADDRESS, six]), ("d", [OTHER, six])] {
            assert_eq!(silent.addresses("known0", dev), Ok(addresses.to_vec()), "{dev}");
        }
        // The answer comes first, and has one family alone.
        let answered = look_up(names(&[], 1), Duration::from_secs(600)).names().clone().or(before);
        for dev in ["a", "b", "c"] {
            assert_eq!(answered.addresses("known0", dev), Ok(vec![ADDRESS, six]), "{dev}");
        }
        assert_eq!(answered.why_cached("known0", six).as_deref(), Some("the resolver knows no IPv6 address"));
    }
}
