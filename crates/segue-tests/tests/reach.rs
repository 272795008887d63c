//! Tests of what the processes of each kind of instance reach, by attempts in the running processes: the one that moves
//! packets, its supervisor, the openers of adapters, the keepers and dialers of guests, also where the kernel has no
//! Landlock, no filters of system calls, or neither; and of what the server of the metrics and the agent of a fleet
//! reach. `tools/trust.d/07-calls` prints their lists.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use segue_lab::{LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::faults::{field, helpers, parent, tunnel};
use segue_tests::probe::{FILES, Held, LASTING, Reach, X32, capabilities};
use segue_tests::{Ground, Stat, fastpath, sys, test_name, until};

const PATIENCE: Duration = Duration::from_secs(60);
/// Capabilities that a parent may have: those that `docs/security.md` lists.
const KILL: u64 = 1 << 5;
const DAC_OVERRIDE: u64 = 1 << 1;
const OF_SERVICE: u64 = KILL | 1 << 2 | 1 << 24;
/// System calls that are allowed but not tried, and those that are allowed with some arguments only: mmap, mprotect,
/// tgkill, ioctl, fcntl, setsockopt and bpf.
const BESIDE: usize = 4 + 7;
/// System calls that no process of an instance may make, whatever its purpose.
const NEVER: [i64; 22] = [
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_rename,
    libc::SYS_mount,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_setuid,
    libc::SYS_capset,
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_init_module,
];

/// Files and sockets that the worker of a tunnel may have open: see [`may_have_open`].
const OF_TUNNELS: &[&str] = &[
    "/dev/net/tun",
    "/proc/supervisor/net/snmp",
    "/sys/devices/virtual/net/sg1/statistics/tx_dropped",
    "netlink socket",
    "udp socket",
];
/// Descriptors by which a worker waits for rings and times of its own.
const WAITING: &[&str] = &["anon_inode:[eventpoll]", "anon_inode:[timerfd]"];

/// Words that start an instance; the path of a guest's socket is behind `vhost:`.
const TUNNEL: &str = "tunnel dev sg1 local 198.18.0.1 remote 198.18.0.2 encap gue";
const GUESTS: &str = "gateway --name sg1 vhost:left vhost:right,client";
const ADAPTER: &str = "lan78xx up --dev sg1 --usb usbip://198.18.0.2/1-1";

/// A running instance, `sg1` of host A.
struct Instance {
    process: Process,
    worker: u32,
    /// The processes that open devices or talk to front ends.
    helpers: Vec<u32>,
}

impl Instance {
    /// Starts an instance of the given words, to which `change` may be made, and returns once its last filter is in
    /// force, which is the one of this number.
    #[track_caller]
    fn start(ground: &Ground, words: &str, change: impl FnOnce(&mut Command), filters: u32) -> Instance {
        let mut command = ground.a.command(&ground.program);
        command.args(words.split(' '));
        change(&mut command);
        // What this process has open for itself alone; each of theirs closes what it inherits.
        sys::pass_on_no_descriptors().unwrap();
        let mut process = Process::spawn(command, b"").unwrap();
        let begin = Instant::now();
        let worker = loop {
            let output = ground.a.command(&ground.program).args(["stat", "sg1", "-j"]).output().unwrap();
            if output.status.success() {
                let pid = Stat::read(&ground.a, &ground.program, "sg1").json()["pid"].as_u64().unwrap();
                break u32::try_from(pid).unwrap();
            }
            assert!(process.ended().is_none() && begin.elapsed() < PATIENCE, "{words}: {}", process.last_words());
            std::thread::sleep(Duration::from_millis(10));
        };
        // The control socket answers before the last filter is in force.
        let count = |pid: u32| field(&status(pid), "Seccomp_filters").parse::<u32>().unwrap();
        let own = count(std::process::id());
        until("the last filter", || (count(worker) >= own + filters).then_some(()));
        Instance { process, worker, helpers: helpers(worker) }
    }

    /// Returns the name of an open file with the names of the instance's processes in place of their numbers.
    fn named(&self, name: &str) -> String {
        let others = self.helpers.iter().map(|pid| (*pid, "helper"));
        let known = [(self.worker, "worker"), (parent(self.worker), "supervisor")];
        let replaced = |name: String, (pid, who): (u32, &str)| name.replace(&format!("/{pid}/"), &format!("/{who}/"));
        known.into_iter().chain(others).fold(name.to_owned(), replaced)
    }

