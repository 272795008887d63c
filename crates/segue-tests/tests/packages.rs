//! Tests of the artifacts of a release: the Debian package on a clean system, and the static programs in an empty file
//! system.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use segue_lab::{Family, Host, LinkForm, Peer, Process, reach, skip};
use segue_tests::capture::Directory;
use segue_tests::{Ground, test_name, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
/// Length of the transfer during which the package is upgraded, seconds.
const TRANSFER: &str = "15";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Runs a command for `longest` at most; returns its output, or panics if it fails.
#[track_caller]
fn run(command: Command, longest: Duration) -> String {
    let mut process = Process::spawn(command, b"").expect("it starts");
    let status = process.wait(longest).unwrap_or_else(|error| panic!("{}: {error}", process.line()));
    let text = process.stdout() + &process.stderr();
    assert!(status.success(), "{}: {text}", process.line());
    text
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"))
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}

/// A Debian system below a directory, with the network of a host.
struct System<'a> {
    host: &'a Host,
    root: PathBuf,
}

impl System<'_> {
    /// Unpacks the clean Debian system of lab/debian-root, which is made once.
    fn unpack<'a>(host: &'a Host, folder: &Path) -> System<'a> {
        let cache = std::env::var_os("SEGUE_VM_CACHE").map_or_else(|| top().join("target/vm"), PathBuf::from);
        let archive = cache.join("debian-root.tar");
        let mut make = Command::new(top().join("lab/debian-root"));
        make.arg(&archive);
        run(make, Duration::from_secs(700));
        let root = folder.join("root");
        fs::create_dir(&root).expect("a folder");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&root).arg("-xf").arg(&archive);
        run(tar, PATIENCE);
        // What is installed here need not survive a crash of this machine.
        fs::write(root.join("etc/dpkg/dpkg.cfg.d/test"), "force-unsafe-io\n").expect("a setting");
        System { host, root }
    }

    /// Returns a command that runs inside the system, with mounts and devices like a running one, which are removed
    /// when it ends.
    fn command(&self, words: &[&str]) -> Command {
        const SCRIPT: &str = "root=$1; shift; mount --bind \"$root\" \"$root\"; mount -t proc proc \"$root/proc\"; mount -t sysfs sysfs \"$root/sys\"; \
            mount -t tmpfs -o mode=755 tmpfs \"$root/dev\"; mkdir \"$root/dev/net\"; cd \"$root/dev\"; \
            mknod -m 666 null c 1 3; mknod -m 666 zero c 1 5; mknod -m 666 random c 1 8; mknod -m 666 urandom c 1 9; \
            mknod -m 666 net/tun c 10 200; cd /; exec chroot \"$root\" \"$@\"";
        let mut command = self.host.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", SCRIPT, "sh"]).arg(&self.root).args(words);
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        run(self.command(words), PATIENCE)
    }

    /// Returns the content of the disk: paths, and for files that are not the package manager's own their content.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                let inside = path.strip_prefix(&self.root).expect("inside").to_owned();
                // The package manager's records, the copies that adduser makes of the files that it changes, and what
                // others have in /run, which is gone with the next start of a system.
                let is_other =
                    inside.starts_with("run") && inside != Path::new("run") && !inside.starts_with("run/segue");
                let records = ["var/lib/dpkg", "var/log", "var/cache"];
                let is_record = is_other || records.iter().any(|own| inside.starts_with(own));
                let is_copy = inside.parent() == Some(Path::new("etc")) && inside.to_string_lossy().ends_with('-');
                let kind = entry.file_type().expect("a type");
                if is_record || is_copy {
                    continue;
                }
                let is_list = ["etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"]
                    .iter()
                    .any(|list| inside == Path::new(list));
                found.insert(inside, if is_list { fs::read(&path).expect("a file") } else { Vec::new() });
                if kind.is_dir() {
                    folders.push(path);
                }
            }
        }
        found
    }
}

/// Builds the package of a program, with this version number.
fn package(program: &Path, revision: &str) -> PathBuf {
    let mut command = Command::new(top().join("tools/deb"));
    command.arg(program).env("REVISION", revision).env("COMPRESSION", "gzip");
    PathBuf::from(run(command, 2 * PATIENCE).lines().rfind(|line| line.ends_with(".deb")).expect("its path"))
}

