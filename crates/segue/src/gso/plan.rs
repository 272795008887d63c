//! How a train is cut: a template of the headers for one length, and the few fields that differ between segments.
//!
//! [`Plan::fit`] writes all that depends on the length alone into the template: lengths, primed checksums, and every outer
//! checksum that comes out the same for each segment (most do: a part of a packet under a good checksum sums to the
//! complement of its pseudo header, and an IPv4 header to zero). It is called once for the full segments and once for a
//! shorter last one. [`Plan::stamp`] then changes a copy of the template by a short list of [`Op`]s, innermost first. Most trains
//! are TCP of which nothing changes but counting fields and the edges' flags: their segments are made in one go, by [`Counting`].

use super::arena::BLOCK;
use super::{
    Arena, Cursor, Frames, Limits, MAX_IP_LEN, MAX_SEGS, MIN_TCP_SIZE, Refusal, SegmentCsum, check, is_routed, pseudo,
};
use super::{transport, word};
use crate::arch;
use crate::checksum::{Field, Sum};
use crate::packet::{
    Gso, GsoKind, Header, Kind, Layer, LayerCsum, Layout, Offload, Packet, Payload, Remote, TrainCsum, Unit, remote,
};
use crate::wire::gre::{self, Gre};
use crate::wire::parse::{MAX_HEADER_BYTES, MAX_HEADERS};
use crate::wire::{ipv4, ipv6, read_u16, read_u32, tcp, udp, write_u16, write_u32};

/// One part of a train: a segment, or several that stay together.
pub(super) struct Part {
    /// Number of segments in front of it.
    index: usize,
    /// First byte of payload.
    pub(super) start: usize,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Whether it is the last.
    last: bool,
}

/// A change to a copy of the template. Bases are folded sums of all that is constant.
#[derive(Clone, Copy)]
enum Op {
    /// The transport header at `at`: sequence number, flags, and the checksum if `fill`. `base` has the pseudo header in.
    Tcp { at: u16, seq: u32, flags: u8, base: u16, fill: bool },
    /// The same for UDP.
    Udp { at: u16, base: u16, fill: bool },
    /// Identification and checksum of the IPv4 header at `at`.
    Ipv4 { at: u16, id: u16, base: u16 },
    /// The sequence number at `at`.
    GreSeq { at: u16, seq: u32 },
    /// From here outwards checksums cover the transport header as it is sent, primed, not as the far end completes it.
    Reveal,
    /// The checksum field at `at`, over `base` and what varied since the last one.
    Checksum { at: u16, base: u16, udp: bool },
}

/// All that changes in a train of TCP under one IP header.
#[derive(Clone, Copy)]
struct Plain {
    /// What is constant of the sum, where the checksum is not left to the port.
    sum: Option<u16>,
    /// Where the TCP header is.
    tcp: usize,
    seq: u32,
    flags: u8,
    /// Of IPv4 where identifications count: where the header is, the first of them, and the sum of all else.
    ipv4: Option<(usize, u16, u16)>,
}

/// Most [`Op`]s of one header.
const OPS_PER_HEADER: usize = 2;

pub(super) struct Plan<'a> {
    head: &'a [u8],
    layout: &'a Layout,
    offload: &'a Offload,
    gso: Gso,
    total: usize,
    segs: usize,
    /// The tunnel level whose far end completes the transport checksum.
    remote: Option<usize>,
    /// Whether the transport checksum is left to somebody else.
    primed: bool,
    outer_csum: bool,
    /// Whether CWR is on every segment.
    keeps_cwr: bool,
    template: [u8; MAX_HEADER_BYTES],
    fitted: Option<usize>,
    ops: [Op; MAX_HEADERS * OPS_PER_HEADER],
    ops_len: usize,
    plain: Option<Plain>,
    sums_payload: bool,
}

