//! The state of the underlay as the kernel reports it: links with their offloads, routes, neighbours and addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use segue_host::netlink::Netlink;
use segue_host::prefix::Prefix;
use segue_host::sys;

use super::evidence::{LinkView, Local, Monitored, PathState, View};

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

/// Largest number of tunnels of an instance each of which has its packets carried by the next one: more are a circle.
const NESTED: usize = 8;

/// Time for which the first read is repeated where it fails for a moment, and the pause before each repetition.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

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
        for monitored in monitored {
            if view.locals.contains_key(&monitored.local) {
                continue;
            }
            let link = owner(monitored.local, monitored.link, monitored.zone, &addresses);
            let is_it = |(at, prefix): &&(u32, Prefix)| Some(*at) == link && prefix.address == monitored.local;
            let found = addresses.iter().find(is_it);
            // An address that never was the host's own, as with a non-local bind, is not missed.
            view.locals.extend(found.map(|(link, prefix)| {
                let local = Local { link: *link, len: prefix.len, zone: monitored.zone, is_here: true };
                (monitored.local, local)
            }));
        }
        self.refresh(monitored, Changed { links: None, addresses: true }, &mut view)?;
        Ok(view)
    }

    /// Reads the parts of the state again that may have changed, and those whose changes the kernel does not report.
    pub(super) fn refresh(&mut self, monitored: &[Monitored], changed: Changed<'_>, view: &mut View) -> io::Result<()> {
        if changed.addresses {
            let addresses = self.netlink.all_addresses()?;
            for (address, local) in &mut view.locals {
                let link = owner(*address, Some(local.link), local.zone, &addresses);
                *local = Local { link: link.unwrap_or(local.link), is_here: link.is_some(), ..*local };
            }
        }
        let pairs: BTreeSet<(IpAddr, IpAddr, Option<u32>)> = monitored
            .iter()
            .flat_map(|monitored| monitored.remotes.iter().map(|remote| (*remote, monitored.local, monitored.zone)))
            .collect();
        let mut links: BTreeSet<u32> = monitored.iter().filter_map(|monitored| view.owner(monitored)).collect();
        links.extend(view.locals.values().map(|local| local.link));
        let mut found = BTreeMap::new();
        for (remote, local, zone) in pairs {
            found.insert(remote, self.path(remote, local, zone)?);
        }
        let tunnels = monitored.iter().filter(|monitored| monitored.index != 0);
        let tunnels = tunnels.map(|monitored| (monitored.index, &monitored.remotes[..])).collect();
        view.loops = loops(&tunnels, &found);
        for (remote, found) in found {
            let (path, has_route) = view.paths.entry(remote).or_insert((None, true));
            *has_route = found.is_some();
            // Without a route, or with one into the tunnel, the last one tells which link and which router are missed.
            let found = found.filter(|_| !view.loops.contains_key(&remote));
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
        let has_failed = is_failed(self.netlink.has_failed(route.link, next))?;
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

/// Returns the index of the link that has the address `local`, among the addresses of all links, or of the link `zone`
/// if given. This is the one that had it `last` if it still has it. A link that is made anew has another index.
fn owner(local: IpAddr, last: Option<u32>, zone: Option<u32>, addresses: &[(u32, Prefix)]) -> Option<u32> {
    let counts = |link: u32| zone.is_none_or(|zone| zone == link);
    let owners = || addresses.iter().filter(|(link, at)| at.address == local && counts(*link)).map(|(link, _)| *link);
    owners().find(|link| Some(*link) == last).or_else(|| owners().next())
}

/// Returns the remotes whose route leads back into the tunnel, each with the index of the interface that it leads to;
/// `tunnels` has the remotes of each interface. A tunnel may carry the packets of another one while its own leave.
fn loops(tunnels: &HashMap<u32, &[IpAddr]>, paths: &BTreeMap<IpAddr, Option<PathState>>) -> HashMap<IpAddr, u32> {
    let tunnel = |remote: &IpAddr| {
        let path = paths.get(remote).copied().flatten()?;
        Some(path.link).filter(|link| tunnels.contains_key(link))
    };
    let carriers = |links: &BTreeSet<u32>| -> BTreeSet<u32> {
        let remotes = links.iter().filter_map(|link| tunnels.get(link)).copied().flatten();
        remotes.filter_map(tunnel).collect()
    };
    let returns = |first: u32| !(0..NESTED).fold(BTreeSet::from([first]), |links, _| carriers(&links)).is_empty();
    let leads = paths.keys().filter_map(|remote| Some((*remote, tunnel(remote)?)));
    leads.filter(|(_, first)| returns(*first)).collect()
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
pub(crate) fn answered<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if is_passing(&error) => Err(error),
        answer => Ok(answer.ok()),
    }
}

/// Returns whether a neighbour has failed, from the kernel's answer; one that it does not have, or that an older kernel
/// cannot look up, has not.
fn is_failed(answer: io::Result<bool>) -> io::Result<bool> {
    Ok(answered(answer)?.unwrap_or(false))
}

/// Returns whether a request has failed for a moment, as for lack of memory, or because a table changed meanwhile.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), None | Some(libc::ENOBUFS | libc::ENOMEM | libc::EINTR | libc::EAGAIN))
}

