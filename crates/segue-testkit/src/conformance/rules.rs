//! The sets of rules, and the expected output of a row under each of them.

/// A set of rules by which packets are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rules {
    /// Packets join only if segmentation restores them byte for byte.
    Strict,
    /// The GRO of Linux up to 6.17.
    V6_12,
    /// The GRO of Linux 6.18.
    V6_18,
    /// The GRO of Linux 7.0 and later.
    V7,
    /// A receiver with LRO and aggregation of acknowledgments.
    Lro,
}

impl Rules {
    /// All sets of rules, in the order of the list.
    pub const ALL: [Rules; 5] = [Rules::Strict, Rules::V6_12, Rules::V6_18, Rules::V7, Rules::Lro];

    /// Returns the rules of the kernel with the given release, such as `6.1.0-56-amd64`.
    pub fn of_kernel(release: &str) -> Option<Rules> {
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        match (numbers.next()?, numbers.next()?) {
            (..6, _) | (6, ..18) => Some(Rules::V6_12),
            (6, _) => Some(Rules::V6_18),
            _ => Some(Rules::V7),
        }
    }
}

/// The carriers in which a row makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The case applies to every carrier.
    Any,
    /// The case applies to carriers with IPv4 innermost.
    V4,
    /// The case applies to carriers with IPv6 innermost.
    V6,
    /// Carriers with only an Ethernet header around the packet.
    Plain,
    /// Tunnels whose outer header is IPv4.
    Outer4,
    /// Tunnels whose outer header is IPv6.
    Outer6,
    /// Carriers in which the transport checksum is complete.
    OwnChecksum,
    /// Carriers in which the receiver completes the transport checksum (remote checksum offload).
    RemoteChecksum,
    /// Tunnels over UDP with an outer checksum.
    OuterUdp,
    /// The case applies to GRE with a checksum.
    GreChecksum,
    /// The case applies to GRE with a key.
    GreKey,
    /// The case applies to carriers with a VLAN tag.
    Tagged,
    /// Carriers with an Ethernet header inside the tunnel.
    InnerEthernet,
    /// The case applies to carriers with a network identifier: VXLAN and Geneve.
    Vni,
}

/// Expected trains of a row, in the notation of [`Train`](super::Train): one text for all rules, and separate ones for
/// rules that differ.
#[derive(Clone, Copy, Debug)]
pub struct Gives {
    all: &'static str,
    strict: Option<&'static str>,
    v6_12: Option<&'static str>,
    v6_18: Option<&'static str>,
    v7: Option<&'static str>,
    lro: Option<&'static str>,
}

/// Creates an outcome for all rules.
pub const fn gives(all: &'static str) -> Gives {
    Gives { all, strict: None, v6_12: None, v6_18: None, v7: None, lro: None }
}

impl Gives {
    /// Sets a separate outcome for [`Rules::Strict`].
    #[must_use]
    pub const fn strict(self, text: &'static str) -> Gives {
        Gives { strict: Some(text), ..self }
    }

    /// Sets a separate outcome for [`Rules::V6_12`].
    #[must_use]
    pub const fn v6_12(self, text: &'static str) -> Gives {
        Gives { v6_12: Some(text), ..self }
    }

    /// Sets a separate outcome for [`Rules::V6_18`].
    #[must_use]
    pub const fn v6_18(self, text: &'static str) -> Gives {
        Gives { v6_18: Some(text), ..self }
    }

    /// Sets a separate outcome for [`Rules::V7`].
    #[must_use]
    pub const fn v7(self, text: &'static str) -> Gives {
        Gives { v7: Some(text), ..self }
    }

    /// Sets a separate outcome for [`Rules::Lro`].
    #[must_use]
    pub const fn lro(self, text: &'static str) -> Gives {
        Gives { lro: Some(text), ..self }
    }

    /// Returns the expected outcome under `rules`.
    pub fn of(&self, rules: Rules) -> &'static str {
        let other = match rules {
            Rules::Strict => self.strict,
            Rules::V6_12 => self.v6_12,
            Rules::V6_18 => self.v6_18,
            Rules::V7 => self.v7,
            Rules::Lro => self.lro,
        };
        other.unwrap_or(self.all)
    }
}
