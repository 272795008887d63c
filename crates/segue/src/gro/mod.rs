//! GRO: joins packets of a flow into trains.
//!
//! [`Gro::push`] takes a parsed packet, [`Gro::pop`] gives what is ready, [`Gro::deadline`] says when to call
//! [`Gro::expire`] at the latest; [`Gro::deliver`] and [`Gro::end_poll`] are the same for receivers that want to be called. A
//! packet that cannot be part of a train is passed on as it is, behind everything held of its flow, so that the packets of a
//! flow leave in the order in which they came. Nothing is lost: every packet pushed comes out once, alone or inside a train,
//! or is counted as swallowed.
//!
//! What has to be equal for two packets to join is *everything* in their headers but the fields of [`rules::VARYING`].
//! Payload is never copied. Checksums are verified before anything is joined, and lazily: a packet that stays alone is
//! not summed. Where a port knows the sum of a packet, that verifies it without touching payload; the sum belongs to the one
//! packet, so that a train is verified and has none. One train of a flow is held at a time, so a segment can only join the
//! newest.
//!
//! Trains are limited in bytes, with room for another segment of the size seen, and in packets. The limit on packets is no
//! substitute for the other: one that is derived from the receiver's MTU, as `inet_lro` had it, closes trains of 1500-byte
//! frames on a 9000-byte port after 7, where 43 fit.
//!
//! [`Profile`] says whose rules decide: [`Profile::Strict`] joins only what [`gso::split`](crate::gso::split) restores byte
//! for byte, [`Profile::Linux`] makes the trains that a kernel makes, except that order within a flow is kept here too, and
//! [`Profile::Lro`] is for receivers that end the connections themselves. With [`Config::acks`] it also lets pure
//! acknowledgments collapse to the newest one, which a sender's host is glad of.

mod acks;
mod fast_path;
mod form;
mod key;
mod next_segment;
mod pending_first;
mod profile;
pub mod rules;
mod table;
#[cfg(test)]
mod tests;
mod verify;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub use profile::{Generation, Profile};
pub use rules::{Alone, Flush, Mismatch};

use crate::arch::{self, Kernel};
use crate::checksum::{Field, Sum};
use crate::gso::{MAX_SEGS, MIN_TCP_SIZE};
use crate::hash;
use crate::packet::{Csum, Frag, Gso, GsoKind, Kind, LayerCsum, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use crate::reason::Counts;
use crate::time::Nanos;
use crate::wire::{ipv4, ipv6, read_u16, read_u32, tcp, udp, write_u16};
use fast_path::Rules;
use form::Forms;
use key::{FlowKey, Hasher};
use pending_first::PendingFirst;
use rules::Masks;
use table::{Carries, ExpectedNext, Found, Held, Ids, MatchKey, Slot, Table, left};

/// Most bytes of a train, whatever the configuration says: what Linux lets a device take.
pub const MAX_TRAIN_BYTES: usize = 8 * 65_535;
/// Most bytes of a train that is no plain TCP, from its outermost IP header: what a length field can say.
const MAX_IP_BYTES: usize = 65_535;

/// Limits and rules of one [`Gro`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whose rules decide.
    pub profile: Profile,
    /// Largest train, in bytes from its outermost IP header. Default 65535.
    ///
    /// Up to [`MAX_TRAIN_BYTES`], but over 65535 only for TCP outside tunnels: a train over that has a length field of zero,
    /// which not every port takes.
    pub max_bytes: usize,
    /// Most packets of a TCP train, up to 65535; below 2 nothing is joined. Default 1000.
    pub max_packets: usize,
    /// Most datagrams of a UDP train; below 2 nothing is joined. Default 64, what every kernel with USO takes.
    pub max_udp_packets: usize,
    /// Most flows held at a time, 1 to 65535. Default 256. Memory is taken once, when the table is made.
    pub max_flows: usize,
    /// Most packets held at a time, all flows together, at least 1. Default 8192. What is over that leaves at once, the oldest
    /// train first: a bound on the buffers that are kept from their owner, for when more comes in a round than was thought.
    pub max_held_packets: usize,
    /// Longest time that a packet is held, in nanoseconds. With 0, the default, everything is due at the next
    /// [`Gro::expire`] or [`Gro::flush`], which a poll loop calls at the end of each round.
    pub hold: u64,
    /// Whether pure acknowledgments collapse to the newest; only in [`Profile::Lro`]. Off by default.
    pub acks: bool,
    /// Most acknowledgments that one stands for, the one included; below 2 none is swallowed. Default 32. They are held no
    /// longer than [`Config::hold`], counted from the first.
    pub max_acks: usize,
    /// Key of the flow hash.
    pub key: hash::Key,
    /// Which UDP ports carry tunnels, for the frames that [`Gro::push_frame`] parses. None by default.
    pub tunnels: Tunnels,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profile: Profile::Strict,
            max_bytes: MAX_IP_BYTES,
            max_packets: 1000,
            max_udp_packets: 64,
            max_flows: 256,
            max_held_packets: 8192,
            hold: 0,
            acks: false,
            max_acks: 32,
            key: hash::Key([0x5e67_7565_0000_0001, 0x5e67_7565_0000_0002]),
            tunnels: Tunnels::NONE,
        }
    }
}

