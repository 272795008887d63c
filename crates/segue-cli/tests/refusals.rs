//! Tests that refusals by the host are distinguished: a missing device, a missing capability, a security module, a
//! container, a name or port in use.

mod common;

use std::os::unix::fs::FileTypeExt;
use std::process::Command;

use common::{Place, Ran, SEGUE, cannot_unshare, in_namespace};
use landlock::{ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr};

/// Exit status of a script that is not permitted to create a device node.
const NO_NODE: i32 = 77;

const LINE: &str = "tunnel dev sg0 remote 198.18.0.2 encap gue";

/// Runs `$SEGUE LINE` and the same with `-j` after `before`; returns the text and the JSON error.
#[track_caller]
fn refused(before: &str, line: &str, wrap: &str) -> Option<(Ran, serde_json::Value)> {
    // A copy that every user can reach, wherever the program was built.
    let copy = "exec 3<$SEGUE; mount -t tmpfs -o mode=755 none /mnt
install -m 755 /proc/self/fd/3 /mnt/segue; exec 3<&-; SEGUE=/mnt/segue";
    let script = format!("{copy}\n{before}\n{wrap} $SEGUE {line}; echo \"status $?\"; {wrap} $SEGUE {line} -j");
    let ran = in_namespace(&script)?;
    if ran.code == Some(NO_NODE) {
        segue_lab::skip_this_test("no device node can be made here (CAP_MKNOD)");
        return None;
    }
    let (status, json) = ran.stdout.split_once('\n').unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(status, "status 1", "{ran:?}");
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let error = value["error"].clone();
    assert!(ran.stderr.starts_with("error: "), "{ran:?}");
    assert!(ran.stderr.contains("\nwhy:  ") && ran.stderr.contains("\ntry:  "), "{ran:?}");
    Some((ran, error))
}

#[test]
fn a_missing_device_file_is_told_from_a_missing_right() {
    let Some((ran, error)) = refused("mount -t tmpfs none /dev/net", LINE, "env -u container") else { return };
    assert_eq!((error["kind"].as_str(), error["os_error"].as_i64()), (Some("no_tun"), Some(i64::from(libc::ENOENT))));
    assert!(ran.stderr.contains("/dev/net/tun: No such file or directory"), "{ran:?}");
    assert!(ran.stderr.contains("--device /dev/net/tun"), "{ran:?}");
}

#[test]
fn a_container_is_named_with_the_option_that_it_needs() {
    let before = "mount -t tmpfs none /dev/net; mount -t tmpfs none /run; touch /run/.containerenv";
    let Some((ran, error)) = refused(before, LINE, "") else { return };
    assert_eq!(error["kind"], "no_tun");
    assert!(ran.stderr.contains("this is a podman container"), "{ran:?}");
    assert!(ran.stderr.contains("podman run --cap-add NET_ADMIN --device /dev/net/tun"), "{ran:?}");
}

#[test]
fn a_file_mode_that_forbids_is_a_missing_right() {
    let before = format!("mount -t tmpfs none /dev/net; mknod -m 600 /dev/net/tun c 10 200 || exit {NO_NODE}");
    let wrap = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let Some((ran, error)) = refused(
        &format!(
            "{before}; chmod 777 $SEGUE_RUNTIME_DIR; chown 65534 $SEGUE_RUNTIME_DIR; chmod 755 $SEGUE_RUNTIME_DIR"
        ),
        LINE,
        wrap,
    ) else {
        return;
    };
    assert_eq!(
        (error["kind"].as_str(), error["os_error"].as_i64()),
        (Some("no_permission"), Some(i64::from(libc::EACCES))),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("uid 65534"), "{ran:?}");
}

#[test]
fn without_cap_net_admin_it_says_so_and_what_to_do_once() {
    let before = format!(
        "rm -f /run/.containerenv; mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200 || exit {NO_NODE}
chown 65534 $SEGUE_RUNTIME_DIR"
    );
    let wrap = "env -u container setpriv --reuid 65534 --regid 65534 --clear-groups";
    let Some((ran, error)) = refused(&before, LINE, wrap) else { return };
    assert_eq!(
        (error["kind"].as_str(), error["os_error"].as_i64()),
        (Some("no_permission"), Some(i64::from(libc::EPERM))),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("error: cannot create sg0: Operation not permitted"), "{ran:?}");
    assert!(ran.stderr.contains("CAP_NET_ADMIN"), "{ran:?}");
    if !ran.stderr.contains("container") {
        assert!(ran.stderr.contains("sudo ip tuntap add dev sg0 mode tun user $USER vnet_hdr"), "{ran:?}");
        assert!(ran.stderr.contains("sudo setcap cap_net_admin+ep"), "{ran:?}");
    }
}

