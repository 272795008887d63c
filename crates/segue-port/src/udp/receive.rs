//! The receive side of a port.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use segue::wire::ipv4;

use super::receiver::Receiver;
use super::send::is_pending;
use super::{Carries, UdpPort, filter};
use crate::batch::{Burst, RxBatch};
use crate::messages::Received;
use crate::page::{Page, WINDOW};
use crate::port::{Drop, MOST_BYTES, Polled};
use crate::sys::MAX_MESSAGES;

/// Number of bytes below which a receive is small: several are then requested at once.
const SMALL: usize = 2048;
/// Smallest number of bytes of a large receive; such receives are requested one at a time.
const LARGE: usize = 8192;
/// Number of receives requested in one call while they are small. Each needs room for a large one.
const AT_ONCE: usize = 16;
/// Number of receives requested in one call while they are large: the second one shows that no more data is queued,
/// which otherwise needs another call.
const AT_ONCE_LARGE: usize = 2;

/// Largest number of pending errors of earlier datagrams that one poll reads; the next poll follows at once.
const MOST_PENDING: u32 = 1;

const _: () = assert!(AT_ONCE <= MAX_MESSAGES);

impl UdpPort {
    pub(super) fn receive_bursts(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let (mut reads, mut pending) = (0, 0);
        let full = self.counters.rx.bytes + MOST_BYTES as u64;
        let polled = loop {
            if reads >= budget || self.counters.rx.bytes >= full {
                break Polled::More;
            }
            let at_once = match (self.config.offloads.receives(), self.receiver.small) {
                (false, _) => 1,
                (true, 0..=1) => AT_ONCE_LARGE,
                (true, _) => AT_ONCE,
            };
            let wanted = at_once.min(budget - reads);
            let got = if wanted > 1 { self.receive_several(into, wanted) } else { self.receive_one(into) };
            match got {
                Ok(Some(n)) => {
                    self.receiver.failures.end();
                    reads += n;
                    if n < wanted {
                        break Polled::Idle;
                    }
                }
                Ok(None) => break Polled::Starved,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.receiver.failures.end();
                        break Polled::Idle;
                    }
                    // An ICMP error about a datagram that was sent through this socket.
                    _ if is_pending(&error) && pending < MOST_PENDING => {
                        pending += 1;
                        reads += 1;
                    }
                    // Where it waits for more of them, the socket stays readable.
                    _ if is_pending(&error) => break Polled::Idle,
                    _ => {
                        self.flush(into);
                        self.receiver.failures.add(error, &mut self.counters)?;
                        return Ok(Polled::Idle);
                    }
                },
            }
        };
        self.flush(into);
        Ok(polled)
    }

    /// Receives once into the current page. `None` if no page is free.
    fn receive_one(&mut self, into: &mut RxBatch) -> io::Result<Option<usize>> {
        if self.receiver.carver.window().is_none() {
            self.flush(into);
            match into.pages.take() {
                Some(page) => self.receiver.carver.set_page(page),
                None => return Ok(None),
            }
        }
        let Receiver { carver, scratch, .. } = &mut self.receiver;
        let Some(window) = carver.window() else { return Ok(None) };
        self.counters.rx.calls += 1;
        let mut incoming = scratch.begin();
        incoming.window(window);
        incoming.receive(self.rx.as_fd())?;
        let received = scratch.received(0);
        if self.accept(&received) {
            self.receiver.carver.commit(0..received.len, received);
        }
        Ok(Some(1))
    }

    /// Receives up to `wanted` times, each into a window of its own. `None` if no page is free.
    fn receive_several(&mut self, into: &mut RxBatch, wanted: usize) -> io::Result<Option<usize>> {
        self.flush(into);
        let per_page = into.pages.page_len() / WINDOW;
        while self.receiver.pages.len() * per_page < wanted {
            match into.pages.take() {
                Some(page) => self.receiver.pages.push(page),
                None => break,
            }
        }
        let Receiver { scratch, pages, .. } = &mut self.receiver;
        let mut incoming = scratch.begin();
        let mut count = 0;
        for window in pages.iter_mut().flat_map(|page| page.bytes_mut().chunks_exact_mut(WINDOW)).take(wanted) {
            incoming.window(window);
            count += 1;
        }
        if count == 0 {
            return Ok(None);
        }
        self.counters.rx.calls += 1;
        let got = incoming.receive(self.rx.as_fd())?;
        let mut pages = std::mem::take(&mut self.receiver.pages);
        for (first, page) in (0..got).step_by(per_page).zip(pages.drain(..got.div_ceil(per_page))) {
            let page = page.freeze(per_page * WINDOW);
            for index in first..got.min(first + per_page) {
                let received = self.receiver.scratch.received(index);
                let at = (index - first) * WINDOW;
                if self.accept(&received) {
                    match burst(&page, at..at + received.len, &received, self.strips) {
                        Some(burst) => into.bursts.push_back(burst),
                        None => self.counters.drops.add(Drop::Empty),
                    }
                }
            }
        }
        self.receiver.pages = pages;
        Ok(Some(if got == count { wanted } else { got }))
    }

    /// Counts a receive; returns whether it must be delivered.
    fn accept(&mut self, received: &Received) -> bool {
        match received.len {
            0..SMALL => self.receiver.small = self.receiver.small.saturating_add(1),
            LARGE.. => self.receiver.small = 0,
            _ => {}
        }
        let dropped = self.receiver.overflow.after(self.rx.as_fd(), received.len);
        self.counters.drops.add_many(Drop::SocketOverflow, u64::from(dropped));
        let reason = match received.len {
            _ if received.truncated => Drop::Truncated,
            filter::MARKER_LEN if self.config.carries != Carries::Other => Drop::RemcsumNoOuterCsum,
            0 => Drop::Empty,
            _ => {
                self.counters.rx.add(received.len, received.len.div_ceil(segment_len(received)));
                return true;
            }
        };
        self.counters.drops.add(reason);
        false
    }

    /// Returns the number of pages ready for reads.
    #[cfg(test)]
    pub(super) fn receiver_pages(&self) -> usize {
        self.receiver.pages.len() + usize::from(self.receiver.carver.has_page())
    }

    /// Delivers the contents of the current page.
    fn flush(&mut self, into: &mut RxBatch) {
        let (strips, drops) = (self.strips, &mut self.counters.drops);
        self.receiver.carver.flush(|page, range, received| match burst(page, range, &received, strips) {
            Some(burst) => into.bursts.push_back(burst),
            None => drops.add(Drop::Empty),
        });
    }
}

/// Returns the length of each datagram of a receive.
fn segment_len(received: &Received) -> usize {
    received.segment_len.filter(|len| (1..received.len).contains(len)).unwrap_or(received.len).max(1)
}

/// Creates a burst from a receive. With `strips`, an IPv4 header, which the kernel has checked, is removed. `None` if
/// nothing is left.
fn burst(page: &Page, range: Range<usize>, received: &Received, strips: bool) -> Option<Burst> {
    let mut page = page.slice(range);
    let mut segment_len = segment_len(received);
    if strips {
        let header_len = ipv4::header_len(*page.as_ref().first()?);
        page = page.slice(header_len.min(page.len())..page.len());
        segment_len = page.len();
    }
    if page.is_empty() {
        return None;
    }
    Some(Burst {
        page,
        segment_len,
        // The kernel names the sender of every datagram.
        peer: received.peer?,
        local: received.local,
        tos: received.tos,
        ttl: received.ttl,
    })
}
