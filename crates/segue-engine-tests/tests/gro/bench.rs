//! A test bench: a short stream, its output, and the counters.

use segue::gro::{Config, Flush, Gro, Mismatch, Profile, RefusalReason, Stats};
use segue::gso::{Arena, Limits, split};
use segue::packet::{Frag, Kind, Packet, Pool, Start, Tunnels, Unit};
use segue::reason::{Counts, Reason};
use segue::time::Nanos;
use segue_testkit::build::{self, Ethernet, Gre, Ip, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::strategy::{FOU_PORTS, GENEVE_PORT, GUE_PORT, VXLAN_PORT, port_of};

/// A stream and the engine's configuration.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) packets: Vec<(Vec<u8>, Option<Unit>)>,
    pub(crate) start: Start,
    pub(crate) config: Config,
    /// Time between two packets, in nanoseconds.
    pub(crate) step: u64,
}

/// The result of a run.
pub(crate) struct Outcome {
    /// Number of packets in each released train; 1 for a single packet.
    pub(crate) sizes: Vec<usize>,
    pub(crate) trains: Vec<Packet<Vec<u8>>>,
    pub(crate) stats: Stats,
}

impl Stream {
    pub(crate) fn new(packets: impl IntoIterator<Item = Vec<u8>>) -> Stream {
        let packets = packets.into_iter().map(|bytes| (bytes, None)).collect();
        Stream { packets, start: Start::Ip, config: Config::default(), step: 1 }
    }

    pub(crate) fn linux(self) -> Stream {
        self.profile(Profile::linux())
    }

    pub(crate) fn profile(mut self, profile: Profile) -> Stream {
        self.config.profile = profile;
        self
    }

    /// Creates a bench for a receiver with LRO, acknowledgments included.
    pub(crate) fn lro(mut self) -> Stream {
        (self.config.profile, self.config.acks) = (Profile::Lro, true);
        self
    }

    pub(crate) fn ethernet(mut self) -> Stream {
        self.start = Start::Ethernet;
        self
    }

    pub(crate) fn config(mut self, change: impl FnOnce(&mut Config)) -> Stream {
        change(&mut self.config);
        self
    }

    /// Sets the offload state of packet `index`.
    pub(crate) fn unit(mut self, index: usize, unit: Unit) -> Stream {
        self.packets[index].1 = Some(unit);
        self
    }

    /// Runs the stream, and checks that every packet leaves once and unchanged.
    pub(crate) fn run(&self) -> Outcome {
        let (outcome, left) = self.run_unchecked();
        let mut came: Vec<&[u8]> = self.packets.iter().map(|(bytes, _)| &bytes[..]).collect();
        let mut left: Vec<&[u8]> = left.iter().map(|bytes| &bytes[..]).collect();
        // Flows may overtake each other; order within a flow is checked by the contracts.
        came.sort_unstable();
        left.sort_unstable();
        let is_owed = self.packets.iter().any(|(_, unit)| unit.is_some());
        assert!(is_owed || came == left, "came {came:02x?}\nleft {left:02x?}");
        outcome
    }

    /// Runs the stream over both paths, which must agree; also returns the bytes that leave, in order.
    pub(crate) fn run_unchecked(&self) -> (Outcome, Vec<Vec<u8>>) {
        let (outcome, left) = self.run_through(Gro::new(self.config));
        let (slow, slow_left) = self.run_through(Gro::slow_path_only(self.config));
        assert_eq!(format!("{:?}", outcome.stats), format!("{:?}", slow.stats), "on the slow path");
        assert!((&outcome.sizes, &left) == (&slow.sizes, &slow_left), "{:?}, {:?}", outcome.sizes, slow.sizes);
        let offloads = |outcome: &Outcome| outcome.trains.iter().map(|train| train.offload).collect::<Vec<_>>();
        assert_eq!(offloads(&outcome), offloads(&slow), "on the slow path");
        (outcome, left)
    }

