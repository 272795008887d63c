//! What the tunnels of one outside port have in common.

use segue::encap::{DecapRefusal, OuterCsum};
use segue::reason::Counts;
use segue_port::RxBatch;

use crate::endpoint::Endpoint;
use crate::ingress::{CutCounts, Traffic};

segue::reasons! {
    /// Why the tunnel itself dropped something, beside what encapsulation, decapsulation and ports name.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        PathMtu = "path_mtu": "A packet that the way has become too narrow for; its sender was told by ICMP.",
        NoRemote = "no_remote": "A frame for a group or an unknown address, and no remote that has such.",
    }
}

/// What all tunnels have in common, with what is counted for all together under the name of the outside port.
pub(super) struct Common {
    pub(super) outside: Endpoint,
    pub(super) rx: RxBatch,
    pub(super) outer_csum: OuterCsum,
    /// Packets and bursts taken from all ports.
    pub(super) taken: u64,
    /// Packets sent and received whose checksum is left to the far end.
    pub(super) remote: Remote,
    /// What the stages saw.
    pub(super) unwrapped: Traffic,
    pub(super) joined: Traffic,
    pub(super) entered: Traffic,
    /// What was cut on the way out.
    pub(super) cuts: CutCounts,
    /// Payload bytes summed to verify checksums.
    pub(super) verified: u64,
    /// Addresses learned, moved, forgotten.
    pub(super) fdb: [u64; 3],
    pub(super) drops: Counts<Dropped>,
    pub(super) decap_drops: Counts<DecapRefusal>,
}

/// Packets whose checksum is left to the far end.
#[derive(Debug, Default)]
pub(super) struct Remote {
    pub(super) sent: u64,
    pub(super) received: u64,
}
