//! System calls of a running process that fail with a chosen error instead of being executed: strace(1) is the shim, so
//! that the program under test is the released one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Process;

use crate::capture::Directory;

/// Longest wait for strace to attach.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for strace to end by itself. Where it traces a process whose first thread has ended before the others,
/// it waits for that thread for ever, and must be killed; it has written what it saw.
const DETACH: Duration = Duration::from_secs(3);
/// Number of system calls a second that a process may make in any case: it waits between its attempts, which take next
/// to no processor time.
const WAITING: f64 = 1000.0;
/// Largest allowed number of system calls while one of them fails, as a multiple of the number without faults.
const MOST: f64 = 3.0;
/// Processor time beyond three times the normal one that noise may take, as a share of one processor.
const FLOOR: f64 = 0.2;
/// Share of one processor that noise may take in the reduced test, whose short times weigh it more.
const GENEROUS_FLOOR: f64 = 0.6;
/// Time of a run from which one is enough to know what is normal.
const LONG: Duration = Duration::from_secs(1);
/// Most attempts of a short run that costs too much.
const ATTEMPTS: u32 = 3;
/// Time for which the work is repeated in a full run until a call has failed: some calls are made once in five seconds.
const REPEATED: Duration = Duration::from_secs(8);

/// System calls that are not made to fail.
const SOUND: [&str; 22] = [
    // They have no result, or one that the kernel always has.
    "exit",
    "exit_group",
    "rt_sigreturn",
    "restart_syscall",
    "getpid",
    "gettid",
    "geteuid",
    "clock_gettime",
    "getrandom",
    "sched_yield",
    // With right arguments they fail only by an interrupt or by a time that is over, which the C library and the
    // standard library take for the only ones.
    "futex",
    "clock_nanosleep",
    "rt_sigprocmask",
    "rt_sigaction",
    // Memory that is refused ends a process by design: tests of faults refuse it. What is given back is given back.
    "mmap",
    "mprotect",
    "mremap",
    "brk",
    "munmap",
    "madvise",
    // Of a connected socket it always succeeds.
    "shutdown",
    // A descriptor is closed whatever the call returns; without the call it would be lost by the test itself.
    "close",
];

/// Errors of a call that may be over at the next one, as strace takes them. An interrupt is by its nature not for long,
/// since the standard library repeats such calls itself.
pub const TRANSIENT: [&str; 8] = [
    "error=EAGAIN",
    "error=ENOBUFS",
    "error=EINTR:when=1+2",
    "error=ENOMEM",
    "error=EPERM",
    "error=EMSGSIZE",
    "error=EIO",
    "error=ENETDOWN",
];

/// Calls with which the process that moves packets receives and sends them.
const OF_DEVICES: [&str; 4] = ["read,readv", "write,writev", "sendmsg,sendmmsg", "recvmsg,recvmmsg"];
/// Errors that cost a packet, or a read that is repeated, with the reasons under which a write or a send that fails is
/// counted: at a device, at a socket, and where a send is made again otherwise.
const COUNTED: [(&str, &[&str]); 6] = [
    ("error=ENOBUFS", &["queue_full"]),
    ("error=ENOMEM", &["no_memory"]),
    ("error=EMSGSIZE", &["refused", "too_big", "pending_error", "udp_segment_emsgsize"]),
    ("error=EPERM", &["refused", "denied"]),
    ("error=ENETDOWN", &["device_down", "unreachable"]),
    ("error=EIO", &["device_down", "refused", "udp_segment_eio"]),
];
/// The reason under which a read that fails is counted, whatever the error.
const READ_FAILED: &[&str] = &["read_failed"];
/// The error by which a socket says, in place of a read, that the path takes no datagram as long as an earlier one: no
/// read has failed by it.
const OF_ICMP: (&str, &str) = ("recvmsg,recvmmsg", "error=EMSGSIZE");

/// Returns the reasons under which a port counts that these calls, of those with which it receives and sends, failed
/// with an error; none where it need not count it.
pub fn counted_as(calls: &str, error: &str) -> &'static [&'static str] {
    let of_error = COUNTED.iter().find(|(name, _)| *name == error).filter(|_| OF_DEVICES.contains(&calls));
    match of_error {
        Some(_) if (calls, error) == OF_ICMP => &[],
        Some(_) if calls.starts_with("re") => READ_FAILED,
        Some((_, reasons)) => reasons,
        None => &[],
    }
}

/// A process that runs under strace. Dropping it lets the process continue by itself.
#[derive(Debug)]
pub struct Traced {
    strace: Process,
    log: PathBuf,
}

