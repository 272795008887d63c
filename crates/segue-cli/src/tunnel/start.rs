//! The one place that knows devices, sockets and the datapath: from a ready plan to moving packets.
//!
//! [`open`] runs with all rights, what it leaves to be assembled inside the sandbox. Between the two the process may have
//! become another one.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};

use segue::encap::{self, Carrier, Decapsulator, Df, Encapsulator, Fdb, GreOptions, OuterCsum, SourcePorts, Tos, Ttl};
use segue::{gro, hash};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::{self, Parts, Tunnel};
use segue_port::tun::{Existing, Layer, TunConfig, TunOffloads, TunPort};
use segue_port::udp::{Carries, Checksum, RawConfig, RawPort, Source, UdpConfig, UdpOffloads, UdpPort};
use segue_port::wrap::Trace;
use segue_port::{Port as DataPort, tun, udp};

use super::plan::{self, Choice, Encap, Plan, Profile};
use super::resolve::Ready;
use super::why;
use crate::daemon::Opened;
use crate::daemon::knobs::prepare;
use crate::daemon::running::{Offloads, flow_key, random};
use crate::error::Error;

/// Reads that one port may do in one round: enough to fill a batch, few enough to stay in the cache.
const BUDGET: usize = 16;
/// Pages of memory for packets on their way: 16 MiB.
const PAGES: usize = 128;

/// Name of the outside port in statistics.
pub(crate) fn outside_name(plan: &Plan) -> &'static str {
    if plan.has_udp() { "udp" } else { "raw" }
}

