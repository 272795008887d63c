//! Frames from the chip: a 10-byte header, then the frame with its FCS. [`Frames`] is the only parser.
//!
//! Nothing in a transfer is trusted: every length is checked before use, each step consumes at least a header, and
//! every error has a reason ([`Malformed`]).

use core::ops::Range;

use super::{ETHERNET_LEN, FCS_LEN, MAX_FRAME, u32_at};

/// Length of a receive header in bytes.
pub const HEADER_LEN: usize = 10;
/// The shortest transfer that can hold a frame: a header and an Ethernet header.
pub const MIN_TRANSFER: usize = HEADER_LEN + ETHERNET_LEN;

/// Bits of a header's first word.
pub mod flag {
    /// Mask of the frame's length, FCS included.
    pub const LEN: u32 = 0x3fff;
    /// Flag: the checksum field is not valid.
    pub const ICSM: u32 = 1 << 14;
    /// Flag: the destination is the chip's own unicast address.
    pub const UAM: u32 = 1 << 15;
    /// Error flag: the FCS is wrong.
    pub const FCS: u32 = 1 << 16;
    /// Flag: the frame is not a whole number of bytes (dribble bits).
    pub const DRIBBLE: u32 = 1 << 17;
    /// Error flag: the PHY reported a receive error.
    pub const RXE: u32 = 1 << 18;
    /// Error flag: the frame is longer than the MAC accepts.
    pub const LONG: u32 = 1 << 19;
    /// Error flag: the frame is shorter than Ethernet allows.
    pub const RUNT: u32 = 1 << 20;
    /// Error flag: the frame was cut off by the receive watchdog.
    pub const WATCHDOG: u32 = 1 << 21;
    /// Error flag: one of the error bits is set.
    pub const RED: u32 = 1 << 22;
    /// Flag: the frame had a VLAN tag.
    pub const TAGGED: u32 = 1 << 23;
    /// Flag: the destination is a multicast address.
    pub const MAM: u32 = 1 << 24;
    /// Flag: the destination is the broadcast address.
    pub const BAM: u32 = 1 << 25;
    /// Flag: a perfect address filter matched.
    pub const PFF: u32 = 1 << 26;
    /// Protocol field: TCP.
    pub const TCP: u32 = 1 << 27;
    /// Protocol field: UDP.
    pub const UDP: u32 = 2 << 27;
    /// Protocol: IP with another transport protocol.
    pub const IP: u32 = 3 << 27;
    /// Mask of the protocol field.
    pub const PROTOCOL: u32 = 3 << 27;
    /// Flag: the IP version is 6.
    pub const V6: u32 = 1 << 29;
    /// Error flag: the TCP or UDP checksum is wrong.
    pub const TCE: u32 = 1 << 30;
    /// Error flag: the IPv4 header checksum is wrong.
    pub const ICE: u32 = 1 << 31;
    /// Mask of errors that make a frame unusable.
    pub const HARD: u32 = FCS | DRIBBLE | RXE | LONG | RUNT | WATCHDOG;
    /// Mask of errors in the frame's checksums; the frame itself is unchanged.
    pub const SOFT: u32 = TCE | ICE;
}

/// The header that the chip puts in front of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Flags: the first word without the length, bits of [`flag`].
    pub flags: u32,
    /// Length in bytes of the frame with its FCS, below 16384.
    pub len: u16,
    /// The ones-complement sum of the frame from its 15th byte on, padding included, FCS excluded.
    pub csum: u16,
    /// The stripped VLAN tag's control information, if [`flag::TAGGED`] is set.
    pub tag: u16,
    /// Wake-up flags, the last two bytes.
    pub wake: u16,
}

