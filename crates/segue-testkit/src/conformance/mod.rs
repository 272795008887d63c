//! The conformance list of GRO and GSO: what goes in, and what has to come out.
//!
//! A [`Row`] is a rule: a name, the packets that show it, and the trains that each set of [`Rules`] makes of them. A
//! [`Carrier`] is what the packets travel in: nothing, a VLAN, or one of the tunnels. [`cases`] crosses the two. A [`Case`]
//! has frames as bytes, so that anything that takes frames can be judged by it: segue's engine, and a kernel's GRO behind a
//! veth pair. [`Case::judge`] decodes what came out, and compares it with the trains of the table, byte for byte, by a merge
//! of its own.
//!
//! [`vectors`] are trains as a stack hands them to a device, and [`wrapped`] and [`devices`] such trains in tunnels, each with the packets that
//! must leave for it; [`datagrams`] are single packets that are too long, and their fragments.
//!
//! The names in `tcp/`, `ip/`, `large/` and `single/` are those of the GRO selftest of Linux
//! (`tools/testing/selftests/net/gro.c`), where it has the case.

mod carrier;
mod datagrams;
mod devices;
mod judge;
mod notation;
mod rows;
mod script;
mod train;
mod vectors;
mod wrapped;

pub use carrier::{
    Carrier, FOU_PORTS, FOU6_PORTS, Feature, GENEVE_PORT, GUE_PORT, VXLAN_PORT, VXLAN_REMOTE_PORT, carriers,
};
pub use datagrams::{Datagram, datagrams};
pub use devices::{Device, ENTRY, Entering, UNDERLAY, devices};
pub use judge::{Difference, Out};
pub use notation::Train;
pub use script::{Frame, Script};
pub use train::{Gso, GsoKind};
pub use vectors::{Odd, Vector, odd_vectors, vectors};
pub use wrapped::{Under, Wrapped, Wrapping, wrapped};

/// Whose rules decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rules {
    /// Only what can be restored byte for byte.
    Strict,
    /// Linux up to 6.17.
    V6_12,
    /// Linux 6.18.
    V6_18,
    /// Linux 7.0 and later.
    V7,
    /// A receiver with LRO and aggregation of acknowledgments.
    Lro,
}

impl Rules {
    /// All of them.
    pub const ALL: [Rules; 5] = [Rules::Strict, Rules::V6_12, Rules::V6_18, Rules::V7, Rules::Lro];

    /// Those of the kernel that calls itself `release`, such as `6.1.0-56-amd64`.
    pub fn of_kernel(release: &str) -> Option<Rules> {
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        match (numbers.next()?, numbers.next()?) {
            (..6, _) | (6, ..18) => Some(Rules::V6_12),
            (6, _) => Some(Rules::V6_18),
            _ => Some(Rules::V7),
        }
    }
}

/// Which carriers a row makes sense in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All.
    Any,
    /// Those with IPv4 innermost.
    V4,
    /// Those with IPv6 innermost.
    V6,
    /// Those with nothing around the packet but Ethernet.
    Plain,
    /// Tunnels whose outer header is IPv4.
    Outer4,
    /// Tunnels whose outer header is IPv6.
    Outer6,
    /// Those in which the transport checksum is in its field.
    OwnChecksum,
    /// Those in which it is left to the far end (remote checksum offload).
    RemoteChecksum,
    /// Tunnels over UDP with an outer checksum.
    OuterUdp,
    /// GRE with a checksum.
    GreChecksum,
    /// GRE with a key.
    GreKey,
    /// Those with a VLAN tag.
    Tagged,
    /// Those with an Ethernet header inside the tunnel.
    InnerEthernet,
    /// Those with a network identifier: VXLAN and Geneve.
    Vni,
}

/// The trains that a row gives, in the notation of [`Train`]: one text for all rules, and others where they differ.
#[derive(Clone, Copy, Debug)]
pub struct Gives {
    all: &'static str,
    strict: Option<&'static str>,
    v6_12: Option<&'static str>,
    v6_18: Option<&'static str>,
    v7: Option<&'static str>,
    lro: Option<&'static str>,
}

/// The trains that all rules give.
pub const fn gives(all: &'static str) -> Gives {
    Gives { all, strict: None, v6_12: None, v6_18: None, v7: None, lro: None }
}

