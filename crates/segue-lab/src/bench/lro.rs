//! `lro`: the gain of the receiver from aggregated received frames (Generic Large Receive Offload, 2007).

use serde_json::{Value, json};

use super::bed;
use super::definition::Bench;
use super::layout::{Column, Layout, count, flows, label, median, ratio, seed, short, sibling, spread};
use super::pair::{Form, Pair, Tested};
use super::point::{Part, Point, Sample};
use super::site::Site;
use crate::load::{self, Load, Style};
use crate::{CONGESTION, Family, LabError, Named, Proto, Row, Table};

/// Receive paths of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The gateway with LRO: `segue gateway`.
    Lro,
    /// `segue gateway` with the limit of the original LRO: 65535 / MTU packets.
    LroCounted,
    /// The gateway without LRO: `segue gateway --no-lro`.
    NoLro,
    /// GRO of the kernel, without a gateway.
    KernelGro,
    /// Neither a gateway nor GRO is used.
    Kernel,
}

impl How {
    const fn word(self) -> &'static str {
        match self {
            How::Lro => "lro",
            How::LroCounted => "lro-count-limit",
            How::NoLro => "no-lro",
            How::KernelGro => "kernel-gro",
            How::Kernel => "kernel",
        }
    }

    const fn is_segue(self) -> bool {
        matches!(self, How::Lro | How::LroCounted | How::NoLro)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    how: How,
    page: Option<&'static str>,
    mtus: (u32, u32),
    rate: Option<&'static str>,
    flows: u32,
    /// Whether the card at the receiver has verified the checksums.
    verified: bool,
}

const PAGES: [&str; 5] = ["4k", "8k", "16k", "32k", "frame"];
const MTUS: [(u32, u32); 3] = [(1500, 1500), (1500, 9000), (9000, 9000)];

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for rate in [None, Some("10gbit")] {
        for flows in [1, 2, 8, 64] {
            for verified in [true, false] {
                for mtus in MTUS {
                    section(&mut points, rate, flows, verified, mtus);
                }
            }
        }
    }
    Bench {
        name: "lro",
        title: "what aggregating received frames is worth to the receiver (S1, Linux inet_lro, 2007)",
        points,
        link: None,
        pinned: true,
        layout: Layout { section: title, name, columns: |_| COLUMNS, notes: NOTES },
        details: vec![
            ("load", format!("iperf3 -Z (sendfile), {}", CONGESTION)),
            ("wire", "a third host cuts trains to frames; checksums verified by the card but where stated".into()),
            ("steering", "RPS: what a host receives is worked on by its own core; kernel GRO in a thread there".into()),
            ("counted", "the receiver's core alone: gateway, stack, iperf3, interrupts".into()),
        ],
    }
}

/// Adds the rows below one heading to `points`.
fn section(points: &mut Vec<Point>, rate: Option<&'static str>, flows: u32, verified: bool, mtus: (u32, u32)) {
    let plain = rate.is_none() && flows == 1 && verified;
    let mut add = |how: How, page: Option<&'static str>| {
        let case = Case { how, page, mtus, rate, flows, verified };
        let (first_page, same) = (page.is_none_or(|page| page == PAGES[0]), mtus == (1500, 1500));
        let shaped = rate.is_some() && flows == 1 && verified && same && first_page;
        let part = match how {
            _ if !plain && !shaped => Part::Full,
            How::Lro | How::NoLro if plain && same && first_page => Part::Quick,
            _ if same || first_page => Part::Usual,
            _ => Part::Full,
        };
        points.push(Point {
            labels: labels(&case),
            seed: published(&case),
            part,
            beside: false,
            loads: 1,
            sample: Box::new(move |site| sample(site, &case)),
        });
    };
    for page in PAGES {
        add(How::Lro, Some(page));
        if mtus.0 != mtus.1 && page == PAGES[0] {
            add(How::LroCounted, Some(page));
        }
        add(How::NoLro, Some(page));
    }
    add(How::KernelGro, None);
    add(How::Kernel, None);
}

fn labels(case: &Case) -> Named<Value> {
    let mut labels = Named::default();
    labels.push("column", case.how.word());
    if let Some(page) = case.page {
        labels.push("page", page);
    }
    labels.push("mtu", format!("{}/{}", case.mtus.0, case.mtus.1));
    labels.push("link", case.rate.unwrap_or("unshaped"));
    labels.push("flows", case.flows);
    labels.push("checksums", if case.verified { "verified" } else { "unverified" });
    labels
}

/// Returns the published figures: one flow on a 10 Gbit/s link.
fn published(case: &Case) -> Named<Value> {
    let mut seed: Named<Value> = Named::default();
    if case.mtus.0 != 1500 || case.flows != 1 || !case.verified {
        return seed;
    }
    match (case.how, case.mtus.1, case.page) {
        (How::Lro, 1500, Some("frame")) => seed.push("gbps", 5.5),
        (How::NoLro, 1500, Some("frame")) => seed.push("gbps", 4.1),
        (How::Lro, 1500, Some(_)) => {
            seed.push("gbps", json!([8.8, 9.4]));
            seed.push("receiver_cpu_percent", json!([72, 77]));
        }
        (How::NoLro, 1500, Some(_)) => {
            seed.push("gbps", json!([3.7, 3.9]));
            seed.push("receiver_cpu_percent", 89);
        }
        // Of the same page size at 1500/1500.
        (How::LroCounted, _, _) => seed.push("gbps_loss_percent", json!([11, 17])),
        _ => {}
    }
    seed
}

