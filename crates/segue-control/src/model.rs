//! The document of `segue.stat/1`: the state of running instances. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::fastpath::{Fastpath, FastpathPeers};

use crate::fleet::FleetState;
use crate::peers::RefusedPeer;

/// The schema id of the document.
pub const SCHEMA: &str = "segue.stat/1";

/// The drop reason that the kernel counts: a datagram with a wrong outer UDP checksum, or without one where one is
/// required. The kernel counts all sockets of the network namespace together.
pub const OUTER_CSUM: &str = "outer_csum";

/// The number of packets that the kernel dropped at the interface of a tunnel, mostly because its queue was full: the
/// tunnel never read them. They are no drops of the instance, since TCP fills a queue until it overflows.
pub const TX_DROPPED: &str = "tx_dropped";

/// The output of `segue stat -j`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// The schema id, always `segue.stat/1`.
    pub schema: String,
    /// The time of the query: RFC 3339, UTC.
    pub t: String,
    /// Every instance that answered, sorted by name.
    pub instances: Vec<Instance>,
    /// Agents that set the peers of tunnels of these instances, by the names of the tunnels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fleet: BTreeMap<String, FleetState>,
    /// Instances of this user that run and did not answer, by name, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unanswered: BTreeMap<String, Complaint>,
}

/// A running instance with its state.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Name of the instance: for a tunnel the name of its interface, for a gateway the names of its interfaces.
    pub name: String,
    /// Type of the instance: `tunnel`, `gateway`.
    pub kind: String,
    /// The id of the process that moves packets.
    pub pid: u32,
    /// Whether `segue run` started the instance, and starts it again when it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_managed: bool,
    /// Seconds since the instance came up.
    pub uptime_s: f64,
    /// Processor time used, user and system, seconds.
    #[serde(default)]
    pub cpu_s: f64,
    /// Sandbox measures that restrict the process; missing where none are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Number of packets dropped since the start, for all reasons and at all ports.
    #[serde(default)]
    pub drops: u64,
    /// The threads that move packets.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// The offloads of the kernel, by name (`udp_gro`, `udp_segment`, `tun_tso`, `tun_uso`, ...).
    #[serde(default)]
    pub offloads: BTreeMap<String, Offload>,
    /// For tunnels: the in-kernel path, past the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fastpath: Option<Fastpath>,
    /// For a tunnel with a peer table: the table's summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Box<PeerTable>>,
    /// The problems of the instance; empty when there is none.
    #[serde(default)]
    pub health: Vec<Complaint>,
    /// The tunnels of the instance, by the name of their interface, which is that of their port as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tunnels: BTreeMap<String, Tunnel>,
    /// The ports of the instance, by name.
    #[serde(default)]
    pub ports: BTreeMap<String, Port>,
    /// One sentence for each reason that has been counted at a port, by the key of its counters (`drops`, `flushes`,
    /// ...) and its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, BTreeMap<String, String>>,
    /// Rates over the last seconds; missing in the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
}

/// Summary of a tunnel's peer table; `segue peer list` shows the whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PeerTable {
    /// The number of the table; 0 where none was given.
    pub generation: u64,
    /// Generation of the table in force: the last one that changed a peer.
    pub in_force: u64,
    /// Number of peers in the table.
    pub peers: u64,
    /// Number of refused changes to the table.
    pub refused: u64,
    /// Local address of the tunnel, which no peer may have.
    pub local: String,
    /// The encapsulations, each with its UDP port, such as `vxlan:8472`.
    pub listen: Vec<String>,
    /// Local Ethernet address of the tunnel, where a listener receives frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Whether the interface carries Ethernet frames, and peers are looked up by Ethernet addresses; otherwise IP.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ethernet: bool,
    /// Whether peers may be sent, and may send, remote checksums.
    pub remcsum: bool,
    /// Number of peers of the last table that are not in force, each for its own reason.
    pub refused_peers: u64,
    /// The first refused peers of the last table, with the rule that each breaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_named: Vec<RefusedPeer>,
    /// Reason why the file of the table was refused when it was loaded again; the table is the one of before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_refused: Option<String>,
}

/// The state of a sandbox: the measures that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// The user that the process became; `None` when the user did not change.
    pub user: Option<String>,
    /// Whether a supervisor waits for this process.
    pub supervised: bool,
    /// Whether the file system is out of reach.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl Sandbox {
    /// Describes the sandbox for the output line that begins with "workers 1, ".
    pub fn text(&self) -> String {
        let user = match &self.user {
            Some(user) => format!("as user {user}"),
            None => "without capabilities".to_owned(),
        };
        let box_ = match (self.landlock, self.seccomp) {
            (true, true) => "sandboxed",
            (false, true) => "sandboxed (no Landlock here)",
            (true, false) => "sandboxed (no seccomp here)",
            (false, false) => "not sandboxed",
        };
        format!("{user}, {box_}")
    }

    /// Returns whether the kernel enforces all measures.
    pub fn is_whole(&self) -> bool {
        self.landlock && self.seccomp
    }
}

