//! Tests of the start and the end of `segue tunnel`: it leaves no state behind, reports each refusal, and exits with
//! one of three statuses.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::{Duration, Instant};

use segue_lab::Family::{V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_tests::Carrier::GueRemcsum;
use segue_tests::Inside::Gre;
use segue_tests::capture::Directory;
use segue_tests::{Ground, Pair, Shape, Stat, Tunnel, sys, test_name, traffic};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;

fn shape() -> Shape {
    Shape::new(Gre, GueRemcsum, V4)
}

/// Creates two hosts on whose link the kernel has already assigned all automatic addresses and routes.
fn ground(name: &str, tools: &[&str]) -> Option<Ground> {
    let ground = Ground::new(name, LinkForm::Nic, tools)?;
    let begin = Instant::now();
    loop {
        let state = state(&ground.a);
        if state.contains("local fe80::") && state.contains("multicast ff00::/8 dev eth0") {
            return Some(ground);
        }
        assert!(begin.elapsed() < PATIENCE, "eth0 has no link-local address:\n{state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the parts of a host's state that a tunnel changes.
fn state(host: &Host) -> String {
    let output = |program: &str, words: &[&str]| host.run(program, words).unwrap();
    [
        output("ip", &["-br", "link"]),
        output("ip", &["-br", "addr"]),
        output("ip", &["route", "show", "table", "all"]),
        output("ip", &["-6", "route", "show", "table", "all"]),
        output("ls", &["-A", "/run/segue"]),
        sockets(host),
    ]
    .join("\n")
}

/// Returns the UDP sockets of a host, of which an idle host has none.
fn sockets(host: &Host) -> String {
    let read = || {
        fs::read_to_string("/proc/thread-self/net/udp").unwrap()
            + &fs::read_to_string("/proc/thread-self/net/udp6").unwrap()
    };
    host.enter(read).unwrap().lines().filter(|line| !line.contains("local_address")).collect()
}

/// Runs `segue` until it exits; returns exit status, stdout and stderr.
fn run(ground: &Ground, words: &[&str]) -> (i32, String, String) {
    let mut command = ground.a.command(&ground.program);
    command.args(words);
    let mut process = Process::spawn(command, b"").unwrap();
    let status = process.wait(PATIENCE).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let code = status.code().unwrap_or_else(|| panic!("{words:?}: {status}"));
    (code, process.stdout(), process.stderr())
}

fn tunnel_words(ground: &Ground, words: &[&str]) -> (i32, String, String) {
    run(ground, &[&["tunnel"], words].concat())
}

#[test]
fn sigterm_and_sigint_end_a_tunnel_with_0_and_leave_nothing() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let before = state(&ground.a);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut pair = Pair::start(&ground, shape(), 1);
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V6));
        traffic::datagrams(a, b, &[100, 4000], 1);
        let running = state(&ground.a);
        assert!(running.contains("sg1") && running.contains("sg1.sock"), "{running}");
        let begin = Instant::now();
        sys::signal(pair.at_a.process.id(), signal).unwrap();
        let status = pair.at_a.process.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "after signal {signal}: {}", pair.at_a.process.last_words());
        assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
        assert_eq!(state(&ground.a), before, "after signal {signal}");
    }
}

#[test]
fn a_tunnel_that_was_killed_can_be_started_again_at_once() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let before = state(&ground.a);
    let mut tunnel = Tunnel::start(&ground.a, &ground.program, &shape().words(Peer::A, 1));
    sys::signal(tunnel.process.id(), libc::SIGKILL).unwrap();
    tunnel.process.wait(PATIENCE).unwrap();
    let begin = Instant::now();
    while ground.a.has_device("sg1") {
        assert!(begin.elapsed() < PATIENCE, "sg1 outlives its program");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut pair = Pair::start(&ground, shape(), 1);
    pair.at_a.process.terminate();
    assert_eq!(pair.at_a.process.wait(PATIENCE).unwrap().code(), Some(0));
    assert_eq!(state(&ground.a), before);
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_made() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    for outer in [V4, V6] {
        let shape = Shape::new(Gre, GueRemcsum, outer);
        let before = state(&ground.a);
        let taken =
            traffic::inside(&ground.a, || UdpSocket::bind((Peer::A.address(0, outer), Shape::port(1)))).unwrap();
        let words = shape.words(Peer::A, 1);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, _, stderr) = tunnel_words(&ground, &words);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("6081") && stderr.contains("in use"), "{stderr}");
        drop(taken);
        assert_eq!(state(&ground.a), before);
    }
}

