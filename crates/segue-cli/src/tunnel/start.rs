//! The one place that knows devices, sockets and the datapath: from a ready plan to moving packets.
//!
//! [`open`] runs with all rights, [`Devices::start`] inside the sandbox. Between the two the process may have become
//! another one. Packets are moved by the thread that calls [`Running::work`]; others read its [`Running::reader`] and end
//! it with its [`Stopper`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use segue::encap::{self, Carrier, Decapsulator, Encapsulator, GreOptions, OuterCsum, SourcePorts, Tos, Ttl};
use segue::{gro, hash};
use segue_datapath::board::{Board, Group};
use segue_datapath::tunnel::{Parts, Tunnel};
use segue_datapath::worker;
use segue_port::tun::{Existing, TunConfig, TunOffloads, TunPort};
use segue_port::udp::{Carries, Checksum, Source, UdpConfig, UdpOffloads, UdpPort};
use segue_port::wrap::Trace;
use segue_port::{OffloadState, Port as DataPort, tun, udp};

use super::plan::{self, Choice, Encap, Plan, Profile};
use super::resolve::Ready;
use super::why;
use crate::control::model::{Complaint, Instance, Offload, Port, Side, Worker};
use crate::error::Error;

/// Reads that one port may do in one round: enough to fill a batch, few enough to stay in the cache.
const BUDGET: usize = 16;
/// Pages of memory for packets on their way: 16 MiB.
const PAGES: usize = 128;
/// Name of the outside port in statistics.
const OUTSIDE: &str = "udp";

/// What the kernel does for this tunnel, and why not what it does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offloads(BTreeMap<&'static str, State>);

/// One offload.
#[derive(Clone, Debug)]
enum State {
    On,
    /// Not asked for; why.
    Off(String),
    /// Asked for, and the kernel's answer.
    Refused(String),
}

impl Offloads {
    /// The form of `segue stat -j`.
    pub(crate) fn map(&self) -> BTreeMap<String, Offload> {
        let offload = |state: &State| match state {
            State::On => Offload { on: true, why: None, refused: false },
            State::Off(why) => Offload { on: false, why: Some(why.clone()), refused: false },
            State::Refused(why) => Offload { on: false, why: Some(why.clone()), refused: true },
        };
        self.0.iter().map(|(name, state)| ((*name).to_owned(), offload(state))).collect()
    }

    /// Whether one of them is in use.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(State::On))
    }

    fn add(&mut self, port: &dyn DataPort, off: &str) {
        for (name, state) in port.offloads() {
            let state = match state {
                OffloadState::On => State::On,
                OffloadState::Off => State::Off(off.to_owned()),
                OffloadState::Refused(errno) => {
                    State::Refused(crate::error::os_text(&io::Error::from_raw_os_error(errno)))
                }
            };
            self.0.insert(name, state);
        }
    }
}

/// Devices that are open and not yet used.
pub(crate) struct Devices {
    tun: TunPort,
    udp: UdpPort,
    trace: Option<File>,
    offloads: Offloads,
    keys: Keys,
}

/// Keys of the hashes, which must not be guessable from outside.
struct Keys {
    entropy: [u8; 16],
    flows: hash::Key,
}

/// Opens the interface, the sockets and the capture file. The interface is not up yet.
pub(crate) fn open(ready: &Ready) -> Result<Devices, Error> {
    let plan = &ready.plan;
    let udp = UdpPort::open(udp_config(ready)).map_err(|error| udp_error(ready, error))?;
    let config = TunConfig {
        name: plan.dev.clone(),
        existing: Existing::Attach,
        offloads: match (plan.gso, plan.gro) {
            (true, _) => TunOffloads::All,
            (false, true) => TunOffloads::WriteOnly,
            (false, false) => TunOffloads::None,
        },
    };
    let tun = TunPort::open(&config).map_err(|error| tun_error(&plan.dev, error))?;
    let trace = match &plan.trace {
        None => None,
        Some(path) => Some(File::create(path).map_err(|error| {
            Error::system(format!("cannot write {}", path.display()), &error, "another path: --trace FILE.pcap")
                .why("the capture file is opened before the tunnel starts")
        })?),
    };
    let keys = random_keys().map_err(|error| {
        Error::system("cannot read random numbers", &error, "segue doctor").why("/dev/urandom could not be read")
    })?;
    let mut offloads = Offloads::default();
    let off = if plan.encap_csum { "switched off" } else { "noencap-csum" };
    offloads.add(&udp, off);
    offloads.add(&tun, "switched off");
    Ok(Devices { tun, udp, trace, offloads, keys })
}