/// Returns the command line of the unit, with the user, the capabilities and the environment that it names.
fn of_unit(unit: &str) -> Vec<String> {
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("the unit has no {key}")).to_owned()
    };
    let capabilities: Vec<String> =
        value("CapabilityBoundingSet").to_lowercase().split(' ').map(str::to_owned).collect();
    let set: String = capabilities.iter().map(|one| one.replace("cap_", ",+")).collect();
    assert_eq!(value("NoNewPrivileges"), "yes");
    let mut words = vec!["setpriv".to_owned(), "--no-new-privs".to_owned(), "--clear-groups".to_owned()];
    words.extend([format!("--reuid={}", value("User")), format!("--regid={}", value("Group"))]);
    words.extend(["inh-caps", "ambient-caps", "bounding-set"].map(|kind| format!("--{kind}=-all{set}")));
    words.extend(["env".to_owned(), value("Environment")]);
    words.extend(value("ExecStart").split(' ').map(str::to_owned));
    words
}

#[test]
fn the_removal_of_the_package_disables_every_unit_of_its_templates() {
    let directory = Directory::new();
    let path = |name: &str| directory.file(name).display().to_string();
    for folder in ["bin", "run", "units/multi-user.target.wants", "units/sockets.target.wants"] {
        fs::create_dir_all(directory.file(folder)).expect("a folder");
    }
    for (link, unit) in
        [("multi-user", "segue@blue.service"), ("sockets", "segue@a\\x20b.socket"), ("multi-user", "other@x")]
    {
        let link = directory.file(&format!("units/{link}.target.wants/{unit}"));
        std::os::unix::fs::symlink("/lib/systemd/system/segue@.service", link).expect("a link");
    }
    // The service manager, and AppArmor, which is off.
    for (tool, script) in
        [("systemctl", format!("echo \"$*\" >> '{}'", path("calls"))), ("aa-enabled", "exit 1".to_owned())]
    {
        let tool = directory.file("bin").join(tool);
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).expect("a program");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let script = fs::read_to_string(top().join("contrib/debian/prerm")).expect("the script");
    let script = script.replace("/etc/systemd/system", &path("units")).replace("/run/systemd/system", &path("run"));
    let begin = |word: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &script, "prerm", word]).env("PATH", format!("{}:/usr/bin:/bin", path("bin")));
        run(command, PATIENCE);
        fs::read_to_string(path("calls")).unwrap_or_default()
    };
    assert_eq!(begin("upgrade"), "");
    let calls = begin("remove");
    let mut disabled: Vec<&str> = calls.lines().filter_map(|line| line.strip_prefix("disable --quiet ")).collect();
    disabled.sort_unstable();
    let own = "segue.service segue.socket segue-metrics.socket";
    assert_eq!(disabled, [own, "segue@a\\x20b.socket", "segue@blue.service"], "{calls}");
}

#[test]
fn root_has_a_directory_of_its_own_in_run_beside_that_of_the_packages_services() {
    /// The user of the services.
    const USER: u32 = 40_124;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
    if !is_root() {
        return skip(test_name!(), "a user namespace has one user");
    }
    let directory = Directory::new();
    let make = format!(
        "exec 3<'{}'
mount -t tmpfs -o mode=755 run /run; mkdir -m 755 /run/segue; chown {USER} /run/segue
mount -t tmpfs -o mode=755 tun /dev/net; mknod -m 666 /dev/net/tun c 10 200
mount -t tmpfs -o mode=755 mnt /mnt; install -m 755 /proc/self/fd/3 /mnt/segue",
        ground.program.display()
    );
    ground.a.run("sh", &["-ec", &make]).expect("folders and a device");
    let start = |command: &mut Command, dev: &str, key: u16| {
        let words = format!(
            "/mnt/segue tunnel -j dev {dev} local 198.18.0.1 remote 198.18.0.2 encap gue key {key} \
             port {key} encap-dport {key}"
        );
        command.args(words.split_whitespace());
        let mut process = Process::spawn(std::mem::replace(command, Command::new("true")), b"").expect("segue starts");
        process.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        process
    };
    let mut service = ground.a.command("setpriv");
    service.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]);
    service.args(["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}=-all,+net_admin,+net_raw")));
    let _service = start(service.env("SEGUE_RUNTIME_DIR", "/run/segue"), "blue", 6080);
    // The directory of a session, which is removed with the session.
    let mut root = ground.a.command("env");
    let mut root = start(root.env("XDG_RUNTIME_DIR", directory.path()), "red", 6081);
    let own = ["/run/segue-root", "/run/segue-root/red.sock"];
    let listed = ground.a.run("stat", &["-c", "%a %u", own[0], own[1]]).expect("stat");
    assert_eq!(listed, "755 0\n600 0\n");
    // Both are found, by a call without that session.
    let listed = ground.a.run("/mnt/segue", &["stat", "-j"]).expect("segue stat");
    assert!(listed.contains("\"red\"") && listed.contains("\"blue\""), "{listed}");
    ground.a.run("/mnt/segue", &["stop", "red"]).expect("segue stop");
    assert_eq!(root.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", root.last_words());
    assert_eq!(ground.a.run("ls", &["-A", own[0]]).expect("ls"), "");
}

