//! Workloads of the engine: parsing, GRO, GSO, checksums.

use std::hint::black_box;

use segue::checksum::Sum;
use segue::gro::{Config, Frame, Gro, Popped};
use segue::gso::{Arena, Frames, Limits, split, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, Kind, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue::wire::{self, tcp};

use crate::Workload;
use crate::frames::Flow;

/// Payload of a full segment, bytes.
pub const FULL: usize = 1448;
/// Number of segments of the train.
pub const SEGMENTS: usize = 44;

/// The buffer of a frame, which lives as long as the program.
pub type Bytes = &'static [u8];

fn keep(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Bytes> {
    frames.into_iter().map(|frame| &*frame.leak()).collect()
}

fn flows(count: usize) -> Vec<Flow> {
    (0..count).map(Flow::new).collect()
}

/// Returns full segments of this many flows in turn.
fn data(flows: &mut [Flow], count: usize) -> Vec<Bytes> {
    let number = flows.len();
    keep((0..count).map(|index| flows[index % number].frame(FULL, 0)))
}

/// A burst of frames for GRO.
pub struct Burst {
    /// The name of the workload.
    pub name: &'static str,
    /// Frames of Ethernet.
    pub frames: Vec<Bytes>,
    /// Number of leading frames, which are held when the measured ones arrive.
    pub held: usize,
    /// The state of the checksums.
    pub csum: Csum,
}

impl Burst {
    fn new(name: &'static str, frames: Vec<Bytes>, csum: Csum) -> Burst {
        Burst { name, frames, held: 0, csum }
    }

    /// Returns the number of packets that count.
    pub fn packets(&self) -> usize {
        self.frames.len() - self.held
    }

    fn workload(self) -> Workload {
        let (mut engine, packets) = (Engine::new(Config::default()), self.packets());
        Workload {
            name: self.name,
            packets,
            run: Box::new(move || _ = engine.join(black_box(&self.frames), self.csum)),
        }
    }
}

/// GRO of the engine without ports.
pub struct Engine {
    gro: Gro<Bytes>,
    pool: Pool<Bytes>,
}

impl Engine {
    /// Creates an engine of GRO with the given configuration.
    pub fn new(config: Config) -> Engine {
        Engine { gro: Gro::new(config), pool: Pool::new(2048) }
    }

    /// Pushes a burst, flushes, and pops all packets and trains. Returns into how many packets and trains the frames
    /// went.
    pub fn join(&mut self, frames: &[Bytes], csum: Csum) -> usize {
        let Engine { gro, pool } = self;
        for frame in frames {
            gro.push_frame(Frame { bytes: Frag::all(*frame), start: Start::Ethernet, csum }, Nanos(1), pool);
        }
        gro.flush();
        let mut left = 0;
        while let Some(popped) = gro.pop_unparsed() {
            left += 1;
            match black_box(popped) {
                Popped::Packet(packet) => pool.put(packet),
                Popped::Frame(_) => {}
            }
        }
        left
    }
}

fn parse(name: &'static str, frame: Vec<u8>) -> Workload {
    let frame: Bytes = frame.leak();
    let run = move || {
        for _ in 0..64 {
            black_box(&wire::parse(black_box(frame), Start::Ethernet, black_box(&Tunnels::NONE)));
        }
    };
    Workload { name, packets: 64, run: Box::new(run) }
}

/// Returns a train of full segments.
pub fn train() -> Packet<Bytes> {
    let mut packet = Packet::default();
    let bytes: Bytes = Flow::new(1).frame(SEGMENTS * FULL, 0).leak();
    packet.load(Frag::all(bytes), Start::Ethernet, &Tunnels::NONE);
    packet.offload.unit =
        Unit::Train { csum: TrainCsum::Stale, gso: Gso { kind: GsoKind::Tcp, size: FULL as u16, fixed_ids: 0 } };
    packet
}

/// Returns lengths of payload without order, from 1 to a full segment.
fn lengths(count: usize) -> impl Iterator<Item = usize> {
    let mut state = 1_u32;
    (0..count).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 8) as usize % FULL
    })
}

