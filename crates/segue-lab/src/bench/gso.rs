//! `gso`: the gain of the sender from late segmentation (GSO for FreeBSD, 2014).

use serde_json::Value;

use super::definition::Bench;
use super::layout::{Column, Layout, count, flows, label, median, ratio, seed, short, sibling, spread};
use super::point::{Part, Point};
use super::sending::{self, Case, How, Load};
use crate::{CONGESTION, Family, Named, Row, Table};

/// Clock frequencies of source S5 (GSO for FreeBSD, 2014), in per cent of the highest.
const QUOTAS: [u32; 6] = [100, 86, 68, 50, 36, 15];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(super) fn bench() -> Bench {
    let mut cases = Vec::new();
    let loads = FAMILIES.map(Load::Tcp).into_iter().chain(FAMILIES.map(Load::Udp));
    for load in loads {
        for rate in [None, Some("10gbit")] {
            for flows in [1, 2, 8, 64] {
                for (gro, sums) in [(true, true), (false, true), (true, false)] {
                    for quota in QUOTAS {
                        let case = Case { load, how: How::Gso, quota, rate, flows, gro, sums };
                        cases.extend(methods(load, gro, sums).iter().map(|how| Case { how: *how, ..case }));
                    }
                }
            }
        }
    }
    let plain = Case { load: Load::Nat, how: How::Tso, quota: 100, rate: None, flows: 1, gro: true, sums: true };
    cases.extend([How::Tso, How::Gso, How::Entry, How::Nowhere].map(|how| Case { how, ..plain }));
    cases.extend([How::Gso, How::Entry].map(|how| Case { load: Load::Live, how, ..plain }));
    let point = |case: Case| Point {
        labels: labels(&case),
        seed: published(&case),
        part: part(&case),
        beside: false,
        loads: 1,
        sample: Box::new(move |site| sending::sample(site, &case)),
    };
    Bench {
        name: "gso",
        link: None,
        pinned: true,
        title: "what cutting trains late is worth to the sender (S5, GSO for FreeBSD, 2014)",
        points: cases.into_iter().map(point).collect(),
        layout: Layout { section: title, name, columns: |_| COLUMNS, notes: NOTES },
        details: vec![
            ("load", format!("iperf3 -Z, {}; datagrams of 9000 bytes, 32 on their way", CONGESTION)),
            ("wire", "a third host hands frames on; none longer than 1514 bytes, counted there".into()),
            ("steering", "the wire fetches frames on its own core, each 20 us; RPS for trains and the way back".into()),
            ("counted", "sender: its core alone, gateway, stack, load, interrupts; quota: of its tasks".into()),
        ],
    }
}

/// Returns the methods whose rows are compared with each other.
const fn methods(load: Load, gro: bool, sums: bool) -> &'static [How] {
    match (load, gro && sums) {
        (Load::Tcp(_), true) => &[
            How::Tso,
            How::Kernel,
            How::Handed,
            How::Gso,
            How::Late,
            How::Nowhere,
            How::NowhereSums,
            How::KernelNowhere,
        ],
        (Load::Tcp(_), false) => &[How::Handed, How::Gso, How::Nowhere],
        _ => &[How::Kernel, How::Gso, How::Nowhere],
    }
}

fn part(case: &Case) -> Part {
    let Case { load, how, quota, rate, flows, gro, sums } = *case;
    match (load, how) {
        (Load::Nat, How::Tso) | (Load::Live, _) => return Part::Quick,
        (Load::Nat, How::Gso) => return Part::Full,
        (Load::Nat, _) => return Part::Usual,
        _ => {}
    }
    let is_pair = matches!(how, How::Gso | How::Nowhere);
    let (is_tcp, is_tcp4) = (matches!(load, Load::Tcp(_)), load == Load::Tcp(Family::V4));
    match (rate, flows, gro && sums, quota) {
        (None, 1, true, 100) if is_pair && (is_tcp4 || load == Load::Udp(Family::V6)) => Part::Quick,
        (None, 1, true, 100) if is_pair || is_tcp && matches!(how, How::Kernel | How::Late) => Part::Usual,
        (None, 1, true, 100) if is_tcp4 && how == How::Tso => Part::Usual,
        (None, 1, true, 50) if is_pair => Part::Usual,
        (None, 1, true, 15) if is_pair && is_tcp => Part::Usual,
        // Many flows that share the processor's caches, and trains that are shorter for it.
        (None, 64, true, 100 | 50 | 15) if is_pair && is_tcp => Part::Usual,
        // What GSO is worth against a receiver that joins nothing.
        (None, 1, false, 100) if is_pair && is_tcp4 && sums => Part::Usual,
        _ => Part::Full,
    }
}

fn labels(case: &Case) -> Named<Value> {
    let mut labels = Named::default();
    labels.push("column", case.how.word());
    labels.push("protocol", case.load.word());
    labels.push("link", case.rate.unwrap_or("unshaped"));
    labels.push("flows", case.flows);
    labels.push("receiver", if case.gro { "gro" } else { "no-gro" });
    labels.push("checksums", if case.sums { "offload" } else { "software" });
    labels.push("quota", case.quota);
    labels
}

