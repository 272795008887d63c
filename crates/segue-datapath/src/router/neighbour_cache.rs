//! Neighbours that are known, as RFC 4861, section 7.3 has them: one is asked again when it is used, and who is not used is
//! forgotten.

use std::collections::{BTreeMap, HashMap, VecDeque};

use segue::time::Nanos;

use super::messages::Advertisement;
use crate::route::Hop;

pub(super) const SECOND: u64 = 1_000_000_000;
/// Time between questions (RFC 4861, section 10: 1 second), and how many.
pub(super) const RETRANS_TIMER: u64 = SECOND;
pub(super) const MAX_SOLICITS: u8 = 3;
/// How long an answer is good (RFC 4861, section 10: 30 seconds).
const REACHABLE_TIME: u64 = 30 * SECOND;
/// How long a neighbour is known that nobody uses.
const UNUSED_TIME: u64 = 600 * SECOND;
/// Uses that lie closer together are one, nanoseconds.
const USE_GRANULARITY: u64 = 1_000_000;
/// Most neighbours of one family behind one port that are known, besides those that were set by hand.
pub(super) const MAX_LEARNED: usize = 8192;
/// Most neighbours that were set by hand.
const MAX_PERMANENT: usize = 4 * MAX_LEARNED;
/// Most of all.
pub(super) const MAX_LINKS: usize = 4 * MAX_LEARNED + MAX_PERMANENT;

/// Whether what the kernel says has just happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Old,
    New,
}

/// Whether packets wait for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HasPending {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// No other entry, earlier or later, has it.
    number: u64,
    mac: [u8; 6],
    /// Until when it need not be asked.
    good: Nanos,
    /// It was used after that: questions since then.
    probe: Option<u8>,
    /// It stands in [`NeighbourCache::probes`].
    is_queued: bool,
    is_used: bool,
    /// When it was used, or learned if never.
    last: Nanos,
}

impl Entry {
    /// It was heard of at another link address, and is asked there when it is used (RFC 4861, section 7.2.5: STALE).
    fn move_to(&mut self, mac: [u8; 6], now: Nanos) {
        self.mac = mac;
        self.probe = None;
        self.make_stale(now);
    }

    /// It is asked at its next use.
    fn make_stale(&mut self, now: Nanos) {
        self.good = self.good.min(now);
    }
}

/// What has come of something that was heard or told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Its link address is known, and was not, or is another one.
    pub(super) is_linked: bool,
    /// It is another one.
    pub(super) is_moved: bool,
    /// This one has made room.
    pub(super) displaced: Option<Hop>,
    /// It was set by hand, and is not known any more.
    pub(super) is_gone: bool,
}

/// Who is known. One that answers is good for some time; after that, its next use has it asked at its link address, and no
/// answer ends it. A router hears nothing from upper layers, so that there is nothing to delay the first question for. Where
/// the table is full, the one that was unused longest makes room (RFC 6583), and first of all those that only the
/// kernel has used. Nothing here looks through the table.
#[derive(Debug, Default)]
pub(super) struct NeighbourCache {
    permanent: HashMap<Hop, [u8; 6]>,
    learned: HashMap<Hop, Entry>,
    /// What the kernel said last of those that were not set by hand, by port and family: also of those that are not known, or no
    /// longer, so that its repetition is told from its news.
    kernel: [HashMap<Hop, [u8; 6]>; 4],
    /// By port and family, and there those that were never used and those that were, the one unused longest first.
    order: [[BTreeMap<(Nanos, u64), Hop>; 2]; 4],
    /// When those that were asked are looked at, in this order.
    probes: VecDeque<(Nanos, u64, Hop)>,
    next: u64,
}

impl NeighbourCache {
    pub(super) fn mac(&self, hop: &Hop) -> Option<[u8; 6]> {
        self.permanent.get(hop).copied().or_else(|| self.learned.get(hop).map(|entry| entry.mac))
    }

    pub(super) fn hops(&self) -> impl Iterator<Item = Hop> {
        self.permanent.keys().chain(self.learned.keys()).copied()
    }

