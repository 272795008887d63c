//! Tests of the kernel's own VXLAN inside of a tunnel of Ethernet frames: trains cross the interface whole in both
//! directions, checksums stay what they were, and only packets of a tunnel device are joined inside: a socket that has
//! the same port receives each datagram by itself.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer};
use segue_tests::capture::{self, Capture, Directory};
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, skip, sys, test_name, until, wire};

/// Number of the tunnel, and of the VXLAN inside of it.
const NET: u8 = 1;
const INNER: u8 = 2;
const VXLAN: &str = "vx0";
const VXLAN_PORT: u16 = 4789;
const VNI: u8 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: &[&str] = &["workers", "2"];
const ZERO: &str = "noudpcsum";
const ZERO6: &str = "udp6zerocsumtx udp6zerocsumrx";

/// Starts the tunnel between the hosts.
fn start<'a>(ground: &'a Ground, carrier: Carrier, extra: &'static [&'static str]) -> Pair<'a> {
    Pair::start(ground, Shape { extra, ..Shape::new(Inside::Gretap, carrier, V4) }, NET)
}

/// Returns whether the tunnel's interfaces take trains inside of tunnels; notes that the test is skipped if not.
fn takes_tunnels(name: &str, pair: &Pair<'_>) -> bool {
    let is_on = |stat: &Stat| stat.json()["offloads"]["tap_udp_tunnel"]["on"].as_bool() == Some(true);
    let all = pair.stat().iter().all(is_on);
    if !all {
        skip(name, "this kernel has no offload of UDP tunnels on TAP");
    }
    all
}

/// Creates the kernel's VXLAN over the tunnel's interface; `false` if the kernel has none, which is noted.
fn add_vxlan(name: &str, host: &Host, end: Peer, outer: Family, words: &str) -> bool {
    let [local, remote] = [end, end.other()].map(|end| end.address(NET, outer));
    let (under, id) = (Shape::device(NET), VNI);
    let line = format!(
        "link add {VXLAN} type vxlan id {id} dstport {VXLAN_PORT} dev {under} local {local} remote {remote} {words}"
    );
    if host.run("ip", &line.split_whitespace().collect::<Vec<_>>()).is_err() {
        skip(name, "this kernel has no VXLAN");
        return false;
    }
    for family in Family::ALL {
        let nodad = if *family == V6 { " nodad" } else { "" };
        ip(host, &format!("addr add {} dev {VXLAN}{nodad}", end.prefix(INNER, *family)));
    }
    ip(host, &format!("link set {VXLAN} up"));
    true
}

/// Creates the kernel's VXLAN at both ends and waits until it carries datagrams; `None` if the kernel has none.
fn joined<'a>(name: &str, ground: &'a Ground, outer: Family, words: &str) -> Option<[Place<'a>; 2]> {
    let hosts = [(&ground.a, Peer::A), (&ground.b, Peer::B)];
    if !hosts.iter().all(|(host, end)| add_vxlan(name, host, *end, outer, words)) {
        return None;
    }
    let places = hosts.map(|(host, end)| Place { host, address: end.address(INNER, V4) });
    let [a, b] = places;
    segue_lab::reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    Some(places)
}

/// Returns the number of packets that a host's kernel has dropped for a wrong checksum.
fn wrong_checksums(host: &Host) -> u64 {
    let snmp = host.run("cat", &["/proc/net/snmp"]).unwrap();
    let lines: Vec<&str> = snmp.lines().collect();
    let pairs = lines.chunks(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
    let fields = pairs.flat_map(|(names, values)| names.split(' ').zip(values.split(' ')));
    let snmp6 = host.run("cat", &["/proc/net/snmp6"]).unwrap();
    let fields6 = snmp6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let wrong = fields.chain(fields6).filter(|(name, _)| name.contains("CsumErr"));
    wrong.map(|(_, value)| value.trim().parse::<u64>().unwrap()).sum()
}

/// Sends a file in both directions, and checks the counters of the trains inside.
fn crosses_in_trains(name: &str, form: LinkForm, outer: Family, words: &str, extra: &'static [&'static str]) {
    crosses_over(Carrier::Gue, name, form, (outer, words), extra);
}

