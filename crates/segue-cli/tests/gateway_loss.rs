//! Tests that ACK aggregation does not affect a sender's loss recovery: over a link with seeded loss, a kernel's TCP
//! retransmits as much and as quickly with it as without it.

mod common;
#[path = "common/transfer.rs"]
mod transfer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use common::SEGUE;
use segue_lab::{DEVICE, Family, Faults, Host, Peer, Process, Relay};
use serde_json::Value;
use transfer::transfer;

const PATIENCE: Duration = Duration::from_secs(60);
const TAP: &str = "lro0";
const PORT: u16 = 5001;
/// Length of one transfer in bytes.
const LEN: usize = 4_000_000;
/// Number of transfers of each kind; each has a seed of its own, the same for both kinds.
const SEEDS: u64 = 4;
/// Loss rate in frames of 1000, in both directions.
const LOSS: u16 = 10;

/// Hold time longer than the arrival of all duplicates of one loss: an aggregator that merges them leaves only one.
const HOLD_US: &str = "5000";

/// Counters of a sender's kernel for one transfer, or several.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    retransmitted: u64,
    /// Number of segments that fast recovery retransmitted.
    fast: u64,
    timeouts: u64,
    /// Number of pure ACKs that the gateway swallowed.
    swallowed: u64,
    lost: u64,
}

impl Recovery {
    fn plus(self, more: Recovery) -> Recovery {
        Recovery {
            retransmitted: self.retransmitted + more.retransmitted,
            fast: self.fast + more.fast,
            timeouts: self.timeouts + more.timeouts,
            swallowed: self.swallowed + more.swallowed,
            lost: self.lost + more.lost,
        }
    }
}

/// A sender on a TAP, a gateway, a link with loss, and a receiver.
struct Path {
    sender: Host,
    gateway: Host,
    receiver: Host,
    relay: Relay,
    /// The gateway's process, which runs as long as this value lives.
    _segue: Process,
}

impl Path {
    fn new(options: &[&str], sack: bool) -> Path {
        let [sender, gateway, receiver] = ["sender", "gateway", "receiver"].map(|name| Host::new(name).unwrap());
        let relay = Relay::between(&gateway, &receiver).unwrap();
        gateway.run("ip", &["link", "set", "dev", DEVICE, "addrgenmode", "none"]).unwrap();
        gateway.run("ip", &["addr", "flush", "dev", DEVICE]).unwrap();
        let mut command = gateway.command(SEGUE);
        command.args(["gateway", DEVICE, &format!("tap:{TAP}@{}", sender.net_path()), "-j"]).args(options);
        let mut segue = Process::spawn(command, b"").unwrap();
        segue.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        sender.run("ip", &["addr", "add", &Peer::A.prefix(0, Family::V4), "dev", TAP]).unwrap();
        for host in [&sender, &receiver] {
            host.set_sysctl("ipv4/tcp_sack", if sack { "1" } else { "0" }).unwrap();
            // The next transfer must not use metrics that the kernel cached during this one.
            host.set_sysctl("ipv4/tcp_no_metrics_save", "1").unwrap();
        }
        // A small window, so that a loss causes few duplicate ACKs, and each of them counts.
        receiver.set_sysctl("ipv4/tcp_rmem", "4096 65536 65536").unwrap();
        Path { sender, gateway, receiver, relay, _segue: segue }
    }

    /// Returns the kernel's counters by name.
    fn counters(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for file in ["/proc/net/snmp", "/proc/net/netstat"] {
            let text = self.sender.run("cat", &[file]).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.chunks_exact(2) {
                let values = pair[1].split_whitespace().skip(1).map(|value| value.parse().unwrap_or(0));
                let mut names = pair[0].split_whitespace();
                let group = names.next().unwrap();
                all.extend(names.map(|name| format!("{group}{name}")).zip(values));
            }
        }
        all
    }

    fn swallowed(&self) -> u64 {
        let text = self.gateway.run(SEGUE, &["stat", "-j"]).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        document["instances"][0]["ports"][DEVICE]["swallowed"].as_u64().unwrap()
    }

    fn transfer(&self, seed: u64) -> Recovery {
        let before = (self.counters(), self.swallowed(), self.relay.counts()[0].dropped);
        self.relay.set_faults(Faults { drop: LOSS, seed, ..Faults::default() });
        let address = SocketAddr::new(Peer::B.address(0, Family::V4), PORT);
        let got = transfer(&self.sender, &self.receiver, address, &vec![7; LEN], PATIENCE);
        assert_eq!(got.len(), LEN);
        self.relay.set_faults(Faults::default());
        let after = self.counters();
        let risen = |name: &str| after[name] - before.0[name];
        Recovery {
            retransmitted: risen("Tcp:RetransSegs"),
            fast: risen("TcpExt:TCPFastRetrans"),
            timeouts: risen("TcpExt:TCPTimeouts"),
            swallowed: self.swallowed() - before.1,
            lost: self.relay.counts()[0].dropped - before.2,
        }
    }
}

#[test]
fn a_sender_recovers_from_loss_with_ack_aggregation_as_it_does_without() {
    if let Some(reason) = segue_lab::unavailable() {
        segue_lab::skip_this_test(&reason);
        return;
    }
    for sack in [true, false] {
        let paths = [&["--hold-us", HOLD_US][..], &["--hold-us", HOLD_US, "--ack-aggregation", "--max-acks", "1000"]]
            .map(|options| Path::new(options, sack));
        let mut sums = [Recovery::default(); 2];
        for seed in 1..=SEEDS {
            for (path, sum) in paths.iter().zip(&mut sums) {
                let one = path.transfer(seed);
                println!("sack {sack} seed {seed}: {one:?}");
                *sum = sum.plus(one);
            }
        }
        let [without, with] = sums;
        println!("sack {sack}: without {without:?}, with {with:?}");
        assert_eq!(without.swallowed, 0);
        assert!(with.swallowed > 200, "{with:?}");
        assert!(without.lost > 50 && without.fast > 50, "there was loss to recover from: {without:?}");
        // About 105 are lost, retransmitted, and that fast, both ways, with 0 to 6 timeouts. An aggregator that
        // swallows duplicates has about 160, 10 and 80 without SACK.
        let summary = format!("sack {sack}: without {without:?}, with {with:?}");
        assert!(with.retransmitted.abs_diff(without.retransmitted) < 10 + without.lost / 4, "{summary}");
        assert!(with.timeouts < without.timeouts + 15, "{summary}");
        assert!(with.fast * 4 > without.fast * 3, "{summary}");
    }
}
