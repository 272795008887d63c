//! `segue pcap verify`: every checksum, every length, one line for each thing that is not as on a wire.

use std::collections::BTreeMap;

use segue::packet::Kind;
use segue::wire::{ipv4, ipv6};
use segue_capture::file::{Item, Record};
use segue_control::error::{Error, Kind as ErrorKind};
use serde_json::{Value, json};

use super::args::Verify;
use super::files::{End, Job};
use super::frame::{Finding, Frame, IP_ONLY, MALFORMED, USUAL_MTU, Verdict};
use crate::out::Out;

/// Lines are gathered up to this many bytes.
const BATCH: usize = 64 << 10;

#[derive(Debug, Default)]
struct Totals {
    good: u64,
    bad: u64,
    unfinished: u64,
    absent: u64,
    ip_only: u64,
    malformed: u64,
    cut: u64,
    above_mtu: u64,
    not_ip: u64,
    layers: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
}

/// Runs it.
pub(super) fn run(args: &Verify, out: &Out) -> Result<(), Error> {
    let (job, mut reader) = Job::open(&args.input, "verify", out)?;
    let tunnels = args.ports.tunnels();
    let (mut totals, mut end) = (Totals::default(), End::default());
    let (mut findings, mut text) = (Vec::new(), String::new());
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(Item::Packet(record))) => {
                let frame = Frame::open(record.link, record.data(), &tunnels, USUAL_MTU);
                let frame = frame.filter(|frame| frame.is_ip() || frame.is_malformed());
                findings.clear();
                if !record.is_cut()
                    && let Some(frame) = &frame
                {
                    frame.judge(&mut findings);
                }
                let above = args.mtu.filter(|mtu| frame.as_ref().is_some_and(|frame| frame.ip_len() > *mtu as usize));
                let verdict = totals.add(&record, frame.as_ref(), &findings, above.is_some());
                if out.json {
                    text.push_str(&object(&record, frame.as_ref(), &findings, verdict, above.is_some()).to_string());
                    text.push('\n');
                } else {
                    lines(&mut text, &record, frame.as_ref(), &findings, above);
                }
            }
            Ok(Some(Item::Block(_))) => {}
            Err(error) => job.fault(&error, &mut end)?,
        }
        if text.len() >= BATCH {
            job.erase();
            out.data(&text);
            text.clear();
        }
    }
    job.erase();
    if let Some((what, _)) = &end.fault
        && !out.json
    {
        text.push_str(&format!("{what}\n"));
    }
    let is_cut = end.fault.is_some();
    totals.cut += u64::from(is_cut);
    let verdict = job.verdict(&end, out);
    if out.json {
        let mut summary = totals.json(reader.packets());
        if let Err(error) = &verdict {
            summary["error"] = error.json()["error"].clone();
        }
        text.push_str(&summary.to_string());
        text.push('\n');
        out.data(&text);
    } else {
        out.data(&text);
        out.note(&totals.text());
    }
    // A cut file has had its line.
    match verdict {
        Ok(()) if totals.bad == 0 && totals.malformed == 0 => Ok(()),
        _ => Err(Error::new(ErrorKind::Shown, "bad packets were found", "segue pcap verify")),
    }
}

impl Totals {
    /// Counts a packet and says what it is worth as a whole.
    fn add(
        &mut self,
        record: &Record<'_>,
        frame: Option<&Frame<'_>>,
        findings: &[Finding],
        above: bool,
    ) -> &'static str {
        self.above_mtu += u64::from(above);
        for f in findings {
            *self.layers.entry(f.layer.name(f.is_outer)).or_default().entry(f.verdict.name()).or_default() += 1;
        }
        let (count, name) = if record.is_cut() {
            (&mut self.cut, "cut")
        } else if let Some(frame) = frame {
            let name = frame.verdict(findings);
            let count = match name {
                MALFORMED => &mut self.malformed,
                "bad" => &mut self.bad,
                "unfinished" => &mut self.unfinished,
                "absent" => &mut self.absent,
                IP_ONLY => &mut self.ip_only,
                _ => &mut self.good,
            };
            (count, name)
        } else {
            (&mut self.not_ip, "not_ip")
        };
        *count += 1;
        name
    }

    fn text(&self) -> String {
        let mut parts =
            vec![format!("{} good, {} bad, {} unfinished, {} cut", self.good, self.bad, self.unfinished, self.cut)];
        for (n, what) in [
            (self.malformed, "malformed"),
            (self.absent, "without a checksum"),
            (self.ip_only, "judged by their IP header only"),
            (self.not_ip, "not IP"),
            (self.above_mtu, "above the MTU"),
        ] {
            if n > 0 {
                parts.push(format!("{n} {what}"));
            }
        }
        let mut text = parts.join(", ");
        for (layer, verdicts) in &self.layers {
            let counts: Vec<String> = verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
            text.push_str(&format!("\n  {:<10} {}", layer.replace('_', " "), counts.join(", ")));
        }
        text
    }

    fn json(&self, packets: u64) -> Value {
        json!({
            "schema": "segue.pcap.verify/1",
            "packets": packets,
            "good": self.good,
            "bad": self.bad,
            "unfinished": self.unfinished,
            "absent": self.absent,
            "ip_only": self.ip_only,
            "malformed": self.malformed,
            "cut": self.cut,
            "not_ip": self.not_ip,
            "above_mtu": self.above_mtu,
            "layers": self.layers,
        })
    }
}

