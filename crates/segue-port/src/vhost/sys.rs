//! System calls of vhost-user: messages with descriptors, event counters, epoll and a timer; and the handlers of SIGBUS
//! and of [`INTERRUPT`].
#![allow(unsafe_code, reason = "system calls that the standard library does not have, and a signal handler")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use vm_memory::VolatileSlice;

use super::reasons::Stop;
use crate::sys::check;

/// Largest number of descriptors of one message: the number of regions in a memory table.
pub(super) const MOST_FDS: usize = 8;

/// Space for the descriptors of a message, aligned for a `cmsghdr`, with room for one more entry than allowed.
type Room = [u64; 8];
const _: () = assert!(size_of::<Room>() >= size_of::<libc::cmsghdr>() + MOST_FDS * size_of::<c_int>());

/// Receives up to `bytes.len()` bytes without waiting, and appends the descriptors received with them, closed on exec,
/// to `fds`. Returns 0 at the end of the connection.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for more descriptors than a message may have; those that came are closed.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    // SAFETY: msghdr is plain old data, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut place, 1);
    (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to outlive the call, and the lengths are theirs.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let before = fds.len();
    // SAFETY: the kernel has filled as much of the room as the header says, with whole control messages, and CMSG_*
    // stay inside of that. The data of SCM_RIGHTS is descriptors, each of them new in this process and owned by nothing
    // else, and each is read once.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(at).cast::<c_int>();
                for n in 0..data / size_of::<c_int>() {
                    fds.push(OwnedFd::from_raw_fd(first.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MOST_FDS {
        fds.truncate(before);
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(len)
}

/// Sends bytes with descriptors, at most [`MOST_FDS`], without waiting. Returns the number of bytes that were taken;
/// the descriptors go with the first of them.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    // SAFETY: msghdr is plain old data, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut place, 1);
    let fds = &fds[..fds.len().min(MOST_FDS)];
    if !fds.is_empty() {
        let len = size_of_val(fds) as libc::c_uint;
        header.msg_control = room.as_mut_ptr().cast();
        // SAFETY: the room holds MOST_FDS descriptors after a header (asserted above), which is what CMSG_SPACE and
        // CMSG_LEN are asked for, and `header` points to it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(len) as _;
            let at = libc::CMSG_FIRSTHDR(&raw const header);
            ((*at).cmsg_level, (*at).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*at).cmsg_len = libc::CMSG_LEN(len) as _;
            for (n, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(at).cast::<c_int>().add(n).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message and all that it points to outlive the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Requests the cache lines of a range of a guest's memory, which nothing is read from or written to. Does nothing on
/// processors without a stable intrinsic for it.
#[inline]
pub(super) fn prefetch(slice: &VolatileSlice<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let guard = slice.ptr_guard();
        let first = guard.as_ptr();
        for at in (0..slice.len()).step_by(LINE) {
            // SAFETY: SSE, which every x86-64 processor has. The pointer is in the slice, and a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slice;
}

/// Removes the pages of a range of a guest's memory from the tables of this process, whose mapping stays. Does nothing
/// where the kernel refuses, as within huge pages: there are few of those.
pub(super) fn drop_pages(slice: &VolatileSlice<'_>) {
    let guard = slice.ptr_guard_mut();
    // SAFETY: the range is mapped as long as the slice. The file keeps its content, zeros that replaced a lost file are
    // zeros again, and every access to a guest's memory holds for any content.
    unsafe { libc::madvise(guard.as_ptr().cast(), slice.len(), libc::MADV_DONTNEED) };
}

/// A file system whose files are in memory: neither an access nor a close waits for another process or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryFs {
    /// tmpfs, which memfd_create(2) and /dev/shm have too.
    Tmpfs,
    /// hugetlbfs: files of huge pages.
    Hugetlbfs,
}

/// Returns the file system of a file, if its files are in memory.
pub(super) fn memory_fs(fd: BorrowedFd<'_>) -> io::Result<Option<MemoryFs>> {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    // SAFETY: statfs is plain old data, for which all zeros is a value.
    let mut found: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut found) })?;
    Ok(match found.f_type as u32 {
        TMPFS_MAGIC => Some(MemoryFs::Tmpfs),
        HUGETLBFS_MAGIC => Some(MemoryFs::Hugetlbfs),
        _ => None,
    })
}

/// Adds 1 to an event counter (eventfd(2)), which wakes its reader. A counter that is full wakes its reader anyway, and
/// is left as it is: its owner may have made it block. A descriptor of another kind changes nothing here.
///
/// # Errors
/// [`Stop::CallBlocked`] for a counter that was filled after the look at it, as [`add`].
pub(super) fn signal(fd: BorrowedFd<'_>) -> Result<(), Stop> {
    loop {
        let mut room = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure of one descriptor and the time outlive the call, and the signal mask stays as it is.
        let ready = unsafe { libc::ppoll(&raw mut room, 1, &raw const now, ptr::null()) };
        if ready == 1 && room.revents & libc::POLLOUT != 0 {
            return add(fd);
        }
        // Without this a call would be lost by a signal.
        if ready >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Ok(());
        }
    }
}

/// Adds 1 to an event counter. Waits where its owner has filled it and made it block, until it is read or
/// [`INTERRUPT`] comes.
///
/// # Errors
/// [`Stop::CallBlocked`] where a signal ended the wait: the write to a counter with room returns before any.
fn add(fd: BorrowedFd<'_>) -> Result<(), Stop> {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the kernel reads the 8 bytes, which outlive the call.
    let written = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    let has_waited = written < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
    if has_waited { Err(Stop::CallBlocked) } else { Ok(()) }
}

/// Returns the processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Signal by which a supervisor ends the wait of a packet loop for a full counter of calls. The first port of a guest
/// installs a handler that does nothing else; a process without such a port ignores the signal.
pub const INTERRUPT: i32 = libc::SIGURG;

/// An epoll set of descriptors that wake a waiting process. Each event is reported once (`EPOLLET`): an event counter
/// that another process owns too is never read, so that its owner cannot make this process wait.
#[derive(Debug)]
pub(super) struct Events(OwnedFd);

impl Events {
    /// Creates a set without descriptors.
    pub(super) fn new() -> io::Result<Events> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call above made the descriptor and nothing else owns it.
        Ok(Events(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor; an event that is pending already counts.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_with(fd, libc::EPOLLIN | libc::EPOLLET)
    }

    /// Adds a descriptor that is reported as long as it is readable, and never taken.
    pub(super) fn add_level(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_with(fd, libc::EPOLLIN)
    }

    fn add_with(&self, fd: BorrowedFd<'_>, events: c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        // SAFETY: the kernel reads the event, which outlives the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })
            .map(drop)
    }

    /// Removes a descriptor from the set. One that other processes hold too stays in the set when it is only closed.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: the call takes no event.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), ptr::null_mut()) };
    }

    /// Takes the events that have occurred; returns whether there were any. Never waits.
    pub(super) fn take(&self) -> bool {
        const MOST: usize = 8;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the array has room for MOST events, and the signal mask stays as it is.
        unsafe { libc::epoll_pwait(self.0.as_raw_fd(), events.as_mut_ptr(), MOST as c_int, 0, ptr::null()) > 0 }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer as a descriptor (timerfd_create(2)), which becomes readable once.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    /// Returns a timer that is not set.
    pub(super) fn new() -> io::Result<Timer> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })?;
        // SAFETY: the call above made the descriptor and nothing else owns it.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets the timer, or stops it with 0.
    pub(super) fn set(&self, after: Duration) {
        let value = libc::timespec {
            tv_sec: after.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: libc::c_long::from(after.subsec_nanos() as i32),
        };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: the kernel reads the times, which outlive the call, and writes none back.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const spec, ptr::null_mut()) };
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Largest number of regions of all ports together whose faults are caught: 64 for each of the 128 ports that a bridge
/// may have.
pub(super) const MOST_GUARDS: usize = 128 * 64;
/// Value of [`Watched::start`] for an entry that is reserved but not filled yet: no mapping starts there.
const TAKEN: usize = 1;

/// A mapping whose faults (SIGBUS) are caught.
struct Watched {
    /// Address of the first byte; 0 for a free entry.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Whether a fault occurred in the mapping.
    is_lost: AtomicBool,
}

static WATCHED: [Watched; MOST_GUARDS] =
    [const { Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), is_lost: AtomicBool::new(false) } };
        MOST_GUARDS];
