//! The tunnels of one port as a long-running instance ([`Daemon`]).

use std::sync::Arc;

use segue_control::error::Error;
use segue_control::model::Side;
use segue_datapath::knobs::Knobs;
use segue_datapath::tunnel::probe;
use segue_fastpath::Direction;
use segue_host::netlink::{Link, Netlink};
use segue_host::prefix::Prefix;
use serde_json::Value;

use super::group::Group;
use super::resolve::{MAX_PACKET, Ready};
use super::start::Senders;
use super::{engine, overlay, plan, show, start};
use crate::apply::Changes;
use crate::daemon::kernel::QueueDrops;
use crate::daemon::knobs::listed;
use crate::daemon::running::{MANY_PORTS, Offloads, flow_key};
use crate::daemon::{Complaints, Daemon, Opened, Succession};
use crate::diagnose::{self, Purpose};
use crate::fastpath::{self, Fastpath, Switches};
use crate::health::evidence::Monitored;
use crate::health::probe::Prober;
use crate::health::{self, Sources};
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
        let insides = self.plans().map(|plan| (plan.dev.clone(), Side::Inside));
        let outsides = self.first().plan.outside_names().into_iter().map(|name| (name.to_owned(), Side::Outside));
        insides.chain(outsides).collect()
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        start::knobs(self.plans(), &self.first().plan.set)
    }

    fn workers(&self) -> u16 {
        self.first().plan.workers
    }

    fn ioctls(&self) -> &'static [u64] {
        // Reads the offloads of interfaces; without capabilities the kernel refuses changes.
        &[SIOCETHTOOL]
    }

    fn open(&self, netlink: &mut Netlink, succession: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        let inherited =
            |ready: &&Ready| succession.inherited.interfaces.iter().any(|(name, _)| *name == ready.plan.dev);
        let is_fresh = |ready: &&Ready| !inherited(ready) && ready.plan.guest.is_none();
        let fresh: Vec<&Ready> = self.members.iter().filter(is_fresh).collect();
        for plan in fresh.iter().map(|ready| &ready.plan) {
            free(&plan.dev, netlink)?;
            let layer = if plan.mode.is_ethernet() { "tap" } else { "tun" };
            let queues = if plan.workers > 1 { " multi_queue" } else { "" };
            out.change(&format!("ip tuntap add dev {} mode {layer} vnet_hdr{queues}", plan.dev), "TUNSETIFF");
        }
        let switches = Switches::of(&listed(&self.knobs()?));
        let limit = |fastpath: &Fastpath, offloads: &Offloads, netlink: &mut Netlink| {
            let interfaces = self.members.iter().filter(|ready| ready.plan.gso && ready.plan.guest.is_none());
            interfaces.for_each(|ready| limit_trains(ready, fastpath, offloads, netlink, out));
        };
        if let (ready, Some(table)) = (self.first(), &self.first().plan.table) {
            let (mut opened, listeners) = overlay::open(ready, table, succession, out)?;
            fresh.into_iter().try_for_each(|ready| configure(ready, netlink, out))?;
            let of_table = overlay::path(ready, table, listeners, netlink)?;
            let link = Some(of_table.underlay);
            let monitored = monitored(ready, &opened.offloads, netlink);
            let monitored = monitored.map(|monitored| vec![Monitored { link, ..monitored }]);
            let key = flow_key()?;
            let sources = monitored.and_then(|monitored| Sources::open(monitored, Vec::new(), Vec::new(), key));
            watch(&mut opened, sources, out);
            let request = start::fastpath_request(self, Vec::new());
            let fastpath = Fastpath::open(fastpath::Request { table: Some(of_table), ..request }, switches, netlink)?;
            limit(&fastpath, &opened.offloads, netlink);
            opened.peers.iter().for_each(|keeper| keeper.feed(&fastpath));
            return Ok(Opened { fastpath: Some(fastpath), queue_drops: queue_drops(self, netlink), ..opened });
        }
        let (mut opened, Senders { ports, sockets, probes }) = start::open(self, succession, out)?;
        fresh.into_iter().try_for_each(|ready| configure(ready, netlink, out))?;
        let monitored: std::io::Result<Vec<Monitored>> =
            self.members.iter().map(|ready| monitored(ready, &opened.offloads, netlink)).collect();
        let asked = self.members.iter().zip(probes).map(|(ready, probe)| {
            let identity = probe::outgoing(&engine::engine_config(ready, 1, [0; 16]));
            let to = ready.at(ready.plan.remote, ready.plan.dport);
            identity.zip(probe).map(|(identity, probe)| Prober::new(probe, identity, to))
        });
        let (asked, key) = (asked.collect(), flow_key()?);
        watch(&mut opened, monitored.and_then(|monitored| Sources::open(monitored, sockets, asked, key)), out);
        let fastpath = Fastpath::open(start::fastpath_request(self, ports), switches, netlink)?;
        limit(&fastpath, &opened.offloads, netlink);
        Ok(Opened { fastpath: Some(fastpath), queue_drops: queue_drops(self, netlink), ..opened })
    }

    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox, fastpath: Option<&Fastpath>) -> String {
        show::up_text(self, offloads, sandbox, fastpath)
    }

    fn up_json(&self) -> Value {
        show::up_json(self)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the type of this number differs between C libraries")]
const SIOCETHTOOL: u64 = libc::SIOCETHTOOL as u64;

/// Opens the counters of drops at the queues of the tunnels' interfaces; none for very many tunnels, which would take a
/// file each.
fn queue_drops(group: &Group, netlink: &mut Netlink) -> Vec<QueueDrops> {
    if group.members.len() >= MANY_PORTS {
        return Vec::new();
    }
    let interfaces = group.plans().filter(|plan| plan.guest.is_none());
    let opened = interfaces.filter_map(|plan| {
        let link = netlink.link_named(&plan.dev).ok().flatten()?;
        QueueDrops::open(&plan.dev, link.index)
    });
    opened.collect()
}

/// Sets what the watch of the health reads, or the problem that there is no watch.
fn watch(opened: &mut Opened, sources: std::io::Result<Sources>, out: &dyn Report) {
    match sources {
        Ok(sources) => opened.health = Some(sources),
        Err(error) => {
            out.note(&format!("note: HEALTH shows drops and offloads only: {error}"));
            opened.complaints = Some(with_unwatched(opened.complaints.take(), &error));
        }
    }
}

/// Returns the function that adds to the problems of `others` that there is no watch, because of `error`.
fn with_unwatched(others: Option<Complaints>, error: &std::io::Error) -> Complaints {
    let unwatched = health::unwatched(format!("{error}, at the start; no probes are sent either, until the next one"));
    Arc::new(move |instance| {
        let others = others.as_ref().map(|others| others(instance));
        others.into_iter().flatten().chain([unwatched.clone()]).collect()
    })
}

/// Returns the constant facts about a tunnel for the judgement of its health. The remotes of one with a table change.
///
/// # Errors
/// That of the kernel where it does not say for some time which interface it is.
fn monitored(ready: &Ready, offloads: &Offloads, netlink: &mut Netlink) -> std::io::Result<Monitored> {
    let plan = &ready.plan;
    let link = health::patiently(health::PATIENCE, || health::answered(netlink.link_named(&plan.dev)))?.flatten();
    Ok(Monitored {
        name: plan.dev.clone(),
        index: link.map_or(0, |link| link.index),
        kind: show::kind(plan),
        local: ready.local,
        remotes: if plan.table.is_some() { Vec::new() } else { start::remotes(plan) },
        remote_name: plan.remote_name(),
        zone: plan.zone.is_some().then_some(ready.scope_id),
        ports: plan.has_udp().then_some((plan.port, plan.dport)),
        mtu: ready.mtu,
        overhead: ready.overhead_bytes(),
        underlay: ready.link.clone(),
        link: None,
        path_mtu: ready.link_mtu,
        sends_trains: plan.sends_trains(),
        joins: plan.gro,
        takes_trains: plan.gso && offloads.is_on("tun_tso4"),
    })
}

/// The system call or command of a change.
type Make<'a> = Box<dyn Fn(&mut Changes<'_>) -> std::io::Result<()> + 'a>;

