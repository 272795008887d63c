//! Tests of tunnels with a peer table, against the kernel's VXLAN device as flannel sets it up, and against another
//! segue: peers of several encapsulations at once, changes while packets are forwarded, and packets that the table does
//! not allow, by the process and over the in-kernel path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, Tunnel, fastpath, test_name, traffic};
use serde_json::Value;

const DEVICE: &str = "pt0";
/// Ethernet address of segue's end of the VXLAN, at A.
const OURS: &str = "02:00:00:00:00:01";
/// Ethernet address of the kernel's end of the VXLAN, at B.
const KERNELS: &str = "5a:65:bd:bd:44:bb";
const PATIENCE: Duration = Duration::from_secs(60);

/// The peers of A, all at B: the kernel by VXLAN, and segue by GUE and by bare IP in UDP.
const TABLE: &str = r#"{"generation":5,"peers":[
    {"prefix":"198.19.2.0/24","remote":"198.18.0.2","encap":"vxlan","vni":1,"mac":"5a:65:bd:bd:44:bb"},
    {"prefix":"198.19.3.0/24","remote":"198.18.0.2","encap":"gue"},
    {"prefix":"2001:db8:3::/64","remote":"198.18.0.2","encap":"gue"},
    {"prefix":"198.19.4.0/24","remote":"198.18.0.2","encap":"fou"}]}"#;

