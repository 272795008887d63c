//! System calls that the standard library does not offer, each behind a safe function.
#![allow(unsafe_code, reason = "the one place of this program that calls the kernel directly")]

use std::ffi::CStr;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A process id as the kernel gives it.
pub type Pid = libc::pid_t;

/// The two results of `fork`.
pub enum Forked {
    /// The calling process, with the id of the child.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks the process.
///
/// Returns an error when the process has more than one thread: the child could find a lock that nothing releases.
pub fn fork() -> io::Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1);
    if threads > 1 {
        return Err(io::Error::other("fork is refused while other threads run"));
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

/// Returns the effective user id.
pub fn euid() -> u32 {
    // SAFETY: always succeeds and touches no memory.
    unsafe { libc::geteuid() }
}

/// Changes permanently to the user `uid` and the group `gid`, and drops all supplementary groups.
pub fn switch_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty list is a null pointer with length 0; the other calls take plain numbers. The process has one
    // thread, so that the wrappers, which signal all threads, have no other one to signal.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))?;
    }
    Ok(())
}

/// The kernel's capability header (capget(2)), version 3: two words for each set.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// Returns the effective capabilities of the calling thread, one bit for each.
pub fn capabilities() -> io::Result<u64> {
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: both structures have the layout of capget(2) version 3 and outlive the call.
    if unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(data[0].effective) | u64::from(data[1].effective) << 32)
}

/// Empties the capability bounding set, so that no program started from here gets a capability. Without CAP_SETPCAP
/// the kernel refuses; the caller sets no_new_privs as well.
pub fn drop_bounding_set() {
    for cap in 0..64 as libc::c_ulong {
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) };
    }
}

/// Clears the capability sets of the calling thread: ambient, inheritable, permitted and effective.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(0)
}

/// Clears the capability sets of the calling thread, except the capabilities `kept` (one bit for each) as far as they
/// are permitted and effective.
pub fn keep_capabilities(kept: u64) -> io::Result<()> {
    const PR_CAP_AMBIENT_CLEAR_ALL: libc::c_ulong = 4;
    let kept = if kept == 0 { 0 } else { kept & capabilities()? };
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let half = |bits: u32| CapData { effective: bits, permitted: bits, inheritable: 0 };
    let data = [half(kept as u32), half((kept >> 32) as u32)];
    // SAFETY: both structures have the layout of capset(2) version 3 and outlive the call.
    if unsafe { libc::syscall(libc::SYS_capset, &header, data.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets no_new_privs: no program started from here gains privileges. Seccomp and Landlock require it without root.
pub fn no_new_privs() -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Requests `signal` for the time when the parent ends (PR_SET_PDEATHSIG). A change of user clears the request, so it
/// must be made after that.
pub fn signal_on_parent_death(signal: c_int) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).map(drop)
}

/// Returns the process id of the parent.
pub fn parent_pid() -> Pid {
    // SAFETY: always succeeds and touches no memory.
    unsafe { libc::getppid() }
}

/// Returns the Landlock ABI of the running kernel, or `None` without Landlock.
pub fn landlock_abi() -> Option<i32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel wants a null attribute of size 0 and only returns a number.
    let abi = unsafe {
        let none = std::ptr::null::<u8>();
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, LANDLOCK_CREATE_RULESET_VERSION)
    };
    i32::try_from(abi).ok().filter(|&abi| abi > 0)
}

/// Returns whether the kernel accepts seccomp filters (SECCOMP_GET_ACTION_AVAIL, Linux 4.14).
pub fn has_seccomp_filters() -> bool {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one u32 that outlives it.
    unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0 }
}

/// Moves this process into new namespaces (`flags` of unshare(2)).
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Runs `work` in the network namespace of the file `namespace`, and returns to the former one. Only the calling thread
/// changes its namespace; sockets and devices that `work` opens stay in the other one.
pub fn in_net_namespace<T>(namespace: &File, work: impl FnOnce() -> T) -> io::Result<T> {
    let home = File::open("/proc/thread-self/ns/net")?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
    let done = work();
    // SAFETY: plain numbers.
    check(unsafe { libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET) })?;
    Ok(done)
}

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

/// An event of a descriptor that [`poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The descriptor is readable, or the peer has closed.
    Read,
    /// The descriptor is writable.
    Write,
    /// The peer has hung up.
    Hangup,
}

/// Pause after a wait that has failed, for lack of memory or because of a signal, before none is said to be ready: a
/// caller that waits again and again must not spin.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// Waits until one of `fds` is ready or `timeout` has passed; returns for each whether it is ready. A wait that fails
/// for a moment ends early.
pub fn poll(fds: &[(BorrowedFd<'_>, Want)], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|(fd, want)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: match want {
                Want::Read => libc::POLLIN,
                Want::Write => libc::POLLOUT,
                // poll(2) reports POLLHUP without a request.
                Want::Hangup => 0,
            },
            revents: 0,
        })
        .collect();
    let longest = timeout;
    // Longer waits than some years are as good as endless ones.
    let seconds = timeout.as_secs().min(i32::MAX as u64) as libc::time_t;
    let timeout = libc::timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos() as _ };
    // SAFETY: the pointer and the length describe `polled`, which outlives the call, as the timeout does; the signal
    // mask stays as it is.
    let ready =
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const timeout, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EFAULT | libc::EINVAL | libc::ENOSYS) => return Err(error),
            // The caller waits again, whatever it was.
            _ => pause(POLL_PAUSE.min(longest)),
        }
        polled.iter_mut().for_each(|entry| entry.revents = 0);
    }
    Ok(polled.iter().map(|entry| entry.revents != 0).collect())
}

