//! Counters that other threads may read, with one writer, relaxed atomics and a fixed list of names.

use segue::reason::{Counts, Reason};

use crate::sync::{AtomicU64, Ordering};

/// Group of a counter within its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Packets received from the port.
    Receive,
    /// Packets sent through the port.
    Transmit,
    /// Numbers of the port itself.
    Port,
    /// Packets that were dropped, by reason.
    Drops,
    /// Trains that ended, by reason.
    Flushes,
    /// Packets that stayed alone, by reason.
    Alone,
    /// Packets that did not fit the train of their flow, by the field that differed.
    Mismatches,
    /// Units that were sent in smaller form because the kernel refused them, by reason.
    Fallbacks,
    /// Traffic of one stage of the pipeline.
    Stage(Stage),
    /// Trains that were segmented for the port.
    Gso,
    /// Counters of remote checksum offload.
    Remcsum,
    /// The polls of one port.
    Napi,
    /// Numbers of the worker: polls, full budgets, wake-ups.
    Worker,
}

/// A stage of a pipeline. All but the last are counted at the port that received the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Decapsulation; its output is counted.
    Decap,
    /// GRO; its input is counted.
    Gro,
    /// Ingress of the path to the egress port; its input is counted, before trains are segmented where GSO is off.
    Ingress,
    /// Address translation of packets for the outside address; its input is counted.
    NatIn,
    /// Route lookup; its input is counted.
    Route,
    /// Address translation of packets for the outside; its input is counted.
    NatOut,
    /// Encapsulation; its input is counted.
    Encap,
    /// GSO for the egress port, under which it is counted; its input is counted.
    Gso,
}

/// The name of one counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Name of the port, empty for the worker.
    pub port: String,
    /// Group of the counter.
    pub group: Group,
    /// Key of the counter: a field or a reason.
    pub key: &'static str,
}

enum To<'a> {
    Names(&'a mut Vec<Name>),
    Board { values: &'a [AtomicU64], next: usize },
}

/// The destination to which [`Pipeline::collect`](crate::pipeline::Pipeline::collect) writes its counters.
pub struct Sink<'a> {
    to: To<'a>,
}

impl std::fmt::Debug for Sink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sink")
    }
}

impl Sink<'_> {
    /// Writes a counter with its name.
    pub fn put(&mut self, port: &str, group: Group, key: &'static str, value: u64) {
        match &mut self.to {
            To::Names(names) => names.push(Name { port: port.to_owned(), group, key }),
            To::Board { values, next } => {
                if let Some(place) = values.get(*next) {
                    place.store(value, Ordering::Relaxed);
                }
                *next += 1;
            }
        }
    }

    /// Skips `count` counters, which keep their values. Returns `false` while names are listed, of which none may be
    /// missing.
    pub fn skip(&mut self, count: usize) -> bool {
        match &mut self.to {
            To::Names(_) => false,
            To::Board { next, .. } => {
                *next += count;
                true
            }
        }
    }

    /// Returns the number of counters that were written or skipped so far.
    pub fn place(&self) -> usize {
        match &self.to {
            To::Names(names) => names.len(),
            To::Board { next, .. } => *next,
        }
    }

    /// Writes all counters of one enum of reasons.
    pub fn reasons<R: Reason>(&mut self, port: &str, group: Group, counts: &Counts<R>) {
        match &mut self.to {
            To::Names(_) => counts.iter().for_each(|(reason, count)| self.put(port, group, reason.name(), count)),
            // Most of the counters are reasons, and all are published whenever the worker goes to sleep.
            To::Board { values, next } => {
                let counts = counts.values();
                let places = values.get(*next..).unwrap_or(&[]);
                places.iter().zip(counts).for_each(|(place, count)| place.store(*count, Ordering::Relaxed));
                *next += counts.len();
            }
        }
    }
}

/// The counters of one worker. Shared by `Arc`; written by that worker only.
#[derive(Debug)]
pub struct Board {
    names: Vec<Name>,
    values: Box<[AtomicU64]>,
}

impl Board {
    /// Returns a board for the counters that `collect` writes.
    pub fn new(collect: impl FnOnce(&mut Sink<'_>)) -> Board {
        let mut names = Vec::new();
        collect(&mut Sink { to: To::Names(&mut names) });
        let values = names.iter().map(|_| AtomicU64::new(0)).collect();
        Board { names, values }
    }

    /// Publishes the current values of all counters.
    pub fn publish(&self, collect: impl FnOnce(&mut Sink<'_>)) {
        collect(&mut Sink { to: To::Board { values: &self.values, next: 0 } });
    }

    /// Returns a board for another worker with the same pipeline, all of whose counters are 0.
    #[must_use]
    pub fn like(&self) -> Board {
        Board { names: self.names.clone(), values: self.names.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns every counter's name; the position in this order is that of [`value`](Self::value).
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Returns the value of the counter at this position, 0 where there is none.
    pub fn value(&self, position: usize) -> u64 {
        self.values.get(position).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Returns every counter with its value. Values are not read at one instant: sums may be off by a round.
    pub fn read(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.names.iter().zip(self.values.iter().map(|v| v.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_published_under_its_name_between_other_counters() {
        use segue::gso::Refusal;
        let mut counts = Counts::<Refusal>::default();
        let collect = |counts: &Counts<Refusal>, sink: &mut Sink<'_>| {
            sink.put("sg0", Group::Receive, "packets", 1);
            sink.reasons("sg0", Group::Drops, counts);
            sink.put("udp", Group::Receive, "packets", 2);
        };
        let board = Board::new(|sink| collect(&counts, sink));
        for (number, reason) in Refusal::ALL.iter().enumerate() {
            counts.add_many(*reason, 10 + number as u64);
        }
        board.publish(|sink| collect(&counts, sink));
        let expected = counts.iter().map(|(reason, count)| (reason.name(), count));
        let expected: Vec<_> = [("packets", 1)].into_iter().chain(expected).chain([("packets", 2)]).collect();
        let seen: Vec<_> = board.read().map(|(name, value)| (name.key, value)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn published_counters_are_read_by_name() {
        let mut values = [1, 2];
        let collect = |values: [u64; 2]| {
            move |sink: &mut Sink<'_>| {
                sink.put("sg0", Group::Receive, "packets", values[0]);
                sink.put("udp", Group::Drops, "too_big", values[1]);
            }
        };
        let board = Board::new(collect(values));
        values = [7, 9];
        board.publish(collect(values));
        let seen: Vec<_> = board.read().map(|(n, v)| (n.port.as_str(), n.group, n.key, v)).collect();
        assert_eq!(seen, [("sg0", Group::Receive, "packets", 7), ("udp", Group::Drops, "too_big", 9)]);
    }
}
