//! `segue pcap split`, with `--undo` and without: its summaries, as text and JSON.

use segue_capture::file::Format;
use segue_capture::split::{SegmentSize, SplitConfig, split};
use segue_capture::undo::undo;
use segue_control::error::Error;
use serde_json::json;

use super::args::Split;
use super::files::Job;
use super::summary::{packets, show_json};
use crate::out::Out;

/// Runs `segue pcap split`.
pub(super) fn run(args: &Split, out: &Out) -> Result<(), Error> {
    if args.undo {
        return run_undo(args, out);
    }
    let config = SplitConfig {
        tunnels: args.ports.tunnels(),
        size: match (args.mtu, args.mss) {
            (_, Some(mss)) => SegmentSize::Mss(mss as usize),
            (Some(mtu), None) => SegmentSize::Mtu(mtu as usize),
            (None, None) => SegmentSize::Learned,
        },
        fix_all: args.fix_checksums == "all",
    };
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "split", out)?;
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let report = split(&mut reader, &mut sink, &config).map_err(|error| job.failed(error))?;
    let summary = json!({
        "schema": "segue.pcap.split/1",
        "undo": false,
        "packets_in": report.packets_in,
        "packets_out": report.packets_out,
        "trains_cut": report.trains,
        "checksums_finished": report.finished,
        "checksums_fixed": report.fixed,
        "lengths_filled_in": report.lengths,
        "bad_left": report.bad_left,
        "unchanged": report.unchanged,
        "packets_fragmented": report.fragmented,
        "udp_of_unknown_size": report.udp_of_unknown_size,
        "left_as_they_are": report.refused,
        "cut": report.fault.as_ref().map(ToString::to_string),
    });
    job.finish(sink, report.fault.as_ref())?;
    job.erase();
    if out.json {
        return show_json(out, summary, &job, report.fault.as_ref());
    }
    out.note(&format!(
        "{} packets -> {} packets ({} trains cut, {} fragmented, {} checksums finished, {} fixed, {} IP lengths filled in)",
        report.packets_in,
        report.packets_out,
        report.trains,
        report.fragmented,
        report.finished,
        report.fixed,
        report.lengths,
    ));
    if report.bad_left > 0 {
        out.note(&format!(
            "  {} with a wrong checksum left as they are; --fix-checksums all",
            packets(report.bad_left)
        ));
    }
    if report.udp_of_unknown_size > 0 {
        out.note(&format!(
            "  {} of UDP above 1500 bytes left as they are: the size of their datagrams is not in the file; \
             --mss N cuts them, --mtu N makes fragments",
            packets(report.udp_of_unknown_size)
        ));
    }
    for (reason, n) in &report.refused {
        out.note(&format!("  {} left as they are: {}", packets(*n), reason.replace('_', " ")));
    }
    job.verdict(report.fault.as_ref(), out)
}

fn run_undo(args: &Split, out: &Out) -> Result<(), Error> {
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "split", out)?;
    if reader.format() == Format::Pcap {
        // This is checked before the output is created, whose errors would come first.
        return Err(job.nothing_to_undo());
    }
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let report = undo(&mut reader, &mut sink).map_err(|error| job.failed(error))?;
    let summary = json!({
        "schema": "segue.pcap.split/1",
        "undo": true,
        "packets_in": report.packets_in,
        "packets_out": report.packets_out,
        "trains_cut": report.trains,
        "notes_unreadable": report.unreadable,
        "packets_missing": report.missing,
        "cut": report.fault.as_ref().map(ToString::to_string),
    });
    let mut flaws = Vec::new();
    if report.unreadable > 0 {
        let count = packets(report.unreadable);
        flaws.push(format!("{count} or other blocks with a note that does not fit; left as they are"));
    }
    if report.missing > 0 && report.fault.is_none() {
        let count = packets(report.missing);
        flaws.push(format!("{count} or other blocks are gone since the merge; others may be in another order"));
    }
    let fault = report.fault.as_ref().map(ToString::to_string);
    job.finish(sink, fault.as_ref().or(flaws.first()))?;
    job.erase();
    flaws.iter().for_each(|flaw| out.warn(&format!("note: {flaw}")));
    if out.json {
        return show_json(out, summary, &job, report.fault.as_ref());
    }
    out.note(&format!(
        "{} packets -> {} packets ({} trains undone)",
        report.packets_in, report.packets_out, report.trains
    ));
    job.verdict(report.fault.as_ref(), out)
}
