//! Order between the programs and the daemon: a packet that the daemon serves is later than the next one of its flow
//! that a program moves. So the flows of packets that only the daemon can cut, merge or forward are remembered, and the
//! others of such a flow are left to the daemon too, until it has been silent for a while.

use crate::assembler::{Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, Code, Maps};
use crate::layout::{marks, packet};

/// Stack offset of a flow, 64 bits; below the places of both programs.
const FLOW: i16 = -488;
/// Stack offset of a time, or of its address, 64 bits.
const TIME: i16 = -496;
/// Time without a packet after which a flow is no longer left to the daemon, nanoseconds. No packet waits so long in
/// front of the daemon.
const SILENCE: i32 = 1_000_000_000;
/// Number of flows that are remembered; of more those are forgotten that were used least recently.
pub(crate) const FLOWS: u32 = 4096;

/// The flows of one direction, by the interface and the kernel's hash. Of received packets in UDP it is that of the
/// outer addresses and ports, otherwise that of what is inside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flows {
    Sent,
    Received,
}

impl Flows {
    /// Returns the place of the mark that a flow was remembered: without one none is looked up.
    fn mark(self) -> i32 {
        match self {
            Flows::Sent => marks::SENT,
            Flows::Received => marks::RECEIVED,
        }
    }

    /// Stores the packet's flow to [`FLOW`].
    fn find(self, code: &mut Code) {
        let a = &mut code.a;
        a.copy(Reg::R1, CONTEXT);
        a.call(Helper::GetHashRecalc);
        a.store(Size::W, Reg::R10, FLOW, Reg::R0);
        a.load(Size::W, Reg::R1, CONTEXT, packet::IFINDEX);
        if let Flows::Received = self {
            // No index of an interface has this bit.
            a.op_value(Op::Or, Reg::R1, i32::MIN);
        }
        a.store(Size::W, Reg::R10, FLOW + 4, Reg::R1);
    }

    /// Remembers the flow of a packet that is left to the daemon. Registers 0 to 5 are changed.
    pub(crate) fn remember(self, code: &mut Code, maps: &Maps<'_>) {
        self.find(code);
        let a = &mut code.a;
        let marked = a.label();
        a.map_value(Reg::R1, maps.marks, self.mark());
        a.load(Size::W, Reg::R2, Reg::R1, 0);
        a.jump_if_value(If::Ne, Reg::R2, 0, marked);
        a.store_value(Size::W, Reg::R1, 0, 1);
        a.place(marked);
        a.call(Helper::KtimeGetNs);
        a.store(Size::D, Reg::R10, TIME, Reg::R0);
        a.map(Reg::R1, maps.flows);
        a.frame(Reg::R2, FLOW);
        a.frame(Reg::R3, TIME);
        a.set(Reg::R4, 0);
        a.call(Helper::MapUpdateElem);
    }

    /// Jumps to `behind` if the packet's flow is left to the daemon. Registers 0 to 5 are changed.
    pub(crate) fn follow(self, code: &mut Code, maps: &Maps<'_>, behind: Label) {
        let on = code.a.label();
        code.a.map_value(Reg::R1, maps.marks, self.mark());
        code.a.load(Size::W, Reg::R1, Reg::R1, 0);
        code.a.jump_if_value(If::Eq, Reg::R1, 0, on);
        self.find(code);
        let a = &mut code.a;
        a.map(Reg::R1, maps.flows);
        a.frame(Reg::R2, FLOW);
        a.call(Helper::MapLookupElem);
        a.jump_if_value(If::Eq, Reg::R0, 0, on);
        a.store(Size::D, Reg::R10, TIME, Reg::R0);
        a.call(Helper::KtimeGetNs);
        a.load(Size::D, Reg::R1, Reg::R10, TIME);
        a.load(Size::D, Reg::R2, Reg::R1, 0);
        a.op_value(Op::Add, Reg::R2, SILENCE);
        a.jump_if(If::Gt, Reg::R0, Reg::R2, on);
        a.store(Size::D, Reg::R1, 0, Reg::R0);
        a.jump(behind);
        a.place(on);
    }
}
