//! Address resolution: neighbours that are being solicited, and the packets that wait for them.

use std::collections::{HashMap, VecDeque};

use segue::hash::Key;
use segue::packet::Packet;
use segue::time::Nanos;
use segue::wire::address::is_host;
use segue::wire::ethernet;
use segue_port::Page;

use super::messages::Advertisement;
use super::neighbour_cache::{self, Freshness, HasPending, NeighbourCache, RETRANS_TIMER, Unanswered};
use super::solicit_limits::{Sender, SolicitLimits};
use super::tables::Neighbour;
use crate::route::Hop;
use crate::slots::SlotMap;

/// Largest number of neighbours in resolution, per family.
const MAX_HOPS: usize = 256;
/// Largest number of packets queued for one neighbour.
const MAX_PACKETS: usize = 32;
/// Largest number of packets queued for all neighbours of a family.
const MAX_HELD: usize = 256;
/// Largest number of pages that the queued packets of a family occupy: 4 MiB. A packet of Ethernet's size occupies one,
/// and a train at most 17.
pub(super) const MAX_PAGES: usize = 1024;
/// Number of pages beyond which the packets of one sender are evicted before those of others: 64 packets.
const SHARE: usize = 64 * LEAST_PAGES;
/// Least number of pages that a queued packet counts for: as many as each has where there are [`MAX_HELD`].
const LEAST_PAGES: usize = MAX_PAGES / MAX_HELD;

/// A queued packet with its ingress port.
pub(super) type Held = (u16, Box<Packet<Page>>);

#[derive(Debug)]
struct PendingResolution {
    /// Serial number of the resolution, in the order of creation.
    number: u64,
    held: VecDeque<Held>,
    /// Sender of the first packet, or the one whose limit allowed the first solicitation.
    sender: Sender,
    /// Solicitations sent: none while the first one waits for the rate limit.
    unanswered: Unanswered,
    /// Time from which the next solicitation is due.
    next: Nanos,
}

