//! Tests of `segue top` on a pseudo-terminal, and of its output without one.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{LinkForm, Process};
use segue_tests::{Ground, Tunnel, test_name};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn keys_move_sort_and_filter_a_live_screen_which_gives_the_terminal_back() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let words = "dev blue local 198.18.0.1 remote 198.18.0.2 encap gue key 1 addr 198.19.1.1/30 \
                 also dev red local 198.18.0.1 remote 198.18.0.2 encap gue key 2";
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let _tunnel = Tunnel::start(&ground.a, &ground.program, &words);
    // A problem with a remedy: nothing else that this test does could cause it.
    ground.a.run("ip", &["link", "set", "dev", "blue", "down"]).expect("ip");
    let begin = Instant::now();
    loop {
        let output = ground.a.command(&ground.program).args(["stat", "-j"]).output().expect("segue runs");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if document["instances"][0]["health"][0]["fix"].is_string() {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{document}");
        thread::sleep(Duration::from_millis(50));
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top_terminal.py");
    let output = ground.a.command("python3").arg(here).arg(&ground.program).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Without a terminal it is a watch: one object a line.
    let mut plain = ground.a.command(&ground.program);
    plain.args(["top", "-j"]);
    let mut plain = Process::spawn(plain, b"").expect("segue starts");
    let begin = Instant::now();
    while plain.stdout().lines().filter(|line| line.contains("segue.stat/1")).count() < 2 {
        assert!(begin.elapsed() < PATIENCE, "{}", plain.last_words());
        thread::sleep(Duration::from_millis(50));
    }
    plain.stop(Duration::from_secs(5));
}
