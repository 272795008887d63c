//! Tests of an operator's tasks with running tunnels: reading live figures, starting without root, stopping.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::V4;
use segue_lab::{Host, LinkForm, Peer, Process, reach, which};
use segue_tests::Carrier::Gue;
use segue_tests::Inside::Gre;
use segue_tests::{Ground, Pair, Shape, Stat, Tunnel, skip, test_name, traffic};
use serde_json::Value;

/// Time within which an expected event must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// User id without rights (65534).
const USER: u32 = 65_534;

fn segue(host: &Host, program: &Path, words: &[&str]) -> Output {
    host.command(program).args(words).output().expect("segue runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ip(host: &Host, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    host.run("ip", &words).unwrap_or_else(|error| panic!("ip {line}: {error}"));
}

#[test]
fn a_watch_shows_the_rates_of_its_own_interval_with_units_that_fit() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), 1);
    let mut ping = ground.a.command("ping");
    ping.args(["-q", "-i", "0.05", "-s", "1000", &Peer::B.address(1, V4).to_string()]);
    let ping = Process::spawn(ping, b"").expect("ping starts");
    // Long enough that a mean since the start would differ from that of the last second.
    let begin = Instant::now();
    loop {
        let output = segue(&ground.b, &ground.program, &["stat", "-j"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        if document["instances"][0]["uptime_s"].as_f64().is_some_and(|up| up > 4.0) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{document}");
        thread::sleep(Duration::from_millis(100));
    }
    let mut watch = ground.b.command(&ground.program);
    watch.args(["stat", "sg1", "--watch", "1", "-j"]);
    let mut watch = Process::spawn(watch, b"").expect("segue starts");
    let begin = Instant::now();
    let lines = loop {
        let lines: Vec<Value> = watch.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.len() >= 3 {
            break lines;
        }
        assert!(begin.elapsed() < PATIENCE, "{}", watch.last_words());
        thread::sleep(Duration::from_millis(50));
    };
    watch.stop(Duration::from_secs(5));
    for line in lines {
        assert!(line["schema"].as_str().is_some_and(|schema| schema.starts_with("segue.stat/")), "{line}");
        assert!(line["t"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        let recent = &line["instances"][0]["recent"];
        let interval = recent["interval_s"].as_f64().expect("an interval");
        // A mean over the last ten seconds, or since the start, has at least four.
        assert!((0.3..3.5).contains(&interval), "{interval}");
        let bytes = recent["ports"]["sg1"]["transmit"]["bytes"].as_u64().expect("bytes");
        assert!(bytes > 1000, "{bytes}");
    }
    let table = text(&segue(&ground.b, &ground.program, &["stat", "sg1"]).stdout);
    let rates: Vec<&str> = table.lines().nth(1).expect("a line").split_whitespace().collect();
    assert!(rates.iter().filter(|cell| cell.ends_with('k')).count() >= 2, "{table}");
    assert!(table.contains("rates: mean of the last"), "{table}");
    drop((ping, pair));
}

#[test]
fn tunnels_that_share_a_port_have_a_line_each() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let words = |net: u8| {
        format!("dev p{net} local 198.18.0.1 remote 198.18.0.2 encap gue mode gre key {net} addr 198.19.{net}.1/30")
    };
    let line = [words(1), words(2), words(3)].join(" also ");
    let tunnel = Tunnel::start(&ground.a, &ground.program, &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let shown = |words: &[&str]| text(&segue(&ground.a, &ground.program, words).stdout);
    // The rows of the table; the lines below it begin with a name and a colon.
    let rows = |text: &str| {
        let names = text.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with('p'));
        names.filter(|name| !name.ends_with(':')).map(str::to_owned).collect::<Vec<_>>()
    };
    let begin = Instant::now();
    while rows(&shown(&["stat"])) != ["p1", "p2", "p3"] {
        assert!(begin.elapsed() < PATIENCE, "{}", shown(&["stat"]));
        thread::sleep(Duration::from_millis(50));
    }
    let one = shown(&["stat", "p2"]);
    assert_eq!(rows(&one), ["p2"], "{one}");
    assert!(one.lines().nth(1).is_some_and(|line| line.starts_with("p2")), "{one}");
    drop(tunnel);
}

/// A directory of a test, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, user: u32) -> Directory {
        let path = std::env::temp_dir().join(format!("segue-operation-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
        chown(&path, Some(user), Some(user)).expect("root");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the program as run by another user without rights, or `None` if this is not root.
fn as_user(name: &str, host: &Host, program: &Path, directory: &Directory) -> Option<Command> {
    let copy = directory.0.join("segue");
    if which("setpriv").is_none() {
        skip(name, "not installed: setpriv");
        return None;
    }
    // The directories of a checkout may be closed to other users.
    if !copy.exists() {
        fs::copy(program, &copy).expect("a copy");
        // What this process makes may be closed to others (umask).
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let mut command = host.command("setpriv");
    let (reuid, regid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    command.args([&reuid, &regid, "--clear-groups", "--inh-caps=-all"]).arg(copy);
    command.env("SEGUE_RUNTIME_DIR", &directory.0);
    Some(command)
}

/// Creates a TUN device node in a host's mount namespace that any user may open, and that other hosts and this machine
/// do not see.
fn open_tun_to_users(host: &Host) -> Result<(), segue_lab::LabError> {
    let own = "mount -t tmpfs -o mode=755 tun /dev/net && mknod -m 666 /dev/net/tun c 10 200";
    host.run("sh", &["-c", own]).map(drop)
}

#[test]
fn a_user_starts_a_tunnel_on_an_interface_that_root_has_made_and_root_sees_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let (a, directory) = (&ground.a, Directory::new("user", USER));
    if let Err(error) = open_tun_to_users(a) {
        return skip(test_name!(), &format!("no device node can be made here: {error}"));
    }
    let words = "dev sg5 mode gre remote 198.18.0.2 encap gue addr 198.19.5.1/30";
    let words: Vec<&str> = words.split(' ').collect();
    let start = |more: &[&str]| {
        let mut command = as_user(test_name!(), a, &ground.program, &directory)?;
        command.arg("tunnel").args(&words).args(more);
        Some(command)
    };
    let Some(mut check) = start(&["--check"]) else { return };
    let refused = check.output().expect("segue runs");
    assert_eq!(refused.status.code(), Some(1), "it cannot start: {}", text(&refused.stderr));
    ip(a, &format!("tuntap add dev sg5 mode tun user {USER} multi_queue"));
    let refused = start(&[]).expect("setpriv").output().expect("segue runs");
    assert!(text(&refused.stderr).contains("multi_queue"), "{}", text(&refused.stderr));
    ip(a, "tuntap del dev sg5 mode tun multi_queue");
    ip(a, &format!("tuntap add dev sg5 mode tun user {USER} vnet_hdr"));
    // What is left to do is listed once, as commands.
    let refused = start(&[]).expect("setpriv").output().expect("segue runs");
    let said = text(&refused.stderr);
    let commands: Vec<&str> =
        said.lines().filter_map(|line| line.split_once("sudo ip ")).map(|(_, rest)| rest).collect();
    assert!(commands.len() >= 3 && commands[0].starts_with("link set dev sg5 mtu"), "{said}");
    commands.iter().for_each(|line| ip(a, line.trim()));
    assert!(start(&["--check"]).expect("setpriv").output().expect("segue runs").status.success());
    let mut tunnel = Process::spawn(start(&[]).expect("setpriv"), b"").expect("segue starts");
    let begin = Instant::now();
    // Root finds it in the directory of that user.
    let seen = || {
        let mut stat = a.command(&ground.program);
        text(&stat.args(["stat", "-j"]).env("SEGUE_RUNTIME_DIR", &directory.0).output().expect("segue runs").stdout)
    };
    while !seen().contains("\"sg5\"") {
        assert!(tunnel.ended().is_none() && begin.elapsed() < PATIENCE, "{}{}", seen(), tunnel.last_words());
        thread::sleep(Duration::from_millis(50));
    }
    tunnel.stop(Duration::from_secs(5));
}

#[test]
fn completion_offers_the_names_of_what_runs() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let _tunnel = Tunnel::start(&ground.a, &ground.program, &Shape::new(Gre, Gue, V4).words(Peer::A, 1));
    let offered = |line: &str| {
        let words: Vec<&str> = ["complete", "--"].into_iter().chain(line.split(' ')).collect();
        text(&segue(&ground.a, &ground.program, &words).stdout)
    };
    let begin = Instant::now();
    while !offered("stat s").starts_with("sg1\t") {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(20));
    }
    for (line, candidate) in
        [("stop s", "sg1\t"), ("set sg", "sg1\t"), ("set sg1 net.gro.dev.sg1.e", "net.gro.dev.sg1.enable_gro\t")]
    {
        assert!(offered(line).lines().any(|one| one.starts_with(candidate)), "{line}: {}", offered(line));
    }
    assert_eq!(offered("stop x"), "");
}

#[test]
fn a_tunnel_is_stopped_by_its_name() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let mut tunnel = Tunnel::start(&ground.a, &ground.program, &Shape::new(Gre, Gue, V4).words(Peer::A, 1));
    let begin = Instant::now();
    while !segue(&ground.a, &ground.program, &["stat", "sg1"]).status.success() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(20));
    }
    let stopped = segue(&ground.a, &ground.program, &["stop", "sg1"]);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    assert!(!ground.a.has_device("sg1"));
    assert!(tunnel.process.wait(PATIENCE).expect("it ends").success());
    let again = segue(&ground.a, &ground.program, &["stop", "sg1"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
}

/// A program that listens at the path of its first word, as a service manager does, and passes that socket, under the
/// name of the second word, to a program with the other words. It lives on, and reports a signal and the program's end.
const MANAGER: &str = "
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: print('signalled', flush=True))
path, name, *words = sys.argv[1:]
os.makedirs(os.path.dirname(path), exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
child = os.fork()
if not child:
    os.dup2(listener.fileno(), 3)
    os.set_inheritable(3, True)
    passed = {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1', 'LISTEN_FDNAMES': name}
    os.execve(words[0], words, {**os.environ, **passed})
print('ended', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
sys.stdin.read()
";

/// Starts a tunnel that gets its control socket under this name from a service manager.
fn passed(ground: &Ground, name: &str) -> Process {
    let mut command = ground.a.command("python3");
    command.args(["-c", MANAGER, "/run/segue/sg1.sock", name]).arg(&ground.program).arg("tunnel");
    command.args(Shape::new(Gre, Gue, V4).words(Peer::A, 1)).stdin(Stdio::piped());
    Process::spawn(command, b"\n").expect("python3 starts")
}

#[test]
fn a_tunnel_with_a_socket_of_the_service_manager_is_stopped_and_the_manager_gets_no_signal() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let mut manager = passed(&ground, "control");
    let begin = Instant::now();
    while !segue(&ground.a, &ground.program, &["stat", "sg1"]).status.success() {
        assert!(begin.elapsed() < PATIENCE && manager.ended().is_none(), "{}", manager.last_words());
        thread::sleep(Duration::from_millis(20));
    }
    let stopped = segue(&ground.a, &ground.program, &["stop", "sg1"]);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    assert!(!ground.a.has_device("sg1"));
    manager.wait_for_line("ended 0", PATIENCE).expect("the tunnel has ended");
    assert!(!manager.stdout().contains("signalled"), "{}", manager.stdout());
}

#[test]
fn a_tunnel_beside_a_socket_of_its_name_that_was_not_passed_as_a_control_socket_does_not_start() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let mut manager = passed(&ground, "sg1.sock");
    manager.wait_for_line("ended 1", PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", manager.stderr()));
    assert!(manager.stderr().contains("sg1 is already running"), "{}", manager.stderr());
    assert!(!ground.a.has_device("sg1"));
}

/// Returns the `[[tunnel]]` of network `net` on a port that all share, with further lines.
fn table(net: u8, more: &str) -> String {
    let ends = "local = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nport = 6080";
    format!("[[tunnel]]\ndev = \"sg{net}\"\n{ends}\nkey = {net}\n{more}\n")
}

/// A service `near` with its file.
struct Near<'a> {
    ground: &'a Ground,
    directory: Directory,
    service: Process,
}

impl Near<'_> {
    /// Starts the service with this content of its file, and waits until it has started its instances.
    #[track_caller]
    fn start<'a>(ground: &'a Ground, name: &str, text: &str) -> Near<'a> {
        let directory = Directory::new(name, 0);
        let file = directory.0.join("near.toml");
        fs::write(&file, text).expect("a file");
        let mut command = ground.a.command(&ground.program);
        command.args(["run", "-j", "-c"]).arg(&file);
        let mut service = Process::spawn(command, b"").expect("segue starts");
        service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        Near { ground, directory, service }
    }

    /// Changes the file and reloads it.
    fn reload(&self, text: &str) -> Output {
        fs::write(self.directory.0.join("near.toml"), text).expect("a file");
        segue(&self.ground.a, &self.ground.program, &["reload", "near"])
    }

    fn knob(&self, instance: &str, name: &str) -> String {
        text(&segue(&self.ground.a, &self.ground.program, &["set", instance, name, "-q"]).stdout).trim().to_owned()
    }
}

