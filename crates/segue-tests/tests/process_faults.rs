//! Tests of faults of the processes of a service beside those that move packets: of `segue run` itself, of the
//! server of metrics, and of a fleet's agent. No instance that runs is lost but with its service, and what has ended
//! comes back, or HEALTH names it.
//!
//! None of them takes requests for faults. A panic is that of a function whose machine code is replaced; a limit of the
//! addresses, set from outside, stands for a machine without memory.
#![cfg(target_arch = "x86_64")]

#[path = "common/fleet.rs"]
#[allow(dead_code, reason = "each test file uses a part")]
mod fleet;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use fleet::{DEVICE, Fleet, Node, at};
use segue_lab::{LinkForm, Peer, Process, reach, which};
use segue_tests::capture::Directory;
use segue_tests::faults::{PATIENCE, Service, children, goes_on, has_ended, limit_memory, parent, tail, tunnel};
use segue_tests::inject::Traced;
use segue_tests::spoil::{Spoiled, spoil};
use segue_tests::{Ground, Stat, skip, sys, test_name, until};
use serde_json::Value;

/// The function of `segue run` that it calls in each of its rounds.
const ROUND_OF_SERVICE: &str = "segue_service::supervise::service::Service::wait";
/// The function in which the server of metrics waits for its clients.
const WAIT: &str = "segue_host::sys::poll::poll";
/// Time for which `segue run` is stopped: longer than a supervisor may be without a wait.
const STOPPED: Duration = Duration::from_secs(12);

/// Largest number of clients that the server of metrics has at a time.
const CLIENTS: usize = 32;

/// How a process ends.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Signal(i32),
    Panic,
    /// No more memory is given to it.
    Memory,
}

/// Returns a process with all of its descendants.
fn with_descendants(pid: u32) -> Vec<u32> {
    [vec![pid], children(pid).into_iter().flat_map(with_descendants).collect()].concat()
}

#[test]
fn a_start_in_which_one_tunnel_was_up_does_not_end_where_another_one_fails() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["mkfifo"]) else { return };
    let directory = Directory::new();
    let [file, peers] = ["near.toml", "peers"].map(|name| directory.file(name));
    ground.a.run("mkfifo", &[&peers.display().to_string()]).unwrap();
    let one = "[[tunnel]]\ndev = \"sg1\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    // It waits for its peers.
    let ends = "local = \"198.18.0.1\"\nlisten = \"vxlan\"";
    fs::write(&file, format!("{one}[[tunnel]]\ndev = \"sg2\"\npeers = \"{}\"\n{ends}\n", peers.display())).unwrap();
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-c"]).arg(&file);
    let mut service = Process::spawn(command, b"").unwrap();
    let pid = || {
        let output = ground.a.command(&ground.program).args(["stat", "sg1", "-j"]).output().ok()?;
        let stat: Value = serde_json::from_slice(&output.stdout).ok()?;
        stat["instances"][0]["pid"].as_u64().filter(|pid| *pid != 0).map(|pid| pid as u32)
    };
    // The service knows it, too.
    until("sg1 is not up", || service.stderr().contains("sg1 is up").then_some(()));
    let first = until("sg1 has no process", &pid);
    sys::signal(first, libc::SIGKILL).unwrap();
    until("sg1 has not ended", || (pid() != Some(first)).then_some(()));
    fs::write(&peers, "no peers").unwrap();
    until("sg1 is not started again", || {
        assert!(service.ended().is_none(), "{}", service.last_words());
        pid().filter(|pid| *pid != first)
    });
    assert!(service.stderr().contains("sg2"), "{}", service.stderr());
}

#[test]
fn a_service_that_was_killed_or_has_panicked_leaves_nothing_and_the_next_one_passes_packets() {
    let Some(mut service) = Service::start(test_name!(), 2, "", &[]) else { return };
    if segue_lab::which("nm").is_none() {
        return skip(test_name!(), "not installed: nm");
    }
    for end in [Fault::Signal(libc::SIGKILL), Fault::Panic, Fault::Signal(libc::SIGABRT)] {
        assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{end:?}: {}", tail(&service.near));
        let pid = service.near.id();
        let processes = with_descendants(pid);
        assert_eq!(processes.len(), 5, "the service, two supervisors, and what moves packets: {processes:?}");
        match end {
            Fault::Signal(signal) => sys::signal(pid, signal).unwrap(),
            _ => spoil(pid, ROUND_OF_SERVICE, Spoiled::Panic).unwrap(),
        }
        let status = service.near.wait(PATIENCE).unwrap();
        if let Fault::Panic = end {
            let is_told = service.near.stderr().contains("segue has a fault at ");
            assert!(status.code() == Some(1) && is_told, "{status:?}: {}", service.near.last_words());
        }
        let left = || processes.iter().copied().filter(|pid| !has_ended(*pid)).collect::<Vec<_>>();
        service.until("a process is left", || left().is_empty().then_some(()));
        let devices = service.ground.a.devices();
        assert!(!devices.iter().any(|device| device.starts_with("sg")), "{end:?}: {devices:?}");
        service.start_again();
    }
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
}

