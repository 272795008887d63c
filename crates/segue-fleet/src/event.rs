//! What the threads of the agent report to its loop.

use segue_control::error::Error;

use crate::config::Config;
use crate::etcd::{Batch, Listing};
use crate::network::Network;

/// The lease that this host has got.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// The configuration of the network.
    pub config: Config,
    /// The subnet of this host.
    pub subnet: Network,
    /// Whether it is a reservation, which has no end.
    pub is_reservation: bool,
    /// The member of etcd that gave it.
    pub endpoint: String,
}

/// One report.
#[derive(Clone, Debug)]
pub enum Event {
    /// This host has a lease.
    Acquired(Box<Acquired>),
    /// Its lease was renewed.
    Renewed,
    /// Its lease could not be renewed, for this reason.
    NotRenewed(String),
    /// All entries of the registry.
    Listed(Listing),
    /// Changes of the registry; none where a watch has just begun.
    Changed(Batch, String),
    /// The registry is not reached, for this reason.
    Stale(String),
    /// The agent cannot go on.
    Fatal(Error),
    /// The user has asked for the end.
    Stop,
}
