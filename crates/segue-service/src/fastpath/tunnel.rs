//! A tunnel in the form for the in-kernel path, and the route of its packets.

use std::io;
use std::net::IpAddr;

use segue::encap::Config;
use segue_control::error::os_text;
use segue_fastpath::Route;
use segue_host::netlink::{Link, Netlink};

/// A tunnel in the form needed for the in-kernel path.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Name of the tunnel's interface.
    pub dev: String,
    /// The configuration of the tunnel's encapsulation in the daemon.
    pub config: Config,
}

/// The link address of a tunnel's interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Station {
    /// The address; `None` where no frames are inside.
    pub(super) own: Option<[u8; 6]>,
    /// The address if the host itself accepts frames for it; `None` where the interface is a port of a bridge or bond,
    /// which may forward them.
    pub(super) accepted: Option<[u8; 6]>,
}

/// Returns the link address of a tunnel's interface, which is asked for by its index: the name may have changed.
///
/// # Errors
/// Those of [`own_link`].
pub(super) fn station(netlink: &mut Netlink, interface: u32, config: &Config) -> io::Result<Station> {
    let link = own_link(netlink, interface)?;
    if !config.mode.is_ethernet() {
        return Ok(Station::default());
    }
    Ok(Station { own: link.mac, accepted: link.mac.filter(|_| link.master.is_none()) })
}

/// Returns a tunnel's interface, by its index.
///
/// # Errors
/// The kernel's; ENODEV where this network namespace has no such interface, or another one has got its index.
pub(super) fn own_link(netlink: &mut Netlink, interface: u32) -> io::Result<Link> {
    let link = netlink.link(interface)?;
    if link.tun { Ok(link) } else { Err(io::Error::from_raw_os_error(libc::ENODEV)) }
}

/// Returns the route to the remote, or the reason why the in-kernel path cannot use it.
pub(super) fn route(netlink: &mut Netlink, config: &Config) -> Result<Route, String> {
    route_to(netlink, config.remote, config.local)
}

/// Returns the route from one address to another, or the reason why the in-kernel path cannot use it.
pub(super) fn route_to(netlink: &mut Netlink, remote: IpAddr, local: IpAddr) -> Result<Route, String> {
    let text = |error: io::Error| os_text(&error);
    let route = netlink.route(remote, Some(local)).map_err(text)?;
    let link = netlink.link(route.link).map_err(text)?;
    if !link.ethernet || link.name == "lo" {
        return Err(format!("{} carries no Ethernet frames", link.name));
    }
    Ok(Route { link: link.index, mtu: route.mtu.unwrap_or(link.mtu).min(link.mtu) })
}