fn at(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the drops of a tunnel, without those at a full socket and those of multicast packets that the host's kernel
/// sends.
fn drops(stat: &Stat) -> BTreeMap<String, u64> {
    let mut drops = stat.drops_but_overflow();
    drops.remove("no_group");
    drops
}

/// Starts a tunnel with an empty table in a host, with its addresses and routes.
fn start(ground: &Ground, is_a: bool, words: &str, addresses: &[&str], routes: &[&str]) -> Tunnel {
    let (host, local) = if is_a { (&ground.a, "198.18.0.1") } else { (&ground.b, "198.18.0.2") };
    let mut line = format!("dev {DEVICE} peers none local {local} {words}");
    addresses.iter().for_each(|address| write!(line, " addr {address}").unwrap());
    let tunnel = Tunnel::start(host, &ground.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>());
    for route in routes {
        host.run("ip", &["route", "add", route, "dev", DEVICE]).unwrap();
    }
    tunnel
}

/// Keywords of a tunnel whose packets the process carries.
const BY_DAEMON: &str = "encap-remcsum";
/// Keywords of a tunnel whose packets take the in-kernel path.
const BY_KERNEL: &str = "noencap-csum fastpath require";

/// Starts the tunnel of A, for all encapsulations.
fn start_a(ground: &Ground, words: &str) -> Tunnel {
    let words = format!("listen vxlan,gue,fou id 1 lladdr {OURS} mtu 1400 {words}");
    start(ground, true, &words, &["198.19.1.1/24", "2001:db8:1::1/64"], &["198.19.0.0/16", "2001:db8::/32"])
}

/// Runs `segue peer` with the given words, and the text as standard input.
fn try_peer(ground: &Ground, is_a: bool, words: &str, text: &str) -> Output {
    let host = if is_a { &ground.a } else { &ground.b };
    let mut command = host.command(&ground.program);
    command.arg("peer").args(words.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("segue peer starts");
    // A command that takes no table may have ended before it reads.
    let _ = child.stdin.take().expect("a pipe").write_all(text.as_bytes());
    child.wait_with_output().expect("segue peer ends")
}

/// Runs `segue peer ... -j`, which must succeed, and returns its output.
#[track_caller]
fn peer(ground: &Ground, is_a: bool, words: &str, text: &str) -> Value {
    let output = try_peer(ground, is_a, &format!("{words} -j"), text);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn ip(host: &segue_lab::Host, line: &str) {
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Configures B's kernel as a node like flannel: a device without learning, and for its one peer a neighbour, an entry
/// of the forwarding table and a route.
fn add_kernel(ground: &Ground, csum: &str) {
    let host = &ground.b;
    ip(host, &format!("link add flannel.1 type vxlan id 1 dstport 8472 local 198.18.0.2 nolearning {csum}"));
    ip(host, &format!("link set flannel.1 address {KERNELS} mtu 1400 up"));
    ip(host, "addr add 198.19.2.1/32 dev flannel.1");
    ip(host, "route add 198.19.1.0/24 via 198.19.1.0 dev flannel.1 src 198.19.2.1 onlink");
    ip(host, &format!("neigh add 198.19.1.0 lladdr {OURS} dev flannel.1 nud permanent"));
    let entry = format!("fdb add {OURS} dst 198.18.0.1 dev flannel.1 self permanent");
    host.run("bridge", &entry.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Starts both tunnels, whose peers have every encapsulation, and sends traffic between all of them.
fn reach_every_encapsulation(ground: &Ground, [words_a, words_b]: [&str; 2]) -> [Tunnel; 2] {
    let tunnel_a = start_a(ground, words_a);
    let addresses = ["198.19.3.1/32", "2001:db8:3::1/128", "198.19.4.1/32"];
    let tunnel_b = start(ground, false, &format!("listen gue,fou mtu 1400 {words_b}"), &addresses, &[]);
    // The two other networks of A's come back by segue, and what is for the kernel's own device by that.
    for (route, source) in [("198.19.11.0/24", "198.19.3.1"), ("198.19.12.0/24", "198.19.4.1")] {
        ip(&ground.b, &format!("route add {route} dev {DEVICE} src {source}"));
    }
    ip(&ground.b, &format!("route add 2001:db8:1::/64 dev {DEVICE}"));
    for (route, source) in [("198.19.3.0/24", "198.19.11.1"), ("198.19.4.0/24", "198.19.12.1")] {
        ip(&ground.a, &format!("addr add {source}/32 dev {DEVICE}"));
        ip(&ground.a, &format!("route add {route} dev {DEVICE} src {source}"));
    }
    let back = r#"{"peers":[
        {"prefix":"198.19.11.0/24","remote":"198.18.0.1","encap":"gue"},
        {"prefix":"2001:db8:1::/64","remote":"198.18.0.1","encap":"gue"},
        {"prefix":"198.19.12.0/24","remote":"198.18.0.1","encap":"fou"}]}"#;
    assert_eq!(peer(ground, true, &format!("sync {DEVICE} -"), TABLE)["added"], 4);
    assert_eq!(peer(ground, false, &format!("sync {DEVICE} -"), back)["generation"], 1);
    for (seed, near, far) in [
        (1, "198.19.1.1", "198.19.2.1"),
        (2, "198.19.11.1", "198.19.3.1"),
        (3, "2001:db8:1::1", "2001:db8:3::1"),
        (4, "198.19.12.1", "198.19.4.1"),
    ] {
        let reach = || segue_lab::reach((&ground.a, at(near)), (&ground.b, at(far)), PATIENCE).unwrap();
        reach();
        // The kernel's own device is at the other end of the first one.
        let hosts = if seed == 1 { &[&ground.a][..] } else { &[&ground.a, &ground.b] };
        for host in hosts.iter().filter(|_| words_a == BY_KERNEL) {
            // The routes to new peers are looked up five times a second.
            let sent = || Stat::read(host, &ground.program, DEVICE).count(DEVICE, "fastpath", "sent");
            let (before, begin) = (sent(), Instant::now());
            while sent() == before {
                assert!(begin.elapsed() < PATIENCE, "the kernel sends nothing");
                reach();
            }
        }
        let [a, b] =
            [(&ground.a, near), (&ground.b, far)].map(|(host, address)| traffic::Place { host, address: at(address) });
        traffic::everything(a, b, traffic::SHORT, seed);
    }
    [tunnel_a, tunnel_b]
}

/// Returns the listed peers of A, each of which must have counted packets and bytes in both directions.
#[track_caller]
fn counted_peers(ground: &Ground) -> Vec<Value> {
    let listed = peer(ground, true, &format!("list {DEVICE}"), "");
    assert_eq!(listed["generation"], 5);
    let peers = listed["peers"].as_array().unwrap();
    for entry in peers {
        let counts =
            ["sent_packets", "sent_bytes", "received_packets", "received_bytes"].map(|key| entry[key].as_u64());
        assert!(counts.iter().all(|count| *count > Some(0)), "{entry}");
    }
    peers.clone()
}

#[test]
fn one_interface_reaches_peers_of_every_encapsulation_at_once() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "bridge"]) else { return };
    add_kernel(&ground, "udpcsum");
    let _tunnels = reach_every_encapsulation(&ground, [BY_DAEMON; 2]);
    for (is_a, host) in [(true, &ground.a), (false, &ground.b)] {
        let stat = Stat::read(host, &ground.program, DEVICE);
        assert!(drops(&stat).is_empty(), "{is_a}: {:?}", stat.drops());
        for form in ["gue", "fou"] {
            assert!(stat.count(form, "transmit", "trains") > 0, "{form}: {}", stat.json());
        }
        assert!(stat.count(DEVICE, "transmit", "trains") > 0, "what came was joined: {}", stat.json());
        assert!(stat.json()["ports"]["gue"]["remcsum"]["sent"].as_u64() > Some(0));
        assert_eq!(stat.json()["ports"]["fou"]["remcsum"]["sent"], 0);
    }
    let stat = Stat::read(&ground.a, &ground.program, DEVICE);
    assert!(stat.count("vxlan", "transmit", "trains") > 0, "{}", stat.json());
    assert_eq!(counted_peers(&ground).len(), 4);
}

/// Waits until the health of A's tunnel has exactly these problems.
#[track_caller]
fn await_codes(ground: &Ground, wanted: &[&str]) {
    let codes = |stat: &Stat| {
        let found = stat.json()["health"].as_array().cloned().unwrap_or_default();
        found.iter().map(|problem| problem["code"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, |stat| codes(stat) == wanted);
    assert_eq!(codes(&stat), wanted, "{}", stat.json());
}

#[test]
fn a_fault_of_the_interface_the_link_or_the_address_of_a_tunnel_with_a_table_is_named_until_it_is_mended() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let _tunnel = start_a(&ground, BY_DAEMON);
    await_codes(&ground, &[]);
    let link = segue_lab::DEVICE;
    for (code, fault, cure) in [
        ("interface_down", format!("link set {DEVICE} down"), format!("link set {DEVICE} up")),
        ("link_down", format!("link set {link} down"), format!("link set {link} up")),
        ("address_gone", format!("addr del 198.18.0.1/24 dev {link}"), format!("addr add 198.18.0.1/24 dev {link}")),
    ] {
        ip(&ground.a, &fault);
        await_codes(&ground, &[code]);
        ip(&ground.a, &cure);
        await_codes(&ground, &[]);
    }
}

#[test]
fn a_tunnel_with_a_table_is_judged_by_the_link_that_has_its_local_address_now() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let _tunnel = start_a(&ground, BY_DAEMON);
    let link = segue_lab::DEVICE;
    let move_address = |what: &str, link: &str| ip(&ground.a, &format!("addr {what} 198.18.0.1/24 dev {link}"));
    ip(&ground.a, &format!("link del {link}"));
    await_codes(&ground, &["link_gone"]);
    // One that was made anew has another index.
    ip(&ground.a, &format!("link add {link} type veth peer other"));
    ip(&ground.a, &format!("link set {link} up"));
    ip(&ground.a, "link set other up");
    move_address("add", link);
    await_codes(&ground, &[]);
    move_address("del", link);
    await_codes(&ground, &["address_gone"]);
    move_address("add", "other");
    await_codes(&ground, &[]);
    ip(&ground.a, "link set other down");
    await_codes(&ground, &["link_down"]);
}

#[test]
fn the_kernel_carries_the_peers_of_a_table_that_need_nothing_of_segue() {
    let form = LinkForm::Nic;
    let Some(ground) = fastpath::ground(test_name!(), form, &["ping", "bridge"]) else { return };
    add_kernel(&ground, "noudpcsum");
    let _tunnels = reach_every_encapsulation(&ground, [BY_KERNEL; 2]);
    for host in [&ground.a, &ground.b] {
        let stat = Stat::read(host, &ground.program, DEVICE);
        assert!(drops(&stat).is_empty(), "{:?}", stat.drops());
        let forms = if std::ptr::eq(host, &ground.a) { &["vxlan", "gue", "fou"][..] } else { &["gue", "fou"] };
        // A file of this size is some hundred packets, and an answer.
        for direction in ["transmit", "receive"] {
            assert!(
                forms.iter().all(|form| stat.count(form, direction, "packets") > 20),
                "{direction}: {}",
                stat.json()
            );
        }
        let taken = ["sent", "received"].map(|direction| stat.count(DEVICE, "fastpath", direction));
        // How many acknowledgments there are depends on time.
        assert!(taken.iter().all(|count| *count > 60) && taken.iter().sum::<u64>() > 700, "{taken:?}: {}", stat.json());
        assert_eq!(stat.json()["fastpath"]["on"], true);
        assert_eq!(stat.json()["fastpath"]["peers"]["segue"], Value::Null, "{}", stat.json()["fastpath"]);
    }
    assert_eq!(counted_peers(&ground).len(), 4);

    // A peer whose entry asks for an outer checksum is the daemon's, in both directions, and the rest stay.
    let change = format!("replace {DEVICE} 198.19.4.0/24 remote 198.18.0.2 encap fou udpcsum");
    peer(&ground, true, &change, "");
    let taken = |stat: &Stat| ["sent", "received"].map(|direction| stat.count(DEVICE, "fastpath", direction));
    let before = taken(&Stat::read(&ground.a, &ground.program, DEVICE));
    let place = |host, address| traffic::Place { host, address: at(address) };
    traffic::file(place(&ground.a, "198.19.12.1"), place(&ground.b, "198.19.4.1"), traffic::SHORT, 7);
    let stat = Stat::read(&ground.a, &ground.program, DEVICE);
    assert_eq!(taken(&stat), before, "{}", stat.json());
    let peers = &stat.json()["fastpath"]["peers"];
    assert_eq!((&peers["kernel"], peers["segue"].as_object().map(|all| all.len())), (&Value::from(3), Some(1)));
    let left = |port: &str| stat.json()["ports"][port]["left"]["peer_by_daemon"].as_u64();
    // What was sent is counted before its encapsulation is known, at the first port.
    assert!(left(DEVICE) > Some(0) && left("vxlan") > Some(0), "{}", stat.json()["ports"]);
    let why = ground.a.run(ground.program.to_str().unwrap(), &["stat", DEVICE, "--why"]).unwrap();
    let words = why.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("peers by the kernel 3, by segue 1: outer UDP checksums need the daemon"), "{why}");
    traffic::file(place(&ground.a, "198.19.11.1"), place(&ground.b, "198.19.3.1"), traffic::SHORT, 8);
    let after = taken(&Stat::read(&ground.a, &ground.program, DEVICE));
    assert!(after[0] > before[0] + 40 && after[1] > before[1], "{before:?} {after:?}");
}

