//! Counters of a running instance, as `segue stat -j` prints them.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Host;
use serde_json::Value;

/// Time within which all instances of a host must answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The counters of one instance, an object of `segue.stat/1`.
#[derive(Debug, Clone)]
pub struct Stat(Value);

impl Stat {
    /// Reads the counters of the instance `name` in `host`.
    #[track_caller]
    pub fn read(host: &Host, program: &Path, name: &str) -> Stat {
        let begin = Instant::now();
        let text = loop {
            let output = host.command(program).args(["stat", "-j"]).output().expect("segue stat starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                break text;
            }
            // An instance that the machine leaves no time for a few seconds is asked again.
            assert!(begin.elapsed() < PATIENCE, "segue stat -j: {}\n{text}", output.status);
            thread::sleep(Duration::from_millis(100));
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!(value["schema"], "segue.stat/1");
        let instances = value["instances"].as_array().expect("instances");
        let found = instances.iter().find(|instance| instance["name"] == name);
        Stat(found.unwrap_or_else(|| panic!("no instance {name} in {text}")).clone())
    }

    /// Parses the output of `segue stat NAME -j` from another run.
    #[track_caller]
    pub fn parse(text: &str) -> Stat {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
        Stat(value["instances"][0].clone())
    }

    /// Returns the drop counters by reason, summed over all ports, without zeros.
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (reason, count) in self.ports().filter_map(|port| port["drops"].as_object()).flatten() {
            *sums.entry(reason.clone()).or_insert(0) += count.as_u64().expect("a count");
        }
        sums.retain(|_, count| *count > 0);
        sums
    }

    /// Returns the drops without those at a full socket: senders are faster than a worker that the machine leaves no
    /// time, and what they send again is no fault of the tunnel.
    pub fn drops_but_overflow(&self) -> BTreeMap<String, u64> {
        let mut drops = self.drops();
        drops.remove("socket_overflow");
        drops
    }

    /// Returns the drops under one reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops().get(reason).copied().unwrap_or(0)
    }

    /// Returns the number of payload bytes whose checksum this instance computed, summed over all ports. Panics if no
    /// port counts them.
    pub fn checksummed_bytes(&self) -> u64 {
        let counts: Vec<u64> = self.ports().filter_map(|port| port["checksummed_bytes"].as_u64()).collect();
        assert!(!counts.is_empty(), "no checksummed_bytes in {}", self.0);
        counts.iter().sum()
    }

    /// Returns a counter of a port, by names such as `sg1`, `receive`, `trains`.
    #[track_caller]
    pub fn count(&self, port: &str, direction: &str, key: &str) -> u64 {
        let value = self.0["ports"][port][direction][key].as_u64();
        value.unwrap_or_else(|| panic!("no {port}.{direction}.{key} in {}", self.0))
    }

    /// Reads the counters until `done` accepts them, for at most `longest`, and returns the last reading in either
    /// case.
    pub fn until(host: &Host, program: &Path, name: &str, longest: Duration, done: impl Fn(&Stat) -> bool) -> Stat {
        let begin = Instant::now();
        loop {
            let stat = Stat::read(host, program, name);
            if done(&stat) || begin.elapsed() > longest {
                return stat;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the counters as a JSON object.
    pub fn json(&self) -> &Value {
        &self.0
    }

    fn ports(&self) -> impl Iterator<Item = &Value> {
        self.0["ports"].as_object().into_iter().flat_map(|ports| ports.values())
    }
}
