//! Test of guests' ports with DPDK's virtio-user, a front end with a driver that polls and wants no calls.

#[path = "common/guests.rs"]
mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Gateway, NAME, PATIENCE};
use segue_lab::Process;
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, test_name};

/// Length of each frame, bytes.
const LEN: u64 = 8000;
/// Lengths of the sender's buffers in which a frame lies, bytes.
const BUFFERS: &str = "2000,2000,2000,2000";
/// Longest duration for all frames.
const LONGEST: Duration = Duration::from_secs(900);

/// Returns the number of frames.
fn frames() -> u64 {
    if segue_testkit::is_set("SEGUE_FULL") { 10_000_000 } else { 200_000 }
}

/// Tests that all buffers of a frame appear at once, since a receiver that polls would otherwise see an incomplete
/// frame. It counts an error then, and takes the rest for a frame of its own.
#[test]
fn no_frame_in_several_buffers_is_torn_for_a_driver_that_polls() {
    let Some(ground) = Ground::apart(test_name!(), &["dpdk-testpmd"]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::between(&ground, &directory, &["a", "b"], &["--tap-mtu", "9000"]);
    let mut command = ground.a.command("dpdk-testpmd");
    command.args(["--no-huge", "-m", "512", "--no-pci", "-l", "0,1", "--no-telemetry"]);
    command.arg(format!("--file-prefix=segue{}", std::process::id()));
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        let path = gateway.path(name);
        command.arg(format!("--vdev=net_virtio_user{at},path={},mrg_rxbuf=1,queues=1", path.display()));
    }
    command.args(["--", "--nb-cores=1", "--no-mlockall", "--forward-mode=io", "--tx-first", "--stats-period", "1"]);
    command.args(["--total-num-mbufs=32768", "--enable-scatter", "--max-pkt-len=9600", "--tx-offloads=0x8000"]);
    command.arg(format!("--txpkts={BUFFERS}"));
    let mut pmd = Process::spawn(command, b"").unwrap();
    let both = |key: &str| {
        let stat = Stat::read(&ground.a, gateway.program(), NAME);
        ["a", "b"].map(|port| stat.count(port, "receive", key)).into_iter().sum::<u64>()
    };
    let (begin, mut seen, mut last) = (Instant::now(), 0, Instant::now());
    loop {
        let count = both("packets");
        // Its own counters are printed each second; the first ones may be from before the traffic.
        if count >= frames() && pmd.stdout().matches("RX-errors:").count() >= 4 {
            break;
        }
        if count > seen {
            (seen, last) = (count, Instant::now());
        }
        assert!(pmd.ended().is_none() && last.elapsed() < PATIENCE, "{count} frames: {}", pmd.last_words());
        assert!(begin.elapsed() < LONGEST, "{count} frames");
        thread::sleep(Duration::from_millis(100));
    }
    pmd.terminate();
    pmd.wait(PATIENCE).unwrap();
    // All that came is whole frames.
    assert_eq!(both("bytes"), LEN * both("packets"));
    let said = pmd.stdout();
    let errors: Vec<&str> =
        said.split("RX-errors:").skip(1).filter_map(|rest| rest.split_whitespace().next()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|count| *count == "0"), "{errors:?}");
}
