//! `napi`: the gain from the NAPI form of the LAN78xx driver on computers slower than this one (Linux 5.17, 2021).
//!
//! The program runs each row by itself, in a time of its own (`segue bench --end "target ..."`): driver, chip and
//! joining are the real ones, the computers around them are prices. Nothing depends on this machine.

use std::fmt::Write;
use std::process::Command;

use serde_json::Value;

use super::definition::Bench;
use super::layout::{Column, Layout, count, label, median, seed, sibling};
use super::point::{Part, Point, Sample};
use super::site::Site;
use crate::{LabError, Named, Row, Table};

/// Traffic forms in the order of the published tables.
const TRAFFIC: [(&str, &str); 4] =
    [("tcp-rx", "TCP received"), ("tcp-tx", "TCP sent"), ("udp-rx", "UDP received"), ("udp-tx", "UDP sent")];
const TARGETS: [&str; 4] = ["rpi4", "nitrogen8m", "compaq", "dell"];
/// Driver forms: the steps of the patch in sequence, and NAPI without the others.
const FORMS: [&str; 6] = ["standard", "tx-pool", "rx-pool", "gro", "napi", "napi-alone"];
/// Assumed costs of a transfer for the sweep, microseconds.
const SWEEP: [u32; 7] = [0, 2, 5, 10, 20, 40, 80];
/// Computers whose core speeds the sweep covers: the fast and the slow ones of those with four cores.
const SWEPT: [&str; 2] = ["dell", "nitrogen8m"];

/// A cell of a published table: Mbit/s, per cent of datagrams lost, idle per cent.
type Cell = (f64, Option<f64>, f64);

/// Published cells of the standard and the NAPI form: traffic in the order of `TRAFFIC`, target in that of `TARGETS`.
/// `None`: "unusable".
const PUBLISHED: [[[Option<Cell>; 2]; 4]; 4] = [
    [
        [Some((941.0, None, 74.9)), Some((941.0, None, 91.5))],
        [Some((941.0, None, 76.2)), Some((941.0, None, 92.7))],
        [Some((941.0, None, 44.5)), Some((941.0, None, 82.1))],
        [Some((941.0, None, 88.9)), Some((941.0, None, 98.3))],
    ],
    [
        [Some((683.0, None, 80.1)), Some((942.0, None, 97.6))],
        [Some((942.0, None, 97.8)), Some((942.0, None, 97.3))],
        [Some((939.0, None, 80.0)), Some((942.0, None, 91.2))],
        [Some((942.0, None, 95.3)), Some((942.0, None, 97.6))],
    ],
    [
        [None, Some((958.0, Some(0.0), 76.2))],
        [Some((690.0, Some(25.0), 57.7)), Some((937.0, Some(0.0), 68.5))],
        [Some((958.0, Some(0.0), 50.2)), Some((958.0, Some(0.0), 61.6))],
        [Some((958.0, Some(0.0), 89.6)), Some((958.0, Some(0.0), 85.3))],
    ],
    [
        [Some((370.0, None, 75.0)), Some((886.0, None, 78.9))],
        [Some((710.0, None, 75.0)), Some((958.0, None, 85.3))],
        [Some((958.0, None, 65.5)), Some((958.0, None, 76.6))],
        [Some((958.0, None, 97.0)), Some((958.0, None, 97.3))],
    ],
];

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for (at, (traffic, _)) in TRAFFIC.iter().enumerate() {
        for (of, target) in TARGETS.iter().enumerate() {
            for form in FORMS {
                let cell = match form {
                    "standard" => PUBLISHED[at][of][0],
                    "napi" => PUBLISHED[at][of][1],
                    _ => None,
                };
                let is_quick = (*traffic, *target) == ("tcp-tx", "rpi4") && matches!(form, "standard" | "napi");
                let part = if is_quick { Part::Quick } else { Part::Usual };
                points.push(point((traffic, target, form), None, published(cell), part));
            }
        }
    }
    for target in SWEPT {
        for (traffic, _) in TRAFFIC {
            for urb in SWEEP {
                for form in ["standard", "napi"] {
                    let part = if target == "dell" && traffic != "udp-tx" { Part::Full } else { Part::Usual };
                    points.push(point((traffic, target, form), Some(urb), Named::default(), part));
                }
            }
        }
    }
    Bench {
        name: "napi",
        link: None,
        pinned: false,
        title: "what the LAN78xx driver's NAPI form is worth, in a model of four computers (S4, Linux 5.17, 2021)",
        points,
        layout: Layout { section, name, columns: |_| COLUMNS, notes: NOTES },
        details: vec![
            ("load", "one flow as iperf3 sends it, from a far end that is never the limit".into()),
            ("wire", "1 Gbit/s, pause frames, a switch with 128 KiB".into()),
            ("usb", "400 MB/s, interrupts 40 us apart".into()),
            ("cores", "one serves the adapter, another one runs the program".into()),
        ],
    }
}

