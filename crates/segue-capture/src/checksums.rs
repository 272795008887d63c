//! Every checksum of a packet: its header, its verdict, and its correct value.

use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::packet::{Header, Kind, Offload, Packet, Remote, Stop};
use segue::wire::{self, gre, icmp, ipv4, ipv6, protocol, read_u16, tcp, udp};

use crate::frame::Frame;

/// The verdict on a whole packet, from its lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketVerdict {
    /// Every checksum is correct.
    Good,
    /// At least one checksum is wrong.
    Bad,
    /// No checksum is wrong, and at least one is still to be finished.
    Unfinished,
    /// The innermost header is UDP without a checksum.
    Absent,
    /// Only the IPv4 header checksum could be verified: a fragment, or a protocol without a known checksum.
    IpOnly,
    /// A length contradicts another one or the bytes present, whatever the checksums are.
    Malformed,
    /// Bytes of the packet are missing from the capture, so that no checksum was verified.
    Cut,
    /// The record holds no IP packet.
    NotIp,
}

impl PacketVerdict {
    /// Returns the verdict's name in JSON and counters.
    pub fn name(self) -> &'static str {
        match self {
            PacketVerdict::Good => "good",
            PacketVerdict::Bad => "bad",
            PacketVerdict::Unfinished => "unfinished",
            PacketVerdict::Absent => "absent",
            PacketVerdict::IpOnly => "ip_only",
            PacketVerdict::Malformed => "malformed",
            PacketVerdict::Cut => "cut",
            PacketVerdict::NotIp => "not_ip",
        }
    }
}

/// The header that a checksum belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Checksum of an IPv4 header.
    Ipv4,
    /// Checksum of a UDP header.
    Udp,
    /// The GRE checksum (RFC 2784).
    Gre,
    /// Checksum of a TCP header.
    Tcp,
    /// Checksum of an ICMP message.
    Icmp,
    /// Checksum of an ICMPv6 message.
    Icmpv6,
}

impl Layer {
    /// Returns the protocol's name in JSON.
    pub fn name(self, is_outer: bool) -> &'static str {
        match (self, is_outer) {
            (Layer::Ipv4, false) => "ipv4",
            (Layer::Ipv4, true) => "outer_ipv4",
            (Layer::Udp, false) => "udp",
            (Layer::Udp, true) => "outer_udp",
            (Layer::Gre, _) => "gre",
            (Layer::Tcp, _) => "tcp",
            (Layer::Icmp, _) => "icmp",
            (Layer::Icmpv6, _) => "icmpv6",
        }
    }

    /// Returns the name of the header in text.
    pub(crate) fn title(self, is_outer: bool) -> &'static str {
        match (self, is_outer) {
            (Layer::Ipv4, false) => "IPv4 header",
            (Layer::Ipv4, true) => "outer IPv4 header",
            (Layer::Udp, false) => "UDP",
            (Layer::Udp, true) => "outer UDP",
            (Layer::Gre, _) => "GRE",
            (Layer::Tcp, _) => "TCP",
            (Layer::Icmp, _) => "ICMP",
            (Layer::Icmpv6, _) => "ICMPv6",
        }
    }
}

/// The verdict on one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The checksum is correct.
    Good,
    /// The checksum is wrong.
    Bad,
    /// The UDP header has no checksum.
    Absent,
    /// The field holds the sum of the pseudo-header (IPv4 header: zero): the packet was captured before the network
    /// card completed it.
    Unfinished,
    /// The field is unfinished because a remote checksum option leaves it to the receiver of the tunnel.
    Remote,
}

impl Verdict {
    /// Returns the verdict's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Bad => "bad",
            Verdict::Absent => "absent",
            Verdict::Unfinished => "unfinished",
            Verdict::Remote => "remote",
        }
    }
}

/// One checksum of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The header that the checksum belongs to.
    pub layer: Layer,
    /// Whether the header belongs to a tunnel.
    pub is_outer: bool,
    /// Tunnel level of the header, from 0 outside.
    pub level: usize,
    /// Verdict on the checksum.
    pub verdict: Verdict,
    /// Offset of the checksum field, from the first byte after the link header.
    pub at: usize,
    /// Value of the checksum field.
    pub field: u16,
    /// The correct value of the checksum.
    pub expected: u16,
}

