//! Tests of the systemd units: their security score, their users and directories, their AppArmor profiles, and a tunnel
//! under their restrictions, which `unit_restrictions.py` applies because systemd does not run here.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use segue_lab::{Host, LinkForm, Process, reach, skip, which};
use segue_tests::{Ground, Stat, capture, fastpath, sys, test_name, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

fn ran(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn unit(name: &str) -> String {
    fs::read_to_string(contrib().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the value of a key, which a unit has once.
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let found: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect();
    assert_eq!(found.len(), 1, "{key} of {unit}");
    found[0]
}

/// Returns the unit `name`, whose score is 2.5 or better.
fn scored(name: &str) -> String {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--no-pager", "--offline=true", "--threshold=25"]).arg(contrib().join(name));
    let (passed, text) = ran(&mut command);
    assert!(passed, "{name}: {text}");
    // Words that this version of systemd does not know are ignored with a line.
    assert!(!text.contains("ignoring"), "{name}: {text}");
    unit(name)
}

#[test]
fn the_service_of_the_metrics_scores_2_5_or_better_without_a_capability() {
    if which("systemd-analyze").is_none() {
        return skip(test_name!(), "not installed: systemd-analyze");
    }
    let unit = scored("segue-metrics.service");
    assert_eq!((value(&unit, "CapabilityBoundingSet"), value(&unit, "AmbientCapabilities")), ("", ""));
}

#[test]
fn both_units_score_2_5_or_better() {
    if which("systemd-analyze").is_none() {
        return skip(test_name!(), "not installed: systemd-analyze");
    }
    let mut sections = Vec::new();
    for name in ["segue.service", "segue@.service"] {
        let unit = scored(name);
        assert!(unit.contains("CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON\n"), "{unit}");
        let (_, service) = unit.split_once("[Service]").unwrap();
        sections.push(service.replace("%i", "segue"));
    }
    assert_eq!(sections[0], sections[1], "the two differ in more than the name of the file");
}

#[test]
fn a_service_that_cannot_start_yet_is_started_again_without_end_and_a_wrong_command_line_is_not() {
    for name in ["segue.service", "segue@.service"] {
        let unit = unit(name);
        let (head, service) = unit.split_once("[Service]").expect("a section");
        assert_eq!(value(head, "StartLimitIntervalSec"), "0", "{name}");
        let restart = ["Restart", "RestartSec", "RestartPreventExitStatus"].map(|key| value(service, key));
        assert_eq!(restart, ["on-failure", "2s", "2"], "{name}");
    }
    let Some(program) = segue_tests::find_program() else {
        return skip(test_name!(), "the program is not built");
    };
    let directory = capture::Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, "[[gateway]]\nin = \"missing0\"\nout = \"tap:t0\"\n").expect("a file");
    let code = |words: &[&str]| Command::new(&program).args(words).output().expect("segue runs").status.code();
    let file = file.display().to_string();
    assert_eq!(code(&["run", "-c", &file]), Some(1), "an interface is missing");
    assert_eq!(code(&["run", "-c", &file, "--such"]), Some(2));
}

#[test]
fn the_additions_to_the_units_that_the_documentation_has_are_understood_and_keep_the_score() {
    if which("systemd-analyze").is_none() {
        return skip(test_name!(), "not installed: systemd-analyze");
    }
    let document = fs::read_to_string(contrib().join("../../docs/run.md")).expect("the document");
    let (_, rest) = document.split_once("### The units of the package").expect("a section");
    let (section, _) = rest.split_once("\n### ").expect("the next section");
    let blocks: Vec<&str> =
        section.split("```text\n").skip(1).filter_map(|part| Some(part.split_once("```")?.0)).collect();
    assert_eq!(blocks.len(), 4, "{section}");
    let directory = capture::Directory::new();
    let unit = directory.file("segue.service");
    fs::copy(contrib().join("segue.service"), &unit).expect("a unit");
    let folder = directory.file("segue.service.d");
    fs::create_dir(&folder).expect("a folder");
    for (number, block) in blocks.iter().enumerate() {
        assert!(block.contains("[Service]\n"), "{block}");
        fs::write(folder.join(format!("{number}.conf")), block).expect("a drop-in");
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--no-pager", "--offline=true", "--threshold=25"]).arg(&unit);
    let (passed, text) = ran(&mut command);
    assert!(passed && !text.contains("ignoring"), "{text}");
    // They were read.
    assert!(text.contains("char-usb_device") && text.contains("chown is allowed"), "{text}");
}

#[test]
fn the_user_and_the_folder_of_the_units_are_made_by_their_files() {
    if ["systemd-sysusers", "systemd-tmpfiles"].iter().any(|tool| which(tool).is_none()) {
        return skip(test_name!(), "not installed: systemd-sysusers, systemd-tmpfiles");
    }
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        return skip(test_name!(), "only root can give a folder to another user");
    }
    let directory = capture::Directory::new();
    let root = directory.path().join("root");
    for folder in ["etc", "run", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(contrib().join("segue.sysusers"), root.join("usr/lib/sysusers.d/segue.conf")).unwrap();
    fs::copy(contrib().join("segue.tmpfiles"), root.join("usr/lib/tmpfiles.d/segue.conf")).unwrap();
    let at_root = |tool: &str| {
        let mut command = Command::new(tool);
        command.arg(format!("--root={}", root.display()));
        command
    };
    let (made, text) = ran(&mut at_root("systemd-sysusers"));
    assert!(made, "{text}");
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(passwd.lines().any(|line| line.starts_with("segue:") && line.ends_with("nologin")), "{passwd}");
    let (made, text) = ran(at_root("systemd-tmpfiles").arg("--create"));
    assert!(made && ["run/segue", "run/segue-root"].iter().all(|folder| root.join(folder).is_dir()), "{text}");
}

/// Returns the path of an AppArmor profile of the units.
fn profile(name: &str) -> PathBuf {
    contrib().join("../apparmor").join(name)
}

/// Returns the text of the AppArmor profile that a unit names, which has that name.
fn profile_of(unit: &str) -> String {
    let named = value(unit, "AppArmorProfile").strip_prefix('-').expect("a unit starts without AppArmor too");
    let text = fs::read_to_string(profile(named)).unwrap_or_else(|error| panic!("{named}: {error}"));
    assert!(text.contains(&format!("\nprofile {named} ")), "{named}: {text}");
    text
}

#[test]
fn the_profile_of_the_units_is_understood_and_permits_what_they_do() {
    let text = fs::read_to_string(profile("segue")).expect("the profile");
    for name in ["segue.service", "segue@.service"] {
        let unit = unit(name);
        assert_eq!(profile_of(&unit), text, "{name}");
        let (program, _) = value(&unit, "ExecStart").split_once(' ').expect("words");
        let folder = Path::new(value(&unit, "ConditionPathExists")).parent().expect("a folder");
        let mut rules = vec![
            format!("{program} mrix,"),
            format!("{}/** r,", folder.display()),
            format!("{},", value(&unit, "DeviceAllow")),
            format!("{}/** rwk,", value(&unit, "ReadWritePaths").replace("/run/", "@{run}/")),
        ];
        let lower = |word: &str, prefix: &str| word.trim_start_matches(prefix).to_lowercase();
        let capabilities = value(&unit, "CapabilityBoundingSet").split(' ');
        rules.extend(capabilities.map(|one| format!("capability {},", lower(one, "CAP_"))));
        let families = value(&unit, "RestrictAddressFamilies").split(' ');
        rules.extend(families.map(|one| format!("network {},", lower(one, "AF_"))));
        for rule in rules {
            assert!(text.lines().any(|line| line.trim() == rule), "{name}: {rule}");
        }
    }

    // The service of the metrics has no capability and no device, and the socket families of its unit alone.
    let metrics = unit("segue-metrics.service");
    let less = profile_of(&metrics);
    let (program, _) = value(&metrics, "ExecStart").split_once(' ').expect("words");
    let families: Vec<String> = value(&metrics, "RestrictAddressFamilies")
        .split(' ')
        .map(|one| format!("network {} stream,", one.trim_start_matches("AF_").to_lowercase()))
        .collect();
    let rules: Vec<&str> = less.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    assert!(rules.contains(&format!("{program} mrix,").as_str()), "{less}");
    for rule in &families {
        assert!(rules.contains(&rule.as_str()), "{rule}: {less}");
    }
    let given = |word: &str| rules.iter().filter(|rule| rule.starts_with(word)).count();
    assert_eq!((given("network "), given("capability"), given("/dev/")), (families.len(), 0, 0), "{less}");

    let Some(parser) = which("apparmor_parser") else {
        return skip(test_name!(), "not installed: apparmor_parser");
    };
    let read = |file: &Path| ran(Command::new(&parser).args(["--skip-kernel-load", "--skip-cache"]).arg(file));
    for name in ["segue", "segue-metrics"] {
        let (accepted, said) = read(&profile(name));
        assert!(accepted, "{name}: {said}");
    }
    let directory = capture::Directory::new();
    let broken = directory.file("broken");
    fs::write(&broken, text.replace("capability bpf,", "capability bpf")).expect("a file");
    let (accepted, said) = read(&broken);
    assert!(!accepted && said.contains("syntax error"), "{said}");
}

/// Prints the answer of the metrics of a service, as a program of Python.
const SCRAPE: &str = "
import socket
client = socket.socket(socket.AF_UNIX)
client.connect('/run/segue/metrics.metrics')
client.sendall(b'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
print(client.makefile().read())
";

#[test]
fn a_service_uses_no_file_that_the_profile_of_the_units_forbids() {
    let tools = ["strace", "systemd-socket-activate"];
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &tools) else { return };
    if which("apparmor_parser").is_none() {
        return skip(test_name!(), "not installed: apparmor_parser");
    }
    // As systemd-tmpfiles makes them; an agent of root for a tunnel of the service has left its state.
    let agent = r#"{"schema":"segue.fleet/1","name":"sg1","engine":"etcd","state":"connected"}"#;
    let make = "mount -t tmpfs -o mode=755 run /run; mkdir -m 755 /run/segue /run/segue-root";
    let make = format!("{make}; echo '{agent}' > /run/segue-root/sg1.fleet.json");
    ground.a.run("sh", &["-ec", &make]).expect("the folders of the package");
    for words in ["link add in0 type veth peer name in1", "link set in0 up", "link set in1 up"] {
        ground.a.run("ip", &words.split(' ').collect::<Vec<_>>()).expect("ip");
    }
    let directory = capture::Directory::new();
    let (file, calls) = (directory.file("segue.toml"), directory.file("calls"));
    let tunnel = "[[tunnel]]\ndev = \"sg1\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    let gateway = "[[gateway]]\nin = \"in0\"\nout = \"tap:tap0\"\n";
    let metrics = "[metrics]\nlisten = [\"unix:/run/segue/metrics.metrics\"]\n";
    fs::write(&file, [tunnel, gateway, metrics].concat()).expect("a file");
    // The tracer is beside the service, not its parent, so that a signal comes to the service.
    let mut command = ground.a.command("strace");
    command.args(["-D", "-ff", "-y", "-qq", "-s", "4096", "-e", "trace=file,flock,connect,bind", "-o"]).arg(&calls);
    command.arg(&ground.program).args(["run", "-j", "-c"]).arg(&file).env("SEGUE_RUNTIME_DIR", "/run/segue");
    let mut service = Process::spawn(command, b"").expect("strace starts");
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    assert!(service.stdout().contains("\"absent\":[]"), "{}", service.stdout());
    let (reloaded, said) = segue(&ground.a, &ground.program, "reload segue");
    assert!(reloaded, "{said}");
    // Its own metrics.
    let has_agent = |answer: &str| answer.contains("\nsegue_fleet_state{name=\"sg1\",state=\"connected\"} 1\n");
    let answer = until("its metrics", || ground.a.run("/usr/bin/python3", &["-c", SCRAPE]).ok());
    assert!(has_agent(&answer), "{answer}");
    // The service of the metrics, by its socket; the tracer leaves it the process id that LISTEN_PID has.
    let scrape = directory.file("scrape");
    let socket = unit("segue-metrics.socket");
    let mut command = ground.a.command("systemd-socket-activate");
    command.args(["-l", value(&socket, "ListenStream"), "--fdname=metrics", "--setenv=SEGUE_RUNTIME_DIR=/run/segue"]);
    command.args(["strace", "-D", "-ff", "-y", "-qq"]);
    command.args(["-s", "4096", "-e", "trace=file,flock,connect,bind", "-o"]).arg(&scrape).arg(&ground.program);
    command.args(["metrics", "--listen", "fd:metrics"]);
    let mut metrics = Process::spawn(command, b"").expect("systemd-socket-activate starts");
    let answer = get(&ground.a, value(&socket, "ListenStream"), "/metrics", &mut metrics);
    assert!(answer.contains("\nsegue_instance_info{name=\"sg1\",kind=\"tunnel\"} 1\n"), "{answer}");
    assert!(has_agent(&answer), "{answer}");
    for started in [&mut metrics, &mut service] {
        started.terminate();
        assert_eq!(started.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", started.last_words());
    }

    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apparmor_paths.py");
    let program = ground.program.canonicalize().expect("the program");
    let forbidden = |profile: &Path, calls: &Path| {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(&here).arg(profile).arg(calls).arg(format!("{}=/etc/segue", directory.path().display()));
        command.args([&ground.program, &program].map(|path| format!("{}=/usr/bin/segue", path.display())));
        ran(&mut command)
    };
    let of_agents = ("@{run}/segue-root/*.fleet.json r", "/run/segue-root/sg1.fleet.json r");
    let rows = [
        ("segue", &calls, ("/dev/net/tun rw", "/dev/net/tun rw")),
        ("segue", &calls, of_agents),
        ("segue-metrics", &scrape, ("@{run}/segue/* rw", "/run/segue/sg1.sock w")),
        ("segue-metrics", &scrape, of_agents),
    ];
    for (name, calls, (rule, file)) in rows {
        let (permitted, said) = forbidden(&profile(name), calls);
        assert!(permitted, "{name}: {said}");
        // Without a rule its file is named.
        let (less, text) = (directory.file("less"), fs::read_to_string(profile(name)).expect("the profile"));
        fs::write(&less, text.replace(&format!("{rule},"), "")).expect("a file");
        let (permitted, said) = forbidden(&less, calls);
        assert!(!permitted && said.contains(file), "{name}: {said}");
    }
}

/// Programs that `unit_restrictions.py` starts.
const RESTRICTED: &[&str] = &["systemd-analyze", "setpriv", "unshare"];

#[test]
fn a_tunnel_runs_under_the_restrictions_of_its_unit() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, RESTRICTED) else { return };
    restricted(&ground, test_name!(), "encap-remcsum = true\n", |stat| {
        assert!(stat.drops().is_empty(), "{}", stat.json());
        stat.count("sg1", "transmit", "packets") > 0
    });
}

#[test]
fn the_in_kernel_path_is_loaded_under_the_restrictions_of_the_unit() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Nic, RESTRICTED) else { return };
    // The programs of a tunnel in UDP, which the verifier accepts from fewer processes than those of others.
    let words = "encap-csum = false\nfastpath = \"require\"\n";
    restricted(&ground, test_name!(), words, |stat| fastpath::taken(stat).iter().all(|count| *count > 0));
}

