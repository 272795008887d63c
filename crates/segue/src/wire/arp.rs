//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;
use core::ops::Range;

use super::{address, ethernet, ethertype, read_u16, write_u16};

/// Length of an ARP packet, bytes.
pub const LEN: usize = 28;

/// Type of the link addresses.
pub const HARDWARE_TYPE: usize = 0;
/// Type of the network addresses, an EtherType.
pub const PROTOCOL_TYPE: usize = 2;
/// Offset of the length of a link address; the length of a network address follows in the next byte.
pub const ADDRESS_LENS: usize = 4;
/// Offset of the operation: request or reply.
pub const OPERATION: usize = 6;
/// Link address of the sender.
pub const SENDER_MAC: Range<usize> = 8..14;
/// IPv4 address of the sender.
pub const SENDER_IP: Range<usize> = 14..18;
/// Link address of the target; it means nothing in a request.
pub const TARGET_MAC: Range<usize> = 18..24;
/// IPv4 address of the target.
pub const TARGET_IP: Range<usize> = 24..28;

/// Hardware type of Ethernet (IANA "ARP Parameters").
const ETHERNET: u16 = 1;
/// Lengths of an Ethernet and of an IPv4 address.
const LENS: u16 = 0x0604;

/// The operations that resolve addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum Operation {
    /// Requests the link address of the target.
    Request = 1,
    /// Answers a request, or announces a link address.
    Reply = 2,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether the message is a request or a reply.
    pub operation: Operation,
    /// Link address of the sender.
    pub sender_mac: [u8; 6],
    /// IPv4 address of the sender; 0.0.0.0 in a probe (RFC 5227, section 1.1).
    pub sender_ip: Ipv4Addr,
    /// Link address of the target; zero in a request.
    pub target_mac: [u8; 6],
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads a packet, which padding may follow; `None` for other address types or operations, and where
    /// `bytes` are fewer than [`LEN`].
    pub fn parse(bytes: &[u8]) -> Option<Arp> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        let word = |at| read_u16(bytes, at);
        let is_ipv4_over_ethernet = word(HARDWARE_TYPE) == Some(ETHERNET)
            && word(PROTOCOL_TYPE) == Some(ethertype::IPV4)
            && word(ADDRESS_LENS) == Some(LENS);
        if !is_ipv4_over_ethernet {
            return None;
        }
        let operation = match word(OPERATION)? {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return None,
        };
        Some(Arp {
            operation,
            sender_mac: *bytes[SENDER_MAC].first_chunk()?,
            sender_ip: address::v4(&bytes[SENDER_IP])?,
            target_mac: *bytes[TARGET_MAC].first_chunk()?,
            target_ip: address::v4(&bytes[TARGET_IP])?,
        })
    }

    /// Writes the packet into the first [`LEN`] bytes; `None` where `bytes` is shorter.
    pub fn emit(&self, bytes: &mut [u8]) -> Option<()> {
        let bytes = bytes.get_mut(..LEN)?;
        write_u16(bytes, HARDWARE_TYPE, ETHERNET);
        write_u16(bytes, PROTOCOL_TYPE, ethertype::IPV4);
        write_u16(bytes, ADDRESS_LENS, LENS);
        write_u16(bytes, OPERATION, self.operation as u16);
        bytes[SENDER_MAC].copy_from_slice(&self.sender_mac);
        bytes[SENDER_IP].copy_from_slice(&self.sender_ip.octets());
        bytes[TARGET_MAC].copy_from_slice(&self.target_mac);
        bytes[TARGET_IP].copy_from_slice(&self.target_ip.octets());
        Some(())
    }

    /// Returns the Ethernet frame from the sender to `destination` that carries the packet.
    pub fn frame(&self, destination: [u8; 6]) -> [u8; ethernet::LEN + LEN] {
        let mut frame = [0; ethernet::LEN + LEN];
        let (header, body) = frame.split_at_mut(ethernet::LEN);
        header.copy_from_slice(&ethernet::header(destination, self.sender_mac, ethertype::ARP));
        self.emit(body);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Arp = Arp {
        operation: Operation::Request,
        sender_mac: [2, 0, 0, 0, 0, 1],
        sender_ip: Ipv4Addr::new(198, 18, 2, 1),
        target_mac: [0; 6],
        target_ip: Ipv4Addr::new(198, 18, 2, 7),
    };

    #[test]
    fn a_packet_reads_back_as_written() {
        for arp in [REQUEST, Arp { operation: Operation::Reply, target_mac: [2, 0, 0, 0, 0, 2], ..REQUEST }] {
            let mut bytes = [0xee; LEN + 18];
            arp.emit(&mut bytes).unwrap();
            assert_eq!(Arp::parse(&bytes), Some(arp));
            assert!((0..LEN).all(|len| Arp::parse(&bytes[..len]).is_none() && arp.emit(&mut bytes[..len]).is_none()));
            assert_eq!(bytes[LEN..], [0xee; 18]);
        }
    }

    #[test]
    fn the_layout_is_that_of_rfc_826() {
        let frame = REQUEST.frame([0xff; 6]);
        let expected = [
            &[0xff; 6][..],
            &[2, 0, 0, 0, 0, 1, 8, 6],
            &[0, 1, 8, 0, 6, 4, 0, 1],
            &[2, 0, 0, 0, 0, 1, 198, 18, 2, 1],
            &[0, 0, 0, 0, 0, 0, 198, 18, 2, 7],
        ];
        assert_eq!(frame[..], expected.concat());
    }

    #[test]
    fn other_types_lengths_and_operations_are_refused() {
        let mut good = [0; LEN];
        REQUEST.emit(&mut good).unwrap();
        for at in 0..SENDER_MAC.start {
            for value in (0..=u8::MAX).filter(|value| *value != good[at] && (at, *value) != (OPERATION + 1, 2)) {
                let mut other = good;
                other[at] = value;
                assert_eq!(Arp::parse(&other), None, "byte {at} is {value}");
            }
        }
    }
}
