//! Preservation of peer tables over a reload: a restarted tunnel gets its previous table, also where a refused reload
//! had ended it, and then reloads its file as a continuing one does.
//!
//! A table takes time to be made, and an instance may not answer: all tunnels are asked at the same time, and the
//! service manager is told meanwhile that the service is alive. A large table is asked for or sent only where the
//! instance has just answered a small request.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_control::peers::{Change, Table};
use segue_control::protocol::TABLE_LEN;

use super::file;
use super::notify::Notify;
use super::spec::InstanceSpec;
use crate::started;

/// Largest number of tunnels that are asked at the same time.
const TOGETHER: usize = 32;
/// Longest wait for the next outcome. The requests to a tunnel end by themselves before that: it is for a file in a
/// file system that does not answer.
const LONGEST: Duration = Duration::from_secs(100);

/// Returns the current tables of the instances `ending` that have one, with their names, and the failures.
pub(super) fn present(ending: &[&InstanceSpec], notify: &mut Notify) -> (Vec<(String, Table)>, Vec<Error>) {
    let with_table = ending.iter().filter(|spec| spec.table().is_some());
    let names = with_table.map(|spec| spec.name.clone()).collect();
    let read = |name: &String, _: &AtomicBool| -> Result<(String, Table), Error> {
        client::one(name)?;
        Ok((name.clone(), client::peers(name)?.table()))
    };
    let (mut tables, mut lost) = (Vec::new(), Vec::new());
    for outcome in each(names, notify, read).into_iter().flatten() {
        match outcome {
            Ok(table) => tables.push(table),
            // Others have no process, or no table.
            Err(error) if error.kind == Kind::System => lost.push(error),
            Err(_) => {}
        }
    }
    (tables, lost)
}

/// Returns those of the new `specs` that get the table of the instance of `ending` with their name: it has the same
/// file of peers, or none. With a file that was not there before a tunnel has the table of its start, and so has one of
/// `pipes`, whose file is empty after that.
pub(super) fn successors(specs: &[InstanceSpec], ending: &[&InstanceSpec], pipes: &[String]) -> Vec<InstanceSpec> {
    let inherits = |spec: &&InstanceSpec| {
        let old = ending.iter().find(|old| old.name == spec.name).and_then(|old| old.table());
        let is_same = spec.table().zip(old).is_some_and(|(new, old)| new.file == old.file);
        is_same && !pipes.contains(&spec.name)
    };
    specs.iter().filter(inherits).cloned().collect()
}

/// Restores the tables of restarted tunnels, unless the file of the start has a later one. Returns the failures, each
/// with the name of its tunnel.
pub(super) fn restore(tables: Vec<(String, Table)>, notify: &mut Notify) -> Vec<(String, Error)> {
    let names: Vec<String> = tables.iter().map(|(name, _)| name.clone()).collect();
    let restore = |(name, table): &(String, Table), _: &AtomicBool| -> Result<(), Error> {
        client::one(name)?;
        let now = client::peers(name)?.generation;
        if table.generation.is_some_and(|before| before > now) {
            client::peer_sync(name, table)?;
        }
        Ok(())
    };
    let outcomes = names.into_iter().zip(each(tables, notify, restore));
    let lost = outcomes.filter_map(|(name, outcome)| Some((name, outcome?.err()?)));
    // What does not run has the table of its next start.
    lost.filter(|(_, error)| error.kind != Kind::NotFound).collect()
}

/// Reloads the peer table file of each of the tunnels that has one, over the table that it had before the reload.
/// Returns the failures, of which each tunnel that answers is told too.
pub(super) fn load<'a>(specs: impl Iterator<Item = &'a InstanceSpec>, notify: &mut Notify) -> Vec<Error> {
    of_files(specs, notify, |(name, path), is_over| load_one(name, path, is_over)).1
}

/// Checks the files with the peers of tunnels that are about to be started: one that is no table is found before
/// running tunnels end for it. Returns the names of the tunnels whose file is a pipe, or special otherwise.
///
/// # Errors
/// The first of the files that cannot be read, or are no table.
pub(super) fn check(specs: &[InstanceSpec], notify: &mut Notify) -> Result<Vec<String>, Error> {
    let (found, failures) = of_files(specs.iter(), notify, |(name, path), _| check_one(name, path));
    failures.into_iter().next().map_or(Ok(found.into_iter().flatten().collect()), Err)
}

/// Checks the file with the peers of the tunnel `name`. Returns the name for a pipe, which is the tunnel's to read: it
/// gives what it has once.
fn check_one(name: &str, path: &Path) -> Result<Option<String>, Error> {
    let _now = ReadNow::begin(name, path)?;
    let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
    if is_special { Ok(Some(name.to_owned())) } else { table_of(path).map(|_| None) }
}

