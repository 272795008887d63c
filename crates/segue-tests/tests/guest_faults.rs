//! Tests of faults of the processes of a guest's port: the end of the one that talks to the front end, or an endless
//! loop in it, errors of the system calls of both, and the end of a guest with much memory. Frames pass again, and no
//! other instance is affected. Also a front end that takes the place of another one.

#[path = "common/guests.rs"]
mod common;

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::{Gateway, NAME, PATIENCE, announcement, send_plain};
use segue_testkit::vhost::{Frontend, TO_GUEST, feature, message, region};
use segue_tests::capture::Directory;
#[cfg(target_arch = "x86_64")]
use segue_tests::faults::limit_memory;
use segue_tests::faults::{Fault, Service, helpers, tail};
use segue_tests::inject::{TRANSIENT, Workload};
#[cfg(target_arch = "x86_64")]
use segue_tests::spoil::{Spoiled, spoil};
use segue_tests::sys::{self, Held};
use segue_tests::{Ground, Stat, test_name};

/// Longest time from the end of the process until frames pass again: five times the aim.
const BACK: Duration = Duration::from_secs(15);
/// Longest wait for a frame; another one follows.
const AGAIN: Duration = Duration::from_millis(500);

/// System calls of the process that moves packets in groups: signals of guests and to them; the messages of their front
/// ends; the wait for both; the look at which ports have called.
const OF_WORKER: [&str; 4] = ["read,write", "recvmsg,sendmsg", "ppoll", "epoll_pwait"];
/// System calls of the process that talks to a front end.
const OF_KEEPER: [&str; 3] = ["recvmsg,sendmsg", "accept4,socketpair", "ppoll"];
/// Number of exchanges of frames while a call fails, and longest wait for each.
const EXCHANGES: (u32, Duration) = (8, Duration::from_millis(100));
/// Smallest numbers of system calls of the two processes that count as those without faults: a few for each frame and
/// for each message of a front end.
const LEAST: [u64; 2] = [500, 200];

/// Two guests at the ports of a gateway, whose front ends connect again where a connection was closed.
struct Guests {
    paths: [PathBuf; 2],
    connected: RefCell<Option<[Frontend; 2]>>,
    /// Number of the last frames.
    number: Cell<u8>,
}

impl Guests {
    /// Connects both front ends, whose guests are ready and offer buffers. `None` where no process listens.
    fn connect(&self) -> Option<[Frontend; 2]> {
        let streams = [UnixStream::connect(&self.paths[0]).ok()?, UnixStream::connect(&self.paths[1]).ok()?];
        Some(streams.map(|stream| {
            let mut front = Frontend::over(stream, feature::USUAL);
            front.start();
            front.offer_buffers(2048);
            front
        }))
    }

    /// Starts a gateway between both guests as an instance of a service, beside a tunnel. `None` where the test cannot
    /// run, which is noted under `name`.
    #[track_caller]
    fn start(name: &str, directory: &Directory) -> Option<(Service, Guests)> {
        let paths = ["left", "right"].map(|name| directory.file(&format!("{name}.sock")));
        let [left, right] = paths.each_ref().map(|path| path.display());
        let table = format!("[[gateway]]\nin = \"vhost:{left}\"\nout = \"vhost:{right}\"\nname = \"{NAME}\"\n");
        let service = Service::start(name, 1, &table, &[])?;
        Some((service, Guests { paths, connected: RefCell::new(None), number: Cell::new(0) }))
    }