#[test]
fn a_socket_left_by_a_start_that_was_killed_does_not_take_the_place_of_a_live_one() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let left = "import socket; socket.socket(socket.AF_UNIX).bind('/run/segue/sg1.next')";
    ground.a.run("python3", &["-c", left]).expect("a socket without a listener");
    let near = Near::start(&ground, "left", &table(1, ""));
    let stat = Stat::until(&ground.a, &ground.program, "sg1", PATIENCE, |stat| stat.json()["pid"].as_u64() > Some(0));
    assert!(stat.json()["pid"].as_u64() > Some(0), "{}", near.service.stderr());
}

#[test]
fn a_reload_sets_one_knob_of_very_many() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let knob = |net: u8| format!("net.gro.dev.sg{net}.max_packets");
    let file = |last: u8| {
        (1..=250)
            .map(|net| table(net, &format!("{} = {}", knob(net), if net == 250 { last } else { 9 })))
            .collect::<String>()
    };
    let near = Near::start(&ground, "many", &file(9));
    assert_eq!(near.knob("sg1", &knob(250)), "9", "{}", near.service.stderr());
    let reloaded = near.reload(&file(8));
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    assert_eq!(near.knob("sg1", &knob(250)), "8", "{}{}", text(&reloaded.stderr), near.service.stderr());
    // All of them at once.
    let all = file(8).replace("max_packets = 9", "max_packets = 7");
    assert!(near.reload(&all).status.success());
    assert_eq!([1, 249, 250].map(|net| near.knob("sg1", &knob(net))), ["7", "7", "8"]);
}

