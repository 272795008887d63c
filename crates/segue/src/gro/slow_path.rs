//! The slow path: packets are parsed, and judged by each rule.

use alloc::boxed::Box;

use super::engine::Gro;
use super::ip_id::{Ids, next_ids};
use super::key::FlowKey;
use super::profile::Profile;
use super::ready::Ready;
use super::rules::{self, Flush, Masks, Mismatch, RefusalReason};
use super::stamps::stamps;
use super::table::{ExpectedNext, Held, HeldKind, MatchKey, Slot, left};
use super::{lro, verify};
use crate::gso::MIN_TCP_SIZE;
use crate::packet::{Kind, LayerCsum, Packet, Pool};
use crate::time::Nanos;
use crate::wire::{ipv6, read_u32, tcp};

impl<B: AsRef<[u8]>> Gro<B> {
    /// Takes a packet over the slow path.
    pub(super) fn take(&mut self, mut packet: Box<Packet<B>>, now: Nanos, pool: &mut Pool<B>) {
        #[cfg(test)]
        {
            self.effort.0 += 1;
        }
        self.stats.packets += 1;
        let key = match FlowKey::of(&packet) {
            Ok(key) => key,
            Err(why) => {
                // A packet of another protocol is a flow of its own. The flow of a fragment or of a malformed packet is
                // unknown, so everything held is flushed first.
                if why != RefusalReason::Protocol {
                    self.flush_because(Flush::Order);
                }
                return self.pass(packet, why);
            }
        };
        let hash = self.hasher.of(&packet, &key);
        let idx = self.find(hash, pool, |held| key.is_of(&held.packet));
        let refused = rules::gate(&packet, &self.config).err();
        if self.config.acks
            && let Some((Kind::Tcp, header)) = packet.transport()
        {
            if refused == Some(RefusalReason::NoPayload) {
                return self.acknowledge(packet, idx, hash, now, pool);
            }
            self.memory.other(hash, header, verify::is_right_end(&packet, header));
        }
        if let Some(why) = refused {
            if let Some(idx) = idx {
                self.finish(idx, Flush::Order);
            }
            return self.pass(packet, why);
        }
        let Some(idx) = idx else { return self.hold(packet, hash, now) };

        if self.table.get(idx).key.carries == HeldKind::Acks {
            self.finish(idx, Flush::Order);
            return self.hold(packet, hash, now);
        }
        if let Err(why) = self.fits(idx, &packet) {
            self.stats.mismatches.add(why);
            self.finish(idx, Flush::Mismatch);
            return self.hold(packet, hash, now);
        }
        let is_lro = self.config.profile == Profile::Lro && matches!(packet.transport(), Some((Kind::Tcp, _)));
        let held = self.table.get(idx);
        if held.left == 0 && verify::payload_len(&packet) > held.spare(is_lro) {
            self.finish(idx, Flush::Full);
            return self.hold(packet, hash, now);
        }
        // Headers fit; only now is payload worth reading.
        let Held { packet: first, verified, .. } = self.table.get_mut(idx);
        if !*verified {
            match verify::verify(first, &mut self.stats.checksummed_bytes) {
                Ok(()) => *verified = true,
                Err(_) => {
                    self.finish(idx, Flush::BadChecksum);
                    return self.hold(packet, hash, now);
                }
            }
        }
        if let Err(why) = verify::verify(&mut packet, &mut self.stats.checksummed_bytes) {
            self.finish(idx, Flush::Order);
            return self.pass(packet, why);
        }
        if verify::is_owed(&packet) != verify::is_owed(&self.table.get(idx).packet) {
            self.stats.mismatches.add(Mismatch::ChecksumKind);
            self.finish(idx, Flush::Mismatch);
            return self.hold(packet, hash, now);
        }
        if let Some(why) = self.join(idx, packet, pool) {
            self.finish(idx, why);
        }
    }

    /// Processes a TCP packet without payload, whose flags and options are still to be checked.
    fn acknowledge(
        &mut self,
        mut packet: Box<Packet<B>>,
        idx: Option<usize>,
        hash: u64,
        now: Nanos,
        pool: &mut Pool<B>,
    ) {
        // A packet with a wrong checksum neither swallows another nor is remembered.
        let verdict = verify::verify(&mut packet, &mut self.stats.checksummed_bytes);
        let header = packet.transport().map_or(&[][..], |(_, header)| header);
        if let Err(why) = verdict.and_then(|()| self.memory.judge(hash, header)) {
            if let Some(idx) = idx {
                self.finish(idx, Flush::Order);
            }
            return self.pass(packet, why);
        }
        let Some(idx) = idx else { return self.insert(packet, hash, now, HeldKind::Acks) };
        let held = self.table.get_mut(idx);
        if held.key.carries == HeldKind::Data {
            self.finish(idx, Flush::Order);
            return self.insert(packet, hash, now, HeldKind::Acks);
        }
        if let Err(why) = same_headers(&self.masks, held, &packet).and_then(|()| {
            if read_u32(header, tcp::SEQ) == Some(held.next_seq) { Ok(()) } else { Err(Mismatch::Sequence) }
        }) {
            self.stats.mismatches.add(why);
            self.finish(idx, Flush::Mismatch);
            return self.insert(packet, hash, now, HeldKind::Acks);
        }
        let swallowed = core::mem::replace(&mut held.packet, packet);
        held.segs += 1;
        let is_full = held.segs as usize >= self.config.max_acks;
        self.stats.swallowed += 1;
        pool.put(swallowed);
        if is_full {
            self.finish(idx, Flush::Full);
        }
    }

