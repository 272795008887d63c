//! The fast path of a packet of a known form: it joins the held train of its flow, or starts a new one, without being
//! parsed.
//!
//! The result is always that of the slow path: whatever is not simple takes the slow path, before anything has changed.
//! That a packet has the layout of its form follows from its bytes: types, versions and header lengths, and length
//! fields that match the bytes present; the parser reads nothing else. A packet joins only if all bytes of its headers
//! under the mask of its form equal those of the train, addresses and ports included.

use alloc::boxed::Box;

use super::engine::Gro;
use super::form::FormId;
use super::ip_id::{Ids, next_ids};
use super::key::L3;
use super::lro::may_renew;
use super::next_segment::{FrameView, NextSegment, is_plain_ethernet};
use super::pending_first::{PendingFirst, padded};
use super::ready::Ready;
use super::rules::{self, Flush, Mismatch, RefusalReason};
use super::stamps::stamps;
use super::table::{ExpectedNext, FrameMatch, Held, Lookup, MatchKey, Slot, left};
use super::tunnel_form::TunnelFormId;
use super::verify::{self, is_sum_good, pseudo_header};
use crate::checksum::{Field, Sum};
use crate::gso::MIN_TCP_SIZE;
use crate::packet::{Csum, Frame, HEAD_BLOCK, Packet, Pool, Start, Unit};
use crate::time::Nanos;
use crate::wire::{ethernet, ethertype, ipv4, ipv6, protocol, read_u16, read_u32, tcp, udp};

/// The decision on a packet of a known form.
enum Verdict {
    /// The packet takes the slow path.
    SlowPath,
    /// The frame cannot join a train; packets that had to precede it are ready.
    Refused(RefusalReason),
    /// The frame could begin a train, with this form and sequence number, but no segment may follow it.
    Alone(FormId, u32, Flush),
    /// The packet is the first of its flow, with the given hash and form.
    Starts(u64, FormId),
    /// The packet is the next segment of the train in the given slot; its payload follows this many bytes of headers.
    /// If there is a reason, the train is to be closed.
    Joins(u32, u16, Option<Flush>),
}

