//! A LAN78xx that is made of software: what the chip shows at its USB side and at its cable.
//!
//! The model does no I/O and reads no clock. At the USB side it takes control requests ([`Model::control`]) and transfers
//! ([`Model::submit`], [`Model::cancel`]) and gives completions ([`Model::done`]); at the cable it takes frames from the
//! link partner ([`Model::receive`]) and gives frames ([`Model::transmit`]), both without FCS. [`Model::advance`] moves
//! everything along, and [`Model::deadline`] says when to do so at the latest.
//!
//! It is written from what drivers of two kernels rely on, and the unmodified Linux driver works with it; it was never
//! compared with silicon. What it does where neither driver settles the matter:
//! - a frame that does not fit the rest of a bulk-in transfer goes whole into the next one; one that is longer than the burst
//!   cap is dropped, and one that is longer than the host's transfer is lost with it: the transfer ends with an overflow, as
//!   that of a host whose device sends more than was asked for (both [`Notes::unfit`]);
//! - a bulk-out transfer may end inside a frame only where the next one goes on with it; a short packet in the middle of a
//!   frame, a command with reserved bits or without length is a loss of sync: the rest is dropped, INT_STS.TXE is set, and
//!   the endpoint is halted unless USB_CFG0 bit 0 forbids it;
//! - segmentation counts the IPv4 identification up by one for each segment;
//! - the checksum field of a frame whose tag was not taken out is worth nothing, as drivers know;
//! - the partner obeys pause frames and holds at most [`Config::partner_queue`] frames meanwhile.
//!
//! A soft reset (HW_CFG.SRST) resets all registers, but the device stays on the bus.

mod bulk;
mod config;
mod control;
pub mod descriptors;
mod faults;
mod fifo;
mod inject;
mod mac;
mod mac_state;
mod memory;
mod notes;
mod offload;
mod phy;
mod registers;
mod run;
mod state;
mod transfer;

pub use config::{Config, Identity};
pub use faults::{Fault, Lies};
pub use notes::Notes;
pub use phy::{LinkSpeed, Partner};
pub use state::{Access, Model};
pub use transfer::{Completion, Outcome, TransferRequest};
