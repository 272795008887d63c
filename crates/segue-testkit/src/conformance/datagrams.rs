//! UDP datagrams longer than an MTU, each with the fragments that must leave.

use crate::Rng;
use crate::build::{Ethernet, Ip, L4, Packet, Udp, V4, V6, prime, primed};
use crate::fragment::fragments;
use crate::sum::fold;

/// A datagram, and an MTU that it exceeds.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Name of the datagram, for messages.
    pub name: String,
    /// The IP packet with complete checksums.
    pub packet: Vec<u8>,
    /// Offset of the UDP header in bytes.
    pub headers: usize,
    /// Payload of the datagram.
    pub data: Vec<u8>,
    /// Length of the IP headers of every fragment, a fragment header included, in bytes.
    pub front: usize,
    /// MTU: the longest IP packet that may leave, in bytes.
    pub mtu: usize,
    /// Link header in front of the IP packet.
    pub link: Ethernet,
}

impl Datagram {
    /// Returns the unfragmented frame; with `is_primed` its UDP checksum is the pseudo-header sum only.
    pub fn frame(&self, is_primed: bool) -> Vec<u8> {
        match prime(&self.packet).filter(|_| is_primed) {
            Some(packet) => self.link.wrap(&packet),
            None => self.link.wrap(&self.packet),
        }
    }

    /// Returns the fragments as frames; `id` is the identification for IPv6.
    pub fn fragments(&self, id: u32) -> Vec<Vec<u8>> {
        fragments(&self.packet, self.mtu, id).iter().map(|packet| self.link.wrap(packet)).collect()
    }

    /// Returns the fragments that Linux creates in software for a device without UFO, with all headers in each of them.
    /// Where the extension headers before a fragment header end is Linux's own choice, and those after it count in the
    /// offset. `first` is one of its frames, with the identification that it chose.
    pub fn by_device_of_linux(&self, first: &[u8]) -> Vec<Vec<u8>> {
        let (head, body) = self.packet.split_at(self.headers);
        let room = (self.mtu - self.front) / 8 * 8;
        let unfragmentable = if self.is_v4() { head.len() } else { unfragmentable_of_linux(head) };
        let skip = 14 + 4 * self.link.tags.len();
        let (mut all, mut offset, count) = (Vec::new(), 0, body.len().div_ceil(room));
        for (number, part) in body.chunks(room).enumerate() {
            let more = u16::from(number + 1 < count);
            let mut packet = head.to_vec();
            if self.is_v4() {
                packet[2..4].copy_from_slice(&((head.len() + part.len()) as u16).to_be_bytes());
                packet[6..8].copy_from_slice(&((offset / 8) | (more << 13)).to_be_bytes());
                packet[10..12].fill(0);
                let checksum = !fold(&packet);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                offset += part.len() as u16;
            } else {
                let next_at = next_of(head, unfragmentable);
                let next = std::mem::replace(&mut packet[next_at], 44);
                let id = first.get(skip + unfragmentable + 4..skip + unfragmentable + 8).unwrap_or(&[0; 4]);
                let header = [&[next, 0][..], &(offset | more).to_be_bytes(), id].concat();
                packet.splice(unfragmentable..unfragmentable, header);
                let len = (packet.len() - 40 + part.len()) as u16;
                packet[4..6].copy_from_slice(&len.to_be_bytes());
                offset = offset.wrapping_add(len - 8);
            }
            packet.extend(part);
            all.push(self.link.wrap(&packet));
        }
        all
    }

    /// Returns the fragments into which Linux splits a datagram of its own: over IPv6 even the last payload is a
    /// multiple of 8 bytes.
    pub fn by_linux(&self, id: u32) -> Vec<Vec<u8>> {
        let rest = if self.is_v4() { 0 } else { (self.mtu - self.front) % 8 };
        Datagram { mtu: self.mtu - rest, ..self.clone() }.fragments(id)
    }

    /// Returns whether the datagram is IPv4.
    pub fn is_v4(&self) -> bool {
        self.packet[0] >> 4 == 4
    }

    /// Returns the identification of a fragment, given from the Ethernet header on; 0 if the fragment is too short.
    pub fn id_of(&self, frame: &[u8]) -> u32 {
        let packet = frame.get(14 + 4 * self.link.tags.len()..).unwrap_or(&[]);
        let number = |range: std::ops::Range<usize>| {
            packet.get(range).unwrap_or(&[]).iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
        };
        if self.is_v4() { number(4..6) } else { number(self.front - 4..self.front) }
    }

    /// Returns the datagram with the identification (IPv4) or flow label (IPv6) of a frame, which the sender chose.
    #[must_use]
    pub fn as_of(&self, frame: &[u8]) -> Datagram {
        let mut all = self.clone();
        let at = if self.is_v4() { 4..6 } else { 1..4 };
        let skip = 14 + 4 * self.link.tags.len();
        if let (Some(from), Some(to)) = (frame.get(skip + at.start..skip + at.end), all.packet.get_mut(at)) {
            to.copy_from_slice(from);
        }
        if !self.is_v4() {
            // Version and class stay.
            all.packet[1] = self.packet[1] & 0xf0 | all.packet[1] & 0x0f;
        }
        all.summed()
    }

    /// Returns the datagram one hop further: TTL or hop limit reduced by one.
    #[must_use]
    pub fn forwarded(&self) -> Datagram {
        let mut all = self.clone();
        all.packet[if self.is_v4() { 8 } else { 7 }] -= 1;
        all.summed()
    }

