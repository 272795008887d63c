//! A computer with an adapter, in a time of its own: what the forms of the driver are worth where processors and USB host
//! controllers are slower than here.
//!
//! The driver is [`segue_lan78xx::driver`], the chip is [`segue_lan78xx::model`] on a paced wire, joining is `segue`'s
//! GRO: they run as they are, and what they did is counted. Around them are a USB host controller with a pipe of SuperSpeed's bandwidth and
//! moderated interrupts, two processor cores, as much of a network stack as costs or queues something, a program, and a far
//! end. Every piece of work has a price ([`cost::COSTS`]), divided by the target's speed; only the price of a USB transfer
//! belongs to the target's controller and is not. Nothing reads a clock: the same case gives the same figures everywhere.
//!
//! What is left out: caches, memory bandwidth, the scheduler beyond one price for a wake-up, other work, the far end's
//! processor, slow start. A core is used by steps of known length that nothing interrupts.
#![deny(missing_docs)]

mod bus;
pub mod cost;
pub mod fit;
mod form;
mod frames;
mod host;
mod peer;
mod stack;

pub use cost::Target;
pub use form::Form;

use segue_lan78xx::driver::Error;

use frames::MSS;

/// What is sent in which direction, seen from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP received.
    TcpRx,
    /// TCP sent.
    TcpTx,
    /// UDP received.
    UdpRx,
    /// UDP sent.
    UdpTx,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Traffic; 4] = [Traffic::TcpRx, Traffic::TcpTx, Traffic::UdpRx, Traffic::UdpTx];

    /// Its name, one word.
    pub const fn name(self) -> &'static str {
        match self {
            Traffic::TcpRx => "tcp-rx",
            Traffic::TcpTx => "tcp-tx",
            Traffic::UdpRx => "udp-rx",
            Traffic::UdpTx => "udp-tx",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The computer.
    pub target: Target,
    /// The driver.
    pub form: Form,
    /// The load.
    pub traffic: Traffic,
    /// Which of the many possible courses: wake-ups take different times in each.
    pub seed: u64,
    /// How long is measured, milliseconds, after 50 to settle.
    pub millis: u64,
}

/// Gaps between bursts and their sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bursts {
    /// Median and 99th percentile of the time between two, microseconds.
    pub gap_p50_us: f64,
    /// See there.
    pub gap_p99_us: f64,
    /// Mean.
    pub frames: f64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Payload that reached its reader, Mbit/s.
    pub mbps: f64,
    /// Per cent of the datagrams sent that did not.
    pub lost_percent: f64,
    /// Mean over all cores.
    pub idle_percent: f64,
    /// Use of the core that serves the adapter, and of the program's.
    pub service_percent: f64,
    /// See there.
    pub program_percent: f64,
    /// Deliveries to the stack.
    pub received: Bursts,
    /// Transfers to the chip.
    pub sent: Bursts,
    /// Transfers a second, both ways.
    pub urbs_per_s: f64,
    /// Interrupts and woken threads a second.
    pub wakes_per_s: f64,
    /// Polls of the driver that used up their budget, a second.
    pub full_budgets_per_s: f64,
    /// Frames a second that a later poll delivered.
    pub overflows_per_s: f64,
    /// Where datagrams were lost: at the switch, in the chip, in the stack's queue, at the socket.
    pub drops: [u64; 4],
}

/// Time to settle before anything is measured, nanoseconds.
const SETTLE: u64 = 50_000_000;

/// Runs a case.
///
/// # Errors
/// Where the driver cannot set the model up.
pub fn run(case: Case) -> Result<Outcome, Error> {
    let mut host = host::Host::new(case)?;
    let start = host.now() + SETTLE;
    host.run(start);
    let before = Mark::of(&mut host);
    let span = case.millis.max(1) * 1_000_000;
    host.run(start + span);
    let after = Mark::of(&mut host);
    Ok(outcome(&case, &mut host, &before, &after, span))
}

/// All counters at one time.
struct Mark {
    bytes: u64,
    sent: u64,
    service: f64,
    program: f64,
    urbs: u64,
    wakes: u64,
    full: u64,
    overflows: u64,
    drops: [u64; 4],
    deliveries: usize,
    transfers: usize,
}

impl Mark {
    fn of(host: &mut host::Host) -> Mark {
        let numbers = host.driver().numbers();
        let bus = host.driver().usb();
        let chip = u64::from(bus.model.statistics()[segue_lan78xx::regs::stat::RX_DROPPED]);
        let (switch, urbs, transfers) = (bus.model.notes().partner_lost, bus.counts.completed, bus.sent.len());
        Mark {
            bytes: host.stack.read + host.peer.received,
            sent: host.peer.sent,
            service: host.service.busy,
            program: host.program.busy,
            urbs,
            wakes: host.seen.wakes,
            full: numbers.full_budgets,
            overflows: numbers.overflows,
            drops: [switch, chip, host.seen.backlog_drops, host.stack.socket_drops],
            deliveries: host.seen.delivered.len(),
            transfers,
        }
    }
}

fn outcome(case: &Case, host: &mut host::Host, before: &Mark, after: &Mark, span: u64) -> Outcome {
    let per_second = |count: u64| count as f64 * 1e9 / span as f64;
    let (service, program) =
        (host::share(&host.service, before.service, span), host::share(&host.program, before.program, span));
    let bytes = after.bytes - before.bytes;
    let offered = (after.sent - before.sent) * MSS as u64;
    let drops = std::array::from_fn(|at| after.drops[at] - before.drops[at]);
    let lost = drops.iter().sum::<u64>() as f64 * MSS as f64;
    let sent = bursts(&host.driver().usb().sent[before.transfers..]);
    Outcome {
        mbps: per_second(bytes * 8) / 1e6,
        lost_percent: if case.traffic == Traffic::UdpRx { 100.0 * lost / offered.max(1) as f64 } else { 0.0 },
        idle_percent: host::idle(&case.target, service + program),
        service_percent: 100.0 * service,
        program_percent: 100.0 * program,
        received: bursts(&host.seen.delivered[before.deliveries..]),
        sent,
        urbs_per_s: per_second(after.urbs - before.urbs),
        wakes_per_s: per_second(after.wakes - before.wakes),
        full_budgets_per_s: per_second(after.full - before.full),
        overflows_per_s: per_second(after.overflows - before.overflows),
        drops,
    }
}

fn bursts(seen: &[(u64, u64)]) -> Bursts {
    let mut gaps: Vec<u64> = seen.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort_unstable();
    let at = |percent: usize| gaps.get(gaps.len() * percent / 100).map_or(0.0, |gap| *gap as f64 / 1000.0);
    let frames: u64 = seen.iter().map(|(_, frames)| frames).sum();
    Bursts { gap_p50_us: at(50), gap_p99_us: at(99), frames: frames as f64 / seen.len().max(1) as f64 }
}

#[cfg(test)]
mod tests;
