//! The receive FIFO, and the transfers that the host has lent to the two bulk endpoints.

use std::collections::VecDeque;

use segue::time::Nanos;

use crate::frame::rx::{Builder, Header};

/// A received frame with its FCS.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
    /// A length that the header is to say instead of the right one.
    pub(super) said_len: Option<u16>,
}

impl Received {
    /// Bytes that it takes in the FIFO.
    pub(super) fn room(&self) -> usize {
        (crate::frame::rx::HEADER_LEN + self.bytes.len()).next_multiple_of(4)
    }
}

/// The receive FIFO, and the transfers that wait for what is in it.
#[derive(Debug, Default)]
pub(super) struct BulkIn {
    pub(super) pending: VecDeque<(u32, usize)>,
    pub(super) halted: bool,
    pub(super) fifo: VecDeque<Received>,
    pub(super) used: usize,
    /// The transfer that is being filled, its frames and their bytes, and when it ends if nothing more comes.
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

    /// Gives up all frames that it has; how many.
    pub(super) fn flush(&mut self) -> u64 {
        self.used = 0;
        self.fifo.drain(..).count() as u64 + self.drop_open()
    }

    /// Gives up what is in the transfer that is being filled; how many frames.
    pub(super) fn drop_open(&mut self) -> u64 {
        self.open.bytes.clear();
        self.open_bytes = 0;
        std::mem::take(&mut self.open_frames)
    }

    /// Takes a waiting transfer back. What was filled into it already stays for the next one.
    pub(super) fn cancel(&mut self, id: u32) {
        self.pending.retain(|(pending, _)| *pending != id);
    }
}

/// The transfers from the host, and where in the stream of commands and frames it is.
#[derive(Debug, Default)]
pub(super) struct BulkOut {
    pub(super) pending: VecDeque<(u32, Vec<u8>, bool)>,
    pub(super) halted: bool,
    /// A command or frame that began in an earlier transfer.
    pub(super) rest: Vec<u8>,
    /// Bytes of the stream before `rest`, for alignment.
    pub(super) offset: usize,
}

impl BulkOut {
    /// Forgets what was incomplete.
    pub(super) fn restart(&mut self) {
        self.rest.clear();
        self.offset = 0;
    }
}
