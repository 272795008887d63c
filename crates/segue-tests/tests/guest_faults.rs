//! Tests of faults of the processes of a guest's port: the end of the one that talks to the front end, or of the one
//! that connects to it, an endless loop in them, errors of the system calls of the first and of the process that moves
//! packets, and the end of a guest with much memory. Frames pass again, and no other instance is affected. Also a front
//! end that takes the place of another one.

#[path = "common/guests.rs"]
mod common;

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, iter, thread};

use common::{Gateway, NAME, PATIENCE, announcement, send_plain};
use segue_testkit::vhost::{Frontend, TO_GUEST, feature, message, region};
use segue_tests::capture::Directory;
#[cfg(target_arch = "x86_64")]
use segue_tests::faults::limit_memory;
use segue_tests::faults::{Fault, Service, helpers, is_stopped, parent, tail};
use segue_tests::inject::{TRANSIENT, Workload};
#[cfg(target_arch = "x86_64")]
use segue_tests::spoil::{Spoiled, spoil};
use segue_tests::sys::{self, Held};
use segue_tests::{Ground, Stat, test_name, until};

/// Longest time from the end of the process until frames pass again: five times the aim.
const BACK: Duration = Duration::from_secs(15);
/// Longest wait for a frame; another one follows.
const AGAIN: Duration = Duration::from_millis(500);
/// Words of messages about the process that talks to a front end, and about the one that connects to a front end that
/// listens.
const KEEPER: &str = "the process that talks to the front end of ";
const DIALER: &str = "the process that connects to the front end of ";

/// System calls of the process that moves packets in groups: signals of guests and to them; the messages of their front
/// ends; the wait for both; the look at which ports have called.
const OF_WORKER: [&str; 4] = ["read,write", "recvmsg,sendmsg", "ppoll", "epoll_pwait"];
/// System calls of the process that talks to a front end.
const OF_KEEPER: [&str; 3] = ["recvmsg,sendmsg", "accept4,socketpair", "ppoll"];
/// System calls of the process that connects to a front end that listens: the requests of the other one, the connection
/// and the answer with it.
const OF_DIALER: [&str; 3] = ["recvfrom", "socket,connect", "sendmsg"];
/// Number of exchanges of frames while a call fails, and longest wait for each.
const EXCHANGES: (u32, Duration) = (8, Duration::from_millis(100));
/// Smallest numbers of system calls of the three processes that count as those without faults: a few for each frame and
/// for each message of a front end, and those of a process that mostly waits.
const LEAST: [u64; 3] = [500, 200, 100];
/// Number of times that front ends connect again while a call of the third one fails, and longest wait for each. Half a
/// second lies between two connections.
const CONNECTIONS: (u32, Duration) = (2, Duration::from_secs(2));

/// Two guests at the ports of a gateway, whose front ends connect again where a connection was closed.
struct Guests {
    paths: [PathBuf; 2],
    /// The socket of the left front end, where that listens and the gateway connects to it.
    listener: Option<UnixListener>,
    connected: RefCell<Option<[Frontend; 2]>>,
    /// Number of the last frames.
    number: Cell<u8>,
}

impl Guests {
    /// Connects both front ends, whose guests are ready and offer buffers. `None` where no process listens, or none has
    /// connected to the left one.
    fn connect(&self) -> Option<[Frontend; 2]> {
        let left = match &self.listener {
            // The newest connection: earlier ones may be those of a process that has ended.
            Some(listener) => iter::from_fn(|| listener.accept().ok()).last()?.0,
            None => UnixStream::connect(&self.paths[0]).ok()?,
        };
        Some([left, UnixStream::connect(&self.paths[1]).ok()?].map(ready))
    }

    /// Starts a gateway between both guests as an instance of a service, beside a tunnel. `None` where the test cannot
    /// run, which is noted under `name`.
    #[track_caller]
    fn start(name: &str, directory: &Directory) -> Option<(Service, Guests)> {
        Guests::with(name, directory, None)
    }

    /// Starts the gateway like [`Guests::start`], but its first process connects to the left front end.
    #[track_caller]
    fn dialed(name: &str, directory: &Directory) -> Option<(Service, Guests)> {
        Guests::with(name, directory, Some(listen(directory)))
    }

