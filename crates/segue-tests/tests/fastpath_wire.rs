//! Tests of the frames that tunnels over the in-kernel path put on a link that neither segments nor checksums after the
//! capture, judged by tshark in every layer.

use std::fs;
use std::path::Path;
use std::process::Command;

use segue_lab::Family::{V4, V6};
use segue_lab::{LinkForm, Peer};
use segue_tests::capture::{Capture, Directory, frames};
use segue_tests::fastpath::{NET, REQUIRE, REQUIRE_OVERLAY, REQUIRE_ZERO, ground, left, taken};
use segue_tests::kernel_log::KernelLog;
use segue_tests::wire::outer;
use segue_tests::{Carrier, Inside, Pair, Shape, test_name, traffic};

const FILE: u64 = 2 << 20;
/// Length of an Ethernet header.
const LINK: usize = 14;

/// Result of judging a capture.
#[derive(Debug, Default)]
struct Judged {
    /// Number of TCP segments of nearly the path MTU.
    full: usize,
    /// Number of other packets of the tunnel.
    others: usize,
}

/// The ports among those that the kernel gives sockets (32768 to 60999) that tshark takes for some protocol's UDP. Not
/// the whole range: the source ports of tunnels are in it too.
#[rustfmt::skip]
const CLAIMED: [u16; 31] = [
    34962, 34980, 37008, 41170, 44818, 45564, 47000, 47808, 49999, 54328, 56000, 56001, 56500, 56501, 57000, 57001,
    57032, 57033, 57500, 57501, 57532, 57533, 59000, 59001, 59032, 59033, 59500, 59501, 59532, 59533, 60001,
];

/// Checks every layer of packets after `link` bytes by tshark: each present checksum is right, the outermost length is
/// the frame's, and the next one is `overhead` bytes less. `inside` is what the tunnel's port carries.
fn judge(path: &Path, link: usize, overhead: usize, inside: &str, what: &str) -> Judged {
    const FIELDS: [&str; 11] = [
        "frame.number",
        "frame.len",
        "ip.len",
        "ipv6.plen",
        "ip.checksum.status",
        "tcp.checksum.status",
        "tcp.checksum",
        "udp.checksum.status",
        "tcp.len",
        "_ws.malformed",
        "frame.protocols",
    ];
    let mut command = Command::new(segue_lab::which("tshark").expect("tshark"));
    command.args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"]);
    // Some port of a connection is that of a protocol whose messages this payload is not.
    command.args(["-d", "tcp.port==1-65535,data", "-d", &format!("udp.port=={},{inside}", Shape::port(NET))]);
    command.args(CLAIMED.iter().flat_map(|port| ["-d".to_owned(), format!("udp.port=={port},data")]));
    command.args(["-o", "udp.check_checksum:TRUE", "-T", "fields", "-E", "occurrence=a", "-r"]).arg(path);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let mut judged = Judged::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<Vec<&str>> =
            line.split('\t').map(|field| field.split(',').filter(|value| !value.is_empty()).collect()).collect();
        let [number, length, ip, ipv6, ip_sums, tcp_sums, tcp_fields, udp_sums, payload, malformed, protocols] =
            &fields[..]
        else {
            panic!("{what}: {line}")
        };
        assert!(malformed.is_empty(), "{what}: malformed: {line}");
        // The outer checksum of VXLAN and Geneve is absent here.
        let udp_sums = if udp_sums.first() == Some(&"3") { &udp_sums[1..] } else { &udp_sums[..] };
        // Linux writes 0xffff where a sum that it finishes in software is 0 (CSUM_MANGLED_0), also into TCP, where both
        // mean the same (RFC 1624, section 3); tshark calls that bad.
        let tcp_sums = if tcp_fields.contains(&"0xffff") { &[][..] } else { &tcp_sums[..] };
        let sums = ip_sums.iter().chain(tcp_sums).chain(udp_sums);
        let good = sums.clone().all(|status| *status == "1" || *status == "Good");
        assert!(good, "{what}: a wrong checksum: {line}\n{}", bytes_of(path, number.first()));
        // The outermost network layer comes first; with two of one version they are in order.
        let value = |text: &&&str| text.parse::<usize>().expect("a number");
        let (mut v4, mut v6) = (ip.iter(), ipv6.iter());
        let names = protocols.first().map(|names| names.split(':')).into_iter().flatten();
        let lengths: Vec<usize> = names
            .filter_map(|name| match name {
                "ip" => v4.next().as_ref().map(value),
                "ipv6" => v6.next().as_ref().map(value).map(|len| len + 40),
                _ => None,
            })
            .collect();
        let [outer, inner] = match lengths[..] {
            [outer, inner] => [outer, inner],
            [inner] if overhead == 0 => [inner; 2],
            _ => continue,
        };
        let frame = length.first().map_or(0, |len| value(&len));
        // Ethernet pads what is shorter.
        assert!(frame == outer + link || frame <= 60, "{what}: {frame} bytes with a packet of {outer}: {line}");
        assert_eq!(outer, inner + overhead, "{what}: {line}");
        assert!(frame <= 1500 + link, "{what}: {line}");
        match payload.first().map(|len| value(&len)) {
            Some(1300..) => judged.full += 1,
            _ => judged.others += 1,
        }
    }
    judged
}

