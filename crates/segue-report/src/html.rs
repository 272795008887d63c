//! The HTML page with any number of benches.

use std::fmt::Write;

use serde_json::Value;

use crate::document::{All, Bench, Better, Metric, Row, better, shown};
use crate::escape::escaped;
use crate::style;

/// Width of a chart in its own units; the page scales it.
const WIDTH: f64 = 400.0;
/// Height of a row of a chart: a line of text, the bar, and space.
const ROW: f64 = 44.0;
/// Maximum number of characters of a case's label in a chart, next to the value.
const LABEL: usize = 48;
/// Maximum number of other metrics of a row in a table.
const OTHERS: usize = 4;

/// Returns the HTML page of the report. `made` says when, with which program and on which host it was made.
pub fn page(all: &All, made: &str) -> String {
    let benches = &all.benches[..];
    let mut body = String::new();
    body.push_str("<header><h1>segue report</h1>");
    let _ = write!(body, "<p class=\"faint\">{}</p><p>{}</p></header>", escaped(made), escaped(&sentence(all)));
    body.push_str(&cards(benches));
    for bench in benches {
        body.push_str(&section(bench));
    }
    if !all.failed.is_empty() {
        body.push_str("<section><h2>Benches that could not run</h2><ul>");
        for failed in &all.failed {
            let _ = write!(body, "<li>{}</li>", escaped(&format!("{}: {}", failed.bench, failed.reason)));
        }
        body.push_str("</ul></section>");
    }
    body.push_str(
        "<section><h2>How to read this</h2><p>Each row is a case. The bar is the median of its runs, the line over it goes from the \
         smallest run to the largest, and each circle is a run. The rows of a bench were measured in turn, so that what disturbs the \
         machine disturbs all of them. A dashed line is the published figure for the same case, on another \
         machine: compare ratios, not heights. Less CPU for a gigabyte is better. All samples are in the JSON file.</p></section>",
    );
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>segue report</title>\n\
         <style>{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        style::sheet()
    )
}

/// Returns the summary of the page, one sentence.
fn sentence(all: &All) -> String {
    let All { benches, failed, .. } = all;
    let rows: usize = benches.iter().map(|bench| bench.rows.len()).sum();
    let (mut above, mut below) = (0, 0);
    for ratio in benches.iter().flat_map(|bench| &bench.rows).filter_map(|row| ratio(row, main_metric(row)?)) {
        if ratio >= 1.0 { above += 1 } else { below += 1 }
    }
    let skipped: usize = benches.iter().map(|bench| bench.skipped.len()).sum();
    let mut left = if skipped > 0 { format!("; {skipped} could not run here") } else { String::new() };
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|failed| failed.bench.as_str()).collect();
        let _ = write!(left, "; benches that could not run: {}", names.join(", "));
    }
    let one_or = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let published = match above + below {
        0 => "None of them has a published figure.".to_owned(),
        _ => format!(
            "Of those with a published figure {} it on this machine and {} not.",
            one_or(above, "reaches", "reach"),
            one_or(below, "does", "do")
        ),
    };
    format!("{} of {}{left}. {published}", one_or(rows, "case", "cases"), one_or(benches.len(), "bench", "benches"))
}

/// Returns the metric shown in the chart for a row: the rate, if it has one.
fn main_metric(row: &Row) -> Option<&str> {
    let names = || row.metrics.keys().map(String::as_str);
    names()
        .find(|name| *name == "gbps")
        .or_else(|| names().find(|name| better(name) == Better::More))
        .or_else(|| names().next())
}

/// Returns the published figure of a metric as a range.
fn seed(row: &Row, metric: &str) -> Option<(f64, f64)> {
    match row.seed.get(metric)? {
        Value::Array(range) => Some((range.first()?.as_f64()?, range.last()?.as_f64()?)),
        one => one.as_f64().map(|one| (one, one)),
    }
}

