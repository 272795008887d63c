//! Diagnosis of devices and sockets that could not be opened: the cause, if this process can determine it, and a
//! remedy.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use segue_control::error::{Error, Kind};
use segue_host::capability::has_net_admin;
use segue_host::sys;
use segue_port::tun;

/// The clone device of the TUN driver.
pub const TUN: &str = "/dev/net/tun";

/// Purpose of a device, on which the remedy after a refusal depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The interface of a tunnel.
    Tunnel,
    /// A TAP: an end of a gateway, an adapter's interface, or the end of a model's cable.
    Tap {
        /// Whether the device has the virtio-net header.
        vnet_hdr: bool,
        /// MTU of the interface, bytes.
        mtu: u32,
        /// Whether the TAP is the interface of an adapter, and so has the address of the adapter.
        is_adapter: bool,
    },
}

impl Purpose {
    /// Returns the command to run as root, padded to the column of its explanation.
    fn as_root(self) -> &'static str {
        match self {
            Purpose::Tunnel => "sudo segue tunnel ...",
            Purpose::Tap { .. } => "sudo segue ...         ",
        }
    }

    /// Returns the usage of the command with another interface name.
    fn naming(self) -> &'static str {
        match self {
            Purpose::Tunnel => "segue tunnel dev NAME ...",
            Purpose::Tap { is_adapter: true, .. } => "--dev NAME",
            Purpose::Tap { .. } => "tap:NAME",
        }
    }

    /// Returns the remedy that gives a user without CAP_NET_ADMIN the interface `dev`.
    fn without_rights(self, dev: &str) -> String {
        match self {
            Purpose::Tunnel => format!(
                "sudo segue tunnel ...                                as root, or once:\n\
                 sudo ip tuntap add dev {dev} mode tun user $USER vnet_hdr\n\
                 and its MTU, addresses and state, which the next start lists; or\n\
                 sudo setcap cap_net_admin+ep {}\n\
                 to play without root: segue lab",
                program()
            ),
            Purpose::Tap { vnet_hdr, mtu, is_adapter } => {
                let header = if vnet_hdr { " vnet_hdr" } else { "" };
                let mac = match is_adapter {
                    true => format!("\nand the option --mac $(cat /sys/class/net/{dev}/address)"),
                    false => String::new(),
                };
                format!(
                    "sudo, or once, as it is to be, by root:\n\
                     sudo ip tuntap add dev {dev} mode tap{header} user $USER\n\
                     sudo ip link set dev {dev} mtu {mtu} up{mac}"
                )
            }
        }
    }
}

/// The container engine around this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// The process runs in no container that shows.
    No,
    /// Docker, or an engine that leaves the same marker file.
    Docker,
    /// The container engine is Podman.
    Podman,
    /// The container engine is LXC or Incus.
    Lxc,
    /// The container engine is systemd-nspawn.
    Nspawn,
    /// The container engine is another one.
    Other,
}

impl Container {
    /// Detects the container engine by its traces: files and the variable `container`.
    pub fn find() -> Container {
        if Path::new("/run/.containerenv").exists() {
            return Container::Podman;
        }
        if Path::new("/.dockerenv").exists() {
            return Container::Docker;
        }
        // systemd copies the engine's name here; the environment variable itself is set for the first process and
        // often inherited.
        let name = std::fs::read_to_string("/run/systemd/container")
            .ok()
            .or_else(|| std::env::var("container").ok())
            .unwrap_or_default();
        match name.trim() {
            "" => Container::No,
            "docker" => Container::Docker,
            "podman" => Container::Podman,
            "lxc" | "lxc-libvirt" => Container::Lxc,
            "systemd-nspawn" => Container::Nspawn,
            _ => Container::Other,
        }
    }

    /// Returns the container engine's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Container::No => "none",
            Container::Docker => "docker",
            Container::Podman => "podman",
            Container::Lxc => "lxc",
            Container::Nspawn => "systemd-nspawn",
            Container::Other => "a container",
        }
    }

    /// Returns the remedy that gives a container the TUN device and permission to use it.
    pub fn remedy(self) -> &'static str {
        match self {
            Container::Docker => "docker run --cap-add NET_ADMIN --device /dev/net/tun ...",
            Container::Podman => "podman run --cap-add NET_ADMIN --device /dev/net/tun ...",
            Container::Lxc => {
                "in the container's config: lxc.cgroup2.devices.allow = c 10:200 rwm\n\
                 lxc.mount.entry = /dev/net/tun dev/net/tun none bind,create=file"
            }
            Container::Nspawn => "systemd-nspawn --capability=CAP_NET_ADMIN --bind=/dev/net/tun ...",
            Container::No | Container::Other => {
                "docker or podman: run --cap-add NET_ADMIN --device /dev/net/tun ...\n\
                 systemd: AmbientCapabilities=CAP_NET_ADMIN, DeviceAllow=/dev/net/tun rw"
            }
        }
    }
}

