//! Generators of packet streams, and the faults of a network that carries them.

use crate::Rng;
use crate::build::{Ip, L4, Packet, Tcp, Udp, V4, V6};

/// The fault that a packet has met in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// No fault: the packet arrives in order and unchanged.
    InOrder,
    /// The packet arrives after packets of its flow that were sent later.
    Late,
    /// The packet is a duplicate of one that has arrived.
    Duplicate,
    /// One bit that the transport checksum covers is flipped.
    Corrupt,
}

/// A packet of a flow in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Number of the packet's flow.
    pub flow: usize,
    /// Position among the packets that the flow has sent, from 0.
    pub number: usize,
    /// The fault that the packet has met.
    pub what: What,
    /// The packet, from the IP header on.
    pub bytes: Vec<u8>,
}

/// The sequence of a flow's IPv4 identifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// The identification rises by one with each packet.
    Counting,
    /// The IPv4 identification is constant.
    Fixed,
    /// The IPv4 identification is random.
    Random,
}

/// A generator of the packets of one TCP stream or one UDP flow.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Template of the next packet, without payload and flags.
    pub next: Packet,
    /// Progression of the IPv4 identification.
    pub ids: Ids,
    /// Source of random payload bytes.
    pub rng: Rng,
}

impl Sender {
    /// Makes a TCP stream from port 40000 + `flow` to port 80, starting at sequence number `seq`.
    pub fn tcp(ip: Ip, flow: u16, seq: u32, options: Vec<u8>) -> Sender {
        let l4 = L4::Tcp(Tcp {
            src_port: 40_000 + flow,
            dst_port: 80,
            seq,
            ack: 0x0102_0304,
            flags: 0x10,
            window: 501,
            urgent: 0,
            options,
        });
        Sender::new(ip, l4, u64::from(flow))
    }

    /// Makes a UDP flow from port 40000 + `flow` to port 4000, with checksums.
    pub fn udp(ip: Ip, flow: u16) -> Sender {
        Sender::new(ip, L4::Udp(Udp { src_port: 40_000 + flow, dst_port: 4000, checksum: true }), u64::from(flow))
    }

    fn new(ip: Ip, l4: L4, seed: u64) -> Sender {
        Sender { next: Packet { ip, l4, data: Vec::new() }, ids: Ids::Counting, rng: Rng::new(seed) }
    }

    /// Sends `len` bytes, with `flags` added to ACK in TCP; sequence number and identification advance.
    pub fn send(&mut self, len: usize, flags: u8) -> Packet {
        let mut packet = self.next.clone();
        packet.data = self.rng.bytes(len);
        if let L4::Tcp(tcp) = &mut packet.l4 {
            tcp.flags |= flags;
        }
        if let L4::Tcp(tcp) = &mut self.next.l4 {
            // SYN and FIN take a sequence number each.
            let control = u32::from(flags & 2 != 0) + u32::from(flags & 1 != 0);
            tcp.seq = tcp.seq.wrapping_add(len as u32 + control);
        }
        if let Ip::V4(ip) = &mut self.next.ip {
            ip.id = match self.ids {
                Ids::Counting => ip.id.wrapping_add(1),
                Ids::Fixed => ip.id,
                Ids::Random => self.rng.next_u64() as u16,
            };
        }
        packet
    }

    /// Sends `total` bytes in packets of `size`, the last one perhaps shorter, with `last_flags` on the last.
    pub fn run(&mut self, total: usize, size: usize, last_flags: u8) -> Vec<Packet> {
        let mut packets = Vec::new();
        let mut left = total;
        while left > 0 {
            let len = left.min(size);
            left -= len;
            packets.push(self.send(len, if left == 0 { last_flags } else { 0 }));
        }
        packets
    }
}

/// Returns `count` packets of `flows` flows, TCP and UDP over both versions of IP, like those received by a gateway:
/// bursts of full segments with short ends, PSH, pure acknowledgments, CWR and ECE, advancing timestamps, wrapping
/// sequence and identification numbers, now and then an ICMP packet or a fragment.
pub fn mixed(rng: &mut Rng, flows: usize, count: usize) -> Vec<Sent> {
    let mut senders: Vec<Sender> = (0..flows.max(1)).map(|flow| sender(rng, flow)).collect();
    let mut numbers = vec![0; senders.len()];
    let mut sent = Vec::new();
    while sent.len() < count {
        let flow = rng.below(senders.len());
        let sender = &mut senders[flow];
        for packet in burst(rng, sender) {
            sent.push(Sent { flow, number: numbers[flow], what: What::InOrder, bytes: packet.bytes() });
            numbers[flow] += 1;
        }
    }
    sent.truncate(count);
    sent
}

