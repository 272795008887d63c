//! The thread that follows the changes of the registry.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::etcd::{Etcd, EtcdError};
use crate::event::Event;
use crate::keeper::LONGEST_WAIT;

/// Longest duration of one watch. A member whose host vanished without a word is noticed after this time at the latest.
const WATCH: Duration = Duration::from_secs(20);
/// Duration below which a watch counts as ended by the member.
const SHORT: Duration = Duration::from_secs(1);

/// Lists all keys that begin with `directory` and reports their changes, until the receiver of `events` is gone. Where
/// `list_again` is set, where a compaction has removed changes that are not known yet, and where they are too long for
/// one message, all keys are listed anew.
pub fn run(
    mut etcd: Etcd,
    directory: &str,
    longest_wait: Duration,
    events: &SyncSender<Event>,
    list_again: &AtomicBool,
) {
    let mut backoff = Backoff::new(LONGEST_WAIT.min(longest_wait));
    let mut revision = None;
    loop {
        if list_again.swap(false, Ordering::Relaxed) {
            revision = None;
        }
        let round = match revision {
            None => list(&mut etcd, directory, events).map(|listed| {
                revision = listed;
                listed.is_some()
            }),
            Some(from) => watch(&mut etcd, directory, from, events, list_again).map(|(last, goes_on)| {
                revision = Some(last);
                goes_on
            }),
        };
        let why = match round {
            Ok(true) => {
                backoff.succeeded();
                continue;
            }
            Ok(false) => return,
            Err(EtcdError::Compacted | EtcdError::TooLong) => {
                // A list follows; where even that is compacted before its watch begins, at a growing distance.
                revision = None;
                std::thread::sleep(backoff.failed());
                continue;
            }
            Err(error) => error.to_string(),
        };
        if events.send(Event::Stale(why)).is_err() {
            return;
        }
        std::thread::sleep(backoff.failed());
    }
}

/// Lists and reports all keys. Returns their revision, or `None` when the agent ends.
fn list(etcd: &mut Etcd, directory: &str, events: &SyncSender<Event>) -> Result<Option<i64>, EtcdError> {
    let listing = etcd.list(directory)?;
    let revision = listing.revision;
    Ok(events.send(Event::Listed(listing)).is_ok().then_some(revision))
}

/// Watches the registry from the revision `from` on, and reports each change until the watch is begun anew. Returns the
/// last revision, and whether the agent continues.
fn watch(
    etcd: &mut Etcd,
    directory: &str,
    from: i64,
    events: &SyncSender<Event>,
    list_again: &AtomicBool,
) -> Result<(i64, bool), EtcdError> {
    let mut last = from;
    let begin = Instant::now();
    let mut began = false;
    let mut goes_on = true;
    let endpoint = etcd.endpoint().to_owned();
    let mut failed = None;
    let outcome = etcd.watch(directory, from + 1, WATCH, |batch| {
        last = last.max(batch.revision);
        began = true;
        goes_on = events.send(Event::Changed(batch, endpoint.clone())).is_ok();
        goes_on && !list_again.load(Ordering::Relaxed)
    });
    match outcome {
        Ok(()) if !began => failed = Some(EtcdError::Unreachable(format!("{endpoint}: it does not begin a watch"))),
        // A member that ends each watch at once is not asked without a pause.
        Ok(()) if goes_on && begin.elapsed() < SHORT => std::thread::sleep(SHORT / 4),
        Ok(()) => {}
        // The next watch starts at the revision after those that this one has brought.
        Err(error @ (EtcdError::Compacted | EtcdError::TooLong)) => failed = Some(error),
        Err(error) if last == from => failed = Some(error),
        Err(_) => {}
    }
    failed.map_or(Ok((last, goes_on)), Err)
}
