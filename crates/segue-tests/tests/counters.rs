//! Tests with datagrams that a tunnel must refuse: none is delivered, each is counted under its reason, and the tunnel
//! continues to work.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use segue_lab::Family::{V4, V6};
use segue_lab::{Family, LinkForm, Peer};
use segue_tests::Carrier::{Fou, Gue, GueRemcsum};
use segue_tests::Inside::{Gre, GreKeyCsum, Ipip, Sit};
use segue_tests::wire::{self, Primed};
use segue_tests::{Ground, Pair, Random, Shape, Stat, skip, sys, test_name, traffic};

const NET: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(60);
const PAYLOAD: &[u8] = b"a payload of an odd length, 39 bytes in";
/// ECN: congestion experienced (RFC 3168).
const CE: u8 = 3;

/// A tunnel between A and B, a socket at A that sends to the outer port of B, and one at B that receives the
/// decapsulated datagrams.
struct Bench<'a> {
    ground: &'a Ground,
    pair: Pair<'a>,
    speaker: UdpSocket,
    receiver: UdpSocket,
    source: SocketAddr,
}

impl<'a> Bench<'a> {
    fn new(ground: &'a Ground, shape: Shape) -> Bench<'a> {
        let pair = Pair::start(ground, shape, NET);
        let family = shape.inside.families()[0];
        let receiver = traffic::socket(pair.place(Peer::B, family));
        let source = SocketAddr::new(Peer::A.address(NET, family), 4000);
        let speaker = speaker(ground, Peer::A.address(0, shape.outer), shape);
        Bench { ground, pair, speaker, receiver, source }
    }

    /// Builds an inner packet to the receiving socket.
    fn inner(&self, primed: bool) -> Primed {
        let (from, to) = ((self.source.ip(), self.source.port()), self.receiver.local_addr().unwrap());
        wire::udp_packet(from, (to.ip(), to.port()), PAYLOAD, 0, primed)
    }

    /// Returns the IP protocol number of the inner packet.
    fn protocol(&self) -> u8 {
        if self.source.is_ipv4() { 4 } else { 41 }
    }

    fn stat(&self) -> Stat {
        Stat::read(&self.ground.b, &self.ground.program, &Shape::device(NET))
    }

    #[track_caller]
    fn delivered(&self, what: &str, datagram: &[u8]) {
        self.speaker.send(datagram).unwrap();
        let mut buffer = [0; 2048];
        let received = self.receiver.recv_from(&mut buffer);
        let (len, peer) = received.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", self.stat().drops()));
        assert_eq!((&buffer[..len], peer), (PAYLOAD, self.source), "{what}");
    }

    #[track_caller]
    fn refused(&self, what: &str, reason: &str, datagram: &[u8]) {
        self.refused_from(&self.speaker, what, reason, datagram);
    }

    #[track_caller]
    fn refused_from(&self, speaker: &UdpSocket, what: &str, reason: &str, datagram: &[u8]) {
        let before = self.stat();
        speaker.send(datagram).unwrap();
        let want = before.dropped(reason) + 1;
        let device = Shape::device(NET);
        let after = Stat::until(&self.ground.b, &self.ground.program, &device, PATIENCE, |stat| {
            stat.dropped(reason) >= want || stat.drops() != before.drops()
        });
        let mut expected = before.drops();
        expected.insert(reason.into(), want);
        assert_eq!(after.drops(), expected, "{what}");
        self.assert_nothing_received(what);
    }

    #[track_caller]
    fn assert_nothing_received(&self, what: &str) {
        self.receiver.set_nonblocking(true).unwrap();
        let received = self.receiver.recv_from(&mut [0; 2048]);
        self.receiver.set_nonblocking(false).unwrap();
        assert!(received.is_err(), "{what}: delivered {received:?}");
    }
}

fn speaker(ground: &Ground, from: IpAddr, shape: Shape) -> UdpSocket {
    let socket = traffic::inside(&ground.a, || UdpSocket::bind((from, 0))).unwrap();
    socket.connect((Peer::B.address(0, shape.outer), Shape::port(NET))).unwrap();
    socket
}

/// Builds a GUE datagram with the remote checksum option for a packet.
fn remcsum(protocol: u8, inner: &Primed) -> Vec<u8> {
    wire::gue_remcsum(protocol, inner.start, inner.offset, &inner.packet)
}

#[test]
fn a_remote_checksum_without_an_outer_one_is_dropped_and_counted_over_ipv4() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    for inside in [Ipip, Sit] {
        let bench = Bench::new(&ground, Shape::new(inside, GueRemcsum, V4));
        let datagram = remcsum(bench.protocol(), &bench.inner(true));
        bench.delivered("with an outer checksum", &datagram);
        let bare = speaker(&ground, Peer::A.address(0, V4), bench.pair.shape());
        sys::send_without_checksum(&bare).unwrap();
        bench.refused_from(&bare, "without an outer checksum", "remcsum_no_outer_csum", &datagram);
        // RFC 768 allows none where nothing depends on it, and Linux senders leave it out by default.
        let plain = wire::gue([0, bench.protocol(), 0, 0], &[], &bench.inner(false).packet);
        bare.send(&plain).unwrap();
        let (len, _) = bench.receiver.recv_from(&mut [0; 2048]).expect("delivered without the option");
        assert_eq!(len, PAYLOAD.len());
        bench.delivered("and again with an outer checksum", &datagram);
    }
}

