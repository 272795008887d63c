//! Tests of HEALTH: each fault of a tunnel is named with its cause, and `--health` fails, until it is repaired; traffic
//! that passes, or flows in one direction only, causes no alarm.
//!
//! `make figures ONLY=health` measures how long alarms and cures take: the tests then write their times to a file.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::V4;
use segue_lab::{DEVICE, Host, LinkForm, Peer, Process};
use segue_tests::Carrier::{Bare, Gue};
use segue_tests::Inside::{Gre, Ipip, Vxlan};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Pair, Shape, Stat, Tunnel, fastpath, test_name};
use serde_json::Value;

/// Time within which a fault must be named, and its end be noticed: five times the usual time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two bursts of a tunnel that is otherwise idle.
const QUIET: Duration = Duration::from_secs(7);
/// Options of a tunnel in UDP that takes the in-kernel path if there is no obstacle (`fastpath auto` is the default).
const BY_KERNEL: &[&str] = &["noencap-csum", "fastpath", "auto"];

/// Result of `segue stat`.
struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn stat(host: &Host, program: &Path, words: &[&str]) -> Output {
    let output = host.command(program).arg("stat").args(words).output().expect("segue stat runs");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Output { code: output.status.code(), stdout, stderr }
}

/// Returns the problems of the only instance on a host.
fn problems(host: &Host, program: &Path) -> Vec<Value> {
    let seen = stat(host, program, &["-j"]);
    let document: Value = serde_json::from_str(&seen.stdout).unwrap_or_else(|error| panic!("{error}: {}", seen.stdout));
    document["instances"][0]["health"].as_array().cloned().unwrap_or_default()
}

thread_local! {
    /// The problem that was awaited last and is not cured yet.
    static LAST: Cell<Option<String>> = const { Cell::new(None) };
    /// The time of each alarm and cure since the last look.
    static TIMES: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
}

/// Asserts that most alarms and cures since the last look took at most five times the three seconds that
/// `tools/figures.d/health` asserts of each; a busy machine delays some.
#[track_caller]
fn assert_prompt() {
    let times = TIMES.take();
    let late = times.iter().filter(|time| **time > Duration::from_secs(15)).count();
    assert!(times.len() > 8 && late * 4 <= times.len(), "{late} took more than 15 s: {times:?}");
}

/// Appends a duration to the file named by `SEGUE_HEALTH_TIMES`, if set.
fn note_time(what: &str, begin: Instant) {
    TIMES.with_borrow_mut(|times| times.push(begin.elapsed()));
    let Some(path) = std::env::var_os("SEGUE_HEALTH_TIMES") else { return };
    let mut file = File::options().append(true).create(true).open(path).expect("a file for times");
    writeln!(file, "{:.3} {what}", begin.elapsed().as_secs_f64()).expect("written");
}

/// Appends the time until the last awaited problem was cured, unless it was written before.
fn note_cure(begin: Instant) {
    if let Some(code) = LAST.take() {
        note_time(&format!("ok after {code}"), begin);
    }
}

/// Returns the time for which traffic must cause no alarm: `SEGUE_CALM`, in seconds, or a minute.
fn calm() -> Duration {
    let text = std::env::var("SEGUE_CALM");
    Duration::from_secs(text.map_or(60, |text| text.parse().expect("SEGUE_CALM is a number of seconds")))
}

