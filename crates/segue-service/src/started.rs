//! Threads that run before their creator continues, because the seccomp filters installed next forbid the calls by
//! which the C library starts a thread.

use std::io;
use std::sync::mpsc::{RecvError, channel};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

fn lost(_: RecvError) -> io::Error {
    io::Error::other("a thread ended before it began")
}

/// Starts a thread with the given name, and returns once it runs `work`.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (runs, begun) = channel();
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        let _ = runs.send(());
        work()
    })?;
    begun.recv().map_err(lost)?;
    Ok(thread)
}

/// Starts a thread with the given name in a scope, and returns once it runs `work`.
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let (runs, begun) = channel();
    let thread = Builder::new().name(name.to_owned()).spawn_scoped(scope, move || {
        let _ = runs.send(());
        work()
    })?;
    begun.recv().map_err(lost)?;
    Ok(thread)
}
