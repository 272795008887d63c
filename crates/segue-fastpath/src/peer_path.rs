//! The in-kernel path of a tunnel with a peer table: one interface, several encapsulations, and peers by inner
//! addresses.
//!
//! Entries are added while packets pass, and a few are replaced or deleted one by one, with a wait after each for the
//! programs that may still read it ([`crate::readers`]). New ones are added from the longest prefix to the shortest,
//! and old ones deleted from the shortest to the longest, so that each packet goes by the table of before or by the new
//! one, never by a prefix that is the longest one in neither. Only at the moment of a replacement a lookup may miss the
//! entry. Where more are replaced or deleted, or both tables together have too many entries, the path is switched off
//! meanwhile.

mod family;
mod peer;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use segue::encap::{Carrier, Config};
use segue::wire::{ipv4, ipv6};

use crate::attach::{Attached, Filters, attach, mark};
use crate::code::{LICENCE, Maps, TableMaps, Tunnels};
use crate::counters::{COUNT, Counts};
use crate::form::{self, Direction, PeerEndpoint, Place, Route, obstacle};
use crate::layout::{ETHERNET_LEN, marks, peer_counts, settings};
use crate::lengths::Lengths;
use crate::map::Map;
use crate::order::FLOWS;
use crate::path::{EGRESS, Error, INGRESS, REDIRECTED, UNREMOVED, assembled, received, refused};
use crate::readers::{FEW, Readers};
use crate::receive_form::Abilities;
use crate::sys::{self, Hook, MapKind, ProgramKind};
use crate::{egress, ingress, receive_form};

use self::family::Family;
pub use self::peer::Peer;
use self::steps::{Step, steps};

/// A listener, with the configuration of the daemon's own decapsulation. Its remote is of no meaning.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The encapsulation of the listener.
    pub config: Config,
    /// UDP source ports of the daemon's sockets.
    pub sources: Vec<u16>,
}

/// Numbers of peers that the in-kernel path serves, and of the others by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of peers that the kernel serves.
    pub kernel: u64,
    /// Numbers of peers that the daemon serves, by reason.
    pub daemon: BTreeMap<&'static str, u64>,
}

/// Counters of one peer on the in-kernel path: packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Packets and trains sent, and their bytes.
    pub sent: [u64; 2],
    /// Packets of wire size received, and their bytes.
    pub received: [u64; 2],
}

/// A peer whose entry is in the maps.
#[derive(Clone, Copy, Debug)]
struct Member {
    peer: Peer,
    slot: u32,
}

/// A remote address of peers.
#[derive(Clone, Debug, Default)]
struct Remote {
    /// The route of the packets; `None` until it was looked up.
    route: Option<Route>,
    /// Serial number of the remote, in order of arrival.
    number: u64,
    prefixes: BTreeSet<(IpAddr, u8)>,
}

/// The programs of a tunnel with a peer table in the kernel. Dropping the value detaches and removes them, as does the
/// end of the process.
pub struct PeerPath {
    settings: Map,
    counters: Map,
    /// Flows that are left to the daemon.
    flows: Map,
    marks: Map,
    peer_counters: Map,
    v4: Family,
    v6: Family,
    egress: Option<OwnedFd>,
    ingress: Vec<OwnedFd>,
    /// Links of the programs to interfaces.
    links: Vec<Attached>,
    /// Marks of the programs, which are dropped after the links.
    _marks: Vec<OwnedFd>,
    readers: Readers,
    listeners: Vec<Listener>,
    station: [u8; 6],
    interface: u32,
    /// Whether packets take the path.
    is_on: bool,
    members: BTreeMap<(IpAddr, u8), Member>,
    remotes: BTreeMap<IpAddr, Remote>,
    /// Counter slots that were freed.
    free: Vec<u32>,
    fresh: u32,
    most: u32,
    served: Served,
    /// Remotes whose routes are to be looked up before others, in their order of arrival: those that have none, and
    /// those whose routes may have changed.
    due: BTreeSet<(u64, IpAddr)>,
    /// Serial number of the last remote that was added.
    arrivals: u64,
    /// The remote whose route was refreshed last.
    turn: Option<IpAddr>,
}

