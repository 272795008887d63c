//! Pseudo headers: the addresses, protocol and length that transport checksums cover in addition to the segment.

use super::Sum;

/// Returns the sum of the pseudo header of TCP (RFC 9293 section 3.1) or UDP (RFC 768) over IPv4.
///
/// `upper_len` counts bytes from the start of the transport header to the end of the IP payload. On the wire it has 16
/// bits. A train may be longer than any packet; its length is summed whole, as if the field were wide enough, as Linux
/// primes such a train.
#[inline]
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, upper_len: usize) -> Sum {
    let mut sum = Sum::ZERO;
    sum.add(&src);
    sum.add(&dst);
    sum.add_u16(u16::from(protocol));
    sum.add_u64(upper_len as u64);
    sum
}

/// Returns the sum of the pseudo header of any transport over IPv6 (RFC 8200 section 8.1).
///
/// `src` and `dst` are the addresses that the receiver will see: the final destination if there is a routing header.
/// `next_header` is the transport's protocol number, whichever extension headers come between. `upper_len` counts bytes
/// from the start of the transport header, in 32 bits.
#[inline]
pub fn pseudo_v6(src: [u8; 16], dst: [u8; 16], next_header: u8, upper_len: usize) -> Sum {
    let mut sum = Sum::ZERO;
    sum.add(&src);
    sum.add(&dst);
    sum.add_u64(upper_len as u64);
    sum.add_u32(u32::from(next_header));
    sum
}