/// Sends a file as [`crosses_in_trains`] does, over a tunnel of this carrier; `words` are those of VXLAN, over `outer`.
fn crosses_over(
    carrier: Carrier,
    name: &str,
    form: LinkForm,
    (outer, words): (Family, &str),
    extra: &'static [&'static str],
) {
    let Some(ground) = Ground::new(name, form, &[]) else { return };
    let pair = start(&ground, carrier, extra);
    if !takes_tunnels(name, &pair) {
        return;
    }
    let Some([a, b]) = joined(name, &ground, outer, words) else { return };
    let wrong = [&ground.a, &ground.b].map(wrong_checksums);
    let device = Shape::device(NET);
    for (from, to, [sender, receiver]) in [(a, b, [0_usize, 1]), (b, a, [1, 0])] {
        let before = pair.stat();
        traffic::file(from, to, traffic::SHORT, 7 + sender as u64);
        let after = pair.stat();
        let rose = |end: usize, stage: &str, key: &str| {
            after[end].count(&device, stage, key) - before[end].count(&device, stage, key)
        };
        let [packets, trains, segments] = ["packets", "trains", "segments"].map(|key| rose(sender, "receive", key));
        let in_trains = segments - (packets - trains);
        let what = format!("{form:?} IPv{outer} {words} {extra:?}");
        assert!(4 * in_trains > segments, "{what}: {in_trains} of {segments} packets came in {trains} trains");
        let computed = |stat: &Stat| stat.json()["ports"][&device]["fallbacks"]["foreign_csum"].as_u64().unwrap_or(0);
        let foreign = computed(&after[sender]) - computed(&before[sender]);
        assert!(4 * foreign < segments, "{what}: {foreign} checksums of {segments} packets");
        let [whole, cut] = ["trains_whole", "trains_cut"].map(|key| rose(receiver, "gso", key));
        // The file is 64 of the largest trains.
        assert!(whole >= 20 && 4 * cut < whole, "{what}: {whole} trains written whole, {cut} cut");
    }
    assert_eq!([&ground.a, &ground.b].map(wrong_checksums), wrong);
    pair.assert_nothing_dropped();
}

#[test]
fn vxlan_with_checksums_crosses_in_whole_trains() {
    crosses_in_trains(test_name!(), LinkForm::Veth, V4, "udpcsum", &[]);
    crosses_in_trains(test_name!(), LinkForm::Nic, V6, "", &[]);
}

#[test]
fn vxlan_without_checksums_crosses_in_whole_trains() {
    crosses_in_trains(test_name!(), LinkForm::Nic, V4, ZERO, &[]);
    crosses_in_trains(test_name!(), LinkForm::Veth, V6, ZERO6, &[]);
}

/// Tests that what the tunnel leaves to its receiver, the checksum of VXLAN's own datagram around a packet that has no
/// transport, is not taken for that of a packet inside.
#[test]
fn vxlan_crosses_a_tunnel_with_remote_checksum_offload_in_whole_trains() {
    crosses_over(Carrier::GueRemcsum, test_name!(), LinkForm::Nic, (V4, "udpcsum"), &[]);
    crosses_over(Carrier::GueRemcsum, test_name!(), LinkForm::Veth, (V6, ""), &[]);
    crosses_over(Carrier::GueRemcsum, test_name!(), LinkForm::Veth, (V4, ZERO), &[]);
}

#[test]
fn vxlan_crosses_a_tunnel_with_two_workers_in_whole_trains() {
    crosses_in_trains(test_name!(), LinkForm::Nic, V4, "udpcsum", WORKERS);
}

/// Returns whether the TCP or UDP checksum of an IPv4 packet without options is right.
fn is_good(packet: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let transport = &packet[20..len];
    let pseudo = wire::pseudo(&packet[12..16], &packet[16..20], packet[9], transport.len());
    wire::sum(&[&pseudo.to_be_bytes()[..], transport].concat()) == 0xffff
}

