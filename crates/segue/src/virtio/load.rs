//! Loading received packets: each is checked against its virtio-net header.
//!
//! A train must be one plain TCP or UDP packet whose owed checksum is that of its transport header (virtio 1.2, section
//! 5.1.6.4; the checks are those of Linux `virtio_net_hdr_to_skb`, made strict), or such a packet in one tunnel.

use super::{DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use super::{MAX_UDP_SEGMENTS, Refusal, VirtioNet, tunnelled};
use crate::checksum::{Crc32c, Field, Sum};
use crate::packet::remote::field_offset;
use crate::packet::{
    Buffer, Csum, Frag, Frame, Gso, GsoKind, Kind, Layout, Packet, Start, Stop, TrainCsum, Tunnels, Unit,
};
use crate::wire::{ip_end, ipv4, ipv6, protocol, sctp, tcp};

/// The result of [`load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an owed checksum may be left to the caller"]
pub enum Loaded {
    /// The packet has the offload state that its header announced.
    Ready,
    /// The packet is single, and has a partial checksum other than that of its innermost transport header. Its state is
    /// that of a received packet. The caller computes the checksum, writes it and loads the packet again, with a header
    /// of zeros.
    Owed(Place),
    /// The packet has an SCTP packet without its checksum; otherwise it is as with [`Loaded::Owed`].
    OwedSctp(SctpPlace),
}

/// The offsets of a partial checksum that is not that of the innermost transport header, for instance inside a tunnel
/// that the parser does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the first byte that the checksum covers; it covers all bytes from there to the end.
    pub start: usize,
    /// Offset of the two bytes that take the checksum, from the start of the packet. They hold the part of the sum that
    /// is not in the packet, and lie inside it.
    pub field: usize,
}

impl Place {
    /// Returns the checksum for the sum over the bytes from [`Place::start`] to the end, those of the field included.
    ///
    /// A computed zero is all ones, as Linux writes it into every such field (`skb_checksum_help`): both mean the same
    /// except for UDP, where zero would mean that there is none (RFC 768).
    pub fn value(self, sum: Sum) -> u16 {
        Field::complete_udp(sum).value()
    }

    /// Computes the checksum of the packet in `bytes` and writes it. Places past the end change nothing.
    pub fn fill(self, bytes: &mut [u8]) {
        let Some(sum) = bytes.get(self.start..).map(Sum::of) else { return };
        crate::wire::write_u16(bytes, self.field, self.value(sum));
    }
}

/// The offsets of an SCTP packet whose checksum, a CRC32c (RFC 9260, appendix A), was left to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SctpPlace {
    /// Offset of the SCTP header.
    pub start: usize,
    /// The end of the IP packet around it, which has the whole SCTP header. Bytes behind it are not covered.
    pub end: usize,
}

impl SctpPlace {
    /// Returns the offset of the four bytes that take the checksum, from the start of the packet.
    pub const fn field(self) -> usize {
        self.start + sctp::CHECKSUM
    }

    /// Computes the checksum of the packet in `bytes` and writes it. Places past the end change nothing.
    pub fn fill(self, bytes: &mut [u8]) {
        let Some(packet) = bytes.get_mut(self.start..self.end) else { return };
        let Some(field) = packet.get_mut(sctp::CHECKSUM..).and_then(|rest| rest.first_chunk_mut()) else { return };
        *field = [0; 4];
        let mut crc = Crc32c::NEW;
        crc.add(packet);
        packet[sctp::CHECKSUM..sctp::LEN].copy_from_slice(&crc.field());
    }
}

/// The offload state that a virtio-net header declares, as checked by [`check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A packet or train with this offload state.
    Unit(Unit),
    /// A single packet with a partial checksum outside its innermost transport header.
    Owed(Place),
    /// A single packet with an SCTP packet without its checksum.
    OwedSctp(SctpPlace),
}

/// Returns the packet in `bytes`, received with `header`, unparsed, or returns `bytes` if it must be parsed ([`load`]):
/// a train, a packet that owes another checksum than that of its transport header, or one with a verified checksum that
/// may not be its innermost. The frame has the checksum state that [`load`] gives the packet.
///
/// # Errors
/// `bytes`, for [`load`].
#[inline]
pub fn frame<B: AsRef<[u8]>>(header: &VirtioNet, bytes: Frag<B>, start: Start) -> Result<Frame<B>, Frag<B>> {
    if header.gso_type != GSO_NONE {
        return Err(bytes);
    }
    let mut frame = Frame { bytes, start, csum: Csum::Unknown };
    if header.flags & NEEDS_CSUM != 0 {
        if !owes_transport(header, &frame) {
            return Err(frame.bytes);
        }
        frame.csum = Csum::Partial;
    } else if header.flags & DATA_VALID != 0 {
        // It concerns the outermost checksum only. A card verifies short frames with their padding.
        if frame.plain_ip().is_none() && !frame.is_plain_but_padded() {
            return Err(frame.bytes);
        }
        frame.csum = Csum::Verified;
    }
    Ok(frame)
}

