//! Tests of faults of a thread or a process of an instance, and of interfaces that are renamed, moved or deleted while
//! they are used: packets pass again, no report calls the instance healthy in between, and no other instance is
//! affected.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_tests::capture::Directory;
use segue_tests::faults::{Fault, Forwarder, PATIENCE, Service, tail, tunnel};
use segue_tests::routed::ip;
use segue_tests::{fastpath, skip, sys, test_name};
use serde_json::Value;

/// The faults, the frequent ones twice. An instance has three of them in a minute before its restarts are delayed.
///
/// A process that the kernel ends for lack of memory gets SIGKILL; one that gets no memory ends itself.
const FAULTS: [Fault; 16] = [
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
    Fault::Worker(libc::SIGSTOP),
    Fault::Thread("health", "panic"),
    Fault::Worker(libc::SIGABRT),
    Fault::Thread("packets", "panic"),
    Fault::Supervisor(libc::SIGABRT),
];

/// Number of faults that an instance may have within a time before its restarts are delayed, as the service has it; the
/// time is longer by what passes between a fault and its notice.
const AT_ONCE: (usize, Duration) = (3, Duration::from_secs(62));

#[test]
fn packets_pass_again_soon_after_each_fault_and_no_other_instance_notices() {
    let injections = std::env::var("SEGUE_INJECTIONS").ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(50);
    let (most, span) = AT_ONCE;
    let count = u8::try_from(injections.div_ceil(most).clamp(1, 50)).unwrap();
    // The last one has no fault.
    let Some(service) = Service::start(test_name!(), count + 1, "", &[]) else { return };
    let slowest = AtomicU64::new(0);
    let times = std::sync::Mutex::new(Vec::new());
    let before = service.pids(count + 1);
    thread::scope(|scope| {
        for lane in 0..2 {
            let (service, slowest, times) = (&service, &slowest, &times);
            scope.spawn(move || {
                let mut recent = BTreeMap::<usize, VecDeque<Instant>>::new();
                for number in 0..injections {
                    // Each lane has instances of its own.
                    let at = number % usize::from(count);
                    if at % 2 != lane {
                        continue;
                    }
                    let net = u8::try_from(1 + at).unwrap();
                    let fault = FAULTS[(number + number / usize::from(count)) % FAULTS.len()];
                    let ends = recent.entry(at).or_default();
                    if ends.len() == most {
                        let oldest = ends.pop_front().unwrap();
                        thread::sleep(span.saturating_sub(oldest.elapsed()));
                    }
                    let took = service.fault(net, fault);
                    ends.push_back(Instant::now());
                    slowest.fetch_max(took.as_millis() as u64, Ordering::Relaxed);
                    times.lock().unwrap().push((took, fault));
                }
            });
        }
    });
    // A figure, not an assertion: it depends on what else the machine does.
    let mut times = times.into_inner().unwrap();
    times.sort_by_key(|(took, _)| *took);
    let p99 = times[(times.len() * 99).div_ceil(100) - 1].0;
    println!(
        "{injections} faults: p99 {} ms, slowest {} ms {:?}",
        p99.as_millis(),
        slowest.load(Ordering::Relaxed),
        times.last()
    );
    let after = service.pids(count + 1);
    assert!(after.values().all(Option::is_some), "{after:?}");
    let witness = format!("sg{}", count + 1);
    for (name, pid) in &before {
        assert_eq!(*pid == after[name], *name == witness, "{name}: only the one without a fault has its process");
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
    until("the routes are stale", service, || is_stale()?.then_some(()));
    assert!(router.passes(service, PATIENCE), "packets follow the last tables: {}", tail(&service.near));
    assert_eq!(routes(), Some(before));
    fault("none");
    until("the tables are read", service, || (!is_stale()?).then_some(()));
    until("the new route is there", service, || (routes()? > before).then_some(()));
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
        let wanted = format!("sg{net}: the {thread} did not report for");
        assert!(errors.iter().any(|error| error.contains(&wanted)), "{kind} {wanted}: {errors:?}");
    }
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
        until(&format!("{thread} {kind}"), service, || service.pid(name).filter(|pid| *pid != before));
        let how = match (kind, thread) {
            ("memory", _) => "process that moves packets was ended by signal",
            (_, "routes") => "routes did not report for",
            _ => "watch of the in-kernel path did not report for",
        };
        let (wanted, errors) = (format!("{name}: the {how}"), errors(service));
        assert!(errors.iter().any(|error| error.contains(&wanted)), "{kind} {wanted}: {errors:?}");
    };
    // The follower of routes meets its fault with the next change.
    let route = |word: &str| ip(&service.ground.a, &format!("route {word} 198.19.210.0/24 via 198.19.203.2"));
    thread::scope(|scope| {
        scope.spawn(|| {
            end(router.name, "routes", "hang", &|| route("add"));
            end(router.name, "routes", "memory", &|| route("del"));
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

#[test]
fn a_tunnel_whose_interface_is_renamed_goes_on_and_health_has_the_new_name() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    let host = &service.ground.a;
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    let pid = service.patient_pid("sg1");
    ip(host, "link set dev sg1 down");
    ip(host, "link set dev sg1 name vpn0");
    until("its new name", &service, || {
        let found = problem(&service, "sg1", "interface_down")??;
        let is_named = found["why"].as_str()?.contains("sg1 at the start");
        (is_named && found["fix"] == "sudo ip link set dev vpn0 up").then_some(())
    });
    ip(host, "link set dev vpn0 up");
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    until("no problem", &service, || problem(&service, "sg1", "interface_down")?.is_none().then_some(()));
    assert_eq!(service.patient_pid("sg1"), pid);
}

#[test]
fn gateways_and_routers_go_on_with_a_renamed_port_until_a_start_that_misses_it() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    let host = &service.ground.a;
    let rename = |from: &str, to: &str| {
        ip(host, &format!("link set dev {from} down"));
        ip(host, &format!("link set dev {from} name {to}"));
        ip(host, &format!("link set dev {to} up"));
    };
    for (Forwarder { name, .. }, port) in forwarders.iter().zip(["br-c", "rt-c"]) {
        let passes = || forwarders.iter().all(|forwarder| forwarder.passes(service, PATIENCE));
        assert!(passes(), "{}", tail(&service.near));
        let pid = service.patient_pid(name).expect("it runs");
        rename(port, "other");
        assert!(passes(), "{name}: {}", tail(&service.near));
        assert_eq!(service.patient_pid(name), Some(pid));
        sys::signal(pid, libc::SIGKILL).unwrap();
        until("the missing port", service, || is_missed(service, name, port));
        rename("other", port);
        assert!(passes(), "{name}: {}", tail(&service.near));
    }
}

#[test]
fn a_gateway_whose_port_is_moved_to_another_namespace_names_it_and_is_started_when_it_is_back() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, [bridge, router])) = &made else { return };
    let [a, b] = [&service.ground.a, &service.ground.b];
    assert!(bridge.passes(service, PATIENCE) && router.passes(service, PATIENCE), "{}", tail(&service.near));
    let others = || ["sg1", router.name].map(|name| service.patient_pid(name));
    let before = others();
    ip(a, &format!("link set dev br-c netns {}", b.net_path()));
    until("the missing port", service, || is_missed(service, bridge.name, "br-c"));
    assert!(service.passes(1, PATIENCE) && router.passes(service, PATIENCE), "{}", tail(&service.near));
    ip(b, &format!("link set dev br-c netns {}", a.net_path()));
    ip(a, "link set dev br-c up");
    assert!(bridge.passes(service, PATIENCE), "{}", tail(&service.near));
    until("no problem", service, || problem(service, bridge.name, "down")?.is_none().then_some(()));
    assert_eq!(others(), before);
}

