//! The short way of a packet of a usual form: into the train that is held of its flow, or to the start of a new one, without
//! being parsed.
//!
//! The result is that of the long way, always: whatever is not plain here goes there, and nothing has happened to it yet. That
//! a packet has the layout of its form follows from its bytes: types, versions and header lengths by [`Forms::find`], length
//! fields that say exactly what is there by [`Gro::judge`], and nothing else is read by the parser. A packet joins only if all
//! bytes of its headers under the mask of its form are those of the train, addresses and ports included.

use alloc::boxed::Box;

#[cfg(doc)]
use super::form::Forms;
use super::form::{Form, Which};
use super::key::Plain;
use super::table::{Carries, Held, Ids};
use super::{Flush, Frame, Gro, Profile, acks, may_renew, next_ids, rules, verify};
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::gso::MIN_TCP_SIZE;
use crate::packet::{BLOCK, Csum, Packet, Pool, Unit};
use crate::time::Nanos;
use crate::wire::{ipv4, ipv6, protocol, read_u16, read_u32, tcp, udp};

/// What becomes of a packet.
enum Verdict {
    /// It goes the long way.
    Long,
    /// It is the first of its flow, which has this hash.
    Starts(u64),
    /// It is the next segment of the train at this place.
    Joins(usize, Ids),
}

