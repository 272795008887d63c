//! The receive FIFO, and the pending transfers of the two bulk endpoints.

use std::collections::VecDeque;

use segue::time::Nanos;

use crate::frame::rx::{Builder, Header};

/// A received frame with its FCS, in the FIFO.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
    /// A wrong length for the header, set by an injected fault.
    pub(super) said_len: Option<u16>,
}

impl Received {
    /// Returns the number of bytes that the frame takes in the FIFO.
    pub(super) fn room(&self) -> usize {
        (crate::frame::rx::HEADER_LEN + self.bytes.len()).next_multiple_of(4)
    }
}

/// The receive FIFO, and the pending bulk-in transfers.
#[derive(Debug, Default)]
pub(super) struct BulkIn {
    pub(super) pending: VecDeque<(u32, usize)>,
    pub(super) halted: bool,
    pub(super) fifo: VecDeque<Received>,
    pub(super) used: usize,
    /// The transfer being filled, its frames, their bytes, and the time at which it ends without a further frame.
    pub(super) open: Builder,
    pub(super) open_frames: u64,
    pub(super) open_bytes: u64,
    pub(super) closes_at: Nanos,
    pub(super) next_empty: Nanos,
}

impl BulkIn {
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn push(&mut self, frame: Received) {
        self.used += frame.room();
        self.fifo.push_back(frame);
    }

    /// Drops all frames; returns their number.
    pub(super) fn flush(&mut self) -> u64 {
        self.used = 0;
        self.fifo.drain(..).count() as u64 + self.drop_open()
    }

    /// Drops the transfer being filled; returns its number of frames.
    pub(super) fn drop_open(&mut self) -> u64 {
        self.open.bytes.clear();
        self.open_bytes = 0;
        std::mem::take(&mut self.open_frames)
    }

    /// Cancels a pending bulk-in transfer. Frames that were filled into it stay for the next one.
    pub(super) fn cancel(&mut self, id: u32) {
        self.pending.retain(|(pending, _)| *pending != id);
    }
}

/// The pending bulk-out transfers, and the parser's position in the stream of commands and frames.
#[derive(Debug, Default)]
pub(super) struct BulkOut {
    pub(super) pending: VecDeque<(u32, Vec<u8>, bool)>,
    pub(super) halted: bool,
    /// The incomplete command or frame at the end of an earlier transfer.
    pub(super) rest: Vec<u8>,
    /// Number of bytes of the stream before `rest`, modulo the alignment.
    pub(super) offset: usize,
}

impl BulkOut {
    /// Discards an incomplete command or frame.
    pub(super) fn restart(&mut self) {
        self.rest.clear();
        self.offset = 0;
    }
}
