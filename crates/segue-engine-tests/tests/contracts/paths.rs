//! Compares the fast path through GRO with the slow path: their outputs and counters are equal, packet for packet.

use std::collections::VecDeque;

use segue::gro::{Frame, Gro, Popped, Stats};
use segue::packet::{Csum, Frag, Pool, Tunnels};
use segue::time::Nanos;
use segue::wire::Layout;

use crate::properties::{Arrival, Boxed, Setting, frame, load};

/// Observable properties of a packet.
#[derive(Debug, PartialEq)]
struct PacketImage {
    head: Vec<u8>,
    ranges: Vec<Vec<u8>>,
    layout: Layout,
    is_exact: bool,
    end: usize,
    offload: segue::packet::Offload,
}

fn image(packet: &Boxed) -> PacketImage {
    PacketImage {
        head: packet.head.bytes().to_vec(),
        ranges: packet.payload.frags().iter().map(|frag| frag.bytes().to_vec()).collect(),
        layout: packet.layout,
        is_exact: packet.layout.is_exact(),
        end: packet.layout.end(),
        offload: packet.offload,
    }
}

/// Number of paths that are compared.
const PATHS: usize = 5;

/// A [`Gro`] that is fed over one of the paths.
struct PathRun {
    name: &'static str,
    gro: Gro<Vec<u8>>,
    pool: Pool<Vec<u8>>,
    pushed_as: PushedAs,
}

/// The form in which packets are pushed.
#[derive(Clone, Copy, PartialEq)]
enum PushedAs {
    Packets,
    Frames,
    /// Every third packet is pushed parsed, the others as frames.
    Both,
    /// Frames are pushed from a queue in which another frame waits, and everything ready is drained at once.
    Queue,
}

/// The packets that came out of a path, its state and its counters after a step, and all counters as text after the
/// last.
type Observed = (Vec<PacketImage>, usize, usize, Option<Nanos>, [u64; 9], String);

/// Returns the counters, those by reason summed up: a text of them after each of a million steps would cost more than
/// the engine. They only grow, so that a wrong reason is still there in the text after the last step.
fn counters(stats: &Stats) -> [u64; 9] {
    let [alone, flushes, mismatches] = [stats.alone.total(), stats.flushes.total(), stats.mismatches.total()];
    let Stats { packets, trains, segments, swallowed, trimmed, checksummed_bytes, .. } = *stats;
    [packets, trains, segments, swallowed, trimmed, checksummed_bytes, alone, flushes, mismatches]
}

impl PathRun {
    fn all(setting: &Setting) -> [PathRun; PATHS] {
        let config = segue::gro::Config { tunnels: setting.tunnels(), ..setting.config };
        let path = |name, gro, pushed_as| PathRun { name, gro, pool: Pool::new(64), pushed_as };
        [
            path("slow path", Gro::slow_path_only(config), PushedAs::Packets),
            path("packets over the fast path", Gro::new(config), PushedAs::Packets),
            path("frames over the fast path", Gro::new(config), PushedAs::Frames),
            path("packets and frames over the fast path", Gro::new(config), PushedAs::Both),
            path("frames of a queue over the fast path", Gro::new(config), PushedAs::Queue),
        ]
    }

    fn push(&mut self, arrival: &Arrival, index: usize, setting: &Setting, now: Nanos) {
        if self.pushed_as == PushedAs::Packets || (self.pushed_as == PushedAs::Both && index % 3 == 1) {
            let packet = load(arrival, setting, &setting.tunnels(), &mut self.pool);
            return self.gro.push(packet, now, &mut self.pool);
        }
        let frame = frame(arrival, setting);
        if self.pushed_as == PushedAs::Queue {
            let later = Frame { bytes: Frag::all(Vec::new()), start: setting.start, csum: Csum::Bad };
            let mut queue = VecDeque::from([frame, later]);
            self.gro.push_from(&mut queue, VecDeque::front, VecDeque::pop_front, now, &mut self.pool);
            return assert!(queue.len() == 1 && queue[0].csum == Csum::Bad, "another frame than the first was taken");
        }
        self.gro.push_frame(frame, now, &mut self.pool);
    }

    /// Pops everything that is ready; where frames are pushed beside packets or from a queue, unparsed if it can be.
    fn pop_all(&mut self) -> Vec<Boxed> {
        let mut popped = Vec::new();
        match self.pushed_as {
            PushedAs::Packets | PushedAs::Frames => {
                return std::iter::from_fn(|| self.gro.pop_from(&mut self.pool)).collect();
            }
            PushedAs::Both => popped.extend(std::iter::from_fn(|| self.gro.pop_unparsed())),
            PushedAs::Queue => self.gro.drain_unparsed(|one| popped.push(one)),
        }
        let parsed = popped.into_iter().map(|one| match one {
            Popped::Packet(packet) => packet,
            Popped::Frame(frame) => frame.parse(&Tunnels::NONE, &mut self.pool),
        });
        parsed.collect()
    }

    fn observe(&mut self, is_last: bool) -> Observed {
        let mut images = Vec::new();
        for packet in self.pop_all() {
            images.push(image(&packet));
            self.pool.put(packet);
        }
        let gro = &self.gro;
        let text = if is_last { format!("{:?}", gro.stats()) } else { String::new() };
        (images, gro.held(), gro.held_packets(), gro.deadline(), counters(gro.stats()), text)
    }
}

/// Describes the difference of the paths on a stream; `None` where they agree.
pub(crate) fn disagreement(arrivals: &[Arrival], setting: &Setting) -> Option<String> {
    let mut paths = PathRun::all(setting);
    let mut now = Nanos(1);
    for (index, arrival) in arrivals.iter().enumerate() {
        now = now.after(setting.step);
        for path in &mut paths {
            if setting.config.hold != Nanos::ZERO {
                path.gro.expire(now);
            }
            path.push(arrival, index, setting, now);
            if setting.round != 0 && index % setting.round == setting.round - 1 {
                path.gro.flush();
            }
        }
        if let Some(what) = compare(&mut paths, false) {
            return Some(format!("packet {index}: {what}"));
        }
    }
    paths.iter_mut().for_each(|path| path.gro.flush());
    compare(&mut paths, true)
}

fn compare(paths: &mut [PathRun; PATHS], is_last: bool) -> Option<String> {
    let [slow, fast @ ..] = paths;
    let expected = slow.observe(is_last);
    fast.iter_mut().find_map(|path| {
        let observed = path.observe(is_last);
        (observed != expected).then(|| format!("{}\n{expected:02x?}\n{}\n{observed:02x?}", slow.name, path.name))
    })
}