/// A program in front of the control socket of an instance, which drops requests to set knobs while there is a file, or
/// only their answers where the file says so.
const PROXY: &str = "
import os, socket, sys
path, real, refuses = sys.argv[1:]
os.rename(path, real)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print('listens', flush=True)
while True:
    client, _ = listener.accept()
    line = client.makefile('rb').readline()
    fails = line.startswith(b'{\"set\"') and os.path.exists(refuses)
    if not fails or open(refuses).read() == 'answers only':
        server = socket.socket(socket.AF_UNIX)
        server.connect(real)
        server.sendall(line)
        answer = server.makefile('rb').read()
        client.sendall(b'' if fails else answer)
    client.close()
";

#[test]
fn a_knob_that_could_not_be_set_is_named_and_the_next_reload_sets_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let near = Near::start(&ground, "refused", &table(1, ""));
    let refuses = near.directory.0.join("refuses");
    let mut command = ground.a.command("python3");
    command.args(["-c", PROXY, "/run/segue/sg1.sock", "/run/segue/sg1.real"]).arg(&refuses);
    let mut proxy = Process::spawn(command, b"").expect("python3 starts");
    proxy.wait_for_line("listens", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    fs::write(&refuses, "").expect("a file");
    let changed = table(1, "net.inet.udp.gso = 0");
    for _ in 0..2 {
        let failed = near.reload(&changed);
        let said = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{said}");
        assert!(said.contains("failed to set the knobs of sg1"), "{said}");
        assert_eq!(near.knob("sg1", "net.inet.udp.gso"), "1");
    }
    fs::remove_file(&refuses).expect("a file");
    let reloaded = near.reload(&changed);
    assert!(reloaded.status.success() && text(&reloaded.stderr).contains("knobs set sg1"), "{reloaded:?}");
    assert_eq!(near.knob("sg1", "net.inet.udp.gso"), "0");
    // One that was set although the request failed is taken back with the file.
    assert!(near.reload(&table(1, "")).status.success());
    fs::write(&refuses, "answers only").expect("a file");
    let failed = near.reload(&changed);
    assert!(!failed.status.success() && text(&failed.stderr).contains("knobs of sg1 are not all set"), "{failed:?}");
    assert_eq!(near.knob("sg1", "net.inet.udp.gso"), "0");
    fs::remove_file(&refuses).expect("a file");
    for outcome in ["knobs set sg1", "1 unchanged"] {
        let reloaded = near.reload(&table(1, ""));
        assert!(reloaded.status.success() && text(&reloaded.stderr).contains(outcome), "{reloaded:?}");
        assert_eq!(near.knob("sg1", "net.inet.udp.gso"), "1");
    }
}

