//! Tests of the benches' command line: documents, tables, choosing rows, and that no namespace stays behind. No figure
//! is judged here.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Place, segue, shell};
use serde_json::{Value, json};

/// Returns the obstacle to running benches here, or `None`.
fn impossible() -> Option<&'static str> {
    let has = |line: &str| shell(line).code == Some(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match () {
        () if !has("command -v iperf3 && command -v ethtool && command -v tc") => Some("needs iperf3, ethtool and tc"),
        () if !has("test $(id -u) = 0 && unshare -n true") => Some("needs root and network namespaces"),
        () if cores < 2 => Some("needs two processors"),
        () => None,
    }
}

/// Runs a bench with `--quick` and checks the parts that every bench's document has.
#[track_caller]
fn quick(name: &str) -> Option<Vec<Value>> {
    if let Some(why) = impossible() {
        segue_lab::skip_this_test(&format!("the bench {name} {why}"));
        return None;
    }
    let before = shell("ls /sys/class/net | sort; ls -d /sys/fs/cgroup/*/segue-lab-* 2>/dev/null | wc -l").stdout;
    let ran = segue(&format!("bench {name} --quick --progress json -j"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let table = ran.json();
    assert_eq!((table["schema"].as_str(), table["bench"].as_str()), (Some("segue.bench/1"), Some(name)));
    let details: &[&str] = if name == "tunnel" { &[] } else { &["load_core", "test_core", "steering"] };
    assert_eq!(ran.stdout.matches("\"cpu\":").count(), 1, "a name twice: {}", ran.stdout);
    for detail in ["load", "wire", "cpu", "counted", "seconds", "runs"].iter().chain(details) {
        assert!(!table["machine"][detail].is_null(), "{detail}: {table}");
    }
    let rows = table["rows"].as_array().cloned().unwrap_or_default();
    assert!(rows.len() >= 2, "{table}");
    for row in &rows {
        for (metric, value) in row["metrics"].as_object().unwrap() {
            let samples = value["samples"].as_array().map_or(0, Vec::len);
            assert!(samples == 1 && value["median"].as_f64().is_some_and(f64::is_finite), "{metric}: {row}");
        }
        let rate = if row["case"]["load"] == "rr" { "transactions_per_s" } else { "gbps" };
        assert!(median(row, rate) > 0.0, "{row}");
        for (published, value) in row["seed"].as_object().into_iter().flatten() {
            assert!(value.is_number() || value.as_array().is_some_and(|ends| ends.len() == 2), "{published}: {row}");
        }
    }
    let steps: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let measured = steps.iter().filter(|step| step["step"] == "measured").count();
    assert_eq!(measured, rows.len(), "{steps:?}");
    let after = shell("ls /sys/class/net | sort; ls -d /sys/fs/cgroup/*/segue-lab-* 2>/dev/null | wc -l").stdout;
    let devices = |text: &str| text.lines().filter(|line| line.starts_with('n')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(devices(&before), devices(&after), "a device stayed behind");
    Some(rows)
}

fn median(row: &Value, metric: &str) -> f64 {
    row["metrics"][metric]["median"].as_f64().unwrap_or_else(|| panic!("no {metric}: {row}"))
}

fn row<'a>(rows: &'a [Value], column: &str) -> &'a Value {
    rows.iter().find(|row| row["case"]["column"] == column).unwrap_or_else(|| panic!("no {column}: {rows:?}"))
}

#[test]
fn bench_lro_shows_trains_with_lro_and_single_frames_without() {
    let Some(rows) = quick("lro") else { return };
    assert!(median(row(&rows, "lro"), "train_packets") > 4.0, "{rows:?}");
    assert!(median(row(&rows, "no-lro"), "train_packets") < 1.1, "{rows:?}");
    for row in &rows {
        for metric in ["receiver_cpu_percent", "receiver_cpu_s_per_gb", "sender_cpu_s_per_gb", "retransmits"] {
            assert!(median(row, metric) >= 0.0, "{row}");
        }
        assert!(row["seed"]["gbps"].is_array(), "{row}");
    }
}

#[test]
fn bench_ack_shows_fewer_acks_at_the_sender_than_came_in() {
    let Some(rows) = quick("ack") else { return };
    let share = |row: &Value| median(row, "acks_out_per_s") / median(row, "acks_in_per_s");
    assert!(share(row(&rows, "ack-aggregation")) < 0.7, "{rows:?}");
    assert!((0.9..1.1).contains(&share(row(&rows, "no-ack-aggregation"))), "{rows:?}");
    for row in &rows {
        assert!(median(row, "sender_us_per_kb") > 0.0 && median(row, "receiver_us_per_kb") > 0.0, "{row}");
    }
}

/// Tests that remote checksum offload with ports that accept partial checksums leaves no payload byte to sum, in either
/// direction.
#[test]
fn full_size_bench_rco_sums_no_payload_with_remote_checksum_offload_and_all_of_it_without() {
    let Some(rows) = quick("rco") else { return };
    for row in &rows {
        let summed = ["tx_summed_bytes", "rx_summed_bytes"].map(|metric| median(row, metric));
        match row["case"]["remcsum"].as_str() {
            Some("remcsum") => assert_eq!(summed, [0.0; 2], "{row}"),
            _ => {
                let each = ["tx_summed_per_byte", "rx_summed_per_byte"].map(|metric| median(row, metric));
                assert!(each.iter().all(|each| *each > 0.9), "{row}");
            }
        }
        for metric in ["tx_cpu_percent", "rx_cpu_percent"] {
            assert!(median(row, metric) > 0.0, "{row}");
        }
        if row["case"]["load"] == "rr" {
            let latencies = ["p50_us", "p90_us", "p95_us", "p99_us"].map(|metric| median(row, metric));
            assert!(latencies.is_sorted() && latencies[0] > 0.0, "{row}");
        } else {
            assert!(row["seed"]["tx_cpu_percent"].is_f64(), "{row}");
        }
    }
    assert!(rows.iter().any(|row| row["case"]["load"] == "rr"), "{rows:?}");
}

#[test]
fn bench_tunnel_measures_segue_beside_the_kernel() {
    let Some(rows) = quick("tunnel") else { return };
    let names: Vec<&str> = rows.iter().filter_map(|row| row["case"]["tunnel"].as_str()).collect();
    assert_eq!(names, ["segue", "vxlan"]);
    assert!(rows.iter().all(|row| median(row, "cpu_s_per_gb") > 0.0), "{rows:?}");
}

/// Searches for the loss-free rate of some rows, in the order of the table, and checks what the document says of
/// it.
#[track_caller]
fn search_loss_free(names: &[&str]) {
    if let Some(why) = impossible() {
        return segue_lab::skip_this_test(&format!("the search for the loss-free rate {why}"));
    }
    let rows: String = names.iter().map(|name| format!(" --rows '{name} loss-free frame=64'")).collect();
    let ran = shell(&format!("\"$SEGUE\" bench tunnel{rows} --runs 1 --seconds 1 --progress never -j"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let table = ran.json();
    let how = table["machine"]["loss_free"].as_str().unwrap_or_default();
    assert!(how.contains("RFC 2544, trials of 1 s"), "{table}");
    let skipped = table["skipped"].as_array().cloned().unwrap_or_default();
    let is_skipped = |name: &&&str| {
        skipped.iter().any(|row| row["name"].as_str().is_some_and(|row| row.starts_with(&format!("{name} "))))
    };
    let rows = table["rows"].as_array().cloned().unwrap_or_default();
    let found: Vec<&str> = rows.iter().filter_map(|row| row["case"]["tunnel"].as_str()).collect();
    let expected: Vec<&str> = names.iter().filter(|name| !is_skipped(name)).copied().collect();
    assert_eq!(found, expected, "{table}");
    for row in &rows {
        assert_eq!((&row["case"]["frame"], &row["case"]["flows"]), (&64.into(), &1000.into()), "{row}");
        let [rate, limit] = ["loss_free_frames_per_s", "generator_limit_kpps"].map(|metric| median(row, metric));
        assert!(rate > 0.0 && rate <= 1010.0 * limit, "{row}");
        let [lost, step] = ["lost_percent", "step_percent"].map(|metric| median(row, metric));
        assert!((0.0..=100.0).contains(&lost) && (0.0..=2.001).contains(&step), "{row}");
        assert!(median(row, "trials") >= 1.0, "{row}");
    }
}

#[test]
fn bench_tunnel_finds_the_loss_free_rate_of_a_router_beside_the_kernel() {
    search_loss_free(&["router", "kernel-router"]);
}

#[test]
fn full_size_bench_tunnel_finds_the_loss_free_rate_of_tunnel_gateway_and_router_beside_the_kernel() {
    search_loss_free(&["segue", "vxlan", "gateway", "kernel-bridge", "router", "kernel-router"]);
}

#[test]
fn full_size_bench_gso_keeps_trains_whole_up_to_the_card_and_switches_that_under_load() {
    let Some(rows) = quick("gso") else { return };
    let find = |protocol: &str, column: &str| {
        let is_it = |row: &&Value| row["case"]["protocol"] == protocol && row["case"]["column"] == column;
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {protocol} {column}: {rows:?}"))
    };
    // How long trains get depends on the machine; single packets are 1 exactly.
    for (protocol, column) in [("tcp4", "gso"), ("nat-tcp4", "tso")] {
        assert!(median(find(protocol, column), "stage_packets") > 1.5, "{protocol}: {rows:?}");
    }
    assert!(median(find("tcp4", "none"), "stage_packets") < 1.1, "{rows:?}");
    assert!(median(find("udp6-9k", "gso"), "gbps") > 0.0 && median(find("udp6-9k", "none"), "gbps") > 0.0);
    let (on, off) = (find("live-tcp4", "gso"), find("live-tcp4", "entry"));
    assert!(median(on, "stage_packets_before") < 1.1 && median(on, "stage_packets") > 1.5, "{on}");
    assert!(median(off, "stage_packets_before") > 1.5 && median(off, "stage_packets") < 1.1, "{off}");
    assert_eq!(find("tcp4", "gso")["seed"]["gain_percent"], 11.92);
}

#[test]
fn a_bench_says_how_large_it_is_and_which_words_its_rows_have() {
    let listed = segue("bench lro --all --list -j").json();
    let words = listed["words"].as_array().unwrap();
    for word in ["lro", "no-lro", "kernel", "kernel-gro", "4k", "frame", "1500/9000", "10gbit", "flows=64"] {
        assert!(words.iter().any(|known| known == word), "{word}: {listed}");
    }
    assert!(listed["rows"].as_u64() > Some(100) && listed["seconds"].as_u64() > Some(100), "{listed}");
    let wrong = segue("bench lro --rows 4kb");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("`4kb`") && wrong.stderr.contains("1500/9000"), "{wrong:?}");
    assert_eq!(segue("bench lor").code, Some(2));
    let rows = |line: &str| segue(line).json()["rows"].as_u64();
    let (one, all) = (rows("bench rco --link nic --list -j"), rows("bench rco --all --list -j"));
    assert!(one > Some(10) && all > one.map(|one| one * 3 / 2), "{one:?} {all:?}");
    let wrong = segue("bench tunnel --link copper");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("`copper`"), "{wrong:?}");
    assert_eq!(segue("bench").code, Some(2));
}

#[test]
fn bench_napi_has_the_published_cells_beside_a_model_that_depends_on_no_machine() {
    let run = |words: &str| segue(&format!("bench napi {words} --progress never -j"));
    let ran = run("--quick");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let table = ran.json();
    let rows = table["rows"].as_array().unwrap();
    let of = |form: &str| rows.iter().find(|row| row["case"]["form"] == form).unwrap_or_else(|| panic!("{table}"));
    let (standard, napi) = (of("standard"), of("napi"));
    assert_eq!((&standard["seed"]["gbps"], &napi["seed"]["gbps"]), (&0.683.into(), &0.942.into()));
    // The one cell that the target was fitted to, and the direction of the other one.
    assert!((median(standard, "gbps") - 0.683).abs() < 0.01, "{standard}");
    assert!(median(napi, "gbps") > 0.9 && median(napi, "urbs_per_s") < median(standard, "urbs_per_s"), "{napi}");
    for detail in ["rpi4", "nitrogen8m", "compaq", "dell", "wire", "load"] {
        assert!(table["machine"][detail].is_string(), "{detail}: {table}");
    }
    assert!(table["machine"]["price_wake_ns"].is_number(), "{table}");
    assert_eq!(run("--quick").json()["rows"], table["rows"], "the same figures again");
    let text = segue("bench napi --quick --progress never").stdout;
    assert!(text.lines().all(|line| line.is_ascii() && line.len() <= 80), "{text}");
    assert!(text.contains("683 80.1") && text.contains("x1.379"), "{text}");
    assert_eq!(segue("bench --end 'target tcp-tx rpi5 napi 1 10 100'").code, Some(2));
}

#[test]
fn a_bench_of_all_that_cannot_run_is_in_page_and_data_and_the_command_fails() {
    if let Some(why) = impossible() {
        return segue_lab::skip_this_test(why);
    }
    let place = Place::new();
    let (page, data) = (place.path().join("report.html"), place.path().join("report.json"));
    let all = |rows: &str| {
        let words = format!("--rows '{rows}' --runs 1 --progress never --output {}", page.display());
        shell(&format!("\"$SEGUE\" bench all {words} -j"))
    };
    // No bench has such rows.
    let ran = all("no-such-row");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = ran.json().to_string();
    assert!(error.contains("no bench could run here") && error.contains("lro: no row of bench lro"), "{error}");
    assert!(!page.exists() && !data.exists());

    // Only the model has these.
    let ran = all("tcp-rx rpi4 standard");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&data).expect("the data")).expect("JSON");
    assert_eq!(ran.json(), written, "stdout has one document");
    let names = |key: &str| -> Vec<&str> {
        written[key].as_array().into_iter().flatten().filter_map(|one| one["bench"].as_str()).collect()
    };
    assert_eq!((names("benches"), names("failed")), (vec!["napi"], vec!["lro", "ack", "gso", "rco", "tunnel"]));
    let again = place.path().join("again.html");
    let made = segue(&format!("bench report {} --output {}", data.display(), again.display()));
    assert_eq!(made.code, Some(0), "{made:?}");
    for page in [page.as_path(), again.as_path()] {
        let text = fs::read_to_string(page).expect("a page");
        assert!(text.contains("<h2>napi</h2>") && text.contains("<li>gso: no row of bench gso has"), "{text}");
    }
}

