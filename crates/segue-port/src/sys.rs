//! The system calls: thin, checked, and the only place with `unsafe`.
//!
//! Sending and receiving many messages needs arrays of headers that point at each other and at the caller's bytes.
//! [`SendScratch`] and [`RecvScratch`] own those arrays, so that nothing is allocated per call once they have grown; the
//! builders they lend ([`Outgoing`], [`Incoming`]) tie every pointer to the lifetime of the bytes behind it.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Most scatter entries of one message or write (`UIO_MAXIOV`).
pub(crate) const MAX_IOV: usize = 1024;
/// Most messages of one `sendmmsg` or `recvmmsg` that this crate asks for.
pub(crate) const MAX_MESSAGES: usize = 64;

/// `linux/udp.h`; the libc crate has them for some targets only.
pub(crate) const UDP_SEGMENT: c_int = 103;
pub(crate) const UDP_GRO: c_int = 104;
pub(crate) const UDP_NO_CHECK6_TX: c_int = 101;
pub(crate) const UDP_NO_CHECK6_RX: c_int = 102;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Requests and flags of `linux/if_tun.h`.
pub(crate) mod tun {
    use super::*;

    pub(crate) const IFF_TUN: u16 = 0x0001;
    pub(crate) const IFF_TAP: u16 = 0x0002;
    pub(crate) const IFF_NO_PI: u16 = 0x1000;
    pub(crate) const IFF_VNET_HDR: u16 = 0x4000;
    pub(crate) const IFF_TUN_EXCL: u16 = 0x8000;

    /// Attaches `fd` to the device `name`, made if need be, and returns the name it got.
    pub(crate) fn attach(fd: BorrowedFd<'_>, name: &str, flags: u16) -> io::Result<String> {
        // SAFETY: ifreq is plain old data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        if name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        Ok(name_of(&request))
    }

    /// The name and the flags of the device that `fd` is attached to.
    pub(crate) fn attached(fd: BorrowedFd<'_>) -> io::Result<(String, u16)> {
        // SAFETY: ifreq is plain old data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        // SAFETY: TUNGETIFF writes an ifreq, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
        // SAFETY: TUNGETIFF fills in the flags member of the union; every bit pattern is a valid short.
        Ok((name_of(&request), unsafe { request.ifr_ifru.ifru_flags } as u16))
    }

    /// The device's Ethernet address.
    pub(crate) fn mac(fd: BorrowedFd<'_>) -> io::Result<[u8; 6]> {
        // SAFETY: ifreq is plain old data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        // SAFETY: a TUN device answers SIOCGIFHWADDR for itself with an ifreq, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
        // SAFETY: it fills in the address member of the union; every bit pattern is valid.
        let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|at| bytes[at] as u8))
    }

    fn name_of(request: &libc::ifreq) -> String {
        request.ifr_name.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
    }

    /// What the device may hand out, `TUN_F_` bits.
    pub(crate) fn set_offload(fd: BorrowedFd<'_>, bits: u32) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(bits)) }).map(drop)
    }

    /// Sets the length of the virtio-net header and reads it back.
    pub(crate) fn set_header_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<c_int> {
        // SAFETY: TUNSETVNETHDRSZ reads an int, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) })?;
        let mut got: c_int = 0;
        // SAFETY: TUNGETVNETHDRSZ writes an int, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ as _, &raw mut got) })?;
        Ok(got)
    }

    /// Makes the header little-endian.
    pub(crate) fn set_little_endian(fd: BorrowedFd<'_>) -> io::Result<()> {
        let on: c_int = 1;
        // SAFETY: TUNSETVNETLE reads an int, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE as _, &raw const on) }).map(drop)
    }
}

/// Packet sockets: `linux/if_packet.h`.
pub(crate) mod packet {
    use super::*;

    /// Options that the libc crate lacks on some targets.
    const PACKET_IGNORE_OUTGOING: c_int = 23;
    /// Bytes of `struct virtio_net_hdr` that PACKET_VNET_HDR puts in front.
    pub(crate) const VNET_LEN: usize = 10;