    /// Starts a train with `packet`, or passes it on if no packet could join it.
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
            return self.pass(packet, RefusalReason::Tiny);
        }
        if self.config.most(is_tcp) < 2 || self.room(&packet).unwrap_or(0) == 0 {
            self.stats.flushes.add(Flush::Full);
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        self.insert(packet, hash, now, HeldKind::Data);
    }

    /// Inserts a packet into the table to which later ones may join.
    fn insert(&mut self, packet: Box<Packet<B>>, hash: u64, now: Nanos, carries: HeldKind) {
        if carries == HeldKind::Acks && self.config.max_acks < 2 {
            self.stats.flushes.add(Flush::Full);
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        let size = verify::payload_len(&packet);
        let (mut seq, mut stamp, mut is_tcp) = (0, 0, false);
        if let Some((Kind::Tcp, header)) = packet.transport() {
            is_tcp = true;
            seq = read_u32(header, tcp::SEQ).unwrap_or(0);
            stamp = stamps(header).map_or(0, |stamps| stamps.value);
        }
        let (most, room) = (self.config.most(is_tcp), self.room(&packet).unwrap_or(0));
        let held = Held {
            key: MatchKey::other(self.forms.of(&packet), carries, verify::is_owed(&packet)),
            tunnel_form: self.tunnel_forms.of(&packet),
            expected: ExpectedNext::NOTHING,
            size,
            room,
            left: left(most.saturating_sub(1), room, size),
            segs: 1,
            most,
            next_seq: seq.wrapping_add(size as u32),
            stamp,
            ids: Ids::default(),
            // Acknowledgments are verified before they are judged.
            verified: carries == HeldKind::Acks,
            since: now,
            packet,
        };
        self.keep(hash, Slot::Held(held));
    }

    /// Checks from the headers whether `packet` may be the next segment of the train in the slot `idx`.
    fn fits(&self, idx: usize, packet: &Packet<B>) -> Result<(), Mismatch> {
        let held = self.table.get(idx);
        same_headers(&self.masks, held, packet)?;
        if held.packet.offload.layers() != packet.offload.layers() {
            let states = held.packet.offload.layers().iter().zip(packet.offload.layers());
            // A difference in what was verified is none; presence and remote checksums are.
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
                // Only the first segment of a train may have it set (Linux up to 6.18; splitting sets it on the first
                // only).
                return Err(Mismatch::Cwr);
            }
            if self.config.profile == Profile::Lro {
                let first = held.packet.transport().map_or(&[][..], |(_, header)| header);
                lro::may_renew(first, bytes, held.stamp)?;
            }
        }
        let len = verify::payload_len(packet);
        let may_be_larger = kind == Kind::Tcp && self.config.profile == Profile::Lro;
        if len > held.size && !(may_be_larger && len <= held.room) {
            return Err(Mismatch::Larger);
        }
        self.ids(held, packet).map(|_| ())
    }

    /// Returns how the identification of every IPv4 header continues, if the packet's continue those of the train.
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

    /// Adds a verified segment that fits. Returns the reason if the train is to be closed.
    fn join(&mut self, idx: usize, mut packet: Box<Packet<B>>, pool: &mut Pool<B>) -> Option<Flush> {
        let ids = self.ids(self.table.get(idx), &packet).ok()?;
        let is_lro = self.config.profile == Profile::Lro && matches!(packet.transport(), Some((Kind::Tcp, _)));
        self.held_packets += 1;
        let held = self.table.get_mut(idx);
        // Only joined packets lose their padding; a packet that stays alone leaves unchanged.
        let trimmed = usize::from(held.packet.trim()) + usize::from(packet.trim());
        self.stats.trimmed += trimmed as u64;
        let (at, header) = tcp_header(&packet);
        let why = held.add(ids, at, header, packet.payload.len(), is_lro);
        self.held_trains += usize::from(held.segs == 2);
        held.packet.payload.append(&mut packet.payload);
        pool.put(packet);
        why
    }

    /// Returns how many more bytes a train that begins with this packet may have; `None` if the packet alone is too
    /// long.
    fn room(&self, packet: &Packet<B>) -> Option<usize> {
        let layout = &packet.layout;
        let may_be_jumbo = matches!(packet.transport(), Some((Kind::Tcp, _)))
            && packet.offload.layers().is_empty()
            && layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4 || usize::from(ip.len) == ipv6::LEN);
        let link_len = layout.outer_ip().map_or(0, |ip| ip.start());
        self.config.limit(may_be_jumbo).checked_sub(packet.head.len() + verify::payload_len(packet) - link_len)
    }
}

/// Checks that two packets have the same headers except for the varying fields.
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

/// Returns the offset of a packet's TCP header, and its bytes.
fn tcp_header<B: AsRef<[u8]>>(packet: &Packet<B>) -> (Option<usize>, &[u8]) {
    match packet.transport() {
        Some((Kind::Tcp, header)) => (Some(packet.layout.header_len() - header.len()), header),
        _ => (None, &[]),
    }
}
