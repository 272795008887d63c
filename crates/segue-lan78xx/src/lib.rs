//! A user-space driver for LAN78xx USB Ethernet adapters, and a software model of the chip.
//!
//! - [`driver`]: the adapter as a [`segue_port::Port`].
//! - [`regs`], [`frame`]: registers, tables and framing, shared by driver and model.
//! - [`usb`]: the USB interface that the driver uses, over hardware, over a network, or in this process.
//! - [`model`]: a software model of the chip, to test this driver and others against.
//!
//! # Lifecycle
//! 1. The caller opens a [`usb::Transport`]: an adapter of this machine ([`usb::usbfs`]), one exported by a USB/IP
//!    server ([`usb::usbip`]), or a model in this process ([`usb::local`]).
//! 2. [`Driver::open`](driver::Driver::open) resets the chip, finds its Ethernet address and sets it up.
//!    [`Driver::up`](driver::Driver::up) starts sending and receiving; the link comes up later, and is reported to the
//!    listener of [`Driver::on_link`](driver::Driver::on_link).
//! 3. The caller waits for the driver's descriptor, and receives and transmits batches through
//!    [`Port`](segue_port::Port). Within these calls the driver handles interrupts, the link, statistics and halted
//!    endpoints; it has no thread of its own.
//! 4. When the device goes away, packets sent meanwhile are counted as drops. The finder of
//!    [`Driver::on_gone`](driver::Driver::on_gone) looks for it, and a device that is back is set up with the same
//!    address.
//! 5. [`Driver::down`](driver::Driver::down) stops the chip and cancels all transfers; packets under way are lost.
//!
//! # Promises
//! - Memory that the device may be writing cannot be read or written: the type of a lent transfer has no access to it.
//! - A frame that the driver cannot accept, and one lost on a failed transfer, is counted; the model has a reason for
//!   each frame that it loses ([`model::Notes`]).
//! - Driver and model share registers and framing only, so that an error in one of them shows in the other.
//! - The model does no I/O and reads no clock: the same calls have the same results.
//!
//! # Limits
//! The driver was never tried on a real chip. It supports the internal PHY of the LAN7800 and the LAN7850, and
//! [refuses](driver::Error) other chips and settings that the chip does not support. It merges no
//! frames, creates no interface, and passes no received checksum on that the chip has marked as unusable.
#![deny(missing_docs)]

pub mod driver;
pub mod frame;
pub mod model;
pub mod regs;
mod sys;
pub mod usb;