/// Number of entries ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A guard against faults (SIGBUS) in a mapping of a file that another process may shorten: an access past the file's
/// end replaces the whole mapping by zeros, and [`Guard::is_lost`] is true from then on. To be dropped before the
/// mapping.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes of a mapping from `start` on. `None` where too many are guarded already.
    pub(super) fn new(start: *mut u8, len: usize) -> Option<Guard> {
        let place = WATCHED.iter().position(|watched| {
            watched.start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        USED.fetch_max(place + 1, Ordering::AcqRel);
        let watched = &WATCHED[place];
        watched.len.store(len, Ordering::Relaxed);
        watched.is_lost.store(false, Ordering::Relaxed);
        watched.start.store(start as usize, Ordering::Release);
        Some(Guard(place))
    }

    /// Returns whether a part of the file was missing when it was accessed.
    pub(super) fn is_lost(&self) -> bool {
        WATCHED[self.0].is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        WATCHED[self.0].start.store(0, Ordering::Release);
    }
}

/// SIGBUS action from before [`catch_faults`].
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the signal handlers of SIGBUS and [`INTERRUPT`], once per process. Faults outside of guarded mappings are
/// treated as before, for which a process that had no handler makes no further system call.
///
/// # Errors
/// Where the system call is refused: it has to come before a sandbox.
pub(super) fn catch_faults() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let install = || {
        // SAFETY: sigaction is plain old data, for which all zeros is a value.
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (mem::zeroed(), mem::zeroed()) };
        new.sa_sigaction = on_fault as *const () as usize;
        // On the stack that Rust's threads have for signals.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures outlive the calls; the handler has the form of SA_SIGINFO.
        unsafe {
            check(libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut old))?;
            let _ = BEFORE.set(old);
            check(libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()))?;
            // Without SA_RESTART: a system call that waits returns.
            (new.sa_sigaction, new.sa_flags) = (on_interrupt as *const () as usize, libc::SA_ONSTACK);
            check(libc::sigaction(INTERRUPT, &raw const new, ptr::null_mut()))?;
        }
        Ok::<(), io::Error>(())
    };
    let done = DONE.get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)));
    done.map_err(io::Error::from_raw_os_error)
}

