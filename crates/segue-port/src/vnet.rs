//! The virtio-net header in both directions: the kernel's metadata about a received packet, checked against its bytes,
//! and the header for a unit to be sent.

use std::ops::Range;

use segue::checksum::{Field, Sum};
use segue::gso::SegmentCsum;
use segue::packet::remote::field_offset;
use segue::packet::{Csum, Frag, Frame, Gso, GsoKind, Kind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue::wire::virtio::{self, VirtioNet};
use segue::wire::{tcp, udp, write_u16};

use crate::batch::{Received, RxBatch, TxUnit};
use crate::page::{FIELD_LEN, Page};
use crate::port::{Counters, Drop, Fallback};
use crate::tunnelled;

/// Largest number of datagrams of a UDP train that a kernel hands over: 128 since Linux 6.9.
const MAX_UDP_SEGMENTS: usize = 128;

/// Bytes at the start of a tunnelled train across pages that must contain all of its headers.
const MAX_FRONT: usize = 1024;

/// The metadata of a virtio-net header about its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderState {
    /// A packet or train with this offload state.
    Unit(Unit),
    /// A single packet with a partial checksum outside its innermost transport header, for instance inside a tunnel
    /// that the parser does not know. It covers the bytes from `start` to the end and belongs at `field`.
    Foreign { start: usize, field: usize },
}

/// Appends the packet in `ranges`, received with `header`, to `into`. A packet in one range that is no train and owes
/// no checksum is not parsed. A packet that contradicts its header is counted and dropped.
#[inline]
pub(crate) fn deliver(
    header: &VirtioNet,
    ranges: impl Iterator<Item = Frag<Page>> + Clone,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    let mut rest = ranges.clone();
    match (rest.next(), rest.next()) {
        (Some(only), None) => deliver_frame(header, only, start, into, counters),
        _ => deliver_parsed(header, ranges, start, into, counters),
    }
}

/// Appends the packet in `bytes`, received with `header`, to `into`, as [`deliver`] does.
#[inline]
pub(crate) fn deliver_frame(
    header: &VirtioNet,
    bytes: Frag<Page>,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    if header.gso_type == virtio::GSO_NONE && header.flags & virtio::NEEDS_CSUM == 0 {
        let mut frame = Frame { bytes, start, csum: Csum::Unknown };
        // DATA_VALID concerns the outermost checksum only. Unless that is certainly the innermost as well, the packet
        // is parsed.
        let is_marked = header.flags & virtio::DATA_VALID != 0;
        if !is_marked || frame.plain_ip().is_some() {
            frame.csum = if is_marked { Csum::Verified } else { Csum::Unknown };
            counters.rx.add(frame.len(), 1);
            return into.packets.push_back(Received::Frame(frame));
        }
        return deliver_parsed(header, std::iter::once(frame.bytes), start, into, counters);
    }
    deliver_parsed(header, std::iter::once(bytes), start, into, counters);
}

/// Parses a packet, checks it against its header and appends it, like [`deliver`].
#[inline(never)]
fn deliver_parsed(
    header: &VirtioNet,
    ranges: impl Iterator<Item = Frag<Page>> + Clone,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    let mut packet = into.pool.take();
    let mut first = ranges.clone();
    match (first.next(), first.next()) {
        (Some(only), None) => packet.load(only, start, &Tunnels::NONE),
        _ => packet.load_ranges(ranges.clone(), start, &Tunnels::NONE),
    }
    let len = packet.len();
    let segments = match check(header, &packet) {
        Ok(HeaderState::Unit(unit)) => {
            packet.offload.unit = unit;
            segments(&packet)
        }
        Ok(HeaderState::Foreign { start: from, field }) => {
            let Some(mut piece) = into.fields.take() else {
                counters.drops.add(Drop::NoPage);
                return into.pool.put(packet);
            };
            // Received memory is shared and never written: the field alone is written elsewhere.
            let sum = cut(ranges.clone(), from..len).fold(Sum::ZERO, |mut sum, part| {
                sum.add(part.bytes());
                sum
            });
            write_u16(piece.bytes_mut(), 0, complete(sum));
            counters.checksummed_bytes += (len - from) as u64;
            counters.fallbacks.add(Fallback::ForeignChecksum);
            let finished = cut(ranges.clone(), 0..field)
                .chain([Frag::all(piece.freeze(FIELD_LEN))])
                .chain(cut(ranges, field + FIELD_LEN..len));
            packet.load_ranges(finished, start, &Tunnels::NONE);
            1
        }
        Err(_) if header.gso_type != virtio::GSO_NONE && load_tunnelled(header, ranges, &mut packet) => {
            segments(&packet)
        }
        Err(reason) => {
            counters.drops.add(reason);
            return into.pool.put(packet);
        }
    };
    counters.rx.add(len, segments);
    into.packets.push_back(Received::Packet(packet));
}

