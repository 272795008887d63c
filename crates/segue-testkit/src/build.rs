//! Builders that turn plain structures into packets.

use crate::sum::{fold, pseudo, with_pseudo};

/// Fields of an IPv4 header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Source IPv4 address.
    pub src: [u8; 4],
    /// Destination IPv4 address.
    pub dst: [u8; 4],
    /// DSCP and ECN bits (the TOS byte).
    pub tos: u8,
    /// Identification of the IPv4 header.
    pub id: u16,
    /// Don't-fragment flag of the IPv4 header.
    pub df: bool,
    /// Time to live of the IPv4 header.
    pub ttl: u8,
    /// Options; padded with zeros to a multiple of 4.
    pub options: Vec<u8>,
    /// Fragment offset in bytes, a multiple of 8, and whether more fragments follow.
    pub fragment: Option<(u16, bool)>,
}

/// Fields of an IPv6 header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V6 {
    /// Source IPv6 address.
    pub src: [u8; 16],
    /// Destination IPv6 address.
    pub dst: [u8; 16],
    /// IPv6 traffic class.
    pub class: u8,
    /// IPv6 flow label, 20 bits.
    pub label: u32,
    /// IPv6 hop limit.
    pub hop_limit: u8,
    /// Extension headers: type, and the bytes after the length byte, padded with zeros to a multiple of 8 including
    /// the first two.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// Identification, offset in bytes and whether more fragments follow.
    pub fragment: Option<(u32, u16, bool)>,
}

/// An IP header of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ip {
    /// An IPv4 header.
    V4(V4),
    /// An IPv6 header.
    V6(V6),
}

/// Fields of a TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source TCP port.
    pub src_port: u16,
    /// Destination TCP port.
    pub dst_port: u16,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgment number.
    pub ack: u32,
    /// The eight flags, CWR first.
    pub flags: u8,
    /// TCP receive window, unscaled.
    pub window: u16,
    /// TCP urgent pointer.
    pub urgent: u16,
    /// Options; padded with NOP to a multiple of 4.
    pub options: Vec<u8>,
}

/// Fields of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port.
    pub dst_port: u16,
    /// Whether the header has a checksum.
    pub checksum: bool,
}

/// The transport header of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4 {
    /// A TCP header.
    Tcp(Tcp),
    /// A UDP header.
    Udp(Udp),
    /// ICMP or ICMPv6 by the IP version: type, code, and the four bytes after the checksum.
    Icmp(u8, u8, [u8; 4]),
    /// Payload of another IP protocol, written unchanged; also the rest of a datagram in a fragment.
    Raw(u8),
}

/// An IP packet: its header, its transport header and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// IP header of the packet.
    pub ip: Ip,
    /// Transport header of the packet.
    pub l4: L4,
    /// Payload of the transport header.
    pub data: Vec<u8>,
}

/// The checksum that a GUE header makes the receiver complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remcsum {
    /// The checksum of the inner TCP or UDP header; without one, no option is written.
    Transport,
    /// The checksum of the GRE header.
    Gre,
}

/// The header between the outer UDP header and the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shim {
    /// No shim header: FOU.
    Fou,
    /// GUE version 0, perhaps with a remote checksum option (Linux layout).
    Gue(Option<Remcsum>),
    /// GUE version 1: no header, for inner IP only.
    GueBare,
    /// VXLAN with this network identifier, optionally with remote checksum offload; requires an inner Ethernet header.
    Vxlan(u32, bool),
    /// Geneve with the given network identifier, and number of 4-byte words of options.
    Geneve(u32, u8),
}

/// Fields of a GRE header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gre {
    /// Whether the header has a checksum.
    pub checksum: bool,
    /// GRE key, if present.
    pub key: Option<u32>,
    /// GRE sequence number, if present.
    pub seq: Option<u32>,
}

/// The headers of one tunnel level around an inner packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// IP header of the tunnel.
    pub ip: Ip,
    /// The outer UDP header and the shim after it; `None` for the inner protocol directly in IP.
    pub udp: Option<(Udp, Shim)>,
    /// The GRE header, if present.
    pub gre: Option<Gre>,
    /// Ethernet header between GRE and the inner packet.
    pub ethernet: Option<Ethernet>,
}

/// Ethernet header with VLAN tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination Ethernet address.
    pub dst: [u8; 6],
    /// Source Ethernet address.
    pub src: [u8; 6],
    /// Tag protocol identifier and tag control information, outermost first.
    pub tags: Vec<(u16, u16)>,
}

