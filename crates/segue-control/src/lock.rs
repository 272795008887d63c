//! The lock of a directory of control sockets.
//!
//! Of instances that start at the same time, one at a time looks for what others have. The lock is a file that only its
//! owner can open (mode 0600), in a directory that only its owner and root can write to: no other user can take the
//! lock, or hold it. A process of the same user that keeps it delays others for a limited time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use segue_host::file::Identity;
use segue_host::sys;

/// Name of the file in the directory; no control socket has it.
const NAME: &str = ".lock";
/// Longest wait for the lock, before an error. Its holders need milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// A lock of a directory, held until it is dropped. Its file is removed with it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
    /// Whether this process removes the file.
    is_own: bool,
}

impl Lock {
    /// Acquires the lock of `directory`, which must be one of [`crate::place`].
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] where another process holds it for several seconds.
    pub fn take(directory: &Path) -> io::Result<Lock> {
        Lock::take_within(directory, PATIENCE)
    }

    /// Acquires the lock of `directory` like [`Lock::take`], after a wait of `patience` at most.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] where another process holds it for longer.
    pub fn take_within(directory: &Path, patience: Duration) -> io::Result<Lock> {
        let path = directory.join(NAME);
        let until = Instant::now() + patience;
        loop {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path)?;
            let data = file.metadata()?;
            if !data.is_file() || data.uid() != sys::euid() && data.uid() != 0 {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            if data.mode() & 0o077 != 0 {
                file.set_permissions(fs::Permissions::from_mode(0o600))?;
            }
            if !sys::try_lock(&file)? {
                if Instant::now() >= until {
                    let text = format!("another process has held {} for {} s", path.display(), patience.as_secs_f32());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                thread::sleep(PAUSE);
                continue;
            }
            // A holder before this one has removed the file: the lock is that of the file that has the name.
            if Identity::of(&path).is_ok_and(|named| named == Identity::from(&data)) {
                return Ok(Lock { _file: file, path, is_own: true });
            }
        }
    }

    /// Leaves the lock to the parent of this forked process: this copy is closed, and the file stays.
    pub fn leave_to_parent(mut self) {
        self.is_own = false;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed before it is unlocked: no process that opened it by this name then has another file.
        if self.is_own {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("segue-lock-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn one_holder_at_a_time_whatever_they_do_to_the_file() {
        let directory = directory("many");
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let lock = Lock::take_within(&directory, Duration::from_secs(60)).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another one is inside");
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is left");
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn a_holder_that_stays_delays_for_a_limited_time_and_no_other_user_can_be_one() {
        let directory = directory("stays");
        let held = Lock::take(&directory).unwrap();
        assert_eq!(fs::metadata(&held.path).unwrap().mode() & 0o777, 0o600);
        let error = Lock::take_within(&directory, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(held);
        // One that ended without removing the file, with a mode that lets others open it.
        fs::write(directory.join(NAME), "").unwrap();
        fs::set_permissions(directory.join(NAME), fs::Permissions::from_mode(0o644)).unwrap();
        let next = Lock::take(&directory).unwrap();
        assert_eq!(fs::metadata(&next.path).unwrap().mode() & 0o777, 0o600);
        drop(next);
        std::os::unix::fs::symlink("/dev/null", directory.join(NAME)).unwrap();
        assert!(Lock::take(&directory).is_err(), "a link is not followed");
        fs::remove_dir_all(&directory).unwrap();
    }
}
