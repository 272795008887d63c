//! Signals read from a descriptor, and the actions of signals.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;
use super::poll::{POLL_PAUSE, pause};

/// A descriptor from which blocked signals are read (signalfd(2)).
#[derive(Debug)]
pub struct SignalFd(File);

impl SignalFd {
    /// Blocks `signals` for this thread, and for the threads that it starts later, and opens a descriptor that reads
    /// them.
    pub fn new(signals: &[c_int]) -> io::Result<SignalFd> {
        // SAFETY: an all-zero sigset_t is a valid place for sigemptyset to fill; it outlives the calls.
        let fd = unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            for &signal in signals {
                libc::sigaddset(&mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?)
        };
        Ok(SignalFd(File::from(fd)))
    }

    /// Returns the number of the next pending signal, or `None`.
    pub fn receive(&self) -> io::Result<Option<c_int>> {
        use std::io::Read;
        let mut bytes = [0u8; mem::size_of::<libc::signalfd_siginfo>()];
        match (&self.0).read(&mut bytes) {
            Ok(len) if len == bytes.len() => {
                // `ssi_signo` is the first field of signalfd_siginfo, a u32.
                let number = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                Ok(Some(c_int::try_from(number).unwrap_or(0)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                // The descriptor stays readable.
                pause(POLL_PAUSE);
                Err(error)
            }
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns whether this process ignores a signal, as one that nohup(1) has started ignores SIGHUP.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid place for the call to fill, and no action is set.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Ignores SIGXFSZ, so that a write beyond the limit of file sizes fails (EFBIG) instead of ending the process.
pub fn fail_at_file_limit() -> io::Result<()> {
    // SAFETY: the action is none of this program's functions.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the kernel's own action for SIGSEGV and SIGBUS: the process ends. The handler of the standard library sets it
/// too, and returns to the instruction that failed; where a seccomp filter refuses that call, the instruction fails for
/// ever.
pub fn end_on_faults() -> io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the action is none of this program's functions.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Installs a handler that ends the process with status 130 on SIGINT and SIGTERM, and unblocks both. For commands
/// that have nothing to clean up.
pub fn exit_130_on_interrupt() {
    extern "C" fn leave(_: c_int) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(130) }
    }
    // SAFETY: the structures are zeroed, then filled by libc's own functions and with a handler that only calls
    // _exit.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = leave as extern "C" fn(c_int) as usize;
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}
