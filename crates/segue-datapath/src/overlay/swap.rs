//! The exchange of peer tables between the thread that changes them and the worker.
//!
//! A table is built and freed by the thread that changes it. The worker looks at one number a round, and swaps two
//! pointers when there is a new table.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::table::Table;

/// The slots in which the control thread and the worker exchange tables.
#[derive(Debug, Default)]
struct Exchange {
    /// Whether `next` holds a table.
    waits: AtomicBool,
    /// Number of changes in progress.
    changes: AtomicUsize,
    next: Mutex<Option<Box<Table>>>,
    #[allow(clippy::vec_box, reason = "the worker moves pointers, not tables")]
    retired: Mutex<Vec<Box<Table>>>,
    /// Generation number of the table in force.
    generation: AtomicU64,
}

/// The sending half of the exchange, for the thread that changes the table.
#[derive(Clone, Debug)]
pub struct TableSender(Arc<Exchange>);

/// A guard for a change of the table in progress, until it is dropped.
#[derive(Debug)]
pub struct Changing(Arc<Exchange>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.changes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The receiving half of the exchange, for the worker.
#[derive(Debug)]
pub struct TableReceiver {
    exchange: Arc<Exchange>,
    /// Tables that could not be returned yet.
    #[allow(clippy::vec_box, reason = "as above")]
    kept: Vec<Box<Table>>,
}

/// Creates the sending and the receiving half of a table exchange.
pub fn exchange() -> (TableSender, TableReceiver) {
    let exchange = Arc::<Exchange>::default();
    (TableSender(Arc::clone(&exchange)), TableReceiver { exchange, kept: Vec::with_capacity(4) })
}

impl TableSender {
    /// Replaces the table: every packet that is read afterwards uses the new one. Frees the tables that the worker
    /// has handed back, and one that it never took.
    pub fn replace(&self, table: Box<Table>) {
        let old = self.0.next.lock().unwrap_or_else(PoisonError::into_inner).replace(table);
        self.0.waits.store(true, Ordering::Release);
        drop(old);
        let retired = std::mem::take(&mut *self.0.retired.lock().unwrap_or_else(PoisonError::into_inner));
        drop(retired);
    }

    /// Begins a change: while the returned value lives, the worker measures its rounds.
    pub fn changing(&self) -> Changing {
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        Changing(Arc::clone(&self.0))
    }

    /// Returns the generation number of the table that the worker uses.
    pub fn in_force(&self) -> u64 {
        self.0.generation.load(Ordering::Relaxed)
    }
}

impl TableReceiver {
    /// Returns whether a new table has not been taken yet.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.exchange.waits.load(Ordering::Relaxed)
    }

    /// Returns whether the table is being changed, or a new one has not been taken yet.
    #[inline]
    pub(super) fn is_changing(&self) -> bool {
        self.is_waiting() || self.exchange.changes.load(Ordering::Relaxed) > 0
    }

    /// Exchanges `present` for the new table. Returns whether it did; otherwise it is to be tried again in the next
    /// round. It neither waits nor frees memory.
    pub(super) fn take(&mut self, present: &mut Box<Table>) -> bool {
        let Ok(mut next) = self.exchange.next.try_lock() else { return false };
        self.exchange.waits.store(false, Ordering::Relaxed);
        let Some(table) = next.take() else { return false };
        drop(next);
        self.exchange.generation.store(table.generation(), Ordering::Relaxed);
        self.kept.push(std::mem::replace(present, table));
        if let Ok(mut retired) = self.exchange.retired.try_lock() {
            retired.append(&mut self.kept);
        }
        true
    }
}
