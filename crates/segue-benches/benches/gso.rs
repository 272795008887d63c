//! Measures the cost of splitting a train and that of a plain copy of the same bytes: `cargo bench -p segue-benches
//! --bench gso`.
//!
//! Trains are 64 KB in segments of 1448 bytes (TCP) or 1472 (UDP), with the payload in the ranges that the case names.
//! `memcpy` is `copy_from_slice` of as many bytes, in the same ranges, to the same places. Throughput counts the bytes
//! of all frames.
//!
//! Compare by the table at the start: it measures the three in turn, and shows the faster quarter of each.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use segue::gso::{Arena, Fragment, Frames, Limits, split, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, LayerCsum, Offload, Packet, Start, TrainCsum, Tunnels, Unit};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ip, L4, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6};

const TRAIN: usize = 44 * 1448;

struct Case {
    name: &'static str,
    packet: Packet<Vec<u8>>,
    limits: Limits,
}

fn load(bytes: &[u8]) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    let tunnels = Tunnels::NONE.with_gue(6080);
    packet.load(Frag::all(bytes.to_vec()), Start::Ip, &tunnels);
    packet
}

/// Returns a train with the headers of this packet and its payload in `pieces` ranges.
fn train(ip: Ip, l4: L4, size: u16, pieces: usize, tunnel: Option<&Tunnel>) -> Packet<Vec<u8>> {
    let kind = if matches!(l4, L4::Tcp(_)) { GsoKind::Tcp } else { GsoKind::Udp };
    let small = build::Packet { ip, l4, data: vec![0; 16] }.bytes();
    let bytes = build::prime(&small).expect("a transport header");
    let mut packet = load(&tunnel.map_or(bytes.clone(), |tunnel| tunnel.wrap(&bytes)));
    let unit = Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } };
    let mut offload = Offload::plain(unit);
    if tunnel.is_some() {
        let received = packet.offload.layers()[0];
        offload.push_outer(segue::packet::Layer { udp: LayerCsum::Owed, ..received });
    }
    packet.offload = offload;
    packet.payload.clear();
    let data = Rng::new(1).bytes(TRAIN);
    for piece in data.chunks(TRAIN.div_ceil(pieces)) {
        packet.payload.push(Frag::all(piece.to_vec()));
    }
    packet
}

fn tcp() -> L4 {
    L4::Tcp(Tcp {
        src_port: 1000,
        dst_port: 80,
        seq: 1,
        ack: 1,
        flags: 0x18,
        window: 500,
        urgent: 0,
        options: Tcp::timestamps(1, 2),
    })
}

fn udp() -> L4 {
    L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })
}

fn cases() -> Vec<Case> {
    let v4 = || Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) });
    let v6 = || Ip::V6(V6::new(1, 1, 2));
    let none = Limits::NONE;
    let port = Limits { csum: true, outer_csum: true, ..none };
    let outer = Udp { src_port: 50_000, dst_port: 6080, checksum: true };
    let gue = |option| Tunnel { ip: v4(), udp: Some((outer, Shim::Gue(option))), gre: None, ethernet: None };
    let case = |name, packet, limits| Case { name, packet, limits };
    let mut datagram = load(&build::Packet { ip: v4(), l4: udp(), data: Rng::new(1).bytes(8972) }.bytes());
    datagram.offload.unit = Unit::Whole(Csum::Partial);
    let fragments = Limits { mtu: 1500, fragment: Fragment::Sender { clears_df: false }, ..none };
    vec![
        case("tcp4", train(v4(), tcp(), 1448, 1, None), none),
        case("tcp4-44-pieces", train(v4(), tcp(), 1448, 44, None), none),
        case("tcp6", train(v6(), tcp(), 1428, 1, None), none),
        case("udp4", train(v4(), udp(), 1472, 1, None), none),
        case("tcp4-port-sums", train(v4(), tcp(), 1448, 1, None), port),
        case("tcp4-port-sums-44-pieces", train(v4(), tcp(), 1448, 44, None), port),
        case("tcp6-port-sums", train(v6(), tcp(), 1428, 1, None), port),
        case("gue-tcp4", train(v4(), tcp(), 1448, 1, Some(&gue(None))), none),
        case("gue-tcp4-remcsum", train(v4(), tcp(), 1448, 1, Some(&gue(Some(Remcsum::Transport)))), port),
        case("udp4-9k-fragments", datagram, fragments),
    ]
}