fn sender(rng: &mut Rng, flow: usize) -> Sender {
    let ip = if rng.chance(500) {
        let mut ip = V4::new(1, 1, 2);
        ip.id = if rng.chance(500) { 0xfffc } else { rng.next_u64() as u16 };
        ip.df = rng.chance(700);
        Ip::V4(ip)
    } else {
        let mut ip = V6::new(1, 1, 2);
        ip.label = rng.below(1 << 20) as u32;
        Ip::V6(ip)
    };
    let mut sender = if rng.chance(700) {
        let seq = if rng.chance(500) { 0xffff_f000 } else { rng.next_u64() as u32 };
        let options = if rng.chance(500) { Tcp::timestamps(100, 200) } else { Vec::new() };
        Sender::tcp(ip, flow as u16, seq, options)
    } else {
        Sender::udp(ip, flow as u16)
    };
    sender.ids = [Ids::Counting, Ids::Counting, Ids::Fixed, Ids::Random][rng.below(4)];
    sender
}

fn burst(rng: &mut Rng, sender: &mut Sender) -> Vec<Packet> {
    let size = [1, 2, 7, 64, 501, 1000, 1448, 1460][rng.below(8)];
    let total = size * rng.below(12) + if rng.chance(500) { rng.below(size) } else { 0 };
    let is_tcp = matches!(sender.next.l4, L4::Tcp(_));
    match rng.below(16) {
        0 if is_tcp => {
            // A pure acknowledgment that moves on.
            if let L4::Tcp(tcp) = &mut sender.next.l4 {
                tcp.ack = tcp.ack.wrapping_add(2896);
            }
            vec![sender.send(0, 0)]
        }
        1 if is_tcp => {
            if let L4::Tcp(tcp) = &mut sender.next.l4
                && !tcp.options.is_empty()
            {
                tcp.options = Tcp::timestamps(rng.next_u64() as u32, 200);
            }
            sender.run(total, size, 0x08)
        }
        2 if is_tcp => vec![sender.send(size, 0x80), sender.send(size, 0x40)],
        3 => {
            let mut packet = sender.send(24, 0);
            packet.l4 = L4::Icmp(if matches!(packet.ip, Ip::V4(_)) { 8 } else { 128 }, 0, [0, 1, 0, 2]);
            vec![packet]
        }
        4 => {
            let mut packet = sender.send(64, 0);
            match &mut packet.ip {
                Ip::V4(ip) => (ip.fragment, ip.df) = (Some((64, true)), false),
                Ip::V6(ip) => ip.fragment = Some((7, 64, true)),
            }
            packet.l4 = L4::Raw(packet.l4.protocol(&packet.ip));
            vec![packet]
        }
        _ => sender.run(total, size, if rng.chance(400) { 0x08 } else { 0 }),
    }
}

/// Returns `count` packets of `flows` flows like those of receivers of bulk data: runs of advancing acknowledgments,
/// with timestamps or without, and among them all that their senders must receive: duplicates, window updates, shrunk
/// windows, SACK blocks, other flags, older numbers, another TTL, keep-alives, data, and connections that begin and
/// end.
pub fn acknowledging(rng: &mut Rng, flows: usize, count: usize) -> Vec<Sent> {
    let mut senders: Vec<Sender> = (0..flows.max(1))
        .map(|flow| {
            let mut ip = if rng.chance(500) { Ip::V4(V4::new(1, 1, 2)) } else { Ip::V6(V6::new(1, 1, 2)) };
            if let Ip::V4(ip) = &mut ip {
                ip.df = rng.chance(700);
            }
            let options = if rng.chance(500) { Tcp::timestamps(0xffff_ffc0, 200) } else { Vec::new() };
            let mut sender = Sender::tcp(ip, flow as u16, rng.next_u64() as u32, options);
            sender.ids = [Ids::Counting, Ids::Fixed, Ids::Random][rng.below(3)];
            if let L4::Tcp(tcp) = &mut sender.next.l4 {
                tcp.ack = if rng.chance(500) { 0xffff_f000 } else { rng.next_u64() as u32 };
            }
            sender
        })
        .collect();
    let mut numbers = vec![0; senders.len()];
    let mut sent = Vec::new();
    while sent.len() < count {
        let flow = rng.below(senders.len());
        for _ in 0..1 + rng.below(6) {
            let bytes = acknowledgment(rng, &mut senders[flow]).bytes();
            sent.push(Sent { flow, number: numbers[flow], what: What::InOrder, bytes });
            numbers[flow] += 1;
        }
    }
    sent.truncate(count);
    sent
}

