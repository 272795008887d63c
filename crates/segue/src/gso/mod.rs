//! Segmentation: cuts a train into the packets that a port can take, as late as possible.
//!
//! [`split`] is the only way out of the engine. A single packet becomes one segment whose owed checksums are filled in as
//! far as the port cannot do it. A train stays whole where the port takes trains of its kind, is cut into smaller trains
//! where it is too large, and into single packets only where the port can do nothing. Every segment is a copy of the
//! headers with lengths, IPv4 identification, TCP sequence number and flags, GRE sequence number and checksums made its
//! own, at every level of a tunnel.
//!
//! The scatter form ([`split`]) writes headers to an [`Arena`] and names ranges of the packet's payload; the linear form
//! ([`split_linear`]) writes whole frames, copying and summing the payload in one pass. Both use the same rules and give
//! the same bytes.
//!
//! What each payload byte costs: nothing where the port or the far end of a tunnel computes the transport checksum, one
//! pass otherwise. Outer checksums never cost a second pass: the part of a packet that a good checksum covers sums to the
//! complement of its pseudo header, whatever the data (Linux calls this local checksum offload).
//!
//! A single packet that is longer than the port's MTU becomes IP fragments, by the same rules for both forms, where
//! [`Limits::fragment`] allows it; a train never does, each of its segments being a packet of its own.
//!
//! The payload of a train is taken to be the stream: padding must have been cut off before it became one.

mod arena;
mod cut;
mod fragment;
mod plan;
mod whole;

pub use arena::{Arena, FragmentIds, Frame, Frames};
pub use cut::cut;
pub use fragment::{Fragment, FreeTags};

use core::ops::Range;

use crate::checksum::{Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Csum, Frag, Gso, Header, Kind, Layout, Packet, Payload, Remote, Unit};
use crate::wire::gre::Gre;
use crate::wire::{ipv4, ipv6, protocol, tcp, udp};

/// Most segments that one train is cut into.
pub const MAX_SEGS: usize = 65_535;

/// Smallest TCP segment that a train from outside is cut into, in bytes of payload.
///
/// A smaller size with a checksum still owed is raised to this, as maintained Linux kernels do for virtio headers, so that
/// 64 KiB cannot turn into 65,536 packets (CVE-2019-11477 and its relatives). Trains that were merged from checked segments keep their
/// size, whatever it is: that many packets really came in.
pub const MIN_TCP_SIZE: u16 = 8;

/// Most bytes from an IPv4 header, or from the end of an IPv6 header, to the end of a packet.
const MAX_IP_LEN: usize = 65_535;

/// What a port can take. [`Limits::NONE`] is the place to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// It completes a primed transport checksum, at any offset. Without this it takes no trains either.
    pub csum: bool,
    /// It computes the outermost UDP checksum of a tunnel packet. The field is then left holding the pseudo-header sum.
    pub outer_csum: bool,
    /// It takes TCP trains over IPv4.
    pub tso4: bool,
    /// It takes TCP trains over IPv6.
    pub tso6: bool,
    /// It takes UDP trains (`UDP_L4`), over both.
    pub uso: bool,
    /// Largest train, in bytes of the frame. Up to 65,791 (65,535 and room for headers in front of IP) no train exceeds what
    /// an IP length field can say. A port that states more takes TCP trains outside tunnels over that, whose length is then
    /// zero (what Linux calls BIG TCP).
    pub max_bytes: usize,
    /// Most segments of a TCP train.
    pub max_segs: usize,
    /// Most segments of a UDP train.
    pub max_udp_segs: usize,
    /// Most pieces of a train: one for its head, one for each payload range. Single packets are not cut for this.
    pub max_pieces: usize,
    /// Largest piece of payload, in bytes, at least 1: a range that is larger counts as several pieces of a train.
    pub max_piece: usize,
    /// Most bytes of headers of a train; what has more is cut.
    pub max_head: usize,
    /// Longest packet, from the outermost IP header on, in bytes; of another protocol, from the end of the link headers on.
    /// Trains are judged by their segments.
    pub mtu: usize,
    /// Which VLAN tags do not count towards that.
    pub free_tags: FreeTags,
    /// What happens to a single packet that is longer. Trains with longer segments are refused.
    pub fragment: Fragment,
    /// Bytes that the linear form leaves free in front of each frame, for a header of the port's own.
    pub header_room: usize,
}

