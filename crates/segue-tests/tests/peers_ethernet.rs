//! Tests of tunnels whose peer table has Ethernet addresses: against the kernel's VXLAN device with a forwarding
//! table of `bridge fdb`, and against another segue.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Output;
use std::time::Duration;

use segue_lab::{Host, LinkForm};
use segue_tests::{Ground, Stat, Tunnel, test_name, traffic};
use serde_json::Value;

const DEVICE: &str = "et0";
const PATIENCE: Duration = Duration::from_secs(60);
/// The Ethernet address of the kernel's device at B.
const KERNELS: &str = "5a:65:bd:bd:44:bb";
/// The Ethernet address of a peer for groups and unknown addresses, as in `bridge fdb`.
const OTHERS: &str = "00:00:00:00:00:00";

fn at(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ip(host: &Host, line: &str) {
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

fn fdb(host: &Host, line: &str) {
    host.run("bridge", &format!("fdb {line}").split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Runs `segue peer` with these words.
fn try_peer(ground: &Ground, host: &Host, words: &str) -> Output {
    host.command(&ground.program).arg("peer").args(words.split_whitespace()).output().expect("segue peer starts")
}

/// Runs `segue peer ... -j`, which must succeed, and returns the printed document.
#[track_caller]
fn peer(ground: &Ground, host: &Host, words: &str) -> Value {
    let output = try_peer(ground, host, &format!("{words} -j"));
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// Returns the Ethernet address of an interface.
fn mac_of(host: &Host, device: &str) -> String {
    let text = host.run("ip", &["-o", "link", "show", "dev", device]).unwrap();
    text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an address").to_owned()
}

fn start(ground: &Ground, host: &Host, words: &str) -> Tunnel {
    let line = format!("dev {DEVICE} mode eth peers none mtu 1400 {words}");
    Tunnel::start(host, &ground.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>())
}

/// Returns the counters of the peers of A: key and remote, packets sent and received.
fn counters(ground: &Ground) -> BTreeMap<(String, String), [u64; 2]> {
    let listed = peer(ground, &ground.a, &format!("list {DEVICE}"));
    let of = |peer: &Value| {
        let [key, remote] = ["match", "remote"].map(|key| peer[key].as_str().unwrap_or_default().to_owned());
        ((key, remote), ["sent_packets", "received_packets"].map(|key| peer[key].as_u64().unwrap()))
    };
    listed["peers"].as_array().unwrap().iter().map(of).collect()
}

/// Waits until A has dropped more packets under the given reason than `before`, and returns the number.
#[track_caller]
fn until_dropped(ground: &Ground, reason: &str, before: u64) -> u64 {
    let more = |stat: &Stat| stat.dropped(reason) > before;
    let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, more);
    assert!(more(&stat), "{reason}: {:?}", stat.drops());
    stat.dropped(reason)
}

/// Returns whether one ping out of some is answered.
fn answers(host: &Host, to: &str) -> bool {
    host.command("ping").args(["-n", "-c", "3", "-i", "0.2", "-W", "1", to]).output().unwrap().status.success()
}

#[test]
fn frames_go_by_their_ethernet_addresses_to_the_kernel_and_to_segue() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "bridge"]) else { return };
    let (a, b) = (&ground.a, &ground.b);
    // At B each address belongs to its own device; segue's tunnel has an outer address of its own.
    b.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore"]).unwrap();
    ip(b, "addr add 198.18.0.3/24 dev eth0");
    let addresses = "addr 198.19.1.1/24 addr 198.19.2.1/24 addr 2001:db8:1::1/64 addr 2001:db8:2::1/64";
    let _a = start(&ground, a, &format!("local 198.18.0.1 listen vxlan,gue id 7 encap-remcsum {addresses}"));
    let addresses = "addr 198.19.2.2/24 addr 2001:db8:2::2/64";
    let _b = start(&ground, b, &format!("local 198.18.0.3 listen gue encap-remcsum {addresses}"));
    let [of_a, of_b] = [a, b].map(|host| mac_of(host, DEVICE));
    ip(b, "link add vx0 type vxlan id 7 dstport 8472 local 198.18.0.2 nolearning");
    ip(b, &format!("link set vx0 address {KERNELS} mtu 1400 up"));
    ip(b, "addr add 198.19.1.2/24 dev vx0");
    ip(b, "addr add 2001:db8:1::2/64 dev vx0 nodad");
    // One entry for each station, and two at A that everything else goes to.
    peer(&ground, a, &format!("add {DEVICE} {KERNELS} remote 198.18.0.2 encap vxlan"));
    peer(&ground, a, &format!("add {DEVICE} {of_b} remote 198.18.0.3 encap gue"));
    peer(&ground, a, &format!("add {DEVICE} {OTHERS} remote 198.18.0.2 encap vxlan"));
    peer(&ground, a, &format!("add {DEVICE} {OTHERS} remote 198.18.0.3 encap gue"));
    peer(&ground, b, &format!("add {DEVICE} {of_a} remote 198.18.0.1"));
    peer(&ground, b, &format!("add {DEVICE} {OTHERS} remote 198.18.0.1"));
    fdb(b, &format!("add {of_a} dst 198.18.0.1 dev vx0 self permanent"));
    fdb(b, &format!("append {OTHERS} dst 198.18.0.1 dev vx0 self permanent"));
    for (seed, near, far) in [
        (1, "198.19.1.1", "198.19.1.2"),
        (2, "2001:db8:1::1", "2001:db8:1::2"),
        (3, "198.19.2.1", "198.19.2.2"),
        (4, "2001:db8:2::1", "2001:db8:2::2"),
    ] {
        segue_lab::reach((a, at(near)), (b, at(far)), PATIENCE).unwrap();
        let place = |host, address| traffic::Place { host, address: at(address) };
        traffic::everything(place(a, near), place(b, far), traffic::SHORT, seed);
    }
    // Requests for addresses went to both, and all else by the entry of its station, in trains.
    let seen = counters(&ground);
    assert_eq!(seen.len(), 4, "{seen:?}");
    for ((key, remote), [sent, received]) in &seen {
        let is_right =
            if key == OTHERS { (1..100).contains(sent) && *received == 0 } else { *sent > 40 && *received > 100 };
        assert!(is_right, "{key} {remote}: {seen:?}");
    }
    let stat = Stat::read(a, &ground.program, DEVICE);
    // What the host of A said before the first entry.
    let drops = stat.drops_but_overflow();
    assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
    for port in ["vxlan", "gue", DEVICE] {
        assert!(stat.count(port, "transmit", "trains") > 0, "{port}: {}", stat.json());
    }
    assert!(stat.json()["ports"]["gue"]["remcsum"]["sent"].as_u64() > Some(0), "{}", stat.json());
    // The in-kernel path says why it stays off.
    assert_eq!(stat.json()["fastpath"]["on"], false, "{}", stat.json()["fastpath"]);
    let why = a.run(ground.program.to_str().unwrap(), &["stat", DEVICE, "--why"]).unwrap();
    let words = why.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a peer table of Ethernet addresses needs the daemon"), "{why}");

    // Without its own entry a station is reached as unknown addresses are, and what it sends comes in.
    peer(&ground, a, &format!("del {DEVICE} {KERNELS}"));
    let before = counters(&ground);
    assert!(answers(a, "198.19.1.2"));
    let after = counters(&ground);
    let key = (OTHERS.to_owned(), "198.18.0.2".to_owned());
    assert!(after[&key][0] >= before[&key][0] + 3 && after[&key][1] >= before[&key][1] + 3, "{before:?} {after:?}");
    // And not at all where nothing stands for them.
    assert_eq!(peer(&ground, a, &format!("del {DEVICE} {OTHERS}"))["removed"], 2);
    assert!(!answers(a, "198.19.1.2"));
    until_dropped(&ground, "removed_peer", 0);
    let before = Stat::read(a, &ground.program, DEVICE).dropped("no_group");
    a.run("ip", &["neigh", "flush", "dev", DEVICE]).unwrap();
    assert!(!answers(a, "198.19.1.2"));
    until_dropped(&ground, "no_group", before);
    let again = try_peer(&ground, a, &format!("del {DEVICE} {OTHERS}"));
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("is not in the table"));
    // A station at a remote to which the table does not give it is no source.
    peer(&ground, a, &format!("add {DEVICE} {KERNELS} remote 198.18.0.3 encap gue"));
    peer(&ground, a, &format!("add {DEVICE} {OTHERS} remote 198.18.0.2 encap vxlan"));
    assert!(!answers(b, "198.19.1.1"));
    until_dropped(&ground, "peer_source", 0);
    // It is at its own again.
    peer(&ground, a, &format!("replace {DEVICE} {KERNELS} remote 198.18.0.2 encap vxlan"));
    segue_lab::reach((a, at("198.19.1.1")), (b, at("198.19.1.2")), PATIENCE).unwrap();
}

