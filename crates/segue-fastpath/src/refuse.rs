//! Packets that the daemon would certainly drop, such as those of unknown senders: the receive program drops them
//! itself, so that a flood of them does not wake the daemon for each, and counts them under the daemon's names.
//!
//! Once in a millisecond one of them is still passed to the daemon, so that it knows of them.

use segue::encap::DecapRefusal;
use segue::reason::Reason;
use segue::wire::{geneve, vxlan};

use crate::assembler::{Assembler, Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, COUNTERS, Code, DROP, Maps, TUNNEL};
use crate::counters::Counter;
use crate::layout::{ETHERNET_LEN, inbound, packet, peer, settings};
use crate::places::{FRAME, GRE, HEADERS, INNER, OUTER, PEER, TOTAL};
use crate::receive_form::{Carrier, Form};
use crate::verdict::{LEFT_SHIFT, NEEDS_GRE, PLACE, Senders, Verdict};
use crate::wire::{self, ethernet, gre, ipv4, ipv6, number, udp};

/// Name of the daemon's drop reason for unknown senders.
const UNKNOWN_PEER: &str = "unknown_peer";
/// Number of the counters of dropped packets: one for unknown senders, and one for each refusal.
pub(crate) const DROPPED_COUNT: usize = 1 + DecapRefusal::ALL.len();
const NANOS_IN_MS: i32 = 1_000_000;

/// Returns the names of the counters of dropped packets with their values, summed over the CPUs.
pub(crate) fn dropped(values: &[u8]) -> Vec<(&'static str, u64)> {
    let sums = crate::counters::totals::<DROPPED_COUNT>(values.chunks_exact(8 * DROPPED_COUNT));
    let names = std::iter::once(UNKNOWN_PEER).chain(DecapRefusal::ALL.iter().map(|why| why.name()));
    names.zip(sums).filter(|(_, count)| *count > 0).collect()
}

/// Checks a GUE header that the program does not decapsulate.
pub(crate) fn judge_gue(code: &mut Code, form: &Form, header: Label) {
    let [other, version, flags, short] = [
        Verdict::Leave,
        Verdict::Drop(DecapRefusal::GueVersion),
        Verdict::Drop(DecapRefusal::GueFlags),
        Verdict::Drop(DecapRefusal::GueHeaderLen),
    ]
    .map(|verdict| code.judge(Counter::GueHeader, verdict));
    let at = OUTER + form.ip_len() + udp::LEN;
    let a = &mut code.a;
    a.place(header);
    a.load(Size::B, Reg::R1, Reg::R10, at);
    a.copy(Reg::R2, Reg::R1);
    a.op_value(Op::Rsh, Reg::R2, 4);
    // Version 1 is IPv4 or IPv6 without a header.
    a.jump_if_value(If::Gt, Reg::R2, 7, version);
    a.jump_if_value(If::Eq, Reg::R2, 5, version);
    a.jump_if_value(If::Eq, Reg::R2, 7, version);
    // With optional fields, control messages, and version 1.
    a.jump_if_value(If::Ne, Reg::R1, 0, other);
    a.load(Size::H, Reg::R1, Reg::R10, at + 2);
    a.swap(Reg::R1, 16);
    // Private flags without a field for them.
    a.jump_if_value(If::Eq, Reg::R1, 1, short);
    a.jump(flags);
}

