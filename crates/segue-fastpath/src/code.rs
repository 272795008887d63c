//! Code that both programs share: switch, counters, checksum, exits.

use std::os::fd::BorrowedFd;

use segue::wire::ethertype;

use crate::assembler::{Assembler, Fault, Helper, If, Instruction, Label, Op, Reg, Size};
use crate::counters::Counter;
use crate::layout::{packet, settings, tunnel};
use crate::verdict::{Exits, Senders, Verdict};

/// Maps that a program reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps<'a> {
    pub(crate) settings: BorrowedFd<'a>,
    pub(crate) counters: BorrowedFd<'a>,
    /// Flows that are left to the daemon, with the time of their last packet.
    pub(crate) flows: BorrowedFd<'a>,
    /// Whether there are any.
    pub(crate) marks: BorrowedFd<'a>,
    pub(crate) tunnels: Tunnels<'a>,
}

/// Maps in which a program finds the tunnel of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tunnels<'a> {
    /// Maps of tunnels with one remote each.
    Single {
        /// Tunnels by interface.
        by_interface: BorrowedFd<'a>,
        /// Tunnels by received packets.
        by_packet: BorrowedFd<'a>,
        /// Link addresses of the tunnels' interfaces, by the index of their counters.
        stations: BorrowedFd<'a>,
        /// Maps by which packets of no tunnel are judged.
        senders: Senders<'a>,
    },
    /// Maps of the peers of one tunnel, by inner addresses.
    Table(TableMaps<'a>),
}

/// The maps of the peers with one IP version inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyMaps<'a> {
    /// Peers by whole addresses.
    pub(crate) hosts: BorrowedFd<'a>,
    /// Peers by shorter prefixes: address, and length of the prefix.
    pub(crate) prefixes: BorrowedFd<'a>,
    /// The lengths of prefixes that occur.
    pub(crate) lengths: BorrowedFd<'a>,
}

/// The maps of a peer table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableMaps<'a> {
    pub(crate) v4: FamilyMaps<'a>,
    pub(crate) v6: FamilyMaps<'a>,
    /// Counters of the peers, by index.
    pub(crate) counters: BorrowedFd<'a>,
}

/// Index of a tunnel's counters, for exits that count there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// The index is found before any exit.
    LookedUp,
    /// The index is at the given offset of the tunnel's entry.
    At(i16),
    /// The index is a constant.
    Constant(i32),
}

/// Licence of the programs, for the kernel: some helpers are for GPL-compatible programs only.
pub(crate) const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// The program's result that passes a packet on to further programs and to the kernel (`TCX_NEXT`, `TC_ACT_UNSPEC`).
pub(crate) const NEXT: i32 = -1;
/// The result for a packet that is dropped (`TCX_DROP`, `TC_ACT_SHOT`).
pub(crate) const DROP: i32 = 2;

/// Returns `ETH_P_IP` or `ETH_P_IPV6` as `skb->protocol` has it.
pub(crate) fn protocol(is_v4: bool) -> i32 {
    i32::from(if is_v4 { ethertype::IPV4 } else { ethertype::IPV6 }.to_be())
}

/// Register of the program's context.
pub(crate) const CONTEXT: Reg = Reg::R6;
/// Register of the tunnel's map entry.
pub(crate) const TUNNEL: Reg = Reg::R7;
/// Register of the tunnel's counters.
pub(crate) const COUNTERS: Reg = Reg::R8;

/// Stack offset of a 32-bit key.
const KEY: i16 = -4;
/// Stack offset of the number of wire-sized packets in a unit.
const SEGMENTS: i16 = -16;
/// Stack offset of a number saved across a call. Both programs have their own places from there on.
const NUMBER: i16 = -504;

/// A program under construction, with its exits.
pub(crate) struct Code {
    pub(crate) a: Assembler,
    /// The exit that leaves the packet to the daemon without counting it.
    pub(crate) out: Label,
    /// The exit that drops the packet for lack of memory and counts it, where the program can.
    drop: Option<Label>,
    /// Exits that count at the tunnel, by counter.
    left: Vec<(Counter, Label)>,
    /// The index of the counters, for exits.
    index: Index,
    /// Exits that count at the outside port, by counter.
    unclaimed: Vec<(Counter, Label)>,
    /// Whether the program drops packets that the daemon would drop.
    pub(crate) judges: bool,
    /// Exits for packets that the daemon would drop.
    pub(crate) judged: Exits,
}

