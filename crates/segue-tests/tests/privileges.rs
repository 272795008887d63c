//! Tests of the rights of each process of an instance, and of the processes that may disturb it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use segue_lab::{LinkForm, Peer, Process};
use segue_tests::capture::Directory;
use segue_tests::faults::{field, parent, tunnel};
use segue_tests::{Ground, Stat, sys, test_name, until};

const PATIENCE: Duration = Duration::from_secs(30);
const WORDS: &str = "dev sg1 local 198.18.0.1 remote 198.18.0.2 encap gue";

/// The bits of the capabilities in `/proc/PID/status` (linux/capability.h).
const KILL: u64 = 1 << 5;
const DAC_READ_SEARCH: u64 = 1 << 2;
const SYS_RESOURCE: u64 = 1 << 24;
const SYS_CHROOT: u64 = 1 << 18;
const MKNOD: u64 = 1 << 27;
/// A user that no instance takes by itself.
const USER: u32 = 61_234;

/// Starts `segue` with the given words at host A, from a shell that passes a file and a secret on to it.
fn start(ground: &Ground, words: &str) -> Process {
    let script = format!("exec 7</etc/hostname 8<>/dev/null; SECRET=hush exec {} {words}", ground.program.display());
    let mut command = ground.a.command("sh");
    command.args(["-c", &script]);
    Process::spawn(command, b"").unwrap()
}

/// Waits until the instance `sg1` answers, and returns the id of the process that moves packets.
#[track_caller]
fn worker(ground: &Ground, process: &mut Process) -> u32 {
    let begin = Instant::now();
    loop {
        let output = ground.a.command(&ground.program).args(["stat", "sg1", "-j"]).output().unwrap();
        if output.status.success() {
            let pid = Stat::read(&ground.a, &ground.program, "sg1").json()["pid"].as_u64().unwrap();
            return u32::try_from(pid).unwrap();
        }
        assert!(process.ended().is_none() && begin.elapsed() < PATIENCE, "{}", process.last_words());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the targets of the descriptors of a process.
fn descriptors(pid: u32) -> BTreeSet<String> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    folder.filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string())).collect()
}

/// Returns whether a process has an rtnetlink socket.
fn has_netlink(pid: u32) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap();
    let inodes: BTreeSet<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
    descriptors(pid)
        .iter()
        .any(|to| to.strip_prefix("socket:[").is_some_and(|i| inodes.contains(i.trim_end_matches(']'))))
}

#[track_caller]
fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

/// Returns the effective and the permitted capabilities of a process.
#[track_caller]
fn capabilities(pid: u32) -> [u64; 2] {
    let status = status(pid);
    ["CapEff", "CapPrm"].map(|name| u64::from_str_radix(field(&status, name), 16).unwrap())
}

/// Checks that a process has inherited nothing from the shell that started it.
#[track_caller]
fn assert_clean(pid: u32) {
    let open = descriptors(pid);
    assert!(!open.contains("/etc/hostname"), "{pid}: {open:?}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(!environment.windows(4).any(|word| word == b"hush"), "{pid} has the secret");
}

#[test]
fn neither_a_process_that_moves_packets_nor_its_parent_has_anything_of_who_started_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sh"]) else { return };
    let mut process = start(&ground, &format!("tunnel {WORDS}"));
    let worker = worker(&ground, &mut process);
    [worker, parent(worker)].into_iter().for_each(assert_clean);
    assert!(!has_netlink(parent(worker)), "{:?}", descriptors(parent(worker)));
}