#[test]
fn full_size_the_package_is_installed_upgraded_under_load_and_removed_on_a_clean_system() {
    let tools = ["debootstrap", "dpkg-deb", "lintian", "iperf3", "ping", "unshare", "chroot", "tar"];
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &tools) else { return };
    if !is_root() {
        return skip(test_name!(), "only root of the first user namespace can make device nodes");
    }
    let directory = Directory::new();
    // A package manager writes a new file, whatever is in it.
    let packages = [package(&ground.program, "1"), package(&ground.program, "2")];
    for package in &packages {
        let mut lintian = Command::new("lintian");
        lintian.args(["--fail-on", "error", "--allow-root"]).arg(package);
        run(lintian, PATIENCE);
    }

    let system = System::unpack(&ground.a, directory.path());
    let before = system.content();
    for (package, name) in packages.iter().zip(["first.deb", "next.deb"]) {
        fs::copy(package, system.root.join("tmp").join(name)).expect("a package inside");
    }
    system.run(&["dpkg", "--install", "/tmp/first.deb"]);
    assert_eq!(system.run(&["dpkg-query", "-W", "-f", "${Status}", "segue"]), "install ok installed");
    assert!(system.run(&["id", "segue"]).contains("segue"));
    // The test that goes with the package.
    fs::copy(top().join("contrib/debian/tests/tunnel"), system.root.join("tmp/tunnel")).expect("the test");
    system.run(&["sh", "/tmp/tunnel"]);

    // The unit's command line starts the example file of the package, cut down to a tunnel.
    let tunnel = |end: Peer| {
        let (here, there) = if end == Peer::A { (1, 2) } else { (2, 1) };
        format!(
            "[[tunnel]]\ndev = \"sg1\"\nlocal = \"198.18.0.{here}\"\nremote = \"198.18.0.{there}\"\nencap = \"gue\"\n\
             encap-remcsum = true\naddr = [\"{}\"]\n",
            end.prefix(1, Family::V4)
        )
    };
    fs::write(system.root.join("etc/segue/segue.toml"), tunnel(Peer::A)).expect("a file");
    let unit = fs::read_to_string(system.root.join("lib/systemd/system/segue.service")).expect("the unit");
    let words = of_unit(&unit);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["-j"]).collect();
    let mut service = Process::spawn(system.command(&words), b"").expect("the service");
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let far = directory.file("far.toml");
    fs::write(&far, tunnel(Peer::B)).expect("a file");
    let mut other = ground.b.command(&ground.program);
    other.args(["run", "-j", "-c"]).arg(&far);
    let mut other = Process::spawn(other, b"").expect("the other end");
    other.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let ends = [Peer::A, Peer::B].map(|end| end.address(1, Family::V4));
    reach((&ground.a, ends[0]), (&ground.b, ends[1]), PATIENCE).expect("the tunnel");
    let stat = || -> Value {
        let text = system.run(&["env", "SEGUE_RUNTIME_DIR=/run/segue", "segue", "stat", "sg1", "-j"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let index = || ground.a.run("cat", &["/sys/class/net/sg1/ifindex"]).expect("an index");
    let state = || (stat()["instances"][0]["pid"].as_u64().expect("a pid"), index());

    // An upgrade under a transfer in both directions: no connection is lost.
    let mut server = ground.b.command("iperf3");
    server.args(["-s", "-B", &ends[1].to_string()]);
    let mut server = Process::spawn(server, b"").expect("iperf3");
    until("iperf3 does not listen", || {
        ground.b.run("ss", &["-tln"]).is_ok_and(|list| list.contains(":5201 ")).then_some(())
    });
    let mut load = ground.a.command("iperf3");
    load.args(["-J", "--bidir", "-P", "4", "-t", TRANSFER, "-c", &ends[1].to_string()]);
    let mut load = Process::spawn(load, b"").expect("iperf3");
    until("nothing is transferred", || {
        ground.b.run("ss", &["-tn"]).is_ok_and(|list| list.matches(":5201 ").count() >= 9).then_some(())
    });
    let (process, made) = state();
    let text = system.run(&["dpkg", "--install", "/tmp/next.deb"]);
    assert!(text.contains("upgraded /etc/segue/segue.toml") && text.contains("handed over sg1"), "{text}");
    let (now, same) = state();
    assert!(now != process && same == made, "a process of the new program has the same interface");
    let status = load.wait(PATIENCE).expect("iperf3 ends");
    let report: Value = serde_json::from_str(&load.stdout()).expect("its report");
    assert!(status.success() && report.get("error").is_none(), "{}", report["error"]);
    assert_eq!(report["start"]["connected"].as_array().map(Vec::len), Some(8), "four each way");
    for stream in report["end"]["streams"].as_array().expect("streams") {
        assert!(stream["receiver"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{stream}");
    }
    let last = report["intervals"].as_array().and_then(|all| all.last()).expect("intervals");
    for stream in last["streams"].as_array().expect("streams") {
        assert!(stream["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "a stream stands still at the end: {stream}");
    }
    server.terminate();

    // Another upgrade, back to the first program: no packet is lost.
    let mut pings = ground.b.command("ping");
    pings.args(["-q", "-n", "-i", "0.01", "-c", "500", "-W", "5", &ends[0].to_string()]);
    let mut pings = Process::spawn(pings, b"").expect("ping");
    let (process, _) = state();
    let text = system.run(&["dpkg", "--install", "/tmp/first.deb"]);
    assert!(text.contains("handed over sg1") && state().0 != process, "{text}");
    assert!(pings.wait(PATIENCE).expect("ping ends").success(), "{}", pings.stdout());
    assert!(pings.stdout().contains(" 0% packet loss"), "{}", pings.stdout());

    // Nothing is left of it.
    for service in [&mut service, &mut other] {
        service.terminate();
        assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.last_words());
    }
    system.run(&["rm", "/etc/segue/segue.toml", "/tmp/first.deb", "/tmp/next.deb", "/tmp/tunnel"]);
    system.run(&["dpkg", "--purge", "segue"]);
    let after = system.content();
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let left: Vec<&PathBuf> = before.keys().chain(after.keys()).filter(differs).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn full_size_static_programs_need_nothing_around_them_and_run_on_another_machine() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["unshare", "chroot", "qemu-aarch64"]) else {
        return;
    };
    if !is_root() {
        return skip(test_name!(), "only root of the first user namespace can make device nodes");
    }
    let mut dist = Command::new(top().join("tools/dist"));
    dist.arg("--programs");
    run(dist, Duration::from_secs(1800));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top().join("target"), PathBuf::from);
    let program = |machine: &str| target.join(format!("{machine}-unknown-linux-musl/release/segue"));
    let directory = Directory::new();

    // Two ends of a tunnel, each in a folder with the program and the device alone.
    let start = |host: &Host, end: Peer| {
        let root = directory.path().join(end.address(1, Family::V4).to_string());
        fs::create_dir(&root).expect("a folder");
        fs::copy(program("x86_64"), root.join("segue")).expect("the program");
        let script = "mount --bind \"$1\" \"$1\"; cd \"$1\"; mkdir -p dev/net; mknod dev/net/tun c 10 200; shift; \
            exec chroot . /segue \"$@\"";
        let words = format!(
            "tunnel -j dev sg1 local {} remote {} encap gue encap-remcsum addr {}",
            end.address(0, Family::V4),
            if end == Peer::A { Peer::B } else { Peer::A }.address(0, Family::V4),
            end.prefix(1, Family::V4)
        );
        let mut command = host.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]).arg(&root);
        command.args(words.split(' '));
        let mut tunnel = Process::spawn(command, b"").expect("the tunnel");
        tunnel.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        tunnel
    };
    let mut tunnels = [start(&ground.a, Peer::A), start(&ground.b, Peer::B)];
    let ends = [Peer::A, Peer::B].map(|end| end.address(1, Family::V4));
    reach((&ground.a, ends[0]), (&ground.b, ends[1]), PATIENCE).expect("the tunnel");
    for tunnel in &mut tunnels {
        tunnel.terminate();
        assert_eq!(tunnel.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", tunnel.last_words());
    }

    // The other machine says and makes what this one does.
    let capture = top().join("captures/gue-gre-remcsum-inner4-tcp.pcap");
    let both = |words: &[&str], output: Option<&Path>| {
        let [here, there] = ["x86_64", "aarch64"].map(|machine| {
            let mut command = Command::new(if machine == "aarch64" { "qemu-aarch64" } else { "env" });
            command.arg(program(machine)).args(words);
            if let Some(output) = output {
                let _ = fs::remove_file(output);
                command.arg(output);
            }
            let text = run(command, PATIENCE);
            (text, output.map(|output| fs::read(output).expect("a capture")))
        });
        assert_eq!(here, there, "{words:?}");
        here
    };
    let (version, _) = both(&["-V"], None);
    assert!(version.starts_with("segue "), "{version}");
    let capture = capture.to_str().expect("a path");
    let (verified, _) = both(&["pcap", "verify", capture], None);
    assert!(verified.contains("good"), "{verified}");
    let merged = directory.file("merged.pcap");
    let (_, bytes) = both(&["pcap", "merge", capture], Some(&merged));
    assert!(bytes.is_some_and(|bytes| bytes.len() > 1000));
}
