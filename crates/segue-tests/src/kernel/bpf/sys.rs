//! The bpf(2) system call.
#![allow(unsafe_code, reason = "bpf exists only as a system call")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// Commands and types of include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_EGRESS: u32 = 47;

/// One eBPF instruction, `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Insn {
    pub(super) code: u8,
    /// Registers of the instruction: the destination in the lower four bits, the source in the upper ones.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) imm: i32,
}

/// The leading fields of `union bpf_attr` for the commands used here.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Create {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 2],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Update {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Calls bpf(2) with the given command and attributes.
///
/// # Safety
/// `T` is what the command reads, and the pointers in it are valid for that.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    let len = mem::size_of::<T>();
    // SAFETY: the caller's duty; the kernel reads no more than `len` bytes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Loads a program for the egress of a device.
pub(super) fn load(program: &[Insn]) -> io::Result<OwnedFd> {
    let load = Load {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        expected_attach_type: BPF_TCX_EGRESS,
        ..Load::default()
    };
    // SAFETY: the pointers are to as many instructions as it says and to a NUL-terminated text, which outlive the call.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &load) }?;
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a program to the device with this interface index, until the returned link is closed.
pub(super) fn attach(index: u32, program: &OwnedFd) -> io::Result<OwnedFd> {
    let prog_fd = program.as_raw_fd() as u32;
    let create = Create { prog_fd, target_ifindex: index, attach_type: BPF_TCX_EGRESS, ..Create::default() };
    // SAFETY: BPF_LINK_CREATE reads this and no pointer.
    let link = unsafe { bpf(BPF_LINK_CREATE, &create) }?;
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Replaces the program of a link.
pub(super) fn replace(link: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let (link_fd, new_prog_fd) = (link.as_raw_fd() as u32, program.as_raw_fd() as u32);
    // SAFETY: BPF_LINK_UPDATE reads this and no pointer.
    unsafe { bpf(BPF_LINK_UPDATE, &Update { link_fd, new_prog_fd, ..Update::default() }) }.map(drop)
}
