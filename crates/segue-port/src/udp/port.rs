//! The implementation of the port over UDP sockets.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use segue::gso::Limits;
use segue::wire::protocol;

use super::config::{AUTO_SLOTS, Checksum, OpenError, Source, UdpConfig};
use super::probe::{SEGMENTS, probe_segments};
use super::receiver::Receiver;
#[cfg(test)]
use super::schedule::Attempt;
use super::schedule::Schedule;
use super::sockets::{
    Slot, Sockets, all_peers, check_adopted, ignore_path_mtu, missing, mtu_address, mtu_sockets, name_of,
    prepare_sending, receiving_socket, sending_socket, shared_socket, sockets_between,
};
use crate::batch::{RxBatch, TxBatch};
use crate::messages::SendScratch;
use crate::port::{Counters, Extra, OffloadState, Path, Polled, Port, Sent};
use crate::sys::{self, MAX_IOV};

/// Smallest path MTU that Linux accepts from an ICMP error over IPv4 by default (`net.ipv4.route.min_pmtu`), and the
/// smallest of any path over IPv6.
const LEAST_LEARNED: [usize; 2] = [552, 1280];

/// Key of the number ([`Port::extras`]) that is 1 while UDP_SEGMENT is in use.
pub const UDP_SEGMENT_ON: &str = "udp_segment";

/// A datagram port over UDP sockets.
///
/// ```no_run
/// use segue_port::udp::{UdpConfig, UdpPort};
/// use segue_port::{Polled, Port, RxBatch};
///
/// let config = UdpConfig::new("198.18.0.1".parse()?, 7000, "198.18.0.2:7000".parse()?);
/// let mut port = UdpPort::open(config)?;
/// let mut batch = RxBatch::new(64);
/// while port.receive(&mut batch, 64)? != Polled::Idle {
///     while let Some(burst) = batch.bursts.pop_front() {
///         drop(burst); // datagrams of one sender, joined by the kernel
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct UdpPort {
    pub(super) config: UdpConfig,
    /// All peers, the configuration's first.
    pub(super) peers: Arc<[SocketAddr]>,
    /// Connected sockets by peer address, which send no data and serve queries of the path MTU.
    pub(super) mtu_sockets: HashMap<IpAddr, OwnedFd>,
    /// A path MTU socket that is connected to any further peer on request.
    pub(super) mtu_probe: Option<OwnedFd>,
    pub(super) rx: OwnedFd,
    /// Whether received packets begin with an IPv4 header that must be removed, as on a raw port.
    pub(super) strips: bool,
    pub(super) listen: SocketAddr,
    pub(super) slots: Vec<Slot>,
    pub(super) blocked_slot: usize,
    pub(super) limits: Limits,
    pub(super) segment: OffloadState,
    pub(super) gro: OffloadState,
    /// Time at which UDP_SEGMENT is retried after a refusal.
    pub(super) retry: Option<Instant>,
    pub(super) max_segments: usize,
    /// Largest number of bytes of one message that the kernel splits into datagrams.
    pub(super) max_burst: usize,
    pub(super) counters: Counters,
    pub(super) scratch: SendScratch,
    pub(super) schedule: Schedule,
    pub(super) receiver: Receiver,
    #[cfg(test)]
    pub(super) inject: Option<fn(Attempt) -> Option<i32>>,
}

