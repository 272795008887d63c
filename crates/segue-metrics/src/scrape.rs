//! A snapshot of the state of all instances.

use std::collections::{BTreeMap, BTreeSet};

use segue_control::client::Found;
use segue_control::error::{Error, Kind, printable};
use segue_control::fleet::FleetState;
use segue_control::fleet_health;
use segue_control::model::Instance;
use segue_control::services;

/// A function that returns the description of a reason: the group of the counter (`drops`, `flushes`, `refusals`,
/// `mismatches`, `fallbacks`) and its name.
pub type Sentence = fn(&str, &str) -> Option<String>;

/// A snapshot of the state of all instances.
#[derive(Debug, Default)]
pub struct Scrape {
    /// The version of the requesting program.
    pub version: String,
    /// The instances that answered, each with a name of its own.
    pub instances: Vec<Instance>,
    /// The states of the fleet agents of these instances, by name.
    pub fleet: BTreeMap<String, FleetState>,
    /// The failures of instances that are alive and did not answer, or whose name is that of another one.
    pub failed: Vec<Error>,
}

impl Scrape {
    /// Requests the state of every instance that this user can see.
    pub fn now(version: &str) -> Scrape {
        let mut scrape = Scrape::of(version, services::instances());
        scrape.fleet = fleet_health::add(&mut scrape.instances);
        scrape
    }

    /// Keeps the first instance of each name: series of two would have the same labels, and Prometheus would refuse
    /// all series.
    fn of(version: &str, found: Found) -> Scrape {
        let mut failed: Vec<Error> = found.failed.into_iter().map(|(_, error)| error).collect();
        let (mut names, mut instances) = (BTreeSet::new(), found.instances);
        instances.retain(|instance| {
            let is_first = names.insert(instance.name.clone());
            if !is_first {
                failed.push(namesake(instance));
            }
            is_first
        });
        Scrape { version: version.to_owned(), instances, failed, ..Scrape::default() }
    }
}

/// Returns the failure for an instance whose name another one has.
fn namesake(instance: &Instance) -> Error {
    let message = format!("two instances are called {}: that of process {}", printable(&instance.name), instance.pid);
    Error::new(Kind::Conflict, format!("{message} is left out"), "SEGUE_RUNTIME_DIR=/some/directory segue metrics ...")
        .why("series of both would have the same labels")
}

#[cfg(test)]
mod tests {
    use segue_control::model::Port;

    use super::*;

    fn instance(name: &str, pid: u32) -> Instance {
        let mut made = Instance { name: name.to_owned(), pid, ..Instance::default() };
        let mut port = Port::default();
        port.drops.insert("too_big".to_owned(), u64::from(pid));
        made.ports.insert(name.to_owned(), port);
        made
    }

    #[test]
    fn of_two_instances_with_one_name_the_first_has_series_and_the_other_is_named() {
        let instances = vec![instance("sg0", 7), instance("sg0", 8), instance("sg1", 9)];
        let scrape = Scrape::of("1", Found { instances, failed: Vec::new() });
        let samples = scrape.samples(|_, _| None);
        for samples in &samples {
            for (at, one) in samples.samples.iter().enumerate() {
                let is_twice = samples.samples[..at].iter().any(|other| other.labels == one.labels);
                assert!(!is_twice, "{:?} has {:?} twice", samples.family, one.labels);
            }
        }
        let drops = samples.iter().find(|samples| samples.family.name == "segue_drops_total").unwrap();
        assert_eq!(drops.samples.iter().map(|sample| sample.value).collect::<Vec<_>>(), [7.0, 9.0]);
        let unanswered = samples.iter().find(|samples| samples.family.name == "segue_instances_unanswered").unwrap();
        assert_eq!(unanswered.samples[0].value, 1.0);
        assert!(scrape.failed[0].message.contains("sg0") && scrape.failed[0].message.contains('8'), "{scrape:?}");
    }
}