#[test]
fn a_reload_of_a_file_whose_keys_have_another_order_touches_nothing() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let more = "addr = [\"198.19.1.1/30\"]\nttl = 9\npmtudisc = false";
    let tables = [table(1, more), table(2, ""), "[metrics]\nlisten = [\"198.18.0.1\"]\nevery = 9\n".to_owned()];
    let near = Near::start(&ground, "order", &tables.concat());
    let pids = || {
        let document = text(&segue(&ground.a, &ground.program, &["stat", "-j"]).stdout);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        let instances = document["instances"].as_array().expect("a list");
        instances.iter().map(|one| one["pid"].as_u64().expect("a pid")).collect::<Vec<_>>()
    };
    let before = pids();
    let reversed = |table: &String| {
        let (heading, keys) = table.split_once('\n').expect("a heading");
        [heading].into_iter().chain(keys.lines().rev()).map(|line| format!("{line}\n")).collect::<String>()
    };
    let reloaded = near.reload(&tables.iter().map(reversed).collect::<String>());
    let said = text(&reloaded.stderr);
    assert!(reloaded.status.success() && said.contains(" 2 unchanged"), "{said}");
    assert_eq!(pids(), before);
}

#[test]
fn both_ends_of_a_gateway_have_counters_and_knobs_if_their_interfaces_have_the_same_name() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    ip(&ground.a, "link add in0 type veth peer name in1");
    ip(&ground.a, "link set in0 addrgenmode none up");
    ip(&ground.a, "addr add 198.19.1.1/24 dev in1");
    ip(&ground.a, "link set in1 up");
    let names = ["in0".to_owned(), format!("in0@{}", ground.b.net_path())];
    let mut command = ground.a.command(&ground.program);
    command.args(["gateway", "in0", &format!("tap:{}", names[1]), "--name", "gw0", "--no-lro", "-j"]);
    let mut gateway = Process::spawn(command, b"").expect("segue starts");
    gateway.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    ip(&ground.b, "addr add 198.19.1.2/24 dev in0");
    let ends = ["198.19.1.1", "198.19.1.2"].map(|end| end.parse().expect("an address"));
    reach((&ground.a, ends[0]), (&ground.b, ends[1]), PATIENCE).expect("the gateway");
    let is_moved = |stat: &Stat, name: &String| {
        ["receive", "transmit"].iter().all(|direction| stat.count(name, direction, "packets") > 0)
    };
    let all = |stat: &Stat| names.iter().all(|name| is_moved(stat, name));
    let stat = Stat::until(&ground.a, &ground.program, "gw0", PATIENCE, all);
    for name in &names {
        assert!(is_moved(&stat, name), "{name}: {}", stat.json());
        let knob = format!("net.gro.dev.{name}.enable_gro");
        let value = text(&segue(&ground.a, &ground.program, &["set", "gw0", &knob, "-q"]).stdout);
        assert_eq!(value.trim(), "0", "{knob}");
    }
}

