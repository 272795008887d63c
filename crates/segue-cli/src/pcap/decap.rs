//! `segue pcap decap`: its summary, as text and JSON.

use segue_capture::decap::{DecapConfig, decap};
use segue_control::error::Error;
use serde_json::json;

use super::args::Decap;
use super::files::Job;
use super::summary::{packets, show_json};
use crate::out::Out;

/// Runs `segue pcap decap`.
pub(super) fn run(args: &Decap, out: &Out) -> Result<(), Error> {
    let config = DecapConfig { tunnels: args.ports.tunnels(), only_tunnelled: args.only_tunnelled };
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "decap", out)?;
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let report = decap(&mut reader, &mut sink, &config).map_err(|error| job.failed(error))?;
    let summary = json!({
        "schema": "segue.pcap.decap/1",
        "packets_in": report.packets_in,
        "packets_out": report.packets_out,
        "decapsulated": report.decapsulated,
        "checksums_finished": report.finished,
        "passed": report.passed,
        "dropped": report.dropped,
        "left_in_their_tunnel": report.kept,
        "cut": report.fault.as_ref().map(ToString::to_string),
    });
    job.finish(sink, report.fault.as_ref())?;
    job.erase();
    if out.json {
        return show_json(out, summary, &job, report.fault.as_ref());
    }
    out.note(&format!(
        "{} packets -> {} packets ({} taken out of their tunnel, {} remote checksums finished, {} passed, {} left out)",
        report.packets_in, report.packets_out, report.decapsulated, report.finished, report.passed, report.dropped,
    ));
    for (reason, n) in &report.kept {
        out.note(&format!("  {} left in their tunnel: {}", packets(*n), reason.replace('_', " ")));
    }
    job.verdict(report.fault.as_ref(), out)
}
