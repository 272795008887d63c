//! Paths between the two hosts: their surroundings, their processes and their counters.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::checked_output;
use crate::{Family, Host, LabError, Options, Peer, Process, interrupt, link};

/// Environment in which a case is set up.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// The sending host.
    pub a: &'a Host,
    /// The receiving host.
    pub b: &'a Host,
    /// Number of the case's own network, 1 or more, for [`Peer::address`].
    pub net: u8,
    /// Address families to measure.
    pub families: &'a [Family],
    /// Options of the demonstration.
    pub options: &'a Options,
}

/// The outcome of a case's set-up.
#[derive(Debug)]
pub enum Prepared {
    /// The path is set up, until the lane or the hosts are dropped.
    Ready(Lane),
    /// The case cannot exist here, with the reason.
    Skipped(String),
}

/// A path between the hosts that has been set up.
#[derive(Debug)]
pub struct Lane {
    /// Number of the network whose addresses lead through the path; 0 is the bare link.
    pub net: u8,
    /// Processes that keep the path up, stopped on drop.
    pub processes: Vec<Process>,
    /// Source of the train sizes, if the path has one.
    pub stat: Option<StatSource>,
    /// Time within which datagrams must pass.
    pub patience: Duration,
}

/// A running `segue` at the receiver whose counters can be read.
#[derive(Debug, Clone)]
pub struct StatSource {
    /// Path of the program `segue`.
    pub program: PathBuf,
    /// Name of the tunnel device, the instance and the port.
    pub device: String,
}

/// Counters of the traffic that a port has sent, here towards the receiver's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    bytes: u64,
    trains: u64,
}

impl Lane {
    /// Creates a lane over the bare link, or over another existing path between the hosts.
    pub fn plain(net: u8) -> Lane {
        Lane { net, processes: Vec::new(), stat: None, patience: Duration::from_secs(5) }
    }
}

impl Ground<'_> {
    /// Returns the host on the given side.
    pub fn host(&self, end: Peer) -> &Host {
        match end {
            Peer::A => self.a,
            Peer::B => self.b,
        }
    }

    /// Returns the address of a tunnel end on the link.
    pub fn outer(&self, end: Peer) -> String {
        end.address(0, self.options.outer).to_string()
    }

    /// Waits until a process has created its device.
    pub fn wait_for_device(&self, end: Peer, device: &str, process: &mut Process) -> Result<(), LabError> {
        wait_for_device(self.host(end), device, process)
    }

    /// Adds the case's addresses to a device and brings it up.
    pub fn configure(&self, end: Peer, device: &str) -> Result<(), LabError> {
        link::address(self.host(end), end, device, self.net, self.families)?;
        self.host(end).run("ip", &["link", "set", device, "up"]).map(drop)
    }
}

/// Waits until a process has created its device in `host`.
pub(crate) fn wait_for_device(host: &Host, device: &str, process: &mut Process) -> Result<(), LabError> {
    let begin = Instant::now();
    while !host.has_device(device) {
        interrupt::check()?;
        if process.ended().is_some() || begin.elapsed() > Duration::from_secs(5) {
            return Err(process.failure(&format!("no device {device}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl StatSource {
    /// Reads the counters in `host`, or returns `None` if they cannot be read.
    pub(crate) fn read(&self, host: &Host) -> Option<Sent> {
        let mut command = host.command(&self.program);
        let text = checked_output(command.args(["stat", "-j"])).ok()?;
        sent(&text, &self.device)
    }
}

impl Sent {
    /// Returns the mean train size in bytes between two readings.
    pub(crate) fn mean_since(self, before: Sent) -> Option<f64> {
        let trains = self.trains.checked_sub(before.trains).filter(|trains| *trains > 0)?;
        Some(self.bytes.checked_sub(before.bytes)? as f64 / trains as f64)
    }
}

fn sent(stat: &str, device: &str) -> Option<Sent> {
    let stat: Value = serde_json::from_str(stat).ok()?;
    let instance = stat["instances"].as_array()?.iter().find(|instance| instance["name"] == device)?;
    let transmit = &instance["ports"][device]["transmit"];
    Some(Sent { bytes: transmit["bytes"].as_u64()?, trains: transmit["trains"].as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_train_is_taken_between_two_readings_of_the_right_port() {
        let stat = |bytes: u64, trains: u64| {
            format!(
                r#"{{"schema":"segue.stat/1","instances":[{{"name":"other","ports":{{}}}},{{"name":"sg0","ports":{{
                "udp":{{"transmit":{{"bytes":9,"trains":9}}}},"sg0":{{"transmit":{{"bytes":{bytes},"trains":{trains}}}}}}}}}]}}"#
            )
        };
        let before = sent(&stat(1000, 10), "sg0").unwrap();
        let after = sent(&stat(101_000, 12), "sg0").unwrap();
        assert_eq!(after.mean_since(before), Some(50_000.0));
        assert_eq!(before.mean_since(before), None);
        assert_eq!(before.mean_since(after), None);
        assert_eq!(sent(&stat(1, 1), "sg1"), None);
        assert_eq!(sent("{}", "sg0"), None);
    }
}