#[test]
fn a_second_instance_of_a_name_is_refused_and_the_first_goes_on() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let pair = Pair::start(&ground, shape(), 1);
    let mut words = shape().words(Peer::A, 1);
    // On another port, so that the name alone is in the way.
    words.extend(["port".into(), "7000".into()]);
    let before = state(&ground.a);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, _, stderr) = tunnel_words(&ground, &words);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("sg1"), "{stderr}");
    assert_eq!(state(&ground.a), before);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    traffic::file(a, b, 1 << 20, 1);
    Stat::read(&ground.a, &ground.program, "sg1");
}

#[test]
fn an_interface_of_somebody_else_is_left_alone() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    ground.a.run("ip", &["link", "add", "sg1", "type", "veth", "peer", "name", "other"]).unwrap();
    let before = state(&ground.a);
    let (code, _, stderr) = tunnel_words(&ground, &["dev", "sg1", "remote", "198.18.0.2", "encap", "gue"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("sg1"), "{stderr}");
    assert_eq!(state(&ground.a), before);
}

#[test]
fn a_user_without_the_right_gets_one_clear_line_and_exit_1() {
    let Some(ground) = ground(test_name!(), &["ls", "setpriv"]) else { return };
    let before = state(&ground.a);
    let directory = Directory::new();
    // The program where every user may run it, and a runtime directory, which a user without a login lacks.
    let (program, runtime) = (directory.file("segue"), directory.file("run"));
    fs::copy(&ground.program, &program).unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = ground.a.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        command.env("XDG_RUNTIME_DIR", &runtime).arg(&program).args(words);
        let mut process = Process::spawn(command, b"").unwrap();
        let status = process.wait(PATIENCE).unwrap();
        (status.code(), process.stdout(), process.stderr())
    };
    let words = ["tunnel", "dev", "sg1", "remote", "198.18.0.2", "encap", "gue"];
    let (code, _, stderr) = as_nobody(&words);
    assert_eq!(code, Some(1), "{stderr}");
    let first = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{stderr}"));
    // The file's mode stops this user where it is narrow, the missing capability elsewhere.
    let named = ["CAP_NET_ADMIN", "/dev/net/tun"].iter().any(|what| stderr.contains(what));
    assert!(first.contains("sg1") && named && stderr.contains("try:"), "{stderr}");
    let (code, stdout, stderr) = as_nobody(&[&words[..], &["-j"]].concat());
    let error: Value = serde_json::from_str(&stdout).unwrap_or_else(|wrong| panic!("{wrong}: {stdout} {stderr}"));
    assert_eq!((code, &error["error"]["kind"]), (Some(1), &"no_permission".into()), "{stdout}");
    assert_eq!(state(&ground.a), before);

    // A tunnel of root shows its counters to root alone.
    let _tunnel = Tunnel::start(&ground.a, &ground.program, &shape().words(Peer::A, 1));
    Stat::read(&ground.a, &ground.program, "sg1");
    let mode = ground.a.run("ls", &["-ln", "/run/segue/sg1.sock"]).unwrap();
    assert!(mode.starts_with("srw-------") && mode.contains(" 0 0 "), "{mode}");
    let (_, stdout, stderr) = as_nobody(&["stat", "-j"]);
    assert!(!stdout.contains("checksummed_bytes"), "{stdout}{stderr}");
    let (code, stdout, stderr) = as_nobody(&["stat", "sg1"]);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
}

#[test]
fn the_process_that_moves_packets_has_no_rights_left() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let tunnel = Tunnel::start(&ground.a, &ground.program, &shape().words(Peer::A, 1));
    let stat = Stat::read(&ground.a, &ground.program, "sg1");
    let pid = stat.json()["pid"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(capabilities), ["0000000000000000"], "{status}");
    }
    assert_eq!(field("NoNewPrivs"), ["1"], "{status}");
    assert_eq!(field("Seccomp"), ["2"], "{status}");
    assert!(field("Uid").iter().all(|uid| uid != "0"), "{status}");
    drop(tunnel);
}

