//! Events that the threads of the agent report to its loop.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use segue_control::error::Error;

use crate::config::Config;
use crate::etcd::Batch;
use crate::network::Network;
use crate::roster::Roster;

/// Largest number of events that wait for the loop. One can have the changes of a message of a member of etcd, which
/// take tens of megabytes.
const QUEUED: usize = 2;

/// Returns the queue of events for the loop of an agent: a thread that reports more waits, except that of the lease.
pub fn queue() -> (SyncSender<Event>, Receiver<Event>) {
    sync_channel(QUEUED)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_events_wait_for_a_loop_that_is_behind() {
        let (events, _inbox) = queue();
        let most = (0..100).take_while(|_| events.try_send(Event::Stop).is_ok()).count();
        assert!((1..5).contains(&most), "{most}");
    }
}
