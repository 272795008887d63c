//! USB transfers, as the model accepts and completes them.

use crate::usb::Error;

/// A transfer requested by the host.
#[derive(Debug)]
pub enum TransferRequest {
    /// A transfer to the host, of at most this many bytes.
    In(usize),
    /// A transfer from the host: its bytes, and whether a zero-length packet follows.
    Out(Vec<u8>, bool),
}

/// A completed USB transfer.
#[derive(Debug)]
pub struct Completion {
    /// The number under which the transfer was submitted.
    pub id: u32,
    /// The outcome of the transfer, or its error.
    pub result: Result<Outcome, Error>,
    /// Number of received frames in the transfer.
    pub frames: u64,
}

/// The outcome of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes transferred to the host.
    Received(Vec<u8>),
    /// The number of bytes transferred from the host.
    Sent(usize),
}
