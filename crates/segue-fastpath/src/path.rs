//! The in-kernel path: maps, programs and their attachment, for the tunnels of one outside port.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use segue::encap::{Carrier, Config};
use segue::wire::{ethernet, ethertype};

use crate::assembler::{Fault, Instruction};
use crate::attach::{Attached, Filters, attach, mark};
use crate::code::{LICENCE, Maps, Tunnels};
use crate::counters::{COUNT, Counts};
use crate::form::{self, Direction, Route, obstacle};
use crate::layout::{ETHERNET_LEN, marks, peer, settings, station, tunnel};
use crate::map::Map;
use crate::order::FLOWS;
use crate::readers::{FEW, Readers};
use crate::receive_form::Abilities;
use crate::refuse::{self, DROPPED_COUNT};
use crate::sys::{self, Hook, MapKind, ProgramKind};
use crate::verdict::Senders;
use crate::{egress, ingress, receive_form};

/// Name of the egress program, by which other processes of segue recognise it.
pub(crate) const EGRESS: &str = "segue_egress";
/// Name of the ingress program, by which other processes of segue recognise it.
pub(crate) const INGRESS: &str = "segue_ingress";
/// Result of a program that has redirected its packet (`TCX_REDIRECT`, `TC_ACT_REDIRECT`).
pub(crate) const REDIRECTED: i32 = 7;

/// Reasons why a kernel cannot be used.
pub(crate) const UNREMOVED: &str = "the kernel does not remove headers as this path needs it";
const UNCROSSED: &str = "the kernel does not remove headers of one IP version around the other (Linux 6.3 does)";