    /// Checks that what was tried has harmed nothing, and ends the instance.
    #[track_caller]
    fn end(mut self, ground: &Ground) {
        let now = Stat::read(&ground.a, &ground.program, "sg1").json()["pid"].as_u64();
        assert_eq!(now, Some(self.worker.into()), "{}", self.process.last_words());
        self.process.terminate();
        assert_eq!(self.process.wait(PATIENCE).unwrap().code(), Some(0), "{}", self.process.last_words());
    }
}

#[track_caller]
fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

/// Starts the model of an adapter at host B, for [`ADAPTER`].
#[track_caller]
fn model(ground: &Ground) -> Process {
    let mut command = ground.b.command(&ground.program);
    command.args(["lan78xx", "model", "--usbip", "198.18.0.2:3240", "--wire", "tap:cable0", "-q"]);
    let mut model = Process::spawn(command, b"").unwrap();
    until("the model", || {
        assert!(model.ended().is_none(), "{}", model.last_words());
        let listening = ground.b.run("cat", &["/proc/net/tcp"]).unwrap();
        // Port 3240, in the state of a listener.
        listening.contains(":0CA8 00000000:0000 0A").then_some(())
    });
    model
}

/// Puts the sockets of an instance's guests into a directory.
fn placed(words: &str, directory: &Directory) -> String {
    words.replace("vhost:", &format!("vhost:{}/", directory.path().display()))
}

/// Returns what a process may have open, by the words of [`Reach`], in which the number of a process of the instance is
/// what that process is. Nothing else may be open, least of all a file by which a process reaches memory, a bus or a
/// setting.
fn may_have_open(of: &str, who: &str) -> Vec<&'static str> {
    let of_kind: &[&[&str]] = match (who, of) {
        ("supervisor", _) => &[&["anon_inode:[signalfd]", "/proc/worker/task/worker/stat", "/proc/helper/stat"]],
        ("service", _) => &[&["anon_inode:[signalfd]", "netlink socket"]],
        ("worker", "a tunnel" | "a tunnel with two workers" | "an instance of a service") => &[OF_TUNNELS],
        ("worker", "a tunnel on the in-kernel path") => {
            &[OF_TUNNELS, &["raw socket", "anon_inode:bpf-map", "anon_inode:bpf-prog", "anon_inode:bpf_link"]]
        }
        ("worker", "a gateway") => &[WAITING, &["/dev/net/tun", "netlink socket", "packet socket"]],
        ("worker", "a router") => &[
            WAITING,
            &["netlink socket", "packet socket"],
            // It stops where the host forwards by itself.
            &["/proc/sys/net/ipv4/conf/in/forwarding", "/proc/sys/net/ipv4/conf/out/forwarding"],
            &["/proc/sys/net/ipv6/conf/in/forwarding", "/proc/sys/net/ipv6/conf/out/forwarding"],
        ],
        ("worker", "a gateway of guests") => &[WAITING, &["/proc/helper/stat"]],
        ("worker", "an adapter") => &[WAITING, &["/dev/net/tun", "/proc/helper/stat", "netlink socket", "tcp socket"]],
        ("worker", "a model in one process") => &[WAITING, &["/dev/net/tun", "netlink socket"]],
        _ => &[],
    };
    let of_workers: &[&str] = if who == "worker" { &["anon_inode:[signalfd]"] } else { &[] };
    let of_all: &[&str] = &["/dev/null", "pipe", "unix socket"];
    [of_all, of_workers].iter().chain(of_kind).flat_map(|names| names.iter().copied()).collect()
}

