//! Packet sockets (packet(7)) that send and receive frames with virtio-net headers.
#![allow(unsafe_code, reason = "packet sockets exist only as libc calls")]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Length of `struct virtio_net_hdr`, which the kernel prepends to a frame, bytes.
pub(super) const VNET_LEN: usize = 10;
/// The socket option `PACKET_IGNORE_OUTGOING`, include/uapi/linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Length of the longest frame with its headers, bytes.
const LONGEST: usize = (1 << 16) + 64;

/// A frame received by a packet socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// The virtio-net header, if the socket was opened with one.
    pub(super) vnet: Option<[u8; VNET_LEN]>,
    /// The bytes of the frame, without a VLAN tag that the kernel has stripped.
    pub(super) frame: Vec<u8>,
    /// VLAN tag: protocol identifier and control information.
    pub(super) tag: Option<(u16, u16)>,
}

/// The use of a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The socket sends frames after a virtio-net header.
    Sends,
    /// The socket receives the frames of the device, with a virtio-net header.
    Receives,
    /// The socket receives the frames of the device, without a virtio-net header.
    ReceivesBare,
}

/// A packet socket on one device.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    role: Role,
}

impl Socket {
    /// Opens a packet socket on a device.
    pub(super) fn open(device: &str, role: Role) -> io::Result<Socket> {
        let index = index_of(device)?;
        let protocol = if role == Role::Sends { 0 } else { (libc::ETH_P_ALL as u16).to_be() };
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointers. Protocol 0 hears nothing before it is bound.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        let socket = Socket { fd: unsafe { OwnedFd::from_raw_fd(fd) }, role };
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, (role != Role::ReceivesBare).into())?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20)?;
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer and length describe `address`.
        check(unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: the pointer and length describe `value`, and all options used here take an int.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
    }

    /// Sends a frame with a virtio-net header.
    pub(super) fn send(&self, vnet: [u8; VNET_LEN], frame: &[u8]) -> io::Result<()> {
        let bytes = [&vnet[..], frame].concat();
        // SAFETY: the pointer and length describe `bytes`.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until a frame can be received; returns `false` on timeout.
    pub(super) fn wait(&self, longest: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer is to one pollfd.
        Ok(check(unsafe { libc::poll(&raw mut poll, 1, millis) })? > 0)
    }

    /// Returns the next frame, or `None` if none is waiting.
    pub(super) fn receive(&self) -> io::Result<Option<Received>> {
        let mut vnet = [0; VNET_LEN];
        let mut frame = vec![0; LONGEST];
        // Aligned for cmsghdr.
        let mut control = [0_u64; 16];
        let vnet_len = if self.role == Role::ReceivesBare { 0 } else { VNET_LEN };
        let mut parts = [
            libc::iovec { iov_base: vnet.as_mut_ptr().cast(), iov_len: vnet_len },
            libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
        ];
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control);
        // SAFETY: every pointer in `message` describes memory that outlives the call.
        let len = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        if len < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::other("a frame longer than any"));
        }
        frame.truncate((len as usize).saturating_sub(vnet_len));
        frame.shrink_to_fit();
        let mut tag = None;
        // SAFETY: the kernel filled in `message`, whose control buffer is alive.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give headers that lie within the control buffer.
            let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
            if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA {
                // SAFETY: the data of this kind of message is a tpacket_auxdata, perhaps not aligned.
                let aux: libc::tpacket_auxdata = unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(header).cast()) };
                if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    tag = Some((aux.tp_vlan_tpid, aux.tp_vlan_tci));
                }
            }
            // SAFETY: as above.
            header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
        }
        Ok(Some(Received { vnet: (vnet_len > 0).then_some(vnet), frame, tag }))
    }
}

/// Returns the index of a network interface.
pub(super) fn index_of(device: &str) -> io::Result<u32> {
    let name = CString::new(device)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(io::Error::last_os_error()) } else { Ok(index) }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
