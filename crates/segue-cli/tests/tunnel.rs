//! Tests of a tunnel in a namespace from start to end: plan, start, queries, stop, and that no interface or socket is
//! left behind.

mod common;

use common::{Place, in_namespace, in_namespace_at};
use serde_json::Value;

const LINE: &str =
    "tunnel dev sg0 mode ipip local 198.18.0.1 remote 198.18.0.2 encap gue encap-remcsum addr 198.19.0.1/30";

/// Shell command that succeeds while a process of segue runs; zombies do not count.
const RUNS: &str = "ps -e -o stat=,comm= | grep -v '^Z' | grep -q segue";

/// Starts `$SEGUE LINE` in the background and waits until its interface is up.
fn up(line: &str) -> String {
    format!(
        "$SEGUE {line} & pid=$!
for n in $(seq 400); do ip link show dev sg0 up 2>/dev/null | grep -q sg0 && $SEGUE stat sg0 -j >/dev/null 2>&1 && break; sleep 0.05; done
"
    )
}

#[test]
fn check_says_what_would_be_and_changes_nothing() {
    let script = format!(
        "ip -j link > before; ip -j addr >> before
$SEGUE {LINE} --check; echo \"status $?\"
$SEGUE {LINE} --dry-run -j > plan.json
ip -j link > after; ip -j addr >> after
cmp before after && echo same
ls $SEGUE_RUNTIME_DIR
cat plan.json >&2"
    );
    let place = Place::new();
    let Some(ran) = in_namespace_at(
        &format!("cd {}/..; mkdir -p w-$$; cd w-$$; {script}; cd ..; rm -r w-$$", place.path().display()),
        &place,
    ) else {
        return;
    };
    let expected = "\
sg0 can be: ipip in GUE, 198.18.0.1 -> 198.18.0.2:6080
  mtu       1460  = 1500 (eth0) - 40 (IPv4 20, UDP 8, GUE 12)
  address   198.19.0.1/30
";
    assert!(ran.stdout.starts_with(expected), "{ran:?}");
    assert!(ran.stdout.ends_with("nothing was changed\nstatus 0\nsame\n"), "{ran:?}");
    let plan: Value = serde_json::from_str(&ran.stderr).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!((plan["schema"].as_str(), plan["event"].as_str()), (Some("segue.tunnel/1"), Some("check")));
    assert_eq!(
        (plan["mtu"].as_u64(), plan["link_mtu"].as_u64(), plan["link"].as_str()),
        (Some(1460), Some(1500), Some("eth0"))
    );
    assert_eq!(plan["plan"]["encap_remcsum"], true);
}

