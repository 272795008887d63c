//! `segue pcap split`, `decap` and `verify` against packets of which everything is known.

mod common;
#[path = "common/shapes.rs"]
mod shapes;

use std::fs;

use common::{Place, SEGUE};
use segue_capture::file::{Item, Reader, link};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::{Sender, corrupt};
use segue_testkit::fragment::reassemble;
use segue_testkit::oracle::{Ports, Start, verify};
use serde_json::Value;
use shapes::{Shape, capture, framed};

fn v4() -> Ip {
    Ip::V4(V4::new(1, 1, 2))
}

fn v6() -> Ip {
    Ip::V6(V6::new(1, 1, 2))
}

/// Writes packets to a file of a link type, runs `segue pcap ARGS IN OUT -j`, and gives the packets of OUT with the
/// link's header taken off, and the summary.
fn run(action: &str, packets: &[Vec<u8>], number: u16, more: &[&str]) -> (Vec<Vec<u8>>, Value) {
    let place = Place::new();
    let mut rng = Rng::new(1);
    let path = |name: &str| place.path().join(name).display().to_string();
    let shape = Shape { seed: 0, traffic: "", link: number, form: "ns_le" };
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| framed(number, packet, &mut rng)).collect();
    // Without the cut packets that shapes have.
    let file = loop {
        let file = capture(&shape, &frames, &mut rng);
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut whole = true;
        while let Some(item) = reader.next().unwrap() {
            whole &= matches!(item, Item::Packet(record) if !record.is_cut());
        }
        if whole {
            break file;
        }
    };
    fs::write(path("in.pcap"), file).unwrap();
    let args = ["pcap", action, &path("in.pcap"), &path("out.pcap"), "-j"];
    let output = common::command(SEGUE, &place).args(args).args(more).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let file = fs::read(path("out.pcap")).unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    let mut out = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            let data = record.data();
            let prefix = match record.link {
                link::ETHERNET if data[12] == 0x81 => 18,
                link::ETHERNET => 14,
                link::COOKED => 16,
                link::COOKED2 => 20,
                _ => 0,
            };
            out.push(data[prefix..].to_vec());
        }
    }
    (out, serde_json::from_slice(&output.stdout).unwrap())
}

/// One train: its payload in one packet, as a kernel hands it to a device.
fn train(ip: Ip, len: usize, flags: u8, options: Vec<u8>) -> Vec<u8> {
    let packet = Sender::tcp(ip, 3, 0xffff_f000, options).send(len, flags).bytes();
    build::prime(&packet).unwrap()
}

fn ports() -> Ports {
    segue_testkit::strategy::ports()
}

#[test]
fn a_train_becomes_the_packets_that_a_sender_would_have_sent() {
    for ip in [v4(), v6()] {
        for (len, flags) in [(1448 * 10, 0x08), (1448 * 3 + 1, 0x01), (60_000, 0x80), (1449, 0)] {
            let expected: Vec<Vec<u8>> = {
                let mut sender = Sender::tcp(ip.clone(), 3, 0xffff_f000, vec![1; 12]);
                let overhead = if ip.protocol() == 4 { 52 } else { 72 };
                sender.run(len, 1500 - overhead, 0).into_iter().map(|p| p.bytes()).collect()
            };
            for number in [link::ETHERNET, link::RAW, link::COOKED, link::COOKED2] {
                let (out, summary) = run("split", &[train(ip.clone(), len, flags, vec![1; 12])], number, &[]);
                assert_eq!(out.len(), expected.len());
                assert_eq!(summary["trains_cut"], 1);
                for (n, (ours, theirs)) in out.iter().zip(&expected).enumerate() {
                    // Payload bytes come from one generator, drawn in different portions: the train's are the truth.
                    let report = verify(ours, Start::Ip, &ports()).unwrap();
                    assert_eq!(ours.len().max(46), theirs.len().max(46));
                    let transport = report.transport.unwrap();
                    let seq =
                        0xffff_f000_u32.wrapping_add((n * (1500 - if ip.protocol() == 4 { 52 } else { 72 })) as u32);
                    assert_eq!(transport.seq, seq);
                    let last = n + 1 == out.len();
                    let mut wanted = 0x10;
                    wanted |= if last { flags & 0x09 } else { 0 };
                    wanted |= if n == 0 { flags & 0x80 } else { 0 };
                    assert_eq!(transport.flags, wanted, "segment {n} of {}", out.len());
                }
            }
        }
    }
}

#[test]
fn payload_is_kept_in_order_whatever_the_size() {
    let whole = train(v4(), 20_000, 0, vec![]);
    for (more, size) in [
        (&["--mss", "1000"][..], 1000),
        (&["--mtu", "1500"], 1460),
        (&["--mtu", "576"], 536),
        (&["--mtu", "9000"], 8960),
        (&[], 1460),
    ] {
        let (out, _) = run("split", std::slice::from_ref(&whole), link::ETHERNET, more);
        assert_eq!(out.len(), 20_000_usize.div_ceil(size), "{more:?}");
        let payload: Vec<u8> = out.iter().flat_map(|p| p[40..].to_vec()).collect();
        assert!(payload == whole[40..], "{more:?}");
        for packet in &out {
            verify(packet, Start::Ip, &ports()).unwrap();
        }
    }
}

