//! The lifecycle of an instance: it opens its devices, drops its privileges, moves packets, and ends on a signal.

mod control_loop;
mod crew;
mod definition;
mod faulty;
pub mod kernel;
pub mod knobs;
pub mod mappings;
pub mod running;
mod show;

use std::io;
use std::os::fd::AsFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::knobs::{Change, Knob};
use segue_control::mapping::Mapping;
use segue_control::model::{Complaint, Instance};
use segue_control::peers::{self, Changes, Listed};
use segue_control::protocol::Fault;
use segue_datapath::router::FeedSender;
use segue_host::netlink::{Netlink, changes};
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Want};

use self::control_loop::{ControlLoop, hurry, wait};
use self::crew::Crew;
pub use self::definition::{Assemble, AssembleMore, Complaints, Daemon, NAMING, Opened, Succession};
use self::faulty::Faulty;
use self::knobs::SharedKnobs;
use self::running::{Further, Running, Stopper};
use crate::closing::Closing;
use crate::control_server::{self, Bound, KnobControl, Server};
use crate::fastpath::{Fastpath, Switches};
use crate::fault::{self, Vitals};
use crate::handover::{Line, Ports, Record};
use crate::health::{Health, Sources};
use crate::heartbeat::{Heartbeat, Thread};
use crate::peers::Keeper;
use crate::report::Report;
use crate::sandbox::{self, Helper, Sandbox, SandboxConfig};
use crate::started;

/// Longest round of the packet loop that is not reported as a problem.
const STUCK: Duration = Duration::from_millis(500);

/// Largest number of workers of an instance.
pub const MOST_WORKERS: u16 = 64;
/// Largest default number of workers, with one for each processor.
const USUAL_WORKERS: u16 = 16;

/// Returns the default number of workers: one for each processor that this process may use, at most 16, because each
/// has memory and queues of its own.
pub fn usual_workers() -> u16 {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(processors).unwrap_or(u16::MAX).min(USUAL_WORKERS)
}

/// The connection of this process to its supervisor.
#[derive(Debug)]
pub struct Watched {
    line: Line,
    /// Whether this process is a successor, which takes over the ports of another one.
    is_successor: bool,
}

/// The options of an instance's start, in addition to its plan.
#[derive(Debug, Default)]
pub struct Start {
    /// The supervisor that started this process, if one did.
    pub watched: Option<Watched>,
    /// Whether the instance runs without a part of the sandbox that the kernel lacks.
    pub is_weak: bool,
}

/// Makes this process end when its supervisor ends, if it has one, and wait for it to read each event.
pub fn follow(supervisor: Option<i32>, is_successor: bool) -> Result<Option<Watched>, Error> {
    let Some(pid) = supervisor else { return Ok(None) };
    segue_host::stdout::always_wait();
    sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| {
        Error::system("cannot follow the process that started this one", &error, "segue doctor").why("prctl failed")
    })?;
    if sys::parent_pid() == pid {
        let line = Line::of_stdin().map_err(|error| lost(&error))?;
        return Ok(Some(Watched { line, is_successor }));
    }
    Err(Error::new(Kind::System, "the process that started this one has ended", "start again")
        .why("another process ended it"))
}

fn lost(error: &io::Error) -> Error {
    Error::system("cannot hear the process that started this one", error, "start again").why("their line is broken")
}

/// Waits for [`Record::Go`] and applies the records before it. Returns false where a signal requests the end.
fn begin(line: &Line, signals: &mut Signals, running: &mut Running) -> Result<bool, Error> {
    loop {
        sys::poll(&[(signals.as_fd(), Want::Read), (line.as_fd(), Want::Read)], Duration::from_secs(60))
            .map_err(|error| lost(&error))?;
        while let Ok(Some((action, _))) = signals.receive() {
            if matches!(action, SignalAction::Stop | SignalAction::StopNow) {
                return Ok(false);
            }
        }
        match line.receive(Duration::ZERO) {
            Ok((Record::Go, _)) => return Ok(true),
            Ok((Record::Sequence(name, next), _)) => running.go_on(&name, next),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(lost(&error)),
        }
    }
}

