//! A user without privileges: hosts and a link in a user namespace, made by a process of one thread (hence no test harness).

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use segue_lab::{End, Family, Host, LabError, LinkForm, Options, connect, enter_user_namespace, reach, run, which};

const CHILD: &str = "SEGUE_LAB_TEST_AS_USER";
const NAME: &str = "an_unprivileged_user_has_a_lab_too";

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(CHILD).is_some() {
        as_user();
        return ExitCode::SUCCESS;
    }
    let mut child = Command::new("/proc/self/exe");
    child.env(CHILD, "1");
    if std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0) {
        child.uid(65_534).gid(65_534);
    }
    match child.status() {
        Ok(status) if status.success() => {
            println!("test {NAME} ... ok");
            ExitCode::SUCCESS
        }
        Ok(status) => {
            println!("test {NAME} ... FAILED ({status})");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("test {NAME} ... skipped: cannot become another user: {error}");
            ExitCode::SUCCESS
        }
    }
}

fn as_user() {
    match enter_user_namespace() {
        Ok(made) => assert!(made, "the user was privileged"),
        Err(error) => {
            assert!(error.hint().is_some());
            return println!("skipped: {error}");
        }
    }
    assert!(!enter_user_namespace().unwrap(), "privileged in the user namespace");
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    connect(&a, &b, LinkForm::Nic).unwrap();
    for family in Family::ALL {
        let (from, to) = (End::A.address(0, *family), End::B.address(0, *family));
        reach((&a, from), (&b, to), Duration::from_secs(5)).unwrap();
    }
    a.run("touch", &["/run/segue/x"]).unwrap();
    assert_eq!(b.run("ls", &["/run/segue"]).unwrap(), "");
    drop((a, b));
    if which("iperf3").is_none() {
        return println!("skipped the load: no iperf3");
    }
    let cases = vec!["link".into()];
    let options = Options { seconds: 1, runs: 1, families: vec![Family::V4], cases, ..Options::default() };
    match run(&options, &mut ()) {
        Ok(table) => assert!(table.row("link", 4).unwrap().metrics.find("gbps").unwrap().min() > 0.1),
        Err(LabError::MissingPrograms(list)) => println!("skipped the load: {list:?}"),
        Err(error) => panic!("{error}"),
    }
}
