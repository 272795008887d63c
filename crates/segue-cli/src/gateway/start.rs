//! From a plan to ports: packet sockets on interfaces, TAPs that are made, in their namespace.

use std::fs::File;
use std::io;

use segue::{gro, hash};
use segue_datapath::gateway::{self, Fragments, Gateway, Parts, Side};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router;
use segue_port::packet_socket::{self, Buffers, PacketConfig, PacketPort};
use segue_port::tun::TunOffloads;
use segue_port::{PagePool, Port, WINDOW};

use super::plan::{End, Netns, Plan, What};
use super::route;
use crate::daemon::Opened;
use crate::daemon::knobs::prepare;
use crate::daemon::running::{Offloads, flow_key};
use crate::error::{Error, Kind};
use crate::out::Out;
use crate::sys;
use crate::system::Netlink;
use crate::tap::Tap;

/// Frames taken from one port in one round: a train of 64 kB in packets of 1500 bytes, and some.
const BUDGET: usize = 64;
/// Bytes of memory for trains on their way, beside the rings; pages are taken as they are needed.
const MEMORY: usize = 128 << 20;

/// Opens both ends.
pub(super) fn open(plan: &Plan, netlink: &mut Netlink, out: &Out) -> Result<Opened, Error> {
    let mut offloads = Offloads::default();
    let mut open_end = |end: &End| -> Result<Box<dyn Port>, Error> {
        let port = match &end.what {
            What::Interface => interface(end, plan.page_bytes, out)?,
            What::Tap { netns: None } => tap(end, "ip", netlink, out)?,
            What::Tap { netns: Some(netns) } => tap_inside(end, netns, out)?,
        };
        offloads.add(&format!("{}.", end.name), &*port, "switched off");
        Ok(port)
    };
    let (from, to) = (open_end(&plan.from)?, open_end(&plan.to)?);
    let (gro, key) = (Some(gro_config(plan, flow_key()?)), flow_key()?);
    let side = |end: &End, port| {
        let fragments = plan.fragment.then_some(Fragments { mtu: end.mtu as usize, key });
        Side { name: end.name.clone(), port, gro, fragments }
    };
    let sides = [side(&plan.from, from), side(&plan.to, to)];
    let pages = match plan.page_bytes {
        0 => PagePool::of_frames(MEMORY / WINDOW),
        bytes => PagePool::with_page_len(MEMORY / bytes, bytes),
    };
    if plan.route {
        return route::open(plan, sides, BUDGET, pages, offloads, netlink);
    }
    let parts = Parts { sides, budget: BUDGET, pages };
    let assemble = Box::new(move || Ok(Box::new(Gateway::new(parts)) as Box<dyn Pipeline>));
    Ok(Opened { offloads, teller: None, checksum_drops: None, assemble })
}

/// The settings at the start, with `wishes` beside what the options say.
pub(crate) fn knobs(plan: &Plan, wishes: &[(String, String)]) -> Result<Knobs, Error> {
    let config = Some(gro_config(plan, gro::Config::default().key));
    let names = [plan.from.name.as_str(), plan.to.name.as_str()];
    let preset =
        names.map(|name| (format!("net.gro.dev.{name}.enable_gro"), u64::from(plan.lro || plan.max_acks.is_some())));
    let all = match plan.route {
        true => router::knobs(names, [config; 2], BUDGET),
        false => gateway::knobs(names, [config; 2], BUDGET),
    };
    prepare(all, &preset, wishes)
}

/// How packets are joined, where they are.
fn gro_config(plan: &Plan, key: hash::Key) -> gro::Config {
    let default = gro::Config::default();
    // With one packet to a train only acknowledgments are joined.
    let most = if plan.lro || plan.max_acks.is_none() { plan.max_packets as usize } else { 1 };
    gro::Config {
        profile: plan.profile,
        max_bytes: plan.max_bytes as usize,
        max_packets: most,
        max_udp_packets: default.max_udp_packets.min(most),
        hold: plan.hold_us * 1000,
        acks: plan.max_acks.is_some(),
        max_acks: plan.max_acks.map_or(default.max_acks, |most| most as usize),
        key,
        ..default
    }
}

fn interface(end: &End, page_bytes: usize, out: &Out) -> Result<Box<dyn Port>, Error> {
    out.change(&format!("ip link set dev {} promisc on", end.name), "PACKET_ADD_MEMBERSHIP PACKET_MR_PROMISC");
    let buffers = if page_bytes == 0 { Buffers::Frames } else { Buffers::Pages(page_bytes) };
    let config = PacketConfig { buffers, ..PacketConfig::new(&end.name) };
    let port = PacketPort::open(&config).map_err(|error| packet_error(&end.name, error))?;
    Ok(Box::new(port))
}

fn packet_error(name: &str, error: packet_socket::OpenError) -> Error {
    match error {
        packet_socket::OpenError::NoInterface(_) => {
            Error::new(Kind::NotFound, format!("there is no interface {name}"), "ip -br link")
                .why("it went while the gateway started")
        }
        packet_socket::OpenError::NotEthernet(_) => {
            let text = format!("{name} carries no Ethernet frames");
            Error::new(Kind::Conflict, text, "another interface; for IP tunnels: segue tunnel")
                .why("a gateway joins two Ethernets")
        }
        packet_socket::OpenError::Denied(error) => {
            Error::system(format!("cannot open a packet socket on {name}"), &error, "sudo segue gateway ...")
                .kind(Kind::NoPermission)
                .why("this user lacks CAP_NET_RAW here")
        }
        packet_socket::OpenError::Call(call, error) => {
            Error::system(format!("cannot receive from {name}: {call}"), &error, "segue doctor")
                .why("the kernel refused")
        }
    }
}

/// A TAP in a namespace: made there, and set up over a connection of its own.
fn tap_inside(end: &End, netns: &Netns, out: &Out) -> Result<Box<dyn Port>, Error> {
    let file = File::open(&netns.path).map_err(|error| no_namespace(netns, &error))?;
    let made = sys::in_net_namespace(&file, || {
        let mut netlink = Netlink::open().map_err(|error| {
            Error::system("cannot set up the TAP", &error, "segue doctor").why("no rtnetlink socket could be opened")
        })?;
        tap(end, &netns.ip(), &mut netlink, out)
    });
    made.map_err(|error| no_namespace(netns, &error))?
}

/// Why a namespace cannot be entered.
pub(super) fn no_namespace(netns: &Netns, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot enter the network namespace {}", netns.name), error, "");
    match error.raw_os_error() {
        Some(libc::ENOENT) => made
            .kind(Kind::NotFound)
            .why(format!("there is no {}", netns.path.display()))
            .hint(format!("ip netns list\nsudo ip netns add {}", netns.name)),
        Some(libc::EPERM | libc::EACCES) => {
            made.kind(Kind::NoPermission).why("this user lacks CAP_SYS_ADMIN here").hint("sudo segue gateway ...")
        }
        _ => made.why(format!("{} is not a network namespace", netns.path.display())).hint("ip netns list"),
    }
}

/// A TAP with its MTU, up.
fn tap(end: &End, ip: &str, netlink: &mut Netlink, out: &Out) -> Result<Box<dyn Port>, Error> {
    let tap = Tap { name: end.name.clone(), netns: None, mtu: end.mtu, offloads: TunOffloads::All, mac: None };
    Ok(Box::new(tap.make(ip, netlink, out)?))
}
