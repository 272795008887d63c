//! Tests of the built program `segue`, as a black box between real network stacks.
//!
//! Nothing here uses a crate of the engine. The hosts, links and the faulty relay are [`segue_lab`]'s; the judges are
//! this crate's own naive parser, the kernel's stacks at both ends, tshark, and a guest with another kernel.
//!
//! - [`Ground`]: the base of a test: the program, two hosts and a link, or a reason to skip.
//! - [`Shape`], [`Tunnel`], [`Pair`]: a tunnel's command line, one end, both ends.
//! - [`routed`]: a client, a router and a server.
//! - [`Stat`]: counters of a running instance.
//! - [`traffic`]: files by TCP, datagrams, pings, each compared byte for byte.
//! - [`capture`]: outbound frames at a host, and tshark's verdict on them.
//! - [`faults`]: a service with many instances, and faults of them.
//! - [`fastpath`]: tunnels over the in-kernel path.
//! - `probe`: what a running process can still reach.
//! - [`wire`]: a parser of tunnelled frames and a builder of wrong ones.
//! - [`guest`]: the directory of the guest, and the script that boots it.
//! - [`flood`]: hostile frames at a pace, and an honest host beside them.
//! - [`inject`]: system calls of a running process that fail.
//! - [`kernel`]: a kernel's own GRO.
//! - [`mod@line`]: the line of a process that moves packets to its service, answered by a test.
//! - [`soak`]: slopes, round trips and the balance of packets of a long run.
//! - `spoil`: functions of a running process that panic or never return.
//! - [`theirs`]: programs of other projects, from the Go module proxy.
//! - [`sys`]: socket options and raw sockets that the standard library lacks.
//!
//! # Lifecycle of a test
//! [`Ground::new`] finds the program (`SEGUE_BIN`, else this workspace's build) and creates two hosts with a link. The
//! test starts a [`Tunnel`] or a [`Pair`], sends [`traffic`], and reads the program's [`Stat`] or a [`capture`].
//! Dropping the values stops the processes and removes the hosts.
//!
//! # Promises
//! - Received data is compared byte for byte with what was sent.
//! - A test that cannot run on this machine is noted by name and reason ([`skip`]) and never passes silently.
//! - Nothing of a test stays on the machine, and tests do not see one another's hosts.
//!
//! # Limits
//! The tests need root or a user namespace, and the programs that each names. Environment variables choose how much is
//! sent: `SEGUE_FULL` and `SEGUE_SOAK` send more.

pub mod capture;
pub mod fastpath;
pub mod faults;
pub mod flood;
mod ground;
pub mod guest;
pub mod inject;
pub mod kernel;
pub mod kernel_log;
pub mod line;
#[cfg(target_arch = "x86_64")]
pub mod probe;
mod random;
pub mod routed;
pub mod soak;
#[cfg(target_arch = "x86_64")]
pub mod spoil;
mod stat;
pub mod sys;
pub mod theirs;
pub mod traffic;
mod tunnel;
pub mod wire;

pub use ground::{Ground, find_program};
pub use random::Random;
pub use segue_lab::skip;
pub use stat::Stat;
pub use tunnel::{Carrier, Inside, Pair, Shape, Tunnel};

/// Waits until `done` returns a value, which is returned.
///
/// # Panics
///
/// With `what` where there is none after 90 seconds.
#[track_caller]
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(begin.elapsed().as_secs() < 90, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Expands to the path of the enclosing test function, for [`Ground::new`] and [`skip`].
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here).trim_end_matches("::here")
    }};
}
