//! Tests of faults of a thread or a process of an instance: packets pass again, no report calls the instance healthy in
//! between, and no other instance is affected.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Peer, reach};
use segue_tests::capture::Directory;
use segue_tests::faults::{Fault, Flows, Forwarder, PATIENCE, Service, children, parent, tail, tunnel};
use segue_tests::routed::ip;
use segue_tests::traffic::Place;
use segue_tests::{Ground, fastpath, skip, sys, test_name};

/// The faults of tunnels, the frequent ones twice. An instance has three of them in a minute, in this order, before its
/// restarts are delayed.
///
/// A process that the kernel ends for lack of memory gets SIGKILL; one that gets no memory ends itself.
const FAULTS: [Fault; 18] = [
    Fault::Thread("packets", "panic"),
    Fault::Worker(libc::SIGKILL),
    Fault::Worker(libc::SIGSTOP),
    Fault::Supervisor(libc::SIGSTOP),
    Fault::Thread("packets", "loop"),
    Fault::Worker(libc::SIGILL),
    Fault::Thread("control", "panic"),
    Fault::Thread("packets", "memory"),
    Fault::Supervisor(libc::SIGKILL),
    Fault::Thread("signals", "panic"),
    Fault::Worker(libc::SIGSTOP),
    Fault::Thread("supervisor", "loop"),
    Fault::Worker(libc::SIGSTOP),
    Fault::Thread("health", "panic"),
    Fault::Thread("supervisor", "panic"),
    Fault::Worker(libc::SIGABRT),
    Fault::Thread("packets", "panic"),
    Fault::Supervisor(libc::SIGABRT),
];

/// The faults of bridges.
const BRIDGE: [Fault; 6] = [
    Fault::Thread("packets", "loop"),
    Fault::Thread("supervisor", "loop"),
    Fault::Worker(libc::SIGKILL),
    Fault::Thread("packets", "panic"),
    Fault::Supervisor(libc::SIGSTOP),
    Fault::Supervisor(libc::SIGKILL),
];

/// The faults of routers.
const ROUTER: [Fault; 6] = [
    Fault::Thread("routes", "panic"),
    Fault::Thread("packets", "loop"),
    Fault::Supervisor(libc::SIGKILL),
    Fault::Thread("supervisor", "loop"),
    Fault::Worker(libc::SIGSTOP),
    Fault::Thread("routes", "memory"),
];

/// Number of faults that an instance may have within a time before its restarts are delayed, as the service has it; the
/// time is longer by what passes between a fault and its notice.
const AT_ONCE: (usize, Duration) = (3, Duration::from_secs(62));
/// Longest time from a fault to packets again, five times what `make trust` asks of 99 in 100 on a machine that does
/// nothing else.
const LONGEST: Duration = Duration::from_secs(15);

/// An instance that gets faults.
struct Target<'a> {
    name: String,
    faults: &'static [Fault],
    /// Index of its first fault.
    first: usize,
    passes: Box<dyn Fn(Duration) -> bool + Sync + 'a>,
}

impl Target<'_> {
    /// Returns its fault with this number, from 0 on.
    fn fault(&self, number: usize) -> Fault {
        self.faults[(self.first + number) % self.faults.len()]
    }
}

/// Returns the instances that get faults: tunnels from 1 to `count`, and the gateways and routers.
fn targets<'a>(service: &'a Service, count: u8, forwarders: &'a [Forwarder]) -> Vec<Target<'a>> {
    let (most, _) = AT_ONCE;
    let tunnels = (1..=count).map(|net| Target {
        name: format!("sg{net}"),
        faults: &FAULTS,
        first: most * usize::from(net - 1),
        passes: Box::new(move |longest| service.passes(net, longest)),
    });
    // There are two of each.
    let forwarders = forwarders.iter().enumerate().map(|(at, forwarder)| Target {
        name: forwarder.name.to_owned(),
        faults: if forwarder.name.starts_with("bridge") { &BRIDGE } else { &ROUTER },
        first: most * (at / 2),
        passes: Box::new(move |longest| forwarder.passes(service, longest)),
    });
    tunnels.chain(forwarders).collect()
}

