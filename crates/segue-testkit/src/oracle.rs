//! Checks a frame from first byte to last.
//!
//! [`verify`] walks the headers with code of its own and checks every length field and every IPv4, TCP, UDP, ICMP, ICMPv6
//! and GRE checksum. A remote checksum option is carried out on a copy, as a receiver would, before what it covers is
//! checked. [`verify_owed`] is for frames that a port still has to complete.

use std::ops::Range;

use crate::sum::{fold, pseudo, with_pseudo};

/// Where a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With an Ethernet header. Padding behind the IP packet is allowed, as it is in frames inside of tunnels.
    Ethernet,
    /// With an IP header.
    Ip,
}

/// UDP destination ports that carry tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// GUE.
    pub gue: Vec<u16>,
    /// FOU, each with its IP protocol.
    pub fou: Vec<(u16, u8)>,
    /// VXLAN.
    pub vxlan: Vec<u16>,
    /// Geneve.
    pub geneve: Vec<u16>,
}

/// What is left to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// The innermost transport checksum, which must be primed.
    pub inner: bool,
    /// The outermost UDP checksum, which must be primed.
    pub outer: bool,
}

/// One IP header and the tunnel headers behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// 4 or 6.
    pub version: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub id: Option<u16>,
    /// IPv4 don't fragment.
    pub df: bool,
    /// Source address.
    pub src: Vec<u8>,
    /// Destination address.
    pub dst: Vec<u8>,
    /// Bytes from this header to the end of its packet.
    pub len: usize,
    /// Ports of a UDP header that carries a tunnel.
    pub udp: Option<(u16, u16)>,
    /// Whether that header has a checksum (which is then right).
    pub has_udp_checksum: bool,
    /// GUE version, where there is GUE.
    pub gue: Option<u8>,
    /// Network identifier, where there is VXLAN or Geneve.
    pub vni: Option<u32>,
    /// Start and offset of a remote checksum option.
    pub remcsum: Option<(u16, u16)>,
    /// GRE: key and sequence number.
    pub gre: Option<(Option<u32>, Option<u32>)>,
    /// Whether GRE has a checksum (which is then right).
    pub has_gre_checksum: bool,
}

/// The state of the innermost transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Csum {
    /// Right as it stands.
    Good,
    /// Zero: UDP without a checksum.
    Absent,
    /// Primed; a remote checksum option hands it to the far end, which arrives at a right one.
    Remote,
    /// Primed for the port.
    Owed,
}

/// The innermost transport header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// IP protocol: 1, 6, 17 or 58.
    pub protocol: u8,
    /// First byte of the header.
    pub at: usize,
    /// Ports; zero for ICMP.
    pub ports: (u16, u16),
    /// TCP sequence number.
    pub seq: u32,
    /// TCP flags.
    pub flags: u8,
    /// The checksum.
    pub csum: Csum,
}

/// What a frame turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// IP levels, outermost first.
    pub levels: Vec<Level>,
    /// The transport; `None` for other protocols and for fragments.
    pub transport: Option<Transport>,
    /// What follows the innermost header that was understood.
    pub payload: Range<usize>,
    /// Bytes of Ethernet padding.
    pub padding: usize,
}

/// Checks `bytes`, which must be ready for a wire.
///
/// # Errors
/// What is wrong, in words.
pub fn verify(bytes: &[u8], start: Start, ports: &Ports) -> Result<Report, String> {
    verify_owed(bytes, start, ports, Owed::default())
}

/// As [`verify`], for a frame whose port still has something to do; the rest must be right once that is done.
///
/// # Errors
/// What is wrong, in words; also where something is owed that is in place already.
pub fn verify_owed(bytes: &[u8], start: Start, ports: &Ports, owed: Owed) -> Result<Report, String> {
    let mut bytes = bytes.to_vec();
    if owed.inner || owed.outer {
        let walk = Walk::run(&bytes, start, ports, false)?;
        if owed.inner {
            let place = walk.innermost.ok_or("a checksum is owed, but there is no transport header")?;
            place.complete(&mut bytes)?;
        }
        if owed.outer {
            let place = walk.outermost.ok_or("an outer checksum is owed, but there is no outer UDP header")?;
            place.complete(&mut bytes)?;
        }
    }
    let mut report = Walk::run(&bytes, start, ports, true)?.report;
    if owed.inner
        && let Some(transport) = &mut report.transport
    {
        transport.csum = Csum::Owed;
    }
    Ok(report)
}

