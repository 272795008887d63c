//! The outer UDP checksum of a received packet: how it was verified, or is proved.

use crate::assembler::{Assembler, Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, Code};
use crate::counters::Counter;
use crate::layout::packet;
use crate::places::{FIB, FRAME, GRE, HEADERS, INNER, OUTER, UDP, UDP_LEN, VERSION};
use crate::receive_form::Form;

/// The inner IPv6 header behind its first 20 bytes, on the stack; zeros with IPv4 inside.
const REST: i16 = FIB;
/// The checksum field of the inner transport header.
const FIELD: i16 = FIB + 24;

const TCP: i32 = 6;
/// Offset of the checksum field in a TCP and in a UDP header.
const TCP_FIELD: i32 = 16;
const UDP_FIELD: i32 = 6;

/// Accepts a UDP checksum that the interface or GRO has verified or that the headers prove, and the absence of one
/// where that is allowed. Trains come from GRO, or unfinished from this machine. The inner header must have been read.
pub(crate) fn check(code: &mut Code, form: &Form) {
    let csum = code.leave(Counter::OuterCsum);
    let (unverified, absent, good) = (code.a.label(), code.a.label(), code.a.label());
    code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + form.ip_len() + 6);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, absent);
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, good);
    code.a.copy(Reg::R1, CONTEXT);
    // BPF_CSUM_LEVEL_QUERY: an error unless the checksum is known to be right.
    code.a.set(Reg::R2, 0);
    code.a.call(Helper::CsumLevel);
    code.a.jump_if_value(If::Gt, Reg::R0, i32::MAX, unverified);
    code.a.jump(good);
    code.a.place(unverified);
    prove(code, form, csum);
    code.a.jump(good);
    code.a.place(absent);
    if !form.is_v4() && !form.zero_csum6 {
        code.a.jump(csum);
    }
    code.a.place(good);
}

/// Proves the outer checksum of a packet with an unfinished TCP or UDP checksum inside, as a sender on the same machine
/// leaves it: the outer one, which such a sender computes from the headers alone, must be right for what the inner one
/// will be. So everything in front of the inner transport header is verified here, and the rest is what the inner
/// checksum covers, which the receiver's transport verifies unless it knows that the packet never left this machine.
fn prove(code: &mut Code, form: &Form, unproven: Label) {
    let (v4, read, known) = (code.a.label(), code.a.label(), code.a.label());
    code.a.load(Size::D, Reg::R1, Reg::R10, VERSION);
    code.a.jump_if_value(If::Eq, Reg::R1, 4, v4);
    code.a.copy(Reg::R2, HEADERS);
    code.a.op_value(Op::Add, Reg::R2, 20);
    code.load_bytes(REST, 20, unproven);
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER + 6);
    code.a.set(Reg::R2, 40);
    code.a.jump(read);
    code.a.place(v4);
    // Transport headers behind options are not looked for.
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER);
    code.a.jump_if_value(If::Ne, Reg::R1, 0x45, unproven);
    for (size, at) in [(Size::D, 0), (Size::D, 8), (Size::W, 16)] {
        code.a.store_value(size, Reg::R10, REST + at, 0);
    }
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER + 9);
    code.a.set(Reg::R2, 20);
    code.a.place(read);
    code.a.op(Op::Add, Reg::R2, HEADERS);
    code.a.op_value(Op::Add, Reg::R2, TCP_FIELD);
    code.a.jump_if_value(If::Eq, Reg::R1, TCP, known);
    code.a.jump_if_value(If::Ne, Reg::R1, UDP, unproven);
    code.a.op_value(Op::Sub, Reg::R2, TCP_FIELD - UDP_FIELD);
    code.a.place(known);
    code.load_bytes(FIELD, 2, unproven);

    sum_pseudo_header(code);
    code.a.load(Size::H, Reg::R3, Reg::R10, FIELD);
    code.a.jump_if(If::Ne, Reg::R1, Reg::R3, unproven);
    sum_headers(code, form);
    code.a.jump_if_value(If::Ne, Reg::R1, 0xffff, unproven);
}

/// Sets R1 to the sum of the pseudo-header of the inner packet, folded to 16 bits: the value of an unfinished checksum.
fn sum_pseudo_header(code: &mut Code) {
    let (v4, read) = (code.a.label(), code.a.label());
    let a = &mut code.a;
    a.set(Reg::R1, 0);
    add_words(a, INNER + 12, 8);
    add_words(a, REST, 20);
    a.load(Size::D, Reg::R2, Reg::R10, VERSION);
    a.jump_if_value(If::Eq, Reg::R2, 4, v4);
    add_words(a, INNER + 8, 4);
    a.load(Size::H, Reg::R3, Reg::R10, INNER + 4);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + 6);
    a.jump(read);
    a.place(v4);
    a.load(Size::H, Reg::R3, Reg::R10, INNER + 2);
    a.swap(Reg::R3, 16);
    a.op_value(Op::Sub, Reg::R3, 20);
    a.swap(Reg::R3, 16);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + 9);
    a.place(read);
    a.op(Op::Add, Reg::R1, Reg::R3);
    // The protocol is the lower byte of its word.
    a.op_value(Op::Lsh, Reg::R2, 8);
    a.op(Op::Add, Reg::R1, Reg::R2);
    code.fold();
}

/// Sets R1 to the sum, folded to 16 bits, of the outer pseudo-header, of all from the outer UDP header to the inner IP
/// header, and of the complement of the inner checksum field, which is in R3: 0xffff where the outer checksum is right.
fn sum_headers(code: &mut Code, form: &Form) {
    let behind = form.carrier.udp().map_or(0, |(_, len)| len);
    let a = &mut code.a;
    a.copy(Reg::R1, Reg::R3);
    a.op_value(Op::Xor, Reg::R1, 0xffff);
    let (addresses, len) = if form.is_v4() { (12, 8) } else { (8, 32) };
    add_words(a, OUTER + addresses, len);
    a.op_value(Op::Add, Reg::R1, UDP << 8);
    a.load(Size::H, Reg::R2, Reg::R10, OUTER + form.ip_len() + 4);
    a.op(Op::Add, Reg::R1, Reg::R2);
    add_words(a, OUTER + form.ip_len(), UDP_LEN + behind);
    if form.may_have_gre() {
        add_words(a, GRE, 8);
    }
    if form.carrier.has_frames() {
        add_words(a, FRAME, 12);
        a.load(Size::H, Reg::R2, Reg::R10, FRAME + 12);
        a.op(Op::Add, Reg::R1, Reg::R2);
    }
    add_words(a, INNER, 20);
    add_words(a, REST, 20);
    code.fold();
}

/// Adds the words of `len` bytes of the frame at `place` to R1.
fn add_words(a: &mut Assembler, place: i16, len: i16) {
    for at in (0..len).step_by(4) {
        a.load(Size::W, Reg::R2, Reg::R10, place + at);
        a.op(Op::Add, Reg::R1, Reg::R2);
    }
}
