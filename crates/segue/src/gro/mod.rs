//! GRO: joins packets of a flow into trains.
//!
//! [`Gro::push`] takes a parsed packet, [`Gro::pop`] gives what is ready, [`Gro::deadline`] says when to call
//! [`Gro::expire`] at the latest; [`Gro::deliver`] and [`Gro::end_poll`] are the same for receivers that want to be called. A
//! packet that cannot be part of a train is passed on as it is, behind everything held of its flow, so that the packets of a
//! flow leave in the order in which they came. Nothing is lost: every packet pushed comes out once, alone or inside a train,
//! or is counted as swallowed.
//!
//! What has to be equal for two packets to join is *everything* in their headers but the fields of [`rules::VARYING`].
//! Payload is never copied. Checksums are verified before anything is joined, and lazily: a packet that stays alone is
//! not summed. Where a port knows the sum of a packet, that verifies it without touching payload; the sum belongs to the one
//! packet, so that a train is verified and has none. One train of a flow is held at a time, so a segment can only join the
//! newest.
//!
//! Trains are limited in bytes, with room for another segment of the size seen, and in packets. The limit on packets is no
//! substitute for the other: one that is derived from the receiver's MTU, as `inet_lro` had it, closes trains of 1500-byte
//! frames on a 9000-byte port after 7, where 43 fit.
//!
//! [`Profile`] says whose rules decide: [`Profile::Strict`] joins only what [`gso::split`](crate::gso::split) restores byte
//! for byte, [`Profile::Linux`] makes the trains that a kernel makes, except that order within a flow is kept here too, and
//! [`Profile::Lro`] is for receivers that end the connections themselves. With [`Config::acks`] it also lets pure
//! acknowledgments collapse to the newest one, which a sender's host is glad of.

mod acks;
mod config;
mod engine;
mod fast_path;
mod fast_path_rules;
mod form;
mod frame;
mod ip_id;
mod key;
mod lro;
mod next_segment;
mod pending_first;
mod places;
mod profile;
mod ready;
mod release;
pub mod rules;
mod slow_path;
mod stamps;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod verify;

pub use config::{Config, MAX_TRAIN_BYTES};
pub use engine::Gro;
pub use frame::Frame;
pub use profile::{Generation, Profile};
pub use rules::{Alone, Flush, Mismatch};
pub use stats::Stats;
