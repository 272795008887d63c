//! The life of a command that stays: it opens what it needs, gives up its rights, moves packets, and ends on a signal.

pub(crate) mod kernel;
pub(crate) mod knobs;
mod mappings;
pub(crate) mod running;
pub(crate) mod show;

use std::io;
use std::os::fd::AsFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::knobs::{Change, Knob};
use segue_control::mapping::Mapping;
use segue_control::model::{Complaint, Instance, Side};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::FeedSender;
use segue_host::netlink::Netlink;
use segue_host::signals::{Signals, Wish};
use segue_host::sys::{self, Want};
use segue_service::control_server::{Bound, Panel, Server, SocketFile};
use segue_service::handover::{Line, Ports, Record};
use segue_service::sandbox::{self, Sandbox};
use serde_json::Value;

use self::kernel::{ChecksumDrops, Forwarding};
use self::knobs::Desk;
use self::running::{Offloads, Running, Stopper};
use crate::gateway::claim::Claim;
use crate::out::{OnClosed, Out};

/// How often the loop looks whether packets still move.
const LOOK: Duration = Duration::from_millis(500);
/// How long the loop may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

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
    fn open(&self, netlink: &mut Netlink, succession: &mut Succession, out: &Out) -> Result<Opened, Error>;
    /// The lines when it is up.
    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox) -> String;
    /// What the event has to say when it is up, beside what all have.
    fn up_json(&self) -> Value;
}

/// What one instance has of another one whose place it takes, and whether one may take its own.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// Ports that are open and set up.
    pub(crate) inherited: Ports,
    /// Whether its ports are to be kept for another one.
    pub(crate) has_heirs: bool,
}

/// The process that watches over this one.
#[derive(Debug)]
pub(crate) struct Watched {
    line: Line,
    is_heir: bool,
}

/// What an instance has to say of its health, besides its offloads.
pub(crate) type Complaints = Arc<dyn Fn(&Instance) -> Vec<Complaint> + Send + Sync>;

/// Devices that are open and not yet used.
pub(crate) struct Opened {
    /// What the kernel does for them.
    pub(crate) offloads: Offloads,
    /// How to ask for the mappings of a NAT, where there is one.
    pub(crate) sender: Option<FeedSender>,
    /// What the kernel drops before its sockets, where it says so.
    pub(crate) checksum_drops: Option<ChecksumDrops>,
    /// Of a router: whether the kernel forwards as well.
    pub(crate) forwarding: Option<Forwarding>,
    /// What no other instance may have at the same time.
    pub(crate) claim: Option<Claim>,
    /// What it leaves to an heir.
    pub(crate) ports: Ports,
    /// What is wrong with it, where it can say so.
    pub(crate) complaints: Option<Complaints>,
    /// Ends what the loop waits for, where it may wait for something else than its descriptors.
    pub(crate) hurry: Option<Box<dyn Fn() + Send>>,
    /// Puts them together, inside the sandbox.
    pub(crate) assemble: Box<dyn FnOnce() -> Result<Box<dyn Pipeline>, Error>>,
}

impl Opened {
    /// What every command has.
    pub(crate) fn new(offloads: Offloads, assemble: Box<dyn FnOnce() -> Result<Box<dyn Pipeline>, Error>>) -> Opened {
        Opened {
            offloads,
            sender: None,
            checksum_drops: None,
            forwarding: None,
            claim: None,
            ports: Ports::default(),
            complaints: None,
            hurry: None,
            assemble,
        }
    }
}

/// What ports have to say while they run (an offload that the kernel took back): one line each, once.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second subscriber is refused, which only a test that starts two of them in one process would see.
    let _ = log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).try_init();
}

/// From here on this process ends with the one that watches over it, if there is one.
pub(crate) fn follow(supervisor: Option<i32>, is_heir: bool) -> Result<Option<Watched>, Error> {
    let Some(pid) = supervisor else { return Ok(None) };
    sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| {
        Error::system("cannot follow the process that started this one", &error, "segue doctor").why("prctl failed")
    })?;
    if sys::parent_pid() == pid {
        let line = Line::of_stdin().map_err(|error| lost(&error))?;
        return Ok(Some(Watched { line, is_heir }));
    }
    Err(Error::new(Kind::System, "the process that started this one has ended", "start again").why("somebody ended it"))
}

fn lost(error: &io::Error) -> Error {
    Error::system("cannot hear the process that started this one", error, "start again").why("their line is broken")
}

/// Waits for the word to begin, and takes what comes before it. `false` where a signal asks for the end.
fn begin(line: &Line, signals: &mut Signals, running: &mut Running) -> Result<bool, Error> {
    loop {
        sys::poll(&[(signals.as_fd(), Want::Read), (line.as_fd(), Want::Read)], Duration::from_secs(60))
            .map_err(|error| lost(&error))?;
        while let Ok(Some((wish, _))) = signals.next() {
            if matches!(wish, Wish::Stop | Wish::StopNow) {
                return Ok(false);
            }
        }
        match line.hear(Duration::ZERO) {
            Ok((Record::Go, _)) => return Ok(true),
            Ok((Record::Sequence(name, next), _)) => running.go_on(&name, next),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(lost(&error)),
        }
    }
}

