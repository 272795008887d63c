//! The control socket of an instance that does not run: it answers with the name, the reason, and the remedy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use segue_control::error::{Error, Kind};
use segue_control::knobs::{Change, Knob};
use segue_control::{model, units};

use super::spec::InstanceSpec;
use crate::control_server::{Bound, KnobControl, Server};
use crate::daemon::NAMING;

/// The server of an instance's control socket while the instance has no running process.
#[derive(Debug)]
pub(super) struct Placeholder {
    server: Server,
    shown: Arc<Mutex<model::Instance>>,
}

impl Placeholder {
    /// Opens the socket of the instance; `None` where that is not possible.
    pub(super) fn open(state: model::Instance) -> Option<Placeholder> {
        let name = state.name.clone();
        let shown = Arc::new(Mutex::new(state));
        let bound = Bound::stand_in(&name, NAMING).ok()?;
        let state = Arc::clone(&shown);
        let state = move || state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let server = bound.serve(Vec::new(), state, Absent(name)).ok()?;
        Some(Placeholder { server, shown })
    }

    /// Shows this state from now on.
    pub(super) fn show(&self, state: model::Instance) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Closes the socket, and removes its file unless another process has replaced it.
    pub(super) fn close(self) {
        self.server.stop();
    }
}

/// Returns the state of an instance that does not run, with the reason and the time since when.
pub(super) fn state(spec: &InstanceSpec, since: SystemTime, error: &Error) -> model::Instance {
    let why = error.why.as_deref().unwrap_or("it does not start");
    // A hint of several lines begins with what is most likely.
    let fix = error.hint.lines().next().filter(|line| !line.is_empty()).map(str::to_owned);
    model::Instance {
        name: spec.name.clone(),
        kind: spec.kind.command().to_owned(),
        is_managed: true,
        ports: spec.devs().into_iter().map(|dev| (dev, model::Port::default())).collect(),
        health: vec![model::Complaint {
            what: format!("down: {}", error.message),
            why: Some(format!("{why}; it is started again until it comes up")),
            fix,
            since: Some(units::rfc3339(since)),
            code: "down".to_owned(),
            ..model::Complaint::default()
        }],
        ..model::Instance::default()
    }
}

/// The answers of an instance without a process.
struct Absent(String);

impl KnobControl for Absent {
    fn list(&self) -> Vec<Knob> {
        Vec::new()
    }

    fn set(&self, _: &[(String, String)]) -> Result<Vec<Change>, Error> {
        let hint = format!("segue stat {} -j", self.0);
        Err(Error::new(Kind::System, format!("{} does not run now", self.0), hint).why("it could not be started"))
    }
}