/// Sleeps, or returns at once where a signal arrives or a filter of system calls refuses; unlike the standard library's
/// function, which panics then.
pub fn pause(time: Duration) {
    let seconds = time.as_secs().min(i32::MAX as u64) as libc::time_t;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos() as _ };
    // SAFETY: the kernel reads `time`, which outlives the call, and writes no rest.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut()) };
}

/// Returns the longest command line that a program can be started with, bytes, with room for its other words and its
/// environment.
pub fn most_arguments() -> usize {
    /// Room for a program's further arguments and its environment, bytes.
    const REST: usize = 64 << 10;
    // SAFETY: plain numbers.
    let most = unsafe { libc::sysconf(libc::_SC_ARG_MAX) };
    // Whatever the limit of the stack is, the kernel takes no more than three quarters of 8 MiB.
    usize::try_from(most).unwrap_or(128 << 10).min(6 << 20).saturating_sub(REST)
}

/// Connects to the local socket with this abstract name. Returns [`io::ErrorKind::WouldBlock`] where the queue of the
/// listener is full.
pub fn connect_abstract(name: &[u8]) -> io::Result<UnixStream> {
    with_abstract(name, libc::connect)
}

/// Opens a local socket that is bound to this abstract name and does not listen.
pub fn bind_abstract(name: &[u8]) -> io::Result<UnixStream> {
    with_abstract(name, libc::bind)
}

/// Opens a local socket and applies `call`, connect or bind, to it with this abstract name.
fn with_abstract(
    name: &[u8],
    call: unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<UnixStream> {
    // SAFETY: sockaddr_un is plain old data, for which all zeros is a value.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero, which makes the name an abstract one (unix(7)).
    let places = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    places.iter_mut().zip(name).for_each(|(to, from)| *to = *from as libc::c_char);
    let len = (mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t;
    // SAFETY: the call takes plain numbers.
    let fd =
        check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above returned the descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the address outlives the call and has the given length.
    check(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd.into())
}

/// Takes the exclusive lock of an open file (flock(2)), unless another process has it; returns whether it was taken.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: a plain call on an open descriptor.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs `make` under the file mode creation mask `mask`. The process must have one thread.
pub fn with_umask<T>(mask: u32, make: impl FnOnce() -> T) -> T {
    // SAFETY: umask always succeeds.
    let before = unsafe { libc::umask(mask) };
    let made = make();
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    made
}

/// Creates a file that is memory only, of length 0; `name` is shown in `/proc`.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name ends with a zero, and outlives the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Makes reads and writes of an open file return instead of waiting (O_NONBLOCK).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain calls on an open descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: plain calls on an open descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Sets an integer socket option.
pub fn set_int_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Receives one message; returns its length and the segment length of UDP_GRO where the kernel gave one.
pub fn receive_with_gro(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<c_int>)> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: msghdr is plain data; every pointer in it describes a local that outlives the calls, and the control
    // buffer is aligned for cmsghdr. CMSG_* walk only inside what the kernel filled.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let len = libc::recvmsg(fd.as_raw_fd(), &mut header, 0);
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        let mut segment = None;
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_UDP && (*at).cmsg_type == libc::UDP_GRO {
                segment = Some(libc::CMSG_DATA(at).cast::<c_int>().read_unaligned());
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
        Ok((len, segment))
    }
}

/// Opens and closes a socket of this family and type, to find out whether the kernel supports it.
pub fn probe_socket(family: c_int, kind: c_int) -> io::Result<()> {
    // SAFETY: plain numbers; the descriptor is owned at once.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind | libc::SOCK_CLOEXEC, 0))?) };
    drop(fd);
    Ok(())
}

/// `struct ifreq` with flags or a pointer in its union.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    union: [usize; 3],
}

fn ifreq(name: &str) -> io::Result<IfReq> {
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], union: [0; 3] };
    let bytes = name.as_bytes();
    if bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    Ok(request)
}

/// Returns one boolean ethtool feature of a link, by its legacy command number (linux/ethtool.h).
pub fn ethtool_flag(socket: BorrowedFd<'_>, link: &str, command: u32) -> io::Result<bool> {
    let mut value = [command, 0u32];
    let mut request = ifreq(link)?;
    request.union[0] = value.as_mut_ptr() as usize;
    // SAFETY: the union's pointer describes `value` (struct ethtool_value, two u32), both outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    Ok(value[1] != 0)
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

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
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

    #[test]
    fn poll_says_which_descriptor_is_ready() {
        use std::io::Write;
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(b"x").unwrap();
        let ready = poll(&[(left.as_fd(), Want::Read), (right.as_fd(), Want::Read)], Duration::from_secs(1)).unwrap();
        assert_eq!(ready, [false, true]);
    }

    #[test]
    fn a_name_longer_than_the_kernels_field_is_refused() {
        assert!(ifreq("exactly15bytes_").is_ok());
        assert_eq!(ifreq("sixteen_bytes_16").err().and_then(|e| e.raw_os_error()), Some(libc::ENAMETOOLONG));
    }
}
