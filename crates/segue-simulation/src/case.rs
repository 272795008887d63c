//! What is measured: a computer, a form of the driver, a load.

use crate::cost::Target;
use crate::form::Form;

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
