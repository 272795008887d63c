//! Measures the engine, DPDK and `memcpy` on the same frames, in one run: nanoseconds per packet.
//! `docs/bench-engine.md` describes the method.
//!
//! `segue-bench-dpdk [CORE] [ROUNDS] [IMPLEMENTATION]`; the last is that of checksums, `avx2` for example.

mod sys;

use std::hint::black_box;
use std::time::Instant;

use segue::checksum;
use segue::gro::{Config, Frame, Gro};
use segue::gso::{Arena, Frames, Limits, split, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::build::{Ethernet, Ip, Tcp, V4};
use segue_testkit::flow::Sender;

/// Length of a TCP header with timestamps, bytes.
const TCP_LEN: usize = 32;
/// Length of a segment's payload on Ethernet, bytes.
const SIZE: usize = 1448;
/// Number of repetitions in a round. The median counts, so that interruptions by other processes do not.
const TIMES: usize = 301;

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let number = |at: usize, usual| args.get(at).map_or(usual, |arg| arg.parse::<usize>().expect("a number"));
    let (core, rounds) = (number(0, 1), number(1, 31).max(3));
    if let Some(name) = args.get(2) {
        let mut all = checksum::implementations();
        all.find(|one| one.name() == name).expect("an implementation that this CPU can run").choose();
    }
    sys::start(core);
    let clock = Clock::new();
    println!(
        "core {core}, {rounds} rounds, sums by {}, time stamp counter {:.0} MHz",
        checksum::implementation(),
        clock.mhz()
    );
    println!(
        "ns per packet: median (least..most of the rounds); ratios: median of those within each round (least..most)"
    );
    for burst in [32, 64, 128] {
        gro(&clock, burst, &[1, 8, 64], rounds);
    }
    gso(&clock, rounds);
}

/// Returns `count` frames that alternate between `flows` TCP streams.
fn frames(flows: usize, count: usize) -> Vec<Vec<u8>> {
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let mut senders: Vec<_> =
        (0..flows).map(|flow| Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow as u16, 1, Tcp::timestamps(1, 2))).collect();
    (0..count).map(|index| link.wrap(&senders[index % flows].send(SIZE, 0).bytes())).collect()
}

/// A contestant: a function that does the work once and returns its duration in ticks.
type Contestant<'a> = (&'static str, Box<dyn FnMut() -> u64 + 'a>);

fn gro(clock: &Clock, burst: usize, flow_counts: &[usize], rounds: usize) {
    // All measurements are made in one run, for all numbers of flows, so that they can be compared.
    let inputs: Vec<_> = flow_counts.iter().map(|&flows| (flows, frames(flows, burst))).collect();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for (flows, frames) in &inputs {
        let mut merged = Vec::new();
        contestants.push(dpdk(frames, *flows, &mut merged));
        for (name, csum, copies) in [
            ("segue", Csum::Verified, false),
            ("segue verifying", Csum::Unknown, false),
            ("segue verifying, copying", Csum::Unknown, true),
        ] {
            contestants.push(segue(name, frames, csum, copies, &mut merged));
        }
        contestants.push(memcpy(frames));
        println!(
            "\nbursts of {burst}, {flows} flows: {} packets and trains left by DPDK, {} by segue",
            merged[0], merged[1]
        );
    }
    let samples = run(&mut contestants, rounds);
    let cost = |index: usize| Spread::of(samples[index].iter().map(|&ticks| clock.nanos(ticks) / burst as f64));
    let ratio = |a: usize, b: usize| Spread::of(samples[a].iter().zip(&samples[b]).map(|(&a, &b)| a as f64 / b as f64));
    let per_flows = contestants.len() / inputs.len();
    for (index, (name, _)) in contestants.iter().enumerate() {
        let (flows, _) = &inputs[index / per_flows];
        println!("burst {burst:>3}  flows {flows:>3}  {name:<26} {}", cost(index));
    }
    for (index, (flows, _)) in inputs.iter().enumerate() {
        let at = index * per_flows;
        println!("burst {burst:>3}  flows {flows:>3}  DPDK / segue               {}", ratio(at, at + 1));
        println!("burst {burst:>3}  flows {flows:>3}  segue / segue at 1 flow    {}", ratio(at + 1, 1));
        println!("burst {burst:>3}  flows {flows:>3}  segue verifying / memcpy   {}", ratio(at + 2, at + 4));
    }
}

/// Runs all contestants in turn, `rounds` times, and returns the median of each round.
fn run(contestants: &mut [Contestant<'_>], rounds: usize) -> Vec<Vec<u64>> {
    let mut samples = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for ((_, work), samples) in contestants.iter_mut().zip(&mut samples) {
            let mut ticks: Vec<_> = (0..TIMES).map(|_| work()).collect();
            ticks.sort_unstable();
            // The first round warms up.
            if round > 0 {
                samples.push(ticks[TIMES / 2]);
            }
        }
    }
    samples
}

fn dpdk<'a>(frames: &'a [Vec<u8>], flows: usize, merged: &mut Vec<usize>) -> Contestant<'a> {
    let name = format!("gro-{flows}-{}", frames.len());
    let mut packets = sys::Packets::new(&name, frames, TCP_LEN, flows);
    let burst = frames.len();
    packets.renew(0, burst);
    merged.push(packets.gro(0, burst));
    let work = move || {
        packets.renew(0, burst);
        let before = sys::ticks();
        black_box(packets.gro(0, burst));
        sys::ticks() - before
    };
    ("DPDK rte_gro", Box::new(work))
}

