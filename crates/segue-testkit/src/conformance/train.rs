//! Joins frames to a train, and segments trains, by the simplest possible code.

use super::Rules;
use super::script::Frame;
use crate::sum::{fold, pseudo};

/// The kind of packets that a train is segmented into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// Segments are TCP over IPv4.
    Tcp4,
    /// Segments are TCP over IPv6.
    Tcp6,
    /// Segments are UDP datagrams.
    Udp,
    /// A train whose kind and segment size the kernel cannot express in a virtio-net header (Linux before 6.2: UDP).
    Untold,
}

/// The instructions for segmenting a train, as in a virtio-net header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocol of the segments.
    pub kind: GsoKind,
    /// Payload of each segment but the last, in bytes.
    pub size: usize,
    /// Whether the CWR flag is set in a segment.
    pub has_cwr: bool,
}

/// Joins at least two `frames` into a train; returns its bytes and its segmentation metadata. Checksums that [`mask`]
/// clears are zero.
pub(super) fn merge(frames: &[&Frame], rules: Rules) -> (Vec<u8>, Gso) {
    let first = frames[0];
    let header_len = header_len(first);
    let mut bytes = first.bytes[..header_len].to_vec();
    for frame in frames {
        bytes.extend(data(frame));
    }
    if first.inner_at != first.outer_at {
        let (protocol, upper) = set_ip_length(&mut bytes, first.outer_at);
        if protocol == 17 {
            let length = bytes.len() - upper;
            put(&mut bytes, upper + 4, length);
        }
    }
    let (protocol, upper) = set_ip_length(&mut bytes, first.inner_at);
    let is_v4 = bytes[first.inner_at] >> 4 == 4;
    let addresses =
        if is_v4 { first.inner_at + 12..first.inner_at + 20 } else { first.inner_at + 8..first.inner_at + 40 };
    let (src, dst) = bytes[addresses.clone()].split_at(addresses.len() / 2);
    let primed = fold(&pseudo(src, dst, protocol, bytes.len() - upper));
    let size = frames.iter().map(|frame| frame.data_len).max().unwrap_or(0);
    if protocol == 17 {
        let length = bytes.len() - upper;
        put(&mut bytes, upper + 4, length);
        put(&mut bytes, upper + 6, usize::from(primed));
        mask(first, &mut bytes);
        return (bytes, Gso { kind: GsoKind::Udp, size, has_cwr: false });
    }
    for frame in frames {
        bytes[upper + 13] |= frame.bytes[upper + 13] & 0x09;
    }
    if rules == Rules::Lro {
        let newest = frames[frames.len() - 1];
        // Number and window, and the echo of timestamps after two NOPs.
        bytes[upper + 8..upper + 12].copy_from_slice(&newest.bytes[upper + 8..upper + 12]);
        bytes[upper + 14..upper + 16].copy_from_slice(&newest.bytes[upper + 14..upper + 16]);
        if header_len == upper + 32 && bytes[upper + 20..upper + 24] == [1, 1, 8, 10] {
            bytes[upper + 28..upper + 32].copy_from_slice(&newest.bytes[upper + 28..upper + 32]);
        }
    }
    put(&mut bytes, upper + 16, usize::from(primed));
    let has_cwr = bytes[upper + 13] & 0x80 != 0;
    mask(first, &mut bytes);
    (bytes, Gso { kind: if is_v4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 }, size, has_cwr })
}

