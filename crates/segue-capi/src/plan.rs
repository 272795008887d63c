//! Plan of a batch whose trains are written into the caller's packets: which packet is extended, by which payload, and
//! after which headers.

use std::ops::Range;

use segue::easy::Batch;

/// A train with payload.
pub(crate) struct Planned {
    /// Range of the train's virtio-net header and headers in [`Plan::fronts`].
    pub(crate) front: Range<usize>,
    /// Range of the train's payload in [`Plan::sources`].
    pub(crate) sources: Range<usize>,
}

/// A plan for all trains of a batch. Its memory is kept from batch to batch.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) trains: Vec<Planned>,
    /// Numbers of packets, each with the range of its payload.
    pub(crate) sources: Vec<(usize, Range<usize>)>,
    pub(crate) fronts: Vec<u8>,
    /// Whether the packet with this number is in the train of an earlier one.
    pub(crate) is_merged: Vec<bool>,
}

impl Plan {
    /// Pops all trains of `batch`, which has `count` packets, and plans them.
    pub(crate) fn make(&mut self, batch: &mut Batch<'_, '_>, count: usize) {
        self.trains.clear();
        self.sources.clear();
        self.fronts.clear();
        self.is_merged.clear();
        self.is_merged.resize(count, false);
        while let Some(train) = batch.pop() {
            let (front, source) = (self.fronts.len(), self.sources.len());
            self.fronts.extend_from_slice(train.front());
            self.sources.extend(train.sources());
            let sources = source..self.sources.len();
            // A packet without payload stays what and where it is.
            if !sources.is_empty() {
                self.trains.push(Planned { front: front..self.fronts.len(), sources });
            }
        }
    }
}
