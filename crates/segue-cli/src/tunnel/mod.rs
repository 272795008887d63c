//! `segue tunnel`: from words to a tunnel, and back to nothing.

pub(crate) mod plan;
pub(crate) mod resolve;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod why;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::resolve::Ready;
use crate::args::Tunnel;
use crate::control::client;
use crate::control::model::Instance;
use crate::control::server::{Bound, Server};
use crate::error::{Error, Kind};
use crate::out::{OnClosed, Out};
use crate::sandbox;
use crate::signals::{Signals, Wish};
use crate::sys::{self, Want};
use crate::system::{Changes, Netlink};
use crate::words::{parse, tunnel};

/// How often the loop looks whether packets still move.
const LOOK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Tunnel, out: &Out) -> Result<(), Error> {
    let parsed = parse::parse("segue tunnel", tunnel::WORDS, &args.words)?;
    let plan = plan::plan(&parsed, args.trace.clone())?;
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for routes", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let ready = resolve::resolve(plan, &mut netlink)?;
    if args.check {
        return check(&ready, &mut netlink, out);
    }
    up(&ready, &mut netlink, &Out { on_closed: OnClosed::Ignore, ..*out })
}

/// `--check`: what would stop the tunnel, and what it would be. Changes nothing.
fn check(ready: &Ready, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    if client::one(dev).is_ok() {
        return Err(Error::new(Kind::InUse, format!("{dev} is already running"), format!("segue stat {dev}"))
            .why("its control socket answers"));
    }
    if let Some(directory) = ready.plan.trace.as_deref().and_then(Path::parent)
        && !directory.as_os_str().is_empty()
        && !directory.is_dir()
    {
        return Err(Error::new(
            Kind::System,
            format!("cannot write into {}", directory.display()),
            "another path: --trace FILE.pcap",
        )
        .why("there is no such directory"));
    }
    free(dev, netlink)?;
    let listen = SocketAddr::new(ready.local, ready.plan.port);
    UdpSocket::bind(listen).map_err(|error| why::bind(listen, &error))?;
    let mut notes = ready.notes();
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open(why::TUN) {
        notes.push(format!("this user cannot start it: {}", why::tun_open(dev, &error).message));
    } else if !sys::capabilities().is_ok_and(sys::has_net_admin) {
        notes
            .push("this user lacks CAP_NET_ADMIN and cannot start it, unless the interface was made for it".to_owned());
    }
    if out.json {
        out.value(&show::plan_json(ready, &notes));
    } else {
        notes.iter().for_each(|note| out.note(&format!("note: {note}")));
        out.data(&show::plan_text(ready));
    }
    Ok(())
}

/// An interface of this name may exist only if it is a TUN device that was made for segue beforehand.
fn free(dev: &str, netlink: &mut Netlink) -> Result<(), Error> {
    let taken = netlink.link_named(dev).map_err(|error| why::change(dev, "read the state", &error))?;
    match taken {
        Some(link) if !link.tun => Err(why::tun_attach(dev, &std::io::Error::from_raw_os_error(libc::EEXIST))),
        _ => Ok(()),
    }
}

/// Opens everything, gives up what is not needed, and stays until a signal.
fn up(ready: &Ready, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    if !out.quiet {
        log_to_stderr();
    }
    let mut signals = Signals::new().map_err(|error| {
        Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
    })?;
    if !out.json {
        ready.notes().iter().for_each(|note| out.note(&format!("note: {note}")));
    }
    let socket = Bound::new(dev)?;
    free(dev, netlink)?;
    out.change(&format!("ip tuntap add dev {dev} mode tun vnet_hdr"), "TUNSETIFF");
    let devices = start::open(ready)?;
    configure(ready, netlink, out)?;
    let sandbox = sandbox::enter(&mut signals, socket.path(), out)?;
    let offloads = devices.offloads().clone();
    let (mut running, stopper) = devices.start(ready)?;
    let since = Instant::now();
    let snapshot = snapshot(ready, since, running.reader(ready));
    let socket_path = socket.path().to_owned();
    let server = socket.serve(snapshot.clone()).map_err(|error| {
        Error::system("cannot serve the control socket", &error, "segue doctor").why("its thread did not start")
    })?;
    if out.json {
        out.value(&show::up_json(ready, &offloads, &sandbox));
    } else {
        out.note(show::up_text(ready, &offloads, &sandbox).trim_end());
    }
    let outcome = work(&mut running, stopper, &mut signals, &snapshot, &socket_path, dev, out);
    down(server, &snapshot, since, out);
    outcome
}

/// Moves packets on this thread while another one listens to signals, until one of them is done.
fn work(
    running: &mut start::Running,
    mut stopper: start::Stopper,
    signals: &mut Signals,
    snapshot: &(impl Fn() -> Instance + Sync),
    socket: &Path,
    dev: &str,
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
        let worked = running.work(dev);
        ended.store(true, Ordering::Relaxed);
        // The waiter only panics where the program itself is broken; there is nothing to add to what it printed.
        let waited = waiter.join().unwrap_or(Ok(()));
        worked.and(waited)
    })
}

/// What ports have to say while they run (an offload that the kernel took back): one line each, once.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second subscriber is refused, which only a test that starts two tunnels in one process would see.
    let _ = log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).try_init();
}

/// A function that gives the instance's state at any time.
fn snapshot(
    ready: &Ready,
    since: Instant,
    read: impl Fn(&mut Instance) + Send + Sync + Clone + 'static,
) -> impl Fn() -> Instance + Send + Sync + Clone + 'static {
    let (name, pid) = (ready.plan.dev.clone(), process::id());
    move || {
        let mut instance = Instance {
            name: name.clone(),
            kind: "tunnel".to_owned(),
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

/// MTU, addresses, up: in this order, so that nothing goes out with the wrong size.
fn configure(ready: &Ready, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    let link = netlink
        .link_named(dev)
        .and_then(|link| link.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV)))
        .map_err(|error| why::change(dev, "read the state", &error))?;
    let mut changes = Changes { netlink, out, index: link.index, name: dev };
    changes.mtu(ready.mtu).map_err(|error| why::change(dev, &format!("set the MTU {}", ready.mtu), &error))?;
    // Older kernels do not take the IPv4 part; trains are then cut by segue.
    if ready.plan.gso && changes.gso_max_size(ready.gso_max_size()).is_err() {
        out.note("note: the kernel keeps its own gso_max_size; some trains are cut into two sends");
    }
    // A kernel without IPv6 refuses, and then makes none either. With it, what it would send on its own would count as
    // drops of a tunnel that carries IPv4 only.
    if ready.plan.mode == plan::Mode::Ipip {
        let _ = changes.no_generated_addresses();
    }
    for &prefix in &ready.plan.addr {
        match changes.address(prefix) {
            // An interface that was made beforehand may have it from an earlier run.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => return Err(why::change(dev, &format!("set the address {prefix}"), &error)),
            Ok(()) => {}
        }
    }
    changes.up().map_err(|error| why::change(dev, "change the state", &error))
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

fn down(server: Server, snapshot: &impl Fn() -> Instance, since: Instant, out: &Out) {
    let instance = snapshot();
    server.stop();
    let after = since.elapsed();
    if out.json {
        out.value(&show::down_json(&instance, after));
    } else {
        out.note(show::down_text(&instance, after).trim_end());
    }
}