fn memcpy(packet: &Packet<Vec<u8>>, segment: usize, out: &mut [u8]) {
    let (head, total) = (packet.head.bytes(), packet.payload.len());
    let (mut to, mut at) = (0, 0);
    // The ranges in order, each after the offset of its headers.
    while at < total {
        let len = segment.min(total - at);
        out[to..to + head.len()].copy_from_slice(head);
        to += head.len();
        for piece in packet.payload.pieces(at..at + len) {
            out[to..to + piece.len()].copy_from_slice(piece);
            to += piece.len();
        }
        at += len;
    }
    black_box(out);
}

/// Measures the two forms and the copy in turn, so that other load of the machine affects all of them alike.
fn table() {
    const ROUNDS: usize = 4000;
    println!("{:28} {:>7} {:>12} {:>12} {:>9} {:>9}", "case", "frames", "scatter", "linear", "linear", "linear");
    println!("{:28} {:>7} {:>12} {:>12} {:>9} {:>9}", "", "", "ns/frame", "ns/frame", "GB/s", "/memcpy");
    for Case { name, packet, limits } in cases() {
        let (mut arena, mut frames) = (Arena::new(), Frames::new());
        let count = split_linear(&packet, &limits, &mut frames).expect("a good train");
        let bytes: usize = frames.frames().iter().map(|frame| frame.range.len()).sum();
        let segment = frames.frames()[0].range.len() - packet.head.len();
        let mut out = vec![0; bytes + 2 * packet.head.len()];
        let mut times: [Vec<u64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let clock = Instant::now();
            arena.clear();
            let _ = black_box(split(black_box(&packet), &limits, &mut arena));
            times[0].push(clock.elapsed().as_nanos() as u64);
            let clock = Instant::now();
            frames.clear();
            let _ = black_box(split_linear(black_box(&packet), &limits, &mut frames));
            times[1].push(clock.elapsed().as_nanos() as u64);
            let clock = Instant::now();
            memcpy(black_box(&packet), segment, &mut out);
            times[2].push(clock.elapsed().as_nanos() as u64);
        }
        let [scatter, linear, copy] = times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 4] as f64
        });
        let per = count as f64;
        let (gbps, ratio) = (bytes as f64 / linear, linear / copy);
        println!("{name:28} {count:7} {:12.1} {:12.1} {gbps:9.1} {ratio:9.2}", scatter / per, linear / per);
    }
    println!();
}

fn bench(c: &mut Criterion) {
    table();
    for Case { name, packet, limits } in cases() {
        let (mut arena, mut frames) = (Arena::new(), Frames::new());
        let count = split_linear(&packet, &limits, &mut frames).expect("a good train");
        let bytes: usize = frames.frames().iter().map(|frame| frame.range.len()).sum();
        let segment = frames.frames()[0].range.len() - packet.head.len();
        let mut group = c.benchmark_group(format!("{name}/{count}-frames"));
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_millis(1500));
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function("scatter", |b| {
            b.iter(|| {
                arena.clear();
                split(black_box(&packet), &limits, &mut arena)
            });
        });
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("linear", |b| {
            b.iter(|| {
                frames.clear();
                split_linear(black_box(&packet), &limits, &mut frames)
            });
        });
        let mut out = vec![0; bytes + 2 * packet.head.len()];
        group.bench_function("memcpy", |b| b.iter(|| memcpy(black_box(&packet), segment, &mut out)));
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
