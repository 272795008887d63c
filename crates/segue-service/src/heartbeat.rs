//! The heartbeat: each thread of an instance counts its rounds in memory shared with its supervisor.
//!
//! The supervisor ([`crate::sandbox`]) ends an instance one of whose threads uses the processor time of [`Limits`]
//! without a round, or neither waits nor makes progress for its wall time there. Wall time counts only as far as the
//! supervisor itself ran: on a machine that stood still, or that gave the instance no processor time, no healthy
//! instance ends.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use segue_host::memory::SharedNumbers;
use segue_host::sys::{Pid, ThreadClock};

/// A thread with a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The packet loop of the first worker, which is the main thread.
    Packets,
    /// The server of the control socket.
    Control,
    /// The thread that waits for signals and for the service.
    Signals,
    /// The follower of the kernel's routes.
    Routes,
    /// The watch of tunnels for HEALTH.
    Health,
    /// The follower of what the in-kernel path depends on.
    Fastpath,
    /// The follower of the settings of an adapter's interface.
    Interface,
    /// The packet loop of a further worker, from 1 on.
    Worker(u16),
}

impl Thread {
    /// The threads that an instance has once at most, in the order of the numbers.
    const ALL: [Thread; 7] = [
        Thread::Packets,
        Thread::Control,
        Thread::Signals,
        Thread::Routes,
        Thread::Health,
        Thread::Fastpath,
        Thread::Interface,
    ];

    /// Returns the packet loop of a worker, from 0 on.
    pub fn of_worker(worker: u16) -> Thread {
        if worker == 0 { Thread::Packets } else { Thread::Worker(worker) }
    }

    /// Returns every thread that an instance with `workers` workers may have, in the order of the numbers.
    pub(crate) fn all(workers: u16) -> impl Iterator<Item = Thread> {
        Thread::ALL.into_iter().chain((1..workers).map(Thread::Worker))
    }

    fn is_packet_loop(self) -> bool {
        matches!(self, Thread::Packets | Thread::Worker(_))
    }

    /// Returns the index of the thread's number.
    pub(crate) fn place(self) -> usize {
        match self {
            Thread::Packets => 0,
            Thread::Control => 1,
            Thread::Signals => 2,
            Thread::Routes => 3,
            Thread::Health => 4,
            Thread::Fastpath => 5,
            Thread::Interface => 6,
            Thread::Worker(number) => Thread::ALL.len() - 1 + usize::from(number),
        }
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thread::Packets => f.write_str("packet loop"),
            Thread::Control => f.write_str("control socket"),
            Thread::Signals => f.write_str("signals"),
            Thread::Routes => f.write_str("routes"),
            Thread::Health => f.write_str("watch of HEALTH"),
            Thread::Fastpath => f.write_str("watch of the in-kernel path"),
            Thread::Interface => f.write_str("watch of the interface"),
            Thread::Worker(number) => write!(f, "packet loop of worker {number}"),
        }
    }
}

/// The round number of a thread that has not begun.
const NOT_BEGUN: u64 = 0;
/// Value for a thread that has ended normally.
const OVER: u64 = u64::MAX;
/// Bit that marks a waiting thread; the other bits count rounds.
pub const WAITS: u64 = 1;
/// Longest time between two beats of a thread that waits without [`Heartbeat::wait`]: well below [`Limits::wall`].
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Time between two looks of [`Heartbeat::is_stuck`], of which twice as much counts at most.
const LOOK: Duration = Duration::from_millis(5);

/// The numbers of an instance, for the threads and for the supervisor.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The number of each thread, followed by the processor time of each in a round, as [`CpuOfRound`] has it.
    numbers: Arc<SharedNumbers>,
    workers: u16,
    /// The clocks of the threads of this process: its supervisor cannot open those of threads that start after it
    /// dropped its privileges.
    clocks: Arc<Mutex<Vec<Clock>>>,
}

/// Clock of a thread, with the number of its round and its processor time when that round was first seen.
#[derive(Debug)]
struct Clock {
    thread: Thread,
    clock: ThreadClock,
    round: Option<(u64, Duration)>,
}

/// Stands for the processor time in its round of a thread that has ended, which is not marked as over.
const GONE: Duration = Duration::from_millis(u32::MAX as u64);

/// The processor time that a thread has used in a round: milliseconds, and the lower half of the round's number, in one
/// number.
struct CpuOfRound(u64);

impl CpuOfRound {
    fn new(round: u64, used: Duration) -> CpuOfRound {
        let millis = u32::try_from(used.as_millis()).unwrap_or(u32::MAX);
        CpuOfRound(u64::from(millis) << 32 | Self::half(round))
    }

