//! How a port over UDP sockets is opened, and why it could not be.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Sockets that [`Source::Auto`] opens.
pub const AUTO_SLOTS: u16 = 16;

/// How to open a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The local address; unspecified means any, of the peer's family.
    pub local: IpAddr,
    /// The port to receive on; 0 takes a free one.
    pub port: u16,
    /// Where everything is sent to.
    pub peer: SocketAddr,
    /// Where it is sent from.
    pub source: Source,
    /// DSCP and ECN of packets that do not say otherwise: the value that costs nothing extra.
    pub tos: u8,
    /// Time to live or hop limit that costs nothing extra.
    pub ttl: u8,
    /// Outer UDP checksums on what is sent.
    pub checksum: Checksum,
    /// Whether IPv6 datagrams without checksum are received (RFC 6935, section 5). IPv4 ones always are.
    pub zero_checksum_v6: bool,
    /// What the datagrams carry.
    pub carries: Carries,
    /// Which offloads to use.
    pub offloads: UdpOffloads,
    /// Whether bursts say the time to live that they came with.
    pub want_ttl: bool,
    /// Bytes of each socket's buffers; Linux doubles the number, and cuts it without CAP_NET_ADMIN.
    pub buffer_len: u32,
}

impl UdpConfig {
    /// The usual port: automatic source ports, checksums, all offloads, TOS 0, TTL 64, 4 MiB buffers, GUE.
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

/// Source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// [`AUTO_SLOTS`] ports that the kernel chooses.
    Auto,
    /// At most [`AUTO_SLOTS`] ports from the first to the last of these, spread over them; those in use are left out.
    Range(u16, u16),
    /// One port. It may be the one received on.
    Fixed(u16),
}

/// Outer UDP checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Computed by the kernel or its device.
    Full,
    /// Zero: none. The kernel then takes no runs, so every datagram is a message of its own.
    Zero,
}

/// What the datagrams carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// GUE: datagrams with the remote checksum option and without an outer checksum are kept out and counted.
    Gue,
    /// VXLAN: the same.
    Vxlan,
    /// Something without such an option.
    Other,
}

/// Which offloads a port is to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpOffloads {
    /// All that the kernel has.
    All,
    /// Only for what is sent: every received datagram comes by itself.
    SendOnly,
    /// Only for what is received: every datagram is sent by itself.
    ReceiveOnly,
    /// None: one datagram a system call, both ways.
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

/// Why a port could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The receiving address is in use.
    InUse(SocketAddr),
    /// The address is not one of this host.
    NotLocal(SocketAddr),
    /// Local address and peer are of different families.
    Families,
    /// There is no route to the peer.
    NoRoute(SocketAddr, io::Error),
    /// Some other call failed.
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

impl std::error::Error for OpenError {}
