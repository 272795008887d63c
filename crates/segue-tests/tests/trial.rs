//! Tests of 26 faults that users met when they first tried segue.
//!
//! Of each finding a test fails on the program of commit d2d84e5 (`SEGUE_BIN` names it): `tools/old finding` runs them
//! there. The findings, by their numbers, and the tests; those without a file are here:
//!
//! 1. A dead peer was `ok`: `health::health_reports_refused_while_the_peer_is_stopped_and_ok_when_it_returns`
//! 2. A lost underlay was `ok`: `health::each_fault_of_the_underlay_is_named_until_it_is_mended`
//! 3. A wrong key, mode, id or port was not explained:
//!    `health::mismatched_tunnel_options_are_reported_by_the_dropping_end`
//! 4. Rates of `stat --watch` were a mean of 10 s, and
//! 6. slow ones were 0.00: `operation::a_watch_shows_the_rates_of_its_own_interval_with_units_that_fit`
//! 5. Tunnels of one port were one line: `operation::tunnels_that_share_a_port_have_a_line_each`
//! 7. Offloads that are off were not noticed:
//!    `health::an_offload_that_is_switched_off_is_named_with_the_command_that_switches_it_on`
//! 8. One bad tunnel stopped all: `health::what_cannot_start_is_down_with_the_reason_and_the_command_until_it_starts`
//! 9. Nothing installed the program: [`make_install_puts_all_that_belongs_to_the_program_in_its_place`]
//! 10. A hint was followed, and came again, and
//! 11. root did not see tunnels of a user:
//!     `operation::a_user_starts_a_tunnel_on_an_interface_that_root_has_made_and_root_sees_it`
//! 12. A trace overwrote files and was not live:
//!     `operation::a_trace_is_live_in_a_pipe_overwrites_nothing_and_is_what_its_name_says`
//! 13. No names, no link-local addresses, no keepalive: [`a_remote_may_be_a_host_name_which_a_reload_looks_up_again`],
//!     [`link_local_remotes_are_named_with_their_interface`],
//!     [`an_idle_tunnel_keeps_its_way_through_a_stateful_firewall_open`]
//! 14. Advice did not say what it ends: [`advice_that_ends_something_says_what`]
//! 15. A reload could not fail, and named the wrong tunnel:
//!     [`a_reload_waits_says_what_changed_and_fails_when_the_file_is_refused`]
//! 16. `segue doctor` contradicted itself: [`doctor_does_not_contradict_itself_and_looks_at_the_links_that_are_up`]
//! 17. GUE was opaque in Wireshark: `extcap::tshark_lists_tunnels_and_captures_them_live`, and without the program
//!     `dissector::inner_tcp_with_a_remote_checksum_is_right_and_a_corrupted_one_is_wrong`
//! 18. The tunnel without further words was slow, and hardly said so:
//!     [`the_plan_of_a_tunnel_without_words_says_what_is_slow_and_what_gathers`]
//! 19. A bench without root failed with a message of the shell: [`a_bench_that_needs_root_says_so`]
//! 20. `--check` exited with 0 where this user cannot start it:
//!     [`a_check_fails_where_this_user_cannot_start_what_it_shows`]
//! 21. Nothing stopped a tunnel: `operation::a_tunnel_is_stopped_by_its_name`
//! 22. Counters were for root alone: [`members_of_a_group_read_the_counters_and_change_nothing`]
//! 23. An error was a wall of names: [`a_mistyped_name_is_answered_with_the_nearest_one`]
//! 24. `--why` used words that nothing defined, and shares of different wholes:
//!     [`what_why_says_is_defined_and_its_shares_are_of_the_same_whole`]
//! 25. No compressed captures: [`captures_are_read_and_written_compressed`]
//! 26. Documents contradicted the program, and a file had no adapters:
//!     `transcripts::the_readme_tells_what_the_program_does`, [`an_adapter_is_one_of_the_instances_of_a_file`]
//!
//! [`offloads_are_switched_by_the_names_of_ethtool`] is about something that others have and segue lacked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use segue_lab::{Family, Host, LinkForm, Peer, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, sys, test_name, traffic, until};
use serde_json::Value;

/// Time within which an expected event must happen.
const PATIENCE: Duration = Duration::from_secs(90);