impl Limits {
    /// A port that can do nothing: single packets with every checksum in place.
    pub const NONE: Limits = Limits {
        csum: false,
        outer_csum: false,
        tso4: false,
        tso6: false,
        uso: false,
        max_bytes: MAX_IP_LEN,
        max_segs: MAX_SEGS,
        max_udp_segs: MAX_SEGS,
        max_pieces: usize::MAX,
        max_piece: usize::MAX,
        max_head: usize::MAX,
        mtu: usize::MAX,
        free_tags: FreeTags::All,
        fragment: Fragment::Never,
        header_room: 0,
    };
}

/// What a port is to do about the innermost transport checksum of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCsum {
    /// Nothing: send what stands there.
    AsIs,
    /// Nothing; it may tell its receiver that the field is right. Only packets without tunnel levels are marked so.
    Verified,
    /// Complete it: the field of the innermost transport header holds the pseudo-header sum.
    Partial,
}

/// One packet, or one smaller train, for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its headers, in the arena: [`Arena::head`].
    pub head: Range<u32>,
    /// Its payload, in the payload of the packet that was split.
    pub payload: Range<u32>,
    /// The innermost transport checksum.
    pub csum: SegmentCsum,
    /// How the port is to cut it; `None` for a single packet.
    pub gso: Option<Gso>,
}

crate::reasons! {
    /// Why a packet or train cannot be segmented or completed. Nothing of it was sent.
    pub enum Refusal {
        Transport = "gso_no_transport": "A train or an owed transport checksum without a TCP or UDP header.",
        Fragment = "gso_fragment": "A train or an owed transport checksum in an IP fragment.",
        Kind = "gso_kind": "A TCP train with a UDP header, or the reverse.",
        Size = "gso_size_zero": "A train whose segments would be empty.",
        Segments = "gso_too_many_segments": "A train of more than 65535 segments.",
        SynRst = "gso_syn_rst": "A TCP train with SYN or RST.",
        Length = "gso_too_long": "A segment longer than an IP length field can say.",
        Routing = "gso_routing": "A source route or routing header with stops to come, or a home address: the checksum covers an address that is not in the fixed header.",
        Levels = "gso_levels": "Checksum states that do not fit the tunnel headers.",
        Layout = "gso_layout": "A layout that does not fit the headers.",
        Train = "gso_train": "A train where a single packet is expected.",
        Full = "gso_arena_full": "The arena would exceed 4 GiB.",
        TooBig = "gso_too_big": "A packet or a segment longer than the MTU that nobody here may fragment.",
        DontFragment = "gso_dont_fragment": "An IPv4 packet longer than the MTU that says: don't fragment.",
        Tiny = "gso_tiny_mtu": "An MTU that leaves no room for the first fragment, which holds all headers.",
        Overlap = "gso_fragment_overlap": "A TCP fragment that begins inside the TCP header of another.",
        Ragged = "gso_fragment_ragged": "A fragment before the last whose length is no multiple of 8.",
        Trailing = "gso_trailing": "Bytes behind the inner packet of one to be fragmented.",
        Sequence = "gso_gre_sequence": "A packet to be fragmented under a GRE sequence number, of which it has only one.",
        Unverified = "gso_outer_unknown": "A packet to be fragmented under an outer checksum of which nothing is known.",
    }
}

/// Makes segments of `packet` for a port with `limits`, appends them to `arena` and returns how many there are.
///
/// A transport checksum that a remote checksum option hands to the far end stays primed, with the pseudo-header sum of
/// the segment's own length, whatever the port can do. In a train every outer UDP and GRE checksum that is present is
/// computed anew; in a single packet only those that are owed.
///
/// # Errors
/// A [`Refusal`]; the arena is then as it was.
pub fn split<B: AsRef<[u8]>>(packet: &Packet<B>, limits: &Limits, arena: &mut Arena) -> Result<usize, Refusal> {
    let payload_len = u32::try_from(packet.payload.len()).map_err(|_| Refusal::Length)?;
    let Unit::Train { .. } = packet.offload.unit else {
        if fragment::is_needed(packet, limits) {
            return scatter_fragments(packet, limits, arena);
        }
        let filled = arena.append(packet.head.bytes(), |head| whole::fill(head, packet, limits))?;
        arena.checksummed += filled.summed;
        arena.finish_head(0..payload_len, filled.csum, None);
        return Ok(1);
    };
    let mut plan = plan::Plan::new(packet, limits)?;
    arena.reserve(plan.count(), packet.head.len())?;
    let mut cursor = Cursor::new(&packet.payload);
    let mut count = 0;
    let mut parts = plan.parts(&packet.payload, limits);
    loop {
        count += plan.run(&mut parts, arena);
        let Some(part) = parts.next() else { return Ok(count) };
        plan.fit(part.len);
        let mut sum = Sum::ZERO;
        if plan.sums_payload() {
            cursor.take(part.len, |bytes| sum.add(bytes));
            arena.checksummed += part.len as u64;
        }
        let (template, head_len) = plan.template_block();
        let head = arena.push_template(template, head_len);
        plan.stamp(head, &part, sum);
        // Both fit: the payload's length does.
        arena.finish_head(part.start as u32..(part.start + part.len) as u32, plan.csum(), plan.gso_of(&part));
        count += 1;
    }
}