#[test]
fn a_length_of_zero_is_the_length_of_the_frame_also_above_64_kib() {
    for ip in [v4(), v6()] {
        for len in [3000, 60_000, 180_000] {
            let mut whole = Sender::tcp(ip.clone(), 3, 1, vec![]).send(len.min(60_000), 8).bytes();
            whole.extend(Rng::new(9).bytes(len - len.min(60_000)));
            let is_v4 = ip.protocol() == 4;
            whole[if is_v4 { 2..4 } else { 4..6 }].fill(0);
            let head = if is_v4 { 40 } else { 60 };
            let mut forms = vec![whole.clone()];
            if !is_v4 {
                // With the option of RFC 2675.
                let option = [&[6, 0, 0xc2, 4][..], &((whole.len() - 40 + 8) as u32).to_be_bytes()].concat();
                let mut jumbo = whole.clone();
                jumbo.splice(40..40, option);
                jumbo[6] = 0;
                forms.push(jumbo);
            }
            for form in forms {
                let (out, _) = run("split", &[form], link::ETHERNET, &["--fix-checksums", "all"]);
                let payload: Vec<u8> = out.iter().flat_map(|p| p[head..].to_vec()).collect();
                assert!(payload == whole[head..], "{len} bytes");
                for packet in &out {
                    assert!(packet.len() <= 1500);
                    verify(packet, Start::Ip, &ports()).unwrap();
                }
            }
        }
    }
}

#[test]
fn the_mss_of_a_connection_decides_where_it_was_seen() {
    let mut jumbo = Sender::tcp(v4(), 3, 1, vec![2, 4, 0x23, 0]);
    let syn = jumbo.send(0, 0x02).bytes();
    let mut packets = vec![syn];
    let mut data = Sender::tcp(v4(), 3, 2, vec![]);
    packets.push(data.send(8960, 0).bytes());
    packets.push(build::prime(&data.send(26_880, 0).bytes()).unwrap());
    let (out, summary) = run("split", &packets, link::ETHERNET, &[]);
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [46, 9000, 9000, 9000, 9000], "the first is padded");
    assert_eq!((summary["trains_cut"].as_u64(), summary["unchanged"].as_u64()), (Some(1), Some(2)));
}

#[test]
fn wrong_checksums_stay_wrong_in_every_piece_and_unfinished_ones_are_finished() {
    let mut rng = Rng::new(4);
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(700, 0).bytes();
    let unfinished = build::prime(&good).unwrap();
    let mut bad = good.clone();
    assert!(corrupt(&mut rng, &mut bad));
    let mut bad_train = Sender::tcp(v6(), 4, 1, vec![]).send(10_000, 0).bytes();
    assert!(corrupt(&mut rng, &mut bad_train));
    let mut header = good.clone();
    header[10] ^= 1;
    let packets = [good.clone(), unfinished, bad.clone(), bad_train, header.clone()];

    let (out, summary) = run("split", &packets, link::ETHERNET, &[]);
    assert_eq!((&out[0], &out[1], &out[2]), (&good, &good, &bad));
    assert_eq!(out.last(), Some(&header));
    assert_eq!(out[3..out.len() - 1].len(), 7);
    for piece in &out[3..out.len() - 1] {
        let error = verify(piece, Start::Ip, &ports()).unwrap_err();
        assert!(error.contains("checksum"), "{error}");
    }
    let counts = (summary["bad_left"].as_u64(), summary["checksums_finished"].as_u64());
    assert_eq!(counts, (Some(3), Some(1)));

    let (out, summary) = run("split", &packets, link::ETHERNET, &["--fix-checksums", "all"]);
    for packet in &out {
        verify(packet, Start::Ip, &ports()).unwrap();
    }
    assert_eq!((summary["bad_left"].as_u64(), summary["checksums_fixed"].as_u64()), (Some(0), Some(3)));
}

/// Fragments of 198.18.1.1 -> 198.18.1.2 or its IPv6 kin in the order in which they came, put together.
fn together(out: &[Vec<u8>], inside: usize) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = out.iter().map(|packet| packet[inside..].to_vec()).collect();
    reassemble(&parts).unwrap()
}

