//! The pipeline of a gateway: a bump in the wire between two packet ports.
//!
//! Each way is the same: read frames, join what belongs together, hand trains whole to a port that takes them and split for
//! one that does not. What joins with nothing leaves as it came, byte for byte, and so does what profile strict joins once
//! it has been cut again, by whomever.

use std::io;

use segue::gro;
use segue::time::Nanos;
use segue_port::{PagePool, Polled};

use crate::board::Sink;
use crate::end::End;
pub use crate::end::LINK_DOWN;
use crate::knobs::{Dial, Knobs};
use crate::napi::Pace;
use crate::pipeline::{Interest, Pipeline, Round};
use crate::sides::{self, Crossing, Join, Sides};
pub use crate::sides::{Fragments, Side};

/// The knobs that a gateway between ports of these names has, before it is made; `budget` as in [`Parts`].
pub fn knobs(names: [&str; 2], gro: [Option<gro::Config>; 2], budget: usize) -> Knobs {
    sides::knobs(names, gro, budget, |_| ())
}

/// What a gateway is made of.
pub struct Parts {
    /// Both sides.
    pub sides: [Side; 2],
    /// Frames taken from one port in one round: the weight that both begin with.
    pub budget: usize,
    /// Memory to receive into.
    pub pages: PagePool,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.sides.each_ref().map(|side| &side.name);
        f.debug_struct("Parts").field("sides", &names).finish_non_exhaustive()
    }
}

/// A gateway; see the module.
pub struct Gateway {
    sides: Sides,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.sides.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Gateway").field("ends", &names).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway between two ports.
    pub fn new(parts: Parts) -> Gateway {
        Gateway { sides: Sides::new(parts.sides, parts.budget, parts.pages, Crossing::Other) }
    }

    /// From one end to the other, at most `left` packets, which becomes what is left of it.
    fn forward(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let Sides { ends: [first, second], joins, entries, split_drops: [first_drops, second_drops], rx, .. } =
            &mut self.sides;
        let (from, join, entry, to, drops) = match from {
            0 => (first, &mut joins[0], &mut entries[1], second, second_drops),
            _ => (second, &mut joins[1], &mut entries[0], first, first_drops),
        };
        if to.blocked {
            to.transmit(rx, drops)?;
            if to.blocked {
                return Ok(Polled::Idle);
            }
        }
        // What a change of settings let go.
        while let Some(packet) = join.as_mut().and_then(|join| join.gro.pop()) {
            entry.each(packet, rx, drops, |packet, rx, drops| to.push(packet, rx, drops));
        }
        let polled = from.poll(rx, left)?;
        let mut join = join.as_mut().filter(|join| join.on);
        while let Some(packet) = rx.packets.pop_front() {
            match &mut join {
                Some(join) => {
                    join.seen.add(&packet);
                    join.gro.push(packet, now, &mut rx.pool);
                }
                None => entry.each(packet, rx, drops, |packet, rx, drops| to.push(packet, rx, drops)),
            }
        }
        if let Some(join) = join {
            join.settle(polled, now);
            while let Some(packet) = join.gro.pop() {
                entry.each(packet, rx, drops, |packet, rx, drops| to.push(packet, rx, drops));
            }
        }
        to.transmit(rx, drops)?;
        Ok(polled)
    }
}

impl Pipeline for Gateway {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let (mut turns, budget) = self.sides.begin_round();
        let more = turns.round(budget, |from, left| self.forward(from, now, left))?;
        self.sides.end_round(turns);
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = self.sides.is_blocked();
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let [first, second] = &self.sides.ends;
        first.interests(second.blocked, wait);
        second.interests(first.blocked, wait);
    }

    fn woken(&mut self, place: usize) {
        self.sides.woken(place);
    }

    fn pace(&self) -> Pace {
        self.sides.pace()
    }

    fn taken(&self) -> u64 {
        self.sides.taken()
    }

    fn deadline(&self) -> Option<Nanos> {
        let [first, second] = &self.sides.ends;
        let ways = [(&self.sides.joins[0], second), (&self.sides.joins[1], first)];
        // What is held for a blocked port has to wait for that port anyway.
        let due = |(join, to): (&Option<Join>, &End)| join.as_ref().filter(|_| !to.blocked)?.gro.deadline();
        ways.into_iter().filter_map(due).min()
    }

    fn close(&mut self) -> bool {
        self.sides.close();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.sides.tune(dial);
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        (0..2).for_each(|at| self.sides.collect(at, sink));
    }
}