#[test]
fn a_trace_is_live_in_a_pipe_overwrites_nothing_and_is_what_its_name_says() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["mkfifo"]) else { return };
    let directory = Directory::new("trace", 0);
    let path = |name: &str| directory.0.join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("precious.txt"), "precious").expect("a file");
    let words =
        |trace: &str| [&Shape::new(Gre, Gue, V4).words(Peer::A, 1)[..], &["--trace".into(), path(trace)]].concat();
    let precious = words("precious.txt");
    let refused = segue(
        &ground.a,
        &ground.program,
        &[&["tunnel"], &precious.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat(),
    );
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert_eq!(fs::read_to_string(path("precious.txt")).expect("a file"), "precious");
    // What a reader of a pipe gets while the tunnel runs: the header, then packets.
    ground.a.run("mkfifo", &[&path("pipe.pcapng")]).expect("a pipe");
    let reader = {
        let path = path("pipe.pcapng");
        thread::spawn(move || {
            use std::io::Read;
            let mut bytes = vec![0; 400];
            fs::File::open(path).expect("a pipe").read_exact(&mut bytes).expect("packets");
            bytes
        })
    };
    let mut tunnel = Tunnel::start(&ground.a, &ground.program, &words("pipe.pcapng"));
    let begin = Instant::now();
    while !reader.is_finished() {
        assert!(begin.elapsed() < PATIENCE, "nothing came");
        // Nothing answers at the other end.
        let _ = ground.a.run("ping", &["-c", "1", "-W", "1", "-s", "200", &Peer::B.address(1, V4).to_string()]);
    }
    let bytes = reader.join().expect("packets");
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header of pcapng");
    // The reader has gone, and the tunnel goes on.
    let _ = ground.a.run("ping", &["-c", "2", "-W", "1", &Peer::B.address(1, V4).to_string()]);
    assert!(tunnel.process.ended().is_none());
    assert!(segue(&ground.a, &ground.program, &["stat", "sg1"]).status.success());
}

