//! The pipeline of a gateway with more than two ports: a learning bridge.
//!
//! Frames go to the port on which their destination was learned as a source ([`stations`](self)), and to all others
//! where it is unknown or a group address. Trains are joined and cut as between two ports: whole to a port that takes
//! them, cut last for one that does not. A frame that stays alone is never parsed.
//!
//! No port costs another one more than its share:
//! - Ports with packets are served in turn, each within a quantum of bytes per round; what is flooded costs its source
//!   the copies, and a train of short segments each of them. A port without packets costs nothing.
//! - Packets for a port that takes none wait in a queue of limited length, and are dropped where it is full. No source
//!   is held back, so that packets of the same source for other ports are still forwarded.
//! - A port that wakes the loop without a packet again and again is left alone for a while.
//! - Each port may have a limited number of stations, and floods a limited number of packets per second.

mod pipeline;
mod port;
mod settings;
mod stations;

use segue::encap::Mac;
use segue::gro;
use segue_port::PagePool;

use crate::knobs::Knobs;
use crate::port_pair::PortConfig;

pub use pipeline::Bridge;

/// Largest number of ports of a bridge.
pub const MOST_PORTS: usize = 128;

segue::reasons! {
    /// Reason why a bridge dropped a packet. All but the last two are counted at the port that received it.
    pub enum Dropped {
        Runt = "bridge_runt": "A frame shorter than an Ethernet header.",
        Source = "bridge_source": "The source of the frame is a group address or zero.",
        OwnSource = "bridge_own_source": "The source of the frame is the address of this host's interface at another port.",
        Reserved = "bridge_reserved": "The destination is a group address that no bridge forwards (01:80:c2:00:00:01 to 0f).",
        SamePort = "bridge_same_port": "The destination is at the port by which the frame came in.",
        Flood = "bridge_flood": "A frame to a group or an unknown address, beyond the flood limit of the port by which it came in.",
        NoPort = "bridge_no_port": "A frame to a group or an unknown address, while no other port was up.",
        Queue = "bridge_queue": "The port took no packets, and its queue was full.",
        Memory = "bridge_memory": "Dropped from the queue of a port that took no packets, since others needed the memory.",
    }
}

/// One port of a bridge.
pub struct BridgePort {
    /// The port with its settings.
    pub config: PortConfig,
    /// Address of this host's interface at the port, which no frame from another port has as its source. Ports that
    /// know it themselves need none.
    pub own: Option<Mac>,
}

/// The parts that a bridge is made of.
pub struct Parts {
    /// The ports, at least two and at most [`MOST_PORTS`].
    pub ports: Vec<BridgePort>,
    /// Initial weight of each port: most frames received from one port at a time.
    pub budget: usize,
    /// Pages that received packets are read into.
    pub pages: PagePool,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("ports", &self.ports.len()).finish_non_exhaustive()
    }
}

/// Returns the knobs of a bridge between the named ports, before it is created; `budget` as in [`Parts`].
pub fn knobs(names: &[&str], gro: Option<gro::Config>, budget: usize) -> Knobs {
    let ports = names.iter().map(|name| ((*name).to_owned(), gro));
    Knobs::of(|dial| settings::Settings::new(ports, budget).tune(dial))
}
