//! Capture files, and what offload engines do to the packets in them.
//!
//! [`file`] reads and writes pcap and pcapng as a stream. On it stand five transformations and inspections, each one function over a
//! [`Reader`](file::Reader) and, where it writes, a [`Writer`](file::Writer): [`merge`](merge::merge) joins packets into trains as GRO does,
//! [`undo`](undo::undo) takes exactly these apart again, [`split`](split::split) cuts trains into what was on the wire,
//! [`decap`](decap::decap) takes one layer of tunnel off, [`verify`](verify::verify) judges every checksum,
//! [`survey`](survey::survey) counts.
//!
//! # Lifecycle
//! Open a `Reader`, create a `Writer`, call the function once with a configuration, [finish](file::Writer::finish) the writer, and look at the
//! report: its `fault` says whether the input was cut or damaged. After an `Err` what was written is of no use.
//!
//! # What it promises
//! - Memory is bounded by fixed windows, whatever the size of the file, and nothing in a file makes it panic.
//! - What it does not understand goes through byte for byte.
//! - `undo` of a `merge` into pcapng gives the input back byte for byte, unless acknowledgments were swallowed (profile `lro`), and
//!   then refuses.
//! - A wrong checksum stays wrong by as much in everything that is made of a packet, unless
//!   [`SplitConfig::fix_all`](split::SplitConfig::fix_all) asks otherwise.
//!
//! # What it refuses
//! It opens no file, prints nothing and knows no command line: input is any `Read`, output any `Write`, and failures are a typed
//! [`CaptureError`]. Of the house it uses the engine only.

mod checksums;
pub mod decap;
mod error;
pub mod file;
mod finish;
mod fragment;
mod frame;
mod lanes;
pub mod merge;
pub mod split;
mod stream;
pub mod survey;
pub mod undo;
pub mod verify;

pub use checksums::{Finding, Layer, PacketVerdict, Verdict};
pub use error::CaptureError;
pub use frame::USUAL_MTU;
