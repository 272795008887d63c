//! `segue pcap verify`: a line for each packet or checksum that would be wrong on a wire, and the totals, as text and
//! JSON.

use segue::packet::{Header, Kind};
use segue_capture::verify::{CheckedPacket, VerifyConfig, VerifyReport, verify};
use segue_capture::{Layer, Verdict};
use segue_control::error::{Error, Kind as ErrorKind};
use serde_json::{Value, json};

use super::args::Verify;
use super::files::Job;
use crate::out::Out;

/// Number of bytes of output that are collected before they are written.
const BATCH: usize = 64 << 10;

/// Runs `segue pcap verify`.
pub(super) fn run(args: &Verify, out: &Out) -> Result<(), Error> {
    let config = VerifyConfig { tunnels: args.ports.tunnels(), mtu: args.mtu.map(|mtu| mtu as usize) };
    let (job, mut reader) = Job::open(&args.input, "verify", out)?;
    let mut text = String::new();
    let report = verify(&mut reader, &config, |packet| {
        if out.json {
            text.push_str(&object(packet).to_string());
            text.push('\n');
        } else {
            lines(&mut text, packet, args.mtu);
        }
        if text.len() >= BATCH {
            job.erase();
            out.data(&text);
            text.clear();
        }
    })
    .map_err(|error| job.failed(error))?;
    job.erase();
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
        out.note(&totals(&report));
    }
    // The message about a cut file is printed above.
    match verdict {
        Ok(()) if report.is_good() => Ok(()),
        _ => Err(Error::new(ErrorKind::Shown, "bad packets were found", "segue pcap verify")),
    }
}

/// Returns the totals as text.
fn totals(report: &VerifyReport) -> String {
    let VerifyReport { good, bad, unfinished, cut, .. } = report;
    let mut parts = vec![format!("{good} good, {bad} bad, {unfinished} unfinished, {cut} cut")];
    for (n, what) in [
        (report.malformed, "malformed"),
        (report.absent, "without a checksum"),
        (report.ip_only, "judged by their IP header only"),
        (report.not_ip, "not IP"),
        (report.above_mtu, "above the MTU"),
    ] {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    }
    let mut text = parts.join(", ");
    for (layer, verdicts) in &report.layers {
        let counts: Vec<String> = verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
        text.push_str(&format!("\n  {:<10} {}", layer.replace('_', " "), counts.join(", ")));
    }
    text
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

/// Appends a line for each finding on a packet that would be wrong on a wire.
fn lines(text: &mut String, packet: &CheckedPacket<'_>, mtu: Option<u32>) {
    let record = packet.record;
    let number = record.number;
    if record.is_cut() {
        text.push_str(&format!(
            "packet {number}  cut when captured: {} bytes of {} (byte {})\n",
            record.data.len(),
            record.len,
            record.offset
        ));
    } else if packet.is_malformed() {
        text.push_str(&format!(
            "packet {number}  malformed: a length that contradicts another     {}\n",
            describe(packet)
        ));
    }
    for f in packet.findings {
        let title = title(f.layer, f.is_outer);
        match f.verdict {
            Verdict::Bad => {
                text.push_str(&format!(
                    "packet {number}  {title} checksum {:#06x}, should be {:#06x}     {}\n",
                    f.field,
                    f.expected,
                    describe(packet)
                ));
            }
            Verdict::Unfinished => {
                text.push_str(&format!(
                    "packet {number}  {title} checksum unfinished; fine in a capture, wrong on a wire\n"
                ));
            }
            Verdict::Good | Verdict::Absent | Verdict::Remote => {}
        }
    }
    if let (true, Some(mtu), Some(len)) = (packet.is_above_mtu, mtu, packet.ip_len()) {
        text.push_str(&format!("packet {number}  {len} bytes of IP, above the MTU of {mtu}\n"));
    }
}

/// Returns the name of a header in messages.
fn title(layer: Layer, is_outer: bool) -> &'static str {
    match (layer, is_outer) {
        (Layer::Ipv4, false) => "IPv4 header",
        (Layer::Ipv4, true) => "outer IPv4 header",
        (Layer::Udp, false) => "UDP",
        (Layer::Udp, true) => "outer UDP",
        (Layer::Gre, _) => "GRE",
        (Layer::Tcp, _) => "TCP",
        (Layer::Icmp, _) => "ICMP",
        (Layer::Icmpv6, _) => "ICMPv6",
    }
}

/// Returns the outermost addresses of a packet and the names of the headers after the outermost IP header; empty for a
/// packet without IP.
fn describe(packet: &CheckedPacket<'_>) -> String {
    let Some((source, destination)) = packet.addresses() else { return String::new() };
    let name = |header: &Header| match header.kind {
        Kind::Ipv4 => "IPv4",
        Kind::Ipv6 => "IPv6",
        Kind::Udp => "UDP",
        Kind::Tcp => "TCP",
        Kind::Gre => "GRE",
        kind => kind.format().map_or("Ethernet", |format| format.name),
    };
    let kinds: Vec<&str> = packet.inside_outer_ip().iter().map(name).collect();
    format!("{source} -> {destination} {}", kinds.join(" ")).trim_end().to_owned()
}