/// Returns the ratio of the median to the middle of the published range.
fn ratio(row: &Row, metric: &str) -> Option<f64> {
    let (low, high) = seed(row, metric)?;
    let middle = (low + high) / 2.0;
    (middle > 0.0).then(|| row.metrics.get(metric).map(|found| found.median / middle))?
}

fn cards(benches: &[Bench]) -> String {
    let mut text = String::from("<ul class=\"cards\">");
    for bench in benches {
        let rated = bench
            .rows
            .iter()
            .filter_map(|row| Some((row.metrics.get(main_metric(row)?)?.median, row, main_metric(row)?)));
        let best = rated.max_by(|a, b| a.0.total_cmp(&b.0));
        let (head, case) = best.map_or(("no row".to_owned(), String::new()), |(value, row, metric)| {
            (format!("{} {}", number(value), unit(metric)), row.name())
        });
        let _ = write!(
            text,
            "<li><span class=\"faint\">{}, best of {}</span><b>{}</b>{}</li>",
            escaped(&bench.bench),
            bench.rows.len(),
            escaped(&head),
            escaped(&case)
        );
    }
    text + "</ul>"
}

fn section(bench: &Bench) -> String {
    let name = escaped(&bench.bench);
    let mut text = format!("<section><h2>{name}</h2><div class=\"pair\">");
    if let Some(metric) = bench.rows.first().and_then(main_metric) {
        let _ = write!(text, "<figure>{}</figure>", chart(bench, metric));
    }
    text.push_str(&table(bench));
    text.push_str("</div>");
    if !bench.skipped.is_empty() {
        text.push_str("<p>Not run here:</p><ul>");
        for skipped in &bench.skipped {
            let reason = format!("{}: {}", shown(&skipped["name"]), shown(&skipped["reason"]));
            let _ = write!(text, "<li>{}</li>", escaped(&reason));
        }
        text.push_str("</ul>");
    }
    text.push_str("<details><summary>Machine and method</summary><dl>");
    for (key, value) in &bench.machine {
        let _ = write!(text, "<dt>{}</dt><dd>{}</dd>", escaped(&key.replace('_', " ")), escaped(&shown(value)));
    }
    let _ = write!(text, "<dt>command</dt><dd><code>segue bench {name} -j</code></dd></dl></details></section>");
    text
}

/// Returns the chart of a bench: a bar for each row, from 0.
fn chart(bench: &Bench, metric: &str) -> String {
    let rows: Vec<(&Row, &Metric)> =
        bench.rows.iter().filter_map(|row| Some((row, row.metrics.get(metric)?))).collect();
    let seeds = rows.iter().filter_map(|(row, _)| seed(row, metric)).map(|(_, high)| high);
    let most = rows.iter().map(|(_, metric)| metric.max).chain(seeds).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let x = |value: f64| WIDTH * value.max(0.0) / most;
    let height = ROW * rows.len() as f64 + 22.0;
    let title = format!("{}: {} of each case", bench.bench, unit(metric));
    let described: Vec<String> =
        rows.iter().map(|(row, metric)| format!("{} {}", row.name(), number(metric.median))).collect();
    let mut text = format!(
        "<svg role=\"img\" viewBox=\"-2 0 {:.0} {height:.0}\"><title>{}</title><desc>{}</desc>",
        WIDTH + 8.0,
        escaped(&title),
        escaped(&described.join("; "))
    );
    for (at, (row, samples)) in rows.iter().enumerate() {
        let top = ROW * at as f64;
        let middle = top + 26.0;
        let mut label = row.name();
        if label.chars().count() > LABEL {
            label = label.chars().take(LABEL - 1).chain(['\u{2026}']).collect();
        }
        let _ = write!(
            text,
            "<text x=\"0\" y=\"{:.1}\">{}</text><text x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"bar\" x=\"0\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\"/>",
            top + 14.0,
            escaped(&label),
            top + 14.0,
            number(samples.median),
            middle - 7.0,
            x(samples.median).max(1.0)
        );
        if samples.has_spread() {
            let _ = write!(
                text,
                "<path class=\"range\" d=\"M{0:.1} {1:.1}v6m0-3H{2:.1}m0-3v6\"/>",
                x(samples.min),
                middle - 3.0,
                x(samples.max)
            );
            for sample in &samples.samples {
                let _ = write!(text, "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2\"/>", x(*sample));
            }
        }
        if let Some((low, high)) = seed(row, metric) {
            for value in if low == high { vec![low] } else { vec![low, high] } {
                let _ = write!(text, "<path class=\"seed\" d=\"M{:.1} {:.1}v18\"/>", x(value), middle - 9.0);
            }
        }
    }
    let base = ROW * rows.len() as f64;
    let _ = write!(
        text,
        "<path class=\"axis\" d=\"M0 {base:.1}H{WIDTH}\"/><text class=\"faint\" x=\"0\" y=\"{:.1}\">0</text>\
         <text class=\"faint\" x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{} {}</text>",
        base + 15.0,
        base + 15.0,
        number(most),
        escaped(&unit(metric))
    );
    if rows.iter().any(|(row, _)| seed(row, metric).is_some()) {
        let _ = write!(
            text,
            "<text class=\"seedtext\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">dashed: published</text>",
            WIDTH / 2.0,
            base + 15.0
        );
    }
    text + "</svg>"
}

