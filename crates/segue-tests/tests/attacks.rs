//! Tests of faults that the attack on the first release found in routers, gateways and services (docs/security.md), as
//! hosts around the program meet them. Each fails on the program of that time.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_tests::capture::{self, Directory};
use segue_tests::faults::{Fault, Service};
use segue_tests::flood::Stations;
use segue_tests::routed::{Routed, address, ip};
use segue_tests::traffic::{self, Place};
use segue_tests::wire::{pseudo, sum};
use segue_tests::{Carrier, Ground, Inside, Pair, Random, Shape, Stat, Tunnel, skip, sys, test_name, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the gateway's instance.
const GATEWAY: &str = "gw0";

const NAT: &[&str] = &["--nat", "198.18.2.9"];
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 2);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 9);
/// Identifier of the client's ICMP queries, inside and outside of the NAT.
const QUERY: u16 = 7000;

/// Builds an IPv4 packet. The kernel fills in its header checksum.
fn ipv4(protocol: u8, ends: [Ipv4Addr; 2], data: &[u8]) -> Vec<u8> {
    let len = (20 + data.len()) as u16;
    let mut packet = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 0, 0, 0, 64, protocol, 0, 0]].concat();
    packet.extend(ends.map(|end| end.octets()).concat());
    packet.extend(data);
    packet
}

/// Builds an IPv4 packet with an ICMP echo request (8) or reply (0).
fn echo(kind: u8, ends: [Ipv4Addr; 2], sequence: u16) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &QUERY.to_be_bytes(), &sequence.to_be_bytes(), &[7; 24]].concat();
    let field = !sum(&message);
    message[2..4].copy_from_slice(&field.to_be_bytes());
    ipv4(1, ends, &message)
}

/// A client behind a NAT that sends ICMP queries, and a server outside that sends replies without a query.
struct Queries<'a> {
    routed: &'a Routed,
    sequence: u16,
}

