//! Tests of calls that need no rights: the version, and refusals with the codes of the specification.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

const NET: &str =
    r#"{"cniVersion":"1.1.0","name":"fleet","type":"segue-cni","ipam":{"type":"host-local","subnet":"198.19.1.0/24"}}"#;

fn call(variables: &[(&str, &str)], input: &str) -> (bool, Value) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_segue-cni"))
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn the_version_needs_nothing_else() {
    let (done, answer) = call(&[("CNI_COMMAND", "VERSION")], r#"{"cniVersion":"1.1.0"}"#);
    assert!(done);
    assert_eq!(answer["supportedVersions"], serde_json::json!(["0.4.0", "1.0.0", "1.1.0"]));
}

#[test]
fn wrong_calls_have_the_codes_of_the_specification() {
    let pod = |command| {
        [("CNI_COMMAND", command), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/nonexistent"), ("CNI_IFNAME", "eth0")]
    };
    for (variables, input, code) in [
        (&pod("ADD")[..], "", 6),
        (&pod("ADD")[..], "{}", 1),
        (&pod("ADD")[..], &NET.replace("1.1.0", "2.0.0"), 1),
        (&pod("ADD")[..], &NET.replace("fleet", "../fleet"), 7),
        (&pod("ADD")[..], &NET.replace("host-local", "../bin/sh"), 7),
        (&pod("ADD")[..], &NET.replace("subnet", "sub"), 11),
        (&pod("ADD")[..], &NET.replace("fleet", r#"fleet","dev":"nosuch0"#), 11),
        (&pod("ADD")[..1], NET, 4),
        (&pod("ADD")[..2], NET, 4),
        (&pod("DANCE")[..], NET, 4),
        (&[][..], NET, 4),
        (&pod("CHECK")[..], NET, 7),
        (&pod("STATUS")[..], &NET.replace("fleet", r#"fleet","dev":"nosuch0"#), 50),
    ] {
        let (done, answer) = call(variables, input);
        assert!(!done, "{variables:?} {input}");
        assert_eq!(answer["code"], code, "{variables:?} {input}: {answer}");
        assert!(!answer["msg"].as_str().unwrap().is_empty() && answer["cniVersion"] == "1.1.0");
    }
    // `cnitool gc` names no attachments, which says nothing about those that there are.
    assert!(call(&pod("GC"), NET).0);
}