/// A checksum with a pseudo header.
#[derive(Clone, Debug)]
struct Place {
    src: Vec<u8>,
    dst: Vec<u8>,
    protocol: u8,
    range: Range<usize>,
    field: usize,
}

impl Place {
    fn complete(&self, bytes: &mut [u8]) -> Result<(), String> {
        let primed = fold(&pseudo(&self.src, &self.dst, self.protocol, self.range.len()));
        let found = u16_at(bytes, self.field)?;
        if found != primed {
            return Err(format!("checksum at {} is {found:04x}, not primed with {primed:04x}", self.field));
        }
        let sum = fold(&bytes[self.range.clone()]);
        put_nonzero(bytes, self.field, !sum);
        Ok(())
    }
}

struct Walk<'a> {
    bytes: Vec<u8>,
    ports: &'a Ports,
    check: bool,
    report: Report,
    innermost: Option<Place>,
    outermost: Option<Place>,
    is_remote: bool,
}

impl<'a> Walk<'a> {
    fn run(bytes: &[u8], start: Start, ports: &'a Ports, check: bool) -> Result<Walk<'a>, String> {
        let report = Report { levels: Vec::new(), transport: None, payload: 0..bytes.len(), padding: 0 };
        let bytes = bytes.to_vec();
        let end = bytes.len();
        let mut walk = Walk { bytes, ports, check, report, innermost: None, outermost: None, is_remote: false };
        match start {
            Start::Ip => walk.ip(0, end, false)?,
            Start::Ethernet => walk.ethernet(0, end, true)?,
        }
        Ok(walk)
    }

    fn ethernet(&mut self, at: usize, end: usize, may_pad: bool) -> Result<(), String> {
        let mut at = at + 12;
        loop {
            let kind = self.u16(at)?;
            at += 2;
            match kind {
                0x8100 | 0x88a8 => at += 2,
                _ => return self.ethertype(kind, at, end, may_pad),
            }
        }
    }

    fn ethertype(&mut self, kind: u16, at: usize, end: usize, may_pad: bool) -> Result<(), String> {
        match kind {
            0x0800 | 0x86dd => {
                let expected = if kind == 0x0800 { 4 } else { 6 };
                if self.u8(at)? >> 4 != expected {
                    return Err(format!("EtherType {kind:04x} in front of IP version {}", self.u8(at)? >> 4));
                }
                self.ip(at, end, may_pad)
            }
            // A frame inside of a tunnel may have been padded before it got there.
            0x6558 => self.ethernet(at, end, true),
            _ => {
                self.report.payload = at..end;
                Ok(())
            }
        }
    }

    fn ip(&mut self, at: usize, end: usize, may_pad: bool) -> Result<(), String> {
        if self.report.levels.len() > 8 {
            return Err("more than eight IP levels".into());
        }
        let version = self.u8(at)? >> 4;
        let mut level = Level { version, ..Level::default() };
        let (mut next, mut inside, len, mut is_fragment) = match version {
            4 => {
                let header_len = usize::from(self.u8(at)? & 15) * 4;
                let len = usize::from(self.u16(at + 2)?);
                if header_len < 20 || len < header_len {
                    return Err(format!("IPv4 header of {header_len} bytes in a packet of {len}"));
                }
                let header = self.slice(at..at + header_len)?;
                if self.check && fold(header) != 0xffff {
                    return Err(format!("IPv4 header checksum at {at} is wrong"));
                }
                (level.src, level.dst) = (header[12..16].to_vec(), header[16..20].to_vec());
                (level.tos, level.ttl, level.id) = (header[1], header[8], Some(self.u16(at + 4)?));
                let fragment = self.u16(at + 6)?;
                level.df = fragment & 0x4000 != 0;
                (self.u8(at + 9)?, at + header_len, len, fragment & 0x3fff != 0)
            }
            6 => {
                let header = self.slice(at..at + 40)?;
                (level.src, level.dst) = (header[8..24].to_vec(), header[24..40].to_vec());
                (level.tos, level.ttl) = (header[0] << 4 | header[1] >> 4, header[7]);
                (header[6], at + 40, 40 + usize::from(self.u16(at + 4)?), false)
            }
            _ => return Err(format!("IP version {version} at {at}")),
        };
        let present = end - at;
        if len > present {
            return Err(format!("IP length {len} at {at}, but {present} bytes are there"));
        }
        if len < present && !may_pad {
            return Err(format!("IP length {len} at {at} leaves {} bytes over", present - len));
        }
        self.report.padding += present - len;
        let end = at + len;
        level.len = len;
        while version == 6 && matches!(next, 0 | 43 | 44 | 60) {
            if next == 44 {
                is_fragment = true;
                inside += 8;
                break;
            }
            next = self.u8(inside)?;
            inside += 8 + usize::from(self.u8(inside + 1)?) * 8;
        }
        if inside > end {
            return Err("extension headers past the end of the packet".into());
        }
        self.report.levels.push(level);
        if is_fragment {
            self.report.payload = inside..end;
            return Ok(());
        }
        self.protocol(next, inside, end)
    }

    fn protocol(&mut self, protocol: u8, at: usize, end: usize) -> Result<(), String> {
        match protocol {
            1 | 6 | 58 => self.transport(protocol, at, end),
            17 => self.udp(at, end),
            4 | 41 => {
                let expected = if protocol == 4 { 4 } else { 6 };
                if self.u8(at)? >> 4 != expected {
                    return Err(format!("IP protocol {protocol} in front of IP version {}", self.u8(at)? >> 4));
                }
                self.ip(at, end, false)
            }
            47 => self.gre(at, end),
            143 => self.ethernet(at, end, true),
            _ => {
                self.report.payload = at..end;
                Ok(())
            }
        }
    }

    fn udp(&mut self, at: usize, end: usize) -> Result<(), String> {
        let length = usize::from(self.u16(at + 4)?);
        if length != end - at {
            return Err(format!("UDP length {length} at {at} for {} bytes", end - at));
        }
        let port = self.u16(at + 2)?;
        let fou = self.ports.fou.iter().find(|f| f.0 == port).map(|f| f.1);
        let [is_gue, is_vxlan, is_geneve] =
            [&self.ports.gue, &self.ports.vxlan, &self.ports.geneve].map(|ports| ports.contains(&port));
        if !(is_gue || is_vxlan || is_geneve || fou.is_some()) {
            return self.transport(17, at, end);
        }
        let place = self.place(17, at..end, at + 6);
        let has_checksum = self.u16(at + 6)? != 0;
        if has_checksum {
            self.check_place(&place, "outer UDP")?;
        }
        if self.report.levels.len() == 1 {
            self.outermost = Some(place);
        }
        let ports = (self.u16(at)?, port);
        if let Some(level) = self.report.levels.last_mut() {
            level.udp = Some(ports);
            level.has_udp_checksum = has_checksum;
        }
        match fou {
            Some(protocol) => self.protocol(protocol, at + 8, end),
            None if is_vxlan => self.vxlan(at + 8, end),
            None if is_geneve => self.geneve(at + 8, end),
            None => self.gue(at + 8, end),
        }
    }

    fn vxlan(&mut self, at: usize, end: usize) -> Result<(), String> {
        let flags = u32_at(&self.bytes, at)?;
        let (vni, last) = (u32_at(&self.bytes, at + 4)? >> 8, self.u8(at + 7)?);
        if let Some(level) = self.report.levels.last_mut() {
            level.vni = Some(vni);
        }
        match flags {
            0x0800_0000 if last == 0 => {}
            0x0820_0000 => {
                let start = u16::from(last & 0x7f) * 2;
                self.remcsum((start, start + if last & 0x80 == 0 { 16 } else { 6 }), at + 8, end)?;
            }
            _ => return Err(format!("VXLAN flags {flags:08x}, last byte {last:02x}")),
        }
        self.ethernet(at + 8, end, true)
    }

    fn geneve(&mut self, at: usize, end: usize) -> Result<(), String> {
        let (first, second) = (self.u8(at)?, self.u8(at + 1)?);
        let inside = at + 8 + usize::from(first & 0x3f) * 4;
        // Critical options concern the tunnel's ends (RFC 8926, section 3.5), and reserved bits nobody.
        if first >> 6 != 0 || second & 0x80 != 0 || inside > end {
            return Err(format!("Geneve begins with {first:02x}{second:02x}"));
        }
        let (kind, vni) = (self.u16(at + 2)?, u32_at(&self.bytes, at + 4)? >> 8);
        if let Some(level) = self.report.levels.last_mut() {
            level.vni = Some(vni);
        }
        self.ethertype(kind, inside, end, false)
    }

    fn gue(&mut self, at: usize, end: usize) -> Result<(), String> {
        let first = self.u8(at)?;
        if let Some(level) = self.report.levels.last_mut() {
            level.gue = Some(first >> 6);
        }
        match first >> 4 {
            4 | 6 => return self.protocol(if first >> 4 == 4 { 4 } else { 41 }, at, end),
            0..4 => {}
            _ => return Err(format!("GUE begins with {first:02x}")),
        }
        if first & 0x20 != 0 {
            return Err("GUE control message".into());
        }
        let protocol = self.u8(at + 1)?;
        let inside = at + 4 + usize::from(first & 31) * 4;
        let flags = self.u16(at + 2)?;
        match (flags, first & 31) {
            (0, _) => {}
            (1, 2..) => {
                if self.slice(at + 4..at + 8)? != [0x80, 0, 0, 0] {
                    return Err("unknown GUE private flags".into());
                }
                self.remcsum((self.u16(at + 8)?, self.u16(at + 10)?), inside, end)?;
            }
            _ => return Err(format!("GUE flags {flags:04x} with {} words", first & 31)),
        }
        if inside > end {
            return Err("GUE header past the end".into());
        }
        self.protocol(protocol, inside, end)
    }

    /// Carries the option out, on the copy.
    fn remcsum(&mut self, (start, offset): (u16, u16), base: usize, end: usize) -> Result<(), String> {
        if let Some(level) = self.report.levels.last_mut() {
            level.remcsum = Some((start, offset));
            if level.udp.is_some() && !level.has_udp_checksum {
                return Err("remote checksum without an outer checksum".into());
            }
        }
        let (from, field) = (base + usize::from(start), base + usize::from(offset));
        if field < from || (field - from) % 2 != 0 || field + 2 > end {
            return Err(format!("remote checksum start {start} and offset {offset} in {} bytes", end - base));
        }
        if self.check {
            let sum = fold(self.slice(from..end)?);
            put_nonzero(&mut self.bytes, field, !sum);
        }
        self.is_remote |= field - from != 4;
        Ok(())
    }

    fn gre(&mut self, at: usize, end: usize) -> Result<(), String> {
        let flags = self.u16(at)?;
        if flags & !0xb000 != 0 {
            return Err(format!("GRE flags {flags:04x}"));
        }
        let kind = self.u16(at + 2)?;
        let mut inside = at + 4;
        let has_checksum = flags & 0x8000 != 0;
        if has_checksum {
            inside += 4;
            if self.check && fold(self.slice(at..end)?) != 0xffff {
                return Err(format!("GRE checksum at {at} is wrong"));
            }
        }
        let mut words = [None; 2];
        for (word, flag) in words.iter_mut().zip([0x2000, 0x1000]) {
            if flags & flag != 0 {
                *word = Some(u32_at(&self.bytes, inside)?);
                inside += 4;
            }
        }
        if let Some(level) = self.report.levels.last_mut() {
            level.gre = Some((words[0], words[1]));
            level.has_gre_checksum = has_checksum;
        }
        if inside > end {
            return Err("GRE header past the end".into());
        }
        self.ethertype(kind, inside, end, false)
    }

    fn transport(&mut self, protocol: u8, at: usize, end: usize) -> Result<(), String> {
        let (header_len, field) = match protocol {
            6 => (usize::from(self.u8(at + 12)? >> 4) * 4, at + 16),
            17 => (8, at + 6),
            _ => (8, at + 2),
        };
        let least = if protocol == 6 { 20 } else { 8 };
        if header_len < least || at + header_len > end {
            return Err(format!("transport header of {header_len} bytes in {}", end - at));
        }
        let mut csum = if self.is_remote { Csum::Remote } else { Csum::Good };
        if protocol == 1 {
            if self.check && fold(self.slice(at..end)?) != 0xffff {
                return Err("ICMP checksum is wrong".into());
            }
        } else if protocol == 17 && self.u16(field)? == 0 {
            if self.report.levels.last().is_some_and(|l| l.version == 6) {
                return Err("UDP over IPv6 without a checksum".into());
            }
            csum = Csum::Absent;
        } else {
            let place = self.place(protocol, at..end, field);
            self.check_place(&place, "transport")?;
            self.innermost = Some(place);
        }
        let has_ports = matches!(protocol, 6 | 17);
        self.report.transport = Some(Transport {
            protocol,
            at,
            ports: if has_ports { (self.u16(at)?, self.u16(at + 2)?) } else { (0, 0) },
            seq: if protocol == 6 { u32_at(&self.bytes, at + 4)? } else { 0 },
            flags: if protocol == 6 { self.u8(at + 13)? } else { 0 },
            csum,
        });
        self.report.payload = at + header_len..end;
        Ok(())
    }

    fn place(&self, protocol: u8, range: Range<usize>, field: usize) -> Place {
        let (src, dst) = self.report.levels.last().map(|l| (l.src.clone(), l.dst.clone())).unwrap_or_default();
        Place { src, dst, protocol, range, field }
    }

    fn check_place(&self, place: &Place, what: &str) -> Result<(), String> {
        if !self.check {
            return Ok(());
        }
        let bytes = self.slice(place.range.clone())?;
        let sum = with_pseudo(&place.src, &place.dst, place.protocol, bytes);
        if sum == 0xffff {
            return Ok(());
        }
        let found = self.u16(place.field)?;
        let primed = fold(&pseudo(&place.src, &place.dst, place.protocol, bytes.len()));
        let hint = if found == primed { ", it is primed" } else { "" };
        Err(format!("{what} checksum at {} is wrong ({found:04x}, sum {sum:04x}{hint})", place.field))
    }

    fn slice(&self, range: Range<usize>) -> Result<&[u8], String> {
        let len = self.bytes.len();
        self.bytes.get(range.clone()).ok_or_else(|| format!("bytes {range:?} of {len}"))
    }

    fn u8(&self, at: usize) -> Result<u8, String> {
        self.slice(at..at + 1).map(|b| b[0])
    }

    fn u16(&self, at: usize) -> Result<u16, String> {
        u16_at(&self.bytes, at)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, String> {
    let found = bytes.get(at..at + 2).ok_or_else(|| format!("no two bytes at {at}"))?;
    Ok(u16::from_be_bytes([found[0], found[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, String> {
    Ok(u32::from(u16_at(bytes, at)?) << 16 | u32::from(u16_at(bytes, at + 2)?))
}

fn put_nonzero(bytes: &mut [u8], field: usize, value: u16) {
    let value = if value == 0 { 0xffff } else { value };
    bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use crate::build::{Ethernet, Gre, Ip, L4, Packet, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6, prime};

    fn ports() -> Ports {
        let fou = vec![(5555, 4), (5556, 41), (5557, 47), (5558, 143)];
        Ports { gue: vec![6080], fou, vxlan: vec![4789], geneve: vec![6081] }
    }

    fn tcp(ip: Ip, len: usize) -> Packet {
        let tcp = Tcp {
            src_port: 1000,
            dst_port: 80,
            seq: 77,
            ack: 1,
            flags: 0x10,
            window: 500,
            urgent: 0,
            options: Tcp::timestamps(1, 2),
        };
        Packet { ip, l4: L4::Tcp(tcp), data: Rng::new(len as u64).bytes(len) }
    }

    fn forms() -> Vec<Vec<u8>> {
        let mut forms = Vec::new();
        for inner in [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))] {
            let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
            let icmp = L4::Icmp(128, 0, [1, 2, 3, 4]);
            for packet in [
                tcp(inner.clone(), 101),
                Packet { ip: inner.clone(), l4: udp, data: vec![9; 33] },
                Packet { ip: inner.clone(), l4: icmp, data: vec![7; 12] },
            ] {
                let packet = packet.bytes();
                forms.push(packet.clone());
                for outer in [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))] {
                    let gre = Gre { checksum: true, key: Some(5), seq: Some(9) };
                    for (gre, fou) in [(None, if packet[0] >> 4 == 4 { 5555 } else { 5556 }), (Some(gre), 5557)] {
                        for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
                            let dst_port = if shim == Shim::Fou { fou } else { 6080 };
                            let udp = Udp { src_port: 50000, dst_port, checksum: true };
                            let ip = outer.clone();
                            forms.push(Tunnel { ip, udp: Some((udp, shim)), gre, ethernet: None }.wrap(&packet));
                        }
                    }
                    for (shim, dst_port) in [
                        (Shim::Fou, 5558),
                        (Shim::Gue(Some(Remcsum::Transport)), 6080),
                        (Shim::Vxlan(5, false), 4789),
                        (Shim::Vxlan(0xff_ffff, true), 4789),
                        (Shim::Geneve(5, 0), 6081),
                        (Shim::Geneve(5, 3), 6081),
                    ] {
                        let udp = Udp { src_port: 50000, dst_port, checksum: true };
                        let ethernet = Some(Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() });
                        let ip = outer.clone();
                        forms.push(Tunnel { ip, udp: Some((udp, shim)), gre: None, ethernet }.wrap(&packet));
                    }
                }
            }
        }
        forms
    }

    #[test]
    fn everything_that_the_builders_make_is_accepted() {
        for bytes in forms() {
            let report = verify(&bytes, Start::Ip, &ports()).unwrap();
            assert!(report.transport.is_some());
        }
    }

    #[test]
    fn of_a_geneve_header_only_control_and_version_make_the_packet_inside_unreadable() {
        let packet = tcp(Ip::V4(V4::new(1, 1, 2)), 9).bytes();
        let udp = Udp { src_port: 50000, dst_port: 6081, checksum: false };
        let ethernet = Some(Ethernet::default());
        let ip = Ip::V4(V4::new(0, 1, 2));
        let frame = Tunnel { ip, udp: Some((udp, Shim::Geneve(5, 3))), gre: None, ethernet }.wrap(&packet);
        for (at, bits, is_read) in [(29, 0x40, true), (29, 0x3f, true), (29, 0x80, false), (28, 0x40, false)] {
            let mut frame = frame.clone();
            frame[at] |= bits;
            assert_eq!(verify(&frame, Start::Ip, &ports()).is_ok(), is_read, "byte {at}, bits {bits:02x}");
        }
    }

    #[test]
    fn every_flipped_bit_under_a_checksum_is_found() {
        for bytes in forms() {
            // Past the outer IP header everything is covered: by the outer UDP checksum, or by the transport's.
            let from = if bytes[0] >> 4 == 4 { 0 } else { 40 };
            let mut rng = Rng::new(bytes.len() as u64);
            for at in from..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << rng.below(8);
                let result = verify(&bad, Start::Ip, &ports());
                // A flipped port turns a tunnel into a datagram, whose checksum is wrong all the same.
                assert!(result.is_err(), "byte {at} of {bytes:02x?}: {result:?}");
            }
        }
    }

    #[test]
    fn primed_checksums_count_only_where_they_are_owed() {
        let good = tcp(Ip::V4(V4::new(1, 1, 2)), 9).bytes();
        let primed = prime(&good).unwrap();
        let owed = Owed { inner: true, outer: false };
        assert!(verify(&primed, Start::Ip, &ports()).unwrap_err().contains("primed"));
        assert_eq!(verify_owed(&primed, Start::Ip, &ports(), owed).unwrap().transport.unwrap().csum, Csum::Owed);
        assert!(verify_owed(&good, Start::Ip, &ports(), owed).is_err());
    }

    #[test]
    fn padding_is_for_ethernet_only() {
        let packet = tcp(Ip::V4(V4::new(1, 1, 2)), 0).bytes();
        let padded = [&packet[..], &[1, 2, 3]].concat();
        assert!(verify(&padded, Start::Ip, &ports()).is_err());
        let frame = Ethernet { tags: vec![(0x88a8, 1), (0x8100, 2)], ..Ethernet::default() }.wrap(&packet);
        let report = verify(&[&frame[..], &[1, 2, 3]].concat(), Start::Ethernet, &ports()).unwrap();
        assert_eq!((report.padding, report.levels.len()), (3, 1));
    }

    #[test]
    fn nothing_makes_it_panic() {
        let mut rng = Rng::new(1);
        let forms = forms();
        for round in 0..4000 {
            let mut bytes = forms[rng.below(forms.len())].clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len());
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(bytes.len() + 1));
            let start = if round % 2 == 0 { Start::Ip } else { Start::Ethernet };
            let _ = verify_owed(&bytes, start, &ports(), Owed { inner: round % 3 == 0, outer: round % 5 == 0 });
        }
    }
}