/// Returns the IPv4 packet of VXLAN in a frame of the tunnel, if it has one.
fn vxlan_packet(frame: &[u8]) -> Option<&[u8]> {
    let gue = wire::outer(frame).ok()??.udp.filter(|udp| udp.destination == Shape::port(NET))?.payload;
    // Control messages are the tunnel's own.
    let first = gue.first().filter(|first| **first & 0xe0 == 0)?;
    let gre = gue.get(4 + 4 * usize::from(first & 0x1f)..)?;
    assert_eq!(gre[..4], [0x20, 0, 0x65, 0x58], "GRE with a key, around a frame");
    let inner = gre.get(8..)?;
    let packet = inner.get(14..).filter(|packet| inner[12..14] == [8, 0] && packet.len() > 28)?;
    (packet[9] == 17 && packet[22..24] == VXLAN_PORT.to_be_bytes()).then_some(packet)
}

/// Checks every packet of VXLAN on the wire: with an outer checksum that is right, or none at all.
fn stays_on_the_wire(name: &str, words: &str, extra: &'static [&'static str]) {
    // Frames on this link are final.
    let Some(ground) = Ground::new(name, LinkForm::Nic, &["tcpdump"]) else { return };
    let pair = start(&ground, Carrier::Gue, extra);
    if !takes_tunnels(name, &pair) {
        return;
    }
    let Some([a, b]) = joined(name, &ground, V4, words) else { return };
    let directory = Directory::new();
    let capture = Capture::start(&ground.a, directory.file("a.pcap"));
    traffic::file(a, b, 512 << 10, 3);
    traffic::datagram_train(a, b, 1000, 20, 4);
    let file = fs::read(capture.stop()).unwrap();
    let mut judged = 0;
    for packet in capture::frames(&file).unwrap().into_iter().filter_map(vxlan_packet) {
        let has_none = packet[26..28] == [0, 0];
        assert_eq!(has_none, words == ZERO, "packet {judged}");
        assert!(has_none || is_good(packet), "the outer checksum of packet {judged}");
        let inner = &packet[20 + 8 + 8..];
        if inner[12..14] == [8, 0] && matches!(inner[14 + 9], 6 | 17) {
            assert!(is_good(&inner[14..]), "the inner checksum of packet {judged}");
            judged += 1;
        }
    }
    assert!(judged > 300, "only {judged} packets of VXLAN");
    let trains = pair.stat()[0].count(&Shape::device(NET), "receive", "trains");
    assert!(trains > 0, "what was judged came one by one");
}

#[test]
fn outer_checksums_inside_stay_right_and_zeros_stay_zeros() {
    stays_on_the_wire(test_name!(), "udpcsum", &[]);
    stays_on_the_wire(test_name!(), ZERO, &[]);
    stays_on_the_wire(test_name!(), "udpcsum", WORKERS);
}

/// Number of datagrams of a burst, and of sockets that send them: two workers get some each, but for 1 case in 128.
const BURST: u16 = 30;
const SOURCES: usize = 8;
/// Payload length of the TCP segments in the datagrams.
const SEGMENT: u16 = 1000;

