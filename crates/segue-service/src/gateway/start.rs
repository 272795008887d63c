//! Start of a gateway: packet sockets on interfaces, and TAPs that are created in their namespaces.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use segue::time::Nanos;
use segue::{gro, hash};
use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_datapath::bridge::{self, Bridge, BridgePort};
use segue_datapath::gateway::{self, Fragments, Gateway, Parts, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router;
use segue_host::netlink::{Link, Netlink};
use segue_host::sys;
use segue_port::packet_socket::{self, Buffers, PacketConfig, PacketPort, PacketSocket};
use segue_port::tun::{TunOffloads, TunPort};
use segue_port::{PagePool, Port, WINDOW};

use super::claim;
use super::endpoint::{Endpoint, EndpointKind, Netns, no_namespace, not_ethernet};
use super::plan::Plan;
use super::route;
use crate::control_server::already_running;
use crate::daemon::kernel::Forwarding;
use crate::daemon::knobs::prepare;
use crate::daemon::running::{Offloads, flow_key};
use crate::daemon::{AssembleMore, Complaints, NAMING, Opened};
use crate::diagnose::{self, Purpose};
use crate::fault::Vitals;
use crate::report::Report;
use crate::steering::socket_program;
use crate::tap::Tap;
use crate::vhost;

/// Largest number of frames from one port in one round: a train of 64 kB in packets of 1500 bytes, and some more.
const BUDGET: usize = 64;
/// Size in bytes of the memory for trains in the pipeline, in addition to the rings; pages are allocated when they are
/// needed.
const MEMORY: usize = 128 << 20;

/// Numbers of file descriptors needed by a port other than a guest's, and by the remaining parts of the gateway.
const FILES: (u64, u64) = (48, 256);

/// Claims and opens all ends, and prepares the assembly of the pipeline.
pub(super) fn open(plan: &Plan, netlink: &mut Netlink, out: &dyn Report) -> Result<Opened, Error> {
    let files = |end: &Endpoint| match end.what {
        EndpointKind::Vhost(_) => vhost::FILES,
        EndpointKind::Interface | EndpointKind::Tap { .. } => FILES.0,
    };
    sys::raise_open_file_limit(plan.ends().map(files).sum::<u64>() + FILES.1).map_err(|error| {
        Error::system("cannot open as many files as the ports need", &error, "ulimit -Hn")
            .why("the hard limit of open files is too low")
    })?;
    let mut claims = ClaimedPairs::default();
    claims.add(plan, netlink)?;
    let (mut offloads, mut helpers) = (Offloads::default(), Vec::new());
    let mut open_end = |end: &Endpoint| -> Result<OpenedEndpoint, Error> {
        let (port, more) = match &end.what {
            EndpointKind::Interface => interface(end, plan, out)?,
            EndpointKind::Tap { netns: None } => tap(end, "ip", plan.workers, netlink, out)?,
            EndpointKind::Tap { netns: Some(netns) } => tap_inside(end, netns, plan.workers, out)?,
            // A guest has one queue, and its gateway one worker.
            EndpointKind::Vhost(spec) => {
                (vhost::open(&end.name, spec, end.mtu, plan.is_weak, &mut helpers, out)?, Vec::new())
            }
        };
        offloads.add(&format!("{}.", end.port), &*port, "switched off");
        Ok((port, more))
    };
    let opened = plan.ends().map(&mut open_end).collect::<Result<Vec<_>, Error>>()?;
    // A TAP exists only after it was opened, and may be an end of another gateway.
    claims.add(plan, netlink)?;
    let claims = claims.sockets;
    let gro = Some(gro_config(plan, flow_key()?));
    let side = |end: &Endpoint| Side::new(end, gro, plan.fragment);
    let memory = MEMORY / usize::from(plan.workers.max(1));
    let page_bytes = plan.page_bytes;
    let pages = move || match page_bytes {
        0 => PagePool::of_frames(memory / WINDOW),
        bytes => PagePool::with_page_len(memory / bytes, bytes),
    };
    if plan.is_bridge() {
        let port = |(end, (port, _)): (&Endpoint, OpenedEndpoint)| -> Result<BridgePort, Error> {
            let own = match &end.what {
                EndpointKind::Interface => link(end, netlink)?.and_then(|link| link.mac),
                EndpointKind::Tap { .. } | EndpointKind::Vhost(_) => None,
            };
            Ok(BridgePort { config: side(end)?.with(port), own })
        };
        let ports = plan.ends().zip(opened).map(port).collect::<Result<Vec<_>, Error>>()?;
        let parts = bridge::Parts { ports, budget: BUDGET, pages: pages() };
        let assemble = Box::new(move |_: &Vitals| {
            let bridge = Bridge::new(parts).map_err(|error| {
                Error::system("cannot wait for the ports of the gateway", &error, "segue doctor")
                    .why("the kernel refused a poll set")
            })?;
            Ok(Box::new(bridge) as Box<dyn Pipeline>)
        });
        return Ok(Opened { claims, helpers, complaints: complaints(plan), ..Opened::new(offloads, assemble) });
    }
    let [(from, more_from), (to, more_to)] = <[OpenedEndpoint; 2]>::try_from(opened)
        .unwrap_or_else(|_| unreachable!("a gateway that is no bridge has two ends"));
    let more = more_from.into_iter().zip(more_to).map(|(from, to)| -> Result<AssembleMore, Error> {
        let (one, other) = (side(&plan.from)?, side(&plan.to)?);
        Ok(Box::new(move |_: &Vitals| {
            let ports = [one.with(from()?), other.with(to()?)];
            Ok(Box::new(Gateway::new(Parts { ports, budget: BUDGET, pages: pages() })) as Box<dyn Pipeline>)
        }))
    });
    let more = more.collect::<Result<Vec<_>, Error>>()?;
    let (ports, pages) = ([side(&plan.from)?.with(from), side(&plan.to)?.with(to)], pages());
    if plan.route {
        let opened = route::open(plan, ports, BUDGET, pages, offloads, netlink, out)?;
        let forwarding = Some(Forwarding::open([&plan.from.name, &plan.to.name]));
        return Ok(Opened { claims, forwarding, helpers, ..opened });
    }
    let parts = Parts { ports, budget: BUDGET, pages };
    let assemble = Box::new(move |_: &Vitals| Ok(Box::new(Gateway::new(parts)) as Box<dyn Pipeline>));
    Ok(Opened { claims, more, helpers, complaints: complaints(plan), ..Opened::new(offloads, assemble) })
}

/// Returns the function that reports the problems of guests, if an endpoint is one.
fn complaints(plan: &Plan) -> Option<Complaints> {
    let guest = |end: &Endpoint| match &end.what {
        EndpointKind::Vhost(spec) => Some((end.port.clone(), spec.clone())),
        _ => None,
    };
    let guests: Vec<_> = plan.ends().filter_map(guest).collect();
    (!guests.is_empty()).then(|| vhost::complaints(guests))
}

/// The settings of one side for one worker.
struct Side {
    name: String,
    gro: Option<gro::Config>,
    fragments: Option<Fragments>,
}

impl Side {
    /// Returns the settings of an end for one worker. Its fragments are numbered by a key of its own: with the same key
    /// two workers would give different packets of the same addresses the same identification.
    fn new(end: &Endpoint, gro: Option<gro::Config>, is_fragmenting: bool) -> Result<Side, Error> {
        let fragments = match is_fragmenting {
            true => Some(Fragments { mtu: end.mtu as usize, key: flow_key()? }),
            false => None,
        };
        Ok(Side { name: end.port.clone(), gro, fragments })
    }

    fn with(self, port: Box<dyn Port>) -> PortConfig {
        PortConfig { name: self.name, port, gro: self.gro, fragments: self.fragments }
    }
}

/// A packed port of a further worker, which unpacks it in its thread.
type Packed = Box<dyn FnOnce() -> Result<Box<dyn Port>, Error> + Send>;

/// The port of the first worker, and the packed ports of further workers.
type OpenedEndpoint = (Box<dyn Port>, Vec<Packed>);

/// The claims to interfaces, two by two.
#[derive(Default)]
struct ClaimedPairs {
    sockets: Vec<UnixListener>,
    claimed: Vec<[u32; 2]>,
}

impl ClaimedPairs {
    /// Claims each pair of interfaces that exist in this namespace and are not claimed yet.
    fn add(&mut self, plan: &Plan, netlink: &mut Netlink) -> Result<(), Error> {
        let mut found: Vec<(&str, u32)> = Vec::new();
        for end in plan.ends() {
            let index = match &end.what {
                EndpointKind::Interface => end.index,
                EndpointKind::Tap { netns: None } => link(end, netlink)?.map(|link| link.index),
                EndpointKind::Tap { netns: Some(_) } | EndpointKind::Vhost(_) => None,
            };
            found.extend(index.map(|index| (end.name.as_str(), index)));
        }
        for (at, one) in found.iter().enumerate() {
            for other in &found[at + 1..] {
                let pair = [one.1, other.1];
                if !self.claimed.contains(&pair) {
                    self.sockets.push(claim::claim([*one, *other])?);
                    self.claimed.push(pair);
                }
            }
        }
        Ok(())
    }
}

fn link(end: &Endpoint, netlink: &mut Netlink) -> Result<Option<Link>, Error> {
    netlink.link_named(&end.name).map_err(|error| diagnose::change(&end.name, "read the state", &error))
}

/// Checks, like `open`, that the interfaces and the name are free, without changing anything.
pub fn check(plan: &Plan, netlink: &mut Netlink) -> Result<(), Error> {
    if let Some(file) = client::running(&plan.name) {
        return Err(already_running(&plan.name, &file, NAMING));
    }
    ClaimedPairs::default().add(plan, netlink)?;
    taps(plan, netlink)
}

/// Checks that the TAPs can be created or attached to, and that the sockets of guests are free, without changing
/// anything.
fn taps(plan: &Plan, netlink: &mut Netlink) -> Result<(), Error> {
    for end in plan.ends() {
        match &end.what {
            EndpointKind::Interface => {}
            EndpointKind::Vhost(spec) => spec.check()?,
            EndpointKind::Tap { netns: None } => free(end, netlink)?,
            EndpointKind::Tap { netns: Some(netns) } => {
                let file = File::open(&netns.path).map_err(|error| no_namespace(netns, &error))?;
                // Without the right to enter the namespace there is nothing to check; the notes name the capability
                // that is missing.
                let looked =
                    sys::in_net_namespace(&file, || Netlink::open().map(|mut netlink| free(end, &mut netlink)));
                match looked {
                    Ok(Ok(free)) => free?,
                    Ok(Err(_)) => {}
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {}
                    Err(error) => return Err(no_namespace(netns, &error)),
                }
            }
        }
    }
    Ok(())
}

/// Checks that one TAP can be created or attached to.
fn free(end: &Endpoint, netlink: &mut Netlink) -> Result<(), Error> {
    let code = match link(end, netlink)? {
        Some(link) if !(link.tun && link.ethernet) => libc::EEXIST,
        // A TAP has a carrier while a process holds it.
        Some(link) if link.has_carrier => libc::EBUSY,
        _ => return Ok(()),
    };
    let purpose = Purpose::Tap { vnet_hdr: true, mtu: end.mtu, is_adapter: false };
    Err(diagnose::tun_attach(purpose, &end.name, &io::Error::from_raw_os_error(code)))
}

/// Returns the knobs at the start: the values of the options, then `assignments`.
pub fn knobs(plan: &Plan, assignments: &[(String, String)]) -> Result<Knobs, Error> {
    let config = Some(gro_config(plan, gro::Config::default().key));
    let names: Vec<&str> = plan.ends().map(|end| end.port.as_str()).collect();
    let is_on = u64::from(plan.lro || plan.max_acks.is_some());
    let preset: Vec<_> = names.iter().map(|name| (format!("net.gro.dev.{name}.enable_gro"), is_on)).collect();
    let all = match names[..] {
        [from, to] if plan.route => router::knobs([from, to], [config; 2], BUDGET, plan.nat.is_some()),
        [from, to] => gateway::knobs([from, to], [config; 2], BUDGET),
        _ => bridge::knobs(&names, config, BUDGET),
    };
    prepare(all, &preset, assignments)
}

/// Returns the engine's configuration of GRO for the plan.
fn gro_config(plan: &Plan, key: hash::Key) -> gro::Config {
    let default = gro::Config::default();
    // With trains of one packet only acknowledgments are joined.
    let most = if plan.lro || plan.max_acks.is_none() { plan.max_packets as usize } else { 1 };
    gro::Config {
        profile: plan.profile,
        max_bytes: plan.max_bytes as usize,
        max_packets: most,
        max_udp_packets: default.max_udp_packets.min(most),
        hold: Nanos::micros(plan.hold_us),
        acks: plan.max_acks.is_some(),
        max_acks: plan.max_acks.map_or(default.max_acks, |most| most as usize),
        key,
        ..default
    }
}

fn interface(end: &Endpoint, plan: &Plan, out: &dyn Report) -> Result<OpenedEndpoint, Error> {
    out.change(&format!("ip link set dev {} promisc on", end.name), "PACKET_ADD_MEMBERSHIP PACKET_MR_PROMISC");
    let buffers = if plan.page_bytes == 0 { Buffers::Frames } else { Buffers::Pages(plan.page_bytes) };
    let config = PacketConfig { buffers, ..PacketConfig::new(&end.name) };
    let failed = |error| packet_error(&end.name, error);
    if plan.workers <= 1 {
        return Ok((Box::new(PacketPort::open(&config).map_err(failed)?), Vec::new()));
    }
    let program = socket_program(&end.name, out)?;
    let program = program.as_ref().map(AsFd::as_fd);
    let mut sockets = PacketSocket::open_spread(&config, plan.workers, program).map_err(failed)?;
    // Its ring is mapped in the process that moves packets, by the first receive.
    let first = PacketPort::from(sockets.remove(0));
    let pack = |socket: PacketSocket| -> Packed {
        Box::new(move || {
            let name = socket.name().to_owned();
            let port = socket.map().map_err(|error| packet_error(&name, error))?;
            Ok(Box::new(port) as Box<dyn Port>)
        })
    };
    Ok((Box::new(first), sockets.into_iter().map(pack).collect()))
}

fn packet_error(name: &str, error: packet_socket::OpenError) -> Error {
    match error {
        packet_socket::OpenError::NoInterface(_) => {
            Error::new(Kind::NotFound, format!("there is no interface {name}"), "ip -br link")
                .why("it went while the gateway started")
        }
        packet_socket::OpenError::NotEthernet(_) => not_ethernet(name),
        packet_socket::OpenError::Denied(error) => {
            Error::system(format!("cannot open a packet socket on {name}"), &error, "sudo segue gateway ...")
                .kind(Kind::NoPermission)
                .why("this user lacks CAP_NET_RAW here")
        }
        packet_socket::OpenError::Call(call, error) => {
            Error::system(format!("cannot receive from {name}: {call}"), &error, "segue doctor")
                .why("the kernel refused")
        }
        other => Error::system(format!("cannot receive from {name}"), &io::Error::other(other), "segue doctor"),
    }
}

/// Creates a TAP in another namespace and configures it over an rtnetlink connection of that namespace.
fn tap_inside(end: &Endpoint, netns: &Netns, workers: u16, out: &dyn Report) -> Result<OpenedEndpoint, Error> {
    let file = File::open(&netns.path).map_err(|error| no_namespace(netns, &error))?;
    let made = sys::in_net_namespace(&file, || {
        let mut netlink = Netlink::open().map_err(|error| {
            Error::system("cannot set up the TAP", &error, "segue doctor").why("no rtnetlink socket could be opened")
        })?;
        tap(end, &netns.ip(), workers, &mut netlink, out)
    });
    made.map_err(|error| no_namespace(netns, &error))?
}

/// Creates a TAP in the namespace of this thread, sets its MTU and brings it up.
fn tap(
    end: &Endpoint,
    ip: &str,
    workers: u16,
    netlink: &mut Netlink,
    out: &dyn Report,
) -> Result<OpenedEndpoint, Error> {
    let tap = Tap { name: end.name.clone(), netns: None, mtu: end.mtu, offloads: TunOffloads::All, mac: None };
    let mut ports = tap.make_queues(workers.max(1), ip, netlink, out)?;
    let link = netlink.link_named(&end.name).and_then(|link| link.ok_or(io::ErrorKind::NotFound.into()));
    let followed = link.and_then(|link| ports.iter_mut().try_for_each(|port| port.follow_link(link.index)));
    followed.map_err(|error| diagnose::change(&end.name, "read the state", &error))?;
    let first = ports.remove(0);
    let pack = |port: TunPort| -> Packed {
        let make = port.pack();
        Box::new(move || Ok(Box::new(make()) as Box<dyn Port>))
    };
    Ok((Box::new(first), ports.into_iter().map(pack).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_of_each_worker_numbers_fragments_by_a_key_of_its_own() {
        let end = |name: &str| {
            let (name, port, what) = (name.to_owned(), name.to_owned(), EndpointKind::Interface);
            Endpoint { name, port, what, mtu: 1400, index: None }
        };
        let ends = [end("in"), end("out")];
        let workers = [(); 3].map(|()| ends.each_ref().map(|end| Side::new(end, None, true).unwrap()));
        let fragments: Vec<Fragments> = workers.iter().flatten().filter_map(|side| side.fragments).collect();
        assert_eq!(fragments.len(), 6);
        for (at, one) in fragments.iter().enumerate() {
            assert!(one.mtu == 1400 && fragments[..at].iter().all(|other| other.key != one.key));
        }
        assert!(Side::new(&ends[0], None, false).unwrap().fragments.is_none());
    }
}