#[test]
fn packets_pass_again_soon_after_each_fault_and_no_other_instance_notices() {
    let injections = std::env::var("SEGUE_INJECTIONS").ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(50);
    let (most, span) = AT_ONCE;
    let count = u8::try_from(injections.div_ceil(most).saturating_sub(4).clamp(1, 46)).unwrap();
    let tables = Forwarder::TABLES.to_owned() + Forwarder::MORE_TABLES;
    let prepare = |ground: &Ground| [Forwarder::both(ground), Forwarder::more(ground)].into_iter().flatten().collect();
    // The last tunnel has no fault.
    let made: Option<(Service, Vec<Forwarder>)> = Service::prepared(test_name!(), count + 1, &tables, &[], prepare);
    let Some((service, forwarders)) = &made else { return };
    let targets = targets(service, count, forwarders);
    for target in &targets {
        assert!((target.passes)(PATIENCE), "{}: {}", target.name, tail(&service.near));
    }
    let witness = format!("sg{}", count + 1);
    let names = targets.iter().map(|target| &target.name).chain([&witness]);
    let pids = || names.clone().map(|name| (name.clone(), service.patient_pid(name))).collect::<BTreeMap<_, _>>();
    let before = pids();
    let times = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for lane in 0..2 {
            let (targets, times) = (&targets, &times);
            scope.spawn(move || {
                let mut recent = BTreeMap::<usize, VecDeque<Instant>>::new();
                for number in 0..injections {
                    // Each lane has instances of its own.
                    let at = number % targets.len();
                    if at % 2 != lane {
                        continue;
                    }
                    let target = &targets[at];
                    let fault = target.fault(number / targets.len());
                    let ends = recent.entry(at).or_default();
                    if ends.len() == most {
                        let oldest = ends.pop_front().unwrap();
                        thread::sleep(span.saturating_sub(oldest.elapsed()));
                    }
                    let took = service.fault_of(&target.name, fault, &*target.passes);
                    ends.push_back(Instant::now());
                    times.lock().unwrap().push((took, fault, &target.name));
                }
            });
        }
    });
    let mut times = times.into_inner().unwrap();
    times.sort_by_key(|(took, ..)| *took);
    let p99 = times[(times.len() * 99).div_ceil(100) - 1].0;
    let slowest = times.last().expect("a fault");
    println!("{} faults: p99 {} ms, slowest {} ms {slowest:?}", times.len(), p99.as_millis(), slowest.0.as_millis());
    assert!(slowest.0 < LONGEST, "{slowest:?}");
    let after = pids();
    assert!(after.values().all(Option::is_some), "{after:?}");
    for (name, pid) in &before {
        let is_ended = times.iter().any(|(_, fault, target)| *target == name && fault.ends());
        assert_eq!(*pid != after[name], is_ended, "{name}: each one with a fault that ends it has another process");
    }
}

#[test]
fn gateways_and_routers_pass_packets_again_after_each_fault() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    let tunnel = service.patient_pid("sg1");
    thread::scope(|scope| {
        for forwarder in forwarders {
            scope.spawn(move || {
                let passes = |longest| forwarder.passes(service, longest);
                assert!(passes(PATIENCE), "{}: {}", forwarder.name, tail(&service.near));
                for fault in [
                    Fault::Thread("packets", "panic"),
                    Fault::Worker(libc::SIGSTOP),
                    Fault::Thread("packets", "memory"),
                    Fault::Worker(libc::SIGKILL),
                ] {
                    service.fault_of(forwarder.name, fault, &passes);
                }
            });
        }
    });
    assert_eq!(service.patient_pid("sg1"), tunnel);
}

