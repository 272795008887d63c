//! Reading and rewriting of addresses, ports and identifiers in packets.

use segue::checksum::{Field, Sum};
use segue::packet::{Csum, Frag, Kind, LayerCsum, Packet, Payload, Stop, Unit};
use segue::wire::icmp::v4::{PARAMETER_PROBLEM, SOURCE_QUENCH, TIME_EXCEEDED, UNREACHABLE};
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
    /// An ICMP query or its reply.
    Query,
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
            Content::Query => Protocol::Icmp,
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
        kind if icmp::v4::has_identifier(kind) => Ok(flow((id, id), Segment::default(), Content::Query)),
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
        Content::Query => {
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
mod tests {
    use segue::packet::{Start, Tunnels};

    use super::*;

    const NEAR: TransportAddr = TransportAddr { address: 0xc612_0001, port: 5555 };
    const FAR: TransportAddr = TransportAddr { address: 0xc613_0001, port: 80 };
    const NEW: TransportAddr = TransportAddr { address: 0x0a01_fe07, port: 61_234 };

    /// Returns an IPv4 packet from [`NEAR`] to [`FAR`] with the given protocol and word of flags and offset.
    fn ip(of: u8, word: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ipv4::MIN_LEN];
        (bytes[0], bytes[ipv4::TTL], bytes[ipv4::PROTOCOL]) = (0x45, 64, of);
        write_u16(&mut bytes, ipv4::TOTAL_LEN, (ipv4::MIN_LEN + rest.len()) as u16);
        write_u16(&mut bytes, ipv4::FRAGMENT, word);
        write_u32(&mut bytes, ipv4::SRC.start, NEAR.address);
        write_u32(&mut bytes, ipv4::DST.start, FAR.address);
        let field = !fold(&[&bytes]);
        write_u16(&mut bytes, ipv4::CHECKSUM, field);
        [bytes, rest.to_vec()].concat()
    }

    /// Returns a header of this length with both ports, and the fields of a TCP header where it has them.
    fn header(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.max(tcp::MIN_LEN)];
        write_u16(&mut bytes, udp::SRC_PORT, NEAR.port);
        write_u16(&mut bytes, udp::DST_PORT, FAR.port);
        if len >= tcp::MIN_LEN {
            write_u32(&mut bytes, tcp::SEQ, 0x0102_0304);
            write_u32(&mut bytes, tcp::ACK_NUMBER, 0x0506_0708);
            (bytes[tcp::OFFSET], bytes[tcp::FLAGS]) = (0x50, tcp::ACK | tcp::PSH);
        }
        bytes.truncate(len);
        bytes
    }

    fn load(bytes: Vec<u8>) -> Packet<Vec<u8>> {
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
        packet
    }

    fn image(packet: &Packet<Vec<u8>>) -> Vec<u8> {
        let mut bytes = packet.head.bytes().to_vec();
        bytes.extend(packet.payload.pieces(0..packet.payload.len()).flatten());
        bytes
    }

    /// Returns the one's complement sum of parts of even length (RFC 1071).
    fn fold(parts: &[&[u8]]) -> u16 {
        let words = parts.iter().flat_map(|part| part.chunks(2));
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    /// Returns the pseudo-header of UDP and TCP over IPv4 (RFC 9293, section 3.1).
    fn pseudo(source: u32, destination: u32, of: u8, len: usize) -> Vec<u8> {
        [&source.to_be_bytes()[..], &destination.to_be_bytes(), &[0, of], &(len as u16).to_be_bytes()].concat()
    }

    /// Tests that the data of a segment is counted without the padding of a short frame, as sequence numbers count it.
    #[test]
    fn the_fields_of_a_segment_are_read_and_padding_is_no_data() {
        for (data, padding) in [(0, 0), (5, 0), (5, 3), (0, 6)] {
            let mut bytes = ip(protocol::TCP, 0, &header(tcp::MIN_LEN + data));
            bytes.resize(bytes.len() + padding, 0xee);
            let flow = read(&load(bytes)).unwrap();
            let Segment { flags, seq, ack, len } = flow.segment;
            let expected = (tcp::ACK | tcp::PSH, 0x0102_0304, 0x0506_0708, data as u32);
            assert_eq!((flags, seq, ack, len), expected, "{data} bytes, {padding} of padding");
            assert_eq!((flow.source, flow.destination, flow.protocol(), flow.ip), (NEAR, FAR, Protocol::Tcp, 0));
            assert!(matches!(flow.content, Content::Ports(Protocol::Tcp, 1)), "{:?}", flow.content);
        }
        let mut bytes = header(udp::LEN);
        write_u16(&mut bytes, udp::LENGTH, udp::LEN as u16);
        let flow = read(&load(ip(protocol::UDP, 0, &bytes))).unwrap();
        assert_eq!((flow.source, flow.destination, flow.protocol()), (NEAR, FAR, Protocol::Udp));
        assert_eq!((flow.segment.flags, flow.segment.seq, flow.segment.len), (0, 0, 0));
    }

    /// Tests that a first fragment is read if it holds the ports and the checksum (RFC 1858, section 3).
    #[test]
    fn a_first_fragment_holds_its_whole_transport_header() {
        for (of, len, expected) in [
            (protocol::TCP, tcp::MIN_LEN, Ok(Protocol::Tcp)),
            (protocol::TCP, tcp::MIN_LEN - 1, Err(Refusal::TinyFragment)),
            (protocol::UDP, udp::LEN, Ok(Protocol::Udp)),
            (protocol::UDP, udp::LEN - 1, Err(Refusal::TinyFragment)),
            (protocol::GRE, 24, Err(Refusal::Protocol)),
        ] {
            let found = read(&load(ip(of, ipv4::MF, &header(24)[..len])));
            assert_eq!(found.map(|flow| flow.protocol()), expected, "{of} {len}");
        }
        for (offset, data) in [(0x50, 20), (0x60, 16), (0xa0, 0), (0xb0, 0)] {
            let mut bytes = header(40);
            bytes[tcp::OFFSET] = offset;
            let flow = read(&load(ip(protocol::TCP, ipv4::MF, &bytes))).unwrap();
            assert_eq!((flow.source, flow.destination, flow.segment.len), (NEAR, FAR, data), "{offset:#x}");
            assert!(matches!(flow.content, Content::First(Protocol::Tcp)), "{:?}", flow.content);
        }
        let later = read(&load(ip(protocol::UDP, 1, &header(24))));
        assert_eq!(later.map(|flow| flow.protocol()), Err(Refusal::Fragment));
    }

    /// Returns an ICMP message of a type with an identifier of 0x1234 and the packet that it quotes.
    fn message_of(kind: u8, quoted: &[u8]) -> Vec<u8> {
        let mut bytes = [&[kind, 0, 0, 0, 0x12, 0x34, 0, 0][..], quoted].concat();
        if bytes.len().is_multiple_of(2) {
            let field = !fold(&[&bytes]);
            write_u16(&mut bytes, icmp::CHECKSUM, field);
        }
        bytes
    }

    /// Tests which ICMP messages are translated: queries with an identifier (RFC 5508, section 3), and errors that
    /// quote an IPv4 header and 8 bytes after it (RFC 792).
    #[test]
    fn queries_have_an_identifier_and_errors_quote_a_header_and_eight_bytes() {
        let of = |message: &[u8]| read(&load(ip(protocol::ICMP, 0, message)));
        for kind in [0, 8, 13, 14, 15, 16, 17, 18] {
            let flow = of(&message_of(kind, &[])).unwrap();
            assert!(matches!(flow.content, Content::Query), "{kind}: {:?}", flow.content);
            assert_eq!((flow.source.port, flow.destination.port, flow.protocol()), (0x1234, 0x1234, Protocol::Icmp));
        }
        for kind in [5, 9, 10, 42, 255] {
            assert_eq!(
                of(&message_of(kind, &[0x45; 40])).map(|flow| flow.protocol()),
                Err(Refusal::Protocol),
                "{kind}"
            );
        }
        assert!(of(&message_of(8, &[])[..6]).is_ok());
        assert_eq!(of(&message_of(8, &[])[..5]).map(|flow| flow.protocol()), Err(Refusal::Malformed));
        let change = |at: usize, value: u8| move |quoted: &mut Vec<u8>| quoted[at] = value;
        let whole = ip(protocol::UDP, 0, &header(udp::LEN));
        type Case<'a> = (&'a dyn Fn(&mut Vec<u8>), Result<Protocol, Refusal>);
        let cases: [Case<'_>; 12] = [
            (&|_| (), Ok(Protocol::Udp)),
            (&|quoted| quoted.truncate(27), Err(Refusal::Malformed)),
            (&|quoted| quoted.clear(), Err(Refusal::Malformed)),
            (&change(0, 0x44), Err(Refusal::Malformed)),
            (&change(0, 0x46), Err(Refusal::Malformed)),
            (&change(0, 0x65), Err(Refusal::Malformed)),
            (&change(ipv4::FRAGMENT, 0x20), Ok(Protocol::Udp)),
            (&change(ipv4::FRAGMENT + 1, 1), Err(Refusal::Fragment)),
            (&change(ipv4::PROTOCOL, protocol::TCP), Ok(Protocol::Tcp)),
            (&change(ipv4::PROTOCOL, protocol::ICMP), Ok(Protocol::Icmp)),
            (&change(ipv4::PROTOCOL, protocol::GRE), Err(Refusal::Protocol)),
            (&|quoted| quoted.resize(90, 0), Ok(Protocol::Udp)),
        ];
        for kind in [3, 4, 11, 12] {
            for (at, (edit, expected)) in cases.iter().enumerate() {
                let mut quoted = whole.clone();
                edit(&mut quoted);
                let found = of(&message_of(kind, &quoted));
                assert_eq!(found.map(|flow| flow.protocol()), *expected, "type {kind}, case {at}");
            }
        }
        let Content::Error { quoted, .. } = of(&message_of(3, &whole)).unwrap().content else { panic!("no error") };
        assert_eq!((quoted.source, quoted.destination), (NEAR, FAR));
    }

    /// Tests that a complete checksum stays right, a primed one stays the sum of the pseudo-header, and an absent one
    /// of UDP stays absent (RFC 1624; RFC 768).
    #[test]
    fn a_port_and_its_checksum_are_replaced_in_each_state() {
        for (of, number, field_at, len) in
            [(Protocol::Tcp, protocol::TCP, tcp::CHECKSUM, 20), (Protocol::Udp, protocol::UDP, udp::CHECKSUM, 8)]
        {
            for side in [Side::Source, Side::Destination] {
                let (old, port_at, ends) = match side {
                    Side::Source => (NEAR, udp::SRC_PORT, (NEW.address, FAR.address)),
                    Side::Destination => (FAR, udp::DST_PORT, (NEAR.address, NEW.address)),
                };
                let before = pseudo(NEAR.address, FAR.address, number, len);
                let after = pseudo(ends.0, ends.1, number, len);
                let mut bytes = header(len);
                let field = !fold(&[&before, &bytes]);
                write_u16(&mut bytes, field_at, field);
                transport(&mut bytes, of, side, (old, NEW), false);
                assert_eq!(read_u16(&bytes, port_at), Some(NEW.port), "{of:?} {side:?}");
                assert_eq!(fold(&[&after, &bytes]), 0xffff, "{of:?} {side:?}");
                write_u16(&mut bytes, port_at, old.port);
                write_u16(&mut bytes, field_at, fold(&[&before]));
                transport(&mut bytes, of, side, (old, NEW), true);
                assert_eq!(read_u16(&bytes, port_at), Some(NEW.port), "{of:?} {side:?}, primed");
                assert_eq!(read_u16(&bytes, field_at), Some(fold(&[&after])), "{of:?} {side:?}, primed");
            }
        }
        let mut bytes = header(udp::LEN);
        transport(&mut bytes, Protocol::Udp, Side::Source, (NEAR, NEW), false);
        assert_eq!((read_u16(&bytes, 0), read_u16(&bytes, udp::CHECKSUM)), (Some(NEW.port), Some(0)), "absent");
        // A sum of all ones is sent as such: zero would mean that there is none.
        let after = pseudo(NEW.address, FAR.address, protocol::UDP, udp::LEN);
        let full = |port: u16| fold(&[&after, &port.to_be_bytes(), &FAR.port.to_be_bytes()]) == 0xffff;
        let port = (1..=u16::MAX).find(|port| full(*port)).expect("one port completes the sum");
        let mut bytes = header(udp::LEN);
        let field = !fold(&[&pseudo(NEAR.address, FAR.address, protocol::UDP, udp::LEN), &bytes]);
        write_u16(&mut bytes, udp::CHECKSUM, field);
        transport(&mut bytes, Protocol::Udp, Side::Source, (NEAR, TransportAddr { port, ..NEW }), false);
        assert_eq!(read_u16(&bytes, udp::CHECKSUM), Some(0xffff));
    }

    /// Tests that an ICMP error and the packet that it quotes are rewritten together, with every checksum that is there
    /// (RFC 5508, section 4.2).
    #[test]
    fn an_error_and_its_quoted_packet_are_rewritten_together() {
        // Quoted protocol, length and place of the checksum of its header, if it reaches that far.
        for (of, len, field_at) in [
            (protocol::UDP, udp::LEN, Some(udp::CHECKSUM)),
            (protocol::TCP, tcp::MIN_LEN, Some(tcp::CHECKSUM)),
            (protocol::TCP, 8, None),
            (protocol::ICMP, icmp::LEN, Some(icmp::CHECKSUM)),
        ] {
            for side in [Side::Source, Side::Destination] {
                let is_icmp = of == protocol::ICMP;
                let pseudo = |source: u32, destination: u32| {
                    if is_icmp { Vec::new() } else { pseudo(source, destination, of, len) }
                };
                let mut inner = header(len);
                if let Some(at) = field_at {
                    write_u16(&mut inner, at, 0);
                    let field = !fold(&[&pseudo(NEAR.address, FAR.address), &inner]);
                    write_u16(&mut inner, at, field);
                }
                let mut packet = load(ip(protocol::ICMP, 0, &message_of(3, &ip(of, 0, &inner))));
                let flow = read(&packet).unwrap();
                assert_eq!(error(&mut packet, &flow, side, NEW, &mut |_: &[u8]| None), Err(Refusal::Memory));
                error(&mut packet, &flow, side, NEW, &mut |bytes: &[u8]| Some(bytes.to_vec())).unwrap();
                let bytes = image(&packet);
                let (outer, message) = bytes.split_at(ipv4::MIN_LEN);
                let (quoted, inner) = message[icmp::QUOTED..].split_at(ipv4::MIN_LEN);
                assert_eq!([outer, message, quoted].map(|part| fold(&[part])), [0xffff; 3], "{of} {len} {side:?}");
                let ends = |header: &[u8]| [ipv4::SRC, ipv4::DST].map(|at| read_u32(header, at.start).unwrap());
                // The error goes the other way than the packet that it quotes.
                let (ends_outside, ends_inside) = match side {
                    Side::Source => ([NEW.address, FAR.address], [NEAR.address, NEW.address]),
                    Side::Destination => ([NEAR.address, NEW.address], [NEW.address, FAR.address]),
                };
                assert_eq!((ends(outer), ends(quoted)), (ends_outside, ends_inside), "{of} {len} {side:?}");
                let port_at = match (is_icmp, side) {
                    (true, _) => icmp::IDENTIFIER,
                    (false, Side::Source) => udp::DST_PORT,
                    (false, Side::Destination) => udp::SRC_PORT,
                };
                assert_eq!(read_u16(inner, port_at), Some(NEW.port), "{of} {len} {side:?}");
                if field_at.is_some() {
                    let [source, destination] = ends_inside;
                    assert_eq!(fold(&[&pseudo(source, destination), inner]), 0xffff, "{of} {len} {side:?}");
                }
            }
        }
    }
}
