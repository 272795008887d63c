//! Probe of a running process's sandbox: the process is made to try each system call. On x86-64 alone: the registers
//! differ elsewhere.

mod netlink;
mod reach;
mod sys;

pub use reach::{FILES, Reach, capabilities};
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

/// System calls that take no arguments, or any, and leave something behind: `sync`, `umask`, `setsid`, `vhangup`,
/// `munlockall`, `msgget`, `alarm`, `set_tid_address`, and new descriptors. For a process whose filter lists what is
/// refused, and which is to go on.
pub const LASTING: [i64; 10] = [
    libc::SYS_sync,
    libc::SYS_umask,
    libc::SYS_setsid,
    libc::SYS_vhangup,
    libc::SYS_munlockall,
    libc::SYS_msgget,
    libc::SYS_alarm,
    libc::SYS_set_tid_address,
    libc::SYS_eventfd,
    libc::SYS_inotify_init,
];

/// Bit of the numbers of the same calls in the ABI x32 (asm/unistd.h).
pub const X32: i64 = 0x4000_0000;

/// The error numbers of a call that is refused, or that does not exist.
const REFUSED: [i64; 3] = [-(libc::EPERM as i64), -(libc::EACCES as i64), -(libc::ENOSYS as i64)];

impl Held {
    /// Stops the process `pid`; where this machine does not allow that, records that the test is skipped.
    ///
    /// # Panics
    /// Where it cannot be stopped for another reason.
    #[track_caller]
    pub fn allowed(pid: u32) -> Option<Held> {
        match Held::new(pid) {
            Ok(held) => Some(held),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                segue_lab::skip_this_test("ptrace is not allowed here");
                None
            }
            Err(error) => panic!("{pid}: {error}"),
        }
    }

    /// Returns the numbers of all system calls that the filter does not refuse when called with invalid arguments.
    /// Those in [`NOT_TRIED`] and `besides` are not made.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn calls(&self, besides: &[i64]) -> io::Result<BTreeSet<i64>> {
        let mut found = BTreeSet::new();
        for number in (0..NUMBERS).filter(|number| !NOT_TRIED.contains(number) && !besides.contains(number)) {
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
