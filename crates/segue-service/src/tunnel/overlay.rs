//! The start of a tunnel with a peer table: its listeners, its table, and the datapath over them.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use segue::encap::OuterCsum;
use segue_control::error::{Error, Kind};
use segue_control::peers::{Change, Encap, Table};
use segue_control::protocol::TABLE_LEN;
use segue_datapath::overlay::{Listener, Overlay, Parts, exchange};
use segue_host::file::read_within;
use segue_host::netlink::Netlink;
use segue_port::Port as DataPort;
use segue_port::udp::{Carries, Sockets, UdpConfig, UdpPort};
use segue_port::wrap::Trace;

use super::engine::gro_config;
use super::kinds::PeerTable;
use super::queues::open_tun;
use super::resolve::Ready;
use super::start::{BUDGET, PAGES, open_trace_of, ports_of, udp_config, udp_error, unkept};
use crate::daemon::kernel::ChecksumDrops;
use crate::daemon::running::{Offloads, flow_key, random};
use crate::daemon::{Opened, Succession};
use crate::fastpath;
use crate::fault::Vitals;
use crate::handover::Ports;
use crate::peers::{Keeper, Kept, Rules};
use crate::report::Report;

/// Opens the interface, the listeners' sockets and the table, except those that are inherited. Returns the listeners as
/// well, as the in-kernel path knows them.
pub(super) fn open(
    ready: &Ready,
    table: &PeerTable,
    succession: &mut Succession,
    out: &dyn Report,
) -> Result<(Opened, Vec<fastpath::Listener>), Error> {
    let plan = &ready.plan;
    let drops = table.listen.first().map(|(encap, _)| encap.name());
    let mut checksum_drops = drops.and_then(|name| ChecksumDrops::open(ready.local, name));
    let mut inherited = succession.inherited.outside();
    let is_new = inherited.is_none();
    let mut ports = Vec::with_capacity(table.listen.len());
    for (encap, port) in &table.listen {
        let sockets = inherited.as_mut().and_then(|all| of_port(all, *port, table.listen.len()));
        ports.push((encap.name(), listener(ready, table, (*encap, *port), sockets)?));
    }
    checksum_drops.iter_mut().filter(|_| is_new).for_each(ChecksumDrops::restart);
    let tun = open_tun(plan, succession.inherited.interface(&plan.dev))?;
    let has_predecessor = succession.inherited.peers.is_some();
    let kept = kept(succession.inherited.peers.take(), succession.has_successors)?;
    let (entropy, flows) = (random()?, flow_key()?);
    let slots: Vec<u16> = ports.iter().map(|(_, port)| port.slots()).collect();
    let (sender, receiver) = exchange();
    let rules = Rules::new(ready, table, &slots, entropy);
    let of_path = rules.listeners().into_iter().zip(&ports).map(|(listener, (name, port))| {
        let sources = port.sockets().map(|sockets| ports_of(&sockets)).unwrap_or_default();
        fastpath::Listener { name, path: segue_fastpath::Listener { config: listener.encap, sources } }
    });
    let of_path = of_path.collect();
    let (keeper, first) = Keeper::new(rules, sender, flows, kept)?;
    if !(has_predecessor && keeper.follow()) {
        load(&keeper, table, out)?;
    }
    let keeper = Arc::new(keeper);
    let mut kept_ports = Ports::default();
    if succession.has_successors {
        kept_ports.interfaces = vec![(tun.name().to_owned(), tun.try_clone_fd().map_err(unkept)?)];
        for (_, port) in &ports {
            let Sockets { receive, send } = port.sockets().map_err(unkept)?;
            kept_ports.sockets.receive.extend(receive);
            kept_ports.sockets.send.extend(send);
        }
        kept_ports.peers = keeper.descriptor().map_err(unkept)?;
    }
    let mut offloads = Offloads::default();
    ports.iter().take(1).for_each(|(_, port)| offloads.add("", port, "switched off"));
    offloads.add("", &tun, "switched off");
    let trace = open_trace_of(plan)?;
    let (mac, remcsum, frames) = (table.lladdr.0, plan.encap_remcsum, plan.mode.is_ethernet());
    let gro = Some(gro_config(plan, 1, flows));
    let assemble = Box::new(move |_: &Vitals| {
        let mut trace = trace;
        let mut listeners = Vec::with_capacity(ports.len());
        for (name, port) in ports {
            // One file has one port: the first.
            let port: Box<dyn DataPort> = match trace.take() {
                None => Box::new(port),
                Some(file) => Box::new(Trace::to(port, file)),
            };
            // The socket verifies checksums that are present, and its filter drops remote checksum offload without one.
            listeners.push(Listener { name: name.to_owned(), port, csum: OuterCsum::Verified });
        }
        Ok(Box::new(Overlay::new(Parts {
            inside_name: tun.name().to_owned(),
            inside: Box::new(tun),
            frames,
            listeners,
            table: first,
            tables: receiver,
            mac,
            gro,
            remcsum,
            budget: BUDGET,
            pages: PAGES,
            key: flows,
        })) as Box<_>)
    });
    let opened = Opened { checksum_drops, ports: kept_ports, peers: Some(keeper), ..Opened::new(offloads, assemble) };
    Ok((opened, of_path))
}

