//! The state of the underlay as the kernel reports it: links with their offloads, routes, neighbours and addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use segue_host::netlink::Netlink;
use segue_host::sys;

use super::evidence::{LinkView, Monitored, PathState, View};

/// Commands of ethtool that read one feature (linux/ethtool.h).
const GTXCSUM: u32 = 0x16;
const GTSO: u32 = 0x1e;
const GGSO: u32 = 0x23;
const GGRO: u32 = 0x2b;
/// The features that `tx` switches, as `ethtool -k` names them.
const TX: &[&str] = &["tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-ipv6"];
/// Features that `ethtool -K DEV tso` switches.
const TSO: &[&str] = &["tx-tcp-segmentation", "tx-tcp6-segmentation"];
/// Feature that `ethtool -K DEV gro` switches.
const GRO: &[&str] = &["rx-gro"];

/// A reader of the underlay's state. It is opened with all rights and needs none later.
pub(super) struct Underlay {
    netlink: Netlink,
    /// Any socket, for the ioctl of ethtool.
    socket: UdpSocket,
}

/// Parts of the state that may have changed since it was read.
#[derive(Clone, Copy)]
pub(super) struct Changed<'a> {
    /// Indexes of the tunnels' own interfaces; `None` for all of them.
    pub(super) links: Option<&'a [u32]>,
    /// Whether addresses may have changed.
    pub(super) addresses: bool,
}

impl Underlay {
    /// Opens the connections to the kernel.
    pub(super) fn open() -> io::Result<Underlay> {
        Ok(Underlay { netlink: Netlink::open()?, socket: UdpSocket::bind("0.0.0.0:0")? })
    }

    /// Reads the state of all links, routes and addresses that `monitored` name, for the first time.
    pub(super) fn first(&mut self, monitored: &[Monitored]) -> io::Result<View> {
        let mut view = View::default();
        let addresses = self.netlink.all_addresses()?;
        for local in monitored.iter().map(|monitored| monitored.local).collect::<BTreeSet<_>>() {
            let found = addresses.iter().find(|(_, prefix)| prefix.address == local);
            // An address that never was the host's own, as with a non-local bind, is not missed.
            view.locals.extend(found.map(|(_, prefix)| (local, (Some(prefix.len), true))));
        }
        self.refresh(monitored, Changed { links: None, addresses: true }, &mut view)?;
        Ok(view)
    }

    /// Reads the parts of the state again that may have changed, and those whose changes the kernel does not report.
    pub(super) fn refresh(&mut self, monitored: &[Monitored], changed: Changed<'_>, view: &mut View) -> io::Result<()> {
        if changed.addresses {
            let addresses = self.netlink.all_addresses()?;
            for (local, (_, is_here)) in &mut view.locals {
                *is_here = addresses.iter().any(|(_, prefix)| prefix.address == *local);
            }
        }
        let pairs: BTreeSet<(IpAddr, IpAddr, Option<u32>)> = monitored
            .iter()
            .flat_map(|monitored| monitored.remotes.iter().map(|remote| (*remote, monitored.local, monitored.zone)))
            .collect();
        let mut links = BTreeSet::new();
        for (remote, local, zone) in pairs {
            let found = self.path(remote, local, zone);
            let (path, has_route) = view.paths.entry(remote).or_insert((None, true));
            *has_route = found.is_some();
            // Without a route the last one tells which link and which router are missed.
            *path = found.or(path.map(|last| PathState { has_failed: false, ..last }));
            links.extend(path.map(|path| path.link));
        }
        for index in links {
            let mut link = self.link(index);
            if let (Some(link), Some(last)) = (&mut link, view.links.get(&index)) {
                link.had_tso |= last.had_tso;
                link.had_gro |= last.had_gro;
            }
            let name = |last: Option<&LinkView>| last.map(|last| last.name.clone()).unwrap_or_default();
            let gone = LinkView { is_gone: true, name: name(view.links.get(&index)), ..LinkView::default() };
            view.links.insert(index, link.unwrap_or(gone));
        }
        let of_tunnels = monitored.iter().map(|monitored| monitored.index).filter(|index| *index != 0);
        for index in of_tunnels.filter(|index| changed.links.is_none_or(|links| links.contains(index))) {
            match self.link(index) {
                Some(link) => {
                    view.links.insert(index, link);
                }
                // An interface that was moved to another network namespace is not seen from here.
                None => {
                    view.links.remove(&index);
                }
            }
        }
        Ok(())
    }

    /// Returns the path to `remote`, if the kernel has a route.
    fn path(&mut self, remote: IpAddr, local: IpAddr, zone: Option<u32>) -> Option<PathState> {
        let route = self.netlink.route_on(remote, Some(local), zone).ok()?;
        let next = route.gateway.unwrap_or(remote);
        let has_failed = self.netlink.has_failed(route.link, next).unwrap_or(false);
        Some(PathState { link: route.link, gateway: route.gateway, mtu: route.mtu, has_failed })
    }

    fn link(&mut self, index: u32) -> Option<LinkView> {
        let link = self.netlink.link(index).ok()?;
        let socket = self.socket.as_fd();
        let tso = switched(socket, &link.name, GTSO, TSO);
        let gro = switched(socket, &link.name, GGRO, GRO);
        Some(LinkView {
            is_gone: false,
            is_up: link.up,
            has_carrier: link.has_carrier,
            mtu: link.mtu,
            tx: switched(socket, &link.name, GTXCSUM, TX),
            tso,
            gso: sys::ethtool_flag(socket, &link.name, GGSO).ok(),
            gro,
            had_tso: tso == Some(true),
            had_gro: gro == Some(true),
            name: link.name,
        })
    }
}

/// Returns whether transmit checksum offload is on for a link; `None` where it is unreadable, or is off and was never
/// switched off.
pub(crate) fn has_tx_csum(link: &str) -> Option<bool> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    switched(socket.as_fd(), link, GTXCSUM, TX)
}

/// Returns whether an offload is on for a link. A link that never had it, or whose driver keeps it off (for a large
/// MTU, or as the link below does), has nothing that a command brings back: `None`.
fn switched(socket: BorrowedFd<'_>, link: &str, command: u32, names: &[&str]) -> Option<bool> {
    let on = sys::ethtool_flag(socket, link, command).ok()?;
    (on || sys::ethtool_was_switched_off(socket, link, names).unwrap_or(true)).then_some(on)
}
