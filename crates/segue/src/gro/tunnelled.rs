//! The short path of frames inside a tunnel: one of a form that was learned is not parsed.
//!
//! It joins the train of its flow, found by the hash as outside tunnels, or leaves behind that if it can join none
//! (other protocols, segments without payload, SYN and RST, UDP without a checksum). One of which neither is sure is
//! judged by the slow path, with the headers that the form says. The result is that of the slow path: whatever is
//! unusual takes that whole, before anything has changed.

use super::engine::Gro;
use super::ip_id::next_ids;
use super::lro::may_renew;
use super::pending_first::padded;
use super::rules::{Flush, RefusalReason};
use super::table::{HeldKind, Lookup, Slot};
use super::tunnel_form::TunnelForm;
use super::verify::{self, is_sum_good, pseudo};
use crate::checksum::{Field, Sum};
use crate::packet::remote::field_offset;
use crate::packet::{Csum, Frame, HEAD_BLOCK, Header, Kind, LayerCsum, Pool};
use crate::time::Nanos;
use crate::wire::{ipv4, read_u16, read_u32, tcp, udp};

/// The judgement on a frame by its headers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// The frame may join a train or begin one.
    Open,
    /// The frame can join no train.
    Refused(RefusalReason),
    /// The slow path judges the frame.
    SlowPath,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Takes a frame of a form inside a tunnel that was learned, or returns another one for the slow path.
    #[inline]
    pub(super) fn take_tunnelled(&mut self, frame: Frame<B>, now: Nanos, pool: &mut Pool<B>) -> Option<Frame<B>> {
        let bytes = frame.bytes.bytes();
        // An owed checksum is that of an outermost transport.
        let is_fit = matches!(frame.csum, Csum::Unknown | Csum::Verified | Csum::Complete(_));
        if self.tunnel_forms.is_empty() || !is_fit {
            return Some(frame);
        }
        let short;
        let front = match bytes.first_chunk() {
            Some(front) => front,
            None => {
                short = padded(bytes);
                &short
            }
        };
        let Some(at) = self.tunnel_forms.find(self.kernel, frame.start, front, bytes) else { return Some(frame) };
        let Some(form) = self.tunnel_forms.get(at).filter(|form| form.is_exact(bytes)) else { return Some(frame) };
        let csum = form.inner_csum(frame.csum);
        let gate = self.gate_tunnelled(form, bytes, csum);
        if gate == Gate::SlowPath {
            return Some(frame);
        }
        if let Gate::Refused(why) = gate {
            // A packet of another protocol is a flow of its own.
            let may_be_held = why != RefusalReason::Protocol && self.table.len() > 0;
            let held = may_be_held.then(|| self.table.lookup(self.hasher.tunnelled(bytes, &form.words)));
            let mut packet = pool.take_used();
            form.load(frame, &mut packet);
            if let Some(Lookup::Slot(idx)) = held {
                self.finish(idx, Flush::Order);
            }
            self.stats.packets += 1;
            self.pass(packet, why);
            return None;
        }
        let hash = self.hasher.tunnelled(bytes, &form.words);
        let held = match self.table.lookup(hash) {
            Lookup::Slot(idx) => Some(idx),
            Lookup::None | Lookup::Empty => None,
        };
        if let Some(idx) = held
            && let Some((header_len, why)) = self.continues_tunnelled((at, idx), (front, bytes, csum), hash)
        {
            self.table.get_mut(idx).packet.payload.push(frame.bytes.skip(header_len));
            if let Some(why) = why {
                self.finish(idx, why);
            }
            return None;
        }
        let Some(form) = self.tunnel_forms.get(at).filter(|form| form.remote.is_none()) else { return Some(frame) };
        let mut packet = pool.take_used();
        form.load(frame, &mut packet);
        self.take(packet, now, pool);
        None
    }

    /// Judges an exact frame of a form by the rules of `rules::gate`, in their order.
    #[inline]
    fn gate_tunnelled(&self, form: &TunnelForm, bytes: &[u8], csum: Csum) -> Gate {
        let Some(transport) = form.transport else { return Gate::Refused(RefusalReason::Protocol) };
        let (is_tcp, is_remote) = (transport.kind == Kind::Tcp, form.remote.is_some());
        let word = |at: usize| read_u16(bytes, transport.start() + at);
        // A remote checksum must be covered by an outer one.
        if is_remote && (csum != Csum::Unknown || !form.has_outer_sum(bytes)) {
            return Gate::SlowPath;
        }
        let refused = |why| if is_remote || is_tcp && self.config.acks { Gate::SlowPath } else { Gate::Refused(why) };
        if !is_tcp && word(udp::DST_PORT).is_none_or(|port| self.config.tunnels.has(port)) {
            return Gate::SlowPath;
        }
        if !is_tcp && word(udp::CHECKSUM) == Some(0) {
            return if csum == Csum::Unknown { refused(RefusalReason::NoChecksum) } else { Gate::SlowPath };
        }
        let ones = self.rules.ones;
        let is_good = |&(start, ..): &(usize, u16, bool)| {
            let Some(header) = bytes.get(start..start + ipv4::MIN_LEN) else { return false };
            u32::from(read_u16(header, ipv4::CHECKSUM).unwrap_or(0)) != ones && is_sum_good(header)
        };
        if !form.ipv4s.iter().flatten().all(is_good) {
            return Gate::SlowPath;
        }
        if bytes.len() == form.len {
            return refused(RefusalReason::NoPayload);
        }
        if is_tcp {
            let flags = bytes.get(transport.start() + tcp::FLAGS).copied().unwrap_or(0);
            if flags & (tcp::SYN | tcp::RST | tcp::URG) != 0 {
                return refused(RefusalReason::TcpFlags);
            }
            if !is_remote && word(tcp::CHECKSUM).is_none_or(|field| u32::from(field) == ones) {
                return Gate::SlowPath;
            }
        }
        Gate::Open
    }

    /// Accounts for a frame of a form, for which the gate is open, if it is the next segment of the train in the slot
    /// `idx`. Returns the length of its headers, and the reason if the train is to be closed. Other frames change
    /// nothing, except that the first segment of their flow may be verified, and leaves if its checksum is wrong, as on
    /// the slow path.
    #[inline]
    fn continues_tunnelled(
        &mut self,
        (at, idx): (usize, usize),
        (front, bytes, csum): (&[u8; HEAD_BLOCK], &[u8], Csum),
        hash: u64,
    ) -> Option<(usize, Option<Flush>)> {
        let form = self.tunnel_forms.get(at)?;
        let transport = form.transport?;
        let Some(Slot::Held(held)) = self.table.slot_mut(idx) else { return None };
        if held.tunnel_form != form.id
            || held.key.carries != HeldKind::Data
            || form.differs_from_train(self.kernel, (front, bytes), &held.packet.head)
        {
            return None;
        }
        let is_summed = form.has_outer_sum(bytes);
        let [layer] = held.packet.offload.layers() else { return None };
        let is_like = layer.gre == LayerCsum::Absent
            && layer.remote == form.remote
            && (layer.udp != LayerCsum::Absent) == is_summed
            && verify::is_owed(&held.packet) == form.remote.is_some();
        let (header, payload) = (bytes.get(transport.start()..form.len)?, bytes.get(form.len..)?);
        let (len, is_tcp) = (payload.len(), transport.kind == Kind::Tcp);
        let is_lro = is_tcp && self.rules.is_lro;
        let is_larger = len > held.size && !(is_lro && len <= held.room);
        if !is_like || is_larger || held.left == 0 && len > held.spare(is_lro) {
            return None;
        }
        let train = held.packet.head.bytes();
        if is_tcp {
            let flags = header.get(tcp::FLAGS)?;
            if read_u32(header, tcp::SEQ) != Some(held.next_seq) || flags & self.rules.slow_path_flags != 0 {
                return None;
            }
            if is_lro && may_renew(train.get(transport.start()..form.len)?, header, held.stamp).is_err() {
                return None;
            }
        }
        let mut ids = held.ids;
        for &(start, bit, is_inner) in form.ipv4s.iter().flatten() {
            let range = start..start + ipv4::MIN_LEN;
            let headers = (train.get(range.clone())?, bytes.get(range)?);
            ids = next_ids(ids, held.segs, (bit, is_inner), self.config.profile, headers).ok()?;
        }
        // The first segment is verified when all else says that this one joins it.
        if !held.verified {
            if verify::verify(&mut held.packet, &mut self.stats.checksummed_bytes).is_err() {
                self.finish(idx, Flush::BadChecksum);
                return None;
            }
            held.verified = true;
        }
        let is_owed = form.remote.is_some();
        let reads = !matches!(csum, Csum::Complete(_) | Csum::Verified);
        // The payload is read once for both checksums.
        let rest = match csum {
            Csum::Complete(mut all) => {
                all.remove(Sum::of(bytes.get(form.outer.start()..form.len)?));
                all
            }
            _ if reads => Sum::of(payload),
            _ => Sum::ZERO,
        };
        let is_right = |ip: &Header, over: &Header| {
            let upper_len = bytes.len() - over.start();
            let mut part = Sum::of(bytes.get(over.start()..form.len).unwrap_or(&[]));
            part.append(rest, len);
            let mut sum = pseudo(bytes, ip, over, upper_len);
            sum.append(part, upper_len);
            sum.fold() == 0xffff
        };
        let is_outer_right = match &form.around {
            Some(around) if is_summed => is_right(&form.outer, around),
            _ => true,
        };
        let is_inner_right = match csum {
            Csum::Verified => true,
            _ if is_owed => {
                let primed = Field::primed(pseudo(bytes, &form.inner, &transport, header.len() + len));
                read_u16(header, field_offset(transport.kind)?) == Some(primed.value())
            }
            _ => is_right(&form.inner, &transport),
        };
        if !is_outer_right || !is_inner_right {
            return None;
        }
        let header_len = form.len;
        self.stats.packets += 1;
        self.stats.checksummed_bytes += if reads { len as u64 } else { 0 };
        self.held_packets += 1;
        let why = match is_tcp {
            true => held.add(ids, Some(transport.start()), header, len, is_lro),
            false => held.add(ids, None, &[], len, false),
        };
        self.held_trains += usize::from(held.segs == 2);
        if is_tcp && self.config.acks {
            self.memory.other(hash, header, true);
        }
        Some((header_len, why))
    }
}