    /// Returns the processor time, if it is that of the round `round`.
    fn of(self, round: u64) -> Duration {
        let is_same = self.0 & u64::from(u32::MAX) == Self::half(round);
        if is_same { Duration::from_millis(self.0 >> 32) } else { Duration::ZERO }
    }

    /// Returns what stands for a round, whether its thread waits or not.
    fn half(round: u64) -> u64 {
        (round & !WAITS) & u64::from(u32::MAX)
    }
}

impl Heartbeat {
    /// Creates the numbers of an instance with `workers` workers, which a child that is forked later shares.
    pub fn new(workers: u16) -> io::Result<Heartbeat> {
        let numbers = SharedNumbers::new(2 * Thread::all(workers).count())?;
        Ok(Heartbeat { numbers: Arc::new(numbers), workers, clocks: Arc::default() })
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// Returns the number of a thread.
    pub fn of(&self, thread: Thread) -> &AtomicU64 {
        &self.numbers[thread.place()]
    }

    fn cpu_of(&self, thread: Thread) -> &AtomicU64 {
        &self.numbers[Thread::all(self.workers).count() + thread.place()]
    }

    /// Records that a thread makes progress. From its first call on, which `thread` itself makes, its processor time is
    /// measured.
    pub fn beat(&self, thread: Thread) {
        let number = self.of(thread);
        let last = number.load(Ordering::Relaxed);
        if last == NOT_BEGUN {
            // A thread without a clock still has its wall time.
            let _ = self.measure(thread);
        }
        number.store((last | WAITS).wrapping_add(1), Ordering::Relaxed);
    }

    /// Prepares the measurement of the processor time of the calling thread, which is `thread`. One whose clock cannot
    /// be read is not measured.
    pub(crate) fn measure(&self, thread: Thread) -> io::Result<()> {
        let clock = Clock { thread, clock: ThreadClock::of_this_thread()?, round: None };
        if clock.clock.read().is_none() {
            return Ok(());
        }
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.retain(|one| one.thread != thread);
        clocks.push(clock);
        Ok(())
    }

    /// Records for the supervisor the processor time that each measured thread has used in its present round. Several
    /// threads call this now and then, so that a loop of one of them is seen too.
    pub(crate) fn note(&self) {
        let Ok(mut clocks) = self.clocks.try_lock() else { return };
        for Clock { thread, clock, round } in clocks.iter_mut() {
            let number = self.of(*thread).load(Ordering::Relaxed);
            // After the number, so that nothing of an earlier round counts.
            let Some(now) = clock.read() else {
                if !matches!(number, NOT_BEGUN | OVER) {
                    self.cpu_of(*thread).store(CpuOfRound::new(number, GONE).0, Ordering::Relaxed);
                }
                continue;
            };
            let used = match *round {
                Some((same, begin)) if same == number => now.saturating_sub(begin),
                _ => {
                    *round = Some((number, now));
                    Duration::ZERO
                }
            };
            self.cpu_of(*thread).store(CpuOfRound::new(number, used).0, Ordering::Relaxed);
        }
    }

    /// Marks a thread as waiting for an event that may never come.
    pub fn wait(&self, thread: Thread) {
        self.of(thread).fetch_or(WAITS, Ordering::Relaxed);
    }

    /// Calls `work` and returns its result; the time that it takes does not count. For what others may delay, such as
    /// the reader of a log, or the kernel.
    pub fn unwatched<T>(&self, thread: Thread, work: impl FnOnce() -> T) -> T {
        self.wait(thread);
        let result = work();
        self.beat(thread);
        result
    }

    /// Returns whether a thread is in the middle of a round and does not finish it within `patience`. Returns at once
    /// where the thread waits, has not begun, or has ended as it should. Time in which this thread itself did not run
    /// does not count, as it may be that of the machine.
    pub fn is_stuck(&self, thread: Thread, patience: Duration) -> bool {
        self.stays(thread, patience, || thread::sleep(LOOK))
    }

    /// Returns whether a thread stays in the middle of a round for `patience`; `pause` waits from one look to the next.
    fn stays(&self, thread: Thread, patience: Duration, pause: impl Fn()) -> bool {
        let number = || self.of(thread).load(Ordering::Relaxed);
        let (first, mut last) = (number(), Instant::now());
        if first & WAITS != 0 || matches!(first, NOT_BEGUN | OVER) {
            return false;
        }
        let mut waited = Duration::ZERO;
        while number() == first {
            if waited >= patience {
                return true;
            }
            pause();
            let now = Instant::now();
            waited += (now - last).min(2 * LOOK);
            last = now;
        }
        false
    }

    /// Records that a thread has ended as expected, and is no longer watched.
    pub fn over(&self, thread: Thread) {
        self.of(thread).store(OVER, Ordering::Relaxed);
    }
}

/// The times after which a thread without progress is a fault.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processor time of a packet loop without a round.
    pub cpu: Duration,
    /// Processor time without progress of any other thread that does not wait: an answer may take long.
    pub cpu_beside: Duration,
    /// Time of a packet loop without a round while it does not wait.
    pub round: Duration,
    /// Time without progress of any other thread that does not wait.
    pub wall: Duration,
}