/// Returns a datagram's payload that looks like VXLAN around the given segment of a TCP flow.
fn looks_like_vxlan(number: u16) -> Vec<u8> {
    let [from, to] = [Peer::A, Peer::B].map(|end| match end.address(INNER, V4) {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => unreachable!("{address} is not of IPv4"),
    });
    let mut segment = [5001_u16, 5002].map(u16::to_be_bytes).concat();
    segment.extend((1 + u32::from(number) * u32::from(SEGMENT)).to_be_bytes());
    segment.extend([0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend((0..SEGMENT).map(|at| (at * 3 + number) as u8));
    let pseudo = wire::pseudo(&from, &to, 6, segment.len());
    let sum = !wire::sum(&[&pseudo.to_be_bytes()[..], &segment].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());

    let mut header = vec![0x45, 0];
    header.extend((20 + segment.len() as u16).to_be_bytes());
    header.extend(number.to_be_bytes());
    header.extend([0x40, 0, 64, 6, 0, 0]);
    header.extend(from.into_iter().chain(to));
    let sum = !wire::sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());

    let vxlan = [8, 0, 0, 0, 0, 0, VNI, 0];
    let ethernet = [2_u8, 0, 0, 0, 0, 0x12, 2, 0, 0, 0, 0, 0x11, 8, 0];
    [&vxlan[..], &ethernet, &header, &segment].concat()
}

/// Sends the datagrams: with checksums in one call, and without, which the kernel does not do in one call, one by one.
fn send(socket: &UdpSocket, has_checksums: bool, all: &[Vec<u8>], to: SocketAddr) {
    if has_checksums {
        socket.send_to(&all.concat(), to).unwrap();
        return;
    }
    for datagram in all {
        socket.send_to(datagram, to).unwrap();
    }
}

/// Receives the datagrams, each by itself.
fn receive(socket: &UdpSocket, all: &[Vec<u8>]) -> Result<(), String> {
    let mut buffer = vec![0; 1 << 16];
    for (number, sent) in all.iter().enumerate() {
        let len = socket.recv(&mut buffer).map_err(|error| format!("datagram {number}: {error}"))?;
        if buffer[..len] != sent[..] {
            return Err(format!("datagram {number} of {} bytes came as {len} bytes, or as others", sent.len()));
        }
    }
    Ok(())
}

/// Sends what looks like VXLAN to a plain socket, to a VXLAN device that is added, and to a plain socket again after
/// that is gone.
fn only_devices_get_trains(name: &str, extra: &'static [&'static str]) {
    let Some(ground) = Ground::new(name, LinkForm::Veth, &[]) else { return };
    let pair = start(&ground, Carrier::Gue, extra);
    let [from, to] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    let all: Vec<Vec<u8>> = (0..BURST).map(looks_like_vxlan).collect();
    // Those without checksums first: none of their plain datagrams is joined.
    let sources = [false, true].into_iter().flat_map(|has_checksums| [has_checksums; SOURCES]);
    let sources: Vec<(UdpSocket, bool)> = sources
        .map(|has_checksums| {
            let socket = traffic::socket(from);
            if has_checksums {
                sys::set_udp_segment(&socket, all[0].len() as u16).unwrap();
            } else {
                sys::send_without_checksum(&socket).unwrap();
            }
            (socket, has_checksums)
        })
        .collect();
    let target = SocketAddr::new(to.address, VXLAN_PORT);
    let whole = || pair.stat()[1].count(&Shape::device(NET), "gso", "trains_whole");

    // Another device of the host, with another port, is none for this port.
    let line = "link add vx9 type vxlan id 9 dstport 8472 dev lo local 127.0.0.1";
    if to.host.run("ip", &line.split(' ').collect::<Vec<_>>()).is_err() {
        return skip(name, "this kernel has no VXLAN");
    }
    ip(to.host, "link set vx9 up");
    let plain = traffic::socket_on(to, VXLAN_PORT);
    let before = whole();
    for (number, (socket, has_checksums)) in sources.iter().enumerate() {
        if number == SOURCES {
            assert_eq!(whole(), before, "joined although no device has the port");
        }
        send(socket, *has_checksums, &all, target);
        receive(&plain, &all).unwrap_or_else(|error| panic!("no device has the port: {error}"));
    }
    drop(plain);

    if !takes_tunnels(name, &pair) || !add_vxlan(name, to.host, Peer::B, V4, ZERO) {
        return;
    }
    for (socket, _) in sources.iter().filter(|(_, has_checksums)| !has_checksums) {
        let before = whole();
        until("the device that was added is not noticed", || {
            send(socket, false, &all, target);
            (whole() > before).then_some(())
        });
    }

    ip(to.host, &format!("link del {VXLAN}"));
    let once = |socket: &UdpSocket, has_checksums: bool| {
        let plain = traffic::inside(to.host, || UdpSocket::bind(target)).ok()?;
        plain.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        send(socket, has_checksums, &all, target);
        receive(&plain, &all).ok()
    };
    for (socket, has_checksums) in &sources {
        until("the device that was removed is not noticed", || once(socket, *has_checksums));
    }
    let plain = traffic::socket_on(to, VXLAN_PORT);
    for (socket, has_checksums) in &sources {
        send(socket, *has_checksums, &all, target);
        receive(&plain, &all).unwrap_or_else(|error| panic!("the device is gone: {error}"));
    }
}

#[test]
fn a_plain_socket_on_the_port_of_vxlan_receives_each_datagram_by_itself() {
    only_devices_get_trains(test_name!(), &[]);
}

#[test]
fn with_two_workers_too_only_a_tunnel_device_receives_trains() {
    only_devices_get_trains(test_name!(), WORKERS);
}
