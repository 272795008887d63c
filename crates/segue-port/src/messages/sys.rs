//! The system calls that send and receive many messages.
//!
//! These calls need arrays of headers that point at each other and at the caller's bytes. [`SendScratch`] and
//! [`RecvScratch`] own the arrays, so that nothing is allocated per call once they have grown. The builders that they
//! lend ([`Outgoing`], [`Incoming`]) tie every pointer to the lifetime of the bytes it points to.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::mem::{offset_of, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::sys::{Name, UDP_GRO, address_of, check};

/// Ancillary data of one message, aligned as the kernel requires for a `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

/// Number of bytes of the control messages of a send: segment size, and TOS and TTL or the local address.
const SEND_ROOM: usize = 96;
/// Number of bytes for the control messages of a receive.
const RECEIVE_ROOM: usize = 256;

impl<const ROOM: usize> Control<ROOM> {
    const NONE: Control<ROOM> = Control { bytes: [0; ROOM], len: 0 };

    /// Appends a control message. One that does not fit is left out; the fixed set of messages always fits.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let len = size_of::<T>() as libc::c_uint;
        // SAFETY: pure arithmetic.
        let (space, whole) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len)) };
        if self.len + space > ROOM {
            return;
        }
        // SAFETY: `space` bytes from `len` on are inside `bytes`, as just checked; `len` is a sum of CMSG_SPACE values
        // and so keeps the alignment of a cmsghdr, which that of this type covers; CMSG_DATA stays inside the space.
        unsafe {
            let header = self.bytes.as_mut_ptr().add(self.len).cast::<libc::cmsghdr>();
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

/// Arrays of structs with pointers for a system call.
#[derive(Default)]
struct Pointers {
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers are followed by the call that wrote them alone, through an exclusive borrow; after it nothing
// follows them, in no thread.
unsafe impl Send for Pointers {}
// SAFETY: as above; of a shared one only the numbers beside the pointers are read.
unsafe impl Sync for Pointers {}

/// Arrays for sending, reused for every call.
#[derive(Default)]
pub(crate) struct SendScratch {
    pointers: Pointers,
    controls: Vec<Control<SEND_ROOM>>,
    messages: Vec<Message>,
}

impl std::fmt::Debug for SendScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendScratch")
    }
}

impl SendScratch {
    /// Begins a call that sends bytes of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Outgoing<'s, 'a> {
        self.pointers.pieces.clear();
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
        self.scratch.messages.push(Message { first_piece: self.scratch.pointers.pieces.len(), pieces: 0 });
        self.scratch.controls.push(Control::NONE);
    }

    /// Appends bytes to the last message.
    pub(crate) fn piece(&mut self, bytes: &'a [u8]) {
        if let Some(message) = self.scratch.messages.last_mut() {
            message.pieces += 1;
            let base = bytes.as_ptr().cast_mut().cast::<c_void>();
            self.scratch.pointers.pieces.push(libc::iovec { iov_base: base, iov_len: bytes.len() });
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
        scratch.pointers.headers.clear();
        // One pointer for all messages: borrowing the array again would end what the earlier ones may reach.
        let pieces = scratch.pointers.pieces.as_mut_ptr();
        for (message, control) in scratch.messages.iter().zip(&mut scratch.controls).skip(skip) {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = name_ptr;
            header.msg_hdr.msg_namelen = name_len;
            header.msg_hdr.msg_iov = pieces.wrapping_add(message.first_piece);
            header.msg_hdr.msg_iovlen = message.pieces as _;
            if control.len > 0 {
                header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.len as _;
            }
            scratch.pointers.headers.push(header);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let [first, rest @ ..] = &mut scratch.pointers.headers[..] else { return Ok(0) };
        if rest.is_empty() {
            // SAFETY: every pointer in the headers leads into the scratch arrays, which are not changed before the call
            // returns, or to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
            let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const first.msg_hdr, flags) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        let count = scratch.pointers.headers.len();
        // SAFETY: as above; the kernel writes the `msg_len` of each header, of which there are `count`.
        let sent =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), scratch.pointers.headers.as_mut_ptr(), count as _, flags as _) };
        // A filter of system calls or a tracer may have answered in place of the kernel.
        check(sent).map(|n| (n as usize).min(count))
    }

    /// Writes the pieces of the only message to `fd` in one call; returns the number of bytes.
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let count = self.scratch.pointers.pieces.len() as c_int;
        // SAFETY: the pieces lead to bytes of lifetime 'a, which outlives `self`; the kernel only reads them.
        let written = unsafe { libc::writev(fd.as_raw_fd(), self.scratch.pointers.pieces.as_ptr(), count) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
    }
}

/// Arrays for receiving, reused for every call.
#[derive(Default)]
pub(crate) struct RecvScratch {
    pointers: Pointers,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control<RECEIVE_ROOM>>,
    got: usize,
}

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
}

impl RecvScratch {
    /// Begins a call that receives into memory of lifetime `'a`.
    pub(crate) fn begin<'s, 'a>(&'s mut self) -> Incoming<'s, 'a> {
        self.pointers.pieces.clear();
        Incoming { scratch: self, bytes: PhantomData }
    }

    /// Returns length and metadata of message `index` of the last call.
    pub(crate) fn received(&self, index: usize) -> Received {
        let (Some(header), Some(name), Some(control)) =
            (self.pointers.headers[..self.got].get(index), self.names.get(index), self.controls.get(index))
        else {
            return Received::default();
        };
        let mut received = Received {
            len: header.msg_len as usize,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            peer: address_of(name),
            ..Received::default()
        };
        let len: usize = header.msg_hdr.msg_controllen as _;
        note_all(&mut received, &control.bytes[..len.min(RECEIVE_ROOM)]);
        received
    }
}