impl Code {
    /// Begins a program: the context is saved, and packets are left to the daemon where the in-kernel path is switched
    /// off.
    pub(crate) fn begin(maps: &Maps<'_>, index: Index) -> Code {
        let mut a = Assembler::default();
        let out = a.label();
        a.copy(CONTEXT, Reg::R1);
        a.map_value(Reg::R1, maps.settings, i32::from(settings::ENABLED));
        a.load(Size::W, Reg::R1, Reg::R1, 0);
        a.jump_if_value(If::Eq, Reg::R1, 0, out);
        let (left, unclaimed, judged) = (Vec::new(), Vec::new(), Exits::default());
        Code { a, out, drop: None, left, index, unclaimed, judges: false, judged }
    }

    /// Returns the exit that drops the packet for lack of memory, and counts it at the tunnel.
    pub(crate) fn drop(&mut self) -> Label {
        *self.drop.get_or_insert_with(|| self.a.label())
    }

    /// Returns the exit that leaves the packet to the daemon and counts it at the tunnel.
    pub(crate) fn leave(&mut self, why: Counter) -> Label {
        exit(&mut self.a, &mut self.left, why)
    }

    /// Returns the exit that leaves the packet to the daemon and counts it at the outside port.
    pub(crate) fn leave_unclaimed(&mut self, why: Counter) -> Label {
        exit(&mut self.a, &mut self.unclaimed, why)
    }

    /// Returns the exit that drops the packet as the daemon would, or leaves it to the daemon and counts it at the
    /// outside port.
    pub(crate) fn judge(&mut self, left: Counter, verdict: Verdict) -> Label {
        if !self.judges {
            return self.leave_unclaimed(left);
        }
        self.judged.label(&mut self.a, left, verdict, false)
    }

    /// Returns the exit that drops the packet as the daemon would, or leaves it to the daemon and counts it at the
    /// tunnel.
    pub(crate) fn judge_claimed(&mut self, left: Counter, verdict: Verdict) -> Label {
        if !self.judges {
            return self.leave(left);
        }
        self.judged.label(&mut self.a, left, verdict, true)
    }

    /// Sets `to` to the map entry for the 32-bit key in R1; jumps to `missing` if there is none.
    pub(crate) fn look_up(&mut self, map: BorrowedFd<'_>, to: Reg, missing: Label) {
        self.a.store(Size::W, Reg::R10, KEY, Reg::R1);
        self.a.map(Reg::R1, map);
        self.a.frame(Reg::R2, KEY);
        self.a.call(Helper::MapLookupElem);
        self.a.jump_if_value(If::Eq, Reg::R0, 0, missing);
        self.a.copy(to, Reg::R0);
    }

    /// Loads `len` bytes of the packet from the offset in R2 to the stack offset `place`; jumps to `short` if there are
    /// fewer.
    pub(crate) fn load_bytes(&mut self, place: i16, len: i32, short: Label) {
        self.a.copy(Reg::R1, CONTEXT);
        self.a.frame(Reg::R3, place);
        self.a.set(Reg::R4, len);
        self.a.call(Helper::SkbLoadBytes);
        self.a.jump_if_value(If::Ne, Reg::R0, 0, short);
    }

    /// Adds one to a counter of the tunnel.
    fn count(&mut self, counter: Counter) {
        self.a.set(Reg::R1, 1);
        self.add(COUNTERS, counter as i16 * 8);
    }

    /// Adds R1 to the 64-bit counter at the given offset of a value.
    fn add(&mut self, value: Reg, at: i16) {
        self.a.load(Size::D, Reg::R2, value, at);
        self.a.op(Op::Add, Reg::R2, Reg::R1);
        self.a.store(Size::D, value, at, Reg::R2);
    }

