//! Capture files of many shapes, made from generated traffic.
#![allow(dead_code, reason = "each test file uses a part")]

use segue_capture::file::{
    Format, Interface, Order, Outgoing, PcapHeader, Resolution, Writer, interface_block, link, options, section_block,
};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::{Faults, Ids, Sender, disturb, mixed};

/// The parameters of a generated capture, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) traffic: &'static str,
    pub(crate) link: u16,
    pub(crate) form: &'static str,
}

const TRAFFIC: &[&str] = &[
    "bulk",
    "mixed",
    "faults",
    "tiny",
    "unfinished",
    "trains",
    "gue",
    "vxlan",
    "gre",
    "ipip",
    "odd",
    "big_ids",
    "udp",
];
const LINKS: &[u16] = &[link::ETHERNET, link::RAW, link::COOKED, link::COOKED2];
const FORMS: &[&str] = &["us_le", "us_be", "ns_le", "ns_be", "ng", "ng_be", "ng_many"];

/// Returns `count` shapes, all different.
pub(crate) fn shapes(count: u64) -> Vec<Shape> {
    (0..count)
        .map(|seed| {
            let n = seed as usize;
            let traffic = TRAFFIC[n % TRAFFIC.len()];
            let link = LINKS[(n / 3 + n / 12) % LINKS.len()];
            Shape { seed, traffic, link, form: FORMS[n % FORMS.len()] }
        })
        .collect()
}

/// Returns the IP packets of a kind of traffic.
pub(crate) fn packets(traffic: &str, rng: &mut Rng) -> Vec<Vec<u8>> {
    let v4 = |host: u8| Ip::V4(V4::new(1, host, 200));
    let v6 = |host: u8| Ip::V6(V6::new(1, host, 200));
    let tunnel = |ip: Ip, udp: Option<(Udp, Shim)>, gre: Option<Gre>| Tunnel { ip, udp, gre, ethernet: None };
    let outer = Udp { src_port: 50_000, dst_port: 6080, checksum: true };
    let wrapped = |tunnels: &[Tunnel], plain: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
        let mut ids = 0_u16;
        plain
            .iter()
            .enumerate()
            .map(|(n, inner)| {
                let mut tunnel = tunnels[n / 200 % tunnels.len()].clone();
                if let Ip::V4(ip) = &mut tunnel.ip {
                    ip.id = ids;
                    ids = ids.wrapping_add(1);
                }
                tunnel.wrap(inner)
            })
            .collect()
    };
    match traffic {
        "bulk" => {
            let mut senders = [Sender::tcp(v4(1), 1, 7, vec![]), Sender::tcp(v6(2), 2, u32::MAX - 90_000, vec![1; 12])];
            (0..12).flat_map(|n| senders[n % 2].run(60_000, 1428, 8)).map(|p| p.bytes()).collect()
        }
        "big_ids" => {
            let mut ip = V4::new(1, 3, 4);
            ip.id = 0xfff0;
            ip.df = rng.chance(500);
            let mut sender = Sender::tcp(Ip::V4(ip), 9, 1, vec![]);
            (0..6)
                .flat_map(|n| {
                    sender.ids = [Ids::Counting, Ids::Fixed, Ids::Random][n % 3];
                    sender.run(30_000, 1460, 8)
                })
                .map(|p| p.bytes())
                .collect()
        }
        "udp" => {
            let mut senders = [Sender::udp(v4(1), 1), Sender::udp(v6(2), 2)];
            (0..8).flat_map(|n| senders[n % 2].run(30_000, 1200, 0)).map(|p| p.bytes()).collect()
        }
        "mixed" => mixed(rng, 16, 500).into_iter().map(|sent| sent.bytes).collect(),
        "faults" => {
            let sent = mixed(rng, 8, 500);
            let faults = Faults { loss: 20, duplicate: 40, reorder: 60, corrupt: 40 };
            disturb(rng, sent, faults).into_iter().map(|sent| sent.bytes).collect()
        }
        "tiny" => {
            let mut senders = [Sender::tcp(v4(1), 1, 1, vec![]), Sender::udp(v4(2), 2)];
            (0..40).flat_map(|n| senders[n % 2].run(10 * (n + 1), 1 + n % 7, 0)).map(|p| p.bytes()).collect()
        }
        "unfinished" => {
            let plain = packets("bulk", rng);
            plain.iter().map(|p| if rng.chance(900) { build::prime(p).unwrap() } else { p.clone() }).collect()
        }
        "trains" => {
            // What a capture taken after GRO holds: whole trains between single packets, finished or not.
            let mut sender = Sender::tcp(v4(1), 1, 1, vec![]);
            (0..60)
                .map(|n| {
                    let packet = sender.send([1448, 14_480, 60_000, 1448, 1448, 300][n % 6], 0).bytes();
                    if n % 4 == 0 { build::prime(&packet).unwrap() } else { packet }
                })
                .collect()
        }
        "gue" => {
            let inner = [packets("bulk", rng), packets("mixed", rng)].concat();
            let tunnels: Vec<Tunnel> = [Some(Remcsum::Transport), None]
                .into_iter()
                .map(|remcsum| tunnel(v4(9), Some((outer, Shim::Gue(remcsum))), None))
                .collect();
            wrapped(&tunnels, inner.into_iter().filter(|p| p.len() < 60_000).collect())
        }
        "vxlan" => {
            let inner = [packets("bulk", rng), packets("mixed", rng)].concat();
            let forms = [(4789, Shim::Vxlan(7, true)), (4789, Shim::Vxlan(7, false)), (6081, Shim::Geneve(7, 2))];
            let tunnels = forms.map(|(dst_port, shim)| Tunnel {
                ethernet: Some(Ethernet { tags: vec![(0x8100, 3)], ..Ethernet::default() }),
                ..tunnel(v4(9), Some((Udp { dst_port, ..outer }, shim)), None)
            });
            wrapped(&tunnels, inner.into_iter().filter(|p| p.len() < 60_000).collect())
        }
        "gre" => {
            let inner = packets("bulk", rng);
            let tunnels = [
                tunnel(v4(9), None, Some(Gre { checksum: true, key: Some(7), seq: None })),
                tunnel(v6(9), None, Some(Gre::default())),
            ];
            wrapped(&tunnels, inner)
        }
        "ipip" => wrapped(&[tunnel(v4(9), None, None), tunnel(v6(9), None, None)], packets("bulk", rng)),
        _ => {
            // Bytes of no meaning, and headers with one bit off.
            let mut all = packets("mixed", rng);
            for packet in &mut all {
                if rng.chance(300) {
                    let at = rng.below(packet.len().min(60));
                    packet[at] ^= 1 << rng.below(8);
                } else if rng.chance(100) {
                    *packet = rng.bytes(40);
                }
            }
            all
        }
    }
}

