//! Tests of `segue-cni` in calls as by a container runtime: pods on two nodes whose tunnels have each other as a peer,
//! and the state after each call. The plugin for addresses is `cni_host_local.py`, and in the tests of full size the
//! real `host-local`; there `cnitool` is the runtime too. And the walk-through of docs/fleet.md for users of
//! Kubernetes.

#[path = "common/guide.rs"]
mod guide;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use segue_lab::{Host, LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::flood::{Flood, Stations};
use segue_tests::{Ground, Stat, Tunnel, test_name, theirs, traffic, until};
use serde_json::{Value, json};

const DEVICE: &str = "cn0";
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with a tunnel, whose pods have addresses of 198.19.N.0/24.
struct Node<'a> {
    host: &'a Host,
    program: PathBuf,
    directory: Directory,
    n: u8,
    _tunnel: Tunnel,
}

fn ip(host: &Host, line: &str) -> String {
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap()
}

impl<'a> Node<'a> {
    fn start(ground: &'a Ground, n: u8) -> Node<'a> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cni_host_local.py");
        Node::with(ground, n, &script)
    }

    /// Starts a node with this plugin for addresses.
    fn with(ground: &'a Ground, n: u8, host_local: &Path) -> Node<'a> {
        let host = if n == 1 { &ground.a } else { &ground.b };
        let other = 3 - n;
        let line = format!("dev {DEVICE} peers none local 198.18.0.{n} listen gue:6080 encap-remcsum mtu 1400");
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        let tunnel = Tunnel::start(host, &ground.program, &words);
        let line = format!("peer add {DEVICE} 198.19.{other}.0/24 remote 198.18.0.{other} encap gue");
        host.run(ground.program.to_str().unwrap(), &line.split_whitespace().collect::<Vec<_>>()).unwrap();
        ip(host, &format!("route add 198.19.0.0/16 dev {DEVICE}"));
        let directory = Directory::new();
        let env = format!(
            "FLANNEL_NETWORK=198.19.0.0/16\nFLANNEL_SUBNET=198.19.{n}.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"
        );
        fs::write(directory.file("subnet.env"), env).unwrap();
        let plugin = directory.file("host-local");
        fs::copy(host_local, &plugin).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        Node { host, program: ground.program.with_file_name("segue-cni"), directory, n, _tunnel: tunnel }
    }

    fn config(&self) -> Value {
        json!({ "cniVersion": "1.1.0", "name": "fleet", "type": "segue-cni", "dev": DEVICE,
                "subnetFile": self.directory.file("subnet.env"),
                "ipam": { "type": "host-local", "dataDir": self.directory.file("reserved") } })
    }

    /// Calls the plugin for eth0; returns whether it succeeded, and its document.
    fn call(&self, command: &str, container: &str, pod: Option<&Host>, config: &Value) -> (bool, Value) {
        self.call_for("eth0", command, container, pod, config)
    }

    /// Calls the plugin like [`Node::call`] for another interface of a pod.
    fn call_for(&self, name: &str, command: &str, id: &str, pod: Option<&Host>, config: &Value) -> (bool, Value) {
        let mut call = self.host.command(&self.program);
        call.env("CNI_COMMAND", command).env("CNI_CONTAINERID", id).env("CNI_IFNAME", name);
        call.env("CNI_PATH", self.directory.path()).env("CNI_NETNS", pod.map(Host::net_path).unwrap_or_default());
        let mut process = Process::spawn(call, config.to_string().as_bytes()).unwrap();
        let done = process.wait(PATIENCE).unwrap().success();
        (done, serde_json::from_str(&process.stdout()).unwrap_or_default())
    }

    #[track_caller]
    fn must(&self, command: &str, container: &str, pod: Option<&Host>, config: &Value) -> Value {
        let (done, document) = self.call(command, container, pod, config);
        assert!(done, "{command} {container}: {document}");
        document
    }

    /// Returns the addresses that the node has reserved.
    fn reserved(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.file("reserved")).into_iter().flatten().flatten();
        // The plugin of others has a folder for each network, and files of its own beside the addresses.
        let nested = fs::read_dir(self.directory.file("reserved/fleet")).into_iter().flatten().flatten();
        let names = files.chain(nested).map(|file| file.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("198.")).collect();
        names.sort();
        names
    }