/// Waits until the host reports the problem `code`, and then until `--health` fails with it.
#[track_caller]
fn await_problem(host: &Host, program: &Path, code: &str, words: &[&str]) {
    let begin = Instant::now();
    loop {
        let found = problems(host, program);
        if let Some(problem) = found.iter().find(|problem| problem["code"] == code) {
            let text = problem.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
            assert!(problem["why"].is_string() && problem["fix"].is_string(), "{text}");
            let seen = stat(host, program, &["--health"]);
            let what = problem["what"].as_str().unwrap_or_default();
            assert_eq!(seen.code, Some(1), "{}{}", seen.stdout, seen.stderr);
            note_time(code, begin);
            LAST.set(Some(code.to_owned()));
            let same = problems(host, program).iter().any(|problem| problem["code"] == code);
            assert!(!same || seen.stdout.contains(what.split(' ').next().unwrap_or_default()), "{}", seen.stdout);
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "no {code} in {found:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `--health` succeeds.
#[track_caller]
fn await_ok(host: &Host, program: &Path) {
    let begin = Instant::now();
    loop {
        let seen = stat(host, program, &["--health"]);
        if seen.code == Some(0) {
            return note_cure(begin);
        }
        assert!(begin.elapsed() < PATIENCE, "not well again: {}{}", seen.stdout, seen.stderr);
        thread::sleep(Duration::from_millis(50));
    }
}

fn ip(host: &Host, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    host.run("ip", &words).unwrap_or_else(|error| panic!("ip {line}: {error}"));
}

/// Starts an endless ping from `host` to the inner address of `to` in tunnel `net`.
fn ping(host: &Host, to: Peer, net: u8) -> Process {
    let mut command = host.command("ping");
    command.args(["-q", "-i", "0.2", &to.address(net, V4).to_string()]);
    Process::spawn(command, b"").expect("ping starts")
}

fn shape(inside: segue_tests::Inside, carrier: segue_tests::Carrier, extra: &'static [&'static str]) -> Shape {
    Shape { extra, ..Shape::new(inside, carrier, V4) }
}

/// Waits until the kernel carries the packets of the tunnel at A, which must have traffic in both directions.
#[track_caller]
fn await_kernel(ground: &Ground) {
    let is_carried = |stat: &Stat| fastpath::taken(stat).iter().all(|count| *count > 0);
    let stat = Stat::until(&ground.a, &ground.program, &Shape::device(fastpath::NET), PATIENCE, is_carried);
    let state = &stat.json()["fastpath"];
    assert!(is_carried(&stat) && state["on"] == true, "{state}");
}

#[test]
fn each_fault_of_the_underlay_is_named_until_it_is_mended() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    each_fault(&ground, Shape::new(Gre, Gue, V4));
}

#[test]
fn each_fault_of_the_underlay_is_named_where_the_kernel_carries_the_packets() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    each_fault(&ground, shape(Gre, Gue, BY_KERNEL));
}

/// Tests that each fault of the underlay of a tunnel with traffic is named, and that all is well after its cure.
#[track_caller]
fn each_fault(ground: &Ground, shape: Shape) {
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let pair = Pair::start(ground, shape, fastpath::NET);
    let _traffic = [ping(a, Peer::B, 1), ping(b, Peer::A, 1)];
    await_ok(a, program);
    if shape.extra == BY_KERNEL {
        await_kernel(ground);
    }
    let prefix = "198.18.0.1/24";
    for (code, fault, cure, words) in [
        ("link_down", vec![format!("link set {DEVICE} down")], vec![format!("link set {DEVICE} up")], vec![DEVICE]),
        (
            "address_gone",
            vec![format!("addr del {prefix} dev {DEVICE}")],
            vec![format!("addr add {prefix} dev {DEVICE}")],
            vec!["198.18.0.1", prefix],
        ),
        (
            "no_route",
            vec!["route del 198.18.0.0/24".to_owned()],
            vec![format!("route add 198.18.0.0/24 dev {DEVICE} src 198.18.0.1")],
            vec!["198.18.0.2", "ip route add"],
        ),
        (
            "mtu",
            vec![format!("link set {DEVICE} mtu 1400")],
            vec![format!("link set {DEVICE} mtu 1500")],
            vec!["1400", "ip link set dev sg1 mtu"],
        ),
        ("interface_down", vec!["link set sg1 down".to_owned()], vec!["link set sg1 up".to_owned()], vec!["sg1"]),
    ] {
        fault.iter().for_each(|line| ip(a, line));
        await_problem(a, program, code, &words);
        cure.iter().for_each(|line| ip(a, line));
        // The address of the interface that was down has no route any more.
        ip(a, &format!("route replace {} dev sg1", Peer::B.address(1, V4)));
        await_ok(a, program);
    }
    // The neighbour answers no ARP request any more.
    ip(b, &format!("link set {DEVICE} arp off"));
    ip(a, &format!("neigh flush dev {DEVICE}"));
    await_problem(a, program, "neighbour_gone", &["198.18.0.2", DEVICE]);
    ip(b, &format!("link set {DEVICE} arp on"));
    await_ok(a, program);
    // The other end of the cable.
    ip(b, &format!("link set {DEVICE} down"));
    await_problem(a, program, "no_carrier", &[DEVICE]);
    ip(b, &format!("link set {DEVICE} up"));
    await_ok(a, program);
    drop(pair);
    assert_prompt();
}