/// A change that an interface needs.
struct Step<'a> {
    /// The arguments of the `ip` command.
    command: String,
    /// Description of the step for the error message `cannot ... of DEV`.
    what: String,
    make: Make<'a>,
}

/// Returns the changes that the interface of a tunnel needs: MTU, addresses, then up, in this order, so that no packet
/// leaves with a wrong size. What is set already, as on an interface that was made beforehand, is left out.
fn steps<'a>(ready: &'a Ready, link: &Link, addresses: &[Prefix]) -> Vec<Step<'a>> {
    let dev = &ready.plan.dev;
    let mut steps = Vec::new();
    if link.mtu != ready.mtu {
        steps.push(Step {
            command: format!("link set dev {dev} mtu {}", ready.mtu),
            what: format!("set the MTU {}", ready.mtu),
            make: Box::new(|changes| changes.mtu(ready.mtu)),
        });
    }
    for &prefix in ready.plan.addr.iter().filter(|prefix| !addresses.contains(prefix)) {
        steps.push(Step {
            command: format!("addr add {prefix} dev {dev}"),
            what: format!("set the address {prefix}"),
            make: Box::new(move |changes| match changes.address(prefix) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
                other => other,
            }),
        });
    }
    if !link.up {
        steps.push(Step {
            command: format!("link set dev {dev} up"),
            what: "change the state".to_owned(),
            make: Box::new(|changes| changes.up()),
        });
    }
    steps
}

