//! Tests of the gateways' command line: plans, refusals, output, and that no interface or socket is left behind.

use std::fs;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Place, in_namespace, in_namespace_at};

/// Starts `$SEGUE gateway LINE` in the background and waits until its control socket answers.
fn up(line: &str) -> String {
    format!(
        "$SEGUE gateway {line} & pid=$!
for n in $(seq 400); do $SEGUE stat -j 2>/dev/null | grep -q '\"kind\":\"gateway\"' && break; sleep 0.05; done
"
    )
}

/// Start of a script: an interface without addresses, and a directory for named namespaces.
const BARE: &str = "ip addr flush dev peer0; ip link set dev peer0 addrgenmode none; ip addr flush dev peer0
mount -t tmpfs tmpfs /run
";

#[test]
fn a_gateway_comes_up_as_planned_with_its_tap_in_a_named_namespace_and_leaves_nothing_behind() {
    let script = format!(
        "{BARE}ip netns add red
ip -j link > /run/before; $SEGUE gateway peer0 tap:t0@red --tap-mtu 1400 --check; echo \"status $?\"
ip -j link > /run/after; cmp /run/before /run/after && ip -n red -br link show dev t0 2>&1
{}ip -n red -o link show dev t0; ls $SEGUE_RUNTIME_DIR
worker=$($SEGUE stat -j | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$worker/status | tr '\\n' ' '; echo
ip -d link show dev peer0 | grep -o 'promiscuity [0-9]*'
kill -USR1 $pid; for n in $(seq 100); do grep -q ' B in, ' /run/said && break; sleep 0.05; done
kill -TERM $pid; wait $pid; echo \"status $?\"
ip -n red -br link show dev t0 2>&1; ip -d link show dev peer0 | grep -o 'promiscuity [0-9]*'; ls -A $SEGUE_RUNTIME_DIR; cat /run/said >&2; echo end",
        up("peer0 tap:t0@red --tap-mtu 1400 -v 2> /run/said")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let expected = "\
peer0-t0 can be: peer0 <-> t0
  peer0           mtu 1500, packet socket
  t0              mtu 1400, TAP in red
  lro             trains to 65.5 kB or 1000 packets, profile strict
  memory          pages of 32 KiB
nothing was changed
status 0
Device \"t0\" does not exist.
";
    assert!(ran.stdout.starts_with(expected), "{ran:?}");
    for part in [" mtu 1400 ", ",UP", "peer0-t0.sock", "CapEff:\t0000000000000000", "Seccomp:\t2", "promiscuity 1\n"] {
        assert!(ran.stdout.contains(part), "{part}: {ran:?}");
    }
    assert!(!ran.stdout.contains("Uid:\t0\t"), "{ran:?}");
    assert!(ran.stdout.ends_with("status 0\nDevice \"t0\" does not exist.\npromiscuity 0\nend\n"), "{ran:?}");
    for line in [
        "note: peer0 has the larger MTU; its packets above 1400 do not fit t0",
        "ip -n red tuntap add dev t0 mode tap vnet_hdr    # TUNSETIFF",
        "ip -n red link set dev t0 mtu 1400    # RTM_NEWLINK",
        "ip -n red link set dev t0 up    # RTM_NEWLINK",
        "peer0-t0 is up: peer0 <-> t0\n",
        " B in, ",
        "peer0-t0 is down after ",
    ] {
        assert!(ran.stderr.contains(line), "{line} is missing: {ran:?}");
    }
}

#[test]
fn unsuitable_gateway_interfaces_are_refused_with_a_hint() {
    let script = format!(
        "{BARE}try() {{ $SEGUE gateway \"$@\"; echo \"status $?\"; echo --- >&2; }}
try eth0 tap:t0; try none tap:t0; try peer0 peer0; try peer0 tap:t0@nowhere; try peer0 tap:eth0; try peer0 lo --tap-mtu 1400
try peer0 tap:t0@/etc/hostname; try peer0 tap:t0 --max-bytes 9; try peer0 tap:a/b; try peer0 tap:t0 --name a/b
ls -A $SEGUE_RUNTIME_DIR; ip -br link show dev t0 2>&1"
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, ["1", "1", "2", "1", "1", "1", "1", "2", "2", "2"], "{ran:?}");
    assert!(ran.stdout.ends_with("\nDevice \"t0\" does not exist.\n"), "nothing is left: {ran:?}");
    for (index, (error, hint)) in [
        ("eth0 has the address 198.18.0.1/24", "segue gateway eth0 tap:lro0"),
        ("there is no interface none", "ip -br link"),
        ("both ends are the same", "segue gateway --help"),
        ("cannot enter the network namespace nowhere: No such file or directory", "sudo ip netns add nowhere"),
        ("cannot create eth0", "another name"),
        ("lo has the address 127.0.0.1/8", "sudo ip addr flush dev lo"),
        ("cannot enter the network namespace /etc/hostname", "ip netns list"),
        ("9 is not", ""),
        ("`tap:a/b` is no end of a gateway", "segue gateway --help"),
        ("`a/b` cannot be a gateway's name", "--name gw0"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = ran.stderr.split("---\n").nth(index).unwrap_or_default();
        assert!(text.contains("error: ") && text.contains("\ntry:"), "{index}: {text}");
        assert!(index == 7 || text.contains(error) && text.contains(hint), "{index}: {text}");
    }
}

/// Shell function `until_health STATUS`, which waits until `$SEGUE stat --health` exits with that status.
const HEALTH: &str = "until_health() { for n in $(seq 100); do $SEGUE stat --health >/dev/null 2>&1
test $? = $1 && break; sleep 0.1; done; }
";

/// Shell commands that make two veth pairs, one end of each for the gateway.
const PAIRS: &str = "for n in a b; do ip link add ${n}0 type veth peer name ${n}1
for dev in ${n}0 ${n}1; do ip link set dev $dev addrgenmode none up; done; done
";

#[test]
fn an_interface_that_was_set_down_and_then_deleted_ends_the_gateway() {
    for gone in ["ip link set dev a0 down; until_health 1; ip link del a0", "ip link del a1"] {
        let script = format!(
            "{BARE}{PAIRS}{HEALTH}{}$SEGUE stat --health; echo \"healthy $?\"; ip link set dev b0 down; until_health 1
$SEGUE stat -j; $SEGUE stat --health; echo \"healthy $?\"; ip link set dev b0 up; until_health 0
$SEGUE stat --health; echo \"healthy $?\"
{gone}; wait $pid; echo \"status $?\"",
            up("a0 b0")
        );
        let Some(ran) = in_namespace(&script) else { return };
        for part in ["healthy 0\n", "b0 is down", "healthy 1\n", "status 1\n"] {
            assert!(ran.stdout.contains(part), "{part}: {ran:?}");
        }
        assert_eq!(ran.stdout.matches("healthy 0\n").count(), 2, "{ran:?}");
        assert!(ran.stderr.contains("a0-b0 can no longer move packets: No such device"), "{ran:?}");
    }
}

#[test]
fn occupied_interface_pairs_and_tap_names_are_refused_by_check_and_run() {
    let script = format!(
        "{BARE}{PAIRS}ip netns add red; ip -n red link add t0 type veth; ip link add t1 type veth; ip tuntap add dev t2 mode tun
{}try() {{ echo \"== $*\" >&2; $SEGUE gateway \"$@\"; echo \"status $?\"; }}
for check in --check ''; do try b0 a0 --name gw1 $check; try a0 tap:t9 --name gw0 $check; try a0 tap:t0@red --name gw1 $check
try a0 tap:t1 --name gw1 $check; try a0 tap:t2 --name gw1 $check; try t2 a0 --name gw1 $check; done
try a0 b1 --name gw1 --check; kill -TERM $pid; wait $pid; try b0 a0 --name gw0 --check",
        up("a0 b0 --name gw0")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    let round = ["1", "1", "1", "1", "1", "2"];
    assert_eq!(statuses, [&round[..], &round, &["0", "0"]].concat(), "{ran:?}");
    let texts: Vec<&str> = ran.stderr.split("== ").skip(1).collect();
    for (index, error) in [
        "another gateway already uses b0 and a0",
        "gw0 is already running",
        "cannot create t0",
        "cannot create t1",
        "cannot create t2",
        "t2 carries no Ethernet frames",
    ]
    .into_iter()
    .enumerate()
    {
        for text in [texts[index], texts[index + 6]] {
            assert!(text.contains(error), "{index}: {text}");
            assert!(!text.contains("cannot create") || text.contains("another name: tap:NAME"), "{text}");
        }
    }
}

#[test]
fn a_tap_that_is_held_is_neither_made_again_nor_an_end_of_the_same_pair() {
    let script = format!(
        "{BARE}{PAIRS}ip tuntap add dev q1 mode tap
{}try() {{ echo \"== $*\" >&2; timeout 9 $SEGUE gateway \"$@\"; echo \"status $?\"; }}
for check in --check ''; do try b0 tap:q0 --name gw1 $check; try a0 q0 --name gw1 $check; try q0 a0 --name gw1 $check; done
try b0 tap:q1 --check; kill -TERM $pid; wait $pid; try a0 tap:q0 --check",
        up("a0 tap:q0 --name gw0")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, [&["1"; 6][..], &["0"; 2]].concat(), "{ran:?}");
    let texts: Vec<&str> = ran.stderr.split("== ").skip(1).collect();
    for (at, text) in texts[..6].iter().enumerate() {
        let error = if at % 3 == 0 { "another program holds q0" } else { "another gateway already uses" };
        assert!(text.contains(error), "{at}: {text}");
    }
}

/// Exit status of a script that is not permitted to create a device node.
const NO_NODE: i32 = 77;

/// Tests that the TAPs of a gateway of another user, which has no packet socket and may open only them, are in use by
/// it alone. The script creates the device node that it opens, so that the mode of the machine's node does not matter.
#[test]
fn a_gateway_of_another_user_between_its_taps_has_them_for_itself() {
    let script = format!(
        "{BARE}mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun || exit {NO_NODE}
mount -t sysfs sysfs /sys
for t in q0 q1; do ip tuntap add dev $t mode tap vnet_hdr user 65534; ip link set dev $t up; done
mkdir -m 755 /run/other; chown 65534 /run/other; install -m 755 $SEGUE /run/segue
setpriv --reuid 65534 --regid 65534 --clear-groups env SEGUE_RUNTIME_DIR=/run/other \\
/run/segue gateway tap:q0 tap:q1 --name other & pid=$!
for n in $(seq 400); do SEGUE_RUNTIME_DIR=/run/other $SEGUE stat -j | grep -q other && break; sleep 0.05; done
$SEGUE gateway q1 q0 --check; echo \"status $?\"; kill -TERM $pid; wait $pid
$SEGUE gateway q1 q0 --check >&2; echo \"status $?\""
    );
    let Some(ran) = in_namespace(&script) else { return };
    if ran.code == Some(NO_NODE) {
        return segue_lab::skip_this_test("no device node can be made here (CAP_MKNOD)");
    }
    assert!(ran.stdout.ends_with("status 1\nstatus 0\n"), "{ran:?}");
    assert!(ran.stderr.contains("another gateway already uses q1 and q0"), "{ran:?}");
}

#[test]
fn a_router_says_that_the_kernel_forwards_too() {
    // The gateway looks once a second: after the warning a second look must not repeat it.
    let script = format!(
        "{BARE}{PAIRS}ip addr add 198.18.1.1/24 dev a0; ip addr add 198.18.2.1/24 dev b0
{HEALTH}{}$SEGUE stat --health; echo \"healthy $?\"; sysctl -qw net.ipv6.conf.all.forwarding=1; until_health 1
for n in $(seq 100); do grep -q 'forwarding=0$' /run/said && break; sleep 0.1; done; sleep 1.2
$SEGUE stat --health -j; echo \"healthy $?\"; sysctl -qw net.ipv6.conf.all.forwarding=0; until_health 0
$SEGUE stat --health; echo \"healthy $?\"; kill -TERM $pid; wait $pid; echo \"status $?\"; cat /run/said >&2",
        up("a0 b0 --route --name gw0 2> /run/said")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let ends: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("healthy ")).collect();
    assert_eq!(ends, ["healthy 0", "healthy 1", "healthy 0"], "{ran:?}");
    assert!(ran.stdout.contains("the kernel forwards too") && ran.stdout.ends_with("status 0\n"), "{ran:?}");
    let warning = "sysctl -w net.ipv6.conf.a0.forwarding=0 net.ipv6.conf.b0.forwarding=0\n";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "once: {ran:?}");
}

#[test]
fn options_that_say_how_packets_are_joined_do_not_go_with_no_lro() {
    let script = format!(
        "{BARE}{PAIRS}try() {{ $SEGUE gateway a0 b0 --check --no-lro \"$@\" >/dev/null; echo \"status $?\"; }}
try --profile linux; try --max-packets 5; try --max-bytes 9000; try --hold-us 5; try --ack-aggregation --max-packets 5
try; try --ack-aggregation --hold-us 1000000; try --ack-aggregation --profile lro --max-acks 4"
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, [&["2"; 5][..], &["0"; 3]].concat(), "{ran:?}");
    for option in ["--profile", "--max-packets", "--max-bytes", "--hold-us"] {
        assert!(ran.stderr.contains(&format!("`{option}` does not go with `--no-lro`")), "{option}: {ran:?}");
    }
}

#[test]
fn json_says_what_is_planned_up_and_down() {
    let script = format!(
        "{BARE}$SEGUE gateway peer0 tap:t0 --profile linux --hold-us 20 --max-bytes 9000 --max-packets 6 --check -j
{}kill -INT $pid; wait $pid; cat /run/events",
        up("peer0 tap:t0 --name gw0 --no-lro -j > /run/events")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let values: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [check, up, down] = &values[..] else { panic!("{ran:?}") };
    for (value, event) in [(check, "check"), (up, "up"), (down, "down")] {
        assert_eq!((value["schema"].as_str(), value["event"].as_str()), (Some("segue.gateway/1"), Some(event)));
    }
    let plan = &check["plan"];
    assert_eq!((plan["profile"].as_str(), plan["hold_us"].as_u64()), (Some("linux:6.18"), Some(20)));
    assert_eq!((plan["max_bytes"].as_u64(), plan["max_packets"].as_u64()), (Some(9000), Some(6)));
    assert_eq!((plan["in"]["kind"].as_str(), plan["out"]["kind"].as_str()), (Some("interface"), Some("tap")));
    assert_eq!((up["plan"]["name"].as_str(), up["plan"]["lro"].as_bool()), (Some("gw0"), Some(false)));
    assert_eq!(up["offloads"]["t0.tap_tso4"]["on"], true);
    assert!(down["instance"]["ports"]["peer0"]["receive"].is_object());
}

#[test]
fn front_ends_that_come_and_go_all_the_time_fill_no_log() {
    for form in ["text", "logfmt"] {
        let place = Place::new();
        let (socket, done) = (place.path().join("guest"), place.path().join("done"));
        let script = format!(
            "{BARE}{}for n in $(seq 600); do [ -e {} ] && break; sleep 0.05; done
kill -TERM $pid; wait $pid; echo \"status $?\"",
            up(&format!("peer0 vhost:{} --log-format {form}", socket.display())),
            done.display()
        );
        let flood = || {
            let begin = Instant::now();
            let mut connected = 0;
            while connected < 300 && begin.elapsed() < Duration::from_secs(30) && !done.exists() {
                connected += u32::from(UnixStream::connect(&socket).is_ok());
                thread::sleep(Duration::from_millis(10));
            }
            fs::write(&done, "").unwrap();
        };
        let ran = thread::scope(|scope| {
            scope.spawn(flood);
            let ran = in_namespace_at(&script, &place);
            // A gateway that could not start has no front ends.
            fs::write(&done, "").unwrap();
            ran
        });
        let Some(ran) = ran else { return };
        assert!(ran.stdout.ends_with("status 0\n"), "{form}: {ran:?}");
        let written = ran.stderr.lines().filter(|line| line.contains("front end")).count();
        assert!((2..=100).contains(&written), "{form}: {written} lines: {ran:?}");
    }
}
