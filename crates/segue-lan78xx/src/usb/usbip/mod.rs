//! USB/IP 1.1.1 (Linux, Documentation/usb/usbip_protocol.rst): USB devices over TCP, both ends.
//!
//! [`Session`] is the server's side of one connection without its I/O, [`serve`] runs it for the model; [`Client`] is a
//! [`Transport`](super::Transport). Neither side has any protection: whoever reaches the port has the device.

mod client;
pub mod serve;
mod session;
mod wire;

pub use client::{Client, ImportError, list};
pub use session::{Exported, Phase, Session};
pub use wire::{PORT, RECORD_LEN, Record};
