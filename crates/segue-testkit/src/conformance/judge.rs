//! Comparison of an implementation's output with the table.

use std::collections::BTreeSet;
use std::fmt;

use super::notation::{Train, Written};
use super::script::Frame;
use super::train::{self, Gso, GsoKind};
use super::{Case, Rules};

/// An output of an implementation: a packet or a train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// The frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// The instructions for segmenting the train; `None` for a single packet.
    pub gso: Option<Gso>,
}

/// The difference of an outcome from the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The trains that the table expects.
    pub expected: String,
    /// Trains in the output.
    pub came: String,
    /// Errors in the bytes of a train; empty if segmentation restores its frames exactly.
    pub bytes: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, came {}", self.expected, self.came)?;
        if self.bytes.is_empty() { Ok(()) } else { write!(f, ": {}", self.bytes) }
    }
}

impl Case {
    /// Compares the output with the trains that `rules` make of the case. Order counts within a flow.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn judge(&self, rules: Rules, outs: &[Out]) -> Result<(), Difference> {
        let expected = self.trains(rules);
        let came = match self.decode(outs) {
            Ok(came) => came,
            Err((came, why)) => {
                let came = Written(&came).to_string();
                return Err(Difference { expected: Written(&expected).to_string(), came, bytes: why });
            }
        };
        let mut bytes = String::new();
        for (train, out) in came.iter().zip(outs) {
            if train.frames.len() < 2 || train.is_newest || !bytes.is_empty() {
                continue;
            }
            let frames: Vec<&Frame> = train.frames.iter().map(|&frame| &self.frames[frame]).collect();
            bytes = compare(&frames, rules, out).err().unwrap_or_default();
        }
        if by_flow(&self.frames, &came) == by_flow(&self.frames, &expected) && bytes.is_empty() {
            return Ok(());
        }
        Err(Difference { expected: Written(&expected).to_string(), came: Written(&came).to_string(), bytes })
    }

    /// Returns whether each frame of the case, or an acknowledgment that replaces it, is in the output.
    pub fn is_complete(&self, outs: &[Out]) -> bool {
        self.decode(outs).is_ok()
    }

    /// Compares the frames that segmentation of `trains` produced with the expected ones. Order does not count: a wrong
    /// order is reported by [`Case::judge`].
    ///
    /// # Errors
    /// Returns the fields that differ, in all frames together.
    pub fn judge_split(&self, trains: &[Train], came: &[Vec<u8>]) -> Result<(), String> {
        let mut expected: Vec<(usize, Vec<u8>)> = Vec::new();
        for train in trains {
            let frames: Vec<&Frame> = train.frames.iter().map(|&frame| &self.frames[frame]).collect();
            if frames.len() == 1 || train.is_newest {
                expected.extend(train.frames.last().map(|&last| (last, self.frames[last].bytes.clone())));
            } else {
                expected.extend(train.frames.iter().copied().zip(train::split(&frames)));
            }
        }
        let mut other = Vec::new();
        for bytes in came {
            let is_it = |(frame, expected): &(usize, Vec<u8>)| {
                let frame = &self.frames[*frame];
                bytes == expected
                    || (frame.padding > 0 && frame.bytes.starts_with(bytes))
                    || *bytes == frame.bytes && frame.padding > 0
            };
            match expected.iter().position(is_it) {
                Some(found) => drop(expected.remove(found)),
                None => other.push(bytes),
            }
        }
        let mut fields: BTreeSet<String> = BTreeSet::new();
        if other.len() < expected.len() {
            fields.insert("frames missing".into());
        }
        if other.len() > expected.len() {
            fields.insert("frames that nobody sent".into());
        }
        for (came, (frame, bytes)) in other.iter().zip(&expected) {
            fields.extend(self.differing(*frame, bytes, came));
        }
        if fields.is_empty() { Ok(()) } else { Err(fields.into_iter().collect::<Vec<_>>().join(", ")) }
    }

    /// Returns the fields in which the output `came` differs from the case's frame `frame`.
    fn differing(&self, frame: usize, expected: &[u8], came: &[u8]) -> Vec<String> {
        if came.len() != expected.len() {
            return vec![format!("{} bytes instead of {}", came.len(), expected.len())];
        }
        let frame = &self.frames[frame];
        let differing = (0..came.len()).filter(|&at| came[at] != expected[at]);
        differing.map(|at| field_name(frame, expected, at)).collect()
    }

    /// Returns the frames from which each of `outs` was made; `None` if that cannot be determined.
    pub fn trains_of(&self, outs: &[Out]) -> Option<Vec<Train>> {
        self.decode(outs).ok()
    }

    /// Returns the frames that make up each of `outs`, or the reason why that is impossible, with the frames determined
    /// so far.
    fn decode(&self, outs: &[Out]) -> Result<Vec<Train>, (Vec<Train>, String)> {
        let mut free: Vec<usize> = (0..self.frames.len()).collect();
        let mut trains = Vec::new();
        for out in outs {
            let found = self.find(out, &free);
            let Some(frames) = found else {
                return Err((trains, format!("{} bytes that are no frame and no train", out.bytes.len())));
            };
            free.retain(|frame| !frames.contains(frame));
            trains.push(Train { frames, is_newest: false });
        }
        // Acknowledgments that did not leave are in the one after them.
        let mut wrong = String::new();
        for &frame in &free {
            let newer = trains.iter_mut().filter(|train| {
                let last = train.frames[train.frames.len() - 1];
                last > frame
                    && self.frames[last].data_len == 0
                    && self.frames[frame].data_len == 0
                    && self.frames[last].flow == self.frames[frame].flow
            });
            match newer.min_by_key(|train| train.frames[train.frames.len() - 1]) {
                Some(train) => {
                    train.is_newest = true;
                    train.frames.push(frame);
                    train.frames.sort_unstable();
                }
                None => wrong = format!("frame {frame} did not leave"),
            }
        }
        if wrong.is_empty() { Ok(trains) } else { Err((trains, wrong)) }
    }

    /// Returns the frames that make up `out`, among the frames that are `free`.
    fn find(&self, out: &Out, free: &[usize]) -> Option<Vec<usize>> {
        let is_frame = |frame: &Frame| {
            let unpadded = &frame.bytes[..frame.bytes.len() - frame.padding];
            out.bytes == frame.bytes || out.bytes == unpadded
        };
        if let Some(&single) = free.iter().find(|&&frame| is_frame(&self.frames[frame])) {
            return Some(vec![single]);
        }
        free.iter().find_map(|&first| {
            let mut rest = out.bytes.get(train::header_len(&self.frames[first])..)?;
            let mut frames = Vec::new();
            while !rest.is_empty() {
                let next = free.iter().filter(|&&frame| frames.is_empty() == (frame == first)).find(|&&frame| {
                    let data = train::data(&self.frames[frame]);
                    !frames.contains(&frame) && !data.is_empty() && rest.starts_with(data)
                });
                let &next = next?;
                rest = &rest[self.frames[next].data_len..];
                frames.push(next);
            }
            (frames.len() > 1).then_some(frames)
        })
    }
}

