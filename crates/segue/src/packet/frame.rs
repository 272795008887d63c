//! A packet as received by a port, before parsing.

use alloc::boxed::Box;

use super::{Csum, Frag, Kind, Layout, Packet, Pool, Start, Tunnels, Unit};
use crate::arch;
use crate::wire::{self, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

/// Length in bytes of the longest Ethernet header of which [`Frame::plain_ip`] finds the end.
const MAX_ETHERNET_LEN: usize = ethernet::LEN + ethernet::MAX_TAGS * ethernet::VLAN_LEN;

/// A packet as a port received it, not parsed yet.
#[derive(Clone, Debug)]
pub struct Frame<B> {
    /// All bytes of the frame, padding included.
    pub bytes: Frag<B>,
    /// The first header of the frame.
    pub start: Start,
    /// State of the transport checksum as the port knows it. With [`Csum::Unknown`] the headers say whether there is
    /// one, or whether it is owed. [`Csum::Verified`] and [`Csum::Partial`] stand for the checksum of the outermost
    /// UDP header where that carries a tunnel: of what is inside nothing is known.
    pub csum: Csum,
}

impl<B: AsRef<[u8]>> Frame<B> {
    /// Returns the length in bytes, padding included.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Prefetches the bytes of the frame that GRO reads: its headers, and also its payload if the checksum state is
    /// unknown. For a caller that pushes the frame one or two frames later; bytes that lie in no cache are otherwise
    /// waited for frame by frame.
    #[inline]
    pub fn prefetch(&self) {
        // More lines than those of a frame of Ethernet size are asked for by the processor itself.
        let most = if self.csum == Csum::Unknown { 24 } else { 2 };
        arch::prefetch(self.bytes.bytes(), most);
    }

    /// Parses the frame into a packet of `pool`. `tunnels` are the UDP ports that carry tunnels.
    pub fn parse(self, tunnels: &Tunnels, pool: &mut Pool<B>) -> Box<Packet<B>> {
        // Loading overwrites all that an empty packet would have.
        let mut packet = pool.take_used();
        // An owed checksum is that of the only transport header: behind a tunnel the parser would take it for another.
        let none = Tunnels::NONE;
        let tunnels = if self.csum == Csum::Partial { &none } else { tunnels };
        packet.load(self.bytes, self.start, tunnels);
        let is_known = match self.csum {
            Csum::Unknown => false,
            Csum::Verified => !is_in_udp(&packet.layout),
            _ => true,
        };
        if is_known {
            packet.offload.unit = Unit::Whole(self.csum);
        }
        packet
    }

    /// Returns the start of the IP header, in bytes from the start of the frame, if the frame is unfragmented TCP, or
    /// UDP with a checksum, over one IP header without options or extension headers, after at most two VLAN tags, and
    /// its length fields are exact. Such a frame has one transport checksum, which is the outermost and the innermost.
    /// `None` stands for any other frame, of which only the parser knows the layout.
    ///
    /// UDP is taken for a transport whatever its port: a tunnel over UDP is not looked for.
    #[inline]
    pub fn plain_ip(&self) -> Option<usize> {
        let bytes = self.bytes.bytes();
        let l3 = match self.start {
            Start::Ip => 0,
            Start::Ethernet => {
                let mut kind = read_u16(bytes, ethernet::TYPE)?;
                let mut l3 = ethernet::LEN;
                while matches!(kind, ethertype::VLAN | ethertype::QINQ) && l3 < MAX_ETHERNET_LEN {
                    l3 += ethernet::VLAN_LEN;
                    kind = read_u16(bytes, l3 - (ethernet::LEN - ethernet::TYPE))?;
                }
                if !matches!((kind, bytes.get(l3)? >> 4), (ethertype::IPV4, 4) | (ethertype::IPV6, 6)) {
                    return None;
                }
                l3
            }
        };
        let ip = &bytes[l3..];
        let (number, transport) = match ip.first()? {
            0x45 if ip.len() >= ipv4::MIN_LEN => {
                let is_whole = read_u16(ip, ipv4::FRAGMENT)? & !ipv4::DF == 0;
                let is_exact = usize::from(read_u16(ip, ipv4::TOTAL_LEN)?) == ip.len();
                (is_whole && is_exact).then_some((ip[ipv4::PROTOCOL], &ip[ipv4::MIN_LEN..]))?
            }
            0x60..=0x6f if ip.len() >= ipv6::LEN => {
                let is_exact = usize::from(read_u16(ip, ipv6::PAYLOAD_LEN)?) + ipv6::LEN == ip.len();
                is_exact.then_some((ip[ipv6::NEXT_HEADER], &ip[ipv6::LEN..]))?
            }
            _ => return None,
        };
        let is_complete = match number {
            protocol::TCP => {
                let len = tcp::header_len(*transport.get(tcp::OFFSET)?);
                (tcp::MIN_LEN..=transport.len()).contains(&len)
            }
            protocol::UDP => {
                let is_exact = usize::from(read_u16(transport, udp::LENGTH)?) == transport.len();
                is_exact && read_u16(transport, udp::CHECKSUM)? != 0
            }
            _ => false,
        };
        is_complete.then_some(l3)
    }

    /// Returns the headers of a frame of unfragmented TCP or UDP over one IP header without options or extension
    /// headers, after at most two VLAN tags, whose length fields are exact. `None` stands for any other frame. Unlike
    /// with [`Frame::plain_ip`], UDP may be without a checksum.
    #[inline]
    pub fn exact_layout(&self) -> Option<&'static Layout> {
        let bytes = self.bytes.bytes();
        let (layout, end) = wire::usual_layout(bytes, self.start)?;
        (end == bytes.len()).then_some(layout)
    }

    /// Returns whether the frame would be one that [`Frame::plain_ip`] recognises without the padding after its IP
    /// packet, which it has.
    #[inline(never)]
    pub(crate) fn is_plain_but_padded(&self) -> bool {
        let bytes = self.bytes.bytes();
        let Some((layout, end)) = wire::usual_layout(bytes, self.start) else { return false };
        let has_checksum = layout.transport().is_some_and(|header| {
            header.kind == Kind::Tcp || read_u16(bytes, header.start() + udp::CHECKSUM).is_some_and(|field| field != 0)
        });
        end < bytes.len() && has_checksum
    }
}

