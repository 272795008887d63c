//! `ack`: the gain of the sender from aggregated received acknowledgments (LRO of pure ACKs, 2007).

use std::time::Instant;

use serde_json::Value;

use super::definition::Bench;
use super::layout::{Column, Layout, count, flows, label, median, seed, short, sibling, spread};
use super::pair::{Form, Pair, Tested};
use super::point::{Part, Point, Sample};
use super::site::Site;
use super::{bed, ends};
use crate::{CONGESTION, Family, LabError, Named, Row};

const MTU: u32 = 1500;
/// Number of bytes of a KB in netperf's output, and therefore in the published figures.
const KB: f64 = 1024.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Aggregated,
    Plain,
    Kernel,
}

impl How {
    const fn word(self) -> &'static str {
        match self {
            How::Aggregated => "ack-aggregation",
            How::Plain => "no-ack-aggregation",
            How::Kernel => "kernel",
        }
    }
}

/// Rates at which the receiver acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    /// The receiver aggregates up to 64 kB and acknowledges each train.
    Train,
    /// The receiver aggregates about eight frames.
    Eight,
    /// The receiver does not aggregate, and acknowledges every second frame.
    Two,
}

impl Receiver {
    const fn word(self) -> &'static str {
        match self {
            Receiver::Train => "per-train",
            Receiver::Eight => "8:1",
            Receiver::Two => "2:1",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    how: How,
    receiver: Receiver,
    rate: Option<&'static str>,
    flows: u32,
}

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for rate in [None, Some("10gbit")] {
        for flows in [1, 2, 8, 64] {
            for receiver in [Receiver::Train, Receiver::Eight, Receiver::Two] {
                for how in [How::Aggregated, How::Plain, How::Kernel] {
                    let part = match (rate, flows, receiver, how) {
                        (None, 1, Receiver::Two, How::Aggregated | How::Plain) => Part::Quick,
                        (None, 1, ..) => Part::Usual,
                        _ => Part::Full,
                    };
                    let case = Case { how, receiver, rate, flows };
                    points.push(Point {
                        labels: labels(&case),
                        seed: published(&case),
                        part,
                        beside: false,
                        loads: 1,
                        sample: Box::new(move |site| sample(site, &case)),
                    });
                }
            }
        }
    }
    Bench {
        name: "ack",
        title: "what aggregating acknowledgements is worth to the sender (S2, LRO of pure ACKs, 2007)",
        points,
        link: None,
        pinned: true,
        layout: Layout { section: title, name, columns: |_| COLUMNS, notes: NOTES },
        details: vec![
            ("load", format!("sendfile, {}; a receiver that acknowledges each unit", CONGESTION)),
            ("wire", "the sender's card has TSO; a third host cuts the trains to frames of 1500 bytes".into()),
            ("steering", "RPS: what a host receives is worked on by its own core".into()),
            (
                "counted",
                "sender: its core alone, gateway, stack, load, interrupts; receiver: its core, cutting included".into(),
            ),
        ],
    }
}

fn labels(case: &Case) -> Named<Value> {
    let mut labels = Named::default();
    labels.push("column", case.how.word());
    labels.push("receiver", case.receiver.word());
    labels.push("link", case.rate.unwrap_or("unshaped"));
    labels.push("flows", case.flows);
    labels
}

fn published(case: &Case) -> Named<Value> {
    let mut seed: Named<Value> = Named::default();
    if case.flows != 1 {
        return seed;
    }
    let cells = match (case.receiver, case.how) {
        (Receiver::Train, How::Plain) => [None, Some(0.349)],
        (Receiver::Train, How::Aggregated) => [None, Some(0.294)],
        (Receiver::Eight, How::Plain) => [Some(8.530), Some(0.404)],
        (Receiver::Eight, How::Aggregated) => [Some(9.249), Some(0.255)],
        _ => [None, None],
    };
    for (name, cell) in ["gbps", "sender_us_per_kb"].into_iter().zip(cells) {
        if let Some(cell) = cell {
            seed.push(name, cell);
        }
    }
    seed
}

