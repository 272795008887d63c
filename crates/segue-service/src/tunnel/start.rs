//! Start of tunnels: opens devices and sockets of a resolved plan, and assembles the datapath.
//!
//! `open` runs with all rights; the assembly that it returns runs inside of the sandbox, possibly in another
//! process.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use segue::encap::{self, Decapsulator, Encapsulator, OuterCsum};
use segue::{gro, hash};
use segue_control::error::Error;
use segue_datapath::knobs::{Knob, Knobs, Values};
use segue_datapath::overlay;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::probe::Probe;
use segue_datapath::tunnel::{self, Parts, Tunnel};
use segue_host::sys;
use segue_port::tun::TunPort;
use segue_port::udp::{
    AUTO_SLOTS, Carries, Checksum, RawConfig, RawPort, Sockets, Source, UdpConfig, UdpOffloads, UdpPort,
};
use segue_port::wrap::{Trace, TraceFile};
use segue_port::{Port as DataPort, TunnelWatch, udp};

use super::engine::{engine_config, engine_mode, forwarding, gro_config, takes_zero_csum6};
use super::group::Group;
use super::plan::{self, Encap, Plan};
use super::queues::{self, Inside};
use super::resolve::Ready;
use crate::daemon::kernel::ChecksumDrops;
use crate::daemon::knobs::prepare;
use crate::daemon::running::{Offloads, flow_key, random};
use crate::daemon::{AssembleMore, Opened, Succession};
use crate::diagnose;
use crate::fastpath;
use crate::fault::Vitals;
use crate::handover::Ports;
use crate::report::Report;
use crate::vhost;

/// Largest number of reads from one port in one round: single packets on one source port then fill the largest sends
/// (46 datagrams of 1,400 bytes are 64 kB), and the deliveries of one round fit the usual receive buffer of a socket
/// (some 90 of them). Trains end a round by their bytes, while they are in the cache.
pub(super) const BUDGET: usize = 64;
/// Number of memory pages for packets in the pipeline: 16 MiB.
pub(super) const PAGES: usize = 128;

/// Returns the name of the outside port in statistics: that of a table's first encapsulation.
fn outside_name(plan: &Plan) -> &'static str {
    plan.outside_names()[0]
}

/// The states of the probes of a group's tunnels; `None` for one that can have none.
pub(super) type Probes = Vec<Option<Arc<Probe>>>;

/// The sockets that send, and the probes that use them.
pub(super) struct Senders {
    /// UDP ports of the tunnels.
    pub(super) ports: Vec<u16>,
    /// Duplicates of the sockets that send, to read their error queues.
    pub(super) sockets: Vec<OwnedFd>,
    /// The probes of the tunnels.
    pub(super) probes: Probes,
}

/// Returns the UDP ports of the sending sockets.
pub(super) fn ports_of(sockets: &Sockets) -> Vec<u16> {
    let port = |fd: &OwnedFd| Some(UdpSocket::from(fd.try_clone().ok()?).local_addr().ok()?.port());
    sockets.send.iter().filter_map(port).filter(|port| *port != 0).collect()
}

