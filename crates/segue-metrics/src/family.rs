//! Metric families: name, type, labels, help, and the represented part of the document of `segue stat`.

mod kind;
mod states;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use segue_control::fleet::FleetState;
use segue_control::model::{FastpathPeers, Flow, Instance, PeerTable, Port, Seen, Side, Tunnel};

pub use self::kind::Kind;
pub use self::states::{NO_METRIC, PORT_STATES};
use crate::scrape::{Scrape, Sentence};

/// A map of counters by name.
type Counters = BTreeMap<String, u64>;
/// A function that returns a map of counters of a port.
type CountersOf = fn(&Port) -> &Counters;

/// The location of a family's values in the document of `segue stat`.
#[derive(Clone, Copy)]
enum Values {
    /// One value for the whole program.
    Scrape(fn(&Scrape) -> f64),
    /// The version of the program.
    Version,
    /// Name and kind of each instance.
    Kinds,
    /// One value for each instance.
    Instance(fn(&Instance) -> f64),
    /// Whether packets of a tunnel take the in-kernel path.
    Fastpath,
    /// One value for each instance whose peers may use the in-kernel path.
    PathPeers(fn(&FastpathPeers) -> u64),
    /// One value for each offload of an instance.
    Offloads(fn(&segue_control::model::Offload) -> bool),
    /// One value for each tunnel for which it exists.
    Tunnel(fn(&Tunnel) -> Option<f64>),
    /// One value for each instance with a peer table.
    Peers(fn(&PeerTable) -> u64),
    /// Whether a fleet agent is in a state, one value for each state.
    FleetStates,
    /// One value for each fleet agent for which it exists.
    Fleet(fn(&FleetState) -> Option<f64>),
    /// One value for each port.
    Port(fn(&Port) -> u64),
    /// One value for each port and direction.
    Flow(fn(&Flow) -> u64),
    /// A map of counters of each port; a counter's name is the value of the given label. Reasons have a sentence in
    /// this group.
    Named { label: &'static str, of: CountersOf, shown: fn(&str) -> bool, group: Option<&'static str> },
    /// One value for each stage of each port.
    Stage(fn(&Seen) -> u64),
    /// A map of counters of each worker.
    Worker { label: &'static str, shown: fn(&str) -> bool },
    /// The description of each counted reason.
    Reasons,
}

/// A metric family of the exposition.
#[derive(Clone, Copy)]
pub struct Family {
    /// Name of the family, with the ending `_total` for a counter.
    pub name: &'static str,
    /// The type of the family's samples.
    pub kind: Kind,
    /// Description of the counted events, one sentence. Families with reasons add the sentence of each reason that they
    /// show.
    pub help: &'static str,
    /// The path in the document of `segue stat -j` below `instances[]`; empty for a family that is not in it. `{}`
    /// stands for any key and `|` for alternatives.
    pub json: &'static str,
    values: Values,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The samples of one family.
#[derive(Debug)]
pub struct Samples<'a> {
    /// Family to which the samples belong.
    pub family: &'static Family,
    /// Help text of the family, with the descriptions of its reasons.
    pub help: String,
    /// The samples of the family.
    pub samples: Vec<Sample<'a>>,
}

/// One number with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Label names with their values.
    pub labels: Vec<(&'static str, Cow<'a, str>)>,
    /// The number; a counter below 2^53 is exact.
    pub value: f64,
}

/// Names of those numbers of a worker that are gauges (sizes of tables); all others count events.
const TABLES: &[&str] = &["routes", "neighbours", "nat_mappings"];

const NAMED_GROUPS: &[(&str, CountersOf)] = &[
    ("drops", |port| &port.drops),
    ("flushes", |port| &port.flushes),
    ("refusals", |port| &port.refusals),
    ("mismatches", |port| &port.mismatches),
    ("fallbacks", |port| &port.fallbacks),
    ("left", |port| &port.left),
];

const fn counter(name: &'static str, json: &'static str, help: &'static str, values: Values) -> Family {
    Family { name, kind: Kind::Counter, help, json, values }
}

