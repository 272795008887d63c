//! Health of tunnels: whether their traffic passes, and if not, why.
//!
//! A thread of its own gathers evidence: the kernel's notices about links, addresses, routes and neighbours, the ICMP
//! errors in the error queues of the sending sockets, and the counters of the packet loop. It needs no rights, and
//! sends nothing but probes where those are on ([`probe`]). Twice a second it judges each tunnel ([`judge`]) and
//! publishes the result, which the control socket shows.

pub(crate) mod evidence;
mod flow;
mod judge;
pub(crate) mod probe;
mod underlay;
mod watch;

pub(crate) use judge::{TX_OFF_IN_KERNEL, tx_off_cost, tx_on, unwatched};
pub(crate) use underlay::{PATIENCE, answered, has_tx_csum, patiently};
pub(crate) use watch::{Health, Sources};
