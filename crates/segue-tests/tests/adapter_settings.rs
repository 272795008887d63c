//! Tests of settings of `segue lan78xx up`: changes on the interface reach the chip, and errors are reported and end
//! the command soon.

#[path = "common/adapter.rs"]
mod common;

use std::fs;
use std::io::{PipeWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, carrier, start, until};
use segue_lab::{Host, LabError, LinkForm, Process};
use segue_tests::traffic::{self, Place};
use segue_tests::{Ground, Stat, skip, test_name};

#[track_caller]
fn ip(host: &Host, words: &str) {
    host.run("ip", &words.split(' ').collect::<Vec<_>>()).unwrap();
}

/// A model in A with its cable `cable0`, and the driver with `lan0` in B.
struct Adapter {
    ground: Ground,
    driver: Process,
    _model: (Process, PipeWriter),
    _stdin: PipeWriter,
}

impl Adapter {
    fn new(name: &str) -> Option<Adapter> {
        let ground = Ground::new(name, LinkForm::Nic, &["ping"])?;
        let (a, b) = (&ground.a, &ground.b);
        let words = ["model", "--usbip", "198.18.0.1:3240", "--wire", "tap:cable0", "--wire-mtu", "9000", "--commands"];
        let (mut model, commands) = start(a, &ground.program, &words);
        until("model", &mut model, |process| process.stderr().contains("is up"));
        let words = ["up", "--usb", "usbip://198.18.0.1/1-1", "dev", "lan0"];
        let (mut driver, stdin) = start(b, &ground.program, &words);
        until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
        ip(b, "addr add 198.19.0.2/24 dev lan0");
        ip(a, "addr add 198.19.0.1/24 dev cable0");
        Some(Adapter { driver, _model: (model, commands), _stdin: stdin, ground })
    }

    fn stat(&self) -> Stat {
        Stat::read(&self.ground.b, &self.ground.program, "lan0")
    }

