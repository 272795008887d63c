//! Tests of a fleet whose registry is etcd, with nodes of segue and of the kernel, and the walk-through for users of
//! flannel in docs/fleet.md.

#[path = "common/flannel.rs"]
mod flannel;
#[path = "common/fleet.rs"]
mod ground;
#[path = "common/guide.rs"]
mod guide;
#[path = "common/hostile.rs"]
mod hostile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use flannel::Flanneld;
use ground::{
    CONFIG, DEVICE, Fleet, Load, Node, PATIENCE, SUBNETS, TLS, TLS_OF_CLIENTS, at, datagrams, ip, kernel_node, until,
    until_within,
};
use guide::blocks;
use segue_lab::{Host, Process};
use segue_tests::capture::{Capture, Directory};
use segue_tests::{Stat, Tunnel, test_name, traffic};
use serde_json::{Value, json};

/// The configuration of a network whose backend is flannel's `udp`.
const UDP: &str = r#"{"Network":"198.19.0.0/16","SubnetLen":24,"EnableNFTables":true,"Backend":{"Type":"udp"}}"#;
/// Length of the file sent from each node to each other one.
const FILE_LEN: u64 = 16 << 20;

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
    let places = [at(&a.host, &a.address()), at(&b.host, &b.address()), at(kernel, address)];
    pairs(&places);
    let path = fleet.directory.file("a.pcap");
    let capture = Capture::start(&a.host, path);
    for (seed, (from, to)) in (7..).zip([(0, 1), (1, 0), (0, 2), (2, 0)]) {
        traffic::file(places[from], places[to], traffic::SHORT, seed);
    }
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
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops_but_overflow();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