impl fmt::Debug for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerPath").field("peers", &self.members.len()).finish_non_exhaustive()
    }
}

impl PeerPath {
    /// Creates the maps for at most `most` peers and loads the programs; `station` is the local Ethernet address. The
    /// programs are tried on packets before they are used. The table is empty, nothing is attached yet, and the path is
    /// switched off.
    ///
    /// # Errors
    /// The kernel's refusal, which is EPERM without CAP_BPF and CAP_NET_ADMIN.
    pub fn load(listeners: &[Listener], station: [u8; 6], most: u32) -> Result<PeerPath, Error> {
        let first = listeners.first().ok_or(Error::Unsupported("there is no listener"))?;
        let step = refused("creating a map");
        let count = listeners.len() as u32;
        let mut path = PeerPath {
            settings: Map::create(MapKind::Array, 4, settings::LEN, 1, "segue_settings").map_err(&step)?,
            counters: Map::create(MapKind::PerCpuArray, 4, 8 * COUNT, count + 1, "segue_counters").map_err(&step)?,
            flows: Map::create(MapKind::LruHash, 8, 8, FLOWS, "segue_flows").map_err(&step)?,
            marks: Map::create(MapKind::Array, 4, marks::LEN, 1, "segue_marks").map_err(&step)?,
            peer_counters: Map::create(MapKind::Array, 4, peer_counts::LEN, most.max(1), "segue_peers")
                .map_err(&step)?,
            v4: Family::create(true, most.max(1)).map_err(&step)?,
            v6: Family::create(false, most.max(1)).map_err(&step)?,
            egress: None,
            ingress: Vec::new(),
            links: Vec::new(),
            _marks: Vec::new(),
            readers: Readers::create().map_err(&step)?,
            listeners: listeners.to_vec(),
            station,
            interface: 0,
            is_on: false,
            members: BTreeMap::new(),
            remotes: BTreeMap::new(),
            free: Vec::new(),
            fresh: 0,
            most,
            served: Served::default(),
            due: BTreeSet::new(),
            arrivals: 0,
            turn: None,
        };
        // The packets of the interface have no frames, whatever is around them.
        let form = egress::Form { is_v4: first.config.local.is_ipv4(), has_udp: true, has_frames: false };
        let code = assembled(egress::program(form, &path.maps()))?;
        let loaded = sys::load(ProgramKind::Classifier, &code, LICENCE, EGRESS);
        path.egress = Some(loaded.map_err(refused("loading the program for sending"))?);
        for index in 0..listeners.len() {
            path.ingress.push(path.load_ingress(index)?);
        }
        let marks: io::Result<_> = path.egress.iter().chain(&path.ingress).map(mark).collect();
        path._marks = marks.map_err(refused("marking a program"))?;
        Ok(path)
    }

    /// Loads the program of a listener, with the features that trials found in this kernel.
    fn load_ingress(&self, index: usize) -> Result<OwnedFd, Error> {
        let config = &self.listeners[index].config;
        let table = receive_form::OfTable { station: self.station, counters: index as i32 + 1 };
        let load = |form: &receive_form::Form| {
            let code = assembled(ingress::program(form, &self.maps()))?;
            sys::load(ProgramKind::Classifier, &code, LICENCE, INGRESS)
                .map_err(refused("loading the program for receiving"))
        };
        let mut tried = Err(Error::Broken(UNREMOVED));
        for abilities in Abilities::ALL {
            let form = form::ingress_form(config, abilities, Some(table));
            // Nothing verifies the checksums of the packets of a trial, so that they have none.
            let trial = receive_form::Form { zero_csum6: true, ..form };
            let program = load(&trial)?;
            tried = self.try_ingress(&program, index, abilities).map(|()| program);
            if tried.is_ok() {
                return if trial == form { tried } else { load(&form) };
            }
        }
        tried
    }

