//! The knobs that give the daemon the packets of the in-kernel path.

use segue_control::knobs::{Knob, Setting};

/// The last part of the name of the knob that switches the in-kernel path.
pub const KNOB: &str = "enable_fastpath";
/// The last part of the name of the knob that gives the daemon queues by flow.
const QUEUES_KNOB: &str = "enable_fq";

/// The knobs of an instance by which the daemon gets packets that the in-kernel path could carry.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// Whether the in-kernel path is permitted.
    pub(super) is_allowed: bool,
    /// Whether the daemon has queues by flow.
    pub(super) has_queues: bool,
}

impl Switches {
    /// Returns the switches among the knobs of an instance.
    pub fn of(knobs: &[Knob]) -> Switches {
        let is_on = |end: &str| knobs.iter().any(|knob| knob.name.ends_with(end) && knob.value != Setting::Number(0));
        Switches { is_allowed: is_on(KNOB), has_queues: is_on(QUEUES_KNOB) }
    }
}