/// One thread that moves packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// The number of the thread, from 0.
    pub id: u32,
    /// Counters since the start, by name: `polls` (rounds), `full_budgets` that left more, `sleeps`, `wake_ups` from
    /// them by a port, `deferrals` (by a timer instead), `busy_polls`, `pauses` after rounds that moved nothing though
    /// a port was ready.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
    /// Traffic of the thread by port, where there are several threads; ports without any are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, WorkerPort>,
}

/// The traffic of one thread at one port, as the keys of [`Port`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerPort {
    /// Packets that the thread received from the port.
    pub receive: Flow,
    /// Packets that the thread sent through the port.
    pub transmit: Flow,
}

/// An offload that the kernel may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offload {
    /// Whether the offload is in use.
    pub on: bool,
    /// Reason why the offload is not in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether segue requested the offload and the kernel refused it.
    #[serde(default)]
    pub refused: bool,
}

/// A problem of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Complaint {
    /// A short description of the problem.
    pub what: String,
    /// The reason of this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Time at which the problem began: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The kind of the problem in one word, such as `refused`; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The tunnels that have the problem; empty where the whole instance has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<String>,
    /// The command that mends it, or shows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Whether the complaint is a notice and no failure: `segue stat --health` does not fail for it unless `--strict`
    /// is given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub notice: bool,
}

/// A tunnel: its endpoints, and whether the remote end answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tunnel {
    /// The mode and the encapsulation, such as `ipip in GUE`.
    pub mode: String,
    /// Local address of the tunnel, with the port where there is one.
    pub local: String,
    /// First address of the remote end, with its port where there is one.
    pub remote: String,
    /// The MTU of the interface at the start, bytes.
    pub mtu: u32,
    /// The interface by which the tunnel's packets left at the start.
    pub underlay: String,
    /// Number of datagrams from the remote end for this tunnel.
    pub received: u64,
    /// Number of refused datagrams from the remote end; `refused_for` is the last reason. Of several tunnels with one
    /// remote the first one counts what is for none of them.
    pub refused: u64,
    /// The reason of the last refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_for: Option<String>,
    /// Seconds since the last datagram from the remote end for this tunnel, to a second; missing where there was
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_age_s: Option<f64>,
    /// Seconds since the last packet that was sent, to a second; missing where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_age_s: Option<f64>,
    /// The measurements of the probe; missing where it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
}

/// The probe of a tunnel: an echo between the two ends. Counters only rise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Seconds between two echo requests.
    pub interval_s: u64,
    /// Number of echo requests sent to an end that has announced that it answers them.
    pub sent: u64,
    /// Number of requests that were answered, and the first contact.
    pub answered: u64,
    /// Number of echo requests without an answer.
    pub lost: u64,
    /// The last round trip; missing until there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_s: Option<f64>,
    /// The smoothed round trip (RFC 6298, section 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_round_trip_s: Option<f64>,
    /// Seconds since the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_age_s: Option<f64>,
}

impl Probe {
    /// Returns round trip and loss as text, such as `0.43 ms, 0 of 120 lost`; `-` until there was an answer.
    pub fn text(&self) -> String {
        let mean =
            self.mean_round_trip_s.map(|mean| format!("{:.2} ms, {} of {} lost", mean * 1e3, self.lost, self.sent));
        mean.unwrap_or_else(|| "-".to_owned())
    }
}

/// Side of an instance on which a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The side of this host's programs.
    #[default]
    Inside,
    /// The side of the network and the remote end.
    Outside,
}

