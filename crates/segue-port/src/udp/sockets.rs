//! Creation and set-up of a port's sockets.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::wire;

use super::config::{AUTO_SLOTS, Carries, Checksum, OpenError, UdpConfig};
use super::filter;
use crate::sys;

/// The name, in [`OpenError::Call`], of the failure to take over a socket.
pub(super) const ADOPT: &str = "adopt";

/// A sending socket of the port.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) fd: OwnedFd,
    pub(super) source: SocketAddr,
    /// Whether the socket is not connected, so that every message names its destination.
    pub(super) names_peer: bool,
    /// The socket's DF setting, if it is known.
    pub(super) df: Option<bool>,
}

/// Sockets of a port, for another process that takes them over: queued datagrams are not lost, and no other process can
/// bind their ports in between. Both processes may send at the same time.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The receiving sockets, at least one.
    pub receive: Vec<OwnedFd>,
    /// The sending sockets; a port over raw sockets creates new ones instead.
    pub send: Vec<OwnedFd>,
}

impl Sockets {
    /// Returns whether the sockets are connected as those of a port are: none that receives, and each other one to the
    /// only peer. Where there are several (`None`), every message names its own. Another process that has the sockets
    /// as well can connect them otherwise until its end.
    pub fn are_connected_to(&self, peer: Option<SocketAddr>) -> bool {
        let mut receiving = Vec::with_capacity(self.receive.len());
        for fd in &self.receive {
            let Ok(name) = name_of(fd) else { continue };
            if is_connected(fd, name.is_ipv4()).unwrap_or_default() {
                return false;
            }
            receiving.push(name);
        }
        let Some(peer) = peer else { return true };
        let peer_of = |fd: &OwnedFd| UdpSocket::from(fd.try_clone().ok()?).peer_addr().ok();
        let is_right = |fd: &OwnedFd| match name_of(fd) {
            Ok(name) if !receiving.contains(&name) => {
                peer_of(fd).is_some_and(|to| (to.ip(), to.port()) == (peer.ip(), peer.port()))
            }
            _ => true,
        };
        self.send.iter().all(is_right)
    }
}

/// Returns the configuration's peer and the other peers; an error unless all have the family of the local address.
pub(super) fn all_peers(config: &UdpConfig, others: &[SocketAddr]) -> Result<Vec<SocketAddr>, OpenError> {
    let peers: Vec<SocketAddr> = [&[config.peer], others].concat();
    if peers.iter().any(|peer| config.local.is_ipv4() != peer.is_ipv4()) {
        return Err(OpenError::Families);
    }
    Ok(peers)
}

pub(super) fn missing() -> OpenError {
    call("socket")(io::Error::from_raw_os_error(libc::EBADF))
}

/// Checks that a socket which another process has handed over, and may lie about, is like this port's own: of this
/// protocol and family, and bound to the local address, unless that is any; a receiving one also to the port, unless
/// that is any, and not connected.
pub(super) fn check_adopted(config: &UdpConfig, fd: &OwnedFd, protocol: u8, receives: bool) -> Result<(), OpenError> {
    let option = |name| sys::option(fd.as_fd(), libc::SOL_SOCKET, name).map_err(call(ADOPT));
    let kind = [option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?];
    let family = if config.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let form = if protocol == wire::protocol::UDP { libc::SOCK_DGRAM } else { libc::SOCK_RAW };
    let name = if kind == [family, form, i32::from(protocol)] { Some(name_of(fd)?) } else { None };
    let is_here = |name: SocketAddr| {
        (config.local.is_unspecified() || name.ip() == config.local)
            && (!receives || config.port == 0 || name.port() == config.port)
    };
    let refused = |what: &str| call(ADOPT)(io::Error::new(io::ErrorKind::InvalidInput, what));
    if !name.is_some_and(is_here) {
        return Err(refused("a socket of another kind or address"));
    }
    if receives && is_connected(fd, config.local.is_ipv4())? {
        return Err(refused("a socket that receives from one peer only"));
    }
    Ok(())
}

/// Returns whether the socket is connected. One that is connected to port 0 has no peer by getpeername(2), but a route.
fn is_connected(fd: &OwnedFd, v4: bool) -> Result<bool, OpenError> {
    let (level, mtu) = if v4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let copy = fd.try_clone().map_err(call("dup"))?;
    Ok(UdpSocket::from(copy).peer_addr().is_ok() || sys::option(fd.as_fd(), level, mtu).is_ok())
}

