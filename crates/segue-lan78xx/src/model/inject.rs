//! Faults are injected, and happen.

use super::{Fault, Model};

impl Model {
    /// Makes something go wrong. Faults of one kind happen in the order given.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// Makes bits of a register read as set and others as clear, whatever is written; bits that wait for themselves never
    /// come then.
    pub fn stick(&mut self, register: u16, set: u32, clear: u32) {
        self.stuck.retain(|(at, _, _)| *at != register);
        if set | clear != 0 {
            self.stuck.push((register, set, clear));
        }
    }

    /// Faults that have not happened yet.
    pub fn faults_left(&self) -> usize {
        self.faults.len()
    }

    pub(super) fn take_fault(&mut self, is_meant: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let place = self.faults.iter().position(is_meant)?;
        self.faults.remove(place)
    }

    /// Counts a transfer towards an unplugging.
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
