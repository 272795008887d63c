//! Tunnels over the in-kernel path (`fastpath`): whether it can be loaded here, its words and its counters.

use crate::{Ground, Shape, Stat, skip};
use segue_lab::LinkForm;
use serde_json::Value;

/// Number of the test tunnel.
pub const NET: u8 = 1;

/// Keywords of a tunnel that takes the in-kernel path.
pub const REQUIRE: &[&str] = &["fastpath", "require"];
/// Keywords of a tunnel in UDP that takes the in-kernel path, without outer checksums.
pub const REQUIRE_ZERO: &[&str] = &["noencap-csum", "fastpath", "require"];

/// Keywords of a VXLAN or Geneve tunnel that takes the in-kernel path, over IPv6 too.
pub const REQUIRE_OVERLAY: &[&str] = &["noudpcsum", "udp6zerocsumtx", "udp6zerocsumrx", "fastpath", "require"];

/// Returns the hosts of a test, or records why the in-kernel path cannot be loaded here.
pub fn ground(name: &str, form: LinkForm, tools: &[&str]) -> Option<Ground> {
    let ground = Ground::new(name, form, tools)?;
    if let Some(why) = missing(&ground) {
        skip(name, &why);
        return None;
    }
    Some(ground)
}

/// Returns the numbers of packets of a tunnel that took the in-kernel path: sent and received.
pub fn taken(stat: &Stat) -> [u64; 2] {
    ["sent", "received"].map(|key| stat.count(&Shape::device(NET), "fastpath", key))
}

/// Returns the packets that the in-kernel path left to the daemon, for messages and comparison.
pub fn left(stat: &Stat) -> Value {
    stat.json()["ports"][Shape::device(NET)]["left"].clone()
}

/// Returns the number of packets that the in-kernel path has left to the daemon, for any reason and at any port.
pub fn left_in_all(stat: &Stat) -> u64 {
    let ports = stat.json()["ports"].as_object().into_iter().flatten();
    let left = ports.filter_map(|(_, port)| port["left"].as_object());
    left.flat_map(|left| left.values()).filter_map(Value::as_u64).sum()
}

/// Returns whether the kernel may remove the marks of a tunnel from an aggregate (`BPF_F_ADJ_ROOM_DECAP_L4_UDP`, 2026).
pub fn removes_marks() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    release.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 7)
}

/// Returns the number of TCP segments with a wrong checksum (`Tcp: ... InCsumErrors`), the last of the line.
pub fn errors(snmp: &str) -> u64 {
    let values = snmp.lines().filter(|line| line.starts_with("Tcp:")).nth(1).expect("a line of values");
    values.split(' ').next_back().and_then(|last| last.parse().ok()).expect("a count")
}

/// Returns the checks of the in-kernel path by `segue doctor` at A.
fn checks(ground: &Ground) -> Vec<Value> {
    // With a missing feature `doctor` fails, and has printed the table.
    let output = ground.a.command(&ground.program).args(["doctor", "-j"]).output().expect("segue doctor starts");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = document["checks"].as_array().into_iter().flatten();
    checks.filter(|check| check["name"] == "fastpath").cloned().collect()
}

/// Returns the reason why the in-kernel path cannot be loaded here, in the words of `segue doctor`; `None` if it can.
pub fn missing(ground: &Ground) -> Option<String> {
    let checks = checks(ground);
    let check = checks.first().expect("a check of the path");
    let is_missing = check["found"].as_str().is_some_and(|found| found.contains("cannot be loaded"));
    is_missing.then(|| check["why"].as_str().unwrap_or_default().to_owned())
}

/// Asserts that the in-kernel path is off at A for this reason, and that `segue stat --why` and `segue doctor` have the
/// reason and what the path would bring. The tunnel has sent nothing by it.
#[track_caller]
pub fn assert_off(ground: &Ground, why: &str) {
    let device = Shape::device(NET);
    let stat = Stat::read(&ground.a, &ground.program, &device);
    let state = &stat.json()["fastpath"];
    assert_eq!((state["on"].as_bool(), state["why"].as_str()), (Some(false), Some(why)), "{state}");
    let program = ground.program.to_str().expect("UTF-8");
    let text = ground.a.run(program, &["stat", &device, "--why"]).expect("segue stat");
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = format!("fastpath off [{why}]: with it the kernel itself carries packets");
    assert!(words.join(" ").contains(&line), "{text}");
    let checks = checks(ground);
    let gain = format!("{why}; with it the kernel itself carries plain tunnels");
    let says = |check: &Value| check["why"].as_str().is_some_and(|text| text.contains(&gain));
    assert!(checks.iter().any(|check| check["status"] == "missing" && says(check)), "no {why:?} in {checks:?}");
}
