//! Features of the kernel's TUN driver, for a program that queries them before it opens a device for use.

use std::io;
use std::os::fd::BorrowedFd;

use super::sys;

/// The virtio-net header lengths and the offloads that the driver grants to a new interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted {
    /// Lengths of the virtio-net header that the driver accepts, bytes.
    pub header_lens: Vec<usize>,
    /// Sets of `TUN_F_` bits that the driver accepts, out of the requested ones.
    pub offloads: Vec<u32>,
}

/// Returns the `IFF_` flags that the driver supports (TUNGETFEATURES). `tun` is `/dev/net/tun`, with or without an
/// interface.
///
/// # Errors
/// The error of the ioctl; EBADFD and ENOTTY for a descriptor that is no TUN device.
pub fn features(tun: BorrowedFd<'_>) -> io::Result<u32> {
    sys::features(tun)
}

/// Creates a TUN interface on `tun` and returns the virtio-net header lengths (of `header_lens`) and the sets of
/// `TUN_F_` bits (of `offloads`) that the driver accepts. The name is the kernel's choice, `segueN`; the interface
/// disappears when the descriptor is closed.
///
/// # Errors
/// The error of creating the interface: EPERM without CAP_NET_ADMIN.
pub fn probe(tun: BorrowedFd<'_>, header_lens: &[usize], offloads: &[u32]) -> io::Result<Granted> {
    sys::attach(tun, "segue%d", sys::IFF_TUN | sys::IFF_NO_PI | sys::IFF_VNET_HDR)?;
    let takes_len = |len: &usize| i32::try_from(*len).is_ok_and(|len| sys::set_header_len(tun, len).is_ok());
    let takes_set = |set: &u32| sys::set_offload(tun, *set).is_ok();
    Ok(Granted {
        header_lens: header_lens.iter().copied().filter(takes_len).collect(),
        offloads: offloads.iter().copied().filter(takes_set).collect(),
    })
}

/// Sets the carrier of a TUN or TAP device's interface (TUNSETCARRIER): whether its link is up.
///
/// # Errors
/// The error of the ioctl; EINVAL before Linux 5.0.
pub fn set_carrier(tun: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    sys::set_carrier(tun, on)
}