pub(super) fn call(name: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |error| OpenError::Call(name, error)
}

pub(super) fn name_of(fd: &OwnedFd) -> Result<SocketAddr, OpenError> {
    let fd = fd.try_clone().map_err(call("dup"))?;
    UdpSocket::from(fd).local_addr().map_err(call("getsockname"))
}

pub(super) fn bind(fd: &OwnedFd, address: SocketAddr) -> Result<(), OpenError> {
    sys::bind(fd.as_fd(), address).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::InUse(address),
        Some(libc::EADDRNOTAVAIL) => OpenError::NotLocal(address),
        _ => OpenError::Call("bind", error),
    })
}

/// Sets a buffer's size, beyond the system's limit where that is permitted.
pub(super) fn set_buffer(fd: &OwnedFd, forced: i32, plain: i32, len: u32) {
    let len = i32::try_from(len).unwrap_or(i32::MAX);
    if sys::set_option(fd.as_fd(), libc::SOL_SOCKET, forced, len).is_err() {
        // A smaller buffer only overflows earlier, which the overflow count shows; that is no reason to fail.
        let _ = sys::set_option(fd.as_fd(), libc::SOL_SOCKET, plain, len);
    }
}

/// Sets the options that a socket needs for sending.
pub(super) fn prepare_sending(config: &UdpConfig, fd: &OwnedFd) -> Result<(), OpenError> {
    let v4 = config.peer.is_ipv4();
    let (tos, ttl) = (i32::from(config.tos), i32::from(config.ttl.max(1)));
    let options = if v4 {
        [(libc::IPPROTO_IP, libc::IP_TOS, tos, "IP_TOS"), (libc::IPPROTO_IP, libc::IP_TTL, ttl, "IP_TTL")]
    } else {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos, "IPV6_TCLASS"),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl, "IPV6_UNICAST_HOPS"),
        ]
    };
    for (level, name, value, text) in options {
        sys::set_option(fd.as_fd(), level, name, value).map_err(call(text))?;
    }
    if config.checksum == Checksum::Zero {
        let (level, name, text) = if v4 {
            (libc::SOL_SOCKET, libc::SO_NO_CHECK, "SO_NO_CHECK")
        } else {
            (libc::SOL_UDP, sys::UDP_NO_CHECK6_TX, "UDP_NO_CHECK6_TX")
        };
        sys::set_option(fd.as_fd(), level, name, 1).map_err(call(text))?;
    }
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.buffer_len);
    Ok(())
}

/// Creates a slot that sets DF until a datagram may be fragmented.
pub(super) fn slot(config: &UdpConfig, fd: OwnedFd, source: SocketAddr, names_peer: bool) -> Result<Slot, OpenError> {
    set_fragmenting(fd.as_fd(), config.peer.is_ipv4(), true).map_err(call("IP_MTU_DISCOVER"))?;
    Ok(Slot { fd, source, names_peer, df: Some(true) })
}

/// Sets whether the socket's datagrams carry DF; without it they may be fragmented here or on the path.
pub(super) fn set_fragmenting(fd: BorrowedFd<'_>, v4: bool, df: bool) -> io::Result<()> {
    let mode = if df { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
    if v4 {
        return sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, mode);
    }
    sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, mode)?;
    sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, i32::from(df))
}

/// Makes the kernel ignore ICMP errors that tell of a smaller path MTU for what a socket has sent. Any host can forge
/// one about a socket whose port is known, and this one sends nothing.
pub(super) fn ignore_path_mtu(fd: BorrowedFd<'_>, v4: bool) -> Result<(), OpenError> {
    let (level, name, mode) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_INTERFACE),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_INTERFACE),
    };
    sys::set_option(fd, level, name, mode).map_err(call("IP_MTU_DISCOVER"))
}

/// Lets the socket share its port with further sockets of this process's user. After bind, this keeps the port from
/// sockets that were bound before.
pub(super) fn share_port(fd: &OwnedFd) -> Result<(), OpenError> {
    sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(call("SO_REUSEPORT"))
}