#[test]
fn a_router_that_hears_of_no_routes_says_so_until_it_has_read_the_tables_again() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, [_, router])) = &made else { return };
    let fault = |kind: &str| {
        let request = format!(r#"{{"fault":{{"thread":"routes","kind":"{kind}"}}}}"#);
        let answer = service.request_of(router.name, &request).expect("an answer");
        assert!(answer.get("error").is_none(), "{answer}");
    };
    let routes = || service.stat(router.name)?["workers"][0]["routes"].as_u64();
    let is_stale = || {
        let stat = service.stat(router.name)?;
        Some(stat["health"].as_array()?.iter().any(|complaint| complaint["code"] == "stale_routes"))
    };
    assert!(router.passes(service, PATIENCE), "{}", tail(&service.near));
    assert_eq!(is_stale(), Some(false));
    let before = routes().expect("a number of routes");
    fault("fail");
    ip(&service.ground.a, "route add 198.51.100.0/24 via 198.19.203.2");
    service.until("the routes are stale", || is_stale()?.then_some(()));
    assert!(router.passes(service, PATIENCE), "packets follow the last tables: {}", tail(&service.near));
    assert_eq!(routes(), Some(before));
    fault("none");
    service.until("the tables are read", || (!is_stale()?).then_some(()));
    service.until("the new route is there", || (routes()? > before).then_some(()));
}

/// Returns how a thread beside the packets is told that has such a fault. A loop uses three seconds of processor time
/// long before ten have passed, unless other programs take the processors.
fn words(kind: &str) -> &'static [&'static str] {
    match kind {
        "loop" => &["used ", "did not report for "],
        _ => &["did not report for "],
    }
}

#[test]
fn a_thread_that_hangs_or_loops_beside_the_packets_is_ended_after_its_time() {
    let Some(service) = Service::start(test_name!(), 8, "", &[]) else { return };
    let other = service.patient_pid("sg2");
    // All at once, since each has its ten seconds.
    let faults = [
        (1, "packets", "hang", "packet loop"),
        (3, "control", "hang", "control socket"),
        (4, "signals", "hang", "signals"),
        (5, "health", "hang", "watch of HEALTH"),
        (6, "control", "loop", "control socket"),
        (7, "signals", "loop", "signals"),
        (8, "health", "loop", "watch of HEALTH"),
    ];
    thread::scope(|scope| {
        let service = &service;
        for (net, thread, kind, _) in faults {
            scope.spawn(move || service.fault(net, Fault::Thread(thread, kind)));
        }
    });
    assert_eq!(service.patient_pid("sg2"), other);
    let errors = errors(&service);
    for (net, _, kind, thread) in faults {
        let wanted = format!("sg{net}: the {thread} ");
        let words = words(kind);
        let is_told = |error: &String| words.iter().any(|words| error.contains(&(wanted.clone() + words)));
        assert!(errors.iter().any(is_told), "{kind} {wanted}: {errors:?}");
    }
}

