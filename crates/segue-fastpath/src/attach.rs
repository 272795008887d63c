//! Attachment of programs to the hooks of interfaces: tcx links, or filters (cls_bpf) where the kernel has none.
//!
//! A link ends with its descriptor. A filter stays until it is removed, which a process without capabilities cannot do.
//! So what is added as a filter is a gate: a program that continues with the other one by a map of programs, which the
//! kernel empties when the last descriptor of the map is closed. Without an entry the gate passes every packet on.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::assembler::{Assembler, Helper, Reg};
use crate::code::{LICENCE, NEXT};
use crate::sys::{self, Hook, MapKind, ProgramKind};

/// A means of adding programs as filters, on kernels without tcx links (before Linux 6.6).
pub trait Filters {
    /// Adds a program to a hook of an interface, after the filters that exist; `name` is that of the filter.
    ///
    /// # Errors
    /// The kernel's.
    fn add(&mut self, interface: u32, hook: Hook, program: BorrowedFd<'_>, name: &str) -> io::Result<()>;
}

/// The beginning of the name of each mark, which `-` and the number of the program follow ([`mark_of`]).
pub const MARK: &str = "segue-program";

/// Returns the abstract name of a local socket that an instance has as long as it has the program with this number, or
/// the gate that leads to one; where it is taken, the instance's own has `-` and a random number behind it. Other
/// instances recognise the program by it, where they may not read its name, and a gate that leads nowhere by its lack.
pub fn mark_of(program: u32) -> String {
    format!("{MARK}-{program}")
}

/// Marks a program, before it is attached, as long as the descriptor is open. Without the mark other instances take it
/// for one of other software.
pub(crate) fn mark(program: &OwnedFd) -> io::Result<OwnedFd> {
    let name = mark_of(sys::number(program.as_fd())?);
    let bind = |name: &str| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?);
    let socket = match bind(&name) {
        // Any user can take a name that is known beforehand.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bind(&format!("{name}-{:016x}", RandomState::new().hash_one(())))
        }
        other => other,
    };
    socket.map(OwnedFd::from)
}

/// A program at a hook of an interface, until the value is dropped: the gate's mark goes last.
pub(crate) struct Attached {
    /// The tcx link, or the map of the gate.
    _link: OwnedFd,
    /// The mark of the gate.
    _mark: Option<OwnedFd>,
}

/// Attaches a program to a hook of an interface.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    (interface, hook): (u32, Hook),
    name: &str,
    filters: &mut dyn Filters,
) -> io::Result<Attached> {
    match sys::attach(program, interface, hook) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            attach_gate(program, (interface, hook), name, filters)
        }
        other => other.map(|link| Attached { _link: link, _mark: None }),
    }
}

/// Adds a gate to a program as a filter. It leads to the program and is marked before that: other instances take one
/// that leads nowhere, or has no mark, for a filter that was left over, and remove it.
pub(crate) fn attach_gate(
    program: BorrowedFd<'_>,
    (interface, hook): (u32, Hook),
    name: &str,
    filters: &mut dyn Filters,
) -> io::Result<Attached> {
    let (map, gate) = gate()?;
    sys::update(map.as_fd(), &0_u32.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes())?;
    let attached = Attached { _link: map, _mark: Some(mark(&gate)?) };
    filters.add(interface, hook, gate.as_fd(), name)?;
    Ok(attached)
}

/// Loads a gate program; returns its map, which has no program yet, and the gate.
pub(crate) fn gate() -> io::Result<(OwnedFd, OwnedFd)> {
    let map = sys::create_map(MapKind::Programs, false, [4, 4], 1, "segue_gate")?;
    let mut a = Assembler::default();
    a.map(Reg::R2, map.as_fd());
    a.set(Reg::R3, 0);
    // The context is in R1 still.
    a.call(Helper::TailCall);
    a.exit(NEXT);
    let code = a.finish().map_err(|fault| io::Error::other(fault.to_string()))?;
    let gate = sys::load(ProgramKind::Classifier, &code, LICENCE, "segue_gate")?;
    Ok((map, gate))
}

/// Returns whether the program with the given number is the gate of a process that has ended.
///
/// # Errors
/// The kernel's; EPERM without CAP_SYS_ADMIN.
pub fn is_left_over(program: u32) -> io::Result<bool> {
    match sys::first_map(program)? {
        Some(map) => match sys::lookup(map.as_fd(), &0_u32.to_ne_bytes(), &mut [0; 4]) {
            Ok(()) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
            Err(error) => Err(error),
        },
        None => Ok(false),
    }
}