/// The bytes of a packet that is being judged.
#[derive(Clone, Copy)]
struct PacketView<'a> {
    /// First bytes of the frame; those after the packet's end are undefined.
    front: &'a [u8; HEAD_BLOCK],
    total: usize,
    csum: Csum,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Takes a frame over the fast path, with what was recognised of it, or returns it.
    #[inline(always)]
    pub(super) fn take_frame_fast(
        &mut self,
        frame: Frame<B>,
        found: FrameMatch,
        now: Nanos,
        pool: &mut Pool<B>,
    ) -> Option<Frame<B>> {
        let bytes = frame.bytes.bytes();
        let short;
        let front = match bytes.first_chunk() {
            Some(front) => front,
            None => {
                if let Some(why) = self.refuse_short(bytes, frame.start, frame.csum) {
                    self.refuse(frame, why);
                    return None;
                }
                short = padded(bytes);
                &short
            }
        };
        let (total, csum) = (bytes.len(), frame.csum);
        let verified = matches!(csum, Csum::Verified);
        let is_own = verified || matches!(csum, Csum::Unknown);
        let next = if is_own {
            self.next_segment(FrameView { front, bytes, verified }, (frame.start, found), pool)
        } else {
            NextSegment::Neither(None)
        };
        let verdict = match next {
            NextSegment::Continues(idx, header_len) => {
                self.table.get_mut(idx).packet.payload.push(frame.bytes.skip(header_len));
                return None;
            }
            NextSegment::Starts(first) => {
                self.keep_first(frame.bytes, first, verified, now);
                return None;
            }
            NextSegment::Alone { form_id, seq, why } => Verdict::Alone(form_id, seq, why),
            NextSegment::Empty => Verdict::Refused(RefusalReason::NoPayload),
            // The frame itself stays in registers: no reference to it is passed.
            NextSegment::Other(hash) => {
                self.judge_frame(bytes, &PacketView { front, total, csum }, frame.start, (Some(hash), true), pool)
            }
            NextSegment::Neither(hash) => {
                self.judge_frame(bytes, &PacketView { front, total, csum }, frame.start, (hash, false), pool)
            }
        };
        match verdict {
            Verdict::SlowPath => return Some(frame),
            Verdict::Refused(why) => self.refuse(frame, why),
            Verdict::Alone(form, seq, why) => {
                self.stats.packets += 1;
                self.stats.flushes.add(why);
                let first = PendingFirst { bytes: Some(frame.bytes), since: now, seq, form, verified };
                self.ready.push_back(Ready::First(first));
            }
            Verdict::Starts(hash, form_id) => {
                let Some(form) = self.forms.get(form_id) else { return Some(frame) };
                let first = Opening::read(front, form.is_tcp.then_some(form.l4), self.rules.is_lro);
                if form.is_tcp && !self.rules.is_lro && is_own {
                    let (length, Opening { seq, flags, .. }) = (total - form.l3, first);
                    let first = PendingFirst { bytes: Some(frame.bytes), since: now, seq, form: form_id, verified };
                    self.start_frame(first, hash, length, flags);
                    return None;
                }
                let mut packet = pool.take_used();
                packet.load_known(front, form.len, total, &form.layout, csum);
                packet.payload.push(frame.bytes.skip(form.len));
                self.start(packet, hash, form_id, first, now);
            }
            Verdict::Joins(idx, header_len, why) => {
                let idx = idx as usize;
                self.table.get_mut(idx).packet.payload.push(frame.bytes.skip(usize::from(header_len)));
                if let Some(why) = why {
                    self.finish(idx, why);
                }
            }
        }
        None
    }

    /// Passes on a frame that can join nothing.
    #[inline(always)]
    fn refuse(&mut self, frame: Frame<B>, why: RefusalReason) {
        self.stats.packets += 1;
        self.stats.alone.add(why);
        self.ready.push_back(Ready::Frame(frame));
    }

    /// Judges a frame that neither is the expected next segment of a train nor begins one. `hash` is the hash of its
    /// flow if already computed; `is_data` says that it has payload and no flag that keeps it alone.
    #[inline(never)]
    fn judge_frame(
        &mut self,
        bytes: &[u8],
        view: &PacketView<'_>,
        start: Start,
        (hash, is_data): (Option<u64>, bool),
        pool: &mut Pool<B>,
    ) -> Verdict {
        // One with a hash is TCP outside tunnels.
        if hash.is_none() && self.tunnel_forms.find(self.kernel, start, view.front, bytes).is_some() {
            return Verdict::SlowPath;
        }
        if !is_data && let Some((why, behind)) = self.refusal(view.front, view.total, (start, view.csum)) {
            self.flush_before(view.front, hash, behind);
            return Verdict::Refused(why);
        }
        self.judge(view, start, true, hash, pool, |from| Sum::of(bytes.get(from..).unwrap_or(&[])))
    }

    /// Processes a parsed packet on the fast path, or returns it.
    #[inline(always)]
    pub(super) fn take_packet_fast(
        &mut self,
        mut packet: Box<Packet<B>>,
        now: Nanos,
        pool: &mut Pool<B>,
    ) -> Option<Box<Packet<B>>> {
        let Unit::Whole(csum) = packet.offload.unit else { return Some(packet) };
        let Some(front) = packet.head.block().filter(|_| self.forms.of(&packet).is_some()) else { return Some(packet) };
        let start = if packet.layout.starts_with_ethernet() { Start::Ethernet } else { Start::Ip };
        let view = PacketView { front, total: packet.len(), csum };
        let sum = |from| {
            let mut sum = Sum::of(packet.head.bytes().get(from..).unwrap_or(&[]));
            packet.payload.frags().iter().for_each(|frag| sum.add(frag.bytes()));
            sum
        };
        match self.judge(&view, start, false, None, pool, sum) {
            // Only frames are refused here.
            Verdict::SlowPath | Verdict::Refused(_) | Verdict::Alone(..) => return Some(packet),
            Verdict::Starts(hash, form_id) => {
                let Some(form) = self.forms.get(form_id) else { return Some(packet) };
                let first = Opening::read(front, form.is_tcp.then_some(form.l4), self.rules.is_lro);
                self.start(packet, hash, form_id, first, now);
            }
            Verdict::Joins(idx, _, why) => {
                let idx = idx as usize;
                self.table.get_mut(idx).packet.payload.append(&mut packet.payload);
                pool.put(packet);
                if let Some(why) = why {
                    self.finish(idx, why);
                }
            }
        }
        None
    }

    /// Judges a packet; `sum` returns the sum of its bytes from an offset on. `is_raw` says that UDP may carry a
    /// tunnel, `hash` is the hash of its flow if already computed.
    #[inline(always)]
    fn judge(
        &mut self,
        view: &PacketView<'_>,
        start: Start,
        is_raw: bool,
        hash: Option<u64>,
        pool: &mut Pool<B>,
        sum: impl FnOnce(usize) -> Sum,
    ) -> Verdict {
        #[cfg(test)]
        {
            self.effort.1 += 1;
        }
        // Nearly all packets are such frames.
        if start == Start::Ethernet && is_plain_ethernet(view.front) {
            return self.judge_form::<1, false, true>(view, is_raw, hash, pool, sum);
        }
        let kind = |tags: usize| read_u16(view.front, ethernet::TYPE + tags * ethernet::VLAN_LEN).unwrap_or(0);
        let is_tag = |kind| matches!(kind, ethertype::VLAN | ethertype::QINQ);
        match start {
            Start::Ip => {
                let kind = if view.front[0] >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
                self.judge_ip::<0>(view, kind, is_raw, hash, pool, sum)
            }
            Start::Ethernet if !is_tag(kind(0)) => self.judge_ip::<1>(view, kind(0), is_raw, hash, pool, sum),
            Start::Ethernet if !is_tag(kind(1)) => self.judge_ip::<2>(view, kind(1), is_raw, hash, pool, sum),
            Start::Ethernet => self.judge_ip::<3>(view, kind(2), is_raw, hash, pool, sum),
        }
    }

    /// Judges a packet with `LINK` headers in front of IP, the last of which has the type `kind`.
    #[inline(always)]
    fn judge_ip<const LINK: usize>(
        &mut self,
        view: &PacketView<'_>,
        kind: u16,
        is_raw: bool,
        hash: Option<u64>,
        pool: &mut Pool<B>,
        sum: impl FnOnce(usize) -> Sum,
    ) -> Verdict {
        let l3 = const { L3[LINK] };
        let (first, v4, v6) = (view.front[l3], view.front[l3 + ipv4::PROTOCOL], view.front[l3 + ipv6::NEXT_HEADER]);
        match (kind, first, v4, v6) {
            (ethertype::IPV4, 0x45, protocol::TCP, _) => {
                self.judge_form::<LINK, false, true>(view, is_raw, hash, pool, sum)
            }
            (ethertype::IPV4, 0x45, protocol::UDP, _) => {
                self.judge_form::<LINK, false, false>(view, is_raw, hash, pool, sum)
            }
            (ethertype::IPV6, 0x60..=0x6f, _, protocol::TCP) => {
                self.judge_form::<LINK, true, true>(view, is_raw, hash, pool, sum)
            }
            (ethertype::IPV6, 0x60..=0x6f, _, protocol::UDP) => {
                self.judge_form::<LINK, true, false>(view, is_raw, hash, pool, sum)
            }
            _ => Verdict::SlowPath,
        }
    }

    /// Judges a packet that is, by types and versions, IP without options and this transport. If it takes the slow path
    /// nothing has changed, except that the train held of its flow may have been verified, as the slow path would do.
    #[inline(never)]
    fn judge_form<const LINK: usize, const V6: bool, const TCP: bool>(
        &mut self,
        &PacketView { front, total, csum }: &PacketView<'_>,
        is_raw: bool,
        hash: Option<u64>,
        pool: &mut Pool<B>,
        sum: impl FnOnce(usize) -> Sum,
    ) -> Verdict {
        let l3 = const { L3[LINK] };
        let ip_len = const { if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let (ip, transport) = (&front[l3..l4], &front[l4..l4 + tcp::MIN_LEN]);
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);

        let is_verified = matches!(csum, Csum::Verified);
        let is_owed = !is_verified && matches!(csum, Csum::Partial);
        let is_bad = !is_verified && matches!(csum, Csum::Absent | Csum::Bad);
        // The length fields must match the bytes present.
        let is_exact = if V6 {
            usize::from(word(ip, ipv6::PAYLOAD_LEN)) + l4 == total
        } else {
            usize::from(word(ip, ipv4::TOTAL_LEN)) + l3 == total
        };
        let ones = self.rules.ones;
        let is_odd = !V6 && (u32::from(word(ip, ipv4::CHECKSUM)) == ones || !is_sum_good(ip));
        if !is_exact || is_odd || is_bad {
            return Verdict::SlowPath;
        }
        if TCP {
            let is_odd = !is_owed && u32::from(word(transport, tcp::CHECKSUM)) == ones;
            if transport[tcp::FLAGS] & self.rules.slow_path_flags != 0 || is_odd {
                return Verdict::SlowPath;
            }
        } else {
            let is_exact = usize::from(word(transport, udp::LENGTH)) + l4 == total;
            let is_tunnel = is_raw && self.config.tunnels.has(word(transport, udp::DST_PORT));
            if !is_exact || word(transport, udp::CHECKSUM) == 0 || is_tunnel {
                return Verdict::SlowPath;
            }
        }

        let hash = hash.unwrap_or_else(|| self.hasher.usual::<LINK, V6, TCP>(front));
        if TCP
            && !is_owed
            && let Some((idx, misfit)) = self.misfit_of_first::<LINK, V6>(hash, front, total)
        {
            return self.judge_other::<LINK, V6, TCP>(
                (hash, idx),
                (front, total, is_owed),
                Flush::Mismatch,
                Some(misfit),
            );
        }
        let Some(idx) = self.find(hash, pool, |_| true) else {
            return self.judge_first::<LINK, V6, TCP>(hash, front, total, is_owed);
        };
        let held = self.table.get_mut(idx);
        let Some((form, train)) = self.forms.get(held.key.form()).zip(held.packet.head.block()) else {
            return Verdict::SlowPath;
        };
        if !held.key.train_of(LINK, is_owed) {
            return Verdict::SlowPath;
        }
        // Types, versions, header lengths, fragment fields and flags are compared, so the packet has the train's form.
        if self.kernel.differ(train, front, &form.mask, form.len) {
            let Some(this) = self.forms.id_of::<V6, TCP>(LINK, &front[l4..]).and_then(|id| self.forms.get(id)) else {
                return Verdict::SlowPath;
            };
            let why = if this.len == form.len { form.explain(train, front) } else { Mismatch::Headers };
            return self.judge_other::<LINK, V6, TCP>((hash, idx), (front, total, is_owed), Flush::Mismatch, Some(why));
        }
        let Some(len) = total.checked_sub(form.len).filter(|len| *len > 0) else {
            return Verdict::SlowPath;
        };
        let is_lro = TCP && self.rules.is_lro;
        let mut ids = held.ids;
        let mut misfit = None;
        if TCP && read_u32(transport, tcp::SEQ) != Some(held.next_seq) {
            misfit = Some(Mismatch::Sequence);
        } else if is_lro {
            let range = l4..form.len;
            let (Some(train), Some(header)) = (train.get(range.clone()), front.get(range)) else {
                return Verdict::SlowPath;
            };
            misfit = may_renew(train, header, held.stamp).err();
        }
        if misfit.is_none() && len > held.size && !(is_lro && len <= held.room) {
            misfit = Some(Mismatch::Larger);
        }
        if misfit.is_none() && !V6 {
            if held.segs == 1 {
                match next_ids(ids, 1, (1 << LINK, true), self.config.profile, (&train[l3..l4], ip)) {
                    Ok(next) => ids = next,
                    Err(why) => misfit = Some(why),
                }
            } else if !self.rules.is_lro {
                // From the third segment on the identification continues as from the first to the second.
                let counted = if ids.fixed & (1 << LINK) == 0 { held.segs as u16 } else { 0 };
                if word(ip, ipv4::ID) != word(&train[l3..l4], ipv4::ID).wrapping_add(counted) {
                    misfit = Some(Mismatch::IpId);
                }
            }
        }
        if misfit.is_some() {
            return self.judge_other::<LINK, V6, TCP>((hash, idx), (front, total, is_owed), Flush::Mismatch, misfit);
        }
        if held.left == 0 && len > held.spare(is_lro) {
            return self.judge_other::<LINK, V6, TCP>((hash, idx), (front, total, is_owed), Flush::Full, None);
        }
        if !held.verified {
            match verify::verify(&mut held.packet, &mut self.stats.checksummed_bytes) {
                Ok(()) => held.verified = true,
                Err(_) => {
                    self.finish(idx, Flush::BadChecksum);
                    return self.judge_first::<LINK, V6, TCP>(hash, front, total, is_owed);
                }
            }
        }
        if !is_verified {
            let number = if TCP { protocol::TCP } else { protocol::UDP };
            let mut whole = pseudo_header::<V6>(ip, number, total - l4);
            let is_good = match csum {
                Csum::Complete(mut all) => {
                    all.remove(Sum::of(&ip[..ip_len]));
                    whole.append(all, total - l4);
                    whole.fold() == 0xffff
                }
                Csum::Partial => {
                    let field = word(transport, if TCP { tcp::CHECKSUM } else { udp::CHECKSUM });
                    field == Field::primed(whole).value()
                }
                _ => {
                    whole.append(sum(l4), total - l4);
                    let is_good = whole.fold() == 0xffff;
                    self.stats.checksummed_bytes += if is_good { len as u64 } else { 0 };
                    is_good
                }
            };
            if !is_good {
                return Verdict::SlowPath;
            }
        }
        let header_len = form.len;
        let header = front.get(l4..header_len).unwrap_or(&[]);
        self.stats.packets += 1;
        self.held_packets += 1;
        let why = held.add(ids, TCP.then_some(l4), header, len, is_lro);
        self.held_trains += usize::from(held.segs == 2);
        if TCP && self.config.acks {
            self.memory.other(hash, header, true);
        }
        Verdict::Joins(idx as u32, header_len as u16, why)
    }

    /// Returns the slot of a first segment that is still a frame, if a packet of its flow cannot follow it, with the
    /// reason: then it needs no box.
    #[inline(always)]
    fn misfit_of_first<const LINK: usize, const V6: bool>(
        &mut self,
        hash: u64,
        front: &[u8; HEAD_BLOCK],
        total: usize,
    ) -> Option<(usize, Mismatch)> {
        let Lookup::Slot(idx) = self.table.lookup(hash) else { return None };
        let Some(Slot::First(first)) = self.table.slot_mut(idx) else { return None };
        let form = self.forms.get(first.form).filter(|_| first.form.link() == LINK)?;
        let (train, size) = (first.bytes.as_ref()?.bytes().first_chunk()?, first.payload_len(&self.forms)?);
        if self.kernel.differ(train, front, &form.mask, form.len) {
            let this = self.forms.get(self.forms.id_of::<V6, true>(LINK, front.get(form.l4..)?)?)?;
            let why = if this.len == form.len { form.explain(train, front) } else { Mismatch::Headers };
            return Some((idx, why));
        }
        if read_u32(front, form.l4 + tcp::SEQ) != Some(first.seq.wrapping_add(size as u32)) {
            return Some((idx, Mismatch::Sequence));
        }
        if total.saturating_sub(form.len) > size {
            return Some((idx, Mismatch::Larger));
        }
        let ips = (train.get(form.l3..form.l4)?, front.get(form.l3..form.l4)?);
        let ids = || next_ids(Ids::default(), 1, (1 << LINK, true), self.config.profile, ips).err();
        let why = if V6 { None } else { ids() };
        why.map(|why| (idx, why))
    }

    /// Handles a packet that does not fit the held train of its flow, in this slot: the train leaves first, unless the
    /// packet takes the slow path.
    #[inline(never)]
    fn judge_other<const LINK: usize, const V6: bool, const TCP: bool>(
        &mut self,
        (hash, idx): (u64, usize),
        (front, total, is_owed): (&[u8; HEAD_BLOCK], usize, bool),
        why: Flush,
        misfit: Option<Mismatch>,
    ) -> Verdict {
        let verdict = self.judge_first::<LINK, V6, TCP>(hash, front, total, is_owed);
        if let Verdict::Starts(..) = verdict {
            if let Some(misfit) = misfit {
                self.stats.mismatches.add(misfit);
            }
            self.finish(idx, why);
        }
        verdict
    }

    /// Judges a packet of a flow without a held train.
    #[inline(always)]
    fn judge_first<const LINK: usize, const V6: bool, const TCP: bool>(
        &mut self,
        hash: u64,
        front: &[u8; HEAD_BLOCK],
        total: usize,
        is_owed: bool,
    ) -> Verdict {
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let Some(form_id) = self.forms.id_of::<V6, TCP>(LINK, &front[l4..]) else { return Verdict::SlowPath };
        let Some(form) = self.forms.get(form_id) else { return Verdict::SlowPath };
        let is_fragment = !V6 && read_u16(front, L3[LINK] + ipv4::FRAGMENT).is_none_or(|word| word & !ipv4::DF != 0);
        let least = form.len + if TCP && is_owed { usize::from(MIN_TCP_SIZE) } else { 1 };
        if total < least || is_fragment {
            return Verdict::SlowPath;
        }
        if TCP && self.config.acks {
            // Whether it ends its connection depends on its checksum.
            if front[l4 + tcp::FLAGS] & tcp::FIN != 0 {
                return Verdict::SlowPath;
            }
            self.memory.other(hash, front.get(l4..form.len).unwrap_or(&[]), false);
        }
        Verdict::Starts(hash, form_id)
    }

    /// Starts a train with a TCP frame that may begin one, or passes it on if no packet could join it. From its IP
    /// header on it has `length` bytes.
    #[inline(always)]
    fn start_frame(&mut self, first: PendingFirst<B>, hash: u64, length: usize, flags: u8) {
        self.stats.packets += 1;
        let (most, limit) = self.rules.tcp;
        let closed = rules::closing(flags);
        if closed.is_some() || most < 2 || limit <= length {
            self.stats.flushes.add(closed.unwrap_or(Flush::Full));
            self.ready.push_back(Ready::First(first));
            return;
        }
        self.keep(hash, Slot::First(first));
    }

    /// Starts a train with a packet that may begin one, or passes it on if no packet could join it.
    #[inline(always)]
    fn start(&mut self, packet: Box<Packet<B>>, hash: u64, form_id: FormId, first: Opening, now: Nanos) {
        self.stats.packets += 1;
        let Some(form) = self.forms.get(form_id) else { return };
        let unit = packet.offload.unit;
        let is_owed = matches!(unit, Unit::Whole(Csum::Partial));
        let size = packet.payload.len();
        let (most, limit) = if form.is_tcp { self.rules.tcp } else { self.rules.udp };
        let room = limit.saturating_sub(size + form.len - form.l3);
        let closed = rules::closing(first.flags);
        if closed.is_some() || most < 2 || room == 0 {
            self.stats.flushes.add(closed.unwrap_or(Flush::Full));
            self.ready.push_back(Ready::Packet(packet));
            return;
        }
        let held = Held {
            since: now,
            size,
            room,
            left: left(most - 1, room, size),
            segs: 1,
            most,
            next_seq: first.seq.wrapping_add(size as u32),
            stamp: first.stamp,
            ids: Ids::default(),
            key: MatchKey::train(form_id, is_owed),
            tunnel_form: TunnelFormId::NONE,
            expected: if form.is_tcp && !is_owed && !self.rules.is_lro {
                ExpectedNext::new(form_id.link(), size + form.len)
            } else {
                ExpectedNext::NOTHING
            },
            verified: matches!(unit, Unit::Whole(Csum::Verified)),
            packet,
        };
        self.keep(hash, Slot::Held(held));
    }
}

/// The fields of the TCP header that begins a train; zero for UDP.
struct Opening {
    seq: u32,
    flags: u8,
    /// The timestamp, if the profile lets it advance.
    stamp: u32,
}

impl Opening {
    /// Reads the fields of a packet that begins with `front` and has a TCP header at `at`.
    #[inline(always)]
    fn read(front: &[u8; HEAD_BLOCK], at: Option<usize>, is_lro: bool) -> Opening {
        let Some(header) = at.and_then(|at| front.get(at..at + tcp::STAMPED_LEN)) else {
            return Opening { seq: 0, flags: 0, stamp: 0 };
        };
        let is_stamped = is_lro && tcp::header_len(header[tcp::OFFSET]) == tcp::STAMPED_LEN;
        Opening {
            seq: read_u32(header, tcp::SEQ).unwrap_or(0),
            flags: header[tcp::FLAGS],
            stamp: if is_stamped { stamps(header).map_or(0, |stamps| stamps.value) } else { 0 },
        }
    }
}
