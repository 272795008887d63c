//! The configuration that the processes of a sandbox share, and the limits of Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use segue_control::error::{Error, Kind};

use super::filter::Allowed;
use super::helper::Helper;
use crate::fault::Vitals;
use crate::heartbeat::Limits;

/// The configuration of a sandbox.
#[derive(Debug)]
pub struct SandboxConfig<'a> {
    /// The name of the instance.
    pub name: &'a str,
    /// The heartbeat of the process that moves packets, and the faults requested for its supervisor.
    pub vitals: &'a Vitals,
    /// The times after which the supervisor ends the process that moves packets.
    pub limits: Limits,
    /// Additional system calls of the process that moves packets.
    pub allowed: Allowed<'a>,
    /// The processes that open devices for the process that moves packets.
    pub helpers: &'a [Helper],
    /// Whether a service starts the instance again where it ends by itself.
    pub is_managed: bool,
    /// Whether the process runs without Landlock or filters of system calls if the kernel lacks them.
    pub is_weak: bool,
}

/// Returns the error for a process that the kernel does not confine.
pub(super) fn weak(what: &str) -> Error {
    let hint = format!("a kernel with Landlock and seccomp (segue doctor), or to continue without: {WEAK}");
    Error::new(Kind::System, what, hint).why("this kernel lacks Landlock, or filters of system calls")
}

/// The option with which an instance runs without a part of the sandbox that the kernel lacks.
pub const WEAK: &str = "--weak-sandbox";

/// The processes that a process may signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signalling {
    /// Signals only to processes of the same Landlock domain, which is the process itself.
    Inside,
    /// Signals to all processes that its user and capabilities allow.
    AnyProcess,
}

/// Denies the file system except `folders` with these rights, and, if the kernel can, TCP except connections to
/// `tcp_port`, abstract sockets and, unless `signalling` allows them, signals to processes outside. Returns whether the
/// kernel enforces it.
pub(super) fn restrict(
    folders: &[(PathBuf, BitFlags<AccessFs>)],
    tcp_port: Option<u16>,
    signalling: Signalling,
) -> bool {
    let abi = ABI::V6;
    let scopes = match signalling {
        Signalling::Inside => Scope::from_all(abi),
        Signalling::AnyProcess => Scope::AbstractUnixSocket.into(),
    };
    let made = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(scopes))
        .and_then(|rules| rules.create());
    let Ok(mut rules) = made else { return false };
    for (path, access) in folders {
        let Ok(fd) = PathFd::new(path) else { return false };
        rules = match rules.add_rule(PathBeneath::new(fd, *access)) {
            Ok(rules) => rules,
            Err(_) => return false,
        };
    }
    if let Some(port) = tcp_port {
        rules = match rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp)) {
            Ok(rules) => rules,
            Err(_) => return false,
        };
    }
    rules.restrict_self().is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}

pub(super) fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::system(what, error, "segue doctor").why("the sandbox could not be made, and without it segue does not start")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn landlock_takes_the_file_system_away() {
        if segue_host::sys::landlock_abi().is_none() {
            return segue_lab::skip_this_test("this kernel has no Landlock");
        }
        let directory = std::env::temp_dir();
        let keep = directory.join(format!("segue-keep-{}", std::process::id()));
        fs::write(&keep, "x").unwrap();
        let (dir, file) = (directory.clone(), keep.clone());
        // Landlock applies to the calling thread and those that it starts.
        std::thread::spawn(move || {
            assert!(restrict(&[(dir.clone(), AccessFs::RemoveFile.into())], None, Signalling::Inside));
            assert_eq!(fs::read("/etc/passwd").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(fs::File::create(dir.join("segue-new")).is_err());
            assert!(std::net::TcpStream::connect("127.0.0.1:9").is_err());
            fs::remove_file(&file).expect("removing is allowed in the socket's directory");
        })
        .join()
        .unwrap();
        assert!(!keep.exists());
    }
}
