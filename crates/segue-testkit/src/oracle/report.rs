//! The oracle's input about a frame, and its report.

use std::ops::Range;

/// The first header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The frame begins with an Ethernet header. Padding after the IP packet is allowed, as it is in frames inside of
    /// tunnels.
    Ethernet,
    /// The packet begins with an IP header.
    Ip,
}

/// UDP destination ports that carry tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// UDP ports of GUE.
    pub gue: Vec<u16>,
    /// UDP ports of FOU, each with the IP protocol that it carries.
    pub fou: Vec<(u16, u8)>,
    /// UDP ports of VXLAN.
    pub vxlan: Vec<u16>,
    /// UDP ports of Geneve.
    pub geneve: Vec<u16>,
}

/// Checksums that the port still has to complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Whether the port still completes the innermost transport checksum, which must be primed.
    pub inner: bool,
    /// Whether the port still completes the outermost UDP checksum, which must be primed.
    pub outer: bool,
}

/// An IP header with the tunnel headers after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// IP version, 4 or 6.
    pub version: u8,
    /// DSCP and ECN byte of the header.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Identification of the IPv4 header.
    pub id: Option<u16>,
    /// Don't-fragment flag of the IPv4 header.
    pub df: bool,
    /// Source IP address.
    pub src: Vec<u8>,
    /// Destination IP address.
    pub dst: Vec<u8>,
    /// Length of the packet from this header on, bytes.
    pub len: usize,
    /// Ports of a UDP header that carries a tunnel.
    pub udp: Option<(u16, u16)>,
    /// Whether the UDP header of the tunnel has a checksum, which is then right.
    pub has_udp_checksum: bool,
    /// GUE version, for levels with GUE.
    pub gue: Option<u8>,
    /// Network identifier, for levels with VXLAN or Geneve.
    pub vni: Option<u32>,
    /// Start and offset of a remote checksum option.
    pub remcsum: Option<(u16, u16)>,
    /// Key and sequence number of a GRE header.
    pub gre: Option<(Option<u32>, Option<u32>)>,
    /// Whether GRE has a checksum (which is then right).
    pub has_gre_checksum: bool,
}

/// The state of the innermost transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Csum {
    /// The checksum is correct.
    Good,
    /// The field is zero: UDP without a checksum (RFC 768).
    Absent,
    /// The checksum field is primed, and a remote checksum option makes the receiver complete it correctly.
    Remote,
    /// The checksum field is primed, and the port completes it.
    Owed,
}

/// The innermost transport header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// IP protocol: 1, 6, 17 or 58.
    pub protocol: u8,
    /// Offset of the transport header.
    pub at: usize,
    /// Source and destination port; zero for ICMP.
    pub ports: (u16, u16),
    /// TCP sequence number.
    pub seq: u32,
    /// TCP flags of the segment.
    pub flags: u8,
    /// Verdict on the checksum.
    pub csum: Csum,
}

/// The headers of a frame as parsed by the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// IP headers with their tunnel headers, outermost first.
    pub levels: Vec<Level>,
    /// The transport header; `None` for other protocols and for fragments.
    pub transport: Option<Transport>,
    /// Range of the bytes after the innermost header that was parsed.
    pub payload: Range<usize>,
    /// Length of the Ethernet padding, bytes.
    pub padding: usize,
}