/// Notes what the control messages say that the kernel wrote (cmsg(3)). One that is cut ends them.
fn note_all(received: &mut Received, mut control: &[u8]) {
    while let Some((level, kind, data, rest)) = next_of(control) {
        note(received, level, kind, data);
        control = rest;
    }
}

/// Returns level, type and data of the first of some control messages, and those after it.
fn next_of(control: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    // The kernel's `size_t`; musl declares a shorter one and padding.
    let len = usize::from_ne_bytes(field(control, 0)?);
    let level = c_int::from_ne_bytes(field(control, offset_of!(libc::cmsghdr, cmsg_level))?);
    let kind = c_int::from_ne_bytes(field(control, offset_of!(libc::cmsghdr, cmsg_type))?);
    let data = control.get(size_of::<libc::cmsghdr>()..len)?;
    let rest = control.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    Some((level, kind, data, rest))
}

/// Returns the bytes of a field at the offset `at`, if they are all there.
fn field<const LEN: usize>(bytes: &[u8], at: usize) -> Option<[u8; LEN]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn note(received: &mut Received, level: c_int, kind: c_int, data: &[u8]) {
    let int = || field(data, 0).map(c_int::from_ne_bytes);
    match (level, kind) {
        (libc::SOL_UDP, UDP_GRO) => received.segment_len = int().and_then(|size| usize::try_from(size).ok()),
        (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = data.first().copied().unwrap_or(0),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => received.tos = int().unwrap_or(0) as u8,
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = int().and_then(|ttl| u8::try_from(ttl).ok());
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let address = field::<4>(data, offset_of!(libc::in_pktinfo, ipi_addr));
            received.local = address.map(|address| IpAddr::V4(Ipv4Addr::from(address)));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let address = field::<16>(data, offset_of!(libc::in6_pktinfo, ipi6_addr));
            received.local = address.map(|address| IpAddr::V6(Ipv6Addr::from(address)));
        }
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
        self.scratch.pointers.pieces.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    }

    /// Receives at most one message per window, without waiting. Returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let scratch = &mut *self.scratch;
        let count = scratch.pointers.pieces.len();
        // SAFETY: sockaddr_storage is plain old data, for which all zeros is a value.
        let nobody: libc::sockaddr_storage = unsafe { zeroed() };
        scratch.names.resize(scratch.names.len().max(count), nobody);
        scratch.controls.resize(scratch.controls.len().max(count), Control::NONE);
        scratch.pointers.headers.clear();
        scratch.got = 0;
        for ((piece, name), control) in
            scratch.pointers.pieces.iter_mut().zip(&mut scratch.names).zip(&mut scratch.controls)
        {
            // SAFETY: mmsghdr is plain old data, for which all zeros is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = RECEIVE_ROOM as _;
            scratch.pointers.headers.push(header);
        }
        let [first, rest @ ..] = &mut scratch.pointers.headers[..] else { return Ok(0) };
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
                scratch.pointers.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        scratch.got = (check(got)? as usize).min(count);
        Ok(scratch.got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: c_int = 64;
    const SEGMENT_LEN: c_int = 1_448;

    fn read(control: &[u8]) -> Received {
        let mut received = Received::default();
        note_all(&mut received, control);
        received
    }

    #[test]
    fn control_messages_are_read_one_after_another_up_to_one_that_is_cut() {
        let mut control = Control::<RECEIVE_ROOM>::NONE;
        let (v4, v6) = (Ipv4Addr::new(198, 18, 0, 1), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
        let none = libc::in_addr { s_addr: 0 };
        let to_v4 = libc::in_addr { s_addr: u32::from_ne_bytes(v4.octets()) };
        control.push(libc::IPPROTO_IP, libc::IP_TOS, 3_u8);
        control.push(libc::IPPROTO_IP, libc::IP_TTL, TTL);
        let two = control.len;
        let info = libc::in_pktinfo { ipi_ifindex: 1, ipi_spec_dst: none, ipi_addr: to_v4 };
        control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        let three = control.len;
        let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: v6.octets() }, ipi6_ifindex: 1 };
        control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        control.push(libc::SOL_UDP, UDP_GRO, SEGMENT_LEN);
        let all = read(&control.bytes[..control.len]);
        assert_eq!((all.tos, all.ttl, all.local), (3, Some(64), Some(IpAddr::V6(v6))));
        assert_eq!(all.segment_len, Some(1_448));
        let some = read(&control.bytes[..three]);
        assert_eq!((some.local, some.segment_len), (Some(IpAddr::V4(v4)), None));
        for len in two..two + size_of::<libc::cmsghdr>() + size_of::<libc::in_pktinfo>() {
            let cut = read(&control.bytes[..len]);
            assert_eq!((cut.tos, cut.ttl, cut.local), (3, Some(64), None), "{len} bytes");
        }
    }

    #[test]
    fn control_messages_with_wrong_lengths_say_nothing() {
        let mut control = Control::<RECEIVE_ROOM>::NONE;
        control.push(libc::SOL_UDP, UDP_GRO, 5_u8);
        assert_eq!(read(&control.bytes[..control.len]).segment_len, None, "one byte of a number");
        for len in [0, 1, size_of::<libc::cmsghdr>() - 1, RECEIVE_ROOM + 1, usize::MAX] {
            control.len = 0;
            control.push(libc::SOL_UDP, UDP_GRO, SEGMENT_LEN);
            control.bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(read(&control.bytes).segment_len, None, "{len}");
        }
    }
}
