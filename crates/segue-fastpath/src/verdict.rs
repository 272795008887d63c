//! Exits of a program for packets that the daemon would drop, and their outcome.

use std::os::fd::BorrowedFd;

use segue::encap::DecapRefusal;

use crate::assembler::{Assembler, Label};
use crate::counters::Counter;

/// Bits of an exit's number ([`Exit::number`]): the index of the counter of dropped packets, 0 where the daemon
/// judges packets of known senders.
pub(crate) const PLACE: i32 = 0xff;
/// Bit of an exit's number for senders with GRE: the daemon judges packets of the others.
pub(crate) const NEEDS_GRE: i32 = 0x100;
/// Lowest bit, in an exit's number, of the counter of packets left to the daemon.
pub(crate) const LEFT_SHIFT: i32 = 16;

/// Outcome for a packet that belongs to no tunnel but whose sender is the remote of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The packet is left to the daemon, which judges it.
    Leave,
    /// The program drops the packet for the given reason, as the daemon would.
    Drop(DecapRefusal),
    /// The program drops the packet for the given reason if the sender's first tunnel has GRE, whose rules decide in
    /// the daemon too.
    DropWithGre(DecapRefusal),
}

/// An exit of a program: the counter of packets left to the daemon, and the outcome for known senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    left: Counter,
    verdict: Verdict,
    /// Whether the tunnel is known.
    pub(crate) is_claimed: bool,
}

impl Exit {
    /// Returns the exit's number, which encodes its counter and its outcome.
    pub(crate) fn number(self) -> i32 {
        let left = (self.left as i32) << LEFT_SHIFT;
        match self.verdict {
            Verdict::Leave => left,
            Verdict::Drop(why) => left | (1 + why as i32),
            Verdict::DropWithGre(why) => left | NEEDS_GRE | (1 + why as i32),
        }
    }
}

/// Exits of a program that judges packets itself.
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

/// Maps by which packets of no tunnel are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Senders<'a> {
    /// Remotes by address; the value says whether their first tunnel has GRE.
    pub(crate) remotes: BorrowedFd<'a>,
    /// The counters of dropped packets.
    pub(crate) dropped: BorrowedFd<'a>,
}