impl<'a> Queries<'a> {
    /// Makes a client that has sent nothing yet.
    fn new(routed: &'a Routed) -> Queries<'a> {
        Queries { routed, sequence: 0 }
    }

    /// Sends a query from inside until its reply comes.
    #[track_caller]
    fn query(&mut self) {
        let client = &self.routed.ground.a;
        until("no reply to a query", || self.passes(client, 8, [CLIENT, SERVER]).then_some(()));
    }

    /// Sends a reply from outside, and returns whether the client gets it.
    fn reply(&mut self) -> bool {
        let server = &self.routed.ground.b;
        self.passes(server, 0, [SERVER, OUTSIDE])
    }

    /// Sends a message, and returns whether the client gets a reply within two seconds.
    fn passes(&mut self, from: &Host, kind: u8, ends: [Ipv4Addr; 2]) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        let before = self.received();
        let packet = echo(kind, ends, self.sequence);
        traffic::inside(from, || sys::send_packet(&packet, ends[1].into())).expect("a packet is sent");
        let begin = Instant::now();
        while self.received() == before {
            if begin.elapsed() > Duration::from_secs(2) {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Returns the number of echo replies that the client's kernel has received.
    fn received(&self) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp");
        let text = traffic::inside(&self.routed.ground.a, read).expect("the kernel's counters");
        let mut lines = text.lines().filter(|line| line.starts_with("Icmp:")).map(|line| line.split_whitespace());
        let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.position(|name| name == "InEchoReps").unwrap();
        values.nth(at).unwrap().parse().unwrap()
    }

    /// Returns the mapping of the queries.
    #[track_caller]
    fn mapping(&self) -> Value {
        mapping(self.routed, "icmp", QUERY)
    }
}

/// Returns the mapping of an outside port, as `segue nat` lists it.
#[track_caller]
fn mapping(routed: &Routed, protocol: &str, outside: u16) -> Value {
    let output = routed.segue(&["nat", "-j"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let mappings = document["instances"][0]["mappings"].as_array().expect("mappings");
    let found = mappings.iter().find(|one| one["protocol"] == protocol && one["outside"] == outside);
    found.unwrap_or_else(|| panic!("no mapping of {protocol} {outside} in {document}")).clone()
}

/// Tests that packets from outside leave the idle time of a mapping as it is (RFC 4787, REQ-6).
#[test]
fn packets_from_outside_do_not_make_a_mapping_younger() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let mut queries = Queries::new(&routed);
    queries.query();
    let begin = Instant::now();
    loop {
        queries.reply();
        let mapping = queries.mapping();
        let [idle, came] = ["idle_s", "in"].map(|key| mapping[key].as_u64().unwrap_or(0));
        if idle >= 5 && came >= 20 {
            return;
        }
        // A mapping of ICMP queries ends after 60 seconds.
        assert!(begin.elapsed() < Duration::from_secs(50), "packets from outside keep a mapping young: {mapping}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Tests that a mapping ends although packets from outside continue: after a minute, the shortest timeout (RFC 5508,
/// REQ-2).
#[test]
fn full_size_a_mapping_ends_though_packets_from_outside_go_on() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let mut queries = Queries::new(&routed);
    queries.query();
    let (begin, mut passed, mut lost) = (Instant::now(), 0, 0);
    // A single one may be late on a busy machine.
    while lost < 3 {
        let came = queries.reply();
        (passed, lost) = (passed + u32::from(came), if came { 0 } else { lost + 1 });
        assert!(begin.elapsed() < Duration::from_secs(300), "{passed} replies keep a mapping: {}", queries.mapping());
        thread::sleep(Duration::from_millis(300));
    }
    assert!(passed > 0, "{:?}", routed.stat().drops());
    // The router itself is well.
    queries.query();
}

/// Tests that a reset with another sequence number than its receiver expects leaves the connection of a mapping open
/// (RFC 5961, section 3.2).
#[test]
fn forged_resets_leave_the_connection_of_a_mapping_open() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let (client, server) = (routed.client(V4), routed.server(V4));
    let listener = traffic::inside(server.host, || TcpListener::bind((server.address, 0))).expect("a listener");
    let to = listener.local_addr().expect("an address");
    let connect = || TcpStream::connect_timeout(&to, PATIENCE);
    let near = traffic::inside(client.host, connect).expect("a connection");
    let (far, peer) = listener.accept().expect("a connection");
    let talk = || {
        for (mut from, mut to) in [(&near, &far), (&far, &near)] {
            to.set_read_timeout(Some(PATIENCE)).expect("a time limit");
            from.write_all(b"there").expect("bytes are sent");
            to.read_exact(&mut [0; 5]).expect("bytes come");
        }
    };
    talk();
    let read = || mapping(&routed, "tcp", peer.port());
    until("the connection is not open", || (read()["state"] == "open").then_some(()));
    let before = read()["in"].as_u64().expect("a count");
    // At most one of these numbers is near that of the connection.
    for number in (0..4_u32).map(|quarter| quarter << 30) {
        let mut reset = [&to.port().to_be_bytes()[..], &peer.port().to_be_bytes(), &number.to_be_bytes()].concat();
        reset.extend([0, 0, 0, 0, 0x50, 4, 0, 0, 0, 0, 0, 0]);
        let pseudo = pseudo(&SERVER.octets(), &OUTSIDE.octets(), 6, reset.len());
        let field = !sum(&[&pseudo.to_be_bytes()[..], &reset].concat());
        reset[16..18].copy_from_slice(&field.to_be_bytes());
        let packet = ipv4(6, [SERVER, OUTSIDE], &reset);
        traffic::inside(server.host, || sys::send_packet(&packet, OUTSIDE.into())).expect("a packet is sent");
    }
    let found = until("the resets do not pass", || {
        let found = read();
        (found["in"].as_u64() >= Some(before + 4)).then_some(found)
    });
    assert_eq!(found["state"], "open", "{found}");
    talk();
}

#[test]
fn a_route_that_encapsulates_is_not_used_without_its_encapsulation() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    for (family, address, route) in [
        ("-4", "198.19.7.1/32", "198.19.7.0/24 encap ip id 7 dst 198.18.2.2 via 198.18.2.2 dev out"),
        ("-6", "2001:db8:7::1/128", "2001:db8:7::/64 encap ip6 id 7 dst 2001:db8:2::2 via 2001:db8:2::2 dev out"),
    ] {
        ip(&routed.ground.b, &format!("addr add {address} dev lo"));
        let words: Vec<&str> = [family, "route", "add"].into_iter().chain(route.split(' ')).collect();
        if let Err(error) = routed.router.run("ip", &words) {
            return skip(test_name!(), &format!("this kernel has no such routes: {error}"));
        }
        let to = address.split('/').next().unwrap();
        let (before, begin) = (routed.stat().dropped("route_encapsulated"), Instant::now());
        // It is refused as a destination without a route until the router has read the table.
        while routed.stat().dropped("route_encapsulated") == before {
            let ping = routed.ground.a.command("ping").args(["-n", "-c", "1", "-W", "1", to]).output().unwrap();
            assert!(!ping.status.success(), "{to} is reached as if its route had no encapsulation");
            assert!(begin.elapsed() < PATIENCE, "{to}: {:?}", routed.stat().drops());
        }
    }
}

/// Two hosts in one network, and a gateway in a third one between them.
struct Joined {
    /// The gateway's process, dropped before its host.
    _process: Process,
    ground: Ground,
    between: Host,
}

impl Joined {
    /// Makes hosts joined like cards without offloads, and starts the gateway with `options`. `None` where the test
    /// cannot run here, which is then noted.
    #[track_caller]
    fn new(name: &str, tools: &[&str], options: &[&str]) -> Option<Joined> {
        let ground = Ground::apart(name, tools)?;
        let Ok(between) = Host::new("between") else {
            skip(name, "no third host could be made");
            return None;
        };
        plug(&between, (&ground.a, Peer::A), "in");
        plug(&between, (&ground.b, Peer::B), "out");
        let process = gateway(&ground, &between, options);
        Some(Joined { _process: process, ground, between })
    }

    /// Returns the link addresses for frames from host A to host B.
    fn stations(&self) -> Stations {
        Stations::between((&self.ground.a, "eth0"), (&self.ground.b, "eth0"))
    }

    fn stat(&self) -> Stat {
        Stat::read(&self.between, &self.ground.program, GATEWAY)
    }
}

/// Joins a host to the gateway's `port` like cards without offloads.
fn plug(between: &Host, (host, peer): (&Host, Peer), port: &str) {
    ip(host, &format!("link add eth0 type veth peer name {port} netns {}", between.net_path()));
    ip(between, &format!("link set {port} addrgenmode none"));
    for (host, device) in [(host, "eth0"), (between, port)] {
        host.run("ethtool", &["-K", device, "tso", "off", "gso", "off", "tx", "off", "gro", "off"]).unwrap();
        ip(host, &format!("link set {device} up"));
    }
    ip(host, &format!("addr add {} dev eth0", peer.prefix(0, V4)));
}

/// Starts the gateway between its interfaces `in` and `out`.
fn gateway(ground: &Ground, between: &Host, options: &[&str]) -> Process {
    let mut command = between.command(&ground.program);
    command.args(["gateway", "in", "out", "--name", GATEWAY, "-j"]).args(options);
    let mut process = Process::spawn(command, b"").expect("segue starts");
    process.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    process
}

/// Returns the number of frames that a host has received over its link.
fn frames_received(host: &Host) -> u64 {
    let text =
        traffic::inside(host, || fs::read_to_string("/proc/thread-self/net/dev")).expect("the kernel's counters");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:")).expect("a link");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Tests that a datagram that waits for the next one of its flow does not stop the receive ring. Frames are sent a few
/// at a time, each time after the ones before have come, so that no queue on their way overflows; but where they do not
/// come, the next ones follow, as those of other hosts would.
#[test]
fn frames_pass_while_a_datagram_is_held() {
    /// Number of frames that no queue of a veth pair drops.
    const AT_ONCE: u64 = 64;
    /// Number of frames of a round: more than the ring holds.
    const ROUND: u64 = 8192;
    /// Largest number of frames that are not received yet, which the ring holds.
    const MOST_MISSING: u64 = 4096;
    /// Time after which more frames follow: a small part of that for which the datagram is held.
    const PAUSE: Duration = Duration::from_millis(50);
    let Some(joined) = Joined::new(test_name!(), &[], &["--hold-us", "1000000"]) else { return };
    let (a, b, stations) = (&joined.ground.a, &joined.ground.b, joined.stations());
    let mac = stations.to.map(|byte| format!("{byte:02x}")).join(":");
    let to = Peer::B.address(0, V4);
    ip(a, &format!("neigh replace {to} lladdr {mac} dev eth0"));
    let held = traffic::socket(Place { host: a, address: Peer::A.address(0, V4) });
    let socket = traffic::inside(a, || sys::packet_socket("eth0")).expect("a packet socket");
    // An EtherType for experiments (IEEE 802): these frames are of no flow.
    let frame = [&stations.to[..], &stations.from, &[0x88, 0xb5], &[0; 46]].concat();
    let first = frames_received(b);
    let mut sent = 0;
    for round in 1..=3 {
        held.send_to(&[7; 100], (to, 9)).expect("a datagram is sent");
        for _ in 0..ROUND / AT_ONCE {
            for _ in 0..AT_ONCE {
                sys::send_frame(&socket, &frame).expect("a frame is sent");
            }
            sent += AT_ONCE;
            let begin = Instant::now();
            loop {
                let missing = (first + sent).saturating_sub(frames_received(b));
                if missing == 0 || missing < MOST_MISSING && begin.elapsed() >= PAUSE {
                    break;
                }
                let drops = || joined.stat().drops();
                assert!(begin.elapsed() < PATIENCE, "round {round}: {missing} of {sent} are missing: {:?}", drops());
                thread::sleep(Duration::from_micros(200));
            }
        }
    }
    // The datagrams are not counted: they may have come or not.
    let came = || frames_received(b) - first;
    let begin = Instant::now();
    while came() < sent {
        assert!(begin.elapsed() < PATIENCE, "only {} of {sent} came: {:?}", came(), joined.stat().drops());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Builds TCP segments of one flow whose checksum is 0x0000, which is right.
fn segments_with_zero_checksum(stations: Stations, count: u32) -> Vec<Vec<u8>> {
    let ends = [Peer::A, Peer::B].map(|peer| match peer.address(0, V4) {
        std::net::IpAddr::V4(address) => address,
        std::net::IpAddr::V6(address) => panic!("{address}"),
    });
    let mut random = Random::new(7);
    let segment = |number: u32| {
        let data = random.bytes(1000);
        let mut bytes = [&7000_u16.to_be_bytes()[..], &7001_u16.to_be_bytes()].concat();
        bytes.extend((1 + number * 1000).to_be_bytes());
        bytes.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        bytes.extend(&data);
        // The first word of the data makes up for all others.
        bytes[20..22].fill(0);
        let [source, destination] = ends.map(|end| end.octets());
        let pseudo = pseudo(&source, &destination, 6, bytes.len());
        let word = !sum(&[&pseudo.to_be_bytes()[..], &bytes].concat());
        bytes[20..22].copy_from_slice(&word.to_be_bytes());
        stations.ipv4(ends, 6, 64, (number as u16, 0x4000), &bytes)
    };
    (0..count).map(segment).collect()
}

/// Tests that frames whose TCP checksum is 0x0000 leave byte for byte as they came where the gateway has joined and
/// segmented them. A kernel that completes such a checksum writes 0xffff.
#[test]
fn a_checksum_of_zero_leaves_a_gateway_as_it_came() {
    let options = ["--profile", "strict", "--hold-us", "100000", "--set", "net.gso.dev.out.tso=0"];
    let Some(joined) = Joined::new(test_name!(), &["tcpdump"], &options) else { return };
    let directory = Directory::new();
    let file = directory.file("out.pcap");
    let mut command = joined.ground.b.command("tcpdump");
    command.args(["-i", "eth0", "-Q", "in", "-s", "2048", "--immediate-mode", "-n", "-U", "-Z", "root", "-w"]);
    command.arg(&file).args(["tcp", "dst", "port", "7001"]);
    let mut tcpdump = Process::spawn(command, b"").expect("tcpdump starts");
    until("tcpdump does not capture", || {
        assert!(tcpdump.ended().is_none(), "{}", tcpdump.last_words());
        tcpdump.stderr().contains("listening on").then_some(())
    });
    let sent = segments_with_zero_checksum(joined.stations(), 20);
    let socket = traffic::inside(&joined.ground.a, || sys::packet_socket("eth0")).expect("a packet socket");
    for frame in &sent {
        assert_eq!(frame[50..52], [0; 2], "the checksum");
        sys::send_frame(&socket, frame).expect("a frame is sent");
    }
    let came = until("not all segments came", || {
        let bytes = fs::read(&file).ok()?;
        let frames: Vec<Vec<u8>> = capture::frames(&bytes).ok()?.into_iter().map(<[u8]>::to_vec).collect();
        (frames.len() >= sent.len()).then_some(frames)
    });
    let field = |frame: &Vec<u8>| frame[50..52].to_vec();
    assert_eq!(came.iter().map(field).collect::<Vec<_>>(), sent.iter().map(field).collect::<Vec<_>>(), "checksums");
    assert!(came == sent, "other bytes than the checksums differ");
    assert!(joined.stat().count("out", "gso", "trains_cut") > 0, "they were joined: {}", joined.stat().json());
}

/// Tests that messages of an instance with more than one descriptor leave none open in the service, which is root's.
#[test]
fn messages_with_several_descriptors_leave_none_open_in_the_service() {
    /// Number of messages, each with four descriptors.
    const MESSAGES: usize = 60;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    // Two tunnels share a port: a change of one of them has the other one handed over.
    let write = |more: &str| {
        let tunnel = |net: u8, more: &str| {
            let [local, remote] = [Peer::A, Peer::B].map(|peer| peer.address(0, V4));
            format!(
                "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\n\
                 key = {net}\naddr = \"{}\"\n{more}\n",
                Peer::A.prefix(net, V4)
            )
        };
        fs::write(&file, tunnel(1, "") + &tunnel(2, more)).expect("a file");
    };
    write("");
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&file);
    let mut service = Process::spawn(command, b"").expect("segue starts");
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let own = service.id();
    let open = || fs::read_dir(format!("/proc/{own}/fd")).expect("the service's descriptors").count();
    let pid = Stat::read(&ground.a, &ground.program, "sg1").json()["pid"].as_u64().expect("a process");

    // Its socket to the service gets what a process that has been taken over could send.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/several_descriptors.py");
    let mut command = ground.a.command("python3");
    let sent = command.arg(script).args([pid.to_string(), MESSAGES.to_string()]).output().expect("python3 starts");
    let words = String::from_utf8_lossy(&sent.stderr);
    match sent.status.code() {
        Some(0) => {}
        Some(2) => return skip(test_name!(), words.trim()),
        _ => panic!("{words}"),
    }
    let before = open();
    write("tos = 8");
    sys::signal(own, libc::SIGHUP).expect("a signal");
    // Refused or not: the service has read the messages.
    service.wait_for_line("\"event\":\"reload", 2 * PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    // Some of its own may be open for a moment.
    let begin = Instant::now();
    while open() > before {
        assert!(begin.elapsed() < PATIENCE, "{before} descriptors were open, and now {}", open());
        thread::sleep(Duration::from_millis(50));
    }
}

/// The guest's end of the TAP device `in`: it writes each line of its input, in hexadecimal, as a packet behind a
/// virtio-net header of ten bytes.
const GUEST: &str = r#"
import fcntl, os, struct, sys
device = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(device, 0x400454ca, struct.pack("16sH22x", b"in", 0x5002))
print("open", flush=True)
for line in sys.stdin:
    os.write(device, bytes.fromhex(line))
"#;

/// A process that is the guest behind a TAP device.
struct Guest(Child);

impl Guest {
    fn new(between: &Host) -> Guest {
        let mut command = between.command("python3");
        let mut child = command.args(["-c", GUEST]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Guest(child)
    }

    /// Sends a datagram of `len` bytes behind a virtio-net header.
    fn send(&mut self, header: &[u8; 10], len: usize) {
        let datagram = [&[0, 5, 0, 6][..], &((8 + len) as u16).to_be_bytes(), &vec![0; 2 + len]].concat();
        let packet = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 7, 8, 0], &ipv4(17, [CLIENT, SERVER], &datagram)].concat();
        let line: String = header.iter().chain(&packet).map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.0.stdin.as_ref().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tests that a train of a guest that the kernel takes and no receive ring can describe, UDP as fragments, ends neither
/// the gateway nor the reception from that guest.
#[test]
fn a_train_that_no_receive_ring_can_describe_stops_a_gateway_for_a_moment_only() {
    // One with a partial checksum, to be cut into fragments of 1400 bytes.
    let mut train = [1, 3, 42, 0, 0, 0, 34, 0, 6, 0];
    train[4..6].copy_from_slice(&1400_u16.to_ne_bytes());
    for options in [&[][..], &["--workers", "2"]] {
        let Some(ground) = Ground::apart(test_name!(), &["python3"]) else { return };
        let Ok(between) = Host::new("between") else { return skip(test_name!(), "no third host could be made") };
        let mut guest = Guest::new(&between);
        ip(&between, "link set in addrgenmode none");
        ip(&between, "link set in up");
        plug(&between, (&ground.b, Peer::B), "out");
        let mut process = gateway(&ground, &between, options);
        for is_stopped in [false, true] {
            if is_stopped {
                guest.send(&train, 3000);
            }
            let (before, begin) = (frames_received(&ground.b), Instant::now());
            while frames_received(&ground.b) < before + 20 {
                assert!(begin.elapsed() < PATIENCE && process.ended().is_none(), "{}", process.last_words());
                guest.send(&[0; 10], 100);
                thread::sleep(Duration::from_millis(10));
            }
            let stat = Stat::read(&between, &ground.program, GATEWAY);
            assert_eq!(stat.dropped("ring_stopped") > 0, is_stopped, "{:?}", stat.drops());
        }
    }
}

/// The tunnel whose packets are traced.
const TRACED: Shape = Shape::new(Inside::Gre, Carrier::Gue, V4);

#[test]
fn a_trace_is_for_its_owner() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let path = directory.file("sg1.pcap");
    let trace = ["--trace".into(), path.to_str().expect("UTF-8").to_owned()];
    let _tunnel = Tunnel::start(&ground.a, &ground.program, &[&TRACED.words(Peer::A, 1)[..], &trace].concat());
    let mode = fs::metadata(&path).expect("a trace").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn a_service_keeps_the_trace_of_an_instance_that_it_starts_again() {
    let directory = Directory::new();
    let path = directory.file("sg1.pcap");
    let keys = format!("trace = \"{}\"", path.display());
    let Some((service, ())) = Service::with_keys(test_name!(), (1, &keys), "", &[], |_| ()) else { return };
    // More than the header of a capture file, also where it is written in parts of some kilobytes.
    let traced = until("nothing is traced", || {
        assert!(service.passes(1, PATIENCE), "no packet passes");
        fs::read(&path).ok().filter(|bytes| bytes.len() > 100)
    });
    service.fault(1, Fault::Worker(libc::SIGKILL));
    let files = fs::read_dir(directory.path()).expect("a folder").flatten().map(|file| file.path());
    let kept: Vec<_> = files.filter(|file| fs::read(file).is_ok_and(|bytes| bytes.starts_with(&traced))).collect();
    assert_eq!(kept, [directory.file("sg1.1.pcap")]);
    for file in [&path, &kept[0]] {
        let mode = fs::metadata(file).expect("a trace").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}: {mode:o}", file.display());
    }
}

#[test]
fn a_full_disk_ends_a_trace_and_not_its_tunnel() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["mount", "ping", "unshare"]) else { return };
    let directory = Directory::new();
    // The disk is in a mount namespace of the tunnel's, and ends with it.
    let mut command = ground.a.command("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=64k none \"$0\" && exec \"$@\""]);
    command.arg(directory.path()).arg(&ground.program).arg("tunnel");
    // Without words that came after the first release.
    command.args(TRACED.words(Peer::A, 1).into_iter().filter(|word| !["fastpath", "off"].contains(&word.as_str())));
    command.arg("--trace").arg(directory.file("sg1.pcap"));
    let mut near = Process::spawn(command, b"").expect("segue starts");
    until("no tunnel", || {
        assert!(near.ended().is_none(), "{}", near.last_words());
        ground.a.has_device("sg1").then_some(())
    });
    let _far = Tunnel::start(&ground.b, &ground.program, &TRACED.words(Peer::B, 1));
    let to = Peer::B.address(1, V4).to_string();
    until("no answer", || ground.a.run("ping", &["-c1", "-W1", &to]).ok());
    // Three times what the disk has room for.
    for _ in 0..3 {
        ground.a.run("ping", &["-c30", "-i0.01", "-W10", "-s1200", &to]).expect("answers");
    }
    assert!(near.ended().is_none(), "{}", near.last_words());
    let stat = Stat::read(&ground.a, &ground.program, "sg1");
    assert!(stat.json().to_string().contains("\"trace_failed\":1"), "the disk was not full: {}", stat.json());
}

#[test]
fn a_router_that_cannot_read_of_changed_routes_says_so() {
    let Some(routed) = Routed::new(test_name!(), &["ping", "strace"], &[]) else { return };
    let server = address(V6, 2, 2).to_string();
    let passes = || until("no packet passes", || routed.ground.a.run("ping", &["-c1", "-W1", &server]).ok());
    passes();
    let pid = routed.stat().json()["pid"].as_u64().expect("a process");
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let name = |task: &Path| fs::read_to_string(task.join("comm")).unwrap_or_default();
    let mut follower = threads.filter(|task| name(&task.path()).trim() == "routes");
    let follower = follower.next().expect("a thread that follows the routes").file_name();
    let mut strace = std::process::Command::new("strace");
    strace.args(["-e", "trace=recvfrom,recvmsg", "-e", "inject=recvfrom,recvmsg:error=EIO", "-p"]).arg(follower);
    let mut strace = Process::spawn(strace, b"").expect("strace starts");
    until("strace does not attach", || {
        assert!(strace.ended().is_none(), "{}", strace.last_words());
        strace.stderr().contains("attached").then_some(())
    });
    ip(&routed.router, "route add 198.51.100.0/24 via 198.18.2.2");
    let is_stale = || routed.stat().json()["health"].to_string().contains("stale_routes").then_some(());
    until("HEALTH does not say that the routes are stale", is_stale);
    passes();
    drop(strace);
    until("the routes stay stale", || is_stale().is_none().then_some(()));
}

/// Tests that ICMP errors about datagrams that were never sent take no room in the receive buffer of a tunnel that
/// sends by the socket that receives.
#[test]
fn forged_icmp_errors_take_no_room_in_the_receive_buffer_of_a_tunnel() {
    /// Number of errors, with more bytes than the buffer takes.
    const ERRORS: u32 = 20_000;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = Shape { extra: &["encap-sport", "6081"], ..TRACED };
    let pair = Pair::start(&ground, shape, 1);
    let [near, far, third] = [1, 2, 99].map(|host| Ipv4Addr::new(198, 18, 0, host));
    let quoted = [&Shape::port(1).to_be_bytes()[..], &[0, 1], &1208_u16.to_be_bytes(), &[0; 1202]].concat();
    let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &ipv4(17, [near, third], &quoted)].concat();
    let field = !sum(&message);
    message[2..4].copy_from_slice(&field.to_be_bytes());
    let packet = ipv4(1, [far, near], &message);
    let send = || (0..ERRORS).try_for_each(|_| sys::send_packet(&packet, near.into()));
    traffic::inside(&ground.b, send).expect("packets are sent");
    let read = || fs::read_to_string("/proc/thread-self/net/udp");
    let text = traffic::inside(&ground.a, read).expect("the kernel's sockets");
    let own = format!(":{:04X}", Shape::port(1));
    let mut sockets = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let socket = sockets.find(|words| words.get(1).is_some_and(|address| address.ends_with(&own))).expect("a socket");
    let (_, held) = socket[4].split_once(':').expect("two queues");
    let held = u64::from_str_radix(held, 16).expect("a number of bytes");
    assert!(held < 65_536, "{held} bytes of the buffer are taken");
    traffic::datagrams(pair.place(Peer::B, V4), pair.place(Peer::A, V4), &[100, 1200], 1);
    assert_eq!(pair.stat()[0].dropped("socket_overflow"), 0);
}
