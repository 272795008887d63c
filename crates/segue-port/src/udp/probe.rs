//! What UDP_SEGMENT of this kernel takes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::messages::SendScratch;
use crate::sys;

/// Segments of one UDP_SEGMENT send that every kernel with the option takes.
pub(super) const SEGMENTS: usize = 64;
/// Segments that Linux 6.9 and later take.
const MORE_SEGMENTS: usize = 128;

/// The most segments that a UDP_SEGMENT send may have, found out once by sending single bytes to a socket of our own on
/// the loopback interface; the error number where the kernel does not have the option.
pub(super) fn probe_segments() -> Result<usize, i32> {
    static PROBED: OnceLock<Result<usize, i32>> = OnceLock::new();
    *PROBED.get_or_init(|| {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        // Both families have the option or neither has; a host without IPv4 is asked over IPv6.
        let any = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let fd = any.into_iter().map(sys::udp_socket).find_map(Result::ok).ok_or(libc::EAFNOSUPPORT)?;
        sys::option(fd.as_fd(), libc::SOL_UDP, sys::UDP_SEGMENT).map_err(errno)?;
        let more = any.into_iter().any(|ip| segments_accepted(ip, MORE_SEGMENTS).unwrap_or(false));
        Ok(if more { MORE_SEGMENTS } else { SEGMENTS })
    })
}

/// Whether a send of `count` one-byte segments to a fresh socket on `ip` is accepted.
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