/// As [`split`], but writes contiguous frames: each head followed by its payload, which is copied and summed in one pass.
///
/// # Errors
/// A [`Refusal`]; `frames` is then as it was.
pub fn split_linear<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    limits: &Limits,
    frames: &mut Frames,
) -> Result<usize, Refusal> {
    let (head_len, front) = (packet.head.len(), limits.header_room);
    let mut cursor = Cursor::new(&packet.payload);
    let Unit::Train { .. } = packet.offload.unit else {
        if fragment::is_needed(packet, limits) {
            return copy_fragments(packet, limits, frames);
        }
        let frame = frames.room(front, packet.len())?;
        let (head, body) = frame.split_at_mut(head_len);
        head.copy_from_slice(packet.head.bytes());
        let filled = whole::fill(head, packet, limits)?;
        cursor.copy(body, None);
        frames.checksummed += filled.summed;
        frames.push(front, packet.len(), filled.csum, None);
        return Ok(1);
    };
    let mut plan = plan::Plan::new(packet, limits)?;
    let heads = plan.count().checked_mul(head_len).ok_or(Refusal::Full)?;
    frames.reserve(plan.count(), heads.saturating_add(packet.payload.len()), front)?;
    let mut count = 0;
    let mut parts = plan.parts(&packet.payload, limits);
    loop {
        count += plan.run_linear(&mut parts, &mut cursor, frames, front);
        let Some(part) = parts.next() else { return Ok(count) };
        plan.fit(part.len);
        let frame = frames.room(front, head_len + part.len)?;
        plan.write_template(frame);
        let (head, body) = frame.split_at_mut(head_len);
        let mut sum = Sum::ZERO;
        cursor.copy(body, plan.sums_payload().then_some(&mut sum));
        plan.stamp(head, &part, sum);
        if plan.sums_payload() {
            frames.checksummed += part.len as u64;
        }
        frames.push(front, head_len + part.len, plan.csum(), plan.gso_of(&part));
        count += 1;
    }
}

/// Makes fragments of a packet that is longer than the MTU.
fn scatter_fragments<B: AsRef<[u8]>>(packet: &Packet<B>, limits: &Limits, arena: &mut Arena) -> Result<usize, Refusal> {
    let mut ids = arena.ids;
    let cut = fragment::Cut::new(packet, limits, &mut ids)?;
    let first = arena.segments().len();
    arena.reserve(cut.count(), cut.most_head())?;
    (arena.ids, arena.checksummed) = (ids, arena.checksummed + cut.summed);
    let mut cursor = Cursor::new(&packet.payload);
    let mut whole = Fragments::default();
    let mut next = Some(cut.piece(0, 0));
    while let Some(piece) = next {
        let mut sum = Sum::ZERO;
        if cut.sums_payload() {
            cursor.take(piece.len, |bytes| sum.add(bytes));
            arena.checksummed += piece.len as u64;
        }
        let head = arena.push_zeros(cut.head_len(&piece));
        cut.write(head, &piece);
        if !piece.is_first() {
            cut.seal(head, &piece, sum);
        }
        // Both fit: the payload's length does.
        let range = piece.start as u32..(piece.start + piece.len) as u32;
        arena.finish_head(range, SegmentCsum::AsIs, None);
        whole.add(&piece, sum);
        next = cut.next(&piece);
    }
    if cut.sums_payload() {
        let head = arena.head_mut(first);
        cut.complete(head, whole.sum);
        cut.seal(head, &cut.piece(0, 0), whole.first);
    }
    Ok(whole.count)
}

