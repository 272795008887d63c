//! The watch of a supervisor by its service. A supervisor waits at least once a second, which the kernel counts
//! (`voluntary_ctxt_switches`, proc_pid_status(5)): that number is its heartbeat.

use std::fs;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_host::sys::Pid;

use crate::heartbeat::{How, Usage, usage_of};

/// Interval of the checks.
const TICK: Duration = Duration::from_secs(1);
/// Processor time without a wait after which a supervisor is ended; it uses some microseconds between two waits.
const CPU: Duration = Duration::from_millis(500);
/// Time without a wait, during which the service itself ran, after which a supervisor is ended.
const WALL: Duration = Duration::from_secs(10);

/// The service's watch of one supervisor.
#[derive(Debug)]
pub(super) struct Watch {
    checked: Instant,
    /// Number of waits at the last check, with the processor time when that number was first seen.
    seen: Option<(u64, Duration)>,
    /// Time since the number was first seen.
    wall: Duration,
    /// Whether the service itself had not run before the last check.
    was_away: bool,
}

impl Watch {
    /// Creates the watch of a supervisor.
    pub(super) fn new() -> Watch {
        Watch { checked: Instant::now(), seen: None, wall: Duration::ZERO, was_away: false }
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Instant {
        self.checked + TICK
    }

    /// Checks the supervisor `pid`, a child of this process, once the next check is nearly due, so that a service wakes
    /// for many supervisors at once. Returns the time that it used, or that passed, without a wait, if that is a fault.
    pub(super) fn check(&mut self, pid: Pid) -> Option<How> {
        let passed = self.checked.elapsed();
        if passed < TICK / 2 {
            return None;
        }
        self.checked = Instant::now();
        // Processor time after the number, so that nothing before the last wait counts.
        let waits = waits(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
        self.judge(waits, usage_of(pid)?, passed)
    }

    /// Judges the state of a supervisor, `passed` after the last check; where more time passed than is usual, the
    /// service itself did not run.
    fn judge(&mut self, waits: u64, usage: Usage, passed: Duration) -> Option<How> {
        // Where the machine stood still, its processor time may be of that time, and is judged by the next check.
        let is_away = passed > 2 * TICK;
        let trusts_cpu = !is_away || self.was_away;
        self.was_away = is_away;
        let same = self.seen.filter(|(seen, _)| *seen == waits && !usage.is_traced);
        let Some((_, begin)) = same else {
            (self.seen, self.wall) = (Some((waits, usage.cpu)), Duration::ZERO);
            return None;
        };
        let used = usage.cpu.saturating_sub(begin);
        self.wall += passed.min(2 * TICK);
        if trusts_cpu && used >= CPU {
            return Some(How::Cpu(used));
        }
        (self.wall >= WALL).then_some(How::Wall(self.wall))
    }
}

/// Returns the error for a supervisor that was ended.
pub(super) fn stalled(name: &str, how: How) -> Error {
    let what = match how {
        How::Cpu(used) => {
            format!("{name}: the supervisor used {:.1} s of processor time without a wait", used.as_secs_f64())
        }
        How::Wall(passed) => format!("{name}: the supervisor did not look after it for {} s", passed.as_secs()),
        How::Ended => format!("{name}: the supervisor has ended, and its process has not"),
    };
    let hint = "report it with the output of segue --version -v -j";
    Error::new(Kind::Internal, what, hint).why("a fault of segue: the processes of the instance were ended")
}

/// Returns how often a process waited, from the text of `/proc/PID/status`. The name of the process has no line end.
fn waits(status: &str) -> Option<u64> {
    let number = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use segue_host::sys;

    use super::*;

    const TRACED: Usage = Usage { is_traced: true, has_ended: false, cpu: Duration::ZERO, user: Duration::ZERO };

    fn used(millis: u64) -> Usage {
        Usage { is_traced: false, cpu: Duration::from_millis(millis), ..TRACED }
    }

    #[test]
    fn a_supervisor_that_waits_may_use_any_time_and_one_that_does_not_is_a_fault() {
        let mut watch = Watch::new();
        for waits in 1..100 {
            assert_eq!(watch.judge(waits, used(waits * 1000), TICK), None);
        }
        assert_eq!(watch.judge(99, used(99_490), TICK), None);
        assert_eq!(watch.judge(99, used(99_510), TICK), Some(How::Cpu(Duration::from_millis(510))));
        assert_eq!(watch.judge(100, used(99_510), TICK), None);
        let looks = (0..10).map(|_| watch.judge(100, used(99_510), TICK));
        assert_eq!(looks.collect::<Vec<_>>(), [&[None; 9][..], &[Some(How::Wall(WALL))]].concat());
    }

    #[test]
    fn time_in_which_a_debugger_held_the_supervisor_or_the_service_did_not_run_does_not_count() {
        let mut watch = Watch::new();
        for _ in 0..20 {
            assert_eq!(watch.judge(1, TRACED, TICK), None);
        }
        for _ in 0..4 {
            assert_eq!(watch.judge(1, used(0), Duration::from_secs(3600)), None, "{watch:?}");
        }
        assert_eq!(watch.judge(1, used(0), Duration::from_secs(3600)), Some(How::Wall(WALL)));
    }

    #[test]
    fn processor_time_of_a_machine_that_stood_still_is_judged_by_the_next_check() {
        let mut watch = Watch::new();
        let hour = Duration::from_secs(3600);
        for (waits, millis, passed) in [(1, 0, TICK), (1, 900, hour), (2, 900, TICK), (2, 1900, hour)] {
            assert_eq!(watch.judge(waits, used(millis), passed), None, "{millis}");
        }
        assert_eq!(watch.judge(2, used(1900), TICK), Some(How::Cpu(Duration::from_secs(1))));
    }

    /// Returns the first fault of a process within a number of checks.
    fn fault_of(mut child: Child, checks: usize) -> Option<How> {
        let mut watch = Watch::new();
        let found = (0..checks).find_map(|_| {
            std::thread::sleep(watch.due().saturating_duration_since(Instant::now()));
            watch.check(child.id() as Pid)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        found
    }

    #[test]
    fn a_process_that_loops_is_told_from_one_that_waits_now_and_then() {
        let shell = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let loops = shell("while :; do :; done");
        let found = fault_of(loops, 60);
        assert!(matches!(found, Some(How::Cpu(used)) if used >= CPU), "{found:?}");
        assert_eq!(fault_of(shell("while :; do sleep 0.2; done"), 4), None);
        let gone = shell("exit 0");
        sys::kill(gone.id() as Pid, libc::SIGKILL).unwrap();
        assert_eq!(fault_of(gone, 2), None, "the end of a process is found by others");
    }

    #[test]
    fn supervisors_that_came_up_one_after_the_other_are_soon_checked_together() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let now = Instant::now();
        let came_up = |number: u32| Watch { checked: now + number * TICK / 50, ..Watch::new() };
        let mut watches: Vec<Watch> = (0..50).map(came_up).collect();
        let mut wakes = 0;
        while now.elapsed() < 4 * TICK {
            let due = watches.iter().map(Watch::due).min().unwrap();
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            watches.iter_mut().for_each(|watch| assert_eq!(watch.check(child.id() as Pid), None));
            wakes += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wakes <= 8, "{wakes}");
    }

    #[test]
    fn the_number_of_waits_is_read_from_the_text_of_the_kernel() {
        let text = "Name:\tsegue\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(waits(text), Some(17));
        for bad in ["", "voluntary_ctxt_switches:\tx\n", "nonvoluntary_ctxt_switches:\t3\n"] {
            assert_eq!(waits(bad), None, "{bad}");
        }
        assert!(waits(&fs::read_to_string("/proc/self/status").unwrap()).is_some());
    }
}
