//! What is to be sent, and in what order.

/// What a test may let fail: see `UdpPort::inject`.
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

/// Units `from..to` of the plan, as one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) key: RunKey,
    pub(super) from: usize,
    pub(super) to: usize,
    /// Bytes of each datagram but the last.
    pub(super) len: usize,
    pub(super) bytes: usize,
    pub(super) pieces: usize,
    /// The last datagram was shorter: nothing may follow.
    pub(super) closed: bool,
}

/// What is to be sent, in what order. Kept from call to call for its memory.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub(super) order: Vec<(u16, u32)>,
    /// Entry and position of each unit.
    pub(super) units: Vec<(u32, u32)>,
    pub(super) runs: Vec<Run>,
    /// Datagrams of this length or longer were too long for UDP_SEGMENT but not for a plain send; for so many more runs
    /// it is not tried.
    pub(super) oversize: Option<(usize, u32)>,
}