/// Returns what `read` does, which is repeated for `patience` while it fails for a moment.
pub(crate) fn patiently<T>(patience: Duration, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match read() {
            Err(error) if is_passing(&error) && begin.elapsed() < patience => thread::sleep(PAUSE),
            result => return result,
        }
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
    fn the_link_of_a_local_address_is_the_one_that_has_it_now_or_had_it_last() {
        let local: IpAddr = "198.18.0.1".parse().unwrap();
        let of = |last: u32, zone: Option<u32>, links: &[u32]| {
            let other = (1, Prefix { address: "127.0.0.1".parse().unwrap(), len: 8 });
            let own = links.iter().map(|link| (*link, Prefix { address: local, len: 24 }));
            owner(local, Some(last), zone, &[other].into_iter().chain(own).collect::<Vec<_>>())
        };
        assert_eq!(of(2, None, &[2]), Some(2));
        assert_eq!(of(2, None, &[]), None, "no link has it any more");
        assert_eq!(of(2, None, &[7]), Some(7), "the link was made anew, or the address has moved");
        assert_eq!(of(7, None, &[3, 7]), Some(7), "another link has it too");
        assert_eq!(of(2, Some(2), &[3]), None, "the link-local address of another link is another one");
        assert_eq!(of(2, Some(2), &[3, 2]), Some(2));
    }

    #[test]
    fn a_route_leads_back_into_a_tunnel_by_itself_or_by_others_and_not_where_the_carrier_has_a_way_out() {
        let remote = |index: u32| IpAddr::from([198, 18, 0, index as u8]);
        let remotes = [9, 10, 11].map(|index| [remote(index)]);
        let tunnels = [9, 10, 11].into_iter().zip(remotes.iter().map(|remotes| &remotes[..])).collect();
        let back = |links: [u32; 3]| {
            let state = |link| Some(PathState { link, gateway: None, mtu: None, has_failed: false });
            let paths = [9, 10, 11].into_iter().zip(links).map(|(index, link)| (remote(index), state(link))).collect();
            let mut found: Vec<_> = loops(&tunnels, &paths).into_iter().collect();
            found.sort_unstable();
            found
        };
        assert_eq!(back([2, 2, 3]), []);
        assert_eq!(back([9, 2, 2]), [(remote(9), 9)]);
        assert_eq!(back([2, 9, 10]), [], "the first carries the second, and that the third");
        assert_eq!(back([10, 9, 2]), [(remote(9), 10), (remote(10), 9)]);
        assert_eq!(back([9, 9, 2]), [(remote(9), 9), (remote(10), 9)], "a default route by the first");
        assert_eq!(loops(&tunnels, &[(remote(9), None)].into()), HashMap::new());
    }

    #[test]
    fn a_first_read_that_fails_for_a_moment_is_repeated_and_one_that_is_refused_is_not() {
        let read = |patience: Duration, failures: usize, number: Option<i32>| {
            let mut reads = 0;
            let result = patiently(patience, || {
                reads += 1;
                let error = || number.map_or(io::ErrorKind::Interrupted.into(), io::Error::from_raw_os_error);
                if reads > failures { Ok(()) } else { Err(error()) }
            });
            (result.map_err(|error| error.raw_os_error()), reads)
        };
        let long = Duration::from_secs(600);
        assert_eq!(read(long, 0, None), (Ok(()), 1));
        assert_eq!(read(long, 3, Some(libc::ENOBUFS)), (Ok(()), 4));
        assert_eq!(read(long, 2, None), (Ok(()), 3), "the table changed meanwhile");
        assert_eq!(read(long, 3, Some(libc::EMFILE)), (Err(Some(libc::EMFILE)), 1));
        assert_eq!(read(Duration::ZERO, 3, Some(libc::ENOMEM)), (Err(Some(libc::ENOMEM)), 1));
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

    #[test]
    fn a_neighbour_that_cannot_be_looked_up_for_a_moment_is_not_well() {
        let error = |number: i32| Err(io::Error::from_raw_os_error(number));
        assert_eq!([true, false].map(|has_failed| is_failed(Ok(has_failed)).unwrap()), [true, false]);
        for number in [libc::ENOBUFS, libc::ENOMEM, libc::EINTR] {
            assert_eq!(is_failed(error(number)).unwrap_err().raw_os_error(), Some(number), "it is read again");
        }
        assert!(!is_failed(error(libc::EOPNOTSUPP)).unwrap(), "a kernel before 5.0");
    }
}
