//! Files that other processes may read or replace at the same time: replaced in one step, removed by identity, and read
//! within a limit.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Device and inode number of a file, which identify it under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// Returns the identity of the file at `path`; a symbolic link is not followed.
    pub fn of(path: &Path) -> io::Result<Identity> {
        fs::symlink_metadata(path).map(|data| Identity::from(&data))
    }

    /// Removes the file at `path`, unless another file has replaced it.
    pub fn remove(self, path: &Path) {
        if Identity::of(path).is_ok_and(|present| present == self) {
            let _ = fs::remove_file(path);
        }
    }
}

impl From<&fs::Metadata> for Identity {
    fn from(data: &fs::Metadata) -> Identity {
        Identity(data.dev(), data.ino())
    }
}

/// The text form `DEVICE:INODE`, as in `$JOURNAL_STREAM` (systemd.exec(5)).
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

/// Replaces the content of `path` in one step: a reader finds either the old content or the new one. The new content is
/// written beside the file, under a hidden name that ends in the process id, and renamed. `mode` is the mode of the new
/// file, whatever the mask of this process; without it only the owner may write the file, and the mask takes from that.
pub fn replace(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    // One that an ended process of this id has left.
    let _ = fs::remove_file(&beside);
    let made = write_new(&beside, content, mode).and_then(|()| fs::rename(&beside, path));
    if made.is_err() {
        let _ = fs::remove_file(&beside);
    }
    made
}

/// Returns all bytes of `input`, of which there may be `most`.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] where there are more.
pub fn read_within(input: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn write_new(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(mode.unwrap_or(0o644)).open(path)?;
    if let Some(mode) = mode {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("segue-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn file_is_read_within_its_limit_and_no_further() {
        assert_eq!(read_within(&b"four"[..], 4).unwrap(), b"four");
        let error = read_within(io::repeat(0), 1 << 20).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::FileTooLarge, "it has more than 1048576 bytes")
        );
    }

    #[test]
    fn file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = folder("replace");
        let path = folder.join("segue.prom");
        replace(&path, b"one\n", Some(0o604)).unwrap();
        replace(&path, b"two\n", Some(0o604)).unwrap();
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names), ("two\n", vec!["segue.prom".into()]));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o604);
        let taken = folder.join("taken");
        fs::create_dir(&taken).unwrap();
        fs::create_dir(taken.join("file")).unwrap();
        assert!(replace(&taken, b"x", None).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "the file that could not be renamed is removed");
        crate::sys::with_umask(0, || replace(&path, b"three\n", None)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644, "no other user writes it");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn removal_spares_a_file_that_has_taken_the_name() {
        let folder = folder("identity");
        let (path, other) = (folder.join("file"), folder.join("other"));
        fs::write(&path, "one").unwrap();
        let first = Identity::of(&path).unwrap();
        fs::write(&other, "two").unwrap();
        fs::rename(&other, &path).unwrap();
        first.remove(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        Identity::of(&path).unwrap().remove(&path);
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