#[test]
fn usage_errors_exit_with_2_and_create_nothing() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let before = state(&ground.a);
    let base = ["dev", "sg1", "remote", "198.18.0.2"];
    let cases: &[(&[&str], &str)] = &[
        (&["encap", "none", "encap-remcsum"], "encap-remcsum"),
        (&["encap", "gue", "encap-remcsum", "noencap-csum"], "noencap-csum"),
        (&["encap", "fou", "encap-remcsum", "encap-dport", "5555"], "encap-remcsum"),
        (&["encap", "fou"], "encap-dport"),
        (&["encap", "gue", "remot", "198.18.0.3"], "remote"),
        (&["encap", "gue", "mode", "ipip", "key", "7"], "key"),
        (&["encap", "gue", "mode", "sit", "addr", "198.19.1.1/24"], "IPv6"),
        (&["encap", "gue", "local", "2001:db8::1"], "198.18.0.2"),
        (&["encap", "gue", "encap-dport", "65536"], "65536"),
        (&["encap", "gue", "encap-dport", "6080", "encap-dport", "6081"], "twice"),
        (&["encap", "gue", "mode", "ip6gre"], "IPv6"),
        (&["encap", "gue", "ttl"], "ttl"),
    ];
    for (words, said) in cases {
        let words = [&base[..], words].concat();
        let (code, stdout, stderr) = tunnel_words(&ground, &words);
        assert_eq!(code, 2, "{words:?}: {stderr}");
        assert!(stderr.contains(said) && stdout.is_empty(), "{words:?}: {stderr}");
        let (code, stdout, _) = tunnel_words(&ground, &[&words[..], &["-j"]].concat());
        let error: Value = serde_json::from_str(&stdout).unwrap_or_else(|wrong| panic!("{wrong}: {stdout}"));
        assert!(code == 2 && error["error"]["message"].is_string(), "{words:?}: {stdout}");
    }
    for words in [&["dev", "sg1", "encap", "gue"][..], &["remote", "198.18.0.2", "encap", "gue"]] {
        assert_eq!(tunnel_words(&ground, words).0, 2, "{words:?}");
    }
    assert_eq!(run(&ground, &["tunel"]).0, 2);
    assert_eq!(run(&ground, &["--help"]).0, 0);
    assert_eq!(run(&ground, &["--version"]).0, 0);
    assert_eq!(state(&ground.a), before);
}

#[test]
fn failures_exit_with_1_and_create_nothing() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let before = state(&ground.a);
    for (words, said) in [
        (&["local", "198.18.0.9", "remote", "198.18.0.2"][..], "198.18.0.9"),
        (&["remote", "198.51.100.1"], "198.51.100.1"),
    ] {
        let words = [&["dev", "sg1", "encap", "gue"][..], words].concat();
        let (code, _, stderr) = tunnel_words(&ground, &words);
        assert_eq!(code, 1, "{words:?}: {stderr}");
        assert!(stderr.contains(said) && stderr.contains("error: "), "{words:?}: {stderr}");
    }
    let (code, _, stderr) = run(&ground, &["stat", "sg1"]);
    assert!(code == 1 && stderr.contains("sg1"), "{code}: {stderr}");
    assert_eq!(state(&ground.a), before);
}

#[test]
fn a_check_shows_the_plan_and_changes_nothing() {
    let Some(ground) = ground(test_name!(), &["ls"]) else { return };
    let before = state(&ground.a);
    let words = shape().words(Peer::A, 1);
    let words: Vec<&str> = std::iter::once("--check").chain(words.iter().map(String::as_str)).collect();
    let (code, stdout, stderr) = tunnel_words(&ground, &words);
    assert!(code == 0 && stdout.contains("sg1"), "{stdout}{stderr}");
    let (code, stdout, _) = tunnel_words(&ground, &[&words[..], &["-j"]].concat());
    let plan: Value = serde_json::from_str(&stdout).unwrap_or_else(|wrong| panic!("{wrong}: {stdout}"));
    // 20 IPv4, 8 UDP, 12 GUE with the option, 4 GRE.
    assert!(code == 0 && stdout.contains("1456"), "{plan}");
    assert_eq!(state(&ground.a), before);
}

#[test]
fn the_interface_has_the_links_mtu_less_the_headers() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    for (inside, outer, mtu) in [(Gre, V4, 1456), (Gre, V6, 1436), (segue_tests::Inside::GreKeyCsum, V4, 1448)] {
        let _tunnel =
            Tunnel::start(&ground.a, &ground.program, &Shape::new(inside, GueRemcsum, outer).words(Peer::A, 1));
        let line = ground.a.run("ip", &["-o", "link", "show", "dev", "sg1"]).unwrap();
        assert!(line.contains(&format!("mtu {mtu} ")), "{line}");
    }
}
