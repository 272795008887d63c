//! Tests of the systemd units: their score, their users and folders, and a tunnel under their restrictions, which are
//! made by hand (unit_restrictions.py) since systemd does not run here.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use segue_lab::{LinkForm, Process, reach, skip, which};
use segue_tests::{Ground, Stat, capture, test_name};

const PATIENCE: Duration = Duration::from_secs(30);

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

fn ran(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn both_units_score_2_5_or_better() {
    if which("systemd-analyze").is_none() {
        return skip(test_name!(), "not installed: systemd-analyze");
    }
    let mut sections = Vec::new();
    for name in ["segue.service", "segue@.service"] {
        let path = contrib().join(name);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", "--threshold=25"]).arg(&path);
        let (passed, text) = ran(&mut command);
        assert!(passed, "{name}: {text}");
        // Words that this version of systemd does not know are ignored with a line.
        assert!(!text.contains("ignoring"), "{name}: {text}");
        let unit = fs::read_to_string(&path).unwrap();
        assert!(unit.contains("CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF\n"), "{unit}");
        let (_, service) = unit.split_once("[Service]").unwrap();
        sections.push(service.replace("%i", "segue"));
    }
    assert_eq!(sections[0], sections[1], "the two differ in more than the name of the file");
}

#[test]
fn the_user_and_the_folder_of_the_units_are_made_by_their_files() {
    if ["systemd-sysusers", "systemd-tmpfiles"].iter().any(|tool| which(tool).is_none()) {
        return skip(test_name!(), "not installed: systemd-sysusers, systemd-tmpfiles");
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
    assert!(made && root.join("run/segue").is_dir(), "{text}");
}

#[test]
fn a_tunnel_runs_under_the_restrictions_of_its_unit() {
    let tools = ["systemd-analyze", "setpriv", "unshare"];
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &tools) else { return };
    let whole = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
    if !whole {
        return skip(test_name!(), "the user of the unit is not mapped in this user namespace");
    }
    let seccomp = Command::new("/usr/bin/python3").args(["-c", "import seccomp"]).output();
    if !seccomp.is_ok_and(|output| output.status.success()) {
        return skip(test_name!(), "not installed: python3-seccomp");
    }
    let directory = capture::Directory::new();
    let file = directory.file("segue.toml");
    let words = "encap = \"gue\"\nencap-remcsum = true\n";
    let text = |dev: &str, remote: &str, addr: &str| {
        format!("[[tunnel]]\ndev = \"{dev}\"\nremote = \"{remote}\"\naddr = [\"{addr}\"]\n{words}")
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
    reach((&ground.a, a), (&ground.b, b), PATIENCE).unwrap_or_else(|error| panic!("{error}\n{}", service.last_words()));
    let stat = Stat::read(&ground.b, &ground.program, "sg1");
    assert!(stat.count("sg1", "transmit", "packets") > 0 && stat.drops().is_empty(), "{}", stat.json());

    // The process that moves packets has no capability left, and the one that supervises no more than the unit gives.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", service.id())).unwrap();
    let supervisor: u32 = children.split_whitespace().next().expect("unshare has a child").parse().unwrap();
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((field("Seccomp:").as_str(), field("NoNewPrivs:").as_str()), ("2", "1"), "{status}");
    assert_eq!(field("Uid:").split_whitespace().next(), Some("61234"), "{status}");
    let capabilities = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
    assert_eq!(capabilities, 1 << 12 | 1 << 13 | 1 << 39, "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF");
}