#[test]
fn a_remote_checksum_without_an_outer_one_is_dropped_over_ipv6() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    // The kernel itself discards zero checksums over IPv6 for sockets that did not ask for them (RFC 8200, section
    // 8.1).
    let bench = Bench::new(&ground, Shape::new(Ipip, GueRemcsum, V6));
    let datagram = remcsum(4, &bench.inner(true));
    bench.delivered("with an outer checksum", &datagram);
    let bare = speaker(&ground, Peer::A.address(0, V6), bench.pair.shape());
    sys::send_without_checksum(&bare).unwrap();
    for _ in 0..20 {
        bare.send(&datagram).unwrap();
    }
    bench.delivered("what comes behind", &datagram);
    bench.assert_nothing_received("without an outer checksum");
    assert_eq!(bench.stat().drops(), [("outer_csum".to_owned(), 20)].into());
    drop(bench);

    // A tunnel that allows them leaves the judgement to segue.
    let allowing = Shape { extra: &["noencap-csum"], ..Shape::new(Ipip, Gue, V6) };
    let bench = Bench::new(&ground, allowing);
    bench.delivered("with an outer checksum", &remcsum(4, &bench.inner(true)));
    bench.refused_from(&bare, "without an outer checksum", "remcsum_no_outer_csum", &remcsum(4, &bench.inner(true)));
    bare.send(&wire::gue([0, 4, 0, 0], &[], &bench.inner(false).packet)).unwrap();
    assert_eq!(bench.receiver.recv_from(&mut [0; 2048]).expect("delivered without the option").0, PAYLOAD.len());
}

#[test]
fn gue_headers_that_are_not_understood_are_counted_under_their_reasons() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let bench = Bench::new(&ground, Shape::new(Ipip, GueRemcsum, V4));
    let packet = bench.inner(false).packet;
    let with = |first: [u8; 4], words: &[u32]| wire::gue(first, words, &packet);
    bench.delivered("version 0", &with([0, 4, 0, 0], &[]));
    bench.delivered("version 1, which is the packet itself", &packet);
    bench.delivered("more words than the flags need", &with([3, 4, 0, 0], &[1, 2, 3]));
    for (what, reason, datagram) in [
        ("an unknown flag", "gue_flags", with([0, 4, 0x80, 0], &[])),
        ("the remote checksum flag of the IETF's drafts", "gue_flags", with([1, 4, 2, 0], &[0x0014_001a])),
        ("an unknown private flag", "gue_flags", with([1, 4, 0, 1], &[0x4000_0000])),
        ("a control message", "gue_control", with([0x20, 1, 0, 0], &[])),
        ("version 2", "gue_version", with([0x80, 4, 0, 0], &[])),
        ("version 3", "gue_version", with([0xc0, 4, 0, 0], &[])),
        ("version 1 with IP version 5", "gue_version", [&[0x55], &packet[1..]].concat()),
        ("private flags announced, no word there", "gue_header_len", with([0, 4, 0, 1], &[])),
        ("a remote checksum announced, no word there", "gue_header_len", with([1, 4, 0, 1], &[0x8000_0000])),
        ("three bytes", "gue_truncated", vec![0, 4, 0]),
        ("a header longer than the datagram", "gue_truncated", vec![0x1f, 4, 0, 0, 0, 0, 0, 0]),
        ("GRE in a tunnel of IPv4", "inner_protocol", with([0, 47, 0, 0], &[])),
        ("no payload", "inner_malformed", vec![0, 4, 0, 0]),
        ("a payload cut off", "inner_malformed", with([0, 4, 0, 0], &[])[..40].to_vec()),
        ("IPv4 announced, version 6 there", "inner_version", {
            let inner =
                wire::udp_packet((Peer::A.address(NET, V6), 1), (Peer::B.address(NET, V6), 2), PAYLOAD, 0, false);
            wire::gue([0, 4, 0, 0], &[], &inner.packet)
        }),
        ("nothing at all", "empty", Vec::new()),
    ] {
        bench.refused(what, reason, &datagram);
    }
    bench.delivered("after all that", &with([0, 4, 0, 0], &[]));
}

