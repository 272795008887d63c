//! A fleet whose registry is etcd: nodes of segue, and nodes whose VXLAN is the kernel's, programmed from the leases as
//! flannel does it (`fleet_node.py`). All share one link layer, 198.18.0.0/24, in namespaces.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Host, Process, skip};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, Tunnel, fastpath, traffic};
use serde_json::Value;

pub(crate) const DEVICE: &str = "fl0";
pub(crate) const ETCD: &str = "http://198.18.0.1:2379";
pub(crate) const TLS: &str = "https://198.18.0.1:2379";
/// The address of an etcd that asks its clients for a certificate.
pub(crate) const TLS_OF_CLIENTS: &str = "https://198.18.0.1:2389";
const THREE: &str = "http://198.18.0.11:2379,http://198.18.0.12:2379,http://198.18.0.13:2379";
pub(crate) const SUBNETS: &str = "/coreos.com/network/subnets";
pub(crate) const CONFIG: &str =
    r#"{"Network":"198.19.0.0/16","SubnetLen":24,"EnableNFTables":true,"Backend":{"Type":"vxlan","VNI":1}}"#;
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A switch, etcd at 198.18.0.1, and the program under test.
pub(crate) struct Fleet {
    switch: Host,
    pub(crate) etcd: Host,
    pub(crate) program: PathBuf,
    pub(crate) directory: Directory,
    pub(crate) server: Option<Process>,
    /// Members of the cluster if there are three, at 198.18.0.11 to 198.18.0.13.
    pub(crate) members: [Option<Process>; 3],
    url: &'static str,
    /// The user of etcdctl and the password, with a colon between them.
    pub(crate) user: Option<&'static str>,
    /// Whether the in-kernel path can be loaded here.
    pub(crate) has_path: bool,
}

#[track_caller]
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

