//! Frames of fixed flows: Ethernet, IPv4 or IPv6, and TCP, UDP or ICMP, with right checksums.

use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::wire::{ethertype, protocol, tcp, udp};

/// A flow of TCP segments, or of UDP datagrams. Everything else about it is fixed: addresses of 198.18.0.0/15 and
/// 2001:db8::/32, timestamps, DF, an identification that counts up.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The number of the flow, which is its source port.
    number: u16,
    is_v6: bool,
    sequence: u32,
    id: u16,
}

impl Flow {
    /// Returns a flow over IPv4 with this number.
    pub fn new(number: usize) -> Flow {
        Flow { number: number as u16, is_v6: false, sequence: 1, id: 0 }
    }

    /// Returns a flow over IPv6 with this number.
    pub fn v6(number: usize) -> Flow {
        Flow { is_v6: true, ..Flow::new(number) }
    }

    /// Returns the next segment with `len` bytes of payload and these flags in addition to ACK, as an IP packet.
    pub fn packet(&mut self, len: usize, flags: u8) -> Vec<u8> {
        let mut segment = [1024 + self.number, 5201].map(u16::to_be_bytes).concat();
        segment.extend(self.sequence.to_be_bytes());
        segment.extend([0, 0, 0, 1, 0x80, tcp::ACK | flags, 2, 0, 0, 0, 0, 0]);
        segment.extend(tcp::STAMPED);
        segment.extend([0, 0, 0, 9, 0, 0, 0, 7]);
        segment.extend(self.payload(len));
        self.sequence = self.sequence.wrapping_add(len as u32);
        self.ip(protocol::TCP, Some(tcp::CHECKSUM), segment)
    }

    /// Returns a UDP datagram with `len` bytes of payload as an IP packet, between the ports of the segments.
    pub fn datagram(&mut self, len: usize) -> Vec<u8> {
        let mut datagram = [1024 + self.number, 5201, (8 + len) as u16, 0].map(u16::to_be_bytes).concat();
        datagram.extend(self.payload(len));
        self.ip(protocol::UDP, Some(udp::CHECKSUM), datagram)
    }

    fn payload(&self, len: usize) -> impl Iterator<Item = u8> {
        let number = usize::from(self.number);
        (0..len).map(move |at| (at * 7 + number) as u8)
    }

    /// Returns the next segment as an Ethernet frame.
    pub fn frame(&mut self, len: usize, flags: u8) -> Vec<u8> {
        let kind = if self.is_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        ethernet(kind, &self.packet(len, flags))
    }

    /// Returns the next segment in a frame of VXLAN, whose packets outside are those of `outer`, with or without a
    /// checksum.
    pub fn vxlan(&mut self, outer: &mut Flow, len: usize, sums_outside: bool) -> Vec<u8> {
        let inside = self.frame(len, 0);
        let mut datagram = [50_000, 4789, (16 + inside.len()) as u16, 0].map(u16::to_be_bytes).concat();
        datagram.extend([8, 0, 0, 0, 0, 0, 7, 0]);
        datagram.extend(inside);
        ethernet(ethertype::IPV4, &outer.ip(protocol::UDP, sums_outside.then_some(udp::CHECKSUM), datagram))
    }

    /// Returns an echo request in an Ethernet frame.
    pub fn ping(&mut self) -> Vec<u8> {
        let packet = self.ip(protocol::ICMP, None, [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; 56]].concat());
        ethernet(ethertype::IPV4, &packet)
    }

    /// Puts a payload into an IP packet and completes its transport checksum, if it has one.
    fn ip(&mut self, number: u8, checksum: Option<usize>, mut payload: Vec<u8>) -> Vec<u8> {
        let len = payload.len();
        let (mut header, pseudo) = if self.is_v6 {
            let (from, to) = ([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], {
                [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
            });
            let [a, b] = (len as u16).to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, a, b, number, 64];
            header.extend([from, to].concat());
            (header, pseudo_v6(from, to, number, len))
        } else {
            let (from, to) = ([198, 18, 0, 1], [198, 18, 0, 2]);
            let ([a, b], [c, d]) = (((len + 20) as u16).to_be_bytes(), self.id.to_be_bytes());
            let mut header = vec![0x45, 0, a, b, c, d, 0x40, 0, 64, number, 0, 0];
            header.extend([from, to].concat());
            let field = Field::complete(Sum::of(&header)).value();
            header[10..12].copy_from_slice(&field.to_be_bytes());
            self.id = self.id.wrapping_add(1);
            (header, pseudo_v4(from, to, number, len))
        };
        if let Some(at) = checksum {
            let mut sum = pseudo;
            sum.append(Sum::of(&payload), len);
            payload[at..at + 2].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
        }
        header.extend(payload);
        header
    }
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &kind.to_be_bytes(), packet].concat()
}