#[test]
fn an_offload_that_is_switched_off_is_named_with_the_command_that_switches_it_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, program) = (&ground.a, ground.program.as_path());
    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), 1);
    let ethtool = |dev: &str, word: &str, on: &str| a.run("ethtool", &["-K", dev, word, on]).expect("ethtool -K");
    await_ok(a, program);
    for (code, dev, word) in [("underlay_tx_off", DEVICE, "tx"), ("offload_off", "sg1", "tso")] {
        ethtool(dev, word, "off");
        let fix = format!("sudo ethtool -K {dev} {word} on");
        await_problem(a, program, code, &[&fix]);
        // Trains are refused, and sent again after the cure.
        segue_tests::traffic::datagram_train(pair.place(Peer::A, V4), pair.place(Peer::B, V4), 1000, 40, 5);
        ethtool(dev, word, "on");
        let begin = Instant::now();
        while stat(a, program, &["--health"]).code != Some(0) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", problems(a, program));
            segue_tests::traffic::datagram_train(pair.place(Peer::A, V4), pair.place(Peer::B, V4), 1000, 40, 6);
        }
        note_cure(begin);
    }
    // At the start and in a check it is a note.
    ethtool(DEVICE, "tx", "off");
    let words = shape(Gre, Gue, &["--check"]).words(Peer::A, 2);
    let output = a.command(program).arg("tunnel").args(&words).output().expect("segue runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("ethtool -K {DEVICE} tx on")), "{text}");
}

#[test]
fn an_offload_of_the_underlay_is_named_for_bare_gre_and_without_outer_checksums() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let ethtool = |word: &str, on: &str| a.run("ethtool", &["-K", DEVICE, word, on]).expect("ethtool -K");
    for shape in [shape(Gre, Bare, &["fastpath", "auto"]), shape(Gre, Gue, BY_KERNEL)] {
        let pair = Pair::start(&ground, shape, fastpath::NET);
        let traffic = [ping(a, Peer::B, 1), ping(b, Peer::A, 1)];
        await_kernel(&ground);
        await_ok(a, program);
        for word in ["tx", "tso"] {
            ethtool(word, "off");
            let fix = format!("sudo ethtool -K {DEVICE} {word} on");
            await_problem(a, program, &format!("underlay_{word}_off"), &[&fix]);
            ethtool(word, "on");
            await_ok(a, program);
        }
        drop((traffic, pair));
    }
    // The daemon computes the checksums of this form itself, and its socket joins what the link's GRO hands over.
    let pair = Pair::start(&ground, shape(Gre, Gue, &["noencap-csum", "fastpath", "off"]), fastpath::NET);
    ethtool("tx", "off");
    ethtool("gro", "on");
    // HEALTH looks at once after a notice, and takes its time for the next look.
    thread::sleep(Duration::from_secs(2));
    await_ok(a, program);
    ethtool("gro", "off");
    await_problem(a, program, "underlay_gro_off", &[&format!("sudo ethtool -K {DEVICE} gro on")]);
    let found: Vec<Value> = problems(a, program).into_iter().map(|problem| problem["code"].clone()).collect();
    assert_eq!(found, ["underlay_gro_off"]);
    ethtool("gro", "on");
    await_ok(a, program);
    drop(pair);
}

#[test]
fn health_reports_refused_while_the_peer_is_stopped_and_ok_when_it_returns() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    refused_while_stopped(&ground, Shape::new(Gre, Gue, V4), "refuses UDP 6081");
    refused_while_stopped(&ground, Shape::new(Gre, Bare, V4), "198.18.0.2");
}

#[test]
fn health_reports_refused_while_the_peer_is_stopped_where_the_kernel_carries_the_packets() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    refused_while_stopped(&ground, shape(Gre, Gue, BY_KERNEL), "refuses UDP 6081");
    refused_while_stopped(&ground, shape(Gre, Bare, &["fastpath", "auto"]), "198.18.0.2");
}