fn acknowledgment(rng: &mut Rng, sender: &mut Sender) -> Packet {
    let what = rng.below(100);
    let L4::Tcp(tcp) = &mut sender.next.l4 else { return sender.send(0, 0) };
    let (ack, window) = (tcp.ack, tcp.window);
    let more = [1448, 2896, 2896, 65_160][rng.below(4)];
    let mut edit: fn(&mut Tcp) = |_| {};
    let (mut len, mut flags) = (0, 0);
    match what {
        0..70 => tcp.ack = ack.wrapping_add(more),
        70..75 => {}
        75..78 => tcp.window = window.wrapping_add(1 + rng.below(9) as u16),
        78..82 => (tcp.ack, tcp.window) = (ack.wrapping_add(more), window.saturating_sub(rng.below(9) as u16)),
        82..85 => {
            // Four blocks are the most; one is enough.
            edit = |tcp| tcp.options = [&[1, 1, 5, 10][..], &[7; 8]].concat();
        }
        85..88 => {
            tcp.ack = ack.wrapping_add(more);
            flags = [0x40, 0x80, 0x08, 0x20][rng.below(4)];
        }
        88..91 => edit = |tcp| tcp.ack = tcp.ack.wrapping_sub(1448),
        91..93 => edit = |tcp| tcp.seq = tcp.seq.wrapping_sub(1),
        93..97 => {
            tcp.ack = ack.wrapping_add(more);
            len = 1 + rng.below(200);
        }
        97 => {
            flags = 0x01 << rng.below(3);
            edit = |tcp| tcp.options = vec![2, 4, 5, 0xb4, 1, 3, 3, 7];
        }
        _ => {
            tcp.ack = ack.wrapping_add(more);
            match &mut sender.next.ip {
                Ip::V4(ip) => ip.ttl ^= 1,
                Ip::V6(ip) => ip.class ^= 2,
            }
        }
    }
    if let L4::Tcp(tcp) = &mut sender.next.l4
        && let Some(stamp) = tcp.options.get_mut(4..8)
        && rng.chance(300)
    {
        let value = u32::from_be_bytes([stamp[0], stamp[1], stamp[2], stamp[3]]);
        let value = if rng.chance(20) { value.wrapping_sub(3) } else { value.wrapping_add(1) };
        stamp.copy_from_slice(&value.to_be_bytes());
    }
    let mut packet = sender.send(len, flags);
    if let L4::Tcp(tcp) = &mut packet.l4 {
        edit(tcp);
    }
    packet
}

/// Rates of a network's faults, each per 1000 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Rate of lost packets.
    pub loss: usize,
    /// Rate of packets delivered twice.
    pub duplicate: usize,
    /// Number of packets delivered up to four positions later.
    pub reorder: usize,
    /// Number of packets with one flipped bit under their transport checksum.
    pub corrupt: usize,
}

/// Applies `faults` to `packets` and returns the packets in order of arrival.
pub fn disturb(rng: &mut Rng, packets: Vec<Sent>, faults: Faults) -> Vec<Sent> {
    // Each packet gets a place twice its number; a late one an odd place further back.
    let mut arrivals: Vec<(usize, Sent)> = Vec::new();
    for (index, mut packet) in packets.into_iter().enumerate() {
        let mut place = 2 * index;
        if rng.chance(faults.loss) {
            continue;
        }
        if rng.chance(faults.corrupt) && packet.what == What::InOrder && corrupt(rng, &mut packet.bytes) {
            packet.what = What::Corrupt;
        } else if rng.chance(faults.reorder) {
            place += 2 * rng.below(4) + 3;
        }
        if rng.chance(faults.duplicate) && packet.what == What::InOrder {
            let copy = Sent { what: What::Duplicate, ..packet.clone() };
            arrivals.push((place + 2 * rng.below(4) + 1, copy));
        }
        arrivals.push((place, packet));
    }
    arrivals.sort_by_key(|a| a.0);
    let mut arrived: Vec<Sent> = arrivals.into_iter().map(|a| a.1).collect();
    mark_late(&mut arrived);
    arrived
}

