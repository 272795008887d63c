//! The mappings of a NAT, as `segue nat` shows them.

use std::net::SocketAddrV4;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mapping, as it goes over the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// tcp, udp or icmp.
    pub protocol: String,
    /// The host inside and its port, or the identifier of its queries.
    #[schemars(with = "String")]
    pub inside: SocketAddrV4,
    /// The port or identifier outside.
    pub outside: u16,
    /// static, or of TCP: opening, open or closing; otherwise missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Seconds since the last packet; missing where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// Packets that left, a train counting one.
    pub out: u64,
    /// The same for those that came.
    #[serde(rename = "in")]
    pub into: u64,
}
