//! The Linux host as segue uses it: system calls, rtnetlink and signals, each behind a safe function.
//!
//! It promises typed results with the system's own error numbers and changes nothing by itself. It knows nothing of tunnels,
//! of gateways or of the control socket, prints nothing, and refuses what is only safe in a process of one thread where
//! others run ([`sys::fork`]).

pub mod capability;
pub mod interface;
pub mod netlink;
pub mod prefix;
pub mod signals;
pub mod sys;