impl Frame<'_> {
    /// Appends a finding for every checksum of the packet to `findings`, outermost first.
    pub(crate) fn judge(&self, findings: &mut Vec<Finding>) {
        findings.clear();
        Judge::new(self).all(findings);
    }

    /// Returns the verdict on the whole packet, from all findings of [`Frame::judge`].
    pub(crate) fn verdict(&self, findings: &[Finding]) -> PacketVerdict {
        let has = |verdict| findings.iter().any(|f| f.verdict == verdict);
        match findings.last() {
            _ if self.is_malformed() => PacketVerdict::Malformed,
            _ if has(Verdict::Bad) => PacketVerdict::Bad,
            _ if has(Verdict::Unfinished) => PacketVerdict::Unfinished,
            Some(last) if last.verdict == Verdict::Absent => PacketVerdict::Absent,
            _ if findings.iter().all(|f| f.layer == Layer::Ipv4) => PacketVerdict::IpOnly,
            _ => PacketVerdict::Good,
        }
    }
}

struct Judge<'f, 'a> {
    frame: &'f Frame<'a>,
    bytes: &'f [u8],
    ends: [usize; wire::parse::MAX_HEADERS],
    offload: Offload,
}

impl<'f, 'a> Judge<'f, 'a> {
    fn new(frame: &'f Frame<'a>) -> Self {
        let bytes = &frame.bytes[..frame.total.min(frame.bytes.len())];
        let mut ends = [0; wire::parse::MAX_HEADERS];
        let mut limit = bytes.len();
        for (end, header) in ends.iter_mut().zip(frame.layout.headers()) {
            let field = |at| usize::from(read_u16(bytes, header.start() + at).unwrap_or(u16::MAX));
            let stated = match header.kind {
                _ if frame.is_unsized => limit,
                Kind::Ipv4 => header.start() + field(ipv4::TOTAL_LEN),
                Kind::Ipv6 => header.start() + ipv6::LEN + field(ipv6::PAYLOAD_LEN),
                Kind::Udp => header.start() + field(udp::LENGTH),
                _ => limit,
            };
            limit = limit.min(stated).max(frame.layout.header_len());
            *end = limit;
        }
        let mut packet: Packet<&[u8]> = Packet::default();
        packet.head.set(&bytes[..frame.layout.header_len()]);
        let offload = Offload::received(&packet.head, &frame.layout);
        Judge { frame, bytes, ends, offload }
    }

    fn all(&self, findings: &mut Vec<Finding>) {
        let layout = &self.frame.layout;
        let headers = layout.headers();
        let transport = layout.transport();
        // A tunnel without IP inside, such as VXLAN around ARP, counts as a tunnel too.
        let is_tunnel =
            headers.iter().rev().take_while(|header| !header.is_ip()).any(|header| Some(header) != transport);
        let levels = layout.ip_levels() + usize::from(is_tunnel);
        let mut level = layout.ip_levels();
        if layout.stop() == Stop::Protocol
            && let Some(ip) = headers.last().filter(|header| header.is_ip())
        {
            let found = self.icmp(ip, headers.len() - 1);
            findings.extend(found.map(|finding| Finding { level: level.saturating_sub(1), ..finding }));
        }
        // Innermost first: outer checksums cover an inner field that is still unfinished.
        let mut open = None;
        for (index, header) in headers.iter().enumerate().rev() {
            let is_outer = level < levels;
            let found = match header.kind {
                Kind::Ipv4 => self.ipv4(header),
                Kind::Udp | Kind::Tcp if !is_outer => self.transport(header, index),
                Kind::Udp => self.udp_or_tcp(header, index, Layer::Udp, open),
                Kind::Gre => self.gre(header, index, level.saturating_sub(1), open),
                _ => None,
            };
            if let Some(found) = found {
                if found.layer != Layer::Gre && matches!(found.verdict, Verdict::Unfinished | Verdict::Remote) {
                    open = if found.layer == Layer::Ipv4 { open } else { Some(index) };
                }
                findings.push(Finding { is_outer, level: level.saturating_sub(1), ..found });
            }
            level -= usize::from(header.is_ip());
        }
        findings.reverse();
    }

