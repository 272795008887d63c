//! Types shared by threads, under names that `tools/loom` replaces with models to explore interleavings.

pub(crate) use std::io::{PipeReader, PipeWriter, pipe};
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
pub(crate) use std::sync::{Arc, Mutex};
