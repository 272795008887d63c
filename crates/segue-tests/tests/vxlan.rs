//! Tests of segue against this kernel's own VXLAN: with outer checksums, without, and with remote checksums in either
//! direction and in both, over IPv4 and IPv6. The kernel counts no wrong checksum.
//!
//! With remote checksums the link is one that segments and aggregates like a network card: on a bare veth pair bulk TCP
//! of the kernel's own VXLAN stalls under `remcsumtx`, between two kernels too, because the state of its packets
//! crosses the link (the control at the end shows it, and prints how much passes).

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_testkit::build::{Ethernet, Ip, V4 as Ipv4};
use segue_testkit::flow::Sender;
use segue_tests::capture::{self, Directory};
use segue_tests::{Ground, Shape, Stat, Tunnel, sys, test_name, traffic};

const NET: u8 = 1;
const DEVICE: &str = "vx1";

/// Keywords of the kernel's device at B, and of segue's tunnel at A, after `id 42` and the port.
struct Keywords {
    kernel: &'static str,
    segue: &'static str,
}

const CSUM: Keywords = Keywords { kernel: "udpcsum", segue: "" };
const ZERO: Keywords =
    Keywords { kernel: "noudpcsum udp6zerocsumtx udp6zerocsumrx", segue: "noudpcsum udp6zerocsumtx udp6zerocsumrx" };
const ZERO_BY_DAEMON: Keywords =
    Keywords { kernel: ZERO.kernel, segue: "noudpcsum udp6zerocsumtx udp6zerocsumrx fastpath off" };
const REMCSUM: Keywords = Keywords { kernel: "udpcsum remcsumtx remcsumrx", segue: "remcsumtx remcsumrx" };
const TO_KERNEL: Keywords = Keywords { kernel: "udpcsum remcsumrx", segue: "remcsumtx" };
const FROM_KERNEL: Keywords = Keywords { kernel: "udpcsum remcsumtx", segue: "remcsumrx" };

fn add_kernel(host: &Host, end: Peer, outer: Family, words: &str) {
    let (local, remote) = (end.address(0, outer).to_string(), end.other().address(0, outer).to_string());
    let line =
        format!("link add {DEVICE} type vxlan id 42 dstport 4789 dev eth0 local {local} remote {remote} {words}");
    host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
    for family in Family::ALL {
        let prefix = end.prefix(NET, *family);
        let mut line = vec!["addr", "add", &prefix, "dev", DEVICE];
        line.extend((*family == V6).then_some("nodad"));
        host.run("ip", &line).unwrap();
    }
    host.run("ip", &["link", "set", DEVICE, "up"]).unwrap();
}

fn add_segue(ground: &Ground, outer: Family, words: &str) -> Tunnel {
    let (local, remote) = (Peer::A.address(0, outer), Peer::B.address(0, outer));
    let device = Shape::device(NET);
    let addresses: String =
        Family::ALL.iter().map(|family| format!(" addr {}", Peer::A.prefix(NET, *family))).collect();
    let line = format!("dev {device} mode vxlan id 42 dstport 4789 local {local} remote {remote} {words}{addresses}");
    Tunnel::start(&ground.a, &ground.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>())
}

/// Returns every nonzero counter of wrong checksums and malformed packets.
fn errors(host: &Host) -> Vec<String> {
    let mut wrong = Vec::new();
    let snmp = host.run("cat", &["/proc/net/snmp"]).unwrap();
    let lines: Vec<&str> = snmp.lines().collect();
    for pair in lines.chunks(2) {
        let names = pair[0].split_whitespace();
        for (name, value) in names.zip(pair[1].split_whitespace()).filter(|(name, _)| name.contains("CsumErr")) {
            if value != "0" {
                wrong.push(format!("{} {name} {value}", pair[0].split(':').next().unwrap_or("")));
            }
        }
    }
    let snmp6 = host.run("cat", &["/proc/net/snmp6"]).unwrap();
    wrong.extend(snmp6.lines().filter(|line| line.contains("CsumErr") && !line.ends_with("\t0")).map(String::from));
    let devices = host.run("cat", &["/proc/net/dev"]).unwrap();
    let received: Vec<&str> =
        devices.lines().filter_map(|line| line.trim().strip_prefix("vx1:")).flat_map(str::split_whitespace).collect();
    assert!(received.len() > 8, "{devices}");
    if received[2] != "0" {
        wrong.push(format!("{DEVICE} errors {}", received[2]));
    }
    wrong
}

