//! Tests of Ctrl-C in the middle of a measurement, once and twice, and of a signal that stays ignored. The signals go
//! to a process of its own (hence no test harness).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use segue_lab::{Family, Options, Step, interrupt, run, skip, unavailable, which};

const CHILD: &str = "SEGUE_LAB_TEST_INTERRUPTED";
const IGNORED: &str = "a_hangup_that_was_ignored_stays_so";

fn main() -> ExitCode {
    let tests: [(&str, u32); 2] = [("one_interrupt_cleans_up", 1), ("a_second_interrupt_ends_at_once", 2)];
    if std::env::args().any(|word| word == "--list") {
        tests.iter().map(|(name, _)| *name).chain([IGNORED]).for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if let Some(part) = std::env::var_os(CHILD) {
        return if part == IGNORED { tell() } else { measure() };
    }
    a_hangup_that_was_ignored_stays_so();
    println!("test {IGNORED} ... ok");
    let missing = unavailable().or_else(|| which("iperf3").is_none().then(|| "iperf3 is not installed".into()));
    if let Some(why) = missing {
        tests.iter().for_each(|(name, _)| skip(name, &why));
        return ExitCode::SUCCESS;
    }
    for (name, signals) in tests {
        interrupted(signals);
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// Prints for each line of stdin whether a signal has arrived.
fn tell() -> ExitCode {
    interrupt::catch().unwrap();
    println!("caught");
    let lines = io::stdin().lines();
    lines.for_each(|_| println!("{}", interrupt::pending()));
    ExitCode::SUCCESS
}

fn a_hangup_that_was_ignored_stays_so() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\""]).arg(std::env::current_exe().unwrap()).env(CHILD, IGNORED);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stdin = child.stdin.take().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "caught");
    for (signal, is_seen) in [("HUP", "false"), ("TERM", "true")] {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
        assert!(sent.success());
        stdin.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), is_seen, "{signal}");
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Runs a measurement of one minute, which the test interrupts.
fn measure() -> ExitCode {
    interrupt::catch().unwrap();
    let options =
        Options { seconds: 60, runs: 1, families: vec![Family::V4], cases: vec!["link".into()], ..Options::default() };
    let mut begun = |step: &Step| {
        if matches!(step, Step::Measuring(_)) {
            println!("measuring");
        }
    };
    match run(&options, &mut begun) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn interrupted(signals: u32) {
    let mut child = Command::new("/proc/self/exe").env(CHILD, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "measuring");
    let begin = Instant::now();
    let grandchildren = loop {
        let found = children(child.id());
        // The server and the client.
        if found.len() == 2 || begin.elapsed() > Duration::from_secs(25) {
            break found;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(grandchildren.len(), 2, "iperf3 does not run");
    let begin = Instant::now();
    for _ in 0..signals {
        let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
        assert!(sent.success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    if signals == 1 {
        assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
    }
    let begin = Instant::now();
    while grandchildren.iter().any(|pid| runs(pid)) {
        assert!(begin.elapsed() < Duration::from_secs(20), "one of {grandchildren:?} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the process ids of the children of `parent`.
fn children(parent: u32) -> Vec<String> {
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let field = |pid: &String| stat(pid).and_then(|fields| fields.split(' ').nth(1).map(str::to_string));
    names
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        .filter(|pid| field(pid) == Some(parent.to_string()))
        .collect()
}

fn runs(pid: &str) -> bool {
    stat(pid).is_some_and(|fields| !fields.starts_with(['Z', 'X']))
}

/// Returns the fields of `/proc/PID/stat` after the process name, which may contain any characters.
fn stat(pid: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ").map(|(_, fields)| fields.to_string())
}
