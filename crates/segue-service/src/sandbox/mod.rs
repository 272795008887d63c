//! The sandbox: a process gives up its rights once every device is open.
//!
//! As root, a supervisor remains that only waits, passes signals on, removes the control socket and passes the exit
//! status on; the process that moves packets becomes `nobody`. Where the user cannot change, only capabilities are
//! dropped. Landlock then removes the file system, and seccomp every system call that moving packets does not need.

mod filter;
mod opening;
mod supervisor;

use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use schemars::JsonSchema;
use segue_control::error::{Error, Kind};
use segue_host::signals::Signals;
use segue_host::sys::{self, Forked};
use serde::Serialize;

use crate::control_server::SocketFile;
use crate::report::Report;

pub use filter::Allowed;
pub use opening::{Reach, confine};

/// The state of a sandbox: the measures that are in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sandbox {
    /// The user that the process became; `None` when the user did not change.
    pub user: Option<String>,
    /// Whether a supervisor waits for this process.
    pub supervised: bool,
    /// Whether the file system is out of reach.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl Sandbox {
    /// Describes the sandbox, for the line that begins with "workers 1, ".
    pub fn text(&self) -> String {
        let user = match &self.user {
            Some(user) => format!("as user {user}"),
            None => "without capabilities".to_owned(),
        };
        let box_ = match (self.landlock, self.seccomp) {
            (true, true) => "sandboxed",
            (false, true) => "sandboxed (no Landlock here)",
            (true, false) => "sandboxed (no seccomp here)",
            (false, false) => "not sandboxed",
        };
        format!("{user}, {box_}")
    }
}

/// The user and the group that the process changes to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

/// Forks a supervisor where the user can change, and gives up what the process no longer needs. Returns in the
/// process that goes on; the supervisor never returns. The process must have one thread.
pub fn enter(
    signals: &mut Signals,
    socket: &SocketFile,
    allowed: &Allowed<'_>,
    out: &dyn Report,
) -> Result<Sandbox, Error> {
    let user = other_user();
    if user.is_some() {
        match sys::fork().map_err(|error| failed("cannot start the process that moves packets", &error))? {
            Forked::Parent(child) => supervisor::run(child, signals, socket),
            Forked::Child => {}
        }
    }
    let parent = sys::parent_pid();
    // After a change of user the process may no longer do this.
    sys::drop_bounding_set();
    if let Some(user) = &user {
        sys::switch_user(user.uid, user.gid).map_err(|error| failed("cannot become another user", &error))?;
    }
    sys::drop_capabilities().map_err(|error| failed("cannot drop capabilities", &error))?;
    sys::no_new_privs().map_err(|error| failed("cannot forbid new privileges", &error))?;
    if user.is_some() {
        // The change of user has cleared an earlier request for the signal; a parent that has ended before now counts
        // as well.
        sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| failed("cannot follow the supervisor", &error))?;
        if sys::parent_pid() != parent {
            return Err(Error::new(Kind::System, "the supervisor has ended", "start again").why("somebody killed it"));
        }
    }
    let own_socket = if user.is_none() { socket.folder().map(Path::to_owned) } else { None };
    let removes = own_socket.map(|folder| (folder, AccessFs::RemoveFile.into()));
    let landlock = restrict(removes.as_slice(), None);
    if !landlock {
        out.note("note: this kernel has no Landlock; the file system stays within reach of this user's rights");
    }
    let seccomp = match filter::apply(filter::Purpose::Packets, allowed) {
        Ok(()) => true,
        Err(why) => {
            out.note(&format!("note: no filter of system calls here ({why})"));
            false
        }
    };
    Ok(Sandbox { supervised: user.is_some(), user: user.map(|user| user.name), landlock, seccomp })
}

/// Returns the user `nobody`, where this process is root and may become that user.
fn other_user() -> Option<User> {
    if sys::euid() != 0 {
        return None;
    }
    let user = nobody(&fs::read_to_string("/etc/passwd").unwrap_or_default());
    // In a user namespace only mapped ids exist, and groups can be dropped only where that is allowed.
    let maps =
        |file: &str, id: u32| fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| has_id(line, id)));
    let groups = fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() == "allow");
    const CAP_SETGID: u32 = 6;
    const CAP_SETUID: u32 = 7;
    let caps = sys::capabilities().unwrap_or(0);
    let may = groups && caps >> CAP_SETGID & 1 == 1 && caps >> CAP_SETUID & 1 == 1;
    (may && maps("/proc/self/uid_map", user.uid) && maps("/proc/self/gid_map", user.gid)).then_some(user)
}

/// Returns the entry `nobody` of a passwd file, with the usual numbers where there is none.
fn nobody(passwd: &str) -> User {
    let entry = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == "nobody").then_some(())?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        // An entry with the numbers of root is not accepted.
        (uid != 0 && gid != 0).then_some((uid, gid))
    });
    let (uid, gid) = entry.unwrap_or((65_534, 65_534));
    User { name: "nobody".to_owned(), uid, gid }
}

/// Returns whether a line of uid_map or gid_map (first inside, first outside, count) has `id` inside.
fn has_id(line: &str, id: u32) -> bool {
    let fields: Vec<u32> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    matches!(fields[..], [inside, _, len] if id >= inside && id - inside < len)
}

/// Denies the file system except `folders` with these rights, and, where the kernel can, TCP except connections to
/// `tcp_port`, abstract sockets and signals to processes outside. Returns whether the kernel enforces it.
fn restrict(folders: &[(PathBuf, BitFlags<AccessFs>)], tcp_port: Option<u16>) -> bool {
    let abi = ABI::V6;
    let made = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
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
    use super::*;

    #[test]
    fn nobody_is_read_from_the_passwd_file_and_is_never_root() {
        let text = "root:x:0:0:root:/root:/bin/sh\nnobody:x:99:98:x:/:/bin/false\n";
        assert_eq!(nobody(text), User { name: "nobody".into(), uid: 99, gid: 98 });
        assert_eq!(nobody("nobody:x:0:0:::\n").uid, 65_534);
        assert_eq!(nobody("").gid, 65_534);
    }

    #[test]
    fn a_namespace_of_one_user_has_no_nobody() {
        assert!(!has_id("         0       1000          1", 65_534));
        assert!(has_id("         0          0 4294967295", 65_534));
    }

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
            assert!(restrict(&[(dir.clone(), AccessFs::RemoveFile.into())], None));
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
