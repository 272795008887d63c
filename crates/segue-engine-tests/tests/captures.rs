//! Tests against the tunnels of a real kernel, in both directions: every packet in `captures/` is decapsulated, the
//! inner packet is judged by tshark, and segue's own encapsulation of it is compared with the kernel's bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use segue::encap::{Carrier, Config, Decapsulator, Df, Encapsulator, GreOptions, Mode, Tos};
use segue::gso;
use segue::packet::{Csum, Frag, Packet, Start, Stop, Tunnels, Unit};
use segue::reason::Reason;
use segue_testkit::{build, oracle};

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures");
/// Number of captured tunnels, each with ICMP, TCP and UDP.
const FILES: usize = 75;
const ETHERNET: usize = 14;

/// A capture file: its tunnel, and the outer packets in it.
struct Capture {
    name: String,
    mode: Mode,
    carrier: Carrier,
    csum: bool,
    port: u16,
    packets: Vec<Vec<u8>>,
}

impl Capture {
    /// Returns the tunnel for a file name, as described in `captures/guest-commands.txt`.
    fn open(path: &Path) -> Capture {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_gue = name.starts_with("gue");
        let has_remcsum = name.contains("-remcsum");
        let full =
            GreOptions { ikey: Some(12345), okey: Some(12345), icsum: true, ocsum: true, iseq: true, oseq: true };
        let mode = match () {
            () if name.starts_with("vxlan") => Mode::Ethernet,
            () if name.starts_with("gre-key-csum-seq") => Mode::Gre(full),
            () if name.contains("gre-") => Mode::Gre(GreOptions::default()),
            () if name.contains("ipip-") => Mode::Ipip,
            () if name.contains("sit-") => Mode::Sit,
            () => panic!("{name}: no tunnel is known by this name"),
        };
        let port = match mode {
            _ if name.starts_with("gue6-") => 6086,
            _ if is_gue => 6080,
            Mode::Ethernet if has_remcsum => 4789,
            Mode::Ethernet => 4790,
            Mode::Ipip => 5554,
            Mode::Sit => 5541,
            _ => 5547,
        };
        let carrier = match () {
            () if is_gue => Carrier::Gue { remcsum: has_remcsum },
            () if name.starts_with("fou") => Carrier::Fou,
            () if has_remcsum => Carrier::Vxlan { vni: 42, remcsum: true, takes_remcsum: true },
            () if mode == Mode::Ethernet => Carrier::Vxlan { vni: 43, remcsum: false, takes_remcsum: false },
            () => Carrier::Bare,
        };
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            assert_eq!(packet.orig_len as usize, packet.data.len(), "{name}: a cut packet");
            packets.push(outer_ip(&packet.data));
        }
        Capture { csum: !name.contains("-nocsum"), name, mode, carrier, port, packets }
    }

    /// Returns the tunnel in the configuration of `packet`'s receiver.
    fn receiver(&self, packet: &[u8]) -> Config {
        let (from, to) = addresses(packet);
        let config = Config::new(self.mode, self.carrier, to, from);
        // The kernel's default for `tos` is 0; `ttl` was set to 64 on the guests; VXLAN starts without DF.
        let df = if self.mode == Mode::Ethernet { Df::Unset } else { Df::Set };
        Config { csum: self.csum, dport: self.port, port: self.port, tos: Tos::Fixed(0), df, ..config }
    }

    /// Returns the packets of the tunnel, without neighbour discovery between its ends.
    fn tunnelled(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().map(Vec::as_slice).filter(|packet| !(packet[0] >> 4 == 6 && packet[6] == 58))
    }

    fn remcsum(&self) -> bool {
        matches!(self.carrier, Carrier::Gue { remcsum: true } | Carrier::Vxlan { remcsum: true, .. })
    }

    fn is_bare(&self) -> bool {
        self.carrier == Carrier::Bare
    }

    /// Returns the inner packet from its IP header on, if it has one.
    fn ip<'a>(&self, inner: &'a [u8]) -> Option<&'a [u8]> {
        if self.mode != Mode::Ethernet {
            return Some(inner);
        }
        matches!(inner[12..14], [0x08, 0x00] | [0x86, 0xdd]).then(|| &inner[ETHERNET..])
    }

    fn start(&self) -> Start {
        if self.mode == Mode::Ethernet { Start::Ethernet } else { Start::Ip }
    }

    fn ports(&self) -> oracle::Ports {
        let fou = |protocol| oracle::Ports { fou: vec![(self.port, protocol)], ..oracle::Ports::default() };
        match (self.carrier, self.mode) {
            (Carrier::Gue { .. }, _) => oracle::Ports { gue: vec![self.port], ..oracle::Ports::default() },
            (Carrier::Fou, Mode::Ipip) => fou(4),
            (Carrier::Fou, Mode::Sit) => fou(41),
            (Carrier::Fou, _) => fou(47),
            (Carrier::Vxlan { .. }, _) => oracle::Ports { vxlan: vec![self.port], ..oracle::Ports::default() },
            _ => oracle::Ports::default(),
        }
    }
}

