//! Sockets: abstract names, options, messages, and ioctls on links.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::check;

/// Connects to the local socket at `path`; the connection is non-blocking. Returns [`io::ErrorKind::WouldBlock`] where
/// the queue of the listener is full.
pub fn connect_path(path: &Path) -> io::Result<UnixStream> {
    with_name(0, path.as_os_str().as_bytes(), libc::connect)
}

/// Connects to the local socket with the given abstract name. Returns [`io::ErrorKind::WouldBlock`] where the queue of
/// the listener is full.
pub fn connect_abstract(name: &[u8]) -> io::Result<UnixStream> {
    with_name(1, name, libc::connect)
}

/// Opens a local socket that is bound to the given abstract name and does not listen.
pub fn bind_abstract(name: &[u8]) -> io::Result<UnixStream> {
    with_name(1, name, libc::bind)
}

/// Opens a local socket and applies `call` (connect or bind) with a name that begins at the byte `first` of the
/// address: 0 for a path, 1 for an abstract name.
fn with_name(
    first: usize,
    name: &[u8],
    call: unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<UnixStream> {
    // SAFETY: sockaddr_un is plain old data, for which all zeros is a value.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // One byte stays zero (unix(7)): the first one makes the name an abstract one, the last one ends a path.
    if name.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    address.sun_path.iter_mut().skip(first).zip(name).for_each(|(to, from)| *to = *from as libc::c_char);
    let len = (mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t;
    // SAFETY: the call takes plain numbers.
    let fd =
        check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above returned the descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the address outlives the call and has the given length.
    check(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd.into())
}

/// Sets an integer socket option.
pub fn set_int_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Receives one message; returns its length and the segment length of UDP_GRO where the kernel gave one.
pub fn receive_with_gro(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<c_int>)> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: msghdr is plain data; every pointer in it describes a local that outlives the calls, and the control
    // buffer is aligned for cmsghdr. CMSG_* walk only inside what the kernel filled.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let len = libc::recvmsg(fd.as_raw_fd(), &mut header, 0);
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        let mut segment = None;
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_UDP && (*at).cmsg_type == libc::UDP_GRO {
                segment = Some(libc::CMSG_DATA(at).cast::<c_int>().read_unaligned());
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
        Ok((len, segment))
    }
}

/// Opens and closes a socket of a family and type, to find out whether the kernel supports it.
pub fn probe_socket(family: c_int, kind: c_int) -> io::Result<()> {
    // SAFETY: plain numbers; the descriptor is owned at once.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind | libc::SOCK_CLOEXEC, 0))?) };
    drop(fd);
    Ok(())
}

/// `struct ifreq` with flags or a pointer in its union.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    union: [usize; 3],
}

fn ifreq(name: &str) -> io::Result<IfReq> {
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], union: [0; 3] };
    let bytes = name.as_bytes();
    if bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    Ok(request)
}

/// Returns one boolean ethtool feature of a link, by its legacy command number (linux/ethtool.h).
pub fn ethtool_flag(socket: BorrowedFd<'_>, link: &str, command: u32) -> io::Result<bool> {
    let mut value = [command, 0u32];
    let mut request = ifreq(link)?;
    request.union[0] = value.as_mut_ptr() as usize;
    // SAFETY: the union's pointer describes `value` (struct ethtool_value, two u32), both outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    Ok(value[1] != 0)
}

/// Commands of ethtool that read the names of all features, their number, and their state at a link; the number of that
/// string set, and the length of a name (linux/ethtool.h).
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SS_FEATURES: u32 = 4;
const STRING_LEN: usize = 32;

/// Returns whether one of the features `names` (as in `ethtool -k`) was switched off at a link that has it, so that it
/// can be switched on again. A `[fixed]` one was not, nor one that the driver keeps off though it is requested.
pub fn ethtool_was_switched_off(socket: BorrowedFd<'_>, link: &str, names: &[&str]) -> io::Result<bool> {
    // struct ethtool_sset_info: the mask of the sets is a u64.
    let mask = (1_u64 << SS_FEATURES).to_ne_bytes();
    let [low, high] = [0_usize, 4].map(|at| u32::from_ne_bytes([mask[at], mask[at + 1], mask[at + 2], mask[at + 3]]));
    let mut info = [GSSET_INFO, 0, low, high, 0];
    let mut request = ifreq(link)?;
    request.union[0] = info.as_mut_ptr() as usize;
    // SAFETY: the union's pointer describes `info` (struct ethtool_sset_info with one length), both outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    let count = info[4] as usize;
    // struct ethtool_gstrings.
    let mut strings = vec![0_u32; 3 + count * STRING_LEN / size_of::<u32>()];
    strings[..3].copy_from_slice(&[GSTRINGS, SS_FEATURES, info[4]]);
    request.union[0] = strings.as_mut_ptr() as usize;
    // SAFETY: the union's pointer describes `strings`, which has room for as many names as the kernel has.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    // struct ethtool_gfeatures: four words for each 32 features, first those that can be switched, then those that are
    // requested.
    let blocks = count.div_ceil(32);
    let mut features = vec![0_u32; 2 + 4 * blocks];
    features[..2].copy_from_slice(&[GFEATURES, blocks as u32]);
    request.union[0] = features.as_mut_ptr() as usize;
    // SAFETY: the union's pointer describes `features`, whose second word is the number of its blocks.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    let bytes: Vec<u8> = strings.iter().skip(3).flat_map(|word| word.to_ne_bytes()).collect();
    let is_asked = |name: &[u8]| {
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        names.iter().any(|asked| asked.as_bytes() == &name[..len])
    };
    let asked = bytes.chunks_exact(STRING_LEN).enumerate().filter(|(_, name)| is_asked(name));
    let word = |at: usize| features.get(at).copied().unwrap_or(0);
    let mut off = asked.map(|(bit, _)| (word(2 + 4 * (bit / 32)) & !word(3 + 4 * (bit / 32))) >> (bit % 32));
    Ok(off.any(|bits| bits & 1 != 0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_feature_that_is_on_or_fixed_at_a_link_was_not_switched_off() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for name in ["tx-tcp-segmentation", "tx-checksum-ip-generic", "hw-tc-offload", "none"] {
            assert!(!ethtool_was_switched_off(socket.as_fd(), "lo", &[name]).unwrap(), "{name}");
        }
    }

    #[test]
    fn a_connect_to_a_path_does_not_wait_for_room_in_the_queue() {
        let path = std::env::temp_dir().join(format!("segue-host-queue-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: a plain call on an open descriptor: the queue has room for one connection from here on.
        check(unsafe { libc::listen(listener.as_raw_fd(), 0) }).unwrap();
        let (first, second) = (connect_path(&path), connect_path(&path));
        let accepted = listener.accept();
        std::fs::remove_file(&path).unwrap();
        assert!(first.is_ok() && accepted.is_ok(), "{first:?} {accepted:?}");
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(connect_path(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let long = path.join("x".repeat(200));
        assert_eq!(connect_path(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_name_longer_than_the_kernels_field_is_refused() {
        assert!(ifreq("exactly15bytes_").is_ok());
        assert_eq!(ifreq("sixteen_bytes_16").err().and_then(|e| e.raw_os_error()), Some(libc::ENAMETOOLONG));
    }
}
