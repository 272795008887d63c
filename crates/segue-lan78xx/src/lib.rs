//! LAN78xx USB Ethernet adapters without a kernel driver: registers and framing ([`regs`], [`frame`]).
#![deny(missing_docs)]

pub mod frame;
pub mod regs;
