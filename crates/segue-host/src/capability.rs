//! Capabilities of a process (capabilities(7)).

/// A right that segue may need (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// To make and change interfaces.
    NetAdmin = 12,
    /// To open packet sockets.
    NetRaw = 13,
    /// To enter namespaces.
    SysAdmin = 21,
}

impl Capability {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    /// Whether it is among `capabilities`.
    pub fn is_in(self, capabilities: u64) -> bool {
        capabilities >> self as u32 & 1 == 1
    }
}

/// Whether CAP_NET_ADMIN is among `capabilities`.
pub fn has_net_admin(capabilities: u64) -> bool {
    Capability::NetAdmin.is_in(capabilities)
}
