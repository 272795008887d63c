//! The numbers of ports that do not count events, and the states of fleet agents.

use segue_control::fleet::{self, Engine, FleetState};

/// Names of those numbers of a port that are gauges; all others count events, except [`NO_METRIC`].
pub const PORT_STATES: &[&str] = &[
    "link_down",
    "gone",
    "stranger",
    "interface_down",
    "mtu",
    "refused_mtu",
    "link_mbit",
    "peer_table_round_ns",
    "fdb_entries",
    "address_local",
    "address_conflict",
    "udp_segment",
    "trace_failed",
    "trace_full",
    "guest_connected",
    "guest_ready",
    "guest_stalled",
    "guest_csum",
    "guest_tso4",
    "guest_tso6",
    "guest_uso",
    "guest_mergeable",
    "guest_event_idx",
];
/// Numbers of a port that are no metrics: the places of the reasons of its last refusal and of its last stop in lists.
/// Each reason has a metric.
pub const NO_METRIC: &[&str] = &["refused_for", "last_stop"];

/// Returns the names of the states of a fleet agent, each with whether it is in it.
pub(super) fn of_agent(agent: &FleetState) -> [(&'static str, bool); 4] {
    let has_ended = agent.is_dead();
    // What one says that no longer goes on is what it was.
    let engine = if agent.is_silent(fleet::now()) { Engine::Stale } else { agent.state };
    let engines = [Engine::Starting, Engine::Connected, Engine::Stale];
    let [starting, connected, stale] = engines.map(|state| (state.name(), engine == state && !has_ended));
    [starting, connected, stale, ("ended", has_ended)]
}
