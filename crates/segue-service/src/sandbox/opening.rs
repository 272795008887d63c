//! The sandbox of a process that opens a device again for one that moves packets and can open nothing any more.

use std::path::{Path, PathBuf};

use landlock::{AccessFs, BitFlags};
use segue_host::sys;

use super::filter::{self, Allowed, Purpose};
use super::{other_user, restrict};

/// The files, ioctls and ports that such a process may still use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach<'a> {
    /// Directories whose files the process may read.
    pub read: &'a [&'a str],
    /// Directories whose devices the process may open and use. Its user does not change then: device files belong to
    /// users.
    pub devices: &'a [&'a str],
    /// The ioctls that the process may use.
    pub ioctls: &'a [u64],
    /// The TCP port that the process may connect to.
    pub tcp_port: Option<u16>,
}

/// Confines this process to `reach`. The process must have one thread; where this fails, it must end.
pub fn confine(reach: &Reach<'_>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    sys::drop_bounding_set();
    if let Some(user) = other_user().filter(|_| reach.devices.is_empty()) {
        sys::switch_user(user.uid, user.gid).map_err(text)?;
    }
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
    // Without Landlock the user's own rights are the limit.
    let _ = restrict(&folders, reach.tcp_port);
    filter::apply(Purpose::Opening, &Allowed { ioctls: reach.ioctls, maps: false })
}
