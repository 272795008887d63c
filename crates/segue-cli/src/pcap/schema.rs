//! The JSON of `segue pcap -j`, for `segue schema pcap`. Keys are only ever added.
#![allow(dead_code, reason = "only the schema of these is used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

/// One object of `segue pcap -j`. `schema` names the command; the objects of single packets that `verify` prints have
/// none.
#[derive(JsonSchema)]
#[serde(untagged)]
pub(crate) enum Document {
    /// The summary of `segue pcap merge`.
    Merge(Merge),
    /// The summary of `segue pcap split`, with `--undo` or without.
    Split(Split),
    /// The summary of `segue pcap decap`.
    Decap(Decap),
    /// The summary of `segue pcap verify`, the last object.
    Verify(Verify),
    /// One packet of `segue pcap verify`, on a line of its own.
    Packet(Packet),
    /// The survey of `segue pcap stat`.
    Stat(Stat),
}

/// Counts by the name of a reason.
type Reasons = BTreeMap<String, u64>;

/// The document `segue.pcap.merge/1`.
#[derive(JsonSchema)]
pub(crate) struct Merge {
    /// The schema id, always `segue.pcap.merge/1`.
    schema: String,
    /// Number of packets read.
    packets_in: u64,
    /// Number of packets written, a train counting as one.
    packets_out: u64,
    /// Number of trains of at least two packets.
    trains: u64,
    /// Number of packets inside trains.
    segments: u64,
    /// Mean number of packets in a train; 0 without trains.
    mean_segments: f64,
    /// Number of packets read for each one written.
    ratio: f64,
    /// Whether `split --undo` restores the input: the file is pcapng and nothing was swallowed.
    undo: bool,
    /// Profile whose rules decided what was merged.
    profile: String,
    /// Number of pure ACKs that a newer one replaced and that are not in the file; only with profile `lro`.
    swallowed: u64,
    /// Number of packets whose Ethernet padding was cut off when they joined a train.
    trimmed: u64,
    /// Numbers of trains and single packets, by the event that ended them.
    why_trains_ended: Reasons,
    /// Numbers of packets that were passed on without joining a train, by reason.
    why_alone: Reasons,
    /// Numbers of packets that did not join the train of their flow, by the field that differed.
    why_refused: Reasons,
    /// Position and kind of the damage of the input; null if it is intact.
    cut: Option<String>,
    /// Damage of the input as an error object.
    error: Option<serde_json::Value>,
}

/// The document `segue.pcap.split/1`.
#[derive(JsonSchema)]
pub(crate) struct Split {
    /// The schema id, always `segue.pcap.split/1`.
    schema: String,
    /// Whether `--undo` was given.
    undo: bool,
    /// Number of packets read.
    packets_in: u64,
    /// Number of packets written.
    packets_out: u64,
    /// Number of trains that were cut into packets.
    trains_cut: u64,
    /// Notes that do not fit their packet; only with `--undo`.
    notes_unreadable: Option<u64>,
    /// Packets and blocks that are gone since the merge, as far as that can be told; only with `--undo`.
    packets_missing: Option<u64>,
    /// Unfinished checksums that were finished. This counter and all below exist only without `--undo`.
    checksums_finished: Option<u64>,
    /// Wrong checksums that were corrected.
    checksums_fixed: Option<u64>,
    /// IP lengths of zero that were filled in.
    lengths_filled_in: Option<u64>,
    /// Packets whose wrong checksum was left wrong.
    bad_left: Option<u64>,
    /// Packets that were written unchanged.
    unchanged: Option<u64>,
    /// Packets longer than `--mtu` that became IP fragments.
    packets_fragmented: Option<u64>,
    /// Long UDP packets left whole because the size of their datagrams is not known.
    udp_of_unknown_size: Option<u64>,
    /// Trains that could not be cut, and packets that were not examined, by reason.
    left_as_they_are: Option<Reasons>,
    /// Position and kind of the damage of the input; null if it is intact.
    cut: Option<String>,
    /// Damage of the input as an error object.
    error: Option<serde_json::Value>,
}

/// The document `segue.pcap.decap/1`.
#[derive(JsonSchema)]
pub(crate) struct Decap {
    /// The schema id, always `segue.pcap.decap/1`.
    schema: String,
    /// Number of packets read.
    packets_in: u64,
    /// Number of packets written.
    packets_out: u64,
    /// Number of packets that were taken out of a tunnel.
    decapsulated: u64,
    /// Number of remote checksums that were finished.
    checksums_finished: u64,
    /// Number of packets without a tunnel that were written unchanged.
    passed: u64,
    /// Number of packets without a tunnel that were left out.
    dropped: u64,
    /// Packets left in their tunnel, by reason.
    left_in_their_tunnel: Reasons,
    /// Position and kind of the damage of the input; null if it is intact.
    cut: Option<String>,
    /// Damage of the input as an error object.
    error: Option<serde_json::Value>,
}

