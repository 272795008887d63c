//! Tests of the live upgrade: a service continues with the program that replaces its own.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use segue_lab::{Family, LinkForm, Peer, Process, reach};
use segue_tests::capture::Directory;
use segue_tests::{Ground, test_name, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

/// Replaces the file at `path` by one with the given content, like a package manager.
fn replace(path: &Path, content: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).expect("a file");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::rename(&beside, path).expect("a file in its place");
}

/// Returns whether the process executes the file that is now at `path`.
fn executes(pid: u64, path: &Path) -> bool {
    let is = |path: PathBuf| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    is(format!("/proc/{pid}/exe").into()).is_some_and(|own| Some(own) == is(path.to_owned()))
}

/// Returns the messages for a service manager that come to the socket `path`.
fn notifications(path: &Path) -> Arc<Mutex<Vec<String>>> {
    let (socket, messages) = (UnixDatagram::bind(path).expect("a socket"), Arc::<Mutex<Vec<String>>>::default());
    let kept = Arc::clone(&messages);
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok(len) = socket.recv(&mut bytes) {
            kept.lock().expect("a lock").push(String::from_utf8_lossy(&bytes[..len]).into_owned());
        }
    });
    messages
}

/// Returns the configuration of one end: its tunnel, and at A also another tunnel on that port, a gateway, and the
/// metrics in a file.
fn file(end: Peer, place: &Path) -> String {
    let tunnel = |net: u8| {
        let (here, there) = if end == Peer::A { (1, 2) } else { (2, 1) };
        format!(
            "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"198.18.0.{here}\"\nremote = \"198.18.0.{there}\"\nencap = \"gue\"\n\
             key = {net}\nport = 6080\nencap-dport = 6080\naddr = [\"{}\"]\n",
            end.prefix(net, Family::V4)
        )
    };
    let more = format!("[[gateway]]\nin = \"in0\"\nout = \"out0\"\n[metrics]\ntextfile = \"{}\"\n", place.display());
    tunnel(1) + &tunnel(2) + if end == Peer::A { &more } else { "" }
}

#[test]
fn a_service_continues_with_the_program_that_takes_the_place_of_its_own() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let directory = Directory::new();
    let (program, near, far) = (directory.file("segue"), directory.file("near.toml"), directory.file("far.toml"));
    let content = fs::read(&ground.program).expect("the program");
    replace(&program, &content);
    for line in ["link add in0 type veth peer name in1", "link add out0 type veth peer name out1"] {
        ground.a.run("ip", &line.split_whitespace().collect::<Vec<_>>()).expect("links");
    }
    for link in ["in0", "out0"] {
        ground.a.run("ip", &["link", "set", link, "up"]).expect("a link");
    }
    let messages = notifications(&directory.file("notify"));
    let begin = |host: &segue_lab::Host, program: &Path, end, file_name: &Path| {
        fs::write(file_name, file(end, &directory.file("segue.prom"))).expect("a file");
        let mut command = host.command(program);
        command.args(["run", "-j", "-c"]).arg(file_name);
        // An hour, in which none is due.
        command.env("NOTIFY_SOCKET", directory.file("notify")).env("WATCHDOG_USEC", "7200000000");
        let mut service = Process::spawn(command, b"").expect("segue starts");
        service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        service
    };
    let mut service = begin(&ground.a, &program, Peer::A, &near);
    let mut other = begin(&ground.b, &ground.program, Peer::B, &far);
    let ends = [Peer::A, Peer::B].map(|end| end.address(1, Family::V4));
    reach((&ground.a, ends[0]), (&ground.b, ends[1]), PATIENCE).expect("the tunnel");
    let segue = |line: &str| {
        let output = ground.a.command(&program).args(line.split_whitespace()).output().expect("segue runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let json = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")) };
    let pid = |name: &str| {
        let (_, stat, _) = segue("stat -j");
        let found = json(&stat);
        let instances = found["instances"].as_array().expect("a list").iter();
        instances
            .filter(|one| one["name"] == name)
            .find_map(|one| one["pid"].as_u64())
            .unwrap_or_else(|| panic!("{name} does not run"))
    };
    let files = |pid: u64| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let index = || ground.a.run("cat", &["/sys/class/net/sg1/ifindex"]).expect("an index");
    assert_eq!(segue("set sg1 net.gro.dev.sg1.max_burst 40000").0, Some(0));
    let (own, gateway, made) = (u64::from(service.id()), pid("in0-out0"), index());

    // Nothing has taken its place.
    let before = pid("sg1");
    let (code, _, stderr) = segue("reload --upgrade");
    assert!(code == Some(0) && stderr.contains("nothing has replaced the program"), "{stderr}");
    assert_eq!(pid("sg1"), before);
    let open = files(own);

    // Twice, so that what is kept is kept again.
    for round in 1..=2u8 {
        let before = pid("sg1");
        let mut newer = content.clone();
        newer.push(round);
        replace(&program, &newer);
        assert!(!executes(own, &program));
        let mut pings = ground.b.command("ping");
        pings.args(["-q", "-n", "-i", "0.005", "-c", "600", "-W", "5", &ends[0].to_string()]);
        let mut pings = Process::spawn(pings, b"").expect("ping");
        let (code, stdout, stderr) = segue("reload --upgrade near -j");
        let done = &json(&stdout)["services"][0];
        assert_eq!(code, Some(0), "{stdout}{stderr}{}", service.last_words());
        let names = |key: &str| {
            done[key].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect::<Vec<_>>()
        };
        let lists = ["handed_over", "restarted", "kept", "failed"].map(names);
        assert_eq!(lists, [vec!["sg1"], vec!["metrics"], vec!["in0-out0"], vec![]], "{done}");
        assert!(executes(own, &program), "the service is of the new program");
        let alive = || messages.lock().expect("a lock").iter().filter(|message| *message == "WATCHDOG=1").count();
        until("not both programs told the watchdog that they work", || {
            (alive() == 2 * usize::from(round)).then_some(())
        });
        let now = pid("sg1");
        assert!(now != before && executes(now, &program), "{before} {now}");
        assert_eq!((pid("in0-out0"), index()), (gateway, made.clone()), "the gateway and the interface are the same");
        assert!(pings.wait(PATIENCE).expect("ping ends").success(), "{}", pings.stdout());
        assert!(pings.stdout().contains(" 0% packet loss"), "{}", pings.stdout());
        assert!(segue("set sg1 net.gro.dev.sg1.max_burst").1.contains("40000"), "what was set stays");
        assert!(files(own) <= open, "a descriptor is left over");
    }

    // It is a service as before: a reload, an instance that ends, the metrics.
    let (code, _, stderr) = segue("reload near");
    assert!(code == Some(0) && stderr.contains(" 3 unchanged"), "{stderr}");
    let before = pid("sg1");
    segue_tests::sys::signal(u32::try_from(before).unwrap(), 9).expect("a signal");
    until("sg1 is not started again", || (segue("stat sg1").0 == Some(0) && pid("sg1") != before).then_some(()));
    reach((&ground.a, ends[0]), (&ground.b, ends[1]), PATIENCE).expect("the tunnel");
    until("no metrics", || fs::read_to_string(directory.file("segue.prom")).ok()?.contains("sg1").then_some(()));

    // What cannot continue is refused, and nothing changes.
    for wrong in [&b"#!/bin/sh\necho 'error: too old' >&2\nexit 1\n"[..], b"no program"] {
        let (before, open) = (pid("sg1"), files(own));
        let kept = fs::read(format!("/proc/{own}/exe")).expect("the program");
        let current = directory.file("current");
        replace(&current, &kept);
        replace(&program, wrong);
        let mut command = ground.a.command(&current);
        let refused = command.args(["reload", "--upgrade"]).output().expect("segue runs");
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && text.contains("cannot continue this service"), "{text}");
        let why = if wrong == b"no program" { "cannot continue" } else { "too old" };
        assert!(text.contains(why), "{text}");
        replace(&program, &kept);
        assert_eq!((pid("sg1"), files(own)), (before, open));
    }

    for service in [&mut service, &mut other] {
        service.terminate();
        assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.last_words());
    }
    assert!(!ground.a.has_device("sg1"));
    let left = ground.a.run("ls", &["/run/segue"]).unwrap_or_default();
    assert_eq!(left.trim(), "", "nothing is left");
}