fn point(case: (&str, &str, &'static str), urb: Option<u32>, seed: Named<Value>, part: Part) -> Point {
    let (traffic, target, form) = case;
    let mut labels = Named::default();
    labels.push("traffic", traffic);
    labels.push("target", target);
    labels.push("form", form);
    if let Some(urb) = urb {
        labels.push("urb", urb);
    }
    let price = urb.map(|urb| format!(" {urb}")).unwrap_or_default();
    let words = (format!("{traffic} {target} {form}"), price);
    Point {
        labels,
        seed,
        part,
        beside: false,
        loads: 1,
        sample: Box::new(move |site| sample(site, &words.0, &words.1)),
    }
}

fn published(cell: Option<Cell>) -> Named<Value> {
    let mut seed: Named<Value> = Named::default();
    if let Some((mbps, lost, idle)) = cell {
        seed.push("gbps", mbps / 1000.0);
        seed.push("idle_percent", idle);
        if let Some(lost) = lost {
            seed.push("lost_percent", lost);
        }
    }
    seed
}

fn sample(site: &Site, words: &str, price: &str) -> Result<Sample, LabError> {
    let (millis, speed) = (site.seconds * 1000, site.quota.unwrap_or(100));
    let value = run_target(site, &format!("target {words} {} {millis} {speed}{price}", site.run))?;
    let mut values = Named::default();
    for (name, number) in value.as_object().into_iter().flatten() {
        if let Some(number) = number.as_f64() {
            values.push(name, number);
        }
    }
    Ok(Sample::Values(values))
}

fn run_target(site: &Site, words: &str) -> Result<Value, LabError> {
    let failed = |what: String| LabError::Load(format!("the model of `{words}` {what}"));
    let ran = Command::new(&site.segue)
        .args(["bench", "--end", words])
        .output()
        .map_err(|error| failed(format!("did not start: {error}")))?;
    let text = String::from_utf8_lossy(&ran.stdout);
    match serde_json::from_str(text.trim()) {
        Ok(value) if ran.status.success() => Ok(value),
        _ => Err(failed(format!("failed: {}", String::from_utf8_lossy(&ran.stderr).trim()))),
    }
}

/// Returns the model's costs as facts of the table.
pub(super) fn prices(site: &Site) -> Result<Vec<(String, Value)>, LabError> {
    let value = run_target(site, "target prices")?;
    Ok(value.as_object().into_iter().flatten().map(|(name, fact)| (name.clone(), fact.clone())).collect())
}

fn section(row: &Row) -> String {
    let traffic = label(row, "traffic");
    let title = TRAFFIC.iter().find(|(word, _)| *word == traffic).map_or(traffic.as_str(), |(_, title)| title);
    match label(row, "urb").is_empty() {
        true => format!("{title}, {}", label(row, "target")),
        false => format!("{title}, {}'s cores, microseconds of a core for each USB transfer", label(row, "target")),
    }
}

fn name(row: &Row) -> String {
    let form = label(row, "form");
    let sweep = label(row, "urb");
    match (sweep.is_empty(), form.as_str()) {
        (false, _) => format!("{sweep} {form}"),
        (true, "tx-pool" | "rx-pool" | "gro") => format!("+ {form}"),
        (true, "napi") => "+ napi = NAPI".into(),
        (true, _) => form,
    }
}

/// Returns the preceding form of a form.
fn before(form: &str) -> Option<&'static str> {
    let at = FORMS.iter().position(|one| *one == form)?;
    match form {
        "standard" => None,
        "napi-alone" => Some("standard"),
        _ => Some(FORMS[at - 1]),
    }
}

fn rate(value: f64) -> String {
    format!("{:.0}", value * 1000.0)
}

/// Returns the figure for the direction of the load.
fn mainly(row: &Row, metric: &str) -> Option<f64> {
    let direction = if label(row, "traffic").ends_with("rx") { "rx" } else { "tx" };
    median(row, &format!("{direction}_{metric}"))
}