/// Opens the interfaces, the sockets and the capture file, except those that are inherited. New interfaces are not up
/// yet. Returns the sockets that send as well.
pub(super) fn open(group: &Group, succession: &mut Succession, out: &dyn Report) -> Result<(Opened, Senders), Error> {
    let plan = &group.first().plan;
    let workers = u64::from(plan.workers.max(1));
    // Two descriptors for each queue of an interface and each socket, one of them for a successor, those of guests, and
    // those that any instance has.
    let sockets = u64::from(AUTO_SLOTS) + 1;
    let guests = group.plans().filter(|plan| plan.guest.is_some()).count() as u64 * vhost::FILES;
    let files = 2 * workers * (group.members.len() as u64 + sockets) + guests + 128;
    sys::raise_open_file_limit(files).map_err(|error| {
        Error::system(format!("cannot open {} interfaces", group.members.len()), &error, "ulimit -Hn 65536")
            .why("each takes one of the files that a process may have open")
    })?;
    let mut checksum_drops = plan.has_udp().then(|| ChecksumDrops::open(plan.remote, outside_name(plan))).flatten();
    let inherited = succession.inherited.outside();
    let is_new = inherited.is_none();
    let OpenedOutside { first: mut outside, more, ports: source_ports, sockets, senders } =
        open_outside(group, inherited)?;
    // What was dropped for want of a socket is none of the tunnel's; inherited sockets were there before.
    checksum_drops.iter_mut().filter(|_| is_new).for_each(ChecksumDrops::restart);
    let interval = |plan: &Plan| plan.can_probe().then(|| Arc::new(Probe::new(u64::from(plan.probe))));
    let probes: Probes = group.plans().map(interval).collect();
    let senders = Senders { ports: source_ports, sockets: senders, probes: probes.clone() };
    let mut helpers = Vec::new();
    let mut queues = queues::open(group, succession, &mut helpers, out)?.into_iter();
    let mut ports = Ports::default();
    if succession.has_successors {
        let interface = |tun: &TunPort| Ok((tun.name().to_owned(), tun.try_clone_fd()?));
        let interfaces = queues.as_slice().iter().flatten().filter_map(Inside::interface);
        ports.interfaces = interfaces.map(interface).collect::<io::Result<_>>().map_err(unkept)?;
        ports.sockets = sockets.map_err(unkept)?;
    }
    let trace = open_trace_of(plan)?;
    let (entropy, flows) = (random()?, flow_key()?);
    let mut offloads = Offloads::default();
    let off = if plan.encap_csum { "switched off" } else { "noencap-csum" };
    offloads.add("", &*outside.port, off);
    let insides = queues.next().unwrap_or_default();
    // GRO that is off can be switched on later.
    let takes_tunnels = insides.iter().filter_map(Inside::interface).any(|tun| DataPort::limits(tun).udp_tunnel);
    // Only trains depend on it.
    let watch = || takes_tunnels.then(|| TunnelWatch::open().ok()).flatten();
    outside.tunnels = watch();
    let first = insides.iter().find_map(Inside::interface);
    first.into_iter().for_each(|tun| offloads.add("", tun, "switched off"));
    let more = more.into_iter().zip(queues).map(|(outside, tuns)| -> AssembleMore {
        let (group, trace, probes) = (group.clone(), trace.clone(), probes.clone());
        let tuns: Vec<_> = tuns.into_iter().filter_map(Inside::into_interface).map(TunPort::pack).collect();
        let tuns = move || tuns.into_iter().map(|make| Box::new(make()) as Box<dyn DataPort>).collect();
        let tunnels = watch();
        Box::new(move |_: &Vitals| {
            assemble(&group, tuns(), Outside { tunnels, ..outside() }, trace, (entropy, flows), &probes)
        })
    });
    let more = more.collect();
    let guests: Vec<_> = group.plans().filter_map(|plan| Some((plan.dev.clone(), plan.guest.clone()?))).collect();
    let complaints = (!guests.is_empty()).then(|| vhost::complaints(guests));
    let group = group.clone();
    let insides = insides.into_iter().map(Inside::into_port).collect();
    let assemble = Box::new(move |_: &Vitals| assemble(&group, insides, outside, trace, (entropy, flows), &probes));
    Ok((Opened { checksum_drops, ports, more, helpers, complaints, ..Opened::new(offloads, assemble) }, senders))
}

/// Returns the failure to duplicate the ports for a successor.
pub(super) fn unkept(error: io::Error) -> Error {
    Error::system("cannot keep the ports open for a change of the configuration", &error, "ulimit -Hn 65536")
        .why("each takes one of the files that a process may have open")
}

/// Opens the capture file of a plan, if it has one.
pub(super) fn open_trace_of(plan: &Plan) -> Result<Option<TraceFile<File>>, Error> {
    let opened = plan.trace.as_deref().map(open_trace).transpose()?;
    Ok(match plan.trace_size {
        Some(size) => opened.map(|file| file.limited(u64::from(size) * 1_000_000)),
        None => opened,
    })
}