    /// Starts the gateway, which connects to the left front end where that has a `listener`.
    #[track_caller]
    fn with(name: &str, directory: &Directory, listener: Option<UnixListener>) -> Option<(Service, Guests)> {
        let paths = ["left", "right"].map(|name| directory.file(&format!("{name}.sock")));
        let [left, right] = paths.each_ref().map(|path| path.display());
        let role = if listener.is_some() { ",client" } else { "" };
        let ends = format!("in = \"vhost:{left}{role}\"\nout = \"vhost:{right}\"\n");
        let service = Service::start(name, 1, &format!("[[gateway]]\n{ends}name = \"{NAME}\"\n"), &[])?;
        Some((service, Guests { paths, listener, connected: RefCell::new(None), number: Cell::new(0) }))
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

/// Returns the socket of a left front end that listens, at which no call waits.
#[track_caller]
fn listen(directory: &Directory) -> UnixListener {
    let listener = UnixListener::bind(directory.file("left.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Returns a front end on a connection, whose guest is ready and offers buffers.
fn ready(stream: UnixStream) -> Frontend {
    let mut front = Frontend::over(stream, feature::USUAL);
    front.start();
    front.offer_buffers(2048);
    front
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

/// Tests that frames pass again after each end, and an endless loop, of the process that the gateway started first, and
/// that no other instance notices. `task` are words of messages about it.
#[track_caller]
fn ends_or_loops(name: &str, service: &Service, guests: &Guests, task: &str) {
    let tunnel = service.patient_pid("sg1");
    let passes = |longest| guests.passes(longest);
    assert!(passes(PATIENCE), "{}", tail(&service.near));
    for (at, fault) in Fault::of_helpers(name).into_iter().enumerate() {
        let took = service.fault_of(NAME, fault, &passes);
        println!("{task}left, {fault:?}: {} ms", took.as_millis());
        let words = "of processor time without a round";
        assert_eq!(service.errors_with(words), usize::from(fault == Fault::HelperLoop), "{fault:?}");
        assert_eq!(service.errors_with(task), at + 1, "{fault:?}: {}", tail(&service.near));
        assert!(took < BACK, "{took:?} until frames pass again");
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
fn guests_whose_keeper_ended_or_looped_exchange_frames_again_and_no_other_instance_notices() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    ends_or_loops(test_name!(), &service, &guests, KEEPER);
}

#[test]
fn guests_whose_dialer_ended_or_looped_exchange_frames_again_and_no_other_instance_notices() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::dialed(test_name!(), &directory) else { return };
    ends_or_loops(test_name!(), &service, &guests, DIALER);
}

/// Tests that frames pass again after a stop, a panic and the lack of memory of the process that the gateway started
/// first, which every new front end needs. The panic is that of a `function` that it calls for each of them, whose
/// machine code is replaced, and a limit of its addresses stands for a machine without memory.
#[track_caller]
#[cfg(target_arch = "x86_64")]
fn stops_panics_or_gets_no_memory(name: &str, service: &Service, guests: &Guests, (task, function): (&str, &str)) {
    if segue_lab::which("nm").is_none() {
        return segue_tests::skip(name, "not installed: nm");
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let tunnel = service.patient_pid("sg1");
    let worker = service.patient_pid(NAME).unwrap();
    let all = helpers(worker);
    // Front ends that connect need the process.
    guests.connected.replace(None);
    sys::signal(all[0], libc::SIGSTOP).unwrap();
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    assert_eq!((service.patient_pid(NAME), helpers(worker)), (Some(worker), all), "the same processes");
    spoil(helpers(worker)[0], function, Spoiled::Panic).unwrap();
    let begin = Instant::now();
    while service.pid(NAME).is_none_or(|now| now == worker) {
        guests.connected.replace(None);
        let _ = guests.passes(AGAIN);
        assert!(begin.elapsed() < PATIENCE, "{}", tail(&service.near));
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    // With status 1; or by an abort, where what it owned is dropped in the state in which the panic has left it.
    assert!(service.errors_with(task) >= 1, "{}", tail(&service.near));
    // It needs no more for other front ends, or it is replaced.
    limit_memory(helpers(service.patient_pid(NAME).unwrap())[0], Some(0));
    for _ in 0..8 {
        guests.connected.replace(None);
        assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn guests_whose_keeper_was_stopped_panicked_or_got_no_memory_exchange_frames_again() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::start(test_name!(), &directory) else { return };
    stops_panics_or_gets_no_memory(test_name!(), &service, &guests, (KEEPER, "segue_host::sys::poll::poll"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn guests_whose_dialer_was_stopped_panicked_or_got_no_memory_exchange_frames_again() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::dialed(test_name!(), &directory) else { return };
    stops_panics_or_gets_no_memory(test_name!(), &service, &guests, (DIALER, "segue_host::sys::socket::connect_path"));
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

/// Tests that HEALTH names the process that connects to a front end while it is stopped, which goes on then, and after
/// its end in an instance without a service, where the frames of those that are connected pass on.
#[test]
fn a_dialer_is_named_while_it_is_stopped_and_after_its_end_which_holds_up_no_frame() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    for fault in Fault::of_helpers(test_name!()) {
        let directory = Directory::new();
        let listener = listen(&directory);
        let left = format!("vhost:{},client", directory.file("left.sock").display());
        let gateway = Gateway::between(&ground, &directory, &["right"], &[left.as_str()]);
        let dialed = || {
            let (stream, _) = until("segue connects", || listener.accept().ok());
            let front = ready(stream);
            gateway.wait_for("left", "guest_ready", 1);
            front
        };
        let mut fronts = [dialed(), gateway.guest("right", feature::USUAL)];
        assert!(exchange(&mut fronts, 1, PATIENCE), "{fault:?}: no frame passes");
        let stat = || Stat::read(&ground.a, gateway.program(), NAME).json().clone();
        let is_named = |code: &str| {
            let is_it = |one: &serde_json::Value| {
                one["code"] == code && one["why"].as_str().is_some_and(|why| why.contains(DIALER))
            };
            stat()["health"].as_array().unwrap().iter().any(is_it)
        };
        let worker = u32::try_from(stat()["pid"].as_u64().unwrap()).unwrap();
        // In the order of their starts, the right front end's first.
        let dialer = helpers(worker)[1];
        // A supervisor that is stopped itself lets nothing go on.
        sys::signal(parent(worker), libc::SIGSTOP).unwrap();
        sys::signal(dialer, libc::SIGSTOP).unwrap();
        until("its stop is named", || is_named("process_stopped").then_some(()));
        let [left, right] = fronts;
        drop(left);
        gateway.wait_for("left", "guest_connected", 0);
        assert!(is_stopped(dialer) && listener.accept().is_err(), "{fault:?}: it connects though it is stopped");
        sys::signal(parent(worker), libc::SIGCONT).unwrap();
        let mut fronts = [dialed(), right];
        assert!(exchange(&mut fronts, 2, PATIENCE), "{fault:?}: no frame passes after a stop");
        assert!(!is_named("process_stopped"), "{fault:?}: it goes on");
        let how = if let Fault::Helper(signal) = fault {
            sys::signal(dialer, signal).unwrap();
            format!("was ended by signal {signal}")
        } else {
            sys::make_loop(dialer).unwrap();
            "of processor time without a round".to_owned()
        };
        until("its end is named", || is_named("process_ended").then_some(()));
        until(&format!("the supervisor says that it {how}"), || {
            let said = gateway.process.stderr();
            said.lines().any(|line| line.contains(DIALER) && line.contains(&how)).then_some(())
        });
        assert!(exchange(&mut fronts, 3, PATIENCE), "{fault:?}: no frame passes after its end");
        assert_eq!(stat()["pid"].as_u64(), Some(worker.into()), "{fault:?}: the instance goes on");
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

/// Has the calls of a process of the gateway fail while it works, group by group and error by error.
#[track_caller]
fn fails(service: &Service, guests: &Guests, workload: &Workload<'_>, groups: &[&str]) {
    let worker = service.patient_pid(NAME).unwrap();
    let (all, who, normal) = (helpers(worker), workload.who, workload.normal());
    let mut failed = Vec::new();
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
            let is_same = service.patient_pid(NAME) == Some(worker) && helpers(worker) == all;
            if found.is_costly || !passes || !is_same {
                let words = tail(&service.near);
                failed.push(format!("{}; the same processes: {is_same}; frames pass: {passes}; {words}", found.text));
            }
            assert!(is_same, "{}", failed.join("\n"));
        }
        assert!(met > 0 || at >= groups.len(), "{who} {calls}: no error was met");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
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
    let work = || {
        // Both front ends connect again, so that messages come; others are refused.
        guests.connected.replace(None);
        (0..EXCHANGES.0).for_each(|_| {
            let _ = guests.passes(EXCHANGES.1);
            let _ = guests.paths.each_ref().map(UnixStream::connect);
        });
        let _ = service.request_of(NAME, r#"{"get":"stat"}"#);
    };
    let processes = [("worker of guests", worker, &OF_WORKER[..]), ("keeper", helpers(worker)[0], &OF_KEEPER)];
    for ((who, pid, groups), least) in processes.into_iter().zip(LEAST) {
        fails(&service, &guests, &Workload { who, pid, least, work: &work }, groups);
    }
}

#[test]
fn errors_of_a_dialer_end_no_process_and_cost_no_more_than_three_times_the_normal() {
    let directory = Directory::new();
    let Some((service, guests)) = Guests::dialed(test_name!(), &directory) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    assert!(guests.passes(PATIENCE), "{}", tail(&service.near));
    let dialer = helpers(service.patient_pid(NAME).unwrap())[0];
    let work = || {
        (0..CONNECTIONS.0).for_each(|_| {
            guests.connected.replace(None);
            let _ = guests.passes(CONNECTIONS.1);
        });
    };
    let workload = Workload { who: "dialer", pid: dialer, least: LEAST[2], work: &work };
    fails(&service, &guests, &workload, &OF_DIALER);
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