impl Config {
    /// Most bytes of a train, from its outermost IP header.
    fn limit(&self, may_be_jumbo: bool) -> usize {
        if may_be_jumbo { self.max_bytes } else { self.max_bytes.min(MAX_IP_BYTES) }
    }

    /// Most packets of a train of TCP or of UDP.
    fn most(&self, is_tcp: bool) -> u32 {
        // The one is limited when this is made, and of the other there are never as many.
        let most = if is_tcp { self.max_packets } else { self.max_udp_packets };
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

/// What a [`Gro`] has done, since it was made.
///
/// When nothing is held, every packet pushed is in exactly one of: `alone`, `segments`, `swallowed`, and the flushes that were
/// no train.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Packets pushed.
    pub packets: u64,
    /// Trains of at least two packets that came out.
    pub trains: u64,
    /// Packets inside those trains.
    pub segments: u64,
    /// Pure acknowledgments that gave way to a newer one of their flow.
    pub swallowed: u64,
    /// Packets whose padding was cut off.
    pub trimmed: u64,
    /// Why packets were passed on without being held: one count for each such packet.
    pub alone: Counts<Alone>,
    /// Why what was good for a train came out: one count for each train, and one for each packet that stayed single,
    /// whether it was held for a while or nothing could have followed it.
    pub flushes: Counts<Flush>,
    /// What differed when a packet did not fit the train held of its flow.
    pub mismatches: Counts<Mismatch>,
    /// Payload bytes summed to verify checksums.
    pub checksummed_bytes: u64,
}

/// A packet as a port has it, not parsed yet.
#[derive(Debug)]
pub struct Frame<B> {
    /// All of its bytes, padding included.
    pub bytes: Frag<B>,
    /// With what it begins.
    pub start: Start,
    /// What the port knows of the innermost transport checksum. Where it knows nothing ([`Csum::Unknown`]), the headers say
    /// whether there is one, or whether it is owed.
    pub csum: Csum,
}

/// What may leave.
#[derive(Debug)]
enum Ready<B> {
    Packet(Box<Packet<B>>),
    First(PendingFirst<B>),
    /// What was flushed at once: the first of its places in the table.
    Places(usize),
}

impl<B: AsRef<[u8]>> Ready<B> {
    /// What was in a place; a train gets the header of the whole.
    #[inline(always)]
    fn of(slot: Slot<B>, profile: Profile) -> Option<Ready<B>> {
        match slot {
            Slot::Free => None,
            Slot::First(first) => Some(Ready::First(first)),
            Slot::Held(held) if held.is_train() => Some(Ready::Packet(seal(held, profile))),
            Slot::Held(held) => Some(Ready::Packet(held.packet)),
        }
    }
}

/// Joins packets to trains; see the module.
#[derive(Debug)]
pub struct Gro<B> {
    config: Config,
    masks: Masks,
    forms: Forms,
    hasher: Hasher,
    rules: Rules,
    /// Compares headers.
    kernel: Kernel,
    has_fast_path: bool,
    table: Table<B>,
    memory: acks::Memory,
    ready: VecDeque<Ready<B>>,
    /// Packets in the table; of acknowledgments one for each flow.
    held_packets: usize,
    /// Trains of at least two packets in the table.
    held_trains: usize,
    stats: Stats,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// An empty one; limits out of range are brought into it.
    pub fn new(config: Config) -> Gro<B> {
        let config = Gro::<B>::limited(config);
        let masks = Masks::new(config.profile);
        Gro {
            forms: Forms::new(&masks),
            masks,
            hasher: Hasher::new(config.key),
            rules: Rules::new(&config),
            kernel: arch::chosen(),
            has_fast_path: true,
            table: Table::new(config.max_flows),
            memory: acks::Memory::new(if config.acks { config.max_flows } else { 0 }),
            ready: VecDeque::with_capacity(config.max_flows.max(64)),
            held_packets: 0,
            held_trains: 0,
            stats: Stats::default(),
            config,
        }
    }