/// Returns whether the checksum that `header` leaves to the receiver is that of the frame's transport header, where a
/// few bytes tell. Under padding it would cover that too.
#[inline]
fn owes_transport<B: AsRef<[u8]>>(header: &VirtioNet, frame: &Frame<B>) -> bool {
    frame.exact_layout().and_then(Layout::transport).is_some_and(|transport| {
        usize::from(header.csum_start) == transport.start()
            && field_offset(transport.kind) == Some(usize::from(header.csum_offset))
    })
}

/// Parses the packet in `bytes`, received with `header`, into `packet`, and sets the offload state announced by the
/// header.
///
/// `bytes` begin after the header, at the Ethernet or IP header that `start` names. Payload is not copied.
///
/// ```
/// use segue::packet::{Csum, Frag, Packet, Start, Unit};
/// use segue::virtio::{self, Loaded, Refusal, VirtioNet};
///
/// // A UDP datagram whose checksum the kernel left to its reader.
/// let bytes = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0x8c, 0x41];
/// let header = VirtioNet { flags: virtio::NEEDS_CSUM, csum_start: 20, csum_offset: 6, ..VirtioNet::default() };
/// let mut packet = Packet::default();
/// assert_eq!(virtio::load(&header, Frag::all(bytes), Start::Ip, &mut packet)?, Loaded::Ready);
/// assert_eq!(packet.offload.unit, Unit::Whole(Csum::Partial));
/// // A place outside of the packet is refused.
/// let header = VirtioNet { csum_start: 60_000, ..header };
/// assert_eq!(virtio::load(&header, Frag::all(bytes), Start::Ip, &mut packet), Err(Refusal::ChecksumBounds));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Errors
/// A [`Refusal`] where the header contradicts the bytes; the packet must not be used then.
pub fn load<B: Buffer>(
    header: &VirtioNet,
    bytes: Frag<B>,
    start: Start,
    packet: &mut Packet<B>,
) -> Result<Loaded, Refusal> {
    packet.load(bytes, start, &Tunnels::NONE);
    judge(header, packet)
}

/// Loads a packet in several ranges, such as a descriptor chain, like [`load`].
///
/// ```
/// use segue::packet::{Frag, Packet, Start};
/// use segue::virtio::{self, Loaded, VirtioNet};
///
/// let bytes = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0x8c, 0x41];
/// let header = VirtioNet { flags: virtio::NEEDS_CSUM, csum_start: 20, csum_offset: 6, ..VirtioNet::default() };
/// let ranges = [Frag::all(&bytes[..9]), Frag::all(&bytes[9..])]; // headers may cross them
/// let mut packet = Packet::default();
/// assert_eq!(virtio::load_ranges(&header, ranges, Start::Ip, &mut packet)?, Loaded::Ready);
/// # Ok::<(), virtio::Refusal>(())
/// ```
///
/// # Errors
/// As for [`load`].
pub fn load_ranges<B: Buffer>(
    header: &VirtioNet,
    ranges: impl IntoIterator<Item = Frag<B>>,
    start: Start,
    packet: &mut Packet<B>,
) -> Result<Loaded, Refusal> {
    packet.load_ranges(ranges, start, &Tunnels::NONE);
    judge(header, packet)
}

fn judge<B: Buffer>(header: &VirtioNet, packet: &mut Packet<B>) -> Result<Loaded, Refusal> {
    if packet.is_empty() {
        return Err(Refusal::Short);
    }
    match check(header, packet) {
        Ok(State::Unit(unit)) => packet.offload.unit = unit,
        Ok(State::Owed(place)) => return Ok(Loaded::Owed(place)),
        Ok(State::OwedSctp(place)) => return Ok(Loaded::OwedSctp(place)),
        Err(reason) => {
            if header.gso_type == GSO_NONE || tunnelled::load(header, packet).is_none() {
                return Err(reason);
            }
        }
    }
    Ok(Loaded::Ready)
}

