//! The poll loop of a worker thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use segue_port::{Interest, PollSet};

use crate::board::{Board, Group, Sink};
use crate::knobs::Knobs;
use crate::napi::{IdlePolicy, SleepMode};
use crate::pipeline::{Pipeline, Round};
use crate::stall::Stall;
use crate::sys;

/// Counters of the loop itself.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    rounds: u64,
    full: u64,
    sleeps: u64,
    wake_ups: u64,
    timers: u64,
    busy: u64,
    pauses: u64,
}

impl Counts {
    fn collect(&self, sink: &mut Sink<'_>) {
        for (key, value) in [
            ("polls", self.rounds),
            ("full_budgets", self.full),
            ("sleeps", self.sleeps),
            ("wake_ups", self.wake_ups),
            ("deferrals", self.timers),
            ("busy_polls", self.busy),
            ("pauses", self.pauses),
        ] {
            sink.put("", Group::Worker, key, value);
        }
    }
}

/// Creates the board that [`run`] publishes to: the pipeline's counters and the loop's own.
pub fn board(pipeline: &dyn Pipeline) -> Arc<Board> {
    Arc::new(Board::new(|sink| {
        pipeline.collect(sink);
        Counts::default().collect(sink);
    }))
}

/// Longest time at shutdown for sending received packets, nanoseconds: a blocked port must not delay the end.
const PARTING: u64 = 200_000_000;

/// Runs `pipeline` until `stop` becomes readable, then sends the packets already received. Counters are published to
/// `board` after every round, before the loop sleeps, so that those of an idle worker are exact. Values of `knobs` are
/// in force from the round after they were set.
///
/// `beat` is for a supervisor in another process: it has the number of the round, doubled, and its lowest bit is set
/// while the loop waits. It is never zero from the first round on.
///
/// # Errors
/// Where waiting fails, or a port has become useless (its device is gone). Faults of single packets are counted
/// instead.
pub fn run(
    pipeline: &mut dyn Pipeline,
    stop: BorrowedFd<'_>,
    board: &Board,
    knobs: &Knobs,
    beat: &AtomicU64,
) -> io::Result<()> {
    let mut counts = Counts::default();
    let mut idle = IdlePolicy::default();
    let mut set = PollSet::default();
    let mut stall = Stall::default();
    let mut seen = 0;
    // Whether the round has another reason than the time.
    let mut called = false;
    // A loaded worker must still hear the stop signal: look at it now and then without sleeping.
    const CHECK_EVERY: u64 = 64;
    let tell = |rounds: u64, waits: bool| beat.store((rounds + 1) << 1 | u64::from(waits), Ordering::Relaxed);
    loop {
        tell(counts.rounds, false);
        knobs.follow(&mut seen, |dial| pipeline.tune(dial));
        let round = pipeline.round(segue_port::now())?;
        counts.rounds += 1;
        if called && let Some(pause) = stall.round(pipeline.taken(), || pipeline.sent(), segue_port::now()) {
            counts.pauses += 1;
            tell(counts.rounds, true);
            sys::pause(pause);
        }
        called = round == Round::More;
        let mode = match round {
            Round::More => {
                counts.full += 1;
                SleepMode::Spin
            }
            Round::Idle => idle.sleep_mode(&pipeline.poll_policy(), pipeline.taken(), segue_port::now()),
        };
        if mode == SleepMode::Spin {
            counts.busy += u64::from(round == Round::Idle);
            if counts.rounds % CHECK_EVERY != 0 {
                continue;
            }
        } else {
            counts.sleeps += 1;
        }
        board.publish(|sink| {
            pipeline.collect(sink);
            counts.collect(sink);
        });
        let due = pipeline.deadline().map(|at| at.0.saturating_sub(segue_port::now().0));
        let timeout = match mode {
            SleepMode::Spin => Some(0),
            SleepMode::Timer(nanos) => Some(due.map_or(nanos, |due| due.min(nanos))),
            SleepMode::Ports => due,
        };
        set.clear();
        set.add(&Interest::read(stop));
        // A port that takes packets again wakes the loop in any case.
        let reads = !matches!(mode, SleepMode::Timer(_));
        pipeline.each_interest(&mut |interest| {
            set.add(&Interest { read: interest.read && (reads || interest.write), ..interest });
        });
        tell(counts.rounds, true);
        let woken = wait(&mut set, timeout.map(Duration::from_nanos))?;
        tell(counts.rounds, false);
        match woken {
            Woken::Stop => {
                let parted = part(pipeline);
                board.publish(|sink| {
                    pipeline.collect(sink);
                    counts.collect(sink);
                });
                return parted;
            }
            Woken::Time => counts.timers += u64::from(!reads),
            Woken::Failed => called = true,
            Woken::Ports if mode == SleepMode::Spin => {}
            Woken::Ports => {
                called = true;
                counts.wake_ups += 1;
                // In front of the ports stands the descriptor that stops the loop.
                set.ready().for_each(|place| pipeline.woken(place - 1));
            }
        }
    }
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// The descriptor that was added first is ready.
    Stop,
    /// Descriptors other than the notification are ready.
    Ports,
    /// The timeout of the wait has expired.
    Time,
    /// The wait failed: a signal arrived, or the kernel had no memory; no descriptor was checked.
    Failed,
}

/// Waits until a descriptor is ready or the timeout expires.
fn wait(set: &mut PollSet, timeout: Option<Duration>) -> io::Result<Woken> {
    match set.wait(timeout) {
        Ok(0) => Ok(Woken::Time),
        Ok(_) if set.ready().next() == Some(0) => Ok(Woken::Stop),
        Ok(_) => Ok(Woken::Ports),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL | libc::ENOSYS)) => Err(error),
        Err(_) => Ok(Woken::Failed),
    }
}

/// Sends the packets that the pipeline still holds, for a limited time.
fn part(pipeline: &mut dyn Pipeline) -> io::Result<()> {
    let until = segue_port::now().0.saturating_add(PARTING);
    let mut set = PollSet::default();
    if !pipeline.close() {
        return Ok(());
    }
    loop {
        let now = segue_port::now();
        let round = pipeline.round(now)?;
        let mut blocked = false;
        set.clear();
        pipeline.each_interest(&mut |interest| {
            blocked |= interest.write;
            set.add(&Interest { read: interest.read && interest.write, ..interest });
        });
        if now.0 >= until || (round == Round::Idle && !blocked) {
            return Ok(());
        }
        if blocked {
            wait(&mut set, Some(Duration::from_nanos(until - now.0)))?;
        }
    }
}
