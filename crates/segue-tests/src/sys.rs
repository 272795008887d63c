//! Socket options, raw sockets and signals that the standard library lacks.
#![allow(unsafe_code, reason = "setsockopt, raw sockets and kill exist only as libc calls")]

use std::ffi::CString;
use std::io;
use std::mem;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel split each send into datagrams of `size` bytes (udp(7), `UDP_SEGMENT`).
pub fn set_udp_segment(socket: &UdpSocket, size: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, libc::c_int::from(size))
}

/// Makes the socket send without UDP checksums.
pub fn send_without_checksum(socket: &UdpSocket) -> io::Result<()> {
    /// The socket option `UDP_NO_CHECK6_TX`, include/uapi/linux/udp.h.
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
    } else {
        set(socket, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1)
    }
}

/// Sets the DSCP and ECN bits of sent packets.
pub fn set_tos(socket: &UdpSocket, tos: u8) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_TOS, libc::c_int::from(tos))
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::c_int::from(tos))
    }
}

/// Allows fragmentation of the socket's datagrams: DF is clear, and path MTU discovery is off.
pub fn allow_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
    }
}

/// Forbids fragmentation: a datagram larger than the path MTU is refused with EMSGSIZE.
pub fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)
    }
}

/// Sends a complete IP packet unchanged, including its transport checksum (raw(7), `IPPROTO_RAW`).
pub fn send_packet(packet: &[u8], to: IpAddr) -> io::Result<()> {
    let domain = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket takes no pointers.
    let raw = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    check(raw)?;
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an all-zero sockaddr_in6 is valid.
    let mut name: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let len = match to {
        IpAddr::V4(to) => {
            let at = (&raw mut name).cast::<libc::sockaddr_in>();
            // SAFETY: a sockaddr_in is smaller than a sockaddr_in6 and needs no stricter alignment.
            unsafe {
                (*at).sin_family = libc::AF_INET as u16;
                (*at).sin_addr.s_addr = u32::from(to).to_be();
            }
            mem::size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(to) => {
            name.sin6_family = libc::AF_INET6 as u16;
            name.sin6_addr.s6_addr = to.octets();
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    let fd = socket.as_raw_fd();
    let (bytes, address) = (packet.as_ptr().cast(), (&raw const name).cast());
    // SAFETY: the pointers and lengths describe `packet` and `name`.
    let sent = unsafe { libc::sendto(fd, bytes, packet.len(), 0, address, len as libc::socklen_t) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a packet socket that sends frames by an interface of this thread's network namespace.
pub fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a string that ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: socket takes no pointers. With protocol 0 it receives nothing.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    check(raw)?;
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index as libc::c_int;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Sends one frame by a packet socket; returns false if the link's queue was full, and the frame is lost.
pub fn send_frame(socket: &OwnedFd, frame: &[u8]) -> io::Result<bool> {
    // SAFETY: the pointer and length describe `frame`.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    match io::Error::last_os_error() {
        error if sent < 0 && error.raw_os_error() != Some(libc::ENOBUFS) => Err(error),
        _ => Ok(sent >= 0),
    }
}

/// Refuses huge pages to this process and all that it starts: the kernel may join pages into one at any time, and
/// counts memory that no process has touched.
pub fn refuse_huge_pages() -> io::Result<()> {
    let (on, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, on, none, none, none) })
}

/// Makes the programs that this process starts inherit no descriptors but the standard streams, also of those that it
/// inherited itself, such as from a terminal.
pub fn pass_on_no_descriptors() -> io::Result<()> {
    // SAFETY: close_range takes no pointers, and with this flag closes nothing in this process.
    check(unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) })
}

/// Sends a signal to a child that was not waited for, so that its process id cannot have been reused.
pub fn signal(child: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child).map_err(io::Error::other)?;
    // SAFETY: kill takes no pointers.
    check(unsafe { libc::kill(pid, signal) })
}

fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`, and all options used here take an int.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A tcx hook of an interface (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The ingress hook (`BPF_TCX_INGRESS`).
    Ingress = 46,
    /// The egress hook (`BPF_TCX_EGRESS`).
    Egress = 47,
}

/// A BPF program in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The kernel's id of the program, which is not soon reused.
    pub id: u32,
    /// Name of the BPF program.
    pub name: String,
}

/// Returns the BPF programs at a hook of an interface of this network namespace.
pub fn programs_at(interface: &str, hook: Hook) -> io::Result<Vec<Program>> {
    const PROG_QUERY: libc::c_int = 16;
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: the string ends with a zero and lives longer than the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut ids = [0_u32; 16];
    let mut query = [0_u64; 8];
    // Words of 32 bits: interface and hook; then the address and the number of the ids.
    query[0] = u64::from(index) | (hook as u64) << 32;
    query[2] = ids.as_mut_ptr() as u64;
    query[3] = ids.len() as u64;
    bpf(PROG_QUERY, &mut query)?;
    let count = (query[3] as u32 as usize).min(ids.len());
    ids[..count].iter().map(|id| program(*id)?.ok_or_else(|| io::ErrorKind::NotFound.into())).collect()
}

/// Returns the BPF program with the given number; `None` if it is gone.
pub fn program(id: u32) -> io::Result<Option<Program>> {
    const PROG_GET_FD_BY_ID: libc::c_int = 13;
    const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    let raw = match bpf(PROG_GET_FD_BY_ID, &mut [u64::from(id), 0]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        other => other?,
    };
    // SAFETY: the descriptor was just made and has no other owner.
    let program = unsafe { OwnedFd::from_raw_fd(raw) };
    // The name is after 64 bytes of `struct bpf_prog_info`.
    let mut info = [0_u64; 10];
    let length = 80_u64 << 32;
    bpf(OBJ_GET_INFO_BY_FD, &mut [program.as_raw_fd() as u64 | length, info.as_mut_ptr() as u64])?;
    let bytes: Vec<u8> = info[8..].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    Ok(Some(Program { id, name: String::from_utf8_lossy(&bytes).into_owned() }))
}

fn bpf(command: libc::c_int, attributes: &mut [u64]) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes the array by its length; the addresses in it are of arrays that live longer
    // than the call and whose lengths are beside them.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), std::mem::size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// Makes a command and its child processes find a kernel without the system call `number`: it fails with ENOSYS. Needs
/// root.
pub fn without_call(command: &mut Command, number: libc::c_long) {
    // The number of the call is the first field of seccomp_data.
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let is_it = step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32);
    let refuse = step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    let allow = step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW);
    let mut program = [load, is_it, refuse, allow];
    let install = move || {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the kernel copies the program, which outlives the call.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, `install` makes one system call, and allocates nothing.
    unsafe { command.pre_exec(install) };
}

/// A process that stands still until this is dropped, by the same thread: neither it nor its parent is told
/// (ptrace(2)). Needs root.
pub struct Held {
    pid: libc::pid_t,
}

impl Held {
    /// Stops the process `pid`, also amid a system call in which it waits, which begins again later.
    pub fn new(pid: u32) -> io::Result<Held> {
        let held = Held { pid: pid as libc::pid_t };
        if let Err(error) = held.request(libc::PTRACE_SEIZE, 0, 0) {
            mem::forget(held);
            return Err(error);
        }
        held.request(libc::PTRACE_INTERRUPT, 0, 0)?;
        let mut status = 0;
        // SAFETY: the kernel writes the status, which outlives the call.
        if unsafe { libc::waitpid(held.pid, &raw mut status, libc::__WALL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            // It has ended meanwhile.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(held)
    }

    fn request(&self, request: libc::c_uint, address: u64, data: u64) -> io::Result<()> {
        // SAFETY: what the kernel reads or writes is behind `data`, which is the address of a value of the right type
        // or a number; this process's memory is not touched otherwise.
        match unsafe { libc::ptrace(request, self.pid, address, data) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A process that has ended goes on no more.
        let _ = self.request(libc::PTRACE_DETACH, 0, 0);
    }
}

/// Puts an endless loop in the place of the instruction with which a process goes on after the system call in which it
/// waits; what follows there is spoiled. Needs root.
#[cfg(target_arch = "x86_64")]
pub fn make_loop(pid: u32) -> io::Result<()> {
    /// A jump to itself (`EB FE`).
    const LOOP: i64 = 0xfeeb;
    let held = Held::new(pid)?;
    // SAFETY: zeros are a value of this structure of integers.
    let mut registers: libc::user_regs_struct = unsafe { mem::zeroed() };
    held.request(libc::PTRACE_GETREGS, 0, (&raw mut registers) as u64)?;
    held.request(libc::PTRACE_POKETEXT, registers.rip, LOOP as u64)?;
    // The call is not begun again.
    registers.orig_rax = u64::MAX;
    held.request(libc::PTRACE_SETREGS, 0, (&raw mut registers) as u64)
}

/// Fails: registers of this architecture are not known here.
#[cfg(not(target_arch = "x86_64"))]
pub fn make_loop(_pid: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
