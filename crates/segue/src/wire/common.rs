//! The parser's fast path for the forms that nearly all packets have: TCP, or UDP that is no tunnel's, over one IP
//! header without options or extension headers, bare or on Ethernet with up to two tags.
//!
//! It only chooses among finished layouts: the offset of each header follows from types and versions. All that it reads
//! the general parser reads too, and any other packet is left to that one.

use super::layout::{Layout, Start};
use super::tunnels::Tunnels;
use super::{ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

/// One more than the maximum number of headers in front of IP.
const LINKS: usize = ethernet::MAX_TAGS + 2;

/// The number of transport headers: UDP's, and TCP's of each length.
const TRANSPORTS: usize = 2 + (tcp::MAX_LEN - tcp::MIN_LEN) / 4;

/// The layouts, by the number of headers in front of IP, by whether IP is IPv6, and by the transport header: UDP's,
/// then TCP's from the shortest one on.
static LAYOUTS: [[[Layout; TRANSPORTS]; 2]; LINKS] = {
    let mut layouts = [[[Layout::common(0, false, None); TRANSPORTS]; 2]; LINKS];
    let mut at = 0;
    while at < 2 * LINKS {
        let forms = &mut layouts[at / 2][at % 2];
        let mut transport = 0;
        while transport < TRANSPORTS {
            let tcp_len = if transport == 0 { None } else { Some(tcp::MIN_LEN + 4 * (transport - 1)) };
            forms[transport] = Layout::common(at / 2, at % 2 == 1, tcp_len);
            transport += 1;
        }
        at += 1;
    }
    layouts
};

/// Returns the layout of a packet of `len` bytes, whose first bytes are `bytes`, if it has one of these forms.
#[inline(always)]
pub(super) fn parse(bytes: &[u8], len: usize, start: Start, tunnels: &Tunnels) -> Option<Common> {
    let (link, l3, kind) = link(bytes, start)?;
    let rest = len - l3;
    let (is_v6, ip_len, total, number) = match kind {
        ethertype::IPV4 => {
            let ip: &[u8; ipv4::MIN_LEN] = bytes.get(l3..)?.first_chunk()?;
            let fragment = u16::from_be_bytes([ip[ipv4::FRAGMENT], ip[ipv4::FRAGMENT + 1]]);
            if ip[0] != 0x45 || fragment & (ipv4::MF | ipv4::OFFSET) != 0 {
                return None;
            }
            let total = usize::from(u16::from_be_bytes([ip[ipv4::TOTAL_LEN], ip[ipv4::TOTAL_LEN + 1]]));
            (false, ipv4::MIN_LEN, total, ip[ipv4::PROTOCOL])
        }
        ethertype::IPV6 => {
            let ip: &[u8; ipv6::LEN] = bytes.get(l3..)?.first_chunk()?;
            let payload = u16::from_be_bytes([ip[ipv6::PAYLOAD_LEN], ip[ipv6::PAYLOAD_LEN + 1]]);
            // A length of zero may stand for one that is too large.
            if ip[0] >> 4 != 6 || payload == 0 {
                return None;
            }
            (true, ipv6::LEN, ipv6::LEN + usize::from(payload), ip[ipv6::NEXT_HEADER])
        }
        _ => return None,
    };
    if total > rest {
        return None;
    }
    // The part of the packet after IP that is among `bytes`.
    let transport = bytes.get(l3 + ip_len..(l3 + total).min(bytes.len()))?;
    let form = match number {
        protocol::TCP => {
            let header_len = tcp::header_len(*transport.get(tcp::OFFSET)?);
            if header_len > transport.len() {
                return None;
            }
            // That of a length below the minimum is none of TCP's.
            (header_len / 4).checked_sub(tcp::MIN_LEN / 4)? + 1
        }
        protocol::UDP => {
            let header: &[u8; udp::LEN] = transport.first_chunk()?;
            let length = usize::from(u16::from_be_bytes([header[udp::LENGTH], header[udp::LENGTH + 1]]));
            let port = u16::from_be_bytes([header[udp::DST_PORT], header[udp::DST_PORT + 1]]);
            if length != total - ip_len || tunnels.has(port) {
                return None;
            }
            0
        }
        _ => return None,
    };
    Some(Common { layout: LAYOUTS.get(link)?[usize::from(is_v6)].get(form)?, end: l3 + total })
}

/// Returns the layout of a packet of one of the forms, and the end of its IP packet among `bytes`, which are the whole
/// packet. UDP is taken for a transport whatever its port.
#[inline]
pub(crate) fn usual_layout(bytes: &[u8], start: Start) -> Option<(&'static Layout, usize)> {
    let common = parse(bytes, bytes.len(), start, &Tunnels::NONE)?;
    Some((common.layout, common.end))
}

/// A packet of one of the forms.
pub(super) struct Common {
    /// The packet's layout, but for where it ends.
    pub(super) layout: &'static Layout,
    /// The end of the IP packet.
    pub(super) end: usize,
}

/// Returns the number of headers in front of the network header, its offset, and its type.
#[inline(always)]
fn link(bytes: &[u8], start: Start) -> Option<(usize, usize, u16)> {
    if start == Start::Ip {
        let kind = if bytes.first()? >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
        return Some((0, 0, kind));
    }
    let is_tag = |kind| matches!(kind, ethertype::VLAN | ethertype::QINQ);
    let mut at = ethernet::TYPE;
    let mut kind = read_u16(bytes, at)?;
    let mut link = 1;
    while is_tag(kind) && link < LINKS - 1 {
        at += ethernet::VLAN_LEN;
        kind = read_u16(bytes, at)?;
        link += 1;
    }
    Some((link, at + 2, kind))
}

#[cfg(test)]
mod tests {
    use segue_testkit::Rng;
    use segue_testkit::build::{Ethernet, Ip, Tcp, V4, V6};
    use segue_testkit::flow::Sender;

    use super::super::format::Kind;
    use super::super::parse::{parse_any, parse_into};
    use super::*;

    fn same(a: &Layout, b: &Layout) -> bool {
        a == b && (a.end(), a.is_exact(), a.is_padded()) == (b.end(), b.is_exact(), b.is_padded())
    }

    /// Returns a packet of one of the forms, and its first header.
    fn packet(rng: &mut Rng) -> (Vec<u8>, Start) {
        let ip = if rng.chance(500) { Ip::V4(V4::new(1, 1, 2)) } else { Ip::V6(V6::new(1, 1, 2)) };
        let options = if rng.chance(500) { Tcp::timestamps(1, 2) } else { Vec::new() };
        let mut sender = if rng.chance(500) { Sender::tcp(ip, 1, 1, options) } else { Sender::udp(ip, 1) };
        let bytes = sender.send(rng.below(60), 0).bytes();
        if rng.chance(300) {
            return (bytes, Start::Ip);
        }
        let tags = (0..rng.below(4)).map(|_| (if rng.chance(500) { 0x8100 } else { 0x88a8 }, 5)).collect();
        let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags };
        (link.wrap(&bytes), Start::Ethernet)
    }

    #[test]
    fn both_parsers_give_the_same_layout() {
        let mut rng = Rng::new(7);
        let mut found = 0;
        let mut used = Layout::common(0, false, None);
        const COUNT: usize = 60_000;
        for round in 0..COUNT {
            let (mut bytes, start) = packet(&mut rng);
            for _ in 0..rng.below(3) {
                let at = rng.below(bytes.len().min(90));
                match rng.below(5) {
                    0 => bytes[at] ^= 1 << rng.below(8),
                    1 => bytes[at] = rng.below(256) as u8,
                    2 => bytes.extend([0; 7]),
                    3 => bytes.truncate(at.max(1)),
                    _ => bytes[at] = [0, 4, 6, 17, 41, 44, 47, 0x40, 0x45, 0x60, 0x81, 0x88, 0xff][rng.below(13)],
                }
            }
            let port = bytes.len().checked_sub(30).and_then(|at| read_u16(&bytes, at)).unwrap_or(0);
            let tunnels =
                if rng.chance(500) { Tunnels::NONE } else { Tunnels::NONE.with(port, Kind::Vxlan).with_gue(2001) };
            // A layout that was in use before has nothing left of it.
            parse_into(&mut used, &bytes, start, &tunnels);
            let expected = parse_any(&bytes, bytes.len(), start, &tunnels);
            assert!(same(&used, &expected), "round {round}: {used:?}, not {expected:?}: {bytes:02x?}");
            // A packet may be longer than the bytes at hand, and very long.
            let len = bytes.len() + [0, 0, 0, 1, 100, 70_000][rng.below(6)];
            if let Some(common) = parse(&bytes, len, start, &tunnels) {
                let layout = common.layout.ending(common.end, len);
                let expected = parse_any(&bytes, len, start, &tunnels);
                assert!(same(&layout, &expected), "round {round}: {layout:?}, not {expected:?}: {bytes:02x?}");
                found += 1;
            }
        }
        assert!(found > COUNT / 4, "{found}");
    }

    #[test]
    fn the_common_forms_take_the_fast_path() {
        let mut rng = Rng::new(3);
        for _ in 0..1000 {
            let (bytes, start) = packet(&mut rng);
            let layout = parse_any(&bytes, bytes.len(), start, &Tunnels::NONE);
            let is_short = parse(&bytes, bytes.len(), start, &Tunnels::NONE).is_some();
            assert_eq!(is_short, layout.transport().is_some(), "{layout:?}");
        }
    }

    #[test]
    fn the_usual_layout_of_a_padded_packet_says_where_its_ip_packet_ends() {
        let mut rng = Rng::new(5);
        for _ in 0..1000 {
            let (mut bytes, start) = packet(&mut rng);
            let end = bytes.len();
            bytes.extend([0; 3]);
            let layout = parse_any(&bytes, bytes.len(), start, &Tunnels::NONE);
            let expected = layout.transport().map(|_| (&layout, end));
            assert_eq!(usual_layout(&bytes, start), expected, "{bytes:02x?}");
        }
    }
}
