//! UDP sockets as a datagram port: runs of datagrams leave in one UDP_SEGMENT send and arrive in one UDP_GRO receive.
//!
//! One socket receives. What is sent leaves through *slots*: 16 sockets on ephemeral ports of their own, so that a
//! tunnel's flows spread over source ports, or one with a fixed port. A packet says in its
//! [`Outer`](segue::packet::Outer) which slot it takes.

mod filter;
mod raw;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

pub use raw::{RawConfig, RawPort};
use segue::gso::Limits;
use segue::wire::protocol;

use crate::batch::{RxBatch, TxBatch};
use crate::messages::SendScratch;
use crate::port::{Counters, OffloadState, Path, Polled, Port, Sent};
use crate::sys::{self, MAX_IOV};

/// Sockets that [`Source::Auto`] opens.
pub const AUTO_SLOTS: u16 = 16;
/// Segments of one UDP_SEGMENT send that every kernel with the option takes.
const SEGMENTS: usize = 64;
/// Segments that Linux 6.9 and later take.
const MORE_SEGMENTS: usize = 128;

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
    fn sends(self) -> bool {
        matches!(self, UdpOffloads::All | UdpOffloads::SendOnly)
    }

    fn receives(self) -> bool {
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

/// The smallest MTU of a way that Linux takes from an ICMP error unless it is told otherwise (`net.ipv4.route.min_pmtu`), and of any
/// way over IPv6.
const LEAST_LEARNED: [usize; 2] = [552, 1280];

/// One sending socket.
#[derive(Debug)]
struct Slot {
    fd: OwnedFd,
    source: SocketAddr,
    /// Not connected: every message names the peer that it goes to.
    names_peer: bool,
    /// What the socket's path MTU discovery is set to, where that is known.
    df: Option<bool>,
}

/// The sockets of a port, for another process that goes on with them: what waits in them is not lost, and nobody else can
/// have their ports in between. Both processes may send at the same time.
#[derive(Debug, Default)]
pub struct Sockets {
    /// What is received waits in these, at least one.
    pub receive: Vec<OwnedFd>,
    /// What is sent leaves through these; a port over raw sockets makes its own anew.
    pub send: Vec<OwnedFd>,
}

/// A datagram port over UDP sockets.
#[derive(Debug)]
pub struct UdpPort {
    config: UdpConfig,
    /// Every peer, the configuration's first.
    peers: Vec<SocketAddr>,
    /// One for each peer's address that is connected and sends nothing: it is asked for the MTU of the way.
    askers: HashMap<IpAddr, OwnedFd>,
    rx: OwnedFd,
    /// Of a raw port: whether what it receives begins with an IPv4 header.
    strips: bool,
    listen: SocketAddr,
    slots: Vec<Slot>,
    blocked_slot: usize,
    limits: Limits,
    segment: OffloadState,
    gro: OffloadState,
    max_segments: usize,
    /// Most bytes of one message that stands for several datagrams.
    max_burst: usize,
    counters: Counters,
    scratch: SendScratch,
    plan: send::Plan,
    receiver: receive::Receiver,
    #[cfg(test)]
    inject: Option<fn(send::Attempt) -> Option<i32>>,
}

impl UdpPort {
    /// Opens the sockets.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: UdpConfig) -> Result<UdpPort, OpenError> {
        UdpPort::open_to(config, &[])
    }

    /// As [`UdpPort::open`], with more peers: a packet's [`Outer::to`](segue::packet::Outer::to) is 0 for that of the
    /// configuration, 1 for the first of these, and so on.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_to(config: UdpConfig, others: &[SocketAddr]) -> Result<UdpPort, OpenError> {
        let peers = all_peers(&config, others)?;
        let is_single = others.is_empty();
        let rx = receiving_socket(&config)?;
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

    /// As [`UdpPort::open_to`], over the sockets of a port of this or another process, whose configuration may have had other
    /// peers, TOS and TTL, but nothing else that is of the socket's.
    ///
    /// # Errors
    /// As there; [`OpenError::Call`] where a socket is missing.
    pub fn adopt(config: UdpConfig, others: &[SocketAddr], sockets: Sockets) -> Result<UdpPort, OpenError> {
        let peers = all_peers(&config, others)?;
        let rx = sockets.receive.into_iter().next().ok_or_else(missing)?;
        let listen = name_of(&rx)?;
        let slot = |fd: OwnedFd| {
            let source = name_of(&fd)?;
            prepare_sending(&config, &fd)?;
            // The one that also receives has to hear others than the peer.
            let names_peer = !others.is_empty() || source == listen;
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

    fn over(
        config: UdpConfig,
        peers: Vec<SocketAddr>,
        rx: OwnedFd,
        listen: SocketAddr,
        slots: Vec<Slot>,
    ) -> Result<UdpPort, OpenError> {
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
        let askers = askers(&config, &peers);
        Ok(UdpPort {
            config,
            peers,
            askers,
            rx,
            strips: false,
            listen,
            slots,
            blocked_slot: 0,
            limits,
            segment,
            gro,
            max_segments: probed.unwrap_or(SEGMENTS),
            max_burst: usize::MAX,
            counters: Counters::default(),
            scratch: SendScratch::default(),
            plan: send::Plan::default(),
            receiver: receive::Receiver::default(),
            #[cfg(test)]
            inject: None,
        })
    }

    /// Its sockets, for another process.
    ///
    /// # Errors
    /// Where this process may open no more files.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let send = self.slots.iter().map(|slot| slot.fd.try_clone()).collect::<io::Result<_>>()?;
        Ok(Sockets { receive: vec![self.rx.try_clone()?], send })
    }

    /// Where the port receives.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Number of slots; a packet's slot is taken modulo this.
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

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        let (level, name, least) = match self.config.peer.is_ipv4() {
            true => (libc::IPPROTO_IP, libc::IP_MTU, LEAST_LEARNED[0]),
            false => (libc::IPPROTO_IPV6, libc::IPV6_MTU, LEAST_LEARNED[1]),
        };
        let ask = |fd: BorrowedFd<'_>| usize::try_from(sys::option(fd, level, name).ok()?).ok();
        let peer = self.peers.get(usize::from(to))?.ip();
        let asked = self.askers.get(&peer).and_then(|asker| {
            // A socket that sends nothing does not notice that the way has become another, but looks it up to connect.
            sys::connect(asker.as_fd(), asked_at(peer)).ok()?;
            ask(asker.as_fd())
        });
        // Where several ways lead there, each socket learns by what itself has sent; one that is not connected does not say.
        // Until it sends the next packet it may still have a route that is gone, with the MTU of no device.
        let sending = self.slots.iter().filter(|slot| !slot.names_peer);
        sending.filter_map(|slot| ask(slot.fd.as_fd())).filter(|mtu| *mtu >= least).chain(asked).min()
    }

    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        let source = self.slots[usize::from(slot) % self.slots.len()].source;
        Some(Path { source, peer: *self.peers.get(usize::from(to))?, listen: self.listen, protocol: protocol::UDP })
    }
}