/// Creates a receiving socket; with `shares`, on a port that another one receives on as well.
pub(super) fn receiving_socket(config: &UdpConfig, shares: bool) -> Result<OwnedFd, OpenError> {
    let v4 = config.local.is_ipv4();
    let fd = sys::udp_socket(config.local).map_err(call("socket"))?;
    let mut options = Vec::new();
    if v4 {
        options.push((libc::IPPROTO_IP, libc::IP_RECVTOS, "IP_RECVTOS"));
        if config.local.is_unspecified() {
            options.push((libc::IPPROTO_IP, libc::IP_PKTINFO, "IP_PKTINFO"));
        }
        if config.want_ttl {
            options.push((libc::IPPROTO_IP, libc::IP_RECVTTL, "IP_RECVTTL"));
        }
    } else {
        options.push((libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY"));
        options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS"));
        if config.local.is_unspecified() {
            options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"));
        }
        if config.want_ttl {
            options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, "IPV6_RECVHOPLIMIT"));
        }
        if config.zero_checksum_v6 {
            options.push((libc::SOL_UDP, sys::UDP_NO_CHECK6_RX, "UDP_NO_CHECK6_RX"));
        }
    }
    for (level, name, text) in options {
        sys::set_option(fd.as_fd(), level, name, 1).map_err(call(text))?;
    }
    set_buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.buffer_len);
    let filter = match config.carries {
        Carries::Gue => &filter::NO_UNCOVERED_REMCSUM[..],
        Carries::Vxlan => &filter::NO_UNCOVERED_VXLAN_REMCSUM,
        Carries::Other => &[],
    };
    if !filter.is_empty() {
        sys::attach_filter(fd.as_fd(), filter).map_err(call("SO_ATTACH_FILTER"))?;
    }
    if shares {
        share_port(&fd)?;
    }
    // Bound last, so that every queued datagram has passed the filter.
    bind(&fd, config.at(config.local, config.port))?;
    Ok(fd)
}

pub(super) fn sending_socket(config: &UdpConfig, port: u16, connected: bool) -> Result<Slot, OpenError> {
    let fd = sys::udp_socket(config.local).map_err(call("socket"))?;
    sys::attach_filter(fd.as_fd(), &filter::NOTHING).map_err(call("SO_ATTACH_FILTER"))?;
    prepare_sending(config, &fd)?;
    bind(&fd, config.at(config.local, port))?;
    if connected {
        sys::connect(fd.as_fd(), config.peer).map_err(|error| OpenError::NoRoute(config.peer, error))?;
    }
    let source = name_of(&fd)?;
    slot(config, fd, source, !connected)
}

/// Returns the address to which a path MTU socket connects; it sends no data, so that any port is suitable.
pub(super) fn mtu_address(config: &UdpConfig, peer: IpAddr) -> SocketAddr {
    config.at(peer, 9)
}

/// Creates a connected socket for each peer's address, to query the path MTU; a peer without a route has none.
pub(super) fn mtu_sockets(config: &UdpConfig, peers: &[SocketAddr]) -> HashMap<IpAddr, OwnedFd> {
    let mut made = HashMap::new();
    for ip in peers.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()) {
        let peer = mtu_address(config, ip);
        if !made.contains_key(&ip)
            && let Ok(slot) = sending_socket(&UdpConfig { peer, ..*config }, 0, true)
        {
            made.insert(ip, slot.fd);
        }
    }
    made
}

/// Creates sockets on ports of `range`, spread as widely as possible.
pub(super) fn sockets_between(
    config: &UdpConfig,
    range: RangeInclusive<u16>,
    connected: bool,
) -> Result<Vec<Slot>, OpenError> {
    let most = usize::from(AUTO_SLOTS).min(range.len());
    let mut made = Vec::new();
    let mut last = OpenError::Call("bind", io::Error::from_raw_os_error(libc::EINVAL));
    for part in 0..most {
        // Each port belongs to one part, so that a port in use is tried at most once.
        let ports = range.len() * part / most..range.len() * (part + 1) / most;
        for port in ports.filter_map(|at| range.clone().nth(at)) {
            match sending_socket(config, port, connected) {
                Ok(slot) => {
                    made.push(slot);
                    break;
                }
                Err(error @ OpenError::InUse(_)) => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    if made.is_empty() { Err(last) } else { Ok(made) }
}

/// Creates a sending slot from the receiving socket, which is not connected because it must accept datagrams of senders
/// other than the peer.
pub(super) fn shared_socket(config: &UdpConfig, rx: &OwnedFd, listen: SocketAddr) -> Result<Slot, OpenError> {
    let fd = rx.try_clone().map_err(call("dup"))?;
    prepare_sending(config, &fd)?;
    slot(config, fd, listen, true)
}
