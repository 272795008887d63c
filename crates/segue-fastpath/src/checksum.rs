//! The outer UDP checksum of a received packet: accepted if the NIC or GRO verified it, otherwise derived from the
//! headers.

use crate::assembler::{Assembler, Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, Code};
use crate::counters::Counter;
use crate::layout::packet;
use crate::places::{FIB, FRAME, GRE, HEADERS, INNER, OUTER, VERSION};
use crate::receive_form::Form;
use crate::wire::{self, ethernet, ipv4, ipv6, number, tcp, udp};

/// Stack offset of the part of the inner IPv6 header after its first 20 bytes; zeros with IPv4 inside.
const REST: i16 = FIB;
/// Stack offset of the checksum field of the inner transport header.
const FIELD: i16 = FIB + 24;

/// Checks the outer UDP checksum: accepts one that the interface or GRO has verified or that the headers prove, and a
/// zero one where that is allowed. Trains come from GRO, or unfinished from this machine. The inner header must have
/// been read.
pub(crate) fn check(code: &mut Code, form: &Form) {
    let csum = code.leave(Counter::OuterCsum);
    let (unverified, absent, good) = (code.a.label(), code.a.label(), code.a.label());
    code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + form.ip_len() + udp::CHECKSUM);
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
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER + ipv6::NEXT_HEADER);
    code.a.set(Reg::R2, ipv6::LEN.into());
    code.a.jump(read);
    code.a.place(v4);
    // Transport headers after options are not looked for.
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER);
    code.a.jump_if_value(If::Ne, Reg::R1, ipv4::FIRST, unproven);
    for (size, at) in [(Size::D, 0), (Size::D, 8), (Size::W, 16)] {
        code.a.store_value(size, Reg::R10, REST + at, 0);
    }
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER + ipv4::PROTOCOL);
    code.a.set(Reg::R2, ipv4::LEN.into());
    code.a.place(read);
    code.a.op(Op::Add, Reg::R2, HEADERS);
    code.a.op_value(Op::Add, Reg::R2, tcp::CHECKSUM.into());
    code.a.jump_if_value(If::Eq, Reg::R1, number::TCP, known);
    code.a.jump_if_value(If::Ne, Reg::R1, number::UDP, unproven);
    code.a.op_value(Op::Sub, Reg::R2, i32::from(tcp::CHECKSUM - udp::CHECKSUM));
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
    add_words(a, INNER + ipv4::SRC, 8);
    add_words(a, REST, 20);
    a.load(Size::D, Reg::R2, Reg::R10, VERSION);
    a.jump_if_value(If::Eq, Reg::R2, 4, v4);
    add_words(a, INNER + ipv6::SRC, 4);
    a.load(Size::H, Reg::R3, Reg::R10, INNER + ipv6::PAYLOAD_LEN);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + ipv6::NEXT_HEADER);
    a.jump(read);
    a.place(v4);
    a.load(Size::H, Reg::R3, Reg::R10, INNER + ipv4::TOTAL_LEN);
    a.swap(Reg::R3, 16);
    a.op_value(Op::Sub, Reg::R3, ipv4::LEN.into());
    a.swap(Reg::R3, 16);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + ipv4::PROTOCOL);
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
    let (addresses, len) = wire::source(form.is_v4());
    add_words(a, OUTER + addresses, 2 * len);
    a.op_value(Op::Add, Reg::R1, number::UDP << 8);
    a.load(Size::H, Reg::R2, Reg::R10, OUTER + form.ip_len() + udp::LENGTH);
    a.op(Op::Add, Reg::R1, Reg::R2);
    add_words(a, OUTER + form.ip_len(), udp::LEN + behind);
    if form.may_have_gre() {
        add_words(a, GRE, 8);
    }
    if form.carrier.has_frames() {
        add_words(a, FRAME, ethernet::TYPE);
        a.load(Size::H, Reg::R2, Reg::R10, FRAME + ethernet::TYPE);
        a.op(Op::Add, Reg::R1, Reg::R2);
    }
    add_words(a, INNER, 20);
    add_words(a, REST, 20);
    code.fold();
}

/// Adds the words of `len` bytes at the stack offset `place` to R1.
fn add_words(a: &mut Assembler, place: i16, len: i16) {
    for at in (0..len).step_by(4) {
        a.load(Size::W, Reg::R2, Reg::R10, place + at);
        a.op(Op::Add, Reg::R1, Reg::R2);
    }
}