fn udp_config(ready: &Ready) -> UdpConfig {
    let plan = &ready.plan;
    UdpConfig {
        source: plan.sport.fixed().map_or(Source::Auto, Source::Fixed),
        tos: plan.tos.fixed().map_or(0, |tos| tos & 0xfc),
        ttl: plan.ttl.fixed().unwrap_or(64),
        checksum: if plan.encap_csum { Checksum::Full } else { Checksum::Zero },
        zero_checksum_v6: !plan.encap_csum,
        carries: if plan.encap == Encap::Gue { Carries::Gue } else { Carries::Other },
        offloads: match (plan.gso, plan.gro) {
            (true, true) => UdpOffloads::All,
            (true, false) => UdpOffloads::SendOnly,
            (false, true) => UdpOffloads::ReceiveOnly,
            (false, false) => UdpOffloads::None,
        },
        ..UdpConfig::new(ready.local, plan.port, SocketAddr::new(plan.remote, plan.dport))
    }
}

fn udp_error(ready: &Ready, error: udp::OpenError) -> Error {
    let listen = SocketAddr::new(ready.local, ready.plan.port);
    match error {
        udp::OpenError::InUse(at) => why::bind(at, &io::Error::from_raw_os_error(libc::EADDRINUSE)),
        udp::OpenError::NotLocal(at) => why::bind(at, &io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        udp::OpenError::Families => why::bind(listen, &io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        udp::OpenError::NoRoute(_, error) | udp::OpenError::Call(_, error) => why::bind(listen, &error),
    }
}

fn tun_error(dev: &str, error: tun::OpenError) -> Error {
    match error {
        tun::OpenError::Unavailable(error) => why::tun_open(dev, &error),
        // The device file and the interface are refused for different reasons; the file tells which it was.
        tun::OpenError::Denied(error) => match File::options().read(true).write(true).open(why::TUN) {
            Err(error) => why::tun_open(dev, &error),
            Ok(_) => why::tun_attach(dev, &error),
        },
        tun::OpenError::Busy(_) => why::tun_attach(dev, &io::Error::from_raw_os_error(libc::EBUSY)),
        tun::OpenError::Name(_) => why::tun_attach(dev, &io::Error::from_raw_os_error(libc::EINVAL)),
        tun::OpenError::Call(_, error) => why::tun_attach(dev, &error),
    }
}

fn random_keys() -> io::Result<Keys> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let word = |at: usize| bytes[at..at + 8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let mut entropy = [0; 16];
    entropy.copy_from_slice(&bytes[16..]);
    Ok(Keys { entropy, flows: hash::Key([word(0), word(8)]) })
}

/// The engine's form of a plan.
fn engine_config(ready: &Ready, slots: u16, seed: [u8; 16]) -> encap::Config {
    let plan = &ready.plan;
    let mode = match (plan.mode, plan.gre) {
        (plan::Mode::Ipip, _) => encap::Mode::Ipip,
        (plan::Mode::Sit, _) => encap::Mode::Sit,
        (plan::Mode::Ip6tnl, _) => encap::Mode::Ip,
        (plan::Mode::Gre, gre) => {
            let gre = gre.unwrap_or_default();
            encap::Mode::Gre(GreOptions {
                ikey: gre.ikey,
                okey: gre.okey,
                icsum: gre.icsum,
                ocsum: gre.ocsum,
                iseq: gre.iseq,
                oseq: gre.oseq,
            })
        }
    };
    let carrier = match plan.encap {
        Encap::Gue => Carrier::Gue { remcsum: plan.encap_remcsum },
        Encap::Fou => Carrier::Fou,
    };
    encap::Config {
        dport: plan.dport,
        port: plan.port,
        csum: plan.encap_csum,
        ttl: plan.ttl.fixed().map_or(Ttl::Inherit, Ttl::Fixed),
        tos: match plan.tos {
            Choice::Fixed(tos) => Tos::Fixed(tos),
            Choice::Inherit | Choice::Auto => Tos::Inherit,
        },
        pmtudisc: plan.pmtudisc,
        slots: plan.sport.fixed().map_or(SourcePorts::Slots(slots), SourcePorts::Fixed),
        seed,
        ..encap::Config::new(mode, carrier, ready.local, plan.remote)
    }
}

fn gro_config(plan: &Plan, key: hash::Key) -> Option<gro::Config> {
    let profile = match plan.profile {
        Profile::Strict => gro::Profile::Strict,
        Profile::Linux => gro::Profile::linux(),
    };
    plan.gro.then(|| gro::Config { profile, key, ..gro::Config::default() })
}

impl Devices {
    /// What the kernel does for this tunnel.
    pub(crate) fn offloads(&self) -> &Offloads {
        &self.offloads
    }

    /// Puts the tunnel together. Nothing moves before [`Running::work`].
    pub(crate) fn start(self, ready: &Ready) -> Result<(Running, Stopper), Error> {
        let Devices { tun, udp, trace, offloads, keys } = self;
        let plan = &ready.plan;
        let config = engine_config(ready, udp.slots(), keys.entropy);
        let refused = |error: encap::ConfigError| {
            Error::new(crate::error::Kind::Conflict, error.to_string(), "segue tunnel --help")
                .why("no such tunnel can exist")
        };
        let encap = Encapsulator::new(config).map_err(refused)?;
        let decap = Decapsulator::new(config).map_err(refused)?;
        let system = |error: io::Error| {
            Error::system("cannot start to move packets", &error, "segue doctor")
                .why("a pipe or the capture file failed")
        };
        let outside: Box<dyn DataPort> = match trace {
            None => Box::new(udp),
            Some(file) => Box::new(Trace::new(udp, io::BufWriter::new(file)).map_err(system)?),
        };
        let tunnel = Tunnel::new(Parts {
            inside_name: plan.dev.clone(),
            inside: Box::new(tun),
            outside_name: OUTSIDE.to_owned(),
            outside,
            encap,
            decap,
            remote: plan.remote,
            // The socket verifies what has a checksum, and its filter lets no remote checksum in that has none.
            outer_csum: OuterCsum::Verified,
            gro: gro_config(plan, keys.flows),
            budget: BUDGET,
            pages: PAGES,
        });
        let board = worker::board(&tunnel);
        let (stop, stopper) = io::pipe().map_err(system)?;
        Ok((Running { tunnel, board, offloads, stop }, Stopper(stopper)))
    }
}

/// A tunnel that is put together.
pub(crate) struct Running {
    tunnel: Tunnel,
    board: Arc<Board>,
    offloads: Offloads,
    stop: PipeReader,
}

/// Ends [`Running::work`] from another thread.
pub(crate) struct Stopper(PipeWriter);

impl Stopper {
    /// Asks for the end; it comes within a round.
    pub(crate) fn stop(&mut self) {
        // The reader is gone only if the work has ended already.
        let _ = self.0.write_all(b"x");
    }
}

impl Running {
    /// Moves packets until it is stopped.
    pub(crate) fn work(&mut self, dev: &str) -> Result<(), Error> {
        worker::run(&mut self.tunnel, self.stop.as_fd(), &self.board).map_err(|error| {
            Error::system(format!("{dev} can no longer move packets"), &error, "start it again")
                .why("the interface or a socket is gone")
        })
    }

    /// A function that reads ports and workers at any time, from any thread, into an instance.
    pub(crate) fn reader(&self, ready: &Ready) -> impl Fn(&mut Instance) + Send + Sync + Clone + use<> {
        let (dev, offloads, board) = (ready.plan.dev.clone(), self.offloads.map(), Arc::clone(&self.board));
        move |instance| {
            instance.offloads.clone_from(&offloads);
            instance.ports.insert(dev.clone(), Port::default());
            instance.ports.insert(OUTSIDE.to_owned(), Port { side: Side::Outside, ..Port::default() });
            let mut worker = Worker::default();
            for (name, value) in board.read() {
                if name.group == Group::Worker {
                    worker.counters.insert(name.key.to_owned(), value);
                } else if let Some(port) = instance.ports.get_mut(&name.port) {
                    put(port, name.group, name.key, value);
                }
            }
            instance.workers.push(worker);
            take_back(instance);
            let sick = instance.offloads.iter().filter(|(_, offload)| offload.refused);
            instance.health = sick
                .map(|(name, offload)| Complaint { what: format!("{name} off"), why: offload.why.clone(), since: None })
                .collect();
        }
    }
}

/// Fallback counters that say that an offload was in use and was taken back while packets moved.
const TAKEN_BACK: &[(&str, &[&str])] = &[
    ("udp_segment_eio", &["udp_segment"]),
    ("udp_segment_einval", &["udp_segment"]),
    ("tun_tso_einval", &["tun_tso4", "tun_tso6"]),
    ("tun_uso_einval", &["tun_uso"]),
];

/// Marks what the kernel has refused since the start.
fn take_back(instance: &mut Instance) {
    for (counter, names) in TAKEN_BACK {
        if instance.ports.values().any(|port| port.fallbacks.get(*counter).is_some_and(|&count| count > 0)) {
            for name in *names {
                let why = Some(format!("the kernel refused it while packets moved ({counter})"));
                instance.offloads.insert((*name).to_owned(), Offload { on: false, why, refused: true });
            }
        }
    }
}

/// Sorts one counter into its place. Counters of one name, such as a drop that two stages know, are added.
fn put(port: &mut Port, group: Group, key: &'static str, value: u64) {
    let map = match group {
        Group::Receive | Group::Transmit => {
            let flow = if group == Group::Receive { &mut port.receive } else { &mut port.transmit };
            match key {
                "packets" => flow.packets = value,
                "bytes" => flow.bytes = value,
                "trains" => flow.trains = value,
                "segments" => flow.segments = value,
                "calls" => flow.calls = value,
                _ => {}
            }
            return;
        }
        Group::Port if key == "checksummed_bytes" => {
            port.checksummed_bytes = value;
            return;
        }
        Group::Port | Group::Worker => &mut port.numbers,
        Group::Drops => &mut port.drops,
        Group::Flushes => &mut port.flushes,
        Group::Alone => &mut port.refusals,
        Group::Mismatches => &mut port.mismatches,
        Group::Fallbacks => &mut port.fallbacks,
    };
    *map.entry(key.to_owned()).or_insert(0) += value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_that_the_kernel_took_back_is_off_and_says_why() {
        let mut instance = Instance::default();
        let on = Offload { on: true, ..Offload::default() };
        for name in ["udp_segment", "udp_gro", "tun_tso4"] {
            instance.offloads.insert(name.to_owned(), on.clone());
        }
        let mut port = Port::default();
        port.fallbacks.insert("udp_segment_eio".to_owned(), 1);
        port.fallbacks.insert("tun_tso_einval".to_owned(), 0);
        instance.ports.insert(OUTSIDE.to_owned(), port);
        take_back(&mut instance);
        let refused = |name: &str| instance.offloads[name].refused;
        assert!(refused("udp_segment") && !instance.offloads["udp_segment"].on);
        assert!(!refused("udp_gro") && !refused("tun_tso4"));
    }

    #[test]
    fn counters_of_one_name_from_two_stages_are_added() {
        let mut port = Port::default();
        put(&mut port, Group::Drops, "too_deep", 2);
        put(&mut port, Group::Drops, "too_deep", 3);
        put(&mut port, Group::Transmit, "bytes", 7);
        assert_eq!((port.drops["too_deep"], port.transmit.bytes), (5, 7));
    }
}