    /// Returns the names of the hosts' ends of pods.
    fn links(&self) -> Vec<String> {
        self.host.devices().into_iter().filter(|name| name.starts_with("sg")).collect()
    }
}

#[test]
fn pods_of_two_nodes_talk_and_their_trains_pass_whole() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "python3"]) else { return };
    let nodes = [1, 2].map(|n| Node::start(&ground, n));
    let pods = [1, 2].map(|_| Host::new("pod").unwrap());
    for (node, pod) in nodes.iter().zip(&pods) {
        let result = node.must("ADD", "c1", Some(pod), &node.config());
        assert_eq!(result["ips"][0]["address"], format!("198.19.{}.2/32", node.n));
        assert_eq!(result["ips"][0]["interface"], 1);
        assert_eq!(result["interfaces"][1]["name"], "eth0");
        // The MTU is the tunnel's, not that of flannel's file.
        assert_eq!(result["interfaces"][1]["mtu"], 1400);
    }
    let [near, far] = [1, 2].map(|n| format!("198.19.{n}.2").parse().unwrap());
    segue_lab::reach((&pods[0], near), (&pods[1], far), PATIENCE).unwrap();
    let [a, b] = [(&pods[0], near), (&pods[1], far)].map(|(host, address)| traffic::Place { host, address });
    traffic::everything(a, b, traffic::SHORT, 5);
    for node in &nodes {
        let stat = Stat::read(node.host, &ground.program, DEVICE);
        assert!(stat.count(DEVICE, "receive", "trains") > 0, "{}", stat.json());
        node.must("STATUS", "", None, &node.config());
    }
}

#[test]
fn each_call_leaves_what_it_should() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    let config = node.config();
    let [one, two] = ["one", "two"].map(|name| Host::new(name).unwrap());
    let result = node.must("ADD", "c1", Some(&one), &config);
    node.must("ADD", "c2", Some(&two), &config);
    assert_eq!((node.links().len(), node.reserved().len()), (2, 2));
    // VERSION names the version that it was asked in, or the latest.
    for (asked, version) in [("0.4.0", "0.4.0"), ("1.0.0", "1.0.0"), ("1.1.0", "1.1.0"), ("9.9.9", "1.1.0")] {
        let answer = node.must("VERSION", "", None, &json!({ "cniVersion": asked }));
        assert_eq!(answer, json!({ "cniVersion": version, "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"] }));
    }
    // The same interface again.
    let (done, error) = node.call("ADD", "c1", Some(&one), &config);
    assert!(!done && error["code"] == 4, "{error}");
    assert_eq!((node.links().len(), node.reserved().len()), (2, 2));
    // CHECK finds what is missing.
    let mut checked = config.clone();
    checked["prevResult"] = result;
    node.must("CHECK", "c1", Some(&one), &checked);
    ip(&one, "address flush dev eth0");
    let (done, error) = node.call("CHECK", "c1", Some(&one), &checked);
    assert!(!done && error["msg"].as_str().unwrap().contains("does not have 198.19.1.2"), "{error}");
    // GC keeps what is listed; DEL can be repeated, without a namespace too.
    let mut listed = config.clone();
    listed["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    node.must("GC", "", None, &listed);
    assert_eq!(node.links().len(), 1);
    checked["prevResult"] = json!({ "ips": [{ "address": "198.19.1.3/32" }], "interfaces": [] });
    node.must("CHECK", "c2", Some(&two), &checked);
    // Each part that is missing: the last one first, as CHECK looks for them.
    let link = node.links().remove(0);
    for (host, line, why) in [
        (node.host, format!("route del 198.19.1.3/32 dev {link}"), "the host has no route to 198.19.1.3"),
        (&two, "route del default".to_owned(), "the pod has no default route"),
        (&two, "link set eth0 down".to_owned(), "eth0 is gone or down in the pod"),
        (node.host, format!("link set {link} down"), "the host's end of the pair is gone or down"),
    ] {
        ip(host, &line);
        let (done, error) = node.call("CHECK", "c2", Some(&two), &checked);
        assert!(!done && error["msg"].as_str().is_some_and(|said| said.contains(why)), "{line}: {error}");
    }
    for _ in 0..2 {
        node.must("DEL", "c2", Some(&two), &config);
        node.must("DEL", "c1", None, &config);
        assert_eq!((node.links().len(), node.reserved().len()), (0, 0));
        assert!(!two.has_device("eth0") && !one.has_device("eth0"));
    }
}

