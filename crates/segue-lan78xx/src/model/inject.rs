//! Injection of faults into the model, and their effect.

use super::{Fault, Model};

impl Model {
    /// Injects a fault into the model. Faults of one kind happen in the order in which they were injected.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// Makes some bits of a register always read as set and others as clear, whatever is written. A driver that waits
    /// for such a bit to change never ends its wait.
    pub fn stick(&mut self, register: u16, set: u32, clear: u32) {
        self.stuck.retain(|(at, _, _)| *at != register);
        if set | clear != 0 {
            self.stuck.push((register, set, clear));
        }
    }

    pub(super) fn take_fault(&mut self, is_meant: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let place = self.faults.iter().position(is_meant)?;
        self.faults.remove(place)
    }

    /// Counts a transfer towards [`Fault::UnplugAfter`].
    pub(super) fn count_down(&mut self) {
        for fault in &mut self.faults {
            if let Fault::UnplugAfter(left) = fault {
                if *left == 0 {
                    self.faults.retain(|fault| !matches!(fault, Fault::UnplugAfter(_)));
                    return self.unplug();
                }
                *left -= 1;
                return;
            }
        }
    }
}