#[test]
fn a_sandbox_that_denies_is_told_from_a_missing_right() {
    if let Some(reason) = cannot_unshare() {
        return segue_lab::skip_this_test(reason);
    }
    if !std::fs::metadata("/dev/net/tun").is_ok_and(|data| data.file_type().is_char_device()) {
        return segue_lab::skip_this_test("/dev/net/tun is not a character device");
    }
    let place = Place::new();
    let mut command = common::command("unshare", &place);
    let script = format!(
        "ip link set lo up; ip addr add 198.18.0.1/24 dev lo; {SEGUE} {LINE}; echo \"status $?\"; {SEGUE} {LINE} -j"
    );
    command.args(["--net", "timeout", "20", "sh", "-c", &script]);
    // Landlock applies to the calling thread and its child processes: they may use everything but /dev/net.
    let output = std::thread::spawn(move || {
        let all = AccessFs::from_all(ABI::V1);
        let rules = Ruleset::default().handle_access(all).and_then(Ruleset::create);
        let mut rules = rules.expect("a ruleset");
        let top = std::fs::read_dir("/").expect("a root").flatten().map(|entry| entry.path());
        let top = top.filter(|path| path != std::path::Path::new("/dev"));
        let paths = top.chain(["/dev/null", "/dev/urandom"].map(std::path::PathBuf::from));
        for path in paths.filter(|path| std::fs::metadata(path).is_ok()) {
            let access = if path.is_dir() { all } else { all & AccessFs::from_file(ABI::V1) };
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path).expect("a path"), access)).expect("a rule");
        }
        let status = rules.restrict_self().expect("the sandbox");
        if status.ruleset == landlock::RulesetStatus::NotEnforced {
            return None;
        }
        Some(command.output().expect("unshare runs"))
    })
    .join()
    .expect("no fault");
    let Some(output) = output else {
        return segue_lab::skip_this_test("this kernel has no Landlock");
    };
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let (status, json) = stdout.split_once('\n').unwrap_or_else(|| panic!("{stdout} {stderr}"));
    assert_eq!(status, "status 1", "{stderr}");
    let value: serde_json::Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}"));
    let error = &value["error"];
    assert_eq!(
        (error["kind"].as_str(), error["os_error"].as_i64()),
        (Some("denied"), Some(i64::from(libc::EACCES))),
        "{stderr}"
    );
    assert!(stderr.contains("a security module or sandbox refused"), "{stderr}");
    assert!(stderr.contains("DeviceAllow=/dev/net/tun"), "{stderr}");
}

#[test]
fn a_name_a_port_and_an_address_that_cannot_be_had_are_named() {
    let before = "ip link add sg0 type veth peer name sg0peer";
    let Some((ran, error)) = refused(before, LINE, "") else { return };
    assert_eq!(error["kind"], "in_use");
    assert!(ran.stderr.contains("ip -d link show dev sg0"), "{ran:?}");

    let before = "$SEGUE tunnel dev sg1 remote 198.18.0.2 encap gue -q &
for n in $(seq 400); do $SEGUE stat sg1 >/dev/null 2>&1 && break; sleep 0.05; done";
    let Some((ran, error)) = refused(before, &format!("{LINE} --check"), "") else { return };
    assert_eq!(
        (error["kind"].as_str(), error["os_error"].as_i64()),
        (Some("in_use"), Some(i64::from(libc::EADDRINUSE)))
    );
    assert!(ran.stderr.contains("cannot listen on UDP 198.18.0.1:6080: Address already in use"), "{ran:?}");

    let Some((ran, error)) = refused("", &format!("{LINE} local 198.18.9.9"), "") else { return };
    assert_eq!(error["kind"], "unreachable");
    assert!(ran.stderr.contains("198.18.9.9 is not an address of this host"), "{ran:?}");

    let Some((ran, error)) = refused("", "tunnel dev sg0 remote 203.0.113.9 encap gue", "") else { return };
    assert_eq!(error["kind"], "unreachable");
    assert!(ran.stderr.contains("no route to 203.0.113.9: Network is unreachable"), "{ran:?}");
}

#[test]
fn a_table_of_peers_that_does_not_end_is_refused_before_it_fills_the_memory() {
    let words = "tunnel dev sg0 local 198.18.0.1 peers /dev/zero";
    let Some((ran, error)) = refused("ulimit -v 4000000", words, "") else { return };
    assert_eq!(error["os_error"].as_i64(), None, "{ran:?}");
    assert!(ran.stderr.contains("/dev/zero: it has more than "), "{ran:?}");
    let ran = common::segue("peer sync sg0 /dev/zero");
    assert!(ran.code == Some(1) && ran.stderr.contains("/dev/zero: it has more than "), "{ran:?}");
}

#[test]
fn a_tunnel_works_in_a_user_namespace_without_root() {
    if let Some(reason) = cannot_unshare() {
        return segue_lab::skip_this_test(reason);
    }
    let place = Place::new();
    let inside =
        "ip link set lo up; ip link add eth0 type veth peer name peer0; ip link set peer0 up; ip addr add 198.18.0.1/24 dev eth0; ip link set eth0 up
$SEGUE tunnel dev sg0 remote 198.18.0.2 encap gue addr 198.19.0.1/30 & pid=$!
for n in $(seq 400); do $SEGUE stat sg0 >/dev/null 2>&1 && break; sleep 0.05; done
ip -br addr show dev sg0; kill -INT $pid; wait $pid; echo \"status $?\"; ls -A $SEGUE_RUNTIME_DIR";
    // A user without capabilities, with the device file in its usual mode.
    let script = format!(
        "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200; chown 65534:65534 $SEGUE_RUNTIME_DIR
mkdir /dev/net/bin; cp $SEGUE /dev/net/bin/segue; chmod -R 755 /dev/net/bin; export SEGUE=/dev/net/bin/segue
cat > /dev/net/inside <<'END'\n{inside}\nEND
setpriv --reuid 65534 --regid 65534 --clear-groups unshare -r --net timeout 20 sh /dev/net/inside"
    );
    let mut command = common::command("unshare", &place);
    let output = command.args(["--mount", "sh", "-c", &script]).output().expect("unshare runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if stderr.contains("unshare failed") || stderr.contains("unshare: ") {
        return segue_lab::skip_this_test(&format!("no user namespaces here: {stderr}"));
    }
    assert!(stdout.contains("198.19.0.1/30") && stdout.ends_with("status 0\n"), "{stdout} {stderr}");
    assert!(stderr.contains("without capabilities, sandboxed"), "{stderr}");
    assert!(!Command::new("ip").args(["link", "show", "dev", "sg0"]).output().is_ok_and(|out| out.status.success()));
}
