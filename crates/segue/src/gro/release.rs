//! The release of packets and trains: when they become ready, and how they are popped.

use alloc::boxed::Box;

use super::engine::Gro;
use super::pending_first::PendingFirst;
use super::ready::Ready;
use super::rules::{Flush, RefusalReason};
use super::table::Slot;
use crate::packet::{Frag, Frame, Packet, Pool, Start, Tunnels};
use crate::time::Nanos;

/// The next entry to be taken out.
enum Taken<B> {
    First(PendingFirst<B>),
    Other(Popped<B>),
}

/// A packet, a train, or a frame that stayed alone and was never parsed.
#[derive(Debug)]
pub enum Popped<B> {
    /// A parsed packet, or a train.
    Packet(Box<Packet<B>>),
    /// A frame as it was pushed.
    Frame(Frame<B>),
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Returns the next packet or train that is ready. Callers that push frames should use [`Gro::pop_from`]: here a
    /// frame that stayed alone takes a fresh box, which allocates.
    pub fn pop(&mut self) -> Option<Box<Packet<B>>> {
        self.pop_from(&mut Pool::new(0))
    }

    /// Pops a packet like [`Gro::pop`]; a frame that was not joined takes its box from `pool`.
    #[inline]
    pub fn pop_from(&mut self, pool: &mut Pool<B>) -> Option<Box<Packet<B>>> {
        match self.next()? {
            Taken::First(mut first) => first.load(&self.forms, pool).map(|(packet, _)| packet),
            Taken::Other(Popped::Packet(packet)) => Some(packet),
            // The ports of UDP were compared with those of tunnels before the frame became ready.
            Taken::Other(Popped::Frame(frame)) => Some(frame.parse(&Tunnels::NONE, pool)),
        }
    }

    /// Pops a packet like [`Gro::pop`], or a frame that was not joined, for callers that can send it unparsed: it takes
    /// no box, and is not copied anywhere.
    #[inline]
    pub fn pop_unparsed(&mut self) -> Option<Popped<B>> {
        match self.next()? {
            Taken::First(first) => first.into_frame().map(Popped::Frame),
            Taken::Other(other) => Some(other),
        }
    }

    /// Pops everything that is ready like [`Gro::pop_unparsed`], and passes one after the other to `each`.
    #[inline(always)]
    pub fn drain_unparsed(&mut self, mut each: impl FnMut(Popped<B>)) {
        while let Some(taken) = self.next() {
            let popped = match taken {
                Taken::First(first) => first.into_frame().map(Popped::Frame),
                Taken::Other(other) => Some(other),
            };
            let Some(popped) = popped else { return };
            each(popped);
        }
    }

    /// Pops the next entry if it is a frame that was not joined: its bytes go to `take`, with its first header and
    /// whether the port has verified its checksum. Bytes that are passed on in parts are not copied: a copy of bytes
    /// that were just written in other parts stalls the processor.
    #[inline(always)]
    pub(crate) fn pop_lone<R>(&mut self, take: impl FnOnce(Frag<B>, Start, bool) -> R) -> Option<R> {
        let Ready::Round(idx) = self.ready.front_mut()? else { return None };
        if !matches!(self.table.slot_mut(*idx), Some(Slot::First(_))) {
            return None;
        }
        let (slot, next) = self.table.release(*idx);
        match next {
            Some(next) => *idx = next,
            None => {
                self.waiting_rounds -= 1;
                drop(self.ready.pop_front());
            }
        }
        let Slot::First(first) = slot else { return None };
        let taken = take(first.bytes.take()?, first.start(), first.verified);
        *slot = Slot::Free;
        Some(taken)
    }

    /// Returns whether something may be ready to be popped.
    #[inline(always)]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns the next packet.
    #[inline(always)]
    fn next(&mut self) -> Option<Taken<B>> {
        let ready = match self.ready.front_mut()? {
            Ready::Round(idx) => {
                let (slot, next) = self.table.release(*idx);
                match next {
                    Some(next) => *idx = next,
                    None => {
                        self.waiting_rounds -= 1;
                        drop(self.ready.pop_front());
                    }
                }
                match slot {
                    Slot::First(_) => {
                        let Slot::First(first) = slot.take() else { return None };
                        return Some(Taken::First(first));
                    }
                    _ => Ready::of(slot.take(), self.config.profile)?,
                }
            }
            _ => self.ready.pop_front()?,
        };
        match ready {
            Ready::Packet(packet) => Some(Taken::Other(Popped::Packet(packet))),
            Ready::First(first) => Some(Taken::First(first)),
            Ready::Frame(frame) => Some(Taken::Other(Popped::Frame(frame))),
            Ready::Round(_) => None,
        }
    }

    /// Makes everything held ready, oldest first.
    pub fn flush(&mut self) {
        self.flush_because(Flush::PollEnd);
    }

    /// Returns the time at which [`Gro::expire`] has something to do; `None` while nothing is held or the hold time is
    /// 0.
    pub fn deadline(&self) -> Option<Nanos> {
        let oldest = self.table.oldest().filter(|_| self.config.hold > Nanos::ZERO)?;
        Some(self.table.since(oldest) + self.config.hold)
    }

    /// Makes ready the packets that have been held for the hold time or longer.
    pub fn expire(&mut self, now: Nanos) {
        if self.config.hold == Nanos::ZERO {
            return self.flush();
        }
        while let Some(oldest) = self.table.oldest() {
            if self.table.since(oldest) + self.config.hold > now {
                return;
            }
            self.finish(oldest, Flush::Timeout);
        }
    }

