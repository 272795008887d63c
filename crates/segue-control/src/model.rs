//! `segue.stat/1`: the state of running instances. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The id of this document's shape.
pub const SCHEMA: &str = "segue.stat/1";

/// The drop reason that the kernel counts: a datagram with a wrong outer UDP checksum, or without one where one is needed. All
/// sockets of the network namespace are counted together.
pub const OUTER_CSUM: &str = "outer_csum";

/// What `segue stat -j` prints.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// Always `segue.stat/1`.
    pub schema: String,
    /// When it was asked: RFC 3339, UTC.
    pub t: String,
    /// Every instance that answered, sorted by name.
    pub instances: Vec<Instance>,
}

/// One running segue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Its name: the interface's for a tunnel, those of both for a gateway.
    pub name: String,
    /// What it is: `tunnel`, `gateway`.
    pub kind: String,
    /// The process that moves packets.
    pub pid: u32,
    /// Seconds since it was up.
    pub uptime_s: f64,
    /// Processor time it has used, user and system, seconds.
    #[serde(default)]
    pub cpu_s: f64,
    /// Packets dropped since the start, for every reason and at every port.
    #[serde(default)]
    pub drops: u64,
    /// The threads that move packets.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// What the kernel does for it, by name (`udp_gro`, `udp_segment`, `tun_tso`, `tun_uso`, ...).
    #[serde(default)]
    pub offloads: BTreeMap<String, Offload>,
    /// What is not well; empty when all is.
    #[serde(default)]
    pub health: Vec<Complaint>,
    /// The places where packets enter and leave, by name.
    #[serde(default)]
    pub ports: BTreeMap<String, Port>,
    /// The last seconds; missing in the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
}

/// One thread that moves packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// Its number, from 0.
    pub id: u32,
    /// Its counters since the start, by name: `polls` (rounds), `full_budgets` that left more, `sleeps`, `wake_ups` from them
    /// by a port, `deferrals` (by a timer instead), `busy_polls`.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
}

/// Something that the kernel may do for segue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offload {
    /// Whether it is used.
    pub on: bool,
    /// Why not, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it was asked for and the kernel said no.
    #[serde(default)]
    pub refused: bool,
}

/// Something that is not well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Complaint {
    /// What, in a few words.
    pub what: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Since when: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// Which side of the instance a port is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The interface that this host's programs use.
    #[default]
    Inside,
    /// Towards the other end.
    Outside,
}

/// A place where packets enter and leave. Counters are since the start and only rise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Which side it is on.
    #[serde(default)]
    pub side: Side,
    /// Into segue from this port.
    pub receive: Flow,
    /// Out of segue through this port.
    pub transmit: Flow,
    /// Payload bytes that segue had to sum for packets of this port.
    pub checksummed_bytes: u64,
    /// Pure acknowledgments from this port that gave way to a newer one of their connection: not dropped, but sent on no
    /// more.
    #[serde(default)]
    pub swallowed: u64,
    /// Packets from this port whose padding was cut off.
    #[serde(default)]
    pub trimmed: u64,
    /// Packets dropped, by reason. `outer_csum`, at a tunnel's UDP port, is what the kernel dropped for a wrong outer checksum,
    /// or without one where one is needed (IPv6): it counts all sockets of the network namespace together, those of other
    /// programs too. Those that reached the tunnel's own socket before the kernel summed them, which are the longer ones, are
    /// under `socket_overflow` besides.
    pub drops: BTreeMap<String, u64>,
    /// Why trains ended, by reason.
    pub flushes: BTreeMap<String, u64>,
    /// Why packets stayed alone, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// What differed when a packet did not fit the train of its flow, by reason.
    #[serde(default)]
    pub mismatches: BTreeMap<String, u64>,
    /// What was done in a smaller form because the kernel refused the larger, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// What each stage saw of the packets that came in here (`decap`, `gro`, `entry`, `encap`) or leave here (`gso`): a train
    /// that goes through whole counts as one unit at each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, Seen>,
    /// What cutting trains for this port took: `trains_cut` in front of it into `packets_made`, `trains_whole` handed to it,
    /// `cut_on_entry` where GSO is off, into `made_on_entry`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gso: BTreeMap<String, u64>,
    /// Packets whose inner checksum is left to the far end: `sent` by this host to the other, and `received`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remcsum: BTreeMap<String, u64>,
    /// Its polls: `polls`, `full_budgets` that took as many packets as they might, `overflows`, packets that the port gave
    /// beyond that and that came first in the next one, and `wake_ups` of a sleeping worker by this port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub napi: BTreeMap<String, u64>,
    /// Other numbers of the port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
}

/// What a stage on the way saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Seen {
    /// Units: a train counts as one, so does a packet of its own.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of the units that were trains.
    pub trains: u64,
    /// Packets of wire size that all units stand for.
    pub segments: u64,
}

/// What went one way through a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Units that crossed in one piece: a train counts as one, so does a packet of its own.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of the units that were trains: more than one segment.
    pub trains: u64,
    /// Packets of wire size that all units stand for: what a capture on the link would count.
    pub segments: u64,
    /// System calls that moved them, or tried to.
    #[serde(default)]
    pub calls: u64,
}

impl Flow {
    /// Packets of wire size: what a capture on the link would count.
    pub fn wire_packets(&self) -> u64 {
        self.segments
    }

    /// Mean bytes of a unit.
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

/// The last seconds of an instance: differences of its counters, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recent {
    /// How long, seconds.
    pub interval_s: f64,
    /// From the outside, bits a second.
    pub receive_bits_per_s: f64,
    /// To the outside, bits a second.
    pub transmit_bits_per_s: f64,
    /// Mean unit from the outside as it was handed to the inside, bytes.
    pub receive_train_bytes: f64,
    /// Mean unit that went to the outside, bytes.
    pub transmit_train_bytes: f64,
    /// Share of one processor, 1 for all of it.
    pub cpu_share: f64,
    /// What the counters of each port rose by.
    pub ports: BTreeMap<String, Port>,
}

impl Instance {
    /// Adds up what the total drops are.
    pub fn count_drops(&mut self) {
        self.drops = self.ports.values().flat_map(|port| port.drops.values()).sum();
    }

    /// Adds what the drops of the last seconds say of its health: any packet that was too big for the path, since such a
    /// flow stands still, any outer checksum, which good hosts and ways do not spoil, and more than one packet in a hundred
    /// for other reasons.
    pub fn judge_drops(&mut self) {
        let Some(recent) = &self.recent else { return };
        let mut drops: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in recent.ports.values().flat_map(|port| &port.drops) {
            *drops.entry(reason).or_insert(0) += count;
        }
        let too_big: u64 = ["too_big", "gso_too_big"].iter().filter_map(|reason| drops.remove(reason)).sum();
        let outer_csum = drops.remove(OUTER_CSUM).unwrap_or(0);
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
        let complaint = |(what, why): (&str, String)| Complaint { what: what.to_owned(), why: Some(why), since: None };
        self.health.extend(complaints.into_iter().map(complaint));
    }

    /// The change since `before`, which was taken `seconds` earlier.
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
        assert_eq!(judged(&[("gre_mismatch", 3)], 0), [""; 0], "a few are no news");
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