fn segue(host: &Host, program: &Path, line: &str) -> Output {
    host.command(program).args(line.split_whitespace()).output().expect("segue runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns exit status, stdout and stderr of a command line.
fn said(host: &Host, program: &Path, line: &str) -> (Option<i32>, String, String) {
    let output = segue(host, program, line);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Starts `segue run` with a file of the given text, and waits until it is ready.
#[track_caller]
fn service(ground: &Ground, file: &Path, text: &str) -> Process {
    fs::write(file, text).expect("a file");
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(file);
    let service = Process::spawn(command, b"").expect("segue starts");
    until("the service is not ready", || service.stdout().contains("\"event\":\"ready\"").then_some(()));
    service
}

/// Returns a `[[tunnel]]` table with the given name and key; such tunnels share one port.
fn tunnel(dev: &str, key: u32, port: u16) -> String {
    format!(
        "[[tunnel]]\ndev = \"{dev}\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {key}\n\
         port = {port}\nencap-dport = {port}\n"
    )
}

#[test]
fn a_reload_waits_says_what_changed_and_fails_when_the_file_is_refused() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let (file, other) = (directory.file("near.toml"), directory.file("more.toml"));
    let both = |key: u32| tunnel("blue", 1, 6080) + &tunnel("red", key, 6080);
    let mut near = service(&ground, &file, &both(2));
    let shown = file.display().to_string();
    let reload = |line: &str| said(&ground.a, &ground.program, &format!("reload {line}"));

    // One tunnel of a port differs: it is named, and the other one goes on.
    fs::write(&file, both(3)).expect("a file");
    let (code, stdout, stderr) = reload("-j");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let done: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    assert_eq!((&done["schema"], &done["tunnels"]["changed"]), (&"segue.reload/1".into(), &["red"].into()), "{done}");
    assert_eq!(done["handed_over"], Value::from(["blue"].as_slice()), "{done}");
    // The file is in force when the command has ended.
    let (_, stat, _) = said(&ground.a, &ground.program, "stat -j");
    assert!(stat.contains("\"red\"") && stat.contains("\"blue\""), "{stat}");
    fs::write(&file, both(4)).expect("a file");
    let (code, _, stderr) = reload("near");
    assert!(code == Some(0) && stderr.contains("(changed red)"), "{stderr}");

    // A wrong file: the place of the error, exit 1, and what runs goes on.
    fs::write(&file, both(5) + "remot = 1\n").expect("a file");
    let (code, stdout, stderr) = reload(&shown);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains(&format!("{shown}:17:1: unknown key `remot`")) && stderr.contains("remote"), "{stderr}");
    let (code, stdout, stderr) = reload("-j");
    let refused: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    assert!(code == Some(1) && refused["error"]["line"] == 17, "{refused} {stderr}");
    assert!(said(&ground.a, &ground.program, "stat red").0 == Some(0));
    // An instance that does not start: refused as a whole.
    let taken = traffic::inside(&ground.a, || std::net::UdpSocket::bind("198.18.0.1:6099")).expect("a port");
    fs::write(&file, both(4) + &tunnel("green", 1, 6099)).expect("a file");
    let (code, _, stderr) = reload("");
    assert!(code == Some(1) && stderr.contains("6099"), "{stderr}");
    assert!(!ground.a.has_device("green") && ground.a.has_device("red"));
    drop(taken);

    // Two services: the command asks which. One that was killed leaves a file that is no service.
    let mut more = service(&ground, &other, &tunnel("white", 1, 6070));
    let (code, _, stderr) = reload("");
    assert!(code == Some(2) && stderr.contains("reload more") && stderr.contains("reload near"), "{stderr}");
    assert_eq!(reload("more").0, Some(0));
    let (code, _, stderr) = reload("nears");
    assert!(code == Some(1) && stderr.contains("reload near"), "{stderr}");
    sys::signal(more.id(), libc::SIGKILL).expect("a signal");
    more.wait(PATIENCE).expect("it ends");
    assert_eq!(reload("").0, Some(0), "one is left");
    until("white is in the way", || (!ground.a.has_device("white")).then_some(()));
    let mut more = service(&ground, &other, &tunnel("white", 1, 6070));
    assert_eq!(reload("more").0, Some(0), "the name is free again");
    for service in [&mut near, &mut more] {
        service.terminate();
        assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0));
    }
    let (code, _, stderr) = reload("");
    assert!(code == Some(1) && stderr.contains("no service runs"), "{stderr}");
    until("something is left behind", || {
        ground.a.run("ls", &["-A", "/run/segue"]).expect("ls").trim().is_empty().then_some(())
    });
}