#[track_caller]
pub(crate) fn until_within(longest: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < longest, "not within {longest:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn ip(host: &Host, line: &str) {
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

impl Fleet {
    pub(crate) fn new(name: &str) -> Option<Fleet> {
        let fleet = Fleet::at(name, ETCD)?;
        fleet.ctl(&["put", "/coreos.com/network/config", "--", CONFIG]);
        Some(fleet)
    }

    /// Starts a fleet with the in-kernel path, if that can be loaded.
    pub(crate) fn with_path(name: &str) -> Option<Fleet> {
        let fleet = Fleet::new(name)?;
        if !fleet.has_path {
            skip(name, "the in-kernel path cannot be loaded here (segue doctor says why)");
            return None;
        }
        Some(fleet)
    }

    /// Starts etcd at the given address.
    pub(crate) fn at(name: &str, url: &'static str) -> Option<Fleet> {
        let mut fleet = Fleet::without_etcd(name, url)?;
        fleet.start_etcd();
        Some(fleet)
    }

    fn without_etcd(name: &str, url: &'static str) -> Option<Fleet> {
        let tools = ["etcd", "etcdctl", "openssl", "python3", "bridge", "ping", "tcpdump", "tshark"];
        let ground = Ground::apart(name, &tools)?;
        let has_path = fastpath::missing(&ground).is_none();
        let Ground { a: switch, b: etcd, program } = ground;
        ip(&switch, "link add br0 type bridge");
        ip(&switch, "link set br0 up");
        let (directory, members) = (Directory::new(), [const { None }; 3]);
        let fleet = Fleet { switch, etcd, program, directory, server: None, members, url, user: None, has_path };
        fleet.plug(&fleet.etcd, 1);
        Some(fleet)
    }

    /// Starts an etcd of three members.
    pub(crate) fn of_three(name: &str) -> Option<Fleet> {
        let mut fleet = Fleet::without_etcd(name, THREE)?;
        for n in 0..3 {
            ip(&fleet.etcd, &format!("address add 198.18.0.{}/24 dev eth0", 11 + n));
        }
        (0..3).for_each(|n| fleet.start_member(n));
        fleet.until_healthy();
        fleet.ctl(&["put", "/coreos.com/network/config", "--", CONFIG]);
        Some(fleet)
    }

    /// Starts one of three members, new or with its earlier data.
    pub(crate) fn start_member(&mut self, n: usize) {
        let at = |n: usize, port: u16| format!("http://198.18.0.{}:{port}", 11 + n);
        let cluster: Vec<String> = (0..3).map(|n| format!("m{n}={}", at(n, 2380))).collect();
        let (client, peer) = (at(n, 2379), at(n, 2380));
        let mut command = self.etcd.command("etcd");
        command.args(["--name", &format!("m{n}"), "--initial-cluster", &cluster.join(",")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--data-dir"]);
        command.arg(self.directory.file(&format!("m{n}")));
        self.members[n] = Some(Process::spawn(command, b"").expect("a member starts"));
    }

    /// Kills one of three members.
    pub(crate) fn kill_member(&mut self, n: usize) {
        let mut member = self.members[n].take().expect("a member");
        self.etcd.run("kill", &["-KILL", &member.id().to_string()]).unwrap();
        member.wait(PATIENCE).unwrap();
    }

    /// Returns the one of three members that leads.
    pub(crate) fn leader(&self) -> usize {
        let text = self.ctl(&["endpoint", "status", "-w", "json"]);
        let status: Value = serde_json::from_str(&text).unwrap();
        let leads = |one: &&Value| one["Status"]["leader"] == one["Status"]["header"]["member_id"];
        let url = status.as_array().unwrap().iter().find(leads).expect("a leader")["Endpoint"].as_str().unwrap();
        THREE.split(',').position(|one| one == url).expect("one of three")
    }

    pub(crate) fn until_healthy(&self) {
        until("etcd is up", || self.etcdctl(&self.etcd, &["endpoint", "health"]).is_some());
    }

    /// Returns the members in the form of the agent's option.
    pub(crate) fn endpoints(&self) -> &str {
        self.url
    }

    /// Joins a host to the switch, with the address 198.18.0.N. It segments and checksums itself, as without a card
    /// that does: an inner checksum that a kernel leaves to the card is otherwise never finished on such a link.
    pub(crate) fn plug(&self, host: &Host, n: u8) {
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

    pub(crate) fn start_etcd(&mut self) {
        let mut command = self.etcd.command("etcd");
        command.args(["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--data-dir"]);
        command.arg(self.directory.file("etcd"));
        if self.has_tls() {
            self.make_certificates();
            for (option, file) in [("--cert-file", "cert.pem"), ("--key-file", "key.pem")] {
                command.arg(option).arg(self.directory.file(file));
            }
        }
        if self.url == TLS_OF_CLIENTS {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.certificate());
        }
        self.server = Some(Process::spawn(command, b"").expect("etcd starts"));
        self.until_healthy();
    }

    fn has_tls(&self) -> bool {
        self.url.starts_with("https:")
    }

    /// Creates a certificate authority, ca.pem, and a certificate for etcd's address signed by it, which etcd's gateway
    /// also uses as a client of etcd; another authority, other.pem, and a client's certificate signed by each. (What
    /// etcd makes by itself has a key of P-521, which rustls with ring does not take.)
    fn make_certificates(&self) {
        const MAKE: &str = "
            key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            printf 'subjectAltName=IP:198.18.0.1\nbasicConstraints=CA:FALSE\n' > ext
            printf 'extendedKeyUsage=serverAuth,clientAuth\n' >> ext
            for name in ca other; do
                openssl req -x509 $key -days 30 -subj /CN=authority-$name -keyout $name.key -out $name.pem
            done
            made() {
                openssl req $key -subj /CN=$2 -keyout $3 -out csr
                openssl x509 -req -in csr -days 30 -CA $1.pem -CAkey $1.key -CAcreateserial -extfile ext -out $4
            }
            made ca etcd key.pem cert.pem
            made ca node node-key.pem node.pem
            made other node foreign-key.pem foreign.pem";
        let mut command = self.etcd.command("sh");
        command.args(["-ec", MAKE]).current_dir(self.directory.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the file with the authority's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.file("ca.pem")
    }

    /// Makes a command that finds etcd by its environment.
    pub(crate) fn command(&self, host: &Host, program: &str) -> std::process::Command {
        let mut command = host.command(program);
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", self.url);
        if self.has_tls() {
            command.env("ETCDCTL_CACERT", self.certificate());
        }
        if self.url == TLS_OF_CLIENTS {
            command.env("ETCDCTL_CERT", self.directory.file("node.pem"));
            command.env("ETCDCTL_KEY", self.directory.file("node-key.pem"));
        }
        if let Some(user) = self.user {
            command.env("ETCDCTL_USER", user);
        }
        command
    }

    pub(crate) fn etcdctl(&self, host: &Host, words: &[&str]) -> Option<String> {
        let output = self.command(host, "etcdctl").args(words).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    #[track_caller]
    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        let patient = [&["--command-timeout", "60s", "--dial-timeout", "60s"][..], words].concat();
        self.etcdctl(&self.etcd, &patient).unwrap_or_else(|| panic!("etcdctl {words:?}"))
    }

    /// Returns the leases: key without the directory, and value.
    pub(crate) fn leases(&self) -> Vec<(String, String)> {
        let text = self.ctl(&["get", "--prefix", &format!("{SUBNETS}/")]);
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0][SUBNETS.len() + 1..].to_owned(), pair[1].to_owned())).collect()
    }
}

/// A node of segue: its host, tunnel and agent.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) agent: Option<Process>,
    pub(crate) tunnel: Tunnel,
    of_tunnel: Vec<String>,
    pub(crate) words: Vec<String>,
    pub(crate) n: u8,
}

