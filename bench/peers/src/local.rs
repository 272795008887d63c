//! Measurement adapters for the engine and for peers that are Rust libraries.

use std::hint::black_box;
use std::time::{Duration, Instant};

use segue::checksum::{self, Implementation, Sum};
use segue::gro::Config;
use segue::packet::Csum;
use segue::virtio::{self, Form, VirtioNet};
use segue_instructions::Workload;
use segue_instructions::engine::{self, Bytes, Engine, FULL};
use segue_instructions::product::{self, Passage};
use segue_port::Page;
use smoltcp::wire::Icmpv4Packet;
use tun_rs::{GROTable, VIRTIO_NET_HDR_LEN, VirtioNetHdr, gso_split};

use crate::Peer;
use crate::rows::{Row, Work};

/// Most packets that tun-rs takes at once.
const AT_ONCE: usize = 128;
/// Number of sums of the same bytes that are timed together.
const SUMS: usize = 64;
/// Length in bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Distance between the buffers that packets are copied to, bytes.
const ROOM: usize = 1600;

/// Returns every peer of this program, the engine first.
pub(crate) fn all(rows: &[Row]) -> Vec<Box<dyn Peer>> {
    let clock = Clock::new();
    let sums: [(&'static str, fn(&[u8]) -> u16); 5] = [
        ("segue", |bytes| Sum::of(bytes).fold()),
        ("tun-rs", |bytes| tun_rs::checksum(bytes, 0)),
        ("smoltcp", |bytes| u16::from(Icmpv4Packet::new_unchecked(bytes).verify_checksum())),
        ("internet-checksum", |bytes| u16::from_be_bytes(internet_checksum::checksum(bytes))),
        ("etherparse", |bytes| {
            let sum = etherparse::checksum::u64_16bit_word::add_slice(0, bytes);
            etherparse::checksum::u64_16bit_word::ones_complement(sum)
        }),
    ];
    let sums = |name| sums.iter().find(|(other, _)| *other == name).map(|(_, sum)| *sum);
    vec![
        Box::new(Segue {
            clock,
            engine: Engine::new(Config::default()),
            workloads: engine::all().into_iter().chain(product::all()).collect(),
            sum: sums("segue").expect("it is there"),
            warm: Warm::new(rows),
        }),
        Box::new(Product { clock, passages: rows.iter().map(passage).collect() }),
        Box::new(TunRs::new(clock, sums("tun-rs").expect("it is there"), rows)),
        Box::new(Bytewise {
            clock,
            name: "memcpy",
            to: vec![0; ROOM * 64],
            warm: Warm::new(rows),
            copies: true,
            sums: None,
        }),
        Box::new(Bytewise::summing(clock, "sum", false, rows)),
        Box::new(Bytewise::summing(clock, "copy+sum", true, rows)),
        Box::new(Single { clock, name: "etherparse", sum: sums("etherparse").expect("it is there") }),
        Box::new(Single { clock, name: "smoltcp", sum: sums("smoltcp").expect("it is there") }),
        Box::new(Single { clock, name: "internet-checksum", sum: sums("internet-checksum").expect("it is there") }),
    ]
}

/// A clock whose own cost is subtracted.
#[derive(Clone, Copy)]
struct Clock {
    cost: Duration,
}

impl Clock {
    fn new() -> Clock {
        let mut costs: Vec<_> = (0..1001).map(|_| Instant::now().elapsed()).collect();
        costs.sort_unstable();
        Clock { cost: costs[500] }
    }

    fn once(self, work: impl FnOnce()) -> f64 {
        let begin = Instant::now();
        work();
        begin.elapsed().saturating_sub(self.cost).as_nanos() as f64
    }

    /// Returns the median time of repeated runs, divided by the number of packets. `work` says how long it took.
    fn each(times: usize, packets: usize, work: impl FnMut(usize) -> f64) -> f64 {
        let mut spent: Vec<f64> = (0..times).map(work).collect();
        spent.sort_unstable_by(f64::total_cmp);
        spent[times / 2] / packets as f64
    }
}

/// Copies of the packets that are handled before those in cold memory, so that code, tables and buffers of the peer are
/// warm; and the memory that empties the caches.
struct Warm {
    packets: Vec<Bytes>,
    all: Vec<u64>,
}

impl Warm {
    fn new(rows: &[Row]) -> Warm {
        let cold = rows.iter().find(|row| row.cold).expect("there is a row of cold memory");
        Warm { packets: cold.frames.iter().map(|frame| &*frame.to_vec().leak()).collect(), all: vec![1; 12 << 20] }
    }

    /// Reads and writes more bytes than the caches hold.
    fn empty_caches(&mut self) {
        for line in self.all.chunks_exact_mut(8) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&self.all);
    }
}

