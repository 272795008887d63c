//! Tests of a fleet whose registry is etcd: nodes of segue, and nodes whose VXLAN is the kernel's, programmed from the
//! leases as flannel does it (`fleet_node.py`). All share one link layer, 198.18.0.0/24, in namespaces.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use segue_lab::{Host, Process};
use segue_tests::capture::{Capture, Directory};
use segue_tests::{Ground, Stat, Tunnel, test_name, traffic};
use serde_json::Value;

const DEVICE: &str = "fl0";
const ETCD: &str = "http://198.18.0.1:2379";
const TLS: &str = "https://198.18.0.1:2379";
const SUBNETS: &str = "/coreos.com/network/subnets";
const CONFIG: &str =
    r#"{"Network":"198.19.0.0/16","SubnetLen":24,"EnableNFTables":true,"Backend":{"Type":"vxlan","VNI":1}}"#;
const PATIENCE: Duration = Duration::from_secs(90);

/// A switch, etcd at 198.18.0.1, and the program under test.
struct Fleet {
    switch: Host,
    etcd: Host,
    program: PathBuf,
    directory: Directory,
    server: Option<Process>,
    url: &'static str,
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn ip(host: &Host, line: &str) {
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

impl Fleet {
    fn new(name: &str) -> Option<Fleet> {
        let fleet = Fleet::at(name, ETCD)?;
        fleet.ctl(&["put", "/coreos.com/network/config", "--", CONFIG]);
        Some(fleet)
    }

    /// Starts etcd at this address.
    fn at(name: &str, url: &'static str) -> Option<Fleet> {
        let tools = ["etcd", "etcdctl", "openssl", "python3", "bridge", "ping", "tcpdump", "tshark"];
        let Ground { a: switch, b: etcd, program } = Ground::apart(name, &tools)?;
        ip(&switch, "link add br0 type bridge");
        ip(&switch, "link set br0 up");
        let mut fleet = Fleet { switch, etcd, program, directory: Directory::new(), server: None, url };
        fleet.plug(&fleet.etcd, 1);
        fleet.start_etcd();
        Some(fleet)
    }

    /// Joins a host to the switch, with the address 198.18.0.N. It segments and checksums itself, as without a card
    /// that does: an inner checksum that a kernel leaves to the card is otherwise never finished on such a link.
    fn plug(&self, host: &Host, n: u8) {
        let line = format!("link add p{n} type veth peer name eth0 netns {}", host.net_path());
        ip(&self.switch, &line);
        ip(&self.switch, &format!("link set p{n} master br0 up"));
        host.run("ethtool", &["-K", "eth0", "tx", "off", "tso", "off", "gso", "off"]).unwrap();
        ip(host, &format!("address add 198.18.0.{n}/24 dev eth0"));
        ip(host, "link set eth0 up");
        until("the link is up", || {
            host.run("ip", &["-o", "link", "show", "dev", "eth0"]).unwrap().contains(" state UP ")
        });
    }

    fn start_etcd(&mut self) {
        let mut command = self.etcd.command("etcd");
        command.args(["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--data-dir"]);
        command.arg(self.directory.file("etcd"));
        if self.url == TLS {
            self.make_certificates();
            for (option, file) in [("--cert-file", "cert.pem"), ("--key-file", "key.pem")] {
                command.arg(option).arg(self.directory.file(file));
            }
        }
        self.server = Some(Process::spawn(command, b"").expect("etcd starts"));
        until("etcd is up", || self.etcdctl(&self.etcd, &["endpoint", "health"]).is_some());
    }

    /// Makes an authority, ca.pem, and a certificate of etcd's address by it. (What etcd makes by itself has a key of
    /// P-521, which rustls with ring does not take.)
    fn make_certificates(&self) {
        const MAKE: &str = "
            printf 'subjectAltName=IP:198.18.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' > ext
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=authority \
                -keyout ca.key -out ca.pem
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=etcd -keyout key.pem -out csr
            openssl x509 -req -in csr -days 30 -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -out cert.pem";
        let mut command = self.etcd.command("sh");
        command.args(["-ec", MAKE]).current_dir(self.directory.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the file with the authority's certificate.
    fn certificate(&self) -> PathBuf {
        self.directory.file("ca.pem")
    }

    /// Makes a command that finds etcd by its environment.
    fn command(&self, host: &Host, program: &str) -> std::process::Command {
        let mut command = host.command(program);
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", self.url);
        if self.url == TLS {
            command.env("ETCDCTL_CACERT", self.certificate());
        }
        command
    }

    fn etcdctl(&self, host: &Host, words: &[&str]) -> Option<String> {
        let output = self.command(host, "etcdctl").args(words).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    #[track_caller]
    fn ctl(&self, words: &[&str]) -> String {
        let patient = [&["--command-timeout", "60s", "--dial-timeout", "60s"][..], words].concat();
        self.etcdctl(&self.etcd, &patient).unwrap_or_else(|| panic!("etcdctl {words:?}"))
    }

    /// Returns the leases: key without the directory, and value.
    fn leases(&self) -> Vec<(String, String)> {
        let text = self.ctl(&["get", "--prefix", &format!("{SUBNETS}/")]);
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0][SUBNETS.len() + 1..].to_owned(), pair[1].to_owned())).collect()
    }
}

/// A node of segue: its host, tunnel and agent.
struct Node {
    host: Host,
    agent: Option<Process>,
    tunnel: Tunnel,
    words: Vec<String>,
    n: u8,
}

impl Node {
    /// Starts the tunnel and the agent, and gives the host its address, as docs/fleet.md says.
    fn start(fleet: &Fleet, n: u8, words: &str) -> Node {
        let host = Host::new("node").unwrap();
        fleet.plug(&host, n);
        let line = format!(
            "dev {DEVICE} peers none local 198.18.0.{n} listen vxlan:8472,gue:6080 id 1 lladdr 02:00:c6:12:00:{n:02x} encap-remcsum mtu 1420"
        );
        let tunnel =
            Tunnel::start(&host, &fleet.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>());
        let at = if words.contains("--public-ip") { "" } else { "--iface eth0" };
        let words = format!("fleet etcd --dev {DEVICE} --endpoints {ETCD} --allow-plain-http {at} {words}");
        let words = words.split_whitespace().map(String::from).collect();
        let mut node = Node { host, agent: None, tunnel, words, n };
        node.start_agent(&fleet.program);
        let address = node.address();
        ip(&node.host, &format!("address add {address}/32 dev {DEVICE}"));
        ip(&node.host, &format!("route add 198.19.0.0/16 dev {DEVICE} src {address}"));
        node
    }

    fn start_agent(&mut self, program: &Path) {
        let mut command = self.host.command(program);
        command.args(&self.words);
        self.agent = Some(Process::spawn(command, b"").expect("the agent starts"));
        until("the agent has a lease", || {
            let ended = self.agent.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "{}", self.agent.as_mut().map(Process::last_words).unwrap_or_default());
            // An agent of before has left its own state.
            let (state, pid) = (self.state(), self.agent.as_ref().map(|agent| u64::from(agent.id())));
            state["state"] == "connected" && state["pid"].as_u64() == pid
        });
    }

    /// Ends the agent without a word.
    fn kill_agent(&mut self) {
        let id = self.agent.as_ref().expect("an agent").id().to_string();
        self.host.run("kill", &["-KILL", &id]).unwrap();
        self.agent.as_mut().expect("an agent").wait(PATIENCE).unwrap();
        self.agent = None;
    }

    fn state(&self) -> Value {
        let text = self.host.run("cat", &[&format!("/run/segue/{DEVICE}.fleet.json")]);
        text.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    fn subnet(&self) -> String {
        self.state()["subnet"].as_str().unwrap().to_owned()
    }

    fn address(&self) -> String {
        self.subnet().split('/').next().unwrap().to_owned()
    }

    fn peers(&self, fleet: &Fleet) -> Vec<Value> {
        let text = self.host.run(fleet.program.to_str().unwrap(), &["peer", "list", DEVICE, "-j"]).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["peers"].as_array().unwrap().clone()
    }

    /// Waits until the node has one peer, and returns it.
    fn one_peer(&self, fleet: &Fleet) -> Value {
        let mut found = Vec::new();
        until("one peer is there", || {
            found = self.peers(fleet);
            found.len() == 1
        });
        found.remove(0)
    }
}

/// Starts a node of the kernel, whose subnet is 198.19.N.0/24.
fn kernel_node(fleet: &Fleet, n: u8) -> (Host, Process) {
    let host = Host::new("kernel").unwrap();
    fleet.plug(&host, n);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet_node.py");
    let mut command = fleet.command(&host, "python3");
    command.arg(script).args([
        &format!("198.18.0.{n}"),
        &format!("198.19.{n}.0/24"),
        &format!("5a:65:bd:bd:44:{n:02x}"),
    ]);
    let mut process = Process::spawn(command, b"").unwrap();
    process.wait_for_line("up", PATIENCE).unwrap();
    (host, process)
}

fn at<'a>(host: &'a Host, address: &str) -> traffic::Place<'a> {
    traffic::Place { host, address: address.parse().unwrap() }
}

