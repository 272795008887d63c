//! Tests of help, versions, colour, pipes and JSON.

mod common;

use std::collections::BTreeSet;

use common::{segue, segue_with, shell};
use serde_json::Value;

const COMMANDS: &[&str] = &[
    "tunnel",
    "gateway",
    "stat",
    "top",
    "metrics",
    "nat",
    "peer",
    "stop",
    "set",
    "run",
    "fleet",
    "reload",
    "doctor",
    "lab",
    "bench",
    "pcap",
    "pcap merge",
    "pcap split",
    "pcap decap",
    "pcap verify",
    "pcap stat",
    "lan78xx",
    "lan78xx up",
    "lan78xx model",
    "lan78xx list",
    "schema",
    "completions",
    "help",
];

#[test]
fn a_short_help_is_one_screen_and_a_long_one_begins_with_examples() {
    let commands = shell("$SEGUE complete -- ''").stdout;
    assert!(commands.lines().count() > 18, "{commands}");
    for command in commands.lines().filter_map(|line| line.split('\t').next()) {
        assert!(COMMANDS.contains(&command), "{command}");
    }
    for command in COMMANDS.iter().chain([&""]) {
        let short = segue(&format!("{command} -h"));
        assert_eq!((short.code, short.stderr.as_str()), (Some(0), ""), "{command}");
        assert!(short.stdout.lines().count() <= 24, "{command}: {}", short.stdout);
        let long = segue(&format!("{command} --help"));
        assert!(long.stdout.starts_with("Examples:\n  segue "), "{command}: {}", long.stdout);
        assert!(long.stdout.len() > short.stdout.len() || command.is_empty(), "{command}");
        for line in short.stdout.lines().chain(long.stdout.lines()) {
            assert!(line.len() <= 80 && line.is_ascii(), "{command}: {line}");
        }
    }
}

#[test]
fn the_first_tunnel_of_every_help_is_that_of_the_readme() {
    let readme = include_str!("../../../README.md");
    let first = readme.lines().find_map(|line| line.strip_prefix("a# ")).expect("a command of host a");
    assert!(first.starts_with("segue tunnel dev "), "{first}");
    for line in ["", "help", "--help", "help tunnel", "tunnel --help"] {
        let output = segue(line);
        let shown = output.stdout.lines().map(str::trim).find(|line| line.starts_with("segue tunnel dev "));
        assert_eq!(shown, Some(first), "segue {line}");
    }
}

#[test]
fn help_of_a_command_is_the_same_by_both_ways() {
    for command in COMMANDS {
        assert_eq!(segue(&format!("help {command}")).stdout, segue(&format!("{command} --help")).stdout);
    }
}

#[test]
fn short_and_long_help_of_tunnel_name_the_same_words() {
    let names = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| c.is_whitespace() || "[]|.".contains(c))
            .filter(|word| word.starts_with("encap") || ["dev", "ttl", "csum", "iseq", "mtu", "addr"].contains(word))
            .map(str::to_owned)
            .collect()
    };
    let (short, long) = (names(&segue("tunnel -h").stdout), names(&segue("tunnel --help").stdout));
    assert!(short.is_subset(&long), "{short:?} {long:?}");
    assert!(short.len() >= 10);
}

#[test]
fn long_help_of_tunnel_says_that_encap_csum_is_on_by_default() {
    let help = segue("tunnel --help").stdout;
    assert!(help.contains("encap-csum is on by default"), "{help}");
}

#[test]
fn the_overview_has_at_most_15_lines_and_exit_status_0() {
    let ran = segue("");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.lines().count() <= 15, "{}", ran.stdout);
}

