//! The send side of a port: runs of datagrams.
//!
//! Consecutive units of one slot with equal metadata and equal length, of which the last may be shorter, are a *run*. A
//! run is sent as one message that the kernel cuts (UDP_SEGMENT), whether it was one train or many packets. Several
//! runs of one slot go by one `sendmmsg`. Slots are served one after another, which keeps the order within each: a flow
//! has one slot.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use segue::wire::{ipv4, ipv6, udp};

use super::UdpPort;
#[cfg(test)]
use super::schedule::Attempt;
use super::schedule::{Run, RunKey, Schedule};
use super::sockets::set_fragmenting;
use crate::batch::{TxBatch, TxUnit};
use crate::messages::Outgoing;
use crate::port::{Drop, Fallback, OffloadState, Port, Sent};
use crate::sys::{self, MAX_IOV, MAX_MESSAGES};

/// Largest UDP payload of an IPv4 packet, and of an IPv6 packet.
const MAX_PAYLOAD: [usize; 2] = [65_507, 65_527];
/// Number of runs sent datagram by datagram after one of their length was too long, before UDP_SEGMENT is retried.
const OVERSIZE_RUNS: u32 = 1024;

/// Number of sends that are repeated in a row for the errors of earlier datagrams: the socket reports the next one with
/// each that is read from its error queue (`sock_dequeue_err_skb`). From then on, until one succeeds or the call ends,
/// each run is repeated only once, because all may fail for the same reason, such as a missing route.
const PATIENCE: u32 = 8;

/// Time after which UDP_SEGMENT is retried: the interface may have regained its checksum offload. A refusal costs one
/// system call and loses nothing.
const RETRY: Duration = Duration::from_secs(1);

/// Result of sending one message separately.
enum Outcome {
    Sent,
    Blocked,
    Failed(io::Error),
}

impl UdpPort {
    pub(super) fn transmit_runs(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut schedule = std::mem::take(&mut self.schedule);
        schedule.patience = PATIENCE;
        let sent = loop {
            self.make_schedule(&mut schedule, batch);
            match self.send_schedule(&mut schedule, batch) {
                // The rest is scheduled again. This ends, because UDP_SEGMENT is given up only once, and the length
                // from which on it is not used only decreases.
                Ok(Sent::Narrowed) => {}
                sent => break sent,
            }
        };
        self.schedule = schedule;
        sent
    }

    /// Orders the queued units by slot and finds the runs.
    fn make_schedule(&mut self, schedule: &mut Schedule, batch: &mut TxBatch) {
        schedule.order.clear();
        schedule.units.clear();
        schedule.runs.clear();
        let slots = self.slots.len();
        for entry in 0..batch.entries() {
            let waiting = batch.units_of(entry).count();
            if waiting == 0 {
                continue;
            }
            match batch.outer(entry) {
                Some(outer) => {
                    schedule.order.push(((usize::from(outer.slot) % slots) as u16, entry as u32));
                }
                None => {
                    self.counters.drops.add_many(Drop::NoOuter, waiting as u64);
                    batch.sent_of(entry, waiting);
                }
            }
        }
        if !schedule.order.is_sorted() {
            schedule.order.sort_unstable();
        }
        if matches!(self.segment, OffloadState::Refused(_)) && self.retry.is_some_and(|at| Instant::now() >= at) {
            self.segment = OffloadState::On;
        }
        let whole = self.segment == OffloadState::On;
        let most_bytes = MAX_PAYLOAD[usize::from(self.config.peer.is_ipv6())].min(self.max_burst);
        for &(slot, entry) in &schedule.order {
            let Some(outer) = batch.outer(entry as usize) else { continue };
            let key = RunKey { slot: usize::from(slot), to: outer.to, tos: outer.tos, ttl: outer.ttl, df: outer.df };
            for (position, unit) in (batch.position(entry as usize)..).zip(batch.units_of(entry as usize)) {
                let len = unit.len().saturating_sub(usize::from(outer.skip));
                let pieces = 1 + count_pieces(&unit);
                schedule.units.push((entry, position));
                let may_join = whole && len > 0 && schedule.oversize.is_none_or(|(limit, _)| len < limit);
                match schedule.runs.last_mut() {
                    Some(run)
                        if may_join
                            && !run.closed
                            && run.key == key
                            && len <= run.len
                            && run.to - run.from < self.max_segments
                            && run.bytes + len <= most_bytes
                            && run.pieces + pieces <= MAX_IOV =>
                    {
                        run.to += 1;
                        run.bytes += len;
                        run.pieces += pieces;
                        run.closed = len < run.len;
                    }
                    _ => {
                        let from = schedule.units.len() - 1;
                        let closed = !may_join;
                        schedule.runs.push(Run { key, from, to: from + 1, len, bytes: len, pieces, closed });
                    }
                }
            }
        }
    }