fn mark_late(packets: &mut [Sent]) {
    let flows = packets.iter().map(|p| p.flow + 1).max().unwrap_or(0);
    let mut highest = vec![None; flows];
    for packet in packets {
        if packet.what == What::InOrder && highest[packet.flow].is_some_and(|h| packet.number < h) {
            packet.what = What::Late;
        }
        highest[packet.flow] = highest[packet.flow].max(Some(packet.number));
    }
}

/// Flips one bit that the transport checksum covers, outside the checksum field. Returns `false` where nothing is
/// covered.
pub fn corrupt(rng: &mut Rng, packet: &mut [u8]) -> bool {
    let Some((start, field, _)) = crate::build::primed(packet) else { return false };
    let len = packet.len() - start;
    loop {
        let at = start + rng.below(len);
        if at != field && at != field + 1 {
            packet[at] ^= 1 << rng.below(8);
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{Ports, Start, verify};

    #[test]
    fn mixed_traffic_is_good_and_numbered() {
        let sent = mixed(&mut Rng::new(3), 16, 600);
        assert_eq!(sent.len(), 600);
        for packet in &sent {
            verify(&packet.bytes, Start::Ip, &Ports::default()).unwrap();
        }
        for flow in 0..16 {
            let numbers: Vec<_> = sent.iter().filter(|p| p.flow == flow).map(|p| p.number).collect();
            assert!(numbers.iter().copied().eq(0..numbers.len()));
        }
    }

    #[test]
    fn acknowledgments_are_good_and_most_of_them_move_on() {
        let sent = acknowledging(&mut Rng::new(3), 4, 1000);
        let ack = |p: &Sent| {
            let at = if p.bytes[0] >> 4 == 4 { 28 } else { 48 };
            u32::from_be_bytes(p.bytes[at..at + 4].try_into().unwrap())
        };
        let mut ahead = 0;
        for flow in 0..4 {
            let packets: Vec<_> = sent.iter().filter(|p| p.flow == flow).collect();
            ahead += packets.windows(2).filter(|p| (ack(p[1]).wrapping_sub(ack(p[0])) as i32) > 0).count();
        }
        assert!((600..950).contains(&ahead), "{ahead}");
        for packet in &sent {
            verify(&packet.bytes, Start::Ip, &Ports::default()).unwrap();
        }
    }

    #[test]
    fn faults_are_what_their_marks_say() {
        let mut rng = Rng::new(4);
        let sent = mixed(&mut rng, 8, 2000);
        let faults = Faults { loss: 30, duplicate: 30, reorder: 30, corrupt: 30 };
        let arrived = disturb(&mut rng, sent.clone(), faults);
        for what in [What::InOrder, What::Late, What::Duplicate, What::Corrupt] {
            assert!(arrived.iter().filter(|p| p.what == what).count() > 5, "{what:?}");
        }
        let lost = sent.iter().filter(|s| !arrived.iter().any(|a| (a.flow, a.number) == (s.flow, s.number))).count();
        assert!((20..150).contains(&lost), "{lost}");
        for packet in &arrived {
            let is_good = verify(&packet.bytes, Start::Ip, &Ports::default()).is_ok();
            assert_eq!(is_good, packet.what != What::Corrupt);
        }
    }

    #[test]
    fn sequence_numbers_and_identification_wrap() {
        let mut ip = V4::new(1, 1, 2);
        ip.id = 0xffff;
        let mut sender = Sender::tcp(Ip::V4(ip), 0, u32::MAX - 9, Vec::new());
        let run = sender.run(25, 10, 0x09);
        let seqs: Vec<_> = run.iter().filter_map(|p| if let L4::Tcp(t) = &p.l4 { Some(t.seq) } else { None }).collect();
        assert_eq!(seqs, [u32::MAX - 9, 0, 10]);
        let Ip::V4(ip) = &sender.next.ip else { panic!() };
        assert_eq!(ip.id, 2);
    }
}
