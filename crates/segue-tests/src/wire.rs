//! A parser and builder of tunnelled frames, based on the protocol specifications alone: it judges frames sent by
//! `segue`, and builds frames that `segue` must refuse.

use std::fmt;
use std::net::IpAddr;

const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;

/// The outer packet of a tunnelled frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outer<'a> {
    /// Length of the packet in bytes, from its IP header.
    pub ip_len: usize,
    /// Whether the packet is a fragment.
    pub fragment: bool,
    /// Source address of the packet.
    pub source: IpAddr,
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// The UDP datagram in the packet, or `None` for other protocols.
    pub udp: Option<Udp<'a>>,
}

/// The outer UDP datagram of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp<'a> {
    /// Source UDP port.
    pub source: u16,
    /// Destination UDP port.
    pub destination: u16,
    /// Whether the checksum is present and right.
    pub checksum_good: bool,
    /// Payload of the UDP datagram.
    pub payload: &'a [u8],
}

/// The inner packet of a tunnel's datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An unfragmented TCP segment over this IP version.
    Tcp(u8),
    /// An unfragmented UDP datagram over this IP version.
    Udp(u8),
    /// A fragment of either IP version.
    Fragment(u8),
    /// An ICMP or ICMPv6 message.
    Icmp(u8),
    /// A packet of another protocol.
    Other(u8),
}

/// Returns the ones-complement sum in 16 bits, not complemented. An odd last byte counts as if a zero followed.
pub fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of a pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1).
pub fn pseudo(source: &[u8], destination: &[u8], protocol: u8, len: usize) -> u16 {
    let len = u32::try_from(len).expect("a length below 4 GiB").to_be_bytes();
    sum(&[source, destination, &len, &[0, protocol]].concat())
}

/// Parses an Ethernet frame; `None` if it does not carry IP.
pub fn outer(frame: &[u8]) -> Result<Option<Outer<'_>>, String> {
    let Some((ethernet, packet)) = frame.split_at_checked(14) else { return Err("no Ethernet header".into()) };
    if !matches!(ethernet[12..], [0x08, 0x00] | [0x86, 0xdd]) {
        return Ok(None);
    }
    let ip = Ip::read(packet)?;
    let address = |bytes: &[u8]| match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).expect("four bytes")),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).expect("sixteen bytes")),
    };
    let mut outer = Outer {
        ip_len: ip.total_len,
        fragment: ip.fragment,
        source: address(ip.source),
        destination: address(ip.destination),
        udp: None,
    };
    if ip.protocol == UDP && !ip.fragment {
        let udp = packet.get(ip.transport..ip.total_len).filter(|udp| udp.len() >= 8).ok_or("no room for UDP")?;
        if be16(udp, 4) != udp.len() {
            return Err(format!("UDP length {} in {} bytes", be16(udp, 4), udp.len()));
        }
        let pseudo = pseudo(ip.source, ip.destination, UDP, udp.len());
        outer.udp = Some(Udp {
            source: be16(udp, 0) as u16,
            destination: be16(udp, 2) as u16,
            checksum_good: be16(udp, 6) != 0 && add(pseudo, sum(udp)) == 0xffff,
            payload: &udp[8..],
        });
    }
    Ok(Some(outer))
}

