//! Tests of configurations that are too large: each is answered quickly, and one that cannot run is refused before an
//! attempt.

use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::Duration;

use segue_lab::Process;
use segue_tests::capture::Directory;
use segue_tests::find_program;

/// Longest duration of the check of a file. A file of the size of these takes a second or a few.
const PATIENCE: Duration = Duration::from_secs(120);

/// Checks a configuration with a stack of 8 MiB, which limits command lines to 2 MiB; returns the exit status and the
/// errors.
#[track_caller]
fn check(text: &str) -> Option<(Option<i32>, String)> {
    let Some(program) = find_program() else {
        segue_lab::skip_this_test("the program is not built");
        return None;
    };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, text).unwrap();
    let script = format!("ulimit -s 8192; exec {} run --check -c {}", program.display(), file.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let mut process = Process::spawn(command, b"").unwrap();
    match process.wait(PATIENCE) {
        Ok(status) => Some((status.code(), process.stderr())),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn hundred_thousand_unknown_keys_are_refused_soon_and_some_are_named() {
    let mut text = "[[tunnel]]\ndev = \"sg0\"\n".to_owned();
    (0..100_000).for_each(|key| writeln!(text, "k{key}=1").unwrap());
    let Some((status, errors)) = check(&text) else { return };
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("unknown key `k0`") && errors.contains("there are more than 50 errors"), "{errors}");
    assert!(errors.len() < 64 << 10, "{} bytes", errors.len());
}

#[test]
fn a_command_line_that_no_process_takes_is_refused_by_the_check() {
    let mut text = String::new();
    for number in 0..4000 {
        let (high, low) = (number / 250, number % 250 + 1);
        let addresses: Vec<String> =
            (0..12).map(|more| format!("\"2001:db8:1111:2222:{number:x}:3333:4444:{more:x}/128\"")).collect();
        writeln!(
            text,
            "[[tunnel]]\ndev = \"t{number}\"\nlocal = \"198.18.0.1\"\nremote = \"198.19.{high}.{low}\"\n\
             encap = \"gue\"\naddr = [{}]",
            addresses.join(", ")
        )
        .unwrap();
    }
    let Some((status, errors)) = check(&text) else { return };
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("the command line of `t0` is too long"), "{errors}");
}
