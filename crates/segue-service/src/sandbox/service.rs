//! The system calls forbidden to a service and all of its processes: those that change the machine beyond its
//! interfaces, or access other processes. Its instances start with all rights of root, and filters stay, so that this
//! list names what none of them ever needs.

use std::collections::BTreeMap;
use std::fs;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};
use segue_host::process::{Step, filter_calls};

/// Bit of the numbers of x86-64's calls for the ABI x32 (asm/unistd.h): names for the same calls, with 32-bit pointers.
const X32: u32 = 0x4000_0000;

/// Numbers that the crate of the C library does not have for all of them: of the first, x86-64 has one of its own; the
/// others are the same for every architecture (asm-generic/unistd.h).
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };
const PROCESS_MADVISE: libc::c_long = 440;
const QUOTACTL_FD: libc::c_long = 443;
const PROCESS_MRELEASE: libc::c_long = 448;
const OPEN_TREE_ATTR: libc::c_long = 467;

const NEVER: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    PROCESS_MADVISE,
    PROCESS_MRELEASE,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    libc::SYS_reboot,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_syslog,
    // File systems and disks.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    QUOTACTL_FD,
    OPEN_TREE_ATTR,
    libc::SYS_acct,
    // Clocks, names and keys.
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_settimeofday,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// Number of filters of a process to which an upgrade adds none. The kernel runs all of them for each call, also of the
/// processes that are started later, and has room for some hundred of this length, each of which stays.
const MOST_FILTERS: u32 = 64;

/// Denies the given system calls to this process and to all processes that it starts from now on. The process must have
/// one thread, and CAP_SYS_ADMIN or no_new_privs. After many upgrades (`is_upgrade`) it has enough filters: those of
/// the programs before this one.
///
/// # Errors
/// Where the kernel has no filters of system calls, or refuses.
pub fn refuse_calls(is_upgrade: bool) -> Result<(), String> {
    if is_upgrade && filters().is_some_and(|count| count >= MOST_FILTERS) {
        return Ok(());
    }
    let program = program().map_err(|error| error.to_string())?;
    let steps: Vec<Step> =
        program.iter().map(|step| Step { code: step.code, jt: step.jt, jf: step.jf, k: step.k }).collect();
    filter_calls(&steps).map_err(|error| error.to_string())
}

/// Returns the number of filters of this thread, which the kernel shows since Linux 5.9.
fn filters() -> Option<u32> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}

/// Compiles the filter. A list of refused numbers alone would leave the same calls by their numbers in x32; those of
/// another architecture end the process.
fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules: BTreeMap<i64, Vec<_>> = NEVER.iter().map(|&call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let listed: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse.clone(), arch)?.try_into()?;
    let step = |code: u32, jf: u8, k: u32| sock_filter { code: code as u16, jt: 0, jf, k };
    // The number is the first field of seccomp_data.
    let first = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, X32),
        step(libc::BPF_RET | libc::BPF_K, 0, refuse.into()),
    ];
    Ok(first.into_iter().chain(listed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUDIT_ARCH_I386: u32 = 0x4000_0003;
    const HERE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// Returns what a filter answers to a system call: runs its loads, comparisons, jumps and returns (linux/filter.h).
    fn answer(program: &[sock_filter], number: u32, arch: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &program[at];
            let jump = |is_met: bool| usize::from(if is_met { step.jt } else { step.jf });
            at += 1;
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    loaded = [number, arch][step.k as usize / 4]
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(loaded == step.k),
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => at += jump(loaded >= step.k),
                code if code == libc::BPF_JMP | libc::BPF_JA => at += step.k as usize,
                code if code == libc::BPF_RET | libc::BPF_K => return step.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn upgrades_add_filters_up_to_a_number() {
        // Filters are those of a thread, and so is no_new_privs.
        let counted = std::thread::spawn(|| {
            segue_host::sys::no_new_privs().unwrap();
            (0..2 * MOST_FILTERS).for_each(|_| refuse_calls(true).unwrap());
            let counted = filters();
            refuse_calls(false).unwrap();
            (counted, filters())
        });
        let (after_upgrades, after_start) = counted.join().unwrap();
        assert!(after_upgrades.is_none_or(|count| count == MOST_FILTERS), "{after_upgrades:?}");
        assert_eq!(after_start, after_upgrades.map(|count| count + 1));
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn what_a_service_never_needs_is_refused_by_its_number_in_each_abi() {
        let program = program().unwrap();
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for &call in NEVER {
            let call = u32::try_from(call).unwrap();
            assert_eq!(answer(&program, call, HERE), refused, "{call}");
            assert_eq!(answer(&program, call | X32, HERE), refused, "{call} in x32");
            assert_eq!(answer(&program, call, AUDIT_ARCH_I386), libc::SECCOMP_RET_KILL_PROCESS, "{call}");
        }
        let usual = libc::SYS_read as u32;
        assert_eq!(answer(&program, usual, HERE), libc::SECCOMP_RET_ALLOW);
        // The numbers of x32 from 512 on are those of calls whose structures differ.
        for number in [usual | X32, X32 | 520, u32::MAX] {
            assert_eq!(answer(&program, number, HERE), refused, "{number:#x}");
        }
    }
}