/// Returns the part `range` of the bytes in `ranges`.
fn cut(ranges: impl Iterator<Item = Frag<Page>>, range: Range<usize>) -> impl Iterator<Item = Frag<Page>> {
    let mut at = 0;
    ranges.filter_map(move |frag| {
        let (from, to) = (range.start.saturating_sub(at), range.end.saturating_sub(at));
        at += frag.len();
        let part = frag.first(to).skip(from);
        (!part.is_empty()).then_some(part)
    })
}

/// Makes `packet` the tunnelled train that `header` describes. Returns whether it is one.
fn load_tunnelled(
    header: &VirtioNet,
    mut ranges: impl Iterator<Item = Frag<Page>> + Clone,
    packet: &mut Packet<Page>,
) -> bool {
    let mut copied = [0; MAX_FRONT];
    let mut rest = ranges.clone().skip(1);
    let first = ranges.next();
    let front = match (&first, rest.next()) {
        (Some(only), None) => only.bytes(),
        _ => {
            let mut at = 0;
            for part in cut(first.clone().into_iter().chain(ranges), 0..MAX_FRONT) {
                copied[at..at + part.len()].copy_from_slice(part.bytes());
                at += part.len();
            }
            &copied[..at]
        }
    };
    tunnelled::load(header, front, packet).is_some()
}

fn segments(packet: &Packet<Page>) -> usize {
    match packet.offload.unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(packet.payload.len()),
    }
}

/// Checks a header against the parsed packet behind it.
///
/// `hdr_len` is ignored: Linux sets it to 0, to the right value or to the length of the whole packet. A train must be
/// one plain TCP or UDP packet whose owed checksum is that of its transport header (virtio 1.2, section 5.1.6.4;
/// the checks are those of Linux `virtio_net_hdr_to_skb`, made strict).
pub(crate) fn check(header: &VirtioNet, packet: &Packet<Page>) -> Result<HeaderState, Drop> {
    if header.gso_type == virtio::GSO_NONE { check_single(header, packet) } else { check_train(header, packet) }
}

fn check_single(header: &VirtioNet, packet: &Packet<Page>) -> Result<HeaderState, Drop> {
    let received = packet.offload.unit;
    if header.flags & virtio::NEEDS_CSUM != 0 {
        let start = usize::from(header.csum_start);
        let field = start + usize::from(header.csum_offset);
        if field + 2 > packet.len() {
            return Err(Drop::ChecksumBounds);
        }
        return Ok(if packet.layout.is_exact() && transport_place(packet) == Some((start, field)) {
            HeaderState::Unit(Unit::Whole(Csum::Partial))
        } else {
            HeaderState::Foreign { start, field }
        });
    }
    // DATA_VALID concerns the outermost checksum only, so that under a tunnel the innermost remains unknown.
    let verified = header.flags & virtio::DATA_VALID != 0
        && received == Unit::Whole(Csum::Unknown)
        && packet.layout.ip_levels() == 1
        && packet.layout.transport().is_some();
    Ok(HeaderState::Unit(if verified { Unit::Whole(Csum::Verified) } else { received }))
}