/// Tests that A names the refusals of B's host while the tunnel at B is stopped.
#[track_caller]
fn refused_while_stopped(ground: &Ground, shape: Shape, what: &str) {
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let Pair { at_a, mut at_b, .. } = Pair::start(ground, shape, fastpath::NET);
    let traffic = ping(a, Peer::B, 1);
    await_ok(a, program);
    if shape.extra.contains(&"fastpath") {
        await_kernel(ground);
    }
    at_b.process.stop(Duration::from_secs(5));
    await_problem(a, program, "refused", &[what, "last packet received"]);
    let at_b = Tunnel::start(b, program, &shape.words(Peer::B, 1));
    await_ok(a, program);
    drop((traffic, at_a, at_b));
}

#[test]
fn a_refusal_is_over_as_soon_as_the_other_end_is_heard_although_nothing_is_sent() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let shape = Shape::new(Gre, Gue, V4);
    let Pair { at_a, mut at_b, .. } = Pair::start(&ground, shape, 1);
    let traffic = ping(a, Peer::B, 1);
    await_ok(a, program);
    at_b.process.stop(Duration::from_secs(5));
    await_problem(a, program, "refused", &["refuses UDP 6081"]);
    drop(traffic);
    // HEALTH looks twice a second; an end that it never saw quiet may be one that sends while another port refuses.
    thread::sleep(Duration::from_millis(1500));
    // What arrives is taken, so that A answers nothing.
    let sink = a.enter(|| UdpSocket::bind((Peer::A.address(1, V4), 9000))).expect("a host").expect("a socket");
    let at_b = Tunnel::start(b, program, &shape.words(Peer::B, 1));
    let source = b.enter(|| UdpSocket::bind((Peer::B.address(1, V4), 0))).expect("a host").expect("a socket");
    let begin = Instant::now();
    while stat(a, program, &["--health"]).code != Some(0) {
        source.send_to(b"one way", sink.local_addr().expect("an address")).expect("sent");
        assert!(begin.elapsed() < PATIENCE, "{:?}", problems(a, program));
        thread::sleep(Duration::from_millis(50));
    }
    note_cure(begin);
    drop((at_a, at_b));
}

#[test]
fn what_cannot_start_is_down_with_the_reason_and_the_command_until_it_starts() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let (a, program) = (&ground.a, ground.program.as_path());
    let directory = Directory::new();
    let file = directory.file("near.toml");
    let tunnel = |dev: &str, local: &str, port: u16| {
        let ends = format!("dev = \"{dev}\"\nlocal = \"{local}\"\nremote = \"198.18.0.2\"\n");
        format!("[[tunnel]]\n{ends}encap = \"gue\"\nport = {port}\n")
    };
    let text = tunnel("blue", "198.18.0.1", 6080)
        + &tunnel("red", "198.18.0.1", 6099)
        + &tunnel("green", "198.18.0.77", 6070)
        + "[[gateway]]\nin = \"late0\"\nout = \"tap:tap9\"\nname = \"gw9\"\n";
    std::fs::write(&file, text).expect("a file");
    let taken = a.enter(|| UdpSocket::bind("198.18.0.1:6099")).expect("a host").expect("a free port");
    let mut command = a.command(program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let begin = Instant::now();
    let service = Process::spawn(command, b"").expect("segue starts");
    let down = |name: &str| -> Option<Value> {
        let document: Value = serde_json::from_str(&stat(a, program, &[name, "-j"]).stdout).ok()?;
        let problems = document["instances"][0]["health"].as_array()?.clone();
        problems.into_iter().find(|problem| problem["code"] == "down")
    };
    let cases = [
        ("red", "port 6099", "ss -ulpn", None),
        ("green", "198.18.0.77", "ip", Some("addr add 198.18.0.77/24 dev eth0")),
        ("gw9", "late0", "ip", Some("link add late0 type veth peer name late1")),
    ];
    for (name, what, fix, _) in cases {
        let problem = segue_tests::until(&format!("{name} is not named: {}", service.stderr()), || down(name));
        assert!(problem.to_string().contains(what), "no `{what}` in {problem}");
        assert!(problem["fix"].as_str().is_some_and(|text| text.contains(fix)), "no `{fix}` in {problem}");
    }
    note_time("down", begin);
    // At no time, also while they are tried again, is one of them missing.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(7) {
        let seen = stat(a, program, &["--health"]);
        assert_eq!(seen.code, Some(1), "after {:?}: {}", begin.elapsed(), seen.stderr);
        for (name, what, ..) in cases {
            let line = seen.stdout.lines().find(|line| line.starts_with(&format!("{name}: down: ")));
            assert!(
                line.is_some_and(|line| line.contains(what)),
                "{name} after {:?}: {}",
                begin.elapsed(),
                seen.stdout
            );
        }
    }
    // The table says it too.
    let table = stat(a, program, &[]).stdout;
    assert!(table.lines().any(|line| line.starts_with("red ") && line.contains("down: ")), "{table}");
    drop(taken);
    for line in cases.iter().filter_map(|case| case.3) {
        ip(a, &line.replace("eth0", DEVICE));
    }
    ip(a, "link set late0 up");
    let begin = Instant::now();
    while stat(a, program, &["--health"]).code != Some(0) {
        assert!(begin.elapsed() < PATIENCE, "{}{}", stat(a, program, &[]).stdout, service.stderr());
        thread::sleep(Duration::from_millis(50));
    }
    note_time("ok after down", begin);
    assert!(cases.iter().all(|(name, ..)| down(name).is_none()));
    assert!(a.has_device("red") && a.has_device("green") && a.has_device("tap9"));
}

