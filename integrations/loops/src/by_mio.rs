//! Event loop on mio.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::{Endpoint, Side};

/// Runs an endpoint until `stop` is set. mio reports a descriptor once for all queued packets, so that each is drained.
pub fn run(mut end: Endpoint, stop: &AtomicBool) -> io::Result<()> {
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(8));
    for (token, fd) in [end.tun.as_fd(), end.socket.as_fd()].into_iter().enumerate() {
        poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), Token(token), Interest::READABLE)?;
    }
    while !stop.load(Ordering::Relaxed) {
        match poll.poll(&mut events, Some(Duration::from_millis(100))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            end.drain([Side::Tun, Side::Socket][event.token().0])?;
        }
    }
    Ok(())
}