/// Sends files, datagrams and pings between each two of three endpoints, in both directions.
#[track_caller]
fn pairs(places: &[traffic::Place<'_>; 3]) {
    for (seed, (one, other)) in (1u64..).zip([(0, 1), (0, 2), (1, 2)]) {
        between(places[one], places[other], seed);
    }
}

#[track_caller]
fn between(near: traffic::Place<'_>, far: traffic::Place<'_>, seed: u64) {
    segue_lab::reach((near.host, near.address), (far.host, far.address), PATIENCE).unwrap();
    traffic::everything(near, far, FILE_LEN, seed);
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
    // The agent is gone without a word, and comes back, again and again: no packet is lost, and nothing changes.
    let lease = fleet.leases();
    let ping = pinging(&a.host, "198.19.4.0");
    for _ in 0..if segue_testkit::is_set("SEGUE_FULL") { 10 } else { 3 } {
        a.kill_agent();
        a.start_agent(&fleet.program);
        assert_eq!((fleet.leases(), a.peers(&fleet).len()), (lease.clone(), 2));
    }
    nothing_lost(ping, &a.host);
    // The end by a signal keeps the lease and the table.
    a.agent.as_mut().unwrap().stop(PATIENCE);
    assert_eq!((fleet.leases(), a.peers(&fleet).len()), (lease, 2));
}

#[test]
fn two_nodes_of_segue_are_one_overlay_by_the_backend_udp() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    fleet.ctl(&["put", "/coreos.com/network/config", "--", UDP]);
    let nodes = [2, 3].map(|n| Node::listening(&fleet, n, "fou:8285 mtu 1472", ""));
    until("every table has a peer", || nodes.iter().all(|node| node.peers(&fleet).len() == 1));
    for node in &nodes {
        let value = format!(r#"{{"PublicIP":"198.18.0.{}","PublicIPv6":null}}"#, node.n);
        assert!(fleet.leases().contains(&(node.subnet().replace('/', "-"), value)), "{:?}", fleet.leases());
    }
    let [a, b] = nodes.each_ref().map(|node| at(&node.host, &node.address()));
    between(a, b, 1);
}

/// Checks an overlay of kernel nodes, a segue node on the in-kernel path and one served by its process, in all pairs.
#[track_caller]
fn both_directions(fleet: &Fleet, others: [(&Host, &str); 2]) {
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
        let own = at(&node.host, &node.address());
        // Those of the kernel have each other once.
        if node.n == by_path.n {
            pairs(&[own, one, two]);
        } else {
            (7..).zip([one, two]).for_each(|(seed, far)| between(own, far, seed));
        }
    }
    if fleet.has_path {
        by_path.until_served(fleet, [3, 0]);
        by_path.took_the_path(fleet, &["sent"]);
    }
    assert_eq!(Stat::read(&by_daemon.host, &fleet.program, DEVICE).json()["fastpath"]["on"], false);
    for node in nodes {
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops_but_overflow();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

#[test]
fn nodes_of_the_kernel_and_of_segue_are_one_overlay_by_either_path() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let [(one, _one), (two, _two)] = [4, 5].map(|n| kernel_node(&fleet, n));
    both_directions(&fleet, [(&one, "198.19.4.0"), (&two, "198.19.5.0")]);
}

#[test]
fn the_path_through_the_kernel_carries_an_overlay_at_both_ends() {
    let Some(fleet) = Fleet::with_path(test_name!()) else { return };
    let (kernel, _follows) = kernel_node(&fleet, 4);
    let [a, b] = [2, 3].map(|n| Node::start(&fleet, n, ""));
    let nodes = [&a, &b];
    until("every table has two peers", || nodes.iter().all(|node| node.peers(&fleet).len() == 2));
    nodes.iter().for_each(|node| node.until_served(&fleet, [2, 0]));
    pairs(&[at(&a.host, &a.address()), at(&b.host, &b.address()), at(&kernel, "198.19.4.0")]);
    for node in nodes {
        node.took_the_path(&fleet, &["sent", "received"]);
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops_but_overflow();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    }
}

/// Kills a node of segue, 198.18.0.2, and checks the reaction of another one and of a node with the kernel's VXLAN.
#[track_caller]
fn a_node_dies(fleet: &Fleet, (kernel, address): (&Host, &str)) {
    let mut a = Node::start(fleet, 2, "--ttl 10s");
    let b = Node::start(fleet, 3, "--ttl 10s --public-ip 198.18.0.33");
    // The tunnel of B refuses a table with a peer that has its own address: that lease costs no other its peer.
    let own = r#"{"PublicIP":"198.18.0.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:03"}}"#;
    fleet.ctl(&["put", &format!("{SUBNETS}/198.19.207.0-24"), "--", own]);
    until("it is refused under its reason", || b.state()["refused"]["own_address"] == 1);
    let of_a = || b.peers(fleet).into_iter().find(|peer| peer["remote"] == "198.18.0.2");
    let subnet = a.subnet();
    let routed = || !kernel.run("ip", &["route", "show", &subnet, "dev", "flannel.1"]).unwrap().is_empty();
    until("both others have it", || of_a().is_some() && routed());
    let before = of_a().map(|peer| (peer["prefix"].clone(), peer["mac"].clone()));
    a.kill();
    // Five times what it takes: the lease, and the time of what follows it.
    until_within(Duration::from_secs(75), "its lease ends", || of_a().is_none() && !routed());
    // Later it is to outlive the agent.
    a.words.iter_mut().filter(|word| word.as_str() == "10s").for_each(|word| "1h".clone_into(word));
    a.start_again(&fleet.program);
    until("both others have it again", || of_a().is_some() && routed());
    assert_eq!(of_a().map(|peer| (peer["prefix"].clone(), peer["mac"].clone())), before);
    let far = (kernel, address.parse().unwrap());
    segue_lab::reach((&a.host, a.address().parse().unwrap()), far, PATIENCE).unwrap();
    // What is in VXLAN without more is the kernel's at both nodes; of A, also the lease with the address of B's tunnel.
    for (node, count) in [(&a, 3), (&b, 2)].into_iter().filter(|_| fleet.has_path) {
        node.until_served(fleet, [count, 0]);
    }
    // SIGTERM of agent and tunnel keeps the lease, and no device stays.
    let lease = fleet.leases();
    a.agent.as_mut().unwrap().stop(PATIENCE);
    a.tunnel.process.stop(PATIENCE);
    assert!(!a.host.has_device(DEVICE), "{:?}", a.host.devices());
    let key = subnet.replace('/', "-");
    let of_key = |leases: Vec<(String, String)>| leases.into_iter().find(|(found, _)| *found == key);
    let kept = of_key(fleet.leases());
    assert!(kept.is_some() && kept == of_key(lease), "{kept:?}");
}

#[test]
fn a_node_that_dies_leaves_every_table_and_comes_back_as_it_was() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let (kernel, _follows) = kernel_node(&fleet, 4);
    a_node_dies(&fleet, (&kernel, "198.19.4.0"));
}

#[test]
fn full_size_a_node_that_dies_leaves_flanneld_and_comes_back_as_it_was() {
    let Some((fleet, program)) = flannel::fleet(test_name!()) else { return };
    let (host, flanneld) = Flanneld::start(&fleet, &program, 4);
    a_node_dies(&fleet, (&host, &flanneld.address()));
}

