//! System calls of TUN and TAP devices: requests and flags of `linux/if_tun.h`.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::check;

pub(crate) const IFF_TUN: u16 = 0x0001;
pub(crate) const IFF_TAP: u16 = 0x0002;
pub(crate) const IFF_MULTI_QUEUE: u16 = 0x0100;
pub(crate) const IFF_NO_PI: u16 = 0x1000;
pub(crate) const IFF_VNET_HDR: u16 = 0x4000;
pub(crate) const IFF_TUN_EXCL: u16 = 0x8000;

/// Attaches `fd` to the device `name`, which is created if it does not exist, and returns its actual name.
pub(crate) fn attach(fd: BorrowedFd<'_>, name: &str, flags: u16) -> io::Result<String> {
    // SAFETY: ifreq is plain old data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    Ok(name_of(&request))
}

/// Returns the name and the flags of the device that `fd` is attached to.
pub(crate) fn attached(fd: BorrowedFd<'_>) -> io::Result<(String, u16)> {
    // SAFETY: ifreq is plain old data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // SAFETY: TUNGETIFF writes an ifreq, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
    // SAFETY: TUNGETIFF fills in the flags member of the union; every bit pattern is a valid short.
    Ok((name_of(&request), unsafe { request.ifr_ifru.ifru_flags } as u16))
}

/// Returns the device's Ethernet address.
pub(crate) fn mac(fd: BorrowedFd<'_>) -> io::Result<[u8; 6]> {
    // SAFETY: ifreq is plain old data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // SAFETY: a TUN device answers SIOCGIFHWADDR for itself with an ifreq, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
    // SAFETY: it fills in the address member of the union; every bit pattern is valid.
    let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| bytes[at] as u8))
}

fn name_of(request: &libc::ifreq) -> String {
    request.ifr_name.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
}

/// Sets the offloads that the device may use towards its reader, as `TUN_F_` bits.
pub(crate) fn set_offload(fd: BorrowedFd<'_>, bits: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(bits)) }).map(drop)
}

/// Sets the length of the virtio-net header, and returns the length in force.
pub(crate) fn set_header_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<c_int> {
    // SAFETY: TUNSETVNETHDRSZ reads an int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) })?;
    header_len(fd)
}

/// Returns the length of the virtio-net header.
pub(crate) fn header_len(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut got: c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ writes an int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ as _, &raw mut got) })?;
    Ok(got)
}

/// Returns the flags that the driver supports.
pub(crate) fn features(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut features: c_uint = 0;
    // SAFETY: TUNGETFEATURES writes an unsigned int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETFEATURES as _, &raw mut features) })?;
    Ok(features)
}

/// Sets the carrier of the device's interface.
pub(crate) fn set_carrier(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let on = c_int::from(on);
    // SAFETY: TUNSETCARRIER reads an int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETCARRIER as _, &raw const on) }).map(drop)
}

/// Makes the virtio-net header little-endian.
pub(crate) fn set_little_endian(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: TUNSETVNETLE reads an int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE as _, &raw const on) }).map(drop)
}

/// Lets the driver choose each packet's queue by a socket-type BPF program, whose result is taken modulo the number of
/// queues. The device holds the program from then on.
pub(crate) fn set_steering(fd: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let program = program.as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads an int, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETSTEERINGEBPF as _, &raw const program) }).map(drop)
}
