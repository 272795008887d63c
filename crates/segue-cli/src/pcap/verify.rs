//! `segue pcap verify`: a line for each packet or checksum that would be wrong on a wire, and the totals, as text and
//! JSON.

use segue_capture::verify::{CheckedPacket, VerifyConfig, VerifyReport, verify};
use segue_control::error::{Error, Kind as ErrorKind};
use serde_json::{Value, json};

use super::args::Verify;
use super::files::Job;
use crate::out::Out;

/// Number of bytes of output about a file that are collected before they are written.
const BATCH: usize = 64 << 10;

/// Runs `segue pcap verify`.
pub(super) fn run(args: &Verify, out: &Out) -> Result<(), Error> {
    let config = VerifyConfig { tunnels: args.ports.tunnels(), mtu: args.mtu.map(|mtu| mtu as usize) };
    let (job, mut reader) = Job::open(&args.input, "verify", out)?;
    // What comes live is shown live.
    let batch = if job.regular.is_some() { BATCH } else { 1 };
    let mut text = String::new();
    let done = verify(&mut reader, &config, |packet| {
        if out.json {
            text.push_str(&object(packet).to_string());
            text.push('\n');
        } else {
            text.push_str(&packet.faults());
        }
        if text.len() >= batch {
            job.erase();
            out.data(&text);
            text.clear();
        }
    });
    job.erase();
    let report = done.map_err(|error| {
        out.data(&text);
        job.failed(error)
    })?;
    if let Some(fault) = &report.fault
        && !out.json
    {
        text.push_str(&format!("{fault}\n"));
    }
    let verdict = job.verdict(report.fault.as_ref(), out);
    if out.json {
        let mut summary = summary(&report);
        if let Err(error) = &verdict {
            summary["error"] = error.json()["error"].clone();
        }
        text.push_str(&summary.to_string());
        text.push('\n');
        out.data(&text);
    } else {
        out.data(&text);
        out.note(&report.to_string());
    }
    // The message about a cut file is printed above.
    match verdict {
        Ok(()) if report.is_good() => Ok(()),
        _ => Err(Error::new(ErrorKind::Shown, "bad packets were found", "segue pcap verify")),
    }
}

/// Returns the totals as JSON.
fn summary(report: &VerifyReport) -> Value {
    json!({
        "schema": "segue.pcap.verify/1",
        "packets": report.packets,
        "good": report.good,
        "bad": report.bad,
        "unfinished": report.unfinished,
        "absent": report.absent,
        "ip_only": report.ip_only,
        "malformed": report.malformed,
        "cut": report.cut,
        "not_ip": report.not_ip,
        "above_mtu": report.above_mtu,
        "layers": report.layers,
    })
}

/// Returns the result for one packet as JSON.
fn object(packet: &CheckedPacket<'_>) -> Value {
    let checksums: Vec<Value> = packet
        .findings
        .iter()
        .map(|f| {
            json!({
                "layer": f.layer.name(f.is_outer),
                "level": f.level,
                "verdict": f.verdict.name(),
                "field": f.field,
                "expected": f.expected,
            })
        })
        .collect();
    let record = packet.record;
    json!({
        "packet": record.number,
        "offset": record.offset,
        "verdict": packet.verdict.name(),
        "interface": record.interface,
        "len": record.len,
        "captured_len": record.data.len(),
        "ip_len": packet.ip_len(),
        "above_mtu": packet.is_above_mtu,
        "checksums": checksums,
    })
}
