//! Reading and rewriting of addresses, ports and identifiers in packets.

use segue::checksum::{Field, Sum};
use segue::packet::{Csum, Frag, Kind, LayerCsum, Packet, Payload, Stop, Unit};
use segue::wire::icmp::v4::{
    ADDRESS_MASK_REPLY, ECHO_REPLY, INFORMATION_REPLY, PARAMETER_PROBLEM, SOURCE_QUENCH, TIME_EXCEEDED,
    TIMESTAMP_REPLY, UNREACHABLE,
};
use segue::wire::{icmp, ipv4, protocol, read_u16, read_u32, tcp, udp, write_u16, write_u32};

use super::config::Protocol;
use super::connections::Segment;
use super::outcome::Refusal;

/// An address with a port or an ICMP identifier ("transport address", RFC 8489, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransportAddr {
    pub(super) address: u32,
    pub(super) port: u16,
}

/// Side of a packet whose address is read or rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Source and destination of the packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted {
    pub(super) source: TransportAddr,
    pub(super) destination: TransportAddr,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// A TCP or UDP header at the given index of the layout.
    Ports(Protocol, usize),
    /// A TCP or UDP header at the start of the payload, in a first fragment.
    First(Protocol),
    /// An ICMP query, or the reply to one.
    Query { is_reply: bool },
    /// An ICMP error about a packet of the given protocol.
    Error { protocol: Protocol, quoted: Quoted },
}

/// Source, destination and content of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) source: TransportAddr,
    pub(super) destination: TransportAddr,
    /// TCP segment of the packet; the default for other protocols.
    pub(super) segment: Segment,
    pub(super) content: Content,
    /// Index of the IP header in the layout.
    pub(super) ip: usize,
}

impl Flow {
    pub(super) fn protocol(&self) -> Protocol {
        match self.content {
            Content::Ports(protocol, _) | Content::First(protocol) | Content::Error { protocol, .. } => protocol,
            Content::Query { .. } => Protocol::Icmp,
        }
    }
}

/// Largest number of bytes of an ICMP message that are read: its header, a quoted IP header and a quoted TCP header.
const MOST: usize = icmp::LEN + ipv4::MAX_LEN + tcp::MIN_LEN;

/// Returns the destination of the outermost packet, or `None` where it is not IPv4.
pub(super) fn destination<B: AsRef<[u8]>>(packet: &Packet<B>) -> Option<u32> {
    let header = packet.layout.outer_ip()?;
    (header.kind == Kind::Ipv4).then(|| read_u32(packet.head.bytes(), header.start() + ipv4::DST.start)).flatten()
}

/// Reads the outermost IPv4 packet.
pub(super) fn read<B: AsRef<[u8]>>(packet: &Packet<B>) -> Result<Flow, Refusal> {
    let headers = packet.layout.headers();
    let ip = packet.layout.outer_ip_index().filter(|at| headers[*at].kind == Kind::Ipv4);
    let ip = ip.ok_or(Refusal::NotV4)?;
    let bytes = packet.head.bytes().get(headers[ip].start()..).ok_or(Refusal::Malformed)?;
    let address = |at| read_u32(bytes, at).ok_or(Refusal::Malformed);
    let (source, destination) = (address(ipv4::SRC.start)?, address(ipv4::DST.start)?);
    if read_u16(bytes, ipv4::FRAGMENT).is_none_or(|word| word & ipv4::OFFSET != 0) {
        return Err(Refusal::Fragment);
    }
    let end = if packet.layout.is_padded() { packet.layout.end() } else { packet.len() };
    let flow = |ports: (u16, u16), segment, content| Flow {
        source: TransportAddr { address: source, port: ports.0 },
        destination: TransportAddr { address: destination, port: ports.1 },
        segment,
        content,
        ip,
    };
    let Some(next) = headers.get(ip + 1) else {
        return match (packet.layout.stop(), bytes[ipv4::PROTOCOL]) {
            (Stop::Protocol | Stop::Fragment, protocol::ICMP) => icmp_message(packet, flow),
            (Stop::Fragment, protocol::TCP) => first(packet, Protocol::Tcp, flow),
            (Stop::Fragment, protocol::UDP) => first(packet, Protocol::Udp, flow),
            (Stop::Fragment, _) => Err(Refusal::Protocol),
            (Stop::Protocol | Stop::Foreign, _) => Err(Refusal::Protocol),
            _ => Err(Refusal::Malformed),
        };
    };
    let of = match next.kind {
        Kind::Tcp => Protocol::Tcp,
        Kind::Udp => Protocol::Udp,
        _ => return Err(Refusal::Protocol),
    };
    let bytes = packet.head.bytes().get(next.start()..next.end()).ok_or(Refusal::Malformed)?;
    let port = |at| read_u16(bytes, at).ok_or(Refusal::Malformed);
    let segment = if of == Protocol::Tcp { segment(bytes, end.saturating_sub(next.end())) } else { Segment::default() };
    Ok(flow((port(udp::SRC_PORT)?, port(udp::DST_PORT)?), segment, Content::Ports(of, ip + 1)))
}