impl Node {
    /// Starts the tunnel and the agent, and adds the host's address and route. The kernel carries the packets that need
    /// nothing of segue.
    pub(crate) fn start(fleet: &Fleet, n: u8, words: &str) -> Node {
        let path = if fleet.has_path { "noencap-csum fastpath require" } else { "" };
        Node::listening(fleet, n, &format!("vxlan:8472,gue:6080 id 1 encap-remcsum mtu 1420 {path}"), words)
    }

    /// Starts the tunnel and the agent; the tunnel's process carries all packets.
    pub(crate) fn by_daemon(fleet: &Fleet, n: u8, words: &str) -> Node {
        Node::listening(fleet, n, "vxlan:8472,gue:6080 id 1 encap-remcsum mtu 1420 fastpath off", words)
    }

    /// Starts the tunnel and the agent with other words for the tunnel after `listen`.
    pub(crate) fn listening(fleet: &Fleet, n: u8, listen: &str, words: &str) -> Node {
        let mut node = Node::without_agent(fleet, n, listen, words);
        node.start_agent(&fleet.program);
        node.join();
        node
    }

    /// Gives the host its address in the network, and the route to the other hosts.
    fn join(&self) {
        let address = self.address();
        ip(&self.host, &format!("address add {address}/32 dev {DEVICE}"));
        ip(&self.host, &format!("route add 198.19.0.0/16 dev {DEVICE} src {address}"));
    }

    /// Starts the tunnel without a fleet agent.
    pub(crate) fn without_agent(fleet: &Fleet, n: u8, listen: &str, words: &str) -> Node {
        let host = Host::new("node").unwrap();
        fleet.plug(&host, n);
        let line = format!("dev {DEVICE} peers none local 198.18.0.{n} listen {listen}");
        let of_tunnel: Vec<String> = line.split_whitespace().map(String::from).collect();
        let tunnel = Tunnel::start(&host, &fleet.program, &of_tunnel);
        let at = if words.contains("--public-ip") { "" } else { "--iface eth0" };
        let endpoints = fleet.endpoints();
        let words = format!("fleet etcd --dev {DEVICE} --endpoints {endpoints} --allow-plain-http {at} {words}");
        let words = words.split_whitespace().map(String::from).collect();
        Node { host, agent: None, tunnel, of_tunnel, words, n }
    }