/// Checks the payload of a GUE datagram whose sender uses remote checksum offload: the header is Linux's, and an inner
/// TCP segment or unfragmented UDP datagram has the option with the right offsets and the primed checksum.
pub fn judge_remcsum(gue: &[u8]) -> Result<Kind, String> {
    let base = gue.get(..4).ok_or("no GUE header")?;
    let (first, protocol, flags) = (base[0], base[1], be16(base, 2));
    if first & 0xe0 != 0 {
        return Err(format!("GUE version or control bit in {first:#04x}"));
    }
    let header_len = 4 + 4 * usize::from(first & 0x1f);
    let (header, payload) = gue.split_at_checked(header_len).ok_or("GUE header longer than the datagram")?;
    let option = match (flags, header_len) {
        (0, 4) => None,
        (1, 12) if header[4..8] == [0x80, 0, 0, 0] => Some((be16(header, 8), be16(header, 10))),
        _ => return Err(format!("GUE flags {flags:#06x} with a header of {header_len} bytes: {header:02x?}")),
    };
    let at = if protocol == GRE { gre_len(payload)? } else { 0 };
    let expected_version = match protocol {
        4 => 4,
        41 => 6,
        GRE => {
            if be16(payload, 2) == 0x0800 {
                4
            } else {
                6
            }
        }
        other => return Err(format!("GUE protocol {other}")),
    };
    let ip = Ip::read(&payload[at..])?;
    if ip.version != expected_version {
        return Err(format!("IPv{} announced as IPv{expected_version}", ip.version));
    }
    if ip.total_len != payload.len() - at {
        return Err(format!("inner length {} in {} bytes", ip.total_len, payload.len() - at));
    }
    let kind = ip.kind();
    let field = match kind {
        Kind::Tcp(_) => 16,
        Kind::Udp(_) => 6,
        _ if option.is_some() => return Err(format!("{kind:?} with an option {option:?}")),
        _ => {
            // GRE's own checksum may not be owed to the receiver either.
            if at > 0 && payload[0] & 0x80 != 0 && sum(payload) != 0xffff {
                return Err(format!("{kind:?} under a wrong GRE checksum"));
            }
            return ip.complete(&payload[at..]).map(|()| kind);
        }
    };
    let Some((start, offset)) = option else { return Err(format!("{kind:?} without an option")) };
    let transport = at + ip.transport;
    if (start, offset) != (transport, transport + field) {
        return Err(format!("{kind:?}: start {start} offset {offset}, but the header is at {transport}"));
    }
    let primed = payload.get(offset..offset + 2).map(|bytes| be16(bytes, 0)).ok_or("no room for the field")?;
    let right = pseudo(ip.source, ip.destination, ip.protocol, ip.total_len - ip.transport);
    if primed != usize::from(right) {
        return Err(format!("{kind:?} of {} bytes: {primed:#06x} in the field, {right:#06x} is right", ip.total_len));
    }
    Ok(kind)
}

fn gre_len(payload: &[u8]) -> Result<usize, String> {
    let flags = payload.get(..4).map(|bytes| be16(bytes, 0)).ok_or("no GRE header")?;
    if flags & !0xb000 != 0 {
        return Err(format!("GRE flags {flags:#06x}"));
    }
    let len = 4 + 4 * (flags >> 12).count_ones() as usize;
    if payload.len() < len { Err("GRE header longer than the datagram".into()) } else { Ok(len) }
}

/// A parsed IP header and its payload.
struct Ip<'a> {
    version: u8,
    total_len: usize,
    fragment: bool,
    protocol: u8,
    transport: usize,
    source: &'a [u8],
    destination: &'a [u8],
}

