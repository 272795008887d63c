//! `segue pcap merge`: its summary, as text and JSON.

use segue_capture::merge::{MergeConfig, MergeReport, merge};
use segue_control::error::Error;
use segue_service::profile;
use serde_json::{Value, json};

use super::args::Merge;
use super::files::Job;
use super::summary::{packets, reasons, show_json};
use crate::out::Out;

/// Runs `segue pcap merge`.
pub(super) fn run(args: &Merge, out: &Out) -> Result<(), Error> {
    let rules = args.rules.merge_rules();
    let config = MergeConfig { rules, tunnels: args.ports.tunnels(), explain: args.explain };
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "merge", out)?;
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let has_notes = sink.format() == segue_capture::file::Format::Pcapng;
    let report = merge(&mut reader, &mut sink, &config).map_err(|error| job.failed(error))?;
    let summary = summary(&report, profile::name(rules.profile));
    job.finish(sink, report.fault.as_ref())?;
    job.erase();
    if out.json {
        return show_json(out, summary, &job, report.fault.as_ref());
    }
    out.note(&text(&summary));
    if has_notes && !report.can_undo {
        out.note("note: what was swallowed is not in the file; `split --undo` will refuse it");
    }
    if !has_notes {
        out.note("note: pcap has no place for what `split --undo` needs; write pcapng to keep it");
    }
    job.verdict(report.fault.as_ref(), out)
}

fn summary(report: &MergeReport, profile: &str) -> Value {
    let MergeReport { packets_in, packets_out, gro, unwritten, can_undo, fault } = report;
    json!({
        "schema": "segue.pcap.merge/1",
        "packets_in": packets_in,
        "packets_out": packets_out,
        "trains": gro.trains - unwritten,
        "segments": gro.segments,
        "mean_segments": if gro.trains > 0 { gro.segments as f64 / gro.trains as f64 } else { 0.0 },
        "ratio": if *packets_out > 0 { *packets_in as f64 / *packets_out as f64 } else { 1.0 },
        "undo": can_undo,
        "profile": profile,
        "swallowed": gro.swallowed,
        "trimmed": gro.trimmed,
        "why_trains_ended": gro.flushes,
        "why_alone": gro.alone,
        "why_refused": gro.mismatches,
        "cut": fault.as_ref().map(ToString::to_string),
    })
}

fn text(summary: &Value) -> String {
    let n = |key: &str| summary[key].as_u64().unwrap_or(0);
    let made = match n("trains") {
        0 => "nothing merged".to_owned(),
        trains => format!(
            "{trains} trains of {:.1} on average, ratio {:.2}",
            summary["mean_segments"].as_f64().unwrap_or(0.0),
            summary["ratio"].as_f64().unwrap_or(1.0),
        ),
    };
    let mut text = format!("{} packets -> {} packets ({made})", n("packets_in"), n("packets_out"));
    if n("swallowed") > 0 {
        text.push_str(&format!("\n  swallowed: {} replaced by a newer ACK", packets(n("swallowed"))));
    }
    for (key, title) in [("why_trains_ended", "ended"), ("why_alone", "alone"), ("why_refused", "did not fit")] {
        let reasons = reasons(&summary[key]);
        if !reasons.is_empty() {
            text.push_str(&format!("\n  {title}: {reasons}"));
        }
    }
    text
}