/// The reason why the in-kernel path cannot be used.
#[derive(Debug)]
pub enum Error {
    /// Neither direction of the tunnels can be served, for the given reason.
    Unsupported(&'static str),
    /// The kernel refused a step.
    Refused(&'static str, io::Error),
    /// The kernel accepted the program, but the program's result on a test packet was wrong.
    Broken(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported(why) | Error::Broken(why) => f.write_str(why),
            Error::Refused(step, error) => write!(f, "{step}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) fn refused(step: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Refused(step, error)
}

pub(crate) fn assembled(code: Result<Vec<Instruction>, Fault>) -> Result<Vec<Instruction>, Error> {
    code.map_err(|fault| Error::Refused("assembling a program", io::Error::other(fault.to_string())))
}

/// The surroundings of one tunnel, as they were looked up.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// The index of the tunnel.
    pub index: usize,
    /// The route to the remote.
    pub route: Route,
    /// The addresses for [`Path::set_address`] and [`Path::set_station`]; `None` where they could not be read.
    pub addresses: Option<[Option<[u8; 6]>; 2]>,
}

/// One tunnel of the in-kernel path.
#[derive(Debug)]
struct Member {
    config: Config,
    /// Index of the interface, once it is attached.
    interface: u32,
    /// Address of the interface for which aggregates of frames are not forwarded, or 0.
    address: [u8; 6],
    /// Address of the interface where frames are inside, or 0: a received frame of this sender has come back.
    station: [u8; 6],
    route: Route,
}

/// The programs of one outside port in the kernel. Dropping the value detaches and removes them, as does the end of the
/// process.
pub struct Path {
    settings: Map,
    tunnels: Map,
    peers: Map,
    stations: Map,
    counters: Map,
    /// Flows that are left to the daemon.
    flows: Map,
    marks: Map,
    /// Remotes by address.
    senders: Map,
    /// Counters of the packets of these and other senders that the program drops.
    dropped: Map,
    /// The program for sending, unless an option needs the daemon.
    egress: Option<OwnedFd>,
    /// The program for receiving, unless an option needs the daemon.
    ingress: Option<OwnedFd>,
    /// Reasons why a direction is left to the daemon.
    partial: Vec<(Direction, &'static str)>,
    /// Links of the programs to interfaces.
    links: Vec<Attached>,
    /// Marks of the programs, which are dropped after the links.
    _marks: Vec<OwnedFd>,
    /// Indexes of the interfaces on which the ingress program is attached.
    attached: Vec<u32>,
    members: Vec<Member>,
    sources: Vec<u16>,
    readers: Readers,
    /// Whether packets take the path.
    is_on: bool,
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path")
            .field("members", &self.members.len())
            .field("partial", &self.partial)
            .finish_non_exhaustive()
    }
}

impl Path {
    /// Creates the maps and loads the programs for tunnels that share a port; `sources` are the UDP source ports of the
    /// daemon's sockets. The programs are tried on packets before they are used. Nothing is attached yet, and the path
    /// is switched off.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the options of the tunnels leave nothing to do; the kernel's refusal, which is
    /// EPERM without CAP_BPF and CAP_NET_ADMIN.
    pub fn load(configs: &[Config], sources: &[u16]) -> Result<Path, Error> {
        let first = configs.first().ok_or(Error::Unsupported("there is no tunnel"))?;
        let mut partial: Vec<(Direction, &'static str)> = Vec::new();
        for direction in [Direction::Send, Direction::Receive] {
            partial.extend(configs.iter().find_map(|config| obstacle(config, direction)).map(|why| (direction, why)));
        }
        if let [(_, why), _] = partial[..] {
            return Err(Error::Unsupported(why));
        }
        let blocked = |direction| partial.iter().any(|(other, _)| *other == direction);
        let count = configs.len() as u32;
        let is_v4 = first.local.is_ipv4();
        // No more than are needed: a smaller map stays in the cache.
        let keys: usize = configs.iter().map(|config| form::peer_keys(config).len()).sum();
        let create = |kind, key, value, entries, name| {
            Map::create(kind, key, value, entries, name).map_err(refused("creating a map"))
        };
        let path = Path {
            settings: create(MapKind::Array, 4, settings::LEN, 1, "segue_settings")?,
            tunnels: create(MapKind::Hash, 4, tunnel::LEN, count.max(1), "segue_tunnels")?,
            peers: create(
                MapKind::PerCpuHash,
                peer::len(is_v4),
                crate::layout::inbound::LEN,
                (keys as u32).max(1),
                "segue_peers",
            )?,
            stations: create(MapKind::Array, 4, station::LEN, count + 1, "segue_stations")?,
            counters: create(MapKind::PerCpuArray, 4, 8 * COUNT, count + 1, "segue_counters")?,
            flows: create(MapKind::LruHash, 8, 8, FLOWS, "segue_flows")?,
            marks: create(MapKind::Array, 4, marks::LEN, 1, "segue_marks")?,
            senders: create(MapKind::Hash, if is_v4 { 4 } else { 16 }, 4, count, "segue_senders")?,
            dropped: create(MapKind::PerCpuArray, 4, 8 * DROPPED_COUNT, 1, "segue_dropped")?,
            egress: None,
            ingress: None,
            links: Vec::new(),
            _marks: Vec::new(),
            attached: Vec::new(),
            members: configs
                .iter()
                .map(|config| Member {
                    config: *config,
                    interface: 0,
                    address: [0; 6],
                    station: [0; 6],
                    route: Route::default(),
                })
                .collect(),
            sources: if sources.is_empty() { vec![0] } else { sources.to_vec() },
            partial: Vec::new(),
            readers: Readers::create().map_err(refused("creating a map"))?,
            is_on: false,
        };
        // The first tunnel of a remote judges the packets that are of none.
        for config in configs.iter().rev() {
            let has_gre = u32::from(config.mode.gre().is_some());
            path.senders
                .set(&form::address(config.remote), &has_gre.to_ne_bytes())
                .map_err(refused("filling a map"))?;
        }
        let egress = match blocked(Direction::Send) {
            true => None,
            false => {
                let code = assembled(egress::program(form::egress_form(first), &path.maps()))?;
                Some(
                    sys::load(ProgramKind::Classifier, &code, LICENCE, EGRESS)
                        .map_err(refused("loading the program for sending"))?,
                )
            }
        };
        let ingress = if blocked(Direction::Receive) { None } else { Some(path.load_ingress(first)?) };
        let marks: io::Result<_> = egress.iter().chain(&ingress).map(mark).collect();
        Ok(Path { egress, ingress, partial, _marks: marks.map_err(refused("marking a program"))?, ..path })
    }

    /// Loads the receive program, with the features that trials found in this kernel.
    fn load_ingress(&self, first: &Config) -> Result<OwnedFd, Error> {
        let mut tried = Err(Error::Broken(UNREMOVED));
        let load = |form: &receive_form::Form| {
            let code = assembled(ingress::program(form, &self.maps()))?;
            sys::load(ProgramKind::Classifier, &code, LICENCE, INGRESS)
                .map_err(refused("loading the program for receiving"))
        };
        for abilities in Abilities::ALL {
            let form = form::ingress_form(first, abilities, None);
            // Nothing verifies the checksums of the packets of a trial, so that they have none.
            let trial = receive_form::Form { zero_csum6: true, ..form };
            let program = load(&trial)?;
            tried = self.try_ingress(&program, abilities).map(|()| program);
            if tried.is_ok() {
                return if trial == form { tried } else { load(&form) };
            }
        }
        tried
    }

    /// Runs the receive program on a packet of each tunnel kind and inner IP version; the result must be the inner
    /// packet.
    fn try_ingress(&self, program: &OwnedFd, abilities: Abilities) -> Result<(), Error> {
        const LOOPBACK: u32 = 1;
        let step = refused("trying the program for receiving");
        self.set(true).map_err(&step)?;
        let mut outcome = Ok(());
        let mut seen = Vec::new();
        for config in self.members.iter().map(|member| &member.config) {
            let kind = std::mem::discriminant(&config.mode);
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            for key in form::peer_keys(config) {
                self.peers.set_all(&key, &form::inbound_value(LOOPBACK, 0)).map_err(&step)?;
            }
            for &version in form::versions(config.mode).iter().filter(|version| abilities.remove(config, **version)) {
                let (frame, bare) = received(config, version).ok_or(Error::Broken("the engine refuses the tunnel"))?;
                let run = sys::test_run(program.as_fd(), &frame, &[], 1).map_err(&step)?;
                let link = if config.mode.is_ethernet() { 0 } else { ETHERNET_LEN as usize };
                if run.result != REDIRECTED || run.packet.get(link..) != Some(&bare[..]) {
                    outcome = Err(Error::Broken(UNREMOVED));
                }
            }
            if !form::versions(config.mode).iter().any(|version| abilities.remove(config, *version)) {
                outcome = Err(Error::Broken(UNCROSSED));
            }
            for key in form::peer_keys(config) {
                self.peers.remove(&key).map_err(&step)?;
            }
        }
        self.set(false).map_err(&step)?;
        // The trials do not count.
        self.counters.set_all(&0_u32.to_ne_bytes(), &[0; 8 * COUNT]).map_err(&step)?;
        outcome
    }

    /// Returns how often the programs were waited for.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> u64 {
        self.readers.waits()
    }

    /// Sets the interface for received packets of all tunnels.
    #[cfg(test)]
    pub(crate) fn fill_peers(&self, interface: u32) -> io::Result<()> {
        for (index, member) in (1..).zip(&self.members) {
            for key in form::peer_keys(&member.config) {
                self.peers.set_all(&key, &form::inbound_value(interface, index))?;
            }
        }
        Ok(())
    }

    /// Runs the receive program `repeat` times on a frame from the Ethernet header on, as if all tunnels had the
    /// loopback interface.
    #[cfg(test)]
    pub(crate) fn run(&self, frame: &[u8], repeat: u32) -> io::Result<sys::Run> {
        let program = self.ingress.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sys::test_run(program.as_fd(), frame, &[], repeat)
    }

    /// Runs the receive program once, like [`Path::run`], with the given `__sk_buff`.
    #[cfg(test)]
    pub(crate) fn run_in(&self, frame: &[u8], context: &[u8]) -> io::Result<sys::Run> {
        let program = self.ingress.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sys::test_run(program.as_fd(), frame, context, 1)
    }

    fn maps(&self) -> Maps<'_> {
        Maps {
            settings: self.settings.as_fd(),
            counters: self.counters.as_fd(),
            flows: self.flows.as_fd(),
            marks: self.marks.as_fd(),
            tunnels: Tunnels::Single {
                by_interface: self.tunnels.as_fd(),
                by_packet: self.peers.as_fd(),
                stations: self.stations.as_fd(),
                senders: Senders { remotes: self.senders.as_fd(), dropped: self.dropped.as_fd() },
            },
        }
    }

    /// Attaches the tunnel with the given index to its interface and to its route's interface. Other programs at these
    /// hooks come first and stay.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(
        &mut self,
        index: usize,
        interface: u32,
        route: Route,
        filters: &mut dyn Filters,
    ) -> Result<(), Error> {
        let step = refused("attaching a program");
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        (member.interface, member.route) = (interface, route);
        if let Some(ingress) = &self.ingress {
            let value = form::inbound_value(interface, index as u32 + 1);
            for key in form::peer_keys(&self.members[index].config) {
                self.peers.set_all(&key, &value).map_err(refused("filling a map"))?;
            }
            if route.link != 0 && !self.attached.contains(&route.link) {
                let at = (route.link, Hook::Ingress);
                self.links.push(attach(ingress.as_fd(), at, INGRESS, filters).map_err(&step)?);
                self.attached.push(route.link);
            }
        }
        if let Some(egress) = &self.egress {
            self.links.push(attach(egress.as_fd(), (interface, Hook::Egress), EGRESS, filters).map_err(&step)?);
        }
        self.write(index, route, self.members[index].address).map_err(refused("filling a map"))
    }

    /// Writes the entry of a tunnel for sending, with this route and this address of its interface.
    fn write(&self, index: usize, route: Route, address: [u8; 6]) -> io::Result<()> {
        let Some(member) = self.members.get(index) else { return Ok(()) };
        let place = form::Place { route, counters: index as u32 + 1, address };
        let Some(value) = form::tunnel_value(&member.config, &place, &self.sources) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.tunnels.set(&member.interface.to_ne_bytes(), &value)
    }

    /// Applies what looks for some tunnels have found. Where more than a few entries change, the daemon has all packets
    /// meanwhile.
    ///
    /// # Errors
    /// The first of the kernel's; what it has refused is as before, and the next call writes it again. The path may be
    /// off ([`Path::is_on`]).
    pub fn follow(&mut self, found: &[Surroundings]) -> io::Result<()> {
        let is_change = |found: &&Surroundings| {
            let address = found.addresses.map(|[accepted, _]| accepted.unwrap_or_default());
            let differs = |member: &Member| {
                member.route != found.route || address.is_some_and(|address| member.address != address)
            };
            self.members.get(found.index).is_some_and(differs)
        };
        let pauses = self.is_on && found.iter().filter(is_change).count() > FEW;
        if pauses {
            self.switch(false)?;
        }
        let ready = if pauses { self.readers.wait() } else { Ok(()) };
        let done = ready.and_then(|()| found.iter().map(|found| self.apply(found)).fold(Ok(()), Result::and));
        if pauses {
            self.switch(true)?;
        }
        done
    }

    fn apply(&mut self, found: &Surroundings) -> io::Result<()> {
        self.reroute(found.index, found.route)?;
        let Some([accepted, own]) = found.addresses else { return Ok(()) };
        self.set_address(found.index, accepted)?;
        self.set_station(found.index, own)
    }

    /// Waits, where packets take the path, until no program reads an entry that was replaced.
    fn let_go(&self) -> io::Result<()> {
        if self.is_on { self.readers.wait() } else { Ok(()) }
    }

    /// Applies a route change of the tunnel with the given index.
    fn reroute(&mut self, index: usize, route: Route) -> io::Result<()> {
        match self.members.get(index) {
            Some(member) if member.route != route => {
                self.write(index, route, member.address)?;
                self.members[index].route = route;
                self.let_go()
            }
            _ => Ok(()),
        }
    }

    /// Applies a change of the link address of a tunnel's interface, where frames are inside; `None` where the
    /// interface is a bridge port or the like, so that all aggregates are forwarded.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_address(&mut self, index: usize, address: Option<[u8; 6]>) -> io::Result<()> {
        let address = address.unwrap_or_default();
        match self.members.get(index) {
            Some(member) if member.address != address => {
                self.write(index, member.route, address)?;
                self.members[index].address = address;
                self.let_go()
            }
            _ => Ok(()),
        }
    }

