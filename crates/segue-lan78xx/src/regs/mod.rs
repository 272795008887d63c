//! Registers of the LAN7800, LAN7801 and LAN7850, the vendor requests that reach them, and the tables that are written
//! through them.
//!
//! Addresses and bits are those that the Linux driver `lan78xx` and the FreeBSD driver `muge` agree on; where the two
//! differ, those of Linux. Driver and model share this module and [`frame`](crate::frame), and nothing else.

mod address;
mod bits;
mod chip;
mod crc;
pub mod mii;
mod statistics;
mod usb;

pub use address::*;
pub use bits::{dp, e2p, fct, flow, hw_cfg, int, mac_cr, mac_rx, mac_tx, pmt, rfe, usb_cfg0, usb_cfg1};
pub use chip::{Chip, VENDOR};
pub use crc::{address_hash, fcs};
pub use statistics::{STATISTICS, STATISTICS_LEN, Statistic, stat};
pub use usb::{endpoint, request};
