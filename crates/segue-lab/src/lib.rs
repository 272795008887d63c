//! Two hosts on one machine, a link between them, load through it, and the CPU time of that load.
//!
//! The crate serves the demonstration (`segue lab`), the benches and the whole-program tests. Its roles:
//!
//! - [`Host`]: a network namespace without a name, with a mount namespace of its own, held open by two file
//!   descriptors. Nothing of it outlives the process that made it.
//! - [`connect`]: a veth pair between two hosts, in the form of a plain network card or with every offload on.
//! - [`Relay`]: a third host between the two that drops, duplicates, reorders or damages frames, seeded.
//! - [`Process`]: a child that is stopped on drop and whose output is kept for error messages.
//! - [`Cpu`]: CPU seconds of everything that was started in the hosts, plus ksoftirqd.
//! - [`load`]: one iperf3 run between two hosts.
//! - [`Case`]: one row to measure: segue, segue without trains, kernel VXLAN, fastd, the bare link, or the caller's
//!   own.
//! - [`Lab`]: all of it together; [`run`] is the demonstration from beginning to end.
//! - [`mod@bench`]: tables of many cases, measured in turn, each with hosts that have a processor of their own.
//! - [`skip`], [`skip_this_test`]: the notes of a test that cannot run here.
//! - [`test_again`]: a test in a process of its own.
//! - [`Table`]: the result, as `segue.bench/1` JSON and as text.
//!
//! # Lifecycle
//! [`Lab::new`] makes the hosts, the link and one [`Lane`] per case, all of which exist at the same time.
//! [`Lab::measure`] runs them in turn, so that a change of the machine's speed affects every case alike. Dropping the
//! lab stops the processes first, then closes the namespaces, then removes the control group.
//!
//! # Promises
//! - Nothing stays behind, after an error either: namespaces have no name, and dropped values stop their processes.
//! - The lab judges segue and therefore shares no code with it: the program is run by path, never linked.
//! - CPU time counts all work that a case caused, in the kernel's threads too, as far as the machine tells it;
//!   the table says how it was taken.
//!
//! # Limits
//! Everything needs Linux and the right to make network namespaces: root, or a user namespace
//! ([`enter_user_namespace`]). The external programs are `ip`, `ethtool` and `iperf3` (and `fastd` for its case); a
//! missing one is reported with the Debian package that has it.
//!
//! Children are killed by the kernel when the *thread* that started them ends (`PR_SET_PDEATHSIG`), so a thread that
//! starts a child has to outlive it.

mod address;
mod again;
pub mod bench;
mod case;
mod cpu;
mod error;
mod host;
pub mod interrupt;
mod keywords;
mod lab;
mod lane;
mod link;
pub mod load;
mod machine;
mod named;
mod options;
mod process;
mod processor;
mod progress;
mod relay;
mod skip;
mod sys;
mod table;
mod wireguard;

pub use address::{Family, Peer};
pub use again::test_again;
pub use case::Case;
pub use cpu::Cpu;
pub use error::LabError;
pub(crate) use host::CONGESTION;
pub use host::{Host, enter_user_namespace, reach, unavailable};
pub use lab::{Entrance, Lab, run, run_cases};
pub use lane::{Ground, Lane, Prepared, StatSource};
pub use link::{DEVICE, LinkForm, connect};
pub use machine::Machine;
pub use named::Named;
pub use options::{Encap, Mode, Options, Proto};
pub use process::{Process, which};
pub use processor::cores;
pub use progress::{Measurement, Progress, SampleAt, Step};
pub use relay::{Counts, DamageArea, Faults, Relay};
pub use skip::{skip, skip_this_test};
pub use table::{Metric, Row, Skipped, Table};
pub use wireguard::start as start_wireguard_go;