/// Returns the memory with the table that a successor takes over: that of the predecessor, or a new one.
///
/// # Errors
/// Where there is none, or it is not the table of a predecessor: a change of the configuration would lose the peers.
fn kept(inherited: Option<OwnedFd>, has_successors: bool) -> Result<Option<Kept>, Error> {
    let kept = match inherited {
        Some(fd) => Some(Kept::of(fd)),
        None => has_successors.then(Kept::new),
    };
    kept.transpose().map_err(|error| {
        Error::system("cannot keep the peers for a change of the configuration", &error, "ulimit -Hf unlimited")
            .why("they are kept in a file of 16 MiB in memory")
    })
}

/// Returns the tunnel in the form for the in-kernel path.
pub(super) fn path(
    ready: &Ready,
    table: &PeerTable,
    listeners: Vec<fastpath::Listener>,
    netlink: &mut Netlink,
) -> Result<fastpath::Table, Error> {
    let link = netlink.link_named(&ready.link).ok().flatten();
    let underlay = link.map(|link| link.index).ok_or_else(|| {
        Error::new(Kind::System, format!("cannot read the link {}", ready.link), "ip -br link")
            .why("it has the address of this end")
    })?;
    Ok(fastpath::Table { dev: ready.plan.dev.clone(), underlay, listeners, station: table.lladdr.0 })
}

/// Loads the peer table from the file, if the tunnel has one. Peers that are refused cost no other.
fn load(keeper: &Keeper, table: &PeerTable, out: &dyn Report) -> Result<(), Error> {
    let Some(path) = &table.file else { return Ok(()) };
    let name = path.display().to_string();
    let text = File::open(path).and_then(|opened| read_within(opened, TABLE_LEN)).map_err(|error| {
        Error::system(format!("cannot read the peers in {name}"), &error, "peers none   starts with an empty table")
            .why("`peers FILE` names the table of the start")
    })?;
    let changes = keeper.change(Change::Sync(Table::read(&text, &name)?)).map_err(|error| {
        let message = format!("{name}: {}", error.message);
        Error { message, ..error }
    })?;
    for refused in &changes.refused_peers {
        out.note(&format!("note: {name}: refused {refused}"));
    }
    if changes.refused > changes.refused_peers.len() as u64 {
        out.note(&format!("note: {name}: {} peers are refused in all", changes.refused));
    }
    Ok(())
}

/// Removes and returns the inherited sockets of the listener on `port`, of `count` listeners.
fn of_port(all: &mut Sockets, port: u16, count: usize) -> Option<Sockets> {
    let port_of = |fd: &OwnedFd| {
        let fd = fd.as_fd().try_clone_to_owned().ok()?;
        UdpSocket::from(fd).local_addr().ok().map(|address| address.port())
    };
    let at = all.receive.iter().position(|fd| port_of(fd) == Some(port))?;
    // Each listener has as many.
    let each = all.send.len() / count.max(1);
    let left = all.receive.len();
    let receive = vec![all.receive.remove(at)];
    let from = all.send.len().saturating_sub(if left == 1 { all.send.len() } else { each });
    Some(Sockets { receive, send: all.send.split_off(from) })
}

/// Opens the port of an encapsulation, over inherited sockets if there are any.
fn listener(
    ready: &Ready,
    table: &PeerTable,
    (encap, port): (Encap, u16),
    inherited: Option<Sockets>,
) -> Result<UdpPort, Error> {
    let anywhere: IpAddr =
        if ready.local.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let config = UdpConfig {
        port,
        peer: SocketAddr::new(anywhere, port),
        carries: match encap {
            Encap::Gue => Carries::Gue,
            Encap::Vxlan => Carries::Vxlan,
            Encap::Fou => Carries::Other,
        },
        zero_checksum_v6: !table.outer_checksum,
        ..udp_config(ready)
    };
    let opened = match inherited {
        Some(sockets) => UdpPort::adopt(config, &[], sockets),
        None => UdpPort::open_to(config, &[]),
    };
    opened.map_err(|error| udp_error(ready, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_cannot_be_taken_over_refuses_the_start_of_the_successor() {
        let first = kept(None, true).unwrap().expect("a service has successors");
        let keeps = |fd: OwnedFd| kept(Some(fd), true).map(|kept| kept.is_some()).map_err(|error| error.message);
        assert_eq!(keeps(first.try_clone().unwrap()), Ok(true));
        let other = File::open("/dev/null").unwrap();
        assert!(
            keeps(other.into()).unwrap_err().starts_with("cannot keep the peers for a change of the configuration")
        );
        assert!(kept(None, false).unwrap().is_none());
    }
}