fn exchanges_everything(name: &str, form: LinkForm, outer: Family, words: &Keywords) {
    let Some(ground) = Ground::new(name, form, &["ping"]) else { return };
    // First, so that it counts no datagram of the kernel that there is no socket for yet.
    let _tunnel = add_segue(&ground, outer, words.segue);
    add_kernel(&ground.b, Peer::B, outer, words.kernel);
    let ends = Family::ALL.iter().map(|family| [Peer::A, Peer::B].map(|end| end.address(NET, *family)));
    for [near, far] in ends {
        segue_lab::reach((&ground.a, near), (&ground.b, far), Duration::from_secs(60)).unwrap();
    }
    // Over IPv6 a datagram without checksum counts as wrong where there is no socket yet.
    let before = errors(&ground.b);
    for family in Family::ALL {
        let (near, far) = (Peer::A.address(NET, *family), Peer::B.address(NET, *family));
        let [a, b] = [(&ground.a, near), (&ground.b, far)].map(|(host, address)| traffic::Place { host, address });
        traffic::everything(a, b, traffic::long() / 4, 77 + u64::from(family.number()));
    }
    assert_eq!(errors(&ground.b), before, "at the kernel's end");
    let mut drops = Stat::read(&ground.a, &ground.program, &Shape::device(NET)).drops();
    // From before the other end was there.
    drops.remove("unreachable");
    assert!(drops.is_empty(), "at segue's end: {drops:?}");
}

macro_rules! against_the_kernel {
    ($($name:ident: $words:ident on $form:ident over $outer:ident;)+) => {
        $(#[test]
        fn $name() {
            exchanges_everything(test_name!(), LinkForm::$form, $outer, &$words);
        })+
    };
}

against_the_kernel! {
    udpcsum_over_ipv4: CSUM on Nic over V4;
    udpcsum_over_ipv6: CSUM on Nic over V6;
    udpcsum_over_ipv4_on_a_link_that_finishes_nothing: CSUM on Veth over V4;
    udpcsum_over_ipv6_on_a_link_that_finishes_nothing: CSUM on Veth over V6;
    zero_checksum_over_ipv4: ZERO on Nic over V4;
    zero_checksum_over_ipv6: ZERO on Nic over V6;
    zero_checksum_over_ipv4_on_a_link_that_finishes_nothing: ZERO on Veth over V4;
    zero_checksum_by_the_daemon_over_ipv4: ZERO_BY_DAEMON on Nic over V4;
    zero_checksum_by_the_daemon_over_ipv6: ZERO_BY_DAEMON on Nic over V6;
    remcsum_both_ways_over_ipv4: REMCSUM on Nic over V4;
    remcsum_both_ways_over_ipv6: REMCSUM on Nic over V6;
    remcsum_to_the_kernel_over_ipv4: TO_KERNEL on Nic over V4;
    remcsum_to_the_kernel_over_ipv6: TO_KERNEL on Nic over V6;
    remcsum_from_the_kernel_over_ipv4: FROM_KERNEL on Nic over V4;
    remcsum_from_the_kernel_over_ipv6: FROM_KERNEL on Nic over V6;
}

/// Returns how many of `wanted` bytes TCP moves between two kernels within a few seconds.
fn passed_between_kernels(name: &str, form: LinkForm, wanted: usize) -> Option<usize> {
    let ground = Ground::new(name, form, &[])?;
    for (host, end) in [(&ground.a, Peer::A), (&ground.b, Peer::B)] {
        add_kernel(host, end, V4, REMCSUM.kernel);
    }
    let (near, far) = (Peer::A.address(NET, V4), Peer::B.address(NET, V4));
    segue_lab::reach((&ground.a, near), (&ground.b, far), Duration::from_secs(5)).unwrap();
    let listener = traffic::inside(&ground.b, || TcpListener::bind((far, 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            got += len;
        }
        got
    });
    let mut stream = traffic::inside(&ground.a, || TcpStream::connect(to)).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // Stalled or not is what is asked.
    let _ = stream.write_all(&vec![7; wanted]);
    drop(stream);
    Some(reader.join().unwrap())
}