    /// Returns whether new frames pass in both directions within `longest`.
    fn passes(&self, longest: Duration) -> bool {
        let begin = Instant::now();
        let mut connected = self.connected.borrow_mut();
        loop {
            if connected.as_mut().is_none_or(|fronts| fronts.iter_mut().any(Frontend::is_closed)) {
                // A port whose front end is still connected refuses another one.
                *connected = None;
                *connected = self.connect();
            }
            self.number.set(self.number.get().wrapping_add(1));
            if connected.as_mut().is_some_and(|fronts| exchange(fronts, self.number.get(), longest.min(AGAIN))) {
                return true;
            }
            if begin.elapsed() >= longest {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a frame with this number from each guest, and returns whether both arrive within `longest`.
fn exchange(fronts: &mut [Frontend; 2], number: u8, longest: Duration) -> bool {
    let frames = [1, 2].map(|station| {
        let mut frame = announcement(station);
        frame[20] = number;
        frame
    });
    for (front, frame) in fronts.iter_mut().zip(&frames) {
        send_plain(front, u16::from(number % 64), frame);
    }
    let (begin, mut came) = (Instant::now(), [false; 2]);
    while came != [true; 2] {
        if begin.elapsed() >= longest {
            return false;
        }
        for (at, front) in fronts.iter_mut().enumerate() {
            came[at] |= front.received().iter().any(|(_, frame)| *frame == frames[1 - at]);
            front.kick(TO_GUEST);
        }
        thread::sleep(Duration::from_micros(100));
    }
    true
}

#[test]
fn guests_whose_keeper_ended_or_looped_exchange_frames_again_and_no_other_instance_notices() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    let tunnel = service.patient_pid("sg1");
    let passes = |longest| guests.passes(longest);
    assert!(passes(PATIENCE), "{}", tail(&service.near));
    for fault in Fault::of_helpers(test_name!()) {
        let took = service.fault_of(NAME, fault, &passes);
        println!("keeper, {fault:?}: {} ms", took.as_millis());
        let words = "of processor time without a round";
        assert_eq!(service.errors_with(words), usize::from(fault == Fault::HelperLoop), "{fault:?}");
        assert!(took < BACK, "{took:?} until frames pass again");
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

/// Tests that frames pass again after a stop, a panic and the lack of memory of a process that talks to a front end.
/// The panic is that of a function whose machine code is replaced, and a limit of its addresses stands for a machine
/// without memory.
#[test]
#[cfg(target_arch = "x86_64")]
fn guests_whose_keeper_was_stopped_panicked_or_got_no_memory_exchange_frames_again() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    if segue_lab::which("nm").is_none() {
        return segue_tests::skip(test_name!(), "not installed: nm");
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let tunnel = service.patient_pid("sg1");
    let worker = service.patient_pid(NAME).unwrap();
    let keepers = helpers(worker);
    // Front ends that connect need the process.
    guests.connected.replace(None);
    sys::signal(keepers[0], libc::SIGSTOP).unwrap();
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    assert_eq!((service.patient_pid(NAME), helpers(worker)), (Some(worker), keepers), "the same processes");
    spoil(helpers(worker)[0], "segue_host::sys::poll::poll", Spoiled::Panic).unwrap();
    let begin = Instant::now();
    while service.pid(NAME).is_none_or(|now| now == worker) {
        guests.connected.replace(None);
        let _ = guests.passes(AGAIN);
        assert!(begin.elapsed() < PATIENCE, "{}", tail(&service.near));
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    // With status 1; or by an abort, where what it owned is dropped in the state in which the panic has left it.
    assert!(service.errors_with("the process that talks to the front end of ") >= 1, "{}", tail(&service.near));
    // It needs no more for other front ends, or it is replaced.
    limit_memory(helpers(service.patient_pid(NAME).unwrap())[0], Some(0));
    for _ in 0..8 {
        guests.connected.replace(None);
        assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

/// Tests that HEALTH names the process that talks to a front end where it has ended in an instance without a service,
/// and that the other guest's port goes on.
#[test]
fn a_gateway_without_a_service_goes_on_without_a_keeper_that_ended_and_says_so() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::start(&ground, &directory);
    let mut fronts = ["left", "right"].map(|name| gateway.guest(name, feature::USUAL));
    assert!(exchange(&mut fronts, 1, PATIENCE), "no frame passes");
    let stat = || Stat::read(&ground.a, gateway.program(), NAME).json().clone();
    let worker = u32::try_from(stat()["pid"].as_u64().unwrap()).unwrap();
    let keepers = helpers(worker);
    for (at, signal) in [(0, libc::SIGKILL), (1, libc::SIGABRT)] {
        sys::signal(keepers[at], signal).unwrap();
        let codes = || -> Vec<_> {
            let health = stat()["health"].take();
            health.as_array().unwrap().iter().map(|one| one["code"].as_str().unwrap().to_owned()).collect()
        };
        let begin = Instant::now();
        while codes().iter().filter(|code| *code == "process_ended").count() != at + 1 {
            assert!(begin.elapsed() < PATIENCE, "{:?}", codes());
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(stat()["pid"].as_u64(), Some(worker.into()), "it goes on");
        assert_eq!(fronts[1].is_closed(), at == 1, "the port of the other guest");
    }
}

#[test]
fn a_front_end_that_connects_while_the_end_of_another_one_is_unread_is_not_refused() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let keepers: [u32; 2] = helpers(service.patient_pid(NAME).unwrap()).try_into().expect("a process for each port");
    // Both find the end of one front end and the next one at the same time.
    let held = keepers.map(|pid| Held::new(pid).unwrap());
    drop(guests.connected.take());
    let mut fronts = guests.connect().unwrap();
    drop(held);
    let begin = Instant::now();
    while !exchange(&mut fronts, 200, AGAIN) {
        let is_refused = fronts.iter_mut().any(Frontend::is_closed);
        assert!(!is_refused && begin.elapsed() < PATIENCE, "refused: {is_refused}; {}", tail(&service.near));
    }
}

#[test]
fn errors_of_a_guests_port_end_no_process_and_cost_no_more_than_three_times_the_normal() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let worker = service.patient_pid(NAME).unwrap();
    let keepers = helpers(worker);
    let work = || {
        // Both front ends connect again, so that messages come; others are refused.
        guests.connected.replace(None);
        (0..EXCHANGES.0).for_each(|_| {
            let _ = guests.passes(EXCHANGES.1);
            let _ = guests.paths.each_ref().map(UnixStream::connect);
        });
        let _ = service.request_of(NAME, r#"{"get":"stat"}"#);
    };
    let mut failed = Vec::new();
    let processes = [("worker of guests", worker, &OF_WORKER[..]), ("keeper", keepers[0], &OF_KEEPER)];
    for ((who, pid, groups), least) in processes.into_iter().zip(LEAST) {
        let workload = Workload { who, pid, least, work: &work };
        let normal = workload.normal();
        for (at, calls) in normal.groups(groups).iter().enumerate() {
            let mut met = 0;
            for (number, error) in TRANSIENT.into_iter().enumerate() {
                // Two or three of eight in each group, other ones in the next; one with each further call.
                let (period, chosen) = if at < groups.len() { (groups.len(), at) } else { (8, at % 8) };
                if !segue_testkit::is_set("SEGUE_FULL") && number % period != chosen {
                    continue;
                }
                // A write to an event counter with room ends before any signal arrives: EINTR is the guest's doing
                // (`stop_call_blocked`).
                let failing = if error.contains("EINTR") { calls.trim_end_matches(",write") } else { calls };
                let found = workload.fails(&normal, failing, error);
                met += found.met;
                let passes = guests.passes(PATIENCE);
                let is_same = service.patient_pid(NAME) == Some(worker) && helpers(worker) == keepers;
                if found.is_costly || !passes || !is_same {
                    let words = tail(&service.near);
                    failed
                        .push(format!("{}; the same processes: {is_same}; frames pass: {passes}; {words}", found.text));
                }
                assert!(is_same, "{}", failed.join("\n"));
            }
            assert!(met > 0 || at >= groups.len(), "{who} {calls}: no error was met");
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Returns the processor time that a process has spent in the kernel, in steps of 10 ms (proc_pid_stat(5)).
fn system_time(pid: u32) -> u64 {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    line.rsplit_once(')').unwrap().1.split_whitespace().nth(12).unwrap().parse().unwrap()
}

/// Tests that the time which the kernel takes for the pages of a guest that ends is not taken from all guests of the
/// process that moves packets, which is ended after a second: that would be a guest of 8 GiB.
#[test]
fn a_guest_with_much_memory_that_ends_takes_no_time_from_the_others() {
    const LEN: u64 = 1 << 30;
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let worker = service.patient_pid(NAME).unwrap();
    let keeper = helpers(worker)[0];
    let mut fronts = guests.connected.take().unwrap();
    let memory = Frontend::over(UnixStream::pair().unwrap().0, 0).memory;
    memory.set_len(LEN).unwrap();
    let block = vec![1; 1 << 20];
    (0..LEN).step_by(block.len()).for_each(|at| memory.write_all_at(&block, at).unwrap());
    let payload = [vec![0; 8], region(1 << 40, LEN, 1 << 45, 0)].concat();
    fronts[0].send_with(message::ADD_MEM_REG, 1, &payload, &[memory.as_fd()]);
    drop(memory);
    // Once this is answered the memory is mapped.
    fronts[0].send(message::GET_QUEUE_NUM, &[]);
    let begin = Instant::now();
    while fronts[0].reply().is_none_or(|(number, _)| number != message::GET_QUEUE_NUM) {
        assert!(begin.elapsed() < PATIENCE, "no answer: {}", tail(&service.near));
        thread::sleep(Duration::from_millis(1));
    }
    let before = [worker, keeper].map(system_time);
    drop(fronts);
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    assert_eq!(service.patient_pid(NAME), Some(worker), "{}", tail(&service.near));
    let [of_worker, of_keeper] = [(worker, before[0]), (keeper, before[1])].map(|(pid, time)| system_time(pid) - time);
    println!("figure pages of a guest of 1 GiB: {of_keeper}0 ms of its own process, {of_worker}0 ms of all guests'");
    // Pages of 2 MB take next to nothing.
    assert!(of_worker < of_keeper || of_worker + of_keeper < 4, "{of_worker} and {of_keeper} steps of 10 ms");
}
