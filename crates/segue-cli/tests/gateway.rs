//! A gateway between hosts: what crosses it arrives, trains arrive whole, and a kernel that cuts them again gives back what
//! was sent, byte for byte.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{SEGUE, in_namespace};
use segue::packet::{Csum, Frag, Packet, Start, Tunnels, Unit};
use segue_lab::{DEVICE, End, Family, Host, LinkForm, Process};
use segue_port::packet_socket::{PacketConfig, PacketPort};
use segue_port::{PagePool, Polled, Port, RxBatch, Sent, TxBatch};
use segue_testkit::Rng;
use segue_testkit::build::Ethernet;
use segue_testkit::flow;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);
/// The TAP's name.
const TAP: &str = "lro0";
/// The hosts' port for connections.
const PORT: u16 = 5001;

/// A sender, and a gateway with a TAP in a third host.
struct Bump {
    sender: Host,
    gateway: Host,
    receiver: Host,
    segue: Process,
}

impl Bump {
    /// `None`, with the reason, where hosts cannot be made.
    fn new(form: LinkForm, options: &[&str]) -> Option<Bump> {
        Bump::with_mtu(form, options, "1500")
    }

    fn with_mtu(form: LinkForm, options: &[&str], mtu: &str) -> Option<Bump> {
        if let Some(reason) = segue_lab::unavailable() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let [sender, gateway, receiver] = ["sender", "gateway", "receiver"].map(|name| Host::new(name).unwrap());
        segue_lab::connect(&sender, &gateway, form).unwrap();
        gateway.run("ip", &["link", "set", "dev", DEVICE, "addrgenmode", "none"]).unwrap();
        gateway.run("ip", &["addr", "flush", "dev", DEVICE]).unwrap();
        for host in [&sender, &gateway] {
            host.run("ip", &["link", "set", "dev", DEVICE, "mtu", mtu]).unwrap();
        }
        let mut command = gateway.command(SEGUE);
        command.args(["gateway", DEVICE, &format!("tap:{TAP}@{}", receiver.net_path()), "-j"]).args(options);
        let mut segue = Process::spawn(command, b"").unwrap();
        segue.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        Some(Bump { sender, gateway, receiver, segue })
    }

    /// The counters of one port.
    fn port(&self, name: &str) -> Value {
        self.ports()[name].clone()
    }

    /// The counters of all ports at one moment.
    fn ports(&self) -> Value {
        let text = self.gateway.run(SEGUE, &["stat", "-j"]).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["instances"][0]["kind"], "gateway", "{text}");
        let ports = document["instances"][0]["ports"].clone();
        assert!(ports[DEVICE].is_object() && ports[TAP].is_object(), "{text}");
        ports
    }

    /// Waits until every segment that came in by one port left by the other one or was swallowed: hosts say a word to
    /// their neighbours at any time, and what is held may be joined by more.
    fn assert_all_cross(&self) {
        let since = Instant::now();
        loop {
            let ports = self.ports();
            let count = |value: &Value| value.as_u64().unwrap();
            let crossed = [(DEVICE, TAP), (TAP, DEVICE)].into_iter().all(|(here, there)| {
                let left = count(&ports[there]["transmit"]["segments"]) + count(&ports[here]["swallowed"]);
                count(&ports[here]["receive"]["segments"]) == left
            });
            if crossed {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{ports}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn assert_no_drops(&self) {
        for name in [DEVICE, TAP] {
            let port = self.port(name);
            let dropped: u64 = port["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
            assert_eq!(dropped, 0, "{port}");
        }
    }

    /// Ends it, and says how that was.
    fn stop(mut self) -> Option<i32> {
        self.segue.stop(PATIENCE)?.code()
    }
}

fn address(host: &Host, device: &str, end: End) {
    for family in Family::ALL {
        let prefix = end.prefix(0, *family);
        let words: &[&str] = if *family == Family::V6 { &["nodad"] } else { &[] };
        host.run("ip", &[&["addr", "add", &prefix, "dev", device][..], words].concat()).unwrap();
    }
}

/// Bytes that differ from place to place.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Sends `data` over a connection from one host to the other and checks what arrives.
fn stream(from: &Host, to: (&Host, End), family: Family, data: &[u8]) {
    stream_in(0, from, to, family, data);
}

/// The same in one of the hosts' networks.
fn stream_in(net: u8, from: &Host, to: (&Host, End), family: Family, data: &[u8]) {
    let address = SocketAddr::new(to.1.address(net, family), PORT);
    let listener = to.0.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut client = from.enter(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    let got = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).map(|_| got)
        });
        client.write_all(data).unwrap();
        drop(client);
        reader.join().unwrap().unwrap()
    });
    assert!(got == data, "{family}: {} of {} bytes, or other ones", got.len(), data.len());
}

fn datagrams(from: (&Host, End), to: (&Host, End), family: Family) {
    let open =
        |(host, end): (&Host, End)| host.enter(|| UdpSocket::bind((end.address(0, family), 0))).unwrap().unwrap();
    let (near, far) = (open(from), open(to));
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let data: Vec<Vec<u8>> =
        (0..120).map(|index| bytes([1400, 1400, 1400, 900, 1, 0][index % 6], index as u64)).collect();
    let mut got = vec![0; 2000];
    for burst in data.chunks(30) {
        burst.iter().for_each(|data| {
            near.send_to(data, far.local_addr().unwrap()).unwrap();
        });
        for data in burst {
            let (len, peer) = far.recv_from(&mut got).unwrap();
            assert!(got[..len] == data[..] && peer == near.local_addr().unwrap(), "{family}: {len} bytes");
        }
    }
}