/// Lists what a process of an instance reaches, prints that, and checks what holds for each of them.
#[track_caller]
fn listed(instance: &Instance, pid: u32, of: &str, who: &str) -> Option<Reach> {
    let held = Held::allowed(pid)?;
    let reach = Reach::of(&held, &[], true).unwrap();
    println!("the {who} of {of}: {reach}");
    assert!(reach.files.is_empty(), "the {who} of {of} opens {:?}", reach.files);
    let found: Vec<_> = NEVER.iter().filter(|number| reach.calls.contains(number)).collect();
    assert!(found.is_empty(), "the {who} of {of} makes the calls {found:?}");
    // The numbers of another ABI are names of the same calls.
    let read = held.call(X32 | libc::SYS_read, [u64::MAX; 6]).unwrap();
    assert_eq!(read, -i64::from(libc::EPERM), "the {who} of {of} in x32");
    // The kernel takes no change of an interface by what is there to ask for its state.
    let answers = held.changes().unwrap();
    let is_refused = |answer: &i64| *answer == -i64::from(libc::EPERM);
    assert!(answers.iter().all(is_refused), "the {who} of {of} changes interfaces: {answers:?}");
    assert_eq!(answers.is_empty(), !reach.open.contains_key("netlink socket"), "the {who} of {of}");
    assert_known(instance, &reach, of, who);
    Some(reach)
}

/// Checks that a process has nothing open beyond what it may.
#[track_caller]
fn assert_known(instance: &Instance, reach: &Reach, of: &str, who: &str) {
    let known = may_have_open(of, who);
    let mut other: Vec<_> = reach.open.keys().map(|name| instance.named(name)).collect();
    other.retain(|name| !known.contains(&name.as_str()));
    assert!(other.is_empty(), "the {who} of {of} has {other:?} open");
}

/// Returns whether a process may make a local socket that connects to others; `None` where this machine does not allow
/// the attempt.
#[track_caller]
fn connects_locally(pid: u32) -> Option<bool> {
    let held = Held::allowed(pid)?;
    let socket = [libc::AF_UNIX, libc::SOCK_STREAM, 0].map(|word| word as u64);
    Some(held.may(libc::SYS_socket, &socket).unwrap())
}

/// Lists all processes of an instance; `None` where this machine does not allow that.
#[track_caller]
fn list_all(ground: &Ground, of: &str, words: &str, helpers: (usize, &str)) -> Option<()> {
    let instance = Instance::start(ground, words, |_| (), 3);
    let worker = listed(&instance, instance.worker, of, "worker")?;
    assert_eq!(worker.capabilities, 0, "{of}");
    assert!(worker.calls.len() + BESIDE <= 40, "{of}: {} calls: {:?}", worker.calls.len(), worker.calls);
    let more = [libc::SYS_openat, libc::SYS_socket, libc::SYS_kill, libc::SYS_unlinkat];
    assert!(more.iter().all(|number| !worker.calls.contains(number)), "{of}: {:?}", worker.calls);
    let supervisor = listed(&instance, parent(instance.worker), of, "supervisor")?;
    assert_eq!(supervisor.capabilities & !KILL, 0, "{of}");
    assert!(supervisor.calls.len() <= 40, "{of}: {:?}", supervisor.calls);
    assert!(!supervisor.calls.contains(&libc::SYS_socket) && !supervisor.calls.contains(&libc::SYS_openat));
    assert_eq!(instance.helpers.len(), helpers.0, "{of}");
    let mut dialers = 0;
    for pid in &instance.helpers {
        let connects = connects_locally(*pid)?;
        dialers += usize::from(connects);
        let who = if connects { "dialer" } else { helpers.1 };
        let helper = listed(&instance, *pid, of, who)?;
        // The socket of a front end that listens may be for the starting user alone: the process that connects to it
        // reads nothing of the front end's, and takes no descriptors from it.
        assert!(connects || field(&status(*pid), "Uid") != "0", "{of}: the {who} is root");
        assert!(!connects || !helper.calls.contains(&libc::SYS_accept4), "{of}: the {who} accepts connections");
        assert_eq!(helper.capabilities, 0, "{of}");
        assert!(helper.calls.len() <= 40, "{of}: {:?}", helper.calls);
        let more = [libc::SYS_kill, libc::SYS_unlinkat, libc::SYS_openat, libc::SYS_getdents64];
        assert!(more.iter().all(|number| !helper.calls.contains(number)), "{of}: {:?}", helper.calls);
    }
    assert_eq!(dialers, words.matches(",client").count(), "{of}: processes that connect to local sockets");
    instance.end(ground);
    Some(())
}

