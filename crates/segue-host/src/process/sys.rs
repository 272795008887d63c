//! The system calls behind [`crate::process`].
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::activation::sys::{is_taken, take};
use crate::capability::Capability;
use crate::sys::{Ended, Pid, euid};

/// A change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The child has ended.
    Ended(Ended),
    /// This signal has stopped the child.
    Stopped(c_int),
}

/// Returns a descriptor of the process `pid` (Linux 5.3), child or not, which is readable once the process has ended.
pub fn watch_end(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers, and what it returns belongs to the caller alone.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the next change of the child `pid` that has not been reported yet, without waiting.
pub fn change(pid: Pid) -> io::Result<Option<Change>> {
    let mut status: c_int = 0;
    loop {
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ if libc::WIFEXITED(status) => return Ok(Some(Change::Ended(Ended::Exit(libc::WEXITSTATUS(status))))),
            _ if libc::WIFSIGNALED(status) => return Ok(Some(Change::Ended(Ended::Signal(libc::WTERMSIG(status))))),
            _ if libc::WIFSTOPPED(status) => return Ok(Some(Change::Stopped(libc::WSTOPSIG(status)))),
            _ => {}
        }
    }
}

/// Returns whether a signal has stopped the child `pid` since the last call. The end of the child is left to others.
pub fn has_stopped_child(pid: Pid) -> bool {
    // SAFETY: siginfo_t is plain old data, for which all zeros is a value; it outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let Ok(id) = libc::id_t::try_from(pid) else { return false };
        libc::waitid(libc::P_PID, id, &mut info, libc::WSTOPPED | libc::WNOHANG) == 0 && info.si_pid() != 0
    }
}

/// Returns whether the child `pid` has ended. Its status can still be waited for, and no other process gets its number
/// before.
pub fn has_ended_child(pid: Pid) -> bool {
    // SAFETY: siginfo_t is plain old data, for which all zeros is a value; it outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let Ok(id) = libc::id_t::try_from(pid) else { return true };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        match libc::waitid(libc::P_PID, id, &mut info, flags) {
            0 => info.si_pid() != 0,
            _ => io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
        }
    }
}

/// Sends `signal` to each process of the group `group` that this process may signal.
pub fn kill_group(group: Pid, signal: c_int) -> io::Result<()> {
    // SAFETY: plain numbers; no memory is touched.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes this process the parent of orphans among its descendants (PR_SET_CHILD_SUBREAPER), so that it can wait for
/// them.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the end of all children in the process group `group`, for `longest` at most; returns whether they have
/// ended. What they had open is closed then.
pub fn wait_for_group(group: Pid, longest: Duration) -> bool {
    let until = Instant::now() + longest;
    loop {
        // SAFETY: a null status is allowed; nothing else is touched.
        match unsafe { libc::waitpid(-group, std::ptr::null_mut(), libc::WNOHANG) } {
            0 if Instant::now() >= until => return false,
            0 => std::thread::sleep(Duration::from_millis(2)),
            -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => return true,
            _ => {}
        }
    }
}

/// Collects the children that have ended, as far as `is_kept` is false for them: orphans that ended later than the rest
/// of their group. One for which it is true ends the search, since the kernel names it again each time.
pub fn collect_orphans(is_kept: impl Fn(Pid) -> bool) {
    loop {
        // SAFETY: siginfo_t is plain old data, for which all zeros is a value; it outlives the call.
        let ended = unsafe {
            let mut info: libc::siginfo_t = mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, flags) == 0 { info.si_pid() } else { 0 }
        };
        // SAFETY: a null status is allowed; nothing else is touched.
        if ended == 0 || is_kept(ended) || unsafe { libc::waitpid(ended, std::ptr::null_mut(), libc::WNOHANG) } != ended
        {
            return;
        }
    }
}

