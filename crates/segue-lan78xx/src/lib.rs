//! A user-space driver for LAN78xx USB Ethernet adapters.
//!
//! - [`driver`]: the adapter as a [`segue_port::Port`].
//! - [`regs`], [`frame`]: registers, tables and framing, shared by driver and model.
//! - [`usb`]: the USB interface that the driver uses, over hardware, over a network, or in this process.
//! - [`model`]: a software model of the chip, to test this driver and others against.
#![deny(missing_docs)]

pub mod driver;
pub mod frame;
pub mod model;
pub mod regs;
mod sys;
pub mod usb;
