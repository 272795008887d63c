//! The configuration of a port over UDP sockets, and the errors of opening one.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Number of sockets that [`Source::Auto`] opens.
pub const AUTO_SLOTS: u16 = 16;

/// The configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The local address; the unspecified address means any, of the peer's family.
    pub local: IpAddr,
    /// The UDP port to receive on; 0 selects a free one.
    pub port: u16,
    /// The peer that datagrams are sent to. The scope id of a link-local one (RFC 4007) is also that of `local` and of
    /// other peers that are link-local.
    pub peer: SocketAddr,
    /// The source ports of sent datagrams.
    pub source: Source,
    /// DSCP and ECN of packets that do not specify their own. A packet with this value costs nothing extra.
    pub tos: u8,
    /// Time to live or hop limit of packets that do not specify their own. A packet with this value costs nothing
    /// extra.
    pub ttl: u8,
    /// Outer UDP checksums of sent datagrams.
    pub checksum: Checksum,
    /// Whether IPv6 datagrams without checksum are accepted (RFC 6935, section 5). IPv4 ones always are.
    pub zero_checksum_v6: bool,
    /// The protocol that the datagrams carry.
    pub carries: Carries,
    /// Offloads that the socket is to use.
    pub offloads: UdpOffloads,
    /// Whether received bursts report their time to live.
    pub want_ttl: bool,
    /// Size in bytes of each socket's buffers. Linux doubles the number, and limits it without CAP_NET_ADMIN.
    pub buffer_len: u32,
}

impl UdpConfig {
    /// Returns a socket address, with the peer's scope id where it is link-local.
    pub(super) fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match (ip, self.peer) {
            (IpAddr::V6(ip), SocketAddr::V6(peer)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, peer.scope_id()).into()
            }
            _ => SocketAddr::new(ip, port),
        }
    }

    /// Returns the default configuration: automatic source ports, checksums, all offloads, TOS 0, TTL 64, 4 MiB
    /// buffers, GUE.
    pub fn new(local: IpAddr, port: u16, peer: SocketAddr) -> UdpConfig {
        UdpConfig {
            local,
            port,
            peer,
            source: Source::Auto,
            tos: 0,
            ttl: 64,
            checksum: Checksum::Full,
            zero_checksum_v6: false,
            carries: Carries::Gue,
            offloads: UdpOffloads::All,
            want_ttl: false,
            buffer_len: 4 << 20,
        }
    }
}

/// Choice of the source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel chooses [`AUTO_SLOTS`] ports.
    Auto,
    /// At most [`AUTO_SLOTS`] ports of a range (first and last), evenly spread; ports in use are skipped.
    Range(u16, u16),
    /// One fixed port, which may be the receiving one.
    Fixed(u16),
}

/// The outer UDP checksums of sent datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksum {
    /// The kernel or its device computes UDP checksums.
    Full,
    /// UDP checksums are zero, which means absent. The kernel then takes no runs, so that each datagram is a message of
    /// its own.
    Zero,
}

/// The protocol that the datagrams carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carries {
    /// GUE: datagrams with the remote checksum option but without an outer checksum are filtered out and counted.
    Gue,
    /// VXLAN: datagrams with the remote checksum option but without an outer checksum are filtered out and counted.
    Vxlan,
    /// A protocol without a remote checksum option.
    Other,
}

/// The offloads that a port may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UdpOffloads {
    /// All offloads that the kernel has.
    All,
    /// UDP_SEGMENT only: every datagram is received by itself.
    SendOnly,
    /// UDP_GRO only: every datagram is sent by itself.
    ReceiveOnly,
    /// No offloads: one datagram per system call, in both directions.
    None,
}

impl UdpOffloads {
    pub(super) fn sends(self) -> bool {
        matches!(self, UdpOffloads::All | UdpOffloads::SendOnly)
    }

    pub(super) fn receives(self) -> bool {
        matches!(self, UdpOffloads::All | UdpOffloads::ReceiveOnly)
    }
}

/// The reason why a port could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The receiving address is already in use.
    InUse(SocketAddr),
    /// The address is not one of this host.
    NotLocal(SocketAddr),
    /// Local address and peer are of different address families.
    Families,
    /// The host has no route to the peer.
    NoRoute(SocketAddr, io::Error),
    /// Another system call failed.
    Call(&'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::InUse(address) => write!(f, "UDP port {} is already in use on {}", address.port(), address.ip()),
            OpenError::NotLocal(address) => write!(f, "{} is not an address of this host", address.ip()),
            OpenError::Families => write!(f, "local and remote address are of different families"),
            OpenError::NoRoute(peer, error) => write!(f, "no route to {}: {error}", peer.ip()),
            OpenError::Call(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::NoRoute(_, error) | OpenError::Call(_, error) => Some(error),
            OpenError::InUse(_) | OpenError::NotLocal(_) | OpenError::Families => None,
        }
    }
}
