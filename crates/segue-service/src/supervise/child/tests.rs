use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc;

use segue_control::protocol::Failure;
use serde::Deserialize;

use super::*;
use crate::supervise::spec::{InstancePlan, Kind as InstanceKind};

/// Returns an instance whose process is a shell with this script.
fn instance(script: &str) -> Instance {
    let spec = InstanceSpec {
        kind: InstanceKind::Tunnel,
        name: "sg0".to_owned(),
        tokens: Vec::new(),
        assignments: Vec::new(),
        header: 0..0,
        plan: InstancePlan::Tunnels(Vec::new()),
        unresolved: None,
    };
    let (line, stdin) = Line::pair().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script]).process_group(0).stdin(Stdio::from(stdin)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut instance = Instance::new(spec);
    instance.process = Some(Process::new(Handle::Started(child), stdout, line));
    instance
}

/// Reads until the process has ended; returns the number of events before that, and the reason.
fn end(instance: &mut Instance) -> (usize, Error) {
    let mut said = 0;
    loop {
        if let Some(error) = instance.read(&mut |_| said += 1) {
            return (said, error);
        }
    }
}

#[test]
fn a_reported_message_has_the_name_of_the_instance_once() {
    let other = Error::new(Kind::System, "sg0 is a port of br0", "ip -br link");
    let own = Error::new(Kind::InUse, "sg0 is already running", "segue stat sg0").names_instance();
    let reported = [other, own].map(|error| {
        let value = error.json();
        failure("sg0", Failure::deserialize(&value["error"]).unwrap()).message
    });
    assert_eq!(reported, ["sg0: sg0 is a port of br0", "sg0 is already running"]);
}

#[test]
fn a_line_without_an_end_ends_its_process() {
    let mut lines = instance("for n in 1 2 3; do echo '{\"event\":\"x\"}'; done; printf '{'; exit 3");
    let (said, error) = end(&mut lines);
    assert_eq!((said, error.message.as_str()), (3, "sg0 has ended (exit status: 3)"));
    let mut within = instance("printf '%060000d\\n' 0 | tr 0 x; exit 3");
    let (said, error) = end(&mut within);
    assert_eq!((said, error.message.as_str()), (0, "sg0 has ended (exit status: 3)"));
    for script in ["while :; do printf '%01000d' 0; done", "printf '%0300000d' 0 | tr 0 x; sleep 5; exit 3"] {
        let (said, error) = end(&mut instance(script));
        assert_eq!((said, error.message.as_str()), (0, "sg0 does not answer as an instance does"), "{script}");
    }
}

#[test]
fn a_line_that_is_no_event_ends_its_process() {
    let begin = r#"{"event":"set","changed":[{"name":"","before":0,"value":["#;
    let first = r#"echo "a warning"; echo '{"event":"x"}'"#;
    let dense =
        format!("{first}; printf '{begin}'; yes '{{}},' | head -n 12000 | tr -d '\n'; echo '0]}}]}}'; exec sleep 1000");
    for (script, said_before, why) in
        [(dense.as_str(), 1, "too much memory"), (r#"echo '{"event":7}'; exec sleep 1000"#, 0, "invalid type")]
    {
        let (said, error) = end(&mut instance(script));
        assert_eq!((said, error.message.as_str()), (said_before, "sg0 does not answer as an instance does"));
        assert!(error.why.as_ref().is_some_and(|text| text.contains(why)), "{error:?}");
    }
}

#[test]
fn the_first_faults_of_a_minute_restart_at_once_and_later_ones_after_growing_pauses() {
    let mut instance = instance("exit 0");
    let _ = end(&mut instance);
    instance.faults.clear();
    let error = Error::new(Kind::System, "a fault", "none");
    let mut pause = |was_up: bool, absent: usize| {
        instance.is_one_of(absent);
        instance.put_off(was_up, &error);
        instance.again.unwrap().saturating_duration_since(Instant::now()).as_millis().div_ceil(1000)
    };
    assert_eq!([true; 10].map(|was_up| pause(was_up, 1)), [0, 0, 0, 2, 4, 8, 16, 30, 30, 30]);
    // What keeps an instance from starting may be over soon, of several too; of many each waits longer.
    assert_eq!([1, 2, 5, 16, 17, 1000].map(|absent| pause(false, absent)), [2, 2, 2, 2, 4, 30]);
}

#[test]
fn a_successor_that_does_not_begin_once_it_was_told_to_is_ended() {
    let mut instance = instance("echo '{\"event\":\"successor\"}'; exec sleep 1000");
    while instance.state() != Some(&State::IsReady) {
        assert!(instance.read(&mut |_| ()).is_none());
    }
    let began = Instant::now().checked_sub(START).expect("a machine that is up for longer");
    instance.process.as_mut().unwrap().began = began;
    // A handover has a limit of its own.
    instance.is_quiet = true;
    instance.tend();
    assert!(instance.process.as_ref().unwrap().died.is_none());
    instance.is_quiet = false;
    assert!(instance.attention().is_some_and(|due| due <= Instant::now()));
    instance.tend();
    assert_eq!(end(&mut instance).1.message, late("sg0").message);
}

#[test]
fn a_process_that_goes_on_after_it_has_said_that_it_is_down_is_ended() {
    let mut instance = instance("echo '{\"event\":\"down\"}'; exec sleep 1000");
    while !matches!(instance.state(), Some(State::IsDown(_))) {
        assert!(instance.read(&mut |_| ()).is_none());
    }
    instance.tend();
    let longest = instance.patience();
    let process = instance.process.as_mut().unwrap();
    assert!(process.died.is_none(), "it has {longest:?} to end");
    process.down = Some(Instant::now().checked_sub(longest).expect("a machine that is up for longer"));
    assert!(instance.attention().is_some_and(|due| due <= Instant::now()));
    instance.tend();
    assert_eq!(end(&mut instance).1.message, lingering("sg0").message);
}

#[test]
fn a_process_that_closes_its_output_and_goes_on_is_ended() {
    let (ends, ended) = mpsc::channel();
    std::thread::spawn(move || ends.send(end(&mut instance("exec >&-; exec sleep 1000")).1.message));
    let message = ended.recv_timeout(Duration::from_secs(60)).expect("it is not waited for");
    assert!(message.contains("signal: 9"), "{message}");
}

#[test]
fn what_a_dead_process_left_behind_is_killed() {
    // The first process ends, and another one keeps its output open.
    let mut instance = instance("sleep 60 & exit 0");
    let begin = Instant::now();
    while instance.due().is_none() {
        instance.tend();
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    while instance.process.as_ref().is_some_and(|process| process.died.is_none()) {
        instance.tend();
    }
    // Its number is not free before the others are killed.
    let pid = instance.process.as_ref().unwrap().child.id();
    std::thread::sleep(GRACE + Duration::from_millis(10));
    assert!(std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(" Z ")), "{pid}");
    instance.tend();
    let (_, error) = end(&mut instance);
    assert_eq!(error.message, "sg0 has ended (exit status: 0)");
}

#[test]
fn what_closes_the_output_of_its_instance_and_goes_on_is_killed() {
    let mut instance = instance("exec sleep 1000");
    let group = instance.process.as_ref().unwrap().child.id();
    let mut other = Command::new("sleep").arg("60").process_group(group).stdout(Stdio::null()).spawn().unwrap();
    instance.signal(libc::SIGTERM);
    let (_, error) = end(&mut instance);
    assert!(error.message.contains("signal: 15"), "{}", error.message);
    let left = process::kill_group(group, 0);
    assert!(left.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)), "{left:?}");
    assert!(other.wait().is_err(), "its end was read with that of its group");
}

