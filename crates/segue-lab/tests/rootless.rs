//! Test of a user without privileges: hosts and a link in a user namespace, created by a process of one thread (hence
//! no test harness).

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use segue_lab::{
    Family, Host, LabError, LinkForm, Options, Peer, connect, enter_user_namespace, reach, run, skip, which,
};

const CHILD: &str = "SEGUE_LAB_TEST_AS_USER";
/// Exit status of the child that cannot run the test.
const SKIPPED: u8 = 77;
const NAME: &str = "an_unprivileged_user_has_a_lab_too";

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(CHILD).is_some() {
        return match as_user() {
            None => ExitCode::SUCCESS,
            Some(reason) => {
                println!("{reason}");
                ExitCode::from(SKIPPED)
            }
        };
    }
    let mut child = Command::new("/proc/self/exe");
    child.env(CHILD, "1");
    if std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0) {
        child.uid(65_534).gid(65_534);
    }
    match child.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => {
            println!("test {NAME} ... ok");
            ExitCode::SUCCESS
        }
        Ok(output) if output.status.code() == Some(SKIPPED.into()) => {
            skip(NAME, &String::from_utf8_lossy(&output.stdout));
            ExitCode::SUCCESS
        }
        Ok(output) => {
            println!("{}test {NAME} ... FAILED ({})", String::from_utf8_lossy(&output.stdout), output.status);
            ExitCode::FAILURE
        }
        Err(error) => {
            skip(NAME, &format!("cannot become another user: {error}"));
            ExitCode::SUCCESS
        }
    }
}

/// Runs the test itself, in a process of a user without privileges. Returns why it cannot run, or `None` where it ran:
/// the user may not write to the file of skips, so the parent does.
fn as_user() -> Option<String> {
    match enter_user_namespace() {
        Ok(made) => assert!(made, "the user was privileged"),
        Err(error) => {
            assert!(error.hint().is_some());
            return Some(error.to_string());
        }
    }
    assert!(!enter_user_namespace().unwrap(), "privileged in the user namespace");
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    connect(&a, &b, LinkForm::Nic).unwrap();
    for family in Family::ALL {
        let (from, to) = (Peer::A.address(0, *family), Peer::B.address(0, *family));
        reach((&a, from), (&b, to), Duration::from_secs(5)).unwrap();
    }
    a.run("touch", &["/run/segue/x"]).unwrap();
    assert_eq!(b.run("ls", &["/run/segue"]).unwrap(), "");
    drop((a, b));
    if which("iperf3").is_none() {
        return Some("iperf3 is not installed".into());
    }
    let cases = vec!["link".into()];
    let options = Options { seconds: 1, runs: 1, families: vec![Family::V4], cases, ..Options::default() };
    match run(&options, &mut ()) {
        Ok(table) => assert!(table.row("link", 4).unwrap().metrics.find("gbps").unwrap().min() > 0.1),
        Err(LabError::MissingPrograms(list)) => return Some(format!("not installed: {list:?}")),
        Err(error) => panic!("{error}"),
    }
    None
}
