//! What adapters and their models say as JSON. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// The id of what `up` and `model` print, one object for each event.
pub const EVENTS: &str = "segue.lan78xx/1";
/// Of `segue lan78xx up`.
#[derive(Serialize, JsonSchema)]
pub struct Adapter {
    /// The interface.
    pub name: String,
    /// Where the adapter is: a port, a `usbip://` address, `auto` or `model`.
    pub usb: String,
    /// `napi` or `standard`.
    pub mode: String,
    /// The chip.
    pub chip: Option<String>,
    /// `full`, `high` or `super`.
    pub speed: Option<String>,
    /// Its address.
    pub mac: Option<String>,
    /// Where that was found.
    pub mac_from: Option<String>,
    /// Largest packet.
    pub mtu: u32,
}

/// Of `segue lan78xx model`.
#[derive(Serialize, JsonSchema)]
pub struct Model {
    /// Its name for `segue stat`.
    pub name: String,
    /// Where it answers.
    pub usbip: String,
    /// Its bus id there.
    pub bus_id: String,
    /// The chip.
    pub chip: String,
    /// `full`, `high` or `super`.
    pub speed: String,
    /// The TAP at the other end of its cable.
    pub wire: Option<String>,
}

/// `segue.lan78xx/1`, `notes`
#[derive(Serialize, JsonSchema)]
pub struct Notes {
    /// Always `segue.lan78xx/1`.
    pub schema: String,
    /// Always `notes`.
    pub event: String,
    /// Whether somebody has the device.
    pub attached: bool,
    /// The link in Mbit/s, once it is up.
    pub link_mbit: Option<u32>,
    /// What happened so far, by name.
    pub notes: BTreeMap<String, u64>,
}

/// `segue.lan78xx/1`, `trace`
#[derive(Serialize, JsonSchema)]
pub struct Trace {
    /// Always `segue.lan78xx/1`.
    pub schema: String,
    /// Always `trace`.
    pub event: String,
    /// Every register that was written since the last `trace`, by address (hexadecimal), and its last value.
    pub written: BTreeMap<String, u32>,
    /// Every register that was read.
    pub read: Vec<String>,
}
