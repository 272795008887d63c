//! The error queue of a socket (IP_RECVERR, ip(7)): the ICMP errors about datagrams that were sent through it.

mod sys;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

/// Size of the largest socket address that [`receive`] reads, `struct sockaddr_in6`, in bytes.
const NAME_LEN: usize = 28;
/// Number of words for control messages that [`receive`] reads.
const CONTROL_WORDS: usize = 64;

/// The origin of an error (`SO_EE_ORIGIN_*` of linux/errqueue.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The kernel of this host generated the error, without an ICMP message.
    Local,
    /// An ICMP or ICMPv6 message caused the error; this host's own kernel generates one too where a neighbour does not
    /// answer.
    Icmp,
    /// The error has another origin, such as a time stamp.
    Other,
}

/// An error about a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketError {
    /// Error number derived by the kernel.
    pub errno: i32,
    /// Origin of the socket error.
    pub origin: Origin,
    /// The type of the ICMP message.
    pub icmp_type: u8,
    /// The code of the ICMP message.
    pub icmp_code: u8,
    /// The destination of the datagram, if the kernel reports it.
    pub to: Option<SocketAddr>,
    /// The sender of the ICMP message.
    pub from: Option<IpAddr>,
}

/// Switches the error queue of this socket on or off (IP_RECVERR, IPV6_RECVERR). While it is on, a send may also return
/// an error of an earlier datagram where the socket is not connected. The kernel empties one that is switched off.
pub fn switch(socket: BorrowedFd<'_>, is_ipv4: bool, is_on: bool) -> io::Result<()> {
    let (level, name) = match is_ipv4 {
        true => (libc::IPPROTO_IP, libc::IP_RECVERR),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    crate::sys::set_int_option(socket, level, name, i32::from(is_on))
}

/// Takes the oldest error from the queue of a socket; `None` where there is none. Never waits.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<SocketError>> {
    let mut name = [0; NAME_LEN];
    let mut control = [0_u64; CONTROL_WORDS];
    let Some((name_len, control_len)) = sys::receive_error(socket, &mut name, &mut control)? else { return Ok(None) };
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(control_len).collect();
    let to = name.get(..name_len.min(NAME_LEN)).and_then(address);
    let mut found = SocketError { errno: 0, origin: Origin::Other, icmp_type: 0, icmp_code: 0, to, from: None };
    each_message(&bytes, |level, kind, data| {
        let is_error =
            [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)].contains(&(level, kind));
        if is_error {
            read_error(data, &mut found);
        }
    });
    Ok(Some(found))
}

/// Reads a `struct sock_extended_err` (ip(7)) and the address after it.
fn read_error(data: &[u8], into: &mut SocketError) {
    const LEN: usize = 16;
    const ORIGIN_LOCAL: u8 = 1;
    const ORIGIN_ICMP: u8 = 2;
    const ORIGIN_ICMP6: u8 = 3;
    let Some((head, offender)) = data.split_at_checked(LEN) else { return };
    let Some(errno) = head.first_chunk() else { return };
    into.errno = i32::from_ne_bytes(*errno);
    into.origin = match head[4] {
        ORIGIN_LOCAL => Origin::Local,
        ORIGIN_ICMP | ORIGIN_ICMP6 => Origin::Icmp,
        _ => Origin::Other,
    };
    (into.icmp_type, into.icmp_code) = (head[5], head[6]);
    into.from = address(offender).map(|from| from.ip());
}

/// Passes each control message (cmsg(3)) to `each`: its level, its type and its data.
fn each_message(bytes: &[u8], mut each: impl FnMut(i32, i32, &[u8])) {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = WORD + 8;
    let mut rest = bytes;
    while let Some((len, level_and_kind)) = rest.split_first_chunk::<WORD>() {
        let len = usize::from_ne_bytes(*len);
        let (Some(level), Some(data)) = (level_and_kind.first_chunk(), rest.get(HEADER.min(len)..len)) else { return };
        let Some(kind) = level_and_kind.get(4..).and_then(<[u8]>::first_chunk) else { return };
        each(i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data);
        rest = rest.get(len.max(HEADER).next_multiple_of(WORD)..).unwrap_or(&[]);
    }
}

/// Reads a `struct sockaddr_in` or `struct sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip: IpAddr = match family {
        libc::AF_INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_refused_datagram_is_reported_with_its_destination_and_the_host_that_refuses() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            // A host may have no IPv6.
            let socket = match UdpSocket::bind(local) {
                Ok(socket) => socket,
                Err(error) => {
                    assert!(local.starts_with('['), "{error}");
                    continue;
                }
            };
            switch(socket.as_fd(), local.starts_with('1'), true).unwrap();
            assert_eq!(receive(socket.as_fd()).unwrap(), None);
            let closed = UdpSocket::bind(local).unwrap().local_addr().unwrap();
            socket.send_to(b"x", closed).unwrap();
            let begin = Instant::now();
            let found = loop {
                if let Some(found) = receive(socket.as_fd()).unwrap() {
                    break found;
                }
                assert!(begin.elapsed() < Duration::from_secs(10), "no error came");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!((found.errno, found.origin), (libc::ECONNREFUSED, Origin::Icmp));
            assert_eq!((found.to, found.from), (Some(closed), Some(closed.ip())));
        }
    }

    #[test]
    fn messages_that_are_cut_off_are_not_read() {
        let mut bytes = Vec::new();
        for (kind, data) in [(7_i32, &b"abc"[..]), (9, b"")] {
            bytes.extend((size_of::<usize>() + 8 + data.len()).to_ne_bytes());
            bytes.extend(3_i32.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        }
        let read = |bytes: &[u8]| {
            let mut found = Vec::new();
            each_message(bytes, |level, kind, data| found.push((level, kind, data.len())));
            found
        };
        assert_eq!(read(&bytes), [(3, 7, 3), (3, 9, 0)]);
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).len() < 2, "{len}");
        }
        assert_eq!(address(&[0; 3]), None);
    }
}