/// Returns the number of drops at A for a reason, if it is counted.
#[track_caller]
fn drops_of_a(ground: &Ground, reason: &str) -> u64 {
    let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, |stat| stat.dropped(reason) > 0);
    let count = stat.dropped(reason);
    assert!(count > 0, "nothing was dropped for {reason}: {:?}", stat.drops());
    count
}

/// Sends one datagram between two hosts' addresses, regardless of its arrival.
fn send(host: &segue_lab::Host, from: &str, to: &str) {
    let (from, to) = (at(from), at(to));
    traffic::inside(host, || std::net::UdpSocket::bind((from, 0))?.send_to(b"hello", (to, 9)).map(drop)).unwrap();
}

#[test]
fn what_the_table_does_not_allow_is_dropped_under_its_reason_and_senders_are_told() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "bridge"]) else { return };
    refuse_what_the_table_does_not_allow(&ground, BY_DAEMON);
}

#[test]
fn what_the_table_does_not_allow_has_the_same_reasons_beside_the_path_through_the_kernel() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Nic, &["ping", "bridge"]) else { return };
    refuse_what_the_table_does_not_allow(&ground, BY_KERNEL);
}

fn refuse_what_the_table_does_not_allow(ground: &Ground, words: &str) {
    add_kernel(ground, "noudpcsum");
    let _a = start_a(ground, words);
    peer(ground, true, &format!("sync {DEVICE} -"), TABLE);
    let (near, far) = (at("198.19.1.1"), at("198.19.2.1"));
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    let stat = Stat::read(&ground.a, &ground.program, DEVICE);
    assert_eq!(drops(&stat), BTreeMap::new());

    // An inner source that the table gives to no peer, and one that it gives to another peer than the sender.
    ip(&ground.b, "addr add 198.19.77.1/32 dev flannel.1");
    send(&ground.b, "198.19.77.1", "198.19.1.1");
    let before = drops_of_a(ground, "peer_source");
    peer(ground, true, &format!("add {DEVICE} 198.19.77.0/24 remote 198.18.0.9 encap gue"), "");
    send(&ground.b, "198.19.77.1", "198.19.1.1");
    Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, |stat| stat.dropped("peer_source") > before);
    // An outer source that is no remote.
    ip(&ground.b, "addr add 198.18.0.66/24 dev eth0");
    for port in [8472, 6080, 8285] {
        let (from, to) = (at("198.18.0.66"), at("198.18.0.1"));
        traffic::inside(&ground.b, || std::net::UdpSocket::bind((from, 0))?.send_to(&[0; 64], (to, port)).map(drop))
            .unwrap();
    }
    let all = |stat: &Stat| stat.dropped("unknown_peer") >= 3;
    assert!(all(&Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, all)), "one at each listener");
    // A frame for another station: the kernel's entry for A is one of another Ethernet address now.
    ip(&ground.b, "neigh replace 198.19.1.0 lladdr 02:00:00:00:00:55 dev flannel.1 nud permanent");
    let entry = "fdb add 02:00:00:00:00:55 dst 198.18.0.1 dev flannel.1 self permanent";
    ground.b.run("bridge", &entry.split_whitespace().collect::<Vec<_>>()).unwrap();
    send(&ground.b, "198.19.2.1", "198.19.1.1");
    drops_of_a(ground, "not_for_us");

    // A destination of no peer, in both families: the sender gets an error.
    for (to, said) in [("198.19.99.1", "Net Unreachable"), ("2001:db8:99::1", "No route")] {
        let output = ground.a.command("ping").args(["-c", "1", "-W", "20", to]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(said), "{to}: {text}");
    }
    let both = |stat: &Stat| stat.dropped("no_route") >= 2;
    assert!(both(&Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, both)), "one of each family");
    // A peer that is gone has a name of its own, in both directions.
    peer(ground, true, &format!("del {DEVICE} 198.19.2.0/24 198.19.3.0/24 198.19.4.0/24 2001:db8:3::/64"), "");
    let output = ground.a.command("ping").args(["-c", "1", "-W", "20", "198.19.2.1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("Net Unreachable"));
    let before = drops_of_a(ground, "removed_peer");
    send(&ground.b, "198.19.2.1", "198.19.1.1");
    let more = |stat: &Stat| stat.dropped("removed_peer") > before;
    assert!(more(&Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, more)), "what comes from it");
}