/// Reads the tracked fields of a TCP header; `len` is the length of the data after it.
fn segment(header: &[u8], len: usize) -> Segment {
    let word = |at| read_u32(header, at).unwrap_or(0);
    let flags = header.get(tcp::FLAGS).copied().unwrap_or(0);
    Segment { flags, seq: word(tcp::SEQ), ack: word(tcp::ACK_NUMBER), len: u32::try_from(len).unwrap_or(0) }
}

/// Reads the header of a first fragment, which must be complete up to its checksum (RFC 1858, section 3: shorter ones
/// are an attack).
fn first<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    of: Protocol,
    flow: impl Fn((u16, u16), Segment, Content) -> Flow,
) -> Result<Flow, Refusal> {
    let mut front = [0; tcp::MIN_LEN];
    let len = packet.payload.copy_to(0..tcp::MIN_LEN, &mut front);
    if len < if of == Protocol::Tcp { tcp::MIN_LEN } else { udp::LEN } {
        return Err(Refusal::TinyFragment);
    }
    let port = |at| read_u16(&front, at).ok_or(Refusal::TinyFragment);
    let header_len = usize::from(front[tcp::OFFSET] >> 4) * 4;
    let data = packet.payload.len().saturating_sub(header_len);
    let segment = if of == Protocol::Tcp { segment(&front, data) } else { Segment::default() };
    Ok(flow((port(udp::SRC_PORT)?, port(udp::DST_PORT)?), segment, Content::First(of)))
}

fn icmp_message<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    flow: impl Fn((u16, u16), Segment, Content) -> Flow,
) -> Result<Flow, Refusal> {
    let mut front = [0; MOST];
    let len = packet.payload.copy_to(0..MOST, &mut front);
    let bytes = &front[..len];
    let id = read_u16(bytes, icmp::IDENTIFIER).ok_or(Refusal::Malformed)?;
    match bytes[icmp::TYPE] {
        kind if icmp::v4::has_identifier(kind) => {
            let is_reply = matches!(kind, ECHO_REPLY | TIMESTAMP_REPLY | INFORMATION_REPLY | ADDRESS_MASK_REPLY);
            Ok(flow((id, id), Segment::default(), Content::Query { is_reply }))
        }
        // A redirect is for hosts of the same link and is not translated.
        UNREACHABLE | SOURCE_QUENCH | TIME_EXCEEDED | PARAMETER_PROBLEM => {
            let quoted = bytes.get(icmp::QUOTED..).unwrap_or(&[]);
            let first = *quoted.first().ok_or(Refusal::Malformed)?;
            let at = ipv4::header_len(first);
            if first >> 4 != 4 || at < ipv4::MIN_LEN || quoted.len() < at + 8 {
                return Err(Refusal::Malformed);
            }
            if read_u16(quoted, ipv4::FRAGMENT).is_none_or(|word| word & ipv4::OFFSET != 0) {
                return Err(Refusal::Fragment);
            }
            let word = |at| read_u16(quoted, at).unwrap_or(0);
            let (of, ports) = match quoted[ipv4::PROTOCOL] {
                protocol::TCP => (Protocol::Tcp, (word(at + udp::SRC_PORT), word(at + udp::DST_PORT))),
                protocol::UDP => (Protocol::Udp, (word(at + udp::SRC_PORT), word(at + udp::DST_PORT))),
                // An echo has one identifier for both directions.
                protocol::ICMP => (Protocol::Icmp, (word(at + icmp::IDENTIFIER), word(at + icmp::IDENTIFIER))),
                _ => return Err(Refusal::Protocol),
            };
            let end = |at, port| TransportAddr { address: read_u32(quoted, at).unwrap_or(0), port };
            let source = end(ipv4::SRC.start, ports.0);
            let quoted = Quoted { source, destination: end(ipv4::DST.start, ports.1) };
            Ok(flow((0, 0), Segment::default(), Content::Error { protocol: of, quoted }))
        }
        _ => Err(Refusal::Protocol),
    }
}

