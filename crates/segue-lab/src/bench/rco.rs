//! `rco`: the gain from leaving inner checksums to the receiver (remote checksum offload, 2014).

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::definition::Bench;
use super::ends::{self, Taker};
use super::layout::{Column, Layout, count, label, median, seed, short, sibling, spread};
use super::point::{Part, Point, Sample};
use super::rr::QUANTILES;
use super::site::Site;
use super::span::{Span, Tunnel};
use crate::load::{self, Load, Style};
use crate::{CONGESTION, Family, LabError, LinkForm, Named, Proto, Row, Table};

/// Number of connections with a request in flight.
const ASKERS: u32 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gre,
    Ipip,
    Sit,
    Vxlan,
    /// VXLAN of the kernel.
    Kernel,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Kind::Gre => "gre",
            Kind::Ipip => "ipip",
            Kind::Sit => "sit",
            Kind::Vxlan => "vxlan",
            Kind::Kernel => "kernel-vxlan",
        }
    }
}

/// The load of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// One TCP stream from a buffer that fits the processor caches.
    Stream,
    /// One TCP stream from a file larger than the processor caches.
    Cold,
    /// Requests and responses of one byte.
    Requests,
}

impl Traffic {
    const fn word(self) -> &'static str {
        match self {
            Traffic::Stream => "stream",
            Traffic::Cold => "cold-stream",
            Traffic::Requests => "rr",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    link: LinkForm,
    kind: Kind,
    remcsum: bool,
    traffic: Traffic,
    /// Checksum implementation by name, if not the fastest.
    simd: Option<&'static str>,
    /// Whether the tunnel has an outer checksum that the receiver can verify.
    outer: bool,
}

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for link in [LinkForm::NicCsum, LinkForm::Nic] {
        let plain = Case { link, kind: Kind::Gre, remcsum: false, traffic: Traffic::Stream, simd: None, outer: true };
        let mut both = |case: Case, part| {
            for remcsum in [false, true] {
                points.push(point(Case { remcsum, ..case }, part));
            }
        };
        both(plain, Part::Quick);
        for kind in [Kind::Ipip, Kind::Sit, Kind::Vxlan] {
            both(Case { kind, ..plain }, Part::Usual);
        }
        points.push(point(Case { kind: Kind::Kernel, ..plain }, Part::Usual));
        points.push(point(Case { outer: false, ..plain }, Part::Usual));
        for simd in ["scalar", "avx2", "avx512", "avx512-vnni"] {
            let part = if simd == "avx512-vnni" { Part::Full } else { Part::Usual };
            for remcsum in [false, true] {
                points.push(point(Case { simd: Some(simd), remcsum, ..plain }, part));
            }
        }
        for remcsum in [false, true] {
            points.push(point(Case { traffic: Traffic::Cold, remcsum, ..plain }, Part::Usual));
        }
        points.push(point(Case { traffic: Traffic::Cold, kind: Kind::Kernel, ..plain }, Part::Full));
        let plain = Case { traffic: Traffic::Requests, ..plain };
        for kind in [Kind::Gre, Kind::Ipip, Kind::Sit, Kind::Vxlan] {
            for remcsum in [false, true] {
                let part = if (kind, remcsum) == (Kind::Gre, true) { Part::Quick } else { Part::Usual };
                points.push(point(Case { kind, remcsum, ..plain }, part));
            }
        }
        points.push(point(Case { kind: Kind::Kernel, ..plain }, Part::Usual));
    }
    Bench {
        name: "rco",
        title: "what leaving inner checksums to the receiver is worth (S3, remote checksum offload, 2014)",
        points,
        link: Some(LinkForm::NicCsum.as_str()),
        pinned: true,
        layout: Layout { section, name, columns, notes: NOTES },
        details: vec![
            ("load", format!("iperf3; cold: sendfile; rr: {ASKERS} connections, 1 byte; {}", CONGESTION)),
            ("wire", "a veth pair; nic-csum: tso off gso off tx on gro on; nic: tx off".into()),
            ("steering", "what a host gets is worked on by its core, GRO in a kernel thread".into()),
            ("counted", "TX: the sender's core, RX: the receiver's; segue, stack, load, interrupts".into()),
            ("checksum", "by perf, 499 samples per second, of the time that the load took".into()),
            ("s3", "2014, 36 Gbit/s; another card: 6.00 to 0.33 % TX, 0.51 to 1.81 % RX".into()),
        ],
    }
}