/// Runs an instance from start to end: opens its devices, drops unneeded privileges, and forwards packets until a
/// signal.
pub fn up(daemon: &impl Daemon, mut netlink: Netlink, start: Start, report: &Arc<dyn Report>) -> Result<(), Error> {
    let Start { watched, is_weak } = start;
    // What is longer than a file may be is refused then, and ends no process.
    let _ = sys::fail_at_file_limit();
    let out = &**report;
    sandbox::end_on_faults()?;
    let mut signals = Signals::new().map_err(|error| {
        Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
    })?;
    if !out.is_json() {
        daemon.notes().iter().for_each(|note| out.note(&format!("note: {note}")));
    }
    let knobs = daemon.knobs()?;
    let vitals = Vitals::new(daemon.workers()).map_err(|error| {
        Error::system("cannot share memory with a child", &error, "segue doctor").why("mmap failed")
    })?;
    let mut succession = Succession { has_successors: watched.is_some(), is_weak, ..Succession::default() };
    let successor_of = watched.as_ref().filter(|watched| watched.is_successor).map(|watched| &watched.line);
    let socket = match successor_of {
        None => Bound::new(daemon.name(), daemon.naming(), watched.is_some())?,
        Some(line) => {
            succession.inherited = Ports::take(line, usize::MAX).map_err(|error| lost(&error))?;
            Bound::next(daemon.name())?
        }
    };
    let Opened {
        offloads,
        sender,
        checksum_drops,
        queue_drops,
        forwarding,
        claims,
        fastpath,
        peers,
        helpers,
        ports,
        complaints,
        health,
        hurry,
        assemble,
        more,
    } = daemon.open(&mut netlink, &mut succession, out)?;
    drop(succession);
    // The process that moves packets has no use for a connection that was opened to change the system.
    drop(netlink);
    // In the sandbox no socket can be opened.
    let connections = || Ok((Netlink::open()?, changes::Changes::of_routes()?));
    let follower = fastpath.as_ref().filter(|fastpath| fastpath.is_loaded()).map(|_| connections()).transpose();
    let follower = follower.map_err(|error: io::Error| {
        Error::system("cannot follow the routes of the tunnels", &error, "segue doctor").why("no rtnetlink socket")
    })?;
    let (ioctls, maps) = (daemon.ioctls(), follower.is_some());
    // Such a wait is interrupted by the end of its connection.
    let shuts = hurry.is_some();
    let allowed = sandbox::Allowed { ioctls, maps, shuts, ..sandbox::Allowed::default() };
    let helpers: Arc<[Helper]> = helpers.into();
    let (name, limits, is_managed) = (daemon.name(), daemon.limits(), watched.is_some());
    let life = SandboxConfig { name, vitals: &vitals, limits, allowed, helpers: &helpers, is_managed, is_weak };
    // The supervisor has it too.
    fault::end_on_panic(report);
    let sandbox = sandbox::enter(&mut signals, socket.file(), &life, report)?;
    let pipeline = Faulty::wrap(assemble(&vitals)?, &vitals, Thread::Packets);
    let (mut running, stopper) = Running::new(pipeline, offloads.clone(), knobs, daemon.workers())?;
    if let Some(line) = successor_of {
        out.value(&show::successor_json(daemon));
        if !begin(line, &mut signals, &mut running)? {
            return Ok(());
        }
        // The predecessor has taken its last change.
        if let Some(peers) = &peers {
            peers.follow();
        }
    }
    let stopped = running.stopped()?;
    let since = Instant::now();
    let reader = running.reader(daemon.ports(), checksum_drops, queue_drops, forwarding.clone());
    let watch = |sources: Sources| sources.watch(running.boards(), fastpath.clone(), vitals.clone(), report);
    let health = health.map(watch).transpose();
    let health = health.map_err(|error| {
        Error::system("cannot watch the health of the tunnels", &error, "segue doctor").why("its thread did not start")
    })?;
    let snapshot = snapshot(
        daemon,
        (&sandbox, &vitals.heartbeat, is_managed),
        since,
        reader,
        fastpath.clone(),
        (complaints, Arc::clone(&helpers)),
        (health, peers.clone()),
    );
    let file = socket.file().clone();
    let announced = Announced {
        knobs: running.knobs(),
        name: daemon.name().to_owned(),
        schema: daemon.schema(),
        out: Arc::clone(report),
        sender,
        fastpath: fastpath.clone(),
        peers,
        vitals: vitals.clone(),
    };
    let _follower = match (&fastpath, follower) {
        (Some(fastpath), Some(connections)) => fastpath.follow(connections, vitals.clone()).map_err(|error| {
            Error::system("cannot follow the routes of the tunnels", &error, "segue doctor").why("no thread started")
        })?,
        _ => None,
    };
    let server = socket.serve(claims, snapshot.clone(), announced).map_err(|error| {
        Error::system("cannot serve the control socket", &error, "segue doctor").why("its thread did not start")
    })?;
    if out.is_json() {
        out.value(&show::up_json(daemon, &offloads, &sandbox));
    } else {
        let text = daemon.up_text(&offloads, &sandbox, fastpath.as_ref());
        out.event(&LogEntry::new(LogEvent::Up, text.trim_end()).with("instance", daemon.name()));
    }
    let closing = Closing::of(ports.interfaces.len());
    let mut control = ControlLoop {
        signals: &mut signals,
        line: watched.as_ref().map(|watched| &watched.line),
        ports: &ports,
        socket: &file,
        stopped,
        hurry,
        forwarding,
        vitals: &vitals,
    };
    let further = running.further().into_iter().zip(more);
    let settle = || sandbox::settle(&sandbox, &life.allowed);
    let outcome = work(&mut running, (stopper, further), &mut control, &snapshot, (daemon.name(), settle), out);
    down(daemon, server, &snapshot, &running, since, &vitals.heartbeat, out);
    // The pipeline's own descriptors go first, so that those of the ports are the last ones.
    drop(running);
    ports.close(closing);
    outcome
}

