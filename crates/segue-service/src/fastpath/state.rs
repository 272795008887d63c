//! The state of the in-kernel path of an instance: its programs, and what keeps packets from them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use segue_control::error::os_text;
use segue_fastpath::{Direction, Path, Peer, PeerPath, Route, Surroundings};
use segue_host::netfilter::Watch;
use segue_host::prefix::Prefix;

use super::switches::Switches;
use super::table;
use super::tunnel::{Station, Tunnel};
use crate::tunnel::kinds::Fastpath as Mode;

/// Reason of `fastpath auto` for leaving packets to the daemon after an addition to netfilter.
pub(super) const NEW_RULES: &str = "netfilter rules were added; a new start looks whether they see the outer packets";
/// Reason of `fastpath auto` for leaving packets to the daemon while it has queues by flow.
pub(super) const QUEUES: &str = "enable_fq needs the daemon, which has the queues";

/// BPF programs of an instance.
#[derive(Debug)]
pub(super) enum Programs {
    Tunnels(Box<Path>),
    Table(Box<PeerPath>),
}

impl Programs {
    pub(super) fn switch(&mut self, on: bool) -> io::Result<()> {
        match self {
            Programs::Tunnels(path) => path.switch(on),
            Programs::Table(path) => path.switch(on),
        }
    }

    /// Returns whether packets take the path.
    fn is_on(&self) -> bool {
        match self {
            Programs::Tunnels(path) => path.is_on(),
            Programs::Table(path) => path.is_on(),
        }
    }

    /// Returns the directions that the daemon serves, with the reasons.
    pub(super) fn partial(&self) -> &[(Direction, &'static str)] {
        match self {
            Programs::Tunnels(path) => path.partial(),
            Programs::Table(_) => &[],
        }
    }

    /// Returns the reason why no packet can take the in-kernel path.
    pub(super) fn idle(&self) -> Option<String> {
        match self {
            Programs::Tunnels(_) => None,
            Programs::Table(path) => table::idle(path.served()),
        }
    }
}

/// The state of the in-kernel path of one instance.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The programs, where they are loaded.
    pub(super) path: Option<Programs>,
    /// Whether the knob permits the in-kernel path.
    pub(super) is_allowed: bool,
    /// Whether packets are to wait in the daemon's queues by flow; with `fastpath auto` alone.
    pub(super) needs_queues: bool,
    /// Reason why packets do not take the in-kernel path although it is permitted.
    pub(super) why: Option<String>,
    /// Whether packets take the in-kernel path.
    pub(super) is_on: bool,
    /// Why the kernel did not switch the programs at the last attempt, which is repeated: until it does, they are as
    /// they were.
    pub(super) unswitched: Option<String>,
    /// The watch for netfilter rules, with `fastpath auto` alone.
    pub(super) watch: Option<Watch>,
    /// Whether netfilter rules were added since the start.
    pub(super) has_new_rules: bool,
    /// The obstacle on this host at the last look.
    pub(super) obstacle: Option<String>,
    /// Names of the tunnels whose interfaces are not in this network namespace, where alone the programs find them.
    pub(super) away: BTreeSet<String>,
    /// The tunnels' local addresses that this host has had since the start.
    pub(super) locals: BTreeSet<IpAddr>,
    /// One of them that it has no longer. The programs would still take packets for it that are to be forwarded.
    pub(super) missed: Option<IpAddr>,
    /// The peer table of which the kernel has refused an entry, which is tried again.
    pub(super) refused: Option<Vec<Peer>>,
}

impl State {
    /// Applies the values of the knobs, without switching the programs.
    pub(super) fn set(&mut self, switches: Switches, mode: Mode) {
        self.is_allowed = switches.is_allowed;
        self.needs_queues = switches.has_queues && mode == Mode::Auto;
    }

    /// Switches the programs to the directions that are permitted and possible.
    pub(super) fn settle(&mut self) {
        let is_wanted = self.path.as_ref().is_some_and(|path| path.idle().is_none());
        let is_possible = self.why.is_none() && self.away.is_empty() && self.missed.is_none() && is_wanted;
        let on = self.is_allowed && !self.needs_queues && is_possible;
        self.unswitched = None;
        let Some(path) = self.path.as_mut().filter(|_| on != self.is_on) else { return };
        match path.switch(on) {
            Ok(()) => self.is_on = on,
            Err(error) => self.unswitched = Some(format!("the kernel does not switch it: {}", os_text(&error))),
        }
    }

    /// Takes the result of `load`, and watches netfilter from before it on where the path depends on the rules: those
    /// that are added while it reads them are seen at the first look at the watch.
    pub(super) fn load(
        &mut self,
        mode: Mode,
        load: impl FnOnce() -> Result<Option<Programs>, String>,
    ) -> Result<(), String> {
        let watch = if mode == Mode::Auto { Watch::open() } else { Ok(None) };
        if let Some(path) = load()? {
            self.watch = watch.map_err(|error| format!("netfilter cannot be watched: {}", os_text(&error)))?;
            self.path = Some(path);
        }
        Ok(())
    }

