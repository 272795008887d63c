//! The seccomp filters: the system calls that remain allowed, some only with certain arguments. A refused call returns
//! EPERM: a library that tries a new one gets an error, which the caller counts as any other, and is not killed.
//!
//! A process that moves packets has two. The first one comes with the other limits, while there is one thread, and
//! still allows threads and the opening of ports that need no rights. The second one comes once all threads run, and
//! leaves what moving packets takes.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompFilter, SeccompRule, TargetArch, apply_filter,
    apply_filter_all_threads,
};
use segue_host::sandbox::filter::old_clone;
use segue_host::sandbox::{one_of, sends, sockets, when};

/// System calls of every process, with any arguments.
const EVERYWHERE: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Additional system calls of a process that moves packets. All of its threads, sockets and devices exist by then.
const PACKETS: &[libc::c_long] = &[
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    // Counters and settings of the kernel, in files that are open.
    libc::SYS_pread64,
    // On an open socket, to look up a route.
    libc::SYS_connect,
    // An adapter that was away has a new descriptor.
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
];
/// Additional system calls of a process that moves packets while it starts, [`PACKETS`] included.
const STARTING: &[libc::c_long] = &[
    libc::SYS_fstat,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_gettid,
    libc::SYS_getsockname,
    libc::SYS_lseek,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_geteuid,
    libc::SYS_setsockopt,
    libc::SYS_fcntl,
    // The other filter answers clone3 with ENOSYS, so that the C library takes clone, whose flags the filter can
    // check.
    libc::SYS_clone3,
    // Removal of the control socket where the start fails; Landlock limits the files.
    libc::SYS_statx,
    libc::SYS_unlinkat,
];
/// System calls that only the tables of older architectures have.
#[cfg(target_arch = "x86_64")]
const STARTING_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_unlink, libc::SYS_time, libc::SYS_newfstatat];
/// System call that `fstat` of the C library uses on architectures without an older one.
#[cfg(target_arch = "aarch64")]
const STARTING_HERE: &[libc::c_long] = &[libc::SYS_newfstatat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const STARTING_HERE: &[libc::c_long] = &[];

/// Additional system calls of a process that opens devices for another one.
const OPENING: &[libc::c_long] = &[
    libc::SYS_fstat,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_gettid,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
];
#[cfg(target_arch = "x86_64")]
const OPENING_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_newfstatat];
#[cfg(target_arch = "aarch64")]
const OPENING_HERE: &[libc::c_long] = &[libc::SYS_newfstatat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OPENING_HERE: &[libc::c_long] = &[];
/// System calls by which a process learns the name of a file that it has open, or where a link of a folder leads.
const LINKS: &[libc::c_long] = &[
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// Additional system calls of a process that waits for its child and removes a socket; Landlock limits the files.
const WAITING: &[libc::c_long] = &[
    libc::SYS_wait4,
    libc::SYS_kill,
    libc::SYS_pread64,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_fstat,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_gettid,
];
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
];

/// Socket options set while packets are forwarded, each with its level: whether the next datagrams may be fragmented, a
/// new receive ring, and those of a new connection of USB/IP.
const OPTIONS: &[(libc::c_int, libc::c_int)] = &[
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::SOL_PACKET, libc::PACKET_RX_RING),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
];

/// Commands of `fcntl` on an open descriptor: reading its flags, and duplication.
const DESCRIPTOR: &[libc::c_int] = &[libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD, libc::F_DUPFD_CLOEXEC];

/// Additional system calls of a process that moves packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Ioctls of the instance's devices, besides those of TUN.
    pub ioctls: &'a [u64],
    /// Whether it may look up, update and delete entries of BPF maps.
    pub maps: bool,
    /// Whether a process that moves packets may shut sockets down. One stays so, for a successor as well.
    pub shuts: bool,
    /// Whether a process that opens devices for another one opens and lists files.
    pub files: bool,
    /// Whether a process that opens devices for another one accepts connections on an open socket, and reads the types
    /// of files received over them.
    pub accepts: bool,
    /// Address families of the sockets that such a process may create and connect.
    pub families: &'a [libc::c_int],
}

/// Purpose of a filtered process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Start of the threads that will move packets.
    Starting,
    /// Moving packets.
    Packets,
    /// Opening devices for another process.
    Opening,
    /// Waiting for a child process.
    Waiting,
}

impl Purpose {
    /// Returns the system calls that are allowed with any arguments.
    fn calls(self) -> impl Iterator<Item = libc::c_long> {
        let lists: &[&[libc::c_long]] = match self {
            Purpose::Starting => &[EVERYWHERE, PACKETS, STARTING, STARTING_HERE],
            Purpose::Packets => &[EVERYWHERE, PACKETS],
            Purpose::Opening => &[EVERYWHERE, OPENING, OPENING_HERE],
            Purpose::Waiting => &[EVERYWHERE, WAITING, WAITING_HERE],
        };
        lists.iter().copied().flatten().copied()
    }
}

