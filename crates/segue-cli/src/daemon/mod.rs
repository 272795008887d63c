//! The life of a command that stays: it opens what it needs, gives up its rights, moves packets, and ends on a signal.

pub(crate) mod kernel;
pub(crate) mod knobs;
pub(crate) mod running;
pub(crate) mod show;

use std::os::fd::AsFd;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::Teller;
use serde_json::Value;

use self::kernel::ChecksumDrops;
use self::knobs::Desk;
use self::running::{Offloads, Running, Stopper};
use crate::control::knobs::{Change, Knob};
use crate::control::model::{Instance, Side};
use crate::control::server::{Bound, Panel, Server};
use crate::error::{Error, Kind};
use crate::nat::{self as mapping, Mapping};
use crate::out::{OnClosed, Out};
use crate::sandbox::{self, Sandbox};
use crate::signals::{Signals, Wish};
use crate::sys::{self, Want};
use crate::system::Netlink;

/// How often the loop looks whether packets still move.
const LOOK: Duration = Duration::from_millis(500);

/// A command that stays.
pub(crate) trait Daemon {
    /// Its name for `segue stat`, and that of its control socket.
    fn name(&self) -> &str;
    /// What it is, in one word.
    fn kind(&self) -> &'static str;
    /// The id of the JSON that it prints, one object for each event.
    fn schema(&self) -> &'static str;
    /// Things to know before it starts.
    fn notes(&self) -> Vec<String>;
    /// Its ports as the pipeline names them.
    fn ports(&self) -> Vec<(String, Side)>;
    /// Its settings as they are at the start: none where nothing can be changed while it runs.
    fn knobs(&self) -> Result<Knobs, Error> {
        Ok(Knobs::default())
    }
    /// The ioctls that its devices need while packets move, besides TUN's.
    fn ioctls(&self) -> &'static [u64] {
        &[]
    }
    /// Opens and sets up all that it needs, with all rights. On success everything is ready to go.
    fn open(&self, netlink: &mut Netlink, out: &Out) -> Result<Opened, Error>;
    /// The lines when it is up.
    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox) -> String;
    /// What the event has to say when it is up, beside what all have.
    fn up_json(&self) -> Value;
}

/// Devices that are open and not yet used.
pub(crate) struct Opened {
    /// What the kernel does for them.
    pub(crate) offloads: Offloads,
    /// How to ask for the mappings of a NAT, where there is one.
    pub(crate) teller: Option<Teller>,
    /// What the kernel drops before its sockets, where it says so.
    pub(crate) checksum_drops: Option<ChecksumDrops>,
    /// Puts them together, inside the sandbox.
    pub(crate) assemble: Box<dyn FnOnce() -> Result<Box<dyn Pipeline>, Error>>,
}

/// What ports have to say while they run (an offload that the kernel took back): one line each, once.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second subscriber is refused, which only a test that starts two of them in one process would see.
    let _ = log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).try_init();
}

/// From here on this process ends with the one that watches over it, if there is one.
pub(crate) fn follow(supervisor: Option<i32>) -> Result<(), Error> {
    let Some(pid) = supervisor else { return Ok(()) };
    sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| {
        Error::system("cannot follow the process that started this one", &error, "segue doctor").why("prctl failed")
    })?;
    if sys::parent_pid() == pid {
        return Ok(());
    }
    Err(Error::new(Kind::System, "the process that started this one has ended", "start again").why("somebody ended it"))
}

/// Opens everything, gives up what is not needed, and stays until a signal.
pub(crate) fn up(daemon: &impl Daemon, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let out = &Out { on_closed: OnClosed::Ignore, ..*out };
    if !out.quiet {
        log_to_stderr();
    }
    let mut signals = Signals::new().map_err(|error| {
        Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
    })?;
    if !out.json {
        daemon.notes().iter().for_each(|note| out.note(&format!("note: {note}")));
    }
    let knobs = daemon.knobs()?;
    let socket = Bound::new(daemon.name())?;
    let Opened { offloads, teller, checksum_drops, assemble } = daemon.open(netlink, out)?;
    let sandbox = sandbox::enter(&mut signals, socket.path(), daemon.ioctls(), out)?;
    let (mut running, stopper) = Running::new(assemble()?, offloads.clone(), knobs)?;
    let since = Instant::now();
    let snapshot = snapshot(daemon, since, running.reader(daemon.ports(), checksum_drops));
    let socket_path = socket.path().to_owned();
    let panel =
        Announced { desk: running.desk(), name: daemon.name().to_owned(), schema: daemon.schema(), out: *out, teller };
    let server = socket.serve(snapshot.clone(), panel).map_err(|error| {
        Error::system("cannot serve the control socket", &error, "segue doctor").why("its thread did not start")
    })?;
    if out.json {
        out.value(&show::up_json(daemon, &offloads, &sandbox));
    } else {
        out.note(daemon.up_text(&offloads, &sandbox).trim_end());
    }
    let outcome = work(&mut running, stopper, &mut signals, &snapshot, &socket_path, daemon.name(), out);
    down(daemon, server, &snapshot, since, out);
    outcome
}