/// Returns a kernel node, which no longer follows leases, and a segue node that reach each other.
fn pair(fleet: &Fleet) -> (Host, Node) {
    let (kernel, follows) = kernel_node(fleet, 4);
    let a = Node::start(fleet, 2, "");
    until("the kernel is a peer", || a.peers(fleet).len() == 1);
    segue_lab::reach((&a.host, a.address().parse().unwrap()), (&kernel, "198.19.4.0".parse().unwrap()), PATIENCE)
        .unwrap();
    drop(follows);
    (kernel, a)
}

/// Starts pings from a host to an address that continue until [`nothing_lost`].
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
    // The oldest lease is one of half the network, with the kernel's node in it.
    let wide = (format!("{SUBNETS}{}", hostile::WIDE), hostile::GOOD.to_owned());
    keys(&fleet, &["put"], &json!([wide]));
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
    let mut expected = BTreeMap::from([("overlap".to_owned(), 1u64)]);
    let of_key = |(reason, leases): (&&'static str, &Vec<(String, String)>)| {
        let reason = *reason;
        leases.iter().map(move |(key, _)| (key.clone(), reason)).collect::<Vec<_>>()
    };
    let reasons: BTreeMap<String, &str> = hostile.iter().flat_map(of_key).collect();
    let mut named = BTreeSet::new();
    for some in hostile.iter().collect::<Vec<_>>().chunks(6) {
        let leases: Vec<_> = some.iter().flat_map(|(_, leases)| *leases).collect();
        keys(&fleet, &["put"], &json!(leases));
        for (reason, leases) in some {
            *expected.entry((**reason).to_owned()).or_default() += leases.len() as u64;
        }
        until(&format!("refused are {expected:?}"), || json!(expected) == a.state()["refused"]);
        // Of the first ones the key is in the state too; one that cannot be printed has another form there.
        let state = a.state();
        for one in state["refused_keys"].as_array().unwrap() {
            let (key, reason) = (one[0].as_str().unwrap(), one[1].as_str().unwrap());
            if let Some(expected) = reasons.get(key) {
                assert_eq!(reason, *expected, "{key}");
                named.insert(key.to_owned());
            }
        }
        assert_eq!(table_of(&a, &fleet), table, "{some:?}");
    }
    assert!(expected.values().sum::<u64>() >= 50 && named.len() > 20, "{expected:?} {named:?}");
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
    let puts = hostile.into_values().flatten().chain([wide, kernels, (end, String::new())]);
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

/// Returns PATH with the directory of the program under test prepended.
fn path_of(fleet: &Fleet) -> String {
    format!("{}:{}", fleet.program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default())
}

/// Returns the peers of a node as prefix, remote and MAC address.
fn table_of(node: &Node, fleet: &Fleet) -> BTreeMap<String, (String, String)> {
    let text = |peer: &Value, key: &str| peer[key].as_str().unwrap_or_default().to_owned();
    let peers = node.peers(fleet);
    peers.iter().map(|peer| (text(peer, "prefix"), (text(peer, "remote"), text(peer, "mac")))).collect()
}

/// Returns the leases of all hosts except this one.
fn leases_of(fleet: &Fleet, own: &str) -> BTreeMap<String, (String, String)> {
    let parsed = fleet.leases().into_iter().map(|(key, value)| {
        let lease: Value = serde_json::from_str(&value).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (key.replace('-', "/"), (text(&lease["PublicIP"]), text(&lease["BackendData"]["VtepMAC"])))
    });
    parsed.filter(|(subnet, _)| subnet != own).collect()
}