/// Calls `work` for each of the tunnels with its file of peers, if it has one. Returns the results and the failures.
fn of_files<'a, R: Send + 'static>(
    specs: impl Iterator<Item = &'a InstanceSpec>,
    notify: &mut Notify,
    work: fn(&(String, PathBuf), &AtomicBool) -> Result<R, Error>,
) -> (Vec<R>, Vec<Error>) {
    let with_file = |spec: &InstanceSpec| Some((spec.name.clone(), spec.table()?.file.clone()?));
    let all: Vec<(String, PathBuf)> = specs.filter_map(with_file).collect();
    let outcomes = each(all.clone(), notify, work);
    let silent =
        |path: &Path| unread(path, &io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer"));
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for ((_, path), outcome) in all.iter().zip(outcomes) {
        match outcome.unwrap_or_else(|| Err(silent(path))) {
            Ok(result) => results.push(result),
            Err(failure) => failures.push(failure),
        }
    }
    (results, failures)
}

/// Loads the peer table of the tunnel `name` from its file, unless that is over meanwhile.
fn load_one(name: &str, path: &Path, is_over: &AtomicBool) -> Result<(), Error> {
    let table = read(name, path);
    if is_over.load(Ordering::Relaxed) {
        return Ok(());
    }
    let answers = client::one(name);
    let refused = match (table, answers) {
        (Err(wrong), Err(_)) => return Err(wrong),
        (Ok(_), Err(silent)) => return Err(silent),
        (Err(wrong), Ok(_)) => wrong,
        (Ok(table), Ok(_)) => match client::peer_sync(name, &table) {
            Ok(changes) => {
                // The state of the tunnel names them all; the others are in force.
                let Some(first) = changes.refused_peers.first() else { return Ok(()) };
                let message = format!("{}: {} of the peers are refused", path.display(), changes.refused);
                return Err(Error::new(Kind::BadValue, message, "segue stat -j").why(first.to_string()));
            }
            // One that does not answer shows nothing in its state either.
            Err(silent) if silent.kind == Kind::System => return Err(silent),
            Err(refused) => refused,
        },
    };
    let _ = client::peer_change(name, Change::Keep(refused.sentence()));
    Err(refused)
}

/// The tunnels whose files are being read; one with its file in a file system that does not answer stays here.
static READ_NOW: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A tunnel in [`READ_NOW`], until this is dropped.
struct ReadNow<'n>(&'n str);

impl<'n> ReadNow<'n> {
    /// Notes that the file of a tunnel is read; `None` where that is so already.
    fn of(name: &'n str) -> Option<ReadNow<'n>> {
        let is_new = READ_NOW.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        // Not made in vain: to drop it would take the tunnel out.
        is_new.then(|| ReadNow(name))
    }

    /// Notes it as [`of`](Self::of) does. Refuses where an earlier reload still waits for the file: a thread cannot be
    /// taken back from a file system that does not answer, and each reload would leave one more.
    fn begin(name: &'n str, path: &Path) -> Result<ReadNow<'n>, Error> {
        let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "an earlier reload still waits for its file system");
        ReadNow::of(name).ok_or_else(|| unread(path, &busy()))
    }
}

impl Drop for ReadNow<'_> {
    fn drop(&mut self) {
        READ_NOW.lock().unwrap_or_else(PoisonError::into_inner).remove(self.0);
    }
}

/// Reads the file with the peers of the tunnel `name`, unless an earlier reload still waits for it.
fn read(name: &str, path: &Path) -> Result<Table, Error> {
    let _now = ReadNow::begin(name, path)?;
    table_of(path)
}

/// Reads a file with peers, within its limits.
fn table_of(path: &Path) -> Result<Table, Error> {
    let text = file::read(path, TABLE_LEN).map_err(|error| unread(path, &error))?;
    if text.len() > TABLE_LEN {
        let why = format!("it has more than {TABLE_LEN} bytes");
        return Err(unread(path, &io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    Table::read(&text, &path.display().to_string())
}

/// Returns the error for a file with peers that cannot be read.
fn unread(path: &Path, error: &io::Error) -> Error {
    Error::system(format!("cannot read the peers in {}", path.display()), error, "correct the file, then: segue reload")
}

/// Calls `work` for each of `all`, many at the same time, while the service manager is told that the service is alive.
/// Returns the outcomes in the order of `all`; `None` for those that have not come by [`LONGEST`], of which `work` is
/// told by its second argument.
fn each<T: Send + 'static, R: Send + 'static>(
    all: Vec<T>,
    notify: &mut Notify,
    work: fn(&T, &AtomicBool) -> R,
) -> Vec<Option<R>> {
    let mut done: Vec<Option<R>> = all.iter().map(|_| None).collect();
    let (sender, outcomes) = channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let waiting = Arc::new(Mutex::new(all.into_iter().enumerate()));
    let mut is_alone = true;
    for _ in 0..done.len().min(TOGETHER) {
        let (sender, is_over, waiting) = (sender.clone(), Arc::clone(&is_over), Arc::clone(&waiting));
        let next = move || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let run = move || {
            while let Some((at, one)) = next()
                && sender.send((at, work(&one, &is_over))).is_ok()
            {}
        };
        // The threads that there are do the work of those that cannot be started.
        if started::spawn("tables", run).is_err() {
            break;
        }
        is_alone = false;
    }
    drop(sender);
    if is_alone {
        // No thread can be started: one after the other.
        let rest = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, one) in rest {
            done[at] = Some(work(&one, &is_over));
            notify.keep_alive();
        }
        return done;
    }
    let mut last = Instant::now();
    loop {
        let left = LONGEST.saturating_sub(last.elapsed());
        match outcomes.recv_timeout(notify.due().map_or(left, |due| due.min(left))) {
            Ok((at, outcome)) => (done[at], last) = (Some(outcome), Instant::now()),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => break,
        }
        notify.keep_alive();
    }
    is_over.store(true, Ordering::Relaxed);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_still_read_is_not_read_again() {
        let is_refused =
            |name| read(name, Path::new("/dev/null")).unwrap_err().sentence().contains("an earlier reload");
        let waiting = ReadNow::of("still0").unwrap();
        assert!(is_refused("still0"));
        // Neither is it looked at: that waits too.
        assert!(check_one("still0", Path::new("/dev/null")).is_err());
        assert!(!is_refused("still1"), "another tunnel with the same file");
        drop(waiting);
        assert_eq!([is_refused("still0"), is_refused("still0")], [false; 2]);
        assert!(check_one("still0", Path::new("/dev/null")).is_ok());
    }
}