/// Copies the program to a path where every user may run it.
fn copy_for_all(program: &Path, directory: &Directory) -> PathBuf {
    let copy = directory.file("segue");
    fs::copy(program, &copy).expect("a copy");
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("rights");
    fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).expect("rights");
    copy
}

/// Runs a command line as a user without rights in a group.
fn as_user(host: &Host, program: &Path, group: u32, line: &str) -> (Option<i32>, String, String) {
    let mut command = host.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", &format!("--groups={group}"), "--inh-caps=-all"]);
    command.args(["--bounding-set=-all"]).arg(program).args(line.split_whitespace()).env_remove("XDG_RUNTIME_DIR");
    let output = command.output().expect("setpriv runs");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A group whose members may read.
const READERS: u32 = 40_123;

/// Tests that members of [`READERS`] read the state of the tunnel `blue` and change nothing, and that others do not
/// even read it.
#[track_caller]
fn members_only_read(ground: &Ground, program: &Path) {
    let reader = |line: &str| as_user(&ground.a, program, READERS, line);
    let (code, stdout, stderr) = reader("stat blue -j");
    assert!(code == Some(0) && stdout.contains("checksummed_bytes"), "{stdout}{stderr}");
    assert_eq!(reader("set blue").0, Some(0), "the knobs");
    for line in ["set blue net.inet.tcp.gso 0", "stop blue", "reload readable"] {
        let (code, stdout, stderr) = reader(line);
        assert_ne!(code, Some(0), "{line}: {stdout}{stderr}");
        assert!(stderr.contains("try:"), "{line}: {stderr}");
    }
    let (_, knob, _) = said(&ground.a, &ground.program, "set blue net.inet.tcp.gso -q");
    assert_eq!(knob.trim(), "1", "nothing has changed");
    // Another group sees nothing.
    let (code, stdout, stderr) = as_user(&ground.a, program, READERS + 1, "stat blue -j");
    assert!(code == Some(1) && !stdout.contains("checksummed_bytes"), "{stdout}{stderr}");
}

/// Returns whether other users can be used here; a user namespace has one.
fn has_users(test: &str) -> bool {
    let whole = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
    if !whole {
        segue_tests::skip(test, "a user namespace has one user");
    }
    whole
}

#[test]
fn members_of_a_group_read_the_counters_and_change_nothing() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
    if !has_users(test_name!()) {
        return;
    }
    let directory = Directory::new();
    let program = copy_for_all(&ground.program, &directory);
    let file = directory.file("readable.toml");
    fs::write(&file, tunnel("blue", 1, 6080)).expect("a file");
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&file).env("SEGUE_GROUP", READERS.to_string());
    let service = Process::spawn(command, b"").expect("segue starts");
    until("the service is not ready", || service.stdout().contains("\"event\":\"ready\"").then_some(()));
    members_only_read(&ground, &program);
}

#[test]
fn members_of_a_group_read_the_counters_of_a_service_that_is_not_roots() {
    /// The user of the service, which owns `/run/segue`, as with the package.
    const USER: u32 = 40_124;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
    if !has_users(test_name!()) {
        return;
    }
    let directory = Directory::new();
    let program = copy_for_all(&ground.program, &directory);
    let make = "chown $0 /run/segue; mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200";
    ground.a.run("sh", &["-ec", make, &USER.to_string()]).expect("a folder and a device");
    let file = directory.file("readable.toml");
    fs::write(&file, tunnel("blue", 1, 6080)).expect("a file");
    let mut command = ground.a.command("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}"), format!("--groups={READERS}")]);
    command.args(["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}=-all,+net_admin,+net_raw")));
    command.arg(&program).args(["run", "-j", "-c"]).arg(&file);
    command.env("SEGUE_RUNTIME_DIR", "/run/segue").env("SEGUE_GROUP", READERS.to_string());
    let service = Process::spawn(command, b"").expect("segue starts");
    until("the service is not ready", || service.stdout().contains("\"event\":\"ready\"").then_some(()));
    members_only_read(&ground, &program);
}

