//! The sandbox: a process gives up its rights once every device is open.
//!
//! A supervisor remains that waits, watches the [`heartbeat`](crate::heartbeat), passes signals on, removes the control
//! socket and passes the exit status on. The process that moves packets, its child, becomes a user of its own where
//! this one is root ([`user`]), and drops all capabilities, the environment and the descriptors that others left open.
//! Landlock then removes the file system, and seccomp every system call that moving packets does not need. Where one of
//! them is missing, the instance ends, unless its user chose a weak sandbox.

mod filter;
mod opening;
mod supervisor;
mod user;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use segue_control::error::{Error, Kind};
use segue_control::lock::Lock;
pub use segue_control::model::Sandbox;
use segue_host::process;
use segue_host::signals::Signals;
use segue_host::sys::{self, Forked};

use crate::control_server::SocketFile;
use crate::heartbeat::{Heartbeat, Limits};
use crate::report::Report;

pub use filter::Allowed;
pub use opening::{NewUser, Reach, confine};

/// What a sandbox is made for.
#[derive(Debug)]
pub struct Life<'a> {
    /// The name of the instance.
    pub name: &'a str,
    /// The heartbeat of the process that moves packets.
    pub heartbeat: &'a Heartbeat,
    /// The times after which the supervisor ends that process.
    pub limits: Limits,
    /// What that process may do besides the usual.
    pub allowed: Allowed<'a>,
    /// Whether the process goes on where the kernel has no Landlock, or no filters of system calls.
    pub is_weak: bool,
}

/// Forks the process that moves packets, which gives up what it no longer needs, and returns in it; the supervisor
/// never returns. The process must have one thread.
///
/// # Errors
/// Where a right cannot be given up, which also ends the instance, unless [`Life::is_weak`] allows it.
pub fn enter(
    signals: &mut Signals,
    socket: &SocketFile,
    life: &Life<'_>,
    out: &Arc<dyn Report>,
) -> Result<Sandbox, Error> {
    let folder = socket.folder().unwrap_or(Path::new("/"));
    let chosen = user::other(life.name, folder)?;
    let told = io::pipe().map_err(|error| failed("cannot start the process that moves packets", &error))?;
    let (hears, tells) = told;
    match sys::fork().map_err(|error| failed("cannot start the process that moves packets", &error))? {
        Forked::Parent(child) => {
            drop(tells);
            // Until the child has its user, another instance could choose the same one.
            let _ = io::Read::read_to_end(&mut &hears, &mut Vec::new());
            drop(chosen);
            supervisor::run(child, signals, socket, life, &**out)
        }
        Forked::Child => {}
    }
    drop(hears);
    let parent = sys::parent_pid();
    process::close_inherited();
    process::forget_environment();
    // After a change of user the process may no longer do this.
    sys::drop_bounding_set();
    let mut name = None;
    if let Some((user, lock)) = chosen {
        sys::switch_user(user.uid, user.gid).map_err(|error| failed("cannot become another user", &error))?;
        lock.into_iter().for_each(Lock::leave_to_parent);
        name = Some(user.name);
    }
    drop(tells);
    sys::drop_capabilities().map_err(|error| failed("cannot drop capabilities", &error))?;
    sys::no_new_privs().map_err(|error| failed("cannot forbid new privileges", &error))?;
    // A change of user clears a request for the signal; a parent that has ended before now counts as well.
    sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| failed("cannot follow the supervisor", &error))?;
    if sys::parent_pid() != parent {
        return Err(Error::new(Kind::System, "the supervisor has ended", "start again").why("somebody killed it"));
    }
    let landlock = restrict(&[], None, Signalling::Inside);
    let seccomp = filter::apply(filter::Purpose::Packets, &life.allowed);
    let sandbox = Sandbox { user: name, supervised: true, landlock, seccomp: seccomp.is_ok() };
    if !landlock {
        missing("Landlock", "the file system stays within reach of this user's rights", life.is_weak, out)?;
    }
    if let Err(why) = seccomp {
        missing("filters of system calls", &why, life.is_weak, out)?;
    }
    Ok(sandbox)
}

/// Reports a part of the sandbox that the kernel does not have: an error, unless `is_weak` allows it.
fn missing(what: &str, why: &str, is_weak: bool, out: &Arc<dyn Report>) -> Result<(), Error> {
    if is_weak {
        out.note(&format!("note: no {what} here: {why}"));
        return Ok(());
    }
    Err(weak(&format!("no {what} here")).why(why))
}

/// Returns the error for a process that the kernel does not confine.
fn weak(what: &str) -> Error {
    let hint = format!("a kernel with Landlock and seccomp (segue doctor), or to go on without: {WEAK}");
    Error::new(Kind::System, what, hint).why("this kernel lacks Landlock, or filters of system calls")
}

/// The option by which a user goes on without a part of the sandbox.
pub const WEAK: &str = "--weak-sandbox";

/// The processes that a process may signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signalling {
    /// Those with the same restrictions, which are itself.
    Inside,
    /// Any that its user and capabilities allow.
    Anybody,
}

/// Denies the file system except `folders` with these rights, and, where the kernel can, TCP except connections to
/// `tcp_port`, abstract sockets and, unless `signalling` allows them, signals to processes outside. Returns whether the
/// kernel enforces it.
fn restrict(folders: &[(PathBuf, BitFlags<AccessFs>)], tcp_port: Option<u16>, signalling: Signalling) -> bool {
    let abi = ABI::V6;
    let scopes = match signalling {
        Signalling::Inside => Scope::from_all(abi),
        Signalling::Anybody => Scope::AbstractUnixSocket.into(),
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

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::system(what, error, "segue doctor").why("the sandbox could not be made, and without it segue does not start")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn landlock_takes_the_file_system_away() {
        if sys::landlock_abi().is_none() {
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