/// Sets the maximum GSO size of a tunnel's interface: the largest packet if the in-kernel path sends, which sends every
/// train unsplit, or if the interface takes trains of the kernel's tunnel devices, which make them as large whatever
/// the limit of this interface is, and the kernel would segment them in front of it; otherwise the largest send of the
/// daemon's socket.
fn limit_trains(ready: &Ready, fastpath: &Fastpath, offloads: &Offloads, netlink: &mut Netlink, out: &dyn Report) {
    let dev = &ready.plan.dev;
    let takes_tunnels = ready.plan.mode.is_ethernet() && offloads.is_on("tap_udp_tunnel");
    let is_whole = takes_tunnels || ready.plan.table.is_none() && fastpath.carries(Direction::Send);
    let bytes = if is_whole { MAX_PACKET } else { ready.gso_max_size() };
    let Ok(Some(link)) = netlink.link_named(dev) else { return };
    let mut changes = Changes { netlink, out, index: link.index, name: dev, ip: "ip" };
    // Older kernels do not take the attribute for IPv4, and no user without rights may set it; segue then cuts the
    // trains.
    if changes.gso_max_size(bytes).is_err() && !is_whole {
        out.note("note: the kernel keeps its own gso_max_size; some trains are cut into two sends");
    }
}

/// Configures the interface of a tunnel.
fn configure(ready: &Ready, netlink: &mut Netlink, out: &dyn Report) -> Result<(), Error> {
    let dev = &ready.plan.dev;
    let state = |error: std::io::Error| diagnose::change(dev, "read the state", &error);
    let link = netlink
        .link_named(dev)
        .and_then(|link| link.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV)))
        .map_err(state)?;
    // The kernel lists the addresses of all links together, which takes long where there are many.
    let is_bare = ready.plan.addr.is_empty();
    let addresses = if is_bare { Vec::new() } else { netlink.addresses(link.index).map_err(state)? };
    let steps = steps(ready, &link, &addresses);
    let is_made = steps.is_empty();
    let mut changes = Changes { netlink, out, index: link.index, name: dev, ip: "ip" };
    // A kernel without IPv6 refuses this and generates no addresses either. With IPv6, the kernel's own packets would
    // count as drops of a tunnel that carries IPv4 only.
    // No peer of a table has a link-local address.
    if (ready.plan.mode == plan::Mode::Ipip || ready.plan.table.is_some() && !ready.plan.mode.is_ethernet()) && !is_made
    {
        let _ = changes.no_generated_addresses();
    }
    for (at, step) in steps.iter().enumerate() {
        (step.make)(&mut changes).map_err(|error| {
            let explained = diagnose::change(dev, &step.what, &error);
            if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
                return explained;
            }
            let left: Vec<String> = steps[at..].iter().map(|step| format!("sudo ip {}", step.command)).collect();
            explained
                .why("this user lacks CAP_NET_ADMIN here, and the interface is not yet as it is to be")
                .hint(format!("as root, once:\n{}", left.join("\n")))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use segue_control::model::{Complaint, Instance};

    use super::*;

    #[test]
    fn tunnels_that_cannot_be_watched_have_that_problem_besides_those_of_their_guests() {
        let codes = |others: Option<Complaints>| {
            let all = with_unwatched(others, &std::io::Error::from_raw_os_error(libc::ENOBUFS));
            all(&Instance::default()).into_iter().map(|complaint| complaint.code).collect::<Vec<_>>()
        };
        let guests: Complaints =
            Arc::new(|_| vec![Complaint { code: "guest_gone".to_owned(), ..Complaint::default() }]);
        assert_eq!(codes(None), ["unwatched"]);
        assert_eq!(codes(Some(guests)), ["guest_gone", "unwatched"]);
    }
}
