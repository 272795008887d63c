//! Probe of a running process's sandbox: the process is made to try each system call. On x86-64 alone: the registers
//! differ elsewhere.

mod sys;

pub use sys::Held;

use std::collections::BTreeSet;
use std::io;

/// Number of system calls of present kernels, and some more.
const NUMBERS: i64 = 500;
/// System calls that end or suspend a process, or change its control flow, whatever their arguments are. The last two
/// are those of the kernel's own uprobes, which no filter refuses: elsewhere they end the process, or fail.
pub const NOT_TRIED: [i64; 10] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_fork,
    libc::SYS_vfork,
    335,
    336,
];

/// The error numbers of a call that is refused, or that does not exist.
const REFUSED: [i64; 3] = [-(libc::EPERM as i64), -(libc::EACCES as i64), -(libc::ENOSYS as i64)];

impl Held {
    /// Returns the numbers of all system calls that the filter does not refuse when called with invalid arguments.
    /// Those in [`NOT_TRIED`] are not made.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn calls(&self) -> io::Result<BTreeSet<i64>> {
        let mut found = BTreeSet::new();
        for number in (0..NUMBERS).filter(|number| !NOT_TRIED.contains(number)) {
            if !REFUSED.contains(&self.call(number, [u64::MAX; 6])?) {
                found.insert(number);
            }
        }
        Ok(found)
    }

    /// Returns whether the process can open a file with these flags.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn opens(&self, path: &str, flags: i32) -> io::Result<bool> {
        let place = self.write(format!("{path}\0").as_bytes())?;
        let fd = self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, place, flags as u64, 0, 0, 0])?;
        if fd >= 0 {
            self.call(libc::SYS_close, [fd.cast_unsigned(), 0, 0, 0, 0, 0])?;
        }
        Ok(fd >= 0)
    }

    /// Returns whether the process can make a system call with the given arguments, which may fail for other reasons
    /// than a lack of rights.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn may(&self, number: i64, arguments: &[u64]) -> io::Result<bool> {
        let mut six = [0; 6];
        six[..arguments.len()].copy_from_slice(arguments);
        Ok(!REFUSED.contains(&self.call(number, six)?))
    }
}