#[test]
fn each_process_has_the_rights_of_its_table_and_no_others() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sh"]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, tunnel(Peer::A, 1, "")).unwrap();
    for words in [format!("tunnel {WORDS}"), format!("run -c {}", file.display())] {
        let mut process = start(&ground, &words);
        let worker = worker(&ground, &mut process);
        let supervisor = parent(worker);
        let user: u32 = field(&status(worker), "Uid").parse().unwrap();
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let packaged =
            users.lines().find_map(|line| line.strip_prefix("segue:")?.split(':').nth(1)?.parse::<u32>().ok());
        assert!((60_706..=61_183).contains(&user) || packaged == Some(user), "{user}");
        for (pid, kept) in [(worker, 0), (supervisor, KILL)] {
            let text = status(pid);
            assert_eq!(capabilities(pid), [kept; 2], "{words}: {text}");
            assert_eq!(u64::from_str_radix(field(&text, "CapBnd"), 16).unwrap(), 0, "{words}: {text}");
            assert_eq!((field(&text, "NoNewPrivs"), field(&text, "Seccomp")), ("1", "2"), "{words}: {text}");
            assert_clean(pid);
        }
        assert!(!has_netlink(supervisor), "{words}: it can ask the kernel for changes");
        if words.starts_with("run") {
            let service = parent(supervisor);
            assert_eq!(service, process.id());
            // A machine may have taken some of them from root.
            let [effective, permitted] = capabilities(service);
            assert_eq!(effective, permitted);
            assert_eq!(effective & !(KILL | DAC_READ_SEARCH | SYS_RESOURCE), 0, "{}", status(service));
            assert_ne!(effective & KILL, 0);
            let text = status(service);
            assert_eq!((field(&text, "NoNewPrivs"), field(&text, "Seccomp")), ("0", "2"), "{text}");
        }
        process.terminate();
        assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0), "{}", process.last_words());
        assert!(!Path::new(&format!("/proc/{worker}")).exists());
    }
}

#[test]
fn no_two_instances_share_a_user() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sh"]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, (1..=4).map(|net| tunnel(Peer::A, net, "")).collect::<String>()).unwrap();
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut process = Process::spawn(command, b"").unwrap();
    process.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
    let pids = (1..=4).map(|net| Stat::read(&ground.a, &ground.program, &format!("sg{net}")).json()["pid"].as_u64());
    let users: BTreeSet<String> = pids.map(|pid| field(&status(pid.unwrap() as u32), "Uid").to_owned()).collect();
    let is_named = fs::read_to_string("/etc/passwd").unwrap().lines().any(|line| line.starts_with("segue:"));
    assert_eq!(users.len(), if is_named { 1 } else { 4 }, "{users:?}");
}

#[test]
fn no_other_user_can_hold_up_a_start() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv", "flock", "sleep"]) else { return };
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    let hold = |file: &str| {
        let mut command = ground.a.command("setpriv");
        // It waits, since the question below takes the lock for a moment.
        command.args(nobody).args(["flock", file, "sleep", "1000"]);
        Process::spawn(command, b"").unwrap()
    };
    // Before the start: the directory, which every user can open; and what the start leaves there.
    ground.a.run("mkdir", &["-p", "-m", "755", "/run/segue"]).unwrap();
    let held = hold("/run/segue");
    until("another user locks the directory", || ground.a.run("flock", &["-n", "/run/segue", "true"]).err());
    let mut process = start(&ground, &format!("tunnel {WORDS}"));
    worker(&ground, &mut process);
    process.terminate();
    assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0));
    drop(held);
    // The lock itself, which the next start takes, cannot be opened.
    ground.a.run("sh", &["-c", "umask 077; : > /run/segue/.lock"]).unwrap();
    let mut refused = hold("/run/segue/.lock");
    assert_ne!(refused.wait(PATIENCE).unwrap().code(), Some(0));
    let mut process = start(&ground, &format!("tunnel {WORDS}"));
    worker(&ground, &mut process);
}

