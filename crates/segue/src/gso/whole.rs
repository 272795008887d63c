//! Single packets: owed checksums are filled in, from the inside out.

use super::check::{check, is_routed, pseudo, transport, word};
use super::limits::{Limits, MAX_IP_LEN};
use super::refusal::Refusal;
use super::segment::SegmentCsum;
use crate::checksum::{Field, Sum};
use crate::packet::{Buffer, Csum, Header, Kind, Layer, LayerCsum, Layout, Packet, Payload, Remote, Unit, remote};
use crate::wire::parse::MAX_HEADERS;
use crate::wire::{gre, ipv4, ipv6, read_u16, udp, write_u16};

/// The result of filling in checksums.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filled {
    /// The part of the transport checksum that is left to the port.
    pub(super) csum: SegmentCsum,
    /// Whether the transport checksum was completed.
    pub(super) completed: bool,
    /// Number of payload bytes that were summed.
    pub(super) summed: u64,
}

/// The task of completing the transport checksum of a single packet, and which of port and receiver has it.
pub(super) struct Task {
    csum: Csum,
    /// Tunnel level whose receiver completes the checksum.
    remote: Option<usize>,
    /// The part that is left to the port.
    left: SegmentCsum,
    /// Whether the checksum is completed here.
    complete: bool,
}

impl Task {
    /// Returns the task for `packet` and a port with `limits`.
    pub(super) fn new<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> Result<Task, Refusal> {
        let Unit::Whole(csum) = packet.offload.unit else { return Err(Refusal::Train) };
        let layers = packet.offload.layers();
        let remote = layers.iter().position(|layer| layer.remote == Some(Remote::Transport));
        let left = match csum {
            Csum::Partial if remote.is_none() && limits.csum => SegmentCsum::Partial,
            Csum::Verified if layers.is_empty() => SegmentCsum::Verified,
            _ => SegmentCsum::AsIs,
        };
        if csum == Csum::Partial {
            transport(&packet.layout)?;
        }
        Ok(Task { csum, remote, left, complete: csum == Csum::Partial && remote.is_none() && !limits.csum })
    }
}

/// Fills in the checksums that are owed in `head`, a copy of the packet's headers, and that the port with `limits` does
/// not compute itself.
pub(super) fn fill<B: Buffer>(head: &mut [u8], packet: &Packet<B>, limits: &Limits) -> Result<Filled, Refusal> {
    let task = Task::new(packet, limits)?;
    if !task.complete && !packet.offload.layers().iter().any(is_owed) {
        return Ok(Filled { csum: task.left, completed: false, summed: 0 });
    }
    check(head, &packet.layout)?;
    match fill_short(head, packet, limits, &task)? {
        Some(filled) => Ok(filled),
        None => fill_any(head, packet, limits, &task),
    }
}

/// Fills in the checksums of a packet that owes none but that of its transport header and the outermost UDP checksum,
/// and the latter to the port: most packets that are sent. Returns `None`, and changes nothing, for any other.
///
/// [`check`] has passed; what [`check_checksum_offsets`] would find is found here.
pub(super) fn fill_short<B: Buffer>(
    head: &mut [u8],
    packet: &Packet<B>,
    limits: &Limits,
    task: &Task,
) -> Result<Option<Filled>, Refusal> {
    let layers = packet.offload.layers();
    let is_outermost_owed = is_outermost_alone_owed(layers);
    let is_short = if is_outermost_owed { limits.outer_csum } else { !layers.iter().any(is_owed) };
    if !is_short || layers.iter().any(|layer| layer.remote == Some(Remote::Gre)) {
        return Ok(None);
    }
    let mut summed = 0;
    if task.complete {
        if !complete_transport(head, packet) {
            return Ok(None);
        }
        summed = packet.payload.len() as u64;
    }
    if is_outermost_owed {
        prime_tunnel(head, packet, task)?;
    }
    Ok(Some(Filled { csum: task.left, completed: task.complete, summed }))
}