/// The configuration's and the others, all of the family of the local address.
fn all_peers(config: &UdpConfig, others: &[SocketAddr]) -> Result<Vec<SocketAddr>, OpenError> {
    let peers: Vec<SocketAddr> = [&[config.peer], others].concat();
    if peers.iter().any(|peer| config.local.is_ipv4() != peer.is_ipv4()) {
        return Err(OpenError::Families);
    }
    Ok(peers)
}

fn missing() -> OpenError {
    call("socket")(io::Error::from_raw_os_error(libc::EBADF))
}

fn call(name: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |error| OpenError::Call(name, error)
}

fn name_of(fd: &OwnedFd) -> Result<SocketAddr, OpenError> {
    let fd = fd.try_clone().map_err(call("dup"))?;
    UdpSocket::from(fd).local_addr().map_err(call("getsockname"))
}

fn bind(fd: &OwnedFd, address: SocketAddr) -> Result<(), OpenError> {
    sys::bind(fd.as_fd(), address).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::InUse(address),
        Some(libc::EADDRNOTAVAIL) => OpenError::NotLocal(address),
        _ => OpenError::Call("bind", error),
    })
}

/// Sets a buffer's size past the system's limit where that is allowed, else up to it.
fn set_buffer(fd: &OwnedFd, forced: i32, plain: i32, len: u32) {
    let len = i32::try_from(len).unwrap_or(i32::MAX);
    if sys::set_option(fd.as_fd(), libc::SOL_SOCKET, forced, len).is_err() {
        // Smaller buffers lose packets earlier, which the overflow count shows; they are no reason to refuse work.
        let _ = sys::set_option(fd.as_fd(), libc::SOL_SOCKET, plain, len);
    }
}

