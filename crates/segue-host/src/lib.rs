//! The Linux host as segue uses it: system calls, rtnetlink and signals, each behind a safe function.
//!
//! - [`sys`] has the system calls that the standard library lacks: fork and wait, capabilities, namespaces, signalfd,
//!   poll, abstract sockets, and the ioctls of TUN devices;
//! - [`netlink`] reads links, addresses, routes and nexthop objects, and changes them on request;
//! - [`netfilter`] finds rules and policies that packets of this host pass;
//! - [`error_queue`] reads the ICMP errors about datagrams that a socket has sent;
//! - [`mod@file`] replaces a file in one step, and removes one only if no other has taken its name;
//! - [`output`] writes a file beside its name, which it gets when it is complete;
//! - [`signals`] turns the signals of a long-running process into events of its loop;
//! - [`stderr`] tells whether a message can be written without a wait for its reader, and [`stdout`] writes events so;
//! - [`names`] asks the resolver for the addresses of several names at a time;
//! - [`process`] and [`memory`] are what a supervisor needs: changes of a child, numbers shared with it, and rights to
//!   give up;
//! - [`sandbox`] has the limits of Landlock, and the filter of system calls of a process that asks others;
//! - [`activation`] takes over the sockets that a service manager passes, and [`clock`] knows the time zone;
//! - [`address`] parses addresses with a port, and has the rule for those of one host; [`capability`], [`interface`]
//!   and [`prefix`] are the small types for these.
//!
//! # Lifecycle
//! [`netlink::Netlink::open`] and [`signals::Signals::new`] open one descriptor each, which is closed when the value is
//! dropped. All else are single calls. A `Signals` is created before the process starts threads, so that the signals
//! are blocked in every one of them; those of [`names`] block them by themselves.
//!
//! ```no_run
//! use segue_host::netlink::Netlink;
//!
//! let mut netlink = Netlink::open()?;
//! let lo = netlink.link_named("lo")?.expect("every network namespace has a loopback interface");
//! assert!(netlink.addresses(lo.index)?.iter().all(|prefix| prefix.address.is_loopback()));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Promises
//! - A failure is an [`std::io::Error`] with the error number of the system, where the system has given one.
//! - Every descriptor that it opens has the close-on-exec flag and one owner.
//! - Nothing of the system is changed except by the call that is named after the change.
//!
//! # Limits
//! It does not know tunnels, gateways or the control socket, and prints nothing but what [`stdout`] is given. It
//! refuses to fork a process with several threads ([`sys::fork`]), since the child could wait for a lock for ever.

pub mod activation;
pub mod address;
pub mod capability;
pub mod clock;
pub mod error_queue;
pub mod file;
pub mod interface;
pub mod memory;
pub mod names;
pub mod netfilter;
pub mod netlink;
pub mod output;
pub mod peer;
pub mod prefix;
pub mod process;
pub mod sandbox;
pub mod signals;
pub mod stderr;
pub mod stdout;
pub mod sys;
