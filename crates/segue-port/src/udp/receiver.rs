//! What receiving keeps from call to call.

use crate::messages::{Received, RecvScratch};
use crate::page::{Carver, PageMut};

/// What receiving needs from call to call.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    pub(super) carver: Carver<Received>,
    pub(super) scratch: RecvScratch,
    pub(super) pages: Vec<PageMut>,
    pub(super) small: u32,
    pub(super) overflows: u32,
}

impl Receiver {
    /// How many packets the socket said that it had lost.
    pub(super) fn overflows_mut(&mut self) -> &mut u32 {
        &mut self.overflows
    }
}
