//! The text form of a bench's table.

use std::fmt::Write;

use serde_json::Value;

use crate::{Row, Skipped, Table};

/// Columns and sections of a table. Every line has at most 80 columns of ASCII.
#[derive(Debug)]
pub struct Layout {
    /// Name of a row's section, the heading above all rows of the section.
    pub(super) section: fn(&Row) -> String,
    /// Name of a row within its section: the first column, 16 characters wide and left-aligned.
    pub(super) name: fn(&Row) -> String,
    /// Further columns of a row. Rows with different columns have headings of their own.
    pub(super) columns: fn(&Row) -> &'static [Column],
    /// Notes printed below the table.
    pub(super) notes: &'static [&'static str],
}

/// One column of numbers in a table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) width: usize,
    pub(super) cell: fn(&Table, &Row) -> Option<String>,
}

const NAME_WIDTH: usize = 16;

impl Layout {
    pub(super) fn text(&self, table: &Table) -> String {
        let (mut text, mut section, mut headings) = (String::new(), String::new(), Vec::new());
        for row in &table.rows {
            let columns = (self.columns)(row);
            let of_row: Vec<&str> = columns.iter().map(|column| column.heading).collect();
            if of_row != headings {
                let _ = write!(text, "{:<NAME_WIDTH$}", "ROW");
                for column in columns {
                    let _ = write!(text, " {:>width$}", column.heading, width = column.width);
                }
                text.push('\n');
                headings = of_row;
            }
            let of_row = (self.section)(row);
            if of_row != section {
                let _ = writeln!(text, "{of_row}");
                section = of_row;
            }
            let mut line = format!("{:<NAME_WIDTH$}", format!("  {}", (self.name)(row)));
            for column in columns {
                let cell = (column.cell)(table, row);
                let _ = write!(line, " {:>width$}", cell.as_deref().unwrap_or("-"), width = column.width);
            }
            let _ = writeln!(text, "{line}");
        }
        for Skipped { name, reason } in &table.skipped {
            let _ = writeln!(text, "{name}: skipped, {reason}");
        }
        for note in self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

/// Returns the median of a metric.
pub(super) fn median(row: &Row, metric: &str) -> Option<f64> {
    row.metrics.find(metric).map(crate::Metric::median)
}

/// Returns half the range of the samples in per cent of the median.
pub(super) fn spread(row: &Row, metric: &str) -> Option<String> {
    let metric = row.metrics.find(metric)?;
    let (half, median) = ((metric.max() - metric.min()) / 2.0, metric.median());
    (metric.samples().len() > 1 && median > 0.0).then(|| format!("{:.0}%", 100.0 * half / median))
}

/// Returns the quotient of a metric's medians in two rows.
pub(super) fn ratio(row: &Row, base: Option<&Row>, metric: &str) -> Option<String> {
    let (base, value) = (median(base?, metric)?, median(row, metric)?);
    (base > 0.0).then(|| format!("{:.2}", value / base))
}

/// Returns the row that differs from `row` only in some labels.
pub(super) fn sibling<'a>(table: &'a Table, row: &Row, other: &[(&str, Option<&str>)]) -> Option<&'a Row> {
    table.rows.iter().find(|candidate| {
        let names = row.case.0.iter().chain(&candidate.case.0).map(|(name, _)| name);
        names.into_iter().all(|name| {
            let value = candidate.case.find(name);
            match other.iter().find(|(changed, _)| changed == name) {
                Some((_, wanted)) => value.and_then(Value::as_str) == *wanted,
                None => value == row.case.find(name),
            }
        })
    })
}

/// Returns the text of a label.
pub(super) fn label(row: &Row, name: &str) -> String {
    match row.case.find(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// Returns the label `flows` in words.
pub(super) fn flows(row: &Row) -> String {
    match label(row, "flows").as_str() {
        "1" => "1 flow".to_owned(),
        more => format!("{more} flows"),
    }
}

/// Returns the published figure with `digits` digits after the decimal point: `8.8`, or `8.8-9.4`.
pub(super) fn seed(row: &Row, metric: &str, digits: usize) -> Option<String> {
    let show = |value: &Value| value.as_f64().map(|number| format!("{number:.digits$}"));
    match row.seed.find(metric)? {
        Value::Array(ends) => Some(ends.iter().filter_map(show).collect::<Vec<_>>().join("-")),
        value => show(value),
    }
}

/// Formats a value with three significant digits: `0.123`, `9.99`, `43.1`, `123`.
pub(super) fn short(value: f64) -> String {
    match value {
        value if value < 0.9995 => format!("{value:.3}"),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Formats a value with three significant digits and a unit: `950`, `12.3k`.
pub(super) fn count(value: f64) -> String {
    if value < 999.5 { format!("{value:.0}") } else { format!("{}k", short(value / 1000.0)) }
}
