//! System calls of packet sockets: `linux/if_packet.h`.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::{size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use crate::sys::{check, option, set_option, set_value};

/// Socket option that the libc crate lacks on some targets.
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// Flag of a group that the libc crate lacks: its sockets do not receive what this host sends.
const FANOUT_IGNORE_OUTGOING: libc::c_uint = 0x4000;
/// Length in bytes of the `struct virtio_net_hdr` that PACKET_VNET_HDR puts in front of a frame.
pub(crate) const VNET_LEN: usize = 10;

/// Properties of a network interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    pub(crate) index: c_int,
    pub(crate) mtu: usize,
    /// Hardware type, an `ARPHRD_` value.
    pub(crate) hardware: u16,
}

/// Creates a raw packet socket, which receives no frames until it is bound.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Looks up an interface by its name.
pub(crate) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<Interface> {
    let query = |request_number| {
        // SAFETY: ifreq is plain old data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the three requests below read the name and write another member of an ifreq, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), request_number, &raw mut request) })?;
        Ok(request)
    };
    // SAFETY: each request fills in the member that is read; every bit pattern is a value of it.
    unsafe {
        Ok(Interface {
            index: query(libc::SIOCGIFINDEX as _)?.ifr_ifru.ifru_ifindex,
            mtu: usize::try_from(query(libc::SIOCGIFMTU as _)?.ifr_ifru.ifru_mtu).unwrap_or(0),
            hardware: query(libc::SIOCGIFHWADDR as _)?.ifr_ifru.ifru_hwaddr.sa_family,
        })
    }
}

/// Sets the options of a socket: virtio headers, no copies of packets sent by this host, TPACKET_V2, and delivery of
/// packets too long for the ring through the socket's queue, which the kernel need not honour.
pub(crate) fn prepare(fd: BorrowedFd<'_>) -> io::Result<()> {
    for (name, value) in [
        (libc::PACKET_VNET_HDR, 1),
        (PACKET_IGNORE_OUTGOING, 1),
        (libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as c_int),
        (libc::PACKET_COPY_THRESH, c_int::MAX),
    ] {
        set_option(fd, libc::SOL_PACKET, name, value)?;
    }
    Ok(())
}

/// Creates a receive ring, to be mapped; without blocks, removes the one that is mapped no more.
pub(crate) fn receive_ring(fd: BorrowedFd<'_>, blocks: u32, block_len: u32, slot_len: u32) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: block_len,
        tp_block_nr: blocks,
        tp_frame_size: slot_len,
        tp_frame_nr: blocks * (block_len / slot_len),
    };
    set_value(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Makes the interface promiscuous until the socket is closed.
pub(crate) fn promiscuous(fd: BorrowedFd<'_>, index: c_int) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_value(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Binds the socket to one interface and all protocols, from which time on it receives frames.
pub(crate) fn bind(fd: BorrowedFd<'_>, index: c_int) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain old data, for which all zeros is a value.
    let mut name: libc::sockaddr_ll = unsafe { zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    name.sll_ifindex = index;
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the address outlives the call and has the length that is said.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) }).map(drop)
}

/// Joins the socket group `id`, among which the kernel distributes flows: by the result of a program, taken modulo the
/// number of sockets, or by a hash of addresses and ports that is equal for both directions (`PACKET_FANOUT_HASH`).
/// `None` creates a group. Returns the group's number. A socket must be bound by then.
///
/// A group replaces the sockets' own setting for packets that this host sends, so that it has its own.
pub(crate) fn join(fd: BorrowedFd<'_>, id: Option<u16>, program: Option<BorrowedFd<'_>>) -> io::Result<u16> {
    let mut flags = FANOUT_IGNORE_OUTGOING;
    if id.is_none() {
        flags |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
    }
    let kind = if program.is_some() { libc::PACKET_FANOUT_EBPF } else { libc::PACKET_FANOUT_HASH };
    let value = (kind | flags) << 16 | libc::c_uint::from(id.unwrap_or(0));
    set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, value.cast_signed())?;
    if let (None, Some(program)) = (id, program) {
        set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program.as_raw_fd())?;
    }
    let joined = option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
    // The number is in the lower half.
    Ok(joined as u16)
}

/// Returns whether the interface that the socket was bound to no longer exists.
pub(crate) fn is_unbound(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: sockaddr_ll is plain old data, for which all zeros is a value.
    let mut name: libc::sockaddr_ll = unsafe { zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `name`.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) };
    result == 0 && name.sll_ifindex < 0
}

/// Creates a timer as a descriptor (timerfd_create(2)) that becomes readable each second.
pub(crate) fn each_second() -> io::Result<File> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    let timer = unsafe { OwnedFd::from_raw_fd(fd) };
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let spec = libc::itimerspec { it_interval: second, it_value: second };
    // SAFETY: the kernel reads the times, which outlive the call, and writes none back.
    check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const spec, null_mut()) })?;
    Ok(timer.into())
}

/// Returns the number of frames dropped since the last call because ring or queue were full.
pub(crate) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: tpacket_stats is plain old data, for which all zeros is a value.
    let mut stats: libc::tpacket_stats = unsafe { zeroed() };
    let mut len = size_of_val(&stats) as libc::socklen_t;
    let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `stats`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut stats).cast(), &raw mut len) })?;
    Ok(stats.tp_drops)
}