impl Header {
    /// Returns the header's bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&(self.flags & !flag::LEN | u32::from(self.len) & flag::LEN).to_le_bytes());
        bytes[4..6].copy_from_slice(&self.tag.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.csum.to_le_bytes());
        bytes[8..].copy_from_slice(&self.wake.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if there are too few bytes.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_LEN)?;
        let (a, b) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
        Some(Header {
            flags: a & !flag::LEN,
            len: (a & flag::LEN) as u16,
            csum: (b >> 16) as u16,
            tag: b as u16,
            wake: u16::from_le_bytes([bytes[8], bytes[9]]),
        })
    }

    /// Returns whether any of `flags` is set.
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
}

/// Returns the number of bytes of padding between a frame of `len` bytes, FCS included, and the next header. Header,
/// two bytes and frame together are padded to a multiple of 4.
pub const fn padding(len: usize) -> usize {
    (4 - (len + 2) % 4) % 4
}

segue::reasons! {
    /// Reasons for which a transfer, or a frame in it, was not delivered.
    pub enum Malformed {
        Short = "rx_transfer_short": "A transfer too short to hold a frame.",
        Header = "rx_header_short": "Bytes after the last frame that are no whole header; the rest of the transfer was skipped.",
        PastEnd = "rx_length_past_end": "A frame longer than its transfer; the rest of the transfer was skipped.",
        NoFcs = "rx_length_no_fcs": "A frame shorter than its FCS; the rest of the transfer was skipped.",
        Runt = "rx_frame_short": "A frame shorter than an Ethernet header.",
        Giant = "rx_frame_long": "A frame longer than any MTU allows.",
        Fcs = "rx_error_fcs": "A frame that the chip received with a wrong FCS.",
        Frame = "rx_error_frame": "A frame that the chip received with another error: dribble, PHY error, length or watchdog.",
        Unexplained = "rx_error_unexplained": "A frame that the chip marked as wrong without saying why.",
        Checksum = "rx_error_csum": "A frame with a wrong checksum, dropped as kernels before March 2026 did.",
    }
}

/// Treatment of frames whose only error is a wrong checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumErrors {
    /// Frames are passed on unverified, and the stack decides (Linux since March 2026).
    Pass,
    /// Frames are dropped (Linux before March 2026).
    Drop,
}

/// Iterator over the frames of one transfer.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    errors: ChecksumErrors,
}

impl<'a> Frames<'a> {
    /// Creates an iterator over the frames in `bytes`, the contents of a transfer.
    pub const fn new(bytes: &'a [u8], errors: ChecksumErrors) -> Frames<'a> {
        Frames { bytes, at: 0, errors }
    }

    /// Returns the offset up to which the transfer was parsed.
    pub const fn position(&self) -> usize {
        self.at
    }

    fn stop(&mut self, why: Malformed) -> Option<Result<(Header, Range<usize>), Malformed>> {
        self.at = self.bytes.len();
        Some(Err(why))
    }
}

impl Iterator for Frames<'_> {
    /// A header with its frame's range in the transfer, FCS excluded, or the error in the transfer.
    type Item = Result<(Header, Range<usize>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.bytes.len() - self.at;
        if left == 0 {
            return None;
        }
        if self.at == 0 && left < MIN_TRANSFER {
            return self.stop(Malformed::Short);
        }
        let Some(header) = Header::parse(&self.bytes[self.at..]) else {
            return self.stop(Malformed::Header);
        };
        let len = usize::from(header.len);
        let start = self.at + HEADER_LEN;
        if len > self.bytes.len() - start {
            return self.stop(Malformed::PastEnd);
        }
        if len < FCS_LEN {
            return self.stop(Malformed::NoFcs);
        }
        self.at = (start + len + padding(len)).min(self.bytes.len());
        if header.has(flag::RED) {
            let why = match header {
                h if h.has(flag::FCS) => Some(Malformed::Fcs),
                h if h.has(flag::HARD) => Some(Malformed::Frame),
                h if !h.has(flag::SOFT) => Some(Malformed::Unexplained),
                _ if self.errors == ChecksumErrors::Drop => Some(Malformed::Checksum),
                _ => None,
            };
            if let Some(why) = why {
                return Some(Err(why));
            }
        }
        let frame = start..start + len - FCS_LEN;
        match frame.len() {
            ..ETHERNET_LEN => Some(Err(Malformed::Runt)),
            _ if len > MAX_FRAME => Some(Err(Malformed::Giant)),
            _ => Some(Ok((header, frame))),
        }
    }
}

