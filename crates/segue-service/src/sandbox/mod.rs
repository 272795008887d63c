//! The sandbox: a process drops its privileges once every device is open.
//!
//! A supervisor remains that waits, watches the [`heartbeat`](crate::heartbeat), passes signals on, removes the control
//! socket and passes the exit status on. The process that moves packets, its child, becomes a user of its own where
//! this one is root (`sandbox::user`), and drops all capabilities, the environment and the descriptors that others left
//! open. Landlock then removes the file system, and seccomp every system call that moving packets does not need: in two
//! steps, since threads are still to be started. Where one of them is missing, the instance ends, unless its user chose
//! a weak sandbox.

mod confinement;
mod filter;
mod helper;
mod opening;
mod service;
mod supervisor;
mod user;

use std::io;
use std::path::Path;
use std::sync::Arc;

use segue_control::confinement::weak;
use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::lock::Lock;
pub use segue_control::model::Sandbox;
use segue_host::process;
use segue_host::sandbox::{Signalling, restrict};
use segue_host::signals::Signals;
use segue_host::sys::{self, Forked};

use crate::report::Report;
use crate::socket_file::SocketFile;

use self::confinement::failed;
pub use confinement::SandboxConfig;
pub use filter::Allowed;
pub use helper::{Helper, Rounds};
pub use opening::{AccessRights, NewUser, confine};
pub use service::refuse_calls;

/// Forks the packet process, which drops the privileges that it no longer needs, and returns in it; the supervisor
/// never returns. The process must have one thread.
///
/// # Errors
/// Where a right cannot be given up, which also ends the instance, unless [`SandboxConfig::is_weak`] allows it.
pub fn enter(
    signals: &mut Signals,
    socket: &SocketFile,
    life: &SandboxConfig<'_>,
    out: &Arc<dyn Report>,
) -> Result<Sandbox, Error> {
    let folder = socket.folder().unwrap_or(Path::new("/"));
    let chosen = user::other(life.name, folder)?;
    let told = io::pipe().map_err(|error| failed("cannot start the process that moves packets", &error))?;
    let (hears, tells) = told;
    match sys::fork().map_err(|error| failed("cannot start the process that moves packets", &error))? {
        Forked::Parent(child) => {
            drop(tells);
            // Until the child has its user, another instance could choose the same one.
            let _ = io::Read::read_to_end(&mut &hears, &mut Vec::new());
            drop(chosen);
            supervisor::run(child, signals, socket, life, &**out)
        }
        Forked::Child => {}
    }
    drop(hears);
    let parent = sys::parent_pid();
    process::close_inherited();
    process::forget_environment();
    // After a change of user the process may no longer do this.
    sys::drop_bounding_set();
    let mut name = None;
    if let Some((user, lock)) = chosen {
        sys::switch_user(user.uid, user.gid).map_err(|error| failed("cannot become another user", &error))?;
        lock.into_iter().for_each(Lock::leave_to_parent);
        name = Some(user.name);
    }
    drop(tells);
    sys::drop_capabilities().map_err(|error| failed("cannot drop capabilities", &error))?;
    sys::no_new_privs().map_err(|error| failed("cannot forbid new privileges", &error))?;
    // A change of user clears a request for the signal; a parent that has ended before now counts as well.
    sys::signal_on_parent_death(libc::SIGTERM).map_err(|error| failed("cannot follow the supervisor", &error))?;
    if sys::parent_pid() != parent {
        return Err(
            Error::new(Kind::System, "the supervisor has ended", "start again").why("another process killed it")
        );
    }
    let landlock = restrict(&[], &[], Signalling::Inside).map_err(|error| failed("cannot limit the files", &error))?;
    let seccomp = filter::apply(filter::Purpose::Starting, &life.allowed);
    let sandbox = Sandbox { user: name, supervised: true, landlock, seccomp: seccomp.is_ok() };
    if !landlock {
        missing("Landlock", "the file system stays within reach of this user's rights", life.is_weak, out)?;
    }
    if let Err(why) = seccomp {
        missing("filters of system calls", &why, life.is_weak, out)?;
    }
    Ok(sandbox)
}

/// Lets the kernel end this process where an instruction fails, whatever a filter of system calls refuses later. It has
/// to come before a guest's port, which has its own handler of SIGBUS.
///
/// # Errors
/// Where the kernel refuses.
pub fn end_on_faults() -> Result<(), Error> {
    // abort(3) signals the thread by calls that a filter may refuse, and then fails in this way too.
    sys::end_on_faults().map_err(|error| failed("cannot set the action of a signal", &error))
}

/// Restricts this process to the system calls needed for moving packets, once all of its threads run. Nothing changes
/// where [`enter`] could not filter any.
///
/// # Errors
/// Where the kernel refuses.
pub fn settle(sandbox: &Sandbox, allowed: &Allowed<'_>) -> Result<(), Error> {
    if !sandbox.seccomp {
        return Ok(());
    }
    let refused = |why: String| weak("the system calls cannot be limited further").why(why);
    filter::apply(filter::Purpose::Packets, allowed).map_err(refused)
}

/// Reports a part of the sandbox that the kernel does not have: an error, unless `is_weak` allows it.
fn missing(what: &str, why: &str, is_weak: bool, out: &Arc<dyn Report>) -> Result<(), Error> {
    if is_weak {
        out.event(&LogEntry::new(LogEvent::Sandbox, format!("note: no {what} here: {why}")));
        return Ok(());
    }
    Err(weak(&format!("no {what} here")).why(why))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::Ordering;

    use segue_host::memory::SharedNumbers;

    use super::*;

    /// Environment variable of the process in which the test below fails on purpose.
    const FAULTY: &str = "SEGUE_TEST_FAULTY";

    /// Reads memory that its file no longer has, as a process that moves packets.
    fn read_lost_memory() -> u64 {
        end_on_faults().unwrap();
        let file = sys::memory_file(c"faulty").unwrap();
        file.set_len(8).unwrap();
        let numbers = SharedNumbers::over(&file, 1).unwrap();
        file.set_len(0).unwrap();
        sys::no_new_privs().unwrap();
        settle(&Sandbox { seccomp: true, ..Sandbox::default() }, &Allowed::default()).unwrap();
        numbers[0].load(Ordering::Relaxed)
    }

    #[test]
    fn a_fault_of_memory_ends_a_process_that_may_set_no_action_of_a_signal() {
        if !sys::has_seccomp_filters() {
            return segue_lab::skip_this_test("this kernel has no seccomp filters");
        }
        if env::var_os(FAULTY).is_some() {
            panic!("it read {}", read_lost_memory());
        }
        let test = "sandbox::tests::a_fault_of_memory_ends_a_process_that_may_set_no_action_of_a_signal";
        let status = segue_lab::test_again(test, FAULTY).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }
}
