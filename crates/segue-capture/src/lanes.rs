//! GRO over a capture: one table for each interface and link header, time from the timestamps.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::checksums::{Finding, Layer, Verdict, pseudo};
use crate::file::{Form, Record, link};
use crate::frame::Frame;
use segue::gro::{self, Gro};
use segue::packet::{Csum, Frag, Packet, Pool, Tunnels, Unit};
use segue::reason::Reason;
use segue::time::Nanos;

/// Most tables; the one used longest ago makes room for another. Real captures have one for each interface and direction.
const MAX_LANES: usize = 64;

/// A record's bytes, and which record it is.
#[derive(Clone, Debug)]
pub(crate) struct RecordBytes {
    pub(crate) raw: Rc<[u8]>,
    /// Where the network header begins.
    from: usize,
    to: usize,
    pub(crate) index: u64,
}

impl AsRef<[u8]> for RecordBytes {
    fn as_ref(&self) -> &[u8] {
        &self.raw[self.from..self.to]
    }
}

/// The place of a range of a record's bytes, counted from the record's first.
pub(crate) fn place_of(buf: &RecordBytes, part: &[u8]) -> usize {
    part.as_ptr() as usize - buf.raw.as_ptr() as usize
}

/// What came out: a packet or train, and the records that it is made of, in order.
pub(crate) struct Released {
    pub(crate) packet: Box<Packet<RecordBytes>>,
    pub(crate) members: Vec<u64>,
    /// Records of acknowledgments that this one stands for, in order.
    pub(crate) swallowed: Vec<u64>,
    /// Reasons it came out, or was not held; what differed from the next packet of the flow is in brackets.
    pub(crate) why: Reasons,
}

/// Reasons that came up while one packet was pushed. More than one where several trains came out for different ones.
pub(crate) type Reasons = Rc<[&'static str]>;

/// Reasons nothing was given to GRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bypass {
    /// No IP.
    NotIp,
    /// Bytes of it are missing.
    Cut,
    /// A frame check sequence behind it would be wrong for a train.
    CheckSequence,
    /// An obsolete form of record, which has no place for a note.
    Obsolete,
}

impl Bypass {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bypass::NotIp => "not_ip",
            Bypass::Cut => "cut",
            Bypass::CheckSequence => "frame_check_sequence",
            Bypass::Obsolete => "obsolete_block",
        }
    }
}

struct Lane {
    interface: u32,
    prefix: Box<[u8]>,
    gro: Gro<RecordBytes>,
    /// Packets without payload have no bytes by which to know them: their records, and those of the acknowledgments that they
    /// have swallowed, by the box that they are in.
    bare: BTreeMap<usize, Bare>,
    used: u64,
}

struct Bare {
    index: u64,
    swallowed: Vec<u64>,
}

/// By what a packet is known that has no payload; boxes do not move.
fn place_in_memory(packet: &Packet<RecordBytes>) -> usize {
    std::ptr::from_ref(packet).addr()
}

/// The tables.
pub(crate) struct Lanes {
    config: gro::Config,
    tunnels: Tunnels,
    lanes: Vec<Lane>,
    pool: Pool<RecordBytes>,
    now: Nanos,
    uses: u64,
    done: GroCounts,
    findings: Vec<Finding>,
}

/// What GRO counted over all its tables. Reasons are keyed by their names in the statistics of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroCounts {
    /// Trains of at least two packets.
    pub trains: u64,
    /// Pure acknowledgments that gave way to a newer one (profile `lro` only).
    pub swallowed: u64,
    /// Packets whose padding is not in their train.
    pub trimmed: u64,
    /// Packets inside of trains.
    pub segments: u64,
    /// Packets that were passed on at once, by reason.
    pub alone: BTreeMap<&'static str, u64>,
    /// Trains, and packets that stayed single, by what ended them.
    pub flushes: BTreeMap<&'static str, u64>,
    /// What differed from the train of the flow, by reason.
    pub mismatches: BTreeMap<&'static str, u64>,
}

