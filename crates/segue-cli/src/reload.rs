//! `segue reload`: a running `segue run` reads its file again, and this command waits for the outcome.

use std::time::Duration;

use segue_control::error::{Error, Kind};
use segue_control::services::{self, NotReloaded};
use segue_host::sys;
use serde_json::json;

use crate::args::Reload;
use crate::out::Out;

/// The id of the JSON that `segue reload -j` prints.
const SCHEMA: &str = "segue.reload/1";

/// Runs `segue reload`.
pub(crate) fn run(args: &Reload, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    match services::reload(args.service.as_deref(), Duration::from_secs(u64::from(args.timeout))) {
        Ok(done) if out.json => {
            let mut document = json!(done);
            document["schema"] = json!(SCHEMA);
            out.value(&document);
            Ok(())
        }
        Ok(done) => {
            out.note(&done.text());
            Ok(())
        }
        Err(NotReloaded::Failed(error)) => Err(*error),
        Err(NotReloaded::Refused(refused)) => {
            if out.json {
                out.value(&json!({ "error": refused.error }));
            } else {
                out.warn(refused.text.trim_end());
                out.note("the reload was refused: running instances are unchanged");
            }
            Err(Error::new(Kind::Shown, "the reload was refused", "segue run --check -c FILE"))
        }
    }
}