#[test]
fn a_table_has_the_addresses_that_its_interface_carries() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let a = &ground.a;
    let _a = start(&ground, a, "local 198.18.0.1 listen vxlan,gue");
    let folder = segue_tests::capture::Directory::new();
    let file = folder.file("peers.json");
    let table = r#"{"generation":3,"peers":[
        {"match":"02:00:00:00:00:07","remote":"198.18.0.2","encap":"vxlan"},
        {"prefix":"198.19.2.0/24","remote":"198.18.0.2","encap":"gue"},
        {"match":"01:00:5e:00:00:01","remote":"198.18.0.2","encap":"gue"},
        {"match":"02:00:00:00:00:08","remote":"198.18.0.2","encap":"vxlan","mac":"02:00:00:00:00:09"},
        {"match":"00:00:00:00:00:00","remote":"198.18.0.2","encap":"gue"},
        {"match":"00:00:00:00:00:00","remote":"198.18.0.2","encap":"vxlan"},
        {"match":"00:00:00:00:00:00","remote":"198.18.0.3","encap":"gue"}]}"#;
    std::fs::write(&file, table).unwrap();
    let output = try_peer(&ground, a, &format!("sync {DEVICE} {} -j", file.display()));
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&done["added"], &done["refused"]), (&3.into(), &4.into()), "{done}");
    let whys: Vec<(u64, &str)> = done["refused_peers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|refused| (refused["number"].as_u64().unwrap(), refused["why"].as_str().unwrap()))
        .collect();
    for ((number, why), (expected, rule)) in whys.iter().zip([
        (2, "it has no peers by `prefix`"),
        (3, "is the address of a group"),
        (4, "`mac` does not go with frames"),
        (6, "is given twice"),
    ]) {
        assert!(*number == expected && why.contains(rule), "{number}: {why}");
    }
    let listed = try_peer(&ground, a, &format!("list {DEVICE}"));
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("3 peers, generation 3") && text.contains("02:00:00:00:00:07"), "{text}");
    assert_eq!(Stat::read(a, &ground.program, DEVICE).json()["peers"]["ethernet"], true);
    // The in-kernel path cannot be required.
    let words = "tunnel dev et1 mode eth peers none local 198.18.0.1 listen vxlan:4789 fastpath require";
    let output = a.command(&ground.program).args(words.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("a peer table of Ethernet addresses needs the daemon"), "{said}");
}
