//! Output files: written beside the name that they get once they are complete, and not where another user leads them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::sys::{euid, rename_new};

/// Largest number of symbolic links in front of an output, as in path_resolution(7).
const MOST_LINKS: usize = 40;
/// Number of further names that are tried for a temporary file.
const MOST_NAMES: u32 = 100;
/// Number of bytes of a file's name that the name of its temporary file has, which may have 255 (`NAME_MAX`).
const MOST_NAME: usize = 200;

/// A file that another user has put in the place of an output.
#[derive(Debug)]
pub struct Foreign {
    /// Path of the file.
    pub path: PathBuf,
    /// Kind of the file, with an article.
    pub what: &'static str,
}

/// Returns the path of the file that symbolic links at `path` lead to. Neither a link of another user is followed nor
/// a named pipe or a file of one taken in a sticky directory, where any user may make files: what is written would go
/// where that user wants it, and what replaces a file has its owner and its mode. `is_input` says that the content of
/// the file comes from itself, so that its owner has it already.
///
/// # Errors
/// [`Foreign`] names what is in the place.
pub fn behind_links(path: &Path, is_input: bool) -> Result<PathBuf, Foreign> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(data) = fs::symlink_metadata(&path) else { break };
        let is_sticky = || fs::metadata(folder_of(&path)).is_ok_and(|data| data.mode() & libc::S_ISVTX != 0);
        let what = match data.file_type() {
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_fifo() && is_sticky() => "a named pipe",
            kind if kind.is_file() && !is_input && is_sticky() => "a file",
            _ => break,
        };
        if ![0, euid()].contains(&data.uid()) {
            return Err(Foreign { path, what });
        }
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.with_file_name(next);
    }
    Ok(path)
}

/// A file that has a hidden name beside its own until it is complete. It is removed where it is dropped before.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    /// Creates the file for `path`, with the mode of the file that it will replace, `existing`, and as far as permitted
    /// with its owner and group.
    pub fn create(path: PathBuf, existing: Option<&fs::Metadata>) -> io::Result<Unfinished> {
        // Until it has the rights of the file that it replaces, no other user may read it.
        let mode = if existing.is_some() { 0o600 } else { 0o666 };
        let mut number = 0;
        let (file, temporary) = loop {
            let temporary = beside(&path, number);
            match File::options().write(true).create_new(true).mode(mode).open(&temporary) {
                Ok(file) => break (file, temporary),
                // Of a process that was killed, or one of another container: both may have had this id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MOST_NAMES => number += 1,
                Err(error) => return Err(error),
            }
        };
        let made = Unfinished { file, temporary, path };
        if let Some(data) = existing {
            let (file, owner, group) = (&made.file, Some(data.uid()), Some(data.gid()));
            // Owner and group as far as permitted, else the group only; changing the owner may clear bits of the mode.
            let _ = fchown(file, owner, group).or_else(|_| fchown(file, None, group));
            let _ = file.set_permissions(fs::Permissions::from_mode(data.mode() & 0o7777));
        }
        Ok(made)
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. Without `replaces` no other file may have it.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where another file has the name, even since a moment ago; else those of the
    /// system. The file is removed then.
    pub fn publish(mut self, replaces: bool) -> io::Result<()> {
        // The name stands for the whole content, also after a crash.
        self.file.sync_data()?;
        if replaces {
            fs::rename(&self.temporary, &self.path)?;
        } else {
            // Linking fails if the name exists; some file systems have no links.
            match fs::hard_link(&self.temporary, &self.path) {
                Ok(()) => fs::remove_file(&self.temporary)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => rename_new(&self.temporary, &self.path)?,
            }
        }
        self.temporary = PathBuf::new();
        // Some file systems cannot sync a directory; the file is complete all the same.
        let _ = File::open(folder_of(&self.path)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Returns the directory of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the path of a temporary file, in the directory of the output.
fn beside(path: &Path, number: u32) -> PathBuf {
    let own = path.file_name().unwrap_or_default().as_bytes();
    let mut name = OsString::from(".");
    name.push(OsStr::from_bytes(&own[..own.len().min(MOST_NAME)]));
    name.push(format!(".segue-{}", std::process::id()));
    if number > 0 {
        name.push(format!("-{number}"));
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("segue-output-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_has_its_name_when_it_is_complete_and_another_one_keeps_it() {
        let folder = folder("publish");
        let path = folder.join("out");
        let [one, two, three] = [(); 3].map(|()| Unfinished::create(path.clone(), None).unwrap());
        for (file, text) in [(&one, "one"), (&two, "two"), (&three, "three")] {
            file.file().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(names(&folder).len(), 3);
        one.publish(false).unwrap();
        assert_eq!(two.publish(false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((names(&folder).len(), fs::read_to_string(&path).unwrap().as_str()), (2, "one"));
        three.publish(true).unwrap();
        assert_eq!((names(&folder), fs::read_to_string(&path).unwrap().as_str()), (vec!["out".to_owned()], "three"));
        drop(Unfinished::create(path, None).unwrap());
        assert_eq!(names(&folder), ["out"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn renaming_to_a_new_name_replaces_no_file() {
        let folder = folder("rename");
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::write(&from, "one").unwrap();
        fs::write(&to, "two").unwrap();
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
        fs::remove_file(&to).unwrap();
        rename_new(&from, &to).unwrap();
        assert_eq!((names(&folder), fs::read_to_string(&to).unwrap().as_str()), (vec!["to".to_owned()], "one"));
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }
}
