//! The plan for splitting a train: a template of the headers for one length, and the few fields that differ between
//! segments.
//!
//! [`SegmentPlan::fit`] writes everything that depends only on the length into the template: lengths, primed checksums,
//! and every outer checksum that is the same for each segment (most are: a part of a packet under a good checksum sums
//! to the complement of its pseudo header, and an IPv4 header to zero). It is called once for the full segments and
//! once for a shorter last one. [`SegmentPlan::stamp`] then changes a copy of the template by a short list of [`Op`]s,
//! innermost first. Most trains are TCP in which only counting fields and the flags of the first and the last segment
//! change: their segments are made in one run ([`SegmentPlan::run`]).

use super::arena::BLOCK;
use super::check::{check, complete, is_routed, pseudo, transport, word};
use super::cursor::Cursor;
use super::limits::{Limits, MAX_IP_LEN, MAX_SEGS, MIN_TCP_SIZE};
use super::parts::{Part, SegmentRuns};
use super::refusal::Refusal;
use super::segment::SegmentCsum;
use super::{fragment, whole};
use crate::checksum::{Field, Sum};
use crate::packet::{
    Buffer, Gso, GsoKind, Header, Kind, Layer, LayerCsum, Layout, Offload, Packet, Payload, Remote, TrainCsum, Unit,
    remote,
};
use crate::wire::gre::{self, Gre};
use crate::wire::parse::{MAX_HEADER_BYTES, MAX_HEADERS};
use crate::wire::{ipv4, ipv6, read_u16, read_u32, tcp, udp, write_u16, write_u32};

/// A change to a copy of the template. Bases are folded sums of everything constant.
#[derive(Clone, Copy)]
pub(super) enum Op {
    /// TCP header at `at`: sequence number, flags, and the checksum if `fill`. `base` includes the pseudo header.
    Tcp { at: u16, seq: u32, flags: u8, base: u16, fill: bool },
    /// UDP header at `at`: the checksum if `fill`. `base` includes the pseudo header.
    Udp { at: u16, base: u16, fill: bool },
    /// IPv4 header at `at`: identification and checksum.
    Ipv4 { at: u16, id: u16, base: u16 },
    /// A GRE sequence number at offset `at`.
    GreSeq { at: u16, seq: u32 },
    /// Marks the level from which on outer checksums cover the transport header as sent, primed, not as the receiver
    /// completes it.
    Reveal,
    /// Checksum field at `at`, over `base` and the varying bytes since the last one.
    Checksum { at: u16, base: u16, udp: bool },
}

/// The changing fields of a train of TCP with counting identifications in at most two IPv4 headers: those of the packet
/// and of one tunnel.
#[derive(Clone, Copy)]
pub(super) struct PlainTcp {
    /// Constant part of the checksum, unless the port completes it.
    pub(super) sum: Option<u16>,
    /// Offset of the TCP header.
    pub(super) tcp: usize,
    pub(super) seq: u32,
    pub(super) flags: u8,
    /// Counting identifications of IPv4, the innermost first: offset of the header, the first identification, and the
    /// sum of all other words. Nothing follows the first `None`.
    pub(super) ipv4: [Option<(usize, u16, u16)>; 2],
}

impl PlainTcp {
    /// Returns the changing fields of a train with these ops; `None` if others change too.
    fn new(ops: &[Op]) -> Option<PlainTcp> {
        let [Op::Tcp { at, seq, flags, base, fill }, rest @ ..] = ops else { return None };
        let (mut ipv4, mut count) = ([None; 2], 0);
        for op in rest {
            match *op {
                Op::Ipv4 { at, id, base } => {
                    *ipv4.get_mut(count)? = Some((usize::from(at), id, base));
                    count += 1;
                }
                // It adds to outer checksums that change, of which there are none.
                Op::Reveal => {}
                Op::Tcp { .. } | Op::Udp { .. } | Op::GreSeq { .. } | Op::Checksum { .. } => return None,
            }
        }
        Some(PlainTcp { sum: fill.then_some(*base), tcp: usize::from(*at), seq: *seq, flags: *flags, ipv4 })
    }
}

/// Largest number of [`Op`]s of one header.
const OPS_PER_HEADER: usize = 2;