const fn gauge(name: &'static str, json: &'static str, help: &'static str, values: Values) -> Family {
    Family { name, kind: Kind::Gauge, help, json, values }
}

const fn info(name: &'static str, json: &'static str, help: &'static str, values: Values) -> Family {
    Family { name, kind: Kind::Info, help, json, values }
}

const fn reasons(group: &'static str, of: CountersOf) -> Values {
    Values::Named { label: "reason", of, shown: |_| true, group: Some(group) }
}

const fn events(of: CountersOf) -> Values {
    Values::Named { label: "event", of, shown: |_| true, group: None }
}

/// All families in the order of the exposition.
pub const FAMILIES: &[Family] = &[
    info("segue_build_info", "", "The version of segue that serves these metrics.", Values::Version),
    gauge(
        "segue_instances",
        "",
        "Instances that answered; segue_instance_up says which of them run.",
        Values::Scrape(|s| s.instances.len() as f64),
    ),
    gauge(
        "segue_instances_unanswered",
        "",
        "Instances that did not answer, have the name of another one, or are down without a control socket, so that \
         their counters are missing here.",
        Values::Scrape(|s| s.failed.len() as f64),
    ),
    info("segue_instance_info", "name|kind", "A running instance: its name and kind.", Values::Kinds),
    gauge(
        "segue_instance_uptime_seconds",
        "uptime_s",
        "Time since the instance came up.",
        Values::Instance(|instance| instance.uptime_s),
    ),
    counter(
        "segue_instance_cpu_seconds_total",
        "cpu_s",
        "Processor time used, user and system.",
        Values::Instance(|instance| instance.cpu_s),
    ),
    gauge(
        "segue_instance_problems",
        "health",
        "Problems that HEALTH of segue stat lists; 0 is ok.",
        Values::Instance(|instance| instance.failures().count() as f64),
    ),
    gauge(
        "segue_instance_up",
        "health",
        "Whether the instance runs (1), or could not be started or has ended (0).",
        Values::Instance(|instance| f64::from(u8::from(instance.health.iter().all(|note| note.code != "down")))),
    ),
    gauge(
        "segue_offload_enabled",
        "offloads{}.on",
        "Whether an offload of the kernel is in use (1) or not (0).",
        Values::Offloads(|offload| offload.on),
    ),
    gauge(
        "segue_offload_refused",
        "offloads{}.refused",
        "Whether segue asked for an offload and the kernel refused it (1).",
        Values::Offloads(|offload| offload.refused),
    ),
    gauge(
        "segue_fastpath_enabled",
        "fastpath.on",
        "Whether the kernel carries packets of a tunnel past the process (1), where that was asked for.",
        Values::Fastpath,
    ),
    gauge(
        "segue_fastpath_peers",
        "fastpath.peers.kernel",
        "Peers of a table whose packets the kernel carries past the process.",
        Values::PathPeers(|peers| peers.kernel),
    ),
    gauge(
        "segue_fastpath_peers_left",
        "fastpath.peers.segue{}",
        "Peers of a table whose packets the process carries although the in-kernel path is loaded.",
        Values::PathPeers(|peers| peers.segue.values().sum()),
    ),
    gauge("segue_peers", "peers.peers", "Peers in the table of a tunnel.", Values::Peers(|table| table.peers)),
    gauge(
        "segue_peers_generation",
        "peers.generation",
        "The number of a tunnel's peer table; 0 where none was given.",
        Values::Peers(|table| table.generation),
    ),
    gauge(
        "segue_peers_in_force",
        "peers.in_force",
        "The number of the last peer table that changed a peer.",
        Values::Peers(|table| table.in_force),
    ),
    counter(
        "segue_peers_refused_total",
        "peers.refused",
        "Changes of a peer table that were refused.",
        Values::Peers(|table| table.refused),
    ),
    gauge(
        "segue_peers_not_in_force",
        "peers.refused_peers",
        "Peers of a tunnel's last peer table that are not in force, each for a reason of its own.",
        Values::Peers(|table| table.refused_peers),
    ),
    gauge(
        "segue_fleet_state",
        "",
        "The state of a tunnel's fleet agent: starting, connected, stale or ended, of which one is 1.",
        Values::FleetStates,
    ),
    gauge(
        "segue_fleet_renewed_age_seconds",
        "",
        "Time since a fleet agent last renewed its lease.",
        Values::Fleet(|state| Some(state.lease_age()?.as_secs_f64())),
    ),
    counter(
        "segue_tunnel_received_total",
        "tunnels{}.received",
        "Datagrams from the other end that were for this tunnel.",
        Values::Tunnel(|tunnel| Some(tunnel.received as f64)),
    ),
    counter(
        "segue_tunnel_refused_total",
        "tunnels{}.refused",
        "Datagrams from the other end that were refused.",
        Values::Tunnel(|tunnel| Some(tunnel.refused as f64)),
    ),
    gauge(
        "segue_tunnel_received_age_seconds",
        "tunnels{}.received_age_s",
        "Time since the last datagram from the other end that was for this tunnel.",
        Values::Tunnel(|tunnel| tunnel.received_age_s),
    ),
    gauge(
        "segue_tunnel_sent_age_seconds",
        "tunnels{}.sent_age_s",
        "Time since the last packet that was sent.",
        Values::Tunnel(|tunnel| tunnel.sent_age_s),
    ),
    counter(
        "segue_tunnel_probes_total",
        "tunnels{}.probe.sent",
        "Probes sent to an end that had said that it understands them.",
        Values::Tunnel(|tunnel| Some(tunnel.probe.as_ref()?.sent as f64)),
    ),
    counter(
        "segue_tunnel_probes_answered_total",
        "tunnels{}.probe.answered",
        "Probes that were answered.",
        Values::Tunnel(|tunnel| Some(tunnel.probe.as_ref()?.answered as f64)),
    ),
    counter(
        "segue_tunnel_probes_lost_total",
        "tunnels{}.probe.lost",
        "Probes without an answer.",
        Values::Tunnel(|tunnel| Some(tunnel.probe.as_ref()?.lost as f64)),
    ),
    gauge(
        "segue_tunnel_probe_interval_seconds",
        "tunnels{}.probe.interval_s",
        "Time between two probes.",
        Values::Tunnel(|tunnel| Some(tunnel.probe.as_ref()?.interval_s as f64)),
    ),
    gauge(
        "segue_tunnel_probe_round_trip_seconds",
        "tunnels{}.probe.round_trip_s",
        "The last round trip of a probe.",
        Values::Tunnel(|tunnel| tunnel.probe.as_ref()?.round_trip_s),
    ),
    gauge(
        "segue_tunnel_probe_mean_round_trip_seconds",
        "tunnels{}.probe.mean_round_trip_s",
        "The smoothed round trip of probes.",
        Values::Tunnel(|tunnel| tunnel.probe.as_ref()?.mean_round_trip_s),
    ),
    gauge(
        "segue_tunnel_probe_answered_age_seconds",
        "tunnels{}.probe.answered_age_s",
        "Time since the last answer to a probe.",
        Values::Tunnel(|tunnel| tunnel.probe.as_ref()?.answered_age_s),
    ),
    gauge(
        "segue_tunnel_mtu_bytes",
        "tunnels{}.mtu",
        "The MTU of the interface at the start.",
        Values::Tunnel(|tunnel| Some(f64::from(tunnel.mtu))),
    ),
    counter(
        "segue_packets_total",
        "ports{}.receive|transmit.segments",
        "Packets of wire size that crossed a port, as a capture on the link would count them.",
        Values::Flow(|flow| flow.segments),
    ),
    counter(
        "segue_bytes_total",
        "ports{}.receive|transmit.bytes",
        "Bytes that crossed a port.",
        Values::Flow(|flow| flow.bytes),
    ),
    counter(
        "segue_units_total",
        "ports{}.receive|transmit.packets",
        "Units that crossed a port in one piece: a train counts as one, and so does a single packet.",
        Values::Flow(|flow| flow.packets),
    ),
    counter(
        "segue_trains_total",
        "ports{}.receive|transmit.trains",
        "The units that were trains, of more than one packet.",
        Values::Flow(|flow| flow.trains),
    ),
    counter(
        "segue_calls_total",
        "ports{}.receive|transmit.calls",
        "System calls that moved packets, or tried to.",
        Values::Flow(|flow| flow.calls),
    ),
    counter("segue_drops_total", "ports{}.drops{}", "Packets dropped.", reasons("drops", |port| &port.drops)),
    counter("segue_flushes_total", "ports{}.flushes{}", "Trains that ended.", reasons("flushes", |port| &port.flushes)),
    counter(
        "segue_refusals_total",
        "ports{}.refusals{}",
        "Packets that were not joined.",
        reasons("refusals", |port| &port.refusals),
    ),
    counter(
        "segue_mismatches_total",
        "ports{}.mismatches{}",
        "The first difference between a packet and the train of its flow that it did not fit.",
        reasons("mismatches", |port| &port.mismatches),
    ),
    counter(
        "segue_fallbacks_total",
        "ports{}.fallbacks{}",
        "Operations that segue repeated in a smaller form because the kernel refused the larger one.",
        reasons("fallbacks", |port| &port.fallbacks),
    ),
    counter(
        "segue_fastpath_left_total",
        "ports{}.left{}",
        "Units that the in-kernel path left to the process.",
        reasons("left", |port| &port.left),
    ),
    counter(
        "segue_checksummed_bytes_total",
        "ports{}.checksummed_bytes",
        "Payload bytes that segue had to checksum for packets of a port.",
        Values::Port(|port| port.checksummed_bytes),
    ),
    counter(
        "segue_swallowed_acks_total",
        "ports{}.swallowed",
        "Pure acknowledgments that a newer one of their connection replaced; they do not count as drops.",
        Values::Port(|port| port.swallowed),
    ),
    counter(
        "segue_trimmed_packets_total",
        "ports{}.trimmed",
        "Packets whose padding was cut off.",
        Values::Port(|port| port.trimmed),
    ),
    counter(
        "segue_stage_units_total",
        "ports{}.stages{}.packets",
        "Units that a stage of the pipeline saw: a train counts as one, and so does a single packet.",
        Values::Stage(|seen| seen.packets),
    ),
    counter(
        "segue_stage_packets_total",
        "ports{}.stages{}.segments",
        "Packets of wire size that a stage of the pipeline saw.",
        Values::Stage(|seen| seen.segments),
    ),
    counter(
        "segue_stage_trains_total",
        "ports{}.stages{}.trains",
        "Trains that a stage of the pipeline saw.",
        Values::Stage(|seen| seen.trains),
    ),
    counter(
        "segue_stage_bytes_total",
        "ports{}.stages{}.bytes",
        "Bytes that a stage of the pipeline saw.",
        Values::Stage(|seen| seen.bytes),
    ),
    counter(
        "segue_gso_events_total",
        "ports{}.gso{}",
        "Segmentation for a port: trains_cut in front of it into packets_made, trains_whole handed to it, cut_on_entry \
         where GSO is off, into made_on_entry.",
        events(|port| &port.gso),
    ),
    counter(
        "segue_remcsum_packets_total",
        "ports{}.remcsum{}",
        "Packets whose inner checksum is left to the receiver: sent by this host, and received.",
        events(|port| &port.remcsum),
    ),
    counter(
        "segue_fastpath_packets_total",
        "ports{}.fastpath{}",
        "Packets of wire size that the kernel carried past the process: sent and received. Other counters have them too.",
        events(|port| &port.fastpath),
    ),
    counter(
        "segue_napi_events_total",
        "ports{}.napi{}",
        "Polling of a port: polls, full_budgets, overflows, wake_ups.",
        events(|port| &port.napi),
    ),
    counter(
        "segue_port_events_total",
        "ports{}.numbers{}",
        "Other events of a port, by name.",
        Values::Named {
            label: "event",
            of: |port| &port.numbers,
            shown: |name| !PORT_STATES.contains(&name) && !NO_METRIC.contains(&name),
            group: None,
        },
    ),
    gauge(
        "segue_port_state",
        "ports{}.numbers{}",
        "The state of a port, by name, such as link_down; a switch is 1 or 0.",
        Values::Named {
            label: "state",
            of: |port| &port.numbers,
            shown: |name| PORT_STATES.contains(&name),
            group: None,
        },
    ),
    counter(
        "segue_worker_events_total",
        "workers[]{}",
        "Events of a thread that moves packets: polls, full_budgets, sleeps, wake_ups and others.",
        Values::Worker { label: "event", shown: |name| !TABLES.contains(&name) },
    ),
    gauge(
        "segue_table_entries",
        "workers[]{}",
        "Entries of a table of a router: routes, neighbours, nat_mappings.",
        Values::Worker { label: "table", shown: |name| TABLES.contains(&name) },
    ),
    info(
        "segue_reason_info",
        "",
        "The sentence of a reason that has been counted; group is drops, flushes, refusals, mismatches, fallbacks or left.",
        Values::Reasons,
    ),
];

