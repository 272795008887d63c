//! Tests of the plans and refusals of `segue gateway --route` and `segue nat`, without traffic.

mod common;

use common::in_namespace;
use serde_json::Value;

/// Start of a script: a second interface with an address, and forwarding disabled in the kernel.
const TWO: &str = "ip addr flush dev peer0; ip addr add 198.18.5.1/24 dev peer0
sysctl -qw net.ipv4.conf.all.forwarding=0 net.ipv6.conf.all.forwarding=0
try() { $SEGUE \"$@\"; echo \"status $?\"; echo --- >&2; }
";

#[test]
fn invalid_router_configurations_are_refused_with_a_hint() {
    let script = format!(
        "{TWO}route() {{ try gateway eth0 peer0 --route \"$@\"; }}
route --nat 198.18.5.1; route --nat 127.0.0.1; route --nat 239.0.0.1; route --nat 169.254.1.1; route --nat 0.0.0.0
ip addr add 198.18.77.7/32 dev lo; route --nat 198.18.77.7; route --nat host; route --nat 198.18.5.9 --forward tcp:80
route --nat 198.18.5.9 --forward sctp:80=198.18.0.2:80
route --check --nat 198.18.5.9 --forward tcp:80=198.18.0.2:80 --forward tcp:80=198.18.0.3:80
route --check --nat 198.18.5.9 --forward tcp:80=198.18.0.2:80 --forward tcp:81=198.18.0.2:80
try gateway eth0 peer0 --nat 198.18.5.9; try gateway eth0 tap:t0 --route
sysctl -qw net.ipv4.conf.eth0.forwarding=1; route
try nat nobody"
    );
    let Some(ran) = in_namespace(&script) else { return };
    let expected = [
        (1, "peer0 has the address 198.18.5.1 itself", "ip addr del 198.18.5.1 dev peer0"),
        (2, "`--nat 127.0.0.1` is no address of a host", "an address of the network behind peer0"),
        (2, "`--nat 239.0.0.1` is no address of a host", "peer0"),
        (2, "`--nat 169.254.1.1` is no address of a host", "peer0"),
        (2, "`--nat 0.0.0.0` is no address of a host", "peer0"),
        (1, "this host has the address 198.18.77.7 itself", "an address that no host has"),
        (2, "`host` is not a value of `--nat`", "expected an IPv4 address, as 198.18.2.9"),
        (2, "`tcp:80` is not a value of `--forward`", "expected PROTOCOL:PORT=ADDRESS:PORT, as tcp:8080=198.18.1.2:80"),
        (2, "is not a value of `--forward`", "expected tcp or udp"),
        (2, "`--forward tcp:80=198.18.0.3:80` is given twice", "each port once"),
        (2, "`--forward tcp:81=198.18.0.2:80` leads where `tcp:80=198.18.0.2:80` leads", "another port of 198.18.0.2"),
        (2, "--route", "segue gateway --help"),
        (2, "`tap:t0` cannot be an end of a router", "segue gateway --help"),
        (1, "the kernel forwards what comes in by eth0", "sudo sysctl -w net.ipv4.conf.eth0.forwarding=0"),
        (1, "no running instance is called `nobody`", "segue stat"),
    ];
    let statuses = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")?.parse::<i32>().ok());
    assert_eq!(statuses.collect::<Vec<_>>(), expected.map(|(status, ..)| status), "{ran:?}");
    for ((_, error, hint), text) in expected.into_iter().zip(ran.stderr.split("---\n")) {
        assert!(text.contains("error: ") && text.contains(error) && text.contains(hint), "{error}, {hint}: {text}");
    }
}

#[test]
fn addresses_that_no_translation_can_have_are_refused_before_it_starts() {
    const BROADCAST: &str = "is the network or broadcast address of 198.18.5.0/24, the network behind peer0";
    let cases = [
        ("198.18.5.255", "", 2, BROADCAST),
        ("198.18.5.0", "", 2, BROADCAST),
        ("198.18.0.9", "", 2, "is an address of 198.18.0.0/24, the network behind eth0"),
        ("198.18.66.6", "", 0, "198.18.66.6 is in no network of peer0"),
        ("198.18.5.9", "127.0.0.1", 2, "leads to 127.0.0.1, which is no address of a host"),
        ("198.18.5.9", "239.0.0.1", 2, "leads to 239.0.0.1, which is no address of a host"),
        ("198.18.5.9", "198.18.5.9", 2, "leads to the outside address"),
        ("198.18.5.9", "198.18.0.1", 2, "leads to 198.18.0.1, an address of this host"),
        ("198.18.5.9", "198.18.0.255", 2, "leads to the network or broadcast address of 198.18.0.0/24"),
        ("198.18.5.9", "198.18.5.7", 2, "leads to 198.18.5.7, which is behind peer0"),
        ("198.18.5.9", "203.0.113.1", 0, "has no effect yet: there is no route to 203.0.113.1"),
        ("198.18.5.9", "198.18.0.2", 0, "nothing was changed"),
    ];
    let lines = cases.map(|(nat, host, ..)| {
        let forward = if host.is_empty() { String::new() } else { format!("--forward tcp:80={host}:80") };
        format!("try gateway eth0 peer0 --route --check --nat {nat} {forward} 2>&1\n")
    });
    let setup =
        "ip addr flush dev eth0; ip addr add 198.18.0.1/24 dev eth0; ip link set eth0 up; ip link set peer0 up\n";
    let Some(ran) = in_namespace(&format!("{TWO}{setup}{}", lines.concat())) else { return };
    for ((nat, host, status, words), text) in cases.into_iter().zip(ran.stdout.split("---\n")) {
        assert!(text.contains(words) && text.contains(&format!("status {status}\n")), "{nat} {host}: {text}");
    }
}

#[test]
fn a_plan_says_what_the_router_would_be() {
    let words = "gateway eth0 peer0 --route --nat 198.18.5.9 --forward tcp:80=198.18.0.2:8080 --check";
    let Some(ran) = in_namespace(&format!("{TWO}$SEGUE {words}; $SEGUE {words} -j; $SEGUE nat; $SEGUE nat -j")) else {
        return;
    };
    let (text, json) = ran.stdout.split_at(ran.stdout.find('{').expect("JSON"));
    assert_eq!(
        text,
        "\
eth0-peer0 can be: eth0 <-> peer0
  eth0            mtu 1500, packet socket
  peer0           mtu 1500, packet socket
  lro             trains to 65.5 kB or 1000 packets, profile strict
  memory          pages of 32 KiB
  route           by the kernel's routes
  nat             IPv4 leaves peer0 from 198.18.5.9
  forward         tcp:80=198.18.0.2:8080
nothing was changed
"
    );
    let documents: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [plan, nat] = &documents[..] else { panic!("{ran:?}") };
    assert_eq!(plan["plan"]["nat"]["forwards"][0], "tcp:80=198.18.0.2:8080");
    assert_eq!((&nat["schema"], &nat["instances"]), (&"segue.nat/1".into(), &Value::Array(vec![])));
    assert!(ran.stderr.contains("no NAT runs here"), "{ran:?}");
}
