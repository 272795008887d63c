//! The thread that follows the changes of the registry.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::etcd::{Etcd, EtcdError, Position};
use crate::event::Event;
use crate::keeper::LONGEST_WAIT;
use crate::roster::{Policy, Roster};

/// Longest duration of one watch. A member whose host vanished without a word is noticed after this time at the latest.
const WATCH: Duration = Duration::from_secs(20);
/// Duration below which a watch counts as ended by the member.
const SHORT: Duration = Duration::from_secs(1);

/// Lists all keys of the leases and reports their changes, until the receiver of `events` is gone. Where `list_again`
/// is set, where a compaction has removed changes that are not known yet, where they are too long for one message, and
/// where the history of the registry is another one, all keys are listed anew. A list that fails for such a reason has
/// reached nothing. A watch that runs goes on to its end before: what others write causes `list_again`, and a list
/// takes much more than a change.
pub fn run(
    mut etcd: Etcd,
    policy: &Policy,
    longest_wait: Duration,
    events: &SyncSender<Event>,
    list_again: &AtomicBool,
) {
    let mut backoff = Backoff::new(LONGEST_WAIT.min(longest_wait));
    let mut position = None;
    loop {
        if list_again.swap(false, Ordering::Relaxed) {
            position = None;
        }
        let is_list = position.is_none();
        let round = match &position {
            None => list(&mut etcd, policy, events).map(|listed| {
                position = listed;
                position.is_some()
            }),
            Some(from) => {
                let watched = watch(&mut etcd, &policy.directory, from, events, &mut backoff);
                watched.map(|(last, goes_on)| {
                    position = Some(last);
                    goes_on
                })
            }
        };
        let why = match round {
            Ok(true) => continue,
            Ok(false) => return,
            Err(EtcdError::Compacted | EtcdError::TooLong | EtcdError::Diverged) if !is_list => {
                // A list follows; where no watch can continue from there either, lists have a growing distance.
                position = None;
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

/// Lists and reports all keys. Returns the position of the list, or `None` when the agent ends.
fn list(etcd: &mut Etcd, policy: &Policy, events: &SyncSender<Event>) -> Result<Option<Position>, EtcdError> {
    let mut roster = Box::new(Roster::new(policy.clone()));
    let listed = etcd.list(&policy.directory, |record| roster.put(&record))?;
    Ok(events.send(Event::Listed(roster, listed.revision)).is_ok().then_some(listed))
}

/// Watches the registry after the position `from`, and reports each change until the watch is begun anew. Returns the
/// last position, and whether the agent continues.
fn watch(
    etcd: &mut Etcd,
    directory: &str,
    from: &Position,
    events: &SyncSender<Event>,
    backoff: &mut Backoff,
) -> Result<(Position, bool), EtcdError> {
    let mut last = from.clone();
    let begin = Instant::now();
    let mut began = false;
    let mut goes_on = true;
    let endpoint = etcd.endpoint().to_owned();
    let mut failed = None;
    let outcome = etcd.watch(directory, from, WATCH, |batch| {
        last.revision = last.revision.max(batch.revision);
        began = true;
        backoff.succeeded();
        goes_on = events.send(Event::Changed(batch, endpoint.clone())).is_ok();
        goes_on
    });
    match outcome {
        Ok(()) if !began => failed = Some(EtcdError::Unreachable(format!("{endpoint}: it does not begin a watch"))),
        // A member that ends each watch at once is not asked without a pause.
        Ok(()) if goes_on && begin.elapsed() < SHORT => std::thread::sleep(SHORT / 4),
        Ok(()) => {}
        // The next watch starts at the revision after those that this one has brought.
        Err(error @ (EtcdError::Compacted | EtcdError::TooLong | EtcdError::Diverged)) => failed = Some(error),
        Err(error) if last == *from => failed = Some(error),
        Err(_) => {}
    }
    failed.map_or(Ok((last, goes_on)), Err)
}
