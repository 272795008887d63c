//! Writes the checksums of a packet that are still to be finished, or wrong.

use segue::checksum::{Field, Sum};
use segue::packet::Kind;
use segue::wire::{ipv4, write_u16};

use crate::checksums::{Finding, Layer, Verdict};
use crate::frame::Frame;

/// What [`finish`] wrote.
#[derive(Debug)]
pub(crate) struct Finished {
    /// [`Frame::bytes`], whole.
    pub(crate) bytes: Vec<u8>,
    /// Checksums written where one was unfinished, or was right for what stood inside of it.
    pub(crate) finished: u64,
    /// Checksums written where a wrong one stood.
    pub(crate) fixed: u64,
}

/// Writes the checksums among `findings`, which are all that [`Frame::judge`] found, that are `wanted`, and those that were
/// right and would not be any more: from the inside out, each over what is then inside of it.
pub(crate) fn finish(frame: &Frame<'_>, findings: &[Finding], wanted: impl Fn(&Finding) -> bool) -> Finished {
    let mut frame = frame.copied();
    let (mut finished, mut fixed) = (0, 0);
    let (mut now, mut is_old) = (findings.to_vec(), false);
    for (index, before) in findings.iter().enumerate().rev() {
        // That of an IPv4 header covers nothing inside.
        if is_old && before.layer != Layer::Ipv4 {
            frame.judge(&mut now);
            is_old = false;
        }
        // The headers are the same, and so are the places of their checksums.
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
        && let Some(ip) = frame.layout.headers().iter().find(|header| header.kind == Kind::Ipv4)
    {
        // The length was filled in, and is part of the sum.
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, 0);
        let sum = Field::complete(Sum::of(&bytes[ip.start()..ip.end()]));
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, sum.value());
    }
    Finished { bytes, finished, fixed }
}
