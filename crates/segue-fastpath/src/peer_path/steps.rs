//! The order of the changes that turn one peer table into another.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::peer::Peer;

/// A change of one map entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Put(Peer),
    Remove((IpAddr, u8)),
}

/// Returns the ordered changes that turn the table of the prefixes `present` into that of `wanted`.
pub(super) fn steps(
    prefixes: impl Iterator<Item = (IpAddr, u8)>,
    present: impl Fn((IpAddr, u8)) -> Option<Peer>,
    wanted: &[Peer],
) -> Vec<Step> {
    let mut changed: Vec<Peer> = wanted.iter().filter(|peer| present(peer.prefix) != Some(**peer)).copied().collect();
    changed.sort_by_key(|peer| Reverse(peer.prefix.1));
    let stay: BTreeSet<(IpAddr, u8)> = wanted.iter().map(|peer| peer.prefix).collect();
    let mut gone: Vec<(IpAddr, u8)> = prefixes.filter(|prefix| !stay.contains(prefix)).collect();
    gone.sort_by_key(|(_, len)| *len);
    changed.into_iter().map(Step::Put).chain(gone.into_iter().map(Step::Remove)).collect()
}