    fn ipv4(&self, header: &Header) -> Option<Finding> {
        let bytes = self.bytes.get(header.start()..header.end())?;
        let at = header.start() + ipv4::CHECKSUM;
        let field = read_u16(self.bytes, at)?;
        let mut sum = Sum::of(&bytes[..ipv4::CHECKSUM]);
        sum.add(&bytes[ipv4::CHECKSUM + 2..]);
        if self.frame.is_unsized && header.start() == self.frame.l3() {
            // The sender computed it while the length was still 0.
            sum.remove(Sum::of(&bytes[ipv4::TOTAL_LEN..ipv4::TOTAL_LEN + 2]));
        }
        let expected = Field::complete(sum).value();
        let verdict = match field {
            _ if is_same(field, expected) => Verdict::Good,
            0 => Verdict::Unfinished,
            _ => Verdict::Bad,
        };
        Some(Finding { layer: Layer::Ipv4, is_outer: false, level: 0, verdict, at, field, expected })
    }

    fn transport(&self, header: &Header, index: usize) -> Option<Finding> {
        let layer = if header.kind == Kind::Tcp { Layer::Tcp } else { Layer::Udp };
        let mut finding = self.udp_or_tcp(header, index, layer, None)?;
        let remote = self.offload.layers().iter().any(|layer| layer.remote == Some(Remote::Transport));
        if remote && finding.verdict == Verdict::Unfinished {
            finding.verdict = Verdict::Remote;
        }
        Some(finding)
    }

    /// Judges a TCP or UDP checksum. `open` is the index of the outermost unfinished header inside, which the sender
    /// may have counted as finished (local checksum offload).
    fn udp_or_tcp(&self, header: &Header, index: usize, layer: Layer, open: Option<usize>) -> Option<Finding> {
        let (start, end) = (header.start(), self.ends[index]);
        let ip = self.frame.layout.headers().get(index.checked_sub(1)?).filter(|ip| ip.is_ip())?;
        let at = start + if layer == Layer::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
        let field = read_u16(self.bytes, at)?;
        let finding = |verdict, expected| Finding { layer, is_outer: false, level: 0, verdict, at, field, expected };
        if layer == Layer::Udp && field == 0 {
            return Some(finding(Verdict::Absent, 0));
        }
        let number = if layer == Layer::Tcp { protocol::TCP } else { protocol::UDP };
        let sized_pseudo = pseudo(self.bytes, ip, number, end - start)?;
        let covered = self.covered(start, end, at, None)?;
        let complete = |mut sum: Sum| {
            sum.append(covered, end - start);
            if layer == Layer::Udp { Field::complete_udp(sum) } else { Field::complete(sum) }.value()
        };
        let expected = complete(sized_pseudo);
        let equal = |value: u16| is_same(field, value);
        if equal(expected) {
            return Some(finding(Verdict::Good, expected));
        }
        // Some systems leave the length in the pseudo-header to the card as well.
        let unsized_pseudo = pseudo(self.bytes, ip, number, 0)?;
        if [sized_pseudo, unsized_pseudo].iter().any(|sum| Field::primed(*sum).value() == field) {
            return Some(finding(Verdict::Unfinished, expected));
        }
        if let Some(sum) = open.and_then(|open| self.covered(start, end, at, Some(open))) {
            let mut all = sized_pseudo;
            all.append(sum, end - start);
            if equal(Field::complete_udp(all).value()) {
                return Some(finding(Verdict::Good, field));
            }
        }
        Some(finding(Verdict::Bad, expected))
    }

    fn gre(&self, header: &Header, index: usize, level: usize, open: Option<usize>) -> Option<Finding> {
        let flags = read_u16(self.bytes, header.start())?;
        if flags & gre::CSUM == 0 {
            return None;
        }
        let at = header.start() + gre::CHECKSUM;
        let (field, end) = (read_u16(self.bytes, at)?, self.ends[index]);
        let of = |open| self.covered(header.start(), end, at, open).map(|sum| Field::complete(sum).value());
        let expected = of(None)?;
        let equal = |value: u16| is_same(field, value);
        let remote = self.offload.layers().get(level).is_some_and(|layer| layer.remote == Some(Remote::Gre));
        let verdict = match field % 0xffff {
            _ if equal(expected) || open.and_then(|open| of(Some(open))).is_some_and(equal) => Verdict::Good,
            0 if remote => Verdict::Remote,
            _ => Verdict::Bad,
        };
        Some(Finding { layer: Layer::Gre, is_outer: true, level, verdict, at, field, expected })
    }

