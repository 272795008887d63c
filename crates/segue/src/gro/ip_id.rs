//! How the IPv4 identifications of a train go on.

use super::profile::{Generation, Profile};
use super::rules::Mismatch;
use crate::wire::{ipv4, read_u16};

/// How the IPv4 identifications of a train go on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    /// Bit i: the header at index i keeps its identification; else it counts up.
    pub(super) fixed: u16,
}

/// How the identification of an IPv4 header, with its bit and whether it is the innermost one, goes on behind a train of `segs`
/// segments, where it does. The headers are that of the train and that of the packet.
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
    let (looks, takes_fixed) = match profile {
        Profile::Lro => (false, true),
        // A header that is not the innermost one, under DF.
        Profile::Linux(Generation::V6_12) => (!df || is_inner, df),
        Profile::Strict | Profile::Linux(_) => (true, true),
    };
    if segs == 1 {
        if fixed && takes_fixed {
            ids.fixed |= bit;
        } else if looks && !counted {
            return Err(Mismatch::IpId);
        }
    } else if looks && ((ids.fixed & bit != 0 && !fixed) || (ids.fixed & bit == 0 && !counted)) {
        return Err(Mismatch::IpId);
    }
    Ok(ids)
}
