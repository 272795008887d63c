//! `segue pcap split`, `decap` and `verify` against packets of which everything is known.

mod common;
#[path = "common/shapes.rs"]
mod shapes;

use std::fs;

use common::{Place, SEGUE};
use segue_port::capture::{Item, Reader, link};
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