#[test]
fn flows_of_both_workers_pass_again_after_each_fault_of_the_second_one() {
    let tables = Forwarder::TABLES.replace("name = \"bridge\"\n", "name = \"bridge\"\nworkers = 2\n");
    let made = Service::with_keys(test_name!(), (5, "workers = 2"), &tables, &[], Forwarder::both);
    let Some((service, [bridge, _])) = &made else { return };
    let ground = &service.ground;
    let of_tunnel = |net: u8| {
        let place = |end: Peer, host| Place { host, address: end.address(net, Family::V4) };
        (
            format!("sg{net}"),
            ["udp".to_owned(), format!("sg{net}")],
            [place(Peer::A, &ground.a), place(Peer::B, &ground.b)],
        )
    };
    let of_bridge = ("bridge".to_owned(), ["br-b", "br-c"].map(str::to_owned), bridge.ends(ground));
    let is_passed = |(name, ports, ends): (String, [String; 2], [Place<'_>; 2])| {
        assert!(reach((ends[0].host, ends[0].address), (ends[1].host, ends[1].address), PATIENCE).is_ok(), "{name}");
        let flows = Flows::between(ends);
        let shares = || {
            assert!(flows.pass(PATIENCE), "{name}: {}", tail(&service.near));
            let stat = service.stat(&name)?;
            let received =
                |worker: usize, port: &String| stat["workers"][worker]["ports"][port]["receive"]["packets"].as_u64();
            [0, 1].iter().all(|worker| ports.iter().all(|port| received(*worker, port) > Some(0))).then_some(())
        };
        service.until(&format!("both workers of {name}"), shares);
        (name.clone(), flows)
    };
    let witness = service.patient_pid("sg5");
    let faults = [
        (of_tunnel(1), "panic", "segue has a fault at "),
        (of_tunnel(2), "memory", "the process that moves packets was ended by signal "),
        (of_tunnel(3), "loop", "the packet loop of worker 1 used "),
        (of_tunnel(4), "hang", "the packet loop of worker 1 did not report for "),
        (of_bridge, "loop", "the packet loop of worker 1 used "),
    ];
    thread::scope(|scope| {
        for (instance, kind, words) in faults {
            scope.spawn(move || {
                let (name, flows) = is_passed(instance);
                let passes = |longest| flows.pass(longest);
                service.fault_of(&name, Fault::Thread("worker1", kind), &passes);
                let (wanted, errors) = (format!("{name}: {words}"), errors(service));
                assert!(errors.iter().any(|error| error.contains(&wanted)), "{wanted}: {errors:?}");
                service.fault_of(&name, Fault::Worker(libc::SIGSTOP), &passes);
            });
        }
    });
    assert_eq!(service.patient_pid("sg5"), witness);
}

#[test]
fn a_supervisor_that_panics_loops_hangs_or_gets_no_memory_is_replaced_by_its_service() {
    let Some(service) = Service::start(test_name!(), 5, "", &[]) else { return };
    let witness = service.patient_pid("sg5");
    let faults = [
        (1, "panic", &["segue has a fault at "][..]),
        // By the abort of the C library: musl's is a fault of memory where its signal is refused.
        (2, "memory", &["has ended (signal: 6", "has ended (signal: 11"]),
        (3, "loop", &["the supervisor used "]),
        (4, "hang", &["the supervisor did not look after it for "]),
    ];
    thread::scope(|scope| {
        for (net, kind, _) in faults {
            let service = &service;
            scope.spawn(move || {
                let took = service.fault(net, Fault::Thread("supervisor", kind));
                assert!(kind != "hang" || took >= Duration::from_secs(10), "{took:?}");
            });
        }
    });
    assert_eq!(service.patient_pid("sg5"), witness);
    let errors = errors(&service);
    for (net, kind, words) in faults {
        let name = format!("sg{net}");
        let is_told = |error: &String| error.starts_with(&name) && words.iter().any(|words| error.contains(words));
        assert!(errors.iter().any(is_told), "{kind} {name} {words:?}: {errors:?}");
    }
}

/// Returns the thread of this name of a process.
fn thread_of(pid: u32, name: &str) -> Option<u32> {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let named =
        tasks.find(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|it| it.trim_end() == name))?;
    named.file_name().to_str()?.parse().ok()
}

#[test]
fn a_process_that_ends_long_after_its_instance_is_collected() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    let worker = service.patient_pid("sg1").unwrap();
    let supervisor = parent(worker);
    let whole = parent(supervisor);
    thread::scope(|scope| {
        // A thread that is traced lets its process end when it is released, at the end of the tracing thread.
        scope.spawn(|| {
            let _held = match sys::Held::new(thread_of(worker, "health").unwrap()) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return skip(test_name!(), "ptrace is not allowed here");
                }
                held => held.unwrap(),
            };
            [supervisor, worker].into_iter().for_each(|pid| sys::signal(pid, libc::SIGKILL).unwrap());
            service.until("another process", || service.pid("sg1").filter(|now| *now != worker));
            assert!(children(whole).contains(&worker), "it had ended");
        });
    });
    service.until("its end", || (!children(whole).contains(&worker)).then_some(()));
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
}

#[test]
fn a_service_that_loops_does_not_say_that_it_is_alive_and_packets_pass_meanwhile() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip(test_name!(), "the registers of this architecture are not known to the test");
    }
    let directory = Directory::new();
    let (manager, env) = manager(&directory);
    let Some(service) =
        Service::start(test_name!(), 1, "", &env.each_ref().map(|(name, value)| (*name, value.as_str())))
    else {
        return;
    };
    while manager.recv_timeout(PATIENCE).expect("it is alive") != "WATCHDOG=1" {}
    sys::make_loop(service.near.id()).unwrap();
    // Some messages may be from before.
    let is_alive = (0..100).all(|_| manager.recv_timeout(4 * WATCHDOG).is_ok());
    assert!(!is_alive, "it says that it is alive");
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
}

