//! Tests of VXLAN over the in-kernel path, against the kernel's own VXLAN and as a port of a bridge.

use std::time::Duration;

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_tests::fastpath::{NET, REQUIRE, errors, ground, left, removes_marks, taken};
use segue_tests::kernel_log::KernelLog;
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, Tunnel, skip, test_name};

/// Time for a datagram to get through.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: u64 = 4 << 20;

#[test]
fn frames_received_by_the_path_pass_a_bridge_unchanged() {
    let mut log = KernelLog::mark(test_name!());
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let Ok(third) = Host::new("c") else { return skip(test_name!(), "no third host could be made") };
        let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::VxlanZero, Carrier::Bare, V4) };
        let pair = Pair::start(&ground, shape, NET);
        let device = Shape::device(NET);
        ip(&ground.b, "link add br1 type bridge");
        ip(&ground.b, &format!("link add toc type veth peer name tob netns {}", third.net_path()));
        for (host, port) in [(&ground.b, "toc"), (&third, "tob")] {
            host.run("ethtool", &["-K", port, "tso", "off", "gso", "off", "tx", "off"]).unwrap();
            ip(host, &format!("link set {port} up"));
        }
        ip(&ground.b, &format!("link set {device} master br1"));
        ip(&ground.b, "link set toc master br1");
        ip(&ground.b, "link set br1 up");
        ip(&third, "link set tob mtu 1450");
        ip(&third, "addr add 198.19.1.3/24 dev tob");
        let [from, to] = [(&ground.a, Peer::A.address(NET, V4)), (&third, "198.19.1.3".parse().unwrap())]
            .map(|(host, address)| Place { host, address });
        segue_lab::reach((from.host, from.address), (to.host, to.address), PATIENCE).unwrap();
        traffic::file(from, to, FILE, 3);
        traffic::file(to, from, FILE, 4);
        traffic::datagrams(from, to, &[1, 100, 1400], 5);
        assert_eq!(errors(&third.run("cat", &["/proc/net/snmp"]).unwrap()), 0);
        let stat = Stat::read(&ground.b, &ground.program, &device);
        assert!(taken(&stat)[0] > 700, "{:?} left {}", taken(&stat), left(&stat));
        if !removes_marks() && form == LinkForm::Veth {
            assert!(left(&stat)["forwarded"].as_u64() > Some(0), "left {}", left(&stat));
        }
        pair.assert_nothing_dropped();
        log.iter_mut().for_each(|log| log.assert_silent(&format!("{form:?}")));
    }
}

/// Creates the kernel's VXLAN at B for the tunnel; records a skip if the kernel has none.
fn kernel_vxlan(ground: &Ground, outer: Family, words: &str) -> bool {
    let [local, remote] = [Peer::B, Peer::A].map(|end| end.address(0, outer));
    let port = Shape::port(NET);
    let line = format!("link add vx0 type vxlan id 42 dstport {port} dev eth0 local {local} remote {remote} {words}");
    if ground.b.run("ip", &line.split(' ').collect::<Vec<_>>()).is_err() {
        skip(test_name!(), "this kernel has no VXLAN");
        return false;
    }
    for family in Family::ALL {
        let nodad = if *family == V6 { " nodad" } else { "" };
        ip(&ground.b, &format!("addr add {} dev vx0{nodad}", Peer::B.prefix(NET, *family)));
    }
    ip(&ground.b, "link set vx0 up");
    true
}