/// Kills the leader of three members during `changes` changes, ten a second, and then all members for some time.
fn members_end(name: &str, changes: u32, outage: Duration) {
    let Some(mut fleet) = Fleet::of_three(name) else { return };
    let (kernel, a) = pair(&fleet);
    let is_full = !outage.is_zero();
    let ping = pinging(&a.host, "198.19.4.0");
    let load = is_full.then(|| Load::start(&a.host, (&kernel, "198.19.4.0")));
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
    let longest = Duration::from_secs(if is_full { 10 } else { 50 });
    until_within(longest, "the table is etcd's", || table_of(&a, &fleet) == table);
    if let Some(load) = load {
        load.went_on();
    }
    let load = is_full.then(|| Load::start(&a.host, (&kernel, "198.19.4.0")));
    (0..3).filter(|n| *n != leader).for_each(|n| fleet.kill_member(n));
    until("the agent says so", || {
        let agent = a.in_stat(&fleet);
        agent["state"] == "stale" && agent["since"].as_u64() > Some(0)
    });
    thread::sleep(outage);
    if let Some(load) = load {
        load.went_on();
    }
    assert_eq!((a.in_stat(&fleet)["state"].as_str(), table_of(&a, &fleet)), (Some("stale"), table));
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
    both_directions(&fleet, [(&one, &first.address()), (&two, &second.address())]);
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
    fleet.ctl(&["put", "/coreos.com/network/config", "--", UDP]);
    let (host, flanneld) = Flanneld::start(&fleet, &program, 4);
    let [a, b] = [2, 3].map(|n| Node::listening(&fleet, n, "fou:8285 mtu 1472", ""));
    until("every table has two peers", || [&a, &b].iter().all(|node| node.peers(&fleet).len() == 2));
    pairs(&[at(&a.host, &a.address()), at(&b.host, &b.address()), at(&host, &flanneld.address())]);
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
fn a_node_for_which_no_subnet_is_free_says_so_in_one_line() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let one = r#""SubnetLen":24,"SubnetMin":"198.19.4.0","SubnetMax":"198.19.4.0""#;
    fleet.ctl(&["put", "/coreos.com/network/config", "--", &CONFIG.replace(r#""SubnetLen":24"#, one)]);
    let (_kernel, _follows) = kernel_node(&fleet, 4);
    let mut node = Node::without_agent(&fleet, 2, "vxlan:8472 id 1", "");
    node.launch_agent(&fleet.program);
    let mut agent = node.agent.take().unwrap();
    let (is_done, said) = (agent.wait(PATIENCE).unwrap().success(), agent.stderr());
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error:")).collect();
    assert_eq!((is_done, errors), (false, vec!["error: no subnet is free in 198.19.0.0/16: 198.19.4.0 to 198.19.4.0"]));
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
    let own = state()["subnet"].as_str().unwrap().replace(".0/24", ".1");
    let (near, far) = (own.parse().unwrap(), "198.19.4.0".parse().unwrap());
    segue_lab::reach((&host, near), (&kernel, far), PATIENCE).unwrap();
    traffic::file(at(&host, &own), at(&kernel, "198.19.4.0"), traffic::SHORT, 3);
}

/// Checks that an agent with the wrong options gets no lease and reports that, and that an agent with the right ones
/// gets a lease.
#[track_caller]
fn only_by(fleet: &Fleet, wrong: &[&str], right: &str) {
    let mut node = Node::without_agent(fleet, 2, "vxlan:8472 id 1", "");
    let usual = node.words.clone();
    let with =
        |words: &str| usual.iter().cloned().chain(words.split_whitespace().map(String::from)).collect::<Vec<_>>();
    for words in wrong {
        node.words = with(words);
        node.launch_agent(&fleet.program);
        until(&format!("an agent with `{words}` says why"), || node.state()["error"].is_string());
        node.agent.as_mut().unwrap().stop(PATIENCE);
        assert!(fleet.leases().is_empty(), "{words}: {:?}", fleet.leases());
    }
    node.words = with(right);
    node.start_agent(&fleet.program);
    assert_eq!(fleet.leases().len(), 1);
}

#[test]
fn an_etcd_that_asks_for_a_certificate_takes_only_one_of_its_authority() {
    let Some(fleet) = Fleet::at(test_name!(), TLS_OF_CLIENTS) else { return };
    fleet.ctl(&["put", "/coreos.com/network/config", "--", CONFIG]);
    let file = |name: &str| fleet.directory.file(name).display().to_string();
    let of = |name: &str| format!("--cert {} --key {}", file(&format!("{name}.pem")), file(&format!("{name}-key.pem")));
    let (ca, other) = (format!("--cacert {}", file("ca.pem")), format!("--cacert {}", file("other.pem")));
    let (ours, foreign) = (of("node"), of("foreign"));
    let wrong = [ca.clone(), format!("{ca} {foreign}"), format!("{other} {ours}")];
    only_by(&fleet, &wrong.each_ref().map(String::as_str), &format!("{ca} {ours}"));
}

#[test]
fn a_user_of_etcd_needs_only_the_rights_of_the_document() {
    let Some(mut fleet) = Fleet::new(test_name!()) else { return };
    for line in [
        "user add root:admin",
        "user add node:secret",
        "role add node",
        "role grant-permission --prefix=true node read /coreos.com/network/",
        "role grant-permission --prefix=true node readwrite /coreos.com/network/subnets/",
        "user grant-role node node",
        "auth enable",
    ] {
        fleet.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    fleet.user = Some("root:admin");
    let by = |password: &str| {
        let file = fleet.directory.file(&format!("password-{password}"));
        fs::write(&file, format!("{password}\n")).unwrap();
        format!("--user node --password-file {}", file.display())
    };
    only_by(&fleet, &["", &by("wrong")], &by("secret"));
}