    fn send_schedule(&mut self, schedule: &mut Schedule, batch: &mut TxBatch) -> io::Result<Sent> {
        let at_once = if !self.config.offloads.sends() { 1 } else { MAX_MESSAGES };
        #[cfg(test)]
        let at_once = if self.inject.is_some() { 1 } else { at_once };
        let mut at = 0;
        while let Some(first) = schedule.runs.get(at).copied() {
            let same =
                |run: &&Run| (run.key.slot, run.key.to, run.key.df) == (first.key.slot, first.key.to, first.key.df);
            let count = schedule.runs[at..].iter().take(at_once).take_while(same).count();
            let group = &schedule.runs[at..at + count];
            let (done, error) = self.send_group(schedule, group, batch);
            for run in &group[..done] {
                self.settle(schedule, run, batch);
            }
            at += done;
            let Some(error) = error else { continue };
            let Some(run) = schedule.runs.get(at).copied() else { continue };
            at += 1;
            let before = (self.segment, schedule.oversize);
            if self.recover(schedule, run, error, batch)? == Sent::Blocked {
                self.counters.blocked += 1;
                self.blocked_slot = run.key.slot;
                return Ok(Sent::Blocked);
            }
            if (self.segment, schedule.oversize) != before {
                return Ok(Sent::Narrowed);
            }
        }
        if let Some((_, left)) = &mut schedule.oversize {
            *left = left.saturating_sub(schedule.runs.len() as u32);
        }
        schedule.oversize = schedule.oversize.filter(|(_, left)| *left > 0);
        Ok(Sent::All)
    }