impl<'a> Plan<'a> {
    #[inline(always)]
    pub(super) fn new<B: AsRef<[u8]>>(packet: &'a Packet<B>, limits: &Limits) -> Result<Plan<'a>, Refusal> {
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
        if longest - super::fragment::uncounted(head, layout, limits) > limits.mtu {
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
        Ok(Plan {
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

    /// Number of segments, and so the most parts that there can be.
    pub(super) fn count(&self) -> usize {
        self.segs
    }

    /// Where to cut.
    pub(super) fn parts<'p, B: AsRef<[u8]>>(&self, payload: &'p Payload<B>, limits: &Limits) -> Parts<'p, B> {
        let size = usize::from(self.gso.size);
        let is_v4 = self.layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4);
        let (takes, segs) = match self.gso.kind {
            GsoKind::Tcp if is_v4 => (limits.tso4, limits.max_segs),
            GsoKind::Tcp => (limits.tso6, limits.max_segs),
            GsoKind::Udp => (limits.uso, limits.max_udp_segs),
        };
        let takes = takes && limits.csum && self.offload.layers().is_empty() && !self.keeps_cwr;
        let takes = takes && self.head.len() <= limits.max_head;
        let ip = self.layout.inner_ip();
        let is_jumbo = limits.max_bytes > MAX_IP_LEN + MAX_HEADER_BYTES
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
        Parts { cursor, total: self.total, size, most, segs, pieces, at: 0, index: 0, started: false }
    }

    /// What the port must do about the transport checksum.
    #[inline(always)]
    pub(super) fn csum(&self) -> SegmentCsum {
        if self.primed && self.remote.is_none() { SegmentCsum::Partial } else { SegmentCsum::AsIs }
    }

    /// How the port is to cut a part.
    #[inline(always)]
    pub(super) fn gso_of(&self, part: &Part) -> Option<Gso> {
        (part.len > usize::from(self.gso.size)).then_some(self.gso)
    }

    /// Whether [`Plan::stamp`] wants the sum of the payload.
    pub(super) fn sums_payload(&self) -> bool {
        self.sums_payload
    }

    /// Puts the headers that [`Plan::stamp`] changes in front of `frame`, whose payload is still to be written; a copy of constant
    /// length, where that is enough.
    #[inline(always)]
    pub(super) fn write_template(&self, frame: &mut [u8]) {
        let len = self.head.len();
        match (frame.first_chunk_mut::<BLOCK>(), self.template.first_chunk()) {
            (Some(front), Some(block)) if len <= BLOCK => *front = *block,
            _ => frame[..len].copy_from_slice(&self.template[..len]),
        }
    }

    /// The headers that [`Plan::stamp`] changes a copy of with what lies behind them, and how long they are.
    #[inline(always)]
    pub(super) fn template_block(&self) -> (&[u8; MAX_HEADER_BYTES], usize) {
        (&self.template, self.head.len())
    }

    /// Prepares for parts with `len` bytes of payload.
    #[inline]
    pub(super) fn fit(&mut self, len: usize) {
        if self.fitted != Some(len) {
            self.fitted = Some(len);
            self.fit_headers(len);
            self.plain = match self.ops[..self.ops_len] {
                [Op::Tcp { at, seq, flags, base, fill }, ref rest @ ..] if fill || !self.sums_payload => {
                    let ipv4 = match *rest {
                        [] => Some(None),
                        [Op::Ipv4 { at: ip, id, base }] => Some(Some((usize::from(ip), id, base))),
                        _ => None,
                    };
                    ipv4.map(|ipv4| Plain { sum: fill.then_some(base), tcp: usize::from(at), seq, flags, ipv4 })
                }
                _ => None,
            };
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
                // `tail` holds the transport part as the far end will see it, minus the pseudo header in this
                // arithmetic; with the pseudo header added that is gone, and the op puts the real bytes there.
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
                // A header of any other kind is as it was in every segment.
                _ => {
                    tail.sum.add(&self.template[start..header.end()]);
                }
            }
        }
    }

    /// Returns the pseudo header.
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
            // As between the first and the last.
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
        if outermost && self.outer_csum {
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

    /// A checksum over `header` and the tail: at once where the tail is the same for all segments.
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
        // `check` saw to it that an IP header stands in front.
        let ip = index.checked_sub(1).and_then(|ip| self.layout.headers().get(ip));
        ip.and_then(|ip| pseudo(self.head, ip, header.kind, len)).unwrap_or(Sum::ZERO)
    }

    fn push(&mut self, op: Op) {
        // There is room: no header pushes more than two, and one that reveals is no GRE header.
        if let Some(place) = self.ops.get_mut(self.ops_len) {
            *place = op;
            self.ops_len += 1;
        }
    }

    /// Flags that segments between the first and the last do not have: FIN and PSH belong to the last, CWR to the first
    /// (RFC 3168 section 6.1.2; Linux does the same) where it is not on all.
    #[inline(always)]
    fn edge_flags(&self) -> u8 {
        tcp::FIN | tcp::PSH | if self.keeps_cwr { 0 } else { tcp::CWR }
    }

    /// The TCP flags of `part`, where those of the train are `flags`.
    #[inline(always)]
    fn flags_of(&self, flags: u8, part: &Part) -> u8 {
        let mut edge = self.edge_flags();
        if part.last {
            edge &= !(tcp::FIN | tcp::PSH);
        }
        if part.start == 0 {
            edge &= !tcp::CWR;
        }
        flags & !edge
    }

    /// How many of the next segments differ in nothing but counting fields, and their headers.
    #[inline(always)]
    fn counting<B>(&mut self, parts: &Parts<'_, B>) -> Option<(usize, Counting<'_>)> {
        // Known already: more changes. The division is spared.
        let is_known = self.plain.is_none() && self.fitted == Some(parts.size);
        if is_known || self.head.len() > BLOCK {
            return None;
        }
        let whole = parts.whole();
        if whole == 0 {
            return None;
        }
        self.fit(parts.size);
        let Plain { sum, tcp: at, seq, flags, ipv4 } = self.plain?;
        let (index, start) = (parts.index, parts.at);
        let edge = flags & self.edge_flags();
        if start == 0 && edge & tcp::CWR != 0 {
            return None;
        }
        let has_last = start + whole * parts.size == self.total && edge & (tcp::FIN | tcp::PSH) != 0;
        let count = whole - usize::from(has_last);
        if count == 0 {
            return None;
        }
        let base = sum.map(|base| {
            let mut sum = word(base);
            sum.add_u16(u16::from(flags & !self.edge_flags()));
            sum
        });
        let (seq, step) = (seq.wrapping_add(start as u32), parts.size as u32);
        let ipv4 = ipv4.map(|(at, id, base)| (at, id.wrapping_add(index as u16), base));
        let block = self.template.first_chunk()?;
        Some((count, Counting { block, tcp: at, seq, step, base, ipv4 }))
    }

    /// Makes the next segments in one go, as far as they differ in nothing but counting fields. Returns how many there were.
    pub(super) fn run<B>(&mut self, parts: &mut Parts<'_, B>, arena: &mut Arena) -> usize {
        if !self.primed {
            return 0;
        }
        let (csum, head_len) = (self.csum(), self.head.len());
        let Some((count, mut heads)) = self.counting(parts) else { return 0 };
        arena.push_run(head_len, (parts.at, parts.size, count), csum, move |head| {
            heads.write(head);
        });
        parts.skip(count);
        count
    }

    /// The same in linear form: the payload is taken from `cursor`, and copied and summed in one pass.
    pub(super) fn run_linear<B: AsRef<[u8]>>(
        &mut self,
        parts: &mut Parts<'_, B>,
        cursor: &mut Cursor<'_, B>,
        frames: &mut Frames,
        room: usize,
    ) -> usize {
        let (csum, head_len, size) = (self.csum(), self.head.len(), parts.size);
        // A block is written to each.
        if head_len + size < BLOCK {
            return 0;
        }
        let Some((count, heads)) = self.counting(parts) else { return 0 };
        let is_summed = heads.base.is_some();
        let Some(memory) = frames.push_run(room, head_len + size, count, csum) else { return 0 };
        arch::chosen().work(Fill { heads, head_len, size, cursor, memory, room });
        if is_summed {
            frames.checksummed += (count * size) as u64;
        }
        parts.skip(count);
        count
    }

    /// Makes `head`, a copy of the template, that of `part`, whose payload sums to `payload`.
    #[inline(always)]
    pub(super) fn stamp(&self, head: &mut [u8], part: &Part, payload: Sum) {
        let Some(Plain { sum, tcp: at, seq, flags, ipv4 }) = self.plain else {
            return self.stamp_ops(head, part, payload);
        };
        let (seq, flags) = (seq.wrapping_add(part.start as u32), self.flags_of(flags, part));
        write_u32(head, at + tcp::SEQ, seq);
        head[at + tcp::FLAGS] = flags;
        if let Some(base) = sum {
            let mut sum = word(base);
            sum.add_u32(seq);
            sum.add_u16(u16::from(flags));
            sum.append(payload, part.len);
            write_u16(head, at + tcp::CHECKSUM, Field::complete(sum).value());
        }
        if let Some((at, id, base)) = ipv4 {
            stamp_ipv4(head, at, id.wrapping_add(part.index as u16), base);
        }
    }

    /// The same where more changes.
    #[inline(never)]
    fn stamp_ops(&self, head: &mut [u8], part: &Part, payload: Sum) {
        // The transport header and payload, with the pseudo header or, which is the same number, the primed field.
        let mut body = Sum::ZERO;
        let mut varied = Sum::ZERO;
        for op in &self.ops[..self.ops_len] {
            match *op {
                Op::Tcp { at, seq, flags, base, fill } => {
                    let at = usize::from(at);
                    let seq = seq.wrapping_add(part.start as u32);
                    let flags = self.flags_of(flags, part);
                    write_u32(head, at + tcp::SEQ, seq);
                    head[at + tcp::FLAGS] = flags;
                    if self.sums_payload {
                        body = word(base);
                        body.add_u32(seq);
                        body.add_u16(u16::from(flags));
                        body.append(payload, part.len);
                        if fill {
                            write_u16(head, at + tcp::CHECKSUM, complete(body, false).value());
                        }
                    }
                }
                Op::Udp { at, base, fill } => {
                    if self.sums_payload {
                        body = word(base);
                        body.append(payload, part.len);
                        if fill {
                            write_u16(head, usize::from(at) + udp::CHECKSUM, complete(body, true).value());
                        }
                    }
                }
                Op::Ipv4 { at, id, base } => {
                    stamp_ipv4(head, usize::from(at), id.wrapping_add(part.index as u16), base);
                }
                Op::GreSeq { at, seq } => {
                    let seq = seq.wrapping_add(part.index as u32);
                    write_u32(head, usize::from(at), seq);
                    varied.add_u32(seq);
                }
                Op::Reveal => varied.add_u16(body.fold()),
                Op::Checksum { at, base, udp } => {
                    varied.add_u16(base);
                    write_u16(head, usize::from(at), complete(varied, udp).value());
                    varied = Sum::ZERO;
                }
            }
        }
    }
}

/// Headers of segments that differ in nothing but counting fields, one after the other.
struct Counting<'a> {
    /// What they have in common, first of all.
    block: &'a [u8; BLOCK],
    /// Where the TCP header is.
    tcp: usize,
    /// Sequence number of the next, and how far the one after it is.
    seq: u32,
    step: u32,
    /// What is constant of the sum, where the checksum is not left to the port.
    base: Option<Sum>,
    /// Of IPv4 where identifications count: where the header is, the next of them, and the sum of all else.
    ipv4: Option<(usize, u16, u16)>,
}

