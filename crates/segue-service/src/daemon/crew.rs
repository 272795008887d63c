//! The threads of the workers from 1 on; the first worker is the main thread.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

use segue_control::error::{Error, Kind};

use super::definition::AssembleMore;
use super::faulty::Faulty;
use super::running::{Further, Stopper};
use crate::fault::Vitals;
use crate::started;

/// The threads of the workers from 1 on, which wait until [`Crew::begin`].
pub(super) struct Crew<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, Result<(), Error>>>,
    /// Senders of each thread's start message; a thread ends when its sender is dropped.
    go: Vec<Sender<()>>,
}

impl<'scope> Crew<'scope> {
    /// Starts the threads, and returns once each has assembled its pipeline, because the seccomp filter installed next
    /// forbids the necessary calls. Where one of them ends later, `stopper` ends all.
    pub(super) fn start(
        scope: &'scope Scope<'scope, '_>,
        further: impl Iterator<Item = (Further, AssembleMore)>,
        name: &'scope str,
        vitals: &'scope Vitals,
        stopper: &'scope Stopper,
    ) -> Result<Crew<'scope>, Error> {
        let mut crew = Crew { threads: Vec::new(), go: Vec::new() };
        for (further, assemble) in further {
            let further_name = further.name();
            let (ready, is_ready) = channel();
            let (go, goes) = channel();
            let work = move || {
                let outcome = run(&further, assemble, (name, vitals), &ready, &goes);
                stopper.stop();
                outcome
            };
            let started = started::spawn_scoped(scope, &further_name, work).map_err(|error| {
                Error::system("cannot start another worker", &error, "workers 1").why("its thread did not start")
            })?;
            crew.threads.push(started);
            crew.go.push(go);
            let ended = || {
                Error::new(Kind::Internal, "a worker ended before it began", "report it with: segue --version -v -j")
            };
            is_ready.recv().unwrap_or_else(|_| Err(ended()))?;
        }
        Ok(crew)
    }

    /// Lets the threads start to move packets.
    pub(super) fn begin(&self) {
        // A thread that has ended is found by `join`.
        for go in &self.go {
            let _ = go.send(());
        }
    }

    /// Waits for the end of the threads, which a [`Stopper`] requests, and returns the first error.
    pub(super) fn join(self) -> Result<(), Error> {
        drop(self.go);
        // A panic has ended the process.
        self.threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(()))).fold(Ok(()), Result::and)
    }
}

/// Assembles the pipeline of a worker, reports that, and runs it after the start message.
fn run(
    further: &Further,
    assemble: AssembleMore,
    (name, vitals): (&str, &Vitals),
    ready: &Sender<Result<(), Error>>,
    goes: &Receiver<()>,
) -> Result<(), Error> {
    let measured = vitals.heartbeat.measure(further.thread()).map_err(|error| {
        Error::system("cannot measure the time of a worker", &error, "segue doctor").why("it has no clock")
    });
    let made = measured.and_then(|()| Ok(Faulty::wrap(assemble(vitals)?, vitals, further.thread())));
    let mut pipeline = match made {
        Ok(pipeline) => {
            let _ = ready.send(Ok(()));
            pipeline
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    if goes.recv().is_err() {
        return Ok(());
    }
    further.work(&mut *pipeline, name, &vitals.heartbeat)
}