#[test]
fn a_pod_changes_no_ipv6_route_of_its_host_by_router_advertisements() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    // As Linux has it; the hosts of the laboratory ignore them.
    node.host.set_sysctl("ipv6/conf/default/accept_ra", "1").unwrap();
    let pod = Host::new("pod").unwrap();
    node.must("ADD", "c1", Some(&pod), &node.config());
    let link = node.links().remove(0);
    let accept_ra = format!("ipv6/conf/{link}/accept_ra");
    assert_eq!(node.host.run("cat", &[&format!("/proc/sys/net/{accept_ra}")]).unwrap().trim(), "0");
    let stations = Stations::between((&pod, "eth0"), (node.host, link.as_str()));
    let [own, on_link, behind]: [Ipv6Addr; 3] =
        ["fe80::66", "2001:db8:2::", "2001:db8:77::"].map(|address| address.parse().unwrap());
    let advertising = Flood::start(&pod, "eth0", 20, move |_| stations.advertisement(own, (on_link, 64), (behind, 64)));
    let learned = || ip(node.host, "-6 route show proto ra");
    until("no advertisement arrives", || {
        let counted = node.host.run("cat", &["/proc/net/snmp6"]).unwrap();
        let mut words = counted.lines().find(|line| line.starts_with("Icmp6InType134 "))?.split_whitespace();
        words.nth(1)?.parse::<u64>().is_ok_and(|count| count > 3).then_some(())
    });
    assert_eq!(learned(), "");
    // They would have been believed.
    node.host.set_sysctl(&accept_ra, "1").unwrap();
    until("the kernel does not believe the advertisements", || learned().contains("default").then_some(()));
    drop(advertising);
}

#[test]
fn an_add_takes_no_route_of_a_pod_that_is_attached() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    let [one, two] = ["one", "two"].map(|name| Host::new(name).unwrap());
    let mut config = node.config();
    node.must("ADD", "c1", Some(&one), &config);
    let link = node.links().remove(0);
    // The reservations are lost: the second pod gets the address of the first.
    fs::remove_dir_all(node.directory.file("reserved")).unwrap();
    let (done, error) = node.call("ADD", "c2", Some(&two), &config);
    assert!(!done && error["code"] == 11, "{error}");
    assert_eq!(error["msg"], "this host has a route to 198.19.1.2 already");
    assert_eq!((node.links(), node.reserved(), two.has_device("eth0")), (vec![link.clone()], vec![], false));
    let route = ip(node.host, "route show 198.19.1.2");
    assert!(route.contains(&format!("dev {link}")) && route.lines().count() == 1, "{route}");
    // Another address is free.
    config["ipam"]["give"] = json!("198.19.1.3/24");
    node.must("ADD", "c2", Some(&two), &config);
    node.must("DEL", "c2", Some(&two), &config);
    assert_eq!((node.links(), ip(node.host, "route show 198.19.1.2")), (vec![link], route));
}

