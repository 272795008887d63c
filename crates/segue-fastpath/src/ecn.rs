//! Congestion marks of a received packet (RFC 6040, section 4.2).

use crate::assembler::{Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, Code};
use crate::counters::Counter;
use crate::places::{HEADERS, MARK, OUTER, VERSION};
use crate::receive_form::Form;
use crate::wire::{ipv4, ipv6};

/// Records whether the inner packet must be marked CE. R4 is its DSCP and ECN byte. The combinations that drop the
/// packet or change ECT(0) to ECT(1) are left to the daemon.
pub(crate) fn combine(code: &mut Code, form: &Form) {
    let ecn = code.leave(Counter::Ecn);
    let a = &mut code.a;
    let (other, done) = (a.label(), a.label());
    a.op_value(Op::And, Reg::R4, 3);
    if form.is_v4() {
        a.load(Size::B, Reg::R1, Reg::R10, OUTER + ipv4::TOS);
    } else {
        a.load(Size::H, Reg::R1, Reg::R10, OUTER);
        a.swap(Reg::R1, 16);
        a.op_value(Op::Rsh, Reg::R1, 4);
    }
    a.op_value(Op::And, Reg::R1, 3);
    a.store_value(Size::D, Reg::R10, MARK, 0);
    a.jump_if_value(If::Ne, Reg::R1, 3, other);
    a.jump_if_value(If::Eq, Reg::R4, 0, ecn);
    a.jump_if_value(If::Eq, Reg::R4, 3, done);
    a.store_value(Size::D, Reg::R10, MARK, 1);
    a.jump(done);
    a.place(other);
    a.jump_if_value(If::Ne, Reg::R1, 1, done);
    a.jump_if_value(If::Eq, Reg::R4, 2, ecn);
    a.place(done);
}

/// Copies the headers of a packet to be marked into its first buffer, up to the inner IP header: the kernel marks
/// nowhere else. Jumps to `refused` if it cannot.
pub(crate) fn prepare(code: &mut Code, refused: Label) {
    let a = &mut code.a;
    let (v4, unmarked) = (a.label(), a.label());
    a.load(Size::D, Reg::R1, Reg::R10, MARK);
    a.jump_if_value(If::Eq, Reg::R1, 0, unmarked);
    a.load(Size::D, Reg::R1, Reg::R10, VERSION);
    a.set(Reg::R2, ipv4::LEN.into());
    a.jump_if_value(If::Eq, Reg::R1, 4, v4);
    a.set(Reg::R2, ipv6::LEN.into());
    a.place(v4);
    a.op(Op::Add, Reg::R2, HEADERS);
    a.copy(Reg::R1, CONTEXT);
    a.call(Helper::SkbPullData);
    a.jump_if_value(If::Ne, Reg::R0, 0, refused);
    a.place(unmarked);
}

/// Marks the packet CE, whose outer headers are removed, where congestion was marked outside.
pub(crate) fn mark(code: &mut Code) {
    let a = &mut code.a;
    let unmarked = a.label();
    a.load(Size::D, Reg::R1, Reg::R10, MARK);
    a.jump_if_value(If::Eq, Reg::R1, 0, unmarked);
    a.copy(Reg::R1, CONTEXT);
    a.call(Helper::SkbEcnSetCe);
    a.place(unmarked);
}
