//! A case to measure: a computer, a form of the driver and a traffic pattern.

use crate::cost::Target;
use crate::form::Form;

/// The protocol and the direction of the traffic, as seen from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The target receives TCP.
    TcpRx,
    /// The target sends TCP.
    TcpTx,
    /// The target receives UDP.
    UdpRx,
    /// The target sends UDP.
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

/// Parameters of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Simulated computer of the case.
    pub target: Target,
    /// The form of the driver.
    pub form: Form,
    /// Traffic pattern of the case.
    pub traffic: Traffic,
    /// Seed of the random durations of wake-ups; each seed gives another sequence of events.
    pub seed: u64,
    /// Measured time in milliseconds, after 50 ms to settle.
    pub millis: u64,
}
