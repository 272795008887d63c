//! Command `segue-beside speed ROUNDS`, which prints nanoseconds per packet for each workload, segue's and tun-rs's
//! alternating, one line per round; `segue-beside count` runs the workloads whose instructions callgrind counts, one
//! after another.

use std::hint::black_box;
use std::time::Instant;

use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::easy::{Joiner, Splitter};
use segue::gro::{Config, Frame, Gro};
use segue::gso::{Arena, Frames, Limits, split, split_linear};
use segue::hash::Key;
use segue::packet::{Csum, Frag, Packet, Pool, Start};
use segue::time::Nanos;
use segue::virtio::{self, Form, Loaded, TUN_OFFLOADS, VirtioNet};
use tun_rs::{GROTable, VIRTIO_NET_HDR_LEN, VirtioNetHdr, gso_split};

/// Payload of a full segment, bytes.
const FULL: usize = 1448;
/// Number of segments of a train.
const TRAIN: usize = 44;
/// Number of packets of a batch.
const BATCH: usize = 64;
/// Number of bytes that a cipher prepends to a packet.
const FRONT: usize = 16;

/// Returns a packet of TCP with timestamps and right checksums.
fn packet(v6: bool, flow: u16, number: usize, len: usize) -> Vec<u8> {
    let mut tcp = [5000 + flow, 5201].map(u16::to_be_bytes).concat();
    tcp.extend(((number * FULL) as u32).to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0x80, 0x10, 2, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7]);
    tcp.extend((0..len).map(|at| (at * 7 + number) as u8));
    let [a, b] = (if v6 { tcp.len() } else { tcp.len() + 20 } as u16).to_be_bytes();
    let (mut ip, mut sum) = if v6 {
        let ends = [1, 2].map(|end| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        let header = [&[0x60, 0, 0, 0, a, b, 6, 64][..], &ends.concat()].concat();
        (header, pseudo_v6(ends[0], ends[1], 6, tcp.len()))
    } else {
        let ends = [[198, 18, 0, 1], [198, 18, 0, 2]];
        let [c, d] = (number as u16).to_be_bytes();
        let mut header = [&[0x45, 0, a, b, c, d, 0x40, 0, 64, 6, 0, 0][..], &ends.concat()].concat();
        let field = Field::complete(Sum::of(&header)).value();
        header[10..12].copy_from_slice(&field.to_be_bytes());
        (header, pseudo_v4(ends[0], ends[1], 6, tcp.len()))
    };
    sum.add(&tcp);
    tcp[16..18].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
    ip.extend(tcp);
    ip
}

/// Returns the bytes of a read of a device: a virtio-net header and a train.
fn train(v6: bool) -> Vec<u8> {
    let header = VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: if v6 { virtio::GSO_TCPV6 } else { virtio::GSO_TCPV4 },
        hdr_len: if v6 { 72 } else { 52 },
        gso_size: FULL as u16,
        csum_start: if v6 { 40 } else { 20 },
        csum_offset: 16,
        ..VirtioNet::default()
    };
    [&header.emit(Form::Basic)[..10], &packet(v6, 1, 0, TRAIN * FULL)].concat()
}

/// Returns a batch of full segments of this many flows in turn, each packet after the room for a virtio-net header.
fn batch(flows: usize) -> Vec<Vec<u8>> {
    let one = |at: usize| {
        // Room for a train after it, as tun-rs needs; not a multiple of a page, which would share places of the cache.
        let mut buffer = Vec::with_capacity(65_535 + 700);
        buffer.resize(VIRTIO_NET_HDR_LEN, 0);
        buffer.extend(packet(false, (at % flows) as u16, at / flows, FULL));
        buffer
    };
    (0..BATCH).map(one).collect()
}

/// Workloads and their packets.
struct Work {
    splitter: Splitter,
    joiner: Joiner,
    table: GROTable,
    outs: Vec<Vec<u8>>,
    sizes: Vec<usize>,
    /// The packets of which tun-rs makes trains.
    own: Vec<Vec<u8>>,
}

