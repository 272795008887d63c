//! Tests of `segue lab`: its document, its progress, and that no namespace is left behind.

mod common;

use common::{cannot_unshare, segue, shell};

/// Returns whether the lab can run here; if not, the test is noted as skipped.
#[track_caller]
fn possible() -> bool {
    let programs = shell("command -v iperf3 && command -v ethtool").code == Some(0);
    let reason = if programs { cannot_unshare() } else { Some("the lab needs iperf3 and ethtool") };
    reason.inspect(|reason| segue_lab::skip_this_test(reason)).is_none()
}

#[test]
fn the_document_is_complete_and_progress_is_on_stderr() {
    if !possible() {
        return;
    }
    let ran = segue("lab --family 4 --seconds 1 --runs 1 --progress json -j");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let table = ran.json();
    assert_eq!((table["schema"].as_str(), table["bench"].as_str()), (Some("segue.bench/1"), Some("lab")));
    let row = table["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["case"]["name"] == "segue"));
    let row = row.unwrap_or_else(|| panic!("no row for segue: {table}"));
    for key in ["min", "median", "max"] {
        assert!(row["metrics"]["gbps"][key].as_f64().is_some_and(|gbps| gbps > 0.0), "{row}");
    }
    // The document has every key that the published schema requires.
    let schema = segue("schema lab").json();
    let demands = |of: &serde_json::Value| -> Vec<String> {
        of["required"].as_array().into_iter().flatten().filter_map(|key| key.as_str().map(str::to_owned)).collect()
    };
    let top = demands(&schema);
    assert!(top.len() >= 4 && top.iter().all(|key| table.get(key).is_some()), "{top:?}");
    assert!(demands(&schema["$defs"]["Row"]).iter().all(|key| row.get(key).is_some()));
    assert!(demands(&schema["$defs"]["Metric"]).iter().all(|key| row["metrics"]["gbps"].get(key).is_some()));
    let steps: Vec<serde_json::Value> =
        ran.stderr.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    assert!(steps.iter().any(|step| step["step"] == "measured" && step["total"].as_u64().is_some()), "{steps:?}");
}

#[test]
fn an_interrupt_is_quiet_exits_130_and_leaves_nothing() {
    if !possible() {
        return;
    }
    let script = "$SEGUE lab --runs 9 --progress never & pid=$!; 
for n in $(seq 300); do pgrep -P $pid -x iperf3 >/dev/null && break; sleep 0.1; done; children=$(pgrep -P $pid)
test -n \"$children\" && echo running
kill -INT $pid; wait $pid; echo \"status $?\"
left() { for child in $children; do kill -0 $child 2>/dev/null && echo LEFT; done; }
for n in $(seq 50); do test -z \"$(left)\" && break; sleep 0.1; done; left
ls -A $SEGUE_RUNTIME_DIR | sed 's/^/LEFT /'";
    let ran = shell(script);
    assert!(ran.stdout.starts_with("running\nstatus 130\n"), "{ran:?}");
    assert_eq!(ran.stderr, "", "{ran:?}");
    assert!(!ran.stdout.contains("LEFT"), "{ran:?}");
}

#[test]
fn keep_says_how_to_enter_and_ends_with_the_interrupt() {
    if !possible() {
        return;
    }
    let place = common::Place::new();
    let script = format!(
        "cd {}; $SEGUE lab --keep -q > said & pid=$!
for n in $(seq 300); do grep -q 'host b' said && break; sleep 0.1; done
enter=$(sed -n 's/^host a: //p' said)
$enter ip -br addr | grep -q 198.18.0.1 && echo inside
kill -INT $pid; wait $pid; echo \"status $?\"",
        place.path().display()
    );
    let ran = shell(&script);
    assert_eq!(ran.stdout, "inside\nstatus 0\n", "{ran:?}");
}