#[test]
fn the_interface_comes_up_as_planned_and_leaves_nothing_behind() {
    let script = format!(
        "{}ip -br addr show dev sg0; ip -o link show dev sg0
ls $SEGUE_RUNTIME_DIR
kill -TERM $pid; wait $pid; echo \"status $?\"
ip link show dev sg0 2>&1; ls -A $SEGUE_RUNTIME_DIR; echo end",
        up(&format!("{LINE} -v"))
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert!(ran.stdout.contains("198.19.0.1/30") && ran.stdout.contains(" mtu 1460 "), "{ran:?}");
    assert!(ran.stdout.contains("sg0.sock\nstatus 0\nDevice \"sg0\" does not exist.\nend\n"), "{ran:?}");
    for line in [
        "ip link set dev sg0 mtu 1460    # RTM_NEWLINK",
        "ip addr add 198.19.0.1/30 dev sg0    # RTM_NEWADDR",
        "ip link set dev sg0 up    # RTM_NEWLINK",
        "sg0 is up: ipip in GUE, 198.18.0.1 -> 198.18.0.2:6080\n  mtu       1460  = 1500 (eth0) - 40 (IPv4 20, UDP 8, GUE 12)\n",
        "sg0 is down after ",
    ] {
        assert!(ran.stderr.contains(line), "{line} is missing: {ran:?}");
    }
    assert!(ran.stderr.lines().all(|line| line.len() <= 100), "{ran:?}");
}

#[test]
fn the_commands_that_verbose_shows_can_be_typed() {
    // Each printed command is run on a device of the same kind; one that ip(8) refuses would end the script.
    let script = format!(
        "{}kill -INT $pid; wait $pid
grep '^ip ' log | grep -v tuntap > commands; cat commands >&2
ip tuntap add dev sg0 mode tun vnet_hdr || echo refused
while read -r line; do sh -c \"$line\" || echo refused \"$line\"; done < commands
ip -br addr show dev sg0",
        up(
            "tunnel dev sg0 remote 2001:db8::2 encap fou encap-dport 5555 addr 198.19.0.1/30 addr 2001:db8:1::1/64 -v 2> log"
        )
    );
    let place = Place::new();
    let Some(ran) = in_namespace_at(&format!("cd {}; {script}", place.path().display()), &place) else { return };
    assert!(!ran.stdout.contains("refused"), "{ran:?}");
    assert!(ran.stdout.contains("198.19.0.1/30") && ran.stdout.contains("2001:db8:1::1/64"), "{ran:?}");
    assert!(ran.stderr.lines().count() >= 4, "{ran:?}");
}

#[test]
fn the_process_that_moves_packets_has_no_rights_left() {
    let script = format!(
        "{}worker=$($SEGUE stat -j | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')
test $worker != $pid && echo supervised
grep -E '^(Uid|Gid|Groups|CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/$worker/status
kill -INT $pid; wait $pid",
        up(LINE)
    );
    let Some(ran) = in_namespace(&script) else { return };
    // The user is the package's, or a number that nothing else gives out.
    let user = ran.stderr.split("as user ").nth(1).and_then(|rest| rest.split(", sandboxed").next());
    let is_own = |user: &str| user == "segue" || user.parse().is_ok_and(|uid| (60_706..=61_183).contains(&uid));
    assert!(user.is_some_and(is_own), "{ran:?}");
    let line = |name: &str| -> Vec<String> {
        let found = ran.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {ran:?}"));
        found.split_whitespace().skip(1).map(str::to_owned).collect()
    };
    assert!(ran.stdout.starts_with("supervised\n"), "{ran:?}");
    assert!(line("Uid:").iter().chain(&line("Gid:")).all(|id| id != "0"), "{ran:?}");
    assert_eq!(line("Groups:"), Vec::<String>::new());
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(line(set), ["0000000000000000"], "{set}");
    }
    assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), (vec!["1".to_owned()], vec!["2".to_owned()]));
}