#[test]
fn the_processes_of_each_kind_of_instance_reach_no_more_than_they_need() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ip"]) else { return };
    let directory = Directory::new();
    for port in ["in", "out"] {
        ground.a.run("ip", &["link", "add", port, "type", "veth", "peer", "name", &format!("{port}1")]).unwrap();
        ground.a.run("ip", &["link", "set", port, "up"]).unwrap();
    }
    let _model = model(&ground);
    for (of, words, helpers) in [
        ("a tunnel", TUNNEL, (0, "")),
        ("a tunnel with two workers", &format!("{TUNNEL} workers 2"), (0, "")),
        ("a gateway", "gateway --name sg1 in tap:t0", (0, "")),
        ("a router", "gateway --name sg1 in out --route --nat 198.18.0.9", (0, "")),
        ("a gateway of guests", &placed(GUESTS, &directory), (3, "keeper")),
        ("an adapter", ADAPTER, (1, "opener")),
        ("a model in one process", "lan78xx up --dev sg1 --usb model --wire tap:t1", (0, "")),
    ] {
        if list_all(&ground, of, words, helpers).is_none() {
            return;
        }
    }
}

#[test]
fn the_processes_of_a_tunnel_on_the_in_kernel_path_reach_no_more_than_they_need() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let words = "tunnel dev sg1 local 198.18.0.1 remote 198.18.0.2 fastpath require";
    let _ = list_all(&ground, "a tunnel on the in-kernel path", words, (0, ""));
}

#[test]
fn a_service_reaches_no_other_process_and_its_instances_no_more_than_they_need() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, tunnel(segue_lab::Peer::A, 1, "")).unwrap();
    let instance = Instance::start(&ground, &format!("run -c {}", file.display()), |_| (), 4);
    let of = "an instance of a service";
    let Some(worker) = listed(&instance, instance.worker, of, "worker") else { return };
    assert!(worker.capabilities == 0 && worker.calls.len() + BESIDE <= 40, "{worker}");
    let Some(supervisor) = listed(&instance, parent(instance.worker), of, "supervisor") else { return };
    assert!(supervisor.capabilities & !KILL == 0 && supervisor.calls.len() <= 40, "{supervisor}");
    let Some(held) = Held::allowed(parent(parent(instance.worker))) else { return };
    let service = Reach::of(&held, &LASTING, false).unwrap();
    println!("the service of one file: {service}");
    assert_eq!(service.capabilities & !OF_SERVICE, 0, "{service}");
    assert_known(&instance, &service, "one file", "service");
    // None of these is made by its number in another ABI, for which a list of refused numbers has no entry.
    for number in [libc::SYS_mount, libc::SYS_reboot, libc::SYS_read, 520] {
        let answer = held.call(X32 | number, [u64::MAX; 6]).unwrap();
        assert_eq!(answer, -i64::from(libc::EPERM), "{number} in x32");
    }
    drop(held);
    instance.end(&ground);
}

/// Checks what holds for a process of an instance by its user and its capabilities alone.
#[track_caller]
fn assert_powerless(held: &Held, worker: u32, what: &str) {
    let pid = held.pid();
    let text = status(pid);
    assert_eq!(capabilities(pid).unwrap(), [0; 2], "{what}");
    assert_eq!((field(&text, "CapBnd"), field(&text, "NoNewPrivs")), ("0000000000000000", "1"), "{what}: {text}");
    let path = held.write(b"/\0").unwrap();
    let may = |number: i64, arguments: &[u64]| held.may(number, arguments).unwrap();
    for (number, arguments) in [
        (libc::SYS_chroot, &[path][..]),
        (libc::SYS_unshare, &[libc::CLONE_NEWNET as u64]),
        (libc::SYS_sethostname, &[path, 1]),
        (libc::SYS_mount, &[path, path, path, libc::MS_BIND, 0]),
        (libc::SYS_socket, &[libc::AF_PACKET as u64, libc::SOCK_RAW as u64, 0]),
    ] {
        assert!(!may(number, arguments), "{what} makes the call {number}");
    }
    // The process that connects to a front end that listens: its socket may be for the starting user alone.
    if field(&text, "Uid") == "0" {
        return;
    }
    let write = libc::O_WRONLY;
    for (path, flags) in [
        ("/etc/passwd", write),
        ("/etc/shadow", libc::O_RDONLY),
        ("/proc/self/mem", libc::O_RDWR),
        ("/proc/1/environ", libc::O_RDONLY),
        ("/proc/sys/net/ipv4/ip_forward", write),
        ("/sys/fs/cgroup/cgroup.procs", write),
        ("/run/segue/x", libc::O_CREAT | write),
        ("/etc/x", libc::O_CREAT | write),
    ] {
        assert!(!held.opens(path, flags).unwrap(), "{what} opens {path}");
    }
    let attach = [libc::PTRACE_ATTACH.into(), 1, 0, 0];
    assert!(!may(libc::SYS_setuid, &[0]) && !may(libc::SYS_setgid, &[0]), "{what} becomes root");
    assert!(!may(libc::SYS_kill, &[1, 0]) && !may(libc::SYS_ptrace, &attach), "{what} reaches root's processes");
    // Each process has a user of its own, unless the machine has one for all of them.
    let shares = field(&status(worker), "Uid") == field(&text, "Uid");
    assert!(shares || !may(libc::SYS_kill, &[worker.into(), 0]), "{what} signals the worker");
}

