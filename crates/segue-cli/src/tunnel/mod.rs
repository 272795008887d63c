//! `segue tunnel`: from words to a tunnel, and back to nothing.

pub(crate) mod group;
pub(crate) mod plan;
pub(crate) mod resolve;
pub(crate) mod show;
pub(crate) mod start;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_control::model::Side;
use segue_datapath::knobs::Knobs;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_service::apply::Changes;
use segue_service::daemon::running::Offloads;
use segue_service::daemon::{self, Daemon, Opened, Succession};
use segue_service::diagnose as why;
use segue_service::report::Report;
use segue_service::sandbox::Sandbox;
use serde_json::Value;

use self::group::Group;
use self::resolve::Ready;
use crate::args::Tunnel;
use crate::out::Out;
use crate::words::{parse, tunnel};

/// Runs the command.
pub(crate) fn run(args: &Tunnel, out: &Out) -> Result<(), Error> {
    let watched = daemon::follow(args.supervised, args.heir)?;
    let parsed = parse::parse_each("segue tunnel", tunnel::WORDS, &args.words)?;
    let plans: Result<Vec<_>, Error> =
        parsed.iter().map(|parsed| plan::plan(parsed, args.trace.clone(), &args.set)).collect();
    let plans = plans?;
    if let Some(clash) = group::clash(&plans) {
        let parsed = &parsed[clash.at];
        let at = parsed.place_of(clash.word).unwrap_or(parsed.end());
        return Err(parsed.error_at(Kind::Conflict, clash.message, at, clash.note));
    }
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for routes", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let group = Group::resolve(plans, &mut netlink)?;
    if args.check {
        return check(&group, &mut netlink, out);
    }
    daemon::up(&group, &mut netlink, watched, &out.staying())
}

/// `--check`: what would stop the tunnels, and what they would be. Changes nothing.
fn check(group: &Group, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let ready = group.first();
    let dev = &ready.plan.dev;
    if client::one(dev).is_ok() {
        return Err(Error::new(Kind::InUse, format!("{dev} is already running"), format!("segue stat {dev}"))
            .why("its control socket answers"));
    }
    if let Some(directory) = ready.plan.trace.as_deref().and_then(Path::parent)
        && !directory.as_os_str().is_empty()
        && !directory.is_dir()
    {
        return Err(Error::new(
            Kind::System,
            format!("cannot write into {}", directory.display()),
            "another path: --trace FILE.pcap",
        )
        .why("there is no such directory"));
    }
    start::knobs(group.plans(), &ready.plan.set)?;
    for plan in group.plans() {
        free(&plan.dev, netlink)?;
    }
    if ready.plan.has_udp() {
        let listen = SocketAddr::new(ready.local, ready.plan.port);
        UdpSocket::bind(listen).map_err(|error| why::bind(listen, &error))?;
    }
    let mut notes = group.notes();
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open(why::TUN) {
        notes.push(format!("this user cannot start it: {}", why::tun_open(dev, &error).message));
    } else if !sys::capabilities().is_ok_and(sys::has_net_admin) {
        notes
            .push("this user lacks CAP_NET_ADMIN and cannot start it, unless the interface was made for it".to_owned());
    }
    if out.json {
        out.value(&show::plan_json(group, &notes));
    } else {
        notes.iter().for_each(|note| out.note(&format!("note: {note}")));
        out.data(&show::plan_text(group));
    }
    Ok(())
}

/// An interface of this name may exist only if it is a TUN device that was made for segue beforehand.
fn free(dev: &str, netlink: &mut Netlink) -> Result<(), Error> {
    let taken = netlink.link_named(dev).map_err(|error| why::change(dev, "read the state", &error))?;
    match taken {
        Some(link) if !link.tun => Err(why::tun_attach(dev, &std::io::Error::from_raw_os_error(libc::EEXIST))),
        _ => Ok(()),
    }
}

impl Daemon for Group {
    fn name(&self) -> &str {
        &self.first().plan.dev
    }

    fn kind(&self) -> &'static str {
        "tunnel"
    }

    fn schema(&self) -> &'static str {
        show::SCHEMA
    }

    fn notes(&self) -> Vec<String> {
        Group::notes(self)
    }

    fn ports(&self) -> Vec<(String, Side)> {
        let outside = (start::outside_name(&self.first().plan).to_owned(), Side::Outside);
        self.plans().map(|plan| (plan.dev.clone(), Side::Inside)).chain([outside]).collect()
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        start::knobs(self.plans(), &self.first().plan.set)
    }

    fn open(&self, netlink: &mut Netlink, succession: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        let inherited =
            |ready: &&Ready| succession.inherited.interfaces.iter().any(|(name, _)| *name == ready.plan.dev);
        let fresh: Vec<&Ready> = self.members.iter().filter(|ready| !inherited(ready)).collect();
        for plan in fresh.iter().map(|ready| &ready.plan) {
            free(&plan.dev, netlink)?;
            let layer = if plan.mode.is_ethernet() { "tap" } else { "tun" };
            out.change(&format!("ip tuntap add dev {} mode {layer} vnet_hdr", plan.dev), "TUNSETIFF");
        }
        let opened = start::open(self, succession)?;
        fresh.into_iter().try_for_each(|ready| configure(ready, netlink, out))?;
        Ok(opened)
    }

    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox) -> String {
        show::up_text(self, offloads, sandbox)
    }

    fn up_json(&self) -> Value {
        show::up_json(self)
    }
}

/// MTU, addresses, up: in this order, so that nothing goes out with the wrong size.
fn configure(ready: &Ready, netlink: &mut Netlink, out: &dyn Report) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    let link = netlink
        .link_named(dev)
        .and_then(|link| link.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV)))
        .map_err(|error| why::change(dev, "read the state", &error))?;
    let mut changes = Changes { netlink, out, index: link.index, name: dev, ip: "ip" };
    changes.mtu(ready.mtu).map_err(|error| why::change(dev, &format!("set the MTU {}", ready.mtu), &error))?;
    // Older kernels do not take the IPv4 part; trains are then cut by segue.
    if ready.plan.gso && changes.gso_max_size(ready.gso_max_size()).is_err() {
        out.note("note: the kernel keeps its own gso_max_size; some trains are cut into two sends");
    }
    // A kernel without IPv6 refuses, and then makes none either. With it, what it would send on its own would count as
    // drops of a tunnel that carries IPv4 only.
    if ready.plan.mode == plan::Mode::Ipip {
        let _ = changes.no_generated_addresses();
    }
    for &prefix in &ready.plan.addr {
        match changes.address(prefix) {
            // An interface that was made beforehand may have it from an earlier run.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => return Err(why::change(dev, &format!("set the address {prefix}"), &error)),
            Ok(()) => {}
        }
    }
    changes.up().map_err(|error| why::change(dev, "change the state", &error))
}
