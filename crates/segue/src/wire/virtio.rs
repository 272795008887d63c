//! The header before packets on TUN, TAP and packet sockets of Linux: `virtio_net_hdr` (virtio 1.2, section 5.1.6; the
//! 24-byte form: Linux 6.17, UDP tunnel segmentation).
//!
//! The fields of virtio 1.0 and later are little-endian; a TUN device has them so after `TUNSETVNETLE`. By default, and
//! always on a packet socket, the kernel uses the byte order of the machine ([`VirtioNet::parse_native`]).

/// Flag: the checksum is to be completed: the sum from `csum_start` to the end, into `csum_start + csum_offset`.
pub const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum was verified.
pub const DATA_VALID: u8 = 2;
/// Flag: `csum_start` and `csum_offset` count the joined segments and acknowledgments of a train; only virtio devices
/// with `VIRTIO_NET_F_RSC_EXT` set it.
pub const RSC_INFO: u8 = 4;
/// Flag: the outer UDP header of a tunnelled train has a checksum; with [`GSO_UDP_TUNNEL_IPV4`] and
/// [`GSO_UDP_TUNNEL_IPV6`] only.
pub const UDP_TUNNEL_CSUM: u8 = 8;

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
/// Modifier of a type: the train is inside a UDP tunnel over IPv4.
pub const GSO_UDP_TUNNEL_IPV4: u8 = 0x20;
/// Modifier of a type: the train is inside a UDP tunnel over IPv6.
pub const GSO_UDP_TUNNEL_IPV6: u8 = 0x40;
/// Modifier of a type: the first segment carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// Forms of the virtio-net header, by length. Each form begins with the fields of the shorter ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The basic form of 10 bytes: packet sockets, TUN and TAP devices by default, devices before virtio 1.0 without
    /// mergeable buffers.
    Basic,
    /// The form of 12 bytes, with the number of buffers: every other virtio device.
    Buffers,
    /// A header of 20 bytes, with the flow hash too (`VIRTIO_NET_F_HASH_REPORT`).
    Hash,
    /// A header of 24 bytes, with the offsets of a UDP tunnel too (Linux 6.17).
    Tunnel,
}

impl Form {
    /// Returns the form with `len` bytes; `None` for a length that no form has.
    pub const fn of_len(len: usize) -> Option<Form> {
        match len {
            10 => Some(Form::Basic),
            12 => Some(Form::Buffers),
            20 => Some(Form::Hash),
            24 => Some(Form::Tunnel),
            _ => None,
        }
    }

    /// Returns the length of the header in bytes: 10, 12, 20 or 24.
    pub const fn len(self) -> usize {
        match self {
            Form::Basic => 10,
            Form::Buffers => 12,
            Form::Hash => 20,
            Form::Tunnel => 24,
        }
    }

    /// Returns `false`: a header is never empty.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Fields of the virtio-net header. Those that a form does not have are 0 when it was read, and are not written.
///
/// [`parse`](VirtioNet::parse) and [`emit`](VirtioNet::emit) only move the fields; [`load`](crate::virtio::load) checks
/// them against a packet, and [`describe`](crate::virtio::describe) makes those of a packet to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNet {
    /// The flags [`NEEDS_CSUM`], [`DATA_VALID`], [`RSC_INFO`] and [`UDP_TUNNEL_CSUM`], or 0.
    pub flags: u8,
    /// One of the `GSO_` values, with modifiers.
    pub gso_type: u8,
    /// Length of all headers, bytes; a hint that must not be trusted.
    pub hdr_len: u16,
    /// Transport payload bytes of each segment.
    pub gso_size: u16,
    /// Start of the checksum, counted from the first byte of the packet.
    pub csum_start: u16,
    /// Offset of the checksum field, counted from `csum_start`.
    pub csum_offset: u16,
    /// Number of receive buffers that the packet fills, for a guest's driver: at least 1 there, 0 or 1 from a kernel.
    pub num_buffers: u16,
    /// The flow hash that the device computed, if [`VirtioNet::hash_report`] is not 0.
    pub hash: u32,
    /// The kind of the hash (virtio 1.2, section 5.1.6.4.4); 0 for none.
    pub hash_report: u16,
    /// Offset of the outer UDP header of a tunnelled train.
    pub outer_th: u16,
    /// Offset of the inner IP header of a tunnelled train.
    pub inner_nh: u16,
}

