//! The chip's checksum and segmentation engines. They ignore the previous contents of the fields that they fill, and
//! share no code with segue's engine, so that each can be tested against the other.

use crate::frame::tx::{Command, MIN_MSS, Tag};

const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;
/// Length of the longest packet, bytes: an IPv6 header, and as much as its length field can tell.
const MAX_PACKET: usize = 40 + 65_535;

/// Offsets of a frame's headers, as found by the chip: one tag, no IPv6 extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) is_v6: bool,
    /// Offset of the IP header.
    pub(super) ip: usize,
    /// Offset of the header after IP.
    pub(super) transport: usize,
    /// End of the IP packet according to its length field.
    pub(super) end: usize,
    pub(super) protocol: u8,
    pub(super) is_fragment: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the folded ones-complement sum of big-endian words; an odd last byte is the upper half of a word.
pub(super) fn sum(seed: u64, bytes: &[u8]) -> u16 {
    let mut sum = seed;
    let mut words = bytes.chunks_exact(2);
    for pair in &mut words {
        sum += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Finds the headers of a frame.
pub(super) fn place(frame: &[u8], vlan_type: u16) -> Option<Place> {
    let mut ip = 14;
    let mut ethertype = word(frame, 12)?;
    if ethertype == vlan_type {
        (ip, ethertype) = (18, word(frame, 16)?);
    }
    let version = frame.get(ip)? >> 4;
    match (ethertype, version) {
        (ETHERTYPE_V4, 4) => {
            let header = usize::from(frame[ip] & 0xf) * 4;
            let total = usize::from(word(frame, ip + 2)?);
            let fits = header >= 20 && frame.len() >= ip + header && total >= header;
            fits.then_some(Place {
                is_v6: false,
                ip,
                transport: ip + header,
                end: ip + total,
                protocol: frame[ip + 9],
                is_fragment: word(frame, ip + 6)? & 0x3fff != 0,
            })
        }
        (ETHERTYPE_V6, 6) if frame.len() >= ip + 40 => Some(Place {
            is_v6: true,
            ip,
            transport: ip + 40,
            end: ip + 40 + usize::from(word(frame, ip + 4)?),
            protocol: frame[ip + 6],
            is_fragment: false,
        }),
        _ => None,
    }
}

impl Place {
    /// Returns the sum of the pseudo-header for the bytes between the transport header and `end`.
    fn pseudo(&self, frame: &[u8], end: usize) -> u64 {
        let addresses = if self.is_v6 { self.ip + 8..self.ip + 40 } else { self.ip + 12..self.ip + 20 };
        u64::from(sum(u64::from(self.protocol) + (end - self.transport) as u64, &frame[addresses]))
    }

    /// Returns the offset of the transport checksum.
    fn field(&self) -> Option<usize> {
        match self.protocol {
            TCP => Some(self.transport + 16),
            UDP => Some(self.transport + 6),
            _ => None,
        }
    }
}

/// Computes the IPv4 header checksum.
fn fill_ip(frame: &mut [u8], place: &Place) {
    if !place.is_v6 {
        put(frame, place.ip + 10, 0);
        let value = !sum(0, &frame[place.ip..place.transport]);
        put(frame, place.ip + 10, value);
    }
}

/// Computes the TCP or UDP checksum, regardless of the value of the field.
fn fill_transport(frame: &mut [u8], place: &Place) {
    let end = place.end.min(frame.len());
    let Some(field) = place.field().filter(|field| field + 2 <= end && !place.is_fragment) else { return };
    put(frame, field, 0);
    let value = !sum(place.pseudo(frame, end), &frame[place.transport..end]);
    // RFC 768: a computed zero is sent as all ones, since zero means that there is no checksum.
    put(frame, field, if value == 0 && place.protocol == UDP { 0xffff } else { value });
}

/// Returns whether IPv4 header checksum and transport checksum are right.
pub(super) fn verify(frame: &[u8], place: &Place) -> (bool, bool) {
    let ip = place.is_v6 || sum(0, &frame[place.ip..place.transport]) == 0xffff;
    let Some(field) = place.field().filter(|field| field + 2 <= place.end && place.end <= frame.len()) else {
        return (ip, true);
    };
    let absent = place.protocol == UDP && !place.is_v6 && word(frame, field) == Some(0);
    let transport = place.is_fragment
        || absent
        || sum(place.pseudo(frame, place.end), &frame[place.transport..place.end]) == 0xffff;
    (ip, transport)
}

/// Executes a command; returns the frames for the wire, without FCS. `None` if it is not possible: segmentation of
/// something that is not TCP, or that is longer than an IP packet.
pub(super) fn apply(command: &Command, mut frame: Vec<u8>, vlan_type: u16) -> Option<Vec<Vec<u8>>> {
    let mut frames = match command.mss {
        Some(mss) => segments(&frame, usize::from(mss), vlan_type)?,
        None => {
            if let Some(place) = place(&frame, vlan_type) {
                if command.ip_csum {
                    fill_ip(&mut frame, &place);
                }
                if command.transport_csum {
                    fill_transport(&mut frame, &place);
                }
            }
            vec![frame]
        }
    };
    for frame in &mut frames {
        tag(frame, command.tag, vlan_type);
    }
    Some(frames)
}

fn tag(frame: &mut Vec<u8>, tag: Tag, vlan_type: u16) {
    let is_tagged = word(frame, 12) == Some(vlan_type);
    match tag {
        Tag::Replace(tci) if is_tagged && frame.len() >= 16 => put(frame, 14, tci),
        Tag::Insert(tci) | Tag::Replace(tci) if frame.len() >= 12 => {
            let [a, b] = vlan_type.to_be_bytes();
            let [c, d] = tci.to_be_bytes();
            frame.splice(12..12, [a, b, c, d]);
        }
        _ => {}
    }
}

/// Cuts a TCP super-frame into segments of at most `mss` bytes of payload.
fn segments(frame: &[u8], mss: usize, vlan_type: u16) -> Option<Vec<Vec<u8>>> {
    let place = place(frame, vlan_type).filter(|place| place.protocol == TCP && !place.is_fragment)?;
    let tcp = place.transport;
    let header_end = tcp + usize::from(*frame.get(tcp + 12)? >> 4) * 4;
    if mss == 0 || header_end < tcp + 20 || frame.len() <= header_end || frame.len() - place.ip > MAX_PACKET {
        return None;
    }
    // A size below the least of the chip is raised to it.
    let mss = mss.max(usize::from(MIN_MSS));
    let id = word(frame, place.ip + 4)?;
    let first = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().ok()?);
    let payload = &frame[header_end..];
    let count = payload.len().div_ceil(mss);
    let cut = |(n, part): (usize, &[u8])| {
        let mut out = frame[..header_end].to_vec();
        out.extend_from_slice(part);
        let end = out.len();
        if place.is_v6 {
            put(&mut out, place.ip + 4, (end - place.transport) as u16);
        } else {
            put(&mut out, place.ip + 2, (end - place.ip) as u16);
            put(&mut out, place.ip + 4, id.wrapping_add(n as u16));
        }
        let sequence = first.wrapping_add((n * mss) as u32);
        out[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if n > 0 {
            out[tcp + 13] &= !CWR;
        }
        if n + 1 < count {
            out[tcp + 13] &= !FIN_PSH;
        }
        let place = Place { end, ..place };
        fill_ip(&mut out, &place);
        fill_transport(&mut out, &place);
        out
    };
    Some(payload.chunks(mss).enumerate().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_frame_has_the_known_sum() {
        let text = "02000000000202000000000108004500002212344000401114950a0000010a00000203e807d0000ea01b736567756521";
        let mut frame: Vec<u8> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        frame.resize(60, 0);
        assert_eq!(sum(0, &frame[14..]), 0xebdd);
        assert_eq!(crate::regs::fcs(&frame).to_le_bytes(), [0x69, 0x74, 0xa7, 0x01]);
        let place = place(&frame, 0x8100).unwrap();
        assert_eq!((place.protocol, place.ip, place.transport, place.end), (UDP, 14, 34, 48));
        assert_eq!(verify(&frame, &place), (true, true));
        let right = frame.clone();
        for (at, expected) in [(15, (false, true)), (45, (true, false)), (26, (false, false))] {
            frame[at] ^= 1;
            assert_eq!(verify(&frame, &place), expected, "byte {at}");
            frame[at] ^= 1;
        }
        // Wrong or empty fields make no difference to the computed checksums.
        for seed in [0, 1, 0xffff] {
            put(&mut frame, 24, seed);
            put(&mut frame, 40, seed);
            let command = Command { ip_csum: true, transport_csum: true, ..Command::plain(60) };
            assert_eq!(apply(&command, frame.clone(), 0x8100), Some(vec![right.clone()]));
        }
    }
}
