//! The JSON of `segue lan78xx -j`, for `segue schema lan78xx` and for the commands. Keys are only ever added.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use segue_control::model::{Instance, Offload};
use segue_service::adapter::schema::{Adapter, Model, Notes, Trace};
use segue_service::sandbox::Sandbox;
use serde::Serialize;

/// The schema id of what `list` prints.
pub(super) const LIST: &str = "segue.lan78xx.list/1";

/// One object of `segue lan78xx -j`; `schema` and `event` say which.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum Document {
    /// `up` or `model` is ready
    Up(Up),
    /// it has ended
    Down(Down),
    /// a model was asked for its notes
    Notes(Notes),
    /// a model was asked for the registers that were touched
    Trace(Trace),
    /// `list`
    List(List),
}

/// `segue.lan78xx/1`, `up`
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Up {
    /// Always `segue.lan78xx/1`.
    schema: String,
    /// Always `up`.
    event: String,
    /// When: RFC 3339, UTC.
    t: String,
    /// What the kernel and the chip do, by name.
    offloads: BTreeMap<String, Offload>,
    /// What the process has given up.
    sandbox: Sandbox,
    /// Things to know.
    notes: Vec<String>,
    /// What there is now.
    plan: Plan,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum Plan {
    Adapter(Adapter),
    Model(Model),
}

/// `segue.lan78xx/1`, `down`
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Down {
    /// Always `segue.lan78xx/1`.
    schema: String,
    /// Always `down`.
    event: String,
    /// When: RFC 3339, UTC.
    t: String,
    /// Seconds that it was up.
    after_s: f64,
    /// Its last state, as in `segue.stat/1`.
    instance: Instance,
}

/// `segue.lan78xx.list/1`
#[derive(Serialize, JsonSchema)]
pub(crate) struct List {
    /// Always `segue.lan78xx.list/1`.
    pub(super) schema: String,
    /// What was found.
    pub(super) adapters: Vec<Listed>,
}

/// One adapter.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// What `up --usb` takes for it.
    pub(super) usb: String,
    /// The chip.
    pub(super) chip: String,
    /// `full`, `high` or `super`; null where the server says another one.
    pub(super) speed: Option<String>,
    /// The kernel's driver that has it.
    pub(super) driver: Option<String>,
}
