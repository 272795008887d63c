//! USB adapters of the LAN78xx family as network interfaces, and software models of such adapters.

mod health;
mod interface;
pub mod model;
mod opener;
pub mod plan;
pub mod schema;
pub mod up;
pub mod usb;