/// Explains why /dev/net/tun did not open; `dev` is the requested interface.
pub fn tun_open(purpose: Purpose, dev: &str, error: &io::Error) -> Error {
    let container = Container::find();
    let made = Error::system(format!("cannot create {dev}: {TUN}"), error, "");
    match error.raw_os_error() {
        Some(libc::ENOENT) => no_file(made, container),
        Some(libc::ENXIO | libc::ENODEV) => with(
            made.kind(Kind::NoTun),
            format!("{TUN} is there, but the kernel has no TUN driver loaded"),
            "sudo modprobe tun",
        ),
        Some(code @ (libc::EACCES | libc::EPERM)) => refused(purpose, made, code, container),
        _ => with(made, "the device did not open".to_owned(), "segue doctor"),
    }
}

fn no_file(made: Error, container: Container) -> Error {
    let made = made.kind(Kind::NoTun);
    match container {
        Container::No => with(
            made,
            format!("the TUN driver is not loaded, or this root has no {TUN}"),
            "sudo modprobe tun                               or, where that is not enough:\n\
             sudo mkdir -p /dev/net && sudo mknod -m 666 /dev/net/tun c 10 200\n\
             in a container: run it with --cap-add NET_ADMIN --device /dev/net/tun",
        ),
        other => with(made, format!("this is {}, and it was not given {TUN}", article(other)), other.remedy()),
    }
}

fn refused(purpose: Purpose, made: Error, code: i32, container: Container) -> Error {
    let permitted = permitted_by_mode();
    match (permitted, container) {
        (Some(false), _) => with(
            made.kind(Kind::NoPermission),
            format!("the file's mode does not let this user (uid {}) write to it", sys::euid()),
            format!(
                "{}                           as root, or once:\n\
                 sudo chmod 666 /dev/net/tun                     its usual mode",
                purpose.as_root()
            ),
        ),
        // The devices cgroup answers EPERM, security modules answer EACCES.
        (Some(true), _) if code == libc::EPERM => with(
            made.kind(Kind::Denied),
            match container {
                Container::No => "the file's mode allows it: a device list (the devices cgroup) refused".to_owned(),
                other => format!("this is {}, and its device list does not have {TUN}", article(other)),
            },
            container.remedy(),
        ),
        _ => with(
            made.kind(Kind::Denied),
            format!(
                "the file's mode allows it: a security module or sandbox refused\n({})",
                security_modules().unwrap_or_else(|| "AppArmor, SELinux or Landlock".to_owned())
            ),
            "sudo dmesg | grep -i denied                     names the rule, if it is logged\n\
             systemd: DeviceAllow=/dev/net/tun rw            AppArmor: /dev/net/tun rw,\n\
             container engines: --security-opt apparmor=unconfined to find out",
        ),
    }
}

/// Explains why the TUN or TAP device `dev` could not be made.
pub(crate) fn tun_port(purpose: Purpose, dev: &str, queues: bool, error: tun::OpenError) -> Error {
    match error {
        tun::OpenError::Unavailable(error) => tun_open(purpose, dev, &error),
        // The device file and the interface are refused for different reasons; the file tells which of the two it
        // was.
        tun::OpenError::Denied(error) => match File::options().read(true).write(true).open(TUN) {
            Err(error) => tun_open(purpose, dev, &error),
            Ok(_) => tun_attach(purpose, dev, &error),
        },
        tun::OpenError::Busy(_) => tun_attach(purpose, dev, &io::Error::from_raw_os_error(libc::EBUSY)),
        tun::OpenError::Name(_) => {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            match made_otherwise(dev, queues) {
                Some(found) => as_made(Error::system(format!("cannot create {dev}"), &error, ""), dev, found),
                None => tun_attach(purpose, dev, &error),
            }
        }
        tun::OpenError::Call(_, error) => tun_attach(purpose, dev, &error),
        other => tun_attach(purpose, dev, &io::Error::other(other)),
    }
}

/// Explains why TUNSETIFF failed for the interface `dev`.
pub fn tun_attach(purpose: Purpose, dev: &str, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot create {dev}"), error, "");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => attach_refused(purpose, made, dev),
        Some(libc::EBUSY) => with(
            made.kind(Kind::InUse),
            format!("another program holds {dev}"),
            format!("segue stat                                      lists what runs\nip -d link show dev {dev}"),
        ),
        Some(libc::EINVAL | libc::EEXIST) => match made_otherwise(dev, false) {
            Some(found) => as_made(made, dev, found),
            None => with(
                made.kind(Kind::InUse),
                format!("an interface {dev} of another kind or with other options exists, or the name is not allowed"),
                format!("ip -d link show dev {dev}\nanother name: {}", purpose.naming()),
            ),
        },
        _ => with(made, "the kernel refused the interface".to_owned(), "segue doctor"),
    }
}