/// The knobs of an instance that says what was changed.
struct Announced {
    desk: Desk,
    name: String,
    schema: &'static str,
    out: Out,
    teller: Option<Teller>,
}

impl Panel for Announced {
    fn mappings(&self) -> Option<Vec<Mapping>> {
        mapping::ask(self.teller.as_ref()?)
    }

    fn list(&self) -> Vec<Knob> {
        self.desk.list()
    }

    fn set(&self, wishes: &[(String, String)]) -> Result<Vec<Change>, Error> {
        let changed = self.desk.set(wishes)?;
        if self.out.json {
            self.out.value(&show::set_json(self.schema, &self.name, &changed));
        } else {
            changed
                .iter()
                .for_each(|c| self.out.note(&format!("{}: {}: {} -> {}", self.name, c.name, c.before, c.value)));
        }
        Ok(changed)
    }
}

/// Moves packets on this thread while another one listens to signals, until one of them is done.
fn work(
    running: &mut Running,
    mut stopper: Stopper,
    signals: &mut Signals,
    snapshot: &(impl Fn() -> Instance + Sync),
    socket: &Path,
    name: &str,
    out: &Out,
) -> Result<(), Error> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = thread::Builder::new().name("signals".to_owned()).spawn_scoped(scope, || {
            let outcome = wait(signals, &ended, snapshot, socket, out);
            stopper.stop();
            outcome
        });
        let waiter = waiter.map_err(|error| {
            Error::system("cannot listen to signals", &error, "segue doctor").why("its thread did not start")
        })?;
        let worked = running.work(name);
        ended.store(true, Ordering::Relaxed);
        // The waiter only panics where the program itself is broken; there is nothing to add to what it printed.
        let waited = waiter.join().unwrap_or(Ok(()));
        worked.and(waited)
    })
}

/// A function that gives the instance's state at any time.
fn snapshot(
    daemon: &impl Daemon,
    since: Instant,
    read: impl Fn(&mut Instance) + Send + Sync + Clone + 'static,
) -> impl Fn() -> Instance + Send + Sync + Clone + 'static {
    let (name, kind, pid) = (daemon.name().to_owned(), daemon.kind(), process::id());
    move || {
        let mut instance = Instance {
            name: name.clone(),
            kind: kind.to_owned(),
            pid,
            uptime_s: since.elapsed().as_secs_f64(),
            cpu_s: sys::cpu_seconds(),
            ..Instance::default()
        };
        read(&mut instance);
        instance.count_drops();
        instance
    }
}

/// Until a signal asks for the end, or packets have stopped to move.
fn wait(
    signals: &mut Signals,
    ended: &AtomicBool,
    snapshot: &impl Fn() -> Instance,
    socket: &Path,
    out: &Out,
) -> Result<(), Error> {
    loop {
        sys::poll(&[(signals.as_fd(), Want::Read)], LOOK)
            .map_err(|error| Error::system("cannot wait", &error, "start again").why("the kernel refused to poll"))?;
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        while let Ok(Some((wish, _))) = signals.next() {
            match wish {
                Wish::Stop => return Ok(()),
                Wish::StopNow => leave_now(socket),
                Wish::Counters => {
                    let instance = snapshot();
                    out.warn(&format!("{}: {}", instance.name, show::counters_text(&instance)));
                }
                Wish::Child | Wish::Hangup => {}
            }
        }
    }
}

/// Ends at once; the kernel takes the interface away when its descriptor closes.
fn leave_now(socket: &Path) -> ! {
    let _ = std::fs::remove_file(socket);
    process::exit(i32::from(Kind::Interrupted.exit_code()))
}

fn down(daemon: &impl Daemon, server: Server, snapshot: &impl Fn() -> Instance, since: Instant, out: &Out) {
    let instance = snapshot();
    server.stop();
    let after = since.elapsed();
    if out.json {
        out.value(&show::down_json(daemon, &instance, after));
    } else {
        out.note(show::down_text(&instance, after).trim_end());
    }
}
