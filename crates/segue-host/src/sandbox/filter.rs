//! The filter of system calls of a process that asks others and answers at open sockets: it starts no program, traces
//! no process, and mounts nothing. A refused call returns EPERM.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp, SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

use super::rules::{one_of, sends, sockets, when};

/// System calls of every process that asks others, with any arguments. Landlock limits the files.
const ASKING: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_pread64,
];
/// System calls that only the tables of older architectures have.
#[cfg(target_arch = "x86_64")]
const ASKING_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ASKING_HERE: &[libc::c_long] = &[];

/// System calls that replace a file, which is made beside it and renamed, or try a folder with another one.
const CHANGING: &[libc::c_long] = &[
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_renameat,
];

/// System calls that make folders, each with the place of its mode among the arguments.
const FOLDERS: &[(libc::c_long, u8)] = &[
    (libc::SYS_mkdirat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, 1),
];
/// System calls that open files or make them, each with the place of its flags, behind which is its mode.
const OPENING: &[(libc::c_long, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];
/// Flags of these calls without which they make nothing and the mode has no meaning: O_CREAT, and the bit that
/// O_TMPFILE has beyond O_DIRECTORY (fcntl.h).
const MAKES: u64 = libc::O_CREAT as u64 | 0o20_000_000;
/// The bits of a mode by which a program runs as another user, or a folder hands on its group (chmod(2)). Landlock does
/// not limit them.
const SET_USER: u64 = 0o7000;

/// System calls by which threads start and end.
const THREADS: &[libc::c_long] = &[
    // The other filter answers clone3 with ENOSYS, so that the C library takes clone, whose flags the filter can check.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
];

/// System calls of a resolver beyond these: it sends several queries at a time, from a port of its own.
const RESOLVING: &[libc::c_long] = &[libc::SYS_recvmmsg, libc::SYS_uname, libc::SYS_bind];

/// The tasks of a process beyond asking at sockets of its host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tasks<'a> {
    /// Address families of the sockets that it creates and connects.
    pub families: &'a [libc::c_int],
    /// Whether it accepts connections at sockets that are open.
    pub accepts: bool,
    /// Whether it replaces and removes files.
    pub changes: bool,
    /// The modes that it gives its files beyond its mask.
    pub modes: &'a [libc::mode_t],
    /// Whether it starts threads.
    pub threads: bool,
    /// Whether it asks resolvers for the addresses of names.
    pub resolves: bool,
}

/// Filters the system calls of this process, which must have one thread and no_new_privs, and of the threads that it
/// starts later.
///
/// # Errors
/// Where the kernel has no filters of system calls, or refuses.
pub fn apply(tasks: &Tasks<'_>) -> Result<(), String> {
    let text = |error: BackendError| error.to_string();
    if tasks.threads {
        apply_filter(&old_clone().map_err(text)?).map_err(|error| error.to_string())?;
    }
    apply_filter(&program(tasks).map_err(text)?).map_err(|error| error.to_string())
}

/// Compiles the filter that answers clone3 with ENOSYS.
///
/// # Errors
/// On an architecture without filters.
pub fn old_clone() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let answer = SeccompAction::Errno(libc::ENOSYS as u32);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, answer, arch)?.try_into()
}

/// Compiles the filter of a process with these tasks.
fn program(tasks: &Tasks<'_>) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules(tasks)?, refuse, SeccompAction::Allow, arch)?.try_into()
}

/// Returns the allowed system calls with their permitted arguments; without a rule, any arguments are permitted.
fn rules(tasks: &Tasks<'_>) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let lists = [
        (true, ASKING),
        (true, ASKING_HERE),
        (tasks.accepts, &[libc::SYS_accept4]),
        (tasks.changes, CHANGING),
        (tasks.threads, THREADS),
        (tasks.resolves, RESOLVING),
    ];
    let calls = lists.iter().filter(|(is_needed, _)| *is_needed).flat_map(|(_, calls)| calls.iter());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|&call| (call, Vec::new())).collect();
    if !tasks.families.is_empty() {
        rules.insert(libc::SYS_socket, sockets(tasks.families, tasks.resolves)?);
    }
    rules.extend(sends()?.into_iter().filter(|(call, _)| *call != libc::SYS_sendmmsg || tasks.resolves));
    let plain = |mode: u8| (mode, SeccompCmpOp::MaskedEq(SET_USER), 0);
    for &(call, flags) in OPENING {
        let makes_none = when(&[(flags, SeccompCmpOp::MaskedEq(MAKES), 0)])?;
        rules.insert(call, vec![makes_none, when(&[plain(flags + 1)])?]);
    }
    for &(call, mode) in FOLDERS.iter().filter(|_| tasks.changes) {
        rules.insert(call, vec![when(&[plain(mode)])?]);
    }
    if !tasks.modes.is_empty() {
        rules.insert(libc::SYS_fchmod, one_of(1, tasks.modes.iter().map(|&mode| mode.into()))?);
    }
    let controls = [libc::FIONBIO, libc::FIONREAD];
    #[allow(clippy::unnecessary_cast, reason = "the type of these numbers differs between C libraries")]
    rules.insert(libc::SYS_ioctl, one_of(1, controls.map(|number| number as u64))?);
    let commands = [libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD, libc::F_DUPFD_CLOEXEC];
    rules.insert(libc::SYS_fcntl, one_of(1, commands.map(|number| number as u64))?);
    // Options of connections, and those by which a resolver learns of errors.
    let options = [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ];
    let option =
        |(level, name): (i32, i32)| when(&[(1, SeccompCmpOp::Eq, level as u64), (2, SeccompCmpOp::Eq, name as u64)]);
    rules.insert(libc::SYS_setsockopt, options.map(option).into_iter().collect::<Result<_, _>>()?);
    // No memory becomes executable.
    let is_data = || when(&[(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0)]);
    rules.insert(libc::SYS_mmap, vec![is_data()?]);
    rules.insert(libc::SYS_mprotect, vec![is_data()?]);
    // A process that aborts signals itself, and asks by the signal 0 whether another one is there.
    rules.insert(libc::SYS_tgkill, one_of(0, [u64::from(std::process::id())])?);
    rules.insert(libc::SYS_kill, one_of(1, [0])?);
    if tasks.threads {
        // Threads, but no processes, and their names.
        let thread = libc::CLONE_THREAD as u64;
        rules.insert(libc::SYS_clone, vec![when(&[(0, SeccompCmpOp::MaskedEq(thread), thread)])?]);
        rules.insert(libc::SYS_prctl, one_of(0, [libc::PR_SET_NAME as u64])?);
    }
    Ok(rules)
}
