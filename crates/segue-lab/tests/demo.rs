//! Test of the demonstration at a short duration: real load, real table. Needs the right to create namespaces, iperf3
//! and ethtool.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use segue_lab::{
    Case, Family, Lab, LabError, Lane, LinkForm, Options, Prepared, Proto, Step, run, run_cases, skip_this_test,
    unavailable, which,
};
use serde_json::Value;

#[track_caller]
fn skip() -> bool {
    let why = unavailable().or_else(|| which("iperf3").is_none().then(|| "iperf3 is not installed".into()));
    if let Some(why) = &why {
        skip_this_test(why);
    }
    why.is_some()
}

fn quick(cases: &[&str]) -> Options {
    let cases = cases.iter().map(ToString::to_string).collect();
    Options { seconds: 1, runs: 1, cases, ..Options::default() }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_bare_link_gives_a_table_of_the_promised_shape() {
    if skip() {
        return;
    }
    let mut lines = Vec::new();
    let options = Options { runs: 2, ..quick(&["link"]) };
    let table = run(&options, &mut |step: &Step| lines.push(step.to_string())).unwrap();
    let value: Value = serde_json::from_str(&table.to_json(true)).unwrap();
    assert_eq!(keys(&value), ["bench", "machine", "rows", "schema"]);
    assert_eq!((value["schema"].as_str(), value["bench"].as_str()), (Some("segue.bench/1"), Some("lab")));
    for key in ["cpu", "kernel", "cpu_method", "date"] {
        assert!(value["machine"][key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    assert!(value["machine"]["cpus"].as_u64().unwrap() >= 1);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, family) in rows.iter().zip([4, 6]) {
        assert_eq!(keys(row), ["case", "metrics"]);
        assert_eq!(row["case"], serde_json::json!({"name": "link", "family": family, "proto": "tcp", "link": "nic"}));
        assert_eq!(keys(&row["metrics"]), ["cpu_s_per_gb", "gbps", "retransmits"]);
        for metric in row["metrics"].as_object().unwrap().values() {
            assert_eq!(keys(metric), ["max", "median", "min", "samples"]);
            assert_eq!(metric["samples"].as_array().unwrap().len(), 2);
            assert!(
                metric["min"].as_f64() <= metric["median"].as_f64()
                    && metric["median"].as_f64() <= metric["max"].as_f64()
            );
        }
        // A veth pair that segments in software: between a crawl and what memory allows.
        let gbps = row["metrics"]["gbps"]["median"].as_f64().unwrap();
        assert!((0.2..400.0).contains(&gbps), "{gbps}");
        // All processors for the whole second would be this much; nothing at all would be an accounting that counts
        // nothing.
        let cost = row["metrics"]["cpu_s_per_gb"]["median"].as_f64().unwrap();
        let most = 3.0 * 8.0 / gbps * value["machine"]["cpus"].as_f64().unwrap();
        assert!(cost > 0.01 && cost < most, "{cost} s/GB at {gbps} Gbit/s");
    }
    assert!(
        lines.iter().any(|line| line.starts_with("tcp6 link         2/2 ...") && line.ends_with("4 of 4")),
        "{lines:#?}"
    );
    assert!(table.to_text().lines().all(|line| line.len() <= 80));
}

#[test]
fn vxlan_passes_load_or_is_skipped_with_a_reason() {
    if skip() {
        return;
    }
    for outer in [Family::V4, Family::V6] {
        let options = Options { outer, families: vec![Family::V6], ..quick(&["vxlan"]) };
        let table = run(&options, &mut ()).unwrap();
        match &table.skipped[..] {
            [] => assert!(table.row("vxlan", 6).unwrap().metrics.find("gbps").unwrap().min() > 0.1),
            [skipped] => assert!(skipped.reason.contains("VXLAN") && table.rows.is_empty()),
            more => panic!("{more:?}"),
        }
    }
}

#[test]
fn fastd_passes_load_or_is_skipped_with_a_reason() {
    if skip() {
        return;
    }
    if which("fastd").is_some() && !Path::new("/dev/net/tun").exists() {
        return skip_this_test("no /dev/net/tun");
    }
    let table = run(&Options { families: vec![Family::V4], ..quick(&["fastd"]) }, &mut ()).unwrap();
    match &table.skipped[..] {
        [] => assert!(table.row("fastd", 4).unwrap().metrics.find("gbps").unwrap().min() > 0.01),
        [skipped] => assert!(skipped.reason.contains("fastd")),
        more => panic!("{more:?}"),
    }
}

#[test]
fn udp_reports_its_loss_in_the_place_of_retransmits() {
    if skip() {
        return;
    }
    let options = Options { proto: Proto::Udp, families: vec![Family::V4], link: LinkForm::Veth, ..quick(&["link"]) };
    let table = run(&options, &mut ()).unwrap();
    let metrics = &table.row("link", 4).unwrap().metrics;
    assert!(metrics.find("lost_percent").is_some() && metrics.find("retransmits").is_none());
    assert!(table.to_text().contains("lost %"));
}

/// Creates a script with `segue`'s command line that creates VXLAN devices instead of tunnels and answers `stat -j`
/// with counters that grow by one train of 5000 bytes each time.
fn stand_in(directory: &Path) -> PathBuf {
    let script = r#"#!/bin/sh
case $1 in
--version) echo "stand-in 1"; exit ;;
stat) n=$(($(cat /run/segue/count) + 1)); echo $n >/run/segue/count
      echo "{\"schema\":\"segue.stat/1\",\"instances\":[{\"name\":\"sg0\",\"ports\":{\"sg0\":{\"transmit\":{\"bytes\":$((n * 5000)),\"trains\":$n}}}}]}"
      exit ;;
esac
shift
echo "$@" >&2
addr=
while [ $# -gt 0 ]; do
    case $1 in
    dev) dev=$2 ;; local) local=$2 ;; remote) remote=$2 ;; encap-dport) port=$2 ;; addr) addr="$addr $2" ;;
    encap-remcsum | noencap-remcsum) set -- x "$@" ;;
    esac
    shift 2