/// Fills in the checksums of any packet, at every level. [`check`] has passed.
#[inline(never)]
pub(super) fn fill_any<B: Buffer>(
    head: &mut [u8],
    packet: &Packet<B>,
    limits: &Limits,
    task: &Task,
) -> Result<Filled, Refusal> {
    let Task { csum, remote, left, complete } = *task;
    let layers = packet.offload.layers();
    check_checksum_offsets(head, &packet.layout, layers)?;

    let layout = &packet.layout;
    let ends = ends(head, layout, packet.len());
    if limits.outer_csum && is_outermost_alone_owed(layers) {
        // The field that the port completes holds no sum of what follows its header.
        let summed = if complete { InnerSum::new(head, packet, csum, &ends, true).summed } else { 0 };
        prime_outermost(head, layout, packet.len())?;
        return Ok(Filled { csum: left, completed: complete, summed });
    }
    let mut inside = InnerSum::new(head, packet, csum, &ends, complete);
    let mut levels = layout.ip_levels();
    let mut hidden = remote.filter(|_| csum == Csum::Partial);
    let mut tail = Sum::ZERO;
    for (index, header) in layout.headers().iter().enumerate().rev() {
        if layout.transport() == Some(header) && index + 1 == layout.headers().len() {
            continue;
        }
        let level = levels.checked_sub(1);
        let layer = level.and_then(|k| layers.get(k)).copied().unwrap_or(Layer::NONE);
        if hidden.is_some() && hidden == level && matches!(header.kind, Kind::Udp | Kind::Ipv4 | Kind::Ipv6) {
            hidden = None;
            inside.reveal();
        }
        let (start, end) = (header.start(), ends[index]);
        match header.kind {
            Kind::Udp if layer.udp == LayerCsum::Owed => {
                let ip = index.checked_sub(1).and_then(|ip| layout.headers().get(ip)).ok_or(Refusal::Layout)?;
                if is_routed(head, ip) {
                    return Err(Refusal::Routing);
                }
                let mut sum = pseudo(head, ip, Kind::Udp, end - start).ok_or(Refusal::Layout)?;
                let field = if level == Some(0) && limits.outer_csum {
                    Field::primed(sum)
                } else {
                    write_u16(head, start + udp::CHECKSUM, 0);
                    sum.add(&head[start..header.end()]);
                    sum.add_u16(tail.fold());
                    sum.add_u16(inside.sum_to(end).fold());
                    Field::complete_udp(sum)
                };
                write_u16(head, start + udp::CHECKSUM, field.value());
            }
            Kind::Gre if layer.gre == LayerCsum::Owed => {
                write_u16(head, start + gre::CHECKSUM, 0);
                if layer.remote != Some(Remote::Gre) {
                    let mut sum = Sum::of(&head[start..header.end()]);
                    sum.add_u16(tail.fold());
                    sum.add_u16(inside.sum_to(end).fold());
                    write_u16(head, start + gre::CHECKSUM, Field::complete(sum).value());
                }
            }
            _ => {}
        }
        tail.add(&head[start..header.end()]);
        if header.is_ip() {
            levels -= 1;
        }
    }
    Ok(Filled { csum: left, completed: complete, summed: inside.summed })
}

/// Returns whether a checksum of the given level is owed.
fn is_owed(layer: &Layer) -> bool {
    layer.udp == LayerCsum::Owed || layer.gre == LayerCsum::Owed
}

/// Returns whether the checksum of the outermost UDP header is the only owed one of the given levels.
fn is_outermost_alone_owed(layers: &[Layer]) -> bool {
    let [outermost, others @ ..] = layers else { return false };
    outermost.udp == LayerCsum::Owed && outermost.gre != LayerCsum::Owed && !others.iter().any(is_owed)
}

