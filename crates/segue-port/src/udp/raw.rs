//! Raw sockets as a datagram port: tunnels directly over IP.
//!
//! The kernel writes the outer IP header and its fields are reported as metadata, as for UDP; the port carries what
//! follows it. There is one sending slot for each protocol number, and no offload: every packet is a message of its
//! own, several of which go by one system call. Opening a raw socket needs CAP_NET_RAW.
//!
//! A raw socket receives every packet of its protocol to its address, also those of other tunnels; the receiver must
//! tell them apart by peer and key. It also sees the kernel's changes to a packet without being told: GRO merges
//! packets of IPv4 and IPv6 in IP on the way in, and a sender on the same host leaves checksums unfinished
//! ([`Config::unfinished`](segue::encap::Config::unfinished)).

use std::io;
use std::mem::swap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::gso::Limits;

use super::filter;
use super::receiver::{Overflow, Receiver};
use super::schedule::Schedule;
use super::sockets::{
    Slot, Sockets, all_peers, bind, call, check_adopted, missing, mtu_sockets, prepare_sending, set_buffer, slot,
};
use super::{Carries, Checksum, OpenError, Source, UdpConfig, UdpOffloads, UdpPort};
use crate::batch::{RxBatch, TxBatch};
use crate::messages::SendScratch;
use crate::port::{Counters, OffloadState, Path, Polled, Port, Sent};
use crate::sys::{self, MAX_IOV};

/// The configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawConfig {
    /// The local address, which must be a specific one.
    pub local: IpAddr,
    /// The peer that packets are sent to, of the local address's family.
    pub peer: IpAddr,
    /// Index of the link for link-local addresses (RFC 4007); 0 where there are none.
    pub scope_id: u32,
    /// IP protocol numbers of the slots, one or two, in this order.
    pub protocols: &'static [u8],
    /// DSCP and ECN of packets that do not specify their own.
    pub tos: u8,
    /// Time to live or hop limit of packets that do not specify their own.
    pub ttl: u8,
    /// Whether several packets are moved by one system call, in each direction.
    pub batches: bool,
    /// Size in bytes of each socket's buffers. Linux doubles the number, and limits it without CAP_NET_ADMIN.
    pub buffer_len: u32,
}

/// A datagram port over raw sockets.
#[derive(Debug)]
pub struct RawPort {
    port: UdpPort,
    /// Protocol numbers, at least one; each has a socket.
    protocols: &'static [u8],
    /// The second receiving socket, with its count of lost packets.
    other: Option<(OwnedFd, Overflow)>,
    /// An epoll descriptor that is readable while one of both sockets is readable.
    either: Option<OwnedFd>,
}

impl RawPort {
    /// Opens the raw IP sockets of the port.
    ///
    /// # Errors
    /// See [`OpenError`]; without CAP_NET_RAW the error of `socket`.
    pub fn open(config: &RawConfig) -> Result<RawPort, OpenError> {
        RawPort::open_to(config, &[])
    }

    /// Opens a port with several peers, numbered as by [`UdpPort::open_to`].
    ///
    /// # Errors
    /// See [`RawPort::open`].
    pub fn open_to(config: &RawConfig, others: &[IpAddr]) -> Result<RawPort, OpenError> {
        let as_udp = as_udp(config);
        let receive =
            config.protocols.iter().map(|&protocol| receiving_socket(&as_udp, protocol)).collect::<Result<_, _>>()?;
        RawPort::adopt(config, others, Sockets { receive, send: Vec::new() })
    }

    /// Creates a port from the receiving sockets of another port, of this or another process, with the same local
    /// address and protocols.
    ///
    /// # Errors
    /// See [`RawPort::open`]; [`OpenError::Call`] if a socket is missing, is of another protocol or address, or is
    /// connected.
    pub fn adopt(config: &RawConfig, others: &[IpAddr], sockets: Sockets) -> Result<RawPort, OpenError> {
        let as_udp = as_udp(config);
        let others: Vec<SocketAddr> = others.iter().map(|peer| as_udp.at(*peer, 0)).collect();
        let peers = all_peers(&as_udp, &others)?;
        if sockets.receive.len() != config.protocols.len() {
            return Err(missing());
        }
        for (fd, &protocol) in sockets.receive.iter().zip(config.protocols) {
            check_adopted(&as_udp, fd, protocol, true)?;
        }
        let listen = as_udp.at(config.local, 0);
        let slots = config.protocols.iter().map(|&protocol| sending_socket(&as_udp, protocol, others.is_empty()));
        let slots = slots.collect::<Result<_, _>>()?;
        let mut receiving = sockets.receive.into_iter();
        let rx = receiving.next().ok_or_else(missing)?;
        let other = receiving.next();
        let either = match &other {
            Some(other) => Some(sys::either([rx.as_fd(), other.as_fd()]).map_err(call("epoll_ctl"))?),
            None => None,
        };
        let limits =
            Limits { max_bytes: 65_535, max_segs: 1, max_udp_segs: 1, max_pieces: MAX_IOV - 1, ..Limits::NONE };
        let receiver = Receiver::new(&rx);
        let port = UdpPort {
            config: as_udp,
            mtu_sockets: mtu_sockets(&as_udp, &peers),
            mtu_probe: None,
            peers: peers.into(),
            rx,
            strips: config.local.is_ipv4(),
            listen,
            slots,
            blocked_slot: 0,
            limits,
            max_burst: usize::MAX,
            segment: OffloadState::Off,
            gro: OffloadState::Off,
            retry: None,
            max_segments: 1,
            counters: Counters::default(),
            scratch: SendScratch::default(),
            schedule: Schedule::default(),
            receiver,
            #[cfg(test)]
            inject: None,
        };
        Ok(RawPort {
            port,
            protocols: config.protocols,
            other: other.map(|fd| {
                let overflow = Overflow::of(&fd);
                (fd, overflow)
            }),
            either,
        })
    }

