//! Hosts: network namespaces without a name.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::panic;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{checked_output, command_line};
use crate::{Cpu, LabError, interrupt, sys};

/// TCP congestion control of every host: it does not pace, and every network namespace may use it. A connection that
/// begins with one that paces, as BBR, and is switched afterwards, as iperf3 does it, continues to pace: with a timer
/// for each train, whose interrupts cost more than the train in a virtual machine.
pub(crate) const CONGESTION: &str = "reno";

/// A simulated machine: a network namespace, plus a mount namespace in which `/sys` shows that
/// network and `/run/segue` is empty and private, so that control sockets of two hosts cannot meet.
///
/// Two file descriptors hold it; the kernel takes everything in it away when the last of them and the last process
/// inside are gone, also when this process is killed.
#[derive(Debug)]
pub struct Host {
    name: String,
    namespaces: Arc<sys::Namespaces>,
    cpu: Option<Arc<Cpu>>,
}

impl Host {
    /// Creates a host whose loopback interface is up. `name` is only for messages. IPv6 addresses are usable at once
    /// (no duplicate address detection), router solicitation is off, and TCP does not remember a peer from one
    /// connection to the next, so that a measurement does not depend on the one before it. Its congestion control is
    /// reno, whatever the machine's is.
    pub fn new(name: &str) -> Result<Host, LabError> {
        let made = thread::scope(|scope| scope.spawn(make_namespaces).join());
        let namespaces = match made {
            Ok(result) => {
                result.map_err(|source| refused(&format!("make a network namespace for host {name}"), source))?
            }
            Err(panicked) => panic::resume_unwind(panicked),
        };
        let host = Host { name: name.into(), namespaces: Arc::new(namespaces), cpu: None };
        for (key, value) in [
            // A new network namespace has these of the machine's first one.
            ("ipv4/ip_forward", "0"),
            ("ipv4/conf/default/forwarding", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/dad_transmits", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv4/tcp_no_metrics_save", "1"),
            ("ipv4/tcp_congestion_control", CONGESTION),
        ] {
            match host.set_sysctl(key, value) {
                // Kernels without IPv6, and older ones.
                Err(LabError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        host.run("ip", &["link", "set", "lo", "up"])?;
        Ok(host)
    }

    /// Selects `cpu` to count the children that this host starts from now on.
    pub fn account(&mut self, cpu: &Arc<Cpu>) {
        self.cpu = Some(Arc::clone(cpu));
    }

    /// Returns the host's name, as given to [`Host::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates a command that runs in this host, in its own process group (a Ctrl-C at the terminal does not reach it),
    /// with an empty stdin and the C locale, and that the kernel kills when the thread that starts it ends.
    ///
    /// The host is entered after the command's `uid` and `gid` were set, so a command with a foreign user cannot get
    /// in: let it run `setpriv`.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        // Another place for control sockets would be one that the hosts share.
        command.env_remove("SEGUE_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR");
        // Nor is there a way from here to a proxy of the machine's.
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).env("LC_ALL", "C").env("PATH", crate::process::search_path()).process_group(0);
        let mut place = self.cpu.as_ref().map(|cpu| cpu.place()).unwrap_or_default();
        place.namespaces = Some(Arc::clone(&self.namespaces));
        sys::prepare_child(&mut command, place);
        command
    }

    /// Runs a short program until it exits and returns its stdout; an error carries its stderr.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, LabError> {
        let mut command = self.command(program);
        command.args(args);
        checked_output(&mut command)
    }

    /// Runs `work` on a thread in this host's namespaces and returns its result. Sockets and devices opened there
    /// belong to this host permanently and can be used from any thread. Files under `/proc/sys/net` are also this
    /// host's. Do not start processes in `work`: they would die with its thread.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let entered = thread::scope(|scope| {
            let inside = || sys::enter_net(self.namespaces.net.as_fd()).map(|()| work());
            scope.spawn(inside).join()
        });
        match entered {
            Ok(result) => result.map_err(|source| LabError::system(format!("enter host {}", self.name), source)),
            Err(panicked) => panic::resume_unwind(panicked),
        }
    }

    /// Writes the sysctl `/proc/sys/net/KEY` of this host; `key` has slashes.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        let path = format!("/proc/sys/net/{key}");
        self.enter(|| fs::write(&path, value))?.map_err(|source| LabError::system(format!("write {path}"), source))
    }

    /// Returns whether this host has the network device of this name.
    pub fn has_device(&self, device: &str) -> bool {
        self.devices().iter().any(|name| name == device)
    }

    /// Returns the names of this host's network devices.
    pub fn devices(&self) -> Vec<String> {
        let text = self.enter(|| fs::read_to_string("/proc/thread-self/net/dev")).ok().and_then(Result::ok);
        let names = |text: String| {
            text.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().into()).collect()
        };
        text.map(names).unwrap_or_default()
    }

    /// Returns a path to this host's network namespace, valid while this process has the host, for programs that take
    /// one (`ip link set DEV netns PATH`, `nsenter --net=PATH`).
    pub fn net_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespaces.net.as_raw_fd())
    }

    pub(crate) fn cpu(&self) -> Option<&Arc<Cpu>> {
        self.cpu.as_ref()
    }
}

fn make_namespaces() -> io::Result<sys::Namespaces> {
    sys::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS)?;
    sys::detach_mounts()?;
    // A program can live without /sys showing its own devices, and a container may forbid the mount.
    let _ = sys::mount_new(c"sysfs", c"/sys", c"");
    private_run_dir()?;
    Ok(sys::Namespaces {
        net: File::open("/proc/thread-self/ns/net")?.into(),
        mnt: File::open("/proc/thread-self/ns/mnt")?.into(),
    })
}