    /// The same with limits brought into their ranges.
    fn limited(mut config: Config) -> Config {
        config.max_bytes = config.max_bytes.min(MAX_TRAIN_BYTES);
        config.max_packets = config.max_packets.min(MAX_SEGS);
        config.max_flows = config.max_flows.clamp(1, 65535);
        config.max_held_packets = config.max_held_packets.max(1);
        config.acks &= config.profile == Profile::Lro;
        config
    }

    /// The limits and rules in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes other limits and rules, as [`Gro::new`] does; what was counted stays. All that is held becomes ready first, so
    /// that no train is made under two sets of rules. The table stays as large as it is: `max_flows` has no effect.
    pub fn reconfigure(&mut self, config: Config) {
        self.flush();
        self.spill();
        let fresh = Gro::<B>::limited(Config { max_flows: self.config.max_flows, ..config });
        if fresh.acks != self.config.acks {
            self.memory = acks::Memory::new(if fresh.acks { fresh.max_flows } else { 0 });
        }
        if fresh.profile != self.config.profile {
            self.masks = Masks::new(fresh.profile);
            self.forms = Forms::new(&self.masks);
        }
        self.hasher = Hasher::new(fresh.key);
        self.rules = Rules::new(&fresh);
        self.config = fresh;
    }

    /// As [`Gro::new`], but every packet goes the long way, through the parser and each rule by itself. What comes out is the
    /// same, packet for packet and count for count; this is for tests that compare the two.
    pub fn slow_path_only(config: Config) -> Gro<B> {
        Gro { has_fast_path: false, ..Gro::new(config) }
    }

    /// What happened so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Flows held.
    pub fn held(&self) -> usize {
        self.table.len()
    }

    /// Packets held: those of trains, and one for each flow of which an acknowledgment is held.
    pub fn held_packets(&self) -> usize {
        self.held_packets
    }

    /// Takes a packet, whose layout must be that of its bytes. Boxes that are no longer needed go to `pool`.
    #[inline]
    pub fn push(&mut self, packet: Box<Packet<B>>, now: Nanos, pool: &mut Pool<B>) {
        let left = if self.has_fast_path { self.take_packet_fast(packet, now, pool) } else { Some(packet) };
        if let Some(packet) = left {
            self.take(packet, now, pool);
        }
        self.relieve();
    }

    /// Takes a frame: the same as to parse it into a packet of `pool` and to [`push`](Gro::push) that. Most frames are
    /// recognised and not parsed, and of a train only the first takes a box.
    #[inline]
    pub fn push_frame(&mut self, frame: Frame<B>, now: Nanos, pool: &mut Pool<B>) {
        let left = if self.has_fast_path { self.take_frame_fast(frame, now, pool) } else { Some(frame) };
        if let Some(frame) = left {
            let mut packet = pool.take();
            frame.load(&self.config.tunnels, &mut packet);
            self.take(packet, now, pool);
        }
        self.relieve();
    }

    /// Makes ready what is held over the limit.
    #[inline]
    fn relieve(&mut self) {
        while self.held_packets > self.config.max_held_packets
            && let Some(oldest) = self.table.oldest()
        {
            self.finish(oldest, Flush::Pressure);
        }
    }

    /// As [`Gro::push`], and hands all that is ready to `each`, with the pool to which it may give boxes back.
    pub fn deliver(
        &mut self,
        packet: Box<Packet<B>>,
        now: Nanos,
        pool: &mut Pool<B>,
        each: impl FnMut(Box<Packet<B>>, &mut Pool<B>),
    ) {
        self.push(packet, now, pool);
        self.drain(pool, each);
    }

    /// As [`Gro::expire`], for the end of a poll round or of an interrupt, and hands all that is ready to `each`.
    pub fn end_poll(&mut self, now: Nanos, pool: &mut Pool<B>, each: impl FnMut(Box<Packet<B>>, &mut Pool<B>)) {
        self.expire(now);
        self.drain(pool, each);
    }

    fn drain(&mut self, pool: &mut Pool<B>, mut each: impl FnMut(Box<Packet<B>>, &mut Pool<B>)) {
        while let Some(packet) = self.pop_from(pool) {
            each(packet, pool);
        }
    }

