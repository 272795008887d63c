//! A case to measure: a computer, a form of the driver and a traffic pattern.

use crate::cost::Target;
use crate::form::Form;

/// The protocol and the direction of the traffic, as seen from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP received by the target.
    TcpRx,
    /// TCP sent by the target.
    TcpTx,
    /// UDP received by the target.
    UdpRx,
    /// UDP sent by the target.
    UdpTx,
}

impl Traffic {
    /// All traffic patterns.
    pub const ALL: [Traffic; 4] = [Traffic::TcpRx, Traffic::TcpTx, Traffic::UdpRx, Traffic::UdpTx];

    /// Returns the pattern's name, one word.
    pub const fn name(self) -> &'static str {
        match self {
            Traffic::TcpRx => "tcp-rx",
            Traffic::TcpTx => "tcp-tx",
            Traffic::UdpRx => "udp-rx",
            Traffic::UdpTx => "udp-tx",
        }
    }
}

/// The parameters of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The simulated computer.
    pub target: Target,
    /// The form of the driver.
    pub form: Form,
    /// The traffic pattern.
    pub traffic: Traffic,
    /// Seed of the random durations of wake-ups; each seed gives another sequence of events.
    pub seed: u64,
    /// Measured time in milliseconds, after 50 ms to settle.
    pub millis: u64,
}