/// Filters this process: with [`Purpose::Packets`] all of its threads, otherwise the only one.
pub(super) fn apply(purpose: Purpose, allowed: &Allowed<'_>) -> Result<(), String> {
    let program = program(purpose, allowed).map_err(|error| error.to_string())?;
    if purpose == Purpose::Packets {
        return apply_filter_all_threads(&program).map_err(|error| error.to_string());
    }
    if purpose == Purpose::Starting {
        let old_clone = old_clone().map_err(|error| error.to_string())?;
        apply_filter(&old_clone).map_err(|error| error.to_string())?;
    }
    apply_filter(&program).map_err(|error| error.to_string())
}

/// Compiles the filter of a purpose.
fn program(purpose: Purpose, more: &Allowed<'_>) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let rules = rules(purpose, more)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, arch)?;
    filter.try_into()
}

/// Returns the allowed system calls with their permitted arguments; without a rule, any arguments are permitted.
fn rules(purpose: Purpose, more: &Allowed<'_>) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = purpose.calls().map(|call| (call, Vec::new())).collect();
    let ioctls = IOCTLS.iter().chain(more.ioctls);
    rules.insert(libc::SYS_ioctl, one_of(1, ioctls.copied())?);
    // A tunnel on the in-kernel path has the maps of its programs instead.
    if purpose == Purpose::Packets && !more.maps {
        rules.insert(libc::SYS_timerfd_settime, Vec::new());
    }
    if matches!(purpose, Purpose::Starting | Purpose::Packets) && more.shuts {
        rules.insert(libc::SYS_shutdown, Vec::new());
    }
    if purpose == Purpose::Opening && more.files {
        // Landlock limits the files.
        rules.extend([libc::SYS_openat, libc::SYS_getdents64].map(|call| (call, Vec::new())));
    }
    if purpose == Purpose::Opening && more.accepts {
        let calls = [libc::SYS_accept4, libc::SYS_socketpair, libc::SYS_fstatfs, libc::SYS_shutdown];
        rules.extend(calls.map(|call| (call, Vec::new())));
    }
    if purpose == Purpose::Opening && (more.files || more.accepts) {
        rules.extend(LINKS.iter().map(|&call| (call, Vec::new())));
    }
    if purpose == Purpose::Opening {
        rules.extend(sends()?.into_iter().filter(|(call, _)| *call != libc::SYS_sendmmsg));
    }
    if purpose == Purpose::Opening && !more.families.is_empty() {
        rules.extend([(libc::SYS_socket, sockets(more.families, false)?), (libc::SYS_connect, Vec::new())]);
    }
    if purpose == Purpose::Opening && more.families.contains(&libc::AF_UNIX) {
        // The name at which a front end listens.
        rules.insert(libc::SYS_getpeername, Vec::new());
    }
    if more.maps {
        let commands = segue_fastpath::MAP_COMMANDS.iter();
        rules.insert(libc::SYS_bpf, one_of(0, commands.map(|command| command.unsigned_abs().into()))?);
    }
    // No memory becomes executable.
    let is_data = || when(&[(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0)]);
    rules.insert(libc::SYS_mmap, vec![is_data()?]);
    rules.insert(libc::SYS_mprotect, vec![is_data()?]);
    // A process that aborts signals itself.
    rules.insert(libc::SYS_tgkill, one_of(0, [u64::from(std::process::id())])?);
    match purpose {
        Purpose::Starting => {
            // Threads, but no processes; their names, and the next filter.
            let thread = libc::CLONE_THREAD as u64;
            rules.insert(libc::SYS_clone, vec![when(&[(0, SeccompCmpOp::MaskedEq(thread), thread)])?]);
            let settings = [libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS];
            rules.insert(libc::SYS_prctl, one_of(0, settings.map(|setting| setting as u64))?);
            rules.insert(libc::SYS_seccomp, one_of(0, [libc::SECCOMP_SET_MODE_FILTER.into()])?);
        }
        Purpose::Packets | Purpose::Opening => {
            let options = OPTIONS
                .iter()
                .map(|&(level, name)| when(&[(1, SeccompCmpOp::Eq, level as u64), (2, SeccompCmpOp::Eq, name as u64)]));
            rules.insert(libc::SYS_setsockopt, options.collect::<Result<_, _>>()?);
            rules.insert(libc::SYS_fcntl, one_of(1, DESCRIPTOR.iter().map(|&command| command as u64))?);
        }
        Purpose::Waiting => {}
    }
    Ok(rules)
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
            let program = program(purpose, &Allowed { ioctls: granted, ..Allowed::default() }).unwrap();
            for number in usbfs::IOCTLS.iter().chain(&usbfs::OPENING_IOCTLS) {
                assert_eq!(compares(&program, *number), granted.contains(number), "{purpose:?} {number:#x}");
            }
        }
    }

    #[test]
    #[allow(clippy::unnecessary_cast, reason = "the type of this number differs between C libraries")]
    fn the_carrier_of_an_interface_is_set_by_adapters_alone() {
        let compares = |purpose: Purpose, ioctls: &[u64]| {
            let program = program(purpose, &Allowed { ioctls, ..Allowed::default() }).unwrap();
            program.iter().any(|step| u64::from(step.k) == libc::TUNSETCARRIER as u64)
        };
        for purpose in [Purpose::Starting, Purpose::Packets, Purpose::Opening, Purpose::Waiting] {
            assert!(!compares(purpose, &[]), "{purpose:?}");
        }
        let of_adapters = &crate::adapter::up::IOCTLS;
        // Of an adapter behind USB/IP, which has no other, and of one of this machine.
        for granted in [&of_adapters[..1], &of_adapters[..]] {
            assert!(compares(Purpose::Packets, granted), "{granted:x?}");
        }
    }

    #[test]
    fn only_a_process_that_has_connections_may_shut_sockets_down() {
        for purpose in [Purpose::Starting, Purpose::Packets] {
            for (maps, shuts) in [(false, false), (true, false), (false, true)] {
                let rules = rules(purpose, &Allowed { maps, shuts, ..Allowed::default() }).unwrap();
                assert_eq!(rules.contains_key(&libc::SYS_shutdown), shuts, "{purpose:?} {maps}");
            }
        }
    }

    #[test]
    fn a_process_that_moves_packets_has_at_most_forty_calls() {
        for maps in [false, true] {
            let ioctls = &segue_lan78xx::usb::usbfs::IOCTLS;
            let most = Allowed { ioctls, maps, shuts: true, files: true, accepts: true, families: &[] };
            let rules = rules(Purpose::Packets, &most).unwrap();
            assert!(rules.len() <= 40, "{}", rules.len());
            // Whatever it may still do with limits, it could do while it started.
            let before = super::rules(Purpose::Starting, &most).unwrap();
            assert!(rules.keys().all(|call| before.contains_key(call)));
        }
    }

    /// Tests the calls that a probe of a running process cannot try: they would suspend it, or make another one of it.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn no_process_is_allowed_to_fork_or_to_suspend_itself() {
        let most = Allowed {
            ioctls: &segue_lan78xx::usb::usbfs::IOCTLS,
            maps: true,
            shuts: true,
            files: true,
            accepts: true,
            families: &[libc::AF_INET],
        };
        for purpose in [Purpose::Starting, Purpose::Packets, Purpose::Opening, Purpose::Waiting] {
            let rules = rules(purpose, &most).unwrap();
            for call in [libc::SYS_fork, libc::SYS_vfork, libc::SYS_pause, libc::SYS_rt_sigsuspend] {
                assert!(!rules.contains_key(&call), "{purpose:?}: {call}");
            }
        }
    }

    #[test]
    fn a_process_that_opens_devices_opens_files_at_most_and_starts_nothing_and_listens_nowhere() {
        if !sys::has_seccomp_filters() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        // It opens files where its device is one.
        for files in [true, false] {
            let outcome = std::thread::spawn(move || {
                sys::no_new_privs().unwrap();
                apply(Purpose::Opening, &Allowed { files, families: &[libc::AF_INET], ..Allowed::default() }).unwrap();
                let text = std::fs::read_to_string("/proc/self/stat").is_ok();
                let listed = std::fs::read_dir("/sys/bus").is_ok_and(|folder| folder.count() > 0);
                let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap_err().kind();
                let thread = std::thread::Builder::new().spawn(|| ()).is_err();
                let written = std::fs::remove_file("/nonexistent").unwrap_err().kind();
                (text, listed, listens, thread, written)
            })
            .join()
            .unwrap();
            let no = ErrorKind::PermissionDenied;
            assert_eq!(outcome, (files, files, no, true, no));
        }
    }

    #[test]
    fn a_process_that_opens_devices_connects_only_sockets_of_the_families_that_it_was_granted() {
        if !sys::has_seccomp_filters() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for (families, connects, sends) in
            [(&[libc::AF_INET][..], true, false), (&[libc::AF_UNIX], false, true), (&[], false, false)]
        {
            let outcome = std::thread::spawn(move || {
                sys::no_new_privs().unwrap();
                apply(Purpose::Opening, &Allowed { families, ..Allowed::default() }).unwrap();
                let stream = std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(60));
                let local = UnixStream::connect("/nonexistent").unwrap_err().kind();
                (stream.is_ok(), local)
            });
            let local = if sends { ErrorKind::NotFound } else { ErrorKind::PermissionDenied };
            assert_eq!(outcome.join().unwrap(), (connects, local), "{families:?}");
        }
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
            apply(Purpose::Starting, &Allowed::default()).unwrap();
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