/// A port, where packets enter and leave. Counters start at 0 and only rise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// The side that the port is on.
    #[serde(default)]
    pub side: Side,
    /// Packets that came in by this port.
    pub receive: Flow,
    /// Packets that left by this port.
    pub transmit: Flow,
    /// Number of payload bytes that segue had to checksum for packets of this port.
    pub checksummed_bytes: u64,
    /// Number of pure acknowledgments from this port that a newer one of their connection replaced; they do not count
    /// as drops.
    #[serde(default)]
    pub swallowed: u64,
    /// Number of packets from this port whose padding was cut off.
    #[serde(default)]
    pub trimmed: u64,
    /// Numbers of dropped packets by reason. `outer_csum`, at the UDP port of a tunnel, counts what the kernel dropped
    /// for a wrong outer checksum, or for a missing one where one is required (IPv6), over all sockets of the network
    /// namespace, those of other programs included. Longer datagrams reach the socket of the tunnel before the kernel
    /// sums them; `socket_overflow` counts these as well.
    pub drops: BTreeMap<String, u64>,
    /// Trains that ended, by reason.
    pub flushes: BTreeMap<String, u64>,
    /// Packets that were not joined, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Packets that did not match the train of their flow, by the first field that differed.
    #[serde(default)]
    pub mismatches: BTreeMap<String, u64>,
    /// Operations that segue repeated in a smaller form because the kernel refused the larger one, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Counters of each stage for the packets that arrive on this port (`decap`, `gro`, `entry`, `encap`) or leave by
    /// it (`gso`); an unsplit train counts as one unit at each stage.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, Seen>,
    /// Counters of GSO for this port: `trains_cut` in front of it into `packets_made`, `trains_whole` handed to it,
    /// `cut_on_entry` where GSO is off, into `made_on_entry`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gso: BTreeMap<String, u64>,
    /// Packets whose inner checksum is left to the receiver: `sent` by this host, and `received`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remcsum: BTreeMap<String, u64>,
    /// Counters of polling: `polls`, `full_budgets` that took as many packets as they might, `overflows`, packets
    /// that the port gave beyond that and that came first in the next poll, and `wake_ups` of a sleeping worker by
    /// this port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub napi: BTreeMap<String, u64>,
    /// Packets of wire size of this tunnel that took the in-kernel path: `sent` and `received`. They are part of the
    /// other counters too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fastpath: BTreeMap<String, u64>,
    /// Units that the in-kernel path left to the process, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, u64>,
    /// Other numbers of the port, by name. `tx_dropped`, at the interface of a tunnel, counts packets that the kernel
    /// dropped in front of segue, mostly because the queue of the interface was full.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
}

/// Counters of the packets that a stage received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Seen {
    /// Number of units: a train counts as one, and so does a single packet.
    pub packets: u64,
    /// The bytes of the units.
    pub bytes: u64,
    /// The units that were trains.
    pub trains: u64,
    /// The packets of wire size that the units stand for.
    pub segments: u64,
}

/// Counters of a port in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Number of units that crossed in one piece: a train counts as one, and so does a single packet.
    pub packets: u64,
    /// The bytes of the units.
    pub bytes: u64,
    /// The units that were trains, of more than one segment.
    pub trains: u64,
    /// The packets of wire size that the units stand for, as a capture on the link would count them.
    pub segments: u64,
    /// Number of system calls that moved packets, or tried to.
    #[serde(default)]
    pub calls: u64,
}

impl Flow {
    /// Returns the number of packets of wire size, as a capture on the link would count them.
    pub fn wire_packets(&self) -> u64 {
        self.segments
    }

    /// Returns the mean size of a unit, bytes.
    pub fn mean_bytes(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.bytes as f64 / self.packets as f64 }
    }

    fn since(&self, before: &Flow) -> Flow {
        Flow {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
            trains: self.trains.saturating_sub(before.trains),
            segments: self.segments.saturating_sub(before.segments),
            calls: self.calls.saturating_sub(before.calls),
        }
    }
}

/// Rates of an instance over the last seconds, from the differences of its counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recent {
    /// The length of the interval, seconds.
    pub interval_s: f64,
    /// The rate from the outside, bits per second.
    pub receive_bits_per_s: f64,
    /// The rate to the outside, bits per second.
    pub transmit_bits_per_s: f64,
    /// Mean size of the units received from the outside, as handed to the inside, bytes.
    pub receive_train_bytes: f64,
    /// Mean size of the units sent to the outside, bytes.
    pub transmit_train_bytes: f64,
    /// Share of one processor; 1 is a whole one.
    pub cpu_share: f64,
    /// The differences of the counters of each port.
    pub ports: BTreeMap<String, Port>,
}

impl Instance {
    /// Returns the problems that are no mere notices.
    pub fn failures(&self) -> impl Iterator<Item = &Complaint> {
        self.health.iter().filter(|complaint| !complaint.notice)
    }