    /// Returns duplicates of the sockets that send, as [`UdpPort::senders`].
    ///
    /// # Errors
    /// The error of `dup` if this process may open no more files.
    pub fn senders(&self) -> io::Result<Vec<OwnedFd>> {
        self.port.senders()
    }

    /// Returns duplicates of the port's receiving sockets, for another process.
    ///
    /// # Errors
    /// The error of `dup` if this process may open no more files.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let all = std::iter::once(&self.port.rx).chain(self.other.as_ref().map(|(fd, _)| fd));
        Ok(Sockets { receive: all.map(OwnedFd::try_clone).collect::<io::Result<_>>()?, send: Vec::new() })
    }
}

/// Returns the configuration shared by raw and UDP sockets.
fn as_udp(config: &RawConfig) -> UdpConfig {
    let peer = match config.peer {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, config.scope_id).into(),
        IpAddr::V4(_) => SocketAddr::new(config.peer, 0),
    };
    UdpConfig {
        source: Source::Auto,
        tos: config.tos,
        ttl: config.ttl,
        checksum: Checksum::Full,
        carries: Carries::Other,
        offloads: if config.batches { UdpOffloads::All } else { UdpOffloads::None },
        buffer_len: config.buffer_len,
        ..UdpConfig::new(config.local, 0, peer)
    }
}

impl Port for RawPort {
    fn limits(&self) -> &Limits {
        &self.port.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_ref().unwrap_or(&self.port.rx).as_fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.port.blocked_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let first = self.port.receive(into, budget)?;
        let Some((fd, overflow)) = &mut self.other else { return Ok(first) };
        self.port.swap_receiving(fd, overflow);
        let second = self.port.receive(into, budget);
        self.port.swap_receiving(fd, overflow);
        Ok(match (first, second?) {
            (Polled::Starved, _) | (_, Polled::Starved) => Polled::Starved,
            (Polled::More, _) | (_, Polled::More) => Polled::More,
            (Polled::Idle, Polled::Idle) => Polled::Idle,
        })
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        self.port.transmit(batch)
    }

    fn counters(&self) -> &Counters {
        &self.port.counters
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        // The kernel has processed the errors already; see `sending_socket`.
        self.port.slots.iter().filter(|slot| slot.names_peer).for_each(|slot| sys::drop_errors(slot.fd.as_fd()));
        self.port.path_mtu(to)
    }

    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        let protocol = self.protocols.get(usize::from(slot) % self.protocols.len())?;
        Some(Path { protocol: *protocol, ..self.port.path(slot, to)? })
    }
}

impl UdpPort {
    /// Exchanges the socket that receives.
    fn swap_receiving(&mut self, fd: &mut OwnedFd, overflow: &mut Overflow) {
        swap(&mut self.rx, fd);
        swap(&mut self.receiver.overflow, overflow);
    }
}

fn receiving_socket(config: &UdpConfig, protocol: u8) -> Result<OwnedFd, OpenError> {
    let fd = sys::raw_socket(config.local, protocol).map_err(call("socket"))?;
    let (level, name, text) = if config.local.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, "IP_RECVTOS")
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS")
    };
    sys::set_option(fd.as_fd(), level, name, 1).map_err(call(text))?;
    set_buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.buffer_len);
    bind(&fd, config.at(config.local, 0))?;
    Ok(fd)
}

fn sending_socket(config: &UdpConfig, protocol: u8, connected: bool) -> Result<Slot, OpenError> {
    let fd = sys::raw_socket(config.local, protocol).map_err(call("socket"))?;
    // Without the filter it would receive a copy of everything that the other socket receives.
    sys::attach_filter(fd.as_fd(), &filter::NOTHING).map_err(call("SO_ATTACH_FILTER"))?;
    prepare_sending(config, &fd)?;
    let source = config.at(config.local, 0);
    bind(&fd, source)?;
    if connected {
        sys::connect(fd.as_fd(), config.peer).map_err(|error| OpenError::NoRoute(config.peer, error))?;
    } else if config.local.is_ipv6() {
        // Without this option Linux learns no path MTU from packets of an unconnected raw socket over IPv6 (rawv6_err).
        sys::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1).map_err(call("IPV6_RECVERR"))?;
    }
    slot(config, fd, source, !connected)
}