#[test]
fn without_landlock_or_seccomp_an_instance_ends_unless_it_may_go_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    for (call, what, left) in [
        (libc::SYS_landlock_create_ruleset, "Landlock", "sandboxed (no Landlock here)"),
        (libc::SYS_seccomp, "filters of system calls", "sandboxed (no seccomp here)"),
    ] {
        let start = |more: &[&str]| {
            let mut command = ground.a.command(&ground.program);
            command.arg("tunnel").args(WORDS.split(' ')).args(more);
            sys::without_call(&mut command, call);
            Process::spawn(command, b"").unwrap()
        };
        let mut refused = start(&[]);
        let status = refused.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(1), "{what}: {}", refused.last_words());
        assert!(refused.stderr().contains("--weak-sandbox"), "{what}: {}", refused.stderr());
        assert!(!ground.a.has_device("sg1"), "{what}");
        let mut weak = start(&["--weak-sandbox"]);
        worker(&ground, &mut weak);
        let why = ground.a.command(&ground.program).args(["stat", "sg1", "--why"]).output().unwrap();
        let text = String::from_utf8_lossy(&why.stdout).into_owned();
        assert!(text.contains("sandbox  ") && text.contains(left), "{what}: {text}");
        weak.terminate();
        assert_eq!(weak.wait(PATIENCE).unwrap().code(), Some(0), "{what}: {}", weak.last_words());
    }
}

#[test]
fn without_landlock_or_seccomp_metrics_and_agent_end_unless_they_may_go_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ip"]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let fleet = "fleet etcd --dev sg1 --public-ip 198.18.0.1 --endpoints http://127.0.0.1:2379";
    for (call, what) in [
        (libc::SYS_landlock_create_ruleset, "no Landlock here"),
        (libc::SYS_seccomp, "no filters of system calls here"),
    ] {
        for (words, is_up) in [("metrics --listen 127.0.0.1:0", "http://127.0.0.1:"), (fleet, "note: no ")] {
            let start = |more: &[&str]| {
                let mut command = ground.a.command(&ground.program);
                command.args(words.split(' ')).args(more);
                sys::without_call(&mut command, call);
                Process::spawn(command, b"").unwrap()
            };
            let mut refused = start(&[]);
            let status = refused.wait(PATIENCE).unwrap();
            assert_eq!(status.code(), Some(1), "{words}: {}", refused.last_words());
            let said = refused.stderr();
            assert!(said.contains("--weak-sandbox") && said.contains(what), "{words}: {said}");
            let mut weak = start(&["--weak-sandbox"]);
            until("it is up", || (weak.stderr().contains(is_up) && weak.stderr().contains(what)).then_some(()));
            weak.terminate();
            assert_eq!(weak.wait(PATIENCE).unwrap().code(), Some(0), "{words}: {}", weak.last_words());
        }
    }
}

#[test]
fn without_seccomp_a_service_ends_unless_all_of_its_instances_may_go_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    let weak = "weak-sandbox = true\n";
    for (second, is_refused) in [("", true), (weak, false)] {
        fs::write(&file, tunnel(Peer::A, 1, weak) + &tunnel(Peer::A, 2, second)).unwrap();
        let mut command = ground.a.command(&ground.program);
        command.args(["run", "-c"]).arg(&file);
        sys::without_call(&mut command, libc::SYS_seccomp);
        let mut service = Process::spawn(command, b"").unwrap();
        if is_refused {
            assert_eq!(service.wait(PATIENCE).unwrap().code(), Some(1), "{}", service.last_words());
            let said = service.stderr();
            assert!(said.contains("for the service") && said.contains("weak-sandbox = true"), "{said}");
            continue;
        }
        worker(&ground, &mut service);
        service.terminate();
        assert_eq!(service.wait(PATIENCE).unwrap().code(), Some(0), "{}", service.last_words());
    }
}

/// Checks of the privileges of a process that moves packets, by attempts within that process.
#[cfg(target_arch = "x86_64")]
mod inside {
    use std::os::unix::fs::PermissionsExt;

    use segue_tests::fastpath;
    use segue_tests::probe::{FILES, Held, NOT_TRIED};

    use super::*;

