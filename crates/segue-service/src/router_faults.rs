//! Faults of a router's copy of the kernel's tables, as shown in HEALTH: stale tables, and kernel routes that the
//! router does not use.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use segue_control::model::Complaint;
use segue_control::units::rfc3339;

/// Numbers of routes that the last read of the kernel's tables left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Number of routes from router advertisements that are not used.
    pub advertised: usize,
    /// Number of routes from router advertisements that are used.
    pub advertised_used: usize,
    /// Number of routes beyond the limit of the router's table.
    pub beyond_limit: usize,
}

/// Faults of the tables, written by the thread that follows the kernel and read by the control thread.
#[derive(Debug, Default)]
pub struct TableFaults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    unused: Unused,
    /// Start and reason of the period in which changes of the kernel's tables do not reach the router.
    stale: Option<(SystemTime, String)>,
}

impl TableFaults {
    /// Records that the tables no longer follow the kernel. Returns whether they did until now.
    pub fn set_stale(&self, why: &str) -> bool {
        let mut state = self.state();
        let since = state.stale.as_ref().map_or_else(SystemTime::now, |(since, _)| *since);
        state.stale.replace((since, why.to_owned())).is_none()
    }

    /// Records that the tables are those of the kernel.
    pub fn set_fresh(&self) {
        self.state().stale = None;
    }

    /// Records the routes that the last read left out.
    pub fn set_unused(&self, unused: Unused) {
        self.state().unused = unused;
    }

    /// Returns the current problems of the tables.
    pub fn complaints(&self) -> Vec<Complaint> {
        let state = self.state();
        let stale = state.stale.as_ref().map(|(since, why)| Complaint {
            what: "stale routes".to_owned(),
            why: Some(format!("{why}; packets follow the last tables that were read")),
            since: Some(rfc3339(*since)),
            code: "stale_routes".to_owned(),
            ..Complaint::default()
        });
        let Unused { advertised, advertised_used, beyond_limit } = state.unused;
        let learned = (advertised > 0).then(|| Complaint {
            what: format!("{advertised} routes from router advertisements not used"),
            why: Some(match advertised_used {
                0 => "any station can send them; --accept-ra uses them, ip -6 route shows them (proto ra, expires)"
                    .to_owned(),
                used => format!("{used} are used, which is the limit"),
            }),
            code: "routes_not_used".to_owned(),
            ..Complaint::default()
        });
        let beyond = (beyond_limit > 0).then(|| Complaint {
            what: format!("{beyond_limit} routes not used"),
            why: Some("the kernel has more than a router takes over".to_owned()),
            code: "routes_not_used".to_owned(),
            ..Complaint::default()
        });
        stale.into_iter().chain(learned).chain(beyond).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_tables_are_a_problem_until_they_are_read_again() {
        let faults = TableFaults::default();
        assert_eq!(faults.complaints(), []);
        assert!(faults.set_stale("netlink: EIO"));
        let first = faults.complaints();
        assert!(first[0].why.as_ref().unwrap().starts_with("netlink: EIO"), "{first:?}");
        assert!(!faults.set_stale("netlink: ENOMEM"), "the second failure in a row is no new fault");
        let second = faults.complaints();
        assert_eq!((second.len(), &second[0].since), (1, &first[0].since));
        faults.set_fresh();
        assert_eq!(faults.complaints(), []);
    }

    #[test]
    fn routes_that_are_not_used_are_a_problem() {
        let faults = TableFaults::default();
        faults.set_unused(Unused { advertised: 0, advertised_used: 3, beyond_limit: 0 });
        assert_eq!(faults.complaints(), []);
        faults.set_unused(Unused { advertised: 5, advertised_used: 0, beyond_limit: 2 });
        let whats: Vec<String> = faults.complaints().into_iter().map(|complaint| complaint.what).collect();
        assert_eq!(whats, ["5 routes from router advertisements not used", "2 routes not used"]);
    }
}
