//! The neighbour cache of a router (RFC 4861, section 7.3): entries are probed on use, and deleted when unused.

use std::collections::{HashMap, VecDeque};
use std::mem;

use segue::time::Nanos;

use super::messages::Advertisement;
use crate::route::Hop;
use crate::slots::{Links, List, SlotMap};

pub(super) const SECOND: u64 = 1_000_000_000;
/// RETRANS_TIMER: interval between solicitations (RFC 4861, section 10: 1 second).
pub(super) const RETRANS_TIMER: u64 = SECOND;
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT: number of solicitations of either kind (RFC 4861, section 10).
const MAX_SOLICITS: u8 = 3;
/// Largest number of solicitations of one neighbour that do not count since their answers could not be read.
const MAX_UNHEARD: u8 = 60;
/// REACHABLE_TIME: time for which a confirmed entry is REACHABLE (RFC 4861, section 10: 30 seconds).
const REACHABLE_TIME: u64 = 30 * SECOND;
/// Time after which an unused entry is deleted.
const UNUSED_TIME: u64 = 600 * SECOND;
/// Granularity of recorded uses, nanoseconds: uses within this time count as one.
const USE_GRANULARITY: u64 = 1_000_000;
/// Largest number of learned entries of one family on one port; permanent ones are not counted.
pub(super) const MAX_LEARNED: usize = 8192;
/// Largest number of permanent entries.
const MAX_PERMANENT: usize = 4 * MAX_LEARNED;
/// Largest number of entries altogether.
pub(super) const MAX_LINKS: usize = 4 * MAX_LEARNED + MAX_PERMANENT;

/// Whether a kernel entry was just reported as a change, or is part of a full listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Old,
    New,
}

/// Whether packets are queued for a neighbour in resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HasPending {
    Yes,
    No,
}

/// Solicitations of a neighbour without an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unanswered {
    /// Number of solicitations, of those that count.
    pub(super) asked: u8,
    /// Number of those that did not count.
    unheard: u8,
    /// Whether no answer to the last one could have been read.
    was_unheard: bool,
}

impl Unanswered {
    /// Counts a further solicitation. Returns whether it is to be sent; otherwise the neighbour has not answered as
    /// many as it gets. It counts in place of the last one unless `can_hear` says that an answer can be read, now and
    /// at the last one, or very many had none.
    pub(super) fn ask_again(&mut self, can_hear: bool) -> bool {
        let was_unheard = mem::replace(&mut self.was_unheard, !can_hear);
        if (was_unheard || !can_hear) && self.unheard < MAX_UNHEARD {
            self.unheard += 1;
            return true;
        }
        let may = self.asked < MAX_SOLICITS;
        self.asked += u8::from(may);
        may
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Serial number of the entry, never reused.
    number: u64,
    mac: [u8; 6],
    /// Time at which the entry ceases to be REACHABLE.
    reachable_until: Nanos,
    /// Unicast solicitations sent in state PROBE.
    probes_sent: Option<Unanswered>,
    /// Whether the entry is in [`NeighbourCache::probes`].
    is_queued: bool,
    is_used: bool,
    /// Time of the last use, or of the creation of an entry that was never used.
    last: Nanos,
}

/// Reachability of an entry (RFC 4861, section 7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The neighbour has recently been confirmed to be reachable.
    Reachable,
    /// STALE (RFC 4861): the last confirmation is older than the reachable time; the next packet starts probes.
    Stale,
    /// Unicast solicitations are being sent.
    Probe,
}

impl Entry {
    fn state(&self, now: Nanos) -> State {
        match self.probes_sent {
            Some(_) => State::Probe,
            None if self.reachable_until > now => State::Reachable,
            None => State::Stale,
        }
    }

    /// Changes the link-layer address; the entry becomes STALE (RFC 4861, section 7.2.5).
    fn move_to(&mut self, mac: [u8; 6], now: Nanos) {
        self.mac = mac;
        self.probes_sent = None;
        self.make_stale(now);
    }

    /// Makes a REACHABLE entry STALE: it is probed at its next use.
    fn make_stale(&mut self, now: Nanos) {
        self.reachable_until = self.reachable_until.min(now);
    }
}