    #[track_caller]
    fn assert_no_file(held: &Held, who: &str) {
        for (path, flags) in FILES {
            assert!(!held.opens(path, flags).unwrap(), "{who} opens {path}");
        }
    }

    /// Checks that the parent of an instance has at most three capabilities, and opens none of [`FILES`].
    #[track_caller]
    fn assert_little(held: &Held, parent: u32, of: &str) {
        let [effective, permitted] = capabilities(parent);
        assert!((effective | permitted).count_ones() <= 3, "the parent of {of}: {}", status(parent));
        assert_no_file(held, &format!("the parent of {of}"));
    }

    #[test]
    fn what_the_real_processes_reach_is_what_their_table_says() {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sh"]) else { return };
        let mut process = start(&ground, &format!("tunnel {WORDS}"));
        let worker = worker(&ground, &mut process);
        let supervisor = parent(worker);
        // The control socket answers before the last filter is in force.
        let filters = |pid| field(&status(pid), "Seccomp_filters").parse::<u32>().unwrap();
        let (own_filters, begin) = (filters(std::process::id()), Instant::now());
        while filters(worker) < own_filters + 3 && begin.elapsed() < PATIENCE / 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let Some(held) = Held::allowed(worker) else { return };
        let calls = held.calls(&[]).unwrap();
        // Those that were not tried, and those that are allowed with some arguments: mmap, mprotect, tgkill, ioctl,
        // fcntl, setsockopt.
        assert!(calls.len() + 4 + 6 <= 40, "{} calls: {calls:?}", calls.len());
        let never = [
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_bind,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_execve,
            libc::SYS_kill,
            libc::SYS_ptrace,
            libc::SYS_unlink,
            libc::SYS_io_uring_setup,
            libc::SYS_bpf,
            libc::SYS_prctl,
            libc::SYS_seccomp,
        ];
        assert!(never.iter().all(|number| !calls.contains(number)), "{calls:?}");
        assert!(NOT_TRIED.iter().all(|number| !calls.contains(number)));
        assert_no_file(&held, "the process that moves packets");
        let own = u64::from(worker);
        let may = |number, arguments: &[u64]| held.may(number, arguments).unwrap();
        let (data, code) = ((libc::PROT_READ | libc::PROT_WRITE) as u64, libc::PROT_EXEC as u64);
        let map = |rights| [0, 4096, rights, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64, u64::MAX, 0];
        assert!(may(libc::SYS_mmap, &map(data)) && !may(libc::SYS_mmap, &map(data | code)));
        assert!(!may(libc::SYS_mprotect, &[0, 4096, code]));
        assert!(may(libc::SYS_tgkill, &[own, own, 0]) && !may(libc::SYS_tgkill, &[1, 1, 0]));
        let option = |level: i32, name: i32| [u64::MAX, level as u64, name as u64, 0, 0];
        assert!(may(libc::SYS_setsockopt, &option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)));
        assert!(!may(libc::SYS_setsockopt, &option(libc::SOL_SOCKET, libc::SO_BINDTODEVICE)));
        assert!(!may(libc::SYS_fcntl, &[u64::MAX, libc::F_SETOWN as u64, 1]));
        assert!(!may(libc::SYS_ioctl, &[u64::MAX, libc::TIOCSTI]));
        drop(held);
        assert!(filters(worker) >= own_filters + 3, "{}", status(worker));

