//! One pass over the headers of a frame.

use std::ops::Range;

use super::report::{Csum, Level, Ports, Report, Start, Transport};
use crate::sum::{fold, pseudo, with_pseudo};

/// A checksum with a pseudo header: its addresses, protocol, covered range and field.
#[derive(Clone, Debug)]
pub(super) struct Place {
    src: Vec<u8>,
    dst: Vec<u8>,
    protocol: u8,
    range: Range<usize>,
    field: usize,
}

impl Place {
    pub(super) fn complete(&self, bytes: &mut [u8]) -> Result<(), String> {
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

pub(super) struct Walk<'a> {
    bytes: Vec<u8>,
    ports: &'a Ports,
    check: bool,
    pub(super) report: Report,
    pub(super) innermost: Option<Place>,
    pub(super) outermost: Option<Place>,
    is_remote: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn run(bytes: &[u8], start: Start, ports: &'a Ports, check: bool) -> Result<Walk<'a>, String> {
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
        // Critical options concern the tunnel's ends (RFC 8926, section 3.5), and reserved bits are ignored.
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
        if inside > end {
            return Err("GUE header past the end".into());
        }
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
        self.protocol(protocol, inside, end)
    }

    /// Executes a remote checksum option on the copy of the frame, as the receiver would.
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