/// Tests that a tunnel in GUE with these keys is up at A under the restrictions of its unit, and that packets pass
/// until the condition holds for the tunnel at B, which is not restricted.
#[track_caller]
fn restricted(ground: &Ground, name: &str, words: &str, is_moved: impl Fn(&Stat) -> bool) {
    let whole = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
    if !whole {
        return skip(name, "the user of the unit is not mapped in this user namespace");
    }
    let seccomp = Command::new("/usr/bin/python3").args(["-c", "import seccomp"]).output();
    if !seccomp.is_ok_and(|output| output.status.success()) {
        return skip(name, "not installed: python3-seccomp");
    }
    let directory = capture::Directory::new();
    let file = directory.file("segue.toml");
    let text = |dev: &str, remote: &str, addr: &str| {
        format!("[[tunnel]]\ndev = \"{dev}\"\nremote = \"{remote}\"\naddr = [\"{addr}\"]\nencap = \"gue\"\n{words}")
    };
    fs::write(&file, text("sg1", "198.18.0.2", "198.18.2.1/24")).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unit_restrictions.py");
    let service = {
        let mut command = ground.a.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "/usr/bin/python3"]).arg(here);
        command.arg(contrib().join("segue.service")).arg(&ground.program).arg(&file);
        // An abstract name is of the network namespace.
        command.env("NOTIFY_SOCKET", "@segue-unit-test").env_remove("SEGUE_RUNTIME_DIR");
        command
    };
    let notified = segue_tests::traffic::inside(&ground.a, || {
        use std::os::linux::net::SocketAddrExt;
        let name = std::os::unix::net::SocketAddr::from_abstract_name("segue-unit-test")?;
        UnixDatagram::bind_addr(&name)
    });
    let notified = notified.unwrap();
    notified.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut service = Process::spawn(service, b"").unwrap();
    let mut message = [0; 4096];
    let ready = notified.recv(&mut message).unwrap_or_else(|error| panic!("{error}: {}", service.last_words()));
    assert!(message[..ready].starts_with(b"READY=1"), "{}", String::from_utf8_lossy(&message[..ready]));

    let far = directory.file("far.toml");
    fs::write(&far, text("sg1", "198.18.0.1", "198.18.2.2/24")).unwrap();
    let mut other = ground.b.command(&ground.program);
    other.args(["run", "-j", "-c"]).arg(&far);
    let mut other = Process::spawn(other, b"").unwrap();
    other.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
    let [a, b] = ["198.18.2.1", "198.18.2.2"].map(|address| address.parse().unwrap());
    until("no packet passes as it should", || {
        let reached = reach((&ground.a, a), (&ground.b, b), PATIENCE);
        reached.unwrap_or_else(|error| panic!("{error}\n{}", service.last_words()));
        is_moved(&Stat::read(&ground.b, &ground.program, "sg1")).then_some(())
    });

    // The process that moves packets has no capability left, and the one that supervises no more than the unit gives.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", service.id())).unwrap();
    let supervisor: u32 = children.split_whitespace().next().expect("unshare has a child").parse().unwrap();
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((field("Seccomp:").as_str(), field("NoNewPrivs:").as_str()), ("2", "1"), "{status}");
    assert_eq!(field("Uid:").split_whitespace().next(), Some("61234"), "{status}");
    let capabilities = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
    let given: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;
    assert_eq!(capabilities, given, "CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON and CAP_BPF");
}