impl Limits {
    /// Returns the processor time and the time without progress after which a thread that does not wait is a fault.
    fn of(&self, thread: Thread) -> (Duration, Duration) {
        if thread.is_packet_loop() { (self.cpu, self.round) } else { (self.cpu_beside, self.wall) }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let wall = Duration::from_secs(10);
        Limits { cpu: Duration::from_secs(1), cpu_beside: Duration::from_secs(3), round: wall, wall }
    }
}

/// Time without a round, or a wait, after which a packet loop is late.
const LATE: Duration = Duration::from_millis(500);

/// Number of checks in turn after which a thread has ended by itself. Where its whole process ends, the supervisor
/// is told in between.
const ENDED: u32 = 3;

/// A fault that the supervisor found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Thread that makes no progress.
    pub thread: Thread,
    /// Kind of time that passed without progress.
    pub how: How,
}

/// The measure of a thread's time without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Processor time that passed without progress.
    Cpu(Duration),
    /// Wall-clock time that passed without progress.
    Wall(Duration),
    /// The thread has ended, and others of its process have not: a fault of the kernel's in one of its system calls.
    Ended,
}

/// The supervisor's end of the heartbeat.
#[derive(Debug)]
pub struct Watch {
    heartbeat: Heartbeat,
    limits: Limits,
    /// File in `/proc` with state and processor time of the main thread, if there is one.
    stat: Option<File>,
    seen: Vec<LastBeat>,
    /// Processor time of the main thread at the last check.
    cpu: Option<Duration>,
    is_asleep: bool,
    /// Number of checks in turn that found the main thread ended.
    ended: u32,
    /// Whether the supervisor itself had not run before the last check.
    was_away: bool,
}

/// The state of a thread since its heartbeat last changed.
#[derive(Clone, Copy, Debug, Default)]
struct LastBeat {
    number: u64,
    /// Processor time when the heartbeat last changed.
    cpu: Option<Duration>,
    /// Time since the change during which the supervisor itself ran.
    wall: Duration,
    /// Number of checks that found the thread ended.
    ended: u32,
}

impl Watch {
    /// Watches the process `pid`, a child that shares `heartbeat`. Opens what it needs; later calls open nothing.
    pub fn new(heartbeat: Heartbeat, limits: Limits, pid: Pid) -> Watch {
        // The packet loop is the main thread, whose id is that of the process.
        let stat = File::open(format!("/proc/{pid}/task/{pid}/stat")).ok();
        let seen = vec![LastBeat::default(); Thread::all(heartbeat.workers).count()];
        Watch { heartbeat, limits, stat, seen, cpu: None, is_asleep: false, ended: 0, was_away: false }
    }

    /// Returns whether the only worker waited at the last check and had used no processor time since the one before.
    pub fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Returns whether the packet loop of the first worker was in the middle of a round for half a second, at the last
    /// check.
    pub fn is_late(&self) -> bool {
        self.seen[Thread::Packets.place()].wall >= LATE
    }

    /// Checks the progress of the threads, `passed` after the last check; where more time passed than `tick`, the
    /// supervisor itself did not run. Returns the first fault.
    pub fn check(&mut self, passed: Duration, tick: Duration) -> Option<Stall> {
        self.check_by(|stat| stat.and_then(read), passed, tick)
    }

