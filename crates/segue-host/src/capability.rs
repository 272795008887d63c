//! Capabilities of a process (capabilities(7)).

/// A capability that segue may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Permission to make and change interfaces.
    NetAdmin = 12,
    /// Permission to open packet and raw sockets.
    NetRaw = 13,
    /// Permission to enter namespaces.
    SysAdmin = 21,
}

impl Capability {
    /// The name, as in capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    /// Whether the capability is in the set `capabilities`.
    pub fn is_in(self, capabilities: u64) -> bool {
        capabilities >> self as u32 & 1 == 1
    }
}

/// Whether CAP_NET_ADMIN is in the set `capabilities`.
pub fn has_net_admin(capabilities: u64) -> bool {
    Capability::NetAdmin.is_in(capabilities)
}
