//! The problems of fleet agents, which HEALTH has beside those of the tunnels that they configure.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::fleet::{self, Engine, FleetState, HOOK};
use crate::model::{Complaint, Instance};
use crate::units;

/// Time for which the registry, or the tunnel, may be out of reach before it is a problem, seconds.
const PATIENCE: u64 = 60;

/// Reads the states of the fleet agents of these instances, and adds the problems of each to those of its instance.
/// Returns the states by name.
pub fn add(instances: &mut [Instance]) -> BTreeMap<String, FleetState> {
    let now = fleet::now();
    let mut states = BTreeMap::new();
    for instance in instances {
        if let Some(state) = fleet::read(&instance.name) {
            instance.health.extend(problems(&state, now));
            states.insert(instance.name.clone(), state);
        }
    }
    states
}

/// Returns the problems of an agent.
fn problems(state: &FleetState, now: u64) -> Vec<Complaint> {
    let age = |then: u64| now.saturating_sub(then);
    let with_error = |why: String| match &state.error {
        Some(error) => format!("{why}; {error}"),
        None => why,
    };
    if state.is_dead() {
        let why = with_error(format!("its process {} is gone; the table stays as it is", state.pid));
        let fix = format!("segue fleet etcd --dev {0} ..., or remove {0}.fleet.json beside its socket", state.name);
        return vec![problem("fleet_ended", "the fleet agent has ended", Some(why), None, &fix)];
    }
    let mut found = Vec::new();
    if state.is_stopped() {
        let why = format!("a signal has stopped its process {}; the table stays as it is", state.pid);
        let fix = format!("kill -CONT {}", state.pid);
        found.push(problem("fleet_stale", "the fleet agent does not follow its registry", Some(why), None, &fix));
    } else if state.is_silent(now) {
        let why = format!("its process {} no longer writes its state; the table stays as it is", state.pid);
        let what = "the fleet agent does not follow its registry";
        let fix = "start it again: it has ended elsewhere, hangs, or cannot write beside its control socket";
        found.push(problem("fleet_stale", what, Some(with_error(why)), Some(state.seen), fix));
    } else if state.state != Engine::Connected && age(state.since) > PATIENCE {
        let (what, fix) = match state.engine.as_str() {
            HOOK => ("flanneld's hooks change nothing", "restart flanneld: it begins with pre and post"),
            _ => ("the fleet's registry is not reached", "start etcd, or mend its path"),
        };
        found.push(problem("fleet_stale", what, state.error.clone(), Some(state.since), fix));
    }
    if let Some(since) = state.table_failed.filter(|since| age(*since) > PATIENCE) {
        let what = "the tunnel does not take the fleet's table";
        found.push(problem("fleet_table", what, state.table_error.clone(), Some(since), "segue stat --why"));
    }
    // An agent renews it after a third. A reservation never ends.
    let late = state.renewed.filter(|renewed| state.ttl > 0 && 2 * age(*renewed) > state.ttl);
    let gone = state.lease_gone.filter(|since| age(*since) > PATIENCE);
    if let Some(since) = gone.or(late) {
        let what = match gone {
            Some(_) => "this host's lease is gone, and the registry takes no other one",
            None => "the fleet agent does not renew its lease",
        };
        let fix = "let the agent's user write below PREFIX/subnets/";
        found.push(problem("fleet_lease", what, state.error.clone(), Some(since), fix));
    }
    if let Some(error) = &state.file_error {
        let what = "the fleet agent cannot write subnet.env";
        found.push(problem("fleet_file", what, Some(error.clone()), None, "another --subnet-file, or make room there"));
    }
    found
}

