//! The JSON of `segue lan78xx -j`, for `segue schema lan78xx` and for the commands. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use segue_control::model::{Instance, Offload};
use segue_service::adapter::schema::{Adapter, Model, Notes, Trace};
use segue_service::sandbox::Sandbox;
use serde::Serialize;

/// Schema id of the document that `list` prints.
pub(super) const LIST: &str = "segue.lan78xx.list/1";

/// One object of `segue lan78xx -j`; `schema` and `event` say which.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum Document {
    /// `up` or `model` is ready.
    Up(Up),
    /// `up` or `model` has ended.
    Down(Down),
    /// The notes of a model, on request.
    Notes(Notes),
    /// The register accesses of a model, on request.
    Trace(Trace),
    /// The adapters that `list` found.
    List(List),
}

/// The `up` event of `segue.lan78xx/1`.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Up {
    /// The schema id, always `segue.lan78xx/1`.
    schema: String,
    /// The name of the event, always `up`.
    event: String,
    /// Time at which the adapter came up: RFC 3339, UTC.
    t: String,
    /// Offloads of the kernel and the chip, by name.
    offloads: BTreeMap<String, Offload>,
    /// Rights that the process has given up.
    sandbox: Sandbox,
    /// Notes for the user about the adapter.
    notes: Vec<String>,
    /// Settings of the adapter or model.
    plan: Plan,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum Plan {
    Adapter(Adapter),
    Model(Model),
}

/// The `down` event of `segue.lan78xx/1`.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Down {
    /// The schema id, always `segue.lan78xx/1`.
    schema: String,
    /// The name of the event, always `down`.
    event: String,
    /// Time at which the adapter went down: RFC 3339, UTC.
    t: String,
    /// Seconds between `up` and `down`.
    after_s: f64,
    /// Last state of the instance, as in `segue.stat/1`.
    instance: Instance,
}

/// The document `segue.lan78xx.list/1`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct List {
    /// The schema id, always `segue.lan78xx.list/1`.
    pub(super) schema: String,
    /// Adapters that were found.
    pub(super) adapters: Vec<Listed>,
}

/// One adapter that `list` found.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// Value of `up --usb` that selects the adapter.
    pub(super) usb: String,
    /// Name of the chip.
    pub(super) chip: String,
    /// USB speed: `full`, `high` or `super`; null if the server reports another one.
    pub(super) speed: Option<String>,
    /// Kernel driver that is bound to the adapter; null for none.
    pub(super) driver: Option<String>,
}