fn point(case: Case, part: Part) -> Point {
    let sample = move |site: &Site| sample(site, &case);
    Point { labels: labels(&case), seed: published(&case), part, beside: false, loads: 1, sample: Box::new(sample) }
}

fn labels(case: &Case) -> Named<Value> {
    let mut labels = Named::default();
    labels.push("load", case.traffic.word());
    labels.push("tunnel", case.kind.word());
    labels.push("remcsum", if case.remcsum { "remcsum" } else { "no-remcsum" });
    labels.push("link", case.link.as_str());
    labels.push("checksum", case.simd.unwrap_or("fastest"));
    labels.push("outer", if case.outer { "outer-checksum" } else { "no-outer-checksum" });
    labels
}

/// Returns the published figures: CPU usage of the author's machines at 36 Gbit/s in per cent.
fn published(case: &Case) -> Named<Value> {
    let mut seed: Named<Value> = Named::default();
    if case.simd.is_some() || !case.outer || case.link != LinkForm::NicCsum {
        return seed;
    }
    let tx = match (case.kind, case.remcsum) {
        (Kind::Gre, false) => 12.40,
        (Kind::Gre, true) => 9.71,
        (Kind::Ipip, false) => 12.47,
        (Kind::Ipip, true) => 10.30,
        (Kind::Sit, false) => 12.95,
        (Kind::Sit, true) => 9.68,
        (Kind::Vxlan, false) => 35.03,
        (Kind::Vxlan, true) | (Kind::Kernel, _) => return seed,
    };
    match case.traffic {
        Traffic::Stream => {
            seed.push("gbps", 36);
            seed.push("tx_cpu_percent", tx);
            if case.kind == Kind::Vxlan {
                seed.push("rx_cpu_percent", 20.85);
            }
        }
        // Of the rate without.
        Traffic::Requests if case.remcsum => seed.push("transactions_change_percent", json!([-0.8, 0.8])),
        Traffic::Requests | Traffic::Cold => {}
    }
    seed
}

/// Returns the tunnel with its arguments for `segue tunnel`.
fn tunnel(case: &Case) -> Tunnel {
    let mut words = match case.kind {
        Kind::Kernel => return Tunnel::Kernel,
        Kind::Vxlan => vec!["mode", "vxlan", "id", "42", "dstport", "4789"],
        other => vec!["mode", other.word(), "encap", "gue"],
    };
    match (case.remcsum, case.kind) {
        (false, _) => {}
        (true, Kind::Vxlan) => words.extend(["remcsumtx", "remcsumrx"]),
        (true, _) => words.push("encap-remcsum"),
    }
    if !case.outer {
        words.push("noencap-csum");
    }
    Tunnel::Segue { words, simd: case.simd }
}

fn sample(site: &Site, case: &Case) -> Result<Sample, LabError> {
    if let Some(simd) = case.simd
        && !Command::new(&site.segue).arg("-V").env("SEGUE_SIMD", simd).output().is_ok_and(|ran| ran.status.success())
    {
        return Ok(Sample::Skipped(format!("this processor has no {simd}")));
    }
    let family = if case.kind == Kind::Sit { Family::V6 } else { Family::V4 };
    let span = match Span::new(site, case.link, &tunnel(case), family)? {
        Ok(span) => span,
        Err(why) => return Ok(Sample::Skipped(why)),
    };
    let mut values = Named::default();
    match case.traffic {
        Traffic::Stream => written(site, &span, &mut values)?,
        Traffic::Cold => {
            let Some(len) = beyond_caches() else {
                return Ok(Sample::Skipped("no memory for a file twice as large as the caches".into()));
            };
            cold(site, &span, len, &mut values)?;
        }
        Traffic::Requests => requests(site, &span, &mut values)?,
    }
    Ok(Sample::Values(values))
}

fn written(site: &Site, span: &Span<'_>, values: &mut Named<f64>) -> Result<(), LabError> {
    let before = span.before()?;
    let outcome = load::run(&Load {
        client: &span.sender,
        server: &span.receiver,
        to: span.to(),
        proto: Proto::Tcp,
        seconds: site.seconds,
        parallel: 1,
        style: Style::default(),
    })?;
    values.push("gbps", outcome.gbps());
    let used = span.after(before, values)?;
    per_gigabyte(used, outcome.bytes, values);
    if let Some(retransmits) = outcome.retransmits {
        values.push("retransmits", retransmits as f64);
    }
    Ok(())
}

