//! The conformance list of GRO and GSO: input frames and expected output.
//!
//! A [`Row`] is a rule: a name, the packets that show it, and the trains that each set of [`Rules`] makes of them. A
//! [`Carrier`] is what the packets travel in: nothing, a VLAN, or one of the tunnels. [`cases`] crosses the two. A
//! [`Case`] has frames as bytes, so that anything that takes frames can be judged by it: segue's engine, and a kernel's
//! GRO at the end of a veth pair. [`Case::judge`] decodes what came out, and compares it with the trains of the table,
//! byte for byte, by a merge of its own.
//!
//! [`vectors`] are trains as a stack hands them to a device, and [`wrapped`] and [`devices`] such trains in tunnels,
//! each with the packets that must leave for it; [`datagrams`] are single packets that are too long, and their
//! fragments.
//!
//! The names in `tcp/`, `ip/`, `large/` and `single/` are those of the GRO selftest of Linux
//! (`tools/testing/selftests/net/gro.c`), where it has the case.

mod carrier;
mod case;
mod datagrams;
mod devices;
mod judge;
mod notation;
mod row;
mod rows;
mod rules;
mod script;
mod train;
mod vectors;
mod wrapped;

pub use carrier::{
    Carrier, FOU_PORTS, FOU6_PORTS, Feature, GENEVE_PORT, GUE_PORT, VXLAN_PORT, VXLAN_REMOTE_PORT, carriers,
};
pub use case::Case;
pub use datagrams::{Datagram, datagrams};
pub use devices::{Device, ENTRY, Entering, UNDERLAY, devices};
pub use judge::{Difference, Out};
pub use notation::Train;
pub use row::Row;
pub use rules::{Gives, On, Rules, gives};
pub use script::{Frame, Script};
pub use train::{Gso, GsoKind};
pub use vectors::{Odd, Vector, odd_vectors, vectors};
pub use wrapped::{Under, Wrapped, Wrapping, wrapped};

/// Returns all rows of the conformance table.
pub fn rows() -> Vec<Row> {
    rows::all()
}

/// Returns every row in every carrier to which it applies.
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
    fn kernel_release_selects_the_rule_set() {
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
