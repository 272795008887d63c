//! System calls and wake-ups of a tunnel under load, by its own counters.

use std::fs;

use serde_json::Value;

use crate::lane::StatSource;
use crate::process::checked_output;
use crate::{Host, Named, Process};

/// Counters of both ends of a tunnel, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Number of system calls that moved packets or tried to.
    calls: u64,
    /// Number of trains and single packets that crossed a port.
    units: u64,
    /// Number of waits for packets.
    sleeps: u64,
}

impl Counters {
    /// Returns the increments since `before`.
    pub(super) fn since(&self, before: &Counters) -> Counters {
        Counters {
            calls: self.calls.saturating_sub(before.calls),
            units: self.units.saturating_sub(before.units),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
        }
    }

    /// Returns the number of waits for packets, which is that of wake-ups.
    pub(super) fn wakeups(&self) -> f64 {
        self.sleeps as f64
    }
}

/// Reads the counters of the instances in both hosts. `None` where they cannot be read.
pub(super) fn read(stat: &StatSource, hosts: [&Host; 2]) -> Option<Counters> {
    let mut sum = Counters::default();
    for host in hosts {
        let text = checked_output(host.command(&stat.program).args(["stat", "-j"])).ok()?;
        let one = of(&text, &stat.device)?;
        sum = Counters { calls: sum.calls + one.calls, units: sum.units + one.units, sleeps: sum.sleeps + one.sleeps };
    }
    Some(sum)
}

fn of(stat: &str, device: &str) -> Option<Counters> {
    let stat: Value = serde_json::from_str(stat).ok()?;
    let instance = stat["instances"].as_array()?.iter().find(|instance| instance["name"] == device)?;
    let mut sum = Counters::default();
    for port in instance["ports"].as_object()?.values() {
        for direction in [&port["receive"], &port["transmit"]] {
            sum.calls += direction["calls"].as_u64()?;
            sum.units += direction["packets"].as_u64()?;
        }
    }
    let workers = instance["workers"].as_array()?;
    sum.sleeps = workers.iter().filter_map(|worker| worker["sleeps"].as_u64()).sum();
    Some(sum)
}

/// Writes system calls and sleeps of both ends per packet or transaction, and system calls per train or packet that
/// crossed a port: of the ports alone, and of the whole load.
pub(super) fn put(counters: &Counters, packets: f64, values: &mut Named<f64>) {
    let per = |count: u64| count as f64 / packets;
    if packets > 0.0 {
        values.push("calls_per_packet", per(counters.calls + counters.sleeps));
        values.push("sleeps_per_packet", per(counters.sleeps));
    }
    if counters.units > 0 {
        values.push("calls_per_unit", counters.calls as f64 / counters.units as f64);
    }
}

/// Returns the resident memory of the largest process among the given ones and their children, bytes. `None` without a
/// process.
pub(super) fn memory(processes: &[Process]) -> Option<u64> {
    processes.iter().map(|process| tree(process.id())).max()
}

fn tree(pid: u32) -> u64 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok()).map(tree);
    resident(pid) + children.sum::<u64>()
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    line.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_those_of_all_ports_of_the_instance() {
        let direction = |calls: u64| format!(r#"{{"calls":{calls},"packets":10}}"#);
        let port = |calls: u64| format!(r#"{{"receive":{},"transmit":{}}}"#, direction(calls), direction(1));
        let stat = format!(
            r#"{{"instances":[{{"name":"x","ports":{{}},"workers":[]}},
                {{"name":"sg0","ports":{{"sg0":{},"udp":{}}},"workers":[{{"sleeps":5}},{{"sleeps":2}}]}}]}}"#,
            port(3),
            port(4)
        );
        let found = of(&stat, "sg0").unwrap();
        assert_eq!(found, Counters { calls: 9, units: 40, sleeps: 7 });
        assert_eq!(of(&stat, "sg1"), None);
        assert_eq!(found.wakeups().to_string(), "7");
        let mut values = Named::default();
        put(&found.since(&Counters { calls: 1, units: 0, sleeps: 3 }), 4.0, &mut values);
        assert_eq!(values.find("calls_per_packet"), Some(&3.0));
        assert_eq!((values.find("sleeps_per_packet"), values.find("calls_per_unit")), (Some(&1.0), Some(&0.2)));
    }

    #[test]
    fn memory_is_that_of_a_process_with_its_children() {
        assert!(resident(std::process::id()) > 1 << 20);
        assert!(tree(std::process::id()) >= resident(std::process::id()) / 2);
        assert_eq!(memory(&[]), None);
    }
}
