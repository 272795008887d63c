//! The feed: messages reach the router while it runs, and wake it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use super::tables::Message;
use crate::sync::{Arc, Mutex, PipeReader, PipeWriter, Receiver, SyncSender, pipe, sync_channel};

/// Largest number of messages that may wait for the router.
const WAITING: usize = 16;

/// The sending half of a router's feed: each message wakes the router. It may be cloned.
#[derive(Clone, Debug)]
pub struct FeedSender {
    sender: SyncSender<Message>,
    wake: Arc<Mutex<PipeWriter>>,
}

/// The router's end of the feed.
#[derive(Debug)]
pub struct Feed {
    receiver: Receiver<Message>,
    wake: PipeReader,
}

/// Creates a feed and returns both ends.
///
/// # Errors
///
/// Where the process can open no pipe.
pub fn feed() -> io::Result<(FeedSender, Feed)> {
    let (reader, writer) = pipe()?;
    let (sender, receiver) = sync_channel(WAITING);
    Ok((FeedSender { sender, wake: Arc::new(Mutex::new(writer)) }, Feed { receiver, wake: reader }))
}

impl FeedSender {
    /// Sends a message and wakes the router. Returns `false` where the router has ended.
    pub fn send(&self, message: Message) -> bool {
        let woken = || self.wake.lock().is_ok_and(|mut wake| wake.write_all(b"x").is_ok());
        self.sender.send(message).is_ok() && woken()
    }
}

impl Feed {
    /// Returns the next message. Each message has one byte in the pipe, written after it.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let message = self.receiver.try_recv().ok()?;
        let _ = self.wake.read_exact(&mut [0]);
        Some(message)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.waker().as_fd()
    }

    /// Returns the end of the pipe that wakes the router.
    pub(crate) fn waker(&self) -> &PipeReader {
        &self.wake
    }
}