#[test]
fn a_trace_ends_at_its_size_with_a_whole_packet_and_the_tunnel_goes_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["tshark"]) else { return };
    let directory = Directory::new("trace-size", 0);
    let path = directory.0.join("sg1.pcap").to_str().expect("UTF-8").to_owned();
    let mut words = Shape::new(Gre, Gue, V4).words(Peer::A, 1);
    words.extend(["--trace", &path, "--trace-size", "1"].map(str::to_owned));
    let a = Tunnel::start(&ground.a, &ground.program, &words);
    let b = Tunnel::start(&ground.b, &ground.program, &Shape::new(Gre, Gue, V4).words(Peer::B, 1));
    let from = traffic::Place { host: &ground.a, address: Peer::A.address(1, V4) };
    let to = traffic::Place { host: &ground.b, address: Peer::B.address(1, V4) };
    // It compares what arrives.
    traffic::file(from, to, 4 << 20, 1);
    let stat = segue(&ground.a, &ground.program, &["stat", "-j", "sg1"]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    let found = stat.to_string();
    assert!(found.contains("\"trace_full\":1"), "{found}");
    let data = fs::metadata(&path).expect("a file");
    let len = data.len();
    assert_eq!(data.mode() & 0o777, 0o600, "packets are for their owner");
    // A train has at most 65,535 bytes, and a record 16 more.
    assert!((1_000_000 - 65_551..=1_000_000).contains(&len), "{len}");
    ground.a.run("tshark", &["-r", &path, "-q"]).expect("a whole capture");
    traffic::file(from, to, 1 << 20, 2);
    assert_eq!(fs::metadata(&path).expect("a file").len(), len);
    drop((a, b));
}

/// Returns the number of packets with a congestion mark that the kernel of a host has received.
fn marks_received(host: &Host) -> u64 {
    let said = host.run("nstat", &["-asz", "IpExtInCEPkts"]).expect("nstat");
    let line = said.lines().find(|line| line.starts_with("IpExtInCEPkts")).unwrap_or_else(|| panic!("{said}"));
    line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn what_waits_too_long_is_marked_where_tcp_supports_ecn_and_dropped_elsewhere_and_every_byte_arrives() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["nstat"]) else { return };
    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), 1);
    let (from, to) = (pair.place(Peer::A, V4), pair.place(Peer::B, V4));
    // Whatever waits has waited too long.
    let knobs = ["enable_fq", "1", "target_us", "1", "interval_us", "1000", "limit", "262144"];
    for knob in knobs.chunks(2) {
        let set = segue(&ground.a, &ground.program, &["set", "sg1", &format!("net.fq.dev.udp.{}", knob[0]), knob[1]]);
        assert!(set.status.success(), "{}", text(&set.stderr));
    }
    for (ecn, seed) in [(true, 1), (false, 2)] {
        for host in [&ground.a, &ground.b] {
            host.set_sysctl("ipv4/tcp_ecn", if ecn { "1" } else { "0" }).expect("tcp_ecn");
        }
        let counts = || {
            let stat = &pair.stat()[0];
            let marked = stat.json()["ports"]["udp"]["numbers"]["marked"].as_u64().expect("a counter");
            [marked, stat.dropped("codel"), marks_received(&ground.b)]
        };
        let before = counts();
        let begin = Instant::now();
        let [marked, dropped, received] = loop {
            // It compares what arrives.
            traffic::file(from, to, 16 << 20, seed);
            let now = counts();
            let more: [u64; 3] = std::array::from_fn(|at| now[at] - before[at]);
            if more[usize::from(!ecn)] > 0 {
                break more;
            }
            assert!(begin.elapsed() < PATIENCE, "ECN {ecn}: {more:?}");
        };
        // SYN and what has no data are not ECN-capable, and seldom wait.
        assert_eq!(
            (marked > 0, received > 0),
            (ecn, ecn),
            "ECN {ecn}: {marked} marked, {dropped} dropped, {received} received"
        );
    }
}