    /// Whether time changes nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.learned.is_empty()
    }

    /// A packet leaves for this one. Where it is to be asked whether it is still there: its link address.
    pub(super) fn mark_used(&mut self, hop: &Hop, now: Nanos) -> Option<[u8; 6]> {
        let entry = self.learned.get_mut(hop)?;
        if !entry.is_used || entry.last.0 + USE_GRANULARITY <= now.0 {
            let [unused, used] = &mut self.order[class(hop)];
            let old = if entry.is_used { &mut *used } else { unused };
            old.remove(&(entry.last, entry.number));
            (entry.is_used, entry.last) = (true, now);
            used.insert((now, entry.number), *hop);
        }
        if entry.good > now || entry.probe.is_some() {
            return None;
        }
        // Whatever others say in the meantime, it is not asked more often (RFC 4861, section 7.2.2).
        entry.probe = Some(u8::from(!entry.is_queued));
        if entry.is_queued {
            return None;
        }
        entry.is_queued = true;
        self.probes.push_back((Nanos(now.0 + RETRANS_TIMER), entry.number, *hop));
        Some(entry.mac)
    }

    /// What a frame says of a neighbour's link address (RFC 826; RFC 4861, section 7.2.3 and 7.2.5). It changes who is known,
    /// and makes known only for whom packets wait: others cannot fill the table.
    pub(super) fn observe(
        &mut self,
        hop: Hop,
        advertisement: &Advertisement,
        pending: HasPending,
        now: Nanos,
    ) -> Change {
        let good = if advertisement.is_solicited { Nanos(now.0 + REACHABLE_TIME) } else { now };
        if self.permanent.contains_key(&hop) {
            return Change::default();
        }
        let Some(entry) = self.learned.get_mut(&hop) else {
            return match advertisement.mac.filter(|_| pending == HasPending::Yes) {
                Some(mac) => self.insert(hop, mac, good, pending, now),
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
            (entry.good, entry.probe) = (good, None);
        }
        Change { is_linked: other.is_some(), is_moved: other.is_some(), ..Change::default() }
    }

    /// What the kernel says of one that was not set by hand. It has heard what was heard here, too, and tells it later: only a
    /// link address that is new to the kernel counts. Its repetition makes known nobody who was given up, and is no answer where
    /// one is asked for.
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
        // What cannot be remembered would be news each time.
        if kernel.len() >= MAX_LEARNED && !kernel.contains_key(&hop) {
            return unheeded;
        }
        let before = kernel.insert(hop, mac);
        if let Some(entry) = self.learned.get_mut(&hop) {
            let is_news = before.map_or(freshness == Freshness::New, |before| before != mac);
            let is_moved = is_news && entry.mac != mac;
            if is_moved {
                entry.move_to(mac, now);
            }
            return Change { is_linked: is_moved, is_moved, ..Change::default() };
        }
        // Who is not used here pushes nobody out.
        if before == Some(mac) || pending == HasPending::No && self.len(class(&hop)) >= MAX_LEARNED {
            return unheeded;
        }
        self.insert(hop, mac, now, pending, now)
    }

    /// The kernel has said all that it knows: what it does not say any more is forgotten.
    pub(super) fn retain_kernel(&mut self, is_said: impl Fn(&Hop) -> bool) {
        self.kernel.iter_mut().for_each(|kernel| kernel.retain(|hop, _| is_said(hop)));
    }

    /// One is set by hand. Whether there is room; else it is one as any other.
    pub(super) fn pin(&mut self, hop: Hop, mac: [u8; 6]) -> bool {
        let has_room = self.permanent.len() < MAX_PERMANENT || self.permanent.contains_key(&hop);
        if has_room {
            self.remove(&hop);
            self.kernel[class(&hop)].remove(&hop);
            self.permanent.insert(hop, mac);
        }
        has_room
    }

    /// One is not set by hand any more. Whether it was.
    pub(super) fn unpin(&mut self, hop: &Hop) -> bool {
        self.permanent.remove(hop).is_some()
    }

    /// The kernel no longer has a neighbour. Whether it is forgotten here, too: it was set by hand. Another one is asked when
    /// it is used.
    pub(super) fn forget(&mut self, hop: &Hop, now: Nanos) -> bool {
        self.kernel[class(hop)].remove(hop);
        if let Some(entry) = self.learned.get_mut(hop) {
            entry.make_stale(now);
        }
        self.unpin(hop)
    }

    /// Forgets what was set by hand, before the kernel says anew what is.
    pub(super) fn forget_permanent(&mut self) {
        self.permanent.clear();
    }

    /// Adds those that are to be asked, and where, and those that are known no more.
    pub(super) fn due(&mut self, now: Nanos, solicit: &mut Vec<(Hop, Option<[u8; 6]>)>, gone: &mut Vec<Hop>) {
        let begin = gone.len();
        while let Some((_, number, hop)) = self.probes.front().filter(|(next, ..)| *next <= now).copied() {
            self.probes.pop_front();
            let Some(entry) = self.learned.get_mut(&hop).filter(|entry| entry.number == number) else { continue };
            entry.is_queued = false;
            match entry.probe {
                None => {}
                Some(asked) if asked >= MAX_SOLICITS => gone.push(hop),
                Some(asked) => {
                    entry.probe = Some(asked + 1);
                    entry.is_queued = true;
                    self.probes.push_back((Nanos(now.0 + RETRANS_TIMER), number, hop));
                    solicit.push((hop, Some(entry.mac)));
                }
            }
        }
        for order in self.order.iter().flatten() {
            let ends = order.iter().take_while(|((last, _), _)| last.0 + UNUSED_TIME <= now.0);
            gone.extend(ends.map(|(_, hop)| *hop));
        }
        gone[begin..].iter().for_each(|hop| self.remove(hop));
    }

    fn len(&self, class: usize) -> usize {
        self.order[class].iter().map(BTreeMap::len).sum()
    }

    /// Makes one known that is not.
    fn insert(&mut self, hop: Hop, mac: [u8; 6], good: Nanos, pending: HasPending, now: Nanos) -> Change {
        let class = class(&hop);
        let mut displaced = None;
        if self.len(class) >= MAX_LEARNED {
            displaced = self.order[class].iter().find_map(BTreeMap::first_key_value).map(|(_, hop)| *hop);
        }
        if let Some(displaced) = displaced {
            self.remove(&displaced);
        }
        self.next += 1;
        let (number, is_used) = (self.next, pending == HasPending::Yes);
        self.order[class][usize::from(is_used)].insert((now, number), hop);
        let entry = Entry { number, mac, good, probe: None, is_queued: false, is_used, last: now };
        self.learned.insert(hop, entry);
        Change { is_linked: true, displaced, ..Change::default() }
    }

    fn remove(&mut self, hop: &Hop) {
        if let Some(entry) = self.learned.remove(hop) {
            self.order[class(hop)][usize::from(entry.is_used)].remove(&(entry.last, entry.number));
        }
    }
}