#[test]
fn doctor_does_not_contradict_itself_and_looks_at_the_links_that_are_up() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let link = segue_lab::DEVICE;
    ground.a.run("ethtool", &["-K", link, "tx", "off"]).expect("ethtool");
    let checks = |line: &str| -> Vec<Value> {
        let output = segue(&ground.a, &ground.program, line);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["checks"].as_array().cloned().expect("checks")
    };
    let named = |checks: &[Value], name: &str| -> Vec<Value> {
        checks.iter().filter(|check| check["name"] == name).cloned().collect()
    };
    // The host has no default route.
    let found = named(&checks("doctor -j"), "link offloads");
    let fix = format!("sudo ethtool -K {link} tx on");
    let mends = |check: &Value| check["fix"].as_str().is_some_and(|text| text.starts_with(&fix));
    assert!(found.iter().any(|check| check["status"] == "missing" && mends(check)), "{found:?}");
    let found = named(&checks(&format!("doctor {link} -j")), "link offloads");
    assert!(found.len() == 1 && found[0]["found"].as_str().is_some_and(|text| text.contains(link)), "{found:?}");
    let (code, _, stderr) = said(&ground.a, &ground.program, "doctor nosuch0");
    assert!(code == Some(1) && stderr.contains("nosuch0"), "{stderr}");
    // Where loopback is down, nothing is known of the kernel's UDP.
    ground.a.run("ip", &["link", "set", "lo", "down"]).expect("ip");
    ground.a.run("ip", &["address", "flush", "dev", "lo"]).expect("ip");
    let found = named(&checks("doctor -j"), "udp_segment");
    assert_eq!((&found[0]["status"], &found[0]["fix"]), (&"unknown".into(), &"sudo ip link set lo up".into()));
    ground.a.run("ip", &["link", "set", "lo", "up"]).expect("ip");
    // Where the device is missing, nothing that needs it is said to work.
    ground.a.run("mount", &["-t", "tmpfs", "none", "/dev/net"]).expect("a mount");
    let found = checks("doctor -j");
    assert_eq!(named(&found, "tun device")[0]["status"], "needed", "{found:?}");
    for check in &found {
        let text = check["found"].as_str().unwrap_or_default();
        assert!(!text.contains("segue lab works"), "{check}");
        assert!(check["name"] != "container" || check["status"] != "ok" || text == "none that shows", "{check}");
    }
}

#[test]
fn advice_that_ends_something_says_what() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sysctl"]) else { return };
    let link = segue_lab::DEVICE;
    let (code, _, stderr) = said(&ground.a, &ground.program, &format!("gateway {link} tap:t0 --check"));
    assert!(code == Some(1) && stderr.contains("addr flush") && stderr.contains("ends what uses"), "{stderr}");
    let (_, help, _) = said(&ground.a, &ground.program, "help gateway");
    assert!(help.contains("addr flush") && help.contains("which ends what uses them"), "{help}");
    ground.a.run("sysctl", &["-qw", &format!("net.ipv4.conf.{link}.forwarding=1")]).expect("sysctl");
    ground.a.run("ip", &["link", "add", "other", "type", "veth", "peer", "name", "far"]).expect("a link");
    let (code, _, stderr) = said(&ground.a, &ground.program, &format!("gateway {link} other --route --check"));
    assert!(code == Some(1) && stderr.contains("forwarding=0") && stderr.contains("containers"), "{stderr}");
}

#[test]
fn a_bench_that_needs_root_says_so() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv", "iperf3", "tc"]) else { return };
    let directory = Directory::new();
    let program = copy_for_all(&ground.program, &directory);
    let (code, stdout, stderr) = as_user(&ground.a, &program, 65_534, "bench lro --quick");
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("root") && stderr.contains("sudo segue bench"), "{stderr}");
    assert!(!stderr.contains("echo"), "{stderr}");
}

#[test]
fn a_check_fails_where_this_user_cannot_start_what_it_shows() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
    let directory = Directory::new();
    let program = copy_for_all(&ground.program, &directory);
    let line = "tunnel dev sg0 remote 198.18.0.2 encap gue --check";
    let (code, stdout, stderr) = as_user(&ground.a, &program, 65_534, line);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("mtu") && stdout.contains("nothing was changed"), "{stdout}");
    assert!(stderr.contains("error: ") && stderr.contains("try:"), "{stderr}");
    let (code, stdout, stderr) = said(&ground.a, &ground.program, line);
    assert_eq!(code, Some(0), "root can: {stdout}{stderr}");
}

