//! The places of the program for receiving: on the stack, and a register.

use crate::assembler::Reg;

/// Outer IP and UDP, and the GUE, VXLAN or Geneve header, on the stack.
pub(crate) const OUTER: i16 = -80;
/// The GRE header; zeros where there is none, or no key.
pub(crate) const GRE: i16 = OUTER - 8;
/// Start of the inner packet: 20 bytes.
pub(crate) const INNER: i16 = GRE - 24;
/// The key of the map.
pub(crate) const PEER: i16 = INNER - 24;
/// `struct bpf_fib_lookup`, and before that the inner IPv6 source address.
pub(crate) const FIB: i16 = PEER - 64;
pub(crate) const FIB_LEN: i32 = 64;
/// Outer length, from the IP header on.
pub(crate) const TOTAL: i16 = FIB - 8;
/// Inner IP version that the headers announce.
pub(crate) const VERSION: i16 = FIB - 16;
/// Whether the inner packet is to be marked CE.
pub(crate) const MARK: i16 = FIB - 24;
/// The inner Ethernet header.
pub(crate) const FRAME: i16 = FIB - 40;

/// Length of all headers in front of the inner packet, the Ethernet header included.
pub(crate) const HEADERS: Reg = Reg::R9;

pub(crate) const UDP_LEN: i16 = 8;
/// The protocol number of UDP.
pub(crate) const UDP: i32 = 17;
