//! The file of a control socket, which is removed together with its socket unless another socket has replaced it.

use std::io;
use std::path::{Path, PathBuf};

use segue_host::file::Identity;

/// The file of a control socket.
#[derive(Clone, Debug)]
pub struct SocketFile {
    pub(crate) path: PathBuf,
    /// Device and inode of the file: a later instance may have replaced it with a socket of the same name. `None` for a
    /// socket of the service manager, which keeps the file.
    pub(crate) is: Option<Identity>,
}

impl SocketFile {
    /// Identifies the socket at `made`, which is later renamed to `path`, unless they are equal.
    pub(crate) fn new(made: &Path, path: PathBuf) -> io::Result<SocketFile> {
        Ok(SocketFile { path, is: Some(Identity::of(made)?) })
    }

    /// Describes the socket at `path`, whose file is removed later only if this program created it (`made`).
    pub(crate) fn kept(path: PathBuf, made: bool) -> io::Result<SocketFile> {
        let is = made.then(|| Identity::of(&path)).transpose()?;
        Ok(SocketFile { path, is })
    }

    /// Returns the path of the socket, and whether this program created its file.
    pub(crate) fn made(&self) -> (&Path, bool) {
        (&self.path, self.is.is_some())
    }

    /// Returns the directory of the socket.
    pub fn folder(&self) -> Option<&Path> {
        self.path.parent()
    }

    /// Removes the file, unless another socket has replaced it.
    pub fn remove(&self) {
        for path in [self.path.clone(), next(&self.path)] {
            if let Some(is) = self.is {
                is.remove(&path);
            }
        }
    }
}

/// A guard that removes the file of the socket on drop, if this process is permitted to.
#[derive(Debug)]
pub(crate) struct Removed(pub(crate) SocketFile);

impl Drop for Removed {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// Returns the path of a successor's socket until it replaces `path`.
pub(crate) fn next(path: &Path) -> PathBuf {
    path.with_extension("next")
}