impl GroCounts {
    fn add(&mut self, stats: &gro::Stats) {
        self.trains += stats.trains;
        self.swallowed += stats.swallowed;
        self.trimmed += stats.trimmed;
        self.segments += stats.segments;
        fn each<R: Reason>(to: &mut BTreeMap<&'static str, u64>, counts: &segue::reason::Counts<R>) {
            for (reason, n) in counts.iter().filter(|(_, n)| *n > 0) {
                *to.entry(reason.name()).or_default() += n;
            }
        }
        each(&mut self.alone, &stats.alone);
        each(&mut self.flushes, &stats.flushes);
        each(&mut self.mismatches, &stats.mismatches);
    }
}

/// The rules and limits by which packets are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRules {
    /// Whose rules decide what is joined. Pure acknowledgments are joined with [`gro::Profile::Lro`] only.
    pub profile: gro::Profile,
    /// Most bytes of a train, from its IP header.
    pub max_bytes: usize,
    /// Most packets of a train; the engine's own limit for UDP holds besides.
    pub max_packets: usize,
    /// Longest time that a packet waits for the next one of its flow, in microseconds.
    pub hold_us: u32,
}

impl Default for MergeRules {
    /// Profile strict, 65,535 bytes, 1000 packets, 1000 microseconds.
    fn default() -> MergeRules {
        MergeRules { profile: gro::Profile::Strict, max_bytes: 65_535, max_packets: 1000, hold_us: 1000 }
    }
}

impl MergeRules {
    /// The engine's form of the rules.
    pub(crate) fn gro(&self) -> gro::Config {
        gro::Config {
            profile: self.profile,
            acks: self.profile == gro::Profile::Lro,
            max_bytes: self.max_bytes,
            max_packets: self.max_packets,
            max_udp_packets: self.max_packets.min(gro::Config::default().max_udp_packets),
            hold: u64::from(self.hold_us) * 1000,
            ..gro::Config::default()
        }
    }
}

impl Lanes {
    pub(crate) fn new(config: gro::Config, tunnels: Tunnels) -> Lanes {
        Lanes {
            config,
            tunnels,
            lanes: Vec::new(),
            pool: Pool::new(256),
            now: Nanos(0),
            uses: 0,
            done: GroCounts::default(),
            findings: Vec::new(),
        }
    }

    /// Takes a record with its bytes in `raw`. What comes out goes to `each`, the record itself perhaps among it. `Err` says why it was not taken; whatever was held of its interface came out then.
    pub(crate) fn push(
        &mut self,
        record: &Record<'_>,
        raw: &Rc<[u8]>,
        index: u64,
        mut each: impl FnMut(Released),
    ) -> Result<(), Bypass> {
        if let Some(nanos) = record.nanos {
            // Timestamps may go back, time does not.
            self.now = self.now.max(Nanos(nanos));
        }
        self.expire(&mut each);
        let aside = match link::start(record.link, record.data()) {
            _ if record.is_cut() => Err(Bypass::Cut),
            _ if record.fcs_len != 0 => Err(Bypass::CheckSequence),
            _ if record.form == Form::Obsolete => Err(Bypass::Obsolete),
            None => Err(Bypass::NotIp),
            Some(start) => Ok(start),
        };
        let (prefix, start) = match aside {
            Ok(found) => found,
            // It has no flow, so nothing must wait for it.
            Err(Bypass::NotIp) => return Err(Bypass::NotIp),
            Err(why) => {
                self.flush_interface(record.interface, &mut each);
                return Err(why);
            }
        };
        let lane = self.lane(record.interface, &record.data()[..prefix], &mut each);
        let mut packet = self.pool.take();
        let buf = RecordBytes { raw: Rc::clone(raw), from: record.data.start + prefix, to: record.data.end, index };
        packet.load(Frag::all(buf), start, &self.tunnels);
        if self.is_unfinished(record, prefix, &packet) {
            packet.offload.unit = Unit::Whole(Csum::Partial);
        }
        let lane = &mut self.lanes[lane];
        let place = place_in_memory(&packet);
        if packet.payload.is_empty() || packet.layout.is_padded() {
            lane.bare.insert(place, Bare { index, swallowed: Vec::new() });
        }
        let before = lane.gro.stats().clone();
        // The pool has room for one more box, so that one that is swallowed is the next that it hands out.
        let spare = self.pool.take();
        lane.gro.push(packet, self.now, &mut self.pool);
        if lane.gro.stats().swallowed > before.swallowed {
            let gone = self.pool.take();
            let older = lane.bare.remove(&place_in_memory(&gone));
            if let (Some(mut older), Some(newer)) = (older, lane.bare.get_mut(&place)) {
                older.swallowed.push(older.index);
                newer.swallowed = older.swallowed;
            }
            self.pool.put(gone);
        }
        self.pool.put(spare);
        drain_after(lane, &before, Some(index), &mut each);
        Ok(())
    }