    /// What an interface is.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Interface {
        pub(crate) index: c_int,
        pub(crate) mtu: usize,
        /// `ARPHRD_` value.
        pub(crate) hardware: u16,
    }

    /// A raw packet socket that receives nothing until it is bound.
    pub(crate) fn socket() -> io::Result<OwnedFd> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the call above made the descriptor and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Asks for an interface by its name.
    pub(crate) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<Interface> {
        let ask = |request_number| {
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
                index: ask(libc::SIOCGIFINDEX as _)?.ifr_ifru.ifru_ifindex,
                mtu: usize::try_from(ask(libc::SIOCGIFMTU as _)?.ifr_ifru.ifru_mtu).unwrap_or(0),
                hardware: ask(libc::SIOCGIFHWADDR as _)?.ifr_ifru.ifru_hwaddr.sa_family,
            })
        }
    }

    /// Asks for frames with virtio headers, no copies of what this host sends, and packets too long for the ring through the
    /// socket's queue; the last is no more than a wish.
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

    /// Makes a receive ring, to be mapped.
    pub(crate) fn receive_ring(fd: BorrowedFd<'_>, blocks: u32, block_len: u32, slot_len: u32) -> io::Result<()> {
        let request = libc::tpacket_req {
            tp_block_size: block_len,
            tp_block_nr: blocks,
            tp_frame_size: slot_len,
            tp_frame_nr: blocks * (block_len / slot_len),
        };
        set_value(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }

    /// Takes in frames for other stations' addresses too, until the socket is closed.
    pub(crate) fn promiscuous(fd: BorrowedFd<'_>, index: c_int) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_value(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Binds to one interface and every protocol: from here on frames come.
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

    /// Whether the interface that the socket was bound to is gone for good.
    pub(crate) fn is_unbound(fd: BorrowedFd<'_>) -> bool {
        // SAFETY: sockaddr_ll is plain old data, for which all zeros is a value.
        let mut name: libc::sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, which is the size of `name`.
        let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) };
        result == 0 && name.sll_ifindex < 0
    }

    /// Frames that the kernel dropped since the last call because ring or queue were full.
    pub(crate) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
        // SAFETY: tpacket_stats is plain old data, for which all zeros is a value.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: the kernel writes at most `len` bytes, which is the size of `stats`.
        check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut stats).cast(), &raw mut len) })?;
        Ok(stats.tp_drops)
    }
}

/// rtnetlink, as far as one interface is followed.
pub(crate) mod netlink {
    use super::*;

    /// Announcements about interfaces (`RTMGRP_LINK`).
    const LINKS: u32 = 1;

    /// A socket that hears of every change of an interface, and never waits.
    pub(crate) fn link_socket() -> io::Result<OwnedFd> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: the call above made the descriptor and nobody else has it.
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

    /// Sends a request to the kernel, whose answer can be read at once.
    pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads `bytes`, which outlive the call; without an address the message is for the kernel.
        let sent = unsafe { libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads messages, cut off at the end of `into`; `None` for what is not from the kernel.
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
}

/// Bytes of the kernel's page.
pub(crate) fn page_len() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 16).max(1)
}

/// Reads one packet into several pieces; the descriptor never waits.
pub(crate) fn read_pieces(fd: BorrowedFd<'_>, pieces: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
    let count = pieces.len().min(MAX_IOV) as c_int;
    // SAFETY: an IoSliceMut has the layout of an iovec; the kernel writes at most the length of each, and they are borrowed
    // exclusively until the call returns.
    let got = unsafe { libc::readv(fd.as_raw_fd(), pieces.as_mut_ptr().cast::<libc::iovec>(), count) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// A UDP socket of the family of `address`, not bound, that never waits.
pub(crate) fn udp_socket(address: IpAddr) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)
}

/// A TCP socket of the family of `address`, not bound: one made here is in this thread's network namespace.
#[cfg(test)]
pub(crate) fn tcp_socket(address: IpAddr) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_STREAM)
}

/// A raw socket for one IP protocol of `address`'s family, non-blocking and closed on exec. Needs CAP_NET_RAW.
pub(crate) fn raw_socket(address: IpAddr, protocol: u8) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind, c_int::from(protocol)) })?;
    // SAFETY: the call above made the descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that is readable while one of these is.
pub(crate) fn either(fds: [BorrowedFd<'_>; 2]) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the call above made the descriptor and nobody else has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for fd in fds {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the kernel reads the event, which outlives the call.
        check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
    }
    Ok(epoll)
}