/// Returns the problem with this code of an instance that answers, if it has one.
fn problem(service: &Service, name: &str, code: &str) -> Option<Option<Value>> {
    let stat = service.stat(name)?;
    Some(stat["health"].as_array()?.iter().find(|problem| problem["code"] == code).cloned())
}

/// Returns a value where an instance has no process, and HEALTH says that for lack of the interface `port`.
fn is_missed(service: &Service, name: &str, port: &str) -> Option<()> {
    let found = problem(service, name, "down")??;
    found["what"].as_str()?.contains(&format!("no interface {port}")).then_some(())
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

/// Returns the value that `done` finds within [`PATIENCE`].
#[track_caller]
fn until<T>(what: &str, service: &Service, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {}", tail(&service.near));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_instance_that_cannot_run_takes_no_other_with_it_and_is_named() {
    let directory = Directory::new();
    let path = directory.file("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let count = if std::env::var_os("SEGUE_FULL").is_some() { 50 } else { 8 };
    let broken = "[[gateway]]\nin = \"late0\"\nout = \"tap:tap9\"\nname = \"gw9\"\n";
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "400000")];
    let Some(service) = Service::start(test_name!(), count, broken, &env) else { return };
    let messages = || {
        let mut bytes = [0; 2000];
        let len = manager.recv(&mut bytes).expect("the service manager hears nothing");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let alive = |times: usize| {
        for _ in 0..times {
            while messages() != "WATCHDOG=1" {}
        }
    };
    let before = service.pids(count);
    assert!(before.values().all(Option::is_some), "all others run: {before:?}");
    let ready = std::iter::repeat_with(messages).find(|text| text.starts_with("READY=1")).unwrap();
    assert!(ready.ends_with("up, not up: gw9"), "{ready}");
    // It has a name and a reason, and the service is alive.
    let absent = |service: &Service| {
        let stat = service.stat("gw9")?;
        (stat["pid"] == 0 && stat["health"][0]["code"] == "down").then_some(stat)
    };
    let stat = until("gw9 is named", &service, || absent(&service));
    assert!(stat["health"][0]["what"].as_str().unwrap().contains("late0"), "{stat}");
    alive(3);
    // Its interface comes, and goes again while the gateway runs.
    let ip = |words: &[&str]| service.ground.a.run("ip", words).unwrap();
    ip(&["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
    ip(&["link", "set", "late0", "up"]);
    let pid = until("gw9 runs", &service, || service.pid("gw9"));
    ip(&["link", "del", "late0"]);
    // It may have ended by itself.
    let _ = sys::signal(pid, libc::SIGKILL);
    until("gw9 is down", &service, || absent(&service));
    alive(3);
    // A reload with one more that cannot run is refused, and changes nothing.
    let text = fs::read_to_string(service.file()).unwrap();
    fs::write(service.file(), text + &tunnel(segue_lab::Peer::A, 200, "").replace("198.18.0.1", "198.18.0.77"))
        .unwrap();
    sys::signal(service.near.id(), libc::SIGHUP).unwrap();
    until("the reload is refused", &service, || {
        service.events().into_iter().find(|event| event["event"] == "reload_refused")
    });
    alive(2);
    let after: BTreeMap<String, Option<u32>> = service.pids(count);
    let lost = before.iter().filter(|(name, pid)| after.get(*name) != Some(*pid)).count();
    println!("{lost} of {count} instances without a fault were lost");
    assert_eq!(before, after, "no other instance was lost");
    assert!(service.passes(1, PATIENCE) && service.passes(count, PATIENCE));
}