#[test]
fn the_end_of_either_process_ends_the_other() {
    let worker = "worker=$($SEGUE stat -j | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')";
    // A process whose new parent does not wait for it stays as a zombie.
    let gone = "over() { ! test -e /proc/$worker || grep -q '^State:.Z' /proc/$worker/status; }
for n in $(seq 300); do over && break; sleep 0.05; done
ip link show dev sg0 >/dev/null 2>&1 || echo gone; over && echo ended";
    // The supervisor is killed: the worker follows, though it can no longer remove the socket.
    let script = format!("{}{worker}\nkill -KILL $pid; wait $pid\n{gone}", up(LINE));
    let Some(ran) = in_namespace(&script) else { return };
    assert_eq!(ran.stdout, "gone\nended\n", "{ran:?}");
    // The worker is killed: the supervisor reports it, removes the socket and fails.
    let script = format!(
        "{}{worker}\nkill -ABRT $worker; wait $pid; echo \"status $?\"\n{gone}; ls -A $SEGUE_RUNTIME_DIR",
        up(LINE)
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert_eq!(ran.stdout, "status 1\ngone\nended\n", "{ran:?}");
    assert!(ran.stderr.contains("was ended by signal 6"), "{ran:?}");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_refuses() {
    // The kernel closes the descriptors of a killed process in any order: its socket may outlive its interface.
    let script = format!(
        "{}$SEGUE {LINE} port 7000; echo \"second $?\"
kill -KILL $(pgrep -P $pid) $pid; wait $pid
for n in $(seq 300); do ip link show dev sg0 >/dev/null 2>&1 || {RUNS} || break; sleep 0.05; done
ls $SEGUE_RUNTIME_DIR
for n in $(seq 300); do $SEGUE stat -j | grep -q '\"instances\":\\[\\]' && break; sleep 0.05; done
$SEGUE stat -j | grep -c '\"instances\":\\[\\]'
{}$SEGUE stat sg0 > /dev/null; echo \"answers $?\"
kill -INT $pid; wait $pid; echo \"status $?\"; ls -A $SEGUE_RUNTIME_DIR",
        up(LINE),
        up(LINE)
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert!(ran.stdout.starts_with("second 1\nsg0.sock\n"), "{ran:?}");
    assert!(ran.stdout.ends_with("1\nanswers 0\nstatus 0\n"), "{ran:?}");
    assert!(ran.stderr.contains("error: sg0 is already running\nwhy:"), "{ran:?}");
}

#[test]
fn usr1_prints_the_counters_and_the_tunnel_goes_on() {
    let place = Place::new();
    // A hangup does nothing; the time is what it would take to end the tunnel.
    let script = format!(
        "cd {}
{}kill -USR1 $pid; for n in $(seq 100); do grep -q ' dropped$' said && break; sleep 0.05; done
kill -HUP $pid; sleep 0.2; $SEGUE stat sg0 >/dev/null; echo \"alive $?\"
kill -INT $pid; wait $pid; echo \"status $?\"; cat said >&2",
        place.path().display(),
        up(&format!("{LINE} 2> said"))
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    assert_eq!(ran.stdout, "alive 0\nstatus 0\n", "{ran:?}");
    assert!(ran.stderr.lines().any(|line| line.starts_with("sg0: ") && line.ends_with(" dropped")), "{ran:?}");
}

#[test]
fn one_interrupt_for_the_whole_group_is_a_clean_end() {
    // As from a terminal, every process of the group gets the signal.
    let script = format!(
        "setsid sh -c '$SEGUE {LINE}; echo \"status $?\"' & leader=$!
for n in $(seq 400); do $SEGUE stat sg0 >/dev/null 2>&1 && break; sleep 0.05; done
group=$(ps -o pgid= -p $(pgrep -x segue | head -1) | tr -d ' ')
trap '' INT; kill -s INT -- -$group; wait $leader
ls -A $SEGUE_RUNTIME_DIR"
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert!(ran.stderr.contains("sg0 is down after"), "{ran:?}");
}

#[test]
fn json_events_come_on_stdout_and_a_closed_stdout_is_no_end() {
    let place = Place::new();
    // The time in the middle is what a closed stdout would take to end the tunnel.
    let script = format!(
        "cd {}\n{}kill -INT $pid; wait $pid; cat events
{{ $SEGUE {LINE} -j; echo \"status $?\" > ended; }} | true &
for n in $(seq 400); do $SEGUE stat sg0 >/dev/null 2>&1 && break; sleep 0.05; done
sleep 0.3; $SEGUE stat sg0 >/dev/null && echo alive
kill -INT $(pgrep -x segue | head -1)
for n in $(seq 300); do test -s ended && break; sleep 0.05; done; cat ended >&2",
        place.path().display(),
        up(&format!("{LINE} -j > events")),
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    let mut lines = ran.stdout.lines();
    let mut event = || -> Value { serde_json::from_str(lines.next().expect("a line")).expect("JSON") };
    let (up, down) = (event(), event());
    assert_eq!((up["event"].as_str(), down["event"].as_str()), (Some("up"), Some("down")));
    assert_eq!(up["plan"]["addr"][0], "198.19.0.1/30");
    assert!(up["t"].as_str().is_some_and(|t| t.ends_with('Z')) && up["offloads"].is_object());
    assert!(down["instance"]["ports"].is_object());
    assert!(ran.stdout.ends_with("\nalive\n"), "{ran:?}");
    assert!(ran.stderr.contains("status 0"), "{ran:?}");
}

#[test]
fn noencap_csum_says_that_it_sends_one_datagram_at_a_time() {
    let check = |words: &str| {
        let script = format!("$SEGUE tunnel dev sg0 remote 198.18.0.2 encap gue noencap-csum {words} --check");
        in_namespace(&script)
    };
    let Some(ran) = check("fastpath off") else { return };
    assert!(ran.stderr.contains("sending one datagram at a time"), "{ran:?}");
    let Some(ran) = check("") else { return };
    assert!(ran.stdout.contains("else segue; one packet at a time; encap-csum joins them"), "{ran:?}");
    // What keeps the path from being loaded at all is known before the start.
    let Some(ran) = check("--trace t.pcap") else { return };
    assert!(ran.stdout.contains("path      segue [--trace needs the daemon]"), "{ran:?}");
    let script = "$SEGUE tunnel dev sg0 remote 198.18.0.2 mode vxlan id 1 noudpcsum \\
        fdb 02:00:00:00:00:09,198.18.0.3 --check";
    let Some(ran) = in_namespace(script) else { return };
    assert!(ran.stdout.contains("path      segue [several remotes (fdb) need the daemon]"), "{ran:?}");
}

#[test]
fn stat_shows_the_running_tunnel_as_table_reasons_and_documents() {
    let place = Place::new();
    let script = format!(
        "cd {}
{}for n in $(seq 100); do $SEGUE stat sg0 --why | grep -q '^sg0, last ' && break; sleep 0.1; done
$SEGUE stat; echo ---; $SEGUE stat sg0 --why; echo ---; $SEGUE stat -j; echo ---
$SEGUE stat --watch 1 -j > watched & watch=$!
for n in $(seq 200); do test $(wc -l < watched) -ge 2 && break; sleep 0.05; done; kill -TERM $watch; wait $watch; code=$?
head -n 2 watched; echo \"watch $code\"; echo ---; $SEGUE stat --health; echo \"health $?\"; echo ---; $SEGUE; echo ---; $SEGUE stat sgO
kill -INT $pid; wait $pid",
        place.path().display(),
        up(LINE)
    );
    let Some(ran) = in_namespace_at(&script, &place) else { return };
    let parts: Vec<&str> = ran.stdout.split("---\n").collect();
    assert!(parts[0].starts_with("NAME ") && parts[0].contains("\nsg0 "), "{ran:?}");
    assert!(parts[0].lines().all(|line| line.len() <= 80));
    assert!(parts[1].starts_with("sg0, last ") && parts[1].contains("payload bytes summed by segue: 0"), "{ran:?}");
    let document: Value = serde_json::from_str(parts[2]).expect("JSON");
    assert_eq!(document["schema"], "segue.stat/1");
    let instance = &document["instances"][0];
    assert_eq!((instance["name"].as_str(), instance["kind"].as_str()), (Some("sg0"), Some("tunnel")));
    assert!(
        instance["ports"]["sg0"]["drops"].is_object() && instance["ports"]["udp"]["receive"]["bytes"].is_u64(),
        "{instance}"
    );
    let lines: Vec<&str> = parts[3].lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    for line in &lines[..2] {
        let value: Value = serde_json::from_str(line).expect("one object a line");
        assert!(value["t"].as_str().is_some_and(|t| t.ends_with('Z')) && value["schema"] == "segue.stat/1");
    }
    assert_eq!(parts[4], "health 0\n");
    assert!(parts[5].starts_with("NAME "), "{ran:?}");
    assert!(
        ran.stderr.contains("no running instance is called `sgO`") && ran.stderr.contains("segue stat sg0"),
        "{ran:?}"
    );
}

#[test]
fn a_request_of_another_user_is_refused_and_the_permitted_users_are_named() {
    let script = format!(
        "exec 3<$SEGUE; mount -t tmpfs -o mode=755 none /mnt; install -m 755 /proc/self/fd/3 /mnt/segue; exec 3<&-
{}for options in '' -j; do setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/segue stat sg0 $options; echo \"status $?\"; done
kill -INT $pid; wait $pid",
        up(LINE)
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert!(ran.stdout.starts_with("status 1\n") && ran.stdout.ends_with("status 1\n"), "{ran:?}");
    assert!(ran.stdout.contains("\"kind\":\"no_permission\""), "{ran:?}");
    assert!(
        ran.stderr
            .contains("cannot ask sg0: Permission denied\nwhy:  only its owner, root and the group of SEGUE_GROUP"),
        "{ran:?}"
    );
}

#[test]
fn an_interface_made_beforehand_is_used_and_stays() {
    let script = format!(
        "ip tuntap add dev sg0 mode tun vnet_hdr
$SEGUE {LINE} --check > /dev/null; echo \"check $?\"
{}kill -INT $pid; wait $pid; echo \"status $?\"
ip -br link show dev sg0 | cut -d ' ' -f 1",
        up(LINE)
    );
    let Some(ran) = in_namespace(&script) else { return };
    assert_eq!(ran.stdout, "check 0\nstatus 0\nsg0\n", "{ran:?}");
}