/// Returns the IP packet in an Ethernet frame, without padding.
fn outer_ip(frame: &[u8]) -> Vec<u8> {
    let ip = &frame[ETHERNET..];
    let len = match ip[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
        _ => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
    };
    ip[..len].to_vec()
}

fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    if packet[0] >> 4 == 4 {
        let at = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        return (at(12), at(16));
    }
    let at = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
    (at(8), at(24))
}

/// Returns the captures, with as many packets each as their README states.
fn captures() -> Vec<Capture> {
    let mut paths: Vec<PathBuf> = fs::read_dir(CAPTURES).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let captures: Vec<Capture> = paths
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| Capture::open(path))
        .collect();
    assert_eq!(captures.len(), FILES);
    let listed = listed_counts();
    for capture in &captures {
        assert_eq!(Some(&capture.packets.len()), listed.get(&capture.name), "{}", capture.name);
    }
    captures
}

/// Reads the table at the end of the captures' README.
fn listed_counts() -> BTreeMap<String, usize> {
    let readme = fs::read_to_string(Path::new(CAPTURES).join("README.md")).unwrap();
    let mut counts = BTreeMap::new();
    for line in readme.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [name, icmp, tcp, udp] = cells[..] {
            for (kind, count) in [("icmp", icmp), ("tcp", tcp), ("udp", udp)] {
                if let Ok(count) = count.parse() {
                    counts.insert(format!("{name}-{kind}"), count);
                }
            }
        }
    }
    counts
}

fn bytes_of(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.frags().iter().for_each(|frag| bytes.extend(frag.bytes()));
    bytes
}

/// Decapsulates `wire` and completes its transport checksum.
fn inner_of(capture: &Capture, wire: &[u8]) -> Vec<u8> {
    let mut decap = Decapsulator::new(capture.receiver(wire)).unwrap();
    let mut packet = Packet::default();
    let result = decap.pull_packet(Frag::all(wire.to_vec()), &mut packet);
    assert_eq!(result.map_err(Reason::name), Ok(()), "{}", capture.name);

    // The kernel left these checksums to the receiver: every TCP segment and every unfragmented UDP datagram, and
    // nothing else.
    let pending = capture.remcsum() && packet.layout.stop() == Stop::Transport;
    assert_eq!(packet.offload.unit == Unit::Whole(Csum::Partial), pending, "{}", capture.name);
    let summed = gso::finish(&mut packet).unwrap();
    assert_eq!(summed > 0, pending && !packet.payload.is_empty(), "{}", capture.name);
    bytes_of(&packet)
}

/// Returns segue's encapsulation of an inner packet, given as the kernel's network stack passed it to its tunnel
/// device.
fn encapsulated(capture: &Capture, sender: Config, inner: &[u8]) -> Vec<u8> {
    let primed = capture.ip(inner).and_then(build::prime).filter(|_| capture.remcsum());
    let link = &inner[..inner.len() - capture.ip(inner).map_or(0, <[u8]>::len)];
    let primed = primed.map(|ip| [link, &ip].concat());
    let mut packet = Packet::default();
    packet.load(Frag::all(primed.clone().unwrap_or_else(|| inner.to_vec())), capture.start(), &Tunnels::NONE);
    if primed.is_some() {
        packet.offload.unit = Unit::Whole(Csum::Partial);
    }
    Encapsulator::new(sender).unwrap().push(&mut packet).unwrap();
    gso::finish(&mut packet).unwrap();
    bytes_of(&packet)
}

/// Zeros the fields that may differ: identification, flow label, source port, GRE sequence number, and the checksums
/// that cover one of them.
fn masked(capture: &Capture, packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    let udp = if bytes[0] >> 4 == 4 {
        bytes[4..6].fill(0);
        bytes[10..12].fill(0);
        20
    } else {
        bytes[1] &= 0xf0;
        bytes[2..4].fill(0);
        40
    };
    if capture.is_bare() {
        if matches!(capture.mode, Mode::Gre(GreOptions { oseq: true, .. })) {
            // Flags and type, checksum, key, number.
            bytes[udp + 4..udp + 6].fill(0);
            bytes[udp + 12..udp + 16].fill(0);
        }
        return bytes;
    }
    bytes[udp..udp + 2].fill(0);
    if bytes[udp + 6..udp + 8] != [0, 0] {
        bytes[udp + 6..udp + 8].fill(0xff); // there is one
    }
    bytes
}

