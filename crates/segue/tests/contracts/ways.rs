//! The short way of a packet through GRO against the long one: the same comes out, packet for packet and count for count.

use segue::gro::{Frame, Gro};
use segue::packet::{Csum, Frag, Pool, Unit};
use segue::time::Nanos;

use crate::properties::{Arrival, Boxed, Setting, load};

/// All that can be seen of a packet.
#[derive(Debug, PartialEq)]
struct Sight {
    head: Vec<u8>,
    ranges: Vec<Vec<u8>>,
    layout: String,
    is_exact: bool,
    end: usize,
    offload: segue::packet::Offload,
}

fn sight(packet: &Boxed) -> Sight {
    Sight {
        head: packet.head.bytes().to_vec(),
        ranges: packet.payload.frags().iter().map(|frag| frag.bytes().to_vec()).collect(),
        layout: format!("{:?}", packet.layout),
        is_exact: packet.layout.is_exact(),
        end: packet.layout.end(),
        offload: packet.offload,
    }
}

/// One of the ways.
struct Way {
    name: &'static str,
    gro: Gro<Vec<u8>>,
    pool: Pool<Vec<u8>>,
    takes: Takes,
}

/// As what a way takes packets.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Packets,
    Frames,
    /// Now as the one, now as the other.
    Both,
}

/// What is seen of a way after a step.
type Seen = (Vec<Sight>, usize, usize, Option<Nanos>, String);

impl Way {
    fn all(setting: &Setting) -> [Way; 4] {
        let config = segue::gro::Config { tunnels: setting.tunnels(), ..setting.config };
        let way = |name, gro, takes| Way { name, gro, pool: Pool::new(64), takes };
        [
            way("the long way", Gro::without_short_way(config), Takes::Packets),
            way("packets the short way", Gro::new(config), Takes::Packets),
            way("frames the short way", Gro::new(config), Takes::Frames),
            way("packets and frames the short way", Gro::new(config), Takes::Both),
        ]
    }

    fn push(&mut self, arrival: &Arrival, index: usize, setting: &Setting, now: Nanos) {
        let packet = load(arrival, setting, &setting.tunnels(), &mut self.pool);
        if self.takes == Takes::Packets || (self.takes == Takes::Both && index % 3 == 1) {
            return self.gro.push(packet, now, &mut self.pool);
        }
        let csum = match packet.offload.unit {
            Unit::Whole(csum) if arrival.known != crate::properties::Known::Nothing => csum,
            _ => Csum::Unknown,
        };
        self.pool.put(packet);
        let frame = Frame { bytes: Frag::all(arrival.bytes.clone()), start: setting.start, csum };
        self.gro.push_frame(frame, now, &mut self.pool);
    }

    fn seen(&mut self) -> Seen {
        let mut sights = Vec::new();
        while let Some(packet) = self.gro.pop_from(&mut self.pool) {
            sights.push(sight(&packet));
            self.pool.put(packet);
        }
        let gro = &self.gro;
        (sights, gro.held(), gro.held_packets(), gro.deadline(), format!("{:?}", gro.stats()))
    }
}

/// Where the ways differ on a stream, in words; `None` where they agree.
pub(crate) fn disagreement(arrivals: &[Arrival], setting: &Setting) -> Option<String> {
    let mut ways = Way::all(setting);
    let mut now = Nanos(1);
    for (index, arrival) in arrivals.iter().enumerate() {
        now = now.after(setting.step);
        for way in &mut ways {
            if setting.config.hold != 0 {
                way.gro.expire(now);
            }
            way.push(arrival, index, setting, now);
            if setting.round != 0 && index % setting.round == setting.round - 1 {
                way.gro.flush();
            }
        }
        if let Some(what) = compare(&mut ways) {
            return Some(format!("packet {index}: {what}"));
        }
    }
    ways.iter_mut().for_each(|way| way.gro.flush());
    compare(&mut ways)
}

fn compare(ways: &mut [Way; 4]) -> Option<String> {
    let [long, shorts @ ..] = ways;
    let expected = long.seen();
    shorts.iter_mut().find_map(|way| {
        let seen = way.seen();
        (seen != expected).then(|| format!("{}\n{expected:02x?}\n{}\n{seen:02x?}", long.name, way.name))
    })
}