/// Returns the packet after a link header, padded as on Ethernet.
pub(crate) fn framed(number: u16, packet: &[u8], rng: &mut Rng) -> Vec<u8> {
    let is_ip = matches!(packet.first().map(|b| b >> 4), Some(4 | 6));
    let ethertype: [u8; 2] = if packet.first().is_some_and(|b| b >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
    match number {
        link::ETHERNET => {
            let tags = if packet.len() % 7 == 3 { vec![(0x8100, 0x2005)] } else { vec![] };
            let ethernet = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags };
            let mut frame = if is_ip { ethernet.wrap(packet) } else { [&[2; 12][..], &[8, 0], packet].concat() };
            while frame.len() < 60 {
                frame.push(if rng.chance(200) { 0xaa } else { 0 });
            }
            frame
        }
        link::COOKED => {
            let mut head = vec![0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, (packet.len() % 3 / 2) as u8, 0, 0];
            head.extend(ethertype);
            [head, packet.to_vec()].concat()
        }
        link::COOKED2 => {
            let mut head = ethertype.to_vec();
            head.extend([0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0]);
            [head, packet.to_vec()].concat()
        }
        _ => packet.to_vec(),
    }
}

/// Builds the whole capture file.
pub(crate) fn file(shape: &Shape) -> Vec<u8> {
    let mut rng = Rng::new(shape.seed + 1);
    let frames: Vec<Vec<u8>> =
        packets(shape.traffic, &mut rng).iter().map(|packet| framed(shape.link, packet, &mut rng)).collect();
    capture(shape, &frames, &mut rng)
}