    /// Applies a change of the link address of a tunnel's interface, where frames are inside: received frames of this
    /// sender have come back, and are left to the daemon.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_station(&mut self, index: usize, address: Option<[u8; 6]>) -> io::Result<()> {
        let address = address.unwrap_or_default();
        match self.members.get(index) {
            Some(member) if member.station != address => {
                let mut value = [0; station::LEN];
                value[station::ADDRESS as usize..].copy_from_slice(&address);
                self.stations.set(&(index as u32 + 1).to_ne_bytes(), &value)?;
                self.members[index].station = address;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Switches the in-kernel path on or off: packets that are processed afterwards take the path, or are left to the
    /// daemon.
    ///
    /// # Errors
    /// The kernel's.
    pub fn switch(&mut self, on: bool) -> io::Result<()> {
        self.set(on)?;
        self.is_on = on;
        Ok(())
    }

    /// Returns whether packets take the path.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    fn set(&self, on: bool) -> io::Result<()> {
        let mut value = [0; settings::LEN];
        value[settings::ENABLED as usize] = u8::from(on);
        self.settings.set(&0_u32.to_ne_bytes(), &value)
    }

    /// Returns the counters of the tunnel with this index.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counts(&self, index: usize) -> io::Result<Counts> {
        let keys = self.members.get(index).map(|member| form::peer_keys(&member.config)).unwrap_or_default();
        self.read_counts(index as u32 + 1, &keys)
    }

