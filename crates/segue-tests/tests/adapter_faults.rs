//! Tests of faults of an adapter's process: of its threads, of the process itself, and of the system calls that carry
//! its USB requests to a model of the chip over USB/IP. Packets pass again, and no other instance notices.

#[path = "common/adapter.rs"]
mod common;

use std::io::{PipeWriter, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, carrier, start, until};
use segue_lab::{Process, reach};
use segue_tests::capture::Directory;
#[cfg(target_arch = "x86_64")]
use segue_tests::faults::limit_memory;
use segue_tests::faults::{Fault, Service, children, helpers, tail};
use segue_tests::inject::{TRANSIENT, Traced, Workload};
use segue_tests::routed::ip;
#[cfg(target_arch = "x86_64")]
use segue_tests::spoil::{Spoiled, spoil};
#[cfg(target_arch = "x86_64")]
use segue_tests::sys;
use segue_tests::test_name;
use segue_tests::traffic::{Place, socket};

/// The table of the adapter in the file of the service at host A.
const TABLE: &str = "[[lan78xx]]\ndev = \"lan0\"\nusb = \"usbip://198.18.0.2/1-1\"\n";
/// The addresses of the adapter's interface at host A, and of the end of the model's cable at host B.
const ENDS: [&str; 2] = ["198.19.204.2", "198.19.204.1"];

/// System calls of the process in groups: its USB requests and those to the opener process; the same in the sending
/// direction; those of its interface; and the wait for all of them.
const CALLS: [&str; 4] = ["recvfrom,recvmsg,sendmsg", "sendto", "read,readv,write,writev", "ppoll"];
/// Number of datagrams in each direction while a call fails.
const DATAGRAMS: u64 = 40;
/// Smallest number of system calls that counts as the number without faults: those for all datagrams in both
/// directions, one by one.
const LEAST: u64 = 16 * DATAGRAMS;
/// System calls of the process that opens the adapter again: those to the process that moves packets, and those to the
/// server.
const OF_OPENER: [&str; 3] = ["read,sendmsg", "socket,connect", "recvfrom,sendto"];

/// Time for which the adapter is away while calls of that process fail, and time in which it is found again: it is
/// looked for once a second.
const AWAY: Duration = Duration::from_secs(2);
const FOUND: Duration = Duration::from_millis(1500);
/// Smallest number of system calls of that process that counts as the number without faults: a third of those of a
/// message that is sent again all that time after 10 ms each, two calls a time.
const OF_SEARCH: u64 = 2 * 3500 / 10 / 3;

/// Longest time from the end of the opener process until packets pass again: five times the aim.
const BACK: Duration = Duration::from_secs(15);

/// A read that ends within a message, and whose bytes are none that the server has sent.
const SHORT: &str = "retval=3:when=1..20";

/// Returns transient errors, and for the USB requests that of a disconnected device.
fn errors() -> Vec<&'static str> {
    [&TRANSIENT[..1], &["error=ENODEV"], &TRANSIENT[1..]].concat()
}

/// A model of the chip at host B, and its adapter as an instance of the service at host A.
struct Adapter {
    /// Model's process, and the pipe for its commands.
    model: (Process, PipeWriter),
    service: Service,
}

impl Adapter {
    /// Starts the adapter and its model. `None` where the test cannot run, which is noted under `name`.
    #[track_caller]
    fn start(name: &str) -> Option<Adapter> {
        let made = Service::prepared(name, 1, TABLE, &[], |ground| {
            let words = ["model", "--usbip", "198.18.0.2:3240", "--wire", "tap:cable0", "--commands"];
            let (mut model, commands) = start(&ground.b, &ground.program, &words);
            until("model", &mut model, |process| process.stderr().contains("is up"));
            ip(&ground.b, &format!("address add {}/24 dev cable0", ENDS[1]));
            (model, commands)
        });
        made.map(|(service, model)| Adapter { model, service })
    }

