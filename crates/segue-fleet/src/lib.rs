//! Controllers of a tunnel's peer table: segue as a node of a flannel network with etcd as its registry, and as the
//! datapath of flannel's `extension` backend.
//!
//! - [`network`], [`config`], [`lease`] and [`refusal`] are flannel's registry: what its entries say, and why one is
//!   refused;
//! - [`roster`] makes peers of entries, [`grace`] keeps those that are gone for a time, and [`allocate`] chooses this
//!   host's subnet; all without I/O;
//! - [`etcd`] is the client, of which `answer` reads the documents, [`backoff`] the time between its attempts;
//! - [`keeper`] gets this host's lease and keeps it, [`follow`] follows the changes of the others, and [`agent`] is the
//!   loop that keeps the table equal to them; [`event`] is what they report, [`refusal_log`] the lines of its log for
//!   entries that are refused;
//! - [`hook`] has the commands of flannel's `extension` backend;
//! - [`args`] is the command line, [`connect`] the connection that it describes;
//! - [`datapath`] is the tunnel as they see it, [`subnet_env`] flannel's file for other programs.
//!
//! # Lifecycle
//! The agent waits for its tunnel, gets a lease, lists the registry, sets the table, and follows. While etcd is out of
//! reach, the table stays. At its end the lease and the table stay.
//!
//! # Promises
//! - A lease is outside input: each entry is judged by itself and refused under a named reason.
//! - Below `PREFIX/subnets` only this host's own lease is written.
//! - The datapath is reached through its control socket only; the agent needs no capability.
//! - Memory is bounded by the number of peers ([`roster::PEERS`]), and each call by a time.
//!
//! # Limits
//! IPv4 subnets only; of a dual-stack lease the IPv4 part is used. The configuration of the network is read once. No
//! discovery, no keys, no NAT traversal.

pub mod agent;
pub mod allocate;
mod answer;
pub mod args;
pub mod backoff;
pub mod config;
pub mod connect;
pub mod datapath;
pub mod etcd;
pub mod event;
pub mod follow;
pub mod grace;
pub mod hook;
pub mod keeper;
pub mod lease;
pub mod network;
pub mod refusal;
pub mod refusal_log;
pub mod roster;
pub mod subnet_env;