fn segue<'a>(
    name: &'static str,
    frames: &'a [Vec<u8>],
    csum: Csum,
    copies: bool,
    merged: &mut Vec<usize>,
) -> Contestant<'a> {
    let mut gro: Gro<&[u8]> = Gro::new(Config::default());
    let mut pool = Pool::new(1024);
    let mut linear = vec![0; 1 << 16];
    let mut once = move || {
        let before = sys::ticks();
        for frame in frames {
            let frame = Frame { bytes: Frag::all(&frame[..]), start: Start::Ethernet, csum };
            gro.push_frame(frame, Nanos(1), &mut pool);
        }
        gro.flush();
        let mut left = 0;
        while let Some(packet) = gro.pop_from(&mut pool) {
            if copies {
                black_box(packet.payload.copy_to(0..usize::MAX, &mut linear));
            }
            left += 1;
            pool.put(black_box(packet));
        }
        (sys::ticks() - before, left)
    };
    merged.push(once().1);
    (name, Box::new(move || once().0))
}

fn memcpy<'a>(frames: &'a [Vec<u8>]) -> Contestant<'a> {
    let mut to = vec![0_u8; 2048 * frames.len()];
    let work = move || {
        let before = sys::ticks();
        for (to, frame) in to.chunks_exact_mut(2048).zip(frames) {
            to[..frame.len()].copy_from_slice(frame);
        }
        black_box(&to);
        sys::ticks() - before
    };
    ("memcpy", Box::new(work))
}

fn gso(clock: &Clock, rounds: usize) {
    const SEGS: usize = 44;
    let sender = &mut Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1, Tcp::timestamps(1, 2));
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let bytes = link.wrap(&sender.send(SIZE * SEGS, 0x10).bytes());
    let mut train = Packet::default();
    train.load(Frag::all(&bytes[..]), Start::Ethernet, &Tunnels::NONE);
    let gso = Gso { kind: GsoKind::Tcp, size: SIZE as u16, fixed_ids: 0 };
    train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };

    let mut theirs = sys::Train::new(&bytes, TCP_LEN, SIZE);
    let made = theirs.gso();
    theirs.renew();
    println!("\na train of {SEGS} segments: cut into {made} by DPDK");
    let (mut arena, mut frames, mut to) = (Arena::new(), Frames::new(), vec![0_u8; 1 << 17]);
    let headless = Limits { csum: true, ..Limits::NONE };
    let dpdk = || {
        let before = sys::ticks();
        black_box(theirs.gso());
        let spent = sys::ticks() - before;
        theirs.renew();
        spent
    };
    let scatter = || {
        let before = sys::ticks();
        arena.clear();
        black_box(split(&train, &headless, &mut arena).expect("it can be cut"));
        sys::ticks() - before
    };
    let linear = || {
        let before = sys::ticks();
        frames.clear();
        black_box(split_linear(&train, &Limits::NONE, &mut frames).expect("it can be cut"));
        sys::ticks() - before
    };
    let copy = || {
        let before = sys::ticks();
        for (to, from) in to.chunks_exact_mut(2048).zip(bytes.chunks(SIZE)) {
            to[..from.len()].copy_from_slice(from);
        }
        black_box(&to);
        sys::ticks() - before
    };
    let mut contestants: [Contestant<'_>; 4] = [
        ("DPDK rte_gso", Box::new(dpdk)),
        ("segue scatter, no sums", Box::new(scatter)),
        ("segue linear, all sums", Box::new(linear)),
        ("memcpy", Box::new(copy)),
    ];
    let samples = run(&mut contestants, rounds);
    for ((name, _), samples) in contestants.iter().zip(&samples) {
        println!("gso  {name:<26} {}", Spread::of(samples.iter().map(|&t| clock.nanos(t) / SEGS as f64)));
    }
    let ratio = |a: usize, b: usize| Spread::of(samples[a].iter().zip(&samples[b]).map(|(&a, &b)| a as f64 / b as f64));
    println!("gso  DPDK / segue scatter       {}", ratio(0, 1));
    println!("gso  segue linear / memcpy      {}", ratio(2, 3));
}

/// Median, minimum and maximum of the samples.
struct Spread([f64; 3]);

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        Spread([values[values.len() / 2], values[0], values[values.len() - 1]])
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, least, most] = self.0;
        write!(f, "{median:>7.2} ({least:.2}..{most:.2})")
    }
}

/// Measures the length of a tick.
struct Clock {
    nanos_per_tick: f64,
}

impl Clock {
    fn new() -> Clock {
        let (time, ticks) = (Instant::now(), sys::ticks());
        std::thread::sleep(std::time::Duration::from_millis(200));
        let nanos = time.elapsed().as_nanos() as f64;
        Clock { nanos_per_tick: nanos / (sys::ticks() - ticks) as f64 }
    }

    fn nanos(&self, ticks: u64) -> f64 {
        ticks as f64 * self.nanos_per_tick
    }

    fn mhz(&self) -> f64 {
        1000.0 / self.nanos_per_tick
    }
}
