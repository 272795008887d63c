//! The asker's side of the control socket.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::model::Instance;
use super::{ANSWER_LEN, place};
use crate::error::{Error, Kind, printable};
use crate::words::parse::nearest;

/// How long an instance may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// What was found when all sockets were asked.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Those that answered, sorted by name.
    pub(crate) instances: Vec<Instance>,
    /// Those that are alive and did not answer.
    pub(crate) failed: Vec<Error>,
}

/// Asks every instance that this user can see. Sockets that nobody serves are not an error.
pub(crate) fn all() -> Found {
    let mut found = Found::default();
    for (name, path) in sockets() {
        match ask(&path) {
            Ok(instance) => found.instances.push(instance),
            Err(error) if is_dead(&error) => {}
            Err(error) => found.failed.push(failure(&name, &path, &error)),
        }
    }
    found.instances.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Asks the instance `name`.
pub(crate) fn one(name: &str) -> Result<Instance, Error> {
    let sockets = sockets();
    let mut dead = false;
    for (_, path) in sockets.iter().filter(|(known, _)| known == name) {
        match ask(path) {
            Ok(instance) => return Ok(instance),
            Err(error) if is_dead(&error) => dead = true,
            Err(error) => return Err(failure(name, path, &error)),
        }
    }
    let why =
        if dead { "its control socket is left from a run that has ended" } else { "no control socket has this name" };
    let near = nearest(name, sockets.iter().map(|(known, _)| known.as_str()).filter(|known| *known != name));
    let hint = near.map_or("segue stat                                      lists what runs".to_owned(), |near| {
        format!("segue stat {near}")
    });
    Err(Error::new(Kind::NotFound, format!("no running instance is called `{}`", printable(name)), hint).why(why))
}

/// Name and path of every socket in the places of this user.
fn sockets() -> Vec<(String, PathBuf)> {
    let mut sockets: Vec<(String, PathBuf)> = place::to_search()
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned();
            Some((name, path))
        })
        .collect();
    sockets.sort();
    sockets
}

fn ask(path: &Path) -> io::Result<Instance> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    stream.write_all(b"{\"get\":\"stat\"}\n")?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_LEN as u64).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        // The server closes without a word when the asker is not allowed to ask.
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let mut answer: Value = serde_json::from_slice(&bytes)?;
    Ok(serde_json::from_value(answer["instance"].take())?)
}

fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT | libc::ENOTSOCK))
}

fn failure(name: &str, path: &Path, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot ask {}", printable(name)), error, "segue stat");
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => made
            .kind(Kind::NoPermission)
            .why(format!("only its owner and root may use {}", path.display()))
            .hint(format!("sudo segue stat {}", printable(name))),
        _ if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => made
            .why(format!("it did not answer within {} s", ANSWER_TIME.as_secs()))
            .hint("see what the process does; kill it when it hangs"),
        _ => made.why("its answer is not one that this version understands").hint("segue --version on both sides"),
    }
}
