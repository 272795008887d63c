//! System calls and the counting allocator of the tests.
#![allow(unsafe_code, reason = "system calls that the standard library does not have, and an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::sys::{check, socket};

/// Moves the calling thread into a network namespace of its own.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: no pointers; only this thread's view of the network changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Makes every ioctl `request` of the calling thread fail with EINVAL if its argument has one of `bits`, as on a kernel
/// that does not know them.
pub(crate) fn refuse_ioctl(request: u32, bits: u32) -> io::Result<()> {
    // The fields of seccomp_data: the number of the call, then, from the sixteenth byte on, its arguments.
    let argument = |at: u32| 16 + 8 * at + if cfg!(target_endian = "big") { 4 } else { 0 };
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |from: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, from);
    let is = |what: u32, jf: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, jf, what);
    let give = |what: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let mut steps = [
        load(0),
        is(libc::SYS_ioctl as u32, 5),
        load(argument(1)),
        is(request, 3),
        load(argument(2)),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, bits),
        give(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // The kernel reads arguments of this width.
    let [yes, no]: [libc::c_ulong; 2] = [1, 0];
    // SAFETY: no pointers; only this thread and its children can no longer gain privileges.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) })?;
    // SAFETY: the kernel copies the program, which outlives the call.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }).map(drop)
}

/// Creates an unbound TCP socket of the family of `address`, in this thread's network namespace.
pub(crate) fn tcp_socket(address: IpAddr) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_STREAM)
}

/// Waits until an error is pending on a socket; `false` if none came in time.
pub(crate) fn wait_for_error(socket: BorrowedFd, longest: Duration) -> io::Result<bool> {
    Ok(wait_for(socket, 0, longest)? & libc::POLLERR != 0)
}

/// Waits until a descriptor is readable; `false` if that took too long.
pub(crate) fn wait_for_input(fd: BorrowedFd, longest: Duration) -> io::Result<bool> {
    Ok(wait_for(fd, libc::POLLIN, longest)? & libc::POLLIN != 0)
}

/// Waits for events of a descriptor, and returns them; 0 if none came in time.
fn wait_for(fd: BorrowedFd, events: libc::c_short, longest: Duration) -> io::Result<libc::c_short> {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: the pointer is to one pollfd of this stack frame.
    check(unsafe { libc::poll(&raw mut polled, 1, longest.as_millis() as libc::c_int) })?;
    Ok(polled.revents)
}

/// Creates an epoll descriptor that reports, edge-triggered, when `fd` becomes writable.
pub(crate) fn watch_writable(fd: BorrowedFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the call above made the descriptor and nothing else owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: (libc::EPOLLOUT | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: the kernel reads the event, which outlives the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
    Ok(epoll)
}

/// Waits for the next event of an epoll descriptor; `false` if none came in time.
pub(crate) fn next_edge(epoll: BorrowedFd, longest: Duration) -> io::Result<bool> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let longest = longest.as_millis() as libc::c_int;
    // SAFETY: the kernel writes at most the one event, which outlives the call.
    Ok(check(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, longest) })? > 0)
}

/// Sets the number of bytes that a TUN or TAP device takes while they are under way.
pub(crate) fn set_send_buffer(tun: BorrowedFd, len: libc::c_int) -> io::Result<()> {
    // SAFETY: TUNSETSNDBUF reads an int, which outlives the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETSNDBUF as _, &raw const len) }).map(drop)
}

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches a thread-local number that
// needs neither allocation nor destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract of `realloc`, and `alloc` is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the number of allocations that this thread has made.
pub(crate) fn allocations() -> u64 {
    COUNT.get()
}