fn socket(address: IpAddr, kind: c_int) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above made the descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a socket.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let name = Name::new(address);
    // SAFETY: the address outlives the call and its length is that of the family it has.
    check(unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr().cast(), name.len) }).map(drop)
}

/// Connects a socket.
pub(crate) fn connect(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let name = Name::new(address);
    // SAFETY: the address outlives the call and its length is that of the family it has.
    check(unsafe { libc::connect(fd.as_raw_fd(), name.as_ptr().cast(), name.len) }).map(drop)
}

/// Takes what waits in a socket's queue of errors, of which there are few, and forgets it.
pub(crate) fn drop_errors(fd: BorrowedFd<'_>) {
    const MOST: usize = 256;
    for _ in 0..MOST {
        // SAFETY: a message header is plain old data, for which all zeros is a value.
        let mut header: libc::msghdr = unsafe { zeroed() };
        // SAFETY: there is no memory in the header that the kernel could write to.
        let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
        if got < 0 {
            return;
        }
    }
}

/// Sets an integer option.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int that outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Sets an option whose value is a structure of the kernel's interface.
fn set_value<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes, which is the size of `value`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) }).map(drop)
}

/// Reads an integer option.
pub(crate) fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `value`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// Attaches a classic BPF program to a socket.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program and does not write to it; both structures outlive the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
struct Name {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Name {
    fn new(address: SocketAddr) -> Name {
        // SAFETY: sockaddr_storage is plain old data, for which all zeros is a value.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let len = match address {
            SocketAddr::V4(address) => {
                let name = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is at least as large and as aligned as every socket address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                let name = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: sockaddr_storage is at least as large and as aligned as every socket address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        Name { storage, len: len as libc::socklen_t }
    }

    fn as_ptr(&self) -> *const libc::sockaddr_storage {
        &raw const self.storage
    }
}

fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address it is, and the storage is large and aligned enough for each.
            let name = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says which address it is, and the storage is large and aligned enough for each.
            let name = unsafe { (&raw const *storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Control data of one message. The kernel wants it aligned like a `cmsghdr`.
#[derive(Clone, Copy)]
struct Control<const WORDS: usize> {
    words: [u64; WORDS],
    len: usize,
}

/// Room for the three control messages that are sent at most: segment size, TOS, TTL.
const SEND_WORDS: usize = 12;
/// Room for all that is asked for on receiving.
const RECEIVE_WORDS: usize = 32;

impl<const WORDS: usize> Control<WORDS> {
    const NONE: Control<WORDS> = Control { words: [0; WORDS], len: 0 };

    /// Appends a message; one that would not fit is left out, which the fixed set of messages rules out.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let len = size_of::<T>() as libc::c_uint;
        // SAFETY: pure arithmetic.
        let (space, whole) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len)) };
        if self.len + space > size_of_val(&self.words) {
            return;
        }
        // SAFETY: `space` bytes from `len` on are inside `words`, as just checked; `len` is a sum of CMSG_SPACE values and so
        // keeps the alignment of a cmsghdr, which that of u64 covers; CMSG_DATA stays inside the space.
        unsafe {
            let header = self.words.as_mut_ptr().cast::<u8>().add(self.len).cast::<libc::cmsghdr>();
            header.write(libc::cmsghdr { cmsg_len: whole as _, cmsg_level: level, cmsg_type: kind });
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }
}

struct Message {
    first_piece: usize,
    pieces: usize,
}

/// Reused arrays for sending.
#[derive(Default)]
pub(crate) struct SendScratch {
    pieces: Vec<libc::iovec>,
    controls: Vec<Control<SEND_WORDS>>,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
}

impl std::fmt::Debug for SendScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendScratch")
    }
}

impl SendScratch {
    /// Begins a call that refers to bytes of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Outgoing<'s, 'a> {
        self.pieces.clear();
        self.controls.clear();
        self.messages.clear();
        Outgoing { scratch: self, bytes: PhantomData }
    }
}