    /// The long way.
    fn take(&mut self, mut packet: Box<Packet<B>>, now: Nanos, pool: &mut Pool<B>) {
        self.stats.packets += 1;
        let key = match FlowKey::of(&packet) {
            Ok(key) => key,
            Err(why) => {
                // A packet of another protocol is a flow of its own. Of a fragment or a malformed packet nobody can say
                // which flow it belongs to, so all that is held goes first.
                if why != Alone::Protocol {
                    self.flush_because(Flush::Order);
                }
                return self.pass(packet, why);
            }
        };
        let hash = self.hasher.of(&packet, &key);
        let place = self.find(hash, pool, |held| key.is_of(&held.packet));
        let refused = rules::gate(&packet, &self.config).err();
        if self.config.acks
            && let Some((Kind::Tcp, header)) = packet.transport()
        {
            if refused == Some(Alone::NoPayload) {
                return self.acknowledge(packet, place, hash, now, pool);
            }
            self.memory.other(hash, header);
        }
        if let Some(why) = refused {
            if let Some(place) = place {
                self.finish(place, Flush::Order);
            }
            return self.pass(packet, why);
        }
        let Some(place) = place else { return self.hold(packet, hash, now) };

        if self.table.get(place).key.carries == Carries::Acks {
            self.finish(place, Flush::Order);
            return self.hold(packet, hash, now);
        }
        if let Err(why) = self.fits(place, &packet) {
            self.stats.mismatches.add(why);
            self.finish(place, Flush::Mismatch);
            return self.hold(packet, hash, now);
        }
        // Both are good on their face; only now is it worth to touch payload.
        let Held { packet: first, verified, .. } = self.table.get_mut(place);
        if !*verified {
            match verify::verify(first, &mut self.stats.checksummed_bytes) {
                Ok(()) => *verified = true,
                Err(_) => {
                    self.finish(place, Flush::BadChecksum);
                    return self.hold(packet, hash, now);
                }
            }
        }
        if let Err(why) = verify::verify(&mut packet, &mut self.stats.checksummed_bytes) {
            self.finish(place, Flush::Order);
            return self.pass(packet, why);
        }
        if verify::is_owed(&packet) != verify::is_owed(&self.table.get(place).packet) {
            self.stats.mismatches.add(Mismatch::ChecksumKind);
            self.finish(place, Flush::Mismatch);
            return self.hold(packet, hash, now);
        }
        if let Some(why) = self.join(place, packet, pool) {
            self.finish(place, why);
        }
    }

    /// Takes a TCP packet without payload that nothing but its flags and options may be wrong with.
    fn acknowledge(
        &mut self,
        mut packet: Box<Packet<B>>,
        place: Option<usize>,
        hash: u64,
        now: Nanos,
        pool: &mut Pool<B>,
    ) {
        // What is wrong neither swallows nor is remembered.
        let verdict = verify::verify(&mut packet, &mut self.stats.checksummed_bytes);
        let header = packet.transport().map_or(&[][..], |(_, header)| header);
        if let Err(why) = verdict.and_then(|()| self.memory.judge(hash, header)) {
            if let Some(place) = place {
                self.finish(place, Flush::Order);
            }
            return self.pass(packet, why);
        }
        let Some(place) = place else { return self.insert(packet, hash, now, Carries::Acks) };
        let held = self.table.get_mut(place);
        if held.key.carries == Carries::Data {
            self.finish(place, Flush::Order);
            return self.insert(packet, hash, now, Carries::Acks);
        }
        if let Err(why) = same_headers(&self.masks, held, &packet).and_then(|()| {
            if read_u32(header, tcp::SEQ) == Some(held.next_seq) { Ok(()) } else { Err(Mismatch::Sequence) }
        }) {
            self.stats.mismatches.add(why);
            self.finish(place, Flush::Mismatch);
            return self.insert(packet, hash, now, Carries::Acks);
        }
        let swallowed = core::mem::replace(&mut held.packet, packet);
        held.segs += 1;
        let is_full = held.segs as usize >= self.config.max_acks;
        self.stats.swallowed += 1;
        pool.put(swallowed);
        if is_full {
            self.finish(place, Flush::Full);
        }
    }

    /// The next packet or train that is ready. For who pushes frames there is [`Gro::pop_from`]: here a frame that stayed alone
    /// is given a fresh box, which allocates.
    pub fn pop(&mut self) -> Option<Box<Packet<B>>> {
        self.pop_from(&mut Pool::new(0))
    }