#[test]
fn compare_fails_where_a_case_became_worse_and_where_there_is_nothing_to_compare() {
    let place = Place::new();
    let file = |name: &str, column: &str, samples: &[f64]| -> PathBuf {
        let (min, max) = (samples[0], samples[samples.len() - 1]);
        let metric = json!({ "min": min, "median": samples[samples.len() / 2], "max": max, "samples": samples });
        let row = json!({ "case": { "column": column }, "metrics": { "gbps": metric } });
        let path = place.path().join(name);
        let bench = json!({ "schema": "segue.bench/1", "bench": "lro", "machine": {}, "rows": [row] });
        fs::write(&path, bench.to_string()).expect("a file");
        path
    };
    let old = file("old.json", "lro", &[9.0, 10.0, 11.0]);
    let damaged = place.path().join("damaged.json");
    fs::write(&damaged, "{").expect("a file");
    let cases = [
        (file("same.json", "lro", &[8.0, 9.5, 12.0]), 0, "1 no change, 0 better, 0 worse"),
        (file("better.json", "lro", &[12.0, 13.0, 14.0]), 0, "0 no change, 1 better, 0 worse"),
        (file("worse.json", "lro", &[6.0, 7.0, 8.0]), 1, "0 no change, 0 better, 1 worse"),
        (file("one.json", "lro", &[1.0]), 0, "1 of one sample without a verdict"),
        (file("other.json", "no-lro", &[9.0, 10.0, 11.0]), 2, "no case in common"),
        (damaged, 1, "has no results of a bench"),
        (place.path().join("absent.json"), 1, "cannot read"),
    ];
    for (new, code, text) in &cases {
        let ran = segue(&format!("bench compare {} {}", old.display(), new.display()));
        assert_eq!(ran.code, Some(*code), "{ran:?}");
        assert!((ran.stdout.clone() + &ran.stderr).contains(text), "no `{text}`: {ran:?}");
    }
    // With -j there is one document, also where it is worse.
    let ran = segue(&format!("bench compare {} {} -j", old.display(), cases[2].0.display()));
    assert_eq!((ran.code, &ran.json()["lines"][0]["verdict"]), (Some(1), &json!("worse")), "{ran:?}");
    assert_eq!(segue(&format!("bench compare {}", old.display())).code, Some(2));
}
