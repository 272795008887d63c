//! Feature bits of virtio and of its network device (virtio 1.2, sections 5.1.3 and 6), besides those of
//! [`segue::virtio::device`].

use segue::virtio::device;

pub(super) const CSUM: u64 = 1 << 0;
pub(super) const MTU: u64 = 1 << 3;
pub(super) const HOST_TSO4: u64 = 1 << 11;
pub(super) const HOST_TSO6: u64 = 1 << 12;
pub(super) const HOST_ECN: u64 = 1 << 13;
pub(super) const MRG_RXBUF: u64 = 1 << 15;
pub(super) const STATUS: u64 = 1 << 16;
pub(super) const LOG_ALL: u64 = 1 << 26;
pub(super) const ANY_LAYOUT: u64 = 1 << 27;
pub(super) const INDIRECT: u64 = 1 << 28;
pub(super) const EVENT_IDX: u64 = 1 << 29;
pub(super) const PROTOCOL: u64 = 1 << 30;
pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const ACCESS_PLATFORM: u64 = 1 << 33;
pub(super) const HOST_USO: u64 = 1 << 56;

/// Feature bits that are offered to the guest's driver.
pub(super) const OFFERED: u64 = CSUM
    | 1 << device::GUEST_CSUM
    | MTU
    | 1 << device::GUEST_TSO4
    | 1 << device::GUEST_TSO6
    | 1 << device::GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | STATUS
    | ANY_LAYOUT
    | INDIRECT
    | EVENT_IDX
    | PROTOCOL
    | VERSION_1
    | 1 << device::GUEST_USO4
    | 1 << device::GUEST_USO6
    | HOST_USO;
