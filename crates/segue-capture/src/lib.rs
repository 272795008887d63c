//! Capture files, and the transformations that offload engines apply to their packets.
//!
//! [`mod@file`] reads and writes pcap and pcapng as a stream. Each other module is one function over a
//! [`Reader`](file::Reader) and, where it writes, a [`Writer`](file::Writer):
//!
//! - [`merge`](merge::merge) joins packets into trains, as GRO does;
//! - [`undo`](undo::undo) restores the packets that were merged;
//! - [`split`](split::split) cuts trains and finishes checksums, into what was on the wire;
//! - [`decap`](decap::decap) removes one layer of tunnel;
//! - [`verify`](verify::verify) judges every checksum and length;
//! - [`survey`](survey::survey) counts sizes, flows and tunnels, and what would merge.
//!
//! # Lifecycle
//! Open a `Reader`, create a `Writer`, call the function once with a configuration,
//! [finish](file::Writer::finish) the writer, and look at the report: its `fault` says where the input is cut or
//! damaged. After an `Err` the output is of no use.
//!
//! ```
//! use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Reader, Writer, link};
//! use segue_capture::merge::{MergeConfig, merge};
//! use segue_capture::undo::undo;
//!
//! // A capture of one packet, in memory; any `Read` and `Write` will do.
//! let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 262_144, link: u32::from(link::RAW) };
//! let mut capture = Writer::new(Vec::new(), Format::Pcap);
//! capture.begin_pcap(&head, &head.bytes(), &[])?;
//! capture.packet(&Outgoing { interface: 0, ticks: Some(1_000), len: 4, data: &[&[1, 2, 3, 4]], options: &[] })?;
//! let capture = capture.finish()?;
//!
//! let mut merged = Writer::new(Vec::new(), Format::Pcapng);
//! let report = merge(&mut Reader::new(&capture[..])?, &mut merged, &MergeConfig::default())?;
//! assert!(report.can_undo && report.fault.is_none());
//! let merged = merged.finish()?;
//!
//! let mut restored = Writer::new(Vec::new(), Format::Pcap);
//! undo(&mut Reader::new(&merged[..])?, &mut restored)?;
//! assert_eq!(restored.finish()?, capture);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - Memory is bounded by fixed windows, whatever the size of the file, and no input makes it panic.
//! - Packets that it does not understand are written byte for byte as they were read.
//! - `undo` of a `merge` into pcapng restores the input byte for byte; if the merge dropped acknowledgments (profile
//!   `lro`), `undo` refuses.
//! - A wrong checksum stays wrong in every packet made from it, unless
//!   [`SplitConfig::fix_all`](split::SplitConfig::fix_all) is set.
//!
//! # Limits
//! It opens no file, prints nothing and knows no command line: failures are a typed [`CaptureError`]. Of this
//! workspace it uses the engine only.
#![warn(clippy::missing_errors_doc)]
// The pages of docs.rs say which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
