//! Rows of the benchmark table, with packets and aims.

use segue::packet::Csum;
use segue_instructions::engine::{self, Bytes, FULL, SEGMENTS};
use segue_instructions::frames::Flow;

/// The work on the packets of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Frames of a burst are joined, everything is flushed, and trains and packets are taken out.
    Join,
    /// A frame is parsed into headers and payload.
    Parse,
    /// A train is split into frames with all checksums, copied.
    Cut,
    /// A train is split into headers and references to the payload; transport checksums are left to the port.
    Scatter,
    /// The bytes of the packet are summed.
    Sum,
    /// Datagrams of GUE are decapsulated, and the inner packets are joined: the whole pipeline of a tunnel.
    Decapsulate,
}

/// Nanoseconds of peers on the machine for which aims in nanoseconds were set, an AMD Zen 4.
pub(crate) type Reference = &'static [(&'static str, f64)];

/// The aim of a figure, by the times of the engine, of a peer or of another row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    /// The engine takes at most this many nanoseconds. On a slower machine: at most as many times the time of one of
    /// the peers as these nanoseconds are of the peer's reference.
    AtMost(f64, Reference),
    /// The engine aims at this many nanoseconds at most; more is not a miss.
    AimedAt(f64),
    /// The peer takes at least this factor times the engine's time.
    Faster(&'static str, f64),
    /// The engine takes at most this factor times the peer's time.
    Of(&'static str, f64),
    /// The engine takes at most this factor times the time of another row.
    OfRow(&'static str, f64),
    /// The engine takes at most the time of another row plus this factor times the peer's time.
    Plus(&'static str, f64, &'static str),
}

/// A row of the table.
pub(crate) struct Row {
    /// Identifier of the row, also the name of the file with its packets.
    pub(crate) key: String,
    pub(crate) title: String,
    pub(crate) work: Work,
    /// The packets: frames of Ethernet, or bytes to sum.
    pub(crate) frames: Vec<Bytes>,
    /// Number of frames at the start that do not count.
    pub(crate) held: usize,
    pub(crate) csum: Csum,
    /// Whether the measured bytes are kept out of all caches.
    pub(crate) cold: bool,
    pub(crate) aims: Vec<Aim>,
}

impl Row {
    fn new(key: &str, title: &str, work: Work, frames: Vec<Bytes>) -> Row {
        let (key, title) = (key.to_owned(), title.to_owned());
        Row { key, title, work, frames, held: 0, csum: Csum::Verified, cold: false, aims: Vec::new() }
    }

    fn aims<const N: usize>(mut self, aims: [Aim; N]) -> Row {
        self.aims = aims.to_vec();
        self
    }

    /// Returns the number of packets that count: the segments of a train that is cut.
    pub(crate) fn packets(&self) -> usize {
        match self.work {
            Work::Cut | Work::Scatter => SEGMENTS,
            _ => self.frames.len() - self.held,
        }
    }

    /// Returns the packets as a file has them: each after its length, 32 bits, little-endian.
    pub(crate) fn packed(&self) -> Vec<u8> {
        self.frames.iter().flat_map(|frame| [&(frame.len() as u32).to_le_bytes(), *frame].concat()).collect()
    }
}

/// Returns a note on work in a row that only some implementations do.
pub(crate) fn note(name: &str, work: &Work) -> &'static str {
    match (name, work) {
        ("segue", Work::Join) => "the engine: IPv4 header sums verified, payload referred to",
        ("segue as the product", Work::Join) => "a gateway between ports in memory, sending and counters included",
        ("DPDK", Work::Join) => "verifies nothing; payload chained; at most 128 packets at once",
        ("tun-rs", Work::Join) => "verifies what it joins; payload copied; at most 128 packets at once",
        ("wireguard-go", Work::Join) => "verifies what it joins; payload copied; at most 128 packets at once",
        ("gVisor", Work::Join) => {
            "verifies every sum that is not known; payload shared; making its buffers is not timed"
        }
        ("memcpy", _) => "copies the bytes",
        ("sum", _) => "sums the bytes and nothing else",
        ("copy+sum", _) => "copies and sums the bytes in one pass",
        ("etherparse", Work::Parse) => "slices of each header; no layout",
        ("DPDK", Work::Scatter) => "no transport sums; indirect buffers",
        ("tun-rs" | "wireguard-go", Work::Cut) => "all sums; payload copied",
        ("DPDK", Work::Sum) => "rte_raw_cksum, built for this processor",
        _ => "",
    }
}

/// Returns all rows of the comparison.
pub(crate) fn all() -> Vec<Row> {
    use Aim::{AimedAt, AtMost, Faster, Of, OfRow, Plus};
    let bursts = engine::bursts();
    let joined = |name: &str, key: &str, title: &str| {
        let burst = bursts.iter().find(|burst| burst.name == name).expect("a burst of this name");
        let row = Row::new(key, title, Work::Join, burst.frames.clone());
        Row { held: burst.held, csum: burst.csum, ..row }
    };
    let verifying = |key: &str, title: &str, from: &str| Row { csum: Csum::Unknown, ..joined(from, key, title) };
    let (one, eight) = ("GRO, checksums known, 1 flow", "GRO, checksums known, 8 flows");
    let sixty_four = "GRO, checksums known, 64 flows in bursts of 64";
    let many = |key: &str, title: &str| joined("GRO, 4096 flows through a table of 256", key, title);
    let cold = |key: &str, title: &str, from: &str| Row { cold: true, ..verifying(key, title, from) };
    let mut rows = vec![
        joined(one, "known-1", "GRO, checksums known, 1 flow, 64 packets of 1,448 bytes")
            .aims([AimedAt(16.0), Faster("DPDK", 1.4)]),
        joined(eight, "known-8", "GRO, checksums known, 8 flows").aims([AimedAt(18.0), Faster("DPDK", 1.45)]),
        joined(sixty_four, "known-64", "GRO, checksums known, 64 flows").aims([AimedAt(18.0), Faster("DPDK", 5.3)]),
        verifying("verifying-1", "GRO, verifying, 1 flow", one).aims([
            Plus("known-1", 1.2, "sum"),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        verifying("verifying-8", "GRO, verifying, 8 flows", eight).aims([
            Plus("known-8", 1.2, "sum"),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        verifying("verifying-64", "GRO, verifying, 64 flows", sixty_four).aims([
            Plus("known-64", 1.2, "sum"),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        cold("cold-1", "GRO, verifying, 1 flow, cold memory", one).aims([
            Of("memcpy", 3.3),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        cold("cold-8", "GRO, verifying, 8 flows, cold memory", eight).aims([
            Of("memcpy", 3.3),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        Row::new(
            "parse",
            "parsing a frame of TCP over IPv4",
            Work::Parse,
            vec![Flow::new(1).frame(FULL, 0).leak(); 64],
        )
        .aims([AtMost(20.0, &[])]),
        joined("GRO, pure acknowledgments", "acks", "GRO, pure ACKs of 64 flows")
            .aims([AtMost(30.0, &[("wireguard-go", 12.0), ("DPDK", 12.0), ("tun-rs", 27.0)])]),
        joined("GRO, pure acknowledgments behind 64 segments held", "acks-held", "the same with 64 segments held")
            .aims([AtMost(30.0, &[])]),
        joined("GRO, ICMP", "icmp", "GRO, ICMP").aims([AtMost(20.0, &[("tun-rs", 4.0), ("DPDK", 6.0)])]),
        joined("GRO, 64-byte segments with PSH, 64 flows", "push", "GRO, 64-byte segments with PSH, 64 flows")
            .aims([AtMost(35.0, &[("DPDK", 10.0), ("tun-rs", 72.0)])]),
        joined("GRO, random sizes, 8 flows", "random", "GRO, random sizes, 8 flows, checksums known").aims([
            AtMost(80.0, &[("DPDK", 38.0), ("tun-rs", 170.0)]),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        joined("GRO, reversed order", "reversed", "GRO, reversed order, checksums known").aims([
            AtMost(120.0, &[("DPDK", 27.0), ("wireguard-go", 896.0)]),
            Faster("tun-rs", 1.0),
            Faster("wireguard-go", 1.0),
            Faster("gVisor", 1.0),
        ]),
        many("full", "GRO, 4,096 flows through a table of 256").aims([OfRow("known-8", 3.0)]),
        Row {
            frames: many("", "").frames[..1024].to_vec(),
            ..many("full-1024", "GRO, 1,024 flows in a burst through a table of 256")
        }
        .aims([OfRow("known-8", 3.0)]),
    ];
    let mut flow = Flow::new(1);
    let inner: Vec<Bytes> = (0..512).map(|_| &*flow.frame(1372, 0).leak()).collect();
    let acks: Vec<Bytes> = (0..512).map(|_| &*flow.frame(0, 0).leak()).collect();
    rows.extend([
        Row::new("tunnel", "GUE: decapsulated and joined, 1 flow in bursts of 32", Work::Decapsulate, inner)
            .aims([AtMost(100.0, &[])]),
        Row::new("tunnel-acks", "GUE: decapsulated, pure ACKs in bursts of 8", Work::Decapsulate, acks)
            .aims([AtMost(120.0, &[])]),
        Row::new("cut", "a train of 44 segments cut, with checksums and copied", Work::Cut, train())
            .aims([Of("copy+sum", 1.5), Faster("tun-rs", 2.5)]),
        Row::new("scatter", "a train of 44 segments cut, payload by reference", Work::Scatter, train())
            .aims([Faster("DPDK", 1.0)]),
    ]);
    rows.extend([40, 1460, 9000, 65_535].map(|len: usize| {
        let bytes: Bytes = (0..len).map(|at| (at * 7) as u8).collect::<Vec<_>>().leak();
        Row::new(&format!("sum-{len}"), &format!("checksum of {len} bytes (ns per call)"), Work::Sum, vec![bytes])
    }));
    rows
}

fn train() -> Vec<Bytes> {
    vec![Flow::new(1).frame(SEGMENTS * FULL, 0).leak()]
}