    /// Returns the counters of packets of the outside port that belong to no tunnel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unclaimed(&self) -> io::Result<Counts> {
        self.read_counts(0, &[])
    }

    /// Returns the number of packets that the receive program dropped on behalf of the daemon, by the daemon's reasons;
    /// reasons without packets are omitted.
    ///
    /// # Errors
    /// The kernel's.
    pub fn dropped(&self) -> io::Result<Vec<(&'static str, u64)>> {
        Ok(refuse::dropped(&self.dropped.get(&0_u32.to_ne_bytes())?.unwrap_or_default()))
    }

    fn read_counts(&self, index: u32, keys: &[Vec<u8>]) -> io::Result<Counts> {
        let values = self.counters.get(&index.to_ne_bytes())?;
        let received: io::Result<Vec<_>> = keys.iter().filter_map(|key| self.peers.get(key).transpose()).collect();
        Ok(Counts::sum(&values.unwrap_or_default(), &received?))
    }

    /// Returns the directions that only the daemon serves, with the reasons.
    pub fn partial(&self) -> &[(Direction, &'static str)] {
        &self.partial
    }

    /// Returns the indexes of the tunnels' interfaces, in the order of the tunnels.
    pub fn interfaces(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.interface)
    }

    /// Returns the indexes of the interfaces of the routes, and of those where the ingress program still is after the
    /// routes have moved, each once.
    pub fn underlays(&self) -> BTreeSet<u32> {
        let routes = self.members.iter().map(|member| member.route.link).filter(|link| *link != 0);
        routes.chain(self.attached.iter().copied()).collect()
    }
}

