//! What the frames of a train look like as one, made the slow and obvious way.

use super::Rules;
use super::script::Frame;
use crate::sum::{fold, pseudo};

/// What a train is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP.
    Udp,
    /// Something that a kernel has no word for (Linux before 6.2: UDP), nor for its size.
    Untold,
}

/// How a train is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Into what.
    pub kind: GsoKind,
    /// Bytes of payload in each but the last.
    pub size: usize,
    /// Whether CWR is set.
    pub has_cwr: bool,
}

/// The train of `frames`, at least two: its bytes, and how it is to be cut. Checksums that [`mask`] leaves out are zero.
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
        // Number and window, and the echo of timestamps behind two NOPs.
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

/// Clears what a train has no final value for, its outer UDP and GRE checksums, in bytes that begin with the headers of
/// `first`.
pub(super) fn mask(first: &Frame, bytes: &mut [u8]) {
    for at in [first.udp_checksum, first.gre_checksum].into_iter().flatten() {
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.fill(0);
        }
    }
}

/// Bytes of all headers.
pub(super) fn header_len(frame: &Frame) -> usize {
    frame.bytes.len() - frame.padding - frame.data_len
}

/// The payload.
pub(super) fn data(frame: &Frame) -> &[u8] {
    &frame.bytes[header_len(frame)..][..frame.data_len]
}

/// Sets the length of the IP header at `at`, from there to the end, and its checksum; what follows it, and where.
fn set_ip_length(bytes: &mut [u8], at: usize) -> (u8, usize) {
    let len = bytes.len() - at;
    if bytes[at] >> 4 == 4 {
        let upper = at + usize::from(bytes[at] & 15) * 4;
        put(bytes, at + 2, len);
        put(bytes, at + 10, 0);
        let checksum = !fold(&bytes[at..upper]);
        put(bytes, at + 10, usize::from(checksum));
        return (bytes[at + 9], upper);
    }
    put(bytes, at + 4, len - 40);
    let (mut next, mut upper) = (bytes[at + 6], at + 40);
    while matches!(next, 0 | 43 | 60) {
        next = bytes[upper];
        upper += 8 + usize::from(bytes[upper + 1]) * 8;
    }
    (next, upper)
}

/// A length that a field cannot say is zero in it.
fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap_or(0).to_be_bytes());
}