impl Ip<'_> {
    fn read(packet: &[u8]) -> Result<Ip<'_>, String> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Ip::v4(packet),
            Some(6) => Ip::v6(packet),
            other => Err(format!("IP version {other:?}")),
        }
    }

    fn v4(packet: &[u8]) -> Result<Ip<'_>, String> {
        let header_len = usize::from(packet[0] & 15) * 4;
        let header = packet.get(..header_len).filter(|header| header.len() >= 20).ok_or("IPv4 header cut off")?;
        if sum(header) != 0xffff {
            return Err("a wrong IPv4 header checksum".into());
        }
        let total_len = be16(header, 2);
        if total_len < header_len || total_len > packet.len() {
            return Err(format!("IPv4 length {total_len} in {} bytes", packet.len()));
        }
        // More fragments, or an offset.
        let fragment = be16(header, 6) & 0x3fff != 0;
        let (source, destination) = (&packet[12..16], &packet[16..20]);
        Ok(Ip { version: 4, total_len, fragment, protocol: header[9], transport: header_len, source, destination })
    }

    fn v6(packet: &[u8]) -> Result<Ip<'_>, String> {
        let header = packet.get(..40).ok_or("IPv6 header cut off")?;
        let total_len = 40 + be16(header, 4);
        let inside = packet.get(..total_len).ok_or("IPv6 packet cut off")?;
        let (mut protocol, mut transport, mut fragment) = (header[6], 40, false);
        // Hop-by-hop options, routing, destination options; a fragment header ends the walk.
        while matches!(protocol, 0 | 43 | 44 | 60) && !fragment {
            let next = inside.get(transport..transport + 8).ok_or("IPv6 extension header cut off")?;
            fragment = protocol == 44;
            protocol = next[0];
            transport += if fragment { 8 } else { 8 + 8 * usize::from(next[1]) };
        }
        if transport > total_len {
            return Err("IPv6 extension header cut off".into());
        }
        let (source, destination) = (&packet[8..24], &packet[24..40]);
        Ok(Ip { version: 6, total_len, fragment, protocol, transport, source, destination })
    }

    fn kind(&self) -> Kind {
        match self.protocol {
            _ if self.fragment => Kind::Fragment(self.version),
            TCP => Kind::Tcp(self.version),
            UDP => Kind::Udp(self.version),
            1 | 58 => Kind::Icmp(self.version),
            _ => Kind::Other(self.version),
        }
    }

    /// Checks the checksum of an ICMP message; other protocols pass.
    fn complete(&self, packet: &[u8]) -> Result<(), String> {
        let body = &packet[self.transport..self.total_len];
        let start = match self.protocol {
            _ if self.fragment => return Ok(()),
            1 => 0,
            58 => pseudo(self.source, self.destination, 58, body.len()),
            _ => return Ok(()),
        };
        if add(start, sum(body)) == 0xffff { Ok(()) } else { Err("a wrong ICMP checksum".into()) }
    }
}

fn add(a: u16, b: u16) -> u16 {
    sum(&[a.to_be_bytes(), b.to_be_bytes()].concat())
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// An IP packet with a UDP datagram whose checksum field has only the pseudo-header sum, as for remote checksum
/// offload.
#[derive(Debug, Clone)]
pub struct Primed {
    /// Bytes of the IP packet.
    pub packet: Vec<u8>,
    /// Offset of the UDP header in bytes.
    pub start: u16,
    /// Offset of the checksum field, bytes.
    pub offset: u16,
}

/// Builds a UDP datagram in an IP packet without options, with ECN `tos`; its checksum is complete or, if `primed`, the
/// pseudo-header sum.
pub fn udp_packet(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8], tos: u8, primed: bool) -> Primed {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (source, destination, len) = (octets(from.0), octets(to.0), 8 + payload.len());
    let mut udp = [from.1, to.1, len as u16, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    let pseudo = pseudo(&source, &destination, UDP, len);
    let field = if primed { pseudo } else { !add(pseudo, sum(&udp)) };
    udp[6..8].copy_from_slice(&field.to_be_bytes());
    let mut packet = match from.0 {
        IpAddr::V4(_) => vec![0x45, tos, 0, 0, 0, 7, 0x40, 0, 64, UDP, 0, 0],
        IpAddr::V6(_) => vec![0x60 | tos >> 4, tos << 4, 0, 0, 0, 0, UDP, 64],
    };
    packet.extend([source, destination].concat());
    let start = packet.len();
    if from.0.is_ipv4() {
        packet[2..4].copy_from_slice(&((start + len) as u16).to_be_bytes());
        let checksum = !sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    }
    packet.extend(udp);
    Primed { packet, start: start as u16, offset: start as u16 + 6 }
}

/// Builds a GUE header of version 0 from these first bytes and option words, followed by a payload.
pub fn gue(first: [u8; 4], words: &[u32], payload: &[u8]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_be_bytes());
    first.into_iter().chain(words).chain(payload.iter().copied()).collect()
}

/// Builds a GUE header with the remote checksum option for a payload of protocol `protocol`.
pub fn gue_remcsum(protocol: u8, start: u16, offset: u16, payload: &[u8]) -> Vec<u8> {
    gue([2, protocol, 0, 1], &[0x8000_0000, u32::from(start) << 16 | u32::from(offset)], payload)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
