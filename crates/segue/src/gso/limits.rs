//! Limits of a port: the packets and trains that it accepts.

use crate::packet::GsoKind;

/// Largest number of segments into which one train is split.
pub const MAX_SEGS: usize = 65_535;

/// Smallest TCP segment size accepted for a train from outside, in bytes of payload.
///
/// A smaller size with a checksum still owed is raised to this, as maintained Linux kernels do for virtio headers, so
/// that 64 KiB cannot become 65,536 packets (CVE-2019-11477 and similar). Trains that were merged from verified
/// segments keep their size, however small: that many packets really came in.
pub const MIN_TCP_SIZE: u16 = 8;

/// Largest length in bytes from the start of an IPv4 header, or from the end of an IPv6 header, to the end of a packet.
pub(super) const MAX_IP_LEN: usize = 65_535;

/// The packets and trains that a port can take. Start from [`Limits::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether the port completes a primed transport checksum, at any offset. Without this it takes no trains either.
    pub csum: bool,
    /// Whether the port computes the outermost UDP checksum of a tunnel packet. The field is then left holding the
    /// pseudo-header sum.
    pub outer_csum: bool,
    /// Whether the port takes TCP trains over IPv4.
    pub tso4: bool,
    /// Whether the port takes TCP trains over IPv6.
    pub tso6: bool,
    /// Whether its TCP trains may have CWR, which is then on their first segment only; true in [`Limits::NONE`].
    /// Without this such a train is cut.
    pub ecn: bool,
    /// Whether the port takes UDP trains (`UDP_L4`), over IPv4 and IPv6.
    pub uso: bool,
    /// Whether the port takes trains of these kinds inside one UDP tunnel too (VXLAN, Geneve, GUE, FOU; without GRE and
    /// without a remote checksum option), if the outer UDP header has no checksum.
    pub udp_tunnel: bool,
    /// Whether it also takes those whose outer UDP header has a checksum, which it then computes for each segment.
    pub udp_tunnel_csum: bool,
    /// Largest train, in bytes of the frame. Up to 65,791 (65,535 and room for headers in front of IP) no train exceeds
    /// what an IP length field can express. A port with a larger value takes TCP trains outside tunnels above that,
    /// whose length field is then zero (BIG TCP in Linux).
    pub max_bytes: usize,
    /// Largest number of segments of a TCP train.
    pub max_segs: usize,
    /// Largest number of segments of a UDP train.
    pub max_udp_segs: usize,
    /// Largest number of pieces of a train: one for its head, one for each payload range. Single packets are not cut
    /// for this.
    pub max_pieces: usize,
    /// Largest piece of payload, in bytes, at least 1: a larger range counts as several pieces of a train.
    pub max_piece: usize,
    /// Largest header length of a train, in bytes; a train with more is segmented.
    pub max_head: usize,
    /// Longest packet in bytes, from the outermost IP header on; for other protocols, from the end of the link headers
    /// on. For trains, the length of their segments counts.
    pub mtu: usize,
    /// The VLAN tags that do not count towards the MTU.
    pub free_tags: FreeTags,
    /// Treatment of a single packet that is longer. Trains with longer segments are refused.
    pub fragment: Fragment,
    /// Headroom of each frame in the linear form, in bytes, for a header of the port.
    pub header_room: usize,
}

impl Limits {
    /// The limits of a port without offloads: single packets with every checksum complete.
    pub const NONE: Limits = Limits {
        csum: false,
        outer_csum: false,
        tso4: false,
        tso6: false,
        ecn: true,
        uso: false,
        udp_tunnel: false,
        udp_tunnel_csum: false,
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

    /// Excludes trains of this kind, for a port that has refused one.
    pub const fn refuse(&mut self, kind: GsoKind) {
        match kind {
            GsoKind::Tcp => (self.tso4, self.tso6) = (false, false),
            GsoKind::Udp => self.uso = false,
        }
    }

    /// Excludes trains inside a UDP tunnel, for a port that has refused one.
    pub const fn refuse_tunnels(&mut self) {
        (self.udp_tunnel, self.udp_tunnel_csum) = (false, false);
    }
}

/// Treatment of a single packet that is longer than the port's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fragment {
    /// The packet is refused ([`Refusal::TooBig`](super::Refusal::TooBig)).
    Never,
    /// The outermost packet is fragmented as a router does: IPv4 without DF, possibly a fragment already.
    Router,
    /// The innermost packet is fragmented as its sender, or the sender's network card, would do: IPv4 and IPv6.
    Sender {
        /// Whether packets with DF are fragmented too, with DF cleared; the identification, which need not be unique
        /// under DF (RFC 6864), is replaced.
        clears_df: bool,
    },
}

/// The VLAN tags, 4 bytes each, that do not count towards a port's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FreeTags {
    /// All tags are free.
    All,
    /// Only the first tag is free, if its type is 802.1Q (0x8100), as in Linux's packet sockets
    /// (`packet_extra_vlan_len_allowed`).
    First,
    /// No tag is free: each counts.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_train_that_was_refused_is_excluded_in_both_families_and_the_other_is_not() {
        let all = Limits { csum: true, tso4: true, tso6: true, uso: true, ..Limits::NONE };
        for (kind, left) in
            [(GsoKind::Tcp, Limits { tso4: false, tso6: false, ..all }), (GsoKind::Udp, Limits { uso: false, ..all })]
        {
            let mut limits = all;
            limits.refuse(kind);
            assert_eq!(limits, left, "{kind:?}");
        }
        let mut limits = Limits { udp_tunnel: true, udp_tunnel_csum: true, ..all };
        limits.refuse_tunnels();
        assert_eq!(limits, all, "trains outside of tunnels are not excluded");
    }
}