/// Checks a VXLAN or Geneve header that the program does not decapsulate.
pub(crate) fn judge_overlay(code: &mut Code, form: &Form, why: Counter, header: Label) {
    const VALID: i32 = vxlan::VALID as i32;
    const REMCSUM: i32 = (vxlan::VALID | vxlan::REMCSUM) as i32;
    let other = code.judge(why, Verdict::Leave);
    let at = OUTER + form.ip_len() + udp::LEN;
    let drop = |code: &mut Code, reason| code.judge(why, Verdict::Drop(reason));
    if let Carrier::Vxlan(_) = form.carrier {
        let (network, flags) = (drop(code, DecapRefusal::VxlanNoVni), drop(code, DecapRefusal::VxlanFlags));
        let valid = code.a.label();
        code.a.place(header);
        code.a.load(Size::W, Reg::R1, Reg::R10, at);
        code.a.swap(Reg::R1, 32);
        code.a.jump_if_value(If::Set, Reg::R1, VALID, valid);
        code.a.jump(network);
        code.a.place(valid);
        code.a.jump_if_value(If::Eq, Reg::R1, REMCSUM, other);
        code.a.jump(flags);
    } else {
        let (version, control) = (drop(code, DecapRefusal::GeneveVersion), drop(code, DecapRefusal::GeneveControl));
        code.a.place(header);
        code.a.load(Size::B, Reg::R1, Reg::R10, at);
        code.a.jump_if_value(If::Set, Reg::R1, geneve::VERSION.into(), version);
        code.a.jump_if_value(If::Ne, Reg::R1, 0, other);
        code.a.load(Size::B, Reg::R1, Reg::R10, at + 1);
        code.a.jump_if_value(If::Set, Reg::R1, geneve::CONTROL.into(), control);
        code.a.jump(other);
    }
}

/// Checks a GRE header that the program does not decapsulate.
pub(crate) fn judge_gre(code: &mut Code, header: Label) {
    const UNKNOWN_FLAGS: i32 = 0x4fff;
    let [other, malformed, mismatch] = [
        Verdict::Leave,
        Verdict::DropWithGre(DecapRefusal::GreMalformed),
        Verdict::DropWithGre(DecapRefusal::GreMismatch),
    ]
    .map(|verdict| code.judge(Counter::GreHeader, verdict));
    let csum = code.a.label();
    code.a.place(header);
    code.a.load(Size::H, Reg::R1, Reg::R10, GRE);
    code.a.swap(Reg::R1, 16);
    code.a.jump_if_value(If::Set, Reg::R1, UNKNOWN_FLAGS, malformed);
    code.a.jump_if_value(If::Set, Reg::R1, gre::CSUM, csum);
    code.a.jump(other);
    code.a.place(csum);
    // A header that may be cut off is the daemon's: it has 16 bytes at most, of which 4 are among the headers.
    code.a.load(Size::D, Reg::R1, Reg::R10, TOTAL);
    code.a.op_value(Op::Add, Reg::R1, i32::from(ETHERNET_LEN) - 12);
    code.a.jump_if(If::Gt, HEADERS, Reg::R1, other);
    code.a.jump(mismatch);
}

/// Handles a packet whose key, identifier or protocol matches no tunnel with this sender.
pub(crate) fn judge_identity(code: &mut Code, form: &Form, unknown: Label) {
    use DecapRefusal::{GreMismatch, InnerProtocol, Vni};
    let mut judge = |verdict| code.judge(Counter::NoTunnel, verdict);
    match form.carrier {
        Carrier::Vxlan(_) | Carrier::Geneve(_) => {
            let vni = judge(Verdict::Drop(Vni));
            code.a.place(unknown);
            code.a.jump(vni);
        }
        Carrier::Gue(_) => {
            let (key, protocol) = (judge(Verdict::DropWithGre(GreMismatch)), judge(Verdict::Drop(InnerProtocol)));
            code.a.place(unknown);
            code.a.load(Size::W, Reg::R1, Reg::R10, PEER + peer::KIND);
            code.a.jump_if_value(If::Lt, Reg::R1, peer::GRE as i32, protocol);
            code.a.jump(key);
        }
        Carrier::Fou(_) | Carrier::Bare => {
            let verdict = if form.has_gre { Verdict::DropWithGre(GreMismatch) } else { Verdict::Leave };
            let exit = judge(verdict);
            code.a.place(unknown);
            code.a.jump(exit);
        }
    }
}

/// Checks a frame for an invalid source MAC address; the header of one with another EtherType may be truncated.
pub(crate) fn judge_station(code: &mut Code, station: Label) {
    let [other, source] = [Verdict::Leave, Verdict::Drop(DecapRefusal::InnerSource)]
        .map(|verdict| code.judge_claimed(Counter::InnerSource, verdict));
    code.a.place(station);
    code.a.load(Size::H, Reg::R1, Reg::R10, FRAME + ethernet::TYPE);
    code.a.jump_if_value(If::Eq, Reg::R1, crate::code::protocol(true), source);
    code.a.jump_if_value(If::Eq, Reg::R1, crate::code::protocol(false), source);
    code.a.jump(other);
}