#[test]
fn segue_encapsulates_as_the_kernel_does() {
    let mut compared = 0;
    for capture in captures() {
        for (at, wire) in capture.tunnelled().enumerate() {
            let receiver = capture.receiver(wire);
            let sender = Config { local: receiver.remote, remote: receiver.local, ..receiver };
            let inner = inner_of(&capture, wire);
            let ours = encapsulated(&capture, sender, &inner);
            assert_eq!(masked(&capture, &ours), masked(&capture, wire), "{}, packet {at}", capture.name);
            // The masked checksums are right, by sums that share no code with the engine.
            for bytes in [wire, &ours[..]] {
                let report = oracle::verify(bytes, oracle::Start::Ip, &capture.ports());
                let report = report.unwrap_or_else(|what| panic!("{}, packet {at}: {what}", capture.name));
                assert_eq!(report.levels[0].has_udp_checksum, capture.csum && !capture.is_bare());
            }
            compared += 1;
        }
    }
    let listed: usize = captures().iter().map(|capture| capture.packets.len()).sum();
    let neighbours: usize = captures().iter().map(|c| c.packets.len() - c.tunnelled().count()).sum();
    assert_eq!(compared, listed - neighbours);
    assert!(neighbours <= 4, "only neighbour discovery is left out");
}

/// A temporary directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("segue-captures-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on the removal, and a panic here would hide the one that matters.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Expectation for an inner packet: its origin, and which of its checksums tshark must call good.
#[derive(Debug)]
struct Expected {
    file: String,
    is_v4: bool,
    /// Index of the tshark column with the inner transport checksum; `None` for a fragment that does not complete its
    /// datagram.
    transport: Option<usize>,
}

/// The fields requested from tshark, in the order of its columns.
const FIELDS: [&str; 5] = [
    "ip.checksum.status",
    "tcp.checksum.status",
    "udp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
];

#[test]
fn tshark_calls_every_inner_checksum_good() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return segue_lab::skip_this_test("tshark is not installed");
    }
    let scratch = Scratch::new();
    let path = scratch.0.join("inner.pcap");
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
    let mut expected = Vec::new();
    let mut fragments = BTreeMap::new();
    for capture in captures() {
        for wire in capture.tunnelled() {
            let inner = inner_of(&capture, wire);
            let Some(inner) = capture.ip(&inner) else { continue };
            let time = Duration::from_millis(expected.len() as u64);
            writer.write_packet(&PcapPacket::new(time, inner.len() as u32, inner)).unwrap();
            expected.push(expectation(&capture, inner, &mut fragments));
        }
    }
    drop(writer);
    assert!(fragments.values().all(|seen| *seen == Datagram::Whole), "a datagram is not whole: {fragments:?}");

    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    for option in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
        tshark.arg("-o").arg(format!("{option}:TRUE"));
    }
    FIELDS.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "packets judged");

    let mut judged = [0; FIELDS.len()];
    for (at, (line, expected)) in lines.iter().zip(&expected).enumerate() {
        let columns: Vec<&str> = line.split(',').collect();
        let must_be_good = expected.is_v4.then_some(0).into_iter().chain(expected.transport);
        for column in must_be_good {
            assert_eq!(columns[column], "1", "{}, frame {}: {} is not good", expected.file, at + 1, FIELDS[column]);
            judged[column] += 1;
        }
        assert!(!columns.contains(&"0"), "{}, frame {}: a bad checksum: {line}", expected.file, at + 1);
    }
    println!("tshark judged {} packets: {FIELDS:?} {judged:?}", lines.len());
    assert!(judged.iter().all(|&count| count >= 40), "each kind is there: {judged:?}");
    let without = fragments.len(); // the first fragment of each datagram
    assert_eq!(judged[1..].iter().sum::<usize>() + without, expected.len(), "every packet's transport was judged");
}

/// Fragments seen of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datagram {
    /// One of the datagram's two fragments was seen.
    Part,
    Whole,
}

/// Returns what tshark must report for `inner`. The transport checksum of a fragmented datagram is judged with the
/// fragment that completes it; every one in the captures has two.
fn expectation(capture: &Capture, inner: &[u8], fragments: &mut BTreeMap<Vec<u8>, Datagram>) -> Expected {
    let is_v4 = inner[0] >> 4 == 4;
    let (key, protocol) = if is_v4 {
        let is_fragment = u16::from_be_bytes([inner[6], inner[7]]) & 0x3fff != 0;
        let key = [&inner[4..6], &inner[9..10], &inner[12..20]].concat();
        (is_fragment.then_some(key), inner[9])
    } else if inner[6] == 44 {
        (Some([&inner[44..48], &inner[8..40]].concat()), inner[40])
    } else if inner[6] == 0 {
        (None, inner[40])
    } else {
        (None, inner[6])
    };
    let column = match protocol {
        6 => 1,
        17 => 2,
        1 => 3,
        58 => 4,
        other => panic!("{}: protocol {other}", capture.name),
    };
    let completes = key.is_none_or(|key| {
        let seen = fragments.entry(key).and_modify(|seen| *seen = Datagram::Whole).or_insert(Datagram::Part);
        *seen == Datagram::Whole
    });
    Expected { file: capture.name.clone(), is_v4, transport: completes.then_some(column) }
}
