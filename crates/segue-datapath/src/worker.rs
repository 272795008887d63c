//! The poll loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::board::{Board, Group, Sink};
use crate::knobs::Knobs;
use crate::pipeline::{Pipeline, Round};
use crate::sys::{self, PollSet};

/// What the loop itself counts.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    rounds: u64,
    full: u64,
    sleeps: u64,
}

impl Polls {
    fn collect(&self, sink: &mut Sink<'_>) {
        sink.put("", Group::Worker, "polls", self.rounds);
        sink.put("", Group::Worker, "full_budgets", self.full);
        sink.put("", Group::Worker, "sleeps", self.sleeps);
    }
}

/// The board that [`run`] publishes to: the pipeline's counters and the loop's own.
pub fn board(pipeline: &dyn Pipeline) -> Arc<Board> {
    Arc::new(Board::new(|sink| {
        pipeline.collect(sink);
        Polls::default().collect(sink);
    }))
}

/// Runs `pipeline` until `stop` becomes readable. Counters are published to `board` after every round, before the loop
/// sleeps, so that what an idle worker shows is exact. What `knobs` were set to is in force from the next round on.
///
/// # Errors
/// Where waiting fails, or a port has become useless (its device is gone); what single packets did wrong is counted.
pub fn run(pipeline: &mut dyn Pipeline, stop: BorrowedFd<'_>, board: &Board, knobs: &Knobs) -> io::Result<()> {
    let mut polls = Polls::default();
    let mut set = PollSet::default();
    let mut seen = 0;
    // A loaded worker must still hear the stop signal: look at it now and then without sleeping.
    const LOOK_EVERY: u64 = 64;
    loop {
        knobs.follow(&mut seen, pipeline);
        let round = pipeline.round(sys::now())?;
        polls.rounds += 1;
        let look = polls.rounds % LOOK_EVERY == 0;
        if round == Round::More {
            polls.full += 1;
            if !look {
                continue;
            }
        } else {
            polls.sleeps += 1;
        }
        board.publish(|sink| {
            pipeline.collect(sink);
            polls.collect(sink);
        });
        let timeout = match (round, pipeline.deadline()) {
            (Round::More, _) => Some(Duration::ZERO),
            (Round::Idle, None) => None,
            (Round::Idle, Some(deadline)) => Some(Duration::from_nanos(deadline.0.saturating_sub(sys::now().0))),
        };
        set.clear();
        set.add_read(stop);
        pipeline.each_interest(&mut |interest| set.add(&interest));
        if set.wait(timeout)? {
            return Ok(());
        }
    }
}