    pub(super) fn flush_because(&mut self, why: Flush) {
        let (count, trains) = (self.table.len(), self.held_trains);
        let Some(first) = self.table.flush() else { return };
        self.ready.push_back(Ready::Round(first));
        self.waiting_rounds += 1;
        self.stats.flushes.add_many(why, count as u64);
        self.stats.trains += trains as u64;
        self.stats.segments += (self.held_packets - (count - trains)) as u64;
        (self.held_packets, self.held_trains) = (0, 0);
    }

    /// Frees the slots of earlier rounds that wait to be popped.
    #[cold]
    #[inline(never)]
    pub(super) fn spill(&mut self) {
        if self.waiting_rounds == 0 {
            return;
        }
        self.waiting_rounds = 0;
        for _ in 0..self.ready.len() {
            let Some(ready) = self.ready.pop_front() else { return };
            let Ready::Round(first) = ready else {
                self.ready.push_back(ready);
                continue;
            };
            let mut idx = Some(first);
            while let Some(at) = idx {
                let (slot, next) = self.table.release(at);
                self.ready.extend(Ready::of(slot.take(), self.config.profile));
                idx = next;
            }
        }
    }

    pub(super) fn pass(&mut self, packet: Box<Packet<B>>, why: RefusalReason) {
        self.stats.alone.add(why);
        self.ready.push_back(Ready::Packet(packet));
    }

    /// Takes the train in the slot `idx` out of the table and makes it ready.
    pub(super) fn finish(&mut self, idx: usize, why: Flush) {
        self.stats.flushes.add(why);
        let slot = self.table.remove(idx);
        let packets = match &slot {
            Slot::Held(held) if held.is_train() => held.segs as usize,
            _ => 1,
        };
        self.held_packets -= packets;
        if packets > 1 {
            self.held_trains -= 1;
            self.stats.trains += 1;
            self.stats.segments += packets as u64;
        }
        self.ready.extend(Ready::of(slot, self.config.profile));
    }
}

#[cfg(test)]
mod tests {
    use segue_testkit::build::{Ip, L4, Packet as Built, Tcp, V4};

    use super::super::Config;
    use super::*;
    use crate::packet::Csum;

    /// Length of a frame: two headers of 20 bytes, and payload.
    const LEN: usize = 140;

    /// Pushes a frame of each of two flows.
    fn push_two(gro: &mut Gro<Vec<u8>>, now: Nanos) {
        for src_port in [1, 2] {
            let (flags, options) = (0x10, Vec::new());
            let tcp = Tcp { src_port, dst_port: 80, seq: 1, ack: 1, flags, window: 9, urgent: 0, options };
            let bytes = Built { ip: Ip::V4(V4::new(1, 1, 2)), l4: L4::Tcp(tcp), data: vec![1; LEN - 40] }.bytes();
            let frame = Frame { bytes: Frag::all(bytes), start: Start::Ip, csum: Csum::Verified };
            gro.push_frame(frame, now, &mut Pool::new(8));
        }
    }

    /// Tests that a round waits until its last packet is popped, whichever way.
    #[test]
    fn a_round_waits_until_all_of_it_is_popped() {
        let mut gro: Gro<Vec<u8>> = Gro::new(Config::default());
        for round in 0..3 {
            push_two(&mut gro, Nanos(round));
            gro.flush();
        }
        assert_eq!((gro.waiting_rounds, gro.held()), (3, 0));
        for (is_lone, left) in [(true, 3), (true, 2), (false, 2), (false, 1), (true, 1), (true, 0)] {
            let popped = match is_lone {
                true => gro.pop_lone(|bytes, start, verified| (bytes.len(), start, verified)),
                false => match gro.pop_unparsed() {
                    Some(Popped::Frame(frame)) => Some((frame.len(), frame.start, frame.csum == Csum::Verified)),
                    _ => None,
                },
            };
            assert!(popped == Some((LEN, Start::Ip, true)), "{left}");
            assert_eq!(gro.waiting_rounds, left);
        }
        assert!(gro.pop_unparsed().is_none() && !gro.has_ready());
    }

    #[test]
    fn rounds_that_are_spilled_wait_for_no_slot_and_leave_in_their_order() {
        let mut gro: Gro<Vec<u8>> = Gro::new(Config::default());
        for round in 0..2 {
            push_two(&mut gro, Nanos(round));
            gro.flush();
        }
        gro.spill();
        assert_eq!((gro.waiting_rounds, gro.ready.len()), (0, 4));
        for port in [1, 2, 1, 2] {
            let Some(Popped::Frame(frame)) = gro.pop_unparsed() else { panic!("a frame waits") };
            assert_eq!(frame.bytes.bytes()[20..22], [0, port]);
        }
    }

    /// Tests that packets leave when they have been held for the hold time, not before.
    #[test]
    fn the_deadline_is_that_of_the_oldest_and_without_a_hold_time_there_is_none() {
        let mut gro: Gro<Vec<u8>> = Gro::new(Config { hold: Nanos(10), ..Config::default() });
        assert_eq!(gro.deadline(), None);
        push_two(&mut gro, Nanos(5));
        assert_eq!(gro.deadline(), Some(Nanos(15)));
        gro.expire(Nanos(14));
        assert_eq!((gro.held(), gro.has_ready()), (2, false));
        gro.expire(Nanos(15));
        assert!(gro.has_ready());
        assert_eq!((gro.held(), gro.held_packets(), gro.deadline()), (0, 0, None));
        let mut gro: Gro<Vec<u8>> = Gro::new(Config::default());
        push_two(&mut gro, Nanos(5));
        assert_eq!((gro.held(), gro.deadline()), (2, None));
    }
}
