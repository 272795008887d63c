//! The system calls that send and receive many messages.
//!
//! These calls need arrays of headers that point at each other and at the caller's bytes. [`SendScratch`] and
//! [`RecvScratch`] own the arrays, so that nothing is allocated per call once they have grown. The builders that they
//! lend ([`Outgoing`], [`Incoming`]) tie every pointer to the lifetime of the bytes it points to.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::sys::{Name, UDP_GRO, address_of, check};

/// Ancillary data of one message, aligned as the kernel requires for a `cmsghdr`.
#[derive(Clone, Copy)]
struct Control<const WORDS: usize> {
    words: [u64; WORDS],
    len: usize,
}

/// Number of words of the control messages of a send: segment size, and TOS and TTL or the local address.
const SEND_WORDS: usize = 12;
/// Number of words for the control messages of a receive.
const RECEIVE_WORDS: usize = 32;

impl<const WORDS: usize> Control<WORDS> {
    const NONE: Control<WORDS> = Control { words: [0; WORDS], len: 0 };

    /// Appends a control message. One that does not fit is left out; the fixed set of messages always fits.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let len = size_of::<T>() as libc::c_uint;
        // SAFETY: pure arithmetic.
        let (space, whole) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len)) };
        if self.len + space > size_of_val(&self.words) {
            return;
        }
        // SAFETY: `space` bytes from `len` on are inside `words`, as just checked; `len` is a sum of CMSG_SPACE values
        // and so keeps the alignment of a cmsghdr, which that of u64 covers; CMSG_DATA stays inside the space.
        unsafe {
            let header = self.words.as_mut_ptr().cast::<u8>().add(self.len).cast::<libc::cmsghdr>();
            // musl's structure has padding beside the three fields, for which zero is valid as for all of them.
            let mut made: libc::cmsghdr = std::mem::zeroed();
            (made.cmsg_len, made.cmsg_level, made.cmsg_type) = (whole as _, level, kind);
            header.write(made);
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }
}

struct Message {
    first_piece: usize,
    pieces: usize,
}

/// Arrays for sending, reused for every call.
#[derive(Default)]
pub(crate) struct SendScratch {
    pieces: Vec<libc::iovec>,
    controls: Vec<Control<SEND_WORDS>>,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: its pointers are used by the call that wrote them, and by none after it.
unsafe impl Send for SendScratch {}
// SAFETY: as above; a shared one gives nothing out.
unsafe impl Sync for SendScratch {}

impl std::fmt::Debug for SendScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendScratch")
    }
}

impl SendScratch {
    /// Begins a call that sends bytes of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Outgoing<'s, 'a> {
        self.pieces.clear();
        self.controls.clear();
        self.messages.clear();
        Outgoing { scratch: self, bytes: PhantomData }
    }
}

/// One or more outgoing messages under construction.
pub(crate) struct Outgoing<'s, 'a> {
    scratch: &'s mut SendScratch,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Outgoing<'_, 'a> {
    /// Begins the next message; pieces and control messages added afterwards belong to it.
    pub(crate) fn message(&mut self) {
        self.scratch.messages.push(Message { first_piece: self.scratch.pieces.len(), pieces: 0 });
        self.scratch.controls.push(Control::NONE);
    }

    /// Appends bytes to the last message.
    pub(crate) fn piece(&mut self, bytes: &'a [u8]) {
        if let Some(message) = self.scratch.messages.last_mut() {
            message.pieces += 1;
            let base = bytes.as_ptr().cast_mut().cast::<c_void>();
            self.scratch.pieces.push(libc::iovec { iov_base: base, iov_len: bytes.len() });
        }
    }

    /// Appends a control message to the last message.
    pub(crate) fn control<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        if let Some(control) = self.scratch.controls.last_mut() {
            control.push(level, kind, value);
        }
    }

    /// Sends all messages from index `skip` on, to `to` or to the connected peer. Returns the number of messages that
    /// the kernel took.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, to: Option<SocketAddr>, skip: usize) -> io::Result<usize> {
        let scratch = &mut *self.scratch;
        let mut name = to.map(Name::new);
        let (name_ptr, name_len) = match &mut name {
            Some(name) => ((&raw mut name.storage).cast::<c_void>(), name.len),
            None => (ptr::null_mut(), 0),
        };
        scratch.headers.clear();
        // One pointer for all messages: borrowing the array again would end what the earlier ones may reach.
        let pieces = scratch.pieces.as_mut_ptr();
        for (message, control) in scratch.messages.iter().zip(&mut scratch.controls).skip(skip) {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = name_ptr;
            header.msg_hdr.msg_namelen = name_len;
            header.msg_hdr.msg_iov = pieces.wrapping_add(message.first_piece);
            header.msg_hdr.msg_iovlen = message.pieces as _;
            if control.len > 0 {
                header.msg_hdr.msg_control = control.words.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.len as _;
            }
            scratch.headers.push(header);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let [first, rest @ ..] = &mut scratch.headers[..] else { return Ok(0) };
        if rest.is_empty() {
            // SAFETY: every pointer in the headers leads into the scratch arrays, which are not changed before the call
            // returns, or to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
            let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const first.msg_hdr, flags) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        let count = scratch.headers.len() as libc::c_uint;
        // SAFETY: as above; the kernel writes the `msg_len` of each header, of which there are `count`.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), scratch.headers.as_mut_ptr(), count, flags as _) };
        check(sent).map(|n| n as usize)
    }

    /// Writes the pieces of the only message to `fd` in one call; returns the number of bytes.
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let count = self.scratch.pieces.len() as c_int;
        // SAFETY: the pieces lead to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
        let written = unsafe { libc::writev(fd.as_raw_fd(), self.scratch.pieces.as_ptr(), count) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
    }
}

