//! The in-kernel path of tunnels: whether it is used, the reason if not, and its counters.
//!
//! The daemon loads the programs of `segue-fastpath` with all rights, attaches them, and keeps them for its own life. A
//! thread follows routes and what would make the path visible; the packets themselves never reach the process.

mod counts;
mod filters;
mod obstacle;
mod request;
mod schedule;
mod state;
mod switches;
mod table;
mod tunnel;

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use segue::encap::{Carrier, Config};
use segue_control::error::{Error, Kind, os_text};
use segue_control::model::{self, Instance};
use segue_datapath::overlay::PeerConfig;
use segue_fastpath::{Direction, Path, PeerCounts, obstacle as unsupported};
use segue_host::netlink::Netlink;
use segue_host::netlink::changes::Changes;
use segue_host::prefix::Prefix;
use segue_host::sys;

use crate::fault::Vitals;
use crate::heartbeat::{Heartbeat, Thread};
use crate::started;
use crate::tunnel::kinds::Fastpath as Mode;

use self::counts::{add, put_dropped, put_left};
use self::filters::{Added, tidy};
use self::obstacle::{Interfaces, failure};
pub use self::request::Request;
use self::schedule::LookupSchedule;
use self::state::{Programs, State};
pub use self::switches::{KNOB, Switches};
pub(crate) use self::table::OF_PEERS;
pub use self::table::{Listener, Table};
pub use self::tunnel::Tunnel;
use self::tunnel::{route, route_to};

/// Interval at which routes and path MTUs are followed.
const TICK: Duration = Duration::from_millis(200);
/// Number of intervals after which the interfaces are checked for obstacles that would make the in-kernel path visible,
/// and all routes for a change.
const CHECK_EVERY: u32 = 5;

/// Length of an Ethernet header, bytes.
const ETHERNET_LEN: u64 = 14;

/// The in-kernel path of one instance, in use or not.
#[derive(Clone, Debug)]
pub struct Fastpath(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    request: Request,
    state: Mutex<State>,
}

