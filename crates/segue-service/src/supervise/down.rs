//! The instances that are down, and those of them that clients do not find.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::child::Instance;

/// Time around that of a restart in which an instance without a process is about to start.
const SOON: Duration = Duration::from_millis(250);

/// The names of the instances that are down.
#[derive(Debug, Default)]
pub(super) struct Down(BTreeSet<String>);

impl Down {
    /// Notes which of the instances are down. One stays so until it is up: also while its start is tried, and while
    /// nothing answers for it because of a reload or an upgrade.
    pub(super) fn note(&mut self, instances: &[Instance], now: Instant) {
        let is_far = |again: Instant| again >= now + SOON || now >= again + SOON;
        let is_down = |one: &&Instance| {
            let is_told = one.has_placeholder() || one.is_hidden || self.0.contains(&one.spec.name);
            let is_left = !one.runs() && !one.is_replaced;
            !one.is_up() && (is_told || is_left && one.again.is_some_and(is_far))
        };
        self.0 = instances.iter().filter(is_down).map(|one| one.spec.name.clone()).collect();
    }

    /// Returns the names of the instances that are down and whose control sockets are not served here.
    pub(super) fn hidden(&self, instances: &[Instance]) -> Vec<String> {
        let is_down = |one: &Instance| !one.is_up() && self.0.contains(&one.spec.name);
        let hidden = instances.iter().filter(|one| is_down(one) && !one.has_placeholder());
        hidden.map(|one| one.spec.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::spec::{InstancePlan, InstanceSpec, Kind};

    /// Returns an instance without a process, as after an upgrade, that is started again at the given time.
    fn waiting(again: Instant) -> [Instance; 1] {
        let mut instance = Instance::new(InstanceSpec {
            kind: Kind::Tunnel,
            name: "sg0".to_owned(),
            tokens: Vec::new(),
            assignments: Vec::new(),
            header: 0..0,
            plan: InstancePlan::Tunnels(Vec::new()),
            unresolved: None,
        });
        instance.again = Some(again);
        [instance]
    }

    #[test]
    fn an_instance_is_down_from_its_pause_until_it_is_up() {
        let now = Instant::now() + Duration::from_secs(60);
        let second = Duration::from_secs(1);
        let hidden = |down: &mut Down, again: Instant| {
            let instances = waiting(again);
            down.note(&instances, now);
            down.hidden(&instances)
        };
        let mut down = Down::default();
        assert!(hidden(&mut down, now).is_empty(), "it starts again at once");
        assert_eq!(hidden(&mut down, now + second), ["sg0"]);
        // Its pause is over, and it is not up yet.
        assert_eq!(hidden(&mut down, now), ["sg0"]);
        down.note(&[], now);
        assert!(hidden(&mut down, now).is_empty(), "another instance of its name");
        // The service starts others, and not yet this one.
        assert_eq!(hidden(&mut down, now - second), ["sg0"]);
    }
}