/// Arrays for receiving, reused for every call.
#[derive(Default)]
pub(crate) struct RecvScratch {
    pieces: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control<RECEIVE_WORDS>>,
    headers: Vec<libc::mmsghdr>,
    got: usize,
}

// SAFETY: its pointers into the caller's memory are used by the call that wrote them, and by none after it; those into
// its own arrays stay right where it moves to.
unsafe impl Send for RecvScratch {}
// SAFETY: a shared one gives out copies of what the last call has left in its own arrays, which nothing changes
// meanwhile.
unsafe impl Sync for RecvScratch {}

impl std::fmt::Debug for RecvScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecvScratch")
    }
}

/// Length and metadata of one received datagram or burst.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) truncated: bool,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<IpAddr>,
    pub(crate) tos: u8,
    pub(crate) ttl: Option<u8>,
    /// Length of each merged datagram, or `None` if the kernel merged none.
    pub(crate) segment_len: Option<usize>,
    /// Number of datagrams that the kernel has dropped on this socket since its creation.
    pub(crate) overflows: Option<u32>,
}

impl RecvScratch {
    /// Begins a call that receives into memory of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Incoming<'s, 'a> {
        self.pieces.clear();
        Incoming { scratch: self, bytes: PhantomData }
    }

    /// Returns length and metadata of message `index` of the last call.
    pub(crate) fn received(&self, index: usize) -> Received {
        let (Some(header), Some(name)) = (self.headers[..self.got].get(index), self.names.get(index)) else {
            return Received::default();
        };
        let mut received = Received {
            len: header.msg_len as usize,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            peer: address_of(name),
            ..Received::default()
        };
        // SAFETY: the header's control pointer leads to `controls[index]`, which was not touched since the kernel wrote
        // it and the length that goes with it; the macros stay inside that length.
        let mut control = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
        while !control.is_null() {
            // SAFETY: not null, so a whole header inside the control data.
            let head = unsafe { control.read_unaligned() };
            // SAFETY: the data follows the header; no more than its length is read, see `read_control`.
            let data = unsafe { libc::CMSG_DATA(control) };
            let len = (head.cmsg_len as usize).saturating_sub(data.addr() - control.addr());
            note(&mut received, head.cmsg_level, head.cmsg_type, data, len);
            // SAFETY: as for CMSG_FIRSTHDR.
            control = unsafe { libc::CMSG_NXTHDR(&raw const header.msg_hdr, control) };
        }
        received
    }
}

/// Reads a value from `len` bytes of control data; `None` if there are too few.
fn read_control<T: Copy>(data: *const u8, len: usize) -> Option<T> {
    if len < size_of::<T>() {
        return None;
    }
    // SAFETY: `data` leads to `len` bytes that the kernel wrote, at least as many as T has; T is one of u8, u32, c_int,
    // in_pktinfo and in6_pktinfo, for which every bit pattern is a value.
    Some(unsafe { data.cast::<T>().read_unaligned() })
}

fn note(received: &mut Received, level: c_int, kind: c_int, data: *const u8, len: usize) {
    match (level, kind) {
        (libc::SOL_UDP, UDP_GRO) => {
            received.segment_len = read_control::<c_int>(data, len).and_then(|size| usize::try_from(size).ok());
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = read_control::<u8>(data, len).unwrap_or(0),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            received.tos = read_control::<c_int>(data, len).unwrap_or(0) as u8;
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = read_control::<c_int>(data, len).and_then(|ttl| u8::try_from(ttl).ok());
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            received.local = read_control::<libc::in_pktinfo>(data, len)
                .map(|info| IpAddr::V4(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes())));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            received.local = read_control::<libc::in6_pktinfo>(data, len)
                .map(|info| IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
        }
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => received.overflows = read_control::<u32>(data, len),
        _ => {}
    }
}

/// One or more receive windows under construction.
pub(crate) struct Incoming<'s, 'a> {
    scratch: &'s mut RecvScratch,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Incoming<'_, 'a> {
    /// Adds memory for one message.
    pub(crate) fn window(&mut self, bytes: &'a mut [u8]) {
        self.scratch.pieces.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    }

    /// Receives at most one message per window, without waiting. Returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let scratch = &mut *self.scratch;
        let count = scratch.pieces.len();
        // SAFETY: sockaddr_storage is plain old data, for which all zeros is a value.
        let nobody: libc::sockaddr_storage = unsafe { zeroed() };
        scratch.names.resize(scratch.names.len().max(count), nobody);
        scratch.controls.resize(scratch.controls.len().max(count), Control::NONE);
        scratch.headers.clear();
        scratch.got = 0;
        for ((piece, name), control) in scratch.pieces.iter_mut().zip(&mut scratch.names).zip(&mut scratch.controls) {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.words.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(&control.words) as _;
            scratch.headers.push(header);
        }
        let [first, rest @ ..] = &mut scratch.headers[..] else { return Ok(0) };
        if rest.is_empty() {
            // SAFETY: every pointer in the header leads into the scratch arrays, which are not touched before the call
            // returns, or to memory of lifetime 'a that is ours alone; the lengths are theirs.
            let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut first.msg_hdr, libc::MSG_DONTWAIT) };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            first.msg_len = got as libc::c_uint;
            scratch.got = 1;
            return Ok(1);
        }
        // SAFETY: as above, for `count` headers; a null timeout means none.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                scratch.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        scratch.got = check(got)? as usize;
        Ok(scratch.got)
    }
}
