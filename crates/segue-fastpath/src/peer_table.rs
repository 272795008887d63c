//! The look-up of a peer by an inner address, which both programs of a tunnel with a peer table share: a hash for host
//! routes, and longest-prefix match behind it.

use crate::assembler::{Helper, If, Label, Reg, Size};
use crate::code::{CONTEXT, Code, TUNNEL, TableMaps, protocol};
use crate::layout::packet;

/// Length of the key on the stack, in whole words: length of the prefix, and an address.
pub(crate) const KEY_LEN: i16 = 24;

/// The exits of a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exits {
    /// The packet has no whole address.
    pub(crate) short: Label,
    /// No peer has the address.
    pub(crate) none: Label,
}

/// Sets [`TUNNEL`] to the entry of the peer that has an address of the inner packet. `offset` sets R2 to the offset of
/// the address of an IPv4 (true) or IPv6 packet; R1 is [`protocol`] of the version, `key` a place of [`KEY_LEN`] bytes
/// on the stack.
pub(crate) fn find(
    code: &mut Code,
    table: &TableMaps<'_>,
    key: i16,
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
        code.load_bytes(key + 4, len, exits.short);
        code.a.map(Reg::R1, maps.hosts);
        code.a.frame(Reg::R2, key + 4);
        code.a.call(Helper::MapLookupElem);
        code.a.jump_if_value(If::Ne, Reg::R0, 0, found);
        code.a.store_value(Size::W, Reg::R10, key, 8 * len);
        code.a.map(Reg::R1, maps.prefixes);
        code.a.frame(Reg::R2, key);
        code.a.call(Helper::MapLookupElem);
        code.a.jump_if_value(If::Eq, Reg::R0, 0, exits.none);
        if !is_v4 {
            code.a.jump(found);
        }
    }
    code.a.place(found);
    code.a.copy(TUNNEL, Reg::R0);
}

/// Sets R1 to [`protocol`] of the packet as its interface reports it; leaves by `other` where that is not IP.
pub(crate) fn version_of_packet(code: &mut Code, other: Label) {
    let known = code.a.label();
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::PROTOCOL);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(true), known);
    code.a.jump_if_value(If::Ne, Reg::R1, protocol(false), other);
    code.a.place(known);
}
