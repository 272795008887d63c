//! Long-running instances of segue: tunnels, gateways and LAN78xx adapters, each in a process that drops its
//! privileges.
//!
//! A caller describes an instance by a plan ([`tunnel`], [`gateway`], [`adapter`]) and runs it with [`daemon::up`].
//! [`supervise`] runs several instances as child processes, follows a configuration, and restarts those that end.
//!
//! # Lifecycle
//! 1. The plan is checked against the system: interfaces, routes, MTUs. Nothing is changed yet, and `--check` ends
//!    here.
//! 2. With all rights, the process opens its control socket, its devices and its sockets, and configures the
//!    interfaces ([`daemon::Daemon::open`]). A successor receives open ports from the supervisor instead
//!    ([`handover`]).
//! 3. The process gives up its rights ([`sandbox`]): it changes its user, drops its capabilities, and restricts itself
//!    by Landlock and seccomp.
//! 4. Inside of the sandbox it assembles the pipeline of `segue-datapath`, serves the control socket
//!    ([`control_server`]), and reports that it is up.
//! 5. The main thread moves packets. Threads of their own serve the control socket, wait for signals and for requests
//!    of the supervisor, and read the routes of a router ([`router_feed`]).
//! 6. SIGINT or SIGTERM ends the instance within a round of the packet loop; a second one ends it at once. The final
//!    counters are part of the down event.
//!
//! # Promises
//! - Nothing of the system is changed before all that can be checked is checked.
//! - Each change is reported as the command that a person could type ([`apply`]).
//! - An instance that ends leaves no interface, socket or file of its own behind.
//! - A client of the control socket cannot delay packets, and all its resources are bounded.
//! - A failure says what failed, why as far as this process can find out ([`diagnose`]), and what to try.
//!
//! # Limits
//! It refuses a second instance of a name, a second gateway between the same two interfaces, and a start where rights
//! cannot be given up. It reads no command line and no configuration file, and prints nothing by itself: its output
//! goes to a [`report::Report`].

pub mod adapter;
pub mod apply;
mod closing;
mod connection;
pub mod control_server;
pub mod daemon;
pub mod diagnose;
pub mod doctor;
pub mod fastpath;
pub mod fault;
pub mod forward;
pub mod gateway;
pub mod handover;
mod health;
pub mod heartbeat;
pub mod peers;
pub mod profile;
pub mod reasons;
pub mod report;
pub mod router_faults;
pub mod router_feed;
pub mod sandbox;
pub mod socket_file;
mod started;
mod steering;
pub mod supervise;
pub mod tap;
pub mod tunnel;
pub mod vhost;
