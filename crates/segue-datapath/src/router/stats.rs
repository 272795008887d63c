//! What a router counts.

use segue::reason::Counts;

use super::Router;
use crate::board::{Group, Sink, Stage};
use crate::forward::DropReason;
use crate::ingress::Traffic;
use crate::nat;

/// What is counted at the port where packets came in; at the second one also for what was made here.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) nat_in: Traffic,
    pub(super) route: Traffic,
    pub(super) nat_out: Traffic,
    pub(super) drops: Counts<DropReason>,
    pub(super) refusals: Counts<nat::Refusal>,
    /// Frames to others, which a port sees where several hosts share a link, and packets for the host itself.
    pub(super) foreign: u64,
    pub(super) local: u64,
    /// Errors sent to those whose packets came in here, and those that were too many.
    pub(super) errors: u64,
    pub(super) errors_limited: u64,
    /// Questions for link addresses.
    pub(super) questions: u64,
    /// Neighbours that were heard of at another link address, and those that have made room for others.
    pub(super) moved: u64,
    pub(super) displaced: u64,
}

impl Router {
    /// Writes the counters of the port `at`.
    pub(super) fn collect_port(&self, at: usize, sink: &mut Sink<'_>) {
        self.pair.collect(at, sink);
        let (name, stats) = (self.pair.ends[at].name.as_str(), &self.stats[at]);
        stats.route.collect(name, Stage::Route, sink);
        if self.nat.is_some() {
            stats.nat_in.collect(name, Stage::NatIn, sink);
            stats.nat_out.collect(name, Stage::NatOut, sink);
            sink.reasons(name, Group::Drops, &stats.refusals);
        }
        sink.reasons(name, Group::Drops, &stats.drops);
        for (key, value) in [
            ("foreign", stats.foreign),
            ("local", stats.local),
            ("icmp_errors", stats.errors),
            ("icmp_errors_limited", stats.errors_limited),
            ("neighbour_questions", stats.questions),
            ("neighbours_moved", stats.moved),
            ("neighbours_displaced", stats.displaced),
        ] {
            sink.put(name, Group::Port, key, value);
        }
    }

    /// Writes the counters that belong to no port.
    pub(super) fn collect_tables(&self, sink: &mut Sink<'_>) {
        let lookups = self.forwarder.lookups();
        for (key, value) in [
            ("route_batches", lookups.batches),
            ("route_packets", lookups.packets),
            ("route_groups", lookups.groups),
            ("route_lookups", lookups.routes),
            ("neighbour_lookups", lookups.neighbours),
            ("routes", self.forwarder.routes.len() as u64),
            ("neighbours", self.forwarder.neighbours.len() as u64),
        ] {
            sink.put("", Group::Worker, key, value);
        }
        if let Some((nat, _)) = &self.nat {
            sink.put("", Group::Worker, "nat_mappings", nat.len() as u64);
        }
    }
}
