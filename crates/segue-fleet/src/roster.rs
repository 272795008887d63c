//! The roster: this host's copy of the registry's entries, and the peers derived from them.
//!
//! Without I/O and without a clock: entries go in as etcd lists and reports them, the peers and the refusals come out.
//! The result depends only on the entries, not on their order of arrival: where two subnets overlap, the one whose key
//! has the form that hosts write counts (the configured length, SubnetLen, and no IPv6 part), then one of that length,
//! else the lease that was made first (by its create revision). So one old lease of half the network, or of another
//! spelling, costs no other host its subnet. Each entry is judged by itself otherwise.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};

use segue_control::peers::Mac;

use crate::config::Config;
use crate::lease::{self, Lease};
use crate::network::Network;
use crate::refusal::Refusal;

/// Default limit of the number of peers.
pub const PEERS: usize = 10_000;
/// Length above which a key is truncated, bytes.
const KEY_LEN: usize = 128;

/// An entry of the registry, as etcd has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The key of the entry.
    pub key: Vec<u8>,
    /// The value of the key.
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub created: i64,
    /// Revision of the last change of the entry.
    pub modified: i64,
    /// The id of etcd's lease; 0 for a reservation, which never ends.
    pub lease: i64,
}

/// Properties of this host and its network against which entries are checked.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The configuration of the network.
    pub config: Config,
    /// The directory of the leases, `PREFIX/subnets`.
    pub directory: String,
    /// The address of this host.
    pub address: Ipv4Addr,
    /// The outer address of this host's tunnel, which may be another one. The tunnel refuses a peer that has it.
    pub local: Option<IpAddr>,
    /// The subnet of this host.
    pub subnet: Network,
    /// The MAC address of this host's VTEP. The tunnel refuses a peer that has it.
    pub mac: Option<Mac>,
    /// Largest number of peers.
    pub limit: usize,
}

/// Peers and refusals that result from the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The leases of the peers, in the order of their subnets.
    pub leases: Vec<Lease>,
    /// The keys that result in no peer, in a form that is safe to print, with the reason.
    pub refused: Vec<(String, Refusal)>,
    /// The number of entries that were not kept, since there are too many.
    pub left_out: usize,
}

/// The rank of a lease among others of its kind: whether its subnet has another length than SubnetLen, and the revision
/// at which it was created.
type Rank = (bool, i64);

/// Leases that can become peers.
#[derive(Clone, Debug, Default)]
struct Places {
    ranks: BTreeMap<Vec<u8>, Rank>,
    /// The leases with their keys, in the order in which they count.
    leases: BTreeMap<(Rank, Vec<u8>), Lease>,
}

impl Places {
    /// Adds a lease whose key is new. Where there are more than `most` then, the last in rank leaves, whichever came
    /// first. Returns the number of those that left.
    fn insert(&mut self, key: Vec<u8>, rank: Rank, lease: Lease, most: usize) -> usize {
        self.ranks.insert(key.clone(), rank);
        self.leases.insert((rank, key), lease);
        let last = if self.leases.len() > most { self.leases.pop_last() } else { None };
        last.map_or(0, |((_, key), _)| usize::from(self.ranks.remove(&key).is_some()))
    }

    /// Removes the lease of a key.
    fn remove(&mut self, key: &[u8]) -> Option<(Rank, Lease)> {
        let at = self.ranks.remove_entry(key).map(|(key, rank)| (rank, key))?;
        self.leases.remove(&at).map(|lease| (at.0, lease))
    }
}

/// The entries of the registry, checked one by one.
#[derive(Clone, Debug)]
pub struct Roster {
    policy: Policy,
    own_key: Vec<u8>,
    /// First the leases whose key is of the form that the network's hosts write, then the others.
    places: [Places; 2],
    refused: BTreeMap<Vec<u8>, Refusal>,
    /// Number of entries that did not fit. Where one is removed, only a new list shows what fits then.
    left_out: usize,
}

impl Roster {
    /// Returns a roster without entries.
    pub fn new(policy: Policy) -> Roster {
        let own_key = lease::key_of(policy.subnet, &policy.directory).into_bytes();
        Roster { policy, own_key, places: Default::default(), refused: BTreeMap::new(), left_out: 0 }
    }

    /// Takes the entries of a list in place of its own, and returns the keys that are not in it; their entries stay
    /// where there is room, until they are removed.
    pub fn adopt(&mut self, listed: Roster) -> Vec<Vec<u8>> {
        let mut before = std::mem::replace(self, listed);
        let most = self.most();
        let keys = before.places.iter().flat_map(|places| places.ranks.keys()).chain(before.refused.keys());
        let gone: Vec<Vec<u8>> = keys.filter(|key| self.stored(key).is_none()).cloned().collect();
        for key in &gone {
            for (places, old) in self.places.iter_mut().zip(&mut before.places) {
                let has_room = places.leases.len() < most;
                if let Some((rank, lease)) = old.remove(key).filter(|_| has_room) {
                    places.insert(key.clone(), rank, lease, most);
                }
            }
            if self.refused.len() < self.policy.limit {
                self.refused.extend(before.refused.remove_entry(key));
            }
        }
        gone
    }

