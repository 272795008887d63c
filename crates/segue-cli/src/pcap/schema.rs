//! What `segue pcap -j` prints, for `segue schema pcap`. Keys are only ever added.
#![allow(dead_code, reason = "only the schema of these is used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

/// One object of `segue pcap -j`. `schema` says of which command; objects of single packets, which `verify` prints,
/// have none.
#[derive(JsonSchema)]
#[serde(untagged)]
pub(crate) enum Document {
    /// `segue pcap merge`
    Merge(Merge),
    /// `segue pcap split`, with `--undo` or without
    Split(Split),
    /// `segue pcap decap`
    Decap(Decap),
    /// `segue pcap verify`, at the end
    Verify(Verify),
    /// `segue pcap verify`, one line for each packet
    Packet(Packet),
    /// `segue pcap stat`
    Stat(Stat),
}

/// Counts by reason.
type Reasons = BTreeMap<String, u64>;

/// `segue.pcap.merge/1`
#[derive(JsonSchema)]
pub(crate) struct Merge {
    /// Always `segue.pcap.merge/1`.
    schema: String,
    /// Packets read.
    packets_in: u64,
    /// Packets written, a train counting as one.
    packets_out: u64,
    /// Trains of at least two packets.
    trains: u64,
    /// Packets inside of them.
    segments: u64,
    /// Packets of a train on average; 0 without trains.
    mean_segments: f64,
    /// Packets read for each one written.
    ratio: f64,
    /// Whether `split --undo` gives the input back: the file is pcapng and nothing was swallowed.
    undo: bool,
    /// Whose rules decided.
    profile: String,
    /// Pure ACKs that gave way to a newer one and are not in the file; only with profile `lro`.
    swallowed: u64,
    /// Packets whose padding is not in their train.
    trimmed: u64,
    /// Trains, and packets that stayed single, by what ended them.
    why_trains_ended: Reasons,
    /// Packets that were passed on at once, by reason.
    why_alone: Reasons,
    /// What differed from the train of the flow.
    why_refused: Reasons,
    /// Where and how the input is damaged; null where it is not.
    cut: Option<String>,
    /// The same as an error.
    error: Option<serde_json::Value>,
}

/// `segue.pcap.split/1`
#[derive(JsonSchema)]
pub(crate) struct Split {
    /// Always `segue.pcap.split/1`.
    schema: String,
    /// Whether it was `--undo`.
    undo: bool,
    /// Packets read.
    packets_in: u64,
    /// Packets written.
    packets_out: u64,
    /// Trains taken apart.
    trains_cut: u64,
    /// Notes that did not fit their packet; with `--undo`.
    notes_unreadable: Option<u64>,
    /// Unfinished checksums that were finished. This and all below: without `--undo`.
    checksums_finished: Option<u64>,
    /// Wrong checksums that were made right.
    checksums_fixed: Option<u64>,
    /// IP lengths of zero that were filled in.
    lengths_filled_in: Option<u64>,
    /// Packets with a wrong checksum, left so.
    bad_left: Option<u64>,
    /// Packets that went through as they were.
    unchanged: Option<u64>,
    /// Packets longer than `--mtu` that became IP fragments.
    packets_fragmented: Option<u64>,
    /// Long UDP packets left whole because the size of their datagrams is not known.
    udp_of_unknown_size: Option<u64>,
    /// What could not be cut, by reason.
    left_as_they_are: Option<Reasons>,
    /// Where and how the input is damaged; null where it is not.
    cut: Option<String>,
    /// The same as an error.
    error: Option<serde_json::Value>,
}

/// `segue.pcap.decap/1`
#[derive(JsonSchema)]
pub(crate) struct Decap {
    /// Always `segue.pcap.decap/1`.
    schema: String,
    /// Packets read.
    packets_in: u64,
    /// Packets written.
    packets_out: u64,
    /// Packets that were taken out of a tunnel.
    decapsulated: u64,
    /// Remote checksums that were finished.
    checksums_finished: u64,
    /// Packets in no tunnel that were passed on.
    passed: u64,
    /// Packets in no tunnel that were left out.
    dropped: u64,
    /// Packets left in their tunnel, by reason.
    left_in_their_tunnel: Reasons,
    /// Where and how the input is damaged; null where it is not.
    cut: Option<String>,
    /// The same as an error.
    error: Option<serde_json::Value>,
}

