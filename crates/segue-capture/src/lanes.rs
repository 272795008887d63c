//! GRO over a capture: one GRO table for each interface and link header, with the time from the timestamps.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::checksums::{Finding, Layer, Verdict, pseudo};
use crate::file::{Form, Record, link};
use crate::frame::Frame;
use segue::gro::{self, Gro};
use segue::packet::{Csum, Frag, Packet, Pool, Tunnels, Unit};
use segue::reason::Reason;
use segue::time::Nanos;

/// Largest number of GRO tables; beyond it the least recently used one is replaced. Real captures need one for each
/// interface and direction.
const MAX_LANES: usize = 64;
/// Maximum number of records that wait for a decision.
pub(crate) const WINDOW: usize = 65_536;
/// Maximum number of bytes of records that wait for a decision.
pub(crate) const WINDOW_BYTES: usize = 24 << 20;

/// The bytes of a record from its network header on, with the index of the record.
#[derive(Clone, Debug)]
pub(crate) struct RecordBytes {
    pub(crate) raw: Rc<[u8]>,
    /// Offset of the network header in `raw`.
    from: usize,
    to: usize,
    pub(crate) index: u64,
}

impl AsRef<[u8]> for RecordBytes {
    fn as_ref(&self) -> &[u8] {
        &self.raw[self.from..self.to]
    }
}

/// Returns the offset of `part`, a slice of the bytes of `buf`, in its record.
pub(crate) fn place_of(buf: &RecordBytes, part: &[u8]) -> usize {
    part.as_ptr() as usize - buf.raw.as_ptr() as usize
}

/// A packet or train that GRO released, with the records that it consists of, in order.
pub(crate) struct Released {
    pub(crate) packet: Box<Packet<RecordBytes>>,
    pub(crate) members: Vec<u64>,
    /// Records of the acknowledgments that this packet replaces, in order.
    pub(crate) swallowed: Vec<u64>,
    /// Reasons why the packet was released or not held; a mismatch is followed by the fields that differ.
    pub(crate) why: Reasons,
}

/// Names of the reasons that were counted while one packet was pushed; several if several trains were released.
pub(crate) type Reasons = Rc<[&'static str]>;

/// The reason why a record was not offered to GRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bypass {
    /// The record is not IP.
    NotIp,
    /// Bytes of the packet are missing.
    Cut,
    /// A frame check sequence follows the packet, which would be wrong for a train.
    CheckSequence,
    /// A record of an obsolete form, which cannot hold a note.
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
    /// Records of packets without payload and of the acknowledgments merged into them, by the address of their box:
    /// such packets have no payload bytes that lead back to a record.
    bare: BTreeMap<usize, Bare>,
    /// Number of bytes of the records that wait in the table.
    bytes: usize,
    used: u64,
}

struct Bare {
    index: u64,
    /// Length of the record in bytes.
    len: usize,
    swallowed: Vec<u64>,
}

/// Returns the address of a boxed packet, which identifies one without payload; boxes do not move.
fn place_in_memory(packet: &Packet<RecordBytes>) -> usize {
    std::ptr::from_ref(packet).addr()
}

/// The GRO tables of a capture.
pub(crate) struct Lanes {
    config: gro::Config,
    tunnels: Tunnels,
    lanes: Vec<Lane>,
    pool: Pool<RecordBytes>,
    now: Nanos,
    /// Time of the last record of each interface.
    last: BTreeMap<u32, Nanos>,
    uses: u64,
    done: GroCounts,
    findings: Vec<Finding>,
}

/// Counters of GRO over all its tables. Reasons are keyed by their names in the statistics of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroCounts {
    /// Number of trains of at least two packets.
    pub trains: u64,
    /// Number of pure acknowledgments replaced by a newer one (profile `lro` only).
    pub swallowed: u64,
    /// Number of packets whose padding is not in their train.
    pub trimmed: u64,
    /// Number of packets inside trains.
    pub segments: u64,
    /// Packets that were passed on at once, by reason.
    pub alone: BTreeMap<&'static str, u64>,
    /// Numbers of trains and unmerged packets, by the event that ended them.
    pub flushes: BTreeMap<&'static str, u64>,
    /// Numbers of mismatches with the flow's train, by reason.
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
    /// Profile that decides which packets are joined. Pure acknowledgments are joined with [`gro::Profile::Lro`] only.
    pub profile: gro::Profile,
    /// Largest train in bytes, from its IP header.
    pub max_bytes: usize,
    /// Maximum number of packets of a train; the engine's limit for UDP applies too.
    pub max_packets: usize,
    /// Longest time that a packet waits for the next one of its flow, in microseconds.
    pub hold_us: u32,
}

impl Default for MergeRules {
    /// Returns the default: profile strict, 65,535 bytes, 1000 packets, 1000 microseconds.
    fn default() -> MergeRules {
        MergeRules { profile: gro::Profile::Strict, max_bytes: 65_535, max_packets: 1000, hold_us: 1000 }
    }
}

impl MergeRules {
    /// Returns the rules as a configuration of the engine.
    pub(crate) fn gro(&self) -> gro::Config {
        gro::Config {
            profile: self.profile,
            acks: self.profile == gro::Profile::Lro,
            max_bytes: self.max_bytes,
            max_packets: self.max_packets,
            max_udp_packets: self.max_packets.min(gro::Config::default().max_udp_packets),
            hold: Nanos::micros(u64::from(self.hold_us)),
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
            last: BTreeMap::new(),
            uses: 0,
            done: GroCounts::default(),
            findings: Vec::new(),
        }
    }