#[test]
fn the_version_is_one_line_and_with_v_all_that_a_report_needs() {
    let one = segue("-V").stdout;
    assert_eq!(one, format!("segue {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(segue("--version").stdout, one);
    let long = segue("--version -v").stdout;
    let json = segue("--version -v -j").json();
    for key in ["commit", "target", "simd", "kernel", "landlock_abi", "seccomp"] {
        assert!(long.contains(key), "{key} is missing in\n{long}");
        assert!(json.get(key).is_some(), "{key} is missing in {json}");
    }
}

#[test]
fn a_measurement_can_have_another_checksum_implementation() {
    let simd = |wanted: &str| segue_with("--version -v -j", &[("SEGUE_SIMD", wanted)]).json()["simd"].clone();
    assert_eq!((simd("scalar"), simd("")), ("scalar".into(), segue("--version -v -j").json()["simd"].clone()));
    let wrong = segue_with("doctor", &[("SEGUE_SIMD", "avx9")]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("`avx9`") && wrong.stderr.contains("it has scalar"), "{wrong:?}");
}

/// Returns whether a run writes colour, on a terminal made by script(1) or into a pipe.
fn colours(terminal: bool, options: &str, env: &str) -> bool {
    let command = format!("$SEGUE tunnel remot {options}");
    let script = if terminal {
        format!("{env} script -qec '{command}' /dev/null")
    } else {
        format!("{env} sh -c '{command}' 2>&1 | cat")
    };
    let ran = shell(&script);
    let text = ran.stdout + &ran.stderr;
    assert!(text.contains("unknown word"), "{script}: {text}");
    text.contains("\x1b[")
}

#[test]
fn colour_is_for_terminals_and_follows_option_and_environment() {
    if !shell("command -v script").stdout.contains("script") {
        return segue_lab::skip_this_test("no script(1) to make a terminal (apt install bsdutils)");
    }
    let cases = [
        (true, "", "env A=1", true),
        (false, "", "env A=1", false),
        (true, "", "env NO_COLOR=1", false),
        (true, "", "env NO_COLOR=", true),
        (true, "", "env TERM=dumb", false),
        (true, "--color never", "env A=1", false),
        (false, "--color always", "env A=1", true),
        (false, "", "env CLICOLOR_FORCE=1", true),
        (false, "", "env CLICOLOR_FORCE=1 NO_COLOR=1", false),
        (true, "", "env CLICOLOR_FORCE=1 NO_COLOR=1", false),
        (false, "--color never", "env CLICOLOR_FORCE=1", false),
    ];
    for (terminal, options, env, expected) in cases {
        assert_eq!(colours(terminal, options, env), expected, "terminal {terminal}, {env} segue {options}");
    }
}

#[test]
fn json_has_no_colour_even_when_it_is_forced() {
    let ran = segue_with("doctor -j --color always", &[("CLICOLOR_FORCE", "1")]);
    assert!(!ran.stdout.contains('\x1b'));
    ran.json();
}

#[test]
fn a_reader_that_leaves_ends_the_program_quietly() {
    for command in ["help tunnel", "tunnel --help", "doctor", "schema stat -p", "stat -j", "--version -v"] {
        let ran = shell(&format!("{{ $SEGUE {command}; echo \"status $?\" >&2; }} | head -c 1 >/dev/null"));
        // Without the rights for a tunnel `doctor` says so, and ends with 1.
        let ended = ran.stderr == "status 0\n" || command == "doctor" && ran.stderr.ends_with("\nstatus 1\n");
        assert!(ended && !ran.stderr.to_lowercase().contains("pipe"), "segue {command}: {ran:?}");
    }
    // The reader closes the pipe before the first byte; if it is slow to exit, the status is the same.
    let ran = shell("{ sleep 0.2; $SEGUE help tunnel; echo \"status $?\" >&2; } | true");
    assert_eq!(ran.stderr, "status 0\n");
}

#[test]
fn a_full_disk_is_an_error() {
    if std::path::Path::new("/dev/full").exists() {
        let ran = shell("$SEGUE help tunnel > /dev/full; echo \"status $?\"");
        assert_eq!(ran.stdout, "status 1\n");
        assert!(ran.stderr.starts_with("error: cannot write to stdout: No space left"), "{ran:?}");
    }
}

#[test]
fn closed_standard_streams_are_no_fault() {
    let ran = shell("$SEGUE stat 2>&- >&-; echo $?; $SEGUE tunnel remot 2>&-; echo $?");
    assert_eq!(ran.stdout, "0\n2\n", "{ran:?}");
}

#[test]
fn every_command_that_prints_data_has_j_and_p() {
    for line in ["", "stat", "doctor", "--version", "schema stat", "schema set", "schema lab", "schema lan78xx"] {
        let json = segue(&format!("{line} -j"));
        let value = json.json();
        assert_eq!(json.stdout.lines().count(), 1, "segue {line} -j");
        let pretty = segue(&format!("{line} -j -p"));
        assert!(pretty.stdout.lines().count() > 1, "segue {line} -j -p");
        assert_eq!(keys(&pretty.json()), keys(&value), "segue {line}");
        let known = value.get("schema").or(value.get("$schema"));
        assert!(known.is_some_and(Value::is_string), "segue {line}: {value}");
        assert_eq!(json.stderr, "", "segue {line}");
    }
}

#[test]
fn doctor_has_a_status_for_each_thing_and_a_reason_for_what_is_missing() {
    let value = segue("doctor -j").json();
    let checks = value["checks"].as_array().expect("checks");
    let names: BTreeSet<&str> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    for name in [
        "tun device",
        "tun headers",
        "tun uso",
        "udp_segment",
        "udp_gro",
        "namespaces",
        "cap_net_admin",
        "landlock",
        "seccomp",
        "rmem_max",
        "af_xdp",
    ] {
        assert!(names.contains(name), "{name} is missing in {names:?}");
    }
    for check in checks {
        assert!(["ok", "missing", "needed", "unknown"].contains(&check["status"].as_str().unwrap_or("")), "{check}");
        assert!(check["status"] == "ok" || check["why"].is_string(), "{check}");
    }
    let text = segue("doctor").stdout;
    for name in names {
        assert!(text.contains(name), "{name} is missing in\n{text}");
    }
}

#[test]
fn quiet_leaves_only_data_and_errors() {
    assert!(segue("stat").stderr.contains("nothing runs"));
    assert_eq!(segue("stat -q").stderr, "");
}

#[test]
fn the_schema_of_stat_names_every_key_of_the_document() {
    let schema = segue("schema stat").json();
    let text = schema.to_string();
    for key in [
        "instances",
        "uptime_s",
        "offloads",
        "ports",
        "receive",
        "trains",
        "checksummed_bytes",
        "drops",
        "flushes",
        "refusals",
        "fallbacks",
        "recent",
    ] {
        assert!(text.contains(&format!("\"{key}\"")), "{key}");
    }
    assert_eq!(schema["properties"]["schema"]["type"], "string");
}

fn keys(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                keys(value).into_iter().map(move |inner| format!("{key}.{inner}")).chain([key.clone()])
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(keys).collect(),
        _ => BTreeSet::new(),
    }
}
