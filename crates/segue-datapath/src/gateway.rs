//! The pipeline of a gateway: a bump in the wire between two packet ports.
//!
//! Both directions do the same: receive frames, join those of a flow, hand trains whole to a port that takes them, and
//! split them for one that does not. A frame that joins with no other leaves unchanged, byte for byte, and so do the
//! frames that profile strict joins, once their train has been cut again, here or by a kernel.
//!
//! Frames are not parsed on the way to GRO ([`Received`](segue_port::Received)): GRO recognises most of them by a few
//! bytes. With GRO off they are parsed here, once.

use std::io;

use segue::gro;
use segue::time::Nanos;
use segue_port::{PagePool, Polled};

use crate::board::Sink;
use crate::endpoint::Endpoint;
pub use crate::endpoint::LINK_DOWN;
use crate::knobs::{Dial, Knobs};
use crate::napi::PollPolicy;
use crate::pipeline::{Interest, Pipeline, Round};
use crate::port_pair::{self, Crossing, GroStage, PortPair};
pub use crate::port_pair::{Fragments, PortConfig};

/// Returns the knobs of a gateway between the named ports, before it is created; `budget` as in [`Parts`].
pub fn knobs(names: [&str; 2], gro: [Option<gro::Config>; 2], budget: usize) -> Knobs {
    port_pair::knobs(names, gro, budget, |_| ())
}

/// The parts that a gateway is made of.
pub struct Parts {
    /// Both ports of the gateway.
    pub ports: [PortConfig; 2],
    /// Initial weight of both ports: most frames received from one port in one round.
    pub budget: usize,
    /// Pages that received packets are read into.
    pub pages: PagePool,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.ports.each_ref().map(|side| &side.name);
        f.debug_struct("Parts").field("ports", &names).finish_non_exhaustive()
    }
}

/// A gateway; see the [module](self).
pub struct Gateway {
    pair: PortPair,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.pair.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Gateway").field("ends", &names).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Returns a gateway between two ports.
    pub fn new(parts: Parts) -> Gateway {
        Gateway { pair: PortPair::new(parts.ports, parts.budget, parts.pages, Crossing::Other) }
    }

    /// Forwards at most `left` packets from the port `from` to the other one, and reduces `left` by as many.
    fn forward(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let PortPair { ends: [first, second], stages, ingress, split_drops: [first_drops, second_drops], rx, .. } =
            &mut self.pair;
        let (from, stage, ingress, to, drops) = match from {
            0 => (first, &mut stages[0], &mut ingress[1], second, second_drops),
            _ => (second, &mut stages[1], &mut ingress[0], first, first_drops),
        };
        if to.blocked {
            to.transmit(rx, drops)?;
            if to.blocked {
                return Ok(Polled::Idle);
            }
        }
        // Packets that a change of settings has released.
        if let Some(stage) = stage {
            to.push_released(&mut stage.gro, ingress, rx, drops);
        }
        let polled = from.poll(rx, left)?;
        let mut stage = stage.as_mut().filter(|stage| stage.on);
        match &mut stage {
            Some(stage) => stage.push_all(rx, now),
            None => {
                while let Some(packet) = rx.pop_packet() {
                    ingress.each(packet, rx, drops, |packet, rx, drops| to.push(packet, rx, drops));
                }
            }
        }
        if let Some(stage) = stage {
            stage.settle(polled, now);
            to.push_released(&mut stage.gro, ingress, rx, drops);
        }
        to.transmit(rx, drops)?;
        // A blocked port is waited for before more is read for it.
        Ok(if to.blocked { Polled::Idle } else { polled })
    }
}

impl Pipeline for Gateway {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let (mut round_robin, budget) = self.pair.begin_round();
        let before = self.pair.taken();
        let more = round_robin.round(budget, |from, left| self.forward(from, now, left))?;
        self.pair.end_round(round_robin);
        // A guest does not call while it has more. What waits for a blocked port may have the memory that it lacks.
        let more = more && (!self.pair.is_blocked() || self.pair.taken() != before);
        Ok(if more { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let [first, second] = &self.pair.ends;
        first.interests(second.blocked, wait);
        second.interests(first.blocked, wait);
    }

    fn woken(&mut self, place: usize) {
        self.pair.woken(place);
    }

    fn poll_policy(&self) -> PollPolicy {
        self.pair.poll_policy()
    }

    fn taken(&self) -> u64 {
        self.pair.taken()
    }

    fn sent(&self) -> Option<u64> {
        Some(self.pair.ends.iter().map(Endpoint::sent).sum())
    }

    fn deadline(&self) -> Option<Nanos> {
        let [first, second] = &self.pair.ends;
        let directions = [(&self.pair.stages[0], second), (&self.pair.stages[1], first)];
        // Packets held for a blocked port wait for that port anyway.
        let due = |(stage, to): (&Option<GroStage>, &Endpoint)| stage.as_ref().filter(|_| !to.blocked)?.gro.deadline();
        directions.into_iter().filter_map(due).min()
    }

    fn close(&mut self) -> bool {
        self.pair.close();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.pair.tune(dial);
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        (0..2).for_each(|at| self.pair.collect(at, sink));
    }
}
