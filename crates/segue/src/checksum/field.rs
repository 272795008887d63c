//! The checksum field of a header.

use core::fmt;

use super::Sum;

/// A checksum field as it is in a header: the value of the big-endian word.
///
/// It holds the complement of a sum ([`complete`](Field::complete)) or, while the rest of the sum is still owed, the
/// uncomplemented pseudo-header sum ([`primed`](Field::primed)). The two bytes do not say which; the state of the
/// packet must.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field(u16);

impl Field {
    /// Wraps a field that was read from a header.
    pub const fn from_wire(value: u16) -> Field {
        Field(value)
    }

    /// Returns the value to write into a header, in big-endian order.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Returns the complement of `sum`, which must cover everything that the protocol's checksum covers, with the field
    /// itself as zero: TCP (RFC 9293 section 3.1), the IPv4 header (RFC 791 section 3.1), ICMP (RFC 792), ICMPv6 (RFC
    /// 4443 section 2.3), GRE (RFC 2784 section 2.5).
    #[inline]
    pub fn complete(sum: Sum) -> Field {
        Field(!sum.fold())
    }

    /// Returns the complement of `sum` for UDP: a computed zero is sent as all ones, the other representation of zero,
    /// because a zero field means that no checksum is present (RFC 768).
    #[inline]
    pub fn complete_udp(sum: Sum) -> Field {
        Field::complete(sum).nonzero()
    }

    /// Returns the uncomplemented `sum` of the pseudo header, to which the segment is added on completion: the field's
    /// content with `VIRTIO_NET_HDR_F_NEEDS_CSUM` (virtio 1.2 section 5.1.6.2) and with remote checksum offload.
    #[inline]
    pub fn primed(sum: Sum) -> Field {
        Field(sum.fold())
    }

    /// Returns a completed field updated for the change of one 16-bit word, at an even offset, from `old` to `new` (RFC
    /// 1624 section 3, equation 3).
    ///
    /// A wrong field stays wrong. The result may be zero; for UDP pass it through [`nonzero`](Field::nonzero), and
    /// leave a field that was zero, hence absent, alone.
    #[inline]
    pub fn update(self, old: u16, new: u16) -> Field {
        let sum = u32::from(!self.0) + u32::from(!old) + u32::from(new); // at most 18 bits
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        Field(!(sum as u16))
    }

    /// Returns a completed field updated for the change of two adjacent words such as an IPv4 address.
    #[inline]
    pub fn update_u32(self, old: u32, new: u32) -> Field {
        self.update((old >> 16) as u16, (new >> 16) as u16).update(old as u16, new as u16)
    }

    /// Returns all ones for zero, the field itself otherwise: the rule of RFC 768 for a computed field.
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