impl Work {
    fn new() -> Work {
        Work {
            splitter: Splitter::virtio(Form::Basic, Start::Ip),
            joiner: Joiner::tun(Key([3, 4]), TUN_OFFLOADS[0]),
            table: GROTable::new(),
            outs: vec![vec![0; 2048]; 128],
            sizes: vec![0; 128],
            own: batch(1),
        }
    }

    /// Splits a read into the caller's buffers, with headroom.
    #[inline(never)]
    fn split(&mut self, read: &[u8]) -> usize {
        let mut bytes = 0;
        let packets = self.splitter.read(read).unwrap();
        for (packet, out) in packets.iter().zip(&mut self.outs) {
            bytes += packet.write_to(&mut out[FRONT..]).unwrap();
        }
        bytes
    }

    /// Splits a read by tun-rs's functions.
    fn split_theirs(&mut self, read: &mut [u8]) -> usize {
        let header = VirtioNetHdr::decode(read).unwrap();
        let v6 = header.gso_type == virtio::GSO_TCPV6;
        let count =
            gso_split(&mut read[VIRTIO_NET_HDR_LEN..], header, &mut self.outs, &mut self.sizes, FRONT, v6).unwrap();
        self.sizes[..count].iter().sum()
    }

    /// Joins borrowed packets; goes through the pieces as a vectored write does.
    #[inline(never)]
    fn join(&mut self, packets: &[Vec<u8>]) -> (usize, usize) {
        let (mut trains, mut bytes, mut batch) = (0, 0, self.joiner.batch());
        for packet in packets {
            batch.push(&packet[VIRTIO_NET_HDR_LEN..]);
        }
        while let Some(train) = batch.pop() {
            trains += 1;
            bytes += train.pieces().map(|piece| black_box(piece).len()).sum::<usize>();
        }
        (trains, bytes)
    }

    /// Joins packets by tun-rs, which changes them.
    fn join_theirs(&mut self) {
        self.table.apply_gro(black_box(&mut self.own), VIRTIO_NET_HDR_LEN, true).unwrap();
    }
}

/// Splits, as [`Work::split`] does, a train in a buffer that the packet owns, into the engine's memory. Gives the
/// buffer back.
#[inline(never)]
fn split_owned(packet: &mut Packet<Vec<u8>>, frames: &mut Frames, read: Vec<u8>) -> (usize, Vec<u8>) {
    let header = VirtioNet::parse(&read, Form::Basic).unwrap();
    let len = read.len();
    assert_eq!(virtio::load(&header, Frag::new(read, 10..len), Start::Ip, packet), Ok(Loaded::Ready));
    frames.clear();
    let count = split_linear(packet, &Limits::NONE, frames).unwrap();
    (count, packet.payload.drain().next().unwrap().into_inner())
}

/// GRO of packets with owned buffers, with the memory that splitting and joining need.
struct Owned {
    gro: Gro<Vec<u8>>,
    pool: Pool<Vec<u8>>,
    arena: Arena,
    limits: Limits,
}

/// Joins, as [`Work::join`] does, packets that the engine owns. Gives their buffers back.
#[inline(never)]
fn join_owned(owned: &mut Owned, packets: &mut Vec<Vec<u8>>) -> (usize, usize) {
    let Owned { gro, pool, arena, limits } = owned;
    for bytes in packets.drain(..) {
        let len = bytes.len();
        let bytes = Frag::new(bytes, VIRTIO_NET_HDR_LEN..len);
        gro.push_frame(Frame { bytes, start: Start::Ip, csum: Csum::Unknown }, Nanos(1), pool);
    }
    gro.flush();
    let (mut trains, mut bytes) = (0, 0);
    while let Some(mut packet) = gro.pop_from(pool) {
        arena.clear();
        split(&packet, limits, arena).unwrap();
        for segment in arena.segments() {
            let head = arena.head(segment);
            let header = virtio::describe(segment, head, &packet.layout).unwrap().emit(Form::Basic);
            trains += 1;
            bytes += black_box(&header[..10]).len() + black_box(head).len();
            bytes += segment.pieces(&packet).map(|piece| black_box(piece).len()).sum::<usize>();
        }
        packets.extend(packet.payload.drain().map(|frag| frag.into_inner()));
        pool.put(packet);
    }
    (trains, bytes)
}

