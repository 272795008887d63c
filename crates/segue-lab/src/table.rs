//! Tables of results, as JSON of schema `segue.bench/1` and as text.

use std::fmt::{self, Write};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::machine::Machine;
use crate::named::Named;

/// A table of results. JSON: `{"schema", "bench", "machine", "rows", "skipped"}`, the last only if something was
/// skipped.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// Name of the schema, always `segue.bench/1`.
    pub schema: &'static str,
    /// Name of the bench; `lab` for the demonstration.
    pub bench: String,
    /// The machine on which the table was measured.
    pub machine: Machine,
    /// The rows, one per case and family.
    pub rows: Vec<Row>,
    /// Cases that could not be measured here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
}

/// A row: its distinguishing labels and its metrics. A metric that does not exist for a row is left out.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Labels of the row, in order.
    pub case: Named<Value>,
    /// Metrics by name; the name carries the unit.
    pub metrics: Named<Metric>,
    /// Published results that this row repeats, under the same names: a number or `[from, to]`.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub seed: Named<Value>,
}

/// A requested case that could not run.
#[derive(Debug, Clone, Serialize)]
pub struct Skipped {
    /// Name of the case.
    pub name: String,
    /// Reason why the case could not run.
    pub reason: String,
}

/// The samples of one metric. Serialised as `{"min", "median", "max", "samples"}`; whole numbers without a fraction.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    samples: Vec<f64>,
    sorted: Vec<f64>,
}

impl Metric {
    /// Creates a metric from the finite samples; `None` if there are none.
    pub fn new(samples: &[f64]) -> Option<Metric> {
        let samples: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() { None } else { Some(Metric { samples, sorted }) }
    }

    /// Returns the smallest sample.
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// Returns the largest sample.
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// Returns the median: the middle sample, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let len = self.sorted.len();
        f64::midpoint(self.sorted[(len - 1) / 2], self.sorted[len / 2])
    }

    /// Returns all samples in chronological order.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("min", &number(self.min()))?;
        map.serialize_entry("median", &number(self.median()))?;
        map.serialize_entry("max", &number(self.max()))?;
        let samples: Vec<Value> = self.samples.iter().map(|sample| number(*sample)).collect();
        map.serialize_entry("samples", &samples)?;
        map.end()
    }
}

/// Converts a value to JSON with at most six digits after the point, beyond the precision of every clock used here. A
/// whole number is written without a fraction.
fn number(value: f64) -> Value {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 { Value::from(rounded as i64) } else { Value::from(rounded) }
}

impl Table {
    /// Creates an empty table of this machine.
    pub fn new(bench: &str, machine: Machine) -> Table {
        Table { schema: "segue.bench/1", bench: bench.into(), machine, rows: Vec::new(), skipped: Vec::new() }
    }