    /// Runs the program of a listener on a packet of each inner IP version; the result must be the inner packet.
    fn try_ingress(&self, program: &OwnedFd, index: usize, abilities: Abilities) -> Result<(), Error> {
        const LOOPBACK: u32 = 1;
        let step = refused("trying the program for receiving");
        let config = Config { remote: self.listeners[index].config.local, ..self.listeners[index].config };
        let mut outcome = Ok(());
        self.set(true, LOOPBACK).map_err(&step)?;
        for &version in form::versions(config.mode).iter().filter(|version| abilities.remove(&config, **version)) {
            let (frame, bare, source) =
                self.sample(&config, version).ok_or(Error::Broken("the engine refuses the tunnel"))?;
            let (map, key) = self.family(source).place((source, 128));
            map.set(&key, &self.value(&self.trial(&config, source), 0, Route { link: LOOPBACK, mtu: 1500 }))
                .map_err(&step)?;
            let run = sys::test_run(program.as_fd(), &frame, &[], 1).map_err(&step)?;
            if run.result != REDIRECTED || run.packet.get(ETHERNET_LEN as usize..) != Some(&bare[..]) {
                outcome = Err(Error::Broken(UNREMOVED));
            }
            map.remove(&key).map_err(&step)?;
        }
        self.set(false, 0).map_err(&step)?;
        // The trials do not count.
        for counters in [0, index as u32 + 1] {
            self.counters.set_all(&counters.to_ne_bytes(), &[0; 8 * COUNT]).map_err(&step)?;
        }
        self.peer_counters.set(&0_u32.to_ne_bytes(), &[0; peer_counts::LEN]).map_err(&step)?;
        outcome
    }

    /// Returns a peer for a trial, with the given inner address only.
    fn trial(&self, config: &Config, source: IpAddr) -> Peer {
        let carrier = match config.carrier {
            Carrier::Gue { .. } => Carrier::Gue { remcsum: false },
            other => other,
        };
        let config = Config { csum: false, carrier, ..*config };
        Peer { prefix: (source, 128), listener: 0, config, mac: self.station }
    }

    /// Returns a received frame with a sample packet from the remote of `config`, the packet, and its source.
    pub(crate) fn sample(&self, config: &Config, version: u8) -> Option<(Vec<u8>, Vec<u8>, IpAddr)> {
        let (mut frame, mut bare) = received(config, version)?;
        if config.mode.is_ethernet() {
            let at = frame.len() - bare.len();
            frame[at..at + 6].copy_from_slice(&self.station);
            bare.drain(..ETHERNET_LEN as usize);
        }
        let source = match version {
            4 => IpAddr::V4(ipv4::source(&bare)?),
            _ => IpAddr::V6(ipv6::source(&bare)?),
        };
        Some((frame, bare, source))
    }

