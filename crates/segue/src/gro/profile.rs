//! The profiles, each a set of rules for joining packets.

/// Generations of Linux kernels with different GRO rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Generation {
    /// GRO of Linux up to 6.17, including the long-term 6.12. An IPv4 identification that stays the same counts only
    /// with DF set, and the outer identification of a tunnel is ignored if DF is set there. CWR starts a new train.
    V6_12,
    /// GRO of Linux 6.18. An identification that stays the same counts with DF set or clear, and the outer one of a
    /// tunnel is treated as the inner one. CWR is compared as the other flags are, and also starts a new train, so that
    /// a segment with CWR stays alone.
    #[default]
    V6_18,
    /// GRO of Linux 7.0 and later. CWR is only compared, so that a run with CWR on every segment joins, as accurate ECN
    /// sends it.
    V7,
}

/// The rules by which packets are joined.
///
/// - Splitting restores in `Strict` every byte; in `Linux` all but an urgent pointer without URG, checksums of all ones
///   for zero, padding, and before 6.18 outer identifications; in `Lro` only the stream.
/// - Padding of short frames keeps a packet alone in `Strict`; in the others it is cut off joined packets.
/// - Acknowledgment number, window and timestamps must be equal in `Strict` and `Linux`; in `Lro` the newest stand in
///   the header, and none may go back.
/// - Segment sizes of TCP: in `Strict` and `Linux` the last may be shorter; in `Lro` they may be any.
/// - IPv4 identification: constant or counting in `Strict` and `Linux`, any in `Lro`.
/// - Pure acknowledgments stay alone in `Strict` and `Linux`; in `Lro` they collapse to the newest if
///   [`Config::acks`](super::Config::acks) is set.
///
/// In every profile a packet with a wrong checksum is kept out of trains, order within a flow is kept, and DSCP, ECN,
/// TTL, flow label and VLAN tag are equal in all of a train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Joins only packets that segmentation restores byte for byte.
    #[default]
    Strict,
    /// Joins packets like a kernel of the given generation, except that padded frames are joined without their padding
    /// (the kernel's GRO passes them through singly, and a later layer removes the padding).
    Linux(Generation),
    /// Joins what a host that terminates the connections may join, as receivers with LRO do (Linux `inet_lro`,
    /// FreeBSD `tcp_lro`). Not for forwarded traffic: the segments cannot be restored.
    Lro,
}

impl Profile {
    /// Returns the profile of the default Linux generation, 6.18.
    pub const fn linux() -> Profile {
        Profile::Linux(Generation::V6_18)
    }

    /// Returns whether the padding of joined packets is removed.
    pub(super) const fn trims(self) -> bool {
        !matches!(self, Profile::Strict)
    }

    /// Returns whether CWR is compared as the other flags are.
    pub(super) const fn compares_cwr(self) -> bool {
        matches!(self, Profile::Linux(Generation::V6_18 | Generation::V7))
    }

    /// Returns whether a segment with CWR may follow another one.
    pub(super) const fn joins_cwr(self) -> bool {
        matches!(self, Profile::Linux(Generation::V7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the rules of each profile about padding and CWR, which is joined from Linux 7.0 on.
    #[test]
    fn each_profile_and_generation_has_its_own_rules_about_padding_and_cwr() {
        for (profile, trims, compares_cwr, joins_cwr) in [
            (Profile::Strict, false, false, false),
            (Profile::Linux(Generation::V6_12), true, false, false),
            (Profile::Linux(Generation::V6_18), true, true, false),
            (Profile::Linux(Generation::V7), true, true, true),
            (Profile::Lro, true, false, false),
        ] {
            let rules = (profile.trims(), profile.compares_cwr(), profile.joins_cwr());
            assert_eq!(rules, (trims, compares_cwr, joins_cwr), "{profile:?}");
        }
        assert_eq!(Profile::linux(), Profile::Linux(Generation::default()));
    }
}
