//! Virtual machines: the back end of a virtio network device over vhost-user.
#![allow(dead_code, reason = "the port that uses it is in the next change")]

mod copy;
mod feature;
mod memory;
mod message;
mod reasons;
mod ring;
mod session;
mod sys;

pub use message::{Assembler, Message, Region, regions};
pub use reasons::{GuestDrop, Stop};
