//! Tests of system calls of an instance that fail with any error for a time: that ends no process, costs no more than a
//! little processor time, and packets pass again afterwards.
//!
//! The calls fail by strace's injection, in the running process. Processor time is judged by the number of system
//! calls, which no other work on the machine changes. `make test` tries a part of the pairs of a call and an error,
//! `SEGUE_FULL=1` all of them.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use segue_lab::{Family, Peer};
use segue_tests::capture::Directory;
use segue_tests::faults::{Forwarder, PATIENCE, Service, parent, tail};
use segue_tests::inject::{Traced, Workload};
use segue_tests::routed::ip;
use segue_tests::traffic::{Place, socket};
use segue_tests::{sys, test_name};

/// Errors after which a process goes on. An interrupt is by its nature not for long, since the standard library repeats
/// such calls itself; the last one is a call that returns fewer bytes than asked for.
const ERRORS: [&str; 10] = [
    "error=EAGAIN",
    "error=ENOBUFS",
    "error=ENOMEM",
    "error=EMSGSIZE",
    "error=EPERM",
    "error=ENETDOWN",
    "error=EIO",
    "error=ENODEV",
    "error=EINTR:when=1+2",
    "retval=3:when=1..20",
];
/// The system calls of the process that moves a tunnel's packets, by their purpose.
const OF_PACKETS: [&str; 6] =
    ["read,readv", "write,writev", "sendmsg,sendmmsg", "recvmsg,recvmmsg", "ppoll", "accept4,recvfrom,getsockopt"];
/// The system calls of the process that moves a gateway's or a router's packets, which it receives by a ring. The last
/// ones read the kernel's routes for a router.
const OF_FORWARDERS: [&str; 4] = ["sendmsg,sendmmsg", "ppoll", "accept4,getsockopt", "read,recvfrom,sendto"];
/// The calls of its supervisor and of the service. The last ones are those of clients of the service.
const OF_SUPERVISORS: [&str; 4] = ["read", "ppoll,poll", "wait4", "accept4,recvfrom"];
/// Number of datagrams in each direction while a call fails.
const DATAGRAMS: u64 = 40;
/// Largest number of system calls per datagram of a loop that handles each singly: the wait, the read, the read that
/// finds no more, the write, and those of the control thread in between.
const EACH: u64 = 8;
/// Smallest number of system calls that counts as the number of a supervisor without faults. It makes some each quarter
/// of a second.
const OF_WAITING: u64 = 100;

/// Returns whether a process goes on after an error of these calls, in an instance that is a tunnel or none.
fn is_apt(error: &str, calls: &str, is_tunnel: bool) -> bool {
    let is_of_packets = calls.contains("read,") || calls.contains("write,") || calls.contains("msg");
    match error {
        // The loss of a device or interface ends its instance, as the other test has it.
        "error=ENODEV" => !is_of_packets && !calls.contains("recvfrom"),
        // Only these can be short. Elsewhere the number would be a lie of the kernel's.
        _ if error.starts_with("retval") => is_tunnel && (calls.contains("read,") || calls.contains("msg")),
        _ => true,
    }
}

/// An instance whose calls fail.
struct Subject<'a> {
    service: &'a Service,
    name: &'a str,
    /// The forwarding instance, if it is not a tunnel.
    forwarder: Option<&'a Forwarder>,
    ends: [UdpSocket; 2],
}

/// A process of an instance.
#[derive(Clone, Copy)]
struct Traceable {
    name: &'static str,
    pid: u32,
    calls: &'static [&'static str],
    /// Least number of calls that counts as the normal one.
    least: u64,
}