        let Some(held) = Held::allowed(supervisor) else { return };
        let calls = held.calls(&[]).unwrap();
        assert!(calls.len() <= 40, "{calls:?}");
        let never = &never[..6];
        assert!(never.iter().all(|number| !calls.contains(number)), "{calls:?}");
        assert_little(&held, supervisor, "a tunnel");
        drop(held);
        // Nothing of this has harmed them.
        assert_eq!(super::worker(&ground, &mut process), worker);
        process.terminate();
        assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0), "{}", process.last_words());
    }

    #[test]
    fn of_bpf_a_tunnel_on_the_in_kernel_path_reaches_the_entries_of_maps_alone() {
        let Some(ground) = fastpath::ground(test_name!(), LinkForm::Veth, &["sh"]) else { return };
        let words = "dev sg1 local 198.18.0.1 remote 198.18.0.2 fastpath require";
        let mut process = start(&ground, &format!("tunnel {words}"));
        let worker = worker(&ground, &mut process);
        // The control socket answers before the last filter is in force.
        let filters = |pid| field(&status(pid), "Seccomp_filters").parse::<u32>().unwrap();
        let own = filters(std::process::id());
        until("the last filter", || (filters(worker) >= own + 3).then_some(()));
        let Some(held) = Held::allowed(worker) else { return };
        // The kernel refuses such a length before it asks for the rights of the command.
        let may = |command: &u64| held.may(libc::SYS_bpf, &[*command, u64::MAX, u64::MAX]).unwrap();
        let reached: Vec<u64> = (0..64).filter(may).collect();
        // BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM and BPF_MAP_DELETE_ELEM: no load, no attachment.
        assert_eq!(reached, [1, 2, 3]);
        drop(held);
        let supervisor = parent(worker);
        let Some(held) = Held::allowed(supervisor) else { return };
        assert_little(&held, supervisor, "a tunnel on the in-kernel path");
        drop(held);
        process.terminate();
        assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0), "{}", process.last_words());
    }

    #[test]
    fn under_a_service_the_parent_of_an_instance_reaches_no_file_and_the_service_no_other_process() {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["sh"]) else { return };
        let directory = Directory::new();
        let file = directory.file("segue.toml");
        fs::write(&file, tunnel(Peer::A, 1, "")).unwrap();
        let mut process = start(&ground, &format!("run -c {}", file.display()));
        let worker = worker(&ground, &mut process);
        let supervisor = parent(worker);
        let own = file.to_str().unwrap();
        for (pid, who) in [(worker, "the process that moves packets"), (supervisor, "the supervisor")] {
            let Some(held) = Held::allowed(pid) else { return };
            assert_no_file(&held, who);
            assert!(!held.opens(own, libc::O_RDONLY).unwrap(), "{who} opens the file of the service");
            let none = [libc::SYS_execve, libc::SYS_bpf, libc::SYS_ptrace, libc::SYS_setns, libc::SYS_mount];
            assert!(none.iter().all(|number| !held.may(*number, &[u64::MAX; 6]).unwrap()), "{who}");
            if pid == supervisor {
                assert_little(&held, pid, "an instance of a service");
            }
        }
        let Some(held) = Held::allowed(parent(supervisor)) else { return };
        // None that the attempt would make.
        let files = FILES.iter().filter(|(_, flags)| flags & libc::O_CREAT == 0);
        let reached: Vec<_> = files.filter(|(path, flags)| held.opens(path, *flags).unwrap()).collect();
        println!("the service reaches {reached:?}");
        // What a reload needs.
        assert!(held.opens(own, libc::O_RDONLY).unwrap());
        let never = [
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_getfd,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_io_uring_setup,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_swapon,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
            libc::SYS_keyctl,
        ];
        let found: Vec<_> = never.iter().filter(|number| held.may(**number, &[u64::MAX; 6]).unwrap()).collect();
        assert!(found.is_empty(), "the service makes the system calls {found:?}");
        drop(held);
        assert_eq!(super::worker(&ground, &mut process), worker);
        process.terminate();
        assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0), "{}", process.last_words());
    }

    #[test]
    fn a_service_without_all_rights_of_root_has_its_filter_and_the_capabilities_of_its_instances_alone() {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
        let directory = Directory::new();
        let (file, folder) = (directory.file("segue.toml"), directory.file("sockets"));
        fs::write(&file, tunnel(Peer::A, 1, "")).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let ambient = "-all,+net_admin,+net_raw,+dac_override,+sys_chroot,+mknod";
        let user = [
            format!("--reuid={USER}"),
            format!("--regid={USER}"),
            "--clear-groups".to_owned(),
            format!("--inh-caps={ambient}"),
            format!("--ambient-caps={ambient}"),
        ];
        // As the units do it; as a unit with root; and as a container without CAP_SYS_ADMIN.
        for words in [&user[..], &["--no-new-privs".to_owned()], &["--bounding-set=-sys_admin".to_owned()]] {
            let owner = if words.len() > 1 { USER } else { 0 };
            std::os::unix::fs::chown(&folder, Some(owner), Some(owner)).unwrap();
            let mut command = ground.a.command("setpriv");
            command.env("SEGUE_RUNTIME_DIR", &folder).args(words).arg(&ground.program).args(["run", "-c"]).arg(&file);
            let mut process = Process::spawn(command, b"").unwrap();
            let begin = Instant::now();
            let worker = loop {
                let mut stat = ground.a.command(&ground.program);
                stat.env("SEGUE_RUNTIME_DIR", &folder).args(["stat", "sg1", "-j"]);
                let stat: serde_json::Value =
                    serde_json::from_slice(&stat.output().unwrap().stdout).unwrap_or_default();
                if let Some(pid) = stat["instances"][0]["pid"].as_u64() {
                    break u32::try_from(pid).unwrap();
                }
                assert!(process.ended().is_none() && begin.elapsed() < PATIENCE, "{words:?}: {}", process.last_words());
                std::thread::sleep(Duration::from_millis(10));
            };
            assert_eq!(capabilities(worker), [0; 2], "{words:?}");
            let service = parent(parent(worker));
            assert_eq!(service, process.id());
            let text = status(service);
            assert_eq!((field(&text, "NoNewPrivs"), field(&text, "Seccomp")), ("1", "2"), "{words:?}: {text}");
            let (held, net_admin) = (capabilities(service), 1 << 12);
            let [effective, permitted] = held;
            assert_eq!((effective | permitted) & (MKNOD | SYS_CHROOT), 0, "{words:?}: {text}");
            assert_eq!(effective & net_admin, net_admin, "{words:?}: {text}");
            let Some(held) = Held::allowed(service) else { return };
            let never = [
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_io_uring_setup,
                libc::SYS_userfaultfd,
                libc::SYS_perf_event_open,
                libc::SYS_keyctl,
            ];
            let found: Vec<_> = never.iter().filter(|number| held.may(**number, &[u64::MAX; 6]).unwrap()).collect();
            assert!(found.is_empty(), "{words:?}: the service makes the system calls {found:?}");
            drop(held);
            process.terminate();
            assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(0), "{words:?}: {}", process.last_words());
        }
    }

    #[test]
    fn each_of_landlock_and_seccomp_alone_keeps_files_out_of_reach() {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
        for (call, what) in [(libc::SYS_landlock_create_ruleset, "Landlock"), (libc::SYS_seccomp, "seccomp")] {
            let mut command = ground.a.command(&ground.program);
            command.arg("tunnel").args(WORDS.split(' ')).arg("--weak-sandbox");
            sys::without_call(&mut command, call);
            let mut weak = Process::spawn(command, b"").unwrap();
            let worker = worker(&ground, &mut weak);
            for (pid, who) in [(worker, "the process that moves packets"), (parent(worker), "the supervisor")] {
                let Some(held) = Held::allowed(pid) else { return };
                // Paths alone are not Landlock's.
                let files = FILES.iter().filter(|(_, flags)| flags & libc::O_PATH == 0);
                for (path, flags) in files {
                    assert!(!held.opens(path, *flags).unwrap(), "without {what} {who} opens {path}");
                }
                assert!(!held.may(libc::SYS_kill, &[1, 0]).unwrap() || who == "the supervisor", "without {what} {who}");
            }
            weak.terminate();
            assert_eq!(weak.wait(PATIENCE).unwrap().code(), Some(0), "{what}: {}", weak.last_words());
        }
    }
}