/// Returns the error for an existing device whose properties differ from the needed ones.
fn as_made(made: Error, dev: &str, (why, delete, options): (String, String, &str)) -> Error {
    let hint = format!("{delete}\nand make it anew: sudo ip tuntap add dev {dev} mode tun user $USER {options}");
    with(made.kind(Kind::InUse), why, hint)
}

/// Returns the differences of an existing TUN or TAP device from the needed one, with several `queues` or one, the
/// command that removes it, and the options with which it is to be created.
fn made_otherwise(dev: &str, queues: bool) -> Option<(String, String, &'static str)> {
    // Bits of linux/if_tun.h.
    const TUN_MODE: u32 = 1;
    const MULTI_QUEUE: u32 = 0x100;
    const NO_PI: u32 = 0x1000;
    const VNET_HDR: u32 = 0x4000;
    let text = std::fs::read_to_string(format!("/sys/class/net/{dev}/tun_flags")).ok()?;
    let flags = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
    let differs = match flags {
        flags if flags & MULTI_QUEUE != 0 && !queues => {
            "was made with multi_queue, which segue uses with more than one of its workers"
        }
        flags if flags & MULTI_QUEUE == 0 && queues => "was made without multi_queue, which several workers need",
        flags if flags & VNET_HDR == 0 => "was made without vnet_hdr, which segue needs",
        flags if flags & NO_PI == 0 => "was made with pi, which segue does not use",
        _ => return None,
    };
    let mode = if flags & TUN_MODE != 0 { "tun" } else { "tap" };
    let more = if flags & MULTI_QUEUE != 0 { " multi_queue" } else { "" };
    let options = if queues { "vnet_hdr multi_queue" } else { "vnet_hdr" };
    Some((format!("{dev} {differs}"), format!("sudo ip tuntap del dev {dev} mode {mode}{more}"), options))
}

fn attach_refused(purpose: Purpose, made: Error, dev: &str) -> Error {
    let container = Container::find();
    let has = sys::capabilities().is_ok_and(has_net_admin);
    if has {
        return with(
            made.kind(Kind::Denied),
            "this process has CAP_NET_ADMIN: a security module refused, or the network\n\
             namespace belongs to another user namespace"
                .to_owned(),
            "sudo dmesg | grep -i denied",
        );
    }
    // Where the bounding set has the capability, the user lacks it, and not the container.
    if container != Container::No && !bounding_has_net_admin() {
        return with(
            made.kind(Kind::NoPermission),
            format!("this is {}, and it was not given CAP_NET_ADMIN", article(container)),
            container.remedy(),
        );
    }
    with(made.kind(Kind::NoPermission), "this user lacks CAP_NET_ADMIN here".to_owned(), purpose.without_rights(dev))
}

/// Explains why the UDP socket could not be bound to `address`.
pub fn bind(address: SocketAddr, error: &io::Error) -> Error {
    let port = address.port();
    let made = Error::system(format!("cannot listen on UDP {address}"), error, "");
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => with(
            made.kind(Kind::InUse),
            format!("another program, or another tunnel, has port {port}"),
            format!(
                "sudo ss -ulpn sport = :{port}                       says which\nanother port: segue tunnel ... port N"
            ),
        ),
        Some(libc::EADDRNOTAVAIL) => with(
            made.kind(Kind::Unreachable),
            format!("{} is not an address of this host", address.ip()),
            "ip -br addr                                     lists them",
        ),
        Some(libc::EACCES | libc::EPERM) if port < 1024 => with(
            made.kind(Kind::NoPermission),
            "ports below 1024 need root".to_owned(),
            "a port of 1024 or more, or sudo",
        ),
        Some(libc::EACCES | libc::EPERM) => with(
            made.kind(Kind::Denied),
            "a security module or sandbox refused".to_owned(),
            "sudo dmesg | grep -i denied",
        ),
        _ => with(made, "the kernel refused the socket".to_owned(), "segue doctor"),
    }
}

/// Explains why a raw socket could not be made.
pub fn raw_socket(error: &io::Error) -> Error {
    let made = Error::system("cannot open a raw socket", error, "");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => with(
            made.kind(Kind::NoPermission),
            "a tunnel without UDP needs CAP_NET_RAW".to_owned(),
            "sudo, or setcap cap_net_admin,cap_net_raw+ep $(command -v segue), or encap gue",
        ),
        _ => with(made, "the kernel refused the socket".to_owned(), "segue doctor"),
    }
}

