//! Tests of `segue lan78xx up` on `segue lan78xx model`: both forms of segue's own driver, over USB/IP and in one
//! process, between two hosts of this machine's kernel.

#[path = "common/adapter.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::thread;

use common::{PATIENCE, carrier, start, until};
use segue_lab::{Host, LinkForm, Process};
use segue_tests::traffic::{self, Place};
use segue_tests::{Ground, Stat, sys, test_name};
use serde_json::Value;

fn address(host: &Host, device: &str, v4: &str, v6: &str) {
    host.run("ip", &["addr", "add", v4, "dev", device]).unwrap();
    host.run("ip", &["addr", "add", v6, "dev", device, "nodad"]).unwrap();
}

/// Drop reason of frames that the chip's FIFO has no room for, because the cable is faster than the host reads.
const CHIPS: &str = "rx_dropped_frames";
/// Drop reason of frames lost while the cable of an in-process model was down.
const CABLE_LOST: &str = "cable_lost";

/// Returns whether only the chip dropped frames.
fn only_the_chips(stat: &Stat) -> bool {
    stat.drops().keys().all(|reason| reason == CHIPS)
}

/// Length of each file: 16 whole trains.
const CARRIED: u64 = 1 << 20;

/// Sends all kinds of traffic through one form of the driver, between `lan0` in B and the cable's host.
fn carry(near: (&Host, &str), far: (&Host, &str)) {
    address(near.0, near.1, "198.19.0.2/24", "2001:db8:9::2/64");
    address(far.0, far.1, "198.19.0.1/24", "2001:db8:9::1/64");
    for ips in [["198.19.0.2", "198.19.0.1"], ["2001:db8:9::2", "2001:db8:9::1"]] {
        let [here, there]: [IpAddr; 2] = ips.map(|ip| ip.parse().unwrap());
        let (here, there) = (Place { host: near.0, address: here }, Place { host: far.0, address: there });
        traffic::pings(here, there, &[56, 1400, 2500]);
        traffic::file(here, there, CARRIED, 1);
        traffic::file(there, here, CARRIED, 2);
        traffic::datagrams(here, there, &[1, 18, 19, 64, 501, 1472, 1473, 9000], 3);
        traffic::datagrams(there, here, &[1, 18, 19, 64, 501, 1472, 1473, 9000], 4);
    }
}

#[test]
fn both_forms_of_the_driver_carry_everything_over_usbip_at_super_and_high_speed() {
    for (speed, mode) in [("super", "napi"), ("super", "standard"), ("high", "napi"), ("high", "standard")] {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
        let (a, b) = (&ground.a, &ground.b);
        let words = ["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0", "--speed", speed, "--commands"];
        let (mut model, mut commands) = start(a, &ground.program, &words);
        until("model", &mut model, |process| process.stderr().contains("is up"));
        let words = ["up", "--usb", "usbip://198.18.0.1/1-1", "--mode", mode];
        let (mut driver, _stdin) = start(b, &ground.program, &words);
        until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
        let shown = b.run("ip", &["link", "show", "dev", "lan0"]).unwrap();
        assert!(shown.contains("02:78:00:00:00:01"), "the adapter's address: {shown}");
        carry((b, "lan0"), (a, "cable0"));

        let at_chip = Stat::read(a, &ground.program, "lan78xx-model");
        let note = |key: &str| at_chip.count("usb", "numbers", key);
        assert!(
            note("lso_frames") > 0 && note("csum_frames") > note("lso_frames"),
            "{speed} {mode}: {}",
            at_chip.json()
        );
        for key in ["lost_sync", "unterminated", "unfit", "bad_lso"] {
            assert_eq!(note(key), 0, "{speed} {mode}: {key}");
        }
        let stat = Stat::read(b, &ground.program, "lan0");
        assert!(only_the_chips(&stat), "{speed} {mode}: {:?}", stat.drops());
        let trains = stat.count("lan0", "transmit", "trains");
        assert_eq!(trains > 0, mode == "napi", "{speed} {mode}: only one form joins what it receives");
        assert_eq!(stat.count("adapter", "numbers", "link_mbit"), 1000);

        // The interface follows the cable.
        writeln!(commands, "link down").unwrap();
        until("carrier off", &mut driver, |_| !carrier(b, "lan0"));
        writeln!(commands, "link up 100").unwrap();
        until("carrier on", &mut driver, |_| carrier(b, "lan0"));
        let [here, there]: [IpAddr; 2] = ["198.19.0.2", "198.19.0.1"].map(|ip| ip.parse().unwrap());
        traffic::pings(Place { host: b, address: here }, Place { host: a, address: there }, &[56]);
        // Halted endpoints run again by themselves, under load.
        for fault in ["stall-in", "stall-out", "fcs", "empty"] {
            writeln!(commands, "fault {fault}").unwrap();
            traffic::file(Place { host: b, address: here }, Place { host: a, address: there }, 256 << 10, 5);
        }
        let stat = Stat::read(b, &ground.program, "lan0");
        assert_eq!(stat.count("adapter", "numbers", "halts"), 2, "{speed} {mode}");
        writeln!(commands, "unplug").unwrap();
        until("carrier off", &mut driver, |_| !carrier(b, "lan0"));
        let stat = Stat::read(b, &ground.program, "lan0");
        assert_eq!(stat.count("adapter", "numbers", "unplugs"), 1, "{speed} {mode}");
        assert!(driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", driver.last_words());
        assert!(!b.has_device("lan0"));
    }
}

/// Returns the child processes of a running command, with the privileges that each of them has left.
fn helpers(driver: &Process) -> Vec<BTreeMap<String, String>> {
    let pid = driver.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let status = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        text.lines()
            .filter_map(|line| line.split_once(":\t"))
            .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
            .collect()
    };
    children.split_ascii_whitespace().map(status).collect()
}

