//! The numbers of ports that do not count events.

/// Names of those numbers of a port that are gauges; all others count events, except [`NO_METRIC`].
pub const PORT_STATES: &[&str] = &[
    "link_down",
    "gone",
    "stranger",
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
/// The number of a port that is no metric: the place of the last refusal's reason in a list. Drops have the reasons.
pub const NO_METRIC: &str = "refused_for";