/// Builds a capture file of `frames` in the form of `shape`.
pub(crate) fn capture(shape: &Shape, frames: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut nanos = 1_700_000_000_123_456_789_u64;
    let mut next = |rng: &mut Rng| {
        nanos = nanos.wrapping_add(rng.below(30_000) as u64);
        if rng.chance(20) { nanos - 50_000 } else { nanos }
    };
    let order = if shape.form.ends_with("be") { Order::Big } else { Order::Little };
    if !shape.form.starts_with("ng") {
        let nanos = shape.form.starts_with("ns");
        let head = PcapHeader { order, nanos, snaplen: 65_535, link: u32::from(shape.link) };
        let mut writer = Writer::new(Vec::new(), Format::Pcap);
        let mut raw = head.bytes();
        // A time zone, which is unused and must stay.
        raw[8] = 1;
        writer.begin_pcap(&head, &raw, &[]).unwrap();
        let resolution = if nanos { Resolution::NANO } else { Resolution::MICRO };
        for frame in frames {
            let ticks = Some(resolution.ticks(next(rng)));
            // Now and then a packet that was cut when captured.
            let cut = if rng.chance(5) { frame.len() / 2 } else { frame.len() };
            let len = frame.len() as u32;
            writer.packet(&Outgoing { interface: 0, ticks, len, data: &[&frame[..cut]], options: &[] }).unwrap();
        }
        return writer.finish().unwrap();
    }
    let mut file = Vec::new();
    let sections = if shape.form == "ng_many" { 3 } else { 1 };
    for (section, part) in frames.chunks(frames.len().div_ceil(sections)).enumerate() {
        let order = if section == 1 { Order::Big } else { order };
        let mut list = Vec::new();
        options::push(&mut list, order, options::SHB_USERAPPL, b"a test of segue");
        file.extend(section_block(order, &list));
        let plain = Interface {
            link: shape.link,
            fcs_len: 0,
            snaplen: 0,
            resolution: Resolution::NANO,
            offset_seconds: 0,
            name: Some("eth0".into()),
        };
        let micro = Interface { resolution: Resolution::MICRO, snaplen: 2000, name: None, ..plain.clone() };
        let many = shape.form == "ng_many";
        file.extend(interface_block(order, if many { &micro } else { &plain }));
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        let start = segue_capture::file::Block {
            kind: segue_capture::file::BlockKind::Section,
            raw: &[],
            order,
            interface: None,
        };
        writer.block(&start).unwrap();
        if many {
            file.extend(interface_block(order, &plain));
        }
        for (n, frame) in part.iter().enumerate() {
            if many && n % 50 == 20 {
                // Interface statistics in the middle, of which nothing is known.
                let block = [5_u32, 24, 0, 1, 2, 24].map(|word| match order {
                    Order::Big => word.to_be_bytes(),
                    Order::Little => word.to_le_bytes(),
                });
                let other = segue_capture::file::Block {
                    kind: segue_capture::file::BlockKind::Other,
                    raw: block.as_flattened(),
                    order,
                    interface: None,
                };
                writer.block(&other).unwrap();
            }
            let interface = if many { u32::from(n / 40 % 2 == 0) } else { 0 };
            let resolution = if many && interface == 0 { Resolution::MICRO } else { Resolution::NANO };
            let mut list = Vec::new();
            if many || n % 3 == 0 {
                options::push(&mut list, order, options::EPB_FLAGS, &[1, 0, 0, (n / 30) as u8]);
            }
            if many && n % 31 == 0 {
                options::push(&mut list, order, options::COMMENT, b"a remark");
                options::push(&mut list, order, options::EPB_HASH, &[2, 1, 2, 3, 4]);
            }
            let simple = many && interface == 0 && frame.len() <= 2000 && n % 4 == 0;
            let ticks = if simple { None } else { Some(resolution.ticks(next(rng))) };
            let options = if simple { &[][..] } else { &list };
            writer.packet(&Outgoing { interface, ticks, len: frame.len() as u32, data: &[frame], options }).unwrap();
        }
        file.extend(writer.finish().unwrap());
    }
    file
}