#[test]
fn what_hosts_say_to_each_other_crosses_both_ways() {
    for form in [LinkForm::Nic, LinkForm::Veth] {
        let Some(bump) = Bump::new(form, &[]) else { return };
        address(&bump.receiver, TAP, End::B);
        let (near, far) = ((&bump.sender, End::A), (&bump.receiver, End::B));
        for family in Family::ALL {
            let to = End::B.address(0, *family).to_string();
            bump.sender.run("ping", &["-c", "3", "-i", "0.2", "-W", "5", &to]).unwrap();
            stream(near.0, far, *family, &bytes(3_000_000, 1));
            stream(far.0, near, *family, &bytes(3_000_000, 2));
            datagrams(near, far, *family);
            datagrams(far, near, *family);
        }
        bump.assert_no_drops();
        let (outside, inside) = (bump.port(DEVICE), bump.port(TAP));
        for (port, way) in [(&inside, "transmit"), (&inside, "receive"), (&outside, "transmit")] {
            assert!(port[way]["trains"].as_u64() > Some(50), "{form}: few trains: {port}");
        }
        bump.assert_all_cross();
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn a_senders_long_datagrams_are_fragmented_in_front_of_the_other_port_and_the_kernel_puts_them_together() {
    for link in [&["--fragment"][..], &[]] {
        let Some(bump) = Bump::new(LinkForm::Nic, &[&["--tap-mtu", "9000"], link].concat()) else { return };
        address(&bump.receiver, TAP, End::B);
        let (near, far) = ((&bump.receiver, End::B), (&bump.sender, End::A));
        for family in Family::ALL {
            let open = |(host, end): (&Host, End)| {
                let socket = host.enter(|| UdpSocket::bind((end.address(0, *family), 0))).unwrap().unwrap();
                socket
                    .set_read_timeout(Some(if link.is_empty() { Duration::from_millis(200) } else { PATIENCE }))
                    .unwrap();
                socket
            };
            let (from, to) = (open(near), open(far));
            let (peer, mut got) = (to.local_addr().unwrap(), vec![0; 9000]);
            for len in [100, 1472, 1473, 2953, 8000, 8952] {
                let data = bytes(len, len as u64);
                from.send_to(&data, peer).unwrap();
                match to.recv_from(&mut got) {
                    Ok((came, _)) => assert!(got[..came] == data[..], "{family}: {came} of {len} bytes, or other ones"),
                    Err(error) => assert!(link.is_empty() && len > 1452, "{family}: {len} bytes: {error}"),
                }
            }
        }
        let dropped = |name: &str| -> u64 {
            bump.port(name)["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
        };
        // Without the option they are refused, and counted.
        assert_eq!(dropped(DEVICE) > 0, link.is_empty(), "{}", bump.port(DEVICE));
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn bursts_of_packets_that_are_too_long_are_fragmented_or_counted_one_by_one() {
    const COUNT: usize = 300;
    for options in [&["--fragment"][..], &[]] {
        // The wait sees to it that all of a burst is joined.
        let options = [&["--tap-mtu", "1400", "--hold-us", "20000"], options].concat();
        let Some(bump) = Bump::new(LinkForm::Nic, &options) else { return };
        address(&bump.receiver, TAP, End::B);
        let fragments = options.contains(&"--fragment");
        for (sent, family) in (1..).zip(Family::ALL) {
            let from = bump.sender.enter(|| UdpSocket::bind((End::A.address(0, *family), 0))).unwrap().unwrap();
            let to = bump.receiver.enter(|| UdpSocket::bind((End::B.address(0, *family), 0))).unwrap().unwrap();
            to.set_read_timeout(Some(if fragments { PATIENCE } else { Duration::from_millis(300) })).unwrap();
            let peer = to.local_addr().unwrap();
            // Neighbours find each other first.
            from.send_to(b"x", peer).unwrap();
            assert_eq!(to.recv_from(&mut [0; 9]).unwrap().0, 1);
            let data = bytes(if *family == Family::V4 { 1472 } else { 1452 }, 7);
            let mut got = vec![0; 2000];
            for burst in 0..COUNT / 30 {
                (0..30).for_each(|_| assert_eq!(from.send_to(&data, peer).unwrap(), data.len()));
                for _ in 0..if fragments { 30 } else { usize::from(burst == 0) } {
                    match to.recv_from(&mut got) {
                        Ok((len, _)) => assert!(fragments && got[..len] == data[..], "{family}: {len} bytes"),
                        Err(error) => assert!(!fragments, "{family}: {error}"),
                    }
                }
            }
            let dropped = || bump.port(TAP)["drops"]["gso_too_big"].as_u64().unwrap();
            let expected = if fragments { 0 } else { (sent * COUNT) as u64 };
            let since = Instant::now();
            while dropped() < expected && since.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(dropped(), expected, "{}", bump.port(TAP));
        }
        assert!(bump.port(TAP)["gso"]["trains_cut"].as_u64() > Some(10), "{}", bump.port(TAP));
        assert_eq!(bump.stop(), Some(0));
    }
}

#[test]
fn a_larger_mtu_is_followed_while_packets_move() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--tap-mtu", "1400"]) else { return };
    address(&bump.receiver, TAP, End::B);
    let to = End::B.address(0, Family::V4).to_string();
    let long = || bump.sender.run("ping", &["-c", "1", "-W", "1", "-M", "do", "-s", "1472", &to]);
    bump.sender.run("ping", &["-c", "1", "-W", "5", &to]).unwrap();
    assert!(long().is_err());
    bump.receiver.run("ip", &["link", "set", "dev", TAP, "mtu", "1500"]).unwrap();
    let since = Instant::now();
    while let Err(error) = long() {
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
}

#[test]
fn without_lro_frames_stay_alone() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--no-lro"]) else { return };
    // What the kernel gathers in front of the gateway is not the gateway's.
    bump.gateway.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    address(&bump.receiver, TAP, End::B);
    stream(&bump.sender, (&bump.receiver, End::B), Family::V4, &bytes(500_000, 1));
    let inside = bump.port(TAP);
    assert_eq!(inside["transmit"]["trains"], 0, "{inside}");
    assert!(inside["transmit"]["packets"].as_u64() > Some(340), "{inside}");
    bump.assert_no_drops();
}

#[test]
fn pages_of_every_size_carry_frames_and_trains_both_ways() {
    // Trains from both kernels on one link, frames alone on the other.
    for (form, page) in [LinkForm::Veth, LinkForm::Nic].into_iter().flat_map(|form| PAGES.map(|page| (form, page))) {
        let Some(bump) = Bump::with_mtu(form, &["--page", page], "9000") else { return };
        address(&bump.receiver, TAP, End::B);
        for (family, data) in [(Family::V4, bytes(600_000, 1)), (Family::V6, bytes(1, 2))] {
            stream(&bump.sender, (&bump.receiver, End::B), family, &data);
            stream(&bump.receiver, (&bump.sender, End::A), family, &data);
        }
        datagrams((&bump.sender, End::A), (&bump.receiver, End::B), Family::V6);
        bump.assert_no_drops();
        let inside = bump.port(TAP);
        assert!(inside["transmit"]["trains"].as_u64() > Some(5), "{page}, {form}: {inside}");
    }
}

/// The words of `--page`.
const PAGES: [&str; 5] = ["4k", "8k", "16k", "32k", "frame"];

#[test]
fn pure_acks_collapse_in_both_directions_and_are_counted() {
    // Short trains, so that both ends acknowledge often.
    let options = ["--ack-aggregation", "--max-acks", "8", "--max-packets", "2", "--hold-us", "1000"];
    let Some(bump) = Bump::new(LinkForm::Nic, &options) else { return };
    for host in [&bump.sender, &bump.gateway] {
        host.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    }
    address(&bump.receiver, TAP, End::B);
    for family in Family::ALL {
        stream(&bump.sender, (&bump.receiver, End::B), *family, &bytes(3_000_000, 1));
        stream(&bump.receiver, (&bump.sender, End::A), *family, &bytes(3_000_000, 2));
    }
    bump.assert_no_drops();
    for name in [DEVICE, TAP] {
        let port = bump.port(name);
        assert!(port["swallowed"].as_u64() > Some(50), "{port}");
    }
    bump.assert_all_cross();
    let text = bump.gateway.run(SEGUE, &["stat", "--why"]).unwrap();
    assert!(text.contains("pure ACKs that gave way to newer ones: "), "{text}");
    assert_eq!(bump.stop(), Some(0));
}

#[test]
fn acks_can_collapse_while_data_stays_as_it_comes() {
    let Some(bump) = Bump::new(LinkForm::Nic, &["--no-lro", "--ack-aggregation", "--hold-us", "1000"]) else { return };
    for host in [&bump.sender, &bump.gateway] {
        host.run("ethtool", &["-K", DEVICE, "gro", "off"]).unwrap();
    }
    address(&bump.receiver, TAP, End::B);
    stream(&bump.sender, (&bump.receiver, End::B), Family::V4, &bytes(3_000_000, 1));
    stream(&bump.receiver, (&bump.sender, End::A), Family::V4, &bytes(3_000_000, 1));
    let (outside, inside) = (bump.port(DEVICE), bump.port(TAP));
    assert_eq!(inside["transmit"]["trains"], 0, "{inside}");
    assert!(outside["swallowed"].as_u64().unwrap() + inside["swallowed"].as_u64().unwrap() > 0, "{outside} {inside}");
    bump.assert_no_drops();
}

#[test]
fn a_tunnel_of_the_hosts_kernels_crosses_with_its_trains() {
    // The kernel hands trains in VXLAN to this link whole.
    let Some(bump) = Bump::new(LinkForm::Veth, &[]) else { return };
    address(&bump.receiver, TAP, End::B);
    for (host, end) in [(&bump.sender, End::A), (&bump.receiver, End::B)] {
        let (local, remote) = (end.address(0, Family::V4).to_string(), end.other().address(0, Family::V4).to_string());
        let words = ["link", "add", "vx0", "type", "vxlan", "id", "5", "dstport", "4789", "udpcsum"];
        if host.run("ip", &[&words[..], &["local", &local, "remote", &remote]].concat()).is_err() {
            eprintln!("skipped: this kernel has no VXLAN");
            return;
        }
        host.run("ip", &["addr", "add", &end.prefix(9, Family::V4), "dev", "vx0"]).unwrap();
        host.run("ip", &["addr", "add", &end.prefix(9, Family::V6), "dev", "vx0", "nodad"]).unwrap();
        host.run("ip", &["link", "set", "dev", "vx0", "up"]).unwrap();
    }
    for family in Family::ALL {
        stream_in(9, &bump.sender, (&bump.receiver, End::B), *family, &bytes(3_000_000, 1));
        stream_in(9, &bump.receiver, (&bump.sender, End::A), *family, &bytes(3_000_000, 2));
    }
    bump.assert_no_drops();
    let outside = bump.port(DEVICE);
    assert!(outside["receive"]["trains"].as_u64() > Some(20), "{outside}");
}

/// A fourth host behind the third: what comes out of the TAP goes there through an interface that cannot cut trains, so that
/// the kernel does, and back.
struct Wire {
    bump: Bump,
    end: Host,
}

/// The third host's interface towards the fourth.
const OUT: &str = "out0";

impl Wire {
    fn new() -> Option<Wire> {
        // Room for the longest segments of the generator with all of their options and tags.
        const MTU: &str = "1600";
        let bump = Bump::with_mtu(LinkForm::Nic, &[], MTU)?;
        let (middle, end) = (&bump.receiver, Host::new("end").unwrap());
        let words = ["link", "add", OUT, "mtu", MTU, "type", "veth", "peer", "name", DEVICE, "mtu", MTU, "netns"];
        middle.run("ip", &[&words[..], &[&end.net_path()]].concat()).unwrap();
        middle.run("ip", &["link", "set", "dev", OUT, "addrgenmode", "none"]).unwrap();
        for (host, device) in [(&bump.sender, DEVICE), (&bump.gateway, DEVICE), (middle, OUT), (&end, DEVICE)] {
            host.run("ip", &["link", "set", "dev", device, "up"]).unwrap();
            let features = ["tso", "off", "gso", "off", "tx", "off", "gro", "off"];
            host.run("ethtool", &[&["-K", device][..], &features].concat()).unwrap();
        }
        for (from, to) in [(TAP, OUT), (OUT, TAP)] {
            middle.run("tc", &["qdisc", "add", "dev", from, "ingress"]).unwrap();
            let filter = "protocol all u32 match u32 0 0 action mirred egress redirect dev";
            let words =
                ["filter", "add", "dev", from, "parent", "ffff:"].into_iter().chain(filter.split(' ')).chain([to]);
            middle.run("tc", &words.collect::<Vec<_>>()).unwrap();
        }
        Some(Wire { bump, end })
    }
}

/// Ends captures when it goes, also where the test fails in between.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Every frame that comes in at `device` until `stop`, with what is known of it. Counts itself in `ready` when it begins.
fn capture(host: &Host, device: &str, ready: &AtomicUsize, stop: &AtomicBool) -> Vec<(Unit, Vec<u8>)> {
    let config = PacketConfig { ring_bytes: 64 << 20, ..PacketConfig::new(device) };
    host.enter(|| {
        let mut port = PacketPort::open(&config).unwrap();
        ready.fetch_add(1, Ordering::Relaxed);
        let (mut into, mut frames) = (RxBatch::new(64), Vec::new());
        let mut quiet = Instant::now();
        while !stop.load(Ordering::Relaxed) || quiet.elapsed() < Duration::from_millis(300) {
            if port.receive(&mut into, 64).unwrap() == Polled::Idle {
                thread::sleep(Duration::from_micros(200));
            }
            while let Some(packet) = into.packets.pop_front() {
                frames.push((packet.offload.unit, flat(&packet)));
                into.pool.put(packet);
                quiet = Instant::now();
            }
        }
        assert_eq!(port.counters().drops.total(), 0, "{device}: {:?}", port.counters());
        frames
    })
    .unwrap()
}

/// Until `count` captures have begun, or long enough for one of them to have failed.
fn wait_for(ready: &AtomicUsize, count: usize) {
    let end = Instant::now() + PATIENCE;
    while ready.load(Ordering::Relaxed) < count && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

fn flat(packet: &Packet<segue_port::Page>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.pieces(0..packet.payload.len()).for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Sends frames as they are, in bursts.
fn transmit(host: &Host, frames: &[Vec<u8>]) {
    host.enter(|| {
        let mut port = PacketPort::open(&PacketConfig::new(DEVICE)).unwrap();
        let (mut pages, mut batch) = (PagePool::new(128), TxBatch::new());
        let mut into = RxBatch::new(1);
        for burst in frames.chunks(100) {
            for frame in burst {
                let mut page = pages.take().expect("as many pages as a burst has frames");
                page.bytes_mut()[..frame.len()].copy_from_slice(frame);
                let mut packet = into.pool.take();
                packet.load(Frag::all(page.freeze(frame.len())), Start::Ethernet, &Tunnels::NONE);
                packet.offload.unit = Unit::Whole(Csum::Unknown);
                batch.push(packet, port.limits()).unwrap();
            }
            while port.transmit(&mut batch).unwrap() != Sent::All {}
            batch.recycle(&mut into.pool);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(port.counters().drops.total(), 0);
    })
    .unwrap();
}

/// Station addresses that say which flow a frame is of.
const STATION: [u8; 4] = [2, 0, 0x5e, 1];

/// Added to the number of a flow for ICMP, and for what is no IP.
const ICMP: u16 = 1000;
const OTHER: u16 = 2000;

fn station(flow: u16) -> [u8; 6] {
    let ([a, b, c, d], [high, low]) = (STATION, flow.to_be_bytes());
    [a, b, c, d, high, low]
}

fn flow_of(frame: &[u8]) -> Option<u16> {
    let number = frame.get(6..12)?.strip_prefix(&STATION)?;
    Some(u16::from_be_bytes([number[0], number[1]]))
}

/// Frames of many flows: bursts of TCP and UDP, everything that a stream has, tags, padding, damage, and what is no IP.
fn traffic(count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(7);
    let mut frames = Vec::new();
    for sent in flow::mixed(&mut rng, 40, count) {
        // Another protocol between the same hosts is a flow of its own.
        let is_icmp = if sent.bytes[0] >> 4 == 4 { sent.bytes[9] == 1 } else { sent.bytes[6] == 58 };
        let number = sent.flow as u16 + if is_icmp { ICMP } else { 0 };
        let tags: &[(u16, u16)] = match sent.flow % 8 {
            5 => &[(0x8100, 0x6005)],
            6 => &[(0x88a8, 0x0007), (0x8100, 0x0009)],
            _ => &[],
        };
        let ethernet = Ethernet { dst: [2, 0, 0x5e, 2, 0, 0], src: station(number), tags: tags.to_vec() };
        let mut frame = ethernet.wrap(&sent.bytes);
        match rng.below(100) {
            // One bit of the payload or of the checksum.
            0 => {
                let last = frame.len() - 1;
                frame[last] ^= 4;
            }
            // What a card adds to a short frame, and what none should.
            2..20 if frame.len() < 60 => frame.resize(60, if sent.flow % 2 == 0 { 0 } else { 0xaa }),
            1 => {
                let mut other =
                    Ethernet { src: station(number + OTHER), tags: Vec::new(), ..ethernet }.wrap(&sent.bytes);
                other[12..14].copy_from_slice(&[0x88, 0xb5]);
                frames.push(other);
            }
            _ => {}
        }
        frames.push(frame);
    }
    frames
}

fn by_flow(frames: impl Iterator<Item = Vec<u8>>) -> BTreeMap<u16, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for frame in frames {
        if let Some(flow) = flow_of(&frame) {
            flows.entry(flow).or_default().push(frame);
        }
    }
    flows
}

/// Asserts that two lists of frames are the same, and shows the first that is not.
fn assert_same(what: &str, expected: &[Vec<u8>], got: &[Vec<u8>]) {
    for (index, (expected, got)) in expected.iter().zip(got).enumerate() {
        let at = expected.iter().zip(got).position(|(a, b)| a != b).unwrap_or(expected.len().min(got.len()));
        assert!(
            expected == got,
            "{what}: frame {index}: {} and {} bytes differ at {at}:\n{:02x?}\n{:02x?}",
            expected.len(),
            got.len(),
            &expected[..expected.len().min(80)],
            &got[..got.len().min(80)]
        );
    }
    assert_eq!(expected.len(), got.len(), "{what}: how many frames");
}

#[test]
fn the_kernels_own_segmentation_gives_back_every_frame_that_was_sent() {
    let Some(wire) = Wire::new() else { return };
    let frames = traffic(6000);
    let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tap, end) = thread::scope(|scope| {
        let ending = Stop(&stop);
        let tap = scope.spawn(|| capture(&wire.bump.receiver, TAP, &ready, &stop));
        let end = scope.spawn(|| capture(&wire.end, DEVICE, &ready, &stop));
        wait_for(&ready, 2);
        transmit(&wire.bump.sender, &frames);
        drop(ending);
        (tap.join().unwrap(), end.join().unwrap())
    });
    wire.bump.assert_no_drops();
    // At the TAP: trains, whole. That a virtio header of each fits its bytes is checked by the port that received them.
    let trains = tap.iter().filter_map(|(unit, frame)| match unit {
        Unit::Train { gso, .. } => Some((gso.size, frame.len())),
        Unit::Whole(_) => None,
    });
    let (count, longest) = trains.fold((0, 0), |(count, longest), (_, len)| (count + 1, longest.max(len)));
    assert!(count > 200 && longest > 10_000, "{count} trains, the longest has {longest} bytes");
    assert!(tap.len() * 4 < frames.len() * 3, "{} units of {} frames", tap.len(), frames.len());
    // At the end: what was sent.
    assert!(end.iter().all(|(unit, _)| matches!(unit, Unit::Whole(_))));
    let sent = by_flow(frames.into_iter());
    let got = by_flow(end.into_iter().map(|(_, frame)| frame));
    assert_eq!(sent.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
    for (flow, frames) in &sent {
        assert_same(&format!("flow {flow}"), frames, &got[flow]);
    }
}

/// The frames of the connection, in one direction.
fn connection(frames: Vec<(Unit, Vec<u8>)>, to_port: bool) -> Vec<Vec<u8>> {
    let is_part = |frame: &[u8]| {
        let ip = if frame[12..14] == [8, 0] { 20 } else { 40 };
        let tcp = frame[12..14] == [8, 0] && frame[23] == 6 || frame[12..14] == [0x86, 0xdd] && frame[20] == 6;
        let at = 14 + ip + if to_port { 2 } else { 0 };
        tcp && frame.get(at..at + 2) == Some(&PORT.to_be_bytes()[..])
    };
    frames.into_iter().map(|(_, frame)| frame).filter(|frame| is_part(frame)).collect()
}

#[test]
fn a_live_connection_has_the_same_frames_on_both_wires() {
    let Some(wire) = Wire::new() else { return };
    address(&wire.end, DEVICE, End::B);
    for (family, up) in Family::ALL.iter().flat_map(|family| [(*family, true), (*family, false)]) {
        let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let taps = [
            (&wire.bump.gateway, DEVICE),
            (&wire.end, DEVICE),
            (&wire.bump.receiver, OUT),
            (&wire.bump.sender, DEVICE),
            (&wire.bump.receiver, TAP),
        ];
        let captured = thread::scope(|scope| {
            let ending = Stop(&stop);
            let (ready, stop) = (&ready, &stop);
            let taps = taps.map(|(host, device)| scope.spawn(move || capture(host, device, ready, stop)));
            wait_for(ready, 5);
            let ends = [(&wire.bump.sender, End::A), (&wire.end, End::B)];
            let (from, to) = if up { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
            stream(from.0, to, family, &bytes(2_000_000, 3));
            drop(ending);
            taps.map(|tap| tap.join().unwrap())
        });
        let [before, after, back_before, back_after, tap] = captured;
        if up {
            let trains = tap.iter().filter(|(unit, _)| matches!(unit, Unit::Train { .. })).count();
            assert!(trains > 10, "{family}: {trains} trains at the TAP");
        }
        let what = format!("{family} {}", if up { "upwards" } else { "downwards" });
        // Two processors send frames of one connection, and what is captured first of two at once is chance.
        let sorted = |frames, to_port| {
            let mut frames = connection(frames, to_port);
            frames.sort();
            frames
        };
        let there = sorted(before, up);
        assert_same(&format!("{what}, there"), &there, &sorted(after, up));
        let back = sorted(back_before, !up);
        assert_same(&format!("{what}, back"), &back, &sorted(back_after, !up));
        assert!(there.len() + back.len() > 2_000_000 / 1600, "{what}: {} and {} frames", there.len(), back.len());
    }
    wire.bump.assert_no_drops();
}

/// Starts `$SEGUE gateway LINE` in the background and waits until it answers.
fn up(line: &str) -> String {
    format!(
        "$SEGUE gateway {line} & pid=$!
for n in $(seq 100); do $SEGUE stat -j 2>/dev/null | grep -q '\"kind\":\"gateway\"' && break; sleep 0.05; done
"
    )
}

/// An interface without addresses, and a place for named namespaces.
const BARE: &str = "ip addr flush dev peer0; ip link set dev peer0 addrgenmode none; ip addr flush dev peer0
mount -t tmpfs tmpfs /run
";

#[test]
fn a_gateway_comes_up_as_planned_with_its_tap_in_a_named_namespace_and_leaves_nothing_behind() {
    let script = format!(
        "{BARE}ip netns add red
ip -j link > /run/before; $SEGUE gateway peer0 tap:t0@red --tap-mtu 1400 --check; echo \"status $?\"
ip -j link > /run/after; cmp /run/before /run/after && ip -n red -br link show dev t0 2>&1
{}ip -n red -o link show dev t0; ls $SEGUE_RUNTIME_DIR
worker=$($SEGUE stat -j | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$worker/status | tr '\\n' ' '; echo
ip -d link show dev peer0 | grep -o 'promiscuity [0-9]*'
kill -USR1 $pid; sleep 0.2; kill -TERM $pid; wait $pid; echo \"status $?\"
ip -n red -br link show dev t0 2>&1; ip -d link show dev peer0 | grep -o 'promiscuity [0-9]*'; ls -A $SEGUE_RUNTIME_DIR; echo end",
        up("peer0 tap:t0@red --tap-mtu 1400 -v")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let expected = "\
peer0-t0 can be: peer0 <-> t0
  peer0           mtu 1500, packet socket
  t0              mtu 1400, TAP in red
  lro             trains to 65.5 kB or 1000 packets, profile strict
  memory          pages of 32 KiB
nothing was changed
status 0
Device \"t0\" does not exist.
";
    assert!(ran.stdout.starts_with(expected), "{ran:?}");
    for part in [" mtu 1400 ", ",UP", "peer0-t0.sock", "CapEff:\t0000000000000000", "Seccomp:\t2", "promiscuity 1\n"] {
        assert!(ran.stdout.contains(part), "{part}: {ran:?}");
    }
    assert!(!ran.stdout.contains("Uid:\t0\t"), "{ran:?}");
    assert!(ran.stdout.ends_with("status 0\nDevice \"t0\" does not exist.\npromiscuity 0\nend\n"), "{ran:?}");
    for line in [
        "note: peer0 has the larger MTU; its packets above 1400 do not fit t0",
        "ip -n red tuntap add dev t0 mode tap vnet_hdr    # TUNSETIFF",
        "ip -n red link set dev t0 mtu 1400    # RTM_NEWLINK",
        "ip -n red link set dev t0 up    # RTM_NEWLINK",
        "peer0-t0 is up: peer0 <-> t0\n",
        " B in, ",
        "peer0-t0 is down after ",
    ] {
        assert!(ran.stderr.contains(line), "{line} is missing: {ran:?}");
    }
}

#[test]
fn what_a_gateway_cannot_stand_between_is_refused_with_a_way_out() {
    let script = format!(
        "{BARE}try() {{ $SEGUE gateway \"$@\"; echo \"status $?\"; echo --- >&2; }}
try eth0 tap:t0; try none tap:t0; try peer0 peer0; try peer0 tap:t0@nowhere; try peer0 tap:eth0; try peer0 lo --tap-mtu 1400
try peer0 tap:t0@/etc/hostname; try peer0 tap:t0 --max-bytes 9; try peer0 tap:a/b; try peer0 tap:t0 --name a/b
ls -A $SEGUE_RUNTIME_DIR; ip -br link show dev t0 2>&1"
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, ["1", "1", "2", "1", "1", "1", "1", "2", "2", "2"], "{ran:?}");
    assert!(ran.stdout.ends_with("\nDevice \"t0\" does not exist.\n"), "nothing is left: {ran:?}");
    for (index, (error, hint)) in [
        ("eth0 has the address 198.18.0.1/24", "segue gateway eth0 tap:lro0"),
        ("there is no interface none", "ip -br link"),
        ("both ends are the same", "segue gateway --help"),
        ("cannot enter the network namespace nowhere: No such file or directory", "sudo ip netns add nowhere"),
        ("cannot create eth0", "another name"),
        ("lo has the address 127.0.0.1/8", "sudo ip addr flush dev lo"),
        ("cannot enter the network namespace /etc/hostname", "ip netns list"),
        ("9 is not", ""),
        ("`tap:a/b` is no end of a gateway", "segue gateway --help"),
        ("`a/b` cannot be a gateway's name", "--name gw0"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = ran.stderr.split("---\n").nth(index).unwrap_or_default();
        assert!(text.contains("error: ") && text.contains("\ntry:"), "{index}: {text}");
        assert!(index == 7 || text.contains(error) && text.contains(hint), "{index}: {text}");
    }
}

/// Two pairs of interfaces, one end of each for the gateway.
const PAIRS: &str = "for n in a b; do ip link add ${n}0 type veth peer name ${n}1
for dev in ${n}0 ${n}1; do ip link set dev $dev addrgenmode none up; done; done
";

#[test]
fn an_interface_that_was_set_down_and_then_deleted_ends_the_gateway() {
    for gone in ["ip link set dev a0 down; sleep 0.5; ip link del a0", "ip link del a1"] {
        let script = format!(
            "{BARE}{PAIRS}{}$SEGUE stat --health; echo \"healthy $?\"; ip link set dev b0 down; sleep 0.5
$SEGUE stat -j; $SEGUE stat --health; echo \"healthy $?\"; ip link set dev b0 up; sleep 0.5
$SEGUE stat --health; echo \"healthy $?\"
{gone}; wait $pid; echo \"status $?\"",
            up("a0 b0")
        );
        let Some(ran) = in_namespace(&script) else { return };
        for part in ["healthy 0\n", "b0 is down", "healthy 1\n", "status 1\n"] {
            assert!(ran.stdout.contains(part), "{part}: {ran:?}");
        }
        assert_eq!(ran.stdout.matches("healthy 0\n").count(), 2, "{ran:?}");
        assert!(ran.stderr.contains("a0-b0 can no longer move packets: No such device"), "{ran:?}");
    }
}

#[test]
fn what_a_second_gateway_or_the_name_of_a_tap_takes_is_refused_by_the_check_as_by_the_run() {
    let script = format!(
        "{BARE}{PAIRS}ip netns add red; ip -n red link add t0 type veth; ip link add t1 type veth; ip tuntap add dev t2 mode tun
{}try() {{ echo \"== $*\" >&2; $SEGUE gateway \"$@\"; echo \"status $?\"; }}
for check in --check ''; do try b0 a0 --name gw1 $check; try a0 tap:t9 --name gw0 $check; try a0 tap:t0@red --name gw1 $check
try a0 tap:t1 --name gw1 $check; try a0 tap:t2 --name gw1 $check; try t2 a0 --name gw1 $check; done
try a0 b1 --name gw1 --check; kill -TERM $pid; wait $pid; try b0 a0 --name gw0 --check",
        up("a0 b0 --name gw0")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    let round = ["1", "1", "1", "1", "1", "2"];
    assert_eq!(statuses, [&round[..], &round, &["0", "0"]].concat(), "{ran:?}");
    let texts: Vec<&str> = ran.stderr.split("== ").skip(1).collect();
    for (index, error) in [
        "a gateway stands between b0 and a0 already",
        "gw0 is already running",
        "cannot create t0",
        "cannot create t1",
        "cannot create t2",
        "t2 carries no Ethernet frames",
    ]
    .into_iter()
    .enumerate()
    {
        for text in [texts[index], texts[index + 6]] {
            assert!(text.contains(error), "{index}: {text}");
            assert!(!text.contains("cannot create") || text.contains("another name: tap:NAME"), "{text}");
        }
    }
}

#[test]
fn a_tap_that_is_held_is_neither_made_again_nor_an_end_of_the_same_pair() {
    let script = format!(
        "{BARE}{PAIRS}ip tuntap add dev q1 mode tap
{}try() {{ echo \"== $*\" >&2; timeout 9 $SEGUE gateway \"$@\"; echo \"status $?\"; }}
for check in --check ''; do try b0 tap:q0 --name gw1 $check; try a0 q0 --name gw1 $check; try q0 a0 --name gw1 $check; done
try b0 tap:q1 --check; kill -TERM $pid; wait $pid; try a0 tap:q0 --check",
        up("a0 tap:q0 --name gw0")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, [&["1"; 6][..], &["0"; 2]].concat(), "{ran:?}");
    let texts: Vec<&str> = ran.stderr.split("== ").skip(1).collect();
    for (at, text) in texts[..6].iter().enumerate() {
        let error = if at % 3 == 0 { "another program holds q0" } else { "a gateway stands between" };
        assert!(text.contains(error), "{at}: {text}");
    }
}

/// Exit status of a script that may not make a device node.
const NO_NODE: i32 = 77;

/// The other user's gateway has no packet socket, and no right but that to its TAPs. The device node that it opens is the
/// script's own, so that the mode of the machine's node does not matter.
#[test]
fn a_gateway_of_another_user_between_its_taps_has_them_for_itself() {
    let script = format!(
        "{BARE}mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun || exit {NO_NODE}
mount -t sysfs sysfs /sys
for t in q0 q1; do ip tuntap add dev $t mode tap vnet_hdr user 65534; ip link set dev $t up; done
mkdir -m 755 /run/other; chown 65534 /run/other; install -m 755 $SEGUE /run/segue
setpriv --reuid 65534 --regid 65534 --clear-groups env SEGUE_RUNTIME_DIR=/run/other \\
/run/segue gateway tap:q0 tap:q1 --name other & pid=$!
for n in $(seq 100); do SEGUE_RUNTIME_DIR=/run/other $SEGUE stat -j | grep -q other && break; sleep 0.05; done
$SEGUE gateway q1 q0 --check; echo \"status $?\"; kill -TERM $pid; wait $pid
$SEGUE gateway q1 q0 --check >&2; echo \"status $?\""
    );
    let Some(ran) = in_namespace(&script) else { return };
    if ran.code == Some(NO_NODE) {
        return eprintln!("skipped: no device node can be made here (CAP_MKNOD)");
    }
    assert!(ran.stdout.ends_with("status 1\nstatus 0\n"), "{ran:?}");
    assert!(ran.stderr.contains("a gateway stands between q1 and q0 already"), "{ran:?}");
}

#[test]
fn a_router_says_that_the_kernel_forwards_too() {
    let script = format!(
        "{BARE}{PAIRS}ip addr add 198.18.1.1/24 dev a0; ip addr add 198.18.2.1/24 dev b0
{}$SEGUE stat --health; echo \"healthy $?\"; sysctl -qw net.ipv6.conf.all.forwarding=1; sleep 1.5
$SEGUE stat --health -j; echo \"healthy $?\"; sysctl -qw net.ipv6.conf.all.forwarding=0; sleep 1.5
$SEGUE stat --health; echo \"healthy $?\"; kill -TERM $pid; wait $pid; echo \"status $?\"",
        up("a0 b0 --route --name gw0")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let ends: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("healthy ")).collect();
    assert_eq!(ends, ["healthy 0", "healthy 1", "healthy 0"], "{ran:?}");
    assert!(ran.stdout.contains("the kernel forwards too") && ran.stdout.ends_with("status 0\n"), "{ran:?}");
    let warning = "sysctl -w net.ipv6.conf.a0.forwarding=0 net.ipv6.conf.b0.forwarding=0\n";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "once: {ran:?}");
}

#[test]
fn options_that_say_how_packets_are_joined_do_not_go_with_no_lro() {
    let script = format!(
        "{BARE}{PAIRS}try() {{ $SEGUE gateway a0 b0 --check --no-lro \"$@\" >/dev/null; echo \"status $?\"; }}
try --profile linux; try --max-packets 5; try --max-bytes 9000; try --hold-us 5; try --ack-aggregation --max-packets 5
try; try --ack-aggregation --hold-us 1000000; try --ack-aggregation --profile lro --max-acks 4"
    );
    let Some(ran) = in_namespace(&script) else { return };
    let statuses: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, [&["2"; 5][..], &["0"; 3]].concat(), "{ran:?}");
    for option in ["--profile", "--max-packets", "--max-bytes", "--hold-us"] {
        assert!(ran.stderr.contains(&format!("`{option}` does not go with `--no-lro`")), "{option}: {ran:?}");
    }
}

#[test]
fn json_says_what_is_planned_up_and_down() {
    let script = format!(
        "{BARE}$SEGUE gateway peer0 tap:t0 --profile linux --hold-us 20 --max-bytes 9000 --max-packets 6 --check -j
{}kill -INT $pid; wait $pid; cat /run/events",
        up("peer0 tap:t0 --name gw0 --no-lro -j > /run/events")
    );
    let Some(ran) = in_namespace(&script) else { return };
    let values: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [check, up, down] = &values[..] else { panic!("{ran:?}") };
    for (value, event) in [(check, "check"), (up, "up"), (down, "down")] {
        assert_eq!((value["schema"].as_str(), value["event"].as_str()), (Some("segue.gateway/1"), Some(event)));
    }
    let plan = &check["plan"];
    assert_eq!((plan["profile"].as_str(), plan["hold_us"].as_u64()), (Some("linux:6.18"), Some(20)));
    assert_eq!((plan["max_bytes"].as_u64(), plan["max_packets"].as_u64()), (Some(9000), Some(6)));
    assert_eq!((plan["in"]["kind"].as_str(), plan["out"]["kind"].as_str()), (Some("interface"), Some("tap")));
    assert_eq!((up["plan"]["name"].as_str(), up["plan"]["lro"].as_bool()), (Some("gw0"), Some(false)));
    assert_eq!(up["offloads"]["t0.tap_tso4"]["on"], true);
    assert!(down["instance"]["ports"]["peer0"]["receive"].is_object());
}
