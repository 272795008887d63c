//! Tests of calls that need no rights: the version, and refusals with the codes of the specification.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
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

#[test]
fn a_del_fails_as_long_as_the_plugin_for_addresses_fails() {
    let folder = std::env::temp_dir().join(format!("segue-cni-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    // It fails once.
    let script = r#"#!/bin/sh
read -r config
[ -e "$CNI_PATH/called" ] && exit 0
: > "$CNI_PATH/called"
echo '{"cniVersion":"1.1.0","code":11,"msg":"its store is locked","details":"try again"}'
exit 1
"#;
    let plugin = folder.join("host-local");
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.to_str().unwrap();
    let pod = [
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", path),
        ("PATH", "/bin"),
    ];
    let outcomes = [(); 3].map(|()| call(&pod, NET));
    fs::remove_dir_all(&folder).unwrap();
    // The error is the plugin's own.
    assert!(!outcomes[0].0 && outcomes[0].1["code"] == 11, "{outcomes:?}");
    assert_eq!(outcomes[0].1["msg"], "its store is locked");
    assert!(outcomes[1].0 && outcomes[2].0, "{outcomes:?}");
    // Nor is it a success where there is no plugin.
    let (done, error) = call(&pod[..3], NET);
    assert!(!done && error["code"] == 5, "{error}");
}
