//! Address resolution: neighbours that are being solicited, and the packets that wait for them.

use std::collections::VecDeque;

use segue::packet::Packet;
use segue::time::Nanos;
use segue::wire::address::is_host;
use segue::wire::ethernet;
use segue_port::Page;

use super::messages::Advertisement;
use super::neighbour_cache::{self, Freshness, HasPending, MAX_SOLICITS, NeighbourCache, RETRANS_TIMER};
use super::tables::Neighbour;
use crate::icmp::Limiter;
use crate::route::Hop;
use crate::slots::SlotMap;

/// Largest number of neighbours in resolution, per family.
const MAX_HOPS: usize = 256;
/// Largest number of packets queued for one neighbour.
const MAX_PACKETS: usize = 32;
/// Largest number of packets queued for all neighbours of a family.
const MAX_HELD: usize = 256;

/// Rate limit of the first solicitations for the neighbours of one family on one port: as many a second, and as many at
/// once as may be in resolution.
const RATE: (u32, u32) = (1000, MAX_HOPS as u32);

/// A queued packet with its ingress port.
pub(super) type Held = (u16, Box<Packet<Page>>);

#[derive(Debug)]
struct PendingResolution {
    /// Serial number of the resolution, in the order of creation.
    number: u64,
    held: VecDeque<Held>,
    /// Number of solicitations sent: 0 while the first one waits for the rate limit.
    asked: u8,
    /// Time from which the next solicitation is due.
    next: Nanos,
}

/// The rate limit of solicitations. First ones are limited for each port and family, so that packets to many unused
/// addresses do not become as many broadcasts. A neighbour is solicited once a second (RFC 1122, section 2.3.2.1), even
/// if its resolution was evicted in between.
#[derive(Debug)]
struct SolicitLimits {
    /// Limiters by port and family.
    limiters: [[Limiter; 2]; 2],
    /// Neighbours that were solicited within the last second, with the time; the rate limits their number.
    recent: SlotMap<Hop, Nanos>,
    /// Neighbours of `recent` in the order of their times; an entry whose time differs from the neighbour's is stale
    /// and skipped.
    order: VecDeque<(Nanos, Hop)>,
}

impl Default for SolicitLimits {
    fn default() -> Self {
        let limiters = [[Limiter::new(RATE.0, RATE.1, Nanos(0)); 2]; 2];
        SolicitLimits { limiters, recent: SlotMap::default(), order: VecDeque::new() }
    }
}

impl SolicitLimits {
    /// Returns whether the first solicitation for a neighbour may be sent, and then records it.
    fn take_first(&mut self, hop: &Hop, now: Nanos) -> bool {
        while let Some(&(at, oldest)) = self.order.front()
            && at.0 + RETRANS_TIMER <= now.0
        {
            self.order.pop_front();
            if self.recent.get(&oldest) == Some(&at) {
                self.recent.remove(&oldest);
            }
        }
        let limiter = &mut self.limiters[usize::from(hop.port).min(1)][usize::from(hop.is_v4)];
        let may = !self.recent.contains_key(hop) && limiter.take(now);
        if may {
            self.record(hop, now);
        }
        may
    }

    /// Records a solicitation.
    fn record(&mut self, hop: &Hop, now: Nanos) {
        self.recent.insert(*hop, now);
        self.order.push_back((now, *hop));
    }
}

/// Effect of a message or a kernel update.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Effect on the neighbour cache.
    pub(super) change: neighbour_cache::Change,
    /// Packets that were queued for the neighbour.
    pub(super) ready: VecDeque<Held>,
}

/// The solicitations, deletions and failures that are due at a time.
#[derive(Debug, Default)]
pub(super) struct TimerActions {
    /// Neighbours to solicit: unicast to the link address, or else multicast.
    pub(super) solicit: Vec<(Hop, Option<[u8; 6]>)>,
    /// Neighbours that were deleted from the table.
    pub(super) gone: Vec<Hop>,
    /// Packets whose next hop did not answer.
    pub(super) failed: Vec<Held>,
}