fn sample(site: &Site, case: &Case) -> Result<Sample, LabError> {
    let pair = Pair::new(
        site,
        &Form {
            tested: Tested::Sender,
            gateway: case.how != How::Kernel,
            mtus: (MTU, MTU),
            rate: case.rate,
            verified: true,
            family: Family::V4,
            card: &[],
        },
    )?;
    let (receiver, far) = (&pair.receiver, pair.cards[1].as_str());
    if case.receiver != Receiver::Two {
        bed::aggregate_with_sender(receiver, far)?;
        if case.receiver == Receiver::Eight {
            // One frame more would be over the limit: a train closes when the next segment might not fit.
            let most = (8 * MTU).to_string();
            receiver.run("ip", &["link", "set", "dev", far, "gro_max_size", &most])?;
        }
    }
    let mut flags = vec!["--profile".to_owned(), "lro".to_owned()];
    if case.how == How::Aggregated {
        flags.push("--ack-aggregation".into());
    }
    let _gateway = pair.join(site, &flags)?;

    let (at_card, card) = pair.tested_card();
    let read = || -> Result<_, LabError> {
        let sender = &pair.sender;
        Ok((bed::received(at_card, card)?, bed::tcp_units(sender)?, bed::tcp_counter(sender, "RetransSegs")?))
    };
    let load = (ends::Taker::Sink, case.flows, ends::CHUNK);
    let ready = || Ok((read()?, Instant::now(), pair.cpu_seconds()?));
    let to = pair.to().to_string();
    let (came, (before, begin, cpu_before)) =
        ends::run(&site.segue, &pair.sender, (receiver, &to), load, site.seconds, ready)?;
    let (after, wall, cpu_after) = (read()?, begin.elapsed().as_secs_f64(), pair.cpu_seconds()?);

    let mut values = Named::default();
    values.push("gbps", came.bytes as f64 * 8e-9 / came.seconds);
    for (index, end) in ["sender", "receiver"].into_iter().enumerate() {
        let cpu = cpu_after[index] - cpu_before[index];
        values.push(&format!("{end}_cpu_percent"), 100.0 * cpu / wall);
        values.push(&format!("{end}_us_per_kb"), cpu * 1e6 / (came.bytes as f64 / KB));
    }
    values.push("acks_in_per_s", (after.0 - before.0) as f64 / came.seconds);
    values.push("acks_out_per_s", (after.1 - before.1) as f64 / came.seconds);
    values.push("retransmits", (after.2 - before.2) as f64);
    Ok(Sample::Values(values))
}

fn title(row: &Row) -> String {
    format!("receiver acknowledges {}, link {}, {}", label(row, "receiver"), label(row, "link"), flows(row))
}

fn name(row: &Row) -> String {
    match label(row, "column").as_str() {
        "ack-aggregation" => "segue, acks agg".into(),
        "no-ack-aggregation" => "segue".into(),
        other => other.into(),
    }
}

const COLUMNS: &[Column] = &[
    Column { heading: "Gbit/s", width: 6, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "gbps") },
    Column { heading: "CPU%", width: 4, cell: |_, row| median(row, "sender_cpu_percent").map(|v| format!("{v:.0}")) },
    Column { heading: "us/KB", width: 5, cell: |_, row| median(row, "sender_us_per_kb").map(short) },
    Column {
        heading: "change",
        width: 6,
        cell: |table, row| {
            let plain = sibling(table, row, &[("column", Some("no-ack-aggregation"))])?;
            let (with, without) = (median(row, "sender_us_per_kb")?, median(plain, "sender_us_per_kb")?);
            let is_it = label(row, "column") == "ack-aggregation" && without > 0.0;
            is_it.then(|| format!("{:+.0}%", 100.0 * (with / without - 1.0)))
        },
    },
    Column { heading: "rcv us", width: 6, cell: |_, row| median(row, "receiver_us_per_kb").map(short) },
    Column { heading: "acks in", width: 7, cell: |_, row| median(row, "acks_in_per_s").map(count) },
    Column { heading: "out", width: 5, cell: |_, row| median(row, "acks_out_per_s").map(count) },
    Column {
        heading: "S2 2007",
        width: 10,
        cell: |_, row| {
            let gbps = seed(row, "gbps", 2).map(|gbps| format!("{gbps} ")).unwrap_or_default();
            seed(row, "sender_us_per_kb", 3).map(|cost| gbps + &cost)
        },
    },
];

const NOTES: &[&str] = &[
    "",
    "us/KB: microseconds of the sender's core per 1024 bytes received, gateway and",
    "interrupts included; change: to segue without ACK aggregation. rcv us: the",
    "same of the receiver's core, cutting trains to frames included. acks in: per",
    "second at the sender's card; out: that reach its TCP. S2: Gbit/s and us/KB.",
];