#[test]
fn datagrams_longer_than_the_mtu_become_fragments_unless_they_forbid_it() {
    let free = Ip::V4(V4 { df: false, id: 7, ..V4::new(1, 1, 2) });
    for ip in [free.clone(), v6()] {
        let whole = Sender::udp(ip.clone(), 1).send(9000, 0).bytes();
        for sent in [whole.clone(), build::prime(&whole).unwrap()] {
            for number in [link::ETHERNET, link::COOKED, link::RAW] {
                let (out, summary) = run("split", std::slice::from_ref(&sent), number, &["--mtu", "1400"]);
                assert!(out.len() > 6 && summary["packets_fragmented"].as_u64() == Some(1));
                assert!(out.iter().all(|packet| packet.len() <= 1400));
                assert_eq!(together(&out, 0), whole);
            }
        }
        // In a tunnel with checksums the fragments are inside.
        let udp = Udp { src_port: 50_001, dst_port: 6080, checksum: true };
        let gre = Some(Gre { checksum: true, ..Gre::default() });
        for shim in [Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
            let tunnel = Tunnel { ip: v6(), udp: Some((udp, shim)), gre, ethernet: None };
            let tunnelled = tunnel.wrap(&whole);
            let (out, summary) = run("split", std::slice::from_ref(&tunnelled), link::ETHERNET, &["--mtu", "1400"]);
            assert!(out.len() > 6 && summary["packets_fragmented"].as_u64() == Some(1));
            for packet in &out {
                verify(packet, Start::Ip, &ports()).unwrap();
            }
            assert_eq!(together(&out, tunnelled.len() - whole.len()), whole);
            // Nobody makes a wrong outer checksum right.
            let mut bad = tunnelled.clone();
            bad[46] ^= 1;
            let (out, summary) = run("split", std::slice::from_ref(&bad), link::ETHERNET, &["--mtu", "1400"]);
            assert_eq!((&out[0], out.len()), (&bad, 1));
            assert_eq!(summary["left_as_they_are"]["gso_outer_unknown"].as_u64(), Some(1));
        }
    }
    let fixed = Sender::udp(v4(), 1).send(9000, 0).bytes();
    let (out, summary) = run("split", std::slice::from_ref(&fixed), link::ETHERNET, &["--mtu", "1400"]);
    assert_eq!(out, [fixed]);
    assert_eq!(summary["left_as_they_are"]["gso_dont_fragment"].as_u64(), Some(1));
    // A wrong checksum is as wrong when the fragments are together.
    let mut bad = Sender::udp(free, 1).send(9000, 0).bytes();
    bad[5000] ^= 1;
    let (out, summary) = run("split", std::slice::from_ref(&bad), link::ETHERNET, &["--mtu", "1400"]);
    assert_eq!((together(&out, 0), summary["bad_left"].as_u64()), (bad, Some(1)));
}

#[test]
fn udp_trains_are_cut_only_where_the_size_is_said() {
    let whole = build::prime(&Sender::udp(v4(), 1).send(12_000, 0).bytes()).unwrap();
    let (out, summary) = run("split", std::slice::from_ref(&whole), link::ETHERNET, &[]);
    assert_eq!((out.len(), summary["udp_of_unknown_size"].as_u64()), (1, Some(1)));
    verify(&out[0], Start::Ip, &ports()).unwrap();
    let (out, _) = run("split", std::slice::from_ref(&whole), link::ETHERNET, &["--mss", "1200"]);
    assert_eq!(out.len(), 10);
    assert!(out.iter().flat_map(|p| p[28..].to_vec()).collect::<Vec<_>>() == whole[28..]);
    for packet in &out {
        verify(packet, Start::Ip, &ports()).unwrap();
    }
}

fn tunnels() -> Vec<(&'static str, Tunnel)> {
    let udp = |port: u16, checksum: bool| Udp { src_port: 50_001, dst_port: port, checksum };
    let make = |ip: Ip, udp: Option<(Udp, Shim)>, gre: Option<Gre>| Tunnel { ip, udp, gre, ethernet: None };
    let bridge = |tunnel: Tunnel| Tunnel { ethernet: Some(Ethernet::default()), ..tunnel };
    let outer4 = Ip::V4(V4::new(9, 1, 2));
    let outer6 = Ip::V6(V6::new(9, 1, 2));
    let gre = |checksum, key, seq| Some(Gre { checksum, key, seq });
    vec![
        ("ip", make(outer4.clone(), None, None)),
        ("ip over 6", make(outer6.clone(), None, None)),
        ("gre", make(outer4.clone(), None, gre(false, None, None))),
        ("gre full", make(outer6.clone(), None, gre(true, Some(9), Some(4)))),
        ("gue", make(outer4.clone(), Some((udp(6080, true), Shim::Gue(None))), None)),
        ("gue bare", make(outer6.clone(), Some((udp(6080, true), Shim::GueBare)), None)),
        ("gue without checksum", make(outer4.clone(), Some((udp(6080, false), Shim::Gue(None))), None)),
        ("gue remcsum", make(outer4.clone(), Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))), None)),
        (
            "gue gre remcsum",
            make(
                outer6.clone(),
                Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))),
                gre(false, Some(2), None),
            ),
        ),
        (
            "gue gre csum remcsum",
            make(outer4.clone(), Some((udp(6080, true), Shim::Gue(Some(Remcsum::Transport)))), gre(true, None, None)),
        ),
        ("fou gre", make(outer4.clone(), Some((udp(5557, true), Shim::Fou)), gre(true, None, None))),
        ("fou ethernet", bridge(make(outer6.clone(), Some((udp(5558, true), Shim::Fou)), None))),
        ("gretap", bridge(make(outer4.clone(), None, gre(true, Some(2), None)))),
        ("vxlan", bridge(make(outer4.clone(), Some((udp(4789, true), Shim::Vxlan(42, false))), None))),
        ("vxlan as Linux has it", bridge(make(outer4.clone(), Some((udp(8472, false), Shim::Vxlan(42, false))), None))),
        ("vxlan remcsum", bridge(make(outer6.clone(), Some((udp(4789, true), Shim::Vxlan(42, true))), None))),
        ("geneve", bridge(make(outer6, Some((udp(6081, true), Shim::Geneve(42, 3))), None))),
        ("geneve with ip", make(outer4, Some((udp(6081, true), Shim::Geneve(42, 0))), None)),
    ]
}

