//! Inputs of any size for each reader of outside data, and the memory, time and output of reading them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use segue::packet::Tunnels;
use segue_capture::file::compression::{Compression, Compressor, Decompressor};
use segue_capture::file::undo_notes::{self, Member, NoteKind};
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Reader, Writer, link, options};
use segue_capture::merge::{self, MergeConfig, MergeRules};
use segue_capture::split::{self, SegmentSize, SplitConfig};
use segue_capture::survey::{self, SurveyConfig};
use segue_capture::undo;
use segue_capture::verify::{self, VerifyConfig};
use segue_control::model::{Instance, Port, Tunnel};
use segue_control::peers::{Listed, ListedPeer, PeerCounters, Table};
use segue_control::protocol::{Reloaded, Request, Response, ServiceResponse};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::usb::usbip::{Exported, Session};
use segue_service::handover::{Line, sys};
use segue_service::supervise::said::Said;
use segue_testkit::build::{Ethernet, Ip, L4, Packet, Tcp, V4};

use crate::netlink::{self, SEQUENCE};
use crate::resources::{Output, counted};
use crate::{cni, etcd};

/// A reader of outside data.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Name of the fuzzed reader.
    pub name: &'static str,
    /// Function that makes an input of about the given number of entries: packets, instances, peers.
    make: fn(usize) -> Vec<u8>,
    /// Reads an input.
    read: fn(&[u8]) -> Lengths,
}

/// The lengths of what a reader has read and written, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// The input without compression.
    pub input: usize,
    /// The output beside the headers of the packets that the input asks for.
    pub output: usize,
}

/// The cost of reading an input.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Length in bytes of the input, without compression.
    pub len: usize,
    /// Peak of allocated memory in bytes.
    pub memory: usize,
    /// Number of memory allocations.
    pub allocations: usize,
    /// Length in bytes of the output, beside the headers of the packets that the input asks for.
    pub output: usize,
}

impl Reading {
    /// Makes an input of `count` entries.
    pub fn input(&self, count: usize) -> Vec<u8> {
        (self.make)(count)
    }

    /// Runs the reader on an input. Callgrind counts inside of this function alone (`tools/trust.d/05-linear`).
    #[inline(never)]
    pub fn read(&self, input: &[u8]) -> Lengths {
        (self.read)(input)
    }

    /// Reads an input of `count` entries, and returns the cost.
    pub fn cost(&self, count: usize) -> Cost {
        let input = self.input(count);
        let mut lengths = silent(&[]);
        let (memory, allocations) = counted(|| lengths = self.read(&input));
        Cost { len: lengths.input, memory, allocations, output: lengths.output }
    }
}