fn object(
    record: &Record<'_>,
    frame: Option<&Frame<'_>>,
    findings: &[Finding],
    verdict: &'static str,
    above: bool,
) -> Value {
    let checksums: Vec<Value> = findings
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
    json!({
        "packet": record.number,
        "offset": record.offset,
        "verdict": verdict,
        "interface": record.interface,
        "len": record.len,
        "captured_len": record.data.len(),
        "ip_len": frame.map(Frame::ip_len),
        "above_mtu": above,
        "checksums": checksums,
    })
}

/// One line for each thing that is not as it would be on a wire.
fn lines(text: &mut String, record: &Record<'_>, frame: Option<&Frame<'_>>, findings: &[Finding], above: Option<u32>) {
    let number = record.number;
    if record.is_cut() {
        text.push_str(&format!(
            "packet {number}  cut when captured: {} bytes of {} (byte {})\n",
            record.data.len(),
            record.len,
            record.offset
        ));
    } else if let Some(frame) = frame.filter(|frame| frame.is_malformed()) {
        text.push_str(&format!(
            "packet {number}  malformed: a length that contradicts another     {}\n",
            describe(frame)
        ));
    }
    for f in findings {
        let title = f.layer.title(f.is_outer);
        match f.verdict {
            Verdict::Bad => {
                let who = frame.map(describe).unwrap_or_default();
                text.push_str(&format!(
                    "packet {number}  {title} checksum {:#06x}, should be {:#06x}     {who}\n",
                    f.field, f.expected
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
    if let (Some(mtu), Some(frame)) = (above, frame) {
        text.push_str(&format!("packet {number}  {} bytes of IP, above the MTU of {mtu}\n", frame.ip_len()));
    }
}

/// Outermost addresses and what the packet is.
pub(super) fn describe(frame: &Frame<'_>) -> String {
    let headers = frame.layout.headers();
    let Some(ip) = headers.iter().find(|header| header.is_ip()) else { return String::new() };
    let kinds: Vec<&str> = headers
        .iter()
        .filter(|header| header.start() > ip.start())
        .map(|header| match header.kind {
            Kind::Ipv4 => "IPv4",
            Kind::Ipv6 => "IPv6",
            Kind::Udp => "UDP",
            Kind::Tcp => "TCP",
            Kind::Gre => "GRE",
            kind => kind.format().map_or("Ethernet", |format| format.name),
        })
        .collect();
    let (src, dst) = addresses(frame, ip.start(), ip.kind == Kind::Ipv4);
    format!("{src} -> {dst} {}", kinds.join(" ")).trim_end().to_owned()
}

/// Source and destination of the IP header at `at`.
pub(super) fn addresses(frame: &Frame<'_>, at: usize, is_v4: bool) -> (String, String) {
    let part = |range: std::ops::Range<usize>| frame.bytes.get(at + range.start..at + range.end).unwrap_or(&[]);
    let show = |bytes: &[u8]| match (bytes.first_chunk::<4>(), bytes.first_chunk::<16>()) {
        (_, Some(v6)) => std::net::Ipv6Addr::from(*v6).to_string(),
        (Some(v4), None) => std::net::Ipv4Addr::from(*v4).to_string(),
        _ => String::new(),
    };
    if is_v4 { (show(part(ipv4::SRC)), show(part(ipv4::DST))) } else { (show(part(ipv6::SRC)), show(part(ipv6::DST))) }
}