#[test]
fn packets_pass_while_a_service_is_stopped_and_what_ended_meanwhile_comes_back() {
    let Some(service) = Service::start(test_name!(), 3, "", &[]) else { return };
    assert!((1..=3).all(|net| service.passes(net, PATIENCE)), "{}", tail(&service.near));
    let before = service.pids(3);
    let pid = |net: u8| before[&format!("sg{net}")].expect("a process");
    let whole = service.near.id();
    sys::signal(whole, libc::SIGSTOP).unwrap();
    let begin = Instant::now();
    sys::signal(pid(2), libc::SIGKILL).unwrap();
    let supervisor = parent(pid(3));
    sys::signal(supervisor, libc::SIGSTOP).unwrap();
    while begin.elapsed() < STOPPED {
        assert!(service.passes(1, PATIENCE) && service.passes(3, PATIENCE), "{}", tail(&service.near));
        let stat = service.stat("sg2").unwrap_or_default();
        assert_ne!(stat["health"], serde_json::json!([]), "dead and well: {stat}");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!goes_on(whole) && !goes_on(supervisor), "nothing has continued them");
    sys::signal(whole, libc::SIGCONT).unwrap();
    service.until("sg2 starts again", || service.pid("sg2").filter(|now| *now != pid(2)));
    service.until("the supervisor goes on", || goes_on(supervisor).then_some(()));
    assert!((1..=3).all(|net| service.passes(net, PATIENCE)), "{}", tail(&service.near));
    for net in [1, 3] {
        assert_eq!(service.patient_pid(&format!("sg{net}")), Some(pid(net)), "{}", tail(&service.near));
    }
}

#[test]
fn a_service_without_memory_keeps_what_runs_and_starts_what_ended_once_it_gets_some() {
    let Some(service) = Service::start(test_name!(), 2, "", &[]) else { return };
    let before = service.pids(2);
    let pid = |net: u8| before[&format!("sg{net}")].expect("a process");
    let whole = service.near.id();
    // What it starts has the limit as well.
    limit_memory(whole, Some(0));
    sys::signal(pid(2), libc::SIGKILL).unwrap();
    let failed = || service.events().iter().filter(|event| event["event"] == "ended").count() >= 2;
    service.until("the start fails", || failed().then_some(()));
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    let stat = service.stat("sg2").unwrap_or_default();
    assert_ne!(stat["health"], serde_json::json!([]), "dead and well: {stat}");
    limit_memory(whole, None);
    service.until("sg2 starts again", || service.pid("sg2").filter(|now| *now != pid(2)));
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
    assert_eq!(service.patient_pid("sg1"), Some(pid(1)), "{}", tail(&service.near));
}

/// Returns what the server of metrics answers at its socket.
fn metrics(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Connects to the server of metrics, and sends the most of a request that it keeps.
fn asks_without_end(path: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(8000)).as_bytes())?;
    Ok(stream)
}

#[test]
fn the_server_of_metrics_answers_again_after_each_of_its_faults_and_no_instance_notices() {
    let directory = Directory::new();
    let path = directory.file("metrics");
    let table = format!("[metrics]\nlisten = [\"unix:{}\"]\n", path.display());
    let Some(service) = Service::start(test_name!(), 1, &table, &[]) else { return };
    if segue_lab::which("nm").is_none() {
        return skip(test_name!(), "not installed: nm");
    }
    let tunnel = service.patient_pid("sg1");
    let server = || {
        let is_it = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(b"metrics") && !has_ended(*pid)
        };
        children(service.near.id()).into_iter().find(is_it)
    };
    let answers = || {
        let text = metrics(&path).unwrap_or_default();
        text.contains("\nsegue_instance_info{name=\"sg1\",kind=\"tunnel\"} 1").then_some(())
    };
    service.until("metrics", answers);
    let first = server().expect("a server of metrics");
    sys::signal(first, libc::SIGSTOP).unwrap();
    service.until("it goes on", || goes_on(first).then_some(()));
    service.until("metrics after a stop", answers);
    assert_eq!(server(), Some(first), "it has its process");
    for end in [Fault::Signal(libc::SIGKILL), Fault::Panic, Fault::Memory, Fault::Signal(libc::SIGABRT)] {
        let pid = server().expect("a server of metrics");
        match end {
            Fault::Signal(signal) => sys::signal(pid, signal).unwrap(),
            Fault::Panic => spoil(pid, WAIT, Spoiled::Panic).unwrap(),
            Fault::Memory => limit_memory(pid, Some(0)),
        }
        // A function that panics is called with the next client. Without memory it ends if the incomplete requests of
        // as many as there may be need more than it has.
        let clients: Vec<UnixStream> = (0..CLIENTS).filter_map(|_| asks_without_end(&path).ok()).collect();
        service.until(&format!("its end: {end:?}"), || (matches!(end, Fault::Memory) || has_ended(pid)).then_some(()));
        drop(clients);
        service.until(&format!("metrics after {end:?}"), answers);
        assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}