fn segue(host: &Host, program: &Path, line: &str) -> (bool, String) {
    ran(host.command(program).args(line.split_whitespace()))
}

/// Command-line words of a tunnel.
const TUNNEL: &str = "tunnel dev sg41 local 198.18.0.1 remote 198.18.0.2 encap gue addr 198.19.41.1/30";

/// Returns the answer to a request for a path, which succeeds, of the process that listens at an address of a host.
#[track_caller]
fn get(host: &Host, address: &str, path: &str, server: &mut Process) -> String {
    let connected = || segue_tests::traffic::inside(host, || TcpStream::connect(address)).ok();
    let mut stream = until("nothing listens for the metrics", connected);
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{error}: {}", server.last_words()));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

/// Starts the program as a service manager does at the first connection to a socket, with the name `control`.
fn activate(ground: &Ground, socket: &str, line: &str) -> Process {
    let mut command = ground.a.command("systemd-socket-activate");
    command.args(["-l", socket, "--fdname=control"]).arg(&ground.program).args(line.split_whitespace());
    let process = Process::spawn(command, b"").expect("systemd-socket-activate starts");
    until("nothing listens", || ground.a.run("test", &["-S", socket]).ok());
    process
}

#[test]
fn the_first_client_starts_an_instance_through_a_socket_of_the_service_manager() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["systemd-socket-activate", "socat"]) else { return };
    let stat = |line: &str| segue(&ground.a, &ground.program, line);
    let (tunnel, service) = ("/run/segue/sg41.sock", "/run/segue/near.service");
    let mut started = activate(&ground, tunnel, TUNNEL);
    assert!(!ground.a.has_device("sg41"), "nothing has connected yet");
    until("the tunnel does not answer", || stat("stat sg41 -j").0.then_some(()));
    assert!(ground.a.has_device("sg41"));
    started.terminate();
    assert_eq!(started.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", started.last_words());
    // The file stays for the next start.
    ground.a.run("test", &["-S", tunnel]).expect("the socket's file");
    ground.a.run("rm", &[tunnel]).expect("rm");

    // A service: the reload waits for its start.
    let directory = capture::Directory::new();
    let file = directory.file("near.toml");
    let words = "[[tunnel]]\ndev = \"sg41\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    fs::write(&file, words).expect("a file");
    let mut started = activate(&ground, service, &format!("run -c {}", file.display()));
    until("the service does not answer", || stat("reload near").0.then_some(()));
    assert!(ground.a.has_device("sg41"));
    started.terminate();
    assert_eq!(started.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", started.last_words());
    ground.a.run("test", &["-S", service]).expect("the socket's file");

    // A socket that no client would find is refused.
    let other = directory.file("elsewhere.sock").display().to_string();
    let mut started = activate(&ground, &other, TUNNEL);
    ground.a.run("socat", &["-u", "/dev/null", &format!("UNIX-CONNECT:{other}")]).expect("socat");
    assert_eq!(started.wait(PATIENCE).expect("it ends").code(), Some(1), "{}", started.last_words());
    let said = started.stderr();
    assert!(said.contains("where clients do not look") && said.contains("ListenStream=/run/segue/sg41.sock"), "{said}");
    assert!(!ground.a.has_device("sg41"));
}

#[test]
fn a_socket_unit_is_for_the_user_and_the_file_of_its_service() {
    let mut sections = Vec::new();
    for (name, instance) in [("segue", "segue"), ("segue@", "%i")] {
        let (socket, service) = (unit(&format!("{name}.socket")), unit(&format!("{name}.service")));
        assert_eq!(value(&socket, "SocketUser"), value(&service, "User"));
        assert_eq!(value(&socket, "ConditionPathExists"), value(&service, "ConditionPathExists"));
        assert!(value(&service, "ExecStart").ends_with(value(&socket, "ConditionPathExists")), "{service}");
        // A service has the name of its file.
        let file = Path::new(value(&socket, "ConditionPathExists")).file_stem().expect("a file");
        let folder = value(&service, "Environment").strip_prefix("SEGUE_RUNTIME_DIR=").expect("a folder");
        assert_eq!(file, instance);
        assert_eq!(value(&socket, "ListenStream"), format!("{folder}/{instance}.service"));
        let (_, section) = socket.split_once("[Socket]").expect("a section");
        sections.push(section.replace("%i", "segue"));
    }
    assert_eq!(sections[0], sections[1], "the two differ in more than the name of the file");
}

#[test]
fn the_first_client_of_a_socket_unit_starts_its_service() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["systemd-socket-activate"]) else { return };
    let directory = capture::Directory::new();
    let file = directory.file("segue.toml");
    let words = "[[tunnel]]\ndev = \"sg41\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    fs::write(&file, words).expect("a file");
    // The command line of the service, with another file, activated by the socket of its unit.
    let start = |name: &str| {
        let (socket, service) = (unit(&format!("{name}.socket")), unit(&format!("{name}.service")));
        let line = value(&service, "ExecStart").replace("/etc/segue/segue.toml", &file.display().to_string());
        let words = line.strip_prefix("/usr/bin/segue ").expect("the program");
        let name = format!("--fdname={}", value(&socket, "FileDescriptorName"));
        let mut command = ground.a.command("systemd-socket-activate");
        command.args(["-l", value(&socket, "ListenStream"), &name]).arg(&ground.program).args(words.split(' '));
        Process::spawn(command, b"").expect("systemd-socket-activate starts")
    };
    let mut service = start("segue");
    let socket = unit("segue.socket");
    let listens = || ground.a.run("test", &["-S", value(&socket, "ListenStream")]).ok();
    until("nothing listens", listens);
    assert!(!ground.a.has_device("sg41"), "nothing has connected yet");
    until("the service does not answer", || segue(&ground.a, &ground.program, "reload segue").0.then_some(()));
    assert!(ground.a.has_device("sg41"));

    let mut metrics = start("segue-metrics");
    let answer = get(&ground.a, value(&unit("segue-metrics.socket"), "ListenStream"), "/metrics", &mut metrics);
    assert!(answer.contains("\nsegue_instance_info{name=\"sg41\",kind=\"tunnel\"} 1\n"), "{answer}");
    for started in [&mut metrics, &mut service] {
        started.terminate();
        assert_eq!(started.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", started.last_words());
    }
    listens().expect("the file of the socket stays");
}

