//! The four computers of the patch set of November 2021, and the fit of the one free parameter of each.

use segue_lan78xx::driver::Error;

use crate::{Case, Form, Target, Traffic, run};

/// A computer with the published result to which its costs were fitted: TCP sent by the standard form.
#[derive(Clone, Copy, Debug)]
pub struct Fitted {
    /// The computer, with the fitted cost of a transfer.
    pub target: Target,
    /// Published throughput of the case, Mbit/s.
    pub mbps: f64,
    /// Published idle time, per cent over all cores.
    pub idle_percent: f64,
}

const fn fitted(name: &'static str, (cores, speed, urb): (u32, f64, f64), cell: (f64, f64)) -> Fitted {
    Fitted { target: Target { name, cores, speed, urb }, mbps: cell.0, idle_percent: cell.1 }
}

/// The simulated computers: cores, speed, fitted cost of a USB transfer, published throughput.
pub const TARGETS: [Fitted; 4] = [
    // Raspberry Pi 4B, Cortex-A72 at 1.5 GHz.
    fitted("rpi4", (4, 38.0, 37_510.0), (683.0, 80.1)),
    // Nitrogen8M, Cortex-A53 at 1.5 GHz.
    fitted("nitrogen8m", (4, 22.0, 0.0), (942.0, 97.8)),
    // Compaq Presario, Pentium D with a card for USB 3.
    fitted("compaq", (2, 33.0, 860.0), (939.0, 80.0)),
    // Dell T3620, Core i3.
    fitted("dell", (4, 100.0, 2_190.0), (942.0, 95.3)),
];

/// Largest cost that the fit tries, nanoseconds.
const MOST: f64 = 200_000.0;
/// Throughput above which the wire may be the limit, Mbit/s. It then says nothing about the host, and idle time is
/// fitted instead.
pub(super) const WIRE: f64 = 930.0;
/// Number of seeds over which a fit is averaged.
const COURSES: u64 = 3;
/// Length of each run of a fit, milliseconds.
const MILLIS: u64 = 300;

/// Returns throughput in Mbit/s and idle time in per cent of the published case as the mean of `courses` seeds of
/// `millis` milliseconds each.
///
/// # Errors
/// See [`run`].
pub fn cell(target: Target, courses: u64, millis: u64) -> Result<(f64, f64), Error> {
    let (mut mbps, mut idle) = (0.0, 0.0);
    for seed in 1..=courses {
        let outcome = run(Case { target, form: Form::Standard, traffic: Traffic::TcpTx, seed, millis })?;
        (mbps, idle) = (mbps + outcome.mbps, idle + outcome.idle_percent);
    }
    Ok((mbps / courses as f64, idle / courses as f64))
}

/// Returns the cost of a transfer, in nanoseconds rounded to tens, that reproduces the published throughput if that is
/// below the wire's, or else the published idle time. 0 if even that leaves too little idle time.
///
/// # Errors
/// See [`run`].
pub fn fit(one: &Fitted) -> Result<f64, Error> {
    let (mut low, mut high) = (0.0, MOST);
    while high - low > 5.0 {
        let urb = f64::midpoint(low, high);
        let (mbps, idle) = cell(Target { urb, ..one.target }, COURSES, MILLIS)?;
        let too_dear = if one.mbps < WIRE { mbps < one.mbps } else { idle < one.idle_percent };
        if too_dear { high = urb } else { low = urb }
    }
    Ok((f64::midpoint(low, high) / 10.0).round() * 10.0)
}