/// Returns the table below a chart: the chart's numbers, and the other metrics.
fn table(bench: &Bench) -> String {
    let Some(metric) = bench.rows.first().and_then(main_metric) else {
        return "<p>No case was measured.</p>".to_owned();
    };
    let mut others: Vec<&str> = Vec::new();
    for name in bench.rows.iter().flat_map(|row| row.metrics.keys()).filter(|name| *name != metric) {
        if !others.contains(&name.as_str()) {
            others.push(name);
        }
    }
    // What is judged first, then what describes the load.
    others.sort_by_key(|name| better(name) == Better::Neither);
    let has_seed = bench.rows.iter().any(|row| seed(row, metric).is_some());
    // Published figures and ratios take the place of two.
    others.truncate(if has_seed { OTHERS - 2 } else { OTHERS });
    let mut heads = vec![unit(metric), "smallest to largest".to_owned()];
    if has_seed {
        heads.extend(["published", "ratio"].map(str::to_owned));
    }
    heads.extend(others.iter().map(|name| unit(name)));
    let mut text =
        format!("<table><caption>{}, medians</caption><thead><tr><th scope=\"col\">case</th>", escaped(&bench.bench));
    for head in &heads {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escaped(head));
    }
    text.push_str("</tr></thead><tbody>");
    for row in &bench.rows {
        let found = row.metrics.get(metric);
        let mut cells = vec![
            found.map_or(String::new(), |metric| number(metric.median)),
            found
                .filter(|m| m.has_spread())
                .map_or(String::new(), |m| format!("{} to {}", number(m.min), number(m.max))),
        ];
        if has_seed {
            cells.push(seed(row, metric).map_or(String::new(), |(low, high)| match low == high {
                true => number(low),
                false => format!("{} to {}", number(low), number(high)),
            }));
            cells.push(ratio(row, metric).map_or(String::new(), |ratio| format!("{ratio:.2} x")));
        }
        cells.extend(others.iter().map(|name| row.metrics.get(*name).map_or(String::new(), |m| number(m.median))));
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escaped(&row.name()));
        for (cell, head) in cells.iter().zip(&heads) {
            let shown = if cell.is_empty() { "-" } else { cell };
            let _ = write!(text, "<td class=\"n\" data-head=\"{}\">{}</td>", escaped(head), escaped(shown));
        }
        text.push_str("</tr>");
    }
    text + "</tbody></table>"
}

/// Returns the human-readable name of a metric: its unit, or its words.
fn unit(metric: &str) -> String {
    match metric {
        "gbps" => "Gbit/s".to_owned(),
        other => other.replace("cpu_s_per_gb", "CPU s/GB").replace("percent", "%").replace('_', " "),
    }
}

