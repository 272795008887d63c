//! Events that the threads of the agent report to its loop.

use segue_control::error::Error;

use crate::config::Config;
use crate::etcd::Batch;
use crate::network::Network;
use crate::roster::Roster;

/// The lease that this host has acquired.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// The configuration of the network.
    pub config: Config,
    /// The subnet of this host.
    pub subnet: Network,
    /// Whether the lease is a reservation, which never expires.
    pub is_reservation: bool,
    /// The member of etcd that granted the lease.
    pub endpoint: String,
}

/// An event that a thread reports to the agent's loop.
#[derive(Clone, Debug)]
pub enum Event {
    /// This host has acquired a lease.
    Acquired(Box<Acquired>),
    /// This host's lease was renewed.
    Renewed {
        /// Whether it expires; a reservation does not.
        expires: bool,
    },
    /// This host's lease could not be renewed.
    NotRenewed {
        /// The reason, as a sentence for the log.
        why: String,
        /// Whether the registry has no lease of this host any more, so that other hosts have no peer for it.
        is_gone: bool,
    },
    /// A list of all entries of the registry, and its revision.
    Listed(Box<Roster>, i64),
    /// Changes of the registry; an empty batch reports that a watch has begun.
    Changed(Batch, String),
    /// The registry cannot be reached, for the given reason.
    Stale(String),
    /// An error after which the agent cannot continue.
    Fatal(Error),
    /// A signal to stop the agent.
    Stop,
}