/// A builder of transfers from frames, in the form of the chip.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    /// Bytes of the transfer so far.
    pub bytes: Vec<u8>,
}

impl Builder {
    /// Returns the length in bytes of the transfer with another frame of `len` bytes, FCS included.
    pub const fn len_with(&self, len: usize) -> usize {
        self.bytes.len().next_multiple_of(4) + HEADER_LEN + len
    }

    /// Appends a frame, FCS included, with `header`, whose length is set to match.
    pub fn push(&mut self, header: Header, frame: &[u8]) {
        let header = Header { len: frame.len() as u16, ..header };
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(&header.emit());
        self.bytes.extend_from_slice(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> Vec<Result<Range<usize>, Malformed>> {
        Frames::new(bytes, ChecksumErrors::Pass).map(|found| found.map(|(_, range)| range)).collect()
    }

    fn transfer(lens: &[usize]) -> Vec<u8> {
        let mut builder = Builder::default();
        for (n, len) in lens.iter().enumerate() {
            builder.push(Header::default(), &vec![n as u8 + 1; *len]);
        }
        builder.bytes
    }

    #[test]
    fn lengths_64_to_71_alone_and_together_have_the_known_padding() {
        let lens: Vec<usize> = (64..72).collect();
        assert_eq!(lens.iter().map(|len| padding(*len)).collect::<Vec<_>>(), [2, 1, 0, 3, 2, 1, 0, 3]);
        for len in &lens {
            assert_eq!(frames(&transfer(&[*len])), [Ok(10..10 + len - 4)]);
        }
        let together = transfer(&lens);
        let found = frames(&together);
        assert_eq!(found.len(), 8);
        for (n, range) in found.into_iter().enumerate() {
            assert_eq!(together[range.unwrap()], vec![n as u8 + 1; 60 + n]);
        }
    }

    #[test]
    fn transfers_of_0_1_9_10_and_23_bytes_hold_nothing_and_24_can() {
        assert!(frames(&[]).is_empty());
        for len in [1, 9, 10, 23] {
            assert_eq!(frames(&vec![0x12; len]), [Err(Malformed::Short)], "{len} bytes");
        }
        // A frame needs its FCS: 24 bytes hold at best an Ethernet header without FCS.
        assert_eq!(frames(&transfer(&[14])), [Err(Malformed::Runt)]);
        assert_eq!(frames(&transfer(&[18])), [Ok(10..24)]);
    }

    #[test]
    fn a_length_past_the_end_stops_the_transfer_and_one_that_ends_there_does_not() {
        let mut bytes = transfer(&[64]);
        for (len, expected) in
            [(64, Ok(10..70)), (65, Err(Malformed::PastEnd)), (0x3fff, Err(Malformed::PastEnd)), (63, Ok(10..69))]
        {
            bytes[..2].copy_from_slice(&(len as u16).to_le_bytes());
            assert_eq!(frames(&bytes)[0], expected, "length {len}");
        }
    }

    #[test]
    fn lengths_too_small_for_a_frame_are_refused_with_and_without_an_error_bit() {
        for red in [0, flag::RED | flag::RXE] {
            for (len, plain) in
                [(0, Malformed::NoFcs), (3, Malformed::NoFcs), (4, Malformed::Runt), (17, Malformed::Runt)]
            {
                let header = Header { flags: red, len, ..Header::default() };
                let mut bytes = header.emit().to_vec();
                bytes.resize(MIN_TRANSFER + 40, 0);
                let expected = if red != 0 && plain == Malformed::Runt { Malformed::Frame } else { plain };
                assert_eq!(frames(&bytes)[0], Err(expected), "length {len}, flags {red:#x}");
            }
            let mut bytes = Header { flags: red, len: 18, ..Header::default() }.emit().to_vec();
            bytes.resize(28, 0);
            assert_eq!(frames(&bytes)[0].is_ok(), red == 0);
        }
    }

    #[test]
    fn one_to_nine_bytes_behind_the_last_frame_end_the_transfer() {
        let stale = Header { flags: flag::RED, len: 0, ..Header::default() }.emit();
        for count in 1..10 {
            for fill in [[0; 10], [0xff; 10], stale] {
                let mut bytes = transfer(&[66]); // no padding after it
                bytes.extend_from_slice(&fill[..count]);
                assert_eq!(frames(&bytes), [Ok(10..72), Err(Malformed::Header)], "{count} bytes");
            }
        }
    }

    #[test]
    fn each_hard_error_drops_its_frame_and_spares_the_neighbours() {
        let hard = [flag::FCS, flag::DRIBBLE, flag::RXE, flag::LONG, flag::RUNT, flag::WATCHDOG, 0];
        for error in hard {
            for place in 0..3 {
                let mut builder = Builder::default();
                for n in 0..3 {
                    let flags = if n == place { flag::RED | error } else { 0 };
                    builder.push(Header { flags, ..Header::default() }, &[n; 71]);
                }
                let found = frames(&builder.bytes);
                let expected = match error {
                    flag::FCS => Malformed::Fcs,
                    0 => Malformed::Unexplained,
                    _ => Malformed::Frame,
                };
                for (n, one) in found.iter().enumerate() {
                    if n == usize::from(place) {
                        assert_eq!(*one, Err(expected));
                    } else {
                        assert!(builder.bytes[one.clone().unwrap()].iter().all(|b| usize::from(*b) == n));
                    }
                }
                assert_eq!(found.len(), 3);
            }
        }
    }

    #[test]
    fn a_checksum_error_alone_passes_by_the_new_rule_and_not_by_the_old() {
        for soft in [flag::ICE, flag::TCE, flag::SOFT] {
            let mut builder = Builder::default();
            builder.push(Header { flags: flag::RED | soft, ..Header::default() }, &[0; 64]);
            assert!(Frames::new(&builder.bytes, ChecksumErrors::Pass).all(|one| one.is_ok()));
            let old: Vec<_> = Frames::new(&builder.bytes, ChecksumErrors::Drop).collect();
            assert_eq!(old, [Err(Malformed::Checksum)]);
        }
    }

    #[test]
    fn jumbo_frames_pass_and_longer_ones_do_not() {
        assert_eq!(frames(&transfer(&[MAX_FRAME])), [Ok(10..10 + MAX_FRAME - 4)]);
        assert_eq!(frames(&transfer(&[MAX_FRAME + 1, 64])), [Err(Malformed::Giant), Ok(9046..9106)]);
    }

    #[test]
    fn the_known_header_reads_and_writes() {
        let bytes = [0x40, 0x80, 0x00, 0x14, 0x00, 0x00, 0xdd, 0xeb, 0, 0];
        let header = Header { flags: flag::PFF | flag::UAM | flag::UDP, len: 64, csum: 0xebdd, tag: 0, wake: 0 };
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(header.emit(), bytes);
        let odd = Header { flags: flag::ICE | flag::TAGGED, len: 0x1234, csum: 0xabcd, tag: 0xb456, wake: 0xc000 };
        assert_eq!(Header::parse(&odd.emit()), Some(odd));
    }

    #[test]
    fn random_bytes_end_in_bounded_steps_inside_the_transfer() {
        let mut state = 0x1234_5678_9abc_def1_u64;
        for round in 0..20_000 {
            let mut bytes = vec![0; round % 300];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = (state >> 24) as u8 & if round % 3 == 0 { 0x3f } else { 0xff };
            }
            let mut steps = 0;
            for one in Frames::new(&bytes, ChecksumErrors::Pass) {
                steps += 1;
                assert!(one.is_err() || one.is_ok_and(|(_, range)| bytes.get(range).is_some()));
            }
            assert!(steps <= bytes.len() / HEADER_LEN + 1);
        }
    }
}