done
[ "$dev" = sg0 ] || { echo "error: cannot create $dev: no" >&2; exit 1; }
echo 0 >/run/segue/count
ip link add "$dev" type vxlan id 7 local "$local" remote "$remote" dev eth0 dstport "$port" || exit 1
for a in $addr; do ip addr add "$a" dev "$dev" nodad 2>/dev/null || ip addr add "$a" dev "$dev"; done
ip link set "$dev" up
exec sleep 60
"#;
    let path = directory.join("segue");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("segue-lab-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_program_is_started_at_both_ends_and_its_trains_are_read() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("trains");
    let options = Options { segue: stand_in(&scratch.0), ..quick(&["segue"]) };
    let mut lab = match Lab::new(&options, &mut ()) {
        Err(LabError::NotReady { output, .. }) if output.contains("not supported") => {
            return skip_this_test(&output);
        }
        other => other.unwrap(),
    };
    let words: Vec<String> = lab.lanes().flat_map(|(_, lane)| lane.processes.iter().map(|p| p.stderr())).collect();
    assert_eq!(
        words,
        [
            "dev sg0 mode gre local 198.18.0.1 remote 198.18.0.2 encap gue encap-dport 6080 encap-remcsum \
             addr 198.19.1.1/24 addr 2001:db8:1::1/64\n",
            "dev sg0 mode gre local 198.18.0.2 remote 198.18.0.1 encap gue encap-dport 6080 encap-remcsum \
             addr 198.19.1.2/24 addr 2001:db8:1::2/64\n",
        ]
    );
    let table = lab.measure(&mut ()).unwrap();
    let train = table.row("segue", 6).unwrap().metrics.find("train_bytes").unwrap();
    assert_eq!(train.samples(), [5000.0]);
    assert_eq!(table.machine.more.find("segue").unwrap(), "stand-in 1");
}

#[test]
fn a_program_that_does_not_come_up_is_quoted() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("quote");
    let options = Options { segue: stand_in(&scratch.0), ..quick(&["segue-plain"]) };
    let error = Lab::new(&options, &mut ()).unwrap_err();
    assert!(matches!(error, LabError::NotReady { .. }));
    assert!(error.to_string().contains("error: cannot create sgp0: no"), "{error}");
    let missing = Options { segue: scratch.0.join("nothing"), ..options };
    let error = Lab::new(&missing, &mut ()).unwrap_err();
    assert!(error.to_string().contains("nothing") && error.hint().is_some(), "{error}");
}

#[test]
fn a_case_of_the_callers_own_is_measured_beside_the_others() {
    if skip() {
        return;
    }
    let own = Case::new("alias", |ground| {
        for end in [segue_lab::Peer::A, segue_lab::Peer::B] {
            ground.configure(end, segue_lab::DEVICE)?;
        }
        Ok(Prepared::Ready(Lane::plain(ground.net)))
    });
    let never = Case::new("never", |_| Ok(Prepared::Skipped("on purpose".into())));
    let table = run_cases(&quick(&[]), vec![own, never, Case::named("link").unwrap()], &mut ()).unwrap();
    let names: Vec<_> = table.rows.iter().map(|row| row.case.find("name").unwrap().as_str().unwrap()).collect();
    assert_eq!(names, ["alias", "link", "alias", "link"]);
    assert!(table.to_text().ends_with("never: skipped, on purpose\n"));
}

#[test]
fn a_kept_lab_says_how_to_enter_it_and_is_gone_when_dropped() {
    if skip() {
        return;
    }
    let mut lab = Lab::new(&quick(&["link"]), &mut ()).unwrap();
    let entrances = lab.entrances().unwrap();
    assert_eq!(entrances.iter().map(|entrance| entrance.host.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(entrances[1].addresses[0], ("link".into(), "198.18.0.2".into()));
    let mut words = entrances[1].command.split(' ');
    let mut command = std::process::Command::new(words.next().unwrap());
    let output = command.args(words).args(["ip", "-br", "addr", "show", "dev", "eth0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("198.18.0.2/24"), "{output:?}");
    let pid = entrances[1].command.rsplit(' ').next().unwrap().to_string();
    assert!(Path::new("/proc").join(&pid).exists());
    drop(lab);
    assert!(!Path::new("/proc").join(&pid).exists());
}