/// All readers to fuzz.
pub const READERS: &[Reading] = &[
    Reading { name: "pcap", make: pcap, read: records },
    Reading { name: "pcapng", make: pcapng, read: records },
    Reading { name: "gzip", make: |count| packed(&pcap(count), Compression::Gzip), read: unpacked },
    Reading { name: "zstd", make: |count| packed(&pcap(count), Compression::Zstd), read: unpacked },
    Reading { name: "survey", make: pcap, read: surveyed },
    Reading { name: "verify", make: pcap, read: verified },
    Reading { name: "merge", make: pcap, read: merged_again },
    Reading { name: "split", make: merged, read: cut },
    Reading { name: "undo", make: merged, read: undone },
    Reading { name: "crafted notes", make: notes, read: undone_notes },
    Reading { name: "undo, compressed", make: |count| packed(&merged(count), Compression::Gzip), read: undone_packed },
    Reading { name: "many flows", make: flows, read: merged_again },
    Reading { name: "peers", make: peers, read: table },
    Reading { name: "wrong peers", make: wrong_peers, read: table },
    Reading {
        name: "no peers",
        make: |count| format!(r#"{{"peers":[{}7]}}"#, "7,".repeat(count)).into_bytes(),
        read: table,
    },
    Reading { name: "configuration", make: configuration, read: configured },
    Reading { name: "request", make: change, read: requested },
    Reading { name: "answer of an instance", make: instance, read: answered },
    Reading { name: "answer with peers", make: listed, read: answered },
    Reading { name: "answer of small values", make: small_values, read: refused },
    Reading { name: "answer of a service", make: reloaded, read: answered_by_service },
    Reading { name: "leases of etcd", make: leases, read: held },
    Reading {
        name: "small values of etcd",
        make: |count| format!(r#"{{"kvs":[{}]}}"#, vec![r#"{"a":1}"#; count].join(",")).into_bytes(),
        read: listed_by_etcd,
    },
    Reading { name: "routes", make: routes, read: datagram },
    Reading { name: "next hops", make: next_hops, read: datagram },
    Reading { name: "neighbours", make: neighbours, read: datagram },
    Reading { name: "attributes of a link", make: attributes, read: datagram },
    Reading { name: "USB/IP", make: unlinks, read: exported },
    Reading { name: "handover", make: handover, read: handed_over },
    Reading { name: "event of an instance", make: event, read: said },
    Reading { name: "network of a container", make: network, read: called },
];

/// Number of bytes of the headers of each [`frame`]: Ethernet, IPv4, and TCP with timestamps.
const HEAD: usize = 14 + 20 + 32;
/// Number of bytes of the headers of each packet in [`notes`]: the most whose length takes one byte of a note.
const NOTED: usize = 127;

/// Returns the lengths of an input of which nothing is written.
fn silent(data: &[u8]) -> Lengths {
    Lengths { input: data.len(), output: 0 }
}

/// Returns the frame with the given number of a stream, every sixth of which closes its train.
fn frame(number: usize, flow: u16) -> Vec<u8> {
    let (len, flags) = if number % 6 == 5 { (100, 0x18) } else { (300, 0x10) };
    let options = Tcp::timestamps(7, 9);
    let seq = (number as u32).wrapping_mul(300);
    let (src_port, dst_port, window) = (1024 + flow, 80, 500);
    let tcp = Tcp { src_port, dst_port, seq, ack: 1, flags, window, urgent: 0, options };
    let ip = Ip::V4(V4 { id: number as u16, ..V4::new(1, 1, 2) });
    let bytes = Packet { ip, l4: L4::Tcp(tcp), data: vec![number as u8; len] }.bytes();
    Ethernet { tags: Vec::new(), dst: [2; 6], src: [2, 0, 0, 0, 0, 1] }.wrap(&bytes)
}

fn pcap_of(frames: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut file =
        [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8], &[0xff, 0xff, 0, 0, 1, 0, 0, 0]].concat();
    for (number, frame) in frames.enumerate() {
        let len = frame.len() as u32;
        for word in [1_700_000_000 + number as u32 / 10_000, number as u32 % 10_000 * 100, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn pcap(count: usize) -> Vec<u8> {
    pcap_of((0..count).map(|number| frame(number, 0)))
}

/// Returns a capture in which each packet is of a flow of its own.
fn flows(count: usize) -> Vec<u8> {
    pcap_of((0..count).map(|number| frame(number, number as u16)))
}

fn pcapng(count: usize) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() + 12) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    };
    let mut file = block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    file.extend(block(1, &[1, 0, 0, 0, 0, 0, 0, 0]));
    for number in 0..count {
        let mut frame = frame(number, 0);
        let len = (frame.len() as u32).to_le_bytes();
        frame.resize(frame.len().next_multiple_of(4), 0);
        let time = [0_u32.to_le_bytes(), 0x0005_0000_u32.to_le_bytes(), (number as u32 * 100).to_le_bytes(), len, len];
        file.extend(block(6, &[&time.concat()[..], &frame].concat()));
    }
    file
}

fn packed(file: &[u8], compression: Compression) -> Vec<u8> {
    let mut compressor = Compressor::new(Vec::new(), compression);
    compressor.write_all(file).expect("memory takes everything");
    compressor.finish().expect("memory takes everything")
}

/// Returns a merge of a stream, with its notes.
fn merged(count: usize) -> Vec<u8> {
    let file = pcap(count);
    let mut reader = Reader::new(&file[..]).expect("a capture");
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    merge::merge(&mut reader, &mut writer, &merging()).expect("a capture");
    writer.finish().expect("memory takes everything")
}

/// Returns a merged packet whose note asks for the most for each of its bytes: for seven of them a packet with headers
/// and options that the note does not hold.
fn notes(count: usize) -> Vec<u8> {
    let frame = [0x45_u8; 1500];
    let member = |number: usize| {
        let end = if number + 1 < count { NOTED } else { frame.len() };
        Member {
            position: number as u64,
            ticks: Some(0),
            len: end as u32,
            head: frame[..NOTED].to_vec(),
            payload: NOTED..end,
            trailer: Vec::new(),
            options: None,
            tail: None,
        }
    };
    let members: Vec<Member> = (0..count).map(member).collect();
    let mut list = Vec::new();
    options::push(&mut list, Order::NATIVE, options::COMMENT, &[b'x'; 52]);
    let note = undo_notes::encode(&frame[..NOTED], 0, &members);
    undo_notes::push(&mut list, Order::NATIVE, NoteKind::Members, false, &note);
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    let header = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 262_144, link: u32::from(link::RAW) };
    writer.begin_pcap(&header, &header.bytes(), &[]).expect("memory takes everything");
    let packet = Outgoing { interface: 0, ticks: Some(0), len: 1500, data: &[&frame], options: &list };
    writer.packet(&packet).expect("memory takes everything");
    writer.finish().expect("memory takes everything")
}