fn cold(site: &Site, span: &Span<'_>, len: usize, values: &mut Named<f64>) -> Result<(), LabError> {
    let to = span.to().to_string();
    let load = (Taker::Drain, 1, len);
    let begin = || span.before();
    let (came, before) = ends::run(&site.segue, &span.sender, (&span.receiver, &to), load, site.seconds, begin)?;
    values.push("gbps", came.bytes as f64 * 8e-9 / came.seconds);
    let used = span.after(before, values)?;
    per_gigabyte(used, came.bytes, values);
    Ok(())
}

fn requests(site: &Site, span: &Span<'_>, values: &mut Named<f64>) -> Result<(), LabError> {
    let to = span.to();
    let requester = format!("ask {to} {ASKERS} {}", site.seconds);
    let answer = format!("answer {to} {ASKERS}");
    let begin = || span.before();
    let ([said, _], before) =
        ends::both(&site.segue, (&span.sender, requester), (&span.receiver, answer), site.seconds, begin)?;
    let (transactions, seconds) = (said["transactions"].as_f64(), said["seconds"].as_f64());
    let Some((transactions, seconds)) = transactions.zip(seconds).filter(|(count, _)| *count > 0.0) else {
        return Err(LabError::Load(format!("the asking end said {said}")));
    };
    values.push("transactions_per_s", transactions / seconds);
    let used = span.after(before, values)?;
    values.push("cpu_us_per_transaction", (used[0] + used[1]) * 1e6 / transactions);
    for (at, percent) in QUANTILES.into_iter().enumerate() {
        if let Some(micros) = said["micros"][at].as_f64() {
            values.push(&format!("p{percent}_us"), micros);
        }
    }
    Ok(())
}

fn per_gigabyte(used: [f64; 2], bytes: u64, values: &mut Named<f64>) {
    for (used, end) in used.into_iter().zip(["tx", "rx"]) {
        values.push(&format!("{end}_cpu_s_per_gb"), used / (bytes as f64 * 1e-9));
        let summed = values.find(&format!("{end}_summed_bytes")).copied();
        if let Some(summed) = summed {
            values.push(&format!("{end}_summed_per_byte"), summed / bytes as f64);
        }
    }
}

/// Returns the size of a file larger than every cache, if there is memory for it.
fn beyond_caches() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten().flatten();
    let kilobytes = |text: &str| text.trim().strip_suffix('K')?.parse::<usize>().ok();
    let sizes = caches.filter_map(|cache| kilobytes(&fs::read_to_string(cache.path().join("size")).ok()?));
    let wanted = 2 * sizes.max().unwrap_or(64 << 10) * 1024;
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"))?;
    let free = free.parse::<usize>().ok()? * 1024;
    (wanted < free / 2).then(|| wanted.next_multiple_of(ends::CHUNK))
}

fn section(row: &Row) -> String {
    let link = label(row, "link");
    match (label(row, "load").as_str(), label(row, "checksum").as_str()) {
        ("rr", _) => format!("TCP_RR, {ASKERS} streams, link {link}"),
        ("cold-stream", _) => format!("TCP_STREAM from cold memory, link {link}"),
        (_, "fastest") => format!("TCP_STREAM, link {link}"),
        (_, simd) => format!("TCP_STREAM, link {link}, checksums by {simd}"),
    }
}

fn name(row: &Row) -> String {
    let remcsum = if label(row, "remcsum") == "remcsum" { " rco" } else { "" };
    let outer = if label(row, "outer") == "outer-checksum" { "" } else { " no outer" };
    label(row, "tunnel") + remcsum + outer
}

fn columns(row: &Row) -> &'static [Column] {
    if label(row, "load") == "rr" { REQUESTS } else { STREAM }
}

/// Returns the change of a metric by remote checksum offload in per cent, for a row with the offload.
fn change(table: &Table, row: &Row, metric: &str) -> Option<String> {
    let without = sibling(table, row, &[("remcsum", Some("no-remcsum"))])?;
    let (with, without) = (median(row, metric)?, median(without, metric)?);
    (label(row, "remcsum") == "remcsum" && without > 0.0).then(|| format!("{:+.0}%", 100.0 * (with / without - 1.0)))
}