/// Effect of a message or a kernel update on a cache entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether the link address is new or has changed.
    pub(super) is_linked: bool,
    /// Whether the link address has changed.
    pub(super) is_moved: bool,
    /// The entry that was evicted to make room.
    pub(super) displaced: Option<Hop>,
    /// Whether a permanent entry was deleted.
    pub(super) is_gone: bool,
}

/// The neighbour cache of both ports, with the states REACHABLE, STALE and PROBE of RFC 4861.
///
/// A confirmed entry is REACHABLE for some time. Then it is STALE: its next use starts unicast probes, and without an
/// answer it is deleted. A router gets no hints from upper layers, so there is no DELAY state. Where the cache is full,
/// the entry unused for longest is evicted (RFC 6583), beginning with those that only the kernel has used. No operation
/// walks the whole cache.
#[derive(Debug, Default)]
pub(super) struct NeighbourCache {
    permanent: HashMap<Hop, [u8; 6]>,
    learned: SlotMap<Hop, Entry>,
    /// Last link address that the kernel reported of each neighbour that is not permanent, by port and family. It is
    /// kept for deleted entries too, so that a repeated report can be told from a new one.
    kernel: [SlotMap<Hop, [u8; 6]>; 4],
    /// Neighbours whose entries were deleted or evicted, by port and family: a set, and the order in which they came
    /// into it. There is room for as many as there may be entries; the oldest one gives way.
    former: [(SlotMap<Hop, ()>, VecDeque<Hop>); 4],
    /// Entries by port and family, unused and used ones separately, in the order of their last use.
    order: [[List; 2]; 4],
    links: Links,
    /// Number of entries by port and family.
    lens: [usize; 4],
    /// Entries in state PROBE with the times at which they are due, in that order.
    probes: VecDeque<(Nanos, u64, Hop)>,
    next: u64,
}

impl NeighbourCache {
    pub(super) fn mac(&self, hop: &Hop) -> Option<[u8; 6]> {
        self.permanent.get(hop).copied().or_else(|| self.learned.get(hop).map(|entry| entry.mac))
    }

    /// Returns whether a neighbour without an entry had one before, or is listed by the kernel.
    pub(super) fn was_there(&self, hop: &Hop) -> bool {
        self.former[class(hop)].0.contains_key(hop) || self.kernel[class(hop)].contains_key(hop)
    }

    pub(super) fn hops(&self) -> impl Iterator<Item = Hop> {
        self.permanent.keys().chain(self.learned.keys()).copied()
    }

    /// Returns whether no entry has a timer.
    pub(super) fn is_idle(&self) -> bool {
        self.learned.is_empty()
    }

    /// Marks an entry as used by a packet. Returns the link address to send a unicast solicitation to, where a probe is
    /// to begin.
    pub(super) fn mark_used(&mut self, hop: &Hop, now: Nanos) -> Option<[u8; 6]> {
        let slot = self.learned.slot(hop)?;
        let entry = self.learned.at_mut(slot)?;
        if !entry.is_used || entry.last.0 + USE_GRANULARITY <= now.0 {
            let order = &mut self.order[class(hop)];
            self.links.remove(&mut order[usize::from(entry.is_used)], slot);
            (entry.is_used, entry.last) = (true, now);
            self.links.push(&mut order[usize::from(entry.is_used)], slot);
        }
        if entry.state(now) != State::Stale {
            return None;
        }
        // However often others report the neighbour, it is solicited once per RETRANS_TIMER (RFC 4861, section 7.2.2).
        entry.probes_sent = Some(Unanswered { asked: u8::from(!entry.is_queued), ..Unanswered::default() });
        if entry.is_queued {
            return None;
        }
        entry.is_queued = true;
        self.probes.push_back((Nanos(now.0 + RETRANS_TIMER), entry.number, *hop));
        Some(entry.mac)
    }