#[test]
fn for_the_journal_each_event_is_one_line_with_priority_and_id() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = capture::Directory::new();
    let (file, log) = (directory.file("near.toml"), directory.file("log"));
    let words = "[[tunnel]]\ndev = \"sg42\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    fs::write(&file, words).expect("a file");
    // As systemd has it for `StandardError=journal`: the variable names the file that stderr is.
    let script = "exec 2>>\"$LOG\"; export JOURNAL_STREAM=$(stat -c %d:%i \"$LOG\"); exec \"$SEGUE\" run -c \"$FILE\"";
    let mut command = ground.a.command("sh");
    command.args(["-c", script]).env("LOG", &log).env("SEGUE", &ground.program).env("FILE", &file);
    let mut service = Process::spawn(command, b"").expect("segue starts");
    let log = || fs::read_to_string(&log).unwrap_or_default();
    #[track_caller]
    fn wait(log: impl Fn() -> String, text: &str) {
        until(&format!("no `{text}`"), || log().lines().any(|line| line.contains(text)).then_some(()));
    }
    wait(log, "<6>id=ready msg=\"1 instance up\"");
    wait(log, "<6>id=up instance=sg42 ");
    // A problem begins and ends.
    ground.a.run("ip", &["link", "set", segue_lab::DEVICE, "down"]).expect("ip");
    wait(log, "<4>id=unhealthy code=link_down ");
    ground.a.run("ip", &["link", "set", segue_lab::DEVICE, "up"]).expect("ip");
    wait(log, "<6>id=healthy code=link_down ");
    // An error of several lines for people is one, with its reason and hint.
    fs::write(&file, format!("{words}remot = 1\n")).expect("a file");
    assert!(!segue(&ground.a, &ground.program, "reload near").0);
    wait(log, "<3>id=config ");
    wait(log, "<3>id=reload_refused ");
    let (_, json) = segue(&ground.a, &ground.program, "stat -j");
    let document: Value = serde_json::from_str(&json).expect("JSON");
    let pid = document["instances"][0]["pid"].as_u64().expect("a process");
    sys::signal(u32::try_from(pid).expect("a pid"), libc::SIGKILL).expect("a signal");
    wait(log, "<4>id=ended instance=sg42 ");
    until("it does not start again", || {
        let count = log().lines().filter(|line| line.starts_with("<6>id=up instance=sg42 ")).count();
        (count >= 2).then_some(())
    });
    service.terminate();
    assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.last_words());
    wait(log, "<6>id=down instance=sg42 ");
    let documented = fs::read_to_string(contrib().join("../../docs/run.md")).expect("the document");
    for line in log().lines() {
        let id = line.get(3..).and_then(|rest| rest.strip_prefix("id=")).and_then(|rest| rest.split(' ').next());
        assert!(line.starts_with('<') && line.as_bytes()[2] == b'>', "no priority: {line}");
        assert!(id.is_some_and(|id| documented.contains(&format!("`{id}`"))), "an id without a word on it: {line}");
        assert!(line.contains(" msg="), "{line}");
    }
}