    /// Adds the sentence of each reason that was counted at a port; `sentence` returns that of a group and a name.
    pub fn explain_reasons(&mut self, sentence: impl Fn(&str, &str) -> Option<String>) {
        for port in self.ports.values() {
            let groups = [
                ("drops", &port.drops),
                ("flushes", &port.flushes),
                ("refusals", &port.refusals),
                ("mismatches", &port.mismatches),
                ("fallbacks", &port.fallbacks),
            ];
            for (group, counts) in groups {
                for (name, _) in counts.iter().filter(|(_, count)| **count > 0) {
                    let known = self.reasons.entry(group.to_owned()).or_default();
                    if !known.contains_key(name)
                        && let Some(sentence) = sentence(group, name)
                    {
                        known.insert(name.clone(), sentence);
                    }
                }
            }
        }
        self.reasons.retain(|_, known| !known.is_empty());
    }

    /// Sums up the drops of all ports.
    pub fn count_drops(&mut self) {
        self.drops = self.ports.values().flat_map(|port| port.drops.values()).sum();
    }

    /// Adds the drops of the last seconds to the problems: any packet that was too big for the path, since such a
    /// flow stands still; any wrong outer checksum, which sound hosts and links do not cause; and more than one
    /// packet in a hundred for other reasons.
    pub fn judge_drops(&mut self) {
        let Some(recent) = &self.recent else { return };
        let mut drops: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in recent.ports.values().flat_map(|port| &port.drops) {
            *drops.entry(reason).or_insert(0) += count;
        }
        let too_big: u64 = ["too_big", "gso_too_big"].iter().filter_map(|reason| drops.remove(reason)).sum();
        let outer_csum = drops.remove(OUTER_CSUM).unwrap_or(0);
        drops.remove("bridge_no_port"); // It had no destination.
        let all: u64 = drops.values().sum();
        let received: u64 = recent.ports.values().map(|port| port.receive.wire_packets()).sum();
        let most = drops.into_iter().max_by_key(|(_, count)| *count).map_or("", |(reason, _)| reason);
        let mut complaints = Vec::new();
        if too_big > 0 {
            complaints.push(("too_big", format!("{too_big} packets were larger than the path takes; lower the mtu")));
        }
        if outer_csum > 0 {
            let why = "dropped by the kernel: a wrong outer UDP checksum, or none where one is needed";
            complaints.push((OUTER_CSUM, format!("{outer_csum} datagrams {why}")));
        }
        if all >= 10 && all * 100 > received + all {
            complaints.push(("drops", format!("{all} packets dropped in the last seconds, most for {most}")));
        }
        let complaint = |(what, why): (&str, String)| Complaint {
            what: what.to_owned(),
            why: Some(why),
            code: what.to_owned(),
            fix: Some("segue stat --why".to_owned()),
            ..Complaint::default()
        };
        self.health.extend(complaints.into_iter().map(complaint));
    }

    /// Returns the change since `before`, which was taken `seconds` earlier.
    pub fn recent_since(&self, before: &Instance, seconds: f64) -> Recent {
        let none = Port::default();
        let ports: BTreeMap<String, Port> = self
            .ports
            .iter()
            .map(|(name, port)| (name.clone(), port.since(before.ports.get(name).unwrap_or(&none))))
            .collect();
        let side = |side, of: fn(&Port) -> Flow| {
            ports.values().filter(|port| port.side == side).map(of).fold(Flow::default(), |sum, flow| Flow {
                packets: sum.packets + flow.packets,
                bytes: sum.bytes + flow.bytes,
                trains: sum.trains + flow.trains,
                segments: sum.segments + flow.segments,
                calls: sum.calls + flow.calls,
            })
        };
        let per_second = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
        let (received, sent) = (side(Side::Outside, |port| port.receive), side(Side::Outside, |port| port.transmit));
        Recent {
            interval_s: seconds,
            receive_bits_per_s: per_second(received.bytes),
            transmit_bits_per_s: per_second(sent.bytes),
            receive_train_bytes: side(Side::Inside, |port| port.transmit).mean_bytes(),
            transmit_train_bytes: sent.mean_bytes(),
            cpu_share: if seconds > 0.0 { (self.cpu_s - before.cpu_s).max(0.0) / seconds } else { 0.0 },
            ports,
        }
    }
}

impl Port {
    fn since(&self, before: &Port) -> Port {
        Port {
            side: self.side,
            receive: self.receive.since(&before.receive),
            transmit: self.transmit.since(&before.transmit),
            checksummed_bytes: self.checksummed_bytes.saturating_sub(before.checksummed_bytes),
            swallowed: self.swallowed.saturating_sub(before.swallowed),
            trimmed: self.trimmed.saturating_sub(before.trimmed),
            drops: risen(&self.drops, &before.drops),
            flushes: risen(&self.flushes, &before.flushes),
            refusals: risen(&self.refusals, &before.refusals),
            mismatches: risen(&self.mismatches, &before.mismatches),
            fallbacks: risen(&self.fallbacks, &before.fallbacks),
            stages: self
                .stages
                .iter()
                .map(|(name, seen)| (name.clone(), seen.since(before.stages.get(name))))
                .collect(),
            gso: risen(&self.gso, &before.gso),
            remcsum: risen(&self.remcsum, &before.remcsum),
            napi: risen(&self.napi, &before.napi),
            fastpath: risen(&self.fastpath, &before.fastpath),
            left: risen(&self.left, &before.left),
            numbers: BTreeMap::new(),
        }
    }
}