    /// Sends runs of one slot. Returns the number of runs sent, and the error of the next one.
    fn send_group(&mut self, schedule: &Schedule, group: &[Run], batch: &TxBatch) -> (usize, Option<io::Error>) {
        let Some(first) = group.first() else { return (0, None) };
        if let Err(error) = self.set_df(first.key) {
            return (0, Some(error));
        }
        #[cfg(test)]
        if let Some(errno) = self.inject.and_then(|inject| inject(Attempt { segments: first.to - first.from })) {
            self.counters.tx.calls += 1;
            return (0, Some(io::Error::from_raw_os_error(errno)));
        }
        let slot = &self.slots[first.key.slot];
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut out = scratch.begin();
        for run in group {
            out.message();
            for &(entry, position) in &schedule.units[run.from..run.to] {
                add_pieces(&mut out, &batch.unit_at(entry as usize, position));
            }
            if run.to - run.from > 1 {
                // Runs of more than one datagram have datagrams of less than 64 KiB.
                out.control(libc::SOL_UDP, sys::UDP_SEGMENT, run.len as u16);
            }
            let v4 = self.config.peer.is_ipv4();
            if run.key.tos != self.config.tos {
                let (level, kind) =
                    if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
                out.control(level, kind, i32::from(run.key.tos));
            }
            if run.key.ttl != 0 && run.key.ttl != self.config.ttl {
                let (level, kind) =
                    if v4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) };
                out.control(level, kind, i32::from(run.key.ttl));
            }
        }
        let peer = self.peers.get(usize::from(first.key.to)).copied().unwrap_or(self.config.peer);
        let to = slot.names_peer.then_some(peer);
        let mut done = 0;
        let mut error = None;
        while done < group.len() && error.is_none() {
            self.counters.tx.calls += 1;
            match out.send(slot.fd.as_fd(), to, done) {
                Ok(n) => done += n,
                Err(e) => error = Some(e),
            }
        }
        self.scratch = scratch;
        (done, error)
    }

    /// Counts a run as sent.
    fn settle(&mut self, schedule: &Schedule, run: &Run, batch: &mut TxBatch) {
        self.counters.tx.add(run.bytes, run.to - run.from);
        for &(entry, _) in &schedule.units[run.from..run.to] {
            batch.sent_of(entry as usize, 1);
        }
    }

    /// Counts a run as dropped.
    fn lose(&mut self, schedule: &Schedule, run: Run, reason: Drop, batch: &mut TxBatch) {
        self.counters.drops.add_many(reason, (run.to - run.from) as u64);
        for &(entry, _) in &schedule.units[run.from..run.to] {
            batch.sent_of(entry as usize, 1);
        }
    }

    /// Retries one run, then its datagrams one by one, so that no packet is lost to a refusal of UDP_SEGMENT.
    fn recover(
        &mut self,
        schedule: &mut Schedule,
        run: Run,
        error: io::Error,
        batch: &mut TxBatch,
    ) -> io::Result<Sent> {
        if is_full(&error) {
            return Ok(Sent::Blocked);
        }
        if let Some(reason) = lost_by_kernel(&error) {
            self.lose(schedule, run, reason, batch);
            return Ok(Sent::All);
        }
        if run.to - run.from == 1 {
            return self.retry_single(schedule, run, error, batch);
        }
        let error = match self.send_again(schedule, run, error, batch) {
            Outcome::Sent => return Ok(Sent::All),
            Outcome::Blocked => return Ok(Sent::Blocked),
            Outcome::Failed(error) => error,
        };
        let sent_before = self.counters.tx.segments;
        let mut result = Sent::All;
        for index in run.from..run.to {
            let unit = batch.unit_at(schedule.units[index].0 as usize, schedule.units[index].1);
            let len = unit.len() - unit.outer().map_or(0, |outer| usize::from(outer.skip));
            let single = Run { from: index, to: index + 1, len, bytes: len, ..run };
            let outcome = match self.try_run(schedule, single, batch) {
                Outcome::Sent => Sent::All,
                Outcome::Blocked => Sent::Blocked,
                Outcome::Failed(error) => self.retry_single(schedule, single, error, batch)?,
            };
            if outcome == Sent::Blocked {
                result = Sent::Blocked;
                break;
            }
        }
        if self.counters.tx.segments > sent_before {
            self.note_refusal(schedule, run, &error);
        }
        Ok(result)
    }

    /// Records that UDP_SEGMENT refused a run whose datagrams could be sent one by one.
    fn note_refusal(&mut self, schedule: &mut Schedule, run: Run, error: &io::Error) {
        let (errno, fallback) = match error.raw_os_error() {
            Some(errno @ libc::EIO) => (errno, Fallback::UdpSegmentIo),
            // Older kernels say so of datagrams that exceed the path MTU too.
            Some(errno @ libc::EINVAL) if !self.exceeds_path(run) => (errno, Fallback::UdpSegmentInvalid),
            Some(libc::EMSGSIZE | libc::EINVAL) => {
                self.counters.fallbacks.add(Fallback::UdpSegmentSize);
                schedule.oversize = Some((run.len, OVERSIZE_RUNS));
                return;
            }
            _ => return,
        };
        self.counters.fallbacks.add(fallback);
        self.segment = OffloadState::Refused(errno);
        if self.retry.is_none() {
            notice!(warn, id = "offload", peer = %self.config.peer, %error, "UDP_SEGMENT is refused; datagrams are sent one by one");
        }
        self.retry = Some(Instant::now() + RETRY);
    }

    /// Returns whether the datagrams of a run are longer than the path takes in one packet.
    fn exceeds_path(&self, run: Run) -> bool {
        let ip_len = if self.config.peer.is_ipv4() { ipv4::MIN_LEN } else { ipv6::LEN };
        self.path_mtu(run.key.to).is_some_and(|mtu| ip_len + udp::LEN + run.len > mtu)
    }

    /// Retries a datagram whose send failed if the error may belong to an earlier one; otherwise drops and counts it.
    fn retry_single(
        &mut self,
        schedule: &mut Schedule,
        run: Run,
        error: io::Error,
        batch: &mut TxBatch,
    ) -> io::Result<Sent> {
        let error = match self.send_again(schedule, run, error, batch) {
            Outcome::Sent => return Ok(Sent::All),
            Outcome::Blocked => return Ok(Sent::Blocked),
            Outcome::Failed(error) => error,
        };
        let reason = match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => lost_by_kernel(&error).unwrap_or(Drop::QueueFull),
            Some(libc::EMSGSIZE) => Drop::TooBig,
            Some(
                libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL,
            ) => Drop::Unreachable,
            Some(libc::EPERM | libc::EACCES) => Drop::Denied,
            Some(libc::EBADF | libc::ENOTSOCK) => return Err(error),
            _ => Drop::Refused,
        };
        self.counters.drops.add(reason);
        batch.sent_of(schedule.units[run.from].0 as usize, 1);
        Ok(Sent::All)
    }

    /// Sends one run again while its error may be that of an earlier datagram, to another peer too: EMSGSIZE of a train
    /// may say that another path takes less. Returns the last error, at once for one of another kind.
    fn send_again(&mut self, schedule: &mut Schedule, run: Run, error: io::Error, batch: &mut TxBatch) -> Outcome {
        let mut outcome = Outcome::Failed(error);
        for repeat in 0.. {
            match &outcome {
                Outcome::Failed(error) if is_pending(error) && (repeat == 0 || schedule.patience > 0) => {}
                _ => break,
            }
            schedule.patience = schedule.patience.saturating_sub(1);
            outcome = self.try_run(schedule, run, batch);
            if let Outcome::Sent = outcome {
                self.counters.fallbacks.add(Fallback::PendingError);
                schedule.patience = PATIENCE;
            }
        }
        outcome
    }

    /// Sends one run in a separate call.
    fn try_run(&mut self, schedule: &Schedule, run: Run, batch: &mut TxBatch) -> Outcome {
        match self.send_group(schedule, &[run], batch) {
            (1, _) => {
                self.settle(schedule, &run, batch);
                Outcome::Sent
            }
            (_, Some(error)) if is_full(&error) => Outcome::Blocked,
            (_, Some(error)) => Outcome::Failed(error),
            // Without an error the whole group went.
            (_, None) => Outcome::Blocked,
        }
    }

    /// Sets DF on the slot's socket as the run requires. Runs seldom differ in it: TCP and most UDP senders set DF on
    /// everything.
    fn set_df(&mut self, key: RunKey) -> io::Result<()> {
        let slot = &mut self.slots[key.slot];
        if slot.df != Some(key.df) {
            set_fragmenting(slot.fd.as_fd(), self.config.peer.is_ipv4(), key.df)?;
            slot.df = Some(key.df);
        }
        Ok(())
    }
}