/// Which of [`NeighbourCache::order`] is about a neighbour.
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

    fn claim(mac: [u8; 6], is_solicited: bool, is_override: bool) -> Advertisement {
        Advertisement { address: Ipv4Addr::LOCALHOST.into(), mac: Some(mac), is_solicited, is_override }
    }

    /// One is asked for and answers.
    fn find(cache: &mut NeighbourCache, hop: Hop, now: Nanos) -> Change {
        cache.observe(hop, &claim(A, true, true), HasPending::Yes, now)
    }

    type Dues = (Vec<(Hop, Option<[u8; 6]>)>, Vec<Hop>);

    fn due(cache: &mut NeighbourCache, now: Nanos) -> Dues {
        let mut dues = Dues::default();
        cache.due(now, &mut dues.0, &mut dues.1);
        dues
    }

    #[test]
    fn one_that_is_used_is_asked_at_its_address_and_no_answer_ends_it() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        find(&mut cache, host, at(0));
        assert_eq!(cache.mark_used(&host, at(29)), None);
        // Nobody asks for the sake of asking.
        assert_eq!(due(&mut cache, at(300)), Dues::default());
        assert_eq!(cache.mark_used(&host, at(300)), Some(A));
        assert_eq!(cache.mark_used(&host, at(300)), None, "once a second");
        assert_eq!(due(&mut cache, at(301)), (vec![(host, Some(A))], vec![]));
        cache.observe(host, &claim(A, true, false), HasPending::No, at(301));
        assert_eq!((cache.mark_used(&host, at(330)), due(&mut cache, at(330))), (None, Dues::default()));
        assert_eq!(cache.mark_used(&host, at(331)), Some(A));
        let asked: Vec<_> = (332..335).map(|second| due(&mut cache, at(second))).collect();
        let again = (vec![(host, Some(A))], vec![]);
        assert_eq!(asked, [again.clone(), again, (vec![], vec![host])]);
        assert!(cache.is_idle() && cache.mac(&host).is_none());
        assert!(cache.order.iter().flatten().all(BTreeMap::is_empty) && cache.probes.is_empty());
    }

    #[test]
    fn one_that_nobody_uses_is_forgotten() {
        let mut cache = NeighbourCache::default();
        for host in 0..3 {
            find(&mut cache, hop(0, host), at(0));
        }
        cache.mark_used(&hop(0, 1), at(400));
        cache.observe(hop(0, 1), &claim(A, true, true), HasPending::No, at(400));
        cache.kernel_update(hop(0, 3), A, Freshness::New, HasPending::No, at(401));
        assert_eq!(due(&mut cache, at(599)), Dues::default());
        assert_eq!(due(&mut cache, at(600)).1, [hop(0, 0), hop(0, 2)]);
        assert_eq!(due(&mut cache, at(1001)).1, [hop(0, 3), hop(0, 1)]);
        assert!(cache.is_idle());
    }

    #[test]
    fn the_one_unused_longest_makes_room_and_others_ports_and_families_do_not() {
        let mut cache = NeighbourCache::default();
        let other = [hop(0, 1), Hop { is_v4: false, ..hop(1, 1) }];
        other.iter().for_each(|other| assert_eq!(find(&mut cache, *other, at(0)).displaced, None));
        for host in 0..MAX_LEARNED as u128 {
            assert_eq!(find(&mut cache, hop(1, host), Nanos(host as u64)).displaced, None);
        }
        cache.mark_used(&hop(1, 0), at(1));
        // One of the kernel's that nobody uses pushes nobody out; one that packets wait for does.
        assert!(!cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::No, at(1)).is_linked);
        assert!(
            !cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(1)).is_linked,
            "a repetition is no answer"
        );
        let change = cache.kernel_update(hop(1, 1 << 20), B, Freshness::New, HasPending::Yes, at(1));
        assert_eq!((change.is_linked, change.displaced), (true, Some(hop(1, 1))));
        // One that answers for everything, while two are used.
        for host in 0..100_000 {
            let now = Nanos(at(2).0 + host as u64 * 1_000_000);
            let change = find(&mut cache, hop(1, 1 << 24 | host), now);
            assert!(change.is_linked && change.displaced.is_some_and(|gone| gone != hop(1, 0)), "{host} {change:?}");
            if host % 1000 == 0 {
                cache.mark_used(&hop(1, 0), now);
            }
        }
        assert_eq!(cache.learned.len(), MAX_LEARNED + 2);
        assert!(cache.mac(&hop(1, 0)).is_some() && other.iter().all(|other| cache.mac(other).is_some()));
        // One that only the kernel has used goes before any that was used here.
        cache.remove(&hop(1, 0));
        cache.kernel_update(hop(1, 9), A, Freshness::New, HasPending::No, at(1000));
        assert_eq!(find(&mut cache, hop(1, 10), at(1000)).displaced, Some(hop(1, 9)));
    }

    #[test]
    fn who_speaks_unasked_changes_whom_he_is_known_as_and_makes_nobody_known() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        let tells = claim(B, false, true);
        assert_eq!(cache.observe(host, &tells, HasPending::No, at(0)), Change::default());
        assert!(cache.is_idle());
        find(&mut cache, host, at(0));
        assert_eq!(cache.observe(hop(0, 7), &tells, HasPending::No, at(1)), Change::default());
        assert_eq!(cache.mac(&host), Some(A), "it is known behind the other port");
        let change = cache.observe(host, &tells, HasPending::No, at(1));
        assert!(change.is_linked && change.is_moved && cache.mac(&host) == Some(B));
        // Nobody has proved that it is there. It is asked once a second, however often it is said to move.
        assert_eq!(cache.mark_used(&host, at(1)), Some(B));
        for _ in 0..10 {
            assert!(cache.observe(host, &claim(A, false, true), HasPending::No, at(1)).is_moved);
            assert_eq!(cache.mark_used(&host, at(1)), None);
            assert!(cache.observe(host, &tells, HasPending::No, at(1)).is_moved);
            assert_eq!(cache.mark_used(&host, at(1)), None);
        }
        assert_eq!(cache.probes.len(), 1);
        assert_eq!(due(&mut cache, at(2)).0, [(host, Some(B))]);
        // An answer to the question for one that packets wait for, though nobody was told to hear it, will do.
        assert!(cache.observe(hop(1, 8), &tells, HasPending::Yes, at(2)).is_linked);
    }

    #[test]
    fn without_the_override_flag_another_address_is_only_a_doubt() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        find(&mut cache, host, at(0));
        assert_eq!(cache.observe(host, &claim(B, true, false), HasPending::No, at(1)), Change::default());
        assert_eq!((cache.mac(&host), cache.mark_used(&host, at(1))), (Some(A), Some(A)));
        cache.observe(host, &claim(B, false, false), HasPending::No, at(2));
        let silent: Vec<_> = (2..5).map(|second| due(&mut cache, at(second))).collect();
        assert_eq!(silent[2].1, [host], "others keep nobody alive");
        // An answer without a link address is good for the one that is known.
        find(&mut cache, host, at(10));
        cache.mark_used(&host, at(50));
        cache.observe(host, &Advertisement { mac: None, ..claim(A, true, false) }, HasPending::No, at(50));
        assert_eq!((due(&mut cache, at(51)), cache.mark_used(&host, at(79))), (Dues::default(), None));
    }

    #[test]
    fn what_was_set_by_hand_stands_and_the_kernel_counts_where_it_says_something_new() {
        let (mut cache, host) = (NeighbourCache::default(), hop(1, 7));
        assert!(cache.pin(host, A));
        assert_eq!(cache.observe(host, &claim(B, true, true), HasPending::Yes, at(0)), Change::default());
        assert_eq!((cache.mac(&host), cache.mark_used(&host, at(99))), (Some(A), None));
        assert!(cache.forget(&host, at(99)) && cache.mac(&host).is_none());
        // The kernel's word is old until somebody uses it.
        cache.kernel_update(host, A, Freshness::Old, HasPending::No, at(100));
        assert_eq!(cache.mark_used(&host, at(100)), Some(A));
        cache.observe(host, &claim(B, true, true), HasPending::No, at(100));
        // The same once more, because its state has changed: what was heard here is newer.
        assert!(!cache.kernel_update(host, A, Freshness::New, HasPending::No, at(101)).is_moved);
        assert_eq!(cache.mac(&host), Some(B));
        assert!(cache.kernel_update(host, [2; 6], Freshness::New, HasPending::No, at(101)).is_moved);
        assert_eq!(cache.mac(&host), Some([2; 6]));
        // One that the kernel has forgotten is asked.
        cache.observe(host, &claim([2; 6], true, true), HasPending::No, at(102));
        assert_eq!(due(&mut cache, at(103)), Dues::default());
        assert!(!cache.forget(&host, at(103)));
        assert_eq!(cache.mark_used(&host, at(103)), Some([2; 6]));
    }

    #[test]
    fn the_kernels_repetition_makes_nobody_known_again() {
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
        // It is found elsewhere; what the kernel has said all the time is not newer.
        cache.observe(host, &claim(B, true, true), HasPending::Yes, at(4));
        assert!(
            !cache.kernel_update(host, A, Freshness::New, HasPending::No, at(5)).is_moved
                && cache.mac(&host) == Some(B)
        );
        // What the kernel no longer has is new when it comes back.
        cache.remove(&host);
        cache.retain_kernel(|_| true);
        assert!(!cache.kernel_update(host, A, Freshness::Old, HasPending::Yes, at(6)).is_linked);
        cache.retain_kernel(|_| false);
        assert!(cache.kernel_update(host, A, Freshness::Old, HasPending::Yes, at(6)).is_linked);
    }

    #[test]
    fn as_much_of_the_kernels_word_is_remembered_as_there_may_be_neighbours() {
        let mut cache = NeighbourCache::default();
        (0..2 * MAX_LEARNED as u128).for_each(|host| {
            cache.kernel_update(hop(1, host), A, Freshness::New, HasPending::No, at(0));
        });
        assert_eq!(cache.kernel.iter().map(HashMap::len).collect::<Vec<_>>(), [0, 0, 0, MAX_LEARNED]);
        // One more would be news for ever, and is asked for; other ports and families have room of their own.
        assert_eq!(cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(0)), Change::default());
        assert!(cache.kernel_update(hop(0, 1 << 20), A, Freshness::New, HasPending::No, at(0)).is_linked);
        cache.forget(&hop(1, 0), at(0));
        assert!(cache.kernel_update(hop(1, 1 << 20), A, Freshness::New, HasPending::Yes, at(0)).is_linked);
    }

    #[test]
    fn one_that_is_no_longer_set_by_hand_is_known_where_there_is_room_and_else_gone() {
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