/// Returns the names of other software's programs at the hooks of an interface; none on a kernel without such hooks.
/// Looking them up needs CAP_BPF. Where a name cannot be read, its number takes its place, and `is_marked` tells
/// whether an instance of segue has marked the program as its own ([`crate::mark_of`]).
///
/// # Errors
/// The kernel's.
pub fn foreign_programs(interface: u32, is_marked: &dyn Fn(u32) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for hook in [Hook::Ingress, Hook::Egress] {
        let found = match sys::attached(interface, hook) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => continue,
            other => other?,
        };
        let foreign = |(number, name): (u32, Option<String>)| match name {
            Some(name) => (!is_own(&name)).then_some((number, name)),
            None => (!is_marked(number)).then(|| (number, number.to_string())),
        };
        let foreign: Vec<_> = found.into_iter().filter_map(foreign).collect();
        if foreign.is_empty() {
            continue;
        }
        // Those of an instance that has ended meanwhile have no mark any more, and are gone.
        let present = sys::attached(interface, hook)?;
        let is_present = |number: u32| present.iter().any(|(other, _)| *other == number);
        names.extend(foreign.into_iter().filter(|(number, _)| is_present(*number)).map(|(_, name)| name));
    }
    Ok(names)
}

/// Returns whether a program or filter name belongs to the in-kernel path, of this or another process.
pub fn is_own(name: &str) -> bool {
    matches!(name, EGRESS | INGRESS)
}

/// Returns a received frame with a sample packet in the tunnel, and the inner packet or frame.
pub(crate) fn received(config: &Config, version: u8) -> Option<(Vec<u8>, Vec<u8>)> {
    let gre = |options: &segue::encap::GreOptions| segue::encap::GreOptions { okey: options.ikey, ..*options };
    // The other end: it sends to here what is received here.
    let far = Config {
        local: config.remote,
        remote: config.local,
        dport: config.port,
        csum: false,
        carrier: match config.carrier {
            Carrier::Gue { .. } => Carrier::Gue { remcsum: false },
            Carrier::Vxlan { vni, .. } => Carrier::Vxlan { vni, remcsum: false, takes_remcsum: false },
            other => other,
        },
        mode: match config.mode {
            segue::encap::Mode::Gre(options) => segue::encap::Mode::Gre(gre(&options)),
            other => other,
        },
        ..*config
    };
    let bare = form::sample(config.mode, version);
    let kind = if config.local.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
    let mut frame = ethernet::header([0; 6], [0; 6], kind).to_vec();
    frame.extend(form::headers(&far, version)?);
    frame.extend(&bare);
    Some((frame, bare))
}
