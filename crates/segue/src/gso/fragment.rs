//! IP fragmentation of a packet that is longer than its port's MTU.
//!
//! Which packet is cut is a matter of policy ([`Fragment`]). A router cuts the outermost packet, and only IPv4 without
//! DF. The sender cuts the innermost one, so that each tunnel packet carries one fragment and no outer packet is ever
//! fragmented: lengths, identification and checksums of the outer headers are made anew for each, and a remote checksum
//! option for the transport header is withdrawn, because that header's checksum covers bytes of other packets and is
//! completed before the cut.
//!
//! Rules: offsets in units of 8 bytes, more-fragments on all but the last, one identification (RFC 791, section 3.2;
//! RFC 8200, section 4.5); the first fragment holds the whole chain of headers (RFC 7112); options that are not to be
//! copied are in the first only, and no-operations replace them in the others (RFC 791, section 3.1).

use super::arena::FragmentIds;
use super::check::{check, is_routed, pseudo, transport};
use super::limits::{Fragment, FreeTags, Limits, MAX_IP_LEN};
use super::refusal::Refusal;
use super::whole;
use crate::checksum::{Field, Sum};
use crate::packet::{Buffer, Csum, Header, Kind, Layer, LayerCsum, Layout, Packet, Remote, Stop, Unit, remote};
use crate::wire::ipv6::Chain;
use crate::wire::parse::MAX_HEADER_BYTES;
use crate::wire::{ethernet, ethertype, gre, ipv4, ipv6, protocol, read_u16, udp, write_u16, write_u32};

/// A fragment: the part of the payload that it carries.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Index of the fragment in its packet.
    index: usize,
    /// Offset of the fragment's first byte of payload.
    pub(super) start: usize,
    /// Length of the fragment's payload, in bytes.
    pub(super) len: usize,
    last: bool,
}

impl Piece {
    /// Returns whether the fragment has the transport header.
    pub(super) fn is_first(&self) -> bool {
        self.index == 0
    }
}

/// The plan for splitting a packet into fragments.
pub(super) struct Cut<'a> {
    /// All headers; the transport checksum is still primed if it is to be completed.
    head: [u8; MAX_HEADER_BYTES],
    head_len: usize,
    layout: &'a Layout,
    layers: &'a [Layer],
    /// Index of the IP header whose packet is fragmented.
    ip: usize,
    /// End of the part of the headers that every fragment has.
    common: usize,
    /// Offset of the next-header field that is replaced by that of a fragment header; IPv6 only.
    next_at: Option<usize>,
    /// Number of bytes of payload to be fragmented, without padding.
    total: usize,
    /// Largest number of bytes after the headers that every fragment has.
    room: usize,
    /// Fragment offset of the packet itself, in bytes, because it may be a fragment.
    base: usize,
    /// Whether more fragments follow the packet itself.
    more: bool,
    id: u32,
    /// Whether the sum of the payload is needed to complete the transport checksum.
    completes: bool,
    /// Whether outer checksums need the sum of each fragment's payload.
    has_outer: bool,
    outer_csum: bool,
    /// Number of bytes of payload that were summed already.
    pub(super) summed: u64,
}

/// Returns whether `packet`, a single packet, is longer than the MTU.
pub(super) fn is_needed<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> bool {
    packet.len() > limits.mtu && len(packet) - uncounted(packet.head.bytes(), &packet.layout, limits) > limits.mtu
}

/// Returns the length of a packet in bytes, without padding.
fn len<B: Buffer>(packet: &Packet<B>) -> usize {
    let (layout, end) = (&packet.layout, packet.layout.end());
    let has_end = !layout.is_exact() && layout.outer_ip().is_some() && end >= packet.head.len();
    if has_end { end.min(packet.len()) } else { packet.len() }
}

/// Returns the number of leading bytes that do not count towards the MTU: up to the outermost IP header, or up to the
/// end of the link headers of another protocol, less the tags that count.
pub(super) fn uncounted(head: &[u8], layout: &Layout, limits: &Limits) -> usize {
    let l3 = layout.outer_ip().map_or(layout.header_len(), Header::start);
    let mut tags = layout.headers().iter().take_while(|h| !h.is_ip()).filter(|h| h.kind == Kind::Vlan);
    // A tag's type is the last field of the header in front of it.
    let is_8021q = |tag: &Header| tag.start().checked_sub(2).and_then(|at| read_u16(head, at)) == Some(ethertype::VLAN);
    let counted = match limits.free_tags {
        FreeTags::All => 0,
        FreeTags::First => tags.next().map_or(0, |first| usize::from(!is_8021q(first)) + tags.count()),
        FreeTags::None => tags.count(),
    };
    l3 - ethernet::VLAN_LEN * counted
}