    pub(crate) fn start_agent(&mut self, program: &Path) {
        self.launch_agent(program);
        until("the agent has a lease", || self.has_lease());
    }

    /// Starts the agent without waiting for its lease.
    pub(crate) fn launch_agent(&mut self, program: &Path) {
        let mut command = self.host.command(program);
        command.args(&self.words);
        self.agent = Some(Process::spawn(command, b"").expect("the agent starts"));
    }

    /// Returns whether the agent has a lease and follows the leases of other hosts. It must not have ended.
    pub(crate) fn has_lease(&mut self) -> bool {
        let ended = self.agent.as_mut().and_then(Process::ended);
        assert!(ended.is_none(), "{}", self.agent.as_mut().map(Process::last_words).unwrap_or_default());
        // An agent of before has left its own state.
        let (state, pid) = (self.state(), self.agent.as_ref().map(|agent| u64::from(agent.id())));
        state["state"] == "connected" && state["pid"].as_u64() == pid
    }

    /// Returns the MAC address of the tunnel's VTEP.
    pub(crate) fn mac(&self, fleet: &Fleet) -> String {
        let stat = Stat::read(&self.host, &fleet.program, DEVICE);
        stat.json()["peers"]["mac"].as_str().expect("a MAC address").to_owned()
    }

    /// Kills the fleet agent of the node.
    pub(crate) fn kill_agent(&mut self) {
        let id = self.agent.as_ref().expect("an agent").id().to_string();
        self.host.run("kill", &["-KILL", &id]).unwrap();
        self.agent.as_mut().expect("an agent").wait(PATIENCE).unwrap();
        self.agent = None;
    }

    /// Kills the agent and the tunnel.
    pub(crate) fn kill(&mut self) {
        self.kill_agent();
        self.host.run("kill", &["-KILL", &self.tunnel.process.id().to_string()]).unwrap();
        self.tunnel.process.wait(PATIENCE).unwrap();
        until("the device is gone", || !self.host.has_device(DEVICE));
    }

    /// Starts the tunnel and the agent again, after [`Node::kill`].
    pub(crate) fn start_again(&mut self, program: &Path) {
        self.tunnel = Tunnel::start(&self.host, program, &self.of_tunnel);
        self.start_agent(program);
        self.join();
    }

    /// Returns the agent's entry in `segue stat`.
    pub(crate) fn in_stat(&self, fleet: &Fleet) -> Value {
        let text = self.host.run(fleet.program.to_str().unwrap(), &["stat", "-j"]);
        let stat: Option<Value> = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        stat.map(|stat| stat["fleet"][DEVICE].clone()).unwrap_or_default()
    }