    /// Records the number of wire-sized packets in the unit, which helpers that change its length lose.
    pub(crate) fn note_segments(&mut self) {
        let a = &mut self.a;
        let (single, known) = (a.label(), a.label());
        a.load(Size::W, Reg::R2, CONTEXT, packet::GSO_SIZE);
        a.jump_if_value(If::Eq, Reg::R2, 0, single);
        a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SEGS);
        a.jump_if_value(If::Ne, Reg::R1, 0, known);
        // A train from an untrusted source, such as a guest, has no count.
        a.load(Size::W, Reg::R1, CONTEXT, packet::LEN);
        a.op(Op::Div, Reg::R1, Reg::R2);
        a.jump_if_value(If::Ne, Reg::R1, 0, known);
        a.place(single);
        a.set(Reg::R1, 1);
        a.place(known);
        a.store(Size::D, Reg::R10, SEGMENTS, Reg::R1);
    }

    /// Counts a unit that was moved: `bytes` is the register with its length; units, bytes, trains and packets of wire
    /// size are at this offset of a value.
    pub(crate) fn count_unit(&mut self, bytes: Reg, value: Reg, at: i16) {
        self.a.copy(Reg::R1, bytes);
        self.add(value, at + 8);
        self.a.set(Reg::R1, 1);
        self.add(value, at);
        self.a.load(Size::D, Reg::R1, Reg::R10, SEGMENTS);
        self.add(value, at + 24);
        let single = self.a.label();
        self.a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
        self.a.jump_if_value(If::Eq, Reg::R1, 0, single);
        self.a.set(Reg::R1, 1);
        self.add(value, at + 16);
        self.a.place(single);
    }

    /// Counts a unit that was sent to or received from a peer of a table: R1 is its number of packets, `bytes` the
    /// register with its length, `at` the offset of the direction.
    pub(crate) fn count_peer(&mut self, table: &TableMaps<'_>, bytes: Reg, at: i16) {
        let missing = self.a.label();
        self.a.store(Size::D, Reg::R10, NUMBER, Reg::R1);
        self.a.load(Size::W, Reg::R1, TUNNEL, tunnel::SLOT);
        self.a.store(Size::W, Reg::R10, KEY, Reg::R1);
        self.a.map(Reg::R1, table.counters);
        self.a.frame(Reg::R2, KEY);
        self.a.call(Helper::MapLookupElem);
        self.a.jump_if_value(If::Eq, Reg::R0, 0, missing);
        self.a.load(Size::D, Reg::R1, Reg::R10, NUMBER);
        self.a.add_atomic(Reg::R0, at, Reg::R1);
        self.a.add_atomic(Reg::R0, at + 8, bytes);
        self.a.place(missing);
    }

    /// Sets R1 to the ones-complement sum, folded to 16 bits, of the 20 bytes at the stack offset `place`. R2 is
    /// changed.
    pub(crate) fn sum_ipv4(&mut self, place: i16) {
        let a = &mut self.a;
        a.load(Size::W, Reg::R1, Reg::R10, place);
        for word in 1..5 {
            a.load(Size::W, Reg::R2, Reg::R10, place + 4 * word);
            a.op(Op::Add, Reg::R1, Reg::R2);
        }
        self.fold();
    }

    /// Folds the ones-complement sum of at most 63 words in R1 to 16 bits. R2 is changed.
    pub(crate) fn fold(&mut self) {
        // They are less than 2^38: the first round leaves less than 2^23, the second 2^17, the third at most 2^16.
        for _ in 0..4 {
            let a = &mut self.a;
            a.copy(Reg::R2, Reg::R1);
            a.op_value(Op::Rsh, Reg::R2, 16);
            a.op_value(Op::And, Reg::R1, 0xffff);
            a.op(Op::Add, Reg::R1, Reg::R2);
        }
    }

    /// Sets R1 to the number of wire-sized packets recorded by [`note_segments`](Self::note_segments).
    pub(crate) fn segments(&mut self) {
        self.a.load(Size::D, Reg::R1, Reg::R10, SEGMENTS);
    }

    /// Ends the program with its exits.
    pub(crate) fn finish(mut self, maps: &Maps<'_>) -> Result<Vec<Instruction>, Fault> {
        let count_out = self.a.label();
        let used = |a: &Assembler, mut exits: Vec<(Counter, Label)>| {
            exits.retain(|(_, label)| a.is_used(*label));
            exits
        };
        for (counter, label) in used(&self.a, std::mem::take(&mut self.left)) {
            self.a.place(label);
            match self.index {
                Index::LookedUp => {}
                Index::At(place) => self.a.load(Size::W, Reg::R1, TUNNEL, place),
                Index::Constant(index) => self.a.set(Reg::R1, index),
            }
            if self.index != Index::LookedUp {
                let out = self.out;
                self.look_up(maps.counters, COUNTERS, out);
            }
            self.count(counter);
            self.a.jump(count_out);
        }
        for (counter, label) in used(&self.a, std::mem::take(&mut self.unclaimed)) {
            self.a.place(label);
            self.a.set(Reg::R1, 0);
            let out = self.out;
            self.look_up(maps.counters, COUNTERS, out);
            self.count(counter);
            self.a.jump(count_out);
        }
        if let Some(drop) = self.drop {
            self.a.place(drop);
            self.count(Counter::NoMemory);
            self.a.exit(DROP);
        }
        self.a.place(count_out);
        self.a.place(self.out);
        self.a.exit(NEXT);
        self.a.finish()
    }
}

fn exit(a: &mut Assembler, exits: &mut Vec<(Counter, Label)>, why: Counter) -> Label {
    if let Some((_, label)) = exits.iter().find(|(counter, _)| *counter == why) {
        return *label;
    }
    let label = a.label();
    exits.push((why, label));
    label
}