#[test]
fn mismatched_tunnel_options_are_reported_by_the_dropping_end() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let key = |words: &'static [&'static str]| shape(Gre, Gue, words);
    let vni = |words: &[String], id: &str| {
        let mut words = words.to_vec();
        let at = words.iter().position(|word| word == "id").expect("an id");
        id.clone_into(&mut words[at + 1]);
        words
    };
    let vxlan = Shape::new(Vxlan, Bare, V4);
    let gre = key(&["key", "1"]);
    let cases = [
        (gre, key(&["key", "2"]).words(Peer::B, 1), "gre mismatch", "`key`"),
        (key(&[]), Shape::new(Ipip, Gue, V4).words(Peer::B, 1), "inner", "`mode`"),
        (vxlan, vni(&vxlan.words(Peer::B, 1), "43"), "vni", "`id`"),
    ];
    for (right, wrong, reason, words) in cases {
        let [at_a, at_b] = [Tunnel::start(a, program, &right.words(Peer::A, 1)), Tunnel::start(b, program, &wrong)];
        // Static, since ARP in VXLAN gets no answer either; every datagram of A is dropped at B, and the reverse.
        let traffic = [ping(a, Peer::B, 1), ping(b, Peer::A, 1)];
        for host in [a, b] {
            await_problem(host, program, "all_dropped", &[reason, words]);
        }
        // With the same words at both ends everything is taken.
        drop(at_b);
        let at_b = Tunnel::start(b, program, &right.words(Peer::B, 1));
        for host in [a, b] {
            await_ok(host, program);
        }
        drop((traffic, at_a, at_b));
    }
    // A sends to a port that B does not have, and B listens on a port to which A does not send.
    let on_ports = |end: Peer, dport: &str, port: &str| {
        let mut words = Shape::new(Gre, Gue, V4).words(end, 1);
        let at = words.iter().position(|word| word == "encap-dport").expect("a port");
        words.splice(at..at + 2, ["encap-dport", dport, "port", port].map(str::to_owned));
        Tunnel::start(if end == Peer::A { a } else { b }, program, &words)
    };
    let mut traffic = None;
    for (to, own) in [("7000", "6081"), ("6081", "7000")] {
        let (mut at_a, mut at_b) = (on_ports(Peer::A, to, "6081"), on_ports(Peer::B, "6081", own));
        traffic = Some([ping(a, Peer::B, 1), ping(b, Peer::A, 1)]);
        await_problem(a, program, "refused", &[&format!("198.18.0.2 refuses UDP {to}")]);
        let wrong = if to == "7000" { &mut at_a } else { &mut at_b };
        wrong.process.stop(PATIENCE).expect("it ends");
        *wrong = on_ports(if to == "7000" { Peer::A } else { Peer::B }, "6081", "6081");
        for host in [a, b] {
            await_ok(host, program);
        }
    }
    let right = Shape::new(Gre, Gue, V4).words(Peer::A, 1);
    let at_b = on_ports(Peer::B, "6081", "6081");
    // The port of A is taken by another program.
    let taken = a.enter(|| UdpSocket::bind("198.18.0.1:6081")).expect("a host").expect("a free port");
    let output = a.command(program).arg("tunnel").args(&right).output().expect("segue runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another program, or another tunnel, has port 6081") && text.contains("ss -ulpn"), "{text}");
    drop(taken);
    let at_a = Tunnel::start(a, program, &right);
    for host in [a, b] {
        await_ok(host, program);
    }
    drop((traffic, at_a, at_b));
    assert_prompt();
}