impl Fastpath {
    /// Loads and attaches the in-kernel path, unless it is switched off or an obstacle is found; the interfaces must
    /// exist. `switches` are in force from the first packet on.
    ///
    /// # Errors
    /// With [`Mode::Require`], where the path cannot be used.
    pub fn open(request: Request, switches: Switches, netlink: &mut Netlink) -> Result<Fastpath, Error> {
        let mut state = State::default();
        state.set(switches, request.mode);
        match state.load(request.mode, || load(&request, netlink).and_then(usable)) {
            Ok(()) => {}
            Err(why) if request.mode == Mode::Require => {
                let dev = request.devs().first().copied().unwrap_or("the tunnel");
                return Err(Error::new(
                    Kind::NotAvailable,
                    format!("{dev} cannot take the in-kernel path, which `fastpath require` asks for"),
                    "fastpath auto   leaves to the daemon what the in-kernel path cannot carry\nsegue doctor    says what is missing",
                )
                .why(why)
                .names_instance());
            }
            Err(why) => state.why = Some(why),
        }
        if state.path.is_some() {
            state.note_addresses(&request.locals(), netlink.all_addresses());
        }
        state.settle();
        if let (Mode::Require, Some(why)) = (request.mode, state.why.as_ref().or(state.unswitched.as_ref())) {
            return Err(Error::new(Kind::System, "the in-kernel path cannot be switched on", "segue doctor").why(why));
        }
        Ok(Fastpath(Arc::new(Inner { request, state: Mutex::new(state) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the programs are loaded, so that their maps are used.
    pub fn is_loaded(&self) -> bool {
        self.state().path.is_some()
    }

    /// Returns whether packets take the in-kernel path.
    pub(crate) fn is_on(&self) -> bool {
        self.state().is_on
    }

    /// Returns whether packets of a direction take the in-kernel path.
    pub fn carries(&self, direction: Direction) -> bool {
        let state = self.state();
        let by_daemon = |path: &Programs| path.partial().iter().any(|(other, _)| *other == direction);
        state.is_on && !state.path.as_ref().is_some_and(by_daemon)
    }

    /// Returns the path of packets and the reason, in one line; `None` if only the daemon was requested.
    pub fn choice(&self) -> Option<String> {
        let state = self.state();
        if self.0.request.mode == Mode::Off {
            return None;
        }
        let why = state.why.as_ref().or(state.unswitched.as_ref());
        if let (Some(Programs::Table(_)), None, false) = (&state.path, why, state.needs_queues) {
            return Some(OF_PEERS.to_owned());
        }
        let Some(path) = state.path.as_ref().filter(|_| state.is_on) else {
            let why = state.reason().unwrap_or_else(|| "switched off".to_owned());
            return Some(format!("segue [{why}]"));
        };
        let partly = |(direction, why): &(Direction, &str)| match direction {
            Direction::Send => format!("kernel for received packets; segue sends [{why}]"),
            Direction::Receive => format!("kernel for sent packets; segue receives [{why}]"),
        };
        Some(path.partial().first().map_or_else(|| "kernel: this form needs nothing of segue".to_owned(), partly))
    }

    /// Permits the in-kernel path, or leaves all packets to the daemon; with `fastpath auto` also while the daemon has
    /// queues by flow, which packets on the path would bypass.
    pub fn allow(&self, switches: Switches) {
        let mut state = self.state();
        state.set(switches, self.0.request.mode);
        state.settle();
    }

    /// Starts the thread that follows routes and obstacles, where the path is loaded, by connections that were opened
    /// outside of the sandbox. `vitals` takes its heartbeat.
    ///
    /// # Errors
    /// The system's, if the thread cannot be started.
    pub fn follow(&self, connections: (Netlink, Changes), vitals: Vitals) -> io::Result<Option<Follower>> {
        if !self.is_loaded() {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::sync_channel::<()>(0);
        let path = self.clone();
        let (mut netlink, changes) = connections;
        let mut schedule = LookupSchedule::new(Some(changes));
        let thread = started::spawn("fastpath", move || {
            let mut tick = 0_u32;
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                vitals.beat(Thread::Fastpath);
                path.check(&mut netlink, &mut schedule, tick, &vitals.heartbeat);
                tick = tick.wrapping_add(1);
            }
            vitals.heartbeat.over(Thread::Fastpath);
        })?;
        Ok(Some(Follower { stop: Some(stop), thread: Some(thread) }))
    }

    /// Follows routes and interfaces of some tunnels and, less often, local addresses and obstacles. What the kernel is
    /// asked, it may answer late.
    fn check(&self, netlink: &mut Netlink, schedule: &mut LookupSchedule, tick: u32, heartbeat: &Heartbeat) {
        let tunnels = &self.0.request.tunnels;
        if tick.is_multiple_of(CHECK_EVERY) {
            self.follow_changes(schedule);
        }
        let interfaces: Vec<u32> = match &self.state().path {
            Some(Programs::Tunnels(path)) => path.interfaces().collect(),
            _ => Vec::new(),
        };
        // The routes are looked up without the lock, which readers of counters wait for.
        let look = |index: usize| {
            let (config, interface) = (&tunnels[index].config, interfaces[index]);
            heartbeat.unwatched(Thread::Fastpath, || {
                let route = route(netlink, config).unwrap_or_default();
                (index, route, tunnel::station(netlink, interface, config))
            })
        };
        let found: Vec<_> = schedule.tunnels(interfaces.len()).into_iter().map(look).collect();
        heartbeat.unwatched(Thread::Fastpath, || self.state().follow(tunnels, &found));
        if let Some(table) = &self.0.request.table {
            self.follow_peers(table, netlink, heartbeat);
        }
        if !tick.is_multiple_of(CHECK_EVERY) {
            return;
        }
        let mut state = self.state();
        if let Some(peers) = state.refused.take() {
            // The kernel may have had no memory for a moment.
            state.set_peers(peers);
        } else if state.unswitched.is_some() {
            state.settle();
        }
        drop(state);
        let addresses = heartbeat.unwatched(Thread::Fastpath, || netlink.all_addresses());
        self.state().note_addresses(&self.0.request.locals(), addresses);
        if self.0.request.mode != Mode::Auto {
            return;
        }
        let interfaces = self.interfaces();
        let is_v4 = self.0.request.is_v4();
        let seen = heartbeat.unwatched(Thread::Fastpath, || match obstacle::of_interfaces(&interfaces, netlink)? {
            None => obstacle::of_rules(is_v4, netlink),
            found => Ok(found),
        });
        self.state().set_obstacle(seen);
    }

    /// Returns the interfaces of the tunnels, and those of the routes as they were last looked up.
    fn interfaces(&self) -> Interfaces<'_> {
        let Request { tunnels, table, .. } = &self.0.request;
        match (&self.state().path, table) {
            (Some(Programs::Tunnels(path)), _) => Interfaces {
                inside: path.interfaces().zip(tunnels.iter().map(|tunnel| tunnel.dev.as_str())).collect(),
                outside: path.underlays(),
            },
            (Some(Programs::Table(path)), Some(table)) => table.interfaces(path.interface()),
            _ => Interfaces::default(),
        }
    }

    /// Has all routes looked up again if any has changed, once those of the last change have been.
    fn follow_changes(&self, schedule: &mut LookupSchedule) {
        let mut state = self.state();
        let has_due = match &state.path {
            Some(Programs::Table(path)) => path.has_due(),
            _ => schedule.has_due(),
        };
        if has_due || !schedule.has_change() {
            return;
        }
        match &mut state.path {
            Some(Programs::Table(path)) => path.look_again(),
            _ => schedule.look_again(self.0.request.tunnels.len()),
        }
    }

    /// Applies a change of the peer table to the in-kernel path.
    pub(crate) fn set_peers(&self, peers: &[PeerConfig]) {
        self.state().set_peers(table::peers(peers));
    }

    /// Returns the counters of a peer by the in-kernel path; `None` where it has none.
    pub(crate) fn peer_counts(&self, prefix: Prefix) -> Option<PeerCounts> {
        let Some(Programs::Table(path)) = &self.state().path else { return None };
        path.peer_counts((prefix.address, prefix.len)).ok().flatten()
    }

    /// Looks up the interface of a table, and the routes to remotes: those that are due, and some of the others.
    fn follow_peers(&self, table: &Table, netlink: &mut Netlink, heartbeat: &Heartbeat) {
        let Some(local) = table.config().map(|config| config.local) else { return };
        let (interface, remotes) = match &mut self.state().path {
            Some(Programs::Table(path)) => (path.interface(), path.remotes(schedule::DUE, schedule::SOME)),
            _ => return,
        };
        let link = heartbeat.unwatched(Thread::Fastpath, || tunnel::own_link(netlink, interface));
        self.state().note_interface(&table.dev, &link);
        // The routes are looked up without the lock, which readers of counters wait for.
        let look = |remote: IpAddr| {
            let route = heartbeat.unwatched(Thread::Fastpath, || route_to(netlink, remote, local).unwrap_or_default());
            (remote, route)
        };
        let routes: Vec<_> = remotes.into_iter().map(look).collect();
        heartbeat.unwatched(Thread::Fastpath, || self.state().follow_remotes(&routes));
    }

    /// Returns the numbers of packets that the in-kernel path has sent and received for the tunnel at `index`; `None`
    /// where it is not loaded.
    pub(crate) fn packets(&self, index: usize) -> Option<[u64; 2]> {
        let Some(Programs::Tunnels(path)) = &self.state().path else { return None };
        let counts = path.counts(index).ok()?;
        Some([counts.sent.segments, counts.received.segments])
    }

    /// Adds state and counters of the in-kernel path to those of the instance.
    pub fn fill(&self, instance: &mut Instance) {
        let state = self.state();
        let request = &self.0.request;
        let mut shown = model::Fastpath {
            mode: request.mode.name().to_owned(),
            on: state.is_on,
            why: state.reason(),
            ..model::Fastpath::default()
        };
        let Some(path) = &state.path else {
            instance.fastpath = Some(shown);
            return;
        };
        for (direction, reason) in path.partial() {
            let direction = if *direction == Direction::Send { "sent" } else { "received" };
            shown.by_daemon.insert(direction.to_owned(), (*reason).to_owned());
        }
        let path = match path {
            Programs::Table(path) => {
                shown.peers = Some(Box::new(table::shown(path.served())));
                instance.fastpath = Some(shown);
                if let Some(table) = &request.table {
                    table.fill(path, instance);
                }
                return;
            }
            Programs::Tunnels(path) => path,
        };
        instance.fastpath = Some(shown);
        for (index, tunnel) in request.tunnels.iter().enumerate() {
            let Ok(counts) = path.counts(index) else { continue };
            // As with the daemon's sockets, the outer IP and UDP headers do not count.
            let has_udp = tunnel.config.carrier != Carrier::Bare;
            let outer = if tunnel.config.local.is_ipv4() { 20 } else { 40 } + if has_udp { 8 } else { 0 };
            // The Ethernet header of a frame counts inside and outside alike.
            let link = if tunnel.config.mode.is_ethernet() { ETHERNET_LEN } else { 0 };
            let overhead = (tunnel.config.overhead() as u64).saturating_sub(outer + link);
            add(instance, &tunnel.dev, request.outside, &counts, overhead);
        }
        if let (Ok(counts), Some(port)) = (path.unclaimed(), instance.ports.get_mut(request.outside)) {
            put_left(port, &counts);
        }
        if let (Ok(dropped), Some(port)) = (path.dropped(), instance.ports.get_mut(request.outside)) {
            put_dropped(port, &dropped);
        }
    }
}

/// A thread that tracks the state of the host on which the in-kernel path depends, until it is dropped.
#[derive(Debug)]
pub struct Follower {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop = None;
        // A panic of the thread has been printed, and the packets do not depend on it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Loads and attaches the in-kernel path, and removes filters of ended processes; or returns the reason against it.
fn load(request: &Request, netlink: &mut Netlink) -> Result<Option<Programs>, String> {
    if request.mode == Mode::Off {
        return Ok(None);
    }
    if let Some(why) = &request.prevented {
        return Err(why.clone());
    }
    if let Some(table) = &request.table {
        let interface = index_of(&table.dev, netlink)?;
        let interfaces = table.interfaces(interface);
        check_host(request, &interfaces, netlink)?;
        let path = table.load(interface, netlink).map_err(|error| failure(&error))?;
        tidy(&interfaces.all(), netlink);
        return Ok(Some(Programs::Table(Box::new(path))));
    }
    let configs: Vec<Config> = request.tunnels.iter().map(|tunnel| tunnel.config).collect();
    if request.mode != Mode::On {
        let partly = configs
            .iter()
            .flat_map(|config| [Direction::Send, Direction::Receive].map(|direction| unsupported(config, direction)));
        if let Some(why) = partly.flatten().next() {
            return Err(why.to_owned());
        }
    }
    let text = |error: &io::Error| os_text(error);
    let (mut places, mut interfaces) = (Vec::new(), Interfaces::default());
    for tunnel in &request.tunnels {
        let route =
            route(netlink, &tunnel.config).map_err(|why| format!("the route to {}: {why}", tunnel.config.remote))?;
        let interface = index_of(&tunnel.dev, netlink)?;
        interfaces.inside.insert(interface, &tunnel.dev);
        interfaces.outside.insert(route.link);
        places.push((interface, route));
    }
    check_host(request, &interfaces, netlink)?;
    let mut path = Path::load(&configs, &request.sources).map_err(|error| failure(&error))?;
    for (index, (interface, route)) in places.into_iter().enumerate() {
        path.attach(index, interface, route, &mut Added(netlink)).map_err(|error| failure(&error))?;
        let station = tunnel::station(netlink, interface, &configs[index]).map_err(|error| text(&error))?;
        path.set_address(index, station.accepted).map_err(|error| text(&error))?;
        path.set_station(index, station.own).map_err(|error| text(&error))?;
    }
    tidy(&interfaces.all(), netlink);
    Ok(Some(Programs::Tunnels(Box::new(path))))
}

/// Checks that a process without capabilities may use the maps, since the one that moves packets has none: before Linux
/// 5.19 it may not where `kernel.unprivileged_bpf_disabled` is set, and could not switch the path off any more.
fn usable(programs: Option<Programs>) -> Result<Option<Programs>, String> {
    let Some(mut programs) = programs else { return Ok(None) };
    let answer = sys::in_child(|| {
        let done = sys::drop_capabilities().and_then(|()| programs.switch(false));
        done.err().and_then(|error| error.raw_os_error()).map_or_else(Vec::new, |number| number.to_ne_bytes().to_vec())
    });
    // Nothing is known where the process has threads, as those of other users of this crate.
    match answer.unwrap_or_default().first_chunk() {
        None => Ok(Some(programs)),
        Some(number) => Err(format!(
            "without capabilities the maps cannot be used (before Linux 5.19 by kernel.unprivileged_bpf_disabled): {}",
            os_text(&io::Error::from_raw_os_error(i32::from_ne_bytes(*number)))
        )),
    }
}

fn index_of(dev: &str, netlink: &mut Netlink) -> Result<u32, String> {
    let link = netlink.link_named(dev).map_err(|error| os_text(&error))?;
    link.map(|link| link.index).ok_or_else(|| format!("{dev} is gone"))
}

/// Checks with `fastpath auto` for obstacles that would make the in-kernel path noticeable.
fn check_host(request: &Request, interfaces: &Interfaces<'_>, netlink: &mut Netlink) -> Result<(), String> {
    if request.mode != Mode::Auto {
        return Ok(());
    }
    // Those of a predecessor have names or marks as those of other instances.
    let programs = obstacle::of_programs(&interfaces.all(), netlink);
    let found = programs.or_else(|| obstacle::at_start(interfaces, netlink));
    found.or_else(|| obstacle::of_host(request.is_v4(), netlink)).map_or(Ok(()), Err)
}

/// Checks whether this process could use the in-kernel path at all, for tunnels without UDP or for those in UDP, which
/// need more (CAP_PERFMON); for `segue doctor`.
///
/// # Errors
/// The reason why not.
pub fn probe(in_udp: bool) -> Result<(), String> {
    use segue::encap::Mode;
    let [local, remote] = [1, 2].map(|last| IpAddr::from([198, 18, 0, last]));
    let carrier = if in_udp { Carrier::Gue { remcsum: false } } else { Carrier::Bare };
    let config = Config { csum: false, ..Config::new(Mode::Ipip, carrier, local, remote) };
    Path::load(&[config], &[]).map(drop).map_err(|error| failure(&error))
}

/// Returns the obstacle on this host that keeps `fastpath auto` off for an outer family, if there is one; needs
/// CAP_NET_ADMIN.
pub fn host_obstacle(is_v4: bool) -> Option<String> {
    match Netlink::open() {
        Ok(mut netlink) => obstacle::of_host(is_v4, &mut netlink),
        Err(error) => Some(os_text(&error)),
    }
}

/// Returns the filter or program on an interface that keeps `fastpath auto` off for remotes behind it, if there is one,
/// or why that cannot be told; needs CAP_NET_ADMIN, and CAP_BPF for programs.
pub fn link_obstacle(link: &str, netlink: &mut Netlink) -> Option<String> {
    let interface = netlink.link_named(link).ok().flatten()?.index;
    let program = obstacle::of_programs(&[interface].into(), netlink);
    let outside = Interfaces { outside: [interface].into(), ..Interfaces::default() };
    program.or_else(|| obstacle::at_start(&outside, netlink))
}

#[cfg(test)]
mod tests;