#[test]
fn a_peer_that_the_tunnel_refuses_costs_no_other_its_traffic() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "bridge"]) else { return };
    add_kernel(&ground, "noudpcsum");
    // The second entry of the file at the start is wrong, and so is each of the table that is synced then.
    let folder = Directory::new();
    let file = folder.file("peers.json");
    let wrong = r#"{"prefix":"198.19.5.0/24","remote":"198.18.0.1","encap":"gue"}"#;
    let with = |more: &str| TABLE.replace("]}", &format!(",{more}]}}"));
    fs::write(&file, with(wrong)).unwrap();
    let line = format!(
        "dev {DEVICE} peers {} local 198.18.0.1 listen vxlan,gue,fou id 1 lladdr {OURS} mtu 1400 addr 198.19.1.1/24",
        file.display()
    );
    let words: Vec<String> = line.split_whitespace().map(String::from).collect();
    let _a = Tunnel::start(&ground.a, &ground.program, &words);
    ip(&ground.a, &format!("route add 198.19.0.0/16 dev {DEVICE}"));
    segue_lab::reach((&ground.a, at("198.19.1.1")), (&ground.b, at("198.19.2.1")), PATIENCE).unwrap();
    let listed = |count: usize| {
        assert_eq!(peer(&ground, true, &format!("list {DEVICE}"), "")["peers"].as_array().unwrap().len(), count)
    };
    listed(4);
    let mut ping = ground.a.command("ping");
    ping.args(["-n", "-i", "0.02", "-c", "50", "-W", "60", "198.19.2.1"]);
    let mut ping = Process::spawn(ping, b"").unwrap();
    for (entry, rule) in [
        (wrong, "this end of the tunnel"),
        (r#"{"prefix":"198.19.5.0/24","remote":"198.18.0.5","encap":"ipip"}"#, "unknown variant `ipip`"),
        (r#"{"prefix":"198.19.5.0/24","remote":"2001:db8::5","encap":"gue"}"#, "not of the family"),
        (r#"{"prefix":"198.19.5.0/24","remote":"198.18.0.5","encap":"gue","remcsum":true}"#, "encap-remcsum"),
        (r#"{"match":"02:00:00:00:00:05","remote":"198.18.0.5"}"#, "by `match`"),
        ("7", "a peer is a JSON object"),
    ] {
        let mut table: Value = serde_json::from_str(&with(entry)).unwrap();
        let next = peer(&ground, true, &format!("list {DEVICE}"), "")["generation"].as_u64().unwrap() + 1;
        table["generation"] = next.into();
        let output = try_peer(&ground, true, &format!("sync {DEVICE} - -j"), &table.to_string());
        let done: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        assert_eq!(
            (output.status.code(), &done["refused"], &done["unchanged"]),
            (Some(1), &1.into(), &4.into()),
            "{done}"
        );
        let refused = &done["refused_peers"][0];
        assert!(refused["number"] == 5 && refused["why"].as_str().unwrap().contains(rule), "{entry}: {refused}");
        listed(4);
    }
    let output = try_peer(&ground, true, &format!("sync {DEVICE} -"), &with(wrong).replace(":5,", ":90,"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("refused: peer 5 (198.19.5.0/24): `remote` 198.18.0.1 is this end of the tunnel"), "{said}");
    assert!(ping.wait(PATIENCE).unwrap().success() && ping.stdout().contains(" 0% packet loss"), "{}", ping.stdout());
}

/// Returns a table of `count` peers that no host answers for, besides the kernel at B.
fn large(generation: u64, count: u32) -> String {
    let mut text = format!(r#"{{"generation":{generation},"peers":["#);
    for number in 0..count {
        let prefix = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (number << 8));
        let remote = std::net::Ipv4Addr::from_bits(0x0b00_0001 + number + ((generation as u32 % 7) << 16));
        write!(text, r#"{{"prefix":"{prefix}/24","remote":"{remote}","encap":"gue"}},"#).unwrap();
    }
    let kernel = r#"{"prefix":"198.19.2.0/24","remote":"198.18.0.2","encap":"vxlan","mac":"5a:65:bd:bd:44:bb"}]}"#;
    text + kernel
}

#[test]
fn a_table_is_replaced_again_and_again_while_a_file_passes_whole() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["bridge"]) else { return };
    replace_the_table_while_a_file_passes(&ground, BY_DAEMON);
}

#[test]
fn the_path_through_the_kernel_follows_a_table_of_ten_thousand_while_a_file_passes_whole() {
    let Some(ground) = fastpath::ground(test_name!(), LinkForm::Nic, &["bridge"]) else { return };
    let _a = replace_the_table_while_a_file_passes(&ground, BY_KERNEL);
    // The routes of so many remotes are looked up by and by, the first ones first; until then segue sends.
    let [near, far] = [(&ground.a, "198.19.1.1"), (&ground.b, "198.19.2.1")]
        .map(|(host, address)| traffic::Place { host, address: at(address) });
    let begin = Instant::now();
    loop {
        traffic::file(near, far, traffic::SHORT, 3);
        let stat = Stat::read(&ground.a, &ground.program, DEVICE);
        assert_eq!(stat.json()["fastpath"]["peers"]["kernel"], 10_001, "{}", stat.json()["fastpath"]);
        let taken = ["sent", "received"].map(|direction| stat.count(DEVICE, "fastpath", direction));
        if taken.iter().all(|count| *count > 40) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{taken:?}: {}", stat.json()["ports"]);
    }
}

fn replace_the_table_while_a_file_passes(ground: &Ground, words: &str) -> Tunnel {
    add_kernel(ground, "noudpcsum");
    let a = start_a(ground, words);
    peer(ground, true, &format!("sync {DEVICE} -"), &large(1, 10_000));
    let (near, far) = (at("198.19.1.1"), at("198.19.2.1"));
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    let [near_end, far_end] =
        [(&ground.a, near), (&ground.b, far)].map(|(host, address)| traffic::Place { host, address });
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let last = thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut generation = 1;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) || generation < 4 {
                generation += 1;
                let done = peer(ground, true, &format!("sync {DEVICE} -"), &large(generation, 10_000));
                assert_eq!((&done["replaced"], &done["unchanged"]), (&Value::from(10_000), &Value::from(1)));
            }
            generation
        });
        traffic::file(near_end, far_end, traffic::SHORT, 1);
        traffic::file(far_end, near_end, traffic::SHORT, 2);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        changes.join().unwrap()
    });
    // A table is in force when the first packet after it has come.
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    let in_force = |stat: &Stat| stat.json()["peers"]["in_force"] == last;
    let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, in_force);
    assert!(in_force(&stat), "{last}: {}", stat.json()["peers"]);
    assert_eq!(stat.json()["peers"]["peers"], 10_001);
    assert!(drops(&stat).is_empty(), "no packet is lost by a change: {:?}", stat.drops());
    // A refused table changes nothing.
    let refused = try_peer(ground, true, &format!("sync {DEVICE} -"), &large(1, 1));
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stale generation 1"));
    assert_eq!(peer(ground, true, &format!("list {DEVICE}"), "")["generation"], last);
    a
}