impl Counting<'_> {
    /// Writes the next but for its TCP checksum, and returns what is not payload of the latter's sum, where it is owed.
    #[inline(always)]
    fn write(&mut self, head: &mut [u8; BLOCK]) -> Option<Sum> {
        *head = *self.block;
        write_u32(head, self.tcp + tcp::SEQ, self.seq);
        if let Some((at, id, base)) = &mut self.ipv4 {
            stamp_ipv4(head, *at, *id, *base);
            *id = id.wrapping_add(1);
        }
        let mut sum = self.base;
        if let Some(sum) = &mut sum {
            sum.add_u32(self.seq);
        }
        self.seq = self.seq.wrapping_add(self.step);
        sum
    }

    /// Writes the next, has `fill` write the payload behind it and sum that, and completes the checksum.
    #[inline(always)]
    fn complete(&mut self, frame: &mut [u8], fill: impl FnOnce(&mut [u8], Option<&mut Sum>)) {
        let Some(head) = frame.first_chunk_mut() else { return };
        let mut sum = self.write(head);
        fill(frame, sum.as_mut());
        if let Some(sum) = sum {
            write_u16(frame, self.tcp + tcp::CHECKSUM, Field::complete(sum).value());
        }
    }
}

/// Whole frames one behind the other: headers and payload are written, and checksums completed.
struct Fill<'a, 'c, B> {
    heads: Counting<'a>,
    head_len: usize,
    /// Bytes of payload of each.
    size: usize,
    cursor: &'a mut Cursor<'c, B>,
    memory: &'a mut [u8],
    /// Bytes in front of each.
    room: usize,
}

