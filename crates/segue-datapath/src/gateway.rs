//! The pipeline of a gateway: a bump in the wire between two packet ports.
//!
//! Each way is the same: read frames, join what belongs together, hand trains whole to a port that takes them and split for
//! one that does not. What joins with nothing leaves as it came, byte for byte, and so does what profile strict joins once
//! it has been cut again, by whomever.

use std::io;

use segue::gro::{self, Gro};
use segue::gso;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Page, PagePool, Polled, Port, RxBatch};

use crate::board::{Group, Sink};
use crate::end::{self, End};
use crate::pipeline::{Interest, Pipeline, Round};

/// Longest time that a train stays open while its port has more to read and no hold time is set, in nanoseconds: the reads
/// of one round need not hold all of a train, and a port that always has more must not keep a packet of another flow.
const BUSY_HOLD: u64 = 50_000;

/// One side of a gateway.
pub struct Side {
    /// Name of the port in statistics: the interface.
    pub name: String,
    /// The packet port.
    pub port: Box<dyn Port>,
    /// Joins what comes in here; `None` leaves packets as they are. A hold time of 0 ends every train as soon as nothing
    /// more waits.
    pub gro: Option<gro::Config>,
}

/// What a gateway is made of.
pub struct Parts {
    /// Both sides.
    pub sides: [Side; 2],
    /// Frames taken from one port in one round.
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
    ends: [End; 2],
    /// What joins the packets that come in at the end of the same index.
    joins: [Option<Join>; 2],
    /// Packets that could not be split for the end of the same index.
    split_drops: [Counts<gso::Refusal>; 2],
    rx: RxBatch,
    budget: usize,
}

struct Join {
    gro: Gro<Page>,
    /// Whether what is held waits for its time even when nothing more waits to be read.
    holds: bool,
}

impl Join {
    fn new(mut config: gro::Config) -> Join {
        let holds = config.hold > 0;
        config.hold = if holds { config.hold } else { BUSY_HOLD };
        Join { gro: Gro::new(config), holds }
    }

    /// Ends the trains that have to end after a poll like this.
    fn settle(&mut self, polled: Polled, now: Nanos) {
        match polled {
            Polled::Idle if !self.holds => self.gro.flush(),
            Polled::Idle | Polled::More => self.gro.expire(now),
            // What is held holds the memory that is missing.
            Polled::Starved => self.gro.flush(),
        }
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Gateway").field("ends", &names).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway between two ports.
    pub fn new(parts: Parts) -> Gateway {
        let configs = parts.sides.each_ref().map(|side| side.gro);
        let strict = |config: Option<gro::Config>| config.is_some_and(|config| config.profile == gro::Profile::Strict);
        let [first, second] = parts.sides.map(|side| End::new(side.name, side.port));
        // What comes in at one end leaves at the other.
        let first = if strict(configs[1]) { first.exact() } else { first };
        let second = if strict(configs[0]) { second.exact() } else { second };
        Gateway {
            ends: [first, second],
            joins: configs.map(|config| config.map(Join::new)),
            split_drops: Default::default(),
            rx: RxBatch::over(parts.pages),
            budget: parts.budget.max(1),
        }
    }

    /// From one end to the other.
    fn forward(&mut self, from: usize, now: Nanos) -> io::Result<Polled> {
        let Gateway { ends: [first, second], joins, split_drops: [first_drops, second_drops], rx, budget } = self;
        let (from, join, to, drops) = match from {
            0 => (first, &mut joins[0], second, second_drops),
            _ => (second, &mut joins[1], first, first_drops),
        };
        if to.blocked {
            to.transmit(rx, drops)?;
            if to.blocked {
                return Ok(Polled::Idle);
            }
        }
        let polled = from.port.receive(rx, *budget)?;
        while let Some(packet) = rx.packets.pop_front() {
            match join {
                Some(join) => join.gro.push(packet, now, &mut rx.pool),
                None => to.push(packet, rx, drops),
            }
        }
        if let Some(join) = join {
            join.settle(polled, now);
            while let Some(packet) = join.gro.pop() {
                to.push(packet, rx, drops);
            }
        }
        to.transmit(rx, drops)?;
        Ok(polled)
    }
}

impl Pipeline for Gateway {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let polled = [self.forward(0, now)?, self.forward(1, now)?];
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = self.ends.iter().any(|end| end.blocked);
        let more = polled.iter().any(|polled| *polled != Polled::Idle);
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let [first, second] = &self.ends;
        first.interests(second.blocked, wait);
        second.interests(first.blocked, wait);
    }

    fn deadline(&self) -> Option<Nanos> {
        let [first, second] = &self.ends;
        let ways = [(&self.joins[0], second), (&self.joins[1], first)];
        // What is held for a blocked port has to wait for that port anyway.
        let due = |(join, to): (&Option<Join>, &End)| join.as_ref().filter(|_| !to.blocked)?.gro.deadline();
        ways.into_iter().filter_map(due).min()
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        for ((end, join), drops) in self.ends.iter().zip(&self.joins).zip(&self.split_drops) {
            let stats = join.as_ref().map(|join| join.gro.stats());
            end.collect(stats.map_or(0, |stats| stats.checksummed_bytes), sink);
            sink.reasons(&end.name, Group::Drops, drops);
            if let Some(stats) = stats {
                end::collect_gro(&end.name, stats, sink);
            }
        }
    }
}