#[test]
fn a_second_interface_of_a_pod_leaves_it_the_default_route_of_the_first() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    let pod = Host::new("pod").unwrap();
    let [mut first, mut second] = [(); 2].map(|()| node.config());
    second["name"] = json!("second");
    second["ipam"]["ranges"] = json!([[{ "subnet": "198.19.200.0/24" }]]);
    second["ipam"]["dataDir"] = json!(node.directory.file("reserved-too"));
    for (name, config) in [("eth0", &mut first), ("eth1", &mut second)] {
        let (done, result) = node.call_for(name, "ADD", "c1", Some(&pod), config);
        assert!(done, "{name}: {result}");
        config["prevResult"] = result;
    }
    let is_first = || {
        let routes = ip(&pod, "route show default");
        assert!(routes.starts_with("default via 198.19.1.1 dev eth0 "), "{routes}");
        let route = ip(&pod, "route get 198.19.9.9");
        assert!(route.contains(" dev eth0 "), "{route}");
    };
    is_first();
    // Nor does the kernel choose by which of the gateways it knows.
    ip(&pod, "neigh replace 198.19.200.1 lladdr 02:00:00:00:00:01 dev eth1 nud reachable");
    is_first();
    for (name, config) in [("eth0", &first), ("eth1", &second)] {
        let (done, error) = node.call_for(name, "CHECK", "c1", Some(&pod), config);
        assert!(done, "{name}: {error}");
    }
    let (done, error) = node.call_for("eth1", "DEL", "c1", Some(&pod), &second);
    assert!(done && pod.has_device("eth0") && !pod.has_device("eth1"), "{error}");
    is_first();
}

#[test]
fn a_pod_may_have_several_addresses_of_one_gateway() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    let pod = Host::new("pod").unwrap();
    let mut config = node.config();
    config["ipam"]["more"] = json!(["198.19.1.77/24"]);
    let result = node.must("ADD", "c1", Some(&pod), &config);
    assert_eq!(result["ips"].as_array().map(Vec::len), Some(2), "{result}");
    config["prevResult"] = result;
    node.must("CHECK", "c1", Some(&pod), &config);
    let link = node.links().remove(0);
    for address in ["198.19.1.2", "198.19.1.77"] {
        let route = ip(node.host, &format!("route show {address}"));
        assert!(route.contains(&format!("dev {link}")), "{address}: {route}");
    }
    node.must("DEL", "c1", Some(&pod), &config);
    assert_eq!((node.links(), node.reserved(), pod.has_device("eth0")), (vec![], vec![], false));
}

#[test]
fn an_add_that_fails_leaves_no_link_and_no_reservation() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3"]) else { return };
    let node = Node::start(&ground, 1);
    let pod = Host::new("pod").unwrap();
    // What cannot be read, and what the kernel refuses after the pair was made.
    for (key, give) in [
        ("give", json!("nonsense")),
        ("give", json!("2001:db8::1/64")),
        ("give", json!("255.255.255.255/24")),
        ("gateway", json!("224.0.0.1")),
        ("times", json!(2)),
    ] {
        let mut config = node.config();
        config["ipam"][key].clone_from(&give);
        let (done, error) = node.call("ADD", "c1", Some(&pod), &config);
        assert!(!done && error["code"].as_u64() > Some(0), "{give}: {error}");
        assert_eq!((node.links(), node.reserved()), (vec![], vec![]), "{give}");
        assert!(!pod.has_device("eth0"), "{give}");
    }
    // A configuration that is wrong before anything is made.
    for (key, wrong) in [
        ("dev", json!("../../proc")),
        ("dev", json!(7)),
        ("mtu", json!("1300")),
        ("mtu", json!(-1)),
        ("mtu", json!(67)),
        ("mtu", json!(1401)),
        ("ipam", json!({ "type": "../host-local" })),
        ("name", json!("a b")),
    ] {
        let mut config = node.config();
        config[key].clone_from(&wrong);
        let (done, error) = node.call("ADD", "c1", Some(&pod), &config);
        assert!(!done && error["code"] == 7, "{key} {wrong}: {error}");
        assert_eq!((node.links(), node.reserved(), pod.has_device("eth0")), (vec![], vec![], false), "{key} {wrong}");
    }
    let mut config = node.config();
    config["dev"] = json!("nosuch0");
    let (done, error) = node.call("ADD", "c1", Some(&pod), &config);
    assert!(!done && error["code"] == 11, "{error}");
    let (done, error) = node.call("STATUS", "", None, &config);
    assert!(!done && error["code"] == 50, "{error}");
    assert_eq!((node.links(), node.reserved()), (vec![], vec![]));
}