    /// Returns the row with this case name and family.
    pub fn row(&self, name: &str, family: u8) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.case.find("name").is_some_and(|value| value == name)
                && row.case.find("family").is_some_and(|value| value == family)
        })
    }

    /// Returns the table as one JSON object, on one line or indented.
    pub fn to_json(&self, pretty: bool) -> String {
        let text = if pretty { serde_json::to_string_pretty(self) } else { serde_json::to_string(self) };
        text.expect("maps have string keys and numbers are finite")
    }

    /// Returns the machine part as text in lines of at most 80 columns (a longer word stays whole).
    /// Ends with a newline.
    pub fn caption(&self) -> String {
        let Machine { cpu, cpus, kernel, cpu_method, date, more } = &self.machine;
        let fixed = [cpu.clone(), format!("{cpus} cpus"), format!("Linux {kernel}"), format!("CPU time: {cpu_method}")];
        let more = more.0.iter().map(|(name, value)| match value {
            Value::String(text) if text.starts_with(name) => text.clone(),
            Value::String(text) => format!("{name} {text}"),
            value => format!("{name} {value}"),
        });
        let (mut text, mut column) = (String::new(), 0);
        for item in fixed.into_iter().chain([date.clone()]).chain(more) {
            if column > 0 && column + 2 + item.len() <= 80 {
                text += ", ";
                column += 2;
            } else if column > 0 {
                text += "\n";
                column = 0;
            }
            text += &item;
            column += item.len();
        }
        text + "\n"
    }

    /// Returns the table as text: at most 80 columns, ASCII, medians with their range, and the ratio to `segue-plain`
    /// of the same family if that was measured. Ends with a newline.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let loss = self.rows.iter().any(|row| row.metrics.find("lost_percent").is_some());
        let last = if loss { "lost %" } else { "retrans" };
        line(&mut text, ["CASE", "NET", "Gbit/s", "min-max", "x plain", "CPU s/GB", "x plain", "train", last]);
        for row in &self.rows {
            let name = row.case.find("name").and_then(Value::as_str).unwrap_or("?");
            let net = format!("{}{}", label(row, "proto"), label(row, "family"));
            let family = row.case.find("family").and_then(Value::as_u64).and_then(|n| u8::try_from(n).ok());
            let plain = family.and_then(|family| self.row("segue-plain", family));
            let ratio = |metric: &str| {
                let base = plain?.metrics.find(metric)?.median();
                let value = row.metrics.find(metric)?.median();
                (base > 0.0).then(|| format!("{:.2}", value / base))
            };
            let show = |metric: &str, form: &dyn Fn(&Metric) -> String| row.metrics.find(metric).map(form);
            let cells = [
                Some(name.to_string()),
                Some(net),
                show("gbps", &|m| short(m.median())),
                show("gbps", &|m| format!("{}-{}", short(m.min()), short(m.max()))),
                ratio("gbps"),
                show("cpu_s_per_gb", &|m| format!("{:.3}", m.median())),
                ratio("cpu_s_per_gb"),
                show("train_bytes", &|m| bytes(m.median())),
                show(if loss { "lost_percent" } else { "retransmits" }, &|m| trimmed(m.median())),
            ];
            line(&mut text, cells.each_ref().map(|cell| cell.as_deref().unwrap_or("-")));
        }
        for Skipped { name, reason } in &self.skipped {
            let _ = writeln!(text, "{name}: skipped, {reason}");
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// Writes a line of 80 columns: names to the left, numbers to the right.
fn line(text: &mut String, cells: [&str; 9]) {
    let [case, net, gbps, range, vs, cpu, vs_cpu, train, last] = cells;
    let _ =
        writeln!(text, "{case:<12} {net:<4} {gbps:>6} {range:>11} {vs:>8} {cpu:>9} {vs_cpu:>8} {train:>7} {last:>7}",);
}

fn label(row: &Row, name: &str) -> String {
    match row.case.find(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// Formats a value with three significant digits.
fn short(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Formats a number of bytes with an SI prefix: `1400`, `43.1k`.
fn bytes(value: f64) -> String {
    if value < 9999.5 { format!("{value:.0}") } else { format!("{}k", short(value / 1000.0)) }
}

fn trimmed(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    fn table() -> Table {
        let mut machine = Machine::here(&Cpu::new());
        machine.more.push("segue", "segue 0.1.0");
        let mut table = Table::new("lab", machine);
        for (name, gbps, cpu, train) in
            [("segue", [7.9, 8.1, 7.0], 1.5, Some(43_100.0)), ("segue-plain", [2.0; 3], 4.5, None)]
        {
            let mut case = Named::default();
            case.push("name", name);
            case.push("family", 4);
            case.push("proto", "tcp");
            case.push("link", "nic");
            let mut metrics = Named::default();
            metrics.push("gbps", Metric::new(&gbps).unwrap());
            metrics.push("cpu_s_per_gb", Metric::new(&[cpu]).unwrap());
            metrics.push("retransmits", Metric::new(&[3.0, 0.0, 12.0]).unwrap());
            if let Some(train) = train {
                metrics.push("train_bytes", Metric::new(&[train]).unwrap());
            }
            table.rows.push(Row { case, metrics, seed: Named::default() });
        }
        table
    }

    #[test]
    fn the_median_is_the_middle_and_samples_keep_their_order() {
        let odd = Metric::new(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.min(), odd.median(), odd.max(), odd.samples()), (1.0, 2.0, 3.0, &[3.0, 1.0, 2.0][..]));
        assert_eq!(Metric::new(&[1.0, 4.0]).unwrap().median(), 2.5);
        assert_eq!(Metric::new(&[]), None);
        assert_eq!(Metric::new(&[f64::NAN]), None);
    }

    #[test]
    fn the_json_has_the_one_shape_of_all_tables() {
        let table = table();
        let value: Value = serde_json::from_str(&table.to_json(false)).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["bench", "machine", "rows", "schema"]);
        assert_eq!(keys(&value["machine"]), ["cpu", "cpu_method", "cpus", "date", "kernel", "segue"]);
        assert_eq!((&value["schema"], &value["bench"]), (&"segue.bench/1".into(), &"lab".into()));
        let row = &value["rows"][0];
        assert_eq!(row["case"], serde_json::json!({"name": "segue", "family": 4, "proto": "tcp", "link": "nic"}));
        assert_eq!(
            row["metrics"]["gbps"],
            serde_json::json!({"min": 7, "median": 7.9, "max": 8.1, "samples": [7.9, 8.1, 7]})
        );
        assert_eq!(row["metrics"]["retransmits"]["samples"].to_string(), "[3,0,12]");
        assert_eq!(keys(&value["rows"][1]["metrics"]), ["cpu_s_per_gb", "gbps", "retransmits"]);
        // The order of the text, which a reader of raw JSON sees.
        assert!(table.to_json(false).starts_with(r#"{"schema":"segue.bench/1","bench":"lab","machine":{"cpu":"#));
    }

    #[test]
    fn the_text_fits_80_columns_and_compares_with_plain() {
        let mut table = table();
        table.skipped.push(Skipped { name: "vxlan".into(), reason: "this kernel has no VXLAN".into() });
        let text = table.to_text();
        assert_eq!(
            text,
            "CASE         NET  Gbit/s     min-max  x plain  CPU s/GB  x plain   train retrans\n\
             segue        tcp4   7.90   7.00-8.10     3.95     1.500     0.33   43.1k       3\n\
             segue-plain  tcp4   2.00   2.00-2.00     1.00     4.500     1.00       -       3\n\
             vxlan: skipped, this kernel has no VXLAN\n"
        );
        assert!(text.is_ascii() && text.lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn the_caption_names_everything_about_the_machine() {
        let mut table = table();
        table.machine.cpu = "An uncommonly long name of a processor @ 3.00GHz".into();
        table.machine.more.push("seconds", 2);
        let caption = table.caption();
        assert!(caption.lines().count() > 1 && caption.lines().all(|line| line.len() <= 80), "{caption}");
        for part in ["3.00GHz", "CPU time: ", "Linux ", "segue 0.1.0", "seconds 2"] {
            assert!(caption.contains(part), "{caption}");
        }
        assert!(!caption.contains("segue segue"));
    }

    #[test]
    fn numbers_keep_three_figures() {
        assert_eq!([short(0.123), short(9.996), short(43.07), short(123.4)], ["0.12", "10.0", "43.1", "123"]);
        assert_eq!([bytes(1400.0), bytes(43_100.0), bytes(9999.6)], ["1400", "43.1k", "10.0k"]);
    }
}
