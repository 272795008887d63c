//! Compares what came out with the table.

use std::fmt;

use super::notation::{Train, Written};
use super::script::Frame;
use super::train::{self, Gso, GsoKind};
use super::{Case, Rules};

/// What came out: a packet or a train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// How it is to be cut; `None` for a packet.
    pub gso: Option<Gso>,
}

/// How an outcome differs from the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The trains that the table has.
    pub expected: String,
    /// The trains that came.
    pub came: String,
    /// What is wrong with the bytes of a train that came; empty where they are what its frames make.
    pub bytes: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, came {}", self.expected, self.came)?;
        if self.bytes.is_empty() { Ok(()) } else { write!(f, ": {}", self.bytes) }
    }
}

impl Case {
    /// Compares what came out with what `rules` make of it. Order counts within a flow.
    ///
    /// # Errors
    /// What differs.
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

    /// Whether every frame of the case is in what came out, or one that may stand for it.
    pub fn is_complete(&self, outs: &[Out]) -> bool {
        self.decode(outs).is_ok()
    }

    /// Which frames each of `outs` is made of; where that cannot be said, why, and what could.
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

    /// The frames that `out` is made of, among those that are `free`.
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

/// The trains of each flow, in order.
fn by_flow<'a>(frames: &[Frame], trains: &'a [Train]) -> Vec<Vec<&'a Train>> {
    let flows = frames.iter().map(|frame| frame.flow + 1).max().unwrap_or(0);
    let of = |flow| trains.iter().filter(move |train| frames[train.frames[0]].flow == flow);
    (0..flows).map(|flow| of(flow).collect()).collect()
}

/// Whether `out` is what `frames` make as a train.
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
