//! The state of the receive side.

use crate::failures::ReadFailures;
use crate::messages::{Received, RecvScratch};
use crate::page::{Carver, PageMut};

/// The state of the receive side, and its reused memory.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    pub(super) carver: Carver<Received>,
    pub(super) scratch: RecvScratch,
    pub(super) pages: Vec<PageMut>,
    pub(super) small: u32,
    pub(super) overflows: u32,
    pub(super) failures: ReadFailures,
}

impl Receiver {
    /// Returns the socket's count of lost packets at the last receive.
    pub(super) fn overflows_mut(&mut self) -> &mut u32 {
        &mut self.overflows
    }
}