/// Returns whether the innermost header is inside a tunnel over UDP, whose own checksum is the one that ports verify.
fn is_in_udp(layout: &Layout) -> bool {
    let headers = layout.headers();
    headers.iter().any(|header| header.kind == Kind::Udp && layout.transport() != Some(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::write_u16;

    const VXLAN: u16 = 4789;

    /// Returns TCP without payload in VXLAN.
    fn tunnelled() -> Vec<u8> {
        let mut bytes = vec![0; 20 + 8 + 8 + 14 + 20 + 20];
        for (at, number, len) in [(0, protocol::UDP, 90), (50, protocol::TCP, 40)] {
            (bytes[at], bytes[at + ipv4::PROTOCOL]) = (0x45, number);
            write_u16(&mut bytes, at + ipv4::TOTAL_LEN, len);
        }
        write_u16(&mut bytes, 20 + udp::DST_PORT, VXLAN);
        write_u16(&mut bytes, 20 + udp::LENGTH, 70);
        bytes[28] = 8;
        write_u16(&mut bytes, 36 + ethernet::TYPE, ethertype::IPV4);
        bytes[70 + tcp::OFFSET] = 0x50;
        bytes
    }

    fn parsed(bytes: &[u8], csum: Csum, tunnels: &Tunnels) -> Box<Packet<Vec<u8>>> {
        Frame { bytes: Frag::all(bytes.to_vec()), start: Start::Ip, csum }.parse(tunnels, &mut Pool::new(1))
    }

    /// Tests that a datagram which owes its own checksum is not parsed as a tunnel, whose innermost checksum would then
    /// be the one that is owed.
    #[test]
    fn what_owes_a_checksum_owes_that_of_its_outermost_transport() {
        let tunnels = Tunnels::NONE.with(VXLAN, Kind::Vxlan);
        for (csum, kind) in [(Csum::Unknown, Kind::Tcp), (Csum::Partial, Kind::Udp)] {
            let packet = parsed(&tunnelled(), csum, &tunnels);
            assert_eq!(packet.layout.transport().map(|header| header.kind), Some(kind), "{csum:?}");
        }
    }

    /// Tests that what a port has verified of a datagram with a tunnel says nothing about the packet inside, and is
    /// kept of every other one, that of a tunnel without UDP included.
    #[test]
    fn what_is_verified_is_the_outermost_checksum_of_udp() {
        let tunnels = Tunnels::NONE.with(VXLAN, Kind::Vxlan);
        let outermost = tunnelled();
        let mut ip_in_ip = [&outermost[50..70], &outermost[50..]].concat();
        ip_in_ip[ipv4::PROTOCOL] = protocol::IPV4;
        write_u16(&mut ip_in_ip, ipv4::TOTAL_LEN, 60);
        for (bytes, tunnels, csum) in [
            (&outermost[..], &tunnels, Csum::Unknown),
            (&outermost[..], &Tunnels::NONE, Csum::Verified),
            (&outermost[50..], &tunnels, Csum::Verified),
            (&ip_in_ip[..], &tunnels, Csum::Verified),
        ] {
            let packet = parsed(bytes, Csum::Verified, tunnels);
            assert_eq!(packet.offload.unit, Unit::Whole(csum), "{:?}", packet.layout);
        }
    }
}