/// Opens the interface, the sockets and the capture file. The interface is not up yet.
pub(crate) fn open(ready: &Ready) -> Result<Opened, Error> {
    let plan = &ready.plan;
    let outside = open_outside(ready)?;
    let config = TunConfig {
        name: plan.dev.clone(),
        layer: if plan.mode.is_ethernet() { Layer::Ethernet } else { Layer::Ip },
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
    let (entropy, flows) = (random()?, flow_key()?);
    let mut offloads = Offloads::default();
    let off = if plan.encap_csum { "switched off" } else { "noencap-csum" };
    offloads.add("", &*outside.port, off);
    offloads.add("", &tun, "switched off");
    let ready = ready.clone();
    Ok(Opened {
        offloads,
        teller: None,
        assemble: Box::new(move || assemble(&ready, tun, outside, trace, entropy, flows)),
    })
}

/// The outside port, and how many slots it has.
struct Outside {
    port: Box<dyn DataPort>,
    slots: u16,
}

fn open_outside(ready: &Ready) -> Result<Outside, Error> {
    let plan = &ready.plan;
    if plan.has_udp() {
        let others: Vec<SocketAddr> =
            plan.overlay.others(plan.remote).into_iter().map(|other| SocketAddr::new(other, plan.dport)).collect();
        let udp = UdpPort::open_to(udp_config(ready), &others).map_err(|error| udp_error(ready, error))?;
        return Ok(Outside { slots: udp.slots(), port: Box::new(udp) });
    }
    let config = RawConfig {
        local: ready.local,
        peer: plan.remote,
        protocols: engine_mode(plan).protocols(),
        tos: plan.tos.fixed().map_or(0, |tos| tos & 0xfc),
        ttl: plan.ttl.fixed().unwrap_or(64),
        batches: plan.gso || plan.gro,
        buffer_len: udp_config(ready).buffer_len,
    };
    let raw = RawPort::open(&config).map_err(|error| raw_error(ready, error))?;
    Ok(Outside { port: Box::new(raw), slots: 1 })
}

fn raw_error(ready: &Ready, error: udp::OpenError) -> Error {
    match error {
        udp::OpenError::Call("socket", error) => why::raw_socket(&error),
        other => udp_error(ready, other),
    }
}

fn udp_config(ready: &Ready) -> UdpConfig {
    let plan = &ready.plan;
    UdpConfig {
        source: plan.sport.fixed().map_or(Source::Auto, Source::Fixed),
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
        ..UdpConfig::new(ready.local, plan.port, SocketAddr::new(plan.remote, plan.dport))
    }
}

/// Whether datagrams without checksum are taken over IPv6: in VXLAN and Geneve each direction has its own word.
fn takes_zero_csum6(plan: &Plan) -> bool {
    if plan.mode.is_overlay() { plan.overlay.udp6zerocsumrx } else { !plan.encap_csum }
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

/// Why the device `dev` could not be made.
pub(crate) fn tun_error(dev: &str, error: tun::OpenError) -> Error {
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

fn engine_mode(plan: &Plan) -> encap::Mode {
    let gre = plan.gre.unwrap_or_default();
    let gre = GreOptions {
        ikey: gre.ikey,
        okey: gre.okey,
        icsum: gre.icsum,
        ocsum: gre.ocsum,
        iseq: gre.iseq,
        oseq: gre.oseq,
    };
    match plan.mode {
        plan::Mode::Ipip => encap::Mode::Ipip,
        plan::Mode::Sit => encap::Mode::Sit,
        plan::Mode::Ip6tnl => encap::Mode::Ip,
        plan::Mode::Gre => encap::Mode::Gre(gre),
        plan::Mode::Gretap => encap::Mode::GreTap(gre),
        plan::Mode::Vxlan | plan::Mode::Geneve => encap::Mode::Ethernet,
    }
}

/// The engine's form of a plan.
fn engine_config(ready: &Ready, slots: u16, seed: [u8; 16]) -> encap::Config {
    let plan = &ready.plan;
    let mode = engine_mode(plan);
    let vni = plan.overlay.id.unwrap_or(0);
    let carrier = match (plan.encap, plan.mode) {
        (_, plan::Mode::Vxlan) => {
            Carrier::Vxlan { vni, remcsum: plan.overlay.remcsumtx, takes_remcsum: plan.overlay.remcsumrx }
        }
        (_, plan::Mode::Geneve) => Carrier::Geneve { vni },
        (Encap::Gue, _) => Carrier::Gue { remcsum: plan.encap_remcsum },
        (Encap::Fou, _) => Carrier::Fou,
        (Encap::None, _) => Carrier::Bare,
    };
    let df = match (plan.mode.is_overlay(), plan.overlay.df, plan.pmtudisc) {
        (true, plan::Df::Unset, _) => Df::Unset,
        (true, plan::Df::Set, _) | (false, _, true) => Df::Set,
        (true, plan::Df::Inherit, _) | (false, _, false) => Df::Inherit,
    };
    // Raw sockets show what this host's kernel joined or left unfinished, and so do UDP sockets with what its own VXLAN
    // and Geneve devices send to them.
    let is_shown = carrier == Carrier::Bare || plan.mode.is_overlay();
    let unfinished = is_shown.then(|| u16::try_from(ready.mtu).unwrap_or(u16::MAX));
    encap::Config {
        dport: plan.dport,
        port: plan.port,
        csum: plan.encap_csum,
        ttl: plan.ttl.fixed().map_or(Ttl::Inherit, Ttl::Fixed),
        tos: match plan.tos {
            Choice::Fixed(tos) => Tos::Fixed(tos),
            Choice::Inherit | Choice::Auto => Tos::Inherit,
        },
        df,
        zero_csum6: takes_zero_csum6(plan),
        unfinished,
        slots: plan.sport.fixed().map_or(SourcePorts::Slots(slots), SourcePorts::Fixed),
        seed,
        ..encap::Config::new(mode, carrier, ready.local, plan.remote)
    }
}

/// The settings at the start, with `wishes` beside what the words say.
pub(crate) fn knobs(plan: &Plan, wishes: &[(String, String)]) -> Result<Knobs, Error> {
    let knobs = tunnel::knobs(
        &plan.dev,
        outside_name(plan),
        Some(gro_config(plan, gro::Config::default().key)),
        plan.leaves_checksums(),
        BUDGET,
    );
    let preset = [(format!("net.gro.dev.{}.enable_gro", plan.dev), u64::from(plan.gro))];
    prepare(knobs, &preset, wishes)
}

/// How received packets are joined, where they are.
fn gro_config(plan: &Plan, key: hash::Key) -> gro::Config {
    let profile = match plan.profile {
        Profile::Strict => gro::Profile::Strict,
        Profile::Linux => gro::Profile::linux(),
    };
    gro::Config { profile, key, ..gro::Config::default() }
}

/// The forwarding table, where there is more than one remote to choose from, and the remotes that get what has none: the
/// first, and those with an entry for zero.
fn forwarding(plan: &Plan, remotes: &[IpAddr], key: hash::Key) -> (Option<Fdb>, Vec<u16>) {
    if remotes.len() < 2 {
        return (None, Vec::new());
    }
    let number = |address: IpAddr| remotes.iter().position(|remote| *remote == address).unwrap_or(0) as u16;
    let (all, own): (Vec<&plan::Neighbour>, Vec<&plan::Neighbour>) =
        plan.overlay.fdb.iter().partition(|entry| entry.mac == [0; 6]);
    let own: Vec<_> = own.iter().map(|entry| (entry.mac, number(entry.remote))).collect();
    let mut flood: Vec<u16> = std::iter::once(0).chain(all.iter().map(|entry| number(entry.remote))).collect();
    flood.sort_unstable();
    flood.dedup();
    let entries = if plan.overlay.learning { plan.overlay.maxaddress as usize } else { 0 };
    let ageing = u64::from(plan.overlay.ageing) * 1_000_000_000;
    (Some(Fdb::new(key, entries, ageing, &own)), flood)
}

/// Puts the tunnel together.
fn assemble(
    ready: &Ready,
    tun: TunPort,
    outside: Outside,
    trace: Option<File>,
    entropy: [u8; 16],
    flows: hash::Key,
) -> Result<Box<dyn Pipeline>, Error> {
    let plan = &ready.plan;
    let config = engine_config(ready, outside.slots, entropy);
    let refused = |error: encap::ConfigError| {
        Error::new(crate::error::Kind::Conflict, error.to_string(), "segue tunnel --help")
            .why("no such tunnel can exist")
    };
    let encap = Encapsulator::new(config).map_err(refused)?;
    let decap = Decapsulator::new(config).map_err(refused)?;
    let outside: Box<dyn DataPort> = match trace {
        None => outside.port,
        Some(file) => Box::new(Trace::new(outside.port, io::BufWriter::new(file)).map_err(|error| {
            Error::system("cannot start to move packets", &error, "segue doctor").why("the capture file failed")
        })?),
    };
    let remotes: Vec<IpAddr> = [vec![plan.remote], plan.overlay.others(plan.remote)].concat();
    let (fdb, flood) = forwarding(plan, &remotes, flows);
    Ok(Box::new(Tunnel::new(Parts {
        inside_name: plan.dev.clone(),
        inside: Box::new(tun),
        outside_name: outside_name(plan).to_owned(),
        outside,
        encap,
        decap,
        remotes,
        fdb,
        flood,
        // The socket verifies what has a checksum, and its filter lets no remote checksum in that has none.
        outer_csum: OuterCsum::Verified,
        gro: Some(gro_config(plan, flows)),
        budget: BUDGET,
        pages: PAGES,
    })))
}