/// An adapter that measures the engine without ports.
struct Segue {
    clock: Clock,
    engine: Engine,
    workloads: Vec<Workload>,
    sum: fn(&[u8]) -> u16,
    warm: Warm,
}

impl Peer for Segue {
    fn name(&self) -> &str {
        "segue"
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        let Segue { clock, engine, workloads, sum, warm } = self;
        let named = match (row.work, row.key.as_str()) {
            (Work::Join, _) => {
                return Some(Clock::each(times, row.packets(), |_| {
                    if row.cold {
                        warm.empty_caches();
                        engine.join(&warm.packets, row.csum);
                    }
                    clock.once(|| _ = black_box(engine.join(black_box(&row.frames), row.csum)))
                }));
            }
            (Work::Sum, _) => return Some(summed(*clock, row, times, *sum)),
            (Work::Parse, _) => "parse TCP over IPv4",
            (Work::Cut, _) => "GSO, copied, with checksums",
            (Work::Scatter, _) => "GSO, scattered, checksums left to the port",
            (Work::Decapsulate, "tunnel") => "tunnel, inwards, 1 flow in bursts of 32",
            (Work::Decapsulate, _) => "tunnel, inwards, pure acknowledgments in bursts of 8",
        };
        let workload = workloads.iter_mut().find(|workload| workload.name == named).expect("a workload of this name");
        assert_eq!(workload.packets, row.packets(), "{named}");
        Some(Clock::each(times, row.packets(), |_| clock.once(|| (workload.run)())))
    }
}

fn summed(clock: Clock, row: &Row, times: usize, sum: fn(&[u8]) -> u16) -> f64 {
    Clock::each(times, SUMS, |_| {
        clock.once(|| {
            for _ in 0..SUMS {
                black_box(sum(black_box(row.frames[0])));
            }
        })
    })
}

/// A gateway of the product between ports in memory.
struct Product {
    clock: Clock,
    passages: Vec<Option<Gateway>>,
}

/// The benchmark gateway of a row, with warm-up packets for rows with cold memory.
struct Gateway {
    key: String,
    passage: Passage,
    warm: Vec<Page>,
    caches: Warm,
}

fn passage(row: &Row) -> Option<Gateway> {
    // What a row holds back is not told from the rest here.
    (row.work == Work::Join && row.held == 0).then(|| Gateway {
        key: row.key.clone(),
        passage: product::gateway(product::pages(&row.frames), row.csum),
        warm: product::pages(&row.frames),
        caches: Warm { packets: Vec::new(), all: vec![1; if row.cold { 12 << 20 } else { 0 }] },
    })
}

impl Peer for Product {
    fn name(&self) -> &str {
        "segue as the product"
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        let clock = self.clock;
        let Gateway { passage, warm, caches, .. } =
            self.passages.iter_mut().flatten().find(|gateway| gateway.key == row.key)?;
        let count = row.packets();
        Some(Clock::each(times, count, |_| {
            if row.cold {
                caches.empty_caches();
                passage.exchange(warm);
                passage.run(count);
                passage.exchange(warm);
            }
            clock.once(|| passage.run(count))
        }))
    }
}

/// An adapter that measures tun-rs's functions for GRO and GSO.
struct TunRs {
    clock: Clock,
    sum: fn(&[u8]) -> u16,
    table: GROTable,
    buffers: [Vec<Vec<u8>>; 2],
    outs: Vec<Vec<u8>>,
    sizes: Vec<usize>,
    warm: Warm,
}

impl TunRs {
    fn new(clock: Clock, sum: fn(&[u8]) -> u16, rows: &[Row]) -> TunRs {
        // Room for a train; not a multiple of a page, which would share places of the cache.
        let buffers = || (0..AT_ONCE).map(|_| Vec::with_capacity(65_535 + 700)).collect();
        TunRs {
            clock,
            sum,
            table: GROTable::new(),
            buffers: [buffers(), buffers()],
            outs: vec![vec![0; 2048]; 128],
            sizes: vec![0; 128],
            warm: Warm::new(rows),
        }
    }

    /// Puts IP packets into buffers, each after the room for a virtio-net header. Returns how many buffers it took.
    fn fill(buffers: &mut [Vec<u8>], frames: &[Bytes]) -> usize {
        for (buffer, frame) in buffers.iter_mut().zip(frames) {
            buffer.clear();
            buffer.resize(VIRTIO_NET_HDR_LEN, 0);
            buffer.extend(&frame[ETHERNET..]);
        }
        frames.len()
    }