#[test]
fn make_install_puts_all_that_belongs_to_the_program_in_its_place() {
    for tool in ["make", "install", "gzip"] {
        if segue_lab::which(tool).is_none() {
            return segue_tests::skip(test_name!(), &format!("not installed: {tool}"));
        }
    }
    let Some(program) = segue_tests::find_program() else {
        return segue_tests::skip(test_name!(), "the program is not built (cargo build -p segue-cli)");
    };
    let directory = Directory::new();
    let mut make = std::process::Command::new("make");
    make.args(["--no-print-directory", "install", "PREFIX=/usr"]).arg(format!("SEGUE={}", program.display()));
    make.arg(format!("DESTDIR={}", directory.path().display()));
    make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let output = make.output().expect("make runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    for file in [
        "share/man/man1/segue.1.gz",
        "share/man/man1/segue-tunnel.1.gz",
        "share/man/man5/segue.toml.5.gz",
        "share/man/man7/segue-reasons.7.gz",
        "share/bash-completion/completions/segue",
        "lib/systemd/system/segue@.service",
        "lib/systemd/system/segue.socket",
        "lib/systemd/system/segue-metrics.service",
        "share/segue/segue.lua",
        "share/doc/segue/examples/segue.toml",
    ] {
        let size = fs::metadata(directory.file(&format!("usr/{file}"))).map(|file| file.len());
        assert!(size.as_ref().is_ok_and(|size| *size > 0), "{file}: {size:?}");
    }
    let output = std::process::Command::new(directory.file("usr/bin/segue")).arg("--version").output();
    assert!(output.expect("the installed program runs").status.success());
}

#[test]
fn a_remote_may_be_a_host_name_which_a_reload_looks_up_again() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let (hosts, file) = (directory.file("hosts"), directory.file("near.toml"));
    fs::write(&hosts, "198.18.0.2 peer.example\n2001:db8::2 peer.example\n").expect("a file");
    // This host alone sees it there.
    ground.a.run("mount", &["--bind", &hosts.display().to_string(), "/etc/hosts"]).expect("a mount");
    let table = tunnel("blue", 1, 6080).replace("198.18.0.2", "peer.example");
    let service = service(&ground, &file, &table);
    let remote = |wanted: &str| {
        until(&format!("the remote is not {wanted}: {}", service.stderr()), || {
            let (_, stat, _) = said(&ground.a, &ground.program, "stat blue -j");
            let stat: Value = serde_json::from_str(&stat).ok()?;
            (stat["instances"][0]["tunnels"]["blue"]["remote"] == wanted).then_some(())
        });
    };
    // Of its addresses, that of the family of `local`.
    remote("198.18.0.2:6080");
    fs::write(&hosts, "198.18.0.3 peer.example\n").expect("a file");
    let (code, _, stderr) = said(&ground.a, &ground.program, "reload near");
    assert_eq!(code, Some(0), "{stderr}");
    remote("198.18.0.3:6080");
}

#[test]
fn a_mistyped_name_is_answered_with_the_nearest_one() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let file = directory.file("near.toml");
    let _service = service(&ground, &file, &tunnel("blue", 1, 6080));
    let (code, _, stderr) = said(&ground.a, &ground.program, "set blue net.inet.tcp.gsp 0");
    assert!(code != Some(0) && stderr.contains("`net.inet.tcp.gso`"), "{stderr}");
    assert!(stderr.lines().count() <= 5 && stderr.matches("net.inet").count() <= 4, "{stderr}");
    fs::write(&file, tunnel("blue", 1, 6080) + "remot = \"198.18.0.2\"\n").expect("a file");
    let (code, _, stderr) = said(&ground.a, &ground.program, &format!("run --check -c {}", file.display()));
    assert!(code == Some(1) && stderr.contains("`remote`"), "{stderr}");
    assert!(stderr.lines().count() <= 7 && !stderr.contains("encaplimit"), "{stderr}");
}

#[test]
fn what_why_says_is_defined_and_its_shares_are_of_the_same_whole() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let shape = segue_tests::Shape::new(segue_tests::Inside::Gre, segue_tests::Carrier::Gue, Family::V4);
    let pair = segue_tests::Pair::start(&ground, shape, 1);
    // Packets that differ in what GRO compares: another type of service each.
    for tos in ["0x10", "0x20"] {
        let to = Peer::B.address(1, Family::V4).to_string();
        ground.a.run("ping", &["-q", "-c", "2", "-i", "0.05", "-Q", tos, &to]).expect("ping");
    }
    traffic::file(pair.place(Peer::A, Family::V4), pair.place(Peer::B, Family::V4), 1 << 20, 7);
    let (code, why, stderr) = said(&ground.b, &ground.program, "stat sg1 --why");
    assert_eq!(code, Some(0), "{stderr}");
    for word in ["A unit is a packet, or a train of several", "decap takes", "entry cuts", "encap adds", "gso cuts"] {
        assert!(why.contains(word), "no `{word}` in {why}");
    }
    assert!(!why.contains(" 0.0 %"), "a share that is not 0 is shown as 0: {why}");
    assert!(!why.contains("refused because: "), "a count is no share: {why}");
}

