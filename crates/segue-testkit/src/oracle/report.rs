//! What the oracle is told about a frame, and what it reports.

use std::ops::Range;

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
    /// Ports of GUE.
    pub gue: Vec<u16>,
    /// Ports of FOU, each with the IP protocol that it carries.
    pub fou: Vec<(u16, u8)>,
    /// Ports of VXLAN.
    pub vxlan: Vec<u16>,
    /// Ports of Geneve.
    pub geneve: Vec<u16>,
}

/// Checksums that the port still has to complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Whether the innermost transport checksum is owed; it must be primed.
    pub inner: bool,
    /// Whether the outermost UDP checksum is owed; it must be primed.
    pub outer: bool,
}

/// One IP header and the tunnel headers behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// IP version, 4 or 6.
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
    /// The checksum is right.
    Good,
    /// The field is zero: UDP without a checksum (RFC 768).
    Absent,
    /// The field is primed, and a remote checksum option has the far end complete it to a right one.
    Remote,
    /// The field is primed, and the port completes it.
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

/// The headers of a frame as the oracle has read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// IP levels, outermost first.
    pub levels: Vec<Level>,
    /// The transport; `None` for other protocols and for fragments.
    pub transport: Option<Transport>,
    /// Range of the bytes behind the innermost header that was understood.
    pub payload: Range<usize>,
    /// Bytes of Ethernet padding.
    pub padding: usize,
}