/// As [`scatter_fragments`], but whole frames.
fn copy_fragments<B: AsRef<[u8]>>(packet: &Packet<B>, limits: &Limits, frames: &mut Frames) -> Result<usize, Refusal> {
    let mut ids = frames.ids;
    let cut = fragment::Cut::new(packet, limits, &mut ids)?;
    let first = frames.frames().len();
    let heads = cut.count().checked_mul(cut.most_head()).ok_or(Refusal::Full)?;
    frames.reserve(cut.count(), heads.saturating_add(packet.payload.len()), limits.header_room)?;
    (frames.ids, frames.checksummed) = (ids, frames.checksummed + cut.summed);
    let mut cursor = Cursor::new(&packet.payload);
    let mut whole = Fragments::default();
    let mut next = Some(cut.piece(0, 0));
    while let Some(piece) = next {
        let head_len = cut.head_len(&piece);
        let (head, body) = frames.room(limits.header_room, head_len + piece.len)?.split_at_mut(head_len);
        let mut sum = Sum::ZERO;
        cursor.copy(body, cut.sums_payload().then_some(&mut sum));
        cut.write(head, &piece);
        if !piece.is_first() {
            cut.seal(head, &piece, sum);
        }
        if cut.sums_payload() {
            frames.checksummed += piece.len as u64;
        }
        frames.push(limits.header_room, head_len + piece.len, SegmentCsum::AsIs, None);
        whole.add(&piece, sum);
        next = cut.next(&piece);
    }
    if cut.sums_payload() {
        let piece = cut.piece(0, 0);
        let head = &mut frames.frame_mut(first)[..cut.head_len(&piece)];
        cut.complete(head, whole.sum);
        cut.seal(head, &piece, whole.first);
    }
    Ok(whole.count)
}

/// What is gathered while fragments are made.
#[derive(Default)]
struct Fragments {
    count: usize,
    /// Of all payload.
    sum: Sum,
    /// Of that of the first.
    first: Sum,
}

impl Fragments {
    fn add(&mut self, piece: &fragment::Piece, sum: Sum) {
        if piece.is_first() {
            self.first = sum;
        }
        self.sum.append(sum, piece.len);
        self.count += 1;
    }
}

/// Completes a single packet in place: the transport checksum where it is owed and no remote checksum option hands it to
/// the far end, then the GRE and outer UDP checksums that are owed. Returns how many bytes of payload were summed.
///
/// The transport checksum is completed from the primed value in the field: a wrong one gives a wrong checksum, never a
/// right one.
///
/// # Errors
/// A [`Refusal`]; the packet is then as it was.
pub fn finish<B: AsRef<[u8]>>(packet: &mut Packet<B>) -> Result<u64, Refusal> {
    let mut head = packet.head.clone();
    let filled = whole::fill(head.bytes_mut(), packet, &Limits::NONE)?;
    packet.head = head;
    if filled.completed {
        packet.offload.unit = Unit::Whole(Csum::Verified);
    }
    for layer in packet.offload.layers_mut() {
        layer.udp = done(layer.udp);
        if layer.remote != Some(Remote::Gre) {
            layer.gre = done(layer.gre);
        }
    }
    Ok(filled.summed)
}

fn done(csum: crate::packet::LayerCsum) -> crate::packet::LayerCsum {
    use crate::packet::LayerCsum::{Done, Owed};
    if csum == Owed { Done } else { csum }
}

/// A place in a payload that only moves forward.
struct Cursor<'a, B> {
    frags: &'a [Frag<B>],
    skip: usize,
}

impl<'a, B: AsRef<[u8]>> Cursor<'a, B> {
    fn new(payload: &'a Payload<B>) -> Self {
        Cursor { frags: payload.frags(), skip: 0 }
    }

