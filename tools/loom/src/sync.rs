//! Models of the types that threads share: loom's atomics and locks, and a bounded channel and a pipe that are built
//! from them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
pub(crate) use loom::sync::{Arc, Mutex};
use loom::sync::{Condvar, MutexGuard};

/// A value under a lock, and a condition variable for its changes.
#[derive(Debug)]
struct Shared<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Shared<T> {
    fn new(value: T) -> Arc<Shared<T>> {
        Arc::new(Shared { value: Mutex::new(value), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap()
    }

    /// Waits until `ready` accepts the value.
    fn wait(&self, mut ready: impl FnMut(&T) -> bool) -> MutexGuard<'_, T> {
        let mut value = self.lock();
        while !ready(&value) {
            value = self.changed.wait(value).unwrap();
        }
        value
    }
}

/// The sending end of a channel that holds a limited number of messages.
#[derive(Debug)]
pub(crate) struct SyncSender<T> {
    queue: Arc<Shared<VecDeque<T>>>,
    most: usize,
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        SyncSender { queue: Arc::clone(&self.queue), most: self.most }
    }
}

/// The receiving end of a channel.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<VecDeque<T>>>);

pub(crate) fn sync_channel<T>(most: usize) -> (SyncSender<T>, Receiver<T>) {
    let queue = Shared::new(VecDeque::new());
    (SyncSender { queue: Arc::clone(&queue), most }, Receiver(queue))
}

impl<T> SyncSender<T> {
    pub(crate) fn send(&self, message: T) -> Result<(), T> {
        self.queue.wait(|queue| queue.len() < self.most).push_back(message);
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_recv(&self) -> Result<T, ()> {
        let message = self.0.lock().pop_front();
        self.0.changed.notify_all();
        message.ok_or(())
    }
}

/// The read end of a pipe, modelled as a byte count.
#[derive(Debug)]
pub(crate) struct PipeReader(Arc<Shared<usize>>);
/// The write end of a pipe, modelled as a byte count.
#[derive(Debug)]
pub(crate) struct PipeWriter(Arc<Shared<usize>>);

pub(crate) fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let bytes = Shared::new(0);
    Ok((PipeReader(Arc::clone(&bytes)), PipeWriter(bytes)))
}

impl PipeReader {
    /// Waits until a byte can be read, like a poll.
    pub(crate) fn wait(&self) {
        drop(self.0.wait(|bytes| *bytes > 0));
    }
}

impl Read for PipeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.0.wait(|bytes| *bytes > 0);
        let len = into.len().min(*bytes);
        *bytes -= len;
        Ok(len)
    }
}

impl AsFd for PipeReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model has no descriptor")
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *self.0.lock() += bytes.len();
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The router's end of a feed, which waits for the waker instead of a poll.
impl crate::router::feed::Feed {
    pub(crate) fn wait(&self) {
        self.waker().wait();
    }

    pub(crate) fn is_silent(&self) -> bool {
        *self.waker().0.lock() == 0
    }
}