impl<'a> Subject<'a> {
    fn new(service: &'a Service, forwarder: Option<&'a Forwarder>) -> Subject<'a> {
        let [a, b] = [&service.ground.a, &service.ground.b];
        let places = match forwarder {
            Some(Forwarder { far, addresses: [near, behind], .. }) => [(b, *near), (far, *behind)],
            None => [(a, Peer::A.address(1, Family::V4)), (b, Peer::B.address(1, Family::V4))],
        };
        let ends = places.map(|(host, address)| socket(Place { host, address }));
        Subject { service, name: forwarder.map_or("sg1", |forwarder| forwarder.name), forwarder, ends }
    }

    fn passes(&self) -> bool {
        self.forwarder
            .map_or_else(|| self.service.passes(1, PATIENCE), |forwarder| forwarder.passes(self.service, PATIENCE))
    }

    /// Sends datagrams in both directions, regardless of their arrival, and changes a route that a router follows.
    fn disturb(&self) {
        for number in 0..DATAGRAMS {
            for (from, to) in [(0, 1), (1, 0)] {
                // A full queue is one of the faults.
                let _ = self.ends[from].send_to(&[7; 300], self.ends[to].local_addr().unwrap());
            }
            if self.name == "router" && number == DATAGRAMS / 2 {
                ip(&self.service.ground.a, "route add 198.51.100.0/24 via 198.19.203.2");
                ip(&self.service.ground.a, "route del 198.51.100.0/24");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Gives a process its work: sends datagrams and reads the counters of the instance.
    fn work(&self, process: Traceable) {
        self.disturb();
        // The control thread meets its faults with a request, and so does a service.
        let _ = self.service.request_of(self.name, r#"{"get":"stat"}"#);
        if process.name == "service" {
            let _ = self.service.answers();
        }
        if is_full() && process.least == OF_WAITING {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

fn is_full() -> bool {
    segue_testkit::is_set("SEGUE_FULL")
}

#[test]
fn no_error_of_a_system_call_ends_a_process_or_costs_more_than_three_times_the_normal() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let of_packets = |pid: u32, calls: &'static [&'static str]| Traceable {
        name: "worker",
        pid,
        calls,
        least: 2 * EACH * DATAGRAMS,
    };
    let (mut failed, mut met, mut which) = (Vec::new(), 0, 0);
    for forwarder in [None].into_iter().chain(forwarders.iter().map(Some)) {
        let subject = Subject::new(service, forwarder);
        assert!(subject.passes(), "{}: {}", subject.name, tail(&service.near));
        let worker = service.patient_pid(subject.name).unwrap();
        let supervisor = parent(worker);
        let waits = |name, pid| Traceable { name, pid, calls: &OF_SUPERVISORS, least: OF_WAITING };
        let processes = match forwarder {
            Some(_) => vec![of_packets(worker, &OF_FORWARDERS)],
            None => vec![
                of_packets(worker, &OF_PACKETS),
                waits("supervisor", supervisor),
                waits("service", parent(supervisor)),
            ],
        };
        let mut met_here = 0;
        for process in processes {
            let (who, work) = (format!("{} of {}", process.name, subject.name), || subject.work(process));
            let workload = Workload { who: &who, pid: process.pid, least: process.least, work: &work };
            let normal = workload.normal();
            for (at, calls) in process.calls.iter().enumerate() {
                let errors: Vec<&str> =
                    ERRORS.into_iter().filter(|error| is_apt(error, calls, forwarder.is_none())).collect();
                for (number, error) in errors.iter().copied().enumerate() {
                    // One or two of them in each row, other ones in the next.
                    let chosen = usize::from(forwarder.is_none());
                    let first = (2 * at + which) % errors.len();
                    if !is_full() && (number + errors.len() - first) % errors.len() > chosen {
                        continue;
                    }
                    let found = workload.fails(&normal, calls, error);
                    met_here += usize::from(found.met > 0);
                    let passes = subject.passes();
                    let same = service.patient_pid(subject.name) == Some(worker) && parent(worker) == supervisor;
                    let answers = service.answers();
                    if found.is_costly || !passes || !same || !answers {
                        failed.push(format!(
                            "{}; the same process: {same}; packets pass: {passes}; the service answers: {answers}; {}",
                            found.text,
                            tail(&service.near)
                        ));
                    }
                    assert!(same, "{}", failed.join("\n"));
                }
            }
            which += 1;
        }
        assert!(met_here > 0, "{}: no error was met", subject.name);
        met += met_here;
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A supervisor may make none of them in so short a time.
    assert!(met >= if is_full() { 55 } else { 9 }, "only {met} errors were met");
}

/// Tests that an instance is not taken for one that has ended, and not waited for, where a read of what it says fails.
#[test]
fn a_service_that_cannot_read_what_a_new_instance_says_goes_on() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let worker = service.patient_pid("sg1").unwrap();
    let directory = Directory::new();
    // The first ones read the end of the old instance and that the new one has started.
    let fault = ("read", "error=EIO:when=4+");
    let traced = Traced::attach(parent(parent(worker)), Some(fault), &directory.file("calls"));
    sys::signal(worker, libc::SIGKILL).unwrap();
    // Long enough for a new instance to say that it is up.
    thread::sleep(Duration::from_secs(1));
    let calls = traced.detach();
    assert!(calls.injected > 0, "{calls:?}");
    assert!(service.passes(1, PATIENCE) && service.answers(), "{}", tail(&service.near));
}

/// Tests that the loss of an interface ends its instance, which the service restarts.
#[test]
fn a_call_that_says_that_its_device_is_gone_costs_one_restart_and_no_other_instance() {
    let made = Service::prepared(test_name!(), 2, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let other = service.patient_pid("sg2");
    for forwarder in [None].into_iter().chain(forwarders.iter().map(Some)) {
        let subject = Subject::new(service, forwarder);
        assert!(subject.passes(), "{}: {}", subject.name, tail(&service.near));
        let pid = service.patient_pid(subject.name).unwrap();
        let directory = Directory::new();
        let calls = "read,readv,write,writev,sendmsg,sendmmsg";
        let traced = Traced::attach(pid, Some((calls, "error=ENODEV")), &directory.file("calls"));
        subject.disturb();
        let calls = traced.detach();
        assert!(calls.injected > 0, "{}: {calls:?}", subject.name);
        assert!(subject.passes(), "{}: {}", subject.name, tail(&service.near));
        let now = service.patient_pid(subject.name);
        assert!(now.is_some_and(|now| now != pid), "{}: {calls:?} {}", subject.name, tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg2"), other);
}
