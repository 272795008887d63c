//! The CRC-32 of Ethernet: frame check sequence and address hash.

/// Returns the bit of the 512-bit hash table for an address: the top nine bits of the CRC-32 of its bytes (IEEE 802.3,
/// 3.2.9), in the bit order of the polynomial and without the final inversion.
pub const fn address_hash(address: [u8; 6]) -> u16 {
    (crc32_state(u32::MAX, &address).reverse_bits() >> 23) as u16
}

/// Returns the frame check sequence of `bytes` (IEEE 802.3, 3.2.9), which is appended to a frame in little-endian
/// order.
pub fn fcs(bytes: &[u8]) -> u32 {
    let mut state = u32::MAX;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let low = state ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        state = TABLES[7][(low & 0xff) as usize]
            ^ TABLES[6][(low >> 8 & 0xff) as usize]
            ^ TABLES[5][(low >> 16 & 0xff) as usize]
            ^ TABLES[4][(low >> 24) as usize]
            ^ TABLES[3][chunk[4] as usize]
            ^ TABLES[2][chunk[5] as usize]
            ^ TABLES[1][chunk[6] as usize]
            ^ TABLES[0][chunk[7] as usize];
    }
    !crc32_state(state, chunks.remainder())
}

const fn crc32_state(mut state: u32, bytes: &[u8]) -> u32 {
    let mut at = 0;
    while at < bytes.len() {
        state = TABLES[0][((state ^ bytes[at] as u32) & 0xff) as usize] ^ state >> 8;
        at += 1;
    }
    state
}

/// Lookup tables: for each byte value, its contribution to the CRC 0 to 7 bytes later.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0_u32; 256]; 8];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { 0xedb8_8320 ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][value] = crc;
        value += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[table - 1][value];
            tables[table][value] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            value += 1;
        }
        table += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_hash_gives_the_known_bits() {
        for (address, bit) in [
            ([0x01, 0x00, 0x5e, 0, 0, 0x01], 255),
            ([0x01, 0x00, 0x5e, 0, 0, 0xfb], 126),
            ([0x33, 0x33, 0, 0, 0, 1], 499),
            ([0x33, 0x33, 0xff, 0x12, 0x34, 0x56], 23),
            ([0x01, 0x80, 0xc2, 0, 0, 0x0e], 270),
        ] {
            assert_eq!(address_hash(address), bit, "{address:02x?}");
        }
    }

    #[test]
    fn the_frame_check_sequence_is_the_crc_of_ieee_802_3() {
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926);
        assert_eq!(fcs(b""), 0);
        for len in 0..64 {
            let bytes: Vec<u8> = (0..len).map(|n: u8| n.wrapping_mul(37)).collect();
            assert_eq!(fcs(&bytes), !crc32_state(u32::MAX, &bytes), "{len} bytes");
        }
    }
}
