//! The header before packets on TUN, TAP and packet sockets of Linux: `virtio_net_hdr` (virtio 1.2, section 5.1.6; the
//! 24-byte form: Linux 6.17, UDP tunnel segmentation).
//!
//! Fields are native-endian by default. This codec uses little-endian fields, which every port requests (TUNSETVNETLE).

/// Flag: the checksum is to be completed: the sum from `csum_start` to the end, into `csum_start + csum_offset`.
pub const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum was verified.
pub const DATA_VALID: u8 = 2;

/// Type: not a train.
pub const GSO_NONE: u8 = 0;
/// Type: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// Type: UDP fragmentation, which kernels no longer produce.
pub const GSO_UDP: u8 = 3;
/// Type: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// Type: UDP datagrams of equal size.
pub const GSO_UDP_L4: u8 = 5;
/// Modifier of a type: the first segment carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// Lengths of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The basic form of 10 bytes.
    Basic,
    /// The form of 12 bytes, with the number of buffers.
    Buffers,
    /// 24 bytes: with hash and tunnel offsets.
    Tunnel,
}

impl Form {
    /// Returns the bytes of the header: 10, 12 or 24.
    pub const fn len(self) -> usize {
        match self {
            Form::Basic => 10,
            Form::Buffers => 12,
            Form::Tunnel => 24,
        }
    }

    /// Returns `false`: a header is never empty.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// The fields of the header. `outer_th` and `inner_nh` exist in the 24-byte form only and are 0 otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNet {
    /// The flags [`NEEDS_CSUM`] and [`DATA_VALID`], or 0.
    pub flags: u8,
    /// One of the `GSO_` values, with modifiers.
    pub gso_type: u8,
    /// Length of all headers, bytes; a hint that must not be trusted.
    pub hdr_len: u16,
    /// Transport payload bytes of each segment.
    pub gso_size: u16,
    /// Start of the checksum, counted from the first byte of the packet.
    pub csum_start: u16,
    /// Place of the checksum field, counted from `csum_start`.
    pub csum_offset: u16,
    /// Place of the outer transport header.
    pub outer_th: u16,
    /// Place of the inner network header.
    pub inner_nh: u16,
}

impl VirtioNet {
    /// Reads a header of the given form; `None` where there are too few bytes.
    pub fn parse(bytes: &[u8], form: Form) -> Option<VirtioNet> {
        let bytes = bytes.get(..form.len())?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let tunnel = |at: usize| if form == Form::Tunnel { word(at) } else { 0 };
        Some(VirtioNet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            outer_th: tunnel(20),
            inner_nh: tunnel(22),
        })
    }

    /// Returns the bytes of the header; only the first [`Form::len`] are part of it.
    pub fn emit(&self, form: Form) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [(2, self.hdr_len), (4, self.gso_size), (6, self.csum_start), (8, self.csum_offset)];
        for (at, value) in words {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        if form == Form::Tunnel {
            bytes[20..22].copy_from_slice(&self.outer_th.to_le_bytes());
            bytes[22..24].copy_from_slice(&self.inner_nh.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back_as_written() {
        for form in [Form::Basic, Form::Buffers, Form::Tunnel] {
            let tunnel = form == Form::Tunnel;
            let header = VirtioNet {
                flags: 1,
                gso_type: GSO_TCPV4 | GSO_ECN,
                hdr_len: 0x0134,
                gso_size: 0x05a8,
                csum_start: 0x0122,
                csum_offset: 16,
                outer_th: if tunnel { 0x0222 } else { 0 },
                inner_nh: if tunnel { 0x0340 } else { 0 },
            };
            let bytes = header.emit(form);
            assert_eq!(VirtioNet::parse(&bytes[..form.len()], form), Some(header));
            assert_eq!(VirtioNet::parse(&bytes[..form.len() - 1], form), None);
        }
    }

    #[test]
    fn the_words_are_little_endian() {
        let bytes = VirtioNet { gso_size: 0x05a8, ..Default::default() }.emit(Form::Basic);
        assert_eq!(bytes[4..6], [0xa8, 0x05]);
    }
}
