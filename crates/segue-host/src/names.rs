//! The resolver of host names: several names side by side, with one limit of time for all of them.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::signals::Signals;

/// Most names that are looked up side by side, each in a thread of its own: a thousand have their answers within
/// seconds, and some without one keep no other from being asked.
const MOST_LOOKUPS: usize = 64;
/// Most such threads of a process, with those whose answers come after the limit.
const MOST_THREADS: usize = 256;

/// The addresses of a name in the order of the resolver, or the reason why there are none.
pub type Answer = Result<Vec<IpAddr>, String>;

/// Asks the resolver of this system for the addresses of `host`, and waits for as long as it takes.
pub fn addresses(host: &str) -> Answer {
    let found = (host, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.map(|found| found.ip()).collect())
}

/// A thread that asks the resolver, until it is dropped.
struct Asking;

/// The number of threads that ask the resolver.
static ASKING: AtomicUsize = AtomicUsize::new(0);

impl Asking {
    /// Counts one more thread; `None` where there are [`MOST_THREADS`].
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

/// The answers of the resolver for some names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(HashMap<String, Answer>);

impl Names {
    /// Looks `hosts` up side by side, and returns the answers that are there within `limit`. Lookups without an answer
    /// end by themselves, in threads of this process.
    pub fn look_up(hosts: impl IntoIterator<Item = String>, limit: Duration) -> Names {
        Names::look_up_with(hosts, limit, addresses)
    }

    fn look_up_with(
        hosts: impl IntoIterator<Item = String>,
        limit: Duration,
        resolver: impl Fn(&str) -> Answer + Copy + Send + 'static,
    ) -> Names {
        let until = Instant::now() + limit;
        let hosts: BTreeSet<String> = hosts.into_iter().collect();
        let threads = hosts.len().min(MOST_LOOKUPS);
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
                    // Behind the limit there is no receiver, and no further name is looked up.
                    if answers.send((host, answer)).is_err() {
                        break;
                    }
                }
            };
            if Builder::new().name("name".to_owned()).spawn(work).is_err() {
                break;
            }
        }
        drop(answers);
        let mut names = Names::default();
        while let Ok((host, answer)) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            names.0.insert(host, answer);
        }
        names
    }

    /// Returns the answer for `host`.
    pub fn addresses(&self, host: &str) -> Answer {
        self.0.get(host).cloned().unwrap_or_else(|| Err("the resolver has not answered yet".to_owned()))
    }

    /// Returns the answers that have an address.
    pub fn found(mut self) -> Names {
        self.0.retain(|_, answer| answer.as_ref().is_ok_and(|found| !found.is_empty()));
        self
    }

    /// Adds addresses that are `known` for names without an answer.
    pub fn or(mut self, known: impl IntoIterator<Item = (String, IpAddr)>) -> Names {
        let mut more: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for (host, address) in known.into_iter().filter(|(host, _)| !self.0.contains_key(host)) {
            more.entry(host).or_default().push(address);
        }
        self.0.extend(more.into_iter().map(|(host, found)| (host, Ok(found))));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 3));

    /// Knows the names that begin with `known`; for the `dead` ones, the first in the alphabet, it takes long.
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

    #[test]
    fn names_without_an_answer_cost_the_others_neither_theirs_nor_more_than_the_limit() {
        let hosts = names(&["dead1", "dead2", "other"], 100);
        let begin = Instant::now();
        let found = Names::look_up_with(hosts.clone(), Duration::from_secs(5), resolver);
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        for host in hosts.iter().skip(3) {
            assert_eq!(found.addresses(host), Ok(vec![ADDRESS]), "{host}");
        }
        assert_eq!(found.addresses("other"), Err("no such name".to_owned()));
        for host in ["dead1", "dead2"] {
            assert_eq!(found.addresses(host), Err("the resolver has not answered yet".to_owned()));
        }
    }

    #[test]
    fn the_limit_is_not_waited_for_where_all_names_have_an_answer() {
        let begin = Instant::now();
        let found = Names::look_up_with(names(&["other"], 3), Duration::from_secs(600), resolver);
        assert!(begin.elapsed() < Duration::from_secs(300));
        assert_eq!(found.found(), Names::default().or(names(&[], 3).into_iter().map(|host| (host, ADDRESS))));
        assert_eq!(Names::look_up_with(Vec::new(), Duration::from_secs(600), resolver), Names::default());
    }

    #[test]
    fn known_addresses_stand_for_answers_that_are_missing_alone() {
        let found = Names::look_up_with(names(&["other"], 1), Duration::from_secs(600), resolver);
        let known = [("known0", OTHER), ("other", OTHER), ("third", OTHER), ("third", ADDRESS)];
        let all = found.or(known.map(|(host, address)| (host.to_owned(), address)));
        assert_eq!(all.addresses("known0"), Ok(vec![ADDRESS]));
        assert_eq!(all.addresses("other"), Err("no such name".to_owned()));
        assert_eq!(all.addresses("third"), Ok(vec![OTHER, ADDRESS]));
    }
}
