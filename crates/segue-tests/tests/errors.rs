//! Tests of system calls of an instance that fail with any error for a time: that ends no process, costs no more than a
//! little processor time, and packets pass again afterwards.
//!
//! The calls fail by strace's injection, in the running process. Processor time is judged by the number of system
//! calls, which no other work on the machine changes. `make test` tries a part of the pairs of a call and an error,
//! `SEGUE_FULL=1` all of them.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Peer};
use segue_tests::capture::Directory;
use segue_tests::faults::{PATIENCE, Service, parent, tail};
use segue_tests::inject::{Calls, Traced};
use segue_tests::test_name;
use segue_tests::traffic::{Place, socket};

/// Transient errors, which do not concern the descriptor. An interrupt is by its nature not for long, since the
/// standard library repeats such calls itself; the last one is a call that returns fewer bytes than asked for.
const ERRORS: [&str; 9] = [
    "error=EAGAIN",
    "error=ENOBUFS",
    "error=ENOMEM",
    "error=EMSGSIZE",
    "error=EPERM",
    "error=ENETDOWN",
    "error=EIO",
    "error=EINTR:when=1+2",
    "retval=3:when=1..20",
];
/// The system calls of the process that moves packets, by their purpose.
const OF_PACKETS: [&str; 6] =
    ["read,readv", "write,writev", "sendmsg,sendmmsg", "recvmsg,recvmmsg", "ppoll", "accept4,recvfrom,getsockopt"];
/// The calls of its supervisor and of the service.
const OF_SUPERVISORS: [&str; 3] = ["read", "ppoll,poll", "wait4"];
/// The processes of an instance, from the one that moves packets up.
const NAMES: [&str; 3] = ["worker", "supervisor", "service"];
/// Number of datagrams in each direction while a call fails.
const DATAGRAMS: u64 = 40;
/// Most system calls for a datagram of a loop that handles each by itself: the wait, the read, the read that finds
/// nothing more, the write, and those of the control thread meanwhile.
const EACH: u64 = 8;
/// Most calls as a multiple of the normal number.
const MOST: u64 = 3;

/// Sends datagrams in both directions, whether they arrive or not.
fn disturb(ends: &[UdpSocket; 2]) {
    for _ in 0..DATAGRAMS {
        for (from, to) in [(0, 1), (1, 0)] {
            // A full queue is one of the faults.
            let _ = ends[from].send_to(&[7; 300], ends[to].local_addr().unwrap());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the calls of a process while datagrams are sent and the counters of the instance are read.
#[track_caller]
fn traced(service: &Service, ends: &[UdpSocket; 2], pid: u32, fault: Option<(&str, &str)>) -> (Calls, Duration) {
    let begin = Instant::now();
    let directory = Directory::new();
    let traced = Traced::attach(pid, fault, &directory.file("calls"));
    disturb(ends);
    // The control thread meets its faults with a request.
    let _ = service.request_of("sg1", r#"{"get":"stat"}"#);
    (traced.detach(), begin.elapsed())
}

#[test]
fn no_error_of_a_system_call_ends_a_process_or_costs_more_than_three_times_the_normal() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let worker = service.patient_pid("sg1").unwrap();
    let supervisor = parent(worker);
    let ends = [Peer::A, Peer::B].map(|end| {
        let host = if matches!(end, Peer::A) { &service.ground.a } else { &service.ground.b };
        socket(Place { host, address: end.address(1, Family::V4) })
    });
    let full = std::env::var_os("SEGUE_FULL").is_some();
    let processes = [(worker, &OF_PACKETS[..]), (supervisor, &OF_SUPERVISORS), (parent(supervisor), &OF_SUPERVISORS)];
    let (mut failed, mut met) = (Vec::new(), 0);
    for (which, (pid, calls)) in processes.into_iter().enumerate() {
        // The shortest of three, as a time in which the machine stood still has few calls.
        let normal = (0..3).map(|_| traced(&service, &ends, pid, None)).min_by_key(|(_, time)| *time);
        let (normal, time) = normal.expect("three");
        let most = MOST as f64 * normal.total().max(2 * EACH * DATAGRAMS) as f64;
        for (at, calls) in calls.iter().enumerate() {
            for (number, error) in ERRORS.into_iter().enumerate() {
                // Only reads and writes can be short. Elsewhere the number would be a lie of the kernel's.
                if error.starts_with("retval") && !calls.contains("read,") && !calls.contains("msg") {
                    continue;
                }
                // Two of nine in each row, other ones in the next.
                if !full && (number + 9 - (2 * at + which) % 9) % 9 > 1 {
                    continue;
                }
                let (found, took) = traced(&service, &ends, pid, Some((calls, error)));
                // A request that is not answered takes a few seconds more.
                let most = most * (took.as_secs_f64() / time.as_secs_f64()).max(1.0);
                met += usize::from(found.injected > 0);
                let times = MOST as f64 * found.total() as f64 / most;
                println!(
                    "figure {} {calls} {error}: times the normal {times:.2}, errors met {}",
                    NAMES[which], found.injected
                );
                let passes = service.passes(1, PATIENCE);
                let same = service.patient_pid("sg1") == Some(worker) && parent(worker) == supervisor;
                if found.total() as f64 > most || !passes || !same {
                    let words = tail(&service.near);
                    failed.push(format!(
                        "{} {calls} {error}: {} calls, {} failed; the same process: {same}; packets pass: \
                         {passes}; {:?} {words}",
                        NAMES[which],
                        found.total(),
                        found.injected,
                        found.made
                    ));
                }
                assert!(same, "{}", failed.join("\n"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A supervisor may make none of them in so short a time.
    assert!(met >= if full { 55 } else { 9 }, "only {met} errors were met");
}
