//! The state of the underlay as the kernel reports it: links with their offloads, routes, neighbours and addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use segue_host::netlink::Netlink;
use segue_host::prefix::Prefix;
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
            for monitored in monitored {
                let Some(last) = view.owner(monitored) else { continue };
                view.owners.insert(monitored.local, owner(monitored.local, last, &addresses));
            }
        }
        let pairs: BTreeSet<(IpAddr, IpAddr, Option<u32>)> = monitored
            .iter()
            .flat_map(|monitored| monitored.remotes.iter().map(|remote| (*remote, monitored.local, monitored.zone)))
            .collect();
        let mut links: BTreeSet<u32> = monitored.iter().filter_map(|monitored| view.owner(monitored)).collect();
        for (remote, local, zone) in pairs {
            let found = self.path(remote, local, zone)?;
            let (path, has_route) = view.paths.entry(remote).or_insert((None, true));
            *has_route = found.is_some();
            // Without a route the last one tells which link and which router are missed.
            *path = found.or(path.map(|last| PathState { has_failed: false, ..last }));
            links.extend(path.map(|path| path.link));
        }
        for index in links {
            let mut link = self.link(index)?;
            if let (Some(link), Some(last)) = (&mut link, view.links.get(&index)) {
                link.had_tso |= last.had_tso;
                link.had_gro |= last.had_gro;
            }
            let name = |last: Option<&LinkView>| last.map(|last| last.name.clone()).unwrap_or_default();
            let gone = LinkView { is_gone: true, name: name(view.links.get(&index)), ..LinkView::default() };
            view.links.insert(index, link.unwrap_or(gone));
        }
        let of_tunnels = monitored.iter().map(|monitored| monitored.index).filter(|index| *index != 0);
        let changed = of_tunnels.filter(|index| changed.links.is_none_or(|links| links.contains(index)));
        note_own_links(changed, |index| self.link(index), view)
    }

    /// Returns the path to `remote`, if the kernel has a route.
    fn path(&mut self, remote: IpAddr, local: IpAddr, zone: Option<u32>) -> io::Result<Option<PathState>> {
        let Some(route) = answered(self.netlink.route_on(remote, Some(local), zone))? else { return Ok(None) };
        let next = route.gateway.unwrap_or(remote);
        let has_failed = self.netlink.has_failed(route.link, next).unwrap_or(false);
        Ok(Some(PathState { link: route.link, gateway: route.gateway, mtu: route.mtu, has_failed }))
    }

    /// Returns the state of a link, if the kernel has it.
    fn link(&mut self, index: u32) -> io::Result<Option<LinkView>> {
        let Some(link) = answered(self.netlink.link(index))? else { return Ok(None) };
        let socket = self.socket.as_fd();
        let tso = switched(socket, &link.name, GTSO, TSO);
        let gro = switched(socket, &link.name, GGRO, GRO);
        Ok(Some(LinkView {
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
        }))
    }
}

/// Returns the index of the link that has the address `local`, among the addresses of all links. This is the one that
/// had it `last` if it still has it, or if none has it. A link that is made anew has another index.
fn owner(local: IpAddr, last: u32, addresses: &[(u32, Prefix)]) -> u32 {
    let owners = || addresses.iter().filter(|(_, prefix)| prefix.address == local).map(|(link, _)| *link);
    owners().find(|link| *link == last).or_else(|| owners().next()).unwrap_or(last)
}

/// Reads the state of the tunnels' own interfaces `indexes` again.
fn note_own_links(
    indexes: impl Iterator<Item = u32>,
    mut read: impl FnMut(u32) -> io::Result<Option<LinkView>>,
    view: &mut View,
) -> io::Result<()> {
    for index in indexes {
        match read(index)? {
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

/// Returns the kernel's answer to a request; `None` for its answer that it does not have what was asked for, such as a
/// route, for which it has many errors. The others are those of a request that fails for a moment.
fn answered<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    let is_passing = |error: &io::Error| {
        matches!(error.raw_os_error(), None | Some(libc::ENOBUFS | libc::ENOMEM | libc::EINTR | libc::EAGAIN))
    };
    match answer {
        Err(error) if is_passing(&error) => Err(error),
        answer => Ok(answer.ok()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_cannot_be_read_for_a_moment_stays_known_and_one_that_is_gone_does_not() {
        let down = LinkView { name: "sg0".to_owned(), ..LinkView::default() };
        let mut view = View { links: [(9, down.clone())].into(), ..View::default() };
        let mut look = |answer: io::Result<LinkView>| {
            let mut answer = Some(answer);
            let read = note_own_links([9].into_iter(), |_| answered(answer.take().unwrap()), &mut view);
            (read.map_err(|error| error.raw_os_error()), view.links.get(&9).cloned())
        };
        let error = |number: i32| Err(io::Error::from_raw_os_error(number));
        assert_eq!(look(error(libc::ENOBUFS)), (Err(Some(libc::ENOBUFS)), Some(down.clone())), "it is read again");
        let up = LinkView { is_up: true, ..down };
        assert_eq!(look(Ok(up.clone())), (Ok(()), Some(up)));
        assert_eq!(look(error(libc::ENODEV)), (Ok(()), None));
    }

    #[test]
    fn the_link_of_a_peer_tables_local_address_is_the_one_that_has_it_now_or_had_it_last() {
        let local: IpAddr = "198.18.0.1".parse().unwrap();
        let of = |last: u32, links: &[u32]| {
            let other = (1, Prefix { address: "127.0.0.1".parse().unwrap(), len: 8 });
            let own = links.iter().map(|link| (*link, Prefix { address: local, len: 24 }));
            owner(local, last, &[other].into_iter().chain(own).collect::<Vec<_>>())
        };
        assert_eq!(of(2, &[2]), 2);
        assert_eq!(of(2, &[]), 2, "no link has it any more");
        assert_eq!(of(2, &[7]), 7, "the link was made anew, or the address has moved");
        assert_eq!(of(7, &[3, 7]), 7, "another link has it too");
    }

    #[test]
    fn an_answer_of_the_kernel_that_there_is_no_route_is_no_failure() {
        // A prohibition, a blackhole or an address that is gone, and no route.
        for number in [libc::EACCES, libc::EINVAL, libc::ENETUNREACH, libc::EHOSTUNREACH] {
            let answer: io::Result<()> = Err(io::Error::from_raw_os_error(number));
            assert_eq!(answered(answer).unwrap(), None);
        }
        assert!(answered(Err::<(), _>(io::ErrorKind::InvalidData.into())).is_err());
    }
}