/// Opens the capture file of a trace, which only its owner can read: `-` is stdout, and a file that exists is
/// overwritten and keeps its mode. Nothing waits for the reader of a pipe once it is open.
fn open_trace(path: &Path) -> Result<TraceFile<File>, Error> {
    let open = || {
        let file = match path.to_str() {
            Some("-") => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            _ => File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?,
        };
        if !file.metadata()?.is_file() {
            sys::set_nonblocking(file.as_fd())?;
        }
        TraceFile::new(file, path.extension().is_some_and(|extension| extension == "pcapng"))
    };
    open().map_err(|error| {
        Error::system(format!("cannot write {}", path.display()), &error, "another path: --trace FILE.pcap")
            .why("the capture file is opened before the tunnel starts")
    })
}

/// The outside port, and the number of its source port slots.
struct Outside {
    port: Box<dyn DataPort>,
    slots: u16,
    /// The kernel's tunnel devices, where an interface takes trains inside of tunnels.
    tunnels: Option<TunnelWatch>,
}

/// The outside ports of the workers, and the duplicates of their sockets.
struct OpenedOutside {
    /// The port of the first worker.
    first: Outside,
    /// Ports of the other workers, each of which opens its own in its thread.
    more: Vec<Box<dyn FnOnce() -> Outside + Send>>,
    /// The UDP ports from which the first worker sends.
    ports: Vec<u16>,
    /// The sockets for a successor.
    sockets: io::Result<Sockets>,
    /// Duplicates of the sockets that send.
    senders: Vec<OwnedFd>,
}

/// Opens the outside ports, over inherited sockets if there are any.
fn open_outside(group: &Group, inherited: Option<Sockets>) -> Result<OpenedOutside, Error> {
    let ready = group.first();
    let plan = &ready.plan;
    if plan.has_udp() {
        let peers = |plan: &Plan| -> Vec<SocketAddr> {
            remotes(plan).into_iter().map(|remote| ready.at(remote, plan.dport)).collect()
        };
        // The first one is that of the configuration.
        let others: Vec<SocketAddr> = group.plans().flat_map(peers).skip(1).collect();
        let config = udp_config(ready);
        let all = match (inherited, plan.workers) {
            (Some(sockets), 0..=1) => UdpPort::adopt(config, &others, sockets).map(|port| vec![port]),
            (None, 0..=1) => UdpPort::open_to(config, &others).map(|port| vec![port]),
            (Some(sockets), workers) => UdpPort::adopt_spread(config, &others, sockets, workers),
            (None, workers) => UdpPort::open_spread(config, &others, workers),
        };
        let all = all.map_err(|error| udp_error(ready, error))?;
        let sockets = all.iter().map(UdpPort::sockets).collect::<io::Result<Vec<_>>>();
        let ports = sockets.as_ref().map_or(Vec::new(), |sockets| sockets.first().map(ports_of).unwrap_or_default());
        let sockets = sockets.map(|each| {
            let mut all = Sockets::default();
            for Sockets { receive, send } in each {
                all.receive.extend(receive);
                all.send.extend(send);
            }
            all
        });
        let senders = all.iter().flat_map(|udp| udp.senders().unwrap_or_default()).collect();
        let mut all = all.into_iter().map(|udp| {
            let (slots, make) = (udp.slots(), udp.pack());
            Box::new(move || Outside { slots, port: Box::new(make()), tunnels: None })
                as Box<dyn FnOnce() -> Outside + Send>
        });
        let Some(first) = all.next() else { return Err(udp_error(ready, udp::OpenError::Families)) };
        return Ok(OpenedOutside { first: first(), more: all.collect(), ports, sockets, senders });
    }
    let config = RawConfig {
        local: ready.local,
        peer: plan.remote,
        scope_id: ready.scope_id,
        protocols: engine_mode(plan).protocols(),
        tos: plan.tos.fixed().map_or(0, |tos| tos & 0xfc),
        ttl: plan.ttl.fixed().unwrap_or(64),
        batches: plan.gso || plan.gro,
        buffer_len: udp_config(ready).buffer_len,
    };
    let others: Vec<IpAddr> = group.plans().map(|plan| plan.remote).skip(1).collect();
    let raw = match inherited {
        Some(sockets) => RawPort::adopt(&config, &others, sockets),
        None => RawPort::open_to(&config, &others),
    };
    let raw = raw.map_err(|error| raw_error(ready, error))?;
    let (sockets, senders) = (raw.sockets(), raw.senders().unwrap_or_default());
    let ports = sockets.as_ref().map(ports_of).unwrap_or_default();
    Ok(OpenedOutside {
        first: Outside { port: Box::new(raw), slots: 1, tunnels: None },
        more: Vec::new(),
        ports,
        sockets,
        senders,
    })
}

