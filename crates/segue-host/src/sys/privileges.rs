//! Privileges of a process: user, capabilities, no_new_privs, and the kernel's features to confine it.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;

use super::check;

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
