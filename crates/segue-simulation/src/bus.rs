//! The model of the chip on a simulated USB host controller, in simulated time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

use segue::time::Nanos;

use segue_lan78xx::frame::tx::{COMMAND_LEN, Command, padding};
use segue_lan78xx::model::{Completion, Model, Outcome, TransferRequest};
use segue_lan78xx::regs::{VENDOR, endpoint};
use segue_lan78xx::usb::{Done, Error, Lent, Setup, Speed, Transfer, Transport};

/// Shortest time between two interrupts of an xHCI controller, as Linux sets it by default, nanoseconds.
pub(super) const MODERATION: u64 = 40_000;
/// Payload rate of a SuperSpeed bulk pipe, bytes a microsecond.
pub(super) const PIPE: u64 = 400;
/// Time of a byte on a wire of 1 Gbit/s, nanoseconds.
pub(super) const BYTE_TIME: u64 = 8;
/// Overhead of a frame on the wire in bytes: FCS, preamble and interframe gap.
pub(super) const WIRE_OVERHEAD: usize = 24;
/// Capacity of the chip's transmit FIFO, as time on the wire, nanoseconds.
const FIFO: u64 = 12_288 * BYTE_TIME;

/// The contents of an outgoing transfer.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Number of packets as passed by the stack, a train counted as one.
    packets: u64,
    /// Number of frames on the wire.
    frames: u64,
    /// Length of the transfer, bytes.
    bytes: u64,
    /// Number of bytes that have occupied the wire, with preambles, FCS and gaps.
    wire: u64,
}

fn load(bytes: &[u8]) -> Load {
    let mut load = Load { bytes: bytes.len() as u64, ..Load::default() };
    let mut at = 0;
    while let Some(command) = bytes.get(at..).and_then(Command::parse) {
        let len = command.len as usize;
        let head = crate::frames::TCP_HEAD;
        let frames = command.mss.map_or(1, |mss| len.saturating_sub(head).div_ceil(usize::from(mss)).max(1));
        load.packets += 1;
        load.frames += frames as u64;
        load.wire += (len + head * (frames - 1) + WIRE_OVERHEAD * frames) as u64;
        at += COMMAND_LEN + len;
        at += padding(at);
    }
    load
}

/// Counters of transfers over the bus.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) submitted_in: u64,
    pub(super) submitted_out: u64,
    /// Number of bytes of outgoing transfers, counted at submission.
    pub(super) bytes_out: u64,
    pub(super) packets_out: u64,
    /// Number of packets in outgoing transfers whose completion the host has seen.
    pub(super) packets_done: u64,
    pub(super) bytes_done: u64,
    pub(super) completed: u64,
    pub(super) interrupts: u64,
}

/// The simulated host controller with the chip connected to it.
#[derive(Debug)]
pub(super) struct Bus {
    pub(super) model: Model,
    pub(super) now: u64,
    pub(super) counts: Counts,
    /// Outgoing transfers: the time at which each reached the chip, and its number of frames.
    pub(super) sent: Vec<(u64, u64)>,
    next: u32,
    waiting: BTreeMap<u32, Transfer<Lent>>,
    loads: BTreeMap<u32, Load>,
    /// Outgoing transfers that wait for the pipe.
    out: VecDeque<(u64, u32, Vec<u8>, bool)>,
    out_free: u64,
    /// Time at which the wire will have sent all frames queued in the chip.
    wire_free: u64,
    /// Completed transfers that the host has not seen, because the controller has not interrupted it yet.
    events: VecDeque<(u64, Transfer<Done>, Load)>,
    last_interrupt: u64,
    reapable: VecDeque<Transfer<Done>>,
    /// Whether the driver is being set up: completed transfers can then be reaped without an interrupt.
    pub(super) setting_up: bool,
}

impl Bus {
    pub(super) fn new(model: Model) -> Bus {
        Bus {
            model,
            now: 1,
            counts: Counts::default(),
            sent: Vec::new(),
            next: 0,
            waiting: BTreeMap::new(),
            loads: BTreeMap::new(),
            out: VecDeque::new(),
            out_free: 0,
            wire_free: 0,
            events: VecDeque::new(),
            last_interrupt: 0,
            reapable: VecDeque::new(),
            setting_up: true,
        }
    }

    /// Returns the time of the next event that needs no action of the host.
    pub(super) fn next_event(&self) -> Option<u64> {
        let out = self.out.front().map(|(at, ..)| *at);
        [self.model.deadline().map(|at| at.0), out].into_iter().flatten().min()
    }