/// Knob control of an instance, which reports every change.
struct Announced {
    knobs: SharedKnobs,
    name: String,
    schema: &'static str,
    out: Arc<dyn Report>,
    sender: Option<FeedSender>,
    fastpath: Option<Fastpath>,
    peers: Option<Arc<Keeper>>,
    vitals: Vitals,
}

impl Announced {
    /// Permits or forbids the in-kernel path, by its knob and that of the queues by flow.
    fn permit(&self) {
        if let Some(fastpath) = &self.fastpath {
            fastpath.allow(Switches::of(&self.knobs.list()));
        }
    }
}

impl KnobControl for Announced {
    fn mappings(&self) -> Option<Vec<Mapping>> {
        mappings::request(self.sender.as_ref()?)
    }

    fn peers(&self) -> Option<Listed> {
        self.peers.as_ref().map(|peers| peers.list())
    }

    fn change_peers(&self, change: peers::Change) -> Result<Changes, Error> {
        match &self.peers {
            Some(peers) => peers.change(change),
            None => Err(control_server::no_table()),
        }
    }

    fn list(&self) -> Vec<Knob> {
        self.knobs.list()
    }

    fn beat(&self) {
        self.vitals.beat(Thread::Control);
    }

    fn fault(&self, fault: &Fault) -> Result<(), Error> {
        self.vitals.request(fault)
    }

    fn set(&self, assignments: &[(String, String)]) -> Result<Vec<Change>, Error> {
        let changed = self.knobs.set(assignments)?;
        self.permit();
        if self.out.is_json() {
            self.out.value(&show::set_json(self.schema, &self.name, &changed));
        } else {
            for c in &changed {
                let text = format!("{}: {}: {} -> {}", self.name, c.name, c.before, c.value);
                self.out.event(&LogEntry::new(LogEvent::Set, text).with("instance", &*self.name));
            }
        }
        Ok(changed)
    }
}