impl<B: AsRef<[u8]>> arch::Work for Fill<'_, '_, B> {
    #[inline(always)]
    fn run(self, copier: impl arch::Copier) {
        let Fill { mut heads, head_len, size, cursor, memory, room } = self;
        let mut places = memory.chunks_exact_mut(room + head_len + size).map(|place| &mut place[room..]);
        loop {
            // Most lie in one piece.
            let mut taken = 0;
            for (piece, frame) in cursor.rest().chunks_exact(size).zip(places.by_ref()) {
                heads.complete(frame, |frame, sum| match sum {
                    Some(sum) => sum.copy_by(copier, &mut frame[head_len..], piece),
                    None => frame[head_len..].copy_from_slice(piece),
                });
                taken += size;
            }
            cursor.take(taken, |_| {});
            let Some(frame) = places.next() else { return };
            heads.complete(frame, |frame, sum| cursor.copy(&mut frame[head_len..], sum));
        }
    }
}

/// Writes the identification and the checksum of the IPv4 header at `at`, whose other words sum to `base`.
#[inline(always)]
fn stamp_ipv4(head: &mut [u8], at: usize, id: u16, base: u16) {
    write_u16(head, at + ipv4::ID, id);
    let mut sum = word(base);
    sum.add_u16(id);
    write_u16(head, at + ipv4::CHECKSUM, Field::complete(sum).value());
}

