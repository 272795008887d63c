//! Completes the unfinished checksums of a packet, and corrects wrong ones.

use segue::checksum::{Field, Sum};
use segue::packet::Kind;
use segue::wire::{ipv4, read_u16, write_u16};

use crate::checksums::{Finding, Layer, Verdict};
use crate::frame::Frame;

/// The result of [`finish`].
#[derive(Debug)]
pub(crate) struct Finished {
    /// All bytes of the frame after the link header.
    pub(crate) bytes: Vec<u8>,
    /// Number of checksums that were unfinished, or right until an inner one changed.
    pub(crate) finished: u64,
    /// Number of wrong checksums that were corrected.
    pub(crate) fixed: u64,
}

/// Writes the `wanted` checksums among `findings`, and outer ones that a change of an inner one would make wrong, from
/// the inside out. `findings` are all that [`Frame::judge`] found.
pub(crate) fn finish(frame: &Frame<'_>, findings: &[Finding], wanted: impl Fn(&Finding) -> bool) -> Finished {
    let mut frame = frame.copied();
    let (mut finished, mut fixed) = (0, 0);
    let (mut now, mut is_old) = (findings.to_vec(), false);
    for (index, before) in findings.iter().enumerate().rev() {
        // An IPv4 header checksum does not cover inner headers.
        if is_old && before.layer != Layer::Ipv4 {
            frame.judge(&mut now);
            is_old = false;
        }
        // The headers have not changed, so the findings have the same order and offsets.
        let Some(found) = now.get(index).filter(|found| found.at == before.at) else { continue };
        let is_spoiled = before.verdict == Verdict::Good && found.verdict == Verdict::Bad;
        if found.field == found.expected || !(wanted(before) || is_spoiled) {
            continue;
        }
        write_u16(frame.bytes.to_mut(), found.at, found.expected);
        is_old = true;
        match before.verdict {
            Verdict::Bad => fixed += 1,
            _ => finished += 1,
        }
    }
    let mut bytes = frame.bytes.into_owned();
    if frame.is_unsized
        && let Some(ip) = frame.layout.outer_ip().filter(|ip| ip.kind == Kind::Ipv4)
    {
        // The length was filled in, and the checksum covers it.
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, 0);
        let sum = Field::complete(Sum::of(&bytes[ip.start()..ip.end()]));
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, sum.value());
        let at = ip.start() + ipv4::CHECKSUM;
        if let Some(bad) = findings.iter().find(|f| f.at == at && f.verdict == Verdict::Bad && !wanted(f)) {
            spoil(&mut bytes, bad);
        }
    }
    Finished { bytes, finished, fixed }
}

/// Makes a right checksum wrong by the same amount as that of the packet that it was made from, since what was not
/// asked for must not correct it.
pub(crate) fn spoil(packet: &mut [u8], bad: &Finding) {
    let Some(right) = read_u16(packet, bad.at) else { return };
    let mut sum = Sum::ZERO;
    sum.add_u16(right);
    sum.add_u16(bad.field);
    sum.add_u16(!bad.expected);
    write_u16(packet, bad.at, sum.fold());
}