/// Options that a socket needs for sending.
fn prepare_sending(config: &UdpConfig, fd: &OwnedFd) -> Result<(), OpenError> {
    let v4 = config.peer.is_ipv4();
    let (tos, ttl) = (i32::from(config.tos), i32::from(config.ttl.max(1)));
    let options = if v4 {
        [(libc::IPPROTO_IP, libc::IP_TOS, tos, "IP_TOS"), (libc::IPPROTO_IP, libc::IP_TTL, ttl, "IP_TTL")]
    } else {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos, "IPV6_TCLASS"),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl, "IPV6_UNICAST_HOPS"),
        ]
    };
    for (level, name, value, text) in options {
        sys::set_option(fd.as_fd(), level, name, value).map_err(call(text))?;
    }
    if config.checksum == Checksum::Zero {
        let (level, name, text) = if v4 {
            (libc::SOL_SOCKET, libc::SO_NO_CHECK, "SO_NO_CHECK")
        } else {
            (libc::SOL_UDP, sys::UDP_NO_CHECK6_TX, "UDP_NO_CHECK6_TX")
        };
        sys::set_option(fd.as_fd(), level, name, 1).map_err(call(text))?;
    }
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.buffer_len);
    Ok(())
}

/// A slot whose datagrams are not fragmented, until one may be.
fn slot(config: &UdpConfig, fd: OwnedFd, source: SocketAddr, names_peer: bool) -> Result<Slot, OpenError> {
    set_fragmenting(fd.as_fd(), config.peer.is_ipv4(), true).map_err(call("IP_MTU_DISCOVER"))?;
    Ok(Slot { fd, source, names_peer, df: Some(true) })
}

/// Whether the socket's datagrams may be fragmented here or on the way: DF follows path MTU discovery.
fn set_fragmenting(fd: BorrowedFd<'_>, v4: bool, df: bool) -> io::Result<()> {
    let mode = if df { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
    if v4 {
        return sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, mode);
    }
    sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, mode)?;
    sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, i32::from(df))
}