/// Runs a shell script in a directory, in which `$SEGUE` is the program; returns exit status, stdout and stderr.
fn shell(directory: &Directory, program: &Path, script: &str) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", script]).env("SEGUE", program).current_dir(directory.path()).output();
    let output = output.expect("a shell");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn captures_are_read_and_written_compressed() {
    for tool in ["gzip", "zstd", "tshark"] {
        if segue_lab::which(tool).is_none() {
            return segue_tests::skip(test_name!(), &format!("not installed: {tool}"));
        }
    }
    let Some(program) = segue_tests::find_program() else {
        return segue_tests::skip(test_name!(), "the program is not built (cargo build -p segue-cli)");
    };
    let directory = Directory::new();
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/gue-gre-remcsum-inner4-tcp.pcap");
    fs::copy(capture, directory.file("in.pcap")).expect("a copy");
    let run = |script: &str| shell(&directory, &program, script);
    // What others have compressed, by whatever name and through a pipe.
    let (code, plain, stderr) = run("gzip -k in.pcap && zstd -q in.pcap && cat in.pcap.gz in.pcap.gz > two.gz \
        && $SEGUE pcap stat in.pcap -j");
    assert_eq!(code, Some(0), "{stderr}");
    let stat = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")) };
    for script in
        ["$SEGUE pcap stat in.pcap.gz -j", "$SEGUE pcap stat in.pcap.zst -j", "$SEGUE pcap stat - -j < in.pcap.zst"]
    {
        let (code, stdout, stderr) = run(script);
        assert_eq!(code, Some(0), "{script}: {stderr}");
        assert_eq!(stat(&stdout)["packets"], stat(&plain)["packets"], "{script}");
    }
    // What it writes, others read; in place a file stays compressed.
    let (code, _, stderr) = run("$SEGUE pcap split in.pcap o.pcap -q && for end in gz zst; do \
         $SEGUE pcap split in.pcap o.pcap.$end -q && cp in.pcap.$end i.$end && $SEGUE pcap split -i i.$end -q; done; \
         zcat o.pcap.gz | cmp - o.pcap && zstdcat -q o.pcap.zst | cmp - o.pcap && zcat i.gz | cmp - o.pcap \
         && zstdcat -q --no-pass-through i.zst | cmp - o.pcap && tshark -r o.pcap.gz 2>/dev/null > a \
         && tshark -r o.pcap 2>/dev/null > b && cmp a b");
    assert_eq!(code, Some(0), "{stderr}");
    // A file that is cut: what is whole is used, and exit 1.
    let (code, stdout, stderr) = run("head -c 3000 in.pcap.gz > cut.gz; $SEGUE pcap verify cut.gz -q; echo $?; \
         $SEGUE pcap split cut.gz cut.pcap.zst --allow-cut");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.ends_with("1\n") && stderr.contains("the compressed data is cut off"), "{stdout}{stderr}");
    // A file that expands without end.
    let (code, _, stderr) =
        run("head -c 300M /dev/zero | cat in.pcap - | zstd -q > bomb.zst; $SEGUE pcap split bomb.zst b.pcap -q");
    assert!(code == Some(1) && stderr.contains("expands far more"), "{stderr}");
}

