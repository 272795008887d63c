//! Long-running instances of segue: tunnels, gateways and LAN78xx adapters, each in a process that gives up its rights.
//!
//! A caller describes an instance by a plan ([`tunnel`], [`gateway`], [`adapter`]) and runs it with [`daemon::up`]:
//! devices are opened with all rights, then the process drops them ([`sandbox`]), serves its control socket
//! ([`control_server`]) and moves packets until a signal ends it. [`supervise`] keeps several such processes, follows
//! a configuration, and hands interfaces from one process to the next ([`handover`]).
//!
//! The crate promises that nothing of the system is changed before all that can be checked is checked, that each
//! change is reported as the command that a person could type, and that an instance takes its interfaces, sockets and
//! files with it when it ends. It refuses a second instance of a name, a second gateway between two interfaces, and a
//! start where the sandbox cannot be made. It reads no command line and no configuration file and prints nothing by
//! itself: its output goes to a [`report::Report`].

pub mod adapter;
pub mod apply;
pub mod control_server;
pub mod daemon;
pub mod diagnose;
pub mod gateway;
pub mod handover;
pub mod profile;
pub mod report;
pub mod router_feed;
pub mod sandbox;
pub mod supervise;
pub mod tap;
pub mod tunnel;