#[test]
fn a_fleet_agent_that_was_stopped_or_has_ended_is_named_while_packets_pass_and_its_table_is_renewed_later() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let [a, mut b] = [2, 3].map(|n| Node::by_daemon(&fleet, n, ""));
    let table = |node: &Node| node.peers(&fleet).iter().filter_map(|peer| peer["remote"].as_str()).count();
    fleet::until("the nodes know one another", || [&a, &b].iter().all(|node| table(node) == 1));
    let passes = |a: &Node, b: &Node| {
        let [a, b] = [at(&a.host, &a.address()), at(&b.host, &b.address())];
        reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    };
    let is_named = |node: &Node, code: &str| {
        let stat = Stat::read(&node.host, &fleet.program, DEVICE);
        stat.json()["health"].as_array().is_some_and(|health| health.iter().any(|one| one["code"] == code))
    };
    passes(&a, &b);
    let agent = a.agent.as_ref().expect("an agent").id();
    sys::signal(agent, libc::SIGSTOP).unwrap();
    fleet::until("its stop is a problem", || is_named(&a, "fleet_stale"));
    // A node that comes now is not known yet.
    let mut c = Node::by_daemon(&fleet, 4, "");
    fleet::until("the others know the new node", || table(&b) == 2);
    assert!(table(&a) == 1 && is_named(&a, "fleet_stale"));
    passes(&a, &b);
    sys::signal(agent, libc::SIGCONT).unwrap();
    fleet::until("it is known", || table(&a) == 2 && !is_named(&a, "fleet_stale"));
    passes(&a, &c);
    for (signal, node) in [(libc::SIGKILL, &mut b), (libc::SIGABRT, &mut c)] {
        sys::signal(node.agent.as_ref().expect("an agent").id(), signal).unwrap();
        node.agent.as_mut().expect("an agent").wait(PATIENCE).unwrap();
        fleet::until("its end is a problem", || is_named(node, "fleet_ended"));
        passes(&a, node);
        node.start_agent(&fleet.program);
        fleet::until("its table is complete", || table(node) == 2 && !is_named(node, "fleet_ended"));
    }
}

/// Tests handovers whose messages the kernel does not take, from any of them on: the tunnel goes on as it was, or is
/// started anew, and no other instance notices. Two tunnels share a port, so that they are one instance, which a change
/// of one of them hands over.
#[test]
fn packets_pass_again_after_a_handover_whose_messages_fail_from_any_of_them_on() {
    let third = |more: &str| tunnel(Peer::A, 3, &format!("key = 3\n{more}")).replace("6083", "6081");
    let Some(service) = Service::start(test_name!(), 2, &third(""), &[]) else { return };
    if which("strace").is_none() {
        return skip(test_name!(), "not installed: strace");
    }
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    let (other, directory) = (service.patient_pid("sg2"), Directory::new());
    let (text, whole) = (fs::read_to_string(service.file()).unwrap(), service.near.id());
    let ends = || -> Vec<Value> {
        let mut events = service.events();
        events.retain(|event| event["event"] == "reloaded" || event["event"] == "reload_refused");
        events
    };
    let mut ttl = 10;
    // Returns the event, and how many messages the service itself has sent, and could not send.
    let mut reload = |fault: Option<&str>| {
        ttl += 1;
        fs::write(service.file(), text.replace(&third(""), &third(&format!("ttl = {ttl}")))).unwrap();
        let (before, calls) = (ends().len(), directory.file("calls"));
        let traced = Traced::attach(whole, fault.map(|fault| ("sendmsg", fault)), &calls);
        sys::signal(whole, libc::SIGHUP).unwrap();
        let end = service.until("the end of the reload", || ends().into_iter().nth(before));
        traced.detach();
        let (text, own) = (fs::read_to_string(&calls).unwrap(), format!("{whole} "));
        let own = || text.lines().filter(|line| line.starts_with(&own));
        let failed = own().filter(|line| line.contains("sendmsg") && line.ends_with("(INJECTED)")).count();
        (end, own().filter(|line| line.contains(" sendmsg(")).count(), failed)
    };
    let (end, sent, _) = reload(None);
    assert!(end["event"] == "reloaded" && end["handed_over"] == serde_json::json!(["sg1"]), "{end}");
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    // The last message is the one to begin, the first one the request for the ports.
    for from in [sent, sent - 1, 2, 1] {
        let (end, _, failed) = reload(Some(&format!("error=ENOBUFS:when={from}+")));
        assert!(failed > 0, "from {from} of {sent}: {end}");
        assert!(service.passes(1, PATIENCE), "from {from} of {sent}: {end} {}", tail(&service.near));
    }
    assert_eq!(service.patient_pid("sg2"), other);
}
