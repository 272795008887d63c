//! The IPv4 identifications of a train: whether they stay the same or count up.

use super::profile::{Generation, Profile};
use super::rules::Mismatch;
use crate::wire::{ipv4, read_u16};

/// Whether the IPv4 identifications of a train stay the same or count up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    /// One bit for each header of the layout: set if the identification stays the same, clear if it counts up.
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