    /// Runs the stream through one engine; also returns the bytes that leave, in order.
    fn run_through(&self, mut gro: Gro<Vec<u8>>) -> (Outcome, Vec<Vec<u8>>) {
        let mut pool = Pool::new(16);
        let (mut sizes, mut trains, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut now = Nanos(0);
        for (bytes, unit) in &self.packets {
            let mut packet = pool.take();
            packet.load(Frag::all(bytes.clone()), self.start, &tunnel_ports());
            if let Some(unit) = unit {
                packet.offload.unit = *unit;
            }
            now = now.after(self.step);
            if self.config.hold != Nanos::ZERO {
                gro.expire(now);
            }
            gro.push(packet, now, &mut pool);
        }
        gro.flush();
        while let Some(packet) = gro.pop() {
            let mut arena = Arena::new();
            split(&packet, &Limits::NONE, &mut arena).expect("what came in can leave");
            for segment in arena.segments() {
                let payload = packet.payload.pieces(segment.payload.start as usize..segment.payload.end as usize);
                left.push([arena.head(segment), &payload.collect::<Vec<_>>().concat()].concat());
            }
            sizes.push(arena.segments().len());
            trains.push(*packet);
        }
        (Outcome { sizes, trains, stats: gro.stats().clone() }, left)
    }

    /// Asserts that all packets become one train.
    pub(crate) fn joins(&self) -> Outcome {
        let outcome = self.run();
        assert_eq!(outcome.sizes, [self.packets.len()], "{:?}", outcome.stats);
        outcome
    }

    /// Asserts the sizes of the trains.
    pub(crate) fn gives(&self, sizes: &[usize]) -> Outcome {
        let outcome = self.run();
        assert_eq!(outcome.sizes, sizes, "{:?}", outcome.stats);
        outcome
    }
}

impl Outcome {
    /// Asserts that exactly the given counters are nonzero.
    pub(crate) fn counts(
        &self,
        alone: &[(RefusalReason, u64)],
        flushes: &[(Flush, u64)],
        mismatches: &[(Mismatch, u64)],
    ) {
        assert_eq!(nonzero(&self.stats.alone), alone, "alone");
        assert_eq!(nonzero(&self.stats.flushes), flushes, "flushes");
        assert_eq!(nonzero(&self.stats.mismatches), mismatches, "mismatches");
    }
}

fn nonzero<R: Reason>(counts: &Counts<R>) -> Vec<(R, u64)> {
    counts.iter().filter(|(_, count)| *count != 0).collect()
}

/// Asserts that a table of scenarios has every reason once.
pub(crate) fn complete<R: Reason + std::fmt::Debug>(table: impl Iterator<Item = R>) {
    let mut found: Vec<usize> = table.map(Reason::index).collect();
    found.sort_unstable();
    found.dedup();
    let missing: Vec<_> = R::ALL.iter().filter(|reason| !found.contains(&reason.index())).collect();
    assert!(missing.is_empty(), "nothing provokes {missing:?}");
}

pub(crate) fn tunnel_ports() -> Tunnels {
    let base = Tunnels::NONE.with_gue(GUE_PORT).with(VXLAN_PORT, Kind::Vxlan).with(GENEVE_PORT, Kind::Geneve);
    FOU_PORTS.iter().fold(base, |tunnels, &(port, protocol)| tunnels.with_fou(port, protocol))
}

pub(crate) fn v4() -> Ip {
    Ip::V4(V4::new(1, 1, 2))
}

pub(crate) fn v6() -> Ip {
    Ip::V6(V6::new(1, 1, 2))
}

pub(crate) fn tcp4() -> Sender {
    Sender::tcp(v4(), 1, 1000, Vec::new())
}

pub(crate) fn tcp6() -> Sender {
    Sender::tcp(v6(), 1, 1000, Vec::new())
}

pub(crate) fn udp4() -> Sender {
    Sender::udp(v4(), 1)
}

pub(crate) fn udp6() -> Sender {
    Sender::udp(v6(), 1)
}

/// Returns a sender of each kind: TCP and UDP, over IPv4 and IPv6.
pub(crate) fn every() -> [Sender; 4] {
    [tcp4(), tcp6(), udp4(), udp6()]
}

/// Returns `count` packets of 100 bytes.
pub(crate) fn run(sender: &mut Sender, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| sender.send(100, 0).bytes()).collect()
}

/// Returns three packets, the middle one changed by `edit`. The first and the last would join.
pub(crate) fn between(mut sender: Sender, edit: impl FnOnce(&mut build::Packet)) -> Stream {
    let first = sender.send(100, 0).bytes();
    let mut middle = sender.clone().send(100, 0);
    edit(&mut middle);
    Stream::new([first, middle.bytes(), sender.send(100, 0).bytes()])
}

/// Returns three packets like [`between`], where `edit` changes the bytes of the middle one.
pub(crate) fn between_bytes(mut sender: Sender, edit: impl FnOnce(&mut Vec<u8>)) -> Stream {
    let first = sender.send(100, 0).bytes();
    let mut middle = sender.clone().send(100, 0).bytes();
    edit(&mut middle);
    Stream::new([first, middle, sender.send(100, 0).bytes()])
}

/// Returns two packets, the second one changed by `edit`.
pub(crate) fn then(mut sender: Sender, edit: impl FnOnce(&mut build::Packet)) -> Stream {
    let first = sender.send(100, 0).bytes();
    let mut second = sender.send(100, 0);
    edit(&mut second);
    Stream::new([first, second.bytes()])
}

/// Returns a UDP tunnel with a checksum, to the port of the inner protocol.
pub(crate) fn tunnel(ip: Ip, shim: Shim, gre: Option<Gre>, inner: &Ip) -> Tunnel {
    let dst_port = port_of(shim, gre.is_some(), false, matches!(inner, Ip::V4(_)));
    Tunnel { ip, udp: Some((Udp { src_port: 50_000, dst_port, checksum: true }, shim)), gre, ethernet: None }
}

/// Returns a tunnel like [`tunnel`], with an Ethernet header and optionally a VLAN tag inside.
pub(crate) fn bridge(ip: Ip, shim: Shim, gre: Option<Gre>, tag: Option<u16>) -> Tunnel {
    let dst_port = port_of(shim, gre.is_some(), true, true);
    let tags = tag.map(|tag| (0x8100, tag)).into_iter().collect();
    let ethernet = Some(Ethernet { dst: [2, 0, 0, 0, 0, 9], src: [2, 0, 0, 0, 0, 8], tags });
    Tunnel { ip, udp: Some((Udp { src_port: 50_000, dst_port, checksum: true }, shim)), gre, ethernet }
}

/// Puts each packet into a tunnel whose identification counts up.
pub(crate) fn wrap(tunnel: &Tunnel, packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut tunnel = tunnel.clone();
    let each = packets.into_iter().map(|packet| {
        let bytes = tunnel.wrap(&packet);
        if let Ip::V4(ip) = &mut tunnel.ip {
            ip.id = ip.id.wrapping_add(1);
        }
        bytes
    });
    each.collect()
}

/// Puts each packet into an Ethernet frame.
pub(crate) fn frames(link: &Ethernet, packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    packets.into_iter().map(|packet| link.wrap(&packet)).collect()
}
