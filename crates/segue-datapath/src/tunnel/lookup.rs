//! Which of the tunnels on one port a datagram is for, at a cost that does not depend on how many there are.

use std::collections::HashMap;
use std::net::IpAddr;

use segue::encap::{Config, Identity};

/// A tunnel, and which of its remotes the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) member: usize,
    pub(super) remote: u16,
}

/// The tunnels of one sender.
#[derive(Debug)]
pub(super) struct Tunnels {
    /// Gets also what has the identity of none, to refuse it under the name of what is wrong.
    first: Target,
    /// Where there are more.
    by_identity: HashMap<Identity, Target>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Any of the tunnels: all read a datagram's identity in the same place.
    config: Config,
    by_sender: HashMap<IpAddr, usize>,
    tunnels: Vec<Tunnels>,
    /// The sender that was looked up last, which most often is the next one too.
    last: Option<(IpAddr, usize)>,
}

impl Lookup {
    /// For tunnels with these remotes. Of two that take the same the first counts.
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

    /// The tunnels of `sender`; `None` for a stranger.
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

    /// The tunnel for `datagram` among those that [`of`](Self::of) gave.
    #[inline]
    pub(super) fn to(&self, at: usize, datagram: &[u8]) -> Target {
        let Tunnels { first, by_identity } = &self.tunnels[at];
        if by_identity.is_empty() {
            return *first;
        }
        let found = self.config.identify(datagram).and_then(|identity| by_identity.get(&identity));
        found.copied().unwrap_or(*first)
    }
}
