//! Faults of segue itself: a panic ends the whole instance, and a test can inject a fault into a running instance.
//!
//! Requests for faults come over the control socket, which only the instance's user and root can open, and are taken
//! only by an instance that was started with `SEGUE_FAULTS=1` in its environment: whoever can do either can also kill
//! the process. The released program has them, so that what is tested is what is released.

use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use segue_control::error::{Error, Kind};
use segue_control::protocol::Fault;
use segue_host::memory::SharedNumbers;
use segue_host::process;

use crate::heartbeat::{Heartbeat, Thread};
use crate::report::Report;

/// Environment variable that makes an instance accept requests for faults.
pub const VARIABLE: &str = "SEGUE_FAULTS";

/// Converts a panic to an error for the log.
pub fn describe(info: &PanicHookInfo<'_>) -> Error {
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(Kind::Internal, format!("segue has a fault{place}"), "report it with: segue --version -v -j").why(what)
}

/// Installs a panic hook that ends this process with status 1. A thread that unwinds alone would leave an instance that
/// answers and moves nothing.
pub(crate) fn end_on_panic(out: &Arc<dyn Report>) {
    let out = Arc::clone(out);
    panic::set_hook(Box::new(move |info| {
        out.error(&describe(info));
        process::end(1);
    }));
}

/// The faults that a test can inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Injected {
    None,
    Panic,
    /// A loop that uses the processor and never ends.
    Loop,
    /// The thread waits for ever.
    Hang,
    /// The failure of the thread's requests to the kernel, until another fault is injected.
    Fail,
    /// The thread takes memory until it gets no more.
    Memory,
}

/// State of an instance's threads: their heartbeat, and the faults injected into them.
#[derive(Clone, Debug)]
pub struct Vitals {
    /// The heartbeat of the threads.
    pub heartbeat: Heartbeat,
    /// The request for each thread, followed by that for the supervisor, which shares them; `None` where the instance
    /// accepts none.
    requests: Option<Arc<SharedNumbers>>,
}

impl Vitals {
    /// Creates the state of an instance with `workers` workers, before its process is forked.
    pub fn new(workers: u16) -> std::io::Result<Vitals> {
        let is_test = std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
        let requests = || SharedNumbers::new(Thread::all(workers).count() + 1).map(Arc::new);
        Ok(Vitals { heartbeat: Heartbeat::new(workers)?, requests: is_test.then(requests).transpose()? })
    }

    /// Returns whether the instance accepts requests for faults.
    pub(crate) fn takes_requests(&self) -> bool {
        self.requests.is_some()
    }

    /// Records that a thread makes progress, and injects the fault that a test requested, with the result of
    /// [`Vitals::grant`].
    pub fn beat(&self, thread: Thread) -> bool {
        self.heartbeat.beat(thread);
        self.grant(thread)
    }

    /// Injects the fault that a test requested for the calling thread; returns whether its requests to the kernel are
    /// to fail.
    pub fn grant(&self, thread: Thread) -> bool {
        self.inject(thread.place())
    }

    /// Injects the fault that a test requested for the supervisor, which calls this.
    pub(crate) fn grant_to_supervisor(&self) {
        self.inject(self.place_of_supervisor());
    }

    fn place_of_supervisor(&self) -> usize {
        Thread::all(self.heartbeat.workers()).count()
    }

    fn inject(&self, place: usize) -> bool {
        let Some(requests) = &self.requests else { return false };
        let request = requests[place].load(Ordering::Relaxed);
        match request {
            request if request == Injected::Panic as u64 => panic!("a test asked for it"),
            request if request == Injected::Loop as u64 => loop {
                std::hint::spin_loop();
            },
            request if request == Injected::Hang as u64 => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            request if request == Injected::Memory as u64 => loop {
                // Never written to, so that it takes up addresses, of which a test has left few, and no memory.
                std::mem::forget(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
            },
            request => request == Injected::Fail as u64,
        }
    }

    /// Returns the thread that a request for a fault names.
    fn thread(&self, name: &str) -> Option<Thread> {
        Some(match name {
            "packets" => Thread::Packets,
            "control" => Thread::Control,
            "signals" => Thread::Signals,
            "routes" => Thread::Routes,
            "health" => Thread::Health,
            "fastpath" => Thread::Fastpath,
            "interface" => Thread::Interface,
            other => {
                let number = other.strip_prefix("worker")?.parse().ok()?;
                (1..self.heartbeat.workers()).contains(&number).then_some(Thread::Worker(number))?
            }
        })
    }

    /// Takes a request for a fault.
    pub(crate) fn request(&self, fault: &Fault) -> Result<(), Error> {
        let refused = |text: &str| Err(Error::new(Kind::Usage, text, "a test of segue"));
        let Some(requests) = &self.requests else { return refused("this instance takes no requests for faults") };
        let place = match fault.thread.as_str() {
            "supervisor" => self.place_of_supervisor(),
            name => match self.thread(name) {
                Some(thread) => thread.place(),
                None => return refused("there is no such thread"),
            },
        };
        let request = match fault.kind.as_str() {
            "panic" => Injected::Panic,
            "loop" => Injected::Loop,
            "hang" => Injected::Hang,
            "fail" => Injected::Fail,
            "memory" => Injected::Memory,
            "none" => Injected::None,
            _ => return refused("there is no such fault"),
        };
        requests[place].store(request as u64, Ordering::Relaxed);
        Ok(())
    }
}
