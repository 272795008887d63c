//! GRO: joins packets of a flow into trains.
//!
//! [`Gro::push`] takes a parsed packet, [`Gro::pop`] returns what is ready, [`Gro::deadline`] says when [`Gro::expire`]
//! must be called at the latest; [`Gro::deliver`] and [`Gro::end_poll`] do the same with a callback. A packet that
//! cannot be part of a train is passed on unchanged, after everything held of its flow, so that the packets of a flow
//! leave in their order of arrival. Nothing is lost: every packet pushed comes out once, alone or inside a train, or is
//! counted as swallowed.
//!
//! Two packets join only if *everything* in their headers is equal except the fields of [`rules::VARYING`]. Payload is
//! never copied. Checksums are verified before anything is joined, and lazily: a packet that stays alone is not summed.
//! Where a port knows the sum of a packet, that verifies the packet without touching its payload; the sum belongs to
//! that one packet, so a train is verified and has none. One train of a flow is held at a time, so a segment can only
//! join the newest one.
//!
//! Trains are limited in bytes, exactly, and in packets: as in Linux a train without room for another full segment
//! still takes a shorter last one. The limit on packets cannot replace the limit on bytes: one that is derived from the
//! receiver's MTU, as in `inet_lro`, closes trains of 1500-byte frames on a 9000-byte port after 7 segments, where 43
//! fit.
//!
//! [`Profile`] selects the rules: [`Profile::Strict`] joins only what [`gso::split`](crate::gso::split) restores byte
//! for byte, [`Profile::Linux`] makes the trains that a Linux kernel makes, except that order within a flow is kept,
//! and [`Profile::Lro`] is for receivers that terminate the connections themselves. With [`Config::acks`] it also lets
//! pure acknowledgments collapse to the newest one, which saves work at the sender.

mod acks;
mod config;
mod engine;
mod fast_path;
mod fast_path_rules;
#[cfg(test)]
mod fast_path_tests;
mod form;
mod ip_id;
mod key;
mod lro;
mod next_segment;
mod pending_first;
mod profile;
mod ready;
mod refuse;
mod release;
pub mod rules;
mod slots;
mod slow_path;
mod stamps;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod tunnel_form;
#[cfg(test)]
mod tunnel_form_tests;
#[cfg(test)]
mod tunnel_shapes;
mod tunnelled;
#[cfg(test)]
mod tunnelled_tests;
mod verify;

pub use crate::packet::Frame;
pub use config::{Config, MAX_TRAIN_BYTES};
pub use engine::Gro;
pub use profile::{Generation, Profile};
pub use release::Popped;
pub use rules::{Flush, Mismatch, RefusalReason};
pub use stats::Stats;
