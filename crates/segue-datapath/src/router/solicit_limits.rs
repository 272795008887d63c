//! Rate limits of the first solicitations for neighbours.

use std::collections::VecDeque;
use std::net::IpAddr;

use segue::hash::Key;
use segue::time::Nanos;

use super::neighbour_cache::{NeighbourCache, RETRANS_TIMER};
use crate::icmp::Limiter;
use crate::route::Hop;
use crate::slots::SlotMap;

/// Rate limit of one sender: as many a second, and as many at once.
const ONE: (u32, u32) = (100, 64);
/// Rate limit of all senders on one port together, by the neighbour's family: that of 20 senders that scan, and still
/// few broadcasts for a link (about 1 Mbit/s of ARP).
const ALL: (u32, u32) = (2000, 512);
/// Number of limits of single senders on each port; senders with the same hash share one.
const SENDERS: usize = 512;
/// Number of ports that packets come from; the last one is the router itself.
pub(super) const PORTS: usize = 3;

/// The sender of a packet, to whose limit the solicitation for the packet's next hop is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    /// A host behind the port from which its packet came. For a packet of the router itself, such as an ICMP error, it
    /// is the host that the packet is for.
    Host(u16, IpAddr),
    /// Any host, to the next hop of a route, which an administrator chose.
    Unlimited,
}

/// The rate limits of first solicitations, so that packets to many unused addresses do not become as many broadcasts.
/// Each sender has a limit, and all senders on one port together, so that a sender that scans leaves the rest to
/// others, and any number of forged senders on one port leaves those on the other port theirs. Not limited are next
/// hops of routes, neighbours that were resolved before, and those that the kernel lists: no scan makes more of them.
///
/// A neighbour is solicited once a second (RFC 1122, section 2.3.2.1), even if its resolution was evicted in between.
#[derive(Debug)]
pub(super) struct SolicitLimits {
    /// Limits of all senders, by port and family.
    all: [[Limiter; 2]; PORTS],
    /// Limits of single senders, by port and by the hash of the sender's address.
    senders: Box<[[Limiter; SENDERS]; PORTS]>,
    key: Key,
    /// Neighbours that were solicited within the last second, with the time; the rates and the number of neighbours
    /// without limit bound their number.
    recent: SlotMap<Hop, Nanos>,
    /// Neighbours of `recent` in the order of their times; an entry whose time differs from the neighbour's is stale
    /// and skipped.
    order: VecDeque<(Nanos, Hop)>,
}

impl SolicitLimits {
    /// Creates the rate limits of a router; `key` should be random.
    pub(super) fn new(key: Key) -> SolicitLimits {
        let limiter = |(per_second, burst)| Limiter::new(per_second, burst, Nanos(0));
        let (all, senders) = ([[limiter(ALL); 2]; PORTS], Box::new([[limiter(ONE); SENDERS]; PORTS]));
        SolicitLimits { all, senders, key, recent: SlotMap::default(), order: VecDeque::new() }
    }

    /// Returns whether the first solicitation for a neighbour may be sent, and then records it.
    pub(super) fn take_first(&mut self, hop: &Hop, sender: Sender, cache: &NeighbourCache, now: Nanos) -> bool {
        self.forget_old(now);
        let may = !self.recent.contains_key(hop) && (cache.was_there(hop) || self.take(hop, sender, now));
        if may {
            self.record(hop, now);
        }
        may
    }

    /// Forgets the neighbours that were not solicited within the last second.
    pub(super) fn forget_old(&mut self, now: Nanos) {
        while let Some(&(at, oldest)) = self.order.front()
            && at.0 + RETRANS_TIMER <= now.0
        {
            self.order.pop_front();
            if self.recent.get(&oldest) == Some(&at) {
                self.recent.remove(&oldest);
            }
        }
    }

    /// Takes a token of the sender and one of its port, if both are available. Returns whether they were.
    fn take(&mut self, hop: &Hop, sender: Sender, now: Nanos) -> bool {
        let Sender::Host(port, address) = sender else { return true };
        let bits = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        };
        let place = self.key.hash(&bits.to_be_bytes()) as usize % SENDERS;
        let port = usize::from(port).min(PORTS - 1);
        let mut of_sender = self.senders[port][place];
        let may = of_sender.take(now) && self.all[port][usize::from(hop.is_v4)].take(now);
        if may {
            self.senders[port][place] = of_sender;
        }
        may
    }

    /// Returns whether a neighbour was solicited within the last second.
    pub(super) fn is_recent(&self, hop: &Hop, now: Nanos) -> bool {
        self.recent.get(hop).is_some_and(|at| now.0 < at.0 + RETRANS_TIMER)
    }

    /// Records a solicitation.
    pub(super) fn record(&mut self, hop: &Hop, now: Nanos) {
        self.recent.insert(*hop, now);
        self.order.push_back((now, *hop));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_sender_is_not_charged_for_what_the_limit_of_its_port_holds_back() {
        const MILLISECOND: u64 = 1_000_000;
        let (mut limits, cache) = (SolicitLimits::new(Key([1, 2])), NeighbourCache::default());
        let mut next = 0;
        let mut takes = |sender: u32, now: u64| {
            next += 1;
            let hop = Hop { port: 1, is_v4: true, address: next };
            limits.take_first(&hop, Sender::Host(0, Ipv4Addr::from_bits(sender).into()), &cache, Nanos(now))
        };
        // Forged senders use up all that the port has.
        assert_eq!((1000..9000).filter(|forged| takes(*forged, 0)).count(), ALL.1 as usize);
        assert!((0..2 * ONE.1).all(|_| !takes(1, 0)));
        assert!(takes(1, MILLISECOND), "the port has two again, and the sender all of its own");
    }
}
