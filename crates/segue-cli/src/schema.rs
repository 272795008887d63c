//! `segue schema`: JSON Schemas of the documents that `-j` prints.

use std::collections::BTreeMap;

use schemars::{JsonSchema, schema_for};
use segue_control::error::{Error, Kind};
use segue_control::knobs;
use segue_control::model::Document;
use serde_json::{Value, json};

use crate::args::Schema;
use crate::out::Out;

/// Runs `segue schema`.
pub(crate) fn run(args: &Schema, out: &Out) -> Result<(), Error> {
    let schema = match args.of.as_deref() {
        Some("lab" | "bench") => schema_for!(Bench),
        Some("set") => schema_for!(knobs::Document),
        Some("nat") => schema_for!(crate::nat::Document),
        Some("peer") => schema_for!(crate::peer::Document),
        Some("pcap") => schema_for!(crate::pcap::schema::Document),
        Some("lan78xx") => schema_for!(crate::lan78xx::schema::Document),
        Some(_) => schema_for!(Document),
        None => {
            return Err(Error::new(Kind::Missing, "`schema` needs the name of a command", "segue schema stat")
                .why("stat, set, nat, peer, lab, bench, pcap and lan78xx print documents that have a schema"));
        }
    };
    let value: Value = json!(schema);
    out.value(&value);
    Ok(())
}

/// `segue.bench/1`: a table of measurements. A metric that does not exist for a row is left out.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Bench {
    /// The schema id, always `segue.bench/1`.
    schema: String,
    /// Name of the bench: `lab`, `lro`, `ack`, `gso`, `rco`, `tunnel`, `napi`.
    bench: String,
    /// Description of the machine, and how the figures were measured.
    machine: BTreeMap<String, Value>,
    /// Results, one row for each case.
    rows: Vec<Row>,
    /// Cases that cannot run on this machine; missing when all ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<Skipped>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Skipped {
    /// Name of the skipped case.
    name: String,
    /// Reason why the case did not run.
    reason: String,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Row {
    /// Case that was measured: labels and their values.
    case: BTreeMap<String, Value>,
    /// Results by name; the name carries the unit.
    metrics: BTreeMap<String, Metric>,
    /// Published figures for this row under the names of the metrics: a number, or two for a range; missing when there
    /// are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    seed: BTreeMap<String, Value>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Metric {
    /// Smallest sample.
    min: f64,
    /// Median of the samples.
    median: f64,
    /// Largest sample.
    max: f64,
    /// All samples in the order in which they were taken.
    samples: Vec<f64>,
}
