//! Processes and threads: fork and wait, limits, and the processor time used.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::check;

/// A process id as the kernel returns it.
pub type Pid = libc::pid_t;

/// Longest time for the end of a thread that has finished its work.
const THREAD_END: Duration = Duration::from_millis(200);

/// The two results of `fork`.
pub enum Forked {
    /// The calling process, with the id of the child.
    Parent(Pid),
    /// The caller is the child.
    Child,
}

/// Forks the calling process.
///
/// Returns an error when the process has more than one thread: the child could find a lock that nothing releases. A
/// thread that ends at this moment is waited for.
pub fn fork() -> io::Result<Forked> {
    let threads = || std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1);
    let until = Instant::now() + THREAD_END;
    while threads() > 1 {
        if Instant::now() >= until {
            return Err(io::Error::other("fork is refused while other threads run"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the process has one thread (checked above), so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Runs `work` in a forked child and returns the bytes that it produced. The process must have one thread.
pub fn in_child(work: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    use std::io::{Read, Write};
    let (mut mine, mut childs) = UnixStream::pair()?;
    match fork()? {
        Forked::Child => {
            drop(mine);
            let sent = childs.write_all(&work());
            // SAFETY: ends the process without running destructors or flushing buffers, which belong to the parent.
            unsafe { libc::_exit(i32::from(sent.is_err())) }
        }
        Forked::Parent(pid) => {
            drop(childs);
            let mut bytes = Vec::new();
            let read = mine.read_to_end(&mut bytes);
            wait(pid, true)?;
            read.map(|_| bytes)
        }
    }
}

/// The end of a child: its exit status, or the signal that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The child called `exit` with this status.
    Exit(i32),
    /// This signal killed the child.
    Signal(i32),
}

/// Waits for the child `pid`; without `block` it returns `None` while the child runs.
pub fn wait(pid: Pid, block: bool) -> io::Result<Option<Ended>> {
    let mut status: c_int = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(pid, &mut status, flags) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ if libc::WIFEXITED(status) => return Ok(Some(Ended::Exit(libc::WEXITSTATUS(status)))),
            _ if libc::WIFSIGNALED(status) => return Ok(Some(Ended::Signal(libc::WTERMSIG(status)))),
            _ => {}
        }
    }
}

/// Sends `signal` to process `pid`.
pub fn kill(pid: Pid, signal: c_int) -> io::Result<()> {
    // SAFETY: plain numbers; no memory is touched.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Raises the limit of open files (RLIMIT_NOFILE) to `count`, as far as the hard limit and the capabilities allow.
pub fn raise_open_file_limit(count: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for an rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur >= count {
        return Ok(());
    }
    limit.rlim_cur = count;
    limit.rlim_max = limit.rlim_max.max(count);
    // SAFETY: `limit` is a valid rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(drop)
}

/// Raises the limit of open files (RLIMIT_NOFILE) to the hard limit, which needs no capability, and returns it.
pub fn raise_open_file_limit_to_hard() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for an rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_max)
}

/// Closes every descriptor from `first` on. Only for a process that uses none of them again and that ends without
/// running destructors.
pub fn close_from(first: c_int) {
    // SAFETY: closing is always allowed; the callers promise not to use the descriptors again.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return;
    }
    for fd in first..1024 {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

/// Moves `socket` to the first descriptor after the standard streams and closes all others; see [`close_from`].
pub fn keep_only(socket: UnixStream) -> io::Result<UnixStream> {
    const PLACE: c_int = 3;
    // The descriptor is not dropped: it may be at that place already.
    let fd = socket.into_raw_fd();
    if fd != PLACE {
        // SAFETY: plain numbers; what was at that place is not used again, as the caller promises.
        check(unsafe { libc::dup2(fd, PLACE) })?;
    }
    close_from(PLACE + 1);
    // SAFETY: the descriptor was put there just now.
    Ok(unsafe { UnixStream::from_raw_fd(PLACE) })
}

/// Fills `bytes` with random numbers of the kernel (getrandom(2)), for which no file is needed.
///
/// # Errors
/// The kernel's; a sandbox may forbid the call.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the kernel writes at most the length of the slice.
        match usize::try_from(unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) }) {
            Ok(len) => rest = &mut rest[len..],
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Requests `signal` for the end of the parent (PR_SET_PDEATHSIG). A change of user clears the request, so it must be
/// made after that.
pub fn signal_on_parent_death(signal: c_int) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).map(drop)
}

/// Returns the process id of the parent.
pub fn parent_pid() -> Pid {
    // SAFETY: always succeeds and touches no memory.
    unsafe { libc::getppid() }
}

/// Returns the maximum length of a program's command line in bytes, minus room for its other arguments and its
/// environment.
pub fn most_arguments() -> usize {
    /// Room for a program's further arguments and its environment, bytes.
    const REST: usize = 64 << 10;
    // SAFETY: plain numbers.
    let most = unsafe { libc::sysconf(libc::_SC_ARG_MAX) };
    // Whatever the limit of the stack is, the kernel takes no more than three quarters of 8 MiB.
    usize::try_from(most).unwrap_or(128 << 10).min(6 << 20).saturating_sub(REST)
}

/// Returns the processor time that this process has used, user and system, seconds.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The processor time of a thread, which each thread of its process may read as long as it runs.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// Returns the clock of the calling thread.
    pub fn of_this_thread() -> io::Result<ThreadClock> {
        let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: the calling thread is one, and the number outlives the call.
        match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } {
            0 => Ok(ThreadClock(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns the time that the thread has used, user and system; `None` where it has ended.
    pub fn read(&self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure outlives the call.
        check(unsafe { libc::clock_gettime(self.0, &raw mut time) }).ok()?;
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_exit_status_and_signal_are_told_apart() {
        use std::process::Command;
        let exit = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap().id();
        assert_eq!(wait(exit as Pid, true).unwrap(), Some(Ended::Exit(3)));
        let killed = Command::new("sh").args(["-c", "kill -9 $$"]).spawn().unwrap().id();
        assert_eq!(wait(killed as Pid, true).unwrap(), Some(Ended::Signal(9)));
    }
}