/// Throughput of TCP over IPv4 in S5, Mbit/s, for each of [`QUOTAS`]: with TSO, with GSO, with neither.
const TCP4: [[u32; 3]; 6] = [
    [9347, 9298, 8308],
    [9266, 9401, 6771],
    [9408, 9294, 5499],
    [9408, 8087, 4075],
    [9408, 5673, 2884],
    [6760, 2206, 1244],
];
/// Throughput of TCP over IPv6 in S5, as in [`TCP4`].
const TCP6: [[u32; 3]; 6] = [
    [7530, 6939, 4966],
    [5133, 7145, 4008],
    [5965, 6331, 3152],
    [5565, 5180, 2348],
    [8501, 3607, 1732],
    [3665, 1505, 651],
];
/// Throughput of UDP over IPv4 in S5, Mbit/s, for each of [`QUOTAS`]: with GSO, and without it.
const UDP4: [[u32; 2]; 6] = [[9440, 8084], [7772, 6649], [6336, 5338], [4748, 4014], [3359, 2831], [1312, 1120]];
/// Throughput of UDP over IPv6 in S5, as in [`UDP4`].
const UDP6: [[u32; 2]; 6] = [[7281, 6197], [5953, 5020], [4804, 4048], [3582, 3004], [2512, 2092], [998, 826]];

/// Returns the published figures: one flow, a receiver with GRO, a card that computes checksums, a link of 10 Gbit/s.
fn published(case: &Case) -> Named<Value> {
    let mut cells: Named<Value> = Named::default();
    let at = QUOTAS.iter().position(|quota| *quota == case.quota);
    let (1, true, true, Some(at)) = (case.flows, case.gro, case.sums, at) else { return cells };
    let [tso, gso, none] = match case.load {
        Load::Tcp(Family::V4) => TCP4[at].map(Some),
        Load::Tcp(Family::V6) => TCP6[at].map(Some),
        Load::Udp(Family::V4) => [None, Some(UDP4[at][0]), Some(UDP4[at][1])],
        Load::Udp(Family::V6) => [None, Some(UDP6[at][0]), Some(UDP6[at][1])],
        Load::Nat | Load::Live => return cells,
    };
    let cell = match case.how {
        How::Tso => tso,
        How::Gso => gso,
        How::Nowhere => none,
        _ => None,
    };
    if let Some(mbps) = cell {
        cells.push("gbps", f64::from(mbps) / 1000.0);
    }
    if let (How::Gso, Some(gso), Some(none)) = (case.how, gso, none) {
        cells.push("gain_percent", (10_000.0 * (f64::from(gso) / f64::from(none) - 1.0)).round() / 100.0);
    }
    cells
}

fn title(row: &Row) -> String {
    let special = match (label(row, "receiver").as_str(), label(row, "checksums").as_str()) {
        ("gro", "offload") => "",
        ("gro", _) => ", checksums not by the card",
        _ => ", receiver without GRO",
    };
    format!("{}, link {}, {}{special}", label(row, "protocol"), label(row, "link"), flows(row))
}

fn name(row: &Row) -> String {
    format!("{:>3}% {}", label(row, "quota"), label(row, "column"))
}

/// Returns the row to compare with: the one where the sending stack segments, or for live rows, segue on ingress.
fn base<'a>(table: &'a Table, row: &Row) -> Option<&'a Row> {
    let column = label(row, "column");
    let wanted = match (label(row, "protocol").as_str(), column.as_str()) {
        (_, "none" | "entry" | "kernel-none") => return None,
        (_, "kernel") if sibling(table, row, &[("column", Some("kernel-none"))]).is_some() => "kernel-none",
        ("live-tcp4", _) => "entry",
        _ => "none",
    };
    sibling(table, row, &[("column", Some(wanted))])
}

fn gain(table: &Table, row: &Row) -> Option<String> {
    let (base, value) = (median(base(table, row)?, "gbps")?, median(row, "gbps")?);
    (base > 0.0).then(|| format!("{:+.0}%", 100.0 * (value / base - 1.0)))
}

const COLUMNS: &[Column] = &[
    Column { heading: "Gbit/s", width: 6, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "gbps") },
    Column { heading: "gain", width: 5, cell: gain },
    Column {
        heading: "x kern",
        width: 6,
        cell: |table, row| ratio(row, sibling(table, row, &[("column", Some("kernel"))]), "gbps"),
    },
    Column { heading: "CPU%", width: 4, cell: |_, row| median(row, "sender_cpu_percent").map(|v| format!("{v:.0}")) },
    Column { heading: "s/GB", width: 5, cell: |_, row| median(row, "sender_cpu_s_per_gb").map(short) },
    Column { heading: "pkts", width: 4, cell: |_, row| median(row, "stage_packets").map(short) },
    Column { heading: "retr", width: 5, cell: |_, row| median(row, "retransmits").map(count) },
    Column { heading: "S5 2014", width: 7, cell: |_, row| seed(row, "gbps", 2) },
    Column {
        heading: "gain",
        width: 5,
        cell: |_, row| seed(row, "gain_percent", 0).map(|percent| format!("+{percent}%")),
    },
];

const NOTES: &[&str] = &[
    "",
    "N%: of the sender's processor. tso: trains to a card that cuts them; handed: to",
    "one that does not, so the kernel cuts; gso: segue cuts in front of it; none: the",
    "sending stack makes single segments and computes checksums; none-late: it makes",
    "trains and cuts them in front of its interface; entry: segue cuts as they come",
    "in; kernel: no gateway, the kernel's own GSO. gain: over none (live: over entry;",
    "kernel: over the kernel without GSO). pkts: packets to a unit in front of the",
    "card. s/GB: CPU seconds of the sender per 1e9 bytes. live: after enable_gso was",
    "switched to that under load.",
];