/// What lies behind a header while a plan is made.
struct Tail {
    /// The sum of all that is the same for each segment.
    sum: Sum,
    /// Whether ops add to it.
    varies: bool,
    /// Whether the payload is in what they add.
    has_body: bool,
}

/// What a length field says: zero for a train that it cannot say.
fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

fn complete(sum: Sum, udp: bool) -> Field {
    if udp { Field::complete_udp(sum) } else { Field::complete(sum) }
}

/// Whether an outer UDP header of a train carries a checksum. One that was right for the train is computed anew.
fn has_udp_checksum(head: &[u8], header: &Header, layer: Layer) -> bool {
    match layer.udp {
        LayerCsum::Absent => false,
        LayerCsum::Owed => true,
        LayerCsum::Unknown | LayerCsum::Done => read_u16(head, header.start() + udp::CHECKSUM) != Some(0),
    }
}

/// Checks the tunnel levels of a train against its headers and returns the one with a remote transport checksum.
fn check_layers(head: &[u8], layout: &Layout, layers: &[Layer]) -> Result<Option<usize>, Refusal> {
    if layers.len() + 1 != layout.ip_levels() {
        return Err(Refusal::Levels);
    }
    super::whole::check_places(head, layout, layers)?;
    Ok(layers.iter().position(|layer| layer.remote == Some(Remote::Transport)))
}

/// The parts of a train, in order.
pub(super) struct Parts<'a, B> {
    cursor: Cursor<'a, B>,
    total: usize,
    size: usize,
    /// Most bytes of payload in one part; 0 where the port takes no trains.
    most: usize,
    /// Most segments of a part that is not the last; at least 1.
    segs: usize,
    /// Most pieces of a part, and most bytes of a piece, where that can matter.
    pieces: Option<(usize, usize)>,
    at: usize,
    index: usize,
    started: bool,
}

impl<B> Parts<'_, B> {
    /// How many segments of full size come next, where each is a part.
    fn whole(&self) -> usize {
        if self.most == 0 && self.pieces.is_none() { (self.total - self.at) / self.size } else { 0 }
    }

    /// Goes on behind `count` of them.
    fn skip(&mut self, count: usize) {
        self.at += count * self.size;
        self.index += count;
        self.started |= count > 0;
    }
}

impl<B: AsRef<[u8]>> Parts<'_, B> {
    /// The most bytes and segments of the next part where pieces count.
    #[inline(never)]
    fn reach(&self, (pieces, most_piece): (usize, usize)) -> (usize, usize) {
        let most = self.most.min(self.cursor.reach(pieces.saturating_sub(1), most_piece));
        (most, (most / self.size).max(1))
    }
}

impl<B: AsRef<[u8]>> Iterator for Parts<'_, B> {
    type Item = Part;

    // A part returned through memory is read back before its stores have drained, which costs more than all else here.
    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        let left = self.total - self.at;
        if left == 0 && self.started {
            return None;
        }
        self.started = true;
        let (most, segs) = match self.pieces {
            None => (self.most, self.segs),
            Some(pieces) => self.reach(pieces),
        };
        let len = if left <= most { left } else { (segs * self.size).min(left) };
        let part = Part { index: self.index, start: self.at, len, last: len == left };
        self.at += len;
        self.index += segs;
        if self.pieces.is_some() {
            self.cursor.take(len, |_| {});
        }
        Some(part)
    }
}
