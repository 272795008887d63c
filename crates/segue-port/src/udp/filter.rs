//! Socket filters: classic BPF programs that the kernel runs on every datagram before it is queued.
//!
//! On a UDP socket a program sees the datagram from its UDP header on. It returns the number of bytes to keep; the UDP
//! header is never cut (Linux `udp_queue_rcv_one_skb`; observed on Linux 6.18 for both families).

use libc::sock_filter;
use segue::wire::{gue, udp, vxlan};

/// Length of the payload that remains of a filtered datagram, bytes. The length identifies such a datagram, because one
/// that really has this length is cut to no payload.
pub(super) const MARKER_LEN: usize = 1;

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | code | libc::BPF_K) as u16, jt, jf, k }
}

const fn load(size: u32, at: usize) -> sock_filter {
    statement(libc::BPF_LD | size | libc::BPF_ABS, at as u32)
}

const fn keep(len: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, len)
}

/// Version bits of the first GUE byte.
const VERSION: u32 = 0xc0;
/// GUE flag that announces a word of private flags, in the 16 bits after the first two bytes.
const PRIVATE: u32 = 0x0001;
/// The remote checksum flag in the word of private flags.
const REMCSUM: u32 = 0x8000_0000;

const LENGTH: sock_filter = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0);
const CHECKSUM: sock_filter = load(libc::BPF_H, udp::CHECKSUM);
const FIRST: sock_filter = load(libc::BPF_B, udp::LEN);
const FLAGS: sock_filter = load(libc::BPF_H, udp::LEN + 2);
const PRIVATE_FLAGS: sock_filter = load(libc::BPF_W, udp::LEN + gue::BASE_LEN);
const MARKED: u32 = (udp::LEN + MARKER_LEN) as u32;

/// The filter of a GUE socket: truncates a datagram that has the remote checksum option but no UDP checksum to a marker
/// of [`MARKER_LEN`] bytes. The option may be trusted only under a verified outer checksum (Linux checks the same in
/// `gue_udp_recv`), and user space cannot see whether there was one.
pub(super) const NO_UNCOVERED_REMCSUM: [sock_filter; 14] = [
    LENGTH,
    jump(libc::BPF_JEQ, MARKED, 11, 0),
    jump(libc::BPF_JGE, (udp::LEN + gue::BASE_LEN + 4) as u32, 0, 8),
    CHECKSUM,
    jump(libc::BPF_JEQ, 0, 0, 6),
    FIRST,
    jump(libc::BPF_JSET, VERSION, 4, 0),
    FLAGS,
    jump(libc::BPF_JSET, PRIVATE, 0, 2),
    PRIVATE_FLAGS,
    jump(libc::BPF_JSET, REMCSUM, 1, 0),
    keep(u32::MAX),
    keep(MARKED),
    keep(udp::LEN as u32),
];

/// The remote checksum flag in the first word of a VXLAN header.
const VXLAN_REMCSUM: u32 = 0x0020_0000;

/// The filter of a VXLAN socket, equivalent to [`NO_UNCOVERED_REMCSUM`].
pub(super) const NO_UNCOVERED_VXLAN_REMCSUM: [sock_filter; 10] = [
    LENGTH,
    jump(libc::BPF_JEQ, MARKED, 7, 0),
    jump(libc::BPF_JGE, (udp::LEN + vxlan::LEN) as u32, 0, 4),
    CHECKSUM,
    jump(libc::BPF_JEQ, 0, 0, 2),
    load(libc::BPF_W, udp::LEN),
    jump(libc::BPF_JSET, VXLAN_REMCSUM, 1, 0),
    keep(u32::MAX),
    keep(MARKED),
    keep(udp::LEN as u32),
];

/// The filter of a send-only socket: it drops every datagram, so that the receive queue stays empty.
pub(super) const NOTHING: [sock_filter; 1] = [keep(0)];
