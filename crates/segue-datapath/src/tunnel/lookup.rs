//! Lookup of the tunnel that a datagram belongs to, at a cost that does not depend on the number of tunnels.

use std::collections::HashMap;
use std::net::IpAddr;

use segue::encap::{Config, Identity};

/// A tunnel, and the index of the sender among its remotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) member: usize,
    pub(super) remote: u16,
}

/// Tunnels that share one remote.
#[derive(Debug)]
pub(super) struct Tunnels {
    /// The first tunnel, which receives by default. It also gets datagrams of an unknown identity, to drop them under
    /// the reason that fits.
    first: Target,
    /// Tunnels by the identity of their datagrams; empty where there is only one.
    by_identity: HashMap<Identity, Target>,
}

/// The lookup table of the tunnels on one port: by sender, then by the identity of the datagram.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Configuration of one of the tunnels: all have the identity at the same offset in a datagram.
    config: Config,
    by_sender: HashMap<IpAddr, usize>,
    tunnels: Vec<Tunnels>,
    /// Sender of the last datagram, usually that of the next one too.
    last: Option<(IpAddr, usize)>,
}

impl Lookup {
    /// Creates the lookup table for tunnels with the given remotes. Of two tunnels that accept the same datagrams the
    /// first gets them.
    pub(super) fn new<'a>(config: Config, members: impl Iterator<Item = (&'a Config, &'a [IpAddr])>) -> Lookup {
        let mut made = Lookup { config, by_sender: HashMap::new(), tunnels: Vec::new(), last: None };
        for (member, (config, remotes)) in members.enumerate() {
            for (remote, &address) in (0..).zip(remotes) {
                let to = Target { member, remote };
                let at = *made.by_sender.entry(address).or_insert(made.tunnels.len());
                if at == made.tunnels.len() {
                    made.tunnels.push(Tunnels { first: to, by_identity: HashMap::new() });
                }
                for identity in config.identities() {
                    made.tunnels[at].by_identity.entry(identity).or_insert(to);
                }
            }
        }
        for tunnels in &mut made.tunnels {
            if tunnels.by_identity.values().all(|to| *to == tunnels.first) {
                tunnels.by_identity.clear();
            }
        }
        made
    }

    /// Returns the index of the tunnels with the remote `sender`, or `None` if it is unknown.
    #[inline]
    pub(super) fn of(&mut self, sender: IpAddr) -> Option<usize> {
        match self.last {
            Some((last, at)) if last == sender => Some(at),
            _ => {
                let at = *self.by_sender.get(&sender)?;
                self.last = Some((sender, at));
                Some(at)
            }
        }
    }

    /// Returns the tunnel with the given identity among those returned by [`of`](Self::of), or else the first one.
    pub(super) fn with(&self, at: usize, identity: Identity) -> Target {
        let Tunnels { first, by_identity } = &self.tunnels[at];
        by_identity.get(&identity).copied().unwrap_or(*first)
    }

    /// Returns the tunnel for `datagram` among those returned by [`of`](Self::of). Where there is only one the bytes
    /// are not looked at.
    #[inline]
    pub(super) fn to(&self, at: usize, datagram: &(impl AsRef<[u8]> + ?Sized)) -> Target {
        let Tunnels { first, by_identity } = &self.tunnels[at];
        if by_identity.is_empty() {
            return *first;
        }
        let found = self.config.identify(datagram.as_ref()).and_then(|identity| by_identity.get(&identity));
        found.copied().unwrap_or(*first)
    }
}
