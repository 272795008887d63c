//! Transfers as the model takes them and gives them back.

use crate::usb::Error;

/// A transfer that is to be done.
#[derive(Debug)]
pub enum TransferRequest {
    /// Receive at most so many bytes.
    In(usize),
    /// Send these, with a zero-length packet behind them or not.
    Out(Vec<u8>, bool),
}

/// A transfer that is done.
#[derive(Debug)]
pub struct Completion {
    /// Its number.
    pub id: u32,
    /// What was received, or how much was sent; or why not.
    pub result: Result<Outcome, Error>,
    /// Frames in what was received.
    pub frames: u64,
}

/// What a transfer did.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It received these.
    Received(Vec<u8>),
    /// It sent so many bytes.
    Sent(usize),
}