    pub(crate) fn state(&self) -> Value {
        let text = self.host.run("cat", &[&format!("/run/segue/{DEVICE}.fleet.json")]);
        text.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Returns the numbers of peers that the kernel serves, and that segue serves; `None` without the path.
    pub(crate) fn served(&self, fleet: &Fleet) -> Option<[u64; 2]> {
        let stat = Stat::read(&self.host, &fleet.program, DEVICE);
        let peers = &stat.json()["fastpath"]["peers"];
        let segue = peers["segue"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        peers["kernel"].as_u64().map(|kernel| [kernel, segue])
    }

    /// Waits until the kernel serves the first number of peers, and segue the second.
    #[track_caller]
    pub(crate) fn until_served(&self, fleet: &Fleet, wanted: [u64; 2]) {
        until(&format!("{wanted:?} are served"), || self.served(fleet) == Some(wanted));
    }

    /// Checks that the in-kernel path has carried packets in the given directions. What a node of the kernel sends has
    /// an outer checksum, as flannel's has, and is left to the process.
    #[track_caller]
    pub(crate) fn took_the_path(&self, fleet: &Fleet, directions: &[&str]) {
        let stat = Stat::read(&self.host, &fleet.program, DEVICE);
        for direction in directions {
            let taken = stat.count(DEVICE, "fastpath", direction);
            assert!(taken > 40, "{direction} {taken}: {}", stat.json());
        }
    }

    pub(crate) fn subnet(&self) -> String {
        self.state()["subnet"].as_str().unwrap().to_owned()
    }

    pub(crate) fn address(&self) -> String {
        self.subnet().split('/').next().unwrap().to_owned()
    }

    pub(crate) fn peers(&self, fleet: &Fleet) -> Vec<Value> {
        let text = self.host.run(fleet.program.to_str().unwrap(), &["peer", "list", DEVICE, "-j"]).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["peers"].as_array().unwrap().clone()
    }
}

/// TCP of iperf3 at 300 Mbit/s.
pub(crate) struct Load {
    client: Process,
    _server: Process,
    /// Rate in bit/s and share of retransmitted segments, without any change.
    quiet: [f64; 2],
}

impl Load {
    /// Sends for 20 s to an address of another host, and starts to send for a minute.
    pub(crate) fn start(from: &Host, (to, address): (&Host, &str)) -> Load {
        let mut command = to.command("iperf3");
        command.args(["-s", "-B", address]);
        let server = Process::spawn(command, b"").unwrap();
        until("iperf3 listens", || to.run("ss", &["-ltn"]).unwrap().contains(":5201"));
        let client = |seconds: &str| {
            let mut command = from.command("iperf3");
            command.args(["-c", address, "-b", "300M", "-J", "-t", seconds]);
            Process::spawn(command, b"").unwrap()
        };
        let quiet = rate_and_resent(client("20"));
        Load { client: client("60"), _server: server, quiet }
    }

    /// Waits for the end of the load: the rate is as before, and no more than noise was resent.
    #[track_caller]
    pub(crate) fn went_on(self) {
        let (quiet, busy) = (self.quiet, rate_and_resent(self.client));
        assert!(busy[0] >= 0.9 * quiet[0] && busy[1] <= 3.0 * quiet[1] + 0.001, "{quiet:?} {busy:?}");
    }
}

/// Waits for the end of an iperf3 client, and returns its rate and the share of resent segments.
#[track_caller]
fn rate_and_resent(mut client: Process) -> [f64; 2] {
    const SEGMENT: f64 = 1360.0;
    assert!(client.wait(PATIENCE).unwrap().success(), "{}", client.stdout());
    let report: Value = serde_json::from_str(&client.stdout()).unwrap();
    let sent = |key: &str| report["end"]["sum_sent"][key].as_f64().expect("a number");
    [sent("bits_per_second"), sent("retransmits") * SEGMENT / sent("bytes")]
}

/// Starts a node of the kernel, whose subnet is 198.19.N.0/24.
pub(crate) fn kernel_node(fleet: &Fleet, n: u8) -> (Host, Process) {
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

pub(crate) fn at<'a>(host: &'a Host, address: &str) -> traffic::Place<'a> {
    traffic::Place { host, address: address.parse().unwrap() }
}

/// Returns the fields of each datagram of a capture, as tshark reads them.
pub(crate) fn datagrams(path: &Path) -> Vec<Vec<String>> {
    let fields = ["ip.src", "ip.dst", "udp.dstport", "udp.payload"];
    let mut command = std::process::Command::new("tshark");
    command.args(["-r", path.to_str().unwrap(), "-Y", "udp", "-T", "fields"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Of an inner header of UDP there is a second value, after a comma.
    let outer = |field: &str| field.split(',').next().unwrap_or_default().to_owned();
    text.lines().map(|line| line.split('\t').map(outer).collect()).collect()
}
