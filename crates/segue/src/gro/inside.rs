//! The short way of the next segment of a train inside a UDP tunnel.
//!
//! The bytes that may not differ between the headers of a train decide how a frame is parsed, which flow it is of, and
//! what most rules say. Where they are those of the train, all of that has the result that it had for the train, and
//! only lengths, IPv4 headers, identifications, the sequence number and the checksums are left to be looked at. A frame
//! that is not the plain next segment takes the slow path, which judges it.

use super::engine::Gro;
use super::ip_id::{Ids, next_ids};
use super::profile::Profile;
use super::rules::gate_ipv4;
use super::table::Held;
use super::verify::pseudo;
use crate::checksum::Sum;
use crate::packet::{Csum, Frame, Header, Kind, LayerCsum, Start, Unit};
use crate::wire::{ipv4, ipv6, read_u16, read_u32, tcp, udp};

/// Flags of TCP without which every segment of a train is alike.
const PLAIN_FLAGS: u8 = tcp::FIN | tcp::SYN | tcp::RST | tcp::PSH | tcp::URG | tcp::CWR;

/// Returns the headers of the outermost IP packet, of UDP behind it, and of the innermost packet; `None` for anything
/// else than TCP inside one UDP tunnel.
fn headers<B: AsRef<[u8]>>(held: &Held<B>) -> Option<[&Header; 4]> {
    let layout = &held.packet.layout;
    let at = layout.outer_ip_index()?;
    let [.., inner, transport] = layout.headers() else { return None };
    let [outer, around, ..] = layout.headers().get(at..)? else { return None };
    let is_tunnel = around.kind == Kind::Udp && inner.is_ip() && transport.kind == Kind::Tcp && inner != outer;
    is_tunnel.then_some([outer, around, inner, transport])
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Remembers the train in the slot `at`, which two packets are in, if the short way is for its segments.
    pub(super) fn remember_inside(&mut self, at: usize) {
        let held = self.table.get(at);
        let [layer] = held.packet.offload.layers() else { return };
        let Some([.., transport]) = headers(held) else { return };
        let head = held.packet.head.bytes();
        let flags = head.get(transport.start() + tcp::FLAGS).copied().unwrap_or(PLAIN_FLAGS);
        let layout = &held.packet.layout;
        let is_fit = self.has_fast_path
            && self.config.profile != Profile::Lro
            && held.is_train()
            && held.verified
            && held.packet.offload.unit == Unit::Whole(Csum::Verified)
            && layer.remote.is_none()
            && flags & PLAIN_FLAGS == 0
            && layout.is_exact()
            && layout.headers().iter().all(|header| header.kind != Kind::Gre);
        if is_fit {
            self.inside.start = if layout.starts_with_ethernet() { Start::Ethernet } else { Start::Ip };
            self.inside.mask = self.masks.all(layout, head);
            if let Some(flags) = self.inside.mask.get_mut(transport.start() + tcp::FLAGS) {
                *flags = 0xff;
            }
            self.table.mark(at);
        }
    }

    /// Adds a frame that is the next segment of the remembered train to it.
    ///
    /// # Errors
    /// Any other frame, with nothing changed.
    #[inline(never)]
    pub(super) fn take_next_inside(&mut self, frame: Frame<B>) -> Result<(), Frame<B>> {
        let Some(at) = self.table.marked() else { return Err(frame) };
        let Some((ids, header_len)) = self.continues_inside(at, &frame) else { return Err(frame) };
        let len = frame.len() - header_len;
        let held = self.table.get_mut(at);
        // Its flags are those of the train.
        let why = held.add(ids, None, &[], len, false);
        held.packet.payload.push(frame.bytes.skip(header_len));
        self.stats.packets += 1;
        self.stats.checksummed_bytes += len as u64;
        self.held_packets += 1;
        if let Some(why) = why {
            self.finish(at, why);
        }
        Ok(())
    }

    /// Returns how the identifications go on and the length of the headers, if a frame is the next segment of the train
    /// in the slot `at`.
    fn continues_inside(&self, at: usize, frame: &Frame<B>) -> Option<(Ids, usize)> {
        let held = self.table.get(at);
        let (bytes, train) = (frame.bytes.bytes(), held.packet.head.bytes());
        let (front, payload) = bytes.split_at_checked(train.len())?;
        let is_plain = frame.start == self.inside.start
            && frame.csum == Csum::Unknown
            && !payload.is_empty()
            && payload.len() <= held.size
            && held.left > 0;
        let differs =
            front.iter().zip(train).zip(&self.inside.mask).fold(0, |acc, ((a, b), mask)| acc | ((a ^ b) & mask));
        if !is_plain || differs != 0 {
            return None;
        }
        let [outer, around, inner, transport] = headers(held)?;
        let has = |at: usize, len: usize| read_u16(front, at).map(usize::from) == Some(len);
        for ip in [outer, inner] {
            let from = ip.start();
            let is_good = if ip.kind == Kind::Ipv4 {
                has(from + ipv4::TOTAL_LEN, bytes.len() - from)
                    && gate_ipv4(front.get(from..ip.end())?, self.config.profile).is_ok()
            } else {
                has(from + ipv6::PAYLOAD_LEN, bytes.len() - from - ipv6::LEN)
            };
            if !is_good {
                return None;
            }
        }
        if !has(around.start() + udp::LENGTH, bytes.len() - around.start())
            || read_u32(front, transport.start() + tcp::SEQ) != Some(held.next_seq)
        {
            return None;
        }
        // Another representation of zero would not be restored.
        let field = read_u16(front, transport.start() + tcp::CHECKSUM)?;
        let summed = read_u16(front, around.start() + udp::CHECKSUM)? != 0;
        let layer = held.packet.offload.layers().first()?;
        if self.config.profile == Profile::Strict && field == 0xffff || summed == (layer.udp == LayerCsum::Absent) {
            return None;
        }
        let mut ids = held.ids;
        for (index, header) in held.packet.layout.headers().iter().enumerate() {
            if header.kind == Kind::Ipv4 {
                let [ours, theirs] = [train, front].map(|head| head.get(header.start()..header.end()).unwrap_or(&[]));
                ids = next_ids(ids, held.segs, (1 << index, header == inner), self.config.profile, (ours, theirs))
                    .ok()?;
            }
        }
        // The payload is read last, once for both checksums.
        let rest = Sum::of(payload);
        let is_right = |ip: &Header, over: &Header| {
            let len = bytes.len() - over.start();
            let mut part = Sum::of(front.get(over.start()..).unwrap_or(&[]));
            part.append(rest, payload.len());
            let mut sum = pseudo(front, ip, over, len);
            sum.append(part, len);
            sum.fold() == 0xffff
        };
        (is_right(inner, transport) && (!summed || is_right(outer, around))).then_some((ids, train.len()))
    }
}
