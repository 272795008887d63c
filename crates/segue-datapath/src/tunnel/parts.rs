//! Parts and knobs of tunnels.

use std::net::IpAddr;
use std::sync::Arc;

use segue::encap::{Decapsulator, Encapsulator, Fdb, OuterCsum};
use segue::gro;
use segue::hash::Key;
use segue_port::{Port, TunnelWatch};

use super::probe::Probe;
use crate::knobs::{Dial, Knobs};
use crate::tuning::{QueueSettings, Remcsum, Settings};

/// Returns the knobs of tunnels between the named ports; each inside port has the interval of its probe if it can have
/// one; `remcsum` states whether a tunnel uses remote checksum offload; `budget` as in [`Outside`].
pub fn knobs(
    insides: &[(&str, Option<u64>)],
    outside: &str,
    gro: Option<gro::Config>,
    remcsum: bool,
    budget: usize,
) -> Knobs {
    let remcsum = if remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let settings = |&(inside, probe): &(&str, Option<u64>)| {
        let names = [inside, outside].map(str::to_owned);
        Settings { probe, ..settings(names, gro, remcsum, budget) }
    };
    // GRO has the name of the port that receives the trains, as its counters do.
    let mut all: Vec<Settings> = insides.iter().map(settings).collect();
    Knobs::of(|dial| tune(&mut all, dial))
}

/// Returns the initial settings of a tunnel between the named ports.
pub(super) fn settings(names: [String; 2], gro: Option<gro::Config>, remcsum: Remcsum, budget: usize) -> Settings {
    Settings { queue: Some(QueueSettings::default()), ..Settings::new(names, [gro, None], remcsum, budget) }
}

/// Shows all settings of the first tunnel to `dial`, and the interface settings of the others.
pub(super) fn tune(settings: &mut [Settings], dial: &mut Dial<'_>) {
    if let Some((first, others)) = settings.split_first_mut() {
        first.tune(dial);
        others.iter_mut().for_each(|other| other.tune_inside(dial, first));
    }
}

/// The outside part of a tunnel pipeline.
pub struct Outside {
    /// Name of the port in statistics.
    pub name: String,
    /// The port that receives and sends datagrams. Its peers are the remotes of all tunnels, one tunnel after the
    /// other.
    pub port: Box<dyn Port>,
    /// The state of the outer checksum of datagrams with a remote checksum option, as verified by the port.
    pub csum: OuterCsum,
    /// Largest number of packets or bursts taken from one port in one round: the initial weight of all.
    pub budget: usize,
    /// Largest number of pages of memory to receive into.
    pub pages: usize,
    /// Key by which flows are spread over queues; it should be random.
    pub key: Key,
    /// The kernel's tunnel devices beside the interfaces: what is in packets for them is joined where the interface
    /// takes such trains.
    pub tunnels: Option<TunnelWatch>,
}

/// The parts that one tunnel is made of.
pub struct Parts {
    /// Name of the inside port in statistics: the interface.
    pub inside_name: String,
    /// The port for inner packets.
    pub inside: Box<dyn Port>,
    /// The sending half of the tunnel.
    pub encap: Encapsulator,
    /// The decapsulator, which removes outer headers.
    pub decap: Decapsulator,
    /// Addresses whose datagrams are accepted. Packets are sent to the first one; Ethernet frames go where the
    /// forwarding table says, if there is one.
    pub remotes: Vec<IpAddr>,
    /// Ethernet addresses of the remotes. Frames to groups and to unknown addresses go to `flood`.
    pub fdb: Option<Fdb>,
    /// Indexes of the remotes that get every frame without a known remote.
    pub flood: Vec<u16>,
    /// Initial configuration of GRO for inbound packets, which can be changed and switched off later; `None` for a
    /// tunnel that can never join packets.
    pub gro: Option<gro::Config>,
    /// The state of the probe; `None` for a tunnel that can have none.
    pub probe: Option<Arc<Probe>>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("inside", &self.inside_name)
            .field("remotes", &self.remotes)
            .finish_non_exhaustive()
    }
}