const FOU: [&str; 8] = ["--fou", "5555:ipip", "--fou", "5556:sit", "--fou", "5557:gre", "--fou", "5558:eth"];

#[test]
fn every_tunnel_comes_off_and_leaves_the_packet_that_was_put_in() {
    let mut rng = Rng::new(6);
    for (name, tunnel) in tunnels() {
        let mut inner = Vec::new();
        for ip in [v4(), v6()] {
            inner.push(Sender::tcp(ip.clone(), 1, 1, vec![1; 12]).send(701, 8).bytes());
            inner.push(Sender::udp(ip.clone(), 2).send(33, 0).bytes());
            let mut ping = Sender::udp(ip.clone(), 2).send(40, 0);
            ping.l4 = L4::Icmp(if ip.protocol() == 4 { 8 } else { 128 }, 0, [0, 1, 0, 2]);
            inner.push(ping.bytes());
        }
        let outer: Vec<Vec<u8>> = inner.iter().map(|packet| tunnel.wrap(packet)).collect();
        for number in [link::ETHERNET, link::RAW, link::COOKED, link::COOKED2] {
            let (out, summary) = run("decap", &outer, number, &FOU);
            let unpadded: Vec<&[u8]> = out.iter().zip(&inner).map(|(o, i)| &o[..i.len().min(o.len())]).collect();
            assert!(unpadded == inner, "{name} over {number}");
            assert_eq!(summary["decapsulated"], inner.len(), "{name}");
        }
        // A tunnel in a tunnel loses one layer a time.
        let twice: Vec<Vec<u8>> = outer.iter().map(|packet| tunnels()[2].1.wrap(packet)).collect();
        let (out, _) = run("decap", &twice, link::RAW, &FOU);
        assert!(out == outer, "{name}");
        // Damage outside keeps a packet in its tunnel.
        let mut bad = outer.clone();
        let before = bad.clone();
        let mut kept = 0;
        for packet in &mut bad {
            if corrupt_outer(&mut rng, packet) {
                kept += 1;
            }
        }
        let (out, summary) = run("decap", &bad, link::RAW, &[&FOU[..], &["--only-tunnelled"]].concat());
        assert_eq!(out.len() as u64 + summary["dropped"].as_u64().unwrap(), before.len() as u64);
        assert_eq!(summary["dropped"], kept, "{name} {summary}");
    }
}

/// Flips a bit of the outer IPv4 header that its checksum covers; `false` for IPv6.
fn corrupt_outer(rng: &mut Rng, packet: &mut [u8]) -> bool {
    if packet[0] >> 4 != 4 {
        return false;
    }
    packet[8] ^= 1 << rng.below(7);
    true
}

#[test]
fn a_remote_checksum_without_a_right_outer_one_is_not_believed() {
    let (_, tunnel) = tunnels().remove(7);
    let inner = Sender::tcp(v4(), 1, 1, vec![]).send(100, 0).bytes();
    let good = tunnel.wrap(&inner);
    let mut damaged = good.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 0x40;
    let mut absent = good.clone();
    absent[26..28].fill(0);
    let (out, summary) = run("decap", &[good, damaged.clone(), absent.clone()], link::RAW, &[]);
    assert!(out == [inner, damaged, absent]);
    assert_eq!(summary["left_in_their_tunnel"]["outer_csum"], 1);
    assert_eq!(summary["left_in_their_tunnel"]["remcsum_no_outer_csum"], 1);
}

