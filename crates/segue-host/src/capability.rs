//! Capabilities of a process (capabilities(7)).

/// A capability that segue may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Permission to give files to other users.
    Chown = 0,
    /// Permission to read and write files regardless of their mode.
    DacOverride = 1,
    /// Permission to read files and search directories regardless of their mode.
    DacReadSearch = 2,
    /// Permission to signal processes of other users.
    Kill = 5,
    /// Permission to change groups.
    SetGid = 6,
    /// Permission to change users.
    SetUid = 7,
    /// Permission to drop capabilities from the bounding set.
    SetPcap = 8,
    /// Permission to bind ports below 1024.
    NetBindService = 10,
    /// Permission to create and change network interfaces.
    NetAdmin = 12,
    /// Permission to open packet and raw sockets.
    NetRaw = 13,
    /// Permission to enter namespaces.
    SysAdmin = 21,
    /// Permission to exceed limits of resources.
    SysResource = 24,
    /// Permission to observe performance, with which the verifier of BPF programs accepts more of them.
    Perfmon = 38,
    /// Permission to load BPF programs.
    Bpf = 39,
}

impl Capability {
    /// Returns the name in the spelling of capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Capability::Chown => "CAP_CHOWN",
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Capability::Kill => "CAP_KILL",
            Capability::SetGid => "CAP_SETGID",
            Capability::SetUid => "CAP_SETUID",
            Capability::SetPcap => "CAP_SETPCAP",
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysResource => "CAP_SYS_RESOURCE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }

    /// Returns whether the capability is in the set `capabilities`, one bit for each.
    pub fn is_in(self, capabilities: u64) -> bool {
        capabilities >> self as u32 & 1 == 1
    }
}

/// Returns whether CAP_NET_ADMIN is in the set `capabilities`.
pub fn has_net_admin(capabilities: u64) -> bool {
    Capability::NetAdmin.is_in(capabilities)
}