/// Checks `header` against the packet that follows it, which was parsed without tunnels, and returns the offload state.
///
/// # Errors
/// A [`Refusal`]. A train inside a tunnel is refused too; [`load`] takes it.
pub fn check<B: Buffer>(header: &VirtioNet, packet: &Packet<B>) -> Result<State, Refusal> {
    if header.gso_type == GSO_NONE { check_single(header, packet) } else { check_train(header, packet) }
}

fn check_single<B: Buffer>(header: &VirtioNet, packet: &Packet<B>) -> Result<State, Refusal> {
    let received = packet.offload.unit;
    if header.flags & NEEDS_CSUM != 0 {
        let start = usize::from(header.csum_start);
        let field = start + usize::from(header.csum_offset);
        if field + 2 > packet.len() {
            return Err(Refusal::ChecksumBounds);
        }
        return Ok(if packet.layout.is_exact() && transport_place(packet) == Some((start, field)) {
            State::Unit(Unit::Whole(Csum::Partial))
        } else if let Some(place) = sctp_place(packet).filter(|place| (place.start, place.field()) == (start, field)) {
            State::OwedSctp(place)
        } else {
            State::Owed(Place { start, field })
        });
    }
    // DATA_VALID concerns the outermost checksum only, so that under a tunnel the innermost remains unknown.
    let verified = header.flags & DATA_VALID != 0
        && received == Unit::Whole(Csum::Unknown)
        && packet.layout.ip_levels() == 1
        && packet.layout.transport().is_some();
    Ok(State::Unit(if verified { Unit::Whole(Csum::Verified) } else { received }))
}

fn check_train<B: Buffer>(header: &VirtioNet, packet: &Packet<B>) -> Result<State, Refusal> {
    let layout = &packet.layout;
    let (Some(transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return Err(Refusal::GsoHeaders) };
    if layout.ip_levels() != 1 || !layout.is_exact() {
        return Err(Refusal::GsoHeaders);
    }
    let kind = match (header.gso_type, ip.kind, transport.kind) {
        (t, Kind::Ipv4, Kind::Tcp) if t & !GSO_ECN == GSO_TCPV4 => GsoKind::Tcp,
        (t, Kind::Ipv6, Kind::Tcp) if t & !GSO_ECN == GSO_TCPV6 => GsoKind::Tcp,
        (GSO_UDP_L4, _, Kind::Udp) => GsoKind::Udp,
        _ => return Err(Refusal::GsoType),
    };
    let start = usize::from(header.csum_start);
    let place = (start, start + usize::from(header.csum_offset));
    if header.flags & NEEDS_CSUM == 0 || transport_place(packet) != Some(place) {
        return Err(Refusal::GsoChecksumPlace);
    }
    if header.gso_size == 0 || header.gso_size == u16::MAX {
        return Err(Refusal::GsoSize);
    }
    let flags = packet.head.bytes().get(transport.start() + tcp::FLAGS).copied();
    if kind == GsoKind::Tcp && flags.is_none_or(|flags| flags & (tcp::SYN | tcp::RST) != 0) {
        return Err(Refusal::GsoHeaders);
    }
    let gso = Gso { kind, size: header.gso_size, fixed_ids: 0 };
    match gso.segs(packet.payload.len()) {
        1 => Ok(State::Unit(Unit::Whole(Csum::Partial))),
        segs if kind == GsoKind::Udp && segs > MAX_UDP_SEGMENTS => Err(Refusal::GsoSegments),
        _ => Ok(State::Unit(Unit::Train { csum: TrainCsum::Partial, gso })),
    }
}

/// Returns the offsets of the innermost transport header and of its checksum field.
fn transport_place<B: Buffer>(packet: &Packet<B>) -> Option<(usize, usize)> {
    let header = packet.layout.transport()?;
    Some((header.start(), header.start() + field_offset(header.kind)?))
}

/// Returns the offsets of an SCTP packet in the innermost IP packet.
fn sctp_place<B: Buffer>(packet: &Packet<B>) -> Option<SctpPlace> {
    let ip = packet.layout.headers().last().filter(|_| packet.layout.stop() == Stop::Protocol)?;
    let head = packet.head.bytes();
    let header = head.get(ip.start()..ip.end())?;
    let number = match ip.kind {
        Kind::Ipv4 => *header.get(ipv4::PROTOCOL)?,
        _ => match ipv6::chain(*header.get(ipv6::NEXT_HEADER)?, header.get(ipv6::LEN..)?) {
            ipv6::Chain::End { next, .. } => next,
            _ => return None,
        },
    };
    let (start, end) = (ip.end(), ip_end(head, ip)?);
    (number == protocol::SCTP && start + sctp::LEN <= end).then_some(SctpPlace { start, end })
}
