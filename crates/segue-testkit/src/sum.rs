//! The Internet checksum (RFC 1071), computed by the simplest possible code.

/// Returns the ones-complement sum of `bytes` as big-endian words, an odd last byte padded with zero, in 16 bits.
pub fn fold(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the pseudo header for addresses of 4 or 16 bytes.
pub fn pseudo(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = [src, dst].concat();
    if src.len() == 4 {
        bytes.extend([0, protocol]);
        bytes.extend((len as u16).to_be_bytes());
    } else {
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
    }
    bytes
}

/// Returns the sum of the pseudo header and of the segment `bytes`.
pub fn with_pseudo(src: &[u8], dst: &[u8], protocol: u8, bytes: &[u8]) -> u16 {
    fold(&[&pseudo(src, dst, protocol, bytes.len())[..], bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        assert_eq!(fold(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(fold(&[0x12]), 0x1200);
    }
}