fn problem(code: &str, what: &str, why: Option<String>, since: Option<u64>, fix: &str) -> Complaint {
    Complaint {
        what: what.to_owned(),
        why,
        since: since.map(|since| units::rfc3339(UNIX_EPOCH + Duration::from_secs(since))),
        code: code.to_owned(),
        fix: Some(fix.to_owned()),
        ..Complaint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::pid_namespace;

    const NOW: u64 = 1_000_000;

    fn agent() -> FleetState {
        FleetState {
            name: "sg0".to_owned(),
            pid: std::process::id(),
            engine: "etcd".to_owned(),
            state: Engine::Connected,
            since: 88,
            ttl: 100,
            renewed: Some(NOW - 50),
            ..FleetState::default()
        }
    }

    #[track_caller]
    fn assert_codes(state: &FleetState, expected: &[&str]) {
        let codes: Vec<String> = problems(state, NOW).into_iter().map(|note| note.code).collect();
        assert_eq!(codes, expected, "{state:?}");
        assert!(codes.iter().all(|code| crate::health::find(code).is_some()), "no sentence for one of {codes:?}");
    }

    #[test]
    fn an_agent_that_follows_its_registry_has_no_problem() {
        assert_codes(&agent(), &[]);
        // A reservation has no time to live, and flanneld's hooks have no process of their own.
        assert_codes(&FleetState { ttl: 0, renewed: Some(1), ..agent() }, &[]);
        assert_codes(&FleetState { engine: "hook".to_owned(), pid: 0, renewed: None, ..agent() }, &[]);
    }

    #[test]
    fn each_failure_of_an_agent_is_a_problem_once_it_lasts() {
        for state in [Engine::Stale, Engine::Starting] {
            assert_codes(&FleetState { state, since: NOW - 60, ..agent() }, &[]);
            assert_codes(&FleetState { state, since: NOW - 61, ..agent() }, &["fleet_stale"]);
        }
        let of_hooks = FleetState { state: Engine::Stale, engine: HOOK.to_owned(), pid: 0, renewed: None, ..agent() };
        assert_codes(&of_hooks, &["fleet_stale"]);
        assert!(problems(&of_hooks, NOW)[0].fix.as_ref().is_some_and(|fix| fix.starts_with("restart flanneld")));
        assert_codes(&FleetState { table_failed: Some(NOW - 60), ..agent() }, &[]);
        assert_codes(&FleetState { table_failed: Some(NOW - 61), ..agent() }, &["fleet_table"]);
        assert_codes(&FleetState { renewed: Some(NOW - 51), ..agent() }, &["fleet_lease"]);
        // Without it other hosts send nothing here, whenever it was renewed; a reservation is no exception.
        for ttl in [0, 100] {
            assert_codes(&FleetState { ttl, lease_gone: Some(NOW - 60), ..agent() }, &[]);
            assert_codes(&FleetState { ttl, lease_gone: Some(NOW - 61), ..agent() }, &["fleet_lease"]);
        }
        assert_codes(&FleetState { file_error: Some("disk full".to_owned()), ..agent() }, &["fleet_file"]);
        let all = FleetState { state: Engine::Stale, table_failed: Some(1), renewed: Some(1), ..agent() };
        assert_codes(&all, &["fleet_stale", "fleet_table", "fleet_lease"]);
        // No process has this number.
        let ended = FleetState { pid: u32::MAX, ..all };
        assert_codes(&ended, &["fleet_ended"]);
        let elsewhere = |pid_namespace| FleetState { pid: u32::MAX, pid_namespace, ..agent() };
        assert_codes(&elsewhere(pid_namespace()), &["fleet_ended"]);
        // A container's.
        assert_codes(&elsewhere(pid_namespace() + 1), &[]);
        let said = FleetState { error: Some("another agent has the address".to_owned()), ..ended };
        let why = problems(&said, NOW)[0].why.clone().unwrap();
        assert!(why.ends_with("the table stays as it is; another agent has the address"), "{why}");
    }

    #[test]
    fn an_agent_that_a_signal_has_stopped_is_a_problem_until_it_goes_on() {
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let of = |pid_namespace| FleetState { pid: process.id(), pid_namespace, ..agent() };
        for (signal, expected) in [(libc::SIGSTOP, &["fleet_stale"][..]), (libc::SIGCONT, &[])] {
            segue_host::sys::kill(process.id().cast_signed(), signal).unwrap();
            let begin = std::time::Instant::now();
            while problems(&of(pid_namespace()), NOW).is_empty() != expected.is_empty() {
                assert!(begin.elapsed() < Duration::from_secs(60), "signal {signal}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_codes(&of(0), expected);
            assert_codes(&of(pid_namespace() + 1), &[]);
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn an_agent_has_ended_although_its_number_is_still_in_use_or_again() {
        let mut process = std::process::Command::new("true").spawn().unwrap();
        let ended = FleetState { pid: process.id(), ..agent() };
        let begin = std::time::Instant::now();
        while problems(&ended, NOW).is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60), "what has ended is there until its parent waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_codes(&ended, &["fleet_ended"]);
        process.wait().unwrap();
        // This process has the number, and did not start then.
        let started = fleet::started();
        assert_ne!(started, 0);
        let of = |started| FleetState { started, pid_namespace: pid_namespace(), ..agent() };
        assert_codes(&of(started), &[]);
        assert_codes(&of(started + 1), &["fleet_ended"]);
        assert_codes(&FleetState { pid_namespace: pid_namespace() + 1, ..of(started + 1) }, &[]);
        // What an agent of an earlier version has written, and flanneld's hooks.
        assert_codes(&of(0), &[]);
        assert_codes(&FleetState { pid: 0, ..of(started + 1) }, &[]);
    }

    #[test]
    fn an_agent_that_writes_nothing_is_a_problem_wherever_its_process_is() {
        for namespace in [pid_namespace(), pid_namespace() + 1] {
            let of = |seen| FleetState { seen, pid_namespace: namespace, ..agent() };
            assert_codes(&of(NOW - 90), &[]);
            assert_codes(&of(NOW - 91), &["fleet_stale"]);
            assert_codes(&FleetState { state: Engine::Stale, ..of(1) }, &["fleet_stale"]);
            // One of an earlier version does not say it, and the clock can have been set back.
            assert_codes(&of(0), &[]);
            assert_codes(&of(NOW + 3600), &[]);
        }
    }

    #[test]
    fn a_problem_says_why_and_since_when() {
        let error = Some("the lease is not renewed: etcd: permission denied".to_owned());
        let state = FleetState { renewed: Some(60), error: error.clone(), ..agent() };
        let found = problems(&state, NOW);
        assert_eq!((found[0].why.clone(), found[0].since.as_deref()), (error, Some("1970-01-01T00:01:00.000Z")));
        assert!(found[0].fix.is_some());
    }
}