    /// Notes what is in the way on this host, by a look that may have failed: then it is what it was. A refused peer
    /// table remains the reason.
    pub(super) fn set_obstacle(&mut self, seen: io::Result<Option<String>>) {
        self.has_new_rules |= self.watch.as_ref().is_some_and(Watch::changed);
        let seen = seen.unwrap_or_else(|_| self.obstacle.take());
        self.obstacle = if self.has_new_rules { Some(NEW_RULES.to_owned()) } else { seen };
        if self.has_new_rules || self.refused.is_none() {
            self.why.clone_from(&self.obstacle);
        }
        self.settle();
    }

    /// Applies the routes and interfaces of some tunnels, by index, as they were looked up.
    pub(super) fn follow(&mut self, tunnels: &[Tunnel], found: &[(usize, Route, io::Result<Station>)]) {
        if let Some(Programs::Tunnels(path)) = &mut self.path {
            let surroundings = |(index, route, station): &(usize, Route, io::Result<Station>)| {
                let addresses = station.as_ref().ok().map(|station| [station.accepted, station.own]);
                Surroundings { index: *index, route: *route, addresses }
            };
            let done = path.follow(&found.iter().map(surroundings).collect::<Vec<_>>());
            self.note_writes(&done);
        }
        for (index, _, station) in found {
            self.note_interface(&tunnels[*index].dev, station);
        }
    }

    /// Applies the routes to some remotes of a peer table, as they were looked up.
    pub(super) fn follow_remotes(&mut self, routes: &[(IpAddr, Route)]) {
        if let Some(Programs::Table(path)) = &mut self.path {
            let done = path.follow(routes);
            self.note_writes(&done);
        }
    }

    /// Notes whether changes were written. What has failed is as it was, and is seen at the next look; but the path may
    /// have been switched off for the changes.
    fn note_writes(&mut self, done: &io::Result<()>) {
        if done.is_err() {
            self.is_on = self.path.as_ref().is_some_and(Programs::is_on);
            self.settle();
        }
    }

    /// Notes whether the interface of a tunnel is in this network namespace, by a look that may have failed: then it is
    /// where it was.
    pub(super) fn note_interface<T>(&mut self, dev: &str, seen: &io::Result<T>) {
        let has_moved = match seen {
            Ok(_) => self.away.remove(dev),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => self.away.insert(dev.to_owned()),
            Err(_) => false,
        };
        if has_moved {
            self.settle();
        }
    }

    /// Notes which of the tunnels' local addresses this host has, by a look at its addresses that may have failed: then
    /// it has those of before. One that it never had, as with a non-local bind, is not missed.
    pub(super) fn note_addresses(&mut self, locals: &BTreeSet<IpAddr>, seen: io::Result<Vec<(u32, Prefix)>>) {
        let Ok(seen) = seen else { return };
        let all: BTreeSet<IpAddr> = seen.into_iter().map(|(_, prefix)| prefix.address).collect();
        let missed = self.locals.difference(&all).next().copied();
        self.locals.extend(locals.intersection(&all));
        if missed != self.missed {
            self.missed = missed;
            self.settle();
        }
    }

    /// Gives the in-kernel path a peer table. Where the kernel refuses an entry, all packets are the daemon's until a
    /// table is taken whole.
    pub(super) fn set_peers(&mut self, peers: Vec<Peer>) {
        let Some(Programs::Table(path)) = &mut self.path else { return };
        let refusal = path.replace(&peers).err();
        self.note_refusal(refusal.map(|error| (peers, error)));
        self.settle();
    }

    /// Notes the table that the kernel has refused, or that it has taken the last one.
    pub(super) fn note_refusal(&mut self, refusal: Option<(Vec<Peer>, io::Error)>) {
        let text = |(_, error): &(_, io::Error)| format!("the kernel does not take the peers: {}", os_text(error));
        self.why = refusal.as_ref().map(text).or_else(|| self.obstacle.clone());
        self.refused = refusal.map(|(peers, _)| peers);
    }

    /// Returns the reason why packets do not take the in-kernel path, or still do; `None` if they may.
    pub(super) fn reason(&self) -> Option<String> {
        if let Some(why) = &self.unswitched {
            return Some(why.clone());
        }
        if !self.is_allowed {
            return Some("switched off".to_owned());
        }
        let queues = || self.needs_queues.then(|| QUEUES.to_owned());
        let away = || Some(format!("{} is not in this network namespace", self.away.first()?));
        let missed = || Some(format!("this host no longer has {}", self.missed?));
        let why = self.why.clone().or_else(queues).or_else(away).or_else(missed);
        why.or_else(|| self.path.as_ref()?.idle())
    }
}
