//! Tests of the commands that ask all sockets, or the one of a name: one that does not answer is named and holds up no
//! other one, and of two instances with one name none is taken for the other.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread;

use common::{Place, SEGUE, command, in_namespace, text};
use segue_control::error::{Error, Kind};
use segue_control::knobs::{Knob, Setting};
use segue_control::mapping::Mapping;
use segue_control::model::{Instance, Port};
use segue_control::protocol::{AbsentInstance, Refused, Reloaded, Response, ServiceResponse, ServiceState, Upgraded};
use serde_json::{Value, json};

/// Opens the socket `file`, which answers each request, and returns the list of the requests.
fn answering(place: &Place, file: &str, answer: fn(&str) -> String) -> Arc<Mutex<Vec<String>>> {
    let listener = UnixListener::bind(place.path().join(file)).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_ok_and(|len| len > 0) {
                let _ = stream.write_all(answer(&line).as_bytes());
                seen.lock().unwrap().push(line);
            }
        }
    });
    requests
}

/// Opens a socket whose connections are never accepted.
fn mute(place: &Place, file: &str) -> UnixListener {
    UnixListener::bind(place.path().join(file)).unwrap()
}

fn instance(_: &str) -> String {
    Response::Instance(Box::new(Instance { name: "well".to_owned(), ..Instance::default() })).line()
}

/// Answers as a service that refuses an upgrade.
fn refusing(request: &str) -> String {
    let refused = Refused { text: "near is as it was\n".to_owned(), error: json!({ "message": "near is as it was" }) };
    match request.contains("upgrade") {
        true => ServiceResponse::Refused(Box::new(refused)).line(),
        false => ServiceResponse::Service(Box::default()).line(),
    }
}

/// Answers as a service that is upgraded.
fn willing(request: &str) -> String {
    let upgraded = Upgraded { file: "/etc/other.toml".to_owned(), is_new: true, ..Upgraded::default() };
    let state = ServiceState { file: "/etc/other.toml".to_owned(), ..ServiceState::default() };
    match request.contains("upgrade") {
        true => ServiceResponse::Upgraded(Box::new(upgraded)).line(),
        false => ServiceResponse::Service(Box::new(state)).line(),
    }
}

/// Runs segue once for each line, all at the same time, and returns exit status, stdout and stderr of each.
fn at_once<const N: usize>(place: &Place, lines: [&str; N]) -> [(Option<i32>, String, String); N] {
    let started = lines.map(|line| {
        let mut made = command(SEGUE, place);
        thread::spawn({
            made.args(line.split_whitespace());
            move || text(&made.output().expect("segue runs"))
        })
    });
    started.map(|one| one.join().unwrap())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn an_instance_that_does_not_answer_is_not_well_and_is_named() {
    let place = Place::new();
    answering(&place, "well.sock", instance);
    let _mute = mute(&place, "mute.sock");
    let [health, health_json, stat] = at_once(&place, ["stat --health", "stat --health -j", "stat -j"]);
    assert!(health.0 == Some(1) && health.1.starts_with("mute: cannot ask mute: "), "{health:?}");
    assert_eq!(health.1.lines().count(), 1, "{health:?}");
    let why = "an instance is silent or down";
    assert!(health.2.contains("1 thing is not well") && health.2.contains(why), "{health:?}");
    let error = &json_of(&health_json.1)["error"];
    assert_eq!((health_json.0, &error["kind"]), (Some(1), &json!("unhealthy")), "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("mute")), "{error}");
    let document = json_of(&stat.1);
    let found = (&document["instances"][0]["name"], &document["unanswered"]["mute"]["why"]);
    assert_eq!((stat.0, found), (Some(0), (&json!("well"), &json!("it did not answer within 3 s"))), "{document}");
    assert!(stat.2.contains("note: cannot ask mute: "), "{stat:?}");
}

#[test]
fn a_fleet_agent_that_has_ended_is_a_problem_of_its_tunnel_and_a_metric() {
    let place = Place::new();
    answering(&place, "well.sock", instance);
    let state = |pid: u32| json!({ "schema": "segue.fleet/1", "name": "well", "engine": "etcd", "state": "connected", "pid": pid });
    let set = |pid| fs::write(place.path().join("well.fleet.json"), state(pid).to_string()).unwrap();
    set(std::process::id());
    let [health] = at_once(&place, ["stat --health"]);
    assert_eq!(health, (Some(0), String::new(), String::new()));
    // No process has this number.
    set(u32::MAX);
    let [health, stat, metrics] = at_once(&place, ["stat --health", "stat -j", "metrics"]);
    assert!(health.0 == Some(1) && health.1.starts_with("well: the fleet agent has ended (its process "), "{health:?}");
    assert!(health.2.contains("segue fleet etcd --dev well"), "{health:?}");
    assert_eq!(json_of(&stat.1)["instances"][0]["health"][0]["code"], "fleet_ended", "{stat:?}");
    for line in ["segue_fleet_state{name=\"well\",state=\"ended\"} 1\n", "segue_instance_problems{name=\"well\"} 1\n"] {
        assert!(metrics.1.contains(line), "{line}: {metrics:?}");
    }
    // The user of the directory could put a pipe there, in which nothing is written.
    let file = place.path().join("well.fleet.json");
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let [health] = at_once(&place, ["stat --health"]);
    assert_eq!(health, (Some(0), String::new(), String::new()));
}

#[test]
fn an_instance_of_another_user_is_a_note_and_no_problem() {
    let place = Place::new();
    answering(&place, "well.sock", instance);
    let _other = mute(&place, "other.sock");
    fs::set_permissions(place.path().join("other.sock"), fs::Permissions::from_mode(0o000)).unwrap();
    // Root has no way past the mode without its capabilities.
    let is_root = segue_host::sys::euid() == 0;
    let mut made = if is_root { command("setpriv", &place) } else { command(SEGUE, &place) };
    if is_root {
        made.args(["--bounding-set=-all", "--inh-caps=-all", SEGUE]);
    }
    let (code, stdout, stderr) = text(&made.args(["stat", "--health", "-j"]).output().expect("segue runs"));
    let document = json_of(&stdout);
    assert!(code == Some(0) && document["unanswered"].is_null(), "{document} {stderr}");
    assert!(stderr.starts_with("note: cannot ask other: "), "{stderr}");
}

#[test]
fn the_socket_of_a_guest_is_no_instance_that_does_not_answer() {
    let place = Place::new();
    answering(&place, "well.sock", |_| {
        let mut port = Port::default();
        port.numbers.insert("guest_connected".to_owned(), 1);
        let ports = [("vm1".to_owned(), port)].into();
        Response::Instance(Box::new(Instance { name: "well".to_owned(), ports, ..Instance::default() })).line()
    });
    // It closes each connection that is no front end.
    answering(&place, "vm1.sock", |_| String::new());
    let [(code, stdout, stderr)] = at_once(&place, ["stat --health"]);
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "", ""));
}

