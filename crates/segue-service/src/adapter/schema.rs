//! The JSON events of adapters and of their models. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// Schema id of the events that `up` and `model` print, one object for each.
pub const EVENTS: &str = "segue.lan78xx/1";
/// The plan of `segue lan78xx up`.
#[derive(Serialize, JsonSchema)]
pub struct Adapter {
    /// The name of the interface.
    pub name: String,
    /// The place of the adapter: a port, a `usbip://` address, `auto` or `model`.
    pub usb: String,
    /// Driver mode: `napi` or `standard`.
    pub mode: String,
    /// Name of the adapter's chip.
    pub chip: Option<String>,
    /// USB speed: `full`, `high` or `super`.
    pub speed: Option<String>,
    /// Hardware address of the interface.
    pub mac: Option<String>,
    /// The source of the hardware address.
    pub mac_from: Option<String>,
    /// MTU of the interface, bytes.
    pub mtu: u32,
}

/// The plan of `segue lan78xx model`.
#[derive(Serialize, JsonSchema)]
pub struct Model {
    /// The name for `segue stat`.
    pub name: String,
    /// The address and port that are served.
    pub usbip: String,
    /// The bus id of the device.
    pub bus_id: String,
    /// Name of the model's chip.
    pub chip: String,
    /// USB speed: `full`, `high` or `super`.
    pub speed: String,
    /// TAP at the other end of the model's cable.
    pub wire: Option<String>,
}

/// The notes on an adapter: `segue.lan78xx/1`, event `notes`.
#[derive(Serialize, JsonSchema)]
pub struct Notes {
    /// The schema id, always `segue.lan78xx/1`.
    pub schema: String,
    /// The name of the event, always `notes`.
    pub event: String,
    /// Whether a client has imported the device.
    pub attached: bool,
    /// The speed of the link, Mbit/s, once the link is up.
    pub link_mbit: Option<u32>,
    /// Counters of the model, by name.
    pub notes: BTreeMap<String, u64>,
}

/// The trace of an adapter's registers: `segue.lan78xx/1`, event `trace`.
#[derive(Serialize, JsonSchema)]
pub struct Trace {
    /// The schema id, always `segue.lan78xx/1`.
    pub schema: String,
    /// The name of the event, always `trace`.
    pub event: String,
    /// Every register that was written since the last `trace`, by address (hexadecimal), with its last value.
    pub written: BTreeMap<String, u32>,
    /// Every register that was read since the last `trace`.
    pub read: Vec<String>,
}
