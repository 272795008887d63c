//! System calls missing from the standard library, each behind a safe function.
#![allow(unsafe_code, reason = "namespaces, signals and packet sockets exist only as libc calls")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The two namespaces of a host.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub(crate) net: OwnedFd,
    pub(crate) mnt: OwnedFd,
}

/// Moves the calling thread into new namespaces. With `CLONE_NEWNS` its root and working directory are no longer shared
/// with the other threads.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare takes no pointers.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the network namespace of `net`.
pub(crate) fn enter_net(net: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns takes no pointers; the descriptor is open for as long as it is borrowed.
    check(unsafe { libc::setns(net.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Detaches this thread's mount namespace, so that later changes do not propagate to the namespace it was copied from.
pub(crate) fn detach_mounts() -> io::Result<()> {
    mount(c"/", None, libc::MS_REC | libc::MS_SLAVE, c"")
}

/// Mounts a new file system of a kind that needs no device.
pub(crate) fn mount_new(kind: &CStr, target: &CStr, data: &CStr) -> io::Result<()> {
    mount(target, Some(kind), libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, data)
}

fn mount(target: &CStr, kind: Option<&CStr>, flags: libc::c_ulong, data: &CStr) -> io::Result<()> {
    let (source, kind) = (kind.unwrap_or(c"none"), kind.map_or(std::ptr::null(), CStr::as_ptr));
    // SAFETY: the strings are NUL-terminated and outlive the call; the type may be null when flags say so.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, data.as_ptr().cast()) }).map(drop)
}

/// Returns the effective user and group id.
pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: both calls always succeed and take nothing.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Sends SIGTERM to a child that was not collected, so that its process id cannot have been reused.
pub(crate) fn terminate(child: u32) {
    if let Ok(pid) = libc::pid_t::try_from(child) {
        // SAFETY: kill takes no pointers; a failure means that the child is gone, which is what was wanted.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// Sends SIGKILL to the process group that a child leads, which includes the child's own children. The child was not
/// collected.
pub(crate) fn kill_group(child: u32) {
    if let Ok(pid) = libc::pid_t::try_from(child) {
        // SAFETY: kill takes no pointers. A child that leads no group makes it fail, since its id is then no group's.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}

/// Sends SIGKILL to a member of one of the lab's control groups.
pub(crate) fn kill_member(pid: libc::pid_t) {
    if pid > 0 {
        // SAFETY: kill takes no pointers.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Takes an exclusive lock on an open file without waiting; returns `false` when another holder has it. It ends with
/// the descriptor, so it tells whether the holder lives.
pub(crate) fn try_lock(file: &File) -> bool {
    // SAFETY: flock takes no pointers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Returns whether a child has ended, without collecting it: its id stays taken.
pub(crate) fn has_ended(child: u32) -> bool {
    // SAFETY: an all-zero siginfo_t is valid.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to `info`.
    let result = unsafe { libc::waitid(libc::P_PID, child, &raw mut info, flags) };
    // SAFETY: waitid fills in the fields of SIGCHLD, or leaves zero when the child runs (wait(2)).
    result == 0 && unsafe { info.si_pid() } != 0
}

/// The namespaces, control groups and processor that a child enters between fork and exec.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    /// Open `cgroup.procs` of each group that the child belongs to.
    pub(crate) groups: Vec<Arc<File>>,
    /// The only processor that the child may use, if limited.
    pub(crate) core: Option<usize>,
}

/// Makes the child start in `place`, and die with the thread that starts it.
pub(crate) fn prepare_child(command: &mut Command, place: Place) {
    let parent = std::process::id();
    let in_child = move || {
        let signal = libc::SIGKILL as libc::c_ulong;
        // SAFETY: this option takes one integer.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
        // SAFETY: getppid always succeeds.
        if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if let Some(core) = place.core {
            run_only_on(core)?;
        }
        for procs in &place.groups {
            // SAFETY: the buffer is one byte long; "0" names the writer itself in both generations of cgroups.
            if unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(namespaces) = &place.namespaces {
            let mut cwd = [0 as libc::c_char; libc::PATH_MAX as usize];
            // SAFETY: the buffer has the stated length.
            let known = !unsafe { libc::getcwd(cwd.as_mut_ptr(), cwd.len()) }.is_null();
            enter_net_raw(namespaces.net.as_raw_fd(), libc::CLONE_NEWNET)?;
            enter_net_raw(namespaces.mnt.as_raw_fd(), libc::CLONE_NEWNS)?;
            // Joining a mount namespace resets the working directory to its root.
            if known {
                // SAFETY: getcwd left a NUL-terminated string. A failure leaves the child in the root directory.
                unsafe { libc::chdir(cwd.as_ptr()) };
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls on memory of its own; it neither allocates nor
    // locks (`Arc`s are only read, an `io::Error` from an errno does not allocate).
    unsafe { command.pre_exec(in_child) };
}

/// Binds the calling thread to one processor.
pub(crate) fn run_only_on(core: usize) -> io::Result<()> {
    run_thread_on(0, core)
}

/// Binds a thread to one processor; 0 is the calling one.
pub(crate) fn run_thread_on(thread: u32, core: usize) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: all-zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if core >= 8 * mem::size_of_val(&set) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `core` is within the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the pointer and length describe `set`.
    check(unsafe { libc::sched_setaffinity(thread, mem::size_of_val(&set), &raw const set) }).map(drop)
}

/// Returns the processors that the calling thread may use.
pub(crate) fn own_cores() -> io::Result<Vec<usize>> {
    // SAFETY: all-zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the pointer and length describe `set`; 0 is the calling thread.
    check(unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) })?;
    // SAFETY: the numbers are within the set.
    Ok((0..8 * mem::size_of_val(&set)).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Makes the calling thread run only when no other thread on its processor is runnable (`SCHED_IDLE`).
pub(crate) fn run_when_idle() -> io::Result<()> {
    set_scheduler(0, libc::SCHED_IDLE, 0)
}

/// Sets policy and priority of a thread, 0 for the calling one (sched_setscheduler(2)).
fn set_scheduler(thread: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel's struct sched_param is one int, which outlives the call.
    let code = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the priority of a thread above all ordinary ones and those of the lowest real-time priority.
pub(crate) fn run_at_once(thread: u32) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    set_scheduler(thread, libc::SCHED_FIFO, 2)
}

/// Sets a socket option that is a number.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Sends at most `len` bytes of a file from offset `at` on; returns the number of bytes that the socket accepted.
pub(crate) fn send_file(to: BorrowedFd<'_>, file: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<usize> {
    let mut at = libc::off_t::try_from(at).map_err(io::Error::other)?;
    // SAFETY: the pointer is to `at`.
    let sent = unsafe { libc::sendfile(to.as_raw_fd(), file.as_raw_fd(), &raw mut at, len) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Discards at most `len` bytes of a TCP socket's data without copying and without waiting; returns 0 at the end of the
/// stream.
pub(crate) fn discard(fd: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing, so that no buffer is needed (tcp(7)).
    let got = unsafe { libc::recv(fd.as_raw_fd(), std::ptr::null_mut(), len, libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// An epoll instance that reports which of many descriptors can be read.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    /// Maximum number of descriptors that one wait reports.
    pub(crate) const MOST: usize = 64;

    pub(crate) fn new() -> io::Result<Poller> {
        // SAFETY: epoll_create1 takes no pointers.
        let raw = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Poller(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    /// Watches a descriptor, identified by the caller's number `name`, until it is closed.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, name: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name as u64 };
        // SAFETY: the pointer is to `event`.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })
            .map(drop)
    }

    /// Waits for at most `longest` until a descriptor is readable or closed by its peer; fills `names` with those that
    /// are.
    pub(crate) fn wait(&self, longest: Duration, names: &mut Vec<usize>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; Self::MOST];
        let millis = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer and count describe `events`.
        let found = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), Self::MOST as i32, millis) };
        names.clear();
        match check(found) {
            Ok(found) => names.extend(events[..found as usize].iter().map(|event| event.u64 as usize)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Returns the number of nanoseconds for which the calling thread has run.
pub(crate) fn thread_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to `time`; the clock exists for every thread.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn enter_net_raw(fd: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: setns takes no pointers.
    check(unsafe { libc::setns(fd, kind) }).map(drop)
}

static SIGNAL_SEEN: AtomicBool = AtomicBool::new(false);

pub(crate) fn signal_seen() -> bool {
    SIGNAL_SEEN.load(Ordering::Relaxed)
}

/// Leaders of the running process groups. The kernel's parent-death signal is lost when a child changes its user, so
/// the end without clean-up has to reach the children too.
static GROUPS: [AtomicU32; 512] = [const { AtomicU32::new(0) }; 512];

pub(crate) fn register_group(child: u32) {
    // A full table leaves the child to the parent-death signal alone.
    let _ = GROUPS.iter().any(|slot| slot.compare_exchange(0, child, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// Removes a child from [`GROUPS`]; to be called before the child is collected.
pub(crate) fn forget_group(child: u32) {
    let _ = GROUPS.iter().any(|slot| slot.compare_exchange(child, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

extern "C" fn note_signal(_: libc::c_int) {
    if SIGNAL_SEEN.swap(true, Ordering::Relaxed) {
        // kill(2) is async-signal-safe.
        GROUPS.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|child| *child != 0).for_each(kill_group);
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(130) };
    }
}

pub(crate) fn catch_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: the call fills `action`, and sets none.
        check(unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) })?;
        if signal == libc::SIGHUP && action.sa_sigaction == libc::SIG_IGN {
            // nohup(1) asks that a terminal that closes ends nothing.
            continue;
        }
        // SAFETY: as above.
        action = unsafe { mem::zeroed() };
        let handler: extern "C" fn(libc::c_int) = note_signal;
        action.sa_sigaction = handler as libc::sighandler_t;
        // SAFETY: `action` is initialised and the handler only touches an atomic and calls _exit.
        check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

/// A raw Ethernet socket on one device of the calling thread's network namespace. Does not see what it sends itself.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    pub(crate) fn open(device: &str) -> io::Result<Self> {
        let index = index_of(device)?;
        let socket = PacketSocket { fd: packet_socket(libc::SOCK_NONBLOCK)? };
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        // The forced size needs CAP_NET_ADMIN over the machine; without it the largest permitted size has to do.
        let bytes: libc::c_int = 32 << 20;
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)?;
        }
        bind_to(socket.fd.as_fd(), libc::ETH_P_ALL as u16, index)?;
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut member: libc::packet_mreq = unsafe { mem::zeroed() };
        member.mr_ifindex = index;
        member.mr_type = libc::PACKET_MR_PROMISC as libc::c_ushort;
        socket.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
        Ok(socket)
    }

    /// Opens a socket that counts frames longer than `bytes` on a device, including sent ones; no frame is received
    /// from it.
    pub(crate) fn count_longer_than(device: &str, bytes: u32) -> io::Result<Self> {
        let socket = PacketSocket::open(device)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &0)?;
        let code = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // The length; one byte of what is longer, nothing of what is not.
        let mut filter = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 0, 1, bytes),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, 1),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        socket.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        socket.counts();
        Ok(socket)
    }

    /// Receives the next frame into `buffer` and returns its length, or `None` if none waits. A longer frame is cut.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the pointer and length describe `buffer`.
        let got = unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match usize::try_from(got) {
            Ok(len) => Ok(Some(len)),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
                error => Err(error),
            },
        }
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer and length describe `frame`.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the number of frames lost for lack of room in the socket's buffer since the last call.
    pub(crate) fn overruns(&self) -> u64 {
        u64::from(self.counts().tp_drops)
    }

    /// Returns the number of frames that passed the filter since the last call.
    pub(crate) fn passed(&self) -> u64 {
        u64::from(self.counts().tp_packets)
    }

    fn counts(&self) -> libc::tpacket_stats {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = mem::size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the pointers describe `stats` and `len`.
        unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        stats
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and length describe `value`; the callers pass the type that the option takes.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, (value as *const T).cast(), len) }).map(drop)
    }
}

/// Opens a raw packet socket that receives nothing before it is bound: protocol 0, so that frames of other devices
/// cannot slip in.
fn packet_socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: socket takes no pointers.
    let raw = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Returns the index of a device of the calling thread's network namespace.
fn index_of(device: &str) -> io::Result<libc::c_int> {
    let name = CString::new(device)?;
    // SAFETY: the string is NUL-terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match libc::c_int::try_from(index) {
        Ok(index @ 1..) => Ok(index),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds a packet socket to a device; with protocol 0 it only sends.
fn bind_to(fd: BorrowedFd<'_>, protocol: u16, index: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// A socket that sends Ethernet frames on one device of the calling thread's network namespace, many per call and past
/// the queue of the device.
#[derive(Debug)]
pub(crate) struct FrameSender {
    fd: OwnedFd,
}

impl FrameSender {
    /// Maximum number of frames that one call sends.
    pub(crate) const MOST: usize = 32;

    pub(crate) fn open(device: &str) -> io::Result<Self> {
        let index = index_of(device)?;
        let fd = packet_socket(0)?;
        set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        // Frames that wait at the other end of a link never fill it, so that no call waits for room.
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 1 << 29)?;
        bind_to(fd.as_fd(), 0, index)?;
        Ok(FrameSender { fd })
    }

    /// Sends at most [`FrameSender::MOST`] frames; returns how many the device has taken before it refused one. An
    /// error is that of the first frame.
    pub(crate) fn send(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        // SAFETY: all-zero is a valid value of these plain structures.
        let mut pieces: [libc::iovec; FrameSender::MOST] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; FrameSender::MOST] = unsafe { mem::zeroed() };
        let count = frames.len().min(FrameSender::MOST);
        for ((frame, piece), message) in frames.iter().zip(&mut pieces).zip(&mut messages) {
            piece.iov_base = frame.as_ptr().cast_mut().cast();
            piece.iov_len = frame.len();
            message.msg_hdr.msg_iov = &raw mut *piece;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` messages point to pieces, and these to frames, that outlive the call; the kernel
        // reads the frames and writes only into `messages`.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count as libc::c_uint, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Waits until one of the sockets has a frame or the time is up.
pub(crate) fn wait_for_frames(sockets: [&PacketSocket; 2], longest: Duration) -> io::Result<()> {
    let mut polled = sockets.map(|socket| libc::pollfd { fd: socket.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // One more, because poll counts whole milliseconds and a timer must not spin on the last part of one.
    let millis = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX - 1) + 1;
    // SAFETY: the pointer and count describe `polled`.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), 2, millis) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
