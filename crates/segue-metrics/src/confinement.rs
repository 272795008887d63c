//! The sandbox of the server of the metrics.

use std::path::Path;

use segue_control::confinement::{Needs, confine as confined};
use segue_control::error::Error;
use segue_host::sandbox::filter::Tasks;

use crate::listen::Place;
use crate::textfile;

/// Drops the privileges that a server at the endpoints `listen`, which are open, does not need, and returns what the
/// sandbox lacks. It asks control sockets, replaces the file `textfile`, and removes that and its sockets at the end.
///
/// # Errors
/// Where the kernel lacks Landlock or filters of system calls, unless `is_weak` allows that.
pub fn confine(listen: &[Place], textfile: Option<&Path>, is_weak: bool) -> Result<Vec<String>, Error> {
    let socket = |place: &Place| match place {
        Place::Unix(path) => Some(path.clone()),
        Place::Tcp(_) | Place::Passed(_) => None,
    };
    let replaces: Vec<_> = textfile.map(Path::to_owned).into_iter().collect();
    let removes: Vec<_> = listen.iter().filter_map(socket).collect();
    let changes = !(replaces.is_empty() && removes.is_empty());
    let modes: &[_] = if textfile.is_some() { &[textfile::MODE] } else { &[] };
    let tasks = Tasks { families: &[libc::AF_UNIX], accepts: true, changes, modes, ..Tasks::default() };
    confined(&Needs { replaces, removes, tasks, ..Needs::default() }, is_weak)
}
