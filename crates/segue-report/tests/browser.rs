//! Tests of the page in a browser: all of its content is visible and readable, on a phone and on a screen, light and
//! dark.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use segue_report::{document, html};
use serde_json::{Value, json};

/// Widths of the page: a phone's, and a screen's.
const WIDTHS: [u32; 2] = [390, 1400];
/// Condition in the style sheet that makes the page dark, and its replacements that always or never hold.
const SCHEME: &str = "@media screen and (prefers-color-scheme:dark)";
const SCHEMES: [(&str, &str); 2] = [("light", "@media not all"), ("dark", "@media screen")];
/// Longest wait for the browser.
const PATIENCE: Duration = Duration::from_secs(120);
/// Script that checks the pages, each in a frame of the script's document. The pages have none.
const SCRIPT: &str = include_str!("browser.js");

fn skip(reason: &str) {
    if let Some(path) = env::var_os("SEGUE_SKIPS") {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "browser::full_size_every_part_of_the_page_is_visible_and_readable: {reason}").unwrap();
    }
    println!("skipped: {reason}");
}

/// Returns benches with extreme lengths, widths and characters.
fn benches() -> document::All {
    let metric = |median: f64| {
        json!({ "min": median * 0.9, "median": median, "max": median * 1.2,
                "samples": [median * 0.9, median, median * 1.2] })
    };
    let row = |number: u32| {
        let name = "a case with a name that is longer than a line of a phone";
        let seed = if number.is_multiple_of(3) { json!({ "gbps": [8.8, 9.4] }) } else { json!({}) };
        json!({ "case": { "column": format!("{name} {number}"), "net": "tcp6" }, "seed": seed,
                "metrics": { "gbps": metric(f64::from(number) * 1.7), "cpu_s_per_gb": metric(0.123), "retransmits": metric(98765.0),
                             "mean_train_bytes": metric(43210.0), "of_a_very_long_name_that_cannot_break": metric(7.0) } })
    };
    let bench = |name: &str, rows: u32| {
        json!({ "schema": document::SCHEMA, "bench": name, "rows": (1..=rows).map(row).collect::<Vec<_>>(),
                "machine": { "cpu": "A processor with a name", "flags": "avx2,".repeat(60), "cpus": 2 },
                "skipped": [{ "name": "fastd", "reason": "not installed" }] })
    };
    let all = json!({ "schema": document::ALL, "benches": [bench("lro", 12), bench("tunnel-of-a-long-name", 3), bench("one", 1)],
                      "failed": [{ "bench": "gso", "reason": "a-reason-of-one-word-that-is-longer-than-a-line-of-a-phone-can-be" }] });
    document::parse(&all.to_string()).unwrap()
}

/// Runs the browser on a file, and returns the final document.
fn dom(browser: &str, folder: &std::path::Path, file: &std::path::Path) -> String {
    let path = folder.join("dom.html");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]);
    command.args(["--window-size=1600,1200", "--virtual-time-budget=20000"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    command.arg(format!("file://{}", file.display()));
    command.stdin(Stdio::null()).stdout(File::create(&path).unwrap()).stderr(Stdio::null()).env("HOME", folder);
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the browser is not done after {PATIENCE:?}");
            }
        }
    };
    assert!(status.success(), "{status}");
    fs::read_to_string(path).unwrap()
}

/// Returns the findings of the script on a page, by width and colour scheme.
fn judged(browser: &str, folder: &std::path::Path, page: &str) -> Value {
    assert_eq!(page.matches(SCHEME).count(), 1, "another style sheet");
    let mut frames = String::new();
    for width in WIDTHS {
        for (name, always) in SCHEMES {
            let text = page.replace(SCHEME, always).replace('&', "&amp;").replace('"', "&quot;");
            frames += &format!(
                "<iframe name=\"{width} {name}\" style=\"width:{width}px;height:900px;border:0\" srcdoc=\"{text}\"></iframe>\n"
            );
        }
    }
    let file = folder.join("judge.html");
    fs::write(
        &file,
        format!("<!DOCTYPE html><meta charset=\"utf-8\">{frames}<pre id=\"found\"></pre><script>{SCRIPT}</script>"),
    )
    .unwrap();
    let dom = dom(browser, folder, &file);
    let (_, found) = dom.rsplit_once("<pre id=\"found\">").expect("the script has run");
    let found = found.split_once("</pre>").unwrap().0.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"))
}

#[test]
fn full_size_every_part_of_the_page_is_visible_and_readable() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let paths: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let Some(browser) = names.into_iter().find(|name| paths.iter().any(|path| path.join(name).exists())) else {
        return skip("not installed: chromium");
    };
    let folder = env::temp_dir().join(format!("segue-browser-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let page = html::page(&benches(), "2026-01-01, segue 0.2.0, on a machine");
    if let Some(path) = env::var_os("SEGUE_PAGE") {
        fs::write(path, &page).unwrap();
    }
    let found = judged(browser, &folder, &page);
    // Pages with faults, each of which is found.
    let faults = [
        ("overflow", page.replace("main{max-width:76rem", "main{min-width:100rem;max-width:200rem")),
        ("contrast", page.replace("--faint:#4b5563", "--faint:#d0d0d0")),
        ("empty chart", page.replace("class=\"bar\"", "class=\"none\"")),
        ("hidden", page.replace("table{", "table{height:0;overflow:hidden;display:none;")),
    ];
    let seen = faults.map(|(name, page)| (name, judged(browser, &folder, &page)));
    fs::remove_dir_all(&folder).unwrap();
    let frames = found.as_object().unwrap();
    assert_eq!(frames.len(), WIDTHS.len() * SCHEMES.len());
    for (frame, one) in frames {
        assert_eq!(one["faults"], json!([]), "{frame}");
        assert_eq!((&one["charts"], &one["tables"], &one["scripts"]), (&json!(3), &json!(3), &json!(0)), "{frame}");
        assert!(one["texts"].as_u64().unwrap() > 100, "{frame}: {one}");
    }
    for (name, found) in seen {
        assert!(found.to_string().contains(name), "no {name} is found: {found}");
    }
}