    fn join(&mut self, row: &Row) -> f64 {
        let TunRs { clock, table, buffers: [buffers, others], warm, .. } = self;
        let mut spent = 0.0;
        for frames in row.frames.chunks(AT_ONCE) {
            let count = TunRs::fill(buffers, frames);
            if row.cold {
                let count = TunRs::fill(others, &warm.packets);
                warm.empty_caches();
                table.apply_gro(&mut others[..count], VIRTIO_NET_HDR_LEN, true).expect("packets it can handle");
            }
            let buffers = black_box(&mut buffers[..count]);
            spent += clock.once(|| table.apply_gro(buffers, VIRTIO_NET_HDR_LEN, true).expect("packets it can handle"));
        }
        spent
    }
}

impl Peer for TunRs {
    fn name(&self) -> &str {
        "tun-rs"
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        match row.work {
            Work::Join if row.held == 0 && !row.key.starts_with("full") => {
                Some(Clock::each(times, row.packets(), |_| self.join(row)))
            }
            Work::Sum => Some(summed(self.clock, row, times, self.sum)),
            Work::Cut => {
                let mut read =
                    [&train_header().emit(Form::Basic)[..VIRTIO_NET_HDR_LEN], &row.frames[0][ETHERNET..]].concat();
                let TunRs { clock, outs, sizes, .. } = self;
                Some(Clock::each(times, row.packets(), |_| {
                    clock.once(|| {
                        let header = VirtioNetHdr::decode(black_box(&read)).expect("a header");
                        let packet = &mut read[VIRTIO_NET_HDR_LEN..];
                        let made = gso_split(packet, header, outs, sizes, 0, false).expect("a train");
                        assert_eq!(black_box(made), row.packets());
                    })
                }))
            }
            _ => None,
        }
    }
}

/// Returns the virtio-net header of the train that is cut.
fn train_header() -> VirtioNet {
    VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_TCPV4,
        hdr_len: 52,
        gso_size: FULL as u16,
        csum_start: 20,
        csum_offset: 16,
        ..VirtioNet::default()
    }
}

/// The memory limits of the machine: memcpy, a sum, or both in one pass over the same bytes.
struct Bytewise {
    clock: Clock,
    name: &'static str,
    to: Vec<u8>,
    warm: Warm,
    copies: bool,
    sums: Option<Implementation>,
}

impl Bytewise {
    fn summing(clock: Clock, name: &'static str, copies: bool, rows: &[Row]) -> Bytewise {
        let sums = checksum::implementations().last();
        Bytewise { clock, name, to: vec![0; ROOM * 64], warm: Warm::new(rows), copies, sums }
    }

    fn run(&mut self, pieces: &[Bytes]) {
        for (to, from) in self.to.chunks_exact_mut(ROOM).zip(pieces) {
            let to = &mut to[..from.len()];
            match (self.sums, self.copies) {
                (None, _) => to.copy_from_slice(from),
                (Some(sums), true) => _ = black_box(sums.copy(to, from)),
                (Some(sums), false) => _ = black_box(sums.sum(from)),
            }
        }
        black_box(&self.to);
    }
}

impl Peer for Bytewise {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        let pieces: Vec<Bytes> = match row.work {
            Work::Join if row.csum == Csum::Unknown && row.frames.len() <= 64 => row.frames.clone(),
            Work::Cut => row.frames[0].chunks(FULL).take(row.packets()).collect(),
            _ => return None,
        };
        Some(Clock::each(times, pieces.len(), |_| {
            if row.cold {
                self.warm.empty_caches();
                let warm = self.warm.packets.clone();
                self.run(&warm);
            }
            let begin = Instant::now();
            self.run(black_box(&pieces));
            begin.elapsed().saturating_sub(self.clock.cost).as_nanos() as f64
        }))
    }
}

/// An adapter for a library that only sums (or, for etherparse, also parses).
struct Single {
    clock: Clock,
    name: &'static str,
    sum: fn(&[u8]) -> u16,
}

impl Peer for Single {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        match row.work {
            Work::Sum => Some(summed(self.clock, row, times, self.sum)),
            Work::Parse if self.name == "etherparse" => Some(Clock::each(times, row.packets(), |_| {
                self.clock.once(|| {
                    for frame in black_box(&row.frames) {
                        black_box(etherparse::SlicedPacket::from_ethernet(frame)).expect("a frame");
                    }
                })
            })),
            _ => None,
        }
    }
}