/// The system calls of a process while it was traced.
#[derive(Debug, Default)]
pub struct Calls {
    /// Numbers of calls by name, including those that were not executed.
    pub made: BTreeMap<String, u64>,
    /// Number of calls that failed by injection.
    pub injected: u64,
}

impl Calls {
    /// Returns the number of all calls.
    pub fn total(&self) -> u64 {
        self.made.values().sum()
    }

    /// Returns the names of the calls that can fail.
    pub fn can_fail(&self) -> impl Iterator<Item = &String> {
        self.made.keys().filter(|name| !SOUND.contains(&name.as_str()))
    }
}

impl Traced {
    /// Attaches strace to all threads of a process. With `fault`, the calls of these names, with commas between them,
    /// are not made: the rest says with which result they return, in strace's words, such as `error=ENOMEM`. `log` is a
    /// file for what strace writes.
    ///
    /// # Panics
    /// Where strace does not start, or may not trace.
    #[track_caller]
    pub fn attach(pid: u32, fault: Option<(&str, &str)>, log: &Path) -> Traced {
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "signal=none", "-o"]).arg(log).args(["-p", &pid.to_string()]);
        if let Some((calls, result)) = fault {
            command.arg("-e").arg(format!("inject={calls}:{result}"));
        }
        let mut strace = Process::spawn(command, b"").expect("strace starts");
        let begin = Instant::now();
        while !strace.stderr().contains("attached") {
            assert!(strace.ended().is_none() && begin.elapsed() < PATIENCE, "strace: {}", strace.last_words());
            thread::sleep(Duration::from_millis(2));
        }
        Traced { strace, log: log.to_owned() }
    }

    /// Returns the number of calls of the thread `thread` that have failed by injection so far.
    ///
    /// # Panics
    /// Where what strace has written cannot be read.
    pub fn failed(&self, thread: u32) -> usize {
        let begin = format!("{thread} ");
        self.failures(|line| line.starts_with(&begin))
    }

    /// Returns the number of calls in chosen lines of what strace has written that have failed by injection so far.
    fn failures(&self, is_chosen: impl Fn(&str) -> bool) -> usize {
        let text = fs::read(&self.log).expect("what strace wrote");
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|line| line.ends_with("(INJECTED)") && is_chosen(line)).count()
    }

    /// Detaches strace, and returns the calls.
    #[track_caller]
    pub fn detach(mut self) -> Calls {
        self.strace.stop(DETACH);
        let text = fs::read(&self.log).expect("what strace wrote");
        let mut calls = Calls::default();
        for line in String::from_utf8_lossy(&text).lines() {
            // `PID name(...) = ...`; the end of a call that another thread interrupted begins with `<...`.
            let Some((name, _)) = line.split_once(' ').and_then(|(_, rest)| rest.trim_start().split_once('(')) else {
                continue;
            };
            calls.injected += u64::from(line.ends_with("(INJECTED)"));
            if !name.starts_with('<') {
                *calls.made.entry(name.to_owned()).or_default() += 1;
            }
        }
        calls
    }
}

/// A process and its work, during which its system calls fail.
pub struct Workload<'a> {
    /// Name of the process, for messages.
    pub who: &'a str,
    /// Id of the process.
    pub pid: u32,
    /// Smallest number of calls that counts as the normal one.
    pub least: u64,
    /// Gives the process its work, whether that succeeds or not.
    pub work: &'a dyn Fn(),
}

impl fmt::Debug for Workload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload").field("who", &self.who).field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// The calls and the processor time of a process without faults.
#[derive(Debug)]
pub struct Normal {
    calls: Calls,
    /// Number of calls that counts as the normal one.
    usual: u64,
    processor: Duration,
    time: Duration,
}

impl Normal {
    /// Returns the groups of calls that fail together, with commas between the names: those given, and each further
    /// call of the process that can fail as one of its own.
    pub fn groups(&self, given: &[&str]) -> Vec<String> {
        let given: Vec<String> = given.iter().map(ToString::to_string).collect();
        let is_given = |name: &str| given.iter().any(|group| group.split(',').any(|known| known == name));
        let further: Vec<String> = self.calls.can_fail().filter(|name| !is_given(name)).cloned().collect();
        [given, further].concat()
    }
}