fn check_train(header: &VirtioNet, packet: &Packet<Page>) -> Result<HeaderState, Drop> {
    let layout = &packet.layout;
    let (Some(transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return Err(Drop::GsoHeaders) };
    if layout.ip_levels() != 1 || !layout.is_exact() {
        return Err(Drop::GsoHeaders);
    }
    let kind = match (header.gso_type, ip.kind, transport.kind) {
        (t, Kind::Ipv4, Kind::Tcp) if t & !virtio::GSO_ECN == virtio::GSO_TCPV4 => GsoKind::Tcp,
        (t, Kind::Ipv6, Kind::Tcp) if t & !virtio::GSO_ECN == virtio::GSO_TCPV6 => GsoKind::Tcp,
        (virtio::GSO_UDP_L4, _, Kind::Udp) => GsoKind::Udp,
        _ => return Err(Drop::GsoType),
    };
    let start = usize::from(header.csum_start);
    let place = (start, start + usize::from(header.csum_offset));
    if header.flags & virtio::NEEDS_CSUM == 0 || transport_place(packet) != Some(place) {
        return Err(Drop::GsoChecksumPlace);
    }
    if header.gso_size == 0 || header.gso_size == u16::MAX {
        return Err(Drop::GsoSize);
    }
    let flags = packet.head.bytes().get(transport.start() + tcp::FLAGS).copied();
    if kind == GsoKind::Tcp && flags.is_none_or(|flags| flags & (tcp::SYN | tcp::RST) != 0) {
        return Err(Drop::GsoHeaders);
    }
    let gso = Gso { kind, size: header.gso_size, fixed_ids: 0 };
    match gso.segs(packet.payload.len()) {
        1 => Ok(HeaderState::Unit(Unit::Whole(Csum::Partial))),
        segs if kind == GsoKind::Udp && segs > MAX_UDP_SEGMENTS => Err(Drop::GsoSegments),
        _ => Ok(HeaderState::Unit(Unit::Train { csum: TrainCsum::Partial, gso })),
    }
}

/// Returns the start of the innermost transport header and the place of its checksum field.
fn transport_place(packet: &Packet<Page>) -> Option<(usize, usize)> {
    let header = packet.layout.transport()?;
    Some((header.start(), header.start() + field_offset(header.kind)?))
}

/// Returns the complete checksum for a partial one from the sum over the covered bytes, including the primed field.
///
/// A computed zero is written as all ones, as Linux does for every such field (`skb_checksum_help`): both mean the same
/// except for UDP, where zero would mean that there is none (RFC 768).
fn complete(sum: Sum) -> u16 {
    Field::complete_udp(sum).value()
}

/// Returns the virtio-net header for a unit to be sent.
pub(crate) fn header_of(unit: &TxUnit<'_>) -> Option<VirtioNet> {
    describe(unit.csum(), unit.gso(), unit.head(), unit.network(), unit.checksum_place())
}

/// Returns the virtio-net header for a unit with these headers. `network` is the kind of the innermost IP header,
/// `place` is the start of the transport header and the offset of the checksum in it.
fn describe(
    csum: SegmentCsum,
    gso: Option<Gso>,
    head: &[u8],
    network: Option<Kind>,
    place: Option<(usize, usize)>,
) -> Option<VirtioNet> {
    let mut header = VirtioNet::default();
    match csum {
        SegmentCsum::AsIs => {}
        SegmentCsum::Verified => header.flags = virtio::DATA_VALID,
        SegmentCsum::Partial => {
            let (start, offset) = place?;
            header.flags = virtio::NEEDS_CSUM;
            header.csum_start = u16::try_from(start).ok()?;
            header.csum_offset = u16::try_from(offset).ok()?;
        }
    }
    if let Some(gso) = gso {
        let (start, _) = place?;
        header.gso_type = match gso.kind {
            GsoKind::Udp => virtio::GSO_UDP_L4,
            GsoKind::Tcp => {
                let version = if network? == Kind::Ipv4 { virtio::GSO_TCPV4 } else { virtio::GSO_TCPV6 };
                let congested = head.get(start + tcp::FLAGS)? & tcp::CWR != 0;
                version | if congested { virtio::GSO_ECN } else { 0 }
            }
        };
        header.gso_size = gso.size;
        header.hdr_len = u16::try_from(head.len()).ok()?;
    }
    Some(header)
}

const _: () = assert!(tcp::CHECKSUM == 16 && udp::CHECKSUM == 6);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use segue::wire::virtio::{DATA_VALID, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};

    use super::*;
    use crate::page::PagePool;
    use crate::testing::{self, Fill, bytes, tcp as segment, udp as datagram};

    fn ends(v4: bool) -> (IpAddr, IpAddr) {
        let parse = |text: &str| text.parse().unwrap();
        if v4 { (parse("198.18.0.1"), parse("198.18.0.2")) } else { (parse("2001:db8::1"), parse("2001:db8::2")) }
    }

    fn tcp_packet(v4: bool, flags: u8, payload: usize) -> Vec<u8> {
        testing::ip_packet(ends(v4), 6, 16, &segment((1, 2), 3, 4, flags, &bytes(payload, 0)), Fill::Primed)
    }

    fn udp_packet(v4: bool, payload: usize) -> Vec<u8> {
        testing::ip_packet(ends(v4), 17, 6, &datagram(1, 2, &bytes(payload, 0)), Fill::Primed)
    }

    fn owed(start: u16, offset: u16, gso_type: u8, gso_size: u16) -> VirtioNet {
        VirtioNet {
            flags: NEEDS_CSUM,
            gso_type,
            gso_size,
            csum_start: start,
            csum_offset: offset,
            ..VirtioNet::default()
        }
    }

    fn judge(header: VirtioNet, packet: &[u8]) -> Result<HeaderState, Drop> {
        let mut pages = PagePool::new(1);
        check(&header, &testing::load(&mut pages, packet))
    }

    fn train(kind: GsoKind, size: u16) -> Result<HeaderState, Drop> {
        Ok(HeaderState::Unit(Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } }))
    }

    const PARTIAL: Result<HeaderState, Drop> = Ok(HeaderState::Unit(Unit::Whole(Csum::Partial)));

    #[test]
    fn a_frame_that_is_not_parsed_has_the_state_that_the_check_gives_a_parsed_one() {
        let udp = udp_packet(true, 100);
        let (mut no_checksum, mut fragment) = (udp.clone(), udp.clone());
        no_checksum[26..28].fill(0);
        fragment[6] |= 0x20;
        let inside = testing::ip_packet(ends(true), 4, 0, &udp, Fill::Primed);
        let padded = [&tcp_packet(true, 0x10, 0)[..], &[0; 6]].concat();
        let short = tcp_packet(false, 0x10, 10)[..50].to_vec();
        let plain = [tcp_packet(true, 0x10, 100), tcp_packet(false, 0x10, 100), udp, udp_packet(false, 9)];
        let others = [no_checksum, fragment, inside, padded, short, vec![0x45], vec![7; 60]];
        for (at, packet) in plain.iter().chain(&others).enumerate() {
            for flags in [0, DATA_VALID] {
                let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
                let header = VirtioNet { flags, ..VirtioNet::default() };
                let ranges = testing::ranges(&mut PagePool::new(1), packet, usize::MAX);
                deliver(&header, ranges.into_iter(), Start::Ip, &mut into, &mut counters);
                let is_frame = matches!(into.packets.front(), Some(Received::Frame(_)));
                assert_eq!(is_frame, flags == 0 || at < plain.len(), "packet {at}, flags {flags}");
                let got = into.pop_packet().expect("nothing is dropped");
                assert_eq!(
                    Ok(HeaderState::Unit(got.offload.unit)),
                    judge(header, packet),
                    "packet {at}, flags {flags}"
                );
                assert_eq!((testing::flat(&got), counters.rx.bytes), (packet.clone(), packet.len() as u64));
            }
        }
    }

    #[test]
    fn trains_of_each_kind_are_taken_whatever_the_header_length_says() {
        for hdr_len in [0, 40, 60, 5000, 65_535] {
            let with = |header: VirtioNet| VirtioNet { hdr_len, ..header };
            let tcp = |v4| tcp_packet(v4, 0x10, 3000);
            assert_eq!(judge(with(owed(20, 16, GSO_TCPV4, 1000)), &tcp(true)), train(GsoKind::Tcp, 1000));
            assert_eq!(judge(with(owed(20, 16, GSO_TCPV4 | GSO_ECN, 1000)), &tcp(true)), train(GsoKind::Tcp, 1000));
            assert_eq!(judge(with(owed(40, 16, GSO_TCPV6, 1000)), &tcp(false)), train(GsoKind::Tcp, 1000));
            assert_eq!(judge(with(owed(20, 6, GSO_UDP_L4, 999)), &udp_packet(true, 3000)), train(GsoKind::Udp, 999));
            assert_eq!(judge(with(owed(40, 6, GSO_UDP_L4, 2999)), &udp_packet(false, 3000)), train(GsoKind::Udp, 2999));
        }
    }

    #[test]
    fn a_train_that_fits_one_segment_is_a_single_packet() {
        assert_eq!(judge(owed(20, 16, GSO_TCPV4, 1000), &tcp_packet(true, 0x10, 1000)), PARTIAL);
        assert_eq!(judge(owed(20, 16, GSO_TCPV4, 1000), &tcp_packet(true, 0x10, 0)), PARTIAL);
        assert_eq!(judge(owed(40, 6, GSO_UDP_L4, 3000), &udp_packet(false, 5)), PARTIAL);
    }

    #[test]
    fn a_type_that_does_not_fit_the_packet_is_refused() {
        let tcp = tcp_packet(true, 0x10, 3000);
        for gso_type in [GSO_TCPV6, GSO_UDP_L4, GSO_UDP, 2, 0x21, 0x41, 0x61, 0x11, GSO_ECN] {
            assert_eq!(judge(owed(20, 16, gso_type, 1000), &tcp), Err(Drop::GsoType), "{gso_type:#x}");
        }
        let udp = udp_packet(true, 3000);
        for gso_type in [GSO_TCPV4, GSO_UDP, GSO_UDP_L4 | GSO_ECN] {
            assert_eq!(judge(owed(20, 6, gso_type, 1000), &udp), Err(Drop::GsoType), "{gso_type:#x}");
        }
    }

    #[test]
    fn a_train_must_owe_its_own_transport_checksum() {
        let tcp = tcp_packet(true, 0x10, 3000);
        for (start, offset) in [(20, 6), (20, 18), (22, 14), (0, 36), (20, 65_535), (65_535, 16), (40, 16)] {
            let header = owed(start, offset, GSO_TCPV4, 1000);
            assert_eq!(judge(header, &tcp), Err(Drop::GsoChecksumPlace), "{start} {offset}");
        }
        let header = VirtioNet { flags: 0, ..owed(20, 16, GSO_TCPV4, 1000) };
        assert_eq!(judge(header, &tcp), Err(Drop::GsoChecksumPlace));
        assert_eq!(judge(VirtioNet { flags: DATA_VALID, ..header }, &tcp), Err(Drop::GsoChecksumPlace));
    }

    #[test]
    fn sizes_and_counts_have_limits() {
        for size in [0, u16::MAX] {
            assert_eq!(judge(owed(20, 16, GSO_TCPV4, size), &tcp_packet(true, 0x10, 3000)), Err(Drop::GsoSize));
            assert_eq!(judge(owed(20, 6, GSO_UDP_L4, size), &udp_packet(true, 3000)), Err(Drop::GsoSize));
        }
        assert_eq!(judge(owed(20, 6, GSO_UDP_L4, 10), &udp_packet(true, 1280)), train(GsoKind::Udp, 10));
        assert_eq!(judge(owed(20, 6, GSO_UDP_L4, 10), &udp_packet(true, 1281)), Err(Drop::GsoSegments));
    }

    #[test]
    fn a_train_without_its_own_clean_headers_is_refused() {
        let header = owed(20, 16, GSO_TCPV4, 100);
        for flags in [0x12, 0x14] {
            assert_eq!(judge(header, &tcp_packet(true, flags, 300)), Err(Drop::GsoHeaders), "{flags:#x}");
        }
        let good = tcp_packet(true, 0x10, 300);
        assert_eq!(judge(header, &good), train(GsoKind::Tcp, 100));
        let mut padded = good.clone();
        padded.push(0);
        let mut fragment = good.clone();
        fragment[6] = 0x20;
        let mut long_header = good.clone();
        long_header[32] = 0xf0;
        long_header.truncate(70);
        let mut tunnelled = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 4, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        tunnelled.extend(&good);
        let len = (tunnelled.len() as u16).to_be_bytes();
        tunnelled[2..4].copy_from_slice(&len);
        for (name, packet) in [("padded", &padded), ("fragment", &fragment), ("cut", &long_header)] {
            assert_eq!(judge(header, packet), Err(Drop::GsoHeaders), "{name}");
        }
        assert_eq!(judge(owed(40, 16, GSO_TCPV4, 100), &tunnelled), Err(Drop::GsoHeaders));
        for len in 0..20 {
            assert_eq!(judge(header, &good[..len]), Err(Drop::GsoHeaders));
        }
    }

    #[test]
    fn an_owed_checksum_is_ours_only_in_the_transport_header() {
        let udp = udp_packet(false, 100);
        assert_eq!(judge(owed(40, 6, 0, 0), &udp), PARTIAL);
        let foreign = |start, field| Ok(HeaderState::Foreign { start, field });
        assert_eq!(judge(owed(48, 10, 0, 0), &udp), foreign(48, 58));
        assert_eq!(judge(owed(0, 146, 0, 0), &udp), foreign(0, 146), "the last two bytes");
        for (start, offset) in [(0, 147), (147, 0), (65_535, 65_535), (148, 0)] {
            assert_eq!(judge(owed(start, offset, 0, 0), &udp), Err(Drop::ChecksumBounds), "{start} {offset}");
        }
        // Behind the end of the IP packet the kernel's sum would run into the padding.
        let padded = [&udp[..], &[1, 2]].concat();
        assert_eq!(judge(owed(40, 6, 0, 0), &padded), foreign(40, 46));
    }

    #[test]
    fn only_the_outermost_checksum_can_be_marked_as_verified() {
        let header = VirtioNet { flags: DATA_VALID, ..VirtioNet::default() };
        let whole = |csum| Ok(HeaderState::Unit(Unit::Whole(csum)));
        let udp = udp_packet(true, 100);
        assert_eq!(judge(header, &udp), whole(Csum::Verified));
        assert_eq!(judge(VirtioNet::default(), &udp), whole(Csum::Unknown));
        assert_eq!(judge(VirtioNet { flags: 0xf0, ..header }, &udp), whole(Csum::Unknown));
        let mut none = udp.clone();
        none[26..28].fill(0);
        assert_eq!(judge(header, &none), whole(Csum::Absent));
        let mut tunnelled = vec![0x45, 0, 0, 148, 0, 1, 0x40, 0, 64, 4, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        tunnelled.extend(&udp);
        assert_eq!(judge(header, &tunnelled), whole(Csum::Unknown));
    }

    /// Builds an IPv4 packet of a protocol that the parser does not know, around one with a partial checksum.
    fn foreign(v4: bool, len: usize) -> (VirtioNet, Vec<u8>, usize) {
        let inner = udp_packet(v4, len);
        let mut around = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 200, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        around[2..4].copy_from_slice(&((20 + inner.len()) as u16).to_be_bytes());
        around.extend(&inner);
        let start = around.len() - inner.len() + if v4 { 20 } else { 40 };
        let header = VirtioNet { flags: NEEDS_CSUM, csum_start: start as u16, csum_offset: 6, ..VirtioNet::default() };
        (header, around, start)
    }

    #[test]
    fn a_foreign_checksum_is_finished_without_touching_or_copying_what_was_received() {
        for (v4, payload) in [(true, 0), (true, 1), (false, 77), (false, 1000)] {
            let (header, packet, start) = foreign(v4, payload);
            let inner = start - if v4 { 20 } else { 40 };
            assert!(!testing::checksum_is_good(&packet[inner..]));
            // In one piece, and cut so that the field lies across two.
            for len in [packet.len(), start + 7, 5, 64] {
                let mut pages = PagePool::new(1);
                let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
                let ranges = testing::ranges(&mut pages, &packet, len);
                deliver(&header, ranges.clone().into_iter(), Start::Ip, &mut into, &mut counters);
                let done = into.pop_packet().expect("it needs no page");
                let bytes = testing::flat(&done);
                assert!(testing::checksum_is_good(&bytes[inner..]), "{v4} {payload} {len}");
                assert_eq!((&bytes[..start + 6], &bytes[start + 8..]), (&packet[..start + 6], &packet[start + 8..]));
                assert_eq!(ranges.iter().flat_map(|frag| frag.bytes().to_vec()).collect::<Vec<_>>(), packet);
                assert_eq!(counters.fallbacks.of(Fallback::ForeignChecksum), 1);
                assert_eq!((counters.rx.packets, counters.rx.bytes), (1, packet.len() as u64));
                assert_eq!(into.fields.in_use(), 1);
                into.pool.put(done);
                assert_eq!(into.fields.in_use(), 0, "the piece comes back");
            }
        }
    }

    #[test]
    fn thousands_of_foreign_checksums_take_no_page() {
        let (header, packet, _) = foreign(true, 1000);
        let mut pages = PagePool::new(1);
        let (mut into, mut counters) = (RxBatch::new(0), Counters::default());
        let ranges = testing::ranges(&mut pages, &packet, packet.len());
        for _ in 0..5_000 {
            deliver(&header, ranges.clone().into_iter(), Start::Ip, &mut into, &mut counters);
        }
        assert_eq!((into.packets.len(), counters.drops.total()), (5_000, 0));
    }

    #[test]
    fn a_described_train_reads_back_as_the_same_train() {
        let mut pages = PagePool::new(1);
        for (v4, flags, gso_type) in [(true, 0x10, GSO_TCPV4), (false, 0x90, GSO_TCPV6 | GSO_ECN)] {
            let packet = testing::load(&mut pages, &tcp_packet(v4, flags, 3000));
            let gso = Gso { kind: GsoKind::Tcp, size: 1400, fixed_ids: 0 };
            let start = if v4 { 20 } else { 40 };
            let header = describe(
                SegmentCsum::Partial,
                Some(gso),
                packet.head.bytes(),
                packet.layout.inner_ip().map(|ip| ip.kind),
                Some((start, 16)),
            )
            .unwrap();
            assert_eq!((header.gso_type, usize::from(header.hdr_len)), (gso_type, packet.head.len()));
            assert_eq!(check(&header, &packet), train(GsoKind::Tcp, 1400));
        }
        assert_eq!(describe(SegmentCsum::Partial, None, &[0x45], None, None), None);
        assert_eq!(describe(SegmentCsum::Verified, None, &[0x45], None, None).unwrap().flags, DATA_VALID);
    }
}
