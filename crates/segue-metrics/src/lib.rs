//! The counters of segue's instances as metrics, in the text format of Prometheus and in OpenMetrics.
//!
//! The counters are those of `segue stat`: the same document ([`segue_control::model`]) is read over the same control
//! sockets. [`family::FAMILIES`] is the only list of metrics; the documentation and the dashboard are compared with it.
//!
//! # Lifecycle
//! 1. [`Scrape::now`] asks every instance that this user can see.
//! 2. [`Scrape::samples`] turns the answers into samples, [`text::render`] the samples into text.
//! 3. [`confine`] gives up the rights that a server does not need.
//! 4. [`serve::Server`] does both for each request over HTTP, [`textfile::write`] for node_exporter's textfile
//!    collector.
//!
//! # Promises
//! - A counter that is 0 is left out, and so is a family without samples: what never happened costs nothing.
//! - Labels are names of instances, ports, stages and reasons; never addresses, users or flows.
//! - The instances are asked at most four times a second, however many clients ask the server.
//! - Instances that do not answer in time are reported as such. They delay an answer by three seconds, up to 64 of them
//!   together.
//! - Number of clients, bytes of a request and seconds of a connection are bounded.
//!
//! # Limits
//! HTTP/1.1 without TLS, users or persistent connections: it belongs on a loopback address, a unix socket, or behind a
//! proxy.

mod confinement;
pub mod family;
pub mod listen;
pub mod request;
mod scrape;
pub mod serve;
pub mod text;
pub mod textfile;

pub use confinement::confine;
pub use scrape::{Scrape, Sentence};