#[test]
fn remote_checksums_that_are_not_a_checksum_field_of_the_packet_are_counted_under_their_reasons() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    for (inside, family) in [(Ipip, V4), (Sit, V6)] {
        let bench = Bench::new(&ground, Shape::new(inside, GueRemcsum, V4));
        let Primed { packet, start, offset } = bench.inner(true);
        let with = |start, offset| wire::gue_remcsum(bench.protocol(), start, offset, &packet);
        let len = packet.len() as u16;
        assert!(len % 2 == 1 && start.is_multiple_of(2), "distances below are meant to be even");
        bench.delivered("the right field", &with(start, offset));
        for (what, reason, datagram) in [
            ("a field before the start", "remcsum_order", with(offset + 2, offset)),
            ("a field at an odd distance", "remcsum_order", with(start, offset + 1)),
            ("a field past the end", "remcsum_bounds", with(start, len + 1)),
            ("a field half past the end", "remcsum_bounds", with(start, len - 1)),
            ("a start past the end", "remcsum_bounds", with(len + 20, len + 26)),
            ("another field of UDP", "remcsum_field", with(start, start)),
            ("a field in the payload", "remcsum_field", with(start, start + 16)),
            ("a start inside of the IP header", "remcsum_field", with(start - 2, offset)),
            ("a start behind the UDP header", "remcsum_field", with(start + 8, start + 14)),
            ("a checksum that is complete already", "remcsum_primed", remcsum(bench.protocol(), &bench.inner(false))),
        ] {
            bench.refused(&format!("IPv{family}: {what}"), reason, &datagram);
        }
        bench.delivered("after all that", &with(start, offset));
    }
}

#[test]
fn a_stranger_a_martian_and_lost_congestion_marks_are_counted_under_their_reasons() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    for outer in [V4, V6] {
        let shape = Shape::new(Ipip, GueRemcsum, outer);
        let bench = Bench::new(&ground, shape);
        let datagram = remcsum(4, &bench.inner(true));
        let other = match outer {
            Family::V4 => "198.18.0.77/24",
            Family::V6 => "2001:db8::77/64",
        };
        let words = ["addr", "add", other, "dev", segue_lab::DEVICE, "nodad"];
        ground.a.run("ip", &words[..if outer == V4 { 5 } else { 6 }]).unwrap();
        let address: IpAddr = other.split_once('/').unwrap().0.parse().unwrap();
        let stranger = speaker(&ground, address, shape);
        bench.refused_from(&stranger, "another peer", "unknown_peer", &datagram);

        let (to, port) = (bench.receiver.local_addr().unwrap().ip(), bench.receiver.local_addr().unwrap().port());
        for martian in ["127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            let inner = wire::udp_packet((martian.parse().unwrap(), 4000), (to, port), PAYLOAD, 0, false);
            let datagram = wire::gue([0, 4, 0, 0], &[], &inner.packet);
            bench.refused(&format!("from {martian}"), "inner_source", &datagram);
        }

        // RFC 6040, section 4.2: congestion that the inner packet cannot be told about.
        let marked = speaker(&ground, Peer::A.address(0, outer), shape);
        sys::set_tos(&marked, CE).unwrap();
        bench.refused_from(&marked, "CE outside, not ECN-capable inside", "ecn", &datagram);
        let (from, to) = ((bench.source.ip(), bench.source.port()), (to, port));
        let capable = wire::udp_packet(from, to, PAYLOAD, 2, true);
        marked.send(&remcsum(4, &capable)).unwrap();
        assert_eq!(bench.receiver.recv_from(&mut [0; 2048]).expect("CE on ECT(0) passes").0, PAYLOAD.len());
        bench.delivered("after all that", &datagram);
    }
}

