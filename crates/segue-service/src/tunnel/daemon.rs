//! The tunnels of one port as a long-running instance ([`Daemon`]).

use segue_control::error::Error;
use segue_control::model::Side;
use segue_datapath::knobs::Knobs;
use segue_host::netlink::Netlink;
use serde_json::Value;

use super::group::Group;
use super::resolve::Ready;
use super::{plan, show, start};
use crate::apply::Changes;
use crate::daemon::running::Offloads;
use crate::daemon::{Daemon, Opened, Succession};
use crate::diagnose::{self, Purpose};
use crate::fastpath::Fastpath;
use crate::report::Report;
use crate::sandbox::Sandbox;

/// Checks that no interface has the name `dev`, except a TUN device that was created for segue beforehand.
pub fn free(dev: &str, netlink: &mut Netlink) -> Result<(), Error> {
    let taken = netlink.link_named(dev).map_err(|error| diagnose::change(dev, "read the state", &error))?;
    match taken {
        Some(link) if !link.tun => {
            Err(diagnose::tun_attach(Purpose::Tunnel, dev, &std::io::Error::from_raw_os_error(libc::EEXIST)))
        }
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
        let is_successor = fresh.len() < self.members.len();
        let (opened, sources) = start::open(self, succession)?;
        fresh.into_iter().try_for_each(|ready| configure(ready, netlink, out))?;
        let fastpath = Fastpath::open(start::fastpath_request(self, sources, is_successor), netlink)?;
        fastpath.note().iter().for_each(|note| out.note(note));
        Ok(Opened { fastpath: Some(fastpath), ..opened })
    }

    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox) -> String {
        show::up_text(self, offloads, sandbox)
    }

    fn up_json(&self) -> Value {
        show::up_json(self)
    }
}

/// Configures the interface of a tunnel: MTU, addresses, then up, in this order, so that no packet leaves with a wrong
/// size.
fn configure(ready: &Ready, netlink: &mut Netlink, out: &dyn Report) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    let link = netlink
        .link_named(dev)
        .and_then(|link| link.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV)))
        .map_err(|error| diagnose::change(dev, "read the state", &error))?;
    let mut changes = Changes { netlink, out, index: link.index, name: dev, ip: "ip" };
    changes.mtu(ready.mtu).map_err(|error| diagnose::change(dev, &format!("set the MTU {}", ready.mtu), &error))?;
    // Older kernels do not take the attribute for IPv4; segue then cuts the trains.
    if ready.plan.gso && changes.gso_max_size(ready.gso_max_size()).is_err() {
        out.note("note: the kernel keeps its own gso_max_size; some trains are cut into two sends");
    }
    // A kernel without IPv6 refuses this and generates no addresses either. With IPv6, the kernel's own packets would
    // count as drops of a tunnel that carries IPv4 only.
    if ready.plan.mode == plan::Mode::Ipip {
        let _ = changes.no_generated_addresses();
    }
    for &prefix in &ready.plan.addr {
        match changes.address(prefix) {
            // An interface that was created beforehand may have the address from an earlier run.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => return Err(diagnose::change(dev, &format!("set the address {prefix}"), &error)),
            Ok(()) => {}
        }
    }
    changes.up().map_err(|error| diagnose::change(dev, "change the state", &error))
}
