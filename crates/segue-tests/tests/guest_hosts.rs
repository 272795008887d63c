//! Test of a guest with Debian's Linux that exchanges files with a host: over a link without offloads, through a NAT,
//! and through a tunnel whose inner interface is the guest's.

#[path = "common/guests.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{Gateway, NAME, PATIENCE};
use segue_lab::{Host, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Random, Stat, guest, skip, test_name};

/// Time for a guest without KVM to boot on a busy machine, and for all that it exchanges.
const LONGEST: Duration = Duration::from_secs(600);
/// Length of each file, bytes: six cross.
const FILE_LEN: usize = 8 << 20;
/// Addresses of the host: on the link, behind the NAT, at the other end of the tunnel.
const PEERS: [&str; 3] = ["198.18.1.2", "198.18.2.2", "198.18.4.2"];

fn ip(host: &Host, line: &str) {
    host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
}

/// Creates three links between the hosts, with a VXLAN of the kernel over the last one.
fn links(ground: &Ground) {
    for n in 1..4 {
        ip(&ground.a, &format!("link add e{n} type veth peer name eth{n} netns {}", ground.b.net_path()));
        ip(&ground.a, &format!("link set e{n} addrgenmode none up"));
        ip(&ground.b, &format!("link set eth{n} addrgenmode none up"));
        ip(&ground.b, &format!("addr add 198.18.{n}.2/24 dev eth{n}"));
    }
    ground.a.run("ethtool", &["-K", "e1", "tso", "off", "gso", "off", "tx", "off"]).unwrap();
    // What comes by the first link comes packet by packet: its trains are joined in front of the guest.
    ground.b.run("ethtool", &["-K", "eth1", "tso", "off", "gso", "off", "tx", "off"]).unwrap();
    ip(&ground.a, "addr add 198.18.2.1/24 dev e2");
    ip(&ground.a, "addr add 198.18.3.1/24 dev e3");
    let ends = "local 198.18.3.2 remote 198.18.3.1";
    ip(&ground.b, &format!("link add vx0 type vxlan id 42 dstport 4789 dev eth3 {ends} udpcsum"));
    ip(&ground.b, "link set vx0 mtu 1450 addrgenmode none up");
    ip(&ground.b, "addr add 198.18.4.2/24 dev vx0");
}

/// Starts the servers on the host: port 5001 returns the hash of the data received, port 5003 sends a file, and port
/// 5004 sends its hash.
fn services(host: &Host, directory: &Directory) -> Vec<Process> {
    let file = directory.file("file");
    fs::write(&file, Random::new(20).bytes(FILE_LEN)).unwrap();
    let path = file.display().to_string();
    let line = host.run("sha256sum", &[&path]).unwrap();
    let hash = line.split_whitespace().next().unwrap();
    let answers = [(5001, "sha256sum".to_owned()), (5003, format!("cat {path}")), (5004, format!("echo {hash}"))];
    let serve = |(port, answer): &(u16, String)| {
        let mut command = host.command("socat");
        command.arg(format!("TCP-LISTEN:{port},fork,reuseaddr,backlog=8")).arg(format!("SYSTEM:{answer}"));
        Process::spawn(command, b"").unwrap()
    };
    answers.iter().map(serve).collect()
}

#[test]
fn full_size_a_guest_exchanges_files_by_a_link_without_offloads_through_nat_and_through_a_tunnel() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    let programs = ["bash", "cpio", "qemu-system-x86_64", "socat", "tcpdump", "ethtool"];
    let Some(ground) = Ground::apart(test_name!(), &programs) else { return };
    let directory = Directory::new();
    links(&ground);
    let _services = services(&ground.b, &directory);
    let port = |name: &str| format!("vhost:{}", directory.file(&format!("{name}.sock")).display());
    let start = |name, words: &[&str]| {
        let mut command = ground.a.command(&ground.program);
        command.args(words);
        Gateway::run(&ground, &directory, name, command)
    };
    let link = Gateway::between(&ground, &directory, &["nic"], &["e1", "--set", "net.gso.dev.e1.tso=0"]);
    // Here QEMU listens, and segue connects.
    let client = format!("{},client", port("nat"));
    let inside = start("inside", &["gateway", "-j", "--name", "inside", &client, "tap:vms"]);
    ip(&ground.a, "addr add 198.18.5.1/24 dev vms");
    let _nat = start("nat", &["gateway", "-j", "vms", "e2", "--route", "--nat", "198.18.2.9", "--name", "nat"]);
    let dev = format!("{},name=vm1", port("tunnel"));
    let ends = "mode vxlan id 42 dstport 4789 local 198.18.3.1 remote 198.18.3.2";
    let words: Vec<&str> = ["tunnel", "-j", "dev", &dev].into_iter().chain(ends.split(' ')).collect();
    let tunnel = start("vm1", &words);

    // A frame of more than 1,500 bytes after its header would end this one.
    let mut command = ground.b.command("tcpdump");
    command.args(["-i", "eth1", "-Q", "in", "-n", "-l", "--immediate-mode", "-c", "1", "greater", "1515"]);
    let mut long = Process::spawn(command, b"").unwrap();
    let begin = Instant::now();
    while !long.stderr().contains("listening on") {
        assert!(long.ended().is_none() && begin.elapsed() < PATIENCE, "{}", long.last_words());
        thread::sleep(Duration::from_millis(5));
    }

    let mut command = ground.a.command("bash");
    command.arg(&run).arg("--cache").arg(&cache);
    for name in ["nic.sock", "nat.sock,server", "tunnel.sock"] {
        command.arg("--vhost").arg(directory.file(name));
    }
    command.arg("--script").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest_hosts.sh"));
    command.args(["--mem", "384", "--timeout", &LONGEST.as_secs().to_string()]);
    command.arg("--env").arg(format!("FILE_LEN={FILE_LEN}"));
    let mut vm = Process::spawn(command, b"").unwrap();
    let ended = vm.wait(LONGEST + PATIENCE).unwrap_or_else(|error| panic!("{error}\n{}", vm.last_words()));
    assert_eq!(ended.code(), Some(0), "{}\n{}", vm.stdout(), vm.stderr());
    for peer in PEERS {
        let line = format!("@ done {peer}");
        assert!(vm.stdout().lines().any(|said| said.trim_end() == line), "{}", vm.stdout());
    }

    assert!(long.ended().is_none(), "a packet of more than 1,500 bytes: {}", long.stdout());
    let stat = |gateway: &Gateway<'_>, name| Stat::read(&ground.a, gateway.program(), name);
    let seen = stat(&link, NAME);
    assert!(seen.count("nic", "receive", "trains") > 0 && seen.count("e1", "gso", "trains_cut") > 0, "{}", seen.json());
    assert!(seen.count("nic", "gso", "trains_whole") > 0, "{}", seen.json());
    let seen = stat(&inside, "inside");
    assert!(seen.count("vms", "gso", "trains_whole") > 0, "{}", seen.json());
    assert_eq!(seen.count("vms", "gso", "trains_cut"), 0, "{}", seen.json());
    let seen = stat(&tunnel, "vm1");
    assert!(seen.json()["ports"]["vm1"]["stages"]["encap"]["trains"].as_u64() > Some(0), "{}", seen.json());
}