    /// Updates an entry from a neighbour's advertisement of its link address (RFC 826; RFC 4861, sections 7.2.3 and
    /// 7.2.5). An entry is created only where packets wait for it, so that other hosts cannot fill the cache.
    pub(super) fn observe(
        &mut self,
        hop: Hop,
        advertisement: &Advertisement,
        pending: HasPending,
        now: Nanos,
    ) -> Change {
        let reachable_until = if advertisement.is_solicited { Nanos(now.0 + REACHABLE_TIME) } else { now };
        if self.permanent.contains_key(&hop) {
            return Change::default();
        }
        let Some(entry) = self.learned.get_mut(&hop) else {
            return match advertisement.mac.filter(|_| pending == HasPending::Yes) {
                Some(mac) => self.insert(hop, mac, reachable_until, pending, now),
                None => Change::default(),
            };
        };
        let other = advertisement.mac.filter(|mac| *mac != entry.mac);
        match other {
            Some(_) if !advertisement.is_override => {
                entry.make_stale(now);
                return Change::default();
            }
            Some(mac) => entry.move_to(mac, now),
            None => {}
        }
        if advertisement.is_solicited {
            (entry.reachable_until, entry.probes_sent) = (reachable_until, None);
        }
        Change { is_linked: other.is_some(), is_moved: other.is_some(), ..Change::default() }
    }

    /// Updates an entry from the kernel's report on a neighbour that is not permanent. The kernel hears the same
    /// messages and reports them later, so only a link address that is new to the kernel is taken. A repeated report
    /// neither restores a deleted entry nor counts as an answer.
    pub(super) fn kernel_update(
        &mut self,
        hop: Hop,
        mac: [u8; 6],
        freshness: Freshness,
        pending: HasPending,
        now: Nanos,
    ) -> Change {
        let is_gone = self.unpin(&hop);
        let unheeded = Change { is_gone, ..Change::default() };
        let kernel = &mut self.kernel[class(&hop)];
        // Without room to remember the report, each repetition would count as new.
        if kernel.len() >= MAX_LEARNED && !kernel.contains_key(&hop) {
            return unheeded;
        }
        let (_, before) = kernel.insert(hop, mac);
        if let Some(entry) = self.learned.get_mut(&hop) {
            let is_changed = before.map_or(freshness == Freshness::New, |before| before != mac);
            let is_moved = is_changed && entry.mac != mac;
            if is_moved {
                entry.move_to(mac, now);
            }
            return Change { is_linked: is_moved, is_moved, ..Change::default() };
        }
        // Neighbours that the router does not use evict no entry.
        if before == Some(mac) || pending == HasPending::No && self.lens[class(&hop)] >= MAX_LEARNED {
            return unheeded;
        }
        self.insert(hop, mac, now, pending, now)
    }

    /// Ends a full listing of the kernel's neighbours: reports of unlisted ones are dropped.
    pub(super) fn retain_kernel(&mut self, is_said: impl Fn(&Hop) -> bool) {
        self.kernel.iter_mut().for_each(|kernel| kernel.retain(|hop, _| is_said(hop)));
    }

    /// Makes a neighbour permanent, as set by an administrator. Returns `false` where there is no room; it is then to
    /// be treated as any other.
    pub(super) fn pin(&mut self, hop: Hop, mac: [u8; 6]) -> bool {
        let has_room = self.permanent.len() < MAX_PERMANENT || self.permanent.contains_key(&hop);
        if has_room {
            self.remove(&hop);
            self.kernel[class(&hop)].remove(&hop);
            self.permanent.insert(hop, mac);
        }
        has_room
    }

    /// Makes a neighbour no longer permanent. Returns whether it was.
    pub(super) fn unpin(&mut self, hop: &Hop) -> bool {
        self.permanent.remove(hop).is_some()
    }

    /// Removes the kernel's report of a neighbour. Returns whether a permanent entry was deleted; a learned one becomes
    /// STALE.
    pub(super) fn forget(&mut self, hop: &Hop, now: Nanos) -> bool {
        self.kernel[class(hop)].remove(hop);
        if let Some(entry) = self.learned.get_mut(hop) {
            entry.make_stale(now);
        }
        self.unpin(hop)
    }

    /// Deletes all permanent entries, before a new listing by the kernel.
    pub(super) fn forget_permanent(&mut self) {
        self.permanent.clear();
    }