#[test]
fn a_thread_that_gets_no_memory_ends_its_process_at_once_whichever_it_is() {
    let Some(service) = Service::start(test_name!(), 5, "", &[]) else { return };
    let other = service.patient_pid("sg5");
    let threads = ["packets", "control", "signals", "health"];
    thread::scope(|scope| {
        let service = &service;
        for (net, thread) in (1..).zip(threads) {
            scope.spawn(move || service.fault(net, Fault::Thread(thread, "memory")));
        }
    });
    assert_eq!(service.patient_pid("sg5"), other);
    let errors = errors(&service);
    for (net, thread) in (1..).zip(threads) {
        // The supervisor would end it as well, after its time.
        let wanted = format!("sg{net}: the process that moves packets was ended by signal ");
        assert!(errors.iter().any(|error| error.contains(&wanted)), "{thread} {wanted}: {errors:?}");
    }
}

#[test]
fn a_thread_that_follows_the_kernel_is_ended_where_it_hangs_loops_or_gets_no_memory() {
    const IN_KERNEL: &str =
        "[[tunnel]]\ndev = \"sgk\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nfastpath = \"require\"\n";
    let tables = Forwarder::TABLES.to_owned() + IN_KERNEL;
    let made = Service::prepared(test_name!(), 1, &tables, &[], Forwarder::both);
    let Some((service, [_, router])) = &made else { return };
    if let Some(why) = fastpath::missing(&service.ground) {
        return skip(test_name!(), &why);
    }
    let tunnel = service.patient_pid("sg1");
    let end = |name: &str, thread: &str, kind: &str, wakes: &dyn Fn()| {
        let before = service.patient_pid(name).unwrap_or_else(|| panic!("{name}: {}", tail(&service.near)));
        let request = format!(r#"{{"fault":{{"thread":"{thread}","kind":"{kind}"}}}}"#);
        let answer = service.request_of(name, &request).expect("an answer");
        assert!(answer.get("error").is_none(), "{answer}");
        wakes();
        service.until(&format!("{thread} {kind}"), || service.pid(name).filter(|pid| *pid != before));
        let (who, words): (_, &[&str]) = match (kind, thread) {
            ("memory", _) => ("process that moves packets", &["was ended by signal"]),
            (_, "routes") => ("routes", words(kind)),
            _ => ("watch of the in-kernel path", words(kind)),
        };
        let errors = errors(service);
        let is_told = |error: &String| words.iter().any(|words| error.contains(&format!("{name}: the {who} {words}")));
        assert!(errors.iter().any(is_told), "{kind} {who}: {errors:?}");
    };
    // The follower of routes meets its fault with the next change.
    let route = |word: &str| ip(&service.ground.a, &format!("route {word} 198.19.210.0/24 via 198.19.203.2"));
    thread::scope(|scope| {
        scope.spawn(|| {
            end(router.name, "routes", "hang", &|| route("add"));
            end(router.name, "routes", "memory", &|| route("del"));
            end(router.name, "routes", "loop", &|| route("add"));
        });
        scope.spawn(|| {
            end("sgk", "fastpath", "loop", &|| ());
            end("sgk", "fastpath", "memory", &|| ());
        });
    });
    assert!(router.passes(service, PATIENCE) && service.passes(1, PATIENCE), "{}", tail(&service.near));
    assert_eq!(service.patient_pid("sg1"), tunnel);
}

#[test]
fn a_signal_of_a_failed_instruction_ends_the_process_that_moves_packets() {
    let Some(service) = Service::start(test_name!(), 3, "", &[]) else { return };
    let other = service.patient_pid("sg3");
    let signals = [(1, libc::SIGSEGV), (2, libc::SIGBUS)];
    for (net, signal) in signals {
        service.fault(net, Fault::Worker(signal));
    }
    assert_eq!(service.patient_pid("sg3"), other);
    let errors = errors(&service);
    for (net, signal) in signals {
        let wanted = format!("sg{net}: the process that moves packets was ended by signal {signal}");
        assert!(errors.iter().any(|error| error.contains(&wanted)), "{wanted}: {errors:?}");
    }
}

/// Returns the messages of the errors that the service has reported.
fn errors(service: &Service) -> Vec<String> {
    let events = service.events();
    events.iter().filter_map(|event| event["error"]["message"].as_str().map(str::to_owned)).collect()
}

#[test]
fn faults_of_one_instance_are_requested_only_where_it_was_started_for_that() {
    let Some(service) = Service::start(test_name!(), 1, "", &[("SEGUE_FAULTS", "0")]) else { return };
    let pid = service.patient_pid("sg1");
    let answer = service.request_of("sg1", r#"{"fault":{"thread":"packets","kind":"panic"}}"#).unwrap();
    assert_eq!(answer["error"]["kind"], "usage", "{answer}");
    assert!(service.passes(1, PATIENCE));
    assert_eq!(service.patient_pid("sg1"), pid);
}

/// The time after which the service manager ends a service that says nothing.
const WATCHDOG: Duration = Duration::from_millis(400);

/// Returns the messages to a service manager, which takes each at once, and the environment in which a service reports
/// to it.
fn manager(directory: &Directory) -> (Receiver<String>, [(&'static str, String); 2]) {
    let path = directory.file("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let (sender, messages) = channel();
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok(len) = socket.recv(&mut bytes)
            && sender.send(String::from_utf8_lossy(&bytes[..len]).into_owned()).is_ok()
        {}
    });
    let path = path.to_str().expect("a path").to_owned();
    (messages, [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())])
}

#[test]
fn an_instance_that_cannot_run_takes_no_other_with_it_and_is_named() {
    let directory = Directory::new();
    let (manager, env) = manager(&directory);
    let count = if segue_testkit::is_set("SEGUE_FULL") { 50 } else { 8 };
    let broken = "[[gateway]]\nin = \"late0\"\nout = \"tap:tap9\"\nname = \"gw9\"\n";
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let Some(service) = Service::start(test_name!(), count, broken, &env) else { return };
    let message = || manager.recv_timeout(PATIENCE).expect("the service manager hears nothing");
    let alive = |times: usize| {
        // What came before says nothing of now.
        manager.try_iter().for_each(drop);
        for _ in 0..times {
            while message() != "WATCHDOG=1" {}
        }
    };
    let before = service.pids(count);
    assert!(before.values().all(Option::is_some), "all others run: {before:?}");
    let ready = std::iter::repeat_with(message).find(|text| text.starts_with("READY=1")).unwrap();
    assert!(ready.ends_with("up, not up: gw9"), "{ready}");
    // It has a name and a reason, and the service is alive.
    let absent = |service: &Service| {
        let stat = service.stat("gw9")?;
        (stat["pid"] == 0 && stat["health"][0]["code"] == "down").then_some(stat)
    };
    let stat = service.until("gw9 is named", || absent(&service));
    assert!(stat["health"][0]["what"].as_str().unwrap().contains("late0"), "{stat}");
    alive(3);
    // Its interface comes, and goes again while the gateway runs.
    let ip = |words: &[&str]| service.ground.a.run("ip", words).unwrap();
    ip(&["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
    ip(&["link", "set", "late0", "up"]);
    let pid = service.until("gw9 runs", || service.pid("gw9"));
    ip(&["link", "del", "late0"]);
    // It may have ended by itself.
    let _ = sys::signal(pid, libc::SIGKILL);
    service.until("gw9 is down", || absent(&service));
    alive(3);
    // A reload with one more that cannot run is refused, and changes nothing.
    let text = fs::read_to_string(service.file()).unwrap();
    fs::write(service.file(), text + &tunnel(Peer::A, 200, "").replace("198.18.0.1", "198.18.0.77")).unwrap();
    sys::signal(service.near.id(), libc::SIGHUP).unwrap();
    service.until("the reload is refused", || {
        service.events().into_iter().find(|event| event["event"] == "reload_refused")
    });
    alive(2);
    let after: BTreeMap<String, Option<u32>> = service.pids(count);
    let lost = before.iter().filter(|(name, pid)| after.get(*name) != Some(*pid)).count();
    println!("{lost} of {count} instances without a fault were lost");
    assert_eq!(before, after, "no other instance was lost");
    assert!(service.passes(1, PATIENCE) && service.passes(count, PATIENCE));
}