/// Longest wait for what happens within two seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns an instance whose process ignores SIGTERM, once it does.
fn obstinate(script: &str) -> Instance {
    let mut instance = instance(&format!("trap '' TERM; echo; {script}"));
    assert!(instance.read(&mut |_| ()).is_none());
    instance
}

/// Stops the instance in a thread of its own; returns the names of the events meanwhile.
fn stopped(mut instance: Instance, patience: Duration, mut notify: Notify) -> Vec<String> {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let mut events = Vec::new();
        instance.stop(patience, &mut notify, &mut |said| {
            events.push(said.head.event.clone());
            // A process that goes on has filled its pipe again before all of this is read.
            thread::sleep(Duration::from_micros(1));
        });
        assert!(!instance.runs());
        let _ = done.send(events);
    });
    is_done.recv_timeout(PATIENCE).expect("the instance is not stopped")
}

#[test]
fn a_process_that_always_has_something_to_say_is_stopped_in_time() {
    for script in ["exec yes x", "exec yes '{\"event\":\"x\"}'"] {
        for patience in [Duration::ZERO, Duration::from_millis(200)] {
            stopped(obstinate(script), patience, Notify::to(None, None));
        }
    }
}

#[test]
fn a_killed_process_has_said_what_it_wrote_before() {
    // It writes both in one call.
    let last = instance("printf '{\"event\":\"a\"}\\n{\"event\":\"b\"}\\n'; exec sleep 1000");
    let ready = sys::poll(&[(last.fd().unwrap(), sys::Want::Read)], PATIENCE).unwrap();
    assert_eq!(ready, [true]);
    assert_eq!(stopped(last, Duration::ZERO, Notify::to(None, None)), ["a", "b"]);
}

#[test]
fn a_process_that_says_too_much_is_read_later_and_its_last_event_is_heard() {
    let flood = "trap 'kill $!; wait $!; echo; echo \"{\\\"event\\\":\\\"last\\\"}\"; exit 0' TERM; yes '{\"event\":\"x\"}' & wait";
    let mut flood = instance(flood);
    let begin = Instant::now();
    let mut said = 0;
    for _ in 0..2 {
        while flood.fd().is_some() {
            assert!(begin.elapsed() < PATIENCE, "{said} events were read in one go");
            assert!(flood.read(&mut |_| said += 1).is_none());
        }
        let later = flood.attention().unwrap();
        assert!(said >= OUTPUT[0][0] && later <= Instant::now() + PERIOD, "{said} events");
        thread::sleep(later.saturating_duration_since(Instant::now()));
        assert!(flood.fd().is_some() && flood.attention().is_none_or(|at| at > later));
    }
    let events = stopped(flood, PATIENCE, Notify::to(None, None));
    assert_eq!(events.last().map(String::as_str), Some("last"), "of {}", events.len());
}

#[test]
fn the_service_manager_hears_that_the_service_is_alive_while_an_instance_does_not_end() {
    let address = SocketAddr::from_abstract_name(format!("segue-alive-{}", std::process::id())).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    manager.set_nonblocking(true).unwrap();
    // Of both instances one after the other, as in a reload.
    let mut notify = Notify::to(Some(address), Some(Duration::from_millis(500)));
    for round in 1..=2 {
        let mut mute = obstinate("exec sleep 1000");
        // Eight messages: the kernel queues ten.
        mute.stop(Duration::from_secs(4), &mut notify, &mut |_| ());
        let mut bytes = [0; 64];
        let messages = std::iter::from_fn(|| manager.recv(&mut bytes).ok().map(|len| bytes[..len] == *b"WATCHDOG=1"));
        let messages: Vec<bool> = messages.collect();
        assert!(messages.len() >= 2 && messages.iter().all(|is_alive| *is_alive), "in round {round}: {messages:?}");
    }
}
