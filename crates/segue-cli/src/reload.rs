//! `segue reload`: a running `segue run` reads its file again, or continues with a newer program, and this
//! command waits for the outcome.

use std::time::Duration;

use segue_control::error::{Error, Kind, printable, printable_line};
use segue_control::protocol::{Refused, Reloaded};
use segue_control::services::{self, NotReloaded};
use segue_host::sys;
use serde_json::{Value, json};

use crate::args::Reload;
use crate::out::Out;

/// The id of the JSON that `segue reload -j` prints.
const SCHEMA: &str = "segue.reload/1";
/// The id of the JSON that `segue reload --upgrade -j` prints.
const UPGRADE_SCHEMA: &str = "segue.upgrade/1";

/// Runs `segue reload`.
pub(crate) fn run(args: &Reload, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    let longest = Duration::from_secs(u64::from(args.timeout));
    if args.upgrade {
        return upgrade(args, longest, out);
    }
    match services::reload(args.service.as_deref(), longest) {
        Ok(done) if out.json => {
            let mut document = json!(done);
            document["schema"] = json!(SCHEMA);
            out.value(&document);
            complete(&done)
        }
        Ok(done) => {
            out.note(&done.text());
            complete(&done)
        }
        Err(NotReloaded::Failed(error)) => Err(*error),
        Err(NotReloaded::Refused(refused)) => Err(shown(&refused, "the reload was refused", out)),
    }
}

/// Fails where a part of the changed file is not in force.
fn complete(done: &Reloaded) -> Result<(), Error> {
    if done.failed.is_empty() {
        return Ok(());
    }
    let what = format!("knobs of {} are not all set", printable_line(&done.failed.join(" ")));
    Err(Error::new(Kind::System, what, "segue reload, and the messages of the service")
        .why("a request to set some was refused or not answered"))
}

/// Prints the reason of a service's refusal, and returns an error that is not printed again.
fn shown(refused: &Refused, what: &str, out: &Out) -> Error {
    if out.json {
        out.value(&json!({ "error": refused.error }));
    } else {
        out.warn(refused.text.trim_end());
        out.note(&format!("{what}: running instances are unchanged"));
    }
    Error::new(Kind::Shown, what, "segue run --check -c FILE")
}

/// Requests that services continue with the program that has replaced theirs.
fn upgrade(args: &Reload, longest: Duration, out: &Out) -> Result<(), Error> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (service, outcome) in services::upgrade(args.service.as_deref(), longest)? {
        match outcome {
            Ok(upgraded) => done.push(upgraded),
            Err(why) => failed.push((service, why)),
        }
    }
    if let ([], [(_, why)]) = (&done[..], &failed[..]) {
        return Err(match why {
            NotReloaded::Failed(error) => (**error).clone(),
            NotReloaded::Refused(refused) => shown(refused, "the upgrade was refused", out),
        });
    }
    if out.json {
        let mut document = json!({ "schema": UPGRADE_SCHEMA, "services": done });
        if !failed.is_empty() {
            document["failed"] = failed.iter().map(|(service, why)| failure(service, why)).collect();
        }
        out.value(&document);
    } else {
        done.iter().for_each(|done| out.note(&done.text()));
        failed.iter().for_each(|(service, why)| report(service, why, out));
    }
    if !failed.is_empty() {
        let what = format!("{} of {} services are not upgraded", failed.len(), done.len() + failed.len());
        return Err(Error::new(Kind::Shown, what, "segue stat"));
    }
    let failed: Vec<&str> = done.iter().flat_map(|done| &done.failed).map(String::as_str).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let what = format!("{} still with the program of before", printable_line(&failed.join(" ")));
    Err(Error::new(Kind::System, what, "segue stat, and the messages of the service").why("no successor came up"))
}

/// Prints why one of several services is not upgraded.
fn report(service: &str, why: &NotReloaded, out: &Out) {
    match why {
        NotReloaded::Failed(error) => out.error(error),
        NotReloaded::Refused(refused) => {
            shown(refused, &format!("the upgrade of {} was refused", printable(service)), out);
        }
    }
}

/// Returns the JSON of the reason why one of several services is not upgraded.
fn failure(service: &str, why: &NotReloaded) -> Value {
    let error = match why {
        NotReloaded::Failed(error) => error.json()["error"].take(),
        NotReloaded::Refused(refused) => refused.error.clone(),
    };
    json!({ "service": service, "error": error })
}