/// Returns the bursts of frames for GRO.
pub fn bursts() -> Vec<Burst> {
    let acks = |flows: &mut [Flow], count: usize| -> Vec<Bytes> {
        let number = flows.len();
        keep((0..count).map(|index| flows[index % number].frame(0, 0)))
    };
    let mut sixty_four = flows(64);
    let held = data(&mut sixty_four, 64);
    let behind = [held, acks(&mut sixty_four, 448)].concat();
    let mut eight = flows(8);
    let random = keep(lengths(512).enumerate().map(|(index, len)| eight[index % 8].frame(len, 0)));
    let mut reversed = data(&mut flows(1), 64);
    reversed.reverse();
    let mut small = flows(64);
    let push = keep((0..512).map(|index| small[index % 64].frame(64, tcp::PSH)));
    let mut many = flows(10_000);
    let mut full = keep((0..10_000).map(|index| many[index].frame(FULL, 0)));
    full.truncate(4096);
    vec![
        Burst::new("GRO, checksums known, 1 flow", data(&mut flows(1), 64), Csum::Verified),
        Burst::new("GRO, checksums known, 8 flows", data(&mut flows(8), 64), Csum::Verified),
        Burst::new("GRO, checksums known, 64 flows in bursts of 64", data(&mut flows(64), 64), Csum::Verified),
        Burst::new("GRO, verifying, 8 flows", data(&mut flows(8), 64), Csum::Unknown),
        Burst::new("GRO, IPv6, verifying, 1 flow", data(&mut [Flow::v6(1)], 64), Csum::Unknown),
        Burst::new("GRO, pure acknowledgments", acks(&mut flows(64), 512), Csum::Verified),
        Burst { held: 64, ..Burst::new("GRO, pure acknowledgments behind 64 segments held", behind, Csum::Verified) },
        Burst::new("GRO, ICMP", keep((0..512).map(|_| Flow::new(1).ping())), Csum::Unknown),
        Burst::new("GRO, 64-byte segments with PSH, 64 flows", push, Csum::Verified),
        Burst::new("GRO, random sizes, 8 flows", random, Csum::Verified),
        Burst::new("GRO, reversed order", reversed, Csum::Verified),
        Burst::new("GRO, 4096 flows through a table of 256", full, Csum::Verified),
    ]
}

/// Returns GRO of frames of VXLAN over IPv4 with `len` bytes of payload inside, of this many flows in turn, each of
/// which has its own packets outside. There they have checksums or not; `csum` is what the port knows of those inside.
fn vxlan(name: &'static str, (flows, count): (usize, usize), len: usize, sums_outside: bool, csum: Csum) -> Workload {
    let mut senders: Vec<[Flow; 2]> = (0..flows).map(|number| [number + 1, number + 1001].map(Flow::new)).collect();
    let frame = |index: usize| {
        let [inside, outside] = &mut senders[index % flows];
        inside.vxlan(outside, len, sums_outside)
    };
    let frames = keep((0..count).map(frame));
    let mut engine = Engine::new(Config { tunnels: Tunnels::NONE.with(4789, Kind::Vxlan), ..Config::default() });
    Workload { name, packets: count, run: Box::new(move || _ = engine.join(black_box(&frames), csum)) }
}

/// Returns every workload of the engine.
pub fn all() -> Vec<Workload> {
    let scattered = {
        let (packet, mut arena) = (train(), Arena::new());
        let limits = Limits { csum: true, ..Limits::NONE };
        move || {
            arena.clear();
            black_box(split(black_box(&packet), &limits, &mut arena)).expect("a train can be cut");
        }
    };
    let linear = {
        let (packet, mut frames) = (train(), Frames::new());
        move || {
            frames.clear();
            black_box(split_linear(black_box(&packet), &Limits::NONE, &mut frames)).expect("a train can be cut");
        }
    };
    let payload: Bytes = vec![0x5a; FULL].leak();
    let sum = move || {
        for _ in 0..64 {
            black_box(Sum::of(black_box(payload)));
        }
    };
    let parsing = [
        parse("parse TCP over IPv4", Flow::new(1).frame(FULL, 0)),
        parse("parse TCP over IPv6", Flow::v6(1).frame(FULL, 0)),
    ];
    let (unknown, known) = (Csum::Unknown, Csum::Verified);
    let others = [
        vxlan("GRO, VXLAN with checksums outside, verifying, 1 flow", (1, 44), FULL, true, unknown),
        vxlan("GRO, VXLAN, verifying, 8 flows", (8, 64), FULL, false, unknown),
        vxlan("GRO, VXLAN, verifying, 64 flows", (64, 512), FULL, false, unknown),
        vxlan("GRO, VXLAN, checksums known, 8 flows", (8, 64), FULL, false, known),
        vxlan("GRO, VXLAN, checksums known, 64 flows", (64, 512), FULL, false, known),
        vxlan("GRO, VXLAN, pure acknowledgments", (64, 512), 0, false, unknown),
        Workload { name: "GSO, scattered, checksums left to the port", packets: SEGMENTS, run: Box::new(scattered) },
        Workload { name: "GSO, copied, with checksums", packets: SEGMENTS, run: Box::new(linear) },
        Workload { name: "checksum of 1448 bytes", packets: 64, run: Box::new(sum) },
    ];
    parsing.into_iter().chain(bursts().into_iter().map(Burst::workload)).chain(others).collect()
}