/// A text that sets the clipboard of some terminals.
const ESCAPE: &str = "\u{1b}]52;c;aGk=\u{7}";

/// Answers as a gateway with this text wherever there is one.
fn escaping(request: &str) -> String {
    let text = || ESCAPE.to_owned();
    let one = Setting::Number(1);
    let knob = |name: &str| Knob {
        name: name.to_owned(),
        value: one.clone(),
        default: one.clone(),
        min: None,
        max: None,
        values: Vec::new(),
        unit: text(),
        help: text(),
        fixed: None,
        needs: None,
    };
    let inside = "198.18.0.1:1".parse().unwrap();
    let (protocol, state) = (text(), Some(text()));
    let mapping = Mapping { protocol, inside, outside: 1, state, idle_s: None, out: 0, into: 0 };
    let gateway = Instance { name: "sly".to_owned(), kind: "gateway".to_owned(), ..Instance::default() };
    let response = match request {
        _ if request.contains("knobs") => Response::Knobs(vec![knob("net.sly"), knob(ESCAPE)]),
        _ if request.contains("nat") => Response::Mappings(Some(vec![mapping])),
        _ if request.contains("stat") => Response::Instance(Box::new(gateway)),
        _ => Error::new(Kind::Conflict, ESCAPE, ESCAPE).why(ESCAPE).into(),
    };
    response.line()
}

/// Answers as a service with this text as the reason of an instance.
fn reloading(request: &str) -> String {
    let absent = vec![AbsentInstance { name: "sly".to_owned(), reason: ESCAPE.to_owned() }];
    let refused = Refused { text: ESCAPE.to_owned(), error: json!({}) };
    match request {
        _ if request.contains("reload") => {
            ServiceResponse::Reloaded(Box::new(Reloaded { absent, ..Reloaded::default() })).line()
        }
        _ if request.contains("upgrade") => ServiceResponse::Refused(Box::new(refused)).line(),
        _ => ServiceResponse::Service(Box::default()).line(),
    }
}

#[test]
fn what_an_instance_answers_does_not_act_on_the_terminal() {
    let place = Place::new();
    answering(&place, "sly.sock", escaping);
    answering(&place, "sly.service", reloading);
    let lines = [
        "set sly",
        "set sly net.sly",
        "set sly net.sly 0",
        "nat",
        "nat sly",
        "peer del sly 198.18.0.0/24",
        "reload",
        "reload --upgrade",
    ];
    for line in lines {
        // Colours are for terminals; what is no colour stays with them.
        let mut made = command(SEGUE, &place);
        made.args(line.split(' ')).env("CLICOLOR_FORCE", "1");
        let (_, stdout, stderr) = text(&made.output().expect("segue runs"));
        for said in [&stdout, &stderr] {
            assert!(!said.contains("\u{1b}]") && !said.contains('\u{7}'), "{line}: {said:?}");
        }
        assert!(stdout.contains("?]52") || stderr.contains("?]52"), "{line}: {stdout} {stderr}");
    }
}

