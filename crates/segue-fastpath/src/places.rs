//! Stack offsets and the register of the receive program.

use crate::assembler::Reg;

/// Stack offset of the outer IP, UDP, and GUE, VXLAN or Geneve headers.
pub(crate) const OUTER: i16 = -80;
/// Stack offset of the GRE header; zeros where there is none, or no key.
pub(crate) const GRE: i16 = OUTER - 8;
/// Stack offset of the first 20 bytes of the inner packet.
pub(crate) const INNER: i16 = GRE - 24;
/// Stack offset of the key for the map of tunnels by packet.
pub(crate) const PEER: i16 = INNER - 24;
/// Stack offset of `struct bpf_fib_lookup`, and earlier in the program of the inner IPv6 source address.
pub(crate) const FIB: i16 = PEER - 64;
pub(crate) const FIB_LEN: i32 = 64;
/// Stack offset of the outer length, counted from the IP header on.
pub(crate) const TOTAL: i16 = FIB - 8;
/// Stack offset of the inner IP version that the outer headers announce.
pub(crate) const VERSION: i16 = FIB - 16;
/// Stack offset of the flag that the inner packet is to be marked CE.
pub(crate) const MARK: i16 = FIB - 24;
/// Stack offset of the inner Ethernet header.
pub(crate) const FRAME: i16 = FIB - 40;

/// Register of the length of all headers in front of the inner packet, the Ethernet header included.
pub(crate) const HEADERS: Reg = Reg::R9;