#[test]
fn without_landlock_or_seccomp_or_both_an_opener_and_a_keeper_have_no_rights_of_root() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let (directory, _model) = (Directory::new(), model(&ground));
    let (landlock, seccomp) = (libc::SYS_landlock_create_ruleset, libc::SYS_seccomp);
    for (without, filters, what) in [
        (&[landlock][..], 4, "without Landlock"),
        (&[seccomp], 1, "without seccomp"),
        (&[landlock, seccomp], 2, "without Landlock and seccomp"),
    ] {
        for (words, who) in [(GUESTS, "keeper"), (ADAPTER, "opener")] {
            let weaken = |command: &mut Command| {
                command.arg("--weak-sandbox");
                without.iter().for_each(|call| sys::without_call(command, *call));
            };
            let instance = Instance::start(&ground, &placed(words, &directory), weaken, filters);
            assert!(!instance.helpers.is_empty(), "{who} {what}");
            for pid in instance.helpers.iter().chain([&instance.worker]) {
                let who = if *pid == instance.worker { "worker" } else { who };
                let what = format!("a {who} {what}");
                let Some(held) = Held::allowed(*pid) else { return };
                assert_powerless(&held, instance.worker, &what);
                // Each of the two alone keeps files out of reach. Paths alone are not Landlock's.
                let files = FILES.iter().filter(|(_, flags)| flags & (libc::O_PATH | libc::O_CREAT) == 0);
                let reached: Vec<_> = files.filter(|(path, flags)| held.opens(path, *flags).unwrap()).collect();
                assert!(without.len() == 2 || reached.is_empty(), "{what} opens {reached:?}");
                if !without.contains(&seccomp) {
                    let found: Vec<_> = NEVER.iter().filter(|call| held.may(**call, &[u64::MAX; 6]).unwrap()).collect();
                    assert!(found.is_empty(), "{what} makes the calls {found:?}");
                    if *pid != instance.worker {
                        assert_connects_plainly(&held, &what);
                    }
                }
            }
            instance.end(&ground);
        }
    }
}

/// Checks that a process connects by no other way than TCP's `connect`, of which alone Landlock knows the ports.
#[track_caller]
fn assert_connects_plainly(held: &Held, what: &str) {
    let opens = libc::MSG_FASTOPEN as u64;
    let socket = |kind: i32, protocol: i32| [libc::AF_INET, kind, protocol].map(|word| word as u64);
    for (number, arguments) in [
        (libc::SYS_sendto, &[u64::MAX, 0, 0, opens, 0, 0][..]),
        (libc::SYS_sendmsg, &[u64::MAX, 0, opens]),
        (libc::SYS_sendmmsg, &[u64::MAX, 0, 0, opens]),
        (libc::SYS_socket, &socket(libc::SOCK_STREAM, libc::IPPROTO_MPTCP)),
        (libc::SYS_socket, &socket(libc::SOCK_STREAM, libc::IPPROTO_SCTP)),
        (libc::SYS_socket, &socket(libc::SOCK_RAW, libc::IPPROTO_TCP)),
    ] {
        assert!(!held.may(number, arguments).unwrap(), "{what} makes the call {number} of {arguments:x?}");
    }
}

