//! The two text formats: version 0.0.4 of Prometheus, and OpenMetrics 1.0.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::family::{Kind, Samples};

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Version 0.0.4 of Prometheus's format, which `promtool check metrics` reads too.
    Prometheus,
    /// OpenMetrics 1.0: a counter's metadata has its name without `_total`, and the end is marked.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a request's Accept header selects.
    pub fn accepted(accept: &str) -> Format {
        match accept.to_ascii_lowercase().contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Returns the samples as text in the format.
pub fn render(all: &[Samples<'_>], format: Format) -> String {
    let count: usize = all.iter().map(|samples| samples.samples.len()).sum();
    let mut text = String::with_capacity(4096 + 112 * count);
    for Samples { family, help, samples } in all {
        let name = match (format, family.kind) {
            (Format::OpenMetrics, Kind::Counter) => family.name.trim_end_matches("_total"),
            (Format::OpenMetrics, Kind::Info) => family.name.trim_end_matches("_info"),
            _ => family.name,
        };
        let kind = match (format, family.kind) {
            (Format::Prometheus, Kind::Info) => "gauge",
            (_, kind) => kind.name(),
        };
        text.push_str("# HELP ");
        text.push_str(name);
        text.push(' ');
        escaped(&mut text, help, format == Format::OpenMetrics);
        // Writing to a String never fails.
        let _ = writeln!(text, "\n# TYPE {name} {kind}");
        for sample in samples {
            text.push_str(family.name);
            for (at, (label, value)) in sample.labels.iter().enumerate() {
                text.push(if at == 0 { '{' } else { ',' });
                text.push_str(label);
                text.push_str("=\"");
                escaped(&mut text, value, true);
                text.push('"');
            }
            if !sample.labels.is_empty() {
                text.push('}');
            }
            let _ = writeln!(text, " {}", sample.value);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Appends `value` with backslashes and line feeds escaped, and quotes too if `quotes` is set.
fn escaped(text: &mut String, value: &str, quotes: bool) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

/// Returns `all` as the document of `segue metrics -j`.
pub fn document(all: &[Samples<'_>]) -> Value {
    let families = all.iter().map(|Samples { family, help, samples }| {
        let samples = samples.iter().map(|sample| {
            let labels: serde_json::Map<String, Value> =
                sample.labels.iter().map(|(label, value)| ((*label).to_owned(), json!(value))).collect();
            json!({ "labels": labels, "value": sample.value })
        });
        json!({ "name": family.name, "type": family.kind.name(), "help": help, "samples": samples.collect::<Vec<_>>() })
    });
    json!({ "schema": SCHEMA, "families": families.collect::<Vec<_>>() })
}

/// The schema id of the document.
pub const SCHEMA: &str = "segue.metrics/1";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use segue_control::model::{Flow, Instance, Port};

    use super::*;
    use crate::Scrape;

    fn scrape() -> Scrape {
        let port = Port {
            receive: Flow { packets: 2, bytes: 3000, trains: 1, segments: 5, calls: 1 },
            drops: BTreeMap::from([("gre_mismatch".to_owned(), 6), ("vni".to_owned(), 0)]),
            ..Port::default()
        };
        let instance = Instance {
            name: "odd\"name\\\n".to_owned(),
            kind: "tunnel".to_owned(),
            ports: BTreeMap::from([("udp".to_owned(), port)]),
            cpu_s: 0.25,
            ..Instance::default()
        };
        Scrape { version: "1".to_owned(), instances: vec![instance], ..Scrape::default() }
    }

    fn sentence(group: &str, reason: &str) -> Option<String> {
        (group == "drops" && reason == "gre_mismatch").then(|| "The \"key\" is another.".to_owned())
    }

    #[test]
    fn what_never_happened_is_left_out_and_reasons_have_their_sentences() {
        let scrape = scrape();
        let text = render(&scrape.samples(sentence), Format::Prometheus);
        let drop = r#"segue_drops_total{name="odd\"name\\\n",port="udp",side="inside",reason="gre_mismatch"} 6"#;
        assert!(text.lines().any(|line| line == drop), "{text}");
        assert!(text.contains("# HELP segue_drops_total Packets dropped. gre_mismatch: The \"key\" is another.\n"));
        assert!(!text.contains("vni") && !text.contains("segue_trimmed") && !text.contains("transmit\""), "{text}");
        assert!(text.contains("segue_instance_cpu_seconds_total{name=\"odd\\\"name\\\\\\n\"} 0.25\n"));
        assert!(text.contains("\nsegue_instances_unanswered 0\n"), "a state of 0 is shown");
    }

    #[test]
    fn openmetrics_names_counters_without_their_ending_and_marks_the_end() {
        let scrape = scrape();
        let text = render(&scrape.samples(sentence), Format::OpenMetrics);
        assert!(text.contains("# TYPE segue_drops counter\nsegue_drops_total{"), "{text}");
        assert!(text.contains("# HELP segue_drops Packets dropped. gre_mismatch: The \\\"key\\\" is another.\n"));
        assert!(text.contains("# TYPE segue_build info\nsegue_build_info{version=\"1\"} 1\n"));
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn the_format_is_the_one_that_was_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for other in ["", "*/*", "text/plain"] {
            assert_eq!(Format::accepted(other), Format::Prometheus);
        }
    }
}