/// The behaviour of a process while its calls failed.
#[derive(Debug)]
pub struct Outcome {
    /// Number of calls that failed, in the attempt that counts.
    pub met: u64,
    /// Number of calls that failed in all attempts.
    pub met_in_all: u64,
    /// Whether the process made more than three times the normal number of calls, or took more than three times the
    /// normal processor time and a floor.
    pub is_costly: bool,
    /// Number of calls as a multiple of the normal one.
    times: f64,
    /// Processor time as a share of what is allowed.
    share: f64,
    took: Duration,
    /// Description for messages.
    pub text: String,
}

impl Workload<'_> {
    /// Traces the process while it has its work: once, and then again, for so long, until a call has failed.
    fn traced(&self, fault: Option<(&str, &str)>, longest: Duration) -> (Calls, Duration, Duration) {
        let begin = Instant::now();
        let directory = Directory::new();
        let traced = Traced::attach(self.pid, fault, &directory.file("calls"));
        let before = processor_time(self.pid);
        assert!(before > Duration::ZERO, "the kernel does not count processor time (CONFIG_SCHED_INFO)");
        (self.work)();
        while begin.elapsed() < longest && traced.failures(|_| true) == 0 {
            (self.work)();
        }
        let processor = processor_time(self.pid).saturating_sub(before);
        (traced.detach(), processor, begin.elapsed())
    }

    /// Returns what the process does without faults. Of a short time that is the shortest of three: one in which the
    /// machine stood still has few calls.
    #[track_caller]
    pub fn normal(&self) -> Normal {
        let once = || self.traced(None, Duration::ZERO);
        let first = once();
        let more = if first.2 < LONG { 2 } else { 0 };
        let runs = iter::once(first).chain(iter::repeat_with(once).take(more));
        let (calls, processor, time) = runs.min_by_key(|(_, _, time)| *time).expect("one at least");
        Normal { usual: calls.total().max(self.least), calls, processor, time }
    }

    /// Has some calls fail with an error, both in strace's words. Prints the figures: its number of calls, times the
    /// normal one for as long a time, and its processor time, as a share of what is allowed. What costs too much in a
    /// short time is tried again, since other programs weigh on it; the last attempt counts. In a full run a call that
    /// the process makes without faults is waited for.
    #[track_caller]
    pub fn fails(&self, normal: &Normal, calls: &str, error: &str) -> Outcome {
        let mut outcome = self.fails_once(normal, calls, error, Duration::ZERO);
        let is_made = calls.split(',').any(|name| normal.calls.made.contains_key(name));
        if outcome.met == 0 && is_made && segue_testkit::is_set("SEGUE_FULL") {
            outcome = self.fails_once(normal, calls, error, REPEATED);
        }
        let mut met_in_all = outcome.met;
        let mut attempts = 1;
        while outcome.is_costly && outcome.took < LONG && attempts < ATTEMPTS {
            attempts += 1;
            let again = self.fails_once(normal, calls, error, Duration::ZERO);
            met_in_all += again.met;
            if again.met > 0 {
                outcome = again;
            }
        }
        let Outcome { met, times, share, .. } = outcome;
        println!(
            "figure {} {calls} {error}: times the normal {times:.2}, processor time of the allowed {share:.2}, \
             errors met {met}, attempts {attempts}",
            self.who
        );
        outcome.met_in_all = met_in_all;
        outcome
    }

    #[track_caller]
    fn fails_once(&self, normal: &Normal, calls: &str, error: &str, longest: Duration) -> Outcome {
        let (found, processor, took) = self.traced(Some((calls, error)), longest);
        // A request that is not answered takes a few seconds more.
        let longer = (took.as_secs_f64() / normal.time.as_secs_f64()).max(1.0);
        let usual = (normal.usual as f64 * longer).max(WAITING * took.as_secs_f64() / MOST);
        let floor = if segue_testkit::is_set("SEGUE_FULL") { FLOOR } else { GENEROUS_FLOOR };
        let most = MOST * longer * normal.processor.as_secs_f64() + floor * took.as_secs_f64();
        let (total, met, who) = (found.total(), found.injected, self.who);
        let (times, share) = (total as f64 / usual, processor.as_secs_f64() / most);
        let text = format!(
            "{who} {calls} {error}: {total} calls of at most {:.0}, {processor:?} of processor time of at most \
             {most:.3} s in {took:?}, {met} failed; {:?}",
            MOST * usual,
            found.made
        );
        Outcome { met, met_in_all: met, is_costly: times > MOST || share > 1.0, times, share, took, text }
    }
}

/// Returns the time for which all threads of a process have run on a processor; none where it has ended. The kernel
/// counts it in nanoseconds in the first word of `schedstat`.
fn processor_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split(' ').next()?.parse().ok()).map(Duration::from_nanos).sum()
}