#[test]
fn frames_inside_of_gre_come_out_as_frames() {
    let inner = Sender::tcp(v6(), 1, 1, vec![]).send(300, 0).bytes();
    let ethernet = Ethernet { dst: [2, 0, 0, 0, 9, 1], src: [2, 0, 0, 0, 9, 2], tags: vec![] };
    let tunnel =
        Tunnel { ip: Ip::V4(V4::new(9, 1, 2)), udp: None, gre: Some(Gre::default()), ethernet: Some(ethernet.clone()) };
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let mut rng = Rng::new(1);
    let shape = Shape { seed: 0, traffic: "", link: link::ETHERNET, form: "us_be" };
    let frames = [framed(link::ETHERNET, &tunnel.wrap(&inner), &mut rng)];
    fs::write(path("in.pcap"), capture(&shape, &frames, &mut Rng::new(1))).unwrap();
    let output =
        common::command(SEGUE, &place).args(["pcap", "decap", &path("in.pcap"), &path("out.pcap")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let file = fs::read(path("out.pcap")).unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    let Some(Item::Packet(record)) = reader.next().unwrap() else { panic!("no packet") };
    assert_eq!(record.data(), ethernet.wrap(&inner));
}

#[test]
fn verify_finds_each_kind_by_layer() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(700, 0).bytes();
    let mut bad_tcp = good.clone();
    bad_tcp[200] ^= 1;
    let mut bad_ip = good.clone();
    bad_ip[8] ^= 1;
    let absent =
        build::Packet { ip: v4(), l4: L4::Udp(Udp { src_port: 5, dst_port: 6, checksum: false }), data: vec![1; 9] };
    let (_, gue) = tunnels().remove(7);
    let mut bad_outer = gue.wrap(&good);
    bad_outer[26] ^= 1;
    let packets = [
        good.clone(),
        bad_tcp,
        bad_ip,
        absent.bytes(),
        build::prime(&good).unwrap(),
        gue.wrap(&good),
        bad_outer,
        train(v6(), 3000, 0, vec![]),
    ];
    let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
    fs::write(path("in.pcap"), capture(&shape, &packets, &mut Rng::new(1))).unwrap();
    let run = |args: &[&str]| {
        let fixed = ["pcap", "verify", &path("in.pcap"), "--mtu", "1500"];
        let output = common::command(SEGUE, &place).args(fixed).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (stdout, stderr) = run(&[]);
    let starts: Vec<String> = stdout
        .lines()
        .map(|line| line.split(" checksum").next().unwrap().split(", ").next().unwrap().to_owned())
        .collect();
    assert_eq!(
        starts,
        [
            "packet 2  TCP",
            "packet 3  IPv4 header",
            "packet 5  TCP",
            "packet 7  outer UDP",
            "packet 8  TCP",
            "packet 8  3060 bytes of IP"
        ],
        "{stdout}"
    );
    assert!(
        stderr.starts_with("2 good, 3 bad, 2 unfinished, 0 cut, 1 without a checksum, 1 above the MTU\n"),
        "{stderr}"
    );
    let (stdout, stderr) = run(&["-j"]);
    assert_eq!(stderr, "");
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<&str> = lines[..8].iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["good", "bad", "bad", "absent", "unfinished", "good", "bad", "unfinished"]);
    let summary = &lines[8];
    assert_eq!(summary["schema"], "segue.pcap.verify/1");
    assert_eq!(summary["layers"]["tcp"]["remote"], 2);
    assert_eq!(summary["layers"]["outer_udp"], serde_json::json!({ "good": 1, "bad": 1 }));
}

/// A UDP datagram with a right checksum.
fn datagram(ip: Ip, port: u16, data: Vec<u8>) -> Vec<u8> {
    let l4 = L4::Udp(Udp { src_port: 40_000, dst_port: port, checksum: true });
    build::Packet { ip, l4, data }.bytes()
}

/// Frames that bridges carry and that hold no IP packet, or one that is damaged.
fn frames_without_ip() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(8);
    let mut frame =
        |kind: &[u8], len: usize| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], kind, &rng.bytes(len)[..]].concat();
    let mut long = frame(&[0x08, 0x00], 0);
    let inner = Sender::udp(v4(), 1).send(30, 0).bytes();
    long.extend(&inner);
    long[16..18].copy_from_slice(&900_u16.to_be_bytes());
    vec![
        frame(&[0x08, 0x06], 28),
        frame(&[0x88, 0xcc], 40),
        frame(&[0x00, 0x26], 38),
        frame(&[0x88, 0x47], 41),
        frame(&[0x81, 0x00, 0x00, 0x05, 0x08, 0x06], 28),
        frame(&[0x08, 0x00], 51),
        long,
        vec![1, 2, 3],
        Vec::new(),
    ]
}

#[test]
fn outer_checksums_are_finished_whatever_is_inside() {
    let headers: [(u16, &[u8]); 3] =
        [(4789, &[8, 0, 0, 0, 0, 0, 5, 0]), (8472, &[8, 0, 0, 0, 0, 0, 5, 0]), (6081, &[0, 0, 0x65, 0x58, 0, 0, 5, 0])];
    for ip in [v4(), v6()] {
        for (port, header) in headers {
            for inside in frames_without_ip() {
                let whole = datagram(ip.clone(), port, [header, &inside].concat());
                let sent = build::prime(&whole).unwrap();
                for more in [&[][..], &["--fix-checksums", "all"]] {
                    let (out, summary) = run("split", std::slice::from_ref(&sent), link::RAW, more);
                    assert!(out[0] == whole, "{port} {inside:02x?}: {summary}");
                    assert_eq!(
                        (summary["checksums_finished"].as_u64(), summary["unchanged"].as_u64()),
                        (Some(1), Some(0))
                    );
                }
            }
        }
    }
}

/// What is no tunnel, or none that is known, and goes to the port of one.
fn plain_on_tunnel_ports() -> Vec<(u16, Vec<u8>)> {
    let reply = [&[0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 7][..], b"example", &[3], b"com", &[0, 0, 1, 0, 1]];
    let reply = reply.concat();
    let mut all: Vec<(u16, Vec<u8>)> = [4789, 8472, 6080, 6081].map(|port| (port, reply.clone())).into();
    // Control messages of GUE and Geneve, GUE with ESP, flags that are not known, and what begins as version 1 of GUE does.
    all.push((6080, [&[0x20, 1, 0, 0][..], b"abcdefghijk"].concat()));
    all.push((6080, [&[0, 50, 0, 0][..], b"abcdefghijk"].concat()));
    all.push((6080, [&[0, 4, 0x7f, 0xff][..], b"abcdefghijk"].concat()));
    all.push((6080, b"hello".to_vec()));
    all.push((6081, [&[0, 0x80, 0x65, 0x58, 0, 0, 0, 0][..], &reply].concat()));
    all.push((4789, vec![0; 50]));
    all.push((4789, Vec::new()));
    all
}

