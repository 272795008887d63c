//! Whether the path through the kernel can be loaded here.

use segue_tests::Ground;
use serde_json::Value;

/// Returns why the path cannot be loaded here, in the words of `segue doctor`; `None` where it can.
pub(crate) fn missing(ground: &Ground) -> Option<String> {
    // With a missing feature `doctor` fails, and has printed the table.
    let output = ground.a.command(&ground.program).args(["doctor", "-j"]).output().expect("segue doctor starts");
    let checks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut checks = checks["checks"].as_array().into_iter().flatten();
    let check = checks.find(|check| check["name"] == "fastpath").expect("a check of the path");
    let is_missing = check["found"].as_str().is_some_and(|found| found.contains("cannot be loaded"));
    is_missing.then(|| check["why"].as_str().unwrap_or_default().to_owned())
}