#[test]
fn a_del_that_fails_is_no_success_and_frees_no_address_of_a_pod_that_is_attached() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["python3", "setpriv"]) else { return };
    let mut node = Node::start(&ground, 1);
    let config = node.config();
    let pod = Host::new("pod").unwrap();
    node.must("ADD", "c1", Some(&pod), &config);
    let script = |file: PathBuf, text: String| {
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    };
    // The kernel does not let it remove the link.
    let line = format!("exec setpriv --inh-caps=-all --bounding-set=-net_admin {}", node.program.display());
    let limited = script(node.directory.file("limited"), line);
    let program = std::mem::replace(&mut node.program, limited);
    let (done, error) = node.call("DEL", "c1", Some(&pod), &config);
    assert!(!done && error["msg"] == "cannot read or change links", "{error}");
    assert_eq!((node.links().len(), node.reserved().len(), pod.has_device("eth0")), (1, 1, true));
    // The plugin for addresses fails once.
    node.program = program;
    let [plugin, real, once] = ["host-local", "real", "once"].map(|name| node.directory.file(name));
    fs::rename(&plugin, &real).unwrap();
    fs::write(&once, "").unwrap();
    let text = format!("rm {} 2>/dev/null && exit 1\nexec {}", once.display(), real.display());
    script(plugin, text);
    let (done, error) = node.call("DEL", "c1", Some(&pod), &config);
    assert!(!done && error["msg"].as_str().is_some_and(|said| said.starts_with("host-local failed")), "{error}");
    assert_eq!((node.links().len(), node.reserved().len(), pod.has_device("eth0")), (0, 1, false));
    for _ in 0..2 {
        node.must("DEL", "c1", Some(&pod), &config);
        assert_eq!((node.links().len(), node.reserved().len()), (0, 0));
    }
}

/// Calls `cnitool` on a node for a pod.
fn cnitool(node: &Node<'_>, program: &Path, command: &str, pod: &Host) -> Output {
    let mut call = node.host.command(program);
    call.args([command, "fleet", &pod.net_path()]).env("NETCONFPATH", node.directory.path());
    call.env("CNI_PATH", format!("{}:{}", node.directory.path().display(), node.program.parent().unwrap().display()));
    call.output().unwrap()
}