/// Checks that the checksums of these IPv4 headers are right, because they are computed anew in each fragment.
fn check_sums(head: &[u8], headers: &[Header]) -> Result<(), Refusal> {
    let is_right =
        |header: &Header| header.kind != Kind::Ipv4 || Sum::of(&head[header.start()..header.end()]).fold() == 0xffff;
    if headers.iter().all(is_right) { Ok(()) } else { Err(Refusal::IpChecksum) }
}

impl<'a> Cut<'a> {
    pub(super) fn new<B: Buffer>(
        packet: &'a Packet<B>,
        limits: &Limits,
        ids: &mut FragmentIds,
    ) -> Result<Cut<'a>, Refusal> {
        let (layout, layers) = (&packet.layout, packet.offload.layers());
        let Unit::Whole(csum) = packet.offload.unit else { return Err(Refusal::Train) };
        let (found, clears_df) = match limits.fragment {
            Fragment::Never => return Err(Refusal::TooBig),
            Fragment::Router => (layout.outer_ip_index(), false),
            Fragment::Sender { clears_df } => (layout.inner_ip_index(), clears_df),
        };
        let ip = found.ok_or(Refusal::TooBig)?;
        let header = &layout.headers()[ip];
        let is_v4 = header.kind == Kind::Ipv4;
        if !is_v4 && limits.fragment == Fragment::Router {
            return Err(Refusal::TooBig);
        }
        let has_layers = layout.headers()[..ip].iter().any(Header::is_ip);
        let has_lengths = match limits.fragment {
            // What is inside the outermost packet is not read, unless a checksum is to be completed there.
            Fragment::Router if csum != Csum::Partial => true,
            _ => layout.is_exact() || layout.is_padded() && !has_layers,
        };
        if !has_lengths {
            return Err(Refusal::Trailing);
        }
        check(packet.head.bytes(), layout)?;
        check_sums(packet.head.bytes(), &layout.headers()[..=ip])?;

