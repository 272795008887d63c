//! System calls of rtnetlink for the notifications about one interface.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::io;
use std::mem::{size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::check;

/// Multicast group of notifications about interfaces (`RTMGRP_LINK`).
const LINKS: u32 = 1;

/// Creates a non-blocking socket that receives a notification of every change of an interface.
pub(crate) fn link_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_nl is plain old data, for which all zeros is a value.
    let mut name: libc::sockaddr_nl = unsafe { zeroed() };
    name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    name.nl_groups = LINKS;
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the address outlives the call and has the length that is said.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) })?;
    Ok(fd)
}

/// Sends a request to the kernel, whose reply can be read immediately.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `bytes`, which outlive the call; without an address the message is for the kernel.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives messages, truncated to `into`; `None` for a message whose sender is not the kernel.
pub(crate) fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: sockaddr_nl is plain old data, for which all zeros is a value.
    let mut name: libc::sockaddr_nl = unsafe { zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes at most the length of `into`, and `len` bytes of the address, which is its size.
    let got = unsafe {
        let (bytes, most) = (into.as_mut_ptr().cast(), into.len());
        libc::recvfrom(fd.as_raw_fd(), bytes, most, libc::MSG_DONTWAIT, (&raw mut name).cast(), &raw mut len)
    };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    Ok((name.nl_pid == 0).then_some(got))
}
