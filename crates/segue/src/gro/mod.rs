//! GRO: joins packets of a flow into trains.
//!
//! [`Gro::push`] takes a parsed packet, [`Gro::pop`] gives what is ready, [`Gro::deadline`] says when to call
//! [`Gro::expire`] at the latest. A packet that cannot be part of a train is passed on as it is, behind everything held
//! of its flow, so that the packets of a flow leave in the order in which they came. Nothing is lost: every packet pushed
//! comes out once, alone or inside a train.
//!
//! What has to be equal for two packets to join is *everything* in their headers but the fields of [`rules::VARYING`].
//! Payload is never copied. Checksums are verified before anything is joined, and lazily: a packet that stays alone is
//! not summed. One train of a flow is held at a time, so a segment can only join the newest.
//!
//! Profile [`Profile::Strict`] joins only what [`gso::split`](crate::gso::split) restores byte for byte. Profile
//! [`Profile::Linux`] makes the trains that Linux 6.18 makes, except that order within a flow is kept here too.

mod key;
pub mod rules;
mod table;
#[cfg(test)]
mod tests;
mod verify;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub use rules::{Alone, Flush, Mismatch};

use crate::checksum::{Field, Sum};
use crate::gso::MIN_TCP_SIZE;
use crate::hash;
use crate::packet::{Gso, GsoKind, Kind, LayerCsum, Packet, Pool, TrainCsum, Unit};
use crate::reason::Counts;
use crate::time::Nanos;
use crate::wire::{ipv4, ipv6, read_u16, read_u32, tcp, udp, write_u16};
use key::FlowKey;
use table::{Held, Ids, Table};

/// Whose rules decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Only what can be restored byte for byte.
    #[default]
    Strict,
    /// What Linux 6.18 joins.
    Linux,
}

/// Limits and rules of one [`Gro`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whose rules decide.
    pub profile: Profile,
    /// Largest train, in bytes from its outermost IP header; at most 65535, which is also the default.
    pub max_bytes: usize,
    /// Most packets of a TCP train; below 2 nothing is joined. Default 1000.
    pub max_packets: usize,
    /// Most datagrams of a UDP train; below 2 nothing is joined. Default 64, what every kernel with USO takes.
    pub max_udp_packets: usize,
    /// Most flows held at a time, 1 to 65535. Default 256. Memory is taken once, when the table is made.
    pub max_flows: usize,
    /// Longest time that a packet is held, in nanoseconds. With 0, the default, everything is due at the next
    /// [`Gro::expire`] or [`Gro::flush`], which a poll loop calls at the end of each round.
    pub hold: u64,
    /// Key of the flow hash.
    pub key: hash::Key,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profile: Profile::Strict,
            max_bytes: 65535,
            max_packets: 1000,
            max_udp_packets: 64,
            max_flows: 256,
            hold: 0,
            key: hash::Key([0x5e67_7565_0000_0001, 0x5e67_7565_0000_0002]),
        }
    }
}

/// What a [`Gro`] has done, since it was made.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Packets pushed.
    pub packets: u64,
    /// Trains of at least two packets that came out.
    pub trains: u64,
    /// Packets inside those trains.
    pub segments: u64,
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

/// Joins packets to trains; see the module.
#[derive(Debug)]
pub struct Gro<B> {
    config: Config,
    table: Table<B>,
    ready: VecDeque<Box<Packet<B>>>,
    stats: Stats,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// An empty one; limits out of range are brought into it.
    pub fn new(mut config: Config) -> Gro<B> {
        config.max_bytes = config.max_bytes.min(65535);
        config.max_flows = config.max_flows.clamp(1, 65535);
        Gro {
            table: Table::new(config.max_flows),
            ready: VecDeque::with_capacity(config.max_flows.max(64)),
            stats: Stats::default(),
            config,
        }
    }

    /// What happened so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Flows held.
    pub fn held(&self) -> usize {
        self.table.len()
    }