    /// Whether the transport checksum was left to somebody in front of whom the packet was captured. The sum over the
    /// payload is taken only where the field makes it likely.
    fn is_unfinished(&mut self, record: &Record<'_>, prefix: usize, packet: &Packet<RecordBytes>) -> bool {
        let (Some(header), Some(ip)) = (packet.layout.transport(), packet.layout.inner_ip()) else { return false };
        if packet.offload.unit != Unit::Whole(Csum::Unknown) || !packet.layout.is_exact() {
            return false;
        }
        let bytes = &record.data()[prefix..];
        let is_tcp = header.kind == segue::packet::Kind::Tcp;
        let (number, at) = if is_tcp { (6, segue::wire::tcp::CHECKSUM) } else { (17, segue::wire::udp::CHECKSUM) };
        let len = packet.len() - header.start();
        let primed = pseudo(bytes, ip, number, len).map(|sum| segue::checksum::Field::primed(sum).value());
        if primed.is_none() || primed != segue::wire::read_u16(bytes, header.start() + at) {
            return false;
        }
        let Some(frame) = Frame::open(record.link, record.data(), &self.tunnels, usize::MAX) else { return false };
        frame.judge(&mut self.findings);
        let is_transport = |layer| layer == if is_tcp { Layer::Tcp } else { Layer::Udp };
        self.findings.iter().any(|f| !f.is_outer && is_transport(f.layer) && f.verdict == Verdict::Unfinished)
    }

    /// Everything held comes out.
    pub(crate) fn flush(&mut self, mut each: impl FnMut(Released)) {
        for lane in &mut self.lanes {
            finish(lane, &mut each);
        }
    }

    /// The end of a section: interfaces mean something else behind it.
    pub(crate) fn forget(&mut self, each: impl FnMut(Released)) {
        self.flush(each);
        for lane in self.lanes.drain(..) {
            self.done.add(lane.gro.stats());
        }
    }

    /// What was counted so far.
    pub(crate) fn tally(&self) -> GroCounts {
        let mut tally = self.done.clone();
        self.lanes.iter().for_each(|lane| tally.add(lane.gro.stats()));
        tally
    }

    /// Boxes that came out and are no longer needed.
    pub(crate) fn give_back(&mut self, packet: Box<Packet<RecordBytes>>) {
        self.pool.put(packet);
    }

    fn expire(&mut self, each: &mut impl FnMut(Released)) {
        for lane in &mut self.lanes {
            if lane.gro.deadline().is_some_and(|deadline| deadline <= self.now) {
                let before = lane.gro.stats().clone();
                lane.gro.expire(self.now);
                drain_after(lane, &before, None, each);
            }
        }
    }

