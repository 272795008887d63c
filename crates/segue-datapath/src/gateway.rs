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

use crate::board::{Group, Sink, Stage};
use crate::end::{self, End};
use crate::entry::{Entry, Seen};
use crate::knobs::{Dial, Knobs};
use crate::napi::{Pace, Sharing, Turns};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::tuning::{Joining, Protocols, Remcsum, Settings};

/// Longest time that a train stays open while its port has more to read and no hold time is set, in nanoseconds: the reads
/// of one round need not hold all of a train, and a port that always has more must not keep a packet of another flow.
const BUSY_HOLD: u64 = 50_000;

/// One side of a gateway.
pub struct Side {
    /// Name of the port in statistics: the interface.
    pub name: String,
    /// The packet port.
    pub port: Box<dyn Port>,
    /// How to join what comes in here, which can then be changed and switched off as it runs; `None` leaves packets as they
    /// are for good. A hold time of 0 ends every train as soon as nothing
    /// more waits.
    pub gro: Option<gro::Config>,
}

/// The knobs that a gateway between ports of these names has, before it is made; `budget` as in [`Parts`].
pub fn knobs(names: [&str; 2], gro: [Option<gro::Config>; 2], budget: usize) -> Knobs {
    Knobs::list(|dial| Settings::new(names.map(str::to_owned), gro, Remcsum::None, budget).tune(dial))
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
    ends: [End; 2],
    /// What joins the packets that come in at the end of the same index.
    joins: [Option<Join>; 2],
    /// The way to the end of the same index.
    entries: [Entry; 2],
    settings: Settings,
    /// Packets that could not be split for the end of the same index.
    split_drops: [Counts<gso::Refusal>; 2],
    rx: RxBatch,
    turns: Turns,
}

/// What joins packets that come in at one end.
pub(crate) struct Join {
    pub(crate) gro: Gro<Page>,
    pub(crate) on: bool,
    /// Whether what is held waits for its time even when nothing more waits to be read.
    holds: bool,
    pub(crate) seen: Seen,
}

impl Join {
    pub(crate) fn new(config: gro::Config) -> Join {
        let hold = if config.hold > 0 { config.hold } else { BUSY_HOLD };
        let gro = Gro::new(gro::Config { hold, ..config });
        Join { gro, on: true, holds: config.hold > 0, seen: Seen::default() }
    }

    /// Goes by these settings from here on. What is held leaves first.
    pub(crate) fn retune(&mut self, joining: &Joining, protocols: &Protocols, sharing: &Sharing) {
        let hold = sharing.hold(joining.hold());
        (self.on, self.holds) = (joining.on, hold > 0);
        self.gro.reconfigure(joining.config(protocols, if self.holds { hold } else { BUSY_HOLD }));
    }

    /// Ends the trains that have to end after a poll like this.
    pub(crate) fn settle(&mut self, polled: Polled, now: Nanos) {
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
        let names = parts.sides.each_ref().map(|side| side.name.clone());
        let mut made = Gateway {
            ends: parts.sides.map(|side| End::new(side.name, side.port)),
            joins: configs.map(|config| config.map(Join::new)),
            entries: Default::default(),
            settings: Settings::new(names, configs, Remcsum::None, parts.budget),
            split_drops: Default::default(),
            rx: RxBatch::over(parts.pages),
            turns: Turns::default(),
        };
        made.settle();
        made
    }

    /// Goes by the settings.
    fn settle(&mut self) {
        let Settings { protocols, leaving, joining, sharing, .. } = &self.settings;
        for at in 0..2 {
            self.ends[at].leave(leaving[at]);
            self.ends[at].polls.weight = sharing.weights[at] as usize;
            // What comes in at one end leaves at the other.
            self.ends[at].exact = joining[1 - at].as_ref().is_some_and(Joining::is_strict);
            self.entries[at].cuts = self.settings.cuts(at);
            if let (Some(join), Some(joining)) = (&mut self.joins[at], &joining[at]) {
                join.retune(joining, protocols, sharing);
            }
        }
    }

    /// From one end to the other, at most `left` packets, which becomes what is left of it.
    fn forward(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let Gateway { ends: [first, second], joins, entries, split_drops: [first_drops, second_drops], rx, .. } = self;
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
        let mut turns = self.turns;
        let more = turns.round(self.settings.sharing.budget, |from, left| self.forward(from, now, left))?;
        self.turns = turns;
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = self.ends.iter().any(|end| end.blocked);
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let [first, second] = &self.ends;
        first.interests(second.blocked, wait);
        second.interests(first.blocked, wait);
    }

    fn woken(&mut self, place: usize) {
        end::woken(&mut self.ends, place);
    }

    fn pace(&self) -> Pace {
        self.settings.sharing.pace()
    }

    fn taken(&self) -> u64 {
        self.ends.iter().map(|end| end.polls.taken).sum()
    }

    fn deadline(&self) -> Option<Nanos> {
        let [first, second] = &self.ends;
        let ways = [(&self.joins[0], second), (&self.joins[1], first)];
        // What is held for a blocked port has to wait for that port anyway.
        let due = |(join, to): (&Option<Join>, &End)| join.as_ref().filter(|_| !to.blocked)?.gro.deadline();
        ways.into_iter().filter_map(due).min()
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let [first, second] = self.ends.each_ref().map(|end| end.name.as_str());
        self.entries[1].collect(first, second, sink);
        self.entries[0].collect(second, first, sink);
        for (((end, join), entry), drops) in self.ends.iter().zip(&self.joins).zip(&self.entries).zip(&self.split_drops)
        {
            let stats = join.as_ref().map(|join| join.gro.stats());
            end.collect(stats.map_or(0, |stats| stats.checksummed_bytes) + entry.checksummed(), sink);
            sink.reasons(&end.name, Group::Drops, drops);
            if let Some(join) = join {
                join.seen.collect(&end.name, Stage::Gro, sink);
            }
            if let Some(stats) = stats {
                end::collect_gro(&end.name, stats, sink);
            }
        }
    }
}
