//! The counters of segue's instances as metrics, in the text format of Prometheus and in OpenMetrics.
//!
//! The counters are those of `segue stat`: the same document ([`segue_control::model`]) is read over the same control
//! sockets. [`family::FAMILIES`] is the only list of metrics; the documentation and the dashboard are compared with it.
//!
//! # Lifecycle
//! 1. [`Scrape::now`] asks every instance that this user can see.
//! 2. [`Scrape::samples`] turns the answers into samples, [`text::render`] the samples into text.
//!
//! # Promises
//! - A counter that is 0 is left out, and so is a family without samples: what never happened costs nothing.
//! - Labels are names of instances, ports, stages and reasons; never addresses, users or flows.

pub mod family;
mod scrape;
pub mod text;

pub use scrape::{Scrape, Sentence};