impl PendingResolution {
    fn is_asked(&self) -> bool {
        self.unanswered.asked > 0
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

/// Neighbours in resolution. Bounded per family, so that a scan cannot starve others (RFC 6583, section 6). Evicted are
/// the neighbours that were not solicited yet, then those of senders with more than their share of the queued packets,
/// then any others, the oldest first.
#[derive(Debug)]
pub(super) struct Resolver {
    waiting: SlotMap<Hop, PendingResolution>,
    limits: SolicitLimits,
    /// The cache of resolved neighbours.
    pub(super) cache: NeighbourCache,
    next: u64,
    /// Neighbours in resolution by family, those not solicited yet and those solicited separately, with their serial
    /// numbers, oldest first; see [`is_current`].
    order: [[VecDeque<(u64, Hop)>; 2]; 2],
    /// Number of neighbours in resolution, by family.
    asked: [usize; 2],
    /// Number of queued packets, by family.
    held: [usize; 2],
}

impl Resolver {
    /// Creates a resolver without neighbours; `key` should be random.
    pub(super) fn new(key: Key) -> Resolver {
        Resolver {
            waiting: SlotMap::default(),
            limits: SolicitLimits::new(key),
            cache: NeighbourCache::default(),
            next: 0,
            order: Default::default(),
            asked: [0; 2],
            held: [0; 2],
        }
    }

    /// Returns whether one more packet may be queued for a neighbour.
    pub(super) fn takes(&self, hop: &Hop) -> bool {
        self.waiting.get(hop).is_none_or(|waiting| waiting.held.len() < MAX_PACKETS)
    }

    /// Makes room for one more packet queued for a neighbour. Returns the packets that were evicted.
    pub(super) fn make_room(&mut self, hop: &Hop) -> VecDeque<Held> {
        let family = usize::from(hop.is_v4);
        let mut gone = VecDeque::new();
        while self.held[family] >= MAX_HELD || self.asked[family] >= MAX_HOPS && !self.waiting.contains_key(hop) {
            let Some(mut evicted) = self.evict(hop.is_v4) else { break };
            gone.append(&mut evicted);
        }
        gone
    }

    /// Evicts a neighbour of a family. Returns the packets that were queued for it, `None` without any neighbour.
    pub(super) fn evict(&mut self, is_v4: bool) -> Option<VecDeque<Held>> {
        let first = self.first_to_go(usize::from(is_v4))?;
        Some(self.end(&first))
    }

    /// Returns the neighbour to evict next. It walks all of them only where each was solicited, which the rate limits
    /// bound.
    fn first_to_go(&mut self, family: usize) -> Option<Hop> {
        let (waiting, [new, asked]) = (&self.waiting, &mut self.order[family]);
        while let Some(one) = new.pop_front() {
            if is_current(waiting, &one, false) {
                return Some(one.1);
            }
        }
        asked.retain(|one| is_current(waiting, one, true));
        let mut held: HashMap<Sender, usize> = HashMap::new();
        for one in asked.iter().filter_map(|(_, hop)| waiting.get(hop)) {
            *held.entry(one.sender).or_default() += one.held.iter().map(pages).sum::<usize>();
        }
        let has_more = |(_, hop): &(u64, Hop)| waiting.get(hop).is_some_and(|one| held[&one.sender] > SHARE);
        let at = asked.iter().position(has_more).unwrap_or(0);
        asked.remove(at).map(|(_, hop)| hop)
    }

    /// Keeps a packet from `sender` until the neighbour is resolved. Returns whether a solicitation is to be sent, as
    /// [`start_solicit`](Self::start_solicit) does.
    pub(super) fn hold(&mut self, hop: Hop, held: Held, sender: Sender, now: Nanos) -> bool {
        if !self.waiting.contains_key(&hop) {
            self.begin(hop, sender, now);
        }
        let Some(waiting) = self.waiting.get_mut(&hop) else { return false };
        self.held[usize::from(hop.is_v4)] += 1;
        waiting.held.push_back(held);
        self.start_solicit(&hop, sender, now)
    }

    /// Returns whether a solicitation for a neighbour in resolution is to be sent for a packet from `sender`: none was
    /// yet, and the rate limit allows it. Otherwise the timer sends it, or the packet of another sender.
    pub(super) fn start_solicit(&mut self, hop: &Hop, sender: Sender, now: Nanos) -> bool {
        let Some(waiting) = self.waiting.get_mut(hop).filter(|waiting| !waiting.is_asked()) else { return false };
        let may = self.limits.take_first(hop, sender, &self.cache, now);
        if may {
            (waiting.unanswered.asked, waiting.next, waiting.sender) = (1, Nanos(now.0 + RETRANS_TIMER), sender);
            let number = waiting.number;
            self.enlist(number, *hop, true);
        }
        may
    }

    /// Begins the resolution of a neighbour, for which no packet waits yet.
    fn begin(&mut self, hop: Hop, sender: Sender, now: Nanos) {
        self.next += 1;
        let number = self.next;
        let unanswered = Unanswered::default();
        self.waiting.insert(hop, PendingResolution { number, held: VecDeque::new(), sender, unanswered, next: now });
        self.asked[usize::from(hop.is_v4)] += 1;
        self.enlist(number, hop, false);
    }

    /// Appends a neighbour in resolution to its list in [`order`](Self::order).
    fn enlist(&mut self, number: u64, hop: Hop, is_asked: bool) {
        let (waiting, order) = (&self.waiting, &mut self.order[usize::from(hop.is_v4)][usize::from(is_asked)]);
        order.push_back((number, hop));
        if order.len() > 2 * MAX_HOPS {
            order.retain(|one| is_current(waiting, one, is_asked));
        }
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

    /// Handles a neighbour's advertisement of its link address. The answer to a solicitation of the last second counts
    /// also where the resolution was evicted.
    pub(super) fn observe(&mut self, hop: Hop, advertisement: &Advertisement, now: Nanos) -> Learned {
        let pending = if self.limits.is_recent(&hop, now) { HasPending::Yes } else { self.pending(&hop) };
        let change = self.cache.observe(hop, advertisement, pending, now);
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

    /// Returns what is due; `can_hear` says whether the neighbours' answers could be read.
    pub(super) fn due(&mut self, now: Nanos, can_hear: bool) -> TimerActions {
        self.limits.forget_old(now);
        let mut due = TimerActions::default();
        let mut silent = Vec::new();
        for (hop, waiting) in self.waiting.iter_mut().filter(|(_, waiting)| waiting.is_asked() && waiting.next <= now) {
            if !waiting.unanswered.ask_again(can_hear) {
                silent.push(*hop);
                continue;
            }
            self.limits.record(hop, now);
            waiting.next = Nanos(now.0 + RETRANS_TIMER);
            due.solicit.push((*hop, None));
        }
        for hop in silent {
            due.failed.extend(self.end(&hop));
        }
        // The newest first, so that of a host that has scanned the next flow does not wait for the scan.
        let new = self.order.iter().flat_map(|[new, _]| new.iter().rev());
        let new = new.filter(|one| is_current(&self.waiting, one, false));
        let new: Vec<(Hop, Sender)> = new.filter_map(|(_, hop)| Some((*hop, self.waiting.get(hop)?.sender))).collect();
        for (hop, sender) in new {
            if self.start_solicit(&hop, sender, now) {
                due.solicit.push((hop, None));
            }
        }
        self.cache.due(now, can_hear, &mut due.solicit, &mut due.gone);
        due
    }
}

/// Returns the number of pages that a queued packet counts for.
fn pages((_, packet): &Held) -> usize {
    packet.payload.frags().len().max(LEAST_PAGES)
}

/// Returns whether an entry of [`Resolver::order`] in the list of solicited neighbours, or of others, is not stale.
fn is_current(waiting: &SlotMap<Hop, PendingResolution>, (number, hop): &(u64, Hop), is_asked: bool) -> bool {
    waiting.get(hop).is_some_and(|one| one.number == *number && one.is_asked() == is_asked)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::router::neighbour_cache::{MAX_LEARNED, SECOND};

    const KEY: Key = Key([1, 2]);

    /// Returns a sender on the inside, to a neighbour that is no next hop of a route.
    fn sender(number: u32) -> Sender {
        Sender::Host(0, Ipv4Addr::from_bits(number).into())
    }

    fn hop(is_v4: bool, address: u128) -> Hop {
        Hop { port: 1, is_v4, address }
    }

    /// Handles a neighbour's answer to a solicitation. Returns how many packets waited, `None` where it was not in
    /// resolution.
    fn answer(resolver: &mut Resolver, hop: Hop) -> Option<usize> {
        let address = Ipv4Addr::from_bits(hop.address as u32).into();
        let advertisement = Advertisement { address, mac: Some([2; 6]), is_solicited: true, is_override: true };
        let learned = resolver.observe(hop, &advertisement, Nanos(0));
        learned.change.is_linked.then_some(learned.ready.len())
    }

    /// Queues one packet for a neighbour. Returns how many packets were evicted for it, and whether the neighbour is to
    /// be solicited.
    fn wait_for(resolver: &mut Resolver, hop: Hop, sender: Sender, now: u64) -> (usize, bool) {
        assert!(resolver.takes(&hop));
        let dropped = resolver.make_room(&hop).len();
        (dropped, resolver.hold(hop, (0, Box::default()), sender, Nanos(now)))
    }

    /// Queues one packet of the same sender for a neighbour. Returns how many packets were evicted for it.
    fn wait(resolver: &mut Resolver, hop: Hop, now: u64) -> usize {
        wait_for(resolver, hop, sender(1), now).0
    }

    #[test]
    fn a_scan_costs_its_own_family_the_oldest_and_the_other_one_nothing() {
        let mut resolver = Resolver::new(KEY);
        wait(&mut resolver, hop(true, 1), 0);
        let dropped: usize = (0..10_000).map(|host| wait(&mut resolver, hop(false, host), 0)).sum();
        assert_eq!(dropped, 10_000 - MAX_HOPS);
        assert!(resolver.order.iter().flatten().all(|order| order.len() <= 2 * MAX_HOPS));
        assert_eq!(answer(&mut resolver, hop(true, 1)), Some(1));
        // A new neighbour of another sender is solicited and resolved, and so is one that was solicited, but no longer
        // the oldest one that was not.
        assert_eq!(wait_for(&mut resolver, hop(false, 10_000), sender(2), 0), (1, true));
        for (host, ready) in [(10_000, Some(1)), (9999, Some(1)), (0, Some(1)), (9807, None), (9808, Some(1))] {
            assert_eq!(answer(&mut resolver, hop(false, host)), ready, "{host}");
        }
    }

    #[test]
    fn a_neighbour_that_waits_for_the_limit_of_one_sender_is_solicited_for_another() {
        let mut resolver = Resolver::new(KEY);
        let asked = (0..100).filter(|host| wait_for(&mut resolver, hop(true, *host), sender(1), 0).1).count();
        assert_eq!(asked, 64);
        assert!(!wait_for(&mut resolver, hop(true, 99), sender(1), 0).1);
        assert!(wait_for(&mut resolver, hop(true, 99), sender(2), 0).1);
        assert!(!wait_for(&mut resolver, hop(true, 99), sender(2), 0).1, "it was solicited");
        assert!(wait_for(&mut resolver, hop(true, 98), Sender::Unlimited, 0).1);
        // The timer sends what the limit has allowed since, the newest first: 25 in a quarter of a second.
        let solicited = resolver.due(Nanos(SECOND / 4), true).solicit;
        assert!(solicited.iter().map(|(hop, _)| hop.address).eq((73..98).rev()), "{solicited:?}");
    }

    #[test]
    fn a_neighbour_that_was_resolved_before_or_that_the_kernel_lists_is_solicited_without_limit() {
        let mut resolver = Resolver::new(KEY);
        let [former, listed, new] = [1, 2, 3].map(|last| hop(true, 10 << 24 | last));
        wait(&mut resolver, former, 0);
        assert_eq!(answer(&mut resolver, former), Some(1));
        let later = 600 * SECOND;
        assert_eq!(resolver.due(Nanos(later), true).gone, [former]);
        // Without room for an entry, the kernel's report is remembered.
        for host in 0..MAX_LEARNED as u128 {
            wait(&mut resolver, hop(true, host), later);
            assert_eq!(answer(&mut resolver, hop(true, host)), Some(1));
        }
        let neighbour = Neighbour { hop: listed, mac: [2; 6], is_permanent: false };
        assert!(!resolver.kernel_update(&neighbour, Freshness::Old, Nanos(later)).change.is_linked);
        for (hop, is_asked) in [(former, true), (listed, true), (new, false)] {
            assert_eq!(wait_for(&mut resolver, hop, sender(1), later).1, is_asked, "{hop:?}");
        }
    }

    /// Tests that the answer to a solicitation is taken for as long as no other solicitation may be sent, although the
    /// packets that waited were evicted.
    #[test]
    fn an_answer_is_taken_for_a_second_after_its_resolution_was_evicted() {
        for (now, is_taken) in [(SECOND - 1, true), (SECOND, false)] {
            let mut resolver = Resolver::new(KEY);
            assert_eq!(wait_for(&mut resolver, hop(true, 1), sender(1), 0), (0, true));
            resolver.end(&hop(true, 1));
            let address = Ipv4Addr::from_bits(1).into();
            let advertisement = Advertisement { address, mac: Some([2; 6]), is_solicited: true, is_override: true };
            let learned = resolver.observe(hop(true, 1), &advertisement, Nanos(now));
            assert_eq!((learned.change.is_linked, learned.ready.len()), (is_taken, 0), "{now}");
        }
    }

    #[test]
    fn answers_and_silence_make_room() {
        let mut resolver = Resolver::new(KEY);
        for round in 0..2000 {
            assert_eq!(wait(&mut resolver, hop(true, round), 0), 0);
            assert_eq!(answer(&mut resolver, hop(true, round)), Some(1));
        }
        assert!(resolver.order[1].iter().all(|order| order.len() <= 2 * MAX_HOPS));
        let mut full = Resolver::new(KEY);
        for _ in 0..MAX_PACKETS {
            wait(&mut full, hop(true, 7), 0);
        }
        assert!(!full.takes(&hop(true, 7)) && full.takes(&hop(true, 8)));
        // With as many packets waiting as a family may have, those of the oldest neighbour are evicted.
        for host in 8..15 {
            (0..MAX_PACKETS).for_each(|_| assert_eq!(wait(&mut full, hop(true, host), 0), 0));
        }
        assert_eq!(wait(&mut full, hop(true, 15), 0), MAX_PACKETS);
        let asked: Vec<usize> = (1..=3).map(|second| full.due(Nanos(second * SECOND), true).solicit.len()).collect();
        assert_eq!(asked, [8, 8, 0]);
        assert!(full.waiting.is_empty() && full.held == [0; 2] && full.asked == [0; 2]);
    }
}