#[test]
fn an_adapter_is_one_of_the_instances_of_a_file() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let directory = Directory::new();
    let file = directory.file("adapter.toml");
    let text = |gro: &str| {
        tunnel("blue", 1, 6080)
            + "[[lan78xx]]\ndev = \"lan7\"\nusb = \"model\"\nwire = \"tap:cable7\"\nmtu = 1400\n"
            + gro
    };
    let (code, _, stderr) = {
        fs::write(&file, text("mtv = 1500\n")).expect("a file");
        said(&ground.a, &ground.program, &format!("run --check {}", file.display()))
    };
    assert!(code == Some(1) && stderr.contains("adapter.toml:14:1: unknown key `mtv`"), "{stderr}");
    let mut run = service(&ground, &file, &text("net.gro.dev.adapter.enable_gro = 0\n"));
    let shown = ground.a.run("ip", &["-o", "link", "show", "dev", "lan7"]).expect("the interface");
    assert!(shown.contains("mtu 1400"), "{shown}");
    let (_, stat, _) = said(&ground.a, &ground.program, "stat -j");
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let names: Vec<&str> =
        stat["instances"].as_array().expect("a list").iter().filter_map(|i| i["name"].as_str()).collect();
    assert_eq!(names, ["blue", "lan7"]);
    let knob = || said(&ground.a, &ground.program, "set lan7 net.gro.dev.adapter.enable_gro -q").1.trim().to_owned();
    assert_eq!(knob(), "0");
    // A knob is set by a reload, and the adapter goes on.
    let pid = |stat: &Value| stat["instances"][1]["pid"].clone();
    fs::write(&file, text("")).expect("a file");
    let (code, done, stderr) = said(&ground.a, &ground.program, "reload -j");
    assert!(code == Some(0) && done.contains("\"knobs\":[\"lan7\"]"), "{done}{stderr}");
    let (_, after, _) = said(&ground.a, &ground.program, "stat -j");
    assert_eq!((knob().as_str(), pid(&serde_json::from_str(&after).expect("JSON"))), ("1", pid(&stat)));
    run.terminate();
    assert_eq!(run.wait(PATIENCE).expect("it ends").code(), Some(0));
    assert!(!ground.a.has_device("lan7") && !ground.a.has_device("cable7"));
}

#[test]
fn offloads_are_switched_by_the_names_of_ethtool() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = segue_tests::Shape::new(segue_tests::Inside::Gre, segue_tests::Carrier::GueRemcsum, Family::V4);
    let _tunnel = segue_tests::Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, 1));
    let knob = |name: &str| {
        until("no instance", || {
            let (code, value, _) = said(&ground.a, &ground.program, &format!("set sg1 {name} -q"));
            (code == Some(0)).then(|| value.trim().to_owned())
        })
    };
    for (word, name) in [
        ("gro", "net.gro.dev.sg1.enable_gro"),
        ("gso", "net.gso.dev.udp.enable_gso"),
        ("tso", "net.gso.dev.udp.tso"),
        ("tx", "net.remcsum.dev.udp.enable_remcsum"),
    ] {
        for (value, expected) in [("off", "0"), ("on", "1")] {
            let (code, _, stderr) = said(&ground.a, &ground.program, &format!("set sg1 {word} {value}"));
            assert_eq!((code, knob(name).as_str()), (Some(0), expected), "{word} {value}: {stderr}");
        }
    }
    let (code, _, stderr) = said(&ground.a, &ground.program, "set sg1 gro maybe");
    assert!(code == Some(2) && stderr.contains("expected on or off"), "{stderr}");
}

#[test]
fn link_local_remotes_are_named_with_their_interface() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let link = segue_lab::DEVICE;
    let ip = |host: &Host, line: &str| {
        host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("ip {line}: {error}"));
    };
    ip(&ground.a, &format!("addr add fe80::a/64 dev {link} nodad"));
    ip(&ground.b, &format!("addr add fe80::b/64 dev {link} nodad"));
    // Another link of the first host has an address of the same prefix, and the remote's address at its other end.
    ip(&ground.a, "link add other type veth peer name far");
    ip(&ground.a, "addr add fe80::a/64 dev other nodad");
    ip(&ground.a, "addr add fe80::b/64 dev far nodad");
    ip(&ground.a, "link set other up");
    ip(&ground.a, "link set far up");
    let start = |host: &Host, words: String| {
        let mut command = host.command(&ground.program);
        command.arg("tunnel").args(words.split_whitespace());
        Process::spawn(command, b"").expect("segue starts")
    };
    // In UDP, with a local address; bare, with the one that the kernel prefers; a bridge with two remotes.
    let cases = [
        ("udp0", "encap gue", "local fe80::a", "local fe80::b%LINK"),
        ("raw0", "mode ip6gre", "", ""),
        ("vx0", "mode vxlan id 7 dstport 4789 fdb 02:00:00:00:00:01,fe80::c", "", ""),
    ];
    for (dev, words, near, far) in cases {
        let line = |own: u8, local: &str, remote: &str| {
            format!("dev {dev} remote {remote}%LINK {local} {words} addr 198.19.31.{own}/30").replace("LINK", link)
        };
        let pair = [start(&ground.a, line(1, near, "fe80::b")), start(&ground.b, line(2, far, "fe80::a"))];
        let answers = || ground.a.run("ping", &["-q", "-c", "1", "-W", "1", "198.19.31.2"]).ok();
        until(&format!("{dev}: no answer: {}{}", pair[0].stderr(), pair[1].stderr()), answers);
        // What was refused before the other end was there is forgotten.
        until(&format!("{dev} is not well"), || {
            let (_, stat, _) = said(&ground.a, &ground.program, &format!("stat {dev} -j"));
            let stat: Value = serde_json::from_str(&stat).ok()?;
            let shown = stat["instances"][0]["tunnels"][dev]["remote"].as_str()?;
            assert!(shown.contains(&format!("fe80::b%{link}")), "{shown}");
            stat["instances"][0]["health"].as_array()?.is_empty().then_some(())
        });
        for mut end in pair {
            end.terminate();
            assert_eq!(end.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", end.last_words());
        }
    }
    // What cannot be is said, with the word that is wrong.
    for (line, code, text) in [
        ("remote fe80::b", 2, "add the interface, as in fe80::1%eth0"),
        ("remote fe80::b%nosuch", 1, "no interface nosuch"),
        ("remote 2001:db8::1%lo", 2, "expected a link-local address before %"),
        ("remote fe80::b%LINK local 2001:db8::9", 2, "link-local, and `local` is not"),
        ("remote 2001:db8::9 local fe80::a%LINK", 2, "needs a link-local `remote`"),
        ("remote fe80::b%LINK local fe80::a%other", 2, "two links"),
    ] {
        let line = format!("tunnel dev sg0 {} encap gue --check", line.replace("LINK", link));
        let (status, stdout, stderr) = said(&ground.a, &ground.program, &line);
        assert!(status == Some(code) && stderr.contains(text), "{line}: {stdout}{stderr}");
    }
}

