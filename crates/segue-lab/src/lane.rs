//! A path between the two hosts: what it is built on, and what keeps it up.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::checked_output;
use crate::{Family, Host, LabError, Options, Peer, Process, interrupt, link};

/// What a case is built on.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// The sender.
    pub a: &'a Host,
    /// The receiver.
    pub b: &'a Host,
    /// The network number that this case has for itself: its addresses are [`Peer::address`] of it. 1 or more.
    pub net: u8,
    /// Families to be measured.
    pub families: &'a [Family],
    /// The run's options.
    pub options: &'a Options,
}

/// What came of a case's set-up.
#[derive(Debug)]
pub enum Prepared {
    /// It stands, and everything about it ends when the lane is dropped or the hosts go away.
    Ready(Lane),
    /// It cannot exist here, and why.
    Skipped(String),
}

/// A standing path between the hosts.
#[derive(Debug)]
pub struct Lane {
    /// The network whose addresses lead through it; 0 is the bare link.
    pub net: u8,
    /// What keeps it up, stopped on drop.
    pub processes: Vec<Process>,
    /// Where to read train sizes.
    pub stat: Option<StatSource>,
    /// How long it may take until datagrams pass.
    pub patience: Duration,
}

/// A running `segue` at the receiver whose counters can be read.
#[derive(Debug, Clone)]
pub struct StatSource {
    /// The program.
    pub program: PathBuf,
    /// The tunnel device's name, which is also the instance's and the port's.
    pub device: String,
}

/// What a port has sent: towards the receiver's stack, in our case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    bytes: u64,
    trains: u64,
}

impl Lane {
    /// The bare link, or anything else that is in the hosts already.
    pub fn plain(net: u8) -> Lane {
        Lane { net, processes: Vec::new(), stat: None, patience: Duration::from_secs(5) }
    }
}

impl Ground<'_> {
    /// The host at one end.
    pub fn host(&self, end: Peer) -> &Host {
        match end {
            Peer::A => self.a,
            Peer::B => self.b,
        }
    }

    /// A tunnel end's own address on the link.
    pub fn outer(&self, end: Peer) -> String {
        end.address(0, self.options.outer).to_string()
    }

    /// Waits for a device that a process is about to make.
    pub fn wait_for_device(&self, end: Peer, device: &str, process: &mut Process) -> Result<(), LabError> {
        let begin = Instant::now();
        while !self.host(end).has_device(device) {
            interrupt::check()?;
            if process.ended().is_some() || begin.elapsed() > Duration::from_secs(5) {
                return Err(process.failure(&format!("no device {device}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Gives a device this case's addresses and sets it up.
    pub fn configure(&self, end: Peer, device: &str) -> Result<(), LabError> {
        link::address(self.host(end), end, device, self.net, self.families)?;
        self.host(end).run("ip", &["link", "set", device, "up"]).map(drop)
    }
}

impl StatSource {
    /// The counters in `host`, or `None` when they cannot be had.
    pub(crate) fn read(&self, host: &Host) -> Option<Sent> {
        let mut command = host.command(&self.program);
        let text = checked_output(command.args(["stat", "-j"])).ok()?;
        sent(&text, &self.device)
    }
}

impl Sent {
    /// Mean train size in bytes between two readings.
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