/// Returns the name of the field at byte `at` of a frame.
fn field_name(frame: &Frame, bytes: &[u8], at: usize) -> String {
    let Frame { outer_at, inner_at, udp_checksum, gre_checksum, .. } = *frame;
    let is_in = |field: Option<usize>| field.is_some_and(|field| (field..field + 2).contains(&at));
    if is_in(udp_checksum) {
        return "outer UDP checksum".into();
    }
    if is_in(gre_checksum) {
        return "GRE checksum".into();
    }
    for (level, name) in [(inner_at, "inner"), (outer_at, "outer")] {
        // With the identification the header checksum changes.
        if bytes[level] >> 4 == 4 && (is_in(Some(level + 4)) || is_in(Some(level + 10))) {
            return format!("{name} identification");
        }
    }
    let (protocol, upper) = train::upper(bytes, inner_at);
    if is_in(Some(upper + if protocol == 6 { 16 } else { 6 })) {
        return "checksum".into();
    }
    match at {
        at if at >= upper => format!("transport byte {}", at - upper),
        at if at >= inner_at => format!("inner byte {}", at - inner_at),
        at if at >= outer_at => format!("outer byte {}", at - outer_at),
        at => format!("link byte {at}"),
    }
}

/// Returns the trains of each flow, in order.
fn by_flow<'a>(frames: &[Frame], trains: &'a [Train]) -> Vec<Vec<&'a Train>> {
    let flows = frames.iter().map(|frame| frame.flow + 1).max().unwrap_or(0);
    let of = |flow| trains.iter().filter(move |train| frames[train.frames[0]].flow == flow);
    (0..flows).map(|flow| of(flow).collect()).collect()
}

/// Checks that `out` is the train that `frames` make.
fn compare(frames: &[&Frame], rules: Rules, out: &Out) -> Result<(), String> {
    let (expected, gso) = train::merge(frames, rules);
    let mut bytes = out.bytes.clone();
    train::mask(frames[0], &mut bytes);
    let is_untold = out.gso.is_some_and(|gso| gso.kind == GsoKind::Untold) && gso.kind == GsoKind::Udp;
    if out.gso != Some(gso) && !is_untold {
        return Err(format!("a train as {:?}, not {gso:?}", out.gso));
    }
    if bytes == expected {
        return Ok(());
    }
    let at = bytes.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(bytes.len().min(expected.len()));
    let from = at.saturating_sub(2);
    let piece = |bytes: &[u8]| bytes.iter().skip(from).take(8).map(|b| format!("{b:02x}")).collect::<String>();
    Err(format!("byte {at} of {}: ..{}.. is ..{}.. in the train", bytes.len(), piece(&expected), piece(&bytes)))
}