        let mut cut = Cut {
            head: [0; MAX_HEADER_BYTES],
            head_len: packet.head.len(),
            layout,
            layers,
            ip,
            common: header.end(),
            next_at: None,
            total: len(packet) - packet.head.len(),
            room: 0,
            base: 0,
            more: false,
            id: 0,
            completes: csum == Csum::Partial,
            has_outer: false,
            outer_csum: limits.outer_csum,
            summed: 0,
        };
        cut.head[..cut.head_len].copy_from_slice(packet.head.bytes());
        let is_df = if is_v4 { cut.read_v4(header, clears_df)? } else { cut.read_v6(header)? };
        cut.measure(limits)?;
        if has_layers {
            cut.open_layers()?;
        } else {
            // Owed checksums cover the whole packet, so no later stage could complete them.
            let bare = Limits { csum: false, outer_csum: false, ..*limits };
            cut.summed = whole::fill(&mut cut.head[..cut.head_len], packet, &bare)?.summed;
            cut.completes = false;
        }
        let addresses = if is_v4 { ipv4::SRC.start..ipv4::DST.end } else { ipv6::SRC.start..ipv6::DST.end };
        if !is_v4 || is_df {
            cut.id = ids.next(&cut.head[header.start() + addresses.start..header.start() + addresses.end]);
        }
        Ok(cut)
    }

    /// Reads the fields of an IPv4 header to be fragmented and returns whether DF is set.
    fn read_v4(&mut self, header: &Header, clears_df: bool) -> Result<bool, Refusal> {
        let word = read_u16(&self.head, header.start() + ipv4::FRAGMENT).unwrap_or(0);
        let is_df = word & ipv4::DF != 0;
        if is_df && !clears_df {
            return Err(Refusal::DontFragment);
        }
        self.base = usize::from(word & ipv4::OFFSET) * 8;
        self.more = word & ipv4::MF != 0;
        if self.base == 8 && self.head[header.start() + ipv4::PROTOCOL] == protocol::TCP {
            return Err(Refusal::Overlap);
        }
        self.id = u32::from(read_u16(&self.head, header.start() + ipv4::ID).unwrap_or(0));
        let len = self.fragmentable();
        if self.more && !len.is_multiple_of(8) {
            return Err(Refusal::Ragged);
        }
        if usize::from(header.len) + self.base + len > MAX_IP_LEN {
            return Err(Refusal::Length);
        }
        Ok(is_df)
    }

    fn read_v6(&mut self, header: &Header) -> Result<bool, Refusal> {
        let bytes = &self.head[header.start()..header.end()];
        if self.layout.headers().len() == self.ip + 1 {
            match self.layout.stop() {
                Stop::Fragment => return Err(Refusal::Fragment),
                // Of extension headers that are not listed some may have to be in each fragment.
                Stop::TooDeep if ipv6::chain(bytes[ipv6::NEXT_HEADER], &bytes[ipv6::LEN..]) == Chain::Truncated => {
                    return Err(Refusal::TooBig);
                }
                _ => {}
            }
        }
        let (len, next_at) = ipv6::unfragmentable(bytes);
        self.common = header.start() + len;
        self.next_at = Some(header.start() + next_at);
        if len - ipv6::LEN + self.fragmentable() > MAX_IP_LEN {
            return Err(Refusal::Length);
        }
        Ok(false)
    }

    /// Returns the number of bytes after the headers that every fragment has.
    fn fragmentable(&self) -> usize {
        self.head_len - self.common + self.total
    }

    /// Computes how many bytes a fragment holds.
    fn measure(&mut self, limits: &Limits) -> Result<(), Refusal> {
        let front = self.common_len() - uncounted(&self.head[..self.head_len], self.layout, limits);
        self.room = limits.mtu.saturating_sub(front);
        let headers = self.head_len - self.common;
        if self.room < 8 || self.room & !7 < headers {
            return Err(Refusal::Tiny);
        }
        Ok(())
    }

    /// Returns the length of the headers that every fragment has, a fragment header included.
    fn common_len(&self) -> usize {
        self.common + if self.next_at.is_some() { ipv6::FRAGMENT_LEN } else { 0 }
    }

    /// Prepares the tunnel headers around the packet.
    fn open_layers(&mut self) -> Result<(), Refusal> {
        if self.layers.len() != self.layout.headers()[..self.ip].iter().filter(|h| h.is_ip()).count() {
            return Err(Refusal::Levels);
        }
        whole::check_checksum_offsets(&self.head[..self.head_len], self.layout, self.layers)?;
        if self.completes {
            transport(self.layout)?;
        }
        let mut level = 0;
        for (index, header) in self.layout.headers()[..self.ip].iter().enumerate() {
            level += usize::from(header.is_ip());
            let Some(layer) = level.checked_sub(1).and_then(|k| self.layers.get(k)).copied() else { continue };
            match header.kind {
                Kind::Udp if layer.udp != LayerCsum::Absent => {
                    if layer.udp == LayerCsum::Unknown {
                        return Err(Refusal::Unverified);
                    }
                    if index.checked_sub(1).is_some_and(|ip| is_routed(&self.head, &self.layout.headers()[ip])) {
                        return Err(Refusal::Routing);
                    }
                    self.has_outer = true;
                }
                Kind::Gre => {
                    let flags = read_u16(&self.head, header.start()).unwrap_or(0);
                    if flags & gre::SEQ != 0 {
                        return Err(Refusal::Sequence);
                    }
                    if layer.gre == LayerCsum::Unknown {
                        return Err(Refusal::Unverified);
                    }
                    self.has_outer |= layer.gre != LayerCsum::Absent && layer.remote != Some(Remote::Gre);
                }
                _ if layer.remote == Some(Remote::Transport) => {
                    remote::withdraw(&mut self.head[header.start()..header.end()], header.kind);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the number of fragments.
    pub(super) fn count(&self) -> usize {
        1 + self.fragmentable().saturating_sub(self.room).div_ceil(self.room & !7)
    }

    /// Returns the largest header length of a fragment, in bytes.
    pub(super) fn max_header_len(&self) -> usize {
        self.common_len() + self.head_len - self.common
    }

    /// Returns the fragment with this index that begins at `at` bytes of payload.
    pub(super) fn piece(&self, index: usize, at: usize) -> Piece {
        let headers = if index == 0 { self.head_len - self.common } else { 0 };
        let left = self.total - at;
        if headers + left <= self.room {
            return Piece { index, start: at, len: left, last: true };
        }
        Piece { index, start: at, len: (self.room & !7) - headers, last: false }
    }

    /// Returns the fragment after `piece`.
    pub(super) fn next(&self, piece: &Piece) -> Option<Piece> {
        (!piece.last).then(|| self.piece(piece.index + 1, piece.start + piece.len))
    }

    /// Returns the header length of `piece`, in bytes.
    pub(super) fn head_len(&self, piece: &Piece) -> usize {
        if piece.is_first() { self.max_header_len() } else { self.common_len() }
    }

    /// Returns whether the payload must be summed.
    pub(super) fn sums_payload(&self) -> bool {
        self.completes || self.has_outer
    }

    /// Writes the headers of `piece` into `head`, except the checksums around the fragmented packet.
    pub(super) fn write(&self, head: &mut [u8], piece: &Piece) {
        let header = self.layout.headers()[self.ip];
        let (common, rest) = head.split_at_mut(self.common);
        common.copy_from_slice(&self.head[..self.common]);
        let fragmentable = if piece.is_first() { self.head_len - self.common } else { 0 };
        let offset = self.base + piece.start + if piece.is_first() { 0 } else { self.head_len - self.common };
        let more = !piece.last || self.more;
        let rest = match self.next_at {
            None => {
                let ip = &mut common[header.start()..];
                write_u16(ip, ipv4::FRAGMENT, (offset / 8) as u16 | if more { ipv4::MF } else { 0 });
                write_u16(ip, ipv4::ID, self.id as u16);
                if offset != 0 {
                    ipv4::drop_uncopied_options(ip);
                }
                rest
            }
            Some(next_at) => {
                let (fragment, rest) = rest.split_at_mut(ipv6::FRAGMENT_LEN);
                fragment[0] = core::mem::replace(&mut common[next_at], protocol::FRAGMENT);
                fragment[1] = 0;
                write_u16(fragment, ipv6::FRAGMENT, offset as u16 | if more { ipv6::MF } else { 0 });
                write_u32(fragment, ipv6::FRAGMENT_ID, self.id);
                rest
            }
        };
        rest.copy_from_slice(&self.head[self.common..self.common + fragmentable]);
        let behind = head.len() + piece.len;
        for (index, outer) in self.layout.headers()[..=self.ip].iter().enumerate() {
            let start = outer.start();
            match outer.kind {
                Kind::Ipv4 => {
                    write_u16(head, start + ipv4::TOTAL_LEN, (behind - start) as u16);
                    if index != self.ip {
                        let id = read_u16(head, start + ipv4::ID).unwrap_or(0).wrapping_add(piece.index as u16);
                        write_u16(head, start + ipv4::ID, id);
                    }
                    write_u16(head, start + ipv4::CHECKSUM, 0);
                    let sum = Sum::of(&head[start..outer.end()]);
                    write_u16(head, start + ipv4::CHECKSUM, Field::complete(sum).value());
                }
                Kind::Ipv6 => {
                    write_u16(head, start + ipv6::PAYLOAD_LEN, (behind - start - ipv6::LEN) as u16);
                }
                Kind::Udp => {
                    write_u16(head, start + udp::LENGTH, (behind - start) as u16);
                }
                _ => {}
            }
        }
    }

    /// Completes the transport checksum in the first fragment's headers; `total` is the sum of all payload.
    pub(super) fn complete(&self, head: &mut [u8], total: Sum) {
        let Some(header) = self.layout.transport().filter(|_| self.completes) else { return };
        let Some(field) = remote::field_offset(header.kind) else { return };
        let start = header.start() + self.common_len() - self.common;
        let mut sum = Sum::of(&head[start..]);
        sum.append(total, self.total);
        let field_value = if header.kind == Kind::Udp { Field::complete_udp(sum) } else { Field::complete(sum) };
        write_u16(head, start + field, field_value.value());
    }

    /// Writes the outer checksums around the fragment in `head`; `payload` is the sum of its payload.
    pub(super) fn seal(&self, head: &mut [u8], piece: &Piece, payload: Sum) {
        if !self.has_outer {
            return;
        }
        let headers = self.layout.headers();
        let mut level = headers[..self.ip].iter().filter(|h| h.is_ip()).count();
        for (index, header) in headers[..self.ip].iter().enumerate().rev() {
            let layer = level.checked_sub(1).and_then(|k| self.layers.get(k)).copied().unwrap_or(Layer::NONE);
            let start = header.start();
            let sum_from = |head: &[u8], mut sum: Sum| {
                sum.add(&head[start..]);
                sum.append(payload, piece.len);
                sum
            };
            match header.kind {
                Kind::Udp if layer.udp != LayerCsum::Absent => {
                    let ip = index.checked_sub(1).and_then(|ip| headers.get(ip));
                    let len = head.len() - start + piece.len;
                    let pseudo = ip.and_then(|ip| pseudo(head, ip, Kind::Udp, len)).unwrap_or(Sum::ZERO);
                    let field = if level == 1 && self.outer_csum {
                        Field::primed(pseudo)
                    } else {
                        write_u16(head, start + udp::CHECKSUM, 0);
                        Field::complete_udp(sum_from(head, pseudo))
                    };
                    write_u16(head, start + udp::CHECKSUM, field.value());
                }
                Kind::Gre if layer.gre != LayerCsum::Absent => {
                    write_u16(head, start + gre::CHECKSUM, 0);
                    if layer.remote != Some(Remote::Gre) {
                        let field = Field::complete(sum_from(head, Sum::ZERO));
                        write_u16(head, start + gre::CHECKSUM, field.value());
                    }
                }
                _ => {}
            }
            level -= usize::from(header.is_ip());
        }
    }
}