/// Handles [`INTERRUPT`], whose only effect is that the system call returns.
extern "C" fn on_interrupt(_number: c_int) {}

/// Replaces a guarded mapping in which a fault occurred. Uses nothing but atomics and system calls (signal-safety(7)).
extern "C" fn on_fault(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a filled structure.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    for watched in &WATCHED[..USED.load(Ordering::Acquire)] {
        let start = watched.start.load(Ordering::Acquire);
        let len = watched.len.load(Ordering::Relaxed);
        if start <= TAKEN || address < start || address - start >= len {
            continue;
        }
        watched.is_lost.store(true, Ordering::Relaxed);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is that of a mapping that its guard outlives; every access to it is volatile or atomic and
        // holds for any content, and a later unmap removes what replaces it.
        let mapped = unsafe { libc::mmap(start as *mut c_void, len, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // A fault outside the mappings: it occurs again at the return, under the earlier treatment. A sandbox may refuse to
    // set an action by then; a fault whose signal is blocked ends the process as the default action does.
    let occurs_again = matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR);
    // SAFETY: the structures were filled by the kernel, which takes the mask of signals from the context at the return;
    // sigaddset changes the one bit of it, and abort is signal-safe.
    unsafe {
        let is_done = match BEFORE.get() {
            // A signal that a process has sent, or a notice about memory elsewhere, does not occur again.
            Some(before) if before.sa_sigaction == libc::SIG_DFL && occurs_again => {
                let context = context.cast::<libc::ucontext_t>();
                libc::sigaddset(&raw mut (*context).uc_sigmask, number) == 0
            }
            Some(before) if before.sa_sigaction != libc::SIG_DFL => {
                libc::sigaction(number, before, ptr::null_mut()) == 0
            }
            _ => false,
        };
        if !is_done {
            libc::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::process::ExitStatusExt;
    use std::os::unix::thread::JoinHandleExt;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Environment variable of the process in which a test fails on purpose.
    const FAULTY: &str = "SEGUE_TEST_FAULTY";
    /// Environment variable of a process that runs one test only.
    const ALONE: &str = "SEGUE_TEST_ALONE";

    /// Refuses sigaction(2) to this thread, as the sandbox of a process that moves packets does.
    fn refuse_sigaction() {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // The number of the call is the first field of seccomp_data.
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_rt_sigaction as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: plain numbers, and a program that the kernel copies and that outlives the call.
        unsafe {
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).unwrap();
            check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)).unwrap();
        }
    }

    /// Reads memory that is not guarded and that its file does not have, in a process without an earlier handler.
    fn read_lost_memory() -> u8 {
        const LEN: usize = 4096;
        // SAFETY: the default action is none of this program's functions.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        catch_faults().unwrap();
        refuse_sigaction();
        // SAFETY: the name ends with a zero; the mapping is a new one, and a read of its first byte is volatile.
        unsafe {
            let fd = check(libc::memfd_create(c"faulty".as_ptr(), libc::MFD_CLOEXEC)).unwrap();
            let at = libc::mmap(ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().read_volatile()
        }
    }

    #[test]
    fn a_fault_outside_of_guarded_memory_ends_a_process_that_may_set_no_action_of_a_signal() {
        if !Path::new("/proc/sys/kernel/seccomp").exists() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        if env::var_os(FAULTY).is_some() {
            panic!("it read {}", read_lost_memory());
        }
        let test =
            "vhost::sys::tests::a_fault_outside_of_guarded_memory_ends_a_process_that_may_set_no_action_of_a_signal";
        let status = segue_lab::test_again(test, FAULTY).unwrap();
        // By an abort it would be another signal.
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    #[test]
    fn the_regions_of_all_ports_that_a_bridge_may_have_are_guarded() {
        // It takes all that a process has.
        if env::var_os(ALONE).is_none() {
            let test = "vhost::sys::tests::the_regions_of_all_ports_that_a_bridge_may_have_are_guarded";
            let status = segue_lab::test_again(test, ALONE).unwrap();
            assert!(status.success(), "{status}");
            return;
        }
        // No access is made, or fails, at these addresses.
        let guard = |n| Guard::new(ptr::without_provenance_mut(usize::MAX - n), 1);
        let all: Vec<_> = (1..=128 * 64).map(guard).collect();
        assert!(all.iter().all(|guard| guard.as_ref().is_some_and(|guard| !guard.is_lost())));
        assert!(guard(0).is_none());
    }

    /// Miri judges this test: a pointer beyond the memory is undefined behaviour, but a processor ignores it.
    #[test]
    fn a_prefetch_of_guest_memory_has_no_pointer_beyond_it() {
        for len in [0, 1, 63, 64, 65, 257] {
            let mut bytes = vec![0_u8; len];
            prefetch(&VolatileSlice::from(&mut bytes[..]));
        }
    }

    #[test]
    fn the_wait_for_a_counter_that_is_full_ends_by_the_signal_of_a_supervisor() {
        catch_faults().unwrap();
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).unwrap();
        // SAFETY: the call above made the descriptor and nothing else owns it.
        let counter = unsafe { OwnedFd::from_raw_fd(fd) };
        assert_eq!(add(counter.as_fd()), Ok(()), "there is room");
        let rest = (u64::MAX - 2).to_ne_bytes();
        // SAFETY: the kernel reads the 8 bytes, which outlive the call.
        assert_eq!(unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) }, 8);
        assert_eq!(signal(counter.as_fd()), Ok(()), "one that is seen to be full is left as it is");
        let (done, over) = channel();
        let waiter = thread::spawn(move || done.send(add(counter.as_fd())));
        let begin = Instant::now();
        let ended = loop {
            // SAFETY: the thread is not joined yet, so that it has this name.
            unsafe { libc::pthread_kill(waiter.as_pthread_t(), INTERRUPT) };
            match over.recv_timeout(Duration::from_millis(10)) {
                Ok(ended) => break ended,
                Err(_) => assert!(begin.elapsed() < Duration::from_secs(60), "the wait goes on"),
            }
        };
        assert_eq!(ended, Err(Stop::CallBlocked));
        waiter.join().unwrap().unwrap();
    }
}
