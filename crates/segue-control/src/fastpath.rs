//! The in-kernel path of a tunnel, as the control socket shows it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of a tunnel's in-kernel packet path, which bypasses the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fastpath {
    /// Requested mode: `auto`, `on`, `off`, `require`.
    pub mode: String,
    /// Whether packets take the in-kernel path.
    pub on: bool,
    /// Reason why packets do not take the in-kernel path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Directions (`sent`, `received`) that the process serves although the in-kernel path is on, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_daemon: BTreeMap<String, String>,
    /// For a tunnel with a peer table: the peers by path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Box<FastpathPeers>>,
}

/// Numbers of peers in a table by the path that their packets take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FastpathPeers {
    /// Number of peers whose packets the kernel carries in both directions.
    pub kernel: u64,
    /// Numbers of peers whose packets the process carries, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub segue: BTreeMap<String, u64>,
}
