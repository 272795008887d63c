//! Tests of a fleet whose registry is etcd, with nodes of segue and of the kernel, and the walk-throughs of
//! docs/fleet.md.

#[path = "common/flannel.rs"]
mod flannel;
#[path = "common/fleet.rs"]
mod ground;
#[path = "common/hostile.rs"]
mod hostile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use flannel::Flanneld;
use ground::{CONFIG, DEVICE, Fleet, Node, PATIENCE, SUBNETS, TLS, at, datagrams, ip, kernel_node, until};
use segue_lab::{Host, Process};
use segue_tests::capture::{Capture, Directory};
use segue_tests::{Ground, Stat, Tunnel, test_name, traffic};
use serde_json::{Value, json};

/// Checks an overlay of two nodes of segue, 198.18.0.2 and 3, which offer GUE with remote checksums, and one whose
/// VXLAN is the kernel's, 198.18.0.4: all six directed pairs, and the encapsulation of each.
#[track_caller]
fn mixed(fleet: &Fleet, a: &Node, b: &Node, (kernel, address): (&Host, &str)) {
    // The leases are flannel's but for the offer, which flannel ignores.
    for node in [a, b] {
        let key = node.subnet().replace('/', "-");
        let offer = r#","segue":{"v":1,"encap":"gue","port":6080,"remcsum":true}"#;
        let value = format!(
            r#"{{"PublicIP":"198.18.0.{}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{}"{offer}}}}}"#,
            node.n,
            node.mac(fleet)
        );
        assert!(fleet.leases().contains(&(key, value)), "{:?}", fleet.leases());
    }
    until("every table has two peers", || [a, b].iter().all(|node| node.peers(fleet).len() == 2));
    let path = fleet.directory.file("a.pcap");
    let capture = Capture::start(&a.host, path);
    pairs(&[at(&a.host, &a.address()), at(&b.host, &b.address()), at(kernel, address)], traffic::SHORT * 2);
    // GUE with the option between the nodes of segue, VXLAN to the kernel, from one overlay.
    let sent = datagrams(&capture.stop());
    let to = |n: u8| sent.iter().filter(move |fields| fields[1] == format!("198.18.0.{n}")).collect::<Vec<_>>();
    let ports = |n: u8| to(n).iter().map(|fields| fields[2].clone()).collect::<BTreeSet<_>>();
    assert_eq!(ports(3), BTreeSet::from(["6080".to_owned()]));
    assert_eq!(ports(4), BTreeSet::from(["8472".to_owned()]));
    // GUE: version 0, two words of options, the flag for private ones, of these remote checksum offload.
    let has_option = |payload: &str| payload.starts_with("02") && payload[4..16] == *"000180000000";
    assert!(to(3).iter().filter(|fields| has_option(&fields[3])).count() > 1000, "{:?}", to(3).first());
    for node in [a, b] {
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

/// Sends files of `len` bytes, datagrams and pings between each two of three places, in both directions.
#[track_caller]
fn pairs(places: &[traffic::Place<'_>; 3], len: u64) {
    for (seed, (one, other)) in (1u64..).zip([(0, 1), (0, 2), (1, 2)]) {
        let (near, far) = (places[one], places[other]);
        segue_lab::reach((near.host, near.address), (far.host, far.address), PATIENCE).unwrap();
        traffic::everything(near, far, len, seed);
    }
}

#[test]
fn two_nodes_of_segue_and_one_of_the_kernel_are_one_overlay() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let (kernel, _follows) = kernel_node(&fleet, 4);
    let mut a = Node::start(&fleet, 2, "--offer gue,remcsum");
    let b = Node::start(&fleet, 3, "--offer gue,remcsum");
    mixed(&fleet, &a, &b, (&kernel, "198.19.4.0"));
    // VXLAN to the kernel's node is the kernel's at both nodes too; the option needs segue.
    for node in [&a, &b].into_iter().filter(|_| fleet.has_path) {
        node.until_served(&fleet, [1, 1]);
        node.took_the_path(&fleet, &["sent"]);
    }
    // The agent is gone without a word, and comes back: no packet is lost, and nothing changes.
    let lease = fleet.leases();
    let mut ping = a.host.command("ping");
    ping.args(["-n", "-i", "0.05", "-c", "60", "-W", "60", "198.19.4.0"]);
    let mut ping = Process::spawn(ping, b"").unwrap();
    a.kill_agent();
    a.start_agent(&fleet.program);
    assert!(ping.wait(PATIENCE).unwrap().success() && ping.stdout().contains(" 0% packet loss"), "{}", ping.stdout());
    assert_eq!(fleet.leases(), lease);
    // The end by a signal keeps the lease and the table.
    a.agent.as_mut().unwrap().stop(PATIENCE);
    assert_eq!((fleet.leases(), a.peers(&fleet).len()), (lease, 2));
}

/// Checks an overlay of nodes of the kernel, one of segue by the path through the kernel and one by its process: each
/// with each other one.
#[track_caller]
fn both_directions(fleet: &Fleet, others: [(&Host, &str); 2], len: u64) {
    let by_path = Node::start(fleet, 2, "");
    let by_daemon = Node::by_daemon(fleet, 3, "");
    let nodes = [&by_path, &by_daemon];
    until("every table has three peers", || nodes.iter().all(|node| node.peers(fleet).len() == 3));
    // The lease is flannel's byte for byte, but for its values.
    let leases: BTreeMap<String, String> = fleet.leases().into_iter().collect();
    let theirs = leases.values().find(|value| value.contains("198.18.0.4")).expect("the lease of the other");
    let mac: Value = serde_json::from_str(theirs).unwrap();
    let mac = mac["BackendData"]["VtepMAC"].as_str().unwrap();
    for node in nodes {
        let of = &leases[&node.subnet().replace('/', "-")];
        let n = format!("198.18.0.{}", node.n);
        assert_eq!(*of, theirs.replace("198.18.0.4", &n).replace(mac, &node.mac(fleet)));
        let [one, two] = others.map(|(host, address)| at(host, address));
        pairs(&[at(&node.host, &node.address()), one, two], len);
    }
    if fleet.has_path {
        by_path.until_served(fleet, [3, 0]);
        by_path.took_the_path(fleet, &["sent"]);
    }
    assert_eq!(Stat::read(&by_daemon.host, &fleet.program, DEVICE).json()["fastpath"]["on"], false);
    for node in nodes {
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

#[test]
fn nodes_of_the_kernel_and_of_segue_are_one_overlay_by_either_path() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let [(one, _one), (two, _two)] = [4, 5].map(|n| kernel_node(&fleet, n));
    both_directions(&fleet, [(&one, "198.19.4.0"), (&two, "198.19.5.0")], traffic::SHORT);
}

#[test]
fn the_path_through_the_kernel_carries_an_overlay_at_both_ends() {
    let Some(fleet) = Fleet::with_path(test_name!()) else { return };
    let (kernel, _follows) = kernel_node(&fleet, 4);
    let [a, b] = [2, 3].map(|n| Node::start(&fleet, n, ""));
    let nodes = [&a, &b];
    until("every table has two peers", || nodes.iter().all(|node| node.peers(&fleet).len() == 2));
    nodes.iter().for_each(|node| node.until_served(&fleet, [2, 0]));
    pairs(&[at(&a.host, &a.address()), at(&b.host, &b.address()), at(&kernel, "198.19.4.0")], traffic::SHORT * 2);
    for node in nodes {
        node.took_the_path(&fleet, &["sent", "received"]);
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

#[test]
fn a_node_that_dies_leaves_every_table_and_comes_back_as_it_was() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let mut a = Node::start(&fleet, 2, "--ttl 10s");
    let b = Node::start(&fleet, 3, "--ttl 10s --public-ip 198.18.0.33");
    // The tunnel of B refuses a table with a peer that has its own address: that lease costs no other its peer.
    let own = r#"{"PublicIP":"198.18.0.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:03"}}"#;
    fleet.ctl(&["put", &format!("{SUBNETS}/198.19.207.0-24"), "--", own]);
    until("it is refused under its reason", || b.state()["refused"]["own_address"] == 1);
    let before = (b.one_peer(&fleet)["mac"].clone(), a.subnet());
    a.kill_agent();
    until("its lease ends", || b.peers(&fleet).is_empty());
    a.start_agent(&fleet.program);
    assert_eq!((b.one_peer(&fleet)["mac"].clone(), a.subnet()), before);
    // What is in VXLAN without more is the kernel's at both nodes; of A, also the lease with the address of B's tunnel.
    for (node, count) in [(&a, 2), (&b, 1)].into_iter().filter(|_| fleet.has_path) {
        node.until_served(&fleet, [count, 0]);
    }
    // SIGTERM ends the tunnel too, and no device stays.
    a.agent.as_mut().unwrap().stop(PATIENCE);
    let Node { host, tunnel, .. } = a;
    drop(tunnel);
    assert!(!host.has_device(DEVICE), "{:?}", host.devices());
}

/// Returns a node of the kernel, which follows no lease any more, and one of segue that reach each other.
fn pair(fleet: &Fleet) -> (Host, Node) {
    let (kernel, follows) = kernel_node(fleet, 4);
    let a = Node::start(fleet, 2, "");
    until("the kernel is a peer", || a.peers(fleet).len() == 1);
    segue_lab::reach((&a.host, a.address().parse().unwrap()), (&kernel, "198.19.4.0".parse().unwrap()), PATIENCE)
        .unwrap();
    drop(follows);
    (kernel, a)
}

/// Starts pings from a host to an address that go on until [`nothing_lost`].
fn pinging(from: &Host, to: &str) -> Process {
    let mut ping = from.command("ping");
    ping.args(["-n", "-i", "0.05", to]);
    Process::spawn(ping, b"").unwrap()
}

/// Ends pings, of which each must have been answered.
#[track_caller]
fn nothing_lost(mut ping: Process, from: &Host) {
    from.run("kill", &["-INT", &ping.id().to_string()]).unwrap();
    let is_done = ping.wait(PATIENCE).unwrap().success();
    let said = ping.stdout();
    let number = |text: &str| text.split(' ').next().and_then(|first| first.parse().ok());
    let answered: BTreeSet<u64> = said.split("icmp_seq=").skip(1).filter_map(number).collect();
    let sent = said.split(" packets transmitted").next().and_then(|before| number(before.lines().last()?));
    // The end may come before the last answer.
    let last = answered.last().copied().unwrap_or(0);
    assert!(
        is_done && answered.len() as u64 == last && sent.is_some_and(|sent| last > 0 && sent <= last + 1),
        "{said}"
    );
}

/// Reads or writes keys of etcd with `fleet_keys.py`.
#[track_caller]
fn keys(fleet: &Fleet, words: &[&str], input: &Value) -> String {
    let mut command = fleet.etcd.command("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet_keys.py")).arg(fleet.endpoints()).args(words);
    let mut process = Process::spawn(command, input.to_string().as_bytes()).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{}", process.stderr());
    process.stdout()
}

#[test]
fn hostile_leases_and_an_outage_cost_no_packet() {
    let Some(mut fleet) = Fleet::new(test_name!()) else { return };
    let (kernel, a) = pair(&fleet);
    let b = Node::by_daemon(&fleet, 3, "");
    until("both segues are peers", || a.peers(&fleet).len() == 2 && b.peers(&fleet).len() == 2);
    let near = (&a.host, a.address().parse().unwrap());
    segue_lab::reach(near, (&b.host, b.address().parse().unwrap()), PATIENCE).unwrap();
    let table = table_of(&a, &fleet);
    let pings = ["198.19.4.0", &b.address()].map(|to| pinging(&a.host, to));
    let is_kernels = |lease: &(String, String)| lease.0 == "198.19.4.0-24";
    let (_, of_kernel) = fleet.leases().into_iter().find(is_kernels).expect("the lease of the kernel's node");
    let kernels = (format!("{SUBNETS}/198.19.4.0-24"), of_kernel);
    let hostile = hostile::leases(&a.subnet(), &a.mac(&fleet));
    let mut expected = BTreeMap::new();
    for some in hostile.iter().collect::<Vec<_>>().chunks(6) {
        let leases: Vec<_> = some.iter().flat_map(|(_, leases)| *leases).collect();
        keys(&fleet, &["put"], &json!(leases));
        expected.extend(some.iter().map(|(reason, leases)| ((**reason).to_owned(), leases.len() as u64)));
        until(&format!("refused are {expected:?}"), || json!(expected) == a.state()["refused"]);
        assert_eq!(table_of(&a, &fleet), table, "{some:?}");
    }
    assert!(expected.values().sum::<u64>() >= 50, "{expected:?}");
    // All that was ever written is the test's own, and of each node its own lease.
    let end = format!("{SUBNETS}-end");
    keys(&fleet, &["put"], &json!([[&end, ""]]));
    let history = keys(&fleet, &["history", SUBNETS, &end], &Value::Null);
    let history: Vec<(String, String, String)> = serde_json::from_str(&history).unwrap();
    let own = [&a, &b].map(|node| format!("{SUBNETS}/{}", node.subnet().replace('/', "-")));
    let (of_nodes, others): (Vec<_>, Vec<_>) = history.into_iter().partition(|(_, key, _)| own.contains(key));
    let of_node = |(what, key, value): &(String, String, String)| {
        let node = [&a, &b][usize::from(*key == own[1])];
        what == "PUT" && value.contains(&node.mac(&fleet)) && value.contains(&format!("198.18.0.{}", node.n))
    };
    assert!(of_nodes.len() == 2 && of_nodes.iter().all(of_node), "{of_nodes:?}");
    let puts = hostile.into_values().flatten().chain([kernels, (end, String::new())]);
    let puts: BTreeSet<(String, String, String)> = puts.map(|(key, value)| ("PUT".to_owned(), key, value)).collect();
    assert_eq!(others.len(), puts.len(), "each once");
    assert_eq!(others.into_iter().collect::<BTreeSet<_>>(), puts);
    // etcd is gone: the table stays, and the state says so.
    drop(fleet.server.take());
    until("the agent says so", || a.state()["state"] == "stale");
    pings.into_iter().for_each(|ping| nothing_lost(ping, &a.host));
    assert_eq!(table_of(&a, &fleet), table);
    segue_lab::reach(near, (&kernel, "198.19.4.0".parse().unwrap()), PATIENCE).unwrap();
    fleet.start_etcd();
    until("it is connected again", || a.state()["state"] == "connected");
    assert!(fs::exists(fleet.directory.file("etcd")).unwrap());
}

/// Returns the blocks of this language in the section of docs/fleet.md whose title begins so.
fn blocks(section: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md")).unwrap();
    let section = text.split("\n## ").find(|part| part.starts_with(section)).expect("a section of this title");
    let parts = section.split("```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned)).collect()
}

/// Returns PATH with the folder of the program under test in front.
fn path_of(fleet: &Fleet) -> String {
    format!("{}:{}", fleet.program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default())
}

/// Returns the peers of a node as prefix, remote and MAC address.
fn table_of(node: &Node, fleet: &Fleet) -> BTreeMap<String, (String, String)> {
    let text = |peer: &Value, key: &str| peer[key].as_str().unwrap_or_default().to_owned();
    let peers = node.peers(fleet);
    peers.iter().map(|peer| (text(peer, "prefix"), (text(peer, "remote"), text(peer, "mac")))).collect()
}

/// Returns the leases of all hosts but this one.
fn leases_of(fleet: &Fleet, own: &str) -> BTreeMap<String, (String, String)> {
    let parsed = fleet.leases().into_iter().map(|(key, value)| {
        let lease: Value = serde_json::from_str(&value).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (key.replace('-', "/"), (text(&lease["PublicIP"]), text(&lease["BackendData"]["VtepMAC"])))
    });
    parsed.filter(|(subnet, _)| subnet != own).collect()
}

/// Kills the leader of three members in the middle of so many changes, ten a second, and then all members for a time.
fn members_end(name: &str, changes: u32, outage: Duration) {
    let Some(mut fleet) = Fleet::of_three(name) else { return };
    let (_kernel, a) = pair(&fleet);
    let ping = pinging(&a.host, "198.19.4.0");
    let mut changer = fleet.etcd.command("python3");
    changer.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet_changes.py"));
    changer.args([&changes.to_string(), "10", fleet.endpoints()]);
    let leader = fleet.leader();
    let mut changer = Process::spawn(changer, b"").unwrap();
    changer.wait_for_line("half", PATIENCE).unwrap();
    fleet.kill_member(leader);
    assert!(changer.wait(PATIENCE + outage).unwrap().success(), "{}", changer.stderr());
    let (subnet, table) = (a.subnet(), leases_of(&fleet, &a.subnet()));
    assert!(table.len() > 10, "{table:?}");
    until("the table is etcd's", || table_of(&a, &fleet) == table);
    (0..3).filter(|n| *n != leader).for_each(|n| fleet.kill_member(n));
    until("the agent says so", || a.state()["state"] == "stale" && a.state()["since"].as_u64() > Some(0));
    thread::sleep(outage);
    assert_eq!((a.state()["state"].as_str(), table_of(&a, &fleet)), (Some("stale"), table));
    nothing_lost(ping, &a.host);
    (0..3).for_each(|n| fleet.start_member(n));
    until("it is connected again", || a.state()["state"] == "connected");
    fleet.ctl(&["del", &format!("{SUBNETS}/198.19.4.0-24")]);
    until("it follows again", || table_of(&a, &fleet) == leases_of(&fleet, &subnet));
}

#[test]
fn the_end_of_a_leader_and_of_all_members_costs_no_packet() {
    members_end(test_name!(), 30, Duration::ZERO);
}

#[test]
fn full_size_members_are_away_for_a_minute_after_600_changes() {
    members_end(test_name!(), 600, Duration::from_secs(60));
}

#[test]
fn full_size_two_flannelds_and_a_segue_node_are_one_overlay() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    let [(one, first), (two, second)] = [4, 5].map(|n| Flanneld::start(&fleet, &program, n));
    both_directions(&fleet, [(&one, &first.address()), (&two, &second.address())], 16 << 20);
}

#[test]
fn full_size_gue_goes_between_nodes_of_segue_and_vxlan_to_flanneld() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    let (host, flanneld) = Flanneld::start(&fleet, &program, 4);
    let [a, b] = [2, 3].map(|n| Node::start(&fleet, n, "--offer gue,remcsum"));
    mixed(&fleet, &a, &b, (&host, &flanneld.address()));
}

#[test]
fn full_size_backend_udp_of_flanneld_and_segue_understand_each_other() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    let udp = r#"{"Network":"198.19.0.0/16","SubnetLen":24,"EnableNFTables":true,"Backend":{"Type":"udp"}}"#;
    fleet.ctl(&["put", "/coreos.com/network/config", "--", udp]);
    let (host, flanneld) = Flanneld::start(&fleet, &program, 4);
    let [a, b] = [2, 3].map(|n| Node::listening(&fleet, n, "fou:8285 mtu 1472", ""));
    until("every table has two peers", || [&a, &b].iter().all(|node| node.peers(&fleet).len() == 2));
    pairs(&[at(&a.host, &a.address()), at(&b.host, &b.address()), at(&host, &flanneld.address())], traffic::SHORT);
}

#[test]
fn full_size_nodes_that_start_together_never_share_a_subnet() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    let four =
        CONFIG.replace(r#""SubnetLen":24"#, r#""SubnetLen":24,"SubnetMin":"198.19.1.0","SubnetMax":"198.19.4.0""#);
    fleet.ctl(&["put", "/coreos.com/network/config", "--", &four]);
    let mut nodes = [2, 3].map(|n| Node::without_agent(&fleet, n, "vxlan:8472 id 1", ""));
    let host = Host::new("flannel").unwrap();
    fleet.plug(&host, 4);
    let mut flanneld = Flanneld::new(&fleet, &program, 4);
    for round in 0..if segue_testkit::is_set("SEGUE_SOAK") { 50 } else { 10 } {
        flanneld.launch(&host);
        nodes.iter_mut().for_each(|node| node.launch_agent(&fleet.program));
        nodes.iter_mut().for_each(|node| until("an agent has a lease", || node.has_lease()));
        flanneld.until_up(&host);
        let [one, two] = [&nodes[0], &nodes[1]].map(Node::subnet);
        let subnets = BTreeSet::from([one, two, flanneld.subnet().unwrap()]);
        let leased: BTreeSet<String> = fleet.leases().into_iter().map(|(key, _)| key.replace('-', "/")).collect();
        assert_eq!((subnets.len(), &subnets), (3, &leased), "round {round}");
        assert!(subnets.iter().all(|subnet| ["1", "2", "3", "4"].contains(&subnet.split('.').nth(2).unwrap())));
        // The next round knows nothing of this one.
        flanneld.kill(&host);
        flanneld.forget();
        ip(&host, "link del flannel.1");
        for node in &mut nodes {
            node.kill_agent();
            node.host.run("rm", &[&format!("/run/segue/{DEVICE}.subnet.env")]).unwrap();
        }
        fleet.ctl(&["del", "--prefix", &format!("{SUBNETS}/")]);
    }
}

#[test]
fn full_size_two_flannelds_drive_two_segues_by_hooks() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    // The configuration is that of docs/fleet.md; a host that is gone is removed sooner, and nft makes the rules.
    let mut config: Value = serde_json::from_str(&blocks("For users of Kubernetes", "json")[0]).unwrap();
    let post = config["Backend"]["PostStartupCommand"].as_str().unwrap().to_owned();
    config["Backend"]["PostStartupCommand"] = format!("{post} --grace 3").into();
    config["EnableNFTables"] = true.into();
    fleet.ctl(&["put", "/coreos.com/network/config", "--", &config.to_string()]);
    let hosts = [2, 3].map(|n| {
        let host = Host::new("node").unwrap();
        fleet.plug(&host, n);
        host
    });
    let _tunnels = [(&hosts[0], 2), (&hosts[1], 3)].map(|(host, n)| {
        let line = format!("dev segue0 peers none local 198.18.0.{n} listen gue:6080 encap-remcsum mtu 1420");
        Tunnel::start(host, &fleet.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>())
    });
    let mut flannels = [2, 3].map(|n| Flanneld::new(&fleet, &program, n));
    for (flanneld, host) in flannels.iter_mut().zip(&hosts) {
        flanneld.launch(host);
        flanneld.until_up(host);
        let address = flanneld.address();
        ip(host, &format!("address add {address}/32 dev segue0"));
        ip(host, &format!("route add 198.19.0.0/16 dev segue0 src {address}"));
    }
    let listed = |host: &Host| -> Value {
        let text = host.run(fleet.program.to_str().unwrap(), &["peer", "list", "segue0", "-j"]).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let remotes = |host: &Host| -> Vec<String> {
        let listed = listed(host);
        listed["peers"].as_array().unwrap().iter().map(|peer| peer["remote"].as_str().unwrap().to_owned()).collect()
    };
    let are_joined = || remotes(&hosts[0]) == ["198.18.0.3"] && remotes(&hosts[1]) == ["198.18.0.2"];
    until("each has the other", are_joined);
    let places = [at(&hosts[0], &flannels[0].address()), at(&hosts[1], &flannels[1].address())];
    segue_lab::reach((places[0].host, places[0].address), (places[1].host, places[1].address), PATIENCE).unwrap();
    traffic::everything(places[0], places[1], traffic::SHORT, 9);
    let stat = Stat::read(&hosts[0], &fleet.program, "segue0");
    assert!(stat.json()["ports"]["gue"]["remcsum"]["sent"].as_u64() > Some(0), "{}", stat.json());
    // A restart repeats each add, which changes nothing.
    let generation = listed(&hosts[0])["generation"].clone();
    flannels[0].kill(&hosts[0]);
    flannels[0].launch(&hosts[0]);
    let rounds = || hosts[0].run("cat", &["/run/segue/segue0.hook.json"]).ok();
    let is_confirmed = |round: u64| {
        let known: Value = rounds().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let peers = known["peers"].as_object().cloned().unwrap_or_default();
        known["round"] == round && peers.len() == 1 && peers.values().all(|peer| peer[0] == round)
    };
    until("the second start has confirmed the peer", || is_confirmed(2));
    assert_eq!((listed(&hosts[0])["generation"].clone(), are_joined()), (generation, true));
    // A host that goes while flanneld is down gets no del: it is removed when its time is over.
    for (flanneld, host) in flannels.iter_mut().zip(&hosts) {
        flanneld.kill(host);
    }
    fleet.ctl(&["del", &format!("{SUBNETS}/{}", flannels[1].subnet().unwrap().replace('/', "-"))]);
    flannels[0].launch(&hosts[0]);
    until("the host that is gone is removed", || remotes(&hosts[0]).is_empty());
    flannels[1].launch(&hosts[1]);
    until("it is back", are_joined);
    segue_lab::reach((places[0].host, places[0].address), (places[1].host, places[1].address), PATIENCE).unwrap();
}

#[test]
fn the_walk_through_for_users_of_flannel_works_as_it_is_written() {
    let Some(fleet) = Fleet::at(test_name!(), TLS) else { return };
    let [configure, start, address] = blocks("For users of flannel", "sh").try_into().unwrap();
    let mut command = fleet.command(&fleet.etcd, "sh");
    command.env("ETCDCTL_COMMAND_TIMEOUT", "60s").env("ETCDCTL_DIAL_TIMEOUT", "60s");
    let configured = command.args(["-c", &configure]).output().unwrap();
    assert!(configured.status.success(), "{configured:?}");
    let (kernel, _follows) = kernel_node(&fleet, 4);
    let host = Host::new("node").unwrap();
    fleet.plug(&host, 2);
    let folder = Directory::new();
    fs::copy(fleet.certificate(), folder.file("ca.pem")).unwrap();
    let mut command = host.command("sh");
    command.args(["-ec", &format!("{start}\n{address}\necho done\nwait")]);
    command.env("PATH", path_of(&fleet)).current_dir(folder.path());
    let mut shell = Process::spawn(command, b"").unwrap();
    shell.wait_for_line("done", PATIENCE).unwrap();
    let state = || -> Value {
        serde_json::from_str(&host.run("cat", &["/run/segue/segue0.fleet.json"]).unwrap()).unwrap_or_default()
    };
    until("the kernel is a peer", || state()["peers"] == 1 && state()["state"] == "connected");
    let own = state()["subnet"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let (near, far) = (own.parse().unwrap(), "198.19.4.0".parse().unwrap());
    segue_lab::reach((&host, near), (&kernel, far), PATIENCE).unwrap();
    traffic::file(at(&host, &own), at(&kernel, "198.19.4.0"), traffic::SHORT, 3);
}

#[test]
fn the_walk_through_for_users_of_kubernetes_works_as_it_is_written() {
    let Some(ground) = Ground::new(test_name!(), segue_lab::LinkForm::Nic, &["ping"]) else { return };
    let path = format!("{}:{}", ground.program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let config: Value = serde_json::from_str(&blocks("For users of Kubernetes", "json")[0]).unwrap();
    // As flanneld does: variables are put in, the words are split at blanks, and there is no shell.
    let call = |host: &Host, name: &str, variables: [(&str, &str); 3], input: &str| {
        let mut line = config["Backend"][name].as_str().unwrap().to_owned();
        for (variable, value) in variables {
            line = line.replace(variable, value);
        }
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("segue"));
        let mut command = host.command(&ground.program);
        command.args(words).env("PATH", &path);
        let mut process = Process::spawn(command, input.as_bytes()).unwrap();
        assert!(
            process.wait(PATIENCE).unwrap().success() && process.stderr().is_empty(),
            "{line}: {}",
            process.stderr()
        );
        process.stdout()
    };
    let nodes = [(&ground.a, 1), (&ground.b, 2)];
    let of = |n: u8| (format!("198.19.{n}.0/24"), format!("198.18.0.{n}"));
    let tunnels = nodes.map(|(host, n)| {
        let line = format!(
            "dev segue0 peers none local 198.18.0.{n} listen gue:6080 encap-remcsum mtu 1420 addr 198.19.{n}.1/32"
        );
        let tunnel =
            Tunnel::start(host, &ground.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>());
        ip(host, &format!("route add 198.19.0.0/16 dev segue0 src 198.19.{n}.1"));
        tunnel
    });
    let data = nodes.map(|(host, _)| call(host, "PreStartupCommand", [("$", "$"), ("$", "$"), ("$", "$")], ""));
    for (host, n) in nodes {
        let (subnet, address) = of(n);
        let network = config["Network"].as_str().unwrap();
        let variables = [("$NETWORK", network), ("$SUBNET", &subnet), ("$PUBLIC_IP", &address)];
        call(host, "PostStartupCommand", variables, "");
    }
    // Each add comes twice, as after a renewal.
    for ((host, n), _) in [nodes[0], nodes[1], nodes[0], nodes[1]].into_iter().zip(0..) {
        let (subnet, address) = of(3 - n);
        let variables = [("$NETWORK", ""), ("$SUBNET", subnet.as_str()), ("$PUBLIC_IP", address.as_str())];
        call(host, "SubnetAddCommand", variables, &data[usize::from(2 - n)]);
    }
    let places = [at(&ground.a, "198.19.1.1"), at(&ground.b, "198.19.2.1")];
    segue_lab::reach((places[0].host, places[0].address), (places[1].host, places[1].address), PATIENCE).unwrap();
    traffic::everything(places[0], places[1], traffic::SHORT, 9);
    // What the tunnel itself refuses is not kept: it would cost the tunnel its next start.
    let mut refused = ground.a.command(&ground.program);
    refused.args(["fleet", "hook", "add", "198.19.9.0/24", "198.18.0.9"]).env("PATH", &path);
    let mut refused = Process::spawn(refused, br#"{"mode":"fou","port":8285}"#).unwrap();
    assert!(
        !refused.wait(PATIENCE).unwrap().success() && refused.stderr().contains("`listen`"),
        "{}",
        refused.stderr()
    );
    let kept = |ending: &str| ground.a.run("cat", &[&format!("/run/segue/segue0.{ending}.json")]).unwrap();
    assert!(kept("peers").contains("198.19.2.0/24") && !kept("peers").contains("198.19.9.0/24"), "{}", kept("peers"));
    assert!(kept("fleet").contains(r#""tunnel":1"#), "{}", kept("fleet"));
    let (subnet, address) = of(2);
    for _ in 0..2 {
        let variables = [("$NETWORK", ""), ("$SUBNET", subnet.as_str()), ("$PUBLIC_IP", address.as_str())];
        call(&ground.a, "SubnetRemoveCommand", variables, &data[1]);
    }
    let listed = ground.a.run(ground.program.to_str().unwrap(), &["peer", "list", "segue0", "-j"]).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["peers"], json!([]));
    drop(tunnels);
}