#[test]
fn gre_headers_of_another_tunnel_are_counted_under_their_reasons() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let key: u32 = 3_735_928_559;
    let bench = Bench::new(&ground, Shape::new(GreKeyCsum, Gue, V4));
    let packet = bench.inner(false).packet;
    let with = |header: Vec<u8>| wire::gue([0, 47, 0, 0], &[], &[header, packet.clone()].concat());
    let keyed = |key: u32, damage: u16| {
        let mut gre = [&[0xa0, 0, 8, 0, 0, 0, 0, 0][..], &key.to_be_bytes()].concat();
        let checksum = !wire::sum(&[&gre[..], &packet].concat()) ^ damage;
        gre[4..6].copy_from_slice(&checksum.to_be_bytes());
        gre
    };
    bench.delivered("key and checksum", &with(keyed(key, 0)));
    for (what, reason, header) in [
        ("another key", "gre_mismatch", keyed(key ^ 1, 0)),
        ("no key", "gre_mismatch", vec![0x80, 0, 8, 0, 0, 0, 0, 0]),
        ("no checksum", "gre_mismatch", [&[0x20, 0, 8, 0][..], &key.to_be_bytes()].concat()),
        ("a wrong checksum", "gre_csum", keyed(key, 0x0100)),
        ("routing", "gre_malformed", vec![0x40, 0, 8, 0]),
        ("version 1", "gre_malformed", vec![0, 1, 8, 0]),
    ] {
        bench.refused(what, reason, &with(header));
    }
    bench.refused("IPv4 without GRE", "inner_protocol", &wire::gue([0, 4, 0, 0], &[], &packet));
    bench.delivered("after all that", &with(keyed(key, 0)));
    drop(bench);

    let bench = Bench::new(&ground, Shape::new(Ipip, Fou, V4));
    bench.delivered("FOU", &bench.inner(false).packet);
    let six = wire::udp_packet((Peer::A.address(NET, V6), 1), (Peer::B.address(NET, V6), 2), PAYLOAD, 0, false);
    bench.refused("IPv6 in FOU of IPv4", "inner_version", &six.packet);
}

#[test]
fn the_drops_of_an_instance_are_the_sum_over_all_reasons_and_ports() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let shape = Shape::new(Sit, GueRemcsum, V6);
    let bench = Bench::new(&ground, shape);
    let packet = bench.inner(false).packet;
    let good = wire::gue([0, 41, 0, 0], &[], &packet);
    // IPv4 in a tunnel of IPv6 is refused under one name on both sides.
    let device = Shape::device(NET);
    ground.b.run("ip", &["route", "add", "203.0.113.0/24", "dev", &device]).unwrap();
    let local = traffic::inside(&ground.b, || UdpSocket::bind("0.0.0.0:0")).unwrap();
    let four = wire::udp_packet((Peer::A.address(NET, V4), 1), (Peer::B.address(NET, V4), 2), PAYLOAD, 0, false);
    // The kernel drops and counts these.
    let bare = speaker(&ground, Peer::A.address(0, V6), shape);
    sys::send_without_checksum(&bare).unwrap();

    let total = |stat: &Stat| stat.json()["drops"].as_u64().expect("a total");
    let counted = |stat: &Stat| {
        let mut counted: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (port, counters) in stat.json()["ports"].as_object().expect("ports") {
            for (reason, count) in counters["drops"].as_object().expect("reasons") {
                counted.insert((port.clone(), reason.clone()), count.as_u64().expect("a count"));
            }
        }
        counted.retain(|_, count| *count > 0);
        counted
    };
    let before = bench.stat();
    let mut expected = counted(&before);
    for (speaker, reason, count, datagram) in [
        (&bench.speaker, "gue_version", 2, wire::gue([0x80, 41, 0, 0], &[], &packet)),
        (&bench.speaker, "gue_flags", 3, wire::gue([0, 41, 0x80, 0], &[], &packet)),
        (&bench.speaker, "inner_version", 5, wire::gue([0, 41, 0, 0], &[], &four.packet)),
        (&bare, "outer_csum", 4, good.clone()),
    ] {
        for _ in 0..count {
            speaker.send(&datagram).unwrap();
        }
        // What is delivered is no drop.
        bench.delivered(reason, &good);
        *expected.entry(("udp".to_owned(), reason.to_owned())).or_default() += count;
    }
    for _ in 0..7 {
        local.send_to(PAYLOAD, "203.0.113.1:9").unwrap();
    }
    *expected.entry((device.clone(), "inner_version".to_owned())).or_default() += 7;

    let all = total(&before) + 2 + 3 + 5 + 4 + 7;
    let after = Stat::until(&ground.b, &ground.program, &device, PATIENCE, |stat| total(stat) >= all);
    assert_eq!(counted(&after), expected);
    assert_eq!(total(&after), all, "{:?}", after.json()["ports"]);
    for (_, reason) in expected.keys() {
        let sentence = after.json()["reasons"]["drops"][reason].as_str();
        assert!(sentence.is_some_and(|sentence| sentence.ends_with('.')), "{reason}: {sentence:?}");
    }
}

