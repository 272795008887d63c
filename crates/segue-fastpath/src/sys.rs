//! The system call bpf(2), behind safe functions.
#![allow(unsafe_code, reason = "the one place of this crate that calls the kernel directly")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::assembler::Instruction;

/// Commands of bpf(2) (`enum bpf_cmd`).
const MAP_CREATE: c_int = 0;
/// Lookup of a map's entry. This one and the next two are those that [`Map`](crate::map::Map) needs after its creation.
pub(crate) const MAP_LOOKUP_ELEM: c_int = 1;
/// Update of a map's entry.
pub(crate) const MAP_UPDATE_ELEM: c_int = 2;
/// Deletion of a map's entry.
pub(crate) const MAP_DELETE_ELEM: c_int = 3;
const PROG_LOAD: c_int = 5;
const PROG_TEST_RUN: c_int = 10;
const PROG_GET_FD_BY_ID: c_int = 13;
const MAP_GET_FD_BY_ID: c_int = 14;
const OBJ_GET_INFO_BY_FD: c_int = 15;
const PROG_QUERY: c_int = 16;
const LINK_CREATE: c_int = 28;

/// The types of programs that this crate loads (`enum bpf_prog_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// A program for sockets, which a TUN device also accepts to choose a queue.
    Socket = 1,
    /// A program for the hooks of an interface.
    Classifier = 3,
}

/// Length of an object's name with its end.
const NAME_LEN: usize = 16;
/// Number of bytes of the verifier's log that are kept.
const LOG_LEN: usize = 1 << 18;

/// The types of maps that this crate creates (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    Hash = 1,
    Array = 2,
    /// Programs that tail calls continue in; emptied when its last descriptor is closed.
    Programs = 3,
    PerCpuHash = 5,
    PerCpuArray = 6,
    /// The entries that were used last.
    LruHash = 9,
    /// Maps of one form.
    Maps = 12,
}

/// A hook of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Received packets, before the network layer.
    Ingress,
    /// Packets to send, before the queueing discipline.
    Egress,
}

/// The argument of a bpf(2) call: `union bpf_attr`, cut to the part that the command reads; the rest must be zero.
struct Attributes([u8; 144]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 144])
    }

    fn word(mut self, at: usize, value: u32) -> Attributes {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn wide(mut self, at: usize, value: u64) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attributes {
        self.word(at, fd.as_raw_fd().cast_unsigned())
    }

    fn address<T>(self, at: usize, of: &[T]) -> Attributes {
        self.wide(at, of.as_ptr() as u64)
    }

    fn address_mut<T>(self, at: usize, of: &mut [T]) -> Attributes {
        self.wide(at, of.as_mut_ptr() as u64)
    }

    fn name(mut self, at: usize, name: &str) -> Attributes {
        let len = name.len().min(NAME_LEN - 1);
        self.0[at..at + len].copy_from_slice(&name.as_bytes()[..len]);
        self
    }

    fn get(&self, at: usize) -> u32 {
        self.0[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
    }

    /// Calls bpf(2) with the first `len` bytes of the attributes.
    fn call(&mut self, command: c_int, len: usize) -> io::Result<c_int> {
        // SAFETY: the kernel reads and writes at most `len` bytes, of an array of this length at least; every address
        // in it is that of a slice that the caller of this function borrows for longer, with its length beside it or
        // known to the kernel by the map's or program's definition, which callers check.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), len.min(144)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
    }

    fn open(&mut self, command: c_int, len: usize) -> io::Result<OwnedFd> {
        let fd = self.call(command, len)?;
        // SAFETY: these commands return a new descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Creates a BPF map. The values of a per-CPU map have a multiple of eight bytes. With `grows` its entries take memory
/// when they are added.
pub(crate) fn create_map(
    kind: MapKind,
    grows: bool,
    [key, value]: [u32; 2],
    entries: u32,
    name: &str,
) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, kind as u32).word(4, key).word(8, value).word(12, entries);
    // BPF_F_NO_PREALLOC.
    let attributes = attributes.word(16, u32::from(grows));
    attributes.name(28, name).open(MAP_CREATE, 48)
}

/// Creates a map of one map, which has the form of `inner`.
pub(crate) fn create_map_of(inner: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, MapKind::Maps as u32).word(4, 4).word(8, 4).word(12, 1);
    attributes.fd(20, inner).name(28, name).open(MAP_CREATE, 48)
}

/// Looks up an entry; `key` and `value` must have the lengths that the map was created with, the latter for each
/// possible CPU of a per-CPU map.
pub(crate) fn lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    Attributes::new().fd(0, map).address(8, key).address_mut(16, value).call(MAP_LOOKUP_ELEM, 32).map(drop)
}

/// Adds an entry or replaces it; lengths as for [`lookup`].
pub(crate) fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    Attributes::new().fd(0, map).address(8, key).address(16, value).call(MAP_UPDATE_ELEM, 32).map(drop)
}

/// Deletes an entry; the length of `key` as for [`lookup`].
pub(crate) fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    Attributes::new().fd(0, map).address(8, key).call(MAP_DELETE_ELEM, 24).map(drop)
}

