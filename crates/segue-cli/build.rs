//! Records the commit and the target that the program is built from, for `segue --version -v`.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=SEGUE_COMMIT={commit}");
    println!("cargo:rustc-env=SEGUE_TARGET={}", std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned()));
    println!("cargo:rustc-env=SEGUE_DATE={}", date());
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=build.rs");
    // A commit made later is only seen when the file that names it is watched.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

/// Returns the date of the manual pages: that of SOURCE_DATE_EPOCH where it is set, for reproducible builds, else of
/// the commit.
fn date() -> String {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let shown = epoch.and_then(|epoch| {
        let output = Command::new("date").args(["-u", "-d", &format!("@{epoch}"), "+%Y-%m-%d"]).output().ok()?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    });
    shown.or_else(|| git(&["log", "-1", "--format=%cs"])).unwrap_or_else(|| "1970-01-01".to_owned())
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