#[test]
fn a_datagram_to_the_port_of_a_tunnel_that_is_none_is_a_datagram() {
    let place = Place::new();
    let path = place.path().join("in.pcap").display().to_string();
    let verify = |packet: &Vec<u8>| {
        let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
        fs::write(&path, capture(&shape, std::slice::from_ref(packet), &mut Rng::new(1))).unwrap();
        let output = common::command(SEGUE, &place).args(["pcap", "verify", &path, "-j"]).output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        let packet: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        (packet["verdict"].as_str().unwrap().to_owned(), output.status.code())
    };
    for ip in [v4(), v6()] {
        for (port, data) in plain_on_tunnel_ports() {
            let whole = datagram(ip.clone(), port, data.clone());
            assert_eq!(verify(&whole), ("good".to_owned(), Some(0)), "{port} {data:02x?}");
            let sent = build::prime(&whole).unwrap();
            assert_eq!(verify(&sent), ("unfinished".to_owned(), Some(0)), "{port} {data:02x?}");
            let (out, summary) = run("split", std::slice::from_ref(&sent), link::RAW, &[]);
            assert!(out[0] == whole, "{port} {data:02x?}: {summary}");
            assert_eq!(summary["checksums_finished"], 1);
            let mut bad = whole.clone();
            let at = if ip.protocol() == 4 { 20 } else { 40 };
            bad[at] ^= 0x40;
            assert_eq!(verify(&bad), ("bad".to_owned(), Some(1)), "{port} {data:02x?}");
        }
    }
}

#[test]
fn a_checksum_that_was_right_around_a_wrong_one_stays_right_when_that_is_mended() {
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(300, 0).bytes();
    let mut bad = good.clone();
    bad[36] ^= 1;
    // The second holds the checksum of what is inside as it stands, with a sum to be finished in it.
    for inner in [bad, build::prime(&good).unwrap()] {
        for (name, tunnel) in
            tunnels().into_iter().filter(|(name, _)| ["gre full", "gue", "vxlan", "geneve"].contains(name))
        {
            let (out, summary) = run("split", &[tunnel.wrap(&inner)], link::RAW, &["--fix-checksums", "all"]);
            assert!(out[0] == tunnel.wrap(&good), "{name}: {summary}");
            let written =
                summary["checksums_finished"].as_u64().unwrap() + summary["checksums_fixed"].as_u64().unwrap();
            assert!(written > 0, "{name}: {summary}");
        }
    }
}

