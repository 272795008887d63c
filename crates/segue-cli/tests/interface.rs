//! Tests of the interface that scripts rely on: the properties of each JSON document, the words and options of each
//! command, exit codes.
//!
//! `golden/interface.txt` has one line for each, as the program of commit d2d84e5 had it. What is missing today must be
//! named in CHANGELOG.md on a line that says `removed` or `renamed`; what is new does not matter. To write the file
//! anew, run this test with `SEGUE_BIN=PROGRAM SEGUE_WRITE_GOLDEN=1`.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use common::{Place, SEGUE, command};
use serde_json::Value;

/// Commands whose `-j` has a schema.
const SCHEMAS: &[&str] = &["stat", "set", "nat", "peer", "lab", "bench", "pcap", "lan78xx"];
/// Commands whose complete help is compared.
const COMMANDS: &[&str] = &[
    "tunnel",
    "gateway",
    "stat",
    "nat",
    "peer",
    "set",
    "run",
    "doctor",
    "lab",
    "bench",
    "pcap",
    "lan78xx",
    "schema",
    "help",
    "pcap merge",
    "pcap split",
    "pcap decap",
    "pcap verify",
    "pcap stat",
    "lan78xx up",
    "lan78xx model",
    "lan78xx list",
];
/// Command lines that change nothing and whose exit status is compared.
const LINES: &[&str] = &[
    "",
    "-V",
    "--help",
    "nonsense",
    "help",
    "help nonsense",
    "tunnel",
    "tunnel -h",
    "tunnel dev sg0 mode ipip local 198.18.0.1 remot 198.18.0.2",
    "tunnel dev sg0 mode nonsense remote 198.18.0.2",
    "tunnel dev sg0 remote 198.18.0.2 key 5000000000",
    "gateway",
    "gateway in0 in0",
    "gateway in0 out0 --nonsense 1",
    "stat",
    "stat nosuch",
    "stat nosuch -j",
    "nat nosuch",
    "peer",
    "peer list nosuch",
    "peer add nosuch",
    "peer add nosuch 198.19.1.0/24 remot 198.18.0.2",
    "tunnel dev sg0 peers none",
    "tunnel dev sg0 peers none local 198.18.0.1 remote 198.18.0.2",
    "set nosuch",
    "set nosuch net.gso.dev.x.enable_gso 1",
    "run",
    "run -c /nonexistent",
    "run --check -c /nonexistent",
    "lab --link nonsense",
    "bench",
    "bench nonsense",
    "bench lro --list",
    "pcap",
    "pcap merge",
    "pcap merge /nonexistent /nonexistent2",
    "pcap stat /nonexistent",
    "pcap verify /nonexistent -j",
    "lan78xx",
    "lan78xx list",
    "schema",
    "schema stat",
    "schema nonsense",
];

/// Command lines that print one JSON value, whose keys are compared (but `commit`, which only a build from git has).
const DOCUMENTS: &[&str] = &[
    "-V -v -j",
    "doctor -j",
    "stat -j",
    "stat nosuch -j",
    "nat nosuch -j",
    "peer list nosuch -j",
    "set nosuch -j",
    "tunnel remot 198.18.0.2 -j",
    "gateway in0 in0 -j",
    "run --check -c /nonexistent -j",
    "pcap stat /nonexistent -j",
    "lan78xx list -j",
];

fn program() -> String {
    env::var("SEGUE_BIN").unwrap_or_else(|_| SEGUE.into())
}

fn ran(line: &str) -> (Option<i32>, String) {
    let place = Place::new();
    let output = command(&program(), &place).args(line.split_whitespace()).output().expect("the program runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Adds a line for each property below `schema`, a part of the document `root`, with its JSON types.
fn properties(root: &Value, schema: &Value, path: &str, depth: usize, into: &mut BTreeSet<String>) {
    if depth > 24 {
        return;
    }
    if let Some(name) = schema["$ref"].as_str() {
        let target = name.strip_prefix("#").and_then(|pointer| root.pointer(pointer));
        return properties(root, target.expect("a definition of the same document"), path, depth + 1, into);
    }
    match &schema["type"] {
        Value::String(kind) => drop(into.insert(format!("{path} {kind}"))),
        Value::Array(kinds) => {
            into.extend(kinds.iter().filter_map(Value::as_str).map(|kind| format!("{path} {kind}")));
        }
        _ => {}
    }
    for value in schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")) {
        into.insert(format!("{path} = {value}"));
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        into.insert(format!("{path} has {}", required.as_str().expect("a name")));
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        properties(root, below, &format!("{path}.{name}"), depth + 1, into);
    }
    for (key, step) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            properties(root, &schema[key], &format!("{path}{step}"), depth + 1, into);
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for below in schema[key].as_array().into_iter().flatten() {
            properties(root, below, path, depth + 1, into);
        }
    }
}

/// Adds a line for each key below `value`; the entries of a list share theirs.
fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            for (name, below) in entries {
                into.insert(format!("{path}.{name}"));
                keys(below, &format!("{path}.{name}"), into);
            }
        }
        Value::Array(entries) => entries.iter().for_each(|below| keys(below, &format!("{path}[]"), into)),
        _ => {}
    }
}

/// Returns the interface of the program, a line for each of its parts.
fn interface() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for name in SCHEMAS {
        let (_, text) = ran(&format!("schema {name}"));
        for document in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            let document = document.unwrap_or_else(|error| panic!("schema {name}: {error}"));
            properties(&document, &document, &format!("schema {name}"), 0, &mut lines);
        }
    }
    for name in COMMANDS {
        let (_, text) = ran(&format!("{name} --help"));
        for line in text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            // `-j, --json   JSON on stdout`: everything in front of the description.
            let words = line.trim_start().split("  ").next().unwrap_or_default();
            for word in words.split([' ', ',', '|']).filter(|word| word.starts_with('-') && word.len() > 1) {
                lines.insert(format!("option {name} {word}"));
            }
            let word = words.split([' ', '|']).next().unwrap_or_default();
            if line.trim_start().contains("  ") && word.starts_with(|c: char| c.is_ascii_lowercase()) && word != "segue"
            {
                lines.insert(format!("word {name} {word}"));
            }
        }
    }
    for line in DOCUMENTS {
        let value = serde_json::from_str(&ran(line).1).unwrap_or_else(|error| panic!("segue {line}: {error}"));
        keys(&value, &format!("keys of segue {line}: "), &mut lines);
    }
    for line in LINES {
        lines.insert(format!("exit {} <- segue {line}", ran(line).0.map_or(-1, |code| code)));
    }
    lines
}

#[test]
fn json_words_and_exit_codes_of_before_are_still_there() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/interface.txt");
    let today = interface();
    if env::var_os("SEGUE_WRITE_GOLDEN").is_some() {
        let text: String = today.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&golden, text).expect("golden/interface.txt can be written");
        return;
    }
    let changes =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../CHANGELOG.md")).expect("CHANGELOG.md");
    let is_told = |line: &str| {
        let name = line.rsplit([' ', '.']).next().unwrap_or_default();
        let tells = |entry: &&str| entry.contains("removed") || entry.contains("renamed");
        changes.lines().filter(tells).any(|entry| entry.contains(&format!("`{name}`")))
    };
    let before = fs::read_to_string(&golden).expect("golden/interface.txt");
    let missing: Vec<&str> = before.lines().filter(|line| !today.contains(*line) && !is_told(line)).collect();
    assert!(before.lines().count() > 500, "{}", before.lines().count());
    assert!(missing.is_empty(), "gone, and CHANGELOG.md does not say so:\n{}", missing.join("\n"));
}
