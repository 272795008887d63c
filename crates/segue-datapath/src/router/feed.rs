//! The feed of messages to a running router, each of which wakes it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use super::tables::Message;
use crate::sync::{Arc, Mutex, PipeReader, PipeWriter, Receiver, SyncSender, pipe, sync_channel};

/// Largest number of unread messages in the feed.
const WAITING: usize = 16;

/// Pause after a byte could not be written to the pipe.
const FAILED_PAUSE: Duration = Duration::from_millis(10);

/// The sending half of a router's feed: each message wakes the router. It may be cloned.
#[derive(Clone, Debug)]
pub struct FeedSender {
    sender: SyncSender<Message>,
    pub(super) wake: Arc<Mutex<PipeWriter>>,
}

/// The receiving half of the feed, for the router.
#[derive(Debug)]
pub struct Feed {
    receiver: Receiver<Message>,
    pub(super) wake: PipeReader,
    /// Number of messages already taken whose bytes are still to be read.
    owed: usize,
}

/// Creates a feed and returns its sending and receiving half.
///
/// # Errors
///
/// Where the process can open no pipe.
pub fn feed() -> io::Result<(FeedSender, Feed)> {
    let (reader, writer) = pipe()?;
    let (sender, receiver) = sync_channel(WAITING);
    Ok((FeedSender { sender, wake: Arc::new(Mutex::new(writer)) }, Feed { receiver, wake: reader, owed: 0 }))
}

impl FeedSender {
    /// Wakes the router and sends it a message, as soon as the kernel has memory for that. Returns `false` where the
    /// router has ended.
    pub fn send(&self, message: Message) -> bool {
        while let Err(error) = self.ring() {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return false;
            }
            thread::sleep(FAILED_PAUSE);
        }
        self.sender.send(message).is_ok()
    }

    fn ring(&self) -> io::Result<()> {
        self.wake.lock().map_err(|_| io::ErrorKind::BrokenPipe)?.write_all(b"x")
    }
}

impl Feed {
    /// Returns the next message to the router. Each message has one byte in the pipe, written before it.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let message = self.receiver.try_recv().ok();
        self.owed += usize::from(message.is_some());
        // The bytes are there already, so that this does not block. One that cannot be read keeps the descriptor ready,
        // and is read by a later call.
        while self.owed > 0 && self.wake.read(&mut [0]).is_ok() {
            self.owed -= 1;
        }
        message
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.waker().as_fd()
    }

    /// Returns the readable end of the pipe that wakes the router.
    pub(crate) fn waker(&self) -> &PipeReader {
        &self.wake
    }
}
