//! The sandbox of a process that reopens a device for one that moves packets and can no longer open files.

use std::path::{Path, PathBuf};

use landlock::{AccessFs, BitFlags};
use segue_control::error::Error;
use segue_control::lock::Lock;
use segue_control::place;
use segue_host::sandbox::{Signalling, restrict};
use segue_host::{process, sys};

use super::filter::{self, Allowed, Purpose};
use super::user::{self, User};

/// Landlock access rights that a process that reopens a device keeps: files, ioctls and ports.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessRights<'a> {
    /// Directories whose files the process may read.
    pub read: &'a [&'a str],
    /// Directories whose devices the process may open and use. Its user does not change then: device files belong to
    /// users.
    pub devices: &'a [&'a str],
    /// The ioctls that the process may use.
    pub ioctls: &'a [u64],
    /// The TCP port that the process may connect to.
    pub tcp_port: Option<u16>,
    /// Address families of the sockets that the process may create and connect.
    pub families: &'a [i32],
    /// Whether the process accepts connections at a socket that is open, and makes pairs of sockets.
    pub accepts: bool,
}

/// User to which the process that reopens a device changes, if it changes.
#[derive(Debug, Default)]
pub struct NewUser(Option<(User, Option<Lock>)>);

impl NewUser {
    /// Chooses a user for a process of this name. It is this process's until the value is dropped, and by then that of
    /// the process that has changed to it.
    pub fn choose(name: &str) -> Result<NewUser, Error> {
        let folder = place::for_new().map_err(|error| {
            Error::system("cannot choose a user for another process", &error, "segue doctor")
                .why("no directory for control sockets can be used")
        })?;
        Ok(NewUser(user::other(name, &folder)?))
    }

    /// Changes to the user; to be called by a forked child.
    pub fn switch(self) -> Result<(), String> {
        let Some((user, lock)) = self.0 else { return Ok(()) };
        lock.into_iter().for_each(Lock::leave_to_parent);
        sys::drop_bounding_set();
        sys::switch_user(user.uid, user.gid).map_err(|error| error.to_string())
    }
}

/// Confines this process to the files and sockets in `reach`. The process must have one thread; where this fails, it
/// must end. Where the kernel has no Landlock, or no filters of system calls, it continues only if `is_weak` allows
/// that.
pub fn confine(reach: &AccessRights<'_>, is_weak: bool) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    process::forget_environment();
    sys::drop_bounding_set();
    sys::drop_capabilities().map_err(text)?;
    sys::no_new_privs().map_err(text)?;
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let uses = reads | AccessFs::WriteFile | AccessFs::IoctlDev;
    let folders: Vec<(PathBuf, BitFlags<AccessFs>)> = (reach.read.iter().map(|path| (path, reads)))
        .chain(reach.devices.iter().map(|path| (path, uses)))
        // A machine without USB devices has no such directories.
        .filter(|(path, _)| Path::new(path).exists())
        .map(|(path, access)| (PathBuf::from(path), access))
        .collect();
    if !restrict(&folders, reach.tcp_port.as_slice(), Signalling::Inside).map_err(text)? && !is_weak {
        return Err("this kernel has no Landlock".to_owned());
    }
    let &AccessRights { ioctls, accepts, families, .. } = reach;
    let files = !(reach.read.is_empty() && reach.devices.is_empty());
    match filter::apply(Purpose::Opening, &Allowed { ioctls, files, accepts, families, ..Allowed::default() }) {
        Err(why) if !is_weak => Err(why),
        _ => Ok(()),
    }
}