fn peers_of(count: usize, last: &str) -> Vec<u8> {
    let peer = |number: usize| {
        let [_, _, a, b] = (number as u32).to_be_bytes();
        format!(r#"{{"prefix":"198.19.{a}.{b}/32","remote":"198.18.{a}.{b}","encap":"gue"}},"#)
    };
    format!(r#"{{"peers":[{}{last}]}}"#, (0..count).map(peer).collect::<String>()).into_bytes()
}

fn peers(count: usize) -> Vec<u8> {
    peers_of(count, r#"{"prefix":"2001:db8::/64","remote":"198.18.255.255"}"#)
}

fn wrong_peers(count: usize) -> Vec<u8> {
    peers_of(count, &format!(r#"{{"prefix":"{}"}}"#, "x".repeat(60 * count)))
}

fn records(data: &[u8]) -> Lengths {
    let mut reader = Reader::new(data).expect("a capture");
    while reader.next().expect("a whole capture").is_some() {}
    silent(data)
}

/// Returns the length of a compressed file without compression.
fn content_len(data: &[u8]) -> usize {
    let mut len = 0;
    let mut file = Decompressor::new(data, 0).expect("a compressed file");
    let mut buffer = [0; 4096];
    while let Ok(more @ 1..) = file.read(&mut buffer) {
        len += more;
    }
    len
}

fn unpacked(data: &[u8]) -> Lengths {
    let len = content_len(data);
    let file = Decompressor::new(data, 0).expect("a compressed file");
    let mut reader = Reader::new(file).expect("a capture");
    while reader.next().expect("a whole capture").is_some() {}
    Lengths { input: len, output: 0 }
}

fn surveyed(data: &[u8]) -> Lengths {
    let mut reader = Reader::new(data).expect("a capture");
    survey::survey(&mut reader, &SurveyConfig::default()).expect("a capture");
    silent(data)
}

fn verified(data: &[u8]) -> Lengths {
    let mut reader = Reader::new(data).expect("a capture");
    let config = VerifyConfig { tunnels: Tunnels::NONE, mtu: Some(1500) };
    verify::verify(&mut reader, &config, |_| ()).expect("a capture");
    silent(data)
}

fn merging() -> MergeConfig {
    MergeConfig { rules: MergeRules::default(), tunnels: Tunnels::NONE, explain: false }
}

fn merged_again(data: &[u8]) -> Lengths {
    let mut reader = Reader::new(data).expect("a capture");
    let mut writer = Writer::new(Output::default(), Format::Pcapng);
    merge::merge(&mut reader, &mut writer, &merging()).expect("a capture");
    Lengths { input: data.len(), output: writer.finish().expect("a sink").len }
}

/// Returns the length of the output beside the headers, of `head` bytes each, of the `made` packets that the input asks
/// for.
fn beside_headers(writer: Writer<Output>, made: u64, head: usize) -> usize {
    writer.finish().expect("a sink").len - made as usize * head
}

fn cut(data: &[u8]) -> Lengths {
    let mut reader = Reader::new(data).expect("a capture");
    let mut writer = Writer::new(Output::default(), Format::Pcap);
    let config = SplitConfig { tunnels: Tunnels::NONE, size: SegmentSize::Learned, fix_all: false };
    let report = split::split(&mut reader, &mut writer, &config).expect("a capture");
    let made = report.packets_out - report.packets_in;
    Lengths { input: data.len(), output: beside_headers(writer, made, HEAD) }
}

/// Undoes a file of packets with headers of `head` bytes into one of the format. Returns the length of the output
/// beside these headers.
fn restored(file: impl Read, format: Format, head: usize) -> usize {
    let mut reader = Reader::new(file).expect("a capture");
    let mut writer = Writer::new(Output::default(), format);
    let report = undo::undo(&mut reader, &mut writer).expect("a merge");
    assert_eq!(report.unreadable, 0, "each note is as it was written");
    beside_headers(writer, report.packets_out - report.packets_in, head)
}

fn undone(data: &[u8]) -> Lengths {
    Lengths { input: data.len(), output: restored(data, Format::Pcap, HEAD) }
}

fn undone_notes(data: &[u8]) -> Lengths {
    Lengths { input: data.len(), output: restored(data, Format::Pcapng, NOTED) }
}

fn undone_packed(data: &[u8]) -> Lengths {
    let file = Decompressor::new(data, 0).expect("a compressed file");
    let output = restored(file, Format::Pcap, HEAD);
    Lengths { input: content_len(data), output }
}

fn table(data: &[u8]) -> Lengths {
    let _ = Table::read(data, "peers.json");
    silent(data)
}

/// Returns a configuration of keys that there are not.
fn configuration(count: usize) -> Vec<u8> {
    let line = |number: usize| format!("\"key {number:06} {}\" = \"{}\"\n", "k".repeat(40), "v".repeat(40));
    (0..count).map(line).collect::<String>().into_bytes()
}

fn configured(data: &[u8]) -> Lengths {
    assert!(segue_cli::parse_configuration("segue.toml", data.to_vec()).is_err());
    silent(data)
}

/// Returns a request that replaces a peer table.
fn change(count: usize) -> Vec<u8> {
    [&br#"{"peers":{"sync":"#[..], &peers(count), b"}}"].concat()
}

fn requested(data: &[u8]) -> Lengths {
    Request::parse(data).expect("a request");
    silent(data)
}

/// Returns the answer of an instance with many tunnels.
fn instance(count: usize) -> Vec<u8> {
    let counts = || BTreeMap::from([("bad_csum".to_owned(), 1)]);
    let port = || Port { drops: counts(), flushes: counts(), napi: counts(), ..Port::default() };
    let name = |number: usize| format!("sg{number}");
    let ports = (0..count).map(|number| (name(number), port())).collect();
    let tunnels = (0..count).map(|number| (name(number), Tunnel::default())).collect();
    Response::Instance(Box::new(Instance { ports, tunnels, ..Instance::default() })).line().into_bytes()
}

fn listed(count: usize) -> Vec<u8> {
    let table = Table::read(&peers(count), "peers.json").expect("a table");
    let counters = PeerCounters::default();
    let peers = table.peers.into_iter().map(|peer| ListedPeer { peer, counters }).collect();
    Response::Peers(Some(Box::new(Listed { peers, ..Listed::default() }))).line().into_bytes()
}

fn answered(data: &[u8]) -> Lengths {
    Response::parse(data).expect("an answer");
    silent(data)
}

/// Returns an answer in which a few bytes stand for a structure of many.
fn small_values(count: usize) -> Vec<u8> {
    let health = vec![r#"[""]"#; count].join(",");
    format!(r#"{{"instance":{{"name":"","kind":"","pid":1,"uptime_s":1,"health":[{health}]}}}}"#).into_bytes()
}

fn refused(data: &[u8]) -> Lengths {
    assert!(Response::parse(data).is_err());
    silent(data)
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let number = [0, 1, 2].map(|at| u32::from(bytes.get(at).copied().unwrap_or(0)));
        let number = number[0] << 16 | number[1] << 8 | number[2];
        let digit = move |at: usize| char::from(DIGITS[(number >> (18 - 6 * at)) as usize & 63]);
        let len = bytes.len();
        [0, 1, 2, 3].map(|at| if at <= len { digit(at) } else { '=' })
    };
    text.as_bytes().chunks(3).flat_map(group).collect()
}

/// Returns a registry in which each lease becomes a peer.
fn leases(count: usize) -> Vec<u8> {
    let lease = |number: usize| {
        let [[_, _, a, b], [_, _, c, d]] = [number as u32 * 4, number as u32].map(u32::to_be_bytes);
        let data = format!(r#"{{"VNI":7,"VtepMAC":"02:00:00:01:{c:02x}:{d:02x}"}}"#);
        let address = format!("198.18.{}.{d}", c + 1);
        let value = format!(r#"{{"PublicIP":"{address}","BackendType":"vxlan","BackendData":{data}}}"#);
        (format!("/n/subnets/198.19.{a}.{b}-30"), value)
    };
    let all: BTreeMap<String, String> = (1..=count).map(lease).collect();
    let entry = |(key, value): (&String, &String)| {
        format!(r#"{{"key":"{}","create_revision":"5","value":"{}"}}"#, base64(key), base64(value))
    };
    let entries: Vec<String> = all.iter().map(entry).collect();
    format!(r#"{{"header":{{"revision":"5"}},"kvs":[{}]}}"#, entries.join(",")).into_bytes()
}

fn held(data: &[u8]) -> Lengths {
    assert_eq!(etcd::leases(data), String::from_utf8_lossy(data).matches(r#""key""#).count());
    silent(data)
}

fn listed_by_etcd(data: &[u8]) -> Lengths {
    etcd::read(data);
    silent(data)
}

fn reloaded(count: usize) -> Vec<u8> {
    let unchanged = (0..count).map(|number| format!("t{number}")).collect();
    ServiceResponse::Reloaded(Box::new(Reloaded { unchanged, ..Reloaded::default() })).line().into_bytes()
}

fn answered_by_service(data: &[u8]) -> Lengths {
    ServiceResponse::parse(data).expect("an answer");
    silent(data)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns a message of rtnetlink that answers the request of the reader.
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = (16 + body.len() as u32).to_ne_bytes();
    [&len[..], &kind.to_ne_bytes(), &[0; 2], &SEQUENCE.to_ne_bytes(), &[0; 4], body].concat()
}

/// Returns RTM_NEWROUTE of a route to a host with further attributes.
fn route(number: usize, more: &[u8]) -> Vec<u8> {
    let [_, _, a, b] = (number as u32).to_be_bytes();
    message(24, &[&[2_u8, 32, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0][..], &attribute(1, &[198, 19, a, b]), more].concat())
}

fn routes(count: usize) -> Vec<u8> {
    let more = [attribute(4, &2_u32.to_ne_bytes()), attribute(5, &[198, 18, 0, 1])].concat();
    (0..count).flat_map(|number| route(number, &more)).collect()
}

/// Returns routes of up to thousand next hops each.
fn next_hops(count: usize) -> Vec<u8> {
    let hop = |index: &u32| {
        let gateway = attribute(5, &[198, 18, 0, 1]);
        [&16_u16.to_ne_bytes()[..], &[0; 2], &index.to_ne_bytes(), &gateway].concat()
    };
    let indexes: Vec<u32> = (0..count as u32).collect();
    let hops = indexes.chunks(1000).map(|part| attribute(9, &part.iter().flat_map(hop).collect::<Vec<u8>>()));
    hops.enumerate().flat_map(|(number, hops)| route(number, &hops)).collect()
}

/// Returns RTM_NEWNEIGH of many neighbours.
fn neighbours(count: usize) -> Vec<u8> {
    let neighbour = |number: usize| {
        let [_, _, a, b] = (number as u32).to_be_bytes();
        let front = [&[2_u8, 0, 0, 0][..], &2_u32.to_ne_bytes(), &2_u16.to_ne_bytes(), &[0; 2]].concat();
        message(28, &[front, attribute(1, &[198, 19, a, b]), attribute(2, &[2, 0, 0, 0, a, b])].concat())
    };
    (0..count).flat_map(neighbour).collect()
}

/// Returns RTM_NEWLINK of one link with many attributes.
fn attributes(count: usize) -> Vec<u8> {
    message(16, &[vec![0; 16], attribute(3, b"sg0\0"), attribute(60, &[0; 4]).repeat(count)].concat())
}

fn datagram(data: &[u8]) -> Lengths {
    netlink::read(data);
    silent(data)
}

/// Returns an object with many keys besides these.
fn with_keys(keys: &str, count: usize) -> Vec<u8> {
    let key = |number: usize| format!(r#","key {number:06}":["{}",7]"#, "v".repeat(40));
    format!("{{{keys}{}}}", (0..count).map(key).collect::<String>()).into_bytes()
}

/// Returns the event of an instance.
fn event(count: usize) -> Vec<u8> {
    with_keys(r#""event":"set","name":"sg0""#, count)
}

fn said(data: &[u8]) -> Lengths {
    assert!(Said::read(data).expect("an event").is_some());
    silent(data)
}

/// Returns the configuration of a network.
fn network(count: usize) -> Vec<u8> {
    with_keys(
        r#""cniVersion":"1.1.0","name":"pods","type":"segue-cni","ipam":{"type":"host-local","subnet":"198.19.1.0/24"}"#,
        count,
    )
}

fn called(data: &[u8]) -> Lengths {
    cni::add(data).expect("a call");
    silent(data)
}

/// Returns requests of a client of USB/IP to cancel transfers that there are not.
fn unlinks(count: usize) -> Vec<u8> {
    let mut bytes = vec![1, 0x11, 0x80, 3, 0, 0, 0, 0];
    bytes.extend(b"1-1");
    bytes.resize(40, 0);
    for number in 0..count as u32 {
        let begin = bytes.len();
        bytes.extend([2_u32, number, 0, 0, 0, number].map(u32::to_be_bytes).concat());
        bytes.resize(begin + 48, 0);
    }
    bytes
}

fn exported(data: &[u8]) -> Lengths {
    let mut model = Model::new(model::Config::default());
    let mut exported = Exported { bus_id: "1-1".into(), is_taken: false };
    let mut session = Session::default();
    session.feed(data, &mut model, &mut exported);
    let output = session.output().len();
    assert!(output >= data.len(), "each request has an answer");
    session.close(&mut model, &mut exported);
    Lengths { input: data.len(), output }
}

/// Returns records of a handover: sequence numbers of interfaces.
fn handover(count: usize) -> Vec<u8> {
    let record = |number: usize| {
        let mut record = [&b"n"[..], &(number as u32).to_be_bytes(), b"sg0"].concat();
        record.resize(24, 0);
        record
    };
    (0..count).flat_map(record).collect()
}

fn handed_over(data: &[u8]) -> Lengths {
    let (line, far) = Line::pair().expect("a socket pair");
    let far = UnixStream::from(far);
    for record in data.chunks(24) {
        sys::send(&far, record, None).expect("an empty line has room");
        line.receive(Duration::ZERO).expect("a record");
    }
    silent(data)
}