    /// Appends the neighbours to solicit, with their link addresses, to `solicit`, and the deleted entries to `gone`.
    /// `can_hear` as in [`Unanswered::ask_again`].
    pub(super) fn due(
        &mut self,
        now: Nanos,
        can_hear: bool,
        solicit: &mut Vec<(Hop, Option<[u8; 6]>)>,
        gone: &mut Vec<Hop>,
    ) {
        while let Some((_, number, hop)) = self.probes.front().filter(|(next, ..)| *next <= now).copied() {
            self.probes.pop_front();
            let Some(entry) = self.learned.get_mut(&hop).filter(|entry| entry.number == number) else { continue };
            entry.is_queued = false;
            let Some(unanswered) = &mut entry.probes_sent else { continue };
            if unanswered.ask_again(can_hear) {
                entry.is_queued = true;
                self.probes.push_back((Nanos(now.0 + RETRANS_TIMER), number, hop));
                solicit.push((hop, Some(entry.mac)));
            } else {
                self.remove(&hop);
                gone.push(hop);
            }
        }
        for (class, is_used) in (0..self.order.len()).flat_map(|class| [(class, false), (class, true)]) {
            while let Some((hop, entry)) = self.oldest(class, is_used)
                && entry.last.0 + UNUSED_TIME <= now.0
            {
                self.remove(&hop);
                gone.push(hop);
            }
        }
    }

    /// Returns the entry that was used least recently of those of one port and family.
    fn oldest(&self, class: usize, is_used: bool) -> Option<(Hop, &Entry)> {
        let slot = self.order[class][usize::from(is_used)].oldest()?;
        self.learned.at(slot).map(|(hop, entry)| (*hop, entry))
    }

    /// Creates a cache entry, and evicts another one if necessary.
    fn insert(&mut self, hop: Hop, mac: [u8; 6], reachable_until: Nanos, pending: HasPending, now: Nanos) -> Change {
        let class = class(&hop);
        let mut displaced = None;
        if self.lens[class] >= MAX_LEARNED {
            displaced = self.oldest(class, false).or_else(|| self.oldest(class, true)).map(|(hop, _)| hop);
        }
        if let Some(displaced) = displaced {
            self.remove(&displaced);
        }
        self.next += 1;
        let (number, is_used) = (self.next, pending == HasPending::Yes);
        let entry = Entry { number, mac, reachable_until, probes_sent: None, is_queued: false, is_used, last: now };
        let (slot, _) = self.learned.insert(hop, entry);
        self.links.push(&mut self.order[class][usize::from(is_used)], slot);
        self.lens[class] += 1;
        Change { is_linked: true, displaced, ..Change::default() }
    }

    fn remove(&mut self, hop: &Hop) {
        let Some(slot) = self.learned.slot(hop) else { return };
        if let Some(entry) = self.learned.remove(hop) {
            self.links.remove(&mut self.order[class(hop)][usize::from(entry.is_used)], slot);
            self.lens[class(hop)] -= 1;
            let (former, order) = &mut self.former[class(hop)];
            if former.insert(*hop, ()).1.is_none() {
                order.push_back(*hop);
            }
            if order.len() > MAX_LEARNED
                && let Some(oldest) = order.pop_front()
            {
                former.remove(&oldest);
            }
        }
    }
}