/// Loads a program for the hooks of interfaces. On an error of the verifier its last words are in the error.
pub(crate) fn load(
    kind: ProgramKind,
    code: &[Instruction],
    licence: &std::ffi::CStr,
    name: &str,
) -> io::Result<OwnedFd> {
    let count = u32::try_from(code.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let attributes = || {
        let attributes = Attributes::new().word(0, kind as u32).word(4, count).address(8, code);
        attributes.address(16, licence.to_bytes_with_nul()).name(48, name)
    };
    let first = match attributes().open(PROG_LOAD, 72) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL)) => error,
        other => return other,
    };
    // The verifier's log says more than the error number.
    let mut log = vec![0; LOG_LEN];
    let again = attributes().word(24, 1).word(28, LOG_LEN as u32).address_mut(32, &mut log).open(PROG_LOAD, 72);
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("processed ")).collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    again.map_err(|_| if last.is_empty() { first } else { io::Error::new(first.kind(), format!("{first}: {last}")) })
}

/// Returns the type of attachment of tcx links (`enum bpf_attach_type`).
fn kind(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => 46,
        Hook::Egress => 47,
    }
}

/// Attaches a program to a hook of an interface, after the programs that exist. Closing the descriptor detaches it; an
/// error EINVAL stands for a kernel without such links (before Linux 6.6).
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
    Attributes::new().fd(0, program).word(4, interface).word(8, kind(hook)).open(LINK_CREATE, 48)
}

/// The outcome of a program's run on one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Return value of the BPF program.
    pub(crate) result: i32,
    /// The packet after the run, from its Ethernet header on.
    pub(crate) packet: Vec<u8>,
    /// Mean time of one run, nanoseconds.
    pub(crate) nanos: u32,
}

/// Runs a program `repeat` times on a packet that begins with an Ethernet header; `context` is a `__sk_buff` from which
/// the kernel takes the fields allowed in a test.
pub(crate) fn test_run(program: BorrowedFd<'_>, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<Run> {
    let mut out = vec![0; packet.len() + 256];
    let mut attributes = Attributes::new()
        .fd(0, program)
        .word(8, u32::try_from(packet.len()).unwrap_or(u32::MAX))
        .word(12, u32::try_from(out.len()).unwrap_or(u32::MAX))
        .address(16, packet)
        .address_mut(24, &mut out)
        .word(32, repeat);
    if !context.is_empty() {
        attributes = attributes.word(40, u32::try_from(context.len()).unwrap_or(u32::MAX)).address(48, context);
    }
    attributes.call(PROG_TEST_RUN, 80)?;
    out.truncate(attributes.get(12) as usize);
    Ok(Run { result: attributes.get(4).cast_signed(), packet: out, nanos: attributes.get(36) })
}

/// Returns the numbers of the programs at a hook of an interface, with their names where these can be read, which needs
/// CAP_SYS_ADMIN; the error EINVAL stands for a kernel without such links.
pub(crate) fn attached(interface: u32, hook: Hook) -> io::Result<Vec<(u32, Option<String>)>> {
    let mut ids = [0_u32; 64];
    let mut attributes =
        Attributes::new().word(0, interface).word(4, kind(hook)).address_mut(16, &mut ids).word(24, 64);
    attributes.call(PROG_QUERY, 64)?;
    let count = (attributes.get(24) as usize).min(ids.len());
    Ok(ids[..count].iter().map(|id| (*id, program_name(*id).ok())).collect())
}

fn program_name(id: u32) -> io::Result<String> {
    let program = Attributes::new().word(0, id).open(PROG_GET_FD_BY_ID, 12)?;
    // The name is after 64 bytes of `struct bpf_prog_info`; the kernel fills as much as there is room for.
    let mut info = [0_u8; 80];
    let mut attributes =
        Attributes::new().fd(0, std::os::fd::AsFd::as_fd(&program)).word(4, 80).address_mut(8, &mut info);
    attributes.call(OBJ_GET_INFO_BY_FD, 16)?;
    let name = &info[64..80];
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Returns the kernel's number of a program.
pub(crate) fn number(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u32; 2];
    Attributes::new().fd(0, program).word(4, 8).address_mut(8, &mut info).call(OBJ_GET_INFO_BY_FD, 16)?;
    Ok(info[1])
}

/// Returns the first map of the program with the given number.
pub(crate) fn first_map(program: u32) -> io::Result<Option<OwnedFd>> {
    let program = Attributes::new().word(0, program).open(PROG_GET_FD_BY_ID, 12)?;
    // Of `struct bpf_prog_info`, after 52 bytes: the number of maps that there is room for, and where.
    let mut map = [0_u32; 1];
    let info = Attributes::new().word(52, 1).address_mut(56, &mut map);
    let mut info = info.0[..80].to_vec();
    Attributes::new()
        .fd(0, std::os::fd::AsFd::as_fd(&program))
        .word(4, 80)
        .address_mut(8, &mut info)
        .call(OBJ_GET_INFO_BY_FD, 16)?;
    match map[0] {
        0 => Ok(None),
        id => Attributes::new().word(0, id).open(MAP_GET_FD_BY_ID, 12).map(Some),
    }
}