/// Replaces the source or destination address and port of a packet, or the address and identifier of a query.
pub(super) fn flow<B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    flow: &Flow,
    side: Side,
    new: TransportAddr,
    copy: &mut dyn FnMut(&[u8]) -> Option<B>,
) -> Result<(), Refusal> {
    let old = if side == Side::Source { flow.source } else { flow.destination };
    match flow.content {
        Content::Ports(of, index) => ports(packet, of, index, side, old, new),
        Content::First(of) => front(packet, copy, |bytes| transport(bytes, of, side, (old, new), false))?,
        Content::Query { .. } => {
            if old.port != new.port {
                message(packet, copy, |bytes| {
                    write_u16(bytes, icmp::IDENTIFIER, new.port);
                })?;
            }
        }
        Content::Error { .. } => return Err(Refusal::Protocol),
    }
    address(packet, flow.ip, side, new.address);
    Ok(())
}

/// Replaces the source or destination address of an ICMP error, and the opposite address and port of the packet that it
/// quotes.
pub(super) fn error<B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    flow: &Flow,
    side: Side,
    new: TransportAddr,
    copy: &mut dyn FnMut(&[u8]) -> Option<B>,
) -> Result<(), Refusal> {
    let Content::Error { protocol, quoted } = flow.content else { return Err(Refusal::Protocol) };
    let (old, address_at, port_at) = match side {
        Side::Source => (quoted.destination, ipv4::DST.start, udp::DST_PORT),
        Side::Destination => (quoted.source, ipv4::SRC.start, udp::SRC_PORT),
    };
    message(packet, copy, |bytes| {
        let quoted = &mut bytes[icmp::QUOTED..];
        let at = ipv4::header_len(quoted[0]);
        let header = Field::from_wire(read_u16(quoted, ipv4::CHECKSUM).unwrap_or(0));
        write_u32(quoted, address_at, new.address);
        write_u16(quoted, ipv4::CHECKSUM, header.update_u32(old.address, new.address).value());
        let (port_at, field_at) = match protocol {
            Protocol::Tcp => (port_at, tcp::CHECKSUM),
            Protocol::Udp => (port_at, udp::CHECKSUM),
            Protocol::Icmp => (icmp::IDENTIFIER, icmp::CHECKSUM),
        };
        write_u16(quoted, at + port_at, new.port);
        // The quoted part may end before its checksum.
        if let Some(field) = read_u16(quoted, at + field_at) {
            let mut field = Field::from_wire(field).update(old.port, new.port);
            if protocol != Protocol::Icmp {
                field = field.update_u32(old.address, new.address);
            }
            let is_absent = protocol == Protocol::Udp && read_u16(quoted, at + field_at) == Some(0);
            if !is_absent {
                let field = if protocol == Protocol::Udp { field.nonzero() } else { field };
                write_u16(quoted, at + field_at, field.value());
            }
        }
    })?;
    // The sender of the error may be a router on the path rather than the peer; its own address is not shown outside.
    address(packet, flow.ip, side, new.address);
    Ok(())
}

/// Returns source and destination of the IPv4 header at this index of the layout.
pub(super) fn addresses<B: AsRef<[u8]>>(packet: &Packet<B>, ip: usize) -> Option<(u32, u32)> {
    let header = packet.layout.headers().get(ip)?;
    let bytes = packet.head.bytes().get(header.start()..)?;
    Some((read_u32(bytes, ipv4::SRC.start)?, read_u32(bytes, ipv4::DST.start)?))
}

