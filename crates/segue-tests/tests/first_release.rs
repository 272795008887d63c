//! Tests of the upgrade promise: the configuration of release 0.1 is read, and runs, unchanged. `common/segue-0.1.toml`
//! is the example of that release, byte for byte.

use std::fs;
use std::path::Path;
use std::time::Duration;

use segue_lab::{Host, LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, find_program, skip, test_name, until};

const EXAMPLE: &str = include_str!("common/segue-0.1.toml");
/// Time within which the service must end.
const PATIENCE: Duration = Duration::from_secs(90);

fn ip(host: &Host, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    host.run("ip", &words).unwrap_or_else(|error| panic!("ip {line}: {error}"));
}

#[test]
fn the_example_of_release_0_1_runs_unchanged() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    let (a, b, program) = (&ground.a, &ground.b, ground.program.as_path());
    // The gateway's inside, at whose other end a station is.
    let station = Host::new("station").expect("a host");
    ip(a, &format!("link add eth1 type veth peer name eth0 netns {}", station.net_path()));
    ip(a, "link set eth1 up");
    ip(&station, "link set eth0 up");
    ip(&station, "addr add 198.18.200.2/24 dev eth0");
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, EXAMPLE).expect("a file");
    // The other end, by a command line of release 0.1.
    let mut other = b.command(program);
    other.args("tunnel dev sg0 remote 198.18.0.1 encap gue mode gre addr 198.19.0.2/30".split(' '));
    let _other = Process::spawn(other, b"").expect("segue starts");

    let mut command = a.command(program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut service = Process::spawn(command, b"").expect("segue starts");
    let ready = || service.stdout().lines().find(|line| line.contains("\"event\":\"ready\"")).map(str::to_owned);
    let ready = until(&format!("not ready: {}{}", service.stdout(), service.stderr()), ready);
    assert!(ready.contains("\"sg0\"") && ready.contains("\"gw0\"") && ready.contains("\"absent\":[]"), "{ready}");
    ip(a, "addr add 198.18.200.1/24 dev lro0");
    for (to, what) in [("198.19.0.2", "the tunnel"), ("198.18.200.2", "the gateway")] {
        let answered = || a.run("ping", &["-q", "-c", "1", "-W", "1", to]).ok();
        until(&format!("{what} carries nothing: {}", service.stderr()), answered);
    }
    assert_eq!(service.stderr(), "", "nothing to warn of");
    // Each knob has the value of the file.
    for (name, knob, value) in [
        ("sg0", "net.inet.tcp.gso", "1"),
        ("sg0", "net.inet.udp.gso", "1"),
        ("sg0", "net.gso.dev.udp.enable_gso", "1"),
        ("sg0", "net.gso.dev.udp.max_burst", "65535"),
        ("sg0", "net.gro.dev.sg0.enable_gro", "1"),
        ("gw0", "net.gso.dev.lro0.enable_gso", "1"),
    ] {
        assert!(EXAMPLE.contains(&format!("\n{knob} = {value}")), "{knob} is not of the example");
        let output = a.command(program).args(["set", name, knob, "-q"]).output().expect("segue runs");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown.trim(), value, "{knob}");
    }
    service.terminate();
    assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.stderr());
}

/// Returns the example with the line `number` uncommented, or `None` where that line is not a commented-out key.
fn with_key(number: usize) -> Option<(&'static str, String)> {
    let commented = EXAMPLE.lines().nth(number)?.strip_prefix("# ")?;
    let key = commented.split_once(" = ")?.0;
    let is_key = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    let line = |(at, line)| if at == number { commented } else { line };
    is_key.then(|| (key, EXAMPLE.lines().enumerate().map(line).collect::<Vec<_>>().join("\n") + "\n"))
}

/// Returns the example with the tunnel's mode changed to one that has the key, for keys that GRE lacks.
fn of_mode(key: &str, text: &str) -> String {
    let mode = match key {
        "id" | "srcport" | "learning" | "ageing" | "maxaddress" | "fdb" | "df" | "udp6zerocsumtx"
        | "udp6zerocsumrx" | "remcsumtx" | "remcsumrx" => "vxlan",
        _ => return text.to_owned(),
    };
    let id = if key == "id" { String::new() } else { "id = 42\n".to_owned() };
    let replaced = text.replace("mode = \"gre\" ", &format!("{id}mode = \"{mode}\" "));
    replaced.replace("encap = \"gue\"", "encap = \"none\"")
}

#[test]
fn every_key_of_release_0_1_is_still_understood() {
    let Some(program) = find_program() else {
        return skip(test_name!(), "the program is not built (cargo build -p segue-cli)");
    };
    let directory = Directory::new();
    let keys: Vec<(&str, String)> = (0..EXAMPLE.lines().count()).filter_map(with_key).collect();
    assert_eq!(keys.len(), 50, "the example has so many");
    for (key, text) in &keys {
        let file = directory.file("segue.toml");
        fs::write(&file, of_mode(key, text)).expect("a file");
        let errors = check(&program, &file);
        assert!(is_understood(&errors), "{key}: {errors}");
    }
    // One that is mistyped is not, and neither is a value of another kind.
    for (right, wrong) in [("# ttl = \"auto\"", "ttk = 1"), ("# ttl = \"auto\"", "ttl = \"x\"")] {
        let file = directory.file("segue.toml");
        fs::write(&file, EXAMPLE.replacen(right, wrong, 1)).expect("a file");
        let errors = check(&program, &file);
        assert!(!is_understood(&errors), "{wrong}: {errors}");
    }
}

/// Returns whether all errors are caused by this host, which lacks the interfaces.
fn is_understood(errors: &str) -> bool {
    !errors.contains("unknown key") && !errors.contains("expected")
}

fn check(program: &Path, file: &Path) -> String {
    let output = std::process::Command::new(program).args(["run", "--check", "-c"]).arg(file).output();
    String::from_utf8_lossy(&output.expect("segue runs").stderr).into_owned()
}