/// Completes the primed checksum of the transport header. Returns `false`, and changes nothing, where the part that it
/// covers may end before the last byte of the packet.
fn complete_transport<B: Buffer>(head: &mut [u8], packet: &Packet<B>) -> bool {
    let (layout, payload) = (&packet.layout, &packet.payload);
    // A longer packet is exact with a length field of zero.
    if !layout.is_exact() || layout.end() != packet.len() || packet.len() > MAX_IP_LEN {
        return false;
    }
    let Some(header) = layout.transport() else { return false };
    let Some(field) = remote::field_offset(header.kind) else { return false };
    let mut sum = Sum::of(&head[header.start()..header.end()]);
    sum.append(payload.sum(0..payload.len()), payload.len());
    let value = if header.kind == Kind::Udp { Field::complete_udp(sum) } else { Field::complete(sum) };
    write_u16(head, header.start() + field, value.value());
    true
}

/// Primes the checksum of the outermost UDP header of a packet in tunnels nothing else of which is owed. [`check`] has
/// passed; what [`check_checksum_offsets`] would find is found here.
fn prime_tunnel<B: Buffer>(head: &mut [u8], packet: &Packet<B>, task: &Task) -> Result<(), Refusal> {
    let layout = &packet.layout;
    let transport = layout.transport();
    // Between two IP headers UDP can only be right behind the first.
    let header =
        layout.inside_outer_ip().first().filter(|header| header.kind == Kind::Udp && transport != Some(header));
    if header.is_none() || task.remote.is_some() && transport.is_none() {
        return Err(Refusal::Levels);
    }
    prime_outermost(head, layout, packet.len())
}

/// Primes the checksum of the outermost UDP header, which follows the outermost IP header: [`check`] has ensured that.
/// The packet has `len` bytes.
fn prime_outermost(head: &mut [u8], layout: &Layout, len: usize) -> Result<(), Refusal> {
    let at = layout.outer_ip_index().ok_or(Refusal::Layout)?;
    let [ip, header] = *layout.headers().get(at..).and_then(<[Header]>::first_chunk::<2>).ok_or(Refusal::Layout)?;
    if is_routed(head, &ip) {
        return Err(Refusal::Routing);
    }
    // What is in front of the outermost IP header has no length field.
    let least = layout.header_len();
    let end = [ip, header].iter().fold(len.max(least), |limit, header| end_within(head, header, least, limit));
    let len = end.checked_sub(header.start()).ok_or(Refusal::Layout)?;
    let sum = pseudo(head, &ip, Kind::Udp, len).ok_or(Refusal::Layout)?;
    write_u16(head, header.start() + udp::CHECKSUM, Field::primed(sum).value());
    Ok(())
}

/// Checks that every checksum that a layer mentions has a field in the headers of that level.
pub(super) fn check_checksum_offsets(head: &[u8], layout: &Layout, layers: &[Layer]) -> Result<(), Refusal> {
    let transport = layout.transport().map(Header::start);
    for (level, layer) in layers.iter().enumerate() {
        let mut ips = 0;
        let (mut has_udp, mut has_gre) = (false, false);
        for header in layout.headers() {
            ips += usize::from(header.is_ip());
            if ips != level + 1 {
                continue;
            }
            has_udp |= header.kind == Kind::Udp && Some(header.start()) != transport;
            has_gre |=
                header.kind == Kind::Gre && read_u16(head, header.start()).is_some_and(|flags| flags & gre::CSUM != 0);
        }
        let fits = (layer.udp != LayerCsum::Owed || has_udp)
            && (layer.gre != LayerCsum::Owed || has_gre)
            && (layer.remote != Some(Remote::Gre) || has_gre)
            && (layer.remote != Some(Remote::Transport) || transport.is_some());
        if !fits {
            return Err(Refusal::Levels);
        }
    }
    Ok(())
}

/// Returns the end offset of the part that starts with each header, by the length fields in and around it.
fn ends(head: &[u8], layout: &Layout, len: usize) -> [usize; MAX_HEADERS] {
    let mut ends = [0; MAX_HEADERS];
    let (mut limit, least) = (len, layout.header_len());
    for (end, header) in ends.iter_mut().zip(layout.headers()) {
        limit = end_within(head, header, least, limit);
        *end = limit;
    }
    ends
}