/// Replaces an address in the IP header at this index of the layout, and updates the header checksum.
pub(super) fn address<B: AsRef<[u8]>>(packet: &mut Packet<B>, ip: usize, side: Side, new: u32) {
    let header = packet.layout.headers()[ip];
    let bytes = &mut packet.head.bytes_mut()[header.start()..];
    let at = if side == Side::Source { ipv4::SRC.start } else { ipv4::DST.start };
    let old = read_u32(bytes, at).unwrap_or(0);
    let field = Field::from_wire(read_u16(bytes, ipv4::CHECKSUM).unwrap_or(0));
    write_u32(bytes, at, new);
    write_u16(bytes, ipv4::CHECKSUM, field.update_u32(old, new).value());
    if let Unit::Whole(csum @ Csum::Complete(_)) = &mut packet.offload.unit {
        *csum = Csum::Unknown;
    }
}

/// Replaces a port in a TCP or UDP header, and updates its checksum by the port and the address.
fn ports<B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    of: Protocol,
    index: usize,
    side: Side,
    old: TransportAddr,
    new: TransportAddr,
) {
    let header = packet.layout.headers()[index];
    let is_inner = packet.layout.transport() == Some(&header);
    let is_primed = if is_inner {
        matches!(packet.offload.unit, Unit::Train { .. } | Unit::Whole(Csum::Partial))
    } else {
        // The UDP header of a tunnel: its pending checksum is computed over the bytes that then stand there.
        packet.offload.layers().first().is_some_and(|layer| layer.udp == LayerCsum::Owed)
    };
    transport(&mut packet.head.bytes_mut()[header.start()..header.end()], of, side, (old, new), is_primed);
}

/// Replaces a port as [`ports`] does, in the bytes of the header; `is_primed` where the checksum is still to be
/// completed.
fn transport(bytes: &mut [u8], of: Protocol, side: Side, (old, new): (TransportAddr, TransportAddr), is_primed: bool) {
    let at = if side == Side::Source { udp::SRC_PORT } else { udp::DST_PORT };
    let field_at = if of == Protocol::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    write_u16(bytes, at, new.port);
    let value = read_u16(bytes, field_at).unwrap_or(0);
    let field = if is_primed {
        // The field holds the sum of the pseudo-header, not complemented and without ports.
        !Field::from_wire(!value).update_u32(old.address, new.address).value()
    } else if of == Protocol::Udp && value == 0 {
        return;
    } else {
        let field = Field::from_wire(value).update_u32(old.address, new.address).update(old.port, new.port);
        if of == Protocol::Udp { field.nonzero().value() } else { field.value() }
    };
    write_u16(bytes, field_at, field);
}

/// Replaces the start of an ICMP message in a new buffer, and updates the checksum by the difference.
fn message<B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), Refusal> {
    front(packet, copy, |bytes| {
        let before = Sum::of(bytes);
        let field = read_u16(bytes, icmp::CHECKSUM).unwrap_or(0);
        change(bytes);
        let mut sum = Sum::ZERO;
        sum.add_u16(!field);
        sum.append(Sum::of(bytes), 0);
        sum.remove(before);
        write_u16(bytes, icmp::CHECKSUM, !sum.fold());
    })
}

/// Replaces the start of the payload in a new buffer.
fn front<B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    copy: &mut dyn FnMut(&[u8]) -> Option<B>,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), Refusal> {
    let mut front = [0; MOST];
    let len = packet.payload.copy_to(0..MOST, &mut front);
    let bytes = &mut front[..len];
    change(bytes);
    let buffer = copy(bytes).ok_or(Refusal::Memory)?;
    if buffer.as_ref().len() != len {
        return Err(Refusal::Memory);
    }
    let mut payload = Payload::default();
    payload.push(Frag::all(buffer));
    packet.payload.advance(len);
    payload.append(&mut packet.payload);
    packet.payload = payload;
    Ok(())
}

#[cfg(test)]
mod tests;