/// Checks a process that asks control sockets and reads from the network: it reaches other users' sockets, and no
/// files, processes and programs but its own. `more` are system calls of [`NEVER`] that it may make.
#[track_caller]
fn assert_asks_only(pid: u32, of: &str, who: &str, more: &[i64]) -> Option<Held> {
    let held = Held::allowed(pid)?;
    let reach = Reach::of(&held, &[], false).unwrap();
    println!("the {who} of {of}: {reach}");
    assert_eq!(reach.capabilities & !DAC_OVERRIDE, 0, "{who}");
    let text = status(pid);
    assert_eq!((field(&text, "NoNewPrivs"), field(&text, "Seccomp")), ("1", "2"), "{who}: {text}");
    assert_eq!(field(&text, "CapBnd"), "0000000000000000", "{who}: {text}");
    // Paths alone are not Landlock's.
    assert!(reach.files.iter().all(|path| *path == "/"), "the {who} opens {:?}", reach.files);
    let never = NEVER.iter().filter(|number| !more.contains(number));
    let found: Vec<_> = never.filter(|number| reach.calls.contains(number)).collect();
    assert!(found.is_empty(), "the {who} makes the calls {found:?}");
    let read = held.call(X32 | libc::SYS_read, [u64::MAX; 6]).unwrap();
    assert_eq!(read, -i64::from(libc::EPERM), "the {who} in x32");
    let may = |number: i64, arguments: &[u64]| held.may(number, arguments).unwrap();
    for family in [libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG] {
        assert!(
            !may(libc::SYS_socket, &[family as u64, libc::SOCK_RAW as u64, 0]),
            "the {who} has a socket of {family}"
        );
    }
    // Threads at most: the kernel itself refuses these flags, with another error.
    let process = (libc::CLONE_FS | libc::CLONE_NEWNS) as u64;
    assert!(!may(libc::SYS_clone, &[process, 0]), "the {who} starts processes");
    // It signals and traces no process, memory does not become executable, and nothing is made or changed elsewhere.
    assert!(!may(libc::SYS_kill, &[1, libc::SIGTERM as u64]), "the {who} signals");
    assert!(!may(libc::SYS_tgkill, &[1, 1, 0]), "the {who} signals");
    assert!(!may(libc::SYS_mprotect, &[0, 4096, libc::PROT_EXEC as u64]), "the {who} has code");
    let write = libc::O_WRONLY;
    for (path, flags) in [
        ("/etc/shadow", libc::O_RDONLY),
        ("/etc/passwd", write),
        ("/etc/segue-probe", libc::O_CREAT | write),
        ("/tmp/segue-probe", libc::O_CREAT | write),
        ("/proc/1/mem", libc::O_RDONLY),
        ("/proc/sys/net/ipv4/ip_forward", write),
        ("/usr/bin/env", libc::O_RDONLY),
    ] {
        assert!(!held.opens(path, flags).unwrap(), "the {who} opens {path}");
    }
    // No file that it makes runs with the rights of another user, and those of others keep their modes.
    let makes = (libc::O_CREAT | write) as u64;
    for (number, arguments) in [
        (libc::SYS_fchmod, &[u64::MAX, 0o666][..]),
        (libc::SYS_fchmod, &[u64::MAX, 0o4755]),
        (libc::SYS_open, &[0, makes, 0o4755]),
        (libc::SYS_openat, &[u64::MAX, 0, makes, 0o2755]),
        (libc::SYS_openat, &[u64::MAX, 0, (libc::O_TMPFILE | write) as u64, 0o4755]),
        (libc::SYS_mkdir, &[0, 0o1777]),
        (libc::SYS_mkdirat, &[u64::MAX, 0, 0o2700]),
    ] {
        assert!(!may(number, arguments), "the {who} makes the call {number} of {arguments:x?}");
    }
    assert_connects_plainly(&held, who);
    Some(held)
}