/// Returns the child processes of a process.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn a_reload_or_a_stop_that_is_requested_while_an_upgrade_waits_for_a_start_is_not_lost() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["mkfifo"]) else { return };
    let directory = Directory::new();
    let (program, near, pipe) = (directory.file("segue"), directory.file("near.toml"), directory.file("pipe"));
    let mut content = fs::read(&ground.program).expect("the program");
    replace(&program, &content);
    ground.a.run("mkfifo", &[&pipe.display().to_string()]).expect("a pipe");
    // The tunnel comes up only while the pipe of its capture has a reader.
    let reader = || File::options().read(true).write(true).open(&pipe).expect("the pipe");
    let mut read = Some(reader());
    let ends = "local = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"";
    fs::write(&near, format!("[[tunnel]]\ndev = \"sg1\"\n{ends}\ntrace = \"{}\"\n", pipe.display())).expect("a file");
    let mut command = ground.a.command(&program);
    command.args(["run", "-j", "-c"]).arg(&near);
    let mut service = Process::spawn(command, b"").expect("segue starts");
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    for (round, signal) in [(1, libc::SIGHUP), (2, libc::SIGTERM)] {
        content.push(0);
        replace(&program, &content);
        read.take();
        for pid in children(service.id()) {
            segue_tests::sys::signal(pid, libc::SIGKILL).expect("a signal");
        }
        // The service starts it again before the next request.
        until("sg1 does not end", || (service.stdout().matches("\"event\":\"ended\"").count() == round).then_some(()));
        let mut upgrade = ground.a.command(&program);
        upgrade.args(["reload", "--upgrade", "near"]);
        let mut upgrade = Process::spawn(upgrade, b"").expect("segue starts");
        // The signal comes while the upgrade waits for the tunnel; before that it would be served first, too.
        thread::sleep(Duration::from_millis(500));
        segue_tests::sys::signal(service.id(), signal).expect("a signal");
        thread::sleep(Duration::from_millis(300));
        read = Some(reader());
        let is_upgraded = upgrade.wait(PATIENCE).expect("it ends").success();
        assert_eq!(is_upgraded, signal == libc::SIGHUP, "{}{}", upgrade.stderr(), service.last_words());
    }
    assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.last_words());
    let said = service.stdout();
    let [reloaded, upgraded] = ["reloaded", "upgraded"].map(|event| said.find(&format!("\"event\":\"{event}\"")));
    assert!(reloaded.is_some() && reloaded < upgraded, "{said}");
    assert!(!ground.a.has_device("sg1"));
}