#[test]
fn control_kernel_to_kernel_bulk_tcp_under_remcsum_needs_a_link_that_finishes_packets() {
    const TRANSFER: usize = 8 << 20;
    let Some(nic) = passed_between_kernels(test_name!(), LinkForm::Nic, TRANSFER) else { return };
    assert_eq!(nic, TRANSFER, "on a link that segments, two kernels get along");
    let Some(veth) = passed_between_kernels(test_name!(), LinkForm::Veth, TRANSFER) else { return };
    println!("kernel to kernel under remcsum on a bare veth pair: {veth} of {TRANSFER} bytes of TCP passed");
}

/// Starts tcpdump at a device for the TCP of a test, which writes to a file, and waits until it captures.
fn capture_tcp(host: &Host, device: &str, directory: &Directory) -> Process {
    let mut command = host.command("tcpdump");
    command.args(["-i", device, "-Q", "in", "-s", "65535", "--immediate-mode", "-n", "-U", "-Z", "root", "-w"]);
    command.arg(directory.file("out.pcap")).args(["tcp", "dst", "port", "80"]);
    let mut tcpdump = Process::spawn(command, b"").unwrap();
    let begin = Instant::now();
    while !tcpdump.stderr().contains("listening on") {
        assert!(tcpdump.ended().is_none() && begin.elapsed() < Duration::from_secs(60), "{}", tcpdump.last_words());
        thread::sleep(Duration::from_millis(5));
    }
    tcpdump
}

/// Tests that what the kernel has verified of a datagram, here that it needs no checksum, is not taken for the checksum
/// of the segment that it has taken out of it: a wrong one leaves a gateway as it came, between two that it would fit.
#[test]
fn a_wrong_checksum_inside_the_kernels_vxlan_leaves_a_gateway_as_it_came() {
    const PAYLOAD: usize = 1000;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["tcpdump"]) else { return };
    let (a, b) = (&ground.a, &ground.b);
    let ip = |host: &Host, line: &str| drop(host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap());
    let [local, remote] = [Peer::A, Peer::B].map(|end| end.address(0, V4));
    ip(a, &format!("link add {DEVICE} type vxlan id 42 dstport 4789 local {local} remote {remote} dev eth0 noudpcsum"));
    ip(a, &format!("link add out type veth peer name far netns {}", b.net_path()));
    // The kernel itself is not to join what it takes out of the datagrams.
    a.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    [(a, DEVICE), (a, "out"), (b, "far")].iter().for_each(|(host, device)| ip(host, &format!("link set {device} up")));
    let mut command = a.command(&ground.program);
    command.args(["gateway", DEVICE, "out", "--name", "gw", "-j", "--hold-us", "1000000"]);
    let mut gateway = Process::spawn(command, b"").unwrap();
    let up = gateway.wait_for_line("\"event\":\"up\"", Duration::from_secs(60));
    up.unwrap_or_else(|error| panic!("{error}\n{}", gateway.last_words()));
    let directory = Directory::new();
    let _tcpdump = capture_tcp(b, "far", &directory);
    let came = |count: usize| {
        let begin = Instant::now();
        loop {
            let file = fs::read(directory.file("out.pcap")).unwrap_or_default();
            let frames: Vec<Vec<u8>> =
                capture::frames(&file).unwrap_or_default().into_iter().map(<[u8]>::to_vec).collect();
            if frames.iter().map(|frame| frame.len() - 54).sum::<usize>() >= count * PAYLOAD {
                return frames;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{} frames came", frames.len());
            thread::sleep(Duration::from_millis(5));
        }
    };
    let socket = traffic::inside(b, || UdpSocket::bind((remote, 0))).unwrap();
    sys::send_without_checksum(&socket).unwrap();
    let send = |frames: &[Vec<u8>]| {
        for frame in frames {
            socket.send_to(&[&[8, 0, 0, 0, 0, 0, 42, 0], &frame[..]].concat(), (local, 4789)).unwrap();
        }
    };
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let mut sender = Sender::tcp(Ip::V4(Ipv4::new(1, 1, 2)), 9, 1000, Vec::new());
    let mut segments = || -> Vec<Vec<u8>> { (0..3).map(|_| link.wrap(&sender.send(PAYLOAD, 0).bytes())).collect() };
    // Right ones are joined.
    send(&segments());
    assert_eq!(came(3).iter().map(Vec::len).collect::<Vec<_>>(), [54 + 3 * PAYLOAD]);
    let mut sent = segments();
    *sent[1].last_mut().unwrap() ^= 1;
    send(&sent);
    assert!(came(6)[1..] == sent, "{:02x?}", came(6)[1..].iter().map(|frame| &frame[..54]).collect::<Vec<_>>());
}
