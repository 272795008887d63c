//! The one place that knows devices, sockets and the datapath: from a ready plan to moving packets.
//!
//! [`open`] runs with all rights, what it leaves to be assembled inside the sandbox. Between the two the process may have
//! become another one.

use std::fs::File;
use std::io;
use std::net::SocketAddr;

use segue::encap::{self, Carrier, Decapsulator, Df, Encapsulator, GreOptions, OuterCsum, SourcePorts, Tos, Ttl};
use segue::{gro, hash};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::{self, Parts, Tunnel};
use segue_port::tun::{Existing, Layer, TunConfig, TunOffloads, TunPort};
use segue_port::udp::{Carries, Checksum, Source, UdpConfig, UdpOffloads, UdpPort};
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
pub(crate) const OUTSIDE: &str = "udp";

/// Opens the interface, the sockets and the capture file. The interface is not up yet.
pub(crate) fn open(ready: &Ready) -> Result<Opened, Error> {
    let plan = &ready.plan;
    let udp = UdpPort::open(udp_config(ready)).map_err(|error| udp_error(ready, error))?;
    let config = TunConfig {
        name: plan.dev.clone(),
        layer: Layer::Ip,
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
    offloads.add("", &udp, off);
    offloads.add("", &tun, "switched off");
    let ready = ready.clone();
    Ok(Opened { offloads, assemble: Box::new(move || assemble(&ready, tun, udp, trace, entropy, flows)) })
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
        df: if plan.pmtudisc { Df::Set } else { Df::Inherit },
        zero_csum6: !plan.encap_csum,
        slots: plan.sport.fixed().map_or(SourcePorts::Slots(slots), SourcePorts::Fixed),
        seed,
        ..encap::Config::new(mode, carrier, ready.local, plan.remote)
    }
}

/// The settings at the start, with `wishes` beside what the words say.
pub(crate) fn knobs(plan: &Plan, wishes: &[(String, String)]) -> Result<Knobs, Error> {
    let knobs =
        tunnel::knobs(&plan.dev, OUTSIDE, Some(gro_config(plan, gro::Config::default().key)), plan.encap_remcsum);
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

/// Puts the tunnel together.
fn assemble(
    ready: &Ready,
    tun: TunPort,
    udp: UdpPort,
    trace: Option<File>,
    entropy: [u8; 16],
    flows: hash::Key,
) -> Result<Box<dyn Pipeline>, Error> {
    let plan = &ready.plan;
    let config = engine_config(ready, udp.slots(), entropy);
    let refused = |error: encap::ConfigError| {
        Error::new(crate::error::Kind::Conflict, error.to_string(), "segue tunnel --help")
            .why("no such tunnel can exist")
    };
    let encap = Encapsulator::new(config).map_err(refused)?;
    let decap = Decapsulator::new(config).map_err(refused)?;
    let outside: Box<dyn DataPort> = match trace {
        None => Box::new(udp),
        Some(file) => Box::new(Trace::new(udp, io::BufWriter::new(file)).map_err(|error| {
            Error::system("cannot start to move packets", &error, "segue doctor").why("the capture file failed")
        })?),
    };
    Ok(Box::new(Tunnel::new(Parts {
        inside_name: plan.dev.clone(),
        inside: Box::new(tun),
        outside_name: OUTSIDE.to_owned(),
        outside,
        encap,
        decap,
        remote: plan.remote,
        // The socket verifies what has a checksum, and its filter lets no remote checksum in that has none.
        outer_csum: OuterCsum::Verified,
        gro: Some(gro_config(plan, flows)),
        budget: BUDGET,
        pages: PAGES,
    })))
}
