//! System calls that another process is made to perform (ptrace(2)). On x86-64 alone.
#![allow(unsafe_code, reason = "ptrace exists only as a libc call")]

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for the traced process.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of bytes below the traced process's stack pointer that are not written: the red zone of its functions, and a
/// margin.
const BELOW: u64 = 4096;

/// A process that is stopped in a system call, and continues when this is dropped.
#[derive(Debug)]
pub struct Held {
    pid: libc::pid_t,
    registers: libc::user_regs_struct,
}

/// Makes one ptrace request about a process; returns the kernel's result.
fn request(number: libc::c_uint, pid: libc::pid_t, address: u64, data: u64) -> io::Result<i64> {
    // SAFETY: `address` and `data` are numbers, or places of this process that the caller keeps alive.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: as above.
    let result = unsafe { libc::ptrace(number, pid, address, data) };
    match io::Error::last_os_error() {
        error if result == -1 && error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(result),
    }
}

/// Number of looks at once for a process that has just been continued: one step takes some microseconds.
const LOOKS: u32 = 1000;

/// Waits until the process has stopped.
fn stopped(pid: libc::pid_t) -> io::Result<()> {
    let (begin, mut looks) = (Instant::now(), 0);
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match found {
            0 if begin.elapsed() > PATIENCE => return Err(io::ErrorKind::TimedOut.into()),
            0 if looks < LOOKS => thread::yield_now(),
            0 => thread::sleep(Duration::from_millis(1)),
            found if found == pid && libc::WIFSTOPPED(status) => return Ok(()),
            found if found == pid => return Err(io::Error::other("the process has ended")),
            _ => return Err(io::Error::last_os_error()),
        }
        looks += 1;
    }
}

impl Held {
    /// Stops the first thread of a process in a system call, which a process that waits for packets or signals soon
    /// makes.
    ///
    /// # Errors
    /// Where this process may not, or the other one is busy.
    pub fn new(pid: u32) -> io::Result<Held> {
        let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        request(libc::PTRACE_SEIZE, pid, 0, 0)?;
        // SAFETY: plain old data, for which all zeros is a value.
        let mut held = Held { pid, registers: unsafe { std::mem::zeroed() } };
        let begin = Instant::now();
        loop {
            request(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
            stopped(pid)?;
            request(libc::PTRACE_GETREGS, pid, 0, (&raw mut held.registers) as u64)?;
            let behind = held.registers.rip.wrapping_sub(2);
            let is_call = request(libc::PTRACE_PEEKTEXT, pid, behind, 0).is_ok_and(|word| word & 0xffff == 0x050f);
            // What it was to return is a restart: it has waited.
            if is_call && (-516..=-512).contains(&held.registers.rax.cast_signed()) {
                return Ok(held);
            }
            request(libc::PTRACE_CONT, pid, 0, 0)?;
            if begin.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Writes bytes to the stack of the process, below the part in use, and returns their address.
    pub fn write(&self, bytes: &[u8]) -> io::Result<u64> {
        let place = (self.registers.rsp - BELOW) & !15;
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            request(libc::PTRACE_POKEDATA, self.pid, place + 8 * at as u64, u64::from_ne_bytes(word))?;
        }
        Ok(place)
    }

    /// Reads a number of four bytes from the memory of the process.
    pub fn read(&self, place: u64) -> io::Result<u32> {
        // Of a word the lower half comes first.
        Ok(request(libc::PTRACE_PEEKDATA, self.pid, place, 0)? as u32)
    }

    /// Performs a system call in the process, and returns its result: a number, or a negative error number.
    pub fn call(&self, number: i64, arguments: [u64; 6]) -> io::Result<i64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let mut registers = libc::user_regs_struct { rdi, rsi, rdx, r10, r8, r9, ..self.registers };
        (registers.rip, registers.rax) = (self.registers.rip - 2, number.cast_unsigned());
        // No call is to be restarted.
        registers.orig_rax = u64::MAX;
        request(libc::PTRACE_SETREGS, self.pid, 0, (&raw mut registers) as u64)?;
        request(libc::PTRACE_SINGLESTEP, self.pid, 0, 0)?;
        stopped(self.pid)?;
        request(libc::PTRACE_GETREGS, self.pid, 0, (&raw mut registers) as u64)?;
        Ok(registers.rax.cast_signed())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut registers = self.registers;
        let _ = request(libc::PTRACE_SETREGS, self.pid, 0, (&raw mut registers) as u64);
        let _ = request(libc::PTRACE_DETACH, self.pid, 0, 0);
    }
}
