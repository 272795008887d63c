//! The feed of messages to a running router, each of which wakes it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use super::tables::Message;
use crate::sync::{Arc, Mutex, PipeReader, PipeWriter, Receiver, SyncSender, pipe, sync_channel};

/// Largest number of unread messages in the feed.
const WAITING: usize = 16;

/// The sending half of a router's feed: each message wakes the router. It may be cloned.
#[derive(Clone, Debug)]
pub struct FeedSender {
    sender: SyncSender<Message>,
    wake: Arc<Mutex<PipeWriter>>,
}

/// The receiving half of the feed, for the router.
#[derive(Debug)]
pub struct Feed {
    receiver: Receiver<Message>,
    wake: PipeReader,
}

/// Creates a feed and returns its sending and receiving half.
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
    /// Returns the next message to the router. Each message has one byte in the pipe, written after it.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let message = self.receiver.try_recv().ok()?;
        let _ = self.wake.read_exact(&mut [0]);
        Some(message)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.waker().as_fd()
    }

    /// Returns the readable end of the pipe that wakes the router.
    pub(crate) fn waker(&self) -> &PipeReader {
        &self.wake
    }
}