fn percent(row: &Row, metric: &str) -> Option<String> {
    median(row, metric).map(|value| format!("{value:.0}"))
}

/// Formats the shares of time at both ends: `6.0/0.3`.
fn shares(row: &Row) -> Option<String> {
    let show = |value: f64| if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    let (tx, rx) = (median(row, "tx_checksum_percent")?, median(row, "rx_checksum_percent")?);
    Some(format!("{}/{}", show(tx), show(rx)))
}

const STREAM: &[Column] = &[
    Column { heading: "Gb/s", width: 5, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "TX%", width: 3, cell: |_, row| percent(row, "tx_cpu_percent") },
    Column { heading: "s/GB", width: 5, cell: |_, row| median(row, "tx_cpu_s_per_gb").map(short) },
    Column { heading: "+-", width: 3, cell: |_, row| spread(row, "tx_cpu_s_per_gb") },
    Column { heading: "chg", width: 4, cell: |table, row| change(table, row, "tx_cpu_s_per_gb") },
    Column { heading: "RX%", width: 3, cell: |_, row| percent(row, "rx_cpu_percent") },
    Column { heading: "s/GB", width: 5, cell: |_, row| median(row, "rx_cpu_s_per_gb").map(short) },
    Column { heading: "+-", width: 3, cell: |_, row| spread(row, "rx_cpu_s_per_gb") },
    Column { heading: "chg", width: 4, cell: |table, row| change(table, row, "rx_cpu_s_per_gb") },
    Column { heading: "csum%", width: 8, cell: |_, row| shares(row) },
    Column {
        heading: "sum",
        width: 4,
        cell: |_, row| {
            let both = median(row, "tx_summed_per_byte")? + median(row, "rx_summed_per_byte")?;
            Some(if both == 0.0 { "0".into() } else { format!("{both:.2}") })
        },
    },
    Column {
        heading: "S3",
        width: 5,
        cell: |table, row| {
            if label(row, "tunnel") == "vxlan" && label(row, "remcsum") == "remcsum" {
                return Some("new".into());
            }
            let own = seed(row, "tx_cpu_percent", 2)?;
            let published = |row: &Row| row.seed.find("tx_cpu_percent").and_then(Value::as_f64);
            let without = sibling(table, row, &[("remcsum", Some("no-remcsum"))]).and_then(published);
            match (label(row, "remcsum") == "remcsum", published(row).zip(without)) {
                (true, Some((with, without))) => Some(format!("{:+.1}", 100.0 * (with / without - 1.0))),
                _ => Some(own),
            }
        },
    },
];

const REQUESTS: &[Column] = &[
    Column { heading: "trans/s", width: 7, cell: |_, row| median(row, "transactions_per_s").map(count) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "transactions_per_s") },
    Column { heading: "chg", width: 4, cell: |table, row| change(table, row, "transactions_per_s") },
    Column { heading: "TX%", width: 4, cell: |_, row| percent(row, "tx_cpu_percent") },
    Column { heading: "RX%", width: 4, cell: |_, row| percent(row, "rx_cpu_percent") },
    Column { heading: "us", width: 5, cell: |_, row| median(row, "cpu_us_per_transaction").map(short) },
    Column { heading: "p50", width: 5, cell: |_, row| median(row, "p50_us").map(count) },
    Column { heading: "p90", width: 5, cell: |_, row| median(row, "p90_us").map(count) },
    Column { heading: "p95", width: 5, cell: |_, row| median(row, "p95_us").map(count) },
    Column { heading: "p99", width: 5, cell: |_, row| median(row, "p99_us").map(count) },
    Column {
        heading: "S3",
        width: 5,
        cell: |_, row| row.seed.find("transactions_change_percent").map(|_| "0.8%".to_owned()),
    },
];

const NOTES: &[&str] = &[
    "",
    "rco: with remote checksum offload. TX, RX: the sender's and the receiver's core;",
    "s/GB: its seconds per 1e9 bytes received; chg: by rco; csum%: its time in",
    "checksum routines, TX/RX, the kernel's and segue's; sum: payload bytes that the",
    "two segues summed for each byte received; no outer: no checksum outside. S3: TX",
    "CPU % of its machine at 36 Gbit/s, and its change by rco in %; new: not in S3.",
    "us: CPU of both cores for a transaction; p50 to p99: latencies in microseconds;",
    "S3: rates differed by less than that.",
];