/// Returns every remote, that of the plan first.
pub(super) fn remotes(plan: &Plan) -> Vec<IpAddr> {
    [vec![plan.remote], plan.overlay.others(plan.remote)].concat()
}

fn raw_error(ready: &Ready, error: udp::OpenError) -> Error {
    match error {
        udp::OpenError::Call("socket", error) => diagnose::raw_socket(&error),
        other => udp_error(ready, other),
    }
}

pub(super) fn udp_config(ready: &Ready) -> UdpConfig {
    let plan = &ready.plan;
    UdpConfig {
        source: match (plan.srcport, plan.sport.fixed()) {
            (Some((first, last)), _) => Source::Range(first, last),
            (None, Some(port)) => Source::Fixed(port),
            (None, None) => Source::Auto,
        },
        tos: plan.tos.fixed().map_or(0, |tos| tos & 0xfc),
        ttl: plan.ttl.fixed().unwrap_or(64),
        checksum: if plan.encap_csum { Checksum::Full } else { Checksum::Zero },
        zero_checksum_v6: takes_zero_csum6(plan),
        carries: match (plan.encap, plan.mode) {
            (Encap::Gue, _) => Carries::Gue,
            (_, plan::Mode::Vxlan) => Carries::Vxlan,
            _ => Carries::Other,
        },
        offloads: match (plan.gso, plan.gro) {
            (true, true) => UdpOffloads::All,
            (true, false) => UdpOffloads::SendOnly,
            (false, true) => UdpOffloads::ReceiveOnly,
            (false, false) => UdpOffloads::None,
        },
        ..UdpConfig::new(ready.local, plan.port, ready.at(plan.remote, plan.dport))
    }
}

