//! Segmentation: cuts a train into the packets that a port can take, as late as possible.
//!
//! [`split`] is the only way out of the engine. A single packet becomes one segment whose owed checksums are filled in as
//! far as the port cannot do it. A train stays whole where the port takes trains of its kind, is cut into smaller trains
//! where it is too large, and into single packets only where the port can do nothing. Every segment is a copy of the
//! headers with lengths, IPv4 identification, TCP sequence number and flags, GRE sequence number and checksums made its
//! own, at every level of a tunnel.
//!
//! The scatter form ([`split`]) writes headers to an [`Arena`] and names ranges of the packet's payload; the linear form
//! ([`split_linear`]) writes whole frames, copying and summing the payload in one pass. Both use the same rules and give
//! the same bytes.
//!
//! What each payload byte costs: nothing where the port or the far end of a tunnel computes the transport checksum, one
//! pass otherwise. Outer checksums never cost a second pass: the part of a packet that a good checksum covers sums to the
//! complement of its pseudo header, whatever the data (Linux calls this local checksum offload).
//!
//! A single packet that is longer than the port's MTU becomes IP fragments, by the same rules for both forms, where
//! [`Limits::fragment`] allows it; a train never does, each of its segments being a packet of its own.
//!
//! The payload of a train is taken to be the stream: padding must have been cut off before it became one.

mod arena;
mod check;
mod cursor;
mod cut;
mod finish;
mod fragment;
mod limits;
mod parts;
mod plan;
mod refusal;
mod segment;
mod split;
mod stamp;
mod whole;

pub use arena::{Arena, FragmentIds, Frame, Frames};
pub use cut::cut;
pub use finish::finish;
pub use limits::{Fragment, FreeTags, Limits, MAX_SEGS, MIN_TCP_SIZE};
pub use refusal::Refusal;
pub use segment::{Segment, SegmentCsum};
pub use split::{split, split_linear};
