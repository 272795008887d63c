//! Tests of the interface that scripts rely on: the properties of each JSON document, the words and options of each
//! command, exit codes, and the events of a tunnel, a gateway and a service with their keys.
//!
//! `golden/interface.txt` and `golden/events.txt` have one line for each, as the program of commit d2d84e5 has it: only
//! an entry of CHANGELOG.md that says `removed` or `renamed`, with the line or its beginning in backquotes, allows one
//! of them to be missing. What came later is in `golden/interface-later.txt` and `golden/events-later.txt`. With
//! `SEGUE_WRITE_GOLDEN=1` this test writes those anew, and with `SEGUE_BIN=PROGRAM` in front, a build of d2d84e5, the
//! first two.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use common::{Place, SEGUE, command, in_namespace};
use serde_json::Value;

/// The commit whose interface the program must stay compatible with, as `segue -V -v -j` prints it.
const BEFORE: &str = "d2d84e504881";
/// Number of lines of that interface.
const BEFORE_INTERFACE: usize = 1288;
const BEFORE_EVENTS: usize = 286;
/// Keywords that were added after [`BEFORE`]: their answers are not part of the compared interface.
const LATER: &[&str] = &["segue peer", "peers none"];

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
/// Command lines without effect on the system whose exit status is compared.
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
    "gateway in0 out0 nonsense 1",
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

/// Command lines that print one JSON value, whose keys are compared (except `commit`, which only a build from git has,
/// and the `fix` of a check of `doctor`, which depends on the machine).
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

/// Script that prints the events of a tunnel and a gateway, alone and under a service, from `--check` to the end: a
/// changed knob, a reload that hands a tunnel over to another process, one that is refused, an instance that ends by
/// itself. `$BIN` is the program.
const EVENTS: &str = r#"file=$SEGUE_RUNTIME_DIR/segue.toml
said=$SEGUE_RUNTIME_DIR/said
ip link add in0 type veth peer name in1
ip link set in0 up
ip link set in1 up
write() {
  for key in "$@"; do
    printf '[[tunnel]]\ndev = "sg%s"\nlocal = "198.18.0.1"\nremote = "198.18.0.2"\nencap = "gue"\nkey = %s\n' $key $key
  done
  printf '[[gateway]]\nin = "in0"\nout = "tap:lro0"\n'
}
says() { for n in $(seq 500); do grep -q "\"event\":\"$1\"" "$said" && return; sleep 0.02; done; echo "no $1" >&2; }
$BIN tunnel dev sg9 local 198.18.0.1 remote 198.18.0.2 encap gue --check -j
$BIN gateway in0 tap:lro0 --check -j
write 1 2 > "$file"
$BIN run -c "$file" --check -j
$BIN run -c "$file" -j > "$said" 2> /dev/null & service=$!
says ready
$BIN set sg1 net.inet.tcp.gso 0 > /dev/null
says set
write 1 > "$file"
kill -HUP $service
says reloaded
echo '[[' > "$file"
kill -HUP $service
says reload_refused
ip link del sg1
says ended
kill -TERM $service
wait $service
cat "$said"
"#;

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
        assert!(!text.is_empty() || is_before(), "there is no schema {name}");
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

/// Returns the events that the program prints with `-j`, a line for each and for each of its keys; `None` where no
/// namespace can be made. The keys below `instance` and `offloads` are names of devices, and what `segue schema stat`
/// describes.
fn events() -> Option<BTreeSet<String>> {
    let ran = in_namespace(&format!("BIN='{}'\n{EVENTS}", program()))?;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let mut lines = BTreeSet::new();
    for line in ran.stdout.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let (Some(schema), Some(event)) = (value["schema"].as_str(), value["event"].as_str()) else { continue };
        let path = format!("event {schema} {event}");
        for part in ["instance", "offloads"] {
            if let Some(below) = value.get_mut(part) {
                *below = Value::Null;
            }
        }
        lines.insert(path.clone());
        keys(&value, &format!("{path}: "), &mut lines);
    }
    Some(lines)
}