    /// Returns the form in which the entry of a key is stored, in either of the two forms of [`Roster::remove`]; `None`
    /// where there is none.
    pub fn stored(&self, key: &[u8]) -> Option<Vec<u8>> {
        let keeps = |key: &[u8]| {
            self.places.iter().any(|places| places.ranks.contains_key(key)) || self.refused.contains_key(key)
        };
        if keeps(key) { Some(key.to_vec()) } else { Some(kept(key)).filter(|key| keeps(key)) }
    }

    /// Adds an entry or replaces the one of its key.
    pub fn put(&mut self, record: &Record) {
        let key = kept(&record.key);
        self.forget(&key);
        if self.is_own(&record.key) {
            return;
        }
        // Wrong entries have places of their own, so that they cost no peer its place, and so have those of subnets of
        // another length.
        match self.judge(record) {
            Ok(lease) => {
                let place = usize::from(!self.is_usual(&record.key, lease));
                let rank = (lease.subnet.prefix_len() != self.policy.config.subnet_len, record.created);
                let most = self.most();
                self.left_out += self.places[place].insert(key, rank, lease, most);
            }
            Err(refusal) if self.refused.len() < self.policy.limit => {
                self.refused.insert(key, refusal);
            }
            Err(_) => self.left_out += 1,
        }
    }

    /// Returns the number of places of each kind: twice as many as there can be peers, since subnets can overlap.
    fn most(&self) -> usize {
        self.policy.limit.saturating_mul(2)
    }

    /// Removes the entry of a key. Returns whether the entries must be listed anew: one that did not fit may fit now.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        // A key that `adopt` returned is as it is kept already.
        for key in [key, &kept(key)[..]] {
            self.forget(key);
        }
        self.left_out > 0
    }

    /// Removes what is stored under a key, which is as it is kept.
    fn forget(&mut self, key: &[u8]) {
        for places in &mut self.places {
            places.remove(key);
        }
        self.refused.remove(key);
    }

    /// Returns whether the key and the subnet of a lease are of the form that the network's hosts write.
    fn is_usual(&self, key: &[u8], lease: Lease) -> bool {
        let Policy { config, directory, .. } = &self.policy;
        lease.subnet.prefix_len() == config.subnet_len && lease::key_of(lease.subnet, directory).as_bytes() == key
    }

    /// Returns whether `key` is the one of this host's own lease.
    pub fn is_own(&self, key: &[u8]) -> bool {
        key == self.own_key
    }

    fn judge(&self, record: &Record) -> Result<Lease, Refusal> {
        let Policy { config, directory, address, local, subnet, mac, .. } = &self.policy;
        let lease = lease::parse(&record.key, &record.value, directory, config)?;
        if lease.address == *address || Some(IpAddr::from(lease.address)) == *local {
            return Err(Refusal::OwnAddress);
        }
        if lease.subnet.overlaps(*subnet) {
            return Err(Refusal::OwnSubnet);
        }
        if lease.mac.is_some() && lease.mac == *mac {
            return Err(Refusal::OwnMac);
        }
        Ok(lease)
    }

    /// Returns the peers and the refusals.
    pub fn judged(&self) -> Judged {
        let mut refused: Vec<_> = self.refused.iter().map(|(key, refusal)| (printable(key), *refusal)).collect();
        let mut taken: BTreeMap<Ipv4Addr, Lease> = BTreeMap::new();
        for ((_, key), lease) in self.places.iter().flat_map(|places| &places.leases) {
            // The networks that are taken do not overlap: the nearest one below the end is the only one that can.
            let near = taken.range(..=lease.subnet.last()).next_back();
            if near.is_some_and(|(_, other)| other.subnet.overlaps(lease.subnet)) {
                refused.push((printable(key), Refusal::Overlap));
            } else if taken.len() >= self.policy.limit {
                refused.push((printable(key), Refusal::TooMany));
            } else {
                taken.insert(lease.subnet.first(), *lease);
            }
        }
        Judged { leases: taken.into_values().collect(), refused, left_out: self.left_out }
    }
}

/// Returns the form in which a key is stored: a long one is truncated, with its hash to tell it from others.
fn kept(key: &[u8]) -> Vec<u8> {
    if key.len() <= KEY_LEN {
        return key.to_vec();
    }
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    [&key[..KEY_LEN], format!("...{:016x}", hasher.finish()).as_bytes()].concat()
}

/// Returns a key as one line that is safe to print.
fn printable(key: &[u8]) -> String {
    segue_control::error::printable_line(&String::from_utf8_lossy(key))
}