/// Checks that single packets from the kernel's VXLAN with outer checksums, left unfinished by this machine, take the
/// in-kernel path like trains: otherwise later trains would overtake the packets left to segue.
fn assert_single_packets_take_the_path(ground: &Ground, [a, b]: [Place<'_>; 2]) {
    let read = || Stat::read(&ground.a, &ground.program, &Shape::device(NET));
    let unverified = |stat: &Stat| left(stat)["outer_csum"].as_u64().unwrap_or(0);
    let before = read();
    // What B acknowledges comes one by one.
    traffic::file(a, b, 4 * FILE, 78);
    traffic::datagrams(b, a, &[1, 100, 1400], 79);
    let after = read();
    let singles = taken(&after)[1] - taken(&before)[1];
    let left = unverified(&after) - unverified(&before);
    // The sums of ICMPv6, such as neighbour discovery, are finished, so that the outer one is not.
    assert!(singles > 40 && left < 10, "{} from {}: {singles} by the path, {left} to segue", a.address, b.address);
}

#[test]
fn the_kernels_own_vxlan_and_the_path_understand_each_other() {
    const ZERO: &str = "noudpcsum udp6zerocsumtx udp6zerocsumrx";
    for (form, outer, words) in [
        (LinkForm::Veth, V4, ZERO),
        (LinkForm::Nic, V4, ZERO),
        (LinkForm::Nic, V6, ZERO),
        (LinkForm::Veth, V4, "udpcsum"),
        (LinkForm::Veth, V6, "udp6zerocsumrx"),
        (LinkForm::Nic, V4, "udpcsum"),
    ] {
        let mut log = KernelLog::mark(test_name!());
        let Some(ground) = ground(test_name!(), form, &["ping"]) else { return };
        let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::VxlanZero, Carrier::Bare, outer) };
        let _tunnel = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, NET));
        if !kernel_vxlan(&ground, outer, words) {
            return;
        }
        for family in Family::ALL {
            let [a, b] = [(Peer::A, &ground.a), (Peer::B, &ground.b)]
                .map(|(end, host)| Place { host, address: end.address(NET, *family) });
            segue_lab::reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
            traffic::everything(a, b, FILE / 2, 77);
            if form == LinkForm::Veth && words != ZERO {
                assert_single_packets_take_the_path(&ground, [a, b]);
            }
        }
        assert_eq!(errors(&ground.b.run("cat", &["/proc/net/snmp"]).unwrap()), 0, "{form:?} {words}");
        let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
        let [sent, received] = taken(&stat);
        // What has a checksum that nothing has verified is left to the daemon's socket.
        let least = if words == ZERO { 700 } else { 0 };
        assert!(sent > 700 && received >= least, "{form:?} {words}: {sent}, {received}, left {}", left(&stat));
        let mut drops = stat.drops_but_overflow();
        // From before the other end was there.
        drops.remove("unreachable");
        assert!(drops.is_empty(), "{form:?} {words}: {drops:?}");
        log.iter_mut().for_each(|log| log.assert_silent(&format!("{form:?} {words}")));
    }
}

#[test]
fn a_tunnel_over_ipv6_counts_no_datagram_without_checksum_from_before_it_had_its_socket() {
    // UDP_NO_CHECK6_TX. When a socket closes, an error may come back.
    const SENDER: &str = "import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(17, 101, 1)
s.connect((sys.argv[1], int(sys.argv[2])))
print('sending', flush=True)
while True:
    try:
        s.send(bytes(64))
    except OSError:
        pass
";
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3", "timeout", "strace"]) else { return };
    let shape = Shape { extra: &["fastpath", "off"], ..Shape::new(Inside::VxlanZero, Carrier::Bare, V6) };
    let mut command = ground.a.command("timeout");
    command.args(["120", "python3", "-c", SENDER]);
    command.args([Peer::B.address(0, V6).to_string(), Shape::port(NET).to_string()]);
    let mut sender = Process::spawn(command, b"").expect("python3 starts");
    sender.wait_for_line("sending", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let words = shape.words(Peer::B, NET);
    let table = format!(
        "dev sg{NET} peers none local {} listen gue:{} noencap-csum fastpath off",
        Peer::B.address(0, V6),
        Shape::port(NET)
    );
    let table = table.split(' ').map(str::to_owned).collect();
    for (words, port) in [(words, "udp"), (table, "gue")] {
        // The time between the first look at the counter and the socket is made longer.
        let mut command = ground.b.command("strace");
        command.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bind", "-e", "inject=bind:delay_enter=50000"]);
        command.arg(&ground.program).args(["tunnel", "-j"]).args(words);
        let mut tunnel = Process::spawn(command, b"").expect("strace starts");
        tunnel.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        let drops = |stat: &Stat| stat.json()["ports"][port]["drops"].clone();
        let has_received = |stat: &Stat| !stat.drops().is_empty();
        let stat = Stat::until(&ground.b, &ground.program, &Shape::device(NET), PATIENCE, has_received);
        assert!(has_received(&stat) && drops(&stat)["outer_csum"] == 0, "{}", drops(&stat));
        tunnel.stop(PATIENCE);
    }
    sender.stop(PATIENCE);
}