#[test]
fn the_server_of_the_metrics_reaches_control_sockets_and_its_own_files_alone() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ip"]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let directory = Directory::new();
    let (file, socket) = (directory.file("segue.prom"), directory.file("metrics"));
    let instance = Instance::start(&ground, TUNNEL, |_| (), 3);
    let mut server = ground.a.command(&ground.program);
    server.args(["metrics", "-j", "--every", "1", "--listen", "127.0.0.1:0", "--textfile"]).arg(&file);
    server.arg("--listen").arg(format!("unix:{}", socket.display()));
    let mut server = Process::spawn(server, b"").unwrap();
    let up = server.wait_for_line("\"event\":\"up\"", PATIENCE);
    up.unwrap_or_else(|error| panic!("{error}\n{}", server.last_words()));
    let renames = [libc::SYS_open, libc::SYS_rename];
    let Some(held) = assert_asks_only(server.id(), "the metrics", "server", &renames) else { return };
    for family in [libc::AF_INET, libc::AF_INET6] {
        let socket = [family as u64, libc::SOCK_STREAM as u64, 0];
        assert!(!held.may(libc::SYS_socket, &socket).unwrap(), "it connects to other hosts");
    }
    assert!(!held.opens("/run/segue/segue-probe", libc::O_CREAT | libc::O_WRONLY).unwrap(), "it makes control sockets");
    drop(held);
    // It still asks, and writes its file again.
    std::fs::remove_file(&file).unwrap();
    let has_tunnel = || fs::read_to_string(&file).is_ok_and(|text| text.contains("{name=\"sg1\",kind=\"tunnel\"} 1"));
    until("the file", || has_tunnel().then_some(()));
    server.terminate();
    assert_eq!(server.wait(PATIENCE).unwrap().code(), Some(0), "{}", server.last_words());
    assert!(!file.exists() && !socket.exists(), "it removes its file and its socket");
    instance.end(&ground);
}

#[test]
fn the_agent_of_a_fleet_reaches_its_registry_its_tunnel_and_its_own_files_alone() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ip"]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let words = "dev sg1 peers none local 198.18.0.1 listen vxlan:8472 id 1 fastpath off";
    let instance = Instance::start(&ground, &format!("tunnel {words}"), |_| (), 3);
    let directory = Directory::new();
    // In a directory that is not there yet.
    let subnet_file = directory.path().join("run/flannel/subnet.env");
    // Without a registry it asks again and again, by the address of a member or by its name.
    let start = |member: &str| {
        let mut agent = ground.a.command(&ground.program);
        agent.args("fleet etcd --dev sg1 --public-ip 198.18.0.1 --endpoints".split(' ')).arg(member);
        agent.arg("--subnet-file").arg(&subnet_file);
        let mut agent = Process::spawn(agent, b"").unwrap();
        let error = until("the agent has tried", || {
            assert!(agent.ended().is_none(), "{}", agent.last_words());
            let text = ground.a.run("cat", &["/run/segue/sg1.fleet.json"]).unwrap_or_default();
            let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            state["error"].as_str().filter(|_| state["pid"] == agent.id()).map(str::to_owned)
        });
        assert!(error.contains("refused"), "{member}: {error}");
        agent
    };
    let end = |mut agent: Process| {
        agent.terminate();
        assert_eq!(agent.wait(PATIENCE).unwrap().code(), Some(0), "{}", agent.last_words());
        assert!(ground.a.run("cat", &["/run/segue/sg1.fleet.json"]).is_err(), "it removes its state");
    };
    let agent = start("http://127.0.0.1:2379");
    let more = [libc::SYS_open, libc::SYS_rename, libc::SYS_clone];
    let Some(held) = assert_asks_only(agent.id(), "a fleet", "agent", &more) else { return };
    let file = subnet_file.to_str().unwrap();
    assert!(held.opens(file, libc::O_CREAT | libc::O_WRONLY).unwrap(), "it cannot write {file}");
    // Datagrams are for the resolvers of names alone.
    let datagrams = [libc::AF_INET, libc::SOCK_DGRAM, 0].map(|word| word as u64);
    assert!(!held.may(libc::SYS_socket, &datagrams).unwrap(), "it has datagrams");
    assert!(!held.may(libc::SYS_fchmod, &[u64::MAX, 0o644]).unwrap(), "it changes modes");
    drop(held);
    end(agent);
    let agent = start("http://localhost:2379");
    let held = Held::allowed(agent.id()).expect("as before");
    assert!(held.may(libc::SYS_socket, &datagrams).unwrap() && held.opens("/etc/hosts", libc::O_RDONLY).unwrap());
    assert!(!held.may(libc::SYS_fchmod, &[u64::MAX, 0o644]).unwrap(), "it changes modes of files that it reads");
    assert_connects_plainly(&held, "an agent whose member has a name");
    drop(held);
    end(agent);
    instance.end(&ground);
}