    fn summed(mut self) -> Datagram {
        if self.is_v4() {
            self.packet[10..12].fill(0);
            let checksum = !fold(&self.packet[..self.headers]);
            self.packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        self
    }

    /// Returns whether all fragments but the last fill the MTU, as those of a UFO device must, which fragments to a
    /// given size.
    pub fn fills(&self) -> bool {
        (self.mtu - self.front).is_multiple_of(8)
    }
}

/// Returns the length of the headers that Linux puts before a fragment header: all but destination options after a
/// routing header.
fn unfragmentable_of_linux(head: &[u8]) -> usize {
    let (mut next, mut at, mut is_routed) = (head[6], 40, false);
    while matches!(next, 0 | 43 | 60) && !(next == 60 && is_routed) {
        is_routed |= next == 43;
        next = head[at];
        at += 8 + usize::from(head[at + 1]) * 8;
    }
    at
}

/// Returns the offset of the field with the type of the header at `end`.
fn next_of(head: &[u8], end: usize) -> usize {
    let (mut at, mut header) = (6, 40);
    while header < end {
        at = header;
        header += 8 + usize::from(head[header + 1]) * 8;
    }
    at
}

/// Returns all datagrams of the vectors: IP version, options and extension headers, VLAN tags, sizes at the limits of n
/// fragments, and the longest possible ones.
pub fn datagrams() -> Vec<Datagram> {
    // An option for the first fragment alone (record route, full), one for all (router alert), the end.
    let options4 = vec![7, 7, 8, 1, 2, 3, 4, 0x94, 4, 0, 0];
    let options6 = || vec![1, 4, 0, 0, 0, 0];
    // A routing header of a type for experiments (RFC 4727, section 5.2) that has arrived.
    let every6 = vec![(0, options6()), (60, options6()), (43, vec![253, 0]), (60, options6())];
    let with6 = |extensions| Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) });
    // Each with the bytes that all fragments have.
    let ips = [
        ("4", 20, Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) })),
        ("4-options", 32, Ip::V4(V4 { df: false, options: options4, ..V4::new(1, 1, 2) })),
        ("6", 48, Ip::V6(V6::new(1, 1, 2))),
        ("6-hop-by-hop", 56, with6(vec![(0, options6())])),
        ("6-destination", 48, with6(vec![(60, options6())])),
        ("6-every", 72, with6(every6)),
    ];
    let tags: [(&str, &[(u16, u16)]); 3] =
        [("", &[]), ("vlan/", &[(0x8100, 5)]), ("vlan/vlan/", &[(0x88a8, 3), (0x8100, 5)])];
    let mut all = Vec::new();
    for (tags_name, tags) in tags {
        for (ip_name, front, ip) in &ips {
            // The least that IPv4 must pass (RFC 791), and that of IPv6; what leaves a rest of a division by eight; a
            // large one.
            let mtus: &[usize] =
                if matches!(ip, Ip::V4(_)) { &[68, 576, 1500, 1501, 9000] } else { &[104, 1280, 1496, 1500, 9000] };
            for &mtu in mtus {
                let room = mtu - front;
                let full = room / 8 * 8;
                let headers = ip.header(17, 8).len();
                let longest = if matches!(ip, Ip::V4(_)) { 65_535 - headers - 8 } else { 65_535 - (headers - 40) - 8 };
                // The headers after the part that every fragment has.
                let behind = headers + 8 + if matches!(ip, Ip::V4(_)) { 0 } else { 8 } - front;
                let mut sizes = Vec::new();
                for held in [full + room, full + room + 1, 2 * full, 2 * full + 1, 3 * full - 1, 3 * full + room] {
                    sizes.push(held - behind);
                }
                // One byte more than what is no longer than the MTU.
                sizes.push(mtu - headers - 8 + 1);
                if tags.is_empty() && mtu > 500 {
                    sizes.extend([9001, 40_000, longest]);
                }
                sizes.sort_unstable();
                sizes.dedup();
                for size in sizes {
                    all.push(datagram(
                        format!("{tags_name}{ip_name} {size} by {mtu}"),
                        all.len(),
                        tags,
                        ip,
                        size,
                        mtu,
                        *front,
                    ));
                }
            }
        }
    }
    all
}

fn datagram(
    name: String,
    number: usize,
    tags: &[(u16, u16)],
    ip: &Ip,
    size: usize,
    mtu: usize,
    front: usize,
) -> Datagram {
    let mut ip = ip.clone();
    if let Ip::V4(ip) = &mut ip {
        ip.id = number as u16 + 1;
    }
    let data = Rng::new(number as u64).bytes(size);
    let udp = Udp { src_port: 1000, dst_port: 2000, checksum: true };
    let packet = Packet { ip, l4: L4::Udp(udp), data: data.clone() }.bytes();
    let (headers, ..) = primed(&packet).expect("UDP with a checksum");
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: tags.to_vec() };
    Datagram { name, packet, headers, data, front, mtu, link }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment::reassemble;

    #[test]
    fn the_fragments_of_every_datagram_are_as_long_as_may_be_and_give_it_back() {
        for datagram in datagrams() {
            let skip = 14 + 4 * datagram.link.tags.len();
            let parts: Vec<Vec<u8>> = datagram.fragments(7).iter().map(|frame| frame[skip..].to_vec()).collect();
            let Datagram { name, packet, mtu, .. } = &datagram;
            assert!(parts.len() > 1 && parts.iter().all(|part| part.len() <= *mtu), "{name}");
            assert!(parts.len() == 2 || parts[..parts.len() - 1].iter().all(|part| part.len() + 8 > *mtu), "{name}");
            assert_eq!(reassemble(&parts).as_ref(), Ok(packet), "{name}");
        }
    }
}