/// `segue.pcap.verify/1`
#[derive(JsonSchema)]
pub(crate) struct Verify {
    /// Always `segue.pcap.verify/1`.
    schema: String,
    /// Packets read.
    packets: u64,
    /// Packets of which all checksums are right.
    good: u64,
    /// Packets with a wrong one.
    bad: u64,
    /// Packets with one that was still to be finished.
    unfinished: u64,
    /// Packets without one.
    absent: u64,
    /// Packets of which nothing but the IP headers was judged: fragments, and protocols whose checksums are not known.
    ip_only: u64,
    /// Packets whose lengths contradict each other.
    malformed: u64,
    /// Packets of which bytes are missing.
    cut: u64,
    /// Packets that are no IP.
    not_ip: u64,
    /// IP packets longer than `--mtu`.
    above_mtu: u64,
    /// Verdicts by layer.
    layers: BTreeMap<String, Reasons>,
    /// Where and how the input is damaged, or that packets are bad.
    error: Option<serde_json::Value>,
}

/// One packet of `segue pcap verify -j`.
#[derive(JsonSchema)]
pub(crate) struct Packet {
    /// Its number, from 1.
    packet: u64,
    /// Where it is in the file, bytes.
    offset: u64,
    /// `good`, `bad`, `unfinished`, `absent`, `ip_only`, `malformed`, `cut`, `not_ip`.
    verdict: String,
    /// The interface's number.
    interface: u32,
    /// Bytes of the packet.
    len: u32,
    /// Bytes of it that are in the file.
    captured_len: u64,
    /// Bytes of the outermost IP packet; null where there is none.
    ip_len: Option<u64>,
    /// Whether that is more than `--mtu`.
    above_mtu: bool,
    /// Each checksum.
    checksums: Vec<Checksum>,
}

/// One checksum.
#[derive(JsonSchema)]
pub(crate) struct Checksum {
    /// Of which header.
    layer: String,
    /// How deep, from 0 outside.
    level: u64,
    /// `good`, `bad`, `absent`, `unfinished`, `remote`.
    verdict: String,
    /// What stands in the field.
    field: Option<u16>,
    /// What should.
    expected: Option<u16>,
}

/// `segue.pcap.stat/1`
#[derive(JsonSchema)]
pub(crate) struct Stat {
    /// Always `segue.pcap.stat/1`.
    schema: String,
    /// `pcap` or `pcapng`.
    format: String,
    /// Packets read.
    packets: u64,
    /// Their bytes when they were captured.
    bytes: u64,
    /// From the first timestamp to the last.
    duration_ns: u64,
    /// Where they were captured.
    interfaces: Vec<Interface>,
    /// How many packets of which size.
    sizes: Vec<Size>,
    /// Packets that are no IP.
    not_ip: u64,
    /// IP fragments.
    fragments: u64,
    /// Packets of which bytes are missing.
    cut_packets: u64,
    /// Packets longer than an MTU of 1500.
    trains: u64,
    /// Packets by the verdict on their checksums, or `malformed`; those that were cut when captured are left out.
    checksums: Reasons,
    /// Packets by their outermost tunnel.
    encap: Reasons,
    /// Packets with the remote checksum option.
    remote_checksums: u64,
    /// Flows, as far as they were told apart.
    flow_count: u64,
    /// Packets of flows beyond those.
    packets_of_further_flows: u64,
    /// The hundred largest flows.
    flows: Vec<Flow>,
    /// What merging would do.
    would_merge: WouldMerge,
    /// Where and how the input is damaged; null where it is not.
    cut: Option<String>,
    /// The same as an error.
    error: Option<serde_json::Value>,
}

/// An interface of a capture.
#[derive(JsonSchema)]
pub(crate) struct Interface {
    /// Its name; empty where none is known.
    name: String,
    /// `LINKTYPE_` value.
    link_type: u16,
    /// Its name.
    link: String,
}

/// Packets of a size.
#[derive(JsonSchema)]
pub(crate) struct Size {
    /// The largest of them; null for no limit.
    up_to_bytes: Option<u32>,
    /// How many.
    packets: u64,
}

/// One flow.
#[derive(JsonSchema)]
pub(crate) struct Flow {
    /// Addresses, ports and protocol.
    flow: String,
    /// Packets.
    packets: u64,
    /// Bytes.
    bytes: u64,
    /// Packets longer than an MTU of 1500.
    trains: u64,
}

/// What merging would do.
#[derive(JsonSchema)]
pub(crate) struct WouldMerge {
    /// The profile that was asked for, of which the counts below are.
    profile: String,
    /// Packets that would be left with profile `strict`.
    packets_strict: u64,
    /// With `linux`.
    packets_linux: u64,
    /// With `lro`, where that was asked for.
    packets_lro: Option<u64>,
    /// Trains.
    trains: u64,
    /// Packets inside of them.
    segments: u64,
    /// Pure ACKs that would give way to a newer one.
    swallowed: u64,
    /// Trains by what ended them.
    why_trains_ended: Reasons,
    /// Packets passed on at once, by reason.
    why_alone: Reasons,
    /// What differed from the train of the flow.
    why_refused: Reasons,
}