const COLUMNS: &[Column] = &[
    Column { heading: "Mbit/s", width: 6, cell: |_, row| median(row, "gbps").map(rate) },
    Column { heading: "lost%", width: 5, cell: |_, row| median(row, "lost_percent").map(|v| format!("{v:.1}")) },
    Column { heading: "idle%", width: 5, cell: |_, row| median(row, "idle_percent").map(|v| format!("{v:.1}")) },
    Column {
        heading: "step",
        width: 5,
        cell: |table, row| {
            let form = label(row, "form");
            let last =
                if label(row, "urb").is_empty() { before(&form)? } else { (form == "napi").then_some("standard")? };
            let last = sibling(table, row, &[("form", Some(last))])?;
            Some(format!("{:+.1}", median(row, "idle_percent")? - median(last, "idle_percent")?))
        },
    },
    Column { heading: "p50", width: 4, cell: |_, row| mainly(row, "gap_p50_us").map(|v| format!("{v:.0}")) },
    Column { heading: "p99", width: 5, cell: |_, row| mainly(row, "gap_p99_us").map(|v| format!("{v:.0}")) },
    Column { heading: "burst", width: 5, cell: |_, row| mainly(row, "burst_frames").map(|v| format!("{v:.1}")) },
    Column { heading: "URB/s", width: 5, cell: |_, row| median(row, "urbs_per_s").map(count) },
    Column {
        heading: "S4 2021",
        width: 15,
        cell: |_, row| {
            let Some(mbps) = seed(row, "gbps", 3) else {
                let is_missing = name(row) == "standard" && label(row, "traffic") == "udp-rx";
                return is_missing.then(|| "missing".into());
            };
            let lost = seed(row, "lost_percent", 0).filter(|lost| lost != "0");
            let lost = lost.map(|lost| format!(" -{lost}%")).unwrap_or_default();
            let worse = if is_worse(row) { "!" } else { "" };
            Some(format!("{} {}{worse}{lost}", rate(mbps.parse().ok()?), seed(row, "idle_percent", 1)?))
        },
    },
];

/// Returns whether a cell was published as worse than the standard form's.
fn is_worse(row: &Row) -> bool {
    let words = (label(row, "traffic"), label(row, "target"));
    label(row, "form") == "napi"
        && (words == ("tcp-tx".into(), "nitrogen8m".into()) || words == ("udp-rx".into(), "dell".into()))
}

const NOTES: &[&str] = &[
    "",
    "idle%: mean of all cores of the target; step: points of it against the row that",
    "the step is made from (napi-alone: standard). p50, p99: microseconds between",
    "deliveries to the stack (sending: transfers to the chip); burst: frames in one.",
    "URB/s: transfers both ways. S4: Mbit/s and idle%, per cent lost; !: published as",
    "worse than standard; missing: published as unusable.",
];

/// Returns the published effects next to the table's, for the rows in the table.
pub(super) fn effects(table: &Table) -> String {
    let mut text = String::new();
    for (at, (traffic, title)) in TRAFFIC.iter().enumerate() {
        for (of, target) in TARGETS.iter().enumerate() {
            let find = |form: &str| {
                table.rows.iter().find(|row| {
                    [("traffic", *traffic), ("target", *target), ("form", form)]
                        .iter()
                        .all(|(k, v)| label(row, k) == *v)
                        && label(row, "urb").is_empty()
                })
            };
            let (Some(standard), Some(napi)) = (find("standard"), find("napi")) else { continue };
            let of_rows = |metric: &str| Some((median(standard, metric)?, median(napi, metric)?));
            let (Some(rates), Some(idles)) = (of_rows("gbps"), of_rows("idle_percent")) else { continue };
            let here = format!("x{:.3} {:+.1}", rates.1 / rates.0, idles.1 - idles.0);
            let there = match PUBLISHED[at][of] {
                [Some((from, _, idle)), Some((to, _, then))] => format!("x{:.3} {:+.1}", to / from, then - idle),
                _ => "missing".into(),
            };
            let _ = writeln!(text, "  {:<30} {here:>14} {there:>14}", format!("{title}, {target}"));
        }
    }
    if text.is_empty() {
        text
    } else {
        format!("\n{:<32} {:>14} {:>14}\n{text}", "NAPI TO STANDARD (Mbit/s, idle)", "here", "S4 2021")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_cell_is_worse_where_it_is_marked_and_nowhere_else() {
        for (at, (traffic, _)) in TRAFFIC.iter().enumerate() {
            for (of, target) in TARGETS.iter().enumerate() {
                let [standard, napi] = PUBLISHED[at][of];
                let row = |form: &'static str| {
                    let point = point((traffic, target, form), None, Named::default(), Part::Usual);
                    Row { case: point.labels, metrics: Named::default(), seed: point.seed }
                };
                let worse = standard.zip(napi).is_some_and(|(from, to)| to.2 < from.2 || to.0 < from.0);
                assert_eq!(is_worse(&row("napi")), worse, "{traffic} {target}");
                assert!(!is_worse(&row("standard")));
            }
        }
    }
}
