//! Records the commit and the target that the program is built from, for `segue --version -v`.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=SEGUE_COMMIT={commit}");
    println!("cargo:rustc-env=SEGUE_TARGET={}", std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned()));
    println!("cargo:rerun-if-changed=build.rs");
    // A commit made later is only seen when the file that names it is watched.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
