//! Packets to the guest: buffers are found for each, and it waits where there are too few.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use segue::packet::GsoKind;

use super::super::copy::copy_out;
use super::super::feature;
use super::super::reasons::{GuestDrop, Stop};
use super::super::ring::MOST_DESCRIPTORS;
use super::super::session::{Session, TO_GUEST};
use super::{Connection, ENOUGH_DESCRIPTORS, SOON, VhostPort};
use crate::batch::{TxBatch, TxUnit};
use crate::port::{Drop, Sent};
use crate::vnet;

/// Longest time for which packets are held back for a guest that offers no buffers.
const HOLD: Duration = Duration::from_millis(100);
/// Number of bytes for a guest after which it is notified, although more follow.
const CALL_EVERY: usize = 1 << 17;
/// Largest number of descriptors read for one packet to the guest: a chain with a table in it, or as many in several
/// chains. A guest with buffers of a few bytes would have thousands read for each packet.
const MOST_PIECES: usize = 2 * MOST_DESCRIPTORS;

/// Result of an attempt to pass a packet to the guest.
enum Put {
    Done,
    NoBuffers,
    /// The guest's driver does not accept this kind of train, or its buffers cannot hold it.
    Narrow,
    Dropped(GuestDrop),
    Refused,
}

impl VhostPort {
    /// Passes one packet or train to the guest.
    fn put(&mut self, unit: &TxUnit<'_>) -> Result<Put, Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else {
            return Ok(Put::Dropped(GuestDrop::NotReady));
        };
        if !session.is_ready() {
            return Ok(Put::Dropped(GuestDrop::NotReady));
        }
        let (form, merges) = (session.form(), session.has(feature::MRG_RXBUF));
        let Some(mut header) = vnet::header_of(unit) else { return Ok(Put::Refused) };
        if !session.takes(&self.limits, unit, &header) {
            return Ok(Put::Narrow);
        }
        if !self.limits.csum {
            // A driver without GUEST_CSUM knows no flags (virtio 1.2, section 5.1.6.4.1).
            header.flags = 0;
        }
        let Session { memory, rings, .. } = session;
        let ring = &mut rings[TO_GUEST];
        let len = form.len() + unit.len();
        if let Some(count) = ring.too_few_for(len) {
            self.buffers.take();
            if !ring.listen(count)? {
                return if memory.is_lost() { Err(Stop::MemoryLost) } else { Ok(Put::NoBuffers) };
            }
        }
        // The buffers are found before a byte is written, so that all of a packet is there or nothing.
        self.heads.clear();
        self.pieces.clear();
        let mut room = 0;
        let mut chain = std::mem::take(&mut self.chain);
        let found = loop {
            if room >= len {
                break Put::Done;
            }
            let count = self.heads.len() as u16;
            let is_used_up = ring.waiting(count)? == 0;
            // However long it waits, the guest cannot offer more for it.
            if count > 0 && !merges || is_used_up && ring.is_full_with(count) {
                break unit.gso().map_or(Put::Dropped(GuestDrop::BufferTooSmall), |_| Put::Narrow);
            }
            if is_used_up {
                // In this order: a kick after the last look is an event that is still there when the port waits.
                self.buffers.take();
                if !ring.listen(count)? {
                    ring.found_too_few(count, room);
                    break Put::NoBuffers;
                }
            }
            ring.prefetch(count, memory, len);
            let (head, read) = ring.chain(count, memory, &mut chain)?;
            self.descriptors += read;
            let here: usize = chain.iter().map(|piece| piece.len as usize).sum();
            self.heads.push((head, here.min(len - room) as u32));
            room += here.min(len - room);
            self.pieces.append(&mut chain);
            if self.pieces.len() > MOST_PIECES {
                return Err(Stop::RingLoop);
            }
        };
        self.chain = chain;
        let count = self.heads.len() as u16;
        match found {
            Put::Done => {}
            // Rings that are gone look empty.
            Put::NoBuffers if memory.is_lost() => return Err(Stop::MemoryLost),
            // The one buffer goes back empty: it would be too small again.
            Put::Dropped(_) => {
                ring.put(0, self.heads.first().map_or(0, |first| first.0), 0)?;
                ring.publish(1);
                return Ok(found);
            }
            _ => return Ok(found),
        }
        header.num_buffers = count;
        let emitted = header.emit(form);
        copy_out(memory, &self.pieces, [&emitted[..form.len()], unit.head()].into_iter().chain(unit.pieces()))?;
        if memory.is_lost() {
            return Err(Stop::MemoryLost);
        }
        for (ahead, (head, written)) in (0..).zip(&self.heads) {
            ring.put(ahead, *head, *written)?;
        }
        ring.publish(count);
        if count > 1 {
            self.numbers.merged_packets += 1;
            self.numbers.merged_buffers += u64::from(count);
        }
        Ok(Put::Done)
    }

    /// Returns whether packets wait for buffers, after the guest had none.
    fn holds(&mut self) -> bool {
        self.counters.blocked += 1;
        let since = *self.blocked_since.get_or_insert_with(|| {
            // In this order the time is over when the timer is.
            let now = Instant::now();
            self.hold.set(HOLD);
            now
        });
        if !self.is_stalled && since.elapsed() >= HOLD {
            self.numbers.stalls += 1;
            self.hold.set(Duration::ZERO);
            self.stall();
        }
        !self.is_stalled
    }

    /// Sends the packets of a batch, as long as the guest has buffers for them.
    pub(super) fn send(&mut self, batch: &mut TxBatch) -> Result<Sent, Stop> {
        let mut uncalled = 0;
        let is_changed = std::mem::take(&mut self.is_changed);
        self.resume();
        for entry in 0..batch.entries() {
            loop {
                let Some(unit) = batch.units_of(entry).next() else { break };
                if self.descriptors >= ENOUGH_DESCRIPTORS {
                    self.pause();
                    self.call()?;
                    self.is_changed = is_changed;
                    return Ok(Sent::Blocked);
                }
                let (len, segments, gso) = (unit.len(), unit.segments(), unit.gso());
                let put = self.put(&unit);
                if put.is_err() && self.has_lost_memory() {
                    self.drops.add_many(GuestDrop::Reset, segments as u64);
                    batch.sent_of(entry, 1);
                }
                match put? {
                    Put::Done => {
                        self.unblock();
                        self.counters.tx.add(len, segments);
                        uncalled += len;
                    }
                    Put::NoBuffers if self.holds() => {
                        self.call()?;
                        self.is_changed = is_changed;
                        return Ok(Sent::Blocked);
                    }
                    Put::NoBuffers => self.drops.add_many(GuestDrop::NoBuffers, segments as u64),
                    Put::Narrow if is_changed || self.narrow(gso.map(|gso| gso.kind)) => {
                        self.call()?;
                        return Ok(Sent::Narrowed);
                    }
                    Put::Narrow | Put::Refused => self.counters.drops.add_many(Drop::Refused, segments as u64),
                    Put::Dropped(reason) => self.drops.add_many(reason, segments as u64),
                }
                batch.sent_of(entry, 1);
                if uncalled >= CALL_EVERY {
                    uncalled = 0;
                    self.call()?;
                }
            }
        }
        self.call()?;
        Ok(Sent::All)
    }

    /// Ends a call that has read many descriptors. The next one comes as soon as the other ports had their turns.
    fn pause(&mut self) {
        self.counters.blocked += 1;
        self.is_paused = true;
        self.hold.set(SOON);
    }

    /// Begins a call, after an earlier one was possibly ended by [`VhostPort::pause`].
    fn resume(&mut self) {
        self.descriptors = 0;
        if std::mem::take(&mut self.is_paused) {
            let since = self.blocked_since.filter(|_| !self.is_stalled);
            self.hold.set(since.map_or(Duration::ZERO, |since| HOLD.saturating_sub(since.elapsed()).max(SOON)));
        }
    }

    /// Stops accepting one kind of train, after the guest's driver refused it. Returns whether that changes anything.
    fn narrow(&mut self, kind: Option<GsoKind>) -> bool {
        let before = self.limits;
        if let Some(kind) = kind {
            self.limits.refuse(kind);
        }
        self.limits != before
    }

    /// Notifies the guest of received packets, unless it suppresses notifications.
    fn call(&mut self) -> Result<(), Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else { return Ok(()) };
        let ring = &mut session.rings[TO_GUEST];
        if ring.is_ready() && ring.take_call()? {
            self.numbers.calls += 1;
            self.counters.tx.calls += 1;
            ring.call.iter().try_for_each(|call| self.calls.signal(call.as_fd()))?;
        }
        Ok(())
    }
}