impl V4 {
    /// Makes a header from 198.18.`net`.`src` to 198.18.`net`.`dst`: DF, TTL 64, no options.
    pub fn new(net: u8, src: u8, dst: u8) -> V4 {
        V4 {
            src: [198, 18, net, src],
            dst: [198, 18, net, dst],
            tos: 0,
            id: 0,
            df: true,
            ttl: 64,
            options: Vec::new(),
            fragment: None,
        }
    }

    fn header(&self, protocol: u8, len: usize) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let header_len = 20 + options.len();
        assert!(header_len <= 60, "too many IPv4 options");
        let total = u16::try_from(header_len + len).expect("an IPv4 packet has at most 65535 bytes");
        let (offset, more) = self.fragment.unwrap_or((0, false));
        let fragment = u16::from(self.df) << 14 | u16::from(more) << 13 | (offset / 8);
        let mut bytes = vec![0x40 | (header_len / 4) as u8, self.tos];
        bytes.extend(total.to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([self.ttl, protocol, 0, 0]);
        bytes.extend(self.src);
        bytes.extend(self.dst);
        bytes.extend(options);
        let checksum = !fold(&bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

impl V6 {
    /// Makes a header from 2001:db8:`net`::`src` to 2001:db8:`net`::`dst`: hop limit 64, no extension headers.
    pub fn new(net: u8, src: u8, dst: u8) -> V6 {
        let address = |host| [0x20, 1, 0xd, 0xb8, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
        V6 {
            src: address(src),
            dst: address(dst),
            class: 0,
            label: 0,
            hop_limit: 64,
            extensions: Vec::new(),
            fragment: None,
        }
    }

    fn header(&self, protocol: u8, len: usize) -> Vec<u8> {
        let mut chain: Vec<(u8, Vec<u8>)> = Vec::new();
        for (kind, body) in &self.extensions {
            let mut body = body.clone();
            body.resize((body.len() + 2).next_multiple_of(8) - 2, 0);
            body.insert(0, (body.len() / 8) as u8);
            chain.push((*kind, body));
        }
        if let Some((id, offset, more)) = self.fragment {
            let mut body = vec![0];
            body.extend((offset & !7 | u16::from(more)).to_be_bytes());
            body.extend(id.to_be_bytes());
            chain.push((44, body));
        }
        let chain_len: usize = chain.iter().map(|(_, body)| body.len() + 1).sum();
        let payload_len = u16::try_from(chain_len + len).expect("an IPv6 payload has at most 65535 bytes");
        let word = 6 << 28 | u32::from(self.class) << 20 | self.label & 0xf_ffff;
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend(payload_len.to_be_bytes());
        bytes.extend([chain.first().map_or(protocol, |c| c.0), self.hop_limit]);
        bytes.extend(self.src);
        bytes.extend(self.dst);
        for (index, (_, body)) in chain.iter().enumerate() {
            bytes.push(chain.get(index + 1).map_or(protocol, |c| c.0));
            bytes.extend(body);
        }
        bytes
    }
}

impl Ip {
    /// Returns the addresses, source first.
    pub fn addresses(&self) -> (&[u8], &[u8]) {
        match self {
            Ip::V4(ip) => (&ip.src, &ip.dst),
            Ip::V6(ip) => (&ip.src, &ip.dst),
        }
    }

    /// Writes the header, extension headers included, for `len` bytes of `protocol`.
    pub fn header(&self, protocol: u8, len: usize) -> Vec<u8> {
        match self {
            Ip::V4(ip) => ip.header(protocol, len),
            Ip::V6(ip) => ip.header(protocol, len),
        }
    }

    /// Returns the protocol number of this IP version inside another packet: 4 or 41.
    pub fn protocol(&self) -> u8 {
        match self {
            Ip::V4(_) => 4,
            Ip::V6(_) => 41,
        }
    }
}

impl Tcp {
    /// Writes the header with a checksum of zero.
    fn header(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 1);
        assert!(options.len() <= 40, "too many TCP options");
        let mut bytes = [self.src_port.to_be_bytes(), self.dst_port.to_be_bytes()].concat();
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(((20 + options.len()) / 4) << 4) as u8, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes
    }

    /// Returns a timestamp option after two NOPs, as every stack writes it (RFC 7323, appendix A).
    pub fn timestamps(value: u32, echo: u32) -> Vec<u8> {
        let mut bytes = vec![1, 1, 8, 10];
        bytes.extend(value.to_be_bytes());
        bytes.extend(echo.to_be_bytes());
        bytes
    }
}

impl Udp {
    fn header(&self, len: usize) -> Vec<u8> {
        let length = u16::try_from(8 + len).expect("a UDP datagram has at most 65535 bytes");
        [self.src_port.to_be_bytes(), self.dst_port.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat()
    }
}

impl L4 {
    /// Returns the IP protocol number over this version of IP.
    pub fn protocol(&self, ip: &Ip) -> u8 {
        match self {
            L4::Tcp(_) => 6,
            L4::Udp(_) => 17,
            L4::Icmp(..) if matches!(ip, Ip::V4(_)) => 1,
            L4::Icmp(..) => 58,
            L4::Raw(protocol) => *protocol,
        }
    }
}

impl Packet {
    /// Writes the packet with all checksums complete.
    ///
    /// # Panics
    /// Panics if a length does not fit its field.
    pub fn bytes(&self) -> Vec<u8> {
        let protocol = self.l4.protocol(&self.ip);
        let (src, dst) = self.ip.addresses();
        let mut l4 = match &self.l4 {
            L4::Tcp(tcp) => tcp.header(),
            L4::Udp(udp) => udp.header(self.data.len()),
            L4::Icmp(kind, code, rest) => [&[*kind, *code, 0, 0][..], rest].concat(),
            L4::Raw(_) => Vec::new(),
        };
        l4.extend(&self.data);
        let place = match self.l4 {
            L4::Tcp(_) => Some(16),
            L4::Udp(udp) => udp.checksum.then_some(6),
            L4::Icmp(..) => Some(2),
            L4::Raw(_) => None,
        };
        if let Some(place) = place {
            let sum = if protocol == 1 { fold(&l4) } else { with_pseudo(src, dst, protocol, &l4) };
            put_checksum(&mut l4, place, !sum, protocol == 17);
        }
        let mut bytes = self.ip.header(protocol, l4.len());
        bytes.extend(l4);
        bytes
    }
}

impl Tunnel {
    /// Encapsulates `inner`, an IPv4 or IPv6 packet with complete checksums.
    ///
    /// # Panics
    /// Panics if a length does not fit its field, or if `inner` is no IP packet.
    pub fn wrap(&self, inner: &[u8]) -> Vec<u8> {
        let (mut protocol, ethertype) = match inner[0] >> 4 {
            4 => (4, 0x0800_u16),
            6 => (41, 0x86dd),
            _ => panic!("not an IP packet"),
        };
        let mut content = inner.to_vec();
        let mut inner_at = 0;
        let mut inside_type = ethertype;
        if let Some(ethernet) = &self.ethernet {
            content = ethernet.wrap(&content);
            inner_at += content.len() - inner.len();
            (protocol, inside_type) = (143, 0x6558);
        }
        if let Some(gre) = self.gre {
            let header = gre.header(inside_type);
            inner_at += header.len();
            content = [header, content].concat();
            if gre.checksum {
                let checksum = !fold(&content);
                content[4..6].copy_from_slice(&checksum.to_be_bytes());
            }
            protocol = 47;
        }
        if let Some((udp, shim)) = self.udp {
            match shim {
                Shim::Fou | Shim::GueBare => {}
                Shim::Gue(None) => content = [vec![0, protocol, 0, 0], content].concat(),
                Shim::Gue(Some(remcsum)) => {
                    let place = match remcsum {
                        Remcsum::Gre => Some((0, 4, vec![0, 0])),
                        Remcsum::Transport => primed(inner).map(|(start, offset, value)| {
                            (inner_at + start, inner_at + offset, value.to_be_bytes().to_vec())
                        }),
                    };
                    let header = match place {
                        None => vec![0, protocol, 0, 0],
                        Some((start, offset, value)) => {
                            content[offset..offset + 2].copy_from_slice(&value);
                            let mut header = vec![2, protocol, 0, 1, 0x80, 0, 0, 0];
                            header.extend((start as u16).to_be_bytes());
                            header.extend((offset as u16).to_be_bytes());
                            header
                        }
                    };
                    content = [header, content].concat();
                }
                Shim::Vxlan(vni, is_remote) => {
                    assert!(self.ethernet.is_some(), "VXLAN carries Ethernet");
                    let mut word = (vni << 8).to_be_bytes();
                    let mut flags = [0x08, 0, 0, 0];
                    if let Some((start, offset, value)) = primed(inner).filter(|_| is_remote) {
                        let field = inner_at + offset;
                        content[field..field + 2].copy_from_slice(&value.to_be_bytes());
                        flags[1] = 0x20;
                        word[3] = ((inner_at + start) / 2) as u8 | if offset - start == 6 { 0x80 } else { 0 };
                    }
                    content = [&flags[..], &word, &content].concat();
                }
                Shim::Geneve(vni, words) => {
                    let mut header = vec![words, 0];
                    header.extend(inside_type.to_be_bytes());
                    header.extend((vni << 8).to_be_bytes());
                    if words > 0 {
                        header.extend([0x01, 0x02, 0x03, words - 1]);
                        header.resize(header.len() + usize::from(words - 1) * 4, 0x5a);
                    }
                    content = [header, content].concat();
                }
            }
            content = [udp.header(content.len()), content].concat();
            if udp.checksum {
                let (src, dst) = self.ip.addresses();
                let checksum = !with_pseudo(src, dst, 17, &content);
                put_checksum(&mut content, 6, checksum, true);
            }
            protocol = 17;
        }
        let mut bytes = self.ip.header(protocol, content.len());
        bytes.extend(content);
        bytes
    }
}

impl Gre {
    /// Writes the header with a checksum of zero.
    fn header(&self, ethertype: u16) -> Vec<u8> {
        let flags =
            u16::from(self.checksum) << 15 | u16::from(self.key.is_some()) << 13 | u16::from(self.seq.is_some()) << 12;
        let mut bytes = [flags.to_be_bytes(), ethertype.to_be_bytes()].concat();
        if self.checksum {
            bytes.extend([0; 4]);
        }
        for word in [self.key, self.seq].into_iter().flatten() {
            bytes.extend(word.to_be_bytes());
        }
        bytes
    }
}

impl Ethernet {
    /// Writes the header in front of an IP packet, without padding.
    ///
    /// # Panics
    /// Panics if `packet` is no IP packet.
    pub fn wrap(&self, packet: &[u8]) -> Vec<u8> {
        let mut bytes = [self.dst, self.src].concat();
        for (tpid, tci) in &self.tags {
            bytes.extend(tpid.to_be_bytes());
            bytes.extend(tci.to_be_bytes());
        }
        let ethertype: [u8; 2] = match packet[0] >> 4 {
            4 => [0x08, 0x00],
            6 => [0x86, 0xdd],
            _ => panic!("not an IP packet"),
        };
        bytes.extend(ethertype);
        bytes.extend(packet);
        bytes
    }
}

/// Returns the offsets of the TCP or UDP header of an IP packet and of its checksum, and the primed checksum; `None`
/// for all other packets, including fragments and UDP without a checksum.
pub fn primed(packet: &[u8]) -> Option<(usize, usize, u16)> {
    let (start, protocol, addresses) = if packet[0] >> 4 == 4 {
        if u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0 {
            return None;
        }
        (usize::from(packet[0] & 15) * 4, packet[9], &packet[12..20])
    } else {
        let (mut next, mut at) = (packet[6], 40);
        while matches!(next, 0 | 43 | 60) {
            // What has no more bytes is no such header.
            next = *packet.get(at)?;
            at += 8 + usize::from(*packet.get(at + 1)?) * 8;
        }
        (at, next, &packet[8..40])
    };
    let offset = match protocol {
        6 => start + 16,
        17 => start + 6,
        _ => return None,
    };
    if protocol == 17 && packet[offset..offset + 2] == [0, 0] {
        return None;
    }
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    Some((start, offset, fold(&pseudo(src, dst, protocol, packet.len() - start))))
}

/// Replaces the checksum of an inner TCP or UDP header by the pseudo-header sum, as in a packet that a kernel passes to
/// a device. Returns `None` for a packet without such a checksum.
pub fn prime(packet: &[u8]) -> Option<Vec<u8>> {
    let (_, offset, value) = primed(packet)?;
    let mut bytes = packet.to_vec();
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
    Some(bytes)
}

fn put_checksum(bytes: &mut [u8], place: usize, checksum: u16, udp: bool) {
    let checksum = if udp && checksum == 0 { 0xffff } else { checksum };
    bytes[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(core::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }

    fn inner_udp(data: &[u8]) -> Vec<u8> {
        let l4 = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
        Packet { ip: Ip::V4(V4::new(1, 1, 2)), l4, data: data.to_vec() }.bytes()
    }

    fn inner_tcp(ip: Ip) -> Vec<u8> {
        let tcp = Tcp {
            src_port: 1000,
            dst_port: 80,
            seq: 1,
            ack: 1,
            flags: 0x18,
            window: 0x2000,
            urgent: 0,
            options: Vec::new(),
        };
        Packet { ip, l4: L4::Tcp(tcp), data: b"GET ".to_vec() }.bytes()
    }

    fn outer(port: u16, shim: Shim, gre: Option<Gre>) -> Tunnel {
        let udp = Udp { src_port: 0xc000, dst_port: port, checksum: true };
        Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: Some((udp, shim)), gre, ethernet: None }
    }

    // The packets below were computed by hand and their IPv4 and UDP checksums verified with an independent dissector.

    #[test]
    fn gue_with_and_without_remote_checksum() {
        assert_eq!(
            outer(6080, Shim::Gue(None), None).wrap(&inner_udp(b"hi")),
            hex("4500003e000040004011ae87c6120001c6120002 c00017c0002a29f1 00040000
                 4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869")
        );
        assert_eq!(
            outer(6080, Shim::Gue(Some(Remcsum::Transport)), None).wrap(&inner_udp(b"hi")),
            hex("45000046000040004011ae7fc6120001c6120002 c00017c0003216ff 02040001 80000000 0014001a
                 4500001e000040004011aca7c6120101c6120102 03e807d0000a8e43 6869")
        );
    }

    #[test]
    fn gue_version_one_and_fou_differ_in_the_port_only() {
        let bare = outer(6080, Shim::GueBare, None).wrap(&inner_udp(b"hi"));
        assert_eq!(bare[20..28], hex("c00017c0002629fd"));
        let fou = outer(5555, Shim::Fou, None).wrap(&inner_udp(b"hi"));
        assert_eq!(fou[20..28], hex("c00015b300262c0a"));
        assert_eq!(bare[28..], fou[28..]);
    }

    #[test]
    fn gre_with_a_key_around_ipv6_with_remote_checksum() {
        let mut ip = V6::new(0, 1, 2);
        ip.src[5] = 0;
        let gre = Gre { key: Some(42), ..Gre::default() };
        assert_eq!(
            outer(6080, Shim::Gue(Some(Remcsum::Transport)), Some(gre)).wrap(&inner_tcp(Ip::V6(ip))),
            hex("45000070000040004011ae55c6120001c6120002 c00017c0005c448c 022f0001 80000000 00300040
                 200086dd0000002a 6000000000180640 20010db8000000000000000000000001 20010db8000000000000000000000002
                 03e80050 00000001 00000001 50182000 5b930000 47455420")
        );
    }

    #[test]
    fn a_gre_checksum_under_a_remote_checksum_counts_the_inner_one_as_final() {
        let gre = Gre { checksum: true, ..Gre::default() };
        let inner = inner_tcp(Ip::V4(V4::new(1, 1, 2)));
        assert_eq!(
            outer(6080, Shim::Gue(Some(Remcsum::Transport)), Some(gre)).wrap(&inner),
            hex("4500005c000040004011ae69c6120001c6120002 c00017c00048ecb7 022f0001 80000000 001c002c
                 80000800 06460000 4500002c000040004006aca4c6120101c6120102
                 03e80050 00000001 00000001 50182000 8e460000 47455420")
        );
        assert_eq!(
            outer(6080, Shim::Gue(Some(Remcsum::Gre)), Some(gre)).wrap(&inner_udp(b"hi")),
            hex("4500004e000040004011ae77c6120001c6120002 c00017c0003a1fa0 022f0001 80000000 00000004
                 80000800 00000000 4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869")
        );
    }

    #[test]
    fn a_computed_udp_zero_is_written_as_all_ones() {
        assert_eq!(inner_udp(&[0x65, 0xfa])[26..28], [0xff, 0xff]);
    }

    #[test]
    fn fou_over_ipv6_with_and_without_checksum() {
        let mut ip = V6::new(0, 1, 2);
        ip.src[5] = 0;
        let mut tunnel = outer(5555, Shim::Fou, None);
        tunnel.ip = Ip::V6(ip);
        assert_eq!(tunnel.wrap(&inner_udp(b"hi"))[40..48], hex("c00015b300265cbd"));
        if let Some((udp, _)) = &mut tunnel.udp {
            udp.checksum = false;
        }
        assert_eq!(tunnel.wrap(&inner_udp(b"hi"))[40..48], hex("c00015b300260000"));
    }
}