/// Exits this process at once with `status` (_exit(2)): no destructor runs, and no other thread is waited for.
pub fn end(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// The descriptors that this process inherited, other than the standard streams.
static INHERITED: OnceLock<Vec<c_int>> = OnceLock::new();

/// Records the inherited descriptors, and sets close-on-exec on them. To be called before anything is opened.
pub fn note_inherited() {
    let listed = fs::read_dir("/proc/self/fd").map(|folder| {
        let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<c_int>().ok());
        numbers.filter(|number| *number > 2).collect::<Vec<_>>()
    });
    // SAFETY: fcntl with these arguments takes plain numbers; the descriptor of the listing itself is closed again.
    let is_open = |number: &c_int| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0;
    let inherited: Vec<c_int> = listed.unwrap_or_default().into_iter().filter(is_open).collect();
    for number in &inherited {
        // SAFETY: plain numbers.
        unsafe { libc::fcntl(*number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    let _ = INHERITED.set(inherited);
}

/// Closes the descriptors that [`note_inherited`] has recorded, except those that were taken over since
/// ([`crate::activation`]). No value of this program owns one of the others.
pub fn close_inherited() {
    for number in INHERITED.get().into_iter().flatten().filter(|number| !is_taken(**number)) {
        // SAFETY: the descriptor was open before this program opened its first one, and stayed so; nothing here owns
        // it.
        unsafe { libc::close(*number) };
    }
}

/// Takes over a descriptor that [`note_inherited`] has recorded; `None` where it was not recorded, or was taken before.
pub fn take_inherited(number: RawFd) -> Option<OwnedFd> {
    let is_noted = INHERITED.get().is_some_and(|noted| noted.contains(&number));
    // SAFETY: the descriptor was open before this program opened its first one, and stayed so; `take` gives each number
    // out once.
    (is_noted && take(number)).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets whether programs that this process starts have `fd` open too.
pub fn set_inherited(fd: BorrowedFd<'_>, is_inherited: bool) -> io::Result<()> {
    let flags = if is_inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: plain numbers; FD_CLOEXEC is the only flag that there is.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces the program of this process by the file `program` (execve(2)). The first of `arguments` is the program's
/// name. Signals that are blocked stay so, and those that are pending stay pending. Returns only where that fails.
pub fn replace_program(program: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let variable =
        |(name, value): &(OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    let made = (|| {
        let arguments = arguments.iter().map(|argument| text(argument)).collect::<Result<Vec<_>, _>>()?;
        let environment = environment.iter().map(variable).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, std::ffi::NulError>((text(program.as_os_str())?, arguments, environment))
    })();
    let (program, arguments, environment) = match made {
        Ok(made) => made,
        Err(error) => return error.into(),
    };
    let list = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (list(&arguments), list(&environment));
    // SAFETY: all three are strings that end with a zero byte, the lists end with a null pointer, and all of them
    // outlive the call, which does not change them.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

unsafe extern "C" {
    /// The environment of the process (environ(7)).
    static mut environ: *mut *mut c_char;
}

/// Overwrites the environment of this process, which a forked child has as a copy in its memory, and empties it. The
/// process must have one thread.
pub fn forget_environment() {
    // SAFETY: `environ` is null or points to pointers, the last one null, to strings that end with a zero byte and that
    // belong to the process, writable (execve(2), putenv(3)). The process has one thread, so that nothing else reads
    // them meanwhile; afterwards the list is empty, so that nothing finds the strings any more.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let text = *at;
            let len = libc::strlen(text);
            std::ptr::write_bytes(text, 0, len);
            at = at.add(1);
        }
        libc::clearenv();
    }
}

/// The kernel's capability header and sets (capget(2)), version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Drops all capabilities of the calling thread except `keep`, of which it keeps those that it has. The inheritable and
/// the ambient set become empty.
pub fn limit_capabilities(keep: &[Capability]) -> io::Result<()> {
    const PR_CAP_AMBIENT_CLEAR_ALL: libc::c_ulong = 4;
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    change_capabilities(
        |sets, kept| {
            let permitted = sets.permitted & kept;
            Sets { effective: permitted, permitted, inheritable: 0 }
        },
        keep,
    )
}

/// Drops all capabilities of the calling thread except `keep` from each of its sets, so that programs that it starts
/// get those of `keep` that they would have had.
pub fn limit_passed_on_capabilities(keep: &[Capability]) -> io::Result<()> {
    // The kernel takes from the ambient set what leaves one of these.
    change_capabilities(
        |sets, kept| Sets {
            effective: sets.effective & kept,
            permitted: sets.permitted & kept,
            inheritable: sets.inheritable & kept,
        },
        keep,
    )
}

/// Changes the capability sets of the calling thread by `change`, which gets each half of them with that of `keep`.
fn change_capabilities(change: impl Fn(Sets, u32) -> Sets, keep: &[Capability]) -> io::Result<()> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both structures have the layout of capget(2) version 3 and outlive the call.
    if unsafe { libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let kept = keep.iter().fold(0u64, |kept, capability| kept | 1 << (*capability as u32));
    for (at, set) in sets.iter_mut().enumerate() {
        *set = change(*set, (kept >> (32 * at)) as u32);
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_capset, &header, sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// One instruction of a filter of system calls (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Operation code of the instruction.
    pub code: u16,
    /// Relative jump where the condition is true.
    pub jt: u8,
    /// Relative jump where the condition is false.
    pub jf: u8,
    /// Operand of the BPF instruction.
    pub k: u32,
}

/// Filters the system calls of this thread and of the processes that it starts (seccomp(2)): it needs CAP_SYS_ADMIN, or
/// no_new_privs.
pub fn filter_calls(program: &[Step]) -> io::Result<()> {
    let steps = program.iter().map(|step| libc::sock_filter { code: step.code, jt: step.jt, jf: step.jf, k: step.k });
    let mut steps: Vec<libc::sock_filter> = steps.collect();
    let len = u16::try_from(steps.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program by its length; both structures outlive the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether a program that this process starts has all rights of root, also after this process has given up its
/// capabilities: for root, unless no_new_privs or the secure bits keep it from that (capabilities(7)).
pub fn starts_with_all_rights() -> bool {
    const SECBIT_NOROOT: c_int = 1;
    // SAFETY: plain numbers.
    let (privs, bits) = unsafe {
        (libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), libc::prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0))
    };
    euid() == 0 && privs == 0 && bits >= 0 && bits & SECBIT_NOROOT == 0
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::sys::kill;

    /// Waits for the next change of a child, and returns it.
    fn next(pid: Pid) -> Change {
        loop {
            if let Some(found) = change(pid).unwrap() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_stop_and_an_end_of_a_child_are_told_apart() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as Pid;
        assert_eq!(change(pid).unwrap(), None);
        kill(pid, libc::SIGSTOP).unwrap();
        assert_eq!(next(pid), Change::Stopped(libc::SIGSTOP));
        kill(pid, libc::SIGCONT).unwrap();
        kill(pid, libc::SIGSTOP).unwrap();
        while !has_stopped_child(pid) {
            std::thread::yield_now();
        }
        assert!(!has_stopped_child(pid), "reported once");
        kill(pid, libc::SIGKILL).unwrap();
        assert_eq!(next(pid), Change::Ended(Ended::Signal(libc::SIGKILL)));
        assert!(child.wait().is_err(), "its end was reported already");
    }
}