    /// Pushes a record with its bytes in `raw`, and passes every released packet to `each`, possibly the record itself.
    ///
    /// # Errors
    /// The reason why the record was not offered to GRO; unless it is not IP, all packets held of its interface are
    /// released first.
    pub(crate) fn push(
        &mut self,
        record: &Record<'_>,
        raw: &Rc<[u8]>,
        index: u64,
        mut each: impl FnMut(Released),
    ) -> Result<(), Bypass> {
        if let Some(nanos) = record.nanos {
            self.advance(record.interface, Nanos(nanos), &mut each);
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
            lane.bare.insert(place, Bare { index, len: raw.len(), swallowed: Vec::new() });
        }
        lane.bytes += raw.len();
        let before = lane.gro.stats().clone();
        // The pool has room for one more box, so that one that is swallowed is the next that it hands out.
        let spare = self.pool.take();
        lane.gro.push(packet, self.now, &mut self.pool);
        if lane.gro.stats().swallowed > before.swallowed {
            let gone = self.pool.take();
            let older = lane.bare.remove(&place_in_memory(&gone));
            lane.bytes -= older.as_ref().map_or(0, |older| older.len);
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

    /// Returns whether the transport checksum was still partial at capture time. The payload is summed only if the
    /// field holds the sum of the pseudo-header.
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

    /// Returns whether as much waits in the tables as may, so that the caller must [`flush`](Lanes::flush).
    pub(crate) fn is_full(&self) -> bool {
        let of_lane = |lane: &Lane| (lane.gro.held_packets(), lane.bytes);
        let (records, bytes) = self.lanes.iter().map(of_lane).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        records >= WINDOW || bytes >= WINDOW_BYTES
    }

    /// Releases all packets that are held.
    pub(crate) fn flush(&mut self, mut each: impl FnMut(Released)) {
        for lane in &mut self.lanes {
            finish(lane, &mut each);
        }
    }

    /// Releases all packets and drops the tables at the end of a section, after which interfaces are renumbered and
    /// time begins anew.
    pub(crate) fn forget(&mut self, each: impl FnMut(Released)) {
        self.flush(each);
        self.now = Nanos::ZERO;
        self.last.clear();
        for lane in self.lanes.drain(..) {
            self.done.add(lane.gro.stats());
        }
    }

    /// Returns the counters so far, including those of dropped tables.
    pub(crate) fn tally(&self) -> GroCounts {
        let mut tally = self.done.clone();
        self.lanes.iter().for_each(|lane| tally.add(lane.gro.stats()));
        tally
    }

    /// Returns the box of a released packet to its pool.
    pub(crate) fn give_back(&mut self, packet: Box<Packet<RecordBytes>>) {
        self.pool.put(packet);
    }

    /// Sets the time to that of a record. Where timestamps go back, time stands still, as where the records of several
    /// interfaces are not in order. Where those of one interface go back by more than the hold time another clock
    /// begins, by which no wait of what is held can be measured, so all of it is released.
    fn advance(&mut self, interface: u32, time: Nanos, each: &mut impl FnMut(Released)) {
        let last = self.last.insert(interface, time);
        if last.is_some_and(|last| time + self.config.hold < last) {
            self.flush(&mut *each);
            self.now = time;
        }
        self.now = self.now.max(time);
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
            self.lanes.push(Lane { interface, prefix: prefix.into(), gro, bare: BTreeMap::new(), bytes: 0, used: 0 });
            self.lanes.len() - 1
        });
        self.lanes[at].used = self.uses;
        at
    }
}

/// Releases all packets that a table holds.
fn finish(lane: &mut Lane, each: &mut impl FnMut(Released)) {
    let before = lane.gro.stats().clone();
    lane.gro.flush();
    drain_after(lane, &before, None, each);
    debug_assert_eq!(lane.bytes, 0, "every record is released once");
}

/// Passes the packets released since the counters `before` to `each`, with the reasons counted since then; `pushed` is
/// the record of the pushed packet.
fn drain_after(lane: &mut Lane, before: &gro::Stats, pushed: Option<u64>, each: &mut impl FnMut(Released)) {
    let mut ready = Vec::new();
    while let Some(packet) = lane.gro.pop() {
        let (mut members, mut swallowed, mut bytes) = (Vec::new(), Vec::new(), 0);
        for frag in packet.payload.frags() {
            let buf = frag.clone().into_inner();
            if members.last() != Some(&buf.index) {
                members.push(buf.index);
                bytes += buf.raw.len();
            }
        }
        // Packets without payload: an acknowledgment may have padding, a train never has.
        if (members.is_empty() || packet.layout.is_padded())
            && let Some(bare) = lane.bare.remove(&place_in_memory(&packet))
        {
            (members, swallowed, bytes) = (vec![bare.index], bare.swallowed, bare.len);
        }
        lane.bytes -= bytes;
        ready.push((packet, members, swallowed));
    }
    if ready.is_empty() {
        return;
    }
    let now = lane.gro.stats();
    let (alone, flushes) = (risen(&now.alone, &before.alone), risen(&now.flushes, &before.flushes));
    // A pushed packet that is not held is released last, and only it can have a reason for staying alone. A reason that
    // ends a train at the packet itself is counted after the reasons that ended earlier trains.
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

/// Reasons that end a train at the pushed packet itself.
const CLOSING: [&str; 3] = ["psh", "fin", "full"];

/// Returns the names of the reasons whose counters are higher than in `before`.
fn risen<R: Reason>(now: &segue::reason::Counts<R>, before: &segue::reason::Counts<R>) -> Vec<&'static str> {
    now.iter()
        .zip(before.iter())
        .filter(|((_, now), (_, before))| now > before)
        .map(|((reason, _), _)| reason.name())
        .collect()
}
