//! The directions of a device as used by tasks of a tokio runtime.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use segue::easy::{Joiner, Packets};
use segue::reason::Counts;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Tun;
use super::device::{Inward, Outward, put};
use crate::port::Drop;

/// The reading half of a [`Tun`], from the device to a task; see [`Tun::into_async`].
#[derive(Debug)]
pub struct AsyncTunReader {
    file: Arc<AsyncFd<File>>,
    outward: Outward,
}

impl AsyncTunReader {
    /// Waits until the device is readable, reads once, and returns the packets, like [`Tun::read`].
    ///
    /// A call that is dropped while it waits has read nothing.
    ///
    /// # Errors
    /// As for [`Tun::read`], but for [`io::ErrorKind::WouldBlock`]. A device that is deleted ends a call that waits
    /// (`EBADFD`).
    pub async fn read(&mut self) -> io::Result<Packets<'_>> {
        let AsyncTunReader { file, outward } = self;
        // A device that is deleted has an error, and is neither readable nor closed (`tun_chr_poll`).
        let interest = Interest::READABLE | Interest::ERROR;
        let len = loop {
            // This wait lets other tasks run after many reads; the next one is over at once, and says what is ready.
            file.async_io(interest, |_| Ok(())).await?;
            let mut ready = file.ready(interest).await?;
            let is_deleted = ready.ready().is_error();
            match ready.try_io(|file| file.get_ref().read(&mut outward.buffer)) {
                Ok(len) => break len?,
                // The kernel wakes a reader once, a moment before its reads fail (`tun_detach_all`).
                Err(_) if is_deleted => return Err(io::Error::from_raw_os_error(libc::EBADFD)),
                Err(_) => {}
            }
        };
        Ok(outward.packets(len))
    }

    /// Returns the number of packets and trains that were read but refused, as [`Tun::unread`] does.
    pub fn unread(&self) -> u64 {
        self.outward.unread
    }
}

impl AsFd for AsyncTunReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The writing half of a [`Tun`], from a task to the device; see [`Tun::into_async`].
#[derive(Debug)]
pub struct AsyncTunWriter {
    file: Arc<AsyncFd<File>>,
    inward: Inward,
}

impl AsyncTunWriter {
    /// Writes the packets of a batch like [`Tun::write`], and waits while the device is full.
    ///
    /// A call that is dropped while it waits has written the trains before.
    ///
    /// # Errors
    /// As for [`Tun::write`], but for [`io::ErrorKind::WouldBlock`].
    pub async fn write<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        let AsyncTunWriter { file, inward } = self;
        let mut writes = inward.begin(packets);
        while let Some(train) = writes.batch.pop() {
            let segments = train.segments();
            let result = file.async_io(Interest::WRITABLE, |file| put(file, &train)).await;
            writes.settle(segments, result)?;
        }
        Ok(writes.done)
    }

    /// Returns the joiner, for its counters and its limits.
    pub fn joiner(&mut self) -> &mut Joiner {
        &mut self.inward.joiner
    }

    /// Returns the numbers of packets that the device did not take, by reason, as [`Tun::drops`] does.
    pub fn drops(&self) -> &Counts<Drop> {
        &self.inward.drops
    }
}

impl AsFd for AsyncTunWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Tun {
    /// Returns the two directions of the device for tasks of a tokio runtime, with which its descriptor is registered.
    /// Each may be used by one task at a time, on any thread of the runtime.
    ///
    /// ```no_run
    /// use segue_port::tun::{Tun, TunConfig};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut reader, mut writer) = Tun::open(&TunConfig::ip("vpn0"), [1, 2])?.into_async()?;
    /// for packet in reader.read().await?.iter() {
    ///     println!("{} bytes", packet.len()); // in one task
    /// }
    /// writer.write([&[0x45; 20][..]]).await?; // in another
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Where the descriptor cannot be registered (epoll).
    ///
    /// # Panics
    /// Outside of a runtime, or in one without I/O.
    #[allow(deprecated, reason = "what came after `new` is unsafe for descriptors that can go; that of a File cannot")]
    pub fn into_async(self) -> io::Result<(AsyncTunReader, AsyncTunWriter)> {
        let (file, outward, inward) = self.into_parts();
        let file = Arc::new(AsyncFd::new(file)?);
        Ok((AsyncTunReader { file: Arc::clone(&file), outward }, AsyncTunWriter { file, inward }))
    }
}
