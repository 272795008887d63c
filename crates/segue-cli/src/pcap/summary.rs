//! Shared helpers of the pcap commands' summaries.

use segue_capture::file::ReadError;
use segue_control::error::{Error, Kind};
use serde_json::Value;

use super::files::Job;
use crate::out::Out;

/// Prints the summary of a command as JSON, with an `error` if the input is truncated.
pub(super) fn show_json(out: &Out, mut summary: Value, job: &Job, fault: Option<&ReadError>) -> Result<(), Error> {
    let verdict = job.verdict(fault, out);
    if let Err(error) = &verdict {
        summary["error"] = error.json()["error"].clone();
    }
    out.value(&summary);
    verdict.map_err(|error| Error { kind: Kind::Shown, ..error })
}

/// Returns reasons and their counts on one line, largest first.
pub(super) fn reasons(counts: &Value) -> String {
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

/// Returns a number of packets in words: `1 packet`, `2 packets`.
pub(super) fn packets(n: u64) -> String {
    format!("{n} packet{}", if n == 1 { "" } else { "s" })
}
