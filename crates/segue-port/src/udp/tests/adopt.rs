//! Sockets that a port takes over from another process, which may hand over others than it should.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::sys;

/// Returns the sockets of `port` with `fd` as the first one that receives, or that sends.
fn with(port: &UdpPort, fd: &OwnedFd, receives: bool) -> Sockets {
    let mut sockets = port.sockets().unwrap();
    let all = if receives { &mut sockets.receive } else { &mut sockets.send };
    all[0] = fd.try_clone().unwrap();
    sockets
}

/// Returns the configuration of a port over raw sockets.
fn raw_config() -> RawConfig {
    RawConfig {
        local: V4,
        peer: V4,
        scope_id: 0,
        protocols: &[47],
        tos: 0,
        ttl: 64,
        batches: true,
        buffer_len: 1 << 16,
    }
}

#[test]
fn sockets_of_another_kind_or_address_are_not_taken_over() {
    if testing::namespace().is_none() {
        return;
    }
    testing::wait_for_local(Ipv6Addr::LOCALHOST);
    for (ip, other) in [(V4, V6), (V6, V4)] {
        let port = receiver(ip, |_| {});
        let config = UdpConfig { port: port.listen().port(), ..port.config };
        let own = UdpPort::adopt(config, &[], port.sockets().unwrap()).unwrap();
        assert_eq!(own.listen(), port.listen());
        let tcp: OwnedFd = TcpListener::bind((ip, config.port)).unwrap().into();
        let unix: OwnedFd = UnixDatagram::unbound().unwrap().into();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let family: OwnedFd = UdpSocket::bind((other, config.port)).unwrap().into();
        for (what, fd) in [("TCP", tcp), ("a local socket", unix), ("a file", file), ("another family", family)] {
            for receives in [true, false] {
                let adopted = UdpPort::adopt(config, &[], with(&port, &fd, receives));
                assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{what} {receives}: {adopted:?}");
            }
        }
        // From any port a socket may send.
        let elsewhere: OwnedFd = UdpSocket::bind((ip, 0)).unwrap().into();
        let adopted = UdpPort::adopt(config, &[], with(&port, &elsewhere, true));
        assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{adopted:?}");
        UdpPort::adopt(config, &[], with(&port, &elsewhere, false)).unwrap();
    }
    let port = receiver(V4, |_| {});
    let elsewhere: OwnedFd = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap().into();
    for receives in [true, false] {
        let adopted = UdpPort::adopt(port.config, &[], with(&port, &elsewhere, receives));
        assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{adopted:?}");
    }
    let config = raw_config();
    let raw = RawPort::open(&config).unwrap();
    RawPort::adopt(&config, &[], raw.sockets().unwrap()).unwrap();
    let another = RawPort::open(&RawConfig { protocols: &[4], ..config.clone() }).unwrap();
    for sockets in [another.sockets().unwrap(), Sockets { receive: vec![elsewhere], send: Vec::new() }] {
        let adopted = RawPort::adopt(&config, &[], sockets);
        assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{adopted:?}");
    }
}

#[test]
fn a_socket_that_receives_from_one_peer_only_is_not_taken_over() {
    if testing::namespace().is_none() {
        return;
    }
    testing::wait_for_local(Ipv6Addr::LOCALHOST);
    let connected = |sockets: Sockets, peer: SocketAddr| {
        crate::sys::connect(sockets.receive[0].as_fd(), peer).unwrap();
        sockets
    };
    for (ip, number) in [(V4, 9), (V4, 0), (V6, 9), (V6, 0)] {
        let peer = SocketAddr::new(ip, number);
        let port = receiver(ip, |_| {});
        UdpPort::adopt(port.config, &[], port.sockets().unwrap()).unwrap();
        let adopted = UdpPort::adopt(port.config, &[], connected(port.sockets().unwrap(), peer));
        assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{peer}: {adopted:?}");
    }
    let config = raw_config();
    for peer in [9, 0].map(|number| SocketAddr::new(V4, number)) {
        let raw = RawPort::open(&config).unwrap();
        let adopted = RawPort::adopt(&config, &[], connected(raw.sockets().unwrap(), peer));
        assert!(matches!(adopted, Err(OpenError::Call("adopt", _))), "{peer}: {adopted:?}");
    }
}

#[test]
fn sockets_that_another_process_has_connected_otherwise_are_told_from_those_of_a_port() {
    if testing::namespace().is_none() {
        return;
    }
    testing::wait_for_local(Ipv6Addr::LOCALHOST);
    for ip in [V4, V6] {
        let [peer, other, none] = [9, 10, 0].map(|number| SocketAddr::new(ip, number));
        let sockets = || receiver(ip, |_| {}).sockets().unwrap();
        assert!(sockets().are_connected_to(Some(peer)) && sockets().are_connected_to(None));
        for to in [other, none] {
            let left = sockets();
            sys::connect(left.receive[0].as_fd(), to).unwrap();
            assert!(!left.are_connected_to(Some(peer)) && !left.are_connected_to(None), "{to}");
        }
        let left = sockets();
        sys::connect(left.send[0].as_fd(), other).unwrap();
        assert!(!left.are_connected_to(Some(peer)));
        assert!(left.are_connected_to(None), "every message names its destination");
        let free = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        let both = receiver(ip, |config| (config.port, config.source) = (free, Source::Fixed(free)));
        assert!(both.sockets().unwrap().are_connected_to(Some(peer)), "one that receives as well");
    }
}

/// Tests that ICMP errors about the port that a tunnel listens on, which any host can forge, lower no path MTU where it
/// sends from others.
#[test]
fn a_socket_that_only_receives_ignores_errors_about_the_path_mtu() {
    if testing::namespace().is_none() {
        return;
    }
    testing::wait_for_local(Ipv6Addr::LOCALHOST);
    for ip in [V4, V6] {
        let (level, name) = match ip.is_ipv4() {
            true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let mode = |port: &UdpPort| sys::option(port.rx.as_fd(), level, name).unwrap();
        let port = receiver(ip, |_| {});
        assert_eq!(mode(&port), libc::IP_PMTUDISC_INTERFACE);
        // An earlier version had left it at its default.
        sys::set_option(port.rx.as_fd(), level, name, libc::IP_PMTUDISC_WANT).unwrap();
        let successor = UdpPort::adopt(port.config, &[], port.sockets().unwrap()).unwrap();
        assert_eq!(mode(&successor), libc::IP_PMTUDISC_INTERFACE);
        let free = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        let both = receiver(ip, |config| (config.port, config.source) = (free, Source::Fixed(free)));
        assert_eq!(mode(&both), libc::IP_PMTUDISC_DO);
        let successor = UdpPort::adopt(both.config, &[], both.sockets().unwrap()).unwrap();
        assert_eq!(mode(&successor), libc::IP_PMTUDISC_DO);
    }
}
