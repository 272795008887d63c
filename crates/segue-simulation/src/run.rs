//! Runs a case, and computes the differences of the counters.

use segue_lan78xx::driver::Error;

use crate::case::{Case, Traffic};
use crate::frames::MSS;
use crate::host::{self, Host};
use crate::outcome::{Bursts, Outcome};

/// Time to settle before the measurement begins, nanoseconds.
const SETTLE: u64 = 50_000_000;

/// Runs a case and returns its results.
///
/// # Errors
/// The driver's error if it cannot set up the model.
pub fn run(case: Case) -> Result<Outcome, Error> {
    let mut host = Host::new(case)?;
    let start = host.now() + SETTLE;
    host.run(start);
    let before = Snapshot::of(&mut host);
    let span = case.millis.max(1) * 1_000_000;
    host.run(start + span);
    let after = Snapshot::of(&mut host);
    Ok(outcome(&case, &mut host, &before, &after, span))
}

/// A snapshot of all counters.
struct Snapshot {
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

impl Snapshot {
    fn of(host: &mut Host) -> Snapshot {
        let numbers = host.driver().numbers();
        let bus = host.driver().usb();
        let chip = u64::from(bus.model.statistics()[segue_lan78xx::regs::stat::RX_DROPPED]);
        let (switch, urbs, transfers) = (bus.model.notes().partner_lost, bus.counts.completed, bus.sent.len());
        Snapshot {
            bytes: host.stack.read + host.peer.received,
            sent: host.peer.sent,
            service: host.service.busy,
            program: host.program.busy,
            urbs,
            wakes: host.traffic_record.wakes,
            full: numbers.full_budgets,
            overflows: numbers.overflows,
            drops: [switch, chip, host.traffic_record.backlog_drops, host.stack.socket_drops],
            deliveries: host.traffic_record.delivered.len(),
            transfers,
        }
    }
}

fn outcome(case: &Case, host: &mut Host, before: &Snapshot, after: &Snapshot, span: u64) -> Outcome {
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
        received: bursts(&host.traffic_record.delivered[before.deliveries..]),
        sent,
        urbs_per_s: per_second(after.urbs - before.urbs),
        wakes_per_s: per_second(after.wakes - before.wakes),
        full_budgets_per_s: per_second(after.full - before.full),
        overflows_per_s: per_second(after.overflows - before.overflows),
        drops,
    }
}

fn bursts(events: &[(u64, u64)]) -> Bursts {
    let mut gaps: Vec<u64> = events.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort_unstable();
    let at = |percent: usize| gaps.get(gaps.len() * percent / 100).map_or(0.0, |gap| *gap as f64 / 1000.0);
    let frames: u64 = events.iter().map(|(_, frames)| frames).sum();
    Bursts { gap_p50_us: at(50), gap_p99_us: at(99), frames: frames as f64 / events.len().max(1) as f64 }
}
