//! Packet sockets that are set up and receive, but whose ring is not mapped yet; several of them share an interface.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::gso::{FreeTags, Limits};

use super::config::{OpenError, PacketConfig, RingShape, Trains};
use super::sys;
use crate::link::LinkWatch;
use crate::sys::{MAX_IOV, attach_filter, either, set_option};
use crate::tun::{MAX_FRAME, MAX_UDP_SEGMENTS_OUT};

/// Bytes of the socket's send and receive queues: room for several trains.
const SOCKET_BYTES: i32 = 8 << 20;

/// A packet socket of a port. It may move to another thread, where [`PacketSocket::map`] makes the port, whose memory
/// belongs to that thread.
#[derive(Debug)]
pub struct PacketSocket {
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    pub(super) trains: Trains,
    pub(super) shape: RingShape,
    pub(super) limits: Limits,
    pub(super) watch: LinkWatch,
    /// Timer of the looks at the ring, and the descriptor that is readable when it or the watch is.
    pub(super) timer: File,
    pub(super) events: OwnedFd,
}

/// Socket filter that drops every packet.
const NOTHING: [libc::sock_filter; 1] =
    [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];

impl PacketSocket {
    /// Opens `count` sockets on one interface, among which the kernel distributes packets (PACKET_FANOUT, with its flag
    /// of Linux 5.16). None receives before all have joined.
    ///
    /// With `program`, a socket-type BPF program, its result is taken modulo `count`. Without one, packets are
    /// distributed by a hash of addresses and ports: a flow stays on one socket, both directions included. Fragments
    /// then go by addresses alone: all those of two hosts are on one socket, which may be another one than that of the
    /// whole packets of their flow.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_spread(
        config: &PacketConfig,
        count: u16,
        program: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<PacketSocket>, OpenError> {
        let (mut sockets, mut group) = (Vec::new(), None);
        for _ in 0..count {
            let socket = PacketSocket::open(config, Some(&NOTHING))?;
            group = Some(sys::join(socket.fd.as_fd(), group, program).map_err(call("PACKET_FANOUT"))?);
            sockets.push(socket);
        }
        for socket in &sockets {
            set_option(socket.fd.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
                .map_err(call("SO_DETACH_FILTER"))?;
        }
        Ok(sockets)
    }

    /// Opens a socket on an interface, with an optional socket filter.
    pub(super) fn open(config: &PacketConfig, filter: Option<&[libc::sock_filter]>) -> Result<PacketSocket, OpenError> {
        let fd = sys::socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Denied(error),
            _ => OpenError::Call("socket", error),
        })?;
        let interface = sys::interface(fd.as_fd(), &config.interface).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => OpenError::NoInterface(config.interface.clone()),
            _ => OpenError::Call("SIOCGIFINDEX", error),
        })?;
        if !matches!(interface.hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Err(OpenError::NotEthernet(config.interface.clone()));
        }
        sys::prepare(fd.as_fd()).map_err(call("setsockopt"))?;
        for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            set_option(fd.as_fd(), libc::SOL_SOCKET, forced, SOCKET_BYTES)
                .or_else(|_| set_option(fd.as_fd(), libc::SOL_SOCKET, plain, SOCKET_BYTES))
                .map_err(call("SO_RCVBUF"))?;
        }
        let shape = RingShape::of(interface.mtu, config);
        shape.make(fd.as_fd()).map_err(call("PACKET_RX_RING"))?;
        if let Some(filter) = filter {
            attach_filter(fd.as_fd(), filter).map_err(call("SO_ATTACH_FILTER"))?;
        }
        sys::promiscuous(fd.as_fd(), interface.index).map_err(call("PACKET_ADD_MEMBERSHIP"))?;
        sys::bind(fd.as_fd(), interface.index).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => OpenError::NoInterface(config.interface.clone()),
            _ => OpenError::Call("bind", error),
        })?;
        let watch = u32::try_from(interface.index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV));
        let watch = watch.and_then(LinkWatch::open).map_err(call("rtnetlink"))?;
        let timer = sys::each_second().map_err(call("timerfd_create"))?;
        let events = either([watch.fd(), timer.as_fd()]).map_err(call("epoll_create1"))?;
        let tcp = config.trains != Trains::None;
        let limits = Limits {
            csum: true,
            outer_csum: false,
            tso4: tcp,
            tso6: tcp,
            uso: config.trains == Trains::All,
            max_bytes: MAX_FRAME,
            max_segs: 65_535 / 8,
            max_udp_segs: MAX_UDP_SEGMENTS_OUT,
            max_pieces: MAX_IOV - 2,
            // The kernel's rule for a single packet (`packet_extra_vlan_len_allowed`): one 802.1Q tag does not count on
            // Ethernet, which the loopback interface is not. It does not check the packets of a train, and devices lose
            // longer ones.
            free_tags: if interface.hardware == libc::ARPHRD_ETHER { FreeTags::First } else { FreeTags::None },
            ..Limits::NONE
        };
        Ok(PacketSocket {
            fd,
            name: config.interface.clone(),
            trains: config.trains,
            shape,
            limits,
            watch,
            timer,
            events,
        })
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn call(name: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |error| OpenError::Call(name, error)
}