    fn flush_interface(&mut self, interface: u32, each: &mut impl FnMut(Released)) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.interface == interface) {
            finish(lane, each);
        }
    }

    fn lane(&mut self, interface: u32, prefix: &[u8], each: &mut impl FnMut(Released)) -> usize {
        self.uses += 1;
        let found = self.lanes.iter().position(|lane| lane.interface == interface && *lane.prefix == *prefix);
        let at = found.unwrap_or_else(|| {
            if self.lanes.len() == MAX_LANES {
                let oldest = (0..MAX_LANES).min_by_key(|&at| self.lanes[at].used).unwrap_or(0);
                let mut lane = self.lanes.swap_remove(oldest);
                finish(&mut lane, each);
                self.done.add(lane.gro.stats());
            }
            let gro = Gro::new(self.config);
            self.lanes.push(Lane { interface, prefix: prefix.into(), gro, bare: BTreeMap::new(), used: 0 });
            self.lanes.len() - 1
        });
        self.lanes[at].used = self.uses;
        at
    }
}

/// Everything that is held comes out.
fn finish(lane: &mut Lane, each: &mut impl FnMut(Released)) {
    let before = lane.gro.stats().clone();
    lane.gro.flush();
    drain_after(lane, &before, None, each);
}

/// Hands on what came out since `before`, with the reasons that were counted since; `pushed` is the record of the packet that
/// was given to the table.
fn drain_after(lane: &mut Lane, before: &gro::Stats, pushed: Option<u64>, each: &mut impl FnMut(Released)) {
    let mut ready = Vec::new();
    while let Some(packet) = lane.gro.pop() {
        let mut members: Vec<u64> = packet.payload.frags().iter().map(|frag| frag.clone().into_inner().index).collect();
        members.dedup();
        let mut swallowed = Vec::new();
        // What has no payload of its own: an acknowledgment may have padding, a train has none.
        if (members.is_empty() || packet.layout.is_padded())
            && let Some(bare) = lane.bare.remove(&place_in_memory(&packet))
        {
            members = vec![bare.index];
            swallowed = bare.swallowed;
        }
        ready.push((packet, members, swallowed));
    }
    if ready.is_empty() {
        return;
    }
    let now = lane.gro.stats();
    let (alone, flushes) = (risen(&now.alone, &before.alone), risen(&now.flushes, &before.flushes));
    // What is pushed and not held comes out last, and nothing else is alone. What closes a train of one is known before it
    // is held, so that it is counted after what it closes.
    let is_own = |members: &[u64]| members.len() == 1 && pushed == members.first().copied();
    let (own, others): (Vec<&'static str>, Vec<&'static str>) = match &alone[..] {
        [] if ready.len() > 1 && ready.last().is_some_and(|(_, members, _)| is_own(members)) => {
            let closes = |reason: &&'static str| CLOSING.contains(reason);
            let (own, others): (Vec<_>, Vec<_>) = flushes.iter().copied().partition(closes);
            if own.is_empty() || others.is_empty() { (flushes.clone(), flushes.clone()) } else { (own, others) }
        }
        [] => (flushes.clone(), flushes.clone()),
        alone => (alone.to_vec(), flushes.clone()),
    };
    let mut others = others;
    if let Some(place) = others.iter().position(|reason| *reason == gro::Flush::Mismatch.name()) {
        others.splice(place + 1..place + 1, risen(&now.mismatches, &before.mismatches));
    }
    let (own, others): (Reasons, Reasons) = (own.into(), others.into());
    let last = ready.len() - 1;
    for (at, (packet, members, swallowed)) in ready.into_iter().enumerate() {
        let why = if at == last && is_own(&members) { &own } else { &others };
        each(Released { packet, members, swallowed, why: Rc::clone(why) });
    }
}

/// What ends a train at the packet itself.
const CLOSING: [&str; 3] = ["psh", "fin", "full"];

/// Reasons of which there are more than there were.
fn risen<R: Reason>(now: &segue::reason::Counts<R>, before: &segue::reason::Counts<R>) -> Vec<&'static str> {
    now.iter()
        .zip(before.iter())
        .filter(|((_, now), (_, before))| now > before)
        .map(|((reason, _), _)| reason.name())
        .collect()
}