impl Seen {
    fn since(&self, before: Option<&Seen>) -> Seen {
        let before = before.copied().unwrap_or_default();
        Seen {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
            trains: self.trains.saturating_sub(before.trains),
            segments: self.segments.saturating_sub(before.segments),
        }
    }
}

fn risen(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    now.iter().map(|(key, n)| (key.clone(), n.saturating_sub(before.get(key).copied().unwrap_or(0)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(bytes: u64) -> Instance {
        let outside = Port {
            side: Side::Outside,
            receive: Flow { packets: bytes / 1000, bytes, ..Flow::default() },
            drops: BTreeMap::from([("bad_csum".to_owned(), bytes / 10_000)]),
            ..Port::default()
        };
        let mut made = Instance { cpu_s: bytes as f64 / 1e6, ..Instance::default() };
        made.ports.insert("udp".to_owned(), outside);
        made.count_drops();
        made
    }

    #[test]
    fn packets_that_never_fit_and_many_drops_are_said_in_health() {
        let judged = |drops: &[(&str, u64)], received: u64| {
            let port = Port {
                receive: Flow { segments: received, ..Flow::default() },
                drops: drops.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
                ..Port::default()
            };
            let recent = Recent { ports: BTreeMap::from([("udp".to_owned(), port)]), ..Recent::default() };
            let mut made = Instance { recent: Some(recent), ..Instance::default() };
            made.judge_drops();
            made.health.into_iter().map(|complaint| complaint.what).collect::<Vec<_>>()
        };
        assert_eq!(judged(&[("too_big", 1)], 1_000_000), ["too_big"]);
        assert_eq!(judged(&[("gso_too_big", 1)], 1_000_000), ["too_big"]);
        assert_eq!(judged(&[("outer_csum", 1)], 1_000_000), ["outer_csum"]);
        assert_eq!(judged(&[("outer_csum", 0), ("gre_mismatch", 17), ("ecn", 3)], 0), ["drops"]);
        assert_eq!(judged(&[("unknown_peer", 20)], 1_000_000), [""; 0]);
        assert_eq!(judged(&[("gre_mismatch", 3)], 0), [""; 0], "a few are no problem");
        assert_eq!(judged(&[("bridge_no_port", 100)], 100), [""; 0], "broadcasts while all other ports are down");
    }

    #[test]
    fn rates_are_differences_over_the_interval() {
        let recent = instance(3_000_000).recent_since(&instance(1_000_000), 2.0);
        assert_eq!(recent.receive_bits_per_s, 8e6);
        assert_eq!(recent.transmit_bits_per_s, 0.0);
        assert_eq!(recent.cpu_share, 1.0);
        assert_eq!(recent.ports["udp"].drops["bad_csum"], 200);
        assert_eq!(recent.ports["udp"].receive.packets, 2000);
    }

    #[test]
    fn counters_that_went_back_give_zero_not_a_huge_number() {
        let recent = instance(1000).recent_since(&instance(5000), 1.0);
        assert_eq!(recent.receive_bits_per_s, 0.0);
    }

    #[test]
    fn the_mean_unit_of_nothing_is_zero() {
        assert_eq!(Flow::default().mean_bytes(), 0.0);
        assert_eq!(Flow { packets: 4, bytes: 10, ..Flow::default() }.mean_bytes(), 2.5);
    }

    #[test]
    fn an_older_instance_without_later_keys_is_still_read() {
        let text = r#"{"name":"sg0","kind":"tunnel","pid":1,"uptime_s":2,"ports":{"sg0":{"receive":{"packets":1,"bytes":2,
            "trains":0,"segments":0},"transmit":{"packets":0,"bytes":0,"trains":0,"segments":0},"checksummed_bytes":0,
            "drops":{},"flushes":{},"refusals":{},"fallbacks":{}}}}"#;
        let read: Instance = serde_json::from_str(text).unwrap();
        assert_eq!(read.ports["sg0"].receive.bytes, 2);
        assert_eq!(read.recent, None);
    }
}