impl UdpPort {
    /// Opens the UDP sockets of the port.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: UdpConfig) -> Result<UdpPort, OpenError> {
        UdpPort::open_to(config, &[])
    }

    /// Opens a port with several peers: a packet's [`Outer::to`](segue::packet::Outer::to) is 0 for the configuration's
    /// peer, 1 for the first of `others`, and so on. Where the configuration's peer is the unspecified address, the
    /// peers are those of [`Port::set_peers`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_to(config: UdpConfig, others: &[SocketAddr]) -> Result<UdpPort, OpenError> {
        let peers = all_peers(&config, others)?;
        let is_single = others.is_empty() && !config.peer.ip().is_unspecified();
        let rx = receiving_socket(&config, false)?;
        let listen = name_of(&rx)?;
        let slots = match config.source {
            Source::Auto => {
                (0..AUTO_SLOTS).map(|_| sending_socket(&config, 0, is_single)).collect::<Result<Vec<_>, _>>()?
            }
            Source::Range(first, last) => sockets_between(&config, first..=last, is_single)?,
            Source::Fixed(port) if port == listen.port() => vec![shared_socket(&config, &rx, listen)?],
            Source::Fixed(port) => vec![sending_socket(&config, port, is_single)?],
        };
        UdpPort::over(config, peers, rx, listen, slots)
    }

    /// Creates a port from the sockets of another port, of this or another process. The other port's configuration may
    /// differ in peers, TOS and TTL, but in no other property of the sockets.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Call`] if a socket is missing, is no UDP socket of this address and port, or is
    /// one that receives and is connected.
    pub fn adopt(config: UdpConfig, others: &[SocketAddr], sockets: Sockets) -> Result<UdpPort, OpenError> {
        let peers = all_peers(&config, others)?;
        let rx = sockets.receive.into_iter().next().ok_or_else(missing)?;
        check_adopted(&config, &rx, protocol::UDP, true)?;
        let listen = name_of(&rx)?;
        let slot = |fd: OwnedFd| {
            check_adopted(&config, &fd, protocol::UDP, false)?;
            let source = name_of(&fd)?;
            prepare_sending(&config, &fd)?;
            // A socket that also receives must accept datagrams of senders other than the peer.
            let names_peer = !others.is_empty() || config.peer.ip().is_unspecified() || source == listen;
            if !names_peer {
                sys::connect(fd.as_fd(), config.peer).map_err(|error| OpenError::NoRoute(config.peer, error))?;
            }
            Ok(Slot { fd, source, names_peer, df: None })
        };
        let slots: Vec<Slot> = sockets.send.into_iter().map(slot).collect::<Result<_, _>>()?;
        if slots.is_empty() {
            return Err(missing());
        }
        UdpPort::over(config, peers, rx, listen, slots)
    }

    pub(super) fn over(
        config: UdpConfig,
        peers: Vec<SocketAddr>,
        rx: OwnedFd,
        listen: SocketAddr,
        slots: Vec<Slot>,
    ) -> Result<UdpPort, OpenError> {
        if slots.iter().all(|slot| slot.source != listen) {
            ignore_path_mtu(rx.as_fd(), config.local.is_ipv4())?;
        }
        let gro = match config.offloads.receives() {
            false => OffloadState::Off,
            true => match sys::set_option(rx.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1) {
                Ok(()) => OffloadState::On,
                Err(error) => OffloadState::Refused(error.raw_os_error().unwrap_or(libc::EINVAL)),
            },
        };
        let probed = probe_segments();
        let segment = match (config.offloads.sends(), config.checksum, probed) {
            (false, ..) | (_, Checksum::Zero, _) => OffloadState::Off,
            (_, _, Ok(_)) => OffloadState::On,
            (_, _, Err(errno)) => OffloadState::Refused(errno),
        };
        let limits = Limits {
            csum: false,
            outer_csum: true,
            tso4: false,
            tso6: false,
            uso: false,
            max_bytes: 65_535,
            max_segs: 1,
            max_udp_segs: 1,
            max_pieces: MAX_IOV - 1,
            ..Limits::NONE
        };
        let mtu_sockets = mtu_sockets(&config, &peers);
        let mtu_probe = config.peer.ip().is_unspecified().then(|| sending_socket(&config, 0, false).ok()).flatten();
        Ok(UdpPort {
            config,
            peers: peers.into(),
            mtu_sockets,
            mtu_probe: mtu_probe.map(|slot| slot.fd),
            receiver: Receiver::new(&rx),
            rx,
            strips: false,
            listen,
            slots,
            blocked_slot: 0,
            limits,
            segment,
            gro,
            retry: None,
            max_segments: probed.unwrap_or(SEGMENTS),
            max_burst: usize::MAX,
            counters: Counters::default(),
            scratch: SendScratch::default(),
            schedule: Schedule::default(),
            #[cfg(test)]
            inject: None,
        })
    }

    /// Returns duplicates of the port's sockets, for another process.
    ///
    /// # Errors
    /// The error of `dup` if this process may open no more files.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let send = self.slots.iter().map(|slot| slot.fd.try_clone()).collect::<io::Result<_>>()?;
        Ok(Sockets { receive: vec![self.rx.try_clone()?], send })
    }

    /// Returns duplicates of the sockets that send, to read their error queues.
    ///
    /// # Errors
    /// The error of `dup` if this process may open no more files.
    pub fn senders(&self) -> io::Result<Vec<OwnedFd>> {
        self.slots.iter().map(|slot| slot.fd.try_clone()).collect()
    }

    /// Returns the address that the port receives on.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the number of slots; a packet's slot is taken modulo this.
    pub fn slots(&self) -> u16 {
        // At most AUTO_SLOTS.
        self.slots.len() as u16
    }
}

impl Port for UdpPort {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        vec![("udp_segment", self.segment), ("udp_gro", self.gro)]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.rx.as_fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.slots[self.blocked_slot].fd.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        self.receive_bursts(into, budget)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        self.transmit_runs(batch)
    }

    fn limit_burst(&mut self, bytes: usize) {
        self.max_burst = bytes;
    }

    fn set_peers(&mut self, peers: &Arc<[SocketAddr]>) {
        self.peers = Arc::clone(peers);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        let (level, name, least) = match self.config.peer.is_ipv4() {
            true => (libc::IPPROTO_IP, libc::IP_MTU, LEAST_LEARNED[0]),
            false => (libc::IPPROTO_IPV6, libc::IPV6_MTU, LEAST_LEARNED[1]),
        };
        let query = |fd: BorrowedFd<'_>| usize::try_from(sys::option(fd, level, name).ok()?).ok();
        let peer = self.peers.get(usize::from(to))?.ip();
        let asked = self.mtu_sockets.get(&peer).or(self.mtu_probe.as_ref()).and_then(|socket| {
            // A socket that sends nothing does not notice a route change, but looks the route up when it connects.
            sys::connect(socket.as_fd(), mtu_address(&self.config, peer)).ok()?;
            query(socket.as_fd())
        });
        // With several paths each socket learns the MTU of its own; one that is not connected does not report it. Until
        // it sends its next packet, it may still hold a route that is gone, with a smaller MTU or that of no device.
        let sending = self.slots.iter().filter(|slot| !slot.names_peer).filter_map(|slot| {
            let mtu = query(slot.fd.as_fd())?;
            if asked.is_none_or(|asked| mtu >= asked) {
                return Some(mtu);
            }
            sys::connect(slot.fd.as_fd(), self.config.peer).ok()?;
            query(slot.fd.as_fd())
        });
        sending.filter(|mtu| *mtu >= least).chain(asked).min()
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        put(Extra::Number, UDP_SEGMENT_ON, u64::from(self.segment == OffloadState::On));
    }

    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        let source = self.slots[usize::from(slot) % self.slots.len()].source;
        Some(Path { source, peer: *self.peers.get(usize::from(to))?, listen: self.listen, protocol: protocol::UDP })
    }
}
