//! The IPv4 identifications of a train: whether they are constant or increment.

use super::profile::{Generation, Profile};
use super::rules::Mismatch;
use crate::wire::{ipv4, read_u16};

/// Whether the IPv4 identifications of a train are constant or increment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    /// Bits for the headers of the layout: set if the identification stays the same, clear if it counts up.
    pub(super) fixed: u16,
}

/// Checks the identification of one IPv4 header of a packet that follows a train of `segs` segments, and returns the
/// train's state with it. The header is given by its bit and whether it is the innermost one, with its bytes in the
/// train and in the packet.
#[inline(always)]
pub(super) fn next_ids(
    mut ids: Ids,
    segs: u32,
    (bit, is_inner): (u16, bool),
    profile: Profile,
    (train, this): (&[u8], &[u8]),
) -> Result<Ids, Mismatch> {
    let first = read_u16(train, ipv4::ID).unwrap_or(0);
    let id = read_u16(this, ipv4::ID).unwrap_or(0);
    let counted = id == first.wrapping_add(segs as u16);
    let fixed = id == first;
    let df = read_u16(this, ipv4::FRAGMENT).is_some_and(|f| f & ipv4::DF != 0);
    let (compares, takes_fixed) = match profile {
        Profile::Lro => (false, true),
        // An outer header under DF is not looked at.
        Profile::Linux(Generation::V6_12) => (!df || is_inner, df),
        Profile::Strict | Profile::Linux(_) => (true, true),
    };
    if segs == 1 {
        if fixed && takes_fixed {
            ids.fixed |= bit;
        } else if compares && !counted {
            return Err(Mismatch::IpId);
        }
    } else if compares && ((ids.fixed & bit != 0 && !fixed) || (ids.fixed & bit == 0 && !counted)) {
        return Err(Mismatch::IpId);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::write_u16;

    const BIT: u16 = 4;

    fn header(id: u16, df: bool) -> [u8; ipv4::MIN_LEN] {
        let mut header = [0; ipv4::MIN_LEN];
        write_u16(&mut header, ipv4::ID, id);
        write_u16(&mut header, ipv4::FRAGMENT, if df { ipv4::DF } else { 0 });
        header
    }

    /// Tests that an identification stays or counts up by one, with wrap-around (RFC 6864, section 4), and that each
    /// generation has the rule of Linux's `inet_gro_receive`.
    #[test]
    fn an_identification_stays_or_counts_up_by_the_rules_of_its_profile() {
        let (strict, lro) = (Profile::Strict, Profile::Lro);
        let (old, new) = (Profile::Linux(Generation::V6_12), Profile::Linux(Generation::V6_18));
        let wrong = Err(Mismatch::IpId);
        for (profile, segs, fixed, (df, is_inner), id, expected) in [
            // The second packet decides which of both it is.
            (strict, 1, 0, (true, true), 7, Ok(BIT)),
            (strict, 1, 0, (false, true), 7, Ok(BIT)),
            (strict, 1, 0, (false, false), 7, Ok(BIT)),
            (strict, 1, 0, (true, true), 8, Ok(0)),
            (strict, 1, 0, (true, true), 9, wrong),
            (strict, 1, 0, (true, true), 6, wrong),
            (strict, 1, 1, (true, true), 8, Ok(1)),
            (strict, 1, 1, (true, true), 7, Ok(BIT | 1)),
            // The others go on so.
            (strict, 2, 0, (true, true), 9, Ok(0)),
            (strict, 2, 0, (true, true), 8, wrong),
            (strict, 2, 0, (true, true), 7, wrong),
            (strict, 2, BIT, (true, true), 7, Ok(BIT)),
            (strict, 2, BIT, (true, true), 9, wrong),
            (strict, 2, 1, (true, true), 9, Ok(1)),
            (new, 1, 0, (false, true), 7, Ok(BIT)),
            (new, 1, 0, (true, false), 9, wrong),
            // Up to 6.17 one that stays counts only with DF, and an outer one with DF is not looked at.
            (old, 1, 0, (true, true), 7, Ok(BIT)),
            (old, 1, 0, (false, true), 7, wrong),
            (old, 1, 0, (false, false), 7, wrong),
            (old, 1, 0, (false, false), 8, Ok(0)),
            (old, 1, 0, (true, false), 9, Ok(0)),
            (old, 1, 0, (true, true), 9, wrong),
            (old, 2, 0, (true, false), 7, Ok(0)),
            (old, 2, 0, (true, true), 7, wrong),
            // A receiver with LRO does not look.
            (lro, 1, 0, (false, true), 99, Ok(0)),
            (lro, 1, 0, (false, true), 7, Ok(BIT)),
            (lro, 2, 0, (true, true), 7, Ok(0)),
            (lro, 2, BIT, (true, true), 99, Ok(BIT)),
        ] {
            let found = next_ids(Ids { fixed }, segs, (BIT, is_inner), profile, (&header(7, df), &header(id, df)));
            assert_eq!(found.map(|ids| ids.fixed), expected, "{profile:?} {segs} {fixed} {df} {is_inner} {id}");
        }
        let (first, next) = (header(u16::MAX, true), header(0, true));
        let around = next_ids(Ids { fixed: 0 }, 1, (BIT, true), strict, (&first, &next));
        assert_eq!(around.map(|ids| ids.fixed), Ok(0));
    }
}
