//! LAN78xx USB Ethernet adapters without a kernel driver.
//!
//! - [`driver`]: the adapter as a [`segue_port::Port`].
//! - [`regs`], [`frame`]: registers, tables and framing, shared by both sides.
//! - [`usb`]: what a driver needs of USB, over hardware, over a network, or in this process.
//! - [`model`]: the chip in software, for tests of this driver and of others.
#![deny(missing_docs)]

pub mod driver;
pub mod frame;
pub mod model;
pub mod regs;
mod sys;
pub mod usb;
