//! The seccomp filter: the system calls that remain allowed. A refused call returns EPERM, so that a library that tries
//! a new one gets an error and is not killed.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// System calls of every process, with any arguments.
const EVERYWHERE: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_ppoll,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The other filter answers clone3 with ENOSYS, so that the C library takes clone, whose flags the filter can
    // check.
    libc::SYS_clone3,
];

/// Additional system calls of a process that moves packets.
const ALLOWED: &[libc::c_long] = &[
    // Packets and the control socket.
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvmmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmmsg,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    // connect on an open socket, to look up a route; no socket can be made.
    libc::SYS_connect,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    // Memory and threads.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_geteuid,
    // Removal of the control socket by its own process; Landlock limits the files.
    libc::SYS_statx,
    libc::SYS_unlinkat,
];

/// System calls that only the tables of older architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] =
    &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_unlink, libc::SYS_time, libc::SYS_newfstatat];
/// The call behind `fstat` of the C library where the architecture has no older one.
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[libc::c_long] = &[libc::SYS_newfstatat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Additional system calls of a process that opens devices for another one; Landlock limits the devices.
const OPENING: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
];
#[cfg(target_arch = "x86_64")]
const OPENING_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_readlink, libc::SYS_newfstatat];
#[cfg(target_arch = "aarch64")]
const OPENING_HERE: &[libc::c_long] = &[libc::SYS_newfstatat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OPENING_HERE: &[libc::c_long] = &[];

/// Additional system calls of a process that waits for its child and removes a socket; Landlock limits the files.
const WAITING: &[libc::c_long] =
    &[libc::SYS_wait4, libc::SYS_kill, libc::SYS_pread64, libc::SYS_statx, libc::SYS_unlinkat];
#[cfg(target_arch = "x86_64")]
const WAITING_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_unlink, libc::SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const WAITING_HERE: &[libc::c_long] = &[libc::SYS_newfstatat];

/// `FIONBIO`, and the ioctls of a TUN or TAP device while it runs.
#[allow(clippy::unnecessary_cast, reason = "the type of these numbers differs between C libraries")]
const IOCTLS: &[u64] = &[
    libc::FIONBIO as u64,
    libc::TCGETS as u64,
    libc::SIOCGIFHWADDR as u64,
    libc::TUNSETOFFLOAD as u64,
    libc::TUNGETIFF as u64,
    libc::TUNSETCARRIER as u64,
];

/// Additional system calls of a process that moves packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// The ioctls of its devices, besides those of TUN.
    pub ioctls: &'a [u64],
    /// Whether it may look up, update and delete entries of BPF maps.
    pub maps: bool,
}

/// The purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The process moves packets.
    Packets,
    /// The process opens devices for another one.
    Opening,
    /// The process waits for its child.
    Waiting,
}

/// Filters this thread and those that it starts.
pub(super) fn apply(purpose: Purpose, allowed: &Allowed<'_>) -> Result<(), String> {
    let programs = programs(purpose, allowed).map_err(|error| error.to_string())?;
    for program in &programs {
        apply_filter(program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compiles both filters, in the order of their installation. The one that answers clone3 comes first, since the other
/// one forbids the installation of filters.
fn programs(purpose: Purpose, more: &Allowed<'_>) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let old_clone = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        arch,
    )?;
    let calls = match purpose {
        Purpose::Packets => [EVERYWHERE, ALLOWED, ALLOWED_HERE],
        Purpose::Opening => [EVERYWHERE, OPENING, OPENING_HERE],
        Purpose::Waiting => [EVERYWHERE, WAITING, WAITING_HERE],
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls.into_iter().flatten().map(|&call| (call, Vec::new())).collect();
    let ioctls: Result<Vec<SeccompRule>, _> =
        IOCTLS.iter().chain(more.ioctls).map(|&number| when(1, SeccompCmpOp::Eq, number)).collect();
    rules.insert(libc::SYS_ioctl, ioctls?);
    if more.maps {
        let command = |command: &i32| when(0, SeccompCmpOp::Eq, command.unsigned_abs().into());
        let commands: Result<Vec<SeccompRule>, _> = segue_fastpath::MAP_COMMANDS.iter().map(command).collect();
        rules.insert(libc::SYS_bpf, commands?);
    }
    if purpose == Purpose::Packets {
        // Threads, but no processes.
        let thread = libc::CLONE_THREAD as u64;
        rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
        rules.insert(libc::SYS_prctl, vec![when(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)?]);
    }
    let allowed = SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, arch)?;
    Ok([old_clone.try_into()?, allowed.try_into()?])
}

fn when(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?])
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use segue_host::sys;

    use super::*;

    #[test]
    fn ioctls_of_usb_devices_are_allowed_only_to_processes_that_were_granted_them() {
        use segue_lan78xx::usb::usbfs;
        let compares = |program: &BpfProgram, number: u64| program.iter().any(|step| u64::from(step.k) == number);
        for (purpose, granted) in [
            (Purpose::Packets, &[][..]),
            (Purpose::Packets, &usbfs::IOCTLS[..]),
            (Purpose::Opening, &usbfs::OPENING_IOCTLS[..]),
        ] {
            let [_, program] = programs(purpose, &Allowed { ioctls: granted, maps: false }).unwrap();
            for number in usbfs::IOCTLS.iter().chain(&usbfs::OPENING_IOCTLS) {
                assert_eq!(compares(&program, *number), granted.contains(number), "{purpose:?} {number:#x}");
            }
        }
    }

    #[test]
    fn a_process_that_opens_devices_opens_files_and_connects_but_starts_nothing_and_listens_nowhere() {
        if !sys::has_seccomp_filters() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let outcome = std::thread::spawn(move || {
            sys::no_new_privs().unwrap();
            apply(Purpose::Opening, &Allowed::default()).unwrap();
            let text = std::fs::read_to_string("/proc/self/stat").is_ok();
            let listed = std::fs::read_dir("/sys/bus").is_ok_and(|folder| folder.count() > 0);
            let connected = std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(5)).is_ok();
            let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap_err().kind();
            let thread = std::thread::Builder::new().spawn(|| ()).is_err();
            let written = std::fs::remove_file("/nonexistent").unwrap_err().kind();
            (text, listed, connected, listens, thread, written)
        })
        .join()
        .unwrap();
        let no = ErrorKind::PermissionDenied;
        assert_eq!(outcome, (true, true, true, no, true, no));
    }

    #[test]
    fn threads_and_open_sockets_still_work_but_files_programs_and_new_sockets_do_not() {
        if !sys::has_seccomp_filters() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        let (mut left, mut right) = UnixStream::pair().unwrap();
        // A filter applies to the calling thread and those that it starts.
        let outcome = std::thread::spawn(move || {
            sys::no_new_privs().unwrap();
            apply(Purpose::Packets, &Allowed::default()).unwrap();
            left.set_nonblocking(true).unwrap();
            left.write_all(b"x").unwrap();
            let answer = std::thread::Builder::new().name("inner".into()).spawn(|| 6 * 7).unwrap().join().unwrap();
            let open = std::fs::File::open("/dev/null").unwrap_err().kind();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err().kind();
            let program = std::process::Command::new("/bin/true").spawn().is_err();
            (answer, open, socket, program)
        })
        .join()
        .unwrap();
        assert_eq!(outcome, (42, ErrorKind::PermissionDenied, ErrorKind::PermissionDenied, true));
        let mut byte = [0];
        right.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