/// Checks an inner packet whose IP version differs from that announced by its headers.
pub(crate) fn judge_version(code: &mut Code, version: Label) {
    let other = code.judge_claimed(Counter::InnerVersion, Verdict::Leave);
    let malformed = code.judge_claimed(Counter::InnerVersion, Verdict::Drop(DecapRefusal::InnerMalformed));
    code.a.place(version);
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER);
    code.a.op_value(Op::Rsh, Reg::R1, 4);
    code.a.jump_if_value(If::Eq, Reg::R1, 4, other);
    code.a.jump_if_value(If::Eq, Reg::R1, 6, other);
    code.a.jump(malformed);
}

/// Handles an inner packet with an invalid source address: drops it if its length is right and its header has nothing
/// that may be malformed, and otherwise leaves it to the daemon.
pub(crate) fn judge_source(code: &mut Code, source: Label) {
    let [other, drop] = [Verdict::Leave, Verdict::Drop(DecapRefusal::InnerSource)]
        .map(|verdict| code.judge_claimed(Counter::InnerSource, verdict));
    let (v4, known) = (code.a.label(), code.a.label());
    let a = &mut code.a;
    a.place(source);
    a.load(Size::B, Reg::R1, Reg::R10, INNER);
    a.jump_if_value(If::Eq, Reg::R1, ipv4::FIRST, v4);
    a.jump_if_value(If::Lt, Reg::R1, 0x60, other);
    a.load(Size::B, Reg::R1, Reg::R10, INNER + ipv6::NEXT_HEADER);
    a.load(Size::H, Reg::R2, Reg::R10, INNER + ipv6::PAYLOAD_LEN);
    a.swap(Reg::R2, 16);
    a.op_value(Op::Add, Reg::R2, ipv6::LEN.into());
    for transport in [number::TCP, number::UDP, number::ICMPV6] {
        a.jump_if_value(If::Eq, Reg::R1, transport, known);
    }
    a.jump(other);
    a.place(v4);
    a.load(Size::H, Reg::R2, Reg::R10, INNER + ipv4::TOTAL_LEN);
    a.swap(Reg::R2, 16);
    a.jump_if_value(If::Lt, Reg::R2, ipv4::LEN.into(), other);
    a.place(known);
    a.op(Op::Add, Reg::R2, HEADERS);
    a.load(Size::D, Reg::R1, Reg::R10, TOTAL);
    a.op_value(Op::Add, Reg::R1, i32::from(ETHERNET_LEN));
    a.jump_if(If::Eq, Reg::R1, Reg::R2, drop);
    a.jump(other);
}

/// Ends a program with the exits of judged packets.
pub(crate) fn finish(code: &mut Code, form: &Form, maps: &Maps<'_>, senders: &Senders<'_>) {
    let exits = std::mem::take(&mut code.judged).all;
    for is_claimed in [false, true] {
        let end = code.a.label();
        let mut is_used = false;
        for (exit, label) in exits.iter().filter(|(exit, _)| exit.is_claimed == is_claimed) {
            if !code.a.is_used(*label) {
                continue;
            }
            code.a.place(*label);
            code.a.set(COUNTERS, exit.number());
            code.a.jump(end);
            is_used = true;
        }
        if is_used {
            code.a.place(end);
            end_judged(code, form, maps, senders, is_claimed);
        }
    }
}