/// Returns the family `name`.
pub fn find(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

fn side(port: &Port) -> &'static str {
    match port.side {
        Side::Inside => "inside",
        Side::Outside => "outside",
    }
}

impl Scrape {
    /// Returns the samples of every family that has some, in the order of [`FAMILIES`].
    pub fn samples(&self, sentence: Sentence) -> Vec<Samples<'_>> {
        let all = FAMILIES.iter().map(|family| family.samples(self, sentence));
        all.filter(|samples| !samples.samples.is_empty()).collect()
    }
}

impl Family {
    /// Returns the label names of the family.
    pub fn labels(&self) -> Vec<&'static str> {
        const PORT: [&str; 3] = ["name", "port", "side"];
        match self.values {
            Values::Scrape(_) => Vec::new(),
            Values::Version => vec!["version"],
            Values::Kinds => vec!["name", "kind"],
            Values::Instance(_) | Values::Fastpath | Values::PathPeers(_) | Values::Peers(_) => vec!["name"],
            Values::Fleet(_) => vec!["name"],
            Values::FleetStates => vec!["name", "state"],
            Values::Offloads(_) => vec!["name", "offload"],
            Values::Tunnel(_) => vec!["name", "tunnel"],
            Values::Port(_) => PORT.to_vec(),
            Values::Flow(_) => [&PORT[..], &["direction"]].concat(),
            Values::Named { label, .. } => [&PORT[..], &[label]].concat(),
            Values::Stage(_) => [&PORT[..], &["stage"]].concat(),
            Values::Worker { label, .. } => vec!["name", "worker", label],
            Values::Reasons => vec!["group", "reason", "sentence"],
        }
    }

    /// Returns the samples of this family. Counters that are 0 are left out.
    pub fn samples<'a>(&'static self, scrape: &'a Scrape, sentence: Sentence) -> Samples<'a> {
        let names = self.labels();
        let mut samples = Vec::new();
        let mut put = |values: &[Cow<'a, str>], value: f64| {
            if value != 0.0 || self.kind != Kind::Counter {
                let labels = names.iter().copied().zip(values.iter().cloned()).collect();
                samples.push(Sample { labels, value });
            }
        };
        let name = |instance: &'a Instance| Cow::from(instance.name.as_str());
        let ports = || {
            scrape.instances.iter().flat_map(|instance| {
                let each = instance.ports.iter();
                each.map(move |(port, of)| ([name(instance), Cow::from(port.as_str()), Cow::from(side(of))], of))
            })
        };
        let mut help = self.help.to_owned();
        match self.values {
            Values::Scrape(of) => put(&[], of(scrape)),
            Values::Version => put(&[Cow::from(scrape.version.as_str())], 1.0),
            Values::Kinds => {
                scrape.instances.iter().for_each(|i| put(&[name(i), Cow::from(i.kind.as_str())], 1.0));
            }
            Values::Instance(of) => scrape.instances.iter().for_each(|i| put(&[name(i)], of(i))),
            Values::Fastpath => {
                let asked = scrape.instances.iter().filter_map(|i| Some((i, i.fastpath.as_ref()?)));
                asked.for_each(|(i, path)| put(&[name(i)], f64::from(u8::from(path.on))));
            }
            Values::PathPeers(of) => {
                let tables = scrape.instances.iter().filter_map(|i| Some((i, i.fastpath.as_ref()?.peers.as_deref()?)));
                tables.for_each(|(i, peers)| put(&[name(i)], of(peers) as f64));
            }
            Values::Offloads(of) => {
                for instance in &scrape.instances {
                    for (offload, state) in &instance.offloads {
                        put(&[name(instance), Cow::from(offload.as_str())], f64::from(u8::from(of(state))));
                    }
                }
            }
            Values::Tunnel(of) => {
                for instance in &scrape.instances {
                    for (tunnel, state) in &instance.tunnels {
                        if let Some(value) = of(state) {
                            put(&[name(instance), Cow::from(tunnel.as_str())], value);
                        }
                    }
                }
            }
            Values::Peers(of) => {
                let tables = scrape.instances.iter().filter_map(|i| Some((i, i.peers.as_deref()?)));
                tables.for_each(|(i, table)| put(&[name(i)], of(table) as f64));
            }
            Values::FleetStates => {
                for (agent, state) in &scrape.fleet {
                    for (label, is_in) in states::of_agent(state) {
                        put(&[Cow::from(agent.as_str()), Cow::from(label)], f64::from(u8::from(is_in)));
                    }
                }
            }
            Values::Fleet(of) => {
                let known = scrape.fleet.iter().filter_map(|(agent, state)| Some((agent, of(state)?)));
                known.for_each(|(agent, value)| put(&[Cow::from(agent.as_str())], value));
            }
            Values::Port(of) => ports().for_each(|(labels, port)| put(&labels, of(port) as f64)),
            Values::Flow(of) => {
                for (labels, port) in ports() {
                    for (direction, flow) in [("receive", &port.receive), ("transmit", &port.transmit)] {
                        let [name, port, side] = labels.clone();
                        put(&[name, port, side, Cow::from(direction)], of(flow) as f64);
                    }
                }
            }
            Values::Stage(of) => {
                for ([name, port_name, side], port) in ports() {
                    for (stage, seen) in &port.stages {
                        let place = [name.clone(), port_name.clone(), side.clone(), Cow::from(stage.as_str())];
                        put(&place, of(seen) as f64);
                    }
                }
            }
            Values::Named { of, shown, group, .. } => {
                let mut seen = BTreeSet::new();
                for ([name, port_name, side], port) in ports() {
                    for (key, &value) in of(port).iter().filter(|(key, _)| shown(key)) {
                        if value != 0 && group.is_some() {
                            seen.insert(key.as_str());
                        }
                        let place = [name.clone(), port_name.clone(), side.clone(), Cow::from(key.as_str())];
                        put(&place, value as f64);
                    }
                }
                for reason in seen {
                    if let Some(text) = group.and_then(|group| sentence(group, reason)) {
                        help.push_str(&format!(" {reason}: {text}"));
                    }
                }
            }
            Values::Worker { shown, .. } => {
                for instance in &scrape.instances {
                    for worker in &instance.workers {
                        for (key, &value) in worker.counters.iter().filter(|(key, _)| shown(key)) {
                            let place = [name(instance), Cow::from(worker.id.to_string()), Cow::from(key.as_str())];
                            put(&place, value as f64);
                        }
                    }
                }
            }
            Values::Reasons => {
                for (group, of) in NAMED_GROUPS {
                    let ports = scrape.instances.iter().flat_map(|instance| instance.ports.values());
                    let seen: BTreeSet<&str> = ports
                        .flat_map(|port| of(port).iter().filter(|(_, count)| **count > 0))
                        .map(|(reason, _)| reason.as_str())
                        .collect();
                    for reason in seen {
                        if let Some(text) = sentence(group, reason) {
                            put(&[Cow::from(*group), Cow::from(reason), Cow::from(text)], 1.0);
                        }
                    }
                }
            }
        }
        Samples { family: self, help, samples }
    }
}

#[cfg(test)]
mod tests;
