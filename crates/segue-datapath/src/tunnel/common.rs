//! State and counters that the tunnels of one outside port share.

use segue::encap::{DecapRefusal, OuterCsum};
use segue::reason::Counts;
use segue_port::RxBatch;

use crate::endpoint::Endpoint;
use crate::ingress::{CutCounts, Traffic};

segue::reasons! {
    /// Reason why the tunnel pipeline dropped a packet, besides those of encapsulation, decapsulation and ports.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        PathMtu = "path_mtu": "A packet that exceeds the path MTU; its sender was told by ICMP.",
        NoRemote = "no_remote": "A frame to a group or an unknown address, and no remote gets such frames.",
        ProbeUnasked = "probe_unasked": "An answer to a probe that was not asked, was answered already or is too late.",
        ProbeLimit = "probe_limit": "A probe of the other end beyond the rate at which it is answered.",
    }
}

/// The outside port, the receive buffers and the counters that all tunnels share; they are published under the name of
/// the outside port.
pub(super) struct Common {
    pub(super) outside: Endpoint,
    pub(super) rx: RxBatch,
    pub(super) outer_csum: OuterCsum,
    /// Packets and bursts received from all ports.
    pub(super) taken: u64,
    /// Packets with remote checksum offload, whose checksum the far end completes.
    pub(super) remote: Remote,
    /// Packets after decapsulation.
    pub(super) unwrapped: Traffic,
    /// Packets and trains after GRO.
    pub(super) joined: Traffic,
    /// Packets and trains that entered encapsulation.
    pub(super) entered: Traffic,
    /// Packets split on the way out.
    pub(super) cuts: CutCounts,
    /// Payload bytes summed to verify checksums.
    pub(super) verified: u64,
    /// Ethernet addresses learned, moved and evicted.
    pub(super) fdb: [u64; 3],
    pub(super) drops: Counts<Dropped>,
    pub(super) decap_drops: Counts<DecapRefusal>,
}

/// Packets with remote checksum offload, whose checksum the far end completes.
#[derive(Debug, Default)]
pub(super) struct Remote {
    pub(super) sent: u64,
    pub(super) received: u64,
}
