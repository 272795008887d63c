//! `segue schema`: the JSON Schema of what `-j` prints.

use std::collections::BTreeMap;

use schemars::{JsonSchema, schema_for};
use segue_control::error::{Error, Kind};
use segue_control::knobs;
use segue_control::model::Document;
use serde_json::{Value, json};

use crate::args::Schema;
use crate::out::Out;

/// Prints it.
pub(crate) fn run(args: &Schema, out: &Out) -> Result<(), Error> {
    let schema = match args.of.as_deref() {
        Some("lab" | "bench") => schema_for!(Bench),
        Some("set") => schema_for!(knobs::Document),
        Some("nat") => schema_for!(crate::nat::Document),
        Some("pcap") => schema_for!(crate::pcap::schema::Document),
        Some("lan78xx") => schema_for!(crate::lan78xx::schema::Document),
        Some(_) => schema_for!(Document),
        None => {
            return Err(Error::new(Kind::Missing, "`schema` needs the name of a command", "segue schema stat")
                .why("stat, set, nat, lab, bench, pcap and lan78xx print documents that have a schema"));
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
    /// Always `segue.bench/1`.
    schema: String,
    /// Which bench: `lab`, `lro`, `ack`, `gso`, `rco`, `tunnel`, `napi`.
    bench: String,
    /// The machine, and how its numbers were taken.
    machine: BTreeMap<String, Value>,
    /// One row for each case.
    rows: Vec<Row>,
    /// Cases that cannot run on this machine; missing when all ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<Skipped>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Skipped {
    /// The case.
    name: String,
    /// Why it did not run.
    reason: String,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Row {
    /// What was measured: labels and their values.
    case: BTreeMap<String, Value>,
    /// Results by name; the name carries the unit.
    metrics: BTreeMap<String, Metric>,
    /// What was published for this row under the same names: a number, or two for a range; missing when nothing was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    seed: BTreeMap<String, Value>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Metric {
    /// The smallest sample.
    min: f64,
    /// The middle one.
    median: f64,
    /// The largest.
    max: f64,
    /// Every sample in the order in which it was taken.
    samples: Vec<f64>,
}