    fn maps(&self) -> Maps<'_> {
        let table = TableMaps { v4: self.v4.maps(), v6: self.v6.maps(), counters: self.peer_counters.as_fd() };
        Maps {
            settings: self.settings.as_fd(),
            counters: self.counters.as_fd(),
            flows: self.flows.as_fd(),
            marks: self.marks.as_fd(),
            tunnels: Tunnels::Table(table),
        }
    }

    fn family(&self, address: IpAddr) -> &Family {
        if address.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    fn lengths(&mut self, address: IpAddr) -> &mut Lengths {
        if address.is_ipv4() { &mut self.v4.lengths } else { &mut self.v6.lengths }
    }

    /// Attaches the programs to the tunnel's interface and to the interface towards the peers. Other programs at these
    /// hooks come first and stay.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&mut self, interface: u32, underlay: u32, filters: &mut dyn Filters) -> Result<(), Error> {
        let step = refused("attaching a program");
        self.interface = interface;
        self.switch(false).map_err(refused("filling a map"))?;
        for program in &self.ingress {
            self.links.push(attach(program.as_fd(), (underlay, Hook::Ingress), INGRESS, filters).map_err(&step)?);
        }
        if let Some(egress) = &self.egress {
            self.links.push(attach(egress.as_fd(), (interface, Hook::Egress), EGRESS, filters).map_err(&step)?);
        }
        Ok(())
    }

    /// Returns the index of the tunnel's interface.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Switches the in-kernel path on or off: packets that are processed afterwards take the path, or are left to the
    /// daemon.
    ///
    /// # Errors
    /// The kernel's.
    pub fn switch(&mut self, on: bool) -> io::Result<()> {
        self.set(on, self.interface)?;
        self.is_on = on;
        Ok(())
    }

    fn set(&self, on: bool, interface: u32) -> io::Result<()> {
        let mut value = [0; settings::LEN];
        value[settings::ENABLED as usize] = u8::from(on);
        value[settings::INTERFACE as usize..][..4].copy_from_slice(&interface.to_ne_bytes());
        self.settings.set(&0_u32.to_ne_bytes(), &value)
    }

    /// Replaces the peer table by `wanted`, whose prefixes must differ. Entries that stay as they are are not touched.
    /// A peer with a new remote is the daemon's until [`follow`](Self::follow) has said where its packets leave.
    ///
    /// # Errors
    /// The kernel's; some entries are those of before then, the path may be off, and the next call begins with what is
    /// there.
    pub fn replace(&mut self, wanted: &[Peer]) -> io::Result<()> {
        self.served = served(wanted);
        let present = |prefix| self.members.get(&prefix).map(|member| member.peer);
        let mut steps = steps(self.members.keys().copied(), present, wanted);
        let added = wanted.iter().filter(|peer| !self.members.contains_key(&peer.prefix)).count();
        let has_room = self.members.len() + added <= self.most as usize;
        let is_change = |step: &&Step| match step {
            Step::Put(peer) => self.members.contains_key(&peer.prefix),
            Step::Remove(_) => true,
        };
        let was_on = self.is_on;
        let pauses = !has_room || was_on && steps.iter().filter(is_change).count() > FEW;
        if pauses {
            // The daemon has the whole table meanwhile.
            self.switch(false)?;
        }
        if pauses && was_on {
            self.readers.wait()?;
        }
        if !has_room {
            // The order of the steps is not seen.
            steps.sort_by_key(|step| matches!(step, Step::Put(_)));
        }
        steps.into_iter().try_for_each(|step| match step {
            Step::Put(peer) => self.put(peer),
            Step::Remove(prefix) => self.remove(prefix),
        })?;
        if was_on && pauses { self.switch(true) } else { Ok(()) }
    }

    /// Waits, where packets take the path, until no program reads an entry that was replaced or removed.
    fn let_go(&self) -> io::Result<()> {
        if self.is_on { self.readers.wait() } else { Ok(()) }
    }

    /// Adds a peer, or replaces the one with an equal prefix.
    fn put(&mut self, peer: Peer) -> io::Result<()> {
        let before = self.members.get(&peer.prefix).copied();
        let slot = match before {
            Some(member) => member.slot,
            None => self.take_slot()?,
        };
        let remote = peer.config.remote;
        let route = self.remotes.get(&remote).and_then(|remote| remote.route).unwrap_or_default();
        let (address, len) = peer.prefix;
        if before.is_none()
            && let Err(error) = self.lengths(address).add(len)
        {
            self.free.push(slot);
            return Err(error);
        }
        let (map, key) = self.family(address).place(peer.prefix);
        if let Err(error) = map.set(&key, &self.value(&peer, slot, route)) {
            if before.is_none() {
                self.free.push(slot);
                self.lengths(address).remove(len);
            }
            return Err(error);
        }
        if let Some(before) = before {
            self.leave(before.peer.config.remote, peer.prefix);
        }
        let known = self.remotes.entry(remote).or_insert_with(|| {
            self.arrivals += 1;
            self.due.insert((self.arrivals, remote));
            Remote { number: self.arrivals, ..Remote::default() }
        });
        known.prefixes.insert(peer.prefix);
        self.members.insert(peer.prefix, Member { peer, slot });
        if before.is_some() { self.let_go() } else { Ok(()) }
    }

    fn remove(&mut self, prefix: (IpAddr, u8)) -> io::Result<()> {
        let (map, key) = self.family(prefix.0).place(prefix);
        map.remove(&key)?;
        if let Some(member) = self.members.remove(&prefix) {
            self.lengths(prefix.0).remove(prefix.1);
            self.leave(member.peer.config.remote, prefix);
            self.free.push(member.slot);
        }
        self.let_go()
    }

    /// Removes a prefix from those of a remote.
    fn leave(&mut self, remote: IpAddr, prefix: (IpAddr, u8)) {
        let Some(known) = self.remotes.get_mut(&remote) else { return };
        known.prefixes.remove(&prefix);
        if known.prefixes.is_empty() {
            self.due.remove(&(known.number, remote));
            self.remotes.remove(&remote);
        }
    }

    /// Allocates a counter slot, with all counters zero.
    fn take_slot(&mut self) -> io::Result<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.fresh < self.most => {
                self.fresh += 1;
                return Ok(self.fresh - 1);
            }
            None => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        };
        if let Err(error) = self.peer_counters.set(&slot.to_ne_bytes(), &[0; peer_counts::LEN]) {
            self.free.push(slot);
            return Err(error);
        }
        Ok(slot)
    }

    /// Returns the map entry of a peer.
    fn value(&self, peer: &Peer, slot: u32, route: Route) -> Vec<u8> {
        let Peer { listener, config, mac, .. } = peer;
        let own = self.listeners.get(*listener);
        // A peer of another encapsulation may send VXLAN of the tunnel's own network.
        let network = network(config).or_else(|| self.listeners.iter().find_map(|own| network(&own.config)));
        let end = PeerEndpoint { stations: [*mac, self.station], network: network.unwrap_or(0), slot };
        let place = Place { route, counters: *listener as u32 + 1, address: [0; 6] };
        let sources = own.map_or(&[][..], |own| &own.sources);
        let by_kernel = own.filter(|_| why_not(config).is_none());
        let value = by_kernel.and_then(|_| form::peer_value(config, &place, sources, &end));
        value.unwrap_or_else(|| form::value_of_daemon(config, &end))
    }

    /// Returns whether routes are due to be looked up: those of new remotes, and all since
    /// [`look_again`](Self::look_again).
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Has the routes to all remotes looked up before long, since they may have changed.
    pub fn look_again(&mut self) {
        self.due.extend(self.remotes.iter().map(|(address, remote)| (remote.number, *address)));
    }

    /// Returns the remotes whose routes are to be looked up: at most `due` of those that are due, oldest first, and at
    /// most `known` of the others, in turn.
    pub fn remotes(&mut self, due: usize, known: usize) -> Vec<IpAddr> {
        let mut found: Vec<IpAddr> = self.due.iter().map(|(_, address)| *address).take(due).collect();
        let from = self.turn;
        let is_known = |address: &IpAddr, remote: &Remote| !self.due.contains(&(remote.number, *address));
        let all =
            || self.remotes.iter().filter(|(address, remote)| is_known(address, remote)).map(|(address, _)| *address);
        let later = all().filter(|address| from.is_none_or(|from| *address > from));
        let earlier = all().filter(|address| from.is_some_and(|from| *address <= from));
        let next: Vec<IpAddr> = later.chain(earlier).take(known).collect();
        self.turn = next.last().copied().or(from);
        found.extend(next);
        found
    }

    /// Applies changes of the routes to remotes. Where more than a few entries change, the daemon has all packets
    /// meanwhile.
    ///
    /// # Errors
    /// The first of the kernel's, for remotes that are due again. The path may be off ([`PeerPath::is_on`]).
    pub fn follow(&mut self, routes: &[(IpAddr, Route)]) -> io::Result<()> {
        let entries = |(remote, route): &(IpAddr, Route)| {
            let changed = self.remotes.get(remote).filter(|known| known.route != Some(*route));
            changed.map_or(0, |known| known.prefixes.len())
        };
        let pauses = self.is_on && routes.iter().map(entries).sum::<usize>() > FEW;
        if pauses {
            self.switch(false)?;
        }
        let ready = if pauses { self.readers.wait() } else { Ok(()) };
        let mut reroute = |(remote, route): &(IpAddr, Route)| self.reroute(*remote, *route).map(drop);
        let done = ready.and_then(|()| routes.iter().map(&mut reroute).fold(Ok(()), Result::and));
        if pauses {
            self.switch(true)?;
        }
        done
    }

    /// Returns whether packets take the path.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Applies a change of the route to a remote. Returns whether it was one.
    ///
    /// # Errors
    /// The kernel's; some entries have the route of before then, and the remote is due again.
    pub(crate) fn reroute(&mut self, remote: IpAddr, route: Route) -> io::Result<bool> {
        let Some(known) = self.remotes.get_mut(&remote) else { return Ok(false) };
        let entry = (known.number, remote);
        if known.route == Some(route) {
            self.due.remove(&entry);
            return Ok(false);
        }
        // Until all entries are written, the remote has neither route.
        known.route = None;
        self.due.insert(entry);
        let prefixes = known.prefixes.clone();
        for prefix in prefixes {
            let Some(Member { peer, slot }) = self.members.get(&prefix) else { continue };
            let (map, key) = self.family(prefix.0).place(prefix);
            map.set(&key, &self.value(peer, *slot, route))?;
            self.let_go()?;
        }
        if let Some(known) = self.remotes.get_mut(&remote) {
            known.route = Some(route);
        }
        self.due.remove(&entry);
        Ok(true)
    }

    /// Returns the numbers of peers that the in-kernel path serves, and of the others by reason.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Returns the counters of the listener with the given index: the packets received there, and those sent to its
    /// peers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counts(&self, listener: usize) -> io::Result<Counts> {
        self.read_counts(listener as u32 + 1)
    }

    /// Returns the counters of packets that belong to no peer.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unclaimed(&self) -> io::Result<Counts> {
        self.read_counts(0)
    }

    fn read_counts(&self, index: u32) -> io::Result<Counts> {
        let values = self.counters.get(&index.to_ne_bytes())?;
        Ok(Counts::sum(&values.unwrap_or_default(), &[]))
    }

    /// Returns the counters of the peer with this prefix; `None` where it is not in the table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn peer_counts(&self, prefix: (IpAddr, u8)) -> io::Result<Option<PeerCounts>> {
        let Some(Member { slot, .. }) = self.members.get(&prefix) else { return Ok(None) };
        let value = self.peer_counters.get(&slot.to_ne_bytes())?.unwrap_or_default();
        let word =
            |at: i16| value.get(at as usize..).and_then(<[u8]>::first_chunk).map_or(0, |w| u64::from_ne_bytes(*w));
        let both = |at: i16| [word(at), word(at + 8)];
        Ok(Some(PeerCounts { sent: both(peer_counts::SENT), received: both(peer_counts::RECEIVED) }))
    }

    /// Runs the program of a listener `repeat` times on a frame from the Ethernet header on.
    #[cfg(test)]
    pub(crate) fn run(&self, listener: usize, frame: &[u8], repeat: u32) -> io::Result<sys::Run> {
        sys::test_run(self.ingress[listener].as_fd(), frame, &[], repeat)
    }

    /// Returns the program of a listener.
    #[cfg(test)]
    pub(crate) fn program(&self, listener: usize) -> &OwnedFd {
        &self.ingress[listener]
    }

    /// Switches the in-kernel path on with the loopback interface, for tests.
    #[cfg(test)]
    pub(crate) fn on_loopback(&self) -> io::Result<()> {
        self.set(true, 1)
    }
}

/// Returns the reason why the daemon serves a peer; `None` if the in-kernel path can. It is one of the two for both
/// directions.
fn why_not(config: &Config) -> Option<&'static str> {
    [Direction::Send, Direction::Receive].into_iter().find_map(|direction| obstacle(config, direction))
}

fn served(peers: &[Peer]) -> Served {
    let mut served = Served::default();
    for peer in peers {
        match why_not(&peer.config) {
            None => served.kernel += 1,
            Some(why) => *served.daemon.entry(why).or_default() += 1,
        }
    }
    served
}

fn network(config: &Config) -> Option<u32> {
    match config.carrier {
        Carrier::Vxlan { vni, .. } => Some(vni),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
