//! What a measurement gives.

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