    /// Returns the two endpoints of the adapter.
    fn places(&self) -> [Place<'_>; 2] {
        let ground = &self.service.ground;
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        [Place { host: &ground.a, address: address(ENDS[0]) }, Place { host: &ground.b, address: address(ENDS[1]) }]
    }

    /// Returns whether datagrams pass through the adapter in both directions within `longest`.
    fn passes(&self, longest: Duration) -> bool {
        let [near, far] = self.places();
        let begin = Instant::now();
        let network = format!("{}/24", ENDS[0]);
        loop {
            // The interface is a new one after each start.
            let is_up = carrier(near.host, "lan0")
                && near.host.run("ip", &["address", "replace", &network, "dev", "lan0"]).is_ok();
            let most = longest.min(Duration::from_millis(200));
            if is_up && reach((near.host, near.address), (far.host, far.address), most).is_ok() {
                return true;
            }
            if begin.elapsed() >= longest {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends datagrams in both directions, regardless of their arrival, and reads the counters.
    fn disturb(&self, ends: &[UdpSocket; 2]) {
        for _ in 0..DATAGRAMS {
            for (from, to) in [(0, 1), (1, 0)] {
                // A link that is down is one of the faults.
                let _ = ends[from].send_to(&[7; 300], ends[to].local_addr().unwrap());
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.service.request_of("lan0", r#"{"get":"stat"}"#);
    }

    /// Unplugs the adapter, and plugs it in again a while after the driver has noticed.
    #[track_caller]
    fn replug(&self, away: Duration) {
        let begin = Instant::now();
        writeln!(&self.model.1, "unplug").unwrap();
        while self.number("gone") == 0 {
            assert!(begin.elapsed() < PATIENCE, "{}", tail(&self.service.near));
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(away);
        writeln!(&self.model.1, "plug").unwrap();
    }

    /// Returns a number of the adapter's driver, after a wait for an answer.
    #[track_caller]
    fn number(&self, key: &str) -> u64 {
        let begin = Instant::now();
        loop {
            let stat = self.service.stat("lan0").unwrap_or_default();
            if let Some(number) = stat["ports"]["adapter"]["numbers"][key].as_u64() {
                return number;
            }
            assert!(begin.elapsed() < PATIENCE, "no {key} in {stat}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn an_adapter_passes_packets_again_after_each_fault_of_its_process() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    let service = &adapter.service;
    let tunnel = service.patient_pid("sg1");
    let passes = |longest| adapter.passes(longest);
    assert!(passes(PATIENCE), "{}", tail(&service.near));
    for fault in [
        Fault::Thread("packets", "panic"),
        Fault::Worker(libc::SIGSTOP),
        Fault::Thread("packets", "loop"),
        Fault::Thread("packets", "memory"),
        Fault::Worker(libc::SIGKILL),
        Fault::Thread("control", "panic"),
    ] {
        let took = service.fault_of("lan0", fault, &passes);
        println!("{fault:?}: {} ms", took.as_millis());
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
fn an_adapter_whose_interface_was_deleted_or_has_another_mtu_passes_packets_again() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    let service = &adapter.service;
    let host = &service.ground.a;
    let pids = || ["sg1", "lan0"].map(|name| service.patient_pid(name));
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    let before = pids();
    ip(host, "link set dev lan0 mtu 9000");
    ip(host, "link set dev lan0 mtu 1400");
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    assert_eq!(pids(), before);
    ip(host, "link del lan0");
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    let after = pids();
    assert!(after[0] == before[0] && after[1] != before[1], "{before:?}, then {after:?}");
    assert_eq!(service.errors_with("lan0 can no longer move packets"), 1, "{}", tail(&service.near));
}

#[test]
fn a_watch_of_an_adapters_interface_that_hangs_or_gets_no_memory_is_ended() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    let service = &adapter.service;
    let tunnel = service.patient_pid("sg1");
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    for (kind, how) in [
        ("hang", "the watch of the interface did not report for"),
        ("memory", "the process that moves packets was ended by signal"),
    ] {
        service.fault_of("lan0", Fault::Thread("interface", kind), &|longest| adapter.passes(longest));
        let events = service.events();
        let mut errors = events.iter().filter_map(|event| event["error"]["message"].as_str());
        let wanted = format!("lan0: {how}");
        assert!(errors.any(|error| error.contains(&wanted)), "{kind}: no {wanted}: {}", tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
fn an_adapter_whose_opener_ended_or_looped_passes_packets_again_and_is_found_again() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    let tunnel = adapter.service.patient_pid("sg1");
    assert!(adapter.passes(PATIENCE), "{}", tail(&adapter.service.near));
    for fault in Fault::of_helpers(test_name!()) {
        let took = adapter.service.fault_of("lan0", fault, &|longest| adapter.passes(longest));
        println!("opener, {fault:?}: {} ms", took.as_millis());
        let words = "of processor time without a round";
        assert_eq!(adapter.service.errors_with(words), usize::from(fault == Fault::HelperLoop), "{fault:?}");
        assert!(took < BACK, "{took:?} until packets pass again");
        // The new opener does its work.
        let worker = adapter.service.patient_pid("lan0");
        adapter.replug(Duration::ZERO);
        assert!(adapter.passes(PATIENCE), "{}", tail(&adapter.service.near));
        assert_eq!(adapter.service.patient_pid("lan0"), worker, "the adapter came back to its process");
    }
    assert_eq!(adapter.service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

/// Tests that an adapter passes packets again, and is found again, after a panic, a stop and the lack of memory of the
/// process that opens it. The panic is that of a function whose machine code is replaced, and a limit of its addresses
/// stands for a machine without memory.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_adapter_whose_opener_panicked_was_stopped_or_got_no_memory_is_found_again() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    let service = &adapter.service;
    if segue_lab::which("nm").is_none() {
        return segue_tests::skip(test_name!(), "not installed: nm");
    }
    let tunnel = service.patient_pid("sg1");
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    for kind in ["stop", "panic", "memory"] {
        let worker = service.patient_pid("lan0").unwrap();
        let opener = helpers(worker)[0];
        match kind {
            "stop" => sys::signal(opener, libc::SIGSTOP).unwrap(),
            "panic" => spoil(opener, "segue_service::handover::sys::send", Spoiled::Panic).unwrap(),
            _ => limit_memory(opener, Some(0)),
        }
        // What it does is to look for an adapter that is away.
        adapter.replug(Duration::ZERO);
        assert!(adapter.passes(PATIENCE), "{kind}: {}", tail(&service.near));
        let now = service.patient_pid("lan0");
        let is_same = now == Some(worker);
        // Without memory it needs no more for its work, or it is replaced.
        assert!(kind == "memory" || is_same == (kind == "stop"), "{kind}: {}", tail(&service.near));
    }
    assert!(service.errors_with("the process that opens lan0 again ") >= 1, "{}", tail(&service.near));
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
fn errors_of_usb_requests_end_no_process_and_cost_no_more_than_three_times_the_normal() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let service = &adapter.service;
    assert!(adapter.passes(PATIENCE), "{}", tail(&service.near));
    let worker = service.patient_pid("lan0").unwrap();
    let ends = adapter.places().map(socket);
    let work = || adapter.disturb(&ends);
    let workload = Workload { who: "lan0", pid: worker, least: LEAST, work: &work };
    let normal = workload.normal();
    let mut failed = Vec::new();
    for (at, calls) in normal.groups(&CALLS).iter().enumerate() {
        let mut met = 0;
        for (number, error) in errors().into_iter().chain([SHORT]).enumerate() {
            let (is_usb, is_further) = (at < 2, at >= CALLS.len());
            // An interface that is gone ends the instance. Only a stream can end within a message.
            if error.contains("ENODEV") && !is_usb || error == SHORT && at > 0 {
                continue;
            }
            let calls = if error == SHORT { "recvfrom" } else { calls };
            // Three of nine in each row, other ones in the next; one with each further call.
            let period = if is_further { 9 } else { 3 };
            if !segue_testkit::is_set("SEGUE_FULL") && number % period != at % period {
                continue;
            }
            let before = adapter.number("unplugs");
            let found = workload.fails(&normal, calls, error);
            met += found.met;
            let passes = adapter.passes(PATIENCE);
            let is_same = service.patient_pid("lan0") == Some(worker);
            if found.is_costly || !passes || !is_same {
                failed.push(format!(
                    "{}; the same process: {is_same}; packets pass: {passes}; {}",
                    found.text,
                    tail(&service.near)
                ));
            }
            assert!(is_same, "{}", failed.join("\n"));
            // A connection that fails is an adapter that goes away, and comes back.
            let is_transient = ["EAGAIN", "EINTR"].iter().any(|name| error.contains(name));
            if is_usb && !is_transient && found.met > 0 {
                assert!(adapter.number("unplugs") > before, "{calls} {error} was not counted");
            }
        }
        assert!(met > 0 || at >= CALLS.len(), "{calls}: no error was met");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn an_adapter_that_was_away_comes_back_though_calls_of_the_process_that_opens_it_failed() {
    let Some(adapter) = Adapter::start(test_name!()) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    assert!(adapter.passes(PATIENCE), "{}", tail(&adapter.service.near));
    let worker = adapter.service.patient_pid("lan0").unwrap();
    let opener = helpers(worker)[0];
    let work = || {
        adapter.replug(AWAY);
        thread::sleep(FOUND);
    };
    let workload = Workload { who: "opener", pid: opener, least: OF_SEARCH, work: &work };
    let normal = workload.normal();
    for (at, calls) in normal.groups(&OF_OPENER).iter().enumerate() {
        let is_further = at >= OF_OPENER.len();
        for (number, error) in errors().into_iter().enumerate() {
            // Three of them for the first calls, one for each of the others.
            let is_chosen = if at == 0 { matches!(number, 2 | 4 | 5) } else { number == 3 + at && !is_further };
            if !segue_testkit::is_set("SEGUE_FULL") && !is_chosen {
                continue;
            }
            let found = workload.fails(&normal, calls, error);
            assert!((found.met > 0 || is_further) && !found.is_costly, "{}", found.text);
            assert!(adapter.passes(PATIENCE), "{calls} {error}: {}", tail(&adapter.service.near));
            assert_eq!(adapter.service.patient_pid("lan0"), Some(worker), "{calls} {error}");
            assert_eq!(helpers(worker)[0], opener, "{calls} {error}");
        }
    }
}

#[test]
fn a_model_goes_on_for_its_client_while_another_one_cannot_be_accepted() {
    let Some(mut adapter) = Adapter::start(test_name!()) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    assert!(adapter.passes(PATIENCE), "{}", tail(&adapter.service.near));
    let model = children(adapter.model.0.id())[0];
    let begin = Instant::now();
    let directory = Directory::new();
    let traced = Traced::attach(model, Some(("accept4", "error=EMFILE")), &directory.file("calls"));
    let server = ("198.18.0.2", 3240);
    let client = adapter.service.ground.a.enter(|| TcpStream::connect(server)).unwrap().unwrap();
    thread::sleep(Duration::from_secs(2));
    let found = traced.detach();
    // It tries again ten times a second.
    let most = 50.0 * begin.elapsed().as_secs_f64();
    assert!(found.injected > 0 && found.made["accept4"] as f64 <= most, "at most {most:.0}: {found:?}");
    assert!(adapter.model.0.ended().is_none() && adapter.passes(PATIENCE), "{}", adapter.model.0.last_words());
    assert_eq!(adapter.number("unplugs"), 0);
    // The other client is accepted, and its connection closed in the end, since it asks for nothing.
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
}