fn sample(site: &Site, case: &Case) -> Result<Sample, LabError> {
    let pair = Pair::new(
        site,
        &Form {
            tested: Tested::Receiver,
            gateway: case.how.is_segue(),
            mtus: case.mtus,
            rate: case.rate,
            verified: case.verified,
            family: Family::V4,
            card: &[],
        },
    )?;
    if case.how == How::KernelGro
        && let Some(why) = bed::aggregate(&pair.receiver, &pair.cards[1])?
    {
        return Ok(Sample::Skipped(why));
    }
    let _gateway = pair.join(site, &flags(case))?;
    let (at_card, card) = pair.tested_card();
    let read = || -> Result<_, LabError> { Ok((bed::received(at_card, card)?, bed::tcp_units(&pair.receiver)?)) };
    let before = read()?;
    let outcome = load::run(&Load {
        client: &pair.sender,
        server: &pair.receiver,
        to: pair.to(),
        proto: Proto::Tcp,
        seconds: site.seconds,
        parallel: case.flows,
        style: Style { sendfile: true, ..Style::default() },
    })?;
    let after = read()?;

    let gigabytes = outcome.bytes as f64 * 1e-9;
    let mut values = Named::default();
    values.push("gbps", outcome.gbps());
    for (end, cpu) in [("receiver", outcome.server_cpu_s), ("sender", outcome.cpu_s)] {
        let Some(cpu) = cpu else { continue };
        values.push(&format!("{end}_cpu_percent"), 100.0 * cpu / outcome.wall_s);
        values.push(&format!("{end}_cpu_s_per_gb"), cpu / gigabytes);
    }
    values.push("train_packets", (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64);
    if let Some(retransmits) = outcome.retransmits {
        values.push("retransmits", retransmits as f64);
    }
    Ok(Sample::Values(values))
}

/// Returns the flags of the gateway.
fn flags(case: &Case) -> Vec<String> {
    let mut flags = vec!["--tap-mtu".to_owned(), case.mtus.1.to_string()];
    match case.how {
        How::NoLro => flags.push("--no-lro".into()),
        How::LroCounted => flags.extend(["--max-packets".into(), (65_535 / case.mtus.1).to_string()]),
        _ => {}
    }
    if let Some(page) = case.page {
        flags.extend(["--page".into(), page.into()]);
    }
    flags
}

fn title(row: &Row) -> String {
    let checksums = if label(row, "checksums") == "verified" { "" } else { ", checksums not verified by the card" };
    format!("mtu {}, link {}, {}{checksums}", label(row, "mtu"), label(row, "link"), flows(row))
}

fn name(row: &Row) -> String {
    let (column, page) = (label(row, "column"), label(row, "page"));
    match column.as_str() {
        "lro-count-limit" => format!("lro {page} count"),
        _ => format!("{column} {page}").trim_end().to_owned(),
    }
}

/// Returns the row without segue that corresponds to `row`.
fn kernel<'a>(table: &'a Table, row: &Row, column: &str) -> Option<&'a Row> {
    sibling(table, row, &[("column", Some(column)), ("page", None)])
}

const COLUMNS: &[Column] = &[
    Column { heading: "Gbit/s", width: 6, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "gbps") },
    Column {
        heading: "x noLRO",
        width: 7,
        cell: |table, row| match label(row, "column").as_str() {
            "lro" | "lro-count-limit" => ratio(row, sibling(table, row, &[("column", Some("no-lro"))]), "gbps"),
            _ => None,
        },
    },
    Column { heading: "x kern", width: 6, cell: |table, row| ratio(row, kernel(table, row, "kernel"), "gbps") },
    Column { heading: "x GRO", width: 5, cell: |table, row| ratio(row, kernel(table, row, "kernel-gro"), "gbps") },
    Column { heading: "CPU%", width: 4, cell: |_, row| median(row, "receiver_cpu_percent").map(|v| format!("{v:.0}")) },
    Column { heading: "s/GB", width: 5, cell: |_, row| median(row, "receiver_cpu_s_per_gb").map(short) },
    Column { heading: "pkts", width: 4, cell: |_, row| median(row, "train_packets").map(count) },
    Column {
        heading: "S1 2007",
        width: 9,
        cell: |_, row| {
            let loss = seed(row, "gbps_loss_percent", 0).map(|loss| format!("-{loss} %"));
            loss.or_else(|| {
                let cpu = seed(row, "receiver_cpu_percent", 0).map(|cpu| format!(" {cpu}%")).unwrap_or_default();
                let gbps = seed(row, "gbps", 1)?;
                // Both do not fit; the JSON has them.
                Some(if gbps.len() + cpu.len() <= 9 { gbps + &cpu } else { gbps })
            })
        },
    },
];

const NOTES: &[&str] = &[
    "",
    "x noLRO: to segue without LRO, same pages; x kern, x GRO: to the kernel alone",
    "with GRO off and on. CPU%, s/GB: the receiver's core, gateway and interrupts",
    "included, the sender excluded; s/GB is CPU seconds per 1e9 bytes. pkts: frames",
    "per unit that TCP gets. S1: Gbit/s on its machines, 10 Gbit/s link.",
];
