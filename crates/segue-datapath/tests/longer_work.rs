//! Tests of ports whose interfaces have longer work, which they do in parts: it is neither taken for a loop that spins,
//! nor does it wait until the loop sleeps, nor take all of the loop's time.

use std::cell::Cell;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use segue::gso::Limits;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::bridge::{self, Bridge, BridgePort};
use segue_datapath::gateway::{self, Gateway, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::worker;
use segue_port::{Counters, OffloadState, PagePool, Polled, Port, RxBatch, Sent, TxBatch};

/// A port without packets, with a number of parts of work. Its interface's descriptor is readable as long as some are
/// left.
struct Working {
    packets: (PipeReader, PipeWriter),
    link: (PipeReader, Option<PipeWriter>),
    /// Where to write when all of it is done.
    stop: Option<PipeWriter>,
    left: Rc<Cell<u32>>,
    counters: Counters,
}

impl Port for Working {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.packets.0.as_fd()
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.0.as_fd())
    }

    fn receive(&mut self, _: &mut RxBatch, _: usize) -> io::Result<Polled> {
        Ok(Polled::Idle)
    }

    fn transmit(&mut self, _: &mut TxBatch) -> io::Result<Sent> {
        Ok(Sent::All)
    }

    fn listen(&mut self) -> io::Result<()> {
        self.left.set(self.left.get().saturating_sub(1));
        if !self.is_busy() {
            self.stop.take().map_or(Ok(()), |mut stop| stop.write_all(b"x"))?;
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.left.get() > 0
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Returns two ports, the first of which has work of so many parts; what is left of it; and the end of a loop that is
/// to stop when all of it is done.
fn ports(parts: u32) -> ([PortConfig; 2], Rc<Cell<u32>>, PipeReader) {
    let left = Rc::new(Cell::new(parts));
    let (end, stop) = io::pipe().unwrap();
    let port = |name: &str, left: &Rc<Cell<u32>>, stop: Option<PipeWriter>| {
        let (link, writer) = io::pipe().unwrap();
        // Without a writer it is readable.
        let link = (link, stop.is_none().then_some(writer));
        let port =
            Working { packets: io::pipe().unwrap(), link, stop, left: left.clone(), counters: Counters::default() };
        PortConfig { name: name.to_owned(), port: Box::new(port), gro: None, fragments: None }
    };
    let ports = [port("working", &left, Some(stop)), port("other", &Rc::default(), None)];
    (ports, left, end)
}

fn gateway(ports: [PortConfig; 2]) -> Gateway {
    Gateway::new(gateway::Parts { ports, budget: 64, pages: PagePool::new(64) })
}

fn bridge(ports: [PortConfig; 2]) -> Bridge {
    let ports = ports.into_iter().map(|config| BridgePort { config, own: None }).collect();
    Bridge::new(bridge::Parts { ports, budget: 64, pages: PagePool::new(64) }).unwrap()
}

#[test]
fn work_in_parts_is_not_taken_for_a_loop_that_spins() {
    const PARTS: u32 = 400;
    for is_bridge in [false, true] {
        let (ports, left, end) = ports(PARTS);
        let mut pipeline: Box<dyn Pipeline> =
            if is_bridge { Box::new(bridge(ports)) } else { Box::new(gateway(ports)) };
        let board = worker::board(&*pipeline);
        let knobs = Knobs::of(|dial| pipeline.tune(dial));
        worker::run(&mut *pipeline, end.as_fd(), &board, &knobs, &AtomicU64::new(0)).unwrap();
        assert_eq!(left.get(), 0);
        let pauses = board.read().filter(|(name, _)| name.key == "pauses").map(|(_, value)| value).sum::<u64>();
        let groups = board.read().filter(|(name, _)| name.key == "pauses").map(|(name, _)| name.group);
        assert_eq!(pauses, 0, "bridge: {is_bridge}");
        assert_eq!(groups.filter(|group| *group == Group::Port).count(), if is_bridge { 2 } else { 0 });
    }
}

#[test]
fn work_in_parts_goes_on_in_a_loop_that_never_sleeps_and_leaves_time_to_other_ports() {
    const ROUNDS: u32 = 40;
    let run = |pipeline: &mut dyn Pipeline, left: &Cell<u32>| {
        let before = left.get();
        for n in 0..ROUNDS {
            pipeline.round(Nanos(u64::from(n) * 1_000_000)).unwrap();
        }
        before - left.get()
    };
    let (of_two, left, _end) = ports(1000);
    assert_eq!(run(&mut gateway(of_two), &left), ROUNDS, "its other port has no other one");
    let (of_many, left, _end) = ports(1000);
    // The first two rounds look in any case.
    assert_eq!(run(&mut bridge(of_many), &left), 2 + (ROUNDS - 2) / 3, "every three milliseconds");
}
