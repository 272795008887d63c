//! What becomes of a packet that the daemon would drop: the exits of a program for such packets.

use std::os::fd::BorrowedFd;

use segue::encap::DecapRefusal;

use crate::assembler::{Assembler, Label};
use crate::counters::Counter;

/// Bits of the number that says what an exit means: the place of the counter of dropped packets, 0 where the daemon
/// judges packets of known senders.
pub(crate) const PLACE: i32 = 0xff;
/// The bit for senders with GRE: the daemon judges packets of the others.
pub(crate) const NEEDS_GRE: i32 = 0x100;
/// The first of the bits with the counter of packets left to the daemon.
pub(crate) const LEFT_SHIFT: i32 = 16;

/// What becomes of a packet of a known sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The daemon judges it.
    Leave,
    /// The daemon would drop it for this reason.
    Drop(DecapRefusal),
    /// The same where the first tunnel of the sender has GRE, which the daemon judges packets of no tunnel by.
    DropWithGre(DecapRefusal),
}

/// An exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    left: Counter,
    verdict: Verdict,
    /// Whether the tunnel is known.
    pub(crate) is_claimed: bool,
}

impl Exit {
    /// Returns the number that says what the exit means.
    pub(crate) fn number(self) -> i32 {
        let left = (self.left as i32) << LEFT_SHIFT;
        match self.verdict {
            Verdict::Leave => left,
            Verdict::Drop(why) => left | (1 + why as i32),
            Verdict::DropWithGre(why) => left | NEEDS_GRE | (1 + why as i32),
        }
    }
}

/// The exits of a program that judges packets.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    pub(crate) all: Vec<(Exit, Label)>,
}

impl Exits {
    /// Returns the label of an exit.
    pub(crate) fn label(&mut self, a: &mut Assembler, left: Counter, verdict: Verdict, is_claimed: bool) -> Label {
        let exit = Exit { left, verdict, is_claimed };
        if let Some((_, label)) = self.all.iter().find(|(other, _)| *other == exit) {
            return *label;
        }
        let label = a.label();
        self.all.push((exit, label));
        label
    }
}

/// The maps by which packets of no tunnel are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Senders<'a> {
    /// Remotes by address; the value says whether their first tunnel has GRE.
    pub(crate) known: BorrowedFd<'a>,
    /// The counters of dropped packets.
    pub(crate) dropped: BorrowedFd<'a>,
}