impl VirtioNet {
    /// Parses a header of the given form, with little-endian fields; `None` if there are too few bytes.
    pub fn parse(bytes: &[u8], form: Form) -> Option<VirtioNet> {
        let bytes = bytes.get(..form.len())?;
        let word =
            |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |w| u16::from_le_bytes(*w));
        Some(VirtioNet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
            hash: u32::from(word(12)) | u32::from(word(14)) << 16,
            hash_report: word(16),
            outer_th: word(20),
            inner_nh: word(22),
        })
    }

    /// Parses a header like [`VirtioNet::parse`], with the fields of the basic form in this machine's byte order: as
    /// written by packet sockets, TUN devices without `TUNSETVNETLE`, and virtio devices before version 1.0.
    #[inline]
    pub fn parse_native(bytes: &[u8], form: Form) -> Option<VirtioNet> {
        VirtioNet::parse(bytes, form).map(VirtioNet::native)
    }

    /// Returns the bytes of the header, with little-endian fields; only the first [`Form::len`] are part of it.
    #[inline]
    pub fn emit(&self, form: Form) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let hash = [self.hash as u16, (self.hash >> 16) as u16];
        let words = [
            (2, self.hdr_len),
            (4, self.gso_size),
            (6, self.csum_start),
            (8, self.csum_offset),
            (10, self.num_buffers),
            (12, hash[0]),
            (14, hash[1]),
            (16, self.hash_report),
            (20, self.outer_th),
            (22, self.inner_nh),
        ];
        for (at, value) in words {
            let value = if at < form.len() { value } else { 0 };
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Returns the bytes of the header like [`VirtioNet::emit`], for a reader of [`VirtioNet::parse_native`].
    pub fn emit_native(&self, form: Form) -> [u8; 24] {
        self.native().emit(form)
    }

    /// Swaps the fields that follow the byte order of the machine, on a big-endian one.
    fn native(self) -> VirtioNet {
        let [hdr_len, gso_size] = [self.hdr_len, self.gso_size].map(u16::to_le);
        let [csum_start, csum_offset, num_buffers] =
            [self.csum_start, self.csum_offset, self.num_buffers].map(u16::to_le);
        VirtioNet { hdr_len, gso_size, csum_start, csum_offset, num_buffers, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back_as_written() {
        for form in [Form::Basic, Form::Buffers, Form::Hash, Form::Tunnel] {
            let has = |at: usize| form.len() > at;
            let header = VirtioNet {
                flags: 1,
                gso_type: GSO_TCPV4 | GSO_ECN,
                hdr_len: 0x0134,
                gso_size: 0x05a8,
                csum_start: 0x0122,
                csum_offset: 16,
                num_buffers: if has(10) { 0x0102 } else { 0 },
                hash: if has(12) { 0x1234_5678 } else { 0 },
                hash_report: if has(16) { 0x0304 } else { 0 },
                outer_th: if has(20) { 0x0222 } else { 0 },
                inner_nh: if has(22) { 0x0340 } else { 0 },
            };
            let bytes = header.emit(form);
            assert_eq!(VirtioNet::parse(&bytes[..form.len()], form), Some(header));
            assert_eq!(VirtioNet::parse(&bytes[..form.len() - 1], form), None);
            assert_eq!(VirtioNet::parse_native(&header.emit_native(form), form), Some(header));
            assert_eq!(bytes[form.len()..], [0; 24][form.len()..]);
            assert_eq!(Form::of_len(form.len()), Some(form));
        }
    }

    #[test]
    fn the_words_are_little_endian() {
        let bytes = VirtioNet { gso_size: 0x05a8, hash: 0x0102_0304, ..Default::default() }.emit(Form::Hash);
        assert_eq!((&bytes[4..6], &bytes[12..16]), (&[0xa8, 0x05][..], &[4, 3, 2, 1][..]));
    }

    #[test]
    fn what_a_form_does_not_have_is_not_written() {
        let (word, byte) = (0x0101, 1);
        let full = VirtioNet {
            flags: byte,
            gso_type: byte,
            hdr_len: word,
            gso_size: word,
            csum_start: word,
            csum_offset: word,
            num_buffers: word,
            hash: 0x0101_0101,
            hash_report: word,
            outer_th: word,
            inner_nh: word,
        };
        for form in [Form::Basic, Form::Buffers, Form::Hash, Form::Tunnel] {
            // Two bytes of the longer forms are reserved.
            let expected: Vec<u8> = (0..24).map(|at| u8::from(at < form.len() && !matches!(at, 18 | 19))).collect();
            assert_eq!(full.emit(form)[..], expected, "{form:?}");
            assert!(!form.is_empty());
        }
    }
}
