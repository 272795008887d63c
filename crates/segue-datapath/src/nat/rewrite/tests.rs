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
        let expected = matches!(kind, 0 | 14 | 16 | 18);
        let is_right = matches!(flow.content, Content::Query { is_reply } if is_reply == expected);
        assert!(is_right, "{kind}: {:?}", flow.content);
        assert_eq!((flow.source.port, flow.destination.port, flow.protocol()), (0x1234, 0x1234, Protocol::Icmp));
    }
    for kind in [5, 9, 10, 42, 255] {
        assert_eq!(of(&message_of(kind, &[0x45; 40])).map(|flow| flow.protocol()), Err(Refusal::Protocol), "{kind}");
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

/// Tests that a quoted datagram without checksum stays without one (RFC 768), and that a checksum that becomes zero
/// is sent as all ones in UDP and as zero in TCP.
#[test]
fn a_quoted_checksum_that_is_absent_or_becomes_zero_is_what_its_protocol_says() {
    let rewritten = |of: u8, inner: &[u8], port: u16| {
        let mut packet = load(ip(protocol::ICMP, 0, &message_of(3, &ip(of, 0, inner))));
        let flow = read(&packet).unwrap();
        let new = TransportAddr { port, ..NEW };
        error(&mut packet, &flow, Side::Destination, new, &mut |bytes: &[u8]| Some(bytes.to_vec())).unwrap();
        image(&packet).split_off(ipv4::MIN_LEN + icmp::QUOTED + ipv4::MIN_LEN)
    };
    let left = rewritten(protocol::UDP, &header(udp::LEN), NEW.port);
    assert_eq!((read_u16(&left, udp::SRC_PORT), read_u16(&left, udp::CHECKSUM)), (Some(NEW.port), Some(0)));
    for (of, len, field_at, zero) in
        [(protocol::UDP, udp::LEN, udp::CHECKSUM, 0xffff), (protocol::TCP, tcp::MIN_LEN, tcp::CHECKSUM, 0)]
    {
        let mut inner = header(len);
        let field = !fold(&[&pseudo(NEAR.address, FAR.address, of, len), &inner]);
        write_u16(&mut inner, field_at, field);
        let is_full = |port: &u16| {
            let mut after = inner.clone();
            write_u16(&mut after, udp::SRC_PORT, *port);
            write_u16(&mut after, field_at, 0);
            fold(&[&pseudo(NEW.address, FAR.address, of, len), &after]) == 0xffff
        };
        let port = (1..=u16::MAX).find(is_full).expect("one port completes the sum");
        let left = rewritten(of, &inner, port);
        assert_eq!((read_u16(&left, udp::SRC_PORT), read_u16(&left, field_at)), (Some(port), Some(zero)), "{of}");
    }
}

/// Tests that no more of a message is copied than the longest headers have: those of ICMP, of a quoted IPv4 packet
/// with options, and of TCP.
#[test]
fn of_a_long_message_only_the_headers_are_copied() {
    for (data, copied) in [(0, 8), (79, 87), (80, 88), (82, 88), (1400, 88)] {
        let mut packet = load(ip(protocol::ICMP, 0, &message_of(8, &vec![7; data])));
        let flow = read(&packet).unwrap();
        let (mut seen, before) = (None, packet.len());
        let mut copy = |bytes: &[u8]| {
            seen = Some(bytes.len());
            Some(bytes.to_vec())
        };
        super::flow(&mut packet, &flow, Side::Source, NEW, &mut copy).unwrap();
        assert_eq!((seen, packet.len()), (Some(copied), before), "{data} bytes");
    }
}
