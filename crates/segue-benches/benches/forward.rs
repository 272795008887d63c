//! Benchmark of the forwarding step with packet groups, against one lookup for each packet: `cargo bench -p
//! segue-benches --bench forward`.
//!
//! 512 flows, interleaved at random, to 512 or 64 hosts in 4096 routes over 16 next hops; batches of 2048 packets. The
//! table at the start takes both in turn.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use segue::packet::{Frag, Packet, Start, Tunnels};
use segue_datapath::forward::{Forwarder, Verdict};
use segue_datapath::group::Reads;
use segue_datapath::route::{Action, Hop, Link, Neighbours, Routes, Table};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Ip, L4, Udp, V4, V6};

const PACKETS: usize = 2048;

type Boxed = Box<Packet<Vec<u8>>>;

fn forwarder() -> Forwarder {
    let (mut routes, mut neighbours) = (Routes::new(100_000), Neighbours::new(1000));
    let link = Link::Ethernet { to: [2, 0, 0, 0, 0, 9], from: [2, 0, 0, 0, 0, 8] };
    for router in 0..16_u16 {
        let via = IpAddr::from([198, 19, 255, router as u8]);
        let action = Action::Forward { port: router % 4, via: Some(via), mtu: 1500 };
        for net in 0..16_u16 {
            let third = (router * 16 + net) as u8;
            for part in 0..8_u8 {
                routes.insert(Table::Main, IpAddr::from([198, 18, third, part * 32]), 27, action).expect("room");
                let v6 = [0x2001, 0xdb8, third.into(), part.into(), 0, 0, 0, 0];
                routes.insert(Table::Main, IpAddr::from(v6), 64, action).expect("room");
            }
        }
        neighbours.insert(Hop::new(router % 4, Some(via), 0, true), link).expect("room");
    }
    Forwarder::new(routes, neighbours, Reads::default(), 0x1234_5678_9abc_def1)
}

fn packets(is_v4: bool, hosts: usize) -> Vec<Boxed> {
    let mut rng = Rng::new(3);
    let one = |_| {
        let flow = rng.below(512);
        let host = flow % hosts;
        // Spread over all nets.
        let (third, fourth) = ((host * 256 / hosts) as u8, (host % 2) as u8 * 64 + 5);
        let ip = if is_v4 {
            Ip::V4(V4 { dst: [198, 18, third, fourth], src: [198, 19, 0, (flow % 250) as u8 + 1], ..V4::new(0, 1, 2) })
        } else {
            let mut ip = V6::new(0, 1, 2);
            (ip.dst[5], ip.dst[7], ip.dst[15]) = (third, fourth / 32, 5);
            Ip::V6(ip)
        };
        let l4 = L4::Udp(Udp { src_port: flow as u16, dst_port: 2000, checksum: true });
        let bytes = Ethernet::default().wrap(&build::Packet { ip, l4, data: vec![1; 64] }.bytes());
        let mut packet = Boxed::default();
        packet.load(Frag::all(bytes), Start::Ethernet, &Tunnels::NONE);
        packet
    };
    (0..PACKETS).map(one).collect()
}

/// Restores the packets' hop limits, which forwarding decremented.
fn renew(packets: &mut [Boxed], is_v4: bool) {
    for packet in packets {
        packet.head.bytes_mut()[if is_v4 { 14 + 8 } else { 14 + 7 }] = 64;
    }
}

fn table() {
    println!("{:24} {:>12} {:>12} {:>8} {:>8} {:>10}", "case", "groups", "each", "ratio", "routes", "neighbours");
    println!("{:24} {:>12} {:>12} {:>8} {:>8} {:>10}", "", "ns/packet", "ns/packet", "", "a batch", "a batch");
    for (is_v4, hosts) in [(true, 512), (true, 64), (false, 512), (false, 64)] {
        let (mut grouped, mut each) = (forwarder(), forwarder());
        let mut packets = packets(is_v4, hosts);
        let mut verdicts: Vec<Verdict> = Vec::new();
        let mut times: [Vec<u64>; 2] = Default::default();
        const ROUNDS: usize = 1000;
        for _ in 0..ROUNDS {
            renew(&mut packets, is_v4);
            verdicts.clear();
            let clock = Instant::now();
            grouped.batch(0, black_box(&mut packets), &mut verdicts);
            times[0].push(clock.elapsed().as_nanos() as u64);
            assert!(matches!(verdicts[0], Verdict::Send { .. }));
            renew(&mut packets, is_v4);
            verdicts.clear();
            let clock = Instant::now();
            each.one_by_one(0, black_box(&mut packets), &mut verdicts);
            times[1].push(clock.elapsed().as_nanos() as u64);
        }
        let [groups, each] = times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 4] as f64 / PACKETS as f64
        });
        let lookups = grouped.lookups();
        let (routes, neighbours) = (lookups.routes / ROUNDS as u64, lookups.neighbours / ROUNDS as u64);
        let name = format!("{}, {hosts} hosts", if is_v4 { "IPv4" } else { "IPv6" });
        println!("{name:24} {groups:12.1} {each:12.1} {:8.2} {routes:8} {neighbours:10}", each / groups);
    }
    println!();
}

fn bench(c: &mut Criterion) {
    table();
    for (is_v4, hosts) in [(true, 512), (true, 64), (false, 512), (false, 64)] {
        let mut group = c.benchmark_group(format!("forward/{}-{hosts}", if is_v4 { "v4" } else { "v6" }));
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_millis(1500));
        group.throughput(Throughput::Elements(PACKETS as u64));
        let (mut packets, mut verdicts) = (packets(is_v4, hosts), Vec::new());
        for name in ["groups", "each"] {
            let mut forwarder = forwarder();
            group.bench_function(name, |b| {
                b.iter_batched(
                    || {},
                    |()| {
                        renew(&mut packets, is_v4);
                        verdicts.clear();
                        match name {
                            "groups" => forwarder.batch(0, &mut packets, &mut verdicts),
                            _ => forwarder.one_by_one(0, &mut packets, &mut verdicts),
                        }
                    },
                    BatchSize::PerIteration,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