/// Mounts an empty `/run/segue` that only its owner can write to, and hides the directory that root has where that one
/// belongs to a service. Without the right to make `/run/segue`, an empty `/run` is mounted around it.
fn private_run_dir() -> io::Result<()> {
    let make = || match fs::DirBuilder::new().mode(0o755).create("/run/segue") {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    if make().is_err() {
        sys::mount_new(c"tmpfs", c"/run", c"mode=0755")?;
        make()?;
    }
    sys::mount_new(c"tmpfs", c"/run/segue", c"mode=0755")?;
    if fs::exists("/run/segue-root")? {
        sys::mount_new(c"tmpfs", c"/run/segue-root", c"mode=0755")?;
    }
    Ok(())
}

fn refused(what: &str, source: io::Error) -> LabError {
    let limit = fs::read_to_string("/proc/sys/user/max_net_namespaces").unwrap_or_default();
    let hint = match source.raw_os_error() {
        Some(libc::EPERM) => "run it as root (sudo), or where user namespaces are allowed".into(),
        Some(libc::ENOSPC) => format!("sysctl user.max_net_namespaces is {}", limit.trim()),
        Some(libc::EINVAL) => "this kernel has no network namespaces (CONFIG_NET_NS)".into(),
        _ => String::new(),
    };
    LabError::System { what: what.into(), source, hint }
}

/// Returns the reason why hosts cannot be created here, with which a test is skipped, or `None`.
pub fn unavailable() -> Option<String> {
    Host::new("probe").err().map(|error| error.to_string().replace('\n', "; "))
}

/// Moves a process that may not create namespaces into a user namespace in which it is root. Returns whether it did; a
/// process with `CAP_SYS_ADMIN` is left as it is.
///
/// Has to be called while the process has one thread (the kernel answers EINVAL otherwise), before any [`Host`] is
/// made. The process stays in the user namespace. Only the caller's own user and group exist in it, both shown as 0.
pub fn enter_user_namespace() -> Result<bool, LabError> {
    if has_sys_admin() {
        return Ok(false);
    }
    let (uid, gid) = sys::ids();
    let wrong = |source: io::Error| {
        let hint = user_namespace_hint(&source);
        LabError::System { what: "make a user namespace".into(), source, hint }
    };
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET).map_err(wrong)?;
    // A group map may only be written by an unprivileged process after setgroups was given up (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").map_err(wrong)?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(wrong)?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(wrong)?;
    IN_USER_NAMESPACE.store(true, Ordering::Relaxed);
    Ok(true)
}

static IN_USER_NAMESPACE: AtomicBool = AtomicBool::new(false);

pub(crate) fn in_user_namespace() -> bool {
    IN_USER_NAMESPACE.load(Ordering::Relaxed)
}

fn has_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|caps| caps >> CAP_SYS_ADMIN & 1 == 1)
}

fn user_namespace_hint(source: &io::Error) -> String {
    let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let key = if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sysctl kernel.unprivileged_userns_clone is 0"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sysctl kernel.apparmor_restrict_unprivileged_userns is 1"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "sysctl user.max_user_namespaces is 0"
    } else if source.raw_os_error() == Some(libc::EINVAL) {
        "the process has several threads, or the kernel has no user namespaces (CONFIG_USER_NS)"
    } else {
        "a container's seccomp or LSM profile may forbid it"
    };
    format!("run it as root (sudo); {key}")
}

/// Sends small datagrams from `from` to `to` until one is echoed, for at most `longest`, to show that the path works in
/// both directions. The addresses belong to the respective hosts. Returns the time it took.
pub fn reach(from: (&Host, IpAddr), to: (&Host, IpAddr), longest: Duration) -> Result<Duration, LabError> {
    let begin = Instant::now();
    let tick = Duration::from_millis(20);
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    // An address may appear only after its device, hence the retries from bind on.
    while begin.elapsed() < longest {
        interrupt::check()?;
        match echo(from, to, tick) {
            Ok(()) => return Ok(begin.elapsed()),
            Err(error) => last = error,
        }
        thread::sleep(tick / 4);
    }
    let what = format!("reach {} in host {} from {} within {longest:?}", to.1, to.0.name, from.1);
    Err(LabError::system(what, last))
}

fn echo(from: (&Host, IpAddr), to: (&Host, IpAddr), tick: Duration) -> io::Result<()> {
    let open = |(host, address): (&Host, IpAddr)| -> io::Result<UdpSocket> {
        let socket = host.enter(|| UdpSocket::bind((address, 0))).map_err(io::Error::other)??;
        socket.set_read_timeout(Some(tick))?;
        Ok(socket)
    };
    let (near, far) = (open(from)?, open(to)?);
    let mut buffer = [0; 16];
    near.send_to(b"segue lab", far.local_addr()?)?;
    let (len, peer) = far.recv_from(&mut buffer)?;
    far.send_to(&buffer[..len], peer)?;
    near.recv_from(&mut buffer).map(drop)
}

impl LabError {
    pub(crate) fn failed(command: &Command, status: std::process::ExitStatus, output: &[u8]) -> Self {
        let output = String::from_utf8_lossy(output).trim().to_string();
        LabError::Command { command: command_line(command), status: status.to_string(), output }
    }
}