#[test]
fn full_size_cnitool_and_host_local_attach_pods_that_talk() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    let Some(tool) = theirs::program(test_name!(), "cnitool") else { return };
    let Some(host_local) = theirs::program(test_name!(), "host-local") else { return };
    let nodes = [1, 2].map(|n| Node::with(&ground, n, &host_local));
    let pods = [1, 2].map(|_| Host::new("pod").unwrap());
    let must = |node: &Node<'_>, command: &str, pod: &Host| {
        let output = cnitool(node, &tool, command, pod);
        assert!(output.status.success(), "{command}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    for (node, pod) in nodes.iter().zip(&pods) {
        // The tool keeps results there; what is mounted is the host's alone.
        node.host.run("mkdir", &["-p", "/var/lib/cni"]).unwrap();
        node.host.run("mount", &["-t", "tmpfs", "none", "/var/lib/cni"]).unwrap();
        let mut plugin = node.config();
        plugin.as_object_mut().unwrap().retain(|key, _| !matches!(key.as_str(), "cniVersion" | "name"));
        let list = json!({ "cniVersion": "1.1.0", "name": "fleet", "plugins": [plugin] });
        fs::write(node.directory.file("10-segue.conflist"), list.to_string()).unwrap();
        must(node, "status", pod);
        let result = must(node, "add", pod);
        assert_eq!((&result["interfaces"][1]["mtu"], node.links().len()), (&json!(1400), 1));
        let (done, version) = node.call("VERSION", "", None, &json!({ "cniVersion": "1.1.0" }));
        assert!(done && version["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")), "{version}");
    }
    let [near, far] = nodes.each_ref().map(|node| node.reserved()[0].parse().unwrap());
    segue_lab::reach((&pods[0], near), (&pods[1], far), PATIENCE).unwrap();
    let [a, b] = [(&pods[0], near), (&pods[1], far)].map(|(host, address)| traffic::Place { host, address });
    traffic::everything(a, b, traffic::long(), 5);
    for (node, pod) in nodes.iter().zip(&pods) {
        let stat = Stat::read(node.host, &ground.program, DEVICE);
        assert!(stat.count(DEVICE, "receive", "trains") > 0, "{}", stat.json());
        must(node, "check", pod);
        ip(pod, "address flush dev eth0");
        assert!(!cnitool(node, &tool, "check", pod).status.success());
    }
    // The first is taken away twice, the second is found by a collection that lists nothing.
    for _ in 0..2 {
        must(&nodes[0], "del", &pods[0]);
    }
    must(&nodes[1], "gc", &pods[1]);
    for (node, pod) in nodes.iter().zip(&pods) {
        assert_eq!((node.links(), node.reserved(), pod.has_device("eth0")), (vec![], vec![], false));
    }
    // An ADD whose last step fails leaves no link and no reservation: this host cannot be made a router.
    nodes[0].host.run("mount", &["--bind", "/proc/sys", "/proc/sys"]).unwrap();
    nodes[0].host.run("mount", &["-o", "remount,bind,ro", "/proc/sys"]).unwrap();
    let failed = cnitool(&nodes[0], &tool, "add", &pods[0]);
    let said = [failed.stdout.as_slice(), failed.stderr.as_slice()].concat();
    assert!(!failed.status.success() && String::from_utf8_lossy(&said).contains("a router"), "{failed:?}");
    assert_eq!((nodes[0].links(), nodes[0].reserved(), pods[0].has_device("eth0")), (vec![], vec![], false));
    // Nor does one whose first step fails: there is no such tunnel.
    let text = fs::read_to_string(nodes[0].directory.file("10-segue.conflist")).unwrap();
    fs::write(nodes[0].directory.file("10-segue.conflist"), text.replace(DEVICE, "nosuch0")).unwrap();
    assert!(!cnitool(&nodes[0], &tool, "add", &pods[0]).status.success());
    assert!(!cnitool(&nodes[0], &tool, "status", &pods[0]).status.success());
    assert_eq!((nodes[0].links(), nodes[0].reserved()), (vec![], vec![]));
}

/// Returns the code in the section for users of Kubernetes that begins with the given text, without the dots at its
/// end.
fn code(begin: &str) -> String {
    let section = guide::section("For users of Kubernetes");
    let found = section.split('`').find(|part| part.starts_with(begin)).expect("code that begins so");
    found.trim_end_matches(" ...").to_owned()
}

/// Attaches a pod to host A with the plugins and the configuration of docs/fleet.md, lets it reach an address of host
/// B, and detaches it.
#[track_caller]
fn a_pod_is_attached(ground: &Ground, far: IpAddr) {
    // The folders of the runtime and of flanneld are this host's alone; an empty one stays behind where there was none.
    let folder = ground.program.parent().unwrap().display().to_string();
    let script = format!(
        "for folder in /opt/cni /var/lib/cni /run/flannel; do
            mkdir -p $folder
            mount -t tmpfs none $folder
         done
         mkdir /opt/cni/bin
         install -m 755 {}/tests/cni_host_local.py /opt/cni/bin/host-local
         {}
         echo FLANNEL_SUBNET=198.19.1.1/24 > /run/flannel/subnet.env",
        env!("CARGO_MANIFEST_DIR"),
        code("ln -s ").replace("/usr/local/libexec/segue", &folder)
    );
    ground.a.run("sh", &["-ec", &script]).unwrap();
    // As a runtime does: version and name of the list go into the configuration of the plugin.
    let list: Value = serde_json::from_str(&guide::blocks("For users of Kubernetes", "json")[1]).unwrap();
    let mut config = list["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        config[key] = list[key].clone();
    }
    let pod = Host::new("pod").unwrap();
    let call = |command: &str| -> Value {
        let mut call = ground.a.command(format!("/opt/cni/bin/{}", config["type"].as_str().unwrap()));
        call.env("CNI_COMMAND", command).env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", "eth0");
        call.env("CNI_PATH", "/opt/cni/bin").env("CNI_NETNS", pod.net_path());
        let mut process = Process::spawn(call, config.to_string().as_bytes()).unwrap();
        let done = process.wait(PATIENCE).unwrap().success();
        assert!(done, "{command}: {}{}", process.stdout(), process.stderr());
        serde_json::from_str(&process.stdout()).unwrap_or_default()
    };
    call("STATUS");
    let result = call("ADD");
    assert_eq!(
        (&result["ips"][0]["address"], &result["interfaces"][1]["mtu"]),
        (&json!("198.19.1.2/32"), &json!(1420))
    );
    segue_lab::reach((&pod, "198.19.1.2".parse().unwrap()), (&ground.b, far), PATIENCE).unwrap();
    call("DEL");
    assert!(!pod.has_device("eth0"));
}

