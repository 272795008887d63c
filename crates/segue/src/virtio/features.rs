//! The offloads that a TUN device or a guest accepts, as [`Limits`].

use crate::gso::Limits;

/// Bits of `TUNSETOFFLOAD` (`linux/if_tun.h`): the offloads that the reader of a TUN or TAP device accepts.
pub mod tun {
    /// Offload of packets with a partial checksum; needed for every other bit.
    pub const CSUM: u32 = 0x01;
    /// Offload of TCP trains over IPv4.
    pub const TSO4: u32 = 0x02;
    /// Offload of TCP trains over IPv6.
    pub const TSO6: u32 = 0x04;
    /// Offload of TCP trains with CWR on the first segment.
    pub const TSO_ECN: u32 = 0x08;
    /// Offload of UDP trains over IPv4 (Linux 6.2); only together with [`USO6`].
    pub const USO4: u32 = 0x20;
    /// Offload of UDP trains over IPv6 (Linux 6.2); only together with [`USO4`].
    pub const USO6: u32 = 0x40;
    /// Offload of TCP and UDP trains in a UDP tunnel (Linux 6.17); only with a header of 24 bytes.
    pub const UDP_TUNNEL_GSO: u32 = 0x80;
    /// Offload of trains in a UDP tunnel with an outer checksum (Linux 6.17); only with [`UDP_TUNNEL_GSO`].
    pub const UDP_TUNNEL_GSO_CSUM: u32 = 0x100;
}

/// The sets of [`tun`] bits to ask a TUN or TAP device for, the widest first. A kernel refuses a set with a bit that it
/// does not know (`EINVAL`): take the first set that it accepts, and [`Limits::tun`] of it.
pub const TUN_OFFLOADS: [u32; 4] = [
    tun::CSUM | tun::TSO4 | tun::TSO6 | tun::TSO_ECN | tun::USO4 | tun::USO6,
    tun::CSUM | tun::TSO4 | tun::TSO6 | tun::TSO_ECN,
    tun::CSUM | tun::TSO4 | tun::TSO6,
    tun::CSUM,
];

/// The [`tun`] bits to add to the first of [`TUN_OFFLOADS`] for a TAP device whose header has the form
/// [`Form::Tunnel`](super::Form::Tunnel); kernels before Linux 6.17 refuse them. A TUN device takes no such trains.
pub const TAP_TUNNEL_OFFLOADS: u32 = tun::UDP_TUNNEL_GSO | tun::UDP_TUNNEL_GSO_CSUM;

/// Feature bits of a virtio network device (virtio 1.2, section 5.1.3), by number: the offloads that the guest's driver
/// accepts.
pub mod device {
    /// Feature bit: the driver accepts packets with a partial checksum.
    pub const GUEST_CSUM: u32 = 1;
    /// Feature bit: the driver accepts TCP trains over IPv4.
    pub const GUEST_TSO4: u32 = 7;
    /// Feature bit: the driver accepts TCP trains over IPv6.
    pub const GUEST_TSO6: u32 = 8;
    /// Feature bit: the driver accepts TCP trains with CWR.
    pub const GUEST_ECN: u32 = 9;
    /// Feature bit: the driver accepts UDP trains over IPv4.
    pub const GUEST_USO4: u32 = 54;
    /// Feature bit: the driver accepts UDP trains over IPv6.
    pub const GUEST_USO6: u32 = 55;
}

/// Largest number of datagrams of a UDP train: every kernel with UDP trains accepts as many.
const MAX_UDP_SEGS: usize = 64;

/// Largest number of ranges of one write: `UIO_MAXIOV` of Linux without one for the virtio-net header.
const MAX_PIECES: usize = 1023;

/// Largest number of segments of a TCP train, from the smallest segment that Linux itself makes; trains of more are
/// segmented here.
const MAX_TCP_SEGS: usize = 65_535 / 8;

impl Limits {
    /// Returns the limits of writing to a TUN or TAP device of Linux with a virtio-net header, for which the kernel has
    /// accepted the given [`tun`] bits.
    ///
    /// Strictly speaking, the bits state what the device delivers to its reader; what it accepts differs only for UDP
    /// trains, which kernels without those bits refuse. A kernel checks neither the MTU nor the sender, so neither do
    /// these limits.
    ///
    /// ```
    /// use segue::gso::Limits;
    /// use segue::virtio::{TUN_OFFLOADS, tun};
    ///
    /// let limits = Limits::tun(TUN_OFFLOADS[0]);
    /// assert!(limits.csum && limits.tso4 && limits.tso6 && limits.uso);
    /// assert_eq!(Limits::tun(0).csum, false);
    /// assert!(!Limits::tun(tun::CSUM | tun::TSO4).uso);
    /// ```
    pub const fn tun(bits: u32) -> Limits {
        Limits {
            csum: bits & tun::CSUM != 0,
            tso4: bits & tun::TSO4 != 0,
            tso6: bits & tun::TSO6 != 0,
            uso: bits & tun::USO4 != 0,
            udp_tunnel: bits & tun::UDP_TUNNEL_GSO != 0,
            udp_tunnel_csum: bits & tun::UDP_TUNNEL_GSO_CSUM != 0,
            max_segs: MAX_TCP_SEGS,
            max_udp_segs: MAX_UDP_SEGS,
            max_pieces: MAX_PIECES,
            ..Limits::NONE
        }
    }

    /// Returns the limits of passing packets to the guest of a virtio device whose driver has accepted the given
    /// feature bits. The largest train of `max_bytes`, headers included, is what the driver's receive buffers hold:
    /// 65,562 at most (virtio 1.2, section 5.1.6.3.1).
    ///
    /// ```
    /// use segue::gso::Limits;
    /// use segue::virtio::device::{GUEST_CSUM, GUEST_TSO4};
    ///
    /// let limits = Limits::guest(1 << GUEST_CSUM | 1 << GUEST_TSO4, 65_550);
    /// assert!(limits.csum && limits.tso4 && !limits.tso6 && !limits.uso);
    /// // A train is nothing without owed checksums, and none may have CWR without `VIRTIO_NET_F_GUEST_ECN`.
    /// assert!(!Limits::guest(1 << GUEST_TSO4, 65_550).tso4 && !limits.ecn);
    /// ```
    pub const fn guest(features: u64, max_bytes: usize) -> Limits {
        let csum = features >> device::GUEST_CSUM & 1 != 0;
        Limits {
            csum,
            tso4: csum && features >> device::GUEST_TSO4 & 1 != 0,
            tso6: csum && features >> device::GUEST_TSO6 & 1 != 0,
            ecn: features >> device::GUEST_ECN & 1 != 0,
            uso: csum && features >> device::GUEST_USO4 & 1 != 0 && features >> device::GUEST_USO6 & 1 != 0,
            max_bytes,
            max_segs: MAX_TCP_SEGS,
            max_udp_segs: MAX_UDP_SEGS,
            ..Limits::NONE
        }
    }

    /// Returns the limits of an interface without virtio-net headers that accepts IP packets of up to 65,535 bytes:
    /// WinTUN, utun, a TUN device opened plainly. A TCP train is one packet then, whose owed checksum is to be
    /// completed, as [`Joiner::plain`](crate::easy::Joiner::plain) does; UDP trains are cut, since their borders carry
    /// meaning.
    ///
    /// The receiving host must be the one that terminates the connections: it cannot forward such a packet over a link
    /// with a smaller MTU.
    pub const fn plain() -> Limits {
        Limits { csum: true, tso4: true, tso6: true, ..Limits::NONE }
    }
}