/// Returns the index of a neighbour's port and family in [`NeighbourCache::order`].
fn class(hop: &Hop) -> usize {
    usize::from(hop.port != 0) << 1 | usize::from(hop.is_v4)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    fn hop(port: u16, address: u128) -> Hop {
        Hop { port, is_v4: true, address }
    }

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * SECOND)
    }

    fn advertisement(mac: [u8; 6], is_solicited: bool, is_override: bool) -> Advertisement {
        Advertisement { address: Ipv4Addr::LOCALHOST.into(), mac: Some(mac), is_solicited, is_override }
    }

    /// Creates an entry from a solicited advertisement.
    fn find(cache: &mut NeighbourCache, hop: Hop, now: Nanos) -> Change {
        cache.observe(hop, &advertisement(A, true, true), HasPending::Yes, now)
    }

    type Dues = (Vec<(Hop, Option<[u8; 6]>)>, Vec<Hop>);

    fn due(cache: &mut NeighbourCache, now: Nanos) -> Dues {
        let mut dues = Dues::default();
        cache.due(now, true, &mut dues.0, &mut dues.1);
        dues
    }

    #[test]
    fn silence_that_is_not_heard_counts_after_a_minute() {
        let mut unanswered = Unanswered { asked: 1, ..Unanswered::default() };
        assert!(unanswered.ask_again(true));
        let asked = (0..100).take_while(|_| unanswered.ask_again(false)).count();
        assert_eq!(asked, 60 + 1);
        assert!(!unanswered.ask_again(true));
    }

    #[test]
    fn a_neighbour_has_time_to_answer_what_it_was_asked_last_in_a_blockade() {
        let mut unanswered = Unanswered { asked: 3, ..Unanswered::default() };
        assert!(unanswered.ask_again(false) && unanswered.ask_again(true));
        assert!(!unanswered.ask_again(true));
    }

    #[test]
    fn used_entry_is_probed_by_unicast_and_deleted_after_failed_probes() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        find(&mut cache, host, at(0));
        assert_eq!(cache.mark_used(&host, at(29)), None);
        // Entries that are not used are not probed.
        assert_eq!(due(&mut cache, at(300)), Dues::default());
        assert_eq!(cache.mark_used(&host, at(300)), Some(A));
        assert_eq!(cache.mark_used(&host, at(300)), None, "once a second");
        assert_eq!(due(&mut cache, at(301)), (vec![(host, Some(A))], vec![]));
        cache.observe(host, &advertisement(A, true, false), HasPending::No, at(301));
        assert_eq!((cache.mark_used(&host, at(330)), due(&mut cache, at(330))), (None, Dues::default()));
        assert_eq!(cache.mark_used(&host, at(331)), Some(A));
        let asked: Vec<_> = (332..335).map(|second| due(&mut cache, at(second))).collect();
        let again = (vec![(host, Some(A))], vec![]);
        assert_eq!(asked, [again.clone(), again, (vec![], vec![host])]);
        assert!(cache.is_idle() && cache.mac(&host).is_none());
        assert!(cache.order == <[[List; 2]; 4]>::default() && cache.lens == [0; 4] && cache.probes.is_empty());
    }

    #[test]
    fn an_unused_entry_is_deleted() {
        let mut cache = NeighbourCache::default();
        for host in 0..3 {
            find(&mut cache, hop(0, host), at(0));
        }
        cache.mark_used(&hop(0, 1), at(400));
        cache.observe(hop(0, 1), &advertisement(A, true, true), HasPending::No, at(400));
        cache.kernel_update(hop(0, 3), A, Freshness::New, HasPending::No, at(401));
        assert_eq!(due(&mut cache, at(599)), Dues::default());
        assert_eq!(due(&mut cache, at(600)).1, [hop(0, 0), hop(0, 2)]);
        assert_eq!(due(&mut cache, at(1001)).1, [hop(0, 3), hop(0, 1)]);
        assert!(cache.is_idle());
    }

    #[test]
    fn the_least_recently_used_entry_of_the_port_and_family_is_evicted() {
        let mut cache = NeighbourCache::default();
        let other = [hop(0, 1), Hop { is_v4: false, ..hop(1, 1) }];
        other.iter().for_each(|other| assert_eq!(find(&mut cache, *other, at(0)).displaced, None));
        for host in 0..MAX_LEARNED as u128 {
            assert_eq!(find(&mut cache, hop(1, host), Nanos(host as u64)).displaced, None);
        }
        cache.mark_used(&hop(1, 0), at(1));
        // A neighbour of the kernel's that is not used evicts no entry; one that packets wait for does.
        assert!(!cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::No, at(1)).is_linked);
        assert!(
            !cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(1)).is_linked,
            "a repetition is no answer"
        );
        let change = cache.kernel_update(hop(1, 1 << 20), B, Freshness::New, HasPending::Yes, at(1));
        assert_eq!((change.is_linked, change.displaced), (true, Some(hop(1, 1))));
        // A host that answers for every address, while two entries are used.
        for host in 0..100_000 {
            let now = Nanos(at(2).0 + host as u64 * 1_000_000);
            let change = find(&mut cache, hop(1, 1 << 24 | host), now);
            assert!(change.is_linked && change.displaced.is_some_and(|gone| gone != hop(1, 0)), "{host} {change:?}");
            if host % 1000 == 0 {
                cache.mark_used(&hop(1, 0), now);
            }
        }
        assert_eq!(cache.learned.len(), MAX_LEARNED + 2);
        assert!(cache.former.iter().all(|(former, order)| former.len() == order.len() && order.len() <= MAX_LEARNED));
        let last = hop(1, 1 << 24 | (99_999 - MAX_LEARNED as u128));
        assert!(cache.was_there(&last) && !cache.was_there(&hop(1, 1)), "the oldest one gave way");
        assert!(cache.mac(&hop(1, 0)).is_some() && other.iter().all(|other| cache.mac(other).is_some()));
        // An entry that only the kernel uses is evicted before those that the router used.
        cache.remove(&hop(1, 0));
        cache.kernel_update(hop(1, 9), A, Freshness::New, HasPending::No, at(1000));
        assert_eq!(find(&mut cache, hop(1, 10), at(1000)).displaced, Some(hop(1, 9)));
    }

    #[test]
    fn an_unsolicited_advertisement_changes_an_entry_and_creates_none() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        let tells = advertisement(B, false, true);
        assert_eq!(cache.observe(host, &tells, HasPending::No, at(0)), Change::default());
        assert!(cache.is_idle());
        find(&mut cache, host, at(0));
        assert_eq!(cache.observe(hop(0, 7), &tells, HasPending::No, at(1)), Change::default());
        assert_eq!(cache.mac(&host), Some(A), "it is known behind the other port");
        let change = cache.observe(host, &tells, HasPending::No, at(1));
        assert!(change.is_linked && change.is_moved && cache.mac(&host) == Some(B));
        // Nothing has confirmed that the neighbour is reachable. It is solicited once a second, however often its
        // address changes.
        assert_eq!(cache.mark_used(&host, at(1)), Some(B));
        for _ in 0..10 {
            assert!(cache.observe(host, &advertisement(A, false, true), HasPending::No, at(1)).is_moved);
            assert_eq!(cache.mark_used(&host, at(1)), None);
            assert!(cache.observe(host, &tells, HasPending::No, at(1)).is_moved);
            assert_eq!(cache.mark_used(&host, at(1)), None);
        }
        assert_eq!(cache.probes.len(), 1);
        assert_eq!(due(&mut cache, at(2)).0, [(host, Some(B))]);
        // For a neighbour that packets wait for, an unsolicited message is enough.
        assert!(cache.observe(hop(1, 8), &tells, HasPending::Yes, at(2)).is_linked);
    }

    #[test]
    fn advertisement_without_override_flag_keeps_the_address_and_starts_probing() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        find(&mut cache, host, at(0));
        assert_eq!(cache.observe(host, &advertisement(B, true, false), HasPending::No, at(1)), Change::default());
        assert_eq!((cache.mac(&host), cache.mark_used(&host, at(1))), (Some(A), Some(A)));
        cache.observe(host, &advertisement(B, false, false), HasPending::No, at(2));
        let silent: Vec<_> = (2..5).map(|second| due(&mut cache, at(second))).collect();
        assert_eq!(silent[2].1, [host], "unsolicited messages confirm nothing");
        // An answer without a link address confirms the one in the cache.
        find(&mut cache, host, at(10));
        cache.mark_used(&host, at(50));
        cache.observe(host, &Advertisement { mac: None, ..advertisement(A, true, false) }, HasPending::No, at(50));
        assert_eq!((due(&mut cache, at(51)), cache.mark_used(&host, at(79))), (Dues::default(), None));
    }

    #[test]
    fn permanent_entries_are_not_overridden_and_only_changed_kernel_entries_apply() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        assert!(cache.pin(host, A));
        assert_eq!(cache.observe(host, &advertisement(B, true, true), HasPending::Yes, at(0)), Change::default());
        assert_eq!((cache.mac(&host), cache.mark_used(&host, at(99))), (Some(A), None));
        assert!(cache.forget(&host, at(99)) && cache.mac(&host).is_none());
        // An entry of the kernel's is STALE until its first use.
        cache.kernel_update(host, A, Freshness::Old, HasPending::No, at(100));
        assert_eq!(cache.mark_used(&host, at(100)), Some(A));
        cache.observe(host, &advertisement(B, true, true), HasPending::No, at(100));
        // A repeated report, after a change of its state in the kernel: what the router has heard is newer.
        assert!(!cache.kernel_update(host, A, Freshness::New, HasPending::No, at(101)).is_moved);
        assert_eq!(cache.mac(&host), Some(B));
        assert!(cache.kernel_update(host, [2; 6], Freshness::New, HasPending::No, at(101)).is_moved);
        assert_eq!(cache.mac(&host), Some([2; 6]));
        // An entry that the kernel has deleted is probed.
        cache.observe(host, &advertisement([2; 6], true, true), HasPending::No, at(102));
        assert_eq!(due(&mut cache, at(103)), Dues::default());
        assert!(!cache.forget(&host, at(103)));
        assert_eq!(cache.mark_used(&host, at(103)), Some([2; 6]));
    }

    #[test]
    fn a_repeated_kernel_notification_does_not_restore_an_entry() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        cache.kernel_update(host, A, Freshness::Old, HasPending::No, at(0));
        assert_eq!(cache.mark_used(&host, at(0)), Some(A));
        (1..=3).for_each(|second| drop(due(&mut cache, at(second))));
        assert!(cache.is_idle(), "it was given up");
        for (freshness, pending) in
            [(Freshness::Old, HasPending::No), (Freshness::New, HasPending::No), (Freshness::Old, HasPending::Yes)]
        {
            assert_eq!(cache.kernel_update(host, A, freshness, pending, at(4)), Change::default());
        }
        // The neighbour is found at another address; the kernel's older report does not override it.
        cache.observe(host, &advertisement(B, true, true), HasPending::Yes, at(4));
        assert!(
            !cache.kernel_update(host, A, Freshness::New, HasPending::No, at(5)).is_moved
                && cache.mac(&host) == Some(B)
        );
        // A neighbour that the kernel has deleted is new when it comes back.
        cache.remove(&host);
        cache.retain_kernel(|_| true);
        assert!(!cache.kernel_update(host, A, Freshness::Old, HasPending::Yes, at(6)).is_linked);
        cache.retain_kernel(|_| false);
        assert!(cache.kernel_update(host, A, Freshness::Old, HasPending::Yes, at(6)).is_linked);
    }

    #[test]
    fn kernel_entries_are_bounded_by_the_neighbour_limit() {
        let mut cache = NeighbourCache::default();
        (0..2 * MAX_LEARNED as u128).for_each(|host| {
            cache.kernel_update(hop(1, host), A, Freshness::New, HasPending::No, at(0));
        });
        assert_eq!(cache.kernel.iter().map(SlotMap::len).collect::<Vec<_>>(), [0, 0, 0, MAX_LEARNED]);
        // A further report could not be remembered and is not taken; other ports and families have room of their own.
        assert_eq!(cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(0)), Change::default());
        assert!(cache.kernel_update(hop(0, 1 << 20), A, Freshness::New, HasPending::No, at(0)).is_linked);
        cache.forget(&hop(1, 0), at(0));
        assert!(cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(0)).is_linked);
    }

    #[test]
    fn former_permanent_entry_is_kept_only_while_the_cache_has_room() {
        let mut cache = NeighbourCache::default();
        assert!(cache.pin(hop(1, 7), A) && cache.pin(hop(1, 8), A));
        assert!(cache.kernel_update(hop(1, 7), A, Freshness::New, HasPending::No, at(0)).is_linked);
        for host in 0..MAX_LEARNED as u128 {
            find(&mut cache, hop(1, 1 << 20 | host), at(0));
        }
        let change = cache.kernel_update(hop(1, 8), A, Freshness::New, HasPending::No, at(0));
        assert!(change.is_gone && !change.is_linked && cache.mac(&hop(1, 8)).is_none(), "{change:?}");
    }
}