#[test]
fn the_plan_of_a_tunnel_without_words_says_what_is_slow_and_what_gathers() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let (code, plan, stderr) = said(&ground.a, &ground.program, "tunnel dev sg0 remote 198.18.0.2 --check");
    assert_eq!(code, Some(0), "{stderr}");
    let path = plan.lines().find(|line| line.trim_start().starts_with("path ")).unwrap_or_default();
    assert!(path.contains("kernel, where this host permits it") && path.contains("encap gue joins them"), "{plan}");
}

#[test]
fn an_idle_tunnel_keeps_its_way_through_a_stateful_firewall_open() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping", "nft"]) else { return };
    let (a, b) = (&ground.a, &ground.b);
    // The firewall of A takes what belongs to its own datagrams of the last two seconds, as a NAT does.
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; policy drop; }; \
                 add rule inet t in iifname { lo, sg0, sg1 } accept; \
                 add rule inet t in meta l4proto udp ct state established accept";
    a.run("nft", &[rules]).expect("rules");
    for key in ["timeout", "timeout_stream"] {
        a.run("sysctl", &["-q", "-w", &format!("net.netfilter.nf_conntrack_udp_{key}=2")]).expect("a timeout");
    }
    // Without discovery of neighbours, which is traffic too.
    for host in [a, b] {
        host.run("sysctl", &["-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"]).expect("a setting");
    }
    // One tunnel with a probe, and one without.
    let ends = [(a, 1, 2), (b, 2, 1)];
    let tunnels = ends.iter().flat_map(|end| [(end, 0, 1), (end, 1, 0)]).map(|((host, own, remote), number, seconds)| {
        let line = format!(
            "tunnel dev sg{number} remote 198.18.0.{remote} encap gue encap-dport 608{number} encap-sport 608{number} \
             probe {seconds} addr 198.19.{number}.{own}/30"
        );
        let mut command = host.command(&ground.program);
        command.args(line.split_whitespace());
        Process::spawn(command, b"").expect("segue starts")
    });
    let tunnels: Vec<Process> = tunnels.collect();
    let ping = |host: &Host, number: u8, to: u8| {
        host.run("ping", &["-q", "-c", "1", "-W", "1", &format!("198.19.{number}.{to}")]).is_ok()
    };
    for number in [0, 1] {
        until(&format!("no answer: {}", tunnels[number].stderr()), || ping(a, number as u8, 2).then_some(()));
    }
    // Twice as long as the firewall remembers what it has seen.
    std::thread::sleep(Duration::from_secs(4));
    assert!(!ping(b, 1, 1), "the firewall forgets nothing");
    assert!(ping(b, 0, 1), "{:?}", said(a, &ground.program, "stat -d"));
}
