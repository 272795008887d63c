//! Lookup of a peer by an inner address, which both programs of a tunnel with a peer table share: a hash for host
//! routes, then one for shorter prefixes, which is searched for each existing length, longest first.

use crate::assembler::{Helper, If, Label, Op, Reg, Size};
use crate::code::{CONTEXT, Code, FamilyMaps, TUNNEL, TableMaps, protocol};
use crate::layout::{length, packet};

/// Length of the key on the stack, in whole words: an address, and the length of the prefix.
pub(crate) const KEY_LEN: i16 = 24;

/// Exits of a peer lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exits {
    /// Exit for a packet without a whole address.
    pub(crate) short: Label,
    /// Exit for an address without a peer.
    pub(crate) none: Label,
}

/// Sets [`TUNNEL`] to the entry of the peer for an address of the inner packet. `offset` sets R2 to the offset of the
/// address of an IPv4 (true) or IPv6 packet; R1 is [`protocol`] of the version, `key` the stack offset of [`KEY_LEN`]
/// bytes, `free` a register that survives calls and has nothing in it.
pub(crate) fn find(
    code: &mut Code,
    table: &TableMaps<'_>,
    (key, free): (i16, Reg),
    exits: Exits,
    mut offset: impl FnMut(&mut Code, bool),
) {
    let (v4, found) = (code.a.label(), code.a.label());
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(true), v4);
    for is_v4 in [false, true] {
        if is_v4 {
            code.a.place(v4);
        }
        let (maps, len) = if is_v4 { (&table.v4, 4) } else { (&table.v6, 16) };
        offset(code, is_v4);
        code.load_bytes(key, len, exits.short);
        code.a.map(Reg::R1, maps.hosts);
        code.a.frame(Reg::R2, key);
        code.a.call(Helper::MapLookupElem);
        code.a.jump_if_value(If::Ne, Reg::R0, 0, found);
        find_prefix(code, maps, (key, free), len as i16, found);
        code.a.jump(exits.none);
    }
    code.a.place(found);
    code.a.copy(TUNNEL, Reg::R0);
}

/// Jumps to `found` with R0 as the entry of the longest prefix of the address at `key`, which has `len` bytes. The
/// lengths get shorter, so that what remains of the address under one mask is enough for the next.
fn find_prefix(code: &mut Code, maps: &FamilyMaps<'_>, (key, left): (i16, Reg), len: i16, found: Label) {
    let a = &mut code.a;
    let (again, none) = (a.label(), a.label());
    let at_length = key + len;
    let bits = 8 * i32::from(len);
    a.set(left, bits);
    a.store_value(Size::W, Reg::R10, at_length, bits);
    a.map(Reg::R1, maps.lengths);
    a.frame(Reg::R2, at_length);
    a.call(Helper::MapLookupElem);
    a.jump_if_value(If::Eq, Reg::R0, 0, none);
    a.place(again);
    a.load(Size::W, Reg::R1, Reg::R0, length::NEXT);
    a.store(Size::W, Reg::R10, at_length, Reg::R1);
    a.map(Reg::R1, maps.lengths);
    a.frame(Reg::R2, at_length);
    a.call(Helper::MapLookupElem);
    a.jump_if_value(If::Eq, Reg::R0, 0, none);
    a.copy(TUNNEL, Reg::R0);
    let (size, step) = if len == 4 { (Size::W, 4) } else { (Size::D, 8) };
    for at in (0..len).step_by(step) {
        a.load(size, Reg::R1, TUNNEL, length::MASK + at);
        a.load(size, Reg::R2, Reg::R10, key + at);
        a.op(Op::And, Reg::R1, Reg::R2);
        a.store(size, Reg::R10, key + at, Reg::R1);
    }
    a.map(Reg::R1, maps.prefixes);
    a.frame(Reg::R2, key);
    a.call(Helper::MapLookupElem);
    a.jump_if_value(If::Ne, Reg::R0, 0, found);
    a.copy(Reg::R0, TUNNEL);
    // So that the kernel sees that the loop ends.
    a.op_value(Op::Sub, left, 1);
    a.jump_if_value(If::Ne, left, 0, again);
    a.place(none);
}

/// Sets R1 to the packet's [`protocol`] as reported by its interface; jumps to `other` where that is not IP.
pub(crate) fn version_of_packet(code: &mut Code, other: Label) {
    let known = code.a.label();
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::PROTOCOL);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(true), known);
    code.a.jump_if_value(If::Ne, Reg::R1, protocol(false), other);
    code.a.place(known);
}