    /// As [`Gro::pop`]; a frame that stayed alone takes its box from `pool`, and only now.
    #[inline]
    pub fn pop_from(&mut self, pool: &mut Pool<B>) -> Option<Box<Packet<B>>> {
        let Ready::Places(place) = self.ready.front_mut()? else { return self.pop_one(pool) };
        let (slot, next) = self.table.leave(*place);
        match next {
            Some(next) => *place = next,
            None => drop(self.ready.pop_front()),
        }
        if let Slot::First(first) = slot {
            return first.load(&self.forms, pool).map(|(packet, _)| packet);
        }
        match Ready::of(slot.take(), self.config.profile)? {
            Ready::Packet(packet) => Some(packet),
            _ => None,
        }
    }

    /// What became ready by itself.
    fn pop_one(&mut self, pool: &mut Pool<B>) -> Option<Box<Packet<B>>> {
        match self.ready.pop_front()? {
            Ready::Packet(packet) => Some(packet),
            Ready::First(mut first) => first.load(&self.forms, pool).map(|(packet, _)| packet),
            Ready::Places(_) => None,
        }
    }

    /// Makes all that is held ready, oldest first.
    pub fn flush(&mut self) {
        self.flush_because(Flush::PollEnd);
    }

    /// When [`Gro::expire`] has something to do; `None` while nothing is held or the hold time is 0.
    pub fn deadline(&self) -> Option<Nanos> {
        let oldest = self.table.oldest().filter(|_| self.config.hold > 0)?;
        Some(self.table.since(oldest).after(self.config.hold))
    }

    /// Makes ready what was held for the hold time or longer.
    pub fn expire(&mut self, now: Nanos) {
        if self.config.hold == 0 {
            return self.flush();
        }
        while let Some(oldest) = self.table.oldest() {
            if self.table.since(oldest).after(self.config.hold) > now {
                return;
            }
            self.finish(oldest, Flush::Timeout);
        }
    }

    fn flush_because(&mut self, why: Flush) {
        let (count, trains) = (self.table.len(), self.held_trains);
        let Some(first) = self.table.flush() else { return };
        self.ready.push_back(Ready::Places(first));
        self.stats.flushes.add_many(why, count as u64);
        self.stats.trains += trains as u64;
        self.stats.segments += (self.held_packets - (count - trains)) as u64;
        (self.held_packets, self.held_trains) = (0, 0);
    }