/// Prints nanoseconds per packet of both: `restore` runs before each call of tun-rs's, outside of the time.
fn each(
    (what, count): (&str, usize),
    (ours, theirs): (&mut Work, &mut Work),
    [work, restore, other]: [&mut dyn FnMut(&mut Work); 3],
) {
    const CALLS: usize = 40;
    let mut spent = [0; 2];
    for _ in 0..CALLS {
        let begin = Instant::now();
        work(ours);
        spent[0] += begin.elapsed().as_nanos();
        restore(theirs);
        let begin = Instant::now();
        other(theirs);
        spent[1] += begin.elapsed().as_nanos();
    }
    let [a, b] = spent.map(|nanos| nanos as f64 / (CALLS * count) as f64);
    println!("{a:.2} {b:.2} {what}");
}

fn speed(rounds: usize) {
    let (mut ours, mut theirs) = (Work::new(), Work::new());
    let trains = [("split, TCP over IPv4", train(false)), ("split, TCP over IPv6", train(true))];
    let flows = [("GRO, 1 flow", 1), ("GRO, 8 flows", 8), ("GRO, 64 flows", 64)]
        .map(|(what, flows)| (what, flows, batch(flows)));
    for _ in 0..=rounds {
        for (what, read) in &trains {
            let mut own = read.clone();
            assert_eq!(ours.split(read), theirs.split_theirs(&mut own));
            let bytes =
                |work: &Work| work.outs[..TRAIN].iter().map(|out| out[FRONT..][..1500].to_vec()).collect::<Vec<_>>();
            assert!(bytes(&ours) == bytes(&theirs), "{what}: both make the same packets");
            each(
                (what, TRAIN),
                (&mut ours, &mut theirs),
                [&mut |work| _ = black_box(work.split(black_box(read))), &mut |_| (), &mut |work| {
                    _ = black_box(work.split_theirs(black_box(&mut own)))
                }],
            );
        }
        for (what, flows, packets) in &flows {
            let (trains, bytes) = ours.join(packets);
            // A train has at most 64 kB: 45 packets.
            assert_eq!((trains, bytes), ((*flows).max(2), trains * 62 + BATCH * FULL));
            theirs.own.clone_from(packets);
            theirs.join_theirs();
            let grown = theirs.own.iter().filter(|packet| packet.len() > 2000).count();
            assert_eq!(grown, if *flows == BATCH { 0 } else { trains }, "{what}: as many trains");
            // What tun-rs changes is put back: lengths and headers.
            let mut restore = |work: &mut Work| {
                for (own, packet) in work.own.iter_mut().zip(packets) {
                    own.truncate(packet.len());
                    own[..80].copy_from_slice(&packet[..80]);
                }
            };
            each(
                (what, BATCH),
                (&mut ours, &mut theirs),
                [&mut |work| _ = black_box(work.join(black_box(packets))), &mut restore, &mut |work| {
                    work.join_theirs()
                }],
            );
        }
    }
}

/// Runs each function twice, the second time for callgrind: `split`, `split_owned`, `join` and `join_owned`.
fn count() {
    let (mut work, mut read, packets) = (Work::new(), train(false), batch(8));
    let (mut packet, mut frames) = (Packet::default(), Frames::new());
    let limits = Limits::tun(TUN_OFFLOADS[0]);
    let gro = Gro::new(Config::vpn(Key([3, 4])));
    let mut owned = Owned { gro, pool: Pool::new(BATCH), arena: Arena::new(), limits };
    for _ in 0..2 {
        assert_eq!(work.split(&read), TRAIN * 1500);
        let (count, same) = split_owned(&mut packet, &mut frames, read);
        assert_eq!(count, TRAIN);
        read = same;
        let joined = work.join(&packets);
        assert_eq!(joined, (8, 8 * 62 + BATCH * FULL));
        assert_eq!(join_owned(&mut owned, &mut packets.clone()), joined);
    }
}

fn main() {
    match std::env::args().skip(1).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["speed", rounds] => speed(rounds.parse().expect("a number of rounds")),
        ["count"] => count(),
        _ => panic!("usage: segue-beside speed ROUNDS | count"),
    }
}