#[test]
fn every_service_is_upgraded_although_the_first_one_refuses() {
    let place = Place::new();
    answering(&place, "near.service", refusing);
    let asked = answering(&place, "other.service", willing);
    let [plain, json] = at_once(&place, ["reload --upgrade", "reload --upgrade -j"]);
    let asked = asked.lock().unwrap().iter().filter(|request| request.contains("upgrade")).count();
    assert_eq!((plain.0, json.0, asked), (Some(1), Some(1), 2), "{plain:?}");
    for part in ["upgraded /etc/other.toml", "near is as it was", "the upgrade of near was refused"] {
        assert!(plain.2.contains(part), "{part}: {plain:?}");
    }
    let document = json_of(&json.1);
    assert_eq!(document["services"][0]["file"], "/etc/other.toml", "{document}");
    let failed = json!([{ "service": "near", "error": { "message": "near is as it was" } }]);
    assert_eq!(document["failed"], failed, "{document}");
}

#[test]
fn a_service_that_does_not_answer_is_an_error_of_an_upgrade_and_holds_up_no_other_one() {
    let (alone, both) = (Place::new(), Place::new());
    let _mute = [mute(&alone, "mute.service"), mute(&both, "mute.service")];
    let asked = answering(&both, "other.service", willing);
    let both = thread::spawn(move || at_once(&both, ["reload --upgrade", "reload"]));
    for (code, _, stderr) in at_once(&alone, ["reload --upgrade", "reload", "reload mute"]) {
        assert!(code == Some(1) && stderr.contains("cannot ask mute: "), "{stderr}");
    }
    let [upgrade, reload] = both.join().unwrap();
    assert!(upgrade.0 == Some(1) && upgrade.2.contains("cannot ask mute: "), "{upgrade:?}");
    assert!(upgrade.2.contains("upgraded /etc/other.toml"), "{upgrade:?}");
    assert!(reload.0 == Some(2) && reload.2.contains("2 services run: say which"), "{reload:?}");
    assert_eq!(asked.lock().unwrap().iter().filter(|request| request.contains("upgrade")).count(), 1);
}

#[test]
fn a_service_reloads_its_own_instance_while_another_one_has_the_same_name() {
    // The program may be in one of the folders that are hidden.
    let script = "exec 9< $SEGUE; mount -t tmpfs -o mode=755 none /run; touch /run/program
mount -c --bind /proc/self/fd/9 /run/program; SEGUE=/run/program; exec 9<&-
mount -t tmpfs none /tmp; unset SEGUE_RUNTIME_DIR; cd /run
export XDG_RUNTIME_DIR=/run/user; mkdir $XDG_RUNTIME_DIR
file() { printf '[[tunnel]]\\ndev = \"sg0\"\\nlocal = \"198.18.0.1\"\\nremote = \"198.18.0.2\"\\nencap = \"gue\"\\n'; }
file > near.toml; $SEGUE run -c near.toml > said 2>&1 & service=$!
gso() { SEGUE_RUNTIME_DIR=$1 $SEGUE set sg0 net.inet.tcp.gso; }
until_up() { for n in $(seq 400); do gso $1 > /dev/null 2>&1 && return; sleep 0.05; done; cat said >&2; }
until_up /run/segue
# In a network namespace of its own an interface of the same name is free.
SEGUE_RUNTIME_DIR=/run/user/segue unshare --net sh -c 'ip link add e0 type veth peer name e1
ip addr add 198.18.0.1/24 dev e0; ip link set e0 up; ip link set e1 up
exec $SEGUE tunnel dev sg0 local 198.18.0.1 remote 198.18.0.2 encap gue' & other=$!
until_up /run/user/segue
$SEGUE set sg0 net.inet.tcp.gso 0; echo \"set $?\"
(file; echo 'net.inet.tcp.gso = 0') > near.toml; $SEGUE reload; echo \"reload $?\"
gso /run/segue; gso /run/user/segue
$SEGUE metrics | grep segue_instance_uptime_seconds{; $SEGUE stat -j
kill -TERM $other $service; wait $other $service";
    let Some(ran) = in_namespace(script) else { return };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((lines[0], lines[1]), ("set 2", "reload 0"), "{ran:?}");
    assert!(ran.stderr.contains("2 instances are called `sg0`"), "{ran:?}");
    assert!(ran.stderr.contains("/run/segue/sg0.sock and /run/user/segue/sg0.sock"), "{ran:?}");
    let values: Vec<Option<&str>> = lines[2..4].iter().map(|line| line.split_whitespace().last()).collect();
    assert_eq!(values, [Some("0"), Some("1")], "{ran:?}");
    let series = lines.iter().filter(|line| line.starts_with("segue_instance_uptime_seconds{name=\"sg0\"} ")).count();
    assert_eq!(series, 1, "{ran:?}");
    let document = json_of(lines.last().unwrap());
    assert_eq!(document["instances"].as_array().map(Vec::len), Some(2), "{document}");
}
