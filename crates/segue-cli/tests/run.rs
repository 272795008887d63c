//! Tests of `segue run`: several instances of a file, and a reload that touches only instances that differ.

mod common;
#[path = "common/numbered.rs"]
mod numbered;
#[path = "common/service.rs"]
mod service;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, SEGUE, in_namespace_at, segue};
use segue_lab::{Family, Host, LinkForm, Peer, Process};
use serde_json::Value;
use service::{PATIENCE, Pair};

/// Returns the configuration of a tunnel of network `net`.
fn tunnel(end: Peer, net: u8, more: &str) -> String {
    let (local, remote) = (end.address(0, Family::V4), end.other().address(0, Family::V4));
    format!(
        "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\nport = {port}\n\
         encap-dport = {port}\naddr = \"{address}\"\n{more}\n",
        port = 6080 + u16::from(net),
        address = end.prefix(net, Family::V4),
    )
}

#[track_caller]
fn pair(file: &str, env: &[(&str, &str)]) -> Option<Pair> {
    Pair::with(file, &tunnel(Peer::B, 1, ""), env)
}

#[test]
fn a_reload_under_load_loses_no_packet_of_what_stays_the_same() {
    let base = tunnel(Peer::A, 1, "");
    let Some(pair) = pair(&(base.clone() + &tunnel(Peer::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(1000);
    let pid = |stat: &[(String, u64)], name: &str| stat.iter().find(|(n, _)| n == name).map(|(_, pid)| *pid);
    let first = pair.stat();
    assert_eq!(first.len(), 2);

    // The file is unchanged.
    let same = pair.reload(&(base.clone() + &tunnel(Peer::A, 2, "")));
    assert_eq!((&same["event"], same["unchanged"].as_array().map(Vec::len)), (&"reloaded".into(), Some(2)), "{same}");
    stream.pass(500);
    // sg2 changes, sg3 is new, and a knob of sg1, which is under load, is set.
    let knob = base.clone() + "net.inet.udp.gso = 0\n";
    let done = pair.reload(&(knob.clone() + &tunnel(Peer::A, 2, "ttl = 9") + &tunnel(Peer::A, 3, "")));
    assert_eq!(
        (&done["knobs"], &done["restarted"], &done["started"]),
        (&["sg1"].into(), &["sg2"].into(), &["sg3"].into())
    );
    assert_eq!(pair.knob("sg1", "net.inet.udp.gso"), "0");
    stream.pass(500);
    let second = pair.stat();
    assert_eq!(pid(&second, "sg1"), pid(&first, "sg1"), "the same process goes on");
    assert_ne!(pid(&second, "sg2"), pid(&first, "sg2"));
    assert!(pid(&second, "sg3").is_some());
    // sg2 and sg3 are removed, and the knob gets its default back.
    let done = pair.reload(&base);
    assert_eq!((&done["stopped"], &done["knobs"]), (&["sg2", "sg3"].into(), &["sg1"].into()), "{done}");
    assert_eq!(pair.knob("sg1", "net.inet.udp.gso"), "1");
    stream.pass(500);
    assert_eq!(pair.stat().len(), 1);
    assert_eq!(pair.near.devices().iter().filter(|name| name.starts_with("sg")).count(), 1);
    assert!(stream.finish() > 2500);
    let Pair { mut service, mut other, .. } = pair;
    assert_eq!(
        (service.stop(PATIENCE).and_then(|s| s.code()), other.stop(PATIENCE).and_then(|s| s.code())),
        (Some(0), Some(0))
    );
}

#[test]
fn a_wrong_file_is_refused_on_reload_and_what_runs_goes_on_as_it_is() {
    let base = tunnel(Peer::A, 1, "");
    let Some(pair) = pair(&(base.clone() + &tunnel(Peer::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(500);
    let before = pair.stat();
    for (file, line, message) in [
        (base.clone() + "remot = 1\n", 10, "unknown key `remot`"),
        (base.clone() + "net.inet.tcp.gso = 7\n", 10, "`7` is not a value of net.inet.tcp.gso"),
        (base.clone() + &tunnel(Peer::A, 2, "mtu = 5"), 18, "`5` is not a value of `mtu`"),
        (base.clone() + "[[gateway]]\nin = \"eth99\"\nout = \"tap:t0\"\n", 11, "there is no interface eth99"),
        ("[[tunnel]\n".to_owned(), 1, ""),
    ] {
        let seen = pair.events().len();
        let refused = pair.reload(&file);
        assert_eq!(refused["event"], "reload_refused", "{refused}");
        let events = pair.events();
        let error = events[seen..].iter().find_map(|event| event.get("error")).unwrap_or_else(|| panic!("{events:?}"));
        assert_eq!(error["line"], line, "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert!(error["file"].as_str().unwrap().ends_with("near.toml"), "{error}");
        stream.pass(100);
        assert_eq!(pair.stat(), before, "{file}");
    }
    // A failure that shows only on start is rolled back: another process has the port.
    let _taken = pair.near.enter(|| std::net::UdpSocket::bind(("0.0.0.0", 6083))).unwrap().unwrap();
    let refused = pair.reload(&(base.clone() + &tunnel(Peer::A, 3, "")));
    assert_eq!(refused["event"], "reload_refused", "{refused}");
    let after = pair.stat();
    assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["sg1", "sg2"], "sg2 runs again");
    assert_eq!(after[0], before[0]);
    stream.finish();
}

#[test]
fn ended_instance_is_restarted_without_affecting_others() {
    let Some(pair) = pair(&(tunnel(Peer::A, 1, "") + &tunnel(Peer::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(200);
    let before = pair.stat();
    // The instance loses its interface and can no longer move packets.
    pair.near.run("ip", &["link", "del", "dev", "sg2"]).unwrap();
    let begin = Instant::now();
    while !pair.stat().iter().any(|(name, pid)| name == "sg2" && *pid != before[1].1) {
        assert!(begin.elapsed() < PATIENCE, "{}", pair.service.stdout());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(pair.stat()[0], before[0]);
    stream.finish();
    let events = pair.events();
    let ended: Vec<&Value> = events.iter().filter(|event| event["event"] == "ended").collect();
    assert_eq!(ended.len(), 1, "{events:?}");
    assert_eq!((ended[0]["instance_name"].as_str(), ended[0]["schema"].as_str()), (Some("sg2"), Some("segue.run/1")));
    let message = |event: &Value| event["error"]["message"].as_str().map(str::to_owned);
    let said: Vec<String> = events.iter().filter_map(message).collect();
    assert!(said.len() == 1 && said[0].starts_with("sg2 can no longer move packets"), "{said:?}");
}

#[test]
fn refused_reload_changes_nothing_and_failed_starts_are_reported() {
    let both = |more: &str| tunnel(Peer::A, 1, more) + &tunnel(Peer::A, 2, more);
    let Some(pair) = pair(&both(""), &[]) else { return };
    let begin = Instant::now();
    let names = || pair.stat().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let patient = || assert!(begin.elapsed() < 3 * PATIENCE, "{}", pair.service.stdout());
    // Another interface takes the name, in one process: the instance is there again within milliseconds.
    let take = "printf '%s\\n' 'link del dev sg2' 'link add sg2 type veth peer name peer2' | ip -batch -";
    while pair.near.run("sh", &["-c", take]).is_err() {
        patient();
    }
    let failures = || {
        let of_sg2 = |event: &&Value| event["error"]["message"].as_str().is_some_and(|text| text.starts_with("sg2"));
        pair.events().iter().filter(of_sg2).count()
    };
    while failures() < 2 {
        patient();
        thread::sleep(Duration::from_millis(20));
    }
    // sg2 can start neither with the new file nor with the old one.
    assert_eq!(pair.reload(&both("ttl = 9"))["event"], "reload_refused");
    assert_eq!(names(), ["sg1"], "what ran runs");
    pair.near.run("ip", &["link", "del", "dev", "sg2"]).unwrap();
    while names() != ["sg1", "sg2"] {
        patient();
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_instance_that_could_not_be_made_for_a_while_is_made_again() {
    if let Some(reason) = segue_lab::unavailable() {
        segue_lab::skip_this_test(&reason);
        return;
    }
    let [host, far] = ["near", "far"].map(|name| Host::new(name).unwrap());
    segue_lab::connect(&host, &far, LinkForm::Veth).unwrap();
    let place = Place::new();
    let [program, file] = ["segue", "segue.toml"].map(|name| place.path().join(name));
    // Another process copies the file: a file that is open for writing, even in a child of another test, cannot be
    // executed.
    host.run("cp", &[SEGUE, &program.display().to_string()]).unwrap();
    let may_run = |mode: u32| fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    may_run(0o755);
    fs::write(&file, tunnel(Peer::A, 1, "")).unwrap();
    let mut command = host.command(&program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut service = Process::spawn(command, b"").unwrap();
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
    let ups = || service.stdout().lines().filter(|line| line.contains("\"event\":\"up\"")).count();
    assert_eq!(ups(), 1);
    // As during the upgrade of a package, the program cannot be executed.
    may_run(0o644);
    host.run("ip", &["link", "del", "dev", "sg1"]).unwrap();
    let begin = Instant::now();
    while !service.stdout().contains("cannot start sg1") {
        assert!(begin.elapsed() < PATIENCE, "{}", service.stdout());
        thread::sleep(Duration::from_millis(50));
    }
    may_run(0o755);
    while ups() < 2 {
        assert!(begin.elapsed() < 2 * PATIENCE, "{}", service.stdout());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_service_manager_is_notified_of_readiness_reloads_and_the_end() {
    let place = Place::new();
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = tunnel(Peer::A, 1, "");
    let Some(mut pair) = pair(&file, &[("NOTIFY_SOCKET", path.to_str().unwrap())]) else { return };
    let next = || {
        let mut bytes = [0; 500];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    // Both services report it.
    assert_eq!([next(), next()], ["READY=1\nSTATUS=1 instance up", "READY=1\nSTATUS=1 instance up"]);
    pair.reload(&file);
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next(), "READY=1\nSTATUS=1 instance up");
    pair.service.stop(PATIENCE);
    assert_eq!(next(), "STOPPING=1");
}

/// Takes the messages to a service manager until `is_over`, and returns the longest time between two that say that the
/// service is alive.
fn longest_silence(socket: &UnixDatagram, is_over: impl Fn() -> bool) -> Duration {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut last, mut longest, mut bytes) = (Instant::now(), Duration::ZERO, [0; 500]);
    while !is_over() {
        if socket.recv(&mut bytes).is_ok_and(|len| bytes[..len] == *b"WATCHDOG=1") {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest.max(last.elapsed())
}

#[test]
fn a_service_is_alive_while_a_reload_waits_for_a_tunnel_with_a_table_and_for_a_file_of_peers() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let [near, far] = ["near", "far"].map(|name| Host::new(name).unwrap());
    segue_lab::connect(&near, &far, LinkForm::Veth).unwrap();
    let place = Place::new();
    let path = |name: &str| place.path().join(name);
    let table = |net: u8| {
        let (peers, local) = (path(&format!("peers{net}")), Peer::A.address(0, Family::V4));
        fs::write(&peers, r#"{"peers":[]}"#).unwrap();
        let (peers, port) = (peers.display(), 6080 + u16::from(net));
        format!("[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\npeers = \"{peers}\"\nlisten = \"gue:{port}\"\n")
    };
    fs::write(path("segue.toml"), [1, 2, 3].map(table).concat()).unwrap();
    let socket = UnixDatagram::bind(path("notify")).unwrap();
    let mut command = near.command(SEGUE);
    command.args(["run", "-j", "-c"]).arg(path("segue.toml")).env("SEGUE_RUNTIME_DIR", place.path());
    command.env("NOTIFY_SOCKET", path("notify")).env("WATCHDOG_USEC", "1000000");
    let mut service = Process::spawn(command, b"").unwrap();
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
    // The first tunnel does not answer, and the file of the second one has no writer.
    fs::remove_file(path("sg1.sock")).unwrap();
    let _mute = UnixListener::bind(path("sg1.sock")).unwrap();
    fs::remove_file(path("peers2")).unwrap();
    near.run("mkfifo", &[path("peers2").to_str().unwrap()]).unwrap();
    fs::write(path("peers3"), r#"{"peers":[{"prefix":"198.19.7.0/24","remote":"198.18.0.9"}]}"#).unwrap();
    let begin = Instant::now();
    assert!(Command::new("kill").args(["-HUP", &service.id().to_string()]).status().unwrap().success());
    let is_over = || service.stdout().contains("\"event\":\"reloaded\"") || begin.elapsed() > PATIENCE;
    let (silence, took) = (longest_silence(&socket, is_over), begin.elapsed());
    assert!(silence < Duration::from_secs(3) && took < Duration::from_secs(20), "{silence:?} of {took:?}");
    let errors = service.stdout();
    let count = |what: &str| errors.matches(what).count();
    assert_eq!([count("\"cannot ask sg1"), count("peers2: nothing"), count("\"message\"")], [1, 1, 2], "{errors}");
    // The others have what their files have, and the state has what is wrong.
    let stat = |name: &str| {
        let mut command = near.command(SEGUE);
        let output = command.args(["stat", "-j", name]).env("SEGUE_RUNTIME_DIR", place.path()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["instances"][0]["peers"].take()
    };
    assert_eq!(stat("sg3")["peers"], 1);
    assert!(stat("sg2")["file_refused"].as_str().is_some_and(|why| why.contains("peers2")), "{}", stat("sg2"));
}

#[test]
fn check_says_what_would_run_or_where_the_file_is_wrong_and_changes_nothing() {
    let place = Place::new();
    let file = place.path().join("segue.toml");
    let text = "[[tunnel]]\ndev = \"sg0\"\nmode = \"ipip\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n\n";
    std::fs::write(&file, format!("{text}[[gateway]]\nin = \"peer0\"\nout = \"tap:t0\"\nname = \"gw0\"\n")).unwrap();
    std::fs::write(place.path().join("bad.toml"), format!("{text}remot = 1\n")).unwrap();
    let script = format!(
        "cd {}; ip -j link > before
$SEGUE run -c segue.toml --check; echo \"status $?\"
$SEGUE run -c segue.toml --check -j > plan.json; echo \"status $?\"
$SEGUE run -c bad.toml --check; echo \"status $?\"
$SEGUE run -c bad.toml; echo \"status $?\"
ip -j link > after; cmp before after && echo same; ls *.sock 2>/dev/null; cat plan.json >&2",
        place.path().display()
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    assert!(ran.stdout.starts_with("sg0 can be: ipip in GUE"), "{ran:?}");
    assert!(ran.stdout.contains("gw0 can be: peer0 <-> t0"), "{ran:?}");
    let tail = "segue.toml: 2 instances; nothing was changed\nstatus 0\nstatus 0\nstatus 1\nstatus 1\nsame\n";
    assert!(ran.stdout.ends_with(tail), "{ran:?}");
    assert!(
        ran.stderr.contains("error: bad.toml:8:1: unknown key `remot`\n   |\n 8 | remot = 1\n   | ^^^^^"),
        "{ran:?}"
    );
    let plan: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&plan["schema"], &plan["event"]), (&"segue.run/1".into(), &"check".into()));
    assert_eq!((&plan["instances"][0]["name"], &plan["instances"][1]["kind"]), (&"sg0".into(), &"gateway".into()));
}

#[test]
fn two_instances_that_would_listen_in_the_same_place_are_refused_by_line() {
    let place = Place::new();
    let tunnel = |net: u8, local: &str, more: &str| {
        format!(
            "[[tunnel]]\ndev = \"sg{net}\"\n{local}\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {net}\n{more}\n"
        )
    };
    let first = tunnel(1, "local = \"198.18.0.1\"", "");
    let mut script = format!("cd {}\n", place.path().display());
    for (at, (local, more)) in
        [("", ""), ("local = \"0.0.0.0\"", ""), ("local = \"198.18.0.1\"", ""), ("", "port = 6090")]
            .into_iter()
            .enumerate()
    {
        std::fs::write(place.path().join(format!("{at}.toml")), first.clone() + &tunnel(2, local, more)).unwrap();
        script += &format!("echo \"== {at}\" >&2; $SEGUE run -c {at}.toml --check >/dev/null; echo \"status $?\"\n");
    }
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    assert_eq!(ran.stdout, "status 1\nstatus 1\nstatus 0\nstatus 0\n", "{ran:?}");
    for at in 0..2 {
        let text = ran.stderr.split("== ").nth(at + 1).unwrap();
        let message = format!("error: {at}.toml:8:1: `sg1` and `sg2` would both listen on 198.18.0.1:6080, UDP");
        assert!(text.contains(&message) && text.contains("line 1 has the first"), "{text}");
    }
}

#[test]
fn no_process_or_device_remains_whichever_process_ends_first() {
    let place = Place::new();
    let text = "[[tunnel]]\ndev = \"sg0\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n[[tunnel]]\ndev = \"sg1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nport = 6081\n";
    std::fs::write(place.path().join("segue.toml"), text).unwrap();
    let up = "$SEGUE run -c segue.toml & pid=$!; for n in $(seq 200); do test $($SEGUE stat -j | grep -o '\"kind\"' | wc -l) = 2 && break; sleep 0.05; done; $SEGUE stat -j | grep -o '\"kind\"' | wc -l";
    let gone = "for n in $(seq 100); do running >/dev/null || break; sleep 0.05; done; ip -o link | grep -c ' sg'; running | wc -l";
    let script = format!(
        // No process here reaps orphans, so zombies are not counted. In the last case the signal is repeated until the
        // program is gone, so that the second arrives during the shutdown.
        "cd {}; running() {{ ps -e -o stat=,comm= | grep -v ^Z | grep segue; }}
{up}; kill -TERM $pid; wait $pid; echo \"status $?\"; {gone}
{up}; kill -KILL $pid; wait $pid 2>/dev/null; {gone}
{up}; while running >/dev/null && kill -INT $pid 2>/dev/null; do sleep 0.05; done; wait $pid; {gone}",
        place.path().display()
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    assert_eq!(ran.stdout, "2\nstatus 0\n0\n0\n2\n0\n0\n2\n0\n0\n", "{ran:?}");
}

#[test]
fn the_example_of_the_documentation_is_one_that_segue_takes() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/segue.toml");
    let text = std::fs::read_to_string(docs).unwrap();
    // The file has every key, given or as a comment. The names are those at the beginning of the lines of help.
    for (command, options) in [("tunnel", &["--trace"][..]), ("gateway", &["--no-lro", "--profile", "--hold-us"])] {
        let help = segue(&format!("{command} --help")).stdout;
        let (words, rest) = help.split_once("\nOptions:\n").unwrap();
        let words = words.split_once("\nWords").map_or("", |(_, words)| words);
        let table = format!("{words}\n{}", rest.split("\n\n").next().unwrap());
        let lines = table.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        assert!(options.iter().all(|option| names.contains(option)), "{names:?}");
        let everywhere = [
            "-f,",
            "-j,",
            "-p,",
            "-q,",
            "-v,",
            "-h",
            "--help",
            "--color",
            "--log-format",
            "--check,",
            "--set",
            "IN",
            "OUT",
        ];
        for name in names.iter().filter(|name| !everywhere.contains(name)) {
            let key = match *name {
                // The further ports of a gateway have no dashes on the command line.
                "PORT" => "more",
                name => name.trim_start_matches("[no]").trim_start_matches("--"),
            };
            let stands = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
            assert!(text.lines().any(stands), "`{key}` of {command} is not in docs/segue.toml");
        }
    }
    let place = Place::new();
    std::fs::write(place.path().join("segue.toml"), &text).unwrap();
    let script = format!("cd {}; $SEGUE run -c segue.toml --check", place.path().display());
    let Some(ran) = in_namespace_at(&format!("ip link add eth1 type veth peer name peer1; {script}"), &place) else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
