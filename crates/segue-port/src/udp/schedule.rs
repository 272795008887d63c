//! The order in which queued units are sent, and the runs that they form for UDP_SEGMENT.

/// A send that a test can make fail: see `UdpPort::inject`.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) segments: usize,
}

/// Outer fields that all units of a run share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunKey {
    pub(super) slot: usize,
    pub(super) to: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) df: bool,
}

/// Units `from..to` of the schedule, sent as one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) key: RunKey,
    pub(super) from: usize,
    pub(super) to: usize,
    /// Length in bytes of each datagram except the last.
    pub(super) len: usize,
    pub(super) bytes: usize,
    pub(super) pieces: usize,
    /// Whether no further unit may join, because the last datagram is shorter.
    pub(super) closed: bool,
}

/// Order of the units to be sent. Kept from call to call for its memory.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub(super) order: Vec<(u16, u32)>,
    /// Entry and position of each unit.
    pub(super) units: Vec<(u32, u32)>,
    pub(super) runs: Vec<Run>,
    /// Smallest datagram length at which UDP_SEGMENT (but not a plain send) failed for its size, and the number of runs
    /// for which UDP_SEGMENT is not retried.
    pub(super) oversize: Option<(usize, u32)>,
    /// Number of sends that may still be repeated for the errors of earlier datagrams, beside one repeat of each run.
    pub(super) patience: u32,
}
