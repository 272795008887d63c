//! `segue run`: several instances of a file, and a reload that touches only what differs.

mod common;
#[path = "common/numbered.rs"]
mod numbered;

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, SEGUE, in_namespace_at, segue};
use numbered::Numbered;
use segue_lab::{End, Family, Host, LinkForm, Process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two hosts; on each of them a service with a tunnel for the load, and on the first one more of them.
struct Pair {
    near: Host,
    far: Host,
    place: Place,
    service: Process,
    other: Process,
}

/// A tunnel of network `net`.
fn tunnel(end: End, net: u8, more: &str) -> String {
    let (local, remote) = (end.address(0, Family::V4), end.other().address(0, Family::V4));
    format!(
        "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\nport = {port}\n\
         encap-dport = {port}\naddr = \"{address}\"\n{more}\n",
        port = 6080 + u16::from(net),
        address = end.prefix(net, Family::V4),
    )
}

impl Pair {
    fn new(file: &str, env: &[(&str, &str)]) -> Option<Pair> {
        if let Some(reason) = segue_lab::unavailable() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let [near, far] = ["near", "far"].map(|name| Host::new(name).unwrap());
        segue_lab::connect(&near, &far, LinkForm::Veth).unwrap();
        let place = Place::new();
        let start = |host: &Host, name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            let mut command = host.command(SEGUE);
            command.args(["run", "-j", "-c"]).arg(&path).envs(env.iter().copied());
            let mut service = Process::spawn(command, b"").unwrap();
            service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
            service
        };
        let service = start(&near, "near.toml", file);
        let other = start(&far, "far.toml", &tunnel(End::B, 1, ""));
        Some(Pair { near, far, place, service, other })
    }

    fn numbered(&self) -> Numbered {
        let at = |end: End| SocketAddr::new(end.address(1, Family::V4), 5002);
        Numbered::start((&self.near, at(End::A)), (&self.far, at(End::B)), 600)
    }

    fn hangup(&self) {
        assert!(Command::new("kill").args(["-HUP", &self.service.id().to_string()]).status().unwrap().success());
    }

    /// Writes the file anew and asks for a reload; the event that it ends with.
    #[track_caller]
    fn reload(&self, file: &str) -> Value {
        std::fs::write(self.place.path().join("near.toml"), file).unwrap();
        let before = self.events().len();
        self.hangup();
        let begin = Instant::now();
        loop {
            let events = self.events();
            let done = |event: &&Value| event["event"] == "reloaded" || event["event"] == "reload_refused";
            if let Some(event) = events[before..].iter().find(done) {
                return event.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "no answer: {events:?} {}", self.service.stderr());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn events(&self) -> Vec<Value> {
        self.service.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Process, up-time and a knob of each instance of the first host.
    fn stat(&self) -> Vec<(String, u64)> {
        let text = self.near.run(SEGUE, &["stat", "-j"]).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let instances = document["instances"].as_array().unwrap();
        instances.iter().map(|i| (i["name"].as_str().unwrap().to_owned(), i["pid"].as_u64().unwrap())).collect()
    }

    fn knob(&self, name: &str, knob: &str) -> String {
        self.near.run(SEGUE, &["set", name, knob, "-q"]).unwrap().trim().to_owned()
    }
}

#[test]
fn a_reload_under_load_loses_no_packet_of_what_stays_the_same() {
    let base = tunnel(End::A, 1, "");
    let Some(pair) = Pair::new(&(base.clone() + &tunnel(End::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(1000);
    let pid = |stat: &[(String, u64)], name: &str| stat.iter().find(|(n, _)| n == name).map(|(_, pid)| *pid);
    let first = pair.stat();
    assert_eq!(first.len(), 2);

    // Nothing differs.
    let same = pair.reload(&(base.clone() + &tunnel(End::A, 2, "")));
    assert_eq!((&same["event"], same["unchanged"].as_array().map(Vec::len)), (&"reloaded".into(), Some(2)), "{same}");
    stream.pass(500);
    // One changes, one is new, and a knob of the one under load is turned.
    let knob = base.clone() + "net.inet.udp.gso = 0\n";
    let done = pair.reload(&(knob.clone() + &tunnel(End::A, 2, "ttl = 9") + &tunnel(End::A, 3, "")));
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
    // Both go, and the knob is as it was.
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
    let base = tunnel(End::A, 1, "");
    let Some(pair) = Pair::new(&(base.clone() + &tunnel(End::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(500);
    let before = pair.stat();
    for (file, line, message) in [
        (base.clone() + "remot = 1\n", 10, "unknown key `remot`"),
        (base.clone() + "net.inet.tcp.gso = 7\n", 10, "`7` is not a value of net.inet.tcp.gso"),
        (base.clone() + &tunnel(End::A, 2, "mtu = 5"), 18, "`5` is not a value of `mtu`"),
        (base.clone() + "[[gateway]]\nin = \"eth99\"\nout = \"tap:t0\"\n", 10, "there is no interface eth99"),
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
    // What can only be found out by trying is taken back: a port that somebody else has.
    let _taken = pair.near.enter(|| std::net::UdpSocket::bind(("0.0.0.0", 6083))).unwrap().unwrap();
    let refused = pair.reload(&(base.clone() + &tunnel(End::A, 3, "")));
    assert_eq!(refused["event"], "reload_refused", "{refused}");
    let after = pair.stat();
    assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["sg1", "sg2"], "sg2 runs again");
    assert_eq!(after[0], before[0]);
    stream.finish();
}

#[test]
fn what_ends_by_itself_is_started_again_and_the_others_do_not_notice() {
    let Some(pair) = Pair::new(&(tunnel(End::A, 1, "") + &tunnel(End::A, 2, "")), &[]) else { return };
    let mut stream = pair.numbered();
    stream.pass(200);
    let before = pair.stat();
    // Its interface goes, and with it all that it is for.
    pair.near.run("ip", &["link", "del", "dev", "sg2"]).unwrap();
    let begin = Instant::now();
    while !pair.stat().iter().any(|(name, pid)| name == "sg2" && *pid != before[1].1) {
        assert!(begin.elapsed() < PATIENCE, "{}", pair.service.stdout());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(pair.stat()[0], before[0]);
    stream.finish();
}

#[test]
fn the_service_manager_hears_of_readiness_reloads_and_the_end() {
    let place = Place::new();
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = tunnel(End::A, 1, "");
    let Some(mut pair) = Pair::new(&file, &[("NOTIFY_SOCKET", path.to_str().unwrap())]) else { return };
    let next = || {
        let mut bytes = [0; 500];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    // Both services say so.
    assert_eq!([next(), next()], ["READY=1\nSTATUS=1 instance up", "READY=1\nSTATUS=1 instance up"]);
    pair.reload(&file);
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next(), "READY=1\nSTATUS=1 instance up");
    pair.service.stop(PATIENCE);
    assert_eq!(next(), "STOPPING=1");
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
fn nothing_stays_behind_whoever_ends() {
    let place = Place::new();
    let text = "[[tunnel]]\ndev = \"sg0\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n[[tunnel]]\ndev = \"sg1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nport = 6081\n";
    std::fs::write(place.path().join("segue.toml"), text).unwrap();
    let up = "$SEGUE run -c segue.toml & pid=$!; for n in $(seq 200); do test $($SEGUE stat -j | grep -o '\"kind\"' | wc -l) = 2 && break; sleep 0.05; done; $SEGUE stat -j | grep -o '\"kind\"' | wc -l";
    let gone = "for n in $(seq 100); do running >/dev/null || break; sleep 0.05; done; ip -o link | grep -c ' sg'; running | wc -l";
    let script = format!(
        // Nobody here waits for orphans that have ended.
        "cd {}; running() {{ ps -e -o stat=,comm= | grep -v ^Z | grep segue; }}
{up}; kill -TERM $pid; wait $pid; echo \"status $?\"; {gone}
{up}; kill -KILL $pid; wait $pid 2>/dev/null; {gone}
{up}; kill -INT $pid; sleep 0.4; kill -INT $pid 2>/dev/null; wait $pid; {gone}",
        place.path().display()
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    assert_eq!(ran.stdout, "2\nstatus 0\n0\n0\n2\n0\n0\n2\n0\n0\n", "{ran:?}");
}

#[test]
fn the_example_of_the_documentation_is_one_that_segue_takes() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/segue.toml");
    let text = std::fs::read_to_string(docs).unwrap();
    // Every key is in it, given or as a comment: the names at the beginning of the lines of help.
    for (command, options) in [("tunnel", &["--trace"][..]), ("gateway", &["--no-lro", "--profile", "--hold-us"])] {
        let help = segue(&format!("{command} --help")).stdout;
        let (words, rest) = help.split_once("\nOptions:\n").unwrap();
        let words = words.split_once("\nWords").map_or("", |(_, words)| words);
        let table = format!("{words}\n{}", rest.split("\n\n").next().unwrap());
        let lines = table.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        assert!(options.iter().all(|option| names.contains(option)), "{names:?}");
        let everywhere = ["-j,", "-p,", "-q,", "-v,", "-h", "--help", "--color", "--check,", "--set", "IN", "OUT"];
        for name in names.iter().filter(|name| !everywhere.contains(name)) {
            let key = name.trim_start_matches("[no]").trim_start_matches("--");
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
