//! `segue pcap`: capture files merged, split, stripped of tunnels, checked and described.
//!
//! Each command streams: what it holds at a time is bounded, whatever the size of the file. Output appears under its name
//! when it is complete, or not at all ([`files`]).

pub(crate) mod args;
#[path = "../../../segue-capture/src/decap.rs"]
mod decap;
mod files;
#[path = "../../../segue-capture/src/fragment.rs"]
mod fragment;
#[path = "../../../segue-capture/src/frame.rs"]
mod frame;
pub(crate) mod help;
#[path = "../../../segue-capture/src/lanes.rs"]
mod lanes;
#[path = "../../../segue-capture/src/merge.rs"]
mod merge;
pub(crate) mod schema;
#[path = "../../../segue-capture/src/split.rs"]
mod split;
mod stat;
#[path = "../../../segue-capture/src/undo.rs"]
mod undo;
#[path = "../../../segue-capture/src/verify.rs"]
mod verify;

use segue_control::error::{Error, Kind};
use serde_json::Value;

use self::args::{Action, Pcap};
use self::files::{End, Job};
use crate::out::Out;

/// Who wrote a file, for its section header.
const USERAPPL: &str = concat!("segue ", env!("CARGO_PKG_VERSION"));

/// Runs one of the commands.
pub(crate) fn run(args: &Pcap, out: &Out) -> Result<(), Error> {
    let Some(action) = &args.action else {
        return Err(Error::new(
            Kind::Missing,
            "segue pcap needs a command: merge, split, decap, verify or stat",
            "segue pcap --help",
        ));
    };
    match action {
        Action::Merge(args) => merge::run(args, out),
        Action::Split(args) if args.undo => undo::run(args, out),
        Action::Split(args) => split::run(args, out),
        Action::Decap(args) => decap::run(args, out),
        Action::Verify(args) => verify::run(args, out),
        Action::Stat(args) => stat::run(args, out),
    }
}

/// Shows the one object of a command with `-j`; a cut input adds its error to it.
fn show_json(out: &Out, mut summary: Value, job: &Job, end: &End) -> Result<(), Error> {
    let verdict = job.verdict(end, out);
    if let Err(error) = &verdict {
        summary["error"] = error.json()["error"].clone();
    }
    out.value(&summary);
    verdict.map_err(|error| Error { kind: Kind::Shown, ..error })
}

/// Reasons and their counts on one line, the largest first.
fn reasons(counts: &Value) -> String {
    let mut list: Vec<(&str, u64)> = counts
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, n)| (name.as_str(), n.as_u64().unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect();
    list.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    let parts: Vec<String> = list.iter().map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
    parts.join(", ")
}

/// `1 packet`, `2 packets`.
fn packets(n: u64) -> String {
    format!("{n} packet{}", if n == 1 { "" } else { "s" })
}
