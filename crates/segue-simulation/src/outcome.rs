//! The results of a measurement.

/// Statistics of bursts: the gaps between them and their sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bursts {
    /// Median time between two bursts, microseconds.
    pub gap_p50_us: f64,
    /// 99th percentile of the time between two bursts, microseconds.
    pub gap_p99_us: f64,
    /// Mean number of frames in a burst.
    pub frames: f64,
}

/// The results of one case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Payload delivered to its reader, Mbit/s.
    pub mbps: f64,
    /// Share of datagrams that were lost, per cent; 0 for traffic other than UDP received.
    pub lost_percent: f64,
    /// Idle time, per cent, mean over all cores.
    pub idle_percent: f64,
    /// Use of the core that serves the adapter, per cent.
    pub service_percent: f64,
    /// Use of the core that runs the program, per cent.
    pub program_percent: f64,
    /// Bursts of frames delivered to the stack.
    pub received: Bursts,
    /// Bursts of frames sent to the chip.
    pub sent: Bursts,
    /// USB transfers per second, both directions.
    pub urbs_per_s: f64,
    /// Number of interrupts and wake-ups of threads per second.
    pub wakes_per_s: f64,
    /// Number of polls per second that exhausted the driver's budget.
    pub full_budgets_per_s: f64,
    /// Number of frames per second that were delivered by a later poll than the one that received them.
    pub overflows_per_s: f64,
    /// Datagrams lost at the switch, in the chip, in the stack's queue and at the socket.
    pub drops: [u64; 4],
}
