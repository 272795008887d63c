//! Socket options and signals that the standard library lacks.
#![allow(unsafe_code, reason = "setsockopt and kill exist only as libc calls")]

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Cuts what is sent into datagrams of `size` bytes (udp(7), `UDP_SEGMENT`).
pub fn set_udp_segment(socket: &UdpSocket, size: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, libc::c_int::from(size))
}

/// Sends with the UDP checksum field zero: none.
pub fn send_without_checksum(socket: &UdpSocket) -> io::Result<()> {
    /// Linux `UDP_NO_CHECK6_TX`, include/uapi/linux/udp.h.
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
    } else {
        set(socket, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1)
    }
}

/// Sets the DSCP and ECN bits of what is sent.
pub fn set_tos(socket: &UdpSocket, tos: u8) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_TOS, libc::c_int::from(tos))
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::c_int::from(tos))
    }
}

/// Allows fragmenting: DF is clear, and no path MTU is looked for.
pub fn allow_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
    }
}

/// Forbids fragmenting: what does not fit the way is refused with EMSGSIZE.
pub fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)
    }
}

/// Sends a signal to a child that has not been waited for, so that its id cannot have been given to another process.
pub fn signal(child: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child).map_err(io::Error::other)?;
    // SAFETY: kill takes no pointers.
    check(unsafe { libc::kill(pid, signal) })
}

fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`, and all options used here take an int.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
