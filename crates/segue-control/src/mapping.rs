//! The form of a NAT mapping on the control socket.

use std::net::SocketAddrV4;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::printable_line;

/// One mapping of a NAT, with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// Protocol of the mapping: `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// The inside host and its port, or the identifier of its ICMP queries.
    #[schemars(with = "String")]
    pub inside: SocketAddrV4,
    /// The port or identifier outside.
    pub outside: u16,
    /// `static`, or for TCP `opening`, `open` or `closing`; missing otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Seconds since the last packet; missing where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// Number of packets from inside to outside; a train counts as one.
    pub out: u64,
    /// Number of packets from outside to inside; a train counts as one.
    #[serde(rename = "in")]
    pub into: u64,
}

impl Mapping {
    /// Returns the mapping of an answer, with texts that are safe to print.
    #[must_use]
    pub(crate) fn printable(self) -> Mapping {
        let state = self.state.map(|state| printable_line(&state));
        Mapping { protocol: printable_line(&self.protocol), state, ..self }
    }
}