/// Neighbours in resolution. Bounded per family: the oldest unanswered entry is evicted, so that a scan cannot starve
/// others (RFC 6583, section 6).
#[derive(Debug, Default)]
pub(super) struct Resolver {
    waiting: SlotMap<Hop, PendingResolution>,
    limits: SolicitLimits,
    /// The cache of resolved neighbours.
    pub(super) cache: NeighbourCache,
    next: u64,
    /// Neighbours in resolution by family, with their serial numbers, oldest first; an entry whose number differs from
    /// the neighbour's is stale and skipped.
    order: [VecDeque<(u64, Hop)>; 2],
    /// Number of neighbours in resolution, by family.
    asked: [usize; 2],
    /// Number of queued packets, by family.
    held: [usize; 2],
}

impl Resolver {
    /// Returns whether one more packet may be queued for a neighbour.
    pub(super) fn takes(&self, hop: &Hop) -> bool {
        self.waiting.get(hop).is_none_or(|waiting| waiting.held.len() < MAX_PACKETS)
    }

    /// Makes room for one more packet queued for a neighbour. Returns the packets that were evicted.
    pub(super) fn make_room(&mut self, hop: &Hop) -> VecDeque<Held> {
        let family = usize::from(hop.is_v4);
        let mut gone = VecDeque::new();
        while self.held[family] >= MAX_HELD || self.asked[family] >= MAX_HOPS && !self.waiting.contains_key(hop) {
            let Some((number, oldest)) = self.order[family].pop_front() else { break };
            if self.waiting.get(&oldest).is_some_and(|waiting| waiting.number == number) {
                gone.append(&mut self.end(&oldest));
            }
        }
        gone
    }

    /// Keeps a packet until the neighbour is resolved. Returns whether a solicitation is to be sent: it is the first
    /// packet, and the rate limit allows it. Otherwise the timer sends it.
    pub(super) fn hold(&mut self, hop: Hop, held: Held, now: Nanos) -> bool {
        let family = usize::from(hop.is_v4);
        self.held[family] += 1;
        if let Some(waiting) = self.waiting.get_mut(&hop) {
            waiting.held.push_back(held);
            return false;
        }
        self.next += 1;
        let (number, is_asked) = (self.next, self.limits.take_first(&hop, now));
        let next = if is_asked { Nanos(now.0 + RETRANS_TIMER) } else { now };
        let resolution = PendingResolution { number, held: VecDeque::from([held]), asked: is_asked.into(), next };
        self.waiting.insert(hop, resolution);
        self.asked[family] += 1;
        self.order[family].push_back((number, hop));
        if self.order[family].len() > 2 * MAX_HOPS {
            let waiting = &self.waiting;
            let is_current = |(number, hop): &(u64, Hop)| waiting.get(hop).is_some_and(|one| one.number == *number);
            self.order[family].retain(is_current);
        }
        is_asked
    }

    /// Ends the resolution of a neighbour. Returns the packets that waited.
    fn end(&mut self, hop: &Hop) -> VecDeque<Held> {
        let Some(waiting) = self.waiting.remove(hop) else { return VecDeque::new() };
        let family = usize::from(hop.is_v4);
        self.asked[family] -= 1;
        self.held[family] -= waiting.held.len();
        waiting.held
    }

    fn pending(&self, hop: &Hop) -> HasPending {
        if self.waiting.contains_key(hop) { HasPending::Yes } else { HasPending::No }
    }

    /// Handles a neighbour's advertisement of its link address.
    pub(super) fn observe(&mut self, hop: Hop, advertisement: &Advertisement, now: Nanos) -> Learned {
        let change = self.cache.observe(hop, advertisement, self.pending(&hop), now);
        self.learned(&hop, change)
    }

    /// Handles the kernel's report on a neighbour.
    pub(super) fn kernel_update(&mut self, neighbour: &Neighbour, freshness: Freshness, now: Nanos) -> Learned {
        let Neighbour { hop, mac, is_permanent } = *neighbour;
        // Whatever a kernel holds, no host has such an address, and no packet goes there.
        if !is_host(hop.ip()) {
            return Learned::default();
        }
        if is_permanent && self.cache.pin(hop, mac) {
            return self
                .learned(&hop, neighbour_cache::Change { is_linked: true, ..neighbour_cache::Change::default() });
        }
        // A kernel may hold such addresses, reported by others; no frame may go there (RFC 1812, section 3.3.2).
        if !ethernet::is_station(mac) {
            let is_gone = self.cache.unpin(&hop);
            return self.learned(&hop, neighbour_cache::Change { is_gone, ..neighbour_cache::Change::default() });
        }
        let change = self.cache.kernel_update(hop, mac, freshness, self.pending(&hop), now);
        self.learned(&hop, change)
    }

