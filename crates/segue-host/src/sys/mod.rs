//! System calls that the standard library does not offer, each behind a safe function.

use std::ffi::c_int;
use std::io;

mod descriptor;
mod namespace;
mod poll;
mod privileges;
mod process;
mod signal;
mod socket;

pub use descriptor::{
    is_nonblocking, memory_file, place_of_file, rename_new, set_nonblocking, terminal_width, try_lock, umask,
    with_umask, write, write_without_waiting,
};
pub use namespace::{in_net_namespace, unshare};
pub use poll::{Want, pause, poll};
pub use privileges::{
    capabilities, drop_bounding_set, drop_capabilities, euid, has_seccomp_filters, keep_capabilities, landlock_abi,
    no_new_privs, switch_user,
};
pub use process::{
    Ended, Forked, Pid, ThreadClock, close_from, cpu_seconds, fork, in_child, keep_only, kill, most_arguments,
    parent_pid, raise_open_file_limit, raise_open_file_limit_to_hard, random, signal_on_parent_death, wait,
};
pub use signal::{SignalFd, end_on_faults, exit_130_on_interrupt, fail_at_file_limit, is_ignored};
pub use socket::{
    bind_abstract, connect_abstract, connect_path, ethtool_flag, ethtool_was_switched_off, probe_socket,
    receive_with_gro, set_int_option,
};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
