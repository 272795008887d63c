//! Open files and terminals: locks, modes, memory files and flags.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::check;

/// Takes the exclusive lock of an open file (flock(2)), unless another process has it; returns whether it was taken.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: a plain call on an open descriptor.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the file mode creation mask of this process, and returns the one before.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: umask always succeeds.
    unsafe { libc::umask(mask) }
}

/// Runs `make` with the file mode creation mask `mask`. The process must have one thread.
pub fn with_umask<T>(mask: u32, make: impl FnOnce() -> T) -> T {
    let before = umask(mask);
    let made = make();
    umask(before);
    made
}

/// Creates an empty anonymous file in memory (memfd_create(2)), which cannot be executed from Linux 6.3 on, since a
/// host may ask for that (`vm.memfd_noexec`); `name` is shown in `/proc`.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name ends with a zero, and outlives the call.
    let make = |flags| check(unsafe { libc::memfd_create(name.as_ptr(), flags) });
    let fd = make(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL).or_else(|_| make(libc::MFD_CLOEXEC))?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Opens the place of a file, whatever its kind, to ask about it: its content cannot be read or written, and a link is
/// not followed (O_PATH). The standard library drops this flag where the C library is musl.
pub fn place_of_file(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero, and outlives the call.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Renames a file to a name that no other file has (RENAME_NOREPLACE). On file systems that cannot do so, another file
/// is replaced.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] where a file has the name, and those of rename(2).
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let [old, new] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (old, new, cwd, flags) = (old?, new?, libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: both paths end with a zero, and outlive the call. Not every C library has a function for it.
    let result = unsafe { libc::syscall(libc::SYS_renameat2, cwd, old.as_ptr(), cwd, new.as_ptr(), flags) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::AlreadyExists { Err(error) } else { fs::rename(from, to) }
}

/// Makes reads and writes of an open file return instead of waiting (O_NONBLOCK).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain calls on an open descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: plain calls on an open descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Returns whether reads and writes of an open file return instead of waiting.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: a plain call on an open descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }).map(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Makes writes to a pipe or terminal return instead of waiting for room, by an open file description of this process's
/// own: the flags of one are those of each process that has it. Returns whether no write to `fd` waits for a reader,
/// which is so for a file too.
pub fn write_without_waiting(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let kind = fs::metadata(&path)?.file_type();
    if !kind.is_fifo() && !fd.is_terminal() {
        return Ok(kind.is_file());
    }
    // SAFETY: a plain call on an open descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // A pipe that is open for both may have no other reader.
    let reads = kind.is_fifo() && flags & libc::O_ACCMODE == libc::O_RDWR;
    let own = File::options().read(reads).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    // SAFETY: plain numbers of open descriptors; `fd` is the same pipe or terminal as before.
    check(unsafe { libc::dup2(own.as_raw_fd(), fd.as_raw_fd()) })?;
    Ok(true)
}

/// Writes to an open file by one call (write(2)); returns the number of bytes written, which may be fewer.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most the length of the slice, which outlives the call.
    let len = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Returns the width of the terminal on stdout in columns; `None` where stdout is no terminal.
pub fn terminal_width() -> Option<usize> {
    // SAFETY: an all-zero winsize is a valid place for the kernel to fill; it outlives the call.
    let size = unsafe {
        let mut size: libc::winsize = mem::zeroed();
        check(libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ as _, &mut size)).ok()?;
        size
    };
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_place_of_a_socket_and_of_a_link_can_be_opened() {
        let folder = std::env::temp_dir().join(format!("segue-host-place-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (socket, link) = (folder.join("socket"), folder.join("link"));
        let _listener = UnixListener::bind(&socket).unwrap();
        symlink(&socket, &link).unwrap();
        let found = [&socket, &link].map(|path| place_of_file(path).and_then(|file| file.metadata()));
        std::fs::remove_dir_all(&folder).unwrap();
        let [of_socket, of_link] = found.map(|found| found.unwrap().file_type());
        assert!(of_socket.is_socket() && of_link.is_symlink());
    }

    #[test]
    fn writes_to_a_pipe_do_not_wait_and_those_of_others_still_do() {
        let (_reader, writer) = io::pipe().unwrap();
        let other = writer.try_clone().unwrap();
        assert!(write_without_waiting(writer.as_fd()).unwrap());
        // SAFETY: a plain call on an open descriptor.
        let flags = |fd: BorrowedFd<'_>| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }).unwrap();
        assert_eq!(flags(other.as_fd()) & libc::O_NONBLOCK, 0);
        let error = (0..10_000).find_map(|_| write(writer.as_fd(), &[0; 4096]).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        // A file keeps its description, whose offset others may share.
        let (file, (socket, _far)) = (memory_file(c"segue-test").unwrap(), UnixStream::pair().unwrap());
        assert!(write_without_waiting(file.as_fd()).unwrap());
        assert_eq!(flags(file.as_fd()) & libc::O_NONBLOCK, 0);
        assert!(!write_without_waiting(socket.as_fd()).unwrap());
    }

    #[test]
    fn a_pipe_that_is_open_for_both_stays_its_own_reader() {
        let (reader, writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let both = File::options().read(true).write(true).open(path).unwrap();
        drop((reader, writer));
        assert!(write_without_waiting(both.as_fd()).unwrap());
        assert_eq!(write(both.as_fd(), b"x").unwrap(), 1);
    }
}