/// A packet before it is taken.
struct Seen<'a> {
    /// Its first bytes. Behind its end they mean nothing.
    front: &'a [u8; BLOCK],
    total: usize,
    csum: Csum,
    which: Which,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Takes a frame the short way, or gives it back.
    #[inline(always)]
    pub(super) fn take_frame_quickly(&mut self, frame: Frame<B>, now: Nanos, pool: &mut Pool<B>) -> Option<Frame<B>> {
        let bytes = frame.bytes.bytes();
        let mut short;
        let front = match bytes.first_chunk() {
            Some(front) => front,
            None => {
                short = [0; BLOCK];
                short[..bytes.len()].copy_from_slice(bytes);
                &short
            }
        };
        let Some(which) = self.forms.find(front, frame.start) else { return Some(frame) };
        let Some(form) = self.forms.get(which) else { return Some(frame) };
        let (l4, header_len) = (form.plain.l4, form.len);
        if !form.plain.is_tcp && self.config.tunnels.has(read_u16(front, l4 + udp::DST_PORT).unwrap_or(0)) {
            return Some(frame);
        }
        let seen = Seen { front, total: bytes.len(), csum: frame.csum, which };
        match self.judge(&seen, |from| Sum::of(bytes.get(from..).unwrap_or(&[]))) {
            Verdict::Long => return Some(frame),
            Verdict::Starts(hash) => {
                let mut packet = pool.take();
                if let Some(form) = self.forms.get(which) {
                    packet.load_known(front, seen.total, &form.layout, frame.csum);
                }
                packet.payload.push(frame.bytes.skip(header_len));
                self.start(packet, hash, which, now);
            }
            Verdict::Joins(place, ids) => {
                let why = self.add(place, ids, &front[l4..header_len], seen.total - header_len);
                self.table.get_mut(place).packet.payload.push(frame.bytes.skip(header_len));
                if let Some(why) = why {
                    self.finish(place, why);
                }
            }
        }
        None
    }

    /// Takes a parsed packet the short way, or gives it back.
    #[inline(always)]
    pub(super) fn take_packet_quickly(
        &mut self,
        mut packet: Box<Packet<B>>,
        now: Nanos,
        pool: &mut Pool<B>,
    ) -> Option<Box<Packet<B>>> {
        let Unit::Whole(csum) = packet.offload.unit else { return Some(packet) };
        let (Some(which), Some(front)) = (self.forms.of(&packet), packet.head.block()) else { return Some(packet) };
        let seen = Seen { front, total: packet.len(), csum, which };
        let sum = |from| {
            let mut sum = Sum::of(packet.head.bytes().get(from..).unwrap_or(&[]));
            packet.payload.frags().iter().for_each(|frag| sum.add(frag.bytes()));
            sum
        };
        match self.judge(&seen, sum) {
            Verdict::Long => return Some(packet),
            Verdict::Starts(hash) => self.start(packet, hash, which, now),
            Verdict::Joins(place, ids) => {
                let header = packet.transport().map_or(&[][..], |(_, header)| header);
                let why = self.add(place, ids, header, packet.payload.len());
                self.table.get_mut(place).packet.payload.append(&mut packet.payload);
                pool.put(packet);
                if let Some(why) = why {
                    self.finish(place, why);
                }
            }
        }
        None
    }

    /// What becomes of a packet whose bytes from a place on sum to what `sum` says. If it goes the long way nothing has changed,
    /// but that the train held of its flow may have been verified, as it would be there.
    #[inline(always)]
    fn judge(&mut self, seen: &Seen<'_>, sum: impl FnOnce(usize) -> Sum) -> Verdict {
        let &Seen { front, total, csum, which } = seen;
        let Some(form) = self.forms.get(which) else { return Verdict::Long };
        let profile = self.config.profile;
        let (Plain { is_v6, is_tcp, l4, link }, l3, is_owed) = (form.plain, form.l3, csum == Csum::Partial);
        if total <= form.len
            || matches!(csum, Csum::Absent | Csum::Bad)
            || !is_ip_good(form, front, total, profile)
            || !is_transport_good(form, front, total, is_owed, profile)
        {
            return Verdict::Long;
        }
        let Some(hash) = self.hasher.plain(front, form.plain) else { return Verdict::Long };
        let (header, len) = (&front[l4..form.len], total - form.len);
        // The long way has a reason for those.
        let is_tiny = is_tcp && is_owed && len < usize::from(MIN_TCP_SIZE);
        let place = self.table.find(hash, |_| true);
        let Some(place) = place else { return self.judge_first(hash, is_tcp, is_tiny, header) };

        let held = self.table.get_mut(place);
        let Some(train) = held.packet.head.block() else { return Verdict::Long };
        if held.form != which
            || held.carries != Carries::Data
            || verify::is_owed(&held.packet) != is_owed
            || !is_equal(train, front, &form.mask)
        {
            return Verdict::Long;
        }
        if is_tcp {
            let in_turn = read_u32(header, tcp::SEQ) == Some(held.next_seq);
            let is_cwr = header[tcp::FLAGS] & tcp::CWR != 0 && !profile.joins_cwr();
            let renews = profile != Profile::Lro || may_renew(&train[l4..form.len], header, held.stamp).is_ok();
            if !in_turn || is_cwr || !renews {
                return Verdict::Long;
            }
        }
        let may_be_larger = is_tcp && profile == Profile::Lro && len <= held.room;
        if len > held.size && !may_be_larger {
            return Verdict::Long;
        }
        let mut ids = Ok(held.ids);
        if !is_v6 {
            ids = next_ids(held.ids, held.segs, (1 << link, true), profile, (&train[l3..l4], &front[l3..l4]));
        }
        let Ok(ids) = ids else { return Verdict::Long };
        if !held.verified {
            match verify::verify(&mut held.packet, &mut self.stats.checksummed_bytes) {
                Ok(()) => held.verified = true,
                Err(_) => {
                    self.finish(place, Flush::BadChecksum);
                    return self.judge_first(hash, is_tcp, is_tiny, header);
                }
            }
        }
        let is_good = match csum {
            Csum::Verified => true,
            Csum::Complete(mut all) => {
                all.remove(Sum::of(&front[l3..l4]));
                let mut whole = pseudo(form, front, total);
                whole.append(all, total - l4);
                whole.fold() == 0xffff
            }
            Csum::Partial => {
                let field = l4 + if is_tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
                read_u16(front, field) == Some(Field::primed(pseudo(form, front, total)).value())
            }
            _ => {
                let mut whole = pseudo(form, front, total);
                whole.append(sum(l4), total - l4);
                let is_good = whole.fold() == 0xffff;
                if is_good {
                    self.stats.checksummed_bytes += len as u64;
                }
                is_good
            }
        };
        if !is_good {
            return Verdict::Long;
        }
        if is_tcp && self.config.acks {
            self.memory.other(hash, header);
        }
        self.stats.packets += 1;
        Verdict::Joins(place, ids)
    }

    /// What becomes of a packet of whose flow nothing is held.
    #[inline(always)]
    fn judge_first(&mut self, hash: u64, is_tcp: bool, is_tiny: bool, header: &[u8]) -> Verdict {
        if is_tiny {
            return Verdict::Long;
        }
        if is_tcp && self.config.acks {
            self.memory.other(hash, header);
        }
        Verdict::Starts(hash)
    }

    /// Starts a train with a packet that is good for one, or passes it on where nothing could join it.
    #[inline(always)]
    fn start(&mut self, packet: Box<Packet<B>>, hash: u64, which: Which, now: Nanos) {
        self.stats.packets += 1;
        let Some(form) = self.forms.get(which) else { return };
        let (is_tcp, size) = (form.plain.is_tcp, packet.payload.len());
        let (mut next_seq, mut stamp, mut closed) = (0, 0, None);
        let ip_len = form.len - form.l3;
        if is_tcp && let Some(header) = packet.head.bytes().get(form.plain.l4..) {
            next_seq = read_u32(header, tcp::SEQ).unwrap_or(0);
            closed = header.get(tcp::FLAGS).copied().and_then(rules::closing);
            if self.config.profile == Profile::Lro {
                stamp = acks::stamps(header).map_or(0, |stamps| stamps.value);
            }
        }
        let most = self.most(is_tcp);
        let room = self.limit(is_tcp).saturating_sub(ip_len + size);
        if closed.is_none() && (most < 2 || room < size) {
            closed = Some(Flush::Full);
        }
        if let Some(why) = closed {
            self.stats.flushes.add(why);
            self.ready.push_back(packet);
            return;
        }
        let verified = packet.offload.unit == Unit::Whole(Csum::Verified);
        self.keep(Held {
            hash,
            since: now,
            size,
            room,
            segs: 1,
            most,
            next_seq: next_seq.wrapping_add(size as u32),
            stamp,
            ids: Ids::default(),
            form: which,
            carries: Carries::Data,
            verified,
            packet,
        });
    }
}