    /// Checks the progress of the threads; `read` returns the state of the main thread.
    fn check_by(
        &mut self,
        read: impl FnOnce(Option<&File>) -> Option<Usage>,
        passed: Duration,
        tick: Duration,
    ) -> Option<Stall> {
        let packets = self.heartbeat.of(Thread::Packets).load(Ordering::Relaxed);
        let main = read(self.stat.as_ref());
        // Processor time counts only where the number is the same before and after it is read: of no other round.
        let is_same = self.heartbeat.of(Thread::Packets).load(Ordering::Relaxed) == packets;
        if main.is_some_and(|main| main.is_traced) {
            // A debugger holds it.
            self.seen.fill(LastBeat::default());
            return None;
        }
        let cpu = main.map(|main| main.cpu);
        let has_ended = main.is_some_and(|main| main.has_ended) && !matches!(packets, NOT_BEGUN | OVER);
        self.ended = if has_ended { self.ended + 1 } else { 0 };
        let ended = self.ended;
        let cpu_before = self.cpu;
        self.is_asleep = self.heartbeat.workers == 1 && packets & WAITS != 0 && cpu.is_some() && cpu == self.cpu;
        self.cpu = cpu;
        // Where the machine stood still, its processor time may be of that time, and is judged by the next check.
        let is_away = passed > 2 * tick;
        let trusts_cpu = !is_away || self.was_away;
        self.was_away = is_away;
        let passed = passed.min(2 * tick);
        Thread::all(self.heartbeat.workers).find_map(|thread| {
            let number = match thread {
                Thread::Packets => packets,
                _ => self.heartbeat.of(thread).load(Ordering::Relaxed),
            };
            let cpu = main.filter(|_| thread == Thread::Packets).map(|main| main.cpu);
            let seen = &mut self.seen[thread.place()];
            if thread == Thread::Packets && ended > 0 {
                return (ended >= ENDED).then_some(Stall { thread, how: How::Ended });
            }
            let is_new = number != seen.number || thread == Thread::Packets && !is_same;
            if is_new || matches!(number, NOT_BEGUN | OVER) {
                // What a loop that waited has used since is that of its first round: it waits with the round's number.
                let is_first = is_same && seen.number & WAITS != 0 && number == seen.number & !WAITS;
                let cpu = cpu.and(if is_first { cpu_before } else { cpu });
                *seen = LastBeat { number, cpu, ..LastBeat::default() };
                return None;
            }
            let noted = CpuOfRound(self.heartbeat.cpu_of(thread).load(Ordering::Relaxed)).of(number);
            if thread != Thread::Packets && noted == GONE {
                seen.ended += 1;
                return (seen.ended >= ENDED).then_some(Stall { thread, how: How::Ended });
            }
            let waits = number & WAITS != 0;
            let used = match thread {
                Thread::Packets => cpu.zip(seen.cpu).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then)),
                // What another thread does for others may take its time.
                _ if waits && !thread.is_packet_loop() => Duration::ZERO,
                _ => noted,
            };
            let (most, longest) = self.limits.of(thread);
            if trusts_cpu && used >= most {
                return Some(Stall { thread, how: How::Cpu(used) });
            }
            if waits {
                return None;
            }
            seen.wall += passed;
            (seen.wall >= longest).then_some(Stall { thread, how: How::Wall(seen.wall) })
        })
    }
}

/// State and processor time of a thread, or of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Whether a debugger holds it.
    pub(crate) is_traced: bool,
    /// Whether it has ended, and its parent has not waited for it yet.
    pub(crate) has_ended: bool,
    /// Processor time.
    pub(crate) cpu: Duration,
    /// The part of it outside the kernel.
    pub(crate) user: Duration,
}

fn read(stat: &File) -> Option<Usage> {
    let mut bytes = [0; 1024];
    let len = stat.read_at(&mut bytes, 0).ok()?;
    usage(std::str::from_utf8(&bytes[..len]).ok()?)
}

/// Returns state and processor time of a process, if they can be read.
pub(crate) fn usage_of(pid: Pid) -> Option<Usage> {
    read(&File::open(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the processor time outside the kernel of the process with this file in `/proc`, if it can be read.
pub(crate) fn user_time_of(stat: &File) -> Option<Duration> {
    read(stat).map(|usage| usage.user)
}

/// Reads a line of `/proc/PID/stat` (proc_pid_stat(5)). The name of the thread, in brackets, may hold anything.
fn usage(line: &str) -> Option<Usage> {
    /// Number of ticks per second in these files, on every Linux (USER_HZ).
    const TICKS: u64 = 100;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let mut times = fields.skip(10).map_while(|field| field.parse::<u64>().ok());
    let [user, system] = [times.next()?, times.next()?];
    let [cpu, user] =
        [user.checked_add(system)?, user].map(|ticks| Duration::from_millis(ticks.saturating_mul(1000 / TICKS)));
    Some(Usage { is_traced: state == "t", has_ended: matches!(state, "Z" | "X"), cpu, user })
}

#[cfg(test)]
mod tests;