    /// Hands the next `len` bytes to `each`, piece by piece.
    fn take(&mut self, mut len: usize, mut each: impl FnMut(&'a [u8])) {
        while len > 0
            && let Some((frag, rest)) = self.frags.split_first()
        {
            let bytes = frag.bytes().get(self.skip..).unwrap_or(&[]);
            if bytes.len() <= len {
                each(bytes);
                len -= bytes.len();
                (self.frags, self.skip) = (rest, 0);
            } else {
                each(&bytes[..len]);
                self.skip += len;
                return;
            }
        }
    }

    /// Copies the next bytes to `out`, and adds them to `sum` where one is given.
    fn copy(&mut self, out: &mut [u8], mut sum: Option<&mut Sum>) {
        // Most lie in one piece.
        if let Some((frag, _)) = self.frags.split_first()
            && let Some(bytes) = frag.bytes().get(self.skip..)
            && out.len() < bytes.len()
        {
            self.skip += out.len();
            return copy(out, &bytes[..out.len()], sum);
        }
        let mut at = 0;
        self.take(out.len(), |bytes| {
            copy(&mut out[at..at + bytes.len()], bytes, sum.as_deref_mut());
            at += bytes.len();
        });
    }

    /// What is left of the piece that comes next.
    fn rest(&self) -> &'a [u8] {
        self.frags.first().and_then(|frag| frag.bytes().get(self.skip..)).unwrap_or(&[])
    }

    /// How many bytes the next `pieces` pieces have, where none is larger than `most`.
    fn reach(&self, mut pieces: usize, most: usize) -> usize {
        let (mut bytes, mut skip) = (0_usize, self.skip);
        for frag in self.frags {
            let len = frag.len() - skip;
            let wanted = len.div_ceil(most);
            if wanted > pieces {
                return bytes + pieces * most;
            }
            (bytes, skip, pieces) = (bytes + len, 0, pieces - wanted);
        }
        bytes
    }
}

/// Copies `bytes` to `out`, of the same length, and adds them to `sum` where one is given.
#[inline(always)]
fn copy(out: &mut [u8], bytes: &[u8], sum: Option<&mut Sum>) {
    match sum {
        Some(sum) => sum.copy(out, bytes),
        None => out.copy_from_slice(bytes),
    }
}

/// Checks what the rest relies on: that the layout covers the head, that no header is shorter than its kind, and that
/// UDP and TCP headers stand right behind an IP header.
fn check(head: &[u8], layout: &Layout) -> Result<(), Refusal> {
    let mut after_ip = false;
    for header in layout.headers() {
        let fits = match header.kind {
            Kind::Ipv4 => usize::from(header.len) >= ipv4::MIN_LEN,
            Kind::Ipv6 => usize::from(header.len) >= ipv6::LEN,
            Kind::Tcp => after_ip && usize::from(header.len) >= tcp::MIN_LEN,
            Kind::Udp => after_ip && usize::from(header.len) == udp::LEN,
            Kind::Gre => head
                .get(header.start()..header.end())
                .and_then(Gre::parse)
                .is_some_and(|gre| gre.len() == usize::from(header.len)),
            _ => true,
        };
        if !fits || header.len % 2 != 0 {
            return Err(Refusal::Layout);
        }
        after_ip = header.is_ip();
    }
    if head.len() == layout.header_len() { Ok(()) } else { Err(Refusal::Layout) }
}

/// The transport header, or why there is none.
fn transport(layout: &Layout) -> Result<Header, Refusal> {
    layout.transport().copied().ok_or(match layout.stop() {
        crate::packet::Stop::Fragment => Refusal::Fragment,
        _ => Refusal::Transport,
    })
}

/// The pseudo header of a TCP or UDP header right behind the IP header `ip`, for `len` bytes from there to the end.
fn pseudo(head: &[u8], ip: &Header, kind: Kind, len: usize) -> Option<Sum> {
    let number = if kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
    let header = head.get(ip.start()..ip.end())?;
    if ip.kind == Kind::Ipv4 {
        let (src, dst) = (header.get(ipv4::SRC)?, header.get(ipv4::DST)?);
        return Some(pseudo_v4(src.try_into().ok()?, dst.try_into().ok()?, number, len));
    }
    let (src, dst) = (header.get(ipv6::SRC)?, header.get(ipv6::DST)?);
    Some(pseudo_v6(src.try_into().ok()?, dst.try_into().ok()?, number, len))
}

/// Whether the transport checksum covers an address that is not in the fixed part of the IP header.
fn is_routed(head: &[u8], ip: &Header) -> bool {
    let is_routed = if ip.kind == Kind::Ipv4 { ipv4::is_routed } else { ipv6::is_routed };
    head.get(ip.start()..ip.end()).is_some_and(is_routed)
}

/// A sum of one 16-bit word.
fn word(value: u16) -> Sum {
    let mut sum = Sum::ZERO;
    sum.add_u16(value);
    sum
}
