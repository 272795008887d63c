//! The checksum field of a header.

use core::fmt;

use super::Sum;

/// A checksum field as it stands in a header, as the value of the big-endian word.
///
/// It holds the complement of a sum ([`complete`](Field::complete)) or, while somebody else still owes the rest of the
/// sum, the uncomplemented pseudo-header sum ([`primed`](Field::primed)). Two bytes cannot tell which; the state of the
/// packet must.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field(u16);

impl Field {
    /// The field that was read from a header.
    pub const fn from_wire(value: u16) -> Field {
        Field(value)
    }

    /// The value to write into a header, in big-endian order.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// The complement of `sum`, which covers everything the protocol wants covered, with the field itself as zero:
    /// TCP (RFC 9293 section 3.1), the IPv4 header (RFC 791 section 3.1), ICMP (RFC 792), ICMPv6 (RFC 4443 section 2.3),
    /// GRE (RFC 2784 section 2.5).
    #[inline]
    pub fn complete(sum: Sum) -> Field {
        Field(!sum.fold())
    }

    /// As [`complete`](Field::complete), for UDP: a computed zero is sent as all ones, the other form of the same number,
    /// because a zero field says that there is no checksum (RFC 768).
    #[inline]
    pub fn complete_udp(sum: Sum) -> Field {
        Field::complete(sum).nonzero()
    }

    /// The uncomplemented `sum` of the pseudo header, to which whoever completes the packet adds the segment: what a
    /// virtio header with `VIRTIO_NET_HDR_F_NEEDS_CSUM` announces (virtio 1.2 section 5.1.6.2) and what remote checksum
    /// offload puts in the inner header.
    #[inline]
    pub fn primed(sum: Sum) -> Field {
        Field(sum.fold())
    }

    /// Follows a change of one 16-bit word, at an even offset, from `old` to `new` (RFC 1624 section 3, equation 3), for a
    /// completed field.
    ///
    /// A wrong field stays wrong. The result may be zero; for UDP pass it through [`nonzero`](Field::nonzero), and leave
    /// a field that was zero, hence absent, alone.
    #[inline]
    pub fn update(self, old: u16, new: u16) -> Field {
        let sum = u32::from(!self.0) + u32::from(!old) + u32::from(new); // at most 18 bits
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        Field(!(sum as u16))
    }

    /// As [`update`](Field::update), for a change of two adjacent words such as an IPv4 address.
    #[inline]
    pub fn update_u32(self, old: u32, new: u32) -> Field {
        self.update((old >> 16) as u16, (new >> 16) as u16).update(old as u16, new as u16)
    }

    /// All ones for zero, itself otherwise: the rule of RFC 768 for a field that was computed.
    #[inline]
    pub const fn nonzero(self) -> Field {
        if self.0 == 0 { Field(0xffff) } else { self }
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Field({:#06x})", self.0)
    }
}