/// Writes the contents of the datagrams of a capture, after `skipped` bytes, as a capture of IP packets.
fn unwrapped(path: &Path, skipped: usize, to: &Path) {
    // Little-endian, version 2.4, snap length 65535, LINKTYPE_RAW.
    let mut file = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101].map(u32::to_le_bytes).concat();
    for frame in frames(&fs::read(path).unwrap()).unwrap() {
        let Some(packet) = outer(frame).unwrap() else { continue };
        let Some(udp) = packet.udp.filter(|udp| udp.destination == Shape::port(NET)) else { continue };
        assert!(!packet.fragment && packet.ip_len <= 1500, "{} bytes", packet.ip_len);
        let inner = udp.payload.get(skipped..).expect("headers");
        file.extend([0, 0, inner.len() as u32, inner.len() as u32].map(u32::to_le_bytes).concat());
        file.extend(inner);
    }
    fs::write(to, file).unwrap();
}

/// Returns a frame of a capture file in hexadecimal, for messages; the first frame has the number 1.
fn bytes_of(path: &Path, number: Option<&&str>) -> String {
    let file = fs::read(path).unwrap_or_default();
    let number = number.and_then(|number| number.parse::<usize>().ok()).unwrap_or_default();
    let found = frames(&file).map(|frames| frames.get(number.wrapping_sub(1)).map(|frame| format!("{frame:02x?}")));
    format!("{found:?}")
}

#[test]
fn every_length_and_checksum_on_a_link_that_segments_is_right() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &["tcpdump", "tshark"]) else { return };
    let directory = Directory::new();
    let shapes = [
        (Shape { extra: REQUIRE, ..Shape::new(Inside::Ipip, Carrier::Bare, V4) }, 20),
        (Shape { extra: REQUIRE, ..Shape::new(Inside::Sit, Carrier::Bare, V4) }, 20),
        (Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, 24),
        (Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V6) }, 44),
        (Shape { extra: REQUIRE_ZERO, ..Shape::new(Inside::Gre, Carrier::Gue, V4) }, 36),
        (Shape { extra: REQUIRE, ..Shape::new(Inside::Ip6tnl, Carrier::Bare, V6) }, 40),
        (Shape { extra: REQUIRE_ZERO, ..Shape::new(Inside::Gre, Carrier::Fou, V4) }, 32),
        (Shape { extra: REQUIRE_ZERO, ..Shape::new(Inside::Ip6tnl, Carrier::Fou, V6) }, 48),
        (Shape { extra: REQUIRE, ..Shape::new(Inside::VxlanZero, Carrier::Bare, V4) }, 50),
        (Shape { extra: REQUIRE_OVERLAY, ..Shape::new(Inside::Geneve, Carrier::Bare, V4) }, 50),
    ];
    let mut log = KernelLog::mark(test_name!());
    for (shape, overhead) in shapes {
        let pair = Pair::start(&ground, shape, NET);
        let captures = [(&ground.a, "a.pcap"), (&ground.b, "b.pcap")]
            .map(|(host, name)| Capture::start(host, directory.file(name)));
        let before = pair.stat().map(|stat| taken(&stat)[0]);
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
            traffic::file(a, b, FILE, 21);
            traffic::file(b, a, FILE, 22);
            traffic::datagrams(a, b, &[1, 64, 777, 1400], 23);
        }
        let paths = captures.map(Capture::stop);
        for ((path, stat), before) in paths.iter().zip(pair.stat()).zip(before) {
            let what = shape.to_string();
            let judged = if shape.carrier == Carrier::Bare {
                let inside = if shape.inside == Inside::Geneve { "geneve" } else { "vxlan" };
                judge(path, LINK, overhead, inside, &what)
            } else {
                // tshark knows neither GUE nor FOU: UDP without checksum is judged here, what is inside by tshark.
                let inside = directory.file("inside.pcap");
                let outer = if shape.outer == V4 { 28 } else { 48 };
                unwrapped(path, overhead - outer, &inside);
                judge(&inside, 0, 0, "vxlan", &what)
            };
            // A busy sender also makes segments that are not full, and the daemon may send a few packets.
            let least = shape.inside.families().len() * FILE as usize / 1448 / 2;
            let sent = taken(&stat)[0] - before;
            assert!(judged.full >= least && judged.others > 10, "{what}: {judged:?}");
            assert!(sent as usize > judged.full / 2, "{what}: {sent} by the path, {judged:?}, left {}", left(&stat));
        }
    }
    log.iter_mut().for_each(|log| log.assert_silent("captures"));
}