/// One or more messages under construction.
pub(crate) struct Outgoing<'s, 'a> {
    scratch: &'s mut SendScratch,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Outgoing<'_, 'a> {
    /// Begins the next message; the pieces and control messages that follow are its own.
    pub(crate) fn message(&mut self) {
        self.scratch.messages.push(Message { first_piece: self.scratch.pieces.len(), pieces: 0 });
        self.scratch.controls.push(Control::NONE);
    }

    /// Appends bytes to the message begun last.
    pub(crate) fn piece(&mut self, bytes: &'a [u8]) {
        if let Some(message) = self.scratch.messages.last_mut() {
            message.pieces += 1;
            let base = bytes.as_ptr().cast_mut().cast::<c_void>();
            self.scratch.pieces.push(libc::iovec { iov_base: base, iov_len: bytes.len() });
        }
    }

    /// Appends a control message to the message begun last.
    pub(crate) fn control<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        if let Some(control) = self.scratch.controls.last_mut() {
            control.push(level, kind, value);
        }
    }

    /// Sends all messages from `skip` on, to `to` or to where the socket is connected. Returns how many the kernel took.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, to: Option<SocketAddr>, skip: usize) -> io::Result<usize> {
        let scratch = &mut *self.scratch;
        let mut name = to.map(Name::new);
        let (name_ptr, name_len) = match &mut name {
            Some(name) => ((&raw mut name.storage).cast::<c_void>(), name.len),
            None => (ptr::null_mut(), 0),
        };
        scratch.headers.clear();
        for (message, control) in scratch.messages.iter().zip(&mut scratch.controls).skip(skip) {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = name_ptr;
            header.msg_hdr.msg_namelen = name_len;
            header.msg_hdr.msg_iov = scratch.pieces[message.first_piece..].as_mut_ptr();
            header.msg_hdr.msg_iovlen = message.pieces as _;
            if control.len > 0 {
                header.msg_hdr.msg_control = control.words.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.len as _;
            }
            scratch.headers.push(header);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let [first, rest @ ..] = &mut scratch.headers[..] else { return Ok(0) };
        if rest.is_empty() {
            // SAFETY: every pointer in the headers leads into the scratch arrays, which are not changed before the call
            // returns, or to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
            let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const first.msg_hdr, flags) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        let count = scratch.headers.len() as libc::c_uint;
        // SAFETY: as above; the kernel writes the `msg_len` of each header, of which there are `count`.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), scratch.headers.as_mut_ptr(), count, flags as _) };
        check(sent).map(|n| n as usize)
    }

    /// Writes the pieces of the only message to `fd` in one call.
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let count = self.scratch.pieces.len() as c_int;
        // SAFETY: the pieces lead to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
        let written = unsafe { libc::writev(fd.as_raw_fd(), self.scratch.pieces.as_ptr(), count) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
    }
}

/// Reused arrays for receiving.
#[derive(Default)]
pub(crate) struct RecvScratch {
    pieces: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control<RECEIVE_WORDS>>,
    headers: Vec<libc::mmsghdr>,
    got: usize,
}

impl std::fmt::Debug for RecvScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecvScratch")
    }
}

/// What came with one datagram or burst.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) truncated: bool,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<IpAddr>,
    pub(crate) tos: u8,
    pub(crate) ttl: Option<u8>,
    /// Length of each merged datagram, where the kernel merged some.
    pub(crate) segment_len: Option<usize>,
    /// Datagrams that the kernel dropped on this socket since it was made.
    pub(crate) overflows: Option<u32>,
}

impl RecvScratch {
    /// Begins a call that fills memory of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Incoming<'s, 'a> {
        self.pieces.clear();
        Incoming { scratch: self, bytes: PhantomData }
    }

    /// What came with message `index` of the last call.
    pub(crate) fn received(&self, index: usize) -> Received {
        let (Some(header), Some(name)) = (self.headers[..self.got].get(index), self.names.get(index)) else {
            return Received::default();
        };
        let mut received = Received {
            len: header.msg_len as usize,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            peer: address_of(name),
            ..Received::default()
        };
        // SAFETY: the header's control pointer leads to `controls[index]`, which nothing touched since the kernel wrote it
        // and the length that goes with it; the macros stay inside that length.
        let mut control = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
        while !control.is_null() {
            // SAFETY: not null, so a whole header inside the control data.
            let head = unsafe { control.read_unaligned() };
            // SAFETY: the data follows the header; no more than its length is read, see `read_control`.
            let data = unsafe { libc::CMSG_DATA(control) };
            let len = (head.cmsg_len as usize).saturating_sub(data.addr() - control.addr());
            note(&mut received, head.cmsg_level, head.cmsg_type, data, len);
            // SAFETY: as for CMSG_FIRSTHDR.
            control = unsafe { libc::CMSG_NXTHDR(&raw const header.msg_hdr, control) };
        }
        received
    }
}

