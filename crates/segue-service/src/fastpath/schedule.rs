//! The order in which the routes of tunnels and remotes are looked up.

use segue_host::netlink::changes::Changes;

/// Number of tunnels, and of remotes of a peer table, whose routes are looked up per interval without a notice that
/// they have changed.
pub(super) const SOME: usize = 64;
/// Number of them whose routes are looked up per interval while they are due, because they are new or after a change.
pub(super) const DUE: usize = 2048;

/// A schedule of lookups: some at each interval, and all before long after a change of links, addresses or routes.
pub(super) struct LookupSchedule {
    /// The kernel's reports; without them each change is found in turn.
    changes: Option<Changes>,
    /// The index of the next tunnel.
    next: usize,
    /// Number of tunnels that are due.
    due: usize,
}

impl LookupSchedule {
    /// Begins with a connection for reports of changes.
    pub(super) fn new(changes: Option<Changes>) -> LookupSchedule {
        LookupSchedule { changes, next: 0, due: 0 }
    }

    /// Returns whether links, addresses or routes have changed since the last call.
    pub(super) fn has_change(&mut self) -> bool {
        // An error may repeat, and is no change.
        self.changes.as_mut().is_some_and(|changes| changes.read().is_ok_and(|changed| changed.anything))
    }

    /// Returns whether tunnels are due.
    pub(super) fn has_due(&self) -> bool {
        self.due > 0
    }

    /// Has all of `count` tunnels looked up before long.
    pub(super) fn look_again(&mut self, count: usize) {
        self.due = count;
    }

    /// Returns the indexes of the tunnels, of `count`, that are looked up in this interval.
    pub(super) fn tunnels(&mut self, count: usize) -> Vec<usize> {
        let most = self.due.clamp(SOME, DUE).min(count);
        let first = self.next;
        self.due = self.due.saturating_sub(most);
        self.next = if count > 0 { (first + most) % count } else { 0 };
        (first..first + most).map(|index| index % count).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::fastpath::tests::in_namespace;

    #[test]
    fn tunnels_are_looked_up_in_turn_and_all_of_them_soon_after_a_change() {
        let mut schedule = LookupSchedule::new(None);
        assert!(schedule.tunnels(0).is_empty());
        assert_eq!([(); 3].map(|()| schedule.tunnels(2)), [[0, 1]; 3]);
        let mut seen: Vec<usize> = (0..3).flat_map(|_| schedule.tunnels(150)).collect();
        assert_eq!(seen.len(), 3 * SOME);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..150).collect::<Vec<_>>());
        schedule.look_again(4096);
        let mut seen = [schedule.tunnels(4096), schedule.tunnels(4096)].concat();
        assert!(!schedule.has_due() && schedule.tunnels(4096).len() == SOME);
        seen.sort_unstable();
        assert_eq!(seen, (0..4096).collect::<Vec<_>>());
    }

    #[test]
    fn routes_links_and_addresses_are_changes_and_neighbours_are_none() {
        in_namespace(|| {
            let mut schedule = LookupSchedule::new(Changes::of_routes().ok());
            for (words, is_change) in [
                ("link add seg0 type veth peer name seg1", true),
                ("addr add 198.18.5.1/24 dev seg0", true),
                ("link set seg0 up", true),
                ("neigh add 198.18.5.2 lladdr 02:00:00:00:00:02 dev seg0", false),
                ("route add 198.18.6.0/24 dev seg0", true),
                ("route replace 198.18.6.0/24 dev seg0 mtu 1400", true),
                ("neigh del 198.18.5.2 dev seg0", false),
            ] {
                let done = Command::new("ip").args(words.split(' ')).status();
                assert!(done.is_ok_and(|status| status.success()), "{words}");
                assert_eq!(schedule.has_change(), is_change, "{words}");
            }
            assert!(!schedule.has_change());
        });
    }
}
