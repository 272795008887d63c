//! The Linux host as segue uses it: system calls, rtnetlink and signals, each behind a safe function.
//!
//! The crate promises typed results with the error numbers of the system, and changes nothing by itself. It does not
//! know tunnels, gateways or the control socket, prints nothing, and refuses what is only safe in a process with one
//! thread where others run ([`sys::fork`]).

pub mod capability;
pub mod interface;
pub mod netlink;
pub mod prefix;
pub mod signals;
pub mod sys;