/// Returns whether a changelog entry records that this line was removed or renamed: it has the line in backquotes,
/// or the path of an object or an event with all that is below it.
fn is_told(changes: &str, line: &str) -> bool {
    let entries = changes.split("\n- ").skip(1).filter_map(|rest| rest.split("\n\n").next());
    let mut entries = entries.filter(|entry| entry.contains("removed") || entry.contains("renamed"));
    entries.any(|entry| {
        let entry = entry.split_whitespace().collect::<Vec<_>>().join(" ");
        entry.split('`').skip(1).step_by(2).filter(|path| path.contains(' ')).any(|path| {
            // A type follows a blank: `schema set.a string`.
            let is_type = |rest: &str| line.starts_with("schema ") && rest.starts_with(' ');
            let is_below = |rest: &str| rest.is_empty() || rest.starts_with(['.', ':', '[', '{']) || is_type(rest);
            line.strip_prefix(path).is_some_and(is_below)
        })
    })
}

/// Returns whether the program under test was built from the commit [`BEFORE`].
fn is_before() -> bool {
    let value: Value = serde_json::from_str(&ran("-V -v -j").1).expect("the version as JSON");
    value["commit"] == BEFORE
}

/// Compares the lines of the program with `golden/NAME.txt`, which has `count` lines, and `golden/NAME-later.txt`; or
/// writes one of them.
fn compare(name: &str, count: usize, today: &BTreeSet<String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let [before, later] = ["", "-later"].map(|end| folder.join(format!("{name}{end}.txt")));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if env::var_os("SEGUE_WRITE_GOLDEN").is_some() {
        let write = |path: &Path, lines: Vec<&String>| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        };
        if is_before() {
            let is_later = |line: &String| LATER.iter().any(|words| line.contains(words));
            return write(&before, today.iter().filter(|line| !is_later(line)).collect());
        }
        let old = read(&before);
        let old: BTreeSet<&str> = old.lines().collect();
        return write(&later, today.iter().filter(|line| !old.contains(line.as_str())).collect());
    }
    let changes = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../CHANGELOG.md"));
    let (before, later) = (read(&before), read(&later));
    assert_eq!(before.lines().count(), count, "golden/{name}.txt is what the program of {BEFORE} prints");
    let is_missing = |line: &&str| !today.contains(*line) && !is_told(&changes, line);
    let missing: Vec<&str> = before.lines().chain(later.lines()).filter(is_missing).collect();
    assert!(missing.is_empty(), "gone, and CHANGELOG.md does not say so:\n{}", missing.join("\n"));
}

#[test]
fn json_words_and_exit_codes_of_before_are_still_there() {
    compare("interface", BEFORE_INTERFACE, &interface());
}

#[test]
fn events_of_before_have_their_names_and_keys() {
    let Some(today) = events() else { return };
    compare("events", BEFORE_EVENTS, &today);
}

#[test]
fn a_change_is_told_by_its_whole_path_only() {
    let changes = "# Changelog\n\n### Removed\n\n- removed: `schema stat.a.b`, `option run --old`; renamed: `event\n  \
                   segue.run/1 gone` is `come`\n- `schema set.c` is new\n\nThat is removed: `schema set.d`\n";
    for line in ["schema stat.a.b", "schema stat.a.b string", "schema stat.a.b.c number", "schema stat.a.b[] = \"x\""]
        .into_iter()
        .chain(["option run --old", "event segue.run/1 gone", "event segue.run/1 gone: .t"])
    {
        assert!(is_told(changes, line), "{line}");
    }
    for line in ["schema stat.a string", "schema stat.a has b", "schema stat.a.b_c string", "schema nat.a.b string"]
        .into_iter()
        .chain(["schema set.c string", "schema set.d string", "option set --old", "option run --older"])
        .chain(["event segue.run/1 gone_on", "event segue.tunnel/1 gone", "event segue.run/1 come"])
    {
        assert!(!is_told(changes, line), "{line}");
    }
}