    /// Moves simulated time to `now` and processes the events due by then.
    pub(super) fn step(&mut self, now: u64) {
        self.now = self.now.max(now);
        while self.out.front().is_some_and(|(at, ..)| *at <= self.now)
            && let Some((_, id, bytes, zero)) = self.out.pop_front()
        {
            let load = self.loads.get(&id).copied().unwrap_or_default();
            self.sent.push((self.now, load.frames));
            self.wire_free = self.wire_free.max(self.now) + load.wire * BYTE_TIME;
            self.model.submit(id, endpoint::BULK_OUT, TransferRequest::Out(bytes, zero));
        }
        self.model.advance(Nanos(self.now));
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(Completion { id, result, .. }) = self.model.done() {
            let Some(mut transfer) = self.waiting.remove(&id) else { continue };
            let load = self.loads.remove(&id).unwrap_or_default();
            let mut at = self.now;
            let result = result.map(|outcome| match outcome {
                Outcome::Received(bytes) => {
                    let room = transfer.incoming();
                    let len = bytes.len().min(room.len());
                    room[..len].copy_from_slice(&bytes[..len]);
                    bytes.len()
                }
                Outcome::Sent(len) => {
                    // The last byte enters the FIFO when there is room for it, and not before the pipe has carried it.
                    at = (self.now + len as u64 * 1000 / PIPE).max(self.wire_free.saturating_sub(FIFO));
                    len
                }
            });
            let done = transfer.complete(result);
            if self.setting_up {
                self.reapable.push_back(done);
            } else {
                let place = self.events.partition_point(|(before, ..)| *before <= at);
                self.events.insert(place, (at, done, load));
            }
        }
    }

    /// Returns the time of the controller's next interrupt.
    pub(super) fn interrupt_at(&self) -> Option<u64> {
        self.events.front().map(|(at, ..)| (*at).max(self.last_interrupt + MODERATION))
    }

    /// Delivers an interrupt: all completed transfers become reapable. Returns their number.
    pub(super) fn interrupt(&mut self) -> u64 {
        self.last_interrupt = self.now;
        self.counts.interrupts += 1;
        let mut shown = 0;
        while self.events.front().is_some_and(|(at, ..)| *at <= self.now)
            && let Some((_, done, load)) = self.events.pop_front()
        {
            self.reapable.push_back(done);
            self.counts.packets_done += load.packets;
            self.counts.bytes_done += load.bytes;
            shown += 1;
        }
        self.counts.completed += shown;
        shown
    }

    /// Returns the number of outgoing transfers whose completion the host has not seen.
    pub(super) fn lent_out(&self) -> usize {
        self.loads.len() + self.events.iter().filter(|(_, _, load)| load.packets > 0).count()
    }
}

impl Transport for Bus {
    fn identity(&self) -> (u16, u16) {
        (VENDOR, self.model.config().chip.product())
    }

    fn speed(&self) -> Speed {
        self.model.config().speed
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        let answer = self.model.control(setup, &[])?;
        let len = answer.len().min(into.len());
        into[..len].copy_from_slice(&answer[..len]);
        Ok(len)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        self.model.control(setup, data).map(drop)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        let request = transfer.request();
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        if request.endpoint & 0x80 == 0 {
            let bytes = transfer.outgoing().to_vec();
            let load = load(&bytes);
            self.counts.submitted_out += 1;
            self.counts.bytes_out += load.bytes;
            self.counts.packets_out += load.packets;
            self.loads.insert(id, load);
            let start = self.out_free.max(self.now);
            self.out_free = start + load.bytes * 1000 / PIPE;
            self.out.push_back((start, id, bytes, request.zero_packet));
        } else {
            self.counts.submitted_in += u64::from(request.endpoint == endpoint::BULK_IN);
            self.model.submit(id, request.endpoint, TransferRequest::In(request.len));
        }
        self.waiting.insert(id, transfer);
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if self.setting_up {
            self.model.advance(Nanos(self.now));
            self.collect();
        }
        self.reapable.pop_front()
    }

    fn cancel(&mut self, endpoint: u8) {
        let ids: Vec<u32> =
            self.waiting.iter().filter(|(_, one)| one.request().endpoint == endpoint).map(|(id, _)| *id).collect();
        for id in ids {
            self.out.retain(|(_, queued, ..)| *queued != id);
            self.model.cancel(id);
            self.loads.remove(&id);
            if let Some(transfer) = self.waiting.remove(&id) {
                self.reapable.push_back(transfer.complete(Err(Error::Cancelled)));
            }
        }
    }

    fn clear_halt(&mut self, _: u8) -> Result<(), Error> {
        // No endpoint halts: the model injects no faults.
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.model.is_gone()
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    fn sleep(&mut self, nanos: u64) {
        self.now += nanos;
        self.model.advance(Nanos(self.now));
        self.collect();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
