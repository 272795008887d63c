//! Explicit congestion notification across a tunnel (RFC 6040).

/// The two ECN bits of a DSCP and ECN byte.
pub(super) const MASK: u8 = 3;

const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const CE: u8 = 3;

/// Returns the outer DSCP and ECN byte: `dscp` from its source, ECN as in the inner header (RFC 6040, section 4.1,
/// normal mode).
pub(super) fn encapsulate(dscp: u8, inner: u8) -> u8 {
    dscp & !MASK | inner & MASK
}

/// Returns the inner DSCP and ECN byte after decapsulation (RFC 6040, section 4.2, figure 4); `None` if the packet must
/// be dropped: congestion was marked in the outer header and the inner packet does not support ECN.
pub const fn combine(inner: u8, outer: u8) -> Option<u8> {
    let ecn = match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => return None,
        (NOT_ECT, _) => NOT_ECT,
        (CE, _) | (_, CE) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Some(inner & !MASK | ecn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_decapsulation_table() {
        // Rows: inner Not-ECT, ECT(1), ECT(0), CE in the order of their values; columns: outer, the same.
        let table = [
            [Some(0), Some(0), Some(0), None],
            [Some(1), Some(1), Some(1), Some(3)],
            [Some(2), Some(1), Some(2), Some(3)],
            [Some(3), Some(3), Some(3), Some(3)],
        ];
        for (inner, row) in table.iter().enumerate() {
            for (outer, cell) in row.iter().enumerate() {
                let (inner, outer) = (0xb8 | inner as u8, 0x40 | outer as u8);
                assert_eq!(combine(inner, outer), cell.map(|ecn| 0xb8 | ecn), "inner {inner:x}, outer {outer:x}");
            }
        }
    }

    #[test]
    fn the_outer_field_is_the_inner_one_under_any_dscp() {
        for ecn in 0..4 {
            assert_eq!(encapsulate(0xb9, 0x20 | ecn), 0xb8 | ecn);
        }
    }
}