/// Formats a number with three significant figures.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Failed, parse};

    fn bench() -> All {
        let metric = |median: f64| serde_json::json!({ "min": median - 0.1, "median": median, "max": median + 0.1, "samples": [median - 0.1, median, median + 0.1] });
        let value = serde_json::json!({
            "schema": "segue.bench/1", "bench": "lro", "machine": { "cpu": "a <script>", "cpus": 2 },
            "rows": [
                { "case": { "column": "plain", "page": "4k" }, "metrics": { "gbps": metric(3.6), "retransmits": metric(7.0) } },
                { "case": { "column": "lro & more", "page": "4k" }, "metrics": { "gbps": metric(11.4), "retransmits": metric(1.0) }, "seed": { "gbps": [8.8, 9.4] } },
            ],
            "skipped": [{ "name": "fastd", "reason": "not installed" }],
        });
        parse(&value.to_string()).unwrap()
    }

    #[test]
    fn the_page_is_one_file_without_scripts_and_references() {
        let page = page(&bench(), "2026-01-01, segue 0.1.0");
        for forbidden in ["<script", "http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.len() < 300_000 && page.contains("a &lt;script&gt;") && page.contains("lro &amp; more"));
        assert!(
            page.contains("prefers-color-scheme:dark")
                && page.contains("@media print")
                && page.contains("max-width:40rem")
        );
    }

    #[test]
    fn the_summary_counts_in_singular_and_plural() {
        let mut all = bench();
        let one = "2 cases of 1 bench; 1 could not run here. Of those with a published figure 1 reaches it on this machine and 0 do not.";
        assert_eq!(sentence(&all), one);
        all.benches.extend(bench().benches);
        let two = "4 cases of 2 benches; 2 could not run here. Of those with a published figure 2 reach it on this machine and 0 do not.";
        assert_eq!(sentence(&all), two);
        all.benches.truncate(1);
        all.benches[0].rows.truncate(1);
        assert_eq!(sentence(&all), "1 case of 1 bench; 1 could not run here. None of them has a published figure.");
    }

    #[test]
    fn every_chart_has_a_description_and_a_table_with_its_numbers() {
        let page = page(&bench(), "");
        assert_eq!(page.matches("<svg role=\"img\"").count(), 1);
        assert_eq!(page.matches("<rect class=\"bar\"").count(), 2, "no chart is empty");
        assert!(page.contains("<desc>plain 4k 3.60; lro &amp; more 4k 11.4</desc>"), "{page}");
        for text in [
            "<th scope=\"row\">plain 4k</th>",
            ">3.60<",
            ">11.4<",
            ">8.80 to 9.40<",
            ">1.25 x<",
            "fastd: not installed",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("class=\"seed\"").count(), 2, "a range has two lines");
        assert_eq!(page.matches("class=\"dot\"").count(), 6, "a circle for each run");
    }

    #[test]
    fn a_bench_that_could_not_run_is_named_with_its_reason_in_the_page_and_in_the_data() {
        let mut all = bench();
        assert!(
            !page(&all, "").contains("Benches that could not run")
                && !serde_json::json!(all).to_string().contains("failed")
        );
        all.failed.push(Failed { bench: "gso".to_owned(), reason: "no <namespace>".to_owned() });
        let text = page(&all, "");
        assert!(text.contains("<li>gso: no &lt;namespace&gt;</li>"), "{text}");
        assert!(text.contains("1 could not run here; benches that could not run: gso. Of those"), "{text}");
        let data = serde_json::json!(all).to_string();
        assert_eq!(parse(&data).unwrap(), all);
        let both = All::joined([parse(&data).unwrap(), bench()]);
        assert_eq!((both.benches.len(), both.failed.len()), (2, 1));
    }

    #[test]
    fn a_bench_without_rows_says_so() {
        let mut all = bench();
        all.benches[0].rows.clear();
        let page = page(&all, "");
        assert!(page.contains("No case was measured") && !page.contains("<svg"), "{page}");
    }
}