pub(super) struct SegmentPlan<'a> {
    pub(super) head: &'a [u8],
    layout: &'a Layout,
    offload: &'a Offload,
    gso: Gso,
    pub(super) total: usize,
    segs: usize,
    /// Tunnel level whose receiver completes the transport checksum.
    remote: Option<usize>,
    /// Whether the transport checksum is completed by the port or the receiver.
    pub(super) primed: bool,
    outer_csum: bool,
    /// Whether CWR is set on every segment.
    keeps_cwr: bool,
    pub(super) template: [u8; MAX_HEADER_BYTES],
    pub(super) fitted: Option<usize>,
    pub(super) ops: [Op; MAX_HEADERS * OPS_PER_HEADER],
    pub(super) ops_len: usize,
    pub(super) plain: Option<PlainTcp>,
    pub(super) sums_payload: bool,
}

impl<'a> SegmentPlan<'a> {
    #[inline(always)]
    pub(super) fn new<B: Buffer>(packet: &'a Packet<B>, limits: &Limits) -> Result<SegmentPlan<'a>, Refusal> {
        let (head, layout, offload) = (packet.head.bytes(), &packet.layout, &packet.offload);
        let Unit::Train { csum, mut gso } = offload.unit else { return Err(Refusal::Train) };
        let transport = transport(layout)?;
        check(head, layout)?;
        match (gso.kind, transport.kind) {
            (GsoKind::Tcp, Kind::Tcp) => {
                if head[transport.start() + tcp::FLAGS] & (tcp::SYN | tcp::RST) != 0 {
                    return Err(Refusal::SynRst);
                }
                if gso.size != 0 && csum == TrainCsum::Partial {
                    gso.size = gso.size.max(MIN_TCP_SIZE);
                }
            }
            (GsoKind::Udp, Kind::Udp) => {}
            _ => return Err(Refusal::Kind),
        }
        if gso.size == 0 {
            return Err(Refusal::Size);
        }
        let total = packet.payload.len();
        let segs = gso.segs(total);
        if segs > MAX_SEGS {
            return Err(Refusal::Segments);
        }
        let remote = check_layers(head, layout, offload.layers())?;
        let longest = head.len() + total.min(usize::from(gso.size));
        if longest - fragment::uncounted(head, layout, limits) > limits.mtu {
            return Err(Refusal::TooBig);
        }
        for header in layout.headers().iter().filter(|h| h.is_ip()) {
            let fixed = if header.kind == Kind::Ipv6 { ipv6::LEN } else { 0 };
            if longest - header.start() - fixed > MAX_IP_LEN {
                return Err(Refusal::Length);
            }
            if is_routed(head, header) {
                return Err(Refusal::Routing);
            }
        }
        Ok(SegmentPlan {
            head,
            layout,
            offload,
            gso,
            total,
            segs,
            remote,
            primed: remote.is_some() || limits.csum,
            outer_csum: limits.outer_csum,
            keeps_cwr: gso.is_cwr_on_all(),
            template: [0; MAX_HEADER_BYTES],
            fitted: None,
            ops: [Op::Reveal; MAX_HEADERS * OPS_PER_HEADER],
            ops_len: 0,
            plain: None,
            sums_payload: false,
        })
    }

    /// Returns the number of segments, which is also the largest number of parts.
    pub(super) fn count(&self) -> usize {
        self.segs
    }

    /// Returns the parts into which the train is split for a port with `limits`.
    pub(super) fn parts<'p, B: Buffer>(&self, payload: &'p Payload<B>, limits: &Limits) -> SegmentRuns<'p, B> {
        let size = usize::from(self.gso.size);
        let is_v4 = self.layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4);
        let (takes, segs) = match self.gso.kind {
            GsoKind::Tcp if is_v4 => (limits.tso4, limits.max_segs),
            GsoKind::Tcp => (limits.tso6, limits.max_segs),
            GsoKind::Udp => (limits.uso, limits.max_udp_segs),
        };
        let takes = takes && limits.csum && self.has_taken_layers(limits) && !self.keeps_cwr;
        let takes = takes && self.head.len() <= limits.max_head && (limits.ecn || !self.has_cwr());
        // Its length field is the largest one.
        let ip = self.layout.outer_ip();
        let is_jumbo = limits.max_bytes > MAX_IP_LEN + MAX_HEADER_BYTES
            && self.offload.layers().is_empty()
            && self.gso.kind == GsoKind::Tcp
            && ip.is_some_and(|ip| ip.kind == Kind::Ipv4 || usize::from(ip.len) == ipv6::LEN);
        let most = if is_jumbo { usize::MAX } else { ip.map_or(0, Header::start) + MAX_IP_LEN };
        let bytes = limits.max_bytes.min(most).saturating_sub(self.head.len());
        let most = if takes { bytes.min(segs.saturating_mul(size)) } else { 0 };
        let most_piece = limits.max_piece.max(1);
        let has_few = most == 0
            || limits.max_pieces > payload.frags().len()
                && (most_piece >= self.total
                    || limits.max_pieces > payload.frags().iter().map(|f| f.len().div_ceil(most_piece)).sum());
        let pieces = if has_few { None } else { Some((limits.max_pieces, most_piece)) };
        let segs = if most > size { most / size } else { 1 };
        let cursor = Cursor::new(payload);
        SegmentRuns { cursor, total: self.total, size, most, segs, pieces, at: 0, index: 0, started: false }
    }

    /// Returns whether a port with `limits` takes trains with the headers around the innermost IP header: none, or
    /// those of one UDP tunnel, without GRE, whose fields need not be the same in each segment.
    fn has_taken_layers(&self, limits: &Limits) -> bool {
        let [layer] = self.offload.layers() else { return self.offload.layers().is_empty() };
        let outside = self.layout.inside_outer_ip();
        let Some(udp) = outside.first().filter(|header| header.kind == Kind::Udp) else { return false };
        limits.udp_tunnel
            && self.layout.ip_levels() == 2
            && layer.remote.is_none()
            && outside.iter().all(|header| header.kind != Kind::Gre)
            && (limits.udp_tunnel_csum || !has_udp_checksum(self.head, udp, *layer))
    }

    /// Returns whether the train is of TCP with CWR.
    fn has_cwr(&self) -> bool {
        let transport = self.layout.transport().filter(|header| header.kind == Kind::Tcp);
        let flags = transport.and_then(|header| self.head.get(header.start() + tcp::FLAGS));
        flags.is_some_and(|flags| flags & tcp::CWR != 0)
    }

    /// Returns the port's task for the transport checksum.
    #[inline(always)]
    pub(super) fn csum(&self) -> SegmentCsum {
        if self.primed && self.remote.is_none() { SegmentCsum::Partial } else { SegmentCsum::AsIs }
    }

    /// Returns the segmentation that the port must do for a part; `None` for a single segment.
    #[inline(always)]
    pub(super) fn gso_of(&self, part: &Part) -> Option<Gso> {
        (part.len > usize::from(self.gso.size)).then_some(self.gso)
    }

    /// Returns whether [`SegmentPlan::stamp`] needs the sum of the payload.
    pub(super) fn sums_payload(&self) -> bool {
        self.sums_payload
    }

    /// Copies the template into the front of `frame`, whose payload is written afterwards; a copy of constant length
    /// where the template is short enough.
    #[inline(always)]
    pub(super) fn write_template(&self, frame: &mut [u8]) {
        let len = self.head.len();
        match (frame.first_chunk_mut::<BLOCK>(), self.template.first_chunk()) {
            (Some(front), Some(block)) if len <= BLOCK => *front = *block,
            _ => frame[..len].copy_from_slice(&self.template[..len]),
        }
    }

    /// Returns the template with the unused bytes after it, and its length.
    #[inline(always)]
    pub(super) fn template_block(&self) -> (&[u8; MAX_HEADER_BYTES], usize) {
        (&self.template, self.head.len())
    }

    /// Prepares the template for parts with `len` bytes of payload.
    #[inline]
    pub(super) fn fit(&mut self, len: usize) {
        if self.fitted != Some(len) {
            self.fitted = Some(len);
            self.fit_headers(len);
            self.plain = PlainTcp::new(&self.ops[..self.ops_len]);
        }
    }

    fn fit_headers(&mut self, len: usize) {
        let layout = self.layout;
        self.ops_len = 0;
        self.sums_payload = false;
        self.template[..self.head.len()].copy_from_slice(self.head);
        let mut tail = Tail { sum: Sum::ZERO, varies: false, has_body: false };
        let mut body = Sum::ZERO;
        let mut levels = layout.ip_levels();
        let mut hidden = self.remote;
        for (index, header) in layout.headers().iter().enumerate().rev() {
            let start = header.start();
            let behind = self.head.len() - start + len;
            let level = levels.checked_sub(1);
            let layer = level.and_then(|k| self.offload.layers().get(k)).copied().unwrap_or(Layer::NONE);
            let is_transport = index + 1 == layout.headers().len();
            let is_revealed = matches!(header.kind, Kind::Udp | Kind::Ipv4 | Kind::Ipv6) && !is_transport;
            if is_revealed && hidden.is_some() && hidden == level {
                // `tail` holds the transport part as the far end will see it, without the pseudo header in this
                // arithmetic; adding the pseudo header cancels it, and the op adds the bytes as sent.
                hidden = None;
                tail.sum.add_u16(body.fold());
                (tail.varies, tail.has_body) = (true, true);
                self.push(Op::Reveal);
            }
            match header.kind {
                Kind::Tcp | Kind::Udp if is_transport => {
                    body = self.fit_transport(header, index, behind);
                    tail.sum = word(!body.fold());
                }
                Kind::Udp => self.fit_outer_udp(header, index, behind, layer, level == Some(0), &mut tail),
                Kind::Gre => self.fit_gre(header, layer, &mut tail),
                Kind::Ipv4 => {
                    write_u16(&mut self.template, start + ipv4::TOTAL_LEN, length(behind));
                    self.fit_ipv4(header, self.gso.fixed_ids >> index & 1 != 0);
                    levels -= 1;
                }
                Kind::Ipv6 => {
                    write_u16(&mut self.template, start + ipv6::PAYLOAD_LEN, length(behind - ipv6::LEN));
                    tail.sum.add(&self.template[start..header.end()]);
                    levels -= 1;
                }
                // A header of any other kind is the same in every segment.
                _ => {
                    tail.sum.add(&self.template[start..header.end()]);
                }
            }
        }
    }

    /// Writes the constant fields of the transport header and returns the sum of its pseudo header.
    fn fit_transport(&mut self, header: &Header, index: usize, behind: usize) -> Sum {
        let pseudo = self.pseudo(index, behind);
        let (start, fill) = (header.start(), !self.primed);
        let (at, field) = (header.off, start + remote::field_offset(header.kind).unwrap_or(udp::CHECKSUM));
        let edge = self.edge_flags();
        let template = &mut self.template;
        write_u16(template, field, 0);
        if header.kind == Kind::Tcp {
            let seq = read_u32(template, start + tcp::SEQ).unwrap_or(0);
            let flags = template[start + tcp::FLAGS];
            write_u32(template, start + tcp::SEQ, 0);
            template[start + tcp::FLAGS] = 0;
            let mut base = pseudo;
            base.add(&template[start..header.end()]);
            // The flags of segments between the first and the last.
            template[start + tcp::FLAGS] = flags & !edge;
            self.push(Op::Tcp { at, seq, flags, base: base.fold(), fill });
        } else {
            write_u16(template, start + udp::LENGTH, behind as u16);
            let mut base = pseudo;
            base.add(&template[start..header.end()]);
            self.push(Op::Udp { at, base: base.fold(), fill });
        }
        if fill {
            self.sums_payload = true;
        } else {
            write_u16(&mut self.template, field, Field::primed(pseudo).value());
        }
        pseudo
    }

    fn fit_outer_udp(
        &mut self,
        header: &Header,
        index: usize,
        behind: usize,
        layer: Layer,
        outermost: bool,
        tail: &mut Tail,
    ) {
        let field = header.start() + udp::CHECKSUM;
        write_u16(&mut self.template, header.start() + udp::LENGTH, behind as u16);
        if !has_udp_checksum(self.head, header, layer) {
            tail.sum.add(&self.template[header.start()..header.end()]);
            return;
        }
        let pseudo = self.pseudo(index, behind);
        // Of a train that a port takes whole, the port computes this checksum too.
        let is_train = behind - (self.head.len() - header.start()) > usize::from(self.gso.size);
        if outermost && (self.outer_csum || is_train) {
            write_u16(&mut self.template, field, Field::primed(pseudo).value());
        } else {
            write_u16(&mut self.template, field, 0);
            let mut base = pseudo;
            base.add(&self.template[header.start()..header.end()]);
            self.fit_checksum(field, base, true, tail);
        }
        *tail = Tail { sum: word(!pseudo.fold()), varies: false, has_body: false };
    }

    fn fit_gre(&mut self, header: &Header, layer: Layer, tail: &mut Tail) {
        let start = header.start();
        let Some(parsed) = Gre::parse(&self.head[start..header.end()]) else { return };
        if let (Some(place), Some(seq)) = (parsed.seq_at(), parsed.seq) {
            write_u32(&mut self.template, start + place, 0);
            self.push(Op::GreSeq { at: (start + place) as u16, seq });
            tail.varies = true;
        }
        if parsed.checksum.is_some() {
            write_u16(&mut self.template, start + gre::CHECKSUM, 0);
            if layer.remote != Some(Remote::Gre) {
                let base = Sum::of(&self.template[start..header.end()]);
                self.fit_checksum(start + gre::CHECKSUM, base, false, tail);
                *tail = Tail { sum: Sum::ZERO, varies: false, has_body: false };
                return;
            }
        }
        tail.sum.add(&self.template[start..header.end()]);
    }

    fn fit_ipv4(&mut self, header: &Header, fixed_id: bool) {
        let (start, template) = (header.start(), &mut self.template);
        let id = read_u16(template, start + ipv4::ID).unwrap_or(0);
        write_u16(template, start + ipv4::CHECKSUM, 0);
        if !fixed_id {
            write_u16(template, start + ipv4::ID, 0);
        }
        let base = Sum::of(&template[start..header.end()]);
        if fixed_id {
            write_u16(template, start + ipv4::CHECKSUM, Field::complete(base).value());
        } else {
            self.push(Op::Ipv4 { at: header.off, id, base: base.fold() });
        }
    }

    /// Writes the checksum over `header` and the tail if the tail is the same for all segments; otherwise adds an op
    /// for it.
    fn fit_checksum(&mut self, at: usize, header: Sum, udp: bool, tail: &mut Tail) {
        let mut sum = header;
        sum.add_u16(tail.sum.fold());
        if tail.varies {
            self.sums_payload |= tail.has_body;
            self.push(Op::Checksum { at: at as u16, base: sum.fold(), udp });
        } else {
            write_u16(&mut self.template, at, complete(sum, udp).value());
        }
    }

    fn pseudo(&self, index: usize, len: usize) -> Sum {
        let header = self.layout.headers()[index];
        // `check` made sure that an IP header stands in front.
        let ip = index.checked_sub(1).and_then(|ip| self.layout.headers().get(ip));
        ip.and_then(|ip| pseudo(self.head, ip, header.kind, len)).unwrap_or(Sum::ZERO)
    }

    fn push(&mut self, op: Op) {
        // There is room: no header pushes more than two, and a header that reveals is no GRE header.
        if let Some(place) = self.ops.get_mut(self.ops_len) {
            *place = op;
            self.ops_len += 1;
        }
    }

    /// Returns the flags that segments between the first and the last do not have: FIN and PSH belong to the last, CWR
    /// to the first (RFC 3168 section 6.1.2; Linux does the same) unless it is set on all.
    #[inline(always)]
    pub(super) fn edge_flags(&self) -> u8 {
        tcp::FIN | tcp::PSH | if self.keeps_cwr { 0 } else { tcp::CWR }
    }
}

/// The sums over everything after a header, while a plan is made.
struct Tail {
    /// Sum of everything that is the same for each segment.
    sum: Sum,
    /// Whether ops add to the sum.
    varies: bool,
    /// Whether ops add the payload.
    has_body: bool,
}

/// Returns the value of a length field: zero for a train that is too long for it.
fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

/// Returns whether an outer UDP header of a train carries a checksum. One that was right for the whole train is
/// computed anew.
fn has_udp_checksum(head: &[u8], header: &Header, layer: Layer) -> bool {
    match layer.udp {
        LayerCsum::Absent => false,
        LayerCsum::Owed => true,
        LayerCsum::Unknown | LayerCsum::Done => read_u16(head, header.start() + udp::CHECKSUM) != Some(0),
    }
}

/// Checks the tunnel levels of a train against its headers and returns the level with a remote transport checksum.
fn check_layers(head: &[u8], layout: &Layout, layers: &[Layer]) -> Result<Option<usize>, Refusal> {
    if layers.len() + 1 != layout.ip_levels() {
        return Err(Refusal::Levels);
    }
    whole::check_checksum_offsets(head, layout, layers)?;
    Ok(layers.iter().position(|layer| layer.remote == Some(Remote::Transport)))
}
