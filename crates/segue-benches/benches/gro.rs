//! Measures GRO's time per packet, from raw bytes on: TCP over IPv4 on Ethernet with timestamps, full segments, flows
//! in turn.
//!
//! One iteration is a burst: every frame is pushed, everything is flushed, popped and returned. Divide by the number of
//! elements.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use segue::gro::{Config, Frame, Gro};
use segue::packet::{Csum, Frag, Pool, Start};
use segue::time::Nanos;
use segue_testkit::build::{Ethernet, Ip, Tcp, V4};
use segue_testkit::flow::Sender;

/// Numbers of flows and of frames per burst: at least eight frames of each flow, except in the last case, where no
/// packets join.
const CASES: [(usize, usize); 5] = [(1, 64), (8, 64), (64, 512), (512, 4096), (512, 512)];

fn frames(flows: usize, count: usize) -> Vec<Vec<u8>> {
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let mut senders: Vec<_> =
        (0..flows).map(|flow| Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow as u16, 1, Tcp::timestamps(1, 2))).collect();
    (0..count).map(|index| link.wrap(&senders[index % flows].send(1448, 0).bytes())).collect()
}

fn gro(criterion: &mut Criterion) {
    for (name, csum, copies) in [
        ("header-only", Csum::Verified, false),
        ("verifying", Csum::Unknown, false),
        ("verifying-and-copying", Csum::Unknown, true),
    ] {
        let mut group = criterion.benchmark_group(format!("gro {name}"));
        for (flows, burst) in CASES {
            let frames = frames(flows, burst);
            let mut gro: Gro<&[u8]> = Gro::new(Config { max_flows: 1024, ..Config::default() });
            let mut pool = Pool::new(1024);
            let mut linear = vec![0; 1 << 16];
            group.throughput(Throughput::Elements(burst as u64));
            group.bench_function(BenchmarkId::new(format!("{flows} flows"), burst), |bencher| {
                bencher.iter(|| {
                    for frame in &frames {
                        let frame = Frame { bytes: Frag::all(&frame[..]), start: Start::Ethernet, csum };
                        gro.push_frame(frame, Nanos(1), &mut pool);
                    }
                    gro.flush();
                    while let Some(packet) = gro.pop_from(&mut pool) {
                        if copies {
                            packet.payload.copy_to(0..usize::MAX, &mut linear);
                        }
                        pool.put(std::hint::black_box(packet));
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, gro);
criterion_main!(benches);
