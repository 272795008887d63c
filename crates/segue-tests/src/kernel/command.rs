//! The commands that set up interfaces.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs lines in batch mode of `ip` or `tc`.
pub(super) fn batch(program: &str, lines: &str) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("no pipe")?;
    stdin.write_all(lines.as_bytes()).map_err(|error| format!("{program}: {error}"))?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} -batch: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs a program until it exits; an error holds its stderr.
pub(super) fn run(words: &[&str]) -> Result<(), String> {
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("{}: {error}", words[0]))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