/// Forwards packets on this thread and on those of further workers, while another one handles signals, until one of
/// them ends. `settle` gives up what only the start needed, before the first packet.
fn work(
    running: &mut Running,
    (stopper, further): (Stopper, impl Iterator<Item = (Further, AssembleMore)>),
    control: &mut ControlLoop<'_>,
    snapshot: &(impl Fn() -> Instance + Sync),
    (name, settle): (&str, impl FnOnce() -> Result<(), Error>),
    out: &dyn Report,
) -> Result<(), Error> {
    let ended = AtomicBool::new(false);
    let vitals = control.vitals;
    let heartbeat = &vitals.heartbeat;
    let stopper = &stopper;
    thread::scope(|scope| {
        let crew = Crew::start(scope, further, name, vitals, stopper)?;
        let waiter = started::spawn_scoped(scope, "signals", || {
            let outcome = wait(control, &ended, snapshot, out);
            heartbeat.over(Thread::Signals);
            stopper.stop();
            hurry(control, &ended);
            outcome
        });
        let waiter = waiter.map_err(|error| {
            Error::system("cannot listen to signals", &error, "segue doctor").why("its thread did not start")
        })?;
        let worked = settle().and_then(|()| {
            crew.begin();
            running.work(name, heartbeat)
        });
        stopper.stop();
        let worked = worked.and(crew.join());
        ended.store(true, Ordering::Relaxed);
        // A panic of the waiting thread has ended the process.
        let waited = waiter.join().unwrap_or(Ok(()));
        worked.and(waited)
    })
}

/// Returns a function that reads the state of the instance, callable at any time and from any thread.
fn snapshot(
    daemon: &impl Daemon,
    (sandbox, heartbeat, is_managed): (&Sandbox, &Heartbeat, bool),
    since: Instant,
    read: impl Fn(&mut Instance) + Send + Sync + Clone + 'static,
    fastpath: Option<Fastpath>,
    (complaints, helpers): (Option<Complaints>, Arc<[Helper]>),
    (health, peers): (Option<Health>, Option<Arc<Keeper>>),
) -> impl Fn() -> Instance + Send + Sync + Clone + 'static {
    let (name, kind, pid) = (daemon.name().to_owned(), daemon.kind(), process::id());
    let (sandbox, heartbeat) = (sandbox.clone(), heartbeat.clone());
    move || {
        let mut instance = Instance {
            name: name.clone(),
            kind: kind.to_owned(),
            pid,
            is_managed,
            uptime_s: since.elapsed().as_secs_f64(),
            cpu_s: sys::cpu_seconds(),
            sandbox: Some(sandbox.clone()),
            ..Instance::default()
        };
        read(&mut instance);
        if let Some(fastpath) = &fastpath {
            fastpath.fill(&mut instance);
        }
        instance.peers = peers.as_ref().map(|peers| Box::new(peers.summary()));
        instance.health.extend(peers.as_ref().and_then(|peers| peers.complaint()));
        if (0..heartbeat.workers()).any(|worker| heartbeat.is_stuck(Thread::of_worker(worker), STUCK)) {
            instance.health.push(Complaint {
                what: "no packet moves".to_owned(),
                why: Some("the packet loop does not finish its round; the supervisor ends it".to_owned()),
                code: "stuck".to_owned(),
                ..Complaint::default()
            });
        }
        instance.health.extend(helpers.iter().filter_map(|helper| helper.complaint(is_managed)));
        instance.count_drops();
        if let Some(complaints) = &complaints {
            let more = complaints(&instance);
            instance.health.extend(more);
        }
        if let Some(health) = &health {
            health.put(&mut instance);
        }
        instance
    }
}

fn down(
    daemon: &impl Daemon,
    server: Server,
    snapshot: &impl Fn() -> Instance,
    running: &Running,
    since: Instant,
    heartbeat: &Heartbeat,
    out: &dyn Report,
) {
    let instance = snapshot();
    server.stop();
    heartbeat.over(Thread::Control);
    let after = since.elapsed();
    if out.is_json() {
        out.value(&show::down_json(daemon, &instance, running, after));
    } else {
        let text = show::down_text(&instance, after);
        out.event(&LogEntry::new(LogEvent::Down, text.trim_end()).with("instance", &*instance.name));
    }
}