#[test]
fn times_are_local_for_people_and_utc_for_programs() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let mut command = ground.a.command(&ground.program);
    command.args(TUNNEL.split_whitespace());
    let _tunnel = Process::spawn(command, b"").expect("segue starts");
    until("the tunnel does not answer", || segue(&ground.a, &ground.program, "stat sg41").0.then_some(()));
    let first = |line: &str| {
        let mut command = ground.a.command(&ground.program);
        command.args(line.split_whitespace()).env("TZ", "IST-5:30");
        let watch = Process::spawn(command, b"").expect("segue starts");
        // A line without its end may lack a part.
        until("a watch shows nothing", || watch.stdout().split_once('\n').map(|(line, _)| line.to_owned()))
    };
    let text = first("stat sg41 --watch 1");
    assert!(text.split(',').next().is_some_and(|time| time.ends_with("+05:30")), "{text}");
    let json: Value = serde_json::from_str(&first("stat sg41 --watch 1 -j")).expect("JSON");
    assert!(json["t"].as_str().is_some_and(|time| time.ends_with('Z')), "{json}");
}

#[test]
fn an_image_for_containers_is_laid_out_whole_and_a_damaged_one_is_seen() {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/image");
    let folder = capture::Directory::new();
    let [program, first, second] = ["program", "first", "second"].map(|name| folder.file(name));
    // The header of an ELF program of 64 bits without any segment.
    let header = [&b"\x7fELF\x02\x01\x01"[..], &[0; 57]].concat();
    fs::write(&program, header).expect("a file");
    let image = |words: &[&Path]| ran(Command::new(tool).args(words).env("SOURCE_DATE_EPOCH", "1700000000"));
    for to in [&first, &second] {
        let (done, said) = image(&[&program, to]);
        assert!(done, "{said}");
    }
    let (same, said) = ran(Command::new("diff").arg("-r").args([&first, &second]));
    assert!(same, "two images of one program differ: {said}");
    let (good, listed) = image(&[Path::new("--check"), &first]);
    assert!(good && listed.contains("0755 0 usr/bin/segue") && listed.contains("0700 60705 run/segue"), "{listed}");
    // Read by hand: what the specification of the layout says of the index, a manifest, its configuration and layer.
    let json = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON") };
    let blob = |of: &Value| {
        first.join("blobs/sha256").join(of["digest"].as_str().expect("a digest").trim_start_matches("sha256:"))
    };
    let index = json(first.join("index.json"));
    let manifest = json(blob(&index["manifests"][0]));
    let config = json(blob(&manifest["config"]));
    assert_eq!((&config["config"]["User"], &config["os"]), (&"60705:60705".into(), &"linux".into()));
    assert_eq!(config["config"]["Labels"]["segue.capabilities"], "NET_ADMIN");
    let layer = blob(&manifest["layers"][0]);
    let (listed, sum) = ran(Command::new("sh").args(["-c", "gzip -dc \"$0\" | sha256sum"]).arg(&layer));
    assert!(listed && config["rootfs"]["diff_ids"][0].as_str().expect("a digest").ends_with(&sum[..64]), "{sum}");
    // The file capability that Linux reads: revision 2, effective, CAP_NET_ADMIN.
    let (_, tar) = ran(Command::new("sh")
        .args(["-c", "gzip -dc \"$0\" | grep -ac SCHILY.xattr.security.capability="])
        .arg(&layer));
    assert_eq!(tar.trim(), "1");
    let mut bytes = fs::read(&layer).expect("a layer");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&layer, bytes).expect("a damaged layer");
    let (good, said) = image(&[Path::new("--check"), &first]);
    assert!(!good && said.contains("the digest or the size is another"), "{said}");
    // A program that needs libraries, as this test does, would not start in it.
    let own = std::env::current_exe().expect("a program");
    let (done, said) = image(&[&own, &second]);
    assert!(!done && said.contains("no static program"), "{said}");
}