    /// Empties the places that wait to be popped.
    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(ready) = self.ready.pop_front() else { return };
            let Ready::Places(first) = ready else {
                self.ready.push_back(ready);
                continue;
            };
            let mut place = Some(first);
            while let Some(at) = place {
                let (slot, next) = self.table.leave(at);
                self.ready.extend(Ready::of(slot.take(), self.config.profile));
                place = next;
            }
        }
    }

    fn pass(&mut self, packet: Box<Packet<B>>, why: Alone) {
        self.stats.alone.add(why);
        self.ready.push_back(Ready::Packet(packet));
    }

    /// Starts a train with `packet`, or passes it on where nothing could join it.
    fn hold(&mut self, packet: Box<Packet<B>>, hash: u64, now: Nanos) {
        let closed = rules::closes(&packet);
        if let Some(why) = closed {
            self.stats.flushes.add(why);
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        let size = verify::payload_len(&packet);
        let is_tcp = matches!(packet.transport(), Some((Kind::Tcp, _)));
        if is_tcp && size < usize::from(MIN_TCP_SIZE) && verify::is_owed(&packet) {
            return self.pass(packet, Alone::Tiny);
        }
        if self.config.most(is_tcp) < 2 || self.room(&packet) < Some(size) {
            self.stats.flushes.add(Flush::Full);
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        self.insert(packet, hash, now, Carries::Data);
    }

    /// Puts into the table what may be followed.
    fn insert(&mut self, packet: Box<Packet<B>>, hash: u64, now: Nanos, carries: Carries) {
        if carries == Carries::Acks && self.config.max_acks < 2 {
            self.stats.flushes.add(Flush::Full);
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        let size = verify::payload_len(&packet);
        let (mut seq, mut stamp, mut is_tcp) = (0, 0, false);
        if let Some((Kind::Tcp, header)) = packet.transport() {
            is_tcp = true;
            seq = read_u32(header, tcp::SEQ).unwrap_or(0);
            stamp = acks::stamps(header).map_or(0, |stamps| stamps.value);
        }
        let (most, room) = (self.config.most(is_tcp), self.room(&packet).unwrap_or(0));
        let held = Held {
            key: MatchKey::other(self.forms.of(&packet), carries, verify::is_owed(&packet)),
            expected: ExpectedNext::NOTHING,
            size,
            room,
            left: left(most.saturating_sub(1), room, size),
            segs: 1,
            most,
            next_seq: seq.wrapping_add(size as u32),
            stamp,
            ids: Ids::default(),
            // An acknowledgment is verified before it is judged.
            verified: carries == Carries::Acks,
            since: now,
            packet,
        };
        self.keep(hash, Slot::Held(held));
    }

    /// Puts into the table, where another may have to leave for it.
    #[inline(always)]
    fn keep(&mut self, hash: u64, what: Slot<B>) {
        if let Some(evicted) = self.table.make_room(hash) {
            self.finish(evicted, Flush::Evicted);
        } else if self.table.is_full() {
            self.free_place();
        }
        self.held_packets += 1;
        self.table.insert(hash, what);
    }

    /// The same where nothing is in its bucket.
    #[inline(always)]
    fn keep_alone(&mut self, hash: u64, what: Slot<B>) {
        if self.table.is_full() {
            self.free_place();
        }
        self.held_packets += 1;
        self.table.insert_alone(hash, what);
    }

    /// Gives up a place of a full table.
    #[cold]
    #[inline(never)]
    fn free_place(&mut self) {
        self.spill();
        if let Some(oldest) = self.table.oldest().filter(|_| self.table.is_full()) {
            self.finish(oldest, Flush::Evicted);
        }
    }

    /// Where something is held of a flow with this hash, of which `is_it` knows whether it is the one. First segments of this hash
    /// take boxes.
    #[inline(always)]
    fn find(&mut self, hash: u64, pool: &mut Pool<B>, is_it: impl Fn(&Held<B>) -> bool) -> Option<usize> {
        loop {
            match self.table.find(hash, &is_it)? {
                Found::Held(place) => return Some(place),
                Found::First(place) => self.unpack(place, pool),
            }
        }
    }

    /// Whether `packet` may be the next segment of the train at `place`, payload aside.
    fn fits(&self, place: usize, packet: &Packet<B>) -> Result<(), Mismatch> {
        let held = self.table.get(place);
        same_headers(&self.masks, held, packet)?;
        if held.packet.offload.layers() != packet.offload.layers() {
            let states = held.packet.offload.layers().iter().zip(packet.offload.layers());
            // What was verified meanwhile is no difference; presence and remote checksums are.
            for (a, b) in states {
                let absent = |layer| layer == LayerCsum::Absent;
                if absent(a.udp) != absent(b.udp) || absent(a.gre) != absent(b.gre) || a.remote != b.remote {
                    return Err(Mismatch::ChecksumKind);
                }
            }
        }
        let (kind, bytes) = packet.transport().ok_or(Mismatch::Headers)?;
        if kind == Kind::Tcp {
            if read_u32(bytes, tcp::SEQ) != Some(held.next_seq) {
                return Err(Mismatch::Sequence);
            }
            if bytes[tcp::FLAGS] & tcp::CWR != 0 && !self.config.profile.joins_cwr() {
                // Only the first segment of a train may carry it (Linux up to 6.18; splitting puts it there alone).
                return Err(Mismatch::Cwr);
            }
            if self.config.profile == Profile::Lro {
                let first = held.packet.transport().map_or(&[][..], |(_, header)| header);
                may_renew(first, bytes, held.stamp)?;
            }
        }
        let len = verify::payload_len(packet);
        let may_be_larger = kind == Kind::Tcp && self.config.profile == Profile::Lro;
        if len > held.size && !(may_be_larger && len <= held.room) {
            return Err(Mismatch::Larger);
        }
        self.ids(held, packet).map(|_| ())
    }

    /// How the identification of every IPv4 header goes on, where it does.
    fn ids(&self, held: &Held<B>, packet: &Packet<B>) -> Result<Ids, Mismatch> {
        let mut ids = held.ids;
        for (index, header) in packet.layout.headers().iter().enumerate() {
            if header.kind == Kind::Ipv4 {
                let range = header.start()..header.end();
                let train = held.packet.head.bytes().get(range.clone()).unwrap_or(&[]);
                let this = packet.head.bytes().get(range).unwrap_or(&[]);
                let is_inner = Some(header) == packet.layout.inner_ip();
                ids = next_ids(ids, held.segs, (1 << index, is_inner), self.config.profile, (train, this))?;
            }
        }
        Ok(ids)
    }

    /// Adds a verified segment that fits. Returns why the train is to be closed, where it is.
    fn join(&mut self, place: usize, mut packet: Box<Packet<B>>, pool: &mut Pool<B>) -> Option<Flush> {
        let ids = self.ids(self.table.get(place), &packet).ok()?;
        let is_lro = self.config.profile == Profile::Lro && matches!(packet.transport(), Some((Kind::Tcp, _)));
        self.held_packets += 1;
        let held = self.table.get_mut(place);
        // Only what is joined loses its padding: what stays alone leaves as it came.
        let trimmed = usize::from(held.packet.trim()) + usize::from(packet.trim());
        self.stats.trimmed += trimmed as u64;
        let (at, header) = tcp_header(&packet);
        let why = held.add(ids, at, header, packet.payload.len(), is_lro);
        self.held_trains += usize::from(held.segs == 2);
        held.packet.payload.append(&mut packet.payload);
        pool.put(packet);
        why
    }

    /// How many more bytes a train with this packet may have; `None` where it is too long already.
    fn room(&self, packet: &Packet<B>) -> Option<usize> {
        let layout = &packet.layout;
        let may_be_jumbo = matches!(packet.transport(), Some((Kind::Tcp, _)))
            && packet.offload.layers().is_empty()
            && layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4 || usize::from(ip.len) == ipv6::LEN);
        let link_len = layout.outer_ip().map_or(0, |ip| ip.start());
        self.config.limit(may_be_jumbo).checked_sub(packet.head.len() + verify::payload_len(packet) - link_len)
    }

    /// Takes the train at `place` out of the table and makes it ready.
    fn finish(&mut self, place: usize, why: Flush) {
        self.stats.flushes.add(why);
        let slot = self.table.remove(place);
        let packets = match &slot {
            Slot::Held(held) if held.is_train() => held.segs as usize,
            _ => 1,
        };
        self.held_packets -= packets;
        if packets > 1 {
            self.held_trains -= 1;
            self.stats.trains += 1;
            self.stats.segments += packets as u64;
        }
        self.ready.extend(Ready::of(slot, self.config.profile));
    }
}

impl<B: AsRef<[u8]>> Frame<B> {
    /// Parses it.
    fn load(self, tunnels: &Tunnels, into: &mut Packet<B>) {
        into.load(self.bytes, self.start, tunnels);
        if self.csum != Csum::Unknown {
            into.offload.unit = Unit::Whole(self.csum);
        }
    }
}

/// Whether two packets have the same headers, but for what may differ.
fn same_headers<B: AsRef<[u8]>>(masks: &Masks, held: &Held<B>, packet: &Packet<B>) -> Result<(), Mismatch> {
    let layout = &held.packet.layout;
    if *layout != packet.layout {
        return Err(Mismatch::Headers);
    }
    let (ours, theirs) = (held.packet.head.bytes(), packet.head.bytes());
    match masks.difference(layout, ours, theirs) {
        None => Ok(()),
        Some(at) => Err(rules::explain(layout, at, ours, theirs)),
    }
}

/// Where the TCP header of a packet is, and its bytes.
fn tcp_header<B: AsRef<[u8]>>(packet: &Packet<B>) -> (Option<usize>, &[u8]) {
    match packet.transport() {
        Some((Kind::Tcp, header)) => (Some(packet.layout.header_len() - header.len()), header),
        _ => (None, &[]),
    }
}

/// How the identification of an IPv4 header, with its bit and whether it is the innermost one, goes on behind a train of `segs`
/// segments, where it does. The headers are that of the train and that of the packet.
#[inline(always)]
fn next_ids(
    mut ids: Ids,
    segs: u32,
    (bit, is_inner): (u16, bool),
    profile: Profile,
    (train, this): (&[u8], &[u8]),
) -> Result<Ids, Mismatch> {
    let first = read_u16(train, ipv4::ID).unwrap_or(0);
    let id = read_u16(this, ipv4::ID).unwrap_or(0);
    let counted = id == first.wrapping_add(segs as u16);
    let fixed = id == first;
    let df = read_u16(this, ipv4::FRAGMENT).is_some_and(|f| f & ipv4::DF != 0);
    let (looks, takes_fixed) = match profile {
        Profile::Lro => (false, true),
        // A header that is not the innermost one, under DF.
        Profile::Linux(Generation::V6_12) => (!df || is_inner, df),
        Profile::Strict | Profile::Linux(_) => (true, true),
    };
    if segs == 1 {
        if fixed && takes_fixed {
            ids.fixed |= bit;
        } else if looks && !counted {
            return Err(Mismatch::IpId);
        }
    } else if looks && ((ids.fixed & bit != 0 && !fixed) || (ids.fixed & bit == 0 && !counted)) {
        return Err(Mismatch::IpId);
    }
    Ok(ids)
}

/// Whether the number, window and timestamps of a TCP header may take the place of those of the train in front of it, whose
/// newest timestamp is `stamp`.
fn may_renew(train: &[u8], newest: &[u8], stamp: u32) -> Result<(), Mismatch> {
    let number = |header| read_u32(header, tcp::ACK_NUMBER).unwrap_or(0);
    if acks::distance(number(train), number(newest)) < 0 {
        return Err(Mismatch::AckNumber);
    }
    match (acks::stamps(train), acks::stamps(newest)) {
        (Some(before), Some(after)) if acks::Stamps { value: stamp, ..before } != after => {
            if after.may_follow(acks::Stamps { value: stamp, ..before }) { Ok(()) } else { Err(Mismatch::Options) }
        }
        (None, Some(_)) | (Some(_), None) => Err(Mismatch::Options),
        _ => Ok(()),
    }
}

/// Puts the number, window and echo of the newest segment into the header of a train, whose own timestamp stays that of the
/// first: a receiver echoes the earliest one that it has not answered yet (RFC 7323, section 4.3). Returns the newest
/// timestamp.
fn renew(train: &mut [u8], newest: &[u8]) -> u32 {
    train[tcp::ACK_NUMBER..][..4].copy_from_slice(&newest[tcp::ACK_NUMBER..][..4]);
    train[tcp::WINDOW..][..2].copy_from_slice(&newest[tcp::WINDOW..][..2]);
    let Some(stamps) = acks::stamps(newest) else { return 0 };
    train[tcp::ECHO..][..4].copy_from_slice(&stamps.echo.to_be_bytes());
    stamps.value
}

/// What a length field says: zero for a train that it cannot say.
fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

/// Makes the header of a train that of the whole.
#[inline(never)]
fn seal<B: AsRef<[u8]>>(held: Held<B>, profile: Profile) -> Box<Packet<B>> {
    let Held { mut packet, size, ids, .. } = held;
    let total = packet.len();
    let Packet { head, layout, .. } = &mut *packet;
    let (Some(&transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return packet };
    let head = head.bytes_mut();
    for header in layout.headers() {
        let len = total - header.start();
        let bytes = &mut head[header.start()..header.end()];
        match header.kind {
            Kind::Ipv4 => {
                write_u16(bytes, ipv4::TOTAL_LEN, length(len));
                write_u16(bytes, ipv4::CHECKSUM, 0);
                let sum = Field::complete(Sum::of(bytes));
                write_u16(bytes, ipv4::CHECKSUM, sum.value());
            }
            Kind::Ipv6 => {
                write_u16(bytes, ipv6::PAYLOAD_LEN, length(len - ipv6::LEN));
            }
            Kind::Udp => {
                write_u16(bytes, udp::LENGTH, length(len));
            }
            _ => {}
        }
    }
    let pseudo = verify::pseudo(head, ip, &transport, total - transport.start());
    let field = transport.start() + if transport.kind == Kind::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    write_u16(head, field, Field::primed(pseudo).value());

    for layer in packet.offload.layers_mut() {
        for csum in [&mut layer.udp, &mut layer.gre] {
            if *csum != LayerCsum::Absent {
                *csum = LayerCsum::Owed;
            }
        }
    }
    let kind = if transport.kind == Kind::Tcp { GsoKind::Tcp } else { GsoKind::Udp };
    let is_cwr = kind == GsoKind::Tcp && packet.head.bytes()[transport.start() + tcp::FLAGS] & tcp::CWR != 0;
    let fixed_ids = ids.fixed | if is_cwr && profile.joins_cwr() { Gso::CWR } else { 0 };
    let csum = if verify::is_owed(&packet) { TrainCsum::Partial } else { TrainCsum::Stale };
    packet.offload.unit = Unit::Train { csum, gso: Gso { kind, size: size as u16, fixed_ids } };
    packet
}