    fn learned(&mut self, hop: &Hop, change: neighbour_cache::Change) -> Learned {
        Learned { change, ready: if change.is_linked { self.end(hop) } else { VecDeque::new() } }
    }

    /// Returns whether no timer runs.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.cache.is_idle()
    }

    pub(super) fn due(&mut self, now: Nanos) -> TimerActions {
        let mut due = TimerActions::default();
        let mut silent = Vec::new();
        for (hop, waiting) in self.waiting.iter_mut().filter(|(_, waiting)| waiting.next <= now) {
            if waiting.asked >= MAX_SOLICITS {
                silent.push(*hop);
                continue;
            }
            match waiting.asked {
                0 if !self.limits.take_first(hop, now) => continue,
                0 => {}
                _ => self.limits.record(hop, now),
            }
            waiting.asked += 1;
            waiting.next = Nanos(now.0 + RETRANS_TIMER);
            due.solicit.push((*hop, None));
        }
        for hop in silent {
            due.failed.extend(self.end(&hop));
        }
        self.cache.due(now, &mut due.solicit, &mut due.gone);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::neighbour_cache::SECOND;

    fn hop(is_v4: bool, address: u128) -> Hop {
        Hop { port: 1, is_v4, address }
    }

    /// Handles a neighbour's answer to a solicitation. Returns how many packets waited, `None` where it was not in
    /// resolution.
    fn answer(resolver: &mut Resolver, hop: Hop) -> Option<usize> {
        let address = std::net::Ipv4Addr::from_bits(hop.address as u32).into();
        let advertisement = Advertisement { address, mac: Some([2; 6]), is_solicited: true, is_override: true };
        let learned = resolver.observe(hop, &advertisement, Nanos(0));
        learned.change.is_linked.then_some(learned.ready.len())
    }

    /// Queues one packet for a neighbour. Returns how many packets were evicted for it.
    fn wait(resolver: &mut Resolver, hop: Hop, now: u64) -> usize {
        assert!(resolver.takes(&hop));
        let dropped = resolver.make_room(&hop).len();
        resolver.hold(hop, (0, Box::default()), Nanos(now));
        dropped
    }

    #[test]
    fn a_scan_costs_its_own_family_the_oldest_and_the_other_one_nothing() {
        let mut resolver = Resolver::default();
        wait(&mut resolver, hop(true, 1), 0);
        let dropped: usize = (0..10_000).map(|host| wait(&mut resolver, hop(false, host), 0)).sum();
        assert_eq!(dropped, 10_000 - MAX_HOPS);
        assert!(resolver.order.iter().all(|order| order.len() <= 2 * MAX_HOPS + 1));
        assert_eq!(answer(&mut resolver, hop(true, 1)), Some(1));
        // A new neighbour is still resolved, and the oldest unanswered one no longer.
        assert_eq!(answer(&mut resolver, hop(false, 9999)), Some(1));
        assert_eq!(answer(&mut resolver, hop(false, 9999 - MAX_HOPS as u128)), None);
    }

    #[test]
    fn answers_and_silence_make_room() {
        let mut resolver = Resolver::default();
        for round in 0..2000 {
            assert_eq!(wait(&mut resolver, hop(true, round), 0), 0);
            assert_eq!(answer(&mut resolver, hop(true, round)), Some(1));
        }
        assert!(resolver.order[1].len() <= 2 * MAX_HOPS + 1);
        let mut full = Resolver::default();
        for _ in 0..MAX_PACKETS {
            wait(&mut full, hop(true, 7), 0);
        }
        assert!(!full.takes(&hop(true, 7)) && full.takes(&hop(true, 8)));
        // With as many packets waiting as a family may have, those of the oldest neighbour are evicted.
        for host in 8..15 {
            (0..MAX_PACKETS).for_each(|_| assert_eq!(wait(&mut full, hop(true, host), 0), 0));
        }
        assert_eq!(wait(&mut full, hop(true, 15), 0), MAX_PACKETS);
        let asked: Vec<usize> = (1..=3).map(|second| full.due(Nanos(second * SECOND)).solicit.len()).collect();
        assert_eq!(asked, [8, 8, 0]);
        assert!(full.waiting.is_empty() && full.held == [0; 2] && full.asked == [0; 2]);
    }
}