pub(super) fn udp_error(ready: &Ready, error: udp::OpenError) -> Error {
    let listen = ready.listens();
    match error {
        udp::OpenError::InUse(at) => diagnose::bind(at, &io::Error::from_raw_os_error(libc::EADDRINUSE)),
        udp::OpenError::NotLocal(at) => diagnose::bind(at, &io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        udp::OpenError::Call("adopt", error) => {
            Error::system(format!("cannot take over the sockets of {listen}"), &error, "segue doctor")
                .why("the process before has handed over others")
        }
        udp::OpenError::Families => diagnose::bind(listen, &io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        udp::OpenError::NoRoute(_, error) | udp::OpenError::Call(_, error) => diagnose::bind(listen, &error),
        other => diagnose::bind(listen, &io::Error::other(other)),
    }
}

/// Returns the knobs at the start: the values of the words, then `assignments`.
pub fn knobs<'a>(
    plans: impl Iterator<Item = &'a Plan> + Clone,
    assignments: &[(String, String)],
) -> Result<Knobs, Error> {
    let interval = |plan: &Plan| plan.can_probe().then_some(u64::from(plan.probe));
    let insides: Vec<_> = plans.clone().map(|plan| (plan.dev.as_str(), interval(plan))).collect();
    let Some(first) = plans.clone().next() else { return Ok(Knobs::default()) };
    let gro = gro_config(first, insides.len(), gro::Config::default().key);
    let remcsum = plans.clone().any(Plan::leaves_checksums);
    let preset: Vec<_> =
        plans.map(|plan| (format!("net.gro.dev.{}.enable_gro", plan.dev), u64::from(plan.gro))).collect();
    if first.table.is_some() {
        let names = first.outside_names();
        let form = overlay::Form { frames: first.mode.is_ethernet(), gro: Some(gro), remcsum, budget: BUDGET };
        let knobs = overlay::knobs(&first.dev, &names, form).and(fastpath_knob(first));
        return prepare(knobs, &preset, assignments);
    }
    let knobs = tunnel::knobs(&insides, outside_name(first), Some(gro), remcsum, BUDGET).and(fastpath_knob(first));
    prepare(knobs, &preset, assignments)
}

/// Returns the knob that permits the in-kernel path.
fn fastpath_knob(plan: &Plan) -> Knob {
    let off = plan.fastpath == plan::Fastpath::Off;
    Knob {
        name: format!("net.fastpath.dev.{}.{}", outside_name(plan), fastpath::KNOB),
        values: Values::Switch,
        unit: "",
        help: "packets take the in-kernel path where it is loaded; 0 leaves all to the daemon",
        fixed: off.then_some("the path was not loaded: start with fastpath auto or on"),
        needs: None,
        default: u64::from(!off),
    }
}

/// Returns the request to the in-kernel path for the tunnels of `group`. `sources` are the UDP source ports.
pub(super) fn fastpath_request(group: &Group, sources: Vec<u16>) -> fastpath::Request {
    let plan = &group.first().plan;
    let config = |ready: &Ready| engine_config(ready, sources.len().max(1) as u16, [0; 16]);
    let tunnels = group.members.iter().filter(|ready| ready.plan.table.is_none());
    fastpath::Request {
        mode: plan.fastpath,
        table: None,
        tunnels: tunnels.map(|ready| fastpath::Tunnel { dev: ready.plan.dev.clone(), config: config(ready) }).collect(),
        outside: outside_name(plan),
        prevented: group.plans().find_map(Plan::needs_daemon).map(str::to_owned),
        sources,
    }
}

/// Assembles the pipeline of the tunnels.
fn assemble(
    group: &Group,
    insides: Vec<Box<dyn DataPort>>,
    outside: Outside,
    trace: Option<TraceFile<File>>,
    (entropy, flows): ([u8; 16], hash::Key),
    probes: &[Option<Arc<Probe>>],
) -> Result<Box<dyn Pipeline>, Error> {
    let slots = outside.slots;
    let port: Box<dyn DataPort> = match trace {
        None => outside.port,
        Some(file) => Box::new(Trace::to(outside.port, file)),
    };
    let count = group.members.len();
    let parts: Result<Vec<Parts>, Error> = group
        .members
        .iter()
        .zip(insides)
        .zip(probes)
        .map(|((ready, inside), probe)| {
            let parts = parts(ready, inside, engine_config(ready, slots, entropy), count, flows)?;
            Ok(Parts { probe: probe.clone(), ..parts })
        })
        .collect();
    let outside = tunnel::Outside {
        name: outside_name(&group.first().plan).to_owned(),
        port,
        // The socket verifies checksums that are present, and its filter drops remote checksum offload without one.
        csum: OuterCsum::Verified,
        budget: BUDGET,
        pages: PAGES,
        key: flows,
        tunnels: outside.tunnels,
    };
    Ok(Box::new(Tunnel::new(outside, parts?)))
}

/// Assembles the stages of one of `count` tunnels.
fn parts(
    ready: &Ready,
    inside: Box<dyn DataPort>,
    config: encap::Config,
    count: usize,
    flows: hash::Key,
) -> Result<Parts, Error> {
    let plan = &ready.plan;
    let refused = |error: encap::ConfigError| {
        Error::new(segue_control::error::Kind::Conflict, error.to_string(), "segue tunnel --help")
            .why("no such tunnel can exist")
    };
    let encap = Encapsulator::new(config).map_err(refused)?;
    let decap = Decapsulator::new(config).map_err(refused)?;
    let remotes = remotes(plan);
    let (fdb, flood) = forwarding(plan, &remotes, flows);
    Ok(Parts {
        inside_name: plan.dev.clone(),
        inside,
        encap,
        decap,
        remotes,
        fdb,
        flood,
        gro: Some(gro_config(plan, count, flows)),
        probe: None,
    })
}
