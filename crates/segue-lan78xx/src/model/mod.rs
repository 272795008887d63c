//! A software model of the LAN78xx chips, with the behaviour that they show at their USB side and at their cable.
//!
//! The model does no I/O and reads no clock. At the USB side it takes control requests ([`Model::control`]) and
//! transfers ([`Model::submit`], [`Model::cancel`]) and returns completions ([`Model::done`]). At the cable it takes
//! frames from the link partner ([`Model::receive`]) and returns frames ([`Model::transmit`]), both without FCS.
//! [`Model::advance`] moves its time forward, and [`Model::deadline`] says when that has to happen at the latest.
//!
//! It is written from what the drivers of two kernels rely on, and the unmodified Linux driver works with it; it was
//! never compared with silicon. Where neither driver settles the behaviour, the model does this:
//! - a frame that does not fit into the rest of a bulk-in transfer goes whole into the next one. A frame longer than
//!   the burst cap is dropped. A frame longer than the host's transfer is lost with that transfer, which ends with an
//!   overflow, like that of a device that sends more than was asked for (both [`Notes::unfit`]);
//! - a bulk-out transfer may end inside a frame only if the next one continues it. A short packet in the middle of a
//!   frame, a command with reserved bits or without length is a loss of sync: the rest is dropped, INT_STS.TXE is set,
//!   and the endpoint halts unless USB_CFG0 bit 0 forbids it;
//! - segmentation increments the IPv4 identification by one for each segment;
//! - the checksum field of a frame whose tag was not stripped is not usable, as drivers know;
//! - the partner obeys pause frames and holds at most [`Config::partner_queue`] frames in the meantime.
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
pub use faults::{Defects, Fault};
pub use notes::Notes;
pub use phy::{LinkSpeed, Partner};
pub use state::{Access, Model};
pub use transfer::{Completion, Outcome, TransferRequest};