/// Whether an IP header is one that a train can have, and says that the packet ends where it does.
#[inline(always)]
fn is_ip_good(form: &Form, front: &[u8; BLOCK], total: usize, profile: Profile) -> bool {
    if form.plain.is_v6 {
        return read_u16(front, form.l3 + ipv6::PAYLOAD_LEN).map(usize::from) == Some(total - form.plain.l4);
    }
    let Some(header) = front[form.l3..].first_chunk::<{ ipv4::MIN_LEN }>() else { return false };
    let is_exact = read_u16(header, ipv4::TOTAL_LEN).map(usize::from) == Some(total - form.l3);
    let is_whole = read_u16(header, ipv4::FRAGMENT).is_some_and(|word| word & !ipv4::DF == 0);
    let is_canonical = profile != Profile::Strict || read_u16(header, ipv4::CHECKSUM) != Some(0xffff);
    is_exact && is_whole && is_canonical && Sum::of(header).fold() == 0xffff
}

/// The same for a transport header, checksums aside that cover the payload.
#[inline(always)]
fn is_transport_good(form: &Form, front: &[u8; BLOCK], total: usize, is_owed: bool, profile: Profile) -> bool {
    let l4 = form.plain.l4;
    if form.plain.is_tcp {
        let is_data = front[l4 + tcp::FLAGS] & (tcp::SYN | tcp::RST | tcp::URG) == 0;
        let may_be_ones = is_owed || profile != Profile::Strict;
        return is_data && (may_be_ones || read_u16(front, l4 + tcp::CHECKSUM) != Some(0xffff));
    }
    let is_exact = read_u16(front, l4 + udp::LENGTH).map(usize::from) == Some(total - l4);
    is_exact && read_u16(front, l4 + udp::CHECKSUM) != Some(0)
}

/// Whether two heads are the same under a mask.
#[inline(always)]
fn is_equal(a: &[u8; BLOCK], b: &[u8; BLOCK], mask: &[u8; BLOCK]) -> bool {
    let word = |bytes: &[u8; BLOCK], at: usize| bytes[at..at + 8].first_chunk().map_or(0, |w| u64::from_ne_bytes(*w));
    let differs = |range: core::ops::Range<usize>| {
        range.step_by(8).fold(0, |all, at| all | ((word(a, at) ^ word(b, at)) & word(mask, at)))
    };
    // Most headers end in the first half.
    differs(0..BLOCK / 2) == 0 && differs(BLOCK / 2..BLOCK) == 0
}

/// The pseudo header of a packet of this form.
#[inline(always)]
fn pseudo(form: &Form, front: &[u8; BLOCK], total: usize) -> Sum {
    let number = if form.plain.is_tcp { protocol::TCP } else { protocol::UDP };
    let (ip, len) = (&front[form.l3..], total - form.plain.l4);
    if form.plain.is_v6 {
        let address = |range| ip.get(range).and_then(|bytes: &[u8]| bytes.first_chunk()).copied().unwrap_or_default();
        return pseudo_v6(address(ipv6::SRC), address(ipv6::DST), number, len);
    }
    let address = |range| ip.get(range).and_then(|bytes: &[u8]| bytes.first_chunk()).copied().unwrap_or_default();
    pseudo_v4(address(ipv4::SRC), address(ipv4::DST), number, len)
}
