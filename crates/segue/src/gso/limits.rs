//! What a port can take.

/// Most segments that one train is cut into.
pub const MAX_SEGS: usize = 65_535;

/// Smallest TCP segment that a train from outside is cut into, in bytes of payload.
///
/// A smaller size with a checksum still owed is raised to this, as maintained Linux kernels do for virtio headers, so that
/// 64 KiB cannot turn into 65,536 packets (CVE-2019-11477 and its relatives). Trains that were merged from checked segments keep their
/// size, whatever it is: that many packets really came in.
pub const MIN_TCP_SIZE: u16 = 8;

/// Most bytes from an IPv4 header, or from the end of an IPv6 header, to the end of a packet.
pub(super) const MAX_IP_LEN: usize = 65_535;

/// What a port can take. [`Limits::NONE`] is the place to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// It completes a primed transport checksum, at any offset. Without this it takes no trains either.
    pub csum: bool,
    /// It computes the outermost UDP checksum of a tunnel packet. The field is then left holding the pseudo-header sum.
    pub outer_csum: bool,
    /// It takes TCP trains over IPv4.
    pub tso4: bool,
    /// It takes TCP trains over IPv6.
    pub tso6: bool,
    /// It takes UDP trains (`UDP_L4`), over both.
    pub uso: bool,
    /// Largest train, in bytes of the frame. Up to 65,791 (65,535 and room for headers in front of IP) no train exceeds what
    /// an IP length field can say. A port that states more takes TCP trains outside tunnels over that, whose length is then
    /// zero (what Linux calls BIG TCP).
    pub max_bytes: usize,
    /// Most segments of a TCP train.
    pub max_segs: usize,
    /// Most segments of a UDP train.
    pub max_udp_segs: usize,
    /// Most pieces of a train: one for its head, one for each payload range. Single packets are not cut for this.
    pub max_pieces: usize,
    /// Largest piece of payload, in bytes, at least 1: a range that is larger counts as several pieces of a train.
    pub max_piece: usize,
    /// Most bytes of headers of a train; what has more is cut.
    pub max_head: usize,
    /// Longest packet, from the outermost IP header on, in bytes; of another protocol, from the end of the link headers on.
    /// Trains are judged by their segments.
    pub mtu: usize,
    /// Which VLAN tags do not count towards that.
    pub free_tags: FreeTags,
    /// What happens to a single packet that is longer. Trains with longer segments are refused.
    pub fragment: Fragment,
    /// Bytes that the linear form leaves free in front of each frame, for a header of the port's own.
    pub header_room: usize,
}

impl Limits {
    /// A port that can do nothing: single packets with every checksum in place.
    pub const NONE: Limits = Limits {
        csum: false,
        outer_csum: false,
        tso4: false,
        tso6: false,
        uso: false,
        max_bytes: MAX_IP_LEN,
        max_segs: MAX_SEGS,
        max_udp_segs: MAX_SEGS,
        max_pieces: usize::MAX,
        max_piece: usize::MAX,
        max_head: usize::MAX,
        mtu: usize::MAX,
        free_tags: FreeTags::All,
        fragment: Fragment::Never,
        header_room: 0,
    };
}

/// What happens to a packet, alone, that is longer than the port's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// It is refused ([`Refusal::TooBig`](super::Refusal::TooBig)).
    Never,
    /// The outermost packet is cut as a router does: IPv4 without DF, which may be a fragment already.
    Router,
    /// The innermost packet is cut as its sender does, or the sender's network card: IPv4 and IPv6.
    Sender {
        /// Also where DF is set, which is then cleared; the identification, which need not be unique under DF (RFC 6864),
        /// is replaced.
        clears_df: bool,
    },
}

/// Which VLAN tags, 4 bytes each, do not count towards a port's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeTags {
    /// All of them.
    All,
    /// The first, where it is one of 802.1Q (type 0x8100): what Linux asks of a packet socket
    /// (`packet_extra_vlan_len_allowed`).
    First,
    /// None: each counts.
    None,
}