/// The document `segue.pcap.verify/1`.
#[derive(JsonSchema)]
pub(crate) struct Verify {
    /// The schema id, always `segue.pcap.verify/1`.
    schema: String,
    /// Number of packets read.
    packets: u64,
    /// Number of packets whose checksums are all correct.
    good: u64,
    /// Number of packets with a wrong checksum.
    bad: u64,
    /// Number of packets with an unfinished checksum, which the network card was to complete.
    unfinished: u64,
    /// Number of packets without a checksum.
    absent: u64,
    /// Number of packets of which only the IP headers were checked: fragments, and protocols whose checksums are not
    /// known.
    ip_only: u64,
    /// Number of packets whose lengths contradict each other.
    malformed: u64,
    /// Number of packets that were cut when captured, so that bytes are missing.
    cut: u64,
    /// Number of packets without an IP header.
    not_ip: u64,
    /// Number of IP packets longer than `--mtu`.
    above_mtu: u64,
    /// Counts of verdicts by layer.
    layers: BTreeMap<String, Reasons>,
    /// Error object for a damaged input or bad packets; null otherwise.
    error: Option<serde_json::Value>,
}

/// One packet of `segue pcap verify -j`.
#[derive(JsonSchema)]
pub(crate) struct Packet {
    /// Number of the packet in the file, from 1.
    packet: u64,
    /// Position of the packet in the file, in bytes.
    offset: u64,
    /// Verdict on the packet: `good`, `bad`, `unfinished`, `absent`, `ip_only`, `malformed`, `cut`, `not_ip`.
    verdict: String,
    /// Number of the interface in the capture.
    interface: u32,
    /// Length of the packet in bytes.
    len: u32,
    /// Number of bytes of the packet that are in the file.
    captured_len: u64,
    /// Length of the outermost IP packet in bytes; null for a packet without IP.
    ip_len: Option<u64>,
    /// Whether `ip_len` is more than `--mtu`.
    above_mtu: bool,
    /// Checksums of the packet.
    checksums: Vec<Checksum>,
}

/// One checksum of a packet.
#[derive(JsonSchema)]
pub(crate) struct Checksum {
    /// Header that has the checksum.
    layer: String,
    /// Depth of the header in tunnels, 0 for the outermost.
    level: u64,
    /// Verdict on the checksum: `good`, `bad`, `absent`, `unfinished`, `remote`.
    verdict: String,
    /// Value in the checksum field.
    field: Option<u16>,
    /// Value that the field should have.
    expected: Option<u16>,
}

/// The document `segue.pcap.stat/1`.
#[derive(JsonSchema)]
pub(crate) struct Stat {
    /// The schema id, always `segue.pcap.stat/1`.
    schema: String,
    /// Format of the file: `pcap` or `pcapng`.
    format: String,
    /// Number of packets read.
    packets: u64,
    /// Sum of the original lengths of the packets, in bytes.
    bytes: u64,
    /// Time from the first timestamp to the last, in nanoseconds.
    duration_ns: u64,
    /// Interfaces on which the packets were captured.
    interfaces: Vec<Interface>,
    /// Numbers of packets by size.
    sizes: Vec<Size>,
    /// Number of packets without an IP header.
    not_ip: u64,
    /// Number of IP fragments.
    fragments: u64,
    /// Number of packets that were cut when captured, so that bytes are missing.
    cut_packets: u64,
    /// Number of packets longer than an MTU of 1500.
    trains: u64,
    /// Packets by the verdict on their checksums, or `malformed`, without those that were cut when captured.
    checksums: Reasons,
    /// Packets by their outermost tunnel.
    encap: Reasons,
    /// Number of packets with a remote checksum offload option.
    remote_checksums: u64,
    /// Number of flows that were counted separately.
    flow_count: u64,
    /// Number of packets of flows beyond `flow_count`.
    packets_of_further_flows: u64,
    /// The hundred largest flows.
    flows: Vec<Flow>,
    /// Estimate of the effect of merging.
    would_merge: WouldMerge,
    /// Position and kind of the damage of the input; null if it is intact.
    cut: Option<String>,
    /// Damage of the input as an error object.
    error: Option<serde_json::Value>,
}

/// An interface of the capture.
#[derive(JsonSchema)]
pub(crate) struct Interface {
    /// Name of the interface; empty if the file has none.
    name: String,
    /// Link type of the interface, a `LINKTYPE_` value.
    link_type: u16,
    /// Name of the link type.
    link: String,
}

/// The packets in one range of sizes.
#[derive(JsonSchema)]
pub(crate) struct Size {
    /// Upper limit of the range in bytes; null for no limit.
    up_to_bytes: Option<u32>,
    /// Number of packets in the range.
    packets: u64,
}

/// One of the largest flows.
#[derive(JsonSchema)]
pub(crate) struct Flow {
    /// Addresses, ports and protocol of the flow.
    flow: String,
    /// Number of packets of the flow.
    packets: u64,
    /// Number of bytes of the flow.
    bytes: u64,
    /// Number of packets longer than an MTU of 1500.
    trains: u64,
}

/// Estimate of the effect of merging.
#[derive(JsonSchema)]
pub(crate) struct WouldMerge {
    /// Profile of `--profile`, to which the counts below apply.
    profile: String,
    /// Number of packets that would remain with profile `strict`.
    packets_strict: u64,
    /// Number of packets that would remain with profile `linux`.
    packets_linux: u64,
    /// Packets that would remain with profile `lro`; only if it was requested.
    packets_lro: Option<u64>,
    /// Number of trains that merging would make.
    trains: u64,
    /// Number of packets inside trains.
    segments: u64,
    /// Number of pure ACKs that a newer one would replace.
    swallowed: u64,
    /// Numbers of trains, by the event that would end them.
    why_trains_ended: Reasons,
    /// Numbers of packets that were passed on without joining a train, by reason.
    why_alone: Reasons,
    /// Numbers of packets that did not join the train of their flow, by the field that differed.
    why_refused: Reasons,
}