/// Drops the packet, or leaves it to the daemon, according to the number in [`COUNTERS`], which the kernel's verifier
/// knows for each exit.
fn end_judged(code: &mut Code, form: &Form, maps: &Maps<'_>, senders: &Senders<'_>, is_claimed: bool) {
    let leave = code.a.label();
    check_whole(code, form, leave);
    let place = HEADERS;
    if is_claimed {
        code.a.copy(place, COUNTERS);
        code.a.op_value(Op::And, place, PLACE);
        code.a.jump_if_value(If::Eq, place, 0, leave);
    } else {
        let (known, judged) = (code.a.label(), code.a.label());
        let (source, len) = wire::source(form.is_v4());
        for at in (0..len).step_by(4) {
            code.a.load(Size::W, Reg::R1, Reg::R10, OUTER + source + at);
            code.a.store(Size::W, Reg::R10, PEER + peer::ADDRESS + at, Reg::R1);
        }
        code.a.map(Reg::R1, senders.remotes);
        code.a.frame(Reg::R2, PEER + peer::ADDRESS);
        code.a.call(Helper::MapLookupElem);
        code.a.set(place, 0);
        code.a.jump_if_value(If::Ne, Reg::R0, 0, known);
        code.a.jump(judged);
        code.a.place(known);
        code.a.copy(place, COUNTERS);
        code.a.op_value(Op::And, place, PLACE);
        code.a.jump_if_value(If::Eq, place, 0, leave);
        code.a.copy(Reg::R1, COUNTERS);
        code.a.op_value(Op::And, Reg::R1, NEEDS_GRE);
        code.a.jump_if_value(If::Eq, Reg::R1, 0, judged);
        code.a.load(Size::W, Reg::R1, Reg::R0, 0);
        code.a.jump_if_value(If::Eq, Reg::R1, 0, leave);
        code.a.place(judged);
    }
    // One of a millisecond is for the daemon.
    let out = code.out;
    code.a.call(Helper::KtimeGetNs);
    code.a.op_value(Op::Div, Reg::R0, NANOS_IN_MS);
    code.a.map_value(Reg::R1, maps.settings, i32::from(settings::PASSED));
    code.a.load(Size::D, Reg::R2, Reg::R1, 0);
    let passed = code.a.label();
    code.a.jump_if(If::Eq, Reg::R0, Reg::R2, passed);
    code.a.store(Size::D, Reg::R1, 0, Reg::R0);
    code.a.jump(leave);
    code.a.place(passed);
    code.a.set(Reg::R1, 0);
    code.look_up(senders.dropped, Reg::R1, leave);
    add_at(&mut code.a, place);
    code.a.exit(DROP);

    code.a.place(leave);
    if is_claimed {
        code.a.load(Size::W, Reg::R1, TUNNEL, inbound::COUNTERS);
    } else {
        code.a.set(Reg::R1, 0);
    }
    code.look_up(maps.counters, Reg::R1, out);
    code.a.op_value(Op::Rsh, COUNTERS, LEFT_SHIFT);
    add_at(&mut code.a, COUNTERS);
    code.a.jump(out);
}

/// Adds one to a counter, whose number is in a register, of the value whose address is in R1.
fn add_at(a: &mut Assembler, number: Reg) {
    a.op_value(Op::Lsh, number, 3);
    a.op(Op::Add, Reg::R1, number);
    a.load(Size::D, Reg::R2, Reg::R1, 0);
    a.op_value(Op::Add, Reg::R2, 1);
    a.store(Size::D, Reg::R1, 0, Reg::R2);
}

/// Leaves to the daemon the packets that may reach it in another form, or not at all: trains, truncated packets, and
/// packets with an unverified outer checksum, which the kernel judges first.
fn check_whole(code: &mut Code, form: &Form, leave: Label) {
    let (absent, good) = (code.a.label(), code.a.label());
    let a = &mut code.a;
    a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
    a.jump_if_value(If::Ne, Reg::R1, 0, leave);
    a.load(Size::D, Reg::R1, Reg::R10, TOTAL);
    a.op_value(Op::Add, Reg::R1, i32::from(ETHERNET_LEN));
    a.load(Size::W, Reg::R2, CONTEXT, packet::LEN);
    a.jump_if(If::Gt, Reg::R1, Reg::R2, leave);
    a.jump_if(If::Gt, HEADERS, Reg::R1, leave);
    a.load(Size::H, Reg::R1, Reg::R10, OUTER + form.ip_len() + udp::CHECKSUM);
    a.jump_if_value(If::Eq, Reg::R1, 0, absent);
    a.copy(Reg::R1, CONTEXT);
    // BPF_CSUM_LEVEL_QUERY: an error unless the checksum is known to be right.
    a.set(Reg::R2, 0);
    a.call(Helper::CsumLevel);
    a.jump_if_value(If::Gt, Reg::R0, i32::MAX, leave);
    a.jump(good);
    a.place(absent);
    if !form.is_v4() && !form.zero_csum6 {
        a.jump(leave);
    }
    a.place(good);
}