/// Opens everything, gives up what is not needed, and stays until a signal.
pub(crate) fn up(
    daemon: &impl Daemon,
    netlink: &mut Netlink,
    watched: Option<Watched>,
    out: &Out,
) -> Result<(), Error> {
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
    let mut succession = Succession { has_heirs: watched.is_some(), ..Succession::default() };
    let heir_of = watched.as_ref().filter(|watched| watched.is_heir).map(|watched| &watched.line);
    let socket = match heir_of {
        None => Bound::new(daemon.name())?,
        Some(line) => {
            succession.inherited = Ports::take(line).map_err(|error| lost(&error))?;
            Bound::next(daemon.name())?
        }
    };
    let Opened { offloads, sender, checksum_drops, forwarding, claim, ports, complaints, hurry, assemble } =
        daemon.open(netlink, &mut succession, out)?;
    drop(succession);
    let sandbox = sandbox::enter(&mut signals, socket.file(), daemon.ioctls(), out)?;
    let (mut running, stopper) = Running::new(assemble()?, offloads.clone(), knobs)?;
    if let Some(line) = heir_of {
        out.value(&show::heir_json(daemon));
        if !begin(line, &mut signals, &mut running)? {
            return Ok(());
        }
    }
    let since = Instant::now();
    let reader = running.reader(daemon.ports(), checksum_drops, forwarding.clone());
    let snapshot = snapshot(daemon, since, reader, complaints);
    let file = socket.file().clone();
    let panel =
        Announced { desk: running.desk(), name: daemon.name().to_owned(), schema: daemon.schema(), out: *out, sender };
    let server = socket.serve(claim.map(|claim| claim.socket), snapshot.clone(), panel).map_err(|error| {
        Error::system("cannot serve the control socket", &error, "segue doctor").why("its thread did not start")
    })?;
    if out.json {
        out.value(&show::up_json(daemon, &offloads, &sandbox));
    } else {
        out.note(daemon.up_text(&offloads, &sandbox).trim_end());
    }
    let mut ear = Ear {
        signals: &mut signals,
        line: watched.as_ref().map(|watched| &watched.line),
        ports: &ports,
        socket: &file,
        hurry,
        forwarding,
    };
    let outcome = work(&mut running, stopper, &mut ear, &snapshot, daemon.name(), out);
    down(daemon, server, &snapshot, &running, since, out);
    outcome
}

/// The knobs of an instance that says what was changed.
struct Announced {
    desk: Desk,
    name: String,
    schema: &'static str,
    out: Out,
    sender: Option<FeedSender>,
}

impl Panel for Announced {
    fn mappings(&self) -> Option<Vec<Mapping>> {
        mappings::ask(self.sender.as_ref()?)
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

/// What is listened to while packets move, and what there is to answer with.
struct Ear<'a> {
    signals: &'a mut Signals,
    line: Option<&'a Line>,
    ports: &'a Ports,
    socket: &'a SocketFile,
    hurry: Option<Box<dyn Fn() + Send>>,
    forwarding: Option<Forwarding>,
}

/// Moves packets on this thread while another one listens to signals, until one of them is done.
fn work(
    running: &mut Running,
    mut stopper: Stopper,
    ear: &mut Ear<'_>,
    snapshot: &(impl Fn() -> Instance + Sync),
    name: &str,
    out: &Out,
) -> Result<(), Error> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = thread::Builder::new().name("signals".to_owned()).spawn_scoped(scope, || {
            let outcome = wait(ear, &ended, snapshot, out);
            stopper.stop();
            hurry(ear, &ended);
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

/// Gives the loop its time to end, and then ends what it waits for.
fn hurry(ear: &Ear<'_>, ended: &AtomicBool) {
    let Some(hurry) = &ear.hurry else { return };
    let until = Instant::now() + PATIENCE;
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= until {
            return hurry();
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A function that gives the instance's state at any time.
fn snapshot(
    daemon: &impl Daemon,
    since: Instant,
    read: impl Fn(&mut Instance) + Send + Sync + Clone + 'static,
    complaints: Option<Complaints>,
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
        if let Some(complaints) = &complaints {
            let more = complaints(&instance);
            instance.health.extend(more);
        }
        instance
    }
}

/// Until a signal asks for the end, or packets have stopped to move.
fn wait(ear: &mut Ear<'_>, ended: &AtomicBool, snapshot: &impl Fn() -> Instance, out: &Out) -> Result<(), Error> {
    let mut forwards = false;
    loop {
        let mut fds = vec![(ear.signals.as_fd(), Want::Read)];
        fds.extend(ear.line.map(|line| (line.as_fd(), Want::Read)));
        let ready = sys::poll(&fds, LOOK)
            .map_err(|error| Error::system("cannot wait", &error, "start again").why("the kernel refused to poll"))?;
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let complaint = ear.forwarding.as_ref().and_then(Forwarding::complaint);
        if let Some(Complaint { what, why, .. }) = complaint.as_ref().filter(|_| !forwards) {
            out.warn(&format!("{what}: {}", why.as_deref().unwrap_or_default()));
        }
        forwards = complaint.is_some();
        if let (Some(line), Some(true)) = (ear.line, ready.get(1)) {
            let answered = line.hear(Duration::ZERO).and_then(|(record, _)| match record {
                Record::Ask => ear.ports.give(line),
                _ => Ok(()),
            });
            // Nobody is there any more, whose end is this one's as well: a signal says so.
            if answered.is_err() {
                ear.line = None;
            }
        }
        while let Ok(Some((wish, _))) = ear.signals.next() {
            match wish {
                Wish::Stop => return Ok(()),
                Wish::StopNow => leave_now(ear.socket),
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
fn leave_now(socket: &SocketFile) -> ! {
    socket.remove();
    process::exit(i32::from(Kind::Interrupted.exit_code()))
}

fn down(
    daemon: &impl Daemon,
    server: Server,
    snapshot: &impl Fn() -> Instance,
    running: &Running,
    since: Instant,
    out: &Out,
) {
    let instance = snapshot();
    server.stop();
    let after = since.elapsed();
    if out.json {
        out.value(&show::down_json(daemon, &instance, running, after));
    } else {
        out.note(show::down_text(&instance, after).trim_end());
    }
}