/// Returns the segments of the train of `frames`: copies of the first one's headers with the varying fields recomputed.
/// Fields that are not compared are those of the first.
pub(super) fn split(frames: &[&Frame]) -> Vec<Vec<u8>> {
    let first = frames[0];
    let header_len = header_len(first);
    let mut at = 0;
    let mut all = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let mut bytes = [&first.bytes[..header_len], data(frame)].concat();
        let second = frames.get(1).unwrap_or(&first);
        let mut levels = vec![first.outer_at];
        levels.extend((first.inner_at != first.outer_at).then_some(first.inner_at));
        for level in levels {
            if bytes[level] >> 4 == 4 {
                // The second decides how identifications go on.
                let (id, next) = (word(&first.bytes, level + 4), word(&second.bytes, level + 4));
                let id = if id == next { id } else { id.wrapping_add(index as u16) };
                put(&mut bytes, level + 4, usize::from(id));
            }
            let (protocol, upper) = set_ip_length(&mut bytes, level);
            if protocol == 17 {
                let length = bytes.len() - upper;
                put(&mut bytes, upper + 4, length);
            }
        }
        let (protocol, upper) = set_ip_length(&mut bytes, first.inner_at);
        if protocol == 6 {
            let seq = u32::from(word(&bytes, upper + 4)) << 16 | u32::from(word(&bytes, upper + 6));
            bytes[upper + 4..upper + 8].copy_from_slice(&seq.wrapping_add(at).to_be_bytes());
            // FIN and PSH of the last on the last; CWR on the first, or on all.
            let all_cwr = frames.iter().all(|frame| frame.bytes[upper + 13] & 0x80 != 0);
            bytes[upper + 13] &= if index == 0 || all_cwr { 0xf6 } else { 0x76 };
            if index + 1 == frames.len() {
                bytes[upper + 13] |= frames.iter().fold(0, |flags, frame| flags | frame.bytes[upper + 13] & 0x09);
            }
        }
        at += frame.data_len as u32;
        let field = upper + if protocol == 6 { 16 } else { 6 };
        let primed = checksum_of(&bytes, first.inner_at, upper, protocol, false);
        let whole = checksum_of(&bytes, first.inner_at, upper, protocol, true);
        put(&mut bytes, field, 0);
        put(&mut bytes, field, usize::from(if first.is_remote { primed } else { whole }));
        if let Some(gre) = first.gre_checksum {
            put(&mut bytes, gre, 0);
            let checksum = !fold(&bytes[gre - 4..]);
            put(&mut bytes, gre, usize::from(checksum));
        }
        if let Some(field) = first.udp_checksum {
            let checksum = checksum_of(&bytes, first.outer_at, field - 6, 17, true);
            put(&mut bytes, field, usize::from(checksum));
        }
        all.push(bytes);
    }
    all
}

/// Returns the checksum of the TCP or UDP header at `upper` under the IP header at `ip`, or its pseudo-header sum.
fn checksum_of(bytes: &[u8], ip: usize, upper: usize, protocol: u8, is_whole: bool) -> u16 {
    let addresses = if bytes[ip] >> 4 == 4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let (src, dst) = bytes[addresses.clone()].split_at(addresses.len() / 2);
    let pseudo = pseudo(src, dst, protocol, bytes.len() - upper);
    if !is_whole {
        return fold(&pseudo);
    }
    let mut content = bytes[upper..].to_vec();
    let field = if protocol == 6 { 16 } else { 6 };
    content[field..field + 2].fill(0);
    let checksum = !fold(&[pseudo, content].concat());
    if checksum == 0 && protocol == 17 { 0xffff } else { checksum }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Clears the outer UDP and GRE checksums, which are not final in a train, in bytes that begin with the headers of
/// `first`.
pub(super) fn mask(first: &Frame, bytes: &mut [u8]) {
    for at in [first.udp_checksum, first.gre_checksum].into_iter().flatten() {
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.fill(0);
        }
    }
}

/// Returns the length of all headers of a frame in bytes.
pub(super) fn header_len(frame: &Frame) -> usize {
    frame.bytes.len() - frame.padding - frame.data_len
}

/// Returns the payload of a frame.
pub(super) fn data(frame: &Frame) -> &[u8] {
    &frame.bytes[header_len(frame)..][..frame.data_len]
}

/// Sets length and checksum of the IP header at `at`. Returns the protocol that follows it, and its offset.
fn set_ip_length(bytes: &mut [u8], at: usize) -> (u8, usize) {
    let len = bytes.len() - at;
    let (protocol, upper) = upper(bytes, at);
    if bytes[at] >> 4 == 4 {
        put(bytes, at + 2, len);
        put(bytes, at + 10, 0);
        let checksum = !fold(&bytes[at..upper]);
        put(bytes, at + 10, usize::from(checksum));
    } else {
        put(bytes, at + 4, len - 40);
    }
    (protocol, upper)
}

/// Returns the protocol that follows the IP header at `at`, and its offset.
pub(super) fn upper(bytes: &[u8], at: usize) -> (u8, usize) {
    if bytes[at] >> 4 == 4 {
        return (bytes[at + 9], at + usize::from(bytes[at] & 15) * 4);
    }
    let (mut next, mut upper) = (bytes[at + 6], at + 40);
    while matches!(next, 0 | 43 | 60) {
        next = bytes[upper];
        upper += 8 + usize::from(bytes[upper + 1]) * 8;
    }
    (next, upper)
}

/// Writes a length into its field; zero if it does not fit.
fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap_or(0).to_be_bytes());
}