    fn until(&self, what: &str, done: impl Fn(&Stat) -> bool) {
        let begin = Instant::now();
        while !done(&self.stat()) {
            assert!(begin.elapsed() < PATIENCE, "no {what}: {}", self.stat().json());
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn pings(&self, sizes: &[usize]) {
        let [here, there]: [IpAddr; 2] = ["198.19.0.2", "198.19.0.1"].map(|ip| ip.parse().unwrap());
        let (here, there) =
            (Place { host: &self.ground.b, address: here }, Place { host: &self.ground.a, address: there });
        traffic::pings(here, there, sizes);
        traffic::pings(there, here, sizes);
    }

    /// Returns the output of `segue stat --health`, and whether it reports good health.
    fn health(&self) -> (bool, String) {
        let mut command = self.ground.b.command(&self.ground.program);
        let output = command.args(["stat", "lan0", "--health"]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    /// Waits until the health is as `done` wants it: an instance that the machine leaves no time for a moment has none.
    #[track_caller]
    fn until_health(&self, done: impl Fn(bool, &str) -> bool) {
        let begin = Instant::now();
        loop {
            let (well, said) = self.health();
            if done(well, &said) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{well}: {said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn until_well(&self) {
        self.until_health(|well, said| well && said.is_empty());
    }
}

#[test]
fn mtu_address_promiscuous_mode_and_down_reach_the_chip() {
    let Some(mut adapter) = Adapter::new(test_name!()) else { return };
    let number = |stat: &Stat, key: &str| stat.count("adapter", "numbers", key);
    adapter.pings(&[56, 1400]);
    ip(&adapter.ground.b, "link set dev lan0 mtu 9000");
    adapter.until("MTU of 9000", |stat| number(stat, "mtu") == 9000);
    adapter.pings(&[56, 8900]);
    adapter.until_well();
    ip(&adapter.ground.b, "link set dev lan0 mtu 9100");
    adapter.until("refusal", |stat| number(stat, "refused_mtu") == 9100);
    adapter.until_health(|well, said| !well && said.contains("mtu 9100"));
    ip(&adapter.ground.b, "link set dev lan0 mtu 1500");
    adapter.until("MTU of 1500", |stat| (number(stat, "mtu"), number(stat, "refused_mtu")) == (1500, 0));
    adapter.until_well();

    ip(&adapter.ground.b, "link set dev lan0 address 02:78:00:00:00:99");
    ip(&adapter.ground.a, "neigh flush dev cable0");
    let begin = Instant::now();
    while adapter.ground.a.run("ping", &["-c", "1", "-W", "1", "198.19.0.2"]).is_err() {
        assert!(begin.elapsed() < PATIENCE, "no answer with the new address");
    }
    adapter.pings(&[56]);

    // Frames to another host arrive only where they are wanted.
    ip(&adapter.ground.a, "neigh replace 198.19.0.9 lladdr 02:99:99:99:99:99 dev cable0");
    let reaches = |adapter: &Adapter| {
        let received = |stat: Stat| stat.count("adapter", "receive", "packets");
        let before = received(adapter.stat());
        let _ = adapter.ground.a.run("ping", &["-c", "5", "-i", "0.1", "-W", "1", "198.19.0.9"]);
        received(adapter.stat()) >= before + 5
    };
    // Waits until the chip does as its interface was told.
    let until = |wanted: bool, what: &str| {
        let begin = Instant::now();
        while reaches(&adapter) != wanted {
            assert!(begin.elapsed() < PATIENCE, "{what}: whether they arrive is {}", !wanted);
        }
    };
    until(false, "as made");
    ip(&adapter.ground.b, "link set dev lan0 promisc on");
    until(true, "promisc on");
    ip(&adapter.ground.b, "link set dev lan0 promisc off");
    until(false, "promisc off");
    for kind in ["bridge", "macvlan"] {
        let add = match kind {
            "bridge" => "link add br0 type bridge".to_owned(),
            _ => "link add link lan0 name mv0 type macvlan mode bridge".to_owned(),
        };
        if adapter.ground.b.run("ip", &add.split(' ').collect::<Vec<_>>()).is_err() {
            skip(test_name!(), &format!("this kernel has no {kind}"));
            continue;
        }
        if kind == "bridge" {
            ip(&adapter.ground.b, "link set dev lan0 master br0");
        } else {
            ip(&adapter.ground.b, "link set dev mv0 up");
        }
        until(true, kind);
        ip(&adapter.ground.b, if kind == "bridge" { "link del br0" } else { "link del mv0" });
        until(false, kind);
    }

    ip(&adapter.ground.b, "link set dev lan0 down");
    adapter.until("end of the link", |stat| number(stat, "link_mbit") == 0);
    ip(&adapter.ground.b, "link set dev lan0 up");
    adapter.until("link", |stat| number(stat, "link_mbit") == 1000);
    adapter.pings(&[56, 1400]);
    assert!(adapter.driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", adapter.driver.last_words());
}

#[test]
fn health_reports_an_interface_that_is_down_by_its_present_name_and_a_link_without_carrier() {
    let Some(adapter) = Adapter::new(test_name!()) else { return };
    let b = &adapter.ground.b;
    adapter.until_well();
    ip(b, "link set dev lan0 down");
    adapter.until_health(|well, said| !well && said.contains("lan0 is down"));
    ip(b, "link set dev lan0 name usb7");
    adapter.until_health(|well, said| !well && said.contains("usb7 is down") && said.contains("lan0 at the start"));
    let fix = adapter.stat().json()["health"][0]["fix"].clone();
    assert_eq!(fix, "sudo ip link set dev usb7 up");
    ip(b, "link set dev usb7 up");
    adapter.until_well();
    adapter.pings(&[56, 1400]);
    writeln!(&adapter._model.1, "link down").unwrap();
    adapter.until_health(|well, said| !well && said.contains("usb7 has no carrier"));
    writeln!(&adapter._model.1, "link up").unwrap();
    adapter.until_well();
    adapter.pings(&[56, 1400]);
}

#[test]
fn health_reports_an_absent_adapter_and_a_lost_opener() {
    let Some(mut adapter) = Adapter::new(test_name!()) else { return };
    adapter.until_well();
    let (model, _) = &mut adapter._model;
    assert!(model.stop(PATIENCE).is_some_and(|status| status.success()));
    adapter.until("end of the adapter", |stat| stat.count("adapter", "numbers", "gone") == 1);
    adapter.until_health(|well, said| !well && said.contains("adapter gone") && !said.contains("process ended"));
    let pid = adapter.driver.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    // The process that opens devices has no socket of the control's; it is that which was started first.
    let opener = children.split_ascii_whitespace().next().unwrap().to_owned();
    adapter.ground.b.run("kill", &["-KILL", &opener]).unwrap();
    adapter.until_health(|_, said| said.contains("process ended"));
}

/// Tests that a stop of the opener process is noticed like one of the packet process: it goes on soon, and HEALTH names
/// it if it cannot be continued.
#[test]
fn a_process_that_opens_the_adapter_again_goes_on_after_a_stop_and_is_named_meanwhile() {
    let Some(mut adapter) = Adapter::new(test_name!()) else { return };
    let pid = adapter.driver.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    // The one that was started first.
    let opener = children.split_ascii_whitespace().next().unwrap().to_owned();
    let supervisor = pid.to_string();
    let signal = |adapter: &Adapter, name: &str, pid: &str| drop(adapter.ground.b.run("kill", &[name, pid]).unwrap());
    let is_stopped = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    };
    signal(&adapter, "-STOP", &opener);
    until("word of the stop", &mut adapter.driver, |process| {
        process.stderr().contains("stopped the process that opens lan0 again; it was continued") && !is_stopped(&opener)
    });
    adapter.until_well();
    // A supervisor that is stopped itself lets nothing go on.
    signal(&adapter, "-STOP", &supervisor);
    signal(&adapter, "-STOP", &opener);
    adapter.until_health(|well, said| !well && said.contains("process stopped"));
    assert!(is_stopped(&opener));
    signal(&adapter, "-CONT", &supervisor);
    adapter.until_well();
    assert!(adapter.driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", adapter.driver.last_words());
}

/// Returns whether a host has a connection to the USB/IP server that `is` accepts by its state and its queues (proc(5),
/// net/tcp).
fn has_connection(host: &Host, is: impl Fn(&str, &str) -> bool) -> bool {
    let table = host.enter(|| fs::read_to_string("/proc/thread-self/net/tcp").unwrap()).unwrap();
    let port = format!(":{:04X}", 3240);
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields[2].ends_with(&port) && is(fields[3], fields[4])
    })
}

/// Returns whether bytes on a host's connection to the USB/IP server are not acknowledged.
fn has_unacknowledged(host: &Host) -> bool {
    has_connection(host, |_, queues| !queues.starts_with("00000000:"))
}

/// Returns whether a host's connection to the USB/IP server is established.
fn is_connected(host: &Host) -> bool {
    has_connection(host, |state, _| state == "01")
}

/// Ends a driver behind a cut cable, which it has noticed before or not, and returns how long that took.
fn end_behind_a_cut_cable(name: &str, noticed: bool) -> Option<Duration> {
    let mut adapter = Adapter::new(name)?;
    let a = &adapter.ground.a;
    let device = a.devices().into_iter().find(|name| name != "lo" && name != "cable0").unwrap();
    ip(a, &format!("link set dev {device} down"));
    if noticed {
        adapter.until("end of the adapter", |stat| stat.count("adapter", "numbers", "gone") == 1);
        adapter.until_health(|well, said| !well && said.contains("adapter gone"));
        let begin = Instant::now();
        while carrier(&adapter.ground.b, "lan0") {
            assert!(begin.elapsed() < PATIENCE, "a carrier without an adapter");
            thread::sleep(Duration::from_millis(20));
        }
    } else {
        // Into the first request that is not answered.
        let begin = Instant::now();
        while !has_unacknowledged(&adapter.ground.b) {
            assert!(begin.elapsed() < PATIENCE, "nothing is sent to the server");
            thread::sleep(Duration::from_millis(20));
        }
    }
    let begin = Instant::now();
    assert!(adapter.driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", adapter.driver.last_words());
    let time = begin.elapsed();
    assert!(!adapter.ground.b.has_device("lan0"));
    Some(time)
}

#[test]
fn a_server_behind_a_cut_cable_is_given_up_and_a_signal_ends_it_soon() {
    // Cut, and left alone until it was noticed; cut, and ended at once.
    for noticed in [true, false] {
        let mut times: Vec<Duration> = Vec::new();
        // A request is waited for five seconds, and so is one more. A driver that goes on until its connection ends,
        // after 14 s, is late each time; on a busy machine any driver may be late once.
        while times.last().is_none_or(|time| *time >= Duration::from_millis(12_500)) {
            assert!(times.len() < 3, "{noticed}: {times:?}");
            let Some(time) = end_behind_a_cut_cable(test_name!(), noticed) else { return };
            times.push(time);
        }
    }
}

/// Returns the processor time that a process has used, in hundredths of a second (proc(5)).
fn cpu(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let behind: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    behind[11].parse::<u64>().unwrap() + behind[12].parse::<u64>().unwrap()
}

#[test]
fn an_adapter_unplugged_while_its_interface_is_down_is_noticed_without_spinning() {
    let Some(mut adapter) = Adapter::new(test_name!()) else { return };
    ip(&adapter.ground.b, "link set dev lan0 down");
    adapter.until("end of the link", |stat| stat.count("adapter", "numbers", "link_mbit") == 0);
    let (model, _) = &mut adapter._model;
    assert!(model.stop(PATIENCE).is_some_and(|status| status.success()));
    adapter.until("end of the adapter", |stat| stat.count("adapter", "numbers", "gone") == 1);
    adapter.until_health(|well, said| !well && said.contains("adapter gone") && said.contains("looked for"));
    // Two seconds of a loop that spins are some 200 ticks.
    let before = cpu(&adapter.driver);
    thread::sleep(Duration::from_secs(2));
    assert!(cpu(&adapter.driver) - before < 100, "{} ticks in 2 s", cpu(&adapter.driver) - before);
    // An end while it is looked for is an end like any other.
    assert!(adapter.driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", adapter.driver.last_words());
    assert!(!adapter.driver.stderr().contains("will not be opened"), "{}", adapter.driver.stderr());
}

#[test]
fn an_interface_that_is_moved_into_another_namespace_goes_on_there() {
    let Some(adapter) = Adapter::new(test_name!()) else { return };
    let (a, b) = (&adapter.ground.a, &adapter.ground.b);
    let number = |stat: &Stat, key: &str| stat.count("adapter", "numbers", key);
    ip(b, "link set dev lan0 mtu 2000");
    adapter.until("MTU of 2000", |stat| number(stat, "mtu") == 2000);
    // The host of the cable's other end, since that is at hand.
    ip(b, &format!("link set dev lan0 netns {}", a.net_path()));
    ip(a, "link set dev lan0 up");
    adapter.until("link", |stat| number(stat, "link_mbit") == 1000);
    let begin = Instant::now();
    while !carrier(a, "lan0") {
        assert!(begin.elapsed() < PATIENCE, "no carrier");
        thread::sleep(Duration::from_millis(50));
    }
    adapter.until_well();
    assert_eq!(number(&adapter.stat(), "mtu"), 2000);
    let received = || adapter.stat().count("adapter", "receive", "packets");
    let before = received();
    // No host has that address, so its ARP requests are sent on the cable.
    adapter.until("packets", |_| {
        let _ = a.run("ping", &["-c", "3", "-i", "0.2", "-W", "1", "198.19.0.77"]);
        received() >= before + 3
    });
    // Back home it is followed as before.
    ip(a, &format!("link set dev lan0 netns {}", b.net_path()));
    adapter.until("end of the link", |stat| number(stat, "link_mbit") == 0);
    ip(b, "link set dev lan0 mtu 1500 up");
    adapter.until("link", |stat| (number(stat, "link_mbit"), number(stat, "mtu")) == (1000, 1500));
}

#[test]
fn a_signal_ends_a_set_up_that_waits_for_its_server() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let (a, b) = (&ground.a, &ground.b);
    let (mut model, _commands) = start(a, &ground.program, &["model", "--usbip", "198.18.0.1:3240"]);
    until("model", &mut model, |process| process.stderr().contains("is up"));
    let kill = |signal: &str, process: &Process| {
        let pid = process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        // The supervisor first, which lets a stopped child go on.
        for pid in [&pid.to_string()[..]].into_iter().chain(children.split_ascii_whitespace()) {
            a.run("kill", &[signal, pid]).unwrap();
        }
    };
    // The kernel takes the connection, and no process answers.
    kill("-STOP", &model);
    for signal in ["-TERM", "-INT"] {
        let (mut driver, _stdin) =
            start(b, &ground.program, &["up", "--usb", "usbip://198.18.0.1/1-1", "--json", "dev", "lan0"]);
        until("connection", &mut driver, |_| is_connected(b));
        // Nothing is to happen: the driver waits, for five seconds at most.
        thread::sleep(Duration::from_millis(300));
        assert!(driver.ended().is_none(), "{}", driver.last_words());
        a.run("kill", &[signal, &driver.id().to_string()]).unwrap();
        let status = driver.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(130), "{}", driver.last_words());
    }
    kill("-CONT", &model);
    assert!(model.stop(PATIENCE).is_some_and(|status| status.success()), "{}", model.last_words());
}

#[test]
fn a_model_whose_cable_is_deleted_ends_its_driver_with_an_error() {
    let Some(ground) = Ground::apart(test_name!(), &["ping"]) else { return };
    let b = &ground.b;
    let (mut driver, _stdin) = start(b, &ground.program, &["up", "--usb", "model", "--wire", "tap:cable0"]);
    until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
    ip(b, "link del cable0");
    assert!(!driver.wait(PATIENCE).unwrap().success());
    assert!(driver.stderr().contains("error"), "{}", driver.last_words());
    assert!(!b.has_device("lan0"));
}

/// Directory in a host's own mount namespace with the files needed by a user without rights: a TUN device node of mode
/// 0666 (bound over the machine's, regardless of that one's mode), the program, and a directory for control sockets.
const UNPRIVILEGED: &str = "/run/segue/unprivileged";

/// Creates [`UNPRIVILEGED`] in `host`. Fails where no device node can be made.
fn furnish(host: &Host, program: &Path) -> Result<(), LabError> {
    let script = format!(
        "set -e
mkdir {UNPRIVILEGED}
mount -t tmpfs -o mode=755 tmpfs {UNPRIVILEGED}
mknod -m 666 {UNPRIVILEGED}/tun c 10 200
mount --bind {UNPRIVILEGED}/tun /dev/net/tun
install -m 755 \"$1\" {UNPRIVILEGED}/segue
install -d -m 755 -o 65534 {UNPRIVILEGED}/sockets"
    );
    host.run("sh", &["-c", &script, "sh", program.to_str().unwrap()]).map(drop)
}

#[test]
fn a_tap_made_beforehand_serves_a_user_without_rights() {
    let Some(ground) = Ground::apart(test_name!(), &["setpriv", "install"]) else { return };
    let b = &ground.b;
    if let Err(error) = furnish(b, &ground.program) {
        return skip(test_name!(), &error.to_string());
    }
    ip(b, "tuntap add dev lan0 mode tap vnet_hdr user 65534");
    ip(b, "link set dev lan0 mtu 1500 up");
    let shown = b.run("ip", &["-o", "link", "show", "dev", "lan0"]).unwrap();
    let mac = shown.split_once("link/ether ").unwrap().1.split(' ').next().unwrap().to_owned();
    let start = |words: &[&str]| {
        let mut command = b.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(format!("{UNPRIVILEGED}/segue"));
        command.args(["lan78xx", "up", "--usb", "model", "dev", "lan0"]).args(words);
        command.env("SEGUE_RUNTIME_DIR", format!("{UNPRIVILEGED}/sockets"));
        Process::spawn(command, b"").unwrap()
    };
    let mut driver = start(&["--mac", &mac]);
    until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
    assert!(driver.stop(PATIENCE).is_some_and(|status| status.success()), "{}", driver.last_words());
    // What is not so already needs root, and the way to it is said.
    for words in [&[][..], &["--mac", &mac, "--mtu", "1400"]] {
        let mut driver = start(words);
        assert!(!driver.wait(PATIENCE).unwrap().success());
        let said = driver.stderr();
        assert!(said.contains("mode tap vnet_hdr user") && !said.contains("tunnel"), "{said}");
    }
    // Another user's TAP is not made once more.
    ip(b, "link del lan0");
    ip(b, "tuntap add dev lan0 mode tap vnet_hdr user 1");
    let mut driver = start(&["--mac", &mac]);
    assert!(!driver.wait(PATIENCE).unwrap().success());
    let said = driver.stderr();
    assert!(said.contains("belongs to the user 1") && !said.contains("tuntap add"), "{said}");
}