#[test]
fn the_walk_through_for_users_of_kubernetes_works_as_it_is_written() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping", "python3"]) else { return };
    let path = format!("{}:{}", ground.program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let config: Value = serde_json::from_str(&guide::blocks("For users of Kubernetes", "json")[0]).unwrap();
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
    let start = |host: &Host, n: u8, begin: &str| {
        let line = format!("{begin} local 198.18.0.{n} listen gue:6080 encap-remcsum mtu 1420 addr 198.19.{n}.1/32");
        let words: Vec<String> = line.split_whitespace().skip(2).map(String::from).collect();
        let tunnel = Tunnel::start(host, &ground.program, &words);
        ip(host, &format!("route add 198.19.0.0/16 dev segue0 src 198.19.{n}.1"));
        tunnel
    };
    let mut tunnels = nodes.map(|(host, n)| start(host, n, "segue tunnel dev segue0 peers none"));
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
    let [near, far]: [IpAddr; 2] = ["198.19.1.1", "198.19.2.1"].map(|address| address.parse().unwrap());
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    let [a, b] = [(&ground.a, near), (&ground.b, far)].map(|(host, address)| traffic::Place { host, address });
    traffic::everything(a, b, traffic::SHORT, 9);
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
    // A subnet of half the network that was there first gives way to one of the usual length, in the tunnel too.
    let prefixes = || -> BTreeSet<String> {
        let listed = ground.a.run(ground.program.to_str().unwrap(), &["peer", "list", "segue0", "-j"]).unwrap();
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let peers = listed["peers"].as_array().unwrap().iter();
        peers.map(|peer| peer["prefix"].as_str().unwrap().to_owned()).collect()
    };
    let one_more = |name: &str, subnet: &str| {
        let variables = [("$NETWORK", ""), ("$SUBNET", subnet), ("$PUBLIC_IP", "198.18.0.8")];
        call(&ground.a, name, variables, &data[1]);
        prefixes()
    };
    let [usual, wide, part] = ["198.19.2.0/24", "198.19.128.0/17", "198.19.130.0/24"].map(str::to_owned);
    let with = |more: &str| BTreeSet::from([usual.clone(), more.to_owned()]);
    assert_eq!(one_more("SubnetAddCommand", &wide), with(&wide));
    assert_eq!(one_more("SubnetAddCommand", &part), with(&part));
    assert_eq!(one_more("SubnetRemoveCommand", &part), BTreeSet::from([usual.clone()]));
    a_pod_is_attached(&ground, far);
    // A tunnel that starts again has the peers that the hooks have kept.
    tunnels[0].process.stop(PATIENCE);
    tunnels[0] = start(&ground.a, 1, &code("segue tunnel dev segue0 peers"));
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    let (subnet, address) = of(2);
    for _ in 0..2 {
        let variables = [("$NETWORK", ""), ("$SUBNET", subnet.as_str()), ("$PUBLIC_IP", address.as_str())];
        call(&ground.a, "SubnetRemoveCommand", variables, &data[1]);
    }
    assert_eq!(prefixes(), BTreeSet::new());
    drop(tunnels);
}
