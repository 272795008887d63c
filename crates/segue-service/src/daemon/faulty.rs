//! A pipeline with faults injected by a test.

use std::io;

use segue::time::Nanos;
use segue_datapath::board::Sink;
use segue_datapath::knobs::Dial;
use segue_datapath::napi::PollPolicy;
use segue_datapath::pipeline::{Interest, Pipeline, Round};

use crate::fault::Vitals;
use crate::heartbeat::Thread;

/// A pipeline with a check for injected faults before each round.
pub(super) struct Faulty {
    inner: Box<dyn Pipeline>,
    vitals: Vitals,
    thread: Thread,
}

impl Faulty {
    /// Wraps the pipeline of a thread where the instance accepts requests for faults; any other pipeline is returned
    /// unchanged.
    pub(super) fn wrap(inner: Box<dyn Pipeline>, vitals: &Vitals, thread: Thread) -> Box<dyn Pipeline> {
        if vitals.takes_requests() { Box::new(Faulty { inner, vitals: vitals.clone(), thread }) } else { inner }
    }
}

impl Pipeline for Faulty {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        if self.vitals.grant(self.thread) {
            return Err(io::ErrorKind::Other.into());
        }
        self.inner.round(now)
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        self.inner.each_interest(wait);
    }

    fn woken(&mut self, place: usize) {
        self.inner.woken(place);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }

    fn poll_policy(&self) -> PollPolicy {
        self.inner.poll_policy()
    }

    fn taken(&self) -> u64 {
        self.inner.taken()
    }

    fn sent(&self) -> Option<u64> {
        self.inner.sent()
    }

    fn close(&mut self) -> bool {
        self.inner.close()
    }

    fn sequences(&self) -> Vec<(&str, u32)> {
        self.inner.sequences()
    }

    fn go_on(&mut self, name: &str, next: u32) {
        self.inner.go_on(name, next);
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.inner.tune(dial);
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        self.inner.collect(sink);
    }
}