/// Returns whether the error means that the socket's send buffer is full; the socket becomes writable when it has room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Returns the reason why the kernel dropped a packet passed to it for sending: its transmit queue was full, as for
/// every other sender, or it had no memory. To wait would be a spin, because the socket stays writable.
fn lost_by_kernel(error: &io::Error) -> Option<Drop> {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => Some(Drop::QueueFull),
        Some(libc::ENOMEM) => Some(Drop::NoMemory),
        _ => None,
    }
}

/// Returns whether the error may stem from an ICMP message about an earlier datagram (`icmp_err_convert` and
/// `icmpv6_err_convert` of Linux): a socket that is connected or has an error queue reports it once, in place of the
/// next call.
pub(super) fn is_pending(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EACCES
                | libc::EOPNOTSUPP
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EMSGSIZE
        )
    )
}

/// Returns the number of pieces of a unit's payload, counted only if there may be several.
fn count_pieces(unit: &TxUnit<'_>) -> usize {
    if unit.is_in_one_piece() { 1 } else { unit.pieces().count() }
}

fn add_pieces<'a>(out: &mut Outgoing<'_, 'a>, unit: &TxUnit<'a>) {
    let skip = unit.outer().map_or(0, |outer| usize::from(outer.skip));
    out.piece(unit.head().get(skip..).unwrap_or(&[]));
    for piece in unit.pieces() {
        out.piece(piece);
    }
}
