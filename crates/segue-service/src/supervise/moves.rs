//! Remotes that are host names and do not answer: the names are looked up again, since they may have other addresses.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use segue_control::client;
use segue_control::model::Complaint;

use super::lookup::ANSWER;
use super::spec::{ALSO, InstanceSpec, Token};
use crate::started;

/// Interval between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The problems that a remote with another address has, by their codes.
const SILENT: &[&str] =
    &["refused", "filtered", "unreachable", "no_route", "neighbour_gone", "probe_unanswered", "unanswered"];

/// The looks for remotes whose names have other addresses. They run in a thread, since answers may take long.
#[derive(Debug, Default)]
pub(super) struct Moves {
    look: Option<JoinHandle<Vec<String>>>,
    /// The time at which the last look began or ended.
    last: Option<Instant>,
}

impl Moves {
    /// Returns when [`Moves::step`] is due; `None` where none of `specs` has a name to look up.
    pub(super) fn due<'a>(&self, mut specs: impl Iterator<Item = &'a InstanceSpec>) -> Option<Instant> {
        if self.look.is_some() {
            return Some(Instant::now() + ANSWER);
        }
        let is_named = specs.any(|spec| !names(spec).is_empty());
        is_named.then(|| self.last.map_or_else(Instant::now, |last| last + INTERVAL))
    }

    /// Begins a look at the instances `specs`, where one is due. Returns the instances that a look has found: those
    /// with a remote that does not answer and whose name has other addresses now.
    pub(super) fn step<'a>(&mut self, specs: impl Iterator<Item = &'a InstanceSpec>) -> Vec<String> {
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            self.last = Some(Instant::now());
            return look.join().unwrap_or_default();
        }
        if self.look.is_some() || self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return Vec::new();
        }
        let mut named: Vec<(String, Vec<(String, String)>)> =
            specs.map(|spec| (spec.name.clone(), names(spec))).collect();
        named.retain(|(_, hosts)| !hosts.is_empty());
        if !named.is_empty() {
            self.last = Some(Instant::now());
            let look = move || {
                let moved = named.into_iter().filter(|(name, hosts)| has_moved(name, hosts));
                moved.map(|(name, _)| name).collect::<Vec<String>>()
            };
            self.look = started::spawn("names", look).ok();
        }
        Vec::new()
    }
}

/// Returns the tunnels of an instance whose remote is a name, with that name.
fn names(spec: &InstanceSpec) -> Vec<(String, String)> {
    let host = |tokens: &[Token]| {
        let pair = tokens.windows(2).find(|pair| pair[0].text == "remote")?;
        let host = &pair[1].text;
        (!host.contains('%') && host.parse::<IpAddr>().is_err()).then(|| host.clone())
    };
    let each = spec.tokens.split(|token| token.text == ALSO).zip(spec.plans());
    each.filter_map(|(tokens, plan)| Some((plan.dev.clone(), host(tokens)?))).collect()
}

/// Returns whether a tunnel of the instance does not get answers from an address that its name does not have any more.
fn has_moved(name: &str, hosts: &[(String, String)]) -> bool {
    let Ok(state) = client::one(name) else { return false };
    hosts.iter().any(|(dev, host)| {
        let is_of = |problem: &&Complaint| problem.tunnels.is_empty() || problem.tunnels.contains(dev);
        let is_silent = state.health.iter().filter(is_of).any(|problem| SILENT.contains(&problem.code.as_str()));
        let remote = state.tunnels.get(dev).and_then(|tunnel| address(&tunnel.remote));
        let Some(remote) = remote.filter(|_| is_silent) else { return false };
        let Ok(found) = (host.as_str(), 0).to_socket_addrs() else { return false };
        let found: Vec<IpAddr> = found.map(|found| found.ip()).collect();
        !found.is_empty() && !found.contains(&remote)
    })
}

/// Returns the address of a remote as an instance shows it, with or without a port.
fn address(remote: &str) -> Option<IpAddr> {
    let with_port = remote.parse::<SocketAddr>().ok().map(|remote| remote.ip());
    with_port.or_else(|| remote.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::spec::{InstancePlan, Kind};
    use super::*;

    #[test]
    fn the_address_of_a_remote_is_read_with_and_without_a_port() {
        let read = |text: &str| address(text).map(|address| address.to_string());
        for (text, expected) in [
            ("198.18.0.2:6080", Some("198.18.0.2")),
            ("198.18.0.2", Some("198.18.0.2")),
            ("[2001:db8::2]:6080", Some("2001:db8::2")),
            ("2001:db8::2", Some("2001:db8::2")),
            ("fe80::1%eth0", None),
        ] {
            assert_eq!(read(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn without_a_name_no_look_is_due() {
        let spec = InstanceSpec {
            kind: Kind::Metrics,
            name: "metrics".to_owned(),
            tokens: Vec::new(),
            assignments: Vec::new(),
            header: 0..0,
            plan: InstancePlan::Metrics,
            unresolved: None,
        };
        let mut moves = Moves::default();
        assert_eq!(moves.due([&spec].into_iter()), None);
        assert_eq!(moves.step([&spec].into_iter()), [""; 0]);
        assert!(moves.look.is_none() && moves.last.is_none());
    }
}