fn receiving_socket(config: &UdpConfig) -> Result<OwnedFd, OpenError> {
    let v4 = config.local.is_ipv4();
    let fd = sys::udp_socket(config.local).map_err(call("socket"))?;
    let mut options = vec![(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL")];
    if v4 {
        options.push((libc::IPPROTO_IP, libc::IP_RECVTOS, "IP_RECVTOS"));
        if config.local.is_unspecified() {
            options.push((libc::IPPROTO_IP, libc::IP_PKTINFO, "IP_PKTINFO"));
        }
        if config.want_ttl {
            options.push((libc::IPPROTO_IP, libc::IP_RECVTTL, "IP_RECVTTL"));
        }
    } else {
        options.push((libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY"));
        options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS"));
        if config.local.is_unspecified() {
            options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"));
        }
        if config.want_ttl {
            options.push((libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, "IPV6_RECVHOPLIMIT"));
        }
        if config.zero_checksum_v6 {
            options.push((libc::SOL_UDP, sys::UDP_NO_CHECK6_RX, "UDP_NO_CHECK6_RX"));
        }
    }
    for (level, name, text) in options {
        sys::set_option(fd.as_fd(), level, name, 1).map_err(call(text))?;
    }
    set_buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.buffer_len);
    let filter = match config.carries {
        Carries::Gue => &filter::NO_UNCOVERED_REMCSUM[..],
        Carries::Vxlan => &filter::NO_UNCOVERED_VXLAN_REMCSUM,
        Carries::Other => &[],
    };
    if !filter.is_empty() {
        sys::attach_filter(fd.as_fd(), filter).map_err(call("SO_ATTACH_FILTER"))?;
    }
    // Bound last: nothing may be queued that was not filtered.
    bind(&fd, SocketAddr::new(config.local, config.port))?;
    Ok(fd)
}

fn sending_socket(config: &UdpConfig, port: u16, connected: bool) -> Result<Slot, OpenError> {
    let fd = sys::udp_socket(config.local).map_err(call("socket"))?;
    sys::attach_filter(fd.as_fd(), &filter::NOTHING).map_err(call("SO_ATTACH_FILTER"))?;
    prepare_sending(config, &fd)?;
    bind(&fd, SocketAddr::new(config.local, port))?;
    if connected {
        sys::connect(fd.as_fd(), config.peer).map_err(|error| OpenError::NoRoute(config.peer, error))?;
    }
    let source = name_of(&fd)?;
    slot(config, fd, source, !connected)
}

/// Where an asking socket is connected to: nothing is sent, so that any port will do.
const fn asked_at(peer: IpAddr) -> SocketAddr {
    SocketAddr::new(peer, 9)
}

/// A connected socket for each address; a peer to which there is no way has none.
fn askers(config: &UdpConfig, peers: &[SocketAddr]) -> HashMap<IpAddr, OwnedFd> {
    let mut made = HashMap::new();
    for ip in peers.iter().map(SocketAddr::ip) {
        let peer = asked_at(ip);
        if !made.contains_key(&ip)
            && let Ok(slot) = sending_socket(&UdpConfig { peer, ..*config }, 0, true)
        {
            made.insert(ip, slot.fd);
        }
    }
    made
}

/// Sockets on ports of `range`, as far apart as they can be.
fn sockets_between(config: &UdpConfig, range: RangeInclusive<u16>, connected: bool) -> Result<Vec<Slot>, OpenError> {
    let most = usize::from(AUTO_SLOTS).min(range.len());
    let mut made = Vec::new();
    let mut last = OpenError::Call("bind", io::Error::from_raw_os_error(libc::EINVAL));
    for part in 0..most {
        // Every port belongs to one of the parts, so that a port in use is stepped over at most once.
        let ports = range.len() * part / most..range.len() * (part + 1) / most;
        for port in ports.filter_map(|at| range.clone().nth(at)) {
            match sending_socket(config, port, connected) {
                Ok(slot) => {
                    made.push(slot);
                    break;
                }
                Err(error @ OpenError::InUse(_)) => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    if made.is_empty() { Err(last) } else { Ok(made) }
}

/// The receiving socket as the sending one. It is not connected, because it has to hear others than the peer.
fn shared_socket(config: &UdpConfig, rx: &OwnedFd, listen: SocketAddr) -> Result<Slot, OpenError> {
    let fd = rx.try_clone().map_err(call("dup"))?;
    prepare_sending(config, &fd)?;
    slot(config, fd, listen, true)
}

/// The most segments that a UDP_SEGMENT send may have, found out once by sending single bytes to a socket of our own on
/// the loopback interface; the error number where the kernel does not have the option.
fn probe_segments() -> Result<usize, i32> {
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
