//! Tests of merge, undo, split, decap and verify by tables of cases: input, output and counters.

mod common;

use common::packets::{datagram, tunnels, v4, v6};
use common::{by, decap_packets, learned, merge, merging, packets_of, split, split_packets, undo, verify};
use segue_capture::PacketVerdict;
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Writer, link};
use segue_capture::merge::MergeRules;
use segue_capture::split::{SegmentSize, SplitConfig};
use segue_testkit::build::{self, Ip, L4, Packet, Udp};
use segue_testkit::flow::Sender;

const CWR: u8 = 0x80;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;

/// A case of a transformation of packets of raw IP.
struct Case<C, R> {
    name: &'static str,
    input: Vec<Vec<u8>>,
    config: C,
    output: Vec<Vec<u8>>,
    report: R,
}

/// Returns segments of a connection with payloads of these lengths.
fn segments(ip: Ip, flow: u16, lens: &[usize]) -> Vec<Packet> {
    let mut sender = Sender::tcp(ip, flow, 1, vec![]);
    lens.iter().map(|len| sender.send(*len, 0)).collect()
}

/// Sets flags of a segment.
fn flag(packet: &mut Packet, flags: u8) {
    if let L4::Tcp(tcp) = &mut packet.l4 {
        tcp.flags |= flags;
    }
}

fn bytes(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::bytes).collect()
}