#[test]
fn packets_for_which_the_interface_has_no_room_are_numbers_of_its_port_and_no_drops() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let bench = Bench::new(&ground, Shape::new(Ipip, GueRemcsum, V4));
    let device = Shape::device(NET);
    assert_eq!(bench.stat().count(&device, "numbers", "tx_dropped"), 0);
    ground.b.run("ip", &["route", "add", "203.0.113.0/24", "dev", &device]).unwrap();
    ground.b.run("ip", &["link", "set", &device, "txqueuelen", "1"]).unwrap();
    let local = traffic::inside(&ground.b, || UdpSocket::bind("0.0.0.0:0")).unwrap();
    let file = format!("/sys/class/net/{device}/statistics/tx_dropped");
    let by_kernel = || ground.b.run("cat", &[&file]).unwrap().trim().parse::<u64>().unwrap();
    let begin = Instant::now();
    while by_kernel() == 0 {
        if begin.elapsed() > PATIENCE {
            return skip(test_name!(), "the kernel holds senders back instead of dropping at a full queue");
        }
        for _ in 0..1000 {
            // An error says that the queue was full.
            let _ = local.send_to(PAYLOAD, "203.0.113.1:9");
        }
    }
    let after = bench.stat();
    assert_eq!(after.count(&device, "numbers", "tx_dropped"), by_kernel());
    assert!(!after.drops().contains_key("tx_dropped"), "{:?}", after.drops());
}

#[test]
fn garbage_neither_ends_a_tunnel_nor_gets_through() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    for shape in [Shape::new(Gre, GueRemcsum, V4), Shape::new(GreKeyCsum, GueRemcsum, V6), Shape::new(Sit, Fou, V4)] {
        let bench = Bench::new(&ground, shape);
        let mut random = Random::new(99);
        let inner = bench.inner(true);
        for number in 0..3000 {
            // A third is noise; the rest was right before some of its bits were flipped.
            let mut bytes = if number % 3 == 0 {
                let len = random.below(1400) as usize;
                random.bytes(len)
            } else {
                let ether_type: u16 = if bench.source.is_ipv4() { 0x0800 } else { 0x86dd };
                let gre = [&[0, 0][..], &ether_type.to_be_bytes(), &inner.packet].concat();
                wire::gue_remcsum(47, inner.start + 4, inner.offset + 4, &gre)
            };
            for _ in 0..random.below(6) {
                let most = if number % 3 == 1 { 40.min(bytes.len()) } else { bytes.len() };
                if most > 0 {
                    let place = random.below(most as u64) as usize;
                    bytes[place] ^= 1 << random.below(8);
                }
            }
            bytes.truncate(if number % 5 == 0 { random.below(60) as usize } else { bytes.len() });
            bench.speaker.send(&bytes).unwrap();
            if number % 64 == 63 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Nothing but the right payload may have come out, and nothing at all where the UDP header was another.
        bench.receiver.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2048];
        while let Ok((len, peer)) = bench.receiver.recv_from(&mut buffer) {
            assert!(peer.ip() == bench.source.ip() || len == PAYLOAD.len(), "{} bytes from {peer}", len);
        }
        let dropped: u64 = bench.stat().drops().values().sum();
        assert!(dropped > 1000, "only {dropped} refused of 3000");
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| bench.pair.place(end, *family));
            traffic::everything(a, b, traffic::SHORT, 3);
        }
    }
}
