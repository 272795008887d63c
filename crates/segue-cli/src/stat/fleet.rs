//! The lines below the table on agents, which configure the peers of tunnels from a fleet's registry.

use std::collections::BTreeMap;

use segue_control::error::printable_line;
use segue_control::fleet::{self, Engine, FleetState};
use segue_control::units;

/// Returns the lines of output for fleet agents.
pub(super) fn lines(states: &BTreeMap<String, FleetState>) -> String {
    states.values().map(|state| line(state, fleet::now())).collect()
}

fn line(state: &FleetState, now: u64) -> String {
    let ago = |then: u64| units::short_duration(now.saturating_sub(then));
    let mut parts = vec![match state.state {
        Engine::Connected if state.engine == "hook" => "driven by flanneld".to_owned(),
        Engine::Connected => format!("connected to {} for {}", state.endpoint, ago(state.since)),
        Engine::Stale => format!("stale since {}", ago(state.since)),
        Engine::Starting => format!("starting for {}", ago(state.since)),
    }];
    parts.extend(state.error.clone());
    parts.extend(state.table_error.iter().chain(&state.file_error).cloned());
    if state.is_dead() {
        parts.push(format!("its process {} is gone, the table stays", state.pid));
    }
    parts.push(format!("{} peers", state.peers));
    if !state.subnet.is_empty() {
        let renewed = state.renewed.map(|renewed| format!(", renewed {} ago", ago(renewed))).unwrap_or_default();
        parts.push(format!("lease {}{renewed}", state.subnet));
    }
    if state.revision > 0 {
        parts.push(format!("revision {}", state.revision));
    }
    parts.extend(state.last_event.as_ref().map(|event| format!("{} {} ago", event.what, ago(event.at))));
    let refused: Vec<String> = state.refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if !refused.is_empty() {
        parts.push(format!("refused: {}", refused.join(", ")));
    }
    printable_line(&format!("{}: {}: {}", state.name, state.engine, parts.join("; "))) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_the_agent_knows_and_since_when() {
        let mut state = FleetState {
            name: "sg0".into(),
            pid: std::process::id(),
            engine: "etcd".into(),
            endpoint: "https://198.18.0.1:2379".into(),
            state: Engine::Connected,
            since: 88,
            revision: 42,
            subnet: "198.19.5.0/24".into(),
            renewed: Some(90),
            peers: 3,
            ..FleetState::default()
        };
        let known = "3 peers; lease 198.19.5.0/24, renewed 10s ago; revision 42";
        assert_eq!(line(&state, 100), format!("sg0: etcd: connected to https://198.18.0.1:2379 for 12s; {known}\n"));
        (state.state, state.error) = (Engine::Stale, Some("no\u{1b}route".into()));
        state.refused = BTreeMap::from([("overlap".to_owned(), 2)]);
        assert_eq!(line(&state, 100), format!("sg0: etcd: stale since 12s; no?route; {known}; refused: overlap 2\n"));
    }
}
