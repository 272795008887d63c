//! A processor reserved for one host, and its idle time.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sys;

/// Longest gap between two readings of the clock that counts as idle: no other task can have run in it.
const UNDISTURBED: Duration = Duration::from_nanos(400);
/// Interval at which the watching thread publishes its running time.
const TELL: Duration = Duration::from_millis(1);

/// Returns the processors that this process may use, in order.
pub fn cores() -> Vec<usize> {
    sys::own_cores().unwrap_or_default()
}

/// A processor whose idle time a thread measures. A thread of the lowest priority reads the clock on it all the time:
/// the time between two readings that follow each other at once was idle, all else was used, interrupts included, which
/// no control group and (where the kernel counts by ticks) not even `/proc/stat` counts when they hit an idle
/// processor.
///
/// The thread also keeps the processor from sleeping, whose costs in a virtual machine would be noise.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) number: usize,
    /// Path of `cpuacct.usage_percpu` for the whole machine, if the file exists.
    all_tasks: Option<PathBuf>,
    begin: Instant,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Watch {
    stop: AtomicBool,
    idle: AtomicU64,
    own: AtomicU64,
}

impl Core {
    pub(crate) fn watch(number: usize, all_tasks: Option<PathBuf>) -> io::Result<Core> {
        let watch = Arc::new(Watch::default());
        let thread = thread::Builder::new().name(format!("watch-core-{number}")).spawn({
            let watch = Arc::clone(&watch);
            move || {
                // What was not reached shows as a core that is never idle, which a reader notices.
                if sys::run_only_on(number).and_then(|()| sys::run_when_idle()).is_ok() {
                    watch.run();
                }
            }
        })?;
        let core = Core { number, all_tasks, begin: Instant::now(), watch, thread: Some(thread) };
        Ok(core)
    }

    /// Returns the seconds for which any task but the watching thread used the processor.
    pub(crate) fn busy(&self) -> f64 {
        self.begin.elapsed().as_secs_f64() - self.watch.idle.load(Ordering::Relaxed) as f64 * 1e-9
    }

    /// Returns the seconds for which tasks other than the watching thread ran on the processor; `None` if the kernel
    /// does not count them.
    pub(crate) fn tasks(&self) -> Option<f64> {
        let text = fs::read_to_string(self.all_tasks.as_ref()?).ok()?;
        let nanos: u64 = text.split_whitespace().nth(self.number)?.parse().ok()?;
        Some((nanos as f64 - self.watch.own.load(Ordering::Relaxed) as f64) * 1e-9)
    }

    pub(crate) fn knows_tasks(&self) -> bool {
        self.tasks().is_some()
    }
}

impl Watch {
    fn run(&self) {
        let (mut last, mut told) = (Instant::now(), Instant::now());
        let mut idle = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let gap = now - last;
            last = now;
            if gap < UNDISTURBED {
                idle += gap;
            }
            if now - told >= TELL {
                told = now;
                self.idle.store(idle.as_nanos() as u64, Ordering::Relaxed);
                self.own.store(sys::thread_nanos(), Ordering::Relaxed);
                last = Instant::now();
                idle += (last - now).min(5 * UNDISTURBED);
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.watch.stop.store(true, Ordering::Relaxed);
        // It runs when the processor has nothing else to do, which may be late: it ends by itself.
        drop(self.thread.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_at_work_is_less_idle_than_one_at_rest() {
        let Some(&number) = cores().last() else { return };
        let core = Core::watch(number, None).unwrap();
        let spin = |core: &Core, work: bool| {
            let (before, begin) = (core.busy(), Instant::now());
            thread::scope(|scope| {
                scope.spawn(|| {
                    sys::run_only_on(number).unwrap();
                    while begin.elapsed() < Duration::from_millis(300) {
                        if !work {
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                });
            });
            (core.busy() - before) / begin.elapsed().as_secs_f64()
        };
        assert!(spin(&core, true) > 0.9, "a spinning thread leaves nothing");
        // Other tests run beside this one, so nothing can be said about a processor at rest but that it can be one.
        assert!(spin(&core, false) <= 1.05);
    }
}