impl Gives {
    /// Another outcome under [`Rules::Strict`].
    #[must_use]
    pub const fn strict(self, text: &'static str) -> Gives {
        Gives { strict: Some(text), ..self }
    }

    /// Another outcome under [`Rules::V6_12`].
    #[must_use]
    pub const fn v6_12(self, text: &'static str) -> Gives {
        Gives { v6_12: Some(text), ..self }
    }

    /// Another outcome under [`Rules::V6_18`].
    #[must_use]
    pub const fn v6_18(self, text: &'static str) -> Gives {
        Gives { v6_18: Some(text), ..self }
    }

    /// Another outcome under [`Rules::V7`].
    #[must_use]
    pub const fn v7(self, text: &'static str) -> Gives {
        Gives { v7: Some(text), ..self }
    }

    /// Another outcome under [`Rules::Lro`].
    #[must_use]
    pub const fn lro(self, text: &'static str) -> Gives {
        Gives { lro: Some(text), ..self }
    }

    /// The outcome under `rules`.
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

/// One rule of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name: a group and a rule.
    pub name: &'static str,
    /// Where it makes sense.
    pub on: On,
    /// Writes the packets.
    pub make: fn(&mut Script),
    /// The trains.
    pub gives: Gives,
    /// Whether a kernel behind a veth pair can be shown it: not what takes longer than a poll, or more frames than one.
    pub in_kernels: bool,
    /// What a kernel must have besides what its carrier needs.
    pub needs: Option<Feature>,
}

/// A row in a carrier.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rule.
    pub row: Row,
    /// What it travels in.
    pub carrier: Carrier,
    /// The frames, in order.
    pub frames: Vec<Frame>,
}

impl Case {
    /// The name of the row and that of the carrier.
    pub fn name(&self) -> String {
        format!("{} {}", self.row.name, self.carrier.name)
    }

    /// What `rules` make of it.
    pub fn trains(&self, rules: Rules) -> Vec<Train> {
        if self.carrier.joins.has(rules) {
            notation::parse(self.row.gives.of(rules))
        } else {
            // A carrier that these rules do not join: what goes in comes out.
            (0..self.frames.len()).map(Train::single).collect()
        }
    }
}

/// The table: every row.
pub fn rows() -> Vec<Row> {
    rows::all()
}

/// Every row in every carrier in which it makes sense.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for carrier in carriers() {
        for row in rows() {
            if carrier.takes(row.on) {
                let mut script = Script::new(&carrier);
                (row.make)(&mut script);
                cases.push(Case { row, carrier: carrier.clone(), frames: script.frames });
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::oracle;

    #[test]
    fn a_release_tells_the_rules() {
        let rules =
            ["4.19.0", "6.1.0-56-amd64", "6.17.3", "6.18.44-fc", "6.19.0", "7.0.1", "unknown"].map(Rules::of_kernel);
        let expected = [
            Some(Rules::V6_12),
            Some(Rules::V6_12),
            Some(Rules::V6_12),
            Some(Rules::V6_18),
            Some(Rules::V6_18),
            Some(Rules::V7),
            None,
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn every_case_has_its_own_name_and_its_trains_hold_every_frame_once() {
        let mut names = BTreeSet::new();
        for case in cases() {
            assert!(names.insert(case.name()), "{} twice", case.name());
            for rules in Rules::ALL {
                let mut held: Vec<usize> = case.trains(rules).iter().flat_map(|train| train.frames.clone()).collect();
                held.sort_unstable();
                assert!(held.iter().copied().eq(0..case.frames.len()), "{} {rules:?}: {held:?}", case.name());
            }
        }
    }

    #[test]
    fn the_oracle_knows_every_frame_of_the_cases_that_all_join() {
        let ports = oracle::Ports {
            gue: vec![GUE_PORT],
            fou: FOU_PORTS.iter().chain(&FOU6_PORTS).copied().collect(),
            vxlan: vec![VXLAN_PORT, VXLAN_REMOTE_PORT],
            geneve: vec![GENEVE_PORT],
        };
        for case in cases() {
            if case.row.name == "tcp/data_same" {
                for frame in &case.frames {
                    let report = oracle::verify(&frame.bytes, oracle::Start::Ethernet, &ports)
                        .unwrap_or_else(|why| panic!("{}: {why}", case.name()));
                    assert!(report.transport.is_some());
                }
            }
        }
    }
}