/// Returns what tshark reads of a capture: the fields of each datagram.
fn datagrams(path: &Path) -> Vec<Vec<String>> {
    let fields = ["ip.src", "ip.dst", "udp.dstport", "udp.payload"];
    let mut command = std::process::Command::new("tshark");
    command.args(["-r", path.to_str().unwrap(), "-Y", "udp", "-T", "fields"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Of an inner header of UDP there is a second value, behind a comma.
    let outer = |field: &str| field.split(',').next().unwrap_or_default().to_owned();
    text.lines().map(|line| line.split('\t').map(outer).collect()).collect()
}

#[test]
fn two_nodes_of_segue_and_one_of_the_kernel_are_one_overlay() {
    let Some(fleet) = Fleet::new(test_name!()) else { return };
    let (kernel, _follows) = kernel_node(&fleet, 4);
    let mut a = Node::start(&fleet, 2, "--offer gue,remcsum");
    let b = Node::start(&fleet, 3, "--offer gue,remcsum");
    // The leases are flannel's but for the offer, which flannel ignores.
    for node in [&a, &b] {
        let key = node.subnet().replace('/', "-");
        let offer = r#","segue":{"v":1,"encap":"gue","port":6080,"remcsum":true}"#;
        let value = format!(
            r#"{{"PublicIP":"198.18.0.{n}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:c6:12:00:{n:02x}"{offer}}}}}"#,
            n = node.n
        );
        assert!(fleet.leases().contains(&(key, value)), "{:?}", fleet.leases());
    }
    until("every table has two peers", || [&a, &b].iter().all(|node| node.peers(&fleet).len() == 2));
    let path = fleet.directory.file("a.pcap");
    let capture = Capture::start(&a.host, path);
    let places = [at(&a.host, &a.address()), at(&b.host, &b.address()), at(&kernel, "198.19.4.0")];
    for (seed, (one, other)) in (1u64..).zip([(0, 1), (0, 2), (1, 2)]) {
        let (near, far) = (places[one], places[other]);
        segue_lab::reach((near.host, near.address), (far.host, far.address), PATIENCE).unwrap();
        traffic::everything(near, far, traffic::SHORT * 2, seed);
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
    for node in [&a, &b] {
        let drops = Stat::read(&node.host, &fleet.program, DEVICE).drops();
        assert!(drops.keys().all(|reason| reason == "no_group"), "{drops:?}");
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
    // SIGTERM ends the tunnel too, and no device stays.
    a.agent.as_mut().unwrap().stop(PATIENCE);
    let Node { host, tunnel, .. } = a;
    drop(tunnel);
    assert!(!host.has_device(DEVICE), "{:?}", host.devices());
}

#[test]
fn hostile_leases_and_an_outage_cost_no_packet() {
    let Some(mut fleet) = Fleet::new(test_name!()) else { return };
    let (kernel, follows) = kernel_node(&fleet, 4);
    let a = Node::start(&fleet, 2, "");
    until("the kernel is a peer", || a.peers(&fleet).len() == 1);
    segue_lab::reach((&a.host, a.address().parse().unwrap()), (&kernel, "198.19.4.0".parse().unwrap()), PATIENCE)
        .unwrap();
    drop(follows);
    let good = r#"{"PublicIP":"198.18.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:09"}}"#;
    let hostile = [
        ("-anything", good, "key_outside"),
        ("/198.19.207.0", good, "key_malformed"),
        ("/198.19.207.1-24", good, "host_bits"),
        ("/198.20.207.0-24", good, "outside_network"),
        ("/198.19.4.128-25", good, "overlap"),
        ("/198.19.207.0-24", "{", "value_malformed"),
        ("/198.19.208.0-24", &good.replace("198.18.0.9", "198.19.9.9"), "address_in_network"),
        ("/198.19.209.0-24", &good.replace("198.18.0.9", "224.0.0.1"), "address_not_unicast"),
        ("/198.19.210.0-24", &good.replace(":1,", ":2,"), "other_vni"),
        ("/198.19.211.0-24", &good.replace("5a:", "01:"), "mac_not_unicast"),
        ("/198.19.212.0-24", &good.replace("198.18.0.9", "198.18.0.2"), "own_address"),
    ];
    let own = format!("{SUBNETS}/{}", a.subnet().replace('/', "-"));
    let mut ping = a.host.command("ping");
    ping.args(["-n", "-i", "0.05", "-c", "100", "-W", "60", "198.19.4.0"]);
    let mut ping = Process::spawn(ping, b"").unwrap();
    for (key, value, _) in &hostile {
        fleet.ctl(&["put", &format!("{SUBNETS}{key}"), "--", value]);
    }
    until("each is refused under its reason", || {
        let refused = a.state()["refused"].clone();
        hostile.iter().all(|(_, _, reason)| refused[reason] == 1)
    });
    assert_eq!(a.peers(&fleet).len(), 1);
    // What the agent has ever written is its own lease: the history of etcd has no other key of its address.
    // A watch does not end by itself: it is repeated until the last entry is there.
    let watch = format!("timeout 5 etcdctl --endpoints {ETCD} watch --rev 1 --prefix {SUBNETS} || true");
    let mut history = String::new();
    until("the history is complete", || {
        history = fleet.etcd.run("sh", &["-c", &watch]).unwrap();
        history.lines().any(|line| line.ends_with(hostile[hostile.len() - 1].0))
    });
    let lines: Vec<&str> = history.lines().collect();
    let ours = lines.windows(3).filter(|lines| lines[0] == "PUT" && lines[2].contains("02:00:c6:12:00:02"));
    let keys: BTreeSet<&str> = ours.map(|lines| lines[1]).collect();
    assert_eq!(keys, BTreeSet::from([own.as_str()]), "{history}");
    // etcd is gone: the table stays, and the state says so.
    drop(fleet.server.take());
    until("the agent says so", || a.state()["state"] == "stale");
    assert!(ping.wait(PATIENCE).unwrap().success() && ping.stdout().contains(" 0% packet loss"), "{}", ping.stdout());
    assert_eq!(a.peers(&fleet).len(), 1);
    segue_lab::reach((&a.host, a.address().parse().unwrap()), (&kernel, "198.19.4.0".parse().unwrap()), PATIENCE)
        .unwrap();
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
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["peers"], serde_json::json!([]));
    drop(tunnels);
}