/// Builds a pcap file of raw IP packets that are 20 microseconds apart.
fn file_of(packets: &[Vec<u8>]) -> Vec<u8> {
    let head = PcapHeader { order: Order::Little, nanos: true, snaplen: 65_535, link: u32::from(link::RAW) };
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    for (n, packet) in packets.iter().enumerate() {
        let ticks = Some(1_700_000_000_000_000_000 + 20_000 * n as u64);
        let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[packet], options: &[] };
        writer.packet(&packet).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the packet into which these segments or datagrams merge.
fn joined(parts: &[Packet]) -> Vec<u8> {
    let mut whole = parts[0].clone();
    for part in &parts[1..] {
        whole.data.extend(&part.data);
        if let L4::Tcp(tcp) = &part.l4 {
            flag(&mut whole, tcp.flags);
        }
    }
    whole.bytes()
}

/// Returns cases of merge, whose reports are the numbers of trains and of their segments, and a counted reason.
fn merge_cases() -> Vec<Case<MergeRules, (u64, u64, &'static str)>> {
    let rules = MergeRules::default();
    let five = segments(v4(), 3, &[1000; 5]);
    let mut pushed = segments(v6(), 3, &[1000; 5]);
    flag(&mut pushed[4], PSH);
    let mut early = segments(v4(), 3, &[1000; 4]);
    flag(&mut early[1], PSH);
    let short = segments(v4(), 3, &[1000, 1000, 400, 1000, 1000]);
    let mut gap = five.clone();
    gap.remove(2);
    let mut wrong = bytes(&five);
    wrong[2][50] ^= 1;
    let (one, other) = (segments(v4(), 3, &[1000; 3]), segments(v4(), 4, &[1000; 3]));
    let mut far = segments(v4(), 3, &[1000; 4]);
    for packet in &mut far[2..] {
        if let Ip::V4(ip) = &mut packet.ip {
            ip.ttl -= 1;
        }
    }
    let acks = segments(v4(), 3, &[0; 3]);
    let mut sender = Sender::udp(v4(), 3);
    let datagrams: Vec<Packet> = (0..4).map(|_| sender.send(500, 0)).collect();
    vec![
        Case {
            name: "segments of one length, the last with PSH",
            input: bytes(&pushed),
            config: rules,
            output: vec![joined(&pushed)],
            report: (1, 5, "psh"),
        },
        Case {
            name: "PSH in the middle",
            input: bytes(&early),
            config: rules,
            output: vec![joined(&early[..2]), joined(&early[2..])],
            report: (2, 4, "psh"),
        },
        Case {
            name: "a shorter segment",
            input: bytes(&short),
            config: rules,
            output: vec![joined(&short[..3]), joined(&short[3..])],
            report: (2, 5, "short"),
        },
        Case {
            name: "a gap",
            input: bytes(&gap),
            config: rules,
            output: vec![joined(&gap[..2]), joined(&gap[2..])],
            report: (2, 4, "sequence"),
        },
        Case {
            name: "a wrong checksum",
            input: wrong.clone(),
            config: rules,
            output: vec![joined(&five[..2]), wrong[2].clone(), joined(&five[3..])],
            report: (2, 4, "bad_checksum"),
        },
        Case {
            name: "two connections in turn",
            input: one.iter().zip(&other).flat_map(|(one, other)| [one.bytes(), other.bytes()]).collect(),
            config: rules,
            output: vec![joined(&one), joined(&other)],
            report: (2, 6, "poll_end"),
        },
        Case {
            name: "another time to live",
            input: bytes(&far),
            config: rules,
            output: vec![joined(&far[..2]), joined(&far[2..])],
            report: (2, 4, "ttl"),
        },
        Case {
            name: "two packets at most",
            input: bytes(&five),
            config: MergeRules { max_packets: 2, ..rules },
            output: vec![joined(&five[..2]), joined(&five[2..4]), five[4].bytes()],
            report: (2, 4, "full"),
        },
        Case {
            name: "3100 bytes at most",
            input: bytes(&five),
            config: MergeRules { max_bytes: 3100, ..rules },
            output: vec![joined(&five[..3]), joined(&five[3..])],
            report: (2, 5, "full"),
        },
        Case {
            name: "pure acknowledgments",
            input: bytes(&acks),
            config: rules,
            output: bytes(&acks),
            report: (0, 0, "no_payload"),
        },
        Case {
            name: "datagrams of one length",
            input: bytes(&datagrams),
            config: rules,
            output: vec![joined(&datagrams)],
            report: (1, 4, "poll_end"),
        },
    ]
}

#[test]
fn merge_joins_what_belongs_together_and_undo_restores_it() {
    for Case { name, input, config, output, report: (trains, segments, reason) } in merge_cases() {
        let file = file_of(&input);
        let (merged, report) = merge(&file, Format::Pcapng, &merging(config)).unwrap();
        assert!(packets_of(&merged) == output, "{name}: {report:?}");
        assert_eq!((report.gro.trains, report.gro.segments), (trains, segments), "{name}: {report:?}");
        let counts = [&report.gro.alone, &report.gro.flushes, &report.gro.mismatches];
        assert!(counts.iter().any(|counts| counts.contains_key(reason)), "{name}: {report:?}");
        let (restored, report) = undo(&merged, Format::Pcap).unwrap();
        assert!(restored == file, "{name}: {report:?}");
        let counts = [report.packets_out, report.trains, report.unreadable];
        assert_eq!(counts, [input.len() as u64, trains, 0], "{name}: {report:?}");
    }
}

/// Returns cases of split, whose reports are the numbers of trains, of checksums finished, fixed and left wrong, and of
/// packets unchanged.
fn split_cases() -> Vec<Case<SplitConfig, [u64; 5]>> {
    let prime = |packet: Vec<u8>| build::prime(&packet).unwrap();
    let mut five = segments(v4(), 3, &[1000; 5]);
    flag(&mut five[4], PSH);
    let mut reduced = segments(v6(), 3, &[1000, 1000, 500]);
    flag(&mut reduced[0], CWR);
    flag(&mut reduced[2], PSH);
    let mut last = segments(v4(), 3, &[1000, 1000, 500]);
    flag(&mut last[2], FIN);
    let good = segments(v4(), 3, &[700])[0].bytes();
    let mut wrong = good.clone();
    wrong[37] ^= 1;
    let singles = vec![good.clone(), prime(good.clone()), wrong.clone()];
    let long = Sender::udp(v4(), 3).send(2400, 0).bytes();
    // The split fills in the length of the outer header, and leaves the wrong header checksum inside as it is.
    let mut damaged = Sender::udp(v4(), 3).send(1800, 0).bytes();
    damaged[10] ^= 1;
    let over_ipv6 = tunnels().remove(1).1.wrap(&damaged);
    let mut without_length = over_ipv6.clone();
    without_length[4..6].fill(0);
    vec![
        Case {
            name: "a train by MSS",
            input: vec![prime(joined(&five))],
            config: by(SegmentSize::Mss(1000)),
            output: bytes(&five),
            report: [1, 0, 0, 0, 0],
        },
        Case {
            name: "a train with CWR and PSH by MTU",
            input: vec![prime(joined(&reduced))],
            config: by(SegmentSize::Mtu(1060)),
            output: bytes(&reduced),
            report: [1, 0, 0, 0, 0],
        },
        Case {
            name: "a train with FIN and a complete checksum",
            input: vec![joined(&last)],
            config: by(SegmentSize::Mss(1000)),
            output: bytes(&last),
            report: [1, 0, 0, 0, 0],
        },
        Case {
            name: "single packets",
            input: singles.clone(),
            config: learned(false),
            output: vec![good.clone(), good.clone(), wrong],
            report: [0, 1, 0, 1, 2],
        },
        Case {
            name: "single packets, whose checksums are fixed",
            input: singles,
            config: learned(true),
            output: vec![good; 3],
            report: [0, 1, 1, 0, 1],
        },
        Case {
            name: "a datagram with DF above the MTU",
            input: vec![long.clone()],
            config: by(SegmentSize::Mtu(1500)),
            output: vec![long],
            report: [0, 0, 0, 0, 1],
        },
        Case {
            name: "IPv6 of length 0 around IPv4 with a wrong header checksum",
            input: vec![without_length],
            config: learned(false),
            output: vec![over_ipv6],
            report: [0, 0, 0, 1, 0],
        },
    ]
}

#[test]
fn split_cuts_trains_and_finishes_checksums() {
    for case in split_cases() {
        let (output, report) = split_packets(&case.input, link::RAW, &case.config);
        assert!(output == case.output, "{}: {report:?}", case.name);
        let counts = [report.trains, report.finished, report.fixed, report.bad_left, report.unchanged];
        assert_eq!(counts, case.report, "{}: {report:?}", case.name);
    }
}

/// A case of decap: its configuration says whether packets without a tunnel are left out, and its report has the
/// numbers of packets decapsulated, finished, passed and dropped, and the reason for which one kept its tunnel.
type DecapCase = Case<bool, ([u64; 4], Option<&'static str>)>;

/// Returns the cases of decap.
fn decap_cases() -> Vec<DecapCase> {
    let inner = segments(v4(), 3, &[700])[0].bytes();
    let wrapped = |tunnel: &str| {
        let (_, tunnel) = tunnels().into_iter().find(|(name, _)| *name == tunnel).expect("a tunnel");
        tunnel.wrap(&inner)
    };
    let mut damaged = wrapped("gue remcsum");
    *damaged.last_mut().unwrap() ^= 0x40;
    let mut absent = wrapped("gue remcsum");
    absent[26..28].fill(0);
    let mut cases = Vec::new();
    for (name, finished) in [
        ("ip", 0),
        ("ip over 6", 0),
        ("gre", 0),
        ("gre full", 0),
        ("gue", 0),
        ("gue bare", 0),
        ("gue remcsum", 1),
        ("gue gre remcsum", 1),
        ("fou gre", 0),
        ("vxlan", 0),
        ("geneve", 0),
    ] {
        let (input, output) = (vec![wrapped(name)], vec![inner.clone()]);
        cases.push(Case { name, input, config: false, output, report: ([1, finished, 0, 0], None) });
    }
    for (name, packet, kept) in [
        ("no tunnel", inner.clone(), None),
        ("a wrong outer checksum", damaged, Some("outer_csum")),
        ("a remote checksum without an outer one", absent, Some("remcsum_no_outer_csum")),
    ] {
        let input = vec![packet];
        let output = input.clone();
        cases.push(Case { name, input: input.clone(), config: false, output, report: ([0, 0, 1, 0], kept) });
        cases.push(Case { name, input, config: true, output: Vec::new(), report: ([0, 0, 0, 1], kept) });
    }
    cases
}

#[test]
fn decap_removes_one_tunnel_and_keeps_what_is_not_right() {
    for Case { name, input, config, output, report: (expected, kept) } in decap_cases() {
        let (packets, report) = decap_packets(&input, link::RAW, config);
        assert!(packets == output, "{name}: {report:?}");
        let counts = [report.decapsulated, report.finished, report.passed, report.dropped];
        assert_eq!(counts, expected, "{name}: {report:?}");
        assert_eq!(report.kept.keys().next().copied(), kept, "{name}: {report:?}");
    }
}

/// A packet with the expected verdicts on it and on its checksums, the latter by the names of header and verdict.
struct Judged {
    name: &'static str,
    packet: Vec<u8>,
    verdict: PacketVerdict,
    checksums: &'static [(&'static str, &'static str)],
}

fn judged(
    name: &'static str,
    packet: Vec<u8>,
    verdict: PacketVerdict,
    checksums: &'static [(&'static str, &'static str)],
) -> Judged {
    Judged { name, packet, verdict, checksums }
}

fn verify_cases() -> Vec<Judged> {
    let good = segments(v4(), 3, &[700])[0].bytes();
    let with = |at: usize| {
        let mut packet = good.clone();
        packet[at] ^= 1;
        packet
    };
    let no_checksum = L4::Udp(Udp { src_port: 5, dst_port: 6, checksum: false });
    let absent = Packet { ip: v4(), l4: no_checksum, data: vec![1; 9] }.bytes();
    let mut malformed = absent.clone();
    malformed[24] = 1;
    let (_, remote) = tunnels().remove(7);
    let mut bad_outer = remote.wrap(&good);
    bad_outer[26] ^= 1;
    vec![
        judged("TCP", good.clone(), PacketVerdict::Good, &[("ipv4", "good"), ("tcp", "good")]),
        judged("TCP over IPv6", segments(v6(), 3, &[100])[0].bytes(), PacketVerdict::Good, &[("tcp", "good")]),
        judged("UDP", datagram(v4(), 7, vec![1; 9]), PacketVerdict::Good, &[("ipv4", "good"), ("udp", "good")]),
        judged("other payload", with(200), PacketVerdict::Bad, &[("ipv4", "good"), ("tcp", "bad")]),
        judged("another header", with(8), PacketVerdict::Bad, &[("ipv4", "bad"), ("tcp", "good")]),
        judged(
            "an unfinished checksum",
            build::prime(&good).unwrap(),
            PacketVerdict::Unfinished,
            &[("ipv4", "good"), ("tcp", "unfinished")],
        ),
        judged("no checksum", absent, PacketVerdict::Absent, &[("ipv4", "good"), ("udp", "absent")]),
        judged("a length beyond the packet", malformed, PacketVerdict::Malformed, &[("ipv4", "good")]),
        judged(
            "a protocol without a known checksum",
            Packet { ip: v4(), l4: L4::Raw(132), data: vec![0; 20] }.bytes(),
            PacketVerdict::IpOnly,
            &[("ipv4", "good")],
        ),
        judged(
            "a remote checksum",
            remote.wrap(&good),
            PacketVerdict::Good,
            &[("ipv4", "good"), ("outer_ipv4", "good"), ("outer_udp", "good"), ("tcp", "remote")],
        ),
        judged(
            "a wrong outer checksum",
            bad_outer,
            PacketVerdict::Bad,
            &[("ipv4", "good"), ("outer_ipv4", "good"), ("outer_udp", "bad"), ("tcp", "remote")],
        ),
    ]
}

#[test]
fn verify_judges_each_checksum_of_a_packet() {
    for Judged { name, packet, verdict, checksums } in verify_cases() {
        let (verdicts, report) = verify(&file_of(&[packet]), None);
        assert_eq!(verdicts, [verdict], "{name}: {report:?}");
        let layers = report.layers.iter();
        let found: Vec<_> =
            layers.flat_map(|(layer, counts)| counts.iter().map(move |(verdict, n)| (*layer, *verdict, *n))).collect();
        let expected: Vec<_> = checksums.iter().map(|(layer, verdict)| (*layer, *verdict, 1_u64)).collect();
        assert_eq!(found, expected, "{name}: {report:?}");
    }
}

#[test]
fn a_file_that_ends_in_a_packet_is_used_up_to_that_one() {
    let packets = bytes(&segments(v4(), 3, &[1000; 20]));
    let file = file_of(&packets);
    // The file's header, and twelve packets with theirs.
    let whole = 24 + 12 * (16 + packets[0].len());
    let cut = &file[..whole + 500];
    let fault = format!("packet 13 is cut off: 1056 bytes promised, 500 in the file (byte {whole})");
    let fault = Some(fault.as_str());
    let (output, report) = split(cut, Format::Pcap, &learned(false)).unwrap();
    assert!(output == file[..whole] && report.packets_in == 12, "{report:?}");
    assert_eq!(report.fault.map(|fault| fault.to_string()).as_deref(), fault);
    let (_, report) = verify(cut, None);
    assert_eq!((report.packets, report.good, report.cut), (12, 12, 1), "{report:?}");
    assert_eq!(report.fault.map(|fault| fault.to_string()).as_deref(), fault);
    // A train that was joined in front of the cut is undone like any other.
    let (merged, report) = merge(cut, Format::Pcapng, &merging(MergeRules::default())).unwrap();
    assert_eq!((report.gro.segments, report.packets_out), (12, 1), "{report:?}");
    assert_eq!(report.fault.map(|fault| fault.to_string()).as_deref(), fault);
    assert!(undo(&merged, Format::Pcap).unwrap().0 == file[..whole]);
}