/// Reads a value out of control data that is `len` bytes long.
fn read_control<T: Copy>(data: *const u8, len: usize) -> Option<T> {
    if len < size_of::<T>() {
        return None;
    }
    // SAFETY: `data` leads to `len` bytes that the kernel wrote, at least as many as T has; T is one of u8, u32, c_int,
    // in_pktinfo and in6_pktinfo, for which every bit pattern is a value.
    Some(unsafe { data.cast::<T>().read_unaligned() })
}

fn note(received: &mut Received, level: c_int, kind: c_int, data: *const u8, len: usize) {
    match (level, kind) {
        (libc::SOL_UDP, UDP_GRO) => {
            received.segment_len = read_control::<c_int>(data, len).and_then(|size| usize::try_from(size).ok());
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = read_control::<u8>(data, len).unwrap_or(0),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            received.tos = read_control::<c_int>(data, len).unwrap_or(0) as u8;
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = read_control::<c_int>(data, len).and_then(|ttl| u8::try_from(ttl).ok());
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            received.local = read_control::<libc::in_pktinfo>(data, len)
                .map(|info| IpAddr::V4(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes())));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            received.local = read_control::<libc::in6_pktinfo>(data, len)
                .map(|info| IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
        }
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => received.overflows = read_control::<u32>(data, len),
        _ => {}
    }
}

/// One or more receive windows under construction.
pub(crate) struct Incoming<'s, 'a> {
    scratch: &'s mut RecvScratch,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Incoming<'_, 'a> {
    /// Adds a place for one message.
    pub(crate) fn window(&mut self, bytes: &'a mut [u8]) {
        self.scratch.pieces.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    }

    /// Receives up to as many messages as there are windows, without waiting. Returns how many.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let scratch = &mut *self.scratch;
        let count = scratch.pieces.len();
        // SAFETY: sockaddr_storage is plain old data, for which all zeros is a value.
        let nobody: libc::sockaddr_storage = unsafe { zeroed() };
        scratch.names.resize(scratch.names.len().max(count), nobody);
        scratch.controls.resize(scratch.controls.len().max(count), Control::NONE);
        scratch.headers.clear();
        scratch.got = 0;
        for ((piece, name), control) in scratch.pieces.iter_mut().zip(&mut scratch.names).zip(&mut scratch.controls) {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.words.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(&control.words) as _;
            scratch.headers.push(header);
        }
        let [first, rest @ ..] = &mut scratch.headers[..] else { return Ok(0) };
        if rest.is_empty() {
            // SAFETY: every pointer in the header leads into the scratch arrays, which are not touched before the call
            // returns, or to memory of lifetime 'a that is ours alone; the lengths are theirs.
            let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut first.msg_hdr, libc::MSG_DONTWAIT) };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            first.msg_len = got as libc::c_uint;
            scratch.got = 1;
            return Ok(1);
        }
        // SAFETY: as above, for `count` headers; a null timeout means none.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                scratch.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        scratch.got = check(got)? as usize;
        Ok(scratch.got)
    }
}

/// Moves the calling thread into a network namespace of its own.
#[cfg(test)]
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: no pointers; only this thread's view of the network changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// For tests: counts the allocations of each thread.
#[cfg(test)]
pub(crate) mod allocations {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    struct Counting;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    // SAFETY: every call is passed on to the system's allocator unchanged; counting touches a thread-local number that
    // needs neither allocation nor destructor.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.set(COUNT.get() + 1);
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            COUNT.set(COUNT.get() + 1);
            // SAFETY: the caller keeps the contract of `realloc`, and `alloc` is the system's.
            unsafe { System.realloc(pointer, layout, size) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    /// Allocations that this thread made so far.
    pub(crate) fn count() -> u64 {
        COUNT.get()
    }
}
