//! Wire formats: the offsets of the fields in each header, and one parser that finds every header of a packet.
//!
//! Each file has one format: named ranges, checked reading, emitting. Nothing here keeps state or changes a packet
//! beyond the bytes it is asked to write. To add a tunnel format over UDP: one file here, one row in
//! [`format`](mod@format).

pub mod address;
pub mod arp;
mod common;
pub mod ethernet;
pub mod format;
pub mod geneve;
pub mod gre;
pub mod gue;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod layout;
pub mod ndisc;
pub mod parse;
pub mod sctp;
pub mod tcp;
#[cfg(test)]
pub(crate) mod toy;
mod tunnels;
pub mod udp;
pub mod virtio;
pub mod vxlan;

pub(crate) use common::usual_layout;
pub use format::{FORMATS, Format, Kind, Next, Remcsum, Shim, Unread};
pub use layout::{Header, Layout, Stop};
pub(crate) use parse::ip_end;
pub use parse::{parse, parse_front};
pub use tunnels::Tunnels;

/// IP protocol numbers (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// Protocol number of IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// Protocol number of ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// Protocol number of IPv4 inside a tunnel (RFC 2003).
    pub const IPV4: u8 = 4;
    /// Protocol number of TCP.
    pub const TCP: u8 = 6;
    /// Protocol number of UDP.
    pub const UDP: u8 = 17;
    /// Protocol number of IPv6 inside a tunnel.
    pub const IPV6: u8 = 41;
    /// Protocol number of the IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// Protocol number of the IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Protocol number of GRE.
    pub const GRE: u8 = 47;
    /// Protocol number of ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// Protocol number 59: no next header (IPv6).
    pub const NONE: u8 = 59;
    /// Protocol number of IPv6 destination options.
    pub const DESTINATION: u8 = 60;
    /// Protocol number of SCTP.
    pub const SCTP: u8 = 132;
    /// Protocol number of an Ethernet frame.
    pub const ETHERNET: u8 = 143;
}

/// Numbers of EtherTypes.
pub mod ethertype {
    /// EtherType of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// EtherType of ARP.
    pub const ARP: u16 = 0x0806;
    /// EtherType of an 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// EtherType of an 802.1ad (QinQ) outer tag.
    pub const QINQ: u16 = 0x88a8;
    /// EtherType of IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Transparent Ethernet bridging: an Ethernet frame follows.
    pub const TEB: u16 = 0x6558;
}

/// Reads the big-endian 16-bit value at `at`; `None` past the end.
#[inline]
pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads the big-endian 32-bit value at `at`; `None` past the end.
#[inline]
pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes a big-endian 16-bit value at `at`. Past the end it writes nothing and returns `false`.
#[inline]
pub fn write_u16(bytes: &mut [u8], at: usize, value: u16) -> bool {
    match bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        Some(place) => {
            *place = value.to_be_bytes();
            true
        }
        None => false,
    }
}

/// Writes a big-endian 32-bit value at `at`. Past the end it writes nothing and returns `false`.
#[inline]
pub fn write_u32(bytes: &mut [u8], at: usize, value: u32) -> bool {
    match bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        Some(place) => {
            *place = value.to_be_bytes();
            true
        }
        None => false,
    }
}