/// Checks that a process cannot open a file, connect to another port than its server's, or start another process, by
/// attempts in that process.
#[cfg(target_arch = "x86_64")]
fn reaches_no_file(pid: u32) {
    let Some(held) = segue_tests::probe::Held::allowed(pid) else { return };
    for (path, flags) in [
        ("/etc/passwd", libc::O_RDONLY),
        ("/dev/net/tun", libc::O_RDWR),
        ("/run/segue/x", libc::O_CREAT | libc::O_WRONLY),
        ("/tmp", libc::O_RDONLY | libc::O_DIRECTORY),
    ] {
        assert!(!held.opens(path, flags).unwrap(), "{pid} opens {path}");
    }
    let none = [libc::SYS_execve, libc::SYS_clone, libc::SYS_bind, libc::SYS_ptrace, libc::SYS_kill, libc::SYS_unlink];
    assert!(none.iter().all(|number| !held.may(*number, &[u64::MAX; 6]).unwrap()), "{pid}");
}

#[test]
fn an_adapter_that_goes_away_under_load_comes_back_by_itself_and_connections_go_on() {
    const LEN: u64 = 96 << 20;
    for mode in ["napi", "standard"] {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
        let (a, b) = (&ground.a, &ground.b);
        let words = ["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0", "--commands", "--paced"];
        let (mut model, mut commands) = start(a, &ground.program, &words);
        until("model", &mut model, |process| process.stderr().contains("is up"));
        let words = ["up", "--usb", "usbip://198.18.0.1/1-1", "--mode", mode];
        let (mut driver, _stdin) = start(b, &ground.program, &words);
        until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
        if driver.stderr().contains("as user ") {
            let helpers = helpers(&driver);
            assert_eq!(helpers.len(), 2, "one moves packets, one opens the device: {helpers:#?}");
            for of in &helpers {
                let is = ["Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"].map(|key| of[key].as_str());
                assert!(
                    !is[0].starts_with('0') && is[1..] == ["0000000000000000", "0000000000000000", "1", "2"],
                    "{of:#?}"
                );
                #[cfg(target_arch = "x86_64")]
                reaches_no_file(of["Pid"].parse().unwrap());
            }
        }
        address(b, "lan0", "198.19.0.2/24", "2001:db8:9::2/64");
        address(a, "cable0", "198.19.0.1/24", "2001:db8:9::1/64");
        let [here, there]: [IpAddr; 2] = ["198.19.0.2", "198.19.0.1"].map(|ip| ip.parse().unwrap());
        let (here, there) = (Place { host: b, address: here }, Place { host: a, address: there });
        for (trouble, end) in [("link down", "link up"), ("unplug", "plug")] {
            let sent = |stat: &Stat| stat.count("adapter", "transmit", "bytes");
            let before = sent(&Stat::read(b, &ground.program, "lan0"));
            thread::scope(|scope| {
                let transfer = scope.spawn(|| traffic::file(here, there, LEN, 6));
                Stat::until(b, &ground.program, "lan0", PATIENCE, |stat| sent(stat) > before + (4 << 20));
                assert!(!transfer.is_finished(), "it was too fast to be disturbed");
                writeln!(commands, "{trouble}").unwrap();
                until("carrier off", &mut driver, |_| !carrier(b, "lan0"));
                assert!(!transfer.is_finished(), "it was too fast to be disturbed");
                writeln!(commands, "{end}").unwrap();
                until("carrier on", &mut driver, |_| carrier(b, "lan0"));
            });
        }
        traffic::pings(here, there, &[56, 1400]);
        // A server that ends takes its device away, and brings it back.
        drop(commands);
        assert!(model.stop(PATIENCE).is_some_and(|status| status.success()), "{}", model.last_words());
        until("carrier off", &mut driver, |_| !carrier(b, "lan0"));
        let words = ["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0"];
        let (mut model, _stdin) = start(a, &ground.program, &words);
        until("model", &mut model, |process| process.stderr().contains("is up"));
        until("carrier on", &mut driver, |_| carrier(b, "lan0"));
        address(a, "cable0", "198.19.0.1/24", "2001:db8:9::1/64");
        traffic::pings(here, there, &[56, 1400]);
        let stat = Stat::read(b, &ground.program, "lan0");
        let number = |key| stat.count("adapter", "numbers", key);
        assert_eq!((number("unplugs"), number("link_ups")), (2, 4), "{mode}: {}", driver.last_words());
        let known = |reason: &String| reason == "device_down" || reason == CHIPS;
        assert!(stat.drops().keys().all(known), "{mode}: {:?}", stat.drops());
        assert!(driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", driver.last_words());
        assert!(!b.has_device("lan0"));
    }
}

#[test]
fn an_opener_without_landlock_or_seccomp_ends_unless_it_may_go_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let (a, b) = (&ground.a, &ground.b);
    for (call, what) in [(libc::SYS_landlock_create_ruleset, "Landlock"), (libc::SYS_seccomp, "seccomp")] {
        for more in [&[][..], &["--weak-sandbox"][..]] {
            let words = ["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0", "--commands"];
            let (mut model, mut commands) = start(a, &ground.program, &words);
            until("model", &mut model, |process| process.stderr().contains("is up"));
            let mut command = b.command(&ground.program);
            command.args(["lan78xx", "up", "--usb", "usbip://198.18.0.1/1-1"]).args(more);
            sys::without_call(&mut command, call);
            let mut driver = Process::spawn(command, b"").unwrap();
            if more.is_empty() {
                let status = driver.wait(PATIENCE).unwrap();
                assert_eq!(status.code(), Some(1), "without {what}: {}", driver.last_words());
                // The opener has ended before the other processes do, which say what lets them go on.
                let said = driver.stderr();
                let has_both = said.contains("will not be opened again") && said.contains("--weak-sandbox");
                assert!(has_both, "without {what}: {said}");
            } else {
                until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
                assert_eq!(helpers(&driver).len(), 2, "without {what}: {}", driver.last_words());
                // The opener does its work.
                for (command, is_there) in [("unplug", false), ("plug", true)] {
                    writeln!(commands, "{command}").unwrap();
                    until(command, &mut driver, |_| carrier(b, "lan0") == is_there);
                }
                assert!(driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", driver.last_words());
            }
            assert!(!b.has_device("lan0"), "without {what}");
            assert!(model.stop(PATIENCE).is_some_and(|status| status.success()), "{}", model.last_words());
        }
    }
}

/// Checks that the event that reports the interface as up has every property that the published schema requires.
fn is_as_published(schema: &str, events: &str) {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!((event["schema"].as_str(), event["event"].as_str()), (Some("segue.lan78xx/1"), Some("up")));
    for (of, value) in [("Up", &event), ("Adapter", &event["plan"]), ("Sandbox", &event["sandbox"])] {
        let required = schema["$defs"][of]["required"].as_array().unwrap_or_else(|| panic!("no {of}: {schema}"));
        assert!(required.len() > 2 && required.iter().all(|key| value.get(key.as_str().unwrap()).is_some()), "{value}");
    }
}

#[test]
fn both_forms_of_the_driver_carry_everything_on_a_model_in_the_same_process() {
    for mode in ["napi", "standard"] {
        let Some(ground) = Ground::apart(test_name!(), &["ping"]) else { return };
        let (a, b) = (&ground.a, &ground.b);
        let words = ["up", "--usb", "model", "--wire", "tap:cable0", "--mode", mode, "--mtu", "9000", "-j"];
        let (mut driver, _stdin) = start(b, &ground.program, &words);
        until("driver", &mut driver, |process| process.stdout().contains('\n') && carrier(b, "lan0"));
        is_as_published(&b.run(&ground.program.to_string_lossy(), &["schema", "lan78xx"]).unwrap(), &driver.stdout());
        // The cable's end moves to the other host.
        let target = a.net_path();
        b.run("ip", &["link", "set", "dev", "cable0", "netns", &target]).unwrap();
        a.run("ip", &["link", "set", "dev", "cable0", "up"]).unwrap();
        // While it was down the host's own messages found no cable.
        let before = Stat::read(b, &ground.program, "lan0").drops().get(CABLE_LOST).copied();
        carry((b, "lan0"), (a, "cable0"));
        let stat = Stat::read(b, &ground.program, "lan0");
        let mut drops = stat.drops();
        assert_eq!(drops.remove(CABLE_LOST), before, "{mode}");
        assert!(drops.keys().all(|reason| reason == CHIPS), "{mode}: {drops:?}");
        // Two segments of this MTU are more than the older form lets the chip cut.
        assert_eq!(stat.count("adapter", "numbers", "lso") > 0, mode == "napi", "{mode}");
    }
}
