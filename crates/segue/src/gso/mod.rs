//! Segmentation (GSO): splits a train into packets that a port accepts, as late as possible.
//!
//! [`split()`] is the only exit of the engine. A single packet becomes one segment whose owed checksums are filled in
//! as far as the port cannot do it. A train stays whole if the port takes trains of its kind, is cut into smaller
//! trains if it is too large, and into single packets only if the port takes no trains of its kind. Every segment is a
//! copy of the headers with its own lengths, IPv4 identification, TCP sequence number and flags, GRE sequence number
//! and checksums, at every level of a tunnel.
//!
//! The scatter form ([`split()`]) writes headers to an [`Arena`] and refers to ranges of the packet's payload; the
//! linear form ([`split_linear`]) writes whole frames, copying and summing the payload in one pass. Both use the same
//! rules and give the same bytes.
//!
//! Cost of a payload byte: nothing if the port or the far end of a tunnel computes the transport checksum, one pass
//! otherwise. Outer checksums never cost a second pass: the part of a packet that a good checksum covers sums to the
//! complement of its pseudo header, whatever the data (Linux calls this local checksum offload).
//!
//! A single packet that is longer than the port's MTU becomes IP fragments, by the same rules in both forms, if
//! [`Limits::fragment`] allows it; a train never does, since each of its segments is a packet of its own.
//!
//! All payload of a train counts as stream data: padding must have been cut off before a packet became part of it.

mod arena;
mod check;
mod cursor;
mod cut;
mod finish;
mod fragment;
mod limits;
mod owing;
mod parts;
mod plan;
mod prime;
mod refusal;
mod segment;
mod split;
mod stamp;
#[cfg(test)]
mod tests;
mod uncut;
mod whole;

pub use arena::{Arena, FragmentIds, Frame, Frames};
pub use cut::cut;
pub use finish::finish;
pub use limits::{Fragment, FreeTags, Limits, MAX_SEGS, MIN_TCP_SIZE};
pub use owing::push_owing;
pub(crate) use prime::verify;
pub use prime::{fill, prime, request_checksum};
pub use refusal::Refusal;
pub use segment::{Segment, SegmentCsum};
pub(crate) use split::push_joined;
pub use split::{split, split_linear};