/// Returns where the part that starts with `header` ends, by its length field, if the part around it ends at `limit`
/// and all headers at `least`.
#[inline(always)]
fn end_within(head: &[u8], header: &Header, least: usize, limit: usize) -> usize {
    let field = |at| usize::from(read_u16(head, header.start() + at).unwrap_or(u16::MAX));
    let stated = match header.kind {
        Kind::Ipv4 => header.start() + field(ipv4::TOTAL_LEN),
        Kind::Ipv6 => header.start() + ipv6::LEN + field(ipv6::PAYLOAD_LEN),
        Kind::Udp => header.start() + field(udp::LENGTH),
        _ => limit,
    };
    // Never before the end of the headers, since the layout says that they are all inside.
    limit.min(stated).max(least)
}

/// The sum of the transport header and all payload, as the outer checksums count it.
struct InnerSum<'a, B> {
    payload: &'a Payload<B>,
    head_len: usize,
    /// The sum so far, from the transport header on.
    sum: Sum,
    /// Number of payload bytes in the sum.
    upto: usize,
    /// The sum of the transport header as it is sent.
    sent: Sum,
    summed: u64,
}

impl<'a, B: Buffer> InnerSum<'a, B> {
    /// Starts the sum; completes the transport checksum on the way if `complete` is set.
    fn new(
        head: &mut [u8],
        packet: &'a Packet<B>,
        csum: Csum,
        ends: &[usize; MAX_HEADERS],
        complete: bool,
    ) -> InnerSum<'a, B> {
        let layout = &packet.layout;
        let mut inside = InnerSum {
            payload: &packet.payload,
            head_len: layout.header_len(),
            sum: Sum::ZERO,
            upto: 0,
            sent: Sum::ZERO,
            summed: 0,
        };
        let Some(header) = layout.transport() else { return inside };
        let index = layout.headers().len() - 1;
        let end = ends[index];
        let place = header.start() + remote::field_offset(header.kind).unwrap_or(udp::CHECKSUM);
        inside.sent = Sum::of(&head[header.start()..header.end()]);
        inside.sum = inside.sent;
        let covered = match csum {
            Csum::Partial => {
                if complete {
                    let sum = inside.sum_to(end);
                    let field = if header.kind == Kind::Udp { Field::complete_udp(sum) } else { Field::complete(sum) };
                    let primed = read_u16(head, place);
                    write_u16(head, place, field.value());
                    primed
                } else {
                    read_u16(head, place)
                }
            }
            Csum::Verified => {
                let ip = index.checked_sub(1).and_then(|ip| layout.headers().get(ip));
                ip.filter(|ip| !is_routed(head, ip))
                    .and_then(|ip| pseudo(head, ip, header.kind, end - header.start()))
                    .map(Sum::fold)
            }
            Csum::Unknown | Csum::Absent | Csum::Complete(_) | Csum::Bad => None,
        };
        if let Some(pseudo) = covered {
            // A part under a good checksum sums to the complement of its pseudo header.
            inside.sum = word(!pseudo);
            inside.upto = end - inside.head_len;
            inside.sum.append(Sum::ZERO, inside.upto);
        }
        inside
    }

    /// Switches the running sum to the completed transport checksum, for the outer levels.
    fn reveal(&mut self) {
        self.sum = self.sent;
        self.upto = 0;
    }

    /// Returns the sum up to `end`, counted from the start of the packet; successive ends must not decrease.
    fn sum_to(&mut self, end: usize) -> Sum {
        let to = end.saturating_sub(self.head_len);
        if to > self.upto {
            self.sum.append(self.payload.sum(self.upto..to), to - self.upto);
            self.summed += (to - self.upto) as u64;
            self.upto = to;
        }
        self.sum
    }
}