/// Explains why the change `what` of the interface `dev` failed.
pub fn change(dev: &str, what: &str, error: &io::Error) -> Error {
    change_for(Purpose::Tunnel, dev, what, error)
}

/// Explains, like [`change`], why a change to the interface `dev` failed, for any purpose of the interface.
pub(crate) fn change_for(purpose: Purpose, dev: &str, what: &str, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot {what} of {dev}"), error, "").about(dev);
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => attach_refused(purpose, made, dev),
        Some(libc::EEXIST) => {
            with(made.kind(Kind::InUse), "it is set already".to_owned(), format!("ip addr show dev {dev}"))
        }
        Some(libc::EINVAL | libc::EADDRNOTAVAIL | libc::EOPNOTSUPP) => with(
            made,
            "the kernel does not take this value for this interface".to_owned(),
            "sysctl net.ipv6.conf.all.disable_ipv6            must be 0 for IPv6 addresses",
        ),
        _ => with(made, "the kernel refused the change".to_owned(), format!("ip -d link show dev {dev}")),
    }
}

/// Returns the active security modules and the profile that confines this process.
pub fn security_modules() -> Option<String> {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm").ok().filter(|text| !text.trim().is_empty());
    let profile = std::fs::read_to_string("/proc/self/attr/current").ok();
    let profile = profile.map(|text| text.trim_matches(['\0', '\n']).to_owned()).filter(|text| !text.is_empty());
    match (list, profile) {
        (Some(list), Some(profile)) => Some(format!("modules: {}; this process is `{profile}`", list.trim())),
        (Some(list), None) => Some(format!("modules: {}", list.trim())),
        (None, Some(profile)) => Some(format!("this process is `{profile}`")),
        (None, None) => None,
    }
}

/// Returns whether owner, group and mode of the device file let this process write; `None` when they cannot be read.
fn permitted_by_mode() -> Option<bool> {
    const CAP_DAC_OVERRIDE: u32 = 1;
    let data = std::fs::metadata(TUN).ok()?;
    if !data.file_type().is_char_device() {
        return None;
    }
    // In a user namespace the capability only covers files whose owner is mapped.
    let overrides = !is_foreign(data.uid()) && sys::capabilities().is_ok_and(|caps| caps >> CAP_DAC_OVERRIDE & 1 == 1);
    let owner = data.uid() == sys::euid() && data.mode() & 0o600 == 0o600;
    Some(overrides || owner || data.mode() & 0o006 == 0o006 || group_writes(&data))
}

/// Returns whether the owner that shows as `uid` is not mapped in this user namespace.
fn is_foreign(uid: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    uid == OVERFLOW && !all
}

/// Returns whether CAP_NET_ADMIN is in the bounding set, which a container narrows.
fn bounding_has_net_admin() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(has_net_admin)
}

fn group_writes(data: &std::fs::Metadata) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let groups = status.lines().filter(|line| line.starts_with("Gid:") || line.starts_with("Groups:"));
    let mine = groups.flat_map(|line| line.split_whitespace().skip(1)).any(|gid| gid == data.gid().to_string());
    mine && data.mode() & 0o060 == 0o060
}

fn article(container: Container) -> String {
    match container {
        Container::No | Container::Other => "a container".to_owned(),
        Container::Lxc => "an LXC container".to_owned(),
        other => format!("a {} container", other.name()),
    }
}

fn program() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned))
        .unwrap_or("/usr/bin/segue".to_owned())
}

fn with(mut made: Error, why: String, hint: impl Into<String>) -> Error {
    made.why = Some(why);
    made.hint = hint.into();
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn every_system_error_has_a_cause_and_a_hint() {
        let address: SocketAddr = "198.18.0.1:6080".parse().unwrap();
        for code in 1..134 {
            let error = os(code);
            for made in [
                tun_open(Purpose::Tunnel, "sg0", &error),
                tun_attach(Purpose::Tunnel, "sg0", &error),
                bind(address, &error),
                change("sg0", "set the MTU", &error),
            ] {
                assert_eq!(made.os_error, Some(code));
                assert!(made.message.ends_with(&segue_control::error::os_text(&error)), "{}", made.message);
                assert!(made.why.as_ref().is_some_and(|why| !why.is_empty()), "{}", made.message);
                assert!(!made.hint.is_empty(), "{}", made.message);
            }
        }
    }

    #[test]
    fn a_missing_driver_is_not_a_missing_permission() {
        assert_eq!(tun_open(Purpose::Tunnel, "sg0", &os(libc::ENOENT)).kind, Kind::NoTun);
        assert_eq!(tun_open(Purpose::Tunnel, "sg0", &os(libc::ENXIO)).kind, Kind::NoTun);
        assert_eq!(bind("198.18.0.1:6080".parse().unwrap(), &os(libc::EADDRINUSE)).kind, Kind::InUse);
    }
}
