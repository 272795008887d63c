//! Two ports and what is done at each of them, whatever stands between: a gateway's bump in the wire, or a router.

use segue::gro::{self, Gro};
use segue::gso;
use segue::hash::Key;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Page, PagePool, Polled, Port, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::end::{self, End};
use crate::entry::{Entry, Seen};
use crate::knobs::{Dial, Knobs};
use crate::napi::{Pace, Sharing, Turns};
use crate::tuning::{Joining, Protocols, Remcsum, Settings};

/// Longest time that a train stays open while its port has more to read and no hold time is set, in nanoseconds: the reads
/// of one round need not hold all of a train, and a port that always has more must not keep a packet of another flow.
const BUSY_HOLD: u64 = 50_000;

/// Rounds after which is looked what has become of the ports' interfaces, where nothing has woken the loop for it.
const LISTEN_EVERY: u64 = 64;

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
    /// Longer packets that leave here are fragmented, as their sender would; `None` leaves that to the port, which refuses them,
    /// or to a router, which knows its MTU otherwise.
    pub fragments: Option<Fragments>,
}

/// How long packets are fragmented that their sender left whole.
#[derive(Clone, Copy, Debug)]
pub struct Fragments {
    /// Longest IP packet, bytes.
    pub mtu: usize,
    /// How fragments are numbered: random.
    pub key: Key,
}

/// The knobs that two sides of these names have, before they are made; `budget` as in [`Sides::new`], `more` adds its own.
pub(crate) fn knobs(
    names: [&str; 2],
    gro: [Option<gro::Config>; 2],
    budget: usize,
    more: impl FnOnce(&mut Dial<'_>),
) -> Knobs {
    Knobs::list(|dial| {
        Settings::new(names.map(str::to_owned), gro, Remcsum::None, budget).tune(dial);
        more(dial);
    })
}

/// Both sides at work.
pub(crate) struct Sides {
    pub(crate) ends: [End; 2],
    /// What joins the packets that come in at the end of the same index.
    pub(crate) joins: [Option<Join>; 2],
    /// The way to the end of the same index.
    pub(crate) entries: [Entry; 2],
    pub(crate) settings: Settings,
    /// Packets that could not be split for the end of the same index.
    pub(crate) split_drops: [Counts<gso::Refusal>; 2],
    pub(crate) rx: RxBatch,
    turns: Turns,
    crossing: Crossing,
    rounds: u64,
}

/// Where what comes in at one end may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    /// At the other one.
    Other,
    /// At both.
    Both,
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
    fn new(config: gro::Config) -> Join {
        let hold = if config.hold > 0 { config.hold } else { BUSY_HOLD };
        let gro = Gro::new(gro::Config { hold, ..config });
        Join { gro, on: true, holds: config.hold > 0, seen: Seen::default() }
    }

    /// Goes by these settings from here on. What is held leaves first.
    fn retune(&mut self, joining: &Joining, protocols: &Protocols, sharing: &Sharing) {
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

impl Sides {
    /// Both sides, by their settings at the start; `budget` is the weight that both begin with.
    pub(crate) fn new(sides: [Side; 2], budget: usize, pages: PagePool, crossing: Crossing) -> Sides {
        let configs = sides.each_ref().map(|side| side.gro);
        let names = sides.each_ref().map(|side| side.name.clone());
        let end = |side: Side| {
            let mut end = End::new(side.name, side.port);
            if let Some(Fragments { mtu, key }) = side.fragments {
                // Linux marks what it sends whole with DF; nothing else was ever on a path that could be discovered.
                end.fragment_to(mtu, gso::Fragment::Sender { clears_df: true });
                end.number_fragments(key);
            }
            end
        };
        let mut made = Sides {
            ends: sides.map(end),
            joins: configs.map(|config| config.map(Join::new)),
            entries: Default::default(),
            settings: Settings::new(names, configs, Remcsum::None, budget),
            split_drops: Default::default(),
            rx: RxBatch::over(pages),
            turns: Turns::default(),
            crossing,
            rounds: 0,
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
            let from = |end: usize| end != at || self.crossing == Crossing::Both;
            let mut feeding =
                joining.iter().enumerate().filter(|(end, _)| from(*end)).filter_map(|(_, one)| one.as_ref());
            self.ends[at].exact = feeding.any(Joining::is_strict);
            self.entries[at].cuts = self.settings.cuts(at);
            if let (Some(join), Some(joining)) = (&mut self.joins[at], &joining[at]) {
                join.retune(joining, protocols, sharing);
            }
        }
    }

    pub(crate) fn close(&mut self) {
        self.ends.iter_mut().for_each(|end| end.polls.closed = true);
        self.settle();
    }

    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    /// Whose turn it is in this round, and the budget of it; [`Sides::end_round`] has what became of the turns.
    pub(crate) fn begin_round(&mut self) -> (Turns, u64) {
        self.rounds = self.rounds.wrapping_add(1);
        // A loop that never sleeps is not woken either.
        let looks = self.rounds.is_multiple_of(LISTEN_EVERY);
        self.ends.iter_mut().for_each(|end| end.listen(looks));
        (self.turns, self.settings.sharing.budget)
    }

    pub(crate) fn end_round(&mut self, turns: Turns) {
        self.turns = turns;
    }

    /// One of the ends' wishes, in their order, woke the loop.
    pub(crate) fn woken(&mut self, place: usize) {
        end::woken(&mut self.ends, place);
    }

    pub(crate) fn pace(&self) -> Pace {
        self.settings.sharing.pace()
    }

    /// Packets taken from both ports so far.
    pub(crate) fn taken(&self) -> u64 {
        self.ends.iter().map(|end| end.polls.taken).sum()
    }

    /// Whether a port takes no more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.ends.iter().any(|end| end.blocked)
    }

    /// Writes the counters of the end `at`.
    pub(crate) fn collect(&self, at: usize, sink: &mut Sink<'_>) {
        let (end, join) = (&self.ends[at], &self.joins[at]);
        self.entries[1 - at].collect(&end.name, &self.ends[1 - at].name, sink);
        let stats = join.as_ref().map(|join| join.gro.stats());
        end.collect(stats.map_or(0, |stats| stats.checksummed_bytes) + self.entries[at].checksummed(), sink);
        sink.reasons(&end.name, Group::Drops, &self.split_drops[at]);
        if let Some(join) = join {
            join.seen.collect(&end.name, Stage::Gro, sink);
        }
        if let Some(stats) = stats {
            end::collect_gro(&end.name, stats, sink);
        }
    }
}
