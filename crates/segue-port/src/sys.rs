//! System calls that several kinds of ports use, and socket addresses in the kernel's form.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::c_int;
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use segue::time::Nanos;

/// Largest number of scatter entries of one message or write (`UIO_MAXIOV`).
pub(crate) const MAX_IOV: usize = 1024;
/// Largest number of messages of one `sendmmsg` or `recvmmsg` call.
pub(crate) const MAX_MESSAGES: usize = 64;

/// Socket options of `linux/udp.h`, which the libc crate has for some targets only.
pub(crate) const UDP_SEGMENT: c_int = 103;
pub(crate) const UDP_GRO: c_int = 104;
pub(crate) const UDP_NO_CHECK6_TX: c_int = 101;
pub(crate) const UDP_NO_CHECK6_RX: c_int = 102;

/// Returns the time of the monotonic clock (CLOCK_MONOTONIC), the one that the timers of ports and workers use.
#[inline]
pub fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for a timespec; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the result of a system call, or the error in `errno` if it is negative.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns whether an error is transient: it concerns one moment or one packet, and not the descriptor.
pub(crate) fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::EMSGSIZE
                | libc::EPERM
                | libc::EACCES
                | libc::ENETDOWN
                | libc::EIO
        )
    )
}

/// Makes a descriptor that came from another process non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Returns the size of the kernel's memory page, bytes.
pub(crate) fn page_len() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 16).max(1)
}

/// Reads one packet into one or more buffers from a non-blocking descriptor.
pub(crate) fn read_pieces(fd: BorrowedFd<'_>, pieces: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
    if let [piece] = pieces {
        // The kernel checks and copies no list of buffers for it.
        // SAFETY: the kernel writes at most the length of the buffer, which is borrowed exclusively until the call
        // returns.
        let got = unsafe { libc::read(fd.as_raw_fd(), piece.as_mut_ptr().cast(), piece.len()) };
        return usize::try_from(got).map_err(|_| io::Error::last_os_error());
    }
    let count = pieces.len().min(MAX_IOV) as c_int;
    // SAFETY: an IoSliceMut has the layout of an iovec; the kernel writes at most the length of each, and they are
    // borrowed exclusively until the call returns.
    let got = unsafe { libc::readv(fd.as_raw_fd(), pieces.as_mut_ptr().cast::<libc::iovec>(), count) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Creates an unbound, non-blocking UDP socket of the family of `address`.
pub(crate) fn udp_socket(address: IpAddr) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)
}

/// Creates a raw socket for one IP protocol of `address`'s family, non-blocking and closed on exec. Needs CAP_NET_RAW.
pub(crate) fn raw_socket(address: IpAddr, protocol: u8) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind, c_int::from(protocol)) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates an epoll descriptor that is readable while one of `fds` is readable.
pub(crate) fn either(fds: [BorrowedFd<'_>; 2]) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for fd in fds {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the kernel reads the event, which outlives the call.
        check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
    }
    Ok(epoll)
}

/// Creates a socket of the family of `address`, closed on exec.
pub(crate) fn socket(address: IpAddr, kind: c_int) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a socket to an address.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let name = Name::new(address);
    // SAFETY: the address outlives the call and its length is that of the family it has.
    check(unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr().cast(), name.len) }).map(drop)
}

/// Connects a socket to an address.
pub(crate) fn connect(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let name = Name::new(address);
    // SAFETY: the address outlives the call and its length is that of the family it has.
    check(unsafe { libc::connect(fd.as_raw_fd(), name.as_ptr().cast(), name.len) }).map(drop)
}

/// Discards the messages in a socket's error queue, at most 256.
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

/// Sets a socket option to an integer.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int that outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Sets a socket option to a structure of the kernel's interface.
pub(crate) fn set_value<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes, which is the size of `value`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) }).map(drop)
}

/// Reads a socket option that is an integer.
pub(crate) fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `value`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// Returns how many packets the kernel has dropped that a socket was to receive, modulo 2^32, since its creation
/// (`SO_MEMINFO`, Linux 4.12).
pub(crate) fn dropped(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
    let mut values = [0_u32; DROPS + 1];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `values`.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, values.as_mut_ptr().cast(), &raw mut len)
    })?;
    Ok(values[DROPS])
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
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) len: libc::socklen_t,
}

impl Name {
    pub(crate) fn new(address: SocketAddr) -> Name {
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

/// Returns the address in `storage`; `None` for a family other than IPv4 and IPv6.
pub(crate) fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
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
