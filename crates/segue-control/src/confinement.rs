//! The sandbox of a long-running process that asks control sockets and reads from the network: the server of the
//! metrics, and the agent of a fleet.
//!
//! Such a process keeps its user, and root the right to reach sockets and files of other users. What keeps it from
//! other files is Landlock, and a filter of system calls keeps it from other processes and the kernel.

use std::path::{Path, PathBuf};

use landlock::{AccessFs, BitFlags};
use segue_host::capability::Capability;
use segue_host::sandbox::filter::{self, Tasks};
use segue_host::sandbox::{Signalling, restrict};
use segue_host::{clock, sys};

use crate::error::{Error, Kind};
use crate::place;

/// The option with which a process runs without a part of the sandbox that the kernel lacks.
pub const WEAK: &str = "--weak-sandbox";

/// Returns the error for a process that the kernel does not confine.
pub fn weak(what: &str) -> Error {
    let hint = format!("a kernel with Landlock and seccomp (segue doctor), or to continue without: {WEAK}");
    Error::new(Kind::System, what, hint).why("this kernel lacks Landlock, or filters of system calls")
}

/// The needs of a process beyond control sockets, and the states of agents beside them.
#[derive(Clone, Debug, Default)]
pub struct Needs<'a> {
    /// Whether it writes a state of its own beside the control sockets.
    pub has_state: bool,
    /// Files, and folders whose files, it reads. Those that do not exist are left out.
    pub reads: Vec<PathBuf>,
    /// Files that it replaces, in folders that exist.
    pub replaces: Vec<PathBuf>,
    /// Files that it removes at its end.
    pub removes: Vec<PathBuf>,
    /// TCP ports to which it connects.
    pub tcp_ports: Vec<u16>,
    /// The tasks of the process, which the filter of system calls allows.
    pub tasks: Tasks<'a>,
}

/// Confines this process, which must have one thread, and the threads that it starts later. Root keeps the right to
/// reach control sockets and folders of other users. Returns what the kernel lacks, which `is_weak` allows.
///
/// # Errors
/// Where the kernel lacks a part of the sandbox and `is_weak` does not allow that, or refuses to drop capabilities or
/// to limit the files.
pub fn confine(needs: &Needs<'_>, is_weak: bool) -> Result<Vec<String>, Error> {
    let rights = rights(needs);
    // Times of messages: the time zone is read once.
    let _ = clock::offset(0);
    let kept = if sys::euid() == 0 { 1 << Capability::DacOverride as u64 } else { 0 };
    sys::drop_bounding_set();
    sys::keep_capabilities(kept).and_then(|()| sys::no_new_privs()).map_err(|error| {
        Error::system("cannot drop capabilities", &error, "segue doctor").why("this process does not run with them")
    })?;
    let mut lacks = Vec::new();
    let has_landlock = restrict(&rights, &needs.tcp_ports, Signalling::Inside).map_err(|error| {
        Error::system("cannot limit the files of this process", &error, "start it again")
            .why("a folder that it needs was there a moment ago, or the kernel refused")
    })?;
    if !has_landlock {
        lacks.push("no Landlock here: all files of this user stay within reach".to_owned());
    }
    if let Err(why) = filter::apply(&needs.tasks) {
        lacks.push(format!("no filters of system calls here: {why}"));
    }
    match lacks.first() {
        Some(first) if !is_weak => Err(weak(first)),
        _ => Ok(lacks),
    }
}

/// Returns the rights of Landlock to files and folders.
fn rights(needs: &Needs<'_>) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let replaces = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::RemoveFile;
    // Whether a signal has stopped an agent, and the ids of a user namespace.
    let mut rights: Vec<(PathBuf, BitFlags<AccessFs>)> = vec![("/proc".into(), AccessFs::ReadFile.into())];
    if needs.has_state
        && let Ok(folder) = place::for_new()
    {
        // Each write tries the directory with a folder.
        rights.push((folder, replaces | AccessFs::MakeDir | AccessFs::RemoveDir));
    }
    let (asked, listed) = place::for_asking();
    rights.extend(asked.into_iter().map(|path| (path, reads)));
    rights.extend(listed.into_iter().map(|path| (path, AccessFs::ReadDir.into())));
    rights.extend(needs.reads.iter().map(|path| (path.clone(), reads)));
    rights.extend(needs.replaces.iter().map(|path| (folder(path), replaces)));
    rights.extend(needs.removes.iter().map(|path| (folder(path), AccessFs::RemoveFile.into())));
    rights.retain(|(path, _)| path.exists());
    rights
}

/// Returns the folder of a file.
fn folder(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}
