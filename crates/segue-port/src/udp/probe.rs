//! Detection of the kernel's limits of UDP_SEGMENT.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::messages::SendScratch;
use crate::sys;

/// Number of segments of one UDP_SEGMENT send that every kernel with the option accepts.
pub(super) const SEGMENTS: usize = 64;
/// Number of segments of one UDP_SEGMENT send that Linux 6.9 and later accept.
const MORE_SEGMENTS: usize = 128;

/// Returns the most segments of a UDP_SEGMENT send, or the error number if the kernel does not have the option.
/// Determined once, by sending single bytes to a socket of this process on the loopback interface.
pub(super) fn probe_segments() -> Result<usize, i32> {
    static PROBED: OnceLock<Result<usize, i32>> = OnceLock::new();
    *PROBED.get_or_init(|| {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        // Both families have the option or neither has; a host without IPv4 is probed over IPv6.
        let any = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let fd = any.into_iter().map(sys::udp_socket).find_map(Result::ok).ok_or(libc::EAFNOSUPPORT)?;
        sys::option(fd.as_fd(), libc::SOL_UDP, sys::UDP_SEGMENT).map_err(errno)?;
        let more = any.into_iter().any(|ip| segments_accepted(ip, MORE_SEGMENTS).unwrap_or(false));
        Ok(if more { MORE_SEGMENTS } else { SEGMENTS })
    })
}

/// Returns whether the kernel accepts a send of `count` one-byte segments on a new socket bound to `ip`.
fn segments_accepted(ip: IpAddr, count: usize) -> io::Result<bool> {
    let target = UdpSocket::bind(SocketAddr::new(ip, 0))?;
    let source = UdpSocket::bind(SocketAddr::new(ip, 0))?;
    let bytes = vec![0; count];
    let mut scratch = SendScratch::default();
    let mut out = scratch.begin();
    out.message();
    out.piece(&bytes);
    out.control(libc::SOL_UDP, sys::UDP_SEGMENT, 1u16);
    Ok(out.send(source.as_fd(), Some(target.local_addr()?), 0).is_ok())
}