    fn icmp(&self, ip: &Header, index: usize) -> Option<Finding> {
        let (start, end) = (ip.end(), self.ends[index]);
        let number = match ip.kind {
            Kind::Ipv4 => self.bytes[ip.start() + ipv4::PROTOCOL],
            _ => match ipv6::chain(self.bytes[ip.start() + ipv6::NEXT_HEADER], &self.bytes[ip.start() + ipv6::LEN..]) {
                ipv6::Chain::End { next, .. } => next,
                _ => return None,
            },
        };
        let at = start + icmp::CHECKSUM;
        let field = read_u16(self.bytes, at).filter(|_| at + 2 <= end)?;
        let (layer, mut sum) = match (number, ip.kind) {
            (protocol::ICMP, Kind::Ipv4) => (Layer::Icmp, Sum::ZERO),
            (protocol::ICMPV6, Kind::Ipv6) => (Layer::Icmpv6, pseudo(self.bytes, ip, number, end - start)?),
            _ => return None,
        };
        sum.append(self.covered(start, end, at, None)?, end - start);
        let expected = Field::complete(sum).value();
        let verdict = if is_same(field, expected) { Verdict::Good } else { Verdict::Bad };
        Some(Finding { layer, is_outer: false, level: 0, verdict, at, field, expected })
    }

    /// Sums the bytes from `start` to `end` without the field at `at`; with `open`, as if the checksum of the header
    /// with that index were finished.
    fn covered(&self, start: usize, end: usize, at: usize, open: Option<usize>) -> Option<Sum> {
        let mut sum = Sum::of(self.bytes.get(start..at)?);
        let Some(open) = open else {
            sum.add(self.bytes.get(at + 2..end)?);
            return Some(sum);
        };
        let (headers, open_end) = (self.frame.layout.headers(), self.ends[open]);
        let (header, ip) = (headers.get(open)?, headers.get(open.checked_sub(1)?)?);
        let number = if header.kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
        // The bytes that a right checksum covers sum to the complement of its pseudo-header.
        let pseudo = pseudo(self.bytes, ip, number, open_end - header.start())?;
        sum.add(self.bytes.get(at + 2..header.start())?);
        sum.add_u16(!pseudo.fold());
        (open_end == end).then_some(sum)
    }
}

/// Returns whether two checksums are equal in ones' complement, in which 0 and 0xffff are the same.
fn is_same(a: u16, b: u16) -> bool {
    a == b || (a.is_multiple_of(0xffff) && b.is_multiple_of(0xffff))
}

/// Returns the sum of the pseudo-header of protocol `number` under the IP header `ip`, for `len` bytes. It uses the
/// final addresses, which may be in an option or extension header; `None` if those cannot be determined.
pub(crate) fn pseudo(bytes: &[u8], ip: &Header, number: u8, len: usize) -> Option<Sum> {
    let header = bytes.get(ip.start()..ip.end())?;
    if ip.kind == Kind::Ipv4 {
        let (src, dst) = ipv4::ends(header)?;
        let (src, dst) = (header.get(src)?, header.get(dst)?);
        return Some(pseudo_v4(src.try_into().ok()?, dst.try_into().ok()?, number, len));
    }
    let (src, dst) = ipv6::ends(header)?;
    let (src, dst) = (header.get(src)?, header.get(dst)?);
    Some(pseudo_v6(src.try_into().ok()?, dst.try_into().ok()?, number, len))
}

#[cfg(test)]
mod tests {
    use segue::packet::{Start, Tunnels};
    use segue_testkit::Rng;
    use segue_testkit::build::{self, Ip, V4, V6};
    use segue_testkit::flow::{Sender, mixed};

    use super::*;
    use crate::file::link;
    use crate::frame::USUAL_MTU;