#[test]
fn packets_of_which_only_the_ip_header_was_judged_are_counted_by_a_name_of_their_own() {
    let place = Place::new();
    let path = place.path().join("in.pcap").display().to_string();
    let tcp = Sender::tcp(v6(), 3, 1, vec![]).send(30, 0).bytes();
    // SCTP and IGMP; a fragment; GRE of PPTP (RFC 2637) with data and without, GRE with routing; and TCP, which is judged whole.
    let of = |protocol: u8| {
        let mut packet = tcp.clone();
        packet[6] = protocol;
        packet
    };
    let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
    let gre = |data: &[u8]| build::Packet { ip: v4(), l4: L4::Raw(47), data: data.to_vec() }.bytes();
    let packets = [
        of(132),
        of(2),
        of(44),
        gre(&[0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21]),
        gre(&[0x20, 0x81, 0x88, 0x0b, 0, 0, 0, 5, 0, 0, 0, 2]),
        gre(&[0x40, 0, 8, 0, 0, 0, 0, 0]),
        tcp.clone(),
    ];
    fs::write(&path, capture(&shape, &packets, &mut Rng::new(1))).unwrap();
    let run = |args: &[&str]| {
        let output = common::command(SEGUE, &place).args(["pcap"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (_, stderr) = run(&["verify", &path]);
    assert!(stderr.starts_with("1 good, 0 bad, 0 unfinished, 0 cut, 6 judged by their IP header only\n"), "{stderr}");
    let (stdout, _) = run(&["verify", &path, "-j"]);
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<&str> = lines[..7].iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, [&["ip_only"; 6][..], &["good"]].concat());
    assert_eq!((lines[7]["good"].as_u64(), lines[7]["ip_only"].as_u64()), (Some(1), Some(6)));
    let (stdout, _) = run(&["stat", &path, "-j"]);
    let stat: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(stat["checksums"], serde_json::json!({ "good": 1, "ip_only": 6 }));
}

#[test]
fn what_contradicts_itself_is_malformed_in_stat_as_in_verify() {
    let place = Place::new();
    let path = place.path().join("in.pcap").display().to_string();
    let udp = datagram(v4(), 7, vec![1; 50]);
    let mut long = udp.clone();
    long[24] = 1;
    let mut short = udp.clone();
    short[25] = 7;
    // Half a GRE header, half an IP header, and a version of IP that does not exist.
    let gre = build::Packet { ip: v4(), l4: L4::Raw(47), data: vec![0xb0, 0, 8, 0, 1, 2] }.bytes();
    let mut version = udp.clone();
    version[0] = 0x55;
    let packets = [long, short, gre, udp[..11].to_vec(), version, udp];
    let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
    fs::write(&path, capture(&shape, &packets, &mut Rng::new(1))).unwrap();
    let run = |args: &[&str]| {
        let output = common::command(SEGUE, &place).args(["pcap"]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, stdout) = run(&["verify", &path, "-j"]);
    let summary: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let counts = ["malformed", "good", "ip_only", "not_ip"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!((code, counts), (Some(1), [5, 1, 0, 0]), "{stdout}");
    let (code, stdout) = run(&["stat", &path, "-j"]);
    let stat: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &stat["checksums"]), (Some(0), &serde_json::json!({ "good": 1, "malformed": 5 })));
    assert_eq!((&stat["not_ip"], &stat["encap"]), (&serde_json::json!(0), &serde_json::json!({ "plain": 4 })));
    let (_, stdout) = run(&["stat", &path]);
    assert!(
        stdout.contains("  checksums   1 good, 0 unfinished, 0 bad, 0 absent\n              5 malformed\n"),
        "{stdout}"
    );
}

#[test]
fn a_checksum_made_in_expectation_of_a_finished_one_inside_is_good_in_any_tunnel() {
    let frame = frames_without_ip().remove(0);
    let middle = datagram(v4(), 4789, [&[8, 0, 0, 0, 0, 0, 5, 0][..], &frame].concat());
    let place = Place::new();
    let path = place.path().join("in.pcap").display().to_string();
    for (name, tunnel) in tunnels().into_iter().filter(|(name, _)| ["gre full", "gue", "geneve"].contains(name)) {
        let whole = tunnel.wrap(&middle);
        let mut sent = whole.clone();
        let at = whole.len() - middle.len();
        sent[at..].copy_from_slice(&build::prime(&middle).unwrap());
        let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
        fs::write(&path, capture(&shape, std::slice::from_ref(&sent), &mut Rng::new(1))).unwrap();
        let output = common::command(SEGUE, &place).args(["pcap", "verify", &path]).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let (out, summary) = run("split", &[sent], link::RAW, &[]);
        assert!(out[0] == whole, "{name}: {summary}");
        assert_eq!(
            (summary["checksums_finished"].as_u64(), summary["bad_left"].as_u64()),
            (Some(1), Some(0)),
            "{name}"
        );
    }
}

#[test]
fn checksums_under_a_routing_header_are_of_the_last_address_and_finished_also_where_a_train_stays_whole() {
    // A header of type 0, and one of segment routing, whose list is reversed; each with one stop to come.
    let routed = |packet: &[u8], kind: u8| {
        let mut routed = packet.to_vec();
        let last: Vec<u8> = routed.splice(24..40, [0x20; 16]).collect();
        let mut header = vec![routed[6], 4, kind, 1, u8::from(kind == 4), 0, 0, 0];
        let stops = [[0x20; 16].to_vec(), last];
        header.extend(if kind == 4 { [&stops[1][..], &stops[0]].concat() } else { stops.concat() });
        let len = (packet.len() - 40 + header.len()) as u16;
        routed[4..6].copy_from_slice(&len.to_be_bytes());
        routed[6] = 43;
        routed.splice(40..40, header);
        routed
    };
    for len in [300, 3000] {
        let whole = Sender::tcp(v6(), 3, 1, vec![]).send(len, 0).bytes();
        for kind in [0, 4] {
            let sent = routed(&build::prime(&whole).unwrap(), kind);
            let (out, summary) = run("split", &[sent], link::RAW, &[]);
            assert!(out == [routed(&whole, kind)], "{len} {kind}: {summary}");
            assert_eq!(summary["checksums_finished"], 1, "{summary}");
            assert_eq!(summary["left_as_they_are"].as_object().unwrap().len(), usize::from(len == 3000), "{summary}");
        }
    }
}

/// The packet under way to the first of two stops, or to the last: its destination is in the option (RFC 791, section 3.1).
fn source_routed(packet: &[u8], kind: u8, pointer: u8) -> Vec<u8> {
    let mut routed = packet.to_vec();
    let last: Vec<u8> = routed.splice(16..20, [198, 18, 7, 7]).collect();
    let option = [&[1, kind, 11, pointer, 198, 18, 7, 8][..], &last].concat();
    routed.splice(20..20, option);
    routed[0] += 3;
    let len = routed.len() as u16;
    routed[2..4].copy_from_slice(&len.to_be_bytes());
    routed[10..12].fill(0);
    let checksum = !segue_testkit::sum::fold(&routed[..32]);
    routed[10..12].copy_from_slice(&checksum.to_be_bytes());
    routed
}

/// The packet from away: its source is in the option (RFC 6275, section 6.3).
fn from_away(packet: &[u8]) -> Vec<u8> {
    let mut away = packet.to_vec();
    let home: Vec<u8> = away.splice(8..24, [0x20; 16]).collect();
    let header = [&[away[6], 2, 1, 2, 0, 0, 0xc9, 16][..], &home].concat();
    let len = (away.len() - 40 + header.len()) as u16;
    away[4..6].copy_from_slice(&len.to_be_bytes());
    away[6] = 60;
    away.splice(40..40, header);
    away
}

#[test]
fn checksums_are_of_the_addresses_in_options_where_these_are_the_ends() {
    let place = Place::new();
    let path = place.path().join("in.pcap").display().to_string();
    let verify = |packet: &[u8]| {
        let shape = Shape { seed: 0, traffic: "", link: link::RAW, form: "us_le" };
        fs::write(&path, capture(&shape, &[packet.to_vec()], &mut Rng::new(1))).unwrap();
        let output = common::command(SEGUE, &place).args(["pcap", "verify", &path, "-j"]).output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        let packet: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        (packet["verdict"].as_str().unwrap().to_owned(), output.status.code())
    };
    let vxlan = [&[8, 0, 0, 0, 0, 0, 5, 0][..], &frames_without_ip()[0]].concat();
    let wholes = |ip: fn() -> Ip| {
        let tcp = |len| Sender::tcp(ip(), 3, 1, vec![]).send(len, 0).bytes();
        [tcp(300), tcp(3000), datagram(ip(), 7, vec![5; 33]), datagram(ip(), 4789, vxlan.clone())]
    };
    let mut cases: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for whole in wholes(v4) {
        let sent = build::prime(&whole).unwrap();
        for (kind, pointer) in [(131, 4), (131, 8), (137, 4), (137, 8)] {
            cases.push((source_routed(&whole, kind, pointer), source_routed(&sent, kind, pointer)));
        }
    }
    for whole in wholes(v6) {
        cases.push((from_away(&whole), from_away(&build::prime(&whole).unwrap())));
    }
    let icmp = build::Packet { ip: v6(), l4: L4::Icmp(128, 0, [0, 1, 0, 2]), data: vec![7; 9] }.bytes();
    assert_eq!(verify(&from_away(&icmp)), ("good".to_owned(), Some(0)));
    for (whole, sent) in cases {
        assert_eq!(verify(&whole), ("good".to_owned(), Some(0)), "{whole:02x?}");
        assert_eq!(verify(&sent), ("unfinished".to_owned(), Some(0)), "{sent:02x?}");
        let mut bad = whole.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(verify(&bad), ("bad".to_owned(), Some(1)), "{bad:02x?}");
        let mut mended = bad.clone();
        *mended.last_mut().unwrap() ^= 1;
        assert!(mended == whole);
        for more in [&[][..], &["--fix-checksums", "all"]] {
            let (out, summary) = run("split", std::slice::from_ref(&whole), link::RAW, more);
            assert!(out == [whole.clone()], "{summary}");
            let (out, summary) = run("split", std::slice::from_ref(&sent), link::RAW, more);
            assert!(out == [whole.clone()], "{summary}");
            assert_eq!(summary["checksums_finished"], 1, "{summary}");
        }
        let (out, summary) = run("split", &[bad], link::RAW, &["--fix-checksums", "all"]);
        assert_eq!((verify(&out[0]).0.as_str(), summary["checksums_fixed"].as_u64()), ("good", Some(1)), "{summary}");
        let (out, summary) = run("merge", &[whole.clone(), sent], link::RAW, &[]);
        assert!(out.len() == 2 && summary["trains"] == 0, "{summary}");
        let (out, _) = run("merge", &[whole.clone(), whole.clone()], link::RAW, &["--profile", "linux"]);
        assert!(out == [whole.clone(), whole], "what is not joined is not changed");
    }
    // Where the stops are past, the destination is in its field.
    let past = source_routed(&datagram(v4(), 7, vec![5; 33]), 131, 12);
    assert_eq!(verify(&past), ("bad".to_owned(), Some(1)));
    // Which stop a route that makes no sense ends at, nobody knows.
    let senseless = source_routed(&datagram(v4(), 7, vec![5; 33]), 131, 5);
    assert_eq!(verify(&senseless), ("ip_only".to_owned(), Some(0)));
}

#[test]
fn a_remote_checksum_is_finished_for_the_addresses_in_options() {
    let (_, gue) = tunnels().remove(7);
    for (name, whole, away) in [
        ("source route", Sender::tcp(v4(), 3, 1, vec![]).send(300, 0).bytes(), false),
        ("home address", Sender::tcp(v6(), 3, 1, vec![]).send(300, 0).bytes(), true),
    ] {
        let change = |packet: &[u8]| if away { from_away(packet) } else { source_routed(packet, 131, 4) };
        let sent = change(&build::prime(&whole).unwrap());
        let mut outer = gue.wrap(&sent);
        // The outer headers are 40 bytes; what the tunnel wrote inside is of the addresses in the fixed header.
        outer[40..].copy_from_slice(&sent);
        outer[26..28].fill(0);
        let checksum = !segue_testkit::sum::with_pseudo(&outer[12..16], &outer[16..20], 17, &outer[20..]);
        outer[26..28].copy_from_slice(&checksum.to_be_bytes());
        let (out, summary) = run("decap", &[outer], link::RAW, &[]);
        assert!(out == [change(&whole)], "{name}: {summary}");
        assert_eq!(summary["checksums_finished"], 1, "{name}: {summary}");
    }
}

#[test]
fn what_is_too_deep_to_be_looked_at_is_counted() {
    let udp = Udp { src_port: 50_001, dst_port: 4789, checksum: true };
    let ethernet = Some(Ethernet::default());
    let tunnel = Tunnel { ip: v6(), udp: Some((udp, Shim::Vxlan(42, false))), gre: None, ethernet };
    let mut whole = build::prime(&Sender::tcp(v4(), 3, 1, vec![]).send(30, 0).bytes()).unwrap();
    for depth in 1..=4 {
        whole = tunnel.wrap(&whole);
        let (_, summary) = run("split", std::slice::from_ref(&whole), link::RAW, &[]);
        let too_deep = summary["left_as_they_are"]["too_deep"].as_u64();
        assert_eq!(too_deep, (depth == 4).then_some(1), "{depth}: {summary}");
    }
}
