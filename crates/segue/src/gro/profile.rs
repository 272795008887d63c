//! Whose rules decide.

/// A generation of Linux, where it matters for what is joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Up to 6.17, of which 6.12 is the long-term one. An IPv4 identification that stays the same counts only with DF set,
    /// and the identification outside a tunnel is not looked at where DF is set there. CWR starts a new train.
    V6_12,
    /// 6.18. An identification that stays the same counts with DF set or clear, and that outside a tunnel as the one
    /// inside. CWR is compared as the other flags are, and starts a new train besides, so that what carries it stays alone.
    #[default]
    V6_18,
    /// 7.0 and later. CWR is compared, and no more than that, so that a run with CWR on every segment joins, as accurate ECN
    /// sends it.
    V7,
}

/// Whose rules decide.
///
/// | | `Strict` | `Linux` | `Lro` |
/// |---|---|---|---|
/// | splitting restores it | byte for byte | but for an urgent pointer that is not meant, checksums of all ones for zero, padding; before 6.18 outer identifications | the stream alone |
/// | padding of short frames | keeps a packet alone | is cut off what is joined | is cut off what is joined |
/// | acknowledgment number, window, timestamps | equal | equal | the newest stand in the header; none goes back |
/// | segment sizes of TCP | the last may be shorter | the last may be shorter | any |
/// | IPv4 identification | fixed or counting | fixed or counting | any |
/// | pure acknowledgments | alone | alone | collapse to the newest, where [`Config::acks`](super::Config::acks) asks for it |
///
/// In every profile a wrong checksum keeps a packet out of trains, order within a flow is kept, and DSCP, ECN, TTL, flow label
/// and the VLAN tag are equal in all of a train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Only what can be restored byte for byte.
    #[default]
    Strict,
    /// What a kernel of this generation joins, except that padded frames are joined without their padding (the kernel's
    /// GRO passes them on one by one, and padding is cut off above it).
    Linux(Generation),
    /// What a host may join that ends the connections itself, as receivers with LRO do (Linux `inet_lro`, FreeBSD
    /// `tcp_lro`). Not for what is forwarded unseen: the segments cannot be restored.
    Lro,
}

impl Profile {
    /// Linux of the default generation, 6.18.
    pub const fn linux() -> Profile {
        Profile::Linux(Generation::V6_18)
    }

    /// Whether padding is cut off what is joined.
    pub(super) const fn trims(self) -> bool {
        !matches!(self, Profile::Strict)
    }

    /// Whether CWR is compared as the other flags are.
    pub(super) const fn compares_cwr(self) -> bool {
        matches!(self, Profile::Linux(Generation::V6_18 | Generation::V7))
    }

    /// Whether a segment with CWR may follow another one.
    pub(super) const fn joins_cwr(self) -> bool {
        matches!(self, Profile::Linux(Generation::V7))
    }
}