/// Returns a number of the probe of tunnel sg1.
fn probed(host: &Host, program: &Path, key: &str) -> Option<f64> {
    let document: Value = serde_json::from_str(&stat(host, program, &["-j"]).stdout).ok()?;
    document["instances"][0]["tunnels"]["sg1"]["probe"][key].as_f64()
}

/// Waits until the probe of tunnel sg1 has more answers than `than`.
#[track_caller]
fn await_answers(host: &Host, program: &Path, than: f64) {
    let begin = Instant::now();
    while probed(host, program, "answered").is_none_or(|answered| answered <= than) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", problems(host, program));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_peer_that_is_silent_or_drops_without_a_word_is_named_by_the_probe_of_an_idle_tunnel() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["nft"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let shape = shape(Gre, Gue, &["key", "7", "probe", "1"]);
    let Pair { at_a, mut at_b, .. } = Pair::start(&ground, shape, 1);
    for host in [a, b] {
        await_answers(host, program, 0.0);
        await_ok(host, program);
        assert!(probed(host, program, "round_trip_s").is_some_and(|seconds| seconds > 0.0 && seconds < 60.0));
    }
    let set = |seconds: &str| {
        let words = ["set", "sg1", "net.probe.dev.sg1.interval", seconds];
        let output = b.command(program).args(words).output().expect("segue set runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // What arrives from A is dropped without an ICMP error.
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; \
                 add rule inet t in udp dport 6081 drop";
    b.run("nft", &[rules]).expect("rules");
    await_problem(a, program, "probe_unanswered", &["198.18.0.2 does not answer probes", "its own probes arrive"]);
    b.run("nft", &["delete table inet t"]).expect("rules");
    await_ok(a, program);
    // It is there and says nothing.
    set("0");
    await_problem(a, program, "probe_unanswered", &["silently drops packets"]);
    assert_eq!(stat(b, program, &["--health"]).code, Some(0), "a probe that is off is no fault");
    set("1");
    await_ok(a, program);
    // It is killed: the probe is what its host refuses.
    at_b.process.stop(Duration::from_secs(5));
    await_problem(a, program, "refused", &["198.18.0.2 refuses UDP 6081"]);
    let other = Shape { extra: &["key", "8", "probe", "1"], ..shape };
    let wrong = Tunnel::start(b, program, &other.words(Peer::B, 1));
    for host in [a, b] {
        await_problem(host, program, "all_dropped", &["gre mismatch", "`key`"]);
    }
    drop(wrong);
    let right = Tunnel::start(b, program, &shape.words(Peer::B, 1));
    for host in [a, b] {
        await_ok(host, program);
        await_answers(host, program, 0.0);
    }
    drop((at_a, right));
}

/// Builds a probe message by the description in docs/health.md: `mode gre` with key 7.
fn probe_message(kind: u8, nonce: [u8; 8]) -> Vec<u8> {
    [&[0x20, 0xd1, 0, 0][..], b"SGP\x01", &[kind, 47, 1, 0, 0, 0, 0, 7], &nonce].concat()
}

#[test]
fn the_probe_speaks_the_documented_format_and_takes_no_forged_or_repeated_answer() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let socket = b.enter(|| UdpSocket::bind("198.18.0.2:6081")).expect("a host").expect("a free port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let _tunnel = Tunnel::start(a, program, &shape(Gre, Gue, &["key", "7", "probe", "1"]).words(Peer::A, 1));
    let hear = |kind: u8| {
        let mut bytes = [0; 100];
        let nonce = loop {
            let len = socket.recv(&mut bytes).expect("a message");
            // An interface that comes up says something itself.
            if len == 24 && bytes[8] == kind {
                break <[u8; 8]>::try_from(&bytes[16..24]).expect("eight bytes");
            }
        };
        assert_eq!(&bytes[..24], probe_message(kind, nonce), "another form");
        nonce
    };
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, "198.18.0.1:6081").expect("sent");
    };
    let answered = || probed(a, program, "answered").expect("a probe");
    let unasked = |count: u64| {
        let begin = Instant::now();
        loop {
            let document: Value = serde_json::from_str(&stat(a, program, &["-j"]).stdout).expect("JSON");
            if document["instances"][0]["ports"]["udp"]["drops"]["probe_unasked"] == count {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{document}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    // The peer has not announced support for requests: a hello comes, again and again until there is an answer.
    let first = hear(1);
    send(&probe_message(3, first.map(|byte| !byte)));
    unasked(1);
    assert_eq!((answered(), probed(a, program, "round_trip_s")), (0.0, None), "a forged answer");
    await_problem(a, program, "probe_unanswered", &["runs no segue with `probe`"]);
    // Its own question says that it understands: it is answered, and asked in turn.
    send(&probe_message(2, *b"question"));
    assert_eq!(hear(3), *b"question");
    let nonce = hear(1);
    send(&probe_message(3, nonce));
    await_answers(a, program, 0.0);
    send(&probe_message(3, nonce));
    unasked(2);
    assert_eq!(answered(), 1.0, "a repeated answer");
    hear(2);
}

#[test]
fn idle_bursty_and_one_way_traffic_cause_no_alarm() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    let (none, probe): (&[&str], &[&str]) = (&[], &["probe", "5"]);
    // The first two are idle.
    let words = [probe, none, probe, none, BY_KERNEL, probe, none, BY_KERNEL];
    let (bursty, unidirectional) = ([3, 4, 5], [6, 7, 8]);
    let pairs: Vec<Pair<'_>> =
        (1..).zip(words).map(|(net, extra)| Pair::start(&ground, shape(Gre, Gue, extra), net)).collect();
    let open = |host: &Host, end: Peer, net: u8, port: u16| {
        host.enter(|| UdpSocket::bind((end.address(net, V4), port))).expect("a host").expect("a socket")
    };
    let ends = unidirectional.map(|net| (open(a, Peer::A, net, 0), open(b, Peer::B, net, 9000)));
    // The first end has asked before the other one was there.
    [a, b].iter().for_each(|host| await_ok(host, program));
    let send = || {
        for (source, sink) in &ends {
            source.send_to(b"one way", sink.local_addr().expect("an address")).expect("sent");
        }
    };
    let (begin, calm, mut burst, mut is_noted) = (Instant::now(), calm(), Instant::now(), false);
    while begin.elapsed() < calm {
        if Instant::now() >= burst {
            burst += QUIET;
            for net in bursty {
                let to = Peer::B.address(net, V4).to_string();
                a.run("ping", &["-q", "-c", "20", "-i", "0.01", &to]).expect("answers");
            }
        }
        send();
        for host in [a, b] {
            let seen = stat(host, program, &["--health"]);
            assert_eq!(seen.code, Some(0), "after {:?}: {}", begin.elapsed(), seen.stdout);
            is_noted |= seen.stderr.contains("unanswered");
        }
        thread::sleep(Duration::from_millis(300));
    }
    assert!(is_noted, "what nobody answers is a notice");
    for net in unidirectional {
        let name = Shape::device(net);
        let strict = |host: &Host| stat(host, program, &[name.as_str(), "--health", "--strict"]).code;
        if words[usize::from(net) - 1] == probe {
            assert_eq!(strict(a), Some(0), "{name}: the probe is answered");
        } else {
            // The kernel at B may have sent a router solicitation just now.
            segue_tests::until(&format!("{name} is answered"), || {
                send();
                (strict(a) == Some(1)).then_some(())
            });
        }
        assert_eq!(strict(b), Some(0), "{name} at the end that receives");
    }
    drop(pairs);
}
