//! CRC32c, the checksum of SCTP (RFC 9260, appendix A).

/// The generator polynomial, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The remainder of each byte with 0 to 7 bytes of zeros behind it, so that eight bytes are added at once.
const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut bit) = (byte as u32, 0);
        while bit < 8 {
            rest = rest >> 1 ^ if rest & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = rest;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        byte = 0;
        while byte < 256 {
            let rest: u32 = tables[zeros - 1][byte];
            tables[zeros][byte] = rest >> 8 ^ tables[0][(rest & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
};

/// A CRC32c in progress.
///
/// ```
/// use segue::checksum::Crc32c;
///
/// let mut crc = Crc32c::NEW;
/// crc.add(b"1234");
/// crc.add(b"56789");
/// assert_eq!(crc.field(), 0xe306_9283_u32.to_le_bytes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The CRC of no bytes.
    pub const NEW: Crc32c = Crc32c(u32::MAX);

    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let crc = words.iter().fold(self.0, |crc, word| {
            let word = u64::from_le_bytes(*word) ^ u64::from(crc);
            let remainders = TABLES.iter().rev().zip(word.to_le_bytes());
            remainders.fold(0, |all, (table, byte)| all ^ table[usize::from(byte)])
        });
        self.0 = rest.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]);
    }

    /// Returns the bytes of the checksum field, for the CRC of all bytes with zeros in that field.
    pub const fn field(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_3720_have_their_checksums() {
        let counting: [u8; 32] = core::array::from_fn(|at| at as u8);
        let falling: [u8; 32] = core::array::from_fn(|at| 31 - at as u8);
        for (bytes, field) in [
            ([0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            ([0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (counting, [0x4e, 0x79, 0xdd, 0x46]),
            (falling, [0x5c, 0xdb, 0x3f, 0x11]),
        ] {
            for cut in [0, 1, 8, 17, 31] {
                let mut crc = Crc32c::NEW;
                crc.add(&bytes[..cut]);
                crc.add(&bytes[cut..]);
                assert_eq!(crc.field(), field, "{bytes:x?}");
            }
        }
    }
}