    fn verdicts(bytes: &[u8]) -> Vec<(&'static str, &'static str)> {
        let tunnels = Tunnels::NONE.with_gue(6080);
        let frame = Frame::open(link::RAW, bytes, &tunnels, USUAL_MTU).unwrap();
        let mut findings = Vec::new();
        frame.judge(&mut findings);
        findings.iter().map(|f| (f.layer.name(f.is_outer), f.verdict.name())).collect()
    }

    #[test]
    fn good_traffic_is_good_and_a_flipped_bit_is_found() {
        let mut rng = Rng::new(11);
        for packet in mixed(&mut rng, 12, 800) {
            let mut bytes = packet.bytes;
            let good = verdicts(&bytes);
            assert!(good.iter().all(|(_, verdict)| *verdict == "good"), "{good:?} {bytes:02x?}");
            if segue_testkit::flow::corrupt(&mut rng, &mut bytes) {
                let seen = verdicts(&bytes);
                let is_malformed = wire::parse(&bytes, Start::Ip, &Tunnels::NONE).stop() == Stop::Malformed;
                assert!(is_malformed || seen.iter().any(|(_, verdict)| *verdict == "bad"), "{seen:?}");
            }
        }
    }

    #[test]
    fn a_primed_field_is_unfinished_and_a_zero_header_checksum_too() {
        for ip in [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))] {
            let mut sender = Sender::tcp(ip, 1, 7, Vec::new());
            let packet = sender.send(701, 0).bytes();
            let primed = build::prime(&packet).unwrap();
            assert_eq!(verdicts(&primed).last(), Some(&("tcp", "unfinished")));
        }
        let mut packet = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1).send(10, 0).bytes();
        packet[10..12].fill(0);
        packet[26..28].fill(0);
        assert_eq!(verdicts(&packet), [("ipv4", "unfinished"), ("udp", "absent")]);
    }

    #[test]
    fn a_length_of_zero_means_all_that_is_there_only_where_that_is_much() {
        let ip = Ip::V4(V4::new(1, 1, 2));
        for (len, is_unsized) in [(3000, true), (300, false)] {
            let mut packet = Sender::tcp(ip.clone(), 1, 7, Vec::new()).send(len, 0).bytes();
            packet[2..4].fill(0);
            let frame = Frame::open(link::RAW, &packet, &Tunnels::NONE, USUAL_MTU).unwrap();
            assert_eq!(frame.is_unsized, is_unsized);
            assert_eq!(frame.layout.transport().is_some(), is_unsized);
        }
        // With the option of RFC 2675 and without, above what 16 bits can say.
        let small = Sender::tcp(Ip::V6(V6::new(1, 1, 2)), 1, 7, Vec::new()).send(60_000, 0).bytes();
        let mut big = small.clone();
        big.extend([9; 40_000]);
        big[4..6].fill(0);
        let mut jumbo = big.clone();
        let len = (big.len() - 40 + 8) as u32;
        let option = [&[6, 0, 0xc2, 4][..], &len.to_be_bytes()].concat();
        jumbo.splice(40..40, option);
        jumbo[6] = 0;
        for packet in [big, jumbo] {
            let frame = Frame::open(link::RAW, &packet, &Tunnels::NONE, USUAL_MTU).unwrap();
            assert_eq!((frame.total, frame.layout.header_len(), frame.ip_len()), (100_060, 60, 100_060));
        }
    }

    #[test]
    fn no_bytes_whatever_make_it_panic() {
        let mut rng = Rng::new(5);
        let mut findings = Vec::new();
        let seeds: Vec<Vec<u8>> = mixed(&mut rng, 8, 60).into_iter().map(|sent| sent.bytes).collect();
        for round in 0..20_000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..rng.below(6) {
                let at = rng.below(bytes.len().min(80));
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(bytes.len() + 1));
            for number in [link::RAW, link::ETHERNET, link::COOKED, link::COOKED2] {
                let tunnels = Tunnels::NONE.with_gue(6080).with_fou(4000, 4);
                if let Some(frame) = Frame::open(number, &bytes, &tunnels, 40) {
                    frame.judge(&mut findings);
                    let _ = frame.packet();
                }
            }
        }
    }
}