    /// Takes a packet, whose layout must be that of its bytes. Boxes that are no longer needed go to `pool`.
    pub fn push(&mut self, mut packet: Box<Packet<B>>, now: Nanos, pool: &mut Pool<B>) {
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
        let hash = self.config.key.hash(key.bytes());
        let place = self.table.find(hash, &key);
        if let Err(why) = rules::gate(&packet, &self.config) {
            if let Some(place) = place {
                self.finish(place, Flush::Order);
            }
            return self.pass(packet, why);
        }
        let Some(place) = place else { return self.hold(packet, hash, key, now) };

        if let Err(why) = self.fits(place, &packet) {
            self.stats.mismatches.add(why);
            self.finish(place, Flush::Mismatch);
            return self.hold(packet, hash, key, now);
        }
        // Both are good on their face; only now is it worth to touch payload.
        let Held { packet: first, verified, .. } = self.table.get_mut(place);
        if !*verified {
            match verify::verify(first, &mut self.stats.checksummed_bytes) {
                Ok(()) => *verified = true,
                Err(_) => {
                    self.finish(place, Flush::BadChecksum);
                    return self.hold(packet, hash, key, now);
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
            return self.hold(packet, hash, key, now);
        }
        if let Some(why) = self.join(place, packet, pool) {
            self.finish(place, why);
        }
    }

    /// The next packet or train that is ready.
    pub fn pop(&mut self) -> Option<Box<Packet<B>>> {
        self.ready.pop_front()
    }

    /// Makes all that is held ready, oldest first.
    pub fn flush(&mut self) {
        self.flush_because(Flush::PollEnd);
    }

    /// When [`Gro::expire`] has something to do; `None` while nothing is held or the hold time is 0.
    pub fn deadline(&self) -> Option<Nanos> {
        let oldest = self.table.oldest().filter(|_| self.config.hold > 0)?;
        Some(self.table.get(oldest).since.after(self.config.hold))
    }

    /// Makes ready what was held for the hold time or longer.
    pub fn expire(&mut self, now: Nanos) {
        if self.config.hold == 0 {
            return self.flush();
        }
        while let Some(oldest) = self.table.oldest() {
            if self.table.get(oldest).since.after(self.config.hold) > now {
                return;
            }
            self.finish(oldest, Flush::Timeout);
        }
    }

    fn flush_because(&mut self, why: Flush) {
        while let Some(oldest) = self.table.oldest() {
            self.finish(oldest, why);
        }
    }

    fn pass(&mut self, packet: Box<Packet<B>>, why: Alone) {
        self.stats.alone.add(why);
        self.ready.push_back(packet);
    }

    /// Starts a train with `packet`, or passes it on where nothing could join it.
    fn hold(&mut self, packet: Box<Packet<B>>, hash: u64, key: FlowKey, now: Nanos) {
        let closed = rules::closes(&packet);
        if let Some(why) = closed {
            self.stats.flushes.add(why);
            self.ready.push_back(packet);
            return;
        }
        let size = packet.payload.len();
        let is_tcp = matches!(packet.transport(), Some((Kind::Tcp, _)));
        if is_tcp && size < usize::from(MIN_TCP_SIZE) && verify::is_owed(&packet) {
            return self.pass(packet, Alone::Tiny);
        }
        if self.most(&packet) < 2 || !has_room(&packet, size, self.config.max_bytes) {
            self.stats.flushes.add(Flush::Full);
            self.ready.push_back(packet);
            return;
        }
        if let Some(evicted) = self.table.make_room(hash) {
            self.finish(evicted, Flush::Evicted);
        }
        let seq = packet
            .transport()
            .filter(|(kind, _)| *kind == Kind::Tcp)
            .and_then(|(_, bytes)| read_u32(bytes, tcp::SEQ))
            .unwrap_or(0)
            .wrapping_add(size as u32);
        let mask = rules::mask(&packet.layout, self.config.profile);
        self.table.insert(Held {
            hash,
            key,
            mask,
            size,
            segs: 1,
            next_seq: seq,
            ids: Ids::default(),
            verified: false,
            since: now,
            packet,
        });
    }

    /// Whether `packet` may be the next segment of the train at `place`, payload aside.
    fn fits(&self, place: usize, packet: &Packet<B>) -> Result<(), Mismatch> {
        let held = self.table.get(place);
        if held.packet.layout != packet.layout {
            return Err(Mismatch::Headers);
        }
        let (ours, theirs) = (held.packet.head.bytes(), packet.head.bytes());
        if !held.mask.equal(ours, theirs) {
            return Err(rules::explain(&held.packet.layout, &held.mask, ours, theirs));
        }
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
            if bytes[tcp::FLAGS] & tcp::CWR != 0 {
                // Only the first segment of a train may carry it (Linux up to 6.18; splitting puts it there alone).
                return Err(Mismatch::Cwr);
            }
        }
        if packet.payload.len() > held.size {
            return Err(Mismatch::Larger);
        }
        self.ids(held, packet).map(|_| ())
    }

    /// How the identification of every IPv4 header goes on, where it does.
    fn ids(&self, held: &Held<B>, packet: &Packet<B>) -> Result<Ids, Mismatch> {
        let mut ids = held.ids;
        for (index, header) in packet.layout.headers().iter().enumerate() {
            if header.kind != Kind::Ipv4 {
                continue;
            }
            let at = header.start() + ipv4::ID;
            let first = read_u16(held.packet.head.bytes(), at).unwrap_or(0);
            let this = read_u16(packet.head.bytes(), at).unwrap_or(0);
            let bit = 1 << index;
            let counted = this == first.wrapping_add(held.segs as u16);
            let fixed = this == first;
            if held.segs == 1 {
                if fixed {
                    ids.fixed |= bit;
                } else if !counted {
                    return Err(Mismatch::IpId);
                }
            } else if (ids.fixed & bit != 0 && !fixed) || (ids.fixed & bit == 0 && !counted) {
                return Err(Mismatch::IpId);
            }
        }
        Ok(ids)
    }

    /// Adds a verified segment that fits. Returns why the train is to be closed, where it is.
    fn join(&mut self, place: usize, mut packet: Box<Packet<B>>, pool: &mut Pool<B>) -> Option<Flush> {
        let ids = self.ids(self.table.get(place), &packet).ok()?;
        let (most, max_bytes) = (self.most(&packet), self.config.max_bytes);
        let held = self.table.get_mut(place);
        held.ids = ids;
        held.segs += 1;
        let len = packet.payload.len();
        held.next_seq = held.next_seq.wrapping_add(len as u32);
        held.packet.payload.append(&mut packet.payload);
        let mut why = rules::closes(&packet);
        if let Some((Kind::Tcp, bytes)) = packet.transport() {
            let (flags, at) = (bytes[tcp::FLAGS], held.packet.layout.header_len() - bytes.len() + tcp::FLAGS);
            held.packet.head.bytes_mut()[at] |= flags & (tcp::FIN | tcp::PSH);
        }
        if why.is_none() && len < held.size {
            why = Some(Flush::Short);
        }
        if why.is_none() && (held.segs >= most || !has_room(&held.packet, held.size, max_bytes)) {
            why = Some(Flush::Full);
        }
        pool.put(packet);
        why
    }

    /// Most packets of a train of this transport.
    fn most(&self, packet: &Packet<B>) -> usize {
        match packet.transport() {
            Some((Kind::Tcp, _)) => self.config.max_packets,
            _ => self.config.max_udp_packets,
        }
    }

    /// Takes the train at `place` out of the table and makes it ready.
    fn finish(&mut self, place: usize, why: Flush) {
        let held = self.table.remove(place);
        self.stats.flushes.add(why);
        if held.segs > 1 {
            self.stats.trains += 1;
            self.stats.segments += held.segs as u64;
        }
        self.ready.push_back(seal(held));
    }
}

/// Whether `more` bytes of payload would leave the packet within `max_bytes` from its outermost IP header.
fn has_room<B: AsRef<[u8]>>(packet: &Packet<B>, more: usize, max_bytes: usize) -> bool {
    let link_len = packet.layout.headers().iter().find(|h| h.is_ip()).map_or(0, |h| h.start());
    packet.len() - link_len + more <= max_bytes
}

/// Makes the header of a train that of the whole.
fn seal<B: AsRef<[u8]>>(held: Held<B>) -> Box<Packet<B>> {
    let Held { mut packet, segs, size, ids, .. } = held;
    if segs < 2 {
        return packet;
    }
    let total = packet.len();
    let layout = packet.layout;
    let (Some(transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return packet };
    let head = packet.head.bytes_mut();
    for header in layout.headers() {
        // The limit on bytes keeps every length below 65536.
        let len = (total - header.start()) as u16;
        let bytes = &mut head[header.start()..header.end()];
        match header.kind {
            Kind::Ipv4 => {
                write_u16(bytes, ipv4::TOTAL_LEN, len);
                write_u16(bytes, ipv4::CHECKSUM, 0);
                let sum = Field::complete(Sum::of(bytes));
                write_u16(bytes, ipv4::CHECKSUM, sum.value());
            }
            Kind::Ipv6 => {
                write_u16(bytes, ipv6::PAYLOAD_LEN, len - ipv6::LEN as u16);
            }
            Kind::Udp => {
                write_u16(bytes, udp::LENGTH, len);
            }
            Kind::Ethernet | Kind::Vlan | Kind::Tcp | Kind::Gre | Kind::Gue => {}
        }
    }
    let pseudo = verify::pseudo(head, ip, transport, total - transport.start());
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
    let csum = if verify::is_owed(&packet) { TrainCsum::Partial } else { TrainCsum::Stale };
    packet.offload.unit = Unit::Train { csum, gso: Gso { kind, size: size as u16, fixed_ids: ids.fixed } };
    packet
}
